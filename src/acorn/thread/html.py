"""Conversion of a run's record to HTML, which notebooks display through `Run._repr_html_`.

All text from users, models and tools is escaped. The HTML contains no scripts and no style sheets, so it does not
affect the other parts of the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from acorn import thread
from acorn._formats.json import describe_error, shorten, to_json_data
from acorn._formats.redact import Redactor, find_secrets
from acorn.journal import RunStarted
from acorn.types import Paused, is_json_object

_MAX_CHARACTERS = 2000
"""The maximum number of characters of one table cell."""
_CELL_STYLE = "text-align: left; vertical-align: top"
_TEXT_STYLE = "white-space: pre-wrap; overflow-wrap: anywhere; margin: 0"

Row = tuple[str, str, str]
"""The three cells of a table row."""


def write_html(run: Any) -> str:
    """Return HTML with the output of a run and a collapsed table of its events."""
    facts = _table((name, "", text) for name, text in _output_fields(run))
    steps = _table([*map(_event_row, run.thread), *_traceback_rows(run)])
    head = f"<p><b>{_escape(_class_name(run))}</b> {_escape(' · '.join(_summary_texts(run)))}</p>"
    return f"<div>{head}{facts}<details><summary>Events</summary>{steps}</details></div>"


def _escape(text: str) -> str:
    cut = shorten(text, _MAX_CHARACTERS)
    return escape(cut.encode("utf-8", "replace").decode())  # A model may write a lone surrogate.


def _table(rows: Iterable[Row]) -> str:
    cells = [
        f'<tr><th style="{_CELL_STYLE}">{_escape(first)}</th><td style="{_CELL_STYLE}">{_escape(second)}</td>'
        f'<td style="{_CELL_STYLE}"><pre style="{_TEXT_STYLE}">{_escape(text)}</pre></td></tr>'
        for first, second, text in rows
    ]
    return f"<table>{''.join(cells)}</table>" if cells else ""


def _class_name(run: Any) -> str:
    module = next((entry.module for entry in run.journal.entries if isinstance(entry, RunStarted)), "run")
    return module.rpartition(":")[2].rpartition(".")[2]


def _summary_texts(run: Any) -> Iterator[str]:
    yield run.stop_reason or "running"
    yield _count_text(run.steps, "step")
    yield _count_text(run.usage.requests, "request")
    yield _count_text(run.usage.total_tokens, "token")
    if run.cost is not None:
        yield f"${run.cost:.4f}"
    yield f"{run.seconds:.1f} s"
    if run.model:
        yield run.model


def _count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _output_fields(run: Any) -> Iterator[tuple[str, str]]:
    """Yield a (name, text) pair for each field of the output, or one pair with the reason for a missing output."""
    if run.error is not None:
        yield "error", Redactor(find_secrets()).text(describe_error(run.error))
    elif isinstance(run.output, Paused):
        yield from (("waits for", request.question) for request in run.output.requests)
    elif run.stop_reason == "unfinished":
        yield "unfinished", repr(run.output)
    elif run.output is not None:
        data = to_json_data(run.output)
        members = data.items() if is_json_object(data) else [("", data)]
        yield from ((name, _text(value)) for name, value in members)


def _text(value: object) -> str:
    data = to_json_data(value)
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, indent=2)


def _traceback_rows(run: Any) -> Iterator[Row]:
    for failed in run.tool_errors:
        yield str(failed.step), f"traceback of {failed.name}", failed.traceback
    for branch in run.branches:
        yield from _traceback_rows(branch)


def _event_row(event: thread.AgentEvent) -> Row:
    step = f"{event.branch or ''} {event.iteration or ''}".strip()
    match event:
        case thread.MessageEvent():
            return step, event.role, event.content
        case thread.ToolCallEvent():
            return step, f"calls {event.tool_name}", event.raw_arguments or _text(event.args)
        case thread.ToolResultEvent():
            return step, "result", _text(event.result)
        case thread.ErrorEvent():
            return step, "error", event.error
        case thread.HumanInputRequestedEvent():
            return step, "asks a person", event.question
        case thread.HumanInputReceivedEvent():
            return step, "a person answers", event.response
        case thread.CompletionEvent():
            return step, "ends", _text(event.result)
        case thread.SummaryEvent():
            return step, "summary", event.summary
