"""The schedule of a driver: the operations to perform next, and the effects of their results on other runs.

An ask is an operation that a run requests, such as a model request or a tool call. Each driver has a schedule. A
schedule contains one run and the branches that its model calls, because the same driver performs the asks of these
branches. A branch that user code starts has its own driver and schedule, but is part of the same `Tree`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from typing_extensions import TypeIs

from acorn._base.interrupts import StopSignal, is_signal
from acorn._drive.driven_run import attach_run
from acorn._drive.pause import AskKey
from acorn._drive.tree import Tree
from acorn._formats.json import describe_error
from acorn._machine.asks import Ask, AskBranch, BranchEnd
from acorn._machine.branches import branch_result
from acorn._machine.machine import Machine
from acorn.errors import AcornError
from acorn.record import Run
from acorn.stores.port import RunCancelledError
from acorn.types import ToolResult


class _Cancellable(Protocol):
    """An object that cancels an ask, such as a future or a task."""

    def cancel(self) -> object: ...


@dataclass(eq=False, slots=True)
class RunningAsk:
    """An ask (an operation that a run requests) that a driver performs, with its outcome."""

    run_id: str
    ask: Ask
    canceller: _Cancellable | None = None
    deadline: float = math.inf
    """The time at which a sync driver stops waiting for a tool."""
    value: Any = None
    error: BaseException | None = None
    has_ended: bool = False
    """Whether the outcome is known. The state machine may not have received it yet."""

    @property
    def key(self) -> AskKey:
        return self.run_id, self.ask.id

    def cancel(self) -> None:
        if self.canceller is not None:
            self.canceller.cancel()


@dataclass(eq=False, slots=True)
class Schedule:
    """The state of one driver: its active runs, its running and paused operations, and its ended branches."""

    tree: Tree
    root: str
    """The id of the run that the caller started or resumed."""
    active: list[str]
    """The ids of the runs that have not ended, each run before its branches. The list starts with the root only."""
    unchecked: dict[str, None]
    """The ids of the runs that may have new asks, in order. The dict starts with the root only."""
    running: dict[AskKey, RunningAsk] = field(default_factory=dict[AskKey, RunningAsk])
    """A dict that maps ask keys to the asks that other threads or tasks perform."""
    paused: set[AskKey] = field(default_factory=set[AskKey])
    """The keys of the asks that wait for human input. The driver performs them again when the run is resumed."""
    ended: list[tuple[str, Exception | None]] = field(default_factory=list[tuple[str, Exception | None]])
    """The ids of ended branches whose parents have no result yet, each with the error of the branch or None."""
    is_over: bool = False
    _calls: dict[str, tuple[str, AskBranch]] = field(default_factory=dict[str, tuple[str, AskBranch]])
    """A dict that maps the id of a branch to the id of its parent and the parent's ask for the branch."""
    _failed: list[str] = field(default_factory=list[str])
    """The ids of the run whose error ends the driver, and of its parents."""
    _checked: dict[str, Mapping[str, Ask]] = field(default_factory=dict[str, Mapping[str, Ask]])
    """A dict that maps run ids to the asks that `collect_asks` has already returned completely."""

    def collect_asks(self) -> list[tuple[Machine, Ask]]:
        """Start new branches, and return the operations that can begin now, each with the state machine of its run."""
        tree, running = self.tree, self.running
        if tree.stop_event is not None and tree.stop_event.is_set() and self.root == tree.root:
            self._hand_back()
            return []
        ready: list[tuple[Machine, Ask]] = []
        unchecked, self.unchecked = list(self.unchecked), {}
        checked: dict[str, Mapping[str, Ask]] = {}
        for run_id in unchecked:  # The list grows while it is iterated.
            asks = tree.asks(run_id)
            if asks is self._checked.get(run_id):
                continue
            while new := [a for a in asks.values() if isinstance(a, AskBranch) and a.context.run_id not in self._calls]:
                for branch in new:
                    self._start_branch(run_id, branch)
                asks = tree.asks(run_id)  # The asks change if a branch could not start.
            machine, checked[run_id] = tree.machines[run_id], asks
            ready += [
                (machine, ask)
                for ask in asks.values()
                if not isinstance(ask, AskBranch) and (run_id, ask.id) not in running
            ]
            self.unchecked.pop(run_id, None)
            unchecked += self.unchecked
            self.unchecked = {}
            if self.ended:  # The parents must receive the results of these branches first.
                self.unchecked = dict.fromkeys(unchecked)
                return []
        self._checked |= checked
        if self.paused:
            ready = [(machine, ask) for machine, ask in ready if (machine.run.id, ask.id) not in self.paused]
        return ready

    def _hand_back(self) -> None:
        """Raise a `StopSignal` that returns the run to the queue of its store, because the worker stops.

        Do nothing while an operation of the run is still in progress.
        """
        if not self.running and any(self.tree.asks(run_id) for run_id in self.active):
            raise StopSignal("handed_back")

    def _start_branch(self, run_id: str, ask: AskBranch) -> None:
        tree, child_id = self.tree, ask.context.run_id
        try:
            tree.branch(ask.context, ask.make())
        except Exception as error:  # The class and its `__init__` are user code.
            if error is tree.fatal_error:
                self.fail(run_id, error)
            self.tell(run_id, ask.id, BranchEnd(None, error))
            return
        self._calls[child_id] = (run_id, ask)
        tree.begin(run_id, ask.id)
        self.active.append(child_id)
        child = tree.machines[child_id]
        if child.is_over:  # The saved branch had ended, but its parent was saved without the result.
            error_before = child.run.error
            self.ended.append((child_id, error_before if isinstance(error_before, Exception) else None))
            return
        self.unchecked[child_id] = None
        try:
            tree.open(child_id)
        except Exception as error:
            self.fail(child_id, error)

    def finish_or_pause(self) -> bool:
        """Pause the run if it has not ended, after the driver has performed all possible operations.

        Return True if the run has ended or paused. Return False if delayed branches started instead, so that the driver
        must continue.
        """
        tree = self.tree
        root = tree.machines[self.root]
        if root.is_over:
            return True
        started = [run_id for run_id in self.active if tree.start_held_branches(run_id)]
        self.unchecked.update(dict.fromkeys(started))
        if started:
            return False
        if root.context is None:  # For a branch, the user code that started it pauses the whole tree.
            tree.pause(self.root)
        return True

    # The outcome of an ask

    def tell(self, run_id: str, ask_id: str, outcome: object) -> None:
        """Pass the result of an ask to the state machine of its run, and fail the run if that raises an error."""
        try:
            self.tree.tell(run_id, ask_id, outcome)
        except Exception as error:
            self.fail(run_id, error)
        else:
            self.unchecked[run_id] = None
            if run_id != self.root and self.tree.machines[run_id].is_over:
                self.ended.append((run_id, None))

    def on_failure(self, run_id: str, ask_id: str, error: BaseException) -> None:
        """Handle an exception of an ask: pause the ask if it waits for human input, or else fail its run."""
        if _is_pause(error):
            self.paused.add((run_id, ask_id))
            self.tree.postpone(run_id, ask_id)
        else:
            self.fail(run_id, error)

    def fail(self, run_id: str, error: BaseException) -> None:
        """Fail a run with an error.

        If a branch fails, its parent receives the error as a tool result. The error is raised and ends the driver if it
        is fatal, if it is an interrupt, or if the failed run is the one that the caller started.
        """
        if _is_pause(error):
            error = AcornError(
                "A branch that `on_stream` started waits for human input. `on_stream` cannot pause, because it would "
                "receive the same chunks again. Start the branch in a tool or in `on_step`."
            )
        if run_id != self.root and isinstance(error, Exception) and error is not self.tree.fatal_error:
            self.tree.stop(run_id, error)
            below = [other for other in reversed(self.active) if other != run_id and run_id in self._parents(other)]
            for ended_id in (*below, run_id):
                self._cancel_asks(ended_id)
            earlier_errors = dict(self.ended)
            others = [end for end in self.ended if end[0] != run_id and end[0] not in below]
            ended_below = [(branch_id, None) for branch_id in below]
            self.ended = [*others, *ended_below, (run_id, earlier_errors.get(run_id) or error)]
            return
        self._failed = [run_id, *self._parents(run_id)]
        raise error

    def _parents(self, run_id: str) -> list[str]:
        """Return the ids of a branch's parents, from the nearest parent up to the run that the caller started."""
        parents: list[str] = []
        while run_id != self.root:
            run_id = self._calls[run_id][0]
            parents.append(run_id)
        return parents

    def _cancel_asks(self, run_id: str) -> None:
        for key in [key for key in self.running if key[0] == run_id]:
            self.running.pop(key).cancel()

    def end_branch(self, run_id: str, error: Exception | None) -> tuple[Machine, str, ToolResult] | None:
        """Pass the result of an ended branch to its parent, after the tool sources of the branch were closed.

        Return the parent's state machine, the id of the parent's ask for the branch, and the result, so that the driver
        can create a stream chunk. Return None if the parent has ended.
        """
        self.active.remove(run_id)
        self.unchecked.pop(run_id, None)
        self._checked.pop(run_id, None)
        self.tree.close(run_id)
        parent_id, ask = self._calls.pop(run_id)
        if parent_id != self.root and self.tree.machines[parent_id].is_over:
            return None
        branch = self.tree.machines[run_id]
        end = BranchEnd(branch.run, error, branch.builder.model_setting)
        self.tell(parent_id, ask.id, end)
        return self.tree.machines[parent_id], ask.id, branch_result(ask.call, end)

    def on_close_error(self, run_id: str, error: BaseException) -> None:
        """Handle the error of a tool source that could not be closed.

        If the run has no error yet, it fails with this error. Otherwise its error gets a note.
        """
        first = self.tree.machines[run_id].run.error
        if first is not None and isinstance(error, Exception):
            first.add_note(f"A tool source could not be closed either: {error!r}")
            return
        self.tree.fail_after_end(run_id, error)
        if not isinstance(error, Exception):
            raise error

    # The end of the drive

    def start_ending(self) -> None:
        """Mark the driver as ending, so that it accepts no more results of operations, and cancel these operations."""
        self.is_over = True
        if self.root == self.tree.root:
            self.tree.is_ending = True
        for running in self.running.values():
            running.cancel()

    def stop_runs(self, error: BaseException) -> None:
        """End all runs of the driver with an error, after their state machines received the results that are known."""
        try:
            for running in self.running.values():
                if running.has_ended and running.error is None:
                    with suppress(Exception, StopSignal):  # The machine may have ended, or may reject the outcome.
                        self.tree.tell(*running.key, running.value)
        finally:
            for run_id in (*self._failed, self.root):
                self.tree.stop(run_id, error)

    def fail_last_commit(self, error: Exception) -> None:
        """Fail a run because the commit of its end failed.

        If the run has already failed, keep its error, and only add a note to that error.
        """
        run = self.tree.machines[self.root].run
        first = run.error
        if first is None:
            self.tree.fail_after_end(self.root, error)
            attach_run(error, run)
            raise error
        if isinstance(first, RunCancelledError):  # The store rejects the commits of a cancelled run.
            return
        first.add_note(f"The end of the run could not be stored either: {describe_error(error)}")


def _is_pause(error: BaseException) -> bool:
    """Return True if an error is the signal that branches wait for human input.

    A task group in user code may have wrapped this signal in an exception group.
    """
    if _is_group(error):
        return error.split(lambda member: is_signal(member, "paused"))[1] is None
    return is_signal(error, "paused")


def _is_group(error: BaseException) -> TypeIs[BaseExceptionGroup]:
    return isinstance(error, BaseExceptionGroup)


def raise_original(error: RuntimeError, run: Run) -> None:
    """Raise the `StopIteration` or `StopAsyncIteration` of a hook, which Python has replaced by a `RuntimeError`.

    Python replaces such an exception when it leaves a generator or a coroutine. If the `RuntimeError` has another
    cause, do nothing.
    """
    cause = error.__cause__
    if isinstance(cause, StopIteration | StopAsyncIteration):
        run.error = cause
        cause.run = run  # type: ignore[union-attr]
        raise cause from None
