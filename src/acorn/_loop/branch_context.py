"""What a branch is born with: one frozen record, which can be written as JSON and read back elsewhere.

Functions, budgets and the run above are not in it; they are found again by whoever loads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acorn._data import to_saved
from acorn._loop.limits import Limits
from acorn._loop.settings import read_settings, written_settings
from acorn.record import Message


@dataclass(frozen=True, eq=False)
class BranchContext:
    """The birth of a branch, or of an agent that is a tool."""

    run_id: str
    parent_id: str
    name: str
    path: str
    """`outer/inner`"""
    depth: int
    place: str
    """Where in its parent it began: the step, and the call or the hook."""
    call_id: str | None
    """The call that began it; None where the user's code did."""
    inside: str | None
    """The call whose function began it; None for a called branch, and for one begun in a hook."""
    input: Any
    """The input model, or its plain data in a record that was read back."""
    has_input: bool
    """Whether it has an input of its own."""
    inherits: bool = True
    """Whether it goes on with its parent's conversation, tools and settings; an agent that is a tool does not."""
    history: tuple[Message, ...] = ()
    """The parent's conversation at birth, its pending calls answered."""
    openings: tuple[Message, ...] = ()
    """The inputs of the runs above, the nearest first."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What was changed of the parent's settings by then."""
    tools: tuple[str, ...] = ()
    """The names of the parent's tools by then."""
    limits: Limits = field(default_factory=Limits)
    """What was left for it."""

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "input": to_saved(self.input),
            "history": list(self.history),
            "openings": list(self.openings),
            "settings": written_settings(self.settings),
            "tools": list(self.tools),
            "limits": vars(self.limits),
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> BranchContext:
        fields: dict[str, Any] = dict(plain)
        for name in ("history", "openings", "tools"):
            fields[name] = tuple(fields[name])
        fields["settings"] = read_settings(fields["settings"])
        fields["limits"] = Limits(**fields["limits"])
        return cls(**fields)


def branch_id(parent_id: str, place: str) -> str:
    """The id of a run that begins at a place of another: the same whenever it is made."""
    return hashlib.sha256(f"{parent_id}/{place}".encode()).hexdigest()[:32]
