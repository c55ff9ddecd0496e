"""An MCP server that offers modules as tools, over standard input and output or over local HTTP.

Each tool call starts a run. If the run fails, the client receives a tool error that its model can read. If the client
requests progress, it receives a message for each step of the run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, TextIO

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acorn import AcornError, DeclarationError, Paused, Unfinished, __version__, listen
from acorn._inside import (
    RESULT,
    Agent,
    Redactor,
    Shape,
    describe_as_tool,
    describe_error,
    excerpt,
    find_secrets,
    is_agent,
    make_validator,
    read_spec,
    replace_surrogates,
    shorten,
    to_json_data,
    to_json_text,
)
from acorn._inside.runs import iterate_in_thread
from acorn.journal import Entry, ModelRequested, ToolStarted
from acorn.types import JsonObject, is_json_object
from acorn.web import guard
from acorn.web.server import Server as HttpServer

Report = Callable[[float, float | None, str | None], Coroutine[Any, Any, None]]
"""A function that sends progress to the client: the number of steps, the total and a message."""

_HOST = "127.0.0.1"
_GRACE = 2
"""The seconds that open requests may continue after the server has started to stop."""


def serve_agents(
    agents: Sequence[object], http: int | None, out: TextIO | None = None, keys: Collection[str] | None = None
) -> None:
    """Serve agents as MCP tools over standard input and output, or over HTTP on the port `http`.

    The MCP messages are written to `out` if the real standard output is redirected. Over HTTP, `keys` are the keys of
    clients. If it is None, they come from the environment, or the server creates one.
    """
    if isinstance(keys, str):
        raise DeclarationError("`keys` of `serve` must be a list of strings, not one string.")
    asyncio.run(_serve(_make_offers(agents), http, out, keys))


@dataclass(frozen=True)
class _Offer:
    """An agent that the server offers, with its MCP tool."""

    agent: Agent
    tool: types.Tool
    output: Shape


def _make_offers(agents: Sequence[object]) -> dict[str, _Offer]:
    if not agents:
        raise DeclarationError("`serve` needs at least one module. Call it as `serve(MyAgent)`.")
    offers: dict[str, _Offer] = {}
    for index, source in enumerate(agents):
        if not is_agent(source):
            raise DeclarationError(
                f"`serve` accepts only classes derived from `module` and their instances, got {excerpt(source)}."
            )
        agent = source() if isinstance(source, type) else source
        schema = describe_as_tool(agent, f"agents[{index}]", "serve")
        name = schema["name"]
        if name in offers:
            raise DeclarationError(
                f"`serve` received two modules with the tool name `{name}`, but each name must be unique. "
                f"Rename one of the classes."
            )
        output = read_spec(agent).output
        tool = types.Tool(
            name=name,
            description=schema.get("description") or None,
            input_schema=schema["parameters"],
            output_schema=_output_schema(output),
        )
        offers[name] = _Offer(agent, tool, output)
    return offers


# The protocol


async def _serve(offers: dict[str, _Offer], http: int | None, out: TextIO | None, keys: Collection[str] | None) -> None:
    server = _new_server(offers)
    async with AsyncExitStack() as open_agents:
        for offer in offers.values():
            await open_agents.enter_async_context(offer.agent)
        if http is None:
            await _serve_stdio(server, out)
        else:
            await _serve_http(server, http, offers, keys)


def _new_server(offers: dict[str, _Offer]) -> Any:
    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[offer.tool for offer in offers.values()])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        offer = offers.get(params.name)
        if offer is None:
            names = ", ".join(f"`{name}`" for name in offers)
            return _result(f"There is no tool `{shorten(params.name)}`. There are: {names}.")
        return await _run(offer, params.arguments or {}, context.session.report_progress)

    return Server("acorn", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _output_schema(shape: Shape) -> JsonObject | None:
    if shape.is_empty:
        return None
    try:
        return shape.output_schema
    except Exception:  # Pydantic can validate some types that it cannot describe.
        return None


# A call


def _result(text: str, data: object = None, *, is_error: bool = True) -> types.CallToolResult:
    # A lone surrogate, as in a file name that is not UTF-8, would end the session.
    content: list[Any] = [types.TextContent(type="text", text=replace_surrogates(text))]
    structured = replace_surrogates(data) if is_json_object(data) else None
    return types.CallToolResult(content=content, structured_content=structured, is_error=is_error)


async def _run(offer: _Offer, arguments: JsonObject, report: Report) -> types.CallToolResult:
    """Run the agent, and return its output or its error."""
    on_entry, messages = _progress_listener(report)
    try:
        with listen(on_entry):
            output = await offer.agent.acall(**arguments)
        await asyncio.gather(*map(asyncio.wrap_future, messages))
    except Exception as error:
        text = str(error) if isinstance(error, AcornError) else ""
        return _result(Redactor(find_secrets()).text(text or describe_error(error)))
    if isinstance(output, Paused):
        return _result(_paused_text(output))
    if isinstance(output, Unfinished):
        return _result(
            f"`{offer.tool.name}` ended without an answer, because it called tools in its only step. Set `max_steps`."
        )
    if offer.output.is_empty:
        return _result("Done.", is_error=False)
    text = output if isinstance(output, str) else to_json_text(output)
    data = json.loads(to_json_text(to_json_data({RESULT: output} if offer.output.wrapped else output)))
    # Clients would reject data that does not fit the schema. The output of a run was validated before, but it may not
    # fit if it contains NaN or if `on_finish` changed it.
    schema = offer.tool.output_schema
    if schema is not None and not make_validator(schema).is_valid(data):
        return _result(f"`{offer.tool.name}` returned `{text}`, which does not fit its `final_output`.")
    return _result(text, data, is_error=False)


def _paused_text(paused: Paused) -> str:
    questions = "\n".join(f"- {request.id}: {request.question}" for request in paused.requests)
    return (
        f"The run {paused.run_id} is paused in its store and waits for human input:\n{questions}\n"
        f"A person can answer with the command `acorn answer`. This client cannot answer."
    )


def _progress_listener(report: Report) -> tuple[Callable[[Entry], None], list[Future[None]]]:
    """Return a callback for journal entries, and a list that contains the progress messages of these entries.

    The event loop sends the messages to the client, so that the run does not wait for the client.
    """
    loop, numbers, messages = asyncio.get_running_loop(), itertools.count(1), list[Future[None]]()

    def on_entry(entry: Entry) -> None:
        if isinstance(entry, ModelRequested | ToolStarted):
            work = "asking the model" if isinstance(entry, ModelRequested) else f"calling `{entry.name}`"
            message = report(next(numbers), None, f"step {entry.step}: {work}")
            messages.append(asyncio.run_coroutine_threadsafe(message, loop))

    return on_entry, messages


# Transports


async def _serve_stdio(server: Any, out: TextIO | None) -> None:
    lines: Any = _input_lines()
    # The messages are in UTF-8 regardless of the locale.
    writer = None if out is None else anyio.wrap_file(open(os.dup(out.fileno()), "w", encoding="utf-8"))  # noqa: SIM115
    try:
        async with stdio_server(stdin=lines, stdout=writer) as (reading, sending):
            await server.run(reading, sending, server.create_initialization_options())
    except* BrokenPipeError:  # The client disconnected without closing its side.
        pass


def _input_lines() -> AsyncIterator[str]:
    """Return an iterator of the lines of standard input, which an OS thread reads.

    File descriptor 0 is redirected to the null device, so that no other code can read MCP messages.
    """
    try:
        descriptor = os.dup(0)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    except OSError:
        descriptor = os.open(os.devnull, os.O_RDONLY)

    def read() -> Iterator[str]:
        with suppress(OSError), open(descriptor, encoding="utf-8", errors="replace") as source:
            yield from source

    return iterate_in_thread(read, "acorn-mcp-stdin")


async def _serve_http(server: Any, port: int, offers: dict[str, _Offer], texts: Collection[str] | None) -> None:
    keys = [] if texts is not None and not texts else guard.configured_keys(texts or [], "`acorn mcp`")
    new_keys = [guard.new_key()] if texts is None and not keys else []

    class AnnouncedServer(HttpServer):
        """An HTTP server that prints its address after startup, because it can handle Ctrl-C only then."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            address = f"http://{_HOST}:{listener.getsockname()[1]}/mcp"
            shown = "".join(f"key: {key.value}\n" for key in new_keys)
            sys.stderr.write(f"{shown}Serving MCP at {address}. Press Ctrl-C to stop.\n")

    with _listen_on(port) as listener:
        specs = [read_spec(offer.agent) for offer in offers.values()]
        limit = max(guard.input_limit(spec.input.has_media, spec.max_media_bytes) for spec in specs)
        app = server.streamable_http_app(host=_HOST, max_request_body_size=limit)
        rules = guard.AccessRules(
            hosts=guard.normalize_hosts(guard.LOOPBACK, "`acorn mcp`"),
            keys=[*keys, *new_keys],
            find_keys=guard.bearer_keys,
            missing_key="The key is missing or wrong. Send a valid key in the header `Authorization: Bearer KEY`.",
            public_path="",  # No path is public.
            methods=("GET", "HEAD", "POST", "DELETE"),
            needs_origin=False,
            max_body=lambda path: guard.too_large(limit),
            json_methods=("POST",),
        )
        guarded = guard.Guard(app, rules, _error_response)
        await AnnouncedServer(guarded, lambda: None, _GRACE, lifespan="on").serve(sockets=[listener])


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        headers = {**(error.headers or {}), **({"www-authenticate": "Bearer"} if error.status_code == 401 else {})}
        return JSONResponse({"error": {"message": error.detail}}, error.status_code, headers)
    text = "".join(traceback.format_exception(error)).rstrip()
    logging.getLogger("acorn").error("%s", Redactor(find_secrets()).text(text))
    return JSONResponse({"error": {"message": "The server failed. Its log contains the details."}}, 500)


def _listen_on(port: object) -> socket.socket:
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        raise DeclarationError(f"`http` must be a port from 0 to 65535 (0 chooses a free port), got {excerpt(port)}.")
    try:
        return socket.create_server((_HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise AcornError(f"Cannot use port {port} of {_HOST}: {reason}. Choose another port.") from error
