"""`acorn serve`: an agent as an HTTP service, on this machine alone unless told otherwise."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from acorn import AcornError
from acorn._log import logger
from acorn.cli.exit import FAILED, FINE, CommandError, message_of, write_line
from acorn.cli.load_target import Agent, load
from acorn.cli.options.arguments import OWN
from acorn.cli.stored import named_store, usable_store

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
        from acorn.web.served import bound
        from acorn.web.served import serve as serve_on
        from acorn.web.serving.mounted import gated
        from acorn.web.serving.service import GRACE, Service
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
        on = bound(host, PORT if port is None else port, is_given=port is not None)
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
    logger.addHandler(handler)
    try:
        with agent:  # sources of tools are opened once, and not anew for each request
            serve_on(gated(service, names, keys), service.close, on, grace=GRACE + 2)
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    finally:
        logger.removeHandler(handler)
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
