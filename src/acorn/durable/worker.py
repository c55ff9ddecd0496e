"""A worker process that drives the runs that a job engine delivers, several runs at a time, until it is stopped.

The job engine is Procrastinate, which uses the PostgreSQL database of the store. The engine delivers each run id at
least once, and the store decides whether the run must be driven. The worker drives runs in threads, so that user code
cannot block the heartbeats of the engine. `GET /health` returns the HTTP status 200 if the worker is healthy, and 503
otherwise.
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
from acorn.stores.lease import lease_seconds, start_heartbeat, stop_heartbeat, this_process
from acorn.stores.port import Store
from acorn.stores.postgres import PostgresStore
from acorn.stores.postgres.queue import TASK, queue_of

_REQUEST_TIMEOUT = 10.0
"""The maximum seconds to wait for the lines of an HTTP request."""

Health = Callable[[], tuple[bool, Mapping[str, Any]]]
"""A function that returns whether the worker is healthy, and the JSON data of the HTTP response."""


@asynccontextmanager
async def serve_health(host: str | None, port: int, health: Health) -> AsyncGenerator[int]:
    """Serve `/health` over HTTP inside the `async with` block. The value of the block is the port number.

    If `host` is None, the server listens on all network interfaces.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT):
                line = await reader.readline()
                while (await reader.readline()).strip():
                    pass  # Skip the headers.
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

# The worker reports important problems itself. To print all log lines of these packages, configure their loggers.
for _name in ("procrastinate", "psycopg"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

_MAX_REDELIVERY = 60.0
"""The maximum seconds until a run that this worker cannot drive is delivered again."""
_RECONNECT = 1.0
"""Seconds after which an engine that lost its database starts again."""
_LEASES_OF_MISFIT = 30
"""The number of lease periods after which a run fails if it does not fit its class in this worker.

This time is long enough to upgrade all workers.
"""
_RECOVERY_INTERVAL = 2.0
"""The maximum seconds between two searches for lost runs."""
_GRACE = 10.0
"""The maximum seconds for which a stopping worker waits for the database. A lease applies if it is shorter."""
_POLL = 2.0
"""Seconds between two searches for delayed jobs. The database notifies the engine of other jobs."""
_CONNECTIONS = 3
"""The number of connections of the engine. One connection listens, and the others fetch and finish jobs."""

ReportLine = Callable[[str], None]
ReportRun = Callable[[str, str, "Ended | None", float, str], None]
"""A function that is called after each driven run.

Its arguments are the run id, the class name, the status, the seconds, and an error message or an empty text.
"""


class StuckWorkerError(StoreError):
    """A worker cannot stop because its database does not answer.

    Threads of the worker may wait for the database forever, so the process must be killed.
    """


class Worker:
    """A worker that drives the delivered runs of some agent classes. It works from the call of `run` until `stop`."""

    def __init__(
        self,
        agents: Sequence[Any],
        store: Store,
        concurrency: int,
        *,
        report_line: ReportLine,
        report_run: ReportRun,
        patience: float | None = None,
    ) -> None:
        if not isinstance(store, PostgresStore):
            raise DeclarationError(
                f"{store.name} is not a PostgreSQL store, and workers need a PostgreSQL store. Use a store such as "
                f"`--store postgresql://host/name`."
            )
        self.agents: Mapping[str, Any] = agents_by_name(agents)
        self.store, self.concurrency = store, concurrency
        self.running: dict[str, float] = {}
        """A dict that maps run ids to the times when the runs started in this worker."""
        self.last_answer = time.monotonic()
        """The time when the database last answered."""
        self._report_line, self._report_run = report_line, report_run
        self._patience = _LEASES_OF_MISFIT * lease_seconds() if patience is None else patience
        """Seconds to wait for another worker to drive a run that does not fit its class in this worker."""
        self._misfits: dict[str, float] = {}
        """A dict that maps the ids of runs that do not fit their classes to the times of the first attempts."""
        self._stop, self._stop_requested = threading.Event(), asyncio.Event()
        self._engine: EngineWorker | None = None
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="acorn-run")

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def is_healthy(self) -> bool:
        """Whether the worker accepts new runs: False if the worker is stopping or its database does not answer."""
        return not self.is_stopping and time.monotonic() - self.last_answer < lease_seconds() + _RECOVERY_INTERVAL

    def stop(self) -> None:
        """Stop accepting runs.

        Runs in progress stop at their next commit and return to the queue, so that another worker can drive them.
        """
        self._stop.set()
        self._stop_requested.set()
        if self._engine is not None:
            self._engine.stop()  # type: ignore[no-untyped-call]

    async def run(self) -> None:
        """Drive runs until `stop` is called.

        Raise `StoreError` if the store cannot be used at the start.
        """
        work, watchdog = asyncio.ensure_future(self._work()), asyncio.ensure_future(self._wait_for_lost_database())
        await asyncio.wait({work, watchdog}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise StuckWorkerError(f"{self.store.name} does not answer.")
        watchdog.cancel()
        await work

    async def _wait_for_lost_database(self) -> None:
        """Wait until `stop` was called and the database has then not answered for some seconds.

        It returns only in this case, so it tells the caller that the worker is stuck.
        """
        await self._stop_requested.wait()
        grace = min(lease_seconds(), _GRACE)
        last_answer = time.monotonic()
        while True:
            try:
                await asyncio.wait_for(asyncio.to_thread(self.store.statuses, []), grace)
                last_answer = time.monotonic()
            except (StoreError, TimeoutError):
                # Without a failure, a long time means only that this process was frozen.
                if time.monotonic() - last_answer >= grace:
                    return
            await asyncio.sleep(min(grace / 4, _RECONNECT))

    async def _work(self) -> None:
        here, store = this_process(), self.store
        await asyncio.to_thread(store.prepare_engine)
        await asyncio.to_thread(store.renew_lease, here, lease_seconds())
        await asyncio.to_thread(store.register_worker, here, list(self.agents), self.concurrency)
        start_heartbeat(store, "")  # The worker sends heartbeats even while it drives no run.
        names = ", ".join(f"`{name}`" for name in self.agents)
        self._report_line(f"working on {names} of {store.name}, {self.concurrency} at a time")
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
        """Run the job engine until the engine is stopped or fails."""
        try:
            async with self._app().open_async() as app:
                self._engine = EngineWorker(
                    app,
                    [queue_of(name) for name in self.agents],
                    f"{this_process().host}-{this_process().pid}",
                    self.concurrency,
                    delete_jobs="always",
                    fetch_job_polling_interval=min(lease_seconds() / 4, _POLL),
                    install_signal_handlers=False,
                    update_heartbeat_interval=lease_seconds() / 4,
                    stalled_worker_timeout=3 * lease_seconds(),
                )
                if not self.is_stopping:
                    await self._engine.run()  # type: ignore[no-untyped-call]
        except Exception as error:  # The engine starts again after any error, because the database may return.
            self._report_lost(error)
        finally:
            self._engine = None

    def _report_lost(self, error: Exception) -> None:
        if not self.is_stopping:
            self._report_line(f"the engine lost its database and tries again: {_describe_in_one_line(error)}")

    def _app(self) -> procrastinate.App:
        connector = _ReconnectingConnector(
            self._report_lost,
            kwargs=self.store.engine_parameters(),
            min_size=1,
            max_size=_CONNECTIONS,
            timeout=_MAX_REDELIVERY,
            configure=_enable_autocommit,
        )
        app = procrastinate.App(connector=connector)
        app.job_manager = _TolerantJobManager(connector)
        app.task(name=TASK, retry=_RedeliveryStrategy())(self._deliver)
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
        except BaseException as error:  # A tool called `sys.exit()`, for example. A new delivery would repeat the call.
            message = describe_error(error)
            if not self.store.fail_undriven(run_id, f"Run {run_id} tried to exit its worker ({message})."):
                raise
            ended = "failed"
        finally:
            del self.running[run_id]
            self._report_run(run_id, name, ended, time.monotonic() - started, message)

    def _fail_misfit(self, run_id: str, name: str, error: MisfitError) -> bool:
        """Set a run to `failed` if it does not fit its agent class, and return True.

        Return False if this worker found the problem only a short time ago, because another worker with a matching
        class may still drive the run.
        """
        since = self._misfits.setdefault(run_id, time.monotonic())
        if time.monotonic() - since < self._patience:
            return False
        del self._misfits[run_id]
        return self.store.fail_undriven(
            run_id,
            f"Run {run_id} does not fit the class `{name}` of any worker. Start workers with a class that fits the "
            f"run, and try the run again with `acorn resume {run_id}` or `map(..., queue=True, retry_failed=True)`. "
            f"{' '.join(str(error).split())}",
        )

    # Lost runs

    async def _recover(self) -> None:
        """Every few seconds, add jobs for the runs of dead workers and for runs whose job was lost."""
        while True:
            await asyncio.sleep(min(lease_seconds() / 4, _RECOVERY_INTERVAL))
            try:
                await self._requeue_lost()
                self.last_answer = time.monotonic()
            except (StoreError, ConnectorException) as error:
                self._report_line(f"the database does not answer: {_describe_in_one_line(error)}")

    async def _requeue_lost(self) -> None:
        engine = self._engine
        if engine is not None:
            manager = engine.app.job_manager
            for job in await manager.get_stalled_jobs(task_name=TASK, seconds_since_heartbeat=lease_seconds()):
                if job.queue in map(queue_of, self.agents):
                    with suppress(ConnectorException):  # Another worker has already retried the job.
                        await manager.retry_job(job)
        lost = await asyncio.to_thread(self.store.requeue_lost, list(self.agents), lease_seconds())
        if lost:
            runs = "1 run without a worker is" if len(lost) == 1 else f"{len(lost)} runs without a worker are"
            self._report_line(f"{runs} delivered again")


# With these classes, the engine continues after its database was unreachable. Without them, the engine would receive no
# more notifications of jobs, send no more heartbeats, or fetch no more jobs until its current runs have ended.


class _ReconnectingConnector(procrastinate.PsycopgConnector):
    """A database connector for the job engine. After a lost connection, it listens for jobs again."""

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


class _TolerantJobManager(JobManager):
    """A job manager for the job engine. It ignores a lost connection, because the engine soon tries again."""

    async def update_heartbeat(self, worker_id: int) -> None:
        with suppress(ConnectorException):  # The next heartbeat follows soon.
            await super().update_heartbeat(worker_id)

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        with suppress(ConnectorException):  # The next search follows soon.
            return await super().fetch_job(queues, worker_id)
        return None


async def _enable_autocommit(connection: AsyncConnection[Any]) -> None:
    """Make each statement of the job engine its own transaction.

    If a worker froze inside a longer transaction, its jobs would stay locked.
    """
    await connection.set_autocommit(True)


def _describe_in_one_line(error: Exception) -> str:
    """Return the description of an error as one line of text.

    For an error of the job engine, describe the cause of the error.
    """
    described = error if isinstance(error, StoreError) else error.__cause__ or error
    return " ".join(describe_error(described).split())


class _RedeliveryStrategy(procrastinate.BaseRetryStrategy):
    """The rule for when the job engine delivers a run again that this worker did not drive to its end.

    If another process drives the run, the delay is short. Otherwise the delay grows with each attempt.
    """

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> procrastinate.RetryDecision:
        is_driven = isinstance(exception, DeliverAgainError)
        seconds = lease_seconds() / 4 if is_driven else min(2.0 ** min(job.attempts, 10), _MAX_REDELIVERY)
        return procrastinate.RetryDecision(retry_at=datetime.now(UTC) + timedelta(seconds=seconds))
