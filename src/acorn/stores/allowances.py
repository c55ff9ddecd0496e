"""The rules of an allowance that machines share: what can be had of it, where so much counts. Stores keep the book."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from acorn.stores.port import Order, Slice


def share(order: Order, counted: Sequence[tuple[int, int, float]]) -> Slice:
    """What an order is given beside slices of so many requests and tokens for so many seconds more, soonest first."""
    requests, tokens = _fitting(order, sum(row[0] for row in counted), sum(row[1] for row in counted))
    if not requests:
        return Slice(0, 0, 0, _seconds(order, counted))
    return Slice(0, requests, tokens)


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


def _seconds(order: Order, counted: Sequence[tuple[int, int, float]]) -> float:
    """When the first ones have left, there is room."""
    requests, tokens = sum(row[0] for row in counted), sum(row[1] for row in counted)
    for earlier_requests, earlier_tokens, left in counted:
        requests, tokens = requests - earlier_requests, tokens - earlier_tokens
        if _fitting(order, requests, tokens)[0]:
            return max(0.0, left)
    return 0.0
