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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acorn import Audio, File, Image, InputError
from acorn._inside import shorten
from acorn.cli.arguments import ParsedArguments
from acorn.cli.errors import CommandError, error_text, os_errors, user_code_line
from acorn.cli.options import Option, Options, SchemaNode, option_name
from acorn.cli.output import descriptor_of, write_line
from acorn.errors import UnknownMediaTypeError
from acorn.types import JsonObject, is_json_list, is_json_object


def make_input(arguments: ParsedArguments) -> tuple[Any, ...]:
    """Return the positional arguments for a call of the agent: its input, or nothing if it has no input.

    Raises a `CommandError` that describes each wrong option.
    """
    source, options = arguments.acorn_options.input, arguments.accepted
    shape = options.shape
    values = {} if source is None else _read_input_file(source, options)
    names_in_file = set(values)
    if shape.takes_fields:
        values.setdefault(shape.wrapped, {})  # A missing field is then reported instead of the whole input.
    # Set a value before the values inside it, and list items in the order of their indexes.
    in_order = sorted(arguments.options, key=lambda path: [key if isinstance(key, int) else 0 for key in path])
    for path in in_order:
        option, texts = arguments.options[path]
        set_value(values, path, parse_texts(texts, option.node, option.flag), option.flag)
    if source != "-" and (piped := read_piped_text(values, options)) is not None:
        set_value(values, piped[0].path, piped[1], piped[0].flag)
    try:
        value = shape.from_values("", values)
        return () if shape.is_empty else (shape.unwrap(value),)
    except InputError as error:
        names_in_options = {str(path[0]) for path in arguments.options}
        problem_texts = [
            _describe_problem(problem, names_in_file - names_in_options, source, options) for problem in error.problems
        ]
        raise CommandError(" ".join(problem_texts)) from error
    except (Exception, SystemExit) as error:  # A user's validator can raise any exception.
        raise CommandError(f"{user_code_line(error)}Cannot validate the input: {error_text(error)}") from error


# Files


def _read_input_file(source: str, options: Options) -> JsonObject:
    """Return the values in the file of `--input`, with the keys of the JSON Schema.

    With equal names, an option can replace a value from the file.
    """
    if options.is_positional and source != "-" and not os.path.exists(source):
        value = shorten(source, 40)
        raise CommandError(
            f"There is no file `{value}`. `--input` reads a JSON file. To pass `{value}` itself, leave out `--input`."
        )
    try:
        with os_errors(f"Cannot read `--input {source}`"):
            # Read bytes and not text, because the JSON parser detects the encoding.
            stdin = getattr(sys.stdin, "buffer", sys.stdin)
            values = json.loads(stdin.read() if source == "-" else Path(source).read_bytes())
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{_source_name(source)} does not contain valid JSON: {error}") from error
    shape = options.shape
    if shape.wrapped and (shape.takes_fields or not (is_json_object(values) and set(values) == {shape.wrapped})):
        return {shape.wrapped: values}
    if not is_json_object(values):
        raise CommandError(f"{_source_name(source)} must contain a JSON object, got {shorten(json.dumps(values), 80)}.")
    return {options.keys.get(key, key): value for key, value in values.items()}


# Error messages


def _describe_problem(problem: Mapping[str, str], names_in_file: set[str], source: str | None, options: Options) -> str:
    """Return the message of a problem, with the option instead of the field."""
    path = problem["path"]
    is_in_file = path.partition(".")[0] in names_in_file
    field = path.removeprefix(f"{options.shape.wrapped}.") if options.shape.takes_fields else path
    where = f"`{field}` in {_source_name(source)}" if is_in_file else _option_text(path.split("."), options)
    text = problem["message"].removeprefix(f"`{path or 'input'}`")
    return f"{where}{text}."


def _option_text(path: list[str], options: Options) -> str:
    """Return the words with which error messages name the wrong value at a path, such as `--address.city`."""
    if path == [""]:
        return "the input"
    matching = [option for option in options.all if list(map(str, option.path)) == path[: len(option.path)]]
    if options.is_positional:
        return "the argument"
    if not matching:
        return f"`--{'.'.join(path)}`"
    option = matching[-1]  # The options of inner fields follow the option of their field.
    inner_path = ".".join(path[len(option.path) :])
    return f"`{inner_path}` of `{option.flag}`" if inner_path else f"`{option.flag}`"


def _source_name(source: str | None) -> str:
    return "standard input" if source == "-" else f"`{source}`"


# Piped text


def read_piped_text(values: JsonObject, options: Options) -> tuple[Option, str] | None:
    """Return the option that piped text is assigned to, and the piped text.

    Return None if there is no piped text.
    """
    if options.shape.is_empty or not _is_piped():
        return None
    fields = [option for option in options.all if options.is_field(option) and is_text(option)]
    needs_required = any(option.is_required for option in fields)  # A pipe is then meant for a required field only.
    free = [option for option in fields if option.is_required == needs_required and not _has_value(values, option)]
    is_awaited = len(free) == 1 and needs_required
    if not _has_arrived():
        if is_awaited:
            write_line(f"Waiting for text for {options.display_name(free[0])} on standard input.")
        elif len(free) == 1:
            name = options.display_name(free[0])
            write_line(f"Standard input is a pipe without data. The run starts without {name}.")
    text = _read_text() if is_awaited or _has_arrived() else ""
    if text and len(free) != 1:
        names = " or ".join(options.display_name(option) for option in free)
        problem = f"it could be the value of {names}. Set all but one of them by options."
        raise CommandError(
            f"Cannot use the piped text: {problem if free else 'every text field of the input already has a value.'} "
            f"If the text is the whole input as JSON, use `--input -`. To ignore standard input, use `</dev/null`."
        )
    return (free[0], text) if text else None


def is_text(option: Option) -> bool:
    """Return True if the field of an option is a text field that accepts any text."""
    node = option.node
    return "string" in node.kinds and node.kinds <= {"string", "null"} and node.accepts_any_text


def _has_value(values: JsonObject, option: Option) -> bool:
    parent: Any = values
    for key in option.path[:-1]:
        parent = parent.get(key, {})
    return not is_json_object(parent) or option.path[-1] in parent


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
        with os_errors("Cannot read standard input"):
            return sys.stdin.buffer.read().decode(encoding).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CommandError(
            f"Standard input is not valid {encoding} text: {error.reason} at byte {error.start}. Convert the text."
        ) from error


# Parsing option texts


def parse_texts(texts: Sequence[str | bool], node: SchemaNode, flag: str) -> Any:
    """Convert the texts of an option to a value. An option that occurs several times has several texts."""
    first = texts[0]
    if isinstance(first, bool):
        return first
    if len(texts) > 1 or node.is_list:
        return _parse_list([str(text) for text in texts], node, flag)
    value = _parse_one(first, node, flag)
    if node.is_repeatable and "string" not in node.kinds and value is first:
        # The text `5` for `int | list[str]` is a number, and the text `five` is a list with one item.
        return [_parse_one(first, node.item(0), flag)]
    return value


def _parse_list(texts: Sequence[str], node: SchemaNode, flag: str) -> list[Any] | None:
    if len(texts) == 1:
        value, item = _parse_json(texts[0]), node.item(0)
        if value is None and "null" in node.kinds and not item.accepts_any_text:
            return None
        if is_json_list(value) and ("array" not in item.kinds or all(is_json_list(inner) for inner in value)):
            return value
    return [_parse_one(text, node.item(index), flag) for index, text in enumerate(texts)]


def _parse_one(text: str, node: SchemaNode, flag: str) -> Any:
    """Return the JSON value that a text represents if its type fits, and otherwise the text for Pydantic to convert."""
    if node.media:
        return read_media(text, node, flag)
    value = _parse_json(text)
    if isinstance(value, ValueError | RecursionError):
        if node.kinds and node.kinds <= {"object", "array", "null"}:
            raise _structure_error(text, node, flag, value) from value
        return text
    if not node.kinds:
        return value
    if value is None:
        return text if node.accepts_any_text or "null" not in node.kinds else None
    # If JSON formats a number differently, as with `2.10`, the value may be a Decimal or text.
    if isinstance(value, int | float) and json.dumps(value) != text:
        return text
    kind = _JSON_KINDS.get(type(value).__name__)
    return value if kind in node.kinds or (kind == "integer" and "number" in node.kinds) else text


_JSON_KINDS = {"bool": "boolean", "int": "integer", "float": "number", "list": "array", "dict": "object"}
"""A dict that maps the types of parsed JSON values to JSON type names. A JSON string in quotes stays a text."""


def _parse_json(text: str) -> Any:
    """Return the JSON value of a text, or the error if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return error


def _structure_error(text: str, node: SchemaNode, flag: str, error: Exception) -> CommandError:
    """Return the error for a field that accepts only objects and lists, which must be JSON."""
    parts = [f"`{flag}.{option_name(name)} ...`" for name in list(node.fields)[:2]]
    hint = f" Or set its fields one by one ({', '.join(parts)})." if parts else ""
    reason = f" ({error})" if text.lstrip()[:1] in ("{", "[") else ""
    expected = node.type_text.removesuffix(" or null")
    return CommandError(f"`{flag}` must be JSON ({expected}), got {shorten(repr(text), 80)}{reason}.{hint}")


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
            with os_errors(f"Cannot read `{flag} {text}`"):
                return _MEDIA_CLASSES[kind].from_path(text)
        except UnknownMediaTypeError as error:
            reasons.append(f"{error.problem}. Rename the file so that its extension matches the media type.")
        except ValueError as error:
            reasons.append(str(error))
    raise CommandError(f"Cannot use the value of `{flag}`: {reasons[0]}")


def set_value(container: Any, path: Sequence[str | int], value: object, flag: str) -> None:
    """Set the value at a path of the input, and create the dicts and lists that the path needs."""
    key, *inner_path = path
    if isinstance(key, int) and key >= len(container):
        if key > len(container):
            raise CommandError(
                f"`{flag}` needs an item {len(container)} before it. Number the list items from 0, without gaps."
            )
        container.append(None)
    if inner_path:
        inner: Any = container[key] if isinstance(key, int) else container.get(key)
        needs_list = isinstance(inner_path[0], int)
        if not (is_json_list(inner) if needs_list else is_json_object(inner)):
            inner = list[Any]() if needs_list else JsonObject()
        set_value(inner, inner_path, value, flag)
        value = inner
    container[key] = value
