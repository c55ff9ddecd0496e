"""`acorn show`: a saved run, step by step."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, assert_never

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from acorn._json import compact
from acorn.cli.exit import FINE, CommandError, print_json, write
from acorn.cli.safe_text import clean, one_line, plural
from acorn.cli.view.drawing import Pen, draw
from acorn.cli.view.tree import RunTree
from acorn.errors import StoreError
from acorn.journal import (
    BranchBegun,
    Called,
    Entry,
    Failed,
    Finished,
    Form,
    MessagesSaid,
    ModelAnswered,
    ResultSaid,
    ResultsSaid,
)
from acorn.record import Run
from acorn.thread import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    HumanInputReceivedEvent,
    HumanInputRequestedEvent,
    MessageEvent,
    SummaryEvent,
    ToolCallEvent,
    ToolResultEvent,
    dump_events,
    parse_events,
    serialize_thread_to_xml,
)
from acorn.types import Usage


def show(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A run that was kept by `acorn run --save FILE` or `run.to_json()`.")
    ],
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
        text = Path(file).read_bytes()
        if text.lstrip().startswith(b"{"):  # a record; events are a list
            return Run.from_json(text.decode()).thread
        return parse_events(text)
    except StoreError as error:
        raise CommandError(f"`{file}` holds no saved run: {error}") from error
    except OSError as error:
        raise CommandError(f"`{file}` cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise CommandError(f"`{file}` holds no saved run: {f'{path}: ' if path else ''}{first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"`{file}` holds no saved run: {error}") from error


def _print(title: str, events: list[AgentEvent]) -> None:
    console = Console(file=sys.stdout)
    if not sys.stdout.isatty():
        console = Console(file=sys.stdout, width=160)
    head = Text.assemble((one_line(title), "bold"), (f"  {plural(len(events), 'event')}", "dim"))
    drawn, tree = Tree(head, guide_style="dim"), RunTree()
    for entry in entries_of(events):
        tree.hear(entry)
    pen = Pen(0.0, console.width, console.options.ascii_only, is_over=True, is_whole=True)
    draw(tree.root, drawn, pen)
    with console.capture() as captured:
        console.print(drawn)
    write(sys.stdout, captured.get())


# A thread as entries, as far as it tells: it knows neither requests nor when a call began

_At = tuple[str, int, float]
"""What all entries have: the run, the step, the time."""


@dataclass(eq=False)
class _Known:
    """A run of the thread, as far as it has been read."""

    id: str
    path: str = ""
    step: int = 0
    open_calls: dict[str, str] = field(default_factory=dict[str, str])
    """The names of those without a result, by their ids."""
    branched: set[str] = field(default_factory=set[str])
    """The calls below which a branch hangs already."""


def entries_of(events: Iterable[AgentEvent]) -> Iterator[Entry]:
    """What happened, in the words of the journal; each event becomes one entry, of the same order."""
    runs = {"": _Known("")}
    for event in events:
        key = (event.run_id or event.branch) if event.branch else ""
        if key not in runs:
            runs[key] = _Known(key, event.branch or "")
            yield _begun(runs[key], list(runs.values()))
        run = runs[key]
        run.step = event.iteration or run.step
        yield _entry(event, run)


def _begun(child: _Known, runs: list[_Known]) -> BranchBegun:
    """A branch begins with its first event: below the open call of its name, or else by the user's code."""
    above, _, name = child.path.rpartition("/")
    parent = next((run for run in reversed(runs) if run.path == above), runs[0])
    calls = [call_id for call_id, called in parent.open_calls.items() if called == name]
    free = [call_id for call_id in calls if call_id not in parent.branched] or calls
    parent.branched.update(free[:1])
    return BranchBegun(parent.id, parent.step, 0.0, child.id, child.path, free[0] if free else None)


def _entry(event: AgentEvent, run: _Known) -> Entry:
    at = (run.id, run.step, 0.0)
    match event:
        case MessageEvent():
            return _said(at, event.role, event.content)
        case HumanInputRequestedEvent():
            return _said(at, event.type, event.question)
        case HumanInputReceivedEvent():
            return _said(at, event.type, event.response)
        case SummaryEvent():
            return _said(at, event.type, event.summary)
        case ToolCallEvent():
            run.open_calls[event.tool_call_id] = event.tool_name
            arguments = compact(event.args) if event.raw_arguments is None else event.raw_arguments
            calls = (Called(event.tool_call_id, event.tool_name, arguments),)
            return ModelAnswered(*at, 0.0, "", "", None, calls, {}, "tool_calls", None, Usage(), None, 1, ())
        case ErrorEvent():
            if event.tool_call_id is None:
                return Failed(*at, event.error, ())
            return _result(at, run, ResultSaid(event.tool_call_id, event.error, "error", event.seconds))
        case ToolResultEvent():
            return _result(at, run, ResultSaid(event.tool_call_id, *_content(event.result), event.seconds))
        case CompletionEvent():
            return Finished(*at, "finish", *_content(event.result))
        case _:
            assert_never(event)


def _said(at: _At, role: str, content: str) -> MessagesSaid:
    return MessagesSaid(*at, ({"role": role, "content": content},))


def _result(at: _At, run: _Known, result: ResultSaid) -> ResultsSaid:
    run.open_calls.pop(result.call_id, None)
    return ResultsSaid(*at, (result,), None, None)


def _content(value: Any) -> tuple[str, Form]:
    return (value, "text") if isinstance(value, str) else (compact(value), "json")
