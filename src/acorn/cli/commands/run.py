"""The commands `acorn run`, `acorn resume` and `acorn fork`, which run an agent, and `acorn explain`.

`acorn run` starts a run with the input from the command line. `acorn explain` prints its first request instead, and
warnings about the declaration of the agent. `acorn resume` resumes a run that was interrupted or that waits for human
input. `acorn fork` starts a new run with the first steps of another run, and can change the model, the prompt or a tool
result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import acorn
from acorn import AcornError, Run
from acorn._inside import FINISH, Spec, describe_blobs, parse_json, read_spec, read_stored_entries, to_json_text
from acorn._inside.runs import Explanation, explain_agent, resume_stream
from acorn.cli import options, targets
from acorn.cli.arguments import ParsedArguments, show_help
from acorn.cli.errors import CommandError, ExitCode, error_text, redactor, user_code_line
from acorn.cli.input import make_input
from acorn.cli.output import make_table, print_json, rich_console, write_line
from acorn.cli.targets import Agent, change_settings, choose_store
from acorn.cli.text import clean, one_line, plural
from acorn.cli.watched_run import WatchedRun
from acorn.journal import BranchStarted, RunStarted
from acorn.models.local.download import too_small_for_tools
from acorn.stores.port import Store
from acorn.thread import AgentEvent, ErrorEvent, ToolCallEvent, ToolResultEvent
from acorn.types import JsonObject, is_json_list


def run(
    context: typer.Context,
    target: options.Target,
    model: options.ModelOption = None,
    input: options.InputOption = None,
    json: options.JsonOption = False,
    save: options.SaveOption = None,
    store: options.StoreOption = None,
    debug: options.DebugOption = False,
) -> int:
    """Run a module from the command line.

    Set the fields of the input by options after the module: --question "Who made Python?", --address.city Oslo,
    --tag a --tag b. "acorn run agent.py --help" lists these options. If a field has the name of an option of acorn,
    the option of acorn has a prefix, as in --acorn-model. Piped text becomes the value of the only text field that has
    no value. The command prints the output as JSON to standard output, and everything else to standard error.
    """
    given = options.AcornOptions(model, input, json, save, store, debug=debug)
    agent, arguments = _parse_words(context, target, options.RUN_OPTIONS, given)
    acorn_options = arguments.acorn_options
    agent = change_settings(agent, model=acorn_options.model, store=choose_store(acorn_options.store, agent.store))
    values = make_input(arguments)
    spec = read_spec(agent)
    uses_tools = bool(spec.tools or spec.sources or spec.branches)
    if uses_tools and (name := too_small_for_tools(agent.model)) is not None:
        write_line(
            f"warning: `{name}` is too small for tools. It may call tools at random for minutes. Use another `--model`."
        )
    return WatchedRun(agent, acorn_options, context.obj.out).perform(lambda: agent.stream(*values))


def _parse_words(
    context: typer.Context, target: str, acorn_names: Sequence[str], given: options.AcornOptions
) -> tuple[Agent, ParsedArguments]:
    """Load the agent and parse the words after the target. If they ask for the help, print it and end the command."""
    out = context.obj.reserve_stdout()  # The user's code may print, even while it is imported.
    agent = targets.load_agent(target)
    accepted = options.Options(read_spec(agent).input, acorn_names)
    arguments = ParsedArguments(context.args, accepted, given)
    if arguments.acorn_options.help:
        show_help(agent, accepted, target, out)
        raise typer.Exit
    return agent, arguments


def explain(
    context: typer.Context,
    target: options.Target,
    input: options.InputOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the explanation as one JSON object.")] = False,
    open: Annotated[bool, typer.Option("--open", help=options.OPTION_HELP["open"])] = False,
    debug: options.DebugOption = False,
) -> None:
    """Print the first request of a module: the messages, the tools and their sizes.

    Pass the input after the module, as for "acorn run". Without an input, acorn creates an example. acorn sends no
    request and calls no tool. It opens tool sources only with --open.
    """
    given = options.AcornOptions(input=input, json=json, open=open, debug=debug)
    agent, arguments = _parse_words(context, target, options.EXPLAIN_OPTIONS, given)
    acorn_options, out = arguments.acorn_options, context.obj.out
    is_example = not arguments.options and acorn_options.input is None and not arguments.accepted.shape.is_empty
    try:
        values = None if is_example else make_input(arguments)
        explanation = explain_agent(agent, values, opens=acorn_options.open)
    except (AcornError, CommandError):
        raise
    except (Exception, SystemExit) as error:  # A user's prompt method or tool source can raise any exception.
        raise CommandError(f"{user_code_line(error)}{error_text(error)}", ExitCode.FAILED) from error
    explanation = replace(
        explanation,
        input=redactor().data(explanation.input),
        messages=redactor().data(describe_blobs(explanation.messages)),
        tools=redactor().data(explanation.tools),
    )
    if is_example:
        explanation.notes.insert(0, "The input is an example, because the command has no input.")
    if acorn_options.json:
        print_json(explanation.to_json(), out)
    else:
        with rich_console(out, 120) as console:
            _print_explanation(explanation, console)


def _print_explanation(explanation: Explanation, console: Console) -> None:
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
    sizes: list[tuple[str | Text, str, str]] = [
        (one_line(part.name), str(part.characters), str(part.tokens)) for part in explanation.parts
    ]
    total = (Text("total", style="bold"), str(explanation.characters), str(explanation.tokens))
    console.print(make_table(("part", "characters", "tokens (estimate)"), [*sizes, total], ["part"]))
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


def _print_list(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    _print_heading(console, title)
    for line in lines:
        console.print(Text(f"- {one_line(line, 400)}"), soft_wrap=True)


def resume(
    context: typer.Context,
    run: options.RunArgument,
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE", help="The answer to the request that the run waits for: yes or no, text or JSON."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve the tool call that the run waits for.")] = False,
    no: Annotated[str | None, typer.Option(metavar="REASON", help="Reject the tool call, with a reason.")] = None,
    agent: options.AgentOption = None,
    model: options.ModelOption = None,
    json: options.JsonOption = False,
    save: options.SaveOption = None,
    store: options.StoredRunsOption = None,
    debug: options.DebugOption = False,
) -> int:
    """Resume a run that was interrupted or that waits for human input.

    acorn does not repeat committed requests and tool calls. If the run has finished, the command prints the stored
    output.
    """
    given = [parse_json(answer)] if answer is not None else []
    given += [True] if yes else []
    given += [acorn.deny(no or None)] if no is not None else []
    if len(given) > 1:
        raise CommandError("`--answer`, `--yes` and `--no` cannot be combined. Use only one of them.")
    out = context.obj.reserve_stdout()
    opened_store = targets.open_chosen_store(store)
    run_id = targets.find_run_id(opened_store, run)
    root = opened_store.read(run_id)[0]
    past = read_stored_entries(row.entry for row in opened_store.follow(run_id)[1])
    answers = _answers(opened_store, run_id, given[0]) if given else {}
    stored_agent = change_settings(targets.load_stored_agent(root, opened_store, agent), model=model)
    watched = WatchedRun(stored_agent, options.AcornOptions(model, None, json, save, store, debug=debug), out)
    return watched.perform(lambda: resume_stream(stored_agent, run_id, answers), past)


def _answers(store: Store, run_id: str, value: object) -> JsonObject:
    """Return the answer as a dict with the id of the only unanswered request of a run as its key.

    Raises a `CommandError` if the run has no unanswered request for human input, or more than one.
    """
    requests = store.requests(run_id)
    if len(requests) == 1:
        return {requests[0].id: value}
    if not requests:
        raise CommandError("The run does not wait for an answer. Remove the answer from the command.")
    listed = ", ".join(f"{request.id[:8]} {request.question}" for request in requests)
    raise CommandError(
        f"The run waits for {len(requests)} answers ({listed}). Answer each request with `acorn answer`, then resume."
    )


def fork(
    context: typer.Context,
    source: options.SourceArgument,
    before: Annotated[
        int, typer.Option(metavar="STEP", help="The first step to run again. The new run keeps the earlier steps.")
    ],
    model: options.ModelOption = None,
    prompt: Annotated[str | None, typer.Option(metavar="FILE", help="A file with a new system prompt.")] = None,
    edit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL=VALUE",
            help="Replace the result of an earlier tool call. CALL is its id or tool name. VALUE is JSON or text.",
        ),
    ] = None,
    agent: options.AgentOption = None,
    json: options.JsonOption = False,
    save: options.SaveOption = None,
    store: options.StoredRunsOption = None,
    debug: options.DebugOption = False,
) -> int:
    """Start a new run with the first steps of another run.

    The other run does not change. The new run keeps the steps before --before and does not repeat them. After these
    steps, the model may call tools again. Usage and limits start at zero.
    """
    out = context.obj.reserve_stdout()
    run, base_agent = _load_source(source, store, agent)
    events = run.thread
    changed = change_settings(base_agent, model=model, system_prompt=None if prompt is None else Path(prompt).resolve())
    changed.using(thread=events, before=before)  # Check the step before the edits, which depend on it.
    _edit_results(events, edit or [], before)
    forked = changed.using(thread=events, before=before)
    _print_plan(targets.short_id(run.id), events, before, read_spec(forked))
    watched = WatchedRun(forked, options.AcornOptions(model, None, json, save, store, debug=debug), out)
    return watched.perform(forked.stream)


def _load_source(source: str, option: str | None, target: str | None) -> tuple[Run, Agent]:
    """Load the run that should be forked, and return the run and its agent."""
    if (store := targets.store_of(source, option)) is not None:
        _reject_branch(store, source)
        run_id = targets.find_run_id(store, source)
        return acorn.runs(store).get(run_id), targets.load_stored_agent(store.read(run_id)[0], store, target)
    run = targets.read_run_file(source)
    if target is None:  # The file may be untrusted, so its class is not imported without `--agent`.
        start = next((entry for entry in run.journal.entries if isinstance(entry, RunStarted)), None)
        hint = "" if start is None else f" (its class was `{one_line(start.module)}`)"
        raise CommandError(f"Cannot fork `{source}`{hint} without its class. Use `--agent FILE:CLASS`.")
    agent = targets.load_agent(target)
    return run, change_settings(agent, store=choose_store(option, agent.store))


def _reject_branch(store: Store, run_id: str) -> None:
    """Raise a `CommandError` if a run is a branch.

    A branch starts with the conversation of its parent, so only the root run (the top-level run) can be forked.
    """
    stored = store.read(run_id)
    root = stored[0].facts.root if stored else run_id
    if root == run_id:
        return
    tree = store.read(root)
    parents = {member.facts.id: str(member.facts.parent) for member in tree}
    child = run_id
    while parents[child] != root:
        child = parents[child]
    starts = (entry for entry in read_stored_entries(tree[0].entries) if isinstance(entry, BranchStarted))
    step, name = next((start.step, start.branch) for start in starts if start.child_id == child)
    command = f"acorn fork {targets.short_id(root)} --before"
    raise CommandError(
        f"Cannot fork `{run_id}`: it is a branch and starts with the conversation of its parent. Fork the root run "
        f"instead: `{command} {step}` calls `{name}` again, and `{command} {step + 1}` keeps the result of `{name}`."
    )


def _edit_results(events: list[AgentEvent], edits: list[str], before: int) -> None:
    """Replace results of tool calls in the list of events.

    `edits` are the values of the option `--edit`, such as `search=nothing`.
    """
    kept_events = [event for event in events if event.branch is None and event.iteration < before]
    calls = {event.tool_call_id: event.tool_name for event in kept_events if isinstance(event, ToolCallEvent)}
    for edit in edits:
        id_or_tool, equals, text = edit.partition("=")
        if not equals:
            raise CommandError(f"`--edit` must be CALL=VALUE, as in `--edit search=nothing`, got `{edit}`.")
        ids = [call_id for call_id, tool in calls.items() if id_or_tool in (call_id, tool)]
        if not ids:
            call_list = ", ".join(f"`{call_id}` ({tool})" for call_id, tool in calls.items()) or "none"
            raise CommandError(
                f"There is no call `{id_or_tool}` before step {before}. The calls before it are: {call_list}."
            )
        if len(ids) > 1:
            listed = ", ".join(f"`{call_id}`" for call_id in ids)
            raise CommandError(
                f"`{id_or_tool}` was called {len(ids)} times before step {before}. Use one of these ids: {listed}."
            )
        for index, event in enumerate(events):
            if isinstance(event, ToolResultEvent | ErrorEvent) and event in kept_events and event.tool_call_id in ids:
                result = parse_json(text)
                edited = ToolResultEvent(iteration=event.iteration, tool_call_id=ids[0], result=result)
                edited.timestamp = event.timestamp
                events[index] = edited


def _print_plan(name: str, events: list[AgentEvent], before: int, spec: Spec) -> None:
    """Print the steps that a fork keeps from the original run, and the tools that the fork may call."""
    kept_steps = "only the input" if before == 1 else "step 1" if before == 2 else f"steps 1 to {before - 1}"
    write_line(f"fork of {one_line(name)}: keeps {kept_steps} and continues at step {before}")
    tools = [f"`{tool.name}`" for tool in spec.tools] + [f"`{name}`" for name in spec.branches]
    if spec.sources:
        tools.append(f"the tools of {plural(len(spec.sources), 'source')}")
    if tools:
        write_line(f"tools that the model may call again: {', '.join(tools)}")
    dropped = [event for event in events if event.branch is None and event.iteration >= before]
    called = Counter(event.tool_name for event in dropped if isinstance(event, ToolCallEvent))
    called.pop(FINISH, None)
    if called:
        listed = ", ".join(f"`{one_line(tool)}` ({plural(count, 'time')})" for tool, count in called.items())
        write_line(f"tools that the first run called from step {before} on: {listed}")
