"""The notation itself: literals, choices and repetitions in GBNF."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def literal(text: str) -> str:
    """Exactly this text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def json_literal(value: Any) -> str:
    """Exactly this value, as the grammar writes JSON."""
    return literal(json.dumps(value, ensure_ascii=False))


def choice(options: Iterable[str]) -> str:
    """One of these; the same option is not written twice."""
    known = list(dict.fromkeys(options))
    return known[0] if len(known) == 1 else f"({' | '.join(known)})"


def repeat(item: str, low: int, high: int) -> str:
    """An atom or a rule from `low` to `high` times in a row; "" for never."""
    if high == 0:
        return ""
    if (low, high) == (1, 1):
        return item
    return f"{item}?" if (low, high) == (0, 1) else f"{item}{{{low},{high}}}"


def sequence(*parts: str) -> str:
    """One after the other; empty parts fall away."""
    return " ".join(part for part in parts if part) or '""'
