"""Connections to a PostgreSQL database: parsing the URL, retries and transactions.

If the server restarts, acorn waits for the server. acorn immediately reports problems that waiting cannot solve.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import psycopg
from psycopg import Connection, OperationalError, ProgrammingError, RawCursor
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow
from psycopg.types.numeric import Int8Dumper

from acorn._formats.redact import Redactor
from acorn.errors import DeclarationError, StoreError
from acorn.stores.group_commit import SharedConnection
from acorn.stores.lease import lease_seconds
from acorn.stores.port import StoreUnreachableError
from acorn.stores.postgres.statements import PostgresTransaction, prepare
from acorn.stores.statements import Transaction
from acorn.types import JsonObject

T = TypeVar("T")

# The address

_SHOWN_PARAMETERS = ("host", "hostaddr", "port", "dbname", "user", "service", "sslmode", "target_session_attrs")
"""Query parameters of the URL that contain no secrets."""
_HOST = r"(?:\[[^]@/?]*\]|[^:@/?,[]*)(?::\d*)?"
_URL = re.compile(rf"(\w+://)(?:([^:@/?]*)(?::[^@/?]*)?(@))?({_HOST}(?:,{_HOST})*(?:/[^@/?]*)?)(?:\?(.*))?", re.DOTALL)
"""Matches a URL whose password is percent-encoded. Otherwise a part of the password could be read as the host."""
_DEFAULTS = {
    "application_name": "acorn",
    "connect_timeout": "10",
    # Detect a lost network connection after about 30 seconds instead of two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}


# The database

RETRY_SECONDS = 30.0
"""The maximum seconds to wait for a server to which this process has connected before."""
_LOCK_TIMEOUT = "55P03"
_RETRIED = ("40001", "40P01", _LOCK_TIMEOUT)
"""SQLSTATEs of conflicts with other transactions, after which a retry may succeed."""
_TEMPORARY = (
    "starting up",
    "shutting down",
    "recovery mode",
    "not yet accepting",
    "too many clients",
    "remaining conn",
)
"""Parts of error messages about problems that a retry may solve."""
_PERMANENT = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf",
    "no password supplied",
    "translate host name",
)
"""Parts of error messages about problems that a retry does not solve."""
_USER_REFUSED = ("authentication failed", "no password supplied", "no pg_hba.conf", 'role "')
"""Parts of error messages about a wrong user or password."""
_SESSION_SETTINGS = """
    SET search_path = acorn;
    SET TIME ZONE 'UTC';
    SET default_transaction_isolation = 'read committed';
    SET lock_timeout = '1s';
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""
_TERMINATE_FROZEN = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
      AND application_name = current_setting('application_name') AND xact_start IS NOT NULL
      AND wait_event_type = 'Client' AND state_change < clock_timestamp() - make_interval(secs => %s)
"""
_MAX_FROZEN = 5.0
"""The maximum seconds for which a transaction of another process may hold a lock while it waits for its client.

A quarter of a lease applies if it is shorter. Without this limit, a process that freezes inside a transaction would
block the takeover of its run. The timeouts of PostgreSQL do not solve this problem: before version 17 they do not end
pipelined transactions, and the timeout of version 17 also ends slow transactions of live processes.
"""


class Database:
    """A PostgreSQL database: opens connections, retries failed operations and explains errors.

    If this process has already connected to the database once, operations are retried for a longer time.
    """

    def __init__(self, url: str) -> None:
        match = _URL.fullmatch(url)
        parsed: JsonObject | None = None
        if match is not None:
            with suppress(ProgrammingError):  # The error is not chained, because it may contain a part of the password.
                parsed = conninfo_to_dict(url)
        if match is None or parsed is None:
            raise DeclarationError(
                f"`{url.partition('://')[0]}://...` is not the URL of a PostgreSQL database. Use the form "
                f"'postgresql://user:password@host:port/name', and percent-encode special characters of the password, "
                f"such as `%40` for @."
            )
        scheme, user, at_sign, address, query = match.groups(default="")
        shown = [(key, value) for key, value in parse_qsl(query) if key in _SHOWN_PARAMETERS]
        self.name = f"{scheme}{user}{at_sign}{address}" + (f"?{urlencode(shown, safe='/,')}" if shown else "")
        """The URL without secrets, for messages."""
        self._parameters: JsonObject = {**_DEFAULTS, **parsed, "client_encoding": "UTF8"}
        secrets = [str(value) for key, value in parsed.items() if "password" in key or "secret" in key]
        self._redactor = Redactor({*secrets, *map(quote, secrets)}, finds_keys=False)
        self._was_reached = False

    def open(self) -> Connection[TupleRow]:
        """Open a connection, and create the tables if they do not exist."""
        connection: Connection[TupleRow] = psycopg.connect(
            **self._parameters, autocommit=True, cursor_factory=RawCursor, prepare_threshold=2
        )
        self._was_reached = True
        try:
            # Use one type for all integers. Otherwise PostgreSQL would prepare a statement again for each integer size.
            connection.adapters.register_dumper(int, Int8Dumper)
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise StoreError(
                    f"{self.name} uses the encoding {encoding}, but a store needs UTF8. Use a database with the "
                    f"encoding UTF8."
                )
            prepare(connection, self.name)
            # The lock timeout must be set after `prepare`, which may wait longer for its lock.
            connection.execute(_SESSION_SETTINGS)
        except BaseException:
            connection.close()
            raise
        return connection

    def retry(self, operation: Callable[[], T], drop_connection: Callable[[], None]) -> T:
        """Call a function. Repeat the call while the server is unreachable or transactions conflict with each other."""
        deadline, pause = time.monotonic() + RETRY_SECONDS, 0.01
        while True:
            try:
                return operation()
            except psycopg.Error as error:
                drop_connection()
                if not self._is_temporary(error) or time.monotonic() > deadline:
                    raise
                if error.sqlstate == _LOCK_TIMEOUT:
                    self._terminate_frozen()
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, 0.5)

    def _terminate_frozen(self) -> None:
        """End the transactions of acorn processes that no longer respond.

        Such a transaction may have a lock that this process waits for.
        """
        with suppress(psycopg.Error), psycopg.connect(**self._parameters, autocommit=True) as connection:
            connection.execute(_TERMINATE_FROZEN, [min(lease_seconds() / 4, _MAX_FROZEN)])

    def _is_temporary(self, error: psycopg.Error) -> bool:
        if error.sqlstate in _RETRIED:
            return True
        text = str(error)
        if not is_connection_lost(error) or any(part in text for part in _PERMANENT):
            return False
        return self._was_reached or any(part in text for part in _TEMPORARY)

    def explain(self, error: psycopg.Error) -> StoreError:
        """Return a `StoreError` that explains an error of PostgreSQL and says what to do."""
        _forget_connections(error)
        original = " ".join(str(error).split())
        reason = self._redactor.text(original)
        error_class = StoreError
        if isinstance(error, OperationalError) and is_connection_lost(error):
            if any(part in reason for part in _USER_REFUSED):
                text = f"{self.name} refused the user ({reason}). Check the user and the password in the URL."
            elif "does not exist" in reason:
                text = f"{self.name} does not exist ({reason}). Create the database, or use another database."
            elif self._was_reached:
                error_class = StoreUnreachableError
                text = f"{self.name} did not answer for {RETRY_SECONDS:.0f} s ({reason}). Check that the server runs."
            else:
                error_class = StoreUnreachableError
                text = f"Cannot connect to {self.name} ({reason}). Check that the server runs. Check the host and port."
        elif isinstance(error, psycopg.errors.InsufficientPrivilege):
            text = (
                f"The user of {self.name} lacks a permission ({reason}). Allow the user to create and write the "
                f"schemas `acorn` and `acorn_jobs`, or use a user with the role for this task."
            )
        else:
            text = f"PostgreSQL reported an error for {self.name} ({reason}). Check its log, then resume the run."
        explained = error_class(text)
        explained.__cause__ = None if reason != original else error  # Python would print the secrets in the cause.
        return explained


def _forget_connections(error: BaseException | None) -> None:
    """Remove the connections from an error and the errors before it, because a connection contains the password."""
    while error is not None:
        if isinstance(error, psycopg.Error):
            error._pgconn = None  # pyright: ignore[reportPrivateUsage] - psycopg has no public way.
        error = error.__cause__ or error.__context__


def is_connection_lost(error: psycopg.Error) -> bool:
    """Return whether an error means that the connection is lost or was never established."""
    state = error.sqlstate
    if state is None:  # psycopg raised the error, not the server.
        return isinstance(error, OperationalError)
    return state.startswith(("08", "57P", "25P03"))


_abandoned: list[Connection[TupleRow]] = []
"""References to the connections of the parent process. Without them, psycopg would close the connections."""


def abandon(connection: Connection[TupleRow]) -> None:
    """Close the copy of a database connection that a forked child has inherited.

    The database session of the parent process stays open.
    """
    _abandoned.append(connection)
    with suppress(psycopg.Error, OSError):
        os.close(connection.fileno())


# Transactions


def run_in_pipeline(connection: Connection[TupleRow], operation: Callable[[], T]) -> T:
    """Call a function inside a psycopg pipeline and return the result of the function.

    In a pipeline, statements are sent without waiting for the results of earlier statements.
    """
    failure: psycopg.Error | None = None
    try:
        with connection.pipeline():
            try:
                return operation()
            except psycopg.Error as error:
                # If the error left the pipeline, psycopg would log another error about the lost connection.
                failure = error
    except psycopg.Error as error:
        failure = failure or error
    assert failure is not None
    raise failure


class PostgresConnection(SharedConnection[Connection[TupleRow]]):
    """A database connection that many threads of one process share.

    After a fork, the parent continues to use the connection, and the child opens its own connection.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database.open)
        self._database = database

    def call(self, operation: Callable[[Connection[TupleRow]], T]) -> T:
        """Call a function with the connection and return the result of the function.

        If the connection breaks, the call is repeated, so its writes may be executed twice.
        """
        try:
            return self.use(lambda: self._database.retry(lambda: operation(self.connect()), self.drop))
        except psycopg.Error as error:
            raise self._database.explain(error) from None

    def read(self, operation: Callable[[Transaction], T]) -> T:
        """Call a function in a read-only transaction and return the result of the function.

        All statements of the function see the same snapshot of the database.
        """

        def execute(connection: Connection[TupleRow]) -> T:
            transaction = PostgresTransaction(connection)
            transaction.control(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                result = operation(transaction)
            except StoreError:  # The connection stays open. After any other error, it is closed.
                transaction.control(b"ROLLBACK")
                raise
            transaction.control(b"COMMIT")
            return result

        return self.call(lambda connection: run_in_pipeline(connection, lambda: execute(connection)))

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        if in_child and self._connection is not None:
            abandon(self._connection)
            self._connection = None
        self._lock.release()
