"""The alignment of two runs: pairs of rows that the page displays next to each other.

First, rows with equal content are paired. Between these pairs, rows with the same kind and name are paired. Each row
occurs once, and the rows of a run keep their order. If a step happened at a different point in the other run, it has no
counterpart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from acorn._inside import to_compact_json, to_json_data
from acorn.journal import (
    BranchFinished,
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
    """Two rows that the page displays next to each other: one row of the left run and one row of the right run.

    If a row has no counterpart, the other side is None.
    """

    left: Row | None
    right: Row | None
    depth: int
    is_same: bool
    """Whether the contents of both rows are equal, apart from times and costs."""


def align(left: Rows, right: Rows) -> list[Pair]:
    """Return pairs of corresponding rows. Each row of both runs is in exactly one pair."""
    left_side, right_side = _ComparedRun(left), _ComparedRun(right)
    pairs: list[Pair] = []
    root_pairs = _pair_rows(left_side.children[None], right_side.children[None], left_side, right_side)
    pending = [(*row_pair, 0) for row_pair in reversed(root_pairs)]
    while pending:
        left_row, right_row, depth = pending.pop()
        is_same = (
            left_row is not None
            and right_row is not None
            and left_side.content(left_row) == right_side.content(right_row)
        )
        pairs.append(Pair(left_row, right_row, depth, is_same))
        left_children = left_side.children[left_row.id] if left_row else []
        right_children = right_side.children[right_row.id] if right_row else []
        children = _pair_rows(left_children, right_children, left_side, right_side)
        pending += [(*row_pair, depth + 1) for row_pair in reversed(children)]
    return pairs


class _ComparedRun:
    """One of the two compared runs: its rows as a tree, and the content of each row."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.children: dict[int | None, list[Row]] = defaultdict(list)
        self._contents: dict[int, Hashable] = {}
        for row in rows.all:
            self.children[row.parent].append(row)

    def content(self, row: Row) -> Hashable:
        """Return the content of a row, which is compared with the content of rows in the other run.

        It omits times, totals and ids, because they always differ between runs.
        """
        if row.id not in self._contents:
            texts = tuple(text for entry in self._rows.entries_of(row) if (text := _content(entry)))
            arguments = "" if row.call is None else row.call.arguments
            self._contents[row.id] = (row.kind, row.name, row.has_failed, arguments, texts)
        return self._contents[row.id]


def _content(entry: Entry) -> str:
    match entry:
        case RunStarted():
            return _text(entry.input)
        case MessagesAdded() | HistoryEdited():
            return _text([[message.get("role"), message.get("content")] for message in entry.messages])
        case ModelResponded():
            return _text([entry.content, entry.refusal, [[call.name, call.arguments] for call in entry.calls]])
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


def _text(value: object) -> str:
    return to_compact_json(to_json_data(value))


RowPair = tuple[Row | None, Row | None]


def _pair_rows(
    lefts: Sequence[Row], rights: Sequence[Row], left_side: _ComparedRun, right_side: _ComparedRun
) -> list[RowPair]:
    """Return pairs of rows from two lists: the children of a left row and of the corresponding right row."""
    pairs: list[RowPair] = []
    equal_rows = _match_equal([left_side.content(row) for row in lefts], [right_side.content(row) for row in rights])
    left_start = right_start = 0
    for left_end, right_end in [*equal_rows, (len(lefts), len(rights))]:
        pairs += _pair_by_name(lefts[left_start:left_end], rights[right_start:right_end])
        if left_end < len(lefts):
            pairs.append((lefts[left_end], rights[right_end]))
        left_start, right_start = left_end + 1, right_end + 1
    return pairs


def _pair_by_name(lefts: Sequence[Row], rights: Sequence[Row]) -> Iterator[RowPair]:
    left_start = right_start = 0
    same_names = _match_equal([(row.kind, row.name) for row in lefts], [(row.kind, row.name) for row in rights])
    for left_end, right_end in [*same_names, (len(lefts), len(rights))]:
        yield from ((row, None) for row in lefts[left_start:left_end])
        yield from ((None, row) for row in rights[right_start:right_end])
        if left_end < len(lefts):
            yield lefts[left_end], rights[right_end]
        left_start, right_start = left_end + 1, right_end + 1


def _match_equal(lefts: Sequence[Hashable], rights: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of indexes at which both lists have equal values.

    Both indexes increase from pair to pair. The result is the longest such list. The nth occurrence of a value on the
    left matches only the nth occurrence on the right.
    """
    right_indexes = {key: index for index, key in enumerate(_number_occurrences(rights))}
    matches = [
        (index, right_indexes[key]) for index, key in enumerate(_number_occurrences(lefts)) if key in right_indexes
    ]
    return _longest_rising(matches)


def _number_occurrences(keys: Sequence[Hashable]) -> Iterator[tuple[Hashable, int]]:
    counts: dict[Hashable, int] = defaultdict(int)
    for key in keys:
        yield key, counts[key]
        counts[key] += 1


def _longest_rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of pairs in which the second number increases.

    In `pairs`, the first number already increases.
    """
    ends: list[int] = []
    """At index n, the smallest last number of a rising subsequence of length n + 1."""
    last: list[int] = []
    """At index n, the position of `ends[n]` in `pairs`."""
    previous: list[int | None] = []
    for index, (_, number) in enumerate(pairs):
        length = bisect_left(ends, number)
        previous.append(last[length - 1] if length else None)
        ends[length : length + 1] = [number]
        last[length : length + 1] = [index]
    rising: list[tuple[int, int]] = []
    current = last[-1] if last else None
    while current is not None:
        rising.append(pairs[current])
        current = previous[current]
    return rising[::-1]
