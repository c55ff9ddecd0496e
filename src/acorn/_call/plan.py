"""From an instance and the arguments of a call to a run that is ready to be driven: checked, and with its plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, get_origin

from acorn._declare.generics import check_deps, check_type_arguments, deps_type
from acorn._declare.settings import SETTINGS
from acorn._declare.spec import Prompt, Spec
from acorn._declare.spec_cache import (
    Overrides,
    call_options,
    current_overrides,
    has_user_hook,
    instance_of,
    module_docstring,
    module_name,
    prompt_within,
    read_spec,
    spec_of,
    spec_within,
    user_hook,
)
from acorn._declare.tools.kinds import AgentTool, Tool, is_ask_human, may_ask_human, source_may_ask_human
from acorn._machine.machine import Machine
from acorn._machine.plan import BranchTool, Plan
from acorn.errors import DeclarationError
from acorn.models.limits.throttle import throttle
from acorn.models.port import Model
from acorn.models.resolve import resolve
from acorn.record import Run
from acorn.stores.open import open_store
from acorn.stores.port import SharedLimits
from acorn.types import JsonObject

if TYPE_CHECKING:
    from acorn._machine.fork import Fork  # the events' classes, which a call that is no fork does not need

OPTIONS = frozenset({"history", "deps", "run_id", "thread", "before", "priority", "not_before", "deliver", *SETTINGS})
"""What `using` takes."""
Out = TypeVar("Out")
Deps = TypeVar("Deps")
Arguments = tuple[Any, ...]


class Agent(Protocol[Out, Deps]):
    """An instance of a module class, as far as a call must know it."""

    system_prompt: Any

    @property
    def last(self) -> Run[Out, Deps] | None: ...


def new_loop(agent: Agent[Any, Any], args: Arguments, kwargs: dict[str, Any]) -> Machine:
    """Check a call and make it a run that is ready to be driven."""
    plan = checked_plan(agent)
    brought = call_options(agent)
    run_id = brought.run_id or os.urandom(16).hex()
    if brought.fork is not None:
        return _forked_loop(agent, plan, run_id, args, kwargs)
    given = plan.spec.input.from_call(plan.spec.owner, args, kwargs, OPTIONS)
    return Machine(plan, Run(run_id, given, deps=plan.deps))


def checked_plan(agent: Agent[Any, Any]) -> Plan:
    """The plan of an agent that can be called."""
    plan = plan_for(agent, current_overrides())
    refuse_queueing(agent, plan.spec.owner)
    check_deps(plan.spec.owner, plan.deps_type, plan.deps)
    check_deps_below(plan.spec, plan.deps, [])
    check_shared(plan.spec, plan.spec.store, [])
    if plan.spec.store is None:
        _check_people(agent, plan.spec, [])
    return plan


def _forked_loop(agent: Agent[Any, Any], plan: Plan, run_id: str, args: Arguments, kwargs: dict[str, Any]) -> Machine:
    """A run that begins with what it keeps of another; the prompt is that one's, unless the instance has its own."""
    fork: Fork = call_options(agent).fork
    spec = plan.spec
    if args or kwargs:
        given = spec.input.from_call(spec.owner, args, kwargs, OPTIONS)
        fork = fork.with_input(spec, given)
    else:
        given = fork.input_for(spec)
    if not _has_own_prompt(agent, current_overrides()):
        plan = replace(plan, spec=replace(spec, prompt=Prompt(fork.prompt)), prompt=None)
    return Machine(replace(plan, fork=fork), Run(run_id, given, deps=plan.deps, forked_from=fork.origin))


def _has_own_prompt(agent: Agent[Any, Any], overrides: Overrides) -> bool:
    set_within = (isinstance(agent, each.cls) and "system_prompt" in each.values for each in overrides)
    return "system_prompt" in vars(agent) or any(set_within)


def refuse_queueing(agent: Agent[Any, Any], owner: str) -> None:
    """A run that begins here waits for nobody's turn."""
    if call_options(agent).queueing is not None:
        raise DeclarationError(
            f"`using(priority=..., not_before=..., deliver=...)` is for runs that begin elsewhere: call "
            f"`{owner}.submit(...)`, or `map(..., queue=True)`."
        )


def plan_for(agent: Agent[Any, Any], overrides: Overrides = ()) -> Plan:
    spec = spec_within(overrides, agent) if overrides else spec_of(agent)
    check_type_arguments(agent, spec.owner, has_input=not spec.input.is_empty, has_output=not spec.output.is_empty)
    brought = call_options(agent)
    return Plan(
        spec,
        _tools(agent, spec, overrides),
        resolve=_resolve,
        agent=agent,
        module=module_name(type(agent)),
        prompt=prompt_within(overrides, agent) if spec.prompt.is_method else None,
        on_start=user_hook(agent, "on_start"),
        on_step=user_hook(agent, "on_step"),
        on_finish=user_hook(agent, "on_finish"),
        on_stream=user_hook(agent, "on_stream"),
        on_human=user_hook(agent, "on_human"),
        prior=brought.prior,
        deps=brought.deps,
        deps_type=deps_type(agent),
        branches={name: _branch_tool(name, entry, overrides) for name, entry in spec.branches.items()},
        start=partial(_start, overrides),
    )


def _resolve(declared: Any, spec: Spec) -> Model:
    counted = spec.rate_limit
    shares = None if counted is None or not counted.limit.shared else _sharing(spec.owner, spec.store)
    return resolve(declared, spec.owner, throttle(spec.owner, spec.max_concurrency, counted, shares))


def _sharing(owner: str, declared: Any) -> SharedLimits:
    """The store that a limit is shared in."""
    store = None if declared is None else open_store(declared, f"`{owner}.store`")
    if isinstance(store, SharedLimits):
        return store
    found = "there is none" if store is None else f"`{store.name}` is none"
    raise DeclarationError(
        f"`{owner}.rate_limit` is 'shared', which needs a PostgreSQL store that all machines count in, and {found}: "
        f"set `store = 'postgresql://host/name'` on the module that is called, or leave 'shared' out, and requests "
        f"are counted in each process for itself."
    )


def check_shared(spec: Spec, store: Any, seen: list[Any]) -> None:
    """A limit that machines share needs a store that they share, in what an agent may start too."""
    if spec.rate_limit is not None and spec.rate_limit.limit.shared:
        _sharing(spec.owner, store)
    for other in _below(spec):
        if not any(other is each for each in seen):
            seen.append(other)
            below = read_spec(other)
            check_shared(below, below.store if store is None else store, seen)


def check_deps_below(spec: Spec, deps: Any, seen: list[Any]) -> None:
    """Judge the deps of what an agent may start, which a model could not mend."""
    for which in _below(spec):
        if any(which is other for other in seen):
            continue
        seen.append(which)
        own = None if isinstance(which, type) or get_origin(which) else call_options(which).deps
        handed = deps if own is None else own
        started = read_spec(which)
        check_deps(started.owner, deps_type(which), handed, spec.owner)
        check_deps_below(started, handed, seen)


def _check_people(which: object, spec: Spec, seen: list[Any]) -> None:
    """A run without a store needs somebody to answer what it, or what it may start, asks of people."""
    if has_user_hook(which, "on_human"):
        return
    for tool in spec.tools:
        if may_ask_human(tool):
            what = "asks people" if is_ask_human(tool) else "needs a person's approval"
            raise DeclarationError(
                f"The tool `{tool.name}` of `{spec.owner}` {what}, and nobody can answer: add `store = ...` to the "
                f"module that is called, so that the run can wait, or a method `on_human` to `{spec.owner}`."
            )
    for source in spec.sources:
        if source_may_ask_human(source):
            raise DeclarationError(
                f"Tools of `{source!r}` in `{spec.owner}` need a person's approval, and nobody can answer: add "
                f"`store = ...` to the module that is called, so that the run can wait, or a method `on_human` to "
                f"`{spec.owner}`."
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


def _parameters(overrides: Overrides, agent: Any) -> JsonObject:
    return spec_within(overrides, agent).input.json_schema


def _start(overrides: Overrides, tool: AgentTool) -> BranchTool:
    """An agent that is a tool, as a branch with a conversation of its own."""
    which: object = tool.function
    spec = spec_within(overrides, which)
    return BranchTool(tool.name, None, spec, lambda: plan_for(instance_of(which), overrides), inherits=False)


def _branch_tool(name: str, entry: Any, overrides: Overrides) -> BranchTool:
    which, described = (entry["module"], entry.get("description")) if isinstance(entry, Mapping) else (entry, None)
    spec = spec_within(overrides, which)
    return BranchTool(name, described, spec, lambda: plan_for(instance_of(which), overrides), module_docstring(which))
