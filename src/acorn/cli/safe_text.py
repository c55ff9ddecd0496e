"""Text and JSON of models and users, made safe for a terminal, and short enough for a line.

A model may write anything: escape sequences that move the cursor, marks that turn the reading direction.
Nothing of the kind reaches a terminal from here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import from_json

from acorn._json import compact, to_plain, whole_text

# An escape sequence as a whole, where it can be recognized; otherwise its first character alone.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b[@-Z\\^_]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_BLANKS = re.compile(r"\s+")
_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
"""What JSON may hold and a terminal would act upon."""


def clean(text: str) -> str:
    """The text without anything that a terminal would act upon; line breaks stay."""
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROL.sub("", text.replace("\t", "    ").replace("\u2028", "\n").replace("\u2029", "\n"))


def one_line(text: str, limit: int = 200) -> str:
    """The text on one line, its middle left out where it is too long."""
    # The middle of a very long text is never seen; cleaning it would only cost time.
    if len(text) > 20 * limit:
        text = f"{text[: 10 * limit]}{text[-10 * limit :]}"
    text = _BLANKS.sub(" ", clean(text)).strip()
    if len(text) <= limit:
        return text
    tail = max(0, limit // 4)
    return f"{text[: limit - tail - 1].rstrip()}…{text[len(text) - tail :].lstrip()}"


def ending(text: str, limit: int) -> str:
    """The end of a growing text on one line."""
    text = _BLANKS.sub(" ", clean(text[-2 * limit :])).strip()
    return text if len(text) <= limit else f"…{text[len(text) - limit + 1 :]}"


def call_text(name: str, arguments: str, limit: int = 160) -> str:
    """A call the way Python writes it: `search(query="acorns", limit=3)`."""
    try:
        values = from_json(whole_text(arguments) or "{}", allow_partial="trailing-strings")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return one_line(f"{name}({arguments})", limit)
    return one_line(f"{name}({', '.join(f'{key}={compact(value)}' for key, value in values.items())})", limit)


def seconds_text(seconds: float) -> str:
    """A time that a reader takes in at a glance."""
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def totals_text(steps: int, tokens: int, cost: float | None, seconds: float, between: str = " · ") -> str:
    """What a run has come to: `2 steps · 1,234 tokens · $0.0012 · 3.1 s`."""
    parts = [plural(steps, "step")] if steps else []  # an answer at once is no step
    parts.append(plural(tokens, "token"))
    if cost is not None:
        parts.append(f"${cost:.4f}")
    return between.join([*parts, seconds_text(seconds)])


def json_text(value: Any, *, indent: int | None = None, encoding: str = "utf-8") -> str:
    """JSON in which every character is one that a terminal shows, and the encoding has."""
    plain = whole_text(_finite(to_plain(value)))
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(plain, ensure_ascii=False, indent=indent, separators=separators)
    text = _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return json.dumps(plain, indent=indent, separators=separators)
    return text


def _finite(plain: Any) -> Any:
    """NaN and the infinities are no JSON."""
    if isinstance(plain, float) and (plain != plain or plain in (float("inf"), float("-inf"))):
        return None
    if isinstance(plain, dict):
        return {key: _finite(item) for key, item in plain.items()}
    return [_finite(item) for item in plain] if isinstance(plain, list) else plain
