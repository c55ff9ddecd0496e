"""Tests of the request checks in `provider_rules.py`: they reject each kind of message list that a provider rejects."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic_core import to_json
from tests.cases import case
from tests.provider_rules import assert_complete, assert_request_valid, assert_valid

from acorn.models import ModelRequest
from acorn.models.request import SentMessages, SentPart, ToolDefinitions

Message = Any  # A message as a user may write it: any dict.

SYSTEM: Message = {"role": "system", "content": "Be brief."}
USER: Message = {"role": "user", "content": "Hello"}
PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:,"}}
FINISH: dict[str, Any] = {"type": "function", "function": {"name": "__finish__", "parameters": {"type": "object"}}}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def calling(*ids: Any, **changes: Any) -> Message:
    calls = [{"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **changes}


def one_call(**changes: Any) -> Message:
    """Return a message with one changed call; `name` and `arguments` change the function."""
    function = {"name": "look", "arguments": "{}"} | {k: v for k, v in changes.items() if k in ("name", "arguments")}
    call = {"id": "1", "type": "function", "function": function}
    call |= {key: value for key, value in changes.items() if key not in ("name", "arguments")}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(call_id: Any, content: Any = "seen") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


VALID: list[tuple[str, list[Message]]] = [
    ("a question", [USER]),
    ("a system message before it", [SYSTEM, USER]),
    ("a system message anywhere", [SYSTEM, USER, said("Yes?"), SYSTEM, USER, SYSTEM]),
    ("a conversation", [USER, said("Yes?"), USER]),
    ("a call and its result", [USER, calling("1"), result("1")]),
    ("text beside a call", [USER, calling("1", content="Let me see."), result("1")]),
    ("results in another order", [USER, calling("1", "2"), result("2"), result("1")]),
    ("an empty result", [USER, calling("1"), result("1", "")]),
    ("a result in parts", [USER, calling("1"), result("1", [{"type": "text", "text": "seen"}])]),
    ("content parts", [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]),
    ("a picture", [{"role": "user", "content": [PICTURE]}]),
    ("odd characters", [{"role": "user", "content": "\x00 \U0001f994 \u2028"}]),
    ("a name of 64 characters", [USER, one_call(name="a-B_9" + 59 * "x"), result("1")]),
]

INVALID: list[tuple[str, str, list[Message]]] = [
    ("nothing", "empty message list", []),
    ("system messages only", "nothing but system", [SYSTEM]),
    ("the model first", "not the user's", [SYSTEM, said("Hello"), USER]),
    ("a call first", "not the user's", [calling("1"), result("1"), USER]),
    ("the model last", "the model's own", [USER, said("Hello")]),
    ("the model last, but for the system", "the model's own", [USER, said("Hello"), SYSTEM]),
    ("an unknown role", "unknown role", [USER, {"role": "robot", "content": "Hi"}, USER]),
    ("no role", "unknown role", [USER, {"content": "Hi"}, USER]),
    ("the developer's role", "unknown role", [USER, {"role": "developer", "content": "Hi"}, USER]),
    ("an unhashable role", "unknown role", [USER, {"role": ["user"], "content": "Hi"}, USER]),
    ("half a surrogate pair", "no JSON", [{"role": "user", "content": "\ud800"}]),
    ("a number that JSON has not", "no JSON", [{"role": "user", "content": [{"type": "x", "value": math.nan}]}]),
    ("an object", "no JSON", [{"role": "user", "content": object()}]),
    ("blank text", "blank content", [{"role": "user", "content": " \n"}]),
    ("no content", "blank content", [{"role": "user"}]),
    ("no content of the model's", "blank content", [USER, {"role": "assistant", "content": None}, USER]),
    ("no parts", "blank content", [{"role": "user", "content": []}]),
    ("a number for content", "blank content", [{"role": "user", "content": 5}]),
    ("a dict for content", "blank content", [{"role": "user", "content": {"type": "text", "text": "Hi"}}]),
    ("parts that are no objects", "blank content", [{"role": "user", "content": ["Hello"]}]),
    ("blank text beside calls", "blank text beside", [USER, calling("1", content=""), result("1")]),
    ("a number beside calls", "blank text beside", [USER, calling("1", content=5), result("1")]),
    ("a picture in a result", "no text", [USER, calling("1"), result("1", [{"type": "text", "text": "a"}, PICTURE])]),
    ("a call without a result", "have no result", [USER, calling("1"), USER]),
    ("the last call without a result", "have no result", [USER, calling("1"), result("1"), calling("2"), SYSTEM, USER]),
    ("one of two calls without a result", "have no result", [USER, calling("1", "2"), result("1"), USER]),
    ("one of two calls without a result at the end", "have no result", [USER, calling("1", "2"), result("1")]),
    ("a result behind another message", "have no result", [USER, calling("1"), USER, result("1")]),
    ("a result without a call", "answers no open call", [USER, result("1")]),
    ("a result of another call", "answers no open call", [USER, calling("1"), result("2")]),
    ("two results of a call", "answers no open call", [USER, calling("1"), result("1"), result("1")]),
    ("a result before its call", "answers no open call", [USER, result("1"), calling("1"), USER]),
    ("a result without an id", "answers no open call", [USER, calling("1"), {"role": "tool", "content": "seen"}]),
    ("a result without content", "content is no text", [USER, calling("1"), result("1", None)]),
    ("a number as result", "content is no text", [USER, calling("1"), result("1", 5)]),
    ("an empty list of calls", "an empty list", [USER, calling(), USER]),
    ("calls that are no list", "no list", [USER, calling(tool_calls={"id": "1"}), USER]),
    ("calls that are None", "no list", [USER, calling(tool_calls=None), USER]),
    ("a call that is no object", "no object", [USER, calling(tool_calls=["look"]), USER]),
    ("calls of the user's", "has calls", [{**USER, "tool_calls": []}]),
    ("an answer of the user's", "answers a call", [{**USER, "tool_call_id": "1"}]),
    ("the same id twice in a message", "twice", [USER, calling("1", "1"), result("1"), result("1")]),
    ("the same id in two messages", "came before", [USER, calling("1"), result("1"), calling("1"), result("1")]),
    ("an empty id", "without an id", [USER, calling(""), result("")]),
    ("no id", "without an id", [USER, calling(None), result(None)]),
    ("a number as id", "without an id", [USER, calling(1), result(1)]),
    ("a call of no type", "no function", [USER, one_call(type=None), result("1")]),
    ("a call without a function", "without a function", [USER, one_call(function="look"), result("1")]),
    ("a flat call", "without a function", [USER, one_call(function=None), result("1")]),
    ("an empty name", "the name", [USER, one_call(name=""), result("1")]),
    ("no name", "without a name", [USER, one_call(name=None), result("1")]),
    ("a name with a dot", "the name", [USER, one_call(name="functions.look"), result("1")]),
    ("a name that is too long", "the name", [USER, one_call(name=65 * "x"), result("1")]),
    ("a name with a newline", "the name", [USER, one_call(name="look\n"), result("1")]),
    ("broken arguments", "are no JSON", [USER, one_call(arguments='{"place": '), result("1")]),
    ("empty arguments", "are no JSON", [USER, one_call(arguments=""), result("1")]),
    ("NaN in arguments", "are no JSON", [USER, one_call(arguments='{"x": NaN}'), result("1")]),
    ("a list as arguments", "no object", [USER, one_call(arguments="[]"), result("1")]),
    ("null as arguments", "no object", [USER, one_call(arguments="null"), result("1")]),
    ("a dict as arguments", "no text", [USER, one_call(arguments={}), result("1")]),
]


def test_provider_rules_accept_valid_message_list() -> None:
    for name, messages in VALID:
        with case(name):
            assert_valid(messages)


def test_provider_rules_reject_invalid_message_list_with_reason() -> None:
    for name, reason, messages in INVALID:
        with case(name), pytest.raises(AssertionError, match=reason):
            assert_valid(messages)


def request(messages: list[Message], tools: list[dict[str, Any]], **changes: Any) -> ModelRequest:
    return ModelRequest(messages, tools, 0.7, 100, **changes)


def test_provider_rules_accept_valid_request() -> None:
    assert_request_valid(request([USER], [FINISH]))


def test_provider_rules_reject_invalid_request() -> None:
    other_messages = SentPart(SentMessages())
    other_messages.append(USER)  # The cached JSON text does not contain this change.
    other_tools = ToolDefinitions([FINISH])
    other_tools.encoded(to_json)
    other_tools[0] = {**FINISH, "type": "custom"}
    for reason, wrong in [
        ("blank content", request([{"role": "user", "content": ""}], [FINISH])),
        ("two tools of one name", request([USER], [FINISH, FINISH])),
        ("no `__finish__`", request([USER], [])),
        ("other messages", request(other_messages, [FINISH])),
        ("other tools", request([USER], other_tools)),
    ]:
        with case(reason), pytest.raises(AssertionError, match=reason):
            assert_request_valid(wrong)


@pytest.mark.parametrize(
    "history",
    [[], [USER], [USER, calling("1"), result("1")], [USER, calling("1", "2"), result("2"), result("1"), USER]],
)
def test_history_check_accepts_history_with_result_for_each_call(history: list[Message]) -> None:
    assert_complete(history)


def test_history_check_raises_for_call_without_result() -> None:
    for history in [
        [USER, calling("1")],
        [USER, calling("1", "2"), result("1")],
        [USER, calling("1"), USER],
        [USER, calling("1"), USER, result("1")],
        [USER, calling("1"), result("2")],
        [USER, calling("1"), calling("2"), result("1"), result("2")],
    ]:
        with case(history), pytest.raises(AssertionError, match="no result for"):
            assert_complete(history)
