"""The views of a run in progress: a live tree on a terminal, and plain lines in logs and pipes.

The live view is drawn ten times per second, at any rate of entries and chunks. During the run, the drawing is never
taller than the terminal, so that the next drawing replaces it completely. At the end, the complete tree is drawn.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text
from rich.tree import Tree

from acorn import Run, StreamChunk, listen
from acorn._inside.run_tree import Row, RunTree
from acorn.cli.drawing import Pen, draw_run
from acorn.cli.output import call_text, clean, one_line, seconds_text, totals_text, write_line
from acorn.cli.streams import StreamCapture
from acorn.cli.targets import Agent
from acorn.journal import Entry
from acorn.models.resolve import model_name

_PER_SECOND = 10


@contextmanager
def open_view(agent: Agent, max_steps: int | None, out: TextIO, redact: Callable[[str], str]) -> Generator[View]:
    """Open the view that fits standard error, and show the run until the `with` block ends.

    `out` is the stream for the result of the command. `redact` removes secrets from texts.
    """
    name, model, is_single = type(agent).__name__, model_name(agent.model) or "", max_steps is None
    if not (sys.stderr.isatty() and Console(file=sys.stderr).is_interactive):
        with PlainView(name, model, is_single=is_single, redact=redact) as view, listen(view.add_entry):
            yield view
        return
    capture = StreamCapture(sys.stderr.encoding)
    console = Console(file=capture.terminal)
    with LiveView(name, model, console, is_single=is_single, hides_answer=out.isatty(), redact=redact) as live:
        capture.start(live.show_above)
        try:
            with listen(live.add_entry):
                yield live
        finally:
            capture.stop()


class LiveView:
    """A view that draws a run as a tree on the terminal and updates the drawing."""

    def __init__(
        self,
        name: str,
        model: str,
        console: Console,
        *,
        is_single: bool = False,
        hides_answer: bool = False,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._tree = RunTree(redact)
        self._redact = redact
        self._name, self._model = name, model
        self._is_single = is_single
        """Whether the agent has a single turn. Its view then has no step numbers."""
        self._hides_answer = hides_answer
        """Whether to omit the final answer, because the command prints it below the view."""
        self._lock = threading.Lock()  # rich draws in another thread, and branches may run in threads.
        self._started = time.monotonic()
        """The time of the monotonic clock at the start of the run."""
        self._run: Run | None = None
        self._outcome: str | None = None
        self._live = Live(self, console=console, refresh_per_second=_PER_SECOND, vertical_overflow="crop")

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._outcome = self._outcome or "interrupted"
        self._live.stop()

    def add_entry(self, entry: Entry) -> None:
        with self._lock:
            if not self._tree.runs:
                self._started = time.monotonic() - entry.at
            self._tree.add(entry)

    def add_past(self, entries: Sequence[Entry], *, were_shown: bool) -> None:
        """Add the earlier entries of a resumed run.

        `were_shown` is true if this command has already shown these entries.
        """
        with self._lock:
            for entry in entries:
                self._tree.add(entry)
                self._started = time.monotonic() - entry.at
            if were_shown:
                self._tree.root.rows.clear()

    def add_chunk(self, chunk: StreamChunk, run: Run | None) -> None:
        with self._lock:
            self._run = run
            self._tree.add_chunk(chunk)

    def end(self, outcome: str, run: Run | None) -> None:
        with self._lock:
            self._run, self._outcome = run, outcome

    def show_above(self, line: str) -> None:
        """Print a captured line above the view, so that the line does not damage the drawing."""
        self._live.console.print(Text(clean(line)), soft_wrap=True)

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
        is_over = self._outcome is not None
        now, width = time.monotonic() - self._started, max(20, options.max_width - 8)
        pen = Pen(now, width, options.ascii_only, is_over, redact=self._redact)
        heading = Text.assemble((one_line(self._name), "bold"), (f" on {one_line(self._model)}", "dim"))
        heading.no_wrap, heading.overflow = True, "ellipsis"
        tree = Tree(heading, guide_style="dim")
        hides_answer = self._hides_answer and self._outcome == "finished"
        draw_run(self._tree.root, tree, pen, last=None if is_over else options.size.height, answers=not hides_answer)
        return tree, self._status(pen)

    def _status(self, pen: Pen) -> Text:
        run, tree = self._run, self._tree
        seconds = run.seconds if self._outcome and run is not None else pen.now
        mark = f"{pen.frame} " if self._outcome is None else f"{self._outcome}: "
        steps = 0 if run is None or self._is_single else run.steps
        text = f"{mark}{totals_text(steps, tree.usage.total_tokens, tree.cost, seconds)}"
        return Text(
            text, style="dim" if self._outcome in (None, "finished") else "yellow", no_wrap=True, overflow="ellipsis"
        )


class PlainView:
    """A view that prints one line for each complete response, call and branch of the run."""

    def __init__(
        self,
        name: str,
        model: str,
        *,
        is_single: bool = False,
        redact: Callable[[str], str] = str,
        print_line: Callable[[str], None] = write_line,
    ) -> None:
        self._tree = RunTree(redact)
        self._name, self._model = name, model
        self._is_single = is_single
        self._print_line = print_line

    def __enter__(self) -> PlainView:
        self._print_line(f"{one_line(self._name)} on {one_line(self._model)}")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_entry(self, entry: Entry) -> None:
        for row in self._tree.add(entry):
            where = f"[{one_line(row.run.label)}] " if row.run.label else ""
            line = self._line(row)
            if line:
                self._print_line(f"{where}{line}")

    def add_past(self, entries: Sequence[Entry], *, were_shown: bool) -> None:
        for entry in entries:
            self._tree.add(entry)

    def add_chunk(self, chunk: StreamChunk, run: Run | None) -> None:
        """Do nothing: this view prints only complete responses."""

    def end(self, outcome: str, run: Run | None) -> None:
        if run is None:
            self._print_line(outcome)
            return
        steps = 0 if self._is_single else run.steps
        tokens, cost = self._tree.usage.total_tokens, self._tree.cost
        self._print_line(f"{outcome}: {totals_text(steps, tokens, cost, run.seconds, ', ')}")

    def _line(self, row: Row) -> str:
        if row.was_rejected:
            return "answer: did not validate, requested again"
        if row.kind in ("model", "answer"):
            text = one_line(row.text)
            return f"{self._label(row)}{text}" if text else ""
        label = self._label(row.run.turn)
        if row.arguments is not None:
            return f"{label}{call_text(row.name, row.arguments)}{_result_text(row)}"
        title = row.name if row.child is None else row.child.title
        return f"{label}branch {one_line(title)}{_result_text(row)}"

    def _label(self, turn: Row | None) -> str:
        """Return the start of a line: the step number of a response, or `answer: ` if the response is not a step."""
        if turn is None:
            return ""
        if not turn.is_step:
            return "answer: "
        return "" if self._is_single and turn.run is self._tree.root else f"step {turn.step}: "


View = LiveView | PlainView
"""A view of a run in progress, which receives journal entries and the chunks of incomplete responses."""


def _result_text(row: Row) -> str:
    """Return the result and the duration of a call as text: ` -> [...] (0.21 s)`."""
    result = f" -> {one_line(row.result or '', 160)}" if row.error is None else f" failed: {one_line(row.error)}"
    return f"{result}{f' ({seconds_text(row.seconds)})' if row.seconds is not None else ''}"
