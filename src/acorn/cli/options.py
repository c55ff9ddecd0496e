"""Options of `acorn run agent.py`: acorn's options, and one option for each field of the input.

Fields take precedence. If a field has the name of one of acorn's options, the plain option sets the field, and acorn's
option is spelled with a prefix: `--acorn-model`. That spelling never sets a field: a field `acorn_model` is written
with its underscore. `-h` always shows the help. `input` makes the input of the parsed options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from shlex import quote
from typing import Any

from acorn._inside import RESULT, Shape, shorten
from acorn.cli.output import CommandError
from acorn.cli.schema_node import SchemaNode, add_aliases
from acorn.types import JsonObject

_MAX_DEPTH = 4
_UNSET: Any = object()
_BOOLEAN_TEXTS = ("true", "false", "yes", "no", "on", "off", "1", "0")
ValuePath = tuple[str | int, ...]
"""The place of a value in the input."""


# acorn's options

OPTION_HELP = {
    "model": "The model to use, such as `openai/gpt-4o`. It replaces the model of the agent and its settings.",
    "input": "A file with the input as a JSON object, or `-` for standard input. Options override it.",
    "json": "Print one JSON object with the output, usage, cost, steps, stop reason, model and seconds.",
    "save": "Save the events of the run to this file, for `acorn show`.",
    "store": "Store the run here. Default: `ACORN_STORE`, the store of the agent, or `.acorn/runs.db` if it exists.",
    "debug": "Show the traceback of an error.",
    "help": "Show this text.",
}
"""acorn's options and their help."""
VALUE_NAMES = {"model": "MODEL", "input": "FILE", "save": "FILE", "store": "FILE"}
"""The options that take a value, and its name in the help."""
PREFIX = "acorn-"


@dataclass(frozen=True)
class AcornOptions:
    """The values of acorn's options."""

    model: str | None = None
    input: str | None = None
    json: bool = False
    save: str | None = None
    store: str | None = None
    debug: bool = False
    help: bool = False


def prefixed_option(name: str) -> str | None:
    """Return `model` for `acorn-model`; None if the name is not one of acorn's options with its prefix."""
    option = name.removeprefix(PREFIX)
    return option if name.startswith(PREFIX) and option in OPTION_HELP else None


# Options of the fields


@dataclass(frozen=True)
class Option:
    """A field, or a part of one, as an option."""

    name: str
    """The name on the command line without the dashes: `address.city`."""
    path: ValuePath
    node: SchemaNode
    is_required: bool = False
    default: Any = _UNSET
    description: str | None = None

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def has_default(self) -> bool:
        return self.default is not _UNSET and self.default is not None


class Options:
    """The options for the input of one module."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        schema = add_aliases(shape.xml_schema, shape.json_schema)
        self.root = SchemaNode(schema, schema)
        wrapped = self.root.fields[RESULT] if shape.wrapped else None
        self.is_positional = wrapped is not None and not (wrapped.fields and wrapped.kinds == {"object"})
        """Whether the value is written without an option, because it has no fields."""
        self.all = list(_list_options(self.root, (), "", (), shape.wrapped and not self.is_positional))
        """Every option in the order of the fields, each followed by its parts."""
        self._first_parts: dict[str, tuple[ValuePath, SchemaNode]] = {}
        """The names that the first part of an option can have."""
        if wrapped is not None and not self.is_positional:
            self._first_parts |= {name: ((RESULT, name), node) for name, node in wrapped.fields.items()}
        for name, node in self.root.fields.items():
            self._first_parts.setdefault(name, ((name,), node))
        for alias, name in shape.names_by_alias.items():
            if name in self.root.fields:
                self._first_parts.setdefault(alias, ((name,), self.root.fields[name]))

    @property
    def positional(self) -> Option | None:
        return self.find(RESULT) if self.is_positional else None

    def find(self, name: str) -> Option | None:
        """Return the option of a name, with underscores or dashes; a part of a dict or list is one, too."""
        first, _, remainder = name.partition(".")
        key = _match_name(first, self._first_parts)
        if key is None:
            if not self.shape.allows_extra or not first.isidentifier():
                return None
            return Option(name, (first,), SchemaNode({}, self.root.root)) if not remainder else None
        path, node = self._first_parts[key]
        parts = remainder.split(".") if remainder else []
        names = [_field_option_name(key)]
        while parts:
            step = _descend(node, parts)
            if step is None:
                return None
            used, path_part, part_name, node = step
            path, parts = (*path, path_part), parts[used:]
            names.append(part_name)
        return Option(".".join(names), path, node)

    def is_field(self, option: Option) -> bool:
        """Return whether an option is a whole field of the input and not a part of one."""
        return len(option.path) == (2 if self.shape.wrapped and not self.is_positional else 1)

    def display_name(self, option: Option) -> str:
        """Return an option as error messages name it."""
        return "the argument" if self.is_positional and self.is_field(option) else f"`{option.flag}`"

    def similar(self, name: str) -> list[str]:
        """Return the options with a similar name."""
        names = dict.fromkeys([*(option.name for option in self.all), *OPTION_HELP])
        return [f"--{match}" for match in get_close_matches(name.strip("-").replace("_", "-"), names, 2)]


def option_name(field_name: str) -> str:
    """Return the name of a field with dashes."""
    return field_name.replace("_", "-").strip("-") or field_name


def _field_option_name(field_name: str) -> str:
    """Return the option name of a field; one that would look like an option of acorn's keeps its underscore."""
    return field_name if prefixed_option(option_name(field_name)) else option_name(field_name)


def _match_name(name: str, names: Iterable[str]) -> str | None:
    if name in names:
        return name
    return next((other for other in names if option_name(other) == option_name(name)), None)


def _descend(node: SchemaNode, parts: list[str]) -> tuple[int, str | int, str, SchemaNode] | None:
    """Go one level into a value.

    Returns the number of parts of the name that were used, the part of the path, its name, and the node there.
    """
    fields = node.fields
    field_name = _match_name(parts[0], fields)
    if field_name is None and (alias := _match_name(parts[0], node.aliases)) is not None:
        field_name = node.aliases[alias]
    if field_name is not None:
        return 1, field_name, option_name(field_name), fields[field_name]
    if "array" in node.kinds and parts[0].isdecimal():
        index = int(parts[0])
        return 1, index, parts[0], node.item(index)
    extra = node.extra_value
    if extra is None:
        return None
    # The user chooses the keys of a dict, so a key may contain dots, unless the value has parts itself.
    if extra.kinds and not extra.kinds & {"object", "array"}:
        key = ".".join(parts)
        return len(parts), key, key, extra
    return 1, parts[0], parts[0], extra


def _list_options(
    node: SchemaNode, path: ValuePath, prefix: str, definitions: tuple[str, ...], hides_first: bool
) -> Iterator[Option]:
    """List the options of a node; `hides_first` leaves out the outermost name, which only wraps the value."""
    for name, child in node.fields.items():
        option = Option(
            prefix + option_name(name) if prefix else _field_option_name(name),
            (*path, name),
            child,
            name in node.required,
            child.schema.get("default", _UNSET),
            child.schema.get("description") or _class_schema(child).get("description"),
        )
        is_hidden = hides_first and not path
        if not is_hidden:
            yield option
        is_recursive = child.definition is not None and child.definition in definitions
        if child.fields and len(path) < _MAX_DEPTH and not is_recursive:
            child_prefix = f"{option.name}." if not is_hidden else ""
            yield from _list_options(
                child, option.path, child_prefix, (*definitions, child.definition or ""), hides_first
            )


def _class_schema(node: SchemaNode) -> JsonObject:
    """Return the schema of the only class that a value may be an instance of, for its docstring."""
    members = [member for member in node.members if member.get("type") != "null"]
    return members[0] if len(members) == 1 else {}


# Parsing the words


@dataclass
class ParsedArguments:
    """The arguments after the name of the module."""

    own: AcornOptions
    options: dict[ValuePath, tuple[Option, list[str | bool]]] = field(
        default_factory=dict[ValuePath, tuple[Option, list[str | bool]]]
    )
    """The texts of each option in order, by the path of its value."""
    last_flag: str | None = None
    """The last option if it takes no value; an error about a stray word mentions it."""
    last_text: str | None = None
    """The last option if its value is text."""

    def add(self, option: Option, text: str | bool) -> None:
        texts = self.options.setdefault(option.path, (option, []))[1]
        if texts and not option.node.is_repeatable:
            raise CommandError(f"`{option.flag}` is given twice. It takes one value.")
        texts.append(text)
        self.last_flag = option.flag if isinstance(text, bool) else None
        self.last_text = option.flag if self.last_flag is None and option.node.accepts_any_text else None

    def add_own(self, name: str, value: str | bool, flag: str) -> None:
        if name in VALUE_NAMES and getattr(self.own, name) is not None:
            raise CommandError(f"`{flag}` is given twice. It takes one value.")
        changes: JsonObject = {name: value}
        self.own = replace(self.own, **changes)
        self.last_flag, self.last_text = (None if name in VALUE_NAMES else flag), None


def parse_arguments(words: Sequence[str], options: Options, own: AcornOptions) -> ParsedArguments:
    """Sort the words into fields and acorn's options; a `CommandError` names a word that is neither."""
    parsed = ParsedArguments(own)
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            for text in remaining:
                _add_positional(parsed, options, text)
            break
        if word == "-h":  # Also if a field is called `help`.
            parsed.add_own("help", True, word)
        elif word.startswith("--"):
            _add_option(parsed, options, word, remaining)
        elif word.startswith("-") and len(word) > 1 and not _is_number(word):
            raise CommandError(f"There is no option `{word}`.{_suggest_option(options, word.lstrip('-'))}")
        else:
            _add_positional(parsed, options, word)
    return parsed


def _add_positional(parsed: ParsedArguments, options: Options, text: str) -> None:
    option = options.positional
    if option is None:
        raise _stray_word(parsed, options, text)
    if option.path in parsed.options and not option.node.is_repeatable:
        raise CommandError(
            f"Unexpected argument `{shorten(text, 80)}`. There already is an argument. Put it in quotes?"
        )
    parsed.add(option, text)


def _stray_word(parsed: ParsedArguments, options: Options, text: str) -> CommandError:
    """Explain a word that belongs to no option."""
    flag, stray = parsed.last_flag, f"Unexpected argument `{shorten(text, 80)}`"
    if flag is not None:
        option = options.find(flag[2:])
        if option is not None and option.node.is_flag and text.lower() in _BOOLEAN_TEXTS:
            return CommandError(f"`{flag}` takes no value. Write `{flag}` or `--no-{option.name}`.")
        return CommandError(f"{stray} after `{flag}`, which takes no value.")
    if parsed.last_text is not None:
        return CommandError(f"{stray}. Put the value of `{parsed.last_text}` in quotes?")
    first = next((option for option in options.all if not option.node.is_flag), None)
    hint = f"Write `{first.flag} {quote(shorten(text, 40))}`?" if first else "The module takes no input."
    return CommandError(f"{stray}. {hint}")


def _add_option(parsed: ParsedArguments, options: Options, word: str, remaining: list[str]) -> None:
    name, has_value, text = word[2:].partition("=")
    own = _acorn_option(name, options)
    if own is not None:
        value: str | bool = True
        if own in VALUE_NAMES:
            value = text if has_value else _take_value(word, remaining, options)
        elif has_value:
            raise CommandError(f"`--{name}` takes no value.")
        parsed.add_own(own, value, f"--{name}")
        return
    option, is_off = options.find(name), False
    if option is None and name.startswith("no-"):
        option, is_off = options.find(name[3:]), True
    if option is None or (is_off and not option.node.is_flag):
        raise CommandError(f"There is no option `--{name}`.{_suggest_option(options, name)}")
    if option.node.is_flag and not has_value:
        parsed.add(option, not is_off)
    elif is_off:
        raise CommandError(f"`--{name}` takes no value.")
    else:
        parsed.add(option, text if has_value else _take_value(word, remaining, options))


def _acorn_option(name: str, options: Options) -> str | None:
    """Return the option of acorn's that a name means, if any."""
    if (option := prefixed_option(name)) is not None:
        return option
    return name if name in OPTION_HELP and not is_field_name(name, options) else None


def is_field_name(name: str, options: Options) -> bool:
    """Return whether the module has a field of this name."""
    return any(option.name == name for option in options.all) or (
        options.find(name) is not None and not options.shape.allows_extra
    )


def _take_value(word: str, remaining: list[str], options: Options) -> str:
    """Take the word after an option; a word that is an option itself is probably not meant as its value."""
    if remaining and remaining[0].startswith("--"):
        name = remaining[0][2:].partition("=")[0]
        if name in OPTION_HELP or any(option.name == name.replace("_", "-") for option in options.all):
            raise CommandError(
                f"`{word}` needs a value. If the value is `{remaining[0]}`, write `{word}={remaining[0]}`."
            )
    if not remaining:
        raise CommandError(f"`{word}` needs a value.")
    return remaining.pop(0)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _suggest_option(options: Options, name: str) -> str:
    similar = options.similar(name)
    return f" Did you mean {' or '.join(f'`{flag}`' for flag in similar)}?" if similar else " `--help` lists them."
