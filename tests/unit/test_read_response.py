"""Tests of parsing a response: its calls, a refusal, and the failures after which a run is resumable."""

from __future__ import annotations

from tests.cases import case

from acorn import LimitError, ModelError, ParseError
from acorn._history.transcript import read_calls
from acorn._machine.finish import refusal_error
from acorn._machine.machine import can_resume_after
from acorn.models import ModelResponse
from acorn.models.port import RawCall
from acorn.testing import ScriptedModel
from acorn.types import ToolCall


def test_tool_arguments_that_are_not_json_object_become_empty_dict() -> None:
    for text in ["[1]", "1", '"a"', "null", "{", '{"a": "\\ud800"}']:
        with case(text):
            assert read_calls([RawCall("a", "f", text)], "1") == [ToolCall("a", "f", {}, text)]


def test_tool_calls_without_unique_ids_receive_unique_ids() -> None:
    assert read_calls([], "1") == []
    assert read_calls([RawCall("a", "f", "")], "1") == [ToolCall("a", "f", {}, "{}")]
    (nameless,) = read_calls([RawCall("", "f", '{"x": 1}')], "1")
    assert nameless.id
    assert nameless.arguments == {"x": 1}
    twins = read_calls([RawCall("a", "f", "{}"), RawCall("a", "g", "{}"), RawCall(None, "h", "{}")], "1")
    assert [call.name for call in twins] == ["f", "g", "h"]
    assert len({call.id for call in twins} - {"", "None"}) == 3


def test_refusal_error_contains_refusal_text() -> None:
    model = ScriptedModel([], name="m")
    assert "`m` refused to answer: I may not." in str(refusal_error(ModelResponse("x", refusal="I may not."), model))
    assert "refused to answer: x" in str(refusal_error(ModelResponse("x", refusal=""), model))
    filtered = str(refusal_error(ModelResponse("So far", stop_reason="content_filter"), model))
    assert "`m` stopped at its content filter: So far" in filtered
    assert "(no text)" in str(refusal_error(ModelResponse("", stop_reason="content_filter"), model))
    long = str(refusal_error(ModelResponse("", refusal="a" * 600), model))
    assert "a" * 500 in long
    assert "a" * 501 not in long


def test_run_can_be_resumed_only_after_error_with_external_cause() -> None:
    for error, expected in [
        (ModelError("x", retryable=True), True),
        (ModelError("x", retryable=False), False),
        (LimitError("x"), True),
        (KeyboardInterrupt(), True),
        (SystemExit(), True),
        (ParseError("x"), False),
        (ValueError("x"), False),
    ]:
        with case(error):
            assert can_resume_after(error) is expected
