"""Requests for human input, for tool calls that wait for the answer to a question or for an approval.

`PendingCalls` creates a request when it prepares a tool call that needs human input. It also applies the
answer, after a check of its own: the request must be open, and changed arguments must be valid.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from acorn._declare.tools.kinds import ArgumentError, is_ask_human
from acorn._formats.json import describe_error, excerpt, to_compact_json, to_json_data, without_addresses
from acorn._machine.asks import AskTool
from acorn.errors import InputError
from acorn.record import call_key
from acorn.types import JsonObject, JsonValue, Request, is_json_object

_WORDS = {"yes": True, "no": False}
_REFUSED = "Refused: a person did not approve this call, so it was not made."


def shown_arguments(ask: AskTool) -> JsonObject:
    """Return all arguments of a call as JSON data, including defaults, as a request for approval shows them."""
    try:
        shown: JsonObject = to_json_data(ask.tool.named((ask.args, ask.kwargs)))
    except Exception as error:  # A serializer of the user may raise any exception.
        raise ArgumentError(describe_error(error)) from error
    return shown


def is_same(shown: JsonObject, other: JsonObject) -> bool:
    """Return whether two dicts of arguments are equal, also if they contain NaN or the memory address of an object."""
    return shown == other or without_addresses(to_compact_json(shown)) == without_addresses(to_compact_json(other))


def request_for(ask: AskTool, run_id: str, step: int, branch: str | None, asked: datetime) -> Request | None:
    """Return the request for human input that a tool call needs, or None if the call needs no human input.

    An exception in the user's `approval` function ends the run.
    """
    call, tool = ask.call, ask.tool
    request_id = hashlib.sha256(call_key(run_id, step, call.id).encode()).hexdigest()[:32]
    if is_ask_human(tool.function):
        question, choices = str(ask.kwargs["question"]), ask.kwargs.get("choices")
        listed = None if choices is None else tuple(choices)
        return Request(request_id, run_id, "question", question, call.name, call.arguments, branch, asked, listed)
    approval = tool.options.approval
    if not (approval if isinstance(approval, bool) else approval(tool.named((ask.args, ask.kwargs)))):
        return None
    shown = shown_arguments(ask)
    question = f"May `{call.name}` be called with {to_compact_json(shown)}?"
    return Request(request_id, run_id, "approval", question, call.name, shown, branch, asked)


def check_answer(request: Request, value: object) -> None:
    """Raise `InputError` if a value is not a valid answer to a request for human input."""
    if value is None:
        raise InputError(
            f"None is not a valid answer to the request `{request.id}` ({request.question}). Pass another value."
        )
    if request.kind == "approval":
        decision_of(request, value)


def decision_of(request: Request, value: object) -> JsonObject:
    """Return the answer to an approval request in the form of `read_decision`.

    Raise `InputError` if the answer is invalid.
    """
    decision = read_decision(value)
    if decision is None:
        raise InputError(
            f"{excerpt(value)} is not a valid answer to the request `{request.id}` for approval of `{request.tool}`. "
            f'Use True, False, `acorn.approve(arguments={{...}})` or `acorn.deny("reason")`. As text or JSON, use yes, '
            f'no, {{"approved": true, "arguments": {{...}}}} or {{"approved": false, "reason": "..."}}.'
        )
    if is_json_object(arguments := decision.get("arguments")) and is_same(request.arguments, arguments):
        del decision["arguments"]  # The call already has these arguments, which a validator may not accept twice.
    return decision


def read_decision(value: object) -> JsonObject | None:
    """Return an answer in the form of `acorn.approve()` and `acorn.deny()`, or None if it is not a valid answer.

    Valid answers are this form, a boolean, and the words yes and no.
    """
    if isinstance(value, str):
        value = _WORDS.get(value.strip().lower())
    answer: JsonValue = {"approved": value} if isinstance(value, bool) else to_json_data(value)
    if not isinstance(answer, dict) or not isinstance(approved := answer.get("approved"), bool):
        return None
    key, kind = ("arguments", dict) if approved else ("reason", str)
    detail = answer.get(key)
    if answer.keys() - {"approved", key} or not isinstance(detail, kind | None):
        return None
    return {"approved": approved} if detail is None else {"approved": approved, key: detail}


def rejection_error(reason: str | None) -> str:
    """Return the error that the model reads if a person rejected its call."""
    return f"{_REFUSED} The reason: {reason}" if reason and reason.strip() else _REFUSED
