"""A run while it goes on, beside its machine: its clock, the thread that it began in, and who listens to it."""

from __future__ import annotations

from collections.abc import Sequence
from traceback import format_tb

from acorn._drive.record import Whereabouts
from acorn._log import logger
from acorn.journal import Entry
from acorn.record import Heard, unheard


class Life:
    """What a run has while it goes on, beside its machine."""

    __slots__ = ("began", "failed", "handed", "heard", "is_closed", "is_heard", "where")

    def __init__(
        self, began: float, where: Whereabouts, heard: tuple[Heard, ...], handed: int, *, is_kept: bool
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
        self.failed: list[Heard] = []
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


def _tell_of_failure(run_id: str, heard: Heard, error: Exception) -> None:
    """Say once where a listener fails; its words may hold what was said, and are for who asks for everything."""
    name = getattr(heard.callback, "__qualname__", type(heard.callback).__qualname__)
    where = "".join(format_tb(error.__traceback__ and error.__traceback__.tb_next)).rstrip()
    logger.error("A listener of run %s, `%s`, failed with %s:\n%s", run_id, name, type(error).__name__, where)
    logger.debug("The listener's error:", exc_info=error)
