"""Tests of the XML fallback: if `__finish__` cannot be forced, acorn requests and parses the answer as XML."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from pydantic import BaseModel, Field, RootModel
from tests.behaviour.conftest import Call, Script
from tests.cases import each_case

from acorn import ModelError, ParseError, Run, Step, module, tool
from acorn.models import ModelRequest, RawCall
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling
from acorn.types import Message


class Sentiment(BaseModel):
    sentiment: str = Field(description="positive, negative, or neutral")
    confidence: float = Field(description="Confidence score 0-1", ge=0, le=1)


@tool
def search(query: str) -> str:
    """Search for information."""
    return f"about {query}"


class Classifier(module[Any, Sentiment]):
    """Classify the sentiment of the text."""

    initial_input = ["text"]


class Reader(Classifier):
    tools = [search]
    max_steps = 1


FORM = """\
You must provide your final answer now. Respond with your answer in the following XML structure:
<output>
  <sentiment description="positive, negative, or neutral"></sentiment>
  <confidence description="Confidence score 0-1"></confidence>
</output>

Fill in the values. Do not repeat the descriptions."""

ANSWER = """\
<output>
    <sentiment>positive</sentiment>
    <confidence>0.95</confidence>
</output>"""

RIGHT = Sentiment(sentiment="positive", confidence=0.95)
TOO_LATE = "Skipped: the final answer is due now, so this call was not executed."


def last(request: ModelRequest) -> Message:
    return request.messages[-1]


def forced(model: ScriptedModel) -> list[str | None]:
    return [request.forced_tool for request in model.requests]


def told(run: Run[Any]) -> list[str]:
    """Return the tool results of a history, in order."""
    return [message["content"] for message in run.history if message["role"] == "tool"]


def unchanged(model: ScriptedModel) -> bool:
    """Check that each request has the tools and messages of the previous one, and more messages after them."""
    pairs = zip(model.requests, model.requests[1:], strict=False)
    return all(
        later.tools == earlier.tools and later.messages[: len(earlier.messages)] == earlier.messages
        for earlier, later in pairs
    )


# At the end of a loop


def test_model_that_cannot_be_forced_receives_xml_form_after_last_step(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), ANSWER, forces=False)
    run = call.run(Reader(model=model), text="I love it")
    assert (run.output, run.stop_reason, run.steps, run.usage.requests) == (RIGHT, "forced", 1, 2)
    assert last(model.requests[1]) == {"role": "user", "content": FORM}
    assert forced(model) == [None, None]
    assert unchanged(model)
    assert run.history[-1] == {"role": "assistant", "content": ANSWER}


@pytest.mark.every_way
def test_forced_request_without_finish_call_is_followed_by_xml_form(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), "It is positive.", ANSWER)
    run = call.run(Reader(model=model, parse_retries=0), text="I love it")
    assert (run.output, run.stop_reason, run.steps) == (RIGHT, "forced", 1)
    assert forced(model) == [None, "__finish__", None]
    assert last(model.requests[2]) == {"role": "user", "content": FORM}
    assert unchanged(model)


def test_tool_called_instead_of_forced_finish_is_not_executed(call: Call, script: Script) -> None:
    seen: list[int] = []

    class Watcher(Reader):
        def on_step(self, step: Step) -> None:
            seen.append(step.counter)

    model = script(calling("search", query="a"), calling("search", query="b"), ANSWER)
    run = call.run(Watcher(model=model, parse_retries=0), text="I love it")
    assert (run.output, seen) == (RIGHT, [1])
    assert told(run) == ["about a", TOO_LATE]
    assert last(model.requests[2]) == {"role": "user", "content": FORM}


def test_empty_response_to_forced_request_is_followed_by_xml_form(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), "", ANSWER)
    assert call(Reader(model=model, parse_retries=0), text="I love it") == RIGHT


def test_xml_form_is_sent_once(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), "No.", "Still no.", ANSWER, forces=False)
    run = call.run(Reader(model=model), text="I love it")
    assert run.output == RIGHT
    assert [message["content"] for message in run.history].count(FORM) == 1


def test_xml_form_after_forced_request_does_not_count_against_parse_retries(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), "Positive.", "Positive!", "<output>")
    with pytest.raises(ParseError) as caught:
        call(Reader(model=model, parse_retries=1), text="I love it")
    assert caught.value.attempts == 2


# In a single turn


def test_text_response_of_model_that_cannot_be_forced_is_followed_by_xml_form(call: Call, script: Script) -> None:
    model = script("It is positive.", ANSWER, forces=False)
    run = call.run(Classifier(model=model, parse_retries=1), text="I love it")
    assert (run.output, run.stop_reason, run.steps) == (RIGHT, "finish", 0)
    assert last(model.requests[1]) == {"role": "user", "content": FORM}
    assert unchanged(model)


def test_forced_single_turn_request_without_finish_call_is_followed_by_xml_form(call: Call, script: Script) -> None:
    model = script("It is positive.", ANSWER)
    run = call.run(Classifier(model=model, parse_retries=1), text="I love it")
    assert run.output == RIGHT
    assert forced(model) == ["__finish__", None]
    assert last(model.requests[1]) == {"role": "user", "content": FORM}
    assert unchanged(model)


@each_case("forces", [True, False])
def test_xml_form_in_single_turn_run_counts_against_parse_retries(call: Call, script: Script, forces: bool) -> None:
    with pytest.raises(ParseError) as caught:
        call(Classifier(model=script("Positive.", forces=forces), parse_retries=0), text="I love it")
    assert (caught.value.attempts, caught.value.raw_output) == (1, "Positive.")
    with pytest.raises(ParseError) as caught:
        call(Classifier(model=script("Positive.", "Positive!", forces=forces), parse_retries=1), text="I love it")
    assert (caught.value.attempts, caught.value.raw_output) == (2, "Positive!")


def test_unknown_tool_called_instead_of_forced_finish_is_not_executed(call: Call, script: Script) -> None:
    run = call.run(Classifier(model=script(calling("respond", text="positive"), ANSWER)), text="I love it")
    assert run.output == RIGHT
    assert told(run) == [TOO_LATE]


def test_finish_call_of_model_that_cannot_be_forced_is_accepted_without_xml_form(call: Call, script: Script) -> None:
    model = script(finish(sentiment="positive", confidence="very"), finish(**RIGHT.model_dump()), forces=False)
    run = call.run(Classifier(model=model), text="I love it")
    assert run.output == RIGHT
    assert not any(message["content"] == FORM for message in run.history)


# Reading


@each_case(
    "reply",
    [
        "<output><sentiment>positive</sentiment><confidence>0.95</confidence></output>",
        f"Here is my answer:\n\n{ANSWER}\n\nI hope this helps!",
        f"```xml\n{ANSWER}\n```",
        f"Sure.\n\n```\n{ANSWER}\n```\nAnything else?",
        f'<?xml version="1.0"?>\n{ANSWER}',
        f"I will fill in <output>. First a draft:\n<output><sentiment>negative</sentiment></output>\nNow:\n{ANSWER}",
        '<output>\n  <sentiment description="positive, negative, or neutral">positive</sentiment>\n'
        '  <confidence description="Confidence score 0-1">0.95</confidence>\n</output>',
        "<output>\n<sentiment>positive</sentiment>\n<confidence> 0.95 </confidence>",
        "<output><confidence>0.95</confidence><sentiment>positive</sentiment></output>",
    ],
)
def test_xml_answer_between_prose_and_code_fences_is_parsed(call: Call, script: Script, reply: str) -> None:
    model = script(calling("search", query="a"), reply, forces=False)
    assert call(Reader(model=model), text="I love it") == RIGHT


def test_xml_answer_with_unescaped_characters_is_parsed(call: Call, script: Script) -> None:
    reply = "<output><sentiment>R&D says 1 < 2 &nbsp; fine</sentiment><confidence>1</confidence></output>"
    found = call(Reader(model=script(calling("search", query="a"), reply, forces=False)), text="?")
    assert found.sentiment.startswith("R&D says 1 < 2 ")


class Source(BaseModel):
    title: str = Field(description="As printed")
    year: int | None = None


class Report(BaseModel):
    summary: str
    sources: list[Source] = Field(description="Where it comes from")
    tags: list[str] = []
    best: Source | None = None


def test_xml_form_contains_nested_fields_and_one_list_item(call: Call, script: Script) -> None:
    class Reporter(module[Any, Report]):
        xml_output_root = "report"
        xml_description_format = "comment"
        xml_include_descriptions = False

    reply = textwrap.dedent(
        """\
        <report>
          <summary>Two lines,
        kept as they are</summary>
          <sources>
            <item><title>A</title><year>1991</year></item>
            <source><title>B &amp; C</title></source>
          </sources>
          <tags><item>x</item><item>y</item></tags>
        </report>"""
    )
    model = script("Hm.", reply, forces=False)
    assert call(Reporter(model=model)) == Report(
        summary="Two lines,\nkept as they are",
        sources=[Source(title="A", year=1991), Source(title="B & C")],
        tags=["x", "y"],
    )
    assert last(model.requests[1])["content"] == textwrap.dedent(
        """\
        You must provide your final answer now. Respond with your answer in the following XML structure:
        <report>
          <summary></summary>
          <sources description="Where it comes from">
            <item>
              <title description="As printed"></title>
              <year></year>
            </item>
          </sources>
          <tags>
            <item></item>
          </tags>
          <best>
            <title description="As printed"></title>
            <year></year>
          </best>
        </report>

        Fill in the values. Do not repeat the descriptions."""
    )


class Tags(RootModel[list[str]]):
    pass


@each_case(
    ("kind", "reply", "wanted"),
    [
        (str, "<output><result>Paris</result></output>", "Paris"),
        (int, "<output><result> 7 </result></output>", 7),
        (list[str], "<output><result><item>a</item><item>b</item></result></output>", ["a", "b"]),
        (Tags, "<output><result><item>a</item></result></output>", Tags(["a"])),
        ([], "<output></output>", None),
        ([], "Done: <output />", None),
    ],
)
def test_plain_type_outputs_are_parsed_from_xml(call: Call, script: Script, kind: Any, reply: str, wanted: Any) -> None:
    class Plain(module):
        final_output = kind

    assert call(Plain(model=script("Hm.", reply, forces=False))) == wanted


class Renamed(BaseModel):
    how_sure: float = Field(alias="howSure")
    why: str = Field(alias="reason")


@each_case(
    "reply",
    [
        "<output><how_sure>0.5</how_sure><why>so</why></output>",
        "<output><howSure>0.5</howSure><reason>so</reason></output>",
    ],
)
def test_xml_form_contains_field_names_and_answer_may_use_field_names_or_aliases(
    call: Call, script: Script, reply: str
) -> None:
    class Agent(module[Any, Renamed]):
        pass

    model = script("Hm.", "<output><how_sure>0.5</how_sure></output>", reply, forces=False)
    assert call(Agent(model=model)) == Renamed(howSure=0.5, reason="so")
    assert "<how_sure></how_sure>\n  <why></why>" in last(model.requests[1])["content"]
    assert (
        '<field name="why">\n      <expected>string</expected>\n      <received>missing</received>'
        in last(model.requests[2])["content"]
    )


def test_xml_answer_of_schema_with_swapped_aliases_is_parsed_by_field_name(call: Call, script: Script) -> None:
    class Swapped(BaseModel):
        a: str = Field(alias="b")
        b: str = Field(alias="a")

    class Agent(module[Any, Swapped]):
        pass

    found = call(Agent(model=script("Hm.", "<output><a>1</a><b>2</b></output>", forces=False)))
    assert (found.a, found.b) == ("1", "2")


# Invalid answers

WRONG_CONFIDENCE = """\
<error type="validation">
  <message>Output validation failed</message>
  <details>
    <field name="confidence">
      <expected>float between 0 and 1</expected>
      <received>very confident</received>
    </field>
  </details>
  <instruction>Please provide the output again in the correct format.</instruction>
</error>"""


@pytest.mark.every_way
@each_case("forces", [True, False])
def test_invalid_xml_answer_is_corrected_by_user_message(call: Call, script: Script, forces: bool) -> None:
    wrong = ANSWER.replace("0.95", "very confident")
    silence = ["Hm."] if forces else []
    model = script(calling("search", query="a"), *silence, wrong, ANSWER, forces=forces)
    run = call.run(Reader(model=model, parse_retries=1), text="I love it")
    assert (run.output, run.steps) == (RIGHT, 1)
    assert last(model.requests[-1]) == {"role": "user", "content": WRONG_CONFIDENCE}
    assert unchanged(model)


def test_response_without_xml_element_is_corrected(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), "It is positive.", ANSWER, forces=False)
    call(Reader(model=model), text="I love it")
    assert last(model.requests[2])["role"] == "user"
    assert last(model.requests[2])["content"].startswith('<error type="validation">\n  <message>The response has no')


@each_case("reply", ["", "<!DOCTYPE x [<!ENTITY a 'b'>]>" + ANSWER, "<output>" + "<a>" * 100])
def test_xml_response_that_is_empty_or_unsafe_or_malformed_is_corrected(call: Call, script: Script, reply: str) -> None:
    model = script(calling("search", query="a"), reply, ANSWER, forces=False)
    assert call(Reader(model=model, parse_retries=1), text="I love it") == RIGHT
    assert last(model.requests[2])["content"].startswith('<error type="validation">')


def test_xml_corrections_beyond_parse_retries_raise_parse_error(call: Call, script: Script) -> None:
    wrong = ANSWER.replace("0.95", "very confident")
    model = script(calling("search", query="a"), *[wrong] * 3, forces=False)
    with pytest.raises(ParseError, match="in 3 attempts: `confidence` must be a float between 0 and 1") as caught:
        call(Reader(model=model), text="I love it")
    error = caught.value
    assert (error.raw_output, error.attempts) == (wrong, 3)
    assert error.errors == [{"path": "confidence", "expected": "float between 0 and 1", "received": "very confident"}]
    assert error.run.history[-1] == {"role": "assistant", "content": wrong}


def test_corrections_before_and_after_xml_form_are_counted_together(call: Call, script: Script) -> None:
    model = script(finish(sentiment="positive"), calling("search", query="a"), "Positive.", forces=False)
    with pytest.raises(ParseError) as caught:
        call(Reader(model=model, parse_retries=1), text="I love it")
    assert caught.value.attempts == 2


@each_case("reply", ["<output><sentiment>posit", "<output>\n  <sentiment>positive</sentiment>\n  <conf", "Hm"])
def test_xml_answer_cut_off_at_token_limit_is_corrected(call: Call, script: Script, reply: str) -> None:
    class Labeller(module):
        final_output = [("sentiment", str), ("confidence", float, 1.0)]
        max_tokens = 9

    model = script("Hm.", Reply(reply, stop_reason="length"), ANSWER, forces=False)
    assert call(Labeller(model=model)).sentiment == "positive"
    assert "<message>The response was cut off at the limit of 9 tokens" in last(model.requests[2])["content"]


def test_complete_xml_answer_with_stop_reason_length_is_accepted(call: Call, script: Script) -> None:
    reply = Reply(ANSWER + "\nIn conclu", stop_reason="length")
    assert call(Reader(model=script(calling("search", query="a"), reply, forces=False)), text="?") == RIGHT


# Calls in the fallback


def test_finish_call_after_xml_form_is_accepted(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), finish(**RIGHT.model_dump()), forces=False)
    run = call.run(Reader(model=model), text="I love it")
    assert (run.output, run.stop_reason) == (RIGHT, "forced")
    assert last(model.requests[1])["content"] == FORM
    assert told(run) == ["about a", "Finished."]


def test_invalid_finish_call_after_xml_form_gets_tool_result_with_error(call: Call, script: Script) -> None:
    wrong = finish(sentiment="positive", confidence="very confident")
    model = script(calling("search", query="a"), wrong, ANSWER, forces=False)
    run = call.run(Reader(model=model), text="I love it")
    assert run.output == RIGHT
    assert told(run) == ["about a", WRONG_CONFIDENCE]


def test_tool_calls_in_same_response_as_xml_answer_are_not_executed(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), Reply(ANSWER) & calling("search", query="b"), forces=False)
    run = call.run(Reader(model=model), text="I love it")
    assert (run.output, run.steps) == (RIGHT, 1)
    assert told(run) == ["about a", TOO_LATE]


def test_tool_call_instead_of_xml_answer_is_corrected(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), calling("search", query="b"), ANSWER, forces=False)
    run = call.run(Reader(model=model, parse_retries=1), text="I love it")
    assert (run.output, run.steps) == (RIGHT, 1)
    assert told(run) == ["about a", TOO_LATE]


def test_finish_arguments_that_are_not_json_after_xml_form_are_corrected(call: Call, script: Script) -> None:
    broken = Reply(calls=[RawCall(None, "__finish__", "{not json")])
    model = script(calling("search", query="a"), broken, ANSWER, forces=False)
    assert call(Reader(model=model), text="I love it") == RIGHT


def test_refusal_after_xml_form_raises_model_error(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), Reply(refusal="I would rather not."), forces=False)
    with pytest.raises(ModelError, match="I would rather not"):
        call(Reader(model=model), text="I love it")


@pytest.mark.every_way
def test_on_finish_is_called_with_output_from_xml(call: Call, script: Script) -> None:
    class Doubter(Reader):
        def on_finish(self, output: Sentiment) -> None:
            if output.confidence > 0.9:
                raise ValueError("nobody is so sure")

    model = script(calling("search", query="a"), ANSWER, ANSWER.replace("0.95", "0.5"), forces=False)
    run = call.run(Doubter(model=model), text="I love it")
    assert run.output == Sentiment(sentiment="positive", confidence=0.5)
    assert last(model.requests[2])["role"] == "user"
    assert "<message>nobody is so sure</message>" in last(model.requests[2])["content"]


def test_parse_error_contains_raw_xml_of_output_rejected_by_on_finish(call: Call, script: Script) -> None:
    class Doubter(Reader):
        def on_finish(self, output: Sentiment) -> None:
            raise ValueError("never")

    with pytest.raises(ParseError, match="`output` is invalid: never") as caught:
        call(Doubter(model=script(calling("search", query="a"), ANSWER, forces=False), parse_retries=0), text="?")
    assert caught.value.raw_output == ANSWER
