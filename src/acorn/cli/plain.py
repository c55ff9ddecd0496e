"""A run as plain lines on standard error, for logs and pipes: one for each call, and one for the end."""

from __future__ import annotations

import time
from typing import Any

from acorn import Run, StreamChunk
from acorn.cli.ends import tell
from acorn.cli.story import Branch, Call, Story, Turn
from acorn.cli.text import call_text, one_line, seconds_text, totals_text, value_text


class PlainView:
    """Says what has happened when it has happened."""

    def __init__(self, name: str, model: str) -> None:
        self._story = Story()
        self._name, self._model = name, model

    def __enter__(self) -> PlainView:
        tell(f"{one_line(self._name)} on {one_line(self._model)}")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def feed(self, chunk: StreamChunk[Any], run: Run[Any] | None) -> None:
        for branch, complete in self._story.add(chunk, time.monotonic(), run):
            for line in _lines(branch, complete):
                where = f"[{one_line(branch.path)}] " if branch.path else ""
                tell(f"{where}step {branch.turns[-1].number}: {line}")

    def end(self, how: str, run: Run[Any] | None) -> None:
        if run is not None:
            totals = self._story.totals(run)
            tell(f"{how}: {totals_text(totals.steps, totals.tokens, totals.cost, run.seconds, ', ')}")


def _lines(branch: Branch, complete: Turn | Call) -> list[str]:
    if isinstance(complete, Call):
        return [call_line(complete)]
    if branch.is_mixed:
        return []
    lines = ["the answer did not validate; asked again"] if _was_corrected(branch) else []
    text = one_line(complete.text)
    return [*lines, text] if text else lines


def _was_corrected(branch: Branch) -> bool:
    return len(branch.turns) > 1 and branch.turns[-2].was_refused


def call_line(call: Call) -> str:
    """`search(query="acorns") -> [...] (0.21 s)`."""
    result = call.result
    outcome = ": not run"
    if result is not None:
        outcome = f" failed: {one_line(result.error)}" if result.error else f" -> {value_text(result.output)}"
    took = call.seconds(0.0) if result is not None else None
    return f"{call_text(call.name, call.arguments)}{outcome}{f' ({seconds_text(took)})' if took is not None else ''}"
