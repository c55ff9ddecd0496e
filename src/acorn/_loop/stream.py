"""From deltas to chunks: one of these for each response that streams."""

from __future__ import annotations

from collections.abc import Iterator

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

    def add(self, delta: Delta) -> Iterator[StreamChunk]:
        """The chunks that a delta gives: one, or one for each call it touches."""
        content, reasoning, touched = self._assembly.add(delta)
        if content or reasoning:
            yield StreamChunk(content=content or None, reasoning=reasoning or None)
        for call in dict.fromkeys(touched):
            # While only the name is coming in, half of it may be half of `__finish__`.
            if call.pieces or call.name == FINISH or not FINISH.startswith(call.name):
                yield self._of_call(call)

    def end(self) -> tuple[ModelResponse, StreamChunk]:
        """The response, and the last chunk of it; the answer is in that one too."""
        response = self._assembly.response()
        written = [call for call in self._assembly.calls if call.name == FINISH]
        last = self._of_call(written[-1]) if written else StreamChunk()
        last.done = True
        return response, last

    def _of_call(self, call: CallParts) -> StreamChunk:
        count = len(call.pieces)
        if call.name != FINISH:
            return StreamChunk(call=call, count=count)
        answer = self._answers.get(call.index)
        if answer is None:
            answer = self._answers[call.index] = AnswerReader(call.pieces, self._shape)
        return StreamChunk(answer=answer, count=count)
