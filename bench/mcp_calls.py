"""Measure an MCP tool call with acorn, relative to the client of the MCP SDK; each client has a separate server."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from measure import Line

from acorn._drive.bridge import call_sync
from acorn.mcp import MCPServer

SERVER = Path(__file__).parents[1] / "tests" / "mcp_servers" / "odd.py"
CALLS = 50
ROUNDS = 40
TEXT = "x" * 200


def lines() -> list[Line]:
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_measured([str(SERVER), str(Path(folder) / "diary.txt")]))
    return [
        Line("a call by the bare client, CPU", found["bare"] / CALLS * 1e6, None, " us"),
        Line("a call through a source in an async run / bare client", found["async"] / found["bare"], 1.3),
        Line("a call through a source in a sync run / bare client", found["sync"] / found["bare"], 1.3),
    ]


async def _measured(words: list[str]) -> dict[str, float]:
    """Return the minimum CPU seconds of each client; the clients take turns so that noise affects them equally."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    bare_server = StdioServerParameters(command=sys.executable, args=words)
    with open(os.devnull, "w") as quiet:
        async with (
            Client(stdio_client(bare_server, errlog=quiet)) as client,
            MCPServer(sys.executable, words, allow=["echo"]) as server,
        ):
            (listed,) = await server.tools()
            ours: Callable[..., Awaitable[Any]] = listed.function

            async def bare() -> None:
                for _ in range(CALLS):
                    await client.call_tool("echo", {"text": TEXT})

            async def through() -> None:
                for _ in range(CALLS):
                    await ours(text=TEXT)

            async def through_sync() -> None:
                for _ in range(CALLS):  # A sync run also blocks the event loop that calls it.
                    call_sync(ours, text=TEXT)

            ways = {"bare": bare, "async": through, "sync": through_sync}
            found: dict[str, list[float]] = {name: [] for name in ways}
            for round_ in range(ROUNDS + 1):
                for name, way in ways.items():
                    start = time.process_time()
                    await way()
                    if round_:
                        found[name].append(time.process_time() - start)
            return {name: min(each) for name, each in found.items()}
