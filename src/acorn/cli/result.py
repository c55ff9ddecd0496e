"""The end of a run on standard output: the output as JSON, or for machines everything about the run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

from acorn import ModelError, ParseError, Run
from acorn._json import to_plain, whole_text
from acorn.cli.ends import write

_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


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


def json_text(value: Any, *, indent: int | None = None, encoding: str = "utf-8") -> str:
    """JSON in which every character is one that a terminal shows, and the encoding has."""
    plain = whole_text(_finite(to_plain(value)))
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


def report(run: Run[Any] | None, error: dict[str, Any] | None = None) -> dict[str, Any]:
    """Everything about a run, for `--json`."""
    usage = {} if run is None else {name: getattr(run.usage, name) for name in run.usage.__slots__}
    return {
        "output": None if run is None or error is not None else run.output,
        "usage": usage,
        "cost": None if run is None else run.cost,
        "steps": 0 if run is None else run.steps,
        "stop_reason": "error" if run is None else run.stop_reason,
        "model": None if run is None else run.model,
        "seconds": 0.0 if run is None else round(run.seconds, 6),
        **({"error": error} if error is not None else {}),
    }


def described(error: BaseException, message: str, hide: Callable[[str], str]) -> dict[str, Any]:
    """A failure for machines."""
    found: dict[str, Any] = {"type": type(error).__name__, "message": message}
    if isinstance(error, ModelError):
        found |= {"provider": error.provider, "status": error.status, "retryable": error.retryable}
    if isinstance(error, ParseError):
        found |= {"attempts": error.attempts, "errors": error.errors, "raw_output": error.raw_output}
    return {key: _without(hide, value) for key, value in found.items()}


def _without(hide: Callable[[str], str], value: Any) -> Any:
    """Plain data with every text in it cleaned of keys."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return {key: _without(hide, item) for key, item in value.items()}
    return [_without(hide, item) for item in value] if isinstance(value, list) else value
