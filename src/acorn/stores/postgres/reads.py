"""What is read from the tables of a store in PostgreSQL. Each is called inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from acorn.stores import rules
from acorn.stores.lease import is_alive
from acorn.stores.messages import as_seen
from acorn.stores.port import JournalRow, Process, RunFacts, Status, StoredAnswer, StoredRun
from acorn.stores.postgres.connection import Transaction
from acorn.types import Request

_HOLDER = """
    holders.id, host, boot, pid, born, extract(epoch FROM clock_timestamp() - heard)::float8,
    extract(epoch FROM until - clock_timestamp())::float8
"""
_DRIVER = f"SELECT {_HOLDER} FROM acorn.holders WHERE id = $1".encode()
_DRIVERS = f"""
    SELECT {_HOLDER} FROM acorn.holders WHERE id IN (SELECT holder FROM acorn.runs WHERE holder IS NOT NULL)
""".encode()
_TOP = f"""
    SELECT top.number, top.id, top.is_unwanted, run.number, run.status, {_HOLDER}
    FROM acorn.runs run JOIN acorn.runs top ON top.number = coalesce(run.root, run.number)
    LEFT JOIN acorn.holders ON holders.id = top.holder WHERE run.id = $1
""".encode()
_TREE = f"""
    SELECT number, {rules.FACTS}, branch, input, overrides, record, state
    FROM acorn.runs JOIN acorn.births ON births.run = number JOIN acorn.states ON states.run = number
    WHERE number = $1 OR root = $1 ORDER BY number
""".encode()
_FAMILY = b"SELECT number, id, parent FROM acorn.runs WHERE number = $1 OR root = $1 ORDER BY number"
_JOURNAL = b"SELECT run, entry FROM acorn.entries WHERE root = $1 ORDER BY position"
_BEHIND = b"SELECT run, position, entry FROM acorn.entries WHERE root = $1 AND position > $2 ORDER BY position"
_STATUSES = f"""
    SELECT runs.id, status, is_unwanted, {_HOLDER}
    FROM acorn.runs LEFT JOIN acorn.holders ON holders.id = runs.holder
    WHERE root IS NULL AND runs.id = ANY($1::text[])
""".encode()
_HOLDING = b"""
    SELECT id FROM acorn.runs WHERE root IS NULL AND id = ANY($1::text[]) AND (
      EXISTS (SELECT 1 FROM acorn.births WHERE run = number AND input COLLATE "C" ILIKE $2)
      OR EXISTS (SELECT 1 FROM acorn.entries WHERE entries.root = number AND entry COLLATE "C" ILIKE $2))
"""
_FIND = b"SELECT id FROM acorn.runs WHERE root IS NULL AND starts_with(id, $1::text) ORDER BY id"
_OF_TREE = "root = (SELECT coalesce(root, number) FROM acorn.runs WHERE id = $1)"
_REQUESTS = f"SELECT {rules.REQUEST} FROM acorn.requests WHERE answered IS NULL"
_ALL_REQUESTS = f"{_REQUESTS} ORDER BY asked, number".encode()
_REQUESTS_OF = f"{_REQUESTS} AND {_OF_TREE} ORDER BY asked, number".encode()
_ANSWERS = f"""
    SELECT {rules.REQUEST}, answer, answered FROM acorn.requests WHERE {_OF_TREE} AND answered IS NOT NULL ORDER BY turn
""".encode()


class PostgresDriverRow(NamedTuple):
    """A process that holds runs, by the clock of the database."""

    holder: Process
    silence: float
    """Seconds since it was last heard of."""
    left: float
    """Seconds until its lease runs out."""

    def is_alive(self) -> bool:
        return is_alive(self.holder, self.left, 0.0)


def _driver_of(row: Sequence[Any]) -> PostgresDriverRow | None:
    """Of a row of `_HOLDER`; None where there is none."""
    return None if row[0] is None else PostgresDriverRow(Process(*row[:5]), row[5], row[6])


def driver(transaction: Transaction, holder_id: str | None) -> PostgresDriverRow | None:
    """None: there is none, or nothing is known of it any more."""
    row = transaction.execute(_DRIVER, [holder_id]).fetchone() if holder_id else None
    return None if row is None else _driver_of(row)


class _Top(NamedTuple):
    """The root of a run."""

    number: int
    id: str
    is_unwanted: bool
    run: int
    status: Status
    driver: PostgresDriverRow | None

    def seen(self, status: Status) -> Status:
        return as_seen(status, self.is_unwanted, lambda: self.driver is not None and self.driver.is_alive())


def _top(transaction: Transaction, run_id: str) -> _Top | None:
    row = transaction.execute(_TOP, [run_id]).fetchone()
    return None if row is None else _Top._make([*row[:5], _driver_of(row[5:])])


def tree(transaction: Transaction, run_id: str) -> list[StoredRun]:
    """A run and all below it; empty where there is none."""
    top = _top(transaction, run_id)
    if top is None:
        return []
    runs, entries = transaction.execute(_TREE, [top.number]), transaction.execute(_JOURNAL, [top.number])
    found = runs.fetchall()
    if top.run != top.number:
        wanted = _below(transaction, run_id, top.number)
        found = [one for one in found if one[0] in wanted]
    journals: dict[int, list[str]] = {one[0]: [] for one in found}
    for number, entry in entries.fetchall():
        if number in journals:
            journals[number].append(entry)
    return [rules.stored_run(one[1:], top.id, top.seen(one[3]), journals[one[0]]) for one in found]


def _below(transaction: Transaction, run_id: str, top: int) -> set[int]:
    """The numbers of a run and of all below it; a parent stands before its branches."""
    ids = {run_id}
    numbers: set[int] = set()
    for number, known, parent in transaction.execute(_FAMILY, [top]).fetchall():
        if known in ids or parent in ids:
            ids.add(known)
            numbers.add(number)
    return numbers


def find(transaction: Transaction, prefix: str) -> list[str]:
    found = [run_id for (run_id,) in transaction.execute(_FIND, [prefix]).fetchall()]
    return [prefix] if prefix in found else found


def statuses(transaction: Transaction, run_ids: Sequence[str]) -> dict[str, Status]:
    """Of roots."""
    alive: dict[str | None, bool] = {}
    found: dict[str, Status] = {}
    for run_id, status, is_unwanted, *held in transaction.execute(_STATUSES, [list(run_ids)]).fetchall():
        if held[0] not in alive:
            known = _driver_of(held)
            alive[held[0]] = known is not None and known.is_alive()
        found[run_id] = as_seen(status, is_unwanted, partial(bool, alive[held[0]]))
    return found


def listed(
    transaction: Transaction,
    status: Sequence[Status],
    agent: str | None,
    batch: str | None,
    before: datetime | None,
    limit: int | None,
) -> list[RunFacts]:
    """Roots, the newest first."""
    holding = [_driver_of(row) for row in transaction.execute(_DRIVERS).fetchall()]
    values: list[Any] = [[held.holder.id for held in holding if held is not None and held.is_alive()]]
    where = ["root IS NULL"]

    def only(condition: str, value: Any) -> None:
        values.append(value)
        where.append(condition.replace("$", f"${len(values)}"))

    if status:
        only("seen = ANY($::text[])", list(status))
    if agent is not None:
        only("(agent = $::text OR right(agent, length($::text) + 1) IN (':' || $::text, '.' || $::text))", agent)
    if batch is not None:
        only("batch = $", batch)
    if before is not None:
        only("started < $", before.astimezone(UTC))
    values.append(None if limit is None else max(limit, 0))
    sql = f"""
        SELECT {rules.FACTS}, seen FROM acorn.runs, LATERAL (SELECT CASE
          WHEN status <> 'running' OR holder = ANY($1::text[]) THEN status
          WHEN is_unwanted THEN 'cancelled' ELSE 'stopped' END AS seen) AS looked
        WHERE {" AND ".join(where)} ORDER BY started DESC, number DESC LIMIT ${len(values)}
    """
    found = transaction.execute(sql.encode(), values).fetchall()
    return [rules.run_facts(tuple(row), row[0], seen) for *row, seen in found]


def holding(transaction: Transaction, run_ids: Sequence[str], text: str) -> list[str]:
    """Roots that may say a text."""
    found = transaction.execute(_HOLDING, [list(run_ids), rules.like(text)]).fetchall()
    return [run_id for (run_id,) in found]


def follow(transaction: Transaction, run_id: str, after: int) -> tuple[Status | None, list[JournalRow]]:
    top = _top(transaction, run_id)
    if top is None:
        return None, []
    found = transaction.execute(_BEHIND, [top.number, after]).fetchall()
    wanted = None if top.run == top.number else _below(transaction, run_id, top.number)
    heard = [JournalRow(position, entry) for run, position, entry in found if wanted is None or run in wanted]
    return top.seen(top.status), heard


def requests(transaction: Transaction, run_id: str | None) -> list[Request]:
    found = transaction.execute(_ALL_REQUESTS) if run_id is None else transaction.execute(_REQUESTS_OF, [run_id])
    return [rules.request(row) for row in found.fetchall()]


def answers(transaction: Transaction, run_id: str) -> list[StoredAnswer]:
    return [rules.answer(row) for row in transaction.execute(_ANSWERS, [run_id]).fetchall()]


def media(transaction: Transaction, wanted: Sequence[str]) -> dict[str, bytes]:
    sql = b"SELECT sha256, data FROM acorn.media WHERE sha256 = ANY($1::text[])"
    return {sha256: bytes(data) for sha256, data in transaction.execute(sql, [list(wanted)]).fetchall()}
