"""Checks of the rules that providers have for a message list. All tests that inspect requests use these checks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from acorn import Run
from acorn.models import ModelRequest
from acorn.thread import dump_events, parse_events, parse_thread_xml, serialize_thread_to_xml, to_messages

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def assert_valid(messages: Sequence[Mapping[str, Any]]) -> None:
    """Fail with the reason if OpenAI or Anthropic would answer 400."""
    assert messages, "an empty message list"
    _assert_encodable(messages)
    rest = [message for message in messages if message.get("role") != "system"]
    assert rest, "nothing but system messages"
    assert rest[0].get("role") == "user", f"the first message is the {rest[0].get('role')}'s, not the user's"
    assert rest[-1].get("role") in ("user", "tool"), "the last message is the model's own"
    open_ids: list[str] = []
    used: set[str] = set()
    for index, message in enumerate(messages):
        role = message.get("role")
        where = f"message {index} ({role})"
        assert role in ("system", "user", "assistant", "tool"), f"{where}: unknown role"
        assert role == "tool" or "tool_call_id" not in message, f"{where}: answers a call"
        assert role == "assistant" or "tool_calls" not in message, f"{where}: has calls"
        content = message.get("content")
        if role == "tool":
            assert message.get("tool_call_id") in open_ids, f"{where}: answers no open call of the message before it"
            open_ids.remove(message["tool_call_id"])
            assert isinstance(content, str) or _are_parts(content, "text"), f"{where}: content is no text"
            continue
        assert not open_ids, f"{where}: the calls {open_ids} before it have no result"
        has_text = bool(content.strip()) if isinstance(content, str) else _are_parts(content)
        if "tool_calls" in message:
            open_ids = _calls(message, where)
            assert not used & set(open_ids), f"{where}: the ids {used & set(open_ids)} came before"
            used.update(open_ids)
            assert content is None or has_text, f"{where}: blank text beside calls"
        else:
            assert has_text, f"{where}: blank content"
    assert not open_ids, f"the last calls {open_ids} have no result"


def _assert_encodable(messages: Sequence[Mapping[str, Any]]) -> None:
    try:
        json.dumps(messages, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError) as error:
        raise AssertionError(f"no JSON that a server can read: {error}") from error


def _are_parts(content: Any, kind: str | None = None) -> bool:
    if not isinstance(content, list) or not content or not all(isinstance(part, dict) for part in content):
        return False
    return kind is None or all(part.get("type") == kind for part in content)


def _calls(message: Mapping[str, Any], where: str) -> list[str]:
    calls = message["tool_calls"]
    assert isinstance(calls, list), f"{where}: calls that are no list"
    assert calls, f"{where}: an empty list of calls"
    ids: list[str] = []
    for call in calls:
        assert isinstance(call, dict), f"{where}: a call that is no object"
        assert call.get("type") == "function", f"{where}: a call that is no function"
        call_id, function = call.get("id"), call.get("function")
        assert isinstance(call_id, str), f"{where}: a call without an id"
        assert call_id, f"{where}: a call without an id"
        assert call_id not in ids, f"{where}: the id {call_id} twice"
        assert isinstance(function, dict), f"{where}: a call without a function"
        name = function.get("name")
        assert isinstance(name, str), f"{where}: a call without a name"
        assert _NAME.fullmatch(name), f"{where}: the name {name[:80]!r}"
        _assert_object(function.get("arguments"), where)
        ids.append(call_id)
    return ids


def _assert_object(arguments: Any, where: str) -> None:
    assert isinstance(arguments, str), f"{where}: arguments that are no text"
    try:
        parsed = json.loads(arguments, parse_constant=_no_constant)
    except ValueError as error:
        raise AssertionError(f"{where}: arguments are no JSON: {error}") from error
    assert isinstance(parsed, dict), f"{where}: arguments are no object"


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


def assert_request_valid(request: ModelRequest) -> None:
    """Check the messages, the tools, and that the body on the wire is equal."""
    assert_valid(request.messages)
    names = [tool["function"]["name"] for tool in request.tools]
    assert len(names) == len(set(names)), f"two tools of one name: {names}"
    assert "__finish__" in names, f"no `__finish__` among {names}"
    body = json.loads(request.body("some-model"))
    # If a turn has no text, the body has no content, rather than null.
    said = [{key: value for key, value in message.items() if value is not None} for message in request.messages]
    written = [{key: value for key, value in message.items() if value is not None} for message in body["messages"]]
    assert written == said, "the body has other messages than the request"
    assert body["tools"] == request.tools, "the body has other tools than the request"


def assert_complete(history: Sequence[Mapping[str, Any]]) -> None:
    """Check that every call in the history has its result after a run."""
    open_ids: list[str] = []
    for message in history:
        if message["role"] == "tool":
            if message["tool_call_id"] in open_ids:
                open_ids.remove(message["tool_call_id"])
            continue
        assert not open_ids, f"no result for {open_ids}"
        open_ids = [call["id"] for call in message.get("tool_calls", [])]
    assert not open_ids, f"no result for {open_ids}"


def assert_thread_true(run: Run[Any], *, is_edited: bool = False) -> None:
    """Check that the thread of a run can be read in every form and describes the conversation."""
    events = run.thread
    for camel in (True, False):
        text = json.dumps(dump_events(events, camel=camel))
        again = to_messages(parse_events(text))
        # JSON joins the two halves of a surrogate pair.
        assert is_edited or again == json.loads(json.dumps(to_messages(events)))
    document = serialize_thread_to_xml(events)
    assert serialize_thread_to_xml(parse_thread_xml(document)) == document
    assert is_edited or to_messages(events) == run.history
