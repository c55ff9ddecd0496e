"""Tests of the chat completions API of the service: requests, and plain and streamed responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel
from tests.cases import case
from tests.web.serve.served_agent import Clerk, Echo, Greeter
from tests.web.serve.server import BY_APPROVER, app, events, get, post

from acorn import module
from acorn.stores import MemoryStore
from acorn.testing import Failure, ScriptedModel, finish

CHAT = "/v1/chat/completions"


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(service: Any, *messages: dict[str, Any], **more: Any) -> str:
    answer = post(service, CHAT, {"messages": list(messages), **more})
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["choices"][0]["message"]["content"]
    return found


@pytest.fixture
def clerk() -> Any:
    return app(Clerk(store=MemoryStore()))


def test_models_route_lists_agent_as_its_only_model() -> None:
    assert [model["id"] for model in get(app(Echo()), "/v1/models").json()["data"]] == ["Echo"]
    wrong = post(app(Echo()), CHAT, {"model": "gpt-5", "messages": [user("x")]})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
    assert "`Echo`" in wrong.json()["error"]["message"]


def test_chat_message_is_passed_as_text_input_of_agent() -> None:
    assert said(app(Echo()), user("{not json} \U0001f330")) == "{not json} \U0001f330"
    assert said(app(Echo()), user('{"result": 1}')) == '{"result": 1}'
    assert said(app(Echo()), user([{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}])) == "in parts"
    assert said(app(Greeter()), user("whatever")) == "hello"


def test_chat_message_is_passed_as_text_field_or_parsed_as_json_input(clerk: Any) -> None:
    assert json.loads(said(clerk, user("Whence?"))) == {"answer": "Whence?", "confidence": 1.0}
    assert json.loads(said(clerk, user('{"question": "Whither?", "limit": 2}')))["answer"] == "Whither?"
    assert json.loads(said(clerk, user('{"other": 1}')))["answer"].count("other") == 1
    wrong = post(clerk, CHAT, {"messages": [user('{"question": "Whither?", "limit": 99}')]})
    assert wrong.json()["error"]["problems"][0]["path"] == "limit"


def test_chat_with_agent_without_text_field_requires_json_message() -> None:
    class Sum(BaseModel):
        a: int
        b: int

    class Adder(module[Sum, int]):
        """Add."""

        model = ScriptedModel(lambda request: finish(3))

    assert said(app(Adder()), user('{"a": 1, "b": 2}')) == "3"
    wrong = post(app(Adder()), CHAT, {"messages": [user("one and two")]})
    assert wrong.status_code == 400
    assert "`a`, `b`" in wrong.json()["error"]["message"]


def test_earlier_chat_messages_are_sent_as_history_after_prompt(clerk: Any) -> None:
    earlier = [{"role": "system", "content": "Be brief."}, user("Hi"), {"role": "assistant", "content": "Ho"}]
    found = json.loads(said(clerk, *earlier, user("history")))["answer"].split("|")
    assert found[0].startswith("system: Answer the question.")
    assert found[1:] == ["system: Be brief.", "user: Hi", "assistant: Ho"]


UNSUPPORTED: list[tuple[Any, str]] = [
    ([], "body"),
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": ["x"]}, "messages[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
    ({"messages": [user([{"type": "image_url", "image_url": {"url": "x"}}])]}, "messages[0].content[0].type"),
    ({"messages": [user("x")], "tools": [{"type": "function"}]}, "tools"),
    (
        {"messages": [user([{"type": "image_url", "image_url": {"url": "http://x"}}]), user("x")]},
        "messages[0].content[0].type",
    ),
    ({"messages": [user("x")], "n": 2}, "n"),
    ({"messages": [user("x")], "stream": "yes"}, "stream"),
    ({"messages": [user("x")], "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": [user("x")], "response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"messages": [user("x")], "response_format": "text"}, "response_format"),
    ({"messages": [user("x")], "stream_options": 1}, "stream_options"),
]


def test_chat_request_without_json_object_returns_400_without_class_names() -> None:
    for body, message in [
        ([], "The request body must be a JSON object."),
        ({"messages": [1]}, "`messages[0]` must be a JSON object."),
        ({"messages": [user("x")], "stream_options": 1}, "`stream_options` must be a JSON object."),
    ]:
        with case(body):
            wrong = post(app(Echo()), CHAT, body)
            assert (wrong.status_code, wrong.json()["error"]["message"]) == (400, message)


def test_unsupported_chat_request_returns_400_with_parameter_name() -> None:
    for body, param in UNSUPPORTED:
        with case(body, param):
            wrong = post(app(Echo()), CHAT, body)
            assert wrong.status_code == 400
            assert wrong.json()["error"]["param"] == param


def test_model_parameters_in_chat_request_are_ignored() -> None:
    tuned = {"temperature": 2, "max_tokens": 1, "stop": ["e"], "user": "me", "tools": [], "n": 1, "logprobs": False}
    assert said(app(Echo()), user("hello"), **tuned) == "hello"


def test_chat_request_for_json_response_format_returns_json_output(clerk: Any) -> None:
    assert json.loads(said(clerk, user("hello"), response_format={"type": "json_object"}))["answer"] == "hello"
    assert said(app(Echo()), user("hello"), response_format={"type": "text"}) == "hello"


def test_earlier_chat_messages_are_reduced_to_their_text(clerk: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "leave", "arguments": "{}"}}
    earlier = [
        user([{"type": "text", "text": "first "}, {"type": "text", "text": "part"}]),
        {"role": "assistant", "content": "fine", "tool_calls": [call], "refusal": None, "name": "x"},
    ]
    found = said(clerk, *earlier, user("history"))
    assert "user: first part|assistant: fine" in found


def pieces(service: Any, content: str, **more: Any) -> list[Any]:
    return events(post(service, CHAT, {"messages": [user(content)], "stream": True, **more}))


def text_in(found: list[Any], name: str = "content") -> str:
    chunks = [event for event in found if event != "[DONE]" and event["choices"]]
    return "".join(chunk["choices"][0]["delta"].get(name, "") for chunk in chunks)


def test_chat_stream_events_have_openai_format() -> None:
    found = pieces(app(Echo()), "as it is written", stream_options={"include_usage": True})
    assert found[-1] == "[DONE]"
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    assert text_in(found) == "as it is written"
    assert found[-3]["choices"][0]["finish_reason"] == "stop"
    assert found[-2]["choices"] == []
    assert found[-2]["usage"]["total_tokens"] == sum(
        found[-2]["usage"][name] for name in ("prompt_tokens", "completion_tokens")
    )
    assert len({event["id"] for event in found[:-1]}) == 1
    assert all("usage" not in event for event in pieces(app(Echo()), "x")[:-1])


def test_streamed_chat_answer_equals_answer_without_streaming(clerk: Any) -> None:
    assert text_in(pieces(clerk, "Whence?")) == said(clerk, user("Whence?"))
    assert json.loads(text_in(pieces(clerk, "Whence?")))["answer"] == "Whence?"


def test_chat_stream_contains_rejected_answer_and_then_corrected_answer() -> None:
    class Short(module[str, str]):
        """Be brief."""

        def on_finish(self, output: str) -> None:
            if len(output) > 10:
                raise ValueError("too long")

    model = ScriptedModel([finish("a long and winding answer"), finish("a short")])
    found = text_in(pieces(app(Short(model=model)), "x"))
    assert found == "a long and winding answer\n\na short"


def test_chat_request_whose_run_pauses_returns_error_with_run_id_and_without_question(clerk: Any) -> None:
    waits = post(clerk, CHAT, {"messages": [user("refund")]})
    assert waits.status_code == 403  # OpenAI's client does not repeat such a request.
    error = waits.json()["error"]
    streamed = events_or_error(clerk, "refund")
    assert error["type"] == streamed["type"] == "paused"
    for found in (error, streamed):
        assert "refund" not in str(found)
        assert "200" not in str(found)
        ended = post(clerk, f"/runs/{found['run_id']}/answer", {"answer": True}, headers=BY_APPROVER)
        assert ended.json()["answer"] == "200.0 paid back"


def events_or_error(service: Any, content: str) -> Any:
    """Return the error of a streamed chat completion."""
    answer = post(service, CHAT, {"messages": [user(content)], "stream": True})
    found = answer.json() if answer.status_code != 200 else events(answer)[-1]
    return found["error"]


def test_model_failure_during_chat_stream_is_sent_as_last_event() -> None:
    model = ScriptedModel([Failure(status=500, after=finish("half of it"))])
    found = pieces(app(Echo(model=model)), "x")
    assert found[-1]["error"]["type"] == "model"
    assert "[DONE]" not in found
