"""Fallback: if a model of a list cannot answer a request, acorn sends the request to the next model of the list.

    class Researcher(module[Question, Answer]):
        model = ["anthropic/claude-sonnet-4-5", {"model": "openai/gpt-4o", "num_retries": 0}]

The next model receives the request if a model fails with an error that may be temporary, or if it does not support a
part of the request. Each model has its own retries and settings. A stream can move to the next model only before its
first delta was delivered. `resolve` creates a `FallbackChain` from a list of models. The agent loop uses this chain
like any other model.

A model is skipped for some seconds after several failures in a row. Each model has a circuit, as in an electric circuit
breaker: a closed circuit allows requests, and an open circuit blocks them. A failure is a request that still fails
after its retries. A request that the model rejects permanently does not count as a failure. After some seconds, the
open circuit allows one trial request, and it closes if the trial request succeeds. Each combination of a model and a
server address has one circuit, which all runs of the process share.

Some providers sign or encrypt the reasoning of their models. Such reasoning may only be sent to a model that can read
it. The history does not say which model wrote a message, so `ReasoningOwner` remembers it until the process ends. If
the model is unknown, for example in a loaded run, acorn assumes that the first model of the list wrote the message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import is_not
from typing import NamedTuple, cast
from weakref import finalize, ref

from pydantic_core import to_json

from acorn._base.log import logger
from acorn._formats.redact import Redactor
from acorn.errors import ModelError
from acorn.models.lanes.lane import REASONING_KEYS
from acorn.models.port import Model, Price, RequestNotSupportedError, RetryEvent, report_retry, takes_strict, thinks
from acorn.models.request import ModelRequest
from acorn.models.retry import AttemptingModel, ModelAttempt, Outcome, TimeBudget
from acorn.types import Fallback, JsonObject, Message, Usage, is_json_object

# Circuit breakers

FAILURES = 3
"""The number of failures in a row that opens a circuit."""
OPEN_SECONDS = 30.0
"""The seconds until an open circuit allows a trial request."""


class Circuit:
    """The circuit breaker of one model.

    It decides whether acorn may send a request to the model. The sender of a request is any object. It reports the
    outcome of its request to the circuit.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until: float | None = None
        self._trial: ref[object] | None = None
        """A weak reference to the sender of the trial request, so that an abandoned trial request ends its trial."""

    @property
    def allows_request(self) -> bool:
        """True if the circuit is closed, or if it may allow a trial request now."""
        until = self._open_until
        return until is None or (self._clock() >= until and self._current_trial() is None)

    def admit(self, sender: object) -> bool:
        """Return True if `sender` may send a request, or False if the circuit is open and allows no trial now."""
        if self._open_until is None:
            return True
        with self._lock:
            if not self.allows_request:
                return False
            self._trial = ref(sender)
            return True

    def _current_trial(self) -> object:
        return None if self._trial is None else self._trial()

    def report_success(self, name: str) -> None:
        """Report that the model answered. `name` is the model name for the log."""
        if self._open_until is None and not self._failures:
            return
        with self._lock:
            was_open = self._open_until is not None
            self._failures, self._open_until, self._trial = 0, None, None
        if was_open:
            logger.info("`%s` answered again, so its circuit breaker is closed.", name)

    def report_failure(self, sender: object, name: str) -> None:
        """Report that the request failed with an error that may be temporary."""
        with self._lock:
            is_open = self._open_until is not None
            if is_open and self._current_trial() is not sender:
                return  # The request started before the circuit opened, or was sent despite the open circuit.
            self._failures += 1
            if not is_open and self._failures < FAILURES:
                return
            failures, self._open_until, self._trial = self._failures, self._clock() + OPEN_SECONDS, None
        logger.info(
            "The circuit breaker skips `%s` for %g s, because the model failed %d times in a row.",
            *(name, OPEN_SECONDS, failures),
        )

    def report_rejection(self, sender: object) -> None:
        """Report that the model rejected the request permanently, which does not count as a failure of the model."""
        if self._open_until is None:
            self._failures = 0
        self.release(sender)

    def release(self, sender: object) -> None:
        """Report that the request was abandoned, so that another request can become the trial request."""
        with self._lock:
            if self._current_trial() is sender:
                self._trial = None


class CircuitRegistry:
    """A registry that contains the circuit breaker of each model.

    If `model` is set to a model id or a model dict, the registry finds the circuit by the model id and the server
    address. If `model` is set to a model object, the registry finds the circuit by the `id()` of the object.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._circuits: dict[tuple[str, str] | int, Circuit] = {}

    def of(self, declared: object) -> Circuit:
        """Return the circuit for a value of the `model` setting: a model id, a model dict or a model object."""
        if isinstance(declared, str) or is_json_object(declared):
            return self._circuits.setdefault(_model_address(declared), Circuit(self._clock))
        circuit = self._circuits.get(id(declared))
        if circuit is None:
            circuit = Circuit(self._clock)
            # An object with slots does not support weak references. Its circuit exists for one run only.
            with suppress(TypeError):
                finalize(declared, self._circuits.pop, id(declared), None).atexit = False
                circuit = self._circuits.setdefault(id(declared), circuit)
        return circuit

    def clear(self) -> None:
        """Remove all circuits.

        Tests call this method because a new test server may get the address of an earlier server, and with it the open
        circuit of the earlier server.
        """
        self._circuits.clear()


def _model_address(declared: str | JsonObject) -> tuple[str, str]:
    """Return the model id and the custom server address in a model dict.

    The address is "" if the user set none.
    """
    config = {"model": declared} if isinstance(declared, str) else declared
    address = config.get("base_url") or config.get("api_base") or ""
    return str(config.get("model") or config.get("id")), str(address).rstrip("/")


CIRCUITS = CircuitRegistry()
"""The circuits of this process, which all runs share because an outage of a model affects every run."""


# Reasoning

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
        keys, filtered = frozenset(self._keys), list(messages)
        for at, message in enumerate(messages):
            values = {key: value for key, value in message.items() if key in keys}
            foreign = {key for key in values if self._owners.get(_fingerprint(key, values[key]), first) != reader}
            if foreign:
                kept = {key: value for key, value in message.items() if key not in foreign}
                filtered[at] = cast(Message, kept)
        return filtered if any(map(is_not, filtered, messages)) else None


def reasoning_reader(declared: object) -> Hashable:
    """Return a value that is equal for two models if each can read the reasoning of the other.

    `declared` is a value of the `model` setting: a model id, a model dict or a model object.
    """
    if not isinstance(declared, str) and not is_json_object(declared):
        return str(getattr(declared, "name", ""))
    name, address = _model_address(declared)
    provider = name.partition("/")[0]
    key = None if isinstance(declared, str) else declared.get("api_key")
    return hash((provider if provider in _SHARED_REASONING else name, address, key))


def _fingerprint(key: str, value: object) -> int:
    return hash((key, to_json(value, inf_nan_mode="null", serialize_unknown=True)))


OWNERS = ReasoningOwner()
"""The reasoning owners of this process. The table is global because a branch or a later call may continue a
conversation."""


# The chain

CIRCUIT_OPEN = "its circuit is open"


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


class FallbackChain(AttemptingModel):
    """A list of models that behaves like one model."""

    def __init__(self, links: Sequence[FallbackLink]) -> None:
        names = [link.model.name for link in links]
        self.links = tuple(
            replace(link, position=f" (model[{at}])") if names.count(link.model.name) > 1 else link
            for at, link in enumerate(links)
        )
        self.is_mixed = len({link.reader for link in links}) > 1
        """Whether the chain contains models that cannot read each other's reasoning."""

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

    def attempts(self, request: ModelRequest) -> Iterator[ModelAttempt]:
        return iter(_ChainAttempts(self, request))


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
        status = None if self.error is None else self.error.status
        report_retry(RetryEvent(self.name, status, to=next_name))
        # Do not log the error message: it may come from the provider and quote the conversation.
        cause = "failed (no response)" if status is None else f"failed (HTTP {status})"
        if self.error is None:
            cause = f"is skipped ({CIRCUIT_OPEN})"
        elif isinstance(self.error, RequestNotSupportedError):
            cause = "failed (it does not support the request)"
        logger.info("`%s` %s. The request goes to `%s`.", self.name, cause, next_name)


class _ChainAttempts:
    """The attempts to get a response to one request.

    Each model of the chain gets at most one attempt.
    """

    def __init__(self, chain: FallbackChain, request: ModelRequest) -> None:
        self.chain = chain
        self.request = request
        self.fallbacks: tuple[Fallback, ...] = ()
        self._failed: list[_FailedLink] = []
        self.time = TimeBudget(request)
        self._next: _ChainAttempt | None = None

    def __iter__(self) -> Iterator[_ChainAttempt]:
        self._next = self._find(0)
        if self._next is None:  # Every circuit is open. The first model receives the request in spite of that.
            self._failed.clear()
            self._next = _ChainAttempt(self, 0)
            self._next.circuit.admit(self._next)
        while self._next is not None:
            attempt, self._next = self._next, None
            yield attempt

    def _find(self, start: int) -> _ChainAttempt | None:
        """Return an attempt with the next model whose circuit allows a request, or None if no model is left.

        The search begins at the index `start` of the chain. It also reports the models that failed or were skipped
        before.
        """
        for at in range(start, len(self.chain.links)):
            attempt, name = _ChainAttempt(self, at), self.chain.links[at].name
            if not attempt.circuit.admit(attempt):
                self._failed.append(_FailedLink(name, None))
                continue
            for failed in self._failed[len(self.fallbacks) :]:
                failed.report(name)
                cause = CIRCUIT_OPEN if failed.error is None else failed.describe()
                self.fallbacks += (Fallback(failed.name, name, cause),)
            return attempt
        return None

    def choose_next_model(self, failed: _ChainAttempt, error: ModelError) -> bool:
        """Choose the next model after an attempt failed, and return True if there is one.

        Without a next model, return False, so that the caller raises `error`. If other models failed or were skipped
        before, raise an error that describes all failures instead.
        """
        failure = _FailedLink(failed.link.name, error)
        self._failed.append(failure)
        if (error.retryable or isinstance(error, RequestNotSupportedError)) and not failed.has_started:
            self._next = self._find(failed.at + 1)
            if self._next is not None:
                return True
        others = [other for other in self._failed if other is not failure]
        if not others:
            return False
        errors = [*(other.error for other in others if other.error is not None), error]
        causes = "; ".join(other.describe() for other in others)
        raise ModelError(
            f"{str(error).rstrip('.')}. The other models of the list also did not answer: {causes}.",
            provider=error.provider,
            status=error.status,
            retryable=error.retryable,
            retry_after=error.retry_after,
            timed_out=any(cause.timed_out for cause in errors),
        ) from (ExceptionGroup("The errors of the models in the list", errors) if len(errors) > 1 else error)


class _ChainAttempt(ModelAttempt):
    """An attempt to get a response from one model of the chain."""

    def __init__(self, attempts: _ChainAttempts, at: int) -> None:
        self._attempts, self.at = attempts, at
        self.link = attempts.chain.links[at]
        self.has_started = False
        self.model, self.circuit = self.link.model, self.link.circuit

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self.circuit.report_success(self.link.name)
            return False
        time_left = self._attempts.time.left
        # The end of the run's time is not a failure of the model.
        if not isinstance(error, ModelError) or (time_left is not None and time_left <= 0):
            self.circuit.release(self)
            return False
        if error.retryable:
            self.circuit.report_failure(self, self.link.name)
        else:
            self.circuit.report_rejection(self)
        return self._attempts.choose_next_model(self, error)

    def request(self) -> ModelRequest:
        """Return a copy of the request with the settings of this model and without reasoning that it cannot read."""
        request, link, chain = self._attempts.request, self.link, self._attempts.chain
        changes = dict(link.sampling)
        if changes:
            changes["declared"] = request.declared | changes.keys()
        time_left = self._attempts.time.left if self._attempts.fallbacks else None
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

    def add_first(self, outcome: Outcome) -> Outcome:
        """Return the outcome with its cost, the name of this model and the list of the models that failed earlier."""
        self.has_started = True
        outcome, fallbacks = self.add(outcome), self._attempts.fallbacks
        if outcome.model and not fallbacks:
            return outcome
        return replace(outcome, model=outcome.model or self.model.name, fallbacks=fallbacks)

    def add(self, outcome: Outcome) -> Outcome:
        """Return the outcome with its cost, if the price of the model is known.

        This method also records that this model wrote the reasoning of the response.
        """
        if outcome.extra and self._attempts.chain.is_mixed:
            OWNERS.record(outcome.extra, self.link.reader)
        usage: Usage | None = outcome.usage
        if outcome.cost is None and usage is not None and (price := self.model.price()) is not None:
            return replace(outcome, cost=price.of(usage))
        return outcome
