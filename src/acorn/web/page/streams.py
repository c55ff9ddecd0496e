"""Server-sent events that show a run in the browser.

One kind of stream contains journal entries and chunks of output. The other kind contains the changed rows of the
waterfall view. A stream starts at the position that the browser sends. It ends when the run is over or the server
stops. Chunks of text are joined. The last word of an incomplete text is sent later, because it may be the start of a
secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import groupby

from starlette.concurrency import run_in_threadpool

from acorn import StreamChunk
from acorn._inside import to_json_text
from acorn.types import JsonObject
from acorn.web.page import STREAM_LIMIT
from acorn.web.page.rows import Event, entry_event
from acorn.web.page.run_index import ACTIVE
from acorn.web.page.site import Site
from acorn.web.serve.responses import ChunkEvents, merge_chunks

STORED_PREFIX = "stored"
"""The prefix of event ids for a run that is read from the index. Event ids of a live run start with its token."""
_LIVE_INTERVAL = 1 / 30
"""The number of seconds between two reads of the events of a run that this process executes."""
_POLL_INTERVAL = 0.2
"""The number of seconds between two reads of a run that another process drives."""


async def run_events(site: Site, run_id: str, last_id: str) -> AsyncGenerator[bytes]:
    """Yield the encoded events of a run that follow the event with the id `last_id`.

    If `last_id` is not an id of this stream, the stream starts with the first event.
    """
    live, encoder = site.live_runs.get(run_id), ChunkEvents(site.redactor())
    token, interval = (STORED_PREFIX, _POLL_INTERVAL) if live is None else (live.token, _LIVE_INTERVAL)
    last_token, _, number = last_id.partition("-")
    index = (read_number(number) if last_token == token else None) or 0
    if index == 0:
        yield _message(f"{token}-0", [{"entry": "reset"}])
    elif live is not None:  # Restore the text that was held back before the browser reconnected.
        list(page_events(live.events_from(0, index)[0], run_id, encoder))
    while not site.is_closing:
        if live is not None:
            events, index, is_over = live.events_from(index)
        else:
            view = await run_in_threadpool(site.index.view, run_id)
            if run_id in site.live_runs or view is None:
                return
            events, is_over = [entry_event(entry) for entry in view.tree.entries[index:]], not view.is_active
            index += len(events)
        if events:
            encoder.redactor = site.redactor()
            yield _message(f"{token}-{index}", list(page_events(events, run_id, encoder)))
        elif is_over:
            yield await _end_message(site, run_id, f"{token}-{index}")
            return
        await asyncio.sleep(interval)


async def row_events(site: Site, run_id: str, version: int) -> AsyncGenerator[bytes]:
    """Yield encoded messages that contain the changed rows of a run, until the run is over.

    If the run waits for human input, a message also contains its unanswered requests.
    """
    status = ""
    while not site.is_closing:
        view = await run_in_threadpool(site.index.view, run_id)
        if view is None:
            return
        data = await run_in_threadpool(site.page_data, view, version)
        version, live = data["version"], site.live_runs.get(run_id)
        # A run that was just resumed is live before the store reports it as running.
        is_over = not (data["head"]["status"] in ACTIVE or (live is not None and not live.is_over))
        if data["rows"] or is_over or status != data["head"]["status"]:
            status = data["head"]["status"]
            yield _message(str(version), {**data, "over": is_over})
        if is_over:
            return
        await asyncio.sleep(_POLL_INTERVAL)


async def _end_message(site: Site, run_id: str, event_id: str) -> bytes:
    """Return the last message of the stream of a run.

    It contains the header and the unanswered requests for human input of the run.
    """
    view = await run_in_threadpool(site.index.view, run_id)
    header = None if view is None else {**view.current_header(), "own": site.is_own(view)}
    requests = await run_in_threadpool(site.requests, run_id)
    end = {"entry": "end", "run_id": run_id, "head": header, "requests": requests}
    return _message(event_id, [site.redactor().data(end, STREAM_LIMIT)])


def _message(event_id: str, value: object) -> bytes:
    return f"id: {event_id}\ndata: {to_json_text(value)}\n\n".encode()


def read_number(text: str) -> int | None:
    """Return the number in a part of a URL or of an event id, or None if the text is not such a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def page_events(events: Sequence[Event], root: str, encoder: ChunkEvents) -> Iterator[JsonObject]:
    """Convert events of a run to JSON data for the page. Chunks are merged, secrets redacted, and long texts cut."""
    for is_chunk, group in groupby(events, lambda event: event["entry"] == "chunk"):
        if is_chunk:
            for chunk in merge_chunks([event["chunk"] for event in group]):
                yield from _chunk_events(chunk, root, encoder)
            continue
        for event in group:  # The texts of the run are complete before a journal entry.
            run_id = None if event["run_id"] == root else event["run_id"]
            yield from _chunk_events(StreamChunk(run_id=run_id), root, encoder)
            yield {key: encoder.redactor.data(value, STREAM_LIMIT) for key, value in event.items() if key != "extra"}


def _chunk_events(chunk: StreamChunk, root: str, encoder: ChunkEvents) -> Iterator[JsonObject]:
    for event in encoder.events(chunk):
        yield {**encoder.redactor.data(event, STREAM_LIMIT), "entry": "chunk", "run_id": chunk.run_id or root}
