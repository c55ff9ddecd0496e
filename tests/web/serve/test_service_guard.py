"""Tests of access control of the service: keys, Host, Origin, methods, and content types and lengths of bodies."""

from __future__ import annotations

import asyncio
import operator
import socket
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.cases import case
from tests.long_version import IS_LONG
from tests.web.serve.served_agent import Echo
from tests.web.serve.server import HOME, KEY, app, asked, get, post

from acorn import DeclarationError
from acorn.web.guard import MAX_BODY, AccessKey
from acorn.web.serve.app import Service, service_app
from acorn.web.server import bind_socket

OTHER = "another-key-for-tests"
HOST = {"127.0.0.1:8123": True, "localhost": True, "[::1]:8123": True, "evil.example": False, "": False,
        "127.0.0.1.evil.example": False, "127.0.0.1:8123, evil.example": False}  # fmt: skip
ORIGIN = {None: True, "same": True, "http://evil.example": False, "null": False}
SITE = {None: True, "same-origin": True, "none": True, "same-site": False, "cross-site": False}
KEYS = {f"Bearer {KEY}": True, f"bearer  {OTHER}": True, f"Bearer {KEY}x": False, "Bearer ": False, None: False,
        f"Basic {KEY}": False, KEY: False, f"Bearer {KEY[:-1]}": False, "Bearer ä": False}  # fmt: skip
KIND = {"application/json": True, "application/json; charset=utf-8": True, "text/plain": False, None: False}


@pytest.fixture(scope="module")
def service() -> Any:
    return app(Echo(), keys=[KEY, OTHER])


def combinations() -> list[tuple[Any, ...]]:
    """Return all combinations of headers; in the short version only those in which two headers differ from the usual.

    The usual header is the first one of each table.
    """
    tables = (HOST, ORIGIN, SITE, KEYS, KIND)
    usual = [next(iter(table)) for table in tables]
    found: list[tuple[Any, ...]] = list(product(*tables))
    return [each for each in found if IS_LONG or sum(map(operator.ne, each, usual)) <= 2]


def test_service_returns_expected_status_for_each_combination_of_headers(service: Any) -> None:
    async def main() -> None:
        for host, origin, site, key, kind in combinations():
            own = f"http://{host}" if origin == "same" else origin
            headers = {"host": host, "origin": own, "sec-fetch-site": site, "content-type": kind, "authorization": key}
            sent = {name: value.encode() if value is not None else None for name, value in headers.items()}
            answer = await asked(service, "POST", "/run", headers=sent, content=b'"x"')
            fits = HOST[host] and ORIGIN[origin] and SITE[site]
            wanted = 403 if not fits else 415 if not KIND[kind] else 200 if KEYS[key] else 401
            assert answer.status_code == wanted, headers

    asyncio.run(main())


def test_each_service_route_except_health_requires_service_key(service: Any) -> None:
    for path in ("/openapi.json", "/v1/models", "/", "/nothing"):
        refused = get(service, path, headers={"authorization": None})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "key")
        assert refused.headers["www-authenticate"] == "Bearer"
    for path in ("/run", "/stream", "/v1/chat/completions", "/runs/x/answer"):
        assert post(service, path, {}, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert get(service, "/health", headers={"authorization": None}).json() == {"status": "ok"}
    assert get(service, "/health", headers={"host": "evil.example"}).status_code == 403


def test_browser_without_service_key_receives_page_with_instructions(service: Any) -> None:
    browser = {"authorization": None, "accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/", "/run", "/openapi.json"):
        page = get(service, path, headers=browser)
        assert (page.status_code, page.headers["www-authenticate"]) == (401, "Bearer")
        assert page.headers["content-type"] == "text/plain; charset=utf-8"
        assert page.headers["x-content-type-options"] == "nosniff"
        for words in ("Authorization: Bearer", f"curl {HOME}/openapi.json", "`acorn serve` printed", "`acorn web"):
            assert words in page.text
    assert "Echo" not in page.text  # A client without a key need not know what is served.
    assert get(service, "/", headers=browser | {"host": "evil.example"}).status_code == 403
    assert get(service, "/", headers={"authorization": None}).json()["error"]["type"] == "key"


def test_service_without_keys_accepts_requests_without_authorization() -> None:
    assert post(app(Echo(), keys=[]), "/run", "x", headers={"authorization": None}).json() == "x"


def test_service_key_with_invalid_characters_raises_declaration_error() -> None:
    for key in ["", " ", "\t", "two words", "with-newline\n", "kéy", None]:
        with case(key), pytest.raises(DeclarationError, match="key"):
            app(Echo(), keys=[KEY, key])


def test_rejected_host_error_of_service_contains_allow_host_option(service: Any) -> None:
    refused = get(service, "/v1/models", headers={"host": "box.local:8123"})
    assert "--allow-host box.local" in refused.json()["error"]["message"]
    assert get(app(Echo(), hosts=["box.local"]), "/v1/models", headers={"host": "box.local"}).status_code == 200


def test_unsupported_http_methods_are_rejected_without_cors_headers(service: Any) -> None:
    for method in ["PUT", "PATCH", "OPTIONS", "TRACE"]:
        with case(method):
            answer = asyncio.run(asked(service, method, "/run", headers={"origin": HOME}))
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert (
                asyncio.run(asked(service, "DELETE", "/run", headers={"content-type": "application/json"})).status_code
                == 405
            )


def test_too_long_body_is_rejected_even_without_content_length(service: Any) -> None:
    declared = post(service, "/run", content=b"x", headers={"content-length": str(MAX_BODY + 1)})
    assert (declared.status_code, declared.json()["error"]["type"]) == (413, "body")

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 1_000_000

    assert post(service, "/run", content=endless()).status_code == 413
    long = '"' + "x" * (MAX_BODY - 2) + '"'
    assert len(post(service, "/run", content=long.encode()).content) == MAX_BODY


def test_service_responses_have_security_headers(service: Any) -> None:
    for answer in (
        get(service, "/health"),
        post(service, "/run", "x"),
        post(service, "/stream", "x"),
        get(service, "/x"),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_service_mounted_in_other_asgi_app_answers_requests() -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    whole = Starlette(routes=[Mount("/echo", app=app(Echo()))])
    assert post(whole, "/echo/run", "x").json() == "x"
    assert get(whole, "/echo/v1/models").status_code == 200


def test_service_socket_uses_tcp_on_loopback_address() -> None:
    with bind_socket("127.0.0.1", 0, is_exact=True) as made:
        assert made.proto == socket.IPPROTO_TCP
        assert made.getsockname()[0] == "127.0.0.1"


def test_route_that_raises_http_exception_with_another_status_returns_that_status() -> None:
    async def conflict(request: Request) -> Response:
        raise HTTPException(409, "It has changed.")

    service = Service(Echo(), [AccessKey(KEY)], timeout=60, concurrency=1)
    service.routes.append(Route("/conflict", conflict))
    answer = get(service_app(service, ["127.0.0.1"]), "/conflict")
    assert answer.status_code == 409
    assert answer.json() == {"error": {"type": "refused", "message": "It has changed."}}
