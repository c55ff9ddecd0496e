"""The synchronous driver: an ordinary blocking call on the caller's thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
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
    with ExitStack() as ends:
        ends.callback(close_record, loop.run, agent, began)
        ends.enter_context(inside(agent, loop.run))
        try:
            return _walk(loop, began)
        except BaseException as error:
            loop.abort(error)
            raise
        finally:
            for close in closers(loop):
                ends.callback(_close, loop, close)


def _walk(loop: Loop, began: float) -> Any:
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


def _close(loop: Loop, close: Callable[[], Any]) -> None:
    try:
        call_sync(close)
    except BaseException as error:
        could_not_close(loop, error)


def closers(loop: Loop) -> list[Callable[[], Any]]:
    """How to close the sources that were opened, in the order of their opening."""
    opened = loop.spec.sources[: (loop.state.opened + 1) // 2]
    found = [getattr(source, "close", None) for source in opened]
    return [close for close in found if close is not None]


def could_not_close(loop: Loop, error: BaseException) -> None:
    """This fails a run that was well until now, but does not hide what went wrong before."""
    first = loop.run.error
    if first is None:
        loop.abort(error)
    elif isinstance(error, Exception):
        first.add_note(f"Closing a source of tools failed as well: {error!r}")
        return
    raise error
