"""From the words behind `acorn run agent.py` to options: acorn's own, and one for each field of the input.

The fields come first: where one has the name of an own option, the plain option is the field's, and the own one
is spelled `--acorn-model` and so on. That spelling is never a field's; a field `acorn_model` is written with its
underscore. `-h` is always help. `input` makes the input of what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from shlex import quote
from typing import Any

from acorn._inside import RESULT, Shape, aliases_of, shorten
from acorn.cli.field_options import Node, with_aliases
from acorn.cli.output import CommandError
from acorn.types import JsonObject

_DEEPEST = 4
_UNSET: Any = object()
_TRUTHS = ("true", "false", "yes", "no", "on", "off", "1", "0")
ValuePath = tuple[str | int, ...]
"""Where a value goes in the input."""


# Own options

OWN = {
    "model": "The model to ask, such as `openai/gpt-4o`; it takes the place of the agent's own, settings included.",
    "input": "A file with the input as a JSON object, or `-` for standard input; options win over it.",
    "json": "Print one JSON object with the output, usage, cost, steps, stop reason, model and seconds.",
    "save": "Keep the run's events in this file, for `acorn show`.",
    "store": "Keep the run in this store; else `ACORN_STORE`, the agent's own, or `.acorn/runs.db` if it is there.",
    "debug": "Show the traceback of an error.",
    "help": "Show this text.",
}
"""acorn's own options, and what they do."""
TAKES_TEXT = {"model": "MODEL", "input": "FILE", "save": "FILE", "store": "FILE"}
PREFIX = "acorn-"


@dataclass(frozen=True)
class OwnOptions:
    """What was asked of `acorn run` itself."""

    model: str | None = None
    input: str | None = None
    json: bool = False
    save: str | None = None
    store: str | None = None
    debug: bool = False
    help: bool = False


def always_own(name: str) -> str | None:
    """Which of the own options this is, whatever the module's fields are called."""
    short = name.removeprefix(PREFIX)
    return short if name.startswith(PREFIX) and short in OWN else None


# Options of the fields


@dataclass(frozen=True)
class Option:
    """A field, or a part of one, as an option."""

    name: str
    """As it is written, without the dashes: `address.city`."""
    path: ValuePath
    node: Node
    is_required: bool = False
    default: Any = _UNSET
    description: str | None = None

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def has_default(self) -> bool:
        return self.default is not _UNSET and self.default is not None


class Options:
    """The options of one module's input."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        top = with_aliases(shape.xml_schema, shape.json_schema)
        self.root = Node(top, top)
        inner = self.root.fields[RESULT] if shape.wrapped else None
        self.is_positional = inner is not None and not (inner.fields and inner.kinds == {"object"})
        """Whether the value is written without an option: it has no fields of its own."""
        self.listed = list(_listed(self.root, (), "", (), shape.wrapped and not self.is_positional))
        """Every option in the order of the fields, parts below the whole."""
        self._roots: dict[str, tuple[ValuePath, Node]] = {}
        """Where a name may begin."""
        if inner is not None and not self.is_positional:
            self._roots |= {name: ((RESULT, name), node) for name, node in inner.fields.items()}
        for name, node in self.root.fields.items():
            self._roots.setdefault(name, ((name,), node))
        for name, info in shape.schema.model_fields.items():
            for alias in aliases_of(info):
                if name in self.root.fields:
                    self._roots.setdefault(alias, ((name,), self.root.fields[name]))

    @property
    def positional(self) -> Option | None:
        return self.find(RESULT) if self.is_positional else None

    def find(self, written: str) -> Option | None:
        """The option of a name, underscores as dashes or not; a part of a dict or list has one, too."""
        first, _, rest = written.partition(".")
        key = _known(first, self._roots)
        if key is None:
            if not self.shape.allows_extra or not first.isidentifier():
                return None
            return Option(written, (first,), Node({}, self.root.top)) if not rest else None
        path, node = self._roots[key]
        parts = rest.split(".") if rest else []
        name = [_spelled(key)]
        while parts:
            step = _descend(node, parts)
            if step is None:
                return None
            taken, part, spelled, node = step
            path, parts = (*path, part), parts[taken:]
            name.append(spelled)
        return Option(".".join(name), path, node)

    def is_field(self, option: Option) -> bool:
        """Whether it is a whole field of the input, and no part of one."""
        return len(option.path) == (2 if self.shape.wrapped and not self.is_positional else 1)

    def spelled(self, option: Option) -> str:
        """An option as an error names it."""
        return "the argument" if self.is_positional and self.is_field(option) else f"`{option.flag}`"

    def near(self, written: str) -> list[str]:
        """Options that may have been meant."""
        names = dict.fromkeys([*(option.name for option in self.listed), *OWN])
        return [f"--{name}" for name in get_close_matches(written.strip("-").replace("_", "-"), names, 2)]


def dashed(name: str) -> str:
    """A field as an option spells it."""
    return name.replace("_", "-").strip("-") or name


def _spelled(name: str) -> str:
    """A field of the input as its option; one that would be spelled as an own one keeps its underscore."""
    return name if always_own(dashed(name)) else dashed(name)


def _known(written: str, names: Iterable[str]) -> str | None:
    if written in names:
        return written
    return next((name for name in names if dashed(name) == dashed(written)), None)


def _descend(node: Node, parts: list[str]) -> tuple[int, str | int, str, Node] | None:
    """One step into a value: how many parts of the name it takes, where it leads, its name, and what is there."""
    fields = node.fields
    field = _known(parts[0], fields)
    if field is None and (alias := _known(parts[0], node.aliases)) is not None:
        field = node.aliases[alias]
    if field is not None:
        return 1, field, dashed(field), fields[field]
    if "array" in node.kinds and parts[0].isdecimal():
        at = int(parts[0])
        return 1, at, parts[0], node.item(at)
    entry = node.entry
    if entry is None:
        return None
    # The keys of a dict are the user's own, dots included, unless what they hold has parts of its own.
    if entry.kinds and not entry.kinds & {"object", "array"}:
        key = ".".join(parts)
        return len(parts), key, key, entry
    return 1, parts[0], parts[0], entry


def _listed(node: Node, path: ValuePath, prefix: str, above: tuple[str, ...], is_opened: bool) -> Iterator[Option]:
    for name, inner in node.fields.items():
        described = inner.schema.get("description") or _definition(inner).get("description")
        option = Option(
            prefix + dashed(name) if prefix else _spelled(name),
            (*path, name),
            inner,
            name in node.required,
            inner.schema.get("default", _UNSET),
            described,
        )
        hides = is_opened and not path
        if not hides:
            yield option
        if inner.fields and len(path) < _DEEPEST and (inner.name is None or inner.name not in above):
            deeper = f"{option.name}." if not hides else ""
            yield from _listed(inner, option.path, deeper, (*above, inner.name or ""), is_opened)


def _definition(node: Node) -> JsonObject:
    """What the class of a nested model says of itself."""
    members = [member for member in node.members if member.get("type") != "null"]
    return members[0] if len(members) == 1 else {}


# Reading the words


@dataclass
class ParsedArguments:
    """What was written behind the module's name."""

    own: OwnOptions
    options: dict[ValuePath, tuple[Option, list[str | bool]]] = field(
        default_factory=dict[ValuePath, tuple[Option, list[str | bool]]]
    )
    """The texts of each, by the path of its value, in the order they came."""
    flag: str | None = None
    """What came last, should a stray word follow it: an option without a value,"""
    text: str | None = None
    """or one with a text as its value."""

    def add(self, option: Option, text: str | bool) -> None:
        texts = self.options.setdefault(option.path, (option, []))[1]
        if texts and not option.node.takes_several:
            raise CommandError(f"`{option.flag}` is given twice; it takes one value")
        texts.append(text)
        self.flag = option.flag if isinstance(text, bool) else None
        self.text = option.flag if self.flag is None and option.node.takes_text else None

    def add_own(self, name: str, value: Any, spelled: str) -> None:
        if name in TAKES_TEXT and getattr(self.own, name) is not None:
            raise CommandError(f"`{spelled}` is given twice; it takes one value")
        self.own = replace(self.own, **{name: value})
        self.flag, self.text = (None if name in TAKES_TEXT else spelled), None


def parse(words: Sequence[str], options: Options, own: OwnOptions) -> ParsedArguments:
    """Sort the words into fields and own options; `CommandError` names the one that fits neither."""
    written = ParsedArguments(own)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            for text in rest:
                _take_positional(written, options, text)
            break
        if word == "-h":  # even where a field is called `help`
            written.add_own("help", True, word)
        elif word.startswith("--"):
            _take_option(written, options, word, rest)
        elif word.startswith("-") and len(word) > 1 and not _is_number(word):
            raise CommandError(f"there is no option `{word}`{_listed_by_help(options, word.lstrip('-'))}")
        else:
            _take_positional(written, options, word)
    return written


def _take_positional(written: ParsedArguments, options: Options, text: str) -> None:
    option = options.positional
    if option is None:
        raise _stray(written, options, text)
    if option.path in written.options and not option.node.takes_several:
        raise CommandError(f"unexpected argument `{shorten(text, 80)}`; there is one already (put it in quotes?)")
    written.add(option, text)


def _stray(written: ParsedArguments, options: Options, text: str) -> CommandError:
    """What a word may have been meant for that belongs to no option."""
    flag, stray = written.flag, f"unexpected argument `{shorten(text, 80)}`"
    if flag is not None:
        option = options.find(flag[2:])
        if option is not None and option.node.is_flag and text.lower() in _TRUTHS:
            return CommandError(f"`{flag}` takes no value; write `{flag}` or `--no-{option.name}`")
        return CommandError(f"{stray} behind `{flag}`, which takes no value")
    if written.text is not None:
        return CommandError(f"{stray}; put the value of `{written.text}` in quotes?")
    first = next((option for option in options.listed if not option.node.is_flag), None)
    hint = f"write `{first.flag} {quote(shorten(text, 40))}`?" if first else "the module takes no input"
    return CommandError(f"{stray}; {hint}")


def _take_option(written: ParsedArguments, options: Options, word: str, rest: list[str]) -> None:
    name, has_value, text = word[2:].partition("=")
    own = _own(name, options)
    if own is not None:
        value: Any = True
        if own in TAKES_TEXT:
            value = text if has_value else _next(word, rest, options)
        elif has_value:
            raise CommandError(f"`--{name}` takes no value")
        written.add_own(own, value, f"--{name}")
        return
    option, is_off = options.find(name), False
    if option is None and name.startswith("no-"):
        option, is_off = options.find(name[3:]), True
    if option is None or (is_off and not option.node.is_flag):
        raise CommandError(f"there is no option `--{name}`{_listed_by_help(options, name)}")
    if option.node.is_flag and not has_value:
        written.add(option, not is_off)
    elif is_off:
        raise CommandError(f"`--{name}` takes no value")
    else:
        written.add(option, text if has_value else _next(word, rest, options))


def _own(name: str, options: Options) -> str | None:
    """Which of the own options a name means, if any."""
    if (always := always_own(name)) is not None:
        return always
    return name if name in OWN and not is_ambiguous(name, options) else None


def is_ambiguous(name: str, options: Options) -> bool:
    """Whether the module has a field of this name."""
    return any(option.name == name for option in options.listed) or (
        options.find(name) is not None and not options.shape.allows_extra
    )


def _next(word: str, rest: list[str], options: Options) -> str:
    """The word behind an option; one that is an option itself was hardly meant as its value."""
    if rest and rest[0].startswith("--"):
        name = rest[0][2:].partition("=")[0]
        if name in OWN or any(option.name == name.replace("_", "-") for option in options.listed):
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
    near = options.near(name)
    return f"; did you mean {' or '.join(f'`{each}`' for each in near)}?" if near else "; `--help` lists them"
