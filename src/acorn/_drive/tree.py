"""A run and its branches in one object, which updates their state machines and publishes their journal entries.

Every driver of the run or of a branch uses this object, from any thread. It contains the branches that the model calls
and the branches that user code starts.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, NoReturn

from pydantic import BaseModel

from acorn._base.clock import current_clock
from acorn._base.interrupts import StopSignal, is_signal
from acorn._base.log import logger
from acorn._declare.module_base import current_places, remember_run
from acorn._drive.commit import RunCommitter
from acorn._drive.driven_run import DrivenRun, attach_run, log_entry, publish
from acorn._drive.pause import SiblingBranches, check_answers
from acorn._formats.blobs import to_saved_data
from acorn._history.transcript import finish_call
from acorn._machine.asks import Ask, AskTool, BranchEnd
from acorn._machine.branches import branch_result
from acorn._machine.machine import Machine
from acorn._machine.plan import Plan
from acorn._machine.saved_run import attach_branch_records, load
from acorn._machine.state import BranchContext
from acorn._telemetry import OTEL_API, VARIABLE, check_setting, start_trace
from acorn.errors import ModelError, StoreError
from acorn.record import CallSite, Run, active_listeners, add_to_captures, current_call_site
from acorn.stores.port import PendingCommit, run_cancelled_error
from acorn.types import JsonObject, ToolCall

if TYPE_CHECKING:
    from acorn._telemetry.trace import Trace

_NO_SPAN = nullcontext()


class Tree:
    """A run and its branches: the state machines of all of them, with a lock for access from several threads."""

    def __init__(
        self,
        root: Machine,
        saved: Mapping[str, JsonObject] | None = None,
        answers: Mapping[str, object] | None = None,
        committer: RunCommitter | None = None,
        stored_answers: Mapping[str, object] | None = None,
    ) -> None:
        if VARIABLE in os.environ:
            check_setting()
        self.trace: Trace | None = None
        """The object that creates telemetry spans. None if the program does not use OpenTelemetry."""
        self._saved = dict(saved or {})
        """A dict that maps run ids to saved branches that are not loaded yet. Their parents load them later."""
        if answers:
            check_answers(root, self._saved, answers)
        self._answers = {**(stored_answers or {}), **(answers or {})}
        """A dict that maps request ids to the human answers that arrived during the pause."""
        self.can_pause = root.spec.store is not None
        if self._saved:
            attach_branch_records(root.run, self._saved.values())
        self.machines: dict[str, Machine] = {root.run.id: root}
        self.driven: dict[str, DrivenRun] = {}
        self._branches: dict[str, list[str]] = {}
        """A dict that maps the id of a run to the ids of its direct branches."""
        self.siblings = SiblingBranches()
        self._lock = threading.RLock()
        self._clock = current_clock()
        self.fatal_error: Exception | None = None
        """The error of the store, or a cancellation. It stops all runs of the tree."""
        self.root = root.run.id
        self.committer = committer
        self.wake: Callable[[], None] | None = None
        """A function that ends the wait of the root's driver, from any thread. `fatal_error` is set before the call."""
        self.is_ending = False
        """Whether the driver of the root has begun to end the run."""
        self.stop_event: threading.Event | None = None
        """If this event is set, the driver stops at its next commit and returns the run to the queue."""

    def now(self, run_id: str) -> float:
        """Return the time in seconds on the clock of a run.

        The clock runs only while a driver drives the run.
        """
        driven = self.driven.get(run_id)
        return self.machines[run_id].run.seconds if driven is None else self._clock.monotonic() - driven.clock_start

    # Driving one run

    def open(self, run_id: str) -> None:
        """Start a new run or continue a loaded run: start its clock, and register its listeners."""
        with self._lock:
            machine, committer = self._running(run_id), self.committer
            run = machine.run
            run.started = run.started or datetime.now(UTC)
            clock_start = self._clock.monotonic() - run.seconds
            add_to_captures(run)
            listeners = active_listeners.get()
            if logger.isEnabledFor(logging.INFO):
                listeners = (*listeners, log_entry)
            if run_id == self.root:
                if committer is not None:
                    committer.begin(self._cancel)
                if OTEL_API in sys.modules:
                    first_span = None if committer is None else committer.first_span
                    self.trace = start_trace(self.machines, self.root, first_span)
            if self.trace is not None:
                self.trace.open(run_id)
                if run_id == self.root and committer is not None and committer.first_span is None:
                    committer.first_span = self.trace.root_traceparent()
                listeners = (*listeners, self.trace.on_entry)
            is_observed = bool(listeners) or committer is not None
            driven = DrivenRun(clock_start, current_places(), listeners, len(run.journal.entries), is_observed)
            self.driven[run_id] = driven
            now = self._clock.monotonic() - clock_start
            try:
                machine.start(now, datetime.now(UTC))
            except StoreError as error:  # The stored run does not fit its class. It stays stored for a class that fits.
                self.abort(error)
                raise
            if self._answers:
                machine.take_answers(self._answers, now)
            if driven.is_observed:
                self._publish(run_id)

    def span(self, run_id: str, ask_id: str) -> AbstractContextManager[None]:
        """Return a context manager in which the telemetry span of a model request is current.

        Spans of the HTTP client then become children of this span.
        """
        return _NO_SPAN if self.trace is None else self.trace.inside(run_id, ask_id)

    def asks(self, run_id: str) -> Mapping[str, Ask]:
        """Return the operations that a run needs next, as a dict that maps ask ids to asks.

        While the operations do not change, the same dict object is returned.
        """
        machine = self.machines[run_id]
        error = machine.run.error
        if error is not None and is_signal(error, "parent_ended"):
            raise error  # Otherwise the run would seem to have ended without an error.
        return machine.listed(self._clock.monotonic() - self.driven[run_id].clock_start)

    def begin(self, run_id: str, ask_id: str) -> None:
        """Record in the state machine of a run that a driver begins to perform an ask (a requested operation)."""
        driven = self.driven[run_id]
        with self._lock:
            machine = self._running(run_id)
            if self.fatal_error is not None:
                raise self.fatal_error
            machine.begin(ask_id, self._clock.monotonic() - driven.clock_start)
            if driven.is_observed:
                self._publish(run_id)

    def begin_only_ask(self, run_id: str, kinds: tuple[type[Ask], ...]) -> Ask | None:
        """Begin and return the only ask (requested operation) of a run.

        Return None if the run has several asks, if the type of the ask is not in `kinds`, if the ask is a tool call
        with a time limit, or if the driver should stop.
        """
        driven = self.driven[run_id]
        with self._lock:
            machine, now = self.machines[run_id], self._clock.monotonic() - driven.clock_start
            asks = list(machine.listed(now).values())
            ask = asks[0] if len(asks) == 1 else None
            if not isinstance(ask, kinds) or (self.stop_event is not None and self.stop_event.is_set()):
                return None
            if isinstance(ask, AskTool) and ask.seconds != inf:
                return None
            if machine.run.stop_reason is not None:
                raise StopSignal("parent_ended")
            if self.fatal_error is not None:
                raise self.fatal_error
            machine.begin(ask.id, now)
            if driven.is_observed:
                self._publish(run_id)
            return ask

    def tell(self, run_id: str, ask_id: str, outcome: object) -> None:
        """Pass the result of an ask (a requested operation) to the state machine of its run."""
        driven = self.driven[run_id]
        with self._lock:
            machine = self.machines[run_id]
            if machine.run.stop_reason is not None:
                raise StopSignal("parent_ended")
            if self.fatal_error is not None:
                raise self.fatal_error
            try:
                machine.tell(ask_id, outcome, self._clock.monotonic() - driven.clock_start)
            except StoreError as error:
                self.abort(error)
                raise
            finally:
                if driven.is_observed:
                    self._publish(run_id)
            if len(self.machines) > 1 and machine.run.stop_reason is not None:
                # A tool that timed out, or a thread that it started, may still run a branch.
                stopped = self._stop_below(run_id)
                machine.branches.count_open()
                for branch_id in stopped:
                    self._publish(branch_id)

    def stop(self, run_id: str, error: BaseException) -> None:
        """End a run and its branches with an error.

        The listeners are called only after all these runs have ended.
        """
        with self._lock:
            stopped, machine = self._stop_below(run_id), self.machines[run_id]
            machine.stop(error, self.now(run_id))
            machine.branches.count_open()
            if error is self.fatal_error:  # The run may have ended already, but its end was not stored.
                machine.fail_after_end(error, self.now(run_id))
            for stopped_id in (*stopped, run_id):
                self._publish(stopped_id)

    def fail_after_end(self, run_id: str, error: BaseException) -> None:
        """Mark a run as failed that had ended without an error."""
        with self._lock:
            self.machines[run_id].fail_after_end(error, self.now(run_id))
            self._publish(run_id)

    def close(self, run_id: str) -> None:
        """Complete the record of a run that has ended, and set it as the last run (`agent.last`) of its agent."""
        driven, machine = self.driven.get(run_id), self.machines[run_id]
        if driven is not None and not driven.is_closed:
            driven.is_closed, run = True, machine.run
            run.seconds = self._clock.monotonic() - driven.clock_start
            if run.error is not None:
                attach_run(run.error, run)
            remember_run(run, machine.plan.agent, driven.places)
            if self.trace is not None and run_id != self.root:  # The root's trace ends after the last commit.
                self.trace.close(run_id)

    def remember(self, run_id: str) -> None:
        """Set a run that was loaded after its end as the last run (`agent.last`) of its agent."""
        machine = self.machines[run_id]
        remember_run(machine.run, machine.plan.agent, current_places())

    def raise_if_late(self, run_id: str, error: ModelError | None) -> None:
        """Raise a `LimitError` if the time limit of the run has passed.

        `error` is the error of the failed model request, if any. It becomes the cause of the `LimitError`.
        """
        if late := self.machines[run_id].budgets.too_late(self.now(run_id)):
            raise late from error

    def _running(self, run_id: str) -> Machine:
        """Return the state machine of a run.

        Raise a `StopSignal` if the run has already ended, because its parent ended.
        """
        machine = self.machines[run_id]
        if machine.run.stop_reason is not None:
            raise StopSignal("parent_ended")
        return machine

    def _stop_below(self, run_id: str) -> list[str]:
        """End all branches below a run, and return their ids.

        The caller must then publish the journal entries of these branches.
        """
        stopped = [branch for branch in reversed(list(self._below(run_id))) if not self.machines[branch].is_over]
        for branch_id in stopped:
            machine = self.machines[branch_id]
            machine.stop(StopSignal("parent_ended"), self.now(branch_id))
            machine.branches.count_open()
            self.close(branch_id)
        return stopped

    # Pausing for human input

    def postpone(self, run_id: str, ask_id: str) -> None:
        """Withdraw an operation that waits for human input, so that it is performed again when the run is resumed."""
        with self._lock:
            self.machines[run_id].state.open_asks.pop(ask_id, None)

    def start_held_branches(self, run_id: str) -> bool:
        """Start branches that waited for the other tool calls of their step, because those calls wait for human input.

        Return True if a branch started.
        """
        with self._lock:
            return self.machines[run_id].start_waiting_branches(self.now(run_id))

    def pause(self, run_id: str) -> None:
        """Pause a run and its branches when all of them wait for human input.

        Each run record receives the unanswered requests of its run and of the branches below that run.
        """
        with self._lock:
            paused = [paused_id for paused_id in (run_id, *self._below(run_id)) if not self.machines[paused_id].is_over]
            requests = {paused_id: self.machines[paused_id].calls.open_requests() for paused_id in paused}
            all_requests = [request for paused_id in paused for request in requests[paused_id]]
            if not self.can_pause:
                owner = self.machines[run_id].spec.owner
                raise StoreError(
                    f"`{owner}` cannot pause for human input ({all_requests[0].question}): it has no store. Set "
                    f"`store` on `{owner}`, or return an answer from `on_human`."
                )
            for paused_id in reversed(paused):
                machine = self.machines[paused_id]
                below = [request for branch_id in self._below(paused_id) for request in requests.get(branch_id, ())]
                machine.pause([*requests[paused_id], *below], self.now(paused_id))
                machine.branches.count_open()
            for paused_id in paused:
                self._publish(paused_id)

    # Branches

    def branch(self, context: BranchContext, plan: Plan) -> None:
        """Add a branch to its parent: create a new branch, or load the branch if it was saved."""
        with self._lock:
            parent = self._running(context.parent_id)
            saved = self._saved.pop(context.run_id, None)
            if saved is None:
                child = parent.branch(context, plan)
            else:
                branch_plan = parent.branches.plan_for(context, plan)
                try:
                    child = load(branch_plan, saved, branch_plan.deps)
                except StoreError as error:  # The branch does not fit its class. It stays stored for a class that fits.
                    self.abort(error)
                    raise
            self.machines[context.run_id] = child
            self._branches.setdefault(context.parent_id, []).append(context.run_id)
            # The record comes last: after Ctrl-C, every branch in a record must be known here, so that it is stopped.
            if saved is None:
                parent.run.branches.append(child.run)
            else:
                _replace_record(parent.run.branches, child.run)

    def new_branch(
        self, site: CallSite, parent_id: str, place_id: str, name: str, plan: Plan, value: BaseModel
    ) -> BranchContext:
        """Add a branch that user code starts, and return its `BranchContext` (its id, input and parent).

        `site` is the tool call or hook that contains the user code.
        """
        with self._lock:
            parent, now = self._running(parent_id), self.now(parent_id)
            call_id, depth = self._enclosing_call(site, parent_id)
            has_input = not plan.spec.input.is_empty
            while True:
                context = parent.branches.new_context(
                    name, value, place_id, now, has_input=has_input, inside=call_id, caller_depth=depth
                )
                saved = self._saved.get(context.run_id)
                if saved is None or _is_same_branch(saved, context, plan):
                    break
                place_id += "+"  # The code runs again, and it starts another branch than the saved branch.
            self.branch(context, plan)
            if saved is None:
                parent.branches.start(context, now)
                self._publish(parent_id)
            return context

    def _enclosing_call(self, site: CallSite, run_id: str) -> tuple[str | None, int]:
        """Return the id of the tool call that contains a call site, and the branch depth of the call site.

        Only tool calls of the run `run_id` count. The id is None if no such tool call contains the call site.
        """
        machine = self.machines[site.run_id]
        depth = 0 if machine.context is None else machine.context.depth
        if site.run_id == run_id:
            ask = machine.listed(machine.journal.now).get(site.ask_id)
            return (ask.call.id if isinstance(ask, AskTool) else None), depth
        while machine.context is not None and machine.context.parent_id != run_id:
            machine = self.machines[machine.context.parent_id]
        context = machine.context
        return (None if context is None else context.call_id or context.inside), depth

    def finish_branch(self, context: BranchContext, error: BaseException | None) -> None:
        """Pass the result of a branch that user code started to the parent of the branch."""
        with self._lock:
            parent, run = self.machines[context.parent_id], self.machines[context.run_id].run
            if not parent.is_over:
                result = branch_result(ToolCall(context.place, context.name), BranchEnd(run, error))
                parent.branches.finish(context, run, finish_call(result), self.now(context.parent_id))
                self._publish(context.parent_id)

    def _below(self, run_id: str) -> Iterator[str]:
        for branch_id in tuple(self._branches.get(run_id, ())):
            yield branch_id
            yield from self._below(branch_id)

    def lineage(self, run_id: str) -> list[tuple[object, Run]]:
        """Return the agent and the record of a run, and then those of each parent, up to the top-level run.

        The result is a list: Ctrl-C would be lost while Python closes a generator whose caller left the loop early.
        """
        lineage: list[tuple[object, Run]] = []
        machine: Machine | None = self.machines[run_id]
        while machine is not None:
            lineage.append((machine.plan.agent, machine.run))
            machine = None if machine.context is None else self.machines.get(machine.context.parent_id)
        return lineage

    # Storing

    def commit(self, *, waits: bool = True) -> PendingCommit | None:
        """Pass all changes to the store, and wait until they are stored, as they must be before an operation begins.

        If the store fails, abort the run and its branches, and raise a `StoreError`. If `waits` is False, return the
        commit without waiting, or None if the run has no store or no changes. The caller then calls `check_commit`.
        """
        committer, fatal_error = self.committer, self.fatal_error
        if committer is None:
            return None
        if fatal_error is not None and not committer.can_store_end(self.machines[self.root], fatal_error):
            return None
        try:
            with self._lock:
                pending = committer.commit(self.machines)
            if waits and pending is not None:
                pending.result()
        except Exception as error:  # The store may be user code.
            self._fail_commit(committer, error)
        return pending

    def check_commit(self, pending: PendingCommit) -> None:
        """Do what `commit` does if the store fails, for a commit that has ended."""
        assert self.committer is not None
        try:
            pending.result()
        except Exception as error:
            self._fail_commit(self.committer, error)

    def _fail_commit(self, committer: RunCommitter, error: Exception) -> NoReturn:
        failure = committer.failure(error)
        self.abort(failure)
        raise failure from failure.__cause__

    def release(self) -> None:
        """Release the claim on a run that was loaded but that no driver will drive."""
        if self.committer is not None:
            self.committer.release()

    def _cancel(self) -> None:
        """Cancel the run and its branches because another process requested it, and wake the driver.

        The heartbeat thread calls this method. A driver that is executing a hook cannot be woken, so it ends the run
        only when the hook returns. Until then, the store already reports the run as cancelled.
        """
        self.abort(run_cancelled_error(self.root))
        if self.wake is not None:
            self.wake()
        if self.committer is not None:
            self.committer.cancel_soon(lambda: self.is_ending)

    def abort(self, error: Exception) -> None:
        """Set the fatal error, with which all drivers end the run and its branches.

        The stored state of the runs does not change.
        """
        with self._lock:
            self.fatal_error = self.fatal_error or error

    def _publish(self, run_id: str) -> None:
        """Call the listeners of a run with its new journal entries, and mark the run for the next commit."""
        driven, entries = self.driven.get(run_id), self.machines[run_id].journal.entries
        if self.committer is not None:
            self.committer.changed.add(run_id)
            if driven is not None and not driven.listeners:
                driven.published = len(entries)
                return
        if driven is not None:
            publish(driven, entries)


def tree_of(site: CallSite) -> Tree:
    """Return the `Tree` (a run and its branches) in which a call site is located."""
    assert isinstance(site.tree, Tree)
    return site.tree


def current_machine() -> Machine | None:
    """Return the state machine of the innermost run that executes the calling code, or None outside of a run."""
    site = current_call_site()
    return None if site is None else tree_of(site).machines[site.run_id]


def _is_same_branch(saved: JsonObject, context: BranchContext, plan: Plan) -> bool:
    """Return True if a saved branch has the same class and input as a branch that user code starts now."""
    # The file of the class may have another name now, such as `__main__`.
    is_same_class = saved["module"].partition(":")[2] == plan.module.partition(":")[2]
    return bool(is_same_class and saved["run"]["input"] == to_saved_data(context.input))


def _replace_record(branches: list[Run], run: Run) -> None:
    """Replace the saved record of a branch by its loaded record, in the parent's list of branches."""
    for index, record in enumerate(branches):
        if record.id == run.id:
            run.branches += record.branches
            branches[index] = run
            return
    branches.append(run)
