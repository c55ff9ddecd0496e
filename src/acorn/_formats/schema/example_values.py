"""Values that fit a JSON Schema, the same each time: what `any_model` fills tools and answers with.

Every kind of schema gives its candidates one after the other, the plainest first, so that whoever needs another
(an item that must differ, a way out of a recursion) asks for the next. Knows what Pydantic writes; what only a
validator of the user's knows cannot be seen in a schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from typing import Any

from acorn._formats.schema.example_texts import FORMATS, example_texts, matches_pattern
from acorn._formats.schema.generate import JsonSchema, inline_refs, resolve_ref
from acorn.errors import AcornError
from acorn.types import JsonObject

_MOST = 64
"""So many candidates are tried, and no more."""
_DEEPEST = 60


def example_value(schema: JsonSchema, where: str) -> Any:
    """The plainest value that fits; `where` names what it is for."""
    search = _Search(schema)
    for found in search.candidates(schema, ""):
        return found
    raise AcornError(
        f"`AnyModel` found no value for `{search.lost[0]}` of `{where}`, which must fit {search.lost[1]}; give the "
        f"field `examples`, or use `ScriptedModel`."
    )


class _Search:
    """The candidates for one schema and all within it."""

    def __init__(self, top: JsonSchema) -> None:
        self.top = top
        self.lost = ("output", "{}")
        """The field that no value was found for last, and its schema."""
        self._inside: list[str] = []
        """The definitions that are being filled: one that comes again would never end."""

    def candidates(self, schema: Any, path: str) -> Iterator[Any]:
        """Values for a schema, all of which fit it."""
        is_any = False
        for value in islice(self._of_any(schema, path), _MOST):
            is_any = True
            yield value
        if not is_any and len(path) >= len(self.lost[0]) * (self.lost[0] != "output"):
            self.lost = (path or "output", json.dumps(schema)[:200])

    def _of_any(self, schema: Any, path: str) -> Iterator[Any]:
        if schema is False or len(self._inside) > _DEEPEST:
            return
        if not isinstance(schema, dict):
            yield "text"
            return
        yield from schema.get("examples") or ()
        if "const" in schema:
            yield schema["const"]
        elif "enum" in schema:
            yield from schema["enum"]
        elif "$ref" in schema:
            yield from self._of_ref(schema, path)
        elif "allOf" in schema:
            yield from self.candidates(_merged(schema, schema["allOf"], self.top), path)
        elif "anyOf" in schema or "oneOf" in schema:
            yield from self._of_union(schema, path)
        else:
            kind = schema.get("type", _implied(schema))
            for each in kind if isinstance(kind, list) else [kind]:
                yield from self._of_type(str(each), schema, path)

    def _of_ref(self, schema: JsonSchema, path: str) -> Iterator[Any]:
        ref = schema["$ref"]
        if ref in self._inside:
            return
        rest = {key: value for key, value in schema.items() if key not in ("$ref", "default", "examples")}
        self._inside.append(ref)
        try:
            # All at once: whoever stops asking would leave the definition marked.
            found = list(islice(self.candidates({**resolve_ref(ref, self.top), **rest}, path), _MOST // 8))
        finally:
            self._inside.remove(ref)
        yield from found

    def _of_union(self, schema: JsonSchema, path: str) -> Iterator[Any]:
        options = schema.get("anyOf") or schema["oneOf"]
        kinds = [option.get("type") for option in options if isinstance(option, dict)]
        if kinds == ["number", "string"] and "pattern" in options[1]:  # a Decimal, whose digits are in the pattern
            fitting = (n for n in _numbers(options[0], whole=False) if matches_pattern(options[1]["pattern"], f"{n}"))
            yield from islice(fitting, _MOST // 2)
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "discriminator")}
        for option in options:
            yield from self.candidates(_merged(rest, [option], self.top) if _narrows(rest) else option, path)

    def _of_type(self, kind: str, schema: JsonSchema, path: str) -> Iterator[Any]:
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
            is_right = pattern is None or matches_pattern(pattern, text)
            if is_right and len(text) >= low and (high is None or len(text) <= high):
                yield text

    # Containers

    def _arrays(self, schema: JsonSchema, path: str) -> Iterator[Any]:
        first, low = schema.get("prefixItems", []), int(schema.get("minItems", 0))
        high = schema.get("maxItems")
        head: list[Any] = []
        for at, item in enumerate(first if low or high is None else first[: int(high)]):
            found = next(self.candidates(item, f"{path}[{at}]"), _NONE)
            if found is _NONE:
                return
            head.append(found)
        wanted = max(low, 1 if high is None or high >= 1 else 0) - len(head)
        rest = self._items(schema, wanted, f"{path}[]") if wanted > 0 else []
        if rest is None and low <= len(head):
            rest = []  # an item is not to be had, in a recursion say, and none is needed
        if rest is None:
            return
        yield head + rest
        if low <= len(head) and rest:
            yield head

    def _items(self, schema: JsonSchema, count: int, path: str) -> list[Any] | None:
        """So many items; None where there are not enough."""
        found: list[Any] = []
        for value in self.candidates(schema.get("items", {}), path):
            if not schema.get("uniqueItems"):
                return [value] * count
            if value not in found:
                found.append(value)
            if len(found) == count:
                return found
        return None

    def _objects(self, schema: JsonSchema, path: str) -> Iterator[Any]:
        known = schema.get("properties", {})
        made: JsonObject = {}
        needed = list(schema.get("required", []))
        least = int(schema.get("minProperties", 0))
        needed += [name for name in known if name not in needed][: max(0, least - len(needed))]
        for name in needed:
            value = next(self.candidates(known.get(name, {}), _joined(path, name)), _NONE)
            if value is _NONE:
                return
            made[name] = value
        for name, inner in self._further(schema, path) if len(made) < least else ():
            value = next(self.candidates(inner, _joined(path, name)), _NONE)
            if value is _NONE:
                return
            made.setdefault(name, value)
            if len(made) >= least:
                break
        if len(made) < least:
            return
        yield made
        for name in made:  # others, for whoever needs one that differs
            for value in islice(self.candidates(known.get(name, {}), _joined(path, name)), 1, None):
                yield {**made, name: value}

    def _further(self, schema: JsonSchema, path: str) -> Iterator[tuple[str, Any]]:
        """Keys that are not named by the schema, each with what its value must be."""
        for pattern, inner in schema.get("patternProperties", {}).items():
            for name in example_texts(pattern, 1, None):
                yield name, inner
        inner = schema.get("additionalProperties", "patternProperties" not in schema)
        if inner is False:
            return
        names = schema.get("propertyNames", {"type": "string", "minLength": 1})
        for name in self.candidates({"type": "string", **names} if isinstance(names, dict) else {}, f"{path}.(key)"):
            yield str(name), inner


_NONE: Any = object()


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _implied(schema: JsonSchema) -> str:
    """The type of a schema that does not say it."""
    if {"properties", "required", "additionalProperties", "patternProperties"} & schema.keys():
        return "object"
    if {"items", "prefixItems", "minItems"} & schema.keys():
        return "array"
    is_number = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"} & schema.keys()
    return "number" if is_number else "string"


def _narrows(rest: JsonSchema) -> bool:
    return bool(rest.keys() - {"title", "description", "default", "examples", "deprecated", "$defs"})


def _merged(schema: JsonSchema, parts: list[Any], top: JsonSchema) -> JsonSchema:
    """A schema and others that hold as well, as one."""
    made = {key: value for key, value in schema.items() if key not in ("allOf", "examples")}
    for part in parts:
        whole = inline_refs(part, top) if isinstance(part, dict) else {}
        properties = {**made.get("properties", {}), **whole.get("properties", {})}
        required = [*made.get("required", []), *whole.get("required", [])]
        made = {**made, **whole}
        if properties:
            made["properties"] = properties
        if required:
            made["required"] = list(dict.fromkeys(required))
    return made


def _numbers(schema: JsonSchema, *, whole: bool) -> Iterator[Any]:
    """Numbers within the bounds, plain ones first."""
    step = Decimal(str(schema["multipleOf"])) if "multipleOf" in schema else None
    low = max(_bounds(schema, "minimum", "exclusiveMinimum"), default=None)
    high = min(_bounds(schema, "maximum", "exclusiveMaximum"), default=None)
    tried: list[Decimal] = []
    for start in _starts(low, high, step, whole=whole):
        if start in tried or (whole and start % 1) or (step and start % step) or not _is_within(start, schema):
            continue
        tried.append(start)
        yield int(start) if whole or start == int(start) else float(start)


def _starts(low: Decimal | None, high: Decimal | None, step: Decimal | None, *, whole: bool) -> Iterator[Decimal]:
    yield from (Decimal(1), Decimal(0))
    unit = step or Decimal(1)
    begin = low if low is not None else high - unit * _MOST if high is not None else Decimal(0)
    begin = (begin / unit).to_integral_value() * unit
    for count in range(-1, 2 * _MOST):
        yield begin + unit * count
    if not whole and step is None:
        yield from (edge for edge in (low, high) if edge is not None)
        yield from map(Decimal, ("0.5", "0.1", "0.25", "0.01"))
        if low is not None and high is not None:
            yield from ((low + (high - low) / part) for part in (2, 3, 4, 10))
        if low is not None:
            yield low + Decimal("0.1")
        if high is not None:
            yield high - Decimal("0.1")


def _bounds(schema: JsonSchema, *names: str) -> list[Decimal]:
    return [Decimal(str(schema[name])) for name in names if isinstance(schema.get(name), int | float)]


def _is_within(value: Decimal, schema: JsonSchema) -> bool:
    return (
        all(value >= bound for bound in _bounds(schema, "minimum"))
        and all(value > bound for bound in _bounds(schema, "exclusiveMinimum"))
        and all(value <= bound for bound in _bounds(schema, "maximum"))
        and all(value < bound for bound in _bounds(schema, "exclusiveMaximum"))
    )
