"""The machine: the agent loop as a state machine without I/O.

    new → prompt → start → (compact →) model → (tools → branches → step → model)* → judge → done

The method `listed` returns the operations (asks) that the machine needs next. The driver reports the start of an
operation with `begin` and its result with `tell`, one operation at a time. A run with a single turn, a corrected answer
and a forced answer use the same phases. The state contains a result as soon as `tell` returns, so a run can be saved
between any two calls. The machine reads no clock: drivers pass the time to it.

The methods are in the order in which a run uses them. Other classes, such as `RequestBuilder` and `PendingCalls`,
contain the rest of the code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, assert_never

from pydantic import BaseModel

from acorn._declare.spec import read_prompt_file
from acorn._declare.tools.collect import FINISH
from acorn._formats.json import safe_repr, shorten, to_json_text
from acorn._history.history import current_openings, history_of
from acorn._history.request_messages import REMINDER, RequestMessages, check_messages
from acorn._history.saved_form import decode_instance
from acorn._history.transcript import FinishedCall, Transcript, finish_call, first_messages
from acorn._machine.asks import Ask, AskBranch, AskHook, AskModel, AskSource, AskTool, BranchEnd
from acorn._machine.branches import Branches, branch_result, first_branch_messages
from acorn._machine.budgets import REPEATED, Budgets, Limits, digest_step, is_repeating
from acorn._machine.finish import Answers, FinishResult, judge_xml, no_answer, refusal_error, xml_request
from acorn._machine.plan import Plan
from acorn._machine.requests import RequestBuilder, StepHook
from acorn._machine.state import BranchContext, State, StopReason
from acorn._machine.tool_calls import PendingCalls
from acorn.errors import AcornError, DeclarationError, LimitError, ModelError, ParseError, StoreError
from acorn.journal import ModelRequested, ModelResponded, RunStarted, ToolStarted
from acorn.models.port import ModelResponse, RawCall, check_response, thinks
from acorn.record import Run
from acorn.step import changes_of
from acorn.stores.port import RunCancelledError
from acorn.types import Content, Message, Paused, Request, ToolCall, Unfinished, Usage

REMINDER_CUT_OFF = f"Your reply was cut off at the token limit. {REMINDER} A shorter reply fits."
FORCED_REMINDER = f"Call `{FINISH}` with your final answer now."
FINISHED = "Finished."
SKIPPED = f"Skipped: `{FINISH}` was called in the same response, so this call was not executed."
_CALL = frozenset((RawCall,))
TOO_LATE = "Skipped: the final answer is due now, so this call was not executed."


class Machine:
    """The state machine of one run."""

    def __init__(
        self, plan: Plan, run: Run, state: State | None = None, messages: RequestMessages | None = None
    ) -> None:
        self.plan = plan
        self.spec = spec = plan.spec
        self.run = run
        self.journal = run.journal
        self.context = plan.context
        """The context that a branch started with, or None if the run is not a branch."""
        self.state = state = state or State()
        self.transcript = transcript = Transcript(run)
        own_limits = Limits(spec.max_total_tokens, spec.max_cost, spec.max_seconds)
        self.budgets = budgets = Budgets(spec.owner, own_limits, state.meter, plan.above)
        self.builder = builder = RequestBuilder(plan, run, state, transcript, budgets, messages)
        self.hook = StepHook(spec, run, state, builder)
        self.branches = branches = Branches(plan, run, state, transcript, builder, budgets, self.hook)
        self.calls = PendingCalls(plan, run, state, transcript, builder, branches, budgets)
        self.answers = Answers(spec, run, state)
        self._asks: dict[str, Ask] | None = None
        """A dict that maps ids to the current asks, or None if the asks must be computed again."""
        self._is_single_turn = spec.max_steps is None
        self._is_mid_update = False
        """Whether a call of `start` or `tell` is in progress, or was interrupted by Ctrl-C."""

    @property
    def path(self) -> str:
        """The branch path, such as `outer/inner`, or an empty string if the run is not a branch."""
        return "" if self.context is None else self.context.path

    @property
    def is_over(self) -> bool:
        return self.run.stop_reason is not None

    # The interface for drivers

    def start(self, now: float, moment: datetime | None = None) -> None:
        """Start a new run, or resume a loaded run.

        `now` is the number of seconds since the run started. `moment` is the current date and time.
        """
        self.calls.started = None if moment is None else moment - timedelta(seconds=now)
        self._is_mid_update = True
        self.journal.now = now
        self._asks = None
        state, run, context = self.state, self.run, self.context
        if state.phase == "new":
            started = RunStarted(run.id, 0, now, self.plan.module, run.input, forked_from=run.forked_from)
            if context is not None:
                started = started._replace(parent_id=context.parent_id, branch=context.path, call_id=context.call_id)
            self.journal.entries.append(started)
            state.phase = "prompt"
        elif state.phase == "model" and state.reason == "limit" and not state.open_asks:
            # The limits of a loaded run may have changed.
            state.forced, state.fallback, state.reason = False, False, "finish"
        if not self.spec.sources:
            self._continue_with_tools(now)
        self._is_mid_update = False

    def asks(self, now: float) -> tuple[Ask, ...]:
        """Return the asks (operations) that the driver should perform now."""
        return tuple(self.listed(now).values())

    def listed(self, now: float) -> Mapping[str, Ask]:
        """Return a dict that maps ids to the asks (operations) that the driver should perform now.

        If two calls return the same dict object, no ask was added between the calls.
        """
        # The time limit of a request depends on its start time. `begin` sets the time limit of a tool call.
        if self._asks is None or (self.builder.is_timed and self.state.phase not in ("tools", "branches")):
            self._asks = self._list(now)
        return self._asks

    def begin(self, id: str, now: float) -> None:
        """Record that the driver starts to perform an ask now."""
        ask = self._ask(id)
        journal, is_resumed = self.journal, id in self.state.open_asks
        journal.now = self.state.open_asks[id] = now
        # `match` would take twice as long as `isinstance`, and every ask passes through here.
        if isinstance(ask, AskModel):
            if not ask.is_summary:
                forced = self.state.reason if self.state.forced else None
                request = (id, ask.model.name, ask.request.message_count, forced)
                journal.entries.append(ModelRequested(self.run.id, self.run.steps + 1, now, *request))
        elif isinstance(ask, AskTool):
            if self.builder.is_timed:  # The ask may have waited in the list since it was created.
                ask.seconds = self.calls.seconds_for(ask.tool, now)
            call = ask.call
            journal.entries.append(ToolStarted(self.run.id, journal.step, now, call.id, call.name, call.raw_arguments))
        elif isinstance(ask, AskBranch):
            if not is_resumed:
                self.branches.start(ask.context, now)
        elif not isinstance(ask, AskHook | AskSource):
            assert_never(ask)

    def tell(self, id: str, outcome: object, now: float) -> None:
        """Apply the result of an ask to the run. Raise an error if the result makes the run fail."""
        ask = self._ask(id)
        self._is_mid_update = True
        self.journal.now = now
        began = self.state.open_asks.pop(id, None)
        asks, self._asks, phase = self._asks, None, self.state.phase
        if isinstance(ask, AskModel):
            if not (  # This is faster than a call of `check_response`.
                isinstance(outcome, ModelResponse)
                and type(outcome.content) is str
                and type(outcome.usage) is Usage
                and type(outcome.tool_calls) is list
                and _CALL.issuperset(map(type, outcome.tool_calls))
            ):
                outcome = check_response(outcome, ask.model)
            self._take_response(ask, outcome, now if began is None else began, now)
        elif isinstance(ask, AskTool):
            assert isinstance(outcome, FinishedCall)
            self.calls.add_result(outcome, began)
            self._end_tools_if_done(now)
        elif isinstance(ask, AskHook):
            self._take_hook(ask, outcome, now)
        elif isinstance(ask, AskBranch):
            assert isinstance(outcome, BranchEnd)
            self._take_branch(ask, outcome, now)
        elif isinstance(ask, AskSource):
            self._take_source(ask, outcome, now)
        else:
            assert_never(ask)
        if asks is not None and self.state.phase == phase and isinstance(ask, AskTool | AskBranch):
            # While other calls of the step are in progress, no new ask appears. Computing the asks again after each
            # result would take quadratic time.
            asks.pop(id, None)
            self._asks = asks or None
        self._is_mid_update = False

    def _ask(self, id: str) -> Ask:
        ask = (self._asks or self.listed(self.journal.now)).get(id)
        if ask is None:
            raise AcornError(f"Run {self.run.id} has no ask `{id}`. Pass the id of a current ask.")
        return ask

    def _list(self, now: float) -> dict[str, Ask]:
        state, run, plan, builder = self.state, self.run, self.plan, self.builder
        if run.stop_reason is not None:
            return {}
        sources = self.spec.sources
        ask: Ask
        if sources and (opened := len(builder.source_tools)) < len(sources):
            ask = AskSource(f"source {opened}", sources[opened])
            return {ask.id: ask}
        match state.phase:
            case "model" | "compact":
                request = builder.request
                if request is None or builder.is_timed:
                    request = builder.build(now)
                id = f"{state.phase} {state.turns + 1}"
                ask = AskModel(id, builder.model, request, is_summary=state.phase == "compact")
            case "tools" | "branches":
                return self.calls.list_asks(now)
            case "step":
                assert plan.on_step is not None
                ask = AskHook(f"on_step {run.steps}", plan.on_step, (self.hook.open(),))
            case "judge":
                assert plan.on_finish is not None
                assert self.answers.candidate is not None
                output = self.spec.output.unwrap(self.answers.candidate)
                ask = AskHook(f"on_finish {state.turns}", plan.on_finish, (output,), forgives=(ValueError,))
            case "prompt":
                ask = AskHook("prompt", self._prompt_reader())
            case "start":
                assert plan.on_start is not None
                ask = AskHook("on_start", plan.on_start, (self.hook.open(),))
            case "new" | "done":
                return {}
            case _:
                assert_never(state.phase)
        return {ask.id: ask}

    def _take_hook(self, ask: AskHook, outcome: object, now: float) -> None:
        phase = self.state.phase
        if phase == "step":
            self._take_step(outcome, now)
        elif phase in ("tools", "branches"):
            self._take_human_input(ask, outcome, now)
        elif phase == "prompt":
            if self.spec.prompt.file is None or not isinstance(outcome, str):
                outcome = _prompt_text(self.spec.owner, outcome)
            self._add_first_messages(outcome, now)
        elif phase == "start":
            self._take_start(outcome, now)
        else:
            self._take_judgement(outcome, now)

    # Tool sources, the prompt, and `on_start`

    def _take_source(self, ask: AskSource, tools: object, now: float) -> None:
        self.builder.add_source(ask.source, tools)
        if len(self.builder.source_tools) == len(self.spec.sources):
            self.builder.restore_tools()
            self._continue_with_tools(now)

    def _continue_with_tools(self, now: float) -> None:
        """Continue in the current phase after all tool sources are open."""
        state, plan, prompt = self.state, self.plan, self.spec.prompt
        if state.phase == "prompt":
            if not prompt.file and plan.prompt is None:
                self._add_first_messages(prompt.text, now)
        elif state.phase == "model":  # The limits of a loaded run may have changed, or may be used up.
            self._prepare_request(now)
        elif state.phase == "compact":
            self._prepare_request(now)
            if state.phase != "compact":
                state.open_asks.clear()
        elif state.phase in ("tools", "branches"):
            self.calls.give_up_calls_made_once()
            self.calls.prepare(now)
            self._end_tools_if_done(now)
        # The class of a loaded run may have lost the hook that the run waited for.
        elif state.phase == "start" and plan.on_start is None:
            self._prepare_request(now)
        elif state.phase == "step" and plan.on_step is None:
            self._take_step(None, now)
        elif state.phase == "judge" and plan.on_finish is None and self.answers.candidate is not None:
            self._accept(self.answers.candidate)

    def _prompt_reader(self) -> Callable[[], object]:
        if self.plan.prompt is not None:
            return self.plan.prompt
        assert self.spec.prompt.file is not None
        return partial(read_prompt_file, self.spec.prompt.file, self.spec.owner)

    def _add_first_messages(self, prompt: str, now: float) -> None:
        context, opening = self.context, self.transcript.history.openings[0]
        if self.run.forked_from is not None:
            self._start_fork(prompt, now)
            return
        if context is None or not context.inherits:
            self.transcript.start(first_messages(prompt, self.plan.prior, opening))
        else:
            messages, inherited = first_branch_messages(context.history, prompt, opening if context.has_input else None)
            if prompt.strip():
                before = context.history[0] if inherited == len(context.history) else None
                self.builder.messages.change_first(messages[0], before)
            self.transcript.start(messages, inherited)
        if self.plan.on_start is None:
            self._prepare_request(now)
        else:
            self.state.phase = "start"

    def _start_fork(self, prompt: str, now: float) -> None:
        """Start a forked run with the journal entries of the original run.

        `on_start` is not called, because the entries already contain the changes that it made in the original run.
        """
        fork, run = self.plan.fork, self.run
        if fork is None:
            raise StoreError(
                f"Cannot resume run {run.id}: it is a fork that was stopped before it started, and its store does not "
                f"contain the events of the original run. Fork that run again."
            )
        entries = fork.entries(run.id, now, prompt)
        self.journal.entries += entries
        history = self.transcript.history
        history.start(history_of(entries))
        history.openings = current_openings(history.openings, entries)
        run.steps = self.journal.step = fork.origin.before - 1
        self.state.turns = sum(isinstance(entry, ModelResponded) for entry in entries)
        self.state.meter.step_began = now
        self._prepare_request(now)

    def _take_start(self, returned: object, now: float) -> None:
        """Apply the changes that the hook `on_start` made to its `Step`."""
        step = self.hook.close("on_start", returned)
        assert step is not None
        if step.tool_results or step.tool_calls:
            raise AcornError(
                f"`{self.spec.owner}.on_start` has changed `step.tool_results` or `step.tool_calls`, but no tool was "
                f"called yet. Use `step.add_to_context` or `self.history`."
            )
        changes = changes_of(step)
        self.builder.apply(changes)
        self.transcript.record_edits()
        if changes.context is not None:
            self.transcript.add_user_message(changes.context)
        self.state.meter.step_began = now
        if changes.output is None:
            self._prepare_request(now)
        else:
            self._propose(changes.output, None)

    # The request: limits, compaction, and the forced finish

    def _prepare_request(self, now: float, reminder: str = "") -> None:
        """Choose the next request: a summary, a normal request, or a request that must end in an answer.

        `reminder` is the user message after a response without tool calls. A forced answer has its own message.
        """
        state, builder, max_steps = self.state, self.builder, self.spec.max_steps
        state.phase = "model"
        if self.transcript.history.shown is not None:
            self.transcript.record_edits()
        if max_steps is not None and self.run.steps >= max_steps and not state.forced:
            state.forced, state.reason = True, "forced"
        if self.budgets.limited and not self._has_room(now) and not state.forced:
            state.forced, state.reason = True, "limit"
        builder.request, state.was_forced = None, False
        if reminder and state.forced:
            reminder = FORCED_REMINDER if builder.model.can_force_tool(builder.build(now)) else ""
            builder.request = None
        if reminder:
            self.transcript.add_user_message(reminder)
        if self.spec.compact_at is not None and builder.needs_summary():
            state.phase = "compact"
            return
        request = builder.build(now)
        has_tools = builder.toolset.tools or builder.toolset.branches
        is_due = state.forced or (self._is_single_turn and not has_tools and not thinks(builder.model))
        if is_due and not state.fallback:
            if builder.model.can_force_tool(request):
                state.was_forced, request.forced_tool = True, FINISH
            elif state.forced:
                self._fall_back_to_xml()

    def _has_room(self, now: float) -> bool:
        """Return whether the limits allow one more step and the final answer after that step."""
        history, turn_index = self.transcript.history, self.transcript.turn_index
        if history.turn is None:
            new: Sequence[Message] = history.messages
        else:
            new = [] if turn_index is None else history.messages[turn_index + 1 :]
        return not self.budgets.must_answer(new, self.builder.model, self.run.steps, now)

    def _fall_back_to_xml(self) -> None:
        """Ask the model to write its answer as XML, in this request and in all later requests."""
        self.state.fallback = True
        self.builder.request = None
        self.transcript.add_user_message(xml_request(self.spec.output, self.spec.xml_output_root))

    # The response

    def _take_response(self, ask: AskModel, response: ModelResponse, asked: float, now: float) -> None:
        if ask.is_summary:
            self.builder.take_summary(ask.request, response, asked)
            self._prepare_request(now)
            return
        state, model = self.state, self.builder.model
        self.builder.request = None
        state.turns += 1
        self.budgets.pay(ask.request, response, model, self.run, now - asked)
        is_refusal = response.refusal is not None or response.stop_reason == "content_filter"
        error = refusal_error(response, model) if is_refusal else None
        calls = self.transcript.add_response(response, asked, None if error is None else response.refusal or "")
        if error is not None:
            raise error
        state.response, state.calls, state.results = response, calls, {}
        if state.requests:
            state.requests, state.answers, state.passed = {}, {}, []
        cut_at = self.builder.max_tokens if response.stop_reason == "length" else None
        for call in calls:
            if call.name == FINISH:
                self._take_finish(calls, cut_at, now)
                return
        if state.fallback:
            self.transcript.answer_calls({}, TOO_LATE)
            result = judge_xml(self.spec.output, response.content, self.spec.xml_output_root, cut_at)
            if result.instance is None:
                self._correct(result, now, is_user_message=True)
            else:
                self._propose(result.instance, None)
        elif state.was_forced or (self._is_single_turn and not calls):
            self.transcript.answer_calls({}, TOO_LATE)
            self._take_no_answer(no_answer(response.content, cut_at), now)
        else:
            self.run.steps += 1
            state.phase = "tools"
            if not self.calls.prepare(now):
                self._end_tools_if_done(now)

    def _take_finish(self, calls: Sequence[ToolCall], cut_at: int | None, now: float) -> None:
        """Use the first valid `__finish__` call of a response as the answer. Do not execute the other calls."""
        result, call_id = self.answers.judge_calls(calls, cut_at)
        if result.instance is not None:
            self._propose(result.instance, call_id)
            return
        self.transcript.answer_calls(self.state.faults, SKIPPED)
        self._correct(result, now, is_user_message=False)

    def _take_no_answer(self, result: FinishResult, now: float) -> None:
        """Handle a response that should contain an answer but does not: request XML, or send a correction."""
        if self._is_single_turn and self.builder.can_force_finish():
            self._correct(result, now, is_user_message=True)
            return
        if self._is_single_turn:
            self.answers.spend_retry(result)
        self._fall_back_to_xml()
        self._prepare_request(now)

    def _correct(self, result: FinishResult, now: float, *, is_user_message: bool) -> None:
        """Count a retry and request a new answer. Send the problems as a user message if `is_user_message` is True."""
        self.answers.spend_retry(result)
        if is_user_message:
            self.transcript.add_user_message(result.document)
        self._prepare_request(now)

    # The step: tool calls, human input, and branches

    def _take_branch(self, ask: AskBranch, end: BranchEnd, now: float) -> None:
        call = finish_call(branch_result(ask.call, end))
        if isinstance(end.error, Exception) and not isinstance(end.error, ParseError | ModelError | LimitError):
            call = call._replace(error=end.error)  # User code raised the exception, as in a tool that fails.
        self.state.branches.pop(ask.call.id, None)
        self.calls.store_result(call.result)
        if end.run is None:
            self.transcript.add_result(call, None)
        else:
            self.branches.finish(ask.context, end.run, call, now, end.model)
        self._end_tools_if_done(now)

    def _take_human_input(self, ask: AskHook, answer: object, now: float) -> None:
        """Apply the answer that `on_human` returned. None means that the hook does not answer the request."""
        (request,) = ask.arguments
        if answer is not None:
            self._take_answer(self.calls.check_answer(request.id, answer), answer, now)
        elif (call_id := self.calls.call_waiting_for(request.id)) is not None:
            self.state.passed.append(call_id)

    def _take_answer(self, call_id: str, value: object, now: float) -> None:
        self._asks, self.journal.now = None, now
        self.calls.add_answer(call_id, value)
        if self.calls.prepared:  # Otherwise the tool sources are not open yet.
            self._end_tools_if_done(now)

    def _end_tools_if_done(self, now: float) -> None:
        state, calls = self.state, self.calls
        if len(state.results) < len(state.calls):
            if state.phase == "tools" and not calls.open:
                state.phase = "branches"
                calls.start_branches(now)
            if len(state.results) < len(state.calls):
                return
        state.phase = "step"
        calls.prepared = {}
        if self.plan.on_step is None:
            self._take_step(None, now)

    def _take_step(self, returned: object, now: float) -> None:
        """Add the tool results to the history, with the changes that `on_step` made, and choose the next phase."""
        state = self.state
        step = None if self.hook.step is returned is None else self.hook.close("on_step", returned)
        context: Content | None = None
        output: BaseModel | None = None
        if step is None:
            results = [state.results[call.id] for call in state.calls]
        else:
            results = self.hook.take_results(step)
            changes = changes_of(step)
            context, output = changes.context, changes.output
            self.builder.apply(changes)
        if (shown := self.transcript.history.shown) is not None:
            check_messages(shown)  # The results move the messages, and an error has the index that the hook used.
        messages = self.transcript.add_results(results, context, is_unchanged=step is None)
        meter = state.meter
        meter.longest_step, meter.step_began = max(meter.longest_step, now - meter.step_began), now
        if output is not None:
            self._propose(output, None)
        elif self._is_single_turn:
            assert state.response is not None
            self._finish(Unfinished(self.spec.owner, state.response.content, state.calls, results), "unfinished")
        else:
            repeatable = self.builder.toolset.repeatable
            if self.spec.loop_guard is not None:
                digest = digest_step(state.calls, results, messages, repeatable)
                state.digests = [*state.digests[-5:], digest]
                if is_repeating(state.digests):
                    self._stop_repetition()
            was_cut = state.response is not None and state.response.stop_reason == "length"
            self._prepare_request(now, "" if state.calls else REMINDER_CUT_OFF if was_cut else REMINDER)

    def _stop_repetition(self) -> None:
        """Warn the model that it repeats its steps.

        If the model was already warned and `loop_guard` is "force", force an answer instead.
        """
        state = self.state
        if not state.was_warned:
            state.was_warned = True
            self.transcript.add_user_message(REPEATED)
        elif self.spec.loop_guard == "force":
            state.forced, state.reason = True, "loop"

    # The answer

    def _propose(self, instance: BaseModel, call_id: str | None) -> None:
        """Let `on_finish` check a valid answer. Accept the answer if the agent has no such hook."""
        state = self.state
        self.answers.candidate, state.answered_by = instance, call_id
        state.phase = "judge"
        if self.plan.on_finish is None:
            self._accept(instance)
        else:
            state.answer = to_json_text(instance)

    def _take_judgement(self, outcome: object, now: float) -> None:
        candidate, state = self.answers.candidate, self.state
        assert candidate is not None
        if not isinstance(outcome, ValueError):
            self._accept(candidate, outcome)
            return
        result = self.answers.reject(outcome)
        if state.answered_by is not None:
            self.transcript.answer_calls({**state.faults, state.answered_by: result.document}, SKIPPED)
        self._correct(result, now, is_user_message=state.answered_by is None)

    def _accept(self, candidate: BaseModel, replacement: object = None) -> None:
        """End the run with a valid answer, or with the value that `on_finish` returned instead."""
        state = self.state
        reason: StopReason = state.reason
        output = self.spec.output.unwrap(candidate) if replacement is None else replacement
        if state.answered_by is not None:
            self.transcript.answer_calls({**state.faults, state.answered_by: FINISHED}, SKIPPED)
        elif not state.fallback:
            reason = "step"  # The output comes from `step.finish`.
        self._finish(output, reason)

    def _finish(self, output: object, reason: StopReason) -> None:
        self.run.output, self.run.stop_reason = output, reason
        self.transcript.finish(output, reason)
        self.state.phase = "done"

    # Stop and pause

    def stop(self, error: BaseException, now: float) -> None:
        """End the run with an error, and add a result to each unanswered tool call in its history.

        After some errors, such as Ctrl-C, the run can be resumed later.
        """
        if self.is_over:
            return
        # An exception of acorn is raised after the update is complete. Ctrl-C may come in the middle.
        is_incomplete = self._is_mid_update and not isinstance(error, Exception)
        if is_incomplete:
            self.transcript.rebuild()
        self._stop(error, now, is_final=is_incomplete or not can_resume_after(error))

    def fail_after_end(self, error: BaseException, now: float) -> None:
        """Add an error to a run that has ended, because its tool sources could not be closed. Its output stays."""
        if self.run.error is None:
            self._stop(error, now, is_final=self.run.stop_reason != "paused")

    def _stop(self, error: BaseException, now: float, *, is_final: bool) -> None:
        self.journal.now = now
        self._asks = None
        self.transcript.stop(error, self.hook.valid_results(), self.builder.model_setting, is_final=is_final)
        self.run.error = error
        is_failure = isinstance(error, Exception) and not isinstance(error, RunCancelledError)
        self.run.stop_reason = "error" if is_failure else "cancelled"
        if is_final:
            self.state.phase = "done"

    def start_waiting_branches(self, now: float) -> bool:
        """Start the branches that wait until the other calls of the step have results.

        The other calls wait for human input, so the branches must not wait longer. Return whether a branch was started.
        """
        if self.is_over or self.state.phase != "tools" or not self.calls.waiting_branches():
            return False
        self._asks, self.journal.now = None, now
        self.state.phase = "branches"
        self.calls.start_branches(now)
        return True

    def pause(self, requests: Sequence[Request], now: float) -> None:
        """Pause the run until it receives human input, and add a result to each unanswered call in its history."""
        self._asks, self.journal.now = None, now
        self.transcript.pause(self.hook.valid_results())
        self.run.output, self.run.stop_reason = Paused(self.run.id, requests), "paused"

    def take_answers(self, answers: Mapping[str, Any], now: float) -> None:
        """Apply answers to the requests for human input of this run. `answers` maps request ids to answers."""
        for request in self.calls.open_requests():
            call_id = self.calls.call_waiting_for(request.id)
            if call_id is not None and request.id in answers:
                self._take_answer(call_id, answers[request.id], now)

    # Branches and saved runs

    def branch(self, context: BranchContext, plan: Plan) -> Machine:
        """Return the machine that runs a branch of this run."""
        branch_plan, branch_input = self.branches.plan_for(context, plan), context.input
        if not isinstance(branch_input, BaseModel):  # The context was saved.
            branch_input = decode_instance(plan.spec.input.schema, branch_input, "input of a branch")
        run: Run = Run(context.run_id, branch_input, deps=branch_plan.deps, branch=context.path)
        messages = self.builder.messages.fork(self.transcript.history, context.history) if context.inherits else None
        return Machine(branch_plan, run, messages=messages)

    def restore(self) -> None:
        """Rebuild the objects of a loaded run that are not saved: output instances and selected tools."""
        self.answers.restore()
        self.calls.restore_outputs()
        if not self.spec.sources:
            self.builder.restore_tools()


def _prompt_text(owner: str, returned: object) -> str:
    """Return the text that the method `system_prompt` returned, without its common indentation.

    Raise `DeclarationError` if the method did not return a string.
    """
    if not isinstance(returned, str):
        raise DeclarationError(
            f"`{owner}.system_prompt` must return a string, got {shorten(safe_repr(returned), 120)}."
        )
    return inspect.cleandoc(returned)


def can_resume_after(error: BaseException) -> bool:
    """Return True if the error is Ctrl-C, a limit or a temporary provider failure, so the run can be resumed."""
    if isinstance(error, ModelError):
        return error.retryable
    return isinstance(error, LimitError) or not isinstance(error, Exception)
