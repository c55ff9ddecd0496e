"""JSON Schema the way providers want it.

Pydantic does the work; this room takes away what only costs tokens (generated titles) and adds what a
provider would otherwise refuse: an object at the top, and `items` beside `prefixItems`. `_tools` and
`_schema.shape` call it; nobody else generates schemas.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaValue
from pydantic_core import PydanticSerializationError, core_schema, to_jsonable_python

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

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        made = super().generate_inner(schema)
        ref = made.get("$ref")
        # A definition that is still being made has no entry yet; it comes by here once it is.
        definition = made if ref is None else self.get_schema_from_definitions(JsonRef(ref)) or {}
        _drop_title(definition, schema.get("cls"))
        _add_items(definition)
        return made

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
