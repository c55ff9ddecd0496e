"""What an HTTP answer says of asking again: its status, and its `Retry-After`.

For adapters, which put it into their `ModelError`; whether and when it is done is decided in `retrying`.
"""

from __future__ import annotations

import math
import time
from email.utils import parsedate_to_datetime

_PASSING = (408, 409, 429)


def is_retryable(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status in _PASSING or status >= 500


def retry_after(header: str | None) -> float | None:
    """`Retry-After` in seconds; a date is read too."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else max(0.0, seconds)
