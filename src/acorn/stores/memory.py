"""A store in the memory of the process, for tests and for runs that may be lost when the process ends."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from acorn.errors import StoreError
from acorn.stores import rules
from acorn.stores.lease import is_alive, lease_seconds, wake_heartbeat
from acorn.stores.port import (
    NOT_STARTED,
    Change,
    Commit,
    JournalRow,
    Process,
    QueuedRun,
    RunFacts,
    RunHeader,
    Status,
    StoredAnswer,
    StoredRun,
)
from acorn.stores.rules import to_datetime
from acorn.types import Request, Usage


@dataclass(slots=True)
class _MemoryRun:
    """The data of one stored run, which commits change.

    Only a root run (a run that is not a branch) has a process, takeover counters and media. The media of its branches
    are included.
    """

    number: int
    header: RunHeader
    facts: RunFacts
    record: str
    state: str
    entries: list[JournalRow] = field(default_factory=list[JournalRow])
    process: Process | None = None
    heartbeat_age: float = 0.0
    takeovers: int = 0
    takeover_steps: int = -1
    cancel_requested: bool = False
    media: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class _MemoryRequest:
    """A stored request for human input, with its answer as JSON text if a user has answered."""

    request: Request
    root: str
    answer: str | None = None
    answered: datetime | None = None
    answer_order: int = 0


class _Lease(NamedTuple):
    """The time of the last heartbeat of a process and the time when its lease expires, in seconds since 1970."""

    last_heartbeat: float
    expires: float


class MemoryStore:
    """A store in the memory of this process.

    Its runs are lost when the process ends.
    """

    def __init__(self) -> None:
        self._reset_lock()
        self._runs: dict[str, _MemoryRun] = {}
        self._requests: dict[str, _MemoryRequest] = {}
        self._leases: dict[str, _Lease] = {}
        """A dict that maps process ids to leases."""
        self._media: dict[str, bytes] = {}
        self._numbers = itertools.count(1)
        self._positions = itertools.count(1)
        self._answer_orders = itertools.count(1)

    def _reset_lock(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @contextmanager
    def _locked(self) -> Generator[None]:
        if self._pid != os.getpid():  # The thread that locked the lock before the fork does not exist in the child.
            self._reset_lock()
        with self._lock:
            yield

    @property
    def name(self) -> str:
        return "memory"

    # Called by the process that drives a run

    def commit(self, commit: Commit) -> Future[None]:
        future: Future[None] = Future()
        try:
            with self._locked():
                self._commit(commit, time.time())
        except StoreError as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    def _commit(self, commit: Commit, now: float) -> None:
        root = self._runs.get(commit.root)
        is_new = rules.creates_root(commit)
        if is_new and root is not None:
            raise rules.run_exists_error(commit.root, self.name, *self._status_and_driver(root, now))
        if not is_new:
            self._check_claim(commit, root)
        stored = [self._runs[run_id] for run_id in rules.runs_of_commit(commit) if run_id in self._runs]
        known = {run.facts.id: rules.KnownRun(run.facts.root, len(run.entries)) for run in stored}
        rules.check_commit(commit, known, self.name)
        if is_new:
            self._set_lease(commit.process, now, lease_seconds())
        for change in commit.changes:
            self._apply_change(change, commit, now)
        root = self._runs[commit.root]
        root.facts = replace(root.facts, updated=to_datetime(now))
        if root.facts.status != "running":
            root.process, root.cancel_requested = None, False
        self._set_open_requests(commit.root, commit.requests)
        for sha256, data in commit.media:
            self._media.setdefault(sha256, data)
            root.media.add(sha256)

    def _check_claim(self, commit: Commit, root: _MemoryRun | None) -> None:
        """Check that a commit may write to its root run.

        Raise `StoreError` if the process of the commit no longer drives the root run, if the root run has a cancel
        request, or if it was deleted.
        """
        if root is None:
            raise rules.run_deleted_error(commit.root, self.name)
        if root.process is None or root.process.id != commit.process.id:
            raise rules.taken_over_error(commit.root, root.process, root.heartbeat_age, root.facts.status)
        if root.cancel_requested and not rules.ends_root(commit):
            raise rules.run_cancelled_error(commit.root)

    def _apply_change(self, change: Change, commit: Commit, now: float) -> None:
        run = self._runs.get(change.run_id)
        header = change.header or (run.header if run is not None else None)
        assert header is not None
        is_root = change.run_id == commit.root
        cancel_requested = is_root and run is not None and run.cancel_requested
        status = rules.status_after_cancel(change.status) if cancel_requested else change.status
        facts = RunFacts(
            change.run_id, header.agent, status, change.model, change.steps, change.usage.copy(), change.cost,
            header.started, to_datetime(now), change.seconds, header.batch, change.stop_reason, change.error,
            commit.root, header.parent, header.item,
        )  # fmt: skip
        if run is None:
            run = _MemoryRun(
                next(self._numbers),
                header,
                facts,
                "{}" if change.record is None else change.record,
                NOT_STARTED if change.state is None else change.state,
            )
            run.process = commit.process if is_root else None
            self._runs[change.run_id] = run
        run.facts = facts
        run.state = run.state if change.state is None else change.state
        run.record = run.record if change.record is None else change.record
        run.entries += [JournalRow(next(self._positions), entry) for entry in change.entries]

    def _set_open_requests(self, root: str, requests: Sequence[Request]) -> None:
        """Replace the unanswered requests for human input of a root run and its branches.

        Answered requests remain unchanged.
        """
        open_ids = {request.id for request in requests}
        for request_id, stored in list(self._requests.items()):
            if stored.root == root and stored.answer is None and request_id not in open_ids:
                del self._requests[request_id]
        for request in requests:
            self._requests.setdefault(request.id, _MemoryRequest(request, root))

    def claim(self, run_id: str, process: Process) -> Sequence[StoredRun] | None:
        with self._locked():
            now = time.time()
            run = self._runs.get(run_id)
            if run is None:
                return None
            self._refuse_branch(run)
            status, driver = self._status_and_driver(run, now)
            if driver is not None:
                raise driver
            tree = self._tree(run, now)
            if status in rules.FINAL_STATUSES:
                return tree
            heartbeat_age = 0.0
            if run.facts.status == "running":
                self._count_takeover(run, tree, now)
                heartbeat_age = now - self._leases[run.process.id].last_heartbeat if run.process is not None else 0.0
            self._set_lease(process, now, lease_seconds())
            run.facts = replace(run.facts, status="running", updated=to_datetime(now))
            run.process, run.heartbeat_age = process, heartbeat_age
            return tree

    def _count_takeover(self, run: _MemoryRun, tree: Sequence[StoredRun], now: float) -> None:
        steps = sum(member.facts.steps for member in tree)
        run.takeovers = run.takeovers + 1 if run.takeover_steps == steps else 1
        run.takeover_steps = steps
        if run.takeovers >= rules.MAX_TAKEOVERS:
            error = rules.too_many_crashes_text(run.facts.id)
            self._set_status(run, "failed", now)
            run.facts = replace(run.facts, error=error)
            raise StoreError(error)

    def release(self, run_id: str, process: Process, status: Status) -> None:
        with self._locked():
            run = self._runs.get(run_id)
            if run is not None and run.process is not None and run.process.id == process.id:
                if run.cancel_requested:
                    status = rules.status_after_cancel(status)
                self._set_status(run, status, time.time())
                if status == "queued":
                    run.facts = replace(run.facts, error=None)

    def _set_status(self, run: _MemoryRun, status: Status, now: float) -> None:
        """Set the status of a root run and remove the claim of its process."""
        run.facts = replace(run.facts, status=status, updated=to_datetime(now))
        run.process, run.cancel_requested = None, False
        if status == "cancelled":
            self._set_open_requests(run.facts.id, ())

    def answers(self, run_id: str) -> Sequence[StoredAnswer]:
        with self._locked():
            answered = sorted(self._requests_of(run_id, answered=True), key=lambda stored: stored.answer_order)
            return [
                StoredAnswer(stored.request, json.loads(stored.answer), stored.answered)
                for stored in answered
                if stored.answer and stored.answered
            ]

    def renew_lease(self, process: Process, seconds: float) -> Sequence[str]:
        with self._locked():
            self._set_lease(process, time.time(), seconds)
            claimed = [run for run in self._runs.values() if run.process is not None and run.process.id == process.id]
            return [run.facts.id for run in claimed if run.cancel_requested]

    def _set_lease(self, process: Process, now: float, seconds: float) -> None:
        self._leases[process.id] = _Lease(now, now + seconds)

    # Called by processes that submit runs for other processes

    def enqueue(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            raise rules.no_workers_error(self.name)
        with self._locked():
            now = to_datetime(time.time())
            new = [queued for queued in rules.without_repeats(runs) if queued.run_id not in self._runs]
            for queued in new:
                header = queued.header
                facts = RunFacts(
                    queued.run_id, header.agent, "queued", None, 0, Usage(), None, header.started, now, 0.0,
                    header.batch, root=queued.run_id, item=header.item,
                )  # fmt: skip
                run = _MemoryRun(next(self._numbers), header, facts, NOT_STARTED, NOT_STARTED)
                self._runs[queued.run_id] = run
                for sha256, data in queued.media:
                    self._media.setdefault(sha256, data)
                    run.media.add(sha256)
            return [queued.run_id for queued in new]

    def statuses(self, run_ids: Sequence[str]) -> Mapping[str, Status]:
        with self._locked():
            now = time.time()
            known = [self._runs[run_id] for run_id in run_ids if run_id in self._runs]
            return {run.facts.id: self._status_and_driver(run, now)[0] for run in known if run.facts.parent is None}

    # Called by processes that inspect runs

    def read(self, run_id: str) -> Sequence[StoredRun]:
        with self._locked():
            run = self._runs.get(run_id)
            return [] if run is None else self._tree(run, time.time())

    def media(self, wanted: Sequence[str]) -> Mapping[str, bytes]:
        with self._locked():
            return {sha256: self._media[sha256] for sha256 in wanted if sha256 in self._media}

    def _tree(self, run: _MemoryRun, now: float) -> list[StoredRun]:
        is_driven = self._is_driven(run.facts.root, now)
        cancel_requested = self._runs[run.facts.root].cancel_requested
        tree: list[StoredRun] = []
        for member in self._run_and_below(run):
            status = rules.visible_status(member.facts.status, cancel_requested, is_driven)
            facts = replace(member.facts, status=status, usage=member.facts.usage.copy())
            entries = [row.entry for row in member.entries]
            tree.append(StoredRun(facts, member.header, entries, member.record, member.state))
        return tree

    def _run_and_below(self, run: _MemoryRun) -> list[_MemoryRun]:
        """Return a run and all branches below it.

        Each parent comes before its branches.
        """
        if run.facts.root == run.facts.id:
            return [member for member in self._runs.values() if member.facts.root == run.facts.id]
        ids = {run.facts.id}
        members: list[_MemoryRun] = []
        for candidate in self._runs.values():
            if candidate.facts.id in ids or candidate.facts.parent in ids:
                ids.add(candidate.facts.id)
                members.append(candidate)
        return members

    def find(self, prefix: str) -> Sequence[str]:
        with self._locked():
            ids = sorted(
                run_id for run_id, run in self._runs.items() if run.facts.parent is None and run_id.startswith(prefix)
            )
            return [prefix] if prefix in ids else ids

    def list(
        self,
        *,
        status: Sequence[Status] = (),
        agent: str | None = None,
        batch: str | None = None,
        before: datetime | None = None,
        limit: int | None = 50,
    ) -> Sequence[RunFacts]:
        with self._locked():
            now = time.time()
            roots = [
                replace(run.facts, status=self._status_and_driver(run, now)[0], usage=run.facts.usage.copy())
                for run in sorted(self._runs.values(), key=lambda run: (run.facts.started, run.number), reverse=True)
                if run.facts.parent is None
                and (agent is None or rules.has_class_name(run.facts.agent, agent))
                and (batch is None or run.facts.batch == batch)
                and (before is None or run.facts.started < before)
            ]
            selected = [facts for facts in roots if not status or facts.status in status]
            return selected[: None if limit is None else max(limit, 0)]

    def follow(self, run_id: str, after: int = 0) -> tuple[Status | None, Sequence[JournalRow]]:
        with self._locked():
            run = self._runs.get(run_id)
            if run is None:
                return None, []
            is_driven = self._is_driven(run.facts.root, time.time())
            cancel_requested = self._runs[run.facts.root].cancel_requested
            status = rules.visible_status(run.facts.status, cancel_requested, is_driven)
            return status, sorted(
                row for member in self._run_and_below(run) for row in member.entries if row.position > after
            )

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        with self._locked():
            unanswered = [stored.request for stored in self._requests_of(run_id, answered=False)]
            return sorted(unanswered, key=lambda request: request.asked)

    def _requests_of(self, run_id: str | None, *, answered: bool) -> Sequence[_MemoryRequest]:
        root = self._runs[run_id].facts.root if run_id in self._runs else None
        return [
            stored
            for stored in self._requests.values()
            if (run_id is None or stored.root == root) and (stored.answer is not None) is answered
        ]

    def answer(self, request_id: str, value: Any) -> Request:
        text = rules.answer_text(request_id, value)
        with self._locked():
            stored = self._requests.get(request_id)
            if stored is None:
                raise rules.request_not_open_error(request_id, self.name)
            if stored.answered is not None:
                raise rules.already_answered_error(request_id, stored.answered)
            stored.answer, stored.answered = text, to_datetime(time.time())
            stored.answer_order = next(self._answer_orders)
            return stored.request

    def cancel(self, run_id: str) -> None:
        with self._locked():
            run, now = self._root(run_id), time.time()
            status, driver = self._status_and_driver(run, now)
            if status == "done":
                raise rules.already_finished_error(run_id, status)
            if driver is None:
                self._set_status(run, "cancelled", now)
            else:
                run.cancel_requested = True
        wake_heartbeat(self)

    def delete(self, run_id: str) -> None:
        with self._locked():
            run = self._root(run_id)
            _, driver = self._status_and_driver(run, time.time())
            if driver is not None:
                raise driver
            for member in self._run_and_below(run):
                del self._runs[member.facts.id]
            self._requests = {key: stored for key, stored in self._requests.items() if stored.root != run_id}
            used = set[str]().union(*(other.media for other in self._runs.values()))
            self._media = {sha256: data for sha256, data in self._media.items() if sha256 in used}

    def close(self) -> None:
        """Do nothing, because the runs remain in memory."""

    def _root(self, run_id: str) -> _MemoryRun:
        run = self._runs.get(run_id)
        if run is None:
            raise rules.run_not_found_error(run_id, self.name)
        self._refuse_branch(run)
        return run

    def _refuse_branch(self, run: _MemoryRun) -> None:
        if run.facts.parent is not None:
            raise rules.branch_id_error(run.facts.id, run.facts.root)

    def _is_driven(self, root: str, now: float) -> bool:
        """Return True if a live process drives a root run."""
        process = self._runs[root].process
        return process is not None and is_alive(process, self._leases[process.id].expires, now)

    def _status_and_driver(self, run: _MemoryRun, now: float) -> tuple[Status, StoreError | None]:
        """Return the reported status of a run and an error.

        The error is a `RunClaimedError` if a live process drives the run, and None otherwise.
        """
        is_driven = self._is_driven(run.facts.root, now)
        status = rules.visible_status(run.facts.status, run.cancel_requested, is_driven)
        if run.process is None or run.facts.status != "running" or not is_driven:
            return status, None
        heartbeat_age = now - self._leases[run.process.id].last_heartbeat
        return status, rules.run_claimed_error(run.facts.id, run.process, heartbeat_age)
