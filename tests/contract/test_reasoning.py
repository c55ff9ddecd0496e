"""Tests of reasoning: acorn sends it back to the model that wrote it, also after history edits, resume and branches.

Anthropic signs its reasoning, OpenAI's Responses encrypt it, and Gemini puts the signature into the id of a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.contract.test_responses import how as how
from tests.contract.test_responses import run
from tests.loopback import EVENTS, Fault, Loopback, Request, anthropic_stream
from tests.loopback_gemini import gemini, gemini_answer, gemini_answers, signature

from acorn import ModelError, Run, Step, module, tool
from acorn.models.request import ModelRequest, SentMessages, SentPart
from acorn.models.resolve import resolve
from acorn.testing import Reply, call, finish
from acorn.types import Message

Json = dict[str, Any]
SEALED = "reasoning.encrypted_content"
THINKING: Json = {"type": "enabled", "budget_tokens": 1024}
FIRST = Reply(reasoning="Hm.") & call("look", place="here")
SECOND = Reply(reasoning="Aha.") & call("look", place="there")
DONE = finish(result="done")


class Looking(module):
    """You answer."""

    final_output = str
    max_steps = 6

    @tool
    def look(self, place: str) -> str:
        """Look somewhere."""
        return f"nothing at {place}"


class Talk:
    """A provider whose model reasons, on one of the lanes."""

    def __init__(self, spoken: str, lane: str, replies: list[Reply]) -> None:
        self.spoken, self.lane = spoken, lane
        self.server = Loopback(gemini_answers(replies) if spoken == "gemini" else replies)

    @property
    def model(self) -> Json:
        if self.spoken == "gemini":
            return gemini(self.server)
        if self.spoken == "anthropic":
            return self.server.anthropic(lane=self.lane, thinking=THINKING)
        return self.server.responses("gpt-5", lane=self.lane, store=False, include=[SEALED])

    def sent(self, at: int) -> list[str]:
        """Return the reasoning parts of a request, in order."""
        body = self.server.bodies()[at]
        if self.spoken == "responses":
            return [item["encrypted_content"] for item in body["input"] if item["type"] == "reasoning"]
        if self.spoken == "anthropic":
            blocks = [block for message in body["messages"] for block in message["content"]]
            assert all(block["thinking"] for block in blocks if block["type"] == "thinking")
            return [block["signature"] for block in blocks if block["type"] == "thinking"]
        parts = [part for content in body["contents"] for part in content["parts"]]
        return [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]

    def expected(self, *numbers: int) -> list[str]:
        forms = {"responses": "sealed-{}", "anthropic": "signature-{}"}
        if self.spoken == "gemini":
            return [signature(number) for number in numbers]
        return [forms[self.spoken].format(number) for number in numbers]


SPEAKERS = [
    ("anthropic", "native"),
    ("anthropic", "litellm"),
    ("responses", "native"),
    ("responses", "litellm"),
    ("gemini", "litellm"),
]


@pytest.fixture(params=SPEAKERS, ids=lambda pair: "-".join(pair))
def speaker(request: pytest.FixtureRequest, litellm_is_loaded: None) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def talk(speaker: tuple[str, str]) -> Iterator[Talk]:
    made = Talk(*speaker, [FIRST, SECOND, DONE])
    with made.server:
        yield made


def test_reasoning_is_sent_back_in_tool_loop(talk: Talk, how: str) -> None:
    assert run(Looking(model=talk.model), how) == "done"
    assert [talk.sent(at) for at in range(3)] == [[], talk.expected(1), talk.expected(1, 2)]


def test_reasoning_is_sent_back_after_resume_from_store(talk: Talk, tmp_path: Path, how: str) -> None:
    """Pause the run after the first call, and resume it in another instance from the file."""

    @tool(approval=True)
    def look(place: str) -> str:
        """Look somewhere."""
        return "nothing"

    class Asking(module):
        """You answer."""

        final_output = str
        max_steps = 6
        tools = [look]
        store = tmp_path / "runs.db"

    paused = run(Asking(model=talk.model), how)
    for _ in range(2):
        paused = Asking(model=talk.model).resume(paused.run_id, answer=True)
    assert paused == "done"
    assert [talk.sent(at) for at in range(3)] == [[], talk.expected(1), talk.expected(1, 2)]


def test_reasoning_is_sent_back_after_json_load(speaker: tuple[str, str]) -> None:
    """Read the record and use it as the start of another conversation."""
    talk = Talk(*speaker, [FIRST, DONE, SECOND, DONE])
    with talk.server:
        first = Looking(model=talk.model).run()
        read: Run[Any] = Run.from_json(first.to_json())
        assert Looking(model=talk.model).using(history=read)() == "done"
    # Gemini also signs the call that ends a run.
    before = [1, 2] if talk.spoken == "gemini" else [1]
    assert [talk.sent(at) for at in (2, 3)] == [talk.expected(*before), talk.expected(*before, 3)]


def test_reasoning_is_sent_back_in_branches(speaker: tuple[str, str]) -> None:
    class Checking(module):
        """Check it."""

        final_output = str
        max_steps = 4

    class Parent(Looking):
        branches = {"check": Checking}

    begun = Reply(reasoning="Well.") & call("check")
    talk = Talk(*speaker, [FIRST, begun, SECOND, DONE, DONE])
    with talk.server:
        assert Parent(model=talk.model)() == "done"
    within, behind = talk.sent(3), talk.sent(4)
    assert within == talk.expected(1, 2, 3)
    assert behind == talk.expected(1, 2)


def test_reasoning_is_sent_back_after_history_edits(talk: Talk, how: str) -> None:
    class Editing(Looking):
        def on_step(self, step: Step) -> None:
            self.history.append({"role": "user", "content": "Be quick."})
            self.history[:] = [message.copy() for message in self.history]  # Copies, which work as well.
            self.history[1]["content"] = "<input>another</input>"

    assert run(Editing(model=talk.model), how) == "done"
    assert [talk.sent(at) for at in range(3)] == [[], talk.expected(1), talk.expected(1, 2)]


def test_reasoning_of_removed_message_is_not_sent_back(talk: Talk) -> None:
    class Forgetting(Looking):
        def on_step(self, step: Step) -> None:
            if step.counter == 2:
                self.history[:] = [*self.history[:2], *self.history[-1:]]

    assert Forgetting(model=talk.model)() == "done"
    assert talk.sent(2) == talk.expected(2)


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_redacted_reasoning_of_stream_is_sent_back_in_order(lane: str, litellm_is_loaded: None) -> None:
    """Check that data hidden by Anthropic is sent back unchanged."""
    hidden = {"type": "redacted_thinking", "data": "opaque"}
    stream = anthropic_stream(FIRST, {"model": "claude"}, 1, 8).decode().split("\n\n")
    number = 1  # Of the block after the shown reasoning.
    later = [event.replace('"index": 1', '"index": 2') for event in stream]
    begin = {"type": "content_block_start", "index": number, "content_block": hidden}
    end = {"type": "content_block_stop", "index": number}
    added = [f"event: {event['type']}\ndata: {json.dumps(event)}" for event in (begin, end)]
    at = next(at for at, event in enumerate(later) if '"tool_use"' in event)
    body = "\n\n".join([*later[:at], *added, *later[at:]]).encode()
    with Loopback([Fault(body=body, content_type=EVENTS), DONE]) as server:
        assert list(Looking(model=server.anthropic(lane=lane, thinking=THINKING)).stream())[-1].result == "done"
    blocks = server.bodies()[1]["messages"][1]["content"]
    shown = {"type": "thinking", "thinking": "Hm.", "signature": "signature-1"}
    assert blocks[:2] == [shown, hidden]
    assert blocks[2]["type"] == "tool_use"


def signed(number: int) -> Json:
    return {"type": "thinking", "thinking": f"Thought {number}.", "signature": f"signature-{number}"}


def as_events(blocks: list[Json]) -> Iterator[Json]:
    yield {"type": "message_start", "message": {"usage": {"input_tokens": 1}, "model": "claude"}}
    for index, block in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}}
    yield {"type": "message_stop"}


SAID: Json = {"type": "text", "text": "Let me see."}
USE: Json = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"place": "here"}}


def answered(blocks: list[Json]) -> Json:
    return {"type": "message", "role": "assistant", "content": blocks, "stop_reason": "tool_use", "usage": {}}


def test_reasoning_between_text_and_call_is_sent_back_in_order(how: str) -> None:
    """Check the order of signed blocks: Anthropic refuses a turn whose signed blocks were moved."""
    blocks = [signed(1), SAID, signed(2), USE]
    events = "".join(f"data: {json.dumps(event)}\n\n" for event in as_events(blocks))
    is_stream = how.startswith("streamed")
    first = (
        Fault(body=events.encode(), content_type=EVENTS)
        if is_stream
        else Fault(body=json.dumps(answered(blocks)).encode())
    )
    with Loopback([first, DONE]) as server:
        assert run(Looking(model=server.anthropic(thinking=THINKING)), how) == "done"
    assert server.bodies()[1]["messages"][1]["content"] == blocks


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_reasoning_before_removed_tool_call_is_not_sent_back(lane: str, litellm_is_loaded: None) -> None:
    class Removing(Looking):
        def on_step(self, step: Step) -> None:
            del self.history[-1]["tool_calls"]
            step.model = other.anthropic(lane=lane, thinking=THINKING)

    first = Fault(body=json.dumps(answered([signed(1), SAID, signed(2), USE])).encode())
    with Loopback([first]) as server, Loopback([DONE]) as other:
        assert Removing(model=server.anthropic(thinking=THINKING))() == "done"
    assert other.bodies()[0]["messages"][1]["content"] == [signed(1), SAID]


AMAZONS: Json = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region_name": "us-east-1"}
OTHERS: list[tuple[str, Json, bool]] = [
    ("gemini/gemini-2.5-flash", {"api_key": "k"}, False),
    ("cohere_chat/command-r", {"api_key": "k"}, False),
    ("mistral/mistral-large-latest", {"api_key": "k"}, False),
    ("bedrock/amazon.nova-pro-v1:0", AMAZONS, False),
    ("bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0", AMAZONS, True),
]


def test_signed_claude_reasoning_is_sent_only_to_claude(litellm_is_loaded: None) -> None:
    class Changing(Looking):
        def on_step(self, step: Step) -> None:
            step.model = changed[-1]

    changed: list[Json] = []
    for name, keys, reads in OTHERS:
        with case(name):
            with Loopback([FIRST]) as first, Loopback([Fault(status=400)]) as other:
                changed.append({"model": name, "api_base": other.url, "num_retries": 0, **keys})
                with pytest.raises(ModelError):
                    Changing(model=first.anthropic(thinking=THINKING))()
                raw = other.requests[0].raw
            assert (b"signature-1" in raw) is (b"Hm." in raw) is reads
            assert b"thinking_blocks" not in raw


def test_unsigned_gemini_reasoning_is_not_sent_to_claude(how: str, litellm_is_loaded: None) -> None:
    class Changing(Looking):
        def on_step(self, step: Step) -> None:
            step.model = other.anthropic(thinking=THINKING)

    made = gemini_answer(FIRST, 1)
    made["candidates"][0]["content"]["parts"].insert(0, {"text": "Hm.", "thought": True})

    def answer(request: Request) -> Fault:
        if "streamGenerateContent" in request.path:
            return Fault(body=f"data: {json.dumps(made)}\n\n".encode(), content_type=EVENTS)
        return Fault(body=json.dumps(made).encode())

    with Loopback(answer) as first, Loopback([DONE]) as other:
        assert run(Changing(model=gemini(first)), how) == "done"
        assert b"Hm." not in other.requests[0].raw


# Gemini's signatures are in the ids of its calls.


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_gemini_signature_in_call_id_is_sent_only_to_gemini(lane: str, litellm_is_loaded: None) -> None:
    class Changing(Looking):
        def on_step(self, step: Step) -> None:
            step.model = other.anthropic(lane=lane) if step.counter == 1 else gemini(first)

    answers = gemini_answers([FIRST & call("look", place="too"), DONE])
    with Loopback(answers) as first, Loopback([SECOND]) as other:
        assert Changing(model=gemini(first))() == "done"
        (request,) = other.requests
        parts = [part for content in first.bodies()[1]["contents"] for part in content["parts"]]
    assert b"__thought__" not in request.raw
    blocks = [block for message in request.body["messages"] for block in message["content"]]
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"] == calls
    assert len(set(calls)) == 2
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", id) for id in calls)
    # Back at its author, it is there again.
    signed = [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]
    assert {signature(1, 0), signature(1, 1)} <= set(signed)


def test_request_to_fallback_model_of_gemini_contains_no_gemini_signature(litellm_is_loaded: None) -> None:
    answer = gemini_answers([FIRST])
    with (
        Loopback(lambda request: Fault(status=503) if len(first.requests) > 1 else answer(request)) as first,
        Loopback([DONE]) as other,
    ):
        assert Looking(model=[gemini(first, num_retries=0), other.anthropic()])() == "done"
        assert b"__thought__" not in other.requests[0].raw


SIGNED = f"call_1__thought__{signature(1)}"
CALLED: list[Message] = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": SIGNED, "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": SIGNED, "content": "nothing"},
]


@pytest.mark.parametrize("model", ["openai/gpt-4o", "openai/responses/gpt-4o"])
def test_long_call_ids_are_shortened_for_openai_but_not_for_custom_server(model: str) -> None:
    def sent(**config: Any) -> Json:
        made: Any = resolve({"model": model, "api_key": "k", **config}, "Looking")
        conversation = SentMessages()
        conversation.messages = CALLED
        request = ModelRequest(SentPart(conversation), [], 0.7, 100)
        written: Json = json.loads(made.lane.body(request, (), is_stream=False))
        return written

    def ids(body: Json) -> list[str]:
        if "input" in body:
            return [item["call_id"] for item in body["input"] if "call_id" in item]
        return [body["messages"][1]["tool_calls"][0]["id"], body["messages"][2]["tool_call_id"]]

    first, second = ids(sent())
    assert first == second
    assert len(first) <= 40
    assert "thought" not in first
    assert ids(sent(base_url="http://localhost:4000")) == [SIGNED, SIGNED]
