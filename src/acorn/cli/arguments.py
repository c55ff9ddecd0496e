"""Parsing of the arguments of `acorn run` and `acorn explain`, and the help that describes these arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from acorn._inside import AgentDescription, shorten
from acorn.cli.options import (
    OPTION_HELP,
    VALUE_NAMES,
    AcornOptions,
    Option,
    Options,
    SchemaNode,
    ValuePath,
    prefixed_option,
)
from acorn.cli.output import CommandError, clean, one_line, rich_console
from acorn.cli.targets import Agent
from acorn.types import JsonObject

_BOOLEAN_TEXTS = ("true", "false", "yes", "no", "on", "off", "1", "0")


# Parsing


@dataclass
class ParsedArguments:
    """The parsed command-line arguments that follow the target of a command.

    They contain the options of acorn, and the texts of the options that set fields of the input.
    """

    acorn_options: AcornOptions
    options: dict[ValuePath, tuple[Option, list[str | bool]]] = field(
        default_factory=dict[ValuePath, tuple[Option, list[str | bool]]]
    )
    """A dict that maps the path of each value to its option and to the texts of the option, in order."""
    last_flag: str | None = None
    """The last option on the command line if it has no value. The error about an unexpected argument mentions it."""
    last_text: str | None = None
    """The last option on the command line if its value is text. Users may have forgotten quotes around the text."""

    def add(self, option: Option, text: str | bool) -> None:
        texts = self.options.setdefault(option.path, (option, []))[1]
        if texts and not option.node.is_repeatable:
            raise CommandError(f"`{option.flag}` occurs twice, but it accepts only one value. Remove one of them.")
        texts.append(text)
        self.last_flag = option.flag if isinstance(text, bool) else None
        self.last_text = option.flag if self.last_flag is None and option.node.accepts_any_text else None

    def add_acorn_option(self, name: str, value: str | bool, flag: str) -> None:
        if name in VALUE_NAMES and getattr(self.acorn_options, name) is not None:
            raise CommandError(f"`{flag}` occurs twice, but it accepts only one value. Remove one of them.")
        changes: JsonObject = {name: value}
        self.acorn_options = replace(self.acorn_options, **changes)
        self.last_flag, self.last_text = (None if name in VALUE_NAMES else flag), None


def parse_arguments(words: Sequence[str], options: Options, acorn_options: AcornOptions) -> ParsedArguments:
    """Parse command-line words into options of acorn and options that set fields of the input.

    `acorn_options` contains the options of acorn that precede the target. Raises a `CommandError` for an unknown word.
    """
    parsed = ParsedArguments(acorn_options)
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            for text in remaining:
                _add_positional(parsed, options, text)
            break
        if word == "-h":  # `-h` prints the help even if the input has a field `help`.
            parsed.add_acorn_option("help", True, word)
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
        raise _unexpected_argument(parsed, options, text)
    if option.path in parsed.options and not option.node.is_repeatable:
        raise CommandError(
            f"Unexpected argument `{shorten(text, 80)}`: the input accepts only one argument. If the argument contains "
            f"spaces, put it in quotes."
        )
    parsed.add(option, text)


def _unexpected_argument(parsed: ParsedArguments, options: Options, text: str) -> CommandError:
    """Return the error message for an argument that is not the value of an option."""
    flag, start = parsed.last_flag, f"Unexpected argument `{shorten(text, 80)}`"
    if flag is not None:
        option = options.find(flag[2:])
        if option is not None and option.node.is_flag and text.lower() in _BOOLEAN_TEXTS:
            return CommandError(f"`{flag}` does not accept a value. Use `{flag}` or `--no-{option.name}`.")
        return CommandError(f"{start} after `{flag}`, which does not accept a value. Remove the argument.")
    if parsed.last_text is not None:
        return CommandError(f"{start}. If it is part of the value of `{parsed.last_text}`, put the value in quotes.")
    first = next((option for option in options.all if not option.node.is_flag), None)
    hint = f"Did you mean `{first.flag} {quote(shorten(text, 40))}`?" if first else "The module has no input."
    return CommandError(f"{start}. {hint}")


def _add_option(parsed: ParsedArguments, options: Options, word: str, remaining: list[str]) -> None:
    name, has_value, text = word[2:].partition("=")
    acorn_name = _acorn_option(name, options)
    if acorn_name is not None:
        value: str | bool = True
        if acorn_name in VALUE_NAMES:
            value = text if has_value else _pop_value(word, remaining, options)
        elif has_value:
            raise CommandError(f"`--{name}` does not accept a value. Remove `=` and the text after it.")
        parsed.add_acorn_option(acorn_name, value, f"--{name}")
        return
    option, is_off = options.find(name), False
    if option is None and name.startswith("no-"):
        option, is_off = options.find(name[3:]), True
    if option is None or (is_off and not option.node.is_flag):
        raise CommandError(f"There is no option `--{name}`.{_suggest_option(options, name)}")
    if option.node.is_flag and not has_value:
        parsed.add(option, not is_off)
    elif is_off:
        raise CommandError(f"`--{name}` does not accept a value. Remove `=` and the text after it.")
    else:
        parsed.add(option, text if has_value else _pop_value(word, remaining, options))


def _acorn_option(name: str, options: Options) -> str | None:
    """Return the name of the option of acorn that a word on the command line refers to.

    Return None if the word refers to a field of the input, or if acorn has no such option.
    """
    if (option := prefixed_option(name)) is not None:
        return option
    return name if name in OPTION_HELP and not is_field_name(name, options) else None


def is_field_name(name: str, options: Options) -> bool:
    """Return True if the input of the agent has a field with this option name."""
    return any(option.name == name for option in options.all) or (
        options.find(name) is not None and not options.shape.allows_extra
    )


def _pop_value(word: str, remaining: list[str], options: Options) -> str:
    """Remove the word after an option and return it as the option's value.

    Raises a `CommandError` if the word is the name of another option: the user probably forgot the value.
    """
    if remaining and remaining[0].startswith("--"):
        name = remaining[0][2:].partition("=")[0]
        if name in OPTION_HELP or any(option.name == name.replace("_", "-") for option in options.all):
            raise CommandError(
                f"`{word}` needs a value. If the value is `{remaining[0]}`, write `{word}={remaining[0]}`."
            )
    if not remaining:
        raise CommandError(f"`{word}` needs a value. Add the value after the option.")
    return remaining.pop(0)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _suggest_option(options: Options, name: str) -> str:
    similar = options.similar(name)
    return (
        f" Did you mean {' or '.join(f'`{flag}`' for flag in similar)}?" if similar else " `--help` lists the options."
    )


# The help


def show_help(agent: Agent, description: AgentDescription, options: Options, target: str, out: TextIO) -> None:
    """Print the help of an agent: its docstring, its input fields, its output fields and acorn's options."""
    with rich_console(out) as console:  # Every text is a rich `Text`, so rich does not interpret it as markup.
        _print(agent, description, options, target, console)


def _print(agent: Agent, description: AgentDescription, options: Options, target: str, console: Console) -> None:
    argument = "" if options.positional is None else " RESULT..." if options.positional.node.is_list else " RESULT"
    console.print(Padding(Text(f"Usage: acorn run {target}{argument} [OPTIONS]", style="bold"), (1, 1, 1, 1)))
    if docstring := inspect.cleandoc(description.docstring):
        console.print(Padding(Text(clean(docstring)), (0, 1, 1, 1)))
    if options.all:
        console.print(_panel("Input", [_input_row(option, options) for option in options.all]))
    output = Options(description.output)
    if output.all:
        console.print(_panel("Output", [_output_row(option) for option in output.all if len(option.path) == 1]))
    console.print(_panel("Options", [_acorn_row(name, options, agent.model) for name in OPTION_HELP]))


Row = tuple[str, str, RenderableType]
"""A row of the help: the option, its type, and its description."""


def _panel(title: str, rows: Iterable[Row]) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", overflow="fold")
    table.add_column(style="yellow", max_width=28)
    table.add_column()
    for name, kind, description in rows:
        table.add_row(Text(name), Text(kind), description)
    return Panel(table, title=title, title_align="left", border_style="dim")


def _input_row(option: Option, options: Options) -> Row:
    name = option.flag
    negated = f"no-{option.name}"
    if option.node.is_flag and not any(other.name == negated for other in options.all):
        name = f"{name} / --{negated}"
    elif options.positional is not None and len(option.path) == 1:
        name = f"RESULT or {name}"
    return name, type_text(option.node), _describe(option)


def type_text(node: SchemaNode) -> str:
    """Return the text that the help prints for the value of an option: its type or its allowed values."""
    if node.is_flag:
        return ""
    choices = node.choices
    if choices is not None:
        texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
        return one_line("|".join(text for text in texts if text != "null" or len(texts) == 1), 120)
    text = node.type_text.removesuffix(" or null")
    if node.media or (node.is_list and node.item(0).media):
        text = f"{text} (path or URL)"
    if node.is_list:
        return f"{text}; repeat it" if node.item(0).media else f"{text}; repeat it, or JSON"
    return "JSON" if "object" in node.kinds and node.kinds <= {"object", "null"} else text


def _describe(option: Option) -> RenderableType:
    parts: list[Text] = []
    if option.description:
        parts.append(Text(clean(option.description)))
    if option.is_required and len(option.path) == 1:
        parts.append(Text("[required]", style="red"))
    elif option.has_default:
        is_text = isinstance(option.default, str) and option.default
        default = option.default if is_text else json.dumps(option.default, ensure_ascii=False)
        parts.append(Text(f"[default: {shorten(one_line(default), 80)}]", style="dim"))
    return Group(*parts)


def _output_row(option: Option) -> Row:
    return str(option.path[-1]), option.node.type_text, Text(clean(option.description or ""))


def _acorn_row(name: str, options: Options, model: object) -> Row:
    flag = f"--acorn-{name}" if is_field_name(name, options) else f"--{name}"
    flag = f"{flag} / -h" if name == "help" else flag
    text = OPTION_HELP[name]
    if name == "model" and isinstance(model, str):
        text = f"{text} [default: {one_line(model)}]"
    return flag, VALUE_NAMES.get(name, ""), Text(text)
