"""Access checks for the page: Host, Origin, `Sec-Fetch-Site` and the key.

Other pages in the same browser and other users of the machine must not read or start anything. `check_request` is a
pure function. `PageGuard` wraps the whole site, so that no route can skip the check, and adds the security headers to
every response. Only the guard knows the key.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Collection, Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acorn.errors import DeclarationError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY = 1_000_000
"""Bytes that a request body may have."""
MAX_BODY_BY_PATH: Mapping[str, int] = {"/api/runs": 28_000_000}
"""Larger limits by path. The input of a run may contain images and files, which base64 makes a third larger."""
BODY_TIMEOUT = 60.0
"""Seconds in which a body must arrive."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_READ_METHODS = ("GET", "HEAD")
_WRITE_METHODS = ("POST", "DELETE")


class RequestHead(NamedTuple):
    """The method, path and headers of a request."""

    method: str
    path: str
    """Relative to the path where the site is mounted."""
    headers: Mapping[str, list[str]]
    """All values of each header, by lowercase name."""

    def header(self, name: str) -> str | None:
        """Return the value of a header, or "" if it was sent more than once."""
        values = self.headers.get(name, [])
        return None if not values else values[0] if len(values) == 1 else ""


class Refusal(NamedTuple):
    """The reason why a request is rejected."""

    status: int
    message: str
    allow: str | None = None
    """The `Allow` header, if the method is rejected."""


def check_request(head: RequestHead, hosts: Collection[str], key: str | None, cookie: str) -> Refusal | None:
    """Return why a request to the page is rejected, or None. `cookie` is the name of the cookie that holds the key."""
    if (refusal := check_origin(head, hosts)) is not None:
        return refusal
    if head.path == "/login" or key is None or _has_key(head, cookie, key):
        return None
    return Refusal(401, "The key is missing. Open the address that `acorn web` printed when it started.")


def check_origin(head: RequestHead, hosts: Collection[str], *, is_page: bool = True) -> Refusal | None:
    """Return why a request is rejected regardless of its key, or None.

    Requests of the page must have an Origin. Requests of programs need none.
    """
    if head.method not in (*_READ_METHODS, *_WRITE_METHODS):
        allowed = (*_READ_METHODS, *(_WRITE_METHODS if is_page else ("POST",)))
        return Refusal(405, f"The method `{head.method}` is not supported.", ", ".join(allowed))
    host = head.header("host")
    if not host or host_name(host) not in hosts:
        return Refusal(
            403,
            f"The host name `{_printable(host)}` is not allowed for this {'page' if is_page else 'service'}. To use "
            f"it, start the server with `--allow-host {_printable(host_name(host or ''))}`.",
        )
    origin, is_write = head.header("origin"), head.method in _WRITE_METHODS
    if (origin is None and is_write and is_page) or (
        origin is not None and origin not in (f"http://{host}", f"https://{host}")
    ):
        return Refusal(403, f"Requests from `{_printable(origin)}` are not allowed, only those of the page itself.")
    site = head.header("sec-fetch-site")
    # The login address may be opened from a local file, which counts as another site. It only sets a cookie.
    if site not in (None, "same-origin", "none") and head.path != "/login":
        return Refusal(403, "Requests from other pages are not allowed.")
    if is_write and (head.header("content-type") or "").partition(";")[0].strip().lower() != "application/json":
        return Refusal(415, "The content type must be `application/json`.")
    return None


def host_name(host: str) -> str:
    """Return a host without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def normalize_hosts(hosts: Collection[str], where: str) -> frozenset[str]:
    """Return the host names under which a site answers, without ports."""
    if isinstance(hosts, str):
        raise DeclarationError(f"`hosts` of {where} must be a list of strings, not one string.")
    bracketed = (f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host for host in hosts)
    return frozenset(map(host_name, bracketed))


def check_key(key: object, where: str) -> None:
    """Raise `DeclarationError` for an empty key and for a key that a header cannot carry."""
    if not isinstance(key, str) or not key or not key.isascii() or not key.isprintable() or set(key) & set(' ;,"\\'):
        raise DeclarationError(
            f"A key of {where} must be a non-empty string of ASCII letters, digits and signs without spaces, quotes, "
            f"commas, semicolons and backslashes. Check whether an environment variable is unset."
        )


def _printable(text: str | None) -> str:
    return "".join(char for char in text or "unknown" if char.isascii() and char.isprintable())[:100]


def _has_key(head: RequestHead, cookie: str, key: str) -> bool:
    return any(keys_match(value, key) for value in _cookie_values(head.headers.get("cookie", []), cookie))


def keys_match(candidate: str, key: str) -> bool:
    """Compare two keys in constant time."""
    return hmac.compare_digest(candidate.encode("utf-8", "replace"), key.encode())


def _cookie_values(headers: Iterable[str], name: str) -> list[str]:
    """Return every value of a cookie. Another page on this host may have set a cookie with the same name."""
    values: list[str] = []
    for part in (part for header in headers for part in header.split(";")):
        try:
            morsel = SimpleCookie(part.strip()).get(name)
        except CookieError:
            continue
        values += [] if morsel is None else [morsel.value]
    return values


def cookie_name(port: int) -> str:
    """Return the name of the login cookie. Browsers share cookies between ports, so the name contains the port."""
    return f"acorn_{port}"


class PageGuard:
    """The site of the page, wrapped in its access checks."""

    def __init__(
        self, site: ASGIApp, hosts: Collection[str], key: str | None, *, body_timeout: float = BODY_TIMEOUT
    ) -> None:
        if key is not None:
            check_key(key, "`acorn.web.app`")
        self._site = site
        self._hosts = normalize_hosts(hosts, "`acorn.web.app`")
        self._key = key
        self._body_timeout = body_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        path, mount = mounted_path(scope)
        cookie = cookie_name((scope.get("server") or ("", 0))[1] or 0)
        head = RequestHead(str(scope["method"]), path, headers_of(scope))
        response = _GuardedResponse(send, path)
        refusal = check_request(head, self._hosts, self._key, cookie)
        if refusal is not None:
            await response.refuse(refusal)
        elif path == "/login":
            await self._log_in(scope, mount, cookie, response)
        else:
            limit = MAX_BODY_BY_PATH.get(path, MAX_BODY)
            if content_length(head) > limit:
                await response.refuse(body_too_large(limit))
                return
            await self._site(scope, LimitedBody(receive, limit, self._body_timeout), response.send)

    async def _log_in(self, scope: Scope, mount: str, cookie: str, response: _GuardedResponse) -> None:
        """Store the key of the address in a cookie, then open the page.

        The response is a page that refreshes itself. After a redirect that started in a local file, a browser would not
        send a strict cookie.
        """
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if self._key is not None and not keys_match(query.get("key", [""])[0], self._key):
            await response.refuse(Refusal(401, "The key is wrong. Open the address that `acorn web` printed last."))
            return
        target = query.get("next", ["/"])[0]
        is_local = (
            target.startswith("/") and not target.startswith("//") and target.isprintable() and "\\" not in target
        )
        refresh = f'<meta http-equiv="refresh" content="0;url={_escape(mount + (target if is_local else "/"))}">'
        set_cookie = f"{cookie}={self._key or ''}; HttpOnly; SameSite=Strict; Path={mount or '/'}"
        headers = {"content-type": "text/html; charset=utf-8", "set-cookie": set_cookie, "cache-control": "no-store"}
        icon = '<link rel="icon" href="data:,">'  # Otherwise the browser requests `/favicon.ico` and logs an error.
        body = f'<!doctype html><html lang="en"><title>acorn</title>{icon}{refresh}</html>'
        await response.send_body(200, headers, body.encode())


class _GuardedResponse:
    """A response with the security headers."""

    def __init__(self, send: Send, path: str) -> None:
        self._send = send
        self._is_api = path.startswith("/api/")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.decode("latin-1").lower() for name, _ in message["headers"]}
            required = {**HEADERS, **({"cache-control": "no-store"} if self._is_api else {})}
            added = [(name.encode(), value.encode()) for name, value in required.items() if name not in present]
            message = {**message, "headers": [*message["headers"], *added]}
        await self._send(message)

    async def send_body(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        length = (b"content-length", str(len(body)).encode())
        await self.send({"type": "http.response.start", "status": status, "headers": [*encoded, length]})
        await self.send({"type": "http.response.body", "body": body})

    async def refuse(self, refusal: Refusal) -> None:
        if self._is_api:
            kind, text = "application/json", json.dumps({"error": refusal.message})
        else:
            kind, text = "text/plain; charset=utf-8", f"{refusal.message}\n"
        headers = {"content-type": kind, "cache-control": "no-store"}
        if refusal.allow is not None:
            headers["allow"] = refusal.allow
        await self.send_body(refusal.status, headers, text.encode())


class BodyTooLargeError(Exception):
    """A request body exceeds its limit."""


class BodyTimeoutError(Exception):
    """A request body did not arrive in time."""


class LimitedBody:
    """An ASGI `receive` that limits the size of the body and the time it takes. `Content-Length` cannot be trusted.

    After the last piece there is no time limit: the next message is the client's disconnect.
    """

    def __init__(self, receive: Receive, limit: int, timeout: float | None = None) -> None:
        self._receive, self._bytes_left, self._timeout = receive, limit, timeout
        self._deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout

    async def __call__(self) -> Message:
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise BodyTimeoutError(f"The request did not arrive within {self._timeout:g} seconds.") from None
        if not message.get("more_body", False):
            self._deadline = None
        self._bytes_left -= len(message.get("body", b""))
        if self._bytes_left < 0:
            raise BodyTooLargeError
        return message


def body_too_large(limit: int) -> Refusal:
    """Return the refusal of a body that exceeds its limit."""
    if limit in MAX_BODY_BY_PATH.values():
        return Refusal(413, "The images and files of an input may have at most 20 MB in total.")
    return Refusal(413, f"A request may have at most {limit:,} bytes.")


def content_length(head: RequestHead) -> int:
    """Return the length that the request declares."""
    text = head.header("content-length") or "0"
    return int(text) if text.isascii() and text.isdigit() else 0


def headers_of(scope: Scope) -> dict[str, list[str]]:
    """Return all values of each header, by lowercase name."""
    values: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return values


def mounted_path(scope: Scope) -> tuple[str, str]:
    """Return the path of a request below the mount point, and the mount point."""
    path, mount = str(scope["path"]), str(scope.get("root_path", ""))
    return ((path[len(mount) :] or "/") if mount and path.startswith(mount) else path), mount


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
