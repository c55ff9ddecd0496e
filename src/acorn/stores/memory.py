"""Runs in the memory of the process: for tests, and for runs that need not outlive it."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from acorn.errors import StoreError
from acorn.stores import messages, rules
from acorn.stores.lease import is_alive, lease, nudge_heartbeat
from acorn.stores.port import (
    NOT_BEGUN,
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
from acorn.types import Request, Usage


@dataclass(slots=True)
class _MemoryRun:
    """A run, and where it is a root, what counts for its tree."""

    number: int
    birth: RunHeader
    facts: RunFacts
    record: str
    state: str
    entries: list[JournalRow] = field(default_factory=list[JournalRow])
    holder: Process | None = None
    silence: float = 0.0
    attempts: int = 0
    attempted: int = -1
    is_unwanted: bool = False
    media: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class _OpenRequestRow:
    request: Request
    root: str
    value: str | None = None
    at: datetime | None = None
    turn: int = 0


class MemoryStore:
    """A store in this process alone."""

    def __init__(self) -> None:
        self._begin()
        self._runs: dict[str, _MemoryRun] = {}
        self._asked: dict[str, _OpenRequestRow] = {}
        self._heard: dict[str, tuple[float, float]] = {}
        """By holder: when it was heard of, and until when it lives."""
        self._media: dict[str, bytes] = {}
        self._numbers = itertools.count(1)
        self._positions = itertools.count(1)
        self._turns = itertools.count(1)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @contextmanager
    def _alone(self) -> Generator[None]:
        if self._pid != os.getpid():  # whoever had the lock when this child was made is not here
            self._begin()
        with self._lock:
            yield

    @property
    def name(self) -> str:
        return "memory"

    # By whoever drives a run

    def commit(self, commit: Commit) -> Future[None]:
        future: Future[None] = Future()
        try:
            with self._alone():
                self._commit(commit, time.time())
        except StoreError as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    def _commit(self, commit: Commit, now: float) -> None:
        root = self._runs.get(commit.root)
        is_birth = rules.is_new_run(commit)
        if is_birth and root is not None:
            raise messages.exists(commit.root, self.name, *self._seen(root, now))
        if not is_birth:
            self._fence(commit, root)
        rules.refuse_misfits(commit, self._known(commit), self.name)
        if is_birth:
            self._register(commit.holder, now, lease())
        for change in commit.changes:
            self._change(change, commit, now)
        root = self._runs[commit.root]
        root.facts = replace(root.facts, updated=_moment(now))
        if root.facts.status != "running":
            root.holder, root.is_unwanted = None, False
        self._ask(commit.root, commit.requests)
        for sha256, data in commit.media:
            self._media.setdefault(sha256, data)
            root.media.add(sha256)

    def _fence(self, commit: Commit, root: _MemoryRun | None) -> None:
        if root is None:
            raise messages.deleted(commit.root, self.name)
        if root.holder is None or root.holder.id != commit.holder.id:
            raise messages.lost(commit.root, root.holder, root.silence, root.facts.status)
        if root.is_unwanted and not any(
            messages.ends(one.status) for one in commit.changes if one.run_id == commit.root
        ):
            raise messages.cancelled_by_request(commit.root)

    def _known(self, commit: Commit) -> dict[str, rules.KnownRun]:
        found = [self._runs[run_id] for run_id in rules.run_named(commit) if run_id in self._runs]
        return {run.facts.id: rules.KnownRun(run.facts.root, len(run.entries)) for run in found}

    def _change(self, change: Change, commit: Commit, now: float) -> None:
        run = self._runs.get(change.run_id)
        birth = change.birth or (run.birth if run is not None else None)
        assert birth is not None
        is_root = change.run_id == commit.root
        is_unwanted = is_root and run is not None and run.is_unwanted
        facts = RunFacts(
            change.run_id, birth.agent, messages.with_cancelling(change.status, is_unwanted), change.model,
            change.steps,
            change.usage.copy(), change.cost, birth.started, _moment(now), change.seconds, birth.batch,
            change.stop_reason, change.error, commit.root, birth.parent, birth.item,
        )  # fmt: skip
        if run is None:
            run = _MemoryRun(
                next(self._numbers),
                birth,
                facts,
                "{}" if change.record is None else change.record,
                NOT_BEGUN if change.state is None else change.state,
            )
            run.holder = commit.holder if is_root else None
            self._runs[change.run_id] = run
        run.facts = facts
        run.state = run.state if change.state is None else change.state
        run.record = run.record if change.record is None else change.record
        run.entries += [JournalRow(next(self._positions), entry) for entry in change.entries]

    def _ask(self, root: str, requests: Sequence[Request]) -> None:
        """From now on these are open, those that have an answer apart, and no others."""
        wanted = {request.id for request in requests}
        for request_id, asked in list(self._asked.items()):
            if asked.root == root and asked.value is None and request_id not in wanted:
                del self._asked[request_id]
        for request in requests:
            self._asked.setdefault(request.id, _OpenRequestRow(request, root))

    def claim(self, run_id: str, holder: Process) -> Sequence[StoredRun] | None:
        with self._alone():
            now = time.time()
            run = self._runs.get(run_id)
            if run is None:
                return None
            self._refuse_branch(run)
            status, driver = self._seen(run, now)
            if driver is not None:
                raise driver
            kept = self._tree(run, now)
            if status in messages.OVER:
                return kept
            silence = 0.0
            if run.facts.status == "running":
                self._count_attempt(run, kept, now)
                silence = now - self._heard[run.holder.id][0] if run.holder is not None else 0.0
            self._register(holder, now, lease())
            run.facts = replace(run.facts, status="running", updated=_moment(now))
            run.holder, run.silence = holder, silence
            return kept

    def _count_attempt(self, run: _MemoryRun, kept: Sequence[StoredRun], now: float) -> None:
        steps = sum(one.facts.steps for one in kept)
        run.attempts = run.attempts + 1 if run.attempted == steps else 1
        run.attempted = steps
        if run.attempts >= messages.MOST_TAKE_OVERS:
            error = messages.too_many_crashes(run.facts.id)
            self._rest(run, "failed", now)
            run.facts = replace(run.facts, error=error)
            raise StoreError(error)

    def release(self, run_id: str, holder: Process, status: Status) -> None:
        with self._alone():
            run = self._runs.get(run_id)
            if run is not None and run.holder is not None and run.holder.id == holder.id:
                status = messages.with_cancelling(status, run.is_unwanted)
                self._rest(run, status, time.time())
                if status == "queued":
                    run.facts = replace(run.facts, error=None)

    def _rest(self, run: _MemoryRun, status: Status, now: float) -> None:
        run.facts = replace(run.facts, status=status, updated=_moment(now))
        run.holder, run.is_unwanted = None, False
        if status == "cancelled":
            self._ask(run.facts.id, ())

    def answers(self, run_id: str) -> Sequence[StoredAnswer]:
        with self._alone():
            found = sorted(self._asked_of(run_id, answered=True), key=lambda asked: asked.turn)
            return [StoredAnswer(one.request, json.loads(one.value), one.at) for one in found if one.value and one.at]

    def beat(self, holder: Process, seconds: float) -> Sequence[str]:
        with self._alone():
            self._register(holder, time.time(), seconds)
            mine = [run for run in self._runs.values() if run.holder is not None and run.holder.id == holder.id]
            return [run.facts.id for run in mine if run.is_unwanted]

    def _register(self, holder: Process, now: float, seconds: float) -> None:
        self._heard[holder.id] = (now, now + seconds)

    # By whoever wants runs to begin elsewhere

    def put(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            raise messages.no_engine(self.name)
        with self._alone():
            now = _moment(time.time())
            new = list({one.run_id: one for one in reversed(runs) if one.run_id not in self._runs}.values())[::-1]
            for one in new:
                birth = one.birth
                facts = RunFacts(
                    one.run_id, birth.agent, "queued", None, 0, Usage(), None, birth.started, now, 0.0, birth.batch,
                    root=one.run_id, item=birth.item,
                )  # fmt: skip
                run = self._runs[one.run_id] = _MemoryRun(next(self._numbers), birth, facts, NOT_BEGUN, NOT_BEGUN)
                for sha256, data in one.media:
                    self._media.setdefault(sha256, data)
                    run.media.add(sha256)
            return [one.run_id for one in new]

    def statuses(self, run_ids: Sequence[str]) -> Mapping[str, Status]:
        with self._alone():
            now = time.time()
            roots = [run for one in run_ids if (run := self._runs.get(one)) is not None and run.facts.parent is None]
            return {run.facts.id: self._seen(run, now)[0] for run in roots}

    # By whoever looks on

    def read(self, run_id: str) -> Sequence[StoredRun]:
        with self._alone():
            run = self._runs.get(run_id)
            return [] if run is None else self._tree(run, time.time())

    def media(self, wanted: Sequence[str]) -> Mapping[str, bytes]:
        with self._alone():
            return {sha256: self._media[sha256] for sha256 in wanted if sha256 in self._media}

    def _tree(self, run: _MemoryRun, now: float) -> list[StoredRun]:
        is_driven = self._is_driven(run.facts.root, now)
        is_unwanted = self._runs[run.facts.root].is_unwanted
        found: list[StoredRun] = []
        for one in self._below(run):
            facts = replace(
                one.facts,
                status=messages.as_seen(one.facts.status, is_unwanted, is_driven),
                usage=one.facts.usage.copy(),
            )
            found.append(StoredRun(facts, one.birth, [heard.entry for heard in one.entries], one.record, one.state))
        return found

    def _below(self, run: _MemoryRun) -> list[_MemoryRun]:
        """A run and all below it; a parent is born before its branches."""
        if run.facts.root == run.facts.id:
            return [one for one in self._runs.values() if one.facts.root == run.facts.id]
        ids = {run.facts.id}
        found: list[_MemoryRun] = []
        for one in self._runs.values():
            if one.facts.id in ids or one.facts.parent in ids:
                ids.add(one.facts.id)
                found.append(one)
        return found

    def find(self, prefix: str) -> Sequence[str]:
        with self._alone():
            found = sorted(
                one for one, run in self._runs.items() if run.facts.parent is None and one.startswith(prefix)
            )
            return [prefix] if prefix in found else found

    def list(
        self,
        *,
        status: Sequence[Status] = (),
        agent: str | None = None,
        batch: str | None = None,
        before: datetime | None = None,
        limit: int | None = 50,
    ) -> Sequence[RunFacts]:
        with self._alone():
            now = time.time()
            found = [
                replace(run.facts, status=self._seen(run, now)[0], usage=run.facts.usage.copy())
                for run in sorted(self._runs.values(), key=lambda run: (run.facts.started, run.number), reverse=True)
                if run.facts.parent is None
                and (agent is None or messages.is_named(run.facts.agent, agent))
                and (batch is None or run.facts.batch == batch)
                and (before is None or run.facts.started < before)
            ]
            found = [facts for facts in found if not status or facts.status in status]
            return found[: None if limit is None else max(limit, 0)]

    def follow(self, run_id: str, after: int = 0) -> tuple[Status | None, Sequence[JournalRow]]:
        with self._alone():
            run = self._runs.get(run_id)
            if run is None:
                return None, []
            is_driven = self._is_driven(run.facts.root, time.time())
            status = messages.as_seen(run.facts.status, self._runs[run.facts.root].is_unwanted, is_driven)
            heard = [entry for one in self._below(run) for entry in one.entries if entry.position > after]
            return status, sorted(heard)

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        with self._alone():
            found = [asked.request for asked in self._asked_of(run_id, answered=False)]
            return sorted(found, key=lambda request: request.asked)

    def _asked_of(self, run_id: str | None, *, answered: bool) -> Sequence[_OpenRequestRow]:
        root = self._runs[run_id].facts.root if run_id in self._runs else None
        return [
            asked
            for asked in self._asked.values()
            if (run_id is None or asked.root == root) and (asked.value is not None) is answered
        ]

    def answer(self, request_id: str, value: Any) -> Request:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise messages.not_plain(request_id, error) from error
        with self._alone():
            asked = self._asked.get(request_id)
            if asked is None:
                raise messages.no_request(request_id, self.name)
            if asked.at is not None:
                raise messages.answered(request_id, asked.at)
            asked.value, asked.at, asked.turn = text, datetime.now(UTC), next(self._turns)
            return asked.request

    def cancel(self, run_id: str) -> None:
        with self._alone():
            run, now = self._root(run_id), time.time()
            status, driver = self._seen(run, now)
            if status == "done":
                raise messages.is_over(run_id, status)
            if driver is None:
                self._rest(run, "cancelled", now)
            else:
                run.is_unwanted = True
        nudge_heartbeat(self)

    def delete(self, run_id: str) -> None:
        with self._alone():
            run = self._root(run_id)
            _, driver = self._seen(run, time.time())
            if driver is not None:
                raise driver
            for one in self._below(run):
                del self._runs[one.facts.id]
            self._asked = {one: asked for one, asked in self._asked.items() if asked.root != run_id}
            named = set[str]().union(*(one.media for one in self._runs.values()))
            self._media = {sha256: data for sha256, data in self._media.items() if sha256 in named}

    def close(self) -> None:
        """What is in memory stays there."""

    def _root(self, run_id: str) -> _MemoryRun:
        run = self._runs.get(run_id)
        if run is None:
            raise messages.no_run(run_id, self.name)
        self._refuse_branch(run)
        return run

    def _refuse_branch(self, run: _MemoryRun) -> None:
        if run.facts.parent is not None:
            raise messages.is_branch(run.facts.id, run.facts.root)

    def _is_driven(self, root: str, now: float) -> Callable[[], bool]:
        holder = self._runs[root].holder
        return lambda: holder is not None and is_alive(holder, self._heard[holder.id][1], now)

    def _seen(self, run: _MemoryRun, now: float) -> tuple[Status, StoreError | None]:
        """What a run is at; and where a live process drives it, what to say of that."""
        is_driven = self._is_driven(run.facts.root, now)
        status = messages.as_seen(run.facts.status, run.is_unwanted, is_driven)
        if run.holder is None or run.facts.status != "running" or not is_driven():
            return status, None
        return status, messages.claimed_elsewhere(run.facts.id, run.holder, now - self._heard[run.holder.id][0])


def _moment(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)
