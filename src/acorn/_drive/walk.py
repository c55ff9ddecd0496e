"""What both drivers share: which asks can be begun, and what an outcome or a failure means for the runs around it.

A walk drives one run and the branches that its model calls, flatly: a branch is one more machine whose asks
are performed. A branch that the user's code begins is walked by whoever called it, in the same tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from acorn._drive.commit import HandedBackError
from acorn._drive.last_run import hang_on
from acorn._drive.pause import PauseSignal
from acorn._drive.tree import ParentEndedError, Tree
from acorn._formats.json import describe_error
from acorn._machine.asks import Ask, AskBranch, BranchEnd
from acorn._machine.branches import branch_result
from acorn._machine.machine import Machine
from acorn.chunk import StreamChunk
from acorn.errors import AcornError
from acorn.stores.port import RunCancelledError
from acorn.types import ToolResult

Key = tuple[str, str]
"""A run and one of its asks."""


class Walk:
    """One run on its way, with the branches that were called."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        self.tree = tree
        self.root = run_id
        self.iterates = iterates
        self.active = [run_id]
        """The runs that go on, each before its branches."""
        self.calls: dict[str, tuple[str, AskBranch]] = {}
        """By the id of a branch, the run and the ask that it answers."""
        self.busy: dict[Key, Any] = {}
        """What is under way beside the caller."""
        self.resting: set[Key] = set()
        """What was begun and waits for people; it is done anew when the run goes on."""
        self.ended: list[tuple[str, Exception | None]] = []
        """Branches that have ended, and what each failed of; their parents are to be told."""
        self.failed: list[str] = []
        """Where something went wrong that ends all, and the runs above it."""
        self.is_over = False
        self._unseen = {run_id: None}
        """The runs that may ask for something new."""
        self._seen: dict[str, Mapping[str, Ask]] = {}
        """By run, the asks that were all begun."""

    def ready(self) -> list[tuple[Machine, Ask]]:
        """What can be begun now; branches are begun here, and their first asks are among it."""
        tree, busy = self.tree, self.busy
        if tree.is_leaving and self.root == tree.root:
            self._leave()
            return []
        found: list[tuple[Machine, Ask]] = []
        unseen, self._unseen = list(self._unseen), {}
        seen: dict[str, Mapping[str, Ask]] = {}
        for run_id in unseen:  # grows while we go through it
            asks = tree.asks(run_id)
            if asks is self._seen.get(run_id):
                continue
            while new := [a for a in asks.values() if isinstance(a, AskBranch) and a.context.run_id not in self.calls]:
                for branch in new:
                    self._begin_branch(run_id, branch)
                asks = tree.asks(run_id)  # others, where one could not begin
            loop, seen[run_id] = tree.loops[run_id], asks
            found += [(loop, a) for a in asks.values() if not isinstance(a, AskBranch) and (run_id, a.id) not in busy]
            self._unseen.pop(run_id, None)
            unseen += self._unseen
            self._unseen = {}
            if self.ended:  # which comes first
                self._unseen = dict.fromkeys(unseen)
                return []
        self._seen |= seen
        if self.resting:
            found = [(loop, ask) for loop, ask in found if (loop.run.id, ask.id) not in self.resting]
        return found

    def _leave(self) -> None:
        """Nothing more is begun here: when what is under way has ended, what is left goes on elsewhere."""
        if not self.busy and any(self.tree.asks(run_id) for run_id in self.active):
            raise HandedBackError

    def has_come_to_rest(self) -> bool:
        """Nothing can be begun: whether that is all, or branches begin now that stood behind what waits for people."""
        tree = self.tree
        root = tree.loops[self.root]
        if root.is_over:
            return True
        begun = [run_id for run_id in self.active if tree.settle(run_id)]
        self._unseen.update(dict.fromkeys(begun))
        if begun:
            return False
        if root.context is None:  # otherwise the code that began it waits as well
            tree.rest(self.root)
        return True

    def _begin_branch(self, run_id: str, ask: AskBranch) -> None:
        tree, child_id = self.tree, ask.context.run_id
        try:
            tree.branch(ask.context, ask.make())
        except Exception as error:  # the class is the user's, and so is its `__init__`
            if error is tree.lost:
                self.fail(run_id, error)
            self.take(run_id, ask.id, BranchEnd(None, error))
            return
        self.calls[child_id] = (run_id, ask)
        tree.begin(run_id, ask.id)
        self.active.append(child_id)
        child = tree.loops[child_id]
        if child.is_over:  # it had ended when it was saved, and its parent did not know yet
            failure = child.run.error
            self.ended.append((child_id, failure if isinstance(failure, Exception) else None))
            return
        self._unseen[child_id] = None
        try:
            tree.open(child_id)
        except Exception as error:
            self.fail(child_id, error)

    def streams(self, loop: Machine) -> bool:
        return self.iterates or loop.plan.on_stream is not None

    def marked(self, loop: Machine, chunk: StreamChunk) -> StreamChunk:
        """A chunk that says which branch it comes from."""
        if loop.path:
            chunk.branch, chunk.run_id = loop.path, loop.run.id
        return chunk

    # What comes of an ask

    def take(self, run_id: str, ask_id: str, outcome: Any) -> None:
        """Tell an outcome."""
        try:
            self.tree.tell(run_id, ask_id, outcome)
        except Exception as error:
            self.fail(run_id, error)
        else:
            self._unseen[run_id] = None
            if run_id != self.root and self.tree.loops[run_id].is_over:
                self.ended.append((run_id, None))

    def miss(self, run_id: str, ask_id: str, error: BaseException) -> None:
        """Nothing came of an ask: it waits for people further below, or it has failed."""
        if _is_paused(error):
            self.resting.add((run_id, ask_id))
            self.tree.set_aside(run_id, ask_id)
        else:
            self.fail(run_id, error)

    def fail(self, run_id: str, error: BaseException) -> None:
        """A run has failed: a branch gives its parent an error to read, anything else goes up and ends all."""
        if _is_paused(error):
            error = AcornError(
                "A branch that `on_stream` has begun waits for people, and what was shown cannot be shown again; begin "
                "it in a tool or in `on_step`."
            )
        if run_id != self.root and isinstance(error, Exception) and error is not self.tree.lost:
            self.tree.stop(run_id, error)
            below = [each for each in reversed(self.active) if each != run_id and run_id in self._above(each)]
            for each in (*below, run_id):
                self._drop(each)
            known = dict(self.ended)
            before = [each for each in self.ended if each[0] != run_id and each[0] not in below]
            self.ended = [*before, *((each, None) for each in below), (run_id, known.get(run_id) or error)]
            return
        self.failed = [run_id, *self._above(run_id)]
        raise error

    def _above(self, run_id: str) -> list[str]:
        """The runs that a run is a branch of, the nearest first, up to the one that is walked."""
        above: list[str] = []
        while run_id != self.root:
            run_id = self.calls[run_id][0]
            above.append(run_id)
        return above

    def _drop(self, run_id: str) -> None:
        """Nobody waits any more for what a run has under way."""
        for key in [key for key in self.busy if key[0] == run_id]:
            self.busy.pop(key).end()

    def end_branch(self, run_id: str, error: Exception | None) -> tuple[Machine, AskBranch, ToolResult] | None:
        """A branch has ended, and its sources are closed: tell its parent, and say what can be shown of it.

        A parent that has ended before it is told nothing.
        """
        self.active.remove(run_id)
        self._unseen.pop(run_id, None)
        self._seen.pop(run_id, None)
        self.tree.close(run_id)
        parent_id, ask = self.calls.pop(run_id)
        if parent_id != self.root and self.tree.loops[parent_id].is_over:
            return None
        end = BranchEnd(self.tree.loops[run_id].run, error)
        self.take(parent_id, ask.id, end)
        return self.tree.loops[parent_id], ask, branch_result(ask.call, end)

    def begin_end(self) -> None:
        """Nothing more is taken in; whoever wanted the tree to end was heard."""
        self.is_over = True
        if self.root == self.tree.root:
            self.tree.is_ending = True

    def end(self, error: BaseException, returned: Iterable[tuple[Key, Any]]) -> None:
        """The walk is over: its runs end here, and with them all that is below. What had returned by now is kept."""
        try:
            for key, outcome in returned:
                # A machine that has been stopped, or that goes wrong now, is past caring.
                with suppress(Exception, ParentEndedError):
                    self.tree.tell(*key, outcome)
        finally:
            for run_id in (*self.failed, self.root):
                self.tree.stop(run_id, error)

    def not_kept(self, error: Exception) -> None:
        """The end of the walk could not be kept: that fails a run that was well until now, but hides nothing before."""
        run = self.tree.loops[self.root].run
        first = run.error
        if first is None:
            self.tree.spoil(self.root, error)
            hang_on(error, run)
            raise error
        if isinstance(first, RunCancelledError):  # nobody was to write any more
            return
        first.add_note(f"The end of the run could not be kept either: {describe_error(error)}")

    def let_go(self) -> None:
        if self.tree.keeper is not None and self.root == self.tree.root:
            self.tree.keeper.end(self.tree.lost)
        self.tree.end_trace(self.root)


def _is_paused(error: BaseException) -> bool:
    """Whether code was left since a branch of its waits for people; a group of tasks wraps what its tasks raise."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(PauseSignal)[1] is None
    return isinstance(error, PauseSignal)


class CloseFailure:
    """Takes what goes wrong in closing sources: it fails a run that was well until now, but hides nothing before it."""

    def __init__(self, tree: Tree, run_id: str) -> None:
        self._tree, self._run_id = tree, run_id
        self.error: Exception | None = None
        """What the run failed of."""

    def __call__(self, error: BaseException) -> None:
        first = self._tree.loops[self._run_id].run.error
        if first is not None and isinstance(error, Exception):
            first.add_note(f"Closing a source of tools failed as well: {error!r}")
            return
        self._tree.spoil(self._run_id, error)
        if not isinstance(error, Exception):
            raise error
        self.error = error
