"""Tests of `MCPServer(auth=...)` with the OAuth provider of the SDK: registration, login, and token refresh."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.shared.auth import OAuthClientMetadata
from tests.behaviour.conftest import Call, Script
from tests.behaviour.test_mcp_source import SERVERS, Worker, results
from tests.ports import free_port, listens
from tests.waiting import comes_true

from acorn import AcornError
from acorn.mcp import MCPServer
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling


class Kept:
    """Tokens and the registration of one client, in memory."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


class Person:
    """Open the address that a provider shows, agree, and return with a code."""

    def __init__(self, *, agrees: bool = True) -> None:
        self.agrees = agrees
        self.asked = 0
        self.came_back: dict[str, list[str]] = {}

    async def open_page(self, address: str) -> None:
        self.asked += 1
        async with httpx2.AsyncClient() as browser:
            answer = await browser.get(address)
        self.came_back = parse_qs(urlsplit(answer.headers["location"]).query)

    async def come_back(self) -> AuthorizationCodeResult:
        if not self.agrees:
            raise RuntimeError("the person said no")
        code, state, issuer = (self.came_back[name][0] for name in ("code", "state", "iss"))
        return AuthorizationCodeResult(code=code, state=state, iss=issuer)


class Guarded:
    """The server of `guarded.py`, and its log."""

    def __init__(self, diary: Path, port: int) -> None:
        self.diary = diary
        self.address = f"http://127.0.0.1:{port}/mcp"

    def lines(self) -> list[str]:
        return self.diary.read_text(encoding="utf-8").splitlines()

    def source(self, kept: Kept, person: Person) -> MCPServer:
        known = OAuthClientMetadata.model_validate({
            "client_name": "acorn test", "redirect_uris": ["http://127.0.0.1:1/back"],
            "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
        })  # fmt: skip
        auth = OAuthClientProvider(self.address, known, kept, person.open_page, person.come_back)
        return MCPServer(self.address, auth=auth)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    diary, port = tmp_path_factory.mktemp("guarded") / "diary.txt", free_port()
    words = [sys.executable, str(SERVERS / "guarded.py"), str(diary), str(port)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            assert comes_true(lambda: listens(port))
            yield Guarded(diary, port)
        finally:
            process.kill()


@pytest.fixture
def guarded(server: Guarded) -> Guarded:
    """The server, with an empty log."""
    server.diary.write_text("")
    return server


def test_mcp_oauth_login_happens_once_and_tokens_are_refreshed(call: Call, script: Script, guarded: Guarded) -> None:
    kept, person = Kept(), Person()
    model = script(calling("echo", text="a"), calling("echo", text="b"), finish("done"))
    run = call.run(Worker(model=model, tools=[guarded.source(kept, person)]), "x")
    assert results(run) == ["echo: a", "echo: b"]
    assert guarded.lines() == ["registered acorn test", "authorized", "token", "refreshed", "called", "called"]
    assert person.asked == 1

    again = ScriptedModel([calling("echo", text="c"), finish("done")])
    run = call.run(Worker(model=again, tools=[guarded.source(kept, person)]), "x")  # Like the next start of a program.
    assert results(run) == ["echo: c"]
    assert guarded.lines()[6:] == ["called"]
    assert person.asked == 1


def test_mcp_oauth_rejection_is_reported_before_model_call(call: Call, guarded: Guarded) -> None:
    source = guarded.source(Kept(), Person(agrees=False))
    model = ScriptedModel([finish("never")])
    with pytest.raises(AcornError, match="the person said no") as raised:
        call.run(Worker(model=model, tools=[source]), "x")
    assert guarded.address in str(raised.value)
    assert not model.requests
