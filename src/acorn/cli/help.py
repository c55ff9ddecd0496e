"""The help of a module: its docstring, every field of its input, what it gives, and acorn's own options."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from acorn import module
from acorn._inside import AgentDescription, shorten
from acorn.cli.field_options import Node
from acorn.cli.options import OWN, TAKES_TEXT, Option, Options, is_ambiguous
from acorn.cli.output import clean, one_line, write


def show_help(agent: module[Any, Any], spec: AgentDescription, options: Options, target: str, out: TextIO) -> None:
    """Print it; nothing in a user's text is taken for markup."""
    console = Console(file=out)
    with console.capture() as drawn:
        _print(agent, spec, options, target, console)
    write(out, drawn.get())


def _print(agent: module[Any, Any], spec: AgentDescription, options: Options, target: str, console: Console) -> None:
    argument = "" if options.positional is None else " RESULT..." if options.positional.node.is_list else " RESULT"
    console.print(Padding(Text(f"Usage: acorn run {target}{argument} [OPTIONS]", style="bold"), (1, 1, 1, 1)))
    if doc := inspect.cleandoc(spec.docstring):
        console.print(Padding(Text(clean(doc)), (0, 1, 1, 1)))
    if options.listed:
        console.print(_panel("Input", [_row(option, options) for option in options.listed]))
    output = Options(spec.output)
    if output.listed:
        console.print(_panel("Output", [_described(option) for option in output.listed if len(option.path) == 1]))
    console.print(_panel("Options", [_own_row(name, options, agent.model) for name in OWN]))


Row = tuple[str, str, RenderableType]
"""An option, its type, and what is said of it."""


def _panel(title: str, rows: Iterable[Row]) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", overflow="fold")
    table.add_column(style="yellow", max_width=28)
    table.add_column()
    for name, kind, described in rows:
        table.add_row(Text(name), Text(kind), described)
    return Panel(table, title=title, title_align="left", border_style="dim")


def _row(option: Option, options: Options) -> Row:
    name = option.flag
    off = f"no-{option.name}"
    if option.node.is_flag and not any(other.name == off for other in options.listed):
        name = f"{name} / --{off}"
    elif options.positional is not None and len(option.path) == 1:
        name = f"RESULT or {name}"
    return name, type_text(option.node), _said(option)


def type_text(node: Node) -> str:
    """What to write behind an option."""
    if node.is_flag:
        return ""
    choices = node.choices
    if choices is not None:
        shown = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
        return one_line("|".join(choice for choice in shown if choice != "null" or len(shown) == 1), 120)
    words = node.words.removesuffix(" or null")
    if node.media or (node.is_list and node.item(0).media):
        words = f"{words} (path or URL)"
    if node.is_list:
        return f"{words}; repeat it" if node.item(0).media else f"{words}; repeat it, or JSON"
    return "JSON" if "object" in node.kinds and node.kinds <= {"object", "null"} else words


def _described(option: Option) -> Row:
    return str(option.path[-1]), option.node.words, Text(clean(option.description or ""))


def _said(option: Option) -> RenderableType:
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


def _own_row(name: str, options: Options, model: Any) -> Row:
    spelled = f"--acorn-{name}" if is_ambiguous(name, options) else f"--{name}"
    spelled = f"{spelled} / -h" if name == "help" else spelled
    text = OWN[name]
    if name == "model" and isinstance(model, str):
        text = f"{text} [default: {one_line(model)}]"
    return spelled, TAKES_TEXT.get(name, ""), Text(text)
