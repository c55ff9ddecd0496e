"""JSON Schema the way providers want it.

Pydantic does the work; this room takes away what only costs tokens (generated titles) and adds what a
provider would otherwise refuse: an object at the top, and `items` beside `prefixItems`. `_tools` and
`_schema.shape` call it; nobody else generates schemas.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

JsonSchema = dict[str, Any]


def schema_of(source: type[BaseModel] | TypeAdapter[Any], *, by_alias: bool = True) -> JsonSchema:
    """The JSON Schema of a Pydantic class or adapter, with an object at its top."""
    if isinstance(source, TypeAdapter):
        schema = source.json_schema(by_alias=by_alias, schema_generator=_Generator)
    else:
        schema = source.model_json_schema(by_alias=by_alias, schema_generator=_Generator)
    return _inline_top(schema)


def _inline_top(schema: JsonSchema) -> JsonSchema:
    """Put a definition in the place of a `$ref` at the top, as a recursive model gives it.

    Providers want `"type": "object"` there; the definition stays for the references inside.
    """
    while "$ref" in schema:
        ref = schema["$ref"]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**resolve(ref, schema), **rest}
    return schema


def resolve(ref: str, schema: JsonSchema) -> JsonSchema:
    """The definition that a `#/$defs/Name` points to."""
    found: JsonSchema = schema["$defs"][ref.removeprefix("#/$defs/")]
    return found


class _Generator(GenerateJsonSchema):
    # A default that JSON cannot hold is simply not told to the model; the function still has it.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        # Fields keep the order of their declaration, which is the order a model writes them in.
        return value

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        # Pydantic would build an adapter for each; most defaults are JSON already.
        return dft if dft is None or type(dft) in (str, int, float, bool) else super().encode_default(dft)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _untitled(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _untitled(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _untitled(super().typed_dict_schema(schema), schema.get("cls"))

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        return _untitled(super().enum_schema(schema), schema["cls"])

    def kw_arguments_schema(
        self,
        arguments: list[core_schema.ArgumentsParameter],
        var_kwargs_schema: core_schema.CoreSchema | None,
    ) -> JsonSchemaValue:
        schema = super().kw_arguments_schema(arguments, var_kwargs_schema)
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]
        return schema

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        return _with_items(super().tuple_schema(schema))

    def p_arguments_schema(
        self, arguments: list[core_schema.ArgumentsParameter], var_args_schema: core_schema.CoreSchema | None
    ) -> JsonSchemaValue:
        return _with_items(super().p_arguments_schema(arguments, var_args_schema))


def _untitled(schema: JsonSchemaValue, cls: type[Any] | None) -> JsonSchemaValue:
    """Drop the title that Pydantic took from the class; one that a user wrote stays."""
    if cls is not None and schema.get("title") == cls.__name__:
        del schema["title"]
    return schema


def _with_items(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Give a fixed-length array `items`, which OpenAI demands of every array.

    The length is bounded, so that by the standard `items` has nothing left to say and nothing changes.
    """
    if schema.get("type") == "array" and "items" not in schema:
        members: list[JsonSchemaValue] = []
        for member in schema.get("prefixItems", []):
            if member not in members:
                members.append(member)
        schema["items"] = {} if not members else members[0] if len(members) == 1 else {"anyOf": members}
    return schema
