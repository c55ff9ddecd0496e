"""Every exception of acorn, named by whose turn it is to act.

    AcornError
      DeclarationError      the class is wrong; raised when the class is created
        ToolConflictError   two tools claim one name
      InputError            the caller's arguments are wrong; raised before any model call
      ParseError            the model never gave a valid answer
      BranchError           a child run failed; the cause is chained
      ModelError            the provider failed
      LimitError            a budget is used up
      StoreError            a run could not be kept or found

A message says what happened, where, and what to do. All of them survive pickling: the words are the
only positional argument, everything else is an attribute with a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acorn.types import JsonObject


class AcornError(Exception):
    """Base of all errors that acorn raises."""

    run: Any = None
    """The record of the run that failed, where there was one."""


class DeclarationError(AcornError):
    """A module or a tool is declared wrongly."""


class ToolConflictError(DeclarationError):
    """Two different tools have the same name."""


class InputError(AcornError, ValueError):
    """The arguments of a call do not fit the module's `initial_input`."""

    problems: list[JsonObject]
    """One entry a wrong field: `path`, `expected`, `received` as in `ParseError.errors`, and the `message`."""

    def __init__(self, message: str, *, problems: Sequence[JsonObject] = ()) -> None:
        super().__init__(message)
        self.problems = list(problems)


class ParseError(AcornError):
    """The model's output does not fit the schema, after every correction that was allowed."""

    raw_output: str
    """The output as the model wrote it."""
    errors: list[JsonObject]
    """One entry a wrong field: `path`, `expected`, `received`."""
    attempts: int
    """How many outputs the model gave."""

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
    """A branch failed; `__cause__` is the original error."""


class ModelError(AcornError):
    """The provider refused, failed or could not be reached."""

    provider: str | None
    status: int | None
    """The HTTP status, where there was one."""
    retryable: bool
    """Whether the same request may succeed later."""
    retry_after: float | None
    """Seconds the provider asked to wait."""

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after


class LimitError(AcornError):
    """A limit of the run left no room for an answer."""


class StoreError(AcornError):
    """A run could not be kept, found or read."""
