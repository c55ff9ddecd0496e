"""The functions of the PostgreSQL store that only read. The store calls each function inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from acorn.stores import rules
from acorn.stores.lease import is_alive
from acorn.stores.port import JournalRow, Process, RunFacts, Status, StoredAnswer, StoredRun
from acorn.stores.postgres.connection import Transaction
from acorn.types import Request

_PROCESS_COLUMNS = """
    processes.id, host, boot, pid, process_started, extract(epoch FROM clock_timestamp() - last_heartbeat)::float8,
    extract(epoch FROM lease_expires - clock_timestamp())::float8
"""
_PROCESS = f"SELECT {_PROCESS_COLUMNS} FROM acorn.processes WHERE id = $1".encode()
_DRIVING_PROCESSES = f"""
    SELECT {_PROCESS_COLUMNS} FROM acorn.processes
    WHERE id IN (SELECT process FROM acorn.runs WHERE process IS NOT NULL)
""".encode()
_ROOT = f"""
    SELECT top.number, top.id, top.cancel_requested, run.number, run.status, {_PROCESS_COLUMNS}
    FROM acorn.runs run JOIN acorn.runs top ON top.number = coalesce(run.root, run.number)
    LEFT JOIN acorn.processes ON processes.id = top.process WHERE run.id = $1
""".encode()
_TREE = f"""
    SELECT number, {rules.FACTS_COLUMNS}, branch, input, overrides, record, state
    FROM acorn.runs JOIN acorn.run_headers ON run_headers.run = number JOIN acorn.run_states ON run_states.run = number
    WHERE number = $1 OR root = $1 ORDER BY number
""".encode()
_PARENTS = b"SELECT number, id, parent FROM acorn.runs WHERE number = $1 OR root = $1 ORDER BY number"
_JOURNAL = b"SELECT run, entry FROM acorn.entries WHERE root = $1 ORDER BY position"
_JOURNAL_AFTER = b"SELECT run, position, entry FROM acorn.entries WHERE root = $1 AND position > $2 ORDER BY position"
_STATUSES = f"""
    SELECT runs.id, status, cancel_requested, {_PROCESS_COLUMNS}
    FROM acorn.runs LEFT JOIN acorn.processes ON processes.id = runs.process
    WHERE root IS NULL AND runs.id = ANY($1::text[])
""".encode()
_SEARCH = b"""
    SELECT id FROM acorn.runs WHERE root IS NULL AND id = ANY($1::text[]) AND (
      EXISTS (SELECT 1 FROM acorn.run_headers WHERE run = number AND input COLLATE "C" ILIKE $2)
      OR EXISTS (SELECT 1 FROM acorn.entries WHERE entries.root = number AND entry COLLATE "C" ILIKE $2))
"""
_FIND = b"SELECT id FROM acorn.runs WHERE root IS NULL AND starts_with(id, $1::text) ORDER BY id"
_IN_TREE = "root = (SELECT coalesce(root, number) FROM acorn.runs WHERE id = $1)"
_OPEN_REQUESTS = f"SELECT {rules.REQUEST_COLUMNS} FROM acorn.requests WHERE answered IS NULL"
_ALL_REQUESTS = f"{_OPEN_REQUESTS} ORDER BY asked, number".encode()
_TREE_REQUESTS = f"{_OPEN_REQUESTS} AND {_IN_TREE} ORDER BY asked, number".encode()
_ANSWERS = f"""
    SELECT {rules.REQUEST_COLUMNS}, answer, answered FROM acorn.requests
    WHERE {_IN_TREE} AND answered IS NOT NULL ORDER BY answer_order
""".encode()


# Processes


class PostgresProcessRow(NamedTuple):
    """A process, the age of its last heartbeat and the time left until its lease expires.

    The clock of the database measures these times, because the clocks of different machines may differ.
    """

    process: Process
    heartbeat_age: float
    """Seconds since the last heartbeat."""
    lease_left: float
    """Seconds until the lease expires."""

    def is_alive(self) -> bool:
        return is_alive(self.process, self.lease_left, 0.0)


def _to_process(row: Sequence[Any]) -> PostgresProcessRow | None:
    """Convert a row with the columns of `_PROCESS_COLUMNS` to a `PostgresProcessRow`.

    Return None if the row contains no process.
    """
    return None if row[0] is None else PostgresProcessRow(Process(*row[:5]), row[5], row[6])


def read_process(transaction: Transaction, process_id: str | None) -> PostgresProcessRow | None:
    """Return the stored row of a process, or None if the process is not stored."""
    row = transaction.execute(_PROCESS, [process_id]).fetchone() if process_id else None
    return None if row is None else _to_process(row)


# One tree


class _RootRow(NamedTuple):
    """The row of a root run, with the number and the stored status of the requested run (the root run or a branch)."""

    number: int
    id: str
    cancel_requested: bool
    run: int
    run_status: Status
    is_driven: bool
    """Whether a live process drives the tree."""

    def visible_status(self, status: Status) -> Status:
        """Convert the stored status of the root run or of one of its branches to the status that the store reports."""
        return rules.visible_status(status, self.cancel_requested, self.is_driven)


def _read_root(transaction: Transaction, run_id: str) -> _RootRow | None:
    row = transaction.execute(_ROOT, [run_id]).fetchone()
    if row is None:
        return None
    process = _to_process(row[5:])
    return _RootRow._make([*row[:5], process is not None and process.is_alive()])


def tree(transaction: Transaction, run_id: str) -> list[StoredRun]:
    """Return a run and the branches below it, or an empty list if the run does not exist."""
    root = _read_root(transaction, run_id)
    if root is None:
        return []
    # Send both statements before the first result is read.
    runs, entries = transaction.execute(_TREE, [root.number]), transaction.execute(_JOURNAL, [root.number])
    rows = runs.fetchall()
    if root.run != root.number:
        numbers = _run_and_below(transaction, run_id, root.number)
        rows = [row for row in rows if row[0] in numbers]
    journals: dict[int, list[str]] = {row[0]: [] for row in rows}
    for number, entry in entries.fetchall():
        if number in journals:
            journals[number].append(entry)
    return [rules.stored_run(row[1:], root.id, root.visible_status(row[3]), journals[row[0]]) for row in rows]


def _run_and_below(transaction: Transaction, run_id: str, root: int) -> set[int]:
    """Return the row numbers of a run and of all branches below it."""
    ids = {run_id}
    numbers: set[int] = set()
    for number, member_id, parent in transaction.execute(_PARENTS, [root]).fetchall():  # Parents come first.
        if member_id in ids or parent in ids:
            ids.add(member_id)
            numbers.add(number)
    return numbers


def follow(transaction: Transaction, run_id: str, after: int) -> tuple[Status | None, list[JournalRow]]:
    root = _read_root(transaction, run_id)
    if root is None:
        return None, []
    rows = transaction.execute(_JOURNAL_AFTER, [root.number, after]).fetchall()
    numbers = None if root.run == root.number else _run_and_below(transaction, run_id, root.number)
    entries = [JournalRow(position, entry) for run, position, entry in rows if numbers is None or run in numbers]
    return root.visible_status(root.run_status), entries


def requests(transaction: Transaction, run_id: str | None) -> list[Request]:
    cursor = transaction.execute(_ALL_REQUESTS) if run_id is None else transaction.execute(_TREE_REQUESTS, [run_id])
    return [rules.to_request(row) for row in cursor.fetchall()]


def answers(transaction: Transaction, run_id: str) -> list[StoredAnswer]:
    return [rules.to_answer(row) for row in transaction.execute(_ANSWERS, [run_id]).fetchall()]


def media(transaction: Transaction, wanted: Sequence[str]) -> dict[str, bytes]:
    sql = b"SELECT sha256, data FROM acorn.media WHERE sha256 = ANY($1::text[])"
    return {sha256: bytes(data) for sha256, data in transaction.execute(sql, [list(wanted)]).fetchall()}


# Many roots


def find(transaction: Transaction, prefix: str) -> list[str]:
    ids = [run_id for (run_id,) in transaction.execute(_FIND, [prefix]).fetchall()]
    return [prefix] if prefix in ids else ids


def statuses(transaction: Transaction, run_ids: Sequence[str]) -> dict[str, Status]:
    """Return a dict that maps the ids of stored root runs to their statuses."""
    is_alive_by_process: dict[str | None, bool] = {}
    by_id: dict[str, Status] = {}
    for run_id, status, cancel_requested, *process_row in transaction.execute(_STATUSES, [list(run_ids)]).fetchall():
        process_id = process_row[0]
        if process_id not in is_alive_by_process:
            process = _to_process(process_row)
            is_alive_by_process[process_id] = process is not None and process.is_alive()
        by_id[run_id] = rules.visible_status(status, cancel_requested, is_alive_by_process[process_id])
    return by_id


def list_runs(
    transaction: Transaction,
    status: Sequence[Status],
    agent: str | None,
    batch: str | None,
    before: datetime | None,
    limit: int | None,
) -> list[RunFacts]:
    """Return the facts of the root runs that match all given conditions, newest root run first."""
    processes = [_to_process(row) for row in transaction.execute(_DRIVING_PROCESSES).fetchall()]
    values: list[object] = [[row.process.id for row in processes if row is not None and row.is_alive()]]
    conditions = ["root IS NULL"]

    def add(condition: str, value: object) -> None:
        values.append(value)
        conditions.append(condition.replace("$", f"${len(values)}"))

    if status:
        add("visible_status = ANY($::text[])", list(status))
    if agent is not None:
        add("(agent = $::text OR right(agent, length($::text) + 1) IN (':' || $::text, '.' || $::text))", agent)
    if batch is not None:
        add("batch = $", batch)
    if before is not None:
        add("started < $", before.astimezone(UTC))
    values.append(None if limit is None else max(limit, 0))
    # The CASE expression computes `rules.visible_status`. Its parameter is the list of ids of the live processes.
    sql = f"""
        SELECT {rules.FACTS_COLUMNS}, visible_status FROM acorn.runs, LATERAL (SELECT CASE
          WHEN status <> 'running' OR process = ANY($1::text[]) THEN status
          WHEN cancel_requested THEN 'cancelled' ELSE 'stopped' END AS visible_status) AS visible
        WHERE {" AND ".join(conditions)} ORDER BY started DESC, number DESC LIMIT ${len(values)}
    """
    rows = transaction.execute(sql.encode(), values).fetchall()
    return [rules.run_facts(tuple(row), row[0], visible_status) for *row, visible_status in rows]


def search(transaction: Transaction, run_ids: Sequence[str], text: str) -> list[str]:
    """Return the ids of those of the given root runs that contain a text.

    The list may also contain root runs without the text, so the caller must check each result.
    """
    rows = transaction.execute(_SEARCH, [list(run_ids), rules.like_pattern(text)]).fetchall()
    return [run_id for (run_id,) in rows]
