"""Conversion of a JSON schema to a grammar.

With the grammar, a model can generate only text that fits the schema. The grammar limits the length of strings and
lists and the depth of recursion, since a weak model may never stop by itself. A grammar cannot express `not`,
`contains`, dependencies, unique items of an unknown set, and patterns with lookaround. acorn checks these keywords
later, when it validates the response. The grammar always requires the discriminator of a union, and object keys are
always strings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from acorn._formats.schema.generate import NAIVE_TIME, implied_type
from acorn._formats.schema.regex import UnsupportedPatternError
from acorn.models.local.grammar.scalars import choice, decimal, json_literal, literal, number, pattern, repeat, sequence
from acorn.models.local.grammar.schema import FORMATS, NOTES, ZONE, Definitions, InvalidSchemaError, Schema, normalize
from acorn.types import JsonObject, JsonValue

_CHARACTER = r'[^"\\\x7F\x00-\x1F] | "\\" ["\\nt]'
"""The rule for one character of a JSON string."""
_MAX_KEY = 40
"""The maximum length of a key that the schema does not restrict."""
_DECLARED_LENGTH, _DECLARED_ITEMS = 4000, 200
"""The maximum values that acorn uses for `maxLength` and for `maxItems` of a schema."""
_COUNT = 1000
"""The maximum repetition count in the grammar. The engine rejects counts that are more than twice as high."""
_SCALARS = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}
_ANYTHING: Schema = {
    "anyOf": [_SCALARS, {"type": "array", "items": _SCALARS}, {"type": "object", "additionalProperties": _SCALARS}]
}
"""The schema that replaces a schema without a type. Its lists and objects are not nested."""
_STATES = 4000
"""The maximum number of rules with which the grammar selects distinct items."""


@dataclass(frozen=True)
class GrammarLimits:
    """The maximum lengths of strings and lists and the maximum recursion, for schemas that do not set a maximum."""

    string: int = 400
    """The maximum characters of a string without `maxLength`. Each enclosing list reduces this limit to a quarter."""
    items: int = 8
    """The maximum items of a list without `maxItems`. Each enclosing list reduces this limit to a half."""
    depth: int = 3
    """The maximum number of times that a recursive schema may contain itself."""


@dataclass(frozen=True)
class _Position:
    """The nesting depth of a value in the schema.

    Deeper values have lower limits for strings, lists and recursion.
    """

    depth: int
    """The number of further recursions that are allowed."""
    level: int = 0
    """The number of enclosing lists and repeated definitions."""


class NoValidValueError(ValueError):
    """The error for a schema that allows no value at all, so that no grammar exists."""


def grammar(tools: Mapping[str, object], limits: GrammarLimits) -> str:
    """Return the GBNF text of the grammar for a call of one of the tools.

    `tools` maps the names of the tools to the schemas of their arguments. For one tool, the grammar describes only the
    arguments. For several tools, it describes an object with the name of a tool and its arguments, without the last
    brace.

    Raise `InvalidSchemaError` if a schema is not valid, and `NoValidValueError` if a schema allows no value.
    """
    try:
        text = json.dumps(tools, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the schema is not valid JSON ({error})") from error
    return _cached_grammar(text, limits)


@lru_cache(maxsize=64)
def _cached_grammar(tools: str, limits: GrammarLimits) -> str:
    builder = _Builder(limits)
    calls: dict[str, str] = {name: builder.value_of(schema) for name, schema in json.loads(tools).items()}
    if len(calls) > 1:
        for name, arguments in calls.items():
            calls[name] = sequence(literal(f'{{"name": "{name}", "arguments": '), arguments)
    builder.rules["root"] = choice(calls.values())
    return "\n".join(f"{name} ::= {text}" for name, text in builder.rules.items()) + "\n"


class _Builder:
    """The rules of a grammar, with methods that add rules for a schema.

    A method returns the name or the text of a rule, or None if the schema allows no value.
    """

    def __init__(self, limits: GrammarLimits) -> None:
        self.rules = {"char": _CHARACTER}
        self._limits = limits
        self._names: dict[str, str] = {}
        self._reference_rules: dict[tuple[str, str, _Position], str | None] = {}
        """A dict that maps a reference, its other keywords and its position to its rule."""
        self._definitions = Definitions({})

    def value_of(self, declared: JsonValue) -> str:
        """Add the rules for a complete schema and return the main rule, or raise `NoValidValueError`."""
        schema = normalize(declared)
        self._definitions, self._reference_rules = Definitions(schema), {}
        rule = self._value(schema, _Position(self._limits.depth))
        if rule is None:
            raise NoValidValueError("the schema allows no value")
        return rule

    def _rule(self, text: str) -> str:
        """Add a rule with this text, unless it already exists, and return the name of the rule.

        If `text` is only the name of a rule, return it unchanged.
        """
        if len(text) < 12 and text.isalnum():
            return text
        if text not in self._names:
            self._names[text] = f"r{len(self._names)}"
            self.rules[self._names[text]] = text
        return self._names[text]

    # Any schema

    def _value(self, schema: Schema | bool, at: _Position) -> str | None:
        if isinstance(schema, bool):
            return self._value(_ANYTHING, at) if schema else None
        if "$ref" in schema:
            return self._reference(schema, at)
        if "const" in schema:
            return self._rule(json_literal(schema["const"]))
        if "enum" in schema:
            return self._one_of(map(json_literal, schema["enum"]))
        if "allOf" in schema:
            return self._value(self._definitions.merge_all_of(schema), at)
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._union(self._options(schema, union), at)
        kind: JsonValue = schema.get("type", implied_type(schema))
        if isinstance(kind, list):
            return self._union([{**schema, "type": one} for one in kind], at)
        return self._of_type(kind, schema, at)

    def _of_type(self, kind: object, schema: Schema, at: _Position) -> str | None:
        match kind:
            case "object":
                return self._object(schema, at)
            case "array":
                return self._array(schema, replace(at, level=at.level + 1))
            case "string":
                return self._string(schema, at)
            case "integer" | "number":
                rule = number(schema, 0) if kind == "integer" else number(schema)
                return None if rule is None else self._rule(rule)
            case "boolean":
                return self._rule('("true" | "false")')
            case "null":
                return self._rule('"null"')
            case _:
                return self._value(_ANYTHING, at)

    def _one_of(self, options: Iterable[str | None]) -> str | None:
        rules = [option for option in options if option is not None]
        return self._rule(choice(rules)) if rules else None

    def _options(self, schema: Schema, union: str) -> list[Schema | bool]:
        """Return the schemas of the options of a union.

        Keywords that stand next to `anyOf` or `oneOf` apply to every option, so they are added to each schema.
        """
        shared = {key: value for key, value in schema.items() if key != union and key not in NOTES}
        tag = schema.get("discriminator")
        if isinstance(tag, Mapping) and "propertyName" in tag:
            # The tag is required even if it has a default, since the validation uses it to select the option.
            shared["required"] = [*shared.get("required", ()), tag["propertyName"]]
        return [self._definitions.add_shared(shared, option) for option in schema[union]]

    def _union(self, options: Sequence[Schema | bool], at: _Position) -> str | None:
        pairs = {index: decimal(*pair) for index, pair in enumerate(pairwise(options))}
        decimals = {index: numbers for index, numbers in pairs.items() if numbers is not None}
        others = [option for index, option in enumerate(options) if index not in decimals and index - 1 not in decimals]
        expressible = [option for option in others if self._is_expressible(option)]
        values = [self._value(option, at) for option in expressible or (others if not decimals else ())]
        return self._one_of([*(text for numbers in decimals.values() for text in numbers), *values])

    def _is_expressible(self, schema: Schema | bool) -> bool:
        with suppress(UnsupportedPatternError):
            if not isinstance(schema, bool) and "pattern" in schema:
                pattern(schema["pattern"], 0, 1)
            return True
        return False

    def _reference(self, schema: Schema, at: _Position) -> str | None:
        reference = str(schema["$ref"])
        others = {key: value for key, value in schema.items() if key != "$ref" and key not in NOTES}
        if self._definitions.is_recursive(reference):
            if at.depth == 0:
                return None
            is_repeated = at.depth < self._limits.depth
            at = _Position(at.depth - 1, at.level + is_repeated)
        key = (reference, json.dumps(others, default=repr), at)
        if key not in self._reference_rules:
            target = self._definitions.combine(others, self._definitions.target(reference))
            self._reference_rules[key] = self._value(target, at)
        return self._reference_rules[key]

    # Strings

    def _string(self, schema: Schema, at: _Position) -> str | None:
        low, most = schema.get("minLength", 0), schema.get("maxLength")
        high = max(low, 40, self._limits.string >> 2 * at.level)
        if most is not None:
            high = min(most, max(_DECLARED_LENGTH, low))
        if low > high:
            return None
        format_rule = FORMATS.get(schema.get("format", ""))
        if (regex := schema.get("pattern")) == NAIVE_TIME and format_rule:
            return self._quoted(format_rule.removesuffix(ZONE))
        if regex:
            with suppress(UnsupportedPatternError):
                rule = pattern(regex, low, high, self._repeated, is_strict=most is not None)
                return None if rule is None else self._quoted(rule)
        elif format_rule:
            return self._quoted(format_rule)
        return self._quoted(self._repeated("char", low, high))

    def _repeated(self, text: str, low: int, high: int) -> str:
        """Return the rule for a text that is repeated from `low` to `high` times.

        llama.cpp limits the count of one repetition, so a higher count is divided into blocks.
        """
        item = self._rule(text)
        if high <= _COUNT:
            return repeat(item, low, high)
        block = self._rule(repeat(item, _COUNT, _COUNT))
        longer = sequence(block, self._repeated(item, max(0, low - _COUNT), high - _COUNT))
        return self._rule(longer if low >= _COUNT else choice([repeat(item, low, _COUNT - 1), longer]))

    def _quoted(self, text: str) -> str:
        return self._rule(sequence(r'"\""', text, r'"\""'))

    # Lists

    def _max_items(self, at: _Position) -> int:
        return max(1, self._limits.items >> at.level - 1)

    def _array(self, schema: Schema, at: _Position) -> str | None:
        low, most = schema.get("minItems", 0), schema.get("maxItems")
        high = max(low, self._max_items(at)) if most is None else min(most, max(_DECLARED_ITEMS, low))
        if low > high:
            return None
        if first := schema.get("prefixItems", [])[:high]:
            return self._tuple(first, schema, low, high, at)
        if schema.get("uniqueItems") and (values := self._values(schema.get("items", {}))):
            items = dict.fromkeys(self._rule(json_literal(value)) for value in values)
            some = self._some_of(list(items), low, min(high, len(values)))
            return None if some is None else self._rule(sequence('"["', some, '"]"'))
        item = self._value(schema.get("items", {}), at) if high else None
        if item is None:
            return self._rule('"[]"') if low == 0 else None
        return self._rule(self._listed("[", item, low, high, "]"))

    def _listed(self, opening: str, item: str, low: int, high: int, closing: str) -> str:
        more = self._repeated(sequence('", "', item), max(0, low - 1), high - 1) if high > 1 else ""
        inner = sequence(item, more)
        return sequence(literal(opening), inner if low else f"({inner})?", literal(closing))

    def _tuple(self, first: Sequence[Any], schema: Schema, low: int, high: int, at: _Position) -> str | None:
        values: list[str] = []
        for item_schema in first:
            value = self._value(item_schema, at)
            if value is None:  # The list ends before an item that has no valid value.
                high = len(values)
                break
            values.append(value)
        if low > high or not values:
            return self._rule('"[]"') if low == 0 else None
        missing = max(0, low - len(values))
        further = self._value(schema.get("items", True), at) if missing else ""
        if further is None:
            return None
        more = self._repeated(sequence('", "', further), missing, missing) if missing else ""
        return self._rule(sequence('"["', ' ", " '.join(values), more, '"]"'))

    def _values(self, schema: Schema | bool) -> list[Any]:
        """Return all values that `const`, `enum` or the type `boolean` allow, or [] for any other schema."""
        if isinstance(schema, bool):
            return []
        if "$ref" in schema:
            reference = schema["$ref"]
            is_recursive = self._definitions.is_recursive(reference)
            return [] if is_recursive else self._values(self._definitions.target(reference))
        if "const" in schema:
            return [schema["const"]]
        return [False, True] if schema.get("type") == "boolean" else list(schema.get("enum", []))

    def _some_of(self, items: Sequence[str], low: int, high: int) -> str | None:
        """Return the rule for a list of `low` to `high` different items, separated by commas.

        The list has the order of `items`. Return None if there are fewer than `low` items.
        """
        if low > min(high, len(items)):
            return None
        is_limited = high < len(items)
        most = high if is_limited else max(1, low)  # Higher counts of selected items all have the same rules.
        if len(items) * most > _STATES:
            return self._one_of_each(items, low, min(high, len(items), _DECLARED_ITEMS))
        # The loop goes from the last item to the first item. `after` has one rule for each number of items that were
        # already selected: the rule for the remaining items.
        after: list[str | None] = [None if taken < low else '""' for taken in range(most + 1)]
        for item in reversed(items):
            before: list[str | None] = []
            for taken, skipped in enumerate(after):
                is_full = is_limited and taken == most
                following = None if is_full else after[min(taken + 1, most)]
                comma = '", "' if taken else ""
                selected = None if following is None else sequence(comma, item, following if following != '""' else "")
                before.append(self._one_of([selected, skipped]))
            after = before
        return after[0]

    def _one_of_each(self, items: Sequence[str], low: int, high: int) -> str:
        """Return a rule that divides the items into `high` groups and allows at most one item of each group.

        `_some_of` uses this rule if its own rule would be too large.
        """
        edges = [len(items) * index // high for index in range(high + 1)]
        groups = [items[start:end] for start, end in pairwise(edges)]
        return self._members([(self._rule(choice(group)), index < low) for index, group in enumerate(groups)])

    # Objects

    def _object(self, schema: Schema, at: _Position) -> str | None:
        properties: JsonObject = dict(schema.get("properties", {}))
        required = set(schema.get("required", ()))
        for name in schema.get("required", ()):
            properties.setdefault(name, schema.get("additionalProperties", True))
        if not properties:
            return self._dict(schema, at)
        members: list[tuple[str, bool]] = []
        for name, inner in properties.items():
            value = self._value(inner, at)
            if value is None and name in required:
                return None
            if value is not None:
                key = literal(f"{json.dumps(name, ensure_ascii=False)}: ")
                members.append((self._rule(sequence(key, value)), name in required))
        return self._rule(sequence('"{"', self._members(members), '"}"'))

    def _members(self, members: Sequence[tuple[str, bool]]) -> str:
        """Return the rule for the members of an object (key and value), in a fixed order.

        Each item of `members` is the rule of a member, and a boolean that is true if the member is required.
        """
        first = next((index for index, (_, is_required) in enumerate(members) if is_required), None)
        if first is not None:
            before = [f'({member} ", ")?' for member, _ in members[:first]]
            after = [f'", " {member}' if needed else f'(", " {member})?' for member, needed in members[first + 1 :]]
            return sequence(*before, members[first][0], *after)
        return self._some_of([member for member, _ in members], 0, len(members)) or ""

    def _dict(self, schema: Schema, at: _Position) -> str | None:
        low, most = schema.get("minProperties", 0), schema.get("maxProperties")
        key_schema: Schema | bool = schema.get("propertyNames", True)
        value_schema = key_schema is not False and schema.get("additionalProperties", "properties" not in schema)
        key_schema = {} if isinstance(key_schema, bool) else key_schema
        if by_pattern := schema.get("patternProperties"):
            regex, value_schema = next(iter(by_pattern.items()))
            key_schema = {"type": "string", "pattern": regex}
        inner = replace(at, level=at.level + 1)
        names = [_key(name) for name in self._values(key_schema)]
        if names:
            value = self._value(value_schema, at)
            members = [] if value is None else [self._rule(sequence(literal(f"{name}: "), value)) for name in names]
            some = self._some_of(members, low, len(names) if most is None else most)
            return None if some is None else self._rule(sequence('"{"', some, '"}"'))
        high = max(low, self._max_items(inner)) if most is None else min(most, max(_DECLARED_ITEMS, low))
        value = self._value(value_schema, inner) if high else None
        lengths = {} if "pattern" in key_schema else {"minLength": 1, "maxLength": _MAX_KEY}
        key = self._value({**lengths, **key_schema, "type": "string"}, inner)
        if value is None or key is None or low > high:
            return self._rule('"{}"') if low == 0 else None
        return self._rule(self._listed("{", self._rule(sequence(key, '": "', value)), low, high, "}"))


def _key(name: object) -> str:
    """Return an object key as a quoted JSON string.

    A key that is not a string is converted to a string first.
    """
    return json.dumps(name if isinstance(name, str) else json.dumps(name), ensure_ascii=False)
