"""What goes wrong, as a status and plain data: `{"error": {"type": ..., "message": ...}}`.

What our own errors say is told, since they say what to do; what code of the user's raises is not, since nobody knows
what is in it: the log has it. Pure.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from acorn import BranchError, InputError, LimitError, ModelError, ParseError, StoreError
from acorn.models.failure import LATE


class WrongError(Exception):
    """A request that cannot be answered."""

    def __init__(
        self, status: int, kind: str, words: str, *, wait: float | None = None, allow: str | None = None, **more: Any
    ) -> None:
        super().__init__(words)
        self.told = Told(status, kind, words, more, wait, allow)


class Told(NamedTuple):
    """What a client is told of a failure."""

    status: int
    kind: str
    words: str
    more: dict[str, Any]
    wait: float | None = None
    """Seconds after which it is worth another try."""
    allow: str | None = None
    """What can be done there instead."""

    @property
    def plain(self) -> dict[str, Any]:
        return {"error": {"type": self.kind, "message": self.words, **self.more}}

    @property
    def headers(self) -> dict[str, str]:
        wait = None if self.wait is None else str(math.ceil(self.wait))
        return {name: value for name, value in (("retry-after", wait), ("allow", self.allow)) if value is not None}


def told_of(error: BaseException) -> Told:
    """What a client is told of an error."""
    if isinstance(error, WrongError):
        return error.told
    cause = error
    while isinstance(cause, BranchError) and cause.__cause__ is not None:
        cause = cause.__cause__
    match cause:
        case InputError():
            return Told(422, "input", str(cause), {"problems": cause.problems})
        case ModelError():
            more = {"provider": cause.provider, "status": cause.status, "retryable": cause.retryable}
            return Told(504 if _is_late(cause) else 502, "model", str(cause), more, cause.retry_after)
        case ParseError():
            return Told(502, "parse", str(cause), {"attempts": cause.attempts})
        case LimitError():
            return Told(500, "limit", str(cause), {})
        case StoreError():
            return Told(409, "store", str(cause), {})
        case _:
            return Told(500, "internal", "The agent failed; the log of the server says of what.", {})


def is_logged(told: Told) -> bool:
    """Whether whoever runs the server must be told more than the client."""
    return told.kind == "internal"


def _is_late(error: ModelError) -> bool:
    return error.status in (408, 504) or f"({LATE})" in str(error)
