"""The views that follow a run while it goes on: a live tree on a terminal, plain lines for logs and pipes.

The live view is drawn several times a second, whatever the speed of entries and chunks. While the run goes on it is
never taller than the terminal, so that it can be drawn over without a trace; at the end it is shown whole.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text
from rich.tree import Tree

from acorn import Run, StreamChunk, listen, module
from acorn._inside import AgentDescription
from acorn.cli.drawing import Pen, draw
from acorn.cli.output import call_text, clean, one_line, seconds_text, totals_text, write_line
from acorn.cli.streams import Capture
from acorn.cli.view_tree import BranchRow, CallRow, RunTree, TaskRow, TurnRow
from acorn.journal import Entry
from acorn.models.resolve import model_name

_PER_SECOND = 10


class View(Protocol):
    """Where a run is seen while it goes on; it listens to what happens, and is fed what is still coming in."""

    def recall(self, entries: Sequence[Entry], *, were_shown: bool) -> None:
        """What happened before, in a run that goes on."""
        ...

    def feed(self, chunk: StreamChunk, run: Run | None) -> None: ...
    def end(self, how: str, run: Run | None) -> None: ...


@contextmanager
def view_of(
    agent: module[Any, Any], spec: AgentDescription, out: TextIO, hide: Callable[[str], str]
) -> Generator[View]:
    """The view of one run, as long as the run goes on."""
    name, model = type(agent).__name__, model_name(agent.model) or ""
    if not (sys.stderr.isatty() and Console(file=sys.stderr).is_interactive):
        with PlainView(name, model, is_single=spec.max_steps is None, hide=hide) as view, listen(view.hear):
            yield view
        return
    capture = Capture(sys.stderr.encoding)
    console = Console(file=capture.terminal)
    with LiveView(name, model, console, is_single=spec.max_steps is None, hides_answer=out.isatty(), hide=hide) as live:
        capture.begin(live.show_above)
        try:
            with listen(live.hear):
                yield live
        finally:
            capture.end()


class LiveView:
    """Draws a run on standard error."""

    def __init__(
        self,
        name: str,
        model: str,
        console: Console,
        *,
        is_single: bool = False,
        hides_answer: bool = False,
        hide: Callable[[str], str] = str,
    ) -> None:
        self._tree = RunTree(hide)
        self._hide = hide
        self._name, self._model = name, model
        self._is_single = is_single
        """Whether it is a single turn, which has no steps."""
        self._hides_answer = hides_answer
        """Whether the output will be printed below, on the same terminal."""
        self._lock = threading.Lock()  # rich draws in a thread of its own, and so may branches run
        self._began = time.monotonic()
        """The reading of the clock from which the run's seconds count."""
        self._run: Run | None = None
        self._end: str | None = None
        self._live = Live(self, console=console, refresh_per_second=_PER_SECOND, vertical_overflow="crop")

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._end = self._end or "interrupted"
        self._live.stop()

    def hear(self, entry: Entry) -> None:
        with self._lock:
            if self._tree.root.run_id is None:
                self._began = time.monotonic() - entry.at
            self._tree.hear(entry)

    def recall(self, entries: Sequence[Entry], *, were_shown: bool) -> None:
        with self._lock:
            for entry in entries:
                self._tree.hear(entry)
                self._began = time.monotonic() - entry.at
            if were_shown:
                self._tree.root.parts.clear()
                self._tree.root.was_interrupted = False

    def feed(self, chunk: StreamChunk, run: Run | None) -> None:
        with self._lock:
            self._run = run
            self._tree.grow(chunk)

    def end(self, how: str, run: Run | None) -> None:
        with self._lock:
            self._run, self._end = run, how

    def show_above(self, line: str) -> None:
        """A line of somebody else's, which must not get into the drawing."""
        self._live.console.print(Text(clean(line)), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            tree, status = self._draw(options)
        lines = console.render_lines(tree, options, pad=False)
        below = console.render_lines(status, options, pad=False)
        if self._end is None:
            room = max(1, options.size.height - len(below) - 1)
            lines = lines[-room:]
        for line in (*lines, *below):
            yield from line
            yield Segment.line()

    def _draw(self, options: ConsoleOptions) -> tuple[Tree, Text]:
        is_over = self._end is not None
        now, width = time.monotonic() - self._began, max(20, options.max_width - 8)
        pen = Pen(now, width, options.ascii_only, is_over, hide=self._hide)
        head = Text.assemble((one_line(self._name), "bold"), (f" on {one_line(self._model)}", "dim"))
        head.no_wrap, head.overflow = True, "ellipsis"
        tree = Tree(head, guide_style="dim")
        hides_answer = self._hides_answer and self._end == "finished"
        draw(self._tree.root, tree, pen, last=None if is_over else options.size.height, answers=not hides_answer)
        return tree, self._status(pen)

    def _status(self, pen: Pen) -> Text:
        run, tree = self._run, self._tree
        seconds = run.seconds if self._end and run is not None else pen.now
        mark = f"{pen.frame} " if self._end is None else f"{self._end}: "
        steps = 0 if run is None or self._is_single else run.steps
        text = f"{mark}{totals_text(steps, tree.tokens, tree.cost, seconds)}"
        return Text(
            text, style="dim" if self._end in (None, "finished") else "yellow", no_wrap=True, overflow="ellipsis"
        )


class PlainView:
    """Says what has happened when it has happened."""

    def __init__(
        self,
        name: str,
        model: str,
        *,
        is_single: bool = False,
        hide: Callable[[str], str] = str,
        say: Callable[[str], None] = write_line,
    ) -> None:
        self._tree = RunTree(hide)
        self._name, self._model = name, model
        self._is_single = is_single
        self._say = say

    def __enter__(self) -> PlainView:
        self._say(f"{one_line(self._name)} on {one_line(self._model)}")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hear(self, entry: Entry) -> None:
        for branch, complete in self._tree.hear(entry):
            where = f"[{one_line(branch.label)}] " if branch.label else ""
            for line in self._lines(branch, complete):
                self._say(f"{where}{line}")

    def recall(self, entries: Sequence[Entry], *, were_shown: bool) -> None:
        for entry in entries:
            self._tree.hear(entry)

    def feed(self, chunk: StreamChunk, run: Run | None) -> None:
        """What is still coming in is no line yet."""

    def end(self, how: str, run: Run | None) -> None:
        if run is None:
            self._say(how)
            return
        steps = 0 if self._is_single else run.steps
        self._say(f"{how}: {totals_text(steps, self._tree.tokens, self._tree.cost, run.seconds, ', ')}")

    def _lines(self, branch: BranchRow, complete: TurnRow | CallRow | BranchRow) -> list[str]:
        match complete:
            case TurnRow(was_refused=True):
                return ["answer: it did not validate; asked again"]
            case TurnRow():
                text = one_line(complete.text)
                return [f"{self._label(branch, complete)}{text}"] if text else []
            case CallRow():
                label = self._label(branch, branch.turn)
                return [f"{label}{call_text(complete.name, complete.arguments)}{_outcome(complete)}"]
            case BranchRow():
                return [f"{self._label(branch, branch.turn)}branch {one_line(complete.title)}{_outcome(complete)}"]

    def _label(self, branch: BranchRow, turn: TurnRow | None) -> str:
        """The step that a turn began, as the run counts them; an answer is none."""
        if turn is None:
            return ""
        if not turn.is_step:
            return "answer: "
        return "" if self._is_single and branch is self._tree.root else f"step {turn.step}: "


def _outcome(task: TaskRow) -> str:
    """` -> [...] (0.21 s)`."""
    came = f" -> {one_line(task.said or '', 160)}" if task.error is None else f" failed: {one_line(task.error)}"
    return f"{came}{f' ({seconds_text(task.took)})' if task.took is not None else ''}"
