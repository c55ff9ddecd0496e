"""What the page must know of an agent: what it takes and gives, its tools, its limits, and how it is called.

The model's name is told, never its arguments, which may hold a key.

A fork on the page: what a run keeps of another, what may be changed in it, and what is called again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

import acorn
from acorn import InputError, Run, StreamChunk, module
from acorn._inside import (
    CALL_OPTIONS,
    FINISH,
    BatchItem,
    Shape,
    Spec,
    agent_name,
    aresume_stream,
    call_options,
    describe_blobs,
    find_secrets,
    module_docstring,
    read_spec,
    spec_of,
    to_json_data,
)
from acorn.models.resolve import model_name
from acorn.stores.port import Store
from acorn.thread import AgentEvent, ErrorEvent, MessageEvent, ToolCallEvent, ToolResultEvent
from acorn.types import JsonObject
from acorn.web.page.wire import WHOLE

Agent = module[Any, Any]
_LIMITS = ("max_steps", "max_total_tokens", "max_cost", "max_seconds")


def described(agent: Agent) -> JsonObject:
    """An agent as plain data."""
    spec = spec_of(agent)
    return {
        "name": type(agent).__name__,
        "agent": agent_name(type(agent)),
        "doc": " ".join((module_docstring(type(agent)) or "").split()),
        "model": model_name(agent.model),
        "input": _shape(spec.input),
        "output": _shape(spec.output),
        "tools": [_tool(tool.schema) for tool in spec.tools],
        "branches": [_branch(name, entry) for name, entry in spec.branches.items()],
        "limits": {name: value for name in _LIMITS if (value := getattr(spec, name)) is not None},
    }


def _shape(shape: Shape) -> JsonObject:
    # Under the fields' own names, by which a run that was kept has its input.
    return {"schema": shape.xml_schema, "wrapped": shape.wrapped, "empty": shape.is_empty}


def _tool(schema: Mapping[str, Any]) -> JsonObject:
    return {"name": schema.get("name", ""), "doc": schema.get("description", "")}


def _branch(name: str, entry: Any) -> JsonObject:
    which = entry["module"] if isinstance(entry, Mapping) else entry
    return {"name": name, "doc": " ".join((module_docstring(which) or "").split())}


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
    return find_secrets(model) if isinstance(model, Mapping) else set()


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
    changes: JsonObject = {"store": store, "run_id": run_id}
    if model is not None:
        changes["model"] = model
    if after is not None:
        changes["history"] = acorn.runs(store).get(after)
    named = agent.using(**changes)
    if fork is not None:
        named = forked(named, acorn.runs(store).get(fork.run), fork)
    vars(named)[CALL_OPTIONS] = replace(call_options(named), item=chat)
    if fork is not None:
        return named.astream()
    made, shape = checked(named, given), spec_of(named).input
    return named.astream() if shape.is_empty else named.astream(shape.unwrap(made))


def resumed(agent: Agent, store: Store, run_id: str) -> Any:
    """The chunks of a run that goes on."""
    named = agent.using(store=store)
    chunks: Any = aresume_stream(named, run_id)
    return chunks


Chunk = StreamChunk


class Wanted(NamedTuple):
    """The fork that somebody wants."""

    run: str
    before: int
    edits: Mapping[str, Any]
    """By the number of an event, what it is to say."""
    prompt: str | None = None


def wanted(given: Any) -> Wanted:
    """What a request says of a fork, checked."""
    known = {"run", "before", "edits", "prompt"}
    if not isinstance(given, dict) or not isinstance(given.get("run"), str) or given.keys() - known:
        raise InputError("`fork` is an object with `run` and `before`, and perhaps `edits` and `prompt`.")
    before, edits, prompt = given.get("before"), given.get("edits", {}), given.get("prompt")
    if not isinstance(before, int) or isinstance(before, bool):
        raise InputError("`before` of `fork` is the number of a step.")
    if not isinstance(edits, dict) or not all(isinstance(each, str) for each in edits.values()):
        raise InputError("`edits` of `fork` are texts by the number of an event.")
    if prompt is not None and not (isinstance(prompt, str) and prompt.strip()):
        raise InputError("`prompt` of `fork` is a text.")
    return Wanted(given["run"], before, edits, prompt)


def forked(agent: Agent, run: Run, fork: Wanted) -> Agent:
    """The agent that goes on with the kept part of a run; what is wrong is told now."""
    events = run.thread
    for number, text in fork.edits.items():
        at = int(number) if number.isascii() and number.isdigit() else len(events)
        if at >= len(events) or not _is_kept(events[at], fork.before):
            raise InputError(f"`edits` of `fork` has `{number}`, and there is no such event before step {fork.before}.")
        events[at] = _edited(events[at], text)
    changes = {} if fork.prompt is None else {"system_prompt": fork.prompt}
    return agent.using(thread=events, before=fork.before, **changes)


def forkable(agent: Agent, run: Run, before: int | None) -> JsonObject:
    """What would be kept of a run, and what may be called again, as plain data."""
    events = run.thread
    last = max((event.iteration for event in events if event.branch is None), default=0)
    most = last + 1 if _fits(agent, run, last + 1) else max(last, 1)
    step = most if before is None else min(max(before, 1), most)
    agent.using(thread=run, before=step)
    spec = spec_of(agent)
    own = [event for event in events if event.branch is None and event.iteration >= step]
    called = Counter(event.tool_name for event in own if isinstance(event, ToolCallEvent) and event.tool_name != FINISH)
    names = {event.tool_call_id: event.tool_name for event in events if isinstance(event, ToolCallEvent)}
    kept = [(at, event) for at, event in enumerate(events) if _is_kept(event, step)]
    prompt = next((_told(event, names)[2] for _, event in kept if _is_prompt(event)), "")
    return {
        "before": step,
        "most": most,
        "prompt": prompt,
        "events": [_shown(at, event, names) for at, event in kept if not _is_prompt(event)],
        "tools": [*(tool.name for tool in spec.tools), *spec.branches],
        "sources": len(spec.sources),
        "called": dict(called),
    }


def _fits(agent: Agent, run: Run, before: int) -> bool:
    try:
        agent.using(thread=run, before=before)
    except InputError:
        return False
    return True


def _is_kept(event: AgentEvent, before: int) -> bool:
    shown = MessageEvent | ToolCallEvent | ToolResultEvent | ErrorEvent
    is_end = isinstance(event, ErrorEvent) and event.tool_call_id is None
    return event.branch is None and event.iteration < before and isinstance(event, shown) and not is_end


def _is_prompt(event: AgentEvent) -> bool:
    return isinstance(event, MessageEvent) and event.role == "system" and event.iteration == 0


def _shown(at: int, event: AgentEvent, names: Mapping[str, str]) -> JsonObject:
    kind, name, text = _told(event, names)
    # The input has a form of its own, and what is longer than the page shows could only be edited to be shorter.
    may = kind not in ("input", "user") and len(text) <= WHOLE
    return {"at": at, "step": event.iteration, "kind": kind, "name": name, "text": text, "edits": may}


def _told(event: AgentEvent, names: Mapping[str, str]) -> tuple[str, str, str]:
    match event:
        case MessageEvent():
            return event.role if event.iteration else "input", event.role, event.content
        case ToolCallEvent():
            return "call", event.tool_name, _json(event.args)
        case ToolResultEvent():
            return "result", names.get(event.tool_call_id, ""), _text(event.result)
        case ErrorEvent():
            return "error", names.get(event.tool_call_id or "", ""), event.error
        case _:
            return "note", "", ""


def _edited(event: AgentEvent, text: str) -> AgentEvent:
    match event:
        case MessageEvent(role="assistant"):
            return event.model_copy(update={"content": text})
        case ToolCallEvent():
            return event.model_copy(update={"args": _object(text, event.tool_name), "raw_arguments": None})
        case ToolResultEvent():
            result = text if isinstance(event.result, str) else _read(text)
            return event.model_copy(update={"result": result})
        case ErrorEvent():
            made = ToolResultEvent(iteration=event.iteration, tool_call_id=event.tool_call_id or "", result=text)
            made.timestamp = event.timestamp
            return made
        case _:
            raise InputError("What was asked for is not edited here: begin a new run with another input.")


def _object(text: str, name: str) -> JsonObject:
    found = _read(text)
    if not isinstance(found, dict):
        raise InputError(f"The arguments of `{name}` are no JSON object.")
    return found


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(describe_blobs(to_json_data(value)))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
