"""Texts that a server wrote: what nobody can see in them is removed, and what is too long is cut and says so."""

from __future__ import annotations

import re
from typing import Any

# Control characters but tab and newline, halves of surrogate pairs, and what leaves no mark on the page: joiners,
# fillers, changes of direction, selectors of variants, and the tags in which whole sentences can be hidden.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def clean(text: str) -> str:
    """The text as a person would see it."""
    return _UNSEEN.sub("", text)


def cut(text: str, limit: int) -> str:
    """The text, or as much of it as is allowed."""
    return text if len(text) <= limit else f"{text[:limit]}\n[cut off after {limit} of {len(text)} characters]"


def cleaned(value: Any) -> Any:
    """Plain data with all of its texts cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list) else value


def has_unseen(text: str) -> bool:
    """Whether something in it cannot be seen."""
    return _UNSEEN.search(text) is not None
