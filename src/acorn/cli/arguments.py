"""Parsing of the arguments of `acorn run` and `acorn explain`, and the help that describes these arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Sequence
from shlex import quote
from typing import TextIO

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from acorn._inside import module_docstring, read_spec, shorten
from acorn.cli.errors import CommandError
from acorn.cli.options import OPTION_HELP, PREFIX, VALUE_NAMES, AcornOptions, Option, Options, SchemaNode, ValuePath
from acorn.cli.output import rich_console
from acorn.cli.targets import Agent
from acorn.cli.text import clean, one_line

# Parsing


class ParsedArguments:
    """The parsed command-line words that follow the target of a command.

    They contain the options of acorn, and the texts of the options that set fields of the input.
    """

    def __init__(self, words: Sequence[str], accepted: Options, acorn_options: AcornOptions) -> None:
        """Parse command-line words. Raises a `CommandError` for an unknown word."""
        self.accepted = accepted
        """All options that the command accepts."""
        self.acorn_options = acorn_options
        """The options of acorn, of which some may precede the target."""
        self.options: dict[ValuePath, tuple[Option, list[str | bool]]] = {}
        """A dict that maps the path of each value to its option and to the texts of the option, in order."""
        self._last: Option | None = None
        """The last option. Error messages about an unexpected argument mention it."""
        remaining = list(words)
        while remaining:
            word = remaining.pop(0)
            if word == "--":
                for text in remaining:
                    self._add_positional(text)
                break
            if word == "-h":  # `-h` prints the help even if the input has a field `help`.
                acorn_options.help = True
            elif word.startswith("--"):
                self._add_option(word, remaining)
            elif word.startswith("-") and word[1:2].isalpha():
                raise self._unknown_option(word)
            else:
                self._add_positional(word)

    def _add(self, option: Option, text: str | bool) -> None:
        if option.acorn_name is None:
            texts = self.options.setdefault(option.path, (option, []))[1]
            is_repeated = bool(texts) and not option.node.is_repeatable
            texts.append(text)
        else:
            is_repeated = isinstance(getattr(self.acorn_options, option.acorn_name), str)
            setattr(self.acorn_options, option.acorn_name, text)
        if is_repeated:
            raise CommandError(f"`{option.flag}` occurs twice, but it accepts only one value. Remove one of them.")
        self._last = option

    def _unknown_option(self, word: str) -> CommandError:
        return CommandError(f"There is no option `{word}`. {self.accepted.suggest(word)}")

    def _add_positional(self, text: str) -> None:
        option = self.accepted.positional
        if option is None:
            raise CommandError(self._explain_unexpected(text))
        if option.path in self.options and not option.node.is_repeatable:
            raise CommandError(
                f"Unexpected argument `{shorten(text, 80)}`: the input accepts only one argument. If the argument "
                f"contains spaces, put it in quotes."
            )
        self._add(option, text)

    def _explain_unexpected(self, text: str) -> str:
        """Return the error message for an argument that is not the value of an option."""
        start, last = f"Unexpected argument `{shorten(text, 80)}`", self._last
        if last is not None and last.node.is_flag:
            off = f" To set the field to false, use `--no-{last.name}`." if last.acorn_name is None else ""
            return f"{start} after `{last.flag}`, which does not accept a value. Remove the argument.{off}"
        if last is not None and last.acorn_name is None and last.node.accepts_any_text:
            return f"{start}. If it is part of the value of `{last.flag}`, put the value in quotes."
        first = next((option for option in self.accepted.all if not option.node.is_flag), None)
        if first is None:
            return f"{start}. The module has no input."
        return f"{start}. Did you mean `{first.flag} {quote(shorten(text, 40))}`?"

    def _add_option(self, word: str, remaining: list[str]) -> None:
        flag, has_value, text = word.partition("=")
        option, is_off = self.accepted.find(flag[2:]), False
        if option is None and flag.startswith("--no-"):
            option, is_off = self.accepted.find_field(flag[5:]), True
        if option is None or (is_off and not option.node.is_flag):
            raise self._unknown_option(flag)
        if has_value and option.node.is_flag and (is_off or option.acorn_name is not None):
            raise CommandError(f"`{flag}` does not accept a value. Remove `=` and the text after it.")
        if has_value:
            self._add(option, text)
        elif option.node.is_flag:
            self._add(option, not is_off)
        elif not remaining:
            raise CommandError(f"`{word}` needs a value. Add the value after the option.")
        elif remaining[0].startswith("--") and self.accepted.find(remaining[0][2:].partition("=")[0]) is not None:
            # The user probably forgot the value.
            value = remaining[0]
            raise CommandError(f"`{word}` needs a value. If the value is `{value}`, write `{word}={value}`.")
        else:
            self._add(option, remaining.pop(0))


# The help


def show_help(agent: Agent, options: Options, target: str, out: TextIO) -> None:
    """Print the help of an agent: its docstring, its input fields, its output fields and acorn's options."""
    positional = options.positional
    argument = "" if positional is None else " INPUT..." if positional.node.is_list else " INPUT"
    output = Options(read_spec(agent).output)
    with rich_console(out) as console:  # Every text is a rich `Text`, so rich does not interpret it as markup.
        console.print(Padding(Text(f"Usage: acorn run {target}{argument} [OPTIONS]", style="bold"), 1))
        if docstring := inspect.cleandoc(module_docstring(agent) or ""):
            console.print(Padding(Text(clean(docstring)), (0, 1, 1, 1)))
        if options.all:
            console.print(_panel("Input", [_input_row(option, options) for option in options.all]))
        if output.all:
            console.print(_panel("Output", [_output_row(option) for option in output.all if output.is_field(option)]))
        console.print(_panel("Options", [_acorn_row(name, options, agent.model) for name in options.acorn_names]))


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
    name, negated = option.flag, f"--no-{option.name}"
    if option.node.is_flag and all(other.flag != negated for other in options.all):
        name = f"{name} / {negated}"
    elif options.is_positional and options.is_field(option):
        name = "INPUT"
    parts: list[Text] = []
    if option.description:
        parts.append(Text(clean(option.description)))
    if option.is_required and options.is_field(option):
        parts.append(Text("[required]", style="red"))
    elif option.default is not None:
        is_text = isinstance(option.default, str) and option.default
        default = option.default if is_text else json.dumps(option.default, ensure_ascii=False)
        parts.append(Text(f"[default: {shorten(one_line(default), 80)}]", style="dim"))
    return name, type_text(option.node), Group(*parts)


def type_text(node: SchemaNode) -> str:
    """Return the text that the help prints for the value of an option: its type or its allowed values."""
    if node.is_flag:
        return ""
    if (choices := node.choices) is not None:
        texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices if choice is not None]
        return one_line("|".join(texts) or "null", 120)
    text = node.type_text.removesuffix(" or null")
    if node.is_list:
        return f"{text} (path or URL); repeat it" if node.item(0).media else f"{text}; repeat it, or JSON"
    if node.media:
        return f"{text} (path or URL)"
    return "JSON" if "object" in node.kinds and node.kinds <= {"object", "null"} else text


def _output_row(option: Option) -> Row:
    return str(option.path[-1]), option.node.type_text, Text(clean(option.description or ""))


def _acorn_row(name: str, options: Options, model: object) -> Row:
    option = options.find(name)
    flag = f"--{name}" if option is not None and option.acorn_name else f"--{PREFIX}{name}"
    text = OPTION_HELP[name]
    if name == "model" and isinstance(model, str):
        text = f"{text} [default: {one_line(model)}]"
    return f"{flag} / -h" if name == "help" else flag, VALUE_NAMES.get(name, ""), Text(text)
