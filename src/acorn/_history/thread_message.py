"""The conversation as one XML document, for `history_format = "thread"`.

The document contains the repaired messages of a request, so it includes the user's edits of the history.
"""

from __future__ import annotations

from acorn._history.history import user_message
from acorn.thread.messages import events_of
from acorn.thread.xml import Names, event_lines, thread_document
from acorn.types import Content, JsonObject, JsonValue, Message


class ThreadMessage:
    """The XML document of one run, which reuses the lines of its earlier requests."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._messages: list[Message] = []
        """The messages that are in the document."""
        self._lines: list[str] = []
        self._parts: list[JsonObject] = []
        self._names: Names = {}
        self._iteration = 0

    def wrap(self, messages: list[Message]) -> list[Message]:
        """Return the system messages, and one user message that contains all other messages as XML."""
        first = next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))
        conversation = messages[first:]
        if not _starts_with(conversation, self._messages):
            self._start()
        for message in conversation[len(self._messages) :]:
            self._iteration += message["role"] == "assistant"
            self._parts += _media_parts(message, len(self._lines))
            self._lines += event_lines(events_of(message, self._iteration), len(self._lines), self._names)
        self._messages = conversation
        text = thread_document(self._lines)
        content: Content = [{"type": "text", "text": text}, *self._parts] if self._parts else text
        return [*messages[:first], user_message(content)]


def _starts_with(messages: list[Message], known: list[Message]) -> bool:
    """Return whether the list `messages` starts with the objects in `known`. A sent message never changes."""
    return len(messages) >= len(known) and all(one is other for one, other in zip(messages, known, strict=False))


def _media_parts(message: Message, event: int) -> list[JsonObject]:
    """Return the media parts of a message, each after a text part with the number of its XML event."""
    content: JsonValue = message.get("content")
    if not isinstance(content, list):
        return []
    media = (part for part in content if not isinstance(part.get("text"), str))
    labelled: list[JsonObject] = []
    for number, part in enumerate(media, start=1):
        labelled += [{"type": "text", "text": f"Media {number} of event {event}:"}, part]
    return labelled
