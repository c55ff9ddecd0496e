"""Tests of tool sources: one task opens and closes each source, sync and async, and the tools run on its event loop."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextvars
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from pydantic import BaseModel
from tests.cases import case

from acorn import AcornError, Run, current_run, tool
from acorn._declare.tools.collect import make_tool
from acorn._drive.bridge import ASYNC, SYNC, call_sync
from acorn._drive.driver import run_inline
from acorn._drive.sources import OpenSources, raise_first
from acorn.record import CallSite

PATIENCE = 120.0
"""Seconds after which a test gives up on what should have come long before."""


class Sources:
    """Open sources, with methods for sync and for async code."""

    def __init__(self) -> None:
        self.opened = OpenSources()

    def open(self, source: Any) -> Any:
        return run_inline(self.opened.open(source, SYNC))

    async def aopen(self, source: Any) -> Any:
        return await self.opened.open(source, ASYNC)

    def close(self, on_error: Any = None) -> None:
        run_inline(self.opened.close(SYNC, on_error or raise_first(None)))

    async def aclose(self, on_error: Any = None) -> None:
        await self.opened.close(ASYNC, on_error or raise_first(None))


class Driver:
    """Open and close sources in one of the two ways; in the async one, each operation is a separate task."""

    def __init__(self, way: str, runner: asyncio.Runner) -> None:
        self.is_async = way == "async"
        self.runner = runner
        self.sources = Sources()

    def open(self, source: Any) -> Any:
        return self.run(self.sources.aopen, source) if self.is_async else self.sources.open(source)

    def close(self, failed: Any = None) -> None:
        if self.is_async:
            self.run(self.sources.aclose, failed)
        else:
            self.sources.close(failed)

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a tool like a run of this way."""
        if self.is_async:
            return self.run(function, *args, **kwargs)
        return call_sync(function, *args, **kwargs)

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        async def main() -> Any:
            return await function(*args, **kwargs)

        return self.runner.run(main())


@pytest.fixture
def driver(way: str) -> Iterator[Driver]:
    with asyncio.Runner() as runner:
        yield Driver(way, runner)


def patiently(claim: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true soon."""
    end = time.monotonic() + PATIENCE
    while not claim() and time.monotonic() < end:
        time.sleep(0.005)
    return claim()


# Kinds of sources


class Server:
    """Answer requests from a stream in an anyio task group, like an MCP client."""

    def __init__(self, name: str = "server", diary: list[str] | None = None, fails: str = "") -> None:
        self.name = name
        self.diary: list[str] = [] if diary is None else diary
        self.fails = fails
        self.entered: Any = None
        self.left: Any = None
        self.loop: Any = None
        self.crash = anyio.Event()
        self.is_serving = False

    def write(self, what: str) -> None:
        self.diary.append(f"{what} {self.name}")
        if what == self.fails:
            raise OSError(f"{self.name} cannot {what}")

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        self.entered, self.loop = asyncio.current_task(), asyncio.get_running_loop()
        self.requests, incoming = anyio.create_memory_object_stream[Any](100)
        async with anyio.create_task_group() as group, self.requests, incoming:
            group.start_soon(self.serve, incoming)
            group.start_soon(self.fall)
            try:
                await anyio.lowlevel.checkpoint()
                self.write("open")
                yield
                self.write("close")
            finally:
                self.left = asyncio.current_task()
                group.cancel_scope.cancel()

    async def serve(self, incoming: Any) -> None:
        self.is_serving = True
        try:
            async for text, answer in incoming:
                await anyio.lowlevel.checkpoint()
                await answer.send((f"{text} from {self.name}", asyncio.get_running_loop()))
        finally:
            self.is_serving = False

    async def fall(self) -> None:
        await self.crash.wait()
        raise ConnectionResetError("the server went away")

    async def tools(self) -> Any:
        assert asyncio.get_running_loop() is self.loop
        self.write("list")
        return [self.ask]

    async def ask(self, text: str) -> str:
        """Ask the server.

        Args:
            text: What to ask.
        """
        answer, coming = anyio.create_memory_object_stream[Any](1)
        async with answer, coming:
            await self.requests.send((text, answer))
            words, loop = await coming.receive()
        assert loop is asyncio.get_running_loop() is self.loop
        return str(words)


class Entered(Server):
    """An async context manager."""

    async def __aenter__(self) -> Entered:
        self.manager = self.session()
        await self.manager.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self.manager.__aexit__(*error)


class Opened(Server):
    """By `open` and `close`."""

    async def open(self) -> None:
        self.stack = AsyncExitStack()
        await self.stack.enter_async_context(self.session())

    async def close(self) -> None:
        await self.stack.aclose()


class Disguised(Opened):
    """Functions that return awaitables without being coroutine functions."""

    def open(self) -> Any:
        return super().open()

    def close(self) -> Any:
        return super().close()


class Half(Opened):
    """A source with a sync `tools`."""

    def tools(self) -> Any:
        self.write("list")
        return (self.ask,)


class Plain:
    """By sync functions."""

    def __init__(self, name: str, diary: list[str], fails: str = "") -> None:
        self.name = name
        self.diary = diary
        self.fails = fails

    def write(self, what: str) -> None:
        self.diary.append(f"{what} {self.name}")
        if what == self.fails:
            raise OSError(f"{self.name} cannot {what}")

    def open(self) -> None:
        self.write("open")

    def close(self) -> None:
        self.write("close")

    def tools(self) -> list[Any]:
        self.write("list")
        return [self.ask, self.aask]

    def ask(self, text: str) -> str:
        return f"{text} from {self.name}"

    async def aask(self, text: str) -> str:
        return self.ask(text)


class Managed(Plain):
    """A context manager that also has `open` and `close`."""

    def open(self) -> None:
        raise AssertionError("not called")

    close = open

    def __enter__(self) -> Managed:
        self.write("open")
        return self

    def __exit__(self, *error: Any) -> None:
        assert error == (None, None, None)
        self.write("close")


class Both(Entered):
    """A context manager of both kinds."""

    def __enter__(self) -> None:
        raise TypeError("use `async with` instead")

    def __exit__(self, *error: Any) -> None:
        raise AssertionError("not called")


ASYNC_KINDS = pytest.mark.parametrize("kind", [Entered, Opened, Disguised, Half, Both])
EVERY = pytest.mark.parametrize("kind", [Entered, Opened, Disguised, Half, Both, Plain, Managed])


# Opening, listing, closing


@EVERY
def test_tool_source_is_opened_then_listed_and_closed_once(driver: Driver, kind: Any) -> None:
    source = kind("a", [])
    ask, *_ = driver.open(source)
    assert source.diary == ["open a", "list a"]
    assert driver.call(ask, text="x") == "x from a" if kind not in (Plain, Managed) else ask("x") == "x from a"
    driver.close()
    assert source.diary == ["open a", "list a", "close a"]
    driver.close()
    assert source.diary == ["open a", "list a", "close a"]


@ASYNC_KINDS
def test_tool_source_is_entered_and_exited_in_same_task(driver: Driver, kind: Any) -> None:
    source = kind()
    driver.open(source)
    assert source.is_serving
    assert not source.entered.done()
    driver.close()
    assert source.left is source.entered
    assert source.entered.done()
    assert not source.is_serving


def test_async_tool_source_runs_on_event_loop_of_async_caller(driver: Driver) -> None:
    source, other = Entered(), Opened()
    driver.open(source)
    driver.open(other)
    assert (source.loop is driver.runner.get_loop()) is driver.is_async
    assert other.loop is source.loop
    driver.close()


def test_sync_run_inside_event_loop_opens_tool_source_on_private_loop() -> None:
    async def main() -> None:
        sources, source = Sources(), Entered()
        (ask,) = sources.open(source)
        assert source.loop is not asyncio.get_running_loop()
        assert await ask(text="x") == "x from server"
        assert call_sync(ask, text="y") == "y from server"
        sources.close()
        assert source.left is source.entered

    asyncio.run(main())


def test_tool_source_without_context_manager_is_only_listed(driver: Driver) -> None:
    async def ask() -> Any:
        return asyncio.get_running_loop()

    class Shelf:
        def tools(self) -> list[Any]:
            return [ask]

    class AsyncShelf:
        async def tools(self) -> list[Any]:
            self.loop = asyncio.get_running_loop()
            return [ask]

    shelf = AsyncShelf()
    assert driver.open(Shelf()) == [ask]
    (there,) = driver.open(shelf)
    assert driver.call(there) is shelf.loop
    driver.close()


def test_invalid_tool_list_of_tool_source_is_returned_unchanged(driver: Driver) -> None:
    class Odd(Entered):
        listed: Any

        async def tools(self) -> Any:
            return self.listed

    for listed in (None, "search", 5, {"a": 1}):
        source = Odd()
        source.listed = listed
        with case(listed):
            assert driver.open(source) == listed
            driver.close()


def test_tool_sources_are_closed_in_reverse_order(driver: Driver) -> None:
    diary: list[str] = []
    for source in (Entered("a", diary), Plain("b", diary), Opened("c", diary)):
        driver.open(source)
    driver.close()
    assert diary[-3:] == ["close c", "close b", "close a"]


def test_tool_sources_opened_in_many_threads_answer_their_own_callers() -> None:
    diary: list[str] = []

    def one(at: int) -> Any:
        sources = Sources()
        (ask,) = sources.open(Entered(str(at), diary))
        try:
            return call_sync(ask, text="x")
        finally:
            sources.close()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(one, range(24))) == sorted(f"x from {at}" for at in range(24))
    assert len(diary) == 24 * 3


# Failures


@EVERY
def test_tool_source_that_fails_to_open_raises_and_stays_closed(driver: Driver, kind: Any) -> None:
    source = kind("a", [], "open")
    with pytest.raises((OSError, ExceptionGroup)) as caught:
        driver.open(source)
    assert "a cannot open" in repr(caught.value)
    driver.close()
    assert source.diary == ["open a"]
    if isinstance(source, Server):
        assert source.entered.done()
        assert not source.is_serving


@EVERY
def test_tool_source_that_fails_to_list_tools_is_closed(driver: Driver, kind: Any) -> None:
    source = kind("a", [], "list")
    with pytest.raises(OSError, match="a cannot list"):
        driver.open(source)
    driver.close()
    assert source.diary == ["open a", "list a", "close a"]


@EVERY
def test_first_tool_source_close_error_is_raised_with_later_errors_as_notes(driver: Driver, kind: Any) -> None:
    diary: list[str] = []
    for source in (kind("a", diary, "close"), kind("b", diary), kind("c", diary, "close")):
        driver.open(source)
    with pytest.raises((OSError, ExceptionGroup)) as caught:
        driver.close()
    assert diary[-3:] == ["close c", "close b", "close a"]
    assert "c cannot close" in repr(caught.value)
    (note,) = caught.value.__notes__
    assert note.startswith("A tool source could not be closed either")
    assert "a cannot close" in note


def test_each_tool_source_close_error_is_passed_to_error_callback(driver: Driver) -> None:
    told: list[str] = []

    def failed(error: BaseException) -> None:
        told.append(str(error))
        if len(told) == 1:
            raise LookupError("decided") from error

    diary: list[str] = []
    for source in (Plain("a", diary, "close"), Plain("b", diary), Plain("c", diary, "close")):
        driver.open(source)
    with pytest.raises(LookupError, match="decided"):
        driver.close(failed)
    assert told == ["c cannot close", "a cannot close"]
    assert diary[-3:] == ["close c", "close b", "close a"]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("when", ["open", "close"])
def test_exit_exception_in_tool_source_is_raised_and_other_sources_are_closed(
    driver: Driver, end: type[BaseException], when: str
) -> None:
    class Ending(Opened):
        async def open(self) -> None:
            await super().open()
            if when == "open":
                await super().close()
                raise end

        async def close(self) -> None:
            await super().close()
            raise end

    other = Entered("other")
    (ask,) = driver.open(other)
    source = Ending()
    if when == "open":
        with pytest.raises(end):
            driver.open(source)
        assert driver.call(ask, text="x") == "x from other"
        driver.close()
    else:
        driver.open(source)
        with pytest.raises(end):
            driver.close()
    assert source.entered.done()
    assert other.left is other.entered


@ASYNC_KINDS
def test_tool_source_that_crashes_while_open_does_not_stop_other_sources(driver: Driver, kind: Any) -> None:
    source, other = kind(), Entered("other")
    (ask,) = driver.open(source)
    (alive,) = driver.open(other)
    source.loop.call_soon_threadsafe(source.crash.set)
    if driver.is_async:
        driver.run(asyncio.wait, {source.entered}, timeout=PATIENCE)
    assert patiently(source.entered.done)
    with pytest.raises((anyio.ClosedResourceError, anyio.BrokenResourceError)):
        driver.call(ask, text="x")
    assert driver.call(alive, text="y") == "y from other"
    with pytest.raises(ExceptionGroup) as caught:
        driver.close()
    assert "the server went away" in repr(caught.value)
    assert other.left is other.entered


def test_tool_source_with_cancelled_task_is_closed_without_error(driver: Driver) -> None:
    source = Entered()
    driver.open(source)
    source.loop.call_soon_threadsafe(source.entered.cancel)
    if driver.is_async:
        driver.run(asyncio.wait, {source.entered}, timeout=PATIENCE)
    assert patiently(source.entered.done)
    driver.close()
    assert source.left is source.entered


def test_tool_source_cancelled_while_opening_raises_acorn_error(driver: Driver) -> None:
    class Quitting(Entered):
        async def __aenter__(self) -> Entered:
            raise asyncio.CancelledError

    with pytest.raises(AcornError, match="`Quitting` was cancelled while it opened"):
        driver.open(Quitting())
    driver.close()


class Slow(Entered):
    """A source that takes time inside its task group."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when
        self.waits = threading.Event()

    def wait(self) -> Any:
        self.waits.set()
        return asyncio.sleep(PATIENCE)

    async def __aenter__(self) -> Slow:
        self.manager = self.slow_session()
        await self.manager.__aenter__()
        return self

    @asynccontextmanager
    async def slow_session(self) -> AsyncIterator[None]:
        async with self.session():
            if self.when == "open":
                await self.wait()
            yield
            if self.when == "close":
                await self.wait()


@pytest.mark.parametrize("when", ["open", "close"])
def test_cancelled_run_ends_task_that_opens_or_closes_tool_source(when: str) -> None:
    source = Slow(when)

    async def main() -> None:
        sources = Sources()
        if when == "close":
            await sources.aopen(source)
        act = asyncio.create_task(sources.aopen(source) if when == "open" else sources.aclose())
        while not source.waits.is_set():
            await asyncio.sleep(0.001)
        act.cancel()
        with pytest.raises(asyncio.CancelledError):
            await act
        assert source.entered.done()
        assert source.left is source.entered
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await sources.aclose()

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < PATIENCE / 2


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("when", ["open", "close"])
@pytest.mark.parametrize("comes", ["in the wait", "just before the wait"])
def test_ctrl_c_ends_task_that_opens_or_closes_tool_source(when: str, comes: str) -> None:
    source, sources = Slow(when), Sources()
    if when == "close":
        sources.open(source)

    def interrupt() -> None:
        source.waits.wait(PATIENCE)
        if comes == "in the wait":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            _thread.interrupt_main()  # Recorded, and no wait is interrupted.

    threading.Thread(target=interrupt, daemon=True).start()
    began = time.monotonic()
    act: Callable[[], Any] = functools.partial(sources.open, source) if when == "open" else sources.close
    with pytest.raises(KeyboardInterrupt):
        act()
    assert time.monotonic() - began < PATIENCE / 2
    assert patiently(source.entered.done)
    assert source.left is source.entered
    sources.close()


def test_tool_sources_are_closed_when_their_event_loop_ends() -> None:
    source, sources = Entered(), Sources()

    async def main() -> Any:
        (ask,) = await sources.aopen(source)
        return ask

    ask = asyncio.run(main())
    assert source.left is source.entered
    with pytest.raises(AcornError, match="The tool source is closed"):
        call_sync(ask, text="x")
    sources.close()
    asyncio.run(sources.aclose())


# Tools


class Where(Entered):
    """A source whose tools report where they run."""

    async def tools(self) -> list[Any]:
        return [self.where, self.items, self.plain]

    async def where(self) -> Any:
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    async def items(self) -> AsyncIterator[Any]:
        yield asyncio.get_running_loop()
        await asyncio.sleep(0)
        yield asyncio.get_running_loop()

    def plain(self) -> Any:
        return threading.current_thread()


def test_async_tool_runs_on_event_loop_that_opened_its_tool_source() -> None:
    source, sources = Where(), Sources()

    async def on_another_loop(function: Any) -> Any:
        assert asyncio.get_running_loop() is not source.loop
        return await function()

    where, items, plain = sources.open(source)
    for function, expected in ((where, source.loop), (items, [source.loop] * 2)):
        assert call_sync(function) == expected
        assert asyncio.run(on_another_loop(function)) == expected
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(call_sync, function).result(PATIENCE) == expected
    assert plain() is threading.current_thread()
    assert plain == source.plain
    sources.close()


def test_tool_of_source_on_running_event_loop_is_callable_from_other_threads() -> None:
    source = Where()

    async def main() -> None:
        sources = Sources()
        where, *_ = await sources.aopen(source)
        assert await where() is source.loop is asyncio.get_running_loop()
        assert await asyncio.to_thread(call_sync, where) is source.loop
        assert await asyncio.to_thread(asyncio.run, where()) is source.loop
        await sources.aclose()

    asyncio.run(main())


def test_tools_of_one_source_run_concurrently(driver: Driver) -> None:
    (ask,) = driver.open(Entered())
    texts = [str(at) for at in range(50)]

    async def together() -> Any:
        return await asyncio.gather(*(ask(text=text) for text in texts))

    assert driver.call(together) == [f"{text} from server" for text in texts]
    if not driver.is_async:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert list(pool.map(functools.partial(call_sync, ask), texts)) == [f"{text} from server" for text in texts]
    driver.close()


def test_tool_that_opens_other_tool_sources_synchronously_returns_result(driver: Driver) -> None:
    """Call a module, which blocks the loop it runs on."""

    class Nested(Entered):
        depth = 3

        async def tools(self) -> list[Any]:
            return [self.dig]

        async def dig(self) -> str:
            if not self.depth:
                return "ground"
            inner, sources = Nested(), Sources()
            inner.depth = self.depth - 1
            (dig,) = sources.open(inner)
            try:
                return str(call_sync(dig))
            finally:
                sources.close()
                assert inner.loop is not self.loop

    (dig,) = driver.open(Nested())
    assert driver.call(dig) == "ground"
    driver.close()


def free(text: str, limit: int = 3) -> str:
    """Only its signature counts."""
    raise AssertionError("not called")


class Object:
    """An object."""

    async def __call__(self, text: str) -> str:
        """Call the object."""
        return text


def listed() -> list[Any]:
    """Async tools of every kind."""

    async def function(text: str, limit: int = 3, *, run: Run[Any] | None = None) -> str:
        """Say something.

        Args:
            text: The words.
        """
        return text * limit

    @tool(name="renamed", description="Other words.", timeout=3, parallel=False)
    async def marked(text: str) -> str:
        return text

    @tool(schema={"type": "object", "properties": {"text": {"type": "string"}}})
    async def by_schema(**arguments: Any) -> str:
        """By a schema."""
        return str(arguments)

    async def items(text: str) -> AsyncIterator[str]:
        """Several."""
        yield text

    @functools.wraps(free)
    async def wrapper(*args: Any, **kwargs: Any) -> str:
        return "wrapped"

    return [
        function,
        marked,
        by_schema,
        items,
        wrapper,
        functools.partial(function, limit=1),
        tool(name="part")(functools.partial(function, limit=1)),
        Object(),
        Entered().ask,
    ]


def test_wrapped_tool_of_source_has_schema_and_options_of_original(driver: Driver) -> None:
    originals = listed()

    class Shelf:
        async def tools(self) -> list[Any]:
            return originals

    for found, original in zip(driver.open(Shelf()), originals, strict=True):
        with case(original):
            assert found is not original
            made, expected = (make_tool(entry, "tools[0]", "Owner", {}) for entry in (found, original))
            assert made.name == expected.name
            assert made.schema == expected.schema
            assert made.options == expected.options
    driver.close()


mood: contextvars.ContextVar[str] = contextvars.ContextVar("mood", default="none")


def test_tool_of_source_sees_context_variables_of_caller(driver: Driver) -> None:
    class Curious(Entered):
        async def tools(self) -> list[Any]:
            return [self.look]

        async def look(self) -> str:
            found = mood.get()
            mood.set("changed")
            return found

    (look,) = driver.open(Curious())

    async def main() -> str:
        mood.set("async")
        return str(await look())

    assert driver.call(main) == "async"
    if not driver.is_async:
        token = mood.set("sync")
        assert call_sync(look) == "sync"
        assert mood.get() == "sync"
        mood.reset(token)
    driver.close()


def test_cancelled_caller_cancels_its_call_to_tool_of_source(driver: Driver) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    class Hanging(Entered):
        async def tools(self) -> list[Any]:
            return [self.hang]

        async def hang(self) -> None:
            begun.set()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                cancelled.set()
                raise

    (hang,) = driver.open(Hanging())

    async def main() -> None:
        call = asyncio.ensure_future(hang())
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    driver.call(main)
    assert begun.is_set()
    assert cancelled.wait(PATIENCE)
    driver.close()


def test_interruption_inside_tool_of_source_raises_error_in_caller() -> None:
    class Quitting(Entered):
        async def tools(self) -> list[Any]:
            return [self.quit, self.interrupt]

        async def quit(self) -> None:
            raise asyncio.CancelledError

        async def interrupt(self) -> None:
            raise KeyboardInterrupt

    sources = Sources()
    leave, interrupt = sources.open(Quitting())
    with pytest.raises(AcornError, match="The tool source is closed"):
        call_sync(leave)
    with pytest.raises(KeyboardInterrupt):
        call_sync(interrupt)
    assert call_sync(sources.open(Where())[0]) is not None
    sources.close()


def test_sync_tool_listing_that_would_block_event_loop_of_source_raises() -> None:
    async def main() -> None:
        sources = Sources()
        held = await sources.opened.add(Entered(), ASYNC)
        with pytest.raises(AcornError, match=r"would block the event loop that the tool source `Entered` needs"):
            run_inline(held.list_tools(SYNC))
        await sources.aclose()

    asyncio.run(main())


def test_closing_tool_sources_from_their_own_event_loop_does_not_deadlock() -> None:
    """Python may close a dropped iterator anywhere."""
    source = Entered()

    async def main() -> None:
        sources = Sources()
        await sources.aopen(source)
        sources.close()
        await asyncio.wait({source.entered}, timeout=PATIENCE)

    asyncio.run(main())
    assert source.left is source.entered
    assert source.diary[-1] == "close server"


class Question(BaseModel):
    """The input of a run."""


@pytest.mark.parametrize("kind", [Entered, Opened, Disguised])
def test_current_run_inside_tool_source_is_run_that_opened_source(driver: Driver, kind: Any) -> None:
    seen: list[Any] = []

    class Curious(kind):  # type: ignore[misc]
        def write(self, what: str) -> None:
            seen.append(current_run())

    run: Run[Any] = Run("1", Question())
    sources, source = driver.sources, Curious()

    async def main() -> None:
        with CallSite(SimpleNamespace(machines={run.id: SimpleNamespace(run=run)}, trace=None), run.id, "tool"):
            await sources.aopen(source)
        await sources.aclose()

    if driver.is_async:
        driver.run(main)
    else:
        with CallSite(SimpleNamespace(machines={run.id: SimpleNamespace(run=run)}, trace=None), run.id, "tool"):
            sources.open(source)
        sources.close()
    assert seen == [run, run, run]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_process_opens_its_own_tool_sources() -> None:
    program = """
        import asyncio, os, threading
        from acorn._drive.bridge import SYNC, call_sync
        from acorn._drive.driver import run_inline
        from acorn._drive.sources import OpenSources, raise_first

        class Source:
            async def __aenter__(self):
                self.process = os.getpid()
            async def __aexit__(self, *error):
                assert self.process == os.getpid()
            async def tools(self):
                return [self.ask]
            async def ask(self):
                await asyncio.sleep(0)
                return os.getpid()

        sources, source = OpenSources(), Source()
        (ask,) = run_inline(sources.open(source, SYNC))
        assert call_sync(ask) == os.getpid()
        child = os.fork()
        if child == 0:
            threading.Timer(20, os._exit, [3]).start()
            assert sources.find(source) is None
            own = OpenSources()
            (ask,) = run_inline(own.open(source, SYNC))
            assert call_sync(ask) == os.getpid()
            run_inline(own.close(SYNC, raise_first(None)))
            run_inline(sources.close(SYNC, raise_first(None)))
            os._exit(0)
        assert sources.find(source) is not None
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert call_sync(ask) == os.getpid()
        run_inline(sources.close(SYNC, raise_first(None)))
        print(code)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "0\n"), ended.stderr
