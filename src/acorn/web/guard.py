"""Access checks for the page and the service: the Host, Origin and `Sec-Fetch-Site` headers, and the access key.

The checks protect runs from other pages in the same browser and from other users of the machine. `PageGuard` wraps the
whole site, so that no route can skip the checks. It also adds the security headers to every response. Only the guard
objects store the access key.
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
"""The maximum number of bytes of a request body."""
MAX_BODY_BY_PATH: Mapping[str, int] = {"/api/runs": 28_000_000}
"""Maps a path to a larger body limit. A new run may contain images and files, which base64 enlarges by a third."""
BODY_TIMEOUT = 60.0
"""The number of seconds in which a complete request body must arrive."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_READ_METHODS = ("GET", "HEAD")
_WRITE_METHODS = ("POST", "DELETE")


class RequestHead(NamedTuple):
    """The start of an HTTP request: its method, path and headers, without the body."""

    method: str
    path: str
    """The path of the request, relative to the path where the site is mounted."""
    headers: Mapping[str, list[str]]
    """Maps the lowercase name of a header to all its values."""

    def header(self, name: str) -> str | None:
        """Return the value of a header.

        Return None if the header is missing, and an empty string if the header occurs more than once.
        """
        values = self.headers.get(name, [])
        return None if not values else values[0] if len(values) == 1 else ""


class Refusal(NamedTuple):
    """The HTTP status and the error message of the response to a rejected request."""

    status: int
    message: str
    allow: str | None = None
    """The value of the `Allow` header, or None if the method is allowed."""


def check_request(head: RequestHead, hosts: Collection[str], key: str | None, cookie: str) -> Refusal | None:
    """Check the headers and the access key of a request to the page.

    Return a `Refusal` if the request must be rejected, and None if it is allowed. `cookie` is the name of the cookie
    that contains the access key.
    """
    if (refusal := check_origin(head, hosts)) is not None:
        return refusal
    if head.path == "/login" or key is None or _has_key(head, cookie, key):
        return None
    return Refusal(401, "The key is missing. Open the address that `acorn web` printed when it started.")


def check_origin(head: RequestHead, hosts: Collection[str], *, is_page: bool = True) -> Refusal | None:
    """Check the method and the headers of a request, but not its access key.

    Return a `Refusal` if the request must be rejected, and None if it is allowed. With `is_page`, a request that
    changes data must have an Origin header.
    """
    if head.method not in (*_READ_METHODS, *_WRITE_METHODS):
        allowed = (*_READ_METHODS, *(_WRITE_METHODS if is_page else ("POST",)))
        return Refusal(405, f"The server does not support the method `{head.method}`.", ", ".join(allowed))
    host = head.header("host")
    if not host or host_name(host) not in hosts:
        return Refusal(
            403,
            f"This {'page' if is_page else 'service'} does not allow the host name `{_printable(host)}`. To allow the "
            f"host name, start the server with `--allow-host {_printable(host_name(host or ''))}`.",
        )
    origin, is_write = head.header("origin"), head.method in _WRITE_METHODS
    if (origin is None and is_write and is_page) or (
        origin is not None and origin not in (f"http://{host}", f"https://{host}")
    ):
        return Refusal(403, f"Requests from `{_printable(origin)}` are not allowed. Use the page to send requests.")
    site = head.header("sec-fetch-site")
    # A local file may open the login address, although browsers treat the file as another site.
    if site not in (None, "same-origin", "none") and head.path != "/login":
        return Refusal(403, "Requests from other sites are not allowed. Use the page to send requests.")
    if is_write and (head.header("content-type") or "").partition(";")[0].strip().lower() != "application/json":
        return Refusal(415, "The content type of the request must be `application/json`.")
    return None


def host_name(host: str) -> str:
    """Return the host name from the value of a Host header, in lower case and without the port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def normalize_hosts(hosts: Collection[str], where: str) -> frozenset[str]:
    """Return the allowed host names in lower case and without ports.

    `where` is the name of the public function that has the parameter `hosts`. It is used in error messages.
    """
    if isinstance(hosts, str):
        raise DeclarationError(f"`hosts` of {where} must be a list of strings, not one string.")
    bracketed = (f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host for host in hosts)
    return frozenset(map(host_name, bracketed))


def check_key(key: object, where: str) -> None:
    """Raise `DeclarationError` if an access key is empty or contains characters that an HTTP header does not allow."""
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
    """Return True if two access keys are equal.

    The comparison always takes the same time, so that an attacker cannot guess the key from response times.
    """
    return hmac.compare_digest(candidate.encode("utf-8", "replace"), key.encode())


def _cookie_values(headers: Iterable[str], name: str) -> list[str]:
    """Return all values that a browser sent for one cookie name.

    There may be several values, because another page on the same host may have set a cookie with the same name.
    """
    values: list[str] = []
    for pair in (pair for header in headers for pair in header.split(";")):
        try:
            morsel = SimpleCookie(pair.strip()).get(name)
        except CookieError:
            continue
        values += [] if morsel is None else [morsel.value]
    return values


def cookie_name(port: int) -> str:
    """Return the name of the login cookie of the page on a port.

    The name contains the port, because a browser sends the cookies of a host to all its ports.
    """
    return f"acorn_{port}"


class PageGuard:
    """An ASGI application that checks each request and passes only allowed requests to the page."""

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
        path, mount = split_mount_path(scope)
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
                await response.refuse(size_refusal(limit))
                return
            await self._site(scope, LimitedBody(receive, limit, self._body_timeout), response.send)

    async def _log_in(self, scope: Scope, mount: str, cookie: str, response: _GuardedResponse) -> None:
        """Check the access key in the login URL, set it as a cookie, and open the page.

        The response is a small HTML page that loads the target page. After a redirect, the browser would not send the
        cookie if a local file had opened the login URL, because the cookie has the attribute `SameSite=Strict`.
        """
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if self._key is not None and not keys_match(query.get("key", [""])[0], self._key):
            await response.refuse(
                Refusal(401, "The key is wrong. Open the address that `acorn web` printed at its last start.")
            )
            return
        target = query.get("next", ["/"])[0]
        is_local = (
            target.startswith("/") and not target.startswith("//") and target.isprintable() and "\\" not in target
        )
        refresh = f'<meta http-equiv="refresh" content="0;url={_escape(mount + (target if is_local else "/"))}">'
        set_cookie = f"{cookie}={self._key or ''}; HttpOnly; SameSite=Strict; Path={mount or '/'}"
        headers = {"content-type": "text/html; charset=utf-8", "set-cookie": set_cookie, "cache-control": "no-store"}
        icon = '<link rel="icon" href="data:,">'  # Prevents a failing request to `/favicon.ico`.
        body = f'<!doctype html><html lang="en"><title>acorn</title>{icon}{refresh}</html>'
        await response.send_body(200, headers, body.encode())


class _GuardedResponse:
    """A wrapper around the ASGI function `send` that adds the security headers to the response."""

    def __init__(self, send: Send, path: str) -> None:
        self._send = send
        self._is_api = path.startswith("/api/")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.decode("latin-1").lower() for name, _ in message["headers"]}
            required = {**SECURITY_HEADERS, **({"cache-control": "no-store"} if self._is_api else {})}
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
    """The error that is raised when a request body exceeds its size limit."""


class BodyTimeoutError(Exception):
    """The error that is raised when a request body does not arrive in time."""


class LimitedBody:
    """A wrapper around the ASGI function `receive` that limits the size and the duration of the request body.

    It counts the received bytes, because `Content-Length` may be wrong. The time limit applies only until the body is
    complete. The next message reports that the client disconnected, which may happen much later.
    """

    def __init__(self, receive: Receive, limit: int, timeout: float | None = None) -> None:
        self._receive, self._bytes_left, self._timeout = receive, limit, timeout
        self._deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout

    async def __call__(self) -> Message:
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise BodyTimeoutError(f"The request body did not arrive within {self._timeout:g} seconds.") from None
        if not message.get("more_body", False):
            self._deadline = None
        self._bytes_left -= len(message.get("body", b""))
        if self._bytes_left < 0:
            raise BodyTooLargeError
        return message


def size_refusal(limit: int) -> Refusal:
    """Return the `Refusal` for a request body that is larger than `limit` bytes."""
    if limit in MAX_BODY_BY_PATH.values():
        return Refusal(413, "The images and files of an input are too large. They may have at most 20 MB in total.")
    return Refusal(413, f"The request body is too large. It may have at most {limit:,} bytes.")


def content_length(head: RequestHead) -> int:
    """Return the value of the `Content-Length` header, or 0 if the header is missing or invalid."""
    text = head.header("content-length") or "0"
    return int(text) if text.isascii() and text.isdigit() else 0


def headers_of(scope: Scope) -> dict[str, list[str]]:
    """Return the headers of a request as a dict that maps each lowercase header name to all its values."""
    values: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return values


def split_mount_path(scope: Scope) -> tuple[str, str]:
    """Return two paths: the path of a request below the mount path, and the mount path.

    The mount path is the path at which another server has mounted this application.
    """
    path, mount = str(scope["path"]), str(scope.get("root_path", ""))
    return ((path[len(mount) :] or "/") if mount and path.startswith(mount) else path), mount


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
