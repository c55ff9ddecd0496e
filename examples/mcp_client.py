"""MCP client: an agent that uses the tools of the MCP server `mcp-server-time` to convert times.

    pip install 'acorn-agents[mcp]' mcp-server-time
    python examples/mcp_client.py
    acorn run examples/mcp_client.py "Can I call Tokyo at nine in the morning?"

The server is a third-party program, so the agent restricts it: the model may call only two of its tools, the tool
definitions must not change between runs, and some calls need approval.

`python examples/mcp_client.py` needs no API key and no network, because it uses a scripted model.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from acorn import Request, module
from acorn.mcp import MCPServer
from acorn.testing import ScriptedModel, call, finish

SERVER = Path(sys.executable).parent / "mcp-server-time"


def is_far_away(name: str, arguments: dict[str, Any]) -> bool:
    """Return whether a person must approve a tool call."""
    return name == "convert_time" and not arguments["target_timezone"].startswith("Europe/")


def clock(pin: Path | None = None) -> MCPServer:
    """Return the server as a source of tools; a run starts the server when it needs a tool."""
    return MCPServer(
        str(SERVER) if SERVER.exists() else "mcp-server-time",
        args=["--local-timezone", "Europe/Oslo"],
        allow=["get_current_time", "convert_time"],
        approve=is_far_away,
        # The first run saves the tool definitions in this file. If they change later, acorn does not call the server.
        pin=pin,
    )


class Secretary(module[str, str]):
    """Answer questions about the time. Use the tools; never guess."""

    model = "openai/gpt-4o"
    max_steps = 5
    tools = [clock()]

    def on_human(self, request: Request) -> Any:
        print(f"  May I? {request.question}")
        print("  Yes.")
        return True


def scripted() -> ScriptedModel:
    """Return a model with scripted tool calls and a scripted answer."""
    oslo_to_tokyo = {"source_timezone": "Europe/Oslo", "time": "09:00", "target_timezone": "Asia/Tokyo"}
    return ScriptedModel([
        call("get_current_time", timezone="Europe/Oslo"),
        call("convert_time", **oslo_to_tokyo),
        finish("When it is nine in Oslo, people in Tokyo are at work already."),
    ])  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pin = Path(folder) / "mcp.lock"
        run = Secretary(model=scripted(), tools=[clock(pin)]).run("Can I call Tokyo at nine in the morning?")
        print(run.output)
        for message in run.history:
            if message["role"] == "tool":
                print(f"  {str(message['content'])[:100]}")
        print(f"pinned: {pin.stat().st_size > 0}")


if __name__ == "__main__":
    main()
