"""The store port: the interface that every store implements, and the data that crosses it.

A store saves runs, records which process drives a run, and keeps human answers. It does not know the agent loop. The
record, the state and the journal entries of a run are JSON text that the store does not read; beside them it has the
few facts that a list shows. A commit is one transaction over all changed runs of a tree. Work that depends on a commit
starts only after the commit has finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from acorn.errors import StoreError
from acorn.types import Request, Usage

if TYPE_CHECKING:
    from concurrent.futures import Future  # imports logging, which a program that only declares agents does not need

Status = Literal["queued", "running", "waiting", "stopped", "failed", "done", "cancelled"]
"""The status of a run. A run that is stored as `running` but has no live process is reported as `stopped`."""


NOT_STARTED = "null"
"""The record and the state of a queued run that no process has started."""


class RunCancelledError(StoreError):
    """The run was cancelled by request."""


class RunClaimedError(StoreError):
    """A live process drives the run."""

    process: Process | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that drives runs."""

    id: str
    """Random, new in each process."""
    host: str
    boot: str
    """Identifies the current boot of the machine and the PID namespace. Empty if the system does not tell."""
    pid: int
    started: str
    """The start time of the process in the system's unit. It tells two processes with the same PID apart."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Summary of a run."""

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
    """The id of the root run. For a root, this is its own id."""
    parent: str | None = None
    item: int | None = None
    """The index of its item in the batch."""


class RunHeader(NamedTuple):
    """The parts of a run that never change."""

    agent: str
    parent: str | None
    branch: str | None
    """The start data of a branch, as JSON. None for a root."""
    input: str
    """JSON."""
    started: datetime
    overrides: str | None = None
    """JSON with the `settings` of the instance that differ from its class (without secrets), the `file` of the class,
    and the `span` in which the run started if it was traced."""
    batch: str | None = None
    item: int | None = None


class QueuedRun(NamedTuple):
    """A run that another process should start."""

    run_id: str
    header: RunHeader
    priority: int = 0
    """Runs with a higher priority start first."""
    not_before: datetime | None = None
    media: Sequence[MediaBlob] = ()
    """The binary parts of the input."""


class Change(NamedTuple):
    """The changes of one run since its last commit."""

    run_id: str
    header: RunHeader | None
    """Only in the first change of a run."""
    offset: int
    """The number of journal entries that are already stored."""
    entries: Sequence[str]
    """The new journal entries, each as JSON."""
    record: str | None
    """The record of the run, as JSON. None if only the fields below changed."""
    state: str | None
    """The state of the machine, as JSON. None if it can be rebuilt from the stored state and the entries."""
    status: Status
    model: str | None
    steps: int
    usage: Usage
    cost: float | None
    seconds: float
    stop_reason: str | None
    error: str | None


class MediaBlob(NamedTuple):
    """The data of an image, an audio clip or a file."""

    sha256: str
    """The hexadecimal SHA-256 of the data, which identifies it."""
    data: bytes


class Commit(NamedTuple):
    """One transaction: the changes of a root and of the runs below it."""

    root: str
    process: Process
    changes: Sequence[Change]
    """Parents come before their branches. The process keeps its claim while the root is `running`."""
    requests: Sequence[Request] = ()
    """All open requests of the tree. The store closes its other unanswered requests of the tree."""
    media: Sequence[MediaBlob] = ()
    """Data that the texts of the changes refer to. The store keeps equal data once for all runs, and deletes it with
    the last run that has it."""


class StoredRun(NamedTuple):
    """A run as a store returns it."""

    facts: RunFacts
    header: RunHeader
    entries: Sequence[str]
    record: str
    state: str

    @property
    def has_started(self) -> bool:
        return self.state != NOT_STARTED


class StoredAnswer(NamedTuple):
    """A human answer to a request."""

    request: Request
    value: Any
    """JSON data."""
    at: datetime


class JournalRow(NamedTuple):
    """A journal entry with its position in the store."""

    position: int
    """Increases in commit order."""
    entry: str
    """JSON."""


@runtime_checkable
class Store(Protocol):
    """Storage for runs. Every method may be called from any thread and reports failures as `StoreError`."""

    @property
    def name(self) -> str:
        """The name used in messages, without passwords."""
        ...

    # Called by the process that drives a run

    def commit(self, commit: Commit) -> Future[None]:
        """Store all changes or none, in call order. The future is done when the data would survive a crash.

        The future fails if another process has claimed the root, if the root was deleted, or if the commit creates a
        root that already exists. It fails with `RunCancelledError` if the run should be cancelled.
        """
        ...

    def claim(self, run_id: str, process: Process) -> Sequence[StoredRun] | None:
        """Claim a run and read its tree: the root first, each parent before its branches. None if it does not exist.

        The claim is refused if a live process has the run, or if the run is a branch. A run that is `done` or
        `cancelled` is returned without a claim. The facts are those from before the claim. If the previous process
        died, the store counts the takeover; at the fifth takeover at the same step the run becomes `failed`.
        """
        ...

    def release(self, run_id: str, process: Process, status: Status) -> None:
        """Give up the claim without other changes. Do nothing if another process has the claim.

        Releasing a run as `queued` clears its error, because the run will be tried again.
        """
        ...

    def answers(self, run_id: str) -> Sequence[StoredAnswer]:
        """Return the answers for a root and the runs below it, in the order in which they were given."""
        ...

    def renew_lease(self, process: Process, seconds: float) -> Sequence[str]:
        """Renew the lease of a process and return its runs that should be cancelled."""
        ...

    # Called by processes that submit runs for other processes

    def enqueue(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        """Store runs as `queued`, all or none, and return the ids that are new. Runs with a known id do not change.

        With `deliver`, the workers of this store drive the runs, including known runs that are not finished. A store
        without workers refuses that. The process that claims a queued run starts it; its first commit has no header.
        """
        ...

    def statuses(self, run_ids: Sequence[str]) -> Mapping[str, Status]:
        """Return the status of each root. Unknown ids are missing from the result."""
        ...

    # Called by processes that inspect runs

    def read(self, run_id: str) -> Sequence[StoredRun]:
        """Read a run and the runs below it without a claim, in the order of `claim`. Empty if it does not exist."""
        ...

    def media(self, wanted: Sequence[str]) -> Mapping[str, bytes]:
        """Return stored data by its SHA-256. Unknown hashes are missing from the result."""
        ...

    def find(self, prefix: str) -> Sequence[str]:
        """Return the ids of roots that start with a prefix. A complete id matches only itself."""
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
        """List roots by start time, newest first. `agent` is a class name with or without its module."""
        ...

    def follow(self, run_id: str, after: int = 0) -> tuple[Status | None, Sequence[JournalRow]]:
        """Return the status of a run and the journal entries of its tree after a position.

        The status is None if the run does not exist.
        """
        ...

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        """Return the open requests of one tree or of all runs, oldest first."""
        ...

    def answer(self, request_id: str, value: Any) -> Request:
        """Store an answer (JSON data) and return its request. Refused if the request is not open."""
        ...

    def cancel(self, run_id: str) -> None:
        """Cancel a run. If a process drives it, that process ends it, at the latest at its next commit."""
        ...

    def delete(self, run_id: str) -> None:
        """Delete a run and the runs below it. Refused while a process drives the run."""
        ...

    def close(self) -> None:
        """Finish pending writes and close the connections. The store opens them again when it is used again."""
        ...


class RunWatch(Protocol):
    """A subscription to the changes of a run, until it is closed."""

    def wait(self, seconds: float) -> None:
        """Wait until the run may have changed since the last wait, at most for some seconds.

        The first call returns at once, so that the caller reads the run before it waits.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class NotifyingStore(Protocol):
    """A store that reports changes immediately, so that callers need not poll."""

    def watch(self, run_id: str) -> RunWatch: ...

    def on_cancel_request(self, process: Process, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function in another thread when a run of a process may have to be cancelled.

        The returned function ends this.
        """
        ...


@runtime_checkable
class PollableStore(Protocol):
    """A store that cannot report changes, but where checking for cancel requests is cheap."""

    def has_cancel_requests(self, process: Process) -> bool:
        """Whether a run of this process should be cancelled."""
        ...


@runtime_checkable
class SearchableStore(Protocol):
    """A store that can search for text without returning every run."""

    def search(self, run_ids: Sequence[str], text: str) -> Sequence[str]:
        """Return the roots that may contain a text, ignoring case. All that contain it are included."""
        ...


# Rate limits that several machines share


class WindowReport(NamedTuple):
    """The actual use of a slice of a shared rate limit."""

    slice: int
    requests: int
    tokens: int
    """The number of taken tokens that count."""
    seconds: float
    """How long they count from now on."""


class WindowOrder(NamedTuple):
    """A request of a process for a slice of a rate limit, with reports on its earlier slices."""

    key: str
    """Identifies the rate limit."""
    most_requests: int | None
    most_tokens: int | None
    """The maximum that may count at once. None means no limit."""
    requests: int
    """The wanted number of requests. 0 if the order only reports."""
    tokens: int
    need: int
    """The minimum number of tokens. With fewer, nothing is taken."""
    seconds: float
    """How long the slice counts if the process never reports on it."""
    reports: Sequence[WindowReport] = ()


class WindowSlice(NamedTuple):
    """A part of a rate limit. It has 0 requests if nothing is available now."""

    number: int
    requests: int
    tokens: int
    seconds: float = 0.0
    """The expected wait until something is available, as far as known."""


@runtime_checkable
class SharedLimits(Protocol):
    """A store in which all machines that use it count rate limits together."""

    @property
    def name(self) -> str: ...

    def take(self, order: WindowOrder) -> WindowSlice:
        """Save the reports and take as much as is available: at least one request with the tokens it needs, or nothing.

        If nothing counts at the moment, one request is granted however many tokens it needs.
        """
        ...
