"""The end of a run on standard output: the output as JSON, or for machines everything about the run."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

from acorn import ModelError, ParseError, Run
from acorn._json import to_plain, whole_text
from acorn.cli.ends import write

_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def print_json(value: Any) -> None:
    """Indented and coloured on a terminal, one line otherwise."""
    is_terminal = sys.stdout.isatty()
    text = json_text(value, indent=2 if is_terminal else None, encoding=sys.stdout.encoding or "utf-8")
    if not is_terminal:
        write(sys.stdout, f"{text}\n")
        return
    shown = Text(text, overflow="fold")
    JSONHighlighter().highlight(shown)
    Console(file=sys.stdout, soft_wrap=True).print(shown, soft_wrap=True)


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


def described(error: BaseException) -> dict[str, Any]:
    """A failure for machines."""
    found: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, ModelError):
        found |= {"provider": error.provider, "status": error.status, "retryable": error.retryable}
    if isinstance(error, ParseError):
        found |= {"attempts": error.attempts, "errors": error.errors, "raw_output": error.raw_output}
    return found
