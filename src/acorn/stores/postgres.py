"""Runs in a PostgreSQL database: for many processes of many machines.

What is written goes through the writer, in transactions that many share; what is read goes past it. A process has one
connection for each of the two, and one that listens while it drives or follows runs.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, TypeVar

from acorn.errors import StoreError
from acorn.stores import postgres_limits as limits
from acorn.stores import postgres_queue as queue
from acorn.stores import postgres_reads as reads
from acorn.stores import postgres_writes as writes
from acorn.stores import words
from acorn.stores.port import Answered, Commit, Heard, Holder, Kept, Order, Queued, RunFacts, Slice, Status
from acorn.stores.postgres_connection import Place, PostgresConnection, Transaction
from acorn.stores.postgres_listener import Listener, PostgresWatch
from acorn.stores.postgres_schema import MIGRATIONS
from acorn.stores.postgres_writer import PostgresWriter
from acorn.stores.schema import Migration
from acorn.types import Request

T = TypeVar("T")


class PostgresStore:
    """A store in a database, `PostgresStore("postgresql://host/name")`. Its tables are made when it is first used."""

    def __init__(self, url: str, *, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        self._place = Place(url, migrations)
        self._name = self._place.name
        self._reading = PostgresConnection(self._place.open)
        self._writing = PostgresConnection(self._place.open)
        self._writer = PostgresWriter(self._writing, self._place)
        self._listener = Listener(self._place)
        self._has_engine = False
        # Also when the program ends, and when the store is forgotten.
        weakref.finalize(self, _close, self._listener, self._writer, self._writing, self._reading)

    def __repr__(self) -> str:
        return f"PostgresStore({self._name!r})"

    @property
    def name(self) -> str:
        return self._name

    # By whoever drives a run

    def commit(self, commit: Commit) -> Future[None]:
        return self._writer.submit(
            commit.root,
            lambda transaction: writes.commit(transaction, commit, self._name),
            lambda transaction: writes.send(transaction, commit),
        )

    def claim(self, run_id: str, holder: Holder) -> Sequence[Kept] | None:
        claimed = self.transact(lambda transaction: writes.claim(transaction, run_id, holder), run_id)
        if isinstance(claimed, StoreError):  # what it found out about the run was worth keeping
            raise claimed
        return claimed

    def release(self, run_id: str, holder: Holder, status: Status) -> None:
        self.transact(lambda transaction: writes.release(transaction, run_id, holder, status), run_id)

    def answers(self, run_id: str) -> Sequence[Answered]:
        return self._read(lambda transaction: reads.answers(transaction, run_id))

    def beat(self, holder: Holder, seconds: float) -> Sequence[str]:
        return self.transact(lambda transaction: writes.beat(transaction, holder, seconds))

    # By whoever wants runs to begin elsewhere

    def put(self, runs: Sequence[Queued], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            self.prepare_engine()
        return self.transact(lambda transaction: writes.put(transaction, runs, deliver))

    def statuses(self, run_ids: Sequence[str]) -> Mapping[str, Status]:
        return self._read(lambda transaction: reads.statuses(transaction, run_ids))

    # By its workers

    def prepare_engine(self) -> None:
        """Make sure that the engine has its tables."""
        if not self._has_engine:
            self._place.use_once(lambda connection: queue.prepare_engine(connection, self._name))
            self._has_engine = True

    def engine_parameters(self) -> dict[str, Any]:
        """What a connection of the engine is opened with, secrets included."""
        known = self._place.address.parameters
        return {**known, "options": f"{known.get('options', '')} -c search_path={queue.SCHEMA}".strip()}

    def begin_work(self, holder: Holder, agents: Sequence[str], places: int) -> None:
        """A process drives runs of these classes, so many at a time."""
        self.transact(lambda transaction: queue.begin_work(transaction, holder, agents, places))

    def end_work(self, holder: Holder) -> None:
        self.transact(lambda transaction: queue.end_work(transaction, holder))

    def find_lost(self, agents: Sequence[str], seconds: float) -> Sequence[str]:
        """Deliver anew what nobody drives and no job brings to anybody."""
        return self.transact(lambda transaction: queue.find_lost(transaction, agents, seconds))

    def give_up(self, run_id: str, error: str) -> bool:
        """Fail a run that no worker can drive; False where somebody does, or it is over."""
        return self.transact(lambda transaction: writes.give_up(transaction, run_id, error), run_id)

    def fleet(self) -> queue.FleetFacts:
        """Its workers, and what they have to do."""
        return self._read(queue.fleet)

    # By whoever looks on

    def read(self, run_id: str) -> Sequence[Kept]:
        return self._read(lambda transaction: reads.tree(transaction, run_id))

    def media(self, wanted: Sequence[str]) -> Mapping[str, bytes]:
        return self._read(lambda transaction: reads.media(transaction, wanted))

    def find(self, prefix: str) -> Sequence[str]:
        return self._read(lambda transaction: reads.find(transaction, prefix))

    def list(
        self,
        *,
        status: Sequence[Status] = (),
        agent: str | None = None,
        batch: str | None = None,
        before: datetime | None = None,
        limit: int | None = 50,
    ) -> Sequence[RunFacts]:
        return self._read(lambda transaction: reads.listed(transaction, status, agent, batch, before, limit))

    def holding(self, run_ids: Sequence[str], text: str) -> Sequence[str]:
        return self._read(lambda transaction: reads.holding(transaction, run_ids, text))

    def follow(self, run_id: str, after: int = 0) -> tuple[Status | None, Sequence[Heard]]:
        return self._read(lambda transaction: reads.follow(transaction, run_id, after))

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        return self._read(lambda transaction: reads.requests(transaction, run_id))

    def answer(self, request_id: str, value: Any) -> Request:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise words.not_plain(request_id, error) from error
        return self.transact(lambda transaction: writes.answer(transaction, request_id, text, self._name))

    def cancel(self, run_id: str) -> None:
        self.transact(lambda transaction: writes.cancel(transaction, run_id, self._name), run_id)

    def delete(self, run_id: str) -> None:
        self.transact(lambda transaction: writes.delete(transaction, run_id, self._name), run_id)

    def close(self) -> None:
        _close(self._listener, self._writer, self._writing, self._reading)

    # What it tells at once

    def watch(self, run_id: str) -> PostgresWatch:
        def register(seconds: float) -> int | None:
            return self.transact(lambda transaction: writes.watch(transaction, run_id, seconds))

        return PostgresWatch(self._listener, register)

    def ring(self, holder: Holder, call: Callable[[], None]) -> Callable[[], None]:
        word = (writes.CANCELLED, holder.id)
        self._listener.add(word, call)
        return lambda: self._listener.remove(word, call)

    # What machines share beside runs

    def take(self, order: Order) -> Slice:
        # Past the writer, whose commits nobody should wait for here. Where it is not known whether something was
        # taken, it is taken once more: what nobody has used comes back with the window.
        return self._reading.write(self._place, lambda transaction: limits.take(transaction, order))

    # Transactions

    def transact(self, act: Callable[[Transaction], T], run_id: str | None = None) -> T:
        """Do it in a transaction, together with whatever else waits; a `StoreError` undoes it, and nothing else."""
        return self._writer.submit(run_id, act).result()

    def _read(self, act: Callable[[Transaction], T]) -> T:
        return self._reading.read(self._place, act)


def _close(listener: Listener, writer: PostgresWriter, *others: PostgresConnection) -> None:
    listener.close()
    writer.close()
    for connection in others:
        connection.close()
