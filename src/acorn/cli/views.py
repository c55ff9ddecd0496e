"""The views of a run in progress: a live tree on a terminal, and plain lines in logs and pipes.

The live view is drawn ten times per second, at any rate of entries and chunks. During the run, the drawing is never
taller than the terminal, so that the next drawing replaces it completely. At the end, the complete tree is drawn.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text
from rich.tree import Tree

from acorn import StreamChunk, listen
from acorn._inside.run_tree import Row, RunTree
from acorn.cli.drawing import Pen, draw_run, task_title
from acorn.cli.output import clean, one_line, seconds_text, totals_text, write_line
from acorn.cli.streams import StreamCapture
from acorn.cli.targets import Agent
from acorn.journal import Entry
from acorn.models.resolve import model_name

_PER_SECOND = 10


@contextmanager
def open_view(agent: Agent, out: TextIO, redact: Callable[[str], str]) -> Generator[View]:
    """Open the view that fits standard error, and show the run until the `with` block ends.

    `out` is the stream for the result of the command. `redact` removes secrets from texts.
    """
    name, model = type(agent).__name__, model_name(agent.model) or ""
    if not (sys.stderr.isatty() and Console(file=sys.stderr).is_interactive):
        plain = PlainView(name, model, redact)
        with listen(plain.add_entry):
            yield plain
        return
    capture = StreamCapture(sys.stderr.encoding)
    view = LiveView(name, model, Console(file=capture.terminal), redact, hides_answer=out.isatty())
    with view.live, capture.pass_lines_to(view.show_above), listen(view.add_entry):
        yield view


class LiveView:
    """A view that draws a run as a tree on the terminal and updates the drawing."""

    def __init__(
        self, name: str, model: str, console: Console, redact: Callable[[str], str], *, hides_answer: bool
    ) -> None:
        self._tree = RunTree(redact)
        self._redact = redact
        self._name, self._model = name, model
        self._hides_answer = hides_answer
        """Whether to omit the final answer, because the command prints it below the view."""
        self._lock = threading.Lock()  # rich draws in another thread, and branches may run in threads.
        self._started = time.monotonic()
        """The time of the monotonic clock at the start of the run."""
        self._outcome: str | None = None
        self.live = Live(self, console=console, refresh_per_second=_PER_SECOND, vertical_overflow="crop")

    def add_entry(self, entry: Entry) -> None:
        with self._lock:
            if not self._tree.runs:
                self._started = time.monotonic() - entry.at
            self._tree.add(entry)

    def add_past(self, entries: Iterable[Entry]) -> None:
        """Add the earlier entries of a resumed run."""
        with self._lock:
            for entry in entries:
                self._tree.add(entry)
                self._started = time.monotonic() - entry.at

    def add_chunk(self, chunk: StreamChunk) -> None:
        with self._lock:
            self._tree.add_chunk(chunk)

    def end(self, outcome: str) -> None:
        self._outcome = outcome

    def show_above(self, line: str) -> None:
        """Print a captured line above the view, so that the line does not damage the drawing."""
        self.live.console.print(Text(clean(line)), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            tree, status = self._draw(options)
        lines = console.render_lines(tree, options, pad=False)
        status_lines = console.render_lines(status, options, pad=False)
        if self._outcome is None:
            height = max(1, options.size.height - len(status_lines) - 1)
            lines = lines[-height:]
        for line in (*lines, *status_lines):
            yield from line
            yield Segment.line()

    def _draw(self, options: ConsoleOptions) -> tuple[Tree, Text]:
        outcome, is_over = self._outcome, self._outcome is not None
        now, width = time.monotonic() - self._started, max(20, options.max_width - 8)
        pen = Pen(now, width, options.ascii_only, is_over, redact=self._redact)
        heading = pen.line((one_line(self._name), "bold"), (f" on {one_line(self._model)}", "dim"))
        tree = Tree(heading, guide_style="dim")
        answers = not (self._hides_answer and outcome == "finished")
        draw_run(self._tree.root, tree, pen, last=None if is_over else options.size.height, answers=answers)
        start = f"{pen.frame} " if outcome is None else f"{outcome}: "
        totals = _totals(self._tree, self._tree.seconds if is_over else now)
        return tree, pen.line((f"{start}{totals}", "dim" if outcome in (None, "finished") else "yellow"))


class PlainView:
    """A view that prints one line for each complete response, call and branch of the run."""

    def __init__(
        self, name: str, model: str, redact: Callable[[str], str] = str, print_line: Callable[[str], None] = write_line
    ) -> None:
        self._tree = RunTree(redact)
        self._print_line = print_line
        print_line(f"{one_line(name)} on {one_line(model)}")

    def add_entry(self, entry: Entry) -> None:
        for row in self._tree.add(entry):
            if line := _plain_line(row):
                self._print_line(f"[{one_line(row.run.label)}] {line}" if row.run.label else line)

    def add_past(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._tree.add(entry)

    def add_chunk(self, chunk: StreamChunk) -> None:
        """Do nothing: this view prints only complete responses."""

    def end(self, outcome: str) -> None:
        totals = f": {_totals(self._tree, self._tree.seconds, ', ')}" if self._tree.runs else ""
        self._print_line(f"{outcome}{totals}")


View = LiveView | PlainView
"""A view of a run in progress, which receives journal entries and the chunks of incomplete responses."""


def _plain_line(row: Row) -> str:
    if row.was_rejected:
        return "answer: did not validate, requested again"
    if row.kind in ("model", "answer"):
        text = one_line(row.text)
        return f"{_label(row)}{text}" if text else ""
    result = f" -> {one_line(row.result or '', 160)}" if row.error is None else f" failed: {one_line(row.error)}"
    seconds = "" if row.seconds is None else f" ({seconds_text(row.seconds)})"
    return f"{_label(row.run.turn)}{task_title(row, 160)}{result}{seconds}"


def _label(turn: Row | None) -> str:
    """Return the start of a line: the step number of a response, or `answer: ` if the response is not a step."""
    if turn is None:
        return ""
    return f"step {turn.step}: " if turn.is_step else "answer: "


def _totals(tree: RunTree, seconds: float, separator: str = " · ") -> str:
    kept_steps = 0 if tree.forked_from is None else tree.forked_from.before - 1
    steps = max([kept_steps, *(row.step for row in tree.root.rows if row.is_step)])
    return totals_text(steps, tree.usage.total_tokens, tree.cost, seconds, separator)
