"""Support for the Model Context Protocol (MCP).

`MCPServer` offers the tools of an MCP server to a module. `serve` offers modules as tools to any MCP client.

    class Clock(module[str, str]):
        tools = [MCPServer("mcp-server-time")]

    serve(Clock)

acorn imports the MCP SDK (`pip install 'acorn-agents[mcp]'`) only when it opens a server or serves modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from acorn import module
from acorn.mcp.address import loading_sdk
from acorn.mcp.source import MCPServer

__all__ = ["MCPServer", "serve"]


def serve(*agents: module[Any, Any] | type[module[Any, Any]], http: int | None = None) -> None:
    """Serve modules as MCP tools until standard input closes or the user presses Ctrl-C.

    Without `http`, the protocol uses standard input and output. Everything that your code prints then goes to standard
    error. With a port number as `http`, the server listens at `http://127.0.0.1:PORT/mcp`.
    """
    serve_to(agents, http, None)


def serve_to(agents: Sequence[object], http: int | None, out: TextIO | None) -> None:
    """Serve modules like `serve`, but write the protocol messages to `out`.

    The command line passes `out`, because it redirects the real standard output.
    """
    with loading_sdk():
        from acorn.mcp.server import serve_agents

    serve_agents(agents, http, out)
