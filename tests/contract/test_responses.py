"""Tests of OpenAI's Responses API: reasoning items, unusual streams, and errors in streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.cases import case
from tests.loopback import EVENTS, Fault, Loopback
from tests.loopback_responses import responses_stream

from acorn import ModelError, Step, module, tool
from acorn.models.lanes.openai_responses import OpenAIResponses
from acorn.models.request import ModelRequest
from acorn.testing import Reply, call, finish
from acorn.types import Message

Json = dict[str, Any]
DONE = finish(result="done")
SEALED = "reasoning.encrypted_content"


class Looking(module):
    """You answer."""

    final_output = str
    max_steps = 4

    @tool
    def look(self, place: str) -> str:
        """Look somewhere."""
        return f"nothing at {place}"


@pytest.fixture(params=["whole", "whole, async", "streamed", "streamed, async"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(agent: module[Any, Any], how: str) -> Any:
    async def astream() -> list[Any]:
        return [chunk async for chunk in agent.astream()]

    if how.startswith("whole"):
        return asyncio.run(agent.acall()) if "async" in how else agent()
    return (asyncio.run(astream()) if "async" in how else list(agent.stream()))[-1].result


def thought(number: int, text: str) -> Json:
    summary = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": f"rs_{number}", "summary": summary, "encrypted_content": f"sealed-{number}"}


def called(id: str, place: str) -> Json:
    return {"type": "function_call", "call_id": id, "name": "look", "arguments": json.dumps({"place": place})}


def answer(*items: Json, **rest: Any) -> Json:
    return {"status": "completed", "output": list(items), "model": "gpt-5", **rest}


def whole(*items: Json, **rest: Any) -> Fault:
    return Fault(body=json.dumps(answer(*items, **rest)).encode())


def streamed(*events: Json) -> Fault:
    return Fault(body="".join(f"data: {json.dumps(event)}\n\n" for event in events).encode(), content_type=EVENTS)


# Reasoning


def test_encrypted_reasoning_is_sent_back_throughout_tool_loop(how: str) -> None:
    script = [
        Reply(reasoning="Hm.") & call("look", place="here"),
        Reply("Well.", reasoning="Aha.") & call("look", place="there"),
        DONE,
    ]
    with Loopback(script) as server:
        assert run(Looking(model=server.responses("gpt-5")), how) == "done"
    assert all((body["store"], body["include"]) == (False, [SEALED]) for body in server.bodies())
    kinds = [[item["type"] for item in body["input"]] for body in server.bodies()]
    first = ["message", "reasoning", "function_call", "function_call_output"]
    assert kinds[1:] == [first, [*first, "reasoning", "message", "function_call", "function_call_output"]]
    sent = [item for item in server.bodies()[2]["input"] if item["type"] == "reasoning"]
    assert sent == [thought(1, "Hm."), thought(2, "Aha.")]


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_encrypted_reasoning_requested_with_include_setting_is_sent_back(how: str, lane: str) -> None:
    script = [Reply(reasoning="Hm.") & call("look", place="here"), DONE]
    with Loopback(script) as server:
        model = server.responses("gpt-5", lane=lane, store=False, include=[SEALED])
        assert run(Looking(model=model), how) == "done"
    assert [item for item in server.bodies()[1]["input"] if item["type"] == "reasoning"] == [thought(1, "Hm.")]


def test_reasoning_items_are_sent_back_in_original_order() -> None:
    items = [
        *(thought(1, "a"), {"type": "message", "content": [{"type": "output_text", "text": "Well."}]}),
        *(thought(2, "b"), called("x", "here"), called("y", "there"), thought(3, "c"), called("z", "where")),
    ]
    with Loopback([whole(*items), DONE]) as server:
        assert Looking(model=server.responses("gpt-5"))() == "done"
    sent = [item.get("id") or item.get("call_id") for item in server.bodies()[1]["input"][1:]]
    assert sent == ["rs_1", None, "rs_2", "x", "y", "rs_3", "z", "x", "y", "z"]
    assert "before" not in json.dumps(server.bodies()[1]["input"])


def test_reasoning_item_without_encrypted_content_is_not_sent() -> None:
    unsealed = {key: value for key, value in thought(1, "a").items() if key != "encrypted_content"}
    with Loopback([whole(unsealed, called("x", "here")), DONE] * 2) as server:
        Looking(model=server.responses("gpt-5"))()
        Looking(model=server.responses("gpt-5", store=True))()
    kinds = [[item["type"] for item in body["input"]] for body in server.bodies()]
    assert "reasoning" not in kinds[1]
    assert "reasoning" in kinds[3]


@pytest.mark.parametrize("lane", ["native", "litellm"])
@pytest.mark.parametrize("spoken", ["openai", "anthropic"])
def test_reasoning_items_are_not_sent_to_other_provider(spoken: str, lane: str) -> None:
    class Changing(Looking):
        def on_step(self, step: Step) -> None:
            step.model = getattr(server, spoken)(lane=lane)

    with Loopback([Reply(reasoning="Hm.") & call("look", place="here"), DONE]) as server:
        done = Changing(model=server.responses("gpt-5")).run()
    assert done.output == "done"
    assert done.history[2]["reasoning_items"] == [thought(1, "Hm.")]
    assert b"sealed" not in server.requests[1].raw
    assert b"reasoning" not in server.requests[1].raw


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_reasoning_items_are_not_sent_to_model_without_reasoning(lane: str, litellm_is_loaded: None) -> None:
    """Skip OpenAI, which refuses these settings."""
    reply = Reply(reasoning="Hm.") & call("look", place="here")

    class Changing(Looking):
        def on_step(self, step: Step) -> None:
            step.model = server.responses("gpt-4o", lane=lane)

    with Loopback([reply, DONE]) as server:
        assert Changing(model=server.responses("gpt-5", lane="native"))() == "done"
    assert [item["type"] for item in server.bodies()[1]["input"]] == [
        "message",
        "function_call",
        "function_call_output",
    ]


def test_reasoning_summary_paragraphs_are_separated_by_blank_line() -> None:
    parts = [{"type": "summary_text", "text": text} for text in ("First.", "Second.")]
    long = {**thought(1, ""), "summary": parts}
    seen: list[str | None] = []

    class Watching(Looking):
        def on_step(self, step: Step) -> None:
            seen.append(step.reasoning)

    deltas: list[Json] = [
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": at, "delta": piece}
        for at, piece in ((0, "Fir"), (0, "st."), (1, "Second."))
    ]
    made = called("x", "here")
    events: list[Json] = [*deltas, {"type": "response.output_item.done", "output_index": 1, "item": made}]
    end = {"type": "response.completed", "response": answer(long, made)}
    with Loopback([whole(long, made), DONE, streamed(*events, end), DONE]) as server:
        agent = Watching(model=server.responses("gpt-5"))
        agent()
        assert list(agent.stream())[-1].result == "done"
    assert seen == ["First.\n\nSecond."] * 2


# Responses


def test_responses_refusal_raises_model_error_with_text(how: str) -> None:
    with Loopback([Reply(refusal="I would rather not.")]) as server, pytest.raises(ModelError, match="I would rather"):
        run(Looking(model=server.responses()), how)


def test_repeated_tool_call_ids_of_responses_api_are_replaced_by_item_ids() -> None:
    made = [{**called("call_0", "here"), "id": f"fc_{number}"} for number in range(2)]
    with Loopback([whole(made[0]), whole(made[1]), DONE]) as server:
        assert Looking(model=server.responses())() == "done"
    ids = [item["call_id"] for item in server.bodies()[2]["input"] if item["type"] != "message"]
    assert ids == ["fc_0", "fc_0", "fc_1", "fc_1"]


def test_responses_stream_without_deltas_returns_text_and_output() -> None:
    """Return variants of a stream: some servers send no deltas, and some send no items at the end."""
    made = {**called("x", "here"), "arguments": '{"result": "done"}', "name": "__finish__"}
    said = {"type": "message", "content": [{"type": "output_text", "text": "Well."}]}
    events: list[Json] = [
        {"type": "response.output_item.done", "output_index": 0, "item": said},
        {"type": "response.output_item.added", "output_index": 1, "item": {**made, "arguments": ""}},
        {"type": "response.output_item.done", "output_index": 1, "item": made},
        {"type": "response.completed", "response": answer()},
    ]
    with Loopback([streamed(*events)]) as server:
        chunks = list(Looking(model=server.responses()).stream())
    assert chunks[-1].result == "done"
    assert "".join(chunk.content or "" for chunk in chunks) == "Well."


FAILURES: dict[str, tuple[Json, int]] = {
    "failed": ({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "busy"}}}, 500),
    "throttled": (
        {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "busy"}}},
        429,
    ),
    "an error": ({"type": "error", "code": None, "message": "busy", "param": None}, 500),
    "an error inside": ({"type": "error", "error": {"type": "invalid_request_error", "message": "busy"}}, 400),
}


@pytest.mark.parametrize("way", ["sync", "async"])
def test_responses_stream_error_is_retried_unless_its_code_means_status_400(way: str) -> None:
    for name in FAILURES:
        with case(name):
            event, status = FAILURES[name]
            how = "streamed" if way == "sync" else "streamed, async"
            created = {"type": "response.created", "response": {}}
            with (
                Loopback([streamed(created, event)] * 3) as server,
                pytest.raises(ModelError, match="busy") as caught,
            ):
                run(Looking(model=server.responses(num_retries=1)), how)
            assert (caught.value.status, len(server.requests)) == (status, 1 if status == 400 else 2)


def test_failed_response_is_retried_but_cancelled_response_raises() -> None:
    error = {"code": "server_error", "message": "busy"}
    with Loopback([whole(status="failed", error=error), DONE]) as server:
        assert Looking(model=server.responses(num_retries=1))() == "done"
    with Loopback([whole(status="cancelled")]) as server, pytest.raises(ModelError, match="cancelled"):
        Looking(model=server.responses(num_retries=0))()


def test_interrupted_responses_stream_raises_model_error() -> None:
    events = responses_stream(DONE, {}, 1, 8).split(b"\n\n")
    cut = Fault(body=b"\n\n".join(events[:-2]) + b"\n\n", content_type=EVENTS)
    with Loopback([cut]) as server, pytest.raises(ModelError, match="ended before the response was complete"):
        list(Looking(model=server.responses(num_retries=0)).stream())


# Settings


def test_rejected_max_tokens_of_user_raises_error_with_setting_name() -> None:
    words = "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 5 instead."
    with Loopback([Fault(status=400, message=words)]) as server, pytest.raises(ModelError) as caught:
        Looking(model=server.responses(), max_tokens=5)()
    assert "The model does not support the `max_tokens` that was set" in str(caught.value)


def test_rejected_default_max_tokens_is_omitted_in_later_requests() -> None:
    words = "Unsupported parameter: 'max_output_tokens' is not supported with this model."
    with Loopback([Fault(status=400, message=words), DONE, DONE]) as server:
        agent = Looking(model=server.responses(num_retries=0))
        assert [agent(), agent()] == ["done", "done"]
    assert ["max_output_tokens" in body for body in server.bodies()] == [True, False, False]


def test_system_message_without_other_messages_is_sent_in_input_field() -> None:
    lane = OpenAIResponses({"model": "openai/responses/gpt-4o"})
    request = ModelRequest([{"role": "system", "content": "You answer."}], [], 0.5, 10)
    body = json.loads(lane.body(request, (), is_stream=False))
    assert body["input"] == [
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "You answer."}]}
    ]
    assert "instructions" not in body


def test_leading_system_messages_are_sent_as_instructions_after_each_history_change() -> None:
    lane = OpenAIResponses({"model": "openai/responses/gpt-4o"})
    system, again, user = (Message(role=role, content=role) for role in ("system", "system", "user"))

    def sent(*messages: Message) -> tuple[str | None, list[str]]:
        body = json.loads(lane.body(ModelRequest(list(messages), [], 0.5, 10), (), is_stream=False))
        return body.get("instructions"), [item["role"] for item in body["input"]]

    assert sent(system, again, user) == ("system system", ["user"])
    assert sent(user, again, user) == (None, ["user", "system", "user"])
    assert sent(system, user) == ("system", ["user"])
