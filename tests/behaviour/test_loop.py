"""Tests of the agent loop through its public interface: requests, executed tools, results, and the end of a run."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel
from tests.behaviour.conftest import Call, Script
from tests.behaviour.schemas import Question
from tests.cases import each_case
from typing_extensions import TypedDict

from acorn import ModelError, ParseError, Run, Step, Unfinished, Usage, module, tool
from acorn.models import ModelRequest, RawCall
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calling


class Answer(BaseModel):
    answer: str
    confidence: float = Field(default=1.0, ge=0, le=1)


@tool
def search(query: str) -> list[str]:
    """Search for information."""
    return [f"about {query}"]


class Asker(module[Question, Answer]):
    """Answer the question."""


class Searcher(Asker):
    """Look it up, then answer."""

    tools = [search]
    max_steps = 5


class Picky(Asker):
    """One call, with a tool available."""

    tools = [search]


RIGHT = Answer(answer="Paris", confidence=0.9)
SURE = {"answer": "Paris", "confidence": "very confident"}

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

NOT_CALLED = """\
<error type="validation">
  <message>The response did not call `__finish__` with an answer.</message>
  <instruction>Please provide the output again in the correct format.</instruction>
</error>"""

REMINDER = "Please continue: call one of your tools, or call `__finish__` with your answer."
SKIPPED = "Skipped: `__finish__` was called in the same response, so this call was not executed."


def raw(name: str, arguments: str, **reply: Any) -> Reply:
    """Return a call whose arguments are sent unchanged."""
    return Reply(calls=[RawCall(None, name, arguments)], **reply)


def names(request: ModelRequest) -> list[str]:
    return [entry["function"]["name"] for entry in request.tools]


def last(request: ModelRequest) -> dict[str, Any]:
    """Return the last message of a request, without its call id."""
    return {key: value for key, value in request.messages[-1].items() if key != "tool_call_id"}


def told(run: Run[Any]) -> list[str]:
    """Return the tool results of a history, in order."""
    return [message["content"] for message in run.history if message["role"] == "tool"]


def forced(model: ScriptedModel) -> list[str | None]:
    return [request.forced_tool for request in model.requests]


# The example of the seeds, with a scripted model, a safe sum, and without streaming

COMPLETE_MODULE = '''
from acorn import module, tool
from pydantic import BaseModel, Field

@tool
def search(query: str) -> list[str]:
    """Search for information."""
    return ["result 1", "result 2"]

@tool
def calculate(expression: str) -> float:
    """Evaluate a math expression."""
    return sum(float(term) for term in expression.split("+"))

class QuestionInput(BaseModel):
    question: str

class AnswerOutput(BaseModel):
    answer: str
    confidence: float

class ResearchAgent(module):
    model = scripted
    temperature = 0.7
    max_tokens = 4096
    max_steps = 15  # Enable agentic loop (default None = single turn)
    parse_retries = 2

    system_prompt = """
    You are a research assistant. Use tools to find information,
    then call __finish__ with your answer.
    """

    initial_input = QuestionInput
    final_output = AnswerOutput
    tools = [search, calculate]

    def on_step(self, step):
        print(f"Step {step.counter}: {len(step.tool_calls)} tool calls")
        return step
'''

USAGE = """
agent = ResearchAgent()
result = agent(question="What is 2+2 and what year was Python created?")
print(result.answer)       # "4, and Python was created in 1991"
print(result.confidence)   # 0.95
"""

EXAMPLE_REPLIES = (
    Reply("Let me look that up.") & calling("search", query="python creation") & calling("calculate", expression="2+2"),
    finish(answer="4, and Python was created in 1991", confidence=0.95),
)


def example(model: ScriptedModel, text: str = COMPLETE_MODULE) -> Any:
    space = ModuleType("example")
    vars(space)["scripted"] = model
    exec(text, vars(space))
    return space


@pytest.mark.every_way
def test_specification_example_of_complete_module_sends_documented_messages(
    call: Call, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    model = script(*EXAMPLE_REPLIES)
    agent = example(model).ResearchAgent()
    result = call(agent, question="What is 2+2 and what year was Python created?")
    assert type(result).__name__ == "AnswerOutput"
    assert (result.answer, result.confidence) == ("4, and Python was created in 1991", 0.95)
    assert capsys.readouterr().out == "Step 1: 2 tool calls\n"
    assert [names(request) for request in model.requests] == [["search", "calculate", "__finish__"]] * 2
    assert [(request.temperature, request.max_tokens) for request in model.requests] == [(0.7, 4096)] * 2
    assert forced(model) == [None, None]
    assert model.requests[1].messages == [
        {
            "role": "system",
            "content": "You are a research assistant. Use tools to find information,\n"
            "then call __finish__ with your answer.",
        },
        {
            "role": "user",
            "content": "<input>\n  <question>What is 2+2 and what year was Python created?</question>\n</input>",
        },
        {
            "role": "assistant",
            "content": "Let me look that up.",
            "tool_calls": [
                {
                    "id": "call_1_0",
                    "type": "function",
                    "function": {"name": "search", "arguments": '{"query":"python creation"}'},
                },
                {
                    "id": "call_1_1",
                    "type": "function",
                    "function": {"name": "calculate", "arguments": '{"expression":"2+2"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "call_1_0", "content": '["result 1","result 2"]'},
        {"role": "tool", "tool_call_id": "call_1_1", "content": "4.0"},
    ]


def test_specification_example_of_usage_prints_documented_result(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    example(script(*EXAMPLE_REPLIES), COMPLETE_MODULE + USAGE)
    assert capsys.readouterr().out == "Step 1: 2 tool calls\n4, and Python was created in 1991\n0.95\n"


def test_specification_example_of_sentiment_classifier_returns_output(call: Call, script: Script) -> None:
    space = example(
        script(finish(sentiment="positive", confidence=0.95)),
        textwrap.dedent(
            '''
            from acorn import module
            from pydantic import BaseModel, Field

            class TextInput(BaseModel):
                text: str

            class SentimentOutput(BaseModel):
                sentiment: str = Field(description="positive, negative, or neutral")
                confidence: float = Field(description="Confidence score 0-1")

            class SentimentClassifier(module):
                """Classify the sentiment of the given text."""

                model = scripted
                # max_steps = None is the default - single turn

                initial_input = TextInput
                final_output = SentimentOutput
            '''
        ),
    )
    result = call(space.SentimentClassifier(), text="I love this product!")
    assert (result.sentiment, result.confidence) == ("positive", 0.95)


def test_specification_example_of_normal_termination_returns_output(call: Call, script: Script) -> None:
    class AnswerOutput(BaseModel):
        answer: str
        confidence: float
        sources: list[str]

    class Agent(module[Any, AnswerOutput]):
        pass

    given = {"answer": "Paris", "confidence": 0.95, "sources": ["wiki"]}
    assert call(Agent(model=script(finish(**given)))) == AnswerOutput(answer="Paris", confidence=0.95, sources=["wiki"])


def test_specification_example_of_failing_tool_sends_tool_error_to_model(call: Call, script: Script) -> None:
    @tool
    def risky_operation(x: int) -> str:
        if x < 0:
            raise ValueError("x must be positive")
        return "success"

    class Agent(Asker):
        tools = [risky_operation]
        max_steps = 3

    model = script(calling("risky_operation", x=-1), calling("risky_operation", x=1), finish(answer="done"))
    call(Agent(model=model), question="?")
    assert last(model.requests[1]) == {"role": "tool", "content": "Tool error: ValueError: x must be positive"}
    assert last(model.requests[2]) == {"role": "tool", "content": "success"}


# First messages


def test_first_messages_of_run_are_prompt_and_input_as_xml(call: Call, script: Script) -> None:
    model = script(finish(answer="Paris"))
    assert call(Asker(model=model), question="What is <b>?") == Answer(answer="Paris")
    assert model.requests[0].messages == [
        {"role": "system", "content": "Answer the question."},
        {"role": "user", "content": "<input>\n  <question>What is &lt;b&gt;?</question>\n</input>"},
    ]


def test_first_message_of_run_without_prompt_is_input(call: Call, script: Script) -> None:
    class Silent(module[Question, Answer]):
        pass

    model = script(finish(answer="Paris"))
    call(Silent(model=model), question="?")
    assert [message["role"] for message in model.requests[0].messages] == ["user"]


def test_run_of_agent_without_input_sends_empty_xml_element(call: Call, script: Script) -> None:
    class Bare(module[Any, Answer]):
        xml_input_root = "task"

    model = script(finish(answer="Paris"))
    call(Bare(model=model))
    assert model.requests[0].messages == [{"role": "user", "content": "<task />"}]


# Tools and `__finish__` in every request


def test_each_request_contains_tools_and_finish_tool(call: Call, script: Script) -> None:
    model = script(
        calling("search", query="a"),
        "Let me think.",
        finish(**SURE),
        calling("search", query="b"),
        calling("search", query="c"),
        calling("search", query="d"),
        finish(answer="Paris"),
    )
    call(Searcher(model=model), question="?")
    assert [names(request) for request in model.requests] == [["search", "__finish__"]] * 7
    assert all(request.tools == model.requests[0].tools for request in model.requests)


def test_finish_tool_has_output_fields_as_parameters(call: Call, script: Script) -> None:
    model = script(finish(answer="Paris"))
    call(Asker(model=model), question="?")
    (entry,) = model.requests[0].tools
    assert entry["type"] == "function"
    assert entry["function"]["name"] == "__finish__"
    assert entry["function"]["description"]
    assert entry["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "answer": {"type": "string"},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1, "default": 1.0},
        },
        "required": ["answer"],
    }


def test_request_contains_declared_temperature_and_max_tokens(call: Call, script: Script) -> None:
    model = script(finish(answer="Paris"), finish(answer="Paris"))
    call(Asker(model=model), question="?")
    call(Asker(model=model, temperature=0.1, max_tokens=99), question="?")
    default, declared = model.requests
    assert (default.temperature, default.max_tokens) == (0.7, 4096)
    assert not default.declared & {"temperature", "max_tokens"}
    assert (declared.temperature, declared.max_tokens) == (0.1, 99)
    assert declared.declared >= {"temperature", "max_tokens"}


# Forcing in a single turn


@pytest.mark.every_way
def test_single_turn_run_without_tools_forces_finish_tool(call: Call, script: Script) -> None:
    model = script(finish(**SURE), finish(answer="Paris", confidence=0.9))
    assert call(Asker(model=model), question="?") == RIGHT
    assert forced(model) == ["__finish__", "__finish__"]
    body = json.loads(model.requests[0].body("some-model"))
    assert body["tool_choice"] == {"type": "function", "function": {"name": "__finish__"}}


def test_single_turn_run_with_tools_does_not_force_finish_tool(call: Call, script: Script) -> None:
    model = script(finish(**SURE), "Paris.", finish(answer="Paris"))
    call(Picky(model=model), question="?")
    assert forced(model) == [None, None, None]
    assert "tool_choice" not in json.loads(model.requests[0].body("some-model"))


def test_multi_step_run_without_tools_does_not_force_finish_tool(call: Call, script: Script) -> None:
    class Thinker(Asker):
        max_steps = 2

    model = script("Hm.", finish(answer="Paris"))
    call(Thinker(model=model), question="?")
    assert forced(model) == [None, None]


def test_request_to_model_that_cannot_be_forced_has_no_forced_tool(call: Call, script: Script) -> None:
    model = script(finish(answer="Paris"), forces=False)
    assert call(Asker(model=model), question="?") == Answer(answer="Paris")
    assert forced(model) == [None]


class ThinkingModel(ScriptedModel):
    """A model that was asked to think."""

    thinks = True


def test_single_turn_run_does_not_force_thinking_model(call: Call) -> None:
    with ThinkingModel(["Hm.", finish(answer="Paris")]) as model:
        assert call(Asker(model=model), question="?") == Answer(answer="Paris")
    assert forced(model) == [None, None]


def test_thinking_model_at_max_steps_is_forced_to_finish(call: Call) -> None:
    with ThinkingModel([calling("search", query="a"), finish(answer="Paris", confidence=0.9)]) as model:
        assert call(Searcher(model=model, max_steps=1), question="?") == RIGHT
    assert forced(model) == [None, "__finish__"]


# The end of the loop


@pytest.mark.every_way
@each_case("steps", [1, 2, 7])
def test_multi_step_run_forces_finish_once_after_max_steps(call: Call, script: Script, steps: int) -> None:
    replies = [calling("search", query=str(at)) for at in range(steps)]
    model = script(*replies, finish(answer="Paris", confidence=0.9))
    run = call.run(Searcher(model=model, max_steps=steps), question="?")
    assert run.output == RIGHT
    assert (run.steps, run.stop_reason, run.usage.requests) == (steps, "forced", steps + 1)
    assert forced(model) == [None] * steps + ["__finish__"]


@pytest.mark.every_way
def test_forced_request_has_messages_tools_and_settings_of_earlier_requests(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), calling("search", query="b"), finish(answer="Paris"))
    call(Searcher(model=model, max_steps=2), question="?")
    for earlier, later in zip(model.requests, model.requests[1:], strict=False):
        assert later.messages[: len(earlier.messages)] == earlier.messages
        assert later.tools == earlier.tools
        assert (later.temperature, later.max_tokens) == (earlier.temperature, earlier.max_tokens)
    before, after = model.requests[1:]
    assert [message["role"] for message in after.messages[len(before.messages) :]] == ["assistant", "tool"]


def test_finish_in_last_step_sends_no_forced_request(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), finish(answer="Paris"))
    run = call.run(Searcher(model=model, max_steps=2), question="?")
    assert (run.steps, run.stop_reason, forced(model)) == (1, "finish", [None, None])


@pytest.mark.every_way
def test_invalid_output_of_forced_request_is_corrected(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), finish(**SURE), finish(answer="Paris", confidence=0.9))
    run = call.run(Searcher(model=model, max_steps=1), question="?")
    assert (run.output, run.steps, run.stop_reason) == (RIGHT, 1, "forced")
    assert forced(model) == [None, "__finish__", "__finish__"]
    assert last(model.requests[2]) == {"role": "tool", "content": WRONG_CONFIDENCE}


def test_forced_output_that_stays_invalid_raises_parse_error(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), finish(**SURE), finish(**SURE))
    with pytest.raises(ParseError) as caught:
        call(Searcher(model=model, max_steps=1, parse_retries=1), question="?")
    assert caught.value.attempts == 2


# Finishing


@pytest.mark.every_way
def test_valid_finish_ends_run_and_is_answered_in_history(call: Call, script: Script) -> None:
    run = call.run(Searcher(model=script(finish(answer="Paris", confidence=0.9))), question="?")
    assert (run.output, run.stop_reason, run.steps, run.error) == (RIGHT, "finish", 0, None)
    assert run.history[-2:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_1_0",
                    "type": "function",
                    "function": {"name": "__finish__", "arguments": '{"answer":"Paris","confidence":0.9}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1_0", "content": "Finished."},
    ]


@pytest.mark.every_way
def test_first_valid_finish_call_of_response_sets_output_and_others_are_skipped(call: Call, script: Script) -> None:
    reply = finish(**SURE) & finish(answer="Paris", confidence=0.9) & finish(answer="Lyon") & finish(confidence=2)
    run = call.run(Searcher(model=script(reply)), question="?")
    assert (run.output, run.usage.requests) == (RIGHT, 1)
    assert told(run) == [WRONG_CONFIDENCE, "Finished.", SKIPPED, SKIPPED]


@pytest.mark.every_way
def test_each_finish_call_of_response_gets_tool_result_if_on_finish_rejects_one(call: Call, script: Script) -> None:
    class Strict(Searcher):
        def on_finish(self, output: Answer) -> None:
            if output.answer == "Lyon":
                raise ValueError("not Lyon")

    model = script(finish(**SURE) & finish(answer="Lyon"), finish(**SURE) & finish(answer="Paris", confidence=0.9))
    run = call.run(Strict(model=model), question="?")
    first, second, third, fourth = told(run)
    assert (first, third, fourth) == (WRONG_CONFIDENCE, WRONG_CONFIDENCE, "Finished.")
    assert "not Lyon" in second
    assert run.output == RIGHT


def test_several_invalid_finish_calls_count_as_one_retry(call: Call, script: Script) -> None:
    model = script(finish(**SURE) & finish(confidence=0.5), finish(answer="Paris"))
    run = call.run(Searcher(model=model, parse_retries=1), question="?")
    first, second, _ = told(run)
    assert first == WRONG_CONFIDENCE
    assert '<field name="answer">\n      <expected>string</expected>\n      <received>missing</received>' in second


@each_case("max_steps", [None, 3])
def test_tool_calls_in_same_response_as_valid_finish_call_are_not_executed(
    call: Call, script: Script, max_steps: int | None
) -> None:
    called: list[str] = []

    @tool
    def delete(name: str) -> str:
        called.append(name)
        return "deleted"

    class Deleter(Asker):
        tools = [delete]

    reply = calling("delete", name="a") & finish(answer="Paris") & calling("delete", name="b") & calling("unknown")
    run = call.run(Deleter(model=script(reply), max_steps=max_steps), question="?")
    assert called == []
    assert (run.output, run.steps) == (Answer(answer="Paris"), 0)
    assert told(run) == [SKIPPED, "Finished.", SKIPPED, SKIPPED]


@pytest.mark.every_way
@each_case("max_steps", [None, 3])
def test_tool_calls_in_same_response_as_invalid_finish_call_are_not_executed(
    call: Call, script: Script, max_steps: int | None
) -> None:
    called: list[str] = []
    seen: list[int] = []

    @tool
    def delete(name: str) -> str:
        called.append(name)
        return "deleted"

    class Deleter(Asker):
        tools = [delete]

        def on_step(self, step: Step) -> None:
            seen.append(step.counter)

    model = script(calling("delete", name="a") & finish(**SURE) & calling("delete", name="b"), finish(answer="Paris"))
    run = call.run(Deleter(model=model, max_steps=max_steps), question="?")
    assert (called, seen, run.steps) == ([], [], 0)
    assert told(run) == [SKIPPED, WRONG_CONFIDENCE, SKIPPED, "Finished."]


# Corrections


@pytest.mark.every_way
@each_case("agent", [Asker, Picky, Searcher])
def test_invalid_output_error_is_sent_as_tool_result(call: Call, script: Script, agent: type[Asker]) -> None:
    model = script(finish(**SURE), finish(answer="Paris", confidence=0.9))
    run = call.run(agent(model=model), question="?")
    assert (run.output, run.steps) == (RIGHT, 0)
    before, after = model.requests
    assert after.messages[: len(before.messages)] == before.messages
    made, answered = after.messages[len(before.messages) :]
    assert made["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert answered["content"] == WRONG_CONFIDENCE


def test_validation_error_text_for_model_lists_each_invalid_field_once(call: Call, script: Script) -> None:
    class Source(BaseModel):
        title: str = Field(max_length=5)

    class Report(BaseModel):
        sources: list[Source]
        count: int = Field(ge=1)
        kind: Literal["long", "short"]

    class Reporter(module[Any, Report]):
        pass

    right = {"sources": [{"title": "a"}], "count": 1, "kind": "long"}
    model = script(finish(sources=[{"title": "a"}, {"title": "<too long>"}], count=0, kind="&"), finish(**right))
    call(Reporter(model=model))
    assert last(model.requests[1])["content"] == textwrap.dedent(
        """\
        <error type="validation">
          <message>Output validation failed</message>
          <details>
            <field name="sources.1.title">
              <expected>string of at most 5 characters</expected>
              <received>&lt;too long&gt;</received>
            </field>
            <field name="count">
              <expected>integer of at least 1</expected>
              <received>0</received>
            </field>
            <field name="kind">
              <expected>one of "long", "short"</expected>
              <received>&amp;</received>
            </field>
          </details>
          <instruction>Please provide the output again in the correct format.</instruction>
        </error>"""
    )


@each_case(
    ("arguments", "expected", "received"),
    [
        ('{"answer": ', "valid JSON", '{"answer":'),
        ("not json", "valid JSON", "not json"),
        ('["Paris"]', "object with answer, confidence", '["Paris"]'),
        ("null", "object with answer, confidence", "null"),
        ('"Paris"', "object with answer, confidence", "Paris"),
    ],
)
def test_finish_arguments_that_are_not_json_object_are_corrected(
    call: Call, script: Script, arguments: str, expected: str, received: str
) -> None:
    model = script(raw("__finish__", arguments), finish(answer="Paris"))
    run = call.run(Asker(model=model), question="?")
    assert run.output == Answer(answer="Paris")
    document = told(run)[0]
    assert '<field name="output">' in document
    assert f"<expected>{expected}" in document
    assert f"<received>{received}" in document.replace("&quot;", '"')
    assert run.history[2]["tool_calls"][0]["function"]["arguments"] == arguments


@each_case("arguments", ["", "{}"])
def test_empty_finish_arguments_are_parsed_as_empty_object(call: Call, script: Script, arguments: str) -> None:
    model = script(raw("__finish__", arguments), finish(answer="Paris"))
    run = call.run(Asker(model=model), question="?")
    assert "<received>missing</received>" in told(run)[0]


def test_lone_surrogate_in_output_is_corrected(call: Call, script: Script) -> None:
    model = script(raw("__finish__", '{"answer": "\ud83d"}'), finish(answer="Paris"))
    assert call(Asker(model=model), question="?") == Answer(answer="Paris")


def test_output_values_are_converted_to_declared_types(call: Call, script: Script) -> None:
    assert call(Asker(model=script(finish(answer="Paris", confidence="0.9"))), question="?") == RIGHT


def test_output_validator_message_is_sent_unchanged(call: Call, script: Script) -> None:
    from pydantic import field_validator

    class Polite(BaseModel):
        answer: str

        @field_validator("answer")
        @classmethod
        def _ends(cls, value: str) -> str:
            if not value.endswith("please"):
                raise ValueError("must end with 'please'")
            return value

    class Agent(module[Any, Polite]):
        parse_retries = 0

    with pytest.raises(ParseError, match="`answer` is invalid: must end with 'please' \\(got 'Paris'\\)") as caught:
        call(Agent(model=script(finish(answer="Paris"))))
    assert caught.value.errors == [{"path": "answer", "expected": "must end with 'please'", "received": "Paris"}]


@pytest.mark.every_way
def test_corrections_are_not_counted_as_steps(call: Call, script: Script) -> None:
    seen: list[int] = []

    class Agent(Searcher):
        max_steps = 2

        def on_step(self, step: Step) -> None:
            seen.append(step.counter)

    model = script(
        finish(**SURE),
        calling("search", query="a"),
        finish(**SURE),
        calling("search", query="b"),
        finish(answer="Paris"),
    )
    run = call.run(Agent(model=model), question="?")
    assert (seen, run.steps, run.usage.requests, run.stop_reason) == ([1, 2], 2, 5, "forced")


@pytest.mark.every_way
def test_invalid_outputs_of_all_steps_count_together_against_parse_retries(call: Call, script: Script) -> None:
    model = script(finish(**SURE), calling("search", query="a"), finish(**SURE), "Paris.", finish(**SURE))
    with pytest.raises(ParseError) as caught:
        call(Searcher(model=model, parse_retries=2), question="?")
    assert caught.value.attempts == 3


@each_case("retries", [0, 1, 3])
def test_parse_error_is_raised_after_parse_retries_corrections(call: Call, script: Script, retries: int) -> None:
    wrong = [finish(**SURE)] * retries
    assert call(Asker(model=script(*wrong, finish(answer="a")), parse_retries=retries), question="?") == Answer(
        answer="a"
    )
    with pytest.raises(ParseError) as caught:
        call(Asker(model=script(*wrong, finish(**SURE)), parse_retries=retries), question="?")
    assert caught.value.attempts == retries + 1


@pytest.mark.every_way
def test_parse_error_contains_output_and_errors(call: Call, script: Script) -> None:
    model = script(finish(answer="Lyon", confidence=7), finish(**SURE), name="some-model")
    with pytest.raises(ParseError) as caught:
        call(Asker(model=model, parse_retries=1), question="?")
    error = caught.value
    assert str(error) == (
        "`Asker` got no valid output from `some-model` in 2 attempts: `confidence` must be a float between 0 and 1, "
        "got 'very confident'. Raise `parse_retries`, or make `final_output` easier to fill."
    )
    assert error.raw_output == '{"answer":"Paris","confidence":"very confident"}'
    assert error.errors == [{"path": "confidence", "expected": "float between 0 and 1", "received": "very confident"}]
    assert error.attempts == 2
    assert error.run.error is error
    assert (error.run.stop_reason, error.run.output, error.run.usage.requests) == ("error", None, 2)
    assert told(error.run)[1] == WRONG_CONFIDENCE


def test_parse_retries_zero_raises_at_first_invalid_output(call: Call, script: Script) -> None:
    with pytest.raises(ParseError, match="in 1 attempt: `answer` is missing \\(expected a string\\)\\.") as caught:
        call(Asker(model=script(finish(confidence=0.5)), parse_retries=0), question="?")
    assert caught.value.attempts == 1
    assert caught.value.errors == [{"path": "answer", "expected": "string", "received": "missing"}]


# Responses without a tool call


@pytest.mark.every_way
@each_case("text", ["The answer is Paris.", "", "  \n"])
def test_text_response_in_single_turn_run_with_tools_is_corrected(call: Call, script: Script, text: str) -> None:
    model = script(text, finish(answer="Paris"))
    run = call.run(Picky(model=model), question="?")
    assert (run.output, run.steps) == (Answer(answer="Paris"), 0)
    assert last(model.requests[1]) == {"role": "user", "content": NOT_CALLED}


def test_repeated_text_responses_in_single_turn_run_raise_parse_error(call: Call, script: Script) -> None:
    with pytest.raises(ParseError, match="in 3 attempts: The response did not call `__finish__`") as caught:
        call(Picky(model=script("Paris.", "Paris!", "I said Paris.")), question="?")
    assert (caught.value.raw_output, caught.value.errors, caught.value.attempts) == ("I said Paris.", [], 3)
    assert [message["role"] for message in caught.value.run.history[2:]] == ["assistant", "user"] * 2 + ["assistant"]


@pytest.mark.every_way
def test_text_response_in_multi_step_run_counts_as_step_and_gets_reminder(call: Call, script: Script) -> None:
    seen: list[tuple[int, str, list[Any], list[Any]]] = []

    class Agent(Searcher):
        def on_step(self, step: Step) -> None:
            seen.append((step.counter, step.content, step.tool_calls, step.tool_results))

    model = script("Let me think.", finish(answer="Paris"))
    run = call.run(Agent(model=model), question="?")
    assert seen == [(1, "Let me think.", [], [])]
    assert run.steps == 1
    assert model.requests[1].messages[2:] == [
        {"role": "assistant", "content": "Let me think."},
        {"role": "user", "content": REMINDER},
    ]


def test_text_responses_in_multi_step_run_count_against_max_steps(call: Call, script: Script) -> None:
    model = script("Hm.", "Hm!", finish(answer="Paris"))
    run = call.run(Searcher(model=model, max_steps=2), question="?")
    assert (run.steps, forced(model)) == (2, [None, None, "__finish__"])


@pytest.mark.every_way
def test_empty_response_in_multi_step_run_counts_as_step_and_is_not_sent_back(call: Call, script: Script) -> None:
    model = script("", finish(answer="Paris"))
    run = call.run(Searcher(model=model), question="?")
    assert run.steps == 1
    assert [message["role"] for message in model.requests[1].messages] == ["system", "user", "user"]
    assert last(model.requests[1]) == {"role": "user", "content": REMINDER}


# Refusals


@pytest.mark.every_way
@each_case("agent", [Asker, Picky, Searcher])
@each_case(
    ("reply", "words"),
    [
        (Reply(refusal="I can't help with that."), "refused to answer: I can't help with that\\."),
        (Reply(refusal=""), "refused to answer"),
        (Reply("As far as", stop_reason="content_filter"), "content filter: As far as"),
        (Reply(stop_reason="content_filter"), "content filter"),
        (finish(answer="Paris") & Reply(stop_reason="content_filter"), "content filter"),
    ],
)
def test_refusal_raises_model_error_with_refusal_text(
    call: Call, script: Script, agent: type[Asker], reply: Reply, words: str
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        call(agent(model=script(reply, name="some-model")), question="?")
    error = caught.value
    assert "`some-model`" in str(error)
    assert not error.retryable
    assert (error.run.error, error.run.usage.requests) == (error, 1)


@pytest.mark.every_way
def test_failing_provider_raises_error_with_run_record(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), Failure(status=503, message="busy"))
    with pytest.raises(ModelError, match="HTTP 503") as caught:
        call(Searcher(model=model), question="?")
    assert (caught.value.status, caught.value.retryable) == (503, True)
    assert (caught.value.run.steps, caught.value.run.stop_reason) == (1, "error")
    assert told(caught.value.run) == ['["about a"]']


# Responses cut off by the token limit


@pytest.mark.every_way
@each_case("agent", [Asker, Picky, Searcher])
@each_case("arguments", ['{"answer": "Par', "", "{"])
def test_finish_call_cut_off_at_token_limit_is_reported_to_model_as_cut_off(
    call: Call, script: Script, agent: type[Asker], arguments: str
) -> None:
    model = script(raw("__finish__", arguments, stop_reason="length"), finish(answer="Paris"))
    run = call.run(agent(model=model, max_tokens=50), question="?")
    assert run.output == Answer(answer="Paris")
    assert "<message>The response was cut off at the limit of 50 tokens" in told(run)[0]


def test_finish_call_that_is_cut_off_in_every_attempt_raises_parse_error(call: Call, script: Script) -> None:
    model = script(*[raw("__finish__", '{"answer": "Par', stop_reason="length")] * 2)
    with pytest.raises(ParseError, match=r"cut off at the limit of 50 tokens.* Raise `max_tokens`") as caught:
        call(Asker(model=model, max_tokens=50, parse_retries=1), question="?")
    assert caught.value.raw_output == '{"answer": "Par'


def test_finish_call_with_complete_arguments_and_stop_reason_length_is_accepted(call: Call, script: Script) -> None:
    model = script(finish(answer="Paris") & Reply(stop_reason="length"))
    assert call(Asker(model=model), question="?") == Answer(answer="Paris")


def test_finish_call_with_complete_but_invalid_arguments_is_not_reported_as_cut_off(call: Call, script: Script) -> None:
    model = script(finish(**SURE) & Reply(stop_reason="length"), finish(answer="Paris"))
    assert told(call.run(Asker(model=model), question="?"))[0] == WRONG_CONFIDENCE


def test_cut_off_text_in_single_turn_run_is_reported_to_model(call: Call, script: Script) -> None:
    replies = [Reply("Let me think this", stop_reason="length"), Reply("", stop_reason="length")]
    with pytest.raises(ParseError, match="cut off at the limit of 9 tokens"):
        call(Picky(model=script(*replies), max_tokens=9, parse_retries=1), question="?")


@pytest.mark.every_way
@each_case("arguments", ['{"query": "Par', "", '{"query"'])
def test_cut_off_tool_call_returns_tool_error(call: Call, script: Script, arguments: str) -> None:
    searched: list[str] = []
    seen: list[Any] = []

    @tool
    def look(query: str = "everything") -> str:
        searched.append(query)
        return "found"

    class Agent(Asker):
        tools = [look]
        max_steps = 3

        def on_step(self, step: Step) -> None:
            seen.extend((call.arguments, call.raw_arguments) for call in step.tool_calls)

    model = script(raw("look", arguments, stop_reason="length"), finish(answer="Paris"))
    run = call.run(Agent(model=model), question="?")
    assert searched == []
    assert "Tool error: The response was cut off" in told(run)[0]
    assert seen == [({}, arguments or "{}")]


@pytest.mark.every_way
def test_response_cut_off_in_last_tool_call_executes_earlier_tool_calls(call: Call, script: Script) -> None:
    reply = calling("search", query="a") & raw("search", '{"query', stop_reason="length")
    run = call.run(Searcher(model=script(reply, finish(answer="Paris"))), question="?")
    assert told(run)[0] == '["about a"]'
    assert "cut off" in told(run)[1]


# A single turn with another tool call


@pytest.mark.every_way
def test_single_turn_run_with_tool_call_returns_unfinished(call: Call, script: Script) -> None:
    seen: list[int] = []

    class Agent(Picky):
        def on_step(self, step: Step) -> None:
            seen.append(step.counter)

    reply = Reply("Let me look.") & calling("search", query="a") & calling("search", query="b")
    run = call.run(Agent(model=script(reply)), question="?")
    found = run.output
    assert isinstance(found, Unfinished)
    assert not found
    assert found.content == "Let me look."
    assert [(one.name, one.arguments) for one in found.tool_calls] == [
        ("search", {"query": "a"}),
        ("search", {"query": "b"}),
    ]
    assert [one.output for one in found.tool_results] == [["about a"], ["about b"]]
    assert (run.steps, run.stop_reason, seen) == (1, "unfinished", [1])
    assert told(run) == ['["about a"]', '["about b"]']
    assert repr(found) == "Unfinished(tool_calls=['search', 'search'])"


def test_attribute_access_on_unfinished_output_raises_error_with_cause_and_fix(call: Call, script: Script) -> None:
    found = call(Picky(model=script(calling("search", query="a"))), question="?")
    with pytest.raises(
        AttributeError, match=r"`Picky` did not finish, so `answer` is missing.*`search`.*Set `max_steps`"
    ):
        found.answer  # noqa: B018
    assert not hasattr(found, "confidence")


@pytest.mark.every_way
def test_failed_tool_call_in_single_turn_run_is_in_results_of_unfinished_output(call: Call, script: Script) -> None:
    found = call(Picky(model=script(calling("search") & calling("unknown"))), question="?")
    assert isinstance(found, Unfinished)
    missing, unknown = found.tool_results
    assert missing.error == "argument `query` is missing (expected a string)"
    assert "no tool `unknown`" in str(unknown.error)


@pytest.mark.every_way
def test_tool_call_after_correction_in_single_turn_run_returns_unfinished(call: Call, script: Script) -> None:
    found = call(Picky(model=script(finish(**SURE), calling("search", query="a"))), question="?")
    assert isinstance(found, Unfinished)


# Kinds of output


def test_module_with_empty_output_returns_none(call: Call, script: Script) -> None:
    class Doer(module):
        """Do it."""

    class Declared(Doer):
        final_output = []

    for agent in (Doer, Declared):
        model = script(finish())
        run = call.run(agent(model=model))
        assert (run.output, run.stop_reason) == (None, "finish")
        assert model.requests[0].tools[0]["function"]["parameters"] == {"type": "object", "properties": {}}


@dataclass
class Point:
    x: int
    y: int


class Movie(TypedDict):
    title: str


class Tags(RootModel[list[str]]):
    pass


@pytest.mark.every_way
@each_case(
    ("kind", "given", "wanted"),
    [
        (str, "Paris", "Paris"),
        (str, "", ""),
        (int, 0, 0),
        (bool, False, False),
        (float, "0.5", 0.5),
        (list[str], [], []),
        (list[Answer], [{"answer": "a"}], [Answer(answer="a")]),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Point, {"x": 1, "y": 2}, Point(1, 2)),
        (Movie, {"title": "Alien"}, {"title": "Alien"}),
        (Literal["yes", "no"], "no", "no"),
        (int | str, "7 o'clock", "7 o'clock"),
        (Answer | None, None, None),
        (Path, "a/b", Path("a/b")),
        (Tags, ["a", "b"], Tags(["a", "b"])),
    ],
)
def test_plain_type_output_is_sent_in_result_field_and_returned_unwrapped(
    call: Call, script: Script, kind: Any, given: Any, wanted: Any
) -> None:
    class Plain(module):
        final_output = kind

    model = script(finish(result=given))
    found = call(Plain(model=model))
    assert found == wanted
    assert type(found) is type(wanted)
    assert list(model.requests[0].tools[0]["function"]["parameters"]["properties"]) == ["result"]


def test_invalid_plain_type_output_is_corrected_in_result_field(call: Call, script: Script) -> None:
    class Counter(module[Any, int]):
        pass

    run = call.run(Counter(model=script(finish(result="many"), finish(result=3))))
    assert run.output == 3
    assert '<field name="result">\n      <expected>integer</expected>\n      <received>many</received>' in told(run)[0]


def test_field_list_output_returns_instance_with_fields(call: Call, script: Script) -> None:
    class Agent(module):
        initial_input = ["question", ("limit", int, 3)]
        final_output = ["answer", ("score", float), ("tags", list[str], [])]

    model = script(finish(answer="Paris", score="0.5"))
    found = call(Agent(model=model), question="?")
    assert (found.answer, found.score, found.tags) == ("Paris", 0.5, [])
    assert model.requests[0].messages[-1]["content"] == (
        "<input>\n  <question>?</question>\n  <limit>3</limit>\n</input>"
    )


class Renamed(BaseModel):
    answer: str = Field(alias="finalAnswer")
    how_sure: float = Field(default=1.0, alias="howSure", le=1)


@each_case("fields", [{"finalAnswer": "Paris", "howSure": 0.5}, {"answer": "Paris", "how_sure": 0.5}])
def test_output_field_with_alias_is_sent_as_alias_and_accepted_under_alias_and_field_name(
    call: Call, script: Script, fields: dict[str, Any]
) -> None:
    class Agent(module[Any, Renamed]):
        pass

    model = script(finish(finalAnswer="Paris", howSure=7), finish(**fields))
    run = call.run(Agent(model=model))
    assert run.output == Renamed(finalAnswer="Paris", howSure=0.5)
    assert list(model.requests[0].tools[0]["function"]["parameters"]["properties"]) == ["finalAnswer", "howSure"]
    assert '<field name="howSure">\n      <expected>float of at most 1</expected>' in told(run)[0]


# Calls that cannot be executed


@pytest.mark.every_way
def test_unknown_tool_call_returns_tool_error_with_list_of_tools(call: Call, script: Script) -> None:
    run = call.run(Searcher(model=script(calling("serach", query="a"), finish(answer="Paris"))), question="?")
    assert run.steps == 1
    assert told(run)[0] == "Tool error: There is no tool `serach`. There are: `search`, `__finish__`."


@pytest.mark.every_way
def test_tool_calls_next_to_unknown_tool_call_are_executed_in_order(call: Call, script: Script) -> None:
    reply = calling("search", query="a") & calling("nothing") & calling("search", query="b")
    run = call.run(Searcher(model=script(reply, finish(answer="Paris"))), question="?")
    assert told(run)[::2] == ['["about a"]', '["about b"]']
    assert told(run)[1].startswith("Tool error: There is no tool `nothing`.")


# Records


@pytest.mark.every_way
def test_run_record_contains_sum_of_request_usage(call: Call, script: Script) -> None:
    used = Usage(input_tokens=10, output_tokens=2, cached_tokens=4, reasoning_tokens=1, requests=1)
    text = Reply("Hm.", usage=used)
    model = script(text, calling("search", query="a") & Reply(usage=used), finish(answer="Paris") & Reply(usage=used))
    run = call.run(Searcher(model=model), question="?")
    assert run.usage == Usage(30, 6, 12, 3, 3)
    assert (run.model, run.steps, run.input) == ("scripted", 2, Question(question="?"))
    assert run.started is not None
    assert run.seconds >= 0


@pytest.mark.every_way
def test_run_history_contains_all_messages_of_run(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), finish(answer="Paris"))
    run = call.run(Searcher(model=model), question="?")
    assert run.history[:4] == model.requests[1].messages[:2] + run.history[2:4]
    assert [message["role"] for message in run.history] == ["system", "user", *["assistant", "tool"] * 2]
