"""The tables and SQL statements that all databases share, their rows, and the interface of a transaction.

The statements are in the SQL of PostgreSQL, and use few features that other databases lack. `Transaction` contains the
statements that differ between databases, and each database translates the others if necessary.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Protocol, get_args

from acorn.stores import port
from acorn.stores.lease import is_alive
from acorn.types import Request, Usage

Row = tuple[Any, ...]

# Tables

APPLICATION_ID = 0x41434F52
"""The application id in a SQLite file of acorn, and the key of the advisory lock of acorn in PostgreSQL."""
SCHEMA_VERSION = 4
"""The version of the tables in SQLite and in PostgreSQL."""
TABLES: tuple[str, ...] = (
    # Processes that drive runs. `monotonic_expires` is the end of the lease on the monotonic clock of the machine. All
    # processes of the same boot share this clock, but the wall clock of a process may be wrong.
    """
    CREATE TABLE processes (
      id text PRIMARY KEY, host text NOT NULL, boot text NOT NULL, pid bigint NOT NULL, process_started text NOT NULL,
      last_heartbeat {time} NOT NULL, lease_expires {time} NOT NULL, monotonic_expires double precision NOT NULL
    ){no_number}
    """,
    # The facts of runs, and the process that drives each tree. `root` contains the number of the root, and is null for
    # a root. Only a root has a process. `entry_count` is the length of the journal. `open_requests` is the number of
    # open requests of the tree. `takeovers` is the number of processes that died while the tree had `takeover_steps`
    # steps. `heartbeat_age` is the age in seconds of the last heartbeat of the previous process at the last takeover.
    # In a database with notifications, each commit sends one until `watched_until`. In a database with workers, they
    # drive the runs with `is_delivered`, the highest `priority` first, and no run before its `not_before`. Ids sort by
    # code point, as in Python. No index contains a column that most commits change.
    """
    CREATE TABLE runs (
      number {number}, id {id} NOT NULL UNIQUE, root bigint, parent text, agent text NOT NULL, status text NOT NULL,
      model text, steps bigint NOT NULL, input_tokens bigint NOT NULL, output_tokens bigint NOT NULL,
      cached_tokens bigint NOT NULL, reasoning_tokens bigint NOT NULL, requests bigint NOT NULL,
      cache_write_tokens bigint NOT NULL, is_estimated boolean NOT NULL DEFAULT false, cost double precision,
      started {time} NOT NULL, updated {time} NOT NULL,
      seconds double precision NOT NULL, batch text, item bigint, stop_reason text, error text,
      entry_count bigint NOT NULL, process text, heartbeat_age double precision NOT NULL DEFAULT 0,
      takeovers integer NOT NULL DEFAULT 0, takeover_steps bigint NOT NULL DEFAULT -1,
      cancel_requested boolean NOT NULL DEFAULT false, open_requests bigint NOT NULL DEFAULT 0,
      watched_until {time}, is_delivered boolean NOT NULL DEFAULT false, priority integer NOT NULL DEFAULT 0,
      not_before {time}
    ){often_updated}
    """,
    "CREATE INDEX runs_by_time ON runs (started DESC, number DESC) WHERE root IS NULL",
    "CREATE INDEX runs_by_batch ON runs (batch, item) WHERE batch IS NOT NULL",
    "CREATE INDEX runs_by_root ON runs (root) WHERE root IS NOT NULL",
    "CREATE INDEX runs_by_process ON runs (process) WHERE process IS NOT NULL",
    # JSON text that the database does not parse. The header never changes, and the state changes with each commit. The
    # type is text, because JSON types reject some characters that a model may write.
    "CREATE TABLE run_headers (run {run_key}, branch text, input text NOT NULL, overrides text)",
    "CREATE TABLE run_states (run {run_key}, record text NOT NULL, state text NOT NULL){often_updated}",
    # Requests for human input, with their answers. `answer_order` is the number of the answer within its tree, and
    # `digest` binds the answer to the tool and the arguments that the request showed.
    """
    CREATE TABLE requests (
      number {number}, id text NOT NULL UNIQUE, root bigint NOT NULL, run text NOT NULL, kind text NOT NULL,
      question text NOT NULL, tool text NOT NULL, arguments text NOT NULL, branch text, choices text,
      asked {time} NOT NULL, answer text, answered {time}, answer_order bigint, digest text
    )
    """,
    "CREATE INDEX requests_by_root ON requests (root)",
    "CREATE INDEX requests_open ON requests (asked, number) WHERE answered IS NULL",
    # The data of images, audio clips and files. Equal data is stored once. `run_media` lists the data of each tree.
    "CREATE TABLE media (number {number}, sha256 text NOT NULL UNIQUE, data {bytes} NOT NULL)",
    "CREATE TABLE run_media (root bigint NOT NULL, blob bigint NOT NULL, PRIMARY KEY (root, blob)){no_number}",
    "CREATE INDEX run_media_by_blob ON run_media (blob)",
)
"""Statements that create the tables, with names in braces for the types that differ between databases.

Each database creates the table `entries` of the journals with its own statement.
"""

# Columns

_USAGE_COLUMNS = (
    "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "requests",
    "cache_write_tokens", "is_estimated",
)  # fmt: skip
FACTS_COLUMNS = (
    f"id, agent, status, model, steps, {', '.join(_USAGE_COLUMNS)}, cost, started, updated, seconds, batch, "
    f"stop_reason, error, parent, item"
)
HEADER_COLUMNS = "id, root, parent, agent, started, batch, item"
CHANGE_COLUMNS = f"status, model, steps, {', '.join(_USAGE_COLUMNS)}, cost, seconds, stop_reason, error, entry_count"
change_values: Callable[[port.Change], Row] = attrgetter(
    "model", "steps", *(f"usage.{name}" for name in _USAGE_COLUMNS), "cost", "seconds", "stop_reason", "error"
)
"""Return the values of `CHANGE_COLUMNS` except the first and the last column."""
REQUEST_COLUMNS = "id, run, kind, question, tool, arguments, branch, choices, asked"


def parameters(columns: str, first: int = 1) -> list[str]:
    """Return one SQL parameter for each column, such as `$1`."""
    return [f"${at}" for at in range(first, first + len(columns.split(", ")))]


SET_CHANGE = ", ".join(
    f"{column} = {value}"
    for column, value in zip(CHANGE_COLUMNS.split(", "), parameters(CHANGE_COLUMNS), strict=True)
)  # fmt: skip
"""Assignments of `CHANGE_COLUMNS`. Their values are the first parameters of the statement."""


# Statements that change the row of a run. `Transaction.store_run` then stores the header, the state and the entries.

_IS_WATCHED = "coalesce(watched_until > clock_timestamp(), false)"
_RETURNING = f"RETURNING number, coalesce(root, number) AS root, {_IS_WATCHED} AS is_watched"
# The statement does not set the process, which does not change, so that the database writes no index.
UPDATE_RUNNING_ROOT = f"""
    UPDATE runs SET {SET_CHANGE}, updated = clock_timestamp()
    WHERE id = $16 AND entry_count = $17 AND process = $18 AND root IS NULL AND NOT cancel_requested
      AND open_requests = 0
    {_RETURNING}
"""
UPDATE_RUN = f"""
    UPDATE runs SET {SET_CHANGE}, updated = clock_timestamp(), process = $17,
      cancel_requested = cancel_requested AND $1 = 'running'
    WHERE id = $16 {_RETURNING}
"""
_RUN_COLUMNS = f"{HEADER_COLUMNS}, {CHANGE_COLUMNS}, process"
INSERT_RUN = f"""
    INSERT INTO runs ({_RUN_COLUMNS}, updated)
    SELECT $1, (SELECT number FROM runs WHERE id = $2), $3, $4, to_timestamp($5),
      {", ".join(parameters(_RUN_COLUMNS)[5:])}, clock_timestamp()
    {_RETURNING}
"""


# Statements of the rules

SET_LEASE = """
    INSERT INTO processes
    VALUES ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp() + make_interval(secs => $6), $7)
    ON CONFLICT (id) DO UPDATE SET last_heartbeat = excluded.last_heartbeat, lease_expires = excluded.lease_expires,
      monotonic_expires = excluded.monotonic_expires
"""
# A process that still drives runs is not deleted, and a row that another transaction uses is skipped.
DELETE_IDLE_PROCESSES = """
    DELETE FROM processes WHERE id IN (
      SELECT id FROM processes WHERE lease_expires < clock_timestamp() - make_interval(secs => 86400)
        AND NOT EXISTS (SELECT 1 FROM runs WHERE process = processes.id) FOR UPDATE SKIP LOCKED
    )
"""

KNOWN_RUNS = """
    SELECT run.id, coalesce(top.id, run.id), run.entry_count
    FROM runs run LEFT JOIN runs top ON top.number = run.root WHERE run.id = ANY($1::text[])
"""
RUN_ID = "SELECT id FROM runs WHERE number = $1"
TOUCH_RUN = "UPDATE runs SET updated = clock_timestamp() WHERE id = $1"
SET_CLAIM = """
    UPDATE runs SET status = 'running', process = $1, heartbeat_age = $2, updated = clock_timestamp() WHERE number = $3
"""
SET_TAKEOVERS = "UPDATE runs SET takeovers = $1, takeover_steps = $2 WHERE number = $3"
SET_STATUS = """
    UPDATE runs SET status = $1, error = $2, process = NULL, cancel_requested = false, updated = clock_timestamp()
    WHERE number = $3
"""
REQUEST_CANCEL = "UPDATE runs SET cancel_requested = true WHERE number = $1"
CANCEL_REQUESTED = "SELECT id FROM runs WHERE process = $1 AND cancel_requested ORDER BY number"
# `DO UPDATE` locks the row of stored data. A transaction that deletes the last run with this data then waits, and finds
# the new run.
INSERT_MEDIA = """
    INSERT INTO media (sha256, data) VALUES ($1, $2) ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256
"""
ADD_MEDIA_TO_RUN = """
    INSERT INTO run_media SELECT runs.number, media.number FROM runs, media WHERE id = $1 AND sha256 = $2
    ON CONFLICT DO NOTHING
"""
_ROOT_NUMBER = "(SELECT number FROM runs WHERE id = $1)"
WITHDRAW_REQUESTS = f"""
    DELETE FROM requests WHERE root = {_ROOT_NUMBER} AND answered IS NULL AND NOT (id = ANY($2::text[]))
"""
INSERT_REQUEST = f"""
    INSERT INTO requests (root, {REQUEST_COLUMNS})
    VALUES ({_ROOT_NUMBER}, {", ".join(parameters(REQUEST_COLUMNS, 2)[:-1])}, to_timestamp($10))
    ON CONFLICT (id) DO NOTHING
"""
COUNT_REQUESTS = """
    UPDATE runs SET open_requests = (
      SELECT count(*) FROM requests WHERE requests.root = runs.number AND answered IS NULL
    ) WHERE id = $1
"""
READ_REQUEST = f"SELECT {REQUEST_COLUMNS}, answered FROM requests WHERE id = $1"
HAS_ANSWER = "SELECT 1 FROM requests WHERE id = ANY($1::text[]) AND answered IS NOT NULL LIMIT 1"
SET_ANSWER = """
    UPDATE requests SET answer = $1, answered = clock_timestamp(), digest = $4,
      answer_order = (SELECT coalesce(max(answer_order), 0) + 1 FROM requests WHERE root = $2) WHERE id = $3
"""
COUNT_ANSWER = """
    UPDATE runs SET open_requests = open_requests - 1, status = $1, updated = clock_timestamp() WHERE number = $2
    RETURNING id
"""
_TREE_NUMBERS = "(SELECT number FROM runs WHERE number = $1 OR root = $1)"
DELETE_RUN = (
    f"DELETE FROM run_headers WHERE run IN {_TREE_NUMBERS}",
    f"DELETE FROM run_states WHERE run IN {_TREE_NUMBERS}",
    "DELETE FROM requests WHERE root = $1",
    # Media that another root run also uses remains. The first statement prevents that another transaction starts to
    # use the media before they are deleted. It locks the rows in the same order as commits do.
    "SELECT 1 FROM media WHERE number IN (SELECT blob FROM run_media WHERE root = $1) ORDER BY sha256 FOR UPDATE",
    """
    DELETE FROM media WHERE number IN (SELECT blob FROM run_media WHERE root = $1)
      AND NOT EXISTS (SELECT 1 FROM run_media WHERE blob = media.number AND root <> $1)
    """,
    "DELETE FROM run_media WHERE root = $1",
    "DELETE FROM runs WHERE number = $1 OR root = $1",
)

# Workers and notifications, which not every database has

JOBS_SCHEMA = "acorn_jobs"
"""The PostgreSQL schema with the tables of the job engine."""
ADD_JOBS = f"SELECT {JOBS_SCHEMA}.deliver($1::text[])"
"""The statement that adds jobs for delivered runs whose status has become `queued`, so that workers drive the runs."""
CHANGE_CHANNEL = "acorn_changes"
"""The channel of notifications that a watched tree changed. The payload is the number of the root."""
CANCEL_CHANNEL = "acorn_cancel_requests"
"""The channel of notifications about cancel requests. The payload is the id of the process that drives the run."""
JOB_CHANNEL = "acorn_new_jobs"
"""The channel of notifications about new jobs. The payload is empty."""

# Statements that only read

_PROCESS_COLUMNS = (
    "processes.id, host, boot, pid, process_started, last_heartbeat, lease_expires, clock_timestamp(), "
    "monotonic_expires"
)  # fmt: skip
PROCESS = f"SELECT {_PROCESS_COLUMNS} FROM processes WHERE id = $1"
DRIVING_PROCESSES = f"""
    SELECT {_PROCESS_COLUMNS} FROM processes WHERE id IN (SELECT process FROM runs WHERE process IS NOT NULL)
"""
ROOT = f"""
    SELECT top.number, top.id, top.cancel_requested, run.number, run.status, {_PROCESS_COLUMNS}
    FROM runs run JOIN runs top ON top.number = coalesce(run.root, run.number)
    LEFT JOIN processes ON processes.id = top.process WHERE run.id = $1
"""
TREE = f"""
    SELECT number, {FACTS_COLUMNS}, branch, input, overrides, record, state
    FROM runs JOIN run_headers ON run_headers.run = number JOIN run_states ON run_states.run = number
    WHERE number = $1 OR root = $1 ORDER BY number
"""
PARENTS = "SELECT number, id, parent FROM runs WHERE number = $1 OR root = $1 ORDER BY number"
JOURNAL = "SELECT run, position, entry FROM entries WHERE root = $1 AND position > $2 ORDER BY position"
STATUSES = "SELECT id, status, cancel_requested, process FROM runs WHERE root IS NULL AND id = ANY($1::text[])"
SEARCH = """
    SELECT id FROM runs WHERE root IS NULL AND id = ANY($1::text[]) AND (
      EXISTS (SELECT 1 FROM run_headers WHERE run = number AND input COLLATE "C" ILIKE $2)
      OR EXISTS (SELECT 1 FROM entries WHERE entries.root = number AND entry COLLATE "C" ILIKE $2))
"""
FIND = "SELECT id FROM runs WHERE root IS NULL AND id >= $1 AND id < $2 ORDER BY id"
MEDIA = "SELECT sha256, data FROM media WHERE sha256 = ANY($1::text[])"
_IN_TREE = "root = (SELECT coalesce(root, number) FROM runs WHERE id = $1)"
OPEN_REQUESTS = f"SELECT {REQUEST_COLUMNS} FROM requests WHERE answered IS NULL ORDER BY asked, number"
TREE_REQUESTS = OPEN_REQUESTS.replace("WHERE", f"WHERE {_IN_TREE} AND")
ANSWERS = f"""
    SELECT {REQUEST_COLUMNS}, answer, answered, digest FROM requests
    WHERE {_IN_TREE} AND answered IS NOT NULL ORDER BY answer_order
"""
# The CASE expression computes `rules.visible_status`. Its parameter is the list of ids of the live processes.
LIST = f"""
    SELECT {FACTS_COLUMNS}, visible_status FROM (
      SELECT *, CASE WHEN status <> 'running' OR process = ANY($1::text[]) THEN status
        WHEN cancel_requested THEN 'cancelled' ELSE 'stopped' END AS visible_status
      FROM runs WHERE root IS NULL
    ) AS visible
"""
# The last characters of the full class name are the class name after a `:` or a `.`.
HAS_AGENT = """
    (agent = CAST($ AS text) OR substr(agent, length(agent) - length(CAST($ AS text)))
      IN (':' || CAST($ AS text), '.' || CAST($ AS text)))
"""


# Rows

_STATUSES = get_args(port.Status)


class RunRow(NamedTuple):
    """The columns of a run that the rules check before they change the run."""

    number: int
    status: port.Status
    process: str | None
    cancel_requested: bool
    open_requests: int
    root: int | None
    heartbeat_age: float
    takeovers: int
    takeover_steps: int
    entry_count: int
    error: str | None
    is_delivered: bool
    """Whether workers drive the run."""
    is_watched: bool
    """Whether each commit to the run sends a notification."""


SELECT_RUN = f"SELECT {', '.join(RunRow._fields[:-1])}, {_IS_WATCHED} FROM runs"
"""The statement that reads a `RunRow`, without its condition."""


class ProcessRow(NamedTuple):
    """A process, the age of its last heartbeat and the time left until its lease expires.

    The clock of the database measures these times, because the clocks of different machines may differ. For a process
    of the same boot, the monotonic clock decides instead.
    """

    process: port.Process
    heartbeat_age: float
    """Seconds since the last heartbeat."""
    lease_left: float
    """Seconds until the lease expires."""
    monotonic_expires: float
    """The end of the lease on the monotonic clock of the machine of the process."""

    def is_alive(self) -> bool:
        return is_alive(self.process, self.lease_left, self.monotonic_expires)


class RootRow(NamedTuple):
    """The row of a root run, with the number and the stored status of the requested run (the root run or a branch)."""

    number: int
    id: str
    cancel_requested: bool
    run: int
    run_status: port.Status
    is_driven: bool
    """Whether a live process drives the tree."""


def to_datetime(value: float | datetime) -> datetime:
    """Convert a stored time to a datetime.

    SQLite stores the seconds since 1970, and PostgreSQL stores timestamps.
    """
    return value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)


def to_process(row: Sequence[Any]) -> ProcessRow | None:
    """Convert a row with the columns of a process to a `ProcessRow`. Return None if the row contains no process."""
    if row[0] is None:
        return None
    heartbeat, expires, now = map(to_datetime, row[5:8])
    age, left = (now - heartbeat).total_seconds(), (expires - now).total_seconds()
    return ProcessRow(port.Process(*row[:5]), age, left, row[8])


def run_facts(row: Row, root: str, status: port.Status) -> port.RunFacts:
    """Convert a table row with the columns of `FACTS_COLUMNS` to a `RunFacts` object."""
    if status not in _STATUSES:
        raise ValueError(f"unknown status {status!r}")
    run_id, agent, _, model, steps, *more = row
    cost, started, updated, seconds, batch, stop_reason, error, parent, item = more[len(_USAGE_COLUMNS) :]
    usage = Usage(*more[: len(_USAGE_COLUMNS)])
    usage.is_estimated = bool(usage.is_estimated)  # SQLite stores a number.
    return port.RunFacts(
        run_id, agent, status, model, steps, usage, cost, to_datetime(started), to_datetime(updated), seconds,
        batch, stop_reason, error, root, parent, item,
    )  # fmt: skip


def stored_run(row: Row, root: str, status: port.Status, entries: Sequence[str]) -> port.StoredRun:
    """Convert a table row to a `StoredRun` object.

    The row has the columns of `FACTS_COLUMNS`, and then branch, input, overrides, record and state.
    """
    *facts_row, branch, input_, overrides, record, state = row
    facts = run_facts(tuple(facts_row), root, status)
    header = port.RunHeader(
        facts.agent, facts.parent, branch, input_, facts.started, overrides, facts.batch, facts.item
    )
    return port.StoredRun(facts, header, entries, record, state)


def to_request(row: Row) -> Request:
    """Convert a table row with the columns of `REQUEST_COLUMNS` to a request for human input."""
    request_id, run_id, kind, question, tool, arguments, branch, choices, asked = row
    offered = None if choices is None else tuple(json.loads(choices))
    return Request(
        request_id, run_id, kind, question, tool, json.loads(arguments), branch, to_datetime(asked), offered
    )  # fmt: skip


def to_answer(row: Row) -> port.StoredAnswer:
    """Convert a table row to a `StoredAnswer` object.

    The row has the columns of `REQUEST_COLUMNS`, and then the answer, the time of the answer and the digest.
    """
    *request, value, answered, digest = row
    return port.StoredAnswer(to_request(tuple(request)), json.loads(value), to_datetime(answered), digest)


def encodable(values: Iterable[Any]) -> Row:
    """Replace lone surrogates, which UTF-8 cannot encode, with their JSON escapes in all strings of a row."""
    return tuple(
        value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
        for value in values
    )


_NOT_LITERAL = re.compile(r"[^ !#$&-\[\]^`-~]+")
"""Characters that JSON may escape, that are wildcards of `LIKE`, or whose case SQL does not ignore."""


def like_pattern(text: str) -> str:
    """Return an SQL `LIKE` pattern that matches every JSON document with a given text inside.

    The pattern may also match documents without the text, because it contains wildcards instead of special characters.
    """
    return f"%{_NOT_LITERAL.sub('%', text)}%"


# Transactions


class Cursor(Protocol):
    """The result of a statement."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> Any: ...


class Transaction(ABC):
    """A transaction of one database: it executes statements, and has the statements that differ between databases."""

    idle_rows: ClassVar[tuple[str, ...]] = (DELETE_IDLE_PROCESSES,)
    """The statements that delete rows without further use, which each process executes once."""

    @abstractmethod
    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        """Execute a statement. A database may send it and wait only when the caller fetches the result."""

    @abstractmethod
    def store_run(
        self, statement: str, values: Row, change: port.Change, header: port.RunHeader | None
    ) -> Callable[[], Row | None]:
        """Execute a statement that changes the row of a run, and store the other parts of the run.

        Return a function that waits for the result: the number of the run, the number of its root run, and whether a
        process watches the run. If the statement changes no row, nothing is stored, and the function returns None.
        """

    @abstractmethod
    def insert_queued(self, runs: Sequence[port.QueuedRun], deliver: bool) -> Sequence[str]:
        """Insert runs with the status `queued`, and return the ids of the runs that were not stored before."""

    def delete_entries(self, root: int) -> None:
        """Delete the journals of a root run and its branches. Their positions are never used again."""
        self.execute("DELETE FROM entries WHERE root = $1", [root])

    @abstractmethod
    def notify(self, channel: str, payload: str) -> None:
        """Send a notification to other processes after the transaction is committed."""
