"""What people are asked in a run, and what their answers mean.

Pure; `calls.py` keeps requests and answers and does what they say.

The calls of the step under way: what each means, which may be performed now, and the step that the hook sees.

Pure, and without a word on what comes next: `run.py` decides that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from acorn._declare.settings import merge_settings
from acorn._declare.tools.kinds import AgentTool, Tool, is_ask_human, needs_approval
from acorn._formats.json import describe_error, excerpt, to_compact_json, to_json_data, to_json_text
from acorn._history.request_messages import RequestMessages
from acorn._machine.asks import Ask, AskBranch, AskHook, AskTool
from acorn._machine.branches import Branches
from acorn._machine.inheritance import branch_input
from acorn._machine.plan import BranchTool, Plan
from acorn._machine.response import prepare
from acorn._machine.state import BranchContext, State
from acorn.errors import InputError, StoreError
from acorn.journal import InputReceived, InputRequested
from acorn.models.port import ModelResponse
from acorn.record import TOOL, Run, call_key
from acorn.step import Step
from acorn.types import Request, ToolCall, ToolResult, Usage

UNKNOWN = (
    "Unknown: the process stopped while this call was under way. It may or may not have taken effect and is not called "
    "again; find out before you repeat it."
)
_REFUSED = "Refused: a person did not approve this call, so it was not made."


@dataclass(frozen=True)
class Approved:
    """A yes, perhaps with other arguments."""

    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Refused:
    """A no, perhaps with a reason."""

    reason: str = ""

    def result(self, call_id: str, name: str) -> ToolResult:
        """What the model reads."""
        said = f"{_REFUSED} The reason: {self.reason}" if self.reason.strip() else _REFUSED
        return ToolResult(call_id, name, error=said)


def request_for(ask: AskTool, run_id: str, step: int, branch: str | None, asked: datetime) -> Request | None:
    """What a person is asked before this call can be made, or instead of it; None where nobody needs to be."""
    call, tool = ask.call, ask.tool
    name = hashlib.sha256(call_key(run_id, step, call.id).encode()).hexdigest()[:32]
    if is_ask_human(tool):
        question, choices = str(ask.kwargs["question"]), ask.kwargs.get("choices")
        listed = None if choices is None else tuple(choices)
        return Request(name, run_id, "question", question, call.name, call.arguments, branch, asked, listed)
    if not needs_approval(tool, (ask.args, ask.kwargs)):
        return None
    question = f"May `{call.name}` be called with {to_compact_json(call.arguments)}?"
    return Request(name, run_id, "approval", question, call.name, call.arguments, branch, asked)


def check_answer(request: Request, value: Any) -> None:
    """Refuse, in words, what is no answer to a request."""
    if value is None:
        raise InputError(f"The request `{request.id}` ({request.question}) cannot be answered by None.")
    if request.kind == "approval":
        decision_of(request, value)


def decision_of(request: Request, value: Any) -> Approved | Refused:
    """What a person has decided about a call."""
    if isinstance(value, str):
        return Refused(value)
    if isinstance(value, bool):
        return Approved() if value else Refused()
    plain = to_json_data(value)
    is_changed = isinstance(plain, dict) and plain.keys() == {"approved", "arguments"} and plain["approved"] is True
    if is_changed and isinstance(plain["arguments"], dict):
        return Approved(plain["arguments"])
    raise InputError(
        f"The request `{request.id}` is about a call of `{request.tool}`; answer it by True, by False, by a text that "
        f"says why not, or by {{'approved': True, 'arguments': {{...}}}} with all arguments; got {excerpt(value)}."
    )


_LONG_AGO = datetime.fromtimestamp(0, UTC)
"""Where nobody said what time it is."""


class ToolCalls(Branches):
    """A run with the calls of its step."""

    def __init__(self, plan: Plan, run: Run, state: State | None = None, wire: RequestMessages | None = None) -> None:
        super().__init__(plan, run, state, wire)
        self._prepared: dict[str, AskTool | BranchTool] = {}
        """The calls of this step that can be performed, by their ids."""
        self._open: dict[str, None] = {}
        """Those that come before the branches and have no result yet, in the order of the response."""
        self._calls: dict[str, ToolCall] = {}
        """All calls of this step, by their ids."""
        self._epoch: datetime | None = None
        """The moment from which the seconds of the run count in this process."""

    def _prepare(self, now: float) -> bool:
        """Find what each open call of the step means; one that cannot be performed has its result at once.

        Whether there are tools to call.
        """
        state, done = self.state, self.state.results
        was_cut = state.response is not None and state.response.stop_reason == "length"
        prepared: dict[str, AskTool | BranchTool] = {}
        self._prepared, self._open, self._calls = prepared, {}, {}
        has_tools, asking = False, self.toolset.asking
        for call in state.calls:
            self._calls[call.id] = call
            if call.id in done:
                continue
            if call.id in state.branches:
                self._check_declared(state.branches[call.id])
            found = prepare(call, self.toolset, self.run, was_cut and self._is_half(call), self.plan.start)
            if isinstance(found, AskTool):
                has_tools = True
                prepared[call.id], self._open[call.id] = found, None
                if asking and call.name in asking:
                    self._ask_people(found, now)
            elif isinstance(found, ToolResult):
                self._note_result(found, None)
            else:
                prepared[call.id] = found
                if not found.inherits:
                    self._open[call.id] = None
                    if call.id not in state.branches:
                        self._bear(found, call, {}, now)
        for call_id in state.answers:
            self._use_answer(call_id)
        return has_tools

    def _check_declared(self, context: BranchContext) -> None:
        """Of a loaded run: a branch that was under way must still be one."""
        found = self.toolset.named.get(context.name) or self.toolset.branches.get(context.name)
        if not isinstance(found, BranchTool | AgentTool):
            raise StoreError(
                f"The branch `{context.name}` of the saved run is not declared on `{self.spec.owner}` any more; "
                f"declare it to go on."
            )

    def _is_half(self, call: ToolCall) -> bool:
        """Whether the token limit fell into these arguments: half an object, or nothing yet."""
        return call is self.state.calls[-1] and not call.arguments

    def _list_tools(self, now: float) -> list[Ask]:
        """Those that may run at the same time, in the order of the response; `parallel=False` stands alone."""
        state = self.state
        if (
            len(self._prepared) == 1 and not self._is_timed and not state.requests
        ):  # had it returned, we would not be asked
            (only,) = self._prepared.values()
            if isinstance(only, AskTool):
                return [only]
        asks: list[Ask] = []
        for call_id in self._open:
            if call_id in state.requests and call_id not in state.answers:
                continue
            made = self._prepared[call_id]
            if state.phase == "branches" and isinstance(made, BranchTool):
                continue  # which is among the others
            called = made.tool if isinstance(made, AskTool) else self.toolset.named[made.name]
            is_alone = not called.options.parallel
            if is_alone and asks:
                break
            if isinstance(made, BranchTool):
                asks.append(self._branch_ask(call_id, state.branches[call_id], made))
            else:
                asks.append(replace(made, seconds=self._seconds_for(made.tool, now)) if self._is_timed else made)
            if is_alone:
                break
        return [*asks, *self._list_requests()] if state.requests else asks

    def _seconds_for(self, tool: Tool, now: float) -> float:
        """What is left for a call that begins now."""
        left = self.state.meter.seconds_for_tools(self.plan.limits, now)
        own = tool.options.timeout or inf
        return own if left is None else min(own, left)

    def _note_result(self, result: ToolResult, began: float | None) -> None:
        self._has_returned(result)
        self.transcript.returned(result, began)

    def _has_returned(self, result: ToolResult) -> None:
        self.state.results[result.id] = result
        self._open.pop(result.id, None)

    # People

    def requests(self) -> list[Request]:
        """What people are asked and have not answered yet."""
        state = self.state
        if state.phase not in ("tools", "branches"):
            return []
        return [
            request
            for call_id, request in state.requests.items()
            if call_id not in state.answers and call_id not in state.results
        ]

    def _ask_people(self, ask: AskTool, now: float) -> None:
        """Let a person have a say in this call, if it needs one."""
        run, call = self.run, ask.call
        if call.id in self.state.requests:  # of a run that was loaded
            return
        asked = (self._epoch or run.started or _LONG_AGO) + timedelta(seconds=now)
        request = request_for(ask, run.id, run.steps, self.path or None, asked)
        if request is None:
            return
        self.state.requests[call.id] = request
        told = (request.id, call.id, request.kind, request.question, call.name, call.raw_arguments, request.choices)
        self.journal.entries.append(InputRequested(run.id, self.journal.step, now, *told))

    def _list_requests(self) -> Iterator[Ask]:
        """Whoever is here may know; where nobody does, the request stays open."""
        state, on_human = self.state, self.plan.on_human
        if on_human is None:
            return
        for call_id, request in state.requests.items():
            if call_id not in state.answers and call_id not in state.passed:
                yield AskHook(f"on_human {self.run.steps} {call_id}", on_human, (request,))

    def check_answer(self, request_id: str, value: Any) -> str:
        """Judge what somebody answers, before anything is done with it; the call that waits for it."""
        state = self.state
        call_id = self._waiting_for(request_id)
        if call_id is None:
            raise StoreError(f"The run {self.run.id} has no request `{request_id}`.")
        request = state.requests[call_id]
        if call_id in state.answers or call_id in state.results:
            raise StoreError(f"The request `{request_id}` ({request.question}) was answered already.")
        check_answer(request, value)
        if request.kind == "approval" and request.tool in self.toolset.named:
            changed = self._approved(call_id, decision_of(request, value))
            if isinstance(changed, ToolResult):
                raise InputError(f"The arguments for `{request.tool}` that you approve do not fit: {changed.error}")
        return call_id

    def _waiting_for(self, request_id: str) -> str | None:
        """The call that a request was made for."""
        return next((call_id for call_id, each in self.state.requests.items() if each.id == request_id), None)

    def _approved(self, call_id: str, decision: Approved | Refused) -> AskTool | BranchTool | ToolResult | None:
        """The call with the arguments that a person gave instead, if they gave some."""
        if isinstance(decision, Refused) or decision.arguments is None:
            return None
        arguments = dict(decision.arguments)
        call = next(call for call in self.state.calls if call.id == call_id)
        changed = replace(call, arguments=arguments, raw_arguments=to_compact_json(arguments))
        return prepare(changed, self.toolset, self.run, False, self.plan.start)

    def _note_answer(self, call_id: str, value: Any) -> None:
        state, journal = self.state, self.journal
        plain = state.answers[call_id] = to_json_data(value)
        text = plain if isinstance(plain, str) else to_json_text(plain)
        request_id = state.requests[call_id].id
        journal.entries.append(InputReceived(self.run.id, journal.step, journal.now, request_id, call_id, text))
        self._use_answer(call_id)

    def _use_answer(self, call_id: str) -> None:
        """Do as a person has said: it is the result, or the call is made, as it was or otherwise, or it is not."""
        state, made = self.state, self._prepared.get(call_id)
        if made is None or call_id in state.results:
            return
        request, value = state.requests[call_id], state.answers[call_id]
        if request.kind == "question":
            self._note_result(ToolResult(call_id, request.tool, value), None)
            return
        decision = decision_of(request, value)
        if isinstance(decision, Refused):
            self._note_result(decision.result(call_id, request.tool), None)
            return
        changed = self._approved(call_id, decision)
        if isinstance(changed, ToolResult):  # answered where the function was not known
            self._note_result(changed, None)
        elif changed is not None:
            self._prepared[call_id] = changed

    def _give_up_once(self) -> None:
        """Of a loaded run: nobody knows what came of a call that was under way and must not be made twice."""
        state = self.state
        for call in state.calls:
            ask_id, tool = f"{TOOL}{self.run.steps} {call.id}", self.toolset.named.get(call.name)
            if ask_id in state.under_way and tool is not None and tool.options.once and call.id not in state.results:
                self._note_result(ToolResult(call.id, call.name, error=UNKNOWN), state.under_way.pop(ask_id))

    # Branches that the model called

    def _bear(self, branch: BranchTool, call: ToolCall, begun: Mapping[str, str], now: float) -> None:
        """Give birth to a branch that the model called, or give the model the error to read."""
        try:
            given = branch_input(branch.spec.input, branch.name, call)
            place = f"{self.run.steps}/{call.id}"
            context = self.birth(
                branch.name, branch.spec.input.is_empty, given, place, now, begun, call.id, inherits=branch.inherits
            )
        except Exception as error:  # an input's validators are the user's
            self._note_result(ToolResult(call.id, call.name, error=describe_error(error)), None)
        else:
            self.state.branches[call.id] = context

    def _list_branches(self) -> Iterator[Ask]:
        for call_id, context in self.state.branches.items():
            branch = self._prepared[call_id]
            assert isinstance(branch, BranchTool)
            yield self._branch_ask(call_id, context, branch)

    def _branch_ask(self, call_id: str, context: BranchContext, branch: BranchTool) -> AskBranch:
        return AskBranch(f"branch {self.run.steps} {call_id}", self._calls[call_id], context, branch.make)

    # The step

    def _the_step(self) -> Step:
        state = self.state
        if self._step is None:
            self._step = Step(
                self.spec,
                self.run,
                state.response or ModelResponse(usage=Usage()),  # before the first there is nothing to see
                list(state.calls),  # whatever a hook makes of them, ours are needed until it has returned
                self._ordered(),
                self.toolset.tools,
                self.toolset.branches,
                state.settings,
            )
        return self._step

    def _ordered(self) -> list[ToolResult]:
        """All results in the order of the calls."""
        found = self.state.results
        return [found[call.id] for call in self.state.calls]

    def _adopt(self, step: Step) -> None:
        """Take over the settings and tools that the hook changed."""
        state, is_other = self.state, False
        if changes := step.changes():
            state.settings = merge_settings(state.settings, changes)
            if "model" in changes or isinstance(self.setting("model"), list | tuple):  # which may say each its own
                self._use_model()
                is_other = True
            self._note_settings()
        chosen = step.chosen_tools()
        if chosen != self.toolset.tools:
            state.tools = [tool.name for tool in chosen]
        elif not step._removed and not is_other:  # another model may be told of the tools in another way
            return
        state.removed += step._removed
        self._use_tools(chosen)
