"""`acorn fork`: a run that was kept, from one of its steps on, with another model, prompt or result."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

import acorn
from acorn import AcornError, Run
from acorn._data import without_data
from acorn._declared import spec_of
from acorn._record_json import module_in, read_entries
from acorn._spec import Spec
from acorn.cli.commands.runs import StoreOption
from acorn.cli.commands.show import read_kept
from acorn.cli.exit import CommandError, message_of, write_line
from acorn.cli.load_target import Agent, load
from acorn.cli.options.arguments import OWN, OwnOptions
from acorn.cli.safe_text import one_line, plural
from acorn.cli.stored import agent_of, named_store, short, store_of, told, value_of, whole_id
from acorn.cli.watched_run import WatchedRun
from acorn.journal import BranchBegun
from acorn.stores.port import Store
from acorn.thread import AgentEvent, ErrorEvent, ToolCallEvent, ToolResultEvent


def fork(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="A run of the store, by the beginning of its id, or a file of `acorn run --save` or `run.to_json()`.",
        ),
    ],
    before: Annotated[
        int, typer.Option("--before", metavar="STEP", help="The step to go on with; what came before it is kept.")
    ],
    model: Annotated[str | None, typer.Option("--model", help=OWN["model"])] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="FILE", help="A file with another system prompt.")
    ] = None,
    edit: Annotated[
        list[str] | None,
        typer.Option(
            "--edit",
            metavar="CALL=VALUE",
            help="Another result of a kept call, by its id or its tool: JSON where it is JSON, otherwise text.",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            metavar="FILE_OR_MODULE[:CLASS]",
            help="Where the class is: needed for a file, or if it has moved.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help=OWN["json"])] = False,
    save: Annotated[str | None, typer.Option("--save", metavar="FILE", help=OWN["save"])] = None,
    store: StoreOption = None,
    debug: Annotated[bool, typer.Option("--debug", help=OWN["debug"])] = False,
) -> int:
    """Begin a new run with the first steps of another, and go on from there.

    The run itself stays as it is. Nothing that is kept is done again; what the model asks for from then on is. Usage
    and limits begin at zero.
    """
    out = context.obj.set_aside()
    events, run, found = _found(source, store, agent, debug)
    changes: dict[str, Any] = {} if model is None else {"model": model}
    if prompt is not None:
        changes["system_prompt"] = Path(prompt).resolve()
    try:
        forked = found.using(thread=events, before=before, **changes)
        if edit:
            _edit(events, edit, before)
            forked = forked.using(thread=events, before=before)
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    spec = spec_of(forked)
    _say_what_happens(short(run.id) if run is not None else Path(source).name, events, before, spec)
    watched = WatchedRun(forked, spec, OwnOptions(model, None, json, save, store, debug), out)
    return watched.perform(forked.stream)


def _found(
    source: str, option: str | None, target: str | None, debug: bool
) -> tuple[list[AgentEvent], Run[Any] | None, Agent]:
    """The events to fork, the record where there is one, and the agent."""
    if not Path(source).is_file():
        if named_store(option) is None:
            raise CommandError(f"there is no store here, and no file `{source}`; say which store by `--store`")
        book = store_of(option)
        _refuse_branch(book, source)
        run_id = whole_id(book, source)
        with told():
            kept, run = book.read(run_id)[0], acorn.runs(book).get(run_id)
        return run.thread, run, agent_of(kept, book, target, debug)
    events, record = read_kept(source)
    return events, record, _agent_of_file(source, record, option, target, debug)


def _refuse_branch(book: Store, run_id: str) -> None:
    """A branch begins with the conversation above it, so the run that it is part of is what can be forked."""
    with told():
        kept = book.read(run_id)
    root = kept[0].facts.root if kept else ""
    if root in ("", run_id):
        return
    with told():
        tree = {each.facts.id: each for each in book.read(root)}
    child = run_id
    while (parent := tree[child].facts.parent) not in (None, root):
        child = parent
    begun = [entry for entry in read_entries(map(without_data, tree[root].entries)) if isinstance(entry, BranchBegun)]
    step, name = next((each.step, each.branch) for each in begun if each.child_id == child)
    again = f"acorn fork {short(root)} --before"
    raise CommandError(
        f"`{run_id}` is a branch, and begins with the conversation of the run above it, which can be forked: "
        f"`{again} {step}` calls `{name}` anew, `{again} {step + 1}` keeps what it returned"
    )


def _agent_of_file(source: str, record: Run[Any] | None, option: str | None, target: str | None, debug: bool) -> Agent:
    if target is None:  # a file may come from anywhere, so nothing is imported because it says so
        named = None if record is None else module_in(record.journal.entries)
        of_what = f" (it says `{one_line(named)}`)" if named else ""
        raise CommandError(f"say which class goes on with `{source}`{of_what}, by `--agent FILE:CLASS`")
    agent = load(target, debug=debug)
    where = named_store(option, agent.store)
    try:
        return agent if where is None else agent.using(store=where)
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error


def _edit(events: list[AgentEvent], edits: list[str], before: int) -> None:
    """Put other results into the events, in place."""
    own = [event for event in events if event.branch is None and event.iteration < before]
    calls = {event.tool_call_id: event.tool_name for event in own if isinstance(event, ToolCallEvent)}
    for edit in edits:
        named, equals, text = edit.partition("=")
        if not equals:
            raise CommandError(f"`--edit` is written CALL=VALUE, as in `--edit search=nothing`; got `{edit}`")
        ids = [named] if named in calls else [call_id for call_id, name in calls.items() if name == named]
        if not ids:
            known = ", ".join(f"`{call_id}` ({name})" for call_id, name in calls.items()) or "none"
            raise CommandError(f"there is no call `{named}` before step {before}; the calls: {known}")
        if len(ids) > 1:
            listed = ", ".join(f"`{call_id}`" for call_id in ids)
            raise CommandError(f"`{named}` was called {len(ids)} times before step {before}: {listed}; say which")
        for at, event in enumerate(events):
            if isinstance(event, ToolResultEvent | ErrorEvent) and event in own and event.tool_call_id == ids[0]:
                made = ToolResultEvent(iteration=event.iteration, tool_call_id=ids[0], result=value_of(text))
                made.timestamp = event.timestamp
                events[at] = made


def _say_what_happens(name: str, events: list[AgentEvent], before: int, spec: Spec) -> None:
    """Before anything is done: what is kept, and what may be called."""
    kept = "nothing is kept but the input" if before == 1 else "step 1 is kept" if before == 2 else ""
    kept = kept or f"steps 1 to {before - 1} are kept"
    write_line(f"fork of {one_line(name)}: {kept}, and it goes on at step {before}")
    tools = [f"`{tool.name}`" for tool in spec.tools] + [f"`{name}`" for name in spec.branches]
    if spec.sources:
        tools.append(f"those of {plural(len(spec.sources), 'source')}")
    if tools:
        write_line(f"tools are really called again if the model asks: {', '.join(tools)}")
    own = [event for event in events if event.branch is None and event.iteration >= before]
    called = Counter(event.tool_name for event in own if isinstance(event, ToolCallEvent))
    called.pop("__finish__", None)
    if called:
        listed = ", ".join(f"`{one_line(name)}` ({plural(times, 'time')})" for name, times in called.items())
        write_line(f"called from there on in the first run: {listed}")
