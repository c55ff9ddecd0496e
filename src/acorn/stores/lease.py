"""Claims, leases and heartbeats, which decide which process and which call may drive a run.

To drive a run means to execute its steps. While a process drives runs, it renews its lease with heartbeats. When the
lease of a process has expired, another process may take over its runs. If a process on the same machine has ended, its
runs may be taken over immediately. An expired lease alone changes nothing: if no other process takes over a run, the
process with the expired lease continues the run.

The claims in a store belong to processes, but two calls of one process may both try to drive a run. For example, the
thread of a cancelled call is still inside a slow tool when another call resumes the run. The call that claimed the run
last drives the run, and the earlier call writes nothing more.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from acorn._base.forks import call_in_child
from acorn._base.log import logger
from acorn.errors import DeclarationError
from acorn.stores.port import FINAL_STATUSES, NotifyingStore, PollableStore, Process, Store, StoredRun

_LEASE = 20.0
_BEATS_PER_LEASE = 4
_SOON = 0.5
"""Seconds after which a process that drives a run starts to check for cancel requests."""

_guard = threading.Lock()
_claims: WeakValueDictionary[tuple[int, str], Claim] = WeakValueDictionary()
_this_process: Process | None = None


# This process and others


def lease_seconds() -> float:
    """Return the number of seconds for which a lease is valid after a heartbeat.

    The number is the environment variable `ACORN_LEASE`, or 20 if the variable is not set.
    """
    text = os.environ.get("ACORN_LEASE", "")
    try:
        seconds = float(text or _LEASE)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise DeclarationError(f"`ACORN_LEASE` must be a number of seconds above 0, got {text!r}.")
    return seconds


def this_process() -> Process:
    """Return the `Process` object that describes the current process.

    Every call returns the same object. A forked child gets a new object.
    """
    global _this_process
    pid = os.getpid()
    with _guard:
        if _this_process is None or _this_process.pid != pid:
            started = _start_time(pid) or ""
            _this_process = Process(secrets.token_hex(16), socket.gethostname(), _boot_id(), pid, started)
        return _this_process


def is_alive(process: Process, lease_left: float, monotonic_expires: float) -> bool:
    """Return True if the lease of a process has some seconds left and the process is not known to have ended.

    The monotonic clock decides about a process of the same boot, because the wall clock of a process may be wrong.
    """
    if not process.boot or process.boot != this_process().boot:
        return lease_left > 0
    return monotonic_expires > time.monotonic() and not _has_ended(process)


def _has_ended(process: Process) -> bool:
    """Return True if a process of the same boot is known to have ended."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # The process exists and belongs to another user.
        pass
    started = _start_time(process.pid)
    return started is not None and started != process.started


def _boot_id() -> str:
    """Return an id of the current boot of the machine, and of the PID namespace and the time namespace.

    Return an empty string if the operating system does not provide the id. Without the id, acorn cannot check whether a
    process has ended, so another process can take over its runs only after its lease has expired.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespaces = os.readlink("/proc/self/ns/pid")
        with suppress(OSError):  # Older kernels have no time namespaces.
            namespaces += f" {os.readlink('/proc/self/ns/time')}"
        return f"{boot} {namespaces}"
    return ""


def _start_time(pid: int) -> str | None:
    """Return the start time of a process, as the number of clock ticks that the operating system reports.

    Return an empty string if the process has ended but its parent has not collected it (a zombie). Return None if the
    operating system does not provide the time.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the program name in parentheses. The name may contain any character.
    state, *fields = line[line.rindex(b")") + 2 :].split()
    return "" if state in (b"Z", b"X", b"x") else fields[18].decode("ascii")


# Claims of calls in this process


class Claim:
    """The claim of the current process on one run, shared by all calls in this process that drive the run."""

    __slots__ = ("__weakref__", "generation", "lock", "process", "store")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.process = this_process()
        """The process that commits and releases the run. In a forked child, this is the child, which has no claim."""
        self.lock = threading.Lock()
        """Locked while a call claims the run, and while a call checks the generation and commits."""
        self.generation = 0
        """The number of claims of this process on the run. A call with an older number has lost the run."""


def shared_claim(store: Store, run_id: str) -> Claim:
    """Return the `Claim` object of a run, which is the same object for all calls in this process."""
    new_claim = Claim(store)
    with _guard:
        return _claims.setdefault((id(store), run_id), new_claim)


def claim_run(store: Store, run_id: str, *, retry: bool = False) -> Sequence[StoredRun] | None:
    """Claim a run for a new call in this process, and return the run and its branches.

    Earlier calls in this process can no longer write to the run. Return None if the run does not exist. With `retry`,
    a run whose step has killed several processes can be claimed.
    """
    claim = shared_claim(store, run_id)
    with claim.lock:
        tree = store.claim(run_id, this_process(), retry=retry)
        if tree is not None and tree[0].facts.status not in FINAL_STATUSES:
            claim.generation += 1
        return tree


# Heartbeats: one thread per store while this process drives runs of the store

_OnCancel = Callable[[], None]
_heartbeats: dict[int, _Heartbeat] = {}


def start_heartbeat(
    store: Store, run_id: str, on_cancel: _OnCancel | None = None, *, is_exclusive: bool = False
) -> bool:
    """Renew the lease of this process in a store until `stop_heartbeat` is called for the run, and return True.

    If the run gets a cancel request, `on_cancel` is called once in another thread. With `is_exclusive`, do nothing and
    return False if this process already drives the run.
    """
    with _guard:
        heartbeat = _heartbeats.get(id(store))
        if heartbeat is None:
            heartbeat = _heartbeats[id(store)] = _Heartbeat(store)
            threading.Thread(target=heartbeat.beat, name="acorn-heartbeat", daemon=True).start()
        calls = heartbeat.runs.setdefault(run_id, [])
        if is_exclusive and calls:
            return False
        calls.append(on_cancel)
        return True


def is_driven_through_other_store(store: Store, run_id: str) -> bool:
    """Return whether this process drives the run through another store object, such as a store with another URL."""
    with _guard:
        return any(run_id in heartbeat.runs for heartbeat in _heartbeats.values() if heartbeat.store is not store)


def stop_heartbeat(store: Store, run_id: str, on_cancel: _OnCancel | None = None) -> None:
    """Stop the heartbeat of one call for a run. `on_cancel` is the function that the call passed to `start_heartbeat`.

    A store has one heartbeat thread. The thread ends soon after the heartbeat of its last run has stopped.
    """
    with _guard:
        heartbeat = _heartbeats.get(id(store))
        if heartbeat is not None and run_id in heartbeat.runs:
            calls = heartbeat.runs[run_id]
            with suppress(ValueError):  # In a forked child, the call of the parent has no heartbeat.
                calls.remove(on_cancel if on_cancel in calls else None)
            if not calls:
                del heartbeat.runs[run_id]


def wake_heartbeat(store: Store) -> None:
    """Make the heartbeat thread of a store check for cancel requests immediately."""
    with _guard:
        heartbeat = _heartbeats.get(id(store))
    if heartbeat is not None:
        heartbeat.wake.set()


class _Heartbeat:
    """The thread that sends the heartbeats of this process to one store, and the runs that need these heartbeats."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.runs: dict[str, list[_OnCancel | None]] = {}
        """A dict that maps run ids to the `on_cancel` functions of the calls, or None after the function was called.

        Two calls may start the same run, and a call may resume a run while an earlier call still ends.
        """
        self.wake = threading.Event()

    def beat(self) -> None:
        notifier = self.store if isinstance(self.store, NotifyingStore) else None
        unsubscribe: Callable[[], None] | None = None
        while True:
            pause = lease_seconds() / _BEATS_PER_LEASE
            self._wait(min(_SOON, pause) if notifier is not None and unsubscribe is None else pause)
            with _guard:
                if not self.runs:
                    del _heartbeats[id(self.store)]
                    break
            if notifier is not None and unsubscribe is None:
                unsubscribe = notifier.on_cancel_request(this_process(), self.wake.set)
            try:
                cancelled = self.store.renew_lease(this_process(), lease_seconds())
            except Exception as error:  # The next commit also raises the error in the caller.
                logger.warning("Cannot renew the lease of this process in %s: %s", self.store.name, error)
                continue
            for run_id in cancelled:
                self._cancel(run_id)
        if unsubscribe is not None:
            unsubscribe()

    def _wait(self, pause: float) -> None:
        """Wait for some seconds.

        Return earlier if a run has a cancel request, or if this process no longer drives a run of the store.
        """
        until = time.monotonic() + pause
        pollable = self.store if isinstance(self.store, PollableStore) else None
        while (left := until - time.monotonic()) > 0:
            if self.wake.wait(left if pollable is None else min(left, _SOON)):
                break
            with suppress(Exception):  # The next heartbeat logs problems of the store.
                if pollable is not None and (not self.runs or pollable.has_cancel_requests(this_process())):
                    break
        self.wake.clear()

    def _cancel(self, run_id: str) -> None:
        with _guard:
            calls = self.runs.get(run_id, [])
            pending, calls[:] = [call for call in calls if call is not None], [None] * len(calls)
        for call in pending:
            try:
                call()
            except Exception:  # The heartbeat of the other runs must continue.
                logger.exception("Cannot cancel run %s", run_id)


def _reset_after_fork() -> None:
    """Remove all claims and heartbeats in a forked child, because the child drives no runs.

    Also replace the lock, because a thread that exists only in the parent may have locked the old lock.
    """
    global _guard
    _guard = threading.Lock()
    for claim in _claims.values():
        claim.process = this_process()
    _claims.clear()
    _heartbeats.clear()


call_in_child(_reset_after_fork)
