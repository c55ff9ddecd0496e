"""Support for the Model Context Protocol (MCP).

`MCPServer` makes the tools of an MCP server available to a module (an agent class). `serve` offers modules as tools to
any MCP client.

    class Clock(module[str, str]):
        tools = [MCPServer("mcp-server-time")]

    serve(Clock)

acorn imports the MCP SDK (`pip install 'acorn-agents[mcp]'`) only when it opens a server or serves modules.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TextIO

from acorn import module
from acorn.mcp.address import loading_sdk
from acorn.mcp.source import MCPServer

__all__ = ["MCPServer", "serve"]


def serve(
    *agents: module[Any, Any] | type[module[Any, Any]], http: int | None = None, keys: Collection[str] | None = None
) -> None:
    """Serve modules as MCP tools until standard input closes or the user presses Ctrl-C.

    Without `http`, the MCP messages use standard input and output. Everything that your code prints then goes to
    standard error. With a port number as `http`, the server listens at `http://127.0.0.1:PORT/mcp`.

    Over HTTP, a client must send one of the `keys` in the header `Authorization: Bearer KEY`. By default, the keys come
    from the environment variable `ACORN_SERVE_KEYS`. If it is not set, the server prints a new key. With `keys=[]`, all
    programs on this machine can use the server.
    """
    serve_to(agents, http, None, keys)


def serve_to(
    agents: Sequence[object], http: int | None, out: TextIO | None, keys: Collection[str] | None = None
) -> None:
    """Serve modules as MCP tools like `serve`, but write the MCP messages to `out`.

    The command line passes the original standard output as `out`, because it redirects `sys.stdout`.
    """
    with loading_sdk():
        from acorn.mcp.server import serve_agents

    serve_agents(agents, http, out, keys)
