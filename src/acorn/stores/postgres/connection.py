"""Where a PostgreSQL database is: its URL with what a connection needs beside it, and its name without any secret.

Connections to a PostgreSQL database: how they are opened, what may be waited for, and one transaction on them.

A server that restarts is waited for; what cannot get better by waiting is told at once.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from acorn.errors import DeclarationError, StoreError
from acorn.stores.database import SharedConnection
from acorn.stores.lease import lease
from acorn.stores.rules import bindable
from acorn.stores.sqlite.connection import Migration
from acorn.types import JsonObject

try:
    import psycopg
    from psycopg import Connection, DataError, OperationalError, ProgrammingError, RawCursor
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.types.numeric import Int8Dumper

    from acorn.stores.postgres.schema import prepare
except ImportError as error:
    raise StoreError(
        f"A store in PostgreSQL needs the extra `postgres`: pip install 'acorn-agents[postgres]' ({error})."
    ) from error

_SHOWN = ("host", "hostaddr", "port", "dbname", "user", "service", "sslmode", "target_session_attrs")
"""What of the part behind the question mark may be shown."""
_NO_PORT = re.compile(r":(?!\d*(,|/|$))(?![^\[]*\])[^/]*")
_DEFAULTS = {
    "application_name": "acorn",
    "connect_timeout": "10",
    # A network that is gone is noticed in about half a minute, and not in two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}


class DatabaseAddress:
    def __init__(self, url: str) -> None:
        self.name = _shown(url)
        try:
            known: dict[str, Any] = {} if _is_misread(url) else conninfo_to_dict(url)
        except ProgrammingError:  # what it says may hold a part of the password
            known = {}
        if not known and self.name != f"{url.partition('://')[0]}://":
            raise DeclarationError(
                f"`{self.name}` is no URL of a PostgreSQL database; write 'postgresql://user:password@host:port/name', "
                f"and special characters of a password like `%40` for an @."
            )
        self.parameters: JsonObject = {**_DEFAULTS, **known, "client_encoding": "UTF8"}
        secrets = [str(value) for key, value in known.items() if "password" in key or "secret" in key]
        self._secrets = sorted({*secrets, *map(quote, secrets)} - {""}, key=len, reverse=True)

    def without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _shown(url: str) -> str:
    """The URL without a password, however it is written."""
    scheme, _, rest = url.partition("://")
    place, mark, query = rest.partition("?")
    # What stands behind a colon is a part of a password where it is no port: one with an `@`, a slash or a question
    # mark in it is not where it should be.
    user, at, host = place.rpartition("@")
    host = _NO_PORT.sub("", host)
    kept = [(key, value) for key, value in parse_qsl(query) if key in _SHOWN] if mark else []
    return f"{scheme}://{user.partition(':')[0]}{at}{host}" + (f"?{urlencode(kept, safe='/,')}" if kept else "")


def _is_misread(url: str) -> bool:
    """Whether a password would be taken for something else."""
    place = url.partition("://")[2].partition("?")[0]
    authority, _, path = place.partition("/")
    return authority.count("@") > 1 or "@" in path or _NO_PORT.search(authority.rpartition("@")[2]) is not None


T = TypeVar("T")
Cursor = RawCursor[Any]

PATIENCE = 30.0
"""Seconds to wait for a server that was there."""
_LOCKED = "55P03"
_RETRIED = ("40001", "40P01", _LOCKED)
"""What PostgreSQL says where others were in the way, and the same may succeed a moment later."""
_AWAY = ("starting up", "shutting down", "recovery mode", "not yet accepting", "too many clients", "remaining conn")
"""What a server says that cannot be reached now."""
_HOPELESS = ("authentication failed", "does not exist", "no pg_hba.conf", "no password supplied", "translate host name")
"""What waiting does not mend."""
_REFUSED = ("authentication failed", "no password supplied", "no pg_hba.conf", 'role "')
"""What is said of a user, and not of a database."""
_SESSION = """
    SET TIME ZONE 'UTC';
    SET default_transaction_isolation = 'read committed';
    SET lock_timeout = '1s';
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""
_FROZEN = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
      AND application_name = current_setting('application_name') AND xact_start IS NOT NULL
      AND wait_event_type = 'Client' AND state_change < clock_timestamp() - make_interval(secs => %s)
"""
_SILENCE = 5.0
"""Seconds for which somebody else's transaction may wait for its process while others wait for it, or a quarter of a
lease. A process that froze in the middle of one, or lost its machine, would keep a run from whoever takes it over. No
timeout of PostgreSQL before 17 ends what is sent without waiting, and the one of 17 ends what is merely long."""


class Database:
    """A database, and whether it was ever reached from here."""

    def __init__(self, url: str, migrations: Sequence[Migration]) -> None:
        self.address = DatabaseAddress(url)
        self.name = self.address.name
        self._migrations = migrations
        self._is_known = False

    def open(self) -> Connection[Any]:
        connection: Connection[Any] = psycopg.connect(
            **self.address.parameters, autocommit=True, cursor_factory=RawCursor, prepare_threshold=2
        )
        self._is_known = True
        try:
            # One type for all, or a statement would be prepared again for each size of a number.
            connection.adapters.register_dumper(int, Int8Dumper)
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise StoreError(f"{self.name} is written in {encoding}; a store needs a database in UTF8.")
            prepare(connection, self.name, self._migrations)
            connection.execute(_SESSION)  # now: a new version of the tables takes its time
        except BaseException:
            connection.close()
            raise
        return connection

    def use_once(self, act: Callable[[Connection[Any]], None]) -> None:
        """Do it on a connection of its own."""

        def once() -> None:
            with self.open() as connection:
                act(connection)

        try:
            self.patiently(once, lambda: None)
        except psycopg.Error as error:
            raise self.explained(error) from None

    def patiently(self, act: Callable[[], T], drop: Callable[[], None]) -> T:
        """Do it, again and again while the server is away or others are in the way."""
        limit, pause = time.monotonic() + PATIENCE, 0.01
        while True:
            try:
                return act()
            except psycopg.Error as error:
                drop()
                if not self._may_pass(error) or time.monotonic() > limit:
                    raise
                if error.sqlstate == _LOCKED:
                    self._end_frozen()
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, 0.5)

    def _end_frozen(self) -> None:
        """What is in the way may be of a process that does not know of it any more."""
        with suppress(psycopg.Error), psycopg.connect(**self.address.parameters, autocommit=True) as connection:
            connection.execute(_FROZEN, [min(lease() / 4, _SILENCE)])

    def _may_pass(self, error: psycopg.Error) -> bool:
        if error.sqlstate in _RETRIED:
            return True
        text = str(error)
        if not is_lost(error) or any(words in text for words in _HOPELESS):
            return False
        return self._is_known or any(words in text for words in _AWAY)

    def explained(self, error: psycopg.Error) -> StoreError:
        """What PostgreSQL says, in words that help."""
        said = self.address.without_secrets(" ".join(str(error).split()))
        if isinstance(error, OperationalError) and is_lost(error):
            if any(words in said for words in _REFUSED):
                text = f"{self.name} does not let this user in ({said}); see the user and the password of the URL."
            elif "does not exist" in said:
                text = f"{self.name} is not there ({said}); make the database, or name another one."
            elif self._is_known:
                text = f"{self.name} did not answer for {PATIENCE:.0f} s ({said}); see whether the server runs."
            else:
                text = f"{self.name} cannot be reached ({said}); see whether the server runs, and the host and port."
        elif isinstance(error, psycopg.errors.InsufficientPrivilege):
            allowed = "let it create and write the schemas `acorn` and `acorn_jobs`"
            text = f"{self.name} may not be used by this user ({said}); {allowed}."
        else:
            text = f"{self.name} could not do it ({said})."
        told = StoreError(text)
        told.__cause__ = None if said != " ".join(str(error).split()) else error  # a cause is shown too
        return told


def is_lost(error: psycopg.Error) -> bool:
    """Whether there is no connection any more, or there never was."""
    state = error.sqlstate
    if state is None:  # what the library itself says
        return isinstance(error, OperationalError)
    return state.startswith(("08", "57P", "25P03"))


_left: list[Connection[Any]] = []


def close_quietly(connection: Connection[Any]) -> None:
    """In a forked child: what is said on it would be said for the parent, the farewell at its end included."""
    _left.append(connection)
    with suppress(psycopg.Error, OSError):
        os.close(connection.fileno())


class Transaction:
    """Statements of one transaction, sent together: only who reads an answer waits for it.

    Whoever has something to add to a transaction executes it here. What is to be told to others is told when all of it
    is kept.
    """

    __slots__ = ("_connection", "news")

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self.news: list[tuple[str, str]] = []
        """Channels and what is said there."""

    def control(self, sql: bytes) -> None:
        """What begins, ends and divides it: nothing is gained by preparing that."""
        self._connection.cursor().execute(sql, prepare=False)

    def execute(self, sql: bytes, values: Sequence[Any] = ()) -> Cursor:
        cursor: Cursor = self._connection.cursor()  # type: ignore[assignment]
        try:
            cursor.execute(sql, values)
        except UnicodeEncodeError:
            cursor.execute(sql, _sendable(values))
        except DataError as error:
            if error.sqlstate is not None:
                raise
            cursor.execute(sql, _sendable(values))
        return cursor


def _sendable(values: Sequence[Any]) -> Sequence[Any]:
    """The same where some text is none for PostgreSQL: half a character and NUL are spelled as JSON spells them."""
    return [_sendable(value) if isinstance(value, list) else _spelled(value) for value in values]


def _spelled(value: Any) -> Any:
    return bindable([value])[0].replace("\0", "\\u0000") if isinstance(value, str) else value


def piped(connection: Connection[Any], act: Callable[[], T]) -> T:
    """What is executed inside is sent without waiting; all of it is answered at the end."""
    failed: psycopg.Error | None = None
    try:
        with connection.pipeline():
            try:
                return act()
            except psycopg.Error as error:
                failed = error  # the pipeline would complain of a connection that is gone, in the log
    except psycopg.Error as error:
        failed = failed or error
    assert failed is not None
    raise failed


class PostgresConnection(SharedConnection[Connection[Any]]):
    """One that a forked child leaves alone: it is its parent's, who goes on with it."""

    def read(self, place: Database, act: Callable[[Transaction], T]) -> T:
        """All that it asks for is as of one moment."""
        return self._transact(place, act, b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def write(self, place: Database, act: Callable[[Transaction], T]) -> T:
        """What may be done twice, where the connection is lost at its end."""
        return self._transact(place, act, b"BEGIN")

    def _transact(self, place: Database, act: Callable[[Transaction], T], begin: bytes) -> T:
        def in_one_go(connection: Connection[Any]) -> T:
            transaction = Transaction(connection)
            transaction.control(begin)
            found = act(transaction)
            transaction.control(b"COMMIT")
            return found

        def once() -> T:
            connection = self.opened()
            return piped(connection, lambda: in_one_go(connection))

        try:
            return self.use(lambda _: place.patiently(once, self.drop))
        except psycopg.Error as error:
            raise place.explained(error) from None

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        if in_child and self._connection is not None:
            close_quietly(self._connection)
            self._connection = None
        self._lock.release()
