"""What people are asked in a run, and what their answers mean.

Pure; `calls.py` keeps requests and answers and does what they say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from acorn._json import compact, excerpt, to_plain
from acorn._loop.asks import AskTool
from acorn._tools.people import is_question, needs_approval
from acorn.errors import InputError
from acorn.record import call_key
from acorn.types import Request, ToolResult

UNKNOWN = (
    "Unknown: the process stopped while this call was under way. It may or may not have taken effect and is not called "
    "again; find out before you repeat it."
)
_REFUSED = "Refused: a person did not approve this call, so it was not made."


@dataclass(frozen=True)
class Approved:
    """A yes, perhaps with other arguments."""

    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Refused:
    """A no, perhaps with a reason."""

    reason: str = ""

    def result(self, call_id: str, name: str) -> ToolResult:
        """What the model reads."""
        said = f"{_REFUSED} The reason: {self.reason}" if self.reason.strip() else _REFUSED
        return ToolResult(call_id, name, error=said)


def request_for(ask: AskTool, run_id: str, step: int, branch: str | None, asked: datetime) -> Request | None:
    """What a person is asked before this call can be made, or instead of it; None where nobody needs to be."""
    call, tool = ask.call, ask.tool
    name = hashlib.sha256(call_key(run_id, step, call.id).encode()).hexdigest()[:32]
    if is_question(tool):
        question, choices = str(ask.kwargs["question"]), ask.kwargs.get("choices")
        listed = None if choices is None else tuple(choices)
        return Request(name, run_id, "question", question, call.name, call.arguments, branch, asked, listed)
    if not needs_approval(tool, (ask.args, ask.kwargs)):
        return None
    question = f"May `{call.name}` be called with {compact(call.arguments)}?"
    return Request(name, run_id, "approval", question, call.name, call.arguments, branch, asked)


def check_answer(request: Request, value: Any) -> None:
    """Refuse, in words, what is no answer to a request."""
    if value is None:
        raise InputError(f"The request `{request.id}` ({request.question}) cannot be answered by None.")
    if request.kind == "approval":
        decision_of(request, value)


def decision_of(request: Request, value: Any) -> Approved | Refused:
    """What a person has decided about a call."""
    if isinstance(value, str):
        return Refused(value)
    if isinstance(value, bool):
        return Approved() if value else Refused()
    plain = to_plain(value)
    is_changed = isinstance(plain, dict) and plain.keys() == {"approved", "arguments"} and plain["approved"] is True
    if is_changed and isinstance(plain["arguments"], dict):
        return Approved(plain["arguments"])
    raise InputError(
        f"The request `{request.id}` is about a call of `{request.tool}`; answer it by True, by False, by a text that "
        f"says why not, or by {{'approved': True, 'arguments': {{...}}}} with all arguments; got {excerpt(value)}."
    )
