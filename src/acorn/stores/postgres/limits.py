"""Rate limits that all processes of a PostgreSQL database share, by the clock of the database."""

from __future__ import annotations

from acorn.stores.port import WindowOrder, WindowSlice
from acorn.stores.postgres.connection import Transaction
from acorn.stores.rules import grant_slice

_LOCK_LIMIT = b"""
    INSERT INTO acorn.rate_limits VALUES ($1, clock_timestamp())
    ON CONFLICT (key) DO UPDATE SET last_used = excluded.last_used
"""
_SAVE_REPORTS = b"""
    UPDATE acorn.rate_limit_slices slice SET requests = report.requests, tokens = report.tokens,
      expires = clock_timestamp() + make_interval(secs => report.seconds)
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::float8[]) AS report (number, requests, tokens, seconds)
    WHERE slice.number = report.number
"""
_DELETE_EXPIRED = b"""
    DELETE FROM acorn.rate_limit_slices WHERE key = $1 AND (expires <= clock_timestamp() OR requests = 0)
"""
_USED_SLICES = b"""
    SELECT requests, tokens, extract(epoch FROM expires - clock_timestamp())::float8 FROM acorn.rate_limit_slices
    WHERE key = $1 ORDER BY expires
"""
_INSERT_SLICE = b"""
    INSERT INTO acorn.rate_limit_slices (key, requests, tokens, expires)
    VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4)) RETURNING number
"""
_DELETE_UNUSED = b"""
    DELETE FROM acorn.rate_limits WHERE key IN (
      SELECT key FROM acorn.rate_limits WHERE last_used < clock_timestamp() - interval '1 day'
        AND NOT EXISTS (SELECT FROM acorn.rate_limit_slices slice WHERE slice.key = rate_limits.key)
      FOR UPDATE SKIP LOCKED
    )
"""


def take(transaction: Transaction, order: WindowOrder) -> WindowSlice:
    """Save the reports of an order, and take a slice of its rate limit."""
    transaction.execute(_LOCK_LIMIT, [order.key])
    if order.reports:
        transaction.execute(_SAVE_REPORTS, list(map(list, zip(*order.reports, strict=True))))
    transaction.execute(_DELETE_EXPIRED, [order.key])
    if not order.requests:
        return WindowSlice(0, 0, 0)
    used: list[tuple[int, int, float]] = transaction.execute(_USED_SLICES, [order.key]).fetchall()
    granted = grant_slice(order, used)
    if not granted.requests:
        return granted
    row = transaction.execute(_INSERT_SLICE, [order.key, granted.requests, granted.tokens, order.seconds]).fetchone()
    assert row is not None
    return granted._replace(number=int(row[0]))


def delete_unused_limits(transaction: Transaction) -> None:
    """Delete rate limits that no process has used for a day."""
    transaction.execute(_DELETE_UNUSED)
