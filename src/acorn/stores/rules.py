"""Rules and row formats that the stores share.

The rows of the tables and the objects of the port are converted into each other here. The other functions decide
whether a commit fits the stored runs, which status a run has, and how much of a shared rate limit is available.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any, NamedTuple

from acorn.stores import messages
from acorn.stores.port import (
    Change,
    Commit,
    QueuedRun,
    RunFacts,
    RunHeader,
    Status,
    StoredAnswer,
    StoredRun,
    WindowOrder,
    WindowSlice,
)
from acorn.types import Request, Usage

FINAL_STATUSES: tuple[Status, ...] = ("done", "cancelled")
"""A run with one of these statuses is never driven again."""
MAX_TAKEOVERS = 5
"""The run fails when this many processes have died at the same step."""

# Columns and rows

FACTS_COLUMNS = (
    "id, agent, status, model, steps, input_tokens, output_tokens, cached_tokens, reasoning_tokens, requests, "
    "cache_write_tokens, cost, started, updated, seconds, batch, stop_reason, error, parent, item"
)
HEADER_COLUMNS = "id, root, parent, agent, started, batch, item"
CHANGE_COLUMNS = (
    "status, model, steps, input_tokens, output_tokens, cached_tokens, reasoning_tokens, requests, "
    "cache_write_tokens, cost, seconds, stop_reason, error, entry_count"
)
REQUEST_COLUMNS = "id, run, kind, question, tool, arguments, branch, asked, choices"
Row = tuple[Any, ...]


def to_datetime(value: float | datetime) -> datetime:
    """Convert a stored time. SQLite stores seconds since 1970, PostgreSQL timestamps."""
    return value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)


def times_to_seconds(row: Row) -> Row:
    """Convert the times of a row for SQLite, which has no type for them."""
    return tuple(value.timestamp() if isinstance(value, datetime) else value for value in row)


def run_facts(row: Row, root: str, status: Status) -> RunFacts:
    """Convert a row of `FACTS_COLUMNS`."""
    (
        run_id, agent, _, model, steps, input_tokens, output_tokens, cached, reasoning, requests,
        written, cost, started, updated, seconds, batch, stop_reason, error, parent, item,
    ) = row  # fmt: skip
    usage = Usage(input_tokens, output_tokens, cached, reasoning, requests, written)
    return RunFacts(
        run_id, agent, status, model, steps, usage, cost, to_datetime(started), to_datetime(updated), seconds,
        batch, stop_reason, error, root, parent, item,
    )  # fmt: skip


def stored_run(row: Row, root: str, status: Status, entries: Sequence[str]) -> StoredRun:
    """Convert a row of `FACTS_COLUMNS` followed by branch, input, overrides, record and state."""
    *facts_row, branch, input_, overrides, record, state = row
    facts = run_facts(tuple(facts_row), root, status)
    header = RunHeader(facts.agent, facts.parent, branch, input_, facts.started, overrides, facts.batch, facts.item)
    return StoredRun(facts, header, entries, record, state)


def change_row(change: Change, status: Status) -> Row:
    """Return the values of `CHANGE_COLUMNS`."""
    usage = change.usage
    return (
        status, change.model, change.steps, usage.input_tokens, usage.output_tokens, usage.cached_tokens,
        usage.reasoning_tokens, usage.requests, usage.cache_write_tokens, change.cost, change.seconds,
        change.stop_reason, change.error, change.offset + len(change.entries),
    )  # fmt: skip


def header_row(run_id: str, header: RunHeader, root: int | None) -> Row:
    """Return the values of `HEADER_COLUMNS`."""
    return (run_id, root, header.parent, header.agent, header.started, header.batch, header.item)


def request_row(request: Request) -> Row:
    """Return the values of `REQUEST_COLUMNS`."""
    choices = None if request.choices is None else json.dumps(request.choices)
    return (
        request.id, request.run_id, request.kind, request.question, request.tool, json.dumps(request.arguments),
        request.branch, request.asked, choices,
    )  # fmt: skip


def to_request(row: Row) -> Request:
    """Convert a row of `REQUEST_COLUMNS`."""
    request_id, run_id, kind, question, tool, arguments, branch, asked, choices = row
    offered = None if choices is None else tuple(json.loads(choices))
    return Request(
        request_id, run_id, kind, question, tool, json.loads(arguments), branch, to_datetime(asked), offered
    )  # fmt: skip


def to_answer(row: Row) -> StoredAnswer:
    """Convert a row of `REQUEST_COLUMNS` followed by the answer and its time."""
    *request, value, answered = row
    return StoredAnswer(to_request(tuple(request)), json.loads(value), to_datetime(answered))


def encodable(values: Iterable[Any]) -> Row:
    """Replace lone surrogates, which cannot be encoded as UTF-8, by their JSON escapes."""
    return tuple(
        value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
        for value in values
    )


_NOT_LITERAL = re.compile(r"[^ !#$&-\[\]^`-~]+")
"""Characters that JSON may escape, whose case SQL does not fold, or that are wildcards of `LIKE`."""


def like_pattern(text: str) -> str:
    """Return a `LIKE` pattern that finds a text in JSON. It may match too much, but never too little."""
    return f"%{_NOT_LITERAL.sub('%', text)}%"


def answer_text(request_id: str, value: object) -> str:
    """Return an answer as JSON, or raise `StoreError`."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise messages.answer_not_json(request_id, error) from error


def is_named(agent: str, name: str) -> bool:
    """Whether a class (`module:qualname`) has this name, with or without its module."""
    return agent == name or agent.endswith((f":{name}", f".{name}"))


def without_repeats(runs: Sequence[QueuedRun]) -> list[QueuedRun]:
    """Return the runs without those whose id occurred before."""
    return list({run.run_id: run for run in reversed(runs)}.values())[::-1]


# The status of a run


def ends_run(status: Status) -> bool:
    """Whether a commit with this status is accepted although the run should be cancelled."""
    return status in ("done", "failed", "cancelled", "stopped")


def apply_cancel(status: Status, cancel_requested: bool) -> Status:
    """Return the status of a run that is released and may have a cancel request."""
    return "cancelled" if cancel_requested and status not in ("done", "failed") else status


def visible_status(status: Status, cancel_requested: bool, is_driven: Callable[[], bool]) -> Status:
    """Return the status that readers see. A `running` run without a live process has stopped."""
    if status != "running" or is_driven():
        return status
    return "cancelled" if cancel_requested else "stopped"


# Commits


class KnownRun(NamedTuple):
    """A stored run: the id of its root and the number of its journal entries."""

    root: str
    entry_count: int


def creates_root(commit: Commit) -> bool:
    """Whether a commit creates its root."""
    first = commit.changes[0] if commit.changes else None
    return first is not None and first.run_id == commit.root and first.header is not None


def is_refused_by_cancel(commit: Commit, cancel_requested: bool) -> bool:
    """Whether a commit must fail because its run should be cancelled. Commits that end the run are accepted."""
    return cancel_requested and not any(
        ends_run(change.status) for change in commit.changes if change.run_id == commit.root
    )


def runs_of_commit(commit: Commit) -> list[str]:
    """Return the ids of the changed runs and of the parents of new runs."""
    changed = [change.run_id for change in commit.changes]
    parents = [
        change.header.parent
        for change in commit.changes
        if change.header is not None and change.header.parent is not None
    ]
    return list(dict.fromkeys([*changed, *parents]))


def check_commit(commit: Commit, stored: Mapping[str, KnownRun], store: str) -> None:
    """Raise `StoreError` if a commit does not fit the stored runs. `stored` has the runs that the commit names."""
    lengths: dict[str, int] = {}
    for change in commit.changes:
        run = stored.get(change.run_id)
        entry_count = lengths.get(change.run_id, None if run is None else run.entry_count)
        if change.header is not None:
            if not _has_parent(change.run_id, change.header.parent, commit.root, lengths, stored):
                raise messages.parent_missing(change.run_id, change.header.parent, commit.root)
            if entry_count is not None:
                raise messages.branch_exists(change.run_id, store)
        elif entry_count is None or (run is not None and run.root != commit.root):
            raise messages.unknown_run(change.run_id)
        elif entry_count != change.offset:
            raise messages.wrong_offset(change.run_id, entry_count, change.offset)
        lengths[change.run_id] = change.offset + len(change.entries)


def _has_parent(
    run_id: str, parent: str | None, root: str, new_runs: Mapping[str, int], stored: Mapping[str, KnownRun]
) -> bool:
    if parent is None or run_id == root:
        return parent is None and run_id == root
    return parent in new_runs or (parent in stored and stored[parent].root == root)


# Shared rate limits

UsedSlices = Sequence[tuple[int, int, float]]
"""The requests, tokens and remaining seconds of the slices that count, the first to expire first."""


def grant_slice(order: WindowOrder, used: UsedSlices) -> WindowSlice:
    """Return what an order gets of a rate limit beside the slices that count now."""
    requests, tokens = _available(order, sum(row[0] for row in used), sum(row[1] for row in used))
    if not requests:
        return WindowSlice(0, 0, 0, _seconds_until_available(order, used))
    return WindowSlice(0, requests, tokens)


def _available(order: WindowOrder, requests: int, tokens: int) -> tuple[int, int]:
    """Return the requests and tokens for an order, given those in use. No requests if there is too little left."""
    if requests == 0:  # A request that exceeds the whole limit is granted alone; it could never run otherwise.
        most = order.requests if order.most_requests is None else min(order.requests, order.most_requests)
        if order.most_tokens is None:
            return most, order.tokens
        return (most if order.need <= order.most_tokens else 1), max(order.need, min(order.tokens, order.most_tokens))
    requests_left = inf if order.most_requests is None else order.most_requests - requests
    tokens_left = inf if order.most_tokens is None else order.most_tokens - tokens
    if requests_left < 1 or tokens_left < order.need:
        return 0, 0
    return int(min(order.requests, requests_left)), int(min(order.tokens, tokens_left))


def _seconds_until_available(order: WindowOrder, used: UsedSlices) -> float:
    """Return the seconds until enough slices have expired."""
    requests, tokens = sum(row[0] for row in used), sum(row[1] for row in used)
    for slice_requests, slice_tokens, seconds_left in used:
        requests, tokens = requests - slice_requests, tokens - slice_tokens
        if _available(order, requests, tokens)[0]:
            return max(0.0, seconds_left)
    return 0.0
