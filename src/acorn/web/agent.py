"""What the page must know of an agent: what it takes and gives, its tools, its limits, and how it is called.

The model's name is told, never its arguments, which may hold a key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

import acorn
from acorn import InputError, StreamChunk, module
from acorn._call import aresume_stream
from acorn._declared import BROUGHT, BatchItem, agent_name, brought_by, docstring_of, read_spec, spec_of
from acorn._schema.shape import Shape
from acorn._secrets import secrets_in
from acorn._spec import Spec
from acorn.models.resolve import model_name
from acorn.stores.port import Store
from acorn.web.forking import Wanted, forked

Agent = module[Any, Any]
_LIMITS = ("max_steps", "max_total_tokens", "max_cost", "max_seconds")


def described(agent: Agent) -> dict[str, Any]:
    """An agent as plain data."""
    spec = spec_of(agent)
    return {
        "name": type(agent).__name__,
        "agent": agent_name(type(agent)),
        "doc": " ".join((docstring_of(type(agent)) or "").split()),
        "model": model_name(agent.model),
        "input": _shape(spec.input),
        "output": _shape(spec.output),
        "tools": [_tool(tool.schema) for tool in spec.tools],
        "branches": [_branch(name, entry) for name, entry in spec.branches.items()],
        "limits": {name: value for name in _LIMITS if (value := getattr(spec, name)) is not None},
    }


def _shape(shape: Shape) -> dict[str, Any]:
    # Under the fields' own names, by which a run that was kept has its input.
    return {"schema": shape.xml_schema, "wrapped": shape.wrapped, "empty": shape.is_empty}


def _tool(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": schema.get("name", ""), "doc": schema.get("description", "")}


def _branch(name: str, entry: Any) -> dict[str, Any]:
    which = entry["module"] if isinstance(entry, Mapping) else entry
    return {"name": name, "doc": " ".join((docstring_of(which) or "").split())}


def secrets_of(agent: Agent) -> set[str]:
    """The keys that the models of an agent, and of what it may start, are asked with."""
    found = _secrets(agent.model)
    for each in _below(spec_of(agent), []):
        found |= _secrets(each.model)
    return found


def _below(spec: Spec, seen: list[Any]) -> Iterable[Spec]:
    for entry in spec.branches.values():
        which = entry["module"] if isinstance(entry, Mapping) else entry
        if not any(which is each for each in seen):
            seen.append(which)
            yield read_spec(which)
            yield from _below(read_spec(which), seen)


def _secrets(model: Any) -> set[str]:
    if isinstance(model, list | tuple):
        return {secret for each in model for secret in _secrets(each)}
    return secrets_in(model) if isinstance(model, Mapping) else set()


# Calls


def checked(agent: Agent, given: Any) -> BaseModel:
    """The input that JSON stands for; an `InputError` names every wrong field."""
    spec = spec_of(agent)
    shape, owner = spec.input, spec.owner
    if not isinstance(given, dict):
        raise InputError(f"The input of `{owner}` is a JSON object.")
    unknown = [name for name in given if name not in shape._accepted and not shape.allows_extra]
    try:
        made = shape.schema.model_validate_json(json.dumps(given), by_alias=True, by_name=True)
    except ValidationError:
        return shape.from_call(owner, (), given)
    return shape.from_call(owner, (), given) if unknown else made


def begun(
    agent: Agent,
    store: Store,
    given: Any,
    run_id: str,
    chat: BatchItem,
    *,
    after: str | None = None,
    model: str | None = None,
    fork: Wanted | None = None,
) -> Any:
    """The chunks of a new run, which begins when they are asked for; what is wrong is told now."""
    changes: dict[str, Any] = {"store": store, "run_id": run_id}
    if model is not None:
        changes["model"] = model
    if after is not None:
        changes["history"] = acorn.runs(store).get(after)
    named = agent.using(**changes)
    if fork is not None:
        named = forked(named, acorn.runs(store).get(fork.run), fork)
    vars(named)[BROUGHT] = replace(brought_by(named), item=chat)
    if fork is not None:
        return named.astream()
    made, shape = checked(named, given), spec_of(named).input
    return named.astream() if shape.is_empty else named.astream(shape.unwrap(made))


def resumed(agent: Agent, store: Store, run_id: str) -> Any:
    """The chunks of a run that goes on."""
    named = agent.using(store=store)
    chunks: Any = aresume_stream(named, run_id)
    return chunks


Chunk = StreamChunk[Any]
