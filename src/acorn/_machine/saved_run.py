"""Saved runs: conversion of a run to JSON data from which another process can resume it, and back.

The journal and the state of the machine are saved. After each operation, only the new journal entries are saved, and
the small state if it has changed in another way than these entries describe. The history, the last response, its tool
calls and their results are not saved, because they can be rebuilt from the journal. A loaded run continues from the
saved state. It does not repeat earlier operations, because hooks may have changed values in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic_core import from_json

from acorn._history import saved_form
from acorn._history.history import assistant_message, history_of
from acorn._history.transcript import read_call
from acorn._machine.budgets import add_usage
from acorn._machine.machine import Machine
from acorn._machine.plan import Plan
from acorn._machine.state import State
from acorn.journal import BranchFinished, BranchStarted, Compacted, Entry, ModelResponded, ToolFinished
from acorn.models.port import ModelResponse, RawCall
from acorn.record import Run, history_of_run
from acorn.types import JsonObject, ToolResult, Usage

ENTRY_COUNT = "entries"
"""The key of a saved state that contains the number of journal entries at that time."""
_RESULT = "result"
"""The key of a saved entry that contains the result of a tool call, if the result contains media."""


def save(machine: Machine, since: int = 0) -> JsonObject:
    """Return JSON data from which a run can be resumed.

    The data contains no functions and no API keys. It contains the journal entries from index `since`.
    """
    context = machine.context
    entries, state, _ = save_new(machine, since)
    return {
        **saved_form.encode_saved_record(machine.run, machine.plan.module),
        "branch": None if context is None else context.to_json(),
        "since": since,
        "journal": entries,
        "state": state,
    }


def save_new(
    machine: Machine, since: int, before: State | None = None
) -> tuple[list[JsonObject], JsonObject | None, State]:
    """Return the journal entries from index `since`, the saved state, and the state to pass to the next call.

    `before` is the state that was returned before. The saved state is None if the entries describe all changes since
    then. An entry with the result of a call that contains media also contains the result.
    """
    if machine.run.stop_reason is None:
        machine.transcript.record_edits()
    entries, turn_index = machine.journal.entries, machine.transcript.turn_index
    new = entries[since:]
    if before is not None:
        before.apply(new)
    state = machine.state.copy(turn_index)
    plain_state = None if state == before else {**state.to_json(), ENTRY_COUNT: len(entries)}
    plain_entries = saved_form.encode_entries(new)
    for entry, plain in zip(new, plain_entries, strict=True):
        if isinstance(entry, ToolFinished | BranchFinished) and not isinstance(entry.content, str):
            result = machine.state.results.get(entry.call_id or "")
            if result is not None:
                plain[_RESULT] = saved_form.encode_result(result)
    return plain_entries, plain_state, state


def load(plan: Plan, saved: Mapping[str, Any], deps: Any = None) -> Machine:
    """Return the machine of a saved run, which can continue where the saved run stopped.

    If the run is a branch, `plan` must be the plan of the branch.
    """
    saved_form.check_format(saved)
    record, plain_state = saved["run"], dict(saved["state"])
    run_input = saved_form.decode_instance(plan.spec.input.schema, record["input"], "input")
    entries = saved_form.decode_entries(saved["journal"])
    entry_count = plain_state.pop(ENTRY_COUNT)
    state = State.from_json(plain_state)
    state.apply(entries[entry_count:])
    turns = [(at, entry) for at, entry in enumerate(entries) if isinstance(entry, ModelResponded)]
    first, response = turns[-1] if turns else (0, None)
    if response is not None and state.phase in ("tools", "branches", "step", "judge"):
        _restore_step(state, response, entries[first:], saved["journal"][first:])
    run: Run = Run(
        record["id"],
        run_input,
        model=record["model"],
        steps=record["steps"],
        started=None if record["started"] is None else datetime.fromisoformat(record["started"]),
        seconds=record["seconds"],
        deps=deps,
        branch=None if plan.context is None else plan.context.path,
        forked_from=saved_form.decode_fork(record),
    )
    saved_form.fill_journal(run, entries)
    run.journal.now = record["seconds"]
    history = history_of_run(run)
    history.start(history_of(run.journal.entries))
    machine = Machine(plan, run, state)
    _count_usage(machine)
    if state.phase == "done":
        _restore_end(run, plan, record)
        machine.branches.are_counted = True
    if response is not None and response.refusal is None:
        is_open = state.phase in ("tools", "branches", "step") or (
            state.phase == "judge" and state.answered_by is not None
        )
        # If the user has removed the response from the history, it may be put back.
        turn = assistant_message(response) if state.turn is None else history.messages[state.turn]
        machine.transcript.resume_turn(turn, state.calls if is_open else [])
    machine.restore()
    return machine


def _restore_step(
    state: State, response: ModelResponded, entries: Sequence[Entry], saved: Sequence[Mapping[str, Any]]
) -> None:
    """Read the last response, its tool calls and their results from the journal entries since that response."""
    state.response = ModelResponse(
        response.content,
        [RawCall(*call) for call in response.calls],
        response.stop_reason,
        response.usage,
        response.cost,
        response.model,
        response.reasoning,
        extra=response.extra,
        attempts=response.attempts,
        waits=response.waits,
        fallbacks=response.fallbacks,
    )
    state.calls = [read_call(*call) for call in response.calls]
    names = {call.id: call.name for call in state.calls}
    for entry, plain in zip(entries, saved, strict=True):
        if isinstance(entry, ToolFinished | BranchFinished) and entry.call_id is not None:
            result = ToolResult(entry.call_id, names[entry.call_id], entry.content, entry.error, entry.seconds)
            if entry.error is not None:
                result.output = None
            elif _RESULT in plain:
                result = saved_form.decode_result(plain[_RESULT])
            elif entry.form == "json" and isinstance(entry.content, str):
                result.output = from_json(entry.content)
            state.results[entry.call_id] = result


def _count_usage(machine: Machine) -> None:
    """Compute the usage of a loaded run from its journal, and add it to all budgets of the run.

    The usage of unfinished branches is not included. It is added when these branches are loaded.
    """
    run = machine.run
    for entry in machine.journal.entries:
        if isinstance(entry, ModelResponded | BranchFinished | Compacted):
            add_usage(run, entry.usage, entry.cost)
    for budget in machine.budgets.all:
        budget.spent.tokens += run.usage.total_tokens
        budget.spent.cost += run.cost or 0.0


def _restore_end(run: Run, plan: Plan, record: Mapping[str, Any]) -> None:
    """Set the output or the error of a loaded run that had finished."""
    run.usage, run.cost = Usage(**record["usage"]), record["cost"]
    run.stop_reason = record["stop_reason"]
    if record["error"] is not None:
        run.error = saved_form.decode_error(record["error"])
        return
    shape, plain = plan.spec.output, record["output"]
    may_differ = plan.on_finish is not None  # `on_finish` may return any value.
    run.output = saved_form.decode_output(record, shape, may_differ=may_differ)
    if not may_differ and plain is not None and not shape.is_empty:
        saved_form.decode_instance(shape.schema, {shape.wrapped: plain} if shape.wrapped else plain, "output")


def attach_branch_records(run: Run, saved: Iterable[Mapping[str, Any]]) -> None:
    """Add the records of saved branches to the run records of their parents, in the order of their start.

    The inputs and outputs of the branches stay JSON data.
    """
    by_parent: dict[str, list[Run]] = {}
    for saved_branch in saved:
        context = saved_branch["branch"]
        saved_form.check_format(saved_branch)
        record: Run = saved_form.decode_record(Run, saved_branch, None)
        record.branch = context["path"]
        by_parent.setdefault(context["parent_id"], []).append(record)
    parents = [run]
    for parent in parents:
        started = [entry.child_id for entry in parent.journal.entries if isinstance(entry, BranchStarted)]
        order = {child_id: index for index, child_id in enumerate(started)}
        branches = by_parent.get(parent.id, [])
        parent.branches += sorted(branches, key=lambda branch: order.get(branch.id, len(order)))
        parents += branches
