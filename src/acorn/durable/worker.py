"""A worker process that drives the runs that a job engine delivers, several runs at a time, until it is stopped.

The job engine is Procrastinate, which uses the PostgreSQL database of the store. It delivers each run id at least once,
and nothing else: the worker drives the run with `perform`, and the store decides whether the run must be driven. A run
that was delivered, but that no process drives, is delivered again after a lease. The worker drives runs in threads, so
that user code cannot block the worker. `GET /health` returns the HTTP status 200 if the worker is healthy, and 503
otherwise.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

from acorn._inside import MisfitError, describe_error
from acorn.durable.perform import Ended, agents_by_name, perform
from acorn.errors import DeclarationError, StoreError
from acorn.stores.lease import lease_seconds, start_heartbeat, stop_heartbeat, this_process
from acorn.stores.port import Store, StoreUnreachableError
from acorn.stores.postgres import PostgresStore

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
    method, path, *_ = [*line.split(b" "), b"", b""]
    status, body = HTTPStatus.NOT_FOUND, b""
    if method not in (b"GET", b"HEAD"):
        status = HTTPStatus.METHOD_NOT_ALLOWED
    elif path.partition(b"?")[0].strip() == b"/health":
        is_healthy, facts = health()
        status = HTTPStatus.OK if is_healthy else HTTPStatus.SERVICE_UNAVAILABLE
        body = json.dumps(facts).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)


_RECONNECT = 1.0
"""Seconds after which a worker that lost its database asks again."""
_LEASES_OF_MISFIT = 30
"""The number of lease periods after which a run fails if it does not fit its class in this worker.

This time is long enough to upgrade all workers.
"""
_POLL = 2.0
"""The maximum seconds between two searches for delayed and lost runs. The database reports other runs immediately."""
_GRACE = 10.0
"""The maximum seconds for which a worker waits for the database. A lease applies if it is shorter."""
_TRIES = 4
"""The number of waits, within the time above, after which the database counts as lost."""

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
                f"`--store postgresql://host/name`. Without PostgreSQL, use `acorn batch` instead."
            )
        self.agents: Mapping[str, Any] = agents_by_name(agents)
        self.store, self.concurrency = store, concurrency
        self.running: set[str] = set()
        """The ids of the runs that this worker drives."""
        self.last_answer = time.monotonic()
        """The time when the database last answered."""
        self._report_line, self._report_run = report_line, report_run
        self._patience = _LEASES_OF_MISFIT * lease_seconds() if patience is None else patience
        """Seconds to wait for another worker to drive a run that does not fit its class in this worker."""
        self._misfits: dict[str, float] = {}
        """A dict that maps the ids of runs that do not fit their classes to the times of the first attempts."""
        self._stop, self._wake = threading.Event(), asyncio.Event()
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="acorn-run")

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def is_healthy(self) -> bool:
        """Whether the worker accepts new runs: False if the worker is stopping or its database does not answer."""
        return not self.is_stopping and time.monotonic() - self.last_answer < lease_seconds() + _POLL

    def stop(self) -> None:
        """Stop accepting runs.

        Runs in progress stop at their next commit and return to the queue, so that another worker can drive them.
        """
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        """Drive runs until `stop` is called.

        Wait for a database that does not answer. Raise `StoreError` if the store cannot be used, for example because
        the database refuses the user.
        """
        store = self.store
        if not await self._register():
            return
        start_heartbeat(store, "")  # The worker sends heartbeats even while it drives no run.
        loop = asyncio.get_running_loop()

        def wake(*_: object) -> None:
            with suppress(RuntimeError):  # The loop may be closed.
                loop.call_soon_threadsafe(self._wake.set)

        unsubscribe = store.on_new_job(wake)
        names = ", ".join(f"`{name}`" for name in self.agents)
        self._report_line(f"working on {names} of {store.name}, {self.concurrency} at a time")
        work, recovery = asyncio.ensure_future(self._work(wake)), asyncio.ensure_future(self._recover())
        try:
            await asyncio.wait({work, recovery}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                recovery.result()
                raise StuckWorkerError(f"{store.name} does not answer.")
            work.result()
        finally:
            recovery.cancel()
            unsubscribe()
            stop_heartbeat(store, "")

    async def _register(self) -> bool:
        """Register this worker in its store, and return False if `stop` was called before."""
        has_reported = False
        while not self.is_stopping:
            self._wake.clear()
            try:
                await asyncio.to_thread(self._register_once)
            except StoreUnreachableError as error:
                if not has_reported:
                    self._report_line(f"{error} The worker waits and tries again.")
                has_reported = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), _RECONNECT)
            else:
                self.last_answer = time.monotonic()
                return True
        return False

    def _register_once(self) -> None:
        self.store.prepare_engine()
        self.store.renew_lease(this_process(), lease_seconds())
        self.store.register_worker(this_process(), list(self.agents), self.concurrency)

    async def _work(self, wake: Callable[..., object]) -> None:
        """Drive delivered runs until `stop` is called and the runs in progress have ended."""
        while not self.is_stopping:
            self._wake.clear()
            run_id = await self._next_delivery() if len(self.running) < self.concurrency else None
            if run_id is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._pause())
            elif run_id not in self.running:
                self.running.add(run_id)
                self._pool.submit(self._perform, run_id).add_done_callback(wake)
        await asyncio.to_thread(self._pool.shutdown)
        with suppress(StoreError):
            await asyncio.to_thread(self.store.unregister_worker, this_process())

    def _pause(self) -> float:
        return min(lease_seconds() / 4, _POLL)

    async def _next_delivery(self) -> str | None:
        try:
            return await asyncio.to_thread(self.store.next_delivery, list(self.agents))
        except StoreError:  # `_recover` reports that the database does not answer.
            await asyncio.sleep(_RECONNECT)
            return None

    async def _recover(self) -> None:
        """Every few seconds, add jobs for the runs of dead workers and for runs whose job was lost.

        Return if the worker is stopping and its database does not answer, so that the worker is stuck.
        """
        asking: asyncio.Task[Sequence[str]] | None = None
        unanswered = 0
        while unanswered < _TRIES or not self.is_stopping:
            if asking is None:
                asking = asyncio.create_task(
                    asyncio.to_thread(self.store.requeue_lost, list(self.agents), lease_seconds())
                )
            # While this process is frozen, a wait passes without a failure. Therefore several waits must fail.
            await asyncio.wait({asking}, timeout=min(lease_seconds(), _GRACE) / _TRIES)
            if asking.done() and asking.exception() is None:
                unanswered, self.last_answer = 0, time.monotonic()
                if lost := len(asking.result()):
                    runs = "1 run without a worker is" if lost == 1 else f"{lost} runs without a worker are"
                    self._report_line(f"{runs} delivered again")
            else:
                unanswered += 1
                if unanswered == _TRIES:
                    self._report_line(f"{self.store.name} does not answer, and the worker tries again")
            if asking.done():
                asking = None
                await asyncio.sleep(self._pause())

    # A run

    def _perform(self, run_id: str) -> None:
        """Drive a run. If the run does not end here, the store delivers it again after a lease."""
        started, name = time.monotonic(), ""
        ended: Ended | None = None
        message = ""

        def find(agent_name: str) -> Any:
            nonlocal name
            name = agent_name
            return self.agents.get(agent_name)

        try:
            ended = perform(self.store, run_id, find, stop=self._stop)
            self._misfits.pop(run_id, None)
        except BaseException as error:  # A tool may have called `sys.exit()`, for example.
            message = describe_error(error)
            with suppress(StoreError):
                if self._fail(run_id, name, error):
                    ended = "failed"
        finally:
            self.running.discard(run_id)
            self._report_run(run_id, name, ended, time.monotonic() - started, message)

    def _fail(self, run_id: str, name: str, error: BaseException) -> bool:
        """Set a run to `failed` if delivering it again cannot help, and return True."""
        if not isinstance(error, Exception):  # A new delivery would repeat the call.
            message = f"Run {run_id} tried to exit its worker ({describe_error(error)})."
            return self.store.fail_undriven(run_id, message)
        if not isinstance(error, MisfitError):
            return False
        since = self._misfits.setdefault(run_id, time.monotonic())
        if time.monotonic() - since < self._patience:  # Another worker with a matching class may still drive the run.
            return False
        del self._misfits[run_id]
        return self.store.fail_undriven(
            run_id,
            f"Run {run_id} does not fit the class `{name}` of any worker. Start workers with a class that fits the "
            f"run, and try the run again with `acorn resume {run_id} --agent FILE:CLASS` or "
            f"`map(..., queue=True, retry_failed=True)`. "
            f"{' '.join(str(error).split())}",
        )
