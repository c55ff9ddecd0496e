"""The tools of `quick.py` with the SDK, in the newer protocol: `python odd.py DIARY [--http PORT]`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from quick import FORMS, answer, begin, given, page, said, write  # type: ignore[import-not-found]


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult.model_validate(page(params and params.cursor), by_name=False)


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> Any:
    name, arguments = params.name, params.arguments or {}
    write(f"called {name} {json.dumps(arguments)}")
    match name:
        case "hang":
            try:
                await anyio.sleep_forever()
            finally:
                write("cancelled hang")
        case "report":
            for at in (1, 2, 3):
                await ctx.session.report_progress(at, 3, f"part {at}\u200b")
            return result(said("done"))
        case "refuse":
            raise MCPError(-32000, arguments["text"])
        case _ if name in FORMS:
            return await ask(ctx, params)
        case "sample":
            known = ctx.session.client_params.capabilities.model_dump(exclude_none=True)
            return result(said(f"capabilities: {sorted(known)}"))
        case _:
            return result(answer(name, arguments))


def result(plain: dict[str, Any]) -> types.CallToolResult:
    return types.CallToolResult.model_validate(plain, by_name=False)


async def ask(ctx: Any, params: types.CallToolRequestParams) -> Any:
    """In the newer protocol, a call that needs input returns, and the client repeats it with the answer."""
    question, schema = FORMS[params.name]
    if ctx.protocol_version < "2026":
        heard: Any = await ctx.session.elicit_form(question, schema)
    elif params.input_responses:
        heard = next(iter(params.input_responses.values()))
    else:
        form = types.ElicitRequestFormParams(message=question, requested_schema=schema)
        wanted: Any = {"asked": types.ElicitRequest(params=form)}
        return types.InputRequiredResult(input_requests=wanted, request_state="state")
    return result(said(f"{heard.action} {heard.content}"))


server: Any = Server("odd", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
if given.variant == "old":  # Speaks only the protocol with a handshake.
    server._request_handlers.pop("server/discover")


async def over_stdio() -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


begin()
if given.http:
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=given.http, log_level="warning")
else:
    asyncio.run(over_stdio())
