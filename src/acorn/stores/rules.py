"""Rows of the tables, made from what the port hands over and made into it.

Whether a commit fits what is kept: the same rules for stores that look at them before they write.

The rules of an allowance that machines share: what can be had of it, where so much counts. Stores keep the book.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any, NamedTuple

from acorn.stores import messages
from acorn.stores.port import (
    Change,
    Commit,
    RunFacts,
    RunHeader,
    Status,
    StoredAnswer,
    StoredRun,
    WindowOrder,
    WindowSlice,
)
from acorn.types import Request, Usage

FACTS = (
    "id, agent, status, model, steps, input_tokens, output_tokens, cached_tokens, reasoning_tokens, requests, "
    "cache_write_tokens, cost, started, updated, seconds, batch, stop_reason, error, parent, item"
)
REQUEST = "id, run, kind, question, tool, arguments, branch, asked, choices"
Row = tuple[Any, ...]


def moment(stored_run: float | datetime) -> datetime:
    """SQLite has seconds since 1970, PostgreSQL moments."""
    return stored_run if isinstance(stored_run, datetime) else datetime.fromtimestamp(stored_run, UTC)


def in_seconds(row: Row) -> Row:
    """The same for SQLite, which knows no moments."""
    return tuple(value.timestamp() if isinstance(value, datetime) else value for value in row)


def run_facts(row: Row, root: str, status: Status) -> RunFacts:
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


def stored_run(row: Row, root: str, status: Status, entries: Sequence[str]) -> StoredRun:
    """Of a row of `FACTS` with branch, input, overrides, record and state behind."""
    *first, branch, input_, overrides, record, state = row
    known = run_facts(tuple(first), root, status)
    birth = RunHeader(known.agent, known.parent, branch, input_, known.started, overrides, known.batch, known.item)
    return StoredRun(known, birth, entries, record, state)


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


def header_row(run_id: str, birth: RunHeader, root: int | None) -> Row:
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


def answer(row: Row) -> StoredAnswer:
    """Of a row of `REQUEST` with answer and its time behind."""
    *first, value, at = row
    return StoredAnswer(request(tuple(first)), json.loads(value), moment(at))


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


class KnownRun(NamedTuple):
    """A run that is kept: the tree that it is in, and how many entries it has."""

    root: str
    length: int


def is_new_run(commit: Commit) -> bool:
    """Whether the root itself is new."""
    first = commit.changes[0] if commit.changes else None
    return first is not None and first.run_id == commit.root and first.birth is not None


def run_named(commit: Commit) -> list[str]:
    """The runs that it is about, and those that they are to be born below."""
    parents = [one.birth.parent for one in commit.changes if one.birth is not None and one.birth.parent is not None]
    return list(dict.fromkeys([*(one.run_id for one in commit.changes), *parents]))


def refuse_misfits(commit: Commit, kept: Mapping[str, KnownRun], store: str) -> None:
    """Whether all of it fits, before any of it is kept; `kept` has what there is of the runs that it names."""
    lengths: dict[str, int] = {}
    for change in commit.changes:
        run = kept.get(change.run_id)
        known = lengths.get(change.run_id, None if run is None else run.length)
        if change.birth is not None:
            if not _has_parent(change.run_id, change.birth.parent, commit.root, lengths, kept):
                raise messages.parent_missing(change.run_id, change.birth.parent, commit.root)
            if known is not None:
                raise messages.created_twice(change.run_id, store)
        elif known is None or (run is not None and run.root != commit.root):
            raise messages.store_incomplete(change.run_id, None, change.since)
        elif known != change.since:
            raise messages.store_incomplete(change.run_id, known, change.since)
        lengths[change.run_id] = change.since + len(change.entries)


def _has_parent(
    run_id: str, parent: str | None, root: str, born: Mapping[str, int], kept: Mapping[str, KnownRun]
) -> bool:
    if parent is None or run_id == root:
        return parent is None and run_id == root
    return parent in born or (parent in kept and kept[parent].root == root)


def share(order: WindowOrder, counted: Sequence[tuple[int, int, float]]) -> WindowSlice:
    """What an order is given beside slices of so many requests and tokens for so many seconds more, soonest first."""
    requests, tokens = _fitting(order, sum(row[0] for row in counted), sum(row[1] for row in counted))
    if not requests:
        return WindowSlice(0, 0, 0, _seconds(order, counted))
    return WindowSlice(0, requests, tokens)


def _fitting(order: WindowOrder, requests: int, tokens: int) -> tuple[int, int]:
    """What can be had where so much counts; no requests where that is too little."""
    if requests == 0:  # what is greater than the whole allowance goes alone
        most = order.requests if order.most_requests is None else min(order.requests, order.most_requests)
        if order.most_tokens is None:
            return most, order.tokens
        return (most if order.need <= order.most_tokens else 1), max(order.need, min(order.tokens, order.most_tokens))
    room = inf if order.most_requests is None else order.most_requests - requests
    token_room = inf if order.most_tokens is None else order.most_tokens - tokens
    if room < 1 or token_room < order.need:
        return 0, 0
    return int(min(order.requests, room)), int(min(order.tokens, token_room))


def _seconds(order: WindowOrder, counted: Sequence[tuple[int, int, float]]) -> float:
    """When the first ones have left, there is room."""
    requests, tokens = sum(row[0] for row in counted), sum(row[1] for row in counted)
    for earlier_requests, earlier_tokens, left in counted:
        requests, tokens = requests - earlier_requests, tokens - earlier_tokens
        if _fitting(order, requests, tokens)[0]:
            return max(0.0, left)
    return 0.0
