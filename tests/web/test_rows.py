"""Tests of the rows of the run viewer, for real runs and for invalid journals."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, get_args, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import case
from tests.web.desk import Desk

import acorn
from acorn import journal
from acorn._inside import Redactor
from acorn._inside.run_tree import Row, RunTree, tree_of
from acorn.journal import CalledTool, Entry, ResultMessage
from acorn.types import Usage
from acorn.web.page.rows import row_json

IDS = st.sampled_from(["root", "one", "two"])
CALLS = st.sampled_from(["a", "b", "c"])
TEXT = st.text(max_size=12)
TIMES = st.floats(0, 50)
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": TEXT}), max_size=2).map(tuple)
RESULTS = st.lists(
    st.builds(
        ResultMessage, CALLS, TEXT, st.sampled_from(["text", "json", "error", "skipped", "stopped"]), st.none() | TIMES
    ),
    max_size=3,
).map(tuple)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "run_id": IDS,
    "child_id": IDS,
    "parent_id": st.none() | IDS,
    "step": st.integers(0, 5),
    "at": TIMES,
    "asked": TIMES,
    "began": st.none() | TIMES,
    "seconds": TIMES,
    "call_id": CALLS,
    "inside": st.none() | CALLS,
    "request_id": CALLS,
    "calls": st.lists(
        st.builds(CalledTool, CALLS, st.sampled_from(["search", "__finish__", "check"]), TEXT), max_size=3
    ).map(tuple),
    "results": RESULTS,
    "messages": MESSAGES,
    "usage": st.builds(Usage, st.integers(0, 9), st.integers(0, 9)),
    "cost": st.none() | st.floats(0, 1),
    "error": st.none() | TEXT,
    "kind": st.sampled_from(["question", "approval"]),
    "form": st.sampled_from(["text", "json", "error"]),
    "extra": st.just({}),
    "input": st.dictionaries(TEXT, TEXT, max_size=2),
    "context": st.none() | TEXT,
    "where": st.none() | st.integers(0, 3),
    "removed": st.integers(0, 3),
    "choices": st.none(),
    "waits": st.just(()),
    "fallbacks": st.just(()),
    "added": st.just(()),
    "steps": st.just(()),
    "inherited": st.just(0),
    "attempts": st.just(1),
}


def entries(kind: Any) -> st.SearchStrategy[Any]:
    given = {name: BY_NAME.get(name, TEXT) for name in kind._fields}
    if kind in (journal.RunFailed, journal.RunInterrupted):
        given["error"] = TEXT
    if kind is journal.ModelRequested:
        given["messages"] = st.integers(0, 9)
    return st.builds(kind, **given)


BRANCHES: list[Entry] = [
    journal.BranchStarted("root", 0, 0.0, "one", "one", None),
    journal.BranchStarted("one", 0, 0.0, "two", "one/two", None),
]
JOURNALS = st.lists(st.one_of([entries(kind) for kind in get_args(Entry)]), max_size=40).map(
    lambda written: BRANCHES + written
)
"""Journals of a run with two branches, because the tree ignores other runs."""


def plain(row: Row) -> dict[str, Any]:
    return row_json(row, Redactor())


def test_each_journal_entry_type_is_exported_by_journal_module() -> None:
    assert {kind.__name__ for kind in get_args(Entry)} <= set(journal.__all__)
    assert get_type_hints(journal.ModelRequested)["messages"] is int


@settings(max_examples=80)
@given(JOURNALS)
def test_each_journal_entry_belongs_to_exactly_one_row(written: list[Any]) -> None:
    tree = tree_of(written)
    assert tree.entries == written
    assert sorted(id(entry) for row in tree.rows for entry in row.entries) == sorted(map(id, written))
    for number, row in enumerate(tree.rows):
        assert row.id == number
        assert row.parent is None or row.parent.id < number
        assert row.end is None or (row.start is not None and row.end >= row.start)
        assert row.run in tree.runs.values()
        tree.results_of(row)
    assert [plain(row)["i"] for row in tree.rows] == list(range(len(tree.rows)))


@settings(max_examples=40)
@given(JOURNALS, st.data())
def test_changed_rows_fetched_repeatedly_add_up_to_all_rows(written: list[Any], data: st.DataObject) -> None:
    tree, version = RunTree(), 0
    known: dict[int, Any] = {}
    for entry in written:
        tree.add(entry)
        if data.draw(st.booleans()):
            known |= {row.id: plain(row) for row in tree.changed_since(version)}
            version = len(tree.entries)
    known |= {row.id: plain(row) for row in tree.changed_since(version)}
    assert known == {row.id: plain(row) for row in tree.rows}


def test_answer_of_run_is_preview_of_its_last_model_turn_only() -> None:
    request = journal.ModelRequested("root", 1, 0.0, "model 1", "model", 1, None)
    start = journal.RunStarted("root", 0, 0.0, "desk:Desk", {}, None, None, None)
    tree = tree_of([start, request, request, journal.RunFinished("root", 1, 0.0, "finish", "Done.", "text")])
    assert [plain(row).get("p") for row in tree.rows] == ["{}", None, "Done."]


def tree_after(question: str) -> RunTree:
    heard: list[Any] = []
    with acorn.listen(heard.append), suppress(acorn.ModelError):
        Desk(store="memory").run(question=question)
    return tree_of(heard)


def shown(tree: RunTree) -> list[tuple[str, str, bool]]:
    return [(row.kind, row.name, row.has_failed) for row in tree.rows]


def test_run_with_tool_call_has_rows_for_model_turns_and_tool_call() -> None:
    tree = tree_after("search acorns")
    assert shown(tree) == [
        ("input", "input", False),
        ("model", "model", False),
        ("tool", "search", False),
        ("answer", "answer", False),
    ]
    assert tree.rows[2].parent is tree.rows[1]
    assert plain(tree.rows[0])["p"] == "search acorns"
    assert plain(tree.rows[3])["p"].startswith("search acorns")
    assert tree.usage.total_tokens > 0
    assert tree.cost is not None


def test_rows_of_branch_are_placed_under_branch_row() -> None:
    tree = tree_after("branches")
    branches = [row for row in tree.rows if row.kind == "branch"]
    assert [row.name for row in branches] == ["check", "check"]
    for branch in branches:
        assert [row.kind for row in tree.rows if row.parent is branch] == ["input", "answer"]


def test_row_of_rejected_answer_lists_invalid_fields() -> None:
    tree = tree_after("corrected")
    bad = [row for row in tree.rows if row.has_failed]
    assert [(row.kind, plain(row)["p"]) for row in bad] == [("answer", "invalid: confidence")]


def test_failed_run_has_error_row() -> None:
    tree = tree_after("fail")
    assert tree.rows[-1].kind == "error"
    assert "the provider says no" in plain(tree.rows[-1])["p"]
    assert all(row.end is not None for row in tree.rows)


def test_number_of_messages_displayed_for_request_matches_journal() -> None:
    for question in ["search acorns", "branches", "corrected"]:
        with case(question):
            tree = tree_after(question)
            turns = [row for row in tree.rows if row.kind in ("model", "answer")]
            for row in turns:
                found = tree.request_of(row)
                assert found is not None
                messages, asked = found
                assert len(messages) == asked.messages
            assert tree.request_of(tree.rows[0]) is None
