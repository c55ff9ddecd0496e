"""Regular expressions of JSON Schemas, matched in linear time.

A schema may come from an MCP server or from a file. Python's `re` module needs exponential time for expressions such as
`^(a+)+$`, and no other thread can run meanwhile. This module uses the engine of Pydantic's core, which needs linear
time. It does not support lookaround and backreferences. Such an expression, and a very long text, is not checked: the
server or the function that receives the text must check it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, cast

from pydantic_core import SchemaError, SchemaValidator, core_schema

from acorn._formats.schema.regex import MAX_LENGTH, check_syntax, has_set_operation, matches_short_text
from acorn.types import JsonObject, is_json_object

_MAX_TEXT = 10_000
"""The maximum length of a checked text. An expression such as `(.{1000}){10}` needs 0.1 ms for each character."""


def matches(pattern: str, text: str) -> bool:
    """Return True if a text contains a match of a regular expression, or if acorn does not check the expression."""
    if len(text) > _MAX_TEXT or (engine := _compile(pattern)) is None:
        return True
    return _search(engine, text)


def matches_generated(pattern: str, text: str) -> bool:
    """Return True if a text that acorn has generated contains a match of a regular expression.

    If only Python supports the expression, it is matched if this takes a short time, and the result is False otherwise.
    """
    if (engine := _compile(pattern)) is None:
        return matches_short_text(pattern, text)
    return len(text) > _MAX_TEXT or _search(engine, text)


def _search(engine: SchemaValidator, text: str) -> bool:
    return engine.isinstance_python(text.encode("utf-8", "replace").decode())  # The engine rejects lone surrogates.


@lru_cache(maxsize=256)
def _compile(pattern: str) -> SchemaValidator | None:
    """Return a validator for texts that contain a match, or None if the linear engine does not support the pattern."""
    # The engine would read an inner `[` or `&&` in a class as an operation, which JSON Schema does not have.
    if len(pattern) > MAX_LENGTH or has_set_operation(pattern):
        return None
    try:
        schema = core_schema.str_schema(strict=True, pattern=pattern.replace("\\Z", "\\z"), regex_engine="rust-regex")
        return SchemaValidator(schema)
    except (SchemaError, UnicodeError):
        return None


# Validators of the package `jsonschema`


def make_validator(schema: JsonObject, draft: Any = None) -> Any:
    """Create a validator for a JSON Schema, which matches patterns in linear time and loads nothing from the web.

    `draft` is a validator class of the package `jsonschema`. The default is the class for the `$schema` of the schema.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    draft = draft or cast(Any, validator_for)(schema, default=Draft202012Validator)
    linear = _linear_class(draft, '"patternProperties"' in json.dumps(schema))
    return linear(schema, registry=Registry[Any]())  # The default registry would load unknown schemas from the web.


def check_schema(schema: JsonObject, draft: Any) -> None:
    """Raise `SchemaError` of the package `jsonschema` if a JSON Schema is not valid."""
    from jsonschema import FormatChecker

    checker = FormatChecker(formats=())
    # To compile a hostile pattern takes minutes, so this check only parses it.
    checker.checkers = {**draft.FORMAT_CHECKER.checkers, "regex": (check_syntax, ValueError)}
    draft.check_schema(schema, format_checker=checker)


@lru_cache(maxsize=16)
def _linear_class(draft: Any, has_named: bool) -> Any:
    """Return a copy of a validator class that matches patterns in linear time.

    If a schema contains `patternProperties`, its `unevaluatedProperties` are not checked.
    """
    from jsonschema.validators import extend  # pyright: ignore[reportUnknownVariableType]

    originals: dict[str, Any] = draft.VALIDATORS
    checks: dict[str, Any] = {
        "pattern": _check_pattern,
        "patternProperties": _check_named,
        "additionalProperties": partial(_check_additional, originals["additionalProperties"]),
        **({"unevaluatedProperties": _check_nothing} if has_named else {}),
    }
    linear: Any = cast(Any, extend)(draft, {name: check for name, check in checks.items() if name in originals})
    original: Callable[..., Any] = linear.evolve

    def evolve(self: Any, **changes: Any) -> Any:
        # With a `$schema` in an inner schema, the package would continue with its own class.
        schema = changes.get("schema")
        if is_json_object(schema) and "$schema" in schema:
            changes["schema"] = {key: value for key, value in schema.items() if key != "$schema"}
        return original(self, **changes)

    linear.evolve = evolve
    return linear


def _check_nothing(*_: object) -> tuple[()]:
    return ()


def _check_pattern(validator: Any, pattern: str, instance: object, schema: JsonObject) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _check_named(validator: Any, schemas: JsonObject, instance: Any, schema: JsonObject) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, inner in schemas.items():
            for name in matching_names([pattern], instance):
                yield from validator.descend(instance[name], inner, path=name, schema_path=pattern)


def _check_additional(
    original: Callable[..., Iterator[Any] | None], validator: Any, allowed: Any, instance: Any, schema: JsonObject
) -> Iterator[Any]:
    """Call the check of the package with a schema that lists the names instead of patterns for them."""
    if schema.get("patternProperties") and validator.is_type(instance, "object"):
        named = dict.fromkeys(matching_names(schema["patternProperties"], instance), True)
        schema = {**schema, "properties": {**named, **schema.get("properties", {})}, "patternProperties": {}}
    yield from original(validator, allowed, instance, schema) or ()


def matching_names(patterns: Collection[str], names: Iterable[str]) -> list[str]:
    """Return the names that match one of the patterns."""
    return [name for name in names if any(matches(pattern, name) for pattern in patterns)]
