"""A run as it was kept, on its way again: claimed from its store, checked against its class, and loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from acorn._drive.keeping import Keeper, Origin, saved_of
from acorn._drive.run_tree import Tree
from acorn._json import to_plain
from acorn._loop.plan import Plan
from acorn._loop.saved_run import hang_records, load
from acorn._record_json import read_record
from acorn.errors import StoreError
from acorn.record import Run
from acorn.stores.holder import this_process
from acorn.stores.port import Kept, Store
from acorn.types import Request


def claimed(store: Store, run_id: str, agent: str) -> Sequence[Kept] | None:
    """The run of that class, held by this process from now on; None where there is none."""
    holder = this_process()
    found = store.claim(run_id, holder)
    if found is not None and found[0].birth.agent != agent:
        _give_back(store, found)
        raise StoreError(
            f"The run {run_id} in {store.name} is one of `{found[0].birth.agent}`, not of `{agent}`; go on with it by "
            f"that class."
        )
    return found


def check_input(found: Sequence[Kept], given: Any, store: Store) -> None:
    """A name stands for one input."""
    if json.loads(found[0].birth.input) != json.loads(json.dumps(to_plain(given))):
        _give_back(store, found)
        raise StoreError(
            f"The run {found[0].facts.id} in {store.name} was begun with another input; call it with that one, or "
            f"give another `run_id`."
        )


def kept_tree(
    found: Sequence[Kept], plan: Plan, store: Store, origin: Origin, given: Any = None, *, is_one: bool = False
) -> Tree:
    """The machines of a kept run, ready to go on with what people have answered; `given` are further answers.

    A run that had ended well is ready to be looked at; one that cannot go on is an error.
    """
    root, *below = found
    run_id, facts = root.facts.id, root.facts
    try:
        loop = load(plan, saved_of(root), plan.deps)
        if loop.is_over and loop.run.error is not None:
            raise StoreError(f"The run {run_id} has failed and cannot go on: {facts.error}") from loop.run.error
        if facts.status == "cancelled":
            raise StoreError(f"The run {run_id} was cancelled, so it does not go on; begin another one.")
        saved = {each.facts.id: saved_of(each) for each in below}
        said = _answers(store, run_id, given, is_one=is_one)
        if loop.is_over:
            return Tree(loop, saved)
        answers = {each.request.id: each.value for each in store.answers(run_id)}
        tree = Tree(loop, saved, {**answers, **said}, Keeper(store, run_id, origin, found))
        for request_id, value in said.items():  # they were judged, and are kept before anything comes of them
            store.answer(request_id, value)
        return tree
    except BaseException:
        _give_back(store, found)
        raise


def is_final(kept: Kept) -> bool:
    """Whether a run is over for good."""
    return bool(json.loads(kept.state)["phase"] == "done")


def recorded_failure(found: Sequence[Kept], plan: Plan) -> Exception:
    """What a run failed of, with its record."""
    run: Run[Any] = read_record(Run, saved_of(found[0]), None)
    hang_records(run, [saved_of(each) for each in found[1:]])
    error = run.error
    if not isinstance(error, Exception):
        return StoreError(f"The run {run.id} of `{plan.spec.owner}` has failed.")
    error.run = run  # type: ignore[attr-defined]
    return error


def _answers(store: Store, run_id: str, given: Any, *, is_one: bool) -> dict[str, Any]:
    """What `resume` was given, by request."""
    if not is_one and not given:
        return {}
    requests = store.requests(run_id)
    if is_one:
        if len(requests) != 1:
            raise StoreError(_not_one(run_id, requests))
        return {requests[0].id: to_plain(given)}
    return {request_id: to_plain(value) for request_id, value in given.items()}


def _not_one(run_id: str, requests: Sequence[Request]) -> str:
    if not requests:
        return f"The run {run_id} waits for no answer; resume it without one."
    listed = "; ".join(f"{each.id}: {each.question}" for each in requests)
    return f"The run {run_id} waits for {len(requests)} answers ({listed}); give `answers={{id: ...}}`."


def _give_back(store: Store, found: Sequence[Kept]) -> None:
    status = found[0].facts.status
    store.release(found[0].facts.id, this_process(), "stopped" if status == "running" else status)
