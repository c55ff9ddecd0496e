"""What has happened in a run so far, told by its chunks: turns, calls with their times, branches as a tree.

Pure: the clock is passed in. `live` draws it, `plain` writes a line when something in it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from acorn import ParseError, Run, StreamChunk, ToolResult

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
    """Which step of its run it is, counted from 1; a correction belongs to the step before it."""
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
    run_id: str | None = None
    """None for the run itself."""
    label: str = ""
    """Its path, with a number where several of one name were begun together."""
    turns: list[Turn] = field(default_factory=list[Turn])

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

    def __init__(self, hide: Callable[[str], str] = str) -> None:
        self.root = Branch("")
        self._hide = hide
        """What errors say may hold a key."""
        self._branches: dict[str | None, Branch] = {None: self.root}
        self._totals = Totals()

    def add(self, chunk: Chunk, now: float, run: Run[Any] | None = None) -> Iterator[tuple[Branch, Turn | Call]]:
        """Take in a chunk; what is complete now, with the branch it belongs to."""
        if chunk.run is not None:  # the last chunk, which only says what became of it
            yield from self._settle(self.root, run)
            return
        branch = self._branch(chunk, run)
        if chunk.tool_result is not None:
            call = self._end_call(branch, chunk.tool_result, now, run)
            if call is not None:
                yield branch, call
            return
        yield from self._settle(branch, run)
        turn = self._turn(branch, run)
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

    def end(self, run: Run[Any] | None) -> None:
        """The run is over: an answer that nobody took is no answer."""
        for branch in self._branches.values():
            _refuse_last(branch, _run_of(branch, run))

    def _branch(self, chunk: Chunk, run: Run[Any] | None) -> Branch:
        known = self._branches.get(chunk.run_id)
        if known is not None:
            return known
        made = self._branches[chunk.run_id] = Branch(chunk.branch or "", chunk.run_id)
        above = self._above(made, run)
        siblings = _begun(_run_of(above, run), len(above.turns), made.path)
        at = siblings.index(made.run_id) if made.run_id in siblings else 0
        number = f"#{at + 1}" if len(siblings) > 1 else ""
        made.label = f"{above.label}/{made.name}{number}" if above.label else f"{made.name}{number}"
        calls = [call for turn in above.turns[-1:] for call in turn.calls if call.name == made.name]
        if calls:
            calls[min(at, len(calls) - 1)].branches.append(made)
        return made

    def _above(self, made: Branch, run: Run[Any] | None) -> Branch:
        """The branch that began this one."""
        path = made.path.rpartition("/")[0]
        if not path:
            return self.root
        named = [branch for branch in self._branches.values() if branch.path == path]
        for branch in named:
            record = _run_of(branch, run)
            if record is not None and any(child.id == made.run_id for child in list(record.branches)):
                return branch
        return named[-1] if named else self.root

    def _turn(self, branch: Branch, run: Run[Any] | None) -> Turn:
        """The turn under way; a complete one is followed by the next."""
        last = branch.turns[-1] if branch.turns else None
        if last is not None and not last.done:
            return last
        if last is not None:
            last.was_refused = last.answer is not None
        number = _number(_run_of(branch, run), len(branch.turns))
        if number is None:
            number = 1 if last is None else last.number + (not last.was_refused)
        branch.turns.append(Turn(number))
        return branch.turns[-1]

    def _hear_call(self, turn: Turn, told: dict[str, Any], chunk: Chunk) -> None:
        known = [call for call in turn.calls if call.index == told["index"]]
        if known:
            known[0].id, known[0].name, known[0].last = told["id"], told["name"], chunk
        else:
            turn.calls.append(Call(told["index"], told["id"], told["name"], chunk))

    def _end_call(self, branch: Branch, result: ToolResult, now: float, run: Run[Any] | None) -> Call | None:
        if not branch.turns:
            return None
        calls = branch.turns[-1].open_calls
        # A provider that gives no ids, or the same twice, is given others by the loop.
        found = [call for call in calls if call.id == result.id and call.name == result.name]
        found += [call for call in calls if call.name == result.name]
        if not found:
            return None
        call = found[0]
        call.ended, call.result = now, self._shown(result)
        for inner in call.branches:
            _refuse_last(inner, _run_of(inner, run))
        return call

    def _shown(self, result: ToolResult) -> ToolResult:
        return result if result.error is None else replace(result, error=self._hide(result.error))

    def _settle(self, branch: Branch, run: Run[Any] | None) -> Iterator[tuple[Branch, Call]]:
        """Calls that never came to a tool: their arguments were wrong, or they were skipped.

        No chunk tells of them; the thread knows those that failed.
        """
        last = branch.turns[-1] if branch.turns else None
        if last is None or not last.done or not last.open_calls:
            return
        record = _run_of(branch, run)
        failed = {} if record is None else _failed(record)
        for call in last.open_calls:
            call.ended = call.began
            error = failed.get(call.id or "") or failed.get(call.name)
            if error is not None:
                call.result = self._shown(ToolResult(call.id or "", call.name, error=error))
            yield branch, call


def _run_of(branch: Branch, run: Run[Any] | None) -> Run[Any] | None:
    """The record of a branch, found below the record of the run."""
    if run is None or branch.run_id in (None, run.id):
        return run
    below = (_run_of(branch, child) for child in list(run.branches))
    return next((found for found in below if found is not None), None)


def _number(run: Run[Any] | None, before: int) -> int | None:
    """The step that the next turn of a run belongs to, when so many are behind it.

    A branch in a thread of its own may be further by now; then its notes tell.
    """
    if run is None:
        return None
    steps = run.steps
    turns = [note.iteration for note in list(run.ledger.notes) if note.kind == "turn"]
    return turns[before] if before < len(turns) else steps + 1


def _begun(run: Run[Any] | None, turn: int, path: str) -> list[str]:
    """The branches of one path that a turn of a run has begun, counted from 1, in order."""
    found: list[str] = []
    turns = 0
    for note in [] if run is None else list(run.ledger.notes):
        turns += note.kind == "turn"
        if note.kind == "branch" and turns == turn and note.what[0].branch == path:
            found.append(note.what[0].id)
    return found


def _refuse_last(branch: Branch, run: Run[Any] | None) -> None:
    """Nobody took the last answer of a run that failed for the lack of a valid one."""
    if run is not None and isinstance(run.error, ParseError) and branch.turns and branch.turns[-1].answer is not None:
        branch.turns[-1].was_refused = True


def _failed(run: Run[Any]) -> dict[str, str]:
    """The errors of a run's own calls, by the id and by the name of the call, the newest counting."""
    names: dict[str, str] = {}
    found: dict[str, str] = {}
    for event in run.thread:
        if (event.branch or None) != (run.branch or None):
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
