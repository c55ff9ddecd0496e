"""The largest number of requests and tokens in any time window."""

from __future__ import annotations

from collections.abc import Sequence


def most_in_any_window(sent: Sequence[tuple[float, int]], per: float) -> tuple[int, int]:
    """Return requests and tokens of those sent at these times, in order."""
    first, tokens, most = 0, 0, (0, 0)
    for last, (moment, used) in enumerate(sent):
        tokens += used
        while moment - sent[first][0] >= per:
            tokens -= sent[first][1]
            first += 1
        most = max(most[0], last - first + 1), max(most[1], tokens)
    return most
