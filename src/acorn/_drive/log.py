"""What the logger `acorn` says of a run: its begin, its end and its limits at INFO, each step at DEBUG.

Names, counts and times only: what was said in a run is nobody's business who reads a log. Retries and
fallbacks are told by whoever makes them.
"""

from __future__ import annotations

import logging
from typing import assert_never

from acorn._log import logger
from acorn.journal import (
    BranchBegun,
    BranchEnded,
    Compacted,
    Entry,
    Failed,
    Finished,
    HistoryEdited,
    HumanAnswered,
    HumanAsked,
    Interrupted,
    MessagesSaid,
    ModelAnswered,
    ModelAsked,
    Rested,
    ResultsSaid,
    RunBegun,
    ToolBegun,
    ToolReturned,
)


def is_wanted() -> bool:
    """Whether somebody reads what would be said here."""
    return logger.isEnabledFor(logging.INFO)


def log(entry: Entry) -> None:
    """Say what an entry is about."""
    run, step = entry.run_id, entry.step
    match entry:
        case RunBegun():
            branch = f", branch {entry.branch} of {entry.parent_id}" if entry.branch else ""
            logger.info("Run %s of %s begins%s.", run, entry.module, branch)
        case Finished():
            logger.info("Run %s ended after %.2f s: %s.", run, entry.at, entry.stop_reason)
        case Failed():
            logger.info("Run %s failed after %.2f s: %s.", run, entry.at, _kind(entry.error))
        case Interrupted():
            logger.info("Run %s was interrupted after %.2f s: %s.", run, entry.at, _kind(entry.error))
        case ModelAsked():
            if entry.forced == "limit":
                logger.info("Run %s is near a limit and is made to answer in step %d.", run, step)
            logger.debug("Run %s, step %d: %s is asked, %d messages.", run, step, entry.model, entry.messages)
        case ModelAnswered():
            tokens, calls = entry.usage.total_tokens, ", ".join(call.name for call in entry.calls) or "no calls"
            logger.debug("Run %s, step %d: %s answered, %d tokens, %s.", run, step, entry.model, tokens, calls)
        case ToolBegun():
            logger.debug("Run %s, step %d: the tool %s is called.", run, step, entry.name)
        case ToolReturned():
            how = "returned" if entry.error is None else "failed"
            logger.debug("Run %s, step %d: the tool %s %s.", run, step, entry.name, how)
        case Compacted():
            tokens = entry.usage.total_tokens
            logger.info("Run %s, step %d: %d messages were summed up, %d tokens.", run, step, entry.removed, tokens)
        case HumanAsked():
            logger.info("Run %s, step %d: a person is asked, request %s.", run, step, entry.request_id)
        case HumanAnswered():
            logger.info("Run %s, step %d: the request %s is answered.", run, step, entry.request_id)
        case Rested():
            logger.info("Run %s waits for people after %.2f s.", run, entry.at)
        case BranchBegun() | BranchEnded() | MessagesSaid() | ResultsSaid() | HistoryEdited():
            pass
        case _:
            assert_never(entry)


def _kind(error: str) -> str:
    """The type of an error, without its words."""
    return error.partition(":")[0]
