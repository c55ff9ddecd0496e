"""The tool calls of the current step: their preparation, their results, and the human input that they need.

`PendingCalls` lists the calls that can be performed now. When all calls have a result, the machine chooses the next
phase.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from acorn._declare.tools.collect import FINISH
from acorn._declare.tools.kinds import AgentTool, ArgumentError, Tool
from acorn._formats.json import describe_error, to_compact_json, to_json_data, to_json_text
from acorn._history.transcript import FinishedCall, Transcript, failed_call, finish_call
from acorn._machine.asks import Ask, AskBranch, AskHook, AskTool
from acorn._machine.branches import Branches, read_branch_input
from acorn._machine.budgets import Budgets
from acorn._machine.human_input import (
    check_answer,
    decision_of,
    is_same,
    rejection_error,
    request_for,
    shown_arguments,
)
from acorn._machine.plan import BranchTool, Plan
from acorn._machine.requests import RequestBuilder
from acorn._machine.state import BranchContext, State
from acorn.errors import AcornError, InputError, StoreError
from acorn.journal import InputReceived, InputRequested
from acorn.record import TOOL_ASK_PREFIX, Run
from acorn.types import JsonObject, Request, ToolCall, ToolResult

_CUT_OFF = "The response was cut off at the token limit before the arguments were complete. Call again with less."
_UNKNOWN = (
    "Unknown: the process stopped while this call was in progress. It may or may not have taken effect, and acorn does "
    "not repeat it. Find out before you call it again."
)
_LONG_AGO = datetime.fromtimestamp(0, UTC)
"""The time of a request for human input if the driver did not pass the current time."""


@dataclass(eq=False)
class PendingCalls:
    """The part of a machine that prepares the tool calls of the current step and collects their results."""

    plan: Plan
    run: Run
    state: State
    transcript: Transcript
    builder: RequestBuilder
    branches: Branches
    budgets: Budgets
    prepared: dict[str, AskTool | BranchTool] = field(default_factory=dict[str, AskTool | BranchTool])
    """A dict that maps call ids to prepared calls."""
    open: dict[str, None] = field(default_factory=dict[str, None])
    """The ids of prepared calls without a result, in the order of the response.

    The dict does not contain branches that inherit the conversation, because they start after all other calls.
    """
    calls: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    """A dict that maps call ids to all calls of the step."""
    started: datetime | None = None
    """The date and time of second 0 of the run in this process."""

    # Preparation

    def prepare(self, now: float) -> bool:
        """Prepare the calls of the step that have no result, and return whether a tool function must be called.

        If a call cannot be performed, it receives an error result immediately.
        """
        state, finished = self.state, self.state.results
        was_cut = state.response is not None and state.response.stop_reason == "length"
        self.prepared, self.open, self.calls = {}, {}, {}
        has_tools = False
        for call in state.calls:
            self.calls[call.id] = call
            if call.id in finished:
                continue
            if call.id in state.branches:
                self._check_declared(state.branches[call.id])
            is_cut = was_cut and call is state.calls[-1] and not call.arguments
            prepared = self._prepare_call(call, is_cut=is_cut)
            if isinstance(prepared, AskTool) and (prepared.tool.may_ask_human or call.id in state.requests):
                prepared = self._request_input(prepared, now)
            if isinstance(prepared, AskTool):
                has_tools = True
                self.prepared[call.id], self.open[call.id] = prepared, None
            elif isinstance(prepared, FinishedCall):
                self.add_result(prepared, None)
            else:
                self.prepared[call.id] = prepared
                if not prepared.inherits:
                    self.open[call.id] = None
                    if call.id not in state.branches:
                        self._start_branch(prepared, call, {}, now)
        for call_id in state.answers:
            self._use_answer(call_id)
        return has_tools

    def _prepare_call(self, call: ToolCall, *, is_cut: bool = False) -> AskTool | BranchTool | FinishedCall:
        """Return an `AskTool` with validated arguments, the branch to start, or an error result for the model."""
        toolset, run = self.builder.toolset, self.run
        tool = toolset.named.get(call.name) or toolset.branches.get(call.name)
        if tool is None:
            names = ", ".join(f"`{name}`" for name in (*toolset.named, *toolset.branches, FINISH))
            return _refused_call(call, f"There is no tool `{call.name}`. There are: {names}.")
        if is_cut:
            return _refused_call(call, _CUT_OFF)
        if isinstance(tool, BranchTool):
            return tool
        if isinstance(tool, AgentTool):
            return self.plan.start(tool)
        try:
            args, kwargs = tool.bind(call.raw_arguments, run)
        except ArgumentError as error:
            return _refused_call(call, str(error))
        except Exception as error:  # A user's validator may raise any exception.
            return failed_call(call.id, call.name, error)
        ask_id = f"{TOOL_ASK_PREFIX}{run.steps} {call.id}"
        return AskTool(ask_id, call, tool, args, kwargs, tool.options.timeout or math.inf)

    def _check_declared(self, context: BranchContext) -> None:
        """Raise `StoreError` if the agent class no longer declares a branch that a saved run had started."""
        toolset = self.builder.toolset
        tool = toolset.named.get(context.name) or toolset.branches.get(context.name)
        if not isinstance(tool, BranchTool | AgentTool):
            raise StoreError(
                f"The branch `{context.name}` of the saved run is no longer declared on `{self.plan.spec.owner}`. "
                f"Declare it to resume the run."
            )

    def give_up_calls_made_once(self) -> None:
        """Add an error result to each interrupted call of a tool with `once=True`.

        These calls must not be repeated, and it is unknown whether they took effect.
        """
        state = self.state
        for call in state.calls:
            ask_id, tool = f"{TOOL_ASK_PREFIX}{self.run.steps} {call.id}", self.builder.toolset.named.get(call.name)
            if ask_id in state.open_asks and tool is not None and tool.options.once and call.id not in state.results:
                self.add_result(
                    finish_call(ToolResult(call.id, call.name, error=_UNKNOWN)), state.open_asks.pop(ask_id)
                )

    def restore_outputs(self) -> None:
        """Create the output instances of finished branches again, because only their JSON data is saved."""
        for call in self.state.calls:
            branch, result = self.plan.branches.get(call.name), self.state.results.get(call.id)
            tool = self.builder.toolset.named.get(call.name)
            if isinstance(tool, AgentTool):
                branch = self.plan.start(tool)
            if branch is not None and result is not None and result.error is None:
                result.output = branch.spec.output.restore(result.output)

    # Asks

    def list_asks(self, now: float) -> dict[str, Ask]:
        """Return the asks for the calls that may run at the same time now by their ids, in the order of the response.

        If the first call belongs to a tool with `parallel=False`, only this call is returned, because it must run
        alone.
        """
        state = self.state
        if len(self.prepared) == 1 and not self.builder.is_timed and not state.requests:
            (only,) = self.prepared.values()  # The call has no result yet: otherwise the step would be over.
            if isinstance(only, AskTool):
                return {only.id: only}
        asks: dict[str, Ask] = {}
        for call_id in self.open:
            if call_id in state.requests and call_id not in state.answers:
                continue
            prepared = self.prepared[call_id]
            if state.phase == "branches" and isinstance(prepared, BranchTool):
                continue
            tool = prepared.tool if isinstance(prepared, AskTool) else self.builder.toolset.named[prepared.name]
            runs_alone = not tool.options.parallel
            if runs_alone and asks:
                break
            ask: Ask
            if isinstance(prepared, BranchTool):
                ask = self._branch_ask(call_id)
            elif self.builder.is_timed:
                ask = replace(prepared, seconds=self.seconds_for(prepared.tool, now))
            else:
                ask = prepared
            asks[ask.id] = ask
            if runs_alone:
                break
        on_human = self.plan.on_human
        if on_human is not None:
            for call_id, request in state.requests.items():
                if call_id not in state.answers and call_id not in state.passed:
                    ask_id = f"on_human {self.run.steps} {call_id}"
                    asks[ask_id] = AskHook(ask_id, on_human, (request,))
        if state.phase == "branches":
            return {ask.id: ask for ask in map(self._branch_ask, state.branches)} | asks
        return asks

    def _branch_ask(self, call_id: str) -> AskBranch:
        branch, context = self.prepared[call_id], self.state.branches[call_id]
        assert isinstance(branch, BranchTool)
        return AskBranch(f"branch {self.run.steps} {call_id}", self.calls[call_id], context, branch.make)

    def seconds_for(self, tool: Tool, now: float) -> float:
        """Return the maximum duration, in seconds, of a tool call that starts now."""
        left = self.state.meter.seconds_for_tools(self.budgets.limits, now)
        timeout = tool.options.timeout or math.inf
        return timeout if left is None else min(timeout, left)

    # Results

    def add_result(self, call: FinishedCall, began: float | None) -> None:
        """Store a tool result in the state, and add it to the journal."""
        self.store_result(call.result)
        self.transcript.add_result(call, began, self.builder.model_setting)

    def store_result(self, result: ToolResult) -> None:
        """Store a tool result in the state, but do not add it to the journal."""
        self.state.results[result.id] = result
        self.open.pop(result.id, None)

    # Branches that the model called

    def waiting_branches(self) -> list[tuple[ToolCall, BranchTool]]:
        """Return the branch calls that wait until all other calls of the response have results."""
        results = self.state.results
        calls = [(call, self.prepared.get(call.id)) for call in self.state.calls if call.id not in results]
        return [(call, tool) for call, tool in calls if isinstance(tool, BranchTool) and tool.inherits]

    def start_branches(self, now: float) -> None:
        """Start the branches that have waited for the other calls of the response."""
        waiting = self.waiting_branches()
        started = {call.id: call.name for call, _ in waiting}
        for call, branch in waiting:
            self._start_branch(branch, call, started, now)

    def _start_branch(self, branch: BranchTool, call: ToolCall, started: Mapping[str, str], now: float) -> None:
        """Create the data that a branch starts with. If this fails, the error becomes the result of the call."""
        try:
            context = self.branches.new_context(
                branch.name,
                read_branch_input(branch.spec.input, branch.name, call),
                f"{self.run.steps}/{call.id}",
                now,
                has_input=not branch.spec.input.is_empty,
                started=started,
                call_id=call.id,
                inherits=branch.inherits,
            )
        except (AcornError, ArgumentError) as error:
            self.add_result(_refused_call(call, describe_error(error)), None)
        except Exception as error:  # The user's validators may raise any exception.
            self.add_result(failed_call(call.id, call.name, error), None)
        else:
            self.state.branches[call.id] = context

    # Human input

    def open_requests(self) -> list[Request]:
        """Return the requests for human input that have no answer yet."""
        state = self.state
        if state.phase not in ("tools", "branches"):
            return []
        return [
            request
            for call_id, request in state.requests.items()
            if call_id not in state.answers and call_id not in state.results
        ]

    def call_waiting_for(self, request_id: str) -> str | None:
        """Return the id of the tool call that needs the answer to a request, or None if the id is unknown."""
        requests = self.state.requests
        return next((call_id for call_id, request in requests.items() if request.id == request_id), None)

    def check_answer(self, request_id: str, value: object) -> str:
        """Return the id of the tool call that needs the answer to a request.

        Raise an error if the request is unknown or already answered, or if the answer is invalid.
        """
        state = self.state
        call_id = self.call_waiting_for(request_id)
        if call_id is None:
            raise StoreError(
                f"Run {self.run.id} has no request `{request_id}`. Use the id of one of its open requests."
            )
        request = state.requests[call_id]
        if call_id in state.answers or call_id in state.results:
            raise StoreError(f"Request `{request_id}` ({request.question}) is already answered. Leave out its answer.")
        check_answer(request, value)
        if request.kind == "approval" and request.tool in self.builder.toolset.named:
            arguments = decision_of(request, value).get("arguments")
            call = next(call for call in state.calls if call.id == call_id)
            changed = None if arguments is None else self._approved_call(call, arguments)
            if isinstance(changed, FinishedCall):
                raise InputError(f"The approved arguments for `{request.tool}` are invalid: {changed.result.error}.")
        return call_id

    def add_answer(self, call_id: str, value: object) -> None:
        """Store a person's answer, add it to the journal, and apply it to the tool call that needs it."""
        request = self.state.requests[call_id]
        answer = to_json_data(value) if request.kind == "question" else decision_of(request, value)
        self.state.answers[call_id] = answer
        text = answer if isinstance(answer, str) else to_json_text(answer)
        self.transcript.add_entry(InputReceived, request.id, call_id, text)
        self._use_answer(call_id)

    def _request_input(self, ask: AskTool, now: float) -> AskTool | BranchTool | FinishedCall:
        """Create a request for human input if the tool call needs one and has none yet, and return the call.

        If the request comes from the saved run, the call receives the arguments that the request shows: a default of
        the tool may have changed since.
        """
        run, call = self.run, ask.call
        request = self.state.requests.get(call.id)
        asked = (self.started or run.started or _LONG_AGO) + timedelta(seconds=now)
        branch = None if self.plan.context is None else self.plan.context.path
        try:
            if request is not None:
                is_shown = request.kind == "question" or is_same(shown_arguments(ask), request.arguments)
                return ask if is_shown else self._approved_call(call, request.arguments)
            request = request_for(ask, run.id, run.steps, branch or None, asked)
        except ArgumentError as error:
            return _refused_call(call, str(error))
        if request is not None:
            self.state.requests[call.id] = request
            shown = to_compact_json(request.arguments)
            asked_for = (request.id, call.id, request.kind, request.question, call.name, shown)
            self.transcript.add_entry(InputRequested, *asked_for, request.choices)
        return ask

    def _use_answer(self, call_id: str) -> None:
        """Apply an answer: use it as the result of the call, or approve, change or reject the call."""
        state = self.state
        if call_id not in self.prepared or call_id in state.results:
            return
        request, answer = state.requests[call_id], state.answers[call_id]
        if request.kind == "question":
            self.add_result(finish_call(ToolResult(call_id, request.tool, answer)), None)
            return
        decision = decision_of(request, answer)
        if not decision["approved"]:
            error = rejection_error(decision.get("reason"))
            self.add_result(finish_call(ToolResult(call_id, request.tool, error=error)), None)
        elif (arguments := decision.get("arguments")) is not None:
            changed = self._approved_call(self.calls[call_id], arguments)
            if isinstance(changed, FinishedCall):  # The process that received the answer could not check the arguments.
                self.add_result(changed, None)
            else:
                self.prepared[call_id] = changed

    def _approved_call(self, call: ToolCall, arguments: JsonObject) -> AskTool | BranchTool | FinishedCall:
        """Prepare an approved call with the arguments that the request shows or that the person changed."""
        prepared = self._prepare_call(replace(call, arguments=arguments, raw_arguments=to_compact_json(arguments)))
        if isinstance(prepared, AskTool):
            missing = prepared.tool.named((prepared.args, prepared.kwargs)).keys() - arguments.keys()
            if missing:  # A default that the person did not see must not be used.
                return _refused_call(
                    call, f"argument `{min(missing)}` is missing. Pass every argument that the request shows."
                )
        return prepared


def _refused_call(call: ToolCall, error: str) -> FinishedCall:
    """Return the error result of a call whose function is not called."""
    return finish_call(ToolResult(call.id, call.name, error=error))
