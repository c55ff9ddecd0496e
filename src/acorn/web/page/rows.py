"""The rows of the tree of a run as JSON data for the page, and the alignment of two runs for a comparison."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from typing import NamedTuple

from acorn._inside import Redactor, describe_blobs, parse_json, record_to_json, text_of, to_compact_json, to_json_data
from acorn._inside.run_tree import Row, RunTree
from acorn.journal import Entry, HistoryEdited, MessagesAdded, ModelResponded, RunFinished, RunStarted
from acorn.types import JsonObject, is_json_object
from acorn.web.page import PREVIEW_LIMIT, STREAM_LIMIT

_CONTENT_FIELDS = ("input", "content", "refusal", "error", "question", "answer", "summary")
"""The fields of journal entries whose values are compared in an alignment. Times, totals and ids always differ."""
_INVALID_FIELD = re.compile(r'<field name="([^"]*)">')

Event = JsonObject
"""A journal entry as JSON data, or a part of a response in progress."""


def entry_event(entry: Entry) -> Event:
    """Return a journal entry as JSON data. Short descriptions replace the data of images and files."""
    event: Event = describe_blobs(to_json_data(record_to_json(entry)))
    return event


def row_json(row: Row, redactor: Redactor) -> JsonObject:
    """Return a row as JSON data with short JSON keys. Secrets are redacted."""
    fields = {
        "i": row.id,
        "k": row.kind,
        "n": redactor.text(row.name, PREVIEW_LIMIT),
        "u": None if row.parent is None else row.parent.id,
        "s": row.step or None,
        "a": None if row.start is None else round(row.start, 4),
        "b": None if row.end is None else round(row.end, 4),
        "p": redactor.text(_preview(row), PREVIEW_LIMIT) or None,
        "t": row.tokens,
        "c": row.cost,
        "x": 1 if row.has_failed else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _preview(row: Row) -> str:
    match row.kind:
        case "input":
            return _input_preview(row)
        case "answer" if row.arguments is not None:
            return _invalid_fields_text(row.error or "") if row.has_failed else summary_line(parse_json(row.arguments))
        case "model" | "answer":
            names = ", ".join(call.name for call in row.calls if call.arguments is not None)
            answer = next((entry.content for entry in row.entries if isinstance(entry, RunFinished)), "")
            return row.error or row.text or names or answer
        case "person":
            return " — ".join(filter(None, (row.text, row.result)))
        case _:
            return row.error or row.text or row.arguments or ""


def _input_preview(row: Row) -> str:
    for entry in row.entries:
        if isinstance(entry, RunStarted) and (preview := summary_line(entry.input)):
            return preview
        if isinstance(entry, MessagesAdded) and entry.messages:
            return text_of(entry.messages[-1].get("content"))
    return ""


def summary_line(value: object) -> str:
    """Return a summary of a value as a single line.

    The summary is the value if it is a text, otherwise the first text in its fields. If no field is a text, the summary
    is the value as JSON.
    """
    data = to_json_data(value)
    if is_json_object(data):
        text = next((item for item in data.values() if isinstance(item, str) and item.strip()), None)
        data = next(iter(data.values())) if text is None and len(data) == 1 else data if text is None else text
    text = data if isinstance(data, str) else "" if data is None else to_compact_json(data)
    return " ".join(text.split())[: 4 * PREVIEW_LIMIT]


def _invalid_fields_text(content: str) -> str:
    """Return a preview of a validation document, with the names of the invalid fields.

    A validation document is the message that tells the model which fields of its answer are invalid.
    """
    fields = _INVALID_FIELD.findall(content[:STREAM_LIMIT])
    return f"invalid: {', '.join(name or 'the whole answer' for name in fields)}" if fields else content


# The alignment of two runs


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
    """Return pairs of corresponding rows. Each row of both runs is in exactly one pair.

    First, rows with equal content are paired. Between these pairs, rows with the same kind and name are paired. The
    rows of a run keep their order. If a step happened at a different point in the other run, it has no counterpart.
    """
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
                yield from match(left_rows, right_rows, lambda row: (row.kind, row.name))
            else:
                yield from ((row, None) for row in left_rows)
                yield from ((None, row) for row in right_rows)

    def align_rows(lefts: Sequence[Row], rights: Sequence[Row], depth: int) -> Iterator[Pair]:
        for left_row, right_row in match(lefts, rights, content):
            is_same = left_row is not None and right_row is not None and content(left_row) == content(right_row)
            yield Pair(left_row, right_row, depth, is_same)
            yield from align_rows(children[left_row], children[right_row], depth + 1)

    return list(align_rows(left.root.rows, right.root.rows, 0))


def _row_content(row: Row) -> Hashable:
    """Return the content of a row without times, totals and ids, which always differ between runs."""
    arguments = row.arguments if row.kind != "answer" else None
    content = to_compact_json(list(filter(any, map(_entry_content, row.entries))))
    return row.kind, row.name, row.has_failed, arguments, content


def _entry_content(entry: Entry) -> list[object]:
    content: list[object] = [getattr(entry, name, None) for name in _CONTENT_FIELDS]
    match entry:
        case MessagesAdded() | HistoryEdited():
            content += [[message.get("role"), message.get("content")] for message in entry.messages]
        case ModelResponded():
            content += [[call.name, call.arguments] for call in entry.calls]
        case _:
            pass
    return content
