"""The exceptions of acorn. The name of each shows who must act.

    AcornError
      DeclarationError      the class is wrong; raised when the class is created
        ToolConflictError   two tools claim one name
      InputError            the caller's arguments are wrong; raised before any model call
      ParseError            the model did not give a valid output
      BranchError           a branch failed; the cause is chained
      ModelError            the provider failed
      LimitError            a budget is used up
      StoreError            a run could not be stored or found

All exceptions can be pickled: the message is the only positional argument, and every other attribute has a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acorn.types import JsonObject


class AcornError(Exception):
    """The base class of all errors that acorn raises."""

    run: Any = None
    """The record of the run that failed, or None."""


class DeclarationError(AcornError):
    """The declaration of a module or a tool is wrong."""


class ToolConflictError(DeclarationError):
    """Two different tools have the same name."""


class InputError(AcornError, ValueError):
    """The arguments of a call do not fit the module's `initial_input`."""

    problems: list[JsonObject]
    """One entry for each wrong field: `path`, `expected` and `received` as in `ParseError.errors`, and `message`."""

    def __init__(self, message: str, *, problems: Sequence[JsonObject] = ()) -> None:
        super().__init__(message)
        self.problems = list(problems)


class ParseError(AcornError):
    """The output of the model does not fit the schema, even after `parse_retries` corrections."""

    raw_output: str
    """The last output, as the model wrote it."""
    errors: list[JsonObject]
    """One entry for each wrong field: `path`, `expected` and `received`."""
    attempts: int
    """The number of outputs that the model wrote."""

    def __init__(
        self,
        message: str,
        *,
        raw_output: str = "",
        errors: Sequence[JsonObject] = (),
        attempts: int = 1,
    ) -> None:
        super().__init__(message)
        self.raw_output = raw_output
        self.errors = list(errors)
        self.attempts = attempts


class BranchError(AcornError):
    """A branch failed. `__cause__` is the original error."""


class ModelError(AcornError):
    """The provider rejected the request, failed or could not be reached."""

    provider: str | None
    """The name of the provider, if known."""
    status: int | None
    """The HTTP status of the response, or None."""
    retryable: bool
    """Whether the same request may succeed later."""
    retry_after: float | None
    """The seconds to wait, if the provider named them."""
    timed_out: bool
    """Whether the provider did not respond in time."""

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        timed_out: bool = False,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.timed_out = timed_out


class LimitError(AcornError):
    """A limit of the run was reached before it had an output."""


class StoreError(AcornError):
    """A run could not be stored, found or read."""
