"""What has happened in a run so far, told by its chunks: turns, calls with their times, branches as a tree.

Pure: the clock is passed in. `live` draws it, `plain` writes a line when something in it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from acorn import Run, StreamChunk, ToolResult

Chunk = StreamChunk[Any]


@dataclass(eq=False)
class Call:
    """A tool that the model called, or a branch."""

    index: int
    id: str | None
    name: str
    last: Chunk
    """The newest chunk of it, which has its arguments so far."""
    began: float | None = None
    """When the response was complete, so that the tool could begin."""
    ended: float | None = None
    result: ToolResult | None = None
    branches: list[Branch] = field(default_factory=list["Branch"])

    @property
    def arguments(self) -> str:
        return str((self.last.tool_call or {}).get("arguments", ""))

    def seconds(self, now: float) -> float | None:
        """How long it has taken by now; None where it has not begun."""
        if self.result is not None and self.result.seconds is not None:
            return self.result.seconds
        return None if self.began is None else (self.ended or now) - self.began


@dataclass(eq=False)
class Turn:
    """One response of the model, and what came of it."""

    number: int
    """Which step it is, counted from 1; a correction belongs to the step before it."""
    content: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[Call] = field(default_factory=list[Call])
    answer: Chunk | None = None
    """The newest chunk of the answer."""
    done: bool = False
    was_refused: bool = False
    """The answer did not validate, and the model was asked again."""

    @property
    def text(self) -> str:
        return "".join(self.content)

    @property
    def thought(self) -> str:
        return "".join(self.reasoning)

    @property
    def open_calls(self) -> list[Call]:
        return [call for call in self.calls if call.ended is None]


@dataclass(eq=False)
class Branch:
    """A run in the tree; the topmost is the run itself."""

    path: str
    turns: list[Turn] = field(default_factory=list[Turn])
    is_over: bool = False
    is_mixed: bool = False
    """Several of the same name run at the same time; what they say cannot be told apart."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Totals:
    """What a run has used by now, its branches included."""

    steps: int = 0
    tokens: int = 0
    cost: float | None = None


class Story:
    """The tree of one run. `add` says what a chunk has completed."""

    def __init__(self) -> None:
        self.root = Branch("")
        self._branches: dict[str, Branch] = {"": self.root}
        self._totals = Totals()

    def add(self, chunk: Chunk, now: float, run: Run[Any] | None = None) -> Iterator[tuple[Branch, Turn | Call]]:
        """Take in a chunk; what is complete now, with the branch it belongs to."""
        if chunk.run is not None:  # the last chunk, which only says what became of it
            yield from self._settle(self.root, run)
            return
        branch = self._branch(chunk.branch or "")
        if chunk.tool_result is not None:
            call = self._end_call(branch, chunk.tool_result, now)
            if call is not None:
                yield branch, call
            return
        yield from self._settle(branch, run)
        turn = self._turn(branch)
        if chunk.content:
            turn.content.append(chunk.content)
        if chunk.reasoning:
            turn.reasoning.append(chunk.reasoning)
        told = chunk.tool_call
        if told is not None:
            self._hear_call(turn, told, chunk)
        elif not chunk.content and not chunk.reasoning and (not chunk.done or chunk.partial is not None):
            turn.answer = chunk  # parsed when somebody draws it
        if chunk.done:
            turn.done = True
            for call in turn.calls:
                call.began = now
            yield branch, turn

    def totals(self, run: Run[Any] | None) -> Totals:
        """What has been used; a branch that goes on is not yet in its parent's count."""
        if run is None:
            return self._totals
        tokens, cost = _used(run)
        before = self._totals
        shown = max(cost or 0.0, before.cost or 0.0) if cost is not None or before.cost is not None else None
        # A branch that has ended while its siblings go on is in neither count for a while; no figure goes back.
        self._totals = Totals(max(run.steps, before.steps), max(tokens, before.tokens), shown)
        return self._totals

    def _branch(self, path: str) -> Branch:
        known = self._branches.get(path)
        if known is not None and not known.is_over:
            return known
        made = self._branches[path] = Branch(path)
        above = self._branch(path.rpartition("/")[0])
        calls = [call for call in self._turn(above, begins=False).open_calls if call.name == made.name]
        if calls:
            calls[0].branches.append(made)
            made.is_mixed = len(calls) > 1
        return made

    def _turn(self, branch: Branch, *, begins: bool = True) -> Turn:
        """The turn under way; a complete one is followed by the next."""
        last = branch.turns[-1] if branch.turns else None
        if last is not None and not (last.done and begins):
            return last
        number = 1
        if last is not None:
            last.was_refused = last.answer is not None
            number = last.number if last.was_refused else last.number + 1
        branch.turns.append(Turn(number))
        return branch.turns[-1]

    def _hear_call(self, turn: Turn, told: dict[str, Any], chunk: Chunk) -> None:
        known = [call for call in turn.calls if call.index == told["index"]]
        if known:
            known[0].id, known[0].name, known[0].last = told["id"], told["name"], chunk
        else:
            turn.calls.append(Call(told["index"], told["id"], told["name"], chunk))

    def _end_call(self, branch: Branch, result: ToolResult, now: float) -> Call | None:
        if not branch.turns:
            return None
        calls = branch.turns[-1].open_calls
        # A provider that gives no ids, or the same twice, is given others by the loop.
        found = [call for call in calls if call.id == result.id and call.name == result.name]
        found += [call for call in calls if call.name == result.name]
        if not found:
            return None
        call = found[0]
        call.ended, call.result = now, result
        for inner in call.branches:
            inner.is_over = True
        return call

    def _settle(self, branch: Branch, run: Run[Any] | None) -> Iterator[tuple[Branch, Call]]:
        """Calls that never came to a tool: their arguments were wrong, or they were skipped.

        No chunk tells of them; the thread knows those that failed.
        """
        last = branch.turns[-1] if branch.turns else None
        if last is None or not last.done or not last.open_calls:
            return
        failed = {} if run is None else _failed(run, branch.path)
        for call in last.open_calls:
            call.ended = call.began
            error = failed.get(call.id or "") or failed.get(call.name)
            if error is not None:
                call.result = ToolResult(call.id or "", call.name, error=error)
            yield branch, call


def _failed(run: Run[Any], path: str) -> dict[str, str]:
    """The errors of a branch's calls, by the id and by the name of the call, the newest counting."""
    names: dict[str, str] = {}
    found: dict[str, str] = {}
    for event in run.thread:
        if (event.branch or "") != path:
            continue
        if event.type == "tool_call":
            names[event.tool_call_id] = event.tool_name
        elif event.type == "error" and event.tool_call_id is not None:
            found[event.tool_call_id] = found[names.get(event.tool_call_id, "")] = event.error
    return found


def _used(run: Run[Any]) -> tuple[int, float | None]:
    tokens, cost = run.usage.total_tokens, run.cost
    for branch in list(run.branches):
        if branch.stop_reason is None:
            inner, price = _used(branch)
            tokens += inner
            cost = cost if price is None else (cost or 0.0) + price
    return tokens, cost
