"""The HTTP endpoints of the service, and the ASGI application that protects them with access checks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from acorn import Paused, Run, StreamChunk, module
from acorn._inside import RESULT, parse_input
from acorn._inside.runs import aresume
from acorn.errors import DeclarationError
from acorn.stores.open import open_store
from acorn.types import is_json_object
from acorn.web.guard import (
    LOOPBACK,
    BodyTooLargeError,
    LimitedBody,
    Refusal,
    RequestHead,
    check_key,
    check_origin,
    content_length,
    headers_of,
    keys_match,
    normalize_hosts,
    size_refusal,
    split_mount_path,
)
from acorn.web.page.agent import Agent
from acorn.web.serve.openai_api import CompletionEvents, completion_response, model_list, read_completion
from acorn.web.serve.openapi import openapi_document
from acorn.web.serve.responses import (
    ChunkEncoder,
    ChunkEvents,
    ClientDisconnectedError,
    ErrorReply,
    Exchange,
    RejectedRequestError,
    batch_chunks,
    check_finished,
    encode_json,
    paused_json,
    reply_for_error,
)
from acorn.web.serve.service import CONCURRENCY, TIMEOUT, Service

MAX_BODY = 20_000_000
"""The maximum number of bytes of a request body."""
_PUBLIC_PATHS = ("/health",)
"""Paths that need no key, because their responses reveal only that the server is running."""
_BROWSER_HINT = """This is the HTTP service of an agent. It is for programs and needs a key.

Use a key that you passed to the server. If you passed no key, use the new key that `acorn serve` printed at its start.
This command prints a description of the endpoints:

    curl {home}/openapi.json -H 'Authorization: Bearer KEY'

To use the agent in a browser, run `acorn web agent.py`.
"""
_REFUSAL_KINDS = {401: "key", 403: "refused", 405: "method", 413: "body", 415: "body"}

Handler = Callable[[Exchange], Awaitable[None]]
RunHandler = Callable[[Exchange, object, float], Awaitable[None]]
"""A function that receives the exchange, the parsed request body and the deadline of the run."""


class ServiceGuard:
    """An ASGI application that checks the Host header, the Origin header and the access key of each request."""

    def __init__(self, service: Service, handler: Handler, hosts: Collection[str], keys: Collection[str]) -> None:
        self._service, self._handler = service, handler
        self._hosts = normalize_hosts(hosts, "`acorn.web.service`")
        self._keys = tuple(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        path, mount = split_mount_path(scope)
        head = RequestHead(str(scope["method"]), path, headers_of(scope))
        exchange = Exchange(scope, path, LimitedBody(receive, MAX_BODY), send)
        refusal = self._check(head)
        if refusal is None:
            await self._handler(exchange)
            return
        headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
        if refusal.status == 401 and "text/html" in (head.header("accept") or ""):
            home = f"{scope.get('scheme', 'http')}://{head.header('host')}{mount}"
            headers["content-type"] = "text/plain; charset=utf-8"
            await exchange.respond(401, _BROWSER_HINT.format(home=home).encode("utf-8", "replace"), headers)
            return
        kind = _REFUSAL_KINDS[refusal.status]
        reply = ErrorReply(refusal.status, kind, refusal.message, {}, allow=refusal.allow)
        await exchange.respond(refusal.status, self._service.error_body(reply), {**headers, **reply.headers})

    def _check(self, head: RequestHead) -> Refusal | None:
        refusal = check_origin(head, self._hosts, is_page=False)
        if refusal is not None:
            return refusal
        if self._keys and head.path not in _PUBLIC_PATHS and not self._has_key(head):
            return Refusal(
                401, "The key is missing or wrong. Send a valid key in the header `Authorization: Bearer KEY`."
            )
        return size_refusal(MAX_BODY) if content_length(head) > MAX_BODY else None

    def _has_key(self, head: RequestHead) -> bool:
        scheme, _, candidate = (head.header("authorization") or "").partition(" ")
        # The candidate is compared with all keys, so that the response time reveals nothing about the keys.
        matches = [keys_match(candidate.strip(), key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)


_ANSWER_PATH = "/runs/{id}/answer"
_HEARTBEAT = b": here\n\n"


class ServiceRoutes:
    """The endpoints of a service. For each request, an object of this class selects the endpoint."""

    def __init__(self, service: Service, *, has_key: bool) -> None:
        self._service = service
        self._created = int(time.time())
        self._document = encode_json(service.redactor, openapi_document(service.agent, has_key=has_key))
        self._gets: Mapping[str, Handler] = {
            "/health": self._health,
            "/openapi.json": self._openapi,
            "/v1/models": self._models,
        }
        self._posts: Mapping[str, Handler] = {
            "/run": self._run_handler(self._run),
            "/stream": self._run_handler(self._stream),
            "/v1/chat/completions": self._run_handler(self._chat),
        }

    @property
    def addresses(self) -> list[tuple[str, str]]:
        """The HTTP method and the path of each endpoint."""
        return [*(("POST", path) for path in (*self._posts, _ANSWER_PATH)), *(("GET", path) for path in self._gets)]

    async def __call__(self, exchange: Exchange) -> None:
        try:
            await self._handler_of(exchange)(exchange)
        except ClientDisconnectedError:
            return
        except Exception as error:
            try:
                await self._send_error(exchange, error)
            except ClientDisconnectedError:
                return

    def _handler_of(self, exchange: Exchange) -> Handler:
        path, is_read = exchange.path, exchange.method in ("GET", "HEAD")
        handlers, others = (self._gets, self._posts) if is_read else (self._posts, self._gets)
        is_answer = path.startswith("/runs/") and path.endswith("/answer")
        if path in handlers and exchange.method != "DELETE":
            return handlers[path]
        if is_answer and exchange.method == "POST":
            run_id = path.removeprefix("/runs/").removesuffix("/answer")
            return self._run_handler(partial(self._answer, run_id))
        if path in handlers or path in others or is_answer:
            allow = "GET, HEAD" if path in self._gets else "POST"
            message = f"`{path}` does not support the method `{exchange.method}`. Allowed methods: {allow}."
            raise RejectedRequestError(405, "method", message, allow=allow)
        known = ", ".join(f"`{address}`" for _, address in self.addresses)
        raise RejectedRequestError(404, "address", f"The path `{path}` does not exist. Use one of {known}.")

    async def _send_error(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, BodyTooLargeError):
            error = RejectedRequestError(413, "body", size_refusal(MAX_BODY).message)
        reply = reply_for_error(error)
        if reply.is_logged:
            self._service.log_error(error)
        body = self._service.error_body(reply)
        if exchange.has_started:
            await exchange.send_event(b"data: " + body + b"\n\n")
            await exchange.end()
        else:
            await exchange.respond(reply.status, body, reply.headers)

    # Endpoints without a run

    async def _health(self, exchange: Exchange) -> None:
        is_closing = self._service.is_closing
        body = b'{"status":"stopping"}' if is_closing else b'{"status":"ok"}'
        await exchange.respond(503 if is_closing else 200, body)

    async def _openapi(self, exchange: Exchange) -> None:
        await exchange.respond(200, self._document)

    async def _models(self, exchange: Exchange) -> None:
        await self._respond(exchange, 200, model_list(self._service.name, self._created))

    # Endpoints that run the agent

    def _run_handler(self, handle: RunHandler) -> Handler:
        """Return a handler for an endpoint that runs the agent.

        The handler counts the run toward the limit, parses the request body and calls `handle` with the deadline of the
        run.
        """

        async def handle_run(exchange: Exchange) -> None:
            service = self._service
            with service.reserve_run():
                deadline = asyncio.get_running_loop().time() + service.timeout
                try:
                    async with asyncio.timeout_at(deadline):
                        body = await exchange.json()
                except TimeoutError:
                    raise service.timeout_error() from None
                await handle(exchange, body, deadline)

        return handle_run

    async def _run(self, exchange: Exchange, body: object, deadline: float) -> None:
        work = self._service.agent.arun(*self._arguments(body))
        await self._respond_with_run(exchange, await self._service.perform(exchange, work, deadline))

    async def _stream(self, exchange: Exchange, body: object, deadline: float) -> None:
        chunks = self._service.agent.astream(*self._arguments(body))
        await self._send_chunks(exchange, chunks, ChunkEvents(self._service.redactor), deadline)

    async def _answer(self, run_id: str, exchange: Exchange, body: object, deadline: float) -> None:
        service = self._service
        answer, is_single = _read_answer(body)
        if service.spec.store is None:
            message = "This service cannot resume runs, because it has no store. Start the service with `--store`."
            raise RejectedRequestError(409, "store", message)
        store = open_store(service.spec.store, "`acorn serve`")
        if not await asyncio.to_thread(store.read, run_id):
            raise RejectedRequestError(404, "run", f"Run `{run_id}` does not exist.")
        work = aresume(service.agent, run_id, answer, is_single=is_single)
        await self._respond_with_run(exchange, await self._service.perform(exchange, work, deadline))

    async def _chat(self, exchange: Exchange, body: object, deadline: float) -> None:
        service, spec = self._service, self._service.spec
        request = read_completion(body, service.name, spec.input, spec.output)
        agent: Agent = service.agent.using(history=request.history) if request.history else service.agent
        arguments = self._arguments(request.input)
        if request.is_stream:
            events = CompletionEvents(
                service.name, spec.output, service.redactor, includes_usage=request.includes_usage
            )
            await self._send_chunks(exchange, agent.astream(*arguments), events, deadline)
            return
        run = await self._service.perform(exchange, agent.arun(*arguments), deadline)
        status = 202 if isinstance(run.output, Paused) else 200
        await self._respond(exchange, status, completion_response(run, service.name, spec.output), run)

    def _arguments(self, values: object) -> tuple[object, ...]:
        """Return the positional arguments with which the agent is called.

        Raise `InputError` with a list of all invalid fields if the values do not match the input schema.
        """
        shape = self._service.spec.input
        if shape.wrapped:
            values = {RESULT: values}
        elif shape.is_empty and values is None:
            values = {}
        return parse_input(self._service.agent, values)

    async def _respond_with_run(self, exchange: Exchange, run: Run) -> None:
        if isinstance(run.output, Paused):
            await self._respond(exchange, 202, paused_json(run.output), run)
            return
        check_finished(run)
        await self._respond(exchange, 200, run.output, run)

    async def _send_chunks(
        self, exchange: Exchange, chunks: AsyncGenerator[StreamChunk], encoder: ChunkEncoder, deadline: float
    ) -> None:
        async def send() -> None:
            async with aclosing(batch_chunks(chunks)) as batches:
                async for batch in batches:
                    await exchange.send_event(encoder.encode(batch) if batch else _HEARTBEAT)
            await exchange.end()

        await self._service.perform(exchange, send(), deadline)

    async def _respond(self, exchange: Exchange, status: int, value: object, run: Run | None = None) -> None:
        headers = {} if run is None else {"x-run-id": run.id}
        await exchange.respond(status, encode_json(self._service.redactor, value), headers)


def _read_answer(body: object) -> tuple[object, bool]:
    """Return the answers in a request body, and a flag.

    The flag is True if the body contains one answer. It is False if the body contains a dict that maps request ids to
    answers.
    """
    if is_json_object(body) and set(body) == {"answer"}:
        return body["answer"], True
    if is_json_object(body) and set(body) == {"answers"} and is_json_object(body["answers"]):
        return body["answers"], False
    raise RejectedRequestError(
        422,
        "input",
        'The body must be `{"answer": ...}`, or `{"answers": {...}}` with an object that maps request ids to answers.',
    )


def service_app(service: Service, hosts: Collection[str], keys: Collection[str]) -> ASGIApp:
    """Return an ASGI application that serves an agent and rejects unauthorized requests."""
    return ServiceGuard(service, ServiceRoutes(service, has_key=bool(keys)), hosts, keys)


def service(
    agent: module[Any, Any],
    *,
    keys: Collection[str] = (),
    hosts: Collection[str] = LOOPBACK,
    timeout: float = TIMEOUT,
    concurrency: int = CONCURRENCY,
) -> ASGIApp:
    """Return an ASGI application that serves an agent over HTTP.

        app.mount("/researcher", acorn.web.service(Researcher(), keys=[os.environ["KEY"]], hosts=["example.com"]))

    Clients must send one of the access keys in `keys`. Without `keys`, everyone who can reach the application can use
    it, so protect it with your own login. The application rejects requests to host names that are not in `hosts`. A run
    may last `timeout` seconds, and at most `concurrency` runs may be in progress at the same time.
    """
    if isinstance(keys, str):
        raise DeclarationError("`keys` of `acorn.web.service` must be a list of strings, not one string.")
    for key in keys:
        check_key(key, "`acorn.web.service`")
    return service_app(Service(agent, keys, timeout, concurrency), hosts, keys)
