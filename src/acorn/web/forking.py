"""A fork on the page: what a run keeps of another, what may be changed in it, and what is called again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from acorn import InputError, Run, module
from acorn._data import described
from acorn._declared import spec_of
from acorn._json import to_plain
from acorn._tools.collect import FINISH
from acorn.thread import AgentEvent, ErrorEvent, MessageEvent, ToolCallEvent, ToolResultEvent
from acorn.web.wire import WHOLE

Agent = module[Any, Any]


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


def forked(agent: Agent, run: Run[Any], fork: Wanted) -> Agent:
    """The agent that goes on with the kept part of a run; what is wrong is told now."""
    events = run.thread
    for number, text in fork.edits.items():
        at = int(number) if number.isascii() and number.isdigit() else len(events)
        if at >= len(events) or not _is_kept(events[at], fork.before):
            raise InputError(f"`edits` of `fork` has `{number}`, and there is no such event before step {fork.before}.")
        events[at] = _edited(events[at], text)
    changes = {} if fork.prompt is None else {"system_prompt": fork.prompt}
    return agent.using(thread=events, before=fork.before, **changes)


def forkable(agent: Agent, run: Run[Any], before: int | None) -> dict[str, Any]:
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


def _fits(agent: Agent, run: Run[Any], before: int) -> bool:
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


def _shown(at: int, event: AgentEvent, names: Mapping[str, str]) -> dict[str, Any]:
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


def _object(text: str, name: str) -> dict[str, Any]:
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
    return value if isinstance(value, str) else _json(described(to_plain(value)))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
