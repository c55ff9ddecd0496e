"""The synchronous driver: an ordinary blocking call on the caller's thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, assert_never

from acorn._drive.bridge import call_sync
from acorn._drive.record import close_record, open_record
from acorn._drive.tools import run_tools
from acorn._loop.asks import AskHook, AskModel, AskTools, Done
from acorn._loop.run import Loop
from acorn.errors import ModelError
from acorn.record import inside


def drive(loop: Loop, agent: object) -> Any:
    """Walk a run to its end."""
    began = open_record(loop.run)
    try:
        with inside(agent, loop.run):
            while True:
                ask = loop.ask(_now(began))
                match ask:
                    case AskModel():
                        outcome: Any = _complete(loop, ask, began)
                    case AskTools():
                        outcome = run_tools(ask)
                    case AskHook():
                        outcome = _call(ask)
                    case Done():
                        return ask.output
                    case _:
                        assert_never(ask)
                loop.tell(outcome, _now(began))
    except BaseException as error:
        loop.abort(error)
        raise
    finally:
        for close in closers(loop):
            call_sync(close)
        close_record(loop.run, agent, began)


def _now(began: float) -> float:
    return time.monotonic() - began


def _complete(loop: Loop, ask: AskModel, began: float) -> Any:
    try:
        return ask.model.complete(ask.request)
    except ModelError as error:
        raise loop.too_late(error, _now(began)) from error.__cause__


def _call(ask: AskHook) -> Any:
    try:
        return call_sync(ask.function, *ask.arguments)
    except ask.forgives as error:
        return error


def closers(loop: Loop) -> list[Callable[[], Any]]:
    """What the sources want to be called with at the end: those that were opened, last first."""
    opened = loop.spec.sources[: (loop.state.opened + 1) // 2]
    found = [getattr(source, "close", None) for source in reversed(opened)]
    return [close for close in found if close is not None]
