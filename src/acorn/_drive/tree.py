"""A run and all runs below it: found by their ids, told one thing at a time, heard, and ended together.

Whoever drives a run or a branch does it through its tree, from whatever thread. A branch that the user's
code begins stands in the same tree as those that the model calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from acorn._drive.commit import RunCommitter
from acorn._drive.last_run import close_record, open_record
from acorn._drive.listeners import RunListeners, is_wanted, log
from acorn._drive.pause import Siblings, check_answers, check_pause
from acorn._formats.blobs import to_saved_data
from acorn._machine.asks import Ask, AskTool, BranchEnd
from acorn._machine.inheritance import branch_result
from acorn._machine.machine import Machine
from acorn._machine.plan import Plan
from acorn._machine.saved_run import hang_records, load
from acorn._machine.state import BranchContext
from acorn._telemetry.setup import begin_trace, check_setting
from acorn.errors import ModelError, StoreError
from acorn.record import CallSite, Run, Subscriber, listeners
from acorn.stores.messages import cancelled_by_request
from acorn.stores.port import RunCancelledError
from acorn.types import ToolCall

if TYPE_CHECKING:
    from acorn._telemetry.trace import Trace

_NOWHERE = nullcontext()
_AT_ONCE = 0.5
"""Seconds in which whoever walks a tree hears that it is cancelled, ..."""
_TO_END = 15.0
"""... and in which it has ended then: tools clean up, and sources are closed."""


class ParentEndedError(BaseException):
    """The run above has ended, so what was begun inside it ends as well; no failure of the branch's own."""

    def __str__(self) -> str:
        return "the run above has ended"


class Tree:
    """The machines of one run and its branches."""

    def __init__(
        self,
        root: Machine,
        saved: Mapping[str, Mapping[str, Any]] | None = None,
        answers: Mapping[str, Any] | None = None,
        keeper: RunCommitter | None = None,
        kept_answers: Mapping[str, Any] | None = None,
    ) -> None:
        check_setting()
        self.trace: Trace | None = None
        """Makes spans of what happens, where the program wants any."""
        self._saved = dict(saved or {})
        """Branches as they were saved, by the ids of their runs: found again when their parents ask for them."""
        if answers:
            check_answers(root, self._saved, answers)
        self._answers = {**(kept_answers or {}), **(answers or {})}
        """What people said while the tree rested, by the ids of the requests; each run takes its own as it goes on."""
        self.can_rest = getattr(root.spec, "store", None) is not None
        """Whether a run that waits for people will be found again."""
        if self._saved:
            hang_records(root.run, self._saved.values())
        self.loops: dict[str, Machine] = {root.run.id: root}
        self._lives: dict[str, RunListeners] = {}
        self._branches: dict[str, list[str]] = {}
        """By the id of a run, those of the runs right below it."""
        self.siblings = Siblings()
        self._lock = threading.RLock()
        self.lost: Exception | None = None
        """What a vital listener or the store failed with: no run of the tree goes on, whoever took it for its own."""
        self.root = root.run.id
        self.keeper = keeper
        self.wake: Callable[[], None] | None = None
        """Ends the wait of whoever walks the root, from any thread; what is lost is known by then."""
        self.is_ending = False
        """Whether whoever walks the root is about to end it."""
        self.leave: threading.Event | None = None
        """Set where whoever drives the tree is to stop at its next commit."""

    @property
    def is_leaving(self) -> bool:
        return self.leave is not None and self.leave.is_set()

    def now(self, run_id: str) -> float:
        """Seconds into a run; of one that has not begun yet, where it will begin."""
        life = self._lives.get(run_id)
        return self.loops[run_id].run.seconds if life is None else monotonic() - life.began

    # The walk of one run

    def open(self, run_id: str) -> None:
        """A run begins, or goes on."""
        with self._lock:
            run = self._alive(run_id).run
            began, where = open_record(run)
            heard = (*listeners(), Subscriber(log)) if is_wanted() else listeners()
            if run_id == self.root:
                if self.keeper is not None:
                    self.keeper.begin(self._cancel)
                first_part = None if self.keeper is None else self.keeper.first_span
                self.trace = begin_trace(self.loops, self.root, first_part)
            if self.trace is not None:
                heard = (*heard, self._traced(self.trace, run_id))
            handed, is_kept = len(run.journal.entries), self.keeper is not None
            self._lives[run_id] = life = RunListeners(began, where, heard, handed, is_kept=is_kept)
            loop, now = self.loops[run_id], self.now(run_id)
            with self._vital():
                loop.start(now, datetime.now(UTC))
            if self._answers:
                loop.take_answers(self._answers, now)
            if life.is_heard:
                self._hand_over(run_id)

    def _traced(self, trace: Trace, run_id: str) -> Subscriber:
        trace.open(run_id)
        if run_id == self.root and self.keeper is not None and self.keeper.first_span is None:
            self.keeper.first_span = trace.span_of_root()
        return Subscriber(trace.hear)

    def inside(self, run_id: str, ask_id: str) -> AbstractContextManager[None]:
        """Where a model is asked: what its client traces belongs to the request."""
        return _NOWHERE if self.trace is None else self.trace.inside(run_id, ask_id)

    def first_chunk(self, run_id: str, ask_id: str) -> None:
        """A model that is asked has begun to answer."""
        if self.trace is not None:
            self.trace.first_chunk(run_id, ask_id)

    def asks(self, run_id: str) -> Mapping[str, Ask]:
        """What a run asks for, by the ids; while it is the same object, there is nothing new in it."""
        loop = self.loops[run_id]
        if loop.run.error is not None and isinstance(loop.run.error, ParentEndedError):
            raise loop.run.error  # or it would seem to have ended well
        return loop.listed(monotonic() - self._lives[run_id].began)

    def begin(self, run_id: str, ask_id: str) -> None:
        life = self._lives[run_id]
        with self._lock:
            loop = self.loops[run_id]
            if loop.run.stop_reason is not None:
                raise ParentEndedError  # its thread notices now
            if self.lost is not None:
                raise self.lost
            loop.begin(ask_id, monotonic() - life.began)
            if life.is_heard:
                self._hand_over(run_id)

    def is_heard(self, run_id: str) -> bool:
        """Whether somebody listens to a run, in the thread in which things happen."""
        return bool(self._lives[run_id].heard)

    def begin_alone(self, run_id: str, kinds: tuple[type[Ask], ...]) -> Ask | None:
        """Begin what is asked for, if it is one thing of these kinds, can be done in place, and may take its time."""
        life = self._lives[run_id]
        with self._lock:
            loop, now = self.loops[run_id], monotonic() - life.began
            ask = loop.only_ask(now)
            if not isinstance(ask, kinds) or (self.leave is not None and self.is_leaving):
                return None
            if isinstance(ask, AskTool) and ask.seconds != inf:
                return None
            if loop.run.stop_reason is not None:
                raise ParentEndedError
            if self.lost is not None:
                raise self.lost
            loop.begin(ask.id, now)
            if life.is_heard:
                self._hand_over(run_id)
            return ask

    def tell(self, run_id: str, ask_id: str, outcome: Any) -> None:
        life = self._lives[run_id]
        with self._lock:
            loop = self.loops[run_id]
            if loop.run.stop_reason is not None:
                raise ParentEndedError
            if self.lost is not None:
                raise self.lost
            try:
                loop.tell(ask_id, outcome, monotonic() - life.began)
            except StoreError as error:
                self.lose(error)
                raise
            finally:
                if life.is_heard:
                    self._hand_over(run_id)
            if len(self.loops) > 1 and loop.run.stop_reason is not None:
                # A tool whose time was up, or a thread of its own, may still be at it.
                below = self._stop_below(run_id)
                loop.count_open_branches()
                for each in below:
                    self._hand_over(each)

    def stop(self, run_id: str, error: BaseException) -> None:
        """A run ends here; so do those below it. Who listens hears of it when all have ended."""
        with self._lock:
            below, loop = self._stop_below(run_id), self.loops[run_id]
            loop.stop(error, self.now(run_id))
            loop.count_open_branches()
            if error is self.lost:  # though it had ended: its end was not kept
                loop.spoil(error, self.now(run_id))
            for each in (*below, run_id):
                self._hand_over(each)

    # Waiting for people

    def set_aside(self, run_id: str, ask_id: str) -> None:
        """What was begun waits for people; it is done anew when the run goes on."""
        with self._lock:
            self.loops[run_id].set_aside(ask_id)

    def settle(self, run_id: str) -> bool:
        """Whether there are branches that begin now, since all else waits for people."""
        with self._lock:
            return self.loops[run_id].settle(self.now(run_id))

    def rest(self, run_id: str) -> None:
        """Nothing in the tree can go on without people: every record is closed, and says what its run waits for."""
        with self._lock:
            resting = [each for each in (run_id, *self._below(run_id)) if not self.loops[each].is_over]
            asked = {each: self.loops[each].requests() for each in resting}
            requests = [request for each in resting for request in asked[each]]
            check_pause(self.loops[run_id], requests, can_rest=self.can_rest)
            for each in reversed(resting):
                loop = self.loops[each]
                below = [request for other in self._below(each) for request in asked.get(other, ())]
                loop.rest([*asked[each], *below], self.now(each))
                loop.count_open_branches()
            for each in resting:
                self._hand_over(each)

    def _stop_below(self, run_id: str) -> list[str]:
        """End what is below a run that ends; who listens is still to hear of it."""
        below = [each for each in reversed(list(self._below(run_id))) if not self.loops[each].is_over]
        for each in below:
            self.loops[each].stop(ParentEndedError(), self.now(each))
            self.loops[each].count_open_branches()
            self.close(each)
        return below

    def spoil(self, run_id: str, error: BaseException) -> None:
        """A run that had ended well has failed after all."""
        with self._lock:
            self.loops[run_id].spoil(error, self.now(run_id))
            self._hand_over(run_id)

    def close(self, run_id: str) -> None:
        """A run has ended: its record is complete, and its own thread changes it no more."""
        life, loop = self._lives.get(run_id), self.loops[run_id]
        if life is not None and not life.is_closed:
            life.is_closed = True
            close_record(loop.run, loop.plan.agent, life.began, life.where)
            if run_id != self.root:
                self.end_trace(run_id)

    def end_trace(self, run_id: str) -> None:
        """Nothing more happens in a run; of the root, when its end is kept or could not be."""
        if self.trace is not None:
            self.trace.close(run_id)

    def _alive(self, run_id: str) -> Machine:
        loop = self.loops[run_id]
        if loop.run.stop_reason is not None:  # ended from above, and its thread notices now
            raise ParentEndedError
        return loop

    # Its branches

    def branch(self, context: BranchContext, plan: Plan) -> None:
        """A branch stands in the tree, below the run that it was born in."""
        with self._lock:
            parent = self._alive(context.parent_id)
            saved = self._saved.pop(context.run_id, None)
            if saved is not None:
                whole = parent.branch_plan(context, plan)
                with self._vital():
                    child = load(whole, saved, whole.deps)
            else:
                child = parent.branch(context, plan)
            self.loops[context.run_id] = child
            self._branches.setdefault(context.parent_id, []).append(context.run_id)
            if saved is None:
                parent.run.branches.append(child.run)
            else:
                _hang(parent.run.branches, child.run)

    def birth(self, place: CallSite, parent_id: str, place_id: str, name: str, plan: Plan, given: Any) -> BranchContext:
        """A branch that the user's code begins, inside of one of its asks."""
        with self._lock:
            parent, now = self._alive(parent_id), self.now(parent_id)
            inside, depth = self._whereabouts(place, parent_id)
            while True:
                context = parent.birth(
                    name, plan.spec.input.is_empty, given, place_id, now, inside=inside, caller_depth=depth
                )
                saved = self._saved.get(context.run_id)
                if saved is None or _is_of(saved, context, plan):
                    break
                place_id += "+"  # code that is called anew wants something else by now
            is_known = context.run_id in self._saved
            self.branch(context, plan)
            if not is_known:
                parent.branch_begun(context, now)
                self._hand_over(parent_id)
            return context

    def _whereabouts(self, place: CallSite, run_id: str) -> tuple[str | None, int]:
        """The call of a run that the user's code is inside of, if any, and how deep below all runs the code is."""
        loop = self.loops[place.run_id]
        depth = 0 if loop.context is None else loop.context.depth
        if place.run_id == run_id:
            ask = loop.asked(place.ask_id)
            return (ask.call.id if isinstance(ask, AskTool) else None), depth
        while loop.context is not None and loop.context.parent_id != run_id:
            loop = self.loops[loop.context.parent_id]
        context = loop.context
        return (None if context is None else context.call_id or context.inside), depth

    def branch_ended(self, context: BranchContext, error: BaseException | None) -> None:
        """A branch that the user's code began has ended."""
        with self._lock:
            parent, run = self.loops[context.parent_id], self.loops[context.run_id].run
            if not parent.is_over:
                result = branch_result(ToolCall(context.place, context.name), BranchEnd(run, error))
                parent.branch_ended(context, run, result, self.now(context.parent_id))
                self._hand_over(context.parent_id)

    def _below(self, run_id: str) -> Iterator[str]:
        for branch_id in tuple(self._branches.get(run_id, ())):
            yield branch_id
            yield from self._below(branch_id)

    def lineage(self, run_id: str) -> Iterator[tuple[Any, Run]]:
        """An instance and its run, and then those that it is a branch of."""
        loop: Machine | None = self.loops[run_id]
        while loop is not None:
            yield loop.plan.agent, loop.run
            loop = None if loop.context is None else self.loops.get(loop.context.parent_id)

    # What is kept of it

    def keep(self) -> Future[None] | None:
        """Commit what has happened since the last time; nothing may begin until that is safe."""
        if self.keeper is None or (self.lost is not None and not self._is_ending_cancelled()):
            return None
        with self._lock:
            try:
                if self.lost is not None:
                    self.keeper.take_back()
                return self.keeper.commit(self.loops)
            except Exception as error:  # the store may be the user's
                failure = self.not_kept(error)
                raise failure from failure.__cause__

    def not_kept(self, error: Exception) -> Exception:
        """What has happened could not be kept: the error that all of it ends with."""
        failure = error if self.keeper is None else self.keeper.failure(error)
        self.lose(failure)
        return failure

    def _is_ending_cancelled(self) -> bool:
        is_cancelled = isinstance(self.lost, RunCancelledError) and self.keeper is not None
        return is_cancelled and self.keeper is not None and self.keeper.can_end(self.loops[self.root])

    def give_back(self) -> None:
        """Nobody drives the tree after all."""
        if self.keeper is not None:
            self.keeper.give_back()

    def _cancel(self) -> None:
        """Somebody wants the tree to end, says another thread: whoever walks it is woken.

        One that cannot be, as it is in a hook of the user's, notices when that returns; everybody else is to see it
        all the same.
        """
        self.lose(cancelled_by_request(self.root))
        if self.wake is not None:
            self.wake()
        _later(_AT_ONCE, self._cancel_unheard)

    def _cancel_unheard(self) -> None:
        if self.keeper is None:
            return
        if self.is_ending:  # the end will be kept
            _later(_TO_END, self.keeper.cancel)
        else:
            self.keeper.cancel()

    def lose(self, error: Exception) -> None:
        """No run of the tree goes on: what was kept stays as it is."""
        with self._lock:
            self.lost = self.lost or error

    @contextmanager
    def _vital(self) -> Generator[None]:
        """Where a kept run does not fit its class any more, it stays as it is for a class that it fits."""
        try:
            yield
        except StoreError as error:
            self.lose(error)
            raise

    # Who listens

    def _hand_over(self, run_id: str) -> None:
        """Let the listeners hear the new entries, in order; who keeps the run hears that there are some."""
        life, entries = self._lives.get(run_id), self.loops[run_id].journal.entries
        if self.keeper is not None:
            self.keeper.changed.add(run_id)
            if life is not None and not life.heard:
                life.handed = len(entries)
                return
        if life is not None:
            try:
                life.hand_over(run_id, entries, is_lost=self.lost is not None)
            except Exception as error:  # of a vital listener
                self.lost = error
                raise


def _later(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def _is_of(saved: Mapping[str, Any], context: BranchContext, plan: Plan) -> bool:
    """Whether this is the branch that was begun at this place, and not another class or input by now.

    The file of the class may have another name, `__main__` for one.
    """
    is_same = saved["module"].partition(":")[2] == plan.module.partition(":")[2]
    return bool(is_same and saved["run"]["input"] == to_saved_data(context.input))


def _hang(branches: list[Run], run: Run) -> None:
    """Put a run below its parent; where its saved record hangs, in place of that."""
    for at, record in enumerate(branches):
        if record.id == run.id:
            run.branches += record.branches
            branches[at] = run
            return
    branches.append(run)


def raise_if_late(loop: Machine, error: ModelError | None, now: float) -> None:
    """A request that fails, or still goes on, when the time of the run is up has failed of that."""
    if late := loop.budgets.too_late(now):
        raise late from error
