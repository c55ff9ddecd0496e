"""The views of a run: a live tree on a terminal, plain lines in logs and pipes, and the drawing of `acorn show`.

The live view is drawn ten times per second, at any rate of entries and chunks, without the input. During the run, the
drawing is never taller than the terminal, so that the next drawing replaces it completely. At the end, the complete
tree is drawn. `acorn show` draws the tree once, step by step.

A drawing is a tree of lines: texts of the model, tool calls with durations, branches, and the answer. Each text is a
rich `Text`, so that rich does not interpret it as markup.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TextIO

from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text
from rich.tree import Tree

from acorn import StreamChunk, listen
from acorn._inside import FINISH, text_of, to_compact_json
from acorn._inside.run_tree import GrowingResponse, Row, RunTree, TreeRun, tree_of
from acorn.cli.output import capture_lines, open_terminal, write_line
from acorn.cli.targets import Agent
from acorn.cli.text import call_text, clean, end_of, one_line, seconds_text, totals_text
from acorn.journal import Entry, MessagesAdded
from acorn.models.resolve import model_name
from acorn.types import is_json_object

_PER_SECOND = 10


@contextmanager
def open_view(agent: Agent, out: TextIO, redact: Callable[[str], str], past: Sequence[Entry]) -> Generator[View]:
    """Open the view that fits standard error, and show the run until the `with` block ends.

    `out` is the stream for the result of the command. `redact` removes secrets from texts. `past` are the earlier
    entries of a resumed run.
    """
    tree = tree_of(past, redact)
    name, model = type(agent).__name__, model_name(agent.model) or ""
    if not (sys.stderr.isatty() and Console(file=sys.stderr).is_interactive):
        plain = PlainView(name, model, tree)
        with listen(plain.add_entry):
            yield plain
        return
    terminal = open_terminal(sys.stderr.encoding)
    view = LiveView(name, model, Console(file=terminal), tree, hides_answer=out.isatty())
    with view.live, capture_lines(terminal, view.show_above), listen(view.add_entry):
        yield view


class LiveView:
    """A view that draws a run as a tree on the terminal and updates the drawing."""

    def __init__(self, name: str, model: str, console: Console, tree: RunTree, *, hides_answer: bool) -> None:
        self._tree = tree
        self._name, self._model = name, model
        self._hides_answer = hides_answer
        """Whether to omit the final answer, because the command prints it below the view."""
        self._lock = threading.Lock()  # rich draws in another thread, and branches may run in threads.
        self._started = time.monotonic() - (tree.entries[-1].at if tree.entries else 0.0)
        """The time of the monotonic clock at the start of the run."""
        self._outcome: str | None = None
        self.live = Live(self, console=console, refresh_per_second=_PER_SECOND, vertical_overflow="crop")

    def add_entry(self, entry: Entry) -> None:
        with self._lock:
            if not self._tree.runs:
                self._started = time.monotonic() - entry.at
            self._tree.add(entry)

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
        pen = Pen(now, width, options.ascii_only, is_over, redact=self._tree.redact)
        heading = pen.line((one_line(self._name), "bold"), (f" on {one_line(self._model)}", "dim"))
        tree = Tree(heading, guide_style="dim")
        answers = not (self._hides_answer and outcome == "finished")
        draw_run(self._tree.root, tree, pen, last=None if is_over else options.size.height, answers=answers)
        start = f"{pen.frame} " if outcome is None else f"{outcome}: "
        totals = _totals(self._tree, self._tree.seconds if is_over else now)
        return tree, pen.line((f"{start}{totals}", "dim" if outcome in (None, "finished") else "yellow"))


class PlainView:
    """A view that prints one line for each complete response, call and branch of the run."""

    def __init__(self, name: str, model: str, tree: RunTree, print_line: Callable[[str], None] = write_line) -> None:
        self._tree = tree
        self._print_line = print_line
        print_line(f"{one_line(name)} on {one_line(model)}")

    def add_entry(self, entry: Entry) -> None:
        for row in self._tree.add(entry):
            if line := _plain_line(row):
                self._print_line(f"[{one_line(row.run.label)}] {line}" if row.run.label else line)

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


# Drawing

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_SYMBOLS = {"✓": "ok", "✗": "!!", "·": "-", "→": "->", "▌": "_"} | dict(zip(_FRAMES, "|/-\\" * 3, strict=False))
_MAX_TEXT = 600
"""The maximum characters of a text in `acorn show`. `acorn show --json` prints the complete text."""
_LIVE_KINDS = ("model", "answer", "branch")
"""The kinds of the rows that the live view draws."""


@dataclass(frozen=True)
class Pen:
    """The settings for one drawing of the tree: the time, the size of the terminal and the level of detail."""

    now: float
    """Seconds since the start of the run."""
    width: int
    is_ascii: bool = False
    """Whether the terminal can print only ASCII characters."""
    is_over: bool = False
    is_full: bool = False
    """Whether to draw all rows, grouped by step and with longer texts, as `acorn show --full` does."""
    redact: Callable[[str], str] = str
    """Removes secrets from the text of an incomplete response. All other texts in the tree are already redacted."""

    def symbol(self, symbol: str) -> str:
        return _ASCII_SYMBOLS[symbol] if self.is_ascii else symbol

    @property
    def frame(self) -> str:
        return self.symbol(_FRAMES[int(self.now * 10) % len(_FRAMES)])

    def mark(self, task: Row) -> tuple[str, str]:
        if task.is_over:
            return (self.symbol("✓"), "green") if task.error is None else (self.symbol("✗"), "red")
        if task.start is None or self.is_over:
            return self.symbol("·"), "dim"
        return self.frame, "cyan"

    def time(self, task: Row) -> str:
        seconds = task.seconds
        if not task.is_over and not self.is_over and task.start is not None and self.now - task.start >= 0.1:
            seconds = self.now - task.start
        return "" if seconds is None else f"  {seconds_text(seconds)}"

    def limit(self, lines: int) -> int:
        """Return the maximum number of characters that a text on `lines` lines may have."""
        return _MAX_TEXT if self.is_full else lines * self.width

    def line(self, *parts: str | tuple[str, str]) -> Text:
        """Return one line of the tree, which is cut at the width of the terminal unless the drawing is full."""
        line = Text.assemble(*parts)
        if not self.is_full:
            line.no_wrap, line.overflow = True, "ellipsis"
        return line


def draw_run(run: TreeRun, tree: Tree, pen: Pen, *, last: int | None = None, answers: bool = True) -> None:
    """Add the rows of a run to a tree of the library rich.

    Only the last `last` rows are added. `answers` is false if the answer is printed elsewhere.
    """
    rows = [row for row in run.rows if (row.kind != "edit" if pen.is_full else row.kind in _LIVE_KINDS)]
    parent, step = tree, 0
    for row in rows if last is None else rows[-last:]:
        if pen.is_full and row.step not in (0, step):
            step = row.step
            parent = tree.add(_heading(run, step))
        match row.kind:
            case "model" | "answer":
                _draw_turn(row, parent, pen, last, answers)
            case "branch":
                _draw_task(row, parent, pen, last)
            case _:
                _add_lines(parent, _message_lines(row))
    if run.end is None:
        return
    if pen.is_full:
        parent = tree.add(_heading(run, run.end.step)) if run.end.step not in (0, step) else parent
        start = ("error: ", "red") if run.end.form == "error" else ("completed ", "bold green")
        parent.add(_line(*start, run.end.content))
    elif answers and run.end.form != "error":
        _add_lines(tree, answer_lines(run.output, (), pen, is_growing=False))


def _heading(run: TreeRun, step: int) -> Text:
    """Return the heading of the rows with a step number, which is not a step if it contains only the answer."""
    turns = [row for row in run.rows if row.step == step and row.kind in ("model", "answer")]
    has_step = any(turn.is_step or not turn.is_complete for turn in turns)
    return Text(f"step {step}" if has_step else "answer", style="bold cyan")


def _draw_turn(turn: Row, tree: Tree, pen: Pen, last: int | None, answers: bool) -> None:
    is_newest = turn is turn.run.turn
    if not turn.is_complete and not is_newest:
        return  # The request was interrupted and was sent again.
    growing = turn.growing or GrowingResponse()
    if text := _turn_text(turn, growing, pen):
        tree.add(text)
    for chunk in growing.calls.values():
        new_call = chunk.tool_call
        if new_call is not None and new_call["name"] != FINISH:
            title = call_text(new_call["name"], pen.redact(new_call["arguments"]), max(8, pen.width - 2))
            tree.add(pen.line((f"{pen.symbol('·')} ", "dim"), (title, "bold")))
    for call in turn.calls:
        if call.name != FINISH:
            _draw_task(call, tree, pen, last)
    if pen.is_full:
        if turn.arguments is not None and turn.error is not None:
            answer = tree.add(_line("answer ", "bold", turn.arguments))
            answer.add(_line("did not validate: " if turn.was_rejected else "error: ", "yellow", turn.error))
        for row in (row for call in turn.calls for row in call.calls if row.kind == "person"):
            _add_lines(tree, _message_lines(row))
    elif turn.was_rejected:
        retry = "" if is_newest else ", requested again"
        tree.add(pen.line((f"the answer did not validate{retry}", "yellow")))
    elif growing.answer is not None and is_newest and answers and turn.run.end is None:
        chunk, is_growing = growing.answer, not turn.is_complete
        _add_lines(tree, answer_lines(chunk.partial, chunk.completed, pen, is_growing=is_growing))


def _turn_text(turn: Row, growing: GrowingResponse, pen: Pen) -> Text:
    if turn.is_complete:
        return Text(_multiline(turn.text) if pen.is_full else one_line(turn.text, pen.limit(3)))
    if growing.texts or growing.calls or growing.answer is not None:
        return Text(end_of(pen.redact("".join(growing.texts)), pen.limit(3)))
    return Text(end_of(pen.redact("".join(growing.reasoning)), pen.limit(2)), "dim italic")


def _draw_task(task: Row, tree: Tree, pen: Pen, last: int | None) -> None:
    """Draw a tool call or a branch. A branch that the model started is drawn as a tool call."""
    mark, style = pen.mark(task)
    time, inner = pen.time(task), replace(pen, width=max(20, pen.width - 4))
    title = task_title(task, _MAX_TEXT if pen.is_full else max(8, pen.width - len(time) - 2))
    node = tree.add(pen.line((f"{mark} ", style), (title, "bold"), (time, "dim")))
    if task.child is not None:
        draw_run(task.child, node, inner, last=last)
    for row in task.calls:
        if row.kind == "branch":
            _draw_task(row, node, inner, last)
    # The result of a branch repeats the answer, which `draw_run` has drawn.
    result = task.result if task.child is None and task.error is None else task.error
    if result is not None:
        text = one_line(result, inner.limit(2))
        node.add(pen.line((f"{pen.symbol('→')} ", "dim"), (text, "dim" if task.error is None else "red")))
    if pen.is_full and task.traceback is not None:
        node.add(Text(_multiline(task.traceback), "dim"))


def task_title(task: Row, limit: int) -> str:
    """Return the name and arguments of a tool call, or the name of a branch that the user's code started."""
    if task.arguments is None:
        return f"branch {one_line(task.name if task.child is None else task.child.title)}"
    return call_text(task.name, task.arguments, limit)


def _message_lines(row: Row) -> Iterator[Text]:
    """Yield the lines of a row that is not a model turn, a call or a branch."""
    match row.kind:
        case "input" | "note":
            for entry in row.entries:
                if isinstance(entry, MessagesAdded):
                    for message in entry.messages[entry.inherited :]:
                        role = one_line(str(message.get("role")))
                        yield _line(f"{role}: ", "dim", text_of(message.get("content")))
        case "person":
            yield _line("asked for human input: ", "bold yellow", row.text)
            if row.result is not None:
                yield _line("received human input: ", "bold yellow", row.result)
        case "summary" if row.text:
            yield _line("summary of earlier steps: ", "bold yellow", row.text)
        case "error" | "stopped" if row.kind == "error" or row is row.run.interruption:
            yield _line("error: ", "red", row.text)
        case _:
            return


def _line(start: str, style: str, text: str) -> Text:
    return Text.assemble((start, style), _multiline(text))


def _multiline(text: str) -> str:
    """Return a text of several lines, cut to the maximum length."""
    return clean(text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…").strip()


def answer_lines(answer: object, completed: tuple[str, ...], pen: Pen, *, is_growing: bool) -> Iterator[Text]:
    """Yield the lines that display an answer, with one line for each field that has a value.

    `completed` contains the names of the fields that are complete. `is_growing` is true while the model still writes
    the answer.
    """
    if isinstance(answer, BaseModel):
        answer = {name: getattr(answer, name, None) for name in type(answer).model_fields}
    if not is_json_object(answer):
        yield _value_line("", answer, pen, is_growing)
        return
    width = min(24, max((len(str(name)) for name in answer), default=0))
    for name, value in answer.items():
        is_complete = name in completed or not is_growing
        if value is not None or is_complete:
            yield _value_line(f"{one_line(str(name), 24):<{width}}  ", value, pen, not is_complete)


def _value_line(name: str, value: object, pen: Pen, is_growing: bool) -> Text:
    limit = max(20, 2 * pen.width - len(name))
    text = pen.redact(value if isinstance(value, str) else to_compact_json(value))
    text = end_of(text, limit) if is_growing and isinstance(value, str) else one_line(text, limit)
    cursor = pen.symbol("▌") if is_growing else ""
    return Text.assemble((name, "cyan"), text, (cursor, "dim"))


def _add_lines(tree: Tree, lines: Iterator[Text]) -> None:
    for line in lines:
        tree.add(line)
