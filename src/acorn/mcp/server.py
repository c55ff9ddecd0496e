"""Modules as tools of any MCP client: over standard input and output, or over HTTP on this machine.

Each call is a run of its own. What a run raises is a tool error that the client's model can read; how far it has come
is told as progress to clients that want to hear of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from acorn import AcornError, DeclarationError, Paused, Unfinished, __version__, listen, module
from acorn._inside import (
    RESULT,
    Shape,
    describe_agent,
    describe_as_tool,
    describe_error,
    excerpt,
    find_secrets,
    output_schema,
    redact,
    replace_surrogates,
    shorten,
    to_json_data,
    to_json_text,
)
from acorn.journal import Entry, ModelRequested, ToolStarted
from acorn.mcp.address import check_installed
from acorn.types import JsonObject

Agent = module[Any, Any]

_HOST = "127.0.0.1"
_FAREWELL = 2
"""Seconds in which the requests under way may end when the server is told to stop."""


def serve(*agents: Agent | type[Agent], http: int | None = None) -> None:
    """Offer modules to MCP clients until standard input closes or Ctrl-C is pressed.

    Over standard input and output, which then belong to the protocol alone: what anybody prints goes to standard error.
    With `http`, a port of this machine, at `http://127.0.0.1:PORT/mcp`.
    """
    asyncio.run(_serve(_offered(agents), http, None))


def serve_apart(agents: list[Agent], http: int | None, out: TextIO) -> None:
    """The same for the command line, which has set standard output aside."""
    asyncio.run(_serve(_offered(agents), http, out))


@dataclass(frozen=True)
class _Offer:
    """A module as a tool."""

    agent: Agent
    name: str
    description: str
    input: JsonObject
    output: Shape
    promised: JsonObject | None
    """The schema of its data, where there is one."""


def _offered(agents: Any) -> dict[str, _Offer]:
    check_installed()
    if not agents:
        raise DeclarationError("`serve` needs at least one module; call it as `serve(MyAgent)`.")
    found: dict[str, _Offer] = {}
    for at, given in enumerate(agents):
        if not isinstance(given, module) and not (isinstance(given, type) and issubclass(given, module)):
            raise DeclarationError(f"`serve` takes classes and instances of modules, got {excerpt(given)}.")
        agent = given() if isinstance(given, type) else given
        described = describe_as_tool(agent, f"agents[{at}]", "serve")
        name = described["name"]
        if name in found:
            raise DeclarationError(f"`serve` was given two modules that are both `{name}` to a client; rename a class.")
        words = described.get("description", "")
        output = describe_agent(agent).output
        found[name] = _Offer(agent, name, words, described["parameters"], output, _promised(output))
    return found


# The protocol


async def _serve(offers: dict[str, _Offer], http: int | None, out: TextIO | None) -> None:
    server = _server(offers)
    async with AsyncExitStack() as kept:
        for offer in offers.values():
            await kept.enter_async_context(offer.agent)
        if http is None:
            await _over_stdio(server, out)
        else:
            await _over_http(server, http)


def _server(offers: dict[str, _Offer]) -> Any:
    from mcp import types
    from mcp.server.lowlevel import Server

    listed = [
        types.Tool(
            name=offer.name,
            description=offer.description or None,
            input_schema=offer.input,
            output_schema=offer.promised,
        )
        for offer in offers.values()
    ]

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        offer = offers.get(params.name)
        if offer is None:
            names = ", ".join(f"`{name}`" for name in offers)
            text, data, failed = f"There is no tool `{shorten(params.name)}`. There are: {names}.", None, True
        else:
            text, data, failed = await _run(offer, params.arguments or {}, context.session.report_progress)
        # Half a surrogate pair, as of a file name that is no UTF-8, would end the session.
        content: list[Any] = [types.TextContent(type="text", text=replace_surrogates(text))]
        return types.CallToolResult(content=content, structured_content=replace_surrogates(data), is_error=failed)

    return Server("acorn", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _promised(shape: Shape) -> JsonObject | None:
    if shape.is_empty:
        return None
    try:
        return output_schema(shape)
    except Exception:  # a type that Pydantic can validate and not describe; a client does without
        return None


# A call


async def _run(offer: _Offer, arguments: JsonObject, report: Callable[..., Any]) -> tuple[str, JsonObject | None, bool]:
    """What a run comes to: its text, its data, and whether it failed."""
    try:
        async with _reported(report) as hear:
            with listen(hear):
                output = await offer.agent.acall(**arguments)
    except AcornError as error:
        return _safe(str(error) or describe_error(error)), None, True
    except Exception as error:
        return _safe(describe_error(error)), None, True
    if isinstance(output, Paused):
        return _waiting(output), None, True
    if isinstance(output, Unfinished):
        return (
            f"`{offer.name}` ended without an answer: it called tools and may not go on; set `max_steps`.",
            None,
            True,
        )
    if offer.output.is_empty:
        return "Done.", None, False
    text = output if isinstance(output, str) else to_json_text(output)
    data = json.loads(to_json_text(to_json_data({RESULT: output} if offer.output.wrapped else output)))
    if offer.promised is not None and not _fits(data, offer.promised):  # clients would throw it away
        return f"`{offer.name}` gave `{text}`, which is not as its `final_output` has it.", None, True
    return text, data if isinstance(data, dict) else None, False


def _fits(data: Any, schema: JsonObject) -> bool:
    """NaN does not, nor what an `on_finish` has put in the place of an output."""
    from jsonschema import Draft202012Validator

    return bool(Draft202012Validator(schema).is_valid(data))


def _waiting(paused: Paused) -> str:
    asked = "\n".join(f"- {request.id}: {request.question}" for request in paused.requests)
    return (
        f"The run {paused.run_id} waits for a person and rests in its store:\n{asked}\n"
        f"Whoever may answer does so by `acorn answer` there; it is not answered from here."
    )


def _safe(text: str) -> str:
    return redact(text, find_secrets({}))


@asynccontextmanager
async def _reported(report: Callable[..., Any]) -> AsyncGenerator[Callable[[Entry], None]]:
    """A listener whose news are sent as progress, in order, beside the run."""
    loop, news = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def hear(entry: Entry) -> None:
        if (words := _words(entry)) is not None:
            loop.call_soon_threadsafe(news.put_nowait, words)

    async def send() -> None:
        done = 0
        while (words := await news.get()) is not None:
            done += 1
            await report(done, None, words)

    sender = asyncio.create_task(send())
    try:
        yield hear
        loop.call_soon(news.put_nowait, None)  # behind what is on its way
        await sender
    finally:
        sender.cancel()


def _words(entry: Entry) -> str | None:
    if isinstance(entry, ModelRequested):
        return f"step {entry.step}: asking the model"
    return f"step {entry.step}: calling `{entry.name}`" if isinstance(entry, ToolStarted) else None


# Ways in and out


async def _over_stdio(server: Any, out: TextIO | None) -> None:
    from mcp.server.stdio import stdio_server

    lines: Any = _Lines()
    writing: Any = None if out is None else _LineWriter(out)
    try:
        async with stdio_server(stdin=lines, stdout=writing) as (reading, sending):
            await server.run(reading, sending, server.create_initialization_options())
    except* BrokenPipeError:  # the client has gone without closing its side, and nobody is left to hear of it
        pass


class _Lines:
    """Standard input, line by line, read by a thread that keeps no process from ending.

    Nobody else may read there: what it was leads nowhere from now on.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        try:
            source = os.dup(0)
            nowhere = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nowhere, 0)
            os.close(nowhere)
        except OSError:
            source = os.open(os.devnull, os.O_RDONLY)
        threading.Thread(target=self._read, args=(source,), name="acorn-mcp-stdin", daemon=True).start()

    def _read(self, descriptor: int) -> None:
        try:
            with open(descriptor, encoding="utf-8", errors="replace") as source:
                for line in source:
                    self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            self._loop.call_soon_threadsafe(self._lines.put_nowait, "")
        except (RuntimeError, OSError):  # the loop has ended before
            return

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> str:
        if line := await self._lines.get():
            return line
        raise StopAsyncIteration


class _LineWriter:
    """Where the protocol is written: a line each, in UTF-8, whatever the terminal speaks."""

    def __init__(self, out: TextIO) -> None:
        self._out = open(os.dup(out.fileno()), "wb", buffering=0)  # noqa: SIM115 - open to the end

    async def write(self, text: str) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._write, text.encode("utf-8", "replace"))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._out.write(rest) :]

    async def flush(self) -> None:
        """Nothing is held back."""


async def _over_http(server: Any, port: int) -> None:
    import uvicorn

    class Announced(uvicorn.Server):
        """Says where it is when it is there: from then on it hears of Ctrl-C by itself."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            where = f"http://{_HOST}:{heard.getsockname()[1]}/mcp"
            sys.stderr.write(f"serving MCP at {where}; Ctrl-C ends it\n")

    with _listening(port) as heard:
        app = server.streamable_http_app(host=_HOST)  # which refuses other hosts and foreign origins
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_FAREWELL)
        await Announced(config).serve(sockets=[heard])


def _listening(port: Any) -> socket.socket:
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        raise DeclarationError(f"`http` must be a port, 0 to 65535 (0 finds a free one), got {excerpt(port)}.")
    found = socket.socket()
    try:
        if os.name == "posix":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((_HOST, port))
    except OSError as error:
        found.close()
        raise AcornError(f"Port {port} of {_HOST} cannot be used: {error.strerror}; choose another.") from error
    return found
