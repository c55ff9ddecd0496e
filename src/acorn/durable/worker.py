"""Says over HTTP whether a worker is well, for whoever decides to start another one: `GET /health`, 200 or 503.

A worker: drives the runs that the engine delivers, so many at a time, until it is told to stop.

The engine is Procrastinate, on the PostgreSQL of the store. It delivers ids, at least once; what a run is at is in the
store alone. Runs are driven in threads, so that nothing a user's code does keeps the engine from its heartbeat.
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
from acorn.durable.perform import DeliverAgainError, Ended, named_agents, perform
from acorn.errors import DeclarationError, StoreError
from acorn.stores.lease import lease, start_heartbeat, stop_heartbeat, this_process
from acorn.stores.port import Store
from acorn.stores.postgres.queue import TASK, queue_of
from acorn.stores.postgres.store import PostgresStore

_PATIENCE = 10.0
"""Seconds for a question to come in."""

Health = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Whether all is well, and what else is to be said."""


@asynccontextmanager
async def serve_health(host: str | None, port: int, health: Health) -> AsyncGenerator[int]:
    """Answer while the block lasts; the port, where any would do. Without a host, to whoever reaches this machine."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                line = await reader.readline()
                while (await reader.readline()).strip():
                    pass  # nothing in the head matters
            writer.write(_reply(line, health))
            await writer.drain()
        except (TimeoutError, ValueError, OSError):
            pass  # whoever asked has gone, or speaks no HTTP
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


def _reply(line: bytes, health: Health) -> bytes:
    method, _, rest = line.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        status, body = HTTPStatus.METHOD_NOT_ALLOWED, b""
    elif path != b"/health":
        status, body = HTTPStatus.NOT_FOUND, b""
    else:
        is_well, facts = health()
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
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
    raise StoreError(f"A worker needs the extra `fleet`: pip install 'acorn-agents[fleet]' ({missing}).") from missing

for _name in ("procrastinate", "psycopg"):  # what matters of it is said in plain words; whoever wants all configures it
    logging.getLogger(_name).addHandler(logging.NullHandler())

_LONGEST = 60.0
"""Seconds after which a run that cannot be driven here is delivered again, at the latest."""
_AGAIN = 1.0
"""Seconds after which an engine that lost its database begins anew."""
_LEASES_OF_MISFIT = 30
"""After so many a run that does not fit its class here is given up: an upgrade would have been through by then."""
_GLANCE = 2.0
"""Seconds between two looks for what was lost, at most."""
_GRACE = 10.0
"""Seconds that one that was told to stop waits for a database that does not answer, or a lease."""
_POLL = 2.0
"""Seconds between two looks for jobs whose time has come; new ones are heard of at once."""
_CONNECTIONS = 3
"""Of the engine: one listens, the others fetch jobs and end them."""

Said = Callable[[str], None]
Ran = Callable[[str, str, "Ended | None", float, str], None]
"""Told of each run that was driven: its id, its class, what it has come to, the seconds, and words on what is wrong."""


class StuckWorkerError(StoreError):
    """A worker was to stop, and its database does not answer. Threads of it may still wait for it."""


class Worker:
    """Drives runs of some classes, from `run` until `stop`."""

    def __init__(
        self,
        agents: Sequence[Any],
        store: Store,
        concurrency: int,
        *,
        say: Said,
        ran: Ran,
        patience: float | None = None,
    ) -> None:
        if not isinstance(store, PostgresStore):
            raise DeclarationError(
                f"Workers need a PostgreSQL store, as in `--store postgresql://host/name`; {store.name} is none."
            )
        self.agents: Mapping[str, Any] = named_agents(agents)
        self.store, self.concurrency = store, concurrency
        self.running: dict[str, float] = {}
        """By run, when it was begun here."""
        self.heard = time.monotonic()
        """When the database last answered."""
        self._say, self._ran = say, ran
        self._patience = _LEASES_OF_MISFIT * lease() if patience is None else patience
        """Seconds for which a run that does not fit its class here may still find a worker that it fits."""
        self._misfits: dict[str, float] = {}
        """By run, when it was first found not to fit."""
        self._stop, self._told = threading.Event(), asyncio.Event()
        self._engine: EngineWorker | None = None
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="acorn-run")

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def is_well(self) -> bool:
        """Whether it takes runs: it is not about to stop, and its database answers."""
        return not self.is_stopping and time.monotonic() - self.heard < lease() + _GLANCE

    def stop(self) -> None:
        """Take no more runs; those under way stop at their next commit, and go back to the queue."""
        self._stop.set()
        self._told.set()
        if self._engine is not None:
            self._engine.stop()  # type: ignore[no-untyped-call]

    async def run(self) -> None:
        """Work until `stop`; what is wrong with the store at the beginning is raised."""
        work, watch = asyncio.ensure_future(self._work()), asyncio.ensure_future(self._miss_database())
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise StuckWorkerError(f"{self.store.name} does not answer.")
        watch.cancel()
        await work

    async def _miss_database(self) -> None:
        """Until the worker was told to stop, and its database has not answered for a while."""
        await self._told.wait()
        grace = min(lease(), _GRACE)
        heard = time.monotonic()
        while True:
            try:
                await asyncio.wait_for(asyncio.to_thread(self.store.statuses, []), grace)  # which waits for a server
                heard = time.monotonic()
            except (StoreError, TimeoutError):  # only now, as this process may have been frozen
                if time.monotonic() - heard >= grace:
                    return
            await asyncio.sleep(min(grace / 4, _AGAIN))

    async def _work(self) -> None:
        here, store = this_process(), self.store
        await asyncio.to_thread(store.prepare_engine)
        await asyncio.to_thread(store.renew_lease, here, lease())
        await asyncio.to_thread(store.register_worker, here, list(self.agents), self.concurrency)
        start_heartbeat(store, "")  # so that it is heard of while it drives nothing
        names = ", ".join(f"`{name}`" for name in self.agents)
        self._say(f"working on {names} of {store.name}, {self.concurrency} at a time")
        recovery = asyncio.ensure_future(self._recover())
        try:
            while not self.is_stopping:
                await self._run_engine()
                if not self.is_stopping:
                    await asyncio.sleep(_AGAIN)
        finally:
            recovery.cancel()
            await asyncio.to_thread(self._pool.shutdown)
            stop_heartbeat(store, "")
            with suppress(StoreError):
                await asyncio.to_thread(store.unregister_worker, here)

    async def _run_engine(self) -> None:
        """Until it is stopped, or something goes wrong with it."""
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
        except Exception as error:  # whatever the engine raises: a database that is away comes back
            self._say_lost(error)
        finally:
            self._engine = None

    def _say_lost(self, error: Exception) -> None:
        if not self.is_stopping:
            self._say(f"the engine lost its database, and tries again: {_words(error)}")

    def _app(self) -> procrastinate.App:
        connector = _Connector(
            self._say_lost,
            kwargs=self.store.engine_parameters(),
            min_size=1,
            max_size=_CONNECTIONS,
            timeout=_LONGEST,
            configure=_commit_each,
        )
        app = procrastinate.App(connector=connector)
        app.job_manager = _Jobs(connector)
        app.task(name=TASK, retry=_Redeliver())(self._deliver)
        return app

    # A run

    async def _deliver(self, run_id: str) -> None:
        self.heard = time.monotonic()
        await asyncio.get_running_loop().run_in_executor(self._pool, self._perform, run_id)

    def _perform(self, run_id: str) -> None:
        began, name = time.monotonic(), ""
        self.running[run_id] = began
        ended: Ended | None = None
        words = ""

        def find(wanted: str) -> Any:
            nonlocal name
            name = wanted
            return self.agents.get(wanted)

        try:
            ended = perform(self.store, run_id, find, stop=self._stop)
            self._misfits.pop(run_id, None)
        except DeliverAgainError as error:
            words = str(error)
            if not error.is_queued:
                raise
        except MisfitError as error:
            words = describe_error(error)
            if not self._gives_up(run_id, name, error):
                raise
            ended = "failed"
        except Exception as error:
            words = describe_error(error)
            if run_id in self.store.statuses([run_id]):
                raise
        except BaseException as error:  # `sys.exit()` in a tool, say: the run has stopped, and would do the same again
            words = describe_error(error)
            if not self.store.fail_undriven(run_id, f"The run {run_id} was to end the worker that drove it ({words})."):
                raise
            ended = "failed"
        finally:
            del self.running[run_id]
            self._ran(run_id, name, ended, time.monotonic() - began, words)

    def _gives_up(self, run_id: str, name: str, error: MisfitError) -> bool:
        """Whether a run that does not fit its class here is failed: nobody has driven it for long enough."""
        since = self._misfits.setdefault(run_id, time.monotonic())
        if time.monotonic() - since < self._patience:
            return False
        del self._misfits[run_id]
        return self.store.fail_undriven(
            run_id,
            f"The run {run_id} fits no worker's `{name}`; start workers whose class it fits, and try it again, by "
            f"`acorn resume {run_id}` or `map(..., queue=True, retry_failed=True)`. {' '.join(str(error).split())}",
        )

    # What was lost

    async def _recover(self) -> None:
        """Now and then take up what dead workers had, and what the engine lost."""
        while True:
            await asyncio.sleep(min(lease() / 4, _GLANCE))
            try:
                await self._take_up()
                self.heard = time.monotonic()
            except (StoreError, ConnectorException) as error:
                self._say(f"the database does not answer: {_words(error)}")

    async def _take_up(self) -> None:
        engine = self._engine
        if engine is not None:
            manager = engine.app.job_manager
            for job in await manager.get_stalled_jobs(task_name=TASK, seconds_since_heartbeat=lease()):
                if job.queue in map(queue_of, self.agents):
                    with suppress(ConnectorException):  # another worker was quicker
                        await manager.retry_job(job)
        found = await asyncio.to_thread(self.store.requeue_lost, list(self.agents), lease())
        if found:
            runs = "1 run that nobody drove is" if len(found) == 1 else f"{len(found)} runs that nobody drove are"
            self._say(f"{runs} delivered anew")


# The engine, which goes on when its database was away: by itself it would not hear of jobs any more, would not be heard
# of any more, or would take no more runs until all that it drives have ended.


class _Connector(procrastinate.PsycopgConnector):
    def __init__(self, say_lost: Callable[[Exception], None], **options: Any) -> None:
        super().__init__(**options)
        self._say_lost = say_lost

    async def listen_notify(self, on_notification: Any, channels: Iterable[str]) -> None:
        channels = list(channels)
        while True:
            try:
                await super().listen_notify(on_notification, channels)
            except ConnectorException as error:
                self._say_lost(error)
                await asyncio.sleep(_AGAIN)


class _Jobs(JobManager):
    async def update_heartbeat(self, worker_id: int) -> None:
        with suppress(ConnectorException):  # it is heard of again soon
            await super().update_heartbeat(worker_id)

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        with suppress(ConnectorException):  # it looks again soon
            return await super().fetch_job(queues, worker_id)
        return None


async def _commit_each(connection: AsyncConnection[Any]) -> None:
    """Each statement of the engine is a whole; a worker that froze before a commit would keep its jobs locked."""
    await connection.set_autocommit(True)


def _words(error: Exception) -> str:
    """On one line; the engine's own errors say nothing, and what is behind them does."""
    told = error if isinstance(error, StoreError) else error.__cause__ or error
    return " ".join(describe_error(told).split())


class _Redeliver(procrastinate.BaseRetryStrategy):
    """A run that was not done is delivered again: one that is held soon, one that does not fit here ever later."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> procrastinate.RetryDecision:
        is_held = isinstance(exception, DeliverAgainError)
        seconds = lease() / 4 if is_held else min(2.0 ** min(job.attempts, 10), _LONGEST)
        return procrastinate.RetryDecision(retry_at=datetime.now(UTC) + timedelta(seconds=seconds))
