"""Text and JSON of models and users, made safe for a terminal, and short enough for a line.

A model may write anything: escape sequences that move the cursor, marks that turn the reading direction.
Nothing of the kind reaches a terminal from here.

How a command ends: its output as JSON, its exit code, and the one line that says what went wrong and where.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from pydantic_core import from_json
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

from acorn._inside import (
    describe_error,
    find_secrets,
    redact,
    replace_surrogates,
    shorten,
    to_compact_json,
    to_json_data,
)
from acorn.cli.streams import quieten

# An escape sequence as a whole, where it can be recognized; otherwise its first character alone.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b[@-Z\\^_]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_BLANKS = re.compile(r"\s+")
_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
"""What JSON may hold and a terminal would act upon."""


def clean(text: str) -> str:
    """The text without anything that a terminal would act upon; line breaks stay."""
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROL.sub("", text.replace("\t", "    ").replace("\u2028", "\n").replace("\u2029", "\n"))


def one_line(text: str, limit: int = 200) -> str:
    """The text on one line, its middle left out where it is too long."""
    # The middle of a very long text is never seen; cleaning it would only cost time.
    if len(text) > 20 * limit:
        text = f"{text[: 10 * limit]}{text[-10 * limit :]}"
    text = _BLANKS.sub(" ", clean(text)).strip()
    if len(text) <= limit:
        return text
    tail = max(0, limit // 4)
    return f"{text[: limit - tail - 1].rstrip()}…{text[len(text) - tail :].lstrip()}"


def ending(text: str, limit: int) -> str:
    """The end of a growing text on one line."""
    text = _BLANKS.sub(" ", clean(text[-2 * limit :])).strip()
    return text if len(text) <= limit else f"…{text[len(text) - limit + 1 :]}"


def call_text(name: str, arguments: str, limit: int = 160) -> str:
    """A call the way Python writes it: `search(query="acorns", limit=3)`."""
    try:
        values = from_json(replace_surrogates(arguments) or "{}", allow_partial="trailing-strings")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return one_line(f"{name}({arguments})", limit)
    return one_line(f"{name}({', '.join(f'{key}={to_compact_json(value)}' for key, value in values.items())})", limit)


def seconds_text(seconds: float) -> str:
    """A time that a reader takes in at a glance."""
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def totals_text(steps: int, tokens: int, cost: float | None, seconds: float, between: str = " · ") -> str:
    """What a run has come to: `2 steps · 1,234 tokens · $0.0012 · 3.1 s`."""
    parts = [plural(steps, "step")] if steps else []  # an answer at once is no step
    parts.append(plural(tokens, "token"))
    if cost is not None:
        parts.append(f"${cost:.4f}")
    return between.join([*parts, seconds_text(seconds)])


def json_text(value: Any, *, indent: int | None = None, encoding: str = "utf-8") -> str:
    """JSON in which every character is one that a terminal shows, and the encoding has."""
    plain = replace_surrogates(_finite(to_json_data(value)))
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(plain, ensure_ascii=False, indent=indent, separators=separators)
    text = _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return json.dumps(plain, indent=indent, separators=separators)
    return text


def _finite(plain: Any) -> Any:
    """NaN and the infinities are no JSON."""
    if isinstance(plain, float) and (plain != plain or plain in (float("inf"), float("-inf"))):
        return None
    if isinstance(plain, dict):
        return {key: _finite(item) for key, item in plain.items()}
    return [_finite(item) for item in plain] if isinstance(plain, list) else plain


FINE = 0
FAILED = 1
"""The run went wrong."""
USAGE = 2
"""The command was used wrongly; nothing was run."""
WAITING = 3
"""The run rests, and waits for a person."""
INTERRUPTED = 130
"""Ctrl-C ended the run, as shells say it."""
TERMINATED = 143


class CommandError(Exception):
    """A command that cannot go on; its text is the line that the user reads."""

    def __init__(self, message: str, code: int = USAGE, *, debug: bool = False, secrets: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.debug = debug
        """Whether the traceback of the cause is shown as well."""
        self.secrets = frozenset(secrets)
        """What may not be seen in that traceback."""


class OutputClosedError(Exception):
    """Whoever read our output has left, as `| head -1` does."""


def write(stream: Any, text: str) -> None:
    """Text to one of the standard streams, at once."""
    try:
        print(text, end="", file=stream, flush=True)
    except BrokenPipeError as error:
        quieten(stream)
        raise OutputClosedError from error
    except OSError as error:
        quieten(stream)
        raise CommandError(unwritten(error), FAILED) from error


def write_line(line: str) -> None:
    """A line on standard error."""
    write(sys.stderr, f"{line}\n")


def print_json(value: Any, out: TextIO) -> None:
    """Indented and coloured on a terminal, one line otherwise."""
    is_terminal = out.isatty()
    text = json_text(value, indent=2 if is_terminal else None, encoding=out.encoding or "utf-8")
    if not is_terminal:
        write(out, f"{text}\n")
        return
    shown = Text(text, overflow="fold")
    JSONHighlighter().highlight(shown)
    console = Console(file=out, soft_wrap=True)
    with console.capture() as drawn:
        console.print(shown, soft_wrap=True)
    write(out, drawn.get())


def unwritten(error: OSError) -> str:
    return f"cannot write the output: {error.strerror or error}"


def print_error(error: CommandError) -> int:
    """Say why a command ended, and give its exit code."""
    if error.debug and error.__cause__ is not None:
        write_line(trace_of(error.__cause__, error.secrets))
    write_line(f"error: {_on_one_line(str(error))}")
    return error.code


def _on_one_line(message: str) -> str:
    return shorten(" ".join(clean(message).split()), 2000)


# What an exception says; its text may be anybody's and hold a key


def trace_of(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """The traceback of an exception."""
    return without_keys("".join(traceback.format_exception(error)).rstrip("\n"), secrets)


def error_text(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """A foreign exception in words, with its type."""
    text = describe_error(error)
    # This one names a module, and `skimage_tools` looks like a key.
    return text if isinstance(error, ModuleNotFoundError) else without_keys(text, secrets)


def message_of(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """What an exception says, without its type."""
    return error_text(error, secrets).removeprefix(type(error).__name__).removeprefix(": ")


def without_keys(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without keys: these, those of the environment, and what looks like one."""
    return redact(text, {*secrets, *find_secrets({})})


# Where it happened


def line_reached(error: BaseException, loaded: ModuleType | None = None) -> str:
    """`agent.py:12: `, the deepest line of the user's own code that was reached."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno is not None:
        return f"{_shown(error.filename)}:{error.lineno}: "
    file = getattr(loaded, "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    near = [frame for frame in frames if file is not None and _is_near(frame.filename, Path(file).parent)]
    own = near or [frame for frame in frames if _is_near(frame.filename, Path.cwd())]
    return f"{_shown(own[-1].filename)}:{own[-1].lineno}: " if own else ""


def _is_near(filename: str, directory: Path) -> bool:
    """Whether a file lies in the user's project, and not in what is installed inside it."""
    path = Path(filename)
    acorn = Path(__file__).parents[1]
    return (
        path.is_relative_to(directory)
        and "site-packages" not in path.parts
        and not path.is_relative_to(acorn)
        and not filename.startswith("<")
    )


def _shown(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
