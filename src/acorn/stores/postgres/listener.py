"""A listener for PostgreSQL notifications about watched runs and cancel requests.

While a process has subscribers, one thread receives the notifications through its own connection. If the connection is
lost, the process misses notifications. Therefore the listener calls all subscribers after a reconnect, and the
subscribers read the database.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import Connection
from psycopg.rows import TupleRow

from acorn._base.forks import close_at_fork
from acorn.errors import StoreError
from acorn.stores.postgres.connection import Database, abandon
from acorn.stores.statements import CANCEL_CHANNEL, CHANGE_CHANNEL

_RECONNECT = 1.0
"""Seconds before a lost connection is opened again."""
_IDLE = 5.0
"""Seconds without subscribers after which the connection closes."""

Notification = tuple[str, str]
"""A pair of a channel and a payload."""


class _ListenerThread:
    """A thread that receives notifications, with its database connection.

    Other threads wake the thread through a pipe.
    """

    def __init__(self) -> None:
        self.pipe = os.pipe()
        """The ends of a pipe. A byte in the pipe ends the wait of the thread."""
        self.is_stopped = False
        self.connection: Connection[TupleRow] | None = None
        self.thread: threading.Thread | None = None

    def stop(self) -> None:
        self.is_stopped = True
        os.write(self.pipe[1], b"x")

    def wait(self, seconds: float, files: list[int]) -> None:
        """Wait until one of the file descriptors has data, the thread is stopped, or the seconds have passed."""
        if not self.is_stopped:
            select.select([self.pipe[0], *files], [], [], seconds)

    def close_pipe(self) -> None:
        for end in self.pipe:
            os.close(end)


class Listener:
    """A registry of functions that are called when the database sends a notification."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reset()
        close_at_fork(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Notification, list[Callable[[], None]]] = {}
        self._current: _ListenerThread | None = None
        self._threads: list[_ListenerThread] = []
        """The current thread, and stopped threads that have not ended."""

    def add(self, notification: Notification, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.setdefault(notification, []).append(call)
            if self._current is None:
                listening = _ListenerThread()
                listening.thread = threading.Thread(
                    target=self._listen, args=(listening,), name="acorn-listener", daemon=True
                )
                try:
                    listening.thread.start()
                except RuntimeError:  # The interpreter is shutting down.
                    listening.close_pipe()
                else:
                    self._current = listening
                    self._threads.append(listening)

    def remove(self, notification: Notification, call: Callable[[], None]) -> None:
        with self._lock:
            calls = self._calls.get(notification, [])
            if call in calls:
                calls.remove(call)
            if not calls:
                self._calls.pop(notification, None)

    def close(self) -> None:
        """Stop the listener thread.

        If a function is added later, a new thread starts.
        """
        with self._lock:
            current, self._current = self._current, None
            if current is not None:
                current.stop()
        if current is not None and current.thread is not None and current.thread is not threading.current_thread():
            current.thread.join()

    def _listen(self, listening: _ListenerThread) -> None:
        while not self._has_ended(listening):
            try:
                with suppress(psycopg.Error, StoreError):
                    listening.connection = self._database.open()
                    listening.connection.execute(f"LISTEN {CHANGE_CHANNEL}; LISTEN {CANCEL_CHANNEL}".encode())
                    self._call(None)
                    self._receive(listening, listening.connection)
            finally:
                if listening.connection is not None:
                    listening.connection.close()
                    listening.connection = None
            if self._calls:
                listening.wait(_RECONNECT, [])

    def _receive(self, listening: _ListenerThread, connection: Connection[TupleRow]) -> None:
        last_used = time.monotonic()
        while not listening.is_stopped:
            listening.wait(_IDLE, [connection.fileno()])
            for received in connection.notifies(timeout=0):
                self._call((received.channel, received.payload))
            if self._calls:
                last_used = time.monotonic()
            elif time.monotonic() > last_used + _IDLE:
                return

    def _call(self, notification: Notification | None) -> None:
        """Call the functions that subscribed to a notification.

        If the notification is None, call all functions.
        """
        with self._lock:
            selected = [call for key, calls in self._calls.items() if notification in (None, key) for call in calls]
        for call in selected:
            call()

    def _has_ended(self, listening: _ListenerThread) -> bool:
        with self._lock:
            if self._calls and not listening.is_stopped:
                return False
            if self._current is listening:
                self._current = None
            self._threads.remove(listening)
            listening.close_pipe()
            return True

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        self._lock.release()
        if in_child:
            for listening in self._threads:
                if listening.connection is not None:
                    abandon(listening.connection)
                listening.close_pipe()
            self._reset()


class PostgresWatch:
    """A subscription to the changes of a run in a PostgreSQL database."""

    def __init__(self, listener: Listener, register: Callable[[float], int | None]) -> None:
        self._listener, self._register = listener, register
        self._event = threading.Event()
        self._number: int | None = None
        self._renew_at = 0.0

    def wait(self, seconds: float) -> None:
        if time.monotonic() < self._renew_at or not self._renew():
            self._event.wait(seconds)
        self._event.clear()

    def _renew(self) -> bool:
        """Register the watch in the database again, so that commits to the run continue to send notifications.

        Return True only at the first successful registration. Changes before it sent no notifications, so the caller
        must read the run immediately.
        """
        is_first = self._number is None
        with suppress(StoreError):  # A user without write permission cannot register, and must poll.
            number = self._register(2 * _IDLE)
            self._renew_at = time.monotonic() + _IDLE
            if is_first and number is not None:
                self._number = number
                self._listener.add((CHANGE_CHANNEL, str(number)), self._event.set)
                return True
        return False

    def close(self) -> None:
        if self._number is not None:
            self._listener.remove((CHANGE_CHANNEL, str(self._number)), self._event.set)
