"""`acorn serve`: an agent as an HTTP service, on this machine alone unless told otherwise.

`acorn web`: the page of an agent, of a store, or of saved runs, on this machine alone unless told otherwise.

`acorn mcp`: modules as tools of MCP clients.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from acorn import AcornError, StoreError
from acorn.cli.options import OWN
from acorn.cli.output import FAILED, FINE, CommandError, message_of, write_line
from acorn.cli.targets import STORE_HELP, USUAL, Agent, load, named_store, store_of, usable_store
from acorn.stores.memory import MemoryStore

PORT = 2679
KEYS = "ACORN_SERVE_KEYS"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SHORTEST = 8


def serve(
    target: Annotated[str, typer.Argument(metavar="FILE_OR_MODULE[:CLASS]", help="Where the module is.")],
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help=f"0 is any; else {PORT}, or the next free one.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", help=f"A key that clients send; may be given again. Else those in `{KEYS}`, or a new one."
        ),
    ] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Ask for no key; on this machine alone.")] = False,
    model: Annotated[str | None, typer.Option("--model", help=OWN["model"])] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="FILE|URL", help=OWN["store"])] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that a run may take.")] = 600.0,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Runs at once; one more is refused with 429.")
    ] = 256,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A further name the service goes by.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help=OWN["debug"])] = False,
) -> int:
    """Serve an agent over HTTP: its input as JSON in, its output out, and OpenAI's chat completions."""
    try:
        from acorn.web.guard import LOOPBACK
        from acorn.web.serve.app import service_app
        from acorn.web.serve.service import GRACE, Service
        from acorn.web.server import bind_socket
        from acorn.web.server import serve as serve_on
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise CommandError("`acorn serve` needs the extra `web`: pip install 'acorn-agents[web]'") from error
    if not timeout > 0:
        raise CommandError(f"`--timeout` is a number of seconds above 0, got {timeout:g}")
    is_loopback = host in _LOOPBACK
    given = _keys(key or [], is_off=no_key, is_loopback=is_loopback)
    keys = given or ([] if no_key else [secrets.token_urlsafe(32)])
    agent = _agent(target, model, store, debug)
    try:
        service = Service(agent, keys, timeout, concurrency)
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    try:
        on = bind_socket(host, PORT if port is None else port, is_exact=port is not None)
    except OSError as error:
        where = f"{host}:{PORT if port is None else port}"
        raise CommandError(f"cannot listen on {where}: {error.strerror or error}", FAILED) from error
    number = on.getsockname()[1]
    own = f"[{host}]" if ":" in host else host
    names = [*LOOPBACK, *(allow_host or []), *([] if is_loopback else [own])]
    first = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else own
    write_line(f"acorn serve: http://{first}:{number}")
    if not is_loopback:
        write_line(
            f"warning: others may reach {host}; it answers to {', '.join(names)} and to whoever has a key, and what is "
            f"said can be read on the way: put a server with TLS before it"
        )
    if keys and not given:
        write_line(f"key: {keys[0]}")
    write_line("Ctrl-C ends it")
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.ERROR)
    logging.getLogger("acorn").addHandler(handler)
    try:
        with agent:  # sources of tools are opened once, and not anew for each request
            serve_on(service_app(service, names, keys), service.close, on, grace=GRACE + 2)
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    finally:
        logging.getLogger("acorn").removeHandler(handler)
    return FINE


def _keys(options: Sequence[str], *, is_off: bool, is_loopback: bool) -> list[str]:
    """The keys that were given."""
    keys = list(options) or os.environ.get(KEYS, "").replace(",", " ").split()
    if is_off and keys:
        raise CommandError(f"`--no-key` and keys by `--key` or `{KEYS}` exclude each other")
    if is_off and not is_loopback:
        raise CommandError("`--no-key` is for this machine alone: leave out `--host`, or `--no-key`")
    for key in keys:
        if len(key) < _SHORTEST or not (key.isascii() and key.isprintable()) or " " in key:
            raise CommandError(f"a key has at least {_SHORTEST} letters, digits or signs, without blanks")
    return keys


def _agent(target: str, model: str | None, store: str | None, debug: bool) -> Agent:
    agent = load(target, debug=debug)
    named = named_store(store, agent.store)
    wanted = {"model": model, "store": None if named is None else usable_store(named)}
    changes = {name: value for name, value in wanted.items() if value is not None}
    try:
        return agent.using(**changes) if changes else agent
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error


PAGE_PORT = 2678


def web(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE_OR_MODULE[:CLASS]|RUN.json...]",
            help="Where the module is, or files of saved runs; nothing shows the runs of the store alone.",
        ),
    ] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="FILE|URL", help=STORE_HELP)] = None,
    no_store: Annotated[bool, typer.Option("--no-store", help="Keep the runs in memory only.")] = False,
    model: Annotated[str | None, typer.Option("--model", help=OWN["model"])] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help=f"0 is any; else {PAGE_PORT}, or the next free one.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A further name the page goes by.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    debug: Annotated[bool, typer.Option("--debug", help=OWN["debug"])] = False,
) -> int:
    """Play with an agent on a page, and look at every run.

    The page is for this machine and for whoever has the key in its address.
    """
    try:
        from acorn.web.guard import LOOPBACK
        from acorn.web.page.routes import page_app
        from acorn.web.page.run_index import read_file
        from acorn.web.page.site import make_site
        from acorn.web.server import bind_socket, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise CommandError("`acorn web` needs the extra `web`: pip install 'acorn-agents[web]'") from error
    if store is not None and no_store:
        raise CommandError("`--store` and `--no-store` exclude each other")
    files = _files(targets or [])
    agent: Agent | None = None
    try:
        if files:
            if len(files) == 1:
                read_file(files[0])  # one file that cannot be shown is told at once
            site = make_site(None, None, files)
        else:
            agent = None if not targets else _page_agent(targets, model, debug)
            site = make_site(agent, MemoryStore() if no_store else _store(store, agent))
    except (StoreError, OSError) as error:
        raise CommandError(message_of(error), debug=debug) from error
    key = secrets.token_urlsafe(32)
    try:
        on = bind_socket(host, PAGE_PORT if port is None else port, is_exact=port is not None)
    except OSError as error:
        where = f"{host}:{PAGE_PORT if port is None else port}"
        raise CommandError(f"cannot listen on {where}: {error.strerror or error}", FAILED) from error
    number = on.getsockname()[1]
    is_loopback = host in ("127.0.0.1", "localhost", "::1")
    names = [*LOOPBACK, *(allow_host or []), *([] if is_loopback else [_bracketed(host)])]
    if not is_loopback:
        write_line(
            f"warning: the page listens on {host}, where others may reach it; it answers to "
            f"{', '.join(names)} and to whoever has the key"
        )
    first = "127.0.0.1" if is_loopback or host in ("0.0.0.0", "::") else _bracketed(host)
    address = f"http://{first}:{number}"
    goal = "/" if agent is not None else "/fleet" if site.has_fleet else "/runs/"
    write_line(f"acorn web: {address}/login?key={key}{'' if goal == '/' else f'&next={quote(goal)}'}")
    write_line("Ctrl-C ends it")
    opened = _open(f"{address}/login?key={key}&next={quote(goal)}") if open_it else None
    try:
        serve(page_app(site, names, key), site.close, on)
    finally:
        for live in tuple(site.live_runs.values()):
            live.thread.join(1.0)
        if opened is not None:
            opened.unlink(missing_ok=True)
    return FINE


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _files(targets: Sequence[str]) -> list[Path]:
    """The files of saved runs that are meant; none where an agent is."""
    found: list[Path] = []
    for target in targets:
        path = Path(target)
        if path.is_dir():
            found += sorted(path.glob("*.json"))
        elif target.endswith(".json"):
            if not path.is_file():
                raise CommandError(f"there is no file `{target}`")
            found.append(path)
    if found and len([target for target in targets if not (target.endswith(".json") or Path(target).is_dir())]):
        raise CommandError("give an agent, or files of runs, not both")
    if not found and targets and all(Path(target).is_dir() for target in targets):
        raise CommandError(f"there is no `.json` in `{targets[0]}`")
    return found


def _page_agent(targets: Sequence[str], model: str | None, debug: bool) -> Agent:
    if len(targets) > 1:
        raise CommandError("one agent at a time; start `acorn web` again for the other")
    agent = load(targets[0], debug=debug)
    try:
        return agent if model is None else agent.using(model=model)
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error


def _store(option: str | None, agent: Agent | None) -> Any:
    """The store of the page; the usual one is made where there is none, and any where there is an agent to fill it."""
    named = named_store(option, None if agent is None else agent.store)
    if named is not None:
        return usable_store(named if agent is not None else store_of(option))
    folder = USUAL.parent
    folder.mkdir(mode=0o700, exist_ok=True)
    ignored = folder / ".gitignore"
    if not ignored.exists():
        ignored.write_text("*\n", encoding="utf-8")
    return str(USUAL)


def _open(address: str) -> Path | None:
    """Open the page by a file that goes on to it: so the key is in no list of processes."""
    handle, name = tempfile.mkstemp(prefix="acorn-", suffix=".html")  # readable by this user alone
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(address, quote=True)}">\n')
    path = Path(name)
    try:
        webbrowser.open(path.as_uri())
    except (webbrowser.Error, OSError) as error:
        sys.stderr.write(f"no browser: {error}\n")
    return path


def mcp(
    context: typer.Context,
    targets: Annotated[
        list[str],
        typer.Argument(metavar="FILE[:CLASS] ...", help="Files or modules, each with the class where it has several."),
    ],
    http: Annotated[
        int | None,
        typer.Option(
            "--http", min=0, max=65535, metavar="PORT", help="Serve over HTTP on this machine instead; 0: any port."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Serve modules to MCP clients: editors, chat programs, other agents.

    Each is a tool named by its class. Over standard input and output, as clients start servers: the command to give
    them is "acorn mcp agent.py". It ends when the client closes its side, or with Ctrl-C.
    """
    from acorn.mcp.server import serve_to

    out = context.obj.set_aside()  # a file may print while it is imported, and from then on
    agents = [load(target, debug=debug, once=True) for target in targets]
    try:
        serve_to(agents, http, out)
    except AcornError as error:
        raise CommandError(message_of(error), FAILED, debug=debug) from error
    return FINE
