"""The table of commands, and the way in and out of them."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, cast

import typer

from acorn import __version__
from acorn._inside import raise_on_interrupt
from acorn.cli.commands.batch import batch
from acorn.cli.commands.chat import chat
from acorn.cli.commands.demo import demo, new, pull
from acorn.cli.commands.explain import explain
from acorn.cli.commands.run import fork, resume, run
from acorn.cli.commands.runs import answer, cancel, delete, runs, show
from acorn.cli.commands.serve import mcp, serve, web
from acorn.cli.commands.work import work
from acorn.cli.output import (
    FAILED,
    FINE,
    INTERRUPTED,
    USAGE,
    CommandError,
    OutputClosedError,
    error_text,
    print_error,
    trace_of,
    unwritten,
    write,
    write_line,
)
from acorn.cli.streams import Streams, quieten

_HELP = ["-h", "--help"]
_BEHIND: Mapping[str, Any] = {"allow_extra_args": True, "allow_interspersed_args": False}
"""What stands behind the first argument is the command's own to read."""

COMMANDS: Mapping[str, tuple[Callable[..., int], Mapping[str, Any]]] = {
    "demo": (demo, {}),
    "run": (run, _BEHIND),
    "explain": (explain, _BEHIND),
    "chat": (chat, {}),
    "web": (web, {}),
    "serve": (serve, {}),
    "batch": (batch, {}),
    "runs": (runs, {}),
    "show": (show, {}),
    "resume": (resume, {}),
    "fork": (fork, {}),
    "answer": (answer, {}),
    "cancel": (cancel, {}),
    "delete": (delete, {}),
    "work": (work, {}),
    "mcp": (mcp, {}),
    "pull": (pull, {}),
    "new": (new, {}),
}
"""Every command by name: the function, and settings of its parser."""

# What typer raises for wrong usage; its base class has no public name of its own.
_Complaint = cast(type[Exception], typer.BadParameter.__mro__[2])
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a full or broken disk says; help and the tour are written by others, who pass it on."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    streams = Streams()
    try:
        raise_on_interrupt()
        return _perform((sys.argv[1:] if words is None else list(words)) or ["--help"], streams)
    except OutputClosedError:
        return FINE
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        quieten(streams.out, sys.stdout, sys.stderr)
        if words is not None:
            # Otherwise the process ends here, and a thread of the user's may print until the very end.
            streams.restore()


def _perform(words: Sequence[str], streams: Streams) -> int:
    try:
        code = _app(words)(args=list(words), prog_name="acorn", standalone_mode=False, obj=streams)
        return code if isinstance(code, int) else FINE
    except CommandError as error:
        return print_error(error)
    except _Complaint as error:
        return print_error(CommandError(_usage(error, words), USAGE))
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich's way to say so
            return FINE
        return print_error(CommandError(f"the agent's code ended the program: {error_text(error)}", FAILED))
    except (OutputClosedError, KeyboardInterrupt):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITTEN:
            return print_error(CommandError(unwritten(error), FAILED))
        if "--debug" in words:
            write_line(trace_of(error))
        write_line(f"error: {error_text(error)} (a fault of acorn's own; `--debug` shows where)")
        return FAILED


def _usage(error: Exception, words: Sequence[str]) -> str:
    """What is wrong with the words, and where to read on."""
    if isinstance(error, typer.BadParameter.__mro__[1]) and getattr(error, "possibilities", None):
        # Without the dashes, which make any two options look alike.
        name = str(getattr(error, "option_name", "")).lstrip("-")
        near: Any = [each for each in vars(error)["possibilities"] if get_close_matches(name, [each.lstrip("-")])]
        vars(error)["possibilities"] = near
    message = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
    asked = f"acorn {words[0]}" if words and words[0] in COMMANDS else "acorn"
    return f"{message[:1].lower()}{message[1:]}; `{asked} --help` tells more"


def _app(words: Sequence[str]) -> typer.Typer:
    """The parser; where a command stands in front, it need not read the signatures of all the others."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": _HELP},
    )
    app.callback(invoke_without_command=True)(_top)
    for name in words[:1] if words[0] in COMMANDS else COMMANDS:
        command, settings = COMMANDS[name]
        app.command(name, context_settings={"help_option_names": _HELP, **settings})(command)
    return app


def _top(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """LLM agents as typed Python classes."""
    if version:
        write(sys.stdout, f"acorn {__version__}\n")
        raise typer.Exit
