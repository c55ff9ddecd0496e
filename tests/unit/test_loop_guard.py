"""Tests of step digests, and of the detection of repeated steps."""

from __future__ import annotations

from typing import Any

from tests.cases import case

from acorn import ToolResult
from acorn._history.transcript import finish_call
from acorn._machine.budgets import NO_DIGEST, digest_step, is_repeating
from acorn.types import ToolCall


def digest(calls: list[ToolCall], results: list[ToolResult], repeatable: tuple[str, ...]) -> tuple[str, str]:
    messages = [finish_call(result).message for result in results]
    return digest_step(calls, results, messages, repeatable)


def step(*calls: tuple[str, dict[str, Any], str | None, Any], repeatable: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return the digest of a step with the given calls: name, arguments, error and output of each call."""
    made = [ToolCall(f"{at}", name, given) for at, (name, given, _, _) in enumerate(calls)]
    came = [ToolResult(f"{at}", name, output, error) for at, (name, _, error, output) in enumerate(calls)]
    return digest(made, came, repeatable)


A = step(("look", {"at": 1}, None, "seen"))
B = step(("look", {"at": 2}, None, "seen"))
C = step(("look", {"at": 3}, None, "seen"))
FAILED = [step(("look", {"at": at}, "no", None)) for at in range(4)]


def test_repeated_step_digests_are_detected_as_loop() -> None:
    for marks, expected in [
        ([], False),
        ([A, A], False),
        ([A, A, A], True),
        ([B, A, A, A], True),
        ([A, A, B], False),
        ([A, B, A], False),
        ([A, B, A, B], True),
        ([C, B, A, B], False),
        ([NO_DIGEST, NO_DIGEST, NO_DIGEST, NO_DIGEST], False),
        ([NO_DIGEST, A, NO_DIGEST, A], False),
        ([A, NO_DIGEST, A, NO_DIGEST], False),
        (FAILED[:3], True),
        (FAILED[:2], False),
        ([A, *FAILED[:2]], False),
        ([FAILED[0], A, FAILED[1]], False),
        ([FAILED[0], FAILED[1], A], False),
    ]:
        with case(marks):
            assert is_repeating(marks) is expected


def test_step_digest_depends_on_tool_name_and_arguments_and_result() -> None:
    assert step(("look", {"at": 1}, None, "seen")) == A
    assert step(("peek", {"at": 1}, None, "seen")) != A
    assert step(("look", {"at": 1}, None, "gone")) != A
    assert step(("look", {"a": 1, "b": 2}, None, 1)) == step(("look", {"b": 2, "a": 1}, None, 1))
    assert step(("f", {}, None, "b"), ("g", {}, None, "")) != step(("f", {}, None, ""), ("g", {}, None, "b"))


def test_step_digest_of_non_object_arguments_depends_on_their_text() -> None:
    came = [ToolResult("0", "look", error="no object")]
    marks = [digest([ToolCall("0", "look", {}, text)], came, ())[0] for text in ("[1]", "[2]")]
    assert marks[0] != marks[1]


def test_error_digest_of_step_is_set_only_if_all_tool_calls_failed() -> None:
    assert step(("f", {}, "no", None), ("g", {}, "no", None))[1] != ""
    assert step(("f", {}, "no", None), ("g", {}, None, 1))[1] == ""
    assert A[1] == ""


def test_calls_of_repeatable_tools_are_excluded_from_step_digest() -> None:
    assert step(("wait", {}, None, 1), repeatable=("wait",)) == NO_DIGEST
    alone = step(("look", {"at": 1}, None, "seen"), repeatable=("wait",))
    assert alone == A
    calls = [ToolCall("w", "wait"), ToolCall("0", "look", {"at": 1})]
    results = [ToolResult("w", "wait", "x"), ToolResult("0", "look", "seen")]
    assert digest(calls, results, ("wait",)) == A
