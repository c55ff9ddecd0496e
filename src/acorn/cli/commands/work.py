"""`acorn work`: a worker of a fleet, which drives what was submitted, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acorn import AcornError
from acorn.cli.options import OWN
from acorn.cli.output import (
    FAILED,
    FINE,
    INTERRUPTED,
    CommandError,
    message_of,
    one_line,
    plural,
    seconds_text,
    write_line,
)
from acorn.cli.targets import STORE_HELP, VARIABLE, load, named_store, short, store_of

if TYPE_CHECKING:
    from acorn.durable.worker import Worker
    from acorn.stores import Store

_ONE_AND_THE_SAME = 0.5
"""Seconds in which a signal is not another one: some who start processes send it to the process and to its group."""


def work(
    targets: Annotated[list[str], typer.Argument(metavar="FILE_OR_MODULE[:CLASS]...", help="Where the modules are.")],
    store: Annotated[str | None, typer.Option("--store", metavar="URL", help=STORE_HELP)] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="How many runs at a time.")] = 8,
    health: Annotated[
        str | None,
        typer.Option(
            "--health", metavar="[HOST:]PORT", help="Answer `GET /health` there; on all addresses unless one is given."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help=OWN["debug"])] = False,
) -> int:
    """Drive the runs of these modules that were submitted to a PostgreSQL store.

    Ctrl-C and SIGTERM: no new runs; those under way stop at their next commit and go back to the queue. Once more, or
    while the database does not answer: without that.
    """
    address = None if health is None else _address(health)
    book = _postgres(store)
    agents = [load(each, debug=debug, once=True) for each in targets]
    try:
        from acorn.durable.worker import Worker

        worker = Worker(agents, book, concurrency, say=write_line, ran=_tell)
        asyncio.run(_serve(worker, address))
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    except OSError as error:
        raise CommandError(f"`--health {health}` cannot be served: {error.strerror or error}", debug=debug) from error
    return FINE


def _postgres(store: str | None) -> Store:
    named = named_store(store)
    if named is None or "://" not in named:  # whether there is such a file does not matter
        found = "there is no store here" if named is None else f"`{named}` is none"
        raise CommandError(
            f"workers need a PostgreSQL store, and {found}; say `--store postgresql://user@host/name`, or set "
            f"`{VARIABLE}`; without one, `acorn batch` drives many rows in one process"
        )
    return store_of(named)


async def _serve(worker: Worker, address: tuple[str | None, int] | None) -> None:
    from acorn.durable.worker import StuckWorkerError

    _obey_signals(worker)
    async with AsyncExitStack() as stack:
        if address is not None:
            from acorn.durable.worker import serve_health

            port = await stack.enter_async_context(serve_health(*address, lambda: (worker.is_well, _facts(worker))))
            write_line(f"health on port {port}")
        try:
            await worker.run()
        except StuckWorkerError as error:
            held = plural(len(worker.running), "run")
            rest = "each stands in the store at its last commit, and goes on elsewhere when the database is back"
            kept = f"; {rest}" if worker.running else ""
            write_line(f"error: {message_of(error)} Stopped without it: {held} under way{kept}.")
            os._exit(FAILED)  # what waits in threads would keep the process for long
    write_line("stopped")


def _obey_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    told = 0.0

    def stop(code: int) -> None:
        nonlocal told
        if worker.is_stopping and time.monotonic() > told + _ONE_AND_THE_SAME:
            os._exit(code)
        if worker.is_stopping:
            return
        told = time.monotonic()
        worker.stop()
        write_line(f"stopping: {plural(len(worker.running), 'run')} under way; once more stops at once")

    for name, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 128 + signal.SIGTERM)):
        loop.add_signal_handler(name, stop, code)


def _facts(worker: Worker) -> Mapping[str, Any]:
    state = "stopping" if worker.is_stopping else "ok" if worker.is_well else "no database"
    return {
        "status": state,
        "agents": list(worker.agents),
        "running": len(worker.running),
        "concurrency": worker.concurrency,
    }


def _tell(run_id: str, agent: str, ended: str | None, seconds: float, words: str) -> None:
    name = agent.rpartition(":")[2]
    end = ended or "back"
    write_line(
        f"{end:<9} {one_line(short(run_id), 60)}  {one_line(name, 40)}  {seconds_text(seconds)}"
        f"{f'  {one_line(words)}' if words else ''}"
    )


def _address(text: str) -> tuple[str | None, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise CommandError(f"`--health {text}` is no port; write one such as `8080` or `127.0.0.1:8080`")
    return host.strip("[]") or None, int(port)
