"""The input of a run, built from command-line options, from the file of `--input` and from piped text.

This file parses an option's text only as far as JSON has different types: an enumerated value, an object, a list, a
number or a string. Pydantic then validates the value and converts texts such as `2024-05-01`. Errors mention the wrong
option.

The text of an image, audio or file option is a path, unless it is a URL.

Piped text fills the only text field that has no value. The command never reads from a terminal. It waits for a pipe
only if the text field is required. Otherwise it reads only text that has already arrived, because an inherited pipe
without data must not block a run. Piped text that no field can receive is an error.
"""

from __future__ import annotations

import json
import os
import re
import select
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from acorn import Audio, File, Image
from acorn._inside import RESULT, Problem, shorten
from acorn.cli.arguments import ParsedArguments
from acorn.cli.options import Option, Options, SchemaNode, ValuePath
from acorn.cli.output import CommandError, error_text, user_code_line, write_line
from acorn.cli.streams import descriptor_of
from acorn.errors import UnknownMediaTypeError
from acorn.types import JsonObject, is_json_list, is_json_object

_MISSING: Any = object()


def make_input(arguments: ParsedArguments, options: Options) -> BaseModel:
    """Return the input of a run as an instance of the input class of the agent.

    Raises a `CommandError` that describes each wrong option.
    """
    source = arguments.acorn_options.input
    values = {} if source is None else _rename_aliases(_read_input_file(source, options), options)
    names_in_file = set(values)
    alternatives: dict[ValuePath, Any] = {}
    for path, (option, texts) in _sort_by_path(arguments.options):
        value, *alternative = parse_texts(texts, option.node, option.flag)
        set_value(values, path, value, option.flag)
        if alternative:
            alternatives[path] = alternative[0]
    if source != "-" and (piped := read_piped_text(values, options)) is not None:
        set_value(values, piped[0].path, piped[1], piped[0].flag)
    schema = options.shape.schema
    unknown = [name for name in values if name not in options.shape.accepted_names]
    if unknown and not options.shape.allows_extra:
        field_names = _quote_names(schema.model_fields)
        raise CommandError(
            f"{_source_name(source)} contains unknown fields: {_quote_names(unknown)}. "
            f"The input has these fields: {field_names}."
        )
    try:
        return _validate(schema, values, alternatives)
    except ValidationError as error:
        names_in_options = {str(path[0]) for path in arguments.options}
        problem_texts = [
            _describe_problem(problem, names_in_file - names_in_options, source, options)
            for problem in options.shape.find_problems(error, values)
        ]
        raise CommandError(" ".join(problem_texts)) from error
    except (Exception, SystemExit) as error:  # A user's validator can raise any exception.
        where = _find_failing_option(schema, values, type(error), options)
        raise CommandError(f"{user_code_line(error)}Cannot validate {where}: {error_text(error)}") from error


def _sort_by_path(
    options: Mapping[ValuePath, tuple[Option, list[str | bool]]],
) -> list[tuple[ValuePath, tuple[Option, list[str | bool]]]]:
    """Sort options so that a value is set before the values inside it, and list items are set in index order.

    Other options keep their order on the command line.
    """
    ranks: dict[str, int] = {}
    for path in options:
        for key in path:
            if isinstance(key, str):
                ranks.setdefault(key, len(ranks))
    return sorted(options.items(), key=lambda item: [ranks[key] if isinstance(key, str) else key for key in item[0]])


def _validate(schema: type[BaseModel], values: JsonObject, alternatives: Mapping[ValuePath, Any]) -> BaseModel:
    """Validate the input. If Pydantic rejects a value that was parsed from an ambiguous text, try its second meaning.

    `alternatives` is a dict that maps the paths of these values to their second meanings.
    """
    try:
        return schema.model_validate(values, by_alias=True, by_name=True)
    except ValidationError as error:
        rejected = [detail["loc"] for detail in error.errors(include_url=False)]
        retried = {
            path: value for path, value in alternatives.items() if any(loc[: len(path)] == path for loc in rejected)
        }
        if not retried:
            raise
        for path, value in retried.items():
            set_value(values, path, value, "")
        return schema.model_validate(values, by_alias=True, by_name=True)


def _find_failing_option(
    schema: type[BaseModel], values: JsonObject, kind: type[BaseException], options: Options
) -> str:
    """Return the name of the option whose field has a validator that raised an exception.

    Return `the input` if the validator does not belong to a single field.
    """
    if _raises(schema, {}, kind):
        return "the input"
    return next(
        (_option_text([name], options) for name in values if _raises(schema, {name: values[name]}, kind)), "the input"
    )


def _raises(schema: type[BaseModel], values: JsonObject, kind: type[BaseException]) -> bool:
    try:
        schema.model_validate(values, by_alias=True, by_name=True)
    except ValidationError:
        return False
    except (Exception, SystemExit) as error:
        return type(error) is kind
    return False


# Files


def _read_input_file(source: str, options: Options) -> JsonObject:
    try:
        values = json.loads(_read_stdin() if source == "-" else Path(source).read_bytes())
    except OSError as error:
        raise CommandError(f"Cannot read `--input {source}`: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{_source_name(source)} does not contain valid JSON: {error}") from error
    if options.shape.wrapped and not (is_json_object(values) and set(values) == {RESULT}):
        return {RESULT: values}
    if not is_json_object(values):
        raise CommandError(f"{_source_name(source)} must contain a JSON object, got {shorten(json.dumps(values), 80)}.")
    return values


def _read_stdin() -> str | bytes:
    """Return standard input as bytes and not as text, because the JSON parser detects the encoding."""
    if sys.stdin is None:
        return ""
    buffer = getattr(sys.stdin, "buffer", sys.stdin)
    data: str | bytes = buffer.read()
    return data


def _rename_aliases(values: JsonObject, options: Options) -> JsonObject:
    """Replace the aliases in the values with field names.

    With equal names, an option can replace a value from the input file.
    """
    fields = options.shape.schema.model_fields
    names = {alias: name for name, info in fields.items() for alias in _text_aliases(info)}
    return {key if key in fields else names.get(key, key): value for key, value in values.items()}


def _text_aliases(info: FieldInfo) -> list[str]:
    """Return those aliases of a field that are plain names.

    An alias may also be a path into another value (`AliasPath`). Such aliases are omitted.
    """
    alias = info.validation_alias if info.validation_alias is not None else info.alias
    choices = [alias] if isinstance(alias, str) else getattr(alias, "choices", [])
    return [choice for choice in choices if isinstance(choice, str)]


# Error messages


def _describe_problem(problem: Problem, names_in_file: set[str], source: str | None, options: Options) -> str:
    path = problem["path"].split(".") if problem["path"] else []
    is_in_file = bool(path) and path[0] in names_in_file
    where = f"`{problem['path']}` in {_source_name(source)}" if is_in_file else _option_text(path, options)
    if problem["received"] == "missing":
        return f"{where} is missing ({problem['expected']})."
    if problem["expected_is_message"]:
        return f"{where} is not valid: {problem['expected']} (got {problem['excerpt']})."
    return f"{where} must be {problem['expected']}, got {problem['excerpt']}."


def _option_text(path: list[str], options: Options) -> str:
    """Return the words with which error messages name the wrong value at a path, such as `--address.city`."""
    if not path:
        return "the input"
    matching = [option for option in options.all if list(map(str, option.path)) == path[: len(option.path)]]
    if not matching:
        return "the argument" if options.positional is not None else f"`--{'.'.join(path)}`"
    option = max(matching, key=lambda option: len(option.path))
    if options.is_positional:
        return "the argument"
    inner_path = path[len(option.path) :]
    return f"`{option.flag}`" if not inner_path else f"`{'.'.join(inner_path)}` of `{option.flag}`"


def _source_name(source: str | None) -> str:
    return "standard input" if source == "-" else f"`{source}`"


def _quote_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


# Piped text


def read_piped_text(values: Mapping[str, Any], options: Options) -> tuple[Option, str] | None:
    """Return the option that piped text is assigned to, and the piped text.

    Return None if there is no piped text.
    """
    if options.shape.is_empty or not _is_piped():
        return None
    fields = [option for option in options.all if options.is_field(option) and is_text(option)]
    candidates = [option for option in fields if not _has_value(values, option)]
    if any(option.is_required for option in fields):  # A pipe is then meant for a required field only.
        candidates = [option for option in candidates if option.is_required]
    if len(candidates) != 1:
        _reject_piped_text(candidates, options)
        return None
    (option,) = candidates
    if not _has_arrived():
        if not option.is_required:
            write_line(f"Standard input is a pipe without data. The run starts without {options.display_name(option)}.")
            return None
        write_line(f"Waiting for text for {options.display_name(option)} on standard input.")
    text = _read_text()
    return (option, text) if text else None


def _reject_piped_text(candidates: list[Option], options: Options) -> None:
    buffer: Any = sys.stdin.buffer
    if not _has_arrived() or not buffer.peek(1).strip(b"\r\n"):
        return
    hint = "If the text is the whole input as JSON, use `--input -`. To ignore standard input, use `</dev/null`."
    if not candidates:
        raise CommandError(f"Cannot use the piped text: every text field of the input already has a value. {hint}")
    names = " or ".join(options.display_name(option) for option in candidates)
    raise CommandError(
        f"Cannot use the piped text: it could be the value of {names}. Set all but one of them by options. {hint}"
    )


def is_text(option: Option) -> bool:
    """Return True if the field of an option is a text field that accepts any text."""
    node = option.node
    return "string" in node.kinds and node.kinds <= {"string", "null"} and node.accepts_any_text


def _has_value(values: Mapping[str, Any], option: Option) -> bool:
    value: Any = values
    for key in option.path:
        if not is_json_object(value):
            return True  # A value without fields was set above the path, so the option has a value.
        if key not in value:
            return False
        value = value[key]
    return True


def _is_piped() -> bool:
    """Return True if standard input is a pipe, a file or a socket.

    Return False if it is a terminal, another device, or the input of a notebook.
    """
    descriptor = descriptor_of(sys.stdin)
    if descriptor is None or not hasattr(sys.stdin, "buffer"):
        return False
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _has_arrived() -> bool:
    """Return True if standard input can be read without waiting, because it has data or is closed."""
    try:
        return bool(select.select([sys.stdin], [], [], 0)[0])
    except OSError:  # The platform cannot poll a pipe, so the caller reads from it and may wait.
        return True


def _read_text() -> str:
    """Return all text of standard input without the line breaks at the end."""
    encoding = sys.stdin.encoding or "utf-8"
    try:
        return sys.stdin.buffer.read().decode(encoding).rstrip("\r\n")
    except OSError as error:
        raise CommandError(f"Cannot read standard input: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CommandError(
            f"Standard input is not valid {encoding} text: {error.reason} at byte {error.start}. Convert the text."
        ) from error


# Parsing option texts


def parse_texts(texts: Sequence[str | bool], node: SchemaNode, flag: str) -> list[Any]:
    """Convert the texts of an option to a value, and return a list with this value.

    An option that occurs several times has several texts. If a text is ambiguous, the list contains a second value for
    the other meaning.
    """
    if node.is_repeatable and (len(texts) > 1 or node.is_only_list):
        return [_parse_list(texts, node, flag)]
    text = texts[0]
    if isinstance(text, bool):
        return [text]
    value = _parse_one(text, node, flag)
    if not node.is_repeatable or not isinstance(value, str):
        return [value]
    # The text `5` for `int | list[str]` is a number if Pydantic accepts the number, otherwise a list with one item.
    return [value, [_parse_one(text, node.item(0), flag)]]


def _parse_list(texts: Sequence[str | bool], node: SchemaNode, flag: str) -> list[Any] | None:
    if len(texts) == 1:
        if texts[0] == "null" and "null" in node.kinds and not node.item(0).accepts_any_text:
            return None
        value = _parse_json(str(texts[0]), "[")
        holds_lists = "array" in node.item(0).kinds
        if is_json_list(value) and (not holds_lists or all(is_json_list(item) for item in value)):
            return value
    return [_parse_one(str(text), node.item(index), flag) for index, text in enumerate(texts)]


def _parse_one(text: str, node: SchemaNode, flag: str) -> Any:
    if node.media:
        return read_media(text, node, flag)
    choice = _parse_choice(text, node)
    if choice is not _MISSING:
        return choice
    for kind, opening in (("object", "{"), ("array", "[")):
        if kind in node.kinds or not node.kinds:
            value = _parse_json(text, opening)
            if value is not _MISSING:
                return value
    if node.kinds and node.kinds <= {"object", "array", "null"}:
        return _parse_structure(text, node, flag)
    scalar = _parse_scalar(text, node)
    return text if scalar is _MISSING else scalar


_MEDIA_CLASSES: dict[str, type[Image | Audio | File]] = {"image": Image, "audio": Audio, "file": File}


def read_media(text: str, node: SchemaNode, flag: str) -> Image | Audio | File | str | None:
    """Load the image, audio or file at the path in an option's text.

    A URL is returned unchanged, and Pydantic validates it.
    """
    if re.match(r"(?i)(data:|https?://)", text):
        return text
    if text == "null" and "null" in node.kinds and not Path(text).exists():
        return None
    reasons: list[str] = []
    for kind in node.media:
        try:
            return _MEDIA_CLASSES[kind].from_path(text)
        except OSError as error:
            raise CommandError(f"Cannot read `{flag} {text}`: {error.strerror or error}") from error
        except UnknownMediaTypeError as error:
            reasons.append(f"{error.problem}. Rename the file so that its extension matches the media type.")
        except ValueError as error:
            reasons.append(str(error))
    raise CommandError(f"Cannot use the value of `{flag}`: {reasons[0]}")


def _parse_choice(text: str, node: SchemaNode) -> Any:
    """Return the allowed value that a text represents, such as the number 2 for `Literal[1, 2]`.

    Return `_MISSING` if the text represents no allowed value.
    """
    for value in node.choices or ():
        if text == (value if isinstance(value, str) else json.dumps(value)):
            return value
    return _MISSING


def _parse_scalar(text: str, node: SchemaNode) -> Any:
    """Return the number, the boolean or None that a text represents.

    Return `_MISSING` if the field should contain the text itself.
    """
    value = _parse_json(text)
    if value is None:
        return None if "null" in node.kinds and not node.accepts_any_text else _MISSING
    if not node.kinds:
        return value
    if isinstance(value, bool):
        return value if "boolean" in node.kinds else _MISSING
    # If JSON formats the number differently, as with `2.10`, the value may be a Decimal or text.
    is_number = isinstance(value, int | float) and node.accepts_any_text and json.dumps(value) == text
    fits = "number" in node.kinds or ("integer" in node.kinds and isinstance(value, int))
    return value if is_number and fits else _MISSING


def _parse_structure(text: str, node: SchemaNode, flag: str) -> Any:
    """Parse a value that must be JSON, because the field accepts only objects and lists."""
    try:
        return json.loads(text)
    except ValueError as error:
        parts = [f"`{flag}.{name.replace('_', '-')} ...`" for name in list(node.fields)[:2]]
        hint = f" Or set its fields one by one ({', '.join(parts)})." if parts else ""
        reason = f" ({error})" if text.lstrip()[:1] in ("{", "[") else ""
        expected = node.type_text.removesuffix(" or null")
        raise CommandError(
            f"`{flag}` must be JSON ({expected}), got {shorten(repr(text), 80)}{reason}.{hint}"
        ) from error


def _parse_json(text: str, opening: str = "") -> Any:
    if not text.lstrip().startswith(opening):
        return _MISSING
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _MISSING


def set_value(values: JsonObject, path: Sequence[str | int], value: object, flag: str) -> None:
    """Set the value at a path of the input, and create the dicts and lists that the path needs."""
    container: Any = values
    for key, next_key in pairwise(path):
        inner, needs_list = _get_item(container, key), isinstance(next_key, int)
        if not (is_json_list(inner) if needs_list else is_json_object(inner)):
            inner = list[Any]() if needs_list else JsonObject()
            _set_item(container, key, inner, flag)
        container = inner
    _set_item(container, path[-1], value, flag)


def _get_item(container: Any, key: str | int) -> Any:
    if is_json_object(container):
        return container.get(key) if isinstance(key, str) else None
    return container[key] if isinstance(key, int) and key < len(container) else None


def _set_item(container: object, key: str | int, value: object, flag: str) -> None:
    if is_json_list(container) and isinstance(key, int) and key >= len(container):
        if key > len(container):
            raise CommandError(
                f"`{flag}` needs an item {len(container)} before it. Number the list items from 0, without gaps."
            )
        container.append(value)
    else:
        cast(Any, container)[key] = value
