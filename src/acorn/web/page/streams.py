"""What happens in a run as a stream of events, from where its reader was, until it is over or the server ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.concurrency import run_in_threadpool

from acorn.web.page.live import Live
from acorn.web.page.run_index import RunView
from acorn.web.page.site import Site
from acorn.web.page.wire import CUT, GrowingText, dumped, entry_event, sent, squeeze

KEPT = "kept"
"""What the ids of a run begin with that is read from the shelf; those of one that is driven here, with its token."""
_BATCH = 1 / 30
"""Seconds between two messages of a stream, at least."""
_LOOK = 0.2
"""Seconds between two looks at a run that another process drives."""
_HEARTBEAT = 15.0


async def live_events(site: Site, live: Live, index: int) -> AsyncGenerator[bytes]:
    """A run that is driven here, piece by piece."""
    loop, news, closing = asyncio.get_running_loop(), asyncio.Event(), site.closing()

    def wake() -> None:
        if not news.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(news.set)

    live.watch(wake)
    coming = GrowingText()
    coming.passed(squeeze(live.since(0)[0][:index]), site.veil())  # what was held back from who comes back
    try:
        if index == 0:
            yield _message(f"{live.token}-0", [{"entry": "reset"}])
        while not closing.is_set():
            news.clear()
            events, is_over = live.since(index)
            if events:
                index += len(events)
                veil = site.veil()
                shown = coming.passed(squeeze(events), veil)
                yield _message(f"{live.token}-{index}", [sent(event, veil) for event in shown])
                await _until(closing, _BATCH)
            elif is_over:
                yield await _end(site, live.run_id, f"{live.token}-{index}")
                return
            elif not await _either(news, closing):
                yield b": here\n\n"
    finally:
        live.unwatch(wake)
        site.forget(closing)


async def kept_events(site: Site, book: RunView, index: int) -> AsyncGenerator[bytes]:
    """A run that is over, or that another process drives."""
    run_id, closing = book.head["id"], site.closing()
    try:
        if index == 0:
            yield _message(f"{KEPT}-0", [{"entry": "reset"}])
        while not closing.is_set():
            entries = book.rows.entries[index:]
            if entries:
                index += len(entries)
                veil = site.veil()
                yield _message(f"{KEPT}-{index}", [sent(entry_event(entry), veil) for entry in entries])
            elif not book.goes_on:
                yield await _end(site, run_id, f"{KEPT}-{index}")
                return
            else:
                await _until(closing, _LOOK)
            found = await run_in_threadpool(site.shelf.book, run_id)  # not always the same: the shelf keeps but a few
            if run_id in site.lives or found is None:
                return
            book = found
    finally:
        site.forget(closing)


async def row_events(site: Site, book: RunView, version: int) -> AsyncGenerator[bytes]:
    """The rows of a run that goes on, as they change; at its end, what it waits for."""
    run_id, closing, status = book.head["id"], site.closing(), ""
    try:
        while not closing.is_set():
            found = await run_in_threadpool(site.shelf.book, run_id)
            if found is None:
                return
            book, veil = found, site.veil()
            with book.lock:
                changed = [row.plain(veil) for row in book.rows.since(version)]
                version = len(book.rows.entries)
                head = veil.plain({**book.plain_head(), "own": site.is_own(book)})
            live, waits = site.lives.get(run_id), head["status"] == "waiting"
            # One that was just begun anew is driven already, and the store may not say so yet.
            is_over = not (book.goes_on or (live is not None and not live.is_over))
            if changed or is_over or status != head["status"]:
                status = head["status"]
                asked = veil.plain(await run_in_threadpool(site.requests, run_id)) if waits else []
                told = {"rows": changed, "head": head, "version": version, "requests": asked, "over": is_over}
                yield _message(str(version), told)
            if is_over:
                return
            await _until(closing, _LOOK)
    finally:
        site.forget(closing)


async def _end(site: Site, run_id: str, id: str) -> bytes:
    """The last message: what the run came to, and what it waits for."""
    book = await run_in_threadpool(site.shelf.book, run_id)
    head = None if book is None else {**book.plain_head(), "own": site.is_own(book)}
    requests = await run_in_threadpool(site.requests, run_id)
    end = site.veil().plain({"entry": "end", "run_id": run_id, "head": head, "requests": requests}, CUT)
    return _message(id, [end])


def _message(id: str, value: Any) -> bytes:
    return b"id: " + id.encode() + b"\ndata: " + dumped(value) + b"\n\n"


async def _until(event: asyncio.Event, seconds: float) -> None:
    """So long, or until the server ends."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


async def _either(news: asyncio.Event, closing: asyncio.Event) -> bool:
    """Whether something came before it was time to say that we are still here."""
    waits = [asyncio.ensure_future(each.wait()) for each in (news, closing)]
    try:
        done, _ = await asyncio.wait(waits, timeout=_HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
    finally:  # also where the reader has left meanwhile
        for each in waits:
            each.cancel()
    return bool(done)
