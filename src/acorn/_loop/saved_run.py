"""A run between two tells as plain JSON data, and as a run again, here or elsewhere.

What is saved is the journal, of which only the new entries need to be written, and the machine's memory,
which is small. The history is made again from the journal. Hooks change things in place, so a run is
continued from what was saved, never replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from acorn._history import history_of
from acorn._loop import messages, progress
from acorn._loop.plan import Plan
from acorn._loop.progress import Progress
from acorn._loop.run import Loop
from acorn._loop.state import State
from acorn._record_json import (
    FORMAT,
    check_format,
    fill_journal,
    read_entries,
    read_error,
    read_fork,
    read_output,
    read_record,
    restored,
    written_entry,
    written_record,
)
from acorn._schema.shape import RESULT
from acorn.journal import BranchBegun, BranchEnded, Called, Compacted, ModelAnswered
from acorn.record import Run
from acorn.types import Usage


def save(loop: Loop, since: int = 0) -> dict[str, Any]:
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
    loop: Loop, since: int, before: Progress | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any] | None, Progress | None]:
    """Of this, what is new at each step: entries, and the machine's memory; None where the entries tell all of it.

    What comes last is for the next time.
    """
    if not loop.is_over:
        loop.transcript.notice_all()
    new, state, turn = loop.journal.entries[since:], loop.state, loop.whereabouts()
    if before is not None and not loop.is_over:
        after = progress.go_on(before, new, state, turn)
        if after is not None:
            return [progress.written_with_result(entry, state) for entry in new], None, after
    after = progress.begin(state, turn)
    memory = state.to_json(turn)
    if after is not None:
        memory[progress.LENGTH] = len(loop.journal.entries)
    return [written_entry(entry) for entry in new], memory, after


def save_record(loop: Loop) -> dict[str, Any]:
    """And the rest, which is small."""
    record = {**written_record(loop.run), "seconds": loop.journal.now}
    return {"format": FORMAT, "module": loop.plan.module, "run": record}


def load(plan: Plan, saved: Mapping[str, Any], deps: Any = None) -> Loop:
    """The run as it was saved, ready for its next asks. `plan` is of a branch if the run is one."""
    check_format(saved)
    kept = saved["run"]
    given = restored(plan.spec.input.schema, kept["input"], "input")
    memory = dict(saved["state"])
    length = memory.pop(progress.LENGTH, None)
    state = State.from_json(memory)
    if length is not None:
        progress.catch_up(state, saved["journal"][length:])
    run: Run[Any] = Run(
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
    run._book.begin(history_of(run.journal.entries))
    loop = Loop(plan, run, state)
    _count_again(loop)
    if state.phase == "done":
        _close(run, plan, kept)
        loop.is_counted = True
    turn = None if state.turn is None else run._book.messages[state.turn]
    if turn is None and state.response is not None:
        # The user has removed the turn where it is not in the history, or may yet put it back.
        called = [Called(call.id, call.name, call.raw_arguments) for call in state.calls]
        turn = messages.assistant(state.response.content, called, state.response.extra)
    if turn is not None:
        is_open = state.phase in ("tools", "branches", "step") or (
            state.phase == "judge" and state.answered_by is not None
        )
        loop.transcript.resume(turn, state.calls if is_open else [])
    loop.recover()
    return loop


def _count_again(loop: Loop) -> None:
    """What the run has used and spent, by its journal; an open branch is counted when it goes on, or never will."""
    run = loop.run
    for entry in loop.journal.entries:
        if isinstance(entry, ModelAnswered | BranchEnded | Compacted):
            run.usage.add(entry.usage)
            if entry.cost is not None:
                run.cost = (run.cost or 0.0) + entry.cost
    tokens, cost = run.usage.total_tokens, run.cost or 0.0
    loop.state.meter.spent.tokens, loop.state.meter.spent.cost = tokens, cost
    for budget in loop.plan.above:
        budget.spent.add(tokens, cost)


def _close(run: Run[Any], plan: Plan, kept: Mapping[str, Any]) -> None:
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
        restored(shape.schema, {RESULT: plain} if shape.wrapped else plain, "output")


def hang_records(run: Run[Any], saved: Iterable[Mapping[str, Any]]) -> None:
    """Put the records of saved branches below the run, as plain data, in the order in which they were begun."""
    below: dict[str, list[Run[Any]]] = {}
    for each in saved:
        context = each["branch"]
        check_format(each)
        record: Run[Any] = read_record(Run, each, None)
        record.branch = context["path"]
        below.setdefault(context["parent_id"], []).append(record)
    parents = [run]
    for parent in parents:
        begun = [entry.child_id for entry in parent.journal.entries if isinstance(entry, BranchBegun)]
        order = {child_id: at for at, child_id in enumerate(begun)}
        children = below.get(parent.id, [])
        parent.branches += sorted(children, key=lambda child: order.get(child.id, len(order)))
        parents += children
