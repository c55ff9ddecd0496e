"""The two ends of a record: begun and announced, ended and remembered."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from acorn.record import Run, announce

LAST = "_acorn_last"
"""Where an instance keeps its last runs."""


def open_record(run: Run[Any]) -> tuple[float, object]:
    """Note the beginning; the reading of the clock from which the run's seconds count, and where it began."""
    run.started = run.started or datetime.now(UTC)
    announce(run)
    return time.monotonic() - run.seconds, _whereabouts()


def close_record(run: Run[Any], agent: object, began: float, where: object) -> None:
    """Note the end, hang the record on the error, and remember it for the thread or task that made the call.

    An iterator that is dropped may be closed in another one.
    """
    run.seconds = time.monotonic() - began
    if run.error is not None:
        with suppress(AttributeError, TypeError):  # an exception with slots has no room for it
            run.error.run = run  # type: ignore[attr-defined]
    last = vars(agent).setdefault(LAST, WeakKeyDictionary[Any, Run[Any]]())
    last[where] = run


def last_run(agent: object) -> Run[Any] | None:
    """The last run of this instance that ended in the calling thread or task."""
    last: WeakKeyDictionary[Any, Run[Any]] | None = vars(agent).get(LAST)
    return None if last is None else last.get(_whereabouts())


def _whereabouts() -> object:
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        with suppress(RuntimeError):
            task = asyncio.current_task()
            if task is not None:
                return task
    return threading.current_thread()
