"""Random threads and conversations with hostile texts."""

from __future__ import annotations

import random
from typing import Any

from tests.unit.xml_schemas import KEYS, WORDS

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
)

TEXTS = [
    *WORDS, "", "</event>", "</event>\n</thread>", '  <event type="human" id="0" iteration="0">', "<thread>\n</thread>",
    '" evil="', "&amp;lt;", "&quot;", "\uffff", "\ufffd", "\\ud800", "\\u0000", "\x7f\x80\x9f", "Tool error: ",
    "Tool error: it broke", "Tool error: Tool error: x", '<error type="validation">',
    '<error type="validation">\n</error>', 'Tool error: <error type="validation">', "Finished.", "🦔" * 50,
]  # fmt: skip
IDS = ["call_1", "call_2", "call_3", "", "a b", '"<&>"', "名", "call_1\n", "\x00"]
TOOLS = ["look", "search", "unknown", "", 'a"b', "<tool>", "größe", "a\nb\tc", "&amp;", "\x07", "\ud800"]
LETTERS = "ab <>&\"'\\/{}[]:,\n\r\t\x00\x0b\x1f\x7f\x85\u2028é日🦔\ud800\ufffe\uffff\ufffd"
NUMBERS: list[Any] = [0, 1, -1, 10**25, True, False, 0.5, -1.5, 2.0]


def some_text(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(TEXTS)
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(0, 12)))


def some_json(rng: random.Random, depth: int = 3) -> Any:
    """Return a random JSON value."""
    kind = rng.randrange(6 if depth else 4)
    if kind < 2:
        return some_text(rng)
    if kind == 2:
        return rng.choice(NUMBERS)
    if kind == 3:
        return None
    if kind == 4:
        return [some_json(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return some_object(rng, depth - 1)


def some_object(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    return {rng.choice(KEYS): some_json(rng, depth) for _ in range(rng.randint(0, 3))}


def some_event(rng: random.Random) -> AgentEvent:
    """Return a random event of any kind, with random optional fields and unknown fields."""
    more: dict[str, Any] = {}
    if rng.random() < 0.3:
        more["timestamp"] = rng.choice([0, 1721900000000, 1721900000000.5])
    if rng.random() < 0.2:
        more["branch"], more["run_id"] = rng.choice([("outer", "1"), ("outer", "2"), ("outer/inner", None)])
    if rng.random() < 0.2:
        more[rng.choice(["durationMs", "parallel_group", "toolname", "a b", "größe"])] = some_json(rng)
    number = rng.choice([0, 1, 2, 3, 17, -1])
    match rng.randrange(8):
        case 0:
            role: Any = rng.choice(["user", "assistant", "system"])
            return MessageEvent(role=role, content=some_text(rng), iteration=number, **more)
        case 1:
            raw = some_text(rng) if rng.random() < 0.2 else None
            return ToolCallEvent(
                tool_name=rng.choice(TOOLS),
                tool_call_id=rng.choice(IDS),
                args=some_object(rng),
                raw_arguments=raw,
                iteration=number,
                **more,
            )
        case 2:
            name = rng.choice(TOOLS) if rng.random() < 0.3 else None
            return ToolResultEvent(
                tool_call_id=rng.choice(IDS), result=some_json(rng), tool_name=name, iteration=number, **more
            )
        case 3:
            return ErrorEvent(
                error=some_text(rng),
                recoverable=rng.random() < 0.5,
                tool_call_id=rng.choice([*IDS, None]),
                iteration=number,
                **more,
            )
        case 4:
            ids: Any = {"tool_call_id": rng.choice([*IDS, None]), "request_id": rng.choice([*IDS, None])}
            return HumanInputRequestedEvent(question=some_text(rng), iteration=number, **ids, **more)
        case 5:
            ids = {"tool_call_id": rng.choice([*IDS, None]), "request_id": rng.choice([*IDS, None])}
            return HumanInputReceivedEvent(response=some_text(rng), iteration=number, **ids, **more)
        case 6:
            return CompletionEvent(result=some_json(rng), iteration=number, **more)
        case _:
            numbers = [rng.randint(-1, 20) for _ in range(rng.randint(0, 3))]
            return SummaryEvent(summary=some_text(rng), summarized_iterations=numbers, iteration=number, **more)


def some_events(rng: random.Random) -> list[AgentEvent]:
    return [some_event(rng) for _ in range(rng.choice([0, 1, 2, 5, 12]))]


# Conversations


def some_content(rng: random.Random) -> Any:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    part = {"type": "text", "text": some_text(rng)}
    odd = [None, [], [part], [part, picture, part], [picture], ["bare", part], 5, {"text": "x"}, [{"text": None}], [3]]
    return some_text(rng) if rng.random() < 0.7 else rng.choice(odd)


def some_call(rng: random.Random) -> Any:
    if rng.random() < 0.05:
        return rng.choice(
            [None, "call", 5, {}, [], {"function": None}, {"id": 7, "name": "look", "arguments": {"a": 1}}]
        )
    arguments: Any = rng.choice(
        ["{}", '{"a":1}', '{"a": 1}', '{"b":2,"a":"日🦔"}', '{"a":1,"a":2}', '{"a":NaN}', '{"a":1e999}', '{"a":1e16}',
         '{"a":"\\ud800"}', '{"a":"\ud800"}', "", "{", "null", "[]", "5", '"x"', '{"a":1} ', "{'a': 1}", "[" * 5000,
         '{"a":' + "9" * 5000 + "}", '{"a":"\\u00e9"}', None, {"a": 1}, {}, 5, some_text(rng)]
    )  # fmt: skip
    function = {"name": rng.choice([*TOOLS, None, 5]), "arguments": arguments}
    call: dict[str, Any] = {"id": rng.choice([*IDS, None, 5]), "type": "function", "function": function}
    if rng.random() < 0.2:
        del call[rng.choice(["id", "type"])]
    if rng.random() < 0.1:
        del function[rng.choice(["name", "arguments"])]
    if rng.random() < 0.1:
        call[rng.choice(["index", "extra_content"])] = some_json(rng)
    return call


def some_message(rng: random.Random) -> dict[str, Any]:
    role = rng.choice(["user", "assistant", "assistant", "assistant", "tool", "tool", "system", "developer"])
    message: dict[str, Any] = {"role": role, "content": some_content(rng)}
    if role == "assistant" and rng.random() < 0.7:
        calls = [some_call(rng) for _ in range(rng.randint(0, 3))]
        message["tool_calls"] = calls if rng.random() < 0.95 else rng.choice([None, {}, "none", 5])
        if rng.random() < 0.4:
            message["content"] = rng.choice(["", None])
    if role == "tool" and rng.random() < 0.95:
        message["tool_call_id"] = rng.choice([*IDS, None, 5])
    if rng.random() < 0.1:
        del message["content"]
    if rng.random() < 0.2:
        message[rng.choice(["thinking_blocks", "name", "refusal", "iteration", "tool_calls", "rest"])] = some_json(rng)
    return message


def some_messages(rng: random.Random) -> list[dict[str, Any]]:
    return [some_message(rng) for _ in range(rng.choice([0, 1, 2, 5, 12]))]
