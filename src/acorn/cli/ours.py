"""Our own options beside a module's fields.

The fields come first: where one has the name of an option of ours, the plain option is the field's, and ours
is spelled `--acorn-model` and so on. That spelling is always ours; a field `acorn_model` is written with its
underscore. `-h` is always help.
"""

from __future__ import annotations

from dataclasses import dataclass

OURS = {
    "model": "The model to ask, such as `openai/gpt-4o`; it takes the place of the agent's own, settings included.",
    "input": "A file with the input as a JSON object, or `-` for standard input; options win over it.",
    "json": "Print one JSON object with the output, usage, cost, steps, stop reason, model and seconds.",
    "save": "Keep the run's events in this file, for `acorn show`.",
    "debug": "Show the traceback of an error.",
    "help": "Show this text.",
}
"""Our options, and what they do."""
TAKES_TEXT = {"model": "MODEL", "input": "FILE", "save": "FILE"}
PREFIX = "acorn-"


@dataclass(frozen=True)
class Ours:
    """What was said to `acorn run` itself."""

    model: str | None = None
    input: str | None = None
    json: bool = False
    save: str | None = None
    debug: bool = False
    help: bool = False


def always_ours(name: str) -> str | None:
    """Which of our options this is, whatever the module's fields are called."""
    short = name.removeprefix(PREFIX)
    return short if name.startswith(PREFIX) and short in OURS else None
