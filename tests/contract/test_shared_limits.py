"""Tests of `rate_limit` with `shared`: all processes with one PostgreSQL store share the limit."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.clock import FakeClock
from tests.waiting import AGES, PATIENCE, comes_true, waiting_for_nothing

from acorn import DeclarationError, LimitError, ModelError, StoreError, module
from acorn._base.clock import use_clock
from acorn.stores import PostgresStore
from acorn.stores.port import PlaceAnswer, PlaceOrder
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calling
from acorn.types import Usage

CHILD = Path(__file__).parent.parent / "limits_child.py"


class Agent(module[[("number", int)], int]):  # type: ignore[misc]
    """Say the number."""


def model(*replies: Any) -> ScriptedModel:
    return ScriptedModel(list(replies) if replies else lambda request: finish(1))


# Missing shared store


@pytest.mark.parametrize("store", [None, "memory", "runs.db"])
def test_shared_rate_limit_without_shared_store_raises_before_model_call(store: Any, tmp_path: Path) -> None:
    class Limited(Agent):
        rate_limit = {"requests": 1, "shared": True}

    asked = model()
    where = tmp_path / store if store == "runs.db" else store
    with pytest.raises(
        DeclarationError, match=r"`Limited\.rate_limit` is 'shared'.*`store = 'postgresql://host/name'`"
    ):
        Limited(model=asked, store=where)(number=1)
    with pytest.raises(DeclarationError, match=r"Or remove 'shared'"):
        asyncio.run(Limited(model=asked, store=where).acall(number=1))
    assert not asked.requests


def test_shared_rate_limit_of_branch_without_shared_store_raises_before_parent_starts() -> None:
    class Limited(Agent):
        rate_limit = {"requests": 1, "shared": True}

    outer = type("Outer", (Agent,), {"branches": {"inner": Limited}, "max_steps": 3})
    asked = model()
    with pytest.raises(DeclarationError, match=r"`Limited\.rate_limit` is 'shared'"):
        outer(model=asked)(number=1)
    assert not asked.requests


def test_override_with_rate_limit_none_removes_shared_rate_limit() -> None:
    class Limited(Agent):
        rate_limit = {"requests": 1, "shared": True}

    with Limited.override(rate_limit=None):
        assert Limited(model=model())(number=1) == 1


# The counts of the store


@pytest.fixture
def store(postgres: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres)
    yield store
    store.close()


def order(
    tokens: int | None = 0,
    *corrections: tuple[float, int, int],
    max_requests: int | None = 3,
    max_tokens: int | None = None,
    seconds: float = AGES,
) -> PlaceOrder:
    return PlaceOrder("a", max_requests, max_tokens, tokens, seconds, 0.001, corrections)


def test_place_is_granted_during_long_read(store: PostgresStore) -> None:
    with ThreadPoolExecutor() as pool:
        answer = store.read_transaction(lambda _: pool.submit(store.take_place, order()).result(PATIENCE))
    assert answer.seconds == 0


def is_granted(store: PostgresStore, order: PlaceOrder) -> bool:
    return store.take_place(order).seconds == 0


def test_store_grants_no_more_places_than_shared_rate_limit(store: PostgresStore) -> None:
    answers = [store.take_place(order()) for _ in range(4)]
    assert [answer.seconds == 0 for answer in answers] == [True, True, True, False]
    assert AGES / 2 < answers[3].seconds <= AGES + 0.001


def test_store_grants_no_more_places_than_shared_rate_limit_to_concurrent_processes(postgres: str) -> None:
    def ask(_: int) -> int:
        with closing(PostgresStore(postgres)) as store:
            return sum(is_granted(store, order(max_requests=25)) for _ in range(10))

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(ask, range(8))) == 25


def test_refused_request_waits_until_first_sufficient_places_expire(store: PostgresStore) -> None:
    for tokens, seconds in ((400, 100.0), (300, 300.0), (200, 200.0)):
        assert is_granted(store, order(tokens, seconds=seconds, max_requests=None, max_tokens=1000))
    for tokens, seconds in ((100, 0.0), (200, 100.0), (600, 200.0), (800, 300.0), (9000, 300.0)):
        answer = store.take_place(order(tokens, seconds=0.001, max_requests=None, max_tokens=1000))
        with case(tokens):
            assert seconds - 50 < answer.seconds <= seconds + 0.001


def test_corrected_places_are_granted_again(store: PostgresStore) -> None:
    places = [store.take_place(order(100, seconds=AGES + at)).place for at in range(3)]
    assert not is_granted(store, order())
    store.take_place(order(None, (places[0], -1, -100), (12345.0, -1, -100)))  # The second place has expired.
    assert not is_granted(store, order(801, max_tokens=1000))
    assert is_granted(store, order(800, (places[1], 0, -50), (places[2], 0, 50), max_tokens=1000))
    assert not is_granted(store, order())


def test_place_whose_process_never_reports_expires(store: PostgresStore) -> None:
    assert is_granted(store, order(max_requests=1, seconds=0.05))
    assert comes_true(lambda: is_granted(store, order(max_requests=1)))


def test_single_request_larger_than_shared_token_limit_is_granted_alone(store: PostgresStore) -> None:
    great = order(5000, max_tokens=1000)
    assert is_granted(store, great)
    assert not is_granted(store, great)


# In one process


def shared(store: PostgresStore, **limit: Any) -> Any:
    """Create a separate class with its own limit."""
    return type("Limited", (Agent,), {"rate_limit": {"shared": True, **limit}, "store": store})


def spent(agent: Any) -> bool:
    """Return whether its next request has to wait."""
    try:
        agent.using(model=model(), max_seconds=0.5)(number=1)
    except LimitError:
        return True
    return False


def test_shared_rate_limit_with_other_value_is_counted_separately(store: PostgresStore) -> None:
    limited = shared(store, requests=3, per=AGES)
    for _ in range(3):
        assert limited(model=model())(number=1) == 1
    assert spent(limited())
    with waiting_for_nothing():
        assert limited(rate_limit={"requests": 4, "per": AGES, "shared": True}, model=model())(number=1) == 1


def test_branch_requests_count_in_shared_rate_limit_of_parent(store: PostgresStore) -> None:
    limited = type("Outer", (shared(store, requests=3, per=AGES),), {"branches": {"inner": Agent}, "max_steps": 3})
    assert limited(model=model(calling("inner", number=1), finish(1), finish(1)))(number=1) == 1
    assert spent(limited())


def test_shared_token_limit_counts_reported_usage_instead_of_estimate(store: PostgresStore) -> None:
    limited = shared(store, tokens=100_000, per=AGES)

    def used(tokens: int) -> Reply:
        return Reply(calls=finish(1).calls, usage=Usage(tokens, 10))

    agent = limited(max_tokens=50_000, model=model(used(10), used(10), used(10), used(60_000)))
    with waiting_for_nothing():
        for _ in range(4):  # By their estimates alone, they would be too many.
            assert agent(number=1) == 1
    assert spent(agent)


def test_request_rejected_with_429_does_not_count_in_shared_token_limit(store: PostgresStore) -> None:
    agent = shared(store, tokens=10_000, per=AGES)(max_tokens=6_000)
    with waiting_for_nothing():
        for _ in range(3):
            with pytest.raises(ModelError):
                agent.using(model=model(Failure(429)))(number=1)
        assert agent.using(model=model())(number=1) == 1


class Counted(PostgresStore):
    """A store that records the orders of the limiter, and can be slow."""

    def __init__(self, url: str, clock: FakeClock | None = None) -> None:
        super().__init__(url)
        self.orders: list[PlaceOrder] = []
        self.slow_orders, self._clock = 0, clock

    def take_place(self, order: PlaceOrder) -> PlaceAnswer:
        self.orders.append(order)
        if self._clock is not None and self.slow_orders >= len(self.orders):
            self._clock.advance(3.0)
        return super().take_place(order)


def test_shared_rate_limit_sends_one_statement_per_request(postgres: str) -> None:
    with closing(Counted(postgres)) as store:
        agent = shared(store, requests=100_000, per=AGES)()
        for _ in range(5):
            assert agent.using(model=model())(number=1) == 1
        assert [order.corrections for order in store.orders] == [[]] * 5


def test_place_that_arrives_too_late_is_returned_and_requested_again(postgres: str) -> None:
    clock, asked = FakeClock(), model()
    with closing(Counted(postgres, clock)) as store, use_clock(clock):
        store.slow_orders = 1
        assert shared(store, requests=1, per=AGES)(model=asked)(number=1) == 1
        assert [[change for _, change, _ in order.corrections] for order in store.orders] == [[], [-1], []]
        assert store.orders[1].seconds > store.orders[0].seconds + 5  # The next place is valid for a longer time.
        assert len(asked.requests) == 1


def test_place_of_cancelled_request_is_returned(postgres: str) -> None:
    started, answered = threading.Event(), threading.Event()

    class Slow(Counted):
        def take_place(self, order: PlaceOrder) -> PlaceAnswer:
            started.set()
            assert answered.wait(PATIENCE)
            return super().take_place(order)

    async def main() -> None:
        task = asyncio.ensure_future(agent.acall(number=1))
        await asyncio.to_thread(started.wait)
        task.cancel()
        await asyncio.wait([task])
        answered.set()
        assert task.cancelled()

    with closing(Slow(postgres)) as store:
        agent = shared(store, requests=1, per=AGES)(model=model())
        asyncio.run(main())
        with waiting_for_nothing():
            assert agent(number=1) == 1


def test_cancelled_wait_for_shared_rate_limit_ends_immediately(store: PostgresStore) -> None:
    agent = shared(store, requests=1, per=AGES)(model=model())
    assert agent(number=1) == 1

    async def main() -> None:
        tasks = [asyncio.ensure_future(agent.acall(number=1)) for _ in range(3)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)

    with waiting_for_nothing():
        asyncio.run(main())


# Unreachable store


def test_unreachable_store_of_shared_rate_limit_raises_and_sends_no_request(postgres: str) -> None:
    class Away(PostgresStore):
        def take_place(self, order: PlaceOrder) -> PlaceAnswer:
            raise error

    asked = model()
    agent = shared(Away(postgres), requests=5, per=AGES)(model=asked)
    error: Exception = StoreError("`it` did not answer for 30 s")
    with pytest.raises(StoreError, match=r"A request of `Limited` was not sent.*did not answer") as caught:
        agent(number=1)
    assert caught.value.__cause__ is error
    error = ValueError("no disk")
    with pytest.raises(StoreError, match=r"was not sent.*failed: .*no disk"):
        asyncio.run(agent.acall(number=1))
    assert not asked.requests


def test_time_limit_ends_wait_for_store_of_shared_rate_limit(postgres: str) -> None:
    answered = threading.Event()

    class Hanging(PostgresStore):
        def take_place(self, order: PlaceOrder) -> PlaceAnswer:
            assert answered.wait(PATIENCE)
            return super().take_place(order)

    with closing(Hanging(postgres)) as store, waiting_for_nothing(), pytest.raises(LimitError):
        shared(store, requests=5, per=AGES)(model=model(), max_seconds=0.2)(number=1)
    answered.set()


# Many processes


def most_in_any_window(sent: Sequence[tuple[float, int]], per: float) -> tuple[int, int]:
    """Return requests and tokens of those sent at these times, in order."""
    first, tokens, most = 0, 0, (0, 0)
    for last, (moment, used) in enumerate(sent):
        tokens += used
        while moment - sent[first][0] >= per:
            tokens -= sent[first][1]
            first += 1
        most = max(most[0], last - first + 1), max(most[1], tokens)
    return most


class Senders:
    """Start processes that send a number of requests each, and return what they sent."""

    def __init__(self, url: str, log: Path, processes: int, limit: dict[str, Any], count: int) -> None:
        self._log = log
        command = [sys.executable, str(CHILD), url, str(log), json.dumps(limit), str(count)]
        self._children = [subprocess.Popen(command) for _ in range(processes)]

    def sent(self) -> list[tuple[float, int]]:
        """The time of a request and its tokens."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return sorted((float(at), int(used)) for at, used in map(str.split, lines))

    def kill(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()

    def join(self) -> None:
        for child in self._children:
            assert child.wait(AGES) == 0


def test_processes_with_shared_rate_limit_together_never_exceed_limit(postgres: str, tmp_path: Path) -> None:
    # So few after the first window that those of a slow process do not exceed the limit.
    senders = Senders(postgres, tmp_path / "sent", 3, {"requests": 12, "per": 0.5}, 5)
    senders.join()
    sent = senders.sent()
    assert len(sent) == 15
    assert most_in_any_window(sent, 0.5)[0] <= 12


@pytest.mark.torture  # It judges speed.
@pytest.mark.parametrize("limit", [{"requests": 300, "per": 20.0}, {"tokens": 30_000, "per": 20.0}])
def test_eight_processes_together_use_90_percent_of_shared_rate_limit(
    postgres: str, tmp_path: Path, limit: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    senders, per, windows = Senders(postgres, tmp_path / "sent", 8, limit, 1_000_000), limit["per"], 5
    assert comes_true(senders.sent)
    began = senders.sent()[0][0]
    time.sleep(max(0.0, began + windows * per - time.monotonic()))  # The checked property.
    senders.kill()
    requests, tokens = most_in_any_window(senders.sent(), per)
    assert requests <= 300
    assert tokens <= 30_000
    used = sum(at < began + windows * per for at, _ in senders.sent()) / (300 * windows)
    record_property("tried", f"{used:.1%} of a shared rate limit used by 8 processes")
    assert used >= 0.9
