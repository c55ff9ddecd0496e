"""`acorn mcp`: modules as tools of MCP clients."""

from __future__ import annotations

from typing import Annotated

import typer

from acorn import AcornError
from acorn.cli.exit import FAILED, FINE, CommandError, message_of
from acorn.cli.load_target import load


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
    from acorn.mcp.server import serve_apart

    out = context.obj.set_aside()  # a file may print while it is imported, and from then on
    agents = [load(target, debug=debug, once=True) for target in targets]
    try:
        serve_apart(agents, http, out)
    except AcornError as error:
        raise CommandError(message_of(error), FAILED, debug=debug) from error
    return FINE
