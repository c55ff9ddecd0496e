"""A model that says what it is told to, and remembers what it was asked.

    model = ScriptedModel([call("search", query="acorns"), finish(answer="They are nuts.")])
    agent = Researcher(model=model)

With `by_turn=True` a list counts by the conversation, so that it fits a run that goes on in another process.
It complains of a request that the script does not foresee, and, used in a `with` block or by `done()`, of a
reply that nobody asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, RootModel
from pydantic_core import to_json

from acorn._inside import FINISH, RESULT, text_of
from acorn.errors import ModelError
from acorn.models.port import CallDelta, Delta, ModelRequest, ModelResponse, Price, RawCall, is_retryable
from acorn.models.request_body import SentMessages
from acorn.thread import parse_thread_xml, to_messages
from acorn.types import JsonObject, Usage


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
        """Both in one response: `Reply("Let me see.") & call("a") & call("b")`."""
        return Reply(
            self.content + other.content,
            self.calls + other.calls,
            other.stop_reason or self.stop_reason,
            "".join(filter(None, (self.reasoning, other.reasoning))) or None,
            other.refusal if self.refusal is None else self.refusal,
            self.usage or other.usage,
            max(self.delay, other.delay),
        )


@dataclass
class Failure:
    """A request that goes wrong."""

    status: int | None = None
    """The HTTP status; None is a broken connection."""
    message: str = "the script says so"
    delay: float = 0.0
    after: Reply | None = None
    """What a stream gives before it breaks."""


_UNSET: Any = object()

Scripted = Reply | Failure | str | BaseException
"""What a script may hold; a string is a reply in text, an exception is raised as it is."""


def call(name: str, /, _id: str | None = None, **arguments: Any) -> Reply:
    """A response that calls a tool; an `_id` of "" is a provider that gives none."""
    return Reply(calls=[RawCall(_id, name, to_json(arguments).decode())])


def finish(output: Any = _UNSET, /, **fields: Any) -> Reply:
    """A response that calls `__finish__`, with the fields of the output or with the output itself."""
    if output is _UNSET:
        return call(FINISH, **fields)
    if fields:
        raise TypeError(f"`finish` takes an output or its fields, not both; got {output!r} and {', '.join(fields)}")
    if isinstance(output, BaseModel) and not isinstance(output, RootModel):
        # By their own names, which are always taken; what is computed is not to be given.
        return Reply(calls=[RawCall(None, FINISH, output.model_dump_json(by_alias=False, round_trip=True))])
    return Reply(calls=[RawCall(None, FINISH, to_json({RESULT: output}).decode())])


class ScriptedModel:
    """A model of the port for tests: one reply, replies in order, or made by a function of the request.

    With `by_turn=True` the reply is chosen by how many turns of the model stand behind the last input, not by how many
    requests came: a run that is resumed, or a turn that is asked for again, gets what is next in the list. A branch
    that goes on with its parent's conversation needs a model of its own then.
    """

    def __init__(
        self,
        replies: Scripted | Sequence[Scripted] | Callable[[ModelRequest], Scripted],
        *,
        name: str = "scripted",
        price: Price | None = None,
        forces: bool = True,
        chunk_size: int = 8,
        by_turn: bool = False,
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        """Every request, in the order of arrival."""
        self._price = price
        self._forces = forces
        self._by_turn = by_turn
        self._last_turn = -1
        """The furthest reply that was given, where turns count."""
        self._chunk_size = chunk_size
        """How many characters a streamed piece has."""
        self._make: Callable[[ModelRequest], Scripted] | None = None
        self._script: list[Scripted] = []
        if isinstance(replies, Reply | Failure | str | BaseException):
            self._script = [replies]
        elif callable(replies):
            self._make = replies
        else:
            self._script = list(replies)
        self._lock = threading.Lock()
        self._counted: tuple[SentMessages | None, int, int] = (None, 0, 0)
        """Of the last conversation: how many messages, and how many characters in them."""

    def __getstate__(self) -> JsonObject:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_counted")}

    def __setstate__(self, state: JsonObject) -> None:
        vars(self).update(state, _lock=threading.Lock(), _counted=(None, 0, 0))

    def __repr__(self) -> str:
        return f"ScriptedModel({self.name!r}, {len(self.requests)} requests)"

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.done()

    def done(self) -> None:
        """Complain if a reply was never asked for, or if there were requests without one."""
        if self._make is not None:
            return
        asked = self._last_turn + 1 if self._by_turn else len(self.requests)
        if asked > len(self._script):  # said before, but a tool or a hook may have swallowed it
            raise AssertionError(self._unexpected(asked - 1))
        if asked < len(self._script):
            unused = len(self._script) - asked
            raise AssertionError(
                f"The script of `{self.name}` has {unused} unused {'reply' if unused == 1 else 'replies'}, "
                f"the first of them {self._script[asked]!r}."
            )

    def takes_tool(self, tool: Mapping[str, Any]) -> bool:
        """A script takes any."""
        return True

    def can_force_tool(self, request: ModelRequest) -> bool:
        return self._forces

    def price(self) -> Price | None:
        return self._price

    def complete(self, request: ModelRequest) -> ModelResponse:
        reply, at = self._next(request)
        if delay := _delay(reply, request):
            time.sleep(delay)
        return self._answer(reply, request, at)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        reply, at = self._next(request)
        if delay := _delay(reply, request):
            import asyncio  # only an async run needs it

            await asyncio.sleep(delay)
        return self._answer(reply, request, at)

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        reply, at = self._next(request)
        if delay := _delay(reply, request):
            time.sleep(delay)
        yield from self._pieces(reply, request, at)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        reply, at = self._next(request)
        if delay := _delay(reply, request):
            import asyncio  # only an async run needs it

            await asyncio.sleep(delay)
        for delta in self._pieces(reply, request, at):
            yield delta

    def _pieces(self, reply: Scripted, request: ModelRequest, at: int) -> Iterator[Delta]:
        if isinstance(reply, Failure) and reply.after is not None:
            yield from cut(self._answer(reply.after, request, at), self._chunk_size, whole=False)
        yield from cut(self._answer(reply, request, at), self._chunk_size)

    def _next(self, request: ModelRequest) -> tuple[Scripted, int]:
        """The reply to a request, and how many requests came before it."""
        with self._lock:
            self.requests.append(request)
            at = _turns(request.messages) if self._by_turn else len(self.requests) - 1
            self._last_turn = max(self._last_turn, at)
        if self._make is not None:
            return self._make(request), at
        if at >= len(self._script):
            raise AssertionError(self._unexpected(at))
        return self._script[at], at

    def _unexpected(self, at: int) -> str:
        what = f"for turn {at + 1}" if self._by_turn else "once" if at == 0 else f"{at + 1} times"
        count = len(self._script)
        return (
            f"`{self.name}` was asked {what}, but its script has {count} {'reply' if count == 1 else 'replies'}. "
            f"The last message was: {str(self.requests[-1 if self._by_turn else at].messages[-1])[:300]}"
        )

    def _answer(self, reply: Scripted, request: ModelRequest, at: int) -> ModelResponse:
        if isinstance(reply, str):
            reply = Reply(reply)
        if isinstance(reply, Reply | Failure) and request.timeout is not None and reply.delay > request.timeout:
            raise ModelError(
                f"`{self.name}` took longer than {request.timeout:g} s", provider="scripted", retryable=True
            )
        if isinstance(reply, Failure):
            raise self._failure(reply)
        if isinstance(reply, BaseException):
            raise reply
        if not isinstance(reply, Reply):
            raise AssertionError(
                f"The script of `{self.name}` holds {reply!r}, which is neither a reply nor a failure."
            )
        usage = reply.usage or Usage(
            input_tokens=self._characters(request) // 4,
            output_tokens=(len(reply.content) + sum(len(made.arguments) for made in reply.calls)) // 4 + 1,
            requests=1,
        )
        return ModelResponse(
            content=reply.content,
            tool_calls=[
                RawCall(f"call_{at + 1}_{slot}" if made.id is None else made.id, made.name, made.arguments)
                for slot, made in enumerate(reply.calls)
            ],
            stop_reason=reply.stop_reason or ("tool_calls" if reply.calls else "stop"),
            usage=usage,
            model=self.name,
            reasoning=reply.reasoning,
            refusal=reply.refusal,
        )

    def _characters(self, request: ModelRequest) -> int:
        """The length of all that a request says; of what the one before it said, it is known."""
        part = request.sent
        if part is None or part.has_extra_messages:
            return sum(len(text_of(message.get("content"))) for message in request.messages)
        known, count, length = self._counted
        if known is not part.sent or count > part.count:
            count = length = 0
        length += sum(len(text_of(message.get("content"))) for message in part.sent.messages[count : part.count])
        self._counted = part.sent, part.count, length
        return length

    def _failure(self, failure: Failure) -> ModelError:
        what = "the connection broke" if failure.status is None else f"HTTP {failure.status}"
        return ModelError(
            f"`{self.name}` failed ({what}): {failure.message}",
            provider="scripted",
            status=failure.status,
            retryable=failure.status is None or is_retryable(failure.status),
        )


def conversation_of(messages: list[JsonObject]) -> list[JsonObject]:
    """The messages; those that a document tells of, where it is sent instead."""
    text = text_of(messages[-1].get("content")) if messages else ""
    return list(to_messages(parse_thread_xml(text))) if text.startswith("<thread>") else messages


def _turns(messages: list[JsonObject]) -> int:
    """How many turns of the model stand behind the last input, or behind all where inputs look otherwise."""
    told = conversation_of(messages)
    inputs = [at for at, message in enumerate(told) if _is_input(message)]
    return sum(message["role"] == "assistant" for message in told[inputs[-1] if inputs else 0 :])


def _is_input(message: JsonObject) -> bool:
    return message["role"] == "user" and text_of(message.get("content")).startswith(("<input>", "<input ", "<input/"))


def _delay(reply: Scripted, request: ModelRequest) -> float:
    """Seconds to wait, as far as the request has the time."""
    delay = reply.delay if isinstance(reply, Reply | Failure) else 0.0
    return delay if request.timeout is None else min(delay, request.timeout)


def cut(response: ModelResponse, size: int, *, whole: bool = True) -> Iterator[Delta]:
    """A response in pieces, the way providers send it: thinking, text, the calls, how it ended, what it cost."""

    def pieces(text: str) -> Iterator[str]:
        return (text[at : at + size] for at in range(0, len(text), size))

    for piece in pieces(response.reasoning or ""):
        yield Delta(reasoning=piece)
    for piece in pieces(response.content):
        yield Delta(content=piece)
    for index, made in enumerate(response.tool_calls):
        yield Delta(calls=(CallDelta(index, made.id, made.name),))
        for piece in pieces(made.arguments):
            yield Delta(calls=(CallDelta(index, arguments=piece),))
    if whole:
        yield Delta(refusal=response.refusal, stop_reason=response.stop_reason, model=response.model)
        yield Delta(usage=response.usage)
