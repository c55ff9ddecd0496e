"""What is read from the tables of a store. Each is called inside a transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from sqlite3 import Connection
from typing import Any, NamedTuple

from acorn.stores import rules
from acorn.stores.lease import is_alive
from acorn.stores.messages import as_seen
from acorn.stores.port import JournalRow, Process, RunFacts, Status, StoredAnswer, StoredRun
from acorn.types import Request

_TREE = "coalesce((SELECT coalesce(root, number) FROM runs WHERE id = ?), 0)"
"""The number of the root of a run."""


class SQLiteDriverRow(NamedTuple):
    """A process that holds runs, as it was last heard of."""

    holder: Process
    heard: float
    until: float

    def is_alive(self, now: float) -> bool:
        return is_alive(self.holder, self.until, now)


def driver(connection: Connection, holder_id: str | None) -> SQLiteDriverRow | None:
    """None: there is none, or nothing is known of it any more."""
    found = _drivers(connection, "id = ?", (holder_id,)) if holder_id else []
    return found[0] if found else None


def _drivers(connection: Connection, where: str, values: Sequence[Any] = ()) -> list[SQLiteDriverRow]:
    sql = f"SELECT id, host, boot, pid, born, heard, until FROM holders WHERE {where}"
    return [SQLiteDriverRow(Process(*row[:5]), *row[5:]) for row in connection.execute(sql, values)]


def tree(connection: Connection, run_id: str) -> list[StoredRun]:
    """A run and all below it; empty where there is none."""
    now = time.time()
    row = connection.execute("SELECT number, root FROM runs WHERE id = ?", rules.bindable([run_id])).fetchone()
    if row is None:
        return []
    top = row[1] or row[0]
    root_id, is_unwanted, is_driven = _driven(connection, top, now)
    found = connection.execute(
        f"""
        SELECT number, {rules.FACTS}, branch, input, overrides, record, state
        FROM runs JOIN births ON births.run = number JOIN states ON states.run = number
        WHERE number = ?1 OR root = ?1 ORDER BY number
        """,
        (top,),
    ).fetchall()
    if row[0] != top:
        wanted = _below(run_id, [(number, known, parent) for number, known, *_, parent in _family(connection, top)])
        found = [one for one in found if one[0] in wanted]
    journals: dict[int, list[str]] = {one[0]: [] for one in found}
    for number, entry in connection.execute("SELECT run, entry FROM entries WHERE root = ? ORDER BY position", (top,)):
        if number in journals:
            journals[number].append(entry)
    return [
        rules.stored_run(one[1:], root_id, as_seen(one[3], is_unwanted, is_driven), journals[one[0]]) for one in found
    ]  # fmt: skip


def media(connection: Connection, wanted: Sequence[str]) -> dict[str, bytes]:
    sql = "SELECT data FROM media WHERE sha256 = ?"
    found = {sha256: connection.execute(sql, (sha256,)).fetchone() for sha256 in wanted}
    return {sha256: row[0] for sha256, row in found.items() if row}


def _driven(connection: Connection, top: int, now: float) -> tuple[str, bool, Callable[[], bool]]:
    """The id of a root, whether it is to be cancelled, and how to find out whether it is driven."""
    sql = "SELECT id, holder, is_unwanted FROM runs WHERE number = ?"
    run_id, holder_id, is_unwanted = connection.execute(sql, (top,)).fetchone()
    held = driver(connection, holder_id)
    is_driven = held is not None and held.is_alive(now)
    return run_id, bool(is_unwanted), lambda: is_driven


def _family(connection: Connection, top: int) -> list[tuple[int, str, str | None]]:
    sql = "SELECT number, id, parent FROM runs WHERE number = ?1 OR root = ?1 ORDER BY number"
    return connection.execute(sql, (top,)).fetchall()


def _below(run_id: str, family: Sequence[tuple[int, str, str | None]]) -> set[int]:
    """The numbers of a run and of all below it; a parent stands before its branches."""
    ids = {run_id}
    numbers: set[int] = set()
    for number, known, parent in family:
        if known in ids or parent in ids:
            ids.add(known)
            numbers.add(number)
    return numbers


def find(connection: Connection, prefix: str) -> list[str]:
    sql = "SELECT id FROM runs WHERE root IS NULL AND id >= ?1 AND id < ?1 || char(0x10ffff) ORDER BY id"
    found = [run_id for (run_id,) in connection.execute(sql, rules.bindable([prefix]))]
    return [prefix] if prefix in found else found


def listed(
    connection: Connection,
    status: Sequence[Status],
    agent: str | None,
    batch: str | None,
    before: datetime | None,
    limit: int | None,
) -> list[RunFacts]:
    """Roots, the newest first."""
    alive = _alive(connection, time.time())
    values: list[Any] = list(alive)
    where = ["root IS NULL"]

    def only(condition: str, *more: Any) -> None:
        where.append(condition)
        values.extend(more)

    if status:
        only(f"seen IN ({_marks(status)})", *status)
    if agent is not None:
        only("(agent = ? OR substr(agent, -length(?) - 1) IN (':' || ?, '.' || ?))", *[agent] * 4)
    if batch is not None:
        only("batch = ?", batch)
    if before is not None:
        only("started < ?", before.timestamp())
    sql = f"""
        SELECT {rules.FACTS}, {_seen(alive)} AS seen
        FROM runs WHERE {" AND ".join(where)} ORDER BY started DESC, number DESC LIMIT ?
    """
    found = connection.execute(sql, rules.bindable([*values, -1 if limit is None else max(limit, 0)]))
    return [rules.run_facts(tuple(row), row[0], seen) for *row, seen in found]


def _alive(connection: Connection, now: float) -> list[str]:
    """The holders that live."""
    holding = _drivers(connection, "id IN (SELECT holder FROM runs WHERE holder IS NOT NULL)")
    return [held.holder.id for held in holding if held.is_alive(now)]


def _seen(alive: Sequence[str]) -> str:
    """What a root is at, as SQL that takes the holders that live."""
    return (
        f"CASE WHEN status <> 'running' OR holder IN ({_marks(alive)}) THEN status "
        f"WHEN is_unwanted THEN 'cancelled' ELSE 'stopped' END"
    )


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


_AT_ONCE = 500
"""Ids in one statement."""


def statuses(connection: Connection, run_ids: Sequence[str]) -> dict[str, Status]:
    """Of roots."""
    alive = _alive(connection, time.time())
    found: dict[str, Status] = {}
    for at in range(0, len(run_ids), _AT_ONCE):
        some = run_ids[at : at + _AT_ONCE]
        sql = f"SELECT id, {_seen(alive)} FROM runs WHERE root IS NULL AND id IN ({_marks(some)})"
        found.update(connection.execute(sql, rules.bindable([*alive, *some])).fetchall())
    return found


def holding(connection: Connection, run_ids: Sequence[str], text: str) -> list[str]:
    """Roots that may say a text."""
    found: list[str] = []
    for at in range(0, len(run_ids), _AT_ONCE):
        some = run_ids[at : at + _AT_ONCE]
        sql = f"""
            SELECT id FROM runs WHERE root IS NULL AND id IN ({_marks(some)}) AND (
              EXISTS (SELECT 1 FROM births WHERE run = number AND input LIKE ?)
              OR EXISTS (SELECT 1 FROM entries WHERE entries.root = number AND entry LIKE ?))
        """
        values = rules.bindable([*some, rules.like(text), rules.like(text)])
        found += [run_id for (run_id,) in connection.execute(sql, values)]
    return found


def follow(connection: Connection, run_id: str, after: int) -> tuple[Status | None, list[JournalRow]]:
    sql = "SELECT number, root, status FROM runs WHERE id = ?"
    row = connection.execute(sql, rules.bindable([run_id])).fetchone()
    if row is None:
        return None, []
    number, root, status = row
    top = root or number
    _, is_unwanted, is_driven = _driven(connection, top, time.time())
    sql = "SELECT run, position, entry FROM entries WHERE root = ? AND position > ? ORDER BY position"
    found = connection.execute(sql, (top, after)).fetchall()
    wanted = None if number == top else _below(run_id, _family(connection, top))
    heard = [JournalRow(position, entry) for run, position, entry in found if wanted is None or run in wanted]
    return as_seen(status, is_unwanted, is_driven), heard


def requests(connection: Connection, run_id: str | None) -> list[Request]:
    sql = f"SELECT {rules.REQUEST} FROM requests WHERE answered IS NULL"
    if run_id is None:
        return [rules.request(row) for row in connection.execute(f"{sql} ORDER BY asked, number")]
    found = connection.execute(f"{sql} AND root = {_TREE} ORDER BY asked, number", rules.bindable([run_id]))
    return [rules.request(row) for row in found]


def answers(connection: Connection, run_id: str) -> list[StoredAnswer]:
    sql = f"""
        SELECT {rules.REQUEST}, answer, answered FROM requests
        WHERE root = {_TREE} AND answered IS NOT NULL ORDER BY turn
    """
    return [rules.answer(row) for row in connection.execute(sql, rules.bindable([run_id]))]


def has_unwanted(connection: Connection, holder: str) -> bool:
    """Whether somebody wants a run cancelled that a process drives."""
    found = connection.execute("SELECT 1 FROM runs WHERE holder = ? AND is_unwanted = 1 LIMIT 1", (holder,))
    return found.fetchone() is not None
