"""Row formats, rules and errors that all stores share.

This file converts table rows to the objects of `port.py`, and these objects to table rows. Its rules decide whether a
commit fits the stored runs, which status a run has, and how much of a shared rate limit is available. Every store
reports a problem with the same error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple

from acorn.errors import StoreError
from acorn.stores.port import (
    Change,
    Commit,
    Process,
    QueuedRun,
    RunCancelledError,
    RunClaimedError,
    RunFacts,
    RunHeader,
    Status,
    StoredAnswer,
    StoredRun,
)
from acorn.types import Request, Usage

FINAL_STATUSES: tuple[Status, ...] = ("done", "cancelled")
"""The statuses of runs that no process drives again."""
MAX_TAKEOVERS = 5
"""The number of processes that die at the same step of a run before the run fails."""

# Columns and rows

Row = tuple[Any, ...]
FACTS_COLUMNS = (
    "id, agent, status, model, steps, input_tokens, output_tokens, cached_tokens, reasoning_tokens, requests, "
    "cache_write_tokens, cost, started, updated, seconds, batch, stop_reason, error, parent, item"
)
HEADER_COLUMNS = "id, root, parent, agent, started, batch, item"
_CHANGE_FIELDS = {
    "model": "model",
    "steps": "steps",
    "input_tokens": "usage.input_tokens",
    "output_tokens": "usage.output_tokens",
    "cached_tokens": "usage.cached_tokens",
    "reasoning_tokens": "usage.reasoning_tokens",
    "requests": "usage.requests",
    "cache_write_tokens": "usage.cache_write_tokens",
    "cost": "cost",
    "seconds": "seconds",
    "stop_reason": "stop_reason",
    "error": "error",
}
"""A dict that maps columns of `runs` to the fields of a `Change`."""
CHANGE_COLUMNS = f"status, {', '.join(_CHANGE_FIELDS)}, entry_count"
change_values: Callable[[Change], Row] = attrgetter(*_CHANGE_FIELDS.values())
"""Return the values of `CHANGE_COLUMNS` except the first and the last column, which each store computes."""
REQUEST_COLUMNS = "id, run, kind, question, tool, arguments, branch, asked, choices"


def to_datetime(value: float | datetime) -> datetime:
    """Convert a stored time to a datetime.

    SQLite stores the seconds since 1970, and PostgreSQL stores timestamps.
    """
    return value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)


def times_to_seconds(row: Row) -> Row:
    """Convert all datetimes in a row to seconds since 1970 for SQLite, which has no data type for times."""
    return tuple(value.timestamp() if isinstance(value, datetime) else value for value in row)


def run_facts(row: Row, root: str, status: Status) -> RunFacts:
    """Convert a table row with the columns of `FACTS_COLUMNS` to a `RunFacts` object."""
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
    """Convert a table row to a `StoredRun` object.

    The row has the columns of `FACTS_COLUMNS`, and then branch, input, overrides, record and state.
    """
    *facts_row, branch, input_, overrides, record, state = row
    facts = run_facts(tuple(facts_row), root, status)
    header = RunHeader(facts.agent, facts.parent, branch, input_, facts.started, overrides, facts.batch, facts.item)
    return StoredRun(facts, header, entries, record, state)


def request_row(request: Request) -> Row:
    """Convert a request for human input to a table row with the columns of `REQUEST_COLUMNS`."""
    choices = None if request.choices is None else json.dumps(request.choices)
    return (
        request.id, request.run_id, request.kind, request.question, request.tool, json.dumps(request.arguments),
        request.branch, request.asked, choices,
    )  # fmt: skip


def to_request(row: Row) -> Request:
    """Convert a table row with the columns of `REQUEST_COLUMNS` to a request for human input."""
    request_id, run_id, kind, question, tool, arguments, branch, asked, choices = row
    offered = None if choices is None else tuple(json.loads(choices))
    return Request(
        request_id, run_id, kind, question, tool, json.loads(arguments), branch, to_datetime(asked), offered
    )  # fmt: skip


def to_answer(row: Row) -> StoredAnswer:
    """Convert a table row to a `StoredAnswer` object.

    The row has the columns of `REQUEST_COLUMNS`, and then the answer and the time of the answer.
    """
    *request, value, answered = row
    return StoredAnswer(to_request(tuple(request)), json.loads(value), to_datetime(answered))


def encodable(values: Iterable[Any]) -> Row:
    """Replace lone surrogates, which UTF-8 cannot encode, with their JSON escapes in all strings of a row."""
    return tuple(
        value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
        for value in values
    )


_NOT_LITERAL = re.compile(r"[^ !#$&-\[\]^`-~]+")
"""Characters that JSON may escape, that are wildcards of `LIKE`, or whose case SQL does not ignore."""


def like_pattern(text: str) -> str:
    """Return an SQL `LIKE` pattern that matches every JSON document with a given text inside.

    The pattern may also match documents without the text, because it contains wildcards instead of special characters.
    """
    return f"%{_NOT_LITERAL.sub('%', text)}%"


def answer_text(request_id: str, value: object) -> str:
    """Convert the answer to a request for human input to JSON text.

    Raise `StoreError` if JSON cannot represent the answer.
    """
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise answer_not_json_error(request_id, error) from error


def has_class_name(agent: str, name: str) -> bool:
    """Return True if `name` is the name of an agent class.

    `agent` is the full class name (`module:qualname`). `name` may omit the module.
    """
    return agent == name or agent.endswith((f":{name}", f".{name}"))


def without_repeats(runs: Sequence[QueuedRun]) -> list[QueuedRun]:
    """Return the runs without repeated ids: of several runs with the same id, keep only the first run."""
    return list({run.run_id: run for run in reversed(runs)}.values())[::-1]


# The status of a run


def status_after_cancel(status: Status) -> Status:
    """Return the final status of a run that has a cancel request.

    `status` is the status without the cancel request. It stays the same if the run is already `done` or `failed`.
    """
    return status if status in ("done", "failed") else "cancelled"


def visible_status(status: Status, cancel_requested: bool, is_driven: bool) -> Status:
    """Convert the stored status of a run to the status that the store reports.

    A run that is stored as `running` but has no live process is reported as `stopped`, or as `cancelled` if it has a
    cancel request.
    """
    if status != "running" or is_driven:
        return status
    return "cancelled" if cancel_requested else "stopped"


# Commits


class KnownRun(NamedTuple):
    """The properties of a stored run that are compared with a new commit.

    They are the id of its root run and the length of its journal.
    """

    root: str
    entry_count: int


def creates_root(commit: Commit) -> bool:
    """Return True if a commit creates a new root run."""
    first = commit.changes[0] if commit.changes else None
    return first is not None and first.run_id == commit.root and first.header is not None


def ends_root(commit: Commit) -> bool:
    """Return True if a commit ends its root run: the new status is done, failed, cancelled or stopped.

    After a cancel request, a root run accepts only such a commit.
    """
    return any(
        change.run_id == commit.root and change.status in ("done", "failed", "cancelled", "stopped")
        for change in commit.changes
    )


def runs_of_commit(commit: Commit) -> list[str]:
    """Return the ids of all runs that a commit changes, and the ids of the parents of its new runs."""
    changed = [change.run_id for change in commit.changes]
    parents = [
        change.header.parent
        for change in commit.changes
        if change.header is not None and change.header.parent is not None
    ]
    return list(dict.fromkeys([*changed, *parents]))


def check_commit(commit: Commit, stored: Mapping[str, KnownRun], store: str) -> None:
    """Raise `StoreError` if a commit does not fit the stored runs.

    `stored` contains those of the runs from `runs_of_commit` that are already stored, by run id.
    """
    lengths: dict[str, int] = {}
    for change in commit.changes:
        run = stored.get(change.run_id)
        entry_count = lengths.get(change.run_id, None if run is None else run.entry_count)
        if change.header is not None:
            if not _has_parent(change.run_id, change.header.parent, commit.root, lengths, stored):
                raise parent_missing_error(change.run_id, change.header.parent, commit.root)
            if entry_count is not None:
                raise branch_exists_error(change.run_id, store)
        elif entry_count is None or (run is not None and run.root != commit.root):
            raise unknown_run_error(change.run_id)
        elif entry_count != change.offset:
            raise wrong_offset_error(change.run_id, entry_count, change.offset)
        lengths[change.run_id] = change.offset + len(change.entries)


def _has_parent(
    run_id: str, parent: str | None, root: str, new_runs: Mapping[str, int], stored: Mapping[str, KnownRun]
) -> bool:
    if parent is None or run_id == root:
        return parent is None and run_id == root
    return parent in new_runs or (parent in stored and stored[parent].root == root)


# Errors


def run_not_found_error(run_id: str, store: str) -> StoreError:
    return StoreError(f"Run {run_id!r} is not in {store}. To list its runs, use `acorn runs --store {store}`.")


def run_claimed_error(run_id: str, process: Process, heartbeat_age: float) -> RunClaimedError:
    error = RunClaimedError(
        f"Run {run_id} is driven by process {process.pid} on {process.host} (last heartbeat {heartbeat_age:.0f} s "
        f"ago). Wait for the run, or stop the process."
    )
    error.process = process
    return error


def run_exists_error(run_id: str, store: str, status: Status, driver: StoreError | None) -> StoreError:
    """Return the error for a new run with an id that is already stored.

    `driver` is the `RunClaimedError` if a live process drives the stored run. In this case, return `driver`.
    """
    if driver is not None:
        return driver
    return StoreError(f"Run {run_id} is already in {store} (status `{status}`). Resume the run, or use another id.")


def no_workers_error(store: str) -> StoreError:
    return StoreError(
        f"{store} cannot deliver runs to workers. Workers need a PostgreSQL store, such as "
        f"`store = 'postgresql://host/name'`. Without workers, call the agent in this process, or submit the run with "
        f"`using(deliver=False)` and pass its id to `acorn.durable.perform`."
    )


def taken_over_error(run_id: str, new_process: Process | None, heartbeat_age: float, status: Status) -> StoreError:
    """Return the error for a commit from a process that no longer drives the run."""
    if new_process is not None:
        return StoreError(
            f"Run {run_id} was taken over by process {new_process.pid} on {new_process.host}, because this process "
            f"sent no heartbeat for {heartbeat_age:.0f} s. This process writes nothing more to the run."
        )
    return StoreError(
        f"Run {run_id} is no longer driven by this process (its status is `{status}`). This process writes nothing "
        f"more to the run."
    )


def claim_lost_error(run_id: str) -> StoreError:
    """Return the error for a commit from a call that lost the run to a newer call in the same process."""
    return StoreError(
        f"Run {run_id} was stopped, and another call in this process resumed the run. The stopped call writes nothing "
        f"more to the run."
    )


def run_deleted_error(run_id: str, store: str) -> StoreError:
    return StoreError(f"Run {run_id} is no longer in {store}. This process writes nothing more to the run.")


def unknown_run_error(run_id: str) -> StoreError:
    return StoreError(
        f"Cannot store a change of run {run_id}: it does not belong to the root run of the commit. The first change of "
        f"a run needs a header. Nothing was written."
    )


def wrong_offset_error(run_id: str, stored_entries: int, offset: int) -> StoreError:
    """Return the error for a change with new journal entries that do not start at the end of the stored journal."""
    return StoreError(
        f"Cannot store a change of run {run_id}: the stored journal has {stored_entries} entries, but the change "
        f"starts after entry {offset}. Nothing was written."
    )


def parent_missing_error(run_id: str, parent: str | None, root: str) -> StoreError:
    return StoreError(
        f"Cannot create run {run_id}: its parent {parent!r} does not belong to run {root}. Nothing was written."
    )


def branch_exists_error(run_id: str, store: str) -> StoreError:
    return StoreError(f"Cannot create branch {run_id}: a run with this id is already in {store}. Nothing was written.")


def run_cancelled_error(run_id: str) -> RunCancelledError:
    return RunCancelledError(f"Run {run_id} was cancelled. This process writes nothing more to the run.")


def branch_id_error(run_id: str, root: str) -> StoreError:
    return StoreError(f"Run {run_id} is a branch of run {root}. Use the id of run {root}.")


def too_many_crashes_text(run_id: str) -> str:
    return (
        f"Run {run_id} failed: five processes died while they executed this step. Check the step before you resume "
        f"the run."
    )


def already_finished_error(run_id: str, status: Status) -> StoreError:
    return StoreError(f"Cannot cancel run {run_id}: it is already finished (status `{status}`).")


def request_not_open_error(request_id: str, store: str) -> StoreError:
    return StoreError(f"Request {request_id!r} is not open in {store}. Its run may have withdrawn the request.")


def already_answered_error(request_id: str, at: datetime) -> StoreError:
    return StoreError(f"Request {request_id} was already answered at {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC.")


def answer_not_json_error(request_id: str, error: Exception) -> StoreError:
    return StoreError(f"The answer to request {request_id} cannot be stored as JSON ({error}). Use only JSON data.")
