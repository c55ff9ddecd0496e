"""What a store does: it keeps what happened, says who drives a run, and lets people answer.

A store knows nothing of the loop. What it keeps of a run is JSON text that it does not read, beside the few facts
that a list shows. A commit is one transaction over all the runs of a tree that have changed; until it is done,
nothing that comes after it may begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from acorn.errors import StoreError
from acorn.types import Request, Usage

if TYPE_CHECKING:
    from concurrent.futures import Future  # brings logging, which a program that only declares does not need

Status = Literal["queued", "running", "waiting", "stopped", "failed", "done", "cancelled"]
"""What a run is at. One that says `running` and whose holder is gone reads `stopped`."""


NOT_BEGUN = "null"
"""The record and the state of a run that was put into a store and that nobody has begun yet."""


class RunCancelledError(StoreError):
    """Somebody wants the run cancelled."""


class RunClaimedError(StoreError):
    """A live process drives the run."""

    holder: Process | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that drives runs."""

    id: str
    """Random, new in each process."""
    host: str
    boot: str
    """The machine since it was started, and the space in which the pid counts; empty where that cannot be told."""
    pid: int
    born: str
    """When the process began, as the system counts it: another process may have the same pid later."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run at a glance."""

    id: str
    agent: str
    """`module:qualname` of its class."""
    status: Status
    model: str | None
    steps: int
    usage: Usage
    cost: float | None
    started: datetime
    updated: datetime
    seconds: float
    batch: str | None = None
    stop_reason: str | None = None
    error: str | None = None
    """In one line."""
    root: str = ""
    """The run that it belongs to; its own id where it is no branch."""
    parent: str | None = None
    item: int | None = None
    """Which item of its batch."""


class RunHeader(NamedTuple):
    """What never changes of a run."""

    agent: str
    parent: str | None
    branch: str | None
    """What a branch was born with, as JSON; None for a run of its own."""
    input: str
    """JSON."""
    started: datetime
    overrides: str | None = None
    """The `settings` that the instance has beside its class, plain data without secrets, the `file` of the class, and
    the `span` that the run has begun with, where it was traced; as JSON."""
    batch: str | None = None
    item: int | None = None


class QueuedRun(NamedTuple):
    """A run that is to begin somewhere."""

    run_id: str
    birth: RunHeader
    priority: int = 0
    """The higher, the sooner."""
    not_before: datetime | None = None
    media: Sequence[Medium] = ()
    """What is no text in its input."""


class Change(NamedTuple):
    """What has happened in one run since its last commit."""

    run_id: str
    birth: RunHeader | None
    """With the first change of a run only."""
    since: int
    """How many entries of its journal are kept already."""
    entries: Sequence[str]
    """The new ones, each JSON."""
    record: str | None
    """Its record, as JSON; None: as it was, but for what stands below."""
    state: str | None
    """The memory of its machine, as JSON; None: as it was, since the entries tell what has become of it."""
    status: Status
    model: str | None
    steps: int
    usage: Usage
    cost: float | None
    seconds: float
    stop_reason: str | None
    error: str | None


class Medium(NamedTuple):
    """The data of a picture, a sound or a file."""

    sha256: str
    """Of the data, in hexadecimal: what it is known by."""
    data: bytes


class Commit(NamedTuple):
    """One transaction: a root and whatever has changed below it."""

    root: str
    holder: Process
    changes: Sequence[Change]
    """A parent stands before its branches. The status of the root says whether it is held any longer: it is while
    it is `running`."""
    requests: Sequence[Request] = ()
    """What people are asked from now on; those of runs of this tree that are not among them and have no answer yet
    are open no more."""
    media: Sequence[Medium] = ()
    """Data that the texts of these changes name. The same data is kept once for all runs, and as long as there is one
    whose commits have brought it."""


class StoredRun(NamedTuple):
    """A run as it is kept."""

    facts: RunFacts
    birth: RunHeader
    entries: Sequence[str]
    record: str
    state: str

    @property
    def has_begun(self) -> bool:
        return self.state != NOT_BEGUN


class StoredAnswer(NamedTuple):
    """What somebody answered."""

    request: Request
    value: Any
    """Plain data."""
    at: datetime


class JournalRow(NamedTuple):
    """An entry of a journal, as a follower gets it."""

    position: int
    """Grows in the order of the commits."""
    entry: str
    """JSON."""


@runtime_checkable
class Store(Protocol):
    """A place where runs are kept. All of it may be called from any thread; what goes wrong is a `StoreError`."""

    @property
    def name(self) -> str:
        """As messages call it, without any password."""
        ...

    # By whoever drives a run

    def commit(self, commit: Commit) -> Future[None]:
        """Keep all of it or nothing, in the order of the calls; done when it would survive a crash.

        The future fails where the root is held by somebody else by now, was deleted, or exists already though this is
        its birth; with `RunCancelledError` where somebody wants it cancelled.
        """
        ...

    def claim(self, run_id: str, holder: Process) -> Sequence[StoredRun] | None:
        """Hold a run from now on, and read it: the root first, each parent before its branches. None: there is none.

        Refused where a live holder has it, and for a branch. A run that is over (`done`, `cancelled`) is given without
        being held. The facts are those before the claim. Of a run whose holder died, the take-overs at one step are
        counted; the fifth is refused, and the run is `failed`.
        """
        ...

    def release(self, run_id: str, holder: Process, status: Status) -> None:
        """Hold it no longer, though nothing happened; nothing where another has taken it over.

        One that is queued is to be tried anew: what it had failed of is forgotten.
        """
        ...

    def answers(self, run_id: str) -> Sequence[StoredAnswer]:
        """What was answered to a root and the runs below it, in the order of the answers."""
        ...

    def beat(self, holder: Process, seconds: float) -> Sequence[str]:
        """Say that a process lives, for so long; the runs of its that somebody wants cancelled."""
        ...

    # By whoever wants runs to begin elsewhere

    def put(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        """Keep runs that have not begun, as `queued`, all or none of them; those whose ids are known stay as they are.

        The ids of the new ones. `deliver`: the workers of this store are to drive them, the known ones too where they
        are not over; refused where it has none.
        Whoever claims one begins it, and its first commit has no birth.
        """
        ...

    def statuses(self, run_ids: Sequence[str]) -> Mapping[str, Status]:
        """What each of these roots is at; those that there are none of are missing."""
        ...

    # By whoever looks on

    def read(self, run_id: str) -> Sequence[StoredRun]:
        """A run and all below it, as `claim` gives them; any run, without holding it. Empty: there is none."""
        ...

    def media(self, wanted: Sequence[str]) -> Mapping[str, bytes]:
        """Data by its SHA-256, as far as it is there."""
        ...

    def find(self, prefix: str) -> Sequence[str]:
        """The ids of the roots that begin like this; an id that is whole is alone."""
        ...

    def list(
        self,
        *,
        status: Sequence[Status] = (),
        agent: str | None = None,
        batch: str | None = None,
        before: datetime | None = None,
        limit: int | None = 50,
    ) -> Sequence[RunFacts]:
        """Roots, the newest first, by when they began; `agent` is a class name, with or without its module."""
        ...

    def follow(self, run_id: str, after: int = 0) -> tuple[Status | None, Sequence[JournalRow]]:
        """What the run is at, and the entries of it and all below it behind a position. None: there is none."""
        ...

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        """What people are asked and have not answered, the oldest first; of one tree, or of all."""
        ...

    def answer(self, request_id: str, value: Any) -> Request:
        """Keep an answer, plain data, and say what it answers; refused where there is no such request, or an answer."""
        ...

    def cancel(self, run_id: str) -> None:
        """End a run that rests; one that is driven ends where it is driven, at the latest at its next commit."""
        ...

    def delete(self, run_id: str) -> None:
        """Forget a run and all below it; refused while it is driven."""
        ...

    def close(self) -> None:
        """Finish what is under way, and let go of the file; it opens again by itself where it is used again."""
        ...


class RunWatch(Protocol):
    """Somebody's interest in what is new of a run, until it is closed."""

    def wait(self, seconds: float) -> None:
        """Return when there may be something new since the last wait, at the latest after so long.

        The first one returns at once: look before you wait.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class WakesWatchers(Protocol):
    """What a store offers beside where it tells at once what others find out by asking now and then."""

    def watch(self, run_id: str) -> RunWatch: ...

    def ring(self, holder: Process, call: Callable[[], None]) -> Callable[[], None]:
        """Call it, from another thread, when a run of a holder may have to be cancelled; until what comes back is
        called."""
        ...


@runtime_checkable
class ReadsStatus(Protocol):
    """What a store offers beside where it cannot tell at once, and to look costs next to nothing."""

    def has_unwanted(self, holder: Process) -> bool:
        """Whether somebody wants a run cancelled that a process drives."""
        ...


@runtime_checkable
class SearchesRuns(Protocol):
    """What a store offers beside where it finds a text without handing out every run."""

    def holding(self, run_ids: Sequence[str], text: str) -> Sequence[str]:
        """Those of these roots that may say a text somewhere, in letters of any case; all that do are among them."""
        ...


# What machines share beside runs


class WindowReport(NamedTuple):
    """What became of a part of a shared allowance."""

    slice: int
    requests: int
    tokens: int
    """So many count, of those that were taken."""
    seconds: float
    """For so long from now on."""


class WindowOrder(NamedTuple):
    """What a process wants of an allowance, and what became of what it had."""

    key: str
    """Whose allowance it is."""
    most_requests: int | None
    most_tokens: int | None
    """All that may count at once; None is no limit."""
    requests: int
    """How many are wanted; 0: this is a report, and no more."""
    tokens: int
    need: int
    """The tokens without which nothing is taken."""
    seconds: float
    """For so long what is taken counts, where nothing more is heard of it."""
    reports: Sequence[WindowReport] = ()


class WindowSlice(NamedTuple):
    """A part of an allowance; of no requests where there is no room now."""

    number: int
    requests: int
    tokens: int
    seconds: float = 0.0
    """Until there will be room, as far as is known."""


@runtime_checkable
class SharedLimits(Protocol):
    """What a store offers beside where all machines that use it count together."""

    @property
    def name(self) -> str: ...

    def take(self, order: WindowOrder) -> WindowSlice:
        """Note the reports, and take as much as there is room for: one request and what it needs, or nothing.

        Where nothing at all counts, one request is given whatever it needs.
        """
        ...
