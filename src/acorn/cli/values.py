"""From the texts of options to the values that Pydantic will judge.

Only what JSON tells apart is decided here: a choice, an object, a list, a number beside text. Whether a
value fits its field, and what `5` or `2024-05-01` becomes there, is Pydantic's to say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

from acorn._json import shorten
from acorn.cli.ends import CommandError
from acorn.cli.schema import Node

_NOTHING: Any = object()


def read(texts: Sequence[str | bool], node: Node, option: str) -> list[Any]:
    """The value that an option was given, once or several times; where it can be read in two ways, both."""
    if node.takes_several and (len(texts) > 1 or node.is_only_list):
        return [_read_list(texts, node, option)]
    # As everywhere on a command line, the last one counts.
    last = texts[-1]
    if isinstance(last, bool):
        return [last]
    value = _read_one(last, node, option)
    if not node.takes_several or not isinstance(value, str):
        return [value]
    # `5` for `int | list[str]`: a number, if Pydantic takes it for one, and otherwise a list of one.
    return [value, [_read_one(last, node.item(0), option)]]


def _read_list(texts: Sequence[str | bool], node: Node, option: str) -> list[Any] | None:
    if len(texts) == 1:
        if texts[0] == "null" and "null" in node.kinds and not node.item(0).takes_text:
            return None
        whole = _json(str(texts[0]), "[")
        holds_lists = "array" in node.item(0).kinds
        if isinstance(whole, list) and (not holds_lists or all(isinstance(item, list) for item in whole)):
            return whole
    return [_read_one(str(text), node.item(at), option) for at, text in enumerate(texts)]


def _read_one(text: str, node: Node, option: str) -> Any:
    choice = _choice(text, node)
    if choice is not _NOTHING:
        return choice
    for kind, opening in (("object", "{"), ("array", "[")):
        if kind in node.kinds or not node.kinds:
            found = _json(text, opening)
            if found is not _NOTHING:
                return found
    if node.kinds and node.kinds <= {"object", "array", "null"}:
        return _structure(text, node, option)
    scalar = _scalar(text, node)
    return text if scalar is _NOTHING else scalar


def _choice(text: str, node: Node) -> Any:
    """`2` for `Literal[1, 2]`, which would refuse the text."""
    for value in node.choices or ():
        if text == (value if isinstance(value, str) else json.dumps(value)):
            return value
    return _NOTHING


def _scalar(text: str, node: Node) -> Any:
    """A number, a truth value or null, where the field makes a difference between these and text."""
    found = _json(text)
    if found is None:
        return None if "null" in node.kinds and not node.takes_text else _NOTHING
    if not node.kinds:
        return found
    if isinstance(found, bool):
        return found if "boolean" in node.kinds else _NOTHING
    # A number that would not be written the same way again, `2.10`, may be a Decimal's or really text.
    is_number = isinstance(found, int | float) and node.takes_text and json.dumps(found) == text
    fits = "number" in node.kinds or ("integer" in node.kinds and isinstance(found, int))
    return found if is_number and fits else _NOTHING


def _structure(text: str, node: Node, option: str) -> Any:
    """What can only be JSON."""
    try:
        found = json.loads(text)
    except ValueError as error:
        parts = [f"`{option}.{name.replace('_', '-')} ...`" for name in list(node.fields)[:2]]
        hint = f" or its parts ({', '.join(parts)})" if parts else ""
        reason = f": {error}" if text.lstrip()[:1] in ("{", "[") else ""
        what = node.words.removesuffix(" or null")
        raise CommandError(f"`{option}` takes JSON ({what}){hint}, got {shorten(repr(text), 80)}{reason}") from error
    return found


def _json(text: str, opening: str = "") -> Any:
    if not text.lstrip().startswith(opening):
        return _NOTHING
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING


def put(values: dict[str, Any], path: Sequence[str | int], value: Any, option: str) -> None:
    """Set a part of the input, making room for it on the way."""
    here: Any = values
    for part, following in pairwise(path):
        inner = _inside(here, part, option)
        if not isinstance(inner, list if isinstance(following, int) else dict):
            inner = [] if isinstance(following, int) else {}
            _set(here, part, inner, option)
        here = inner
    _set(here, path[-1], value, option)


def _inside(here: Any, part: str | int, option: str) -> Any:
    if isinstance(here, dict):
        return here.get(part)
    return here[part] if isinstance(part, int) and part < len(here) else None


def _set(here: Any, part: str | int, value: Any, option: str) -> None:
    if isinstance(here, list) and isinstance(part, int) and part >= len(here):
        if part > len(here):
            raise CommandError(f"`{option}` leaves out item {len(here)}; items are counted from 0, without gaps")
        here.append(value)
    else:
        cast(Any, here)[part] = value
