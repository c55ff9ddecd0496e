"""`acorn show`: a saved run, step by step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from acorn.cli.ends import FINE, CommandError, write
from acorn.cli.recount import Recount
from acorn.cli.result import print_json
from acorn.cli.text import clean
from acorn.thread import AgentEvent, dump_events, parse_events, serialize_thread_to_xml


def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A run that was kept by `acorn run --save FILE`.")],
    xml: Annotated[bool, typer.Option("--xml", help="Print the thread as one XML document.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the events as JSON.")] = False,
) -> int:
    """Show a saved run step by step, its branches as a tree."""
    if xml and json:
        raise CommandError("`--xml` and `--json` exclude each other")
    events = _read(file)
    if json:
        print_json(dump_events(events), sys.stdout)
    elif xml:
        text = serialize_thread_to_xml(events)
        write(sys.stdout, f"{clean(text) if sys.stdout.isatty() else text}\n")
    else:
        _print(Path(file).name, events)
    return FINE


def _read(file: str) -> list[AgentEvent]:
    try:
        return parse_events(Path(file).read_bytes())
    except OSError as error:
        raise CommandError(f"`{file}` cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CommandError(f"`{file}` holds no saved run: {f'{place}: ' if place else ''}{first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"`{file}` holds no saved run: {error}") from error


def _print(title: str, events: list[AgentEvent]) -> None:
    console = Console(file=sys.stdout)
    if not sys.stdout.isatty():
        console = Console(file=sys.stdout, width=160)
    with console.capture() as captured:
        console.print(Recount(title, events, is_plain=console.options.ascii_only).tree)
    write(sys.stdout, captured.get())
