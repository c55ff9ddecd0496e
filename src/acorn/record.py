"""The record of a run: what it was given, what it did and what became of it.

While a run goes on, its record is the window through which tools and hooks see it; afterwards it is what
is left. Only the loop writes it, but for `history`, which is also the user's.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

from pydantic import BaseModel
from typing_extensions import TypeVar

from acorn._json import to_plain
from acorn._ledger import Ledger
from acorn.errors import AcornError
from acorn.types import Usage

if TYPE_CHECKING:
    from acorn.thread.events import AgentEvent

Out = TypeVar("Out", default=Any)

Message = dict[str, Any]


@dataclass(eq=False)
class Run(Generic[Out]):
    """One run of a module."""

    id: str
    input: BaseModel
    """The input, as an instance of the module's `initial_input`."""
    output: Out | None = None
    """What the call returned."""
    history: list[Message] = field(default_factory=list[Message], repr=False)
    """The conversation, in OpenAI's format."""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """Dollars, where the prices are known."""
    model: str | None = None
    """Which model answered."""
    steps: int = 0
    stop_reason: str | None = None
    """`finish`, `forced` (max_steps), `limit`, `loop`, `step` (step.finish), `unfinished`, `cancelled`, `error`;
    None while the run goes on."""
    started: datetime | None = None
    seconds: float = 0.0
    branches: list[Run[Any]] = field(default_factory=list["Run[Any]"], repr=False)
    error: BaseException | None = None
    deps: Any = field(default=None, repr=False)
    """What `using(deps=...)` brought along."""
    branch: str | None = None
    """The path of the branch that this is, `outer/inner`; None for a run of its own."""
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    """The notes from which `thread` is made."""

    @property
    def thread(self) -> list[AgentEvent]:
        """What happened, as events: the lossless account of the run, its branches included."""
        from acorn.thread.recall import recall  # the events' classes cost more than a run that nobody looks at

        return recall(self.ledger, self.started, self.branch, self.id)

    @property
    def step(self) -> int:
        """The step the run is in, counted from 1."""
        return self.steps

    def __copy__(self) -> Run[Out]:
        return replace(self)

    def __getstate__(self) -> dict[str, Any]:
        # The record hangs on the error of a run, which must reach another process whatever the run was about.
        return {**vars(self), "deps": None, "input": _portable(self.input), "output": _portable(self.output)}


def _portable(value: Any) -> Any:
    """The value, or its plain data where it cannot be pickled."""
    try:
        pickle.dumps(value)
    except Exception:  # whatever a user's class raises
        return to_plain(value)
    return value


_current: ContextVar[tuple[tuple[Any, Run[Any], Any], ...]] = ContextVar("acorn_current_runs", default=())
"""The runs that the calling code is inside of, each with its instance and its loop, innermost last."""
_captures: ContextVar[tuple[list[Run[Any]], ...]] = ContextVar("acorn_captures", default=())


def current_run() -> Run[Any]:
    """The run that called this tool, hook or prompt method."""
    runs = _current.get()
    if not runs:
        raise AcornError(
            "There is no run here: `acorn.current_run()` works inside tools, hooks and prompt methods while their "
            "module is being called."
        )
    return runs[-1][1]


def run_of(agent: object) -> Run[Any] | None:
    """The innermost run of this very instance that the calling code is inside of, if any."""
    places = (place for entry in reversed(_current.get()) for place in _lineage(*entry))
    return next((run for other, run in places if other is agent), None)


def _lineage(agent: Any, run: Run[Any], loop: Any) -> Iterator[tuple[Any, Run[Any]]]:
    """An instance and its run, and then those that it is a branch of."""
    yield agent, run
    while loop is not None and (loop := loop.parent) is not None:
        yield loop.plan.agent, loop.run


def current_loop() -> Any:
    """The loop of the innermost run that the calling code is inside of, or None."""
    runs = _current.get()
    return runs[-1][2] if runs else None


class inside:
    """Code in this block belongs to the run."""

    __slots__ = ("_place", "_token")

    def __init__(self, agent: object, run: Run[Any], loop: Any = None) -> None:
        self._place = (agent, run, loop)

    def __enter__(self) -> None:
        self._token = _current.set((*_current.get(), self._place))

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


@contextmanager
def capture() -> Generator[list[Run[Any]]]:
    """Collect the records of every run started in the current context.

    with acorn.capture() as runs:
        agent(question="...")
    print(runs[0].usage)
    """
    runs: list[Run[Any]] = []
    token = _captures.set((*_captures.get(), runs))
    try:
        yield runs
    finally:
        _captures.reset(token)


def announce(run: Run[Any]) -> None:
    """Tell those who capture that a run has begun."""
    for runs in _captures.get():
        runs.append(run)
