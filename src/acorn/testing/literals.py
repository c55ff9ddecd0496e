"""Values as Python writes them, where that says the same, and names where they are names: whatever a record says, it
stays data."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from acorn._inside import to_compact_json
from acorn.types import JsonObject, is_json_list, is_json_object, is_list_or_tuple


def literal(plain: Any, hide: Callable[[str], str] = str) -> str:
    """Plain data as Python writes it; `hide` takes what is secret out of every text."""
    if is_json_object(plain):
        return f"{{{', '.join(f'{literal(key, hide)}: {literal(value, hide)}' for key, value in plain.items())}}}"
    if is_list_or_tuple(plain):
        return f"[{', '.join(literal(each, hide) for each in plain)}]"
    if isinstance(plain, float) and not math.isfinite(plain):
        return f"float({str(plain)!r})"
    if plain is None or isinstance(plain, bool | int | float):
        return repr(plain)
    return repr(hide(str.__str__(plain) if isinstance(plain, str) else str(plain)))


def is_identifier(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def is_name(text: Any) -> bool:
    """Whether it can be the name of an argument; Python would spell others in its own way."""
    return isinstance(text, str) and text.isascii() and is_identifier(text)


def arguments_of(text: str) -> JsonObject | None:
    """The arguments where they can be written as Python's, to the letter."""
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
    if not is_json_object(found) or not all(map(is_name, found)) or "_id" in found:
        return None
    return found if to_compact_json(found) == text and is_exact(found) else None


def is_exact(plain: Any) -> bool:
    """Whether a value is written and read as the same: what is no number, nor half a letter, is not."""
    if isinstance(plain, float):
        return math.isfinite(plain)
    if isinstance(plain, str):
        return not any("\ud800" <= letter <= "\udfff" for letter in plain)
    if is_json_object(plain):
        return all(is_exact(key) and is_exact(value) for key, value in plain.items())
    return all(map(is_exact, plain)) if is_json_list(plain) else True
