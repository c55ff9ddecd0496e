"""Runs in a PostgreSQL database: for many processes of many machines.

What is written goes through the writer, in transactions that many share; what is read goes past it. A process has one
connection for each of the two, and one that listens while it drives or follows runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from acorn.stores.database import DatabaseStore
from acorn.stores.port import Commit, Process, QueuedRun, WindowOrder, WindowSlice
from acorn.stores.postgres import claims as driving
from acorn.stores.postgres import claims as limits
from acorn.stores.postgres import queue as queue
from acorn.stores.postgres import reads as reads
from acorn.stores.postgres import writes as writes
from acorn.stores.postgres.connection import Database, PostgresConnection, Transaction
from acorn.stores.postgres.listener import Listener, PostgresWatch
from acorn.stores.postgres.schema import MIGRATIONS
from acorn.stores.postgres.writer import PostgresWriter
from acorn.stores.sqlite.connection import Migration
from acorn.types import JsonObject

T = TypeVar("T")


class PostgresStore(DatabaseStore[Transaction]):
    """A store in a database, `PostgresStore("postgresql://host/name")`. Its tables are made when it is first used."""

    def __init__(self, url: str, *, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        self._place = Database(url, migrations)
        super().__init__(self._place.name, reads, driving, writes)
        self._reading = PostgresConnection(self._place.open)
        self._writing = PostgresConnection(self._place.open)
        self._writer = PostgresWriter(self._writing, self._place)
        self._listener = Listener(self._place)
        self._has_engine = False
        # Also when the program ends, and when the store is forgotten.
        weakref.finalize(self, _close, self._listener, self._writer, self._writing, self._reading)

    # By whoever drives a run

    def commit(self, commit: Commit) -> Future[None]:
        return self._writer.submit(
            commit.root,
            lambda transaction: writes.commit(transaction, commit, self._name),
            lambda transaction: writes.send(transaction, commit),
        )

    # By whoever wants runs to begin elsewhere

    def put(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            self.prepare_engine()
        return self.transact(lambda transaction: writes.put(transaction, runs, deliver))

    # By its workers

    def prepare_engine(self) -> None:
        """Make sure that the engine has its tables."""
        if not self._has_engine:
            self._place.use_once(lambda connection: queue.prepare_engine(connection, self._name))
            self._has_engine = True

    def engine_parameters(self) -> JsonObject:
        """What a connection of the engine is opened with, secrets included."""
        known = self._place.address.parameters
        return {**known, "options": f"{known.get('options', '')} -c search_path={queue.SCHEMA}".strip()}

    def begin_work(self, holder: Process, agents: Sequence[str], places: int) -> None:
        """A process drives runs of these classes, so many at a time."""
        self.transact(lambda transaction: queue.begin_work(transaction, holder, agents, places))

    def end_work(self, holder: Process) -> None:
        self.transact(lambda transaction: queue.end_work(transaction, holder))

    def find_lost(self, agents: Sequence[str], seconds: float) -> Sequence[str]:
        """Deliver anew what nobody drives and no job brings to anybody."""
        return self.transact(lambda transaction: queue.find_lost(transaction, agents, seconds))

    def give_up(self, run_id: str, error: str) -> bool:
        """Fail a run that no worker can drive; False where somebody does, or it is over."""
        return self.transact(lambda transaction: driving.give_up(transaction, run_id, error), run_id)

    def fleet(self) -> queue.FleetFacts:
        """Its workers, and what they have to do."""
        return self._read(queue.fleet)

    # By whoever looks on

    def close(self) -> None:
        _close(self._listener, self._writer, self._writing, self._reading)

    # What it tells at once

    def watch(self, run_id: str) -> PostgresWatch:
        def register(seconds: float) -> int | None:
            return self.transact(lambda transaction: writes.watch(transaction, run_id, seconds))

        return PostgresWatch(self._listener, register)

    def ring(self, holder: Process, call: Callable[[], None]) -> Callable[[], None]:
        word = (driving.CANCELLED, holder.id)
        self._listener.add(word, call)
        return lambda: self._listener.remove(word, call)

    # What machines share beside runs

    def take(self, order: WindowOrder) -> WindowSlice:
        # Past the writer, whose commits nobody should wait for here. Where it is not known whether something was
        # taken, it is taken once more: what nobody has used comes back with the window.
        return self._reading.write(self._place, lambda transaction: limits.take(transaction, order))

    # Transactions

    def transact(self, act: Callable[[Transaction], T], run_id: str | None = None) -> T:
        return self._writer.submit(run_id, act).result()

    def _read(self, act: Callable[[Transaction], T]) -> T:
        return self._reading.read(self._place, act)


def _close(listener: Listener, writer: PostgresWriter, *others: PostgresConnection) -> None:
    listener.close()
    writer.close()
    for connection in others:
        connection.close()
