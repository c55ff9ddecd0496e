"""What a server writes to standard error: never on the user's terminal; its last lines are kept for error messages.

All of it goes to the logger `acorn.mcp` at DEBUG.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable

from acorn.mcp.texts import clean, cut

_logger = logging.getLogger("acorn.mcp")
_LINES = 20
_LONGEST_LINE = 1000


class ServerLog:
    """A pipe that a server process writes to, read by a thread to its end."""

    def __init__(self, server: str, hidden: Callable[[str], str]) -> None:
        reading, writing = os.pipe()
        self.file = open(writing, "w", encoding="utf-8")  # noqa: SIM115 - closed when the server has its copy
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._server = server
        self._hidden = hidden
        self._thread = threading.Thread(target=self._read, args=(reading,), name="acorn-mcp-stderr", daemon=True)
        self._thread.start()

    def _read(self, descriptor: int) -> None:
        with open(descriptor, encoding="utf-8", errors="replace") as pipe:
            while line := pipe.readline(_LONGEST_LINE * 10):
                text = cut(clean(line).rstrip(), _LONGEST_LINE)
                if text:
                    self._lines.append(text)
                    if _logger.isEnabledFor(logging.DEBUG):
                        _logger.debug("%s: %s", self._server, self._hidden(text))

    def let_go(self) -> None:
        """The server has its copy of the pipe, or is gone."""
        self.file.close()

    async def last_lines(self, seconds: float) -> list[str]:
        """What it wrote in the end; where it has died, all that it wrote arrives within that time."""
        if seconds and self._thread.is_alive():
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, seconds)
        return list(self._lines)
