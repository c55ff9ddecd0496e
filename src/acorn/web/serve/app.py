"""Who may use the service: the Host and the Origin as on the page, and a key in `Authorization`.

The addresses of the service: each reads a request, has the agent run, and answers.

The service as an ASGI application: its addresses behind the gate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from acorn import Paused, Run, module
from acorn._inside import RESULT, aresume, parse_input
from acorn.errors import DeclarationError
from acorn.stores.open import open_store
from acorn.web.guard import (
    LOOPBACK,
    Asked,
    Body,
    Refusal,
    TooLongError,
    check_key,
    from_elsewhere,
    headers_of,
    is_key,
    known_names,
    length_of,
    too_long,
)
from acorn.web.serve.exchange import (
    ClientDisconnectedError,
    ErrorReply,
    Exchange,
    WrongError,
    check_finished,
    is_logged,
    reply_for_error,
)
from acorn.web.serve.openai_api import CompletionStream, completion, models, read_completion
from acorn.web.serve.openapi import described
from acorn.web.serve.service import CONCURRENCY, TIMEOUT, Agent, Service
from acorn.web.serve.streams import Chunk, ChunkStream, Stream, in_batches, paused

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


class ServiceGuard:
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
        told = ErrorReply(refusal.status, _KINDS[refusal.status], refusal.words, {}, allow=refusal.allow)
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


Act = Callable[[Exchange], Awaitable[None]]
_ANSWER = "/runs/{id}/answer"
_HERE = b": here\n\n"


class Routes:
    """The addresses of one service."""

    def __init__(self, service: Service, *, has_key: bool) -> None:
        self._service = service
        self._since = int(time.time())
        self._document = service.secrets.json(described(service.agent, has_key=has_key))
        self._gets: Mapping[str, Act] = {
            "/health": self.health,
            "/openapi.json": self.document,
            "/v1/models": self.models,
        }
        self._posts: Mapping[str, Act] = {
            "/run": self._placed(self.run),
            "/stream": self._placed(self.stream),
            "/v1/chat/completions": self._placed(self.chat),
        }

    @property
    def addresses(self) -> list[tuple[str, str]]:
        """All there is: how it is asked for, and where."""
        return [*(("POST", path) for path in (*self._posts, _ANSWER)), *(("GET", path) for path in self._gets)]

    async def __call__(self, exchange: Exchange) -> None:
        try:
            await self._found(exchange)(exchange)
        except ClientDisconnectedError:
            return
        except Exception as error:
            try:
                await self._fail(exchange, error)
            except ClientDisconnectedError:
                return

    def _found(self, exchange: Exchange) -> Act:
        path, is_read = exchange.path, exchange.method in ("GET", "HEAD")
        here, there = (self._gets, self._posts) if is_read else (self._posts, self._gets)
        is_answer = path.startswith("/runs/") and path.endswith("/answer")
        if path in here and exchange.method != "DELETE":
            return here[path]
        if is_answer and exchange.method == "POST":
            return self._placed(partial(self.answer, path.removeprefix("/runs/").removesuffix("/answer")))
        if path in here or path in there or is_answer:
            words = f"`{exchange.method}` is nothing that can be done at `{path}`."
            raise WrongError(405, "method", words, allow="GET, HEAD" if path in self._gets else "POST")
        known = ", ".join(f"`{each}`" for _, each in self.addresses)
        raise WrongError(404, "address", f"There is nothing at this address; there are {known}.")

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, TooLongError):
            error = WrongError(413, "body", too_long(BODY).words)
        told = reply_for_error(error)
        if is_logged(told):
            self._service.log(error)
        body = self._service.told(told)
        if exchange.has_begun:
            await exchange.event(b"data: " + body + b"\n\n")
            await exchange.end()
        else:
            await exchange.answer(told.status, body, told.headers)

    # What is only told

    async def health(self, exchange: Exchange) -> None:
        is_closing = self._service.is_closing
        status = b'{"status":"stopping"}' if is_closing else b'{"status":"ok"}'
        await exchange.answer(503 if is_closing else 200, status)

    async def document(self, exchange: Exchange) -> None:
        await exchange.answer(200, self._document)

    async def models(self, exchange: Exchange) -> None:
        await self._answer(exchange, 200, models(self._service.name, self._since))

    # Runs

    def _placed(self, act: Callable[[Exchange, Any, float], Awaitable[None]]) -> Act:
        """An act that has a place among the runs, the body of its request, and the time at which it must be over."""

        async def placed(exchange: Exchange) -> None:
            service = self._service
            with service.place():
                until = asyncio.get_running_loop().time() + service.timeout
                try:
                    async with asyncio.timeout_at(until):
                        body = await exchange.json()
                except TimeoutError:
                    raise service.late() from None
                await act(exchange, body, until)

        return placed

    async def run(self, exchange: Exchange, body: Any, until: float) -> None:
        agent = self._service.agent
        await self._ended(exchange, await self._attended(exchange, agent.arun(*self._arguments(body)), until))

    async def stream(self, exchange: Exchange, body: Any, until: float) -> None:
        chunks = self._service.agent.astream(*self._arguments(body))
        await self._sent(exchange, chunks, ChunkStream(self._service.secrets), until)

    async def answer(self, run_id: str, exchange: Exchange, body: Any, until: float) -> None:
        service = self._service
        given, is_one = _answers(body)
        if service.spec.store is None:
            raise WrongError(409, "store", "No runs are kept here, so none can go on: start it with `--store`.")
        store = open_store(service.spec.store, "`acorn serve`")
        if not await asyncio.to_thread(store.read, run_id):
            raise WrongError(404, "run", "There is no such run here.")
        run = await self._attended(exchange, aresume(service.agent, run_id, given, is_one=is_one), until)
        await self._ended(exchange, run)

    async def chat(self, exchange: Exchange, body: Any, until: float) -> None:
        service, spec = self._service, self._service.spec
        wanted = read_completion(body, service.name, spec.input, spec.output)
        agent: Agent = service.agent.using(history=wanted.history) if wanted.history else service.agent
        arguments = self._arguments(wanted.given)
        if wanted.streams:
            form = CompletionStream(service.name, spec.output, service.secrets, tells_usage=wanted.tells_usage)
            await self._sent(exchange, agent.astream(*arguments), form, until)
            return
        run = await self._attended(exchange, agent.arun(*arguments), until)
        status = 202 if isinstance(run.output, Paused) else 200
        await self._answer(exchange, status, completion(run, service.name, spec.output), run)

    def _arguments(self, given: Any) -> tuple[Any, ...]:
        """What the agent is called with; an `InputError` names every wrong field."""
        shape = self._service.spec.input
        if shape.wrapped:
            given = {RESULT: given}
        elif shape.is_empty and given is None:
            given = {}
        made = parse_input(self._service.agent, given)
        return () if shape.is_empty else (shape.unwrap(made),)

    async def _attended(self, exchange: Exchange, work: Any, until: float) -> Run:
        run: Run = await self._service.attended(exchange, work, until)
        return run

    async def _ended(self, exchange: Exchange, run: Run) -> None:
        if isinstance(run.output, Paused):
            await self._answer(exchange, 202, paused(run.output), run)
            return
        check_finished(run)
        await self._answer(exchange, 200, run.output, run)

    async def _sent(self, exchange: Exchange, chunks: AsyncGenerator[Chunk], form: Stream, until: float) -> None:
        async def send() -> None:
            async with aclosing(in_batches(chunks)) as batches:
                async for batch in batches:
                    await exchange.event(form.written(batch) if batch else _HERE)
            await exchange.end()

        await self._service.attended(exchange, send(), until)

    async def _answer(self, exchange: Exchange, status: int, value: Any, run: Run | None = None) -> None:
        headers = {} if run is None else {"x-run-id": run.id}
        await exchange.answer(status, self._service.secrets.json(value), headers)


def _answers(body: Any) -> tuple[Any, bool]:
    """What was answered, and whether it is the answer to the one request there is."""
    if isinstance(body, dict) and set(body) == {"answer"}:
        return body["answer"], True
    if isinstance(body, dict) and set(body) == {"answers"} and isinstance(body["answers"], dict):
        return body["answers"], False
    raise WrongError(
        422,
        "input",
        'The body is `{"answer": ...}`, or `{"answers": {...}}` with an answer for each request by its id.',
    )


def gated(service: Service, hosts: Collection[str], keys: Collection[str]) -> ASGIApp:
    """The whole service behind its gate."""
    return ServiceGuard(service, Routes(service, has_key=bool(keys)), hosts, keys)


def service(
    agent: module[Any, Any],
    *,
    keys: Collection[str] = (),
    hosts: Collection[str] = LOOPBACK,
    timeout: float = TIMEOUT,
    concurrency: int = CONCURRENCY,
) -> ASGIApp:
    """An agent as an HTTP service, an ASGI application: what `acorn serve` serves.

        app.mount("/researcher", acorn.web.service(Researcher(), keys=[os.environ["KEY"]], hosts=["example.com"]))

    Without `keys`, whoever reaches the application may use it: put it behind your own login. It answers to the names
    in `hosts` alone. A run has so many seconds, and so many may be under way at once.
    """
    if isinstance(keys, str):
        raise DeclarationError("`keys` of `acorn.web.service` is a list of texts, not one text.")
    for key in keys:
        check_key(key, "`acorn.web.service`")
    return gated(Service(agent, keys, timeout, concurrency), hosts, keys)
