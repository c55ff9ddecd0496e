"""The interface of language models: the `Model` protocol, responses and prices.

Requests and responses have one format for all providers, and each adapter converts it to the format of its provider.
Messages are in OpenAI's format. A message never changes after it was added to a request. An adapter that must edit a
message therefore edits a copy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeGuard

from acorn._formats.json import excerpt
from acorn.errors import ModelError
from acorn.models.request import ModelRequest
from acorn.types import Fallback, JsonObject, Usage


@dataclass(frozen=True)
class Price:
    """The price of a model in dollars per token."""

    input: float
    output: float
    cached: float | None = None
    """The price of an input token from the provider's cache. None means the normal input price."""
    written: float | None = None
    """The price of an input token that the provider adds to its cache. None means the normal input price."""

    def of(self, usage: Usage) -> float:
        """Return the cost in dollars of the tokens in `usage`."""
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
"""The keys of a model dict that set prices, with LiteLLM's names."""


def price_in(config: JsonObject) -> Price | None:
    """Return the price that the user set in a model dict, or None if the dict contains no price."""
    input_price, output_price, read_price, write_price = (config.get(key) for key in PRICE_KEYS)
    if input_price is output_price is read_price is write_price is None:
        return None
    cached, written = (None if price is None else float(price) for price in (read_price, write_price))
    return Price(float(input_price or 0), float(output_price or 0), cached, written)


@dataclass(slots=True)
class RawCall:
    """A tool call as the provider sent it.

    Its arguments are JSON text and are not validated yet.
    """

    id: str | None
    name: str
    arguments: str


@dataclass(eq=False)
class ModelResponse:
    """A complete response from a model, in one format for all providers."""

    content: str = ""
    tool_calls: list[RawCall] = field(default_factory=list[RawCall])
    stop_reason: str = "stop"
    """The reason why the response ended: `stop`, `tool_calls`, `length` or `content_filter`."""
    usage: Usage = field(default_factory=lambda: Usage(requests=1))
    cost: float | None = None
    model: str = ""
    """The name of the model as the provider reports it."""
    reasoning: str | None = None
    """The reasoning text of the model."""
    refusal: str | None = None
    """The model's reason if it refused to answer, or None."""
    extra: JsonObject = field(default_factory=JsonObject)
    """Further fields of the assistant message that must be sent back, such as signed reasoning blocks."""
    attempts: int = 1
    """The number of requests that were sent."""
    waits: tuple[float, ...] = ()
    """The seconds of waiting before each repeated request."""
    fallbacks: tuple[Fallback, ...] = ()
    """The models of a list that failed or were skipped before this one responded."""


@dataclass(slots=True, eq=False)
class CallDelta:
    """A fragment of a tool call in a streamed response."""

    index: int
    """The number of the tool call in the response. All fragments of one call have the same number."""
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True, eq=False)
class Delta:
    """A fragment of a streamed response.

    It contains only the content that is new since the previous fragment.
    """

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
    """The error for a request that was not sent because the model does not support a part of it.

    If `model` is a list of models, acorn then tries the next model.
    """


class ResendError(ModelError):
    """The error for a request that must be sent again, without a default setting that the model rejected.

    The user did not set this setting, so acorn may omit it. An adapter raises this error only if a rate limiter set
    `ModelRequest.left_out`: the limiter must count the second request too. Otherwise the adapter sends the request
    again itself. The limiter also raises this error for a request that it admitted but that was not sent in time.
    """


def is_retryable(status: int) -> bool:
    """Return True if a request that failed with this HTTP status may succeed later."""
    return status in (408, 409, 429) or status >= 500


class RetryEvent(NamedTuple):
    """The report that a request failed and is sent again, either to the same model or to another model."""

    model: str
    status: int | None
    """The HTTP status, or None if there was no response."""
    wait: float = 0.0
    """The seconds until the next attempt."""
    to: str | None = None
    """The model that receives the request instead, or None if the same model is retried."""


retry_listener: ContextVar[Callable[[RetryEvent], object] | None] = ContextVar("acorn_retry_listener", default=None)
"""The context variable with the function that receives retry events."""


def report_retry(event: RetryEvent) -> None:
    """Pass a retry event to the function in the context variable `retry_listener`, if one is set."""
    if (listener := retry_listener.get()) is not None:
        listener(event)


class Model(Protocol):
    """The interface of a language model.

    If a request fails, the model must raise `ModelError`.

    A model may have further attributes. `thinks` is True if the user configured the model to reason before it answers.
    In this case acorn does not force a tool in the first request. `models` is a tuple of models if this object
    represents several models. `takes_strict` is True if the model is known to support strict schemas.
    `takes_tool(definition)` returns True if the provider supports a hosted tool, which the provider runs itself. acorn
    then sends the hosted tool together with the other tools.
    """

    @property
    def name(self) -> str:
        """The name of the model for run records and error messages."""
        ...

    def can_force_tool(self, request: ModelRequest) -> bool:
        """Return True if this request can force the model to call one specific tool."""
        ...

    def price(self) -> Price | None:
        """Return the price per token, or None if the price is unknown."""
        ...

    def complete(self, request: ModelRequest) -> ModelResponse: ...

    async def acomplete(self, request: ModelRequest) -> ModelResponse: ...


class StreamingModel(Model, Protocol):
    """The interface of a model that can also stream its responses.

    Closing the returned iterator ends the request.
    """

    def stream(self, request: ModelRequest) -> Iterator[Delta]: ...

    def astream(self, request: ModelRequest) -> AsyncIterator[Delta]: ...


def check_response(response: object, model: Model) -> ModelResponse:
    """Return a response of a model. Raise `ModelError` if a custom model has returned a value of another type."""
    match response:
        case ModelResponse(str(), list(calls), usage=Usage()) if {RawCall}.issuperset(map(type, calls)):
            return response
        case _:
            parts = "`content` (text), `tool_calls` (a list of `RawCall`) and `usage` (a `Usage`)"
            raise wrong_value(model, f"return a `ModelResponse` with {parts}", response)


async def complete_async(model: Model, request: ModelRequest) -> ModelResponse:
    """Return the response of a model. Raise `ModelError` if the `acomplete` of a custom model is not async."""
    response: object = model.acomplete(request)
    if not isinstance(response, Awaitable):
        raise wrong_value(model, "return its response from an `async def acomplete`", response)
    answer: ModelResponse = await response
    return answer


def wrong_value(model: Model, must: str, value: object) -> ModelError:
    """Return the `ModelError` for a custom model that has returned a value of the wrong type."""
    got = f"`{type(value).__name__}`: {excerpt(value, 200)}"
    return ModelError(f"The model `{model.name}` must {must}, got {got}. Correct the model.")


_METHODS = ("complete", "acomplete", "can_force_tool", "price")


def is_model(value: object) -> TypeGuard[Model]:
    """Return True if an object has all methods and attributes of the interface `Model`."""
    return not isinstance(value, type | str | dict) and not missing_members(value)


def missing_members(value: object) -> list[str]:
    """Return the names of the methods and attributes of the interface `Model` that an object does not have."""
    missing = [name for name in _METHODS if not callable(getattr(value, name, None))]
    return missing if hasattr(value, "name") else ["name", *missing]


def resembles_model(value: object) -> bool:
    """Return True if an object or a class has at least one method of the interface `Model`.

    acorn uses it to explain an error if a value looks like an incomplete model.
    """
    return any(callable(getattr(value, name, None)) for name in _METHODS)


def can_stream(model: Model) -> TypeGuard[StreamingModel]:
    """Return True if a model has the methods `stream` and `astream`."""
    return callable(getattr(model, "stream", None)) and callable(getattr(model, "astream", None))


def thinks(model: Model) -> bool:
    """Return True if the user configured a model to reason before it answers."""
    return bool(getattr(model, "thinks", False))


def takes_strict(model: Model) -> bool:
    """Return True if a model is known to support strict schemas.

    acorn then sends strict schemas by default.
    """
    return bool(getattr(model, "takes_strict", False))


def takes_tool(model: Model, tool: JsonObject) -> bool:
    """Return True if the provider of a model supports a hosted tool, which the provider runs itself."""
    method = getattr(model, "takes_tool", None)
    return callable(method) and bool(method(tool))


def models_of(model: Model) -> Sequence[Model]:
    """Return the models that may answer a request to `model`.

    The result has several models if `model` is a fallback chain or a wrapper around one. Otherwise it contains only
    `model`.
    """
    models: tuple[Model, ...] | None = getattr(model, "models", None)
    return models if isinstance(models, tuple) and models and all(map(is_model, models)) else (model,)
