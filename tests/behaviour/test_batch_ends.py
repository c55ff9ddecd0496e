"""Tests of batches that end early, run inside tools, or have a failing row iterator: their rows resume later."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import AGES, PATIENCE, comes_true, waiting_for_nothing

import acorn
from acorn import ModelError, StoreError, module, tool
from acorn.models import ModelRequest, ModelResponse
from acorn.stores import MemoryStore
from acorn.stores.port import Process, StoredRun
from acorn.testing import Failure, Reply, ScriptedModel, call, finish


class Echo(module[int, int]):
    """Echo."""

    max_steps = 5


def number_in(request: ModelRequest) -> int:
    said = next(str(each["content"]) for each in reversed(request.messages) if each["role"] == "user")
    return int(said.partition("<input>")[2].partition("</input>")[0])


def echoed(request: ModelRequest) -> Reply:
    return finish(number_in(request))


def echo(store: Any = None, answer: Callable[[ModelRequest], Any] = echoed) -> Echo:
    return Echo(model=ScriptedModel(answer), store=store)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore() if request.param == "memory" else tmp_path / "runs.db"


def rows_that_fail() -> Iterator[int]:
    yield 0
    yield 1
    raise RuntimeError("no more")


def one_row(then: threading.Event) -> Iterator[int]:
    yield 0
    assert then.wait(PATIENCE)
    raise RuntimeError("no more")


def nothing_runs(store: Any) -> bool:
    return comes_true(lambda: all(facts.status != "running" for facts in acorn.runs(store).list()))


def test_map_with_failing_row_iterator_raises_its_error_and_leaves_no_running_rows(store: Any) -> None:
    with pytest.raises(RuntimeError, match="no more"):
        echo(store).map(rows_that_fail(), concurrency=4, id="b").results()

    async def asynchronous() -> Any:
        return await echo(store).amap(rows_that_fail(), concurrency=4, id="b").results()

    assert nothing_runs(store)
    with pytest.raises(RuntimeError, match="no more"):
        asyncio.run(asynchronous())
    assert nothing_runs(store)
    assert echo(store).map(range(3), id="b").results() == [0, 1, 2]


def test_map_iteration_left_early_cancels_running_rows(store: Any) -> None:
    began, may_end = threading.Semaphore(0), threading.Event()

    def slow(request: ModelRequest) -> Reply:
        began.release()
        if number_in(request) > 0:
            assert may_end.wait(PATIENCE)
        return echoed(request)

    before = threading.active_count()
    for item in echo(store, slow).map(range(100), concurrency=4, id="b"):
        assert item.output == 0
        for _ in range(4):
            assert began.acquire(timeout=PATIENCE)
        break
    assert sorted(facts.status for facts in acorn.runs(store).list()) == ["done", "stopped", "stopped", "stopped"]
    may_end.set()
    assert comes_true(lambda: threading.active_count() <= before + 2), "the store may have threads of its own"
    assert sorted(facts.status for facts in acorn.runs(store).list()) == ["done", "stopped", "stopped", "stopped"]
    assert echo(store).map(range(8), id="b").results() == list(range(8))


def test_map_iteration_left_early_does_not_cancel_run_resumed_by_another_call(store: Any) -> None:
    """Both claims belong to this process; the later one drives the run."""
    began, may_end, goes_on, may_go_on = (threading.Event() for _ in range(4))

    def slow(request: ModelRequest) -> Reply:
        began.set()
        assert may_end.wait(PATIENCE)
        return echoed(request)

    def slow_again(request: ModelRequest) -> Reply:
        goes_on.set()
        assert may_go_on.wait(PATIENCE)
        return echoed(request)

    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="no more"):
        echo(store, slow).map(one_row(began), id="b").results()
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name == "acorn-call"]
    assert left
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.extend(echo(store, slow_again).map(range(1), id="b").results()))
    thread.start()
    assert goes_on.wait(PATIENCE)
    may_end.set()
    for each in left:
        each.join(PATIENCE)
    may_go_on.set()
    thread.join(PATIENCE)
    assert came == [0]
    assert [facts.status for facts in acorn.runs(store).list()] == ["done"]


class Slow(MemoryStore):
    """Claims when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may = threading.Event(), threading.Event()
        self.may.set()

    def claim(self, run_id: str, holder: Process) -> Sequence[StoredRun] | None:
        self.asked.set()
        assert self.may.wait(PATIENCE)
        return super().claim(run_id, holder)


@pytest.mark.parametrize("is_async", [False, True])
def test_map_iteration_left_while_store_claims_run_releases_claim(is_async: bool) -> None:
    store, began, may_end = Slow(), threading.Event(), threading.Event()

    def slow(request: ModelRequest) -> Reply:
        began.set()
        assert may_end.wait(PATIENCE)
        return echoed(request)

    def later() -> None:
        threading.Timer(0.05, store.may.set).start()

    def rows() -> Iterator[int]:
        yield 0
        assert store.asked.wait(PATIENCE)
        later()
        raise RuntimeError("no more")

    async def cancelled() -> None:
        batch = asyncio.ensure_future(echo(store).amap([0], id="b").results())
        while not store.asked.is_set():
            await asyncio.sleep(0.001)
        later()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert store.may.is_set(), "it has waited"
        assert [facts.status for facts in acorn.runs(store).list()] == ["stopped"]

    with pytest.raises(RuntimeError, match="no more"):
        echo(store, slow).map(one_row(began), id="b").results()
    may_end.set()
    assert [facts.status for facts in acorn.runs(store).list()] == ["stopped"]
    store.may.clear()
    store.asked.clear()
    if is_async:
        asyncio.run(cancelled())
    else:
        with pytest.raises(RuntimeError, match="no more"):
            echo(store).map(rows(), id="b").results()
    assert store.may.is_set(), "it has waited for what it was about to claim"
    assert [facts.status for facts in acorn.runs(store).list()] == ["stopped"]
    assert echo(store).map(range(1), id="b").results() == [0]


class Stuck(ScriptedModel):
    """Answer the first row, and never the others."""

    def __init__(self) -> None:
        super().__init__(echoed)
        self.began = asyncio.Event()

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        if number_in(request) > 0:
            self.began.set()
            await asyncio.sleep(AGES)
        return await super().acomplete(request)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_amap_iteration_that_is_left_early_or_whose_task_is_cancelled_cancels_running_rows(
    store: Any, is_cancelled: bool
) -> None:
    async def left() -> None:
        agent = Echo(model=Stuck(), store=store)
        async for _ in agent.amap(range(100), concurrency=4, id="b"):
            break

    async def cancelled() -> None:
        model = Stuck()
        batch = Echo(model=model, store=store).amap(range(100), concurrency=4, id="b")
        task = asyncio.ensure_future(batch.results())
        await model.began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with waiting_for_nothing():
        asyncio.run(cancelled() if is_cancelled else left())
    assert nothing_runs(store)
    assert echo(store).map(range(8), id="b").results() == list(range(8))


def test_map_and_amap_called_inside_tools_return_results() -> None:
    class Outer(module[int, str]):
        """Do many."""

        max_steps = 3

        @tool
        def many(self) -> str:
            """Many."""
            return str(echo().map(range(3)).results())

        @tool
        async def amany(self) -> str:
            """Many."""
            return str(await echo().amap(range(3)).results())

    for is_async in (True, False):
        agent = Outer(model=ScriptedModel([call("many") & call("amany"), finish("x")]))
        assert (asyncio.run(agent.acall(1)) if is_async else agent(1)) == "x"
        assert agent.last is not None
        results = [each["content"] for each in agent.last.history if each["role"] == "tool"]
        assert results[:2] == ["[0, 1, 2]"] * 2


def test_map_with_failing_key_function_yields_item_error(store: Any) -> None:
    came = echo(store).map([4, 0, 2], id="a", key=lambda row: 8 // row).results()
    assert (came[0], came[2]) == (4, 2)
    assert isinstance(came[1], ZeroDivisionError)


def test_map_called_twice_concurrently_with_equal_id_runs_each_row_once(store: Any) -> None:
    asked: list[int] = []

    def counted(request: ModelRequest) -> Reply:
        asked.append(number_in(request))
        return echoed(request)

    together, came = threading.Barrier(2), list[list[Any]]()

    def go() -> None:
        together.wait(PATIENCE)
        came.append(echo(store, counted).map(range(20), id="a").results())

    threads = [threading.Thread(target=go) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert all(found == at or isinstance(found, StoreError) for one in came for at, found in enumerate(one))
    assert echo(store).map(range(20), id="a").results() == list(range(20))
    assert sorted(asked) == list(range(20))


def test_map_with_changed_row_or_changed_class_yields_store_error_instead_of_stored_failure(store: Any) -> None:
    class Other(module[int, int]):
        """Other."""

    def failing(request: ModelRequest) -> Failure:
        return Failure(status=400)

    (first,) = echo(store, failing).map([1], id="a").results()
    assert isinstance(first, ModelError)
    (again,) = echo(store).map([1], id="a").results()
    assert isinstance(again, ModelError)
    for retry_failed in (False, True):
        (changed,) = echo(store).map([2], id="a", retry_failed=retry_failed).results()
        assert isinstance(changed, StoreError)
        assert "another input" in str(changed)
        (foreign,) = (
            Other(model=ScriptedModel(echoed), store=store).map([1], id="a", retry_failed=retry_failed).results()
        )
        assert isinstance(foreign, StoreError)
        assert "not to" in str(foreign)
    assert echo(store).map([1], id="a", retry_failed=True).results() == [1]


def test_map_frees_memory_of_run_records_after_items_are_discarded() -> None:
    batch = echo().map(range(5), concurrency=1)
    records = [weakref.ref(item.run) for item in batch]
    gc.collect()
    assert [each() for each in records[:-1]] == [None] * 4
    assert batch.results() == [0, 1, 2, 3, 4]
