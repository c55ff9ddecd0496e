"""The state of a run while a driver drives it: its clock, and the listeners that receive its journal entries.

The logger `acorn` is one of the listeners. It logs the start, the end and the limits of a run at INFO, each step at
DEBUG, and the traceback of a failed tool at WARNING. The other lines contain names, counts and times, but never message
content. Retries and fallbacks are logged by the code in `models/`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from traceback import format_tb
from typing import TYPE_CHECKING, assert_never

from acorn import journal
from acorn._base.log import logger
from acorn.record import Run, without_listener

if TYPE_CHECKING:
    from acorn._declare.module_base import Place

_attach_lock = threading.Lock()


@dataclass(eq=False, slots=True)
class DrivenRun:
    """A run while a driver drives it: its clock, its listeners and the number of journal entries that they received."""

    clock_start: float
    """The reading of the monotonic clock at second 0 of the run."""
    places: tuple[Place, ...]
    """The task and the thread that started the run. Python may close an abandoned iterator in another thread."""
    listeners: tuple[journal.Listener, ...]
    published: int
    """The number of journal entries that the listeners have received."""
    is_observed: bool
    """Whether a listener or a store must receive new entries."""
    failed_listeners: list[journal.Listener] = field(default_factory=list[journal.Listener])
    """The listeners that failed. Only the first failure of a listener is logged."""
    is_closed: bool = False


def attach_run(error: BaseException, run: Run) -> None:
    """Set `error.run` to the record of the run that ended with the error.

    An error that ends a run together with its branches, such as the failure of a store, is the error of all of them. A
    branch may end later than the top-level run, in another thread. Then `error.run` must remain the record of the
    top-level run.
    """
    with _attach_lock:
        if run.branch is None or getattr(error, "run", None) is None:
            with suppress(AttributeError, TypeError):  # An exception class with `__slots__` has no attribute `run`.
                error.run = run  # type: ignore[attr-defined]


def publish(driven: DrivenRun, entries: Sequence[journal.Entry]) -> None:
    """Call the listeners of a run with its new journal entries, in order, and log exceptions of the listeners."""
    while driven.published < len(entries):
        entry = entries[driven.published]
        driven.published += 1
        for listener in driven.listeners:
            try:
                with without_listener(listener):
                    listener(entry)
            except Exception as error:
                if not any(other is listener for other in driven.failed_listeners):
                    driven.failed_listeners.append(listener)
                    _log_failure(entry.run_id, listener, error)


def _log_failure(run_id: str, listener: journal.Listener, error: Exception) -> None:
    """Log that a listener raised an exception.

    The exception text may contain message content, so the text is logged only at DEBUG.
    """
    name = getattr(listener, "__qualname__", type(listener).__qualname__)
    trace = "".join(format_tb(error.__traceback__ and error.__traceback__.tb_next)).rstrip()
    logger.error("A listener of run %s, `%s`, failed with %s:\n%s", run_id, name, type(error).__name__, trace)
    logger.debug("The exception that the listener raised:", exc_info=error)


def log_entry(entry: journal.Entry) -> None:
    """Log a journal entry in one line, at INFO or DEBUG.

    Some entry types, such as `MessagesAdded`, are not logged.
    """
    run, step = entry.run_id, entry.step
    match entry:
        case journal.RunStarted():
            branch = f", branch {entry.branch} of {entry.parent_id}" if entry.branch else ""
            logger.info("Run %s of %s started%s.", run, entry.module, branch)
        case journal.RunFinished():
            logger.info("Run %s ended after %.2f s: %s.", run, entry.at, entry.stop_reason)
        case journal.RunFailed():
            logger.info("Run %s failed after %.2f s: %s.", run, entry.at, _error_type(entry.error))
        case journal.RunInterrupted():
            logger.info("Run %s was interrupted after %.2f s: %s.", run, entry.at, _error_type(entry.error))
        case journal.ModelRequested():
            if entry.forced == "limit":
                logger.info("Run %s is near a limit and must answer in step %d.", run, step)
            logger.debug("Run %s, step %d: request to %s, %d messages.", run, step, entry.model, entry.messages)
        case journal.ModelResponded():
            tokens, calls = entry.usage.total_tokens, ", ".join(call.name for call in entry.calls) or "no calls"
            logger.debug("Run %s, step %d: response of %s, %d tokens, %s.", run, step, entry.model, tokens, calls)
        case journal.ToolStarted():
            logger.debug("Run %s, step %d: the tool %s is called.", run, step, entry.name)
        case journal.ToolFinished():
            if entry.traceback is not None:
                logger.warning("Run %s, step %d: the tool %s failed:\n%s", run, step, entry.name, entry.traceback)
            else:
                verb = "returned" if entry.error is None else "failed"
                logger.debug("Run %s, step %d: the tool %s %s.", run, step, entry.name, verb)
        case journal.Compacted():
            tokens = entry.usage.total_tokens
            logger.info("Run %s, step %d: %d messages were summarized, %d tokens.", run, step, entry.removed, tokens)
        case journal.InputRequested():
            logger.info("Run %s, step %d: human input is requested, request %s.", run, step, entry.request_id)
        case journal.InputReceived():
            logger.info("Run %s, step %d: request %s is answered.", run, step, entry.request_id)
        case journal.RunPaused():
            logger.info("Run %s paused for human input after %.2f s.", run, entry.at)
        case journal.BranchFinished():
            if entry.traceback is not None:
                logger.warning("Run %s, step %d: the branch %s failed:\n%s", run, step, entry.name, entry.traceback)
        case journal.BranchStarted() | journal.MessagesAdded() | journal.ToolResultsAdded() | journal.HistoryEdited():
            pass
        case _:
            assert_never(entry)


def _error_type(error: str) -> str:
    """Return the class name from an error text: "ValueError" from "ValueError: wrong"."""
    return error.partition(":")[0]
