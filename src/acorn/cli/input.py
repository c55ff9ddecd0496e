"""Pictures, sounds and files on the command line: what is written there is a path, unless it is a URL.

Text that is piped in: it fills the one text field of the input that nothing else has given a value.

A terminal is never read. A pipe is waited for where the input lacks the field; otherwise only what has come already
is taken, since a pipe that was inherited and stays silent must not hold up a run. What cannot be used is an error.

The input of a module, made of the texts of its options, a file and a pipe; an error names the option that is wrong.

Only what JSON tells apart is decided here: a choice, an object, a list, a number beside text. Whether a
value fits its field, and what `5` or `2024-05-01` becomes there, is Pydantic's to say.
"""

from __future__ import annotations

import json
import os
import re
import select
import stat
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from acorn import Audio, File, Image
from acorn._inside import RESULT, Problem, aliases_of, input_problems, shorten
from acorn.cli.field_options import Node
from acorn.cli.options import Option, Options, ParsedArguments, ValuePath
from acorn.cli.output import CommandError, error_text, line_reached, write_line
from acorn.cli.streams import descriptor_of
from acorn.types import JsonObject

_CLASSES: dict[str, type[Image | Audio | File]] = {"image": Image, "audio": Audio, "file": File}


def read_media(text: str, node: Node, option: str) -> Image | Audio | File | str | None:
    """The value that an option names; a URL is the field's to judge."""
    if re.match(r"(?i)(data:|https?://)", text):
        return text
    if text == "null" and "null" in node.kinds and not Path(text).exists():
        return None
    found: list[str] = []
    for kind in node.media:
        try:
            return _CLASSES[kind].from_path(text)
        except OSError as error:
            raise CommandError(f"`{option} {text}` cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            found.append(str(error).partition(";")[0])  # what else it says is for programs
    raise CommandError(f"`{option}`: {found[0]}")


def take_piped(values: Mapping[str, Any], options: Options) -> tuple[Option, str] | None:
    """The field and its text; None where nothing was piped in."""
    if options.shape.is_empty or not _is_piped():
        return None
    fields = [option for option in options.listed if options.is_field(option) and is_text(option)]
    left = [option for option in fields if not _has_value(values, option)]
    if any(option.is_required for option in fields):  # one with a default is not what a pipe is for then
        left = [option for option in left if option.is_required]
    if len(left) != 1:
        _refuse(left, options)
        return None
    (option,) = left
    if not _has_come():
        if not option.is_required:
            write_line(
                f"standard input is a pipe in which nothing has come; {options.spelled(option)} does not wait for it"
            )
            return None
        write_line(f"waiting for {options.spelled(option)} on standard input")
    text = _read()
    return (option, text) if text else None


def _refuse(left: list[Option], options: Options) -> None:
    buffer: Any = sys.stdin.buffer
    if not _has_come() or not buffer.peek(1).strip(b"\r\n"):
        return
    whole = "`--input -` reads the input as JSON, `</dev/null` pipes nothing in"
    if not left:
        raise CommandError(f"something was piped in, and no text field of the input is left for it; {whole}")
    names = " or ".join(options.spelled(option) for option in left)
    raise CommandError(f"something was piped in for {names}; give all but one of them as options; {whole}")


def is_text(option: Option) -> bool:
    """Whether a field takes any text."""
    node = option.node
    return "string" in node.kinds and node.kinds <= {"string", "null"} and node.takes_text


def _has_value(values: Mapping[str, Any], option: Option) -> bool:
    here: Any = values
    for part in option.path:
        if not isinstance(here, dict):
            return True  # the whole is something else
        if part not in here:
            return False
        here = here[part]
    return True


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file: no terminal, no device, and not a test's or a notebook's own."""
    descriptor = descriptor_of(sys.stdin)
    if descriptor is None or not hasattr(sys.stdin, "buffer"):
        return False
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _has_come() -> bool:
    """Whether a read would return at once, be it with the end."""
    try:
        return bool(select.select([sys.stdin], [], [], 0)[0])
    except OSError:  # where pipes cannot be asked, they are read
        return True


def _read() -> str:
    """Everything, without the line breaks at its end."""
    encoding = sys.stdin.encoding or "utf-8"
    try:
        return sys.stdin.buffer.read().decode(encoding).rstrip("\r\n")
    except OSError as error:
        raise CommandError(f"standard input cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CommandError(
            f"what was piped in is no text in {encoding}: {error.reason} at byte {error.start}"
        ) from error


_NOTHING: Any = object()


def make_input(written: ParsedArguments, options: Options) -> BaseModel:
    """The input as the module's schema; `CommandError` names each option that is wrong."""
    source = written.own.input
    values = {} if source is None else _named(_read_input(source, options), options)
    from_file = set(values)
    others: dict[ValuePath, Any] = {}
    for path, (option, texts) in _in_order(written.options):
        value, *other = read_value(texts, option.node, option.flag)
        put(values, path, value, option.flag)
        if other:
            others[path] = other[0]
    if source != "-" and (piped := take_piped(values, options)) is not None:
        put(values, piped[0].path, piped[1], piped[0].flag)
    schema = options.shape.schema
    aliases = {alias for info in schema.model_fields.values() for alias in aliases_of(info)}
    unknown = [name for name in values if name not in schema.model_fields and name not in aliases]
    if unknown and not options.shape.allows_extra:
        raise CommandError(
            f"{_listed(unknown)} in {_source(source)} is no input; there are {_listed(schema.model_fields)}"
        )
    try:
        return _validated(schema, values, others)
    except ValidationError as error:
        found = input_problems(options.shape, error, values)
        typed = {str(path[0]) for path in written.options}
        complaints = [_complaint(problem, from_file - typed, source, options) for problem in found]
        raise CommandError("; ".join(complaints)) from error
    except (Exception, SystemExit) as error:  # a validator's, which is the user's
        where = _culprit(schema, values, type(error), options)
        raise CommandError(
            f"{line_reached(error)}{where} could not be checked: {error_text(error)}", debug=written.own.debug
        ) from error


def _in_order(
    options: Mapping[ValuePath, tuple[Option, list[str | bool]]],
) -> list[tuple[ValuePath, tuple[Option, list[str | bool]]]]:
    """The whole before its parts, items by their number, everything else as it was written."""
    ranks: dict[str, int] = {}
    for path in options:
        for part in path:
            if isinstance(part, str):
                ranks.setdefault(part, len(ranks))
    return sorted(
        options.items(), key=lambda entry: [ranks[part] if isinstance(part, str) else part for part in entry[0]]
    )


def _validated(schema: type[BaseModel], values: dict[str, Any], others: Mapping[ValuePath, Any]) -> BaseModel:
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


def _read_input(source: str, options: Options) -> JsonObject:
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


def _named(values: dict[str, Any], options: Options) -> JsonObject:
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
        return f"{where} is refused: {problem['expected']} (got {problem['excerpt']})"
    return f"{where} must be {problem['expected']}, got {problem['excerpt']}"


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


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


# From the texts of an option to its value


def read_value(texts: Sequence[str | bool], node: Node, option: str) -> list[Any]:
    """The value of an option, written once or several times; where it can be read in two ways, both."""
    if node.takes_several and (len(texts) > 1 or node.is_only_list):
        return [_read_list(texts, node, option)]
    text = texts[0]
    if isinstance(text, bool):
        return [text]
    value = _read_one(text, node, option)
    if not node.takes_several or not isinstance(value, str):
        return [value]
    # `5` for `int | list[str]`: a number, if Pydantic takes it for one, and otherwise a list of one.
    return [value, [_read_one(text, node.item(0), option)]]


def _read_list(texts: Sequence[str | bool], node: Node, option: str) -> list[Any] | None:
    if len(texts) == 1:
        if texts[0] == "null" and "null" in node.kinds and not node.item(0).takes_text:
            return None
        whole = _json(str(texts[0]), "[")
        holds_lists = "array" in node.item(0).kinds
        if isinstance(whole, list) and (not holds_lists or all(isinstance(item, list) for item in whole)):
            return whole
    return [_read_one(str(text), node.item(at), option) for at, text in enumerate(texts)]


def _read_one(text: str, node: Node, option: str) -> Any:
    if node.media:
        return read_media(text, node, option)
    choice = _choice(text, node)
    if choice is not _NOTHING:
        return choice
    for kind, opening in (("object", "{"), ("array", "[")):
        if kind in node.kinds or not node.kinds:
            found = _json(text, opening)
            if found is not _NOTHING:
                return found
    if node.kinds and node.kinds <= {"object", "array", "null"}:
        return _structure(text, node, option)
    scalar = _scalar(text, node)
    return text if scalar is _NOTHING else scalar


def _choice(text: str, node: Node) -> Any:
    """`2` for `Literal[1, 2]`, which would refuse the text."""
    for value in node.choices or ():
        if text == (value if isinstance(value, str) else json.dumps(value)):
            return value
    return _NOTHING


def _scalar(text: str, node: Node) -> Any:
    """A number, a truth value or null, where the field makes a difference between these and text."""
    found = _json(text)
    if found is None:
        return None if "null" in node.kinds and not node.takes_text else _NOTHING
    if not node.kinds:
        return found
    if isinstance(found, bool):
        return found if "boolean" in node.kinds else _NOTHING
    # A number that would not be written the same way again, `2.10`, may be a Decimal's or really text.
    is_number = isinstance(found, int | float) and node.takes_text and json.dumps(found) == text
    fits = "number" in node.kinds or ("integer" in node.kinds and isinstance(found, int))
    return found if is_number and fits else _NOTHING


def _structure(text: str, node: Node, option: str) -> Any:
    """What can only be JSON."""
    try:
        found = json.loads(text)
    except ValueError as error:
        parts = [f"`{option}.{name.replace('_', '-')} ...`" for name in list(node.fields)[:2]]
        hint = f" or its parts ({', '.join(parts)})" if parts else ""
        reason = f": {error}" if text.lstrip()[:1] in ("{", "[") else ""
        what = node.words.removesuffix(" or null")
        raise CommandError(f"`{option}` takes JSON ({what}){hint}, got {shorten(repr(text), 80)}{reason}") from error
    return found


def _json(text: str, opening: str = "") -> Any:
    if not text.lstrip().startswith(opening):
        return _NOTHING
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING


def put(values: dict[str, Any], path: Sequence[str | int], value: Any, option: str) -> None:
    """Set a part of the input, making room for it on the way."""
    here: Any = values
    for part, following in pairwise(path):
        inner = _inside(here, part)
        if not isinstance(inner, list if isinstance(following, int) else dict):
            inner = [] if isinstance(following, int) else {}
            _set(here, part, inner, option)
        here = inner
    _set(here, path[-1], value, option)


def _inside(here: Any, part: str | int) -> Any:
    if isinstance(here, dict):
        return here.get(part)
    return here[part] if isinstance(part, int) and part < len(here) else None


def _set(here: Any, part: str | int, value: Any, option: str) -> None:
    if isinstance(here, list) and isinstance(part, int) and part >= len(here):
        if part > len(here):
            raise CommandError(f"`{option}` leaves out item {len(here)}; items are counted from 0, without gaps")
        here.append(value)
    else:
        cast(Any, here)[part] = value
