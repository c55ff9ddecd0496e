"""`acorn run`: a command made of any module."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic.errors import PydanticUserError

from acorn import AcornError
from acorn._declared import spec_of
from acorn._spec import Spec
from acorn.cli.ends import FINE, CommandError, words_of
from acorn.cli.given import make_input
from acorn.cli.load import Agent, load
from acorn.cli.options import Options
from acorn.cli.ours import OURS, Ours
from acorn.cli.parse import parse
from acorn.cli.perform import Performance
from acorn.cli.usage import show_help


def run(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_MODULE[:CLASS]", help="Where the module is: `agent.py`, `agent.py:Researcher`."
        ),
    ],
    model: Annotated[str | None, typer.Option("--model", "--acorn-model", help=OURS["model"])] = None,
    input: Annotated[str | None, typer.Option("--input", "--acorn-input", metavar="FILE|-", help=OURS["input"])] = None,
    json: Annotated[bool, typer.Option("--json", "--acorn-json", help=OURS["json"])] = False,
    save: Annotated[str | None, typer.Option("--save", "--acorn-save", metavar="FILE", help=OURS["save"])] = None,
    debug: Annotated[bool, typer.Option("--debug", "--acorn-debug", help=OURS["debug"])] = False,
) -> int:
    """Run a module from the command line.

    Its input fields are options behind its name: --question "Who made Python?", --address.city Oslo,
    --tag a --tag b. "acorn run agent.py --help" shows them all. The output is JSON on standard output; everything
    else goes to standard error.
    """
    words = list(context.args)
    debug = debug or "--debug" in words or "--acorn-debug" in words
    out = context.obj.set_aside()  # a file may print while it is imported, and from then on
    agent = load(target, debug=debug)
    spec, options = _declared(agent, debug)
    given = parse(words, options, Ours(model, input, json, save, debug))
    if given.ours.help:
        show_help(agent, spec, options, target, out)
        return FINE
    if given.ours.model is not None:
        try:
            agent = agent.using(model=given.ours.model)
        except AcornError as error:
            raise CommandError(words_of(error), debug=debug) from error
    return Performance(agent, spec, given.ours, out).play(make_input(given, options))


def _declared(agent: Agent, debug: bool) -> tuple[Spec, Options]:
    """What the module takes and gives; it is checked here, should its `__init__` have changed it."""
    try:
        spec = spec_of(agent)
        return spec, Options(spec.input)
    except AcornError as error:
        raise CommandError(words_of(error), debug=debug) from error
    except (PydanticUserError, NameError) as error:
        words = getattr(error, "message", str(error))
        raise CommandError(
            f"the input of `{type(agent).__name__}` names a class that does not exist: {words}", debug=debug
        ) from error
