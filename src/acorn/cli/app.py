"""The entry point of the command-line program, and the table of its commands."""

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
    INTERRUPTED,
    SUCCESS,
    USAGE_ERROR,
    CommandError,
    OutputClosedError,
    error_text,
    format_traceback,
    print_error,
    write,
    write_error_text,
    write_line,
)
from acorn.cli.streams import Streams, flush_or_discard

_HELP = ["-h", "--help"]
_FREE_ARGUMENTS: Mapping[str, Any] = {"allow_extra_args": True, "allow_interspersed_args": False}
"""The parser settings of a command that parses the words after its first argument itself."""

COMMANDS: Mapping[str, tuple[Callable[..., int], Mapping[str, Any]]] = {
    "demo": (demo, {}),
    "run": (run, _FREE_ARGUMENTS),
    "explain": (explain, _FREE_ARGUMENTS),
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
"""A dict that maps command names to the function of the command and the settings of its parser."""

# The base class of typer's usage errors, which has no public name.
_UsageError = cast(type[Exception], typer.BadParameter.__mro__[2])
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The error numbers of a full or broken disk. typer and rich do not handle these errors when they print."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command of the program and return its exit code.

    `words` are the command-line arguments. By default, they are `sys.argv[1:]`. Without arguments, print the help.
    """
    streams = Streams()
    try:
        raise_on_interrupt()
        return _run_command((sys.argv[1:] if words is None else list(words)) or ["--help"], streams)
    except OutputClosedError:
        return SUCCESS
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        flush_or_discard(streams.out, sys.stdout, sys.stderr)
        if words is not None:
            # Otherwise the process ends soon, and threads of the user's code may still print.
            streams.restore()


def _run_command(words: Sequence[str], streams: Streams) -> int:
    try:
        code = _build_app(words)(args=list(words), prog_name="acorn", standalone_mode=False, obj=streams)
        return code if isinstance(code, int) else SUCCESS
    except CommandError as error:
        return print_error(error)
    except _UsageError as error:
        return print_error(CommandError(_usage_text(error, words), USAGE_ERROR))
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich reports a closed standard output this way.
            return SUCCESS
        return print_error(CommandError(f"The agent's code ended the program: {error_text(error)}", FAILED))
    except (OutputClosedError, KeyboardInterrupt):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            return print_error(CommandError(write_error_text(error), FAILED))
        if "--debug" in words:
            write_line(format_traceback(error))
        write_line(f"error: {error_text(error)} (This is a bug in acorn. Use `--debug` to print the traceback.)")
        return FAILED


def _usage_text(error: Exception, words: Sequence[str]) -> str:
    """Return the message of a usage error, followed by the command that prints the help."""
    if isinstance(error, typer.BadParameter.__mro__[1]) and getattr(error, "possibilities", None):
        # Compare the names without their dashes, because the dashes make all options similar.
        name = str(getattr(error, "option_name", "")).lstrip("-")
        options: list[str] = vars(error)["possibilities"]
        vars(error)["possibilities"] = [flag for flag in options if get_close_matches(name, [flag.lstrip("-")])]
    message = str(getattr(error, "format_message", error.__str__)())
    command = f"acorn {words[0]}" if words and words[0] in COMMANDS else "acorn"
    return f"{message}{'' if message[-1:] in '.?!' else '.'} Use `{command} --help` for help."


def _build_app(words: Sequence[str]) -> typer.Typer:
    """Return the parser of the command line.

    If the first word is the name of a command, the parser knows only this command, because such a parser starts faster.
    """
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": _HELP},
    )
    app.callback(invoke_without_command=True)(_root_command)
    for name in words[:1] if words[0] in COMMANDS else COMMANDS:
        command, settings = COMMANDS[name]
        app.command(name, context_settings={"help_option_names": _HELP, **settings})(command)
    return app


def _root_command(
    version: Annotated[bool, typer.Option("--version", help="Print the version of acorn.")] = False,
) -> None:
    """LLM agents as typed Python classes."""
    if version:
        write(sys.stdout, f"acorn {__version__}\n")
        raise typer.Exit
