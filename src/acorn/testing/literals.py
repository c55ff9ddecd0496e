"""Python literals and names for the data of a record. Its text always becomes string literals, never code."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable

from pydantic_core import from_json

from acorn._inside import to_compact_json
from acorn.types import JsonObject, is_json_list, is_json_object, is_list_or_tuple


def literal(value: object, redact: Callable[[str], str] = str) -> str:
    """Write JSON data as a Python expression. `redact` removes secrets from every text."""
    if is_json_object(value):
        items = (f"{literal(key, redact)}: {literal(item, redact)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if is_list_or_tuple(value):
        return f"[{', '.join(literal(item, redact) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    # `str.__str__`, because a subclass of `str` may return another text.
    return repr(redact(str.__str__(value) if isinstance(value, str) else str(value)))


def is_identifier(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def is_keyword_argument(name: object) -> bool:
    """Return whether a name can be a keyword argument. Python normalizes names that are not ASCII."""
    return isinstance(name, str) and name.isascii() and is_identifier(name)


def split_class_path(path: str) -> tuple[str | None, str]:
    """Split `package.file:Class` into module and class. The module is None if it cannot be imported."""
    module, _, name = path.partition(":")
    is_class = is_identifier(name)
    is_module = bool(module) and all(map(is_identifier, module.split("."))) and module != "__main__"
    return (module if is_class and is_module else None), (name if is_class else "Agent")


def read_arguments(text: str) -> JsonObject | None:
    """Read the JSON arguments of a call; None if keyword arguments would not give exactly the same text."""
    try:
        arguments: object = from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
    if not is_json_object(arguments) or not all(map(is_keyword_argument, arguments)) or "_id" in arguments:
        return None
    return arguments if to_compact_json(arguments) == text and is_exact(arguments) else None


def read_approval(text: str) -> str | bool | JsonObject:
    """Read the answer to a request for approval: a boolean, a JSON object with other arguments, or a text."""
    try:
        value: object = from_json(text)
    except ValueError:
        return text
    return value if isinstance(value, bool) or is_json_object(value) else text


def is_exact(value: object) -> bool:
    """Return whether JSON data is the same after it is written and read. NaN and lone surrogates are not."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if is_json_object(value):
        return all(is_exact(key) and is_exact(item) for key, item in value.items())
    return all(map(is_exact, value)) if is_json_list(value) else True
