"""Text for a terminal, without characters that a terminal interprets, and JSON text.

The text of a model may contain escape sequences that move the cursor and characters that change the reading direction.
The functions in this file remove them, so that they never reach a terminal.
"""

from __future__ import annotations

import re

from pydantic_core import from_json, to_json

from acorn._inside import replace_surrogates, to_compact_json, to_json_data
from acorn.types import is_json_object

# The pattern matches a complete escape sequence. `_CONTROL` removes the first character of an incomplete sequence.
_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b[@-Z\\^_]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_WHITESPACE = re.compile(r"\s+")
_CONTROL_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
"""Characters that are allowed in JSON strings but that a terminal interprets."""


def clean(text: str) -> str:
    """Return a text without the control characters that a terminal interprets. Line breaks remain."""
    text = _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROL.sub("", text.replace("\t", "    ").replace("\u2028", "\n").replace("\u2029", "\n"))


def one_line(text: str, limit: int = 200) -> str:
    """Return a text on one line. If the text is longer than `limit`, `…` replaces its middle."""
    # Cleaning a very long text is slow, and its middle is removed anyway.
    if len(text) > 20 * limit:
        text = f"{text[: 10 * limit]}{text[-10 * limit :]}"
    text = _WHITESPACE.sub(" ", clean(text)).strip()
    if len(text) <= limit:
        return text
    tail = max(0, limit // 4)
    return f"{text[: limit - tail - 1].rstrip()}…{text[len(text) - tail :].lstrip()}"


def end_of(text: str, limit: int) -> str:
    """Return the end of a growing text on one line, with at most `limit` characters."""
    text = _WHITESPACE.sub(" ", clean(text[-2 * limit :])).strip()
    return text if len(text) <= limit else f"…{text[len(text) - limit + 1 :]}"


def call_text(name: str, arguments: str, limit: int = 160) -> str:
    """Format a tool call like a Python call: `search(query="acorns", limit=3)`."""
    try:
        values = from_json(replace_surrogates(arguments) or "{}", allow_partial="trailing-strings")
    except ValueError:
        values = None
    if not is_json_object(values):
        return one_line(f"{name}({arguments})", limit)
    return one_line(f"{name}({', '.join(f'{key}={to_compact_json(value)}' for key, value in values.items())})", limit)


def seconds_text(seconds: float) -> str:
    """Format a duration: `0.21 s`, `3.1 s`, `2 min 5 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes} min {remainder} s" if minutes else f"{remainder} s"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def totals_text(steps: int, tokens: int, cost: float | None, seconds: float, separator: str = " · ") -> str:
    """Format the totals of a run: `2 steps · 1,234 tokens · $0.0012 · 3.1 s`."""
    parts = [plural(steps, "step")] if steps else []  # A run that answers immediately has no steps.
    parts.append(plural(tokens, "token"))
    if cost is not None:
        parts.append(f"${cost:.4f}")
    return separator.join([*parts, seconds_text(seconds)])


def json_text(value: object, *, indent: int | None = None, encoding: str = "utf-8") -> str:
    """Return a value as JSON text.

    Characters that a terminal interprets, or that the encoding does not contain, are escaped.
    """
    data = replace_surrogates(to_json_data(value))
    text = to_json(data, indent=indent, inf_nan_mode="null").decode()
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        text = to_json(data, indent=indent, inf_nan_mode="null", ensure_ascii=True).decode()
    return _CONTROL_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
