"""The functions of the SQLite store that write.

The writer calls each function inside a transaction or a savepoint. If the function raises `StoreError`, its writes are
undone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from sqlite3 import Connection, Cursor, IntegrityError
from typing import NamedTuple

from acorn.errors import StoreError
from acorn.stores import rules
from acorn.stores.lease import lease_seconds
from acorn.stores.port import NOT_STARTED, Change, Commit, MediaBlob, Process, QueuedRun, Status, StoredRun
from acorn.stores.sqlite import reads
from acorn.types import Request, Usage

_DELETE_IDLE_AFTER = 86_400.0
"""Seconds after the end of its lease when the row of an idle process is deleted."""
_SET_CHANGE = ", ".join(f"{column} = ?" for column in f"{rules.CHANGE_COLUMNS}, updated".split(", "))
_UPDATE_RUN = f"UPDATE runs SET {_SET_CHANGE}, process = ? WHERE number = ? AND entry_count = ?"
# The statement does not set the process, which does not change, because that would write a page of an index.
_UPDATE_RUNNING_ROOT = f"""
    UPDATE runs SET {_SET_CHANGE}
    WHERE id = ? AND entry_count = ? AND process = ? AND root IS NULL AND cancel_requested = 0 AND open_requests = 0
    RETURNING number
"""
_INSERT_COLUMNS = f"{rules.HEADER_COLUMNS}, {rules.CHANGE_COLUMNS}, updated, process"
_INSERT_RUN = f"INSERT INTO runs ({_INSERT_COLUMNS}) VALUES ({', '.join('?' * len(_INSERT_COLUMNS.split(',')))})"
_INSERT_REQUEST = f"""
    INSERT INTO requests (root, {rules.REQUEST_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO NOTHING
"""


class _RunRow(NamedTuple):
    number: int
    status: Status
    process: str | None
    cancel_requested: int
    open_requests: int
    root: int | None
    heartbeat_age: float
    takeovers: int
    takeover_steps: int


_SELECT_RUN = f"SELECT {', '.join(_RunRow._fields)} FROM runs WHERE id = ?"


def _read_run(connection: Connection, run_id: str) -> _RunRow | None:
    row = _execute(connection, _SELECT_RUN, (run_id,)).fetchone()
    return _RunRow(*row) if row else None


def _execute(connection: Connection, sql: str, values: Sequence[object]) -> Cursor:
    """Execute a statement.

    Lone surrogates in its values are replaced with JSON escapes, because SQLite cannot store them.
    """
    try:
        return connection.execute(sql, tuple(values))
    except UnicodeEncodeError:
        return connection.execute(sql, rules.encodable(values))


# Commits


def commit(connection: Connection, commit: Commit, name: str) -> None:
    now = time.time()
    is_simple = len(commit.changes) == 1 and not commit.requests and not commit.media
    if is_simple and _commit_running_root(connection, commit, commit.changes[0], now):
        return
    root = _read_run(connection, commit.root)
    first = commit.changes[0] if commit.changes else None
    if first is not None and first.run_id == commit.root and first.header is not None:
        if root is not None:
            raise rules.run_exists_error(commit.root, name, *_status_and_driver(connection, commit.root, root, now))
        if first.header.parent is not None:
            raise rules.parent_missing_error(commit.root, first.header.parent, commit.root)
        _set_lease(connection, commit.process, now, lease_seconds())
        number = _insert_run(connection, first, None, commit.process, now, name)
        cancel_requested, open_requests, changes = False, 0, commit.changes[1:]
    else:
        root = _check_claim(connection, commit, root, name)
        number, cancel_requested, open_requests = root.number, bool(root.cancel_requested), root.open_requests
        changes = commit.changes
    is_root_updated = len(changes) < len(commit.changes)
    for change in changes:
        if change.header is not None:
            _check_parent(connection, change.run_id, change.header.parent, number, commit.root)
            _insert_run(connection, change, number, None, now, name)
        elif change.run_id == commit.root:
            is_root_updated = True
            _update_run(connection, number, number, change, cancel_requested, commit.process, now)
        else:
            branch = _branch_number(connection, change.run_id, number)
            _update_run(connection, number, branch, change, False, None, now)
    if not is_root_updated:
        connection.execute("UPDATE runs SET updated = ? WHERE number = ?", (now, number))
    if commit.requests or open_requests:
        _set_open_requests(connection, number, commit.requests)
    for blob in commit.media:
        _store_media(connection, number, blob)


def _commit_running_root(connection: Connection, commit: Commit, change: Change, now: float) -> bool:
    """Try to store a commit with fewer statements, and return True if this was possible.

    This works for the most common kind of commit, which only adds journal entries to a running root run. For other
    commits, change nothing and return False.
    """
    if change.header is not None or change.run_id != commit.root or change.status != "running":
        return False
    entry_count = change.offset + len(change.entries)
    facts = ("running", *rules.change_values(change), entry_count, now)
    values = (*facts, change.run_id, change.offset, commit.process.id)
    row = _execute(connection, _UPDATE_RUNNING_ROOT, values).fetchone()
    if row is None:
        return False
    _store_state(connection, row[0], row[0], change)
    return True


def _check_claim(connection: Connection, commit: Commit, root: _RunRow | None, name: str) -> _RunRow:
    """Check that a commit may write to its root run, and return the row of the root run.

    Raise `StoreError` if the process of the commit no longer drives the root run, if the root run has a cancel request,
    or if it was deleted.
    """
    if root is None:
        raise rules.run_deleted_error(commit.root, name)
    if root.process != commit.process.id:
        new_process = reads.read_process(connection, root.process)
        raise rules.taken_over_error(commit.root, new_process and new_process.process, root.heartbeat_age, root.status)
    if root.cancel_requested and not rules.ends_root(commit):
        raise rules.run_cancelled_error(commit.root)
    return root


def _check_parent(connection: Connection, run_id: str, parent: str | None, root: int, root_id: str) -> None:
    sql = "SELECT number FROM runs WHERE id = ? AND coalesce(root, number) = ?"
    if parent is None or _execute(connection, sql, (parent, root)).fetchone() is None:
        raise rules.parent_missing_error(run_id, parent, root_id)


def _insert_run(
    connection: Connection, change: Change, root: int | None, process: Process | None, now: float, name: str
) -> int:
    """Insert a new run with its header, state and journal entries, and return its row number."""
    assert change.header is not None
    header = change.header
    process_id = process.id if process is not None and change.status == "running" else None
    values = (
        change.run_id, root, header.parent, header.agent, header.started.timestamp(), header.batch, header.item,
        change.status, *rules.change_values(change), change.offset + len(change.entries), now, process_id,
    )  # fmt: skip
    try:
        number = _execute(connection, _INSERT_RUN, values).lastrowid
    except IntegrityError as error:
        raise rules.branch_exists_error(change.run_id, name) from error
    assert number is not None
    header_values = (number, header.branch, header.input, header.overrides)
    _execute(connection, "INSERT INTO run_headers VALUES (?, ?, ?, ?)", header_values)
    record = "{}" if change.record is None else change.record
    state = NOT_STARTED if change.state is None else change.state
    _execute(connection, "INSERT INTO run_states VALUES (?, ?, ?)", (number, record, state))
    _append_entries(connection, number if root is None else root, number, change.entries)
    return number


def _branch_number(connection: Connection, run_id: str, root: int) -> int:
    row = _execute(connection, "SELECT number FROM runs WHERE id = ? AND root = ?", (run_id, root)).fetchone()
    if row is None:
        raise rules.unknown_run_error(run_id)
    return int(row[0])


def _update_run(
    connection: Connection,
    root: int,
    number: int,
    change: Change,
    cancel_requested: bool,
    process: Process | None,
    now: float,
) -> None:
    status = change.status
    if cancel_requested:
        status = rules.status_after_cancel(status)
        connection.execute("UPDATE runs SET cancel_requested = 0 WHERE number = ?", (number,))
    process_id = process.id if process is not None and status == "running" else None
    facts = (status, *rules.change_values(change), change.offset + len(change.entries), now)
    values = (*facts, process_id, number, change.offset)
    if _execute(connection, _UPDATE_RUN, values).rowcount == 0:
        (entry_count,) = connection.execute("SELECT entry_count FROM runs WHERE number = ?", (number,)).fetchone()
        raise rules.wrong_offset_error(change.run_id, entry_count, change.offset)
    _store_state(connection, root, number, change)


def _store_state(connection: Connection, root: int, number: int, change: Change) -> None:
    if change.state is not None:
        _execute(connection, "UPDATE run_states SET state = ? WHERE run = ?", (change.state, number))
    if change.record is not None:
        _execute(connection, "UPDATE run_states SET record = ? WHERE run = ?", (change.record, number))
    _append_entries(connection, root, number, change.entries)


def _append_entries(connection: Connection, root: int, number: int, entries: Sequence[str]) -> None:
    for entry in entries:
        _execute(connection, "INSERT INTO entries (root, run, entry) VALUES (?, ?, ?)", (root, number, entry))


def _store_media(connection: Connection, root: int, blob: MediaBlob) -> None:
    row = connection.execute("SELECT number FROM media WHERE sha256 = ?", (blob.sha256,)).fetchone()
    number = row[0] if row else connection.execute("INSERT INTO media (sha256, data) VALUES (?, ?)", blob).lastrowid
    connection.execute("INSERT OR IGNORE INTO run_media VALUES (?, ?)", (root, number))


def _set_open_requests(connection: Connection, root: int, requests: Sequence[Request]) -> None:
    """Replace the unanswered requests for human input of a root run and its branches.

    Answered requests remain unchanged.
    """
    placeholders = ", ".join("?" * len(requests))
    _execute(
        connection,
        f"DELETE FROM requests WHERE root = ? AND answered IS NULL AND id NOT IN ({placeholders})",
        (root, *(request.id for request in requests)),
    )
    for request in requests:
        _execute(connection, _INSERT_REQUEST, (root, *rules.times_to_seconds(rules.request_row(request))))
    sql = """
        UPDATE runs SET open_requests = (SELECT count(*) FROM requests WHERE root = ?1 AND answered IS NULL)
        WHERE number = ?1
    """
    connection.execute(sql, (root,))


# Claims and leases


def _set_lease(connection: Connection, process: Process, now: float, seconds: float) -> None:
    """Store the heartbeat of a process and extend its lease by some seconds."""
    sql = "UPDATE processes SET last_heartbeat = ?, lease_expires = ? WHERE id = ?"
    if connection.execute(sql, (now, now + seconds, process.id)).rowcount:
        return
    sql = """
        DELETE FROM processes WHERE lease_expires < ?
          AND id NOT IN (SELECT process FROM runs WHERE process IS NOT NULL)
    """
    connection.execute(sql, (now - _DELETE_IDLE_AFTER,))
    values = (process.id, process.host, process.boot, process.pid, process.started, now, now + seconds)
    _execute(connection, "INSERT INTO processes VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def renew_lease(connection: Connection, process: Process, seconds: float) -> list[str]:
    _set_lease(connection, process, time.time(), seconds)
    sql = "SELECT id FROM runs WHERE process = ? AND cancel_requested ORDER BY number"
    return [run_id for (run_id,) in connection.execute(sql, (process.id,))]


def claim(connection: Connection, run_id: str, process: Process) -> list[StoredRun] | StoreError | None:
    """Claim a root run for a process, and return the run and all its branches.

    Return None if the run does not exist. If the run fails because too many processes have died while they drove it,
    return the error instead of raising it, because an exception would undo the status `failed`.
    """
    now = time.time()
    run = _read_run(connection, run_id)
    if run is None:
        return None
    _refuse_branch(connection, run_id, run)
    status, driver = _status_and_driver(connection, run_id, run, now)
    if driver is not None:
        raise driver
    tree = reads.tree(connection, run_id)
    if status in rules.FINAL_STATUSES:
        return tree
    heartbeat_age = 0.0
    if run.status == "running":
        steps = sum(member.facts.steps for member in tree)
        takeovers = run.takeovers + 1 if run.takeover_steps == steps else 1
        sql = "UPDATE runs SET takeovers = ?, takeover_steps = ? WHERE number = ?"
        connection.execute(sql, (takeovers, steps, run.number))
        if takeovers >= rules.MAX_TAKEOVERS:
            error = rules.too_many_crashes_text(run_id)
            _set_status(connection, run.number, "failed", now)
            _execute(connection, "UPDATE runs SET error = ? WHERE number = ?", (error, run.number))
            return StoreError(error)
        previous = reads.read_process(connection, run.process)
        heartbeat_age = now - previous.last_heartbeat if previous is not None else 0.0
    _set_lease(connection, process, now, lease_seconds())
    sql = "UPDATE runs SET status = 'running', process = ?, heartbeat_age = ?, updated = ? WHERE number = ?"
    connection.execute(sql, (process.id, heartbeat_age, now, run.number))
    return tree


def release(connection: Connection, run_id: str, process: Process, status: Status) -> None:
    run = _read_run(connection, run_id)
    if run is not None and run.process == process.id:
        if run.cancel_requested:
            status = rules.status_after_cancel(status)
        _set_status(connection, run.number, status, time.time())
        if status == "queued":
            connection.execute("UPDATE runs SET error = NULL WHERE number = ?", (run.number,))


def _set_status(connection: Connection, number: int, status: Status, now: float) -> None:
    """Set the status of a root run and remove the claim of its process."""
    sql = "UPDATE runs SET status = ?, process = NULL, cancel_requested = 0, updated = ? WHERE number = ?"
    connection.execute(sql, (status, now, number))
    if status == "cancelled":
        _set_open_requests(connection, number, ())


def _status_and_driver(
    connection: Connection, run_id: str, run: _RunRow, now: float
) -> tuple[Status, StoreError | None]:
    """Return the reported status of a run and an error.

    The error is a `RunClaimedError` if a live process drives the run, and None otherwise.
    """
    driver = reads.read_process(connection, run.process) if run.status == "running" else None
    is_driven = driver is not None and driver.is_alive(now)
    status = rules.visible_status(run.status, bool(run.cancel_requested), is_driven)
    if driver is None or not is_driven:
        return status, None
    return status, rules.run_claimed_error(run_id, driver.process, now - driver.last_heartbeat)


def _refuse_branch(connection: Connection, run_id: str, run: _RunRow) -> None:
    if run.root is not None:
        (root,) = connection.execute("SELECT id FROM runs WHERE number = ?", (run.root,)).fetchone()
        raise rules.branch_id_error(run_id, root)


# Called by processes that submit runs for other processes


def enqueue(connection: Connection, runs: Sequence[QueuedRun]) -> list[str]:
    now = time.time()
    new: list[str] = []
    for run_id, header, _, _, media in runs:
        if _read_run(connection, run_id) is None:
            change = Change(
                run_id, header, 0, (), NOT_STARTED, NOT_STARTED, "queued", None, 0, Usage(), None, 0.0, None, None
            )  # fmt: skip
            number = _insert_run(connection, change, None, None, now, "")
            for blob in media:
                _store_media(connection, number, blob)
            new.append(run_id)
    return new


# Called by processes that inspect runs


def answer(connection: Connection, request_id: str, text: str, name: str) -> Request:
    sql = f"SELECT {rules.REQUEST_COLUMNS}, answered, root FROM requests WHERE id = ?"
    row = connection.execute(sql, rules.encodable([request_id])).fetchone()
    if row is None:
        raise rules.request_not_open_error(request_id, name)
    *request_row, answered, root = row
    if answered is not None:
        raise rules.already_answered_error(request_id, rules.to_datetime(answered))
    sql = """
        UPDATE requests SET answer = ?, answered = ?,
          answer_order = (SELECT coalesce(max(answer_order), 0) + 1 FROM requests WHERE root = ?) WHERE id = ?
    """
    connection.execute(sql, rules.encodable([text, time.time(), root, request_id]))
    connection.execute("UPDATE runs SET open_requests = open_requests - 1 WHERE number = ?", (root,))
    return rules.to_request(tuple(request_row))


def cancel(connection: Connection, run_id: str, name: str) -> None:
    now = time.time()
    run = _read_run(connection, run_id)
    if run is None:
        raise rules.run_not_found_error(run_id, name)
    _refuse_branch(connection, run_id, run)
    status, driver = _status_and_driver(connection, run_id, run, now)
    if status == "done":
        raise rules.already_finished_error(run_id, status)
    if driver is None:
        _set_status(connection, run.number, "cancelled", now)
    else:
        connection.execute("UPDATE runs SET cancel_requested = 1 WHERE number = ?", (run.number,))


def delete(connection: Connection, run_id: str, name: str) -> None:
    run = _read_run(connection, run_id)
    if run is None:
        raise rules.run_not_found_error(run_id, name)
    _refuse_branch(connection, run_id, run)
    _, driver = _status_and_driver(connection, run_id, run, time.time())
    if driver is not None:
        raise driver
    # Reserve the last position, so that no new entry gets the position of a deleted entry.
    connection.execute("DELETE FROM entries WHERE root = 0")
    connection.execute("INSERT INTO entries (root, run, entry) VALUES (0, 0, '')")
    for table in ("run_headers", "run_states"):
        sql = f"DELETE FROM {table} WHERE run IN (SELECT number FROM runs WHERE number = ?1 OR root = ?1)"
        connection.execute(sql, (run.number,))
    _delete_media(connection, run.number)
    for table in ("entries", "requests"):
        connection.execute(f"DELETE FROM {table} WHERE root = ?", (run.number,))
    connection.execute("DELETE FROM runs WHERE number = ?1 OR root = ?1", (run.number,))


def _delete_media(connection: Connection, root: int) -> None:
    """Delete the media of a root run and its branches, except media that another root run also uses."""
    blobs = connection.execute("SELECT blob FROM run_media WHERE root = ?", (root,)).fetchall()
    connection.execute("DELETE FROM run_media WHERE root = ?", (root,))
    sql = "DELETE FROM media WHERE number = ?1 AND NOT EXISTS (SELECT 1 FROM run_media WHERE blob = ?1)"
    connection.executemany(sql, blobs)
