"""Noticing that a run goes in circles.

Each step leaves a mark: what was called and what came of it, and what went wrong if everything did. Three
equal marks in a row, two in turn, or the same error three times mean that nothing new will come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from acorn._loop.messages import result_content
from acorn.types import ToolCall, ToolResult

NOTICE = (
    "You are repeating yourself: the last calls were the same and gave the same. Try something else, or finish "
    "with what you have."
)

Mark = tuple[str, str]
"""Of the calls with their results, and of the errors; '' where there is nothing to compare."""
NO_MARK: Mark = ("", "")


def mark(calls: Sequence[ToolCall], results: Sequence[ToolResult], repeatable: Collection[str]) -> Mark:
    """The mark of one step; calls of repeatable tools leave none."""
    counted = {call.id: call for call in calls if call.name not in repeatable}
    if not counted:
        return NO_MARK
    done = [
        f"{call.name} {sorted(call.arguments.items(), key=repr) or call.raw_arguments}" for call in counted.values()
    ]
    came = [result for result in results if result.id in counted]
    errors = [str(result.error) for result in came if result.error is not None]
    failed = _digest(errors) if errors and len(errors) == len(came) else ""
    return _digest(done + [str(result_content(result)) for result in came]), failed


def goes_in_circles(marks: Sequence[Mark]) -> bool:
    """Whether the last steps repeat each other."""
    if len(marks) < 3:
        return False
    (call, error), before, earlier = marks[-1], marks[-2], marks[-3]
    if error and error == before[1] == earlier[1]:
        return True
    if not call or call != earlier[0]:
        return False
    return call == before[0] or (len(marks) > 3 and bool(before[0]) and before[0] == marks[-4][0])


def _digest(texts: Sequence[str]) -> str:
    data = "\0".join(texts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8).hexdigest()
