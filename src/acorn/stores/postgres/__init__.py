"""The PostgreSQL store: runs in a database, for many processes on many machines. It needs the Python package psycopg.

A process has one connection for reads and one connection for writes. While the process drives or watches runs, it has a
third connection for notifications. A process with shared rate limits has one more connection for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from acorn.errors import StoreError

try:
    import psycopg as psycopg
except ImportError as error:
    raise StoreError(
        f"A PostgreSQL store needs the extra `postgres`. Install it: pip install 'acorn-agents[postgres]' ({error})."
    ) from error

from acorn.stores.port import PlaceAnswer, PlaceOrder, Process
from acorn.stores.postgres import queue
from acorn.stores.postgres.connection import Database, PostgresConnection
from acorn.stores.postgres.listener import Listener, PostgresWatch
from acorn.stores.postgres.statements import WATCH, take_place
from acorn.stores.postgres.writer import PostgresWriter
from acorn.stores.rules import DatabaseStore, in_snapshot, in_transaction, lock_run, set_status
from acorn.stores.statements import ADD_JOBS, CANCEL_CHANNEL, JOB_CHANNEL, Transaction

T = TypeVar("T")


class PostgresStore(DatabaseStore):
    """A store in a PostgreSQL database, such as `PostgresStore("postgresql://host/name")`.

    The store creates its tables at its first use.
    """

    def __init__(self, url: str) -> None:
        database = Database(url)
        write_connection, self._read_connection = PostgresConnection(database), PostgresConnection(database)
        self._limits_connection = PostgresConnection(database)
        self._listener = Listener(database)
        self._has_engine = False
        writer = PostgresWriter(write_connection, database)
        connections = write_connection, self._read_connection, self._limits_connection
        super().__init__(database.name, writer, self._listener, writer, *connections)

    def read_transaction(self, operation: Callable[[Transaction], T]) -> T:
        return self._read_connection.read(operation)

    # Called by workers

    def prepare_engine(self) -> None:
        """Create the tables of the job engine if they do not exist."""
        if not self._has_engine:
            self._read_connection.call(lambda connection: queue.prepare_engine(connection, self._name))
            self._has_engine = True

    _prepare_delivery = prepare_engine

    @in_transaction
    def register_worker(
        self, transaction: Transaction, process: Process, agents: Sequence[str], concurrency: int
    ) -> None:
        """Register a worker process with its agent classes and the maximum number of its concurrent runs."""
        transaction.execute("DELETE FROM workers WHERE process NOT IN (SELECT id FROM processes)")
        transaction.execute(queue.REGISTER_WORKER, [process.id, list(agents), concurrency])

    @in_transaction
    def unregister_worker(self, transaction: Transaction, process: Process) -> None:
        """Remove a worker process that has stopped from the stored list of workers."""
        transaction.execute("DELETE FROM workers WHERE process = $1", [process.id])

    def next_delivery(self, agents: Sequence[str]) -> str | None:
        """Return the id of the next run of some agent classes that a worker must drive, or None.

        The run is not delivered again for a lease, unless its status becomes `queued` again.
        """
        # This method does not use the writer, which would write a transaction even if there is no run. If the
        # connection breaks, a run may be lost. `requeue_lost` then delivers it again.
        return self._read_connection.call(lambda connection: queue.next_delivery(connection, agents))

    @in_transaction
    def requeue_lost(self, transaction: Transaction, agents: Sequence[str], seconds: float) -> Sequence[str]:
        """Add jobs for lost runs of some agent classes, and return the ids of these runs.

        A run is lost if no live process drives it and it has no pending job. Only one worker at a time searches for
        lost runs.
        """
        (has_lock,) = transaction.execute(queue.LOCK_QUEUE).fetchone()
        if not has_lock:
            return []
        rows = transaction.execute(queue.LOST_RUNS, [list(agents), float(seconds)]).fetchall()
        lost = [run_id for (run_id,) in rows]
        if lost:
            transaction.execute(ADD_JOBS, [lost])
        return lost

    @in_transaction
    def fail_undriven(self, transaction: Transaction, run_id: str, error: str) -> bool:
        """Set the status of a `queued` or `stopped` run that no worker can drive to `failed`, and return True.

        If the run has another status or does not exist, change nothing and return False.
        """
        run = lock_run(transaction, run_id)
        if run is None or run.status not in ("queued", "stopped"):
            return False
        set_status(transaction, run_id, run, "failed", error)
        return True

    @in_snapshot
    def fleet(self, transaction: Transaction) -> queue.FleetFacts:
        """Return the live workers, and the numbers of runs of each agent class."""
        workers = [queue.WorkerFacts(*row) for row in transaction.execute(queue.LIVE_WORKERS).fetchall()]
        agents = [queue.AgentFacts(*row) for row in transaction.execute(queue.RUNS_BY_AGENT).fetchall()]
        return queue.FleetFacts(workers, agents)

    # Notifications

    def watch(self, run_id: str) -> PostgresWatch:
        def register(seconds: float) -> int | None:
            row = self.transact(lambda transaction: transaction.execute(WATCH, [run_id, seconds]).fetchone())
            return None if row is None else int(row[0])

        return PostgresWatch(self._listener, register)

    def on_cancel_request(self, process: Process, call: Callable[[], None]) -> Callable[[], None]:
        return self._listener.add((CANCEL_CHANNEL, process.id), call)

    def on_new_job(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function in another thread when `next_delivery` may return a run.

        Return a function that ends the subscription.
        """
        return self._listener.add((JOB_CHANNEL, ""), call)

    # Shared rate limits

    def take_place(self, order: PlaceOrder) -> PlaceAnswer:
        # This method has its own connection, because a request to a model must not wait for commits or long reads. If
        # the connection breaks, the database may store a second place, which is not used and expires.
        return self._limits_connection.call(lambda connection: take_place(connection, order))
