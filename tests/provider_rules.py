"""What every provider demands of a message list. All tests that look at requests share this one judge."""

from __future__ import annotations

import json
from typing import Any

from acorn.models import ModelRequest


def assert_valid(messages: list[dict[str, Any]]) -> None:
    """Fail with the reason where OpenAI or Anthropic would answer 400."""
    assert messages, "an empty message list"
    json.dumps(messages).encode("utf-8")
    json.dumps(messages, ensure_ascii=False).encode("utf-8")
    rest = [message for message in messages if message["role"] != "system"]
    assert rest, "nothing but system messages"
    assert rest[0]["role"] == "user", f"the first message is the {rest[0]['role']}'s, not the user's"
    assert rest[-1]["role"] in ("user", "tool"), "the last message is the model's own"
    open_ids: list[str] = []
    for index, message in enumerate(messages):
        role = message["role"]
        where = f"message {index} ({role})"
        assert role in ("system", "user", "assistant", "tool"), f"{where}: unknown role"
        if role == "tool":
            assert message["tool_call_id"] in open_ids, f"{where}: answers no open call of the message before it"
            open_ids.remove(message["tool_call_id"])
            assert isinstance(message["content"], str | list), f"{where}: content is no text"
            continue
        assert not open_ids, f"{where}: the calls {open_ids} before it have no result"
        if role == "assistant" and message.get("tool_calls"):
            open_ids = _calls(message, where)
            assert message.get("content") is None or str(message["content"]).strip(), f"{where}: blank text beside calls"
        else:
            assert "tool_calls" not in message, f"{where}: an empty list of calls"
            content = message["content"]
            assert content.strip() if isinstance(content, str) else content, f"{where}: blank content"
    assert not open_ids, f"the last calls {open_ids} have no result"


def _calls(message: dict[str, Any], where: str) -> list[str]:
    ids: list[str] = []
    for call in message["tool_calls"]:
        assert call["type"] == "function", where
        assert isinstance(call["id"], str), where
        assert call["id"], f"{where}: a call without an id"
        assert call["id"] not in ids, f"{where}: the id {call['id']} twice"
        assert isinstance(call["function"]["name"], str), where
        assert call["function"]["name"], f"{where}: a call without a name"
        assert isinstance(json.loads(call["function"]["arguments"]), dict), f"{where}: arguments are no object"
        ids.append(call["id"])
    return ids


def assert_request_valid(request: ModelRequest) -> None:
    """The messages, the tools, and that the body on the wire says the same."""
    assert_valid(request.messages)
    names = [tool["function"]["name"] for tool in request.tools]
    assert len(names) == len(set(names)), f"two tools of one name: {names}"
    assert "__finish__" in names
    body = json.loads(request.body("some-model"))
    assert body["messages"] == request.messages
    assert body["tools"] == request.tools


def assert_complete(history: list[dict[str, Any]]) -> None:
    """After a run every call in the history has its result."""
    open_ids: list[str] = []
    for message in history:
        if message["role"] == "tool":
            if message["tool_call_id"] in open_ids:
                open_ids.remove(message["tool_call_id"])
            continue
        assert not open_ids, f"no result for {open_ids}"
        open_ids = [call["id"] for call in message.get("tool_calls", [])]
    assert not open_ids, f"no result for {open_ids}"
