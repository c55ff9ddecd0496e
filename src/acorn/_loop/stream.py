"""From deltas to chunks: one of these for each response that streams."""

from __future__ import annotations

from collections.abc import Sequence

from acorn._schema.shape import Shape
from acorn._tools.collect import FINISH
from acorn.chunk import AnswerReader, StreamChunk
from acorn.models.assemble import Assembly, CallParts
from acorn.models.port import Delta, ModelResponse


class Streamer:
    """Assembles a response and tells of it piece by piece."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._assembly = Assembly()
        self._answers: dict[int, AnswerReader] = {}

    def add(self, delta: Delta) -> Sequence[StreamChunk]:
        """The chunks that a delta gives: one, or one for each call it touches."""
        grown = self._assembly.grow(delta)
        if grown is not None:  # most deltas of a long answer
            return (self._of_call(grown),)
        content, reasoning, touched = self._assembly.add(delta)
        chunks = [_of_text(content, reasoning)] if content or reasoning else []
        if touched:
            # While only the name is coming in, half of it may be half of `__finish__`.
            known = [c for c in dict.fromkeys(touched) if c.pieces or c.name == FINISH or not FINISH.startswith(c.name)]
            chunks += map(self._of_call, known)
        return chunks

    def end(self) -> tuple[ModelResponse, StreamChunk]:
        """The response, and the last chunk of it; the answer is in that one too."""
        response = self._assembly.response()
        written = [call for call in self._assembly.calls if call.name == FINISH]
        last = self._of_call(written[-1]) if written else StreamChunk()
        last.done = True
        return response, last

    def _of_call(self, call: CallParts) -> StreamChunk:
        if call.name != FINISH:
            return StreamChunk(call=call)
        answer = self._answers.get(call.index)
        if answer is None:
            answer = self._answers[call.index] = AnswerReader(call.pieces, self._shape)
        return answer.chunk()


def _of_text(content: str, reasoning: str) -> StreamChunk:
    chunk: StreamChunk = StreamChunk()
    if content:
        chunk.content = content
    if reasoning:
        chunk.reasoning = reasoning
    return chunk
