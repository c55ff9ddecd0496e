"""`acorn run`: a command made of any module.

`acorn resume`: a run that was interrupted, or waits for people, goes on, and is shown as `acorn run` shows it.

`acorn fork`: a run that was kept, from one of its steps on, with another model, prompt or result.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.errors import PydanticUserError

import acorn
from acorn import AcornError, Run
from acorn._inside import AgentDescription, class_in_journal, describe_agent, read_stored_entries, resume_stream
from acorn.cli.commands.runs import RunArgument, StoreOption, read_kept
from acorn.cli.help import show_help
from acorn.cli.input import make_input
from acorn.cli.options import OWN, Options, OwnOptions, parse
from acorn.cli.output import FINE, CommandError, message_of, one_line, plural, write_line
from acorn.cli.targets import Agent, agent_of, as_usage_error, load, named_store, short, store_of, value_of, whole_id
from acorn.cli.watched_run import WatchedRun
from acorn.journal import BranchStarted
from acorn.models.local.download import too_small_for_tools
from acorn.stores.port import Store
from acorn.thread import AgentEvent, ErrorEvent, ToolCallEvent, ToolResultEvent
from acorn.types import JsonObject


def run(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_MODULE[:CLASS]", help="Where the module is: `agent.py`, `agent.py:Researcher`."
        ),
    ],
    model: Annotated[str | None, typer.Option("--model", "--acorn-model", help=OWN["model"])] = None,
    input: Annotated[str | None, typer.Option("--input", "--acorn-input", metavar="FILE|-", help=OWN["input"])] = None,
    json: Annotated[bool, typer.Option("--json", "--acorn-json", help=OWN["json"])] = False,
    save: Annotated[str | None, typer.Option("--save", "--acorn-save", metavar="FILE", help=OWN["save"])] = None,
    store: Annotated[
        str | None, typer.Option("--store", "--acorn-store", metavar="FILE|URL", help=OWN["store"])
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", "--acorn-debug", help=OWN["debug"])] = False,
) -> int:
    """Run a module from the command line.

    Its input fields are options behind its name: --question "Who made Python?", --address.city Oslo,
    --tag a --tag b. "acorn run agent.py --help" shows them all. Text that is piped in fills the one text field that
    is left. The output is JSON on standard output; everything else goes to standard error.
    """
    words = list(context.args)
    debug = debug or "--debug" in words or "--acorn-debug" in words
    out = context.obj.set_aside()  # a file may print while it is imported, and from then on
    agent = load(target, debug=debug)
    spec, options = declared(agent, debug)
    written = parse(words, options, OwnOptions(model, input, json, save, store, debug))
    if written.own.help:
        show_help(agent, spec, options, target, out)
        return FINE
    changes = {"model": written.own.model, "store": named_store(written.own.store, agent.store)}
    try:
        agent = agent.using(**{name: value for name, value in changes.items() if value is not None})
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    shape, input_model = spec.input, make_input(written, options)
    arguments = () if shape.is_empty else (shape.unwrap(input_model),)
    if (spec.tools or spec.source_count or spec.branches) and (name := too_small_for_tools(agent.model)) is not None:
        write_line(f"warning: `{name}` is too small for tools: it calls them at random, for minutes; try `--model`")
    return WatchedRun(agent, spec, written.own, out).perform(lambda: agent.stream(*arguments))


def declared(agent: Agent, debug: bool) -> tuple[AgentDescription, Options]:
    """What the module takes and gives; it is checked here, should its `__init__` have changed it."""
    try:
        spec = describe_agent(agent)
        return spec, Options(spec.input)
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    except (PydanticUserError, NameError) as error:
        words = getattr(error, "message", str(error))
        raise CommandError(
            f"the input of `{type(agent).__name__}` names a class that does not exist: {words}", debug=debug
        ) from error


def resume(
    context: typer.Context,
    run: RunArgument,
    answer: Annotated[
        str | None,
        typer.Option(
            "--answer", metavar="VALUE", help="The answer it waits for: JSON where it is JSON, otherwise text."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve the call that it waits for.")] = False,
    no: Annotated[str | None, typer.Option("--no", metavar="REASON", help="Refuse it, and say why.")] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="FILE_OR_MODULE[:CLASS]", help="Where the class is, if it has moved."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help=OWN["model"])] = None,
    json: Annotated[bool, typer.Option("--json", help=OWN["json"])] = False,
    save: Annotated[str | None, typer.Option("--save", metavar="FILE", help=OWN["save"])] = None,
    store: StoreOption = None,
    debug: Annotated[bool, typer.Option("--debug", help=OWN["debug"])] = False,
) -> int:
    """Go on with a run that was interrupted, or that waits for people.

    What was committed is neither asked of the model nor done again. A run that had ended well gives its output again.
    """
    said = [each for each in (answer, yes or None, no) if each is not None]
    if len(said) > 1:
        raise CommandError("`--answer`, `--yes` and `--no` exclude each other")
    out = context.obj.set_aside()
    book = store_of(store)
    run_id = whole_id(book, run)
    with as_usage_error():
        root = book.read(run_id)[0]
        past = [heard.entry for heard in book.follow(run_id)[1]]
        answers = _answers(book, run_id, _value(answer, yes, no)) if said else {}
    found = agent_of(root, book, agent, debug)
    if model is not None:
        found = found.using(model=model)
    own = OwnOptions(model, None, json, save, store, debug)
    watched = WatchedRun(found, describe_agent(found), own, out)
    return watched.perform(lambda: resume_stream(found, run_id, answers), read_stored_entries(past))


def _value(answer: str | None, yes: bool, no: str | None) -> Any:
    return value_of(answer) if answer is not None else True if yes else no or False


def _answers(store: Any, run_id: str, value: Any) -> JsonObject:
    """The answer for the one request that is open."""
    requests = store.requests(run_id)
    if len(requests) == 1:
        return {requests[0].id: value}
    if not requests:
        raise CommandError("the run waits for no answer; resume it without one")
    listed = "; ".join(f"{each.id[:8]} {each.question}" for each in requests)
    raise CommandError(f"the run waits for {len(requests)} answers ({listed}); give each by `acorn answer`")


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
    changes: JsonObject = {} if model is None else {"model": model}
    if prompt is not None:
        changes["system_prompt"] = Path(prompt).resolve()
    try:
        forked = found.using(thread=events, before=before, **changes)
        if edit:
            _edit(events, edit, before)
            forked = forked.using(thread=events, before=before)
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    spec = describe_agent(forked)
    _say_what_happens(short(run.id) if run is not None else Path(source).name, events, before, spec)
    watched = WatchedRun(forked, spec, OwnOptions(model, None, json, save, store, debug), out)
    return watched.perform(forked.stream)


def _found(
    source: str, option: str | None, target: str | None, debug: bool
) -> tuple[list[AgentEvent], Run | None, Agent]:
    """The events to fork, the record where there is one, and the agent."""
    if not Path(source).is_file():
        if named_store(option) is None:
            raise CommandError(f"there is no store here, and no file `{source}`; say which store by `--store`")
        book = store_of(option)
        _refuse_branch(book, source)
        run_id = whole_id(book, source)
        with as_usage_error():
            kept, run = book.read(run_id)[0], acorn.runs(book).get(run_id)
        return run.thread, run, agent_of(kept, book, target, debug)
    events, record = read_kept(source)
    return events, record, _agent_of_file(source, record, option, target, debug)


def _refuse_branch(book: Store, run_id: str) -> None:
    """A branch begins with the conversation above it, so the run that it is part of is what can be forked."""
    with as_usage_error():
        kept = book.read(run_id)
    root = kept[0].facts.root if kept else ""
    if root in ("", run_id):
        return
    with as_usage_error():
        tree = {each.facts.id: each for each in book.read(root)}
    child = run_id
    while (parent := tree[child].facts.parent) not in (None, root):
        child = parent
    begun = [entry for entry in read_stored_entries(tree[root].entries) if isinstance(entry, BranchStarted)]
    step, name = next((each.step, each.branch) for each in begun if each.child_id == child)
    again = f"acorn fork {short(root)} --before"
    raise CommandError(
        f"`{run_id}` is a branch, and begins with the conversation of the run above it, which can be forked: "
        f"`{again} {step}` calls `{name}` anew, `{again} {step + 1}` keeps what it returned"
    )


def _agent_of_file(source: str, record: Run | None, option: str | None, target: str | None, debug: bool) -> Agent:
    if target is None:  # a file may come from anywhere, so nothing is imported because it says so
        named = None if record is None else class_in_journal(record.journal.entries)
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


def _say_what_happens(name: str, events: list[AgentEvent], before: int, spec: AgentDescription) -> None:
    """Before anything is done: what is kept, and what may be called."""
    kept = "nothing is kept but the input" if before == 1 else "step 1 is kept" if before == 2 else ""
    kept = kept or f"steps 1 to {before - 1} are kept"
    write_line(f"fork of {one_line(name)}: {kept}, and it goes on at step {before}")
    tools = [f"`{tool.name}`" for tool in spec.tools] + [f"`{name}`" for name in spec.branches]
    if spec.source_count:
        tools.append(f"those of {plural(spec.source_count, 'source')}")
    if tools:
        write_line(f"tools are really called again if the model asks: {', '.join(tools)}")
    own = [event for event in events if event.branch is None and event.iteration >= before]
    called = Counter(event.tool_name for event in own if isinstance(event, ToolCallEvent))
    called.pop("__finish__", None)
    if called:
        listed = ", ".join(f"`{one_line(name)}` ({plural(times, 'time')})" for name, times in called.items())
        write_line(f"called from there on in the first run: {listed}")
