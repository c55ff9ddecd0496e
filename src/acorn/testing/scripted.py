"""A model that says what it is told to, and remembers what it was asked.

    model = ScriptedModel([call("search", query="acorns"), finish(answer="They are nuts.")])
    agent = Researcher(model=model)

It complains of a request that the script does not foresee, and, used in a `with` block or by `done()`, of a
reply that nobody asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from acorn._tools.collect import FINISH
from acorn.errors import ModelError
from acorn.models.port import ModelRequest, ModelResponse, Price, RawCall
from acorn.types import Usage


@dataclass
class Reply:
    """One response of the script: text, calls, or both."""

    content: str = ""
    calls: list[RawCall] = field(default_factory=list[RawCall])
    stop_reason: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    usage: Usage | None = None
    delay: float = 0.0
    """Seconds to wait before it is given."""

    def __and__(self, other: Reply) -> Reply:
        """Both in one response: `call("a") & call("b")`."""
        return Reply(self.content + other.content, self.calls + other.calls, delay=max(self.delay, other.delay))


@dataclass
class Failure:
    """A request that goes wrong."""

    status: int | None = None
    """The HTTP status; None is a broken connection."""
    message: str = "the script says so"
    delay: float = 0.0


Scripted = Reply | Failure | str | BaseException
"""What a script may hold; a string is a reply in text, an exception is raised as it is."""


def call(name: str, /, _id: str | None = None, **arguments: Any) -> Reply:
    """A response that calls a tool."""
    return Reply(calls=[RawCall(_id, name, to_json(arguments).decode())])


def finish(**fields: Any) -> Reply:
    """A response that calls `__finish__`."""
    return call(FINISH, **fields)


class ScriptedModel:
    """A model of the port for tests: replies in order, or made by a function of the request."""

    def __init__(
        self,
        replies: Sequence[Scripted] | Callable[[ModelRequest], Scripted],
        *,
        name: str = "scripted",
        price: Price | None = None,
        forces: bool = True,
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        """Every request, in the order of arrival."""
        self._price = price
        self._forces = forces
        self._make = replies if callable(replies) else None
        self._script: list[Scripted] = [] if callable(replies) else list(replies)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ScriptedModel({self.name!r}, {len(self.requests)} requests)"

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.done()

    def done(self) -> None:
        """Complain if a reply was never asked for."""
        unused = len(self._script) - len(self.requests)
        if self._make is None and unused > 0:
            raise AssertionError(
                f"The script of `{self.name}` has {unused} unused replies, the first of them "
                f"{self._script[len(self.requests)]!r}."
            )

    def can_force_tool(self, request: ModelRequest) -> bool:
        return self._forces

    def price(self) -> Price | None:
        return self._price

    def complete(self, request: ModelRequest) -> ModelResponse:
        reply = self._next(request)
        if isinstance(reply, Reply | Failure) and reply.delay:
            time.sleep(reply.delay)
        return self._answer(reply, request)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        reply = self._next(request)
        if isinstance(reply, Reply | Failure) and reply.delay:
            import asyncio  # only an async run needs it

            await asyncio.sleep(reply.delay)
        return self._answer(reply, request)

    def _next(self, request: ModelRequest) -> Scripted:
        with self._lock:
            self.requests.append(request)
            at = len(self.requests) - 1
        if self._make is not None:
            return self._make(request)
        if at >= len(self._script):
            raise AssertionError(
                f"`{self.name}` was asked {at + 1} times, but its script has {len(self._script)} replies. "
                f"The last message was: {str(request.messages[-1])[:300]}"
            )
        return self._script[at]

    def _answer(self, reply: Scripted, request: ModelRequest) -> ModelResponse:
        if isinstance(reply, str):
            reply = Reply(reply)
        if isinstance(reply, Failure):
            raise self._failure(reply)
        if not isinstance(reply, Reply):
            raise reply
        usage = reply.usage or Usage(
            input_tokens=sum(len(str(message.get("content") or "")) for message in request.messages) // 4,
            output_tokens=(len(reply.content) + sum(len(made.arguments) for made in reply.calls)) // 4 + 1,
            requests=1,
        )
        return ModelResponse(
            content=reply.content,
            tool_calls=[
                RawCall(made.id or f"call_{len(self.requests)}_{at}", made.name, made.arguments)
                for at, made in enumerate(reply.calls)
            ],
            stop_reason=reply.stop_reason or ("tool_calls" if reply.calls else "stop"),
            usage=usage,
            model=self.name,
            reasoning=reply.reasoning,
            refusal=reply.refusal,
        )

    def _failure(self, failure: Failure) -> ModelError:
        retryable = failure.status is None or failure.status in (408, 409, 429) or failure.status >= 500
        what = "the connection broke" if failure.status is None else f"HTTP {failure.status}"
        return ModelError(
            f"`{self.name}` failed ({what}): {failure.message}",
            provider="scripted",
            status=failure.status,
            retryable=retryable,
        )
