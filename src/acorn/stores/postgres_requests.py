"""What people are asked, in the tables of a store in PostgreSQL: kept with a commit, dropped where one is cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from acorn.stores import rows
from acorn.stores.postgres_connection import Transaction
from acorn.types import Request

_ROW = ", ".join(f"${at}" for at in range(2, 2 + len(rows.REQUEST.split(", "))))


def ask(transaction: Transaction, root: str, requests: Sequence[Request]) -> None:
    """From now on these are open, those that have an answer apart, and no others."""
    top = "(SELECT number FROM acorn.runs WHERE id = $1)"
    transaction.execute(
        f"DELETE FROM acorn.requests WHERE root = {top} AND answered IS NULL AND id <> ALL($2::text[])".encode(),
        [root, [request.id for request in requests]],
    )
    sql = f"""
        INSERT INTO acorn.requests (root, {rows.REQUEST}) VALUES ({top}, {_ROW})
        ON CONFLICT (id) DO NOTHING
    """.encode()
    for request in requests:
        transaction.execute(sql, [root, *rows.request_row(request)])
    transaction.execute(
        b"""
        UPDATE acorn.runs SET asks = (
          SELECT count(*) FROM acorn.requests WHERE requests.root = runs.number AND answered IS NULL
        ) WHERE id = $1
        """,
        [root],
    )
