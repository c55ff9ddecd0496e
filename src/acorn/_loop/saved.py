"""A run between two asks as plain JSON data, and as a run again, here or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from acorn._json import to_plain
from acorn._loop import messages
from acorn._loop.plan import Plan
from acorn._loop.run import Loop
from acorn._loop.state import State, restored
from acorn.record import Run
from acorn.thread.events import dump_events
from acorn.types import Usage


def save(loop: Loop) -> dict[str, Any]:
    """Everything that is needed to go on, but for functions and keys."""
    run = loop.run
    return {
        "run": {
            "id": run.id,
            "input": to_plain(run.input),
            "history": to_plain(run.history),
            "thread": dump_events(run.thread),
            "iteration": run.ledger.iteration,
            "unnoticed": loop.scribe.unnoticed(),
            "usage": {name: getattr(run.usage, name) for name in run.usage.__slots__},
            "cost": run.cost,
            "model": run.model,
            "steps": run.steps,
            "seconds": run.seconds,
        },
        "state": {**loop.state.to_json(), "turn": loop.whereabouts()},
    }


def load(plan: Plan, saved: Mapping[str, Any], deps: Any = None) -> Loop:
    """The run as it was saved, ready for its next ask."""
    told = saved["run"]
    given = restored(plan.spec.input.schema, to_json(told["input"], inf_nan_mode="constants"), "input")
    kept = {name: told[name] for name in ("id", "history", "cost", "model", "steps", "seconds")}
    run: Run[Any] = Run(input=given, usage=Usage(**told["usage"]), deps=deps, **kept)
    run.ledger.note("events", told["thread"])
    run.ledger.iteration, run.ledger.since = told["iteration"], run.seconds
    state = State.from_json(saved["state"])
    loop = Loop(plan, run, state)
    loop.scribe.overlook(told["unnoticed"])
    if state.response is not None:
        # The user has removed the turn where it is not in the history, or may yet put it back.
        turn = messages.assistant(state.response, state.calls) if state.turn is None else run.history[state.turn]
        phase = state.resumes or state.phase
        is_open = phase in ("tools", "branches", "step") or (phase == "judge" and state.answered_by is not None)
        loop.scribe.resume(turn, state.calls if is_open else [])
    loop.recover()
    return loop
