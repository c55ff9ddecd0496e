"""Generation of JSON Schemas that providers accept, and the rules of strict schemas.

Pydantic generates the schemas. This module removes generated titles, because they only cost tokens. It adds the
keywords that providers require: an object at the top level, and `items` next to `prefixItems`. It also adds rules that
Pydantic enforces but omits from its schemas: the digits of a `Decimal`, dict keys that represent numbers, and times
without a time zone.

A strict schema of OpenAI lists every property as required, forbids additional properties in every object, and uses only
a few keywords. acorn does not make optional properties required to fulfill these rules, because the schema would then
describe other answers. acorn only forbids additional properties.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaMode, JsonSchemaValue
from pydantic_core import PydanticSerializationError, core_schema, to_jsonable_python

from acorn.types import JsonObject, is_json_list, is_json_object

JsonSchema = JsonObject

_MAX_LISTED_KEYS = 100
NAIVE_TIME = r"^[^Zz+]*$"
"""The pattern of a time without a time zone. The grammar of the embedded model recognizes this exact pattern."""


def schema_of(
    source: type[BaseModel] | TypeAdapter[Any], *, by_alias: bool = True, mode: JsonSchemaMode = "validation"
) -> JsonSchema:
    """Return the JSON Schema of a Pydantic class or type adapter. The top level is never only a `$ref`."""
    generate = source.json_schema if isinstance(source, TypeAdapter) else source.model_json_schema
    schema = generate(by_alias=by_alias, schema_generator=_Generator, mode=mode)
    # The schema of a recursive class is a `$ref` at the top level, but providers require `"type": "object"`.
    return inline_refs(schema, schema)


def component_schema(source: type[BaseModel], prefix: str, mode: JsonSchemaMode) -> JsonSchema:
    """Return the JSON Schema of a Pydantic class whose references point to the components of an OpenAPI document.

    The names of the components start with `prefix`. The property names are the field names, not the aliases.
    """
    template = f"#/components/schemas/{prefix}{{model}}"
    return source.model_json_schema(by_alias=False, ref_template=template, schema_generator=_Generator, mode=mode)


def resolve_ref(ref: str, schema: JsonSchema) -> JsonSchema:
    """Return the schema that a reference such as `#/$defs/Name` points to, or {} if the target does not exist."""
    node = find_target(ref, schema)
    return node if is_json_object(node) else {}


def find_target(ref: str, schema: Any) -> Any:
    """Return the value that a reference points to, or {} if the target does not exist."""
    node: Any = schema if ref == "#" or ref.startswith("#/") else {}
    for part in ref.split("/")[1:]:  # A user's schema may use any JSON pointer.
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if is_json_list(node):
            index = int(key) if key.isdecimal() and len(key) < 6 else len(node)
            node = node[index] if index < len(node) else {}
        else:
            node = node.get(key, {}) if is_json_object(node) else {}
    return node


def additional_schema(node: JsonSchema) -> JsonSchema | None:
    """Return the schema for additional properties of an object schema, or None if they are forbidden."""
    schema = node.get("additionalProperties", False)
    if schema is False:
        schema = next(iter(node.get("patternProperties", {}).values()), None)
    return {} if schema is True else schema


def follow_refs(node: JsonSchema, top: JsonSchema) -> JsonSchema:
    """Follow the `$ref` of a schema node until a node has no `$ref`, and return the last node.

    The result is {} if the references are circular. `top` is the complete schema, which contains the targets.
    """
    seen: set[str] = set()
    while "$ref" in node:
        if node["$ref"] in seen:
            return {}
        seen.add(node["$ref"])
        node = resolve_ref(node["$ref"], top)
    return node


def inline_refs(node: JsonSchema, top: JsonSchema) -> JsonSchema:
    """Return a schema node that contains the keywords of the target of its `$ref`, and its own keywords.

    A circular `$ref` stays in the result. `top` is the complete schema, which contains the targets.
    """
    seen: set[str] = set()
    while "$ref" in node and node["$ref"] not in seen:
        seen.add(node["$ref"])
        node = {**resolve_ref(node["$ref"], top), **{key: value for key, value in node.items() if key != "$ref"}}
    return node


_KEYWORDS = {
    "object": ("properties", "additionalProperties", "patternProperties", "required", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""A dict that maps a type to the keywords that imply it."""


def implied_type(schema: JsonSchema) -> str:
    """Return the type that follows from the other keywords of a schema, for a schema without `type`.

    For example, `minLength` implies `string`. Return "" if no keyword implies a type.
    """
    return next((kind for kind, keywords in _KEYWORDS.items() if not schema.keys().isdisjoint(keywords)), "")


class _Generator(GenerateJsonSchema):
    # Pydantic omits a default value that JSON cannot represent. The tool function still uses this default value.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        # Do not sort: a model generates the fields in the order of the schema, which is the declared order.
        return value

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        generated = super().generate_inner(schema)
        ref = generated.get("$ref")
        # A recursive definition has no entry before its generation ends. A later call of this method changes it.
        definition = generated if ref is None else self.get_schema_from_definitions(JsonRef(ref)) or {}
        _drop_title(definition, schema.get("cls"))
        _add_items(definition)
        if "keys_schema" in schema and generated.get("type") == "object" and "patternProperties" not in generated:
            keys = super().generate_inner(schema["keys_schema"])
            if "$ref" in keys:
                keys = self.get_schema_from_definitions(JsonRef(keys["$ref"])) or {}
            if names := _key_schema(keys):
                generated["propertyNames"] = names
        return generated

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        generated = super().decimal_schema(schema)
        if len(generated.get("anyOf", ())) == 2:
            generated["anyOf"][1] = {"type": "string", "pattern": _decimal_pattern(schema)}
        return generated

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        return _apply_zone_rule(super().datetime_schema(schema), schema.get("tz_constraint"))

    def time_schema(self, schema: core_schema.TimeSchema) -> JsonSchemaValue:
        return _apply_zone_rule(super().time_schema(schema), schema.get("tz_constraint"))

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        generated = super().enum_schema(schema)
        generated["enum"] = unique(generated["enum"])  # An enum member may be an alias of another member.
        return generated

    def arguments_schema(self, schema: core_schema.ArgumentsSchema) -> JsonSchemaValue:
        generated = super().arguments_schema(schema)
        if schema.get("var_kwargs_mode") == "unpacked-typed-dict":
            keywords = self.resolve_ref_schema(generated.pop("additionalProperties"))
            generated["properties"].update(keywords["properties"])
            if required := [*generated.get("required", []), *keywords.get("required", [])]:
                generated["required"] = required
        elif generated.get("additionalProperties") is False:
            del generated["additionalProperties"]
        return generated

    def get_argument_name(self, argument: Any) -> str:
        alias = argument.get("alias")
        if self.by_alias and is_json_list(alias):  # For `AliasChoices`, use the first alias that is a simple name.
            names = [str(path[0]) for path in alias if is_json_list(path) and len(path) == 1]
            return names[0] if names else str(argument["name"])
        return super().get_argument_name(argument)

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(schema, "a class")

    def encode_default(self, dft: Any) -> Any:
        if dft is None or type(dft) in (str, int, bool):
            return dft  # These types need no conversion, and Pydantic would build a type adapter for each value.
        try:
            json.dumps(to_jsonable_python(dft, inf_nan_mode="constants"), allow_nan=False)
        except ValueError as error:  # JSON has no infinity, and Pydantic would replace it with null.
            raise PydanticSerializationError(str(error)) from error
        return super().encode_default(dft)


def unique(values: list[Any]) -> list[Any]:
    """Return a list without repeated values, which may be unhashable."""
    return [value for index, value in enumerate(values) if value not in values[:index]]


def _drop_title(schema: JsonSchemaValue, cls: object) -> None:
    """Remove the title of a schema if Pydantic generated it from the class name, and preserve a user's title."""
    if "title" in schema and schema["title"] == getattr(cls, "__name__", None):
        del schema["title"]


def _add_items(schema: JsonSchemaValue) -> None:
    """Add the keyword `items` to an array schema, because OpenAI requires this keyword.

    Pydantic omits `items` only if `prefixItems` or a maximum length limits the array, so the accepted values do not
    change.
    """
    if schema.get("type") == "array" and "items" not in schema:
        members = unique(schema.get("prefixItems", []))
        schema["items"] = {} if not members else members[0] if len(members) == 1 else {"anyOf": members}


def _decimal_pattern(schema: core_schema.DecimalSchema) -> str:
    """Return the regular expression for a `Decimal` as text, with its maximum numbers of digits.

    The embedded model builds its grammar from this regular expression, so a change of its form needs a change there.
    """
    digits, places = schema.get("max_digits"), schema.get("decimal_places")
    if digits is None:
        fraction = "" if places == 0 else r"(\.\d+)?" if places is None else rf"(\.\d{{1,{places}}})?"
        return rf"^-?\d+{fraction}$"
    if places is None:
        options = [_digits_pattern(digits - count, count) for count in range(min(digits, 7))]
        return f"^-?({'|'.join(options)})$" if len(options) > 1 else f"^-?{options[0]}$"
    return f"^-?{_digits_pattern(digits - places, places)}$"


def _digits_pattern(integer_digits: int, places: int) -> str:
    if integer_digits <= 0:
        return rf"0\.\d{{1,{places}}}"
    return rf"\d{{1,{integer_digits}}}" + (rf"(\.\d{{1,{places}}})?" if places else "")


def _apply_zone_rule(schema: JsonSchemaValue, zone: object) -> JsonSchemaValue:
    return {**schema, "pattern": NAIVE_TIME} if zone == "naive" and schema.get("type") == "string" else schema


def _key_schema(keys: JsonSchemaValue) -> JsonSchemaValue:
    """Return the JSON Schema for the keys of a JSON object, if the Python keys of the dict are numbers or booleans.

    In JSON, all keys are strings, so the number 1 becomes "1". `keys` is the JSON Schema of the Python keys. The result
    is {} if JSON Schema needs no rule for the keys.
    """
    kind = keys.get("type")
    if kind == "integer" and "enum" in keys:
        return {"enum": [str(value) for value in keys["enum"]]}
    if kind == "boolean":
        return {"enum": ["true", "false"]}
    low, high = keys.get("minimum", keys.get("exclusiveMinimum")), keys.get("maximum")
    if kind == "integer":
        low = keys["exclusiveMinimum"] + 1 if "exclusiveMinimum" in keys else low
        high = keys["exclusiveMaximum"] - 1 if "exclusiveMaximum" in keys else high
        if low is not None and high is not None and 0 <= high - low < _MAX_LISTED_KEYS and "multipleOf" not in keys:
            return {"enum": [str(value) for value in range(low, high + 1)]}
    if kind in ("integer", "number"):
        sign = "-?" if low is None or low < 0 else ""
        return {"pattern": rf"^{sign}\d+$" if kind == "integer" else rf"^{sign}\d+(\.\d+)?$"}
    texts = [member["pattern"] for member in keys.get("anyOf", ()) if set(member) == {"type", "pattern"}]
    return {"pattern": texts[0]} if len(texts) == 1 and keys["anyOf"][0].get("type") == "number" else {}


_STRICT_KEYWORDS = frozenset(
    (
        *("type", "description", "title", "enum", "const", "anyOf", "$ref", "$defs"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
_STRICT_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_MAX_STRICT_DEPTH = 10
_MAX_STRICT_PROPERTIES = 5000


def is_strict(schema: JsonSchema) -> bool:
    """Return True if OpenAI accepts the schema in strict mode without changes."""
    if schema.get("type") != "object" or "anyOf" in schema:
        return False
    nodes = list(_nested_schemas(schema, 0))
    return (
        sum(len(node.get("properties", ())) for node, _ in nodes) <= _MAX_STRICT_PROPERTIES
        and max(depth for _, depth in nodes) <= _MAX_STRICT_DEPTH
        and all(_is_strict_node(node) for node, _ in nodes)
    )


def close_objects(schema: JsonSchema) -> JsonSchema:
    """Return a copy of a schema in which objects forbid additional properties.

    An object schema that already has `additionalProperties` stays unchanged.
    """
    result = dict(schema)
    for key, inner in schema.items():
        if key in ("properties", "$defs") and is_json_object(inner):
            result[key] = {name: _close_inner(member) for name, member in inner.items()}
        elif key == "anyOf" and is_json_list(inner):
            result[key] = [_close_inner(member) for member in inner]
        elif key == "items":
            result[key] = _close_inner(inner)
    if "properties" in result:
        result.setdefault("additionalProperties", False)
    return result


def _close_inner(inner: object) -> object:
    return close_objects(inner) if is_json_object(inner) else inner


def _nested_schemas(schema: JsonSchema, depth: int) -> list[tuple[JsonSchema, int]]:
    """Return a list of (schema, nesting depth) for a schema and all schemas inside it."""
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    inner_depth = depth + (schema.get("type") == "object")
    nodes = [(schema, inner_depth)]
    for node in inner:
        nodes += _nested_schemas(node if is_json_object(node) else {"not": node}, inner_depth)
    return nodes


def _is_strict_node(node: JsonSchema) -> bool:
    if not node.keys() <= _STRICT_KEYWORDS or node.get("format", "date") not in _STRICT_FORMATS:
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
