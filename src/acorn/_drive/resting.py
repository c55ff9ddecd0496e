"""A tree in which nothing can go on without people: whether it may rest, and what they say when it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acorn._loop.people import check_answer
from acorn._loop.run import Loop
from acorn._record_json import read_request
from acorn.errors import AcornError, StoreError
from acorn.types import Request


class RestingError(BaseException):
    """A branch that the user's code has begun waits for people, and so does that code; no failure at all."""

    def __str__(self) -> str:
        return "a branch waits for people"


def check_rest(loop: Loop, requests: Sequence[Request], *, can_rest: bool) -> None:
    """Refuse a rest from which nobody could wake the run."""
    owner = loop.spec.owner
    if not requests:
        raise AcornError(f"The run {loop.run.id} of `{owner}` has nothing left to do, and no output.")
    if not can_rest:
        raise StoreError(
            f"`{owner}` waits for a person ({requests[0].question}), nobody answered, and a run can only rest in a "
            f"store; set `store` on `{owner}`, or let `on_human` answer."
        )


def check_answers(root: Loop, saved: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Any]) -> None:
    """Judge what people said before anything goes on; what a branch's function takes is known when it is there."""
    for request in root.requests():
        if request.id in answers:
            root.check_answer(request.id, answers[request.id])
    for each in saved.values():
        for plain in each["state"].get("requests", {}).values():
            request = read_request(plain)
            if request.id in answers:
                check_answer(request, answers[request.id])
