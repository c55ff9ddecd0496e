"""Allowances that all processes of a PostgreSQL database share, in its time."""

from __future__ import annotations

from math import inf

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
    requests, tokens = _fitting(order, sum(row[0] for row in counted), sum(row[1] for row in counted))
    if not requests:
        return Slice(0, 0, 0, _seconds(order, counted))
    row = transaction.execute(_TAKE, [order.key, requests, tokens, order.seconds]).fetchone()
    assert row is not None
    return Slice(int(row[0]), requests, tokens)


def forget(transaction: Transaction) -> None:
    """Allowances that nobody has used for a day."""
    transaction.execute(_FORGET)


def _fitting(order: Order, requests: int, tokens: int) -> tuple[int, int]:
    """What can be had where so much counts; no requests where that is too little."""
    if requests == 0:  # what is greater than the whole allowance goes alone
        most = order.requests if order.most_requests is None else min(order.requests, order.most_requests)
        if order.most_tokens is None:
            return most, order.tokens
        return (most if order.need <= order.most_tokens else 1), max(order.need, min(order.tokens, order.most_tokens))
    room = inf if order.most_requests is None else order.most_requests - requests
    token_room = inf if order.most_tokens is None else order.most_tokens - tokens
    if room < 1 or token_room < order.need:
        return 0, 0
    return int(min(order.requests, room)), int(min(order.tokens, token_room))


def _seconds(order: Order, counted: list[tuple[int, int, float]]) -> float:
    """When the first ones have left, there is room."""
    requests, tokens = sum(row[0] for row in counted), sum(row[1] for row in counted)
    for earlier_requests, earlier_tokens, left in counted:
        requests, tokens = requests - earlier_requests, tokens - earlier_tokens
        if _fitting(order, requests, tokens)[0]:
            return max(0.0, left)
    return 0.0
