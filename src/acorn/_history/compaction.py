"""Compaction of a long conversation: the choice of the messages to replace, and the request for their summary.

The functions are pure. The machine decides when to compact, and the transcript inserts the summary into the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from acorn._formats.json import text_of, to_json_text
from acorn._history.history import SYSTEM_ROLES, call_ids, user_message
from acorn._history.repair import id_of
from acorn.types import Message, is_json_object

_PRESERVED_TURNS = 2
"""The number of model responses at the end of the history that stay unchanged, together with their tool results."""
_MIN_SHARE = 10
"""The replaced messages must have at least a tenth of the allowed tokens, because a summary costs a request."""
SUMMARY_INTRODUCTION = "The earlier part of this conversation, in short:\n\n"
_INSTRUCTION = (
    "You are given the earlier part of a conversation between an assistant, its tools and its user. It will be removed "
    "from the conversation, and your reply will replace it. Write down all that the assistant needs to continue. Copy "
    "names, numbers, ids, links and quotations exactly. Include the requests, the actions with their results, the "
    "decisions, the failures and the remaining work. Do not continue the task, and add nothing that is not there. "
    "Reply with the summary alone."
)
_CUT = " (cut off here)"


@dataclass(frozen=True)
class CompactedRange:
    """A range of history indexes whose messages are replaced by one summary, except for preserved messages."""

    start: int
    end: int
    preserved: tuple[int, ...]
    """The indexes in the range whose messages stay: system messages and inputs."""

    def replaced_indexes(self) -> list[int]:
        """Return the indexes of the messages that the summary replaces."""
        return [index for index in range(self.start, self.end) if index not in self.preserved]


def estimate_tokens(history: Iterable[object]) -> int:
    """Return an estimate of the tokens in the messages. Four bytes of text count as one token."""
    return sum(map(text_length, history)) // 4


def text_length(message: object) -> int:
    """Return the number of bytes of the text and the tool calls in a message."""
    if not is_json_object(message):
        return 0
    calls = message.get("tool_calls")
    return len(text_of(message.get("content")).encode(errors="replace")) + (len(to_json_text(calls)) if calls else 0)


def range_to_compact(history: Sequence[object], openings: Sequence[Message], max_tokens: int) -> CompactedRange | None:
    """Return the range of history indexes that a summary should replace, or None if it would save too little.

    `openings` are the input messages of the run and its parents, which stay in the history.
    """
    turns = [index for index, message in enumerate(history) if _role(message) == "assistant"]
    if len(turns) <= _PRESERVED_TURNS:
        return None
    start = 0
    while _role(history[start]) in SYSTEM_ROLES:
        start += 1
    end = _end_without_split_calls(history, turns[-_PRESERVED_TURNS])
    preserved = tuple(
        [index for index in range(start, end) if _role(history[index]) in SYSTEM_ROLES or history[index] in openings]
    )
    compacted = CompactedRange(start, end, preserved)
    replaced = [history[index] for index in compacted.replaced_indexes()]
    return None if len(replaced) < 2 or estimate_tokens(replaced) * _MIN_SHARE < max_tokens else compacted


def _role(message: object) -> object:
    return message.get("role") if is_json_object(message) else None


def _end_without_split_calls(history: Sequence[object], end: int) -> int:
    """Return the largest end of the range, at most `end`, that does not separate a tool call from its result.

    The user may have moved calls and results in the history, so a result may be far from its call.
    """
    calls = [set(call_ids(message)) for message in history]
    results = [{id_of(message, "tool_call_id")} if _role(message) == "tool" else set[str]() for message in history]
    while True:
        calls_before, calls_after = set[str]().union(*calls[:end]), set[str]().union(*calls[end:])
        lost_calls = set[str]().union(*results[end:]) - calls_after  # Their results would be alone in the rest.
        lost_results = calls_after - calls_before
        split = [index for index in range(end) if calls[index] & lost_calls or results[index] & lost_results]
        if not split:
            return end
        end = split[0]


def summary_messages(history: Sequence[Message], compacted: CompactedRange, opening: Message) -> list[Message]:
    """Return the messages of the request that asks the model for a summary.

    The messages to summarize are sent as XML text, because this request offers no tools.
    """
    from acorn.thread.messages import from_messages  # Imported late: most runs do not need the event classes.
    from acorn.thread.xml import serialize_thread_to_xml

    text = serialize_thread_to_xml(from_messages([history[index] for index in compacted.replaced_indexes()]))
    request = f"What the conversation is about:\n\n{text_of(opening.get('content'))}\n\nThe part to replace:\n\n{text}"
    return [{"role": "system", "content": _INSTRUCTION}, user_message(request)]


def summary_text(content: str, *, was_cut: bool) -> str:
    """Return the text of the message that contains the summary, or an empty string if `content` is empty."""
    summary = content.strip()
    return f"{SUMMARY_INTRODUCTION}{summary}{_CUT if was_cut else ''}" if summary else ""


def compact_messages(history: Sequence[Message], compacted: CompactedRange, text: str) -> list[Message]:
    """Return the messages that replace the range: its preserved messages and the summary.

    The summary is placed where the last replaced message was.
    """
    last = compacted.replaced_indexes()[-1]
    before = [history[index] for index in compacted.preserved if index < last]
    after = [history[index] for index in compacted.preserved if index > last]
    return [*before, user_message(text), *after]
