"""`acorn run`: a command made of any module."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic.errors import PydanticUserError

from acorn import AcornError
from acorn._declared import spec_of
from acorn._spec import Spec
from acorn.cli.exit import FINE, CommandError, message_of, write_line
from acorn.cli.load_target import Agent, load
from acorn.cli.options.arguments import OWN, Options, OwnOptions, parse
from acorn.cli.options.help import show_help
from acorn.cli.options.input import make_input
from acorn.cli.stored import named_store
from acorn.cli.watched_run import WatchedRun
from acorn.models.weights import too_small_for_tools


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
    if (spec.tools or spec.sources or spec.branches) and (name := too_small_for_tools(agent.model)) is not None:
        write_line(f"warning: `{name}` is too small for tools: it calls them at random, for minutes; try `--model`")
    return WatchedRun(agent, spec, written.own, out).perform(lambda: agent.stream(*arguments))


def declared(agent: Agent, debug: bool) -> tuple[Spec, Options]:
    """What the module takes and gives; it is checked here, should its `__init__` have changed it."""
    try:
        spec = spec_of(agent)
        return spec, Options(spec.input)
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    except (PydanticUserError, NameError) as error:
        words = getattr(error, "message", str(error))
        raise CommandError(
            f"the input of `{type(agent).__name__}` names a class that does not exist: {words}", debug=debug
        ) from error
