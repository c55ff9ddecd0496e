"""Short descriptions of JSON Schemas and of validation errors, for people and models.

- `describe_schema` describes a JSON Schema in a few words, such as `float between 0 and 1` or `list of
  strings, at least 1 item`. Sentences use the description with an article.
- `find_problems` converts a Pydantic validation error to a list with one problem for each wrong field: its path, the
  expected value and the received value. The validation document for the model, `InputError` and the errors about tool
  arguments contain these problems.
- `describe_errors` describes the validation errors of the package `jsonschema` in the same form.

A request to a model may contain all of these texts, so a change of a text changes the request.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Sized
from decimal import Decimal
from itertools import chain
from typing import Any, Literal, NamedTuple, TypedDict

from pydantic import ValidationError
from pydantic_core import ErrorDetails, core_schema

from acorn._formats.json import excerpt, first_items, shorten, to_compact_json
from acorn._formats.schema.generate import JsonSchema, follow_refs, resolve_ref, unique
from acorn._formats.schema.patterns import matching_names
from acorn.types import JsonObject, is_json_list, is_json_object, is_list_or_tuple

_TYPES = {"string": "string", "integer": "integer", "number": "float"}
_FORMATS = {
    "date-time": "date and time in ISO 8601",
    "date": "date as YYYY-MM-DD",
    "time": "time as HH:MM:SS",
    "duration": "duration in ISO 8601",
    "uuid": "UUID",
    "uri": "URL",
    "email": "e-mail address",
    "binary": "bytes",
    "path": "path",
    "acorn-image": "image",
    "acorn-audio": "audio",
    "acorn-file": "file",
}
_MAX_DEPTH = 8
"""The number of nested types that a description follows before it uses the word `value`."""
_MAX_ERRORS = 10_000
"""The number of Pydantic's errors that are assigned to fields. Each of the others counts as one problem."""
MAX_PROBLEMS = 20
"""The number of problems in one message, of values in a description of an enum, and of fields in one of an object."""
_MAX_TEXT = 20_000
"""The number of characters in the texts about all problems of one message."""


def describe_schema(node: JsonSchema, top: JsonSchema) -> str:
    """Return a short description of the values that fit a schema node, such as `float between 0 and 1`.

    `top` is the complete schema, which contains the targets of references.
    """
    return _ARTICLE.sub("", _describe(node, top))


_ARTICLE = re.compile("^an? ")


def _describe(node: JsonSchema, top: JsonSchema, depth: int = _MAX_DEPTH, *, plural: bool = False) -> str:
    """Return a short description with an article, such as `a float between 0 and 1`, or in the plural.

    `depth` limits the number of nested types in the description, because a type may contain itself.
    """
    if not depth or not isinstance(node, dict):  # A user's schema may be `true`.
        return _noun("value", plural)
    if "$ref" in node:
        return _describe(resolve_ref(node["$ref"], top), top, depth - 1, plural=plural)
    if "const" in node:
        return _quote(node["const"])
    if "enum" in node:
        return f"{'values from' if plural else 'one of'} {_list_values(node['enum'])}"
    kind = node.get("type")
    members: list[JsonSchema] = node.get("anyOf") or node.get("oneOf") or []
    if not members and is_json_list(kind):
        members = [{**node, "type": name} for name in kind]
    if members:
        return " or ".join(dict.fromkeys(_describe(member, top, depth - 1, plural=plural) for member in members))
    if kind == "array":
        return _noun(_describe_list(node, top, depth - 1), plural)
    if kind == "object":
        return _noun(_describe_object(node), plural)
    if kind == "string" and node.get("format") in _FORMATS:
        return _noun(_FORMATS[node["format"]], plural)
    if kind == "boolean":
        return _noun("boolean (true or false)", plural)
    return "null" if kind == "null" else _noun(_TYPES.get(str(kind), "value"), plural) + _describe_limits(node)


_PLURALS = {"date and time in ISO 8601": "dates and times in ISO 8601", "e-mail address": "e-mail addresses"}


def _noun(text: str, plural: bool) -> str:
    """Return the text with an article, or in the plural."""
    if text in ("audio", "bytes"):
        return text
    if plural:
        noun, space, others = text.partition(" ")
        return _PLURALS.get(text, f"{noun}s{space}{others}")
    return f"{'an' if text[0] in 'aeio' else 'a'} {text}"


_LIMITS = {
    "minimum": "of at least",
    "maximum": "of at most",
    "exclusiveMinimum": "greater than",
    "exclusiveMaximum": "less than",
    "multipleOf": "divisible by",
}


def _describe_limits(node: JsonSchema) -> str:
    numbers = {key: _format_number(node[key]) for key in _LIMITS if node.get(key) is not None}
    parts = [f"{_LIMITS[key]} {number}" for key, number in numbers.items()]
    if "minimum" in numbers and "maximum" in numbers:
        parts[:2] = [f"between {numbers['minimum']} and {numbers['maximum']}"]
    if count := _describe_count(node.get("minLength"), node.get("maxLength"), "character"):
        parts.append(f"of {count}")
    if "pattern" in node:
        parts.append(f"matching {node['pattern']}")
    return f" {' and '.join(parts)}" if parts else ""


def _describe_list(node: JsonSchema, top: JsonSchema, depth: int) -> str:
    if "prefixItems" in node:
        return "list of " + ", ".join(_describe(member, top, depth) for member in node["prefixItems"])
    item: JsonSchema = node.get("items") or {}
    text = "list of " + _describe(item, top, depth, plural=True) if item else "list"
    count = _describe_count(node.get("minItems"), node.get("maxItems"), "item")
    return f"{text}, {count}" if count else text


def _describe_object(node: JsonSchema) -> str:
    names = list(node.get("properties", {}))
    listed = names if len(names) <= MAX_PROBLEMS else [*names[: MAX_PROBLEMS // 2], f"... ({len(names):,} fields)"]
    text = "object with " + ", ".join(listed) if names else "object"
    count = _describe_count(node.get("minProperties"), node.get("maxProperties"), "key")
    return f"{text}, {count}" if count else text


def _describe_count(low: int | None, high: int | None, noun: str) -> str:
    if low is not None and low == high:
        return f"exactly {_plural(low, noun)}"
    if low is not None and high is not None:
        return f"{low} to {_plural(high, noun)}"
    if low is not None:
        return f"at least {_plural(low, noun)}"
    return f"at most {_plural(high, noun)}" if high is not None else ""


def _list_values(values: list[Any]) -> str:
    count = len(values)
    if count <= MAX_PROBLEMS:
        return ", ".join(map(_quote, values))
    return f"{', '.join(map(_quote, values[: MAX_PROBLEMS // 2]))}, ... ({count:,} values)"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _format_number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else str(value)


def _quote(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_MISSING = "missing"
_ERROR_WITHOUT_KEYWORD = re.compile(
    r"bytes_too_|(?:date|datetime)_(?:future|past)|decimal_|finite_number|timezone_|url_scheme|uuid_version"
)


class Problem(TypedDict):
    """A description of one wrong field: its path, the expected value and the received value."""

    path: str
    """The dotted path of the field, such as `sources.0.title`. It is "" if the complete value is wrong."""
    expected: str
    received: str
    excerpt: str
    """The short `repr` of the received value, for error messages to Python callers."""
    text: str
    """The expected value with an article, the names that exist, or the message of a validator."""
    kind: Literal["missing", "unknown", "invalid", "wrong"]
    """The kind of the problem. For `invalid`, `text` is a message."""


def describe_problem(problem: Problem, subject: str, received: str) -> str:
    """Return a text about one problem, such as "`limit` must be an integer, got 'x'"."""
    text = problem["text"]
    match problem["kind"]:
        case "missing":
            return f"{subject} is missing (expected {text})"
        case "unknown":
            return f"{subject} does not exist ({text})"
        case "invalid":
            return f"{subject} is invalid: {text} (got {received})"
        case "wrong":
            return f"{subject} must be {text}, got {received}"


def quote_names(names: Iterable[str]) -> str:
    """Return a list of names for a message, each in backticks."""
    return ", ".join(f"`{name}`" for name in names)


def list_names(names: Iterable[str], noun: str = "fields") -> str:
    """Return the part of a message about an unknown name that lists the names that exist."""
    quoted = quote_names(names)
    return f"the {noun} are: {quoted}" if quoted else f"there are no {noun}"


def public_problems(problems: Sequence[Problem]) -> list[JsonObject]:
    """Return the problems as dicts for `ParseError.errors`, with the keys `path`, `expected` and `received`."""
    return [{key: problem[key] for key in ("path", "expected", "received")} for problem in problems[:MAX_PROBLEMS]]


def join_problems(texts: Sequence[str], count: int | None = None) -> str:
    """Join the texts about the first problems, and count the other problems.

    `count` is the number of all problems, if `texts` does not contain all of them.
    """
    shown = [shorten(text, _max_length(texts)) for text in texts[:MAX_PROBLEMS]]
    others = (len(texts) if count is None else count) - MAX_PROBLEMS
    return "; ".join([*shown, f"{others:,} more"] if others > 0 else shown)


def _max_length(problems: Sized) -> int:
    """Return the number of characters of each text about one of the problems."""
    return _MAX_TEXT // max(1, min(len(problems), MAX_PROBLEMS))


def input_problem(path: str, expected: str, received: str, message: str) -> dict[str, str]:
    """Return one problem as a dict for `InputError.problems`."""
    return {"path": path, "expected": expected, "received": received, "message": message}


def find_problems(
    error: ValidationError, schema: JsonSchema, received: object, ignored: Collection[str] = ()
) -> list[Problem]:
    """Return a list with one problem for each wrong field, in the order of Pydantic's errors.

    In a union, only the errors of the member that was meant count. `schema` is the JSON Schema of the validated class,
    and `received` is the data that failed validation. Fields whose paths are in `ignored` are not in the list.

    Messages contain only the first problems and the number of the others, so the others are not described.
    """
    places: dict[str, tuple[ErrorDetails, _Place]] = {}
    details = error.errors(include_url=False)
    if ignored:
        details = [each for each in details if len(each["loc"]) > 2 or ".".join(map(str, each["loc"])) not in ignored]
    others = len(details[_MAX_ERRORS:])
    for detail, place in _find_places(details[:_MAX_ERRORS], 0, _Place((), schema, received), schema):
        places.setdefault(".".join(map(str, place.path)), (detail, place))
    wrong = [path for path in places if path not in ignored]
    length = _max_length(wrong)
    described = [_make_problem(shorten(path, length), *places[path], schema, length) for path in wrong[:MAX_PROBLEMS]]
    undescribed = Problem(path="", expected="", received="", excerpt="", text="", kind="wrong")
    return described + [undescribed] * (len(wrong) - len(described) + (others if len(wrong) > MAX_PROBLEMS else 0))


class _Place(NamedTuple):
    """A position in the data that failed validation."""

    path: tuple[int | str, ...]
    node: JsonSchema | None
    """The schema of the value, or None if the schema does not describe it. In a union, it is the schema of a member."""
    value: Any
    parent: JsonSchema | None = None

    def child(self, part: int | str, top: JsonSchema) -> _Place:
        is_inside = part in self.keys
        node = None if self.node is None else _child_node(self.node, part, top)
        return _Place((*self.path, part), node, self.value[part] if is_inside else None, self.node)

    @property
    def keys(self) -> Container[object]:
        value: object = self.value
        return range(len(value)) if is_list_or_tuple(value) else value if is_json_object(value) else ()


_Errors = list[ErrorDetails]


def _find_places(details: _Errors, depth: int, place: _Place, top: JsonSchema) -> Iterator[tuple[ErrorDetails, _Place]]:
    """Yield each error at or below a place with the place of its value.

    The first `depth` parts of the location of each error lead to the place. Pydantic inserts the names of union members
    and validators into locations. A path does not contain them.
    """
    groups: dict[int | str, _Errors] = {}
    for detail in details:
        location = detail["loc"][depth:]
        if not location or location[0] == "[key]":
            yield detail, place
        else:
            groups.setdefault(location[0], []).append(detail)
    fields = {part for part, group in groups.items() if part in place.keys or _is_missing_here(group[0], depth)}
    members = _union_members(place.node, top)
    if members and len(fields) < len(groups):
        yield from _find_member_places(groups, members, depth, place, top)
        return
    for part, group in groups.items():
        yield from _find_places(group, depth + 1, place.child(part, top) if part in fields else place, top)


def _is_missing_here(detail: ErrorDetails, depth: int) -> bool:
    return _is_missing(detail) and len(detail["loc"]) == depth + 1


def _find_member_places(
    groups: Mapping[int | str, _Errors], members: list[JsonSchema], depth: int, place: _Place, top: JsonSchema
) -> Iterator[tuple[ErrorDetails, _Place]]:
    """Yield the errors of the union member that was meant, or one error about the complete union.

    `groups` maps the name of each member to its errors.
    """
    fitting = {name: group for name, group in groups.items() if not _is_other_kind(group, depth + 1)}
    if not fitting:  # The value has the type of no member.
        yield next(iter(groups.values()))[0], place
        return
    nodes = {name: _member_node(members, name, top) for name in fitting}
    tags = _find_tags([node for node in nodes.values() if node])
    value: JsonObject = place.value if is_json_object(place.value) else {}
    for tag, values in tags.items():
        wrong = [detail for group in fitting.values() for detail in group if detail["loc"][depth + 1 :] == (tag,)]
        if len(wrong) == len(fitting):  # The tag fits no member.
            yield wrong[0], place.child(tag, top)._replace(node={"enum": values})
            return

    def rank(name: int | str) -> tuple[bool, bool, int]:
        own = _tag_values(nodes[name] or {})
        fits = [value[tag] in own[tag] for tag in tags if tag in value and tag in own]
        return not any(fits), not all(fits), len(fitting[name])

    name = min(fitting, key=rank)
    yield from _find_places(fitting[name], depth + 1, place._replace(node=nodes[name] or place.node), top)


def _is_other_kind(group: _Errors, depth: int) -> bool:
    """Return whether one of the errors of a union member says that the complete value does not fit the member."""
    return any(len(detail["loc"]) == depth and not _validator_message(detail) for detail in group)


def _union_members(node: JsonSchema | None, top: JsonSchema) -> list[JsonSchema]:
    node = follow_refs(node or {}, top)
    members: list[JsonSchema] = node.get("anyOf") or node.get("oneOf") or []
    tags = node.get("discriminator", {}).get("mapping", {})
    return [*members, *({"$ref": ref, "tag": tag} for tag, ref in tags.items())]


def _member_node(members: list[JsonSchema], name: int | str, top: JsonSchema) -> JsonSchema | None:
    """Return the schema of the union member that Pydantic calls `name`, such as `function-after[check(), Refund]`."""
    words = {*re.findall(r"\w+", str(name)), re.sub(r"[^\w.-]", "_", str(name))}
    for member in members:
        names = re.findall(r'"\$ref":"[^"]*/([^"/]+)"', to_compact_json(member))
        if member.get("tag") == name or (names and words.issuperset(names)):
            return follow_refs(member, top)
    return None


def _find_tags(nodes: list[JsonSchema]) -> dict[str, list[Any]]:
    """Return the fields whose value tells the members of a union apart, with all values of each field."""
    found: dict[str, list[list[Any]]] = {}
    for node in nodes:
        for name, values in _tag_values(node).items():
            found.setdefault(name, []).append(values)
    shared = {name: [*chain.from_iterable(groups)] for name, groups in found.items() if len(groups) > 1}
    return {name: values for name, values in shared.items() if values == unique(values)}


def _tag_values(node: JsonSchema) -> dict[str, list[Any]]:
    fields: JsonObject = node.get("properties", {})
    return {
        name: field["enum"] if "enum" in field else [field["const"]]
        for name, field in fields.items()
        if is_json_object(field) and ("enum" in field or "const" in field)
    }


def _is_missing(detail: ErrorDetails) -> bool:
    return detail["type"].startswith("missing")


def _make_problem(path: str, detail: ErrorDetails, place: _Place, schema: JsonSchema, length: int) -> Problem:
    kind = _problem_kind(detail, place)
    text = shorten(_problem_text(kind, detail, place, schema), length)
    return Problem(
        path=path,
        expected=f"no such field ({text})" if kind == "unknown" else _ARTICLE.sub("", text),
        received=_MISSING if kind == "missing" else format_value(detail["input"]),
        excerpt=_MISSING if kind == "missing" else excerpt(detail["input"], 200),
        text=text,
        kind=kind,
    )


def _problem_kind(detail: ErrorDetails, place: _Place) -> Literal["missing", "unknown", "invalid", "wrong"]:
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return "unknown"
    if _is_missing(detail):
        return "missing"
    has_message = _validator_message(detail) or (place.node is None and detail["type"] != "json_invalid")
    return "invalid" if has_message else "wrong"


def _problem_text(kind: str, detail: ErrorDetails, place: _Place, schema: JsonSchema) -> str:
    if kind == "unknown":
        noun = "arguments" if detail["type"] == "unexpected_keyword_argument" else "fields"
        return list_names(follow_refs(place.parent or {}, schema).get("properties", {}), noun)
    if detail["type"] == "json_invalid":
        return f"valid JSON ({detail['msg'].removeprefix('Invalid JSON: ')})"
    if detail["loc"][-1:] == ("[key]",):
        return f"under another key ({detail['msg']})"
    if kind == "invalid":
        return _validator_message(detail) or detail["msg"]
    text = _describe(place.node or {}, schema)
    if detail["type"] == "union_tag_invalid":
        ctx = detail.get("ctx", {})
        return f"{text}, where {ctx.get('discriminator')} is one of {ctx.get('expected_tags')}"
    return f"{text} ({detail['msg']})" if _is_without_keyword(detail) else text


def _validator_message(detail: ErrorDetails) -> str:
    """Return the message of a user-defined validator, or "" if Pydantic itself found the error."""
    is_from_validator = detail["type"] in ("value_error", "assertion_error")
    return str(detail.get("ctx", {}).get("error", "")) if is_from_validator else ""


def _is_without_keyword(detail: ErrorDetails) -> bool:
    """Return True if the wrong value breaks a rule that JSON Schema cannot express, such as "a date in the future".

    The description of the schema does not mention this rule. Therefore the error text must also contain Pydantic's
    message.
    """
    kind = detail["type"]
    if kind.startswith(("greater_than", "less_than")):
        # A schema contains the limits of numbers, but not the limits of dates and durations.
        return not all(isinstance(limit, int | float | Decimal) for limit in detail.get("ctx", {}).values())
    return bool(_ERROR_WITHOUT_KEYWORD.match(kind)) or kind not in typing.get_args(core_schema.ErrorType)


def format_value(value: object) -> str:
    """Format a wrong value for a message to the model: a string without quotes, and any other value as short JSON."""
    # The string "missing" gets quotes, so that it does not look like a missing value.
    if isinstance(value, str) and value != _MISSING:
        return shorten(value)
    return shorten(to_compact_json(first_items(value, 200)))


def _child_node(node: JsonSchema, part: int | str, top: JsonSchema) -> JsonSchema | None:
    """Return the schema of a field or an item, or None if the schema does not describe it.

    In a union, the function uses the first member that describes it. `top` is the complete schema, which contains the
    targets of references.
    """
    node = follow_refs(node, top)
    for union in ("anyOf", "oneOf", "allOf"):
        for member in node.get(union, []):
            if (found := _child_node(member, part, top)) is not None:
                return found
    if isinstance(part, int):
        prefix = node.get("prefixItems", [])
        inner = prefix[part] if part < len(prefix) else node.get("items")
    else:
        inner = node.get("properties", {}).get(part, node.get("additionalProperties"))
    return follow_refs(inner, top) if is_json_object(inner) else None


_DESCRIBED_KEYWORDS = {
    *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems", "minProperties", "maxProperties"),
}
"""The JSON Schema keywords that `describe_schema` describes."""


def describe_errors(errors: Iterable[Any], top: JsonSchema) -> Iterator[str]:
    """Yield a text for each error from the package `jsonschema`: the path, the expected and the received value."""
    for error in errors:
        path = [str(part) for part in error.absolute_path]
        match error.validator:
            case "required":
                for name in required_properties(error.schema):
                    if name not in error.instance:
                        expected = _describe(error.schema.get("properties", {}).get(name, {}), top)
                        yield f"argument `{'.'.join([*path, name])}` is missing (expected {expected})"
            case "additionalProperties" if error.validator_value is False:
                for name in _unknown_names(error.instance, error.schema):
                    yield describe_unknown_property(path, name, error.schema)
            case None:  # The schema of the value is `false`.
                yield f"{_describe_place(error)} must not contain this value: {_format_json(error.instance)}"
            case "anyOf" | "oneOf" if error.context:
                yield from _describe_union(error, top)
            case _:
                yield _describe_mismatch(error, _describe_expected(error, top))


def required_properties(schema: JsonSchema) -> list[str]:
    """Return the names of the required properties of an object schema."""
    names = schema.get("required")
    return names if is_json_list(names) else []  # In Draft 3, `required` is a boolean in the schema of each property.


def _describe_mismatch(error: Any, expected: str) -> str:
    return f"{_describe_place(error)} must be {expected}, got {_format_json(error.instance)}"


def _describe_place(error: Any) -> str:
    path = ".".join(map(str, error.absolute_path))
    return f"argument `{path}`" if path else "The arguments"


def _format_json(value: object) -> str:
    """Format a received value as short JSON, with quotes so that the string "5" does not look like the number 5."""
    return shorten(to_compact_json(value))


def _describe_expected(error: Any, top: JsonSchema) -> str:
    # The nested schemas under these keywords cause separate errors.
    omitted = {"$ref", "anyOf", "oneOf"} - {error.validator}
    text = _describe({key: value for key, value in error.schema.items() if key not in omitted}, top)
    if error.validator not in _DESCRIBED_KEYWORDS or text == "a value":
        text = f"{text} ({shorten(error.message)})"
    *around, keyword = [None, None, *error.absolute_schema_path][-3:-1]
    return f"under another key ({text})" if keyword == "propertyNames" and around != ["properties"] else text


def describe_unknown_property(path: list[str], name: str, schema: JsonSchema) -> str:
    """Return the error message for a property that the schema does not allow."""
    names = list_names(schema.get("properties", {}), "fields" if path else "arguments")
    return f"argument `{'.'.join([*path, name])}` does not exist ({names})"


def _unknown_names(instance: JsonSchema, schema: JsonSchema) -> list[str]:
    known = {*schema.get("properties", {}), *matching_names(schema.get("patternProperties", {}), instance)}
    return [name for name in instance if name not in known]


def _describe_union(error: Any, top: JsonSchema) -> Iterator[str]:
    """Yield texts about a value that fits no member of a union.

    If the value was clearly intended for one member, the texts describe the errors for this member. Otherwise, they
    describe the values that all members expect.
    """
    members: dict[object, list[Any]] = {}
    for inner in error.context:
        members.setdefault(inner.relative_schema_path[0], []).append(inner)
    if intended := _intended_member(list(members.values())):
        yield from describe_errors(intended, top)
    elif (text := _describe({error.validator: error.validator_value}, top)) != "a value":
        yield _describe_mismatch(error, text)
    else:  # `describe_schema` has no words for some members, such as members with different required properties.
        yield " or ".join(dict.fromkeys("; ".join(describe_errors(errors, top)) for errors in members.values()))


def _intended_member(members: list[list[Any]]) -> list[Any]:
    """Return the errors of the only union member whose type or tag fits the value.

    The result is [] if no member or several members fit. `members` contains a list of errors for each union member.
    """
    for is_other in (_is_other_type, _is_other_tag):
        members = [errors for errors in members if not any(map(is_other, errors))]
        if len(members) == 1:
            return members[0]
    return []


def _is_other_type(error: Any) -> bool:
    return error.validator == "type" and not error.relative_path


def _is_other_tag(error: Any) -> bool:
    return error.validator in ("const", "enum") and len(error.relative_path) <= 1
