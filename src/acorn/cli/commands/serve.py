"""`acorn serve`, `acorn web` and `acorn mcp`: an agent as an HTTP service, as a web page, or as an MCP server.

All of them listen on this machine only, unless `--host` says otherwise.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import tempfile
import webbrowser
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from acorn import AcornError, StoreError
from acorn.cli.options import OPTION_HELP
from acorn.cli.output import FAILED, SUCCESS, CommandError, error_message, write_line
from acorn.cli.targets import (
    DEFAULT_STORE,
    STORE_HELP,
    Agent,
    choose_store,
    load_agent,
    open_checked_store,
    open_chosen_store,
)
from acorn.stores.memory import MemoryStore
from acorn.stores.port import Store

SERVICE_PORT = 2679
PAGE_PORT = 2678
KEYS_VARIABLE = "ACORN_SERVE_KEYS"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MIN_KEY_LENGTH = 8

Host = Annotated[str, typer.Option("--host", help="The address to listen on.")]


def serve(
    target: Annotated[
        str, typer.Argument(metavar="FILE_OR_MODULE[:CLASS]", help="The file or the name of the module.")
    ],
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help=f"The port; 0 for any free one. Default: {SERVICE_PORT}, or the next free one.",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", help=f"A key that clients send. Repeatable. Default: the keys in `{KEYS_VARIABLE}`, or a new one."
        ),
    ] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Require no key; on this machine only.")] = False,
    model: Annotated[str | None, typer.Option("--model", help=OPTION_HELP["model"])] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="FILE|URL", help=OPTION_HELP["store"])] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="The maximum seconds of a run.")] = 600.0,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="The number of concurrent runs. Further ones get status 429.")
    ] = 256,
    host: Host = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="Another host name of the service.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help=OPTION_HELP["debug"])] = False,
) -> int:
    """Serve an agent over HTTP, with its input and output as JSON and with OpenAI's chat completions."""
    with _require_web_extra("serve"):
        from acorn.web import guard, server
        from acorn.web.serve import app, service
    if not timeout > 0:
        raise CommandError(f"`--timeout` must be a number of seconds above 0, got {timeout:g}.")
    is_loopback = host in _LOOPBACK
    given_keys = _read_keys(key or [], is_off=no_key, is_loopback=is_loopback)
    keys = given_keys or ([] if no_key else [secrets.token_urlsafe(32)])
    agent = _load_service_agent(target, model, store, debug)
    try:
        served = service.Service(agent, keys, timeout, concurrency)
    except AcornError as error:
        raise CommandError(error_message(error), debug=debug) from error
    with _listen_errors(host, SERVICE_PORT if port is None else port):
        socket = server.bind_socket(host, SERVICE_PORT if port is None else port, is_exact=port is not None)
    bracketed = _bracket_ipv6(host)
    names = [*guard.LOOPBACK, *(allow_host or []), *([] if is_loopback else [bracketed])]
    shown_host = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else bracketed
    write_line(f"acorn serve: http://{shown_host}:{socket.getsockname()[1]}")
    if not is_loopback:
        write_line(
            f"warning: other machines can reach {host}. The service accepts requests to {', '.join(names)} with a key. "
            f"The connection is not encrypted: put a server with TLS in front of it."
        )
    if keys and not given_keys:
        write_line(f"key: {keys[0]}")
    write_line("Press Ctrl-C to stop.")
    logger = logging.getLogger("acorn")
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.ERROR)
    logger.addHandler(handler)
    try:
        with agent:  # Opens the tool sources once, and not for each request.
            server.serve(app.service_app(served, names, keys), served.close, socket, grace=service.GRACE + 2)
    except AcornError as error:
        raise CommandError(error_message(error), debug=debug) from error
    finally:
        logger.removeHandler(handler)
    return SUCCESS


def _read_keys(options: Sequence[str], *, is_off: bool, is_loopback: bool) -> list[str]:
    """Read the keys from the options or the environment and check them."""
    keys = list(options) or os.environ.get(KEYS_VARIABLE, "").replace(",", " ").split()
    if is_off and keys:
        raise CommandError(f"`--no-key` cannot be combined with `--key` or `{KEYS_VARIABLE}`.")
    if is_off and not is_loopback:
        raise CommandError("`--no-key` works on this machine only. Remove `--host` or `--no-key`.")
    for key in keys:
        if len(key) < _MIN_KEY_LENGTH or not (key.isascii() and key.isprintable()) or " " in key:
            raise CommandError(
                f"A key must have at least {_MIN_KEY_LENGTH} ASCII letters, digits or symbols, without spaces."
            )
    return keys


def _load_service_agent(target: str, model: str | None, store: str | None, debug: bool) -> Agent:
    agent = load_agent(target, debug=debug)
    chosen_store = choose_store(store, agent.store)
    settings = {"model": model, "store": None if chosen_store is None else open_checked_store(chosen_store)}
    changes = {name: value for name, value in settings.items() if value is not None}
    try:
        return agent.using(**changes) if changes else agent
    except AcornError as error:
        raise CommandError(error_message(error), debug=debug) from error


def web(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE_OR_MODULE[:CLASS]|RUN.json...]",
            help="The module, or files of saved runs. Without either, the page shows the runs of the store.",
        ),
    ] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="FILE|URL", help=STORE_HELP)] = None,
    no_store: Annotated[bool, typer.Option("--no-store", help="Keep the runs in memory only.")] = False,
    model: Annotated[str | None, typer.Option("--model", help=OPTION_HELP["model"])] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help=f"The port; 0 for any free one. Default: {PAGE_PORT}, or the next free one.",
        ),
    ] = None,
    host: Host = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="Another host name of the page.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    debug: Annotated[bool, typer.Option("--debug", help=OPTION_HELP["debug"])] = False,
) -> int:
    """Run an agent on a web page and inspect every run.

    The page accepts only browsers that have the key in its address.
    """
    with _require_web_extra("web"):
        from acorn.web import guard, server
        from acorn.web.page import routes, run_index
        from acorn.web.page.site import make_site
    if store is not None and no_store:
        raise CommandError("`--store` and `--no-store` cannot be combined.")
    files = _run_files(targets or [])
    agent: Agent | None = None
    try:
        if files:
            if len(files) == 1:
                run_index.load_saved_run(files[0])  # Reports an error in a single file before the server starts.
            site = make_site(None, None, files)
        else:
            agent = None if not targets else _load_page_agent(targets, model, debug)
            site = make_site(agent, MemoryStore() if no_store else _page_store(store, agent))
    except (StoreError, OSError) as error:
        raise CommandError(error_message(error), debug=debug) from error
    key = secrets.token_urlsafe(32)
    with _listen_errors(host, PAGE_PORT if port is None else port):
        socket = server.bind_socket(host, PAGE_PORT if port is None else port, is_exact=port is not None)
    is_loopback = host in _LOOPBACK
    names = [*guard.LOOPBACK, *(allow_host or []), *([] if is_loopback else [_bracket_ipv6(host)])]
    if not is_loopback:
        write_line(
            f"warning: other machines can reach the page on {host}. It accepts requests to {', '.join(names)} with "
            f"the key."
        )
    shown_host = "127.0.0.1" if is_loopback or host in ("0.0.0.0", "::") else _bracket_ipv6(host)
    address = f"http://{shown_host}:{socket.getsockname()[1]}"
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
    return SUCCESS


def _run_files(targets: Sequence[str]) -> list[Path]:
    """Return the files of saved runs among the targets; none if the target is an agent."""
    files: list[Path] = []
    for target in targets:
        path = Path(target)
        if path.is_dir():
            files += sorted(path.glob("*.json"))
        elif target.endswith(".json"):
            if not path.is_file():
                raise CommandError(f"There is no file `{target}`.")
            files.append(path)
    if files and not all(target.endswith(".json") or Path(target).is_dir() for target in targets):
        raise CommandError("Give an agent or files of runs, not both.")
    if not files and targets and all(Path(target).is_dir() for target in targets):
        raise CommandError(f"There is no `.json` file in `{targets[0]}`.")
    return files


def _load_page_agent(targets: Sequence[str], model: str | None, debug: bool) -> Agent:
    if len(targets) > 1:
        raise CommandError("The page shows one agent. Start `acorn web` again for the other one.")
    agent = load_agent(targets[0], debug=debug)
    try:
        return agent if model is None else agent.using(model=model)
    except AcornError as error:
        raise CommandError(error_message(error), debug=debug) from error


def _page_store(option: str | None, agent: Agent | None) -> Store | str:
    """Return the store of the page; create the folder of the default store if there is no store.

    Without an agent, the store must exist, because the page adds no runs to it.
    """
    chosen_store = choose_store(option, None if agent is None else agent.store)
    if chosen_store is not None:
        return open_checked_store(chosen_store if agent is not None else open_chosen_store(option))
    folder = DEFAULT_STORE.parent
    folder.mkdir(mode=0o700, exist_ok=True)
    gitignore = folder / ".gitignore"
    if not gitignore.exists():
        gitignore.write_text("*\n", encoding="utf-8")
    return str(DEFAULT_STORE)


def _open_in_browser(address: str) -> Path | None:
    """Open the page by a file that redirects to it, so that the key is not in the list of processes."""
    descriptor, name = tempfile.mkstemp(prefix="acorn-", suffix=".html")  # Only this user can read it.
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(address, quote=True)}">\n')
    path = Path(name)
    try:
        webbrowser.open(path.as_uri())
    except (webbrowser.Error, OSError) as error:
        sys.stderr.write(f"cannot open a browser: {error}\n")
    return path


def mcp(
    context: typer.Context,
    targets: Annotated[
        list[str],
        typer.Argument(metavar="FILE[:CLASS] ...", help="Files or modules, each with a class if it has several."),
    ],
    http: Annotated[
        int | None,
        typer.Option(
            "--http", min=0, max=65535, metavar="PORT", help="Serve over HTTP on this machine instead; 0 for any port."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Serve modules to MCP clients, such as editors, chat programs and other agents.

    Each module is a tool with the name of its class. The server uses standard input and output. Give clients the
    command "acorn mcp agent.py". The server stops when the client closes the connection, or with Ctrl-C.
    """
    from acorn.mcp import serve_to

    out = context.obj.reserve_stdout()  # The user's code may print, from its import on.
    agents = [load_agent(target, debug=debug, once=True) for target in targets]
    try:
        serve_to(agents, http, out)
    except AcornError as error:
        raise CommandError(error_message(error), FAILED, debug=debug) from error
    return SUCCESS


@contextmanager
def _require_web_extra(command: str) -> Generator[None]:
    """Report a missing package of the extra `web`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise CommandError(f"`acorn {command}` needs the extra `web`: pip install 'acorn-agents[web]'") from error


@contextmanager
def _listen_errors(host: str, port: int) -> Generator[None]:
    """Report that the address cannot be used."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"Cannot listen on {host}:{port}: {error.strerror or error}", FAILED) from error


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host
