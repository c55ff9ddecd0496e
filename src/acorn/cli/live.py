"""The live view: a run on a terminal while it happens.

Drawn from the story several times a second, whatever the speed of entries and chunks. While the run goes on it is
never taller than the terminal, so that it can be drawn over without a trace; at the end it is shown whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text
from rich.tree import Tree

from acorn import Run, StreamChunk
from acorn.cli.draw import Pen, draw
from acorn.cli.story import Story
from acorn.cli.text import clean, one_line, totals_text
from acorn.journal import Entry

_PER_SECOND = 10


class LiveView:
    """Draws a run on standard error."""

    def __init__(
        self,
        name: str,
        model: str,
        console: Console,
        *,
        hides_answer: bool = False,
        hide: Callable[[str], str] = str,
    ) -> None:
        self._story = Story(hide)
        self._hide = hide
        self._name, self._model = name, model
        self._hides_answer = hides_answer
        """Whether the output will be printed below, on the same terminal."""
        self._lock = threading.Lock()  # rich draws in a thread of its own, and so may branches run
        self._began = time.monotonic()
        """The reading of the clock from which the run's seconds count."""
        self._run: Run[Any] | None = None
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
            if self._story.root.run_id is None:
                self._began = time.monotonic() - entry.at
            self._story.hear(entry)

    def feed(self, chunk: StreamChunk[Any], run: Run[Any] | None) -> None:
        with self._lock:
            self._run = run
            self._story.grow(chunk)

    def end(self, how: str, run: Run[Any] | None) -> None:
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
        draw(self._story.root, tree, pen, last=None if is_over else options.size.height, answers=not hides_answer)
        return tree, self._status(pen)

    def _status(self, pen: Pen) -> Text:
        run, story = self._run, self._story
        seconds = run.seconds if self._end and run is not None else pen.now
        mark = f"{pen.frame} " if self._end is None else f"{self._end}: "
        text = f"{mark}{totals_text(run.steps if run is not None else 0, story.tokens, story.cost, seconds)}"
        return Text(
            text, style="dim" if self._end in (None, "finished") else "yellow", no_wrap=True, overflow="ellipsis"
        )
