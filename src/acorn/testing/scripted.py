"""Models for tests: `ScriptedModel` replays a script, and `AnyModel` answers any agent.

    model = ScriptedModel([call("search", query="acorns"), finish(answer="They are nuts.")])
    agent = Researcher(model=model)

    with Researcher.override(model=AnyModel()):
        application()

`ScriptedModel` stores the requests that it receives. It raises an error if its script has no reply to a request. At the
end of a `with` block, or in `done()`, it also raises an error for unused replies. With `by_turn=True`, it counts the
assistant messages in the conversation instead of the requests, so that a run can be resumed in another process.

`AnyModel` needs no script. Use it for tests in which the answers do not matter.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, RootModel
from pydantic_core import to_json

from acorn._inside import FINISH, FINISHED, RESULT, current_clock, example_value, text_of
from acorn.errors import ModelError
from acorn.models.port import CallDelta, Delta, ModelResponse, Price, RawCall, is_retryable
from acorn.models.request import ModelRequest
from acorn.thread import parse_thread_xml, to_messages
from acorn.types import JsonObject, Message, Usage


@dataclass
class Reply:
    """A response in the script of a `ScriptedModel`: text, tool calls, or both."""

    content: str = ""
    calls: list[RawCall] = field(default_factory=list[RawCall])
    stop_reason: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    usage: Usage | None = None
    delay: float = 0.0
    """The seconds to wait before the response."""

    def __and__(self, other: Reply) -> Reply:
        """Combine two replies into one response: `Reply("Let me see.") & call("a") & call("b")`."""
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
    """An item in the script of a `ScriptedModel` that causes a request to fail with a `ModelError`."""

    status: int | None = None
    """The HTTP status, or None for a broken connection."""
    message: str = "scripted failure"
    delay: float = 0.0
    """The seconds to wait before the failure."""
    after: Reply | None = None
    """The reply that a stream sends before it fails."""


Scripted = Reply | Failure | str | BaseException
"""An item of a script: a string is a reply with this text, and an exception is raised."""

_UNSET = object()
_lock = threading.Lock()
"""A lock for the script positions of all scripted models, which may serve requests of several threads."""


def call(name: str, /, _id: str | None = None, **arguments: Any) -> Reply:
    """Return a reply that calls a tool with these arguments.

    `_id` is the id of the call. Pass an empty string to imitate a provider that sends no id.
    """
    return Reply(calls=[RawCall(_id, name, to_json(arguments).decode())])


def finish(output: Any = _UNSET, /, **fields: Any) -> Reply:
    """Return a reply that calls `__finish__` with an output object, or with the output fields as keyword arguments."""
    if output is _UNSET:
        return call(FINISH, **fields)
    if fields:
        names = ", ".join(f"`{name}`" for name in fields)
        raise TypeError(f"`finish` accepts an output or its fields, not both. It received {output!r} and {names}.")
    if isinstance(output, BaseModel) and not isinstance(output, RootModel):
        # acorn always accepts field names, not always aliases. It rejects computed fields, which `round_trip` omits.
        return Reply(calls=[RawCall(None, FINISH, output.model_dump_json(by_alias=False, round_trip=True))])
    return Reply(calls=[RawCall(None, FINISH, to_json({RESULT: output}).decode())])


class ScriptedModel:
    """A model for tests that replays one reply or a list of replies, or that calls a function for each request.

    By default, the first request receives the first reply, the second request receives the second reply, and so on.
    With `by_turn=True`, the model counts its responses after the last input in the conversation, and this number
    selects the reply. A resumed run or a repeated request then receives the correct reply. In this mode, a branch that
    continues the conversation of its parent needs a separate model.
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
        """The list of all requests, in the order of arrival."""
        self._price = price
        self._can_force = forces
        self._by_turn = by_turn
        self._last_turn = -1
        """The highest index of a used reply, or -1."""
        self._chunk_size = chunk_size
        """The number of characters in each chunk of a stream."""
        self._reply_function: Callable[[ModelRequest], Scripted] | None = None
        self._script: list[Scripted] = []
        if isinstance(replies, Reply | Failure | str | BaseException):
            self._script = [replies]
        elif callable(replies):
            self._reply_function = replies
        else:
            self._script = list(replies)

    def __repr__(self) -> str:
        return f"ScriptedModel({self.name!r}, {len(self.requests)} requests)"

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.done()

    def done(self) -> None:
        """Raise `AssertionError` if the run did not use all replies, or if a request received no reply."""
        if self._reply_function is not None:
            return
        used = self._last_turn + 1 if self._by_turn else len(self.requests)
        if used > len(self._script):  # The request raised this error too, but a tool or a hook may have caught it.
            raise AssertionError(self._describe_missing_reply(used - 1))
        if used < len(self._script):
            unused = len(self._script) - used
            raise AssertionError(
                f"The script of `{self.name}` has {unused} unused {'reply' if unused == 1 else 'replies'}. "
                f"The first unused reply is {self._script[used]!r}."
            )

    def takes_tool(self, tool: Mapping[str, Any]) -> bool:
        """Return True for every tool definition, because a scripted model accepts all of them."""
        return True

    def can_force_tool(self, request: ModelRequest) -> bool:
        return self._can_force

    def price(self) -> Price | None:
        return self._price

    def complete(self, request: ModelRequest) -> ModelResponse:
        reply, index, delay = self._next_reply(request)
        if delay:
            current_clock().sleep(delay)
        return self._respond(reply, request, index)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        reply, index, delay = self._next_reply(request)
        if delay:
            await current_clock().asleep(delay)
        return self._respond(reply, request, index)

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        reply, index, delay = self._next_reply(request)
        if delay:
            current_clock().sleep(delay)
        yield from self._stream_reply(reply, request, index)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        reply, index, delay = self._next_reply(request)
        if delay:
            await current_clock().asleep(delay)
        for delta in self._stream_reply(reply, request, index):
            yield delta

    def _next_reply(self, request: ModelRequest) -> tuple[Scripted, int, float]:
        """Return the script item that answers a request, its index in the script, and the seconds to wait before it.

        The seconds are the `delay` of the reply, but at most the timeout of the request.
        """
        with _lock:
            self.requests.append(request)
            index = _count_turns(request.messages) if self._by_turn else len(self.requests) - 1
            self._last_turn = max(self._last_turn, index)
        if self._reply_function is not None:
            reply = self._reply_function(request)
        elif index < len(self._script):
            reply = self._script[index]
        else:
            raise AssertionError(self._describe_missing_reply(index))
        delay = reply.delay if isinstance(reply, Reply | Failure) else 0.0
        return reply, index, delay if request.timeout is None else min(delay, request.timeout)

    def _describe_missing_reply(self, index: int) -> str:
        received = f"turn {index + 1}" if self._by_turn else "1 request" if index == 0 else f"{index + 1} requests"
        count = len(self._script)
        last_message = self.requests[-1 if self._by_turn else index].messages[-1]
        return (
            f"`{self.name}` received {received}, but its script has {count} {'reply' if count == 1 else 'replies'}. "
            f"The last message was: {str(last_message)[:300]}"
        )

    def _respond(self, reply: Scripted, request: ModelRequest, index: int) -> ModelResponse:
        if isinstance(reply, str):
            reply = Reply(reply)
        if isinstance(reply, Reply | Failure) and request.timeout is not None and reply.delay > request.timeout:
            raise ModelError(
                f"`{self.name}` took longer than {request.timeout:g} s", provider="scripted", retryable=True
            )
        if isinstance(reply, Failure):
            raise self._model_error(reply)
        if isinstance(reply, BaseException):
            raise reply
        if not isinstance(reply, Reply):
            raise AssertionError(
                f"The script of `{self.name}` contains {reply!r}. "
                "Use a `Reply`, a `Failure`, a string or an exception instead."
            )
        calls: list[RawCall] = []
        length = len(reply.content)
        for number, raw in enumerate(reply.calls):
            call_id = f"call_{index + 1}_{number}" if raw.id is None else raw.id
            calls.append(RawCall(call_id, raw.name, raw.arguments))
            length += len(raw.arguments)
        usage = reply.usage or Usage(request.total(_text_length) // 4, length // 4 + 1, requests=1)
        return ModelResponse(
            content=reply.content,
            tool_calls=calls,
            stop_reason=reply.stop_reason or ("tool_calls" if reply.calls else "stop"),
            usage=usage,
            model=self.name,
            reasoning=reply.reasoning,
            refusal=reply.refusal,
        )

    def _model_error(self, failure: Failure) -> ModelError:
        cause = "the connection broke" if failure.status is None else f"HTTP {failure.status}"
        return ModelError(
            f"`{self.name}` failed ({cause}): {failure.message}",
            provider="scripted",
            status=failure.status,
            retryable=failure.status is None or is_retryable(failure.status),
        )

    def _stream_reply(self, reply: Scripted, request: ModelRequest, index: int) -> Iterator[Delta]:
        if isinstance(reply, Failure) and reply.after is not None:
            yield from split_response(self._respond(reply.after, request, index), self._chunk_size, is_complete=False)
        yield from split_response(self._respond(reply, request, index), self._chunk_size)


def split_response(response: ModelResponse, size: int, *, is_complete: bool = True) -> Iterator[Delta]:
    """Yield the pieces of a streamed response in the usual order: reasoning, text, tool calls, stop reason, usage."""

    def split(text: str) -> Iterator[str]:
        return (text[start : start + size] for start in range(0, len(text), size))

    for piece in split(response.reasoning or ""):
        yield Delta(reasoning=piece)
    for piece in split(response.content):
        yield Delta(content=piece)
    for index, tool_call in enumerate(response.tool_calls):
        yield Delta(calls=(CallDelta(index, tool_call.id, tool_call.name),))
        for piece in split(tool_call.arguments):
            yield Delta(calls=(CallDelta(index, arguments=piece),))
    if is_complete:
        yield Delta(refusal=response.refusal, stop_reason=response.stop_reason, model=response.model)
        yield Delta(usage=response.usage)


# Reading the messages of a request


def _text(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else text_of(content)


def _text_length(message: Message) -> int:
    return len(_text(message))


def _conversation(messages: list[Message]) -> list[Message]:
    """Return the messages of the conversation that a request contains.

    If the request contains the conversation as one message with an XML thread, the function converts the XML to
    messages.
    """
    text = _text(messages[-1]) if messages else ""
    return list(to_messages(parse_thread_xml(text))) if text.startswith("<thread>") else messages


def _count_turns(messages: list[Message]) -> int:
    """Return the number of assistant messages after the last input, or of all assistant messages without an input."""
    count = 0
    for message in _conversation(messages):
        if message["role"] == "assistant":
            count += 1
        elif message["role"] == "user" and _text(message).startswith(("<input>", "<input ", "<input/")):
            count = 0
    return count


class AnyModel(ScriptedModel):
    """A model for tests that calls every tool once and then finishes, with example values that fit the schemas.

    The first response calls all tools and branches that were not called earlier in the conversation. Therefore a branch
    that continues the conversation of its parent does not repeat the calls of the parent. The values are not random, so
    repeated runs of an agent return the same result. Without `max_steps`, a run has only one model request, so an agent
    with tools does not reach `__finish__`, and its result is `Unfinished`.
    """

    def __init__(self, *, name: str = "any", chunk_size: int = 8) -> None:
        super().__init__(_example_reply, name=name, price=Price(0.0, 0.0), chunk_size=chunk_size)


def _example_reply(request: ModelRequest) -> Reply:
    functions: dict[str, JsonObject] = {
        tool["function"]["name"]: tool["function"] for tool in request.tools if "function" in tool
    }
    if not functions:
        return Reply("In short.")
    called = _called_tools(_conversation(request.messages))
    names = [] if request.forced_tool else [name for name in functions if name != FINISH and name not in called]
    calls: list[RawCall] = []
    for name in names or [FINISH]:
        arguments = example_value(functions[name].get("parameters") or {"type": "object"}, name)
        calls.append(RawCall(None, name, to_json(arguments).decode()))
    return Reply(calls=calls)


def _called_tools(messages: list[Message]) -> set[str]:
    """Return the names of the tools that were called since the last call of `__finish__` that acorn accepted."""
    called: set[str] = set()
    finish_ids: set[str] = set()
    for message in messages:
        for tool_call in message.get("tool_calls") or ():
            name: str = tool_call["function"]["name"]
            called.add(name)
            if name == FINISH:
                finish_ids.add(tool_call["id"])
        if message.get("tool_call_id") in finish_ids and message.get("content") == FINISHED:
            called.clear()
    return called
