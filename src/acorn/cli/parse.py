"""From the words behind `acorn run agent.py` to the input of the module and our own options.

The fields come first: where one has the name of an option of ours, the plain option is the field's, and ours
is spelled `--acorn-model` and so on, which always works.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from acorn._json import shorten
from acorn._schema.problems import Problem, problems
from acorn._schema.shape import RESULT, aliases_of
from acorn.cli.ends import CommandError
from acorn.cli.options import Option, Options
from acorn.cli.values import put, read

OURS = {
    "model": "The model to ask instead of the declared one, such as `openai/gpt-4o`.",
    "input": "A file with the input as a JSON object, or `-` for standard input; options win over it.",
    "json": "Print one JSON object with the output, usage, cost, steps, stop reason, model and seconds.",
    "save": "Keep the run's events in this file, for `acorn show`.",
    "debug": "Show the traceback of an error.",
    "help": "Show this text.",
}
"""Our options beside a module's fields, and what they do."""
TAKES_TEXT = {"model": "MODEL", "input": "FILE", "save": "FILE"}
_PREFIX = "acorn-"


@dataclass(frozen=True)
class Ours:
    """What was said to `acorn run` itself."""

    model: str | None = None
    input: str | None = None
    json: bool = False
    save: str | None = None
    debug: bool = False
    help: bool = False


@dataclass
class Given:
    """What was said behind the module's name."""

    ours: Ours
    options: dict[tuple[str | int, ...], tuple[Option, list[str | bool]]] = field(
        default_factory=dict[tuple[str | int, ...], tuple[Option, list[str | bool]]]
    )
    """By the place that a value goes to, in the order they came."""

    def add(self, option: Option, text: str | bool) -> None:
        self.options.setdefault(option.path, (option, []))[1].append(text)


def parse(words: Sequence[str], options: Options, ours: Ours) -> Given:
    """Sort the words into fields and options of ours; `CommandError` names the one that fits neither."""
    given = Given(ours)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            for text in rest:
                _take_positional(given, options, text)
            break
        if word == "-h":
            word = "--help"
        if word.startswith("--"):
            _take_option(given, options, word, rest)
        elif word.startswith("-") and len(word) > 1 and not _is_number(word):
            raise CommandError(f"there is no option `{word}`{_listed_by_help(options, word.lstrip('-'))}")
        else:
            _take_positional(given, options, word)
    return given


def _take_positional(given: Given, options: Options, text: str) -> None:
    option = options.positional
    if option is None:
        first = next((option for option in options.listed if not option.node.is_flag), None)
        hint = f"; write `{first.flag} {shorten(text, 40)}`?" if first else "; the module takes no input"
        raise CommandError(f"unexpected argument `{shorten(text, 80)}`{hint}")
    if option.path in given.options and not option.node.is_list:
        raise CommandError(f"unexpected argument `{shorten(text, 80)}`; there is one already (put it in quotes?)")
    given.add(option, text)


def _take_option(given: Given, options: Options, word: str, rest: list[str]) -> None:
    name, has_value, text = word[2:].partition("=")
    own = _own(name, options)
    if own is not None:
        value: Any = True
        if own in TAKES_TEXT:
            value = text if has_value else _next(word, rest, options)
        elif has_value:
            raise CommandError(f"`--{name}` takes no value")
        given.ours = replace(given.ours, **{own: value})
        return
    option, is_off = options.find(name), False
    if option is None and name.startswith("no-"):
        option, is_off = options.find(name[3:]), True
    if option is None or (is_off and not option.node.is_flag):
        raise CommandError(f"there is no option `--{name}`{_listed_by_help(options, name)}")
    if option.node.is_flag and not has_value:
        given.add(option, not is_off)
    elif is_off:
        raise CommandError(f"`--{name}` takes no value")
    else:
        given.add(option, text if has_value else _next(word, rest, options))


def _own(name: str, options: Options) -> str | None:
    """Which of our options a name means, if any."""
    if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) in OURS:
        return name.removeprefix(_PREFIX)
    return name if name in OURS and not is_ambiguous(name, options) else None


def is_ambiguous(name: str, options: Options) -> bool:
    """Whether the module has a field of this name."""
    return any(option.name == name for option in options.listed) or (
        options.find(name) is not None and not options.shape.allows_extra
    )


def _next(word: str, rest: list[str], options: Options) -> str:
    """The word behind an option; one that is an option itself was hardly meant as its value."""
    if rest and rest[0].startswith("--"):
        name = rest[0][2:].partition("=")[0]
        if name in OURS or any(option.name == name.replace("_", "-") for option in options.listed):
            raise CommandError(f"`{word}` needs a value; if it is really `{rest[0]}`, write `{word}={rest[0]}`")
    if not rest:
        raise CommandError(f"`{word}` needs a value")
    return rest.pop(0)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _listed_by_help(options: Options, name: str) -> str:
    near = options.near(name) or [f"--{ours}" for ours in OURS if ours == name.strip("-")]
    return f"; did you mean {' or '.join(f'`{each}`' for each in near)}?" if near else "; `--help` lists them"


def make_input(given: Given, options: Options) -> BaseModel:
    """The input as the module's schema; `CommandError` names each option that is wrong."""
    source = given.ours.input
    values = {} if source is None else _named(_read_input(source, options), options)
    from_file = set(values)
    for path, (option, texts) in sorted(given.options.items(), key=lambda entry: len(entry[0])):
        put(values, path, read(texts, option.node, option.flag), option.flag)
    schema = options.shape.schema
    aliases = {alias for info in schema.model_fields.values() for alias in aliases_of(info)}
    unknown = [name for name in values if name not in schema.model_fields and name not in aliases]
    if unknown and not options.shape.allows_extra:
        raise CommandError(f"{_list(unknown)} in {_source(source)} is no input; there are {_list(schema.model_fields)}")
    try:
        return schema.model_validate(values, by_alias=True, by_name=True)
    except ValidationError as error:
        found = problems(error, options.shape.xml_schema, values)
        typed = {str(path[0]) for path in given.options}
        told = [_complaint(problem, from_file - typed, source, options) for problem in found]
        raise CommandError("; ".join(told)) from error


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
