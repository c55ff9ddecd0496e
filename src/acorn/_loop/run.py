"""The machine: it says what it needs next, and is told what came of it.

    open → prompt → model → (tools → step → model)* → judge → done

Single turn, corrections and the forced finish are turns of the same wheel. Only this file changes the phase
of a run. There is no I/O, no clock and no chance in it: drivers perform the asks and pass the time in. The
methods stand in the order of the walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, assert_never

from pydantic import BaseModel

from acorn._json import safe_repr, to_text
from acorn._loop import finish, guard, messages
from acorn._loop.asks import Ask, AskBranches, AskHook, AskModel, AskTools, Child, Done, Invocation
from acorn._loop.branch import ParentEndedError, begin_branch, called_child, inherited_tools, outcome
from acorn._loop.opening import first_messages, input_message, prompt_text
from acorn._loop.outbox import Outbox
from acorn._loop.plan import BranchTool, Plan, Toolset, listed_tools, named_tools
from acorn._loop.purse import Purse
from acorn._loop.reply import prepare, read_calls, refusal
from acorn._loop.scribe import Scribe
from acorn._loop.state import State, restored
from acorn._spec import read_prompt_file
from acorn._tools.collect import FINISH, Tool, gather, merge
from acorn.errors import AcornError, DeclarationError, ToolConflictError
from acorn.models.port import ModelRequest, ModelResponse, thinks
from acorn.record import Message, Run
from acorn.step import Step
from acorn.types import ToolCall, ToolResult, Unfinished

if TYPE_CHECKING:
    from acorn._loop.threaded import Threaded


class Loop:
    """One run of one module."""

    def __init__(self, plan: Plan, run: Run[Any], state: State | None = None) -> None:
        self.plan = plan
        self.spec = plan.spec
        self.run = run
        self.state = state or State()
        heritage = plan.heritage
        self.outbox = Outbox() if heritage is None else heritage.outbox
        self.openings: tuple[Message, ...] = (input_message(self.spec, run.input),)
        """The inputs of this run and those above it, its own first."""
        if heritage is not None:
            self.openings = (self.openings if heritage.has_input else ()) + heritage.openings
        self.ledger = run.ledger
        self.scribe = Scribe(run)
        self.purse = Purse(self.spec.owner, plan.limits, self.state.meter, heritage.budgets if heritage else ())
        self._step: Step | None = None
        self._candidate: BaseModel | None = None
        self._prepared: list[Invocation | ToolResult | BranchTool] | None = None
        self._children: list[Child | ToolResult] | None = None
        self._asked_at = 0.0
        self._source_tools: list[Tool] = []
        self._threaded: Threaded | None = None
        self.toolset = Toolset(
            self._and_inherited(plan.tools), plan.branches, finish.finish_definition(self.spec.output)
        )
        self.model = plan.resolve(self.setting("model"))
        self.purse.check_price(self.model)

    # What can be asked of the machine

    def ask(self, now: float) -> Ask:
        """What is needed next; asking twice gives the same."""
        if self.parent is not None and self.parent.is_over:
            raise ParentEndedError
        self.ledger.now = now
        match self.state.phase:
            case "open":
                return self._ask_source(now)
            case "prompt":
                return self._ask_prompt(now)
            case "model":
                return self._ask_model(now)
            case "tools":
                return self._ask_tools(now)
            case "branches":
                return self._ask_branches(now)
            case "step":
                return self._ask_step()
            case "judge":
                return self._ask_judge()
            case "done":
                return Done(self.run.output)
            case _:
                assert_never(self.state.phase)

    def tell(self, outcome: Any, now: float) -> None:
        """What came of the last ask; raises where the run cannot go on."""
        if self.parent is not None and self.parent.is_over:
            raise ParentEndedError
        self.ledger.now = now
        match self.state.phase:
            case "open":
                self._take_source(outcome)
            case "prompt":
                self._begin(prompt_text(self.spec, outcome))
            case "model":
                self._take_response(outcome, now)
            case "tools":
                self._take_results(outcome, now)
            case "branches":
                self._take_branches(outcome, now)
            case "step":
                self._take_step(outcome, now)
            case "judge":
                self._take_judgement(outcome)
            case "done":
                raise AssertionError("the run is over")
            case _:
                assert_never(self.state.phase)

    def abort(self, error: BaseException, now: float | None = None) -> None:
        """End the run here, leaving a record whose history is complete."""
        state, run = self.state, self.run
        if isinstance(run.error, ParentEndedError):  # ended from above, and its thread has only noticed now
            return
        self.ledger.now = self.ledger.now if now is None else now
        self.scribe.abort(error, self._results_until_now(), self.setting("model"))
        run.error = error
        run.stop_reason = "error" if isinstance(error, Exception) else "cancelled"
        state.phase = "done"
        for child in self._children or ():  # a branch in a thread may be busy for long yet
            if isinstance(child, Child) and child.loop.state.phase != "done":
                child.loop.abort(ParentEndedError())
        self._count_children()

    def _results_until_now(self) -> list[ToolResult]:
        """What has returned, though its siblings have not; of the hook's results only if they are some."""
        try:
            found = _checked_results(self.results_so_far())
        except Exception:  # whatever the user has made of them
            found = self.state.results
        ended = [child for child in self._children or () if isinstance(child, Child) and child.loop.is_done]
        return [*found, *(outcome(child.call, child.loop.run, _failure(child.loop.run)) for child in ended)]

    def recover(self) -> None:
        """Make a loaded run ready for its next ask; what was no plain data is made anew."""
        state, spec = self.state, self.spec
        if state.answer is not None and "judge" in (state.phase, state.resumes):
            said = [call.raw_arguments for call in state.calls if call.id == state.answered_by]
            self._candidate = restored(spec.output.schema, said[0] if said else state.answer, "answer")
        if spec.sources:  # they are not open here
            state.opened, state.resumes, state.phase = 0, state.resumes or state.phase, "open"
        else:
            self._use_saved_tools()

    def whereabouts(self) -> int | None:
        """Where in the history the last response stands."""
        turn = self.scribe.turn
        return None if turn is None else messages.find_turn(self.run.history, turn)

    def _use_saved_tools(self) -> None:
        if self.state.tools is not None:
            self._use_tools(named_tools(self.toolset.tools, self.state.tools))

    # Opening

    def _ask_source(self, now: float) -> Ask:
        """Two asks for each source: open it, then list its tools."""
        at, listing = divmod(self.state.opened, 2)
        if at >= len(self.spec.sources):
            self.state.phase, self.state.resumes = self.state.resumes or "prompt", None
            self._use_saved_tools()
            return self.ask(now)
        source = self.spec.sources[at]
        return AskHook(source.tools if listing else getattr(source, "open", None) or _nothing)

    def _take_source(self, outcome: Any) -> None:
        at, listing = divmod(self.state.opened, 2)
        self.state.opened += 1
        if listing:
            place = f"tools of {type(self.spec.sources[at]).__name__}"
            found, _ = gather(listed_tools(outcome, place), place, {})
            self._source_tools += found
            own = merge((*self.plan.tools, *self._source_tools), (), self.spec.owner)
            self._use_tools(self._and_inherited(own))

    def _ask_prompt(self, now: float) -> Ask:
        if self.plan.prompt is not None:
            return AskHook(self.plan.prompt)
        prompt = self.spec.prompt
        self._begin(read_prompt_file(prompt.file, self.spec.owner) if prompt.file else prompt.text)
        return self._ask_model(now)

    def _begin(self, prompt: str) -> None:
        heritage = self.plan.heritage
        if heritage is None:
            self.scribe.begin(first_messages(prompt, self.plan.prior, self.openings[0]))
        else:
            own = dict(self.openings[0]) if heritage.has_input else None
            history = begin_branch(heritage.history, prompt, own)
            self.scribe.begin(history, inherited=len(history) - heritage.has_input)
            if history:
                self.outbox.change_first(history[0])
        self.state.phase = "model"

    # Asking the model

    def _ask_model(self, now: float) -> Ask:
        state = self.state
        self.scribe.notice()
        self._mind_limits(now)
        request = self._request(now)
        wants_answer = state.forced or (self._is_single and not self._has_tools and not self._thinks)
        if wants_answer and not state.fallback:
            if self.model.can_force_tool(request):
                request.forced_tool = FINISH
            elif state.forced:
                self._fall_back()
                request = self._request(now)
        state.was_forced = request.forced_tool is not None
        self._asked_at = now
        return AskModel(self.model, request)

    def _request(self, now: float) -> ModelRequest:
        sent, write = self.outbox.prepare(self.run.history, *self.openings)
        self.scribe.settle(self.outbox)
        is_threaded = self.spec.history_format == "thread"
        if is_threaded:
            self._threaded = self._threaded or _threaded()
            sent = self._threaded.wrap(sent)
        seconds = self.plan.limits.seconds
        return ModelRequest(
            sent,
            self.toolset.definitions,
            temperature=self.setting("temperature"),
            max_tokens=self.setting("max_tokens"),
            declared=self.spec.declared | self.state.settings.keys() if self.state.settings else self.spec.declared,
            cache=self.spec.cache,
            timeout=None if seconds is None else max(0.001, seconds - now),
            messages_json=None if is_threaded else write,
            tools_json=self.toolset.json,
        )

    def _mind_limits(self, now: float) -> None:
        if not self.purse.limited:
            return
        history, at = self.run.history, self.whereabouts()
        new: Sequence[Any] = history if self.scribe.turn is None else [] if at is None else history[at + 1 :]
        if self.purse.must_answer(new, self.model, self.run.steps, now) and not self.state.forced:
            self._force("limit")

    def _force(self, reason: str) -> None:
        self.state.forced, self.state.reason = True, reason

    def _fall_back(self) -> None:
        """Ask for the answer in XML from here on."""
        self.state.fallback = True
        self.scribe.say(finish.form(self.spec.output, self.spec.xml_output_root))

    # Taking a response

    def _take_response(self, response: ModelResponse, now: float) -> None:
        state, run = self.state, self.run
        self.purse.pay(response, self.model, run, now - self._asked_at)
        if error := refusal(response, self.model):
            raise error
        calls = read_calls(response.tool_calls, len(run.history))
        state.response, state.calls, state.results = response, calls, []
        self.scribe.take_turn(response, calls)
        if any(call.name == FINISH for call in calls):
            self._take_finish(response, calls)
        elif state.fallback:
            verdict = finish.judge_xml(
                self.spec.output,
                response.content,
                self.spec.xml_output_root,
                cut_off=response.stop_reason == "length",
                max_tokens=self.setting("max_tokens"),
            )
            self.scribe.answer({}, messages.TOO_LATE)
            self._weigh(verdict, None)
        elif state.was_forced or (self._is_single and not calls):
            self.scribe.answer({}, messages.TOO_LATE)
            self._take_no_answer(response)
        else:
            self._begin_step(calls, now)

    def _take_finish(self, response: ModelResponse, calls: list[ToolCall]) -> None:
        """Of several answers the first valid one counts; whatever else was called is not executed."""
        told: dict[str, str] = {}
        wrong: list[finish.Verdict] = []
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
                self._weigh(verdict, call.id)
                return
            told[call.id] = verdict.document
            wrong.append(verdict)
        self.scribe.answer(told, messages.SKIPPED)
        self._correct(wrong[0], None)

    def _take_no_answer(self, response: ModelResponse) -> None:
        """Neither `__finish__` nor a step: at the end of the loop XML is next, in a single turn a retry is spent."""
        verdict = finish.no_answer(
            response.content, cut_off=response.stop_reason == "length", max_tokens=self.setting("max_tokens")
        )
        if self.state.forced and not self._is_single:
            self._fall_back()
        elif self._is_single and not self._can_force():
            self._spend(verdict)
            self._fall_back()
        else:
            self._correct(verdict, verdict.document)
        self.state.phase = "model"

    def _correct(self, verdict: finish.Verdict, said: str | None) -> None:
        """Spend a retry; `said` goes to the model as a user message."""
        self._spend(verdict)
        if said is not None:
            self.scribe.say(said)
        self.state.phase = "model"

    def _spend(self, verdict: finish.Verdict) -> None:
        attempts = self.state.corrections + 1
        if attempts > self.spec.parse_retries:
            raise finish.out_of_retries(verdict, self.spec.owner, self.run.model, attempts)
        self.state.corrections = attempts

    # A step: tools, hook, and what the hook changed

    def _begin_step(self, calls: list[ToolCall], now: float) -> None:
        self.run.steps += 1
        if calls:
            self.state.phase = "tools"
        else:
            self._end_tools(now)

    def _ask_tools(self, now: float) -> Ask:
        if self._prepared is None:
            self._prepared = [prepare(call, self.toolset, self.run, self._was_cut(call)) for call in self.state.calls]
        invocations = [made for made in self._prepared if isinstance(made, Invocation)]
        return AskTools(invocations, self.state.meter.seconds_for_tools(self.plan.limits, now))

    def _was_cut(self, call: ToolCall) -> bool:
        """Whether the token limit fell into these arguments: half an object, or nothing yet."""
        response = self.state.response
        is_last = call is self.state.calls[-1]
        return response is not None and response.stop_reason == "length" and is_last and not call.arguments

    def _take_results(self, results: Sequence[ToolResult], now: float) -> None:
        """The results of the functions, with those that never came to one; branches are next."""
        assert self._prepared is not None
        executed = iter(results)
        self.state.results = [
            next(executed) if isinstance(made, Invocation) else made
            for made in self._prepared
            if not isinstance(made, BranchTool)
        ]
        has_branches = len(self.state.results) < len(self._prepared)
        self._prepared = None
        if has_branches:
            self.state.phase = "branches"
        else:
            self._end_tools(now)

    def _ask_branches(self, now: float) -> Ask:
        if self._children is None:
            done = {result.id for result in self.state.results}
            calls = [call for call in self.state.calls if call.id not in done]
            begun = {call.id: call.name for call in calls}
            self._children = [called_child(self, self.toolset.branches[call.name], call, begun, now) for call in calls]
        return AskBranches([child for child in self._children if isinstance(child, Child)])

    def _take_branches(self, results: Sequence[ToolResult], now: float) -> None:
        """All results in the order of the calls."""
        assert self._children is not None
        ended = iter(results)
        state = self.state
        found = [child if isinstance(child, ToolResult) else next(ended) for child in self._children]
        by_id = {result.id: result for result in (*state.results, *found)}
        state.results = [by_id[call.id] for call in state.calls]
        self._count_children()
        self._end_tools(now)

    def _count_children(self) -> None:
        """What the branches used is part of what the run used."""
        for child in self._children or []:
            if isinstance(child, Child):
                self.count_child(child.loop.run)
        self._children = None

    def count_child(self, child: Run[Any]) -> None:
        self.run.usage.add(child.usage)
        if child.cost is not None:
            self.run.cost = (self.run.cost or 0.0) + child.cost

    def results_so_far(self) -> list[ToolResult]:
        """The results of the step under way, as `on_step` has left them by now."""
        if self._step is not None:
            return list(self._step.tool_results)
        prepared = [made.result if isinstance(made, Invocation) else made for made in self._prepared or ()]
        return [*self.state.results, *(made for made in prepared if isinstance(made, ToolResult))]

    def as_changed(self) -> tuple[dict[str, Any], tuple[Tool, ...]]:
        """The settings that were changed during the run, and the tools, as `on_step` has left them by now."""
        if self._step is None:
            return self.state.settings, self.toolset.tools
        return self.state.settings | self._step.changes(), self._step.chosen_tools()

    @property
    def turn(self) -> Message | None:
        """The response whose calls may not be answered in the history yet."""
        return self.scribe.turn if self.state.phase in ("tools", "branches", "step", "judge") else None

    def _end_tools(self, now: float) -> None:
        self.state.phase = "step"
        if self.plan.on_step is None:
            self._take_step(None, now)

    def _ask_step(self) -> Ask:
        assert self.plan.on_step is not None
        return AskHook(self.plan.on_step, (self._the_step(),))

    def _the_step(self) -> Step:
        state = self.state
        if self._step is None:
            assert state.response is not None
            settings = {name: self.setting(name) for name in ("model", "temperature", "max_tokens")}
            self._step = Step(
                self.spec, self.run, state.response, state.calls, state.results, self.toolset.tools, settings
            )
            self._step.branch = self.path or None
        return self._step

    def _take_step(self, returned: Any, now: float) -> None:
        """Write the step into the history as the hook left it, and decide what comes next."""
        state = self.state
        step, self._step = self._step, None
        if returned is not None and returned is not step:
            raise DeclarationError(
                f"`{self.spec.owner}.on_step` must return the step or nothing, got {safe_repr(returned)[:120]}."
            )
        context: str | None = None
        results = state.results
        if step is not None:
            results = _checked_results(step.tool_results)
            context = "\n".join(step._context) or None
            self._adopt(step)
        behind = self.scribe.place_results(results)
        if context is not None:
            self.scribe.say(context, behind)
        self.scribe.notice()
        state.meter.longest_step = max(state.meter.longest_step, now - state.meter.step_began)
        state.meter.step_began = now
        if step is not None and step._finished is not None:
            self._mind_steps()
            self._consider(step._finished, None)
        elif self._is_single:
            assert state.response is not None
            self._end(Unfinished(self.spec.owner, state.response.content, state.calls, results), "unfinished")
        else:
            self._mind_circles(results)
            if not state.calls:
                self.scribe.say(messages.REMINDER)
            self._mind_steps()
            state.phase = "model"

    def _adopt(self, step: Step) -> None:
        """Take over the settings and tools that the hook changed."""
        state = self.state
        for name, value in step.changes().items():
            state.settings[name] = value
            if name == "model":
                self.model = self.plan.resolve(value)
                self.purse.check_price(self.model)
        chosen = step.chosen_tools()
        if chosen != self.toolset.tools:
            state.tools = [tool.name for tool in chosen]
            self._use_tools(chosen)

    def _mind_steps(self) -> None:
        if self.spec.max_steps is not None and self.run.steps >= self.spec.max_steps and not self.state.forced:
            self._force("forced")

    def _mind_circles(self, results: Sequence[ToolResult]) -> None:
        state = self.state
        if self.spec.loop_guard is None:
            return
        repeatable = [tool.name for tool in self.toolset.tools if tool.options.repeatable]
        state.marks = [*state.marks[-5:], guard.mark(state.calls, results, repeatable)]
        if not guard.goes_in_circles(state.marks):
            return
        if not state.noticed:
            state.noticed = True
            self.scribe.say(guard.NOTICE)
        elif self.spec.loop_guard == "force":
            self._force("loop")

    # The answer

    def _weigh(self, verdict: finish.Verdict, call_id: str | None) -> None:
        if verdict.instance is None:
            self._correct(verdict, verdict.document)
        else:
            self._consider(verdict.instance, call_id)

    def _consider(self, instance: BaseModel, call_id: str | None) -> None:
        """An answer that validates: let `on_finish` see it."""
        state = self.state
        self._candidate, state.answered_by = instance, call_id
        state.answer = to_text(instance)
        state.phase = "judge"
        if self.plan.on_finish is None:
            self._accept(self.spec.output.unwrap(instance))

    def _ask_judge(self) -> Ask:
        assert self.plan.on_finish is not None
        assert self._candidate is not None
        return AskHook(self.plan.on_finish, (self.spec.output.unwrap(self._candidate),), forgives=(ValueError,))

    def _take_judgement(self, outcome: Any) -> None:
        state = self.state
        assert self._candidate is not None
        if not isinstance(outcome, ValueError):
            self._accept(self.spec.output.unwrap(self._candidate) if outcome is None else outcome)
            return
        verdict = finish.rejected(str(outcome) or type(outcome).__name__, state.answer or "", self._said())
        if state.answered_by is None:
            self._correct(verdict, verdict.document)
        else:
            self.scribe.answer({state.answered_by: verdict.document}, messages.SKIPPED)
            self._correct(verdict, None)

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
            self.scribe.answer({state.answered_by: messages.FINISHED}, messages.SKIPPED)
        was_given = state.answered_by is None and not state.fallback  # by `step.finish`
        self._end(output, "step" if was_given else state.reason)

    def _end(self, output: Any, reason: str) -> None:
        self.run.output, self.run.stop_reason = output, reason
        self.scribe.end(output)
        self.state.phase = "done"

    # Small facts

    @property
    def path(self) -> str:
        """The branch this is, `outer/inner`; '' for a run of its own."""
        return "" if self.plan.heritage is None else self.plan.heritage.path

    @property
    def parent(self) -> Loop | None:
        """The run that this is a branch of."""
        return None if self.plan.heritage is None else self.plan.heritage.parent

    @property
    def is_done(self) -> bool:
        """Whether it came to an end of its own, well or not."""
        return self.state.phase == "done" and self.run.stop_reason != "cancelled"

    @property
    def is_over(self) -> bool:
        return self.state.phase == "done" or (self.parent is not None and self.parent.is_over)

    @property
    def _has_tools(self) -> bool:
        return bool(self.toolset.tools or self.toolset.branches)

    @property
    def _is_single(self) -> bool:
        return self.spec.max_steps is None

    @property
    def _thinks(self) -> bool:
        return thinks(self.model)

    def _can_force(self) -> bool:
        return not self.state.was_forced and not self._thinks and self.model.can_force_tool(self._request(0.0))

    def setting(self, name: str) -> Any:
        found = self.state.settings
        return found[name] if name in found else getattr(self.spec, name)

    def _and_inherited(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        heritage = self.plan.heritage
        return tools if heritage is None else inherited_tools(heritage.tools, tools, self.plan.branches)

    def _use_tools(self, tools: tuple[Tool, ...]) -> None:
        if taken := [tool.name for tool in tools if tool.name in self.plan.branches]:
            raise ToolConflictError(
                f"Tool '{taken[0]}' of `{self.spec.owner}` has the name of one of its `branches`; rename one."
            )
        self.toolset = Toolset(tools, self.plan.branches, self.toolset.finish)


def _threaded() -> Threaded:
    from acorn._loop.threaded import Threaded  # with the classes of the events, which other runs do not need

    return Threaded()


def _nothing(*_: Any) -> None:
    """Stands where the user has no hook."""


def _failure(run: Run[Any]) -> Exception | None:
    return run.error if isinstance(run.error, Exception) else None


def _checked_results(results: Any) -> list[ToolResult]:
    if not isinstance(results, list) or not all(isinstance(result, ToolResult) for result in results):
        raise AcornError(f"`step.tool_results` must stay a list of ToolResult, got {to_text(results)[:120]}.")
    return results
