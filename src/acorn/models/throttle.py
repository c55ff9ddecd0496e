"""Any model of the port, asked no oftener than `rate_limit` and `max_concurrency` of a class allow.

Around the model itself and inside of what retries it or falls back to another: so every request that is sent counts,
and none that waits to be sent again holds a slot. Put there by `resolve`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from time import monotonic
from typing import Any, cast

from pydantic_core import to_json

from acorn._rate_limit import Counted, RateLimit
from acorn.errors import ModelError
from acorn.models.gates import Turn
from acorn.models.port import (
    Delta,
    Model,
    ModelRequest,
    ModelResponse,
    SendAgainError,
    StreamingModel,
)
from acorn.models.sent import message_json
from acorn.models.turns import Allowance, allowance
from acorn.models.wrapped import Wrapped, aclose_stream, close_stream
from acorn.stores.port import Shares
from acorn.types import Usage

Throttle = Callable[[Model], "Throttled"]


def throttle(
    owner: str,
    max_concurrency: Counted[int] | None,
    rate_limit: Counted[RateLimit] | None,
    store: Shares | None = None,
) -> Throttle | None:
    """What keeps a model to the limits of a class; None where it has none. A limit that is shared counts in a store."""
    if max_concurrency is None and rate_limit is None:
        return None
    return partial(Throttled, allowance=allowance(owner, max_concurrency, rate_limit, store))


class Throttled(Wrapped):
    """A model whose requests wait for their turn, and in all else the model that it wraps."""

    def __init__(self, model: Model, allowance: Allowance) -> None:
        super().__init__(model)
        self._allowance = allowance
        self._prepare: Callable[[], object] = getattr(model, "prepare", _at_once)

    # A turn is given back by `settle` and nothing before it, in the frame that took it: Ctrl-C cannot come between.

    def complete(self, request: ModelRequest) -> ModelResponse:
        sending, settle = _Sending(request), self._allowance.settle
        while True:
            turn = self._turn(request)
            try:
                self._allowance.take(turn, sending.left)
                response = self._model.complete(sending.request())
                _note(turn, response.usage)
                return response
            except ModelError as error:
                if not _goes_on(turn, error):
                    raise
            finally:
                turn.is_over = True
                settle(turn)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        sending, settle = _Sending(request), self._allowance.settle
        while True:
            turn = self._turn(request)
            try:
                await self._allowance.atake(turn, sending.left)
                response = await self._model.acomplete(sending.request())
                _note(turn, response.usage)
                return response
            except ModelError as error:
                if not _goes_on(turn, error):
                    raise
            finally:
                turn.is_over = True
                settle(turn)

    def _stream(self, request: ModelRequest) -> Iterator[Delta]:
        sending, settle = _Sending(request), self._allowance.settle
        while True:
            turn = self._turn(request)
            try:
                self._allowance.take(turn, sending.left)
                deltas: Any = cast("StreamingModel", self._model).stream(sending.request())
                try:
                    for delta in deltas:
                        _note(turn, delta.usage)
                        yield delta
                finally:
                    close_stream(deltas)
                return
            except ModelError as error:
                if not _goes_on(turn, error):
                    raise
            finally:
                turn.is_over = True
                settle(turn)

    async def _astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        sending, settle = _Sending(request), self._allowance.settle
        while True:
            turn = self._turn(request)
            try:
                await self._allowance.atake(turn, sending.left)
                deltas: Any = cast("StreamingModel", self._model).astream(sending.request())
                try:
                    async for delta in deltas:
                        _note(turn, delta.usage)
                        yield delta
                finally:
                    await aclose_stream(deltas)
                return
            except ModelError as error:
                if not _goes_on(turn, error):
                    raise
            finally:
                turn.is_over = True
                settle(turn)

    def _turn(self, request: ModelRequest) -> Turn:
        self._prepare()
        longest = request.max_tokens if "max_tokens" in request.declared else None
        return self._allowance.turn(partial(_size, request), longest)


def _at_once() -> None:
    """Most models are ready."""


def _size(request: ModelRequest) -> int:
    """Bytes of what is sent."""
    messages, tools = request.messages_json, request.tools_json
    written = sum(len(message_json(message)) for message in request.messages) if messages is None else len(messages())
    return written + len(to_json(request.tools) if tools is None else tools())


class _Sending:
    """A request, sent once, or again where the model did not take something in it."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._left_out: set[str] = set()
        self._began = monotonic()

    @property
    def left(self) -> float | None:
        """Seconds that the run has; None is no end."""
        timeout = self._request.timeout
        return None if timeout is None else max(0.001, timeout - (monotonic() - self._began))

    def request(self) -> ModelRequest:
        return self._request.but(timeout=self.left, left_out=self._left_out)


def _note(turn: Turn, usage: Usage | None) -> None:
    """Something of the answer has come."""
    if turn.answered is None:
        turn.answered = monotonic()
    if usage is not None:
        turn.used = (usage.input_tokens, usage.output_tokens)


def _goes_on(turn: Turn, error: ModelError) -> bool:
    """Take note of a failure. Whether the request is to be sent again, without what the model does not take.

    What a provider refuses has used no tokens; of what broke nobody knows, and the estimate stands.
    """
    if turn.answered is None:
        turn.answered = monotonic()
        if error.status is not None and 400 <= error.status < 500:
            turn.used = (0, 0)
    return isinstance(error, SendAgainError)
