"""The table of commands, and the way in and out of them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, cast

import typer

from acorn.cli.demo import demo
from acorn.cli.ends import (
    FAILED,
    FINE,
    INTERRUPTED,
    USAGE,
    CommandError,
    ReaderGoneError,
    complain,
    leave_quietly,
    open_streams,
    tell,
    told,
    write,
)
from acorn.cli.new import new
from acorn.cli.pull import pull
from acorn.cli.run import run
from acorn.cli.show import show

_HELP = ["-h", "--help"]
_BEHIND: Mapping[str, Any] = {"allow_extra_args": True, "allow_interspersed_args": False}
"""What stands behind the first argument is the command's own to read."""

COMMANDS: Mapping[str, tuple[Callable[..., int], Mapping[str, Any]]] = {
    "demo": (demo, {}),
    "run": (run, _BEHIND),
    "show": (show, {}),
    "pull": (pull, {}),
    "new": (new, {}),
}
"""Every command by name: the function, and settings of its parser."""

# What typer raises for wrong usage; its base class has no public name of its own.
_Complaint = cast(type[Exception], typer.BadParameter.__mro__[2])


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    open_streams()
    words = (sys.argv[1:] if words is None else list(words)) or ["--help"]
    try:
        return _perform(words)
    except ReaderGoneError:
        leave_quietly()
        return FINE
    except KeyboardInterrupt:
        return INTERRUPTED


def _perform(words: Sequence[str]) -> int:
    try:
        code = _app()(args=list(words), prog_name="acorn", standalone_mode=False)
        return code if isinstance(code, int) else FINE
    except CommandError as error:
        return complain(error)
    except _Complaint as error:
        message = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
        asked = f"acorn {words[0]}" if words and words[0] in COMMANDS else "acorn"
        return complain(CommandError(f"{message[:1].lower()}{message[1:]}; `{asked} --help` tells more", USAGE))
    except (ReaderGoneError, KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        tell(f"error: {told(error)} (a fault of acorn's own; `--debug` shows where)")
        return FAILED


def _app() -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": _HELP},
    )
    app.callback(invoke_without_command=True)(_top)
    for name, (command, settings) in COMMANDS.items():
        app.command(name, context_settings={"help_option_names": _HELP, **settings})(command)
    return app


def _top(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """LLM agents as typed Python classes."""
    if version:
        write(sys.stdout, f"acorn {_version()}\n")
        raise typer.Exit


def _version() -> str:
    try:
        return version("acorn-agents")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"
