"""The entry point of the command-line program, and the table of its commands."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from operator import methodcaller
from typing import Annotated, cast

import typer

from acorn import AcornError, __version__
from acorn.cli.errors import CommandError, ExitCode, OutputClosedError, error_message, error_text, format_traceback
from acorn.cli.options import PREFIX
from acorn.cli.output import Streams, flush_or_discard, print_error, write, write_error_text, write_line
from acorn.types import JsonObject

COMMANDS = {
    "demo": "demo",
    "run": "run",
    "explain": "run",
    "chat": "chat",
    "web": "serve",
    "serve": "serve",
    "batch": "batch",
    "runs": "runs",
    "show": "runs",
    "resume": "run",
    "fork": "run",
    "answer": "runs",
    "cancel": "runs",
    "delete": "runs",
    "work": "serve",
    "mcp": "serve",
    "pull": "demo",
    "new": "demo",
}
"""A dict that maps each command to the file in `commands/` that contains its function, which has the same name."""

_FAILING_COMMANDS = ("demo", "pull", "mcp")
"""The commands whose errors are not wrong usage, because they depend on the network or on the server."""


_SETTINGS: JsonObject = {"help_option_names": ["-h", "--help"]}
_FREE_ARGUMENTS: JsonObject = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "token_normalize_func": methodcaller("removeprefix", PREFIX),
}
"""The parser settings of `run` and `explain`, which parse the words after their first argument themselves."""

# The base classes of typer's usage errors, which have no public names.
_UsageError, _ClickError = cast(tuple[type[Exception], type[Exception]], typer.BadParameter.__mro__[1:3])
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The error numbers of a full or broken disk. typer and rich do not handle these errors when they print."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command of the program and return its exit code.

    `words` are the command-line arguments. By default, they are `sys.argv[1:]`. Without arguments, print the help.
    """
    streams = Streams()
    try:
        return _run_command((sys.argv[1:] if words is None else list(words)) or ["--help"], streams)
    except OutputClosedError:  # The reader has closed standard error, to which an error message was written.
        return ExitCode.SUCCESS
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        flush_or_discard(streams.out, sys.stdout, sys.stderr)
        if words is not None:
            # Otherwise the process ends soon, and threads of the user's code may still print.
            streams.restore()


def _run_command(words: Sequence[str], streams: Streams) -> int:
    debug = "--debug" in words or f"--{PREFIX}debug" in words
    try:
        code = _build_app(words)(args=list(words), prog_name="acorn", standalone_mode=False, obj=streams)
        return code if isinstance(code, int) else ExitCode.SUCCESS
    except CommandError as error:
        return print_error(error, debug=debug)
    except AcornError as error:
        code = ExitCode.FAILED if words[0] in _FAILING_COMMANDS else ExitCode.USAGE_ERROR
        return print_error(CommandError(error_message(error), code), debug=debug, cause=error)
    except _ClickError as error:
        return print_error(CommandError(_usage_text(error, words)), debug=False)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich reports a closed standard output this way.
            return ExitCode.SUCCESS
        return print_error(
            CommandError(f"The agent's code ended the program: {error_text(error)}", ExitCode.FAILED), debug=False
        )
    except (OutputClosedError, BrokenPipeError):
        return ExitCode.SUCCESS
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            return print_error(CommandError(write_error_text(error), ExitCode.FAILED), debug=False)
        if debug:
            write_line(format_traceback(error))
        write_line(f"error: {error_text(error)} (This is a bug in acorn. Use `--debug` to print the traceback.)")
        return ExitCode.FAILED


def _usage_text(error: Exception, words: Sequence[str]) -> str:
    """Return the message of a usage error, followed by the command that prints the help."""
    if isinstance(error, _UsageError) and getattr(error, "possibilities", None):
        # Compare the names without their dashes, because the dashes make all options similar.
        name = str(getattr(error, "option_name", "")).lstrip("-")
        options: list[str] = vars(error)["possibilities"]
        vars(error)["possibilities"] = [flag for flag in options if get_close_matches(name, [flag.lstrip("-")])]
    message = str(getattr(error, "format_message", error.__str__)())
    command = f"acorn {words[0]}" if words and words[0] in COMMANDS else "acorn"
    return f"{message}{'' if message[-1:] in '.?!' else '.'} Use `{command} --help` for help."


def _build_app(words: Sequence[str]) -> typer.Typer:
    """Return the parser of the command line.

    If the first word is the name of a command, only this command is imported, so that the program starts faster.
    """
    app = typer.Typer(
        add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False, context_settings=_SETTINGS
    )
    app.callback(invoke_without_command=True)(_root_command)
    names: Iterable[str] = [] if words[0] == "--version" else words[:1] if words[0] in COMMANDS else COMMANDS
    for name in names:
        command: Callable[..., int | None] = getattr(import_module(f"acorn.cli.commands.{COMMANDS[name]}"), name)
        settings = {**_SETTINGS, **_FREE_ARGUMENTS} if name in ("run", "explain") else _SETTINGS
        app.command(name, context_settings=settings)(command)
    return app


def _root_command(
    version: Annotated[bool, typer.Option("--version", help="Print the version of acorn.")] = False,
) -> None:
    """LLM agents as typed Python classes."""
    if version:
        write(sys.stdout, f"acorn {__version__}\n")
        raise typer.Exit
