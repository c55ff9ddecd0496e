"""How long is waited for a provider: what a model dict may say of it, and what counts where it says nothing.

For the adapters of providers.
"""

from __future__ import annotations

import math
from typing import Any

from acorn.errors import DeclarationError

TIMEOUT = 600.0
"""Seconds for an answer where nobody has said otherwise."""
CONNECT_TIMEOUT = 10.0


def seconds_of(timeout: Any) -> float | None:
    """A timeout in seconds; None for no end."""
    try:
        seconds = None if timeout is None else float(timeout)
    except (ValueError, TypeError):
        seconds = -1.0
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise DeclarationError(f"`timeout` must be a number of seconds above 0, or None for no end, got {timeout!r}.")
    return seconds


def connect_seconds(timeout: float | None) -> float:
    """How much of a timeout a connection may take."""
    return CONNECT_TIMEOUT if timeout is None else min(timeout, CONNECT_TIMEOUT)
