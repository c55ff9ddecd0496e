"""The way into a run: a call is checked, bound to its instance, and handed to a driver.

`_module` calls it, and loads it when something is first called: it brings the loop, the drivers and asyncio,
which a program that only declares modules does not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from acorn._base.interrupts import StopSignal
from acorn._call.batch import AsyncBatch, Batch, BatchOptions, TaskBatch, ThreadedBatch
from acorn._call.plan import Agent, new_loop, plan_for
from acorn._call.queued_batch import QueuedBatch
from acorn._call.start import checked_id, load_resumed, new_tree, plan_batch, start
from acorn._call.submit import AsyncHandle, Handle, Submission, check_queueing
from acorn._declare.spec_cache import (
    call_options,
    check_branch,
    current_overrides,
    instance_of,
)
from acorn._drive.async_driver import adrive, adrive_stream
from acorn._drive.bridge import run_concurrently
from acorn._drive.driven_run import remember_stored
from acorn._drive.load import build_in_thread
from acorn._drive.sources import aclose_sources, aopen_sources, close_sources, open_sources
from acorn._drive.sync_driver import drive, drive_stream
from acorn._drive.tree import Tree, current_machine, tree_of
from acorn._formats.json import describe_error, excerpt
from acorn._history.first_messages import prior_messages
from acorn._machine.inheritance import unfinished
from acorn._machine.state import BranchContext
from acorn.chunk import StreamChunk
from acorn.errors import AcornError, BranchError, DeclarationError
from acorn.record import CallSite, Run, call_site_of
from acorn.stores.port import Store
from acorn.types import Unfinished

__all__ = [
    "run",
    "arun",
    "stream",
    "astream",
    "batch",
    "abatch",
    "resume",
    "aresume",
    "resume_stream",
    "aresume_stream",
    "BatchOptions",
    "submit",
    "asubmit",
    "checked_id",
    "check_queueing",
    "fork_of",
    "branch",
    "abranch",
    "branch_all",
    "prior_messages",
    "open_sources",
    "aopen_sources",
    "close_sources",
    "aclose_sources",
]

Out = TypeVar("Out")
Deps = TypeVar("Deps")
Arguments = tuple[Any, ...]


def run(agent: Agent[Out, Deps], args: Arguments, kwargs: dict[str, Any]) -> Run[Out, Deps]:
    return drive_tree(*start(agent, args, kwargs))


async def arun(agent: Agent[Out, Deps], args: Arguments, kwargs: dict[str, Any]) -> Run[Out, Deps]:
    loop = new_loop(agent, args, kwargs)
    if call_options(agent).run_id is None:
        return await adrive_tree(*new_tree(agent, loop))
    return await adrive_tree(*await build_in_thread(partial(new_tree, agent, loop)))


def fork_of(thread: Any, before: Any, owner: str) -> Any:
    """What `using(thread=..., before=...)` brings along; None and no step for what has no past."""
    if thread is before is None:
        return None
    from acorn._machine.fork import fork_of  # the events' classes, which a call that is no fork does not need

    return fork_of(thread, before, owner)


def resume(agent: Agent[Out, Deps], run_id: str, given: Any, *, is_one: bool) -> Run[Out, Deps]:
    return drive_tree(*load_resumed(agent, run_id, given, is_one=is_one))


def resume_stream(agent: Agent[Out, Any], run_id: str, answers: Mapping[str, Any]) -> Generator[StreamChunk[Out]]:
    found = load_resumed(agent, run_id, answers, is_one=False)  # what is wrong is told before anything is shown
    return _stream(lambda: found)


def aresume_stream(agent: Agent[Out, Any], run_id: str) -> AsyncGenerator[StreamChunk[Out]]:
    return _astream(partial(load_resumed, agent, run_id, {}, is_one=False), is_named=True)


async def aresume(agent: Agent[Out, Deps], run_id: str, given: Any, *, is_one: bool) -> Run[Out, Deps]:
    return await adrive_tree(*await build_in_thread(partial(load_resumed, agent, run_id, given, is_one=is_one)))


def submit(agent: Agent[Out, Any], args: Arguments, kwargs: dict[str, Any]) -> Handle[Out]:
    return Handle(agent, *_put(agent, args, kwargs))


async def asubmit(agent: Agent[Out, Any], args: Arguments, kwargs: dict[str, Any]) -> AsyncHandle[Out]:
    return AsyncHandle(agent, *await asyncio.to_thread(_put, agent, args, kwargs))


def _put(agent: Agent[Any, Any], args: Arguments, kwargs: dict[str, Any]) -> tuple[str, Store]:
    intake = Submission(agent)
    queued = intake.run(args, kwargs, call_options(agent).run_id, None)
    if not intake.put([queued]):
        intake.check_known(queued)
    return queued.run_id, intake.store


def batch(agent: Agent[Out, Any], rows: Any, options: BatchOptions) -> Batch[Out]:
    book, begin = plan_batch(agent, rows, options)
    if options.queue:
        return Batch(book, QueuedBatch(agent, book, retry=bool(options.retry)).go())
    return Batch(book, ThreadedBatch(book, begin, drive_tree).go())


def abatch(agent: Agent[Out, Any], rows: Any, options: BatchOptions) -> AsyncBatch[Out]:
    book, begin = plan_batch(agent, rows, options)
    if options.queue:
        return AsyncBatch(book, QueuedBatch(agent, book, retry=bool(options.retry)).ago())
    return AsyncBatch(book, TaskBatch(book, begin, adrive_tree).go())


def drive_tree(tree: Tree, run_id: str) -> Run:
    if not _already_finished(tree, run_id):
        drive(tree, run_id)
    return tree.machines[run_id].run


async def adrive_tree(tree: Tree, run_id: str) -> Run:
    if not _already_finished(tree, run_id):
        await adrive(tree, run_id)
    return tree.machines[run_id].run


def _already_finished(tree: Tree, run_id: str) -> bool:
    """Whether a run that was kept had ended, and only shows what it came to."""
    loop = tree.machines[run_id]
    if loop.is_over:
        remember_stored(loop.run, loop.plan.agent)
    return loop.is_over


def stream(agent: Agent[Out, Any], args: Arguments, kwargs: dict[str, Any]) -> Generator[StreamChunk[Out]]:
    return _stream(partial(new_tree, agent, new_loop(agent, args, kwargs)))


def astream(agent: Agent[Out, Any], args: Arguments, kwargs: dict[str, Any]) -> AsyncGenerator[StreamChunk[Out]]:
    make = partial(new_tree, agent, new_loop(agent, args, kwargs))
    return _astream(make, is_named=call_options(agent).run_id is not None)


def branch(agent: Agent[Any, Any], which: type[Agent[Out, Any]] | Agent[Out, Any], inputs: dict[str, Any]) -> Out:
    return cast(Out, _walk_branch(_branch_site(agent), which, inputs))


async def abranch(
    agent: Agent[Any, Any], which: type[Agent[Out, Any]] | Agent[Out, Any], inputs: dict[str, Any]
) -> Out:
    born = _branch_site(agent)
    with _branching(born, which, inputs) as (tree, run_id):
        if not tree.machines[run_id].is_over:
            await adrive(tree, run_id)
            if not tree.machines[run_id].is_over:
                await tree.siblings.wait_for_others(born.place, run_id)
            _raise_if_paused(tree, run_id)
    return cast(Out, tree.machines[run_id].run.output)


def branch_all(
    agent: Agent[Any, Any], branches: Sequence[tuple[object, Mapping[str, Any]]], concurrency: int | None
) -> list[Any]:
    _check_branches(branches, concurrency)
    # Each has its id before the first begins: threads come in any order.
    places = [_branch_site(agent) for _ in branches]

    def attempt(which: object, inputs: Mapping[str, Any], born: _BranchSite) -> Any:
        try:
            return _walk_branch(born, which, dict(inputs))
        except (BranchError, StopSignal) as error:
            if isinstance(error, StopSignal) and error.reason != "paused":
                raise
            return error

    acts = [partial(attempt, which, inputs, born) for (which, inputs), born in zip(branches, places, strict=True)]
    came = run_concurrently(acts, concurrency)
    for each in came:
        if isinstance(each, StopSignal):  # Only now that all branches have ended or paused.
            raise each
    return came


class _BranchSite(NamedTuple):
    """Where code of the user's begins a branch."""

    tree: Tree
    parent_id: str
    """The run that it is a branch of."""
    place: CallSite
    """Where the code is: in that run, or in a branch of it."""
    id: str


def _branch_site(agent: Agent[Any, Any]) -> _BranchSite:
    """Where a branch of this instance's run begins; an error where the calling code is not inside of one."""
    found = call_site_of(agent)
    if found is not None and found[1].stop_reason is None:
        place, run = found
        # Branches side by side may call one tool of their parent's, so the id says in which of them it is.
        place_id = place.next() if place.run_id == run.id else f"{place.run_id}/{place.next()}"
        return _BranchSite(tree_of(place), run.id, place, place_id)
    machine, name = current_machine(), type(agent).__name__
    if machine is not None and not machine.is_over:
        running = type(machine.plan.agent).__name__
        raise AcornError(
            f"This `{name}` has no run to branch from: this code is inside a run of another instance, of `{running}`; "
            f"call `branch` on that one."
        )
    raise AcornError(
        "There is no run to branch from: `self.branch(...)` works inside hooks and tools while their module is "
        "being called."
    )


def _check_branches(branches: Any, concurrency: Any) -> None:
    """Judge what `branch_all` was given, before anything is begun."""
    if not isinstance(branches, list | tuple):
        raise DeclarationError(
            f"`branch_all` takes a list of pairs, each a module class and a dict of its inputs, "
            f"got {excerpt(branches)}."
        )
    for at, pair in enumerate(branches):
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[1], Mapping)
        if not is_pair:
            raise DeclarationError(
                f"`branch_all` takes pairs of a module class and a dict of its inputs, as in `(Review, {{}})`; "
                f"`branches[{at}]` is {excerpt(pair)}."
            )
        check_branch(pair[0], f"`branches[{at}][0]` of `branch_all`")
    is_count = isinstance(concurrency, int) and not isinstance(concurrency, bool) and concurrency >= 1
    if concurrency is not None and not is_count:
        raise DeclarationError(
            f"`concurrency` of `branch_all` must be a whole number of at least 1, or None for all at once, "
            f"got {excerpt(concurrency)}."
        )


def _walk_branch(born: _BranchSite, which: object, inputs: dict[str, Any]) -> Any:
    with _branching(born, which, inputs) as (tree, run_id):
        if not tree.machines[run_id].is_over:  # it may have been saved, and had ended by then
            drive(tree, run_id)
            _raise_if_paused(tree, run_id)
    return tree.machines[run_id].run.output


def _raise_if_paused(tree: Tree, run_id: str) -> None:
    """A branch that waits for people has nothing to return: the code that began it is left, and called anew later."""
    if not tree.machines[run_id].is_over:
        raise StopSignal("paused")


@contextmanager
def _branching(born: _BranchSite, which: object, inputs: dict[str, Any]) -> Generator[tuple[Tree, str]]:
    """A branch that the user's code begins; what goes wrong with it is a `BranchError`."""
    check_branch(which, "A branch")
    name = (which if isinstance(which, type) else type(which)).__name__
    tree = born.tree
    context: BranchContext | None = None
    failed: BaseException | None = None
    try:
        plan = plan_for(instance_of(which), current_overrides())
        given = plan.spec.input.from_call(name, (), inputs)
        context = tree.new_branch(born.place, born.parent_id, born.id, name, plan, given)
        tree.siblings.start(born.place, context.run_id)
        yield tree, context.run_id
    except BaseException as error:
        failed = error
        if not isinstance(error, Exception) or error is tree.fatal_error:  # no failure of the branch's own
            raise
        path = name if context is None else context.path
        raise BranchError(f"The branch `{path}` failed: {describe_error(error)}") from error
    finally:
        if context is not None:
            tree.siblings.end(born.place, context.run_id)
        is_interrupted = failed is not None and not isinstance(failed, Exception)
        if context is not None and not is_interrupted:  # it may go on, and is counted when it has ended
            tree.finish_branch(context, failed)
    assert context is not None
    if isinstance(tree.machines[context.run_id].run.output, Unfinished):
        raise BranchError(f"The branch failed: {unfinished(context.path)}")


def _stream(make: Callable[[], tuple[Tree, str]]) -> Generator[StreamChunk]:
    tree, run_id = make()  # only now: a stream that nobody reads holds nothing
    if not _already_finished(tree, run_id):
        yield from drive_stream(tree, run_id)
    run = tree.machines[run_id].run
    yield StreamChunk(result=run.output, run=run)


async def _astream(make: Callable[[], tuple[Tree, str]], *, is_named: bool) -> AsyncGenerator[StreamChunk]:
    tree, run_id = await build_in_thread(make) if is_named else make()
    if not _already_finished(tree, run_id):
        async with aclosing(adrive_stream(tree, run_id)) as chunks:
            async for chunk in chunks:
                yield chunk
    run = tree.machines[run_id].run
    yield StreamChunk(result=run.output, run=run)
