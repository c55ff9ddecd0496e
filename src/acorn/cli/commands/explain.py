"""`acorn explain`: what a module would send to its model, part by part, and what is odd about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from acorn import AcornError
from acorn._inside import Explanation, describe_blobs, example_input, explain_agent, to_json_text, tool_name
from acorn.cli.commands.run import declared
from acorn.cli.help import show_help
from acorn.cli.input import make_input
from acorn.cli.options import OWN, OwnOptions, parse
from acorn.cli.output import (
    FAILED,
    FINE,
    CommandError,
    clean,
    error_text,
    line_reached,
    message_of,
    one_line,
    print_json,
    without_keys,
    write,
)
from acorn.cli.targets import load
from acorn.cli.watched_run import veiled


def explain(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_MODULE[:CLASS]", help="Where the module is: `agent.py`, `agent.py:Researcher`."
        ),
    ],
    input: Annotated[str | None, typer.Option("--input", "--acorn-input", metavar="FILE|-", help=OWN["input"])] = None,
    json: Annotated[bool, typer.Option("--json", "--acorn-json", help="Print all of it as one JSON object.")] = False,
    open: Annotated[bool, typer.Option("--open", help="Open the sources of tools, to list what they have.")] = False,
    debug: Annotated[bool, typer.Option("--debug", "--acorn-debug", help=OWN["debug"])] = False,
) -> int:
    """Show what a module would send to its model first: the messages, the tools, and how long each is.

    The input is given as for "acorn run", behind the name; without one, an example is made up. No model is asked and
    no tool is called. Sources of tools are opened only with --open, which stands before the name where the input has a
    field of that name.
    """
    words = list(context.args)
    debug = debug or "--debug" in words or "--acorn-debug" in words
    out = context.obj.set_aside()
    agent = load(target, debug=debug)
    spec, options = declared(agent, debug)
    if "--open" in words and options.find("open") is None:
        open = True
        words.remove("--open")
    written = parse(words, options, OwnOptions(None, input, json, None, None, debug))
    if written.own.help:
        show_help(agent, spec, options, target, out)
        return FINE
    for name in ("model", "save", "store"):
        if getattr(written.own, name) is not None:
            raise CommandError(f"`--{name}` is for `acorn run`; nothing is run here")
    is_example = not written.options and written.own.input is None and not spec.input.is_empty
    try:
        given = example_input(agent) if is_example else spec.input.unwrap(make_input(written, options))
        told = explain_agent(agent, () if spec.input.is_empty else (given,), opens=open)
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    except CommandError:
        raise
    except (Exception, SystemExit) as error:  # a prompt method's, or a source's
        raise CommandError(f"{line_reached(error)}{error_text(error)}", FAILED, debug=debug) from error
    told = replace(
        told,
        input=veiled(without_keys, told.input),
        messages=veiled(without_keys, describe_blobs(told.messages)),
        tools=veiled(without_keys, told.tools),
    )
    if is_example:
        told.notes.insert(0, "the input is an example, since none was given")
    if written.own.json:
        print_json(told.to_json(), out)
    else:
        _show(told, out)
    return FINE


def _show(told: Explanation, out: TextIO) -> None:
    console = Console(file=out) if out.isatty() else Console(file=out, width=120)
    with console.capture() as drawn:
        _print(told, console)
    write(out, drawn.get())


def _print(told: Explanation, console: Console) -> None:
    forced = f", must call {told.forced_tool} where the model can be made to" if told.forced_tool else ""
    model = f"on {one_line(told.model)}, " if told.model else ""
    settings = f"{model}temperature {told.temperature:g}, at most {told.max_tokens} tokens a response{forced}"
    console.print(Text.assemble((one_line(told.agent), "bold"), (f"  {settings}", "dim")))
    for message in told.messages:
        _head(console, f"{message['role']} message")
        for part in _parts(message.get("content")):
            console.print(Text(clean(part)), soft_wrap=True)
    for tool in told.tools:
        _head(console, f"tool {tool_name(tool)}")
        function = tool.get("function", {"parameters": tool})
        if function.get("description"):
            console.print(Text(clean(function["description"])), soft_wrap=True)
        console.print(Text(clean(to_json_text(function.get("parameters", {}))), style="dim"), soft_wrap=True)
    _head(console, "size")
    console.print(_sizes(told))
    _listed(console, "inherits", [f"{name}: {', '.join(what)}" for name, what in told.inherits.items()])
    _listed(console, "odd", told.odd)
    _listed(console, "not told here", told.notes)


def _parts(content: Any) -> list[str]:
    """The text of a message, and what it carries beside it."""
    if not isinstance(content, list):
        return [content if isinstance(content, str) else to_json_text(content)]
    return [part["text"] if part.get("type") == "text" else to_json_text(part) for part in content]


def _head(console: Console, title: str) -> None:
    console.print()
    console.print(Text(one_line(title), style="bold cyan"))


def _sizes(told: Explanation) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("part")
    table.add_column("characters", justify="right")
    table.add_column("tokens, about", justify="right")
    for part in told.parts:
        table.add_row(Text(one_line(part.name)), str(part.characters), str(part.tokens))
    table.add_row(Text("all", style="bold"), str(told.characters), str(told.tokens))
    return table


def _listed(console: Console, title: str, lines: list[Any]) -> None:
    if not lines:
        return
    _head(console, title)
    for line in lines:
        console.print(Text(f"- {one_line(line, 400)}"), soft_wrap=True)
