"""Server-sent events that show a run in the browser.

One kind of stream contains journal entries and chunks of output. The other kind contains the changed rows of the
waterfall view. A stream starts at the position that the browser sends. It ends when the run is over or the server
stops. Chunks of text are joined. The last word of an incomplete text is sent later, because it may be the start of a
secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from starlette.concurrency import run_in_threadpool

from acorn import StreamChunk
from acorn._inside import Redactor, to_json_data, to_json_text
from acorn.types import JsonObject
from acorn.web.page import STREAM_LIMIT
from acorn.web.page.rows import Event, entry_event, row_json
from acorn.web.page.site import PART_KINDS, TEXT_KINDS, Site

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
    live, redactor, texts = site.live_runs.get(run_id), site.redactor(), EventTextBuffer()
    token, interval = (STORED_PREFIX, _POLL_INTERVAL) if live is None else (live.token, _LIVE_INTERVAL)
    last_token, _, number = last_id.partition("-")
    index = (read_number(number) if last_token == token else None) or 0
    if index == 0:
        yield _message(f"{token}-0", [{"entry": "reset"}])
    elif live is not None:  # Restore the text that was held back before the browser reconnected.
        texts.release(merge_events(live.events_from(0)[0][:index]), redactor)
    while not site.is_closing:
        if live is not None:
            events, is_over = live.events_from(index)
        else:
            view = await run_in_threadpool(site.index.view, run_id)
            if run_id in site.live_runs or view is None:
                return
            events, is_over = [entry_event(entry) for entry in view.tree.entries[index:]], not view.is_active
        if events:
            index, redactor = index + len(events), site.redactor()
            released = texts.release(merge_events(events), redactor)
            yield _message(f"{token}-{index}", [page_event(event, redactor) for event in released])
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
        changes = await run_in_threadpool(_read_changes, site, run_id, version)
        if changes is None:
            return
        rows, header, version, is_active = changes
        live, is_waiting = site.live_runs.get(run_id), header["status"] == "waiting"
        # A run that was just resumed is live before the store reports it as running.
        is_over = not (is_active or (live is not None and not live.is_over))
        if rows or is_over or status != header["status"]:
            status = header["status"]
            waiting = await run_in_threadpool(site.requests, run_id) if is_waiting else []
            update = {
                "rows": rows,
                "head": header,
                "version": version,
                "requests": site.redactor().data(waiting),
                "over": is_over,
            }
            yield _message(str(version), update)
        if is_over:
            return
        await asyncio.sleep(_POLL_INTERVAL)


def _read_changes(site: Site, run_id: str, version: int) -> tuple[list[JsonObject], JsonObject, int, bool] | None:
    """Return the changed rows, the header and the version of a run, and True if the run is active.

    Return None if the run does not exist. Call this function in a thread, because it may wait for the store. Another
    thread may also hold the lock of the view while it waits for the store.
    """
    view = site.index.view(run_id)
    if view is None:
        return None
    redactor = site.redactor()
    with view.lock:
        rows = [row_json(row, redactor) for row in view.tree.changed_since(version)]
        return rows, redactor.data(site.header(view)), len(view.tree.entries), view.is_active


async def _end_message(site: Site, run_id: str, event_id: str) -> bytes:
    """Return the last message of the stream of a run.

    It contains the header and the unanswered requests for human input of the run.
    """
    view = await run_in_threadpool(site.index.view, run_id)
    header = None if view is None else site.header(view)
    requests = await run_in_threadpool(site.requests, run_id)
    end = {"entry": "end", "run_id": run_id, "head": header, "requests": requests}
    return _message(event_id, [site.redactor().data(end, STREAM_LIMIT)])


def _message(event_id: str, value: object) -> bytes:
    return f"id: {event_id}\ndata: {to_json_text(value)}\n\n".encode()


def read_number(text: str) -> int | None:
    """Return the number in a part of a URL or of an event id, or None if the text is not such a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


# The events of a message


def merge_events(events: Sequence[Event]) -> list[Event]:
    """Join the texts of consecutive parts of a response, and drop events that a later event replaces.

    A later version of a tool call or an answer replaces the earlier version. The journal entry of a complete response
    replaces all parts of the response.
    """
    merged: list[Event | None] = []
    positions: dict[str, dict[tuple[str, int], int]] = {}
    """Maps a run id to the indexes in `merged` of the parts of its current response."""
    for event in events:
        kind, run_id = event["entry"], event["run_id"]
        if kind not in PART_KINDS:
            if kind == "ModelResponded":
                for position in positions.get(run_id, {}).values():
                    merged[position] = None
            positions.pop(run_id, None)
            merged.append(event)
            continue
        parts = positions.setdefault(run_id, {})
        key = (kind, event.get("i", 0))
        earlier = merged[parts[key]] if key in parts else None
        if earlier is None:
            parts[key] = len(merged)
            merged.append(event)
        elif kind in TEXT_KINDS:
            merged[parts[key]] = {**earlier, "s": earlier["s"] + event["s"]}
        else:
            merged[parts[key]] = event
    return [event for event in merged if event is not None]


class EventTextBuffer:
    """A buffer that holds back the last word of each streamed text.

    An incomplete word may be the start of a secret, so it must not be sent yet.
    """

    def __init__(self) -> None:
        self._held_back: dict[tuple[str, str], str] = {}

    def release(self, events: Sequence[Event], redactor: Redactor) -> list[Event]:
        """Add new events, and return the events and texts that may be sent now.

        If an event is not a part of a response, the texts of its run are complete, so the remaining text is also
        returned.
        """
        released: list[Event] = []
        for event in events:
            kind, run_id = event["entry"], event["run_id"]
            if kind in TEXT_KINDS:
                text = self._held_back.pop((kind, run_id), "") + event["s"]
                text, self._held_back[kind, run_id] = redactor.split(text)
                released += [{**event, "s": text}] if text else []
                continue
            if kind not in PART_KINDS:
                for text_kind in TEXT_KINDS:
                    text = redactor.partial(self._held_back.pop((text_kind, run_id), ""))
                    released += [{"entry": text_kind, "run_id": run_id, "s": text}] if text else []
            released.append(event)
        return released


def page_event(event: Event, redactor: Redactor) -> Event:
    """Convert an event to JSON data for the page. Secrets are redacted, and long texts are cut."""
    chunk: StreamChunk | None = event.get("chunk")
    if chunk is None:
        return {key: redactor.data(value, STREAM_LIMIT) for key, value in event.items() if key != "extra"}
    fields: Event = {"entry": event["entry"], "run_id": event["run_id"]}
    if event["entry"] == "call":
        call = chunk.tool_call or {}
        fields |= {"i": call.get("index"), "id": call.get("id"), "name": call.get("name"), "a": call.get("arguments")}
    else:
        fields |= {"v": to_json_data(chunk.partial), "c": list(chunk.completed)}
    return {key: redactor.partial(value, STREAM_LIMIT) for key, value in fields.items()}
