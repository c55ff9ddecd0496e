"""The asks that a driver can perform next, and what an outcome or an error means for the runs around it.

Both drivers own a schedule. It covers one run and the branches that its model calls: a branch is one more machine whose
asks are performed. A branch that user code starts has its own driver, but belongs to the same tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

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
from acorn.stores.port import RunCancelledError
from acorn.types import ToolResult


class _RunningAsk(Protocol):
    """An ask that a driver performs in a thread or a task."""

    def cancel(self) -> object: ...


R = TypeVar("R", bound=_RunningAsk)


@dataclass(eq=False, slots=True)
class Schedule(Generic[R]):
    """The state of one drive: its active runs, and the asks that are running, paused or finished."""

    tree: Tree
    root: str
    """The id of the run that is driven."""
    active: list[str]
    """The runs that have not ended, each before its branches. At first, the root only."""
    unchecked: dict[str, None]
    """The runs that may have new asks, in order. At first, the root only."""
    running: dict[AskKey, R] = field(default_factory=dict[AskKey, R])
    """The asks that are performed in other threads or tasks."""
    paused: set[AskKey] = field(default_factory=set[AskKey])
    """The asks that wait for human input. They are performed again when the run is resumed."""
    ended: list[tuple[str, Exception | None]] = field(default_factory=list[tuple[str, Exception | None]])
    """The branches that have ended, each with its error. Their parents do not know it yet."""
    is_over: bool = False
    _calls: dict[str, tuple[str, AskBranch]] = field(default_factory=dict[str, tuple[str, AskBranch]])
    """By the id of a branch, its parent and the parent's ask."""
    _failed: list[str] = field(default_factory=list[str])
    """The run whose error ends the drive, and its parents."""
    _checked: dict[str, Mapping[str, Ask]] = field(default_factory=dict[str, Mapping[str, Ask]])
    """By run, the asks that were all handed out."""

    def collect_asks(self) -> list[tuple[Machine, Ask]]:
        """Return the asks that can be performed now. Branches are started here, and their first asks are included."""
        tree, running = self.tree, self.running
        if tree.should_hand_back and self.root == tree.root:
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
                asks = tree.asks(run_id)  # They change if a branch could not start.
            machine, checked[run_id] = tree.machines[run_id], asks
            ready += [
                (machine, ask)
                for ask in asks.values()
                if not isinstance(ask, AskBranch) and (run_id, ask.id) not in running
            ]
            self.unchecked.pop(run_id, None)
            unchecked += self.unchecked
            self.unchecked = {}
            if self.ended:  # Their parents must be told first.
                self.unchecked = dict.fromkeys(unchecked)
                return []
        self._checked |= checked
        if self.paused:
            ready = [(machine, ask) for machine, ask in ready if (machine.run.id, ask.id) not in self.paused]
        return ready

    def _hand_back(self) -> None:
        """Begin nothing more. When the running asks have ended, hand the rest of the run back."""
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
        if child.is_over:  # It had ended when it was saved, but its parent did not know it yet.
            error_before = child.run.error
            self.ended.append((child_id, error_before if isinstance(error_before, Exception) else None))
            return
        self.unchecked[child_id] = None
        try:
            tree.open(child_id)
        except Exception as error:
            self.fail(child_id, error)

    def finish_or_pause(self) -> bool:
        """Finish or pause when no ask is left. Return False if branches started that were held back until now."""
        tree = self.tree
        root = tree.machines[self.root]
        if root.is_over:
            return True
        started = [run_id for run_id in self.active if tree.start_held_branches(run_id)]
        self.unchecked.update(dict.fromkeys(started))
        if started:
            return False
        if root.context is None:  # Otherwise the user code that started this branch pauses too.
            tree.pause(self.root)
        return True

    # The outcome of an ask

    def tell(self, run_id: str, ask_id: str, outcome: object) -> None:
        """Give the outcome of an ask to its machine."""
        try:
            self.tree.tell(run_id, ask_id, outcome)
        except Exception as error:
            self.fail(run_id, error)
        else:
            self.unchecked[run_id] = None
            if run_id != self.root and self.tree.machines[run_id].is_over:
                self.ended.append((run_id, None))

    def on_failure(self, run_id: str, ask_id: str, error: BaseException) -> None:
        """Handle an ask without an outcome: it waits for human input, or its run fails."""
        if _is_pause(error):
            self.paused.add((run_id, ask_id))
            self.tree.postpone(run_id, ask_id)
        else:
            self.fail(run_id, error)

    def fail(self, run_id: str, error: BaseException) -> None:
        """Fail a run. The parent of a branch gets the error as a result. Any other error ends the drive."""
        if _is_pause(error):
            error = AcornError(
                "A branch that `on_stream` started waits for human input, but its chunks cannot be shown twice. Start "
                "the branch in a tool or in `on_step`."
            )
        if run_id != self.root and isinstance(error, Exception) and error is not self.tree.fatal_error:
            self.tree.stop(run_id, error)
            below = [each for each in reversed(self.active) if each != run_id and run_id in self._parents(each)]
            for each in (*below, run_id):
                self._cancel_asks(each)
            earlier_errors = dict(self.ended)
            others = [each for each in self.ended if each[0] != run_id and each[0] not in below]
            ended_below = [(each, None) for each in below]
            self.ended = [*others, *ended_below, (run_id, earlier_errors.get(run_id) or error)]
            return
        self._failed = [run_id, *self._parents(run_id)]
        raise error

    def _parents(self, run_id: str) -> list[str]:
        """Return the parents of a branch, the nearest first, up to the root of the drive."""
        parents: list[str] = []
        while run_id != self.root:
            run_id = self._calls[run_id][0]
            parents.append(run_id)
        return parents

    def _cancel_asks(self, run_id: str) -> None:
        for key in [key for key in self.running if key[0] == run_id]:
            self.running.pop(key).cancel()

    def end_branch(self, run_id: str, error: Exception | None) -> tuple[Machine, AskBranch, ToolResult] | None:
        """Tell its parent that a branch has ended and its sources are closed. Return the result to show.

        Return None if the parent ended before.
        """
        self.active.remove(run_id)
        self.unchecked.pop(run_id, None)
        self._checked.pop(run_id, None)
        self.tree.close(run_id)
        parent_id, ask = self._calls.pop(run_id)
        if parent_id != self.root and self.tree.machines[parent_id].is_over:
            return None
        end = BranchEnd(self.tree.machines[run_id].run, error)
        self.tell(parent_id, ask.id, end)
        return self.tree.machines[parent_id], ask, branch_result(ask.call, end)

    # The end of the drive

    def start_ending(self) -> None:
        """Accept no more outcomes. A request to cancel the tree has been noticed."""
        self.is_over = True
        if self.root == self.tree.root:
            self.tree.is_ending = True

    def stop_runs(self, error: BaseException, returned: Iterable[tuple[AskKey, object]]) -> None:
        """End all runs of the drive with an error. Outcomes that have already returned are stored."""
        try:
            for key, outcome in returned:
                with suppress(Exception, StopSignal):  # The machine may have ended, or may reject the outcome.
                    self.tree.tell(*key, outcome)
        finally:
            for run_id in (*self._failed, self.root):
                self.tree.stop(run_id, error)

    def fail_last_commit(self, error: Exception) -> None:
        """Fail a run whose end could not be stored. An earlier error of the run stays its error."""
        run = self.tree.machines[self.root].run
        first = run.error
        if first is None:
            self.tree.fail_after_end(self.root, error)
            attach_run(error, run)
            raise error
        if isinstance(first, RunCancelledError):  # A cancelled run must not be written to.
            return
        first.add_note(f"The end of the run could not be stored either: {describe_error(error)}")

    def release(self) -> None:
        """Release the claim of the root, and end its trace."""
        tree = self.tree
        if tree.committer is not None and self.root == tree.root:
            tree.committer.end(tree.fatal_error)
        if tree.trace is not None:
            tree.trace.close(self.root)


def _is_pause(error: BaseException) -> bool:
    """Return whether user code ended because its branches wait for human input. Task groups wrap such signals."""
    if _is_group(error):
        return error.split(lambda member: is_signal(member, "paused"))[1] is None
    return is_signal(error, "paused")


def _is_group(error: BaseException) -> TypeIs[BaseExceptionGroup]:
    return isinstance(error, BaseExceptionGroup)


class SourceCloseErrors:
    """Collects the errors of closing tool sources. The first one fails a run that had no error before."""

    def __init__(self, tree: Tree, run_id: str) -> None:
        self._tree, self._run_id = tree, run_id
        self.error: Exception | None = None
        """The error that the run failed with."""

    def __call__(self, error: BaseException) -> None:
        first = self._tree.machines[self._run_id].run.error
        if first is not None and isinstance(error, Exception):
            first.add_note(f"A tool source could not be closed either: {error!r}")
            return
        self._tree.fail_after_end(self._run_id, error)
        if not isinstance(error, Exception):
            raise error
        self.error = error


def raise_original(error: RuntimeError, machine: Machine, kind: type[Exception]) -> None:
    """Raise the `StopIteration` of a hook, which Python turns into a `RuntimeError` when it leaves a generator."""
    cause = error.__cause__
    if isinstance(cause, kind):
        machine.run.error = cause
        cause.run = machine.run  # type: ignore[attr-defined]
        raise cause from None
