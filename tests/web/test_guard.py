"""Tests of access control of the page: each rule of the guard, and the headers of every response."""

from __future__ import annotations

import asyncio
import socket
from itertools import product
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from tests.cases import case
from tests.waiting import AGES, PATIENCE
from tests.web.browser.conftest import served
from tests.web.desk import HOME, KEY, Desk, asked, get, post, site

from acorn import DeclarationError
from acorn.stores import MemoryStore
from acorn.web.guard import MAX_BODY, LimitedBody, check_request
from acorn.web.page.routes import page_app, page_rules
from acorn.web.page.site import make_site
from acorn.web.server import bind_socket

HOSTS = ("127.0.0.1", "localhost", "[::1]")


def answer(method: str, path: str, **headers: str | None) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(asked(site(Desk()), method, path, headers=named, content=b"{}" if method != "GET" else None))


def status_of(method: str, path: str, headers: list[tuple[str, str]]) -> int | None:
    """Return the status with which the guard rejects a request, or None if the request is allowed."""
    raw = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "server": ("127.0.0.1", 8123)}
    try:
        check_request(Request(scope), page_rules(HOSTS, KEY, 1.0))
    except HTTPException as refusal:
        return refusal.status_code
    return None


HOST = {"127.0.0.1:8123": True, "localhost:8123": True, "[::1]:8123": True, "LOCALHOST": True, "evil.example": False,
        "127.0.0.1.evil.example:8123": False, "127.0.0.1:8123, evil.example": False, "": False}  # fmt: skip
ORIGIN = {None: None, "same": True, "http://evil.example": False, "null": False}
SITE = {None: True, "same-origin": True, "none": True, "same-site": False, "cross-site": False}
COOKIE = {f"acorn_8123={KEY}": True, f"other=1; acorn_8123={KEY}": True, "acorn_8123=wrong": False, "": False,
          f"acorn_9999={KEY}": False, f"acorn_8123=wrong; acorn_8123={KEY}": True}  # fmt: skip
METHOD = {"GET": False, "POST": True, "DELETE": True, "PUT": None, "PATCH": None, "OPTIONS": None}
KIND = {"application/json": True, "application/json; charset=utf-8": True, "text/plain": False, None: False,
        "application/x-www-form-urlencoded": False, "multipart/form-data": False}  # fmt: skip


def test_page_server_returns_expected_status_for_each_combination_of_headers() -> None:
    for method, host, origin, fetched, cookie, kind in product(METHOD, HOST, ORIGIN, SITE, COOKIE, KIND):
        own = f"http://{host}" if origin == "same" else origin
        given = {"host": host, "origin": own, "sec-fetch-site": fetched, "cookie": cookie, "content-type": kind}
        headers = [(name, value) for name, value in given.items() if value is not None]
        writes = METHOD[method]
        origin_fits = not writes if origin is None else bool(ORIGIN[origin])
        fits = HOST[host] and origin_fits and SITE[fetched] and (not writes or KIND[kind])
        wanted = 405 if writes is None else None if fits and COOKIE[cookie] else 401 if fits else (403, 415)
        got = status_of(method, "/api/runs", headers)
        assert got in wanted if isinstance(wanted, tuple) else got == wanted, (method, given, got)


def test_request_with_repeated_security_header_is_rejected() -> None:
    for name in ("host", "origin", "sec-fetch-site"):
        usual = {"host": HOME[7:], "cookie": f"acorn_8123={KEY}"}
        repeated = [(name, HOME[7:]), (name, "evil.example")]
        headers = [*((key, value) for key, value in usual.items() if key != name), *repeated]
        assert status_of("GET", "/", headers) == 403


def test_each_page_route_except_login_requires_login_key() -> None:
    for path in ("/", "/runs/", "/runs/x", "/static/app.js", "/api/agent", "/api/runs", "/nothing"):
        refused = answer("GET", path, cookie=None)
        assert refused.status_code == 401
        assert "acorn web" in refused.text
    assert answer("POST", "/api/runs", cookie=None).status_code == 401


def test_rejected_host_error_of_page_contains_allow_host_option() -> None:
    refused = answer("GET", "/api/agent", host="box.local:8123")
    assert refused.status_code == 403
    assert "--allow-host box.local" in refused.json()["error"]
    named = site(Desk(), hosts=["box.local"])
    allowed = get(named, "/api/agent", headers={"host": "box.local:8123", "cookie": f"acorn_8123={KEY}"})
    assert allowed.status_code == 200


def test_login_sets_session_cookie_and_redirects_to_target() -> None:
    for origin in ("cross-site", "none", None):  # Typed, or opened by a file.
        page = answer("GET", f"/login?key={KEY}&next=/runs/", cookie=None, sec_fetch_site=origin)
        assert page.status_code == 200
        assert "0;url=/runs/" in page.text
        assert 'rel="icon"' in page.text  # Otherwise a browser asks for one and reports an error.
        cookie = page.headers["set-cookie"]
        assert cookie.startswith(f"acorn_8123={KEY};")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Max-Age" not in cookie
        assert "Expires" not in cookie


FOREIGN_TARGETS: list[str] = ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"]


def test_login_with_target_on_other_site_redirects_to_home() -> None:
    for goal in FOREIGN_TARGETS:
        with case(goal):
            page = answer("GET", f"/login?key={KEY}&next={goal}", cookie=None)
            assert 'content="0;url=/"' in page.text


def test_markup_in_login_target_is_escaped() -> None:
    page = answer("GET", f'/login?key={KEY}&next=/"><script>', cookie=None)
    assert "<script>" not in page.text


def test_login_with_wrong_key_returns_401_without_cookie() -> None:
    for key in ("", "wrong", KEY[:-1], KEY + "x", "é"):
        refused = answer("GET", f"/login?key={key}", cookie=None)
        assert refused.status_code == 401
        assert "set-cookie" not in refused.headers


def test_login_key_with_invalid_characters_raises_declaration_error() -> None:
    for key in ["", " ", "two words", "with-newline\n", "semi;colon", "kéy"]:
        with case(key), pytest.raises(DeclarationError, match="key"):
            site(Desk(), key=key)


def test_hosts_given_as_single_string_raise_declaration_error() -> None:
    with pytest.raises(DeclarationError, match="hosts"):
        site(Desk(), hosts="box.local")


def test_ipv6_host_matches_with_or_without_brackets() -> None:
    for name in ["fe80::1", "[fe80::1]", "FE80::1"]:
        with case(name):
            named = site(Desk(), hosts=[name])
            for host, status in {"[fe80::1]:8123": 200, "[fe80::1]": 200, "[fe80::2]:8123": 403, "fe80:": 403}.items():
                given = get(named, "/api/agent", headers={"host": host, "cookie": f"acorn_8123={KEY}"})
                assert given.status_code == status


PAGES = ["/", "/runs/", "/static/app.js", "/api/agent", "/api/nothing", "/login", "/login?key=" + KEY]


def test_page_responses_have_security_headers() -> None:
    for path in PAGES:
        with case(path):
            given = answer("GET", path)
            policy = given.headers["content-security-policy"]
            for name in ("default-src", "form-action", "base-uri", "frame-ancestors", "trusted-types"):
                assert f"{name} 'none'" in policy
            for name in ("script-src", "style-src", "connect-src"):
                assert f"{name} 'self';" in policy
            assert "require-trusted-types-for 'script'" in policy
            assert "unsafe" not in policy
            assert given.headers["x-content-type-options"] == "nosniff"
            assert given.headers["referrer-policy"] == "no-referrer"
            assert given.headers["cross-origin-opener-policy"] == "same-origin"
            assert given.headers["cross-origin-resource-policy"] == "same-origin"
            assert not [name for name in given.headers if name.startswith("access-control")]
            if path.startswith("/api"):
                assert given.headers["cache-control"] == "no-store"


def test_static_files_have_fixed_content_types() -> None:
    app = site(Desk())
    kinds = {
        "app.js": "text/javascript; charset=utf-8",
        "app.css": "text/css; charset=utf-8",
        "acorn.svg": "image/svg+xml",
    }
    for name, kind in kinds.items():
        first = get(app, f"/static/{name}")
        assert first.headers["content-type"] == kind
        assert get(app, f"/static/{name}", headers={"if-none-match": first.headers["etag"]}).status_code == 304
    assert get(app, "/static/../guard.py").status_code == 404
    assert get(app, "/static/%2e%2e%2fguard.py").status_code == 404
    assert get(app, "/static/index.html").status_code == 200


def test_too_long_body_of_page_request_is_rejected() -> None:
    app = site(Desk())
    assert post(app, "/api/requests/x", {"value": "x" * MAX_BODY}).status_code == 413

    async def pieces() -> Any:
        for _ in range(MAX_BODY // 1000 + 10):
            yield b" " * 1000

    async def unsaid() -> httpx.Response:
        return await asked(app, "POST", "/api/requests/x", content=pieces())

    assert asyncio.run(unsaid()).status_code == 413


def test_request_whose_body_never_ends_returns_408() -> None:
    app = page_app(make_site(Desk(), MemoryStore()), HOSTS, KEY, body_timeout=0.02)

    async def body(piece: bytes) -> Any:
        yield b'{"input": '
        while True:
            await asyncio.sleep(0.001 if piece else AGES)
            yield piece

    for path, piece in product(("/api/runs", "/api/requests/x"), (b"", b" ")):
        late = asyncio.run(asked(app, "POST", path, content=body(piece)))
        assert late.status_code == 408
        assert "arrived too slowly" in late.json()["error"]
        assert late.headers["connection"] == "close"


def test_connection_whose_request_body_never_ends_is_closed() -> None:
    app = page_app(make_site(Desk(), MemoryStore()), HOSTS, KEY, body_timeout=0.02)
    with served(app) as home, socket.create_connection(("127.0.0.1", int(home.rpartition(":")[2])), PATIENCE) as client:
        port = client.getpeername()[1]
        head = f"POST /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: {home}\r\nCookie: acorn_{port}={KEY}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        told = b"".join(iter(lambda: client.recv(65536), b""))
    assert told.startswith(b"HTTP/1.1 408 ")


def test_body_timeout_does_not_apply_after_body_is_complete() -> None:
    coming = [{"type": "http.request", "body": b"{}", "more_body": False}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        if len(coming) == 1:
            await asyncio.sleep(0.001)
        return coming.pop(0)

    async def main() -> list[Any]:
        body = LimitedBody(receive, 100, "too large", 0.0)
        return [await body(), await body()]

    assert [each["type"] for each in asyncio.run(main())] == ["http.request", "http.disconnect"]


def test_page_server_listens_on_loopback_address_at_next_free_port() -> None:
    with bind_socket("127.0.0.1", 0, is_exact=False) as first:
        name, port = first.getsockname()
        assert name == "127.0.0.1"
        with bind_socket("127.0.0.1", port, is_exact=False) as second:
            assert second.getsockname()[1] != port
        with pytest.raises(OSError, match=r"."):
            bind_socket("127.0.0.1", port, is_exact=True)
        other = socket.gethostbyname(socket.gethostname())
        if not other.startswith("127."):
            with pytest.raises(OSError, match=r"."), socket.create_connection((other, port), timeout=5):
                pass


def test_websocket_request_is_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    asyncio.run(site(Desk())({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
