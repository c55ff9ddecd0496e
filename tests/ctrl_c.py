"""Ctrl-C at a chosen moment: after a number of lines of the code that drives a run, without a signal or a clock."""

from __future__ import annotations

import concurrent.futures._base
import dis
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import acorn

_HOUSE = str(Path(acorn.__file__).parent)
_WAITING = (threading.__file__, queue.__file__, concurrent.futures._base.__file__)
"""Where the standard library waits for us, with locks that can be left taken."""


def _leaves_a_block(frame: FrameType) -> bool:
    """Return whether a `with` block calls its `__exit__` next; Python handles no signal between the two."""
    exits = _exits.get(frame.f_code)
    if exits is None:
        code = list(dis.get_instructions(frame.f_code))
        names = ["None" if each.opname == "LOAD_CONST" and each.argval is None else each.opname for each in code]
        leaving = [at for at in range(len(code)) if names[at : at + 4] == ["None", "None", "None", "PRECALL"]]
        leaving += [at - 1 for at in leaving if names[at - 1] == "SWAP"]
        exits = _exits[frame.f_code] = {code[at].offset for at in leaving}
    return frame.f_lasti in exits


_exits: dict[CodeType, set[int]] = {}


class Strike:
    """Raise KeyboardInterrupt in the calling thread, at the line or return with the number `at`."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.where: str | None = None

    def __call__(self, act: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return act()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        return self._count if name.startswith(_HOUSE) or name in _WAITING else None

    def _count(self, frame: FrameType, event: str, _: Any) -> Any:
        is_dropped = event == "return" and frame.f_code.co_name == "<genexpr>"  # Where it would be lost.
        if event not in ("line", "return") or is_dropped or _leaves_a_block(frame):
            return self._count
        self.count += 1
        if self.count == self.at:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname} {event}"
            raise KeyboardInterrupt
        return self._count
