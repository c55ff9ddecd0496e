"""The record of a run, and the functions that find, capture and listen to runs.

Tools and hooks read the record while the run is in progress, and callers read it afterwards. Only the machine writes
it, except for `history`, which users may edit too.
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
from acorn._history.history import HistoryOwnership, own_messages
from acorn.errors import AcornError
from acorn.journal import Entry, Listener, RunStarted
from acorn.types import ForkedFrom, JsonObject, Usage

if TYPE_CHECKING:
    from acorn.thread.events import AgentEvent

Out = TypeVar("Out", default=Any)
Deps = TypeVar("Deps", default=Any)

Returned = TypeVar("Returned")
Returned_co = TypeVar("Returned_co", covariant=True)

Message = JsonObject
TOOL = "tool "
"""The start of the id of an ask that calls a tool. The step and the id of the call follow."""


def call_key(run_id: str, step: int, call_id: str) -> str:
    """Return a key that identifies one tool call among those of all runs."""
    return f"{run_id}:{step}:{call_id}"


def history_of_run(run: Run) -> HistoryOwnership:
    """Return the history of a run for acorn's code. Reading `run.history` would hand the list out to user code."""
    return run._history  # pyright: ignore[reportPrivateUsage] - The attribute is not part of the public class.


class _ModuleType(Protocol[Returned_co]):
    """A module, as far as the type of `from_json` needs it."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Returned_co: ...


class Journal:
    """The entries (`acorn.journal`) of one run, in the order in which they happened."""

    __slots__ = ("entries", "now", "step")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.step = 0
        """The step that the next entry belongs to."""
        self.now = 0.0
        """The seconds since the start of the run."""


class _HistoryField:
    """The field `history` of a run. Code that reads it gets the list itself, and may change it."""

    def __get__(self, run: Any, owner: object = None) -> Any:
        return self if run is None else run._history.hand_out()

    def __set__(self, run: object, value: Any) -> None:
        history: HistoryOwnership = vars(run).setdefault("_history", HistoryOwnership())
        if value is not self:  # A dataclass sets its default, this descriptor, if `history` is not passed.
            history.replace(value)


class _RunState:
    """The attribute of a record that is not a field of the dataclass."""

    _history: HistoryOwnership


@dataclass(eq=False)
class Run(_RunState, Generic[Out, Deps]):
    """The record of one run of a module. Tools and hooks can read it while the run is in progress.

        run = agent.run(question="What are acorns?")
        print(run.output.answer, run.stop_reason, run.steps, run.usage.requests)

    A tool parameter with the annotation `Run` receives the current run. The model does not see this parameter.
    """

    id: str
    """The id of the run."""
    input: BaseModel
    """The input, an instance of the module's `initial_input`."""
    output: Out | None = None
    """The output, as the call returns it."""
    history: list[Message] = field(default=cast(Any, _HistoryField()), repr=False)
    """The conversation: a list of messages in the format of OpenAI."""
    usage: Usage = field(default_factory=Usage)
    """The tokens and requests of the run and its branches."""
    cost: float | None = None
    """The cost in dollars, or None if the prices are unknown."""
    model: str | None = None
    """The model that answered last."""
    steps: int = 0
    """The number of steps so far."""
    stop_reason: str | None = None
    """Why the run ended: `finish`, `forced` (max_steps), `limit`, `loop`, `step` (step.finish), `unfinished`, `paused`,
    `cancelled` or `error`. None while the run is in progress."""
    started: datetime | None = None
    """The start of the run, in UTC."""
    seconds: float = 0.0
    """The duration of the run."""
    branches: list[Run] = field(default_factory=list["Run"], repr=False)
    """The records of the branches."""
    error: BaseException | None = None
    """The error that ended the run, or None."""
    deps: Deps = field(default=cast(Any, None), repr=False)
    """The object of `using(deps=...)`."""
    branch: str | None = None
    """The path of the branch, `outer/inner`, or None if the run is not a branch."""
    journal: Journal = field(default_factory=Journal, repr=False)
    """The entries of the run (`acorn.journal`)."""
    forked_from: ForkedFrom | None = None
    """The run and the step that `using(thread=..., before=...)` forked."""

    @property
    def thread(self) -> list[AgentEvent]:
        """The events of the run and its branches, without any loss."""
        from acorn.thread.from_journal import events_of_journal  # The event classes are slow to load.

        return events_of_journal(self)

    def new_messages(self) -> list[Message]:
        """Return the messages that this run added: its history without the system message and the earlier conversation.

        conversation = []
        run = agent.using(history=conversation).run(question="And in 1990?")
        conversation += run.new_messages()
        """
        return own_messages(self.history, self.journal.entries)

    def to_json(self) -> str:
        """Return the record and its branches as JSON text, without `deps` and the traceback of the error."""
        from acorn._history.saved_form import write_run

        return write_run(self)

    @overload
    @staticmethod
    def from_json(text: str) -> Run: ...
    @overload
    @staticmethod
    def from_json(text: str, agent: type[_ModuleType[Returned]]) -> Run[Returned]: ...
    @staticmethod
    def from_json(text: str, agent: Any = None) -> Run:
        """Read a record from the text of `to_json`. Pass the module class to get typed input and output.

            text = run.to_json()
            same_run = Run.from_json(text, Researcher)

        Without the class, input and output are JSON data. An error whose class does not belong to acorn is read as an
        `AcornError` with the same message.
        """
        from acorn._history.saved_form import read_run

        run: Run = read_run(Run, text, agent)
        return run

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the output, and the events in a closed section."""
        from acorn.thread.html import write_html

        return write_html(self)

    @property
    def step(self) -> int:
        """The current step, counted from 1."""
        return self.steps

    @property
    def idempotency_key(self) -> str:
        """A key for the tool call that the calling code is in. It is unique, and stays the same if the run is resumed.

        @tool
        def charge(amount: float) -> str:
            key = acorn.current_run().idempotency_key
            return f"charged {amount} under {key}"
        """
        for site in reversed(_current.get()):
            if site.run_id == self.id and site.ask_id.startswith(TOOL):
                step, call_id = site.ask_id.removeprefix(TOOL).split(" ", 1)
                return call_key(self.id, int(step), call_id)
        raise AcornError(
            "This code is not inside a tool call. Read `current_run().idempotency_key` in the function of a tool."
        )

    def __copy__(self) -> Run[Out, Deps]:
        return replace(self)

    def __getstate__(self) -> JsonObject:
        # The error of a run has the record as `error.run`, and must be picklable whatever the run contains.
        journal = Journal()
        journal.entries = [_picklable_entry(entry) for entry in self.journal.entries]
        fields = {name: value for name, value in vars(self).items() if name != "_history"}
        return {
            **fields,
            "deps": None,
            "input": _picklable(self.input),
            "output": _picklable(self.output),
            "history": _picklable(self._history.messages),
            "error": _picklable_error(self.error),
            "journal": journal,
        }

    def __setstate__(self, state: JsonObject) -> None:
        history = state.pop("history")
        vars(self).update(state)
        self.history = history


def _picklable_entry(entry: Entry) -> Entry:
    return entry._replace(input=_picklable(entry.input)) if isinstance(entry, RunStarted) else entry


def _picklable_error(error: BaseException | None) -> BaseException | None:
    """Return the error, or an `AcornError` with its message if it cannot be pickled. Its record is not checked."""
    if error is None:
        return None
    try:
        reduced: Any = error.__reduce_ex__(4)
        attributes = {name: value for name, value in vars(error).items() if name != "run"}
        make, args, _ = pickle.loads(pickle.dumps((*reduced[:2], attributes)))
        make(*args)
    except Exception:  # A user's class may raise anything.
        return AcornError(describe_error(error))
    return error


def _picklable(value: Any) -> Any:
    """Return the value, or its JSON data if it cannot be pickled."""
    try:
        pickle.dumps(value)
    except Exception:  # A user's class may raise anything.
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
    """The run and the ask that the user's code in a block belongs to."""

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
        """Return an id for the next branch of this code. If the code is called again, the ids are the same."""
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
"""The call sites that the calling code is in, the innermost last."""
_captures: ContextVar[tuple[list[Run], ...]] = ContextVar("acorn_captures", default=())


def current_run() -> Run:
    """Return the run that called this tool, hook or prompt method.

        @tool
        def remaining() -> str:
            \"\"\"Return the current step.\"\"\"
            return f"this is step {acorn.current_run().step}"

    Outside of a run, `AcornError` is raised.
    """
    site = current_call_site()
    if site is None:
        raise AcornError(
            "This code is not inside a run. Call `acorn.current_run()` in a tool, a hook or a prompt method, while "
            "its module is running."
        )
    return site.run


def current_call_site() -> CallSite | None:
    """Return the call site of the calling code in the innermost run, or None outside of all runs."""
    sites = _current.get()
    return sites[-1] if sites else None


def call_site_of(agent: object) -> tuple[CallSite, Run] | None:
    """Return the innermost run of this instance that the calling code is in, with the call site of the code."""
    for site in reversed(_current.get()):
        for other, run in site.tree.lineage(site.run_id):
            if other is agent:
                return site, run
    return None


def run_of(agent: object) -> Run | None:
    """Return the innermost run of this instance that the calling code is in, or None."""
    site_and_run = call_site_of(agent)
    return None if site_and_run is None else site_and_run[1]


@contextmanager
def capture() -> Generator[list[Run]]:
    """Collect the records of all runs that start in the current context.

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
    """Add a new run to the lists of all `capture` blocks."""
    for runs in _captures.get():
        runs.append(run)


class Subscriber(NamedTuple):
    """A listener of journal entries."""

    callback: Listener
    is_vital: bool = False
    """Whether its failure stops the run, because it stores the entries."""


_listeners: ContextVar[tuple[Subscriber, ...]] = ContextVar("acorn_listeners", default=())


@contextmanager
def listen(callback: Listener) -> Generator[None]:
    """Call a function with every journal entry (`acorn.journal`) of all runs that start in the current context.

        with acorn.listen(print):
            agent(question="...")

    The run waits for the callback, so the callback should be fast and must not wait for a thread of the same run. It
    must not change the entries. If it raises an exception, acorn logs it and the run continues. The callback does not
    receive entries of runs that it starts itself.
    """
    anything: Any = callback
    if not callable(anything) or iscoroutinefunction(anything):
        raise AcornError(f"`acorn.listen` takes a sync function of one entry, got {excerpt(callback)}.")
    with _subscribe(Subscriber(callback)):
        yield


@contextmanager
def _subscribe(subscriber: Subscriber) -> Generator[None]:
    token = _listeners.set((*_listeners.get(), subscriber))
    try:
        yield
    finally:
        _listeners.reset(token)


class without_subscriber:
    """A block in which new runs do not notify a subscriber: a callback that starts runs would never end."""

    __slots__ = ("_subscriber", "_token")

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber

    def __enter__(self) -> None:
        self._token = _listeners.set(tuple([other for other in _listeners.get() if other is not self._subscriber]))

    def __exit__(self, *_: object) -> None:
        _listeners.reset(self._token)


def listeners() -> tuple[Subscriber, ...]:
    """Return the subscribers of a run that starts here."""
    return _listeners.get()
