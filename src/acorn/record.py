"""The record of a run (`Run`), and the functions `current_run`, `capture` and `listen`.

Tools and hooks read the record while the run is in progress, and callers read it afterwards. Users may edit only the
history of a record. All other changes are made by the machine, which is the internal class that executes a run.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from difflib import get_close_matches
from inspect import iscoroutinefunction
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Protocol, cast, overload

from pydantic import BaseModel
from typing_extensions import TypeVar

from acorn._formats.json import describe_error, excerpt, to_json_data
from acorn._history.history import History, own_messages
from acorn.errors import AcornError
from acorn.types import ForkedFrom, JsonObject, Message, Usage

if TYPE_CHECKING:
    from acorn.journal import BranchFinished, Entry, Listener, ToolFinished
    from acorn.thread.events import AgentEvent

Out = TypeVar("Out", default=Any)
Deps = TypeVar("Deps", default=Any)

Value = TypeVar("Value")
Returned = TypeVar("Returned")
Returned_co = TypeVar("Returned_co", covariant=True)

TOOL_ASK_PREFIX = "tool "
"""The prefix of the id of an ask (an operation that the machine requests) that calls a tool.

The step and the call id follow the prefix."""


def call_key(run_id: str, step: int, call_id: str) -> str:
    """Return a text that identifies one tool call among the tool calls of all runs."""
    return f"{run_id}:{step}:{call_id}"


def history_of_run(run: Run) -> History:
    """Return the internal history object of a run, for acorn's own code.

    acorn does not read `run.history` for this, because acorn must then assume that user code has the list and changes
    it.
    """
    return run._history  # pyright: ignore[reportPrivateUsage] - The attribute is not part of the public class.


class _ModuleType(Protocol[Returned_co]):
    """The interface of an agent class. It declares only the return type of a call, for the type hint of `from_json`."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Returned_co: ...


@dataclass(slots=True, eq=False)
class Journal:
    """The list of journal entries (`acorn.journal`) of one run, in the order in which they happened."""

    entries: list[Entry] = field(default_factory=list["Entry"])
    step: int = 0
    """The step of the next entry."""
    now: float = 0.0
    """The seconds since the start of the run."""


class _HistoryField:
    """The descriptor for the field `Run.history`. It returns the original list, so that users can edit it."""

    def __get__(self, run: Any, owner: object = None) -> Any:
        return self if run is None else run._history.hand_out()

    def __set__(self, run: object, value: Any) -> None:
        history: History = vars(run).setdefault("_history", History())
        if value is not self:  # A dataclass sets its default, this descriptor, if `history` is not passed.
            history.replace(value)


class _RunState:
    """The base class of `Run`, which declares an attribute that must not become a field of the dataclass."""

    _history: History


@dataclass(eq=False)
class Run(_RunState, Generic[Out, Deps]):
    """The record of one run of a module, which tools and hooks can read while the run is in progress.

        run = agent.run(question="What are acorns?")
        print(run.output.answer, run.stop_reason, run.steps, run.usage.requests)

    A tool parameter with the annotation `Run` receives the current run. The model does not see this parameter.
    """

    id: str
    """The id of the run."""
    input: BaseModel
    """The input of the run, an instance of the module's `initial_input`."""
    output: Out | None = None
    """The output that the call returns, or None if there is no output yet."""
    history: list[Message] = field(default=cast(Any, _HistoryField()), repr=False)
    """The conversation: a list of messages in the format of OpenAI."""
    usage: Usage = field(default_factory=Usage)
    """The number of tokens and requests of the run and its branches."""
    cost: float | None = None
    """The cost in dollars, or None if the prices are unknown."""
    model: str | None = None
    """The name of the model that answered last."""
    steps: int = 0
    """The number of steps so far."""
    stop_reason: str | None = None
    """The reason why the run ended: `finish`, `forced` (max_steps), `limit`, `loop`, `step` (step.finish),
    `unfinished`, `paused`, `cancelled` or `error`. None while the run is in progress."""
    started: datetime | None = None
    """The start time of the run, in UTC."""
    seconds: float = 0.0
    """The duration of the run in seconds."""
    branches: list[Run] = field(default_factory=list["Run"], repr=False)
    """The records of the branches."""
    error: BaseException | None = None
    """The error that ended the run, or None."""
    deps: Deps = field(default=cast(Any, None), repr=False)
    """The object that was passed with `using(deps=...)`."""
    branch: str | None = None
    """The path of the branch, such as `outer/inner`, or None if the run is not a branch."""
    journal: Journal = field(default_factory=Journal, repr=False)
    """The journal of the run, whose entries are defined in `acorn.journal`."""
    forked_from: ForkedFrom | None = None
    """The original run and the step if `using(thread=..., before=...)` has forked the run, or None."""

    @property
    def tool_errors(self) -> list[ToolFinished | BranchFinished]:
        """The journal entries of the calls of tools and branches that raised an exception, also of a finished run.

            for failed in run.tool_errors:
                print(failed.name, failed.error, failed.traceback)

        The list contains no calls with arguments that do not fit the schema. A branch has its own list.
        """
        entries = cast(list[Any], self.journal.entries)
        return [entry for entry in entries if getattr(entry, "traceback", None) is not None]

    @property
    def thread(self) -> list[AgentEvent]:
        """The thread of the run: a list of events, including the events of its branches."""
        from acorn.thread.journal_events import events_of_journal  # The event classes are slow to import.

        return events_of_journal(self)

    def new_messages(self) -> list[Message]:
        """Return the messages that this run added to the conversation, without the system message.

        conversation = []
        run = agent.using(history=conversation).run(question="And in 1990?")
        conversation += run.new_messages()
        """
        return own_messages(self.history, self.journal.entries)

    def to_json(self) -> str:
        """Return the record and the records of its branches as JSON text.

        The text contains neither `deps` nor the traceback of the error.
        """
        from acorn._history.saved_form import encode_run

        return encode_run(self)

    @overload
    @staticmethod
    def from_json(text: str) -> Run: ...
    @overload
    @staticmethod
    def from_json(text: str, agent: type[_ModuleType[Returned]]) -> Run[Returned]: ...
    @staticmethod
    def from_json(text: str, agent: Any = None) -> Run:
        """Return the record from JSON text that `to_json` returned, with typed input and output if you pass the class.

            text = run.to_json()
            same_run = Run.from_json(text, Researcher)

        Without the class, input and output are JSON data. If the class of the error does not belong to acorn, the
        record contains an `AcornError` with the same message.
        """
        from acorn._history.saved_form import decode_run

        run: Run = decode_run(Run, text, agent)
        return run

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook, with the output and a collapsed list of events."""
        from acorn.thread.html import write_html

        return write_html(self)

    @property
    def step(self) -> int:
        """The number of the current step, counted from 1."""
        return self.steps

    @property
    def idempotency_key(self) -> str:
        """A unique key for the current tool call, which stays the same if the run is resumed.

        @tool
        def charge(amount: float) -> str:
            key = acorn.current_run().idempotency_key
            return f"charged {amount} under {key}"
        """
        for site in reversed(_current.get()):
            if site.run_id == self.id and site.ask_id.startswith(TOOL_ASK_PREFIX):
                step, call_id = site.ask_id.removeprefix(TOOL_ASK_PREFIX).split(" ", 1)
                return call_key(self.id, int(step), call_id)
        raise AcornError(
            "This code is not inside a tool call. Read `current_run().idempotency_key` in the function of a tool."
        )

    if not TYPE_CHECKING:  # With `__getattr__`, a type checker would accept any name.

        def __getattr__(self, name: str) -> Any:
            output = vars(self).get("output")
            is_field = not name.startswith("_") and hasattr(output, name)
            fix = f"Use `run.output.{name}`." if is_field else _suggest_attribute(name)
            raise AttributeError(f"A run has no attribute `{name}`. {fix}", name=name, obj=self)

    def __copy__(self) -> Run[Out, Deps]:
        return replace(self)

    def __getstate__(self) -> JsonObject:
        # The error of a run contains the record as `error.run`, so every record must be picklable.
        from acorn.journal import RunStarted

        entries = [
            entry._replace(input=_picklable(entry.input)) if isinstance(entry, RunStarted) else entry
            for entry in self.journal.entries
        ]
        fields = {name: value for name, value in vars(self).items() if name != "_history"}
        return {
            **fields,
            "deps": None,
            "input": _picklable(self.input),
            "output": _picklable(self.output),
            "history": _picklable(self._history.current),
            "error": _picklable_error(self.error),
            "journal": Journal(entries),
        }

    def __setstate__(self, state: JsonObject) -> None:
        history = state.pop("history")
        vars(self).update(state)
        self.history = history


def _picklable_error(error: BaseException | None) -> BaseException | None:
    """Return the error unchanged, or an `AcornError` with the same message if `pickle` cannot store the error.

    The check ignores the attribute `error.run`, because it contains the record that is being pickled.
    """
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
    """Return the value unchanged, or its JSON data if `pickle` cannot store the value."""
    try:
        pickle.dumps(value)
    except Exception:  # A user's class may raise anything.
        return to_json_data(value)
    return value


class _HasRun(Protocol):
    @property
    def run(self) -> Run: ...


class _CallSpans(Protocol):
    """The interface of the telemetry that `CallSite` uses."""

    def inside(self, run_id: str, ask_id: str) -> AbstractContextManager[None]:
        """Return a context manager that makes the span of an ask (an operation of a run) the current span."""
        ...


class LiveTree(Protocol):
    """The interface of a run and its branches that `CallSite` uses.

    The class `Tree` in `_drive/tree.py` implements this interface.
    """

    @property
    def machines(self) -> Mapping[str, _HasRun]:
        """A dict that maps run ids to machines (the objects that execute the run and its branches)."""
        ...

    @property
    def trace(self) -> _CallSpans | None: ...

    def lineage(self, run_id: str) -> Iterable[tuple[object, Run]]:
        """Return (agent instance, record) for a run, then for its parent run, up to the top-level run."""
        ...


class CallSite:
    """A context manager around a call of user code, such as a tool or a hook.

    It stores the run and the ask (the operation of the run) that called the user code.
    """

    __slots__ = ("_counter", "_span", "_token", "ask_id", "run_id", "tree")

    def __init__(self, tree: LiveTree, run_id: str, ask_id: str) -> None:
        self.tree = tree
        self.run_id = run_id
        self.ask_id = ask_id
        self._counter = count()

    @property
    def run(self) -> Run:
        return self.tree.machines[self.run_id].run

    def next_branch_id(self) -> str:
        """Return the id of the next branch that the user code starts.

        If the user code runs again after a resume, its branches have the same ids as before.
        """
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
"""The call sites that surround the calling code. The innermost call site is the last item."""
_captures: ContextVar[tuple[list[Run], ...]] = ContextVar("acorn_captures", default=())


def current_run() -> Run:
    """Return the run in which the current tool, hook or prompt method was called.

        @tool
        def remaining() -> str:
            \"\"\"Return the current step.\"\"\"
            return f"this is step {acorn.current_run().step}"

    Outside of a run, this raises `AcornError`.
    """
    site = current_call_site()
    if site is None:
        raise AcornError(
            "This code is not inside a run. Call `acorn.current_run()` in a tool, a hook or a prompt method, while "
            "its module is running."
        )
    return site.run


def current_call_site() -> CallSite | None:
    """Return the innermost `CallSite` around the calling code, or None if the code is not inside a run."""
    sites = _current.get()
    return sites[-1] if sites else None


@contextmanager
def _with_value(variable: ContextVar[Value], value: Value) -> Generator[None]:
    """Set a context variable inside the `with` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def call_site_of(agent: object) -> tuple[CallSite, Run] | None:
    """Return the call site and the record of the run of this agent instance that contains the calling code.

    If there are several, the innermost applies. The result is None if the code is not inside a run of the instance.
    """
    for site in reversed(_current.get()):
        for other, run in site.tree.lineage(site.run_id):
            if other is agent:
                return site, run
    return None


def run_of(agent: object) -> Run | None:
    """Return the run of this agent instance that the calling code is part of.

    If there are several, the innermost applies. The result is None if the code is not inside a run of the instance.
    """
    site_and_run = call_site_of(agent)
    return None if site_and_run is None else site_and_run[1]


@contextmanager
def capture() -> Generator[list[Run]]:
    """Collect the records of all runs that start inside the `with` block.

    with acorn.capture() as runs:
        agent(question="...")
    print(runs[0].usage)
    """
    runs: list[Run] = []
    with _with_value(_captures, (*_captures.get(), runs)):
        yield runs


def add_to_captures(run: Run) -> None:
    """Add the record of a new run to the lists of all surrounding `with capture()` blocks."""
    for runs in _captures.get():
        runs.append(run)


active_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("acorn_listeners", default=())
"""The listeners that receive the journal entries of a run that starts now."""


def _takes_one(function: Callable[..., object]) -> bool:
    """Return whether a function accepts one positional argument. Return True if Python cannot read its signature."""
    try:
        inspect.signature(function).bind(None)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def _suggest_attribute(name: str) -> str:
    names = [field.name for field in fields(Run)]
    known = {"messages": "history", "tokens": "usage", "events": "thread"}.get(name)
    near = [known] if known else get_close_matches(name, [each for each in names if not each.startswith("_")], 1)
    return f"Did you mean `run.{near[0]}`?" if near else "The output of the run is `run.output`."


@contextmanager
def listen(callback: Listener) -> Generator[None]:
    """Call a function with every journal entry (`acorn.journal`) of all runs that start in the `with` block.

        with acorn.listen(print):
            agent(question="...")

    The run waits for the callback, so the callback should be fast and must not wait for an OS thread of the same run.
    The callback must not change the entries. If it raises an exception, acorn logs the exception and the run continues.
    The callback does not receive entries of runs that it starts itself.
    """
    value: Any = callback
    if not callable(value) or iscoroutinefunction(value) or not _takes_one(value):
        raise AcornError(f"`acorn.listen` needs a sync function with one parameter, got {excerpt(callback)}.")
    with _with_value(active_listeners, (*active_listeners.get(), callback)):
        yield


def without_listener(callback: Listener) -> AbstractContextManager[None]:
    """Do not call a listener for runs that start inside the `with` block.

    acorn calls each listener in such a block, because a listener that starts a run would otherwise call itself
    endlessly.
    """
    others = tuple([other for other in active_listeners.get() if other is not callback])
    return _with_value(active_listeners, others)
