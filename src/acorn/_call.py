"""The way into a run: a call is checked, bound to its instance, and handed to a driver.

`_module` calls it, and loads it when something is first called: it brings the loop, the drivers and asyncio,
which a program that only declares modules does not need.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

from acorn._declared import BROUGHT, class_spec, docstring_of, is_module_class, module_name, own_hook, spec_of
from acorn._drive.aio import adrive, awalk
from acorn._drive.bridge import side_by_side
from acorn._drive.sources import akeep_open, alet_go, keep_open, let_go
from acorn._drive.sync import drive, walk
from acorn._drive.tree import Tree
from acorn._loop.branch import unfinished
from acorn._loop.branch_context import BranchContext
from acorn._loop.opening import prior_messages
from acorn._loop.plan import BranchTool, Plan
from acorn._loop.run import Loop
from acorn._tools.agent import AgentTool
from acorn.chunk import StreamChunk
from acorn.errors import AcornError, BranchError, DeclarationError
from acorn.models.resolve import resolve
from acorn.record import Run, current_place
from acorn.types import Unfinished

__all__ = [
    "run",
    "arun",
    "stream",
    "astream",
    "branch",
    "abranch",
    "branch_all",
    "prior_messages",
    "keep_open",
    "akeep_open",
    "let_go",
    "alet_go",
]

Agent = Any
"""An instance of a module class."""
Arguments = tuple[Any, ...]


def run(agent: Agent, args: Arguments, kwargs: dict[str, Any]) -> Run[Any]:
    tree, run_id = _begin(agent, args, kwargs)
    drive(tree, run_id)
    return tree.loops[run_id].run


async def arun(agent: Agent, args: Arguments, kwargs: dict[str, Any]) -> Run[Any]:
    tree, run_id = _begin(agent, args, kwargs)
    await adrive(tree, run_id)
    return tree.loops[run_id].run


def stream(agent: Agent, args: Arguments, kwargs: dict[str, Any]) -> Generator[StreamChunk[Any]]:
    return _stream(*_begin(agent, args, kwargs))


def astream(agent: Agent, args: Arguments, kwargs: dict[str, Any]) -> AsyncGenerator[StreamChunk[Any]]:
    return _astream(*_begin(agent, args, kwargs))


def branch(cls: Any, inputs: dict[str, Any], place_id: str | None = None) -> Any:
    with _branching(cls, inputs, place_id) as (tree, run_id):
        if not tree.loops[run_id].is_over:  # it may have been saved, and had ended by then
            drive(tree, run_id)
    return tree.loops[run_id].run.output


async def abranch(cls: Any, inputs: dict[str, Any]) -> Any:
    with _branching(cls, inputs, None) as (tree, run_id):
        if not tree.loops[run_id].is_over:
            await adrive(tree, run_id)
    return tree.loops[run_id].run.output


def branch_all(branches: Sequence[tuple[Any, Mapping[str, Any]]], concurrency: int | None) -> list[Any]:
    place = current_place()
    # Each has its id before the first begins: threads come in any order.
    ids = [None if place is None else place.next() for _ in branches]

    def attempt(cls: Any, inputs: Mapping[str, Any], place_id: str | None) -> Any:
        try:
            return branch(cls, dict(inputs), place_id)
        except BranchError as error:
            return error

    acts = [partial(attempt, cls, inputs, id) for (cls, inputs), id in zip(branches, ids, strict=True)]
    return side_by_side(acts, concurrency)


def _begin(agent: Agent, args: Arguments, kwargs: dict[str, Any]) -> tuple[Tree, str]:
    loop = new_loop(agent, args, kwargs)
    return Tree(loop), loop.run.id


def new_loop(agent: Agent, args: Arguments, kwargs: dict[str, Any]) -> Loop:
    """Check a call and make it a run that is ready to be driven."""
    plan = _plan(agent)
    given = plan.spec.input.from_call(plan.spec.owner, args, kwargs)
    return Loop(plan, Run(os.urandom(16).hex(), given, deps=plan.deps))


def _plan(agent: Agent) -> Plan:
    spec = spec_of(agent)
    brought: dict[str, Any] = vars(agent).get(BROUGHT, {})
    return Plan(
        spec,
        tuple(tool.bound_to(agent) for tool in spec.tools),
        resolve=lambda declared: resolve(declared, spec.owner),
        agent=agent,
        module=module_name(type(agent)),
        prompt=agent.system_prompt if spec.prompt.is_method else None,
        on_step=own_hook(agent, "on_step"),
        on_finish=own_hook(agent, "on_finish"),
        on_stream=own_hook(agent, "on_stream"),
        prior=brought.get("prior", ()),
        deps=brought.get("deps"),
        branches={name: _branch_tool(name, entry) for name, entry in spec.branches.items()},
        start=_start,
    )


def _start(tool: AgentTool) -> BranchTool:
    """An agent that is a tool, as a branch with a conversation of its own."""
    agent = tool.function
    if isinstance(agent, type):
        return BranchTool(tool.name, None, class_spec(agent), lambda: _plan(agent()), inherits=False)
    return BranchTool(tool.name, None, spec_of(agent), lambda: _plan(agent), inherits=False)


def _branch_tool(name: str, entry: Any) -> BranchTool:
    cls, described = (entry["module"], entry.get("description")) if isinstance(entry, Mapping) else (entry, None)
    return BranchTool(name, described, class_spec(cls), lambda: _plan(cls()), docstring_of(cls))


@contextmanager
def _branching(cls: Any, inputs: dict[str, Any], place_id: str | None) -> Generator[tuple[Tree, str]]:
    """A branch of the run that the calling code is inside of; what goes wrong with it is a `BranchError`."""
    place = current_place()
    if place is None or place.tree.loops[place.run_id].is_over:
        raise AcornError(
            "There is no run to branch from: `self.branch(...)` works inside hooks and tools while their module is "
            "being called."
        )
    if not is_module_class(cls):
        raise DeclarationError(f"A branch must be a module class, got {cls!r}.")
    if class_spec(cls).output.is_empty:
        raise DeclarationError(f"`{cls.__name__}` has no `final_output`; a branch must return something.")
    tree: Tree = place.tree
    context: BranchContext | None = None
    failed: BaseException | None = None
    try:
        plan = _plan(cls())
        given = plan.spec.input.from_call(cls.__name__, (), inputs)
        context = tree.birth(place, place_id or place.next(), cls.__name__, plan, given)
        yield tree, context.run_id
    except BaseException as error:
        failed = error
        if not isinstance(error, Exception) or error is tree.lost:  # no failure of the branch's own
            raise
        name = cls.__name__ if context is None else context.path
        raise BranchError(f"The branch `{name}` failed: {type(error).__name__}: {error}") from error
    finally:
        is_interrupted = failed is not None and not isinstance(failed, Exception)
        if context is not None and not is_interrupted:  # it may go on, and is counted when it has ended
            tree.branch_ended(context, failed)
    assert context is not None
    if isinstance(tree.loops[context.run_id].run.output, Unfinished):
        raise BranchError(f"The branch failed: {unfinished(context.path)}")


def _stream(tree: Tree, run_id: str) -> Generator[StreamChunk[Any]]:
    yield from walk(tree, run_id, iterates=True)
    run = tree.loops[run_id].run
    yield StreamChunk(result=run.output, run=run)


async def _astream(tree: Tree, run_id: str) -> AsyncGenerator[StreamChunk[Any]]:
    async with aclosing(awalk(tree, run_id, iterates=True)) as chunks:
        async for chunk in chunks:
            yield chunk
    run = tree.loops[run_id].run
    yield StreamChunk(result=run.output, run=run)
