"""The chunk: what `on_stream` and an iterator see of a response while it comes in.

Nothing is computed for what nobody reads: the partial answer is parsed, and the text of a call joined, when
somebody looks at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, Generic

from typing_extensions import TypeVar

from acorn._declare.tools.collect import FINISH
from acorn._formats.partial.compile import expectation_of
from acorn._formats.partial.frames import NOT_READY, resolve_lazy
from acorn._formats.partial.parser import PushParser
from acorn._formats.schema.shape import RESULT, Shape
from acorn.models.assemble import Assembly, CallParts
from acorn.models.port import Delta, ModelResponse
from acorn.partial import Partial
from acorn.record import Run
from acorn.types import JsonObject, ToolResult

Out = TypeVar("Out", default=Any)


_new = object.__new__


class AnswerReader:
    """The arguments of one `__finish__` call, parsed as far as somebody has looked."""

    def __init__(self, pieces: list[str], shape: Shape) -> None:
        self._pieces = pieces
        self._shape = shape
        self._is_empty, self._is_wrapped = shape.is_empty, shape.wrapped
        self._parser: PushParser | None = None
        self._fed = 0
        self._lock = Lock()  # a chunk may be read in another thread

    def chunk(self) -> StreamChunk:
        """The answer as far as it has come, to be parsed when somebody looks."""
        made: StreamChunk = _new(StreamChunk)
        made._answer, made._count = self, len(self._pieces)
        return made

    def at(self, count: int) -> tuple[Any, tuple[str, ...]]:
        """The partial answer and its complete fields after so many pieces."""
        with self._lock:
            parser = self._parser
            if parser is None:
                parser = self._parser = PushParser(expectation_of(self._shape.schema))
            elif count < self._fed:  # an old chunk, read after a newer one: go through it once more
                parser = PushParser(expectation_of(self._shape.schema))
                for piece in self._pieces[:count]:
                    parser.feed(piece)
                return self._value(parser), parser.completed()
            while self._fed < count:
                parser.feed(self._pieces[self._fed])
                self._fed += 1
            return self._value(parser), parser.completed()

    def _value(self, parser: PushParser) -> Any:
        found = resolve_lazy(parser.value())
        if found is NOT_READY or self._is_empty:
            return None
        return getattr(found, RESULT, None) if self._is_wrapped else found


class StreamChunk(Generic[Out]):
    """A piece of a response, or of what happens around it: `on_stream` is called with them, `stream` gives them.

        for chunk in agent.stream(question="What are acorns?"):
            if chunk.tool_result:
                print("returned:", chunk.tool_result.output)
            if chunk.partial:
                print(chunk.partial.answer)
            if chunk.result:
                print("done:", chunk.result)

    Most chunks have one thing in them; what a chunk does not have is None.
    """

    # Thousands of these are made in a long answer, so what a chunk does not have costs it nothing.
    content: str | None = None
    """Text."""
    reasoning: str | None = None
    """Thinking text."""
    tool_result: ToolResult | None = None
    """A tool has returned."""
    done: bool = False
    """True on the last chunk of a model's response."""
    branch: str | None = None
    """The path of the branch it comes from; None for the run itself."""
    run_id: str | None = None
    """The run of that branch, since a branch may be called twice."""
    result: Out | None = None
    """The output, on the last chunk of an iterator."""
    run: Run[Out] | None = None
    """The record, on the last chunk of an iterator."""
    _answer: AnswerReader | None = None
    _call: tuple[int, str | None, str, list[str]] | None = None
    _count: int = 0
    _read: tuple[Any, tuple[str, ...]] | None = None

    def __init__(self, *, call: CallParts | None = None, **parts: Any) -> None:
        if call is not None:
            # The name and the id may still be coming in; the text only ever grows.
            self._call, self._count = (call.index, call.id, call.name, call.pieces), len(call.pieces)
        if parts:
            vars(self).update(parts)

    def __repr__(self) -> str:
        names = (
            "content",
            "reasoning",
            "partial",
            "completed",
            "tool_call",
            "tool_result",
            "branch",
            "run_id",
            "result",
        )
        shown = {name: getattr(self, name) for name in names} | {"completed": self.completed or None}
        parts = [f"{name}={value!r}" for name, value in shown.items() if value is not None]
        if self.run is not None:
            parts.append(f"run=<Run {self.run.id}>")
        return f"StreamChunk({', '.join([*parts, 'done=True'] if self.done else parts)})"

    @property
    def partial(self) -> Partial[Out] | None:
        """The answer so far, while `__finish__` is being written."""
        found: Out | None = self._look()[0]
        return found

    @property
    def completed(self) -> tuple[str, ...]:
        """The names of the output's top-level fields that are complete."""
        return self._look()[1]

    @property
    def tool_call(self) -> JsonObject | None:
        """The call of another tool so far: `index`, `id`, `name` and the text of its `arguments`."""
        if self._call is None:
            return None
        index, id, name, pieces = self._call
        return {"index": index, "id": id, "name": name, "arguments": "".join(pieces[: self._count])}

    def _look(self) -> tuple[Any, tuple[str, ...]]:
        if self._read is None:
            self._read = (None, ()) if self._answer is None else self._answer.at(self._count)
        return self._read


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
