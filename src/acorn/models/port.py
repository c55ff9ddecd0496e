"""What the loop hands to a model, what it takes back, and what a model must offer.

Requests and responses are the same for every provider; an adapter translates. Messages are in OpenAI's
format and never change once they are in a request, so an adapter that wants to edit one makes a copy.

A model around another: in all that it does not say itself, it is the one inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

from pydantic_core import to_json

from acorn.errors import ModelError
from acorn.models.request_body import SentMedium, SentPart, media_of, message_json
from acorn.types import Fallback, JsonObject, Usage


@dataclass(frozen=True)
class Price:
    """Dollars a token."""

    input: float
    output: float
    cached: float | None = None
    """Of input that was read from a cache; None is the price of any input."""
    written: float | None = None
    """Of input that was written to one."""

    def of(self, usage: Usage) -> float:
        dollars = usage.input_tokens * self.input + usage.output_tokens * self.output
        if self.cached is not None:
            dollars += usage.cached_tokens * (self.cached - self.input)
        if self.written is not None:
            dollars += usage.cache_write_tokens * (self.written - self.input)
        return dollars


PRICES = (
    *("input_cost_per_token", "output_cost_per_token"),
    *("cache_read_input_token_cost", "cache_creation_input_token_cost"),
)
"""Keys of a model dict, by LiteLLM's names."""


def price_in(config: Mapping[str, Any]) -> Price | None:
    """The price that a model dict gives; None where it gives none."""
    given, made, cached, written = (config.get(name) for name in PRICES)
    if given is made is cached is written is None:
        return None
    read, wrote = (None if each is None else float(each) for each in (cached, written))
    return Price(float(given or 0), float(made or 0), read, wrote)


AUTO_CACHE: tuple[Mapping[str, Any], ...] = ({"location": "request"},)
"""What `cache = "auto"` stands for: the provider itself finds what to keep, where it can be asked to."""


@dataclass(eq=False)
class ModelRequest:
    """One request, as the loop means it."""

    messages: list[JsonObject]
    """Of a request that the loop has made, a list when somebody first wants one."""
    tools: list[JsonObject]
    """Function definitions in OpenAI's format; beside them, as the user wrote them, tools that the provider runs."""
    temperature: float
    max_tokens: int
    forced_tool: str | None = None
    """The tool that the model must call, or None to leave it the choice."""
    declared: frozenset[str] = frozenset()
    """Which of `temperature` and `max_tokens` the user set; the others are defaults."""
    cache: Sequence[Mapping[str, Any]] = ()
    """Cache points; an index counts the messages after the system message."""
    timeout: float | None = None
    """Seconds that the run has left."""
    messages_json: Callable[[], bytes] | None = field(default=None, repr=False)
    tools_json: Callable[[], bytes] | None = field(default=None, repr=False)
    left_out: set[str] | None = field(default=None, repr=False)
    """What the model was found not to take when this was sent before, where somebody counts how often it is."""
    known_media: Sequence[SentMedium] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        sent: SentPart,
        tools: list[JsonObject],
        temperature: float,
        max_tokens: int,
        forced_tool: str | None,
        declared: frozenset[str],
        cache: Sequence[Mapping[str, Any]],
        tools_json: Callable[[], bytes],
    ) -> ModelRequest:
        """A request that shares its messages with those before it."""
        made = cls.__new__(cls)
        made.__dict__ = {
            "tools": tools,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "forced_tool": forced_tool,
            "declared": declared,
            "cache": cache,
            "timeout": None,
            "messages_json": sent.json,
            "tools_json": tools_json,
            "left_out": None,
            "known_media": sent.media,
        }
        return made

    if not TYPE_CHECKING:  # a type checker would take any name for one that there is

        def __getattr__(self, name: str) -> Any:
            if name != "messages" or self.sent is None:
                raise AttributeError(f"A request has no `{name}`.")
            self.messages = made = self.sent.messages()
            return made

    def but(self, **changes: Any) -> ModelRequest:
        """The same request with other fields. Other `messages` have no `messages_json` of these."""
        made = type(self).__new__(type(self))
        made.__dict__ = {**vars(self), **changes}
        return made

    def __getstate__(self) -> JsonObject:
        # What writes it is bound to the run, and a copy can do without.
        return {**vars(self), "messages": self.messages, "messages_json": None, "tools_json": None}

    @property
    def sent(self) -> SentPart | None:
        """The messages as a part of those that were sent in the same conversation, where the loop has made it."""
        found: Any = getattr(vars(self).get("messages_json"), "__self__", None)
        return found if isinstance(found, SentPart) else None

    @property
    def media(self) -> Sequence[SentMedium]:
        """What of the messages is no text."""
        if self.known_media is None:
            return [medium for message in self.messages for medium in media_of(message)]
        return self.known_media

    @property
    def is_auto_cached(self) -> bool:
        """Whether the provider is asked to keep what it can."""
        return bool(self.cache) and self.cache[0].get("location") == "request"

    @property
    def cache_points(self) -> Sequence[Mapping[str, Any]]:
        """The points within the messages."""
        return () if self.is_auto_cached else self.cache

    @property
    def message_count(self) -> int:
        """How many messages there are."""
        return len(self.messages) if (sent := self.sent) is None else len(sent)

    def with_messages(self, before: bytes, after: bytes) -> bytes:
        """The messages as JSON between two texts, in one piece; what was written before is not written again."""
        if (sent := self.sent) is not None:
            return sent.json(before + b"[", b"]" + after)
        messages = self.messages_json() if self.messages_json else b"[%s]" % b",".join(map(message_json, self.messages))
        return b"%s%s%s" % (before, messages, after)

    def body(self, model: str) -> bytes:
        """The request as OpenAI's JSON."""
        tools = self.tools_json() if self.tools_json else to_json(self.tools)
        head = _head(model, self.temperature, self.max_tokens, self.forced_tool)
        return self.with_messages(b'%s,"tools":%s,"messages":' % (head, tools), b"}")


@lru_cache(maxsize=256, typed=True)
def _head(model: str, temperature: float, max_tokens: int, forced_tool: str | None) -> bytes:
    """How the body of a request begins, which is the same at every step."""
    rest: JsonObject = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
    if forced_tool:
        rest["tool_choice"] = {"type": "function", "function": {"name": forced_tool}}
    return to_json(rest)[:-1]


@dataclass(slots=True)
class RawCall:
    """A tool call as a provider gives it: nothing of it need be right."""

    id: str | None
    name: str
    arguments: str


@dataclass(eq=False)
class ModelResponse:
    """One response, the same whatever the provider."""

    content: str = ""
    tool_calls: list[RawCall] = field(default_factory=list[RawCall])
    stop_reason: str = "stop"
    """`stop`, `tool_calls`, `length`, `content_filter`."""
    usage: Usage = field(default_factory=lambda: Usage(requests=1))
    cost: float | None = None
    model: str = ""
    """The name under which the provider answered."""
    reasoning: str | None = None
    """Thinking text."""
    refusal: str | None = None
    """Why the model would not answer."""
    extra: JsonObject = field(default_factory=JsonObject)
    """Further fields of the assistant message that must be sent back, such as signed thinking blocks."""
    attempts: int = 1
    """How many requests it took."""
    waits: tuple[float, ...] = ()
    """Seconds waited before each further one."""
    fallbacks: tuple[Fallback, ...] = ()
    """Which models of a list did not answer before this one did."""


@dataclass(slots=True, eq=False)
class CallDelta:
    """A fragment of a tool call."""

    index: int
    """The provider's number for the call."""
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True, eq=False)
class Delta:
    """A piece of a response; whatever is new in it is set."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    stop_reason: str | None = None
    usage: Usage | None = None
    cost: float | None = None
    model: str = ""
    refusal: str | None = None
    extra: JsonObject | None = None
    attempts: int = 1
    waits: tuple[float, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()


class RequestNotSupportedError(ModelError):
    """The model cannot take what is in the request, and was not asked; another of a list may take it."""


class ResendError(ModelError):
    """The model does not take something that nobody has set, and may take the request without it.

    Raised where somebody counts what is sent (`ModelRequest.left_out`); elsewhere an adapter sends it again itself.
    """


class RetryEvent(NamedTuple):
    """A model has failed, and something is done about it."""

    model: str
    status: int | None
    """The HTTP status, where there was one."""
    wait: float = 0.0
    """Seconds until it is asked again."""
    to: str | None = None
    """The model that is asked instead, if another is."""


setbacks: ContextVar[Callable[[RetryEvent], object] | None] = ContextVar("acorn_setbacks", default=None)
"""Who hears of setbacks while a model is asked in this context."""


def report_retry(setback: RetryEvent) -> None:
    """Tell whoever wants to hear of it."""
    if (hear := setbacks.get()) is not None:
        hear(setback)


class Model(Protocol):
    """A language model. Adapters raise `ModelError` and nothing else of their own.

    A model may also have an attribute `thinks`: whether it was asked to think before it answers, so that no
    tool should be forced from the first call on. Without one it does not. One that stands for several has a
    tuple of them as `models`. One that is known to take strict schemas has `takes_strict`; one that
    takes tools which its provider runs has `takes_tool(definition)`, and is sent them among the others.
    """

    @property
    def name(self) -> str:
        """For records and messages."""
        ...

    def can_force_tool(self, request: ModelRequest) -> bool:
        """Whether the model can be made to call one tool with this request."""
        ...

    def price(self) -> Price | None:
        """What a token costs, or None where nobody knows."""
        ...

    def complete(self, request: ModelRequest) -> ModelResponse: ...

    async def acomplete(self, request: ModelRequest) -> ModelResponse: ...


class StreamingModel(Model, Protocol):
    """A model that can also give its response piece by piece. Closing the iterator ends the request."""

    def stream(self, request: ModelRequest) -> Iterator[Delta]: ...

    def astream(self, request: ModelRequest) -> AsyncIterator[Delta]: ...


_METHODS = ("complete", "acomplete", "can_force_tool", "price")


def is_model(value: object) -> TypeGuard[Model]:
    """Whether an object offers what the port asks for."""
    return not isinstance(value, type | str | dict) and not lacks(value)


def lacks(value: object) -> list[str]:
    """What of the port an object does not have."""
    missing = [name for name in _METHODS if not callable(getattr(value, name, None))]
    return missing if hasattr(value, "name") else ["name", *missing]


def is_meant_as_model(value: object) -> bool:
    """Whether an object, or its class, has some of what the port asks for."""
    return any(callable(getattr(value, name, None)) for name in _METHODS)


def can_stream(model: Model) -> TypeGuard[StreamingModel]:
    """Whether a model gives its response piece by piece."""
    return callable(getattr(model, "stream", None)) and callable(getattr(model, "astream", None))


def thinks(model: Model) -> bool:
    """Whether a model was asked to think before it answers."""
    return bool(getattr(model, "thinks", False))


def takes_strict(model: Model) -> bool:
    """Whether a model is known to take strict schemas, so that it may be sent one unasked."""
    return bool(getattr(model, "takes_strict", False))


def takes_tool(model: Model, tool: Mapping[str, Any]) -> bool:
    """Whether a model takes a tool that is none of ours, which its provider runs."""
    judge: Any = getattr(model, "takes_tool", None)
    return callable(judge) and bool(judge(tool))


def models_of(model: Model) -> Sequence[Model]:
    """The models that may answer where this one is asked."""
    found: Any = getattr(model, "models", None)
    return found if isinstance(found, tuple) and found and all(map(is_model, found)) else (model,)


class ModelWrapper(ABC):
    """What asks another model; whoever wraps says how it completes and how it streams."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    @property
    def name(self) -> str:
        return self._model.name

    def can_force_tool(self, request: ModelRequest) -> bool:
        return self._model.can_force_tool(request)

    def price(self) -> Price | None:
        return self._model.price()

    def __getattr__(self, name: str) -> Any:
        """What else the model has. A model that cannot stream has no `stream` here either."""
        if name.startswith("_"):  # copy and pickle probe for these before there is a model
            raise AttributeError(name)
        found = getattr(self._model, name)
        if name in ("stream", "astream") and callable(found):
            return self._stream if name == "stream" else self._astream
        return found

    @abstractmethod
    def _stream(self, request: ModelRequest) -> Iterator[Delta]: ...

    @abstractmethod
    def _astream(self, request: ModelRequest) -> AsyncIterator[Delta]: ...


def close_stream(deltas: Any) -> None:
    """End a stream that may be no generator."""
    if hasattr(deltas, "close"):
        deltas.close()


async def aclose_stream(deltas: Any) -> None:
    if hasattr(deltas, "aclose"):
        await deltas.aclose()
