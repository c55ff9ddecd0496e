"""The tree of a run drawn as short lines: what the model says, its tools and their times, branches, the answer.

The live view draws it again and again, without the input; `acorn show` draws it once and whole, step by
step. Every text becomes a rich `Text`, in which nothing is markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json
from rich.text import Text
from rich.tree import Tree

from acorn._inside import RESULT, to_compact_json
from acorn.cli.output import call_text, clean, ending, one_line, seconds_text
from acorn.cli.view_tree import BranchRow, CallRow, LineRow, TaskRow, TurnRow

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_LONGEST = 600
"""How much of one text is shown where everything is drawn; `acorn show --json` has everything."""
_SPEAKERS = ("system", "user", "assistant")
_WORDS: Mapping[str, tuple[str, str]] = {
    "assistant": ("", ""),
    "completion": ("completed ", "bold green"),
    "error": ("error: ", "red"),
    "human_input_requested": ("asked a person: ", "bold yellow"),
    "human_input_received": ("a person answered: ", "bold yellow"),
    "summary": ("earlier steps in short: ", "bold yellow"),
}
"""How a line begins; others begin with who said it."""


@dataclass(frozen=True)
class Pen:
    """How to draw at this moment on this terminal."""

    now: float
    """Seconds into the run."""
    width: int
    is_plain: bool = False
    """The terminal knows ASCII only."""
    is_over: bool = False
    is_whole: bool = False
    """Draw everything there is, step by step, and longer texts."""
    hide: Callable[[str], str] = str
    """For what is still coming in; the tree has hidden the keys in all the rest."""

    def mark(self, task: TaskRow) -> tuple[str, str]:
        if task.error is not None:
            return "!!" if self.is_plain else "✗", "red"
        if task.said is not None:
            return "ok" if self.is_plain else "✓", "green"
        if task.began is not None and not self.is_over:
            return self.frame, "cyan"
        return "-" if self.is_plain else "·", "dim"

    def time(self, task: TaskRow) -> str:
        took = task.took
        if not task.is_over and not self.is_over and task.began is not None and self.now - task.began >= 0.1:
            took = self.now - task.began
        return "" if took is None else f"  {seconds_text(took)}"

    def room(self, lines: int) -> int:
        """How long a text may be that gets so many lines."""
        return _LONGEST if self.is_whole else lines * self.width

    @property
    def frame(self) -> str:
        frames = _PLAIN_FRAMES if self.is_plain else _FRAMES
        return frames[int(self.now * 10) % len(frames)]

    @property
    def arrow(self) -> str:
        return "->" if self.is_plain else "→"

    @property
    def inside(self) -> Pen:
        return replace(self, width=max(20, self.width - 4))


def draw(branch: BranchRow, tree: Tree, pen: Pen, *, last: int | None = None, answers: bool = True) -> None:
    """Hang what a run did into a tree; `last` keeps to the newest so many turns."""
    parts = branch.parts
    if not pen.is_whole:
        parts = [part for part in parts if not isinstance(part, LineRow) or part.kind == "completion"]
    parent, step = tree, 0
    for part in parts if last is None else parts[-last:]:
        if pen.is_whole and part.step and part.step != step:
            step = part.step
            heading = f"step {step}" if branch.took_step(step) else "answer"
            parent = tree.add(Text(heading, style="bold cyan"))
        match part:
            case TurnRow():
                _draw_turn(part, branch, parent, pen, last, answers)
            case BranchRow():
                _draw_branch(part, parent, pen, last)
            case LineRow():
                if pen.is_whole:
                    parent.add(_noted(part))
                elif answers:
                    _hang(parent, answer_lines(branch.output, (), replace(pen, hide=str), is_growing=False))


def _draw_turn(turn: TurnRow, branch: BranchRow, tree: Tree, pen: Pen, last: int | None, answers: bool) -> None:
    is_newest = turn is branch.turn
    _hang(tree, _said(turn, pen))
    for call in turn.calls if turn.is_complete else turn.calls_so_far(pen.hide):
        if not call.is_answer:
            _draw_call(call, tree, pen, last)
        elif pen.is_whole and not _is_output(call, branch):
            answer = tree.add(Text.assemble(("answer ", "bold"), one_line(call.arguments, _LONGEST)))
            if call.was_refused:
                answer.add(Text.assemble(("did not validate: ", "yellow"), one_line(call.error or "", _LONGEST)))
            else:
                _draw_outcome(call, answer, pen, has_answer=True)
    if pen.is_whole:
        return
    if turn.was_refused:
        again = "; asked again" if not is_newest else ""
        tree.add(_flat(Text(f"the answer did not validate{again}", "yellow")))
    elif turn.answer is not None and is_newest and answers and not branch.is_finished:
        growing = not turn.is_complete
        _hang(tree, answer_lines(turn.answer.partial, turn.answer.completed, pen, is_growing=growing))


def _said(turn: TurnRow, pen: Pen) -> Iterator[Text]:
    if turn.is_complete:
        text = _message(turn.text) if pen.is_whole else one_line(turn.text, pen.room(3))
    else:
        text = ending(pen.hide("".join(turn.pieces)), pen.room(3))
        if not text and turn.reasoning and not turn.coming and turn.answer is None:
            thought = ending(pen.hide("".join(turn.reasoning)), pen.room(2))
            yield Text(thought, "dim italic", overflow="fold")
    if text:
        yield Text(text, overflow="fold")


def _draw_call(call: CallRow, tree: Tree, pen: Pen, last: int | None) -> None:
    mark, style = pen.mark(call)
    time = pen.time(call)
    room = _LONGEST if pen.is_whole else max(8, pen.width - len(time) - 2)
    text = call_text(call.name, call.arguments, room)
    hung = tree.add(_fitted(Text.assemble((f"{mark} ", style), (text, "bold"), (time, "dim")), pen))
    for branch in call.branches:
        if branch.is_called:
            draw(branch, hung, pen.inside, last=last)
        else:
            _draw_branch(branch, hung, pen.inside, last)
    has_answer = any(branch.is_called for branch in call.branches)  # its answer is the result
    _draw_outcome(call, hung, pen.inside, has_answer=has_answer)


def _draw_branch(branch: BranchRow, tree: Tree, pen: Pen, last: int | None) -> None:
    """A branch that the user's code began."""
    mark, style = pen.mark(branch) if branch.is_over or not pen.is_over else ("", "")
    name = f"branch {one_line(branch.title)}"
    head = Text.assemble((f"{mark} " if mark else "", style), (name, "bold"), (pen.time(branch), "dim"))
    hung = tree.add(_fitted(head, pen))
    draw(branch, hung, pen.inside, last=last)
    _draw_outcome(branch, hung, pen.inside, has_answer=True)


def _draw_outcome(task: TaskRow, tree: Tree, pen: Pen, *, has_answer: bool) -> None:
    shown = task.error if has_answer or task.error is not None else task.said
    if shown is not None:
        text = one_line(shown, pen.room(2))
        style = "dim" if task.error is None else "red"
        tree.add(_fitted(Text.assemble((f"{pen.arrow} ", "dim"), (text, style)), pen))


def _is_output(call: CallRow, branch: BranchRow) -> bool:
    """Whether the end of the run says the same as this answer."""
    if call.error is not None:
        return False
    try:
        answer = from_json(call.arguments)
    except ValueError:
        return False
    return answer in (branch.output, {RESULT: branch.output})  # a value that is no model travels in one field


def _noted(line: LineRow) -> Text:
    words, style = _WORDS.get(line.kind, (f"{one_line(line.kind)}: ", "dim"))
    text = _message(line.text) if line.kind in _SPEAKERS else one_line(line.text, _LONGEST)
    return Text.assemble((words, style), text)


def _message(text: str) -> str:
    """A text in its own lines."""
    return clean(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…").strip()


def answer_lines(answer: Any, completed: tuple[str, ...], pen: Pen, *, is_growing: bool) -> Iterator[Text]:
    """The output field by field; one that the model has not come to yet is not there."""
    if isinstance(answer, BaseModel):
        answer = {name: getattr(answer, name, None) for name in type(answer).model_fields}
    if not isinstance(answer, dict):
        yield _value("", answer, pen, is_growing)
        return
    width = min(24, max((len(str(name)) for name in answer), default=0))
    for name, value in answer.items():
        is_complete = name in completed or not is_growing
        if value is not None or is_complete:
            yield _value(f"{one_line(str(name), 24):<{width}}  ", value, pen, not is_complete)


def _value(name: str, value: Any, pen: Pen, is_growing: bool) -> Text:
    room = max(20, 2 * pen.width - len(name))
    text = pen.hide(value if isinstance(value, str) else to_compact_json(value))
    text = ending(text, room) if is_growing and isinstance(value, str) else one_line(text, room)
    cursor = ("_" if pen.is_plain else "▌") if is_growing else ""
    return Text("", overflow="fold").append(name, "cyan").append(text).append(cursor, "dim")


def _hang(tree: Tree, lines: Iterator[Text]) -> None:
    for line in lines:
        tree.add(line)


def _fitted(text: Text, pen: Pen) -> Text:
    return text if pen.is_whole else _flat(text)


def _flat(text: Text) -> Text:
    """On one line, however narrow the terminal."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
