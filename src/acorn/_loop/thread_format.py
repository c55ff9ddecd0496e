"""A conversation sent as one document: the system message, and one user message that holds the `<thread>`.

For `history_format = "thread"`. What goes in is what would have been sent, repaired as for any provider, so
edits of the history hold here as well.
"""

from __future__ import annotations

from typing import Any

from acorn.record import Message
from acorn.thread.messages import events_of
from acorn.thread.xml import Names, document, lines_of


class Threaded:
    """The document of one run; what was written for an earlier request is not written again."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._written: list[Message] = []
        self._lines: list[str] = []
        self._parts: list[Any] = []
        self._names: Names = {}
        self._iteration = 0

    def wrap(self, messages: list[Message]) -> list[Message]:
        """The messages to send instead of these."""
        head = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
        rest = messages[head:]
        if not _begins_with(rest, self._written):
            self._begin()
        for message in rest[len(self._written) :]:
            self._iteration += message["role"] == "assistant"
            self._parts += _other_parts(message, len(self._lines))
            self._lines += lines_of(events_of(message, self._iteration), len(self._lines), self._names)
        self._written = rest
        text = document(self._lines)
        content: Any = [{"type": "text", "text": text}, *self._parts] if self._parts else text
        return [*messages[:head], {"role": "user", "content": content}]


def _begins_with(messages: list[Message], known: list[Message]) -> bool:
    """Whether these are the very messages, and perhaps more: a message that was sent is never changed."""
    return len(messages) >= len(known) and all(one is other for one, other in zip(messages, known, strict=False))


def _other_parts(message: Message, event: int) -> list[Any]:
    """Pictures and other parts that no XML can hold; they follow the document, each behind a line that says whose."""
    content = message.get("content")
    if not isinstance(content, list):
        return []
    found: list[Any] = []
    for number, part in enumerate((part for part in content if not isinstance(part.get("text"), str)), start=1):
        found += [{"type": "text", "text": f"Media {number} of event {event}:"}, part]
    return found
