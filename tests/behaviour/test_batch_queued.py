"""Tests of queued batches: workers execute the rows, and the caller receives the same items as from a local batch."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import comes_true

import acorn
from acorn import DeclarationError, InputError, LimitError, Paused, StoreError, ask_human, module
from acorn.durable import perform
from acorn.models import ModelRequest, Price
from acorn.stores import MemoryStore, SQLiteStore, Store
from acorn.stores.port import RunCancelledError
from acorn.testing import Reply, ScriptedModel, call, finish


def reply(request: ModelRequest) -> Reply:
    text = str(request.messages)
    if "ask" in text and request.messages[-1]["role"] != "tool":
        return call("ask_human", question="Well?")
    return finish("fails" if "fail" in text else f"done {len(text) > 0}")


class Desk(module):
    """Do it."""

    initial_input = str
    final_output = str
    model = ScriptedModel(reply)
    max_steps = 8
    tools = [ask_human]

    def on_finish(self, output: str) -> None:
        if output == "fails":
            raise KeyError(output)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "runs.db")
    yield made
    made.close()


@pytest.fixture
def worker(store: Store) -> Iterator[None]:
    """Drive the queued runs."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.002):
            for facts in store.list(status=["queued"]):
                perform(store, facts.id, Desk)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


def queued(store: Store) -> Desk:
    return Desk(store=store).using(deliver=False)


@pytest.mark.usefixtures("worker")
def test_queued_batch_finishes_all_rows(store: Store) -> None:
    rows: list[Any] = [*(f"row {at}" for at in range(20)), "fail", 17, "ask"]
    batch = queued(store).map(rows, queue=True)
    items = {item.index: item for item in batch}
    assert [items[at].output for at in range(20)] == ["done True"] * 20
    assert "fails" in str(items[20].error)
    assert isinstance(items[21].error, InputError)
    assert isinstance(items[22].output, Paused)
    assert items[3].run is not None
    progress = batch.progress
    assert (progress.total, progress.done, progress.failed, progress.waiting, progress.running) == (23, 20, 2, 1, 0)
    assert progress.usage.requests == 22
    assert [type(each).__name__ for each in batch.results()[19:]] == ["str", "RecordedError", "InputError", "Paused"]


@pytest.mark.usefixtures("worker")
def test_queued_async_batch_finishes_all_rows(store: Store) -> None:
    async def use() -> None:
        batch = queued(store).amap(["a", "fail", "b"], queue=True)
        items = {item.index: item async for item in batch}
        assert (items[0].output, items[2].output) == ("done True", "done True")
        assert items[1].error is not None
        assert len(await batch.results()) == 3

    asyncio.run(use())


def test_queued_batch_left_early_is_continued_by_call_with_same_batch_id(store: Store) -> None:
    rows = ["a", "b", "fail"]
    first = queued(store).map(rows, queue=True, id="nightly", key=str)
    steps = iter(first)
    thread = threading.Thread(target=lambda: next(steps))
    thread.start()
    assert comes_true(lambda: len(store.list(status=["queued"])) == 3)
    for facts in store.list():
        perform(store, facts.id, Desk)
    thread.join()
    again = queued(store).map(rows, queue=True, id="nightly", key=str)
    assert [str(each) for each in again.results()[:2]] == ["done True", "done True"]
    assert len(store.list()) == 3
    assert store.list()[0].batch == "nightly"
    other = queued(store).map(["c"], queue=True, id="nightly", key=lambda row: "a")
    (item,) = other
    assert isinstance(item.error, StoreError)
    assert "another input" in str(item.error)


@pytest.mark.usefixtures("worker")
def test_queued_batch_with_retry_failed_retries_failed_rows(store: Store) -> None:
    (item,) = queued(store).map(["fail"], queue=True, id="nightly")
    assert item.run is not None
    began = acorn.runs(store).get(item.run.id).started
    (item,) = queued(store).map(["fail"], queue=True, id="nightly")
    assert item.run is not None
    assert acorn.runs(store).get(item.run.id).started == began
    (item,) = queued(store).map(["fail"], queue=True, id="nightly", retry_failed=True)
    assert item.run is not None
    assert acorn.runs(store).get(item.run.id).started != began


def test_queued_batch_yields_item_with_error_for_cancelled_run_and_for_deleted_run(store: Store) -> None:
    batch = iter(queued(store).map(["a", "b"], queue=True, id="nightly"))
    items: list[Any] = []
    thread = threading.Thread(target=lambda: items.extend(batch))
    thread.start()
    assert comes_true(lambda: len(store.list()) == 2)
    one, other = store.list()
    store.cancel(one.id)
    store.delete(other.id)
    thread.join()
    assert {type(item.error) for item in items} == {RunCancelledError, StoreError}


@pytest.mark.usefixtures("worker")
def test_queued_batch_with_endless_row_iterator_submits_at_most_10000_rows(store: Store) -> None:
    batch = iter(queued(store).map(map(str, itertools.count()), queue=True, id="endless"))
    assert next(batch).output == "done True"
    batch.close()  # type: ignore[attr-defined]
    assert len(store.list(limit=None)) <= 10_000


def test_queued_batch_beyond_max_cost_submits_no_more_rows(store: Store) -> None:
    batch = queued(store).map(map(str, range(300)), queue=True, max_cost=0.01)
    items: list[Any] = []
    thread = threading.Thread(target=lambda: items.extend(batch))
    thread.start()
    priced = Desk(model=ScriptedModel(reply, price=Price(0.1, 0.1)))
    while thread.is_alive():
        for facts in store.list(status=["queued"], limit=None):
            perform(store, facts.id, priced)
    begun = [item for item in items if not isinstance(item.error, LimitError)]
    assert len(items) == 300
    assert len(begun) == len(store.list(limit=None)) <= 100


def test_queued_batch_with_wrong_arguments_raises_error_before_submitting_rows(store: Store) -> None:
    with pytest.raises(DeclarationError, match=r"`concurrency` of `Desk\.map` has no effect with `queue=True`"):
        queued(store).map(["a"], queue=True, concurrency=4)
    with pytest.raises(DeclarationError, match="has no store"):
        Desk().map(["a"], queue=True)
    with pytest.raises(DeclarationError, match="`deps` of `Desk`"):
        queued(store).using(deps=3).map(["a"], queue=True)
    with pytest.raises(DeclarationError, match="applies only to queued runs"):
        queued(store).map(["a"])
    with pytest.raises(StoreError, match="cannot deliver runs to workers"):
        Desk(store=store).map(["a"], queue=True).results()
