"""An agent with the tools of an MCP server: it asks `mcp-server-time` what time it is elsewhere.

    pip install 'acorn-agents[mcp]' mcp-server-time
    python examples/mcp_client.py
    acorn run examples/mcp_client.py "Can I call Tokyo at nine in the morning?"

The server is a program of somebody else's, so it is used on our terms: only two of its tools are let in, what they
are must not change behind our back, and one of them needs a yes for some arguments.

By itself it needs no key and no network: the model is then a script.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from acorn import Request, module
from acorn.mcp import MCPServer
from acorn.testing import ScriptedModel, call, finish

BESIDE = Path(sys.executable).parent / "mcp-server-time"


def is_far_away(name: str, arguments: dict[str, Any]) -> bool:
    """Which calls a person has to approve."""
    return name == "convert_time" and not arguments["target_timezone"].startswith("Europe/")


def clock(pin: Path | None = None) -> MCPServer:
    """The server as a source of tools; nothing is started before a run needs it."""
    return MCPServer(
        str(BESIDE) if BESIDE.exists() else "mcp-server-time",
        args=["--local-timezone", "Europe/Oslo"],
        allow=["get_current_time", "convert_time"],
        approve=is_far_away,
        pin=pin,  # a file, written by the first run; a server that defines its tools otherwise later on is not called
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
    """What a model would do."""
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
