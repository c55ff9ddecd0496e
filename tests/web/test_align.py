"""Tests of `align`, which pairs the rows of two runs for a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from tests.web.desk import Desk
from tests.web.test_rows import JOURNALS

import acorn
from acorn._inside.run_tree import Row, RunTree, tree_of
from acorn.testing import Reply, ScriptedModel, call, finish
from acorn.web.page.rows import Pair, align


def run(*replies: Reply) -> RunTree:
    heard: list[Any] = []
    with acorn.listen(heard.append):
        Desk(model=ScriptedModel(list(replies)), store="memory").run(question="why")
    return tree_of(heard)


def look(query: str) -> Reply:
    return call("search", query=query)


END = finish(answer="so", confidence=1.0)


def shown(row: Row | None) -> str:
    if row is None or row.kind != "tool":
        return "" if row is None else row.kind
    return (row.arguments or "").partition(":")[2][1:-2]


def sides(pairs: Sequence[Pair]) -> list[tuple[str, str, bool]]:
    return [(shown(pair.left), shown(pair.right), pair.is_same) for pair in pairs]


@settings(max_examples=80)
@given(JOURNALS, JOURNALS)
def test_each_row_of_compared_runs_appears_once_in_order(left: list[Any], right: list[Any]) -> None:
    one, other = tree_of(left), tree_of(right)
    pairs = align(one, other)
    for tree, found in ((one, [pair.left for pair in pairs]), (other, [pair.right for pair in pairs])):
        here = [row for row in found if row is not None]
        assert sorted(row.id for row in here) == [row.id for row in tree.rows]
        for up in {row.parent for row in here}:
            below = [row.id for row in here if row.parent == up]
            assert below == sorted(below)
    for pair in pairs:
        assert pair.left or pair.right
        if pair.left and pair.right:
            assert (pair.left.kind, pair.left.name) == (pair.right.kind, pair.right.name)
        else:
            assert not pair.is_same


@settings(max_examples=40)
@given(JOURNALS)
def test_run_compared_with_itself_has_only_equal_pairs(written: list[Any]) -> None:
    tree = tree_of(written)
    pairs = align(tree, tree)
    assert len(pairs) == len(align(tree_of(written), tree_of(written))) == len(tree.rows)
    assert all(pair.is_same and pair.left and pair.right and pair.left.id == pair.right.id for pair in pairs)


def test_row_that_only_one_compared_run_has_is_unpaired() -> None:
    pairs = align(run(look("a") & look("b") & look("c"), END), run(look("b") & look("c"), END))
    assert sides(pairs) == [
        ("input", "input", True),
        ("model", "model", False),
        ("a", "", False),
        ("b", "b", True),
        ("c", "c", True),
        ("answer", "answer", True),
    ]


def test_rows_with_different_content_are_paired_as_different() -> None:
    other = finish(answer="not so", confidence=1.0)
    pairs = align(run(look("a"), END), run(look("z"), other))
    assert sides(pairs)[1:] == [("model", "model", False), ("a", "z", False), ("answer", "answer", False)]


def test_additional_turn_in_one_compared_run_does_not_shift_other_pairs() -> None:
    pairs = align(run(look("a"), look("c"), END), run(look("a"), look("b"), look("c"), END))
    assert [each for each in sides(pairs) if not each[2]] == [("", "model", False), ("", "b", False)]


def test_rows_with_different_tool_results_are_paired_as_different() -> None:
    class Other(Desk):
        """Answer the question."""

    @acorn.tool
    def search(query: str) -> str:
        """Search the web."""
        return "something else"

    heard: list[Any] = []
    with acorn.listen(heard.append):
        Other(model=ScriptedModel([look("a"), END]), tools=[search], store="memory").run(question="why")
    pairs = align(run(look("a"), END), tree_of(heard))
    assert ("a", "a", False) in sides(pairs)


def test_row_moved_to_other_position_is_unpaired() -> None:
    pairs = align(run(look("a") & look("b") & look("c"), END), run(look("c") & look("a") & look("b"), END))
    calls = [each for each in sides(pairs) if each[0] in "abc" and each[1] in "abc"]
    assert sorted(calls) == [("", "c", False), ("a", "a", True), ("b", "b", True), ("c", "", False)]
