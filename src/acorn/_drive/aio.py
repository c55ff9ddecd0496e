"""The asynchronous driver: the same walk on the caller's event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, assert_never

from acorn._drive.bridge import call_async
from acorn._drive.record import close_record, open_record
from acorn._drive.sync import closers, could_not_close
from acorn._drive.tools import arun_tools
from acorn._loop.asks import AskHook, AskModel, AskTools, Done
from acorn._loop.run import Loop
from acorn.errors import ModelError
from acorn.record import inside


async def adrive(loop: Loop, agent: object) -> Any:
    """Walk a run to its end; cancelling it cancels what is under way."""
    began = open_record(loop.run)
    async with AsyncExitStack() as ends:
        ends.callback(close_record, loop.run, agent, began)
        ends.enter_context(inside(agent, loop.run))
        try:
            return await _walk(loop, began)
        except BaseException as error:
            loop.abort(error)
            raise
        finally:
            for close in closers(loop):
                ends.push_async_callback(_close, loop, close)


async def _walk(loop: Loop, began: float) -> Any:
    while True:
        ask = loop.ask(_now(began))
        match ask:
            case AskModel():
                outcome: Any = await _complete(loop, ask, began)
            case AskTools():
                outcome = await arun_tools(ask)
            case AskHook():
                outcome = await _call(ask)
            case Done():
                return ask.output
            case _:
                assert_never(ask)
        loop.tell(outcome, _now(began))


def _now(began: float) -> float:
    return time.monotonic() - began


async def _complete(loop: Loop, ask: AskModel, began: float) -> Any:
    try:
        return await ask.model.acomplete(ask.request)
    except ModelError as error:
        raise loop.too_late(error, _now(began)) from error.__cause__


async def _call(ask: AskHook) -> Any:
    try:
        return await call_async(ask.function, *ask.arguments)
    except ask.forgives as error:
        return error


async def _close(loop: Loop, close: Callable[[], Any]) -> None:
    try:
        await call_async(close)
    except BaseException as error:
        could_not_close(loop, error)
