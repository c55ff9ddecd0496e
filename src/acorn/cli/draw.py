"""A story as a tree of short lines: what the model says, its tools and their times, branches, the answer.

`live` draws it again and again, `acorn show` once. Every text becomes a rich `Text`, in which nothing is
markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from rich.text import Text
from rich.tree import Tree

from acorn.cli.story import Branch, Call, Turn
from acorn.cli.text import call_text, ending, one_line, seconds_text, value_text

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"


@dataclass(frozen=True)
class Pen:
    """How to draw at this moment on this terminal."""

    now: float
    width: int
    is_plain: bool = False
    """The terminal knows ASCII only."""
    is_over: bool = False

    def mark(self, call: Call) -> tuple[str, str]:
        if call.result is not None:
            fine = call.result.error is None
            return (("ok" if fine else "!!") if self.is_plain else ("✓" if fine else "✗")), "green" if fine else "red"
        if call.began is None or call.ended is not None or self.is_over:
            return "-" if self.is_plain else "·", "dim"
        return self.frame, "cyan"

    @property
    def frame(self) -> str:
        frames = _PLAIN_FRAMES if self.is_plain else _FRAMES
        return frames[int(self.now * 10) % len(frames)]

    @property
    def arrow(self) -> str:
        return "->" if self.is_plain else "→"


def draw(branch: Branch, tree: Tree, pen: Pen, *, last: int | None = None, answers: bool = True) -> None:
    """Hang the turns of a branch into a tree; `last` keeps to the newest so many."""
    turns = branch.turns if last is None else branch.turns[-last:]
    for turn in turns:
        is_newest = turn is branch.turns[-1]
        for line in _said(turn, pen, is_newest):
            tree.add(line)
        for call in turn.calls:
            _draw_call(call, tree, pen, last)
        if turn.was_refused:
            again = "; asked again" if not is_newest else ""
            tree.add(_line(f"the answer did not validate{again}", "yellow"))
        elif turn.answer is not None and answers:
            for line in answer_lines(turn.answer.partial, turn.answer.completed, pen, is_growing=not turn.done):
                tree.add(line)


def _said(turn: Turn, pen: Pen, is_newest: bool) -> Iterator[Text]:
    room = 3 * pen.width
    is_growing = is_newest and not turn.done
    text = ending(turn.text, room) if is_growing else one_line(turn.text, room)
    if is_growing and not text and turn.reasoning and not turn.calls and turn.answer is None:
        yield _line(ending(turn.thought, 2 * pen.width), "dim italic", wraps=True)
    if text:
        yield _line(text, "", wraps=True)


def _draw_call(call: Call, tree: Tree, pen: Pen, last: int | None) -> None:
    mark, style = pen.mark(call)
    took = call.seconds(pen.now) if call.result is not None or not (call.ended or pen.is_over) else None
    time = f"  {seconds_text(took)}" if took is not None and (took >= 0.1 or call.ended is not None) else ""
    room = max(8, pen.width - len(time) - 2)
    label = Text.assemble((f"{mark} ", style), (call_text(call.name, call.arguments, room), "bold"), (time, "dim"))
    hung = tree.add(_flat(label))
    pen = replace(pen, width=max(20, pen.width - 4))
    for branch in call.branches:
        draw(branch, hung, pen, last=last)
    is_told = any(b.turns and b.turns[-1].answer is not None for b in call.branches)
    if call.result is not None and (call.result.error or not is_told):
        failed = call.result.error
        text = one_line(failed, 2 * pen.width) if failed else value_text(call.result.output, 2 * pen.width)
        hung.add(_flat(Text.assemble((f"{pen.arrow} ", "dim"), (text, "red" if failed else "dim"))))


def answer_lines(partial: Any, completed: tuple[str, ...], pen: Pen, *, is_growing: bool) -> Iterator[Text]:
    """The output field by field; one that the model has not come to yet is not there."""
    if not isinstance(partial, BaseModel):
        yield _value("", partial, pen, is_growing)
        return
    names = list(type(partial).model_fields)
    width = min(24, max(map(len, names), default=0))
    for name in names:
        value = getattr(partial, name, None)
        is_complete = name in completed or not is_growing
        if value is not None or is_complete:
            yield _value(f"{one_line(name, 24):<{width}}  ", value, pen, not is_complete)


def _value(name: str, value: Any, pen: Pen, is_growing: bool) -> Text:
    room = max(20, 2 * pen.width - len(name))
    text = value_text(value, room)
    if is_growing and isinstance(value, str):
        text = ending(value, room)
    cursor = ("_" if pen.is_plain else "▌") if is_growing else ""
    return _line("", "", wraps=True).append(name, "cyan").append(text).append(cursor, "dim")


def _line(text: str, style: str, *, wraps: bool = False) -> Text:
    return Text(text, style=style, overflow="fold") if wraps else _flat(Text(text, style=style))


def _flat(text: Text) -> Text:
    """On one line, however narrow the terminal."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
