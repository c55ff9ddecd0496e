"""A test server that requires a token and issues tokens itself: `python guarded.py DIARY PORT`.

The first token of a client is valid for one use, so that the next request needs a refresh. The server logs each
authorization step as a line of the diary.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    ProviderTokenVerifier,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.lowlevel import Server
from mcp.shared.auth import OAuthToken

DIARY, PORT = Path(sys.argv[1]), int(sys.argv[2])
HERE = f"http://127.0.0.1:{PORT}"
ECHO = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def write(line: str) -> None:
    with DIARY.open("a", encoding="utf-8") as diary:
        diary.write(line + "\n")


class Door:
    """The clients with access, in memory."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}
        self.refreshing: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> Any:
        return self.clients.get(client_id)

    async def register_client(self, client_info: Any) -> None:
        write(f"registered {client_info.client_name}")
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: Any, params: Any) -> str:
        write("authorized")
        made = AuthorizationCode(
            code=secrets.token_hex(), scopes=params.scopes or [], expires_at=2e9, client_id=client.client_id,
            code_challenge=params.code_challenge, redirect_uri=params.redirect_uri, resource=params.resource,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
        )  # fmt: skip
        self.codes[made.code] = made
        return construct_redirect_uri(str(params.redirect_uri), code=made.code, state=params.state, iss=HERE)

    async def load_authorization_code(self, client: Any, code: str) -> Any:
        return self.codes.get(code)

    async def exchange_authorization_code(self, client: Any, code: Any) -> OAuthToken:
        write("token")
        del self.codes[code.code]
        return self.give(client, code, expires_in=0)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> Any:
        return self.refreshing.get(refresh_token)

    async def exchange_refresh_token(self, client: Any, refresh_token: Any, scopes: list[str]) -> OAuthToken:
        write("refreshed")
        return self.give(client, refresh_token, expires_in=3600)

    async def load_access_token(self, token: str) -> Any:
        return self.tokens.get(token)

    def give(self, client: Any, asked: Any, expires_in: int) -> OAuthToken:
        known: dict[str, Any] = {"client_id": client.client_id, "scopes": asked.scopes, "resource": asked.resource}
        token, refresh = f"sk-token-{secrets.token_hex()}", f"sk-refresh-{secrets.token_hex()}"
        self.tokens[token] = AccessToken(token=token, **known)
        self.refreshing[refresh] = RefreshToken(token=refresh, **known)
        return OAuthToken(access_token=token, expires_in=expires_in, refresh_token=refresh)


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=ECHO)])


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    write("called")
    return types.CallToolResult(content=[types.TextContent(text=f"echo: {(params.arguments or {})['text']}")])


server: Any = Server("guarded", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
settings = AuthSettings.model_validate({
    "issuer_url": HERE, "resource_server_url": f"{HERE}/mcp",
    "client_registration_options": ClientRegistrationOptions(enabled=True),
})  # fmt: skip
door: Any = Door()
app = server.streamable_http_app(auth=settings, auth_server_provider=door, token_verifier=ProviderTokenVerifier(door))
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
