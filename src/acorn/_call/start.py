"""How a run begins: anew, or out of its store, by its name, by its id, or as an item of a batch."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from acorn._call.batch import BatchOptions, BatchProgress, StartRow, arguments_of, batch_progress
from acorn._call.plan import Agent, check_deps_below, check_shared, new_loop, plan_for, refuse_queueing
from acorn._declare.generics import check_deps
from acorn._declare.settings import SETTINGS
from acorn._declare.spec import Spec
from acorn._declare.spec_cache import (
    CALL_OPTIONS,
    BatchItem,
    agent_name,
    call_options,
    current_overrides,
    spec_of,
    spec_within,
)
from acorn._drive.commit import Origin, RunCommitter
from acorn._drive.load import check_fit, claim, is_final, load_tree, stored_failure
from acorn._drive.tree import Tree
from acorn._formats.json import excerpt, to_json_data
from acorn._machine.machine import Machine
from acorn._machine.state import OBJECT, written_settings
from acorn.errors import DeclarationError
from acorn.stores import messages
from acorn.stores.open import open_store
from acorn.stores.port import Store, StoredRun
from acorn.types import JsonObject

Arguments = tuple[Any, ...]


def start(agent: Agent[Any, Any], args: Arguments, kwargs: dict[str, Any]) -> tuple[Tree, str]:
    return new_tree(agent, new_loop(agent, args, kwargs))


def new_tree(agent: Agent[Any, Any], loop: Machine) -> tuple[Tree, str]:
    """The tree of a run, which is held from now on where it was begun before."""
    if loop.spec.store is None and call_options(agent).run_id is None:
        return Tree(loop), loop.run.id
    return _start_stored(agent, loop)


def _start_stored(agent: Agent[Any, Any], loop: Machine) -> tuple[Tree, str]:
    """A run that is kept; by the name it was given, it may be one that was begun before."""
    run_id, store, origin = loop.run.id, store_of(loop.plan.spec), origin_of(agent)
    if call_options(agent).run_id is not None:
        found = claim(store, run_id, origin.agent, loop.run.input)
        if found is not None:
            return load_tree(found, loop.plan, store, origin), run_id
    return Tree(loop, committer=RunCommitter(store, run_id, origin)), run_id


def load_resumed(agent: Agent[Any, Any], run_id: str, given: Any, *, is_one: bool) -> tuple[Tree, str]:
    plan = plan_for(agent, current_overrides())
    check_deps(plan.spec.owner, plan.deps_type, plan.deps)
    check_deps_below(plan.spec, plan.deps, [])
    check_shared(plan.spec, plan.spec.store, [])
    store, origin = store_of(plan.spec), origin_of(agent)
    found = claim(store, run_id, origin.agent, may_have_moved=True)
    if found is None:
        raise messages.run_not_found(run_id, store.name)
    return load_tree(found, plan, store, origin, given, is_one=is_one), run_id


def load_queued(agent: Agent[Any, Any], found: Sequence[StoredRun], store: Store) -> Tree:
    """A run that an engine has delivered, and that is held by this process."""
    plan = plan_for(agent)
    check_deps(plan.spec.owner, plan.deps_type, plan.deps)
    check_deps_below(plan.spec, plan.deps, [])
    return load_tree(found, plan, store, origin_of(agent))


def stored_settings(kept: StoredRun) -> JsonObject:
    """What the instance of a run had set, as far as it was kept."""
    notes = json.loads(kept.header.overrides) if kept.header.overrides else {}
    settings = dict(notes.get("settings", {}))
    model = settings.get("model")
    if OBJECT in (model if isinstance(model, list) else [model]):
        del settings["model"]
    return settings


def plan_batch(agent: Agent[Any, Any], rows: Any, options: BatchOptions) -> tuple[BatchProgress[Any], StartRow]:
    spec = spec_within(current_overrides(), agent)
    book: BatchProgress[Any] = batch_progress(rows, spec.owner, options)
    id, retry = options.id, options.retry
    if call_options(agent).run_id is not None:
        raise DeclarationError(
            f"`run_id` of `{spec.owner}.using` names one run, and a batch begins many; leave it out, and name the "
            f"batch by `map(..., id='nightly')`."
        )
    if not options.queue:
        refuse_queueing(agent, spec.owner)
    if id is None:
        return book, lambda row, at, run_id: start(agent, *arguments_of(row, spec.input))
    store_of(spec)
    return book, lambda row, at, run_id: _start_row(agent, row, BatchItem(id, at), str(run_id), bool(retry))


def _start_row(agent: Agent[Any, Any], row: Any, item: BatchItem, run_id: str, retry: bool) -> tuple[Tree, str]:
    """The run of one row of a batch: a new one, or where it has an id, perhaps one of an earlier call.

    What had failed by then fails again, unless it is to be tried again.
    """
    args, kwargs = arguments_of(row, spec_of(agent).input)
    vars(named := copy.copy(agent))[CALL_OPTIONS] = replace(call_options(agent), run_id=run_id, item=item)
    loop = new_loop(named, args, kwargs)
    store = store_of(loop.spec)
    before = store.read(run_id)
    if before and before[0].facts.status == "failed":
        check_fit(before[0], store, agent_name(type(agent)), loop.run.input)
        if not retry:
            raise stored_failure(before, loop.plan, store)
        if is_final(before[0]):
            store.delete(run_id)
    return _start_stored(named, loop)


def store_of(spec: Spec) -> Store:
    if spec.store is None:
        raise DeclarationError(
            f"`{spec.owner}` keeps no runs; say where, as in `store = 'runs.db'` on the class or "
            f"`{spec.owner}(store='runs.db')`."
        )
    return open_store(spec.store, f"`{spec.owner}.store`")


def origin_of(agent: Agent[Any, Any]) -> Origin:
    """What a store keeps beside the run: its class, and what the instance has set for itself, as far as it is data."""
    own = {name: value for name, value in list(vars(agent).items()) if name in SETTINGS and name != "store"}
    written = written_settings(own)
    plain = {
        name: value for name, value in written.items() if isinstance(value, str | int | float | dict | list | None)
    }
    overrides = {name: value for name, value in plain.items() if to_json_data(value) == value}
    file = getattr(sys.modules.get(type(agent).__module__), "__file__", None)
    item = call_options(agent).item
    return Origin(agent_name(type(agent)), overrides, file, *((None, None) if item is None else item))


def checked_id(run_id: Any, owner: str) -> str | None:
    """The name of a run, as `using` takes it."""
    if run_id is None or (isinstance(run_id, str) and run_id.strip() and len(run_id) <= 200 and run_id.isprintable()):
        return run_id
    raise DeclarationError(
        f"`run_id` of `{owner}.using` must be a name of at most 200 characters such as 'order-17', "
        f"got {excerpt(run_id)}."
    )
