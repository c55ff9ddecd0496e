"""The addresses of the service: each reads a request, has the agent run, and answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from acorn import Paused, Run
from acorn._call import aresume
from acorn._schema.shape import RESULT
from acorn.stores.open import open_store
from acorn.web.agent import checked
from acorn.web.guard import TooLongError, too_long
from acorn.web.serving.batches import Chunk, in_batches
from acorn.web.serving.exchange import Exchange, LeftError
from acorn.web.serving.failures import WrongError, is_logged, told_of
from acorn.web.serving.gate import BODY
from acorn.web.serving.openai_form import CompletionStream, completion, models, read_completion
from acorn.web.serving.openapi import described
from acorn.web.serving.outcomes import check_finished
from acorn.web.serving.service import Agent, Service
from acorn.web.serving.streams import ChunkStream, Stream, paused

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
        except LeftError:
            return
        except Exception as error:
            try:
                await self._fail(exchange, error)
            except LeftError:
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
        told = told_of(error)
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
        made = checked(self._service.agent, given)
        return () if shape.is_empty else (shape.unwrap(made),)

    async def _attended(self, exchange: Exchange, work: Any, until: float) -> Run[Any]:
        run: Run[Any] = await self._service.attended(exchange, work, until)
        return run

    async def _ended(self, exchange: Exchange, run: Run[Any]) -> None:
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

    async def _answer(self, exchange: Exchange, status: int, value: Any, run: Run[Any] | None = None) -> None:
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
