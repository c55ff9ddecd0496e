"""Requests for human input, for tool calls that wait for the answer to a question or for an approval.

`PendingCalls` creates a request when it prepares a tool call that needs human input. It also applies the
answer, after a check of its own: the request must be open, and changed arguments must be valid.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from acorn._declare.tools.kinds import is_ask_human, needs_approval
from acorn._formats.json import excerpt, to_compact_json, to_json_data
from acorn._machine.asks import AskTool
from acorn.errors import InputError
from acorn.record import call_key
from acorn.types import JsonObject, JsonValue, Request

_REFUSED = "Refused: a person did not approve this call, so it was not made."


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


def decision_of(request: Request, value: object) -> JsonObject | str | None:
    """Return the decision in the answer to an approval request. Raise `InputError` if the answer is invalid.

    The decision is the error text that reports a rejection to the model, a dict of changed arguments, or None for an
    approval of the call without changes.
    """
    if value is True:
        return None
    if value is False or isinstance(value, str):
        return f"{_REFUSED} The reason: {value}" if value and value.strip() else _REFUSED
    answer: JsonValue = to_json_data(value)
    if isinstance(answer, dict) and answer.keys() == {"approved", "arguments"} and answer["approved"] is True:
        arguments: JsonValue = answer["arguments"]
        if isinstance(arguments, dict):
            return arguments
    raise InputError(
        f"{excerpt(value)} is not a valid answer to the request `{request.id}` for approval of `{request.tool}`. "
        f"Use True to approve, False or a reason as text to reject, or {{'approved': True, 'arguments': {{...}}}} with "
        f"all arguments to change the call."
    )
