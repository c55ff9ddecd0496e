"""Child runs: what a branch inherits, how its conversation begins, and what comes back from it.

A branch extends its parent: the conversation up to here, the tools, the settings it does not declare for
itself. Pure; `run.py` makes the child, a driver walks it like any run.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import BaseModel
from pydantic_core import from_json

from acorn._loop import messages
from acorn._loop.asks import Child
from acorn._loop.limits import Limits, Spent
from acorn._loop.plan import BranchTool, Heritage, Plan
from acorn._spec import Spec
from acorn._tools.collect import Tool
from acorn.errors import AcornError, BranchError, InputError
from acorn.record import Message, Run
from acorn.types import ToolCall, ToolResult, Unfinished

if TYPE_CHECKING:
    from acorn._loop.run import Loop

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
    "max_depth",
)


def inherited_spec(own: Spec, parent: Spec, settings: Mapping[str, Any], limits: Limits, spent: Spent) -> Spec:
    """The branch's spec with what it leaves open taken from its parent as it is at this step."""
    missing = {name: settings.get(name, getattr(parent, name)) for name in _INHERITED if name not in own.declared}
    set_above = (parent.declared | settings.keys()) & missing.keys()
    return replace(
        own,
        declared=own.declared | set_above,
        **missing,
        max_total_tokens=_least(limits.tokens, _after(spent.tokens, own.max_total_tokens)),
        max_cost=_least(limits.cost, _after(spent.cost, own.max_cost)),
        max_seconds=_least(limits.seconds, own.max_seconds),
    )


def _after(used: Any, own: Any) -> Any:
    """A limit of the branch alone, counted in what the whole tree has spent."""
    return None if own is None else used + own


def _least(*limits: Any) -> Any:
    given = [limit for limit in limits if limit is not None]
    return min(given) if given else None


def inherited_tools(parent: Sequence[Tool], own: Sequence[Tool]) -> tuple[Tool, ...]:
    """The parent's tools, then the branch's; where names meet, the branch's."""
    return tuple({tool.name: tool for tool in (*parent, *own)}.values())


def conversation(
    history: Sequence[Message], turn: Message | None, results: Sequence[ToolResult], begun: Mapping[str, str]
) -> list[Message]:
    """A copy of the parent's conversation in which every pending call is answered.

    `begun` says which branch a call began; a call that is neither done nor a branch has not returned yet.
    """
    at = None if turn is None else messages.find_turn(history, turn)
    copy = _copy(history)
    if at is not None:
        told = {result.id: messages.tool_result(result) for result in results}
        pending = [
            told.get(call_id)
            or messages.tool(call_id, f"The branch `{begun[call_id]}` has begun." if call_id in begun else NOT_YET)
            for call_id in messages.call_ids(copy[at])
        ]
        if not any(message.get("role") == "tool" for message in copy[at + 1 : at + 2]):
            copy[at + 1 : at + 1] = pending
    messages.close_calls(copy, NOT_YET)
    return copy


def _copy(history: Sequence[Message]) -> list[Message]:
    """A deep copy, by the quickest way there is for plain data."""
    try:
        copied: list[Message] = marshal.loads(marshal.dumps(list(history)))
    except ValueError:  # something in it is no plain data
        return deepcopy(list(history))
    return copied


def begin_branch(history: list[Message], prompt: str, own: Message | None) -> list[Message]:
    """The branch's history: its prompt below the parent's, its own input at the end."""
    if prompt.strip():
        if history and history[0].get("role") == "system":
            history[0]["content"] = f"{history[0].get('content') or ''}\n\n{prompt}"
        else:
            history.insert(0, {"role": "system", "content": prompt})
    return history if own is None else [*history, own]


def called_child(
    parent: Loop, branch: BranchTool, call: ToolCall, begun: Mapping[str, str], now: float
) -> Child | ToolResult:
    """The run of a branch that the model called, or the error that it will read."""
    try:
        given = _given(branch, call)
        loop = make_child(parent, branch.name, branch.make(), given, begun, now)
    except AcornError as error:
        return ToolResult(call.id, call.name, error=f"{type(error).__name__}: {error}")
    return Child(call, loop, loop.path)


def _given(branch: BranchTool, call: ToolCall) -> BaseModel:
    try:
        arguments = from_json(call.raw_arguments or "{}")
    except ValueError as error:
        raise InputError(f"The arguments are not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise InputError(f"The arguments must be a JSON object, got {call.raw_arguments[:120]}")
    return branch.spec.input.from_call(branch.name, (), arguments)


def make_child(parent: Loop, name: str, plan: Plan, given: BaseModel, begun: Mapping[str, str], now: float) -> Loop:
    """A branch of a run as it is now, ready to be driven."""
    above = parent.plan.heritage
    depth = 1 if above is None else above.depth + 1
    if depth > parent.spec.max_depth:
        raise BranchError(
            f"`{name}` would be branch {depth} levels deep, and `max_depth` of `{parent.spec.owner}` is "
            f"{parent.spec.max_depth}; finish without it, or raise `max_depth`."
        )
    settings = {key: parent.setting(key) for key in ("model", "temperature", "max_tokens")}
    changed = {key: value for key, value in settings.items() if key in parent.state.settings}
    limits = parent.plan.limits
    left = None if limits.seconds is None else max(0.001, limits.seconds - now)
    spent = parent.state.meter.spent
    spec = inherited_spec(plan.spec, parent.spec, changed, replace(limits, seconds=left), spent)
    heritage = Heritage(
        history=conversation(parent.run.history, parent.turn, parent.results_so_far(), begun),
        opening=parent.opening,
        outbox=parent.outbox.fork(),
        path=name if above is None else f"{above.path}/{name}",
        depth=depth,
        spent=spent,
        has_input=not plan.spec.input.is_empty,
    )
    tools = inherited_tools(parent.toolset.tools, plan.tools)
    run: Run[Any] = Run(uuid4().hex, given, deps=parent.run.deps)
    child = type(parent)(replace(plan, spec=spec, tools=tools, heritage=heritage), run)
    parent.run.branches.append(run)
    return child


def outcome(call: ToolCall, run: Run[Any], error: Exception | None) -> ToolResult:
    """What the parent's model reads of a branch that has ended."""
    if error is not None:
        return ToolResult(call.id, call.name, error=f"{type(error).__name__}: {error}")
    if isinstance(run.output, Unfinished):
        return ToolResult(call.id, call.name, error=f"Unfinished: {unfinished(call.name)}")
    return ToolResult(call.id, call.name, run.output)


def unfinished(name: str) -> str:
    return f"the branch `{name}` called a tool and ended without an answer; set `max_steps` on it."
