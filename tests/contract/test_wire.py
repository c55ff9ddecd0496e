"""Tests of the request bodies that acorn sends to a provider, field by field, and of parsing its responses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.cases import case
from tests.contract.conftest import Wire
from tests.loopback import Fault, Loopback, Request
from tests.parts import Photo

from acorn import ModelError, Step, module, tool
from acorn.models import ModelRequest
from acorn.models.litellm.adapter import LiteLLMModel
from acorn.models.port import thinks
from acorn.models.resolve import resolve
from acorn.testing import Reply, call, finish
from acorn.types import Message, Usage

Json = dict[str, Any]


@tool
def search(query: str, limit: int = 5) -> list[str]:
    """Search the web.

    Args:
        query: What to look for
    """
    return [f"about {query}"]


class Question(BaseModel):
    question: str = Field(description="What to answer")


class Answer(BaseModel):
    answer: str
    confidence: float = Field(ge=0, le=1, description="How sure you are")


class Researcher(module):
    """You answer questions."""

    initial_input = Question
    final_output = Answer
    tools = [search]
    max_steps = 3


class Hurried(Researcher):
    max_steps = 1


class Single(module):
    """You answer questions."""

    initial_input = Question
    final_output = Answer


RIGHT: Json = {"answer": "Because.", "confidence": 0.5}

# Parts of a request that all runs of these modules share, in each protocol

SEARCH: Json = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What to look for"},
        "limit": {"type": "integer", "default": 5},
    },
    "required": ["query"],
}
FINISH: Json = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1, "description": "How sure you are"},
    },
    "required": ["answer", "confidence"],
}
FINISH_WORDS = "Call this with your final answer. It ends the task."
OPENAI_FINISH: Json = {
    "type": "function",
    "function": {"name": "__finish__", "description": FINISH_WORDS, "parameters": FINISH},
}
OPENAI_TOOLS: list[Json] = [
    {"type": "function", "function": {"name": "search", "description": "Search the web.", "parameters": SEARCH}},
    OPENAI_FINISH,
]
ANTHROPIC_FINISH: Json = {
    "type": "custom",
    "name": "__finish__",
    "description": FINISH_WORDS,
    "input_schema": FINISH,
}
ANTHROPIC_TOOLS: list[Json] = [
    {"type": "custom", "name": "search", "description": "Search the web.", "input_schema": SEARCH},
    ANTHROPIC_FINISH,
]
PROMPT = "You answer questions."
INPUT = '<input>\n  <question description="What to answer">Why?</question>\n</input>'
FORM = (
    "You must provide your final answer now. Respond with your answer in the following XML structure:\n"
    "<output>\n"
    "  <answer></answer>\n"
    '  <confidence description="How sure you are"></confidence>\n'
    "</output>\n"
    "\n"
    "Fill in the values. Do not repeat the descriptions."
)
FILLED_IN = "<output><answer>Because.</answer><confidence>0.5</confidence></output>"
WRONG = (
    '<error type="validation">\n'
    "  <message>Output validation failed</message>\n"
    "  <details>\n"
    '    <field name="confidence">\n'
    "      <expected>float between 0 and 1</expected>\n"
    "      <received>7</received>\n"
    "    </field>\n"
    "  </details>\n"
    "  <instruction>Please provide the output again in the correct format.</instruction>\n"
    "</error>"
)
REMINDER = "Please continue: call one of your tools, or call `__finish__` with your answer."
EPHEMERAL = {"type": "ephemeral"}
PNG = "iVBORw0KGgo="


def openai(*later: Json, system: Any = PROMPT, **rest: Any) -> Json:
    """Return a whole body for OpenAI; `later` are the messages after the input."""
    first: list[Json] = [{"role": "system", "content": system}, {"role": "user", "content": INPUT}]
    return {
        "model": "gpt-4o",
        "messages": [*first, *later],
        "temperature": 0.7,
        "max_tokens": 4096,
        "tools": OPENAI_TOOLS,
        **rest,
    }


def anthropic(*later: Json, **rest: Any) -> Json:
    """Return a whole body for Anthropic."""
    first: Json = {"role": "user", "content": [{"type": "text", "text": INPUT}]}
    return {
        "model": "claude-sonnet-4-5",
        "system": [{"type": "text", "text": PROMPT}],
        "messages": [first, *later],
        "temperature": 0.7,
        "max_tokens": 4096,
        "tools": ANTHROPIC_TOOLS,
        **rest,
    }


def openai_call(name: str, arguments: str, call_id: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


OPENAI_SEARCHED: list[Json] = [
    {"role": "assistant", "tool_calls": [openai_call("search", '{"query":"why"}', "call_1_0")]},
    {"role": "tool", "tool_call_id": "call_1_0", "content": '["about why"]'},
]
ANTHROPIC_ASKED: Json = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "toolu_1_0", "name": "search", "input": {"query": "why"}}],
}
ANTHROPIC_RESULT: Json = {"type": "tool_result", "tool_use_id": "toolu_1_0", "content": '["about why"]'}
ANTHROPIC_SEARCHED: list[Json] = [ANTHROPIC_ASKED, {"role": "user", "content": [ANTHROPIC_RESULT]}]
OPENAI_FORCED: Json = {"type": "function", "function": {"name": "__finish__"}}
ANTHROPIC_FORCED: Json = {"type": "tool", "name": "__finish__"}


# Requests


def test_first_request_contains_prompt_input_settings_and_tools(wire: Wire) -> None:
    wire.serve([finish(**RIGHT)])
    run = wire.run(Researcher(model=wire.model()), question="Why?")
    assert run.output == Answer(**RIGHT)
    assert wire.bodies() == wire.either(openai=[openai()], anthropic=[anthropic()])


@pytest.mark.chat
def test_api_key_is_sent_only_in_header_of_protocol(wire: Wire) -> None:
    server = wire.serve([finish(**RIGHT)])
    wire.run(Researcher(model=wire.model()), question="Why?")
    headers = server.requests[0].headers
    if wire.is_openai:
        assert headers["authorization"] == "Bearer sk-test"
        assert server.requests[0].path == "/v1/chat/completions"
    else:
        assert headers["x-api-key"] == "sk-ant-test"
        assert "authorization" not in headers
        assert server.requests[0].path == "/v1/messages"
    assert b"sk-" not in server.requests[0].raw


def test_second_request_contains_tool_call_and_its_result(wire: Wire) -> None:
    wire.serve([call("search", query="why"), finish(**RIGHT)])
    wire.run(Researcher(model=wire.model()), question="Why?")
    assert wire.bodies() == wire.either(
        openai=[openai(), openai(*OPENAI_SEARCHED)], anthropic=[anthropic(), anthropic(*ANTHROPIC_SEARCHED)]
    )


@pytest.mark.chat
def test_assistant_message_with_calls_only_is_sent_without_text(wire: Wire) -> None:
    server = wire.serve([call("search", query="why"), finish(**RIGHT)])
    wire.run(Researcher(model=wire.model()), question="Why?")
    assert b"Empty message content" not in server.requests[1].raw
    if wire.is_openai:
        assert "content" not in server.requests[1].body["messages"][2]


def test_parallel_calls_and_results_are_sent_together(wire: Wire) -> None:
    wire.serve([Reply("Let me see.") & call("search", query="why") & call("search", query="how"), finish(**RIGHT)])
    wire.run(Researcher(model=wire.model()), question="Why?")
    assert wire.bodies()[1] == wire.either(
        openai=openai(
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [
                    openai_call("search", '{"query":"why"}', "call_1_0"),
                    openai_call("search", '{"query":"how"}', "call_1_1"),
                ],
            },
            {"role": "tool", "tool_call_id": "call_1_0", "content": '["about why"]'},
            {"role": "tool", "tool_call_id": "call_1_1", "content": '["about how"]'},
        ),
        anthropic=anthropic(
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "toolu_1_0", "name": "search", "input": {"query": "why"}},
                    {"type": "tool_use", "id": "toolu_1_1", "name": "search", "input": {"query": "how"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1_0", "content": '["about why"]'},
                    {"type": "tool_result", "tool_use_id": "toolu_1_1", "content": '["about how"]'},
                ],
            },
        ),
    )


def test_text_response_without_tool_call_is_answered_with_reminder(wire: Wire) -> None:
    wire.serve(["I wonder.", finish(**RIGHT)])
    wire.run(Researcher(model=wire.model()), question="Why?")
    assert wire.bodies()[1] == wire.either(
        openai=openai({"role": "assistant", "content": "I wonder."}, {"role": "user", "content": REMINDER}),
        anthropic=anthropic(
            {"role": "assistant", "content": [{"type": "text", "text": "I wonder."}]},
            {"role": "user", "content": [{"type": "text", "text": REMINDER}]},
        ),
    )


def test_validation_errors_are_sent_as_result_of_invalid_finish_call(wire: Wire) -> None:
    wire.serve([finish(answer="Because.", confidence=7), finish(**RIGHT)])
    run = wire.run(Researcher(model=wire.model()), question="Why?")
    assert run.output == Answer(**RIGHT)
    assert wire.bodies()[1] == wire.either(
        openai=openai(
            {
                "role": "assistant",
                "tool_calls": [openai_call("__finish__", '{"answer":"Because.","confidence":7}', "call_1_0")],
            },
            {"role": "tool", "tool_call_id": "call_1_0", "content": WRONG},
        ),
        anthropic=anthropic(
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "tool_use",
                        "id": "toolu_1_0",
                        "name": "__finish__",
                        "input": {"answer": "Because.", "confidence": 7},
                    }
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1_0", "content": WRONG}]},
        ),
    )


def test_forced_request_differs_from_normal_request_only_in_tool_choice(wire: Wire) -> None:
    wire.serve([call("search", query="why"), finish(**RIGHT)])
    run = wire.run(Hurried(model=wire.model()), question="Why?")
    assert run.stop_reason == "forced"
    first, forced = wire.bodies()
    assert first == wire.either(openai=openai(), anthropic=anthropic())
    assert forced == wire.either(
        openai=openai(*OPENAI_SEARCHED, tool_choice=OPENAI_FORCED),
        anthropic=anthropic(*ANTHROPIC_SEARCHED, tool_choice=ANTHROPIC_FORCED),
    )
    assert forced["messages"][: len(first["messages"])] == first["messages"]


def test_single_turn_agent_is_forced_to_finish_in_first_request(wire: Wire) -> None:
    wire.serve([finish(**RIGHT)])
    wire.run(Single(model=wire.model()), question="Why?")
    assert wire.bodies() == wire.either(
        openai=[openai(tools=[OPENAI_FINISH], tool_choice=OPENAI_FORCED)],
        anthropic=[anthropic(tools=[ANTHROPIC_FINISH], tool_choice=ANTHROPIC_FORCED)],
    )


def test_model_that_ignores_tool_choice_is_asked_to_fill_in_xml_form(wire: Wire) -> None:
    wire.serve([call("search", query="why"), "I do not know.", FILLED_IN])
    run = wire.run(Hurried(model=wire.model()), question="Why?")
    assert run.output == Answer(**RIGHT)
    assert wire.bodies()[2] == wire.either(
        openai=openai(
            *OPENAI_SEARCHED,
            {"role": "assistant", "content": "I do not know."},
            {"role": "user", "content": FORM},
        ),
        anthropic=anthropic(
            *ANTHROPIC_SEARCHED,
            {"role": "assistant", "content": [{"type": "text", "text": "I do not know."}]},
            {"role": "user", "content": [{"type": "text", "text": FORM}]},
        ),
    )


def test_model_that_ignored_tool_choice_before_is_sent_xml_form_immediately(wire: Wire) -> None:
    wire.serve([call("search", query="why"), "I do not know.", FILLED_IN, call("search", query="why"), FILLED_IN])
    agent = Hurried(model=wire.model())
    wire.run(agent, question="Why?")
    run = wire.run(agent, question="Why?")
    assert run.output == Answer(**RIGHT)
    assert wire.count() == 5
    assert "tool_choice" not in wire.bodies()[4]
    assert FORM in str(wire.bodies()[4]["messages"][-1]).replace("\\n", "\n")


def test_cut_off_response_is_not_treated_as_ignored_tool_choice(wire: Wire) -> None:
    for stop_reason in ["length", "content_filter"]:
        with case(stop_reason):
            wire.serve([Reply("Well", stop_reason=stop_reason), finish(**RIGHT), finish(**RIGHT)])
            agent = Single(model=wire.model(), parse_retries=0)
            with pytest.raises(Exception, match=r"cut off|content filter"):
                wire.run(agent, question="Why?")
            wire.run(agent, question="Why?")
            assert wire.bodies()[1]["tool_choice"] == wire.either(openai=OPENAI_FORCED, anthropic=ANTHROPIC_FORCED)


# Cache marks


class Cached(Researcher):
    cache = True


class CachedAsInTheSeeds(Researcher):
    cache = [{"location": "message", "role": "system"}, {"location": "message", "index": 0}]


class CachedByHand(Researcher):
    cache = [{"location": "message", "role": "system", "control": {"type": "ephemeral", "ttl": "1h"}}]


class CachedAtTheEnd(Researcher):
    cache = [{"location": "message", "index": -1}]


def marked_openai(*later: Json) -> Json:
    body = openai(*later)
    body["messages"] = [{**message} for message in body["messages"]]
    for message in body["messages"][:2]:
        message["cache_control"] = EPHEMERAL
    return body


def marked_anthropic(*later: Json) -> Json:
    body = anthropic(*later)
    return {
        **body,
        "system": [{"type": "text", "text": PROMPT, "cache_control": EPHEMERAL}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": INPUT, "cache_control": EPHEMERAL}]},
            *later,
        ],
    }


@pytest.mark.parametrize("kind", [Cached, CachedAsInTheSeeds])
@pytest.mark.chat
def test_cache_setting_adds_cache_control_to_system_and_first_user_message(wire: Wire, kind: type[Researcher]) -> None:
    wire.serve([call("search", query="why"), finish(**RIGHT)])
    wire.run(kind(model=wire.model()), question="Why?")
    assert wire.bodies() == wire.either(
        openai=[marked_openai(), marked_openai(*OPENAI_SEARCHED)],
        anthropic=[marked_anthropic(), marked_anthropic(*ANTHROPIC_SEARCHED)],
    )


@pytest.mark.chat
def test_cache_index_zero_without_system_prompt_adds_cache_control_to_user_message(wire: Wire) -> None:
    wire.serve([finish(**RIGHT)])
    wire.run(Cached(model=wire.model(), system_prompt=""), question="Why?")
    body = wire.bodies()[0]
    assert "system" not in body
    assert body["messages"] == wire.either(
        openai=[{"role": "user", "content": INPUT, "cache_control": EPHEMERAL}],
        anthropic=[{"role": "user", "content": [{"type": "text", "text": INPUT, "cache_control": EPHEMERAL}]}],
    )


@pytest.mark.chat
def test_cache_setting_with_ttl_sends_cache_control_with_ttl(wire: Wire) -> None:
    wire.serve([finish(**RIGHT)])
    wire.run(CachedByHand(model=wire.model()), question="Why?")
    hour = {"type": "ephemeral", "ttl": "1h"}
    if wire.is_openai:
        assert wire.bodies()[0]["messages"] == [
            {"role": "system", "content": PROMPT, "cache_control": hour},
            {"role": "user", "content": INPUT},
        ]
    else:
        assert wire.bodies() == [anthropic(system=[{"type": "text", "text": PROMPT, "cache_control": hour}])]


@pytest.mark.chat
def test_negative_cache_index_adds_cache_control_counted_from_last_message(wire: Wire) -> None:
    wire.serve([call("search", query="why"), finish(**RIGHT)])
    wire.run(CachedAtTheEnd(model=wire.model()), question="Why?")
    first, second = wire.bodies()
    if wire.is_openai:
        assert first["messages"][1] == {"role": "user", "content": INPUT, "cache_control": EPHEMERAL}
        asked, answered = OPENAI_SEARCHED
        assert second == openai(asked, {**answered, "cache_control": EPHEMERAL})
    else:
        marked = {**ANTHROPIC_RESULT, "cache_control": EPHEMERAL}
        assert first["messages"][0]["content"][0]["cache_control"] == EPHEMERAL
        assert second == anthropic(ANTHROPIC_ASKED, {"role": "user", "content": [marked]})


def test_cache_index_beyond_messages_sends_no_cache_control(wire: Wire) -> None:
    class CachedFarAway(Researcher):
        cache = [{"location": "message", "index": 9}]

    wire.serve([finish(**RIGHT)])
    wire.run(CachedFarAway(model=wire.model()), question="Why?")
    assert wire.bodies() == wire.either(openai=[openai()], anthropic=[anthropic()])


@pytest.mark.chat
def test_cache_control_of_earlier_requests_is_not_sent_again(wire: Wire) -> None:
    class Shown(CachedAtTheEnd):
        def on_step(self, step: Step) -> None:
            self.history.append({"role": "user", "content": [{"type": "text", "text": f"Look {step.counter}."}]})

    wire.serve([call("search", query="a"), call("search", query="b"), finish(**RIGHT)])
    run = wire.run(Shown(model=wire.model()), question="Why?")
    assert [str(body).count("cache_control") for body in wire.bodies()] == [1, 1, 1]
    assert "cache_control" not in str(run.history)


# Content parts and thinking


class Illustrated(Researcher):
    def on_step(self, step: Step) -> None:
        parts = [
            {"type": "text", "text": "Look:"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            {"type": "image_url", "image_url": {"url": "https://example.org/oak.png"}},
        ]
        self.history.append({"role": "user", "content": parts})


def test_images_of_user_message_are_sent_in_format_of_protocol(wire: Wire) -> None:
    wire.serve([call("search", query="why"), finish(**RIGHT)])
    run = wire.run(Illustrated(model=wire.model()), question="Why?")
    assert wire.bodies()[1] == wire.either(
        openai=openai(
            *OPENAI_SEARCHED,
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                    {"type": "image_url", "image_url": {"url": "https://example.org/oak.png"}},
                ],
            },
        ),
        anthropic=anthropic(
            ANTHROPIC_ASKED,
            {
                "role": "user",
                "content": [
                    ANTHROPIC_RESULT,
                    {"type": "text", "text": "Look:"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                    {"type": "image", "source": {"type": "url", "url": "https://example.org/oak.png"}},
                ],
            },
        ),
    )
    assert run.history[4]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{PNG}"},
    }


class Seeing(Researcher):
    def on_step(self, step: Step) -> None:
        step.tool_results[0].output = {"photo": Photo(f"data:image/png;base64,{PNG}")}


def test_image_returned_by_tool_is_sent_after_tool_results(wire: Wire) -> None:
    wire.serve([call("search", query="why"), finish(**RIGHT)])
    wire.run(Seeing(model=wire.model()), question="Why?")
    text = '{"photo":{"media":1,"kind":"image"}}'
    line = {
        "type": "text",
        "text": f"Media 1 of the result of `search` (call `{'call' if wire.is_openai else 'toolu'}_1_0`):",
    }
    assert wire.bodies()[1] == wire.either(
        openai=openai(
            OPENAI_SEARCHED[0],
            {**OPENAI_SEARCHED[1], "content": text},
            {
                "role": "user",
                "content": [line, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}],
            },
        ),
        anthropic=anthropic(
            ANTHROPIC_ASKED,
            {
                "role": "user",
                "content": [
                    {**ANTHROPIC_RESULT, "content": text},
                    line,
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                ],
            },
        ),
    )


THINKING = {"type": "enabled", "budget_tokens": 1024}


def thought(number: int, text: str, query: str) -> list[Json]:
    return [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": text, "signature": f"signature-{number}"},
                {"type": "tool_use", "id": f"toolu_{number}_0", "name": "search", "input": {"query": query}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": f"toolu_{number}_0", "content": f'["about {query}"]'},
            ],
        },
    ]


def test_reasoning_blocks_are_sent_back_with_signature_in_tool_loop(claude: Wire) -> None:
    claude.serve(
        [
            Reply(reasoning="Hm.") & call("search", query="why"),
            Reply(reasoning="Aha.") & call("search", query="how"),
            finish(**RIGHT),
        ]
    )
    reasons: list[str | None] = []

    class Thoughtful(Researcher):
        def on_step(self, step: Step) -> None:
            reasons.append(step.reasoning)

    run = claude.run(Thoughtful(model=claude.model(thinking=THINKING)), question="Why?")
    assert claude.bodies() == [
        anthropic(thinking=THINKING),
        anthropic(*thought(1, "Hm.", "why"), thinking=THINKING),
        anthropic(*thought(1, "Hm.", "why"), *thought(2, "Aha.", "how"), thinking=THINKING),
    ]
    assert reasons == ["Hm.", "Aha."]
    assert run.history[2]["thinking_blocks"] == [{"type": "thinking", "thinking": "Hm.", "signature": "signature-1"}]


def test_redacted_reasoning_block_is_sent_back_unchanged(claude: Wire) -> None:
    hidden = {"type": "redacted_thinking", "data": "opaque"}
    asked = {"type": "tool_use", "id": "toolu_1_0", "name": "search", "input": {"query": "why"}}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [hidden, asked],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    claude.serve([Fault(body=_json(message)), finish(**RIGHT)])
    claude.run(Researcher(model=claude.model(thinking=THINKING)), question="Why?")
    assert claude.bodies()[1]["messages"][1]["content"] == [hidden, asked]


def test_claude_with_thinking_is_not_forced_to_finish(claude: Wire) -> None:
    rows: list[Json] = [{"thinking": THINKING}, {"reasoning_effort": "low"}]
    for asked_for in rows:
        with case(asked_for):
            claude.serve([finish(**RIGHT), Reply(reasoning="Hm.") & call("search", query="why"), FILLED_IN])
            claude.run(Single(model=claude.model(**asked_for)), question="Why?")
            run = claude.run(Hurried(model=claude.model(**asked_for)), question="Why?")
            assert run.output == Answer(**RIGHT)
            assert all("tool_choice" not in body for body in claude.bodies())
            assert all(body["thinking"] == THINKING for body in claude.bodies())
            assert claude.bodies()[2]["messages"][-1]["content"][-1] == {"type": "text", "text": FORM}


def test_other_thinking_model_is_forced_to_finish_at_max_steps(gpt: Wire) -> None:
    for name in ["gpt-5", "home-made"]:
        with case(name):
            gpt.serve([call("search", query="why"), finish(**RIGHT)])
            run = gpt.run(Hurried(model=gpt.model(name, reasoning_effort="low")), question="Why?")
            assert run.output == Answer(**RIGHT)
            assert [body.get("tool_choice") for body in gpt.bodies()] == [None, OPENAI_FORCED]
            assert all("<output" not in str(body["messages"]) for body in gpt.bodies())


def test_claude_with_disabled_thinking_is_forced_to_finish(claude: Wire) -> None:
    rows: list[Json] = [{"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}]
    for not_asked_for in rows:
        with case(not_asked_for):
            claude.serve([finish(**RIGHT), call("search", query="why"), finish(**RIGHT)])
            claude.run(Single(model=claude.model(**not_asked_for)), question="Why?")
            claude.run(Hurried(model=claude.model(**not_asked_for)), question="Why?")
            assert [body.get("tool_choice") for body in claude.bodies()] == [ANTHROPIC_FORCED, None, ANTHROPIC_FORCED]


def test_thinking_is_detected_from_model_dict_settings() -> None:
    rows: list[tuple[Json, bool]] = [
        ({}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        ({"reasoning_effort": "low"}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": None, "reasoning_effort": None}, False),
        ({"reasoning_effort": "none"}, False),
    ]
    for settings, expected in rows:
        with case(settings, expected):
            assert thinks(resolve({"model": "some/model", **settings}, "Asker")) is expected


def test_reasoning_blocks_are_not_sent_to_other_provider(claude: Wire, lane: str) -> None:
    server = claude.serve([Reply(reasoning="Hm.") & call("search", query="why"), finish(**RIGHT)])

    class Fickle(Researcher):
        def on_step(self, step: Step) -> None:
            step.model = server.openai()

    claude.run(Fickle(model=claude.model(thinking=THINKING)), question="Why?")
    arguments = {"native": '{"query":"why"}', "litellm": '{"query": "why"}'}[lane]
    asked = {"role": "assistant", "tool_calls": [openai_call("search", arguments, "toolu_1_0")]}
    answered = {"role": "tool", "tool_call_id": "toolu_1_0", "content": '["about why"]'}
    assert claude.bodies()[1] == openai(asked, answered)


# Responses


def test_usage_contains_cached_and_reasoning_tokens_and_cost(wire: Wire) -> None:
    spent = Usage(input_tokens=1000, output_tokens=200, cached_tokens=600, reasoning_tokens=50)
    wire.serve([Reply(usage=spent) & call("search", query="why"), Reply(usage=spent) & finish(**RIGHT)])
    costs: list[float | None] = []

    class Thrifty(Researcher):
        def on_step(self, step: Step) -> None:
            costs.append(step.cost)

    run = wire.run(Thrifty(model=wire.model()), question="Why?")
    # Anthropic does not report reasoning tokens; LiteLLM counts them if there is a text.
    reasoning = wire.either(openai=100, anthropic=0)
    assert run.usage == Usage(2000, 400, 1200, reasoning, requests=2)
    # gpt-4o: $2.5 and $10 per million, $1.25 from the cache; claude-sonnet-4-5: $3, $15 and $0.3.
    price = wire.either(
        openai=400 * 2.5e-6 + 600 * 1.25e-6 + 200 * 10e-6, anthropic=400 * 3e-6 + 600 * 0.3e-6 + 200 * 15e-6
    )
    assert costs == [pytest.approx(price)]
    assert run.cost == pytest.approx(2 * price)


def test_price_in_model_dict_replaces_table_price(wire: Wire) -> None:
    rows: list[tuple[Json, float]] = [
        ({"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}, 100e-6 + 40e-6),
        ({"output_cost_per_token": 2e-6}, 40e-6),
        ({"input_cost_per_token": 0, "output_cost_per_token": 0}, 0.0),
    ]
    for prices, cost in rows:
        with case(prices, cost):
            wire.serve([finish(**RIGHT)])
            run = wire.run(Single(model=wire.model(**prices)), question="Why?")
            assert run.cost == pytest.approx(cost)
            assert not prices.keys() & wire.bodies()[0].keys()


def test_model_without_known_price_has_cost_none(wire: Wire) -> None:
    wire.serve([finish(**RIGHT)])
    run = wire.run(Single(model=wire.model("home-made")), question="Why?")
    assert run.cost is None
    assert run.usage == Usage(100, 20, 0, 0, requests=1)


@pytest.mark.chat
def test_run_model_is_model_name_in_response(wire: Wire) -> None:
    answer = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "type": "message",
        "role": "assistant",
        "model": "the-one-that-answered",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [openai_call("__finish__", '{"answer":"Because.","confidence":0.5}', "c")],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "content": [{"type": "tool_use", "id": "c", "name": "__finish__", "input": RIGHT}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1, "prompt_tokens": 1, "completion_tokens": 1},
    }
    wire.serve([Fault(body=_json(answer))])
    assert wire.run(Single(model=wire.model()), question="Why?").model == "the-one-that-answered"


def test_response_at_token_limit_is_reported_as_cut_off(wire: Wire) -> None:
    half = Reply(stop_reason="length") & call("search", query="why")
    half.calls[0].arguments = "{}"
    seen: list[Any] = []

    class Looking(Researcher):
        def on_step(self, step: Step) -> None:
            seen.append((step.response["choices"][0]["finish_reason"], step.tool_results[0].error))

    wire.serve([half, finish(**RIGHT)])
    wire.run(Looking(model=wire.model()), question="Why?")
    assert seen[0][0] == "length"
    assert "cut off" in seen[0][1]


def test_refusal_raises_model_error_without_retry(wire: Wire) -> None:
    for reply in [Reply("I will not.", stop_reason="content_filter"), Reply(refusal="I will not.")]:
        with case(reply):
            wire.serve([reply])
            error = wire.fails(Single(model=wire.model()), question="Why?")
            assert "I will not." in str(error)
            assert wire.name in str(error)
            assert not error.retryable
            assert wire.count() == 1


STRANGE_ANSWERS: dict[str, Json] = {
    "no choices": {"choices": [], "content": []},
    "choices of another kind": {"choices": {}, "content": {}},
    "an empty choice": {"choices": [{}], "content": [{}]},
    "a message that is null": {"choices": [{"message": None, "finish_reason": "stop"}], "content": None},
    "a list": [],  # type: ignore[dict-item]
    "nothing": {},
}


def test_malformed_response_raises_model_error_without_retry(wire: Wire) -> None:
    for strange in STRANGE_ANSWERS.values():
        with case(strange):
            wire.serve([Fault(body=_json(strange))])
            error = wire.fails(Single(model=wire.model(), parse_retries=0), question="Why?")
            assert not error.retryable
            assert error.status is None
            assert "Traceback" not in str(error)
            assert wire.count() == 1


def test_error_object_in_response_raises_model_error(wire: Wire) -> None:
    told = {"error": {"message": "we are overloaded", "type": "overloaded_error", "code": 529}}
    wire.serve(lambda request: Fault(body=_json(told)))
    assert "overloaded" in str(wire.fails(Single(model=wire.model(num_retries=0)), question="Why?"))


ODD_CALLS: dict[str, Json] = {
    "no id": {"type": "function", "function": {"name": "__finish__", "arguments": '{"result":"x"}'}},
    "no type": {"id": "c", "function": {"name": "__finish__", "arguments": '{"result":"x"}'}},
    "arguments as an object": {
        "id": "c",
        "type": "function",
        "function": {"name": "__finish__", "arguments": {"result": "x"}},
    },
}


@pytest.mark.chat
def test_tool_calls_in_nonstandard_formats_of_small_servers_are_parsed(gpt: Wire) -> None:
    class Plain(module):
        """You answer."""

        final_output = str

    for odd in ODD_CALLS.values():
        with case(odd):
            body = {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "small",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": None, "tool_calls": [odd]},
                        "finish_reason": "tool_calls",
                    }
                ],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
            gpt.serve([Fault(body=_json(body))])
            assert gpt.run(Plain(model=gpt.model("small"))).output == "x"


# Model dicts

FORCED = {"openai": OPENAI_FORCED, "anthropic": ANTHROPIC_FORCED}
SETTINGS: dict[str, Json] = {
    "openai": {"model": "gpt-4o", "temperature": 0.7, "max_tokens": 4096, "tool_choice": OPENAI_FORCED},
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "temperature": 0.7,
        "max_tokens": 4096,
        "tool_choice": ANTHROPIC_FORCED,
    },
}
GONE = object()
"""Stands for a setting that must not be there."""

# Keys of the dict, and how the settings in the body and the headers differ from the plain ones.
Row = tuple[str, Json, Json, Json]
ROWS: list[Row] = [
    ("openai", {}, {}, {"authorization": "Bearer sk-test"}),
    ("openai", {"api_key": "sk-other"}, {}, {"authorization": "Bearer sk-other"}),
    ("openai", {"timeout": 30}, {}, {}),
    ("openai", {"timeout": "30"}, {}, {}),
    ("openai", {"timeout": None}, {}, {}),
    ("openai", {"request_timeout": 30}, {}, {}),
    ("openai", {"top_p": 0.5}, {"top_p": 0.5}, {}),
    ("openai", {"stop": ["END"]}, {"stop": ["END"]}, {}),
    ("openai", {"stop": "END"}, {"stop": "END"}, {}),
    ("openai", {"seed": 7}, {"seed": 7}, {}),
    ("openai", {"extra_headers": {"X-Team": "oak"}}, {}, {"x-team": "oak", "authorization": "Bearer sk-test"}),
    ("openai", {"headers": {"X-Team": "oak"}}, {}, {"x-team": "oak"}),
    ("openai", {"extra_body": {"guided": {"a": 1}}}, {"guided": {"a": 1}}, {}),
    ("openai", {"organization": "org-oak"}, {}, {"openai-organization": "org-oak"}),
    (
        "openai",
        {"organization": "org-oak", "extra_headers": {"X-Team": "oak"}},
        {},
        {"openai-organization": "org-oak", "x-team": "oak"},
    ),
    ("openai", {"num_retries": 1}, {}, {}),
    ("openai", {"retry_delay": 0.1}, {}, {}),
    ("openai", {"num_retries": 0, "retry_delay": 0, "timeout": 5}, {}, {}),
    ("openai", {"max_retries": 5}, {}, {}),
    ("openai", {"user": "someone"}, {"user": "someone"}, {}),
    ("openai", {"metadata": {"ticket": "7"}}, {}, {}),
    ("openai", {"parallel_tool_calls": False}, {"parallel_tool_calls": False}, {}),
    ("openai", {"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}, {}),
    ("openai", {"presence_penalty": 0.5}, {"presence_penalty": 0.5}, {}),
    ("openai", {"logit_bias": {"5": 1}}, {"logit_bias": {"5": 1}}, {}),
    ("openai", {"service_tier": "flex"}, {"service_tier": "flex"}, {}),
    ("openai", {"store": True}, {"store": True}, {}),
    ("openai", {"top_k": 5}, {"top_k": 5}, {}),
    ("openai", {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}, {}, {}),
    ("openai", {"temperature": 0.1}, {"temperature": 0.1}, {}),
    ("openai", {"max_tokens": 77}, {"max_tokens": 77}, {}),
    ("openai", {"max_completion_tokens": 77}, {"max_completion_tokens": 77, "max_tokens": GONE}, {}),
    ("openai", {"tool_choice": "auto"}, {}, {}),
    ("openai", {"drop_params": True}, {}, {}),
    ("openai", {"model": "gpt-4o"}, {}, {}),
    ("openai", {"model": "home-made", "custom_llm_provider": "openai"}, {"model": "home-made"}, {}),
    ("openai", {"model": "openai/home-made"}, {"model": "home-made"}, {}),
    ("openai", {"model": "openai/team/home-made:v2"}, {"model": "team/home-made:v2"}, {}),
    ("openai", {"model": "hosted_vllm/home-made"}, {"model": "home-made"}, {"authorization": "Bearer sk-test"}),
    ("openai", {"model": "openrouter/openai/gpt-4o"}, {"model": "openai/gpt-4o", "usage": {"include": True}}, {}),
    ("openai", {"model": "deepseek/deepseek-chat"}, {"model": "deepseek-chat"}, {}),
    (
        "openai",
        {"model": "openai/home-made", "reasoning_effort": "low"},
        {"model": "home-made", "reasoning_effort": "low", "tool_choice": GONE},
        {},
    ),
    (
        "openai",
        {"model": "openai/gpt-5", "reasoning_effort": "low"},
        {
            "model": "gpt-5",
            "reasoning_effort": "low",
            "tool_choice": GONE,
            "temperature": GONE,
            "max_tokens": GONE,
            "max_completion_tokens": 4096,
        },
        {},
    ),
    (
        "openai",
        {"reasoning_effort": "low", "allowed_openai_params": ["reasoning_effort"]},
        {"reasoning_effort": "low", "tool_choice": GONE},
        {},
    ),
    ("anthropic", {}, {}, {"x-api-key": "sk-ant-test"}),
    ("anthropic", {"api_key": "sk-ant-other"}, {}, {"x-api-key": "sk-ant-other"}),
    ("anthropic", {"timeout": 30}, {}, {}),
    ("anthropic", {"top_p": 0.5}, {"top_p": 0.5}, {}),
    ("anthropic", {"top_k": 5}, {"top_k": 5}, {}),
    ("anthropic", {"stop": ["END"]}, {"stop_sequences": ["END"]}, {}),
    ("anthropic", {"stop": "END"}, {"stop_sequences": ["END"]}, {}),
    ("anthropic", {"extra_headers": {"X-Team": "oak"}}, {}, {"x-team": "oak", "x-api-key": "sk-ant-test"}),
    ("anthropic", {"extra_body": {"guided": {"a": 1}}}, {"guided": {"a": 1}, "extra_body": GONE}, {}),
    ("anthropic", {"num_retries": 1, "retry_delay": 0.1, "timeout": 5}, {}, {}),
    ("anthropic", {"max_retries": 5}, {}, {}),
    ("anthropic", {"user": "someone"}, {"metadata": {"user_id": "someone"}}, {}),
    ("anthropic", {"metadata": {"user_id": "someone", "ticket": "7"}}, {"metadata": {"user_id": "someone"}}, {}),
    (
        "anthropic",
        {"parallel_tool_calls": False},
        {"tool_choice": {**ANTHROPIC_FORCED, "disable_parallel_tool_use": True}},
        {},
    ),
    ("anthropic", {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}, {}, {}),
    ("anthropic", {"temperature": 0.1, "max_tokens": 77}, {"temperature": 0.1, "max_tokens": 77}, {}),
    ("anthropic", {"max_completion_tokens": 77}, {"max_tokens": 77}, {}),
    ("anthropic", {"thinking": THINKING}, {"thinking": THINKING, "tool_choice": GONE}, {}),
    ("anthropic", {"reasoning_effort": "low"}, {"thinking": THINKING, "tool_choice": GONE}, {}),
    ("anthropic", {"seed": 7, "drop_params": True}, {"seed": GONE}, {}),
    ("anthropic", {"model": "claude-sonnet-4-5"}, {}, {}),
    ("anthropic", {"model": "anthropic/claude-unheard-of"}, {"model": "claude-unheard-of"}, {}),
]


def run_row(row: Row, way: str, change: Callable[[Json, str], Json]) -> Request:
    """Return the one request that a model dict of the table sends."""
    protocol, given, _, _ = row
    with ExitStack() as stack:
        wire = Wire(protocol, way, stack)
        server = wire.serve([finish(**RIGHT)])
        config = change({**wire.model(), **given}, server.url)
        before = copy.deepcopy(config)
        assert wire.run(Single(model=config), question="Why?").output == Answer(**RIGHT)
        assert config == before, "the user's dict was written to"
        assert wire.count() == 1
        return server.requests[0]


def expected_settings(row: Row) -> Json:
    changed = {**SETTINGS[row[0]], **row[2]}
    return {name: value for name, value in changed.items() if value is not GONE}


def test_settings_in_model_dict_are_sent(way: str) -> None:
    for row in ROWS:
        with case(*row[:2]):
            request = run_row(row, way, lambda config, url: config)
            body = {name: value for name, value in request.body.items() if name not in ("messages", "tools", "system")}
            assert body == expected_settings(row)
            assert request.headers.items() >= row[3].items()
            assert len(request.body["tools"]) == 1
            assert request.body["messages"]


def _with_id(config: Json, url: str) -> Json:
    config["id"] = config.pop("model")
    return config


def _with_base_url(config: Json, url: str) -> Json:
    config["base_url"] = config.pop("api_base")
    return config


def _with_a_slash(config: Json, url: str) -> Json:
    config["api_base"] += "/"
    return config


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_synonyms_of_model_dict_keys_are_accepted(protocol: str, way: str) -> None:
    for change in [_with_id, _with_base_url, _with_a_slash]:
        with case(change):
            request = run_row((protocol, {}, {}, {}), way, change)
            assert request.path == {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}[protocol]
            assert request.body["model"] == SETTINGS[protocol]["model"]


@pytest.mark.parametrize(
    ("name", "path", "key", "base"),
    [
        ("openai/gpt-4o", "/v1/chat/completions", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
        ("gpt-4o", "/v1/chat/completions", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
        ("anthropic/claude-sonnet-4-5", "/v1/messages", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
        ("claude-sonnet-4-5", "/v1/messages", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    ],
)
def test_model_given_as_string_uses_api_key_and_address_of_environment(
    name: str, path: str, key: str, base: str, gpt: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = gpt.serve([finish(**RIGHT)])
    monkeypatch.setenv(key, "sk-from-the-environment")
    monkeypatch.setenv(base, f"{server.url}/v1" if "gpt" in name else server.url)
    gpt.run(Single(model=name), question="Why?")
    assert server.requests[0].path == path
    assert "sk-from-the-environment" in str(server.requests[0].headers)


def test_openai_organization_in_environment_is_sent_as_header(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-oak")
    request = run_row(("openai", {}, {}, {}), way, lambda config, url: config)
    assert request.headers["openai-organization"] == "org-oak"


def test_unsupported_setting_raises_error_with_setting_name(wire: Wire) -> None:
    wire.serve([])
    unknown = wire.either(openai={"thinking": THINKING}, anthropic={"frequency_penalty": 0.5})
    error = wire.fails(Single(model=wire.model(**unknown)), question="Why?")
    assert next(iter(unknown)) in str(error)
    assert "allowed_openai_params" in str(error)
    assert "litellm" not in str(error).lower()
    assert wire.count() == 0
    assert (error.status, error.retryable, error.provider) == (None, False, wire.protocol)


@pytest.mark.chat
def test_tools_for_model_without_listed_tool_support_require_allowed_openai_params(gpt: Wire) -> None:
    gpt.serve([finish(**RIGHT)])
    model = gpt.model(model="perplexity/sonar")
    error = gpt.fails(Single(model=model), question="Why?")
    assert "`allowed_openai_params: ['tools', 'tool_choice']`" in str(error)
    assert gpt.count() == 0
    run = gpt.run(Single(model={**model, "allowed_openai_params": ["tools", "tool_choice"]}), question="Why?")
    assert run.output == Answer(**RIGHT)
    assert gpt.bodies()[0]["tool_choice"] == OPENAI_FORCED
    assert gpt.bodies()[0]["tools"] == [OPENAI_FINISH]


def test_litellm_does_not_change_messages_and_tools_of_request_object(wire: Wire) -> None:
    wire.serve([Fault(status=400)])
    messages: list[Message] = [
        {"role": "system", "content": [{"type": "text", "text": "Hi", "cache_control": EPHEMERAL}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": f"data:image/png;base64,{PNG}"}]},
    ]
    request = ModelRequest(messages, OPENAI_TOOLS, 0.7, 100, cache=({"location": "message", "index": -1},))
    before = copy.deepcopy((request.messages, request.tools))
    model = LiteLLMModel(wire.model())
    with pytest.raises(ModelError):
        model.complete(request)
    assert (request.messages, request.tools) == before


def test_litellm_does_not_change_tool_schemas() -> None:
    for name in ["gemini/gemini-2.5-flash", "hosted_vllm/x", "groq/llama-3.3-70b-versatile"]:
        with case(name):
            schema = {
                "type": "object",
                "properties": {
                    "a": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "cache_control": {"type": "string"},
                },
                "additionalProperties": False,
            }
            tools = [{"type": "function", "function": {"name": "f", "description": "", "parameters": schema}}]
            before = copy.deepcopy(tools)
            with Loopback([Fault(status=400)]) as server:
                model = LiteLLMModel({"model": name, "api_base": f"{server.url}/v1", "api_key": "k"})
                with pytest.raises(ModelError):
                    model.complete(ModelRequest([{"role": "user", "content": "Hi"}], tools, 0.7, 100))
                assert len(server.requests) == 1
            assert tools == before


def test_cookies_set_by_provider_are_not_sent_back(wire: Wire, lane: str) -> None:
    if wire.is_openai and lane == "litellm":
        pytest.skip("the SDK of OpenAI, which LiteLLM uses, sends cookies")
    sticky = Fault(status=200, headers={"Set-Cookie": "session=mine; Path=/"}, reply=call("search", query="why"))
    server = wire.serve([sticky, finish(**RIGHT)])
    wire.run(Researcher(model=wire.model()), question="Why?")
    assert "cookie" not in server.requests[1].headers


# Defaults that a model refuses


@pytest.mark.chat
def test_reasoning_model_is_called_without_default_temperature(gpt: Wire) -> None:
    for name in ["gpt-5", "o3-mini"]:
        with case(name):
            gpt.serve([finish(**RIGHT), finish(**RIGHT)])
            agent = Single(model=gpt.model(name))
            for _ in range(2):
                assert gpt.run(agent, question="Why?").output == Answer(**RIGHT)
            for body in gpt.bodies():
                assert "temperature" not in body
                assert body["max_completion_tokens"] == 4096


def test_temperature_set_by_user_for_reasoning_model_raises_before_request(gpt: Wire) -> None:
    for name in ["gpt-5", "o3-mini"]:
        with case(name):
            gpt.serve([])
            error = gpt.fails(Single(model=gpt.model(name), temperature=0.2), question="Why?")
            assert "`temperature`" in str(error)
            assert not error.retryable
            assert gpt.count() == 0


REFUSALS = {
    "temperature": "Unsupported value: 'temperature' does not support 0.7 with this model.",
    "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model.",
    "tool_choice": "Thinking may not be enabled when tool_choice forces tool use.",
}


def test_default_setting_rejected_by_server_is_omitted_in_later_requests(wire: Wire) -> None:
    for name in REFUSALS:
        with case(name):
            # Anthropic requires `max_tokens`: LiteLLM then adds one that fits the model.
            wanted = 64000 if name == "max_tokens" and not wire.is_openai else None
            refusal = Fault(status=400, message=REFUSALS[name])
            wire.serve([refusal, finish(**RIGHT), finish(**RIGHT), finish(**RIGHT)])
            agent = Single(model=wire.model())
            for _ in range(3):
                assert wire.run(agent, question="Why?").output == Answer(**RIGHT)
            first, *later = wire.bodies()
            assert first[name] == SETTINGS[wire.protocol][name]
            for body in later[:1]:
                assert {**body, name: first[name]} == first
                assert body.get(name) == wanted
            # If forcing is not possible, a single turn is asked without it, and its tools are included.
            for body in later:
                assert body.get(name) == wanted
                assert body["tools"] == first["tools"]
            assert wire.count() == 4


class Stepping(Researcher):
    settings: Json

    def on_step(self, step: Step) -> None:
        for name, value in self.settings.items():
            setattr(step, name, value)


def test_setting_of_user_rejected_by_server_raises_model_error(wire: Wire) -> None:
    for name, value in (("temperature", 0.3), ("max_tokens", 50)):
        for how in ("on the class", "in the dict", "by step"):
            with case(name, how):
                first = [call("search", query="why")] if how == "by step" else []
                wire.serve([*first, Fault(status=400, message=REFUSALS[name])])
                if how == "by step":
                    agent: Any = Stepping(model=wire.model())
                    agent.settings = {name: value}
                elif how == "in the dict":
                    agent = Single(model=wire.model(**{name: value}))
                else:
                    agent = Single(model=wire.model(), **{name: value})
                error = wire.fails(agent, question="Why?")
                assert name in str(error)
                assert "Change or remove it" in str(error)
                assert (error.status, error.retryable) == (400, False)
                assert wire.bodies()[-1][name] == value
                assert wire.count() == (2 if how == "by step" else 1)


def test_temperature_set_after_rejected_default_temperature_is_sent(wire: Wire) -> None:
    refusal = Fault(status=400, message=REFUSALS["temperature"])
    wire.serve([refusal, finish(**RIGHT), refusal])
    agent = Researcher(model=wire.model())
    wire.run(agent, question="Why?")
    error = wire.fails(agent.using(temperature=0.3), question="Why?")
    assert "`temperature`" in str(error)
    assert [body.get("temperature") for body in wire.bodies()] == [0.7, None, 0.3]


def test_error_400_that_only_mentions_temperature_in_name_is_raised(wire: Wire) -> None:
    told = Fault(status=400, message="Invalid schema for function 'set_temperature'.")
    wire.serve([told, told, finish(**RIGHT)])
    agent = Researcher(model=wire.model())
    error = wire.fails(agent, question="Why?")
    assert "set_temperature" in str(error)
    wire.run(agent, question="Why?")
    assert [body.get("temperature") for body in wire.bodies()] == [0.7, None, 0.7]


def test_rejected_default_temperature_is_also_omitted_in_retry(wire: Wire) -> None:
    refusal = Fault(status=400, message=REFUSALS["temperature"])
    wire.serve([refusal, Fault(status=503), finish(**RIGHT)])
    wire.run(Researcher(model=wire.model(num_retries=1)), question="Why?")
    assert [body.get("temperature") for body in wire.bodies()] == [0.7, None, None]


def test_rejected_default_setting_is_remembered_only_for_same_server_address(wire: Wire) -> None:
    wire.serve([Fault(status=400, message=REFUSALS["temperature"]), finish(**RIGHT)])
    wire.run(Researcher(model=wire.model()), question="Why?")
    wire.serve([finish(**RIGHT)])
    wire.run(Researcher(model=wire.model()), question="Why?")
    assert wire.bodies()[0]["temperature"] == 0.7


def test_rejected_default_setting_is_remembered_per_combination_of_settings(wire: Wire) -> None:
    wire.serve([Fault(status=400, message=REFUSALS["temperature"]), finish(**RIGHT), finish(**RIGHT), finish(**RIGHT)])
    wire.run(Researcher(model=wire.model(top_p=0.9)), question="Why?")
    wire.run(Researcher(model=wire.model(top_p=0.8)), question="Why?")
    wire.run(Researcher(model=wire.model(top_p=0.9, user="another")), question="Why?")
    assert [body.get("temperature") for body in wire.bodies()] == [0.7, None, 0.7, None]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
