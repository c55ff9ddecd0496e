"""The Model Context Protocol: MCP servers as sources of tools, and modules as tools of any MCP client.

    class Clock(module[str, str]):
        tools = [MCPServer("mcp-server-time")]

    serve(Clock)

The SDK (`pip install 'acorn-agents[mcp]'`) is imported when a server is opened or served.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from acorn import module
from acorn.mcp.address import loading_sdk
from acorn.mcp.source import MCPServer

__all__ = ["MCPServer", "serve"]


def serve(*agents: module[Any, Any] | type[module[Any, Any]], http: int | None = None) -> None:
    """Offer modules to MCP clients until standard input closes or Ctrl-C is pressed.

    Without `http`, the protocol uses standard input and output, and everything that code prints goes to standard
    error. With `http`, a port of this machine, the server listens at `http://127.0.0.1:PORT/mcp`.
    """
    serve_to(agents, http, None)


def serve_to(agents: Sequence[object], http: int | None, out: TextIO | None) -> None:
    """Serve as `serve` does, with `out` as standard output. The command line has redirected the real one."""
    with loading_sdk():
        from acorn.mcp.server import serve_agents

    serve_agents(agents, http, out)
