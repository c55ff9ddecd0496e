"""Requests for human input, for tool calls that wait for the answer to a question or for an approval.

`PendingCalls` creates a request when it prepares a tool call that needs human input. It also applies the
answer, after a check of its own: the request must be open, and changed arguments must be valid.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from acorn._declare.tools.kinds import is_ask_human, needs_approval
from acorn._formats.json import excerpt, to_compact_json, to_json_data
from acorn._machine.asks import AskTool
from acorn.errors import InputError
from acorn.record import call_key
from acorn.types import JsonObject, JsonValue, Request, ToolResult

_REFUSED = "Refused: a person did not approve this call, so it was not made."


@dataclass(frozen=True)
class Approved:
    """The decision to approve a tool call, with new arguments if the person changed them."""

    arguments: JsonObject | None = None


@dataclass(frozen=True)
class Rejected:
    """The decision to reject a tool call, with an optional reason."""

    reason: str = ""

    def result(self, call_id: str, name: str) -> ToolResult:
        """Return the tool result that reports the rejection to the model."""
        error = f"{_REFUSED} The reason: {self.reason}" if self.reason.strip() else _REFUSED
        return ToolResult(call_id, name, error=error)


def request_for(ask: AskTool, run_id: str, step: int, branch: str | None, asked: datetime) -> Request | None:
    """Return the request for human input that a tool call needs, or None if the call needs no human input."""
    call, tool = ask.call, ask.tool
    request_id = hashlib.sha256(call_key(run_id, step, call.id).encode()).hexdigest()[:32]
    if is_ask_human(tool.function):
        question, choices = str(ask.kwargs["question"]), ask.kwargs.get("choices")
        listed = None if choices is None else tuple(choices)
        return Request(request_id, run_id, "question", question, call.name, call.arguments, branch, asked, listed)
    if not needs_approval(tool, (ask.args, ask.kwargs)):
        return None
    question = f"May `{call.name}` be called with {to_compact_json(call.arguments)}?"
    return Request(request_id, run_id, "approval", question, call.name, call.arguments, branch, asked)


def check_answer(request: Request, value: object) -> None:
    """Raise `InputError` if a value is not a valid answer to a request for human input."""
    if value is None:
        raise InputError(
            f"None is not a valid answer to the request `{request.id}` ({request.question}). Pass another value."
        )
    if request.kind == "approval":
        decision_of(request, value)


def decision_of(request: Request, value: object) -> Approved | Rejected:
    """Convert the answer to an approval request into a decision. Raise `InputError` if the answer is invalid."""
    if isinstance(value, str):
        return Rejected(value)
    if isinstance(value, bool):
        return Approved() if value else Rejected()
    answer: JsonValue = to_json_data(value)
    if isinstance(answer, dict) and answer.keys() == {"approved", "arguments"} and answer["approved"] is True:
        arguments: JsonValue = answer["arguments"]
        if isinstance(arguments, dict):
            return Approved(arguments)
    raise InputError(
        f"{excerpt(value)} is not a valid answer to the request `{request.id}` for approval of `{request.tool}`. "
        f"Use True to approve, False or a reason as text to reject, or {{'approved': True, 'arguments': {{...}}}} with "
        f"all arguments to change the call."
    )
