"""Example values that fit a JSON Schema, for the tool calls and answers of the test model `AnyModel`.

The search yields several candidates for a schema, and the simplest candidate comes first. A caller may need a later
candidate, for example for a list whose items must differ, or to end a recursion. The same schema always leads to the
same values. A JSON Schema does not contain the rules of user-defined validators, so a validator may reject an example
value.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice, product
from typing import Any

from acorn._formats.schema.generate import JsonSchema, inline_refs, resolve_ref
from acorn._formats.schema.regex import (
    ENDLESS,
    Alternation,
    CharacterSet,
    Concatenation,
    PatternNode,
    Repetition,
    UnsupportedPatternError,
    read_pattern,
    to_python_pattern,
)
from acorn.errors import AcornError
from acorn.types import JsonObject, is_json_list, is_json_object

_MAX_CANDIDATES = 64
_MAX_DEPTH = 60


def example_value(schema: JsonSchema, where: str) -> Any:
    """Return the simplest value that fits a schema.

    `where` is the name of the tool or output that needs the value. The error message contains this name.
    """
    search = _Search(schema)
    for value in search.candidates(schema, ""):
        return value
    raise AcornError(
        f"`AnyModel` cannot generate a value for `{search.failed[0]}` of `{where}`: no example fits the schema "
        f"{search.failed[1]}. Add `examples` to the field, or use `ScriptedModel`."
    )


class _Search:
    """A search for example values that fit a schema and the schemas nested inside this schema."""

    def __init__(self, top: JsonSchema) -> None:
        self.top = top
        self.failed = ("output", "{}")
        """The path and the schema of the last field for which the search found no value."""
        self._open_refs: list[str] = []
        """The references that the search currently follows. A repeated reference would cause an endless recursion."""

    def candidates(self, schema: object, path: str) -> Iterator[Any]:
        """Yield example values that fit a schema. If no value fits, store `path` in `failed` for the error message."""
        has_candidates = False
        for value in islice(self._candidates_of_any(schema, path), _MAX_CANDIDATES):
            has_candidates = True
            yield value
        if not has_candidates and len(path) >= len(self.failed[0]) * (self.failed[0] != "output"):
            self.failed = (path or "output", json.dumps(schema)[:200])

    def _candidates_of_any(self, schema: object, path: str) -> Iterator[Any]:
        if schema is False or len(self._open_refs) > _MAX_DEPTH:
            return
        if not is_json_object(schema):
            yield "text"
            return
        yield from schema.get("examples") or ()
        if "const" in schema:
            yield schema["const"]
        elif "enum" in schema:
            yield from schema["enum"]
        elif "$ref" in schema:
            yield from self._candidates_of_ref(schema, path)
        elif "allOf" in schema:
            yield from self.candidates(_merge(schema, schema["allOf"], self.top), path)
        elif "anyOf" in schema or "oneOf" in schema:
            yield from self._candidates_of_union(schema, path)
        else:
            kind = schema.get("type", _implied_type(schema))
            for name in kind if is_json_list(kind) else [kind]:
                yield from self._candidates_of_type(str(name), schema, path)

    def _candidates_of_ref(self, schema: JsonSchema, path: str) -> Iterator[Any]:
        ref = schema["$ref"]
        if ref in self._open_refs:
            return
        siblings = {key: value for key, value in schema.items() if key not in ("$ref", "default", "examples")}
        self._open_refs.append(ref)
        try:
            # Collect all values now: if a caller stopped a generator early, the reference would stay in `_open_refs`.
            values = list(
                islice(self.candidates({**resolve_ref(ref, self.top), **siblings}, path), _MAX_CANDIDATES // 8)
            )
        finally:
            self._open_refs.remove(ref)
        yield from values

    def _candidates_of_union(self, schema: JsonSchema, path: str) -> Iterator[Any]:
        options = schema.get("anyOf") or schema["oneOf"]
        kinds = [option.get("type") for option in options if is_json_object(option)]
        # A Decimal is a union of a number and a string, and the pattern of the string limits the digits.
        if kinds == ["number", "string"] and "pattern" in options[1]:
            fitting = (n for n in _numbers(options[0], whole=False) if matches_pattern(options[1]["pattern"], f"{n}"))
            yield from islice(fitting, _MAX_CANDIDATES // 2)
        siblings = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "discriminator")}
        for option in options:
            yield from self.candidates(
                _merge(siblings, [option], self.top) if _has_constraints(siblings) else option, path
            )

    def _candidates_of_type(self, kind: str, schema: JsonSchema, path: str) -> Iterator[Any]:
        match kind:
            case "null":
                yield None
            case "boolean":
                yield from (True, False)
            case "integer":
                yield from _numbers(schema, whole=True)
            case "number":
                yield from _numbers(schema, whole=False)
            case "array":
                yield from self._arrays(schema, path)
            case "object":
                yield from self._objects(schema, path)
            case _:
                yield from self._strings(schema, path)

    def _strings(self, schema: JsonSchema, path: str) -> Iterator[Any]:
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if schema.get("contentMediaType") == "application/json":
            for inner in self.candidates(schema.get("contentSchema", {}), path):
                yield json.dumps(inner)
            return
        pattern = schema.get("pattern")
        samples = FORMATS.get(schema.get("format", ""), ())
        if schema.get("contentEncoding", "").startswith("base64"):
            samples = ("YWJj", "YWJjZA==")
        for text in samples or example_texts(pattern, low, high):
            is_match = pattern is None or matches_pattern(pattern, text)
            if is_match and len(text) >= low and (high is None or len(text) <= high):
                yield text

    def _arrays(self, schema: JsonSchema, path: str) -> Iterator[Any]:
        first, low = schema.get("prefixItems", []), int(schema.get("minItems", 0))
        high = int(schema.get("maxItems", ENDLESS))
        head: list[Any] = []
        for index, item in enumerate(first if low else first[:high]):
            head.append(next(self.candidates(item, f"{path}[{index}]"), _NONE))
        if _NONE in head:
            return
        missing = max(low, min(high, 1)) - len(head)
        tail = self._items(schema, missing, f"{path}[]") if missing > 0 else []
        if tail is None and low <= len(head):
            tail = []  # The search found no item, for example because of a recursion, but the schema requires no item.
        if tail is None:
            return
        yield head + tail
        if low <= len(head) and tail:
            yield head

    def _items(self, schema: JsonSchema, count: int, path: str) -> list[Any] | None:
        """Return a list of `count` items that fit the array schema, or None if the search finds too few items."""
        items: list[Any] = []
        for value in self.candidates(schema.get("items", {}), path):
            if not schema.get("uniqueItems"):
                return [value] * count
            if value not in items:
                items.append(value)
            if len(items) == count:
                return items
        return None

    def _objects(self, schema: JsonSchema, path: str) -> Iterator[Any]:
        properties = schema.get("properties", {})
        result: JsonObject = {}
        names = list(schema.get("required", []))
        min_count = int(schema.get("minProperties", 0))
        names += [name for name in properties if name not in names][: max(0, min_count - len(names))]
        members: Iterable[tuple[str, object]] = [(name, properties.get(name, {})) for name in names]
        if len(names) < min_count:
            members = chain(members, self._additional_keys(schema, path))
        for name, inner in members:
            value = next(self.candidates(inner, _join_path(path, name)), _NONE)
            if value is _NONE:
                return
            result.setdefault(name, value)
            if len(result) >= max(min_count, len(names)):
                break
        if len(result) < min_count:
            return
        yield result
        for name in result:  # These further candidates are for callers that need several different objects.
            for value in islice(self.candidates(properties.get(name, {}), _join_path(path, name)), 1, None):
                yield {**result, name: value}

    def _additional_keys(self, schema: JsonSchema, path: str) -> Iterator[tuple[str, object]]:
        """Yield (key, schema of the value) for keys that the schema allows in addition to its `properties`."""
        for pattern, inner in schema.get("patternProperties", {}).items():
            for name in example_texts(pattern, 1, None):
                yield name, inner
        inner = schema.get("additionalProperties", "patternProperties" not in schema)
        if inner is False:
            return
        names = schema.get("propertyNames", {"type": "string", "minLength": 1})
        for name in self.candidates({"type": "string", **names} if is_json_object(names) else {}, f"{path}.(key)"):
            yield str(name), inner


_NONE: Any = object()


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _implied_type(schema: JsonSchema) -> str:
    """Return the JSON type of a schema that has no `type` keyword. Its other keywords determine the type."""
    if {"properties", "required", "additionalProperties", "patternProperties"} & schema.keys():
        return "object"
    if {"items", "prefixItems", "minItems"} & schema.keys():
        return "array"
    is_number = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"} & schema.keys()
    return "number" if is_number else "string"


def _has_constraints(schema: JsonSchema) -> bool:
    return bool(schema.keys() - {"title", "description", "default", "examples", "deprecated", "$defs"})


def _merge(schema: JsonSchema, others: list[object], top: JsonSchema) -> JsonSchema:
    """Combine a schema with other schemas, so that a value that fits the result fits all of them.

    `top` is the complete schema, which contains the targets of references.
    """
    merged = {key: value for key, value in schema.items() if key not in ("allOf", "examples")}
    for node in others:
        other = inline_refs(node, top) if is_json_object(node) else {}
        properties = {**merged.get("properties", {}), **other.get("properties", {})}
        required = [*merged.get("required", []), *other.get("required", [])]
        merged = {**merged, **other}
        if properties:
            merged["properties"] = properties
        if required:
            merged["required"] = list(dict.fromkeys(required))
    return merged


_COMPARISONS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
    "multipleOf": lambda number, step: number % step == 0,
}


def _numbers(schema: JsonSchema, *, whole: bool) -> Iterator[int | float]:
    """Yield numbers within the bounds of a schema, beginning with the simplest number."""
    rules = {name: Decimal(str(schema[name])) for name in _COMPARISONS if isinstance(schema.get(name), int | float)}
    for number in dict.fromkeys(_number_guesses(rules, whole=whole)):
        is_fitting = all(compare(number, rules[name]) for name, compare in _COMPARISONS.items() if name in rules)
        if is_fitting and not (whole and number % 1):
            yield int(number) if whole or number == int(number) else float(number)


def _number_guesses(rules: Mapping[str, Decimal], *, whole: bool) -> Iterator[Decimal]:
    """Yield numbers that may fit the rules of a schema. The caller must check each number."""
    yield from (Decimal(1), Decimal(0))
    low = max((rules[name] for name in ("minimum", "exclusiveMinimum") if name in rules), default=None)
    high = min((rules[name] for name in ("maximum", "exclusiveMaximum") if name in rules), default=None)
    unit = rules.get("multipleOf", Decimal(1))
    start = low if low is not None else Decimal(0) if high is None else high - unit * _MAX_CANDIDATES
    first = (start / unit).to_integral_value() * unit
    yield from (first + unit * count for count in range(-1, 2 * _MAX_CANDIDATES))
    if not whole:
        low = low if low is not None else Decimal(0) if high is None else high - 1
        size = (low + 1 if high is None else high) - low
        yield from (low + size * Decimal(part) for part in ("0", "1", "0.5", "0.1", "0.25", "0.9", "0.01"))


# Example texts for string formats and regular expressions.

_LETTERS = "a1A_ -.@/é234567890bcdefBCDEF"

FORMATS: dict[str, tuple[str, ...]] = {
    "date": ("2024-01-31", "2999-01-31"),
    "date-time": ("2024-01-31T12:00:00Z", "2024-01-31T12:00:00", "2999-01-31T12:00:00Z"),
    "time": ("12:00:00Z", "12:00:00"),
    "duration": ("PT1H", "PT2H"),
    "email": ("user@example.com", "other@example.com"),
    "idn-email": ("user@example.com",),
    "name-email": ("User <user@example.com>",),
    "uri": ("https://example.com/", "https://example.com/other"),
    "uri-reference": ("/path",),
    "multi-host-uri": ("postgresql://user:word@localhost:5432/app",),
    "hostname": ("example.com",),
    "ipv4": ("127.0.0.1", "127.0.0.2"),
    "ipv6": ("::1", "::2"),
    "ipv4network": ("192.0.2.0/24",),
    "ipv6network": ("2001:db8::/32",),
    "ipv4interface": ("192.0.2.1/24",),
    "ipv6interface": ("2001:db8::1/32",),
    "ipvanyaddress": ("127.0.0.1",),
    "ipvanyinterface": ("192.0.2.1/24",),
    "ipvanynetwork": ("192.0.2.0/24",),
    "path": ("text",),
    "file-path": (__file__,),
    "directory-path": (".",),
    "new-path": ("no-such-file",),
    "regex": ("a",),
    "color": ("red", "blue"),
    "json-string": ("{}",),
    "base64": ("YWJj",),
    "base64url": ("YWJj",),
    "uuid": ("12345678-1234-4234-9234-123456789abc", "22345678-1234-4234-9234-123456789abc"),
    **{f"uuid{version}": (f"12345678-1234-{version}234-9234-123456789abc",) for version in range(1, 9)},
}


def matches_pattern(pattern: str, text: str) -> bool:
    """Return True if a text matches the regular expression of a JSON Schema.

    The result is also True if Python cannot compile the regular expression, because the text then cannot be checked.
    """
    try:
        return re.search(to_python_pattern(pattern), text) is not None
    except re.error:
        return True


def example_texts(pattern: str | None, low: int, high: int | None) -> Iterator[str]:
    """Yield texts of `low` to `high` characters that match a regular expression, beginning with the simplest text.

    The function yields nothing if it does not support the regular expression.
    """
    seen: list[str] = []
    for text in _simple_texts(low, high) if pattern is None else _texts_for_pattern(pattern, low):
        has_length = len(text) >= low and (high is None or len(text) <= high)
        if has_length and text not in seen and (pattern is None or matches_pattern(pattern, text)):
            seen.append(text)
            yield text


def _simple_texts(low: int, high: int | None) -> Iterator[str]:
    for number in range(100):
        text = f"text{number or ''}".ljust(low, "x")
        yield text if high is None or len(text) <= high else str(number).zfill(high)[:high]


def _texts_for_pattern(pattern: str, low: int) -> Iterator[str]:
    try:
        options = [option.node for option in read_pattern(pattern, is_lenient=True)]
    except UnsupportedPatternError:
        return
    extra_repetitions = [0, 1, 2, 3, *([low] if low > 3 else [])]
    for extra, choice, letter in product(extra_repetitions, range(4), range(len(_LETTERS))):
        writer = _PatternWriter(extra, choice, _LETTERS[letter:] + _LETTERS[:letter])
        text = writer.write(options[choice % len(options)])
        yield text
        if len(text) < low:
            yield text + "a" * (low - len(text))
            yield "a" * (low - len(text)) + text


@dataclass(frozen=True)
class _PatternWriter:
    """A generator of one text for a regular expression. The caller checks that the text matches."""

    extra: int
    """The number of repetitions above the minimum."""
    choice: int
    """The index of the alternative at each `|`."""
    letters: str
    """The letters to use, beginning with the preferred letter."""

    def write(self, node: PatternNode) -> str:
        match node:
            case CharacterSet(allowed):
                return next((letter for letter in self.letters if letter in allowed), min(allowed, default=""))
            case Concatenation(parts):
                return "".join(map(self.write, parts))
            case Alternation(options):
                return self.write(options[self.choice % len(options)])
            case Repetition(part, low, high):
                return self.write(part) * min(high, low + self.extra)
