"""The alignment of two runs: pairs of rows that the page displays next to each other.

First, rows with equal content are paired. Between these pairs, rows with the same kind and name are paired. Each row
occurs once, and the rows of a run keep their order. If a step happened at a different point in the other run, it has no
counterpart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from typing import NamedTuple

from acorn._inside import to_compact_json, to_json_data
from acorn._inside.run_tree import Row, RunTree
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

RowPair = tuple[Row | None, Row | None]
RowKey = Callable[[Row], Hashable]
"""A function that returns the value by which two rows are compared."""


class Pair(NamedTuple):
    """Two rows that the page displays next to each other: one row of the left run and one row of the right run.

    If a row has no counterpart, the other side is None.
    """

    left: Row | None
    right: Row | None
    depth: int
    is_same: bool
    """Whether the contents of both rows are equal, apart from times and costs."""


def align(left: RunTree, right: RunTree) -> list[Pair]:
    """Return pairs of corresponding rows. Each row of both runs is in exactly one pair."""
    children: dict[Row | None, list[Row]] = defaultdict(list)
    """Maps a row of either run to the rows below it."""
    for tree in {left, right}:
        for row in tree.rows:
            if row.parent is not None:
                children[row.parent].append(row)
    content = cache(_row_content)

    def match(lefts: Sequence[Row], rights: Sequence[Row], key: RowKey) -> Iterator[RowPair]:
        matcher = SequenceMatcher(None, [key(row) for row in lefts], [key(row) for row in rights], autojunk=False)
        for tag, left_start, left_end, right_start, right_end in matcher.get_opcodes():
            left_rows, right_rows = lefts[left_start:left_end], rights[right_start:right_end]
            if tag == "equal":
                yield from zip(left_rows, right_rows, strict=True)
            elif tag == "replace" and key is content:
                yield from match(left_rows, right_rows, _kind_and_name)
            else:
                yield from ((row, None) for row in left_rows)
                yield from ((None, row) for row in right_rows)

    pairs: list[Pair] = []
    top = match(left.root.rows, right.root.rows, content)
    pending = [(*row_pair, 0) for row_pair in top][::-1]
    while pending:
        left_row, right_row, depth = pending.pop()
        is_same = left_row is not None and right_row is not None and content(left_row) == content(right_row)
        pairs.append(Pair(left_row, right_row, depth, is_same))
        below = match(children[left_row], children[right_row], content)
        pending += [(*row_pair, depth + 1) for row_pair in below][::-1]
    return pairs


def _kind_and_name(row: Row) -> Hashable:
    return row.kind, row.name


def _row_content(row: Row) -> Hashable:
    """Return the content of a row without times, totals and ids, which always differ between runs."""
    arguments = row.arguments if row.kind != "answer" else None
    texts = tuple(text for entry in row.entries if (text := _entry_content(entry)))
    return row.kind, row.name, row.has_failed, arguments, texts


def _entry_content(entry: Entry) -> str:
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
