"""The input of a module, made of what was given: options and a file. What is wrong is told by the option's name."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from acorn._json import shorten
from acorn._schema.problems import Problem, problems
from acorn._schema.shape import RESULT, aliases_of
from acorn.cli.ends import CommandError, told
from acorn.cli.load import whereabouts
from acorn.cli.options import Option, Options
from acorn.cli.parse import Given
from acorn.cli.values import put, read


def make_input(given: Given, options: Options) -> BaseModel:
    """The input as the module's schema; `CommandError` names each option that is wrong."""
    source = given.ours.input
    values = {} if source is None else _named(_read_input(source, options), options)
    from_file = set(values)
    others: dict[tuple[str | int, ...], Any] = {}
    for path, (option, texts) in _in_order(given.options):
        value, *other = read(texts, option.node, option.flag)
        put(values, path, value, option.flag)
        if other:
            others[path] = other[0]
    schema = options.shape.schema
    aliases = {alias for info in schema.model_fields.values() for alias in aliases_of(info)}
    unknown = [name for name in values if name not in schema.model_fields and name not in aliases]
    if unknown and not options.shape.allows_extra:
        raise CommandError(f"{_list(unknown)} in {_source(source)} is no input; there are {_list(schema.model_fields)}")
    try:
        return _validated(schema, values, others)
    except ValidationError as error:
        found = problems(error, options.shape.xml_schema, values)
        typed = {str(path[0]) for path in given.options}
        complaints = [_complaint(problem, from_file - typed, source, options) for problem in found]
        raise CommandError("; ".join(complaints)) from error
    except (Exception, SystemExit) as error:  # a validator's, which is the user's
        where = _culprit(schema, values, type(error), options)
        raise CommandError(
            f"{whereabouts(error)}{where} could not be checked: {told(error)}", debug=given.ours.debug
        ) from error


def _in_order(
    options: Mapping[tuple[str | int, ...], tuple[Option, list[str | bool]]],
) -> list[tuple[tuple[str | int, ...], tuple[Option, list[str | bool]]]]:
    """The whole before its parts, items by their number, everything else as it was given."""
    ranks: dict[str, int] = {}
    for path in options:
        for part in path:
            if isinstance(part, str):
                ranks.setdefault(part, len(ranks))
    return sorted(
        options.items(), key=lambda entry: [ranks[part] if isinstance(part, str) else part for part in entry[0]]
    )


def _validated(
    schema: type[BaseModel], values: dict[str, Any], others: Mapping[tuple[str | int, ...], Any]
) -> BaseModel:
    """The input; where a value was refused that can be read in another way, that way."""
    try:
        return schema.model_validate(values, by_alias=True, by_name=True)
    except ValidationError as error:
        wrong = [detail["loc"] for detail in error.errors(include_url=False)]
        again = {path: value for path, value in others.items() if any(loc[: len(path)] == path for loc in wrong)}
        if not again:
            raise
        for path, value in again.items():
            put(values, path, value, "")
        return schema.model_validate(values, by_alias=True, by_name=True)


def _culprit(schema: type[BaseModel], values: dict[str, Any], kind: type[BaseException], options: Options) -> str:
    """Whose validator it was, if it fails on one field alone."""
    if _raises(schema, {}, kind):
        return "the input"
    return next(
        (_option([name], options) for name in values if _raises(schema, {name: values[name]}, kind)), "the input"
    )


def _raises(schema: type[BaseModel], values: dict[str, Any], kind: type[BaseException]) -> bool:
    try:
        schema.model_validate(values, by_alias=True, by_name=True)
    except ValidationError:
        return False
    except (Exception, SystemExit) as error:
        return type(error) is kind
    return False


def _read_input(source: str, options: Options) -> dict[str, Any]:
    try:
        found = json.loads(_standard_input() if source == "-" else Path(source).read_bytes())
    except OSError as error:
        raise CommandError(f"`--input {source}` cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{_source(source)} is not JSON: {error}") from error
    if options.shape.wrapped and not (isinstance(found, dict) and set(found) == {RESULT}):
        return {RESULT: found}
    if not isinstance(found, dict):
        raise CommandError(f"{_source(source)} must hold a JSON object, got {shorten(json.dumps(found), 80)}")
    return found


def _standard_input() -> str | bytes:
    """As bytes, so that JSON decides how they are read, and not the terminal."""
    if sys.stdin is None:
        return ""
    buffer: Any = getattr(sys.stdin, "buffer", sys.stdin)
    found: str | bytes = buffer.read()
    return found


def _named(values: dict[str, Any], options: Options) -> dict[str, Any]:
    """Every field under its own name, so that an option can win over it."""
    fields = options.shape.schema.model_fields
    names = {alias: name for name, info in fields.items() for alias in _other_names(info)}
    return {key if key in fields else names.get(key, key): value for key, value in values.items()}


def _other_names(info: FieldInfo) -> list[str]:
    """The aliases that hold the whole value; a path into another one is none."""
    alias = info.validation_alias if info.validation_alias is not None else info.alias
    choices = [alias] if isinstance(alias, str) else getattr(alias, "choices", [])
    return [choice for choice in choices if isinstance(choice, str)]


def _complaint(problem: Problem, from_file: set[str], source: str | None, options: Options) -> str:
    path = problem["path"].split(".") if problem["path"] else []
    where = f"`{problem['path']}` in {_source(source)}" if path and path[0] in from_file else _option(path, options)
    if problem["received"] == "missing":
        return f"{where} is missing ({problem['expected']})"
    if problem["ruled"]:
        return f"{where} is refused: {problem['expected']} (got {problem['told']})"
    return f"{where} must be {problem['expected']}, got {problem['told']}"


def _option(path: list[str], options: Options) -> str:
    """The option that a wrong part of the input belongs to."""
    if not path:
        return "the input"
    known = [option for option in options.listed if list(map(str, option.path)) == path[: len(option.path)]]
    if not known:
        positional = options.positional
        return "the argument" if positional is not None else f"`--{'.'.join(path)}`"
    option = max(known, key=lambda option: len(option.path))
    if options.is_positional:
        return "the argument"
    rest = path[len(option.path) :]
    return f"`{option.flag}`" if not rest else f"`{'.'.join(rest)}` of `{option.flag}`"


def _source(source: str | None) -> str:
    return "standard input" if source == "-" else f"`{source}`"


def _list(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
