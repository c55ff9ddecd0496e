"""Who may ask for what: the Host, the Origin, where a browser says that a request comes from, and the key.

A page of somebody else's in the same browser must not read or start anything here, and neither must another user of
the machine. `judged` is pure; `Guard` wraps the whole site, so no route can forget it, and puts the headers of safety
on every answer. It alone knows the key.
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
BODY = 1_000_000
"""Bytes that a request may have."""
BODIES: Mapping[str, int] = {"/api/runs": 28_000_000}
"""Those of the routes that take more: an input may have pictures and files, which grow by a third on their way."""
SECONDS = 60.0
"""How long a body may take to come in."""

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
_READS = ("GET", "HEAD")
_WRITES = ("POST", "DELETE")


class Asked(NamedTuple):
    """A request, as far as it is judged."""

    method: str
    path: str
    """Below where the site is mounted."""
    headers: Mapping[str, list[str]]
    """All values of each, by their names in small letters."""

    def one(self, name: str) -> str | None:
        """The value of a header that was sent once; "" where it was sent more often."""
        values = self.headers.get(name, [])
        return None if not values else values[0] if len(values) == 1 else ""


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    words: str
    allow: str | None = None
    """What can be done instead, where it is the method that is refused."""


def judged(asked: Asked, hosts: Collection[str], key: str | None, cookie: str) -> Refusal | None:
    """Why this is refused; None where it may pass. `cookie` is the name under which the key is kept."""
    if (refusal := from_elsewhere(asked, hosts)) is not None:
        return refusal
    if asked.path == "/login" or key is None or _has_key(asked, cookie, key):
        return None
    return Refusal(401, "The key is missing: open the address that `acorn web` printed when it was started.")


def from_elsewhere(asked: Asked, hosts: Collection[str], *, is_page: bool = True) -> Refusal | None:
    """Why a request is refused whatever key it has. A page says where its requests come from, a program need not."""
    if asked.method not in (*_READS, *_WRITES):
        allowed = (*_READS, *(_WRITES if is_page else ("POST",)))
        return Refusal(405, f"`{asked.method}` is nothing that can be done here.", ", ".join(allowed))
    host = asked.one("host")
    if not host or host_name(host) not in hosts:
        return Refusal(
            403,
            f"This {'page' if is_page else 'service'} does not go by the name `{_shown(host)}`; if you reach it by "
            f"that name, start it with `--allow-host {_shown(host_name(host or ''))}`.",
        )
    origin, writes = asked.one("origin"), asked.method in _WRITES
    if (origin is None and writes and is_page) or (
        origin is not None and origin not in (f"http://{host}", f"https://{host}")
    ):
        return Refusal(403, f"A request from `{_shown(origin)}` is not answered here: only the page's own are.")
    site = asked.one("sec-fetch-site")
    # The address with the key may be opened from a file, which is another site; it does nothing but hand out a cookie.
    if site not in (None, "same-origin", "none") and asked.path != "/login":
        return Refusal(403, "A request that comes from another page is not answered here.")
    if writes and (asked.one("content-type") or "").partition(";")[0].strip().lower() != "application/json":
        return Refusal(415, "Only `application/json` is taken here.")
    return None


def host_name(host: str) -> str:
    """A host without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def known_names(hosts: Collection[str], where: str) -> frozenset[str]:
    """The names that a site goes by."""
    if isinstance(hosts, str):
        raise DeclarationError(f"`hosts` of {where} is a list of texts, not one text.")
    bare = (f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host for host in hosts)
    return frozenset(map(host_name, bare))


def check_key(key: object, where: str) -> None:
    """Refuse a key that anybody would have, or that no header can carry."""
    if not isinstance(key, str) or not key or not key.isascii() or not key.isprintable() or set(key) & set(' ;,"\\'):
        raise DeclarationError(
            f"A key of {where} is a text of plain letters, digits and signs, without blanks, quotes, commas and "
            f"semicolons, and not empty; is a variable of the environment unset?"
        )


def _shown(text: str | None) -> str:
    return "".join(letter for letter in text or "nobody" if letter.isascii() and letter.isprintable())[:100]


def _has_key(asked: Asked, cookie: str, key: str) -> bool:
    return any(is_key(value, key) for value in _cookies(asked.headers.get("cookie", []), cookie))


def is_key(given: str, key: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), key.encode())


def _cookies(headers: Iterable[str], name: str) -> list[str]:
    """Every value of a cookie: another page of this host may have set one by the same name."""
    found: list[str] = []
    for part in (each for header in headers for each in header.split(";")):
        try:
            morsel = SimpleCookie(part.strip()).get(name)
        except CookieError:
            continue
        found += [] if morsel is None else [morsel.value]
    return found


def cookie_name(port: int) -> str:
    """Cookies know no ports: without it, two servers would log each other out."""
    return f"acorn_{port}"


class Guard:
    """The site behind its guard."""

    def __init__(self, site: ASGIApp, hosts: Collection[str], key: str | None, *, seconds: float = SECONDS) -> None:
        if key is not None:
            check_key(key, "`acorn.web.app`")
        self._site = site
        self._hosts = known_names(hosts, "`acorn.web.app`")
        self._key = key
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        path = str(scope["path"])
        mounted = str(scope.get("root_path", ""))
        if mounted and path.startswith(mounted):
            path = path[len(mounted) :] or "/"
        cookie = cookie_name((scope.get("server") or ("", 0))[1] or 0)
        asked = Asked(str(scope["method"]), path, headers_of(scope))
        answer = _Answer(send, path)
        refusal = judged(asked, self._hosts, self._key, cookie)
        if refusal is not None:
            await answer.refuse(refusal)
        elif path == "/login":
            await self._log_in(scope, mounted, cookie, answer)
        else:
            limit = BODIES.get(path, BODY)
            if length_of(asked) > limit:
                await answer.refuse(too_long(limit))
                return
            await self._site(scope, Body(receive, limit, self._seconds), answer.send)

    async def _log_in(self, scope: Scope, mounted: str, cookie: str, answer: _Answer) -> None:
        """Turn the key in the address into a cookie, and go on to the page.

        By a page that refreshes itself and not by a redirect: after one that began in a file, a browser would not
        send a strict cookie.
        """
        given = parse_qs(scope["query_string"].decode("latin-1"))
        if self._key is not None and not is_key(given.get("key", [""])[0], self._key):
            await answer.refuse(Refusal(401, "That is not the key: open the address that `acorn web` printed last."))
            return
        goal = given.get("next", ["/"])[0]
        is_ours = goal.startswith("/") and not goal.startswith("//") and goal.isprintable() and "\\" not in goal
        page = f'<meta http-equiv="refresh" content="0;url={_attribute(mounted + (goal if is_ours else "/"))}">'
        set_cookie = f"{cookie}={self._key or ''}; HttpOnly; SameSite=Strict; Path={mounted or '/'}"
        headers = {"content-type": "text/html; charset=utf-8", "set-cookie": set_cookie, "cache-control": "no-store"}
        icon = '<link rel="icon" href="data:,">'  # else a browser asks for `/favicon.ico`, and complains
        body = f'<!doctype html><html lang="en"><title>acorn</title>{icon}{page}</html>'
        await answer.whole(200, headers, body.encode())


class _Answer:
    """What goes out, with the headers that every answer has."""

    def __init__(self, send: Send, path: str) -> None:
        self._send = send
        self._is_api = path.startswith("/api/")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.decode("latin-1").lower() for name, _ in message["headers"]}
            added = {**HEADERS, **({"cache-control": "no-store"} if self._is_api else {})}
            more = [(name.encode(), value.encode()) for name, value in added.items() if name not in own]
            message = {**message, "headers": [*message["headers"], *more]}
        await self._send(message)

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        written = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        length = (b"content-length", str(len(body)).encode())
        await self.send({"type": "http.response.start", "status": status, "headers": [*written, length]})
        await self.send({"type": "http.response.body", "body": body})

    async def refuse(self, refusal: Refusal) -> None:
        if self._is_api:
            kind, text = "application/json", json.dumps({"error": refusal.words})
        else:
            kind, text = "text/plain; charset=utf-8", f"{refusal.words}\n"
        headers = {"content-type": kind, "cache-control": "no-store"}
        if refusal.allow is not None:
            headers["allow"] = refusal.allow
        await self.whole(refusal.status, headers, text.encode())


class TooLongError(Exception):
    """A body that is longer than it may be."""


class TooSlowError(Exception):
    """A body that did not come in time."""


class Body:
    """The body of a request, counted and timed: what it says of its own length is nothing to go by.

    When it is whole, nothing is timed any more: what is heard then is that the client has left.
    """

    def __init__(self, receive: Receive, limit: int, seconds: float | None = None) -> None:
        self._receive, self._left, self._seconds = receive, limit, seconds
        self._until = None if seconds is None else asyncio.get_running_loop().time() + seconds

    async def __call__(self) -> Message:
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            words = f"The request did not come whole within {self._seconds:g} seconds."
            raise TooSlowError(words) from None
        if not message.get("more_body", False):
            self._until = None
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise TooLongError
        return message


def too_long(limit: int) -> Refusal:
    if limit in BODIES.values():
        return Refusal(413, "An input has at most 20 MB of pictures and files, all of them together.")
    return Refusal(413, f"At most {limit:,} bytes are taken here.")


def length_of(asked: Asked) -> int:
    """What a request says of its own length."""
    given = asked.one("content-length") or "0"
    return int(given) if given.isascii() and given.isdigit() else 0


def headers_of(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
