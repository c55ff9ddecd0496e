"""What only its author can read: signed thinking and the like, which goes back to the provider that wrote it.

The history says nothing of who wrote a turn. Who did is remembered for as long as the process lives; thoughts of
whom nobody knows, of a run that was loaded or of an earlier conversation, are taken for those of the first model of
the list. Called by `fallback.py`; a single model is sent all that its protocol has a place for.

Models in a list: the next is asked where one fails with what may pass, or cannot take what it would be sent.

    class Researcher(module[Question, Answer]):
        model = ["anthropic/claude-sonnet-4-5", {"model": "openai/gpt-4o", "num_retries": 0}]

Each is asked as if it were alone, with its own retries and settings, and what only another could read is left out.
One that keeps failing is not asked for a while (`circuit.py`). A stream is handed on only while nothing of it was
handed out. Made by `resolve` of a list that is declared; to the loop it is one more model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, TypeVar

from pydantic_core import to_json

from acorn._base.log import logger
from acorn._formats.redact import redact
from acorn.errors import ModelError
from acorn.models.assemble import as_deltas
from acorn.models.circuit_breaker import CIRCUITS, Circuit, Circuits, Pass
from acorn.models.lanes.lane import THOUGHTS
from acorn.models.port import (
    Delta,
    Model,
    ModelRequest,
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
from acorn.types import Fallback, JsonObject, Usage

_MOST = 10_000
_ONE_FAMILY = ("anthropic", "openai")
"""Providers whose models read each other's thoughts; of others, which may house models of many makers, none does."""


class ReasoningOwner:
    """Who wrote what."""

    def __init__(self) -> None:
        self._names = {*THOUGHTS}
        """The keys of messages that hold such things, as far as they were seen."""
        self._wrote: dict[int, Hashable] = {}
        self._authors: set[Hashable] = set()
        self._lock = threading.Lock()

    def note(self, extra: Mapping[str, Any], author: Hashable) -> None:
        """What came with a turn."""
        with self._lock:
            for name, value in extra.items():
                self._names.add(name)
                self._wrote[_mark(name, value)] = author
            self._authors.add(author)
            while len(self._wrote) > _MOST:
                del self._wrote[next(iter(self._wrote))]

    def readable(self, messages: Sequence[JsonObject], reader: Hashable, first: Hashable) -> list[JsonObject] | None:
        """The messages without what the reader did not write; None where that is all of them."""
        if reader == first and self._authors <= {first}:
            return None
        names = tuple(self._names)
        found: dict[int, JsonObject] = {}
        for at in {at for name in names for at, message in enumerate(messages) if name in message}:
            message = messages[at]
            foreign = [name for name in names if name in message and self._author(name, message, first) != reader]
            if foreign:
                found[at] = {name: value for name, value in message.items() if name not in foreign}
        if not found:
            return None
        return [found.get(at, message) for at, message in enumerate(messages)]

    def _author(self, name: str, message: Mapping[str, Any], otherwise: Hashable) -> Hashable:
        return self._wrote.get(_mark(name, message[name]), otherwise)


def reader_of(declared: Any) -> Hashable:
    """Whose thoughts a model can read, itself included."""
    if not isinstance(declared, str | dict):
        return str(getattr(declared, "name", ""))
    config: Mapping[str, Any] = {"model": declared} if isinstance(declared, str) else declared
    name = str(config.get("model") or config.get("id"))
    provider = name.partition("/")[0]
    address = config.get("base_url") or config.get("api_base")
    return hash((provider if provider in _ONE_FAMILY else name, address, config.get("api_key")))


def _mark(name: str, value: Any) -> int:
    return hash((name, to_json(value, inf_nan_mode="null", serialize_unknown=True)))


AUTHORS = ReasoningOwner()
"""Those of the process: a branch or a later call may go on with the conversation."""


OPEN = "its circuit is open"

Noted = TypeVar("Noted", ModelResponse, Delta)


@dataclass(frozen=True, eq=False)
class Link:
    """One model of a chain."""

    model: Model
    circuit: Circuit
    reader: Hashable
    """Whose thoughts it can read."""
    sampling: Mapping[str, Any] = field(default_factory=JsonObject)
    """The `temperature` and `max_tokens` that were set for it alone."""
    place: str = ""
    """Where it stands, if others of the chain have the same name."""

    @property
    def name(self) -> str:
        """For records and messages."""
        return f"{self.model.name}{self.place}"


class Chain:
    """Models of which one answers: the first that can."""

    def __init__(self, links: Sequence[Link]) -> None:
        names = [link.model.name for link in links]
        self.links = tuple(
            replace(link, place=f" (model[{at}])") if names.count(link.model.name) > 1 else link
            for at, link in enumerate(links)
        )
        self.is_mixed = len({link.reader for link in links}) > 1
        """Whether there are thoughts that not all of them can read."""

    @classmethod
    def of(cls, models: Sequence[Model], circuits: Circuits = CIRCUITS) -> Chain:
        """A chain of model objects."""
        return cls([Link(model, circuits.of(model), reader_of(model)) for model in models])

    def around(self, wrap: Callable[[Model], Model]) -> Chain:
        """The same with something between it and each of its models."""
        return Chain([replace(link, model=wrap(link.model)) for link in self.links])

    def __repr__(self) -> str:
        return f"Chain({list(self.models)!r})"

    # What it can do is what the one can do that would be asked now

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(link.model for link in self.links)

    @property
    def _next(self) -> Link:
        return next((link for link in self.links if link.circuit.is_passable), self.links[0])

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
        """None where that of one is not known: it may be the one that answers."""
        if len(self.links) > 1 and any(model.price() is None for model in self.models):
            return None
        return self._next.model.price()

    # Asking

    def complete(self, request: ModelRequest) -> ModelResponse:
        for attempt in _ChainAttempts(self, request):
            with attempt:
                return attempt.whole(attempt.model.complete(attempt.request()))
        raise AssertionError("the last attempt returns or raises")

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        for attempt in _ChainAttempts(self, request):
            with attempt:
                return attempt.whole(await attempt.model.acomplete(attempt.request()))
        raise AssertionError("the last attempt returns or raises")

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        for attempt in _ChainAttempts(self, request):
            with attempt:
                deltas = _deltas(attempt.model, attempt.request())
                try:
                    yield attempt.first(next(deltas, Delta()))
                    for delta in deltas:
                        yield attempt.noted(delta)
                finally:
                    close_stream(deltas)
                return

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        for attempt in _ChainAttempts(self, request):
            with attempt:
                deltas = _adeltas(attempt.model, attempt.request())
                try:
                    yield attempt.first(await anext(deltas, Delta()))
                    async for delta in deltas:
                        yield attempt.noted(delta)
                finally:
                    await aclose_stream(deltas)
                return


def _deltas(model: Model, request: ModelRequest) -> Iterator[Delta]:
    return model.stream(request) if can_stream(model) else iter(as_deltas(model.complete(request)))


def _adeltas(model: Model, request: ModelRequest) -> AsyncIterator[Delta]:
    return model.astream(request) if can_stream(model) else _awhole(model, request)


async def _awhole(model: Model, request: ModelRequest) -> AsyncIterator[Delta]:
    for delta in as_deltas(await model.acomplete(request)):
        yield delta


class _FailedLink(NamedTuple):
    """One that did not answer."""

    name: str
    error: ModelError | None
    """Why it failed; None where it was not asked."""

    @property
    def words(self) -> str:
        if self.error is None:
            return f"`{self.name}` was not asked: {OPEN}"
        return redact(str(self.error), ()).rstrip(".")

    def log(self, to: str) -> None:
        report_retry(RetryEvent(self.name, None if self.error is None else self.error.status, to=to))
        if self.error is None:
            logger.info("`%s` is not asked (%s); `%s` is asked instead.", self.name, OPEN, to)
            return
        what = "no answer" if self.error.status is None else f"HTTP {self.error.status}"
        if isinstance(self.error, RequestNotSupportedError):
            what = "it cannot take what is sent"
        # Not the error's own words: they may be the provider's, and tell of the conversation.
        logger.info("`%s` failed (%s); `%s` is asked instead.", self.name, what, to)


class _ChainAttempts:
    """The models that are asked for one answer, one after the other."""

    def __init__(self, chain: Chain, request: ModelRequest) -> None:
        self.chain = chain
        self.asked = request
        self.fallbacks: tuple[Fallback, ...] = ()
        self._missed: list[_FailedLink] = []
        self._began = time.monotonic()
        self._coming: _ChainAttempt | None = None

    def __iter__(self) -> Iterator[_ChainAttempt]:
        self._coming = self._find(0)
        if self._coming is None:  # nobody else is to be asked either
            self._missed.clear()
            passed = self.chain.links[0].circuit.enter(anyhow=True)
            assert passed is not None
            self._coming = _ChainAttempt(self, 0, passed)
        while self._coming is not None:
            attempt, self._coming = self._coming, None
            yield attempt

    @property
    def left(self) -> float | None:
        """Seconds that the run has; None is no end."""
        timeout = self.asked.timeout
        return None if timeout is None else timeout - (time.monotonic() - self._began)

    def _find(self, start: int) -> _ChainAttempt | None:
        """The next that is let through, in the place of those before it."""
        for at in range(start, len(self.chain.links)):
            link = self.chain.links[at]
            passed = link.circuit.enter()
            if passed is None:
                self._missed.append(_FailedLink(link.name, None))
                continue
            name = link.name
            for missed in self._missed[len(self.fallbacks) :]:
                missed.log(name)
                self.fallbacks += (Fallback(missed.name, name, OPEN if missed.error is None else missed.words),)
            return _ChainAttempt(self, at, passed)
        return None

    def hand_on(self, at: int, error: ModelError, *, has_begun: bool) -> bool:
        """Whether another is asked instead; where none is, and others did not answer either, all of it is raised."""
        others = list(self._missed)
        self._missed.append(_FailedLink(self.chain.links[at].name, error))
        if (error.retryable or isinstance(error, RequestNotSupportedError)) and not has_begun:
            self._coming = self._find(at + 1)
            if self._coming is not None:
                return True
        others += self._missed[len(others) + 1 :]
        if others:
            self._raise(error, others)
        return False

    def _raise(self, last: ModelError, others: list[_FailedLink]) -> NoReturn:
        failures = [*(missed.error for missed in others if missed.error is not None), last]
        raise ModelError(
            f"{str(last).rstrip('.')}. Of the others in the list: {'; '.join(each.words for each in others)}.",
            provider=last.provider,
            status=last.status,
            retryable=last.retryable,
            retry_after=last.retry_after,
        ) from (ExceptionGroup("What each model of the list failed of", failures) if len(failures) > 1 else last)


class _ChainAttempt:
    """One of them, asked: what fails inside of it is handed on, or raised."""

    def __init__(self, all: _ChainAttempts, at: int, passed: Pass) -> None:
        self._all = all
        self._at = at
        self._link = all.chain.links[at]
        self._pass = passed
        self._has_begun = False
        self.model = self._link.model

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self._pass.succeeded(self._link.name)
            return False
        if not isinstance(error, ModelError):
            self._pass.left()
            return False
        left = self._all.left
        if left is not None and left <= 0:  # the run had no more time, which says nothing of the model
            self._pass.left()
            return False
        if error.retryable:
            self._pass.failed(self._link.name)
        else:
            self._pass.refused()
        return self._all.hand_on(self._at, error, has_begun=self._has_begun)

    def request(self) -> ModelRequest:
        """The request as this model is to have it."""
        asked, link, chain = self._all.asked, self._link, self._all.chain
        changes = dict(link.sampling)
        if changes:
            changes["declared"] = asked.declared | changes.keys()
        left = self._all.left if self._all.fallbacks else None
        if left is not None:
            changes["timeout"] = max(0.001, left)
        if asked.forced_tool and not link.model.can_force_tool(asked):
            changes["forced_tool"] = None  # the loop asks in another way for what does not come
        if chain.is_mixed:
            messages = AUTHORS.readable(asked.messages, link.reader, chain.links[0].reader)
            if messages is not None:
                changes |= {"messages": messages, "messages_json": None}
        return asked.but(**changes) if changes else asked

    def first(self, delta: Delta) -> Delta:
        """The first piece of a stream; from here on nothing is handed on."""
        self._has_begun = True
        return self._named(self.noted(delta))

    def whole(self, response: ModelResponse) -> ModelResponse:
        return self._named(self.noted(response))

    def noted(self, outcome: Noted) -> Noted:
        """What came, with what it costs of this model."""
        if outcome.extra and self._all.chain.is_mixed:
            AUTHORS.note(outcome.extra, self._link.reader)
        usage: Usage | None = outcome.usage
        if outcome.cost is None and usage is not None and (price := self.model.price()) is not None:
            return replace(outcome, cost=price.of(usage))
        return outcome

    def _named(self, outcome: Noted) -> Noted:
        if outcome.model and not self._all.fallbacks:
            return outcome
        return replace(outcome, model=outcome.model or self.model.name, fallbacks=self._all.fallbacks)
