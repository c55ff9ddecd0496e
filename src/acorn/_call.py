"""The way into a run: a call is checked, bound to its instance, and handed to a driver.

`_module` calls it, and loads it when something is first called: it brings the loop, the drivers and asyncio,
which a program that only declares modules does not need.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast, get_origin

from acorn._batch import AsyncBatch, Batch, Begin, Book, arguments_of, book_of
from acorn._brackets import check_deps, check_filled, deps_type
from acorn._declared import (
    BROUGHT,
    BatchItem,
    Branch,
    agent_name,
    brought_by,
    check_branch,
    docstring_of,
    has_hook,
    instance_of,
    module_name,
    own_hook,
    read_spec,
    spec_of,
)
from acorn._drive.aio import adrive, awalk
from acorn._drive.bridge import side_by_side
from acorn._drive.keeping import Keeper, Origin
from acorn._drive.kept_tree import check_fit, claimed, is_final, kept_tree, made_aside, recorded_failure
from acorn._drive.record import given_again
from acorn._drive.run_tree import RestingError, Tree
from acorn._drive.sync import drive, walk
from acorn._drive.tool_sources import akeep_open, alet_go, keep_open, let_go
from acorn._json import excerpt, to_plain, words_of
from acorn._loop.branch import unfinished
from acorn._loop.branch_context import BranchContext
from acorn._loop.opening import prior_messages
from acorn._loop.plan import BranchTool, Plan
from acorn._loop.run import Loop
from acorn._loop.settings import written_settings
from acorn._override import Overrides, held, prompt_within, spec_within
from acorn._spec import SETTINGS, Spec
from acorn._tools.agent import AgentTool
from acorn._tools.people import asks_people, is_question
from acorn._tools.port import Tool
from acorn.chunk import StreamChunk
from acorn.errors import AcornError, BranchError, DeclarationError, StoreError
from acorn.models.port import Model
from acorn.models.resolve import resolve
from acorn.models.throttle import throttle
from acorn.record import Place, Run, current_place, place_of
from acorn.stores.open import open_store
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
    "checked_id",
    "branch",
    "abranch",
    "branch_all",
    "prior_messages",
    "keep_open",
    "akeep_open",
    "let_go",
    "alet_go",
]

OPTIONS = frozenset({"history", "deps", "run_id", *SETTINGS})
"""What `using` takes."""
Out = TypeVar("Out")
Deps = TypeVar("Deps")
Arguments = tuple[Any, ...]


class Agent(Protocol[Out, Deps]):
    """An instance of a module class, as far as a call must know it."""

    system_prompt: Any

    @property
    def last(self) -> Run[Out, Deps] | None: ...


def run(agent: Agent[Out, Deps], args: Arguments, kwargs: dict[str, Any]) -> Run[Out, Deps]:
    return driven(*_begin(agent, args, kwargs))


async def arun(agent: Agent[Out, Deps], args: Arguments, kwargs: dict[str, Any]) -> Run[Out, Deps]:
    loop = new_loop(agent, args, kwargs)
    if brought_by(agent).run_id is None:
        return await adriven(*_planted(agent, loop))
    return await adriven(*await made_aside(partial(_planted, agent, loop)))


def resume(agent: Agent[Out, Deps], run_id: str, given: Any, *, is_one: bool) -> Run[Out, Deps]:
    return driven(*_resume(agent, run_id, given, is_one=is_one))


def resume_stream(agent: Agent[Out, Any], run_id: str, answers: Mapping[str, Any]) -> Generator[StreamChunk[Out]]:
    found = _resume(agent, run_id, answers, is_one=False)  # what is wrong is told before anything is shown
    return _stream(lambda: found)


async def aresume(agent: Agent[Out, Deps], run_id: str, given: Any, *, is_one: bool) -> Run[Out, Deps]:
    return await adriven(*await made_aside(partial(_resume, agent, run_id, given, is_one=is_one)))


def batch(
    agent: Agent[Out, Any], rows: Any, concurrency: Any, id: Any, key: Any, max_cost: Any, retry: Any
) -> Batch[Out]:
    return Batch(*_batch_of(agent, rows, concurrency, id, key, max_cost, retry), driven)


def abatch(
    agent: Agent[Out, Any], rows: Any, concurrency: Any, id: Any, key: Any, max_cost: Any, retry: Any
) -> AsyncBatch[Out]:
    return AsyncBatch(*_batch_of(agent, rows, concurrency, id, key, max_cost, retry), adriven)


def driven(tree: Tree, run_id: str) -> Run[Any, Any]:
    if not _is_given_again(tree, run_id):
        drive(tree, run_id)
    return tree.loops[run_id].run


async def adriven(tree: Tree, run_id: str) -> Run[Any, Any]:
    if not _is_given_again(tree, run_id):
        await adrive(tree, run_id)
    return tree.loops[run_id].run


def _is_given_again(tree: Tree, run_id: str) -> bool:
    """Whether a run that was kept had ended, and only shows what it came to."""
    loop = tree.loops[run_id]
    if loop.is_over:
        given_again(loop.run, loop.plan.agent)
    return loop.is_over


def stream(agent: Agent[Out, Any], args: Arguments, kwargs: dict[str, Any]) -> Generator[StreamChunk[Out]]:
    return _stream(partial(_planted, agent, new_loop(agent, args, kwargs)))


def astream(agent: Agent[Out, Any], args: Arguments, kwargs: dict[str, Any]) -> AsyncGenerator[StreamChunk[Out]]:
    make = partial(_planted, agent, new_loop(agent, args, kwargs))
    return _astream(make, is_named=brought_by(agent).run_id is not None)


def branch(agent: Agent[Any, Any], which: type[Agent[Out, Any]] | Agent[Out, Any], inputs: dict[str, Any]) -> Out:
    return cast(Out, _walk_branch(_birthplace(agent), which, inputs))


async def abranch(
    agent: Agent[Any, Any], which: type[Agent[Out, Any]] | Agent[Out, Any], inputs: dict[str, Any]
) -> Out:
    born = _birthplace(agent)
    with _branching(born, which, inputs) as (tree, run_id):
        if not tree.loops[run_id].is_over:
            await adrive(tree, run_id)
            if not tree.loops[run_id].is_over:
                await tree.siblings.finish(born.place, run_id)
            _unwind_if_resting(tree, run_id)
    return cast(Out, tree.loops[run_id].run.output)


def branch_all(
    agent: Agent[Any, Any], branches: Sequence[tuple[Branch, Mapping[str, Any]]], concurrency: int | None
) -> list[Any]:
    _check_branches(branches, concurrency)
    # Each has its id before the first begins: threads come in any order.
    places = [_birthplace(agent) for _ in branches]

    def attempt(which: Branch, inputs: Mapping[str, Any], born: _Birthplace) -> Any:
        try:
            return _walk_branch(born, which, dict(inputs))
        except (BranchError, RestingError) as error:
            return error

    acts = [partial(attempt, which, inputs, born) for (which, inputs), born in zip(branches, places, strict=True)]
    came = side_by_side(acts, concurrency)
    for each in came:
        if isinstance(each, RestingError):  # when all have come as far as they can
            raise each
    return came


def _begin(agent: Agent[Any, Any], args: Arguments, kwargs: dict[str, Any]) -> tuple[Tree, str]:
    return _planted(agent, new_loop(agent, args, kwargs))


def _planted(agent: Agent[Any, Any], loop: Loop) -> tuple[Tree, str]:
    """The tree of a run, which is held from now on where it was begun before."""
    if loop.spec.store is None and brought_by(agent).run_id is None:
        return Tree(loop), loop.run.id
    return _begin_kept(agent, loop)


def new_loop(agent: Agent[Any, Any], args: Arguments, kwargs: dict[str, Any]) -> Loop:
    """Check a call and make it a run that is ready to be driven."""
    plan = _plan(agent, held())
    check_deps(plan.spec.owner, plan.deps_type, plan.deps)
    _check_deps_below(plan.spec, plan.deps, [])
    if plan.spec.store is None:
        _check_people(agent, plan.spec, [])
    given = plan.spec.input.from_call(plan.spec.owner, args, kwargs, OPTIONS)
    return Loop(plan, Run(brought_by(agent).run_id or os.urandom(16).hex(), given, deps=plan.deps))


# Runs that are kept


def _begin_kept(agent: Agent[Any, Any], loop: Loop) -> tuple[Tree, str]:
    """A run that is kept; by the name it was given, it may be one that was begun before."""
    run_id, store, origin = loop.run.id, _store_of(loop.plan.spec), _origin(agent)
    if brought_by(agent).run_id is not None:
        found = claimed(store, run_id, origin.agent, loop.run.input)
        if found is not None:
            return kept_tree(found, loop.plan, store, origin), run_id
    return Tree(loop, keeper=Keeper(store, run_id, origin)), run_id


def _batch_of(
    agent: Agent[Any, Any], rows: Any, concurrency: Any, id: Any, key: Any, max_cost: Any, retry: Any
) -> tuple[Book[Any], Begin]:
    spec = spec_within(held(), agent)
    book: Book[Any] = book_of(rows, spec.owner, concurrency, id, key, max_cost)
    if id is None:
        return book, lambda row, at, run_id: _begin(agent, *arguments_of(row, spec.input))
    _store_of(spec)
    return book, lambda row, at, run_id: _begin_item(agent, row, BatchItem(id, at), str(run_id), bool(retry))


def _begin_item(agent: Agent[Any, Any], row: Any, item: BatchItem, run_id: str, retry: bool) -> tuple[Tree, str]:
    """The run of one row of a batch: a new one, or where it has an id, perhaps one of an earlier call.

    What had failed by then fails again, unless it is to be tried again.
    """
    args, kwargs = arguments_of(row, spec_of(agent).input)
    vars(named := copy.copy(agent))[BROUGHT] = replace(brought_by(agent), run_id=run_id, item=item)
    loop = new_loop(named, args, kwargs)
    store = _store_of(loop.spec)
    before = store.read(run_id)
    if before and before[0].facts.status == "failed":
        check_fit(before[0], store, agent_name(type(agent)), loop.run.input)
        if not retry:
            raise recorded_failure(before, loop.plan)
        if is_final(before[0]):
            store.delete(run_id)
    return _begin_kept(named, loop)


def _resume(agent: Agent[Any, Any], run_id: str, given: Any, *, is_one: bool) -> tuple[Tree, str]:
    plan = _plan(agent, held())
    check_deps(plan.spec.owner, plan.deps_type, plan.deps)
    _check_deps_below(plan.spec, plan.deps, [])
    store, origin = _store_of(plan.spec), _origin(agent)
    found = claimed(store, run_id, origin.agent, may_have_moved=True)
    if found is None:
        raise StoreError(f"There is no run {run_id!r} in {store.name}; `acorn runs` lists what there is.")
    return kept_tree(found, plan, store, origin, given, is_one=is_one), run_id


def _store_of(spec: Spec) -> Store:
    if spec.store is None:
        raise DeclarationError(
            f"`{spec.owner}` keeps no runs; say where, as in `store = 'runs.db'` on the class or "
            f"`{spec.owner}(store='runs.db')`."
        )
    return open_store(spec.store, f"`{spec.owner}.store`")


def _origin(agent: Agent[Any, Any]) -> Origin:
    """What a store keeps beside the run: its class, and what the instance has set for itself, as far as it is data."""
    own = {name: value for name, value in list(vars(agent).items()) if name in SETTINGS and name != "store"}
    written = written_settings(own)
    plain = {name: value for name, value in written.items() if isinstance(value, str | int | float | dict | None)}
    overrides = {name: value for name, value in plain.items() if to_plain(value) == value}
    file = getattr(sys.modules.get(type(agent).__module__), "__file__", None)
    item = brought_by(agent).item
    return Origin(agent_name(type(agent)), overrides, file, *((None, None) if item is None else item))


def checked_id(run_id: Any, owner: str) -> str | None:
    """The name of a run, as `using` takes it."""
    if run_id is None or (isinstance(run_id, str) and run_id.strip() and len(run_id) <= 200 and run_id.isprintable()):
        return run_id
    raise DeclarationError(
        f"`run_id` of `{owner}.using` must be a name of at most 200 characters such as 'order-17', "
        f"got {excerpt(run_id)}."
    )


def _plan(agent: Agent[Any, Any], overrides: Overrides = ()) -> Plan:
    spec = spec_within(overrides, agent) if overrides else spec_of(agent)
    check_filled(agent, spec.owner, has_input=not spec.input.is_empty, has_output=not spec.output.is_empty)
    brought = brought_by(agent)
    return Plan(
        spec,
        _tools(agent, spec, overrides),
        resolve=_resolve,
        agent=agent,
        module=module_name(type(agent)),
        prompt=prompt_within(overrides, agent) if spec.prompt.is_method else None,
        on_start=own_hook(agent, "on_start"),
        on_step=own_hook(agent, "on_step"),
        on_finish=own_hook(agent, "on_finish"),
        on_stream=own_hook(agent, "on_stream"),
        on_human=own_hook(agent, "on_human"),
        prior=brought.prior,
        deps=brought.deps,
        deps_type=deps_type(agent),
        branches={name: _branch_tool(name, entry, overrides) for name, entry in spec.branches.items()},
        start=partial(_start, overrides),
    )


def _resolve(declared: Any, spec: Spec) -> Model:
    return resolve(declared, spec.owner, throttle(spec.owner, spec.max_concurrency, spec.rate_limit))


def _check_deps_below(spec: Spec, deps: Any, seen: list[Any]) -> None:
    """Judge the deps of what an agent may start, which a model could not mend."""
    for which in _below(spec):
        if any(which is other for other in seen):
            continue
        seen.append(which)
        own = None if isinstance(which, type) or get_origin(which) else brought_by(which).deps
        handed = deps if own is None else own
        started = read_spec(which)
        check_deps(started.owner, deps_type(which), handed, spec.owner)
        _check_deps_below(started, handed, seen)


def _check_people(which: Branch, spec: Spec, seen: list[Any]) -> None:
    """A run without a store needs somebody to answer what it, or what it may start, asks of people."""
    if has_hook(which, "on_human"):
        return
    for tool in spec.tools:
        if asks_people(tool):
            what = "asks people" if is_question(tool) else "needs a person's approval"
            raise DeclarationError(
                f"The tool `{tool.name}` of `{spec.owner}` {what}, and nobody can answer: add `store = ...` to the "
                f"module that is called, so that the run can wait, or a method `on_human` to `{spec.owner}`."
            )
    for other in _below(spec):
        if not any(other is each for each in seen):
            seen.append(other)
            _check_people(other, read_spec(other), seen)


def _below(spec: Spec) -> list[Any]:
    """What a module may start: agents that are tools, and branches."""
    agents = [tool.function for tool in spec.tools if isinstance(tool, AgentTool)]
    return agents + [entry["module"] if isinstance(entry, Mapping) else entry for entry in spec.branches.values()]


def _tools(agent: Agent[Any, Any], spec: Spec, overrides: Overrides) -> tuple[Tool, ...]:
    tools = tuple(tool.bound_to(agent) for tool in spec.tools)
    if not overrides:
        return tools
    # What an agent that is a tool takes may be overridden, and its schema is kept once it is made.
    return tuple(
        replace(tool, parameters=partial(_parameters, overrides, tool.function))
        if isinstance(tool, AgentTool)
        else tool
        for tool in tools
    )


def _parameters(overrides: Overrides, agent: Any) -> dict[str, Any]:
    return spec_within(overrides, agent).input.json_schema


def _start(overrides: Overrides, tool: AgentTool) -> BranchTool:
    """An agent that is a tool, as a branch with a conversation of its own."""
    which: Branch = tool.function
    spec = spec_within(overrides, which)
    return BranchTool(tool.name, None, spec, lambda: _plan(instance_of(which), overrides), inherits=False)


def _branch_tool(name: str, entry: Any, overrides: Overrides) -> BranchTool:
    which, described = (entry["module"], entry.get("description")) if isinstance(entry, Mapping) else (entry, None)
    spec = spec_within(overrides, which)
    return BranchTool(name, described, spec, lambda: _plan(instance_of(which), overrides), docstring_of(which))


class _Birthplace(NamedTuple):
    """Where code of the user's begins a branch."""

    tree: Tree
    parent_id: str
    """The run that it is a branch of."""
    place: Place
    """Where the code is: in that run, or in a branch of it."""
    id: str


def _birthplace(agent: Agent[Any, Any]) -> _Birthplace:
    """Where a branch of this instance's run begins; an error where the calling code is not inside of one."""
    found = place_of(agent)
    if found is not None and found[1].stop_reason is None:
        place, run = found
        # Branches side by side may call one tool of their parent's, so the id says in which of them it is.
        place_id = place.next() if place.run_id == run.id else f"{place.run_id}/{place.next()}"
        return _Birthplace(place.tree, run.id, place, place_id)
    here, name = current_place(), type(agent).__name__
    if here is not None and not here.tree.loops[here.run_id].is_over:
        running = type(here.tree.loops[here.run_id].plan.agent).__name__
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


def _walk_branch(born: _Birthplace, which: Branch, inputs: dict[str, Any]) -> Any:
    with _branching(born, which, inputs) as (tree, run_id):
        if not tree.loops[run_id].is_over:  # it may have been saved, and had ended by then
            drive(tree, run_id)
            _unwind_if_resting(tree, run_id)
    return tree.loops[run_id].run.output


def _unwind_if_resting(tree: Tree, run_id: str) -> None:
    """A branch that waits for people has nothing to return: the code that began it is left, and called anew later."""
    if not tree.loops[run_id].is_over:
        raise RestingError


@contextmanager
def _branching(born: _Birthplace, which: Branch, inputs: dict[str, Any]) -> Generator[tuple[Tree, str]]:
    """A branch that the user's code begins; what goes wrong with it is a `BranchError`."""
    check_branch(which, "A branch")
    name = (which if isinstance(which, type) else type(which)).__name__
    tree = born.tree
    context: BranchContext | None = None
    failed: BaseException | None = None
    try:
        plan = _plan(instance_of(which), held())
        given = plan.spec.input.from_call(name, (), inputs)
        context = tree.birth(born.place, born.parent_id, born.id, name, plan, given)
        tree.siblings.begin(born.place, context.run_id)
        yield tree, context.run_id
    except BaseException as error:
        failed = error
        if not isinstance(error, Exception) or error is tree.lost:  # no failure of the branch's own
            raise
        path = name if context is None else context.path
        raise BranchError(f"The branch `{path}` failed: {words_of(error)}") from error
    finally:
        if context is not None:
            tree.siblings.end(born.place, context.run_id)
        is_interrupted = failed is not None and not isinstance(failed, Exception)
        if context is not None and not is_interrupted:  # it may go on, and is counted when it has ended
            tree.branch_ended(context, failed)
    assert context is not None
    if isinstance(tree.loops[context.run_id].run.output, Unfinished):
        raise BranchError(f"The branch failed: {unfinished(context.path)}")


def _stream(make: Callable[[], tuple[Tree, str]]) -> Generator[StreamChunk[Any]]:
    tree, run_id = make()  # only now: a stream that nobody reads holds nothing
    if not _is_given_again(tree, run_id):
        yield from walk(tree, run_id, iterates=True)
    run = tree.loops[run_id].run
    yield StreamChunk(result=run.output, run=run)


async def _astream(make: Callable[[], tuple[Tree, str]], *, is_named: bool) -> AsyncGenerator[StreamChunk[Any]]:
    tree, run_id = await made_aside(make) if is_named else make()
    if not _is_given_again(tree, run_id):
        async with aclosing(awalk(tree, run_id, iterates=True)) as chunks:
            async for chunk in chunks:
                yield chunk
    run = tree.loops[run_id].run
    yield StreamChunk(result=run.output, run=run)
