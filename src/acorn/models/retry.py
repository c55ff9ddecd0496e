"""When a failed request is sent again. The only rule there is: nothing below us retries."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acorn.errors import ModelError

LONGEST_WAIT = 60.0
"""A provider that asks for more is not waited for."""


@dataclass(frozen=True)
class Retries:
    """How often, and after how long."""

    count: int = 2
    delay: float = 0.5
    """Seconds before the first retry; each further one waits twice as long."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Retries:
        """As a model dict has it."""
        return cls(config.get("num_retries", cls.count), config.get("retry_delay", cls.delay))

    def wait(self, error: ModelError, failed: int, left: float | None) -> float | None:
        """Seconds to wait after so many failures, or None to give up; `left` is what the run has."""
        if failed > self.count or not error.retryable:
            return None
        asked = error.retry_after
        if asked is not None and asked > LONGEST_WAIT:
            return None
        wait = self.delay * 2 ** min(failed - 1, 20) * random.uniform(0.75, 1.25)
        wait = min(LONGEST_WAIT, wait) if asked is None else asked
        return None if left is not None and wait >= left else wait


class Attempts:
    """The attempts at one request."""

    def __init__(self, retries: Retries, left: float | None) -> None:
        self._retries = retries
        self._left = left
        self._began = time.monotonic()
        self._failed = 0

    @property
    def left(self) -> float | None:
        """Seconds that the run has left; None is no end."""
        return None if self._left is None else self._left - (time.monotonic() - self._began)

    def wait(self, error: ModelError, *, is_final: bool = False) -> float:
        """Seconds to wait before the next one; raises the error where there is none."""
        self._failed += 1
        wait = None if is_final else self._retries.wait(error, self._failed, self.left)
        if wait is None:
            raise error
        return wait
