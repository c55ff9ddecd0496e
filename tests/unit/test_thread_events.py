"""Tests of parsing and dumping thread events, in the original spelling and in snake_case."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from tests.cases import case
from tests.long_version import IS_LONG
from tests.unit.random_threads import some_events

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
    parse_events,
)

THREADS = 40_000 if IS_LONG else 800

Plain = dict[str, Any]

# An event as the original writes it, and in Python.
ORIGINALS: list[tuple[Plain, AgentEvent]] = [
    (
        {"type": "message", "role": "user", "content": "Hi", "timestamp": 1721900000000, "iteration": 0},
        MessageEvent(role="user", content="Hi", timestamp=1721900000000),
    ),
    (
        {"type": "message", "role": "assistant", "content": "", "iteration": 1},
        MessageEvent(role="assistant", content="", iteration=1),
    ),
    (
        {"type": "message", "role": "system", "content": "Be kind.", "iteration": 0},
        MessageEvent(role="system", content="Be kind."),
    ),
    (
        {"type": "tool_call", "toolName": "look", "toolCallId": "c1", "args": {"atPlace": "x"}, "iteration": 1},
        ToolCallEvent(tool_name="look", tool_call_id="c1", args={"atPlace": "x"}, iteration=1),
    ),
    (
        {"type": "tool_result", "toolCallId": "c1", "result": {"someKey": [1, None]}, "iteration": 1},
        ToolResultEvent(tool_call_id="c1", result={"someKey": [1, None]}, iteration=1),
    ),
    (
        {"type": "tool_result", "toolCallId": "c1", "toolName": "look", "result": "4", "iteration": 1},
        ToolResultEvent(tool_call_id="c1", tool_name="look", result="4", iteration=1),
    ),
    (
        {"type": "error", "error": "It broke.", "recoverable": True, "toolCallId": "c1", "iteration": 1},
        ErrorEvent(error="It broke.", recoverable=True, tool_call_id="c1", iteration=1),
    ),
    (
        {"type": "error", "error": "It broke.", "recoverable": False, "iteration": 1},
        ErrorEvent(error="It broke.", iteration=1),
    ),
    (
        {"type": "human_input_requested", "question": "Which?", "iteration": 2},
        HumanInputRequestedEvent(question="Which?", iteration=2),
    ),
    (
        {"type": "human_input_received", "response": "That.", "iteration": 2},
        HumanInputReceivedEvent(response="That.", iteration=2),
    ),
    ({"type": "completion", "result": "Done.", "iteration": 3}, CompletionEvent(result="Done.", iteration=3)),
    (
        {"type": "summary", "summary": "Much.", "summarizedIterations": [1, 2], "iteration": 3},
        SummaryEvent(summary="Much.", summarized_iterations=[1, 2], iteration=3),
    ),
    (
        {"type": "message", "role": "user", "content": "", "branch": "a/b", "runId": "r1", "iteration": 0},
        MessageEvent(role="user", content="", branch="a/b", run_id="r1"),
    ),
]
SNAKE = {
    "toolName": "tool_name",
    "toolCallId": "tool_call_id",
    "summarizedIterations": "summarized_iterations",
    "runId": "run_id",
}


def snake(plain: Plain) -> Plain:
    return {SNAKE.get(key, key): value for key, value in plain.items()}


# Reading


def test_event_with_camel_case_keys_is_parsed() -> None:
    for plain, event in ORIGINALS:
        with case(plain):
            [found] = parse_events([plain])
            assert found == event
            assert type(found) is type(event)


def test_event_with_snake_case_keys_is_parsed() -> None:
    for plain, event in ORIGINALS:
        with case(plain):
            assert parse_events([snake(plain)]) == [event]


def test_event_with_camel_case_and_snake_case_keys_is_parsed() -> None:
    found = parse_events([{"type": "tool_call", "tool_name": "look", "toolCallId": "c1", "run_id": "r", "branch": "b"}])
    assert found == [ToolCallEvent(tool_name="look", tool_call_id="c1", run_id="r", branch="b")]


def test_camel_case_key_is_preferred_over_snake_case_key() -> None:
    events: Any = parse_events([{"type": "tool_call", "toolName": "a", "tool_name": "b", "toolCallId": "c"}])
    assert events[0].tool_name == "a"
    for camel in (True, False):
        again: Any = parse_events(dump_events(events, camel=camel))
        assert again[0].tool_name == "a"


def test_events_are_parsed_from_text_bytes_and_iterables() -> None:
    plain = [plain for plain, _ in ORIGINALS]
    events = [event for _, event in ORIGINALS]
    text = json.dumps(plain)
    for source in (text, text.encode(), bytearray(text, "utf-8"), plain, tuple(plain), iter(plain), events):
        assert parse_events(source) == events
    assert parse_events("[]") == parse_events([]) == []


def test_lone_surrogate_is_parsed_and_dumped() -> None:
    text = '[{"type": "message", "iteration": 0, "role": "user", "content": "\\ud83d"}]'
    events = parse_events(text)
    assert events == [MessageEvent(role="user", content="\ud83d")]
    assert json.dumps(dump_events(events)) == text


INVALID_EVENTS: list[tuple[Any, str]] = [
    ([{"type": "thought", "content": "hm"}], "'thought'"),
    ([{"type": "Message", "role": "user", "content": ""}], "'Message'"),
    ([{"role": "user", "content": "Hi"}], "discriminator 'type'"),
    ([{"type": "message", "role": "tool", "content": "Hi"}], "0.message.role"),
    ([{"type": "message", "role": "human", "content": "Hi"}], "0.message.role"),
    ([{"type": "message", "role": "", "content": "Hi"}], "0.message.role"),
    ([{"type": "message", "content": "Hi"}], "0.message.role"),
    ([{"type": "message", "role": "user", "content": None}], "0.message.content"),
    ([{"type": "completion"}, {"type": "tool_call", "toolName": "look"}], "1.tool_call.toolCallId"),
    ([{"type": "tool_call", "toolName": "look", "toolCallId": "c", "args": [1]}], "0.tool_call.args"),
    ([{"type": "error"}], "0.error.error"),
    ([{"type": "completion", "iteration": "first"}], "0.completion.iteration"),
    ([{"type": "summary", "summary": "", "summarizedIterations": "1,2"}], "0.summary.summarizedIterations"),
    ([5], "0"),
    ({"type": "completion"}, "0"),
    ('{"type": "completion"}', "list"),
    ("[{", "Invalid JSON"),
    ("", "Invalid JSON"),
    (b"\xff", "Invalid JSON"),
    ("[" * 100_000, "Invalid JSON"),
]


def test_invalid_event_raises_validation_error_with_location() -> None:
    for source, words in INVALID_EVENTS:
        with case(source):
            with pytest.raises(ValidationError) as caught:
                parse_events(source)
            assert words in str(caught.value)


def test_unknown_role_raises_validation_error() -> None:
    roles: list[Any] = ["tool", "developer", "", None, 5]
    for role in roles:
        with case(role), pytest.raises(ValidationError):
            MessageEvent(role=role, content="")


# Writing


def test_event_is_dumped_with_camel_case_keys() -> None:
    for plain, event in ORIGINALS:
        with case(plain):
            assert dump_events([event]) == dump_events([event], camel=True) == [plain]
            assert next(iter(dump_events([event])[0])) == "type"


def test_event_is_dumped_with_snake_case_keys() -> None:
    for plain, event in ORIGINALS:
        with case(plain):
            assert dump_events([event], camel=False) == [snake(plain)]


def test_unknown_fields_are_preserved() -> None:
    for camel in [True, False]:
        for value in [5, None, "x", [], {}, {"innerKey": {"snake_key": None}}, [None]]:
            for name in ["durationMs", "duration_ms", "toolname", "a b", "größe", "", "model_dump"]:
                with case(camel, value, name):
                    plain = {"type": "message", "iteration": 1, "role": "user", "content": "Hi", name: value}
                    events = parse_events([plain])
                    assert dump_events(events, camel=camel) == [plain]
                    assert parse_events(json.dumps(dump_events(events, camel=camel))) == events


def test_keys_unknown_to_event_type_are_dumped_in_original_spelling() -> None:
    plain = {"type": "completion", "iteration": 1, "result": "x", "toolName": "a", "tool_call_id": "b"}
    assert dump_events(parse_events([plain])) == dump_events(parse_events([plain]), camel=False) == [plain]


def test_error_event_of_failing_tool_contains_tool_call_id() -> None:
    plain = {"type": "error", "error": "No such file", "recoverable": True, "toolCallId": "c1", "iteration": 1}
    [event] = parse_events([plain])
    assert isinstance(event, ErrorEvent)
    assert event.tool_call_id == "c1"
    assert dump_events([event], camel=False)[0]["tool_call_id"] == "c1"


def test_unset_fields_are_omitted_and_null_is_parsed_as_none() -> None:
    assert dump_events([ToolResultEvent(tool_call_id="c")]) == [
        {"type": "tool_result", "iteration": 0, "toolCallId": "c"}
    ]
    assert parse_events('[{"type":"tool_result","toolCallId":"c","result":null}]') == [
        ToolResultEvent(tool_call_id="c")
    ]


def test_arguments_are_dumped_in_order() -> None:
    args = {"b": 1, "a": 2, "日": 3, "": 4}
    [plain] = dump_events(parse_events(json.dumps(dump_events([call(args)]))))
    assert list(plain["args"]) == list(args)


class Place(BaseModel):
    place_name: str = "here"
    depth: int | None = None


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


def test_any_tool_result_is_dumped_as_json() -> None:
    for value, written in [
        (float("nan"), None),
        ({"a": [float("nan"), float("inf"), -float("inf"), 1.5]}, {"a": [None, None, None, 1.5]}),
        (Place(), {"place_name": "here", "depth": None}),
        ({"placeName": Place(depth=2)}, {"placeName": {"place_name": "here", "depth": 2}}),
        ((1, {2}), [1, [2]]),
        ({1: 2}, {"1": 2}),
        ([b"\xff", "ok", float("nan")], ["/w==", "ok", None]),
        (CIRCLE, ["[...]"]),
        (["\ud800"], ["\ud800"]),
        (len, repr(len)),
    ]:
        for camel in [True, False]:
            with case(value, camel):
                events: list[AgentEvent] = [CompletionEvent(result={"x": value}), CompletionEvent(extra={"x": value})]  # type: ignore[call-arg]
                first, second = json.loads(json.dumps(dump_events(events, camel=camel), allow_nan=False))
                assert first["result"] == second["extra"] == {"x": written}


def call(args: Plain) -> ToolCallEvent:
    return ToolCallEvent(tool_name="look", tool_call_id="c", args=args)


# Both


@pytest.mark.parametrize("camel", [True, False])
def test_events_are_equal_after_json_round_trip(camel: bool) -> None:
    for seed in range(THREADS):
        events = some_events(random.Random(seed))
        plain = dump_events(events, camel=camel)
        text = json.dumps(plain, allow_nan=False)
        again = parse_events(text)
        assert again == events, f"seed {seed}"
        assert list(map(type, again)) == list(map(type, events)), f"seed {seed}"
        assert json.dumps(dump_events(again, camel=camel)) == text, f"seed {seed}"
        assert dump_events(again, camel=not camel) == dump_events(events, camel=not camel), f"seed {seed}"
