"""A run between two tells as plain JSON data, and as a run again, here or elsewhere.

What is saved is the journal, of which only the new entries need to be written, and the machine's memory,
which is small. The history is made again from the journal. Hooks change things in place, so a run is
continued from what was saved, never replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, get_args

from pydantic_core import to_json

from acorn._json import to_plain
from acorn._loop import messages
from acorn._loop.branch_context import BranchContext
from acorn._loop.plan import Plan
from acorn._loop.run import Loop
from acorn._loop.state import State, restored
from acorn._loop.transcript import history_of, words_without_secrets
from acorn.errors import AcornError, StoreError
from acorn.journal import (
    Called,
    Entry,
    ModelAnswered,
    ResultSaid,
    RunBegun,
)
from acorn.record import Run
from acorn.types import Usage

FORMAT = 1
"""The version of what is written here; a reader knows its own and those before it."""


def save(loop: Loop, since: int = 0) -> dict[str, Any]:
    """Everything that is needed to go on, but for functions and keys; of the journal the entries from `since` on."""
    run, context = loop.run, loop.context
    if not loop.is_over:
        loop.transcript.notice_all()
    return {
        "format": FORMAT,
        "module": loop.plan.module,
        "run": {
            "id": run.id,
            "input": to_plain(run.input),
            "output": to_plain(run.output),
            "usage": {name: getattr(run.usage, name) for name in run.usage.__slots__},
            "cost": run.cost,
            "model": run.model,
            "steps": run.steps,
            "stop_reason": run.stop_reason,
            "started": None if run.started is None else run.started.isoformat(),
            "seconds": run.journal.now,
            "error": None if run.error is None else words_without_secrets(run.error, loop.setting("model")),
        },
        "branch": None if context is None else context.to_json(),
        "since": since,
        "journal": [written(entry) for entry in run.journal.entries[since:]],
        "state": {**loop.state.to_json(), "turn": loop.whereabouts()},
    }


def load(plan: Plan, saved: Mapping[str, Any], deps: Any = None) -> Loop:
    """The run as it was saved, ready for its next asks. `plan` is of a branch if the run is one."""
    if saved["format"] > FORMAT:
        raise StoreError(
            f"The run was saved in format {saved['format']}, and this acorn knows up to {FORMAT}; upgrade acorn."
        )
    kept = saved["run"]
    given = restored(plan.spec.input.schema, to_json(kept["input"], inf_nan_mode="constants"), "input")
    state = State.from_json(saved["state"])
    run: Run[Any] = Run(
        kept["id"],
        given,
        usage=Usage(**kept["usage"]),
        cost=kept["cost"],
        model=kept["model"],
        steps=kept["steps"],
        started=None if kept["started"] is None else datetime.fromisoformat(kept["started"]),
        seconds=kept["seconds"],
        deps=deps,
        branch=None if plan.context is None else plan.context.path,
    )
    entries = map(read, saved["journal"])
    run.journal.entries[:] = [each._replace(input=given) if isinstance(each, RunBegun) else each for each in entries]
    run.journal.now = kept["seconds"]
    run.journal.step = max((entry.step for entry in run.journal.entries if isinstance(entry, ModelAnswered)), default=0)
    run.history = history_of(run.journal.entries)
    loop = Loop(plan, run, state)
    _count_spending(loop)
    if state.phase == "done":
        _close(run, plan, kept)
    if state.response is not None:
        # The user has removed the turn where it is not in the history, or may yet put it back.
        called = [Called(call.id, call.name, call.raw_arguments) for call in state.calls]
        made = messages.assistant(state.response.content, called, state.response.extra)
        turn = made if state.turn is None else run.history[state.turn]
        is_open = state.phase in ("tools", "branches", "step") or (
            state.phase == "judge" and state.answered_by is not None
        )
        loop.transcript.resume(turn, state.calls if is_open else [])
    loop.recover()
    return loop


def _count_spending(loop: Loop) -> None:
    """What the run has spent itself; what was spent below it is added by each branch that is loaded."""
    answered = [entry for entry in loop.journal.entries if isinstance(entry, ModelAnswered)]
    tokens = sum(entry.usage.total_tokens for entry in answered)
    cost = sum(entry.cost or 0.0 for entry in answered)
    loop.state.meter.spent.tokens, loop.state.meter.spent.cost = tokens, cost
    for budget in loop.plan.above:
        budget.spent.add(tokens, cost)


def _close(run: Run[Any], plan: Plan, kept: Mapping[str, Any]) -> None:
    """What became of a run that was over."""
    run.stop_reason = kept["stop_reason"]
    if kept["error"] is not None:
        run.error = AcornError(kept["error"])
        return
    run.output = plan.spec.output.revive(kept["output"])


def saved_context(saved: Mapping[str, Any]) -> BranchContext | None:
    """What a saved branch was born with."""
    return None if saved["branch"] is None else BranchContext.from_json(saved["branch"])


# Entries as JSON


def written(entry: Entry) -> dict[str, Any]:
    """An entry as plain data, with the name of its class."""
    plain: dict[str, Any] = {"entry": type(entry).__name__, **entry._asdict()}
    if isinstance(entry, RunBegun):
        plain["input"] = to_plain(entry.input)
    if "usage" in plain:
        plain["usage"] = {name: getattr(plain["usage"], name) for name in Usage.__slots__}
    return plain


_KINDS = {kind.__name__: kind for kind in get_args(Entry)}
_NESTED = {"calls": Called, "results": ResultSaid}
_TUPLES = ("messages", "waits", "added")


def read(plain: Mapping[str, Any]) -> Entry:
    """An entry as it was written."""
    fields = dict(plain)
    kind: Any = _KINDS[fields.pop("entry")]
    for name, inner in _NESTED.items():
        if name in fields:
            fields[name] = tuple([inner(*each) for each in fields[name]])
    for name in _TUPLES:
        if isinstance(fields.get(name), list):
            fields[name] = tuple(fields[name])
    if "usage" in fields:
        fields["usage"] = Usage(**fields["usage"])
    entry: Entry = kind(**fields)
    return entry
