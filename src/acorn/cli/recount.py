"""A saved run as a tree: step by step, each call with its result, branches below the call that began them.

Drawn from the events of its thread alone. `acorn show` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text
from rich.tree import Tree

from acorn._json import compact
from acorn._schema.shape import RESULT
from acorn._tools.collect import FINISH
from acorn.cli.text import call_text, clean, one_line, plural, seconds_text, value_text
from acorn.thread import AgentEvent, CompletionEvent, ErrorEvent, MessageEvent, ToolCallEvent, ToolResultEvent

_LONGEST = 600
"""How much of one text is shown; `--json` has everything."""


@dataclass(eq=False)
class _Call:
    event: ToolCallEvent
    node: Tree
    is_open: bool = True
    is_branch: bool = False

    @property
    def is_answer(self) -> bool:
        return self.event.tool_name == FINISH


@dataclass(eq=False)
class _Told:
    """A run in the tree, and where its next event goes."""

    path: str
    node: Tree
    step: Tree | None = None
    iteration: int = 0
    calls: dict[str, _Call] = field(default_factory=dict[str, _Call])
    accepted: _Call | None = None
    """The call that brought the answer, until the completion says the same."""


class Recount:
    """Hangs events into a tree, one after the other."""

    def __init__(self, title: str, events: Iterable[AgentEvent], *, is_plain: bool = False) -> None:
        self._is_plain = is_plain
        listed = list(events)
        head = Text.assemble((one_line(title), "bold"), (f"  {plural(len(listed), 'event')}", "dim"))
        self.tree = Tree(head, guide_style="dim")
        self._runs: dict[str, _Told] = {"": _Told("", self.tree)}
        for event in listed:
            self._add(event)

    def _add(self, event: AgentEvent) -> None:
        told = self._run(event)
        if event.iteration and event.iteration != told.iteration:
            told.iteration = event.iteration
            told.step = told.node.add(Text(f"step {event.iteration}", style="bold cyan"))
        match event:
            case MessageEvent():
                self._place(told).add(_message(event))
            case ToolCallEvent():
                self._begin(told, event)
            case ToolResultEvent() | ErrorEvent():
                self._end(told, event)
            case CompletionEvent():
                self._complete(told, event)
            case _:
                self._place(told).add(_other(event))

    def _run(self, event: AgentEvent) -> _Told:
        """The run that an event belongs to; a branch is hung where it began."""
        if not event.branch:
            return self._runs[""]
        key = event.run_id or event.branch
        if key not in self._runs:
            above, _, name = event.branch.rpartition("/")
            parents = [told for told in self._runs.values() if told.path == above]
            parent = parents[-1] if parents else self._runs[""]
            calls = [call for call in parent.calls.values() if call.is_open and call.event.tool_name == name]
            free = [call for call in calls if not call.is_branch] or calls
            if free:
                free[0].is_branch = True
                node = free[0].node
            else:  # begun by the user's code, not by a call
                node = self._place(parent).add(Text(f"branch {one_line(name)}", style="bold"))
            self._runs[key] = _Told(event.branch, node)
        return self._runs[key]

    def _place(self, told: _Told) -> Tree:
        return told.step or told.node

    def _begin(self, told: _Told, event: ToolCallEvent) -> None:
        arguments = compact(event.args) if event.raw_arguments is None else event.raw_arguments
        if event.tool_name == FINISH:
            node = self._place(told).add(Text.assemble(("answer ", "bold"), one_line(arguments, _LONGEST)))
        else:
            text = call_text(event.tool_name, arguments, _LONGEST)
            node = self._place(told).add(Text.assemble((f"{self._sign('·', '-')} ", "dim"), (text, "bold")))
        told.calls[event.tool_call_id] = _Call(event, node)

    def _end(self, told: _Told, event: ToolResultEvent | ErrorEvent) -> None:
        call = told.calls.get(event.tool_call_id or "")
        text = event.error if isinstance(event, ErrorEvent) else event.result
        shown = value_text(text, _LONGEST)
        failed = isinstance(event, ErrorEvent)
        if call is None:
            name = "error" if failed else "result"
            self._place(told).add(Text.assemble((f"{name}: ", "red" if failed else "dim"), shown))
            return
        call.is_open = False
        if call.is_answer:
            if failed:
                call.node.add(Text.assemble(("did not validate: ", "yellow"), shown))
            else:
                told.accepted = call
            return
        mark = self._sign("✗", "!!") if failed else self._sign("✓", "ok")
        label = call.node.label
        assert isinstance(label, Text)
        call.node.label = Text.assemble((f"{mark} ", "red" if failed else "green"), label[2:], (_took(event), "dim"))
        if failed or not call.is_branch:
            call.node.add(Text.assemble((f"{self._sign('→', '->')} ", "dim"), (shown, "red" if failed else "dim")))

    def _complete(self, told: _Told, event: CompletionEvent) -> None:
        # A value that is no model travels in one field.
        if told.accepted is not None and told.accepted.event.args in (event.result, {RESULT: event.result}):
            told.accepted.node.label = _other(event)
        else:
            self._place(told).add(_other(event))

    def _sign(self, sign: str, plain: str) -> str:
        return plain if self._is_plain else sign


def _took(event: ToolResultEvent | ErrorEvent) -> str:
    return "" if event.seconds is None else f"  {seconds_text(event.seconds)}"


def _message(event: MessageEvent) -> Text:
    content = event.content if len(event.content) <= _LONGEST else f"{event.content[:_LONGEST]}…"
    who = {"assistant": "", "system": "system: ", "user": "user: "}[event.role]
    return Text.assemble((who, "dim"), clean(content).strip())


def _other(event: Any) -> Text:
    """What is neither said nor called: the end, a person's part, a summary."""
    words = {
        "completion": ("completed ", "green", "result"),
        "human_input_requested": ("asked a person: ", "yellow", "question"),
        "human_input_received": ("a person answered: ", "yellow", "response"),
        "summary": ("earlier steps in short: ", "yellow", "summary"),
    }
    name, style, attribute = words[event.type]
    return Text.assemble((name, f"bold {style}"), value_text(getattr(event, attribute), _LONGEST))
