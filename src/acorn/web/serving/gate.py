"""Who may use the service: the Host and the Origin as on the page, and a key in `Authorization`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from starlette.types import Receive, Scope, Send

from acorn.web.guard import Asked, Body, Refusal, from_elsewhere, headers_of, is_key, known_names, length_of, too_long
from acorn.web.serving.exchange import Exchange
from acorn.web.serving.failures import Told
from acorn.web.serving.service import Service

BODY = 20_000_000
"""Bytes that a request may have."""
_OPEN = ("/health",)
"""What needs no key: it tells nothing but that the server is there."""
_FOR_PEOPLE = """This is an agent as a service. It is for programs, and it asks for a key.

The key is one of those that the server was started with; without any, `acorn serve` printed a new one:

    curl {home}/openapi.json -H 'Authorization: Bearer KEY'

tells what there is. To try the agent in a browser instead: `acorn web agent.py`.
"""
_KINDS = {401: "key", 403: "refused", 405: "method", 413: "body", 415: "body"}


class Gate:
    """The service behind its gate."""

    def __init__(
        self,
        service: Service,
        answer: Callable[[Exchange], Awaitable[None]],
        hosts: Collection[str],
        keys: Collection[str],
    ) -> None:
        self._service, self._answer = service, answer
        self._hosts = known_names(hosts, "`acorn.web.service`")
        self._keys = tuple(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        path, mounted = str(scope["path"]), str(scope.get("root_path", ""))
        path = (path[len(mounted) :] or "/") if mounted and path.startswith(mounted) else path
        asked = Asked(str(scope["method"]), path, headers_of(scope))
        exchange = Exchange(scope, path, Body(receive, BODY), send)
        refusal = self._refusal(asked)
        if refusal is None:
            await self._answer(exchange)
            return
        more = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
        if refusal.status == 401 and "text/html" in (asked.one("accept") or ""):
            home = f"{scope.get('scheme', 'http')}://{asked.one('host')}{mounted}"
            more["content-type"] = "text/plain; charset=utf-8"
            await exchange.answer(401, _FOR_PEOPLE.format(home=home).encode("utf-8", "replace"), more)
            return
        told = Told(refusal.status, _KINDS[refusal.status], refusal.words, {}, allow=refusal.allow)
        await exchange.answer(refusal.status, self._service.told(told), {**more, **told.headers})

    def _refusal(self, asked: Asked) -> Refusal | None:
        refusal = from_elsewhere(asked, self._hosts, is_page=False)
        if refusal is not None:
            return refusal
        if self._keys and asked.path not in _OPEN and not self._has_key(asked):
            return Refusal(401, "The key is missing or wrong: send one as `Authorization: Bearer KEY`.")
        return too_long(BODY) if length_of(asked) > BODY else None

    def _has_key(self, asked: Asked) -> bool:
        scheme, _, given = (asked.one("authorization") or "").partition(" ")
        # All are compared, so that the time says nothing of which one is nearly right.
        fits = [is_key(given.strip(), key) for key in self._keys]
        return scheme.lower() == "bearer" and any(fits)
