"""The port of language models: the interface of a model, its responses and its prices.

Requests and responses are the same for every provider, and adapters translate them. Messages are in OpenAI's format
and never change once they are in a request. An adapter that must edit a message edits a copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeGuard

from acorn.errors import ModelError
from acorn.models.request import ModelRequest
from acorn.types import Fallback, JsonObject, Usage


@dataclass(frozen=True)
class Price:
    """The price of a model in dollars per token."""

    input: float
    output: float
    cached: float | None = None
    """The price of input that was read from a cache. None means the price of any other input."""
    written: float | None = None
    """The price of input that was written to a cache. None means the price of any other input."""

    def of(self, usage: Usage) -> float:
        """Return the cost of a request in dollars."""
        dollars = usage.input_tokens * self.input + usage.output_tokens * self.output
        if self.cached is not None:
            dollars += usage.cached_tokens * (self.cached - self.input)
        if self.written is not None:
            dollars += usage.cache_write_tokens * (self.written - self.input)
        return dollars


PRICE_KEYS = (
    *("input_cost_per_token", "output_cost_per_token"),
    *("cache_read_input_token_cost", "cache_creation_input_token_cost"),
)
"""The keys of a model dict that set prices. The names are LiteLLM's."""


def price_in(config: JsonObject) -> Price | None:
    """Return the price that a model dict sets, or None if it sets none."""
    input_price, output_price, read_price, write_price = (config.get(key) for key in PRICE_KEYS)
    if input_price is output_price is read_price is write_price is None:
        return None
    cached, written = (None if price is None else float(price) for price in (read_price, write_price))
    return Price(float(input_price or 0), float(output_price or 0), cached, written)


@dataclass(slots=True)
class RawCall:
    """A tool call as the provider sent it, not yet validated."""

    id: str | None
    name: str
    arguments: str


@dataclass(eq=False)
class ModelResponse:
    """A response of a model, independent of the provider."""

    content: str = ""
    tool_calls: list[RawCall] = field(default_factory=list[RawCall])
    stop_reason: str = "stop"
    """`stop`, `tool_calls`, `length` or `content_filter`."""
    usage: Usage = field(default_factory=lambda: Usage(requests=1))
    cost: float | None = None
    model: str = ""
    """The name of the model as the provider reports it."""
    reasoning: str | None = None
    """The reasoning text."""
    refusal: str | None = None
    """The reason why the model refused to answer."""
    extra: JsonObject = field(default_factory=JsonObject)
    """Further fields of the assistant message that must be sent back, such as signed reasoning blocks."""
    attempts: int = 1
    """The number of requests that were sent."""
    waits: tuple[float, ...] = ()
    """The seconds waited before each further request."""
    fallbacks: tuple[Fallback, ...] = ()
    """The models of a list that failed or were skipped before this one responded."""


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
    """A piece of a streamed response. Only the fields that are new are set."""

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
    """The model does not support something in the request, which was not sent. Another model of a list may."""


class ResendError(ModelError):
    """The model rejected a default that the user did not set, and may accept the request without it.

    An adapter raises it only if `ModelRequest.left_out` is set. Otherwise the adapter resends the request itself.
    """


_TRANSIENT_STATUSES = (408, 409, 429)


def is_retryable(status: int) -> bool:
    """Return whether a request that failed with this HTTP status may succeed later."""
    return status in _TRANSIENT_STATUSES or status >= 500


class RetryEvent(NamedTuple):
    """A failed request that is retried, or that is sent to another model."""

    model: str
    status: int | None
    """The HTTP status, or None if there was no response."""
    wait: float = 0.0
    """The seconds until the next attempt."""
    to: str | None = None
    """The model that receives the request instead, or None if the same model is retried."""


retry_listener: ContextVar[Callable[[RetryEvent], object] | None] = ContextVar("acorn_retry_listener", default=None)
"""The function that receives the retry events of this context."""


def report_retry(event: RetryEvent) -> None:
    """Send a retry event to the listener of this context."""
    if (listener := retry_listener.get()) is not None:
        listener(event)


class Model(Protocol):
    """A language model. Adapters raise `ModelError` for every failure of their own.

    A model may have further attributes. `thinks` says that the model was asked to reason before it answers, so that
    acorn should not force a tool from the first call on. `models` is a tuple of the models that this one stands for.
    `takes_strict` says that the model is known to support strict schemas. `takes_tool(definition)` says whether the
    provider runs a hosted tool, which acorn then sends together with the others.
    """

    @property
    def name(self) -> str:
        """The name for records and messages."""
        ...

    def can_force_tool(self, request: ModelRequest) -> bool:
        """Return whether the model can be forced to call one tool with this request."""
        ...

    def price(self) -> Price | None:
        """Return the price per token, or None if it is unknown."""
        ...

    def complete(self, request: ModelRequest) -> ModelResponse: ...

    async def acomplete(self, request: ModelRequest) -> ModelResponse: ...


class StreamingModel(Model, Protocol):
    """A model that can also stream its response. Closing the iterator ends the request."""

    def stream(self, request: ModelRequest) -> Iterator[Delta]: ...

    def astream(self, request: ModelRequest) -> AsyncIterator[Delta]: ...


_METHODS = ("complete", "acomplete", "can_force_tool", "price")


def is_model(value: object) -> TypeGuard[Model]:
    """Return whether an object implements the port."""
    return not isinstance(value, type | str | dict) and not missing_members(value)


def missing_members(value: object) -> list[str]:
    """Return the names of the port that an object does not have."""
    missing = [name for name in _METHODS if not callable(getattr(value, name, None))]
    return missing if hasattr(value, "name") else ["name", *missing]


def resembles_model(value: object) -> bool:
    """Return whether an object or a class has at least one method of the port."""
    return any(callable(getattr(value, name, None)) for name in _METHODS)


def can_stream(model: Model) -> TypeGuard[StreamingModel]:
    """Return whether a model can stream its response."""
    return callable(getattr(model, "stream", None)) and callable(getattr(model, "astream", None))


def thinks(model: Model) -> bool:
    """Return whether a model was asked to reason before it answers."""
    return bool(getattr(model, "thinks", False))


def takes_strict(model: Model) -> bool:
    """Return whether a model is known to support strict schemas, so that acorn may send one by default."""
    return bool(getattr(model, "takes_strict", False))


def takes_tool(model: Model, tool: JsonObject) -> bool:
    """Return whether the provider of a model runs a hosted tool."""
    method = getattr(model, "takes_tool", None)
    return callable(method) and bool(method(tool))


def models_of(model: Model) -> Sequence[Model]:
    """Return the models that may answer a request to this one."""
    models: tuple[Model, ...] | None = getattr(model, "models", None)
    return models if isinstance(models, tuple) and models and all(map(is_model, models)) else (model,)


class ModelWrapper(ABC):
    """A model that sends its requests to another model.

    Subclasses define how it completes and streams. Every other attribute is that of the wrapped model.
    """

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
        """Return an attribute of the wrapped model. If that cannot stream, the wrapper has no `stream` either."""
        if name.startswith("_"):  # `copy` and `pickle` look for these before `_model` exists.
            raise AttributeError(name)
        attribute = getattr(self._model, name)
        if name in ("stream", "astream") and callable(attribute):
            return self._stream if name == "stream" else self._astream
        return attribute

    @abstractmethod
    def _stream(self, request: ModelRequest) -> Iterator[Delta]: ...

    @abstractmethod
    def _astream(self, request: ModelRequest) -> AsyncIterator[Delta]: ...


def close_stream(deltas: Iterator[Delta]) -> None:
    """Close a stream, which is not necessarily a generator."""
    if (close := getattr(deltas, "close", None)) is not None:
        close()


async def aclose_stream(deltas: AsyncIterator[Delta]) -> None:
    """Close an asynchronous stream, which is not necessarily a generator."""
    if (aclose := getattr(deltas, "aclose", None)) is not None:
        await aclose()
