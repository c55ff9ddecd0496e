"""The agent of the page: its description, its secrets, and functions that start and fork its runs.

The description contains the name of the model, but not the model settings, because they may contain an API key.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any, TypeGuard

from pydantic import BaseModel, Field

import acorn
from acorn import InputError, Run, StreamChunk
from acorn._inside import (
    FINISH,
    Agent,
    AgentOrClass,
    Shape,
    agent_name,
    describe_blobs,
    find_secrets,
    in_batch,
    module_docstring,
    parse_input,
    parse_json,
    read_spec,
    to_json_data,
)
from acorn.models.resolve import model_name
from acorn.stores.port import Store
from acorn.thread import AgentEvent, ErrorEvent, MessageEvent, ToolCallEvent, ToolResultEvent
from acorn.types import JsonObject, is_json_object, is_mapping
from acorn.web.page import TEXT_LIMIT

_LIMITS = ("max_steps", "max_total_tokens", "max_cost", "max_seconds")


def agent_json(agent: Agent) -> JsonObject:
    """Return a description of an agent as JSON data, with its input, output, tools, branches and limits."""
    spec = read_spec(agent)
    branches = ((name, entry["module"] if is_mapping(entry) else entry) for name, entry in spec.branches.items())
    return {
        "name": spec.owner,
        "agent": agent_name(agent),
        "doc": docstring_line(agent),
        "model": model_name(agent.model),
        "input": _shape(spec.input),
        "output": _shape(spec.output),
        "tools": [{"name": tool.name, "doc": tool.schema.get("description", "")} for tool in spec.tools],
        "branches": [{"name": name, "doc": docstring_line(branch)} for name, branch in branches],
        "limits": {name: value for name in _LIMITS if (value := getattr(spec, name)) is not None},
    }


def docstring_line(agent: AgentOrClass) -> str:
    """Return the docstring of an agent on one line."""
    return " ".join((module_docstring(agent) or "").split())


def _shape(shape: Shape) -> JsonObject:
    # This schema has field names instead of aliases, because the input of a stored run has field names.
    return {"schema": shape.xml_schema, "wrapped": bool(shape.wrapped), "empty": shape.is_empty}


def secrets_of(agent: Agent) -> set[str]:
    """Return the API keys of the models of an agent and of the agents that it may start, so that they are redacted."""
    agents: list[AgentOrClass] = [agent]
    for found in agents:  # The list grows during the loop.
        agents += [other for other in read_spec(found).startable if not any(other is known for known in agents)]
    return set[str]().union(*(find_secrets(read_spec(found).model) for found in agents))


# Start runs


class ForkRequest(BaseModel, extra="forbid", strict=True):
    """A request of the page to fork a run: to start a new run from the steps before a given step.

    The request may edit these steps.
    """

    run: str
    before: int
    edits: Mapping[str, str] = {}
    """Maps the number of an event to its new text."""
    prompt: Annotated[str, Field(pattern=r"\S")] | None = None


class StartRequest(BaseModel, extra="forbid", strict=True):
    """A request of the page to start a run."""

    input: object = {}
    after: str | None = None
    """The id of the previous run of the conversation."""
    model: str | None = None
    fork: ForkRequest | None = None


def start_run(
    agent: Agent, store: Store, request: StartRequest, run_id: str, item: tuple[str, int]
) -> AsyncGenerator[StreamChunk]:
    """Return a generator that starts a run and yields the chunks of its output.

    The run starts when the caller requests the first chunk, but this function immediately raises an error for invalid
    arguments. `item` contains the name of a conversation and the number of the run in this conversation.
    """
    changes: JsonObject = {"store": store, "run_id": run_id}
    if request.model:
        changes["model"] = request.model
    if request.after:
        changes["history"] = acorn.runs(store).get(request.after)
    configured = agent.using(**changes)
    arguments: tuple[Any, ...] = ()
    if request.fork is None:
        arguments = parse_input(configured, request.input)
    else:
        configured = fork_agent(configured, acorn.runs(store).get(request.fork.run), request.fork)
    return in_batch(configured, *item).astream(*arguments)


# Forks


def fork_agent(agent: Agent, run: Run, fork: ForkRequest) -> Agent:
    """Return an agent that starts with the edited first steps of another run.

    Raise `InputError` if an edit is invalid.
    """
    events = run.thread
    for number, text in fork.edits.items():
        index = int(number) if number.isascii() and number.isdigit() else len(events)
        if index >= len(events) or not _is_in_fork(events[index], fork.before):
            raise InputError(
                f"`edits` of `fork` contains event `{number}`. A fork before step {fork.before} cannot edit this event."
            )
        events[index] = _edit(events[index], text)
    changes = {} if fork.prompt is None else {"system_prompt": fork.prompt}
    return agent.using(thread=events, before=fork.before, **changes)


def describe_fork(agent: Agent, run: Run, before: int | None) -> JsonObject:
    """Return the events that a fork would copy, and the tools that it may call again, as JSON data.

    A fork is a new run that starts with the first steps of another run.
    """
    events = run.thread
    last = max((event.iteration for event in events if event.branch is None), default=0)
    try:
        agent.using(thread=run, before=last + 1)
        last_step = last + 1
    except InputError:
        last_step = max(last, 1)
    step = last_step if before is None else min(max(before, 1), last_step)
    agent.using(thread=run, before=step)
    spec = read_spec(agent)
    dropped = [event for event in events if event.branch is None and event.iteration >= step]
    calls = [event for event in dropped if isinstance(event, ToolCallEvent) and event.tool_name != FINISH]
    names = {event.tool_call_id: event.tool_name for event in events if isinstance(event, ToolCallEvent)}
    copied = [(index, event) for index, event in enumerate(events) if _is_in_fork(event, step)]
    return {
        "before": step,
        "last_step": last_step,
        "prompt": next((event.content for _, event in copied if _is_prompt(event)), ""),
        "events": [_event_json(index, event, names) for index, event in copied if not _is_prompt(event)],
        "tools": [*(tool.name for tool in spec.tools), *spec.branches],
        "sources": len(spec.sources),
        "called": dict(Counter(event.tool_name for event in calls)),
    }


def _is_in_fork(event: AgentEvent, before: int) -> bool:
    """Return True if a fork that starts before the step `before` would copy an event of the original run."""
    editable = MessageEvent | ToolCallEvent | ToolResultEvent | ErrorEvent
    is_run_error = isinstance(event, ErrorEvent) and event.tool_call_id is None
    return event.branch is None and event.iteration < before and isinstance(event, editable) and not is_run_error


def _is_prompt(event: AgentEvent) -> TypeGuard[MessageEvent]:
    return isinstance(event, MessageEvent) and event.role == "system" and event.iteration == 0


def _event_json(index: int, event: AgentEvent, names: Mapping[str, str]) -> JsonObject:
    """Return an event as the page displays it. `names` maps the ids of tool calls to the names of the tools."""
    kind, name, text = "note", "", ""
    match event:
        case MessageEvent():
            kind, name, text = event.role if event.iteration else "input", event.role, event.content
        case ToolCallEvent():
            kind, name, text = "call", event.tool_name, _json(event.args)
        case ToolResultEvent():
            kind, name, text = "result", names.get(event.tool_call_id, ""), _text(event.result)
        case ErrorEvent():
            kind, name, text = "error", names.get(event.tool_call_id or "", ""), event.error
        case _:
            pass
    # The page has another form for the input. It cuts long texts, so an edit of a long text would lose its end.
    is_editable = kind not in ("input", "user") and len(text) <= TEXT_LIMIT
    return {"at": index, "step": event.iteration, "kind": kind, "name": name, "text": text, "editable": is_editable}


def _edit(event: AgentEvent, text: str) -> AgentEvent:
    """Return a copy of an event with the text that a user has edited.

    Raise `InputError` if the text is invalid or the event cannot be edited.
    """
    match event:
        case MessageEvent(role="assistant"):
            return event.model_copy(update={"content": text})
        case ToolCallEvent():
            arguments = parse_json(text)
            if not is_json_object(arguments):
                raise InputError(f"The arguments of `{event.tool_name}` must be a JSON object.")
            return event.model_copy(update={"args": arguments, "raw_arguments": None})
        case ToolResultEvent():
            result = text if isinstance(event.result, str) else parse_json(text)
            return event.model_copy(update={"result": result})
        case ErrorEvent():
            step, call_id = event.iteration, event.tool_call_id or ""
            return ToolResultEvent(iteration=step, timestamp=event.timestamp, tool_call_id=call_id, result=text)
        case _:
            raise InputError("The input cannot be edited in a fork. Start a new run with another input.")


def _text(value: object) -> str:
    return value if isinstance(value, str) else _json(describe_blobs(to_json_data(value)))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
