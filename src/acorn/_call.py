"""The way into a run: a call is checked, bound to its instance, and handed to a driver.

`_module` calls it, and loads it when something is first called: it brings the loop, the drivers and asyncio,
which a program that only declares modules does not need.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from acorn._declared import BROUGHT, class_spec, docstring_of, is_module_class, own_hook, spec_of
from acorn._drive.aio import adrive, awalk
from acorn._drive.bridge import side_by_side
from acorn._drive.record import seconds_of
from acorn._drive.sources import akeep_open, alet_go, keep_open, let_go
from acorn._drive.sync import drive, walk
from acorn._loop.branch import make_child, unfinished
from acorn._loop.opening import prior_messages
from acorn._loop.plan import BranchTool, Plan
from acorn._loop.run import Loop
from acorn.chunk import StreamChunk
from acorn.errors import AcornError, BranchError, DeclarationError
from acorn.models.resolve import resolve
from acorn.record import Run, current_loop
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
    loop = _loop(agent, args, kwargs)
    drive(loop, agent)
    return loop.run


async def arun(agent: Agent, args: Arguments, kwargs: dict[str, Any]) -> Run[Any]:
    loop = _loop(agent, args, kwargs)
    await adrive(loop, agent)
    return loop.run


def stream(agent: Agent, args: Arguments, kwargs: dict[str, Any]) -> Generator[StreamChunk[Any]]:
    return _stream(_loop(agent, args, kwargs), lambda loop: walk(loop, agent, iterates=True))


def astream(agent: Agent, args: Arguments, kwargs: dict[str, Any]) -> AsyncGenerator[StreamChunk[Any]]:
    return _astream(_loop(agent, args, kwargs), lambda loop: awalk(loop, agent, iterates=True))


def branch(cls: Any, inputs: dict[str, Any]) -> Any:
    with _branching(cls, inputs) as child:
        drive(child, child.plan.agent)
    return child.run.output


async def abranch(cls: Any, inputs: dict[str, Any]) -> Any:
    with _branching(cls, inputs) as child:
        await adrive(child, child.plan.agent)
    return child.run.output


def branch_all(branches: Sequence[tuple[Any, Mapping[str, Any]]], concurrency: int | None) -> list[Any]:
    def attempt(cls: Any, inputs: Mapping[str, Any]) -> Any:
        try:
            return branch(cls, dict(inputs))
        except BranchError as error:
            return error

    return side_by_side([partial(attempt, cls, inputs) for cls, inputs in branches], concurrency)


def _loop(agent: Agent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Loop:
    """Check a call and make it a run that is ready to be driven."""
    plan = _plan(agent)
    brought: dict[str, Any] = vars(agent).get(BROUGHT, {})
    given = plan.spec.input.from_call(plan.spec.owner, args, kwargs)
    return Loop(plan, Run(uuid4().hex, given, deps=brought.get("deps")))


def _plan(agent: Agent) -> Plan:
    spec = spec_of(agent)
    brought: dict[str, Any] = vars(agent).get(BROUGHT, {})
    return Plan(
        spec,
        tuple(tool.bound_to(agent) for tool in spec.tools),
        resolve=lambda declared: resolve(declared, spec.owner),
        agent=agent,
        prompt=agent.system_prompt if spec.prompt.is_method else None,
        on_step=own_hook(agent, "on_step"),
        on_finish=own_hook(agent, "on_finish"),
        on_stream=own_hook(agent, "on_stream"),
        prior=brought.get("prior", ()),
        branches={name: _branch_tool(name, entry) for name, entry in spec.branches.items()},
    )


def _branch_tool(name: str, entry: Any) -> BranchTool:
    cls, described = (entry["module"], entry.get("description")) if isinstance(entry, Mapping) else (entry, None)
    return BranchTool(name, described, class_spec(cls), lambda: _plan(cls()), docstring_of(cls))


@contextmanager
def _branching(cls: Any, inputs: dict[str, Any]) -> Generator[Loop]:
    """A branch of the run that the calling code is inside of; what goes wrong with it is a `BranchError`."""
    parent: Loop | None = current_loop()
    if parent is None or parent.is_over:
        raise AcornError(
            "There is no run to branch from: `self.branch(...)` works inside hooks and tools while their module is "
            "being called."
        )
    if not is_module_class(cls):
        raise DeclarationError(f"A branch must be a module class, got {cls!r}.")
    if class_spec(cls).output.is_empty:
        raise DeclarationError(f"`{cls.__name__}` has no `final_output`; a branch must return something.")
    child: Loop | None = None
    name, output = cls.__name__, None
    try:
        plan = _plan(cls())
        given = plan.spec.input.from_call(cls.__name__, (), inputs)
        child = make_child(parent, cls.__name__, plan, given, {}, seconds_of(parent.run))
        name = child.path
        yield child
        output = child.run.output
    except Exception as error:
        raise BranchError(f"The branch `{name}` failed: {type(error).__name__}: {error}") from error
    finally:
        if child is not None:
            parent.count_child(child.run)
    if isinstance(output, Unfinished):
        raise BranchError(f"The branch failed: {unfinished(name)}")


def _stream(loop: Loop, walk: Callable[[Loop], Generator[StreamChunk[Any]]]) -> Generator[StreamChunk[Any]]:
    yield from walk(loop)
    yield StreamChunk(result=loop.run.output, run=loop.run)


async def _astream(
    loop: Loop, walk: Callable[[Loop], AsyncGenerator[StreamChunk[Any]]]
) -> AsyncGenerator[StreamChunk[Any]]:
    async with aclosing(walk(loop)) as chunks:
        async for chunk in chunks:
            yield chunk
    yield StreamChunk(result=loop.run.output, run=loop.run)
