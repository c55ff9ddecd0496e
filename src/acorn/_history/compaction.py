"""A conversation that has grown long: which part of it a summary may stand for, and how the model is asked for one.

Pure; `run.py` decides when, and the transcript writes what came of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from acorn._formats.content import text_of
from acorn._formats.json import to_json_text
from acorn._history.history import call_ids, user
from acorn._history.repair import SYSTEM
from acorn.record import Message

_STEPS_KEPT = 2
"""How many of the model's last turns stay as they are, with all that came of them."""
_LEAST = 10
"""What is replaced must be at least this part of what the conversation may be: a summary costs a request."""
INTRODUCTION = "The earlier part of this conversation, in short:\n\n"
_INSTRUCTION = (
    "You are given the earlier part of a conversation between an assistant, its tools and its user. It will be removed "
    "from the conversation, and your reply will stand in its place: write down all that the assistant needs to go on. "
    "Keep names, numbers, ids, links and quotations to the letter; say what was asked, what was done and with which "
    "result, what was decided, what failed, and what is still to be done. Do not go on with the task, and add nothing "
    "that is not there. Reply with the summary alone."
)
_CUT = " (cut off here)"


@dataclass(frozen=True)
class CompactedRange:
    """The part of a history that a summary can stand for."""

    where: int
    behind: int
    kept: tuple[int, ...]
    """The messages in it that stay: the inputs."""
    last: int
    """The last one that does not."""


def estimate(history: Iterable[Any]) -> int:
    """Tokens, about."""
    return sum(_weight(message) for message in history) // 4


def _weight(message: Any) -> int:
    if not isinstance(message, dict):
        return 0
    calls = message.get("tool_calls")
    return len(text_of(message.get("content")).encode(errors="replace")) + (len(to_json_text(calls)) if calls else 0)


def range_to_compact(history: Any, openings: Sequence[Message], most: int) -> CompactedRange | None:
    """What can be replaced so that it is worth a request; None where there is nothing."""
    if not isinstance(history, list):  # the user may have put anything there
        return None
    turns = [at for at, message in enumerate(history) if _role(message) == "assistant"]
    if len(turns) <= _STEPS_KEPT:
        return None
    where, behind = 0, turns[-_STEPS_KEPT]
    while _role(history[where]) in SYSTEM:
        where += 1
    behind = _untorn(history, behind)
    kept = tuple([at for at in range(where, behind) if _is_kept(history[at], openings)])
    gone = [at for at in range(where, behind) if at not in kept]
    if len(gone) < 2 or estimate([history[at] for at in gone]) * _LEAST < most:
        return None
    return CompactedRange(where, behind, kept, gone[-1])


def _is_kept(message: Any, openings: Sequence[Message]) -> bool:
    return _role(message) in SYSTEM or any(message == opening for opening in openings)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _untorn(history: Sequence[Any], behind: int) -> int:
    """No further than that every call stands on the same side as its result, wherever the user has put them."""
    while True:
        later = {str(each.get("tool_call_id") or "") for each in history[behind:] if _role(each) == "tool"}
        own = {call_id for message in history[behind:] for call_id in call_ids(message)}
        torn = [at for at in range(behind) if not (later - own).isdisjoint(call_ids(history[at]))]
        early = [
            at
            for at in range(behind)
            if _role(history[at]) == "tool"
            and str(history[at].get("tool_call_id") or "") in own
            and not any(str(history[at].get("tool_call_id") or "") in call_ids(each) for each in history[:behind])
        ]
        if not torn and not early:
            return behind
        behind = min([*torn, *early])


def request_messages(history: Sequence[Any], stretch: CompactedRange, opening: Message) -> list[Message]:
    """What the model is asked for a summary with; as text, since a model without tools takes no calls."""
    from acorn.thread.messages import from_messages  # the events' classes, which other runs do not need
    from acorn.thread.xml import serialize_thread_to_xml

    gone = [history[at] for at in range(stretch.where, stretch.behind) if at not in stretch.kept]
    text = serialize_thread_to_xml(from_messages(gone))
    said = f"What the conversation is about:\n\n{text_of(opening.get('content'))}\n\nThe part to replace:\n\n{text}"
    return [{"role": "system", "content": _INSTRUCTION}, user(said)]


def summary_text(content: str, *, was_cut: bool) -> str:
    """What stands in the conversation; empty where the model gave no summary."""
    said = content.strip()
    return f"{INTRODUCTION}{said}{_CUT if was_cut else ''}" if said else ""


def compacted(history: Sequence[Any], stretch: CompactedRange, text: str) -> list[Any]:
    """What takes the place of the stretch: the very messages that stay, and the summary where the last one stood."""
    before = [history[at] for at in stretch.kept if at < stretch.last]
    return [*before, user(text), *(history[at] for at in stretch.kept if at > stretch.last)]
