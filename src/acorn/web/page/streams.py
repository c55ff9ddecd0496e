"""Server-sent events of a run: its journal and chunks, or the rows of its waterfall.

A stream starts where its reader stopped, and ends when the run is over or the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.concurrency import run_in_threadpool

from acorn.web.page.events import STREAM_LIMIT, EventTextBuffer, entry_event, merge_events, page_event
from acorn.web.page.run_index import RunView
from acorn.web.page.site import LiveRun, Site
from acorn.web.redact import json_bytes

STORED = "stored"
"""The prefix of event ids for a run that is read from the index. Ids of a live run start with its token."""
_MIN_INTERVAL = 1 / 30
"""Seconds between two messages of a stream."""
_POLL_INTERVAL = 0.2
"""Seconds between two reads of a run that another process drives."""
_HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent."""


async def live_events(site: Site, live: LiveRun, index: int) -> AsyncGenerator[bytes]:
    """Yield the events of a live run, from an index on."""
    loop, news, closing = asyncio.get_running_loop(), asyncio.Event(), site.close_event()

    def wake() -> None:
        if not news.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(news.set)

    live.watch(wake)
    texts = EventTextBuffer()
    # Restore the text that was held back from this reader before it reconnected.
    texts.release(merge_events(live.events_from(0)[0][:index]), site.redactor())
    try:
        if index == 0:
            yield _message(f"{live.token}-0", [{"entry": "reset"}])
        while not closing.is_set():
            news.clear()
            events, is_over = live.events_from(index)
            if events:
                index += len(events)
                redactor = site.redactor()
                released = texts.release(merge_events(events), redactor)
                yield _message(f"{live.token}-{index}", [page_event(event, redactor) for event in released])
                await _wait(closing, _MIN_INTERVAL)
            elif is_over:
                yield await _end(site, live.run_id, f"{live.token}-{index}")
                return
            elif not await _wait_for_either(news, closing):
                yield b": here\n\n"
    finally:
        live.unwatch(wake)
        site.discard_close_event(closing)


async def stored_events(site: Site, view: RunView, index: int) -> AsyncGenerator[bytes]:
    """Yield the events of a run that is over or that another process drives, from an index on."""
    run_id, closing = view.header["id"], site.close_event()
    try:
        if index == 0:
            yield _message(f"{STORED}-0", [{"entry": "reset"}])
        while not closing.is_set():
            entries = view.rows.entries[index:]
            if entries:
                index += len(entries)
                redactor = site.redactor()
                yield _message(f"{STORED}-{index}", [page_event(entry_event(entry), redactor) for entry in entries])
            elif not view.is_active:
                yield await _end(site, run_id, f"{STORED}-{index}")
                return
            else:
                await _wait(closing, _POLL_INTERVAL)
            # The cache is small, so this may be another object.
            latest = await run_in_threadpool(site.index.view, run_id)
            if run_id in site.live_runs or latest is None:
                return
            view = latest
    finally:
        site.discard_close_event(closing)


async def row_events(site: Site, view: RunView, version: int) -> AsyncGenerator[bytes]:
    """Yield the changed rows of an active run and, if it waits, its open requests."""
    run_id, closing, status = view.header["id"], site.close_event(), ""
    try:
        while not closing.is_set():
            latest = await run_in_threadpool(site.index.view, run_id)
            if latest is None:
                return
            view, redactor = latest, site.redactor()
            with view.lock:
                rows = [row.to_json(redactor) for row in view.rows.changed_since(version)]
                version = len(view.rows.entries)
                header = redactor.data({**view.current_header(), "own": site.is_own(view)})
            live, is_waiting = site.live_runs.get(run_id), header["status"] == "waiting"
            # A run that was just resumed is live before the store shows it as running.
            is_over = not (view.is_active or (live is not None and not live.is_over))
            if rows or is_over or status != header["status"]:
                status = header["status"]
                waiting = await run_in_threadpool(site.requests, run_id) if is_waiting else []
                update = {
                    "rows": rows,
                    "head": header,
                    "version": version,
                    "requests": redactor.data(waiting),
                    "over": is_over,
                }
                yield _message(str(version), update)
            if is_over:
                return
            await _wait(closing, _POLL_INTERVAL)
    finally:
        site.discard_close_event(closing)


async def _end(site: Site, run_id: str, event_id: str) -> bytes:
    """Return the last message of a run: its header and its open requests."""
    view = await run_in_threadpool(site.index.view, run_id)
    header = None if view is None else {**view.current_header(), "own": site.is_own(view)}
    requests = await run_in_threadpool(site.requests, run_id)
    end = {"entry": "end", "run_id": run_id, "head": header, "requests": requests}
    return _message(event_id, [site.redactor().data(end, STREAM_LIMIT)])


def _message(event_id: str, value: object) -> bytes:
    return b"id: " + event_id.encode() + b"\ndata: " + json_bytes(value) + b"\n\n"


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set or the time is up."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


async def _wait_for_either(news: asyncio.Event, closing: asyncio.Event) -> bool:
    """Wait until one of the events is set. Return False if a heartbeat is due first."""
    waits = [asyncio.ensure_future(event.wait()) for event in (news, closing)]
    try:
        done, _ = await asyncio.wait(waits, timeout=_HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
    finally:  # also if the reader disconnects
        for wait in waits:
            wait.cancel()
    return bool(done)
