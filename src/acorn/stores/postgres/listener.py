"""A listener for PostgreSQL notifications about watched runs and cancel requests.

While a process has subscribers, one thread receives the notifications through its own connection. If the connection is
lost, the process misses notifications. Therefore the listener calls all subscribers after a reconnect, and the
subscribers read the database.
"""

from __future__ import annotations

import os
import socket
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
from acorn.stores.statements import CANCEL_CHANNEL, CHANGE_CHANNEL, JOB_CHANNEL

_RECONNECT = 1.0
"""Seconds before a lost connection is opened again."""
_IDLE = 5.0
"""The maximum seconds without subscribers after which the connection closes."""

Notification = tuple[str, str]
"""A pair of a channel and a payload."""


class Listener:
    """A registry of functions that are called when the database sends a notification."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reset()
        close_at_fork(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Notification, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        """The thread that receives notifications. A thread that is not in this attribute ends."""
        self._connection: Connection[TupleRow] | None = None

    def add(self, notification: Notification, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function for each notification, until the returned function is called."""

        def remove() -> None:
            with self._lock:
                calls = self._calls.get(notification, [])
                if call in calls:
                    calls.remove(call)
                if not calls:
                    self._calls.pop(notification, None)

        with self._lock:
            self._calls.setdefault(notification, []).append(call)
            if self._thread is None:
                thread = threading.Thread(target=self._listen, name="acorn-listener", daemon=True)
                with suppress(RuntimeError):  # The interpreter is shutting down.
                    thread.start()
                    self._thread = thread
        return remove

    def close(self) -> None:
        """Stop the listener thread.

        If a function is added later, a new thread starts.
        """
        with self._lock:
            thread, self._thread = self._thread, None
            if self._connection is not None:
                _interrupt(self._connection)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _listen(self) -> None:
        while not self._has_ended():
            with suppress(psycopg.Error, StoreError), self._database.open() as connection:
                try:
                    self._connection = connection
                    channels = (CHANGE_CHANNEL, CANCEL_CHANNEL, JOB_CHANNEL)
                    connection.execute("; ".join(f"LISTEN {channel}" for channel in channels).encode())
                    self._call(None)
                    while self._calls and self._is_current():
                        for received in connection.notifies(timeout=_IDLE):
                            self._call((received.channel, received.payload))
                finally:
                    self._connection = None
            if self._calls and self._is_current():
                time.sleep(_RECONNECT)

    def _is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def _has_ended(self) -> bool:
        with self._lock:
            if self._calls and self._is_current():
                return False
            if self._is_current():
                self._thread = None
            return True

    def _call(self, notification: Notification | None) -> None:
        """Call the functions that subscribed to a notification.

        If the notification is None, call all functions.
        """
        with self._lock:
            selected = [call for key, calls in self._calls.items() if notification in (None, key) for call in calls]
        for call in selected:
            call()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        self._lock.release()
        if in_child:
            if self._connection is not None:
                abandon(self._connection)
            self._reset()


def _interrupt(connection: Connection[TupleRow]) -> None:
    """End the wait of another thread for notifications, by shutting down the socket of its connection."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


class PostgresWatch:
    """A subscription to the changes of a run in a PostgreSQL database."""

    def __init__(self, listener: Listener, register: Callable[[float], int | None]) -> None:
        self._listener, self._register = listener, register
        self._event = threading.Event()
        self._remove: Callable[[], None] | None = None
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
        with suppress(StoreError):  # A user without write permission cannot register, and must poll.
            number = self._register(2 * _IDLE)
            self._renew_at = time.monotonic() + _IDLE
            if self._remove is None and number is not None:
                self._remove = self._listener.add((CHANGE_CHANNEL, str(number)), self._event.set)
                return True
        return False

    def close(self) -> None:
        if self._remove is not None:
            self._remove()
