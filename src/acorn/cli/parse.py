"""From the words behind `acorn run agent.py` to the module's fields and our own options; `given` makes the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acorn._json import shorten
from acorn.cli.ends import CommandError
from acorn.cli.options import Option, Options
from acorn.cli.ours import OURS, TAKES_TEXT, Ours, always_ours

_TRUTHS = ("true", "false", "yes", "no", "on", "off", "1", "0")


@dataclass
class Given:
    """What was said behind the module's name."""

    ours: Ours
    options: dict[tuple[str | int, ...], tuple[Option, list[str | bool]]] = field(
        default_factory=dict[tuple[str | int, ...], tuple[Option, list[str | bool]]]
    )
    """By the place that a value goes to, in the order they came."""
    last: Option | None = None
    """The flag that was just switched, should a value follow it."""

    def add(self, option: Option, text: str | bool) -> None:
        self.last = option if isinstance(text, bool) else None
        self.options.setdefault(option.path, (option, []))[1].append(text)


def parse(words: Sequence[str], options: Options, ours: Ours) -> Given:
    """Sort the words into fields and options of ours; `CommandError` names the one that fits neither."""
    given = Given(ours)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            for text in rest:
                _take_positional(given, options, text)
            break
        if word == "-h":  # even where a field is called `help`
            given.ours = replace(given.ours, help=True)
        elif word.startswith("--"):
            _take_option(given, options, word, rest)
        elif word.startswith("-") and len(word) > 1 and not _is_number(word):
            raise CommandError(f"there is no option `{word}`{_listed_by_help(options, word.lstrip('-'))}")
        else:
            _take_positional(given, options, word)
    return given


def _take_positional(given: Given, options: Options, text: str) -> None:
    option = options.positional
    if option is None:
        if given.last is not None and text.lower() in _TRUTHS:
            flag = given.last
            raise CommandError(f"`{flag.flag}` takes no value; write `{flag.flag}` or `--no-{flag.name}`")
        first = next((option for option in options.listed if not option.node.is_flag), None)
        hint = f"; write `{first.flag} {shorten(text, 40)}`?" if first else "; the module takes no input"
        raise CommandError(f"unexpected argument `{shorten(text, 80)}`{hint}")
    if option.path in given.options and not option.node.takes_several:
        raise CommandError(f"unexpected argument `{shorten(text, 80)}`; there is one already (put it in quotes?)")
    given.add(option, text)


def _take_option(given: Given, options: Options, word: str, rest: list[str]) -> None:
    name, has_value, text = word[2:].partition("=")
    own = _own(name, options)
    if own is not None:
        value: Any = True
        if own in TAKES_TEXT:
            value = text if has_value else _next(word, rest, options)
        elif has_value:
            raise CommandError(f"`--{name}` takes no value")
        given.ours = replace(given.ours, **{own: value})
        return
    option, is_off = options.find(name), False
    if option is None and name.startswith("no-"):
        option, is_off = options.find(name[3:]), True
    if option is None or (is_off and not option.node.is_flag):
        raise CommandError(f"there is no option `--{name}`{_listed_by_help(options, name)}")
    if option.node.is_flag and not has_value:
        given.add(option, not is_off)
    elif is_off:
        raise CommandError(f"`--{name}` takes no value")
    else:
        given.add(option, text if has_value else _next(word, rest, options))


def _own(name: str, options: Options) -> str | None:
    """Which of our options a name means, if any."""
    if (always := always_ours(name)) is not None:
        return always
    return name if name in OURS and not is_ambiguous(name, options) else None


def is_ambiguous(name: str, options: Options) -> bool:
    """Whether the module has a field of this name."""
    return any(option.name == name for option in options.listed) or (
        options.find(name) is not None and not options.shape.allows_extra
    )


def _next(word: str, rest: list[str], options: Options) -> str:
    """The word behind an option; one that is an option itself was hardly meant as its value."""
    if rest and rest[0].startswith("--"):
        name = rest[0][2:].partition("=")[0]
        if name in OURS or any(option.name == name.replace("_", "-") for option in options.listed):
            raise CommandError(f"`{word}` needs a value; if it is really `{rest[0]}`, write `{word}={rest[0]}`")
    if not rest:
        raise CommandError(f"`{word}` needs a value")
    return rest.pop(0)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _listed_by_help(options: Options, name: str) -> str:
    near = options.near(name) or [f"--{ours}" for ours in OURS if ours == name.strip("-")]
    return f"; did you mean {' or '.join(f'`{each}`' for each in near)}?" if near else "; `--help` lists them"
