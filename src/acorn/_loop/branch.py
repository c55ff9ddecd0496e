"""Child runs: what a branch inherits, how its conversation begins, and what comes back from it.

A branch extends its parent: the conversation up to here, the tools, the settings it does not declare for
itself. Pure; `run.py` makes the child, a driver walks it like any run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import BaseModel
from pydantic_core import SchemaSerializer, core_schema, from_json

from acorn._loop import messages
from acorn._loop.asks import Child
from acorn._loop.limits import Budget
from acorn._loop.plan import BranchTool, Heritage, Plan
from acorn._spec import Spec
from acorn._tools.collect import Tool
from acorn.errors import BranchError, InputError
from acorn.record import Message, Run
from acorn.types import ToolCall, ToolResult, Unfinished

if TYPE_CHECKING:
    from acorn._loop.run import Loop

NOT_YET = "This call has not returned yet."
_PLAIN = SchemaSerializer(core_schema.any_schema())


class ParentEndedError(BaseException):
    """The run above has ended, so what was begun inside it ends as well; no failure of the branch's own."""

    def __str__(self) -> str:
        return "the run above has ended"


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
)


def inherited_spec(own: Spec, parent: Spec, settings: Mapping[str, Any], depth: int, seconds: float | None) -> Spec:
    """The branch's spec with what it leaves open taken from its parent as it is at this step.

    What bounds the parent bounds the branch as well: how deep it may nest, and the `seconds` that are left.
    """
    missing = {name: settings.get(name, getattr(parent, name)) for name in _INHERITED if name not in own.declared}
    set_above = (parent.declared | settings.keys()) & missing.keys()
    deepest = depth + own.max_depth if "max_depth" in own.declared else parent.max_depth
    return replace(
        own,
        declared=own.declared | set_above,
        **missing,
        max_depth=min(deepest, parent.max_depth),
        max_seconds=min((limit for limit in (seconds, own.max_seconds) if limit is not None), default=None),
    )


def inherited_tools(
    parent: Sequence[Tool], own: Sequence[Tool], branches: Mapping[str, BranchTool]
) -> tuple[Tool, ...]:
    """The parent's tools, then the branch's; where names meet, the branch's, its own branches included."""
    named = {tool.name: tool for tool in parent if tool.name not in branches}
    return tuple((named | {tool.name: tool for tool in own}).values())


def conversation(
    history: Sequence[Message], turn: Message | None, results: Sequence[ToolResult], begun: Mapping[str, str]
) -> list[Message]:
    """A copy of the parent's conversation in which every pending call is answered.

    `begun` says which branch a call began; a call that is neither done nor a branch has not returned yet.
    Calls of earlier turns are left as they are: what the parent sends for them, the branch sends too.
    """
    copy = _copy(history)
    at = None if turn is None else messages.find_turn(history, turn)
    if at is not None:
        told = {result.id: messages.result_text(result) for result in results}
        told = {call_id: f"The branch `{name}` has begun." for call_id, name in begun.items()} | told
        behind = takewhile(lambda message: message.get("role") == "tool", copy[at + 1 :])
        answered = {message.get("tool_call_id") for message in behind}
        copy[at + 1 : at + 1] = [
            messages.tool(call_id, told.get(call_id, NOT_YET))
            for call_id in messages.call_ids(copy[at])
            if call_id not in answered
        ]
    return copy


def _copy(history: Sequence[Message]) -> list[Message]:
    """A deep copy of dicts and lists that shares their strings, by the quickest way there is."""
    try:
        copied: list[Message] = _PLAIN.to_python(list(history))
    except Exception:  # somebody's own object in it
        return [messages.copied(message) for message in history]
    return copied


def begin_branch(history: list[Message], prompt: str, own: Message | None) -> list[Message]:
    """The branch's history: its prompt below the parent's, its own input at the end."""
    if prompt.strip():
        if history and history[0].get("role") == "system":
            history[0]["content"] = _joined(history[0].get("content"), prompt)
        else:
            history.insert(0, {"role": "system", "content": prompt})
    return history if own is None else [*history, own]


def _joined(above: Any, prompt: str) -> Any:
    """The parent's prompt, a blank line, the branch's own."""
    if isinstance(above, list):  # content parts that the user has put there
        return [*above, {"type": "text", "text": f"\n\n{prompt}"}]
    return f"{above}\n\n{prompt}" if above else prompt


def called_child(
    parent: Loop, branch: BranchTool, call: ToolCall, begun: Mapping[str, str], now: float
) -> Child | ToolResult:
    """The run of a branch that the model called, or the error that it will read."""
    try:
        given = _given(branch, call)
        loop = make_child(parent, branch.name, branch.make(), given, begun, now)
    except Exception as error:  # the class is the user's, and so is its `__init__`
        return ToolResult(call.id, call.name, error=_told(error))
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
    depth, path, budgets = (above.depth + 1, f"{above.path}/{name}", above.budgets) if above else (1, name, ())
    if depth > parent.spec.max_depth:
        raise BranchError(
            f"`{name}` would be branch {depth} levels deep, and `max_depth` of `{parent.spec.owner}` is "
            f"{parent.spec.max_depth}; finish without it, or raise `max_depth`."
        )
    limits, meter = parent.plan.limits, parent.state.meter
    settings, tools = parent.as_changed()
    left = Budget(parent.spec.owner, meter.for_branches(limits, parent.model.price()), meter.spent)
    heritage = Heritage(
        parent=parent,
        history=conversation(parent.run.history, parent.turn, parent.results_so_far(), begun),
        openings=parent.openings,
        outbox=parent.outbox.fork(),
        tools=tools,
        budgets=(left, *budgets),
        path=path,
        depth=depth,
        has_input=not plan.spec.input.is_empty,
    )
    spec = inherited_spec(plan.spec, parent.spec, settings, depth, meter.seconds_for_tools(limits, now))
    run: Run[Any] = Run(uuid4().hex, given, deps=parent.run.deps, branch=path)
    child = type(parent)(replace(plan, spec=spec, heritage=heritage), run)
    parent.run.branches.append(run)
    parent.run.ledger.note("branch", run)
    return child


def outcome(call: ToolCall, run: Run[Any], error: Exception | None) -> ToolResult:
    """What the parent's model reads of a branch that has ended."""
    if error is not None:
        return ToolResult(call.id, call.name, error=_told(error), seconds=run.seconds)
    if isinstance(run.output, Unfinished):
        return ToolResult(call.id, call.name, error=f"Unfinished: {unfinished(call.name)}", seconds=run.seconds)
    return ToolResult(call.id, call.name, run.output, seconds=run.seconds)


def _told(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def unfinished(name: str) -> str:
    return f"the branch `{name}` called a tool and ended without an answer; set `max_steps` on it."
