"""The record of a run: what it was given, what it did and what became of it.

While a run goes on, its record is the window through which tools and hooks see it; afterwards it is what
is left. Only the loop writes it, but for `history`, which is also the user's.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from inspect import iscoroutinefunction
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, cast, overload

from pydantic import BaseModel
from typing_extensions import TypeVar

from acorn._formats.json import describe_error, excerpt, to_json_data
from acorn._history.history import HistoryOwnership
from acorn.errors import AcornError
from acorn.types import ForkedFrom, JsonObject, Usage

if TYPE_CHECKING:
    from acorn.journal import Entry, Listener
    from acorn.thread.events import AgentEvent

Out = TypeVar("Out", default=Any)
Deps = TypeVar("Deps", default=Any)

Made = TypeVar("Made")
Given_co = TypeVar("Given_co", covariant=True)

Message = JsonObject
TOOL = "tool "
"""How the id of an ask begins that is a call of a tool; the step and the call's own id follow."""


def call_key(run_id: str, step: int, call_id: str) -> str:
    """One call of all that were ever made."""
    return f"{run_id}:{step}:{call_id}"


class _BranchRuns(Protocol[Given_co]):
    """A module, as far as a type checker needs to know it here."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Given_co: ...


class Journal:
    """What happened in one run: entries (`acorn.journal`) in the order in which they were made."""

    __slots__ = ("entries", "now", "step")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.step = 0
        """The step that the next entry belongs to."""
        self.now = 0.0


class _History:
    """The field `history` of a run: who reads it has it from then on, and may change it."""

    def __get__(self, run: Any, owner: object = None) -> Any:
        return self if run is None else run._book.hand_out()

    def __set__(self, run: Any, value: Any) -> None:
        book = vars(run).setdefault("_book", HistoryOwnership())
        if value is not self:  # as it is where a new record is given none
            book.replace(value)


class _CachedThread:
    """What a record has beside its fields."""

    _book: HistoryOwnership


@dataclass(eq=False)
class Run(_CachedThread, Generic[Out, Deps]):
    """One run of a module: its record, and, while it goes on, the window through which tools and hooks see it.

        run = agent.run(question="What are acorns?")
        print(run.output.answer, run.stop_reason, run.steps, run.usage.requests)

    A parameter of a tool that is annotated `Run` receives the run, and is not in the tool's schema.
    """

    id: str
    input: BaseModel
    """The input, as an instance of the module's `initial_input`."""
    output: Out | None = None
    """What the call returned."""
    history: list[Message] = field(default=cast(Any, _History()), repr=False)
    """The conversation, in OpenAI's format."""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """Dollars, where the prices are known."""
    model: str | None = None
    """Which model answered."""
    steps: int = 0
    stop_reason: str | None = None
    """`finish`, `forced` (max_steps), `limit`, `loop`, `step` (step.finish), `unfinished`, `paused`, `cancelled`,
    `error`; None while the run goes on."""
    started: datetime | None = None
    seconds: float = 0.0
    branches: list[Run] = field(default_factory=list["Run"], repr=False)
    error: BaseException | None = None
    deps: Deps = field(default=cast(Any, None), repr=False)
    """What `using(deps=...)` brought along."""
    branch: str | None = None
    """The path of the branch that this is, `outer/inner`; None for a run of its own."""
    journal: Journal = field(default_factory=Journal, repr=False)
    """What happened, entry by entry (`acorn.journal`)."""
    forked_from: ForkedFrom | None = None
    """The run and the step that this one was forked from by `using(thread=..., before=...)`."""

    @property
    def thread(self) -> list[AgentEvent]:
        """What happened, as events: the lossless account of the run, its branches included."""
        from acorn.thread.from_journal import (
            events_of_journal,  # the events' classes cost more than a run that nobody looks at
        )

        return events_of_journal(self)

    def new_messages(self) -> list[Message]:
        """The messages of this run that are in its history: without the system message and what it began with.

        conversation = []
        run = agent.using(history=conversation).run(question="And in 1990?")
        conversation += run.new_messages()
        """
        from acorn._history.history import own_messages  # with the entries' classes, as below

        return own_messages(self.history, self.journal.entries)

    def to_json(self) -> str:
        """All of this as JSON text, its branches included, but for `deps` and the error's traceback."""
        from acorn._record.saved_form import write_run  # as above

        return write_run(self)

    @overload
    @staticmethod
    def from_json(text: str) -> Run: ...
    @overload
    @staticmethod
    def from_json(text: str, agent: type[_BranchRuns[Made]]) -> Run[Made]: ...
    @staticmethod
    def from_json(text: str, agent: Any = None) -> Run:
        """The record that `to_json` wrote; the class of the module gives the types of its input and output.

            kept = run.to_json()
            again = Run.from_json(kept, Researcher)

        Without the class they are plain data. An error that was none of acorn's is an `AcornError` that says its class.
        """
        from acorn._record.saved_form import read_run  # as above

        found: Run = read_run(Run, text, agent)
        return found

    def _repr_html_(self) -> str:
        """What a notebook shows: the output, and what happened behind a fold. Nothing in it becomes markup."""
        from acorn._record.html import write_html  # as above

        return write_html(self)

    @property
    def step(self) -> int:
        """The step the run is in, counted from 1."""
        return self.steps

    @property
    def idempotency_key(self) -> str:
        """Names the tool call that the calling code is inside of: each has its own, the same over all resumes.

        @tool
        def charge(amount: float) -> str:
            key = acorn.current_run().idempotency_key
            return f"charged {amount} under {key}"
        """
        for place in reversed(_current.get()):
            if place.run_id == self.id and place.ask_id.startswith(TOOL):
                step, call_id = place.ask_id.removeprefix(TOOL).split(" ", 1)
                return call_key(self.id, int(step), call_id)
        raise AcornError(
            "There is no tool call here: `current_run().idempotency_key` names the call whose function asks for it."
        )

    def __copy__(self) -> Run[Out, Deps]:
        return replace(self)

    def __getstate__(self) -> JsonObject:
        # The record hangs on the error of a run, which must reach another process whatever the run was about.
        journal = Journal()
        journal.entries = [_portable_entry(entry) for entry in self.journal.entries]
        kept = {name: value for name, value in vars(self).items() if name != "_book"}
        return {
            **kept,
            "deps": None,
            "input": _portable(self.input),
            "output": _portable(self.output),
            "history": _portable(self._book.messages),
            "error": _portable_error(self.error),
            "journal": journal,
        }

    def __setstate__(self, state: JsonObject) -> None:
        history = state.pop("history")
        vars(self).update(state)
        self.history = history


def _portable_entry(entry: Entry) -> Entry:
    from acorn.journal import RunStarted  # the entries' classes, which a program that only declares does not need

    return entry._replace(input=_portable(entry.input)) if isinstance(entry, RunStarted) else entry


def _portable_error(error: BaseException | None) -> BaseException | None:
    """The error, or its words where it cannot be pickled or made again; its record, which holds it, left aside."""
    if error is None:
        return None
    try:
        made: Any = error.__reduce_ex__(4)
        kept = {name: value for name, value in vars(error).items() if name != "run"}
        make, args, _ = pickle.loads(pickle.dumps((*made[:2], kept)))
        make(*args)
    except Exception:  # whatever a user's class raises
        return AcornError(describe_error(error))
    return error


def _portable(value: Any) -> Any:
    """The value, or its plain data where it cannot be pickled."""
    try:
        pickle.dumps(value)
    except Exception:  # whatever a user's class raises
        return to_json_data(value)
    return value


class _HasRun(Protocol):
    @property
    def run(self) -> Run: ...


class _CallSpans(Protocol):
    """The telemetry of a tree, as far as a call site needs it."""

    def inside(self, run_id: str, ask_id: str) -> AbstractContextManager[None]:
        """Make the span of an ask current in a block."""
        ...


class LiveTree(Protocol):
    """A run and its branches, as far as a call site needs them. `_drive/tree.py` has the class."""

    @property
    def machines(self) -> Mapping[str, _HasRun]:
        """The machines of the run and its branches, by run id."""
        ...

    @property
    def trace(self) -> _CallSpans | None: ...

    def lineage(self, run_id: str) -> Iterable[tuple[object, Run]]:
        """Return the instance and the run with this id, then those of each parent."""
        ...


class CallSite:
    """Where code of the user's is: in a run, inside of one ask. Code in its block belongs to the run."""

    __slots__ = ("_counter", "_span", "_token", "ask_id", "run_id", "tree")

    def __init__(self, tree: LiveTree, run_id: str, ask_id: str) -> None:
        self.tree = tree
        self.run_id = run_id
        self.ask_id = ask_id
        self._counter = count()

    @property
    def run(self) -> Run:
        return self.tree.machines[self.run_id].run

    def next(self) -> str:
        """An id for what is begun here: the same, in the same order, when the code is called again."""
        return f"{self.run.steps}/{self.ask_id}#{next(self._counter)}"

    def __enter__(self) -> None:
        self._token = _current.set((*_current.get(), self))
        trace = self.tree.trace
        self._span = None if trace is None else trace.inside(self.run_id, self.ask_id)
        if self._span is not None:
            self._span.__enter__()

    def __exit__(self, *_: object) -> None:
        if self._span is not None:
            self._span.__exit__(None, None, None)
        _current.reset(self._token)


_current: ContextVar[tuple[CallSite, ...]] = ContextVar("acorn_current_runs", default=())
"""Where the calling code is, innermost last."""
_captures: ContextVar[tuple[list[Run], ...]] = ContextVar("acorn_captures", default=())


def current_run() -> Run:
    """The run that called this tool, hook or prompt method.

        @tool
        def remaining() -> str:
            \"\"\"How many steps are left.\"\"\"
            return f"this is step {acorn.current_run().step}"

    Outside of a run it is an `AcornError`.
    """
    place = current_call_site()
    if place is None:
        raise AcornError(
            "There is no run here: `acorn.current_run()` works inside tools, hooks and prompt methods while their "
            "module is being called."
        )
    return place.run


def current_call_site() -> CallSite | None:
    """Where the calling code is, in the innermost run; None outside of all runs."""
    places = _current.get()
    return places[-1] if places else None


def call_site_of(agent: object) -> tuple[CallSite, Run] | None:
    """The innermost run of this very instance that the calling code is inside of, and where in it or below it."""
    for place in reversed(_current.get()):
        for other, run in place.tree.lineage(place.run_id):
            if other is agent:
                return place, run
    return None


def run_of(agent: object) -> Run | None:
    """The innermost run of this very instance that the calling code is inside of, if any."""
    found = call_site_of(agent)
    return None if found is None else found[1]


@contextmanager
def capture() -> Generator[list[Run]]:
    """Collect the records of every run started in the current context.

    with acorn.capture() as runs:
        agent(question="...")
    print(runs[0].usage)
    """
    runs: list[Run] = []
    token = _captures.set((*_captures.get(), runs))
    try:
        yield runs
    finally:
        _captures.reset(token)


def announce(run: Run) -> None:
    """Tell those who capture that a run has begun."""
    for runs in _captures.get():
        runs.append(run)


class Subscriber(NamedTuple):
    """Somebody who listens to runs."""

    callback: Listener
    is_vital: bool = False
    """Whether its failure stops the run: what it keeps must not be lost."""


_listeners: ContextVar[tuple[Subscriber, ...]] = ContextVar("acorn_listeners", default=())


@contextmanager
def listen(callback: Listener) -> Generator[None]:
    """Hear every entry (`acorn.journal`) of every run begun in the current context, as it is made.

        with acorn.listen(print):
            agent(question="...")

    The callback is called in place, while the run waits: it should be quick, and must not wait for a thread of the
    same run. What it raises is logged and changes nothing. Entries are to be read, not changed. Runs that the callback
    begins itself are not heard by it.
    """
    anything: Any = callback
    if not callable(anything) or iscoroutinefunction(anything):
        raise AcornError(f"`acorn.listen` takes a plain function of one entry, got {excerpt(callback)}.")
    with _listening(Subscriber(callback)):
        yield


@contextmanager
def _listening(heard: Subscriber) -> Generator[None]:
    token = _listeners.set((*_listeners.get(), heard))
    try:
        yield
    finally:
        _listeners.reset(token)


class unheard:
    """What a listener begins itself, it does not hear: it would never come to an end."""

    __slots__ = ("_heard", "_token")

    def __init__(self, heard: Subscriber) -> None:
        self._heard = heard

    def __enter__(self) -> None:
        self._token = _listeners.set(tuple([each for each in _listeners.get() if each is not self._heard]))

    def __exit__(self, *_: object) -> None:
        _listeners.reset(self._token)


def listeners() -> tuple[Subscriber, ...]:
    """Who listens to a run that begins here."""
    return _listeners.get()
