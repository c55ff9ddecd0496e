"""Branches of a run: the data that a branch inherits at its start, and the tool result that its parent receives.

A branch inherits the conversation, the tools, and the settings that it does not declare itself. An agent that is used
as a tool also runs as a branch, but it inherits only the model and the rate limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from acorn._declare.generics import check_deps
from acorn._declare.settings import merge_settings, without_overridden
from acorn._declare.spec import Spec
from acorn._declare.tools.arguments import check_finite
from acorn._declare.tools.kinds import Tool
from acorn._formats.json import describe_error, field_values
from acorn._formats.schema.shape import Shape
from acorn._history.history import call_ids, tool_message
from acorn._history.transcript import FinishedCall, Transcript, finish_call, redacted_traceback
from acorn._machine.asks import BranchEnd
from acorn._machine.budgets import Budget, Budgets, Limits, add_usage
from acorn._machine.plan import Plan
from acorn._machine.requests import RequestBuilder, StepHook, named_tools
from acorn._machine.state import BranchContext, State, branch_id
from acorn.errors import BranchError, InputError
from acorn.journal import BranchFinished, BranchStarted, RunFailed, RunInterrupted
from acorn.record import Run
from acorn.step import changes_of
from acorn.types import Content, JsonObject, JsonValue, Message, ToolCall, ToolResult, Unfinished, is_json_object

_NO_RESULT_YET = "This call has not returned yet."

_INHERITED = (
    "model", "temperature", "max_tokens", "max_steps", "parse_retries", "cache",
    "xml_include_descriptions", "xml_description_format", "xml_include_none",
    "xml_input_root", "xml_output_root", "xml_context_root",
    "history_format", "compact_at", "max_media_bytes",
)  # fmt: skip
_RATE_LIMITS = ("rate_limit", "max_concurrency")


@dataclass(eq=False)
class Branches:
    """The part of a machine that starts branches and adds their token usage to the run."""

    plan: Plan
    run: Run
    state: State
    transcript: Transcript
    builder: RequestBuilder
    budgets: Budgets
    hook: StepHook
    are_counted: bool = False
    """Whether the usage of the run already includes the branches that were unfinished when the run ended."""

    def new_context(
        self,
        name: str,
        branch_input: BaseModel,
        place: str,
        now: float,
        *,
        has_input: bool,
        started: Mapping[str, str] = {},
        call_id: str | None = None,
        inside: str | None = None,
        inherits: bool = True,
        caller_depth: int = 0,
    ) -> BranchContext:
        """Return the data that a new branch inherits: conversation, settings, tools and limits of this run.

        `started` maps call ids to the names of the branches that start at the same time. `caller_depth` is the nesting
        depth of the code that starts the branch. This depth may be greater than the depth of this run, because code
        inside one branch may start another branch of the same run.
        """
        spec, above = self.plan.spec, self.plan.context
        depth, path = (above.depth + 1, f"{above.path}/{name}") if above else (1, name)
        depth = max(depth, caller_depth + 1)
        if depth > spec.max_depth:
            raise BranchError(
                f"Cannot start branch `{name}`: it would be at depth {depth}, and `max_depth` of `{spec.owner}` is "
                f"{spec.max_depth}. Finish without it, or raise `max_depth`."
            )
        settings, tools = self._changed()
        history: list[Message] = []
        if inherits:
            is_in_step = self.state.phase in ("tools", "branches", "step", "judge")
            turn_index = self.transcript.turn_index if is_in_step else None
            history = _close_turn(self.transcript.history.messages, turn_index, self.hook.results(), started)
        return BranchContext(
            branch_id(self.run.id, place),
            self.run.id,
            name,
            path,
            depth,
            place,
            call_id,
            inside,
            branch_input,
            has_input=has_input,
            inherits=inherits,
            history=tuple(history),
            openings=self.transcript.history.openings if inherits else (),
            settings=dict(settings),
            tools=tuple([tool.name for tool in tools]) if inherits else (),
            limits=self.state.meter.limits_for_branches(self.budgets.limits, self.builder.model.price(), now),
        )

    def plan_for(self, context: BranchContext, plan: Plan) -> Plan:
        """Return a copy of a branch's plan that adds the tools, settings and budgets inherited from this run."""
        limits = Limits(context.limits.tokens, context.limits.cost)
        budget = Budget(self.plan.spec.owner, limits, self.state.meter.spent)
        known = {tool.name: tool for tool in (*self.builder.toolset.tools, *self._changed()[1])}
        deps = self.run.deps if plan.deps is None else plan.deps
        check_deps(plan.spec.owner, plan.spec.deps_type, deps)
        return replace(
            plan,
            spec=_inherited_spec(plan.spec, self.plan.spec, context),
            context=context,
            above=(budget, *self.budgets.all[1:]),
            inherited=named_tools(tuple(known.values()), context.tools) if context.inherits else (),
            deps=deps,
            on_human=plan.on_human or self.plan.on_human,
        )

    def _changed(self) -> tuple[JsonObject, tuple[Tool, ...]]:
        """Return the settings that hooks have changed so far, and the tools after the changes by hooks."""
        step = self.hook.step
        if step is None:
            return self.state.settings, self.builder.toolset.tools
        changes = changes_of(step)
        return merge_settings(self.state.settings, changes.settings), changes.tools

    def start(self, context: BranchContext, now: float) -> None:
        """Append a journal entry for the start of a branch."""
        self.run.journal.now = now
        self.transcript.add_entry(BranchStarted, context.run_id, context.path, context.call_id, context.inside)

    def finish(self, context: BranchContext, branch: Run, call: FinishedCall, now: float, model: object = None) -> None:
        """Append a journal entry for the end of a branch, and add the branch's usage to the usage of the run.

        The secrets of `model`, the model of the branch, are redacted in the traceback of an error.
        """
        result, message, raised = call
        self.transcript.add_branch_result(call)
        self.run.journal.now = now
        self.transcript.add_entry(
            BranchFinished,
            branch.id,
            context.path,
            context.call_id,
            branch.stop_reason,
            branch.seconds,
            message.content,
            result.error,
            branch.usage.copy(),
            branch.cost,
            message.form,
            None if raised is None else redacted_traceback(raised, model),
        )
        add_usage(self.run, branch.usage, branch.cost)

    def count_open(self) -> None:
        """Add the usage of the branches that were unfinished when the run ended.

        Only the first call adds usage, so each branch is counted once.
        """
        if self.are_counted or self.run.stop_reason is None:
            return
        self.are_counted = True
        for branch in _uncounted_branches(self.run):
            add_usage(self.run, branch.usage, branch.cost)


def _uncounted_branches(run: Run) -> Iterator[Run]:
    """Yield the branches that the usage of the run does not include yet."""
    if not run.branches:
        return
    finished = {entry.child_id for entry in run.journal.entries if isinstance(entry, BranchFinished)}
    for branch in run.branches:
        if branch.id not in finished:
            yield branch
            if branch.stop_reason is None:  # The branch was saved before its end and never resumed.
                yield from _uncounted_branches(branch)


def _inherited_spec(own: Spec, parent: Spec, context: BranchContext) -> Spec:
    """Return a copy of a branch's spec that adds the settings inherited from its parent.

    The branch inherits the settings that it does not declare. Two limits of the parent apply to the branch too:
    `max_depth`, and the remaining seconds. An agent that is used as a tool inherits only the model and the rate limits.
    """
    settings, seconds = context.settings, (context.limits.seconds, own.max_seconds)
    names = (*(_INHERITED if context.inherits else ("model",)), *_RATE_LIMITS)
    undeclared = [
        name for name in names if name not in own.declared or (getattr(own, name) is None and name == "model")
    ]
    inherited = {name: settings.get(name, getattr(parent, name)) for name in undeclared}
    if "model" in inherited:  # Settings of the step and of the branch override those in the model dict.
        # The overridden settings of a model list are already removed.
        is_list = isinstance(settings.get("model"), list | tuple)
        nearer = own.declared | settings.keys() if context.inherits and not is_list else own.declared
        inherited["model"] = without_overridden(inherited["model"], nearer)
    declared_above = (parent.declared | settings.keys()) & inherited.keys()
    max_depth = context.depth + own.max_depth if "max_depth" in own.declared else parent.max_depth
    return replace(
        own,
        declared=own.declared | declared_above,
        **inherited,
        max_depth=min(max_depth, parent.max_depth),
        store=own.store if parent.store is None else parent.store,  # Shared rate limits count in the tree's store.
        max_seconds=min((limit for limit in seconds if limit is not None), default=None),
    )


def _close_turn(
    messages: Sequence[Message], turn_index: int | None, results: Iterable[ToolResult], started: Mapping[str, str]
) -> list[Message]:
    """Return the parent's messages with a result for every unanswered call of the last response.

    Earlier responses do not change, because the branch must send the same messages as its parent.
    """
    messages = list(messages)
    if turn_index is not None:
        first = turn_index + 1
        answers: dict[str, Content] = {call_id: f"The branch `{name}` has begun." for call_id, name in started.items()}
        answers |= {result.id: finish_call(result).message.content for result in results}
        tool_messages = takewhile(lambda message: message.get("role") == "tool", messages[first:])
        answered = {message.get("tool_call_id") for message in tool_messages}
        messages[first:first] = [
            tool_message(call_id, answers.get(call_id, _NO_RESULT_YET))
            for call_id in call_ids(messages[turn_index])
            if call_id not in answered
        ]
    return messages


def first_branch_messages(
    history: Sequence[Message], prompt: str, opening: Message | None
) -> tuple[list[Message], int]:
    """Return the first messages of a branch, and the number of inherited messages among them.

    The branch's prompt is appended to the prompt of the parent, and the branch's input is the last message.
    """
    messages = list(history)
    if prompt.strip():
        if messages and messages[0].get("role") == "system":
            messages[0] = {**messages[0], "content": _join_prompts(messages[0].get("content"), prompt)}
        else:
            messages.insert(0, {"role": "system", "content": prompt})
    inherited = len(messages)
    return (messages if opening is None else [*messages, opening]), inherited


def _join_prompts(parent: Any, prompt: str) -> Content:
    if isinstance(parent, list):  # Content parts that the user has written.
        return [*parent, {"type": "text", "text": f"\n\n{prompt}"}]
    return f"{parent}\n\n{prompt}" if parent else prompt


def read_branch_input(shape: Shape, name: str, call: ToolCall) -> BaseModel:
    """Parse the input of a branch from the arguments of its tool call."""
    try:
        arguments: JsonValue = from_json(call.raw_arguments or "{}")
    except ValueError as error:
        raise InputError(f"The arguments are not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise InputError(f"The arguments must be a JSON object, got {call.raw_arguments[:120]}")
    instance = shape.from_call(name, (), arguments)
    given = {field: getattr(instance, field) for field in instance.model_fields_set}
    if shape.takes_fields:
        value = given[shape.wrapped]
        given = value if is_json_object(value) else dict(field_values(value))
    check_finite(call.raw_arguments, given, {})
    return instance


def branch_result(call: ToolCall, end: BranchEnd) -> ToolResult:
    """Return the tool result with the output or the error of a branch, which the parent's model receives."""
    run, seconds = end.run, None if end.run is None else end.run.seconds
    if end.error is not None:
        entries = [] if run is None else run.journal.entries  # Empty if the branch was interrupted before its start.
        last = entries[-1] if entries else None
        # The journal contains the redacted message, without the API keys of the branch's model.
        message = last.error if isinstance(last, RunFailed | RunInterrupted) else describe_error(end.error)
        return ToolResult(call.id, call.name, error=message, seconds=seconds)
    assert run is not None
    if isinstance(run.output, Unfinished):
        return ToolResult(call.id, call.name, error=f"Unfinished: {unfinished_message(call.name)}", seconds=seconds)
    return ToolResult(call.id, call.name, run.output, seconds=seconds)


def unfinished_message(name: str) -> str:
    return f"The branch `{name}` called a tool and ended without an answer. Set `max_steps` on it."
