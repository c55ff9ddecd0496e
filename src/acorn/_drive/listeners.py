"""A run while it goes on, beside its machine: its clock, the thread that it began in, and who listens to it.

What the logger `acorn` says of a run: its begin, its end and its limits at INFO, each step at DEBUG.

Names, counts and times only: what was said in a run is nobody's business who reads a log. Retries and
fallbacks are told by whoever makes them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from traceback import format_tb
from typing import assert_never

from acorn._base.log import logger
from acorn._record.last_run import RunScope
from acorn.journal import (
    BranchFinished,
    BranchStarted,
    Compacted,
    Entry,
    HistoryEdited,
    InputReceived,
    InputRequested,
    MessagesAdded,
    ModelRequested,
    ModelResponded,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunPaused,
    RunStarted,
    ToolFinished,
    ToolResultsAdded,
    ToolStarted,
)
from acorn.record import Subscriber, unheard


class RunListeners:
    """What a run has while it goes on, beside its machine."""

    __slots__ = ("began", "failed", "handed", "heard", "is_closed", "is_heard", "where")

    def __init__(
        self, began: float, where: RunScope, heard: tuple[Subscriber, ...], handed: int, *, is_kept: bool
    ) -> None:
        self.began = began
        """The reading of the clock from which its seconds count."""
        self.where = where
        """The task and the thread that it began in."""
        self.heard = heard
        self.is_heard = bool(heard) or is_kept
        """Who listens to it."""
        self.handed = handed
        """How many of its entries they have heard."""
        self.failed: list[Subscriber] = []
        """Whose failure was told of."""
        self.is_closed = False

    def hand_over(self, run_id: str, entries: Sequence[Entry], *, is_lost: bool) -> None:
        """Let the listeners hear the new entries, in order; what a vital one fails of is raised, unless all is lost."""
        while self.handed < len(entries):
            entry = entries[self.handed]
            self.handed += 1
            for heard in self.heard:
                try:
                    with unheard(heard):
                        heard.callback(entry)
                except Exception as error:
                    if heard.is_vital and not is_lost:
                        raise
                    if not any(each is heard for each in self.failed):
                        self.failed.append(heard)
                        _tell_of_failure(run_id, heard, error)


def _tell_of_failure(run_id: str, heard: Subscriber, error: Exception) -> None:
    """Say once where a listener fails; its words may hold what was said, and are for who asks for everything."""
    name = getattr(heard.callback, "__qualname__", type(heard.callback).__qualname__)
    where = "".join(format_tb(error.__traceback__ and error.__traceback__.tb_next)).rstrip()
    logger.error("A listener of run %s, `%s`, failed with %s:\n%s", run_id, name, type(error).__name__, where)
    logger.debug("The listener's error:", exc_info=error)


def is_wanted() -> bool:
    """Whether somebody reads what would be said here."""
    return logger.isEnabledFor(logging.INFO)


def log(entry: Entry) -> None:
    """Say what an entry is about."""
    run, step = entry.run_id, entry.step
    match entry:
        case RunStarted():
            branch = f", branch {entry.branch} of {entry.parent_id}" if entry.branch else ""
            logger.info("Run %s of %s begins%s.", run, entry.module, branch)
        case RunFinished():
            logger.info("Run %s ended after %.2f s: %s.", run, entry.at, entry.stop_reason)
        case RunFailed():
            logger.info("Run %s failed after %.2f s: %s.", run, entry.at, _kind(entry.error))
        case RunInterrupted():
            logger.info("Run %s was interrupted after %.2f s: %s.", run, entry.at, _kind(entry.error))
        case ModelRequested():
            if entry.forced == "limit":
                logger.info("Run %s is near a limit and is made to answer in step %d.", run, step)
            logger.debug("Run %s, step %d: %s is asked, %d messages.", run, step, entry.model, entry.messages)
        case ModelResponded():
            tokens, calls = entry.usage.total_tokens, ", ".join(call.name for call in entry.calls) or "no calls"
            logger.debug("Run %s, step %d: %s answered, %d tokens, %s.", run, step, entry.model, tokens, calls)
        case ToolStarted():
            logger.debug("Run %s, step %d: the tool %s is called.", run, step, entry.name)
        case ToolFinished():
            how = "returned" if entry.error is None else "failed"
            logger.debug("Run %s, step %d: the tool %s %s.", run, step, entry.name, how)
        case Compacted():
            tokens = entry.usage.total_tokens
            logger.info("Run %s, step %d: %d messages were summed up, %d tokens.", run, step, entry.removed, tokens)
        case InputRequested():
            logger.info("Run %s, step %d: a person is asked, request %s.", run, step, entry.request_id)
        case InputReceived():
            logger.info("Run %s, step %d: the request %s is answered.", run, step, entry.request_id)
        case RunPaused():
            logger.info("Run %s waits for people after %.2f s.", run, entry.at)
        case BranchStarted() | BranchFinished() | MessagesAdded() | ToolResultsAdded() | HistoryEdited():
            pass
        case _:
            assert_never(entry)


def _kind(error: str) -> str:
    """The type of an error, without its words."""
    return error.partition(":")[0]
