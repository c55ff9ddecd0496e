"""Loading of stored runs: claim a run in its store, check its class and input, and create its `Tree` object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from acorn._drive.bridge import start_thread
from acorn._drive.commit import Origin, RunCommitter, to_saved_run, translate_read_errors
from acorn._drive.tree import Tree
from acorn._formats.blobs import BlobReader, read_without_blobs, save_text, to_saved_data
from acorn._formats.json import to_json_data
from acorn._history.saved_form import decode_instance, decode_record
from acorn._machine.human_input import PersonsAnswer
from acorn._machine.machine import Machine
from acorn._machine.plan import Plan
from acorn._machine.saved_run import attach_branch_records, load
from acorn._machine.stored_settings import check_saved_run, declared_addresses
from acorn.errors import StoreError
from acorn.record import Run, approval_digest
from acorn.stores.lease import claim_run, this_process
from acorn.stores.port import Store, StoredRun
from acorn.types import JsonObject, Request

_SECONDS_TO_RELEASE = 5.0
"""The seconds that a healthy store needs at most to claim and release a run."""


def claim(
    store: Store, run_id: str, agent: str, value: BaseModel | None = None, *, retry: bool = False
) -> Sequence[StoredRun] | None:
    """Claim a stored run for this process, check its class and input, and return the stored run and its branches.

    Return None if the store does not contain the run. With `retry`, a run whose step has killed several processes can
    be claimed.
    """
    stored = claim_run(store, run_id, retry=retry)
    if stored is not None:
        try:
            check_fit(stored[0], store, agent, value)
        except BaseException:
            _release(store, stored)
            raise
    return stored


def check_fit(stored: StoredRun, store: Store, agent: str, value: BaseModel | None) -> None:
    """Raise a `StoreError` if a stored run belongs to another class or was started with another input.

    The input class may have got new fields since the run was stored. Without an input, as for `resume`, only the name
    of the class must match, because the class may have moved to another file.
    """
    run_id, stored_agent = stored.facts.id, stored.header.agent
    has_same_name = stored_agent.partition(":")[2] == agent.partition(":")[2]
    if stored_agent != agent and not (value is None and has_same_name):
        raise StoreError(
            f"Run {run_id} in {store.name} belongs to `{stored_agent}`, not to `{agent}`. Resume it with that class."
        )
    if value is None:
        return
    with translate_read_errors(run_id, store):
        before, now = BlobReader(store.media).read(stored.header.input), _saved_form(value)
        is_same = before == now or _saved_form(decode_instance(type(value), before, "input")) == now
    if not is_same:
        raise StoreError(
            f"Run {run_id} in {store.name} was started with another input. Pass the original input, or use another "
            f"`run_id`."
        )


def _saved_form(value: BaseModel) -> Any:
    text, blobs = save_text(to_saved_data(value))
    return BlobReader(lambda _: {blob.sha256: blob.raw() for blob in blobs}).read(text)


def load_tree(
    stored: Sequence[StoredRun], plan: Plan, store: Store, origin: Origin, answers: Any = None, *, is_one: bool = False
) -> Tree:
    """Return the `Tree` of a stored run, with the human answers from the store and from `answers`.

    A `Tree` contains a run and its branches. `answers` maps request ids to answers. If `is_one` is True, `answers` is
    instead the answer to the only unanswered request. If the run has finished, the `Tree` contains only its result.
    Raise a `StoreError` if the run failed or was cancelled, because it cannot be resumed.
    """
    root = stored[0]
    run_id, facts = root.facts.id, root.facts
    try:
        with translate_read_errors(run_id, store):
            blobs, addresses = BlobReader(store.media), declared_addresses(plan.spec)
            saved = {each.facts.id: to_saved_run(each, blobs) for each in stored}
            for each in saved.values():
                check_saved_run(each, addresses, f"Run {run_id} in {store.name}")
            saved_root = saved.pop(run_id)
            if root.has_started:
                machine = load(plan, saved_root, plan.deps)
            else:  # The run was queued and starts here.
                value = decode_instance(plan.spec.input.schema, blobs.read(root.header.input), "input")
                machine = Machine(plan, Run(run_id, value, deps=plan.deps))
            committer = RunCommitter(store, run_id, origin, stored)
        if machine.is_over and machine.run.error is not None:
            raise StoreError(
                f"Run {run_id} cannot be resumed: it failed ({facts.error}). Start another run, or delete this one to "
                f"use its id again."
            ) from machine.run.error
        if facts.status == "cancelled":
            raise StoreError(f"Run {run_id} cannot be resumed: it was cancelled. Start another run.")
        new_answers = _answers_by_request(store, run_id, answers, is_one=is_one)
        if machine.is_over:
            return Tree(machine, saved)
        stored_answers = {each.request.id: PersonsAnswer(each.value, each.digest) for each in store.answers(run_id)}
        # Stored answers are not checked again, because they cannot be corrected. The model receives an error instead.
        with translate_read_errors(run_id, store):  # The saved branches may be damaged.
            tree = Tree(machine, saved, new_answers, committer, stored_answers)
        for request_id, answer in new_answers.items():  # `Tree` has checked the answers. Store them before their use.
            store.answer(request_id, answer.value)
        return tree
    except BaseException:
        _release(store, stored)
        raise


class _Claimed(Protocol):
    """A run that this process has claimed, such as a `Tree`."""

    def release(self) -> None: ...


Claimed = TypeVar("Claimed", bound=_Claimed)


async def build_in_thread(build: Callable[[], Claimed]) -> Claimed:
    """Call a function that claims and loads a run in a thread, because the store may be slow.

    If the caller is cancelled, release the claim on the run.
    """
    built = start_thread(build)
    waiting = asyncio.wrap_future(built)
    # asyncio logs an exception that no code retrieves.
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        released = asyncio.wrap_future(start_thread(_release_when_built, built))
        await asyncio.wait([released], timeout=_SECONDS_TO_RELEASE)  # Otherwise the next call finds the run claimed.
        raise


def _release_when_built(built: Future[Claimed]) -> None:
    if built.exception() is None:
        built.result().release()


def is_final(stored: StoredRun) -> bool:
    """Return True if a stored run has ended permanently, so that it cannot be resumed."""
    return stored.has_started and bool(read_without_blobs(stored.state)["phase"] == "done")


def read_record(stored: Sequence[StoredRun], store: Store, plan: Plan | None = None) -> Run:
    """Return the record of a stored run and its branches.

    Without a plan, the class of the run is not known, and input and output are JSON data.
    """
    with translate_read_errors(stored[0].facts.id, store):
        blobs = BlobReader(store.media)
        saved, *branches = [to_saved_run(each, blobs) for each in stored]
        run: Run = decode_record(Run, saved, None) if plan is None else load(plan, saved).run
        attach_branch_records(run, branches)
    return run


def stored_failure(stored: Sequence[StoredRun], store: Store) -> Exception:
    """Return the exception with which a stored run failed.

    The attribute `run` of the exception is the run record.
    """
    run = read_record(stored, store)
    if isinstance(run.error, Exception):
        return run.error
    # The store failed the run itself, so the record does not contain the error.
    return StoreError(stored[0].facts.error or f"Run {run.id} failed.")


def _answers_by_request(store: Store, run_id: str, answers: Any, *, is_one: bool) -> dict[str, PersonsAnswer]:
    """Return the answers that were passed to `resume`, as a dict that maps request ids to answers.

    If `is_one` is True, `answers` is the answer to the only unanswered request for human input.
    """
    if not is_one and not answers:
        return {}
    requests = store.requests(run_id)
    if is_one:
        if len(requests) != 1:
            raise StoreError(_not_one_request(run_id, requests))
        answers = {requests[0].id: answers}
    values: JsonObject = {request_id: to_json_data(answer) for request_id, answer in answers.items()}
    digests = {each.id: approval_digest(each, values[each.id]) for each in requests if each.id in values}
    return {request_id: PersonsAnswer(value, digests.get(request_id)) for request_id, value in values.items()}


def _not_one_request(run_id: str, requests: Sequence[Request]) -> str:
    if not requests:
        return f"Run {run_id} does not wait for an answer. Resume it without one."
    listed = "; ".join(f"{request.id}: {request.question}" for request in requests)
    return f"Run {run_id} waits for {len(requests)} answers ({listed}). Pass `answers={{id: ...}}`."


def _release(store: Store, stored: Sequence[StoredRun]) -> None:
    status = stored[0].facts.status
    store.release(stored[0].facts.id, this_process(), "stopped" if status == "running" else status)
