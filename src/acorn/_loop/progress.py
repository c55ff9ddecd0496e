"""What the entries of a step tell of the machine's memory, so that it is not written whole with each of many results.

A memory holds the calls of its step and what has come of them. Where there are many, it is written when they have
begun, and again when the step is over; in between the entries tell what has begun and returned since. Whoever loads
the run adds that to the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from acorn._json import copied
from acorn._loop.state import State
from acorn._record_json import read_result, written_entry, written_result
from acorn.journal import BranchBegun, BranchEnded, Entry, ToolBegun, ToolReturned
from acorn.record import TOOL
from acorn.types import ToolCall

MANY = 8
"""Calls in a step from which on it is worth it."""
LENGTH = "entries"
"""Under which a memory says how many entries there were when it was written."""
_RESULT = "result"


class Progress(NamedTuple):
    """What is known of a memory that was written whole, and of what came since."""

    calls: list[ToolCall]
    rest: Mapping[str, Any]
    """All that must be as it was."""
    under_way: int
    results: int
    branches: int


def begin(state: State, turn: int | None) -> Progress | None:
    """From a memory that is written now; None where the next one is written whole as well."""
    if len(state.calls) < MANY or state.phase not in ("tools", "branches"):
        return None
    return Progress(
        state.calls, copied(_rest(state, turn)), len(state.under_way), len(state.results), len(state.branches)
    )


def go_on(before: Progress, new: Iterable[Entry], state: State, turn: int | None) -> Progress | None:
    """Where these entries tell all that has happened to the memory; None where it has to be written."""
    under_way, results, branches = before.under_way, before.results, before.branches
    for entry in new:
        if isinstance(entry, ToolBegun):
            under_way += 1
        elif isinstance(entry, ToolReturned):
            under_way -= entry.began is not None
            results += 1
        elif isinstance(entry, BranchBegun):
            under_way += entry.call_id is not None
        elif not isinstance(entry, BranchEnded):
            return None
        elif entry.call_id is not None:
            under_way, results, branches = under_way - 1, results + 1, branches - 1
    now = (len(state.under_way), len(state.results), len(state.branches))
    if state.calls is not before.calls or now != (under_way, results, branches) or before.rest != _rest(state, turn):
        return None
    return Progress(before.calls, before.rest, *now)


def _rest(state: State, turn: int | None) -> dict[str, Any]:
    # What was spent is counted anew by whoever loads it.
    meter = {name: value for name, value in vars(state.meter).items() if name != "spent"}
    return {**state.small(), "meter": meter, "turn": turn}


def written_with_result(entry: Entry, state: State) -> dict[str, Any]:
    """An entry as plain data; one of a result has with it what the memory would have of it."""
    plain = written_entry(entry)
    if isinstance(entry, ToolReturned | BranchEnded) and entry.call_id is not None:
        plain[_RESULT] = written_result(state.results[entry.call_id])
    return plain


def catch_up(state: State, entries: Iterable[Mapping[str, Any]]) -> None:
    """Add to a memory what the entries tell that were written since."""
    for plain in entries:
        kind, call_id = plain["entry"], plain.get("call_id")
        ask_id = f"{TOOL if kind.startswith('Tool') else 'branch '}{plain['step']} {call_id}"
        if call_id is None:
            continue
        if kind in (ToolBegun.__name__, BranchBegun.__name__):
            state.under_way[ask_id] = plain["at"]
        elif kind in (ToolReturned.__name__, BranchEnded.__name__):
            state.under_way.pop(ask_id, None)
            state.branches.pop(call_id, None)
            state.results[call_id] = read_result(plain[_RESULT])
