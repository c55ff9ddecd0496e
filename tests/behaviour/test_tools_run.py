"""Tests of tool execution: arguments, results, timeouts, concurrency and tool sources."""

import asyncio
import concurrent.futures
import contextvars
import dataclasses
import datetime
import decimal
import enum
import functools
import itertools
import json
import math
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from tests.behaviour.conftest import Call, Script
from tests.cases import each_case
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE

from acorn import (
    AcornError,
    DeclarationError,
    ModelError,
    Run,
    Step,
    ToolCall,
    ToolConflictError,
    ToolResult,
    capture,
    current_run,
    listen,
    module,
    tool,
)
from acorn.journal import Entry, ToolFinished
from acorn.models import RawCall
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calling


class Worker(module[Any, str]):
    """Use the tools."""

    final_output = str
    max_steps = 5


class Watched(Worker):
    """Record what `on_step` saw."""

    def __init__(self, **settings: Any) -> None:
        self.calls: list[ToolCall] = []
        self.results: list[ToolResult] = []
        super().__init__(**settings)

    def on_step(self, step: Step) -> None:
        self.calls += step.tool_calls
        self.results += step.tool_results


def together(*replies: Reply) -> Reply:
    """Return one response with all calls."""
    return functools.reduce(lambda one, other: one & other, replies)


def raw(name: str, arguments: str) -> Reply:
    """Return a call whose arguments are sent unchanged."""
    return Reply(calls=[RawCall(None, name, arguments)])


def read(run: Run[Any]) -> list[str]:
    """Return what the model read of its tools, without the answer to `__finish__`."""
    return [message["content"] for message in run.history if message["role"] == "tool"][:-1]


def use(call: Call, script: Script, tools: list[Any], reply: Reply, **settings: Any) -> list[str]:
    """Let the model call some tools once, and return what it reads."""
    run = call.run(Worker(model=script(reply, finish(result="done")), tools=tools, **settings))
    assert run.output == "done"
    return read(run)


def in_time(function: Callable[[], Any]) -> Any:
    """Call a function that must not hang."""
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def work() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return outcome.result(PATIENCE)


# Arguments


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    city: str
    zip_code: int = 0


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


def test_run_argument_passed_by_model_to_tool_with_kwargs_returns_tool_error(call: Call, script: Script) -> None:
    seen: list[Any] = []

    def note(run: Run[str], **words: str) -> str:
        seen.append((type(run), words))
        return "noted"

    assert use(call, script, [note], calling("note", run="mine", a="b")) == [
        "Tool error: argument `run` is set by the program. Leave it out."
    ]
    assert seen == []
    assert use(call, script, [note], calling("note", a="b")) == ["noted"]
    assert seen == [(Run, {"a": "b"})]


def taking(hint: Any, got: list[Any]) -> Callable[..., None]:
    """Return a tool with one argument `value` of some type, which it records."""

    def take(value: Any) -> None:
        got.append(value)

    take.__annotations__ = {"value": hint}
    return take


@each_case(
    ("hint", "given", "expected"),
    [
        (int, '"5"', 5),
        (int, "5.0", 5),
        (float, "5", 5.0),
        (float, '"1e3"', 1000.0),
        (str, '"5"', "5"),
        (bool, '"true"', True),
        (bool, "0", False),
        (int | None, "null", None),
        (int | None, '"7"', 7),
        (int | str, '"7"', "7"),
        (list[int], '["1", 2]', [1, 2]),
        (set[int], "[1, 1, 2]", {1, 2}),
        (tuple[int, str], '["1", "a"]', (1, "a")),
        (dict[str, list[float]], '{"a": ["1.5"]}', {"a": [1.5]}),
        (Color, '"red"', Color.RED),
        (Literal["a", "b"], '"b"', "b"),
        (datetime.date, '"2026-01-02"', datetime.date(2026, 1, 2)),
        (datetime.datetime, '"2026-01-02T03:04:05Z"', datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
        (datetime.timedelta, '"PT90S"', datetime.timedelta(seconds=90)),
        (decimal.Decimal, '"1.50"', decimal.Decimal("1.50")),
        (uuid.UUID, '"12345678123456781234567812345678"', uuid.UUID("12345678-1234-5678-1234-567812345678")),
        (Path, '"a/b"', Path("a/b")),
        (bytes, '"abc"', b"abc"),
        (Place, '{"city": "Rome", "zip_code": "100"}', Place(city="Rome", zip_code=100)),
        (list[Place], '[{"city": "Rome"}]', [Place(city="Rome")]),
        (Point, '{"x": "3"}', Point(3)),
        (Annotated[int, Field(ge=1)], '"3"', 3),
        (dict[str, Point | None], '{"a": {"x": 1}, "b": null}', {"a": Point(1), "b": None}),
        (Any, '{"a": [1, null]}', {"a": [1, None]}),
    ],
)
def test_arguments_are_converted_by_type_hints(script: Script, hint: Any, given: str, expected: Any) -> None:
    got: list[Any] = []
    model = script(raw("take", f'{{"value": {given}}}'), finish(result="done"))
    assert read(Worker(model=model, tools=[taking(hint, got)]).run()) == ["null"]
    assert got == [expected]
    assert type(got[0]) is type(expected)


@each_case(
    ("hint", "given", "words"),
    [
        (int, '"five"', ["`value`", "int", "five"]),
        (int, "5.5", ["`value`", "int", "5.5"]),
        (int, "null", ["`value`", "int"]),
        (bool, '"maybe"', ["`value`", "maybe"]),
        (list[int], '[1, "two"]', ["`value.1`", "int", "two"]),
        (Color, '"green"', ["`value`", "red", "blue", "green"]),
        (Literal["a", "b"], '"c"', ["`value`", "a", "b", "c"]),
        (Place, '{"zip_code": 1}', ["`value.city`", "missing"]),
        (Place, '"Rome"', ["`value`", "Rome"]),
        (Annotated[int, Field(ge=1, le=9)], "10", ["`value`", "9", "10"]),
        (datetime.date, '"soon"', ["`value`", "soon"]),
    ],
)
def test_invalid_argument_returns_tool_error_and_tool_is_not_called(
    call: Call, script: Script, hint: Any, given: str, words: list[str]
) -> None:
    got: list[Any] = []
    (text,) = use(call, script, [taking(hint, got)], raw("take", f'{{"value": {given}}}'))
    assert text.startswith("Tool error: ")
    assert [word for word in words if word not in text] == []
    assert got == []


def test_wrong_arguments_are_all_listed_in_tool_error(call: Call, script: Script) -> None:
    def book(city: str, nights: int, rooms: int = 1) -> str:
        raise AssertionError("not called")

    agent = Watched(model=script(calling("book", nights="two", rooms="many"), finish(result="done")), tools=[book])
    call(agent)
    (result,) = agent.results
    assert result.output is None
    assert result.error is not None
    assert all(f"`{name}`" in result.error for name in ("city", "nights", "rooms"))


def test_unknown_argument_is_listed_in_tool_error(call: Call, script: Script) -> None:
    def book(city: str) -> str:
        raise AssertionError("not called")

    (text,) = use(call, script, [book], calling("book", city="Rome", country="Italy"))
    assert text.startswith("Tool error: ")
    assert "`country`" in text


@each_case(
    ("arguments", "words"),
    [
        ('{"city": "Rome"', "not valid JSON"),
        ("Rome", "not valid JSON"),
        ("{'city': 'Rome'}", "not valid JSON"),
        ('{"city": "\ud800"}', ""),
        ('["Rome"]', "must be a JSON object"),
        ('"Rome"', "must be a JSON object"),
        ("null", "must be a JSON object"),
    ],
)
def test_arguments_that_are_not_json_object_return_tool_error(
    call: Call, script: Script, arguments: str, words: str
) -> None:
    def book(city: str) -> str:
        raise AssertionError("not called")

    agent = Watched(model=script(raw("book", arguments), finish(result="done")), tools=[book])
    (text,) = read(call.run(agent))
    assert text.startswith("Tool error: ")
    assert words in text
    assert agent.calls[0].arguments == {}
    assert agent.calls[0].raw_arguments == arguments


def test_empty_arguments_text_calls_tool_without_arguments(call: Call, script: Script) -> None:
    def ping() -> str:
        return "pong"

    assert use(call, script, [ping], raw("ping", "")) == ["pong"]


@pytest.mark.every_way
def test_call_with_invalid_arguments_does_not_affect_other_calls(call: Call, script: Script) -> None:
    def double(number: int) -> int:
        return 2 * number

    reply = together(calling("double", number=1), calling("double", number="x"), calling("double", number="3"))
    first, second, third = use(call, script, [double], reply)
    assert (first, third) == ("2", "6")
    assert second.startswith("Tool error: ")
    assert "`number`" in second


def test_positional_only_keyword_only_and_extra_keyword_parameters_of_tool_receive_arguments(
    call: Call, script: Script
) -> None:
    got: list[Any] = []

    def odd(first: int, /, second: int, *, third: int = 3, **rest: int) -> None:
        got.append((first, second, third, rest))

    reply = together(calling("odd", first="1", second=2), calling("odd", first=1, second=2, third=4, more="5"))
    use(call, script, [tool(parallel=False)(odd)], reply)
    assert got == [(1, 2, 3, {}), (1, 2, 4, {"more": 5})]


@pytest.mark.every_way
def test_tool_parameters_named_like_acorn_internals_receive_arguments(call: Call, script: Script) -> None:
    got: list[Any] = []

    def plot(function: str, invocation: int, call: int, args: int, kwargs: int, self_: int, limit: int) -> None:
        got.append((function, invocation, call, args, kwargs, self_, limit))

    async def aplot(function: str, awaitable: int) -> None:
        got.append((function, awaitable))

    values: dict[str, Any] = {"function": "f", "invocation": 1, "call": 2, "args": 3, "kwargs": 4, "self_": 5}
    assert use(call, script, [plot, aplot], calling("plot", **values, limit=6)) == ["null"]
    reply = together(calling("plot", **values, limit=6), calling("aplot", function="g", awaitable=1))
    assert use(call, script, [plot, aplot], reply) == ["null", "null"]
    assert sorted(got, key=len) == [("g", 1), ("f", 1, 2, 3, 4, 5, 6), ("f", 1, 2, 3, 4, 5, 6)]


# Results


class Money(BaseModel):
    amount: decimal.Decimal
    currency: str = Field("EUR", alias="cur")


class Nameless:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Plain:
    def __repr__(self) -> str:
        return "<plain>"


class Answers:
    """An object with every attribute, like a remote object or a mock."""

    def __getattr__(self, name: str) -> "Answers":
        return self

    def __repr__(self) -> str:
        return "<answers>"


def a_circle() -> list[Any]:
    circle: list[Any] = [1]
    circle.append(circle)
    return circle


def a_tower() -> list[Any]:
    tower: list[Any] = []
    for _ in range(2000):
        tower = [tower]
    return tower


RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "text": (lambda: "as it is", "as it is"),
    "text with odd characters": (lambda: ' <b>&amp;"é\n\t漢 ', ' <b>&amp;"é\n\t漢 '),
    "empty text": (lambda: "", ""),
    "text that looks like JSON": (lambda: '{"a":1}', '{"a":1}'),
    "None": (lambda: None, "null"),
    "True": (lambda: True, "true"),
    "a number": (lambda: 1.5, "1.5"),
    "NaN": (lambda: math.nan, "null"),
    "infinity in a list": (lambda: [math.inf, -math.inf, 1], "[null,null,1]"),
    "a dict": (lambda: {"a": [1, None], "é": "漢"}, '{"a":[1,null],"é":"漢"}'),
    "keys that are no text": (lambda: {1: "a", None: "b", Color.RED: "c"}, '{"1":"a","None":"b","red":"c"}'),
    "a tuple": (lambda: (1, "a"), '[1,"a"]'),
    "a set": (lambda: {7}, "[7]"),
    "a frozenset": (lambda: frozenset([7]), "[7]"),
    "a model": (lambda: Place(city="Rome"), '{"city":"Rome","zip_code":0}'),
    "a list of models": (lambda: [Place(city="Rome")], '[{"city":"Rome","zip_code":0}]'),
    "a model with an alias": (
        lambda: Money(amount=decimal.Decimal("1.50"), cur="CHF"),
        '{"amount":"1.50","currency":"CHF"}',
    ),
    "a dataclass": (lambda: Point(1), '{"x":1,"y":0}'),
    "a datetime": (lambda: datetime.datetime(2026, 1, 2, 3, 4, 5), '"2026-01-02T03:04:05"'),
    "a date": (lambda: {"on": datetime.date(2026, 1, 2)}, '{"on":"2026-01-02"}'),
    "a duration": (lambda: datetime.timedelta(seconds=90), '"PT1M30S"'),
    "an enum": (lambda: Color.RED, '"red"'),
    "a UUID": (lambda: uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    "a path": (lambda: Path("a/b"), '"a/b"'),
    "bytes of text": (lambda: "café".encode(), '"café"'),
    "other bytes": (lambda: b"\xff\x00", '"/wA="'),
    "other bytes among others": (lambda: {"a": b"\xff", "b": b"b"}, '{"a":"/w==","b":"b"}'),
    "a part that cannot be written": (lambda: {"a": Plain(), "b": 1}, '{"a":"<plain>","b":1}'),
    "an object": (lambda: Plain(), '"<plain>"'),
    "an object that has everything": (lambda: Answers(), '"<answers>"'),
    "a type": (lambda: [int], """["<class 'int'>"]"""),
    "a range": (lambda: {"r": range(2)}, '{"r":[0,1]}'),
    "half a surrogate pair": (lambda: ["\ud800"], '["\ufffd"]'),
    "a model inside plain things": (
        lambda: {"p": [(Place(city="a"), Point(1))]},
        '{"p":[[{"city":"a","zip_code":0},{"x":1,"y":0}]]}',
    ),
    "a generator": (lambda: (n * n for n in range(3)), "[0,1,4]"),
    "an exception": (lambda: ValueError("x"), """"ValueError('x')\""""),
}


@each_case("kind", RESULTS)
def test_tool_result_of_each_type_is_sent_as_text_or_json(call: Call, script: Script, kind: str) -> None:
    make, expected = RESULTS[kind]

    def produce() -> Any:
        return make()

    assert use(call, script, [produce], calling("produce")) == [expected]


@each_case("make", [a_circle, a_tower, Nameless, lambda: {"a": Nameless()}])
def test_tool_result_that_cannot_be_serialized_is_sent_as_valid_json_replacement(
    call: Call, script: Script, make: Callable[[], Any]
) -> None:
    def produce() -> Any:
        return make()

    (text,) = use(call, script, [produce], calling("produce"))
    json.loads(text)


LARGE = 3_000_000 if IS_LONG else 1_000_000


def test_large_tool_result_is_sent_without_truncation(call: Call, script: Script) -> None:
    def text() -> str:
        return "x" * LARGE

    def numbers() -> list[int]:
        return list(range(LARGE // 15))

    one, other = use(call, script, [text, numbers], together(calling("text"), calling("numbers")))
    assert one == "x" * LARGE
    assert json.loads(other) == list(range(LARGE // 15))


@pytest.mark.every_way
def test_on_step_tool_result_is_returned_object(call: Call, script: Script) -> None:
    made = Place(city="Rome")

    def produce() -> Place:
        return made

    agent = Watched(model=script(calling("produce"), finish(result="done")), tools=[produce])
    call(agent)
    assert agent.results[0].output is made
    assert agent.results[0].error is None


@pytest.mark.every_way
def test_generator_tool_returns_list(call: Call, script: Script) -> None:
    where: list[int] = []

    def pages(count: int) -> Iterator[str]:
        where.append(threading.get_ident())
        yield from (f"page {n}" for n in range(count))

    async def apages(count: int) -> AsyncIterator[str]:
        for n in range(count):
            await asyncio.sleep(0)
            yield f"page {n}"

    expected = '["page 0","page 1"]'
    assert use(call, script, [pages], calling("pages", count=2)) == [expected]
    assert use(call, script, [apages], calling("apages", count=2)) == [expected]
    reply = together(calling("pages", count=2), calling("apages", count=2))
    agent = Watched(model=script(reply, finish(result="done")), tools=[pages, apages])
    assert read(call.run(agent)) == [expected, expected]
    assert [result.output for result in agent.results] == [["page 0", "page 1"]] * 2


@pytest.mark.every_way
def test_failing_generator_tool_returns_tool_error(call: Call, script: Script) -> None:
    def pages() -> Iterator[str]:
        yield "page 0"
        raise ValueError("no more paper")

    assert use(call, script, [pages], calling("pages")) == ["Tool error: ValueError: no more paper"]


# Tools that raise


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I have no words")


class LateError(Exception):
    pass


def failing(error: BaseException, kind: str) -> Callable[..., Any]:
    """Return a tool `fail` that raises: sync, async, or sync with an awaitable."""

    def fail() -> str:
        raise error

    async def afail() -> str:
        await asyncio.sleep(0)
        raise error

    def later() -> Awaitable[str]:
        return afail()

    return tool(name="fail")({"sync": fail, "async": afail, "awaitable": later}[kind])


KINDS = ["sync", "async", "awaitable"]


@pytest.mark.every_way
@each_case("kind", KINDS)
@each_case(
    ("error", "words"),
    [
        (ValueError("x must be positive"), "ValueError: x must be positive"),
        (ValueError(), "ValueError"),
        (ValueError("two\nlines"), "ValueError: two\nlines"),
        (KeyError("k"), "KeyError: 'k'"),
        (LateError("too late"), "LateError: too late"),
        (MuteError(), "MuteError"),
        (StopIteration(), "StopIteration"),
        (StopIteration("x"), "StopIteration: x"),
        (StopAsyncIteration("x"), "StopAsyncIteration: x"),
        (TimeoutError("the database"), "TimeoutError: the database"),
        (TimeoutError(), "TimeoutError"),
        (concurrent.futures.CancelledError("x"), "CancelledError: x"),
        (ExceptionGroup("several", [ValueError("x")]), "ExceptionGroup: several (1 sub-exception)"),
        (RecursionError("deep"), "RecursionError: deep"),
        (ModelError("not ours"), "ModelError: not ours"),
    ],
)
def test_tool_exception_returns_tool_error_and_run_continues(
    call: Call, script: Script, error: Exception, words: str, kind: str
) -> None:
    def well() -> str:
        return "well"

    for reply in (calling("fail"), together(calling("fail"), calling("well"))):
        agent = Watched(model=script(reply, finish(result="done")), tools=[failing(error, kind), well])
        run = in_time(lambda agent=agent: call.run(agent))  # type: ignore[misc]
        assert run.output == "done"
        assert read(run) == [f"Tool error: {words}", "well"][: len(reply.calls)]
        assert agent.results[0].error == words
        assert agent.results[0].output is None


ESCAPES = [KeyboardInterrupt, SystemExit, asyncio.CancelledError]


@pytest.mark.every_way
@each_case("kind", KINDS)
@each_case("error", ESCAPES)
def test_keyboard_interrupt_system_exit_and_cancellation_in_tool_end_run(
    call: Call, script: Script, error: type[BaseException], kind: str
) -> None:
    raised = error("enough")
    agent = Worker(model=script(calling("fail")), tools=[failing(raised, kind)])
    with capture() as runs, pytest.raises(error) as caught:
        call(agent)
    assert caught.value is raised
    assert runs[0].error is raised
    assert runs[0].stop_reason == "cancelled"
    assert [message["role"] for message in runs[0].history] == ["system", "user", "assistant", "tool"]


@pytest.mark.every_way
@each_case("kind", KINDS)
@each_case("error", ESCAPES)
def test_keyboard_interrupt_in_tool_does_not_wait_for_other_tools(
    call: Call, script: Script, error: type[BaseException], kind: str
) -> None:
    release, cancelled, begun = threading.Event(), threading.Event(), threading.Barrier(3, timeout=PATIENCE)

    def hang() -> None:
        begun.wait()
        release.wait(PATIENCE)

    async def ahang() -> None:
        try:
            await asyncio.to_thread(begun.wait)
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def begin() -> None:
        begun.wait()

    inner = failing(error("enough"), kind)

    async def afail() -> Any:
        await asyncio.to_thread(begin)
        return await inner()

    def fail() -> Any:
        begin()
        return inner()

    last = tool(name="last")(afail if kind == "async" else fail)
    model = script(together(calling("hang"), calling("ahang"), calling("last")))
    began = time.monotonic()
    with capture() as runs, pytest.raises(error):
        call(Worker(model=model, tools=[hang, ahang, last]))
    assert time.monotonic() - began < PATIENCE / 2
    assert cancelled.wait(PATIENCE)
    release.set()
    assert [message["role"] for message in runs[0].history] == ["system", "user", "assistant", "tool", "tool", "tool"]


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_run_and_cancels_async_tools() -> None:
    program = """
        import asyncio, os, signal, threading
        from acorn import capture, module, tool
        from acorn.testing import ScriptedModel, call

        @tool
        async def hang() -> None:
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.set()
                raise

        @tool
        async def rest() -> None:
            await asyncio.sleep(60)

        class Worker(module):
            final_output = str
            max_steps = 3
            tools = [hang, rest]

        for way in (lambda agent: agent(), lambda agent: asyncio.run(agent.acall())):
            for reply in (call("hang"), call("rest") & call("hang")):
                ended = threading.Event()
                with capture() as runs:
                    try:
                        way(Worker(model=ScriptedModel([reply])))
                    except KeyboardInterrupt:
                        print(ended.wait(20), runs[0].stop_reason, runs[0].history[-1]["role"])
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "True cancelled tool\n" * 4), ended.stderr


# Concurrency


@pytest.mark.every_way
def test_sync_and_async_tools_run_concurrently(call: Call, script: Script) -> None:
    barrier = threading.Barrier(4, timeout=PATIENCE)

    def meet(name: str) -> str:
        barrier.wait()
        return name

    async def ameet(name: str) -> str:
        await asyncio.to_thread(barrier.wait)
        return name

    def later(name: str) -> Awaitable[str]:
        return ameet(name)

    reply = together(
        calling("meet", name="a"), calling("ameet", name="b"), calling("later", name="c"), calling("meet", name="d")
    )
    assert use(call, script, [meet, ameet, later], reply) == ["a", "b", "c", "d"]


@pytest.mark.every_way
def test_forty_tools_run_concurrently(call: Call, script: Script) -> None:
    barrier = threading.Barrier(40, timeout=PATIENCE)

    def meet(number: int) -> int:
        barrier.wait()
        return number

    reply = together(*(calling("meet", number=number) for number in range(40)))
    assert use(call, script, [meet], reply) == [str(number) for number in range(40)]


@pytest.mark.every_way
def test_results_are_in_order_of_calls(call: Call, script: Script) -> None:
    ended = [threading.Event() for _ in range(6)]
    order: list[int] = []

    def sync(number: int) -> int:
        assert number == 5 or ended[number + 1].wait(PATIENCE)
        order.append(number)
        ended[number].set()
        return number

    async def other(number: int) -> int:
        return await asyncio.to_thread(sync, number)

    reply = together(*(calling(("sync", "other")[number % 2], number=number) for number in range(6)))
    assert use(call, script, [sync, other], reply) == ["0", "1", "2", "3", "4", "5"]
    assert order == [5, 4, 3, 2, 1, 0]


@pytest.mark.every_way
def test_single_sync_call_in_sync_run_uses_os_thread_of_caller(call: Call, script: Script) -> None:
    def where() -> int:
        return threading.get_ident()

    (ident,) = use(call, script, [where], calling("where"))
    # In an async run it must not block the event loop, which runs in this thread.
    assert (int(ident) == threading.get_ident()) is (call.way != "async")


@pytest.mark.every_way
def test_async_tool_in_async_run_uses_event_loop_of_run(call: Call, script: Script) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def where() -> int:
        loops.append(asyncio.get_running_loop())
        return threading.get_ident()

    (ident,) = use(call, script, [where], calling("where"))
    assert (int(ident) == threading.get_ident()) is (call.way == "async")


def test_async_tools_of_sync_runs_share_one_event_loop(script: Script) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def where() -> None:
        loops.append(asyncio.get_running_loop())

    for reply in (calling("where"), together(calling("where"), calling("where"))):
        Worker(model=script(reply, finish(result="done")), tools=[where])()
    other = threading.Thread(
        target=Worker(model=script(calling("where"), finish(result="done")), tools=[where]), daemon=True
    )
    other.start()
    other.join(PATIENCE)
    assert len(loops) == 4
    assert len(set(loops)) == 1
    assert loops[0].is_running()


tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@pytest.mark.every_way
def test_tools_have_context_variables_of_caller(call: Call, script: Script) -> None:
    def sync() -> str:
        return tenant.get()

    async def other() -> str:
        await asyncio.sleep(0)
        return tenant.get()

    def later() -> Awaitable[str]:
        return other()

    tools = [sync, other, later]
    token = tenant.set("me")
    try:
        for function in tools:
            assert use(call, script, tools, calling(function.__name__)) == ["me"]
        reply = together(*(calling(function.__name__) for function in tools))
        assert use(call, script, tools, reply) == ["me", "me", "me"]
    finally:
        tenant.reset(token)


@pytest.mark.every_way
def test_non_parallel_tool_does_not_overlap_with_other_tools(call: Call, script: Script) -> None:
    lock = threading.Lock()
    busy: list[str] = []
    seen: dict[str, list[str]] = {}
    barrier = threading.Barrier(2, timeout=PATIENCE)

    def work(name: str, meets: bool) -> str:
        with lock:
            busy.append(name)
        if meets:
            barrier.wait()
        time.sleep(0.01)
        with lock:
            seen[name] = list(busy)
            busy.remove(name)
        return name

    @tool
    def shared(name: str) -> str:
        return work(name, True)

    @tool(parallel=False)
    def alone(name: str) -> str:
        return work(name, False)

    @tool(parallel=False)
    async def aalone(name: str) -> str:
        return await asyncio.to_thread(work, name, False)

    reply = together(
        calling("alone", name="a"),
        calling("shared", name="b"),
        calling("shared", name="c"),
        calling("aalone", name="d"),
        calling("alone", name="e"),
        calling("shared", name="f"),
        calling("shared", name="g"),
    )
    assert use(call, script, [shared, alone, aalone], reply) == list("abcdefg")
    assert [seen[name] for name in "ade"] == [["a"], ["d"], ["e"]]
    assert all("a" not in seen[name] and "d" not in seen[name] and "e" not in seen[name] for name in "bcfg")


# Timeouts


@pytest.mark.every_way
def test_slow_sync_tool_returns_timeout_tool_error(call: Call, script: Script) -> None:
    release, ended = threading.Event(), threading.Event()

    @tool(timeout=0.05)
    def hang() -> str:
        assert release.wait(PATIENCE)
        ended.set()
        return "too late"

    assert use(call, script, [hang], calling("hang")) == [
        "Tool error: TimeoutError: the tool did not return within its time limit of 0.05 s"
    ]
    assert not ended.is_set()  # The run did not wait for it.
    release.set()
    assert ended.wait(PATIENCE)


@pytest.mark.every_way
def test_slow_async_tool_is_cancelled_after_timeout(call: Call, script: Script) -> None:
    cancelled = threading.Event()

    @tool(timeout=0.05)
    async def hang() -> str:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "too late"

    assert use(call, script, [hang], calling("hang")) == [
        "Tool error: TimeoutError: the tool did not return within its time limit of 0.05 s"
    ]
    assert cancelled.wait(PATIENCE)


@pytest.mark.every_way
def test_timed_out_tool_does_not_affect_other_tools(call: Call, script: Script) -> None:
    release, ended, are_over = threading.Event(), list[Entry](), threading.Event()

    @tool(timeout=0.05)
    def hang() -> None:
        release.wait(PATIENCE)

    @tool(timeout=0.07)
    async def ahang() -> None:
        await asyncio.sleep(PATIENCE)

    @tool(timeout=PATIENCE)
    def patient() -> str:
        assert are_over.wait(PATIENCE)
        return "patient"

    def free() -> str:
        assert are_over.wait(PATIENCE)
        return "free"

    async def afree() -> str:
        await asyncio.to_thread(free)
        return "afree"

    def hear(entry: Entry) -> None:
        if isinstance(entry, ToolFinished):
            ended.append(entry)
            if len(ended) == 2:
                are_over.set()

    names = ["free", "hang", "patient", "ahang", "afree"]
    with listen(hear):
        assert use(call, script, [hang, ahang, patient, free, afree], together(*map(calling, names))) == [
            "free",
            "Tool error: TimeoutError: the tool did not return within its time limit of 0.05 s",
            "patient",
            "Tool error: TimeoutError: the tool did not return within its time limit of 0.07 s",
            "afree",
        ]
    release.set()


@pytest.mark.every_way
def test_tool_timeout_starts_when_tool_starts(call: Call, script: Script) -> None:
    ended, is_over = threading.Event(), threading.Event()

    @tool
    def slow() -> str:
        assert ended.wait(PATIENCE)
        return "slow"

    @tool(timeout=0.05)
    def slower_than_allowed() -> str:
        assert is_over.wait(PATIENCE)
        ended.set()
        return "within the time of the other, but not within its own"

    def hear(entry: Entry) -> None:
        if isinstance(entry, ToolFinished):
            is_over.set()

    reply = together(calling("slow"), calling("slower_than_allowed"))
    with listen(hear):
        first, second = use(call, script, [slow, slower_than_allowed], reply)
    assert first == "slow"
    assert second == "Tool error: TimeoutError: the tool did not return within its time limit of 0.05 s"


@pytest.mark.every_way
@each_case("kind", KINDS)
@each_case("error", [TimeoutError("the database"), TimeoutError(), concurrent.futures.TimeoutError("x")])
def test_timeout_error_raised_by_tool_itself_is_reported_with_its_message(
    call: Call, script: Script, error: Exception, kind: str
) -> None:
    limited = tool(name="fail", timeout=PATIENCE)(functools.partial(failing(error, kind)))
    words = f"TimeoutError: {error}" if str(error) else "TimeoutError"
    assert use(call, script, [limited], calling("fail")) == [f"Tool error: {words}"]
    assert use(call, script, [limited], together(calling("fail"), calling("fail"))) == [f"Tool error: {words}"] * 2


def test_hung_tool_does_not_block_process_exit() -> None:
    program = """
        import asyncio, threading
        from acorn import module, tool
        from acorn.testing import ScriptedModel, call, finish

        @tool(timeout=0.05)
        def hang() -> None:
            threading.Event().wait()

        @tool(timeout=0.05)
        async def ahang() -> None:
            await asyncio.Event().wait()

        class Worker(module):
            final_output = str
            max_steps = 3
            tools = [hang, ahang]

        replies = [call("hang") & call("ahang"), call("ahang"), finish(result="done")]
        print(asyncio.run(Worker(model=ScriptedModel(replies)).acall()))
        print(Worker(model=ScriptedModel(replies))())
    """
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\ndone\n", "")


# Kinds of callables


class Toolbox:
    """Methods of an object that is not a module."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def bound(self, text: str) -> str:
        return f"{self.prefix} {text}"

    async def abound(self, text: str) -> str:
        return f"{self.prefix} {text}"

    @staticmethod
    def static(text: str) -> str:
        return f"static {text}"

    @classmethod
    def of_class(cls, text: str) -> str:
        return f"{cls.__name__} {text}"


class Shout:
    """Say it loudly."""

    def __call__(self, text: str) -> str:
        return text.upper()


class Whisper:
    """Say it softly."""

    async def __call__(self, text: str) -> str:
        await asyncio.sleep(0)
        return text.lower()


def joined(first: str, text: str) -> str:
    return f"{first} {text}"


async def ajoined(first: str, text: str) -> str:
    return f"{first} {text}"


def awaited(text: str) -> Awaitable[str]:
    return ajoined("awaited", text)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return around


CALLABLES: dict[str, tuple[Any, str]] = {
    "bound": (Toolbox("my").bound, "my Hi"),
    "abound": (Toolbox("my").abound, "my Hi"),
    "static": (Toolbox.static, "static Hi"),
    "of_class": (Toolbox.of_class, "Toolbox Hi"),
    "shout": (Shout(), "HI"),
    "whisper": (Whisper(), "hi"),
    "joined": (functools.partial(joined, "partial"), "partial Hi"),
    "ajoined": (functools.partial(functools.partial(ajoined), "partial"), "partial Hi"),
    "awaited": (awaited, "awaited Hi"),
    "renamed": (tool(name="renamed")(decorated(functools.partial(joined, "decorated"))), "decorated Hi"),
    "arenamed": (tool(name="arenamed")(decorated(functools.partial(ajoined, "decorated"))), "decorated Hi"),
}


@each_case("name", CALLABLES)
def test_each_kind_of_callable_is_accepted_as_tool(call: Call, script: Script, name: str) -> None:
    function, expected = CALLABLES[name]
    assert use(call, script, [function], calling(name, text="Hi")) == [expected]


@pytest.mark.every_way
def test_tools_made_from_each_kind_of_callable_return_results_in_one_response(call: Call, script: Script) -> None:
    tools, expected = zip(*CALLABLES.values(), strict=True)
    reply = together(*(calling(name, text="Hi") for name in CALLABLES))
    assert use(call, script, list(tools), reply) == list(expected)


class Counter(Worker):
    """Has tools of its own."""

    def __init__(self, **settings: Any) -> None:
        self.count = 0
        super().__init__(**settings)

    @tool
    def increase(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @tool
    async def aincrease(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @tool
    @staticmethod
    def static(text: str) -> str:
        return f"static {text}"

    @tool
    @classmethod
    def of_class(cls, text: str) -> str:
        return f"{cls.__name__} {text}"


@pytest.mark.every_way
def test_method_tools_are_called_on_instance(call: Call, script: Script) -> None:
    one = Counter(
        model=script(
            calling("increase", by="2"),
            calling("aincrease"),
            together(calling("static", text="x"), calling("of_class", text="x")),
            finish(result="done"),
        )
    )
    other = Counter(model=script(calling("increase", by=40), finish(result="done")))
    assert read(call.run(one)) == ["2", "3", "static x", "Counter x"]
    assert read(call.run(other)) == ["40"]
    assert (one.count, other.count) == (3, 40)


# Modules inside modules


class Inner(module[Any, str]):
    """Ask an async tool."""

    final_output = str
    max_steps = 3

    def __init__(self, depth: int = 0) -> None:
        replies = [together(calling("dig"), calling("dig")), calling("dig"), finish(result=f"inner {depth}")]
        super().__init__(model=ScriptedModel(replies))
        self.depth = depth

    @tool
    async def dig(self) -> str:
        await asyncio.sleep(0)
        return Inner(self.depth - 1)() if self.depth else "ground"


@pytest.mark.every_way
def test_async_tool_that_calls_module_synchronously_returns_output(call: Call, script: Script) -> None:
    async def ask() -> str:
        return Inner(2)()

    for reply in (calling("ask"), together(calling("ask"), calling("ask"))):
        asked = in_time(lambda reply=reply: use(call, script, [ask], reply))  # type: ignore[misc]
        assert asked == ["inner 2"] * len(reply.calls)


@pytest.mark.every_way
def test_async_tool_that_awaits_module_returns_output(call: Call, script: Script) -> None:
    async def ask() -> str:
        return await Inner().acall()

    reply = together(calling("ask"), calling("ask"))
    assert in_time(lambda: use(call, script, [ask], reply)) == ["inner 0"] * 2


@pytest.mark.every_way
def test_agent_called_in_sync_tool_of_agent_called_in_async_tool_returns_output(call: Call, script: Script) -> None:
    def middle() -> str:
        return Inner()()

    async def outer() -> str:
        model = ScriptedModel(
            [together(calling("middle"), calling("middle")), calling("middle"), finish(result="outer")]
        )
        return Worker(model=model, tools=[middle])()

    reply = together(calling("outer"), calling("outer"), calling("middle"))
    assert in_time(lambda: use(call, script, [outer, middle], reply)) == ["outer", "outer", "inner 0"]


@pytest.mark.every_way
def test_tool_that_calls_modules_in_threads_returns_outputs(call: Call, script: Script) -> None:
    def many() -> list[str]:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda depth: Inner(depth)(), range(4)))

    async def amany() -> list[str]:
        return await asyncio.gather(*(asyncio.to_thread(Inner(depth)) for depth in range(4)))

    expected = '["inner 0","inner 1","inner 2","inner 3"]'
    reply = together(calling("many"), calling("amany"), calling("many"))
    assert in_time(lambda: use(call, script, [many, amany], reply)) == [expected] * 3


def test_async_tool_that_blocks_while_threads_call_agents_returns_outputs(script: Script) -> None:
    async def dig() -> str:
        return "ground"

    async def many() -> list[str]:
        agents = [Worker(model=ScriptedModel([calling("dig"), finish(result=name)]), tools=[dig]) for name in "ab"]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda agent: agent(), agents))

    agent = Worker(model=script(calling("many"), finish(result="done")), tools=[many])
    assert read(in_time(agent.run)) == ['["a","b"]']


class Nested(Worker):
    """An agent that calls modules in every hook."""

    def system_prompt(self) -> str:
        return f"Prompt: {Inner(1)()}"

    async def on_step(self, step: Step) -> None:  # type: ignore[override]
        step.add_to_context(f"sync {Inner(1)()}, async {await Inner(1).acall()}")

    def on_finish(self, output: str) -> str:
        return f"{output} {Inner(1)()}"


@pytest.mark.every_way
def test_hooks_and_prompts_that_call_modules_receive_outputs(call: Call, script: Script) -> None:
    async def ask() -> str:
        return Inner(1)()

    model = script(calling("ask"), finish(result="done"))
    assert in_time(lambda: call(Nested(model=model, tools=[ask]))) == "done inner 1"
    assert model.requests[0].messages[0]["content"] == "Prompt: inner 1"
    assert "sync inner 1, async inner 1" in model.requests[1].messages[-1]["content"]


# Sources of tools


class Source:
    """A source that keeps a log."""

    def __init__(self, name: str, diary: list[str], *, fails: str = "") -> None:
        self.name = name
        self.diary = diary
        self.fails = fails

    def _write(self, what: str) -> None:
        self.diary.append(f"{what} {self.name}")
        if what == self.fails:
            raise OSError(f"{self.name} cannot {what}")

    def open(self) -> None:
        self._write("open")

    def tools(self) -> list[Callable[..., Any]]:
        self._write("list")
        return [tool(name=self.name)(functools.partial(self._fetch))]

    def _fetch(self, what: str) -> str:
        self._write("use")
        return f"{what} from {self.name}"

    def close(self) -> None:
        self._write("close")


class AsyncSource(Source):
    """The same, all async."""

    async def open(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().open()

    async def tools(self) -> list[Callable[..., Any]]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().tools()

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().close()


class Shelf:
    """The smallest source."""

    def tools(self) -> list[Callable[..., Any]]:
        return [joined]


SOURCES = each_case("kind", [Source, AsyncSource])


@pytest.mark.every_way
@SOURCES
def test_tool_source_is_opened_and_closed_with_run(call: Call, script: Script, kind: type[Source]) -> None:
    diary: list[str] = []
    sources = [kind("a", diary), kind("b", diary)]
    reply = together(calling("a", what="1"), calling("joined", first="2", text="3"))
    model = script(reply, calling("b", what="4"), finish(result="done"))
    assert read(call.run(Worker(model=model, tools=[*sources, Shelf()]))) == ["1 from a", "2 3", "4 from b"]
    assert diary == ["open a", "list a", "open b", "list b", "use a", "use b", "close b", "close a"]
    names = [entry["function"]["name"] for entry in model.requests[0].tools]
    assert names == ["a", "b", "joined", "__finish__"]


def test_tool_source_is_opened_for_each_run(call: Call, script: Script) -> None:
    diary: list[str] = []
    agent = Worker(model=script(finish(result="1"), finish(result="2")), tools=[Source("a", diary)])
    assert [call(agent), call(agent)] == ["1", "2"]
    assert diary == ["open a", "list a", "close a"] * 2


def test_tool_source_listed_twice_is_opened_once(call: Call, script: Script) -> None:
    diary: list[str] = []
    source = Source("a", diary)
    call(Worker(model=script(finish(result="done")), tools=[source, source]))
    assert diary == ["open a", "list a", "close a"]


class Broken(Worker):
    """Its hook fails."""

    def on_step(self, step: Step) -> None:
        raise LookupError("in the hook")


@pytest.mark.every_way
@SOURCES
def test_tool_sources_are_closed_when_run_fails(call: Call, script: Script, kind: type[Source]) -> None:
    diary: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    sources = [kind("a", diary), kind("b", diary), interrupt]
    with pytest.raises(ModelError):
        call(Worker(model=script(Failure(400)), tools=sources))
    with pytest.raises(LookupError):
        call(Broken(model=script(calling("nothing")), tools=sources))
    with pytest.raises(KeyboardInterrupt):
        call(Worker(model=script(calling("interrupt")), tools=sources))
    assert diary == ["open a", "list a", "open b", "list b", "close b", "close a"] * 3


@pytest.mark.every_way
@SOURCES
@each_case(("fails", "rest"), [("open", []), ("list", ["list b", "close b"])])
def test_tool_source_that_fails_to_open_ends_run_and_closes_opened_tool_sources(
    call: Call, script: Script, kind: type[Source], fails: str, rest: list[str]
) -> None:
    diary: list[str] = []
    sources = [kind("a", diary), kind("b", diary, fails=fails), kind("c", diary)]
    with pytest.raises(OSError, match=f"b cannot {fails}") as caught:
        call(Worker(model=script(), tools=sources))
    assert diary == ["open a", "list a", "open b", *rest, "close a"]
    assert caught.value.run.stop_reason == "error"  # type: ignore[attr-defined]


@pytest.mark.every_way
@SOURCES
def test_tool_source_that_fails_to_close_fails_run(call: Call, script: Script, kind: type[Source]) -> None:
    diary: list[str] = []
    sources = [kind("a", diary), kind("b", diary, fails="close"), kind("c", diary)]
    with capture() as runs, pytest.raises(OSError, match="b cannot close") as caught:
        call(Worker(model=script(finish(result="done")), tools=sources))
    assert diary[-3:] == ["close c", "close b", "close a"]
    (run,) = runs
    assert run.error is caught.value
    assert run.stop_reason == "error"
    assert run.output == "done"  # It is available from the record.
    assert caught.value.run is run  # type: ignore[attr-defined]


@pytest.mark.every_way
@SOURCES
def test_tool_source_that_fails_to_close_does_not_replace_earlier_error(
    call: Call, script: Script, kind: type[Source]
) -> None:
    diary: list[str] = []
    sources = [kind("a", diary, fails="close"), kind("b", diary, fails="close")]
    with pytest.raises(LookupError, match="in the hook") as caught:
        call(Broken(model=script(calling("nothing")), tools=sources))
    assert diary[-2:] == ["close b", "close a"]
    notes = caught.value.__notes__
    assert ["b cannot close" in notes[0], "a cannot close" in notes[1]] == [True, True]


@each_case("declared", [[joined, Shelf()], [Shelf(), type("Other", (Shelf,), {})()], [Shelf(), joined]])
def test_function_listed_by_two_tool_sources_is_one_tool(call: Call, script: Script, declared: list[Any]) -> None:
    assert use(call, script, declared, calling("joined", first="a", text="b")) == ["a b"]


def test_tool_of_tool_source_with_existing_name_raises_tool_conflict_error(call: Call, script: Script) -> None:
    diary: list[str] = []

    def a(what: str) -> str:
        return what

    for tools in ([a, Source("a", diary)], [Source("a", diary), Source("a", diary)]):
        diary.clear()
        with pytest.raises(ToolConflictError, match="'a'"):
            call(Worker(model=script(), tools=tools))
        assert diary[-1] == "close a"
        assert diary.count("open a") == diary.count("close a")


def test_tool_of_tool_source_with_name_of_finish_tool_raises_declaration_error(call: Call, script: Script) -> None:
    with pytest.raises(DeclarationError, match="__finish__"):
        call(Worker(model=script(), tools=[Source("__finish__", [])]))


@each_case("listed", [None, "search", 5])
def test_tool_source_whose_tools_method_does_not_return_list_raises_acorn_error(
    call: Call, script: Script, listed: Any
) -> None:
    class Odd:
        def tools(self) -> Any:
            return listed

    with pytest.raises(AcornError, match="Odd"):
        call(Worker(model=script(), tools=[Odd()]))


@pytest.mark.every_way
def test_current_run_in_methods_of_tool_source_returns_run(call: Call, script: Script) -> None:
    seen: list[Run[Any]] = []

    class Curious:
        def open(self) -> None:
            seen.append(current_run())

        async def tools(self) -> list[Callable[..., Any]]:
            seen.append(current_run())
            return []

        def close(self) -> None:
            seen.append(current_run())

    run = call.run(Worker(model=script(finish(result="done")), tools=[Curious()]))
    assert seen == [run, run, run]


def test_concurrent_runs_open_tool_source_separately(script: Script) -> None:
    counter = itertools.count()
    diary: list[str] = []
    model = ScriptedModel(lambda request: finish(result=str(next(counter))))
    agent = Worker(model=model, tools=[AsyncSource("a", diary)])

    async def main() -> list[str]:
        return await asyncio.gather(*(agent.acall() for _ in range(20)))

    assert len(set(asyncio.run(main()))) == 20
    assert sorted(diary) == sorted(["open a", "list a", "close a"] * 20)


@pytest.mark.every_way
def test_tool_result_seconds_equal_duration_of_tool(call: Call, script: Script) -> None:
    def quick() -> str:
        """Quick."""
        return "quick"

    def slow() -> str:
        """Slow."""
        time.sleep(0.02)
        raise ValueError("slow")

    took: dict[str, float | None] = {}

    class Timed(module[Any, str]):
        final_output = str
        tools = [quick, slow]
        max_steps = 3

        def on_step(self, step: Step) -> None:
            took.update({result.name: result.seconds for result in step.tool_results})

    run = call.run(Timed(model=script(calling("quick") & calling("slow") & calling("none"), finish(result="done"))))
    assert took["quick"] is not None
    assert took["slow"] is not None
    assert took["slow"] >= 0.02
    assert took["none"] is None
    told = [event for event in run.thread if event.type in ("tool_result", "error")][:3]
    assert [event.seconds for event in told] == list(took.values())


def test_async_tool_that_blocks_its_event_loop_exceeds_its_time_limit() -> None:
    released = threading.Event()

    @tool(timeout=0.05)
    async def blocking() -> str:
        """Block the event loop."""
        released.wait(PATIENCE)
        return "late"

    class Impatient(module):
        """Answer."""

        model = ScriptedModel([calling("blocking"), finish(result="done")])
        tools = [blocking]
        final_output = str
        max_steps = 3

    agent = Impatient()
    assert agent() == "done"
    released.set()
    assert agent.last is not None
    assert "Tool error: TimeoutError: the tool did not return within its time limit of 0.05 s" in str(
        agent.last.history
    )
