"""The base classes of models that send a request to other models, in one or more attempts.

Retries (`retry.py`), lists of models (`fallback.py`) and rate limits (`limits.py`) differ only in their attempts. This
module sends the attempts in all four ways: complete or streamed, blocking or on the event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from acorn._base.clock import current_clock
from acorn.models.assemble import as_deltas
from acorn.models.port import Delta, Model, ModelResponse, Price, can_stream
from acorn.models.request import ModelRequest

Outcome = TypeVar("Outcome", ModelResponse, Delta)


class Attempt:
    """An attempt to get a response from one model, as a context manager.

    If the request fails in the `with` block and another attempt follows, the context manager suppresses the error. No
    other attempt may follow after the first delta of a stream, because the caller has already received it.
    """

    model: Model
    original_request: ModelRequest
    in_progress: AbstractContextManager[Any] = nullcontext()
    """A further context manager for the time of the attempt."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        raise NotImplementedError

    def acquire(self) -> None:
        """Wait until the request may be sent."""

    async def aacquire(self) -> None:
        """Wait until the request may be sent, without blocking the event loop."""

    def request(self) -> ModelRequest:
        """Return the request to send."""
        return self.original_request

    def add_first(self, outcome: Outcome) -> Outcome:
        """Return a complete response, or the first delta of a stream, with the facts that this attempt adds."""
        return outcome

    def add(self, delta: Delta) -> Delta:
        """Return a further delta of a stream with the facts that this attempt adds."""
        return delta


class AttemptingModel(ABC):
    """The base class of models that send each request in one or more attempts."""

    @abstractmethod
    def attempts(self, request: ModelRequest) -> Iterator[Attempt]:
        """Yield the attempts to get a response. The last attempt must not suppress its error."""

    def complete(self, request: ModelRequest) -> ModelResponse:
        for attempt in self.attempts(request):
            with attempt, attempt.in_progress:
                attempt.acquire()
                return attempt.add_first(attempt.model.complete(attempt.request()))
        raise AssertionError("The attempts ended without a response or an error. This is a bug in acorn.")

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        for attempt in self.attempts(request):
            with attempt, attempt.in_progress:
                await attempt.aacquire()
                return attempt.add_first(await attempt.model.acomplete(attempt.request()))
        raise AssertionError("The attempts ended without a response or an error. This is a bug in acorn.")

    def stream(self, request: ModelRequest) -> Generator[Delta]:
        for attempt in self.attempts(request):
            with attempt, attempt.in_progress:
                attempt.acquire()
                deltas = _stream(attempt.model, attempt.request())
                try:
                    yield attempt.add_first(next(deltas, Delta()))
                    yield from map(attempt.add, deltas)
                finally:
                    if (close := getattr(deltas, "close", None)) is not None:  # A user's model may return any iterator.
                        close()
                return

    async def astream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        for attempt in self.attempts(request):
            with attempt, attempt.in_progress:
                await attempt.aacquire()
                deltas = _astream(attempt.model, attempt.request())
                try:
                    yield attempt.add_first(await anext(deltas, Delta()))
                    async for delta in deltas:
                        yield attempt.add(delta)
                finally:
                    if (aclose := getattr(deltas, "aclose", None)) is not None:
                        await aclose()
                return


def _stream(model: Model, request: ModelRequest) -> Iterator[Delta]:
    return model.stream(request) if can_stream(model) else iter(as_deltas(model.complete(request)))


def _astream(model: Model, request: ModelRequest) -> AsyncIterator[Delta]:
    return model.astream(request) if can_stream(model) else _acomplete_as_stream(model, request)


async def _acomplete_as_stream(model: Model, request: ModelRequest) -> AsyncIterator[Delta]:
    for delta in as_deltas(await model.acomplete(request)):
        yield delta


class ModelWrapper(AttemptingModel):
    """The base class of models that add behavior, such as retries, and send their requests to one other model.

    All attributes that a subclass does not define are those of the wrapped model.
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
        if name.startswith("_"):  # `copy` and `pickle` look for these before `_model` exists.
            raise AttributeError(name)
        return getattr(self._model, name)


class TimeBudget:
    """The time that a run has left for one request."""

    def __init__(self, request: ModelRequest) -> None:
        self.clock = current_clock()
        self._timeout, self._started = request.timeout, self.clock.monotonic()

    @property
    def left(self) -> float | None:
        """The seconds that are left, or None if the run has no time limit."""
        return None if self._timeout is None else self._timeout - (self.clock.monotonic() - self._started)
