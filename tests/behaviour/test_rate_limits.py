"""Tests of `rate_limit` and `max_concurrency`: all runs of a class share them, in the order of arrival."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.behaviour.conftest import Call, Script
from tests.cases import case
from tests.clock import FakeClock
from tests.long_version import IS_LONG
from tests.waiting import AGES, PATIENCE, comes_true, waiting_for_nothing

from acorn import DeclarationError, LimitError, ModelError, module
from acorn._base.clock import current_clock, use_clock
from acorn.models import Delta, ModelRequest, ModelResponse
from acorn.models.retry import LONGEST_WAIT, RetryingModel, RetryPolicy
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calling
from acorn.types import Usage

pytestmark = pytest.mark.message_list  # The models read the number from the last message.


class Agent(module[[("number", int)], int]):  # type: ignore[misc]
    """Say the number."""


def number_of(request: ModelRequest) -> int:
    text = request.messages[-1]["content"]
    return int(text.partition("<number>")[2].partition("</number>")[0])


class Watched(ScriptedModel):
    """A model that records request times and concurrency, and can hold requests."""

    def __init__(self, replies: Any = None, *, is_open: bool = True, **options: Any) -> None:
        super().__init__(replies or (lambda request: finish(number_of(request))), **options)
        self.moments: list[float] = []
        self.order: list[int] = []
        self.most = self.inside = 0
        self.opened = threading.Event()
        if is_open:
            self.opened.set()
        self._count_lock = threading.Lock()

    def _enter(self, request: ModelRequest) -> None:
        with self._count_lock:
            self.moments.append(current_clock().monotonic())
            self.order.append(number_of(request) if "<number>" in request.messages[-1]["content"] else -1)
            self.inside += 1
            self.most = max(self.most, self.inside)

    def _leave(self) -> None:
        with self._count_lock:
            self.inside -= 1

    def complete(self, request: ModelRequest) -> ModelResponse:
        self._enter(request)
        try:
            assert self.opened.wait(PATIENCE)
            return super().complete(request)
        finally:
            self._leave()

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        self._enter(request)
        try:
            while not self.opened.is_set():
                await asyncio.sleep(0.001)
            return await super().acomplete(request)
        finally:
            self._leave()

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        self._enter(request)
        try:
            assert self.opened.wait(PATIENCE)
            yield from super().stream(request)
        finally:
            self._leave()

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        self._enter(request)
        try:
            while not self.opened.is_set():
                await asyncio.sleep(0.001)
            async for delta in super().astream(request):
                yield delta
        finally:
            self._leave()


def assert_never_over(moments: list[float], requests: int, per: float) -> None:
    ordered = sorted(moments)
    for earlier, later in zip(ordered, ordered[requests:], strict=False):
        assert later - earlier >= per


def ask(agent: Any, number: int) -> Any:
    return agent(number=number)


def on_a_loop(act: Callable[..., Any], *args: Any) -> Any:
    return asyncio.run(act(*args))


class Threads:
    """Make calls in separate threads."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Any] = {}
        self._threads: list[threading.Thread] = []

    def start(self, number: int, act: Callable[[], Any]) -> None:
        def work() -> None:
            try:
                self.outcomes[number] = act()
            except BaseException as error:
                self.outcomes[number] = error

        context = contextvars.copy_context()  # It contains the clock.
        self._threads.append(threading.Thread(target=context.run, args=(work,), daemon=True))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


class Waits(logging.Handler):
    """Count the waiting requests by log lines."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "` waits" in record.getMessage():
            self.told.append(record.getMessage())

    def reach(self, count: int) -> bool:
        return comes_true(lambda: len(self.told) >= count)


@contextmanager
def listening() -> Generator[Waits]:
    handler, logger = Waits(), logging.getLogger("acorn")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(before)
    logger.removeHandler(handler)


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    clock = FakeClock()
    with use_clock(clock):
        yield clock


@pytest.fixture
def waits() -> Iterator[Waits]:
    with listening() as waits:
        yield waits


# Declaration


def test_invalid_rate_limit_raises_declaration_error() -> None:
    table: list[tuple[Any, str]] = [
        (60, "must be a dict such as"),
        ("60/min", "must be a dict such as"),
        ([("requests", 1)], "must be a dict such as"),
        ({}, "must have the key 'requests' or 'tokens'"),
        ({"per": 60}, "must have the key 'requests' or 'tokens'"),
        ({"request": 60}, "has the unknown key 'request'"),
        ({"requests": 1, 5: 5}, "has the unknown key 5"),
        *(
            ({"requests": count}, r"\['requests'\]` must be a whole number of at least 1")
            for count in (0, -1, True, 1.5)
        ),
        ({"requests": None}, r"\['requests'\]`"),
        *(({"tokens": count}, r"\['tokens'\]`") for count in (0, "1", math.nan)),
        *(
            ({"requests": 1, "per": per}, r"\['per'\]` must be a number of seconds above 0")
            for per in (0, -1, True, math.nan, math.inf, "60")
        ),
        ({"requests": 1, "shared": 1}, r"\['shared'\]` must be True or False"),
    ]
    for value, words in table:
        with case(value):
            with pytest.raises(DeclarationError, match=f"`Wrong.rate_limit.*{words}"):
                type("Wrong", (Agent,), {"rate_limit": value})
            with pytest.raises(DeclarationError, match=r"`Agent\.rate_limit"):
                Agent(rate_limit=value)
            with pytest.raises(DeclarationError, match=r"`Agent\.rate_limit"):
                Agent().using(rate_limit=value)


def test_invalid_max_concurrency_raises_declaration_error() -> None:
    values: list[Any] = [0, -1, True, 1.0, math.nan, "8", {}]
    for value in values:
        with case(value):
            with pytest.raises(DeclarationError, match=r"`Wrong.max_concurrency` must be a whole number of at least 1"):
                type("Wrong", (Agent,), {"max_concurrency": value})
            with pytest.raises(DeclarationError, match=r"`Agent.max_concurrency`"):
                Agent(max_concurrency=value)


def test_valid_rate_limit_is_accepted() -> None:
    for limit in (None, {"requests": 1}, {"tokens": 1}, {"requests": 5, "tokens": 9, "per": 0.5, "shared": False}):
        agent = Agent(rate_limit=limit, max_concurrency=2, model=Watched())
        assert agent(number=7) == 7


# Requests in any window

COUNT = 64
MOST = 32
PER = 5.0


def test_requests_of_concurrent_tasks_never_exceed_rate_limit(clock: FakeClock) -> None:
    class Limited(Agent):
        rate_limit = {"requests": MOST, "per": PER}

    model = Watched()

    async def main() -> Any:
        agent = Limited(model=model)
        return await asyncio.gather(*(agent.acall(number=number) for number in range(COUNT)))

    assert asyncio.run(main()) == list(range(COUNT))
    assert_never_over(model.moments, MOST, PER)
    assert model.order == list(range(COUNT))


def test_rate_limit_is_shared_by_threads_and_by_tasks_of_several_event_loops(clock: FakeClock) -> None:
    class Limited(Agent):
        rate_limit = {"requests": MOST, "per": PER}
        max_concurrency = 5

    model, threads = Watched(), Threads()

    async def some(begin: int) -> Any:
        agent = Limited(model=model)
        return await asyncio.gather(*(agent.acall(number=number) for number in range(begin, begin + 8)))

    for number in range(32):
        threads.start(number, partial(ask, Limited(model=model), number))
    for begin in range(32, 64, 8):
        threads.start(begin, partial(on_a_loop, some, begin))
    threads.join()
    assert sorted(model.order) == list(range(64))
    assert not [outcome for outcome in threads.outcomes.values() if isinstance(outcome, BaseException)]
    assert_never_over(model.moments, MOST, PER)
    assert model.most <= 5


def test_waiting_requests_are_sent_in_order_of_arrival(waits: Waits) -> None:
    class Limited(Agent):
        max_concurrency = 1
        rate_limit = {"requests": 1000, "tokens": 10**9}

    model, threads, agent = Watched(is_open=False), Threads(), Limited()

    async def last(number: int) -> Any:
        return [chunk async for chunk in agent.using(model=model).astream(number=number)][-1].result

    def begin(number: int) -> None:
        one = agent.using(model=model)
        ways: list[Callable[[], Any]] = [
            lambda: one(number=number),
            lambda: asyncio.run(one.acall(number=number)),
            lambda: list(one.stream(number=number))[-1].result,
            lambda: asyncio.run(last(number)),
        ]
        threads.start(number, ways[number % 4])

    begin(0)
    assert comes_true(lambda: model.inside == 1)
    for number in range(1, COUNT):
        begin(number)
        assert waits.reach(number)
    model.opened.set()
    threads.join()
    assert model.order == list(range(COUNT))
    assert threads.outcomes == {number: number for number in range(COUNT)}
    assert model.most == 1
    assert len(waits.told) == COUNT - 1
    assert waits.told[0] == "A request of `Limited` waits because its `max_concurrency` is reached."


def test_wait_for_rate_limit_is_logged_with_number_of_seconds(clock: FakeClock, waits: Waits) -> None:
    class Limited(Agent):
        rate_limit = {"requests": 1, "per": 20.0}

    agent = Limited(model=Watched())
    assert [agent(number=1), agent(number=2)] == [1, 2]
    assert waits.told == ["A request of `Limited` waits for 20.00 s because its `rate_limit` is reached."]
    assert clock.waits == [20.0]


# Every request counts


def test_request_waiting_for_retry_does_not_occupy_concurrency_slot() -> None:
    class Limited(Agent):
        max_concurrency = 1

    model = Watched([Failure(503), finish(2)])
    patient = RetryingModel(model, RetryPolicy(1, delay=LONGEST_WAIT))

    async def main() -> None:
        waiting = asyncio.ensure_future(Limited(model=patient).acall(number=1))
        while not (model.order and model.inside == 0):
            await asyncio.sleep(0.001)
        assert await Limited(model=model).acall(number=2) == 2
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(main())
    assert model.order == [1, 2]


def test_retries_do_not_exceed_rate_limit(clock: FakeClock) -> None:
    class Limited(Agent):
        rate_limit = {"requests": 2, "per": 1.0}

    model = Watched([Failure(503), Failure(503), Failure(503), finish(1)])
    assert Limited(model=RetryingModel(model, RetryPolicy(3, delay=0.0)))(number=1) == 1
    assert len(model.moments) == 4
    assert_never_over(model.moments, 2, 1.0)


def test_failed_request_releases_concurrency_slot(call: Call) -> None:
    class Limited(Agent):
        max_concurrency = 1

    for failure in (Failure(400), Failure(503), ValueError("no"), finish("no number")):
        with pytest.raises((ModelError, ValueError, Exception)):
            call(Limited(model=Watched([failure]), parse_retries=0), number=1)
    with waiting_for_nothing():
        assert call(Limited(model=Watched()), number=1) == 1


def test_stream_occupies_concurrency_slot_until_closed() -> None:
    class Limited(Agent):
        max_concurrency = 1

    model, threads = Watched(), Threads()
    chunks = Limited(model=model).stream(number=1)
    next(chunks)
    threads.start(2, lambda: Limited(model=model)(number=2))
    threads.start(3, lambda: list(Limited(model=model).stream(number=3)))
    assert model.order == [1]
    chunks.close()
    threads.join()
    assert sorted(model.order) == [1, 2, 3]
    assert model.most == 1


def test_stream_left_early_on_event_loop_releases_concurrency_slot() -> None:
    class Limited(Agent):
        max_concurrency = 1

    model = Watched()

    async def main() -> None:
        chunks = Limited(model=model).astream(number=1)
        await anext(chunks)
        await chunks.aclose()
        async for _ in Limited(model=model).astream(number=2):
            pass
        assert await Limited(model=model).acall(number=3) == 3

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert model.order == [1, 2, 3]
    assert model.most == 1


# Leaving the queue


def test_cancelled_tasks_are_removed_from_queue_of_waiting_requests(waits: Waits) -> None:
    class Limited(Agent):
        max_concurrency = 2

    model = Watched(is_open=False)
    agent = Limited(model=model)

    async def main() -> None:
        tasks: list[asyncio.Task[int]] = []
        for number in range(20):
            tasks.append(asyncio.ensure_future(agent.acall(number=number)))
            while len(waits.told) < number - 1:
                await asyncio.sleep(0.001)
        gone = [tasks[number] for number in (0, 2, 3, 7, 8, 9, 19)]  # Including one that is being answered.
        for task in gone:
            task.cancel()
        await asyncio.wait(gone)
        model.opened.set()
        left = [number for number, task in enumerate(tasks) if task not in gone]
        assert await asyncio.gather(*(tasks[number] for number in left)) == left
        assert model.order == [0, 1, *left[1:]]
        assert await agent.acall(number=20) == 20

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert model.most <= 2


@pytest.mark.every_way
def test_time_spent_waiting_for_rate_limit_counts_against_max_seconds(call: Call, clock: FakeClock) -> None:
    class Limited(Agent):
        rate_limit = {"requests": 1, "per": AGES}

    model = Watched()
    assert call(Limited(model=model), number=1) == 1
    with pytest.raises(LimitError, match=r"`max_seconds` of 1\.5") as caught:
        call(Limited(model=model, max_seconds=1.5), number=2)
    assert "it waited 1.5 s for `rate_limit`, and then the time limit of the run was reached" in str(
        caught.value.__cause__
    )
    assert model.order == [1]


@pytest.mark.every_way
def test_timeout_of_request_that_waited_is_remaining_time_of_run(call: Call, clock: FakeClock) -> None:
    class Limited(Agent):
        rate_limit = {"requests": 1, "per": 20.0}

    model = Watched()
    agent = Limited(model=model, max_seconds=100)
    call(agent, number=1)
    call(agent, number=2)
    assert [request.timeout for request in model.requests] == [100.0, 80.0]


def test_max_seconds_too_large_for_thread_wait_does_not_raise() -> None:
    class Limited(Agent):
        max_concurrency = 1

    model, threads = Watched(is_open=False), Threads()
    for number in range(2):
        threads.start(number, partial(ask, Limited(model=model, max_seconds=1e18), number))
    assert comes_true(lambda: model.inside == 1)
    model.opened.set()
    threads.join()
    assert threads.outcomes == {0: 0, 1: 1}


CHILD = """
import asyncio, signal, threading
from acorn import module
from acorn.testing import ScriptedModel, finish

signal.signal(signal.SIGINT, signal.default_int_handler)
held, opened = threading.Event(), threading.Event()

def reply(request):
    if not opened.is_set():
        held.set()
        opened.wait()
    return finish(1)

class Agent(module[[("number", int)], int]):
    max_concurrency = 1
    rate_limit = {"requests": 2, "per": 600}

agent = Agent(model=ScriptedModel(reply))
results = []
other = threading.Thread(target=lambda: results.append(agent(number=1)))
other.start()
held.wait()

import logging
class Told(logging.Handler):
    def emit(self, record):
        if "waits" in record.getMessage():
            print("waiting", flush=True)
logging.getLogger("acorn").addHandler(Told())
logging.getLogger("acorn").setLevel(logging.INFO)
for way in (
    lambda: agent(number=2),
    lambda: list(agent.stream(number=2)),
    lambda: asyncio.run(agent.acall(number=2)),
):
    try:
        way()
        print("not interrupted", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
opened.set()
other.join()
print(agent(number=3), results, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_while_waiting_for_rate_limit_raises_keyboard_interrupt_immediately() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(3):
            assert child.stdout.readline() == "waiting\n"
            os.kill(child.pid, signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"
        assert child.stdout.readline() == "1 [1]\n"  # The interrupted requests are not in the window.
        assert child.wait(PATIENCE) == 0


# A thread interrupts the main thread at random times, while the main thread acquires and releases a slot.
INTERRUPTS = """
import random, signal, sys, threading, time, traceback
from acorn._declare.settings import ClassLimit, RateLimit
from acorn.models import ModelRequest, ModelResponse
from acorn.models.limits import _limiters, limit_wrapper
from acorn.testing import ScriptedModel

signal.signal(signal.SIGINT, signal.default_int_handler)
count, chance = int(sys.argv[1]), random.Random(int(sys.argv[2]))

class Quick(ScriptedModel):
    def complete(self, request):
        return ModelResponse()

limits = ClassLimit(1, Quick), ClassLimit(RateLimit(10**9, 10**12, 600.0), Quick)
model = limit_wrapper("Agent", *limits)(Quick([]))
request = ModelRequest([], [], None, None)
main, ready, done = threading.main_thread().ident, threading.Event(), threading.Event()
sent = caught = inside = 0

def interrupt():
    global sent
    ready.wait()
    while sent < count:
        time.sleep(chance.random() * 0.001)
        sent += 1
        signal.pthread_kill(main, signal.SIGINT)
        while caught < sent:
            time.sleep(0.00001)
    done.set()

def work():
    while not done.is_set():
        model.complete(request)
        time.sleep(0.0001)

others = [threading.Thread(target=target, daemon=True) for target in (interrupt, work)]
for other in others:
    other.start()
while caught < count:
    try:
        ready.set()
        while True:
            model.complete(request)
    except KeyboardInterrupt as error:
        inside += traceback.extract_tb(error.__traceback__)[-1].filename.endswith("limits.py")
        caught += 1
for other in others:
    other.join(60)
    assert not other.is_alive()
slots, window = _limiters[Quick].values()
model.complete(request)
assert not slots._queue and not window._queue
assert not [admitted for admitted in slots._admitted if not admitted.is_finished]
assert window._tokens >= sum(counted.tokens for counted in window._window)
print(caught, inside > count / 10, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_at_random_times_never_leaves_slot_or_lock_occupied(
    record_property: Callable[[str, object], None],
) -> None:
    count = 5000 if IS_LONG else 40
    record_property("tried", f"{count:,} random interruptions of limited requests")
    command = [sys.executable, "-c", INTERRUPTS, str(count), "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * PATIENCE, check=False)
    assert done.stdout == f"{count} True\n", done.stderr


FORKS = """
import os, threading
from acorn import module
from acorn.testing import ScriptedModel, finish

held, opened = threading.Event(), threading.Event()

def reply(request):
    if threading.current_thread() is not threading.main_thread():
        held.set()
        opened.wait()
    return finish(1)

class Agent(module[[], int]):
    max_concurrency = 1
    rate_limit = {"requests": 1, "per": 600}

agent = Agent(model=ScriptedModel(reply))
other = threading.Thread(target=agent)
other.start()
held.wait()
child = os.fork()
if child == 0:
    print(agent(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
opened.set()
other.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_process_counts_requests_separately_from_parent_process() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == "1\n", done.stderr


BRANCHES = """
import logging, os, signal, threading
from acorn import module
from acorn.testing import ScriptedModel, call, finish

signal.signal(signal.SIGINT, signal.default_int_handler)
held, opened, over = threading.Event(), threading.Event(), threading.Event()
asked = []

def reply(request):
    below = "below" in request.messages[0]["content"]
    asked.append(below)
    if below and not over.is_set():
        held.set()
        opened.wait()
    return finish(1) if below or over.is_set() else call("a") & call("b") & call("c")

class Inner(module[[], int]):
    'Say it below.'

class Outer(module[[], int]):
    max_concurrency = 1
    max_steps = 3
    branches = dict.fromkeys("abc", Inner)

class Told(logging.Handler):
    waiting = 0
    def emit(self, record):
        if "waits" in record.getMessage():
            Told.waiting += 1
            if Told.waiting == 2:
                held.wait()
                print("waiting", flush=True)
logging.getLogger("acorn").addHandler(Told())
logging.getLogger("acorn").setLevel(logging.INFO)
agent = Outer(model=ScriptedModel(reply))
try:
    agent()
except KeyboardInterrupt:
    print("interrupted", flush=True)
over.set()
opened.set()
print(agent(), asked, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_removes_waiting_branches_from_queue() -> None:
    with subprocess.Popen([sys.executable, "-c", BRANCHES], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        os.kill(child.pid, signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        assert child.stdout.readline() == "1 [False, True, False]\n"  # The one that was sent, and that of the new run.
        assert child.wait(PATIENCE) == 0


# Tokens


def test_token_rate_limit_counts_reported_usage_instead_of_estimate(call: Call, waits: Waits) -> None:
    class Limited(Agent):
        rate_limit = {"tokens": 100_000, "per": AGES}
        max_tokens = 50_000

    def used(tokens: int) -> Reply:
        return Reply(calls=finish(1).calls, usage=Usage(tokens, 10))

    model = Watched([used(10), used(10), used(10), used(60_000)])
    for _ in range(4):  # By their estimates alone, they would be too many.
        call(Limited(model=model), number=1)
    assert not waits.told
    assert spent(Limited())


def test_request_rejected_with_429_does_not_count_against_token_rate_limit(call: Call, waits: Waits) -> None:
    class Limited(Agent):
        rate_limit = {"tokens": 10_000, "per": AGES}
        max_tokens = 6_000

    for _ in range(3):
        with pytest.raises(ModelError):
            call(Limited(model=Watched([Failure(429)])), number=1)
    assert call(Limited(model=Watched()), number=1) == 1
    assert not waits.told


def test_token_rate_limit_counts_reported_usage_of_stream(waits: Waits) -> None:
    class Limited(Agent):
        rate_limit = {"tokens": 10_000, "per": AGES}
        max_tokens = 6_000

    model = Watched()
    for number in range(3):
        assert list(Limited(model=model).stream(number=number))[-1].result == number
    assert not waits.told


# Shared limits


def spent(agent: module[Any, Any]) -> bool:
    """Return whether the limit of an agent makes its next request wait."""

    async def wait_for_either(waits: Waits) -> bool:
        task = asyncio.ensure_future(agent.using(model=Watched()).acall(number=1))
        while not (task.done() or waits.told):
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    with listening() as waits:
        return asyncio.run(wait_for_either(waits))


ONE = {"requests": 1, "per": AGES}


def test_rate_limit_of_class_is_shared_by_instances_and_inheriting_subclasses() -> None:
    class Limited(Agent):
        rate_limit: Any = ONE

    class Heir(Limited):
        """Says it too."""

    class Own(Limited):
        rate_limit = ONE

    class Free(Limited):
        rate_limit: Any = None

    assert Limited(model=Watched())(number=1) == 1
    assert spent(Limited())
    assert spent(Heir())
    assert spent(Limited().using(temperature=0.1))
    assert not spent(Own())
    assert spent(Own())
    assert not spent(Free())
    assert not spent(Free())


def test_rate_limits_of_instances_are_shared_if_class_and_values_are_equal() -> None:
    class Limited(Agent):
        """Says it."""

    assert not spent(Limited(rate_limit=ONE))
    assert spent(Limited(rate_limit=dict(ONE)))
    assert spent(Limited().using(rate_limit=dict(ONE)))
    assert not spent(Limited(rate_limit={"requests": 2, "per": AGES}))
    assert not spent(Limited())
    with Limited.override(rate_limit=dict(ONE)):
        assert spent(Limited())
        assert spent(Limited(rate_limit=None))


def test_rate_limit_of_mixin_is_shared_by_classes_with_mixin() -> None:
    class Polite:
        rate_limit = ONE

    class First(Polite, Agent):
        """Says it."""

    class Second(Polite, Agent):
        """Says it too."""

    assert not spent(First())
    assert spent(Second())


class Inner(Agent):
    """Say it below."""


def outer(inner: type[module[Any, Any]], **attributes: Any) -> module[Any, Any]:
    made = type("Outer", (Agent,), {"branches": {"inner": inner}, "max_steps": 3, **attributes})
    agent: module[Any, Any] = made()
    return agent


def branching() -> list[Any]:
    return [calling("inner", number=1), finish(1), finish(1)]


def test_branch_requests_count_against_parent_rate_limit(call: Call, script: Script) -> None:
    agent = outer(Inner, rate_limit={"requests": 3, "per": AGES}, max_concurrency=1)
    assert call(agent.using(model=script(*branching())), number=1) == 1
    assert spent(agent)
    assert not spent(Inner())


def test_branch_that_declares_rate_limit_does_not_count_against_parent_rate_limit(call: Call, script: Script) -> None:
    class Limited(Inner):
        rate_limit = ONE

    agent = outer(Limited, rate_limit={"requests": 3, "per": AGES})
    assert call(agent.using(model=script(*branching())), number=1) == 1
    assert spent(Limited())
    assert not spent(agent)
    assert spent(agent)


def test_branch_with_rate_limit_none_does_not_count_against_parent_rate_limit(call: Call, script: Script) -> None:
    class Free(Inner):
        rate_limit = None

    agent = outer(Free, rate_limit={"requests": 3, "per": AGES})
    assert call(agent.using(model=script(*branching())), number=1) == 1
    assert not spent(agent)
    assert spent(agent)


def test_agent_tool_requests_count_against_caller_rate_limit(call: Call, script: Script) -> None:
    made = type("Caller", (Agent,), {"tools": [Inner], "max_steps": 3, "rate_limit": {"requests": 3, "per": AGES}})
    agent = made()
    assert call(agent.using(model=script(*branching())), number=1) == 1
    assert spent(agent)


def test_concurrent_branches_do_not_exceed_parent_max_concurrency(call: Call) -> None:
    def reply(request: ModelRequest) -> Any:
        if "below" in request.messages[0]["content"]:
            return finish(1)
        is_first = request.messages[-1]["role"] == "user"
        return (calling("a", number=1) & calling("b", number=2) & calling("c", number=3)) if is_first else finish(4)

    model = Watched(reply)
    agent = outer(Inner, branches=dict.fromkeys("abc", Inner), max_concurrency=1)
    assert call(agent.using(model=model), number=1) == 4
    assert model.most == 1
    assert len(model.order) == 5


# High load


def test_random_load_never_exceeds_max_concurrency_and_releases_all_slots() -> None:
    class Limited(Agent):
        max_concurrency = 3

    chance = random.Random(7)

    def reply(request: ModelRequest) -> Any:
        kind = number_of(request) % 4
        return Failure(500) if kind == 1 else RuntimeError("mine") if kind == 2 else finish(number_of(request))

    model, threads = Watched(reply), Threads()
    agent = Limited(model=model)

    async def crowd(begin: int) -> None:
        tasks: list[asyncio.Task[Any]] = []
        for number in range(begin, begin + 25):
            tasks.append(asyncio.ensure_future(agent.acall(number=number)))
            await asyncio.sleep(0)
            if chance.random() < 0.4:
                chance.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stream(number: int) -> None:
        for chunk in agent.stream(number=number):
            if number % 3 == 0 and chunk:
                break

    for begin in range(0, 100, 25):
        threads.start(begin, partial(on_a_loop, crowd, begin))
    for number in range(100, 130):
        threads.start(number, partial(ask, agent, number))
        threads.start(1000 + number, partial(stream, number))
    threads.join()
    assert model.most <= 3
    assert model.inside == 0

    async def three() -> None:
        model.opened.clear()
        tasks = [asyncio.ensure_future(agent.acall(number=4)) for _ in range(3)]
        while model.inside < 3:
            await asyncio.sleep(0.001)
        model.opened.set()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(three(), PATIENCE))  # All slots are free again.
