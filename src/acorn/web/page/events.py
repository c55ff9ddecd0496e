"""Journal entries and stream chunks as the events that the page receives.

An event is a journal entry in its stored form, or a piece of a response that is still arriving: `text` and `reasoning`
(pieces are joined), `call` and `answer` (the last one replaces the earlier ones; they are parsed when they are sent).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from acorn import StreamChunk
from acorn._inside import describe_blobs, record_to_json, to_json_data
from acorn.chunk import call_index_of, has_answer_part
from acorn.journal import Entry
from acorn.types import JsonObject, is_json_list, is_json_object
from acorn.web.redact import PageRedactor, last_word_start

Event = JsonObject
STREAM_LIMIT = 20_000
"""Characters of one text in a stream."""
PREVIEW_LIMIT = 140
"""Characters of the preview of a row."""

_TEXT_PIECES = ("text", "reasoning")
_PIECES = (*_TEXT_PIECES, "call", "answer")


def entry_event(entry: Entry) -> Event:
    """Return an entry in its stored form. Images and files are replaced by their descriptions."""
    event: Event = describe_blobs(to_json_data(record_to_json(entry)))
    return event


def chunk_event(chunk: StreamChunk, root: str) -> Event | None:
    """Return the event of a chunk, or None if the journal contains the same information."""
    if chunk.tool_result is not None or chunk.run is not None:
        return None
    run = {"run_id": chunk.run_id or root}
    if chunk.content:
        return {"entry": "text", **run, "s": chunk.content}
    if chunk.reasoning:
        return {"entry": "reasoning", **run, "s": chunk.reasoning}
    if call_index_of(chunk) is not None:
        return {"entry": "call", **run, "chunk": chunk, "i": call_index_of(chunk)}
    return {"entry": "answer", **run, "chunk": chunk} if has_answer_part(chunk) else None


def page_event(event: Event, redactor: PageRedactor) -> Event:
    """Return an event as it is sent: parsed, redacted and cut."""
    chunk: StreamChunk | None = event.get("chunk")
    if chunk is None:
        return {key: redactor.data(value, STREAM_LIMIT) for key, value in event.items() if key != "extra"}
    fields: Event = {"entry": event["entry"], "run_id": event["run_id"]}
    if event["entry"] == "call":
        call = chunk.tool_call or {}
        fields |= {"i": call.get("index"), "id": call.get("id"), "name": call.get("name"), "a": call.get("arguments")}
    else:
        fields |= {"v": to_json_data(chunk.partial), "c": list(chunk.completed)}
    return {key: redactor.partial(redactor.data(value, STREAM_LIMIT)) for key, value in fields.items()}


class EventTextBuffer:
    """Holds back the last word of each streamed text until it is complete, because it may become a secret."""

    def __init__(self) -> None:
        self._held_back: dict[tuple[str, str], str] = {}

    def release(self, events: Sequence[Event], redactor: PageRedactor) -> list[Event]:
        """Return the events with the text that may be sent now. The end of a turn releases all its text."""
        released: list[Event] = []
        for event in events:
            kind, run_id = event["entry"], event["run_id"]
            if kind in _TEXT_PIECES:
                text = self._held_back.pop((kind, run_id), "") + event["s"]
                end = min(len(text) - redactor.secret_prefix_length(text), last_word_start(text))
                end = redactor.safe_cut(text, end)
                self._held_back[kind, run_id] = text[end:]
                released += [{**event, "s": text[:end]}] if end else []
                continue
            if kind not in _PIECES:
                for piece in _TEXT_PIECES:
                    text = redactor.partial_text(self._held_back.pop((piece, run_id), ""))
                    released += [{"entry": piece, "run_id": run_id, "s": text}] if text else []
            released.append(event)
        return released


class OpenResponses:
    """The runs whose response is still arriving. Pieces that arrive after the end of their turn are dropped."""

    def __init__(self) -> None:
        self._run_ids: set[str] = set()

    def accepts(self, event: Event) -> bool:
        """Take note of an event and return whether it is still useful."""
        kind, run_id = event["entry"], event["run_id"]
        if kind == "ModelRequested":
            self._run_ids.add(run_id)
        elif kind not in _PIECES:
            if kind in ("ModelResponded", "RunFailed", "RunInterrupted", "RunFinished"):
                self._run_ids.discard(run_id)
        else:
            return run_id in self._run_ids
        return True


def merge_events(events: Sequence[Event]) -> list[Event]:
    """Join texts, keep the last version of each call and answer, and drop the pieces of complete turns."""
    merged: list[Event | None] = []
    positions: dict[str, dict[tuple[str, int], int]] = {}
    """By run, the index in `merged` of each piece of its current turn."""
    for event in events:
        kind, run_id = event["entry"], event["run_id"]
        if kind not in _PIECES:
            if kind == "ModelResponded":
                for position in positions.get(run_id, {}).values():
                    merged[position] = None
            positions.pop(run_id, None)
            merged.append(event)
            continue
        pieces = positions.setdefault(run_id, {})
        key = (kind, event.get("i", 0))
        earlier = merged[pieces[key]] if key in pieces else None
        if earlier is None:
            pieces[key] = len(merged)
            merged.append(event)
        elif kind in _TEXT_PIECES:
            merged[pieces[key]] = {**earlier, "s": earlier["s"] + event["s"]}
        else:
            merged[pieces[key]] = event
    return [event for event in merged if event is not None]


def strings_in(value: object) -> Iterator[str]:
    """Yield every key and every value of JSON data as text."""
    if isinstance(value, str):
        yield value
    elif is_json_object(value):
        for key, item in value.items():
            yield key
            yield from strings_in(item)
    elif is_json_list(value):
        for item in value:
            yield from strings_in(item)
    elif value is not None:
        yield str(value)
