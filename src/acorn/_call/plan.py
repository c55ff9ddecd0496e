"""The plan of a run: code that checks an instance and the arguments of a call, and creates the machine of the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_origin

from acorn._declare import spec_cache
from acorn._declare.generics import check_deps, check_type_arguments
from acorn._declare.module_base import CALL_OPTIONS, AgentBase
from acorn._declare.settings import SETTINGS
from acorn._declare.spec import Prompt, Spec
from acorn._declare.spec_cache import Branch, Overrides, instance_of, module_docstring, spec_within
from acorn._declare.tools.kinds import AgentTool, Tool, is_ask_human, source_may_ask_human
from acorn._drive.commit import Origin
from acorn._formats.json import to_json_data
from acorn._machine.machine import Machine
from acorn._machine.plan import BranchTool, Plan
from acorn._machine.state import settings_to_json
from acorn._machine.stored_settings import has_address_or_key
from acorn.errors import DeclarationError
from acorn.models.limits import limit_wrapper
from acorn.models.port import Model
from acorn.models.resolve import resolve
from acorn.record import Run
from acorn.stores.open import open_store
from acorn.stores.port import SharedLimits, Store
from acorn.types import JsonObject, is_mapping

if TYPE_CHECKING:
    from acorn._machine.fork import Fork  # This loads the event classes, which only a forked run needs.

OPTIONS = CALL_OPTIONS.union(SETTINGS)
"""The keyword arguments of `using`."""
Arguments = tuple[Any, ...]


def new_machine(agent: AgentBase, args: Arguments, kwargs: JsonObject) -> Machine:
    """Check the arguments of a call, and return the machine of the new run."""
    options, plan = agent.__acorn_call_options__, plan_call(agent)
    run_id = options.run_id or os.urandom(16).hex()
    if options.fork is not None:
        return _forked_machine(agent, plan, options.fork, run_id, args, kwargs)
    input = plan.spec.input.from_call(plan.spec.owner, args, kwargs, OPTIONS)
    return Machine(plan, Run(run_id, input, deps=plan.deps))


def _forked_machine(
    agent: AgentBase, plan: Plan, fork: Fork, run_id: str, args: Arguments, kwargs: JsonObject
) -> Machine:
    """Return the machine of a run that is a fork of another run.

    The fork uses the prompt of the other run, unless the instance sets a prompt.
    """
    spec = plan.spec
    if args or kwargs:
        input = spec.input.from_call(spec.owner, args, kwargs, OPTIONS)
        fork = fork.with_input(spec, input)
    else:
        input = fork.input_for(spec)
    is_overridden = [
        isinstance(agent, override.cls) and "system_prompt" in override.values
        for override in spec_cache.active_overrides.get()
    ]
    if "system_prompt" not in vars(agent) and not any(is_overridden):
        plan = replace(plan, spec=replace(spec, prompt=Prompt(fork.prompt)), prompt=None)
    return Machine(replace(plan, fork=fork), Run(run_id, input, deps=plan.deps, forked_from=fork.origin))


def plan_call(agent: AgentBase) -> Plan:
    """Check an agent and its call options, and return the plan of a run in this process.

    The checks find every error that can be found before the first request.
    """
    plan = plan_for(agent, spec_cache.active_overrides.get())
    check_not_queued(agent, plan.spec.owner)
    check_plan(plan)
    if plan.spec.store is None:
        _check_human_input(agent, plan.spec, [])
    return plan


def plan_for(agent: AgentBase, overrides: Overrides = ()) -> Plan:
    """Return the plan of one run, which binds the spec, tools and hooks of a class to one instance."""
    spec = spec_within(overrides, agent) if overrides else spec_cache.spec_of(agent)
    hooks, options = spec_cache.user_hooks(agent), agent.__acorn_call_options__
    if spec.input.is_empty or spec.output.is_empty:
        check_type_arguments(agent, spec.owner, has_input=not spec.input.is_empty, has_output=not spec.output.is_empty)
    return Plan(
        spec,
        _bind_tools(agent, spec, overrides),
        resolve=_resolve,
        agent=agent,
        module=spec.module,
        prompt=spec_cache.prompt_within(overrides, agent) if spec.prompt.is_method else None,
        prior=options.prior,
        deps=options.deps,
        branches={name: _branch_tool(name, entry, overrides) for name, entry in spec.branches.items()}
        if spec.branches
        else {},
        start=partial(_start_agent_tool, overrides),
        **hooks,
    )


def _bind_tools(agent: AgentBase, spec: Spec, overrides: Overrides) -> tuple[Tool, ...]:
    tools = tuple([tool.bound_to(agent) for tool in spec.tools]) if spec.has_tool_methods else spec.tools
    if not overrides:
        return tools
    # A tool caches its schema, but an override block may change the input of an agent tool.
    return tuple(
        replace(tool, parameters=partial(_input_schema, overrides, tool.function))
        if isinstance(tool, AgentTool)
        else tool
        for tool in tools
    )


def _input_schema(overrides: Overrides, agent: Any) -> JsonObject:
    return spec_within(overrides, agent).input.parameters


def _start_agent_tool(overrides: Overrides, tool: AgentTool) -> BranchTool:
    """Return an agent that is used as a tool as a branch that does not inherit the conversation."""
    which: Branch = tool.function
    spec = spec_within(overrides, which)
    return BranchTool(tool.name, None, spec, lambda: plan_for(instance_of(which), overrides), inherits=False)


def _branch_tool(name: str, entry: Any, overrides: Overrides) -> BranchTool:
    which, description = (entry["module"], entry.get("description")) if is_mapping(entry) else (entry, None)
    spec = spec_within(overrides, which)
    return BranchTool(name, description, spec, lambda: plan_for(instance_of(which), overrides), module_docstring(which))


def _resolve(declared: Any, spec: Spec) -> Model:
    window, slots = spec.rate_limit, spec.max_concurrency
    if window is None and slots is None:
        return resolve(declared, spec.owner)
    shared = None if window is None or not window.limit.shared else _limit_store(spec.owner, spec.store)
    return resolve(declared, spec.owner, limit_wrapper(spec.owner, slots, window, shared))


# Checks before a run starts, for errors that a model could not correct.


def check_not_queued(agent: AgentBase, owner: str) -> None:
    """Raise an error if the options from `using` are for queued runs, but the run starts in this process."""
    options = agent.__acorn_call_options__
    if options.priority or options.not_before is not None or not options.deliver:
        raise DeclarationError(
            f"`using(priority=..., not_before=..., deliver=...)` applies only to queued runs. Call "
            f"`{owner}.submit(...)` or `map(..., queue=True)`, or remove these options."
        )


def check_plan(plan: Plan) -> None:
    """Raise an error if deps or shared limits are wrong, in a plan or in the agents and branches that it may start."""
    spec = plan.spec
    if spec.deps_type is not Any:
        check_deps(spec.owner, spec.deps_type, plan.deps)
    if spec.rate_limit is not None:
        _check_shared_limit(spec, spec.store)
    if spec.agent_tools or spec.branches:
        _check_startable(spec, plan.deps, spec.store, [])


def _check_startable(spec: Spec, deps: Any, store: Any, seen: list[Branch]) -> None:
    """Raise an error if the deps or the store do not fit an agent or branch that an agent may start."""
    for which, started in _new_startable(spec, seen):
        own_deps = None if isinstance(which, type) or get_origin(which) else which.__acorn_call_options__.deps
        passed_deps = deps if own_deps is None else own_deps
        used_store = started.store if store is None else store
        check_deps(started.owner, started.deps_type, passed_deps, spec.owner)
        _check_shared_limit(started, used_store)
        _check_startable(started, passed_deps, used_store, seen)


def _new_startable(spec: Spec, seen: list[Branch]) -> Iterator[tuple[Branch, Spec]]:
    """Yield each agent and branch that an agent may start, with its spec, and add it to `seen`, which it skips."""
    for which in spec.startable:
        if not any(which is other for other in seen):
            seen.append(which)
            yield which, spec_cache.read_spec(which)


def _check_shared_limit(spec: Spec, store: Any) -> None:
    """Raise an error if an agent has a shared rate limit but no PostgreSQL store."""
    if spec.rate_limit is not None and spec.rate_limit.limit.shared:
        _limit_store(spec.owner, store)


def _limit_store(owner: str, declared: Any) -> SharedLimits:
    """Return the store that counts a shared rate limit.

    Raise an error if it is not a PostgreSQL store.
    """
    store = None if declared is None else open_store(declared, f"`{owner}.store`")
    if isinstance(store, SharedLimits):
        return store
    cause = "has no store" if store is None else f"has the store `{store.name}`"
    raise DeclarationError(
        f"`{owner}.rate_limit` is 'shared', but the agent that you call {cause}. A shared limit is counted in a "
        f"PostgreSQL store: set `store = 'postgresql://host/name'` on that agent. Or remove 'shared': each process "
        f"then counts its own requests."
    )


def _check_human_input(which: Branch, spec: Spec, seen: list[Branch]) -> None:
    """Raise an error if the run may need human input, but the agent has neither a store nor `on_human`.

    The check includes the agents and branches that the agent may start.
    """
    needs_no_check = not (spec.human_tools or spec.sources or spec.agent_tools or spec.branches)
    if needs_no_check or spec_cache.has_user_hook(which, "on_human"):
        return
    problems = [
        f"The tool `{tool.name}` of `{spec.owner}` "
        + ("asks a person" if is_ask_human(tool.function) else "needs a person's approval")
        for tool in spec.human_tools
    ]
    problems += [
        f"Tools of `{source!r}` in `{spec.owner}` need a person's approval"
        for source in spec.sources
        if source_may_ask_human(source)
    ]
    if problems:
        raise DeclarationError(
            f"{problems[0]}, but no one can answer. Set `store` on the agent that you call, so that the run can pause, "
            f"or add the method `on_human` to `{spec.owner}`."
        )
    for other, started in _new_startable(spec, seen):
        _check_human_input(other, started, seen)


# The store of a run, and the data about the agent that it stores


def store_of(spec: Spec) -> Store:
    """Open and return the store of an agent."""
    if spec.store is None:
        raise DeclarationError(
            f"`{spec.owner}` has no store. Set one, such as `store = 'runs.db'` on the class or "
            f"`{spec.owner}(store='runs.db')`."
        )
    return open_store(spec.store, f"`{spec.owner}.store`")


_STORABLE: tuple[type[Any], ...] = (str, int, float, dict, list, type(None))


def origin_of(agent: AgentBase) -> Origin:
    """Return the class of an agent, and the settings of the instance that can be stored with a run."""
    settings = {name: value for name, value in list(vars(agent).items()) if name in SETTINGS and name != "store"}
    if has_address_or_key(settings.get("tools")):  # A store must not contain keys.
        del settings["tools"]
    overrides = {
        name: value
        for name, value in settings_to_json(settings).items()
        if isinstance(value, _STORABLE) and to_json_data(value) == value
    }
    file = getattr(sys.modules.get(type(agent).__module__), "__file__", None)
    options = agent.__acorn_call_options__
    batch, index = options.item or (None, None)
    return Origin(spec_cache.agent_name(type(agent)), overrides, file, batch, index, options.owner)
