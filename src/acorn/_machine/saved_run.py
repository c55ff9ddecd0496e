"""What the entries of a step tell of the machine's memory, so that it is not written whole with each of many results.

A memory holds the calls of its step and what has come of them. Where there are many, it is written when they have
begun, and again when the step is over; in between the entries tell what has begun and returned since. Whoever loads
the run adds that to the memory.

A run between two tells as plain JSON data, and as a run again, here or elsewhere.

What is saved is the journal, of which only the new entries need to be written, and the machine's memory,
which is small. The history is made again from the journal. Hooks change things in place, so a run is
continued from what was saved, never replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from acorn._formats.json import copy_json
from acorn._formats.schema.shape import RESULT
from acorn._history.history import assistant_message, history_of
from acorn._machine.machine import Machine
from acorn._machine.plan import Plan
from acorn._machine.state import State
from acorn._record.saved_form import (
    FORMAT,
    check_format,
    fill_journal,
    read_entries,
    read_error,
    read_fork,
    read_instance,
    read_output,
    read_record,
    read_result,
    written_entry,
    written_record,
    written_result,
)
from acorn.journal import (
    BranchFinished,
    BranchStarted,
    CalledTool,
    Compacted,
    Entry,
    ModelResponded,
    ToolFinished,
    ToolStarted,
)
from acorn.record import TOOL, Run
from acorn.types import JsonObject, ToolCall, Usage

MANY = 8
"""Calls in a step from which on it is worth it."""
LENGTH = "entries"
"""Under which a memory says how many entries there were when it was written."""
_RESULT = "result"


class StepProgress(NamedTuple):
    """What is known of a memory that was written whole, and of what came since."""

    calls: list[ToolCall]
    rest: Mapping[str, Any]
    """All that must be as it was."""
    under_way: int
    results: int
    branches: int


def start_progress(state: State, turn: int | None) -> StepProgress | None:
    """From a memory that is written now; None where the next one is written whole as well."""
    if len(state.calls) < MANY or state.phase not in ("tools", "branches"):
        return None
    return StepProgress(
        state.calls, copy_json(_rest(state, turn)), len(state.under_way), len(state.results), len(state.branches)
    )


def continue_progress(
    before: StepProgress, new: Iterable[Entry], state: State, turn: int | None
) -> StepProgress | None:
    """Where these entries tell all that has happened to the memory; None where it has to be written."""
    under_way, results, branches = before.under_way, before.results, before.branches
    for entry in new:
        if isinstance(entry, ToolStarted):
            under_way += 1
        elif isinstance(entry, ToolFinished):
            under_way -= entry.began is not None
            results += 1
        elif isinstance(entry, BranchStarted):
            under_way += entry.call_id is not None
        elif not isinstance(entry, BranchFinished):
            return None
        elif entry.call_id is not None:
            under_way, results, branches = under_way - 1, results + 1, branches - 1
    now = (len(state.under_way), len(state.results), len(state.branches))
    if state.calls is not before.calls or now != (under_way, results, branches) or before.rest != _rest(state, turn):
        return None
    return StepProgress(before.calls, before.rest, *now)


def _rest(state: State, turn: int | None) -> JsonObject:
    # What was spent is counted anew by whoever loads it.
    meter = {name: value for name, value in vars(state.meter).items() if name != "spent"}
    return {**state.small(), "meter": meter, "turn": turn}


def written_with_result(entry: Entry, state: State) -> JsonObject:
    """An entry as plain data; one of a result has with it what the memory would have of it."""
    plain = written_entry(entry)
    if isinstance(entry, ToolFinished | BranchFinished) and entry.call_id is not None:
        plain[_RESULT] = written_result(state.results[entry.call_id])
    return plain


def replay_step(state: State, entries: Iterable[Mapping[str, Any]]) -> None:
    """Add to a memory what the entries tell that were written since."""
    for plain in entries:
        kind, call_id = plain["entry"], plain.get("call_id")
        ask_id = f"{TOOL if kind.startswith('Tool') else 'branch '}{plain['step']} {call_id}"
        if call_id is None:
            continue
        if kind in (ToolStarted.__name__, BranchStarted.__name__):
            state.under_way[ask_id] = plain["at"]
        elif kind in (ToolFinished.__name__, BranchFinished.__name__):
            state.under_way.pop(ask_id, None)
            state.branches.pop(call_id, None)
            state.results[call_id] = read_result(plain[_RESULT])


def save(loop: Machine, since: int = 0) -> JsonObject:
    """Everything that is needed to go on, but for functions and keys; of the journal the entries from `since` on."""
    context = loop.context
    entries, state = save_new(loop, since)[:2]
    return {
        **save_record(loop),
        "branch": None if context is None else context.to_json(),
        "since": since,
        "journal": entries,
        "state": state,
    }


def save_new(
    loop: Machine, since: int, before: StepProgress | None = None
) -> tuple[list[JsonObject], JsonObject | None, StepProgress | None]:
    """Of this, what is new at each step: entries, and the machine's memory; None where the entries tell all of it.

    What comes last is for the next time.
    """
    if not loop.is_over:
        loop.transcript.edits.note_all()
    new, state, turn = loop.journal.entries[since:], loop.state, loop.transcript.turn_index
    if before is not None and not loop.is_over:
        after = continue_progress(before, new, state, turn)
        if after is not None:
            return [written_with_result(entry, state) for entry in new], None, after
    after = start_progress(state, turn)
    memory = state.to_json(turn)
    if after is not None:
        memory[LENGTH] = len(loop.journal.entries)
    return [written_entry(entry) for entry in new], memory, after


def save_record(loop: Machine) -> JsonObject:
    """And the rest, which is small."""
    record = {**written_record(loop.run), "seconds": loop.journal.now}
    return {"format": FORMAT, "module": loop.plan.module, "run": record}


def load(plan: Plan, saved: Mapping[str, Any], deps: Any = None) -> Machine:
    """The run as it was saved, ready for its next asks. `plan` is of a branch if the run is one."""
    check_format(saved)
    kept = saved["run"]
    given = read_instance(plan.spec.input.schema, kept["input"], "input")
    memory = dict(saved["state"])
    length = memory.pop(LENGTH, None)
    state = State.from_json(memory)
    if length is not None:
        replay_step(state, saved["journal"][length:])
    run: Run = Run(
        kept["id"],
        given,
        model=kept["model"],
        steps=kept["steps"],
        started=None if kept["started"] is None else datetime.fromisoformat(kept["started"]),
        seconds=kept["seconds"],
        deps=deps,
        branch=None if plan.context is None else plan.context.path,
        forked_from=read_fork(kept),
    )
    fill_journal(run, read_entries(saved["journal"]))
    run.journal.now = kept["seconds"]
    run._book.start(history_of(run.journal.entries))
    loop = Machine(plan, run, state)
    _count_again(loop)
    if state.phase == "done":
        _close(run, plan, kept)
        loop.branches.are_counted = True
    turn = None if state.turn is None else run._book.messages[state.turn]
    if turn is None and state.response is not None:
        # The user has removed the turn where it is not in the history, or may yet put it back.
        called = [CalledTool(call.id, call.name, call.raw_arguments) for call in state.calls]
        turn = assistant_message(state.response.content, called, state.response.extra)
    if turn is not None:
        is_open = state.phase in ("tools", "branches", "step") or (
            state.phase == "judge" and state.answered_by is not None
        )
        loop.transcript.resume_turn(turn, state.calls if is_open else [])
    loop.restore()
    return loop


def _count_again(loop: Machine) -> None:
    """What the run has used and spent, by its journal; an open branch is counted when it goes on, or never will."""
    run = loop.run
    for entry in loop.journal.entries:
        if isinstance(entry, ModelResponded | BranchFinished | Compacted):
            run.usage.add(entry.usage)
            if entry.cost is not None:
                run.cost = (run.cost or 0.0) + entry.cost
    tokens, cost = run.usage.total_tokens, run.cost or 0.0
    loop.state.meter.spent.tokens, loop.state.meter.spent.cost = tokens, cost
    for budget in loop.plan.above:
        budget.spent.add(tokens, cost)


def _close(run: Run, plan: Plan, kept: Mapping[str, Any]) -> None:
    """What became of a run that was over."""
    run.usage, run.cost = Usage(**kept["usage"]), kept["cost"]
    run.stop_reason = kept["stop_reason"]
    if kept["error"] is not None:
        run.error = read_error(kept["error"])
        return
    shape, plain = plan.spec.output, kept["output"]
    may_differ = plan.on_finish is not None  # which may return anything instead
    run.output = read_output(kept, shape, may_differ=may_differ)
    if not may_differ and plain is not None and not shape.is_empty:
        read_instance(shape.schema, {RESULT: plain} if shape.wrapped else plain, "output")


def hang_records(run: Run, saved: Iterable[Mapping[str, Any]]) -> None:
    """Put the records of saved branches below the run, as plain data, in the order in which they were begun."""
    below: dict[str, list[Run]] = {}
    for each in saved:
        context = each["branch"]
        check_format(each)
        record: Run = read_record(Run, each, None)
        record.branch = context["path"]
        below.setdefault(context["parent_id"], []).append(record)
    parents = [run]
    for parent in parents:
        begun = [entry.child_id for entry in parent.journal.entries if isinstance(entry, BranchStarted)]
        order = {child_id: at for at, child_id in enumerate(begun)}
        children = below.get(parent.id, [])
        parent.branches += sorted(children, key=lambda child: order.get(child.id, len(order)))
        parents += children
