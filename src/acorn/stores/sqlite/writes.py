"""What is written to the tables of a store. Each is called inside a transaction, which its `StoreError` undoes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from sqlite3 import Connection, IntegrityError
from typing import Any, NamedTuple

from acorn.errors import StoreError
from acorn.stores import messages, rules
from acorn.stores.lease import lease
from acorn.stores.port import NOT_BEGUN, Change, Commit, Medium, Process, QueuedRun, Status, StoredRun
from acorn.stores.sqlite import reads as reads
from acorn.types import Request, Usage

_FORGOTTEN = 86_400.0
"""Seconds after which a process that holds nothing is forgotten."""
_SETS = ", ".join(f"{column} = ?" for column in f"{rules.CHANGED}, updated".split(", "))
_UPDATE = f"UPDATE runs SET {_SETS}, holder = ? WHERE number = ? AND length = ?"
# Without the holder, which stays who it is: it would write a page of an index.
_GO_ON = f"""
    UPDATE runs SET {_SETS}
    WHERE id = ? AND length = ? AND holder = ? AND root IS NULL AND is_unwanted = 0 AND asks = 0 RETURNING number
"""
_INSERT = f"""
    INSERT INTO runs ({rules.BORN}, {rules.CHANGED}, updated, holder)
    VALUES ({", ".join("?" * len(f"{rules.BORN}, {rules.CHANGED}, updated, holder".split(",")))})
"""


_NEW_MEDIUM = "INSERT INTO media (sha256, data) VALUES (?, ?)"


class _RunRow(NamedTuple):
    number: int
    status: Status
    holder: str | None
    is_unwanted: int
    asks: int
    root: int | None
    silence: float
    attempts: int
    attempted: int


_SELECT = f"SELECT {', '.join(_RunRow._fields)} FROM runs WHERE id = ?"


def _run(connection: Connection, run_id: str) -> _RunRow | None:
    row = _do(connection, _SELECT, (run_id,)).fetchone()
    return _RunRow(*row) if row else None


def _do(connection: Connection, sql: str, values: Sequence[Any]) -> Any:
    """Execute it, whatever half characters the values hold."""
    try:
        return connection.execute(sql, values)
    except UnicodeEncodeError:
        return connection.execute(sql, rules.bindable(values))


# A commit


def commit(connection: Connection, commit: Commit, name: str) -> None:
    now = time.time()
    is_simple = len(commit.changes) == 1 and not commit.requests and not commit.media
    if is_simple and _continues(connection, commit, commit.changes[0], now):
        return
    root = _run(connection, commit.root)
    first = commit.changes[0] if commit.changes else None
    if first is not None and first.run_id == commit.root and first.birth is not None:
        if root is not None:
            raise messages.exists(commit.root, name, *_seen(connection, commit.root, root, now))
        if first.birth.parent is not None:
            raise messages.parent_missing(commit.root, first.birth.parent, commit.root)
        _register(connection, commit.holder, now, lease())
        number = _insert_header(connection, first, None, commit.holder, now, name)
        is_unwanted, asks, changes = False, 0, commit.changes[1:]
    else:
        number, is_unwanted, asks = _fence(connection, commit, root, name)
        changes = commit.changes
    has_root = len(changes) < len(commit.changes)
    for change in changes:
        if change.birth is not None:
            _refuse_orphan(connection, change.run_id, change.birth.parent, number, commit.root)
            _insert_header(connection, change, number, None, now, name)
        elif change.run_id == commit.root:
            has_root = True
            _change(connection, number, number, change, is_unwanted, commit.holder, now)
        else:
            _change(connection, number, _branch(connection, change, number), change, False, None, now)
    if not has_root:
        connection.execute("UPDATE runs SET updated = ? WHERE number = ?", (now, number))
    if commit.requests or asks:
        _ask(connection, number, commit.requests)
    for medium in commit.media:
        _keep_medium(connection, number, medium)


def _continues(connection: Connection, commit: Commit, change: Change, now: float) -> bool:
    """Most commits: a root that nothing stands against has something new. In one statement less; False: look closer."""
    if change.birth is not None or change.run_id != commit.root or change.status != "running":
        return False
    values = (*rules.change_row(change, "running"), now, change.run_id, change.since, commit.holder.id)
    row = _do(connection, _GO_ON, values).fetchone()
    if row is None:
        return False
    _keep(connection, row[0], row[0], change)
    return True


def _fence(connection: Connection, commit: Commit, root: _RunRow | None, name: str) -> tuple[int, bool, int]:
    """The number of the root, where this holder has it and nobody wants it cancelled; and its open requests."""
    if root is None:
        raise messages.deleted(commit.root, name)
    if root.holder != commit.holder.id:
        taker = reads.driver(connection, root.holder)
        raise messages.lost(commit.root, taker and taker.holder, root.silence, root.status)
    is_unwanted = bool(root.is_unwanted)
    if is_unwanted and not any(messages.ends(one.status) for one in commit.changes if one.run_id == commit.root):
        raise messages.cancelled_by_request(commit.root)
    return root.number, is_unwanted, root.asks


def _refuse_orphan(connection: Connection, run_id: str, parent: str | None, root: int, root_id: str) -> None:
    sql = "SELECT number FROM runs WHERE id = ? AND coalesce(root, number) = ?"
    if parent is None or _do(connection, sql, (parent, root)).fetchone() is None:
        raise messages.parent_missing(run_id, parent, root_id)


def _insert_header(
    connection: Connection, change: Change, root: int | None, holder: Process | None, now: float, name: str
) -> int:
    assert change.birth is not None
    birth = change.birth
    holds = holder.id if holder is not None and change.status == "running" else None
    born = rules.in_seconds(rules.header_row(change.run_id, birth, root))
    values = (*born, *rules.change_row(change, change.status), now, holds)
    try:
        number = int(_do(connection, _INSERT, values).lastrowid)
    except IntegrityError as error:
        raise messages.created_twice(change.run_id, name) from error
    _do(connection, "INSERT INTO births VALUES (?, ?, ?, ?)", (number, birth.branch, birth.input, birth.overrides))
    _do(
        connection,
        "INSERT INTO states VALUES (?, ?, ?)",
        (
            number,
            "{}" if change.record is None else change.record,
            NOT_BEGUN if change.state is None else change.state,
        ),
    )
    _append(connection, number if root is None else root, number, change.entries)
    return number


def _branch(connection: Connection, change: Change, root: int) -> int:
    row = _do(connection, "SELECT number FROM runs WHERE id = ? AND root = ?", (change.run_id, root)).fetchone()
    if row is None:
        raise messages.store_incomplete(change.run_id, None, change.since)
    return int(row[0])


def _change(
    connection: Connection,
    root: int,
    number: int,
    change: Change,
    is_unwanted: bool,
    holder: Process | None,
    now: float,
) -> None:
    status = messages.with_cancelling(change.status, is_unwanted)
    holds = holder.id if holder is not None and status == "running" else None
    values = (*rules.change_row(change, status), now, holds, number, change.since)
    if _do(connection, _UPDATE, values).rowcount == 0:
        (length,) = connection.execute("SELECT length FROM runs WHERE number = ?", (number,)).fetchone()
        raise messages.store_incomplete(change.run_id, length, change.since)
    if is_unwanted:
        connection.execute("UPDATE runs SET is_unwanted = 0 WHERE number = ?", (number,))
    _keep(connection, root, number, change)


def _keep(connection: Connection, root: int, number: int, change: Change) -> None:
    if change.state is not None:
        _do(connection, "UPDATE states SET state = ? WHERE run = ?", (change.state, number))
    if change.record is not None:
        _do(connection, "UPDATE states SET record = ? WHERE run = ?", (change.record, number))
    _append(connection, root, number, change.entries)


def _append(connection: Connection, root: int, number: int, entries: Sequence[str]) -> None:
    for entry in entries:
        _do(connection, "INSERT INTO entries (root, run, entry) VALUES (?, ?, ?)", (root, number, entry))


def _keep_medium(connection: Connection, root: int, medium: Medium) -> None:
    sql = "SELECT number FROM media WHERE sha256 = ?"
    row = connection.execute(sql, (medium.sha256,)).fetchone()
    number = row[0] if row else connection.execute(_NEW_MEDIUM, medium).lastrowid
    connection.execute("INSERT OR IGNORE INTO media_of_runs VALUES (?, ?)", (root, number))


def _ask(connection: Connection, root: int, requests: Sequence[Request]) -> None:
    """From now on these are open, those that have an answer apart, and no others."""
    marks = ", ".join("?" * len(requests))
    _do(
        connection,
        f"DELETE FROM requests WHERE root = ? AND answered IS NULL AND id NOT IN ({marks})",
        (root, *(request.id for request in requests)),
    )
    sql = f"""
        INSERT INTO requests (root, {rules.REQUEST}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING
    """
    for request in requests:
        _do(connection, sql, (root, *rules.in_seconds(rules.request_row(request))))
    sql = (
        "UPDATE runs SET asks = (SELECT count(*) FROM requests WHERE root = ?1 AND answered IS NULL) WHERE number = ?1"
    )
    connection.execute(sql, (root,))


# Who drives it


def _register(connection: Connection, holder: Process, now: float, seconds: float) -> None:
    """A process is heard of, and lives for so long."""
    sql = "UPDATE holders SET heard = ?, until = ? WHERE id = ?"
    if connection.execute(sql, (now, now + seconds, holder.id)).rowcount:
        return
    sql = "DELETE FROM holders WHERE until < ? AND id NOT IN (SELECT holder FROM runs WHERE holder IS NOT NULL)"
    connection.execute(sql, (now - _FORGOTTEN,))
    values = (holder.id, holder.host, holder.boot, holder.pid, holder.born, now, now + seconds)
    _do(connection, "INSERT INTO holders VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def beat(connection: Connection, holder: Process, seconds: float) -> list[str]:
    _register(connection, holder, time.time(), seconds)
    sql = "SELECT id FROM runs WHERE holder = ? AND is_unwanted ORDER BY number"
    return [run_id for (run_id,) in connection.execute(sql, (holder.id,))]


def claim(connection: Connection, run_id: str, holder: Process) -> list[StoredRun] | StoreError | None:
    """An error that is returned, not raised, lets what was found out be kept."""
    now = time.time()
    run = _run(connection, run_id)
    if run is None:
        return None
    _refuse_branch(connection, run_id, run)
    status, driver = _seen(connection, run_id, run, now)
    if driver is not None:
        raise driver
    kept = reads.tree(connection, run_id)
    if status in messages.OVER:
        return kept
    silence = 0.0
    if run.status == "running":
        steps = sum(one.facts.steps for one in kept)
        attempts = run.attempts + 1 if run.attempted == steps else 1
        sql = "UPDATE runs SET attempts = ?, attempted = ? WHERE number = ?"
        connection.execute(sql, (attempts, steps, run.number))
        if attempts >= messages.MOST_TAKE_OVERS:
            error = messages.too_many_crashes(run_id)
            _pause(connection, run.number, "failed", now)
            _do(connection, "UPDATE runs SET error = ? WHERE number = ?", (error, run.number))
            return StoreError(error)
        old = reads.driver(connection, run.holder)
        silence = now - old.heard if old is not None else 0.0
    _register(connection, holder, now, lease())
    sql = "UPDATE runs SET status = 'running', holder = ?, silence = ?, updated = ? WHERE number = ?"
    connection.execute(sql, (holder.id, silence, now, run.number))
    return kept


def release(connection: Connection, run_id: str, holder: Process, status: Status) -> None:
    run = _run(connection, run_id)
    if run is not None and run.holder == holder.id:
        status = messages.with_cancelling(status, bool(run.is_unwanted))
        _pause(connection, run.number, status, time.time())
        if status == "queued":
            connection.execute("UPDATE runs SET error = NULL WHERE number = ?", (run.number,))


def _pause(connection: Connection, number: int, status: Status, now: float) -> None:
    """Nobody drives it any more."""
    sql = "UPDATE runs SET status = ?, holder = NULL, is_unwanted = 0, updated = ? WHERE number = ?"
    connection.execute(sql, (status, now, number))
    if status == "cancelled":
        _ask(connection, number, ())


def _seen(connection: Connection, run_id: str, run: _RunRow, now: float) -> tuple[Status, StoreError | None]:
    """What a run is at; and where a live process drives it, what to say of that."""
    driver = reads.driver(connection, run.holder) if run.status == "running" else None
    is_driven = driver is not None and driver.is_alive(now)
    status = messages.as_seen(run.status, bool(run.is_unwanted), lambda: is_driven)
    if driver is None or not is_driven:
        return status, None
    return status, messages.claimed_elsewhere(run_id, driver.holder, now - driver.heard)


def _refuse_branch(connection: Connection, run_id: str, run: _RunRow) -> None:
    if run.root is not None:
        (root,) = connection.execute("SELECT id FROM runs WHERE number = ?", (run.root,)).fetchone()
        raise messages.is_branch(run_id, root)


# By whoever wants runs to begin elsewhere


def put(connection: Connection, runs: Sequence[QueuedRun]) -> list[str]:
    now = time.time()
    new: list[str] = []
    for run_id, birth, _, _, media in runs:
        if _run(connection, run_id) is None:
            change = Change(
                run_id, birth, 0, (), NOT_BEGUN, NOT_BEGUN, "queued", None, 0, Usage(), None, 0.0, None, None
            )  # fmt: skip
            number = _insert_header(connection, change, None, None, now, "")
            for medium in media:
                _keep_medium(connection, number, medium)
            new.append(run_id)
    return new


# By whoever looks on


def answer(connection: Connection, request_id: str, text: str, name: str) -> Request:
    sql = f"SELECT {rules.REQUEST}, answered, root FROM requests WHERE id = ?"
    row = connection.execute(sql, rules.bindable([request_id])).fetchone()
    if row is None:
        raise messages.no_request(request_id, name)
    *first, answered, root = row
    if answered is not None:
        raise messages.answered(request_id, rules.moment(answered))
    sql = """
        UPDATE requests SET answer = ?, answered = ?,
          turn = (SELECT coalesce(max(turn), 0) + 1 FROM requests WHERE root = ?) WHERE id = ?
    """
    connection.execute(sql, rules.bindable([text, time.time(), root, request_id]))
    connection.execute("UPDATE runs SET asks = asks - 1 WHERE number = ?", (root,))
    return rules.request(tuple(first))


def cancel(connection: Connection, run_id: str, name: str) -> None:
    now = time.time()
    run = _run(connection, run_id)
    if run is None:
        raise messages.no_run(run_id, name)
    _refuse_branch(connection, run_id, run)
    status, driver = _seen(connection, run_id, run, now)
    if status == "done":
        raise messages.is_over(run_id, status)
    if driver is None:
        _pause(connection, run.number, "cancelled", now)
    else:
        connection.execute("UPDATE runs SET is_unwanted = 1 WHERE number = ?", (run.number,))


def delete(connection: Connection, run_id: str, name: str) -> None:
    run = _run(connection, run_id)
    if run is None:
        raise messages.no_run(run_id, name)
    _refuse_branch(connection, run_id, run)
    _, driver = _seen(connection, run_id, run, time.time())
    if driver is not None:
        raise driver
    connection.execute("DELETE FROM entries WHERE root = 0")
    connection.execute("INSERT INTO entries (root, run, entry) VALUES (0, 0, '')")
    for table in ("births", "states"):
        sql = f"DELETE FROM {table} WHERE run IN (SELECT number FROM runs WHERE number = ?1 OR root = ?1)"
        connection.execute(sql, (run.number,))
    _forget_media(connection, run.number)
    for table in ("entries", "requests"):
        connection.execute(f"DELETE FROM {table} WHERE root = ?", (run.number,))
    connection.execute("DELETE FROM runs WHERE number = ?1 OR root = ?1", (run.number,))


def _forget_media(connection: Connection, root: int) -> None:
    """What no other tree has."""
    sql = "SELECT medium FROM media_of_runs WHERE root = ?"
    had = connection.execute(sql, (root,)).fetchall()
    connection.execute("DELETE FROM media_of_runs WHERE root = ?", (root,))
    sql = "DELETE FROM media WHERE number = ?1 AND NOT EXISTS (SELECT 1 FROM media_of_runs WHERE medium = ?1)"
    connection.executemany(sql, had)
