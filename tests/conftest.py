"""What tests of every kind share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt here and ends child processes, also under nohup or behind a shell's `&`.

    There it is ignored, and what is ignored is handed down to children; a handler is not.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
