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

from acorn import StreamChunk
from acorn._inside import FINISH, RESULT, message_kind, text_of, to_compact_json
from acorn._inside.run_tree import GrowingResponse, Row, TreeRun
from acorn.cli.output import call_text, clean, end_of, one_line, seconds_text
from acorn.journal import MessagesAdded
from acorn.types import is_json_object

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_FRAMES = "|/-\\"
_MAX_TEXT = 600
"""The maximum characters of a text in `acorn show`. `acorn show --json` prints the complete text."""
_ROLES = ("system", "user", "assistant")
_LIVE_KINDS = ("model", "answer", "branch")
"""The kinds of the rows that the live view draws."""
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

    def mark(self, task: Row) -> tuple[str, str]:
        if task.error is not None:
            return "!!" if self.is_ascii else "✗", "red"
        if task.result is not None:
            return "ok" if self.is_ascii else "✓", "green"
        if task.start is not None and not self.is_over:
            return self.frame, "cyan"
        return self.pending, "dim"

    def time(self, task: Row) -> str:
        seconds = task.seconds
        if not task.is_over and not self.is_over and task.start is not None and self.now - task.start >= 0.1:
            seconds = self.now - task.start
        return "" if seconds is None else f"  {seconds_text(seconds)}"

    def limit(self, lines: int) -> int:
        """Return the maximum number of characters that a text on `lines` lines may have."""
        return _MAX_TEXT if self.is_full else lines * self.width

    @property
    def frame(self) -> str:
        frames = _ASCII_FRAMES if self.is_ascii else _FRAMES
        return frames[int(self.now * 10) % len(frames)]

    @property
    def pending(self) -> str:
        return "-" if self.is_ascii else "·"

    @property
    def arrow(self) -> str:
        return "->" if self.is_ascii else "→"

    @property
    def indented(self) -> Pen:
        return replace(self, width=max(20, self.width - 4))


def draw_run(run: TreeRun, tree: Tree, pen: Pen, *, last: int | None = None, answers: bool = True) -> None:
    """Add the rows of a run to a tree of the library rich.

    Only the last `last` rows are added. `answers` is false if the answer is printed elsewhere.
    """
    rows = run.rows if pen.is_full else [row for row in run.rows if row.kind in _LIVE_KINDS]
    parent, step = tree, 0
    for row in rows if last is None else rows[-last:]:
        if pen.is_full and row.step not in (0, step) and row.kind != "edit":
            step = row.step
            parent = tree.add(_heading(run, step))
        match row.kind:
            case "model" | "answer":
                _draw_turn(row, parent, pen, last, answers)
            case "branch":
                _draw_branch(row, parent, pen, last)
            case _:
                _add_lines(parent, _message_lines(row))
    if run.end is None:
        return
    if pen.is_full:
        parent = tree.add(_heading(run, run.end.step)) if run.end.step not in (0, step) else parent
        parent.add(_line("error" if run.end.form == "error" else "completion", run.end.content))
    elif answers and run.end.form != "error":
        _add_lines(tree, answer_lines(run.output, (), replace(pen, redact=str), is_growing=False))


def _heading(run: TreeRun, step: int) -> Text:
    return Text(f"step {step}" if _has_step(run, step) else "answer", style="bold cyan")


def _has_step(run: TreeRun, number: int) -> bool:
    """Return True if a number belongs to a step of the run.

    Return False if it belongs to the model response that contains the answer.
    """
    if any(row.step > number for row in run.rows) or (run.end is not None and run.end.step > number):
        return True
    rows = [row for row in run.rows if row.step == number]
    calls = [call for row in rows for call in row.calls if call.name != FINISH]
    did_something = any(message_kind(call.error) != "skipped" for call in calls) or any(
        row.kind == "branch" or message_kind(row.text) == "reminder" for row in rows
    )
    has_end = run.end is not None and run.end.step == number
    return did_something or not (
        has_end or any(row.arguments is not None or row.kind == "error" or row is run.interruption for row in rows)
    )


def _draw_turn(turn: Row, tree: Tree, pen: Pen, last: int | None, answers: bool) -> None:
    is_newest = turn is turn.run.turn
    if not turn.is_complete and not is_newest:
        return  # The request was interrupted and was sent again.
    growing = turn.growing or GrowingResponse()
    _add_lines(tree, _text_lines(turn, growing, pen))
    for chunk in growing.calls.values():
        _draw_growing_call(chunk, tree, pen)
    for call in turn.calls:
        if call.name != FINISH:
            _draw_call(call, tree, pen, last)
        elif pen.is_full:
            _draw_answer(call, tree, pen)
    if pen.is_full:
        if turn.arguments is not None and not _is_output(turn):
            _draw_answer(turn, tree, pen)
        for row in (row for call in turn.calls for row in call.calls if row.kind == "person"):
            _add_lines(tree, _message_lines(row))
    elif turn.was_rejected:
        retry = ", requested again" if not is_newest else ""
        tree.add(_prevent_wrapping(Text(f"the answer did not validate{retry}", "yellow")))
    elif growing.answer is not None and is_newest and answers and turn.run.end is None:
        chunk, is_growing = growing.answer, not turn.is_complete
        _add_lines(tree, answer_lines(chunk.partial, chunk.completed, pen, is_growing=is_growing))


def _text_lines(turn: Row, growing: GrowingResponse, pen: Pen) -> Iterator[Text]:
    if turn.is_complete:
        text = _multiline(turn.text) if pen.is_full else one_line(turn.text, pen.limit(3))
    else:
        text = end_of(pen.redact("".join(growing.texts)), pen.limit(3))
        if not text and growing.reasoning and not growing.calls and growing.answer is None:
            reasoning = end_of(pen.redact("".join(growing.reasoning)), pen.limit(2))
            yield Text(reasoning, "dim italic", overflow="fold")
    if text:
        yield Text(text, overflow="fold")


def _draw_growing_call(chunk: StreamChunk, tree: Tree, pen: Pen) -> None:
    call = chunk.tool_call
    if call is not None and call["name"] != FINISH:
        text = call_text(call["name"], pen.redact(call["arguments"]), max(8, pen.width - 2))
        tree.add(_cut_unless_full(Text.assemble((f"{pen.pending} ", "dim"), (text, "bold")), pen))


def _draw_call(call: Row, tree: Tree, pen: Pen, last: int | None) -> None:
    mark, style = pen.mark(call)
    time = pen.time(call)
    limit = _MAX_TEXT if pen.is_full else max(8, pen.width - len(time) - 2)
    text = call_text(call.name, call.arguments or "", limit)
    node = tree.add(_cut_unless_full(Text.assemble((f"{mark} ", style), (text, "bold"), (time, "dim")), pen))
    if call.child is not None:
        draw_run(call.child, node, pen.indented, last=last)
    for row in call.calls:
        if row.kind == "branch":
            _draw_branch(row, node, pen.indented, last)
    # The result of a branch repeats the answer, which `draw_run` has drawn.
    _draw_result(call, node, pen.indented, has_answer=call.child is not None)


def _draw_branch(branch: Row, tree: Tree, pen: Pen, last: int | None) -> None:
    """Draw a branch that the user's code started. A branch that the model started is drawn as a tool call."""
    mark, style = pen.mark(branch) if branch.is_over or not pen.is_over else ("", "")
    name = f"branch {one_line(branch.name if branch.child is None else branch.child.title)}"
    heading = Text.assemble((f"{mark} " if mark else "", style), (name, "bold"), (pen.time(branch), "dim"))
    node = tree.add(_cut_unless_full(heading, pen))
    if branch.child is not None:
        draw_run(branch.child, node, pen.indented, last=last)
    _draw_result(branch, node, pen.indented, has_answer=True)


def _draw_result(task: Row, tree: Tree, pen: Pen, *, has_answer: bool) -> None:
    result = task.error if has_answer or task.error is not None else task.result
    if result is not None:
        text = one_line(result, pen.limit(2))
        style = "dim" if task.error is None else "red"
        tree.add(_cut_unless_full(Text.assemble((f"{pen.arrow} ", "dim"), (text, style)), pen))


def _draw_answer(call: Row, tree: Tree, pen: Pen) -> None:
    answer = tree.add(Text.assemble(("answer ", "bold"), one_line(call.arguments or "", _MAX_TEXT)))
    if call.was_rejected:
        answer.add(Text.assemble(("did not validate: ", "yellow"), one_line(call.error or "", _MAX_TEXT)))
    else:
        _draw_result(call, answer, pen, has_answer=True)


def _is_output(turn: Row) -> bool:
    """Return True if a turn submitted the answer that became the output of the run.

    Such an answer is drawn only once, at the end of the run.
    """
    if turn.error is not None:
        return False
    try:
        answer = from_json(turn.arguments or "")
    except ValueError:
        return False
    # The model sends a value that is not an object in the field `result`.
    return answer in (turn.run.output, {RESULT: turn.run.output})


def _message_lines(row: Row) -> Iterator[Text]:
    """Yield the lines of a row that is not a model turn, a call or a branch."""
    match row.kind:
        case "input" | "note":
            for entry in row.entries:
                if isinstance(entry, MessagesAdded):
                    for message in entry.messages[entry.inherited :]:
                        yield _line(str(message.get("role")), text_of(message.get("content")))
        case "person":
            yield _line("human_input_requested", row.text)
            if row.result is not None:
                yield _line("human_input_received", row.result)
        case "summary" if row.text:
            yield _line("summary", row.text)
        case "error":
            yield _line("error", row.text)
        case "stopped" if row is row.run.interruption:
            yield _line("error", row.text)
        case _:
            return


def _line(kind: str, text: str) -> Text:
    start, style = _LINE_STARTS.get(kind, (f"{one_line(kind)}: ", "dim"))
    return Text.assemble((start, style), _multiline(text) if kind in _ROLES else one_line(text, _MAX_TEXT))


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
