"""Server-sent events, from bytes as they come to the data of each event. Pure; fed by the native lanes."""

from __future__ import annotations

from pydantic_core import from_json


class Events:
    """The events of one stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are whole now. Every provider writes an event's data in one line."""
        text = self._rest + data if self._rest else data
        if text.startswith(b"data: {") and text.find(b"\n") == len(text) - 2 and text.endswith(b"}\n\n"):
            self._rest = b""  # one event, as many servers send them
            return [text[6:-2]]
        lines = text.split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:") and len(line) > 6]

    def ends_well(self) -> bool:
        """Whether the last event is whole, though its line did not end."""
        line = self._rest.strip()
        if not line.startswith(b"data:"):
            return False
        try:
            from_json(line[5:])
        except ValueError:
            return line[5:].strip() == b"[DONE]"
        return True
