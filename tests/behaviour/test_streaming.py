"""Tests of streaming: the chunks, the end of streamed runs, and equality with plain runs."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator, Field, RootModel
from tests.behaviour.conftest import Call
from tests.behaviour.schemas import Question
from tests.behaviour.test_response_fuzz import MODULES, _reply
from tests.cases import each_case
from tests.long_version import IS_LONG
from tests.provider_rules import assert_complete, assert_request_valid, assert_thread_true
from tests.raw_model import RawModel, calling, finishing
from tests.waiting import AGES, PATIENCE, given_time
from typing_extensions import TypedDict

from acorn import (
    AcornError,
    DeclarationError,
    InputError,
    LimitError,
    ModelError,
    ParseError,
    Partial,
    Run,
    Step,
    StreamChunk,
    ToolResult,
    Unfinished,
    Usage,
    capture,
    current_run,
    module,
    tool,
)
from acorn.models import ModelRequest, ModelResponse, Price, RawCall
from acorn.models.port import Delta
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calls
from acorn.testing.scripted import split_response

RUNS = 60_000 if IS_LONG else 200

Chunk = StreamChunk[Any]
Hear = Callable[[Any, Chunk], Any]


class Answer(BaseModel):
    answer: str
    confidence: float = Field(ge=0, le=1)


class Source(BaseModel):
    title: str
    year: int


class Report(BaseModel):
    title: str
    kind: Literal["long", "short"]
    sources: list[Source]
    first: Source | None = None


@tool
def search(query: str) -> list[str]:
    """Search for information."""
    return [f"about {query}", "more"]


@tool
def read(path: str) -> str:
    """Read a file."""
    if path == "nowhere":
        raise ValueError("no such file")
    return f"text of {path}"


class Asker(module[Question, Answer]):
    """Answer the question."""


class Researcher(Asker):
    """Answer the question, with tools."""

    tools = [search, read]
    max_steps = 5


class Reporter(module[Any, Report]):
    """Report."""


ANSWER = "It is Paris, the city of light"
RIGHT = Answer(answer=ANSWER, confidence=0.25)
DONE = finish(answer=ANSWER, confidence=0.25)
WRONG = finish(answer=ANSWER, confidence=7)
THINK = Reply("Let me look that up.", reasoning="The question is about a city.")
SEARCH = THINK & calls("search", query="the capital of France")
STOPPED = "This call was not completed: the run was stopped."


class Watched(ScriptedModel):
    """A model that expects to be asked for a stream and records how each one ended."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ends: list[str] = []

    def complete(self, request: ModelRequest) -> ModelResponse:
        raise AssertionError("this request should stream")

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        raise AssertionError("this request should stream")

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        how = "left"
        try:
            yield from super().stream(request)
            how = "read"
        except ModelError:
            how = "failed"
            raise
        finally:
            self.ends.append(how)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        how = "left"
        inner: Any = super().astream(request)
        try:
            async with aclosing(inner):
                async for delta in inner:
                    yield delta
            how = "read"
        except ModelError:
            how = "failed"
            raise
        finally:
            self.ends.append(how)


class Still(ScriptedModel):
    """A model that does not expect to be asked for a stream."""

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        raise AssertionError("this request should not stream")

    def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        raise AssertionError("this request should not stream")


Watch = Callable[..., Watched]


@pytest.fixture
def watched() -> Iterator[Watch]:
    """Make streaming models and check every request, script, stream and history afterwards."""
    models: list[Watched] = []

    def make(*replies: Any, **options: Any) -> Watched:
        models.append(Watched(replies, **options))
        return models[-1]

    with capture() as runs:
        yield make
    for model in models:
        model.done()
        assert len(model.ends) == len(model.requests), "a stream is still open"
        for request in model.requests:
            assert_request_valid(request)
    for run in runs:
        assert_complete(run.history)
        assert_thread_true(run)


class Stream:
    """Iterate over a run in one of the three ways."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __call__(self, agent: module[Any, Any], /, *args: Any, **kwargs: Any) -> list[Chunk]:
        """All chunks."""
        return self.until(lambda _: False, agent, *args, **kwargs)

    def until(self, enough: Callable[[Chunk], Any], agent: module[Any, Any], /, *args: Any, **kw: Any) -> list[Chunk]:
        """Return the chunks up to the first that is enough, where the loop is left."""
        if self.way == "sync":
            return self._sync(enough, agent, *args, **kw)
        return asyncio.run((self._async if self.way == "async" else self._inside)(enough, agent, *args, **kw))

    def _sync(self, enough: Callable[[Chunk], Any], agent: module[Any, Any], *args: Any, **kw: Any) -> list[Chunk]:
        found: list[Chunk] = []
        for chunk in agent.stream(*args, **kw):
            found.append(chunk)
            if enough(chunk):
                break
        return found

    async def _inside(self, *args: Any, **kw: Any) -> list[Chunk]:
        return self._sync(*args, **kw)

    async def _async(
        self, enough: Callable[[Chunk], Any], agent: module[Any, Any], *args: Any, **kw: Any
    ) -> list[Chunk]:
        found: list[Chunk] = []
        async for chunk in agent.astream(*args, **kw):
            found.append(chunk)
            if enough(chunk):
                break
        return found


STREAM_WAYS = ["sync", "inside a loop", "async"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stream" in metafunc.fixturenames:
        is_every_way = IS_LONG or metafunc.definition.get_closest_marker("every_way") is not None
        metafunc.parametrize("stream", STREAM_WAYS if is_every_way else ["sync"], indirect=True)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> Stream:
    return Stream(request.param)


kinds = each_case("kind", ["def", "async def"])


def listening(base: type[module[Any, Any]], hear: Hear, kind: str = "def") -> Any:
    """Create a class with this `on_stream`."""

    def on_stream(self: Any, chunk: Chunk) -> None:
        hear(self, chunk)

    async def aon_stream(self: Any, chunk: Chunk) -> None:
        await asyncio.sleep(0)
        hear(self, chunk)

    hook = on_stream if kind == "def" else aon_stream
    return type("Listening", (base,), {"__module__": __name__, "__doc__": base.__doc__, "on_stream": hook})


def keeping(heard: list[Chunk]) -> Hear:
    return lambda _, chunk: heard.append(chunk)


def shown(chunk: Chunk) -> dict[str, Any]:
    """What a chunk says."""
    names = ("content", "reasoning", "partial", "tool_call", "tool_result", "branch", "result", "run")
    found = {name: getattr(chunk, name) for name in names if getattr(chunk, name) is not None}
    return {**found, "completed": chunk.completed, "done": chunk.done}


def contents(chunks: list[Chunk]) -> list[str]:
    return [chunk.content for chunk in chunks if chunk.content is not None]


def partials(chunks: list[Chunk]) -> list[Any]:
    return [chunk.partial for chunk in chunks if chunk.partial is not None]


def told(run: Run[Any]) -> list[str]:
    return [message["content"] for message in run.history if message["role"] == "tool"]


# When a request streams


def test_call_without_on_stream_sends_request_without_streaming(call: Call) -> None:
    model = Still([SEARCH, "Hm.", WRONG, SEARCH, WRONG, DONE])
    with model:
        assert call(Researcher(model=model, max_steps=3), question="?") == RIGHT


class Heard(Asker):
    """Answer the question."""

    heard: list[Chunk]

    def on_stream(self, chunk: Chunk) -> None:
        self.heard.append(chunk)


class Heir(Heard):
    """Answer the question."""


@pytest.mark.every_way
@each_case("kind", [Heard, Heir])
def test_call_of_agent_that_overrides_on_stream_sends_streaming_request(
    call: Call, watched: Watch, kind: type[Heard]
) -> None:
    agent = kind(model=watched(DONE))
    agent.heard = []
    assert call(agent, question="?") == RIGHT
    assert [chunk.done for chunk in agent.heard].count(True) == 1


def test_call_of_agent_with_on_stream_set_on_instance_sends_streaming_request(call: Call, watched: Watch) -> None:
    heard: list[Chunk] = []
    agent = Asker(model=watched(DONE))
    agent.on_stream = heard.append  # type: ignore[method-assign, assignment]
    assert call(agent, question="?") == RIGHT
    assert partials(heard)[-1].answer == ANSWER


def test_call_of_agent_whose_on_stream_only_calls_super_sends_streaming_request(call: Call, watched: Watch) -> None:
    class Polite(Asker):
        """Answer the question."""

        def on_stream(self, chunk: StreamChunk[Answer]) -> None:
            super().on_stream(chunk)

    assert call(Polite(model=watched(DONE)), question="?") == RIGHT


@dataclass
class Halt:
    name: str
    zone: int = 1


class Trip(TypedDict):
    stops: list[Halt]


class Trips(RootModel[list[Trip]]):
    pass


class Plan(BaseModel):
    trips: Trips


def test_partials_are_created_for_dataclass_typed_dict_and_root_model_outputs(stream: Stream) -> None:
    zoo = {"name": "Zoo"}
    cases: list[tuple[Any, dict[str, Any], Callable[[Any], Any]]] = [
        (Halt, {"result": zoo}, lambda partial: partial.name),
        (Trip, {"result": {"stops": [zoo]}}, lambda partial: partial["stops"][0].name),
        (Trips, {"result": [{"stops": [zoo]}]}, lambda partial: partial.root[0]["stops"][0].name),
        (Plan, {"trips": [{"stops": [zoo]}]}, lambda partial: partial.trips.root[0]["stops"][0].name),
    ]
    for declared, answer, name in cases:
        model = ScriptedModel([finish(**answer)], chunk_size=1)
        seen: list[Any] = []
        for chunk in stream(type("Agent", (module,), {"final_output": declared})(model=model)):
            with suppress(AttributeError, TypeError, IndexError):
                seen.append(name(chunk.partial))
            if chunk.run is not None:
                assert name(chunk.result) == "Zoo"
        assert [each for each in dict.fromkeys(seen) if each] == ["Z", "Zo", "Zoo"]


@pytest.mark.every_way
def test_stream_method_sends_streaming_requests(stream: Stream, watched: Watch) -> None:
    assert stream(Asker(model=watched(DONE)), question="?")[-1].result == RIGHT


@pytest.mark.every_way
def test_stream_iterator_and_on_stream_receive_identical_chunks(stream: Stream, watched: Watch) -> None:
    heard: list[Chunk] = []
    chunks = stream(listening(Asker, keeping(heard))(model=watched(DONE)), question="?")
    assert all(one is other for one, other in zip(heard, chunks[:-1], strict=True))


@pytest.mark.every_way
@kinds
def test_corrections_forced_requests_and_later_steps_are_streamed(call: Call, watched: Watch, kind: str) -> None:
    heard: list[Chunk] = []
    model = watched(SEARCH, "Hm.", WRONG, calls("read", path="a"), WRONG, DONE)
    run = call.run(listening(Researcher, keeping(heard), kind)(model=model, max_steps=3), question="?")
    assert run.output == RIGHT
    assert run.stop_reason == "forced"
    assert model.requests[-1].forced_tool == "__finish__"
    assert model.ends == ["read"] * 6
    assert [chunk.done for chunk in heard].count(True) == 6


def test_xml_answer_is_streamed_as_text(stream: Stream, watched: Watch) -> None:
    form = f"Here: <output><answer>{ANSWER}</answer><confidence>0.25</confidence></output>"
    *chunks, last = stream(Asker(model=watched("Hm.", form, forces=False)), question="?")
    assert last.result == RIGHT
    assert "".join(contents(chunks)) == "Hm." + form
    assert partials(chunks) == []


# Models without streaming


@pytest.mark.every_way
def test_stream_of_model_without_streaming_yields_text_in_one_chunk(stream: Stream) -> None:
    model = RawModel([calling(("a", "search", '{"query": "x"}'), content="Hm.", reasoning="Well."), FINISHING])
    first, second, *rest = stream(Researcher(model=model), question="?")
    assert shown(first) == {"content": "Hm.", "reasoning": "Well.", "completed": (), "done": False}
    assert second.tool_call == {"index": 0, "id": "a", "name": "search", "arguments": '{"query": "x"}'}
    assert [chunk.done for chunk in rest] == [True, False, False, True, False]
    assert rest[1].tool_result == ToolResult("a", "search", ["about x", "more"])
    assert rest[2].partial == Partial[Answer](answer=ANSWER, confidence=0.25)
    assert rest[-1].result == RIGHT


FINISHING = finishing(answer=ANSWER, confidence=0.25)


@pytest.mark.every_way
@kinds
def test_on_stream_with_model_without_streaming_receives_whole_response(call: Call, kind: str) -> None:
    heard: list[Chunk] = []
    agent = listening(Researcher, keeping(heard), kind)(model=RawModel([FINISHING]))
    assert call(agent, question="?") == RIGHT
    assert partials(heard)[-1].answer == ANSWER


@pytest.mark.every_way
def test_model_that_has_stream_but_not_astream_is_called_without_streaming(stream: Stream) -> None:
    class Half(RawModel):
        def stream(self, request: ModelRequest) -> Iterator[Delta]:
            raise AssertionError("there is no `astream` beside it")

    assert stream(Asker(model=Half([FINISHING])), question="?")[-1].result == RIGHT


@pytest.mark.every_way
def test_model_stream_iterator_without_close_method_is_accepted(stream: Stream) -> None:
    class Pieces:
        def __init__(self, deltas: list[Delta]) -> None:
            self.deltas = iter(deltas)

        def __iter__(self) -> Pieces:
            return self

        def __next__(self) -> Delta:
            return next(self.deltas)

        def __aiter__(self) -> Pieces:
            return self

        async def __anext__(self) -> Delta:
            for delta in self.deltas:
                return delta
            raise StopAsyncIteration

    class Simple(RawModel):
        def stream(self, request: ModelRequest) -> Any:
            return Pieces(list(split_response(self.complete(request), 5)))

        astream = stream

    assert stream(Asker(model=Simple([FINISHING])), question="?")[-1].result == RIGHT
    assert len(stream.until(lambda _: True, Asker(model=Simple([FINISHING])), question="?")) == 1


# Text and reasoning


@pytest.mark.every_way
@each_case("size", [1, 7, 1000])
def test_text_and_reasoning_are_yielded_in_chunks(stream: Stream, watched: Watch, size: int) -> None:
    chunks = stream(Researcher(model=watched(SEARCH, DONE, chunk_size=size)), question="?")
    texts = contents(chunks)
    thoughts = [chunk.reasoning for chunk in chunks if chunk.reasoning is not None]
    assert texts == [THINK.content[at : at + size] for at in range(0, len(THINK.content), size)]
    assert "".join(thoughts) == THINK.reasoning
    assert "" not in texts + thoughts


def test_streamed_text_and_reasoning_are_in_history(stream: Stream, watched: Watch) -> None:
    class Noting(Researcher):
        """Answer the question."""

        def on_step(self, step: Step) -> None:
            noted.append((step.content, step.reasoning, step.usage.requests, step.response["choices"][0]["message"]))

    noted: list[Any] = []
    agent = Noting(model=watched(SEARCH, DONE))
    run = stream(agent, question="?")[-1].run
    assert run is not None
    assert run.history[2]["content"] == THINK.content
    assert noted[0][:3] == (THINK.content, THINK.reasoning, 1)
    assert noted[0][3]["tool_calls"][0]["function"]["arguments"] == '{"query":"the capital of France"}'


# Partial answers


def test_partial_answer_grows_with_each_chunk(stream: Stream, watched: Watch) -> None:
    chunks = stream(Asker(model=watched(DONE, chunk_size=3)), question="?")
    found = partials(chunks)
    assert all(type(one) is Partial[Answer] for one in found)
    texts = [one.answer for one in found if one.answer is not None]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert len(set(texts)) >= len(ANSWER) // 3
    assert {one.confidence for one in found} == {None, 0.25}  # Not 0 or 0.2.
    assert found[-1] == Partial[Answer](answer=ANSWER, confidence=0.25)


def test_partial_of_nested_output_contains_nested_partials(stream: Stream, watched: Watch) -> None:
    sources = [{"title": "Larousse", "year": 1905}, {"title": "Baedeker", "year": 1828}]
    reply = finish(title="Paris", kind="short", sources=sources, first=sources[0])
    *chunks, last = stream(Reporter(model=watched(reply, chunk_size=1)))
    assert isinstance(last.result, Report)
    found = partials(chunks)
    assert {len(one.sources) for one in found if one.sources is not None} == {0, 1, 2}
    inner = [source for one in found for source in one.sources or ()]
    assert all(type(one) is Partial[Source] for one in inner)
    assert {one.year for one in inner} == {None, 1905, 1828}
    assert {"Lar", "Larousse", "Baedeker"} <= {one.title for one in inner}
    assert {one.kind for one in found} == {None, "short"}
    assert found[-1].first == Partial[Source](title="Larousse", year=1905)


class Colour(Enum):
    red = "red"
    dark_red = "dark red"


class Mixed(BaseModel):
    text: str
    whole: int
    sure: bool
    colour: Colour
    size: Literal["s", "small"]
    day: date


def test_partial_strings_grow_and_other_partial_values_appear_when_complete(stream: Stream, watched: Watch) -> None:
    class Mixer(module[Any, Mixed]):
        """Mix."""

    reply = finish(text="word", whole=12345, sure=True, colour="dark red", size="small", day="2020-02-29")
    found = partials(stream(Mixer(model=watched(reply, chunk_size=1))))
    seen = {name: {getattr(one, name) for one in found} - {None} for name in Mixed.model_fields}
    assert seen["text"] >= {"w", "wo", "wor", "word"}
    assert [seen[name] for name in ("whole", "sure", "colour", "size", "day")] == [
        {12345}, {True}, {Colour.dark_red}, {"small"}, {date(2020, 2, 29)}
    ]  # fmt: skip


@kinds
def test_invalid_value_is_none_in_partial_and_model_is_asked_to_correct_it(
    call: Call, watched: Watch, kind: str
) -> None:
    heard: list[Chunk] = []
    model = watched(WRONG, DONE, chunk_size=4)
    run = call.run(listening(Asker, keeping(heard), kind)(model=model), question="?")
    assert run.output == RIGHT
    first = heard[: [chunk.done for chunk in heard].index(True) + 1]
    assert {one.confidence for one in partials(first)} == {None}
    assert partials(first)[-1].answer == ANSWER
    assert partials(heard)[-1].confidence == 0.25
    plain = ScriptedModel([WRONG, DONE])
    assert call.run(Asker(model=plain), question="?").history == run.history
    assert [request.messages for request in plain.requests] == [request.messages for request in model.requests]


@each_case(
    ("output", "value", "seen"),
    [
        (str, "Paris", ["P", "Pa", "Par", "Pari", "Paris"]),
        (int, 1234, [1234]),
        (list[str], ["a", "bc"], [[""], ["a"], ["a", ""], ["a", "b"], ["a", "bc"]]),
        (list[int], [10, 20], [[10], [10, 20]]),
    ],
)
def test_plain_type_partial_is_unwrapped(
    stream: Stream, watched: Watch, output: Any, value: Any, seen: list[Any]
) -> None:
    agent = module[Any, Any]()
    agent.final_output, agent.model = output, watched(finish(result=value), chunk_size=1)
    *chunks, last = stream(agent)
    assert last.result == value
    found = [one for one in partials(chunks) if one]
    assert [one for at, one in enumerate(found) if at == 0 or one != found[at - 1]] == seen


def test_module_without_output_yields_no_partial(stream: Stream, watched: Watch) -> None:
    class Silent(module[Any, Any]):
        """Do it."""

        final_output: Any = []

    *chunks, last = stream(Silent(model=watched(finish())))
    assert (last.result, partials(chunks)) == (None, [])
    assert last.run is not None
    assert last.run.stop_reason == "finish"


def test_chunk_completed_lists_fields_that_will_not_change(stream: Stream, watched: Watch) -> None:
    reply = finish(title="Paris", kind="short", sources=[{"title": "Larousse", "year": 1905}], first=None)
    *chunks, last = stream(Reporter(model=watched("Hm.", reply, chunk_size=1, forces=True)))
    states = list(dict.fromkeys(chunk.completed for chunk in chunks))
    names = tuple(Report.model_fields)
    assert states == [names[:count] for count in range(5)]
    assert last.result is not None
    for chunk in chunks:
        for name in chunk.completed:
            assert getattr(chunk.partial, name) == getattr(partials(chunks)[-1], name)


def test_last_chunk_of_response_contains_whole_answer(stream: Stream, watched: Watch) -> None:
    chunks = stream(Asker(model=watched(DONE)), question="?")
    (last,) = [chunk for chunk in chunks if chunk.done]
    assert last.partial == Partial[Answer](answer=ANSWER, confidence=0.25)
    assert last.completed == ("answer", "confidence")


def test_partials_of_each_finish_call_in_one_response_are_streamed(stream: Stream, watched: Watch) -> None:
    other = finish(answer="Rome", confidence=1)
    *chunks, last = stream(Asker(model=watched(WRONG & other, chunk_size=100)), question="?")
    assert last.result == Answer(answer="Rome", confidence=1)
    assert {one.answer for one in partials(chunks)} == {ANSWER, "Rome"}


# Snapshots


def dumped(chunks: list[Chunk]) -> list[Any]:
    return [
        (chunk.partial.model_dump() if isinstance(chunk.partial, BaseModel) else chunk.partial, chunk.completed)
        for chunk in chunks
    ]


SOURCES = [{"title": f"title {number}", "year": number} for number in range(5)]
LONG = finish(title="x" * 3000, kind="long", sources=SOURCES, first=SOURCES[0])


@each_case("reply", [LONG, finish(title="Paris", kind="short", sources=SOURCES)])
def test_partial_read_once_is_not_changed_by_later_chunks(stream: Stream, watched: Watch, reply: Reply) -> None:
    then: list[Any] = []
    kept: list[Chunk] = []

    def hear(_: Any, chunk: Chunk) -> None:
        kept.append(chunk)
        then.extend(dumped([chunk]))

    agent = listening(Reporter, hear)(model=watched(reply, chunk_size=16))
    assert isinstance(stream(agent)[-1].result, Report)
    assert dumped(kept) == then


def test_partial_first_read_after_stream_ended_has_state_of_its_chunk(stream: Stream, watched: Watch) -> None:
    reply = finish(title="Paris", kind="short", sources=SOURCES)
    early = dumped(stream(listening(Reporter, lambda _, chunk: chunk.partial)(model=watched(reply, chunk_size=5)))[:-1])
    kept = stream(Reporter(model=watched(reply, chunk_size=5)))[:-1]
    order = list(range(len(kept)))
    random.Random(1).shuffle(order)
    late = dict(zip(order, dumped([kept[at] for at in order]), strict=True))
    assert [late[at] for at in range(len(kept))] == early


def test_tool_call_arguments_of_each_chunk_contain_text_received_until_that_chunk(
    stream: Stream, watched: Watch
) -> None:
    model = watched(calls("search", query="acorn"), DONE, chunk_size=6)
    texts = [chunk.tool_call["arguments"] for chunk in stream(Researcher(model=model), question="?") if chunk.tool_call]
    assert texts == ["", '{"quer', '{"query":"ac', '{"query":"acorn"}']


def test_partial_read_in_other_os_thread_equals_partial_read_in_same_os_thread(watched: Watch) -> None:
    chunks = stream_all(Reporter(model=watched(LONG, chunk_size=64)))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda chunk: dumped([chunk])[0], chunks))
    assert found == dumped(chunks)


def stream_all(agent: module[Any, Any], **kwargs: Any) -> list[Chunk]:
    return list(agent.stream(**kwargs))


@pytest.mark.every_way
def test_chunk_whose_partial_is_not_read_runs_no_validation(stream: Stream, watched: Watch) -> None:
    looked: list[Any] = []

    def look(value: Any) -> Any:
        looked.append(value)
        return value

    class Heavy(BaseModel):
        number: Annotated[int, BeforeValidator(look)]
        text: str

    class Thinker(module[Any, Heavy]):
        """Think."""

    reply = finish(number=5, text="some words")
    chunks = stream(Thinker(model=watched(reply, chunk_size=1)))
    assert looked == [5]  # The answer itself.
    assert partials(chunks)[-1].number == 5
    assert looked == [5, 5]


# Calls and results


def test_tool_call_chunk_contains_arguments_received_so_far(stream: Stream, watched: Watch) -> None:
    reply = calls("search", _id="first", query="a") & calls("read", _id="second", path="b")
    *chunks, _ = stream(Researcher(model=watched(reply, DONE, chunk_size=5)), question="?")
    seen = [chunk.tool_call for chunk in chunks if chunk.tool_call is not None]
    assert seen == [
        {"index": 0, "id": "first", "name": "search", "arguments": '{"query":"a"}'[:length]}
        for length in (0, 5, 10, 13)
    ] + [
        {"index": 1, "id": "second", "name": "read", "arguments": '{"path":"b"}'[:length]} for length in (0, 5, 10, 12)
    ]
    assert all(chunk.partial is None for chunk in chunks if chunk.tool_call is not None)
    assert all(chunk.tool_call is None for chunk in chunks if chunk.partial is not None)


def test_finish_call_yields_no_tool_call_chunk(stream: Stream, watched: Watch) -> None:
    assert [chunk.tool_call for chunk in stream(Asker(model=watched(DONE)), question="?") if chunk.tool_call] == []


@pytest.mark.every_way
def test_each_tool_call_yields_one_result_chunk_in_call_order(stream: Stream, watched: Watch) -> None:
    reply = (
        calls("read", _id="a", path="x")
        & calls("nothing", _id="b")
        & calls("search", _id="c", wrong=1)
        & calls("read", _id="d", path="nowhere")
        & calls("search", _id="e", query="y")
    )
    chunks = stream(Researcher(model=watched(reply, SEARCH, DONE)), question="?")
    results = [chunk.tool_result for chunk in chunks if chunk.tool_result is not None]
    assert results == [
        ToolResult("a", "read", "text of x"),
        ToolResult("d", "read", error="ValueError: no such file"),
        ToolResult("e", "search", ["about y", "more"]),
        ToolResult("call_2_0", "search", ["about the capital of France", "more"]),
    ]


def test_tool_call_next_to_finish_yields_no_result(stream: Stream, watched: Watch) -> None:
    chunks = stream(Researcher(model=watched(SEARCH & DONE)), question="?")
    assert [chunk for chunk in chunks if chunk.tool_result] == []
    assert [chunk for chunk in chunks if chunk.tool_call] != []


@pytest.mark.every_way
def test_result_chunks_are_yielded_after_response_and_before_on_step(call: Call, watched: Watch) -> None:
    class Noting(Researcher):
        """Answer the question."""

        def on_stream(self, chunk: Chunk) -> None:
            order.append("done" if chunk.done else "result" if chunk.tool_result else "chunk")

        def on_step(self, step: Step) -> None:
            order.append("step")

    order: list[str] = []
    call(Noting(model=watched(calls("search", query="a") & calls("read", path="b"), DONE)), question="?")
    assert order[order.index("done") :][:5] == ["done", "result", "result", "step", "chunk"]


def test_on_step_change_of_result_does_not_change_chunk(stream: Stream, watched: Watch) -> None:
    class Editing(Researcher):
        """Answer the question."""

        def on_step(self, step: Step) -> None:
            step.tool_results[0].output = "edited"

    chunks = stream(Editing(model=watched(SEARCH, DONE)), question="?")
    (result,) = [chunk.tool_result for chunk in chunks if chunk.tool_result is not None]
    assert result.output == ["about the capital of France", "more"]
    assert chunks[-1].run is not None
    assert told(chunks[-1].run)[0] == "edited"


def test_single_turn_tool_yields_result_chunk(stream: Stream, watched: Watch) -> None:
    *chunks, last = stream(Researcher(model=watched(SEARCH), max_steps=None), question="?")
    assert isinstance(last.result, Unfinished)
    assert [chunk.tool_result.name for chunk in chunks if chunk.tool_result] == ["search"]


# The end of a response and of a run


@pytest.mark.every_way
@each_case(
    "replies",
    [
        [DONE],
        ["Hm.", DONE],
        [Reply(), DONE],
        [Reply(reasoning="Hm."), DONE],
        [SEARCH, DONE],
        [WRONG, DONE],
        [calls("__finish__"), DONE],
        [calls("search", query="a") & calls("read", path="b") & Reply("Hm."), SEARCH, DONE & SEARCH],
        [Reply(stop_reason="length") & SEARCH, DONE],
    ],
)
@kinds
def test_chunk_done_is_true_once_per_response(call: Call, watched: Watch, replies: list[Any], kind: str) -> None:
    heard: list[Chunk] = []
    call(listening(Researcher, keeping(heard), kind)(model=watched(*replies)), question="?")
    assert [chunk.done for chunk in heard].count(True) == len(replies)
    for chunk, following in zip(heard, [*heard[1:], None], strict=True):
        if chunk.done:
            assert (chunk.content, chunk.reasoning, chunk.tool_call) == (None, None, None)
        elif chunk.tool_result is None:
            assert following is not None
            assert following.tool_result is None, "a response goes on to its last chunk"
    assert heard[-1].done


@pytest.mark.every_way
@kinds
def test_stream_ends_with_chunk_that_contains_result_and_run(stream: Stream, watched: Watch, kind: str) -> None:
    heard: list[Chunk] = []
    agent = listening(Researcher, keeping(heard), kind)(model=watched(SEARCH, DONE))
    with capture() as runs:
        chunks = stream(agent, question="?")
    *before, last = chunks
    assert shown(last) == {"result": RIGHT, "run": runs[0], "completed": (), "done": False}
    assert all(chunk.result is None and chunk.run is None for chunk in before)
    assert heard == before
    assert runs[0].output is last.result
    assert (runs[0].stop_reason, runs[0].error) == ("finish", None)
    assert runs[0].seconds > 0


def test_stream_result_is_output_returned_by_on_finish(stream: Stream, watched: Watch) -> None:
    class Judging(Asker):
        """Answer the question."""

        def on_finish(self, output: Answer) -> str:
            if output.answer == "no":
                raise ValueError("not that")
            return output.answer.upper()

    chunks = stream(Judging(model=watched(finish(answer="no", confidence=1), DONE)), question="?")
    assert chunks[-1].result == ANSWER.upper()
    assert [chunk.done for chunk in chunks].count(True) == 2


def test_leaving_stream_at_last_chunk_leaves_run_finished(stream: Stream, watched: Watch) -> None:
    with capture() as runs:
        chunks = stream.until(lambda chunk: chunk.run, Asker(model=watched(DONE)), question="?")
    assert chunks[-1].result == RIGHT
    assert (runs[0].stop_reason, runs[0].error, runs[0].output) == ("finish", None, RIGHT)


def test_stream_iterated_twice_yields_nothing_second_time(watched: Watch) -> None:
    chunks = Asker(model=watched(DONE)).stream(question="?")
    assert list(chunks)[-1].result == RIGHT
    assert list(chunks) == []
    with pytest.raises(StopIteration):
        next(chunks)


# Failures


@each_case("given", [{}, {"question": [1]}, {"question": "?", "answer": "!"}])
@each_case("how", ["stream", "astream"])
def test_stream_with_wrong_input_raises_input_error_before_iteration(how: str, given: dict[str, Any]) -> None:
    with capture() as runs, pytest.raises(InputError, match=r"question|answer"):
        getattr(Asker(model=ScriptedModel([])), how)(**given)
    assert runs == []


@each_case("how", ["stream", "astream"])
def test_stream_without_model_raises_declaration_error_before_iteration(how: str) -> None:
    with pytest.raises(DeclarationError, match="model"):
        getattr(Asker(), how)(question="?")


@each_case("how", ["stream", "astream"])
def test_stream_that_is_never_iterated_sends_no_request(how: str) -> None:
    model = ScriptedModel([])
    with capture() as runs:
        getattr(Asker(model=model), how)(question="?")
        gc.collect()
    assert runs == []
    assert model.requests == []


@pytest.mark.every_way
@each_case(("failure", "status"), [(Failure(after=THINK), None), (Failure(503, after=SEARCH), 503), (Failure(), None)])
def test_model_failure_during_stream_raises_model_error(
    stream: Stream, watched: Watch, failure: Failure, status: int | None
) -> None:
    heard: list[Chunk] = []
    model = watched(SEARCH, failure)
    with pytest.raises(ModelError) as caught:
        stream(listening(Researcher, keeping(heard))(model=model), question="?")
    run: Run[Any] = caught.value.run
    assert caught.value.status == status
    assert (run.stop_reason, run.error, run.output) == ("error", caught.value, None)
    assert model.ends == ["read", "failed"]
    assert [chunk.done for chunk in heard].count(True) == 1
    assert "".join(contents(heard)) == THINK.content * (1 if failure.after is None else 2)
    assert told(run) == ['["about the capital of France","more"]']


@pytest.mark.every_way
@kinds
def test_model_failure_inside_streamed_tool_call_raises_model_error(call: Call, watched: Watch, kind: str) -> None:
    heard: list[Chunk] = []
    with pytest.raises(ModelError, match="the connection broke"):
        call(listening(Asker, keeping(heard), kind)(model=watched(Failure(after=DONE))), question="?")
    assert partials(heard)[-1].answer == ANSWER
    assert not any(chunk.done for chunk in heard)


def test_streamed_answer_that_stays_invalid_raises_same_parse_error_as_plain_call(
    stream: Stream, watched: Watch
) -> None:
    with pytest.raises(ParseError) as caught:
        stream(Asker(model=watched(WRONG, WRONG, WRONG)), question="?")
    with pytest.raises(ParseError) as plain:
        Asker(model=ScriptedModel([WRONG, WRONG, WRONG]))(question="?")
    assert str(caught.value) == str(plain.value)
    assert (caught.value.raw_output, caught.value.errors) == (plain.value.raw_output, plain.value.errors)


@each_case("reply", [Reply(refusal="I would rather not."), Reply("As", stop_reason="content_filter")])
def test_refusal_in_stream_raises_model_error(stream: Stream, watched: Watch, reply: Reply) -> None:
    with pytest.raises(ModelError, match=r"I would rather not|content filter: As"):
        stream(Asker(model=watched(reply)), question="?")


def test_cut_off_streamed_answer_is_corrected(stream: Stream, watched: Watch) -> None:
    half = Reply(calls=[RawCall(None, "__finish__", '{"answer": "It is')], stop_reason="length")
    chunks = stream(Asker(model=watched(half, DONE)), question="?")
    assert chunks[-1].result == RIGHT
    assert chunks[-1].run is not None
    assert "cut off" in told(chunks[-1].run)[0]
    assert "It is" in [one.answer for one in partials(chunks)]


@pytest.mark.every_way
def test_time_limit_reached_during_stream_raises_limit_error(stream: Stream) -> None:
    def hurry(seconds: float) -> LimitError | None:
        model = Watched([Reply("Hm.", delay=AGES)])
        with pytest.raises(LimitError, match="max_seconds") as caught:
            stream(Asker(model=model, max_seconds=seconds), question="?")
        return caught.value if model.requests else None

    assert isinstance(given_time(hurry).__cause__, ModelError)


# Leaving early


def enough(seen: list[Chunk], count: int, chunk: Chunk) -> bool:
    seen.append(chunk)
    return len(seen) == count


@pytest.mark.every_way
def test_stream_left_at_any_chunk_cancels_run_and_history_is_valid(stream: Stream, watched: Watch) -> None:
    script = (SEARCH & calls("read", path="a"), WRONG, DONE)
    count = len(stream(Researcher(model=watched(*script)), question="?"))
    assert count == 40
    for leave in range(1, count):
        left: list[Chunk] = []
        model = Watched(list(script))
        agent = Researcher(model=model)
        with capture() as runs:
            stream.until(partial(enough, left, leave), agent, question="?")
        (run,) = runs
        assert run.stop_reason == "cancelled"
        assert isinstance(run.error, GeneratorExit)
        assert run.error.run is run  # type: ignore[attr-defined]
        assert run.output is None
        assert_complete(run.history)
        assert len(model.ends) == len(model.requests)
        if not left[-1].done and left[-1].tool_result is None:
            assert model.ends[-1] == "left"
        assert model.ends[:-1] == ["read"] * (len(model.ends) - 1)
        for request in model.requests:
            assert_request_valid(request)


@pytest.mark.every_way
def test_stream_left_early_has_finished_tool_results_in_history(stream: Stream, watched: Watch) -> None:
    model = watched(SEARCH & calls("read", path="a"))
    with capture() as runs:
        stream.until(lambda chunk: chunk.tool_result, Researcher(model=model), question="?")
    assert told(runs[0]) == ['["about the capital of France","more"]', "text of a"]
    assert (runs[0].steps, runs[0].usage.requests) == (1, 1)


def test_record_of_stream_left_early_is_accepted_as_history(stream: Stream, watched: Watch) -> None:
    agent = Researcher(model=watched(SEARCH, DONE))
    with capture() as runs:
        stream.until(lambda chunk: chunk.tool_result, agent, question="?")
    assert stream(agent.using(history=runs[0]), question="Well?")[-1].result == RIGHT


@pytest.mark.every_way
def test_exception_in_loop_body_cancels_streamed_run(stream: Stream, watched: Watch) -> None:
    model = watched(SEARCH)

    def fail(chunk: Chunk) -> None:
        if chunk.content:
            raise KeyError("mine")

    with capture() as runs, pytest.raises(KeyError, match="mine"):
        stream.until(fail, Researcher(model=model), question="?")
    assert model.ends == ["left"]
    assert (runs[0].stop_reason, type(runs[0].error)) == ("cancelled", GeneratorExit)


def test_closing_stream_cancels_run_immediately(watched: Watch) -> None:
    model = watched(SEARCH)
    agent = Researcher(model=model)
    with closing(agent.stream(question="?")) as chunks:
        next(chunks)
    assert model.ends == ["left"]
    assert agent.last is not None
    assert agent.last.stop_reason == "cancelled"
    assert list(chunks) == []


def test_closing_async_stream_cancels_run_immediately(watched: Watch) -> None:
    async def main() -> None:
        model = watched(SEARCH)
        agent = Researcher(model=model)
        async with aclosing(agent.astream(question="?")) as chunks:
            await anext(chunks)
        assert model.ends == ["left"]
        assert agent.last is not None
        assert agent.last.stop_reason == "cancelled"
        assert [chunk async for chunk in chunks] == []

    asyncio.run(main())


def test_async_stream_left_without_close_cancels_run(watched: Watch) -> None:
    async def main() -> None:
        model = watched(SEARCH)
        agent = Researcher(model=model)
        async for _ in agent.astream(question="?"):
            break
        for _ in range(3):  # The event loop closes abandoned iterators.
            await asyncio.sleep(0)
        assert model.ends == ["left"]
        assert agent.last is not None
        assert agent.last.stop_reason == "cancelled"

    asyncio.run(main())


def test_closing_stream_before_first_chunk_or_after_last_chunk_has_no_effect(watched: Watch) -> None:
    model = watched(DONE)
    agent = Asker(model=model)
    with capture() as runs:
        agent.stream(question="?").close()
        chunks = agent.stream(question="?")
        list(chunks)
        chunks.close()
    assert [run.stop_reason for run in runs] == ["finish"]


def test_cancelled_task_cancels_streamed_run(watched: Watch) -> None:
    async def main() -> None:
        agent = Researcher(model=watched(SEARCH))
        begun = asyncio.Event()

        async def iterate() -> None:
            async for _ in agent.astream(question="?"):
                begun.set()
                await asyncio.sleep(20)

        with capture() as runs:
            task = asyncio.ensure_future(iterate())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            del task
            for _ in range(3):
                await asyncio.sleep(0)
        assert runs[0].stop_reason == "cancelled"

    asyncio.run(main())


def test_cancelling_task_while_model_sends_nothing_closes_model_stream() -> None:
    class Slow(ScriptedModel):
        async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
            try:
                yield Delta(content="Hm.")
                begun.set()
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise
            finally:
                ends.append("closed")

    async def main() -> None:
        async def iterate() -> None:
            async for chunk in Researcher(model=Slow([])).astream(question="?"):
                ends.extend([str(chunk.content)])

        with capture() as runs:
            task = asyncio.ensure_future(iterate())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert runs[0].stop_reason == "cancelled"
        assert isinstance(runs[0].error, asyncio.CancelledError)

    ends: list[str] = []
    begun = asyncio.Event()
    asyncio.run(main())
    assert ends == ["Hm.", "cancelled", "closed"]


@pytest.mark.every_way
def test_leaving_stream_early_closes_tool_sources(stream: Stream, watched: Watch) -> None:
    class Drawer:
        def open(self) -> None:
            seen.append("open")

        def tools(self) -> list[Any]:
            return [search]

        async def close(self) -> None:
            seen.append("close")

    seen: list[str] = []
    agent = Asker(model=watched("Hm. Hm. Hm."), tools=[Drawer()], max_steps=2)
    stream.until(lambda chunk: chunk.content, agent, question="?")
    assert seen == ["open", "close"]


@pytest.mark.every_way
def test_exception_while_closing_model_stream_is_raised(stream: Stream) -> None:
    class Stuck(ScriptedModel):
        def stream(self, request: ModelRequest) -> Generator[Delta]:
            try:
                yield Delta(content="Hm.")
            finally:
                raise OSError("stuck")

        async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
            try:
                yield Delta(content="Hm.")
            finally:
                raise OSError("stuck")

    agent = Asker(model=Stuck([]))
    with capture() as runs:
        if stream.way == "async":
            with pytest.raises(OSError, match="stuck"):
                asyncio.run(close_early(agent))
        else:
            chunks = agent.stream(question="?")
            next(chunks)
            with pytest.raises(OSError, match="stuck"):
                chunks.close()
    assert (runs[0].stop_reason, str(runs[0].error)) == ("error", "stuck")


async def close_early(agent: module[Any, Any]) -> None:
    async with aclosing(agent.astream(question="?")) as chunks:
        await anext(chunks)


# Exceptions in on_stream


class CustomError(Exception):
    pass


class Stop(BaseException):
    pass


EXCEPTIONS: list[BaseException] = [
    CustomError("mine"),
    ValueError("mine"),
    KeyError("mine"),
    ModelError("mine"),
    ParseError("mine"),
    LimitError("mine"),
    RuntimeError("mine"),
    TimeoutError("mine"),
    AssertionError("mine"),
    Stop("mine"),
]

MOMENTS: dict[str, Callable[[Chunk], Any]] = {
    "reasoning": lambda chunk: chunk.reasoning,
    "text": lambda chunk: chunk.content,
    "a call": lambda chunk: chunk.tool_call,
    "a result": lambda chunk: chunk.tool_result,
    "the answer": lambda chunk: chunk.partial,
    "the end of a response": lambda chunk: chunk.done,
}


def raising(error: BaseException, moment: Callable[[Chunk], Any], base: Any = Researcher, kind: str = "def") -> Any:
    def hear(_: Any, chunk: Chunk) -> None:
        if moment(chunk):
            raise error

    return listening(base, hear, kind)


def check_failed(error: BaseException, model: Watched) -> None:
    run: Run[Any] = error.run  # type: ignore[attr-defined]
    assert run.error is error
    assert run.output is None
    assert run.stop_reason == ("error" if isinstance(error, Exception) else "cancelled")
    assert_complete(run.history)
    assert len(model.ends) == len(model.requests)


@pytest.mark.every_way
@kinds
@each_case("error", EXCEPTIONS)
def test_on_stream_exception_is_raised_and_closes_model_stream(call: Call, error: BaseException, kind: str) -> None:
    model = Watched([SEARCH])
    with pytest.raises(type(error)) as caught:
        call(raising(error, MOMENTS["text"], kind=kind)(model=model), question="?")
    assert caught.value is error
    assert model.ends == ["left"]
    check_failed(error, model)


@pytest.mark.every_way
@kinds
@each_case("moment", MOMENTS)
def test_exception_raised_by_on_stream_at_any_kind_of_chunk_ends_run(call: Call, moment: str, kind: str) -> None:
    stream = Stream(call.way)
    for way in (lambda agent: call(agent, question="?"), lambda agent: stream(agent, question="?")):
        error = CustomError("mine")
        model = Watched([SEARCH, DONE])
        with pytest.raises(CustomError) as caught:
            way(raising(error, MOMENTS[moment], kind=kind)(model=model))
        assert caught.value is error
        check_failed(error, model)
        run: Run[Any] = error.run  # type: ignore[attr-defined]
        if moment == "a result":
            assert told(run) == ['["about the capital of France","more"]']
        assert model.ends[-1] == ("read" if moment in ("a result", "the end of a response") else "left")


@pytest.mark.every_way
def test_model_error_raised_by_on_stream_is_not_reported_as_timeout(stream: Stream) -> None:
    error = ModelError("mine")

    def hurry(seconds: float) -> Exception | None:
        heard: list[Chunk] = []

        def hear(_: Any, chunk: Chunk) -> None:
            heard.append(chunk)
            time.sleep(seconds)
            raise error

        with pytest.raises((ModelError, LimitError)) as caught:
            stream(listening(Asker, hear)(model=Watched([DONE]), max_seconds=seconds), question="?")
        return caught.value if heard else None

    assert given_time(hurry) is error


@pytest.mark.every_way
@each_case("error", [StopIteration("mine"), StopAsyncIteration("mine")])
def test_stop_iteration_raised_by_on_stream_becomes_cause_of_raised_error(call: Call, error: Exception) -> None:
    stream = Stream(call.way)
    for way in (lambda agent: call(agent, question="?"), lambda agent: stream(agent, question="?")):
        model = Watched([SEARCH])
        with pytest.raises((type(error), RuntimeError)) as caught:
            way(raising(error, MOMENTS["text"])(model=model))
        assert error in (caught.value, caught.value.__cause__)
        assert model.ends == ["left"]


def test_on_stream_return_value_is_ignored(call: Call, watched: Watch) -> None:
    class Chatty(Asker):
        """Answer the question."""

        def on_stream(self, chunk: Chunk) -> Any:
            return chunk

    assert call(Chatty(model=watched(DONE)), question="?") == RIGHT


@pytest.mark.every_way
def test_on_stream_awaitable_return_value_is_awaited(call: Call, watched: Watch) -> None:
    class Lazy(Asker):
        """Answer the question."""

        def on_stream(self, chunk: Chunk) -> Any:
            return self.later(chunk)

        async def later(self, chunk: Chunk) -> None:
            await asyncio.sleep(0)
            heard.append(chunk)

    heard: list[Chunk] = []
    assert call(Lazy(model=watched(DONE)), question="?") == RIGHT
    assert heard[-1].done


# Where on_stream runs


@pytest.mark.every_way
@kinds
def test_async_on_stream_is_called_in_chunk_order_without_overlap(call: Call, watched: Watch, kind: str) -> None:
    class Slow(Asker):
        """Answer the question."""

        def on_stream(self, chunk: Chunk) -> Any:
            return self.slowly(chunk) if kind == "async def" else heard.append(chunk)

        async def slowly(self, chunk: Chunk) -> None:
            busy.append(len(busy))
            assert busy == [0]
            await asyncio.sleep(0.001)
            busy.pop()
            heard.append(chunk)

    busy: list[int] = []
    heard: list[Chunk] = []
    call(Slow(model=watched(Reply("abcdefghij") & DONE, chunk_size=1)), question="?")
    assert "".join(contents(heard)) == "abcdefghij"
    texts = [one.answer or "" for one in partials(heard)]
    assert texts == sorted(texts, key=len)


@pytest.mark.every_way
def test_sync_on_stream_is_called_in_os_thread_of_caller(call: Call, watched: Watch) -> None:
    places: set[int] = set()
    call(listening(Asker, lambda *_: places.add(threading.get_ident()))(model=watched(DONE)), question="?")
    assert places == {threading.get_ident()}


setting: ContextVar[str] = ContextVar("setting", default="nothing")


@pytest.mark.every_way
@kinds
def test_on_stream_of_call_can_read_current_run_and_context_variables_of_caller(
    call: Call, watched: Watch, kind: str
) -> None:
    def hear(agent: Any, chunk: Chunk) -> None:
        seen.append((setting.get(), current_run(), agent.history, current_run().deps))

    seen: list[Any] = []
    agent = listening(Researcher, hear, kind)(model=watched(SEARCH, DONE))
    token = setting.set("mine")
    try:
        run = call.run(agent.using(deps="these"), question="?")
    finally:
        setting.reset(token)
    assert len(seen) > 10
    for found, inside, history, deps in seen:
        assert (found, deps) == ("mine", "these")
        assert inside is run
        assert history is run.history


@pytest.mark.every_way
@kinds
def test_current_run_in_on_stream_of_streamed_run_returns_that_run(stream: Stream, watched: Watch, kind: str) -> None:
    seen: list[Any] = []
    agent = listening(Researcher, lambda *_: seen.append(current_run()), kind)(model=watched(SEARCH, DONE))
    run = stream(agent, question="?")[-1].run
    assert all(one is run for one in seen)


@pytest.mark.every_way
def test_current_run_called_in_loop_over_stream_raises_acorn_error(stream: Stream, watched: Watch) -> None:
    def look(chunk: Chunk) -> bool:
        with pytest.raises(AcornError, match="not inside a run"):
            current_run()
        assert agent.history == ([] if chunk.run is None else chunk.run.history)
        return False

    agent = Researcher(model=watched(SEARCH, DONE))
    assert stream.until(look, agent, question="?")[-1].result == RIGHT


@pytest.mark.every_way
def test_current_run_in_tool_that_iterates_stream_of_other_agent_is_run_of_tool(call: Call, watched: Watch) -> None:
    inner = listening(Researcher, lambda *_: seen.append(("inner", current_run())))(model=watched(SEARCH, DONE))
    script = ScriptedModel([calls("ask"), DONE])

    class Outer(Researcher):
        """Answer the question."""

        @tool
        def ask(self) -> str:
            """Ask another."""
            for chunk in inner.stream(question="inner?"):
                seen.append(("tool", current_run()))
                answer = chunk.result
            return str(answer.answer)

    seen: list[tuple[str, Run[Any]]] = []
    run = call.run(Outer(model=script), question="outer?")
    assert told(run)[0] == ANSWER
    assert {who for who, _ in seen} == {"inner", "tool"}
    assert all((one is run) == (who == "tool") for who, one in seen)


@pytest.mark.every_way
def test_other_agent_called_in_on_stream_returns_output(call: Call, watched: Watch) -> None:
    other = Asker(model=Still([finish(answer="other", confidence=1)]))

    def hear(_: Any, chunk: Chunk) -> None:
        if chunk.done:
            results.append(other(question="?"))

    results: list[Answer] = []
    assert call(listening(Asker, hear)(model=watched(DONE)), question="?") == RIGHT
    assert results == [Answer(answer="other", confidence=1)]


@pytest.mark.every_way
def test_streamed_run_is_collected_by_capture_block_and_is_agent_last(stream: Stream, watched: Watch) -> None:
    async def main() -> None:
        agent = Asker(model=watched(DONE, DONE))
        with capture() as runs:
            first = [chunk async for chunk in agent.astream(question="?")][-1].run
            second = stream_all(agent, question="?")[-1].run
        assert runs == [first, second]
        assert agent.last is second

    asyncio.run(main())
    agent = Asker(model=watched(DONE))
    chunks = stream_all(agent, question="?")
    assert agent.last is chunks[-1].run
    assert agent.history == chunks[-1].run.history  # type: ignore[union-attr]


# Several iterators


def test_two_streams_in_one_thread_have_separate_chunks(watched: Watch) -> None:
    def hear(agent: Any, chunk: Chunk) -> None:
        assert current_run().input.question in agent.history[1]["content"]  # type: ignore[attr-defined]
        heard.append((current_run().id, chunk))

    heard: list[tuple[str, Chunk]] = []
    one = finish(answer="one", confidence=1)
    script = [SEARCH, SEARCH, one, DONE]
    agent = listening(Researcher, hear)(model=watched(*script, chunk_size=4))
    first, second = agent.stream(question="first?"), agent.stream(question="second?")
    found: tuple[list[Chunk], list[Chunk]] = ([], [])
    pairs = zip(first, second, strict=False)
    for pair in pairs:
        for chunks, chunk in zip(found, pair, strict=True):
            chunks.append(chunk)
    found[1].extend(second)
    assert [chunks[-1].result for chunks in found] == [Answer(answer="one", confidence=1), RIGHT]
    for chunks in found:
        run = chunks[-1].run
        assert run is not None
        assert [chunk for owner, chunk in heard if owner == run.id] == chunks[:-1]
        assert "".join(contents(chunks)) == THINK.content


def test_two_async_streams_in_one_task_have_separate_chunks(watched: Watch) -> None:
    async def main() -> None:
        agent = Researcher(model=watched(SEARCH, SEARCH, finish(answer="one", confidence=1), DONE, chunk_size=4))
        iterators = [agent.astream(question=question) for question in ("first?", "second?")]
        found: list[list[Chunk]] = [[], []]
        open_ones = [0, 1]
        while open_ones:
            for at in list(open_ones):
                try:
                    found[at].append(await anext(iterators[at]))
                except StopAsyncIteration:
                    open_ones.remove(at)
        assert [chunks[-1].result for chunks in found] == [Answer(answer="one", confidence=1), RIGHT]

    asyncio.run(main())


def test_one_instance_streams_separately_in_many_tasks() -> None:
    async def one(question: str) -> str:
        chunks = [chunk async for chunk in agent.astream(question=question)]
        assert partials(chunks)[-1].answer == chunks[-1].result.answer
        return str(chunks[-1].result.answer)

    async def main() -> list[str]:
        return await asyncio.gather(*(one(f"question {number}") for number in range(30)))

    def reply(request: ModelRequest) -> Reply:
        return finish(answer=request.messages[1]["content"], confidence=1)

    agent = listening(Asker, lambda *_: None, "async def")(model=ScriptedModel(reply))
    assert [f"question {number}" in text for number, text in enumerate(asyncio.run(main()))] == [True] * 30


def test_stream_read_by_different_tasks_or_by_different_threads_yields_all_chunks(watched: Watch) -> None:
    async def main() -> None:
        agent = listening(Researcher, lambda *_: current_run(), "async def")(model=watched(SEARCH, DONE))
        chunks = agent.astream(question="?")
        found: list[Chunk] = []
        while not found or found[-1].run is None:
            found.append(await asyncio.create_task(anext(chunks)))
        assert found[-1].result == RIGHT

    asyncio.run(main())
    agent = listening(Researcher, lambda *_: current_run())(model=watched(SEARCH, DONE))
    iterator = agent.stream(question="?")
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        found: list[Any] = [None]
        while found[-1] is None or found[-1].run is None:
            found.append((one if len(found) % 2 else other).submit(next, iterator).result())
    assert found[-1].result == RIGHT


# The same run


def outcome(run: Run[Any], requests: list[ModelRequest]) -> dict[str, Any]:
    """Return everything that a run leaves, except its id and times."""
    return {
        "output": repr(run.output),  # NaN equals nothing.
        "error": (type(run.error), re.sub(r"[\d.]+ s\b", "", str(run.error))),
        "history": run.history,
        "usage": run.usage,
        "cost": run.cost,
        "model": run.model,
        "steps": run.steps,
        "stop_reason": run.stop_reason,
        "messages": [request.messages for request in requests],
        "tools": [request.tools for request in requests],
        "forced": [request.forced_tool for request in requests],
        "settings": [(request.temperature, request.max_tokens) for request in requests],
    }


def test_usage_and_cost_of_streamed_run_are_sums_of_all_requests(stream: Stream, watched: Watch) -> None:
    spent = [Usage(100, 20, 60, 5, requests=1), Usage(200, 30, 100, 0, requests=1)]
    script = [SEARCH & Reply(usage=spent[0]), DONE & Reply(usage=spent[1])]
    run = stream(Researcher(model=watched(*script, price=Price(0.5, 2.0))), question="?")[-1].run
    assert run is not None
    assert run.usage == Usage(300, 50, 160, 5, requests=2)
    assert run.cost == 300 * 0.5 + 50 * 2.0
    assert run.model == "scripted"


SCRIPTS: dict[str, list[Any]] = {
    "an answer": [DONE],
    "steps": [SEARCH, calls("read", path="nowhere") & calls("nothing"), "Hm.", DONE],
    "corrections": [WRONG, Reply("Well.") & WRONG & calls("search"), DONE],
    "the forced call": [SEARCH, SEARCH, SEARCH, SEARCH, SEARCH, DONE],
    "no answer": [WRONG, WRONG, WRONG],
    "thinking": [Reply(reasoning="Hm.") & SEARCH, Reply(reasoning="Ah.") & DONE],
    "nothing": [Reply(), Reply(), DONE],
    "ids": [calls("search", _id="", query="a") & calls("search", _id="", query="b"), DONE],
    "an answer twice": [DONE & finish(answer="other", confidence=1)],
    "characters": [Reply("größer 🦔 \ud83e") & calls("search", query="\x00 🦔"), finish(answer="ü🦔", confidence=1)],
    "cut off": [Reply(calls=[RawCall("a", "search", '{"query": "x')], stop_reason="length"), DONE],
    "a failure": [SEARCH, Failure(500)],
    "a refusal": [Reply("No.", refusal="")],
}


@pytest.mark.every_way
@each_case("name", SCRIPTS)
@each_case("size", [1, 3, 1000] if IS_LONG else [3])
def test_streamed_run_equals_plain_run(stream: Stream, name: str, size: int) -> None:
    plain = Still(SCRIPTS[name])
    with capture() as runs, suppress(AcornError):
        Researcher(model=plain)(question="?")
    model = Watched(SCRIPTS[name], chunk_size=size)
    with capture() as streamed, suppress(AcornError):
        assert stream(Researcher(model=model), question="?")[-1].result == runs[0].output
    assert outcome(streamed[0], model.requests) == outcome(runs[0], plain.requests)


class Flowing(RawModel):
    """A model that streams raw responses in pieces of any length."""

    chance: random.Random

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        response = self.complete(request)
        yield from split_response(
            response, self.chance.choice([1, 2, 5, 50, 10**6] if len(str(response)) < 5000 else [10**5])
        )
        yield Delta(extra=response.extra or None)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        for delta in self.stream(request):
            yield delta


def joined(text: str) -> str:
    """Join the two halves of a character, because a stream cannot distinguish them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def replies_of(seed: int) -> tuple[random.Random, Callable[[ModelRequest], ModelResponse]]:
    chance = random.Random(seed)

    def reply(_: ModelRequest) -> ModelResponse:
        response = _reply(chance)
        response.content = joined(response.content)
        for made in response.tool_calls:  # A stream cannot send None.
            made.name, made.arguments = made.name or "", joined(made.arguments or "")
        return response

    return chance, reply


def test_streamed_run_equals_plain_run_for_random_responses(record_property: Callable[[str, object], None]) -> None:
    for seed in range(RUNS):
        stream = Stream(STREAM_WAYS[seed % 3])
        outcomes = []
        for streams in (False, True):
            chance, reply = replies_of(seed)
            kind = chance.choice(MODULES)
            model = (Flowing if streams else RawModel)(reply, forces=chance.random() < 0.5)
            agent = kind(model=model, parse_retries=chance.randrange(3))
            if isinstance(model, Flowing):
                model.chance = random.Random(seed)
            with capture() as runs, suppress(AcornError):
                if streams:
                    for chunk in stream(agent)[:: max(1, seed % 7)]:
                        shown(chunk)
                else:
                    agent.run()
            outcomes.append(outcome(runs[0], model.requests))
        assert outcomes[0] == outcomes[1], f"seed {seed}"
    record_property("tried", f"{RUNS:,} streamed runs with random responses")


# Branches


class Check(module[Any, Answer]):
    """Check it."""

    tools = [read]
    max_steps = 3


class Parent(Researcher):
    """Answer the question."""

    branches = {"check": Check}


@pytest.mark.every_way
def test_branch_chunks_have_branch_path(stream: Stream, watched: Watch) -> None:
    inner = finish(answer="checked", confidence=1)
    model = watched(calls("check", _id="a"), Reply("Inner.") & calls("read", path="b"), inner, DONE)
    *chunks, last = stream(Parent(model=model), question="?")
    assert last.result == RIGHT
    assert last.branch is None
    within = [chunk for chunk in chunks if chunk.branch is not None]
    assert {chunk.branch for chunk in within} == {"check"}
    assert "".join(contents(within)) == "Inner."
    assert [chunk.done for chunk in within].count(True) == 2
    assert partials(within)[-1].answer == "checked"
    assert [chunk.tool_result for chunk in within if chunk.tool_result] == [
        ToolResult(model.requests[2].messages[-1]["tool_call_id"], "read", "text of b")
    ]
    outside = [chunk for chunk in chunks if chunk.branch is None]
    assert [chunk.done for chunk in outside].count(True) == 2
    results = [chunk.tool_result for chunk in outside if chunk.tool_result]
    assert results == [ToolResult("a", "check", Answer(answer="checked", confidence=1))]


@pytest.mark.every_way
@kinds
def test_branch_on_stream_receives_chunks_with_branch_path(call: Call, watched: Watch, kind: str) -> None:
    heard: list[Chunk] = []
    inner = finish(answer="checked", confidence=1)

    class Listened(Researcher):
        """Answer the question."""

        branches = {"check": listening(Check, keeping(heard), kind)}

    model = ScriptedModel([calls("check"), inner, DONE])
    assert call(Listened(model=model), question="?") == RIGHT
    assert {chunk.branch for chunk in heard} == {"check"}
    assert partials(heard)[-1].answer == "checked"


@pytest.mark.every_way
def test_leaving_stream_inside_branch_cancels_branch_and_parent(stream: Stream, watched: Watch) -> None:
    model = watched(calls("check"), "Inner." * 10)
    with capture() as runs:
        stream.until(lambda chunk: chunk.branch, Parent(model=model), question="?")
    assert [run.stop_reason for run in runs] == ["cancelled", "cancelled"]
    assert model.ends == ["read", "left"]


# The seeds


def snippet(source: str, **names: Any) -> Any:
    """Execute a snippet as a file."""
    space = ModuleType("snippet")
    vars(space).update(names)
    exec(textwrap.dedent(source), vars(space))
    return space


COMPLETE_MODULE = '''
from acorn import module, tool
from pydantic import BaseModel, Field

@tool
def search(query: str) -> list[str]:
    """Search for information."""
    return ["result 1", "result 2"]

@tool
def calculate(expression: str) -> float:
    """Evaluate a math expression."""
    return sum(map(float, expression.split("+")))

class QuestionInput(BaseModel):
    question: str

class AnswerOutput(BaseModel):
    answer: str
    confidence: float

class ResearchAgent(module):
    model = the_model
    temperature = 0.7
    max_tokens = 4096
    max_steps = 15  # Enable agentic loop (default None = single turn)
    parse_retries = 2

    system_prompt = """
    You are a research assistant. Use tools to find information,
    then call __finish__ with your answer.
    """

    initial_input = QuestionInput
    final_output = AnswerOutput
    tools = [search, calculate]

    def on_step(self, step):
        print(f"Step {step.counter}: {len(step.tool_calls)} tool calls")
        return step

    def on_stream(self, chunk):
        # Stream text content (chain-of-thought)
        if chunk.content:
            print(chunk.content, end="")

        # Stream partial structured output as __finish__ arguments arrive
        if chunk.partial and chunk.partial.answer:
            print(f"\\n[Partial answer: {chunk.partial.answer[:50]}...]")

# Usage
agent = ResearchAgent()
result = agent(question="What is 2+2 and what year was Python created?")
print(result.answer)       # "4, and Python was created in 1991"
print(result.confidence)   # 0.95
'''


def test_specification_example_of_streaming_module_prints_documented_output(
    call: Call, watched: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = [
        Reply("Let me see. ") & calls("search", query="python creation") & calls("calculate", expression="2+2"),
        finish(answer="4, and Python was created in 1991", confidence=0.95),
    ]
    model = watched(*script, *script, chunk_size=16)
    space = snippet(COMPLETE_MODULE, the_model=model)
    printed = capsys.readouterr().out
    assert printed == (
        "Let me see. Step 1: 2 tool calls\n"
        "\n[Partial answer: 4, an...]\n"
        "\n[Partial answer: 4, and Python was cre...]\n"
        "\n[Partial answer: 4, and Python was created in 1991...]\n"
        "\n[Partial answer: 4, and Python was created in 1991...]\n"
        "\n[Partial answer: 4, and Python was created in 1991...]\n"
        "4, and Python was created in 1991\n0.95\n"
    )
    result = call(space.agent, question="What is 2+2 and what year was Python created?")
    assert result == space.result == space.AnswerOutput(answer="4, and Python was created in 1991", confidence=0.95)
    assert capsys.readouterr().out == printed.removesuffix(f"{result.answer}\n{result.confidence}\n")
    assert model.requests[0].messages[0]["content"] == (
        "You are a research assistant. Use tools to find information,\nthen call __finish__ with your answer."
    )
    assert [message["content"] for message in model.requests[1].messages[-2:]] == ['["result 1","result 2"]', "4.0"]


CITY_INFO = """
from acorn import module, Partial
from pydantic import BaseModel

class CityInfo(BaseModel):
    city_name: str
    population: int
    explanation: str

class MyAgent(module):
    final_output = CityInfo

    def on_stream(self, chunk):
        # chunk.partial is Partial[CityInfo] - all fields are Optional
        if chunk.partial:
            if chunk.partial.city_name:
                print(f"City: {chunk.partial.city_name}")
            if chunk.partial.population:
                print(f"Pop: {chunk.partial.population}")

        # Also still have text content (chain-of-thought)
        if chunk.content:
            print(chunk.content, end="")
"""


def test_specification_example_of_streaming_city_prints_growing_fields(
    call: Call, watched: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = Reply("A city.\n") & finish(city_name="Paris", population=2102650, explanation="It is large.")
    space = snippet(CITY_INFO)
    result = call(space.MyAgent(model=watched(reply, chunk_size=18)))
    assert result == space.CityInfo(city_name="Paris", population=2102650, explanation="It is large.")
    assert capsys.readouterr().out == ("A city.\nCity: Pari\nCity: Paris\n" + "City: Paris\nPop: 2102650\n" * 3)


ANSWER_SO_FAR = """
class MyAgent(module):
    final_output = MyOutput

    def on_stream(self, chunk):
        # Handle text content (chain-of-thought)
        if chunk.content:
            print(chunk.content, end="")

        # Handle partial structured output (as __finish__ streams)
        if chunk.partial:
            # Fields appear as they're generated
            if chunk.partial.name:
                print(f"Name: {chunk.partial.name}")
            if chunk.partial.summary:
                print(f"Summary: {chunk.partial.summary}")
"""


def test_specification_example_of_streaming_prints_fields_as_generated(
    call: Call, watched: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    class MyOutput(BaseModel):
        name: str
        count: int
        summary: str

    reply = finish(name="oak", count=3, summary="A tree.")
    agent = snippet(ANSWER_SO_FAR, module=module, MyOutput=MyOutput).MyAgent(model=watched(reply, chunk_size=12))
    assert call(agent) == MyOutput(name="oak", count=3, summary="A tree.")
    lines = capsys.readouterr().out.splitlines()
    assert list(dict.fromkeys(lines)) == ["Name: oak", "Summary: A", "Summary: A tree."]
    fields = Partial[MyOutput].model_fields
    assert {name: field.default for name, field in fields.items()} == dict.fromkeys(("name", "count", "summary"))


@each_case("way", ["sync", "async"])
def test_result_chunk_is_yielded_when_tool_returns(way: str) -> None:
    release = threading.Event()

    def slow() -> str:
        """Slow."""
        assert release.wait(PATIENCE), "the quick one was not seen"
        return "slow"

    def quick() -> str:
        """Quick."""
        return "quick"

    class Two(module[Any, str]):
        final_output = str
        tools = [slow, quick]
        max_steps = 3

    agent = Two(model=ScriptedModel([calls("slow") & calls("quick"), finish(result="done")]))
    seen: list[str] = []
    runs: list[Run[str]] = []

    def look(chunk: StreamChunk[str]) -> None:
        if chunk.tool_result is not None:
            seen.append(chunk.tool_result.name)
            release.set()
        if chunk.run is not None:
            runs.append(chunk.run)

    async def walk() -> None:
        async for chunk in agent.astream():
            look(chunk)

    if way == "sync":
        for chunk in agent.stream():
            look(chunk)
    else:
        asyncio.run(walk())
    assert seen == ["quick", "slow"]
    assert [message["content"] for message in runs[0].history if message["role"] == "tool"][:2] == ["slow", "quick"]


@each_case("way", ["sync", "async"])
def test_leaving_stream_at_first_result_stores_that_result_and_stops_other_tools(way: str) -> None:
    never = threading.Event()

    def slow() -> str:
        """Slow."""
        never.wait(AGES)
        return "slow"

    def quick() -> str:
        """Quick."""
        return "quick"

    class Two(module[Any, str]):
        final_output = str
        tools = [slow, quick]
        max_steps = 3

    agent = Two(model=ScriptedModel([calls("slow") & calls("quick"), finish(result="done")]))

    async def walk() -> None:
        async with aclosing(agent.astream()) as chunks:
            async for chunk in chunks:
                if chunk.tool_result is not None:
                    break
        check()

    def check() -> None:
        assert agent.last is not None
        told = [message["content"] for message in agent.last.history[-2:]]
        assert told == ["quick", "This call was not completed: the run was stopped."]
        assert [event.type for event in agent.thread[-3:]] == ["tool_result", "error", "error"]

    if way == "sync":
        with closing(agent.stream()) as chunks:
            next(chunk for chunk in chunks if chunk.tool_result is not None)
        check()
    else:
        asyncio.run(walk())
    never.set()


@each_case("way", ["sync", "async"])
def test_chunks_of_two_runs_of_one_branch_have_different_run_ids(way: str) -> None:
    class Check(module[None, bool]):
        """Check."""

    class Main(module[Any, str]):
        final_output = str
        branches = {"check": Check}
        max_steps = 3

    replies = [calls("check") & calls("check"), finish(result=True), finish(result=True), finish(result="done")]
    agent = Main(model=ScriptedModel(replies, chunk_size=3))

    async def walk() -> list[StreamChunk[str]]:
        return [chunk async for chunk in agent.astream()]

    chunks = list(agent.stream()) if way == "sync" else asyncio.run(walk())
    run = chunks[-1].run
    assert run is not None
    of_branches = {(chunk.branch, chunk.run_id) for chunk in chunks if chunk.branch}
    assert of_branches == {("check", branch.id) for branch in run.branches}
    assert len(of_branches) == 2
    assert {chunk.run_id for chunk in chunks if not chunk.branch} == {None}


# Sync streams of stored runs, and streams that begin in an event loop


@pytest.mark.parametrize("store", [None, "memory"])
def test_on_stream_is_called_before_caller_receives_each_chunk(store: str | None) -> None:
    order: list[str] = []
    threads: set[int] = set()

    class Letters(module):
        """Answer."""

        final_output = [("text", str)]

        def on_stream(self, chunk: StreamChunk) -> None:
            order.append("hook")
            threads.add(threading.get_ident())

    model = ScriptedModel(finish(text="abcdefgh" * 5), chunk_size=4)
    order.extend("caller" for _ in Letters(model=model, store=store).stream())
    assert len(order) > 20
    assert order == ["hook", "caller"] * (len(order) // 2) + ["caller"]
    assert threads == {threading.get_ident()}


def test_stored_sync_stream_closed_early_stops_reading_model() -> None:
    read: list[int] = []
    is_closed: list[bool] = []

    class Endless(RawModel):
        def stream(self, request: ModelRequest) -> Iterator[Delta]:
            try:
                for number in range(10**9):
                    read.append(number)
                    yield Delta(content="word ")
            finally:
                is_closed.append(True)

        def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
            raise AssertionError("This test is synchronous.")

    class Talker(module):
        """Answer."""

        model = Endless([])
        store = "memory"
        final_output = str

    agent = Talker()
    chunks = agent.stream()
    next(chunks)
    next(chunks)
    assert len(read) <= 3
    chunks.close()
    assert is_closed == [True]
    assert agent.last is not None
    assert agent.last.stop_reason == "cancelled"


def test_sync_stream_begun_in_event_loop_continues_after_loop() -> None:
    class Letters(module):
        """Answer."""

        model = ScriptedModel(finish(text="abcdefgh" * 5), chunk_size=4)
        final_output = [("text", str)]

    async def begin() -> Iterator[StreamChunk]:
        chunks = Letters().stream()
        next(chunks)
        return chunks

    last = list(asyncio.run(begin()))[-1]
    assert last.run is not None
    assert last.result is not None
    assert (last.run.stop_reason, last.result.text) == ("finish", "abcdefgh" * 5)
