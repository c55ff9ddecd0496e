"""Tests of error causes: an error has its origin as `__cause__`, and the model receives the reason."""

from __future__ import annotations

from traceback import extract_tb
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from tests.behaviour.conftest import Call, Script

from acorn import ParseError, module, tool
from acorn.models import RawCall
from acorn.testing import Reply, finish


class Answer(BaseModel):
    number: int


class Asker(module[Any, Answer]):
    """Answer."""

    parse_retries = 1


@tool
def look() -> str:
    """Look around."""
    return "seen"


WRONG = finish(number="many")
NO_JSON = Reply(calls=[RawCall(None, "__finish__", '{"number": ')])
CUT = Reply(calls=[RawCall(None, "__finish__", '{"number": ')], stop_reason="length")


@pytest.mark.parametrize("wrong", [WRONG, NO_JSON, CUT], ids=["wrong", "no JSON", "cut off"])
def test_parse_error_cause_is_pydantic_error_of_last_invalid_output(call: Call, script: Script, wrong: Reply) -> None:
    with pytest.raises(ParseError) as caught:
        call(Asker(model=script(finish(number=[]), wrong)))
    cause = caught.value.__cause__
    assert isinstance(cause, ValidationError)
    assert "list" not in str(cause)


def test_parse_error_cause_for_invalid_xml_answer_is_pydantic_error(call: Call, script: Script) -> None:
    model = script("no", "<output><number>many</number></output>", forces=False)
    with pytest.raises(ParseError) as caught:
        call(Asker(model=model))
    assert isinstance(caught.value.__cause__, ValidationError)


def test_parse_error_cause_for_response_without_xml_is_another_parse_error(call: Call, script: Script) -> None:
    with pytest.raises(ParseError) as caught:
        call(Asker(model=script("no", "still no", forces=False)))
    assert isinstance(caught.value.__cause__, ParseError)


def test_parse_error_cause_is_value_error_that_on_finish_raised(call: Call, script: Script) -> None:
    class Careless(Asker):
        def on_finish(self, output: Answer) -> Any:
            return int("twelve")

    with pytest.raises(ParseError) as caught:
        call(Careless(model=script(finish(number=1), finish(number=2))))
    cause = caught.value.__cause__
    assert type(cause) is ValueError
    assert "invalid literal for int" in str(cause)
    assert "on_finish" in [frame.name for frame in extract_tb(cause.__traceback__)]


def test_text_response_cut_off_at_token_limit_gets_reminder_that_says_so(call: Call, script: Script) -> None:
    model = script(Reply("Let me think this", stop_reason="length"), "Done?", finish(number=1))
    call(Asker(model=model, tools=[look], max_steps=5))
    cut, whole = (request.messages[-1]["content"] for request in model.requests[1:])
    assert "cut off at the token limit" in cut
    assert "cut off" not in whole
    for reminder in (cut, whole):
        assert "call one of your tools, or call `__finish__` with your answer." in reminder
