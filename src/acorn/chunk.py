"""The chunks of a streamed run, and the type `Partial[T]` of an output that the model has not completed yet.

A chunk does its work only on demand. When the user reads `partial`, the chunk parses the partial answer. When the user
reads `tool_call`, the chunk joins the text of the tool call.

    def on_stream(self, chunk):
        partial: Partial[CityInfo] | None = chunk.partial
        if partial and partial.city_name:
            print(partial.city_name)

For a type checker, `Partial[T]` is `T`. At run time, it is a Pydantic class in which every field may be None.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Generic

from typing_extensions import TypeVar

from acorn._declare.tools.collect import FINISH
from acorn._formats.partial.classes import partial_type
from acorn._formats.partial.expectations import NOT_READY
from acorn._formats.partial.parser import PushParser, expectation_of
from acorn._formats.schema.shape import Shape
from acorn.models.assemble import Assembly, PartialCall
from acorn.models.port import Delta, ModelResponse
from acorn.record import Run
from acorn.types import JsonObject, ToolResult

Out = TypeVar("Out", default=Any)
T = TypeVar("T")

if TYPE_CHECKING:
    Partial = Annotated[T, "partial"]
else:

    class Partial:
        """The generic type of an incomplete output: `Partial[T]` is a copy of `T` in which all fields are optional."""

        def __class_getitem__(cls, kind: Any) -> Any:
            return partial_type(kind)


_new = object.__new__


class AnswerReader:
    """An incremental parser for the model's answer, which is the JSON text of the arguments of `__finish__`.

    It parses text only when the user reads the partial answer of a chunk.
    """

    def __init__(self, pieces: list[str], shape: Shape) -> None:
        self._pieces = pieces
        self._shape = shape
        self._parser: PushParser | None = None
        self._fed = 0
        self._lock = Lock()  # A chunk may be read in another thread.

    def chunk(self) -> StreamChunk:
        """Return a chunk for the answer received so far. The answer is parsed when the user reads the chunk."""
        chunk: StreamChunk = _new(StreamChunk)
        # Skipping `__init__` saves time, because there is one chunk for each delta.
        chunk._answer, chunk._count = self, len(self._pieces)  # pyright: ignore[reportPrivateUsage]
        return chunk

    def parse(self, count: int) -> tuple[Any, tuple[str, ...]]:
        """Parse the first `count` text fragments, and return the partial answer and its complete field names."""
        with self._lock:
            parser, fed = self._parser, self._fed
            if parser is None or count < fed:  # The user reads an old chunk after a newer chunk: parse from the start.
                parser, fed = PushParser(expectation_of(self._shape.schema)), 0
            for piece in self._pieces[fed:count]:
                parser.feed(piece)
            if count >= self._fed:
                self._parser, self._fed = parser, count
            return self._value(parser), parser.completed()

    def _value(self, parser: PushParser) -> Any:
        value = parser.value()
        if value is NOT_READY or self._shape.is_empty:
            return None
        return getattr(value, self._shape.wrapped, None) if self._shape.wrapped else value


class StreamChunk(Generic[Out]):
    """A part of a streamed run, which `stream` yields and `on_stream` receives.

        for chunk in agent.stream(question="What are acorns?"):
            if chunk.tool_result:
                print("returned:", chunk.tool_result.output)
            if chunk.partial:
                print(chunk.partial.answer)
            if chunk.result:
                print("done:", chunk.result)

    In most chunks, only one of these attributes is set. The other attributes are None.
    """

    # A long answer has thousands of chunks, so missing attributes are class attributes and cost nothing.
    content: str | None = None
    """A fragment of the model's text."""
    reasoning: str | None = None
    """A fragment of the model's reasoning."""
    tool_result: ToolResult | None = None
    """The result of a tool call."""
    done: bool = False
    """Whether this is the last chunk of a model's response."""
    branch: str | None = None
    """The path of the branch that the chunk belongs to, or None for the run itself."""
    run_id: str | None = None
    """The id of the branch's run. The path is not enough, because the model may call a branch twice."""
    result: Out | None = None
    """The output of the run, on the last chunk of `stream`."""
    run: Run[Out] | None = None
    """The record of the run, on the last chunk of `stream`."""
    _answer: AnswerReader | None = None
    _call: tuple[int, str | None, str, list[str]] | None = None
    _count: int = 0
    _parsed: tuple[Any, tuple[str, ...]] | None = None

    def __init__(self, *, call: PartialCall | None = None, **parts: Any) -> None:
        if call is not None:
            # The name and the id may change later. The text only grows.
            self._call, self._count = (call.index, call.id, call.name, call.pieces), len(call.pieces)
        if parts:
            vars(self).update(parts)

    def __repr__(self) -> str:
        names = ("content", "reasoning", "partial", "completed", "tool_call", "tool_result", "branch", "run_id")
        values = {name: getattr(self, name) for name in (*names, "result")} | {"completed": self.completed or None}
        parts = [f"{name}={value!r}" for name, value in values.items() if value is not None]
        if self.run is not None:
            parts.append(f"run=<Run {self.run.id}>")
        return f"StreamChunk({', '.join([*parts, 'done=True'] if self.done else parts)})"

    if not TYPE_CHECKING:  # With `__getattr__`, a type checker would accept any name.

        def __getattr__(self, name: str) -> Any:
            fix = "The answer so far is `chunk.partial`, and the answer of the last chunk is `chunk.result`."
            if name in ("text", "delta", "message"):
                fix = "The text is `chunk.content`."
            raise AttributeError(f"A chunk has no `{name}`. {fix}", name=name, obj=self)

    @property
    def partial(self) -> Partial[Out] | None:
        """The incomplete output, while the model writes it, or None if the chunk contains no part of the output."""
        partial: Out | None = self._parse()[0]
        return partial

    @property
    def completed(self) -> tuple[str, ...]:
        """The names of the top-level fields of the output that are complete."""
        return self._parse()[1]

    @property
    def tool_call(self) -> JsonObject | None:
        """The tool call received so far, as a dict with the keys `index`, `id`, `name` and `arguments` (text).

        It is None if the chunk contains no part of a tool call.
        """
        if self._call is None:
            return None
        index, id, name, pieces = self._call
        return {"index": index, "id": id, "name": name, "arguments": "".join(pieces[: self._count])}

    def _parse(self) -> tuple[Any, tuple[str, ...]]:
        if self._parsed is None:
            self._parsed = (None, ()) if self._answer is None else self._answer.parse(self._count)
        return self._parsed


def call_index_of(chunk: StreamChunk) -> int | None:
    """Return the index of the tool call in a chunk, or None if the chunk has no tool call.

    Unlike `chunk.tool_call`, the function does not join the text of the arguments.
    """
    call = chunk._call  # pyright: ignore[reportPrivateUsage] - Users do not need it, and `StreamChunk` is public.
    return None if call is None else call[0]


def has_answer_part(chunk: StreamChunk) -> bool:
    """Return True if a chunk contains a part of the model's answer. The answer is not parsed."""
    return chunk._answer is not None  # pyright: ignore[reportPrivateUsage] - As in `call_index_of`.


class Streamer:
    """A converter of the deltas (pieces) of a streamed response to chunks. It also builds the whole response."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._assembly = Assembly()
        self._answers: dict[int, AnswerReader] = {}

    def add(self, delta: Delta) -> Sequence[StreamChunk]:
        """Convert a delta to chunks: one chunk for its text, and one for each tool call that it extends."""
        call = self._assembly.add_arguments(delta)
        if call is not None:  # Most deltas of a long answer take this path.
            return (self._call_chunk(call),)
        content, reasoning, changed_calls = self._assembly.add(delta)
        chunks: list[StreamChunk] = []
        if content or reasoning:
            chunks.append(StreamChunk(content=content or None, reasoning=reasoning or None))
        if changed_calls:
            # An incomplete name may be the start of `__finish__`, so a call with an incomplete name has no chunk yet.
            calls = dict.fromkeys(changed_calls)
            named = [c for c in calls if c.pieces or c.name == FINISH or not FINISH.startswith(c.name)]
            chunks += map(self._call_chunk, named)
        return chunks

    def end(self) -> tuple[ModelResponse, StreamChunk]:
        """Return the complete response, and the last chunk. The last chunk contains the answer, if there is one."""
        response = self._assembly.response()
        answers = [call for call in self._assembly.calls if call.name == FINISH]
        last = self._call_chunk(answers[-1]) if answers else StreamChunk()
        last.done = True
        return response, last

    def _call_chunk(self, call: PartialCall) -> StreamChunk:
        if call.name != FINISH:
            return StreamChunk(call=call)
        answer = self._answers.get(call.index)
        if answer is None:
            answer = self._answers[call.index] = AnswerReader(call.pieces, self._shape)
        return answer.chunk()
