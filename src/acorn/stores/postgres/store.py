"""The PostgreSQL store: runs in a database, for many processes on many machines.

A process has one connection for reads and one connection for writes. The writer puts many writes into one transaction.
While the process drives or watches runs, it has a third connection for notifications.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from acorn.stores.database import DatabaseStore
from acorn.stores.port import Commit, Process, QueuedRun, WindowOrder, WindowSlice
from acorn.stores.postgres import claims, queue, reads, writes
from acorn.stores.postgres.connection import Database, PostgresConnection, Transaction
from acorn.stores.postgres.listener import Listener, PostgresWatch
from acorn.stores.postgres.writer import PostgresWriter
from acorn.types import JsonObject

T = TypeVar("T")


class PostgresStore(DatabaseStore[Transaction]):
    """A store in a PostgreSQL database, such as `PostgresStore("postgresql://host/name")`.

    The store creates its tables at its first use.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        super().__init__(self._database.name, reads, claims, writes)
        self._read_connection = PostgresConnection(self._database.open)
        self._write_connection = PostgresConnection(self._database.open)
        self._writer = PostgresWriter(self._write_connection, self._database)
        self._listener = Listener(self._database)
        self._has_engine = False
        # Also closes the store at the end of the program, and when no reference to the store is left.
        weakref.finalize(self, _close, self._listener, self._writer, self._write_connection, self._read_connection)

    def commit(self, commit: Commit) -> Future[None]:
        return self._writer.submit(
            commit.root,
            lambda transaction: writes.commit(transaction, commit, self._name),
            lambda transaction: writes.send_simple_commit(transaction, commit),
        )

    def enqueue(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            self.prepare_engine()
        return self.transact(lambda transaction: writes.enqueue(transaction, runs, deliver))

    def close(self) -> None:
        _close(self._listener, self._writer, self._write_connection, self._read_connection)

    # Called by workers

    def prepare_engine(self) -> None:
        """Create the tables of the job engine if they do not exist."""
        if not self._has_engine:
            self._database.use_once(lambda connection: queue.prepare_engine(connection, self._name))
            self._has_engine = True

    def engine_parameters(self) -> JsonObject:
        """Return the connection parameters for the job engine, including secrets."""
        parameters = self._database.address.parameters
        return {**parameters, "options": f"{parameters.get('options', '')} -c search_path={queue.SCHEMA}".strip()}

    def register_worker(self, process: Process, agents: Sequence[str], concurrency: int) -> None:
        """Register a worker process with the classes whose runs it drives, at most `concurrency` runs at a time."""
        self.transact(lambda transaction: queue.register_worker(transaction, process, agents, concurrency))

    def unregister_worker(self, process: Process) -> None:
        """Remove a worker from the list of workers."""
        self.transact(lambda transaction: queue.unregister_worker(transaction, process))

    def requeue_lost(self, agents: Sequence[str], seconds: float) -> Sequence[str]:
        """Requeue runs that have no live process and no pending job, and return the ids of these runs."""
        return self.transact(lambda transaction: queue.requeue_lost(transaction, agents, seconds))

    def fail_undriven(self, run_id: str, error: str) -> bool:
        """Set the status of a run that no worker can drive to `failed`.

        Return False if a process drives the run, or if the run is finished.
        """
        return self.transact(lambda transaction: claims.fail_undriven(transaction, run_id, error), run_id)

    def fleet(self) -> queue.FleetFacts:
        """Return the facts of the workers and of the queue of each class."""
        return self._read(queue.fleet)

    # Notifications

    def watch(self, run_id: str) -> PostgresWatch:
        def register(seconds: float) -> int | None:
            return self.transact(lambda transaction: writes.watch(transaction, run_id, seconds))

        return PostgresWatch(self._listener, register)

    def on_cancel_request(self, process: Process, call: Callable[[], None]) -> Callable[[], None]:
        notification = (claims.CANCEL_CHANNEL, process.id)
        self._listener.add(notification, call)
        return lambda: self._listener.remove(notification, call)

    # Shared rate limits

    def take(self, order: WindowOrder) -> WindowSlice:
        # This method does not use the writer, because a request to a model must not wait for commits. If the connection
        # breaks, the database may store a second slice, which is not used and expires.
        return self._read_connection.write(self._database, lambda transaction: writes.take_slice(transaction, order))

    # Transactions

    def transact(self, operation: Callable[[Transaction], T], run_id: str | None = None) -> T:
        return self._writer.submit(run_id, operation).result()

    def _read(self, operation: Callable[[Transaction], T]) -> T:
        return self._read_connection.read(self._database, operation)


def _close(listener: Listener, writer: PostgresWriter, *connections: PostgresConnection) -> None:
    listener.close()
    writer.close()
    for connection in connections:
        connection.close()
