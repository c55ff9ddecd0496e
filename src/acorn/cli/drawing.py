"""Drawing of a run as a tree of lines: texts of the model, tool calls with durations, branches, and the answer.

The live view draws the tree several times per second, without the input. `acorn show` draws the tree once, step by
step. Each text is a rich `Text`, so that rich does not interpret it as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import BaseModel
from pydantic_core import from_json
from rich.text import Text
from rich.tree import Tree

from acorn._inside import RESULT, to_compact_json
from acorn.cli.output import call_text, clean, end_of, one_line, seconds_text
from acorn.cli.view_tree import BranchRow, CallRow, LineRow, TaskRow, TurnRow
from acorn.types import is_json_object

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_FRAMES = "|/-\\"
_MAX_TEXT = 600
"""The maximum characters of a text in `acorn show`. `acorn show --json` prints the complete text."""
_ROLES = ("system", "user", "assistant")
_LINE_STARTS: Mapping[str, tuple[str, str]] = {
    "assistant": ("", ""),
    "completion": ("completed ", "bold green"),
    "error": ("error: ", "red"),
    "human_input_requested": ("asked for human input: ", "bold yellow"),
    "human_input_received": ("received human input: ", "bold yellow"),
    "summary": ("summary of earlier steps: ", "bold yellow"),
}
"""A dict that maps the kind of a line to its first words and their style. Other lines start with their kind."""


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

    def mark(self, task: TaskRow) -> tuple[str, str]:
        if task.error is not None:
            return "!!" if self.is_ascii else "✗", "red"
        if task.result is not None:
            return "ok" if self.is_ascii else "✓", "green"
        if task.started is not None and not self.is_over:
            return self.frame, "cyan"
        return "-" if self.is_ascii else "·", "dim"

    def time(self, task: TaskRow) -> str:
        seconds = task.seconds
        if not task.is_over and not self.is_over and task.started is not None and self.now - task.started >= 0.1:
            seconds = self.now - task.started
        return "" if seconds is None else f"  {seconds_text(seconds)}"

    def limit(self, lines: int) -> int:
        """Return the maximum number of characters that a text on `lines` lines may have."""
        return _MAX_TEXT if self.is_full else lines * self.width

    @property
    def frame(self) -> str:
        frames = _ASCII_FRAMES if self.is_ascii else _FRAMES
        return frames[int(self.now * 10) % len(frames)]

    @property
    def arrow(self) -> str:
        return "->" if self.is_ascii else "→"

    @property
    def indented(self) -> Pen:
        return replace(self, width=max(20, self.width - 4))


def draw_run(branch: BranchRow, tree: Tree, pen: Pen, *, last: int | None = None, answers: bool = True) -> None:
    """Add the rows of a run to a tree of the library rich.

    Only the last `last` rows are added. `answers` is false if the answer is printed elsewhere.
    """
    rows = branch.rows
    if not pen.is_full:
        rows = [row for row in rows if not isinstance(row, LineRow) or row.kind == "completion"]
    parent, step = tree, 0
    for row in rows if last is None else rows[-last:]:
        if pen.is_full and row.step and row.step != step:
            step = row.step
            heading = f"step {step}" if branch.has_step(step) else "answer"
            parent = tree.add(Text(heading, style="bold cyan"))
        match row:
            case TurnRow():
                _draw_turn(row, branch, parent, pen, last, answers)
            case BranchRow():
                _draw_branch(row, parent, pen, last)
            case LineRow():
                if pen.is_full:
                    parent.add(_draw_line(row))
                elif answers:
                    _add_lines(parent, answer_lines(branch.output, (), replace(pen, redact=str), is_growing=False))


def _draw_turn(turn: TurnRow, branch: BranchRow, tree: Tree, pen: Pen, last: int | None, answers: bool) -> None:
    is_newest = turn is branch.last_turn
    _add_lines(tree, _text_lines(turn, pen))
    for call in turn.calls if turn.is_complete else turn.calls_so_far(pen.redact):
        if not call.is_answer:
            _draw_call(call, tree, pen, last)
        elif pen.is_full and not _is_output(call, branch):
            answer = tree.add(Text.assemble(("answer ", "bold"), one_line(call.arguments, _MAX_TEXT)))
            if call.was_rejected:
                answer.add(Text.assemble(("did not validate: ", "yellow"), one_line(call.error or "", _MAX_TEXT)))
            else:
                _draw_result(call, answer, pen, has_answer=True)
    if pen.is_full:
        return
    if turn.was_rejected:
        retry = ", requested again" if not is_newest else ""
        tree.add(_prevent_wrapping(Text(f"the answer did not validate{retry}", "yellow")))
    elif turn.answer_chunk is not None and is_newest and answers and not branch.is_finished:
        chunk, is_growing = turn.answer_chunk, not turn.is_complete
        _add_lines(tree, answer_lines(chunk.partial, chunk.completed, pen, is_growing=is_growing))


def _text_lines(turn: TurnRow, pen: Pen) -> Iterator[Text]:
    if turn.is_complete:
        text = _multiline(turn.text) if pen.is_full else one_line(turn.text, pen.limit(3))
    else:
        text = end_of(pen.redact("".join(turn.text_chunks)), pen.limit(3))
        if not text and turn.reasoning_chunks and not turn.call_chunks and turn.answer_chunk is None:
            reasoning = end_of(pen.redact("".join(turn.reasoning_chunks)), pen.limit(2))
            yield Text(reasoning, "dim italic", overflow="fold")
    if text:
        yield Text(text, overflow="fold")


def _draw_call(call: CallRow, tree: Tree, pen: Pen, last: int | None) -> None:
    mark, style = pen.mark(call)
    time = pen.time(call)
    limit = _MAX_TEXT if pen.is_full else max(8, pen.width - len(time) - 2)
    text = call_text(call.name, call.arguments, limit)
    node = tree.add(_cut_unless_full(Text.assemble((f"{mark} ", style), (text, "bold"), (time, "dim")), pen))
    for branch in call.branches:
        if branch.is_call:
            draw_run(branch, node, pen.indented, last=last)
        else:
            _draw_branch(branch, node, pen.indented, last)
    has_answer = any(
        branch.is_call for branch in call.branches
    )  # The result repeats the answer, which `draw_run` has drawn.
    _draw_result(call, node, pen.indented, has_answer=has_answer)


def _draw_branch(branch: BranchRow, tree: Tree, pen: Pen, last: int | None) -> None:
    """Draw a branch that the user's code started. A branch that the model started is drawn as a tool call."""
    mark, style = pen.mark(branch) if branch.is_over or not pen.is_over else ("", "")
    name = f"branch {one_line(branch.title)}"
    heading = Text.assemble((f"{mark} " if mark else "", style), (name, "bold"), (pen.time(branch), "dim"))
    node = tree.add(_cut_unless_full(heading, pen))
    draw_run(branch, node, pen.indented, last=last)
    _draw_result(branch, node, pen.indented, has_answer=True)


def _draw_result(task: TaskRow, tree: Tree, pen: Pen, *, has_answer: bool) -> None:
    result = task.error if has_answer or task.error is not None else task.result
    if result is not None:
        text = one_line(result, pen.limit(2))
        style = "dim" if task.error is None else "red"
        tree.add(_cut_unless_full(Text.assemble((f"{pen.arrow} ", "dim"), (text, style)), pen))


def _is_output(call: CallRow, branch: BranchRow) -> bool:
    """Return True if a call submitted the answer that became the output of the run.

    Such an answer is drawn only once, at the end of the run.
    """
    if call.error is not None:
        return False
    try:
        answer = from_json(call.arguments)
    except ValueError:
        return False
    return answer in (
        branch.output,
        {RESULT: branch.output},
    )  # The model sends a value that is not an object in the field `result`.


def _draw_line(line: LineRow) -> Text:
    start, style = _LINE_STARTS.get(line.kind, (f"{one_line(line.kind)}: ", "dim"))
    text = _multiline(line.text) if line.kind in _ROLES else one_line(line.text, _MAX_TEXT)
    return Text.assemble((start, style), text)


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
    cursor = ("_" if pen.is_ascii else "▌") if is_growing else ""
    return Text("", overflow="fold").append(name, "cyan").append(text).append(cursor, "dim")


def _add_lines(tree: Tree, lines: Iterator[Text]) -> None:
    for line in lines:
        tree.add(line)


def _cut_unless_full(text: Text, pen: Pen) -> Text:
    return text if pen.is_full else _prevent_wrapping(text)


def _prevent_wrapping(text: Text) -> Text:
    """Make rich cut a text at the width of the terminal instead of wrapping the text."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
