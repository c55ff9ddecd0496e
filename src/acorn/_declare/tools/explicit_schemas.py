"""The arguments of tools that have an explicit JSON Schema instead of type hints.

acorn sends the schema to the model unchanged, and passes the model's arguments to the function unchanged. The package
`jsonschema` checks the arguments. It is imported when the first such tool is declared. acorn never downloads a schema,
so a reference to another document is an error in the declaration.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_core import from_json

from acorn._declare.tools.decorator import is_partial
from acorn._declare.tools.kinds import ArgumentError, Arguments
from acorn._declare.tools.signature_schemas import (
    is_run_hint,
    not_an_object,
    parameters_of,
    read_hints,
    unwrap_decorators,
)
from acorn._formats.json import describe_error, excerpt, shorten
from acorn._formats.schema.generate import JsonSchema
from acorn._formats.schema.problems import describe_errors, describe_unknown_property, required_properties
from acorn.errors import DeclarationError
from acorn.record import Run
from acorn.types import is_json_object

_P = inspect.Parameter
_BY_NAME = (_P.POSITIONAL_OR_KEYWORD, _P.KEYWORD_ONLY)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_CONDITIONS = {"$ref", "allOf", "anyOf", "oneOf", "if", "dependentRequired", "dependentSchemas", "dependencies"}
"""The schema keywords, apart from `required`, that may make a property required."""


@dataclass(frozen=True, eq=False)
class SchemaBinding:
    """The binding of a function with an explicit JSON Schema, which validates the arguments of a call."""

    schema: JsonSchema
    validator: Any
    injected: tuple[str, ...] = ()
    """The parameters that are annotated `acorn.Run` and receive the run."""
    filled: frozenset[str] = frozenset()
    """The keywords that a partial or the run sets. The model must not set them, even if the schema allows it."""
    known: frozenset[str] | None = None
    """The keywords that the function accepts, or None if it accepts any keyword."""

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        """Return the keyword arguments from JSON text without conversion, so that "5" does not become 5."""
        arguments = arguments or "{}"
        try:
            # NaN is not valid JSON, and a schema cannot describe it.
            received = from_json(arguments, allow_inf_nan=False)
        except (ValueError, TypeError) as error:  # A lone surrogate raises a TypeError.
            raise ArgumentError(f"The arguments are not valid JSON: {shorten(str(error))}") from error
        if not is_json_object(received):
            raise ArgumentError(not_an_object(arguments))
        try:
            errors = dict.fromkeys(describe_errors(self.validator.iter_errors(received), self.schema))
        except Exception as error:  # The user's schema may raise any error, and deeply nested arguments too.
            raise ArgumentError(f"The arguments cannot be checked: {shorten(describe_error(error))}") from error
        if taken := self.filled & received.keys():
            raise ArgumentError(f"argument `{min(taken)}` is filled in already and cannot be set")
        if self.known is not None:  # A schema that allows other properties does not report them.
            unknown = [name for name in received if name not in self.known]
            errors |= dict.fromkeys(describe_unknown_property([], name, received, self.schema) for name in unknown)
        if errors:
            raise ArgumentError("; ".join(errors))
        return (), {**received, **dict.fromkeys(self.injected, run)}


def schema_binding(
    schema: Any,
    function: Callable[..., Any],
    label: str,
    *,
    drop_first: bool = False,
    local_names: Mapping[str, object] | None = None,
) -> SchemaBinding:
    """Return the binding of a function with an explicit schema, after a check that they fit together.

    `drop_first` omits the `self` of a method.
    """
    validator = _make_validator(schema, label)
    inner = unwrap_decorators(function)
    filled = frozenset(inner.keywords if is_partial(inner) else ())
    parameters = [p for p in parameters_of(inner, label, drop_first) if p.name not in filled]
    named = [*schema.get("properties", {}), *required_properties(schema)]
    others = [p for p in parameters if p.name not in named and p.annotation is not _P.empty]
    hints = read_hints(inner, others, label, local_names or {})  # The schema replaces the type hints of the arguments.
    injected = tuple(p.name for p in others if p.kind in _BY_NAME and is_run_hint(hints[p.name]))
    if taken := [name for name in named if name in filled]:
        raise DeclarationError(
            f"The schema of the tool `{label}` has the property `{taken[0]}`, which the partial already sets. "
            f"Remove it from one of them."
        )
    free = [p for p in parameters if p.name not in injected]
    _check_call(schema, free, label)
    takes_any = any(p.kind is _P.VAR_KEYWORD for p in free)
    known = None if takes_any else frozenset(p.name for p in free if p.kind in _BY_NAME)
    return SchemaBinding(schema, validator, injected, filled | frozenset(injected), known)


def _make_validator(schema: object, label: str) -> Any:
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    whose = f"`schema` of the tool `{label}`"
    if not is_json_object(schema):
        raise DeclarationError(f"{whose} must be a dict with a JSON Schema, got {excerpt(schema)}.")
    validator_class = _check_draft(schema, whose)
    if schema.get("type", "object") != "object" or not {"type", "properties"} & schema.keys():
        raise DeclarationError(
            f"{whose} must describe an object, as in {{'type': 'object', 'properties': {{...}}}}, "
            f"got {excerpt(schema.get('type', schema))}."
        )
    # Use an empty registry, because the default registry of `jsonschema` downloads unknown references.
    registry: Registry[Any] = Registry()
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    for reference in _unresolved_references(root, registry.resolver_with_root(root)):
        raise DeclarationError(
            f"{whose} refers to `{shorten(reference)}`, which is not in it. acorn fetches nothing: put the "
            f"definition under `$defs` and refer to it as `#/$defs/...`."
        )
    return validator_class(schema, registry=registry)


def _check_draft(schema: JsonSchema, whose: str) -> Any:
    """Return the validator class for the JSON Schema draft of a schema.

    Raise an error if the schema is invalid.
    """
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for

    dialect = schema.get("$schema")
    validator_class: Any = Draft202012Validator if dialect is None else None
    if isinstance(dialect, str):
        validator_class = cast(Any, validator_for)(schema, default=None)
    if validator_class is None:
        raise DeclarationError(
            f"{whose} has the `$schema` {excerpt(dialect)}, which is not a known draft of JSON Schema. "
            f"Remove it to use Draft 2020-12."
        )
    try:
        json.dumps(schema, allow_nan=False)
        validator_class.check_schema(schema)
    except SchemaError as error:
        where = f" at `{'.'.join(map(str, error.absolute_path))}`" if error.absolute_path else ""
        raise DeclarationError(f"{whose} is not a valid JSON Schema{where}: {shorten(error.message)}.") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(f"{whose} must be JSON data: {shorten(str(error))}.") from error
    return validator_class


def _unresolved_references(resource: Any, resolver: Any) -> Iterator[str]:
    """Yield the references to other documents, and the references to missing definitions in this document."""
    contents = resource.contents
    for keyword in _REFERENCES:
        if isinstance(contents, dict) and keyword in contents:
            try:
                resolver.lookup(contents[keyword])
            except Exception:  # The package `referencing` raises errors of several classes.
                yield contents[keyword]
    for inner in resource.subresources():
        yield from _unresolved_references(inner, resolver.in_subresource(inner))


def _check_call(schema: JsonSchema, parameters: Sequence[inspect.Parameter], label: str) -> None:
    """Raise `DeclarationError` if the function does not accept all arguments that the schema allows."""
    for parameter in parameters:
        is_needed = parameter.kind is _P.POSITIONAL_ONLY and parameter.default is _P.empty
        if is_needed or parameter.kind is _P.VAR_POSITIONAL:
            stars = "" if is_needed else "*"
            raise DeclarationError(
                f"The tool `{label}` takes `{stars}{parameter.name}` by position, but the arguments of a schema are "
                f"passed by name. Take `**arguments`, or parameters with the names of the properties."
            )
    takes_any = any(p.kind is _P.VAR_KEYWORD for p in parameters)
    by_name = [p for p in parameters if p.kind in _BY_NAME]
    for name in (*schema.get("properties", {}), *required_properties(schema)):
        if not takes_any and name not in [p.name for p in by_name]:
            raise DeclarationError(
                f"The tool `{label}` cannot be called with `{name}`, which is in its schema. "
                f"Take a parameter of that name, or `**arguments`."
            )
    if _CONDITIONS & schema.keys():
        return
    for parameter in by_name:
        if parameter.default is _P.empty and parameter.name not in required_properties(schema):
            raise DeclarationError(
                f"The parameter `{parameter.name}` of the tool `{label}` has no default, but its schema does not "
                f"require it. Add a default, or list it in `required`."
            )
