"""Branches: what they inherit, how their conversation begins, and what comes back from them.

A branch extends its parent: the conversation up to here, the tools, the settings it does not declare for
itself. Pure; `run.py` bears a branch, a driver walks it like any run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from acorn._declare.settings import without_overridden
from acorn._declare.spec import Spec
from acorn._declare.tools.kinds import Tool
from acorn._formats.json import copy_json, describe_error
from acorn._formats.schema.shape import Shape
from acorn._history import messages
from acorn._machine.asks import BranchEnd
from acorn._machine.plan import BranchTool
from acorn.errors import InputError
from acorn.journal import RunFailed, RunInterrupted
from acorn.record import Message
from acorn.types import JsonObject, ToolCall, ToolResult, Unfinished

NOT_YET = "This call has not returned yet."

_INHERITED = (
    "model",
    "temperature",
    "max_tokens",
    "max_steps",
    "parse_retries",
    "cache",
    "xml_include_descriptions",
    "xml_description_format",
    "xml_include_none",
    "xml_input_root",
    "xml_output_root",
    "xml_context_root",
    "history_format",
    "compact_at",
    "max_media_bytes",
)
_THROTTLES = ("rate_limit", "max_concurrency")


def inherited_spec(
    own: Spec, parent: Spec, settings: Mapping[str, Any], depth: int, seconds: float | None, *, inherits: bool
) -> Spec:
    """The branch's spec with what it leaves open taken from its parent as it was at that step.

    What bounds the parent bounds the branch as well: how deep it may nest, and the `seconds` that are left. An agent
    that is a tool takes its caller's model alone, and is counted where its caller is.
    """
    names = (*(_INHERITED if inherits else ("model",)), *_THROTTLES)
    left_open = [name for name in names if name not in own.declared or (getattr(own, name) is None and name == "model")]
    missing = {name: settings.get(name, getattr(parent, name)) for name in left_open}
    if "model" in missing:  # what it says is overruled by what was set in the step, and by the branch's own
        is_list = isinstance(settings.get("model"), list | tuple)  # of which what was overruled is gone
        nearer = own.declared | (settings.keys() if inherits and not is_list else set())
        missing["model"] = without_overridden(missing["model"], nearer)
    set_above = (parent.declared | settings.keys()) & missing.keys()
    deepest = depth + own.max_depth if "max_depth" in own.declared else parent.max_depth
    return replace(
        own,
        declared=own.declared | set_above,
        **missing,
        max_depth=min(deepest, parent.max_depth),
        store=own.store if parent.store is None else parent.store,  # where the tree is kept, shared limits count
        max_seconds=min((limit for limit in (seconds, own.max_seconds) if limit is not None), default=None),
    )


def inherited_tools(
    parent: Sequence[Tool], own: Sequence[Tool], branches: Mapping[str, BranchTool]
) -> tuple[Tool, ...]:
    """The parent's tools, then the branch's; where names meet, the branch's, its own branches included."""
    named = {tool.name: tool for tool in parent if tool.name not in branches}
    return tuple((named | {tool.name: tool for tool in own}).values())


def conversation(
    copies: list[Message], at: int | None, results: Iterable[ToolResult], begun: Mapping[str, str]
) -> list[Message]:
    """The parent's conversation, of which these are copies, with every pending call of the turn at `at` answered.

    `begun` says which branch a call began; a call that is neither done nor a branch has not returned yet.
    Calls of earlier turns are left as they are: what the parent sends for them, the branch sends too.
    """
    if at is not None:
        answers: JsonObject = {call_id: f"The branch `{name}` has begun." for call_id, name in begun.items()}
        answers |= {result.id: messages.result_content(result) for result in results}
        behind = takewhile(lambda message: message.get("role") == "tool", copies[at + 1 :])
        answered = {message.get("tool_call_id") for message in behind}
        copies[at + 1 : at + 1] = [
            messages.tool(call_id, answers.get(call_id, NOT_YET))
            for call_id in messages.call_ids(copies[at])
            if call_id not in answered
        ]
    return copies


def first_branch_messages(history: Sequence[Message], prompt: str, own: Message | None) -> tuple[list[Message], int]:
    """The branch's history, its prompt below the parent's and its own input at the end; how many are inherited.

    Those are the very messages, to be copied before anybody may change them.
    """
    made = list(history)
    if prompt.strip():
        if made and made[0].get("role") == "system":
            made[0] = {**made[0], "content": _joined(made[0].get("content"), prompt)}
        else:
            made.insert(0, {"role": "system", "content": prompt})
    inherited = len(made)
    return (made if own is None else [*made, copy_json(own)]), inherited


def _joined(above: Any, prompt: str) -> Any:
    """The parent's prompt, a blank line, the branch's own."""
    if isinstance(above, list):  # content parts that the user has put there
        return [*above, {"type": "text", "text": f"\n\n{prompt}"}]
    return f"{above}\n\n{prompt}" if above else prompt


def branch_input(shape: Shape, name: str, call: ToolCall) -> BaseModel:
    """The input of a branch, from the arguments of its call."""
    try:
        arguments = from_json(call.raw_arguments or "{}")
    except ValueError as error:
        raise InputError(f"The arguments are not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise InputError(f"The arguments must be a JSON object, got {call.raw_arguments[:120]}")
    return shape.from_call(name, (), arguments)


def branch_result(call: ToolCall, end: BranchEnd) -> ToolResult:
    """What the parent's model reads of a branch that has ended."""
    run, seconds = end.run, None if end.run is None else end.run.seconds
    if end.error is not None:
        entries = [] if run is None else run.journal.entries  # none yet, if it was interrupted before it began
        last = entries[-1] if entries else None
        # What stands in its journal is without the keys of its model.
        words = last.error if isinstance(last, RunFailed | RunInterrupted) else describe_error(end.error)
        return ToolResult(call.id, call.name, error=words, seconds=seconds)
    assert run is not None
    if isinstance(run.output, Unfinished):
        return ToolResult(call.id, call.name, error=f"Unfinished: {unfinished(call.name)}", seconds=seconds)
    return ToolResult(call.id, call.name, run.output, seconds=seconds)


def unfinished(name: str) -> str:
    return f"the branch `{name}` called a tool and ended without an answer; set `max_steps` on it."
