"""The help of a module: its docstring, the fields of its input and output, and acorn's options."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from acorn._inside import AgentDescription, shorten
from acorn.cli.options import OPTION_HELP, VALUE_NAMES, Option, Options, is_field_name
from acorn.cli.output import clean, one_line, write
from acorn.cli.schema_node import SchemaNode
from acorn.cli.targets import Agent


def show_help(agent: Agent, description: AgentDescription, options: Options, target: str, out: TextIO) -> None:
    """Print the help; the user's texts are never read as markup."""
    console = Console(file=out)
    with console.capture() as captured:
        _print(agent, description, options, target, console)
    write(out, captured.get())


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
"""An option, its type, and its description."""


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
    """Return what to write after an option."""
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
