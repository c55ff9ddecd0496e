"""Example values that fit a JSON Schema, for the tool calls and answers of the test model `AnyModel`.

A schema has several numbered examples, and number 0 is the simplest. A list whose items must differ needs several
examples of one schema. The same schema always leads to the same values. A JSON Schema does not contain the rules of
user-defined validators, so a validator may reject an example value.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import islice, product
from typing import Any, TypeVar

from acorn._formats.schema import regex
from acorn._formats.schema.generate import JsonSchema, implied_type, inline_refs, resolve_ref
from acorn.errors import AcornError
from acorn.types import JsonObject, is_json_list, is_json_object

T = TypeVar("T")

_MAX_EXAMPLES = 64
_MAX_DEPTH = 60


def example_value(schema: JsonSchema, where: str) -> Any:
    """Return the simplest value that fits a schema.

    `where` is the name of the tool or output that needs the value. The error message contains this name.
    """
    try:
        return _Examples(schema).value(schema, "", 0)
    except _NoExampleError as error:
        wrong, path = error.args
        raise AcornError(
            f"`AnyModel` cannot generate a value for `{path or 'output'}` of `{where}`: no example fits the "
            f"schema {json.dumps(wrong)[:200]}. Add `examples` to the field, or use `ScriptedModel`."
        ) from None


class _NoExampleError(Exception):
    """Raised with a schema that no example fits, and with the dotted path of the field that has the schema."""


class _Examples:
    """A generator of example values that fit a schema and the schemas nested inside this schema."""

    def __init__(self, top: JsonSchema) -> None:
        self.top = top
        self._open_refs: list[str] = []
        """The references that the generator currently follows. A repeated reference would cause endless recursion."""

    def value(self, schema: object, path: str, number: int) -> Any:
        """Return an example value for the field `path`. Different numbers lead to different values, if possible."""
        if schema is False or len(self._open_refs) > _MAX_DEPTH:
            raise _NoExampleError(schema, path)
        if not is_json_object(schema):
            return "text"
        examples: list[Any] = schema.get("examples") or []
        if number < len(examples):
            return examples[number]
        number -= len(examples)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return _pick(schema["enum"], number, schema, path)
        if "$ref" in schema:
            return self._value_of_ref(schema, path, number)
        if "allOf" in schema:
            return self.value(_merge(schema, schema["allOf"], self.top), path, number)
        if "anyOf" in schema or "oneOf" in schema:
            return self._value_of_union(schema, path, number)
        kind = schema.get("type", implied_type(schema) or "string")
        if is_json_list(kind):
            return self._value_of_any([{**schema, "type": name} for name in kind], path, number)
        return self._value_of_type(str(kind), schema, path, number)

    def _value_of_ref(self, schema: JsonSchema, path: str, number: int) -> Any:
        ref = schema["$ref"]
        if ref in self._open_refs:
            raise _NoExampleError(schema, path)
        siblings = {key: value for key, value in schema.items() if key not in ("$ref", "default", "examples")}
        self._open_refs.append(ref)
        try:
            return self.value({**resolve_ref(ref, self.top), **siblings}, path, number)
        finally:
            self._open_refs.pop()

    def _value_of_union(self, schema: JsonSchema, path: str, number: int) -> Any:
        options = schema.get("anyOf") or schema["oneOf"]
        kinds = [option.get("type") for option in options if is_json_object(option)]
        # A Decimal is a union of a number and a string, and the pattern of the string limits the digits.
        if kinds == ["number", "string"] and "pattern" in options[1]:
            pattern = options[1]["pattern"]
            numbers = (n for n in _numbers(options[0], whole=False) if matches_pattern(pattern, f"{n}"))
            return _pick(numbers, number, schema, path)
        siblings = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "discriminator")}
        if siblings.keys() - {"title", "description", "default", "examples", "deprecated", "$defs"}:
            options = [_merge(siblings, [option], self.top) for option in options]
        return self._value_of_any(options, path, number)

    def _value_of_any(self, options: list[Any], path: str, number: int) -> Any:
        """Return an example for one of several schemas. If a schema has no example, continue with the next schema."""
        count = len(options)
        failure = _NoExampleError(options, path)
        for index in range(number, number + count):
            try:
                return self.value(options[index % count], path, number // count)
            except _NoExampleError as error:
                failure = error
        raise failure

    def _value_of_type(self, kind: str, schema: JsonSchema, path: str, number: int) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                return number % 2 == 0
            case "integer" | "number":
                return _pick(_numbers(schema, whole=kind == "integer"), number, schema, path)
            case "array":
                return self._array(schema, path, number)
            case "object":
                return self._object(schema, path, number)
            case _ if schema.get("contentMediaType") == "application/json":
                return json.dumps(self.value(schema.get("contentSchema", {}), path, number))
            case _:
                return _pick(_texts(schema), number, schema, path)

    def _array(self, schema: JsonSchema, path: str, number: int) -> list[Any]:
        prefix, low = schema.get("prefixItems", []), int(schema.get("minItems", 0))
        high = int(schema.get("maxItems", regex.ENDLESS))
        items = [
            self.value(item, f"{path}[{index}]", number) for index, item in enumerate(prefix if low else prefix[:high])
        ]
        try:
            return items + self._items(schema, max(low, min(high, 1)) - len(items), f"{path}[]", number)
        except _NoExampleError:
            if low <= len(items):  # The items may be recursive, but the schema requires no further item.
                return items
            raise

    def _items(self, schema: JsonSchema, count: int, path: str, number: int) -> list[Any]:
        """Return a list of `count` items that fit the array schema. They differ if the schema requires it."""
        item = schema.get("items", {})
        if count > 0 and not schema.get("uniqueItems"):
            return [self.value(item, path, number)] * count
        items: list[Any] = []
        for item_number in range(number, number + _MAX_EXAMPLES):
            if len(items) >= count:
                return items
            value = self.value(item, path, item_number)
            if value not in items:
                items.append(value)
        raise _NoExampleError(schema, path.removesuffix("[]"))

    def _object(self, schema: JsonSchema, path: str, number: int) -> JsonObject:
        properties = schema.get("properties", {})
        names = list(schema.get("required", []))
        missing = int(schema.get("minProperties", 0)) - len(names)
        names += [name for name in properties if name not in names][: max(0, missing)]
        result = {name: self.value(properties.get(name, {}), _join_path(path, name), number) for name in names}
        for key_number in range(number, number + _MAX_EXAMPLES):
            if len(result) >= int(schema.get("minProperties", 0)):
                return result
            name, inner = self._additional_key(schema, path, key_number)
            result.setdefault(name, self.value(inner, _join_path(path, name), number))
        raise _NoExampleError(schema, path)

    def _additional_key(self, schema: JsonSchema, path: str, number: int) -> tuple[str, object]:
        """Return a key that the schema allows in addition to its `properties`, and the schema of its value."""
        for pattern, inner in schema.get("patternProperties", {}).items():
            return _pick(example_texts(pattern, 1, None), number, schema, path), inner
        inner = schema.get("additionalProperties", True)
        if inner is False:
            raise _NoExampleError(schema, path)
        names = schema.get("propertyNames", {"minLength": 1})
        key_schema = {"type": "string", **names} if is_json_object(names) else names
        return str(self.value(key_schema, f"{path}.(key)", number)), inner


def _pick(values: Iterable[T], number: int, schema: JsonSchema, path: str) -> T:
    """Return the value with a number. If there are fewer values, start again with the first value."""
    found = list(islice(values, number + 1))
    if not found:
        raise _NoExampleError(schema, path)
    return found[number % len(found)]


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


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
    low = max((rules[name] for name in ("minimum", "exclusiveMinimum") if name in rules), default=None)
    high = min((rules[name] for name in ("maximum", "exclusiveMaximum") if name in rules), default=None)
    unit = rules.get("multipleOf", Decimal(1))
    start = low if low is not None else Decimal(0) if high is None else high - unit * _MAX_EXAMPLES
    first = (start / unit).to_integral_value() * unit
    guesses = [Decimal(1), Decimal(0), *(first + unit * count for count in range(-1, 2 * _MAX_EXAMPLES))]
    if not whole:
        size = 1 if high is None else high - start
        guesses += [start + size * Decimal(part) for part in ("0", "1", "0.5", "0.1", "0.25", "0.9", "0.01")]
    for number in dict.fromkeys(guesses):
        is_fitting = all(compare(number, rules[name]) for name, compare in _COMPARISONS.items() if name in rules)
        if is_fitting and not (whole and number % 1):
            yield int(number) if whole or number == int(number) else float(number)


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


def _texts(schema: JsonSchema) -> Iterator[str]:
    samples = FORMATS.get(schema.get("format", ""), ())
    if schema.get("contentEncoding", "").startswith("base64"):
        samples = ("YWJj", "YWJjZA==")
    return example_texts(schema.get("pattern"), schema.get("minLength", 0), schema.get("maxLength"), samples)


def matches_pattern(pattern: str, text: str) -> bool:
    """Return True if a text matches the regular expression of a JSON Schema.

    The result is also True if Python cannot compile the regular expression, because the text then cannot be checked.
    """
    try:
        return re.search(regex.to_python_pattern(pattern), text) is not None
    except re.error:
        return True


def example_texts(pattern: str | None, low: int, high: int | None, samples: Iterable[str] = ()) -> Iterator[str]:
    """Yield texts of `low` to `high` characters that match a regular expression, beginning with the simplest text.

    The function yields nothing if it does not support the regular expression. With `samples`, it only yields those of
    the samples that fit.
    """
    seen: set[str] = set()
    for text in samples or (_simple_texts(low, high) if pattern is None else _texts_for_pattern(pattern, low)):
        has_length = len(text) >= low and (high is None or len(text) <= high)
        if has_length and text not in seen and (pattern is None or matches_pattern(pattern, text)):
            seen.add(text)
            yield text


def _simple_texts(low: int, high: int | None) -> Iterator[str]:
    for number in range(100):
        text = f"text{number or ''}".ljust(low, "x")
        yield text if high is None or len(text) <= high else str(number).zfill(high)[:high]


def _texts_for_pattern(pattern: str, low: int) -> Iterator[str]:
    try:
        options = [option.node for option in regex.read_pattern(pattern, is_lenient=True)]
    except regex.UnsupportedPatternError:
        return
    extra_repetitions = [0, 1, 2, 3, *([low] if low > 3 else [])]
    for extra, choice, letter in product(extra_repetitions, range(4), range(len(_LETTERS))):
        text = _write(options[choice % len(options)], extra, choice, _LETTERS[letter:] + _LETTERS[:letter])
        yield text
        if len(text) < low:
            yield text.ljust(low, "a")
            yield text.rjust(low, "a")


def _write(node: regex.PatternNode, extra: int, choice: int, letters: str) -> str:
    """Return a text for a regular expression, which may not match.

    `extra` is the number of repetitions above the minimum, and `choice` is the index of the alternative at each `|`.
    The first of the `letters` is the preferred letter.
    """
    match node:
        case regex.CharacterSet(allowed):
            return next((letter for letter in letters if letter in allowed), min(allowed, default=""))
        case regex.Concatenation(parts):
            return "".join([_write(part, extra, choice, letters) for part in parts])
        case regex.Alternation(options):
            return _write(options[choice % len(options)], extra, choice, letters)
        case regex.Repetition(part, low, high):
            return _write(part, extra, choice, letters) * min(high, low + extra)
