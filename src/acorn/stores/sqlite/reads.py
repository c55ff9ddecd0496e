"""The functions of the SQLite store that only read. The store calls each function inside a transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from sqlite3 import Connection
from typing import NamedTuple

from acorn.stores import rules
from acorn.stores.lease import is_alive
from acorn.stores.port import JournalRow, Process, RunFacts, Status, StoredAnswer, StoredRun
from acorn.types import Request

_ROOT_OF_RUN = "coalesce((SELECT coalesce(root, number) FROM runs WHERE id = ?), 0)"
"""An SQL expression for the number of the root of a run. It is 0 if the run does not exist."""
_MAX_IDS = 500
"""The maximum number of ids in one statement."""


# Processes


class SQLiteProcessRow(NamedTuple):
    """A process, the time of its last heartbeat and the time when its lease expires, in seconds since 1970."""

    process: Process
    last_heartbeat: float
    lease_expires: float

    def is_alive(self, now: float) -> bool:
        return is_alive(self.process, self.lease_expires, now)


def read_process(connection: Connection, process_id: str | None) -> SQLiteProcessRow | None:
    """Return the stored row of a process, or None if the process is not stored."""
    rows = _processes(connection, "id = ?", (process_id,)) if process_id else []
    return rows[0] if rows else None


def _processes(connection: Connection, condition: str, values: Sequence[object] = ()) -> list[SQLiteProcessRow]:
    sql = f"""
        SELECT id, host, boot, pid, process_started, last_heartbeat, lease_expires FROM processes WHERE {condition}
    """
    return [SQLiteProcessRow(Process(*row[:5]), *row[5:]) for row in connection.execute(sql, tuple(values))]


def _live_processes(connection: Connection) -> list[str]:
    """Return the ids of the live processes that drive runs."""
    now = time.time()
    driving = _processes(connection, "id IN (SELECT process FROM runs WHERE process IS NOT NULL)")
    return [row.process.id for row in driving if row.is_alive(now)]


def has_cancel_requests(connection: Connection, process_id: str) -> bool:
    """Return True if any run that the process drives has a cancel request."""
    sql = "SELECT 1 FROM runs WHERE process = ? AND cancel_requested = 1 LIMIT 1"
    return connection.execute(sql, (process_id,)).fetchone() is not None


# One tree


def tree(connection: Connection, run_id: str) -> list[StoredRun]:
    """Return a run and the branches below it, or an empty list if the run does not exist."""
    now = time.time()
    row = connection.execute("SELECT number, root FROM runs WHERE id = ?", rules.encodable([run_id])).fetchone()
    if row is None:
        return []
    root = row[1] or row[0]
    root_id, cancel_requested, is_driven = _root_state(connection, root, now)
    rows = connection.execute(
        f"""
        SELECT number, {rules.FACTS_COLUMNS}, branch, input, overrides, record, state
        FROM runs JOIN run_headers ON run_headers.run = number JOIN run_states ON run_states.run = number
        WHERE number = ?1 OR root = ?1 ORDER BY number
        """,
        (root,),
    ).fetchall()
    if row[0] != root:
        numbers = _run_and_below(connection, run_id, root)
        rows = [row for row in rows if row[0] in numbers]
    journals: dict[int, list[str]] = {row[0]: [] for row in rows}
    for number, entry in connection.execute("SELECT run, entry FROM entries WHERE root = ? ORDER BY position", (root,)):
        if number in journals:
            journals[number].append(entry)
    return [
        rules.stored_run(
            row[1:], root_id, rules.visible_status(row[3], cancel_requested, is_driven), journals[row[0]]
        )
        for row in rows
    ]  # fmt: skip


def _root_state(connection: Connection, root: int, now: float) -> tuple[str, bool, bool]:
    """Return the id of a root run and two flags.

    The first flag is True if the root run has a cancel request. The second flag is True if a live process drives it.
    """
    sql = "SELECT id, process, cancel_requested FROM runs WHERE number = ?"
    run_id, process_id, cancel_requested = connection.execute(sql, (root,)).fetchone()
    process = read_process(connection, process_id)
    is_driven = process is not None and process.is_alive(now)
    return run_id, bool(cancel_requested), is_driven


def _run_and_below(connection: Connection, run_id: str, root: int) -> set[int]:
    """Return the row numbers of a run and of all branches below it."""
    ids = {run_id}
    numbers: set[int] = set()
    sql = "SELECT number, id, parent FROM runs WHERE number = ?1 OR root = ?1 ORDER BY number"
    for number, member_id, parent in connection.execute(sql, (root,)):  # Parents come before their branches.
        if member_id in ids or parent in ids:
            ids.add(member_id)
            numbers.add(number)
    return numbers


def follow(connection: Connection, run_id: str, after: int) -> tuple[Status | None, list[JournalRow]]:
    sql = "SELECT number, root, status FROM runs WHERE id = ?"
    row = connection.execute(sql, rules.encodable([run_id])).fetchone()
    if row is None:
        return None, []
    number, root, status = row
    root = root or number
    _, cancel_requested, is_driven = _root_state(connection, root, time.time())
    sql = "SELECT run, position, entry FROM entries WHERE root = ? AND position > ? ORDER BY position"
    rows = connection.execute(sql, (root, after)).fetchall()
    numbers = None if number == root else _run_and_below(connection, run_id, root)
    entries = [JournalRow(position, entry) for run, position, entry in rows if numbers is None or run in numbers]
    return rules.visible_status(status, cancel_requested, is_driven), entries


def media(connection: Connection, wanted: Sequence[str]) -> dict[str, bytes]:
    sql = "SELECT data FROM media WHERE sha256 = ?"
    rows = {sha256: connection.execute(sql, (sha256,)).fetchone() for sha256 in wanted}
    return {sha256: row[0] for sha256, row in rows.items() if row}


def requests(connection: Connection, run_id: str | None) -> list[Request]:
    sql = f"SELECT {rules.REQUEST_COLUMNS} FROM requests WHERE answered IS NULL"
    if run_id is None:
        return [rules.to_request(row) for row in connection.execute(f"{sql} ORDER BY asked, number")]
    rows = connection.execute(f"{sql} AND root = {_ROOT_OF_RUN} ORDER BY asked, number", rules.encodable([run_id]))
    return [rules.to_request(row) for row in rows]


def answers(connection: Connection, run_id: str) -> list[StoredAnswer]:
    sql = f"""
        SELECT {rules.REQUEST_COLUMNS}, answer, answered FROM requests
        WHERE root = {_ROOT_OF_RUN} AND answered IS NOT NULL ORDER BY answer_order
    """
    return [rules.to_answer(row) for row in connection.execute(sql, rules.encodable([run_id]))]


# Many roots


def find(connection: Connection, prefix: str) -> list[str]:
    sql = "SELECT id FROM runs WHERE root IS NULL AND id >= ?1 AND id < ?1 || char(0x10ffff) ORDER BY id"
    ids = [run_id for (run_id,) in connection.execute(sql, rules.encodable([prefix]))]
    return [prefix] if prefix in ids else ids


def list_runs(
    connection: Connection,
    status: Sequence[Status],
    agent: str | None,
    batch: str | None,
    before: datetime | None,
    limit: int | None,
) -> list[RunFacts]:
    """Return the facts of the root runs that match all given conditions, newest root run first."""
    live = _live_processes(connection)
    values: list[object] = list(live)
    conditions = ["root IS NULL"]

    def add(condition: str, *parameters: object) -> None:
        conditions.append(condition)
        values.extend(parameters)

    if status:
        add(f"visible_status IN ({_placeholders(status)})", *status)
    if agent is not None:
        add("(agent = ? OR substr(agent, -length(?) - 1) IN (':' || ?, '.' || ?))", *[agent] * 4)
    if batch is not None:
        add("batch = ?", batch)
    if before is not None:
        add("started < ?", before.timestamp())
    sql = f"""
        SELECT {rules.FACTS_COLUMNS}, {_visible_status(live)} AS visible_status
        FROM runs WHERE {" AND ".join(conditions)} ORDER BY started DESC, number DESC LIMIT ?
    """
    rows = connection.execute(sql, rules.encodable([*values, -1 if limit is None else max(limit, 0)]))
    return [rules.run_facts(tuple(row), row[0], visible_status) for *row, visible_status in rows]


def _visible_status(live: Sequence[str]) -> str:
    """Return an SQL expression for the status that the store reports for a root run.

    It computes the same status as `rules.visible_status`. The parameters of the expression are the ids of the live
    processes.
    """
    return (
        f"CASE WHEN status <> 'running' OR process IN ({_placeholders(live)}) THEN status "
        f"WHEN cancel_requested THEN 'cancelled' ELSE 'stopped' END"
    )


def _placeholders(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def statuses(connection: Connection, run_ids: Sequence[str]) -> dict[str, Status]:
    """Return a dict that maps the ids of stored root runs to their statuses."""
    live = _live_processes(connection)
    by_id: dict[str, Status] = {}
    for start in range(0, len(run_ids), _MAX_IDS):
        ids = run_ids[start : start + _MAX_IDS]
        sql = f"SELECT id, {_visible_status(live)} FROM runs WHERE root IS NULL AND id IN ({_placeholders(ids)})"
        by_id.update(connection.execute(sql, rules.encodable([*live, *ids])).fetchall())
    return by_id


def search(connection: Connection, run_ids: Sequence[str], text: str) -> list[str]:
    """Return the ids of those of the given root runs that contain a text.

    The list may also contain root runs without the text, so the caller must check each result.
    """
    matches: list[str] = []
    for start in range(0, len(run_ids), _MAX_IDS):
        ids = run_ids[start : start + _MAX_IDS]
        sql = f"""
            SELECT id FROM runs WHERE root IS NULL AND id IN ({_placeholders(ids)}) AND (
              EXISTS (SELECT 1 FROM run_headers WHERE run = number AND input LIKE ?)
              OR EXISTS (SELECT 1 FROM entries WHERE entries.root = number AND entry LIKE ?))
        """
        values = rules.encodable([*ids, rules.like_pattern(text), rules.like_pattern(text)])
        matches += [run_id for (run_id,) in connection.execute(sql, values)]
    return matches
