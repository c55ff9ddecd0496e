"""The messages of a request: a repaired copy of the history that every provider accepts.

The user may change the history in any way, so acorn checks it before each request. In the copy, each tool result
follows its call, a call without a result gets a placeholder result, and a result without a call is left out. The user's
list does not change.

To save time, acorn stores the repaired messages of the last request. As long as these messages do not change in the
history, acorn repairs only the messages after them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import filterfalse
from operator import is_
from typing import TypeVar, cast

from pydantic import BaseModel
from typing_extensions import TypeIs

from acorn._declare.spec import Spec
from acorn._declare.tools.collect import FINISH
from acorn._formats.blobs import format_size
from acorn._formats.json import (
    PartCollector,
    describe_error,
    excerpt,
    failing_field,
    find_path,
    is_encodable,
    replace_surrogates,
    safe_repr,
    shorten,
)
from acorn._formats.schema.problems import input_problem
from acorn._formats.xml.encode import encode_xml
from acorn._history.history import ROLES, SYSTEM_ROLES, History, user_message
from acorn._history.repair import match_results, repair_content, repair_text_message, repair_turn
from acorn.errors import AcornError, InputError, LimitError
from acorn.journal import MessagesAdded
from acorn.models.request import SentMedium, SentMessages, SentPart, media_of
from acorn.record import Run, history_of_run
from acorn.types import JsonValue, Message, is_json_object, is_list_or_tuple

REMINDER = f"Please continue: call one of your tools, or call `{FINISH}` with your answer."
_OMITTED = "The beginning of this conversation was left out."
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
T = TypeVar("T")


class RequestMessages:
    """The repaired messages of one run. They are stored, so that each request repairs only new messages."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all stored messages, so that the next request repairs the whole history again."""
        self._count = 0
        """The number of messages in the history that earlier requests contain."""
        self._sent: SentMessages = SentMessages()
        self._stray_ids: set[str] = set()
        """The ids of tool results that do not follow their call."""
        self._call_ids: set[str] = set()
        self._has_input: bool = False
        """Whether the sent messages start with a user message, as providers require, and contain the input."""

    def fork(self, history: History, inherited: Sequence[Message]) -> RequestMessages:
        """Return the request messages for a branch, whose history starts with the messages in `inherited`.

        `history` is the history of the parent run. If it has changed since the last request, the branch repairs all
        messages again.
        """
        other, count = RequestMessages(), self._count
        if history.unchanged >= count and all(map(is_, history.messages[:count], inherited)):
            other._count, other._sent = count, self._sent.copy()
            other._stray_ids, other._call_ids = set(self._stray_ids), set(self._call_ids)
        return other

    def change_first(self, message: Message, before: Message | None) -> None:
        """Replace the system message `before`, or insert a system message if `before` is None.

        A branch needs this, because its system message contains the prompt of its parent and its own prompt.
        """
        sent, readable = self._sent.messages, _encodable(message)
        content = repair_content(readable.get("content"))
        was_sent = bool(sent) and sent[0]["role"] == "system"
        if not sent or content is None or was_sent == (before is None):
            self.reset()  # The next request repairs the whole history again.
            return
        self._count += before is None
        self._sent = self._sent.copy(repair_text_message(readable, content), replaced=0 if before is None else 1)

    def prepare(self, history: History) -> SentPart:
        """Return the repaired messages to send in the next request."""
        if history.unchanged < self._count:
            self.reset()
        messages, is_complete = history.messages, False
        if not history.needs_repair and self._append_sendable(messages):
            is_complete = self._has_input  # The new messages end with a tool result: no reminder is necessary.
        elif not self._repair_new(messages):
            self.reset()
            self._repair_new(messages)
        self._count = history.unchanged = len(messages)
        history.needs_repair = False
        return SentPart(self._sent) if is_complete else self._complete(history)

    def _complete(self, history: History) -> SentPart:
        """Return the messages to send. Add the input, a first user message or a final reminder if it is missing.

        Providers require a user message at the start, and do not accept a model response at the end.
        """
        messages = self._sent.messages
        count = last = len(messages)
        first = 0
        while first < count and messages[first]["role"] == "system":
            first += 1
        starts_with_user = first < count and messages[first]["role"] == "user"
        # A branch does not need the inputs of its parents, unless the first user message is missing.
        openings = history.openings[:1] if starts_with_user else history.openings
        trimmed = list(filterfalse(history.messages.__contains__, openings))
        self._has_input = starts_with_user and not trimmed
        inserted = None if starts_with_user else user_message(_OMITTED)
        if trimmed and (content := repair_content(_encodable(trimmed[0]["content"]))) is not None:
            inserted = repair_text_message(_encodable(trimmed[0]), content)
        while last > first and messages[last - 1]["role"] == "system":
            last -= 1
        ends_with_response = last > first and messages[last - 1]["role"] == "assistant"
        # Providers do not accept a conversation that ends with a response of the model.
        return SentPart(self._sent, first, inserted, user_message(REMINDER) if ends_with_response else None)

    def _append_sendable(self, messages: list[Message]) -> bool:
        """Append the new messages of acorn without repair, and return whether this was possible.

        Return False if a message needs repair. Nearly every step uses this fast path.
        """
        count = self._count
        if self._stray_ids or count == len(messages):
            return False
        new = messages[count:]
        sendable = _sendable_turn(new, self._call_ids) if count else _sendable(new)
        if sendable is None:
            return False
        self._sent.messages += sendable
        return True

    def _repair_new(self, messages: Sequence[Message]) -> bool:
        """Repair and append the messages that earlier requests do not contain.

        Return False if a new message contains the result of an earlier call, because earlier messages must then be
        repaired again.
        """
        known = self._count
        check_messages(messages, known)
        new = list(map(_encodable, messages[known:]))
        results, misplaced, unanswered = match_results(new)
        if known and (misplaced or not self._stray_ids.isdisjoint(unanswered)):
            return False
        self._stray_ids |= misplaced
        # New call ids contain the index that a message would have if the history started with a system message, so they
        # stay the same if a branch inserts a system message later.
        position = known if messages and messages[0]["role"] in SYSTEM_ROLES else known + 1
        sent = self._sent.messages
        count = len(sent)
        for index, message in enumerate(new):
            if message["role"] == "assistant":
                sent += repair_turn(message, position + index, results.get(index, {}), self._call_ids)
            elif message["role"] != "tool" and (content := repair_content(message.get("content"))) is not None:
                sent.append(repair_text_message(message, content))
        for message in sent[count:]:
            if type(message.get("content")) is list:
                self._sent.media += media_of(message)
        return True


def _sendable(new: list[Message]) -> list[Message] | None:
    """Return the first messages of a run unchanged, or None if one of them needs repair."""
    for message in new:
        content = message.get("content")
        if len(message) != 2 or message["role"] not in ("system", "user") or type(content) is not str:
            return None
        # Most text is ASCII, and `isascii` is the fastest check.
        if not content.strip() or not (content.isascii() or is_encodable(content)):
            return None
    return new


def _sendable_turn(new: list[Message], used: set[str]) -> list[Message] | None:
    """Return a response and its tool results as messages to send, or None if they need repair."""
    turn = new[0]
    calls, content = turn.get("tool_calls"), turn.get("content")
    if not calls or len(calls) != len(new) - 1 or type(content) is not str:
        return None
    ids: list[str] = []
    texts = [content]
    for index, call in enumerate(calls, start=1):
        result, function, call_id = new[index], call["function"], call["id"]
        text = result["content"]
        if not (type(call_id) is type(text) is str and _is_name(function["name"])):
            return None
        if not call_id or call_id != result.get("tool_call_id"):
            return None
        ids.append(call_id)
        texts += (call_id, function["arguments"], text)
    sent_text = "".join(texts)
    if not (sent_text.isascii() or is_encodable(sent_text)):
        return None
    if not used.isdisjoint(ids) or len(set(ids)) < len(ids):
        return None
    used.update(ids)
    return new if content.strip() else [{**turn, "content": None}, *new[1:]]


@lru_cache(maxsize=256)
def _is_name(name: object) -> bool:
    return type(name) is str and _NAME.fullmatch(name) is not None


def check_messages(messages: Sequence[object], start: int = 0) -> None:
    """Raise `AcornError` if the user added a value that is not a message at the index `start` or later."""
    for index, message in enumerate(messages[start:], start):
        if not is_json_object(message) or message.get("role") not in ROLES:
            raise AcornError(
                f"`history[{index}]` must be a dict with a `role` of {', '.join(ROLES)}, "
                f"got {shorten(safe_repr(message), 120)}."
            )


def _encodable(value: T) -> T:
    """Return JSON data with U+FFFD in place of lone surrogates, and None in place of NaN and infinity."""
    data = cast(JsonValue, value)
    if isinstance(data, dict):
        data = {replace_surrogates(key): _encodable(item) for key, item in data.items()}
    elif isinstance(data, list):
        data = [_encodable(item) for item in data]
    elif isinstance(data, str):
        data = replace_surrogates(data)
    elif isinstance(data, float) and not math.isfinite(data):
        data = None
    return cast(T, data)


# An earlier conversation that the user passes


def prior_messages(history: object, owner: str) -> list[Message]:
    """Return the messages from `using(history=...)`, which accepts a list or a `Run`.

    The system prompt is left out, because the new run adds its own prompt. Other system messages stay at their
    positions.
    """
    if history is None:
        return []
    messages: object = history_of_run(history).current if _is_run(history) else history
    if not is_list_or_tuple(messages):
        raise _wrong_history("history", "a list of messages or a record of a run", history, owner)
    for index, message in enumerate(messages):
        if not is_json_object(message) or message.get("role") not in ROLES:
            raise _wrong_history(f"history[{index}]", f"a dict with a `role` of {', '.join(ROLES)}", message, owner)
    prompt_index = _prompt_index(messages, history)
    return [message for index, message in enumerate(messages) if index != prompt_index]


def _is_run(value: object) -> TypeIs[Run]:
    return isinstance(value, Run)


def _prompt_index(messages: Sequence[Message], history: object) -> int | None:
    """Return the index of the system prompt in the messages, or None if they contain no system prompt.

    The user may have moved or edited the prompt of an earlier run.
    """
    entries = history.journal.entries if _is_run(history) else ()
    start = next((entry for entry in entries if isinstance(entry, MessagesAdded)), None)
    if start is not None:
        if not _starts_with_system(start.messages):
            return None
        if start.messages[0] in messages:
            return messages.index(start.messages[0])
    return 0 if _starts_with_system(messages) else None


def _starts_with_system(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[0].get("role") in SYSTEM_ROLES


def _wrong_history(path: str, expected: str, value: object, owner: str) -> InputError:
    message = f"`{path}` of `{owner}` must be {expected}, got {excerpt(value)}."
    return InputError(message, problems=[input_problem(path, expected, excerpt(value, 200), message)])


# The input message, and the limit of media


def input_message(spec: Spec, run_input: BaseModel) -> Message:
    """Return the run input as one user message that contains XML text and then the media parts."""
    parts = PartCollector()
    unserializable: list[object] = []
    try:
        text = encode_xml(run_input, spec.xml_input_root, spec.xml, parts, unserializable, spec.input.wrapped)
    except AcornError:
        raise
    except Exception as error:  # A user's serializer may raise any exception.
        raise _failed_input(spec.owner, run_input, error) from error
    if unserializable:
        raise _unserializable_input(spec.owner, run_input, unserializable)
    if not parts.parts:
        return {"role": "user", "content": text}
    message: Message = {"role": "user", "content": parts.content(text)}
    check_media(spec, media_of(message), InputError)
    return message


def check_media(spec: Spec, media: Sequence[SentMedium], kind: type[AcornError] = LimitError) -> None:
    """Raise an error of class `kind` if all media of a request together are larger than `max_media_bytes`."""
    limit, size = spec.max_media_bytes, sum(medium.size for medium in media)
    if limit is None or size <= limit:
        return
    largest = max(media, key=lambda medium: medium.size)
    count = "1 medium" if len(media) == 1 else f"{len(media)} media"
    raise kind(
        f"The media in one request of `{spec.owner}` are too large: {count} of {format_size(size)}, but the limit is "
        f"{format_size(limit)}. The largest is in {largest.source} ({format_size(largest.size)}). Make the media "
        f"smaller, or increase `max_media_bytes` if the model accepts more."
    )


def _failed_input(owner: str, run_input: BaseModel, error: Exception) -> InputError:
    message = f"the serializer of `{failing_field(run_input) or 'input'}` raised {describe_error(error)}"
    problems = [input_problem(failing_field(run_input), "a value that can be serialized", "", message)]
    return InputError(f"Wrong input for `{owner}`: {message}. Correct the serializer.", problems=problems)


def _unserializable_input(owner: str, run_input: BaseModel, values: Sequence[object]) -> InputError:
    problems: list[dict[str, str]] = []
    for value in values:
        path, kind = find_path(value, run_input) or "input", type(value).__name__
        message = f"`{path}` is an instance of `{kind}`, of which a model could read only an address in memory"
        problems.append(input_problem(path, "a value that can be written as text", excerpt(value, 200), message))
    messages = "; ".join(dict.fromkeys(problem["message"] for problem in problems))
    return InputError(
        f"Wrong input for `{owner}`: {messages}. Pass text, plain data or an instance of a schema, or give the class a "
        f"`__repr__`.",
        problems=problems,
    )
