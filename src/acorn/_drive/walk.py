"""What both drivers share: which asks can be begun, and what an outcome or a failure means for the runs around it.

A walk drives one run and the branches that its model calls, flatly: a branch is one more machine whose asks
are performed. A branch that the user's code begins is walked by whoever called it, in the same tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from acorn._drive.tree import Tree
from acorn._loop.asks import Ask, AskBranch, BranchEnd
from acorn._loop.run import Loop
from acorn.chunk import StreamChunk

Key = tuple[str, str]
"""A run and one of its asks."""


class Busy(Protocol):
    """Something under way beside the caller."""

    def end(self) -> Any: ...


class Walk:
    """One run on its way, with the branches that were called."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        self.tree = tree
        self.root = run_id
        self.iterates = iterates
        self.active = [run_id]
        """The runs that go on, each before its branches."""
        self.calls: dict[str, Key] = {}
        """By the id of a branch, the ask that it is the answer to."""
        self.busy: Mapping[Key, Busy] = {}
        """What is under way beside the caller."""
        self.ended: list[tuple[str, Exception | None]] = []
        """Branches that have ended, and what each failed of; their parents are to be told."""
        self.is_over = False

    def ready(self) -> list[tuple[Loop, Ask]]:
        """What can be begun now; branches are begun here, and their first asks are among it."""
        tree, busy = self.tree, self.busy
        found: list[tuple[Loop, Ask]] = []
        for run_id in self.active:  # grows while we go through it
            for ask in tree.asks(run_id):
                if isinstance(ask, AskBranch):
                    if ask.context.run_id not in self.calls:
                        self._begin_branch(run_id, ask)
                elif (run_id, ask.id) not in busy:
                    found.append((tree.loops[run_id], ask))
        return found

    def streams(self, loop: Loop) -> bool:
        return self.iterates or loop.plan.on_stream is not None

    def marked(self, loop: Loop, chunk: StreamChunk[Any]) -> StreamChunk[Any]:
        """A chunk that says which branch it comes from."""
        if loop.path:
            chunk.branch, chunk.run_id = loop.path, loop.run.id
        return chunk

    # Branches

    def _begin_branch(self, run_id: str, ask: AskBranch) -> None:
        tree, child_id = self.tree, ask.context.run_id
        try:
            tree.branch(ask.context, ask.make())
        except Exception as error:  # the class is the user's, and so is its `__init__`
            self.take(run_id, ask.id, BranchEnd(None, error))
            return
        self.calls[child_id] = (run_id, ask.id)
        tree.begin(run_id, ask.id)
        self.active.append(child_id)
        try:
            tree.open(child_id)
        except Exception as error:
            self.fail(child_id, error)

    # What comes of an ask

    def take(self, run_id: str, ask_id: str, outcome: Any) -> None:
        """Tell an outcome."""
        try:
            self.tree.tell(run_id, ask_id, outcome)
        except Exception as error:
            self.fail(run_id, error)
        else:
            if run_id != self.root and self.tree.loops[run_id].is_over:
                self.ended.append((run_id, None))

    def fail(self, run_id: str, error: BaseException) -> None:
        """A run has failed: a branch gives its parent an error to read, anything else goes up and ends all."""
        self.tree.stop(run_id, error)
        if run_id != self.root and isinstance(error, Exception):
            self.ended.append((run_id, error))
            return
        while run_id != self.root:
            run_id = self.calls[run_id][0]
            self.tree.stop(run_id, error)
        raise error

    def end_branch(self, run_id: str, error: Exception | None) -> None:
        """A branch has ended, and its sources are closed: tell its parent."""
        self.active.remove(run_id)
        self.tree.close(run_id)
        parent_id, ask_id = self.calls.pop(run_id)
        self.take(parent_id, ask_id, BranchEnd(self.tree.loops[run_id].run, error))

    def end(self, error: BaseException) -> None:
        """Whatever is under way ends: the walk is over."""
        self.is_over = True
        for busy in list(self.busy.values()):
            busy.end()
        self.tree.stop(self.root, error)
