"""Tests of the conversion of messages to thread events and back."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from typing import Any

import pytest
from pydantic import ValidationError
from tests.cases import case
from tests.long_version import IS_LONG
from tests.unit.random_threads import some_events, some_messages

from acorn import InputError
from acorn.thread import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    HumanInputReceivedEvent,
    HumanInputRequestedEvent,
    MessageEvent,
    SummaryEvent,
    ToolCallEvent,
    ToolResultEvent,
    dump_events,
    from_messages,
    parse_events,
    parse_thread_xml,
    serialize_thread_to_xml,
    to_messages,
)

CONVERSATIONS = 40_000 if IS_LONG else 1_000

Message = Any  # A message as a user may write it: any dict.


def user(content: Any, **more: Any) -> Message:
    return {"role": "user", "content": content, **more}


def assistant(content: Any, *calls: Any, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


def made(name: str = "look", arguments: Any = "{}", id: Any = "c1", **more: Any) -> Message:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def tool(content: Any, id: Any = "c1", **more: Any) -> Message:
    return {"role": "tool", "tool_call_id": id, "content": content, **more}


# To events


def test_message_is_converted_to_events() -> None:
    for message, events in [
        (user("Hi"), [MessageEvent(role="user", content="Hi")]),
        ({"role": "system", "content": "Be kind."}, [MessageEvent(role="system", content="Be kind.")]),
        (
            {"role": "developer", "content": "Be kind."},
            [MessageEvent(role="system", content="Be kind.", rest={"role": "developer"})],
        ),
        (assistant("Hi"), [MessageEvent(role="assistant", content="Hi", iteration=1)]),
        (
            assistant("", made(arguments='{"a":1}')),
            [ToolCallEvent(tool_name="look", tool_call_id="c1", args={"a": 1}, iteration=1)],
        ),
        (
            assistant("Hm", made(), made("find", id="c2")),
            [
                MessageEvent(role="assistant", content="Hm", iteration=1),
                ToolCallEvent(tool_name="look", tool_call_id="c1", iteration=1),
                ToolCallEvent(tool_name="find", tool_call_id="c2", iteration=1),
            ],
        ),
        (
            assistant(None, made()),
            [ToolCallEvent(tool_name="look", tool_call_id="c1", iteration=1, rest={"content": None})],
        ),
        (
            {"role": "assistant", "tool_calls": [made()]},
            [ToolCallEvent(tool_name="look", tool_call_id="c1", iteration=1, rest={}, left_out=["content"])],
        ),
        (
            assistant("Hi", thinking_blocks=[{"signature": "x"}]),
            [MessageEvent(role="assistant", content="Hi", iteration=1, rest={"thinking_blocks": [{"signature": "x"}]})],
        ),
        (tool("seen"), [ToolResultEvent(tool_call_id="c1", result="seen")]),
        (tool('{"a":1}'), [ToolResultEvent(tool_call_id="c1", result='{"a":1}')]),
        (tool("Tool error: no"), [ErrorEvent(error="no", recoverable=True, tool_call_id="c1")]),
        (
            tool('<error type="validation">\n</error>'),
            [ErrorEvent(error='<error type="validation">\n</error>', recoverable=True, tool_call_id="c1")],
        ),
        (
            user([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]),
            [
                MessageEvent(
                    role="user",
                    content="a\nb",
                    rest={
                        "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
                    },
                )
            ],
        ),
    ]:
        with case(message):
            assert from_messages([message]) == events
            assert to_messages(events) == [message]


def test_each_assistant_message_starts_new_iteration() -> None:
    messages = [user("a"), assistant("", made()), tool("b"), assistant("c"), assistant("d"), user("e")]
    assert [event.iteration for event in from_messages(messages)] == [0, 1, 1, 2, 3, 3]


def test_arguments_text_is_preserved_exactly() -> None:
    for arguments in ["", "{", "[]", '{"a": 1}', '{"a":1,"a":2}', '{"a":NaN}', '"x"', '{"a":"\ud800"}']:
        with case(arguments):
            messages = [assistant("", made(arguments=arguments))]
            [event] = from_messages(messages)
            assert isinstance(event, ToolCallEvent)
            assert event.raw_arguments == arguments
            assert event.rest is None
            assert to_messages([event]) == messages


def test_unknown_message_role_raises_validation_error() -> None:
    for role in ["function", "human", "", None, 5, ["user"]]:
        with case(role):
            with pytest.raises(ValidationError):
                from_messages([{"role": role, "content": "x"}])
            with pytest.raises(ValidationError):
                from_messages([user("Hi"), {"content": "x"}])


def test_value_that_is_not_a_message_raises_input_error() -> None:
    for given, words in [
        ([1], "`messages[0]` must be a dict with a `role`, got 1."),
        ([user("a"), "b"], "`messages[1]` must be a dict with a `role`, got 'b'."),
        ("hello", "`from_messages` needs a list of messages, got 'hello'."),
        (None, "`from_messages` needs a list of messages, got None."),
        (user("a"), "`from_messages` needs a list of messages, got {'role': 'user', 'content': 'a'}."),
    ]:
        with case(given):
            with pytest.raises(InputError) as caught:
                from_messages(given)
            assert str(caught.value) == words


def test_any_mapping_is_accepted_as_message() -> None:
    assert to_messages(from_messages([OrderedDict(user("Hi", name="Ann"))])) == [user("Hi", name="Ann")]


# To messages


def test_empty_event_list_and_empty_message_list_convert_to_each_other() -> None:
    assert from_messages([]) == []
    assert to_messages([]) == []


SPECIAL_EVENTS: list[tuple[AgentEvent, list[dict[str, Any]]]] = [
    (HumanInputRequestedEvent(question="Why?"), [assistant("Why?")]),
    (HumanInputReceivedEvent(response="So."), [user("So.")]),
    (HumanInputRequestedEvent(question="Why?", tool_call_id="c1", request_id="r"), []),
    (HumanInputReceivedEvent(response="So.", tool_call_id="c1"), []),
    (SummaryEvent(summary="Much."), [user("Much.")]),
    (CompletionEvent(result="Done."), []),
    (ErrorEvent(error="The run broke."), []),
    (ErrorEvent(error="no", tool_call_id="c1"), [tool("Tool error: no")]),
    (ErrorEvent(error="", tool_call_id=""), [tool("Tool error: ", "")]),
    (ToolResultEvent(tool_call_id="c1", result={"a": [1, None]}), [tool('{"a":[1,null]}')]),
    (ToolResultEvent(tool_call_id="c1"), [tool("null")]),
    (ToolResultEvent(tool_call_id="c1", result=""), [tool("")]),
]


def test_human_input_and_other_special_events_are_converted_to_messages() -> None:
    for event, messages in SPECIAL_EVENTS:
        with case(event):
            assert to_messages([event]) == messages


def test_tool_calls_of_one_iteration_become_one_assistant_message() -> None:
    def call(id: str, iteration: int) -> ToolCallEvent:
        return ToolCallEvent(tool_name="look", tool_call_id=id, iteration=iteration)

    events: list[AgentEvent] = [
        MessageEvent(role="assistant", content="Hm", iteration=1),
        call("a", 1),
        call("b", 1),
        ToolResultEvent(tool_call_id="a", result="x", iteration=1),
        call("c", 1),
        call("d", 2),
        MessageEvent(role="assistant", content="Oh", iteration=2),
    ]
    assert to_messages(events) == [
        assistant("Hm", made(id="a"), made(id="b")),
        tool("x", "a"),
        assistant("", made(id="c")),
        assistant("", made(id="d")),
        assistant("Oh"),
    ]


def test_messages_of_run_exclude_events_of_its_branches() -> None:
    own: list[AgentEvent] = [MessageEvent(role="user", content="own"), MessageEvent(role="assistant", content="too")]
    branch = [
        MessageEvent(role="user", content=path, branch=path, run_id=run)
        for path, run in (("a", "1"), ("a/b", "2"), ("a", "3"))
    ]
    assert to_messages([branch[1], own[0], *branch, own[1]]) == [user("own"), assistant("too")]
    assert to_messages([branch[1], branch[0], branch[2]]) == [user("a")], "of branches alone, the outermost and first"


# Round trip


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_messages_converted_to_events_and_back_are_equal() -> None:
    for seed in range(CONVERSATIONS):
        messages = some_messages(random.Random(seed))
        before = json.dumps(messages)
        events = from_messages(messages)
        assert to_messages(events) == messages, f"seed {seed}"
        assert json.dumps(messages) == before, "the messages are not touched"


@pytest.mark.parametrize("camel", [True, False])
def test_messages_converted_to_json_events_and_back_are_equal(camel: bool) -> None:
    for seed in range(CONVERSATIONS):
        messages = some_messages(random.Random(seed))
        events = from_messages(messages)
        again = parse_events(json.dumps(dump_events(events, camel=camel), allow_nan=False))
        assert to_messages(again) == as_json(messages), f"seed {seed}"
        assert again == events, f"seed {seed}"


def test_events_converted_to_messages_and_back_are_equal() -> None:
    for seed in range(CONVERSATIONS):
        events = from_messages(some_messages(random.Random(seed)))
        assert from_messages(to_messages(events)) == events, f"seed {seed}"


def test_messages_of_random_events_are_equal_after_second_conversion() -> None:
    for seed in range(CONVERSATIONS):
        events = some_events(random.Random(seed))
        messages = to_messages(events)
        assert to_messages(from_messages(messages)) == messages, f"seed {seed}"


def test_messages_parsed_from_thread_xml_have_results_of_their_calls() -> None:
    for seed in range(CONVERSATIONS):
        rng = random.Random(seed)
        messages = [user("Go")]
        for turn in range(rng.randint(1, 4)):
            calls = [made(rng.choice("ab"), id=f"{turn}_{slot}") for slot in range(rng.randint(1, 4))]
            messages.append(assistant(rng.choice(["", "Hm"]), *calls))
            answers = [rng.choice(["seen", "Tool error: no", '<error type="validation">']) for _ in calls]
            messages += [tool(answer, call["id"]) for answer, call in zip(answers, calls, strict=True)]
        again = to_messages(parse_thread_xml(serialize_thread_to_xml(from_messages(messages))))
        ids = {call["id"]: call["id"] for message in messages for call in message.get("tool_calls", [])}
        found = [call["id"] for message in again for call in message.get("tool_calls", [])]
        renamed = dict(zip(found, ids, strict=True))
        for message in again:
            for call in message.get("tool_calls", []):
                call["id"] = renamed[call["id"]]
            if message["role"] == "tool":
                message["tool_call_id"] = renamed[message["tool_call_id"]]
        assert again == messages, f"seed {seed}"
