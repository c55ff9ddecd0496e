"""One run while it is driven: its clock and its listeners."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from acorn._record.last_run import RunOwner, current_places, remember_run
from acorn.record import Run, Subscriber

_attach_lock = threading.Lock()


class DrivenRun:
    """The state of a run while it is driven, apart from its machine."""

    __slots__ = (
        "clock_start",
        "failed_subscribers",
        "is_closed",
        "is_observed",
        "places",
        "published",
        "subscribers",
    )

    def __init__(self, run: Run, clock_start: float, subscribers: tuple[Subscriber, ...], *, is_stored: bool) -> None:
        self.clock_start = clock_start
        """The reading of the monotonic clock at second 0 of the run."""
        self.places = current_places()
        """The task and the thread that started the run. A dropped iterator may be closed in another one."""
        self.subscribers = subscribers
        self.is_observed = bool(subscribers) or is_stored
        """Whether a listener or a store must hear of new entries."""
        self.published = len(run.journal.entries)
        """The number of entries that the subscribers have received."""
        self.failed_subscribers: list[Subscriber] = []
        """The subscribers whose failure was logged."""
        self.is_closed = False

    def close(self, run: Run, agent: RunOwner) -> None:
        """Complete the record, attach it to its error, and remember it as the last run of the agent."""
        self.is_closed = True
        run.seconds = time.monotonic() - self.clock_start
        if run.error is not None:
            attach_run(run.error, run)
        remember_run(run, agent, self.places)


def attach_run(error: BaseException, run: Run) -> None:
    """Set `error.run` to the run that ended with the error.

    An error that ends a whole tree, such as the failure of a store, is also the error of its branches. Those may end
    last, in other threads, and must not replace the record of the root.
    """
    with _attach_lock:
        if run.branch is None or getattr(error, "run", None) is None:
            with suppress(AttributeError, TypeError):  # An exception with `__slots__` cannot hold it.
                error.run = run  # type: ignore[attr-defined]
