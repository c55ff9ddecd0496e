"""The command `acorn explain`, which prints the first request of an agent and warnings about its declaration."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from acorn import AcornError
from acorn._inside import describe_blobs, to_json_text
from acorn._inside.runs import Explanation, explain_agent
from acorn.cli.arguments import parse_arguments, show_help
from acorn.cli.commands.run import describe_target
from acorn.cli.input import make_input
from acorn.cli.options import AcornOptions, DebugOption, InputOption, Target
from acorn.cli.output import (
    FAILED,
    SUCCESS,
    CommandError,
    clean,
    error_text,
    one_line,
    print_json,
    redactor,
    rich_console,
    user_code_line,
)
from acorn.cli.targets import load_agent
from acorn.types import is_json_list


def explain(
    context: typer.Context,
    target: Target,
    input: InputOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the explanation as one JSON object.")] = False,
    open: Annotated[bool, typer.Option("--open", help="Open the tool sources and list their tools.")] = False,
    debug: DebugOption = False,
) -> int:
    """Print the first request of a module: the messages, the tools and their sizes.

    Pass the input after the module, as for "acorn run". Without an input, acorn creates an example. acorn sends no
    request and calls no tool. It opens tool sources only with --open. If the input has a field "open", put --open
    before the module.
    """
    words = list(context.args)
    out = context.obj.reserve_stdout()
    agent = load_agent(target)
    description, options = describe_target(agent)
    if "--open" in words and options.find("open") is None:
        open = True
        words.remove("--open")
    arguments = parse_arguments(words, options, AcornOptions(None, input, json, None, None, debug))
    if arguments.acorn_options.help:
        show_help(agent, description, options, target, out)
        return SUCCESS
    for name in ("model", "save", "store"):
        if getattr(arguments.acorn_options, name) is not None:
            raise CommandError(
                f"`--{name}` is an option of `acorn run`, and `acorn explain` does not start a run. Remove `--{name}`."
            )
    is_example = not arguments.options and arguments.acorn_options.input is None and not description.input.is_empty
    try:
        values = None if is_example else make_input(arguments, options)
        explanation = explain_agent(agent, values, opens=open)
    except (AcornError, CommandError):
        raise
    except (Exception, SystemExit) as error:  # A user's prompt method or tool source can raise any exception.
        raise CommandError(f"{user_code_line(error)}{error_text(error)}", FAILED) from error
    explanation = replace(
        explanation,
        input=redactor().data(explanation.input),
        messages=redactor().data(describe_blobs(explanation.messages)),
        tools=redactor().data(explanation.tools),
    )
    if is_example:
        explanation.notes.insert(0, "The input is an example, because the command has no input.")
    if arguments.acorn_options.json:
        print_json(explanation.to_json(), out)
    else:
        with rich_console(out, 120) as console:
            _print(explanation, console)
    return SUCCESS


def _print(explanation: Explanation, console: Console) -> None:
    forced = (
        f", must call {explanation.forced_tool} if the provider can force a tool" if explanation.forced_tool else ""
    )
    model = f"on {one_line(explanation.model)}, " if explanation.model else ""
    settings = (
        f"{model}temperature {explanation.temperature:g}, at most {explanation.max_tokens} tokens per response{forced}"
    )
    console.print(Text.assemble((one_line(explanation.agent), "bold"), (f"  {settings}", "dim")))
    headings = iter(explanation.parts)  # The parts are in the order of this output: first the messages, then the tools.
    for message in explanation.messages:
        _print_heading(console, next(headings).name)
        for text in _content_texts(message.get("content")):
            console.print(Text(clean(text)), soft_wrap=True)
    for tool in explanation.tools:
        _print_heading(console, next(headings).name)
        function = tool.get("function", {"parameters": tool})
        if function.get("description"):
            console.print(Text(clean(function["description"])), soft_wrap=True)
        console.print(Text(clean(to_json_text(function.get("parameters", {}))), style="dim"), soft_wrap=True)
    _print_heading(console, "size")
    console.print(_sizes(explanation))
    _print_list(console, "inherits", [f"{name}: {', '.join(names)}" for name, names in explanation.inherits.items()])
    _print_list(console, "warnings", explanation.warnings)
    _print_list(console, "notes", explanation.notes)


def _content_texts(content: object) -> list[str]:
    """Return the texts of the content of a message.

    Parts that are not text, such as images, are returned as JSON.
    """
    if not is_json_list(content):
        return [content if isinstance(content, str) else to_json_text(content)]
    return [part["text"] if part.get("type") == "text" else to_json_text(part) for part in content]


def _print_heading(console: Console, title: str) -> None:
    console.print()
    console.print(Text(one_line(title), style="bold cyan"))


def _sizes(explanation: Explanation) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("part")
    table.add_column("characters", justify="right")
    table.add_column("tokens (estimate)", justify="right")
    for part in explanation.parts:
        table.add_row(Text(one_line(part.name)), str(part.characters), str(part.tokens))
    table.add_row(Text("total", style="bold"), str(explanation.characters), str(explanation.tokens))
    return table


def _print_list(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    _print_heading(console, title)
    for line in lines:
        console.print(Text(f"- {one_line(line, 400)}"), soft_wrap=True)
