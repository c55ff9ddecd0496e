"""The commands that run until they are stopped: `acorn serve`, `acorn web`, `acorn mcp` and `acorn work`.

The servers of `acorn serve` (HTTP) and `acorn web` (a page) accept connections from this machine only, unless `--host`
sets another address. `acorn mcp` serves agents to MCP clients. `acorn work` starts a worker, which executes submitted
runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Sequence
from contextlib import nullcontext
from html import escape
from importlib.util import find_spec
from pathlib import Path
from socket import socket as Socket  # noqa: N812 - the class of the socket module
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from acorn._inside import tools_that_ask
from acorn.cli import targets
from acorn.cli.errors import CommandError, ExitCode, error_message, os_errors
from acorn.cli.options import ConcurrencyOption, DebugOption, ModelOption, StoredRunsOption, StoreOption, Target
from acorn.cli.output import write_line
from acorn.cli.targets import Agent, change_settings, choose_store, short_id
from acorn.cli.text import one_line, plural, seconds_text
from acorn.stores import MemoryStore
from acorn.stores.port import Store
from acorn.types import JsonObject
from acorn.web.key_variables import APPROVER_KEYS_VARIABLE, KEYS_VARIABLE

if TYPE_CHECKING:
    from acorn.durable.worker import Worker

SERVICE_PORT = 2679
PAGE_PORT = 2678
_REPEAT_SECONDS = 0.5
"""Seconds in which a repeated signal counts as one: some supervisors signal the process and also its group."""
_PORT_HELP = "The port, or 0 for any free port. Default: {}, or the next free port."

HostOption = Annotated[str, typer.Option(help="The network address to listen on.")]
AllowHostOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Another host name under which clients reach the server.")
]
ServicePort = Annotated[int | None, typer.Option("--port", min=0, max=65535, help=_PORT_HELP.format(SERVICE_PORT))]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]KEY",
        help=f"A key that clients must send. Can be repeated. Default: `{KEYS_VARIABLE}`, or a new key.",
    ),
]
NoKeyOption = Annotated[
    bool, typer.Option("--no-key", help="Accept requests without a key. Works on this machine only.")
]
PagePort = Annotated[int | None, typer.Option("--port", min=0, max=65535, help=_PORT_HELP.format(PAGE_PORT))]


def serve(
    target: Target,
    port: ServicePort = None,
    key: KeyOption = None,
    approver_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]KEY",
            help="A key of a person who may answer requests. Can be repeated. "
            f"`{APPROVER_KEYS_VARIABLE}` is the default.",
        ),
    ] = None,
    no_key: NoKeyOption = False,
    model: ModelOption = None,
    store: StoreOption = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="The maximum duration of a run in seconds.")] = 600.0,
    concurrency: Annotated[
        int, typer.Option(min=1, help="The number of concurrent runs. Further requests get the status 429.")
    ] = 256,
    max_body: Annotated[
        int | None,
        typer.Option(min=1, help="The maximum number of bytes of a request. Default: 1000000, and more for media."),
    ] = None,
    host: HostOption = "127.0.0.1",
    allow_host: AllowHostOption = None,
    behind_tls: Annotated[
        bool, typer.Option("--behind-tls", help="A proxy with TLS is in front of the server.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Print risky settings and exit, with the code 1 if there are any.")
    ] = False,
    debug: DebugOption = False,
) -> int:
    """Serve an agent over HTTP, with JSON input and output and with OpenAI's chat completions API."""
    _require_web_extra("serve")
    from acorn.web import guard, server
    from acorn.web.serve import app
    from acorn.web.serve.risks import find_risks

    is_local = _url_host(host) in guard.LOOPBACK
    keys = guard.configured_keys(key or [], "`acorn serve`")
    _check_no_key(keys, is_off=no_key, is_local=is_local)
    new_keys = [] if keys or no_key else [guard.new_key()]
    approver_keys = guard.configured_keys(approver_key or [], "`acorn serve`", APPROVER_KEYS_VARIABLE, is_approver=True)
    agent = targets.load_agent(target)
    chosen_store = choose_store(store, agent.store)
    opened_store = None if chosen_store is None else targets.open_checked_store(chosen_store)
    agent = change_settings(agent, model=model, store=opened_store)
    if new_keys and not approver_keys and tools_that_ask(agent):
        new_keys.append(guard.new_key(is_approver=True))
    served = app.Service(agent, [*keys, *approver_keys, *new_keys], timeout, concurrency, max_body=max_body)
    risks = [
        *find_risks(agent, opened_store, served.keys, is_local=is_local, has_tls=behind_tls, is_new_key=bool(new_keys))
    ]
    options = {KEYS_VARIABLE: ("--key", key), APPROVER_KEYS_VARIABLE: ("--approver-key", approver_key)}
    for variable, (option, values) in options.items():
        if values:
            risks.append(
                f"Other users of this machine can read `{option}` in the list of processes. Set `{variable}` instead."
            )
    for risk in risks:
        write_line(f"{'risk' if check else 'warning'}: {risk}")
    if check:
        if not risks:
            write_line("No risky settings were found.")
        return ExitCode.FAILED if risks else ExitCode.SUCCESS
    socket, address, names = _listen(host, port, SERVICE_PORT, allow_host, has_tls_hint=False)
    write_line(f"acorn serve: {address}")
    for each in new_keys:
        write_line(f"{'approver key' if each.is_approver else 'key'}: {each.value}")
    write_line("Press Ctrl-C to stop.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.ERROR)
    logging.getLogger("acorn").addHandler(handler)
    with served.agent:  # Open the tool sources once instead of once per request.
        server.serve(app.service_app(served, names), served.close, socket, grace=app.GRACE + 2)
    return ExitCode.SUCCESS


def _check_no_key(keys: object, *, is_off: bool, is_local: bool) -> None:
    """Raise a `CommandError` if the option `--no-key` (`is_off`) does not fit the other options."""
    if is_off and keys:
        raise CommandError(f"`--no-key` cannot be combined with `--key` or `{KEYS_VARIABLE}`. Remove one of them.")
    if is_off and not is_local:
        raise CommandError("`--no-key` allows only connections from this machine. Remove `--host` or `--no-key`.")


def web(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE_OR_MODULE[:CLASS]|RUN.json...]",
            help="A module, or files with saved runs. Without a module or files, the page shows the runs of the store.",
        ),
    ] = None,
    store: StoredRunsOption = None,
    no_store: Annotated[bool, typer.Option("--no-store", help="Store the runs only in memory.")] = False,
    model: ModelOption = None,
    port: PagePort = None,
    host: HostOption = "127.0.0.1",
    allow_host: AllowHostOption = None,
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    debug: DebugOption = False,
) -> None:
    """Open a web page on which you run an agent and inspect its runs.

    Only browsers that open the printed address, which contains a key, can use the page.
    """
    _require_web_extra("web")
    from acorn.web import server
    from acorn.web.page import routes, run_index
    from acorn.web.page.site import make_site

    if store is not None and no_store:
        raise CommandError("`--store` and `--no-store` cannot be combined. Remove one of them.")
    files = _run_files(sources or [])
    agent = change_settings(targets.load_agent(sources[0]), model=model) if sources and not files else None
    try:
        if len(files) == 1:
            run_index.load_saved_run(files[0])  # Report an error in a single file before the server starts.
        site = make_site(agent, None if files else MemoryStore() if no_store else _page_store(store, agent), files)
    except OSError as error:
        raise CommandError(error_message(error)) from error
    key = secrets.token_urlsafe(32)
    socket, address, names = _listen(host, port, PAGE_PORT, allow_host)
    path = "/" if agent is not None else "/fleet" if site.has_fleet else "/runs/"
    write_line(f"acorn web: {address}/login?key={key}{'' if path == '/' else f'&next={quote(path)}'}")
    write_line("Press Ctrl-C to stop.")
    redirect = _open_in_browser(f"{address}/login?key={key}&next={quote(path)}") if open_it else None
    try:
        server.serve(routes.page_app(site, names, key), site.close, socket)
    finally:
        for live in tuple(site.live_runs.values()):
            live.thread.join(1.0)
        if redirect is not None:
            redirect.unlink(missing_ok=True)


def _run_files(sources: Sequence[str]) -> list[Path]:
    """Return the files with saved runs, including the JSON files in directories.

    The list is empty if the target is an agent.
    """
    saved = [Path(target) for target in sources if target.endswith(".json") or Path(target).is_dir()]
    if not saved and len(sources) > 1:
        raise CommandError("`acorn web` accepts only one agent. Start the command once for each agent.")
    if saved and len(saved) < len(sources):
        raise CommandError("`acorn web` accepts either an agent or files with runs, but not both.")
    files = [file for path in saved for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    for file in files:
        if not file.is_file():
            raise CommandError(f"There is no file `{file}`. Use a file from `acorn run --save` or `run.to_json()`.")
    if saved and not files:
        raise CommandError(f"There is no `.json` file in `{saved[0]}`. Use a directory with saved runs.")
    return files


def _page_store(option: str | None, agent: Agent | None) -> Store:
    """Open the store that the page uses. Without an agent, the page starts no runs, so a chosen store must exist."""
    if agent is None and choose_store(option) is not None:
        return targets.open_chosen_store(option)
    chosen = choose_store(option, None if agent is None else agent.store)
    return targets.open_checked_store(chosen or targets.create_default_store())


def _open_in_browser(address: str) -> Path:
    """Open the page in the browser through a temporary HTML file that redirects to the page.

    All users can see the arguments of a process. The argument of the browser is then the path of the file, and not the
    URL of the page, which contains the access key.
    """
    # Only the current user can read the file.
    with tempfile.NamedTemporaryFile("w", prefix="acorn-", suffix=".html", delete=False, encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(address, quote=True)}">\n')
    path = Path(file.name)
    webbrowser.open(path.as_uri())
    return path


def mcp(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE[:CLASS] ...", help="Python files or modules. Add `:CLASS` if a file has several agents."
        ),
    ],
    http: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve over HTTP on this port of this machine instead. 0 chooses a free port.",
        ),
    ] = None,
    key: KeyOption = None,
    no_key: NoKeyOption = False,
    debug: DebugOption = False,
) -> None:
    """Serve modules to MCP clients, such as editors, chat programs and other agents.

    Each module becomes a tool with the name of its class. The server uses standard input and output, so configure your
    client with the command "acorn mcp agent.py". The server stops when the client closes the connection, or after
    Ctrl-C. Over HTTP, clients must send a key, as for `acorn serve`.
    """
    from acorn.mcp import serve_to

    if http is None and (key or no_key):
        raise CommandError("`--key` and `--no-key` are for a server with `--http`. Add `--http`, or remove the key.")
    _check_no_key(key or os.environ.get(KEYS_VARIABLE), is_off=no_key, is_local=True)
    out = context.obj.reserve_stdout()  # The user's code may print, even while it is imported.
    agents = [targets.load_agent(target, once=True) for target in sources]
    serve_to(agents, http, out, [] if no_key else key or None)


def _require_web_extra(command: str) -> None:
    """Raise a `CommandError` if a package of the extra `web` is missing."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise CommandError(
            f"`acorn {command}` needs the extra `web`, which is not installed. Run: pip install 'acorn-agents[web]'"
        )


def _listen(
    host: str, port: int | None, default: int, allowed: Sequence[str] | None, *, has_tls_hint: bool = True
) -> tuple[Socket, str, list[str]]:
    """Open the socket of a server. Return the socket, its address and the host names that requests may contain.

    Without a port, use the default port or the next free port. Print a warning if other machines can reach the server.
    """
    from acorn.web.guard import LOOPBACK
    from acorn.web.server import bind_socket

    number = default if port is None else port
    with os_errors(f"Cannot listen on {host}:{number}"):
        socket = bind_socket(host, number, is_exact=port is not None)
    name, names = _url_host(host), [*LOOPBACK, *(allowed or [])]
    if name not in LOOPBACK:
        names.append(name)
        tls_hint = " The connection is not encrypted. Put a proxy with TLS in front of the server."
        write_line(
            f"warning: other machines can reach {host}. The server accepts requests to {', '.join(names)} with a key."
            f"{tls_hint if has_tls_hint else ''}"
        )
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else name
    return socket, f"http://{shown}:{socket.getsockname()[1]}", names


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# The worker


def work(
    sources: Annotated[
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
) -> None:
    """Start a worker, which drives the runs of these modules that were submitted to a PostgreSQL store.

    Ctrl-C or SIGTERM stops the worker. The worker then starts no new runs, and its runs stop at their next commit and
    return to the queue. A second signal, or a database that does not respond, stops the worker immediately.
    """
    address = None if health is None else _parse_address(health)
    opened_store = targets.open_chosen_store(store)
    agents = [targets.load_agent(target, once=True) for target in sources]
    with os_errors(f"Cannot serve `--health {health}`"):
        asyncio.run(_work(agents, opened_store, concurrency, address))


async def _work(
    agents: Sequence[Agent], store: Store, concurrency: int, address: tuple[str | None, int] | None
) -> None:
    from acorn.durable.worker import StuckWorkerError, Worker, serve_health

    worker = Worker(agents, store, concurrency, report_line=write_line, report_run=_report_run)
    _handle_signals(worker)
    health = None if address is None else serve_health(*address, lambda: (worker.is_healthy, _health(worker)))
    async with health or nullcontext() as port:
        if port is not None:
            write_line(f"health on port {port}")
        try:
            await worker.run()
        except StuckWorkerError as error:
            write_line(
                f"error: {error_message(error)} Stopped with {plural(len(worker.running), 'run')} in progress. "
                f"Another worker resumes its runs from their last commit when the database responds again."
            )
            os._exit(ExitCode.FAILED)  # Threads that wait for the database would keep the process alive.
    write_line("stopped")


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

    for name, code in ((signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)):
        loop.add_signal_handler(name, stop, code)


def _health(worker: Worker) -> JsonObject:
    state = "stopping" if worker.is_stopping else "ok" if worker.is_healthy else "no database"
    return {
        "status": state,
        "agents": list(worker.agents),
        "running": len(worker.running),
        "concurrency": worker.concurrency,
    }


def _report_run(run_id: str, agent: str, status: str | None, seconds: float, reason: str) -> None:
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
