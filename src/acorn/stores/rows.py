"""Rows of the tables, made from what the port hands over and made into it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from acorn.stores.port import Answered, Birth, Change, Kept, RunFacts, Status
from acorn.types import Request, Usage

FACTS = (
    "id, agent, status, model, steps, input_tokens, output_tokens, cached_tokens, reasoning_tokens, requests, "
    "cache_write_tokens, cost, started, updated, seconds, batch, stop_reason, error, parent, item"
)
REQUEST = "id, run, kind, question, tool, arguments, branch, asked, choices"
Row = tuple[Any, ...]


def moment(kept: float | datetime) -> datetime:
    """SQLite has seconds since 1970, PostgreSQL moments."""
    return kept if isinstance(kept, datetime) else datetime.fromtimestamp(kept, UTC)


def in_seconds(row: Row) -> Row:
    """The same for SQLite, which knows no moments."""
    return tuple(value.timestamp() if isinstance(value, datetime) else value for value in row)


def facts(row: Row, root: str, status: Status) -> RunFacts:
    """Of a row of `FACTS`."""
    (
        run_id, agent, _, model, steps, input_tokens, output_tokens, cached, reasoning, requests,
        written, cost, started, updated, seconds, batch, stop_reason, error, parent, item,
    ) = row  # fmt: skip
    usage = Usage(input_tokens, output_tokens, cached, reasoning, requests, written)
    return RunFacts(
        run_id, agent, status, model, steps, usage, cost, moment(started), moment(updated), seconds,
        batch, stop_reason, error, root, parent, item,
    )  # fmt: skip


def kept(row: Row, root: str, status: Status, entries: Sequence[str]) -> Kept:
    """Of a row of `FACTS` with branch, input, overrides, record and state behind."""
    *first, branch, input_, overrides, record, state = row
    known = facts(tuple(first), root, status)
    birth = Birth(known.agent, known.parent, branch, input_, known.started, overrides, known.batch, known.item)
    return Kept(known, birth, entries, record, state)


def change_row(change: Change, status: Status) -> Row:
    """What a change sets in `runs`, in the order of `CHANGED`."""
    usage = change.usage
    return (
        status, change.model, change.steps, usage.input_tokens, usage.output_tokens, usage.cached_tokens,
        usage.reasoning_tokens, usage.requests, usage.cache_write_tokens, change.cost, change.seconds,
        change.stop_reason, change.error, change.since + len(change.entries),
    )  # fmt: skip


CHANGED = (
    "status, model, steps, input_tokens, output_tokens, cached_tokens, reasoning_tokens, requests, "
    "cache_write_tokens, cost, seconds, stop_reason, error, length"
)


def birth_row(run_id: str, birth: Birth, root: int | None) -> Row:
    """What a birth sets in `runs`, in the order of `BORN`."""
    return (run_id, root, birth.parent, birth.agent, birth.started, birth.batch, birth.item)


BORN = "id, root, parent, agent, started, batch, item"


def request_row(request: Request) -> Row:
    """In the order of `REQUEST`."""
    choices = None if request.choices is None else json.dumps(request.choices)
    return (
        request.id, request.run_id, request.kind, request.question, request.tool, json.dumps(request.arguments),
        request.branch, request.asked, choices,
    )  # fmt: skip


def request(row: Row) -> Request:
    request_id, run_id, kind, question, tool, arguments, branch, asked, choices = row
    offered = None if choices is None else tuple(json.loads(choices))
    return Request(
        request_id, run_id, kind, question, tool, json.loads(arguments), branch, moment(asked), offered
    )  # fmt: skip


def answer(row: Row) -> Answered:
    """Of a row of `REQUEST` with answer and its time behind."""
    *first, value, at = row
    return Answered(request(tuple(first)), json.loads(value), moment(at))


def bindable(values: Iterable[Any]) -> Row:
    """The same where some text is no Unicode: half a character is spelled as JSON spells it."""
    return tuple(
        value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
        for value in values
    )


_ESCAPED = re.compile(r"[^ !#$&-\[\]^`-~]+")
"""What JSON may spell otherwise, what has another case that SQL does not know, and what `LIKE` reads as a sign."""


def like(text: str) -> str:
    """A text as `LIKE` finds it in JSON, with a few too many rather than one too few."""
    return f"%{_ESCAPED.sub('%', text)}%"
