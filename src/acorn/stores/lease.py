"""Claims, leases and heartbeats: which process, and which call in it, drives a run.

A process renews its lease with a heartbeat while it drives runs. When the lease of a process has expired, another
process may take over its runs. On the same machine, a run of a process that has ended may be taken over immediately. An
expired lease alone changes nothing: a process whose runs were not taken over continues.

A store knows only processes. Two calls of one process may both believe that they drive a run: a cancelled call whose
thread is still inside a slow tool, and the call that resumed the run meanwhile. The call that claimed the run last owns
it; the other call writes nothing more.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from acorn._base.log import logger
from acorn.errors import DeclarationError
from acorn.stores.port import NotifyingStore, PollableStore, Process, Store, StoredRun
from acorn.stores.rules import FINAL_STATUSES

_LEASE = 20.0
_BEATS_PER_LEASE = 4
_SOON = 0.5
"""Seconds after which a process that drives a run starts to look for cancel requests. Shorter runs need not look."""

_guard = threading.Lock()
_claims: WeakValueDictionary[tuple[int, str], Claim] = WeakValueDictionary()
_this_process: Process | None = None


# This process and others


def lease() -> float:
    """Return the seconds for which a heartbeat keeps a process alive: `ACORN_LEASE`, or 20."""
    text = os.environ.get("ACORN_LEASE", "")
    try:
        seconds = float(text or _LEASE)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise DeclarationError(f"`ACORN_LEASE` must be a number of seconds, got {text!r}.")
    return seconds


def this_process() -> Process:
    """Return this process, the same object at each call. A forked child is another process."""
    global _this_process
    pid = os.getpid()
    with _guard:
        if _this_process is None or _this_process.pid != pid:
            started = _start_time(pid) or ""
            _this_process = Process(secrets.token_hex(16), socket.gethostname(), _boot(), pid, started)
        return _this_process


def is_alive(process: Process, lease_expires: float, now: float) -> bool:
    """Whether a process keeps its claims: its lease has not expired, and it is not known to have ended."""
    return lease_expires > now and not _has_ended(process)


def _has_ended(process: Process) -> bool:
    here = this_process()
    if not process.boot or process.boot != here.boot:
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # The process exists and belongs to another user.
        pass
    started = _start_time(process.pid)
    return started is not None and started != process.started


def _boot() -> str:
    """Identify the boot of this machine. Empty if the system does not tell; then only an expired lease frees a run."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _start_time(pid: int) -> str | None:
    """Return the start time of a process, empty for a zombie, or None if the system does not tell."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the name of the program in parentheses, which may contain any character.
    state, *fields = line[line.rindex(b")") + 2 :].split()
    return "" if state in (b"Z", b"X", b"x") else fields[18].decode("ascii")


# Claims of calls in this process


class Claim:
    """The claim of this process on one run of one store, as long as a call refers to it."""

    __slots__ = ("__weakref__", "generation", "lock", "process", "store")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.process = this_process()
        """This process. A forked child replaces it, because the claim belongs to the parent."""
        self.lock = threading.Lock()
        """Held while the run is claimed, and by a call from checking the generation until it has written."""
        self.generation = 0
        """How often this process has claimed the run. A call with an older number has lost the run."""


def claim_of(store: Store, run_id: str) -> Claim:
    """Return the claim object of a run, shared by all calls in this process."""
    new_claim = Claim(store)
    with _guard:
        return _claims.setdefault((id(store), run_id), new_claim)


def claim_run(store: Store, run_id: str) -> Sequence[StoredRun] | None:
    """Claim a run for a new call in this process. Any earlier call loses it."""
    claim = claim_of(store, run_id)
    with claim.lock:
        tree = store.claim(run_id, this_process())
        if tree is not None and tree[0].facts.status not in FINAL_STATUSES:
            claim.generation += 1
        return tree


# Heartbeats: one per store, while this process drives runs of it

_OnCancel = Callable[[], None]
_heartbeats: dict[int, _Heartbeat] = {}


def start_heartbeat(store: Store, run_id: str, on_cancel: _OnCancel | None = None) -> None:
    """Renew the lease of this process in a store while it drives a run.

    `on_cancel` is called once, in another thread, if the run should be cancelled.
    """
    with _guard:
        _add_run(store, run_id, on_cancel)


def try_start_heartbeat(store: Store, run_id: str) -> bool:
    """Start the heartbeat for a run, unless this process already drives the run. Return whether it started."""
    with _guard:
        heartbeat = _heartbeats.get(id(store))
        if heartbeat is not None and run_id in heartbeat.runs:
            return False
        _add_run(store, run_id, None)
        return True


def _add_run(store: Store, run_id: str, on_cancel: _OnCancel | None) -> None:
    heartbeat = _heartbeats.get(id(store))
    if heartbeat is None:
        heartbeat = _Heartbeat(store)
        threading.Thread(target=heartbeat.beat, name="acorn-heartbeat", daemon=True).start()
        _heartbeats[id(store)] = heartbeat
    heartbeat.runs[run_id] = on_cancel or heartbeat.runs.get(run_id)
    heartbeat.counts[run_id] += 1


def is_driven_through_other_store(store: Store, run_id: str) -> bool:
    """Whether this process drives the run through another store object, such as one with another URL."""
    with _guard:
        return any(run_id in heartbeat.runs for heartbeat in _heartbeats.values() if heartbeat.store is not store)


def stop_heartbeat(store: Store, run_id: str) -> None:
    """Stop the heartbeat for a run. After the last run of the store, the heartbeat ends soon."""
    with _guard:
        heartbeat = _heartbeats.get(id(store))
        if heartbeat is not None and run_id in heartbeat.runs:
            heartbeat.counts[run_id] -= 1
            if heartbeat.counts[run_id] <= 0:
                del heartbeat.runs[run_id], heartbeat.counts[run_id]


def wake_heartbeat(store: Store) -> None:
    """Make the heartbeat of a store look for cancel requests immediately."""
    with _guard:
        heartbeat = _heartbeats.get(id(store))
    if heartbeat is not None:
        heartbeat.wake.set()


class _Heartbeat:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.runs: dict[str, _OnCancel | None] = {}
        self.counts: Counter[str] = Counter()
        """By run, the number of calls. Two threads may start one run until the store decides which of them has it."""
        self.wake = threading.Event()

    def beat(self) -> None:
        notifier = self.store if isinstance(self.store, NotifyingStore) else None
        unsubscribe: Callable[[], None] | None = None
        pause = lease() / _BEATS_PER_LEASE
        while True:
            self._wait(min(_SOON, pause) if notifier is not None and unsubscribe is None else pause)
            with _guard:
                if not self.runs:
                    del _heartbeats[id(self.store)]
                    break
            if notifier is not None and unsubscribe is None:
                unsubscribe = notifier.on_cancel_request(this_process(), self.wake.set)
            pause = lease() / _BEATS_PER_LEASE
            try:
                cancelled = self.store.renew_lease(this_process(), lease())
            except Exception as error:  # The next commit reports it to the caller too.
                logger.warning("The heartbeat did not reach %s: %s", self.store.name, error)
                continue
            for run_id in cancelled:
                self._cancel(run_id)
        if unsubscribe is not None:
            unsubscribe()

    def _wait(self, pause: float) -> None:
        """Wait for some seconds, or until a run should be cancelled or no run is left."""
        until = time.monotonic() + pause
        pollable = self.store if isinstance(self.store, PollableStore) else None
        while (left := until - time.monotonic()) > 0:
            if self.wake.wait(left if pollable is None else min(left, _SOON)):
                break
            with suppress(Exception):  # The heartbeat reports what is wrong with the store.
                if pollable is not None and (not self.runs or pollable.has_cancel_requests(this_process())):
                    break
        self.wake.clear()

    def _cancel(self, run_id: str) -> None:
        with _guard:
            on_cancel = self.runs.get(run_id)
            if on_cancel is not None:
                self.runs[run_id] = None
        if on_cancel is not None:
            on_cancel()


def _reset_after_fork() -> None:
    """Forget all claims: a forked child drives nothing, and the thread that may hold the lock is not in it."""
    global _guard
    _guard = threading.Lock()
    for claim in _claims.values():
        claim.process = this_process()
    _claims.clear()
    _heartbeats.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
