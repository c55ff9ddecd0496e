"""A run as plain lines on standard error, for logs and pipes: one for each call, and one for the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acorn import Run, StreamChunk
from acorn.cli.ends import tell
from acorn.cli.story import Branch, Call, Story, Task, Turn
from acorn.cli.text import call_text, one_line, seconds_text, totals_text
from acorn.journal import Entry


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

    def hear(self, entry: Entry) -> None:
        for branch, complete in self._story.hear(entry):
            where = f"[{one_line(branch.label)}] " if branch.label else ""
            for line in self._lines(branch, complete):
                tell(f"{where}{line}")

    def feed(self, chunk: StreamChunk[Any], run: Run[Any] | None) -> None:
        """What is still coming in is no line yet."""

    def end(self, how: str, run: Run[Any] | None) -> None:
        if run is None:
            tell(how)
            return
        tell(f"{how}: {totals_text(run.steps, self._story.tokens, self._story.cost, run.seconds, ', ')}")

    def _lines(self, branch: Branch, complete: Turn | Call | Branch) -> list[str]:
        match complete:
            case Turn(was_refused=True):
                return ["answer: it did not validate; asked again"]
            case Turn():
                text = one_line(complete.text)
                return [f"{self._place(branch, complete)}: {text}"] if text else []
            case Call():
                step = 0 if branch.turn is None else branch.turn.step
                return [f"step {step}: {call_text(complete.name, complete.arguments)}{_outcome(complete)}"]
            case Branch():
                place = "" if branch.turn is None else f"{self._place(branch, branch.turn)}: "
                return [f"{place}branch {one_line(complete.title)}{_outcome(complete)}"]

    def _place(self, branch: Branch, turn: Turn) -> str:
        """The step that a text belongs to; an answer is none, and neither is what comes when there are no more."""
        is_beyond = branch is self._story.root and self._max_steps is not None and turn.step > self._max_steps
        is_answer = any(call.is_answer for call in turn.calls)
        return "answer" if is_answer or is_beyond else f"step {turn.step}"


def _outcome(task: Task) -> str:
    """` -> [...] (0.21 s)`."""
    came = f" -> {one_line(task.said or '', 160)}" if task.error is None else f" failed: {one_line(task.error)}"
    return f"{came}{f' ({seconds_text(task.took)})' if task.took is not None else ''}"
