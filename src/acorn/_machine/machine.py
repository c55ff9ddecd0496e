"""The machine: it lists what it needs, is told what was begun, and takes one answer at a time.

    new → prompt → start → (compact →) model → (tools → branches → step → model)* → judge → done

Single turn, corrections and the forced finish are turns of the same wheel. What has returned is state the
moment it is told, so a run can be saved between any two tells. There is no I/O, no clock and no chance in
it: drivers perform the asks and pass the time in, and asking changes nothing. What an answer means is told
in `phases.py`, in the order of the walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never

from acorn._declare.tools.kinds import AgentTool
from acorn._history.first_messages import prompt_text
from acorn._history.request_messages import RequestMessages
from acorn._machine.asks import Ask, AskBranch, AskHook, AskModel, AskSource, AskTool
from acorn._machine.phases import Phases
from acorn._machine.plan import Plan
from acorn._machine.response import may_go_on
from acorn._machine.state import Phase, State
from acorn._record.saved_form import read_instance_json
from acorn.errors import AcornError
from acorn.journal import ModelRequested, RunStarted, ToolStarted
from acorn.record import Run
from acorn.stores.port import RunCancelledError
from acorn.types import Paused, Request


class Machine(Phases):
    """One run of one module."""

    def __init__(self, plan: Plan, run: Run, state: State | None = None, wire: RequestMessages | None = None) -> None:
        super().__init__(plan, run, state, wire)
        self._is_torn = False
        """Whether something is being told, or was interrupted in the middle of it."""

    # What can be asked of the machine

    def start(self, now: float, moment: datetime | None = None) -> None:
        """Begin the run, or go on with one that was loaded; `moment` is now as everybody counts it."""
        self._epoch = None if moment is None else moment - timedelta(seconds=now)
        self._is_torn = True
        self.journal.now = now
        self._asks = None
        if self.state.phase == "new":
            context = self.context
            above = (context.parent_id, context.path, context.call_id) if context else (None, None, None)
            begun = RunStarted(self.run.id, 0, now, self.plan.module, self.run.input, *above)
            if self.run.forked_from is not None:
                begun = begun._replace(forked_from=self.run.forked_from)
            self.journal.entries.append(begun)
            self.state.phase = "prompt"
        elif self.state.phase == "model" and self.state.reason == "limit" and not self.state.under_way:
            # Of a run that was loaded: its limits may be others now.
            self.state.forced, self.state.fallback, self.state.reason = False, False, "finish"
        if not self.spec.sources:
            self._sources_are_open(now)
        self._is_torn = False

    def asks(self, now: float) -> tuple[Ask, ...]:
        """What may be under way now; asking twice gives the same."""
        return tuple(self.listed(now).values())

    def only_ask(self, now: float) -> Ask | None:
        """The same where it is one thing, and None where it is not."""
        asks = self.listed(now)
        if len(asks) != 1:
            return None
        (ask,) = asks.values()
        return ask

    def asked(self, id: str) -> Ask | None:
        """One of them."""
        return self.listed(self.journal.now).get(id)

    def listed(self, now: float) -> Mapping[str, Ask]:
        """All of them by their ids. While it is the same object, some may be gone, and none is new."""
        # How long a request may take depends on when it is sent; a call is told when it begins.
        if self._asks is None or (self._is_timed and self.state.phase not in ("tools", "branches")):
            self._asks = {ask.id: ask for ask in self._list(now)}
        return self._asks

    def begin(self, id: str, now: float) -> None:
        """One of the asks is under way."""
        ask = self._asked(id)
        journal, is_again = self.journal, id in self.state.under_way
        journal.now = self.state.under_way[id] = now
        # Not `match`, which takes twice as long and is on the way of every ask.
        if isinstance(ask, AskModel):
            if ask.is_quiet:
                return
            forced = self.state.reason if self.state.forced else None
            count = ask.request.message_count
            journal.entries.append(
                ModelRequested(self.run.id, self.run.steps + 1, now, id, ask.model.name, count, forced)
            )
        elif isinstance(ask, AskTool):
            call = ask.call
            if self._is_timed:  # which it was when it was listed as well, perhaps long ago
                ask.seconds = self._seconds_for(ask.tool, now)
            journal.entries.append(ToolStarted(self.run.id, journal.step, now, call.id, call.name, call.raw_arguments))
        elif isinstance(ask, AskHook):
            pass
        elif isinstance(ask, AskBranch):
            if not is_again:  # a branch that was saved goes on
                self.branch_begun(ask.context, now)
        elif not isinstance(ask, AskSource):
            assert_never(ask)

    def tell(self, id: str, outcome: Any, now: float) -> None:
        """What came of one ask; raises where the run cannot go on."""
        ask = self._asked(id)
        self._is_torn = True
        self.journal.now = now
        began = self.state.under_way.pop(id, None)
        asks, self._asks = self._asks, None
        if isinstance(ask, AskModel):
            asked = now if began is None else began
            if ask.is_quiet:
                self._take_summary(outcome, asked, now)
            else:
                self._take_response(outcome, asked, now)
        elif isinstance(ask, AskTool):
            phase = self.state.phase
            self._take_result(outcome, began, now)
            self._asks = self._others(asks, id, phase)
        elif isinstance(ask, AskHook):
            if self.state.phase == "step":
                self._take_step(outcome, now)
            elif self.state.phase in ("tools", "branches"):
                self._hear_person(ask, outcome, now)
            elif self.state.phase == "prompt":
                prompt = self.spec.prompt
                self._begin(outcome if prompt.file else prompt_text(self.spec, outcome), now)
            elif self.state.phase == "start":
                self._take_start(outcome, now)
            else:
                self._take_judgement(outcome, now)
        elif isinstance(ask, AskBranch):
            phase = self.state.phase
            self._take_branch(ask, outcome, now)
            self._asks = self._others(asks, id, phase)
        elif isinstance(ask, AskSource):
            self._take_source(ask.source, outcome, now)
        else:
            assert_never(ask)
        self._is_torn = False

    def stop(self, error: BaseException, now: float) -> None:
        """End here, leaving a record whose history is complete; what was only interrupted can go on from before."""
        if self.is_over:
            return
        is_torn = self._is_torn and not isinstance(error, Exception)  # an error of ours comes when all is written
        if is_torn:
            self.transcript.mend()
        self._stop(error, now, is_final=is_torn or not may_go_on(error))

    def spoil(self, error: BaseException, now: float) -> None:
        """Fail after all: what was opened for the run could not be closed. Its output, if there is one, stays."""
        if self.run.error is None:
            self._stop(error, now, is_final=self.run.stop_reason != "paused")

    def answer(self, request_id: str, value: Any, now: float) -> None:
        """What a person says to an open request; where it does not fit, an `InputError`, and nothing is changed."""
        self._take_answer(self.check_answer(request_id, value), value, now)

    def take_answers(self, answers: Mapping[str, Any], now: float) -> None:
        """Those answers, by their requests, that are to requests of this run."""
        for request in self.requests():
            call_id = self._waiting_for(request.id)
            if call_id is not None and request.id in answers:
                self._take_answer(call_id, answers[request.id], now)

    def set_aside(self, id: str) -> None:
        """Something that was begun waits for people further below; it is done anew when the run goes on."""
        self.state.under_way.pop(id, None)

    def settle(self, now: float) -> bool:
        """All else waits for people: the branches begin that stand behind the other calls. Whether there are any."""
        if self.is_over or self.state.phase != "tools" or not self._unborn():
            return False
        self._asks, self.journal.now = None, now
        self._begin_branches(now)
        return True

    def rest(self, requests: Sequence[Request], now: float) -> None:
        """Nothing can go on without people: leave a record whose history is complete. The run goes on from before."""
        self._asks, self.journal.now = None, now
        self.transcript.rest(self._results_until_now())
        self.run.output, self.run.stop_reason = Paused(self.run.id, requests), "paused"

    def _stop(self, error: BaseException, now: float, *, is_final: bool) -> None:
        self.journal.now = now
        self._asks = None
        self.transcript.stop(error, self._results_until_now(), self.setting("model"), is_final=is_final)
        self.run.error = error
        is_failure = isinstance(error, Exception) and not isinstance(error, RunCancelledError)
        self.run.stop_reason = "error" if is_failure else "cancelled"
        if is_final:
            self.state.phase = "done"

    def _asked(self, id: str) -> Ask:
        ask = (self._asks or self.listed(self.journal.now)).get(id)
        if ask is None:
            raise AcornError(f"The run {self.run.id} has not asked for `{id}`.")
        return ask

    def _others(self, asks: dict[str, Ask] | None, id: str, phase: Phase) -> dict[str, Ask] | None:
        """What is still asked for when one of the calls of a step has its result: nothing new while there is any.

        To list them anew for each of many would take longer the more there are.
        """
        if asks is None or self.state.phase != phase:
            return None
        asks.pop(id, None)
        return asks or None

    def _list(self, now: float) -> Sequence[Ask]:
        state, run, plan = self.state, self.run, self.plan
        if run.stop_reason is not None:
            return ()
        sources = self.spec.sources
        if sources and (opened := len(self._source_tools)) < len(sources):
            return (AskSource(f"source {opened}", sources[opened]),)
        match state.phase:
            case "model":
                return (AskModel(f"model {state.turns + 1}", self.model, self._next_request(now)),)
            case "tools":
                return self._list_tools(now)
            case "step":
                assert plan.on_step is not None
                return (AskHook(f"on_step {run.steps}", plan.on_step, (self._the_step(),)),)
            case "compact":
                return (AskModel(f"compact {state.turns + 1}", self.model, self._summary_request(now), is_quiet=True),)
            case "branches":
                return [*self._list_branches(), *self._list_tools(now)]
            case "judge":
                assert plan.on_finish is not None
                assert self._candidate is not None
                output = self.spec.output.unwrap(self._candidate)
                return (AskHook(f"on_finish {state.turns}", plan.on_finish, (output,), forgives=(ValueError,)),)
            case "prompt":
                return (AskHook("prompt", self._read_prompt()),)
            case "start":
                assert plan.on_start is not None
                return (AskHook("on_start", plan.on_start, (self._the_step(),)),)
            case "new" | "done":
                return ()
            case _:
                assert_never(state.phase)

    def recover(self) -> None:
        """Make anew, in a loaded run, what is no plain data."""
        state = self.state
        if state.answer is not None and state.phase == "judge":
            said = [call.raw_arguments for call in state.calls if call.id == state.answered_by]
            self._candidate = read_instance_json(self.spec.output.schema, said[0] if said else state.answer, "answer")
        for call in state.calls:  # what a branch returned is no plain data
            branch, result = self.plan.branches.get(call.name), state.results.get(call.id)
            agent = self.toolset.named.get(call.name)
            if isinstance(agent, AgentTool) and self.plan.start is not None:
                branch = self.plan.start(agent)
            if branch is not None and result is not None and result.error is None:
                result.output = branch.spec.output.revive(result.output)
        if not self.spec.sources:
            self._use_saved_tools()
