"""A run as it was kept, on its way again: claimed from its store, checked against its class, and loaded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel

from acorn._drive.commit import Origin, RunCommitter, read_whole, saved_of
from acorn._drive.tree import Tree
from acorn._formats.blobs import BlobReader, read_without_blobs, save_text, to_saved_data
from acorn._formats.json import to_json_data
from acorn._machine.machine import Machine
from acorn._machine.plan import Plan
from acorn._machine.saved_run import hang_records, load
from acorn._record.saved_form import read_instance, read_record
from acorn.errors import StoreError
from acorn.record import Run
from acorn.stores.lease import take_claim, this_process
from acorn.stores.port import Store, StoredRun
from acorn.types import JsonObject, Request

_SOON = 5.0
"""Seconds in which a run is claimed and given back, where its store is well."""


def claim(
    store: Store, run_id: str, agent: str, given: BaseModel | None = None, *, may_have_moved: bool = False
) -> Sequence[StoredRun] | None:
    """The run of that class, and of that input if one is given, held by this process from now on; None: there is none.

    Whoever resumes a run says that it is one of the class, whose file may have moved since.
    """
    found = take_claim(store, run_id)
    if found is not None:
        try:
            check_fit(found[0], store, agent, given, may_have_moved=may_have_moved)
        except BaseException:
            _release(store, found)
            raise
    return found


def check_fit(
    kept: StoredRun, store: Store, agent: str, given: BaseModel | None, *, may_have_moved: bool = False
) -> None:
    """A name stands for one class and one input; the class of the input may have got further fields since."""
    run_id, known = kept.facts.id, kept.birth.agent
    is_its_class = known.partition(":")[2] == agent.partition(":")[2] if may_have_moved else known == agent
    if not is_its_class:
        raise StoreError(
            f"The run {run_id} in {store.name} is one of `{known}`, not of `{agent}`; go on with it by that class."
        )
    if given is None:
        return
    before, now = BlobReader(store.media).read(kept.birth.input), _plain(given)
    if before != now and _plain(read_instance(type(given), before, "input")) != now:
        raise StoreError(
            f"The run {run_id} in {store.name} was begun with another input; call it with that one, or give another "
            f"`run_id`."
        )


def _plain(given: BaseModel) -> Any:
    text, data = save_text(to_saved_data(given))
    return BlobReader(lambda _: {each.sha256: each.raw() for each in data}).read(text)


def load_tree(
    found: Sequence[StoredRun], plan: Plan, store: Store, origin: Origin, given: Any = None, *, is_one: bool = False
) -> Tree:
    """The machines of a kept run, ready to go on with what people have answered; `given` are further answers.

    A run that had ended well is ready to be looked at; one that cannot go on is an error.
    """
    root, *below = found
    run_id, facts = root.facts.id, root.facts
    try:
        with read_whole(run_id, store):
            shelf = BlobReader(store.media)
            loop = load(plan, saved_of(root, shelf), plan.deps) if root.has_begun else _new_loop(root, shelf, plan)
            saved = {each.facts.id: saved_of(each, shelf) for each in below}
        if loop.is_over and loop.run.error is not None:
            raise StoreError(
                f"The run {run_id} has failed and cannot go on ({facts.error}); begin another one, or delete this one "
                f"to use its id again."
            ) from loop.run.error
        if facts.status == "cancelled":
            raise StoreError(f"The run {run_id} was cancelled, so it does not go on; begin another one.")
        said = _answers(store, run_id, given, is_one=is_one)
        if loop.is_over:
            return Tree(loop, saved)
        answers = {each.request.id: each.value for each in store.answers(run_id)}
        # What was kept is not judged again, since nobody could mend it: where it does not fit, the model is told.
        tree = Tree(loop, saved, said, RunCommitter(store, run_id, origin, found), answers)
        for request_id, value in said.items():  # they were judged, and are kept before anything comes of them
            store.answer(request_id, value)
        return tree
    except BaseException:
        _release(store, found)
        raise


def _new_loop(kept: StoredRun, shelf: BlobReader, plan: Plan) -> Machine:
    """A run that was put into its store, and that begins here."""
    given = read_instance(plan.spec.input.schema, shelf.read(kept.birth.input), "input")
    return Machine(plan, Run(kept.facts.id, given, deps=plan.deps))


async def build_in_thread(make: Callable[[], tuple[Tree, str]]) -> tuple[Tree, str]:
    """Make a tree in a thread, since its store may take a while; where nobody waits any more, it is given back."""
    guard, made, is_left = threading.Lock(), list[tuple[Tree, str]](), False

    def act() -> None:
        if is_left:  # before its turn came
            return
        found = make()
        with guard:
            made.append(found)
            if not is_left:
                return
        found[0].release()

    making = asyncio.ensure_future(asyncio.to_thread(act))
    making.add_done_callback(lambda task: task.cancelled() or task.exception())  # or the event loop complains of it
    try:
        await asyncio.shield(making)
    except asyncio.CancelledError:
        with guard:
            is_left = True
        for tree, _ in made:
            tree.release()
        await asyncio.wait([making], timeout=_SOON)  # or the next call would find it held
        raise
    return made[0]


def is_final(kept: StoredRun) -> bool:
    """Whether a run is over for good."""
    return kept.has_begun and bool(read_without_blobs(kept.state)["phase"] == "done")


def stored_failure(found: Sequence[StoredRun], plan: Plan, store: Store) -> Exception:
    """What a run failed of, with its record."""
    shelf = BlobReader(store.media)
    run: Run = read_record(Run, saved_of(found[0], shelf), None)
    hang_records(run, [saved_of(each, shelf) for each in found[1:]])
    error = run.error
    if not isinstance(error, Exception):
        # The store has given it up: nobody was there to write it down.
        return StoreError(found[0].facts.error or f"The run {run.id} of `{plan.spec.owner}` has failed.")
    error.run = run  # type: ignore[attr-defined]
    return error


def _answers(store: Store, run_id: str, given: Any, *, is_one: bool) -> JsonObject:
    """What `resume` was given, by request."""
    if not is_one and not given:
        return {}
    requests = store.requests(run_id)
    if is_one:
        if len(requests) != 1:
            raise StoreError(_not_one(run_id, requests))
        return {requests[0].id: to_json_data(given)}
    return {request_id: to_json_data(value) for request_id, value in given.items()}


def _not_one(run_id: str, requests: Sequence[Request]) -> str:
    if not requests:
        return f"The run {run_id} waits for no answer; resume it without one."
    listed = "; ".join(f"{each.id}: {each.question}" for each in requests)
    return f"The run {run_id} waits for {len(requests)} answers ({listed}); give `answers={{id: ...}}`."


def _release(store: Store, found: Sequence[StoredRun]) -> None:
    status = found[0].facts.status
    store.release(found[0].facts.id, this_process(), "stopped" if status == "running" else status)
