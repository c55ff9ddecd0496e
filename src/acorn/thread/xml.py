"""A thread as one XML document, and back.

One event a line, everything a user or model said escaped, so that nothing in it can become markup. The
reader takes exactly what the writer writes; the lossless form of a thread is its events' JSON.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from acorn._formats.json import excerpt, shorten, to_json_text
from acorn._formats.xml.parse import FORBIDDEN_CHARACTER, FORBIDDEN_CHARACTERS, escape_anywhere
from acorn.errors import InputError
from acorn.thread.events import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    HumanInputReceivedEvent,
    HumanInputRequestedEvent,
    MessageEvent,
    SummaryEvent,
    ToolCallEvent,
    ToolResultEvent,
    as_events,
    plain_of,
)
from acorn.types import JsonObject

Names = dict[tuple[str, str | None], str]
UNKNOWN = "unknown"
_OPEN, _CLOSE = "<thread>\n", "</thread>"
_TYPES = {"user": "human", "assistant": "ai", "system": "system"}
_ROLES: JsonObject = {kind: role for role, kind in _TYPES.items()}

_REFERENCE = re.compile("&(amp|lt|gt|quot|apos);")
_MEANINGS = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


def escape_xml(text: str) -> str:
    """The text with `& < > " '` as references; characters that XML forbids become U+FFFD."""
    return escape_anywhere(text)


def _unescape(text: str) -> str:
    return _REFERENCE.sub(lambda found: _MEANINGS[found[1]], text) if "&" in text else text


def _json_body(value: Any) -> str:
    """Compact JSON in which what XML forbids is written the way of JSON."""
    text = to_json_text(value)
    if "\ufffd" in text:  # perhaps half a surrogate pair, which Pydantic does not write
        text = json.dumps(plain_of(value), ensure_ascii=False, separators=(",", ":"))
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # two halves are a whole
    if not text.isprintable():
        text = FORBIDDEN_CHARACTER.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return escape_anywhere(text)


def _result_body(result: Any) -> str:
    if isinstance(result, str):
        return escape_xml(str.__str__(result))
    return "null" if result is None else _json_body(result)


# Writing


def serialize_thread_to_xml(events: Iterable[AgentEvent], response_prefix: str | None = None) -> str:
    """The `<thread>` document; the prefix, which is not escaped, follows on a line of its own.

    A thread that was read from a document with a prefix keeps it, unless another is given.
    """
    if response_prefix is None:
        response_prefix = getattr(events, "response_prefix", None)
    prefix = f"\n{response_prefix}" if response_prefix else ""
    return f"{document(lines_of(as_events(events), 0, {}))}{prefix}"


def document(lines: Iterable[str]) -> str:
    """The `<thread>` around its lines."""
    return f"{_OPEN}{''.join(lines)}{_CLOSE}"


def lines_of(events: Sequence[AgentEvent], first: int, names: Names) -> list[str]:
    """A line for each event, the first of which has this number; `names` of calls grows."""
    names |= {_key(event): event.tool_name for event in events if event.type == "tool_call"}
    return [_line(event, index, names) for index, event in enumerate(events, start=first)]


def _key(event: ToolCallEvent | ToolResultEvent) -> tuple[str, str | None]:
    """A call is known by its id, in its own run: a branch may use the same ones."""
    return event.tool_call_id, event.run_id or event.branch


def _line(event: AgentEvent, index: int, names: Names) -> str:
    kind: str = event.type
    named = more = ""
    if event.type == "message":  # by the word: to ask for the class of a model takes long
        kind, body = _TYPES[event.role], escape_xml(event.content)
    elif event.type == "tool_call":
        kind, body = "tool_input", _json_body(plain_of(event.args))
        named = f' name="{escape_xml(event.tool_name)}"'
    elif event.type == "tool_result":
        kind, body = "tool_output", _result_body(event.result)
        name = names.get(_key(event), event.tool_name)
        named = f' name="{escape_xml(UNKNOWN if name is None else name)}" status="success"'
    elif event.type == "error":
        body = escape_xml(event.error)
        more = f' recoverable="{"true" if event.recoverable else "false"}"'
    elif event.type == "human_input_requested":
        body, more = escape_xml(event.question), _ids(event)
    elif event.type == "human_input_received":
        body, more = escape_xml(event.response), _ids(event)
    elif event.type == "completion":
        body = _result_body(event.result)
    elif event.type == "summary":
        body = escape_xml(event.summary)
        more = f' summarizedIterations="{",".join(map(str, event.summarized_iterations))}"'
    else:
        assert_never(event)
    return f'  <event type="{kind}" id="{index}"{named} iteration="{event.iteration}"{more}>{body}</event>\n'


def _ids(event: HumanInputRequestedEvent | HumanInputReceivedEvent) -> str:
    """What a person was asked for: beside a call the conversation has its result."""
    ids = (("toolCallId", event.tool_call_id), ("requestId", event.request_id))
    return "".join([f' {name}="{escape_xml(value)}"' for name, value in ids if value is not None])


# Reading


class ParsedThread(list[AgentEvent]):
    """Events as they were read from a document, with the text that followed it."""

    response_prefix: str | None = None


_NUMBER = "(?:0|-?[1-9][0-9]*)"
_TEXT = f"[^&<>\"'{FORBIDDEN_CHARACTERS}]*(?:&(?:amp|lt|gt|quot|apos);[^&<>\"'{FORBIDDEN_CHARACTERS}]*)*"
_EVENT = re.compile(
    rf' {{2}}<event type="(?P<type>[a-z_]+)" id="(?P<id>[0-9]+)"(?: name="(?P<name>{_TEXT})")?'
    rf'(?P<status> status="success")? iteration="(?P<iteration>{_NUMBER})"'
    r'(?: recoverable="(?P<recoverable>true|false)"'
    rf'| summarizedIterations="(?P<summarized>(?:{_NUMBER}(?:,{_NUMBER})*)?)")?'
    rf'(?: toolCallId="(?P<call>{_TEXT})")?(?: requestId="(?P<request>{_TEXT})")?'
    rf">(?P<body>{_TEXT})</event>\n"
)
_HAS = {  # which groups a kind of event has, beside those that all have
    "human": set[str](),
    "ai": set[str](),
    "system": set[str](),
    "tool_input": {"name"},
    "tool_output": {"name", "status"},
    "error": {"recoverable"},
    "human_input_requested": set[str](),
    "human_input_received": set[str](),
    "completion": set[str](),
    "summary": {"summarized"},
}


_ASKED = ("human_input_requested", "human_input_received")


def parse_thread_xml(text: str) -> ParsedThread:
    """The events of a `<thread>` document, as far as it tells them: writing them again gives the same document.

    Results come back as text, and calls get ids of their own, which link each result to its call.
    """
    if not isinstance(text, str):
        raise InputError(f"A thread document is text, got {excerpt(text)}; decode bytes first.")
    if not text.startswith(_OPEN):
        raise _refusal(text, 0, "is not `<thread>` alone on its line")
    thread, reader, at = ParsedThread(), _ThreadReader(), len(_OPEN)
    while not text.startswith(_CLOSE, at):
        found = _EVENT.match(text, at)
        if found is None or found["id"] != str(len(thread)) or not _is_whole(found):
            raise _refusal(text, at, f"is no event number {len(thread)} as `serialize_thread_to_xml` writes it")
        try:
            thread.append(reader.read(found))
        except (ValueError, RecursionError) as error:  # arguments that are no JSON, or a number without an end
            raise _refusal(text, at, f"is an event that cannot be read ({shorten(str(error))})") from error
        at = found.end()
    at += len(_CLOSE)
    if at < len(text):
        if text[at] != "\n":
            raise _refusal(text, at, "goes on behind `</thread>`")
        thread.response_prefix = text[at + 1 :]
    return thread


def _refusal(text: str, at: int, why: str) -> InputError:
    line = text.count("\n", 0, at) + 1
    return InputError(f"Line {line} of the thread {why}: {shorten(repr(text[at : at + 100]), 100)}")


def _is_whole(found: re.Match[str]) -> bool:
    there = {
        name for name in ("name", "status", "recoverable", "summarized", "call", "request") if found[name] is not None
    }
    if found["type"] in _ASKED:
        there -= {"call", "request"}
    return _HAS.get(found["type"]) == there


def _read_ids(found: re.Match[str]) -> tuple[str | None, str | None]:
    call, request = found["call"], found["request"]
    return None if call is None else _unescape(call), None if request is None else _unescape(request)


class _ThreadReader:
    """Makes events, remembering which calls have no outcome yet; outcomes stand in the order of their calls."""

    def __init__(self) -> None:
        self._is_open: set[str] = set()
        self._waiting: dict[tuple[str | None, int | None], deque[str]] = defaultdict(deque)
        """Ids of calls by name and iteration, by iteration alone (an error has no name), and by name alone."""

    def read(self, found: re.Match[str]) -> AgentEvent:
        iteration, body = int(found["iteration"]), _unescape(found["body"])
        match found["type"]:
            case "human" | "ai" | "system" as kind:
                return MessageEvent(iteration=iteration, role=_ROLES[kind], content=body)
            case "tool_input":
                return self._call(_unescape(found["name"]), body, found["id"], iteration)
            case "tool_output":
                return self._result(_unescape(found["name"]), body, found["id"], iteration)
            case "error":
                recoverable = found["recoverable"] == "true"
                call_id = self._answered((None, iteration)) if recoverable else None
                return ErrorEvent(iteration=iteration, error=body, recoverable=recoverable, tool_call_id=call_id)
            case "human_input_requested":
                call_id, request_id = _read_ids(found)
                return HumanInputRequestedEvent(
                    iteration=iteration, question=body, tool_call_id=call_id, request_id=request_id
                )
            case "human_input_received":
                call_id, request_id = _read_ids(found)
                return HumanInputReceivedEvent(
                    iteration=iteration, response=body, tool_call_id=call_id, request_id=request_id
                )
            case "completion":
                return CompletionEvent(iteration=iteration, result=body)
            case _:
                numbers = [int(number) for number in found["summarized"].split(",") if number]
                return SummaryEvent(iteration=iteration, summary=body, summarized_iterations=numbers)

    def _call(self, name: str, body: str, index: str, iteration: int) -> ToolCallEvent:
        args = json.loads(body)
        if not isinstance(args, dict):
            raise ValueError("arguments must be a JSON object")
        call_id = f"call_{index}"
        self._is_open.add(call_id)
        for key in ((name, iteration), (None, iteration), (name, None)):
            self._waiting[key].append(call_id)
        return ToolCallEvent(iteration=iteration, tool_name=name, tool_call_id=call_id, args=args)

    def _result(self, name: str, body: str, index: str, iteration: int) -> ToolResultEvent:
        call_id = self._answered((name, iteration), (name, None))
        if call_id is not None:
            return ToolResultEvent(iteration=iteration, tool_call_id=call_id, result=body)
        return ToolResultEvent(iteration=iteration, tool_call_id=f"output_{index}", tool_name=name, result=body)

    def _answered(self, *keys: tuple[str | None, int | None]) -> str | None:
        """The first call under one of these keys that has no outcome yet; it has one now."""
        for key in keys:
            waiting = self._waiting[key]
            while waiting:
                call_id = waiting.popleft()
                if call_id in self._is_open:
                    self._is_open.remove(call_id)
                    return call_id
        return None
