"""Who in this process drives a run.

A store knows processes only. Two calls of one process may both believe that they drive a run: what is left of a call
that somebody stopped, its thread in a tool that takes its time, and whoever goes on with the run meanwhile. The one
that took the run last has the seat; the other writes nothing more.

Who drives a run: this process as others see it, and whether another one is alive.

A holder that was not heard of for the time of its lease may be replaced; on the same machine one that is gone may be
replaced at once. Expiry only gives others the right to take: who was not taken over goes on.
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
from acorn.stores import messages
from acorn.stores.port import Process, ReadsStatus, Store, StoredRun, WakesWatchers

_guard = threading.Lock()
_seats: WeakValueDictionary[tuple[int, str], Claim] = WeakValueDictionary()


class Claim:
    """The seat of one run in one store, as long as somebody remembers that he had it."""

    __slots__ = ("__weakref__", "lock", "store", "turn")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lock = threading.Lock()
        """Held while the run is claimed, and by whoever looks whether the seat is still his until he has written."""
        self.turn = 0
        """How often the run was taken."""


def claim_of(store: Store, run_id: str) -> Claim:
    with _guard:
        seat = _seats.get((id(store), run_id))
        if seat is None:
            seat = _seats[id(store), run_id] = Claim(store)
        return seat


def take_claim(store: Store, run_id: str) -> Sequence[StoredRun] | None:
    """Claim a run for this process; whatever else in it has driven the run until now does so no more."""
    seat = claim_of(store, run_id)
    with seat.lock:
        found = store.claim(run_id, this_process())
        if found is not None and found[0].facts.status not in messages.OVER:
            seat.turn += 1
        return found


def _begin_anew() -> None:
    """Whoever had the lock when this child was made is not here."""
    global _guard
    _guard = threading.Lock()
    _seats.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


_LEASE = 20.0
_BEATS = 4
"""How often a lease is renewed while it lasts."""
_SOON = 0.5
"""Seconds after which a process that drives a run listens for who wants it cancelled, where the store tells that."""

_here: Process | None = None


def lease() -> float:
    """Seconds that a process counts as alive after it was heard of; `ACORN_LEASE` says otherwise."""
    text = os.environ.get("ACORN_LEASE", "")
    try:
        seconds = float(text or _LEASE)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise DeclarationError(f"`ACORN_LEASE` must be a number of seconds, got {text!r}.")
    return seconds


def this_process() -> Process:
    """The holder that this process is, the same at each call; a forked child is another."""
    global _here
    pid = os.getpid()
    with _guard:
        if _here is None or _here.pid != pid:
            _here = Process(secrets.token_hex(16), socket.gethostname(), _boot(), pid, _born(pid) or "")
        return _here


def is_alive(holder: Process, until: float, now: float) -> bool:
    """Whether a process still holds what it holds: its lease runs, and nobody here knows that it is gone."""
    return until > now and not _is_gone(holder)


def _is_gone(holder: Process) -> bool:
    here = this_process()
    if not holder.boot or holder.boot != here.boot:
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is there, and not ours
        pass
    born = _born(holder.pid)
    return born is not None and born != holder.born


def _boot() -> str:
    """Empty where the system does not tell: there a lease has to run out."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _born(pid: int) -> str | None:
    """When a process began; empty for one that is dead and not buried, None where the system does not tell."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name of the program comes second, in brackets, and may hold anything.
    state, *rest = line[line.rindex(b")") + 2 :].split()
    return "" if state in (b"Z", b"X", b"x") else rest[18].decode("ascii")


# The heartbeats: by store, while it has runs that this process drives.

_Cancelled = Callable[[], None]
_beating: dict[int, _Heartbeat] = {}


def claim_process(store: Store, run_id: str, cancelled: _Cancelled | None = None) -> None:
    """From now on this process is heard of in the store, as one that drives the run.

    `cancelled` is called in another thread, once, where somebody wants the run cancelled.
    """
    with _guard:
        _hold(store, run_id, cancelled)


def claim_process_alone(store: Store, run_id: str) -> bool:
    """The same where nothing in this process holds the run; False: something does."""
    with _guard:
        heartbeat = _beating.get(id(store))
        if heartbeat is not None and run_id in heartbeat.runs:
            return False
        _hold(store, run_id, None)
        return True


def _hold(store: Store, run_id: str, cancelled: _Cancelled | None) -> None:
    heartbeat = _beating.get(id(store))
    if heartbeat is None:
        heartbeat = _Heartbeat(store)
        threading.Thread(target=heartbeat.beat, name="acorn-heartbeat", daemon=True).start()
        _beating[id(store)] = heartbeat
    heartbeat.runs[run_id] = cancelled or heartbeat.runs.get(run_id)
    heartbeat.counts[run_id] += 1


def is_held_by_another(store: Store, run_id: str) -> bool:
    """Whether this process holds a run of that name by another store, which may be the same one by another address."""
    with _guard:
        return any(run_id in each.runs for each in _beating.values() if each.store is not store)


def release_process(store: Store, run_id: str) -> None:
    """The run is driven no more; when it was the last one, the store soon hears of this process no more."""
    with _guard:
        heartbeat = _beating.get(id(store))
        if heartbeat is not None and run_id in heartbeat.runs:
            heartbeat.counts[run_id] -= 1
            if heartbeat.counts[run_id] <= 0:
                del heartbeat.runs[run_id], heartbeat.counts[run_id]


def nudge_heartbeat(store: Store) -> None:
    """A run of the store is to be cancelled: where this process drives it, it hears of that at once."""
    with _guard:
        heartbeat = _beating.get(id(store))
    if heartbeat is not None:
        heartbeat.hurry()


class _Heartbeat:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.runs: dict[str, _Cancelled | None] = {}
        self.counts: Counter[str] = Counter()
        """How often each is held: two threads may both begin a run by one name, until the store says whose it is."""
        self._rest = threading.Event()

    def hurry(self) -> None:
        self._rest.set()

    def beat(self) -> None:
        store = self.store if isinstance(self.store, WakesWatchers) else None
        hush: Callable[[], None] | None = None
        pause = lease() / _BEATS
        while True:
            # What is over soon need not listen for anything.
            self._wait(min(_SOON, pause) if store is not None and hush is None else pause)
            with _guard:
                if not self.runs:
                    del _beating[id(self.store)]
                    break
            if store is not None and hush is None:
                hush = store.ring(this_process(), self._rest.set)
            pause = lease() / _BEATS
            try:
                unwanted = self.store.beat(this_process(), lease())
            except Exception as error:  # the next commit says it too, where somebody hears it
                logger.warning("The heartbeat did not reach %s: %s", self.store.name, error)
                continue
            for run_id in unwanted:
                self._tell(run_id)
        if hush is not None:
            hush()

    def _wait(self, pause: float) -> None:
        """So long, or until a run is to be cancelled, or there is none left to look for."""
        until = time.monotonic() + pause
        peeks = self.store if isinstance(self.store, ReadsStatus) else None
        while (left := until - time.monotonic()) > 0:
            if self._rest.wait(left if peeks is None else min(left, _SOON)):
                break
            with suppress(Exception):  # what is wrong is told by the heartbeat
                if peeks is not None and (not self.runs or peeks.has_unwanted(this_process())):
                    break
        self._rest.clear()

    def _tell(self, run_id: str) -> None:
        with _guard:
            cancelled = self.runs.get(run_id)
            if cancelled is not None:
                self.runs[run_id] = None
        if cancelled is not None:
            cancelled()


def _reset_after_fork() -> None:
    """A forked child drives nothing."""
    global _guard
    _guard = threading.Lock()
    _beating.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
