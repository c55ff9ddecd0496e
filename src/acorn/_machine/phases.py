"""The phases of a run, in the order of the walk: what an answer means, and what comes next.

Only here, and where a run begins and ends (`run.py`), its phase is changed. What is told to the machine arrives in the
methods that take something; each leaves the run in the phase whose asks are listed next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel

from acorn._declare.spec import read_prompt_file
from acorn._declare.tools.collect import FINISH, collect_tools, merge_tools
from acorn._declare.tools.kinds import Tool
from acorn._formats.json import copy_json, safe_repr, to_json_text
from acorn._history import messages
from acorn._history.compaction import CompactedRange, estimate, range_to_compact, summary_text
from acorn._history.first_messages import first_messages
from acorn._history.history import history_of
from acorn._history.request_messages import RequestMessages
from acorn._machine import finish, limits
from acorn._machine.asks import Ask, AskBranch, AskHook, BranchEnd
from acorn._machine.branches import checked_calls, checked_results
from acorn._machine.inheritance import (
    branch_result,
    first_branch_messages,
)
from acorn._machine.plan import BranchTool, Plan, listed_tools
from acorn._machine.response import read_calls, refusal
from acorn._machine.state import State
from acorn._machine.tool_calls import ToolCalls
from acorn.errors import AcornError, DeclarationError, StoreError
from acorn.journal import ModelResponded
from acorn.models.port import ModelResponse
from acorn.record import Run
from acorn.step import Step
from acorn.types import Content, ToolCall, ToolResult, Unfinished, Usage


class Phases(ToolCalls):
    """A run on its way through its phases."""

    def __init__(self, plan: Plan, run: Run, state: State | None = None, wire: RequestMessages | None = None) -> None:
        super().__init__(plan, run, state, wire)
        self._asks: dict[str, Ask] | None = None
        """What is listed now, by the ids; None where it has to be listed anew."""
        self._candidate: BaseModel | None = None
        self._source_tools: list[tuple[Tool, ...]] = []

    # Opening

    def _take_source(self, source: object, outcome: Any, now: float) -> None:
        where = f"tools of {type(source).__name__}"
        found, _ = collect_tools(listed_tools(outcome, where), where, {})
        self._source_tools.append(tuple(found))
        listed = [tool for tools in self._source_tools for tool in tools]
        own = merge_tools((*self.plan.tools, *listed), (), self.spec.owner)
        self._use_tools(self._and_inherited(own))
        if len(self._source_tools) == len(self.spec.sources):
            self._use_saved_tools()
            self._sources_are_open(now)

    def _sources_are_open(self, now: float) -> None:
        prompt = self.spec.prompt
        if self.state.phase == "prompt" and not prompt.file and self.plan.prompt is None:
            self._begin(prompt.text, now)
        elif self.state.phase == "model":  # in a loaded run; its limits may be others now, or used up
            self._force_at_last_step()
            self._ask_model(now)
        elif self.state.phase == "compact":
            under_way = self.state.under_way
            self._ask_model(now)
            if self.state.phase != "compact":
                under_way.clear()
        elif self.state.phase in ("tools", "branches"):
            self._give_up_once()
            self._prepare(now)
            self._end_tools_if_done(now)
        else:
            self._pass_over_lost_hook(now)

    def _pass_over_lost_hook(self, now: float) -> None:
        """Of a loaded run: its class has no such hook any more."""
        phase, plan = self.state.phase, self.plan
        if phase == "start" and plan.on_start is None:
            self._ask_model(now)
        elif phase == "step" and plan.on_step is None:
            self._take_step(None, now)
        elif phase == "judge" and plan.on_finish is None and self._candidate is not None:
            self._accept(self.spec.output.unwrap(self._candidate))

    def _read_prompt(self) -> Callable[[], Any]:
        prompt = self.spec.prompt
        if self.plan.prompt is not None:
            return self.plan.prompt
        assert prompt.file is not None
        return partial(read_prompt_file, prompt.file, self.spec.owner)

    def _begin(self, prompt: str, now: float) -> None:
        if self.run.forked_from is not None:
            self._begin_fork(prompt, now)
            return
        context = self.context
        if context is None or not context.inherits:
            self.transcript.begin(first_messages(prompt, self.plan.prior, self.openings[0]), ())
        else:
            own = self.openings[0] if context.has_input else None
            history, inherited = first_branch_messages(context.history, prompt, own)
            above = context.history
            if inherited > len(above) or (above and history[0] != above[0]):
                above = (copy_json(history[0]), *above[inherited == len(above) :])
                self.wire.change_first(history[0])
            self.transcript.begin(history, above)
        if self.plan.on_start is None:
            self._ask_model(now)
        else:
            self.state.phase = "start"

    def _begin_fork(self, prompt: str, now: float) -> None:
        """Go on where another run was; `on_start` was called there, and what it did is kept."""
        fork, run, state = self.plan.fork, self.run, self.state
        if fork is None:
            raise StoreError(
                f"The run {run.id} is a fork that had not begun when it was stopped, and what it was to keep is not "
                f"in its store; fork again."
            )
        entries = fork.entries(run.id, now, prompt)
        self.journal.entries += entries
        self.transcript.book.begin(history_of(entries))
        run.steps = self.journal.step = fork.before - 1
        state.turns = sum(isinstance(entry, ModelResponded) for entry in entries)
        state.meter.step_began = now
        self._force_at_last_step()
        self._ask_model(now)

    def _take_start(self, returned: Any, now: float) -> None:
        """Take over what `on_start` has changed, and begin."""
        step = self._end_hook("on_start", returned)
        assert step is not None
        if step.tool_results or step.tool_calls:
            raise AcornError(
                f"`{self.spec.owner}.on_start` has put something into `step.tool_results` or `step.tool_calls`, but "
                f"nothing was called yet; use `step.add_to_context` or `self.history`."
            )
        self._adopt(step)
        self.transcript.notice_all()
        context = step._shown()
        if context is not None:
            messages.check_list(self.transcript.book.messages)
            self.transcript.say(context)
        self.state.meter.step_began = now
        if step._finished is None:
            self._ask_model(now)
        else:
            self._consider(step._finished, None)

    # Asking the model

    def _ask_model(self, now: float) -> None:
        """Decide what the next request is: with whose words, and whether it must end in an answer."""
        state = self.state
        state.phase = "model"
        self.transcript.notice()
        if self.budgets.limited:
            self._check_limits(now)
        self._request, state.was_forced = None, False
        if self.spec.compact_at is not None and self._has_grown_long(self.spec.compact_at):
            state.phase = "compact"
            return
        request = self._next_request(now)
        if self.wire.before:
            self.transcript.notice_inside(self.wire.before)
        wants_answer = state.forced or (self._is_single and not self._has_tools and not self._thinks)
        if wants_answer and not state.fallback:
            if self.model.can_force_tool(request):
                state.was_forced, request.forced_tool = True, FINISH
            elif state.forced:
                self._fall_back()

    def _has_grown_long(self, most: int) -> bool:
        """Whether a summary is to be asked for; not when the answer is due, or was asked for a moment ago."""
        state = self.state
        if state.compacted == state.turns or state.fallback or (state.forced and state.reason == "limit"):
            return False
        last = state.meter.last
        size = last.total_tokens if last is not None and last.total_tokens else estimate(self.transcript.book.messages)
        if size <= most:
            return False
        self.transcript.notice_all()
        return range_to_compact(self.transcript.book.messages, self.openings, most) is not None

    def _take_summary(self, response: ModelResponse, asked: float, now: float) -> None:
        """Put a summary in the place of older steps; where the model gave none, they stay."""
        state, run = self.state, self.run
        self._request, state.compacted = None, state.turns
        self.budgets.pay(response, self.model, run, now - asked, is_aside=True)
        self.transcript.notice_all()
        stretch = range_to_compact(self.transcript.book.messages, self.openings, self.spec.compact_at or 1)
        is_refused = response.refusal is not None or response.stop_reason == "content_filter"
        text = "" if is_refused else summary_text(response.content, was_cut=response.stop_reason == "length")
        if stretch is None:  # somebody has changed the history meanwhile
            stretch, text = CompactedRange(0, 0, (), 0), ""
        self.transcript.compact(stretch, text, asked, response)
        if text:
            self.wire.forget()
            state.meter.last = Usage(
                estimate(self.transcript.book.messages)
            )  # until a response says how much it is now
        self._ask_model(now)

    def _check_limits(self, now: float) -> None:
        history, at = self.transcript.book.messages, self.whereabouts()
        new: Sequence[Any] = history if self.transcript.turn is None else [] if at is None else history[at + 1 :]
        if self.budgets.must_answer(new, self.model, self.run.steps, now) and not self.state.forced:
            self._force("limit")

    def _force(self, reason: str) -> None:
        self.state.forced, self.state.reason = True, reason

    def _fall_back(self) -> None:
        """Ask for the answer in XML from here on."""
        self.state.fallback = True
        self._request = None
        self.transcript.say(finish.form(self.spec.output, self.spec.xml_output_root))

    # Taking a response

    def _take_response(self, response: ModelResponse, asked: float, now: float) -> None:
        state, run = self.state, self.run
        self._request = None
        state.turns += 1
        self.budgets.pay(response, self.model, run, now - asked)
        is_refused = response.refusal is not None or response.stop_reason == "content_filter"
        error = refusal(response, self.model) if is_refused else None
        calls = read_calls(response.tool_calls, len(self.transcript.book.messages))
        self.transcript.take_turn(response, calls, asked, None if error is None else response.refusal or "")
        if error is not None:
            raise error
        state.response, state.calls, state.results = response, calls, {}
        if state.requests:
            state.requests, state.answers, state.passed = {}, {}, []
        if FINISH in [call.name for call in calls]:
            self._take_finish(response, calls, now)
        elif state.fallback:
            verdict = finish.judge_xml(
                self.spec.output,
                response.content,
                self.spec.xml_output_root,
                cut_off=response.stop_reason == "length",
                max_tokens=self.setting("max_tokens"),
            )
            self.transcript.answer({}, messages.TOO_LATE)
            self._weigh(verdict, None, now)
        elif state.was_forced or (self._is_single and not calls):
            self.transcript.answer({}, messages.TOO_LATE)
            self._take_no_answer(response, now)
        else:
            self._begin_step(now)

    def _take_finish(self, response: ModelResponse, calls: list[ToolCall], now: float) -> None:
        """Of several answers the first valid one counts; whatever else was called is not executed."""
        documents = self.state.faults = {}
        wrong: list[finish.FinishResult] = []
        for call in calls:
            if call.name != FINISH:
                continue
            verdict = finish.judge_arguments(
                self.spec.output,
                call.raw_arguments,
                cut_off=response.stop_reason == "length",
                max_tokens=self.setting("max_tokens"),
            )
            if verdict.instance is not None:
                self._consider(verdict.instance, call.id)
                return
            documents[call.id] = verdict.document
            wrong.append(verdict)
        self.transcript.answer(documents, messages.SKIPPED)
        self._correct(wrong[0], None, now)

    def _take_no_answer(self, response: ModelResponse, now: float) -> None:
        """Neither `__finish__` nor a step: at the end of the loop XML is next, in a single turn a retry is spent."""
        verdict = finish.no_answer(
            response.content, cut_off=response.stop_reason == "length", max_tokens=self.setting("max_tokens")
        )
        if self.state.forced and not self._is_single:
            self._fall_back()
            self._ask_model(now)
        elif self._is_single and not self._can_force():
            self._spend(verdict)
            self._fall_back()
            self._ask_model(now)
        else:
            self._correct(verdict, verdict.document, now)

    def _correct(self, verdict: finish.FinishResult, said: str | None, now: float) -> None:
        """Spend a retry; `said` goes to the model as a user message."""
        self._spend(verdict)
        if said is not None:
            self.transcript.say(said)
        self._ask_model(now)

    def _spend(self, verdict: finish.FinishResult) -> None:
        attempts = self.state.corrections + 1
        if attempts > self.spec.parse_retries:
            raise finish.out_of_retries(verdict, self.spec.owner, self.run.model, attempts) from verdict.cause
        self.state.corrections = attempts

    # A step: tools, branches, hook, and what the hook changed

    def _begin_step(self, now: float) -> None:
        self.run.steps += 1
        self.state.phase = "tools"
        if not self._prepare(now):
            self._end_tools_if_done(now)

    def _take_result(self, result: ToolResult, began: float | None, now: float) -> None:
        self._note_result(result, began)
        self.transcript.notice()
        self._end_tools_if_done(now)

    def _end_tools_if_done(self, now: float) -> None:
        state = self.state
        if len(state.results) < len(state.calls):
            if state.phase == "tools" and not self._open:
                self._begin_branches(now)
            if len(state.results) < len(state.calls):
                return
        state.phase = "step"
        self._prepared = {}
        if self.plan.on_step is None:
            self._take_step(None, now)

    def _begin_branches(self, now: float) -> None:
        unborn = self._unborn()
        self.state.phase = "branches"
        begun = {call.id: call.name for call, _ in unborn}
        for call, branch in unborn:
            self._bear(branch, call, begun, now)

    def _unborn(self) -> list[tuple[ToolCall, BranchTool]]:
        """The branches that begin when the other calls of the response have their results."""
        results, prepared = self.state.results, self._prepared
        opened = [(call, prepared.get(call.id)) for call in self.state.calls if call.id not in results]
        return [(call, made) for call, made in opened if isinstance(made, BranchTool) and made.inherits]

    def _hear_person(self, ask: AskHook, outcome: Any, now: float) -> None:
        """What `on_human` said; None is nobody."""
        (request,) = ask.arguments
        self.transcript.notice()
        if outcome is not None:
            self._take_answer(self.check_answer(request.id, outcome), outcome, now)
        elif (call_id := self._waiting_for(request.id)) is not None:
            self.state.passed.append(call_id)

    def _take_answer(self, call_id: str, value: Any, now: float) -> None:
        self._asks, self.journal.now = None, now
        self._note_answer(call_id, value)
        if self._prepared:  # otherwise its sources are not open yet
            self._end_tools_if_done(now)

    def _take_branch(self, ask: AskBranch, end: BranchEnd, now: float) -> None:
        result = branch_result(ask.call, end)
        self.state.branches.pop(ask.call.id, None)
        self._has_returned(result)
        if end.run is None:
            self.transcript.returned(result, None)
        else:
            self.branch_ended(ask.context, end.run, result, now)
        self._end_tools_if_done(now)

    # The hook

    def _take_step(self, returned: Any, now: float) -> None:
        """Write the step into the history as the hook left it, and decide what comes next."""
        state = self.state
        step = None if self._step is returned is None else self._end_hook("on_step", returned)
        context: Content | None = None
        if step is not None:
            results, state.calls = checked_results(step.tool_results), checked_calls(step.tool_calls)
            context = step._shown()
            if step._settings or step._tools is not None or step._removed:
                self._adopt(step)
        else:
            results = self._ordered()
        self.transcript.put_results(results, context)
        meter = state.meter
        if now - meter.step_began > meter.longest_step:
            meter.longest_step = now - meter.step_began
        meter.step_began = now
        if step is not None and step._finished is not None:
            self._force_at_last_step()
            self._consider(step._finished, None)
        elif self._is_single:
            assert state.response is not None
            self._end(Unfinished(self.spec.owner, state.response.content, state.calls, results), "unfinished")
        else:
            self._notice_circles(results)
            if not state.calls:
                was_cut = state.response is not None and state.response.stop_reason == "length"
                self.transcript.say(messages.REMINDER_CUT_OFF if was_cut else messages.REMINDER)
            self._force_at_last_step()
            self._ask_model(now)

    def _end_hook(self, name: str, returned: Any) -> Step | None:
        """The step as the hook left it."""
        step, self._step = self._step, None
        if returned is not None and returned is not step:
            raise DeclarationError(
                f"`{self.spec.owner}.{name}` must return the step or nothing, got {safe_repr(returned)[:120]}."
            )
        return step

    def _force_at_last_step(self) -> None:
        if self.spec.max_steps is not None and self.run.steps >= self.spec.max_steps and not self.state.forced:
            self._force("forced")

    def _notice_circles(self, results: Sequence[ToolResult]) -> None:
        state = self.state
        if self.spec.loop_guard is None:
            return
        mark = limits.mark(state.calls, results, self.toolset.repeatable)
        state.marks = [*state.marks[-5:], mark]
        if mark == limits.NO_MARK or not limits.is_repeating(state.marks):
            return
        if not state.noticed:
            state.noticed = True
            self.transcript.say(limits.NOTICE)
        elif self.spec.loop_guard == "force":
            self._force("loop")

    # The answer

    def _weigh(self, verdict: finish.FinishResult, call_id: str | None, now: float) -> None:
        if verdict.instance is None:
            self._correct(verdict, verdict.document, now)
        else:
            self._consider(verdict.instance, call_id)

    def _consider(self, instance: BaseModel, call_id: str | None) -> None:
        """An answer that validates: let `on_finish` see it."""
        state = self.state
        self._candidate, state.answered_by = instance, call_id
        state.phase = "judge"
        if self.plan.on_finish is None:
            self._accept(self.spec.output.unwrap(instance))
        else:
            state.answer = to_json_text(instance)

    def _take_judgement(self, outcome: Any, now: float) -> None:
        state = self.state
        assert self._candidate is not None
        if not isinstance(outcome, ValueError):
            self._accept(self.spec.output.unwrap(self._candidate) if outcome is None else outcome)
            return
        verdict = finish.rejected(outcome, state.answer or "", self._said())
        if state.answered_by is None:
            self._correct(verdict, verdict.document, now)
        else:
            self.transcript.answer({**state.faults, state.answered_by: verdict.document}, messages.SKIPPED)
            self._correct(verdict, None, now)

    def _said(self) -> str:
        """The answer as it came: arguments, XML, or what `step.finish` was given."""
        state = self.state
        said = [call.raw_arguments for call in state.calls if call.id == state.answered_by]
        if state.fallback and not said and state.response is not None:
            return state.response.content
        return said[0] if said else state.answer or ""

    def _accept(self, output: Any) -> None:
        state = self.state
        if state.answered_by is not None:
            self.transcript.answer({**state.faults, state.answered_by: messages.FINISHED}, messages.SKIPPED)
        was_given = state.answered_by is None and not state.fallback  # by `step.finish`
        self._end(output, "step" if was_given else state.reason)

    def _end(self, output: Any, reason: str) -> None:
        self.run.output, self.run.stop_reason = output, reason
        self.transcript.end(output, reason, was_seen=reason == "unfinished" or self.plan.has_hooks)
        self.state.phase = "done"
