"""The interface `Store` that every store implements, and the classes of its arguments and results.

A store saves runs, records which process drives a run (executes its steps), and saves the answers of users to requests
for human input. A store is independent of the agent loop: the record, the state and the journal entries of a run are
JSON text that the store does not parse. Only the values that a list of runs shows are stored in separate fields
(`RunFacts`). A commit is one transaction over all changed runs of a tree (a root run and the branches below it). Work
that depends on a commit starts only after the commit has finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from acorn.errors import StoreError
from acorn.types import Request, Usage

Status = Literal["queued", "running", "waiting", "stopped", "failed", "done", "cancelled"]
"""The status of a run. A run that is stored as `running` but has no live process is reported as `stopped`."""


NOT_STARTED = "null"
"""The JSON text of the record and of the state of a queued run that no process has started."""
FINAL_STATUSES: tuple[Status, ...] = ("done", "cancelled")
"""The statuses of runs that no process drives again."""


class RunCancelledError(StoreError):
    """A commit failed because a user or another process has cancelled the run."""


class RunClaimedError(StoreError):
    """A process cannot claim a run because another live process drives the run."""

    process: Process | None = None


class StoreUnreachableError(StoreError):
    """The database of a store does not answer. A later attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Process:
    """An operating system process that drives runs."""

    id: str
    """A random id that each process creates for itself."""
    host: str
    boot: str
    """The id of the current boot of the machine and its namespaces. Empty if the system does not provide it."""
    pid: int
    started: str
    """The start time of the process in the unit of the system. It distinguishes processes that had the same PID."""


# Errors that all stores raise with the same message


def run_not_found_error(run_id: str, store: str) -> StoreError:
    return StoreError(f"Run {run_id!r} is not in {store}. To list its runs, use `acorn runs --store {store}`.")


def run_claimed_error(run_id: str, process: Process, heartbeat_age: float) -> RunClaimedError:
    error = RunClaimedError(
        f"Run {run_id} is driven by process {process.pid} on {process.host} (last heartbeat {heartbeat_age:.0f} s "
        f"ago). Wait for the run, or stop the process."
    )
    error.process = process
    return error


def run_cancelled_error(run_id: str) -> RunCancelledError:
    return RunCancelledError(f"Run {run_id} was cancelled. This process writes nothing more to the run.")


# Runs


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A summary of a run for lists of runs: its status, model, usage, cost, times and error."""

    id: str
    agent: str
    """The class of the run as `module:qualname`."""
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
    """The error message of a failed run in one line."""
    root: str = ""
    """The id of the root run. For a root, this is its own id."""
    parent: str | None = None
    item: int | None = None
    """The index of the run in its batch."""


class RunHeader(NamedTuple):
    """The fields of a run that never change after its first commit."""

    agent: str
    parent: str | None
    branch: str | None
    """The data that the parent passed to a branch, as JSON text. None for a root."""
    input: str
    """The input of the run as JSON text."""
    started: datetime
    overrides: str | None = None
    """JSON text with the `settings` of the instance that differ from its class (without secrets), the `file` of the
    class, the `owner` (a digest) if a client of a service started the run, and the telemetry `span` in which the run
    started, if the run was traced."""
    batch: str | None = None
    item: int | None = None


class QueuedRun(NamedTuple):
    """A run that waits until another process starts it."""

    run_id: str
    header: RunHeader
    priority: int = 0
    """Runs with a higher priority start first."""
    not_before: datetime | None = None
    media: Sequence[MediaBlob] = ()
    """The images, audio clips and files in the input."""


class Change(NamedTuple):
    """The changes of one run that its previous commit did not contain."""

    run_id: str
    header: RunHeader | None
    """The header of a new run. None after the first change of the run."""
    offset: int
    """The number of journal entries that are already stored."""
    entries: Sequence[str]
    """The new journal entries, each as JSON text."""
    record: str | None
    """The record of the run as JSON text. None if only the fields below have changed."""
    state: str | None
    """The state of the machine as JSON text. None if the stored state and the new entries are enough to rebuild it."""
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
    """The hexadecimal SHA-256 hash of the data, which identifies the data."""
    data: bytes


class Commit(NamedTuple):
    """The changes of a root run and its branches that a store writes in one transaction."""

    root: str
    process: Process
    changes: Sequence[Change]
    """The changes of parents come before the changes of their branches. The process keeps its claim while the status of
    the root is `running`."""
    requests: Sequence[Request] = ()
    """All open requests of the tree. The store deletes all other unanswered requests of the tree."""
    media: Sequence[MediaBlob] = ()
    """The data that the JSON texts of the changes refer to. The store saves equal data once for all runs, and deletes
    the data with the last run that uses it."""


class StoredRun(NamedTuple):
    """A run as a store returns it: its header, journal, record and state."""

    facts: RunFacts
    header: RunHeader
    entries: Sequence[str]
    record: str
    state: str

    @property
    def has_started(self) -> bool:
        """Whether a process has ever started the run.

        It is False for a new run that still waits in the queue.
        """
        return self.state != NOT_STARTED


class StoredAnswer(NamedTuple):
    """The answer of a user to a request for human input."""

    request: Request
    value: Any
    """The answer as JSON data."""
    at: datetime
    digest: str | None = None
    """The value of `acorn.record.approval_digest` for the stored request and its answer, at the time of the answer."""


class JournalRow(NamedTuple):
    """A journal entry with a number that defines its order among all journal entries of the store."""

    position: int
    """A number that increases with each commit."""
    entry: str
    """The journal entry as JSON text."""


class PendingCommit(Protocol):
    """A commit that the store has received. `concurrent.futures.Future` implements this interface."""

    def result(self) -> None:
        """Wait until the data would survive a crash. Raise `StoreError` if the store cannot store the commit."""
        ...

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        """Call a function in any thread, with this object, when the commit is stored or has failed."""
        ...


@runtime_checkable
class Store(Protocol):
    """The interface that every store of runs implements.

    Any thread may call any method. Every method raises `StoreError` if it fails.
    """

    @property
    def name(self) -> str:
        """The path or the URL of the store, without passwords, for use in messages."""
        ...

    # Called by the process that drives a run

    def commit(self, commit: Commit) -> PendingCommit:
        """Receive a commit, and store all its changes in one transaction, or none of them.

        The store writes commits in the order of the calls, and may wait until the caller waits for a commit. A commit
        fails if another process has claimed the root run, if the root run was deleted, or if the commit creates a root
        run that already exists. If the root run has a cancel request, a commit that does not end the run is stored, and
        its `result` raises `RunCancelledError`.
        """
        ...

    def claim(self, run_id: str, process: Process, *, retry: bool = False) -> Sequence[StoredRun] | None:
        """Claim a root run for a process, and return the run and all its branches.

        Return None if the run does not exist. The list starts with the root run and contains each parent before its
        branches. The facts have the values from before the claim. The claim fails if another live process drives the
        run, or if the id belongs to a branch. A run that is `done` or `cancelled` is returned without a claim. If the
        previous process died, the store counts the takeover. At the fifth takeover at the same step, the run becomes
        `failed`. Such a run can only be claimed with `retry`, which sets the count to zero.
        """
        ...

    def release(self, run_id: str, process: Process, status: Status) -> None:
        """Release the claim of a process on a run and set the status of the run.

        Do nothing if another process has claimed the run. The status `queued` also clears the error of the run, because
        a worker will try the run again.
        """
        ...

    def answers(self, run_id: str) -> Sequence[StoredAnswer]:
        """Return the answers that users gave to requests of a root run and its branches, oldest answer first."""
        ...

    def renew_lease(self, process: Process, seconds: float) -> Sequence[str]:
        """Renew the lease of a process, and return the ids of those of its runs that have a cancel request."""
        ...

    # Called by processes that submit runs for other processes

    def enqueue(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        """Store runs with the status `queued`, all or none, and return the ids of the new runs.

        A run whose id is already stored does not change. With `deliver`, the workers of this store drive the runs,
        including stored runs that are not finished. A store without workers raises `StoreError` for `deliver`. The
        process that claims a queued run starts it. The first commit of a queued run has no header.
        """
        ...

    def statuses(self, run_ids: Sequence[str]) -> Mapping[str, Status]:
        """Return a dict that maps the ids of root runs to their statuses.

        Unknown ids are missing from the dict.
        """
        ...

    # Called by processes that inspect runs

    def read(self, run_id: str) -> Sequence[StoredRun]:
        """Return a run and the branches below it without claiming the run.

        Each parent comes before its branches. The list is empty if the run does not exist.
        """
        ...

    def media(self, wanted: Sequence[str]) -> Mapping[str, bytes]:
        """Return a dict that maps SHA-256 hashes to the stored media data.

        Unknown hashes are missing from the dict.
        """
        ...

    def find(self, prefix: str) -> Sequence[str]:
        """Return the ids of all root runs whose id starts with a prefix.

        If the prefix is a complete id, return only this id.
        """
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
        """Return the facts of the root runs that match all conditions, newest start time first.

        `agent` is a class name with or without its module.
        """
        ...

    def follow(self, run_id: str, after: int = 0) -> tuple[Status | None, Sequence[JournalRow]]:
        """Return the status of a run, and all journal entries of the run and its branches that follow a position.

        The status is None if the run does not exist.
        """
        ...

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        """Return the unanswered requests for human input, oldest first.

        With `run_id`, return only the requests of this root run and its branches.
        """
        ...

    def answer(self, request_id: str, value: Any) -> Request:
        """Store the answer to a request for human input, and return the request.

        The answer must be JSON data. Raise `StoreError` if the request does not exist or was already answered.
        """
        ...

    def cancel(self, run_id: str) -> None:
        """Cancel a run.

        If a process drives the run, the process ends the run at its next commit or earlier.
        """
        ...

    def delete(self, run_id: str) -> None:
        """Delete a run and the branches below it.

        Raise `StoreError` if a process drives the run.
        """
        ...

    def close(self) -> None:
        """Finish pending writes and close the connections.

        The next call of a method opens new connections.
        """
        ...


class RunWatch(Protocol):
    """A subscription to the changes of a run. It ends when `close` is called."""

    def wait(self, seconds: float) -> None:
        """Wait until the run may have changed since the last wait, or until the seconds have passed.

        The first call returns immediately, so that the caller reads the run before it waits.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class NotifyingStore(Protocol):
    """A store that notifies callers of changes, so that callers need not poll."""

    def watch(self, run_id: str) -> RunWatch: ...

    def on_cancel_request(self, process: Process, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function in another thread when one of the runs of a process may have a new cancel request.

        Return a function that ends the subscription.
        """
        ...


@runtime_checkable
class PollableStore(Protocol):
    """A store that sends no notifications, but that can cheaply check for cancel requests.

    The heartbeat thread calls `has_cancel_requests` often.
    """

    def has_cancel_requests(self, process: Process) -> bool:
        """Return True if any run that the process drives has a cancel request."""
        ...


@runtime_checkable
class SearchableStore(Protocol):
    """A store that can search the stored runs for a text without loading them."""

    def search(self, run_ids: Sequence[str], text: str) -> Sequence[str]:
        """Return those of the given root runs that contain a text. Uppercase and lowercase letters are equal.

        The list may also contain root runs without the text, so the caller must check each result.
        """
        ...


# Rate limits that several machines share


class PlaceOrder(NamedTuple):
    """The question whether a request may be sent now, under a rate limit that several processes share.

    The order also corrects the count of earlier requests.
    """

    key: str
    """The id of the rate limit."""
    max_requests: int | None
    max_tokens: int | None
    """The maximum number of requests, and of tokens, that count at the same time. None means no limit."""
    tokens: int | None
    """The estimated tokens of the request. None means that the order contains only corrections."""
    seconds: float
    """The seconds for which the request counts."""
    precision: float
    """The seconds to which the store may round up the time for which the request counts."""
    corrections: Sequence[tuple[float, int, int]] = ()
    """Earlier places, with the changes of their requests and tokens. The store ignores expired places."""


class PlaceAnswer(NamedTuple):
    """The answer to a `PlaceOrder`: a place, or the seconds to wait."""

    place: float
    """The time when the place expires, by the clock of the store. It identifies the place in a correction."""
    seconds: float
    """The seconds until a place may be free, or 0 if the place was granted."""


@runtime_checkable
class SharedLimits(Protocol):
    """A store through which processes on several machines share rate limits."""

    @property
    def name(self) -> str: ...

    def take_place(self, order: PlaceOrder) -> PlaceAnswer:
        """Apply the corrections of an order, and grant a place if the rate limit allows it.

        If no other place counts now, the store grants the place even if the request needs more tokens than the limit.
        Otherwise this request could never be sent.
        """
        ...
