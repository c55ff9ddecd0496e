"""The exceptions of acorn, with names that show who must act.

    AcornError
      DeclarationError      the class is wrong; raised when the class is created
        ToolConflictError   two tools have the same name
      InputError            the caller's arguments are wrong; raised before any model call
      ParseError            the model did not return a valid output
      BranchError           a branch failed; `__cause__` is the original error
      ModelError            the provider failed
      LimitError            a budget is used up
      StoreError            a run could not be stored or found
    UnknownMediaTypeError   the type of an image, audio or file is unknown

All exceptions can be pickled: the message is the only positional argument, and every other attribute has a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acorn.types import JsonObject


class AcornError(Exception):
    """The base class of the errors that acorn raises."""

    run: Any = None
    """The record of the run that failed, or None."""


class DeclarationError(AcornError):
    """The declaration of a module or a tool is invalid."""


class ToolConflictError(DeclarationError):
    """Two different tools have the same name."""


class InputError(AcornError, ValueError):
    """The arguments of a call do not fit the module's `initial_input`."""

    problems: list[JsonObject]
    """A list with a dict for each of the first 20 invalid fields: `path`, `expected`, `received` and `message`."""

    def __init__(self, message: str, *, problems: Sequence[JsonObject] = ()) -> None:
        super().__init__(message)
        self.problems = list(problems)


class ParseError(AcornError):
    """The output of the model does not fit the schema, even after `parse_retries` corrections."""

    raw_output: str
    """The text of the model's last output."""
    errors: list[JsonObject]
    """A list with a dict for each of the first 20 invalid fields: `path`, `expected` and `received`."""
    attempts: int
    """The number of outputs that the model wrote."""

    def __init__(
        self, message: str, *, raw_output: str = "", errors: Sequence[JsonObject] = (), attempts: int = 1
    ) -> None:
        super().__init__(message)
        self.raw_output = raw_output
        self.errors = list(errors)
        self.attempts = attempts


class BranchError(AcornError):
    """A branch failed, and `__cause__` is the original error."""


class ModelError(AcornError):
    """The provider rejected the request, failed or could not be reached."""

    provider: str | None
    """The name of the provider, or None if it is unknown."""
    status: int | None
    """The HTTP status of the response, or None."""
    retryable: bool
    """Whether the same request may succeed later."""
    retry_after: float | None
    """The seconds to wait before a retry, or None if the provider did not send them."""
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
    """The run reached a limit before it had an output."""


class StoreError(AcornError):
    """A run could not be stored, found or loaded."""


class UnknownMediaTypeError(ValueError):
    """The media type of data was not passed and cannot be guessed.

    It is a `ValueError`, so that Pydantic converts it to a validation error.
    """

    problem: str
    """The problem, as a sentence without a period."""
    fix: str
    """The necessary change in Python code. The command line replaces it with its own advice."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem, fix)
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.problem}. {self.fix}"
