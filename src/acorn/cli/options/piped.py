"""Text that is piped in: it fills the one text field of the input that nothing else has given a value.

A terminal is never read. A pipe is waited for where the input lacks the field; otherwise only what has come already
is taken, since a pipe that was inherited and stays silent must not hold up a run. What cannot be used is an error.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Mapping
from typing import Any

from acorn.cli.exit import CommandError, write_line
from acorn.cli.options.arguments import Option, Options
from acorn.cli.stdio import descriptor_of


def take_piped(values: Mapping[str, Any], options: Options) -> tuple[Option, str] | None:
    """The field and its text; None where nothing was piped in."""
    if options.shape.is_empty or not _is_piped():
        return None
    fields = [option for option in options.listed if options.is_field(option) and is_text(option)]
    left = [option for option in fields if not _has_value(values, option)]
    if any(option.is_required for option in fields):  # one with a default is not what a pipe is for then
        left = [option for option in left if option.is_required]
    if len(left) != 1:
        _refuse(left, options)
        return None
    (option,) = left
    if not _has_come():
        if not option.is_required:
            write_line(
                f"standard input is a pipe in which nothing has come; {options.spelled(option)} does not wait for it"
            )
            return None
        write_line(f"waiting for {options.spelled(option)} on standard input")
    text = _read()
    return (option, text) if text else None


def _refuse(left: list[Option], options: Options) -> None:
    buffer: Any = sys.stdin.buffer
    if not _has_come() or not buffer.peek(1).strip(b"\r\n"):
        return
    whole = "`--input -` reads the input as JSON, `</dev/null` pipes nothing in"
    if not left:
        raise CommandError(f"something was piped in, and no text field of the input is left for it; {whole}")
    names = " or ".join(options.spelled(option) for option in left)
    raise CommandError(f"something was piped in for {names}; give all but one of them as options; {whole}")


def is_text(option: Option) -> bool:
    """Whether a field takes any text."""
    node = option.node
    return "string" in node.kinds and node.kinds <= {"string", "null"} and node.takes_text


def _has_value(values: Mapping[str, Any], option: Option) -> bool:
    here: Any = values
    for part in option.path:
        if not isinstance(here, dict):
            return True  # the whole is something else
        if part not in here:
            return False
        here = here[part]
    return True


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file: no terminal, no device, and not a test's or a notebook's own."""
    descriptor = descriptor_of(sys.stdin)
    if descriptor is None or not hasattr(sys.stdin, "buffer"):
        return False
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _has_come() -> bool:
    """Whether a read would return at once, be it with the end."""
    try:
        return bool(select.select([sys.stdin], [], [], 0)[0])
    except OSError:  # where pipes cannot be asked, they are read
        return True


def _read() -> str:
    """Everything, without the line breaks at its end."""
    encoding = sys.stdin.encoding or "utf-8"
    try:
        return sys.stdin.buffer.read().decode(encoding).rstrip("\r\n")
    except OSError as error:
        raise CommandError(f"standard input cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CommandError(
            f"what was piped in is no text in {encoding}: {error.reason} at byte {error.start}"
        ) from error
