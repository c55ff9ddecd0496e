"""Tests of `rate_limit` with `shared`: all processes with one PostgreSQL store share the limit."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import AGES, comes_true, waiting_for_nothing
from tests.windows import most_in_any_window

from acorn import DeclarationError, LimitError, ModelError, StoreError, module
from acorn.stores import PostgresStore
from acorn.stores.port import WindowOrder, WindowReport
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
    requests: int,
    tokens: int = 0,
    need: int = 0,
    *reports: WindowReport,
    most: int | None = None,
    seconds: float = AGES,
) -> WindowOrder:
    return WindowOrder("a", 10, most, requests, tokens, need, seconds, reports)


def test_store_grants_no_more_requests_than_shared_rate_limit(store: PostgresStore) -> None:
    assert store.take(order(4)).requests == 4
    assert store.take(order(4)).requests == 4
    assert store.take(order(4)).requests == 2
    refused = store.take(order(4))
    assert refused.requests == 0
    assert 0 < refused.seconds <= AGES


def test_requests_reported_as_unused_are_granted_again(store: PostgresStore) -> None:
    first = store.take(order(10))
    assert store.take(order(1)).requests == 0
    assert store.take(order(9, 0, 0, WindowReport(first.number, 4, 0, AGES))).requests == 6
    assert store.take(order(9, 0, 0, WindowReport(first.number, 0, 0, 0.0))).requests == 4


def test_grant_whose_process_never_reports_expires(store: PostgresStore) -> None:
    assert store.take(order(10, seconds=0.05)).requests == 10
    assert comes_true(lambda: store.take(order(10)).requests == 10)


def test_token_grant_is_reduced_to_remaining_tokens_of_limit(store: PostgresStore) -> None:
    assert store.take(order(4, 400, 100, most=1000))[1:3] == (4, 400)
    assert store.take(order(4, 800, 200, most=1000))[1:3] == (4, 600)
    assert store.take(order(1, 1, 1, most=1000)).requests == 0


def test_single_request_larger_than_shared_token_limit_is_granted_alone(store: PostgresStore) -> None:
    big = order(3, 5000, 5000, most=1000)
    assert store.take(big)[1:3] == (1, 5000)
    assert store.take(big).requests == 0


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


def test_shared_rate_limit_queries_store_less_than_once_per_request(postgres: str) -> None:
    class Counting(PostgresStore):
        orders = 0

        def take(self, order: WindowOrder) -> Any:
            Counting.orders += bool(order.requests)
            return super().take(order)

    store = Counting(postgres)
    agent = shared(store, requests=100_000, per=AGES)()
    for _ in range(100):
        assert agent.using(model=model(), store=store)(number=1) == 1
    assert Counting.orders < 25
    store.close()


def test_cancelled_wait_for_shared_rate_limit_does_not_block_later_requests(store: PostgresStore) -> None:
    agent = shared(store, requests=1, per=AGES)(model=model())
    assert agent(number=1) == 1

    async def main() -> None:
        tasks = [asyncio.ensure_future(agent.acall(number=1)) for _ in range(3)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True)
        )

    with waiting_for_nothing():
        asyncio.run(main())


# Unreachable store


def test_unreachable_store_of_shared_rate_limit_raises_and_sends_no_request(postgres: str) -> None:
    class Away(PostgresStore):
        def take(self, order: WindowOrder) -> Any:
            raise StoreError("`it` did not answer for 30 s")

    asked = model()
    agent = shared(Away(postgres), requests=5, per=AGES)(model=asked)
    with pytest.raises(StoreError, match=r"A request of `Limited` was not sent.*did not answer"):
        agent(number=1)
    with pytest.raises(StoreError, match="was not sent"):
        asyncio.run(agent.acall(number=1))
    assert not asked.requests


# Many processes


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
    senders = Senders(postgres, tmp_path / "sent", 3, {"requests": 30, "per": 3.0}, 14)
    senders.join()
    sent = senders.sent()
    assert len(sent) == 42
    assert most_in_any_window(sent, 3.0)[0] <= 30


def test_requests_granted_to_dead_process_become_available_again(postgres: str, tmp_path: Path) -> None:
    limit = {"requests": 5, "per": 2.0}
    senders = Senders(postgres, tmp_path / "sent", 1, limit, 1000)
    assert comes_true(lambda: len(senders.sent()) >= 5)
    senders.kill()
    before = len(senders.sent())
    others = Senders(postgres, tmp_path / "sent", 1, limit, 6)
    others.join()
    assert len(others.sent()) == before + 6
    assert most_in_any_window(others.sent(), 2.0)[0] <= 5


@pytest.mark.torture  # It judges speed.
@pytest.mark.parametrize("limit", [{"requests": 300, "per": 20.0}, {"tokens": 30_000, "per": 20.0}])
def test_eight_processes_together_use_95_percent_of_shared_rate_limit(
    postgres: str, tmp_path: Path, limit: dict[str, Any]
) -> None:
    senders, per, windows = Senders(postgres, tmp_path / "sent", 8, limit, 1_000_000), limit["per"], 5
    assert comes_true(senders.sent)
    began = senders.sent()[0][0]
    time.sleep(max(0.0, began + windows * per - time.monotonic()))  # The checked property.
    senders.kill()
    requests, tokens = most_in_any_window(senders.sent(), per)
    assert requests <= limit.get("requests", 300 + 300 // 50)
    assert tokens <= 30_000 + 30_000 // 50
    assert sum(at < began + windows * per for at, _ in senders.sent()) >= 0.95 * 300 * windows
