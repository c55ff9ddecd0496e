"""A worker: drive the runs that the job engine delivers, several at a time, until the worker is stopped.

The job engine is Procrastinate, on the PostgreSQL database of the store. It delivers run ids at least once; only the
store knows the status of a run. Runs are driven in threads, so that user code cannot block the heartbeat of the engine.
`GET /health` reports over HTTP whether the worker is healthy (200) or not (503).
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

from acorn._inside import MisfitError, describe_error
from acorn.durable.perform import DeliverAgainError, Ended, agents_by_name, perform
from acorn.errors import DeclarationError, StoreError
from acorn.stores.lease import lease, start_heartbeat, stop_heartbeat, this_process
from acorn.stores.port import Store
from acorn.stores.postgres.queue import TASK, queue_of
from acorn.stores.postgres.store import PostgresStore

_REQUEST_TIMEOUT = 10.0
"""Seconds within which an HTTP request must arrive."""

Health = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Returns whether the worker is healthy, and the facts to report."""


@asynccontextmanager
async def serve_health(host: str | None, port: int, health: Health) -> AsyncGenerator[int]:
    """Serve `/health` inside the block, and return the port. Without a host, listen on all interfaces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT):
                line = await reader.readline()
                while (await reader.readline()).strip():
                    pass  # The headers do not matter.
            writer.write(_reply(line, health))
            await writer.drain()
        except (TimeoutError, ValueError, OSError):
            pass  # The client disconnected or did not send valid HTTP.
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


def _reply(line: bytes, health: Health) -> bytes:
    method, _, target = line.partition(b" ")
    path = target.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        status, body = HTTPStatus.METHOD_NOT_ALLOWED, b""
    elif path != b"/health":
        status, body = HTTPStatus.NOT_FOUND, b""
    else:
        is_healthy, facts = health()
        status = HTTPStatus.OK if is_healthy else HTTPStatus.SERVICE_UNAVAILABLE
        body = json.dumps(facts).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)


try:
    import procrastinate
    from procrastinate.exceptions import ConnectorException
    from procrastinate.jobs import Job
    from procrastinate.manager import JobManager
    from procrastinate.worker import Worker as EngineWorker
    from psycopg import AsyncConnection
except ImportError as missing:
    raise StoreError(
        f"A worker needs the extra `fleet`. Install it: pip install 'acorn-agents[fleet]' ({missing})."
    ) from missing

# The worker reports what matters in its own words. To see all log lines of these packages, configure their loggers.
for _name in ("procrastinate", "psycopg"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

_MAX_REDELIVERY = 60.0
"""The maximum seconds before a run that cannot be driven here is delivered again."""
_RECONNECT = 1.0
"""Seconds before an engine that lost its database starts again."""
_LEASES_OF_MISFIT = 30
"""The number of leases after which a run that does not fit its class here fails. An upgrade of the workers would have
finished by then."""
_RECOVERY_INTERVAL = 2.0
"""The maximum seconds between two searches for lost runs."""
_GRACE = 10.0
"""Seconds (or a lease, if that is less) for which a stopping worker waits for a database that does not answer."""
_POLL = 2.0
"""Seconds between two searches for jobs that are due. The database reports new jobs immediately."""
_CONNECTIONS = 3
"""Connections of the engine: one listens, the others fetch and finish jobs."""

ReportLine = Callable[[str], None]
ReportRun = Callable[[str, str, "Ended | None", float, str], None]
"""Called after each driven run with its id, its class, its status, the seconds, and a message if something is wrong."""


class StuckWorkerError(StoreError):
    """A worker should stop, but its database does not answer. Threads of the worker may still wait for it."""


class Worker:
    """Drives runs of some classes, from `run` until `stop`."""

    def __init__(
        self,
        agents: Sequence[Any],
        store: Store,
        concurrency: int,
        *,
        say: ReportLine,
        ran: ReportRun,
        patience: float | None = None,
    ) -> None:
        if not isinstance(store, PostgresStore):
            raise DeclarationError(
                f"Workers need a PostgreSQL store, such as `--store postgresql://host/name`. {store.name} is not one."
            )
        self.agents: Mapping[str, Any] = agents_by_name(agents)
        self.store, self.concurrency = store, concurrency
        self.running: dict[str, float] = {}
        """By run, the time at which it started here."""
        self.last_answer = time.monotonic()
        """The time of the last answer of the database."""
        self._say, self._ran = say, ran
        self._patience = _LEASES_OF_MISFIT * lease() if patience is None else patience
        """Seconds in which another worker may still drive a run that does not fit its class here."""
        self._misfits: dict[str, float] = {}
        """By run, the time at which it first did not fit."""
        self._stop, self._stop_requested = threading.Event(), asyncio.Event()
        self._engine: EngineWorker | None = None
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="acorn-run")

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def is_well(self) -> bool:
        """Whether the worker takes runs: it is not stopping, and its database answers."""
        return not self.is_stopping and time.monotonic() - self.last_answer < lease() + _RECOVERY_INTERVAL

    def stop(self) -> None:
        """Take no more runs. Runs in progress stop at their next commit and return to the queue."""
        self._stop.set()
        self._stop_requested.set()
        if self._engine is not None:
            self._engine.stop()  # type: ignore[no-untyped-call]

    async def run(self) -> None:
        """Work until `stop`. Problems with the store at the start are raised."""
        work, watchdog = asyncio.ensure_future(self._work()), asyncio.ensure_future(self._wait_for_lost_database())
        await asyncio.wait({work, watchdog}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise StuckWorkerError(f"{self.store.name} does not answer.")
        watchdog.cancel()
        await work

    async def _wait_for_lost_database(self) -> None:
        """Return when the worker should stop and its database has not answered for a while."""
        await self._stop_requested.wait()
        grace = min(lease(), _GRACE)
        last_answer = time.monotonic()
        while True:
            try:
                await asyncio.wait_for(asyncio.to_thread(self.store.statuses, []), grace)
                last_answer = time.monotonic()
            except (StoreError, TimeoutError):  # Checked only after a failure: this process may have been frozen.
                if time.monotonic() - last_answer >= grace:
                    return
            await asyncio.sleep(min(grace / 4, _RECONNECT))

    async def _work(self) -> None:
        here, store = this_process(), self.store
        await asyncio.to_thread(store.prepare_engine)
        await asyncio.to_thread(store.renew_lease, here, lease())
        await asyncio.to_thread(store.register_worker, here, list(self.agents), self.concurrency)
        start_heartbeat(store, "")  # Sends heartbeats even while the worker drives nothing.
        names = ", ".join(f"`{name}`" for name in self.agents)
        self._say(f"working on {names} of {store.name}, {self.concurrency} at a time")
        recovery = asyncio.ensure_future(self._recover())
        try:
            while not self.is_stopping:
                await self._run_engine()
                if not self.is_stopping:
                    await asyncio.sleep(_RECONNECT)
        finally:
            recovery.cancel()
            await asyncio.to_thread(self._pool.shutdown)
            stop_heartbeat(store, "")
            with suppress(StoreError):
                await asyncio.to_thread(store.unregister_worker, here)

    async def _run_engine(self) -> None:
        """Run the engine until it is stopped or fails."""
        try:
            async with self._app().open_async() as app:
                self._engine = EngineWorker(
                    app,
                    [queue_of(name) for name in self.agents],
                    f"{this_process().host}-{this_process().pid}",
                    self.concurrency,
                    delete_jobs="always",
                    fetch_job_polling_interval=min(lease() / 4, _POLL),
                    install_signal_handlers=False,
                    update_heartbeat_interval=lease() / 4,
                    stalled_worker_timeout=3 * lease(),
                )
                if not self.is_stopping:
                    await self._engine.run()  # type: ignore[no-untyped-call]
        except Exception as error:  # Any error of the engine: it starts again, and the database may return.
            self._report_lost(error)
        finally:
            self._engine = None

    def _report_lost(self, error: Exception) -> None:
        if not self.is_stopping:
            self._say(f"the engine lost its database and tries again: {_one_line(error)}")

    def _app(self) -> procrastinate.App:
        connector = _Connector(
            self._report_lost,
            kwargs=self.store.engine_parameters(),
            min_size=1,
            max_size=_CONNECTIONS,
            timeout=_MAX_REDELIVERY,
            configure=_commit_each,
        )
        app = procrastinate.App(connector=connector)
        app.job_manager = _Jobs(connector)
        app.task(name=TASK, retry=_Redeliver())(self._deliver)
        return app

    # A run

    async def _deliver(self, run_id: str) -> None:
        self.last_answer = time.monotonic()
        await asyncio.get_running_loop().run_in_executor(self._pool, self._perform, run_id)

    def _perform(self, run_id: str) -> None:
        started, name = time.monotonic(), ""
        self.running[run_id] = started
        ended: Ended | None = None
        message = ""

        def find(agent_name: str) -> Any:
            nonlocal name
            name = agent_name
            return self.agents.get(agent_name)

        try:
            ended = perform(self.store, run_id, find, stop=self._stop)
            self._misfits.pop(run_id, None)
        except DeliverAgainError as error:
            message = str(error)
            if not error.is_queued:
                raise
        except MisfitError as error:
            message = describe_error(error)
            if not self._fail_misfit(run_id, name, error):
                raise
            ended = "failed"
        except Exception as error:
            message = describe_error(error)
            if run_id in self.store.statuses([run_id]):
                raise
        except BaseException as error:  # Such as `sys.exit()` in a tool. A new delivery would only repeat it.
            message = describe_error(error)
            if not self.store.fail_undriven(run_id, f"Run {run_id} tried to exit its worker ({message})."):
                raise
            ended = "failed"
        finally:
            del self.running[run_id]
            self._ran(run_id, name, ended, time.monotonic() - started, message)

    def _fail_misfit(self, run_id: str, name: str, error: MisfitError) -> bool:
        """Fail a run that does not fit its class here and that no other worker has driven for long enough.

        Return whether it was failed.
        """
        since = self._misfits.setdefault(run_id, time.monotonic())
        if time.monotonic() - since < self._patience:
            return False
        del self._misfits[run_id]
        return self.store.fail_undriven(
            run_id,
            f"Run {run_id} fits no worker's `{name}`. Start workers with a class that it fits, and try it again with "
            f"`acorn resume {run_id}` or `map(..., queue=True, retry_failed=True)`. {' '.join(str(error).split())}",
        )

    # Lost runs

    async def _recover(self) -> None:
        """Regularly deliver the runs of dead workers and the runs whose jobs were lost."""
        while True:
            await asyncio.sleep(min(lease() / 4, _RECOVERY_INTERVAL))
            try:
                await self._requeue_lost()
                self.last_answer = time.monotonic()
            except (StoreError, ConnectorException) as error:
                self._say(f"the database does not answer: {_one_line(error)}")

    async def _requeue_lost(self) -> None:
        engine = self._engine
        if engine is not None:
            manager = engine.app.job_manager
            for job in await manager.get_stalled_jobs(task_name=TASK, seconds_since_heartbeat=lease()):
                if job.queue in map(queue_of, self.agents):
                    with suppress(ConnectorException):  # Another worker was faster.
                        await manager.retry_job(job)
        lost = await asyncio.to_thread(self.store.requeue_lost, list(self.agents), lease())
        if lost:
            runs = "1 run without a worker is" if len(lost) == 1 else f"{len(lost)} runs without a worker are"
            self._say(f"{runs} delivered again")


# These classes let the engine continue after its database was away. Without them, it would no longer receive
# notifications of jobs, would send no heartbeats, or would take no more runs until its current runs have ended.


class _Connector(procrastinate.PsycopgConnector):
    def __init__(self, report_lost: Callable[[Exception], None], **options: Any) -> None:
        # Two parameters of procrastinate have no complete type.
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]
        self._report_lost = report_lost

    async def listen_notify(self, on_notification: Any, channels: Iterable[str]) -> None:
        channels = list(channels)
        while True:
            try:
                await super().listen_notify(on_notification, channels)
            except ConnectorException as error:
                self._report_lost(error)
                await asyncio.sleep(_RECONNECT)


class _Jobs(JobManager):
    async def update_heartbeat(self, worker_id: int) -> None:
        with suppress(ConnectorException):  # The next heartbeat follows soon.
            await super().update_heartbeat(worker_id)

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        with suppress(ConnectorException):  # The next search follows soon.
            return await super().fetch_job(queues, worker_id)
        return None


async def _commit_each(connection: AsyncConnection[Any]) -> None:
    """Commit each statement of the engine. A worker that froze inside a transaction would keep its jobs locked."""
    await connection.set_autocommit(True)


def _one_line(error: Exception) -> str:
    """Describe an error in one line. Errors of the engine say little, but their cause does."""
    described = error if isinstance(error, StoreError) else error.__cause__ or error
    return " ".join(describe_error(described).split())


class _Redeliver(procrastinate.BaseRetryStrategy):
    """Deliver a run again: soon if another process drives it, with growing delays if it cannot be driven here."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> procrastinate.RetryDecision:
        is_driven = isinstance(exception, DeliverAgainError)
        seconds = lease() / 4 if is_driven else min(2.0 ** min(job.attempts, 10), _MAX_REDELIVERY)
        return procrastinate.RetryDecision(retry_at=datetime.now(UTC) + timedelta(seconds=seconds))
