"""Marks of steps, and when they mean that a run goes in circles."""

from __future__ import annotations

from typing import Any

import pytest

from acorn import ToolResult
from acorn._machine.limits import NO_MARK, is_repeating, mark
from acorn.types import ToolCall


def step(*calls: tuple[str, dict[str, Any], str | None, Any], repeatable: tuple[str, ...] = ()) -> tuple[str, str]:
    """The mark of a step: of each call its name, its arguments, its error and its output."""
    made = [ToolCall(f"{at}", name, given) for at, (name, given, _, _) in enumerate(calls)]
    came = [ToolResult(f"{at}", name, output, error) for at, (name, _, error, output) in enumerate(calls)]
    return mark(made, came, repeatable)


A = step(("look", {"at": 1}, None, "seen"))
B = step(("look", {"at": 2}, None, "seen"))
C = step(("look", {"at": 3}, None, "seen"))
FAILED = [step(("look", {"at": at}, "no", None)) for at in range(4)]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([], False),
        ([A, A], False),
        ([A, A, A], True),
        ([B, A, A, A], True),
        ([A, A, B], False),
        ([A, B, A], False),
        ([A, B, A, B], True),
        ([C, B, A, B], False),
        ([NO_MARK, NO_MARK, NO_MARK, NO_MARK], False),
        ([NO_MARK, A, NO_MARK, A], False),
        ([A, NO_MARK, A, NO_MARK], False),
        (FAILED[:3], True),
        (FAILED[:2], False),
        ([A, *FAILED[:2]], False),
        ([FAILED[0], A, FAILED[1]], False),
        ([FAILED[0], FAILED[1], A], False),
    ],
)
def test_repetition_is_detected(marks: list[tuple[str, str]], expected: bool) -> None:
    assert is_repeating(marks) is expected


def test_mark_identifies_call_arguments_and_result() -> None:
    assert step(("look", {"at": 1}, None, "seen")) == A
    assert step(("peek", {"at": 1}, None, "seen")) != A
    assert step(("look", {"at": 1}, None, "gone")) != A
    assert step(("look", {"a": 1, "b": 2}, None, 1)) == step(("look", {"b": 2, "a": 1}, None, 1))
    assert step(("f", {}, None, "b"), ("g", {}, None, "")) != step(("f", {}, None, ""), ("g", {}, None, "b"))


def test_non_object_arguments_differ_by_text() -> None:
    came = [ToolResult("0", "look", error="no object")]
    marks = [mark([ToolCall("0", "look", {}, text)], came, ())[0] for text in ("[1]", "[2]")]
    assert marks[0] != marks[1]


def test_only_fully_failed_step_has_error_mark() -> None:
    assert step(("f", {}, "no", None), ("g", {}, "no", None))[1] != ""
    assert step(("f", {}, "no", None), ("g", {}, None, 1))[1] == ""
    assert A[1] == ""


def test_repeatable_tool_calls_leave_no_mark() -> None:
    assert step(("wait", {}, None, 1), repeatable=("wait",)) == NO_MARK
    alone = step(("look", {"at": 1}, None, "seen"), repeatable=("wait",))
    assert alone == A
    calls = [ToolCall("w", "wait"), ToolCall("0", "look", {"at": 1})]
    results = [ToolResult("w", "wait", "x"), ToolResult("0", "look", "seen")]
    assert mark(calls, results, ("wait",)) == A
