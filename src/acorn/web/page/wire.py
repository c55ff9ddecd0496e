"""What goes to the page: entries and chunks as plain data, veiled. The only door.

An event is an entry of a journal as it is written in a store, or a piece of a response that is still coming in: `text`
and `think` (joined), `call` (the newest counts) and `answer` (the newest counts, parsed when it is sent). Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from acorn import StreamChunk
from acorn._inside import describe_blobs, entry_to_json, find_secrets, redact, to_json_data
from acorn.journal import Entry
from acorn.types import JsonObject

Event = JsonObject
CUT = 20_000
"""Letters of one text in a stream."""
WHOLE = 200_000
"""Letters of one text where somebody looks at it."""
PREVIEW = 140

_DEEPEST = 100
_TELLING = 4
"""So many letters of a secret are a beginning that is not shown."""
_BETWEEN = " \t\r\n\"',}"
_KEY = re.compile(r"(?:\b(?:(?:sk|pk|rk|xai|gsk|hf|ghp|glpat)[-_]|AIza|AKIA|ASIA)|(?<=[Bb]earer ))[^\s\"',}]*\Z")
"""What begins like a key, and may go on."""
_PIECES = ("text", "think", "call", "answer")


class PageRedactor:
    """Takes secrets out of everything that leaves: those of the models, of the environment, and what looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {*secrets, *find_secrets({})}
        known |= {json.dumps(each, ensure_ascii=False)[1:-1] for each in known}  # as it stands in a model's arguments
        self._secrets = tuple(sorted(known, key=len, reverse=True))
        self._margin = max(map(len, self._secrets), default=0) + 64
        """A text is cut behind what may be the middle of a secret, else half of one would be seen."""

    def text(self, text: str, limit: int = WHOLE) -> str:
        """The text without secrets, and no longer than this."""
        if len(text) < 6:
            return text
        veiled = redact(text[: limit + self._margin], self._secrets)
        return veiled if len(veiled) <= limit else f"{veiled[:limit]}…"

    def plain(self, value: Any, limit: int = WHOLE, depth: int = 0) -> Any:
        """Plain data, all of it veiled, the names of fields too; what is nested too deep is left out."""
        kind = type(value)
        if kind is str:
            return self.text(value, limit)
        if depth > _DEEPEST:
            return "…"
        if kind is dict:
            return {self.text(str(key), limit): self.plain(item, limit, depth + 1) for key, item in value.items()}
        if kind is list or kind is tuple:
            return [self.plain(item, limit, depth + 1) for item in value]
        if kind is float and not math.isfinite(value):
            return str(value)
        return value

    def growing(self, value: Any) -> Any:
        """The same of what is still coming in: a text loses what may be the beginning of a secret at its end."""
        if isinstance(value, dict):
            return {key: self.growing(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.growing(item) for item in value]
        if not isinstance(value, str):
            return value
        begun, key = self.begun(value), _KEY.search(value, _last_word(value))
        shown = len(value) - (begun if begun >= _TELLING else 0)
        return value[: shown if key is None else min(shown, key.start())]

    def begun(self, text: str) -> int:
        """How many letters at the end of a text may be the beginning of a secret that is known."""
        lengths = (
            count
            for secret in self._secrets
            for count in range(min(len(secret) - 1, len(text)), 0, -1)
            if text.endswith(secret[:count])
        )
        return max(lengths, default=0)

    def beside(self, text: str, count: int) -> int:
        """Where to cut a text that was to be cut here: before a secret that the cut would go through."""
        for secret in sorted(self._secrets, key=len):
            at = text.find(secret, max(0, count - len(secret) + 1))
            if 0 <= at < count < at + len(secret):
                return self.beside(text, at)
        return count

    def json(self, value: Any, limit: int = WHOLE) -> bytes:
        """Plain data as JSON that any reader takes."""
        return dumped(self.plain(value, limit))


def dumped(veiled: Any) -> bytes:
    """What was veiled, as JSON; half a surrogate pair is escaped."""
    return json.dumps(veiled, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


# Events


def entry_event(entry: Entry) -> Event:
    """An entry as it is written in a store; of pictures and files, what they are."""
    plain: Event = describe_blobs(to_json_data(entry_to_json(entry)))
    return plain


def chunk_event(chunk: StreamChunk, root: str) -> Event | None:
    """A piece of a response; None where the journal says the same."""
    if chunk.tool_result is not None or chunk.run is not None:
        return None
    at = {"run_id": chunk.run_id or root}
    if chunk.content:
        return {"entry": "text", **at, "s": chunk.content}
    if chunk.reasoning:
        return {"entry": "think", **at, "s": chunk.reasoning}
    if chunk._call is not None:
        return {"entry": "call", **at, "chunk": chunk, "i": chunk._call[0]}
    return None if chunk._answer is None else {"entry": "answer", **at, "chunk": chunk}


class GrowingText:
    """The texts that come in pieces: the last word of one waits for its end, since it may become a secret."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], str] = {}

    def passed(self, events: Sequence[Event], veil: PageRedactor) -> list[Event]:
        """The events, with what may be shown by now. What is held back comes when the turn is over."""
        made: list[Event] = []
        for event in events:
            kind, run_id = event["entry"], event["run_id"]
            if kind in ("text", "think"):
                text = self._held.pop((kind, run_id), "") + event["s"]
                count = veil.beside(text, min(len(text) - veil.begun(text), _last_word(text)))
                self._held[kind, run_id] = text[count:]
                made += [{**event, "s": text[:count]}] if count else []
                continue
            if kind not in _PIECES:
                for each in ("text", "think"):
                    held = veil.growing(self._held.pop((each, run_id), ""))
                    made += [{"entry": each, "run_id": run_id, "s": held}] if held else []
            made.append(event)
        return made


def _last_word(text: str) -> int:
    """Where the last word of a text begins; what says that a key follows is a part of it."""
    at = max(map(text.rfind, _BETWEEN)) + 1
    return at - 7 if text[:at].lower().endswith("bearer ") else at


def sent(event: Event, veil: PageRedactor) -> Event:
    """An event as it goes out: parsed, veiled and cut."""
    chunk: StreamChunk | None = event.get("chunk")
    if chunk is None:
        return {key: veil.plain(value, CUT) for key, value in event.items() if key != "extra"}
    at = {"entry": event["entry"], "run_id": event["run_id"]}
    if event["entry"] == "call":
        call = chunk.tool_call or {}
        made = {"i": call.get("index"), "id": call.get("id"), "name": call.get("name"), "a": call.get("arguments")}
    else:
        made = {"v": to_json_data(chunk.partial), "c": list(chunk.completed)}
    return {key: veil.growing(veil.plain(value, CUT)) for key, value in (at | made).items()}


class OpenStream:
    """Which runs have a response coming in: a piece that is late, when its turn is complete, says nothing new."""

    def __init__(self) -> None:
        self._runs: set[str] = set()

    def takes(self, event: Event) -> bool:
        kind, run_id = event["entry"], event["run_id"]
        if kind == "ModelRequested":
            self._runs.add(run_id)
        elif kind not in _PIECES:
            if kind in ("ModelResponded", "RunFailed", "RunInterrupted", "RunFinished"):
                self._runs.discard(run_id)
        else:
            return run_id in self._runs
        return True


def squeeze(events: Sequence[Event]) -> list[Event]:
    """The same in fewer events: text joined, the newest of a call or an answer, and of a complete turn no pieces."""
    made: list[Event | None] = []
    pieces: dict[str, dict[tuple[str, int], int]] = {}
    """By run, where in `made` each piece of its turn stands."""
    for event in events:
        kind, run_id = event["entry"], event["run_id"]
        if kind not in _PIECES:
            if kind == "ModelResponded":
                for at in pieces.get(run_id, {}).values():
                    made[at] = None
            pieces.pop(run_id, None)
            made.append(event)
            continue
        known = pieces.setdefault(run_id, {})
        key = (kind, event.get("i", 0))
        earlier = made[known[key]] if key in known else None
        if earlier is None:
            known[key] = len(made)
            made.append(event)
        elif kind in ("text", "think"):
            made[known[key]] = {**earlier, "s": earlier["s"] + event["s"]}
        else:
            made[known[key]] = event
    return [event for event in made if event is not None]
