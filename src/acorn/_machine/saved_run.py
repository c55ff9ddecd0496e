"""Saved runs: conversion of a run to JSON data from which another process can resume it, and back.

The journal and the state of the machine are saved. After each operation, only the new journal entries and the small
state are saved. The history is not saved, because it can be rebuilt from the journal. A loaded run continues from the
saved state. It does not repeat earlier operations, because hooks may have changed values in place.

In a step with many tool calls, the state is saved when the calls have started, and again at the end of the step. In
between, only the new journal entries are saved, each with the result of its call. `load` applies these entries to the
saved state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from acorn._formats.json import copy_json
from acorn._formats.schema.shape import RESULT
from acorn._history.history import assistant_message, history_of
from acorn._history.saved_form import (
    FORMAT,
    check_format,
    decode_entries,
    decode_error,
    decode_fork,
    decode_instance,
    decode_output,
    decode_record,
    decode_result,
    encode_entry,
    encode_record,
    encode_result,
    fill_journal,
)
from acorn._machine.machine import Machine
from acorn._machine.plan import Plan
from acorn._machine.state import State
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
from acorn.record import TOOL_ASK_PREFIX, Run, history_of_run
from acorn.types import JsonObject, ToolCall, Usage

MIN_CALLS = 8
"""The minimum number of tool calls in a step for which the state is not saved after each result."""
ENTRY_COUNT = "entries"
"""The key of a saved state that contains the number of journal entries at that time."""
_RESULT = "result"


class StepProgress(NamedTuple):
    """The last saved state of a step with many tool calls.

    Later states are compared with it. If the new journal entries account for all changes, only the entries are saved.
    """

    calls: list[ToolCall]
    other_fields: JsonObject
    """The fields of the state that must not have changed since then."""
    open_asks: int
    results: int
    branches: int


def start_progress(state: State, turn: int | None) -> StepProgress | None:
    """Return the `StepProgress` for a state that is saved now.

    Return None if the run is not in a step with many calls, because the whole state is then saved each time.
    """
    if len(state.calls) < MIN_CALLS or state.phase not in ("tools", "branches"):
        return None
    fields = copy_json(_comparable_fields(state, turn))
    return StepProgress(state.calls, fields, len(state.open_asks), len(state.results), len(state.branches))


def continue_progress(
    before: StepProgress, new: Iterable[Entry], state: State, turn: int | None
) -> StepProgress | None:
    """Return the `StepProgress` after new journal entries, if the entries account for all changes of the state.

    Otherwise return None: the whole state must be saved.
    """
    open_asks, results, branches = before.open_asks, before.results, before.branches
    for entry in new:
        if isinstance(entry, ToolStarted):
            open_asks += 1
        elif isinstance(entry, ToolFinished):
            open_asks -= entry.began is not None
            results += 1
        elif isinstance(entry, BranchStarted):
            open_asks += entry.call_id is not None
        elif not isinstance(entry, BranchFinished):
            return None
        elif entry.call_id is not None:
            open_asks, results, branches = open_asks - 1, results + 1, branches - 1
    counts = (len(state.open_asks), len(state.results), len(state.branches))
    if state.calls is not before.calls or counts != (open_asks, results, branches):
        return None
    if before.other_fields != _comparable_fields(state, turn):
        return None
    return StepProgress(before.calls, before.other_fields, *counts)


def _comparable_fields(state: State, turn: int | None) -> JsonObject:
    # `load` computes the usage again, so changes of the usage do not matter.
    meter = {name: value for name, value in vars(state.meter).items() if name != "spent"}
    return {**state.without_calls(), "meter": meter, "turn": turn}


def _entry_with_result(entry: Entry, state: State) -> JsonObject:
    """Return a journal entry as JSON data. If it is the end of a call, the data contains the tool result."""
    plain = encode_entry(entry)
    if isinstance(entry, ToolFinished | BranchFinished) and entry.call_id is not None:
        plain[_RESULT] = encode_result(state.results[entry.call_id])
    return plain


def _apply_entries(state: State, entries: Iterable[Mapping[str, Any]]) -> None:
    """Apply the journal entries that were saved later than the state to the state."""
    for plain in entries:
        kind, call_id = plain["entry"], plain.get("call_id")
        ask_id = f"{TOOL_ASK_PREFIX if kind.startswith('Tool') else 'branch '}{plain['step']} {call_id}"
        if call_id is None:
            continue
        if kind in (ToolStarted.__name__, BranchStarted.__name__):
            state.open_asks[ask_id] = plain["at"]
        elif kind in (ToolFinished.__name__, BranchFinished.__name__):
            state.open_asks.pop(ask_id, None)
            state.branches.pop(call_id, None)
            state.results[call_id] = decode_result(plain[_RESULT])


def save(machine: Machine, since: int = 0) -> JsonObject:
    """Return JSON data from which a run can be resumed.

    The data contains no functions and no API keys. It contains the journal entries from index `since`.
    """
    context = machine.context
    entries, state, _ = save_new(machine, since)
    return {
        **save_record(machine),
        "branch": None if context is None else context.to_json(),
        "since": since,
        "journal": entries,
        "state": state,
    }


def save_new(
    machine: Machine, since: int, before: StepProgress | None = None
) -> tuple[list[JsonObject], JsonObject | None, StepProgress | None]:
    """Return the journal entries from index `since`, the state, and the `StepProgress` to pass to the next call.

    The returned state is None if the entries account for all its changes, so that it need not be saved.
    """
    if not machine.is_over:
        machine.transcript.record_edits()
    new, state, turn = machine.journal.entries[since:], machine.state, machine.transcript.turn_index
    if before is not None and not machine.is_over:
        progress = continue_progress(before, new, state, turn)
        if progress is not None:
            return [_entry_with_result(entry, state) for entry in new], None, progress
    progress = start_progress(state, turn)
    plain_state = state.to_json(turn)
    if progress is not None:
        plain_state[ENTRY_COUNT] = len(machine.journal.entries)
    return [encode_entry(entry) for entry in new], plain_state, progress


def save_record(machine: Machine) -> JsonObject:
    """Return the run record as JSON data, with the format version and the name of the agent class."""
    record = {**encode_record(machine.run), "seconds": machine.journal.now}
    return {"format": FORMAT, "module": machine.plan.module, "run": record}


def load(plan: Plan, saved: Mapping[str, Any], deps: Any = None) -> Machine:
    """Return the machine of a saved run, which can continue where the saved run stopped.

    If the run is a branch, `plan` must be the plan of the branch.
    """
    check_format(saved)
    record = saved["run"]
    run_input = decode_instance(plan.spec.input.schema, record["input"], "input")
    plain_state = dict(saved["state"])
    entry_count = plain_state.pop(ENTRY_COUNT, None)
    state = State.from_json(plain_state)
    if entry_count is not None:
        _apply_entries(state, saved["journal"][entry_count:])
    run: Run = Run(
        record["id"],
        run_input,
        model=record["model"],
        steps=record["steps"],
        started=None if record["started"] is None else datetime.fromisoformat(record["started"]),
        seconds=record["seconds"],
        deps=deps,
        branch=None if plan.context is None else plan.context.path,
        forked_from=decode_fork(record),
    )
    fill_journal(run, decode_entries(saved["journal"]))
    run.journal.now = record["seconds"]
    history_of_run(run).start(history_of(run.journal.entries))
    machine = Machine(plan, run, state)
    _count_usage(machine)
    if state.phase == "done":
        _restore_end(run, plan, record)
        machine.branches.are_counted = True
    turn = None if state.turn is None else history_of_run(run).messages[state.turn]
    if turn is None and state.response is not None:
        # The user has removed the response from the history, and may put it back.
        called = [CalledTool(call.id, call.name, call.raw_arguments) for call in state.calls]
        turn = assistant_message(state.response.content, called, state.response.extra)
    if turn is not None:
        is_open = state.phase in ("tools", "branches", "step") or (
            state.phase == "judge" and state.answered_by is not None
        )
        machine.transcript.resume_turn(turn, state.calls if is_open else [])
    machine.restore()
    return machine


def _count_usage(machine: Machine) -> None:
    """Compute the usage of a loaded run from its journal, and add it to all budgets of the run.

    The usage of unfinished branches is not included. It is added when these branches are loaded.
    """
    run = machine.run
    for entry in machine.journal.entries:
        if isinstance(entry, ModelResponded | BranchFinished | Compacted):
            run.usage.add(entry.usage)
            if entry.cost is not None:
                run.cost = (run.cost or 0.0) + entry.cost
    tokens, cost = run.usage.total_tokens, run.cost or 0.0
    spent = machine.state.meter.spent
    spent.tokens, spent.cost = tokens, cost
    for budget in machine.plan.above:
        budget.spent.add(tokens, cost)


def _restore_end(run: Run, plan: Plan, record: Mapping[str, Any]) -> None:
    """Set the output or the error of a loaded run that had finished."""
    run.usage, run.cost = Usage(**record["usage"]), record["cost"]
    run.stop_reason = record["stop_reason"]
    if record["error"] is not None:
        run.error = decode_error(record["error"])
        return
    shape, plain = plan.spec.output, record["output"]
    may_differ = plan.on_finish is not None  # `on_finish` may return any value.
    run.output = decode_output(record, shape, may_differ=may_differ)
    if not may_differ and plain is not None and not shape.is_empty:
        decode_instance(shape.schema, {RESULT: plain} if shape.wrapped else plain, "output")


def attach_branch_records(run: Run, saved: Iterable[Mapping[str, Any]]) -> None:
    """Add the records of saved branches to the run records of their parents, in the order of their start.

    The inputs and outputs of the branches stay JSON data.
    """
    by_parent: dict[str, list[Run]] = {}
    for saved_branch in saved:
        context = saved_branch["branch"]
        check_format(saved_branch)
        record: Run = decode_record(Run, saved_branch, None)
        record.branch = context["path"]
        by_parent.setdefault(context["parent_id"], []).append(record)
    parents = [run]
    for parent in parents:
        started = [entry.child_id for entry in parent.journal.entries if isinstance(entry, BranchStarted)]
        order = {child_id: index for index, child_id in enumerate(started)}
        branches = by_parent.get(parent.id, [])
        parent.branches += sorted(branches, key=lambda branch: order.get(branch.id, len(order)))
        parents += branches
