"""Measure a commit to PostgreSQL, relative to psycopg with the same statements in a pipeline on the same server."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from measure import Line
from psycopg import RawCursor
from stored_steps import (
    PLAIN,
    WRITERS,
    Rows,
    at_once_over_one_by_one,
    begin,
    database,
    rows_of_a_step,
    step_over_raw,
    whole_step_over_raw,
)

from acorn.stores import statements
from acorn.stores.lease import this_process
from acorn.stores.postgres import PostgresStore
from acorn.stores.postgres.statements import with_parts
from acorn.stores.postgres.writer import WRITE_NUMBER


def raw(
    url: str, run_id: str, step_rows: tuple[Rows, Rows] = PLAIN
) -> tuple[psycopg.Connection[Any], Callable[[], None]]:
    """Execute the same statements with psycopg: send the new rows together, then commit."""
    connection: psycopg.Connection[Any] = psycopg.connect(
        url, autocommit=True, cursor_factory=RawCursor, prepare_threshold=2, options="-c search_path=acorn"
    )
    since, holder = 1, this_process().id
    statement = with_parts(statements.UPDATE_RUNNING_ROOT, is_new=False)

    def step() -> None:
        nonlocal since
        for entries, state in step_rows:
            with connection.pipeline():
                connection.execute("BEGIN", prepare=False)
                connection.execute(WRITE_NUMBER, ("raw", since))
                facts = ("running", "openai/gpt-4o", since, 10, 20, 0, 0, 1, 0, False, 0.25, 1.5, None, None)
                kept = (since + len(entries), run_id, since, holder, None, state, entries)
                went = connection.execute(statement, (*facts, *kept))
                assert went.fetchone() is not None
                connection.execute("COMMIT", prepare=False)
            since += len(entries)

    return connection, step


def lines() -> list[Line]:
    assert len(statements.CHANGE_COLUMNS.split(", ")) == 15, "the same columns"
    with database() as url, tempfile.TemporaryDirectory() as folder:
        if url is None:
            return []
        with closing(PostgresStore(url)) as store:
            begin(store, "raw")
            begin(store, "floor")
            plain_connection, plain = raw(url, "raw")
            floor_connection, floor = raw(url, "floor", rows_of_a_step(Path(folder)))
            with closing(plain_connection), closing(floor_connection):
                step = step_over_raw(store, plain, 40)
                whole = whole_step_over_raw(lambda _: store, floor)
            at_once = at_once_over_one_by_one(store)
    return [
        Line("CPU of two commits, over psycopg executing the same pipelined", step, 2.0),
        Line("CPU that a store adds to a step, over the same", whole, 2.0),
        Line(f"a commit of {WRITERS} at once, over one transaction a commit", at_once, None),
    ]
