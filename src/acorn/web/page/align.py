"""Two runs side by side: which row of one stands beside which of the other. Pure.

Rows that say the same are put side by side first, then those between them that are of the same kind and name. Each row
stands once and in its own order, so what was done in another order stands alone on both sides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from acorn._inside import to_compact_json, to_json_data
from acorn.journal import (
    BranchFinished,
    CalledTool,
    Compacted,
    Entry,
    HistoryEdited,
    InputReceived,
    InputRequested,
    MessagesAdded,
    ModelResponded,
    RunFailed,
    RunFinished,
    RunStarted,
    ToolFinished,
)
from acorn.web.page.rows import Row, Rows


class Pair(NamedTuple):
    """A row beside one of the other run, or beside nothing."""

    left: Row | None
    right: Row | None
    depth: int
    is_same: bool
    """Whether both say the same, whatever time and money they took."""


def aligned(left: Rows, right: Rows) -> list[Pair]:
    """All rows of both runs."""
    one, other = _Side(left), _Side(right)
    found: list[Pair] = []
    left_to_pair: list[tuple[Row | None, Row | None, int]] = [
        (*both, 0) for both in reversed(_beside(one.below[None], other.below[None], one, other))
    ]
    while left_to_pair:
        first, second, depth = left_to_pair.pop()
        is_same = first is not None and second is not None and one.said(first) == other.said(second)
        found.append(Pair(first, second, depth, is_same))
        below = one.below[first.id] if first else [], other.below[second.id] if second else []
        left_to_pair += [(*both, depth + 1) for both in reversed(_beside(*below, one, other))]
    return found


class _Side:
    """One of the two runs."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.below: dict[int | None, list[Row]] = defaultdict(list)
        self._said: dict[int, Hashable] = {}
        for row in rows.all:
            self.below[row.up].append(row)

    def said(self, row: Row) -> Hashable:
        """What a row says, without what differs from run to run: times, sums, and ids."""
        if row.id not in self._said:
            said = tuple(words for entry in self._rows.of(row) if (words := _words(entry)))
            arguments = "" if row.call is None else row.call.arguments
            self._said[row.id] = (row.kind, row.name, row.is_bad, arguments, said)
        return self._said[row.id]


def _words(entry: Entry) -> str:
    match entry:
        case RunStarted():
            return _text(entry.input)
        case MessagesAdded() | HistoryEdited():
            return _text([[each.get("role"), each.get("content")] for each in entry.messages])
        case ModelResponded():
            return _text([entry.content, entry.refusal, [_named(call) for call in entry.calls]])
        case ToolFinished() | BranchFinished():
            return _text([entry.content, entry.error])
        case InputRequested():
            return _text([entry.question, entry.arguments])
        case InputReceived():
            return _text(entry.answer)
        case Compacted():
            return entry.summary
        case RunFinished():
            return entry.content
        case RunFailed():
            return entry.error
        case _:
            return ""


def _named(call: CalledTool) -> list[str]:
    return [call.name, call.arguments]


def _text(value: Any) -> str:
    return to_compact_json(to_json_data(value))


Both = tuple[Row | None, Row | None]


def _beside(left: Sequence[Row], right: Sequence[Row], one: _Side, other: _Side) -> list[Both]:
    """The rows below two that stand side by side."""
    found: list[Both] = []
    same = _matched([one.said(row) for row in left], [other.said(row) for row in right])
    at = to = 0
    for mine, yours in [*same, (len(left), len(right))]:
        found += _between(left[at:mine], right[to:yours])
        if mine < len(left):
            found.append((left[mine], right[yours]))
        at, to = mine + 1, yours + 1
    return found


def _between(left: Sequence[Row], right: Sequence[Row]) -> Iterator[Both]:
    at = to = 0
    alike = _matched([(row.kind, row.name) for row in left], [(row.kind, row.name) for row in right])
    for mine, yours in [*alike, (len(left), len(right))]:
        yield from ((row, None) for row in left[at:mine])
        yield from ((None, row) for row in right[to:yours])
        if mine < len(left):
            yield left[mine], right[yours]
        at, to = mine + 1, yours + 1


def _matched(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """As many as possible of those that are the first, the second and so on of their kind on both sides, in order."""
    places = {key: at for at, key in enumerate(_numbered(right))}
    both = [(at, places[key]) for at, key in enumerate(_numbered(left)) if key in places]
    return _rising(both)


def _numbered(keys: Sequence[Hashable]) -> Iterator[tuple[Hashable, int]]:
    seen: dict[Hashable, int] = defaultdict(int)
    for key in keys:
        yield key, seen[key]
        seen[key] += 1


def _rising(both: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of it in which the second numbers rise as the first ones do."""
    ends: list[int] = []
    """By length, the smallest number with which a rising part of that length ends."""
    last: list[int] = []
    """By length, where in `both` that is."""
    before: list[int | None] = []
    for at, (_, place) in enumerate(both):
        length = bisect_left(ends, place)
        before.append(last[length - 1] if length else None)
        ends[length : length + 1] = [place]
        last[length : length + 1] = [at]
    found: list[tuple[int, int]] = []
    here = last[-1] if last else None
    while here is not None:
        found.append(both[here])
        here = before[here]
    return found[::-1]
