"""Allowances that all processes of a PostgreSQL database share, in its time."""

from __future__ import annotations

from acorn.stores.allowances import share
from acorn.stores.port import Order, Slice
from acorn.stores.postgres_connection import Transaction

_LOCK = b"""
    INSERT INTO acorn.allowances VALUES ($1, clock_timestamp()) ON CONFLICT (key) DO UPDATE SET used = excluded.used
"""
_REPORT = b"""
    UPDATE acorn.slices SET requests = told.requests, tokens = told.tokens,
      until = clock_timestamp() + make_interval(secs => told.seconds)
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::float8[]) AS told (number, requests, tokens, seconds)
    WHERE slices.number = told.number
"""
_DROP = b"DELETE FROM acorn.slices WHERE key = $1 AND (until <= clock_timestamp() OR requests = 0)"
_COUNTED = b"""
    SELECT requests, tokens, extract(epoch FROM until - clock_timestamp())::float8 FROM acorn.slices
    WHERE key = $1 ORDER BY until
"""
_TAKE = b"""
    INSERT INTO acorn.slices (key, requests, tokens, until)
    VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4)) RETURNING number
"""
_FORGET = b"""
    DELETE FROM acorn.allowances WHERE key IN (
      SELECT key FROM acorn.allowances WHERE used < clock_timestamp() - interval '1 day'
        AND NOT EXISTS (SELECT FROM acorn.slices WHERE slices.key = allowances.key) FOR UPDATE SKIP LOCKED
    )
"""


def take(transaction: Transaction, order: Order) -> Slice:
    transaction.execute(_LOCK, [order.key])
    if order.reports:
        transaction.execute(_REPORT, list(map(list, zip(*order.reports, strict=True))))
    transaction.execute(_DROP, [order.key])
    if not order.requests:
        return Slice(0, 0, 0)
    counted: list[tuple[int, int, float]] = transaction.execute(_COUNTED, [order.key]).fetchall()
    came = share(order, counted)
    if not came.requests:
        return came
    row = transaction.execute(_TAKE, [order.key, came.requests, came.tokens, order.seconds]).fetchone()
    assert row is not None
    return came._replace(number=int(row[0]))


def forget(transaction: Transaction) -> None:
    """Allowances that nobody has used for a day."""
    transaction.execute(_FORGET)
