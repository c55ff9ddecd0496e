"""Tests of the XML form of a thread: exact bytes, well-formed documents for any content, and parsing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import date
from typing import Any
from xml.parsers import expat

import pytest
from lxml import etree
from pydantic import BaseModel, ValidationError
from tests.cases import case
from tests.long_version import IS_LONG
from tests.unit.random_threads import LETTERS, TEXTS, some_events, some_text
from tests.unit.xml_schemas import FORBIDDEN

from acorn.errors import InputError
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
    escape_xml,
    parse_events,
    parse_thread_xml,
    serialize_thread_to_xml,
    to_messages,
)

THREADS = 40_000 if IS_LONG else 300
MUTANTS = 200_000 if IS_LONG else 2_500

EXAMPLE = """\
<thread>
  <event type="human" id="0" iteration="0">What is 2+2?</event>
  <event type="tool_input" id="1" name="calculator" iteration="1">{&quot;expression&quot;:&quot;2+2&quot;}</event>
  <event type="tool_output" id="2" name="calculator" status="success" iteration="1">4</event>
  <event type="ai" id="3" iteration="1">The answer is 4.</event>
  <event type="completion" id="4" iteration="1">The answer is 4.</event>
</thread>"""


def call(name: str = "look", id: str = "c1", iteration: int = 1, /, **args: Any) -> ToolCallEvent:
    return ToolCallEvent(tool_name=name, tool_call_id=id, iteration=iteration, args=args)


def result(value: Any = "seen", id: str = "c1", iteration: int = 1, **more: Any) -> ToolResultEvent:
    return ToolResultEvent(tool_call_id=id, result=value, iteration=iteration, **more)


def said(text: str, role: Any = "user", iteration: int = 0) -> MessageEvent:
    return MessageEvent(role=role, content=text, iteration=iteration)


def line(event: AgentEvent) -> str:
    """Return the line of a single event."""
    text = serialize_thread_to_xml([event])
    assert text.startswith("<thread>\n  <event ")
    assert text.endswith("</event>\n</thread>")
    return text.removeprefix("<thread>\n  ").removesuffix("\n</thread>")


def body(event: AgentEvent) -> str:
    return line(event).partition(">")[2].removesuffix("</event>")


def names(events: Iterable[AgentEvent]) -> list[str | None]:
    """Return the names of all events in a document, with None for an event without a name."""
    return [item.get("name") for item in etree.fromstring(serialize_thread_to_xml(events))]


# Writing


def test_thread_xml_of_documented_example_matches_exactly() -> None:
    events = parse_events(
        [
            {"type": "message", "role": "user", "content": "What is 2+2?", "iteration": 0},
            {
                "type": "tool_call",
                "toolName": "calculator",
                "toolCallId": "c",
                "args": {"expression": "2+2"},
                "iteration": 1,
            },
            {"type": "tool_result", "toolCallId": "c", "result": 4, "iteration": 1},
            {"type": "message", "role": "assistant", "content": "The answer is 4.", "iteration": 1},
            {"type": "completion", "result": "The answer is 4.", "iteration": 1},
        ]
    )  # fmt: skip
    assert serialize_thread_to_xml(events) == EXAMPLE


@pytest.mark.parametrize("none", [[], (), iter(())])
def test_thread_xml_without_events_is_empty_thread(none: Iterable[AgentEvent]) -> None:
    assert serialize_thread_to_xml(none) == "<thread>\n</thread>"


LINES_OF_EVENTS: list[tuple[AgentEvent, str]] = [
    (said("Hi", "user", 2), '<event type="human" id="0" iteration="2">Hi</event>'),
    (said("Hi", "assistant", 2), '<event type="ai" id="0" iteration="2">Hi</event>'),
    (said("Hi", "system", 2), '<event type="system" id="0" iteration="2">Hi</event>'),
    (call(), '<event type="tool_input" id="0" name="look" iteration="1">{}</event>'),
    (result(), '<event type="tool_output" id="0" name="unknown" status="success" iteration="1">seen</event>'),
    (
        ErrorEvent(error="No", recoverable=True, tool_call_id="c1", iteration=3),
        '<event type="error" id="0" iteration="3" recoverable="true">No</event>',
    ),
    (ErrorEvent(error="No"), '<event type="error" id="0" iteration="0" recoverable="false">No</event>'),
    (
        HumanInputRequestedEvent(question="Why?", iteration=1),
        '<event type="human_input_requested" id="0" iteration="1">Why?</event>',
    ),
    (
        HumanInputReceivedEvent(response="So.", iteration=1),
        '<event type="human_input_received" id="0" iteration="1">So.</event>',
    ),
    (CompletionEvent(result="Done", iteration=4), '<event type="completion" id="0" iteration="4">Done</event>'),
    (
        SummaryEvent(summary="Much", summarized_iterations=[1, 2, 10], iteration=4),
        '<event type="summary" id="0" iteration="4" summarizedIterations="1,2,10">Much</event>',
    ),
    (
        SummaryEvent(summary="Much", summarized_iterations=[7]),
        '<event type="summary" id="0" iteration="0" summarizedIterations="7">Much</event>',
    ),
    (SummaryEvent(summary=""), '<event type="summary" id="0" iteration="0" summarizedIterations=""></event>'),
    (said(""), '<event type="human" id="0" iteration="0"></event>'),
    (result(""), '<event type="tool_output" id="0" name="unknown" status="success" iteration="1"></event>'),
    (ErrorEvent(error=""), '<event type="error" id="0" iteration="0" recoverable="false"></event>'),
    (HumanInputRequestedEvent(question=""), '<event type="human_input_requested" id="0" iteration="0"></event>'),
    (HumanInputReceivedEvent(response=""), '<event type="human_input_received" id="0" iteration="0"></event>'),
    (CompletionEvent(result=""), '<event type="completion" id="0" iteration="0"></event>'),
    (CompletionEvent(), '<event type="completion" id="0" iteration="0">null</event>'),
]


def test_each_event_type_is_encoded_as_documented_xml_line() -> None:
    for event, written in LINES_OF_EVENTS:
        with case(event):
            assert line(event) == written


def test_events_are_numbered_from_zero() -> None:
    events: list[AgentEvent] = [said("a", iteration=9), call(), result(), said("b", iteration=3)] * 3
    found = [item.get("id") for item in etree.fromstring(serialize_thread_to_xml(events))]
    assert found == [str(number) for number in range(12)]


def test_event_fields_without_xml_attribute_are_not_encoded() -> None:
    event = MessageEvent(
        role="user", content="Hi", timestamp=5, branch="b", run_id="r", rest={"name": "Ann"}, left_out=["x"], more="x"
    )  # type: ignore[call-arg]
    assert line(event) == '<event type="human" id="0" iteration="0">Hi</event>'


def test_bodies_and_attributes_are_escaped() -> None:
    for text, escaped in [
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ('"', "&quot;"),
        ("'", "&apos;"),
        ("&<>\"'", "&amp;&lt;&gt;&quot;&apos;"),
        ("&lt;", "&amp;lt;"),
        ("&amp;amp;", "&amp;amp;amp;"),
        ("]]>", "]]&gt;"),
        ("<a b='c'>&d;</a>", "&lt;a b=&apos;c&apos;&gt;&amp;d;&lt;/a&gt;"),
        ("", ""),
        ("plain, äöü, 日本語, 🦔", "plain, äöü, 日本語, 🦔"),
        ("\t\n\r \x7f\x85\u2028\ufffd", "\t\n\r \x7f\x85\u2028\ufffd"),
        ("a\x00b", "a\ufffdb"),
        ("\x08\x0b\x0c\x0e\x1f", "\ufffd" * 5),
        ("\ufffe\uffff", "\ufffd" * 2),
        ("\ud800<\udfff", "\ufffd&lt;\ufffd"),
    ]:
        with case(text):
            assert escape_xml(text) == escaped
            assert body(said(text)) == body(result(text)) == body(CompletionEvent(result=text)) == escaped
            assert body(ErrorEvent(error=text)) == body(SummaryEvent(summary=text)) == escaped
            assert (
                body(HumanInputRequestedEvent(question=text)) == body(HumanInputReceivedEvent(response=text)) == escaped
            )
            assert f' name="{escaped}" iteration=' in line(call(text))
            assert f' name="{escaped}" status=' in line(result(tool_name=text))


def test_each_character_is_escaped_as_specified_in_thread_xml() -> None:
    known = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"}
    for code in [*range(0x11000), 0x1FFFE, 0x1FFFF, 0x10FFFF]:
        letter = chr(code)
        assert escape_xml(letter) == known.get(letter, FORBIDDEN.sub("\ufffd", letter)), hex(code)


WRITTEN_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({}, "{}"),
    ({"b": 1, "a": [1, 2, {"c": None}]}, '{"b":1,"a":[1,2,{"c":null}]}'),
    ({"größe": "日本語 🦔"}, '{"größe":"日本語 🦔"}'),
    ({"a": True, "b": False, "c": 1.5, "d": 2.0}, '{"a":true,"b":false,"c":1.5,"d":2.0}'),
    ({"a": 10**25}, '{"a":10000000000000000000000000}'),
    ({"a": float("nan"), "b": [float("inf")]}, '{"a":null,"b":[null]}'),
    ({"a": '\n\t\r\\"/'}, '{"a":"\\n\\t\\r\\\\\\"/"}'),
    ({"a": "\x00\x1f\x7f"}, '{"a":"\\u0000\\u001f\x7f"}'),
    ({"a": "\ufffe\uffff\ufffd"}, '{"a":"\\ufffe\\uffff\ufffd"}'),
    ({"a": "\ud800 \udfff"}, '{"a":"\\ud800 \\udfff"}'),
    ({"a": "\ud800", "n": float("nan"), "i": [float("-inf")]}, '{"a":"\\ud800","n":null,"i":[null]}'),
    ({"a": "\ud83e\udd94", "b": "\ud800"}, '{"a":"🦔","b":"\\ud800"}'),
    ({"\ufffe": "\x00"}, '{"\\ufffe":"\\u0000"}'),
    ({"day": date(2024, 2, 3)}, '{"day":"2024-02-03"}'),
]


def test_arguments_are_encoded_as_compact_json_in_order() -> None:
    for args, written in WRITTEN_ARGUMENTS:
        with case(args):
            event = ToolCallEvent(tool_name="look", tool_call_id="c", args=args)
            assert body(event) == escaped(written)
            assert body(result(args)) == body(CompletionEvent(result=args)) == escaped(written)


def test_last_value_is_encoded_if_keys_are_equal_as_json() -> None:
    assert body(call(a={1: "one", "1": "two"})) == escaped('{"a":{"1":"two"}}')


class Place(BaseModel):
    name: str = "<here>"
    depth: int | None = None


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_text_result_is_encoded_as_text_and_other_result_as_compact_json() -> None:
    for value, written in [
        ("4", "4"),
        ('{"a": 1}', '{"a": 1}'),
        ("null", "null"),
        (4, "4"),
        (4.5, "4.5"),
        (True, "true"),
        (None, "null"),
        (float("nan"), "null"),
        (float("inf"), "null"),
        ([], "[]"),
        (["x", 1, None], '["x",1,null]'),
        ((1, 2), "[1,2]"),
        (Place(), '{"name":"<here>","depth":null}'),
        ([Place(depth=1)], '[{"name":"<here>","depth":1}]'),
        (b"bytes", '"bytes"'),
        ([b"\xff"], '["/w=="]'),
        (Silent(), '"<Silent without a repr>"'),
    ]:
        with case(value):
            assert body(result(value)) == body(CompletionEvent(result=value)) == escaped(written)


def test_missing_result_is_encoded_as_null() -> None:
    events = parse_events([{"type": "tool_result", "toolCallId": "c1"}, {"type": "completion"}])
    assert [body(event) for event in events] == ["null", "null"]


def escaped(text: str) -> str:
    for mark, reference in {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}.items():
        text = text.replace(mark, f"&{reference};")
    return text


NAMED_RESULTS: list[tuple[list[AgentEvent], list[str | None]]] = [
    ([call("look", "a"), result(id="a")], ["look", "look"]),
    ([call("look", "a"), call("find", "b"), result(id="b"), result(id="a")], ["look", "find", "find", "look"]),
    ([call("look", "a"), result(id="b")], ["look", "unknown"]),
    ([result(id="a")], ["unknown"]),
    ([result(id="a", tool_name="find")], ["find"]),
    ([call("look", "a"), result(id="a", tool_name="find")], ["look", "look"]),
    ([call("look", "a"), result(id="a"), call("find", "a"), result(id="a")], ["look", "find", "find", "find"]),
    ([result(id="a"), call("look", "a")], ["look", "look"]),
    ([call("look", ""), result(id="")], ["look", "look"]),
    ([call("", "a"), result(id="a", tool_name="find")], ["", ""]),
    ([said("x"), ErrorEvent(error="x", tool_call_id="a"), call("look", "a")], [None, None, "look"]),
]


def test_tool_result_is_encoded_with_tool_name_of_its_call() -> None:
    for events, found in NAMED_RESULTS:
        with case(events):
            assert names(events) == found


def test_tool_result_in_branch_has_tool_name_of_call_in_same_branch() -> None:
    events: list[AgentEvent] = [
        call("look", "a"),
        ToolCallEvent(tool_name="find", tool_call_id="a", branch="b", run_id="1"),
        ToolResultEvent(tool_call_id="a", branch="b", run_id="1"),
        ToolResultEvent(tool_call_id="a", branch="b", run_id="2"),
        result(id="a"),
    ]
    assert names(events) == ["look", "find", "find", "unknown", "look"]


def test_response_prefix_is_appended_unescaped_on_separate_line() -> None:
    for prefix in ["Based on the above thread, I will now", " ", "\n", "<a> & 'b'\n</thread>\n", "\x00"]:
        with case(prefix):
            assert serialize_thread_to_xml([], prefix) == f"<thread>\n</thread>\n{prefix}"
            assert serialize_thread_to_xml([said("Hi")], response_prefix=prefix) == (
                f'<thread>\n  <event type="human" id="0" iteration="0">Hi</event>\n</thread>\n{prefix}'
            )


@pytest.mark.parametrize("prefix", [None, ""])
def test_empty_response_prefix_is_not_appended(prefix: str | None) -> None:
    assert serialize_thread_to_xml([], prefix) == "<thread>\n</thread>"


# Well-formed for any content

Element = tuple[str, dict[str, str], str]
"""A name, attributes, and text."""


def read_by_expat(text: str) -> list[Element]:
    found: list[Element] = []
    parser = expat.ParserCreate()
    parser.buffer_text = True
    opened: list[tuple[str, dict[str, str], list[str]]] = []

    def close(name: str) -> None:
        tag, attributes, texts = opened.pop()
        assert tag == name
        found.append((tag, attributes, "".join(texts)))

    parser.StartElementHandler = lambda name, attributes: opened.append((name, attributes, []))
    parser.EndElementHandler = close
    parser.CharacterDataHandler = lambda data: opened[-1][2].append(data)
    parser.Parse(text, True)
    assert found.pop()[:2] == ("thread", {})
    return found


def read_by_lxml(text: str) -> list[Element]:
    root = etree.fromstring(text, etree.XMLParser(huge_tree=True, resolve_entities=False))
    assert root.tag == "thread"
    assert all(len(item) == 0 for item in root)
    return [(item.tag, dict(item.attrib), item.text or "") for item in root]


def as_parsed(text: str, *, is_attribute: bool = False) -> str:
    """Return the text that an XML parser returns: with normalized line ends, and spaces in attributes."""
    text = FORBIDDEN.sub("\ufffd", text).replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\n", " ").replace("\t", " ") if is_attribute else text


def told(value: Any) -> str:
    """Return the expected element content of a tool result or of tool arguments."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "".join(f"\\u{ord(letter):04x}" if FORBIDDEN.match(letter) else letter for letter in text)


def expected(events: list[AgentEvent]) -> list[Element]:
    """Return the expected document from an independent implementation."""
    found: list[Element] = []
    for number, event in enumerate(events):
        head = {"id": str(number), "iteration": str(event.iteration)}
        match event:
            case MessageEvent():
                head["type"] = {"user": "human", "assistant": "ai", "system": "system"}[event.role]
                text = event.content
            case ToolCallEvent():
                head |= {"type": "tool_input", "name": event.tool_name}
                text = told(event.args)
            case ToolResultEvent():
                head |= {"type": "tool_output", "name": name_of(event, events), "status": "success"}
                text = told(event.result)
            case ErrorEvent():
                head |= {"type": "error", "recoverable": json.dumps(event.recoverable)}
                text = event.error
            case HumanInputRequestedEvent():
                head |= {"type": event.type, **asked_for(event)}
                text = event.question
            case HumanInputReceivedEvent():
                head |= {"type": event.type, **asked_for(event)}
                text = event.response
            case CompletionEvent():
                head["type"], text = event.type, told(event.result)
            case SummaryEvent():
                head |= {"type": "summary", "summarizedIterations": ",".join(map(str, event.summarized_iterations))}
                text = event.summary
        read = {key: as_parsed(value, is_attribute=True) for key, value in head.items()}
        found.append(("event", read, as_parsed(text)))
    return found


def asked_for(event: HumanInputRequestedEvent | HumanInputReceivedEvent) -> dict[str, str]:
    ids = {"toolCallId": event.tool_call_id, "requestId": event.request_id}
    return {name: value for name, value in ids.items() if value is not None}


def name_of(event: ToolResultEvent, events: list[AgentEvent]) -> str:
    for other in reversed(events):
        if isinstance(other, ToolCallEvent) and same_run(event, other) and event.tool_call_id == other.tool_call_id:
            return other.tool_name
    return "unknown" if event.tool_name is None else event.tool_name


def same_run(one: AgentEvent, other: AgentEvent) -> bool:
    return (one.branch, one.run_id) == (other.branch, other.run_id)


def test_standard_xml_parsers_read_original_events_from_thread_xml() -> None:
    for seed in range(THREADS):
        events = some_events(random.Random(seed))
        text = serialize_thread_to_xml(events)
        assert read_by_expat(text) == expected(events), f"seed {seed}"
        assert read_by_lxml(text) == expected(events), f"seed {seed}"


def test_standard_xml_parsers_read_any_event_text_unchanged() -> None:
    for text in [*TEXTS, *LETTERS, LETTERS]:
        with case(text):
            events: list[AgentEvent] = [
                *(said(text, role) for role in ("user", "assistant", "system")),
                ToolCallEvent(tool_name=text, tool_call_id=text, args={"a": {"b": [text]}}),
                result(text, text),
                result([text], tool_name=text),
                ErrorEvent(error=text),
                HumanInputRequestedEvent(question=text),
                HumanInputReceivedEvent(response=text),
                CompletionEvent(result=text),
                SummaryEvent(summary=text),
            ]
            document = serialize_thread_to_xml(events)
            assert read_by_expat(document) == read_by_lxml(document) == expected(events)


# Reading


def test_thread_xml_is_identical_after_parsing_and_serialization() -> None:
    for seed in range(THREADS):
        rng = random.Random(seed)
        prefix = some_text(rng) if rng.random() < 0.5 else None
        document = serialize_thread_to_xml(some_events(rng), prefix)
        thread = parse_thread_xml(document)
        assert serialize_thread_to_xml(thread) == document, f"seed {seed}"
        assert (thread.response_prefix or "") == (prefix or ""), f"seed {seed}"


def test_events_parsed_from_thread_xml_have_original_content() -> None:
    for seed in range(THREADS):
        events = some_events(random.Random(seed))
        thread = parse_thread_xml(serialize_thread_to_xml(events))
        assert expected(thread) == expected(events), f"seed {seed}"
        assert list(map(type, thread)) == list(map(type, events)), f"seed {seed}"


def test_documented_thread_xml_example_is_parsed() -> None:
    thread = parse_thread_xml(EXAMPLE)
    assert thread == [
        MessageEvent(role="user", content="What is 2+2?"),
        ToolCallEvent(tool_name="calculator", tool_call_id="call_1", args={"expression": "2+2"}, iteration=1),
        ToolResultEvent(tool_call_id="call_1", result="4", iteration=1),
        MessageEvent(role="assistant", content="The answer is 4.", iteration=1),
        CompletionEvent(result="The answer is 4.", iteration=1),
    ]
    assert thread.response_prefix is None


def test_response_prefix_of_parsed_thread_can_be_replaced() -> None:
    thread = parse_thread_xml(f"{EXAMPLE}\nNow <I>\n</thread>\nwill")
    assert thread.response_prefix == "Now <I>\n</thread>\nwill"
    assert serialize_thread_to_xml(thread, "So I") == f"{EXAMPLE}\nSo I"
    assert serialize_thread_to_xml(thread, "") == EXAMPLE
    assert serialize_thread_to_xml(parse_thread_xml(f"{EXAMPLE}\n")) == EXAMPLE, "the end of a file is no prefix"


LINKED_RESULTS: list[tuple[list[AgentEvent], list[tuple[int, int]]]] = [
    ([call("look", "x"), result(id="x")], [(0, 1)]),
    ([call("look", "x"), call("find", "y"), result(id="x"), result(id="y")], [(0, 2), (1, 3)]),
    ([call("look", "x"), call("look", "y"), result("1", "x"), result("2", "y")], [(0, 2), (1, 3)]),
    (
        [
            call("look", "x"),
            call("find", "y"),
            ErrorEvent(error="e", recoverable=True, tool_call_id="x", iteration=1),
            result(id="y"),
        ],
        [(0, 2), (1, 3)],
    ),
    (
        [
            call("look", "x"),
            call("find", "y"),
            result(id="x"),
            ErrorEvent(error="e", recoverable=True, tool_call_id="y", iteration=1),
        ],
        [(0, 2), (1, 3)],
    ),
    (
        [call("look", "x", 1), result(id="x", iteration=1), call("look", "x", 2), result(id="x", iteration=2)],
        [(0, 1), (2, 3)],
    ),
    ([call("look", "x", 1), said("wait"), result(id="x", iteration=2)], [(0, 2)]),
    (
        [call("look", "x", 1), call("look", "y", 2), result(id="y", iteration=2), result(id="x", iteration=1)],
        [(0, 3), (1, 2)],
    ),
    ([call("look", "x"), result(id="z")], []),
    ([call("look", "x"), ErrorEvent(error="The run broke", iteration=1)], []),
    ([result(id="x"), call("look", "x")], []),
]


def test_parsed_results_and_errors_have_ids_of_their_calls() -> None:
    for events, links in LINKED_RESULTS:
        with case(events):
            thread: Any = parse_thread_xml(serialize_thread_to_xml(events))
            calls = [index for index, event in enumerate(thread) if event.type == "tool_call"]
            made = {thread[index].tool_call_id: index for index in calls}
            assert len(made) == len(calls), "each call has an id of its own"
            outcomes = [index for index, event in enumerate(thread) if event.type in ("tool_result", "error")]
            found = {(made.get(thread[index].tool_call_id), index) for index in outcomes}
            assert {link for link in found if link[0] is not None} == set(links)


def test_messages_of_parsed_thread_contain_tool_results() -> None:
    events: list[AgentEvent] = [
        said("Go"),
        said("I look and find.", "assistant", 1),
        call("look", "x", 1, place="tree"),
        call("find", "y", 1),
        result("a fox", "x", 1),
        ErrorEvent(error="ValueError: no", recoverable=True, tool_call_id="y", iteration=1),
        call("__finish__", "z", 2, answer="fox"),
        result("Finished.", "z", 2),
        CompletionEvent(result={"answer": "fox"}, iteration=2),
    ]
    user, turn, first, second, finish, finished = to_messages(parse_thread_xml(serialize_thread_to_xml(events)))
    assert user == {"role": "user", "content": "Go"}
    assert turn["content"] == "I look and find."
    ids = [made["id"] for made in turn["tool_calls"]]
    assert [made["function"]["name"] for made in turn["tool_calls"]] == ["look", "find"]
    assert turn["tool_calls"][0]["function"]["arguments"] == '{"place":"tree"}'
    assert first == {"role": "tool", "tool_call_id": ids[0], "content": "a fox"}
    assert second == {"role": "tool", "tool_call_id": ids[1], "content": "Tool error: ValueError: no"}
    assert finished["tool_call_id"] == finish["tool_calls"][0]["id"]
    assert finish["tool_calls"][0]["id"] not in ids


HUMAN = '  <event type="human" id="0" iteration="0">Hi</event>\n'


def thread_of(*lines: str) -> str:
    return f"<thread>\n{''.join(lines)}</thread>"


REFUSED: list[tuple[str, int]] = [  # A document, and the line with the error.
    ("", 1),
    (" ", 1),
    ("Hello", 1),
    ("<thread>", 1),
    ("<thread/>", 1),
    ("<thread></thread>", 1),
    ("<thread>\r\n</thread>", 1),
    (" <thread>\n</thread>", 1),
    ("\ufeff<thread>\n</thread>", 1),
    ("<thread a='b'>\n</thread>", 1),
    ('<?xml version="1.0"?>\n<thread>\n</thread>', 1),
    ("<!DOCTYPE thread>\n<thread>\n</thread>", 1),
    ('<!DOCTYPE thread [<!ENTITY a "b">]>\n<thread>\n</thread>', 1),
    ("<thread>\n", 2),
    ("<thread>\n</thread", 2),
    ("<thread>\n\n</thread>", 2),
    ("<thread>\n</thread>more", 2),
    ("<thread>\n</thread>\r\n", 2),
    ("<thread>\n <!-- a comment -->\n</thread>", 2),
    ("<thread>\n<!DOCTYPE thread>\n</thread>", 2),
    (f"<thread>\n{HUMAN}", 3),
    (f"<thread>\n{HUMAN}</thread>more", 3),
    (thread_of(HUMAN, HUMAN), 3),
    (thread_of(HUMAN.rstrip("\n")), 2),
    (thread_of(HUMAN.replace("\n", "\r\n")), 2),
    (thread_of(HUMAN.strip() + "\n"), 2),
    (thread_of("\t" + HUMAN.lstrip()), 2),
    (thread_of(HUMAN.replace('id="0"', 'id="1"')), 2),
    (thread_of(HUMAN.replace('id="0"', 'id="00"')), 2),
    (thread_of(HUMAN.replace('id="0"', 'id="-0"')), 2),
    (thread_of(HUMAN.replace('id="0"', 'id="٠"')), 2),
    (thread_of(HUMAN.replace('id="0" ', "")), 2),
    (thread_of(HUMAN.replace('iteration="0"', 'iteration="00"')), 2),
    (thread_of(HUMAN.replace('iteration="0"', 'iteration="-0"')), 2),
    (thread_of(HUMAN.replace('iteration="0"', 'iteration="07"')), 2),
    (thread_of(HUMAN.replace('iteration="0"', 'iteration="1.5"')), 2),
    (thread_of(HUMAN.replace('iteration="0"', 'iteration=""')), 2),
    (thread_of(HUMAN.replace('iteration="0"', f'iteration="{"9" * 5000}"')), 2),
    (thread_of(HUMAN.replace('id="0" iteration="0"', 'iteration="0" id="0"')), 2),
    (thread_of(HUMAN.replace("human", "user")), 2),
    (thread_of(HUMAN.replace("human", "")), 2),
    (thread_of(HUMAN.replace("human", "message")), 2),
    (thread_of(HUMAN.replace("human", "tool_input")), 2),
    (thread_of(HUMAN.replace("human", "tool_output")), 2),
    (thread_of(HUMAN.replace("human", "error")), 2),
    (thread_of(HUMAN.replace("human", "summary")), 2),
    (thread_of(HUMAN.replace("<event", "<Event")), 2),
    (thread_of(HUMAN.replace('"', "'")), 2),
    (thread_of(HUMAN.replace('id="0"', 'id="0" name="x"')), 2),
    (thread_of(HUMAN.replace('id="0"', 'id="0" status="success"')), 2),
    (thread_of(HUMAN.replace(">Hi", ' recoverable="true">Hi')), 2),
    (thread_of(HUMAN.replace(">Hi", ' more="x">Hi')), 2),
    (thread_of(HUMAN.replace(">Hi</event>", "/>")), 2),
    (thread_of(HUMAN.replace("Hi", "&lol;")), 2),
    (thread_of(HUMAN.replace("Hi", "&#65;")), 2),
    (thread_of(HUMAN.replace("Hi", "&#x41;")), 2),
    (thread_of(HUMAN.replace("Hi", "&")), 2),
    (thread_of(HUMAN.replace("Hi", "&amp")), 2),
    (thread_of(HUMAN.replace("Hi", "a > b")), 2),
    (thread_of(HUMAN.replace("Hi", "it's")), 2),
    (thread_of(HUMAN.replace("Hi", "<b>Hi</b>")), 2),
    (thread_of(HUMAN.replace("Hi", "<![CDATA[Hi]]>")), 2),
    (thread_of(HUMAN.replace("Hi", "a\x00b")), 2),
    (thread_of(HUMAN.replace("Hi", "\ud800")), 2),
    (thread_of(HUMAN.replace("Hi", "two\nlines"), HUMAN), 4),
    *((thread_of(f'  <event type="tool_input" id="0" name="a" iteration="1">{text}</event>\n'), 2)
      for text in ("", "{", "[]", "null", "5", "&quot;x&quot;", "{}}", "{a:1}", "[" * 100_000,
                   "{&quot;a&quot;:" + "[" * 100_000 + "]" * 100_000 + "}",
                   "{&quot;a&quot;:" + "9" * 5000 + "}")),
    (thread_of('  <event type="tool_input" id="0" iteration="1">{}</event>\n'), 2),
    (thread_of('  <event type="tool_output" id="0" name="a" iteration="1">x</event>\n'), 2),
    (thread_of('  <event type="tool_output" id="0" name="a" status="error" iteration="1">x</event>\n'), 2),
    (thread_of('  <event type="tool_output" id="0" status="success" name="a" iteration="1">x</event>\n'), 2),
    (thread_of('  <event type="error" id="0" iteration="1" recoverable="yes">x</event>\n'), 2),
    (thread_of('  <event type="error" id="0" recoverable="true" iteration="1">x</event>\n'), 2),
    (thread_of('  <event type="summary" id="0" iteration="1" summarizedIterations="1,">x</event>\n'), 2),
    (thread_of('  <event type="summary" id="0" iteration="1" summarizedIterations="1, 2">x</event>\n'), 2),
    (thread_of('  <event type="summary" id="0" iteration="1" summarizedIterations="01">x</event>\n'), 2),
    (thread_of(f'  <event type="summary" id="0" iteration="1" summarizedIterations="{"1" * 5000}">x</event>\n'), 2),
]  # fmt: skip


def test_invalid_thread_xml_raises_input_error_with_line_number() -> None:
    for document, number in REFUSED:
        with case(document):
            with pytest.raises(InputError) as caught:
                parse_thread_xml(document)
            message = str(caught.value)
            assert message.startswith(f"Line {number} of the thread ")
            assert len(message) < 500


def test_truncated_thread_xml_raises_input_error() -> None:
    document = serialize_thread_to_xml(
        [said("<a>\n&"), call("look", "x", a="b\n"), result(), SummaryEvent(summary="x")]
    )
    for length in range(len(document)):
        with pytest.raises(InputError, match=r"^Line [1-7] of the thread "):
            parse_thread_xml(document[:length])


def test_damaged_thread_xml_is_parsed_or_raises_input_error() -> None:
    pieces = [
        *TEXTS,
        *LETTERS,
        "<",
        ">",
        "&",
        '"',
        "\n",
        "</event>\n",
        "  <event ",
        "</thread>",
        "0",
        "-",
        "1",
        "name=",
    ]
    rng = random.Random(7)
    read = 0
    for number in range(MUTANTS):
        if number % 50 == 0:
            document = serialize_thread_to_xml(some_events(rng), rng.choice([None, "So"]))
        text = document
        for _ in range(rng.randint(1, 3)):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice([rng.choice(pieces), ""]) + text[at + rng.randint(0, 4) :]
        try:
            thread = parse_thread_xml(text)
        except InputError:
            continue
        read += 1
        written = serialize_thread_to_xml(thread)
        assert serialize_thread_to_xml(parse_thread_xml(written)) == written, f"mutant {number}"
    assert MUTANTS / 20 < read < MUTANTS


@pytest.mark.parametrize(
    "events",
    [
        [call("look", str(number), number % 7) for number in range(20_000)],
        [call(f"tool_{number}", str(number), 1) for number in range(20_000)],
        [event for number in range(10_000) for event in (call("look", "x", number), result("seen", "y", 0))],
        [
            *(call("look", str(number), 1) for number in range(10_000)),
            *(ErrorEvent(error="x", recoverable=True, iteration=1) for _ in range(5_000)),
            *(result("x", str(number), 2) for number in range(5_000)),
        ],
    ],
)
def test_thread_xml_with_20000_calls_without_result_is_parsed(events: list[AgentEvent]) -> None:
    document = serialize_thread_to_xml(events)
    assert serialize_thread_to_xml(parse_thread_xml(document)) == document


def test_thread_xml_without_end_raises_input_error() -> None:
    for unit in ["&amp;", "&", "a", "\n", "<", "  <event ", "&amp;a", '"', "</event>", "&am"]:
        for head in [
            "<thread>\n",
            '<thread>\n  <event type="human" id="0" iteration="0">',
            '<thread>\n  <event type="tool_input" id="0" name="',
            '<thread>\n  <event type="summary" id="0" iteration="0" summarizedIterations="1,',
        ]:
            with case(unit, head), pytest.raises(InputError):
                parse_thread_xml(head + unit * 100_000)


def test_events_given_as_dicts_are_serialized_to_thread_xml() -> None:
    plain = [
        {"type": "tool_call", "toolName": "f", "toolCallId": "a", "args": {}, "iteration": 1},
        {"type": "tool_result", "tool_call_id": "a", "result": 4, "iteration": 1},
    ]
    events = parse_events(plain)
    assert serialize_thread_to_xml(plain) == serialize_thread_to_xml(events)  # type: ignore[arg-type]
    assert to_messages(plain) == to_messages(events)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        serialize_thread_to_xml([{"type": "nothing"}])  # type: ignore[list-item]


def test_thread_xml_given_as_bytes_or_on_one_line_raises_input_error() -> None:
    with pytest.raises(InputError, match="must be a string, got b'<thread>"):
        parse_thread_xml(b"<thread>\n</thread>")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Line 1 of the thread is not `<thread>` alone on its line"):
        parse_thread_xml("<thread></thread>")
