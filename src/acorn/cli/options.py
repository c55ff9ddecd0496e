"""The options of a module: one for each field of its input, and for the parts of nested ones.

`parse` looks names up here, `usage` prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from acorn._schema.shape import RESULT, Shape, aliases_of
from acorn.cli.ours import always_ours
from acorn.cli.schema import Node, with_aliases

_DEEPEST = 4
_UNSET: Any = object()


@dataclass(frozen=True)
class Option:
    """A field, or a part of one, as an option."""

    name: str
    """As it is written, without the dashes: `address.city`."""
    path: tuple[str | int, ...]
    """Where its value goes in the input."""
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
    """What may be given to one module."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        top = with_aliases(shape.xml_schema, shape.json_schema)
        self.root = Node(top, top)
        inner = self.root.fields[RESULT] if shape.wrapped else None
        self.is_positional = inner is not None and not (inner.fields and inner.kinds == {"object"})
        """Whether the value is given without an option: it has no fields of its own."""
        self.listed = list(_listed(self.root, (), "", (), shape.wrapped and not self.is_positional))
        """Every option in the order of the fields, parts below the whole."""
        self._roots: dict[str, tuple[tuple[str | int, ...], Node]] = {}
        """Where a name may begin."""
        if inner is not None and not self.is_positional:
            self._roots |= {name: ((RESULT, name), node) for name, node in inner.fields.items()}
        for name, node in self.root.fields.items():
            self._roots.setdefault(name, ((name,), node))
        for name, field in shape.schema.model_fields.items():
            for alias in aliases_of(field):
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

    def near(self, written: str) -> list[str]:
        """Options that may have been meant."""
        names = [option.name for option in self.listed]
        return [f"--{name}" for name in get_close_matches(written.replace("_", "-"), names, 2)]


def dashed(name: str) -> str:
    """A field as an option spells it."""
    return name.replace("_", "-").strip("-") or name


def _spelled(name: str) -> str:
    """A field of the input as its option; one that would be spelled as ours keeps its underscore."""
    return name if always_ours(dashed(name)) else dashed(name)


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


def _listed(
    node: Node, path: tuple[str | int, ...], prefix: str, above: tuple[str, ...], is_opened: bool
) -> Iterator[Option]:
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


def _definition(node: Node) -> dict[str, Any]:
    """What the class of a nested model says of itself."""
    members = [member for member in node.members if member.get("type") != "null"]
    return members[0] if len(members) == 1 else {}
