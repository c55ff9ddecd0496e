"""JSON Schema the way providers want it.

Pydantic does the work; this room takes away what only costs tokens (generated titles) and adds what a
provider would otherwise refuse: an object at the top, and `items` beside `prefixItems`. It says what Pydantic
leaves unsaid and then demands: the digits of a `Decimal`, the keys of a dict that stand for numbers, times
without a zone. `_tools` and `_schema.shape` call it; nobody else generates schemas.

Whether a JSON Schema is one that OpenAI takes as a strict one, word by word as it stands.

A strict schema names every property as required, closes every object, and keeps to a few keywords. What need not be
given would have to be, so nothing is rewritten here but for closing an object, which loses nothing.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaMode, JsonSchemaValue
from pydantic_core import PydanticSerializationError, core_schema, to_jsonable_python

from acorn.types import JsonObject

JsonSchema = JsonObject

_NAIVE = r"^[^Zz+]*$"
"""A time without a zone. The grammar of the embedded model knows it by this text."""
_KEYS = 100
"""So many keys are told one by one."""


def schema_of(
    source: type[BaseModel] | TypeAdapter[Any], *, by_alias: bool = True, mode: JsonSchemaMode = "validation"
) -> JsonSchema:
    """The JSON Schema of a Pydantic class or adapter, with an object at its top; `mode` is what is read or written."""
    if isinstance(source, TypeAdapter):
        schema = source.json_schema(by_alias=by_alias, schema_generator=_Generator, mode=mode)
    else:
        schema = source.model_json_schema(by_alias=by_alias, schema_generator=_Generator, mode=mode)
    # A recursive model is a `$ref` at the top. Providers want `"type": "object"` there.
    return inline_refs(schema, schema)


def resolve_ref(ref: str, schema: JsonSchema) -> JsonSchema:
    """The definition that a `#/$defs/Name`, or another pointer into the document, points to; {} if there is none."""
    found: Any = schema.get("$defs", {}).get(ref.removeprefix("#/$defs/"))
    if found is None:  # of a schema that is not ours
        found = schema if ref == "#" or ref.startswith("#/") else {}
        for part in ref.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            found = found.get(key, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}


def follow_refs(node: JsonSchema, top: JsonSchema) -> JsonSchema:
    """The schema itself, or the one that its reference leads to in the end; {} where it leads in a circle."""
    seen: set[str] = set()
    while "$ref" in node:
        if node["$ref"] in seen:
            return {}
        seen.add(node["$ref"])
        node = resolve_ref(node["$ref"], top)
    return node


def inline_refs(node: JsonSchema, top: JsonSchema) -> JsonSchema:
    """The schema with its own keys beside what its reference leads to; a circle leaves the reference in it."""
    seen: set[str] = set()
    while "$ref" in node and node["$ref"] not in seen:
        seen.add(node["$ref"])
        node = {**resolve_ref(node["$ref"], top), **{key: value for key, value in node.items() if key != "$ref"}}
    return node


class _Generator(GenerateJsonSchema):
    # A default that JSON cannot hold is simply not told to the model; the function still has it.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def build_schema_type_to_method(self) -> Any:
        return _Methods(self)

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        # Fields keep the order of their declaration, which is the order a model writes them in.
        return value

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        made = super().generate_inner(schema)
        ref = made.get("$ref")
        # A definition that is still being made has no entry yet; it comes by here once it is.
        definition = made if ref is None else self.get_schema_from_definitions(JsonRef(ref)) or {}
        _drop_title(definition, schema.get("cls"))
        _add_items(definition)
        if "keys_schema" in schema and made.get("type") == "object" and "patternProperties" not in made:
            keys = super().generate_inner(schema["keys_schema"])
            if "$ref" in keys:
                keys = self.get_schema_from_definitions(JsonRef(keys["$ref"])) or {}
            if named := _as_keys(keys):
                made["propertyNames"] = named
        return made

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        made = super().decimal_schema(schema)
        if len(made.get("anyOf", ())) == 2:
            made["anyOf"][1] = {"type": "string", "pattern": _decimal_pattern(schema)}
        return made

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        return _zoned(super().datetime_schema(schema), schema.get("tz_constraint"))

    def time_schema(self, schema: core_schema.TimeSchema) -> JsonSchemaValue:
        return _zoned(super().time_schema(schema), schema.get("tz_constraint"))

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        made = super().enum_schema(schema)
        values = made["enum"]  # an alias in an enum repeats its value
        made["enum"] = [value for at, value in enumerate(values) if value not in values[:at]]
        return made

    def arguments_schema(self, schema: core_schema.ArgumentsSchema) -> JsonSchemaValue:
        made = super().arguments_schema(schema)
        if schema.get("var_kwargs_mode") == "unpacked-typed-dict":
            named = self.resolve_ref_schema(made.pop("additionalProperties"))
            made["properties"].update(named["properties"])
            if required := [*made.get("required", []), *named.get("required", [])]:
                made["required"] = required
        elif made.get("additionalProperties") is False:
            del made["additionalProperties"]
        return made

    def get_argument_name(self, argument: Any) -> str:
        alias = argument.get("alias")
        if self.by_alias and isinstance(alias, list):  # `AliasChoices`: the first that is a plain name
            names = [str(path[0]) for path in alias if isinstance(path, list) and len(path) == 1]
            return names[0] if names else str(argument["name"])
        return super().get_argument_name(argument)

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(schema, "a class")

    def encode_default(self, dft: Any) -> Any:
        if dft is None or type(dft) in (str, int, bool):
            return dft  # JSON already; Pydantic would build an adapter for each
        try:
            json.dumps(to_jsonable_python(dft, inf_nan_mode="constants"), allow_nan=False)
        except ValueError as error:  # infinity, which Pydantic would write as null
            raise PydanticSerializationError(str(error)) from error
        return super().encode_default(dft)


class _Methods(JsonObject):
    """A generator's methods, each looked up when its kind of schema comes: there are many, and few are called."""

    def __init__(self, generator: _Generator) -> None:
        self._generator = generator

    def __missing__(self, kind: str) -> Any:
        return getattr(self._generator, f"{kind.replace('-', '_')}_schema")


def _drop_title(made: JsonSchemaValue, cls: Any) -> None:
    """Take away the title that Pydantic took from the class; one that a user wrote stays."""
    if "title" in made and made["title"] == getattr(cls, "__name__", None):
        del made["title"]


def _add_items(made: JsonSchemaValue) -> None:
    """Give an array `items`, which OpenAI demands of every one.

    Where there is none, the length is bounded: by the standard it has nothing left to say.
    """
    if made.get("type") == "array" and "items" not in made:
        members: list[JsonSchemaValue] = []
        for member in made.get("prefixItems", []):
            if member not in members:
                members.append(member)
        made["items"] = {} if not members else members[0] if len(members) == 1 else {"anyOf": members}


def _decimal_pattern(schema: core_schema.DecimalSchema) -> str:
    """A decimal number as text. The grammar of the embedded model reads the digits from it."""
    digits, places = schema.get("max_digits"), schema.get("decimal_places")
    if digits is None:
        fraction = "" if places == 0 else r"(\.\d+)?" if places is None else rf"(\.\d{{1,{places}}})?"
        return rf"^-?\d+{fraction}$"
    if places is None:
        rows = [_row(digits - count, count) for count in range(min(digits, 7))]
        return f"^-?({'|'.join(rows)})$" if len(rows) > 1 else f"^-?{rows[0]}$"
    return f"^-?{_row(digits - places, places)}$"


def _row(whole: int, places: int) -> str:
    if whole <= 0:
        return rf"0\.\d{{1,{places}}}"
    return rf"\d{{1,{whole}}}" + (rf"(\.\d{{1,{places}}})?" if places else "")


def _zoned(made: JsonSchemaValue, zone: Any) -> JsonSchemaValue:
    return {**made, "pattern": _NAIVE} if zone == "naive" and made.get("type") == "string" else made


def _as_keys(keys: JsonSchemaValue) -> JsonSchemaValue:
    """What keys of JSON, which are strings, must be where they stand for something else."""
    kind = keys.get("type")
    if kind == "integer" and "enum" in keys:
        return {"enum": [str(value) for value in keys["enum"]]}
    if kind == "boolean":
        return {"enum": ["true", "false"]}
    if kind == "integer":
        low, high = keys.get("minimum"), keys.get("maximum")
        low = keys["exclusiveMinimum"] + 1 if "exclusiveMinimum" in keys else low
        high = keys["exclusiveMaximum"] - 1 if "exclusiveMaximum" in keys else high
        if low is not None and high is not None and 0 <= high - low < _KEYS and "multipleOf" not in keys:
            return {"enum": [str(value) for value in range(low, high + 1)]}
        return {"pattern": rf"^{_sign(low)}\d+$"}
    if kind == "number":
        return {"pattern": rf"^{_sign(keys.get('minimum', keys.get('exclusiveMinimum')))}\d+(\.\d+)?$"}
    texts = [member["pattern"] for member in keys.get("anyOf", ()) if set(member) == {"type", "pattern"}]
    return {"pattern": texts[0]} if len(texts) == 1 and keys["anyOf"][0].get("type") == "number" else {}


def _sign(low: Any) -> str:
    return "-?" if low is None or low < 0 else ""


_WORDS = frozenset(
    (
        *("type", "description", "title", "enum", "const", "anyOf", "$ref", "$defs"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_DEEPEST = 10
_MOST_PROPERTIES = 5000


def is_strict(schema: JsonSchema) -> bool:
    """Whether it can be sent as a strict one, unchanged."""
    if schema.get("type") != "object" or "anyOf" in schema:
        return False
    nodes = list(_nodes(schema, 0))
    count = sum(len(node.get("properties", ())) for node, _ in nodes)
    deepest = max(depth for _, depth in nodes)
    return count <= _MOST_PROPERTIES and deepest <= _DEEPEST and all(_fits(node) for node, _ in nodes)


def close_objects(schema: JsonSchema) -> JsonSchema:
    """The same, where objects that do not speak of further properties forbid them."""
    made = dict(schema)
    for key in ("properties", "$defs"):
        if isinstance(made.get(key), dict):
            made[key] = {name: _closed(inner) for name, inner in made[key].items()}
    if isinstance(made.get("anyOf"), list):
        made["anyOf"] = [_closed(inner) for inner in made["anyOf"]]
    if "items" in made:
        made["items"] = _closed(made["items"])
    if "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


def _closed(inner: Any) -> Any:
    return close_objects(inner) if isinstance(inner, dict) else inner


def _nodes(schema: JsonSchema, depth: int) -> list[tuple[JsonSchema, int]]:
    """The schema and all within it, each with how many objects are around it."""
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    below = depth + (schema.get("type") == "object")
    found = [(schema, below)]
    for each in inner:
        found += _nodes(each if isinstance(each, dict) else {"not": each}, below)
    return found


def _fits(node: JsonSchema) -> bool:
    if not node.keys() <= _WORDS or node.get("format", "date") not in _FORMATS:
        return False
    if "$ref" in node:
        return node.keys() <= {"$ref", "$defs"}
    kind = node.get("type")
    if kind == "object":
        names = node.get("properties", {}).keys()
        return node.get("additionalProperties") is False and names == set(node.get("required", ()))
    if kind == "array":
        return bool(node.get("items"))
    return kind is not None or not {"anyOf", "enum", "const"}.isdisjoint(node)
