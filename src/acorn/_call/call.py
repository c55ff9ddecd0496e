"""The calls of an agent: code that starts or loads a run, drives it, and returns its record, stream or handle.

`module` imports this file at the first call of an agent. The file loads the drivers and asyncio. A program that only
declares classes does not need them.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Generic

from acorn._call import batch
from acorn._call import plan as plans
from acorn._call.branch import branch_all, branch_site, run_branch
from acorn._call.queued_batch import QueuedBatch
from acorn._call.submit import AsyncHandle, Handle, start_time, submit_run
from acorn._declare.generics import Deps, Out, check_deps, deps_type
from acorn._declare.module_base import AgentBase, BatchItem, CallOptions, set_call_options
from acorn._declare.settings import FLAG, Rule
from acorn._declare.spec_cache import Branch, active_overrides, agent_name, spec_of, spec_within
from acorn._drive.async_driver import adrive, adrive_stream
from acorn._drive.bridge import ASYNC, SYNC, Bridge
from acorn._drive.commit import RunCommitter
from acorn._drive.driver import iterate_inline, run_inline
from acorn._drive.load import build_in_thread, check_fit, claim, is_final, load_tree, stored_failure
from acorn._drive.sources import close_sources, open_sources
from acorn._drive.sync_driver import drive, drive_stream
from acorn._drive.tree import Tree
from acorn._formats.json import excerpt
from acorn._history.request_messages import prior_messages
from acorn._machine.machine import Machine
from acorn.chunk import StreamChunk
from acorn.errors import DeclarationError, InputError
from acorn.record import Run
from acorn.stores.port import Store, StoredRun, run_not_found_error
from acorn.types import JsonObject, is_mapping


class AgentCaller(Generic[Out, Deps]):
    """The implementation of all calls of one agent, such as `run`, `stream`, `resume`, `submit` and `map`."""

    __slots__ = ("_agent",)

    def __init__(self, agent: AgentBase) -> None:
        self._agent = agent

    def run(self, args: plans.Arguments, kwargs: JsonObject) -> Run[Out, Deps]:
        return drive(start_run(self._agent, plans.new_machine(self._agent, args, kwargs)))

    async def arun(self, args: plans.Arguments, kwargs: JsonObject) -> Run[Out, Deps]:
        start = self._start(args, kwargs)
        return await adrive(await build_in_thread(start) if self._has_run_id else start())

    def stream(self, args: plans.Arguments, kwargs: JsonObject) -> Generator[StreamChunk[Out]]:
        return _stream(self._start(args, kwargs))

    def astream(self, args: plans.Arguments, kwargs: JsonObject) -> AsyncGenerator[StreamChunk[Out]]:
        return _astream(self._start(args, kwargs), in_thread=self._has_run_id)

    def resume(self, run_id: str, answers: object, *, is_single: bool) -> Run[Out, Deps]:
        return drive(_load_run(self._agent, run_id, answers, is_single=is_single))

    async def aresume(self, run_id: str, answers: object, *, is_single: bool) -> Run[Out, Deps]:
        load = partial(_load_run, self._agent, run_id, answers, is_single=is_single)
        return await adrive(await build_in_thread(load))

    def submit(self, args: plans.Arguments, kwargs: JsonObject) -> Handle[Out]:
        return Handle(self._agent, *submit_run(self._agent, args, kwargs))

    async def asubmit(self, args: plans.Arguments, kwargs: JsonObject) -> AsyncHandle[Out]:
        return AsyncHandle(self._agent, *await asyncio.to_thread(submit_run, self._agent, args, kwargs))

    def map(self, rows: Iterable[Any], *arguments: Any) -> batch.Batch[Out]:
        progress, items = self._plan_batch(rows, batch.BatchOptions(*arguments), SYNC)
        return batch.Batch(progress, iterate_inline(items))

    def amap(self, rows: Iterable[Any], *arguments: Any) -> batch.AsyncBatch[Out]:
        return batch.AsyncBatch(*self._plan_batch(rows, batch.BatchOptions(*arguments), ASYNC))

    def branch(self, which: Branch, inputs: JsonObject) -> Any:
        return run_inline(run_branch(branch_site(self._agent), which, inputs, SYNC))

    async def abranch(self, which: Branch, inputs: JsonObject) -> Any:
        return await run_branch(branch_site(self._agent), which, inputs, ASYNC)

    def branch_all(self, branches: Sequence[tuple[Branch, Mapping[str, Any]]], concurrency: int | None) -> list[Any]:
        return branch_all(self._agent, branches, concurrency)

    def open_sources(self) -> None:
        run_inline(open_sources(self._agent, SYNC))

    async def aopen_sources(self) -> None:
        await open_sources(self._agent, ASYNC)

    def close_sources(self, error: BaseException | None) -> None:
        run_inline(close_sources(self._agent, SYNC, error))

    async def aclose_sources(self, error: BaseException | None) -> None:
        await close_sources(self._agent, ASYNC, error)

    def change_options(self, changes: Mapping[str, Any]) -> CallOptions:
        """Check the arguments of `using(...)`, and return the new call options."""
        options, owner = replace(self._agent.__acorn_call_options__, item=None), type(self._agent).__name__
        if "deps" in changes:
            check_deps(owner, deps_type(self._agent), changes["deps"])
            options = replace(options, deps=changes["deps"])
        if "history" in changes:
            options = replace(options, prior=prior_messages(changes["history"], owner))
        if "thread" in changes or "before" in changes:
            options = replace(options, fork=_fork_of(changes.get("thread"), changes.get("before"), owner))
        for name, rule in _OPTION_RULES.items():
            if name in changes:
                rule.check(f"`{name}` of `{owner}.using`", changes[name])
                options = replace(options, **{name: changes[name]})
        if not options.deliver and (options.priority or options.not_before is not None):
            raise DeclarationError(
                f"`priority` and `not_before` of `{owner}.using` apply only to the workers of the store. With "
                f"`deliver=False`, set them in the queue that delivers the run."
            )
        if options.fork is not None and options.prior:
            raise InputError(
                f"`{owner}.using` got both `history` and `thread`. A fork continues the conversation of its thread: "
                f"remove `history`."
            )
        return options

    @property
    def _has_run_id(self) -> bool:
        """Whether the user set a run id for the next run.

        Such a run starts in a thread, because the store may have to load and claim an existing run.
        """
        return self._agent.__acorn_call_options__.run_id is not None

    def _start(self, args: plans.Arguments, kwargs: JsonObject) -> Callable[[], Tree]:
        """Check the arguments of a call immediately, and return a function that starts the run."""
        return partial(start_run, self._agent, plans.new_machine(self._agent, args, kwargs))

    def _plan_batch(
        self, rows: Iterable[Any], options: batch.BatchOptions, bridge: Bridge
    ) -> tuple[batch.BatchProgress[Out], AsyncGenerator[batch.Item[Out]]]:
        agent = self._agent
        spec = spec_within(active_overrides.get(), agent)
        progress: batch.BatchProgress[Out] = batch.BatchProgress(rows, spec.owner, options)
        if self._has_run_id:
            raise DeclarationError(
                f"`{spec.owner}.using(run_id=...)` names one run, but a batch starts many. Remove `run_id`, and name "
                f"the batch with `map(..., id='nightly')`."
            )
        if options.id is not None:
            plans.store_of(spec)
        if options.queue:
            return progress, QueuedBatch(agent, progress, retry=options.retry).items(bridge)
        plans.check_not_queued(agent, spec.owner)

        def start_row(row: object, index: int, run_id: str | None) -> Tree:
            if run_id is None:
                return start_run(agent, plans.new_machine(agent, *batch.arguments_of(row, spec.input)))
            return _start_stored_row(agent, row, BatchItem(options.id, index), run_id, retry=options.retry)

        running_batch = batch.ThreadedBatch[Out] if bridge is SYNC else batch.TaskBatch[Out]
        return progress, running_batch(progress, start_row).items()


# Starting and loading runs


def start_run(agent: AgentBase, machine: Machine) -> Tree:
    """Return the tree of a new run, or claim the stored run with the same run id and return its tree."""
    if machine.spec.store is None and agent.__acorn_call_options__.run_id is None:
        return Tree(machine)
    return _start_stored_run(agent, machine)


def _start_stored_run(agent: AgentBase, machine: Machine) -> Tree:
    run_id, store, origin = machine.run.id, plans.store_of(machine.plan.spec), plans.origin_of(agent)
    if agent.__acorn_call_options__.run_id is not None:
        stored_runs = claim(store, run_id, origin.agent, machine.run.input)
        if stored_runs is not None:
            return load_tree(stored_runs, machine.plan, store, origin)
    return Tree(machine, committer=RunCommitter(store, run_id, origin))


def _start_stored_row(agent: AgentBase, row: object, item: BatchItem, run_id: str, *, retry: bool) -> Tree:
    """Start the run of one row of a batch, or load it if an earlier call of the batch started it.

    A run that failed in an earlier call fails again with the same error, unless `retry` is set.
    """
    args, kwargs = batch.arguments_of(row, spec_of(agent).input)
    row_agent = copy.copy(agent)
    set_call_options(row_agent, replace(agent.__acorn_call_options__, run_id=run_id, item=item))
    machine = plans.new_machine(row_agent, args, kwargs)
    store = plans.store_of(machine.spec)
    stored_runs = store.read(run_id)
    if stored_runs and stored_runs[0].facts.status == "failed":
        check_fit(stored_runs[0], store, agent_name(type(agent)), machine.run.input)
        if not retry:
            raise stored_failure(stored_runs, store)
        if is_final(stored_runs[0]):
            store.delete(run_id)
    return _start_stored_run(row_agent, machine)


def _load_run(agent: AgentBase, run_id: str, answers: object, *, is_single: bool) -> Tree:
    """Claim a stored run, load it, and apply answers to its requests for human input.

    `answers` is a dict that maps request ids to answers. If `is_single` is True, `answers` is the answer to the only
    request.
    """
    owner = type(agent).__name__
    value: object = run_id
    if not isinstance(value, str):
        raise InputError(f"`{owner}.resume` needs the id of a run, such as `paused.run_id`, got {excerpt(value)}.")
    if not is_single and not is_mapping(answers):
        raise InputError(
            f"`answers` of `{owner}.resume` must be a dict that maps request ids to answers, got {excerpt(answers)}. "
            f"For the only open request of a run, use `answer=...`."
        )
    plan = plans.plan_for(agent, active_overrides.get())
    plans.check_plan(plan)
    store, origin = plans.store_of(plan.spec), plans.origin_of(agent)
    stored_runs = claim(store, run_id, origin.agent)
    if stored_runs is None:
        raise run_not_found_error(run_id, store.name)
    return load_tree(stored_runs, plan, store, origin, answers, is_one=is_single)


def load_queued(agent: AgentBase, stored_runs: Sequence[StoredRun], store: Store) -> Tree:
    """Load a run from a queue, which this process has already claimed."""
    plan = plans.plan_for(agent)
    plans.check_plan(plan)
    return load_tree(stored_runs, plan, store, plans.origin_of(agent))


# Streams


def resume_stream(agent: AgentBase, run_id: str, answers: Mapping[str, Any]) -> Generator[StreamChunk]:
    """Load a stored run immediately, and return an iterator that resumes the run and yields its chunks."""
    loaded = _load_run(agent, run_id, answers, is_single=False)
    return _stream(lambda: loaded)


def aresume_stream(agent: AgentBase, run_id: str) -> AsyncGenerator[StreamChunk]:
    """Resume a stored run on the event loop, and yield its chunks."""
    return _astream(partial(_load_run, agent, run_id, {}, is_single=False), in_thread=True)


def _stream(start: Callable[[], Tree]) -> Generator[StreamChunk]:
    tree = start()  # Start the run here, so that a stream without iteration does not claim it.
    yield from drive_stream(tree, tree.root)
    run = tree.machines[tree.root].run
    yield StreamChunk(result=run.output, run=run)


async def _astream(start: Callable[[], Tree], *, in_thread: bool) -> AsyncGenerator[StreamChunk]:
    tree = await build_in_thread(start) if in_thread else start()
    async with aclosing(adrive_stream(tree, tree.root)) as chunks:
        async for chunk in chunks:
            yield chunk
    run = tree.machines[tree.root].run
    yield StreamChunk(result=run.output, run=run)


# Options of `using`


def _is_run_id(run_id: object) -> bool:
    return isinstance(run_id, str) and bool(run_id.strip()) and len(run_id) <= 200 and run_id.isprintable()


def _is_priority(priority: object) -> bool:
    if not isinstance(priority, int) or isinstance(priority, bool):
        return False
    return -(2**31) <= priority < 2**31  # The queue stores 32-bit integers.


def _is_start_time(not_before: object) -> bool:
    if isinstance(not_before, bool) or not isinstance(not_before, int | float | datetime | timedelta | None):
        return False
    try:
        start_time(not_before, datetime.now(UTC))
    except (OverflowError, ValueError):  # The time is not in the years 1 to 9999.
        return False
    return True


_OPTION_RULES = {
    "run_id": Rule(_is_run_id, "a name of at most 200 characters such as 'order-17'").or_none(),
    "priority": Rule(_is_priority, "a whole number; runs with a higher number start first"),
    "not_before": Rule(
        _is_start_time, "a datetime, a timedelta or a number of seconds from now, in the years 1 to 9999"
    ),
    "deliver": FLAG,
}


def _fork_of(thread: object, before: object, owner: str) -> Any:
    """Return the fork that `using(thread=..., before=...)` describes, or None if both arguments are None."""
    if thread is before is None:
        return None
    from acorn._machine.fork import fork_of  # This loads the event classes, which only a forked run needs.

    return fork_of(thread, before, owner)
