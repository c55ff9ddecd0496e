"""The ASGI application around the page and the services: access checks, limits of request bodies, and error responses.

The checks protect runs from other pages in the same browser and from other users of the machine. `Guard` wraps the
whole application, so that no route can skip the checks. It also adds the security headers to every response.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acorn.errors import DeclarationError
from acorn.web.key_variables import KEYS_VARIABLE

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_DEFAULT_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_READ_METHODS = ("GET", "HEAD")
BODY_SECONDS = 60.0
"""The number of seconds in which a complete request body must arrive, without the time for a large body."""
_MIN_RATE = 50_000
"""The number of bytes of a request body that give the client one more second."""
MAX_BODY = 1_000_000
"""The maximum number of bytes of a request body without media."""
_MAX_MEDIA = 20_000_000
"""The number of bytes of media that a body may contain if the agent sets no limit."""
_MIN_KEY_LENGTH = 8
_KEY = "acorn.key"
_DIGEST_ROUNDS = 200_000

ErrorHandler = Callable[[Request, Exception], Awaitable[Response]]
"""A function that returns the response for an error."""


@dataclass(frozen=True)
class AccessKey:
    """A key that gives access to an application."""

    value: str = field(repr=False)
    name: str | None = None
    is_approver: bool = False
    """Whether the key belongs to a person who may answer requests for human input."""

    @cached_property
    def owner(self) -> str:
        """The digest that a store keeps for the runs of this key.

        The digest of a key with a name is made from the name, so that a new key with the same name owns the same runs.
        """
        text = f"key {self.value}" if self.name is None else f"name {self.name}"
        # A fast hash would let a reader of the store guess a weak key.
        return hashlib.pbkdf2_hmac("sha256", text.encode(), b"acorn: the owner of a run", _DIGEST_ROUNDS).hex()


def read_keys(texts: Collection[str], where: str, *, is_approver: bool = False) -> list[AccessKey]:
    """Return the access keys from texts of the form `KEY` or `NAME=KEY`.

    `where` is the name of the function or the command that has received the keys. Error messages use it.
    """
    keys: list[AccessKey] = []
    for text in texts:
        check_key(text, where)
        name, _, value = text.partition("=")
        has_name = bool(name and value.strip("="))  # Signs `=` at the end are part of a key in base64.
        keys.append(AccessKey(value if has_name else text, name if has_name else None, is_approver))
    return keys


def configured_keys(
    texts: Collection[str], where: str, variable: str = KEYS_VARIABLE, *, is_approver: bool = False
) -> list[AccessKey]:
    """Return the access keys of a server from the texts, or without texts, from an environment variable."""
    texts = texts or os.environ.get(variable, "").replace(",", " ").split()
    keys = read_keys(texts, where, is_approver=is_approver)
    if any(len(key.value) < _MIN_KEY_LENGTH for key in keys):
        raise DeclarationError(f"A key of {where} must consist of at least {_MIN_KEY_LENGTH} characters.")
    return keys


def new_key(*, is_approver: bool = False) -> AccessKey:
    """Return a new random key."""
    return AccessKey(secrets.token_urlsafe(32), is_approver=is_approver)


@dataclass(frozen=True)
class AccessRules:
    """The rules of access that differ between the page and the services."""

    hosts: Collection[str]
    keys: Sequence[AccessKey]
    """The access keys. If none of them belongs to a client, everyone who can reach the application can use it."""
    find_keys: Callable[[Request], Iterable[str]]
    """Returns the possible keys in a request."""
    missing_key: str
    """The error message for a request without a valid key."""
    public_path: str
    """The path that needs no key."""
    methods: Sequence[str]
    needs_origin: bool
    """Whether a request that changes data must have an Origin header."""
    max_body: Callable[[str], tuple[int, str]]
    """Returns the maximum number of bytes of a request body to a path, and the error message for a larger body."""
    body_timeout: float = BODY_SECONDS
    """The number of seconds in which a complete request body must arrive, without the time for a large body."""
    json_methods: Collection[str] = ("POST", "DELETE")
    """The methods that require a request body in JSON."""


def check_request(request: Request, rules: AccessRules) -> AccessKey | None:
    """Check the method, the headers and the access key of a request. Raise `HTTPException` to reject the request.

    Return the access key, or None if the request has none and needs none.
    """
    if request.method not in rules.methods:
        message = f"The server does not support the method `{request.method}`."
        raise HTTPException(405, message, {"allow": ", ".join(rules.methods)})
    path, host = path_below_mount(request.scope), _header(request, "host")
    if not host or host_name(host) not in rules.hosts:
        raise HTTPException(
            403,
            f"The server does not allow the host name `{_printable(host)}`. To allow the host name, start the "
            f"server with `--allow-host {_printable(host_name(host or ''))}`.",
        )
    origin, is_write = _header(request, "origin"), request.method not in _READ_METHODS
    is_own = origin in (f"http://{host}", f"https://{host}")
    if not is_own and (origin is not None or (is_write and rules.needs_origin)):
        message = f"Requests from `{_printable(origin)}` are not allowed. Use the page to send requests."
        raise HTTPException(403, message)
    # A local file may open the login address, although browsers treat the file as another site.
    if _header(request, "sec-fetch-site") not in (None, "same-origin", "none") and path != "/login":
        raise HTTPException(403, "Requests from other sites are not allowed. Use the page to send requests.")
    content_type = (_header(request, "content-type") or "").partition(";")[0].strip().lower()
    if request.method in rules.json_methods and content_type != "application/json":
        raise HTTPException(415, "The content type of the request must be `application/json`.")
    key = find_key(rules.find_keys(request), rules.keys)
    needs_key = path != rules.public_path and any(not each.is_approver for each in rules.keys)
    if key is None and needs_key:
        raise HTTPException(401, rules.missing_key)
    length, (limit, message) = _header(request, "content-length") or "", rules.max_body(path)
    if length.isascii() and length.isdigit() and int(length) > limit:
        raise HTTPException(413, message)
    return key


def key_of(request: Request) -> AccessKey | None:
    """Return the access key with which the client has sent a request, or None for a request without a key."""
    key: AccessKey | None = request.scope.get(_KEY)
    return key


def bearer_keys(request: Request) -> list[str]:
    """Return the key in the header `Authorization: Bearer KEY`, as a list."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return [key.strip()] if scheme.lower() == "bearer" else []


def input_limit(has_media: bool, max_media_bytes: int | None) -> int:
    """Return the default for the maximum number of bytes of a request body that contains the input of an agent."""
    return MAX_BODY + (4 * (max_media_bytes or _MAX_MEDIA) // 3 if has_media else 0)  # base64 enlarges by a third.


def too_large(limit: int) -> tuple[int, str]:
    """Return a limit of the size of a request body, with its error message."""
    return limit, f"The request body is too large. It may have at most {limit:,} bytes."


def _header(request: Request, name: str) -> str | None:
    """Return the value of a header.

    Return None if the header is missing, and an empty string if the header occurs more than once.
    """
    values = request.headers.getlist(name)
    return None if not values else values[0] if len(values) == 1 else ""


def find_key(candidates: Iterable[str], keys: Sequence[AccessKey]) -> AccessKey | None:
    """Return the valid key among the candidates, or None.

    A comparison takes the same time for every wrong key, so that response times reveal nothing about the keys.
    """
    texts = [candidate.encode("utf-8", "replace") for candidate in candidates]
    found = [key for text in texts for key in keys if hmac.compare_digest(text, key.value.encode())]
    return found[0] if found else None


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


def path_below_mount(scope: Scope) -> str:
    """Return the path of a request below the path at which another application has mounted this application."""
    path, mount = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(mount) or "/"


def guarded_app(routes: Sequence[BaseRoute], rules: AccessRules, on_error: ErrorHandler) -> Starlette:
    """Return an application that rejects unauthorized requests, and that answers each error with `on_error`."""
    middleware = [Middleware(Guard, rules, on_error)]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: on_error})
    app.router.redirect_slashes = False
    return app


class Guard:
    """ASGI middleware that passes only allowed requests to the application, and answers all errors."""

    def __init__(self, app: ASGIApp, rules: AccessRules, on_error: ErrorHandler) -> None:
        self._app, self._rules, self._on_error = app, rules, on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, has_started = Request(scope), False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(raw=message["headers"])
                for name, value in _DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
            try:
                await send(message)
            except OSError as error:  # Some servers raise `OSError` after a disconnect.
                raise ClientDisconnect from error

        try:
            scope[_KEY] = check_request(request, self._rules)
            limit, message = self._rules.max_body(path_below_mount(scope))
            body = LimitedBody(receive, limit, message, self._rules.body_timeout)
            await self._app(scope, body, send_with_headers)
        except ClientDisconnect:
            return
        except Exception as error:
            if has_started:
                raise
            response = await self._on_error(request, error)
            await response(scope, receive, send_with_headers)


class LimitedBody:
    """A wrapper around the ASGI function `receive` that limits the size and the duration of the request body.

    It counts the received bytes, because `Content-Length` may be wrong. The time limit applies only until the body is
    complete. The next message reports that the client disconnected, which may happen much later.
    """

    def __init__(self, receive: Receive, limit: int, message: str, timeout: float | None = None) -> None:
        self._receive, self._bytes_left, self._message = receive, limit, message
        self._deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout

    async def __call__(self) -> Message:
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            # Close the connection, because the client may never finish the body.
            text = "The request body arrived too slowly, so the server stopped reading it."
            raise HTTPException(408, text, {"connection": "close"}) from None
        size = len(message.get("body", b""))
        if not message.get("more_body", False):
            self._deadline = None
        elif self._deadline is not None:
            self._deadline += size / _MIN_RATE
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise HTTPException(413, self._message)
        return message


class EventStream(StreamingResponse):
    """A stream of server-sent events.

    When the stream ends or the client disconnects, it closes the generator of the messages and calls `close`. Starlette
    only cancels the generator, and cancels it again at each `await` of its cleanup. `close` is not cancelled.
    """

    media_type = "text/event-stream"

    def __init__(self, messages: AsyncGenerator[bytes], close: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(messages, headers={"x-accel-buffering": "no"})
        self._messages, self._close = messages, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._messages.aclose()
            if self._close is not None:
                await self._close()
