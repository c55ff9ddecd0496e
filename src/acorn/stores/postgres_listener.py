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

from acorn.errors import StoreError
from acorn.stores.forks import closes_at_fork
from acorn.stores.postgres_connection import Place, leave
from acorn.stores.postgres_driving import CANCELLED, NEWS

_AGAIN = 1.0
"""Seconds after which a connection that was lost is tried again."""
_IDLE = 5.0
"""Seconds for which the connection stays when nobody listens."""

Word = tuple[str, str]
"""A channel, and what is said there."""


class Listener:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._begin()
        closes_at_fork(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Word, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._connection: Connection[Any] | None = None
        self._wake: tuple[int, int] | None = None
        """A pipe: what ends the wait of the thread."""
        self._is_over = False

    def add(self, word: Word, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.setdefault(word, []).append(call)
            self._is_over = False
            if self._thread is None:
                self._wake = self._wake or os.pipe()
                thread = threading.Thread(target=self._listen, name="acorn-listener", daemon=True)
                with suppress(RuntimeError):  # the interpreter is ending
                    thread.start()
                    self._thread = thread

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
            thread, self._is_over = self._thread, True
            if self._wake is not None:
                os.write(self._wake[1], b"x")
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _listen(self) -> None:
        while not self._has_ended():
            try:
                with suppress(psycopg.Error, StoreError):
                    self._connection = self._place.open()
                    self._connection.execute(f"LISTEN {NEWS}; LISTEN {CANCELLED}".encode())
                    self._call(None)
                    self._hear(self._connection)
            finally:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
            self._pause(_AGAIN, [])

    def _hear(self, connection: Connection[Any]) -> None:
        quiet = time.monotonic()
        while not self._is_over:
            self._pause(_IDLE, [connection.fileno()])
            for told in connection.notifies(timeout=0):
                self._call((told.channel, told.payload))
            if self._calls:
                quiet = time.monotonic()
            elif time.monotonic() > quiet + _IDLE:
                return

    def _pause(self, seconds: float, others: list[int]) -> None:
        pipe = self._wake
        if pipe is not None and not self._is_over and (self._calls or others):
            select.select([pipe[0], *others], [], [], seconds)

    def _call(self, word: Word | None) -> None:
        """None: everybody."""
        with self._lock:
            found = [call for key, calls in self._calls.items() if word in (None, key) for call in calls]
        for call in found:
            call()

    def _has_ended(self) -> bool:
        with self._lock:
            if self._calls and not self._is_over:
                return False
            self._thread = None
            self._let_go()
            return True

    def _let_go(self) -> None:
        pipe, self._wake = self._wake, None
        for end in pipe or ():
            os.close(end)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        self._lock.release()
        if in_child:
            if self._connection is not None:
                leave(self._connection)
            self._let_go()
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
