"""Tests of `map` and `amap`: limited concurrency, results in any order, one error per item, and no repeated row."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.cases import case

import acorn
from acorn import DeclarationError, InputError, LimitError, ModelError, Paused, StoreError, module, tool
from acorn.models import ModelRequest, Price
from acorn.stores import MemoryStore
from acorn.testing import Failure, Reply, ScriptedModel, call, finish


class Row(BaseModel):
    word: str


class Shout(module[Row, str]):
    """Shout the word."""

    max_steps = 3


def answer(request: ModelRequest) -> Reply | Failure:
    word = request.messages[-1]["content"].partition("<word>")[2].partition("</word>")[0]
    return Failure(status=400) if word == "bad" else finish(word.upper())


def shout(**settings: Any) -> Shout:
    return Shout(**{"model": ScriptedModel(answer), **settings})


def mapped(agent: Shout, rows: Any, **options: Any) -> tuple[list[Any], Any]:
    batch = agent.map(rows, **options)
    return list(batch), batch.progress


def amapped(agent: Shout, rows: Any, **options: Any) -> tuple[list[Any], Any]:
    async def all_of() -> tuple[list[Any], Any]:
        batch = agent.amap(rows, **options)
        return [item async for item in batch], batch.progress

    return asyncio.run(all_of())


WAYS = [mapped, amapped]
Way = Callable[..., tuple[list[Any], Any]]


@pytest.mark.parametrize("way", WAYS)
def test_map_starts_one_run_per_row(way: Way) -> None:
    rows: list[Any] = [{"word": "a"}, Row(word="b"), {"word": "bad"}, {"wrod": "c"}, {"word": "d"}]
    items, progress = way(shout(), rows, concurrency=2)
    assert sorted(item.index for item in items) == [0, 1, 2, 3, 4]
    found = {item.index: item for item in items}
    assert [found[at].output for at in range(5)] == ["A", "B", None, None, "D"]
    assert isinstance(found[2].error, ModelError)
    assert isinstance(found[3].error, InputError)
    assert found[0].input == {"word": "a"}
    assert found[0].run.output == "A"
    assert (progress.total, progress.done, progress.failed, progress.running) == (5, 3, 2, 0)
    assert progress.usage.requests == 3
    assert progress.eta == 0


@pytest.mark.parametrize("way", WAYS)
def test_map_runs_at_most_concurrency_rows_at_once_and_reads_rows_lazily(way: Way) -> None:
    lock, now, most, read, answered = threading.Lock(), 0, 0, 0, 0

    def slow(request: ModelRequest) -> Reply | Failure:
        nonlocal now, most, answered
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.005)
        with lock:
            now -= 1
            answered += 1
        return answer(request)

    def rows() -> Iterator[dict[str, str]]:
        nonlocal read
        for at in range(20):
            read += 1
            with lock:
                assert read - answered <= 8
            yield {"word": str(at)}

    _, progress = way(shout(model=ScriptedModel(slow)), rows(), concurrency=4)
    assert most <= 4
    assert progress.total == 20


def test_map_results_are_in_row_order() -> None:
    batch = shout().map([{"word": "a"}, {"word": "bad"}, {"word": "c"}])
    first, second, third = batch.results()
    assert (first, third) == ("A", "C")
    assert isinstance(second, ModelError)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore() if request.param == "memory" else tmp_path / "runs.db"


@pytest.mark.parametrize("way", WAYS)
def test_map_called_again_with_same_batch_id_sends_no_new_requests(store: Any, way: Way) -> None:
    rows = [{"word": word} for word in ("a", "bad", "c")]
    model = ScriptedModel(answer)
    way(shout(model=model, store=store), rows, id="nightly")
    assert len(model.requests) == 3
    items, progress = way(shout(model=model, store=store), rows, id="nightly")
    assert len(model.requests) == 3
    found = {item.index: item for item in items}
    assert (found[0].output, found[2].output) == ("A", "C")
    assert isinstance(found[1].error, ModelError)
    assert found[1].error.status == 400
    assert (progress.done, progress.failed) == (2, 1)

    items, _ = way(shout(model=model, store=store), rows, id="nightly", retry_failed=True)
    assert len(model.requests) == 4
    assert {facts.batch for facts in acorn.runs(store).list()} == {"nightly"}


def test_map_with_key_function_finds_stored_row_after_row_order_changed(store: Any) -> None:
    model = ScriptedModel(answer)
    agent = shout(model=model, store=store)
    agent.map([{"word": "a"}, {"word": "b"}], id="n", key=lambda row: row["word"]).results()
    found = agent.map([{"word": "c"}, {"word": "b"}, {"word": "b"}], id="n", key=lambda row: row["word"]).results()
    assert found[:2] == ["C", "B"]
    assert isinstance(found[2], InputError)
    assert len(model.requests) == 3


def test_map_with_changed_input_at_stored_index_yields_store_error(store: Any) -> None:
    agent = shout(store=store)
    agent.map([{"word": "a"}], id="n").results()
    (found,) = agent.map([{"word": "b"}], id="n").results()
    assert isinstance(found, StoreError)


def test_map_resumes_interrupted_rows(store: Any) -> None:
    class Stubborn(module[Row, str]):
        """Stubborn."""

        max_steps = 5
        worked: list[str]
        is_patient = False

        @tool
        def work(self, word: str) -> str:
            """Work."""
            self.worked.append(word)
            if word == "c" and not self.is_patient:
                raise KeyboardInterrupt
            return word

    def script(request: ModelRequest) -> Reply:
        word = request.messages[1]["content"].partition("<word>")[2].partition("</word>")[0]
        return call("work", word=word) if len(request.messages) == 2 else finish(word.upper())

    agent = Stubborn(model=ScriptedModel(script), store=store)
    agent.worked = []
    rows = [{"word": word} for word in "abcde"]
    with pytest.raises(KeyboardInterrupt):
        agent.map(rows, id="n", concurrency=1).results()
    assert agent.worked == ["a", "b", "c"]
    agent.is_patient = True
    assert agent.map(rows, id="n", concurrency=1).results() == ["A", "B", "C", "D", "E"]
    assert agent.worked == ["a", "b", "c", "c", "d", "e"]


def test_map_beyond_max_cost_yields_limit_error_for_remaining_rows() -> None:
    model = ScriptedModel(answer, price=Price(0.1, 0.1))
    found = shout(model=model).map([{"word": "a"}, {"word": "b"}], concurrency=1, max_cost=0.01).results()
    assert found[0] == "A"
    assert isinstance(found[1], LimitError)


def test_map_row_that_requests_human_input_is_paused(store: Any) -> None:
    class Careful(module[Row, str]):
        """Careful."""

        max_steps = 5
        tools = [acorn.ask_human]

    def script(request: ModelRequest) -> Reply:
        return call("ask_human", question="Sure?") if len(request.messages) == 2 else finish("done")

    agent = Careful(model=ScriptedModel(script), store=store)
    batch = agent.map([{"word": "a"}], id="n")
    (found,) = batch.results()
    assert isinstance(found, Paused)
    assert batch.progress.waiting == 1
    acorn.runs(store).answer(found.request.id, "yes")
    assert agent.map([{"word": "a"}], id="n").results() == ["done"]


def test_map_with_wrong_arguments_raises_declaration_error_before_iteration() -> None:
    wrong: list[Any] = [
        ("abc", {}),
        ({"word": "a"}, {}),
        (5, {}),
        ([], {"concurrency": 0}),
        ([], {"id": ""}),
        ([], {"key": "sku"}),
        ([], {"max_cost": 0}),
        ([], {"id": "without a store"}),
    ]
    for given, options in wrong:
        with case(given, options):
            with pytest.raises(DeclarationError):
                shout().map(given, **options)
            with pytest.raises(DeclarationError):
                shout().amap(given, **options)


def test_map_on_agent_with_run_id_raises_declaration_error() -> None:
    rows: list[Any] = [{}, {"id": "nightly"}, {"id": "nightly", "queue": True}]
    for options in rows:
        with case(options):
            agent = shout(store=MemoryStore()).using(run_id="a")
            with pytest.raises(DeclarationError, match=r"names one run, but a batch starts many"):
                agent.map([{"word": "a"}], **options)
            with pytest.raises(DeclarationError, match="Remove `run_id`"):
                agent.amap([{"word": "a"}], **options)
