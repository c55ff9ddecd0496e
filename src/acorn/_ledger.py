"""What happened in a run, noted as it happens, at the price of a tuple each.

The loop writes it, beside the history, and nobody changes a note afterwards: it holds strings, and copies
of what could be edited. `acorn.thread` makes events of the notes when somebody reads them.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["messages", "said", "turn", "result", "branch", "error", "completion", "events"]


class Note(NamedTuple):
    """One thing that happened."""

    kind: Kind
    iteration: int
    at: float
    """Seconds into the run."""
    what: tuple[Any, ...]
    """messages: a list; said: role, text; turn: content, (id, name, arguments) of each call, extra keys;
    result: call id, text, what the text is ("text", "json", "error", "stopped", "skipped"), seconds;
    branch: its record; error: text; completion: text, what it is ("text" or "json");
    events: plain data of a run that was saved."""


class Ledger:
    """The notes of one run."""

    __slots__ = ("inherited", "iteration", "notes", "now", "since")

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.inherited = 0
        """How many messages of the first note a branch has from its parent."""
        self.iteration = 0
        self.now = 0.0
        self.since = 0.0
        """How many seconds the run had behind it when it was loaded."""

    def note(self, kind: Kind, *what: Any) -> None:
        self.notes.append(Note(kind, self.iteration, self.now, what))
