"""Hears what a PostgreSQL database tells: of runs that are followed, and of runs that are to be cancelled.

One connection and one thread of the process, while anybody wants to hear. What was told while the connection was lost
is lost: everybody is called when it is there again, and looks.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import Connection

from acorn._base.forks import close_at_fork
from acorn.errors import StoreError
from acorn.stores.postgres.claims import CANCELLED, NEWS
from acorn.stores.postgres.connection import Database, close_quietly

_AGAIN = 1.0
"""Seconds after which a connection that was lost is tried again."""
_IDLE = 5.0
"""Seconds for which the connection stays when nobody listens."""

Word = tuple[str, str]
"""A channel, and what is said there."""


class _Ear:
    """One thread that listens, from its beginning to its end."""

    def __init__(self) -> None:
        self.pipe = os.pipe()
        """What ends the wait of the thread."""
        self.is_over = False
        self.connection: Connection[Any] | None = None
        self.thread: threading.Thread | None = None

    def end(self) -> None:
        self.is_over = True
        os.write(self.pipe[1], b"x")

    def pause(self, seconds: float, others: list[int]) -> None:
        if not self.is_over:
            select.select([self.pipe[0], *others], [], [], seconds)

    def let_go(self) -> None:
        for end in self.pipe:
            os.close(end)


class Listener:
    def __init__(self, place: Database) -> None:
        self._place = place
        self._begin()
        close_at_fork(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Word, list[Callable[[], None]]] = {}
        self._ear: _Ear | None = None
        self._ears: list[_Ear] = []
        """That one, and those that are about to end."""

    def add(self, word: Word, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.setdefault(word, []).append(call)
            if self._ear is None:
                ear = _Ear()
                ear.thread = threading.Thread(target=self._listen, args=(ear,), name="acorn-listener", daemon=True)
                try:
                    ear.thread.start()
                except RuntimeError:  # the interpreter is ending
                    ear.let_go()
                else:
                    self._ear = ear
                    self._ears.append(ear)

    def remove(self, word: Word, call: Callable[[], None]) -> None:
        with self._lock:
            calls = self._calls.get(word, [])
            if call in calls:
                calls.remove(call)
            if not calls:
                self._calls.pop(word, None)

    def close(self) -> None:
        """End the thread; another one begins where somebody wants to hear."""
        with self._lock:
            ear, self._ear = self._ear, None
            if ear is not None:
                ear.end()
        if ear is not None and ear.thread is not None and ear.thread is not threading.current_thread():
            ear.thread.join()

    def _listen(self, ear: _Ear) -> None:
        while not self._has_ended(ear):
            try:
                with suppress(psycopg.Error, StoreError):
                    ear.connection = self._place.open()
                    ear.connection.execute(f"LISTEN {NEWS}; LISTEN {CANCELLED}".encode())
                    self._call(None)
                    self._hear(ear, ear.connection)
            finally:
                if ear.connection is not None:
                    ear.connection.close()
                    ear.connection = None
            if self._calls:
                ear.pause(_AGAIN, [])

    def _hear(self, ear: _Ear, connection: Connection[Any]) -> None:
        quiet = time.monotonic()
        while not ear.is_over:
            ear.pause(_IDLE, [connection.fileno()])
            for told in connection.notifies(timeout=0):
                self._call((told.channel, told.payload))
            if self._calls:
                quiet = time.monotonic()
            elif time.monotonic() > quiet + _IDLE:
                return

    def _call(self, word: Word | None) -> None:
        """None: everybody."""
        with self._lock:
            found = [call for key, calls in self._calls.items() if word in (None, key) for call in calls]
        for call in found:
            call()

    def _has_ended(self, ear: _Ear) -> bool:
        with self._lock:
            if self._calls and not ear.is_over:
                return False
            if self._ear is ear:
                self._ear = None
            self._ears.remove(ear)
            ear.let_go()
            return True

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        self._lock.release()
        if in_child:
            for ear in self._ears:
                if ear.connection is not None:
                    close_quietly(ear.connection)
                ear.let_go()
            self._begin()


class PostgresWatch:
    """Somebody follows a run."""

    def __init__(self, listener: Listener, register: Callable[[float], int | None]) -> None:
        self._listener, self._register = listener, register
        self._event = threading.Event()
        self._number: int | None = None
        self._due = 0.0

    def wait(self, seconds: float) -> None:
        if time.monotonic() < self._due or not self._renew():
            self._event.wait(seconds)
        self._event.clear()

    def _renew(self) -> bool:
        """Whether there may have been something that was not told."""
        is_first = self._number is None
        with suppress(StoreError):  # one that may only look has to ask now and then
            number = self._register(2 * _IDLE)
            self._due = time.monotonic() + _IDLE
            if is_first and number is not None:
                self._number = number
                self._listener.add((NEWS, str(number)), self._event.set)
                return True
        return False

    def close(self) -> None:
        if self._number is not None:
            self._listener.remove((NEWS, str(self._number)), self._event.set)
