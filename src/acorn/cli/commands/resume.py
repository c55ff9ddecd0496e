"""`acorn resume`: a run that was interrupted, or waits for people, goes on, and is shown as `acorn run` shows it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from acorn._call import resume_stream
from acorn._data import without_data
from acorn._declared import spec_of
from acorn._record_json import read_entries
from acorn.cli.commands.runs import RunArgument, StoreOption
from acorn.cli.exit import CommandError
from acorn.cli.options.arguments import OWN, OwnOptions
from acorn.cli.stored import agent_of, store_of, told, value_of, whole_id
from acorn.cli.watched_run import WatchedRun


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
    with told():
        root = book.read(run_id)[0]
        past = [without_data(heard.entry) for heard in book.follow(run_id)[1]]
        answers = _answers(book, run_id, _value(answer, yes, no)) if said else {}
    found = agent_of(root, book, agent, debug)
    if model is not None:
        found = found.using(model=model)
    own = OwnOptions(model, None, json, save, store, debug)
    watched = WatchedRun(found, spec_of(found), own, out)
    return watched.perform(lambda: resume_stream(found, run_id, answers), read_entries(past))


def _value(answer: str | None, yes: bool, no: str | None) -> Any:
    return value_of(answer) if answer is not None else True if yes else no or False


def _answers(store: Any, run_id: str, value: Any) -> dict[str, Any]:
    """The answer for the one request that is open."""
    requests = store.requests(run_id)
    if len(requests) == 1:
        return {requests[0].id: value}
    if not requests:
        raise CommandError("the run waits for no answer; resume it without one")
    listed = "; ".join(f"{each.id[:8]} {each.question}" for each in requests)
    raise CommandError(f"the run waits for {len(requests)} answers ({listed}); give each by `acorn answer`")
