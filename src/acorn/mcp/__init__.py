"""The Model Context Protocol: MCP servers as sources of tools, and modules as tools of any MCP client.

    class Clock(module[str, str]):
        tools = [MCPServer("mcp-server-time")]

    serve(Clock)

The SDK (`pip install 'acorn-agents[mcp]'`) is imported when a server is opened or served.
"""

from __future__ import annotations

from acorn.mcp.server import serve
from acorn.mcp.source import MCPServer

__all__ = ["MCPServer", "serve"]
