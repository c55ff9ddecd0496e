"""The command `acorn work`, which starts a worker. The worker executes submitted runs until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from acorn.cli.options import ConcurrencyOption, DebugOption, StoredRunsOption
from acorn.cli.output import (
    FAILED,
    INTERRUPTED,
    SUCCESS,
    CommandError,
    error_message,
    one_line,
    plural,
    seconds_text,
    write_line,
)
from acorn.cli.targets import STORE_VARIABLE, Agent, choose_store, load_agent, open_chosen_store, short_id
from acorn.types import JsonObject

if TYPE_CHECKING:
    from acorn.durable.worker import Worker
    from acorn.stores import Store

_REPEAT_SECONDS = 0.5
"""Seconds in which a repeated signal counts as one: some supervisors signal the process and also its group."""


def work(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="FILE_OR_MODULE[:CLASS]...", help="The Python files or modules with the agents."),
    ],
    store: StoredRunsOption = None,
    concurrency: ConcurrencyOption = 8,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve `GET /health` on this port, for all network addresses unless HOST is set.",
        ),
    ] = None,
    debug: DebugOption = False,
) -> int:
    """Start a worker, which drives the runs of these modules that were submitted to a PostgreSQL store.

    Ctrl-C or SIGTERM stops the worker. The worker then starts no new runs, and its runs stop at their next commit and
    return to the queue. A second signal, or a database that does not respond, stops the worker immediately.
    """
    address = None if health is None else _parse_address(health)
    opened_store = _open_postgres(store)
    agents = [load_agent(target, once=True) for target in targets]
    try:
        _work(agents, opened_store, concurrency, address)
    except OSError as error:
        raise CommandError(f"Cannot serve `--health {health}`: {error.strerror or error}") from error
    return SUCCESS


def _open_postgres(store: str | None) -> Store:
    chosen_store = choose_store(store)
    if chosen_store is None or "://" not in chosen_store:
        problem = "there is no store here" if chosen_store is None else f"`{chosen_store}` is another kind of store"
        raise CommandError(
            f"Workers need a PostgreSQL store, but {problem}. Use `--store postgresql://user@host/name`, or set the "
            f"environment variable `{STORE_VARIABLE}`. Without PostgreSQL, use `acorn batch` instead."
        )
    return open_chosen_store(chosen_store)


def _work(agents: Sequence[Agent], store: Store, concurrency: int, address: tuple[str | None, int] | None) -> None:
    from acorn.durable.worker import StuckWorkerError, Worker, serve_health

    worker = Worker(agents, store, concurrency, report_line=write_line, report_run=_print_run)

    async def serve() -> None:
        _handle_signals(worker)
        async with AsyncExitStack() as stack:
            if address is not None:
                health = serve_health(*address, lambda: (worker.is_healthy, _health(worker)))
                write_line(f"health on port {await stack.enter_async_context(health)}")
            try:
                await worker.run()
            except StuckWorkerError as error:
                count = plural(len(worker.running), "run")
                hint = " Another worker resumes these runs from their last commit when the database responds again."
                write_line(
                    f"error: {error_message(error)} Stopped with {count} in progress.{hint if worker.running else ''}"
                )
                os._exit(FAILED)  # Threads that wait for the database would keep the process alive.
        write_line("stopped")

    asyncio.run(serve())


def _handle_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    stopped_at = 0.0

    def stop(code: int) -> None:
        nonlocal stopped_at
        if worker.is_stopping and time.monotonic() > stopped_at + _REPEAT_SECONDS:
            os._exit(code)
        if worker.is_stopping:
            return
        stopped_at = time.monotonic()
        worker.stop()
        write_line(
            f"stopping: {plural(len(worker.running), 'run')} in progress (repeat the signal to stop immediately)"
        )

    for name, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 128 + signal.SIGTERM)):
        loop.add_signal_handler(name, stop, code)


def _health(worker: Worker) -> JsonObject:
    state = "stopping" if worker.is_stopping else "ok" if worker.is_healthy else "no database"
    return {
        "status": state,
        "agents": list(worker.agents),
        "running": len(worker.running),
        "concurrency": worker.concurrency,
    }


def _print_run(run_id: str, agent: str, status: str | None, seconds: float, reason: str) -> None:
    name = agent.rpartition(":")[2]
    write_line(
        f"{status or 'requeued':<9} {one_line(short_id(run_id), 60)}  {one_line(name, 40)}  {seconds_text(seconds)}"
        f"{f'  {one_line(reason)}' if reason else ''}"
    )


def _parse_address(text: str) -> tuple[str | None, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise CommandError(f"`--health {text}` is not a valid port. Use a port such as `8080` or `127.0.0.1:8080`.")
    return host.strip("[]") or None, int(port)
