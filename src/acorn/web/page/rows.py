"""The rows of the tree of a run, and its journal entries, as JSON data for the page."""

from __future__ import annotations

import json
import re

from acorn._inside import Redactor, describe_blobs, record_to_json, text_of, to_compact_json, to_json_data
from acorn._inside.run_tree import Row
from acorn.journal import Entry, MessagesAdded, RunStarted
from acorn.types import JsonObject, is_json_object
from acorn.web.page import PREVIEW_LIMIT, STREAM_LIMIT

_INVALID_FIELD = re.compile(r'<field name="([^"]*)">')

Event = JsonObject
"""A journal entry as JSON data, or a part of a response in progress."""


def entry_event(entry: Entry) -> Event:
    """Return a journal entry as JSON data. Short descriptions replace the data of images and files."""
    event: Event = describe_blobs(to_json_data(record_to_json(entry)))
    return event


def row_json(row: Row, redactor: Redactor) -> JsonObject:
    """Return a row as JSON data with short JSON keys. Secrets are redacted."""
    fields: JsonObject = {"i": row.id, "k": row.kind, "n": redactor.text(row.name, PREVIEW_LIMIT)}
    if row.parent is not None:
        fields["u"] = row.parent.id
    if row.step:
        fields["s"] = row.step
    if row.start is not None:
        fields["a"] = round(row.start, 4)
    if row.end is not None:
        fields["b"] = round(row.end, 4)
    if preview := _preview(row):
        fields["p"] = redactor.text(preview, PREVIEW_LIMIT)
    if row.tokens is not None:
        fields["t"] = row.tokens
    if row.cost is not None:
        fields["c"] = row.cost
    if row.has_failed:
        fields["x"] = 1
    return fields


def _preview(row: Row) -> str:
    match row.kind:
        case "input":
            return _input_preview(row)
        case "answer" if row.arguments is not None:
            return _invalid_fields_text(row.error or "") if row.has_failed else _answer_text(row.arguments)
        case "model" | "answer":
            names = ", ".join(call.name for call in row.calls if call.arguments is not None)
            return row.error or row.text or names or ("" if row.run.end is None else row.run.end.content)
        case "person":
            return " — ".join(filter(None, (row.text, row.result)))
        case _:
            return row.error or row.text or row.arguments or ""


def _input_preview(row: Row) -> str:
    preview = ""
    for entry in row.entries:
        if isinstance(entry, RunStarted):
            preview = summary_line(entry.input)
        elif isinstance(entry, MessagesAdded) and entry.messages:
            preview = preview or text_of(entry.messages[-1].get("content"))
    return preview


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


def _answer_text(arguments: str) -> str:
    try:
        return summary_line(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _invalid_fields_text(content: str) -> str:
    """Return a preview of a validation document, with the names of the invalid fields.

    A validation document is the message that tells the model which fields of its answer are invalid.
    """
    fields = _INVALID_FIELD.findall(content[:STREAM_LIMIT])
    return f"invalid: {', '.join(name or 'the whole answer' for name in fields)}" if fields else content
