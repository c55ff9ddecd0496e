"""Fallback: if a model of a list cannot answer a request, acorn sends the request to the next model of the list.

    class Researcher(module[Question, Answer]):
        model = ["anthropic/claude-sonnet-4-5", {"model": "openai/gpt-4o", "num_retries": 0}]

The next model receives the request if a model fails with an error that may be temporary, or if it does not support a
part of the request. Each model has its own retries and settings. A circuit breaker skips a model that fails repeatedly
(`circuit_breaker.py`). A stream can move to the next model only before its first delta was delivered. `resolve` creates
a `FallbackChain` from a list of models. The agent loop uses this chain like any other model.

Some providers sign or encrypt the reasoning of their models. Such reasoning may only be sent to a model that can read
it. The history does not say which model wrote a message, so `ReasoningOwner` remembers it until the process ends. If
the model is unknown, for example in a loaded run, acorn assumes that the first model of the list wrote the message.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from pydantic_core import to_json

from acorn._base.clock import current_clock
from acorn._base.log import logger
from acorn._formats.redact import Redactor
from acorn.errors import ModelError
from acorn.models.assemble import as_deltas
from acorn.models.circuit_breaker import CIRCUITS, Circuit, CircuitPass, CircuitRegistry
from acorn.models.lanes.lane import REASONING_KEYS
from acorn.models.port import (
    Delta,
    Model,
    ModelResponse,
    Price,
    RequestNotSupportedError,
    RetryEvent,
    aclose_stream,
    can_stream,
    close_stream,
    report_retry,
    takes_strict,
    thinks,
)
from acorn.models.request import ModelRequest
from acorn.types import Fallback, JsonObject, Message, Usage, is_json_object

_MAX_ENTRIES = 10_000
"""The maximum number of reasoning values whose author is remembered."""
_SHARED_REASONING = ("anthropic", "openai")
"""Providers whose models can read each other's reasoning. Other providers may host the models of many vendors."""


class ReasoningOwner:
    """A table that says which model wrote the reasoning in a message of this process.

    The table does not contain model names. It contains the results of `reasoning_reader`, which are equal for models
    that can read each other's reasoning.
    """

    def __init__(self) -> None:
        self._keys = {*REASONING_KEYS}
        """The known message keys that contain reasoning. A response may add further keys."""
        self._owners: dict[int, Hashable] = {}
        """A dict that maps the fingerprint of a reasoning value to its owner."""
        self._writers: set[Hashable] = set()
        """The owners that have written any reasoning."""
        self._lock = threading.Lock()

    def record(self, extra: JsonObject, owner: Hashable) -> None:
        """Record that `owner` wrote the reasoning in `extra`, the additional message keys of a response."""
        with self._lock:
            for key, value in extra.items():
                self._keys.add(key)
                self._owners[_fingerprint(key, value)] = owner
            self._writers.add(owner)
            while len(self._owners) > _MAX_ENTRIES:
                del self._owners[next(iter(self._owners))]

    def filter(self, messages: Sequence[Message], reader: Hashable, first: Hashable) -> list[Message] | None:
        """Return the messages without the reasoning that `reader` cannot read, or None if no message changes.

        `reader` is the result of `reasoning_reader` for the model that receives the messages. If the table does not
        contain a reasoning value, `first` is assumed to be its owner.
        """
        if reader == first and self._writers <= {first}:
            return None
        keys = tuple(self._keys)
        changed: dict[int, Message] = {}
        for at in {at for key in keys for at, message in enumerate(messages) if key in message}:
            message = messages[at]
            foreign = [key for key in keys if key in message and self._owner(key, message, first) != reader]
            if foreign:
                kept = {key: value for key, value in message.items() if key not in foreign}
                changed[at] = cast(Message, kept)
        if not changed:
            return None
        return [changed.get(at, message) for at, message in enumerate(messages)]

    def _owner(self, key: str, message: Mapping[str, Any], default: Hashable) -> Hashable:
        return self._owners.get(_fingerprint(key, message[key]), default)


def reasoning_reader(declared: object) -> Hashable:
    """Return a value that is equal for two models if each can read the reasoning of the other.

    `declared` is a value of the `model` setting: a model id, a model dict or a model object.
    """
    if not isinstance(declared, str) and not is_json_object(declared):
        return str(getattr(declared, "name", ""))
    config = {"model": declared} if isinstance(declared, str) else declared
    name = str(config.get("model") or config.get("id"))
    provider = name.partition("/")[0]
    address = config.get("base_url") or config.get("api_base")
    return hash((provider if provider in _SHARED_REASONING else name, address, config.get("api_key")))


def _fingerprint(key: str, value: object) -> int:
    return hash((key, to_json(value, inf_nan_mode="null", serialize_unknown=True)))


OWNERS = ReasoningOwner()
"""The reasoning owners of this process. The table is global because a branch or a later call may continue a
conversation."""


CIRCUIT_OPEN = "its circuit is open"

Outcome = TypeVar("Outcome", ModelResponse, Delta)


@dataclass(frozen=True, eq=False)
class FallbackLink:
    """One model of a fallback chain, with its circuit breaker and its sampling settings."""

    model: Model
    circuit: Circuit
    reader: Hashable
    """The value of `reasoning_reader` for this model."""
    sampling: JsonObject = field(default_factory=JsonObject)
    """The `temperature` and `max_tokens` in the model dict of this model."""
    position: str = ""
    """The position in the list, such as ` (model[1])`, or "" if no other model of the chain has the same name."""

    @property
    def name(self) -> str:
        """The name of the model in run records and error messages, such as `gpt-4o` or `gpt-4o (model[1])`."""
        return f"{self.model.name}{self.position}"


class FallbackChain:
    """A list of models that behaves like one model."""

    def __init__(self, links: Sequence[FallbackLink]) -> None:
        names = [link.model.name for link in links]
        self.links = tuple(
            replace(link, position=f" (model[{at}])") if names.count(link.model.name) > 1 else link
            for at, link in enumerate(links)
        )
        self.is_mixed = len({link.reader for link in links}) > 1
        """Whether the chain contains models that cannot read each other's reasoning."""

    @classmethod
    def of(cls, models: Sequence[Model], circuits: CircuitRegistry = CIRCUITS) -> FallbackChain:
        """Create a chain from a list of model objects, and find or create their circuit breakers in `circuits`."""
        return cls([FallbackLink(model, circuits.of(model), reasoning_reader(model)) for model in models])

    def wrap_inner(self, wrap: Callable[[Model], Model]) -> FallbackChain:
        """Return a copy of the chain that contains the result of `wrap(model)` in place of each model."""
        return FallbackChain([replace(link, model=wrap(link.model)) for link in self.links])

    def __repr__(self) -> str:
        return f"FallbackChain({list(self.models)!r})"

    # The chain has the properties of the model that would receive the next request.

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(link.model for link in self.links)

    @property
    def _next(self) -> FallbackLink:
        return next((link for link in self.links if link.circuit.allows_request), self.links[0])

    @property
    def name(self) -> str:
        return self._next.name

    @property
    def thinks(self) -> bool:
        return thinks(self._next.model)

    @property
    def takes_strict(self) -> bool:
        return all(map(takes_strict, self.models))

    def can_force_tool(self, request: ModelRequest) -> bool:
        return self._next.model.can_force_tool(request)

    def price(self) -> Price | None:
        """Return the price of the model that receives the next request.

        Return None if the price of any model of the chain is unknown, because any of these models may answer.
        """
        if len(self.links) > 1 and any(model.price() is None for model in self.models):
            return None
        return self._next.model.price()

    def complete(self, request: ModelRequest) -> ModelResponse:
        for attempt in _ChainAttempts(self, request):
            with attempt:
                return attempt.add_origin(attempt.add_cost(attempt.model.complete(attempt.request())))
        raise AssertionError("The fallback chain ended without a response or an error. This is a bug in acorn.")

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        for attempt in _ChainAttempts(self, request):
            with attempt:
                return attempt.add_origin(attempt.add_cost(await attempt.model.acomplete(attempt.request())))
        raise AssertionError("The fallback chain ended without a response or an error. This is a bug in acorn.")

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        for attempt in _ChainAttempts(self, request):
            with attempt:
                deltas = _stream(attempt.model, attempt.request())
                try:
                    yield attempt.start_stream(next(deltas, Delta()))
                    for delta in deltas:
                        yield attempt.add_cost(delta)
                finally:
                    close_stream(deltas)
                return

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        for attempt in _ChainAttempts(self, request):
            with attempt:
                deltas = _astream(attempt.model, attempt.request())
                try:
                    yield attempt.start_stream(await anext(deltas, Delta()))
                    async for delta in deltas:
                        yield attempt.add_cost(delta)
                finally:
                    await aclose_stream(deltas)
                return


def _stream(model: Model, request: ModelRequest) -> Iterator[Delta]:
    return model.stream(request) if can_stream(model) else iter(as_deltas(model.complete(request)))


def _astream(model: Model, request: ModelRequest) -> AsyncIterator[Delta]:
    return model.astream(request) if can_stream(model) else _acomplete_as_stream(model, request)


async def _acomplete_as_stream(model: Model, request: ModelRequest) -> AsyncIterator[Delta]:
    for delta in as_deltas(await model.acomplete(request)):
        yield delta


class _FailedLink(NamedTuple):
    """A model of the chain that failed, or that was skipped because its circuit is open."""

    name: str
    error: ModelError | None
    """The error of the model, or None if the model was skipped because its circuit is open."""

    def describe(self) -> str:
        if self.error is None:
            return f"`{self.name}` was skipped: {CIRCUIT_OPEN}"
        return Redactor().text(str(self.error)).rstrip(".")

    def report(self, next_name: str) -> None:
        """Report a `RetryEvent` and log that the model `next_name` receives the request instead of this model."""
        report_retry(RetryEvent(self.name, None if self.error is None else self.error.status, to=next_name))
        if self.error is None:
            logger.info("`%s` is skipped (%s). The request goes to `%s`.", self.name, CIRCUIT_OPEN, next_name)
            return
        cause = "no response" if self.error.status is None else f"HTTP {self.error.status}"
        if isinstance(self.error, RequestNotSupportedError):
            cause = "it does not support the request"
        # Do not log the error message: it may come from the provider and quote the conversation.
        logger.info("`%s` failed (%s). The request goes to `%s`.", self.name, cause, next_name)


class _ChainAttempts:
    """The attempts to get a response to one request.

    Each model of the chain gets at most one attempt.
    """

    def __init__(self, chain: FallbackChain, request: ModelRequest) -> None:
        self.chain = chain
        self.original_request = request
        self.fallbacks: tuple[Fallback, ...] = ()
        self._failed: list[_FailedLink] = []
        self._clock = current_clock()
        self._started = self._clock.monotonic()
        self._next: _ChainAttempt | None = None

    def __iter__(self) -> Iterator[_ChainAttempt]:
        self._next = self._find(0)
        if self._next is None:  # Every circuit is open. The first model receives the request in spite of that.
            self._failed.clear()
            circuit_pass = self.chain.links[0].circuit.enter(is_forced=True)
            assert circuit_pass is not None
            self._next = _ChainAttempt(self, 0, circuit_pass)
        while self._next is not None:
            attempt, self._next = self._next, None
            yield attempt

    @property
    def time_left(self) -> float | None:
        """The seconds that the run has left, or None if it has no time limit."""
        timeout = self.original_request.timeout
        return None if timeout is None else timeout - (self._clock.monotonic() - self._started)

    def _find(self, start: int) -> _ChainAttempt | None:
        """Return an attempt with the next model whose circuit allows a request, or None if no model is left.

        The search begins at the index `start` of the chain. It also reports the models that failed or were skipped
        before.
        """
        for at in range(start, len(self.chain.links)):
            link = self.chain.links[at]
            circuit_pass = link.circuit.enter()
            if circuit_pass is None:
                self._failed.append(_FailedLink(link.name, None))
                continue
            name = link.name
            for failed in self._failed[len(self.fallbacks) :]:
                failed.report(name)
                cause = CIRCUIT_OPEN if failed.error is None else failed.describe()
                self.fallbacks += (Fallback(failed.name, name, cause),)
            return _ChainAttempt(self, at, circuit_pass)
        return None

    def choose_next_model(self, at: int, error: ModelError, *, has_started: bool) -> bool:
        """Choose the next model after the model at index `at` failed, and return True if there is one.

        Without a next model, return False, so that the caller raises `error`. If other models failed or were skipped
        before, raise an error that describes all failures instead.
        """
        others = list(self._failed)
        self._failed.append(_FailedLink(self.chain.links[at].name, error))
        if (error.retryable or isinstance(error, RequestNotSupportedError)) and not has_started:
            self._next = self._find(at + 1)
            if self._next is not None:
                return True
        others += self._failed[len(others) + 1 :]
        if others:
            self._raise(error, others)
        return False

    def _raise(self, last: ModelError, others: list[_FailedLink]) -> NoReturn:
        errors = [*(failed.error for failed in others if failed.error is not None), last]
        causes = "; ".join(failed.describe() for failed in others)
        raise ModelError(
            f"{str(last).rstrip('.')}. The other models of the list also did not answer: {causes}.",
            provider=last.provider,
            status=last.status,
            retryable=last.retryable,
            retry_after=last.retry_after,
            timed_out=any(error.timed_out for error in errors),
        ) from (ExceptionGroup("The errors of the models in the list", errors) if len(errors) > 1 else last)


class _ChainAttempt:
    """An attempt to get a response from one model of the chain, as a context manager.

    If the request fails in the `with` block, the context manager chooses the next model and suppresses the error.
    """

    def __init__(self, attempts: _ChainAttempts, at: int, circuit_pass: CircuitPass) -> None:
        self._attempts = attempts
        self._at = at
        self._link = attempts.chain.links[at]
        self._pass = circuit_pass
        self._has_started = False
        self.model = self._link.model

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self._pass.report_success(self._link.name)
            return False
        if not isinstance(error, ModelError):
            self._pass.release()
            return False
        time_left = self._attempts.time_left
        if time_left is not None and time_left <= 0:
            self._pass.release()  # The time of the run is over, which is not a failure of the model.
            return False
        if error.retryable:
            self._pass.report_failure(self._link.name)
        else:
            self._pass.report_rejection()
        return self._attempts.choose_next_model(self._at, error, has_started=self._has_started)

    def request(self) -> ModelRequest:
        """Return a copy of the request with the settings of this model and without reasoning that it cannot read."""
        request, link, chain = self._attempts.original_request, self._link, self._attempts.chain
        changes = dict(link.sampling)
        if changes:
            changes["declared"] = request.declared | changes.keys()
        time_left = self._attempts.time_left if self._attempts.fallbacks else None
        if time_left is not None:
            changes["timeout"] = max(0.001, time_left)
        if request.forced_tool and not link.model.can_force_tool(request):
            # If the model does not call the tool, the loop sends another request.
            changes["forced_tool"] = None
        if chain.is_mixed:
            messages = OWNERS.filter(request.messages, link.reader, chain.links[0].reader)
            if messages is not None:
                changes["messages"] = messages
        return replace(request, **changes) if changes else request

    def start_stream(self, delta: Delta) -> Delta:
        """Return the first delta of a stream, with the name of this model.

        After this call, no other model can receive the request, because the caller has already received a part of the
        response.
        """
        self._has_started = True
        return self.add_origin(self.add_cost(delta))

    def add_cost(self, outcome: Outcome) -> Outcome:
        """Return a response or a delta with its cost, if the price of the model is known.

        This method also records that this model wrote the reasoning of the response.
        """
        if outcome.extra and self._attempts.chain.is_mixed:
            OWNERS.record(outcome.extra, self._link.reader)
        usage: Usage | None = outcome.usage
        if outcome.cost is None and usage is not None and (price := self.model.price()) is not None:
            return replace(outcome, cost=price.of(usage))
        return outcome

    def add_origin(self, outcome: Outcome) -> Outcome:
        """Return a response or a delta with the name of this model and the list of the models that failed earlier."""
        if outcome.model and not self._attempts.fallbacks:
            return outcome
        return replace(outcome, model=outcome.model or self.model.name, fallbacks=self._attempts.fallbacks)
