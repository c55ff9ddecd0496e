"""The HTTP service of an agent: the limits and the cancellation of its runs, and its endpoints.

The runs are executed on the event loop of the server. A run is cancelled when its client disconnects, when its time
limit is reached, or when the server stops.

A run belongs to the access key that has started it: with the key of another client, the run does not exist. Only with
the key of an approver, who is a person, a request for human input can be answered. Otherwise a client could approve its
own refund.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acorn import Paused, Run, StreamChunk, module
from acorn._inside import Agent, Redactor, excerpt, is_instance, owned_by, parse_input, read_spec, stored_owner
from acorn._inside.runs import aresume, check_agent
from acorn.errors import DeclarationError
from acorn.stores.open import open_store
from acorn.types import is_json_object
from acorn.web import guard
from acorn.web.guard import LOOPBACK, AccessKey
from acorn.web.page.agent import secrets_of
from acorn.web.serve import openai_api, responses
from acorn.web.serve.openapi import openapi_document
from acorn.web.serve.responses import RejectedRequestError, Result

TIMEOUT = 600.0
CONCURRENCY = 256
GRACE = 5
"""The number of seconds that runs may take after the server begins to stop."""
_BROWSER_HINT = """This is the HTTP service of an agent. It is for programs and needs a key.

Use a key that you passed to the server. If you passed no key, use the new key that `acorn serve` printed at its start.
This command prints a description of the endpoints:

    curl {home}/openapi.json -H 'Authorization: Bearer KEY'

To use the agent in a browser, run `acorn web agent.py`.
"""
_REFUSAL_KINDS = {401: "key", 404: "address", 405: "method", 408: "body", 413: "body", 415: "body"}
_HEARTBEAT = b": here\n\n"
_SEND_TIME = 2.0
"""The number of seconds that sending a part of a response may always take, even if the deadline has passed."""

EventEncoder = responses.ChunkEvents | openai_api.CompletionEvents
RunHandler = Callable[[Request, object, float], Awaitable[Response]]
"""A function that receives the request, its parsed body and the deadline of the run."""


class Service:
    """A service: its agent, the number of runs in progress, its endpoints and its error responses."""

    def __init__(
        self,
        agent: object,
        keys: Sequence[AccessKey] = (),
        timeout: float = TIMEOUT,
        concurrency: int = CONCURRENCY,
        grace: float = GRACE,
        max_body: int | None = None,
    ) -> None:
        if not is_instance(agent):
            raise DeclarationError(
                f"`acorn.web.service` needs an instance of a module, such as `Researcher()`, but got {excerpt(agent)}."
            )
        check_agent(agent)  # Report a wrong declaration before the first request.
        self.agent: Agent = agent
        self.name = type(agent).__name__
        self.spec = read_spec(agent)
        self.keys = tuple(keys)
        values = [key.value for key in keys]
        if len(set(values)) < len(values):
            raise DeclarationError(
                "A key of the service occurs more than once. Use different keys for clients and approvers."
            )
        secrets = {*values, *secrets_of(agent)}
        self.redactor = Redactor(secrets, finds_keys=False)
        """The redactor of answers. It ignores texts that only look like keys, because programs process the answers."""
        self.error_redactor = Redactor(secrets)
        self.timeout = timeout
        self.is_closing = False
        self.concurrency = concurrency
        self.max_body = max_body or guard.input_limit(self.spec.input.has_media, self.spec.max_media_bytes)
        self._grace = grace
        self.run_count = 0
        self._end: asyncio.Future[None] | None = None
        self._created = int(time.time())
        is_approver = [key.is_approver for key in keys]
        self._document = openapi_document(agent, has_key=False in is_approver, has_approver_key=True in is_approver)
        self.routes = [
            self._run_route("/run", self._run),
            self._run_route("/stream", self._stream),
            self._run_route("/v1/chat/completions", self._chat),
            self._run_route("/runs/{id}/answer", self._answer),
            Route("/health", self._health),
            Route("/openapi.json", self._openapi),
            Route("/v1/models", self._models),
        ]

    async def perform(self, work: Awaitable[Result], deadline: float, request: Request | None = None) -> Result:
        """Wait until a part of a run or of its response ends, and return its result.

        The work is cancelled if the deadline has passed, the server stops, or the client of the request disconnects.
        """
        loop = asyncio.get_running_loop()
        task, end = asyncio.ensure_future(responses.without_exit(work)), self._end_future(loop)
        disconnect = loop.create_future() if request is None else asyncio.ensure_future(_disconnect(request))
        waits: set[asyncio.Future[Any]] = {task, end, disconnect}
        try:
            await asyncio.wait(waits, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if disconnect.done():
                raise ClientDisconnect
            if end.done():
                message = "The server is stopping and cancelled the run. Try again later."
                raise RejectedRequestError(503, "stopping", message, retry_after=1)
            message = f"The run took longer than {self.timeout:g} seconds, so the server cancelled it."
            raise RejectedRequestError(504, "timeout", message)
        finally:
            disconnect.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    # Shutdown of the server

    def _end_future(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        if self._end is None or self._end.get_loop() is not loop:
            self._end = loop.create_future()
        return self._end

    def close(self) -> None:
        """Reject new runs. After the grace period, cancel the runs that have not ended.

        Any thread may call this method.
        """
        self.is_closing = True
        if self._end is not None and not (loop := self._end.get_loop()).is_closed():
            loop.call_soon_threadsafe(loop.call_later, self._grace, self._close_now)

    def _close_now(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    # Error responses

    async def error_response(self, request: Request, error: Exception) -> Response:
        """Return the response for an error. Log an error whose message the client does not receive."""
        reply = self._refusal(request, error) if isinstance(error, HTTPException) else responses.reply_for_error(error)
        if reply.kind == "internal":
            text = "".join(traceback.format_exception(error)).rstrip()
            logging.getLogger("acorn").error("%s", self.error_redactor.text(text))
        if reply.status == 401 and "text/html" in request.headers.get("accept", ""):
            hint = _BROWSER_HINT.format(home=str(request.base_url).rstrip("/"))
            return PlainTextResponse(hint, reply.status, reply.headers)
        message = self.error_redactor.text(reply.message)
        body = {"error": {"type": reply.kind, "message": message, **reply.details}}
        return self._json(body, reply.status, reply.headers)

    def _refusal(self, request: Request, error: HTTPException) -> responses.ErrorReply:
        """Return the response to a request that the guard or the router rejects."""
        status, message, headers = error.status_code, error.detail, dict(error.headers or {})
        path = guard.path_below_mount(request.scope)
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        elif status == 404:
            known = ", ".join(f"`{route.path}`" for route in self.routes)
            message = f"The path `{path}` does not exist. Use one of {known}."
        elif status == 405 and "Allow" in headers:  # The router rejects the method for this path.
            headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
            message = f"`{path}` does not support the method `{request.method}`. Allowed methods: {headers['Allow']}."
        return responses.ErrorReply(status, _REFUSAL_KINDS.get(status, "refused"), message, {}, headers)

    # Endpoints without a run

    async def _health(self, request: Request) -> Response:
        is_closing = self.is_closing
        return self._json({"status": "stopping" if is_closing else "ok"}, 503 if is_closing else 200)

    async def _openapi(self, request: Request) -> Response:
        return self._json(self._document)

    async def _models(self, request: Request) -> Response:
        model = {"id": self.name, "object": "model", "created": self._created, "owned_by": "acorn"}
        return self._json({"object": "list", "data": [model]})

    # Endpoints that run the agent

    def _run_route(self, path: str, handle: RunHandler) -> Route:
        """Return the route of an endpoint that runs the agent.

        The route counts the run toward the limit before it reads the request body, because this also limits the number
        of request bodies in memory.
        """

        async def respond(request: Request) -> Response:
            deadline = asyncio.get_running_loop().time() + self.timeout
            body = await self.perform(responses.read_json(request), deadline)
            return await handle(request, body, deadline)

        return Route(path, respond, methods=["POST"], middleware=[Middleware(_RunSlot, self)])

    async def _run(self, request: Request, body: object, deadline: float) -> Response:
        arguments = await self._arguments(request, body)
        work = self._agent_for(request).arun(*arguments)
        return self._run_response(await self.perform(work, deadline, request))

    async def _stream(self, request: Request, body: object, deadline: float) -> Response:
        arguments = await self._arguments(request, body)
        chunks = self._agent_for(request).astream(*arguments)
        return await self._event_stream(request, chunks, responses.ChunkEvents(self.redactor), deadline)

    async def _answer(self, request: Request, body: object, deadline: float) -> Response:
        run_id = request.path_params["id"]
        answer, is_single = _read_answer(body)
        if self.spec.store is None:
            message = "This service cannot resume runs, because it has no store. Start the service with `--store`."
            raise RejectedRequestError(409, "store", message)
        store, key = open_store(self.spec.store, "`acorn serve`"), guard.key_of(request)
        is_approver = not self.keys or (key is not None and key.is_approver)
        stored = await asyncio.to_thread(store.read, run_id)
        is_owner = stored and key is not None and stored_owner(stored[0]) == key.owner
        if not stored or not (is_approver or is_owner):
            raise RejectedRequestError(404, "run", f"Run `{run_id}` does not exist. Check its id.")
        if not is_approver and (is_single or answer):
            message = (
                "Only a person with an approver key may answer requests for human input. Send such a key, or use "
                '`acorn answer`. To continue the run afterwards, send `{"answers": {}}`.'
            )
            raise RejectedRequestError(403, "approver", message)
        work = aresume(self.agent, run_id, answer, is_single=is_single)
        return self._run_response(await self.perform(work, deadline, request))

    async def _chat(self, request: Request, body: object, deadline: float) -> Response:
        spec = self.spec
        chat = await responses.with_body(request, openai_api.read_completion, body, self.name, spec.output)
        *earlier, last = chat.messages
        agent = self._agent_for(request)
        if earlier:
            agent = agent.using(history=openai_api.to_history(earlier))
        arguments = await self._arguments(request, openai_api.to_input(last.text, spec.input))
        if chat.stream:
            includes_usage = bool(chat.stream_options and chat.stream_options.include_usage)
            events = openai_api.CompletionEvents(self.name, spec.output, self.redactor, includes_usage=includes_usage)
            return await self._event_stream(request, agent.astream(*arguments), events, deadline)
        run = await self.perform(agent.arun(*arguments), deadline, request)
        return self._json(openai_api.completion_response(run, self.name, spec.output), headers={"x-run-id": run.id})

    def _agent_for(self, request: Request) -> Agent:
        """Return the agent that starts a run for the key of a request."""
        key = guard.key_of(request)
        return self.agent if key is None or self.spec.store is None else owned_by(self.agent, key.owner)

    async def _arguments(self, request: Request, values: object) -> tuple[object, ...]:
        """Return the positional arguments with which the agent is called.

        Raise `InputError` with a list of all invalid fields if the values do not match the input schema.
        """
        shape = self.spec.input
        if shape.wrapped:
            return await responses.with_body(request, parse_input, self.agent, {shape.wrapped: values}, is_value=True)
        if shape.is_empty and values is None:
            values = {}
        return await responses.with_body(request, parse_input, self.agent, values)

    def _run_response(self, run: Run) -> Response:
        headers = {"x-run-id": run.id}
        if isinstance(run.output, Paused):
            return self._json(responses.paused_json(run.output), 202, headers)
        responses.check_finished(run)
        return self._json(run.output, headers=headers)

    def _json(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        body = responses.encode_json(self.redactor, value)
        return Response(body, status, headers, media_type="application/json")

    async def _event_stream(
        self, request: Request, chunks: AsyncGenerator[StreamChunk], encoder: EventEncoder, deadline: float
    ) -> Response:
        """Return a stream of events. Wait for the first event, because an error before it has its own HTTP status."""
        batches = responses.ChunkBatches(chunks)

        async def next_event() -> bytes | None:
            batch = await batches.next()
            return None if batch is None else encoder.encode(batch) if batch else _HEARTBEAT

        async def events(event: bytes | None) -> AsyncGenerator[bytes]:
            try:
                while event is not None:
                    yield event
                    event = await self.perform(next_event(), deadline)
            except Exception as error:
                reply = await self.error_response(request, error)
                yield b"data: " + bytes(reply.body) + b"\n\n"

        try:
            first = await self.perform(next_event(), deadline, request)
        except BaseException:
            await batches.close()
            raise
        return guard.EventStream(events(first), batches.close)


async def _disconnect(request: Request) -> None:
    """Wait until the client of a request disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _RunSlot:
    """ASGI middleware that counts a request toward the limit of concurrent runs until its response is complete.

    A client that stops reading blocks `send`. The response ends when the deadline of the run has passed or the server
    stops, so that such a client cannot keep its run and its slot.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        if service.is_closing:
            raise RejectedRequestError(503, "stopping", "The server is stopping. Try again later.", retry_after=1)
        if service.run_count >= service.concurrency:
            runs = "1 run is" if service.concurrency == 1 else f"{service.concurrency} runs are"
            message = f"{runs} in progress, which is the limit of this server. Try again later."
            raise RejectedRequestError(429, "busy", message, retry_after=1)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + service.timeout

        async def send_in_time(message: Message) -> None:
            try:
                # The last event of a stream, such as a timeout error, is sent after the deadline.
                await service.perform(send(message), max(deadline, loop.time() + _SEND_TIME))
            except RejectedRequestError as error:
                raise ClientDisconnect from error

        service.run_count += 1
        try:
            await self._app(scope, receive, send_in_time)
        finally:
            service.run_count -= 1


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


def service_app(service: Service, hosts: Collection[str], *, body_timeout: float = guard.BODY_SECONDS) -> Starlette:
    """Return an application that serves an agent and rejects unauthorized requests."""
    rules = guard.AccessRules(
        hosts=guard.normalize_hosts(hosts, "`acorn.web.service`"),
        keys=service.keys,
        find_keys=guard.bearer_keys,
        missing_key="The key is missing or wrong. Send a valid key in the header `Authorization: Bearer KEY`.",
        public_path="/health",
        methods=("GET", "HEAD", "POST"),
        needs_origin=False,
        max_body=lambda path: guard.too_large(service.max_body),
        body_timeout=body_timeout,
    )
    return guard.guarded_app(service.routes, rules, service.error_response)


def service(
    agent: module[Any, Any],
    *,
    keys: Collection[str] = (),
    approver_keys: Collection[str] = (),
    hosts: Collection[str] = LOOPBACK,
    timeout: float = TIMEOUT,
    concurrency: int = CONCURRENCY,
    max_body: int | None = None,
) -> ASGIApp:
    """Return an ASGI application that serves an agent over HTTP.

        app.mount("/researcher", acorn.web.service(Researcher(), keys=[os.environ["KEY"]], hosts=["example.com"]))

    Clients must send one of the access keys in `keys`. A run belongs to the key that has started it. A key may have a
    name, as in `"shop=KEY"`: the runs of `shop` then remain its own if you replace the key. Only a person with one of
    the `approver_keys` may answer requests for human input, of all runs. Without `keys`, everyone who can reach the
    application can use it, so protect it with your own login. Without both, everyone can also answer.

    The application rejects requests to host names that are not in `hosts`. A run may last `timeout` seconds, and at
    most `concurrency` runs may be in progress at the same time. A request body may have `max_body` bytes: by default
    one million, and more for an input with images, audio or files.
    """
    where = "`acorn.web.service`"
    for name, given in (("keys", keys), ("approver_keys", approver_keys)):
        if isinstance(given, str):
            raise DeclarationError(f"`{name}` of {where} must be a list of strings, not one string.")
    access = [*guard.read_keys(keys, where), *guard.read_keys(approver_keys, where, is_approver=True)]
    return service_app(Service(agent, access, timeout, concurrency, max_body=max_body), hosts)
