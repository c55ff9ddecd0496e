"""What the page must know of an agent: what it takes and gives, its tools, its limits, and how it is called.

The model's name is told, never its arguments, which may hold a key.

A fork on the page: what a run keeps of another, what may be changed in it, and what is called again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import acorn
from acorn import InputError, Run, StreamChunk, module
from acorn._inside import (
    FINISH,
    AgentDescription,
    Shape,
    agent_name,
    aresume_stream,
    describe_agent,
    describe_blobs,
    in_batch,
    parse_input,
    secrets_of_model,
    to_json_data,
)
from acorn.models.resolve import model_name
from acorn.stores.port import Store
from acorn.thread import AgentEvent, ErrorEvent, MessageEvent, ToolCallEvent, ToolResultEvent
from acorn.types import JsonObject
from acorn.web.page.wire import WHOLE

Agent = module[Any, Any]


def described(agent: Agent) -> JsonObject:
    """An agent as plain data."""
    description = describe_agent(agent)
    return {
        "name": type(agent).__name__,
        "agent": agent_name(agent),
        "doc": " ".join(description.docstring.split()),
        "model": model_name(agent.model),
        "input": _shape(description.input),
        "output": _shape(description.output),
        "tools": [_tool(tool.schema) for tool in description.tools],
        "branches": [
            {"name": name, "doc": " ".join(describe_agent(branch).docstring.split())}
            for name, branch in description.branches.items()
        ],
        "limits": description.limits,
    }


def _shape(shape: Shape) -> JsonObject:
    # Under the fields' own names, by which a run that was kept has its input.
    return {"schema": shape.xml_schema, "wrapped": shape.wrapped, "empty": shape.is_empty}


def _tool(schema: Mapping[str, Any]) -> JsonObject:
    return {"name": schema.get("name", ""), "doc": schema.get("description", "")}


def secrets_of(agent: Agent) -> set[str]:
    """The keys that the models of an agent, and of what it may start, are asked with."""
    secrets = secrets_of_model(agent.model)
    for branch in _branches_below(describe_agent(agent), []):
        secrets |= secrets_of_model(branch.model)
    return secrets


def _branches_below(description: AgentDescription, seen: list[object]) -> Iterable[AgentDescription]:
    for branch in description.branches.values():
        if not any(branch is other for other in seen):
            seen.append(branch)
            described_branch = describe_agent(branch)
            yield described_branch
            yield from _branches_below(described_branch, seen)


# Calls


def begun(
    agent: Agent,
    store: Store,
    given: Any,
    run_id: str,
    chat: tuple[str, int],
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
    in_batch(named, *chat)
    if fork is not None:
        return named.astream()
    made, shape = parse_input(named, given), describe_agent(named).input
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
    description = describe_agent(agent)
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
        "tools": [*(tool.name for tool in description.tools), *description.branches],
        "sources": description.source_count,
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
