"""Tools that are described by a ready JSON Schema instead of type hints.

The schema goes to the model as it is, and the model's arguments are checked against it and passed on unchanged.
The package `jsonschema` does the checking; it loads when the first such tool is declared. Nothing is ever fetched:
a reference that leaves the document is a mistake in the declaration.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_core import from_json

from acorn._declare.tools.kinds import ArgumentError, Arguments
from acorn._declare.tools.signatures import is_run_hint, not_an_object, parameters_of, read_hints, unwrap_decorators
from acorn._formats.json import describe_error, excerpt, shorten
from acorn._formats.schema.generate import JsonSchema
from acorn._formats.schema.problems import describe_errors, required_properties, unknown_property
from acorn.errors import DeclarationError
from acorn.record import Run

_P = inspect.Parameter
_BY_NAME = (_P.POSITIONAL_OR_KEYWORD, _P.KEYWORD_ONLY)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_CONDITIONS = {"$ref", "allOf", "anyOf", "oneOf", "if", "dependentRequired", "dependentSchemas", "dependencies"}
"""What may demand a property beside `required`."""


@dataclass(frozen=True, eq=False)
class SchemaBinding:
    """How the arguments of one function are checked by a JSON Schema."""

    schema: JsonSchema
    validator: Any
    injected: tuple[str, ...] = ()
    """Parameters annotated `acorn.Run`, which receive the run."""
    filled: frozenset[str] = frozenset()
    """Keywords that a partial or the run fills in, which a loose schema would let the model set."""
    known: frozenset[str] | None = None
    """The keywords that the function takes; None where it takes any."""

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        """Keyword arguments from JSON text, as the model gave them: "5" does not become 5."""
        arguments = arguments or "{}"
        try:
            # NaN is no JSON, and a schema has no word for it.
            given = from_json(arguments, allow_inf_nan=False)
        except (ValueError, TypeError) as error:  # TypeError: half a surrogate pair
            raise ArgumentError(f"The arguments are not valid JSON: {shorten(str(error))}") from error
        if not isinstance(given, dict):
            raise ArgumentError(not_an_object(arguments))
        try:
            found = dict.fromkeys(describe_errors(self.validator.iter_errors(given), self.schema))
        except Exception as error:  # a schema may be of anybody's making, and the arguments nested without end
            raise ArgumentError(f"The arguments cannot be checked: {shorten(describe_error(error))}") from error
        if taken := self.filled & given.keys():
            raise ArgumentError(f"argument `{min(taken)}` is filled in already and cannot be set")
        if self.known is not None:  # a schema that does not forbid other properties has not complained of them
            unknown = [name for name in given if name not in self.known]
            found |= dict.fromkeys(unknown_property([], name, given, self.schema) for name in unknown)
        if found:
            raise ArgumentError("; ".join(found))
        return (), {**given, **dict.fromkeys(self.injected, run)}


def schema_binding(
    schema: Any,
    function: Callable[..., Any],
    label: str,
    *,
    drop_first: bool = False,
    local_names: Mapping[str, Any] | None = None,
) -> SchemaBinding:
    """Check a schema, and that the function can be called by it; `drop_first` leaves out the `self` of a method."""
    validator = _validator(schema, label)
    plain = unwrap_decorators(function)
    filled = frozenset(plain.keywords if isinstance(plain, functools.partial) else ())
    parameters = [p for p in parameters_of(plain, label, drop_first) if p.name not in filled]
    named = [*schema.get("properties", {}), *required_properties(schema)]
    others = [p for p in parameters if p.name not in named and p.annotation is not _P.empty]
    hints = read_hints(plain, others, label, local_names or {})  # those of the arguments themselves stay unread
    injected = tuple(p.name for p in others if p.kind in _BY_NAME and is_run_hint(hints[p.name]))
    if taken := [name for name in named if name in filled]:
        raise DeclarationError(
            f"The schema of the tool `{label}` has the property `{taken[0]}`, which the partial fills in already; "
            f"leave it out of one of them."
        )
    free = [p for p in parameters if p.name not in injected]
    _check_call(schema, free, label)
    takes_any = any(p.kind is _P.VAR_KEYWORD for p in free)
    known = None if takes_any else frozenset(p.name for p in free if p.kind in _BY_NAME)
    return SchemaBinding(schema, validator, injected, filled | frozenset(injected), known)


def _validator(schema: Any, label: str) -> Any:
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    whose = f"`schema` of the tool `{label}`"
    if not isinstance(schema, dict):
        raise DeclarationError(f"{whose} must be a dict that holds a JSON Schema, got {excerpt(schema)}.")
    kind = _checked_draft(schema, whose)
    if schema.get("type", "object") != "object" or not {"type", "properties"} & schema.keys():
        raise DeclarationError(
            f"{whose} must describe an object, as in {{'type': 'object', 'properties': {{...}}}}, "
            f"got {excerpt(schema.get('type', schema))}."
        )
    # A registry of our own: the one that `jsonschema` would use fetches what it does not know from the web.
    registry: Any = Registry()
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    for reference in _lost(root, registry.resolver_with_root(root)):
        raise DeclarationError(
            f"{whose} refers to `{shorten(reference)}`, which is not in it; put it under `$defs` and refer to it as "
            f"`#/$defs/...`. Nothing is fetched."
        )
    return kind(schema, registry=registry)


def _checked_draft(schema: JsonSchema, whose: str) -> Any:
    """The validator class for the draft of a schema, which the schema itself fits."""
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for

    dialect = schema.get("$schema")
    kind: Any = Draft202012Validator if dialect is None else None
    if isinstance(dialect, str):
        kind = cast(Any, validator_for)(schema, default=None)
    if kind is None:
        raise DeclarationError(
            f"{whose} names {excerpt(dialect)} as its `$schema`, which is no known draft of JSON Schema; "
            f"leave it out for Draft 2020-12."
        )
    try:
        json.dumps(schema, allow_nan=False)
        kind.check_schema(schema)
    except SchemaError as error:
        at = f" at `{'.'.join(map(str, error.absolute_path))}`" if error.absolute_path else ""
        raise DeclarationError(f"{whose} must be a valid JSON Schema;{at} {shorten(error.message)}.") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(f"{whose} must be plain JSON data: {shorten(str(error))}.") from error
    return kind


def _lost(resource: Any, resolver: Any) -> Iterator[str]:
    """The references that lead out of the document, or to a place in it where nothing is."""
    contents = resource.contents
    for keyword in _REFERENCES:
        if isinstance(contents, dict) and keyword in contents:
            try:
                resolver.lookup(contents[keyword])
            except Exception:  # there are several kinds
                yield contents[keyword]
    for inner in resource.subresources():
        yield from _lost(inner, resolver.in_subresource(inner))


def _check_call(schema: JsonSchema, parameters: Sequence[inspect.Parameter], label: str) -> None:
    """Whether every object that fits the schema is a call of the function."""
    for parameter in parameters:
        is_needed = parameter.kind is _P.POSITIONAL_ONLY and parameter.default is _P.empty
        if is_needed or parameter.kind is _P.VAR_POSITIONAL:
            stars = "" if is_needed else "*"
            raise DeclarationError(
                f"The tool `{label}` takes `{stars}{parameter.name}` by position, and the arguments of a schema are "
                f"passed by name; take `**arguments` or parameters with the names of the properties."
            )
    takes_any = any(p.kind is _P.VAR_KEYWORD for p in parameters)
    by_name = [p for p in parameters if p.kind in _BY_NAME]
    for name in (*schema.get("properties", {}), *required_properties(schema)):
        if not takes_any and name not in [p.name for p in by_name]:
            raise DeclarationError(
                f"The tool `{label}` cannot be called with `{name}`, which its schema has; "
                f"take a parameter of that name, or `**arguments`."
            )
    if _CONDITIONS & schema.keys():
        return
    for parameter in by_name:
        if parameter.default is _P.empty and parameter.name not in required_properties(schema):
            raise DeclarationError(
                f"The parameter `{parameter.name}` of the tool `{label}` has no default, and its schema does not "
                f"require it; give it a default, or list it in `required`."
            )
