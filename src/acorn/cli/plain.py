"""A run as plain lines on standard error, for logs and pipes: one for each call, and one for the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from acorn import Run, StreamChunk
from acorn.cli.ends import tell
from acorn.cli.story import Branch, Call, Story, Turn
from acorn.cli.text import call_text, one_line, seconds_text, totals_text, value_text


class PlainView:
    """Says what has happened when it has happened."""

    def __init__(
        self, name: str, model: str, *, max_steps: int | None = None, hide: Callable[[str], str] = str
    ) -> None:
        self._story = Story(hide)
        self._name, self._model = name, model
        self._max_steps = max_steps

    def __enter__(self) -> PlainView:
        tell(f"{one_line(self._name)} on {one_line(self._model)}")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def feed(self, chunk: StreamChunk[Any], run: Run[Any] | None) -> None:
        for branch, complete in self._story.add(chunk, time.monotonic(), run):
            where = f"[{one_line(branch.label)}] " if branch.label else ""
            for line in self._lines(branch, complete):
                tell(f"{where}{line}")

    def end(self, how: str, run: Run[Any] | None) -> None:
        if run is None:
            tell(how)
            return
        totals = self._story.totals(run)
        tell(f"{how}: {totals_text(totals.steps, totals.tokens, totals.cost, run.seconds, ', ')}")

    def _lines(self, branch: Branch, complete: Turn | Call) -> list[str]:
        turn = branch.turns[-1]
        if isinstance(complete, Call):
            return [f"step {turn.number}: {call_line(complete)}"]
        lines = ["answer: it did not validate; asked again"] if _was_corrected(branch) else []
        text = one_line(complete.text)
        return [*lines, f"{self._place(branch, turn)}: {text}"] if text else lines

    def _place(self, branch: Branch, turn: Turn) -> str:
        """The step that a text belongs to; an answer is none, and neither is what comes when there are no more."""
        is_beyond = branch.run_id is None and self._max_steps is not None and turn.number > self._max_steps
        return "answer" if turn.answer is not None or is_beyond else f"step {turn.number}"


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
