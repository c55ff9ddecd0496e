"""Tests of tool results that Python computes lazily: the model reads each item, and acorn reads it once."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.small_programs import WAYS, Plain, read_result, tool_results
from tests.cases import case

from acorn import Run, Step, module
from acorn.journal import ToolFinished
from acorn.testing import ScriptedModel, call, finish


class Row(BaseModel):
    at: int


@dataclass
class Holder:
    rows: Any


class Open(BaseModel):
    rows: Any


class Extended(BaseModel, extra="allow"):
    pass


class Squares:
    """An iterator class of a user."""

    def __init__(self) -> None:
        self.items = iter([1, 4, 9])

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self.items)


def counting() -> Generator[int]:
    yield 1
    yield 2


LAZY: dict[str, tuple[Callable[[], Any], Any]] = {
    "extra field": (lambda: Extended.model_validate({"rows": counting()}), {"rows": [1, 2]}),
    "map": (lambda: map(str, [1, 2]), ["1", "2"]),
    "filter": (lambda: filter(None, [0, 1, 2]), [1, 2]),
    "zip": (lambda: zip([1, 2], "ab", strict=True), [[1, "a"], [2, "b"]]),
    "enumerate": (lambda: enumerate("ab"), [[0, "a"], [1, "b"]]),
    "reversed": (lambda: reversed([1, 2]), [2, 1]),
    "iter of a list": (lambda: iter([1, 2]), [1, 2]),
    "iter of a dict": (lambda: iter({"a": 1}), ["a"]),
    "csv.reader": (lambda: csv.reader(io.StringIO("a,b\n1,2\n")), [["a", "b"], ["1", "2"]]),
    "csv.DictReader": (lambda: csv.DictReader(io.StringIO("a,b\n1,2\n")), [{"a": "1", "b": "2"}]),
    "itertools.chain": (lambda: itertools.chain([1], [2]), [1, 2]),
    "itertools.islice": (lambda: itertools.islice(itertools.count(), 2), [0, 1]),
    "itertools.groupby": (lambda: (key for key, _ in itertools.groupby("aab")), ["a", "b"]),
    "generator": (counting, [1, 2]),
    "generator expression": (lambda: (x for x in [1, 2]), [1, 2]),
    "iterator class": (Squares, [1, 4, 9]),
    "iterator of schemas": (lambda: (Row(at=at) for at in [1, 2]), [{"at": 1}, {"at": 2}]),
    "empty iterator": (lambda: iter(()), []),
    "file": (lambda: io.StringIO("one\ntwo\n"), ["one\n", "two\n"]),
    "in a dict": (lambda: {"rows": (i for i in [1, 2])}, {"rows": [1, 2]}),
    "in a list": (lambda: [map(str, [1]), 2], [["1"], 2]),
    "in a tuple": (lambda: (iter([1]), 2), [[1], 2]),
    "in a deque": (lambda: deque([iter([1])]), [[1]]),
    "in a dataclass": (lambda: Holder(iter([1, 2])), {"rows": [1, 2]}),
    "in a schema": (lambda: Open(rows=iter([1, 2])), {"rows": [1, 2]}),
    "in an iterator": (lambda: (iter([i]) for i in (1, 2)), [[1], [2]]),
    "deep inside": (lambda: {"a": [{"b": (map(str, [1]),)}]}, {"a": [{"b": [["1"]]}]}),
    "beside bytes that are not text": (lambda: {"raw": b"\xff", "rows": iter([1, 2])}, {"raw": "/w==", "rows": [1, 2]}),
    "of bytes that are not text": (lambda: iter([b"\xff", 1]), ["/w==", 1]),
    "of NaN": (lambda: iter([float("nan"), 1.0]), [None, 1.0]),
    "of a lone surrogate": (lambda: iter(["a\ud800", "b"]), ["a\ufffd", "b"]),
    "of an object without a JSON form": (lambda: iter([range(2), 3j]), [[0, 1], "3j"]),
    "values of a dict": (lambda: {"a": 1}.values(), [1]),
    "keys of a dict": (lambda: {"a": 1}.keys(), ["a"]),
    "items of a dict": (lambda: {"a": 1}.items(), [["a", 1]]),
    "range": (lambda: range(3), [0, 1, 2]),
}


def test_lazy_results_are_read_once_into_lists() -> None:
    for name, (make, expected) in LAZY.items():
        with case(name):
            assert json.loads(read_result(_named(make))) == expected


def _named(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a tool that returns a new value of the table."""

    def rows() -> Any:
        """Return rows."""
        return make()

    return rows


def _named_async(make: Callable[[], Any]) -> Callable[[], Any]:
    async def rows() -> Any:
        """Return rows."""
        return make()

    return rows


def test_lazy_results_of_async_tools_are_read_once_into_lists() -> None:
    for name, (make, expected) in LAZY.items():
        with case(name):
            assert json.loads(read_result(_named_async(make), way="async")) == expected


def test_lazy_results_are_read_in_every_way_to_call() -> None:
    for way in WAYS:
        for make_tool in (_named, _named_async):
            with case(way, make_tool.__name__):
                assert json.loads(read_result(make_tool(lambda: map(str, [1, 2])), way=way)) == ["1", "2"]


def test_generator_function_as_tool_gives_its_items() -> None:
    def rows() -> Iterator[int]:
        """Return rows."""
        yield from (1, 2)

    assert json.loads(read_result(rows)) == [1, 2]


def test_async_generator_function_as_tool_gives_its_items() -> None:
    async def rows() -> AsyncIterator[int]:
        """Return rows."""
        yield 1
        yield 2

    for way in WAYS:
        with case(way):
            assert json.loads(read_result(rows, way=way)) == [1, 2]


def test_async_tool_that_returns_async_generator_gives_its_items() -> None:
    async def items() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def rows() -> Any:
        """Return rows."""
        return items()

    assert json.loads(read_result(rows, way="async")) == [1, 2]


def test_iterator_that_raises_is_tool_error() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("the file ended early")

    values: dict[str, Callable[[], Any]] = {
        "alone": broken,
        "in a dict": lambda: {"rows": broken()},
        "map": lambda: map(int, ["1", "x"]),
    }
    for name, make in values.items():
        for way in ("sync", "async"):
            with case(name, way):
                read = read_result(_named(make), way=way)
                assert read.startswith("Tool error: ValueError: ")


def test_on_step_receives_items_of_lazy_result_as_list() -> None:
    seen: list[Any] = []

    class Watching(Plain):
        def on_step(self, step: Step) -> None:
            seen.extend(result.output for result in step.tool_results)

    agent = Watching(model=ScriptedModel([call("rows"), finish("done")]), tools=[_named(lambda: map(str, [1, 2]))])
    assert tool_results(agent.run()) == ['["1","2"]']
    assert seen == [["1", "2"]]


def test_lazy_result_is_the_same_in_history_thread_journal_and_saved_record() -> None:
    agent = Plain(
        model=ScriptedModel([call("rows"), finish("done")]), tools=[_named(lambda: {"rows": (i for i in (1, 2))})]
    )
    run = agent.run()
    assert tool_results(run) == ['{"rows":[1,2]}']
    (entry,) = [entry for entry in run.journal.entries if isinstance(entry, ToolFinished)]
    assert "[1,2]" in str(entry).replace(" ", "")
    assert "[1,2]" in str(run.thread).replace(" ", "")
    assert tool_results(Run.from_json(run.to_json(), Plain)) == ['{"rows":[1,2]}']


def test_lazy_result_of_stored_run_is_read_by_model_after_resume(tmp_path: Path) -> None:
    class Interrupted(Plain):
        is_first = True

        def on_step(self, step: Step) -> None:
            if type(self).is_first:
                type(self).is_first = False
                raise KeyboardInterrupt

    def model() -> ScriptedModel:
        return ScriptedModel([call("rows"), finish("done")], by_turn=True)

    made = {"store": tmp_path / "runs.db", "tools": [_named(lambda: map(str, [1, 2]))]}
    with pytest.raises(KeyboardInterrupt):
        Interrupted(model=model(), **made).using(run_id="one").run()
    second = model()
    assert Interrupted(model=second, **made).resume("one") == "done"
    (result,) = [each["content"] for each in second.requests[-1].messages if each["role"] == "tool"]
    assert result == '["1","2"]'


def test_lazy_result_of_tool_in_branch_is_read_once() -> None:
    class Inner(module[Any, str]):
        """Work inside."""

        initial_input: Any = []
        final_output = str
        max_steps = 3
        tools = [_named(lambda: map(str, [1, 2]))]

    model = ScriptedModel([call("inner"), call("rows"), finish("inside"), finish("done")])
    run = Plain(model=model, branches={"inner": Inner}).run()
    assert tool_results(run.branches[0])[-1] == '["1","2"]'


def test_open_file_as_result_gives_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("one\ntwo\n")
    with path.open() as file:
        assert json.loads(read_result(_named(lambda: file))) == ["one\n", "two\n"]


def test_added_context_with_iterator_contains_its_items() -> None:
    class Adding(Plain):
        def on_step(self, step: Step) -> None:
            step.add_to_context({"rows": (i for i in (1, 2))})

    model = ScriptedModel([call("rows"), finish("done")])
    Adding(model=model, tools=[_named(lambda: 1)]).run()
    text = str(model.requests[1].messages[-1]["content"])
    assert "<item>1</item>" in text
    assert "<item>2</item>" in text


def test_output_set_by_hook_with_iterator_contains_its_items() -> None:
    class Changing(Plain):
        def on_step(self, step: Step) -> None:
            step.tool_results[0].output = map(str, [1, 2])

    model = ScriptedModel([call("rows"), finish("done")])
    Changing(model=model, tools=[_named(lambda: 1)]).run()
    assert json.loads(str(model.requests[1].messages[-1]["content"])) == ["1", "2"]
