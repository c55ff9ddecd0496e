"""Messages as acorn writes them: plain dicts in OpenAI's format, their content text or, with media in it, parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from acorn._declare.tools.collect import FINISH
from acorn._formats.content import to_content
from acorn._history.history import assistant as assistant
from acorn._history.history import call_ids as call_ids
from acorn._history.history import tool as tool
from acorn._history.history import user as user
from acorn.errors import AcornError
from acorn.models.request_body import unsigned_id
from acorn.record import Message
from acorn.types import TOOL_ERROR, Content, JsonObject, ToolResult

REMINDER = f"Please go on: call one of your tools, or call `{FINISH}` with your answer."
REMINDER_CUT_OFF = f"Your reply was cut off at the token limit. {REMINDER} A shorter reply fits."
FINISHED = "Finished."
SKIPPED = f"Skipped: `{FINISH}` was called in the same response, so this call was not executed."
TOO_LATE = "Skipped: the final answer is due now, so this call was not executed."
CUT_OFF = "The reply was cut off at the token limit before the arguments were complete; call again with less."
NO_RESULT = "There is no result of this call."
STOPPED = "This call was not completed: the run was stopped."
WAITING = "This call has not returned yet: it waits for a person."
ELSEWHERE = "The result follows in a user message."
OMITTED = "The beginning of this conversation was left out."


def result_content(result: ToolResult) -> Content:
    """What the model reads of a result."""
    if result.error is not None:
        return f"{TOOL_ERROR}{result.error}"
    output = result.output
    if type(output) is str:
        return output
    # Of a subclass of str, an enum say, the bare text.
    return str.__str__(output) if isinstance(output, str) else to_content(output)


def sent_result(content: Content, name: str, call_id: str) -> tuple[Content, list[JsonObject]]:
    """What a tool message takes of a content, and the other parts, each behind a line that says where it belongs.

    OpenAI's protocol has nothing but text in tool messages; the parts are for a user message behind the results.
    """
    if isinstance(content, str) or not (others := [part for part in content if part.get("type") != "text"]):
        return content, []
    texts = [part for part in content if part.get("type") == "text"]
    is_plain = len(texts) == 1 and texts[0].keys() == {"type", "text"} and isinstance(texts[0]["text"], str)
    labelled: list[JsonObject] = []
    for number, part in enumerate(others, start=1):
        line = f"Media {number} of the result of `{name}` (call `{unsigned_id(call_id)}`):"
        labelled += [{"type": "text", "text": line}, part]
    return (texts[0]["text"] if is_plain else texts or ELSEWHERE), labelled


def fresh_ids(ids: Sequence[str], index: int, used: set[str]) -> list[str]:
    """The ids of one message's calls, with new ones where they are missing or used already; `used` grows."""
    fresh: list[str] = []
    for slot, call_id in enumerate(ids):
        number = slot
        while not call_id or call_id in used:
            call_id, number = f"call_{index}_{number}", number + len(ids)
        used.add(call_id)
        fresh.append(call_id)
    return fresh


def _answered_id(message: Any) -> str | None:
    """The id of the call that a message answers; None where it answers none."""
    if not isinstance(message, dict) or message.get("role") != "tool":
        return None
    return str(message.get("tool_call_id") or "")


def open_calls(history: Sequence[Any]) -> list[tuple[int, list[str]]]:
    """Assistant messages whose calls lack a result: where each stands, and which calls."""
    found: list[tuple[int, list[str]]] = []
    for index, message in enumerate(history):
        wanted = call_ids(message)
        if not wanted:
            continue
        left = Counter(wanted)
        for at in range(index + 1, len(history)):
            later = history[at]
            if isinstance(later, dict) and later.get("role") == "assistant":
                break
            if (answered := _answered_id(later)) is not None and left[answered]:
                left[answered] -= 1
        unanswered: list[str] = []
        for call_id in reversed(wanted):  # of several with one id the first are answered
            if left[call_id]:
                left[call_id] -= 1
                unanswered.append(call_id)
        if unanswered:
            found.append((index, unanswered[::-1]))
    return found


def close_calls(history: list[Message], content: str) -> None:
    """Answer in place every call that has no result."""
    for index, ids in reversed(open_calls(history)):
        behind = index + 1
        while behind < len(history) and _answered_id(history[behind]) is not None:
            behind += 1
        history[behind:behind] = [tool(call_id, content) for call_id in ids]


def find_turn(history: Sequence[Any], message: Message) -> int | None:
    """Where a model's turn stands: the very message, or else a copy, known by its calls."""
    for index in range(len(history) - 1, -1, -1):
        if history[index] is message:
            return index
    ids = set(call_ids(message)) - {""}
    # An id may come again in a later response; a call that has its result is another's.
    for index, unanswered in reversed(open_calls(history) if ids else []):
        if not ids.isdisjoint(unanswered):
            return index
    return None


def where_results_go(history: list[Message], turn: Message) -> int | None:
    """Directly behind their turn, which the user may have moved or copied; None if it is gone, and so are they."""
    check_list(history)
    at = find_turn(history, turn)
    return None if at is None else at + 1


def check_list(history: object) -> None:
    """The user may have put anything there."""
    if not isinstance(history, list):
        raise AcornError(f"`history` must be a list of messages, got `{type(history).__name__}`.")
