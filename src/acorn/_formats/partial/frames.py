"""Frames: objects that store the incomplete objects and lists of a JSON text, and create snapshots of them.

A frame represents a JSON object or list whose end has not arrived. The frame stores the complete items in a container
that only grows. A snapshot of a small container is a copy. A snapshot of a long string or container is a `LazyValue`,
which stores a reference and the current length. The `LazyValue` makes the copy on first access.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Protocol


class _NotReady:
    def __repr__(self) -> str:
        return "NOT_READY"


NOT_READY: Any = _NotReady()
"""The sentinel for a value that snapshots omit, such as an incomplete number or a value that fails validation."""

LONG_TEXT = 1000
LONG_LIST = 64


class GrowingText:
    """A string to which the parser appends pieces of text.

    Appending does not copy the string, because no other object refers to it.
    """

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = ""

    def add(self, piece: str) -> None:
        text = self.text
        self.text = ""  # Python appends in place only if the string has a single reference.
        text += piece
        self.text = text

    def snapshot(self) -> object:
        text = self.text
        return text if len(text) < LONG_TEXT else LazyText(self, len(text))


class LazyValue:
    """The base class of long values in snapshots. The value is created when user code first reads it."""

    __slots__ = ()

    def value(self) -> Any:
        raise AssertionError("A subclass of `LazyValue` must override `value`.")


class LazyText(LazyValue):
    """A lazy value that consists of the first `length` characters of a growing string."""

    __slots__ = ("length", "node")

    def __init__(self, node: GrowingText, length: int) -> None:
        self.node = node
        self.length = length

    def value(self) -> str:
        text = self.node.text
        return text if len(text) == self.length else text[: self.length]


class LazyList(LazyValue):
    """A lazy value that consists of the first `count` items of a growing list, and of the incomplete item `last`."""

    __slots__ = ("count", "items", "last")

    def __init__(self, items: list[Any], count: int, last: object) -> None:
        self.items = items
        self.count = count
        self.last = last

    def value(self) -> list[object]:
        items = self.items[: self.count]
        if self.last is not NOT_READY:
            items.append(resolve_lazy(self.last))
        return items


class LazyDict(LazyValue):
    """A lazy value that consists of the first `count` entries of a growing dict, and of one incomplete entry.

    The incomplete entry has the dict key `key` and the value `last`.
    """

    __slots__ = ("count", "items", "key", "last")

    def __init__(self, items: dict[Any, object], count: int, key: object, last: object) -> None:
        self.items = items
        self.count = count
        self.key = key
        self.last = last

    def value(self) -> dict[Any, Any]:
        items = dict(islice(self.items.items(), self.count))
        if self.key is not NOT_READY and self.last is not NOT_READY:
            items[self.key] = resolve_lazy(self.last)
        return items


def resolve_lazy(value: object) -> Any:
    """Return the real value of a `LazyValue`, or return any other value unchanged."""
    return value.value() if isinstance(value, LazyValue) else value


class Frame(Protocol):
    """The interface of frames. A frame stores an incomplete JSON object or list, and the parser adds values to it."""

    is_object: bool
    key_changes_snapshot: bool
    """Whether a new key may change the snapshot before the value of this key arrives."""

    def enter(self, key: str) -> Any:
        """Prepare the frame for the value of a JSON key, and return the expectation for this value.

        For a list, `key` is "".
        """
        ...

    def put(self, value: object) -> None:
        """Store the value for which `enter` was called. The value is `NOT_READY` if it failed validation."""
        ...

    def close(self) -> object:
        """Return the final value of the object or list after its end has arrived."""
        ...

    def snapshot(self, child: object) -> object:
        """Return the current value of the object or list. `child` is a snapshot of its last, incomplete value."""
        ...


class ListFrame:
    """A frame (the state of an incomplete JSON list) with one expectation for all items."""

    __slots__ = ("item", "items")
    is_object = False
    key_changes_snapshot = False

    def __init__(self, item: Any) -> None:
        self.item = item
        self.items: list[object] = []

    def enter(self, key: str) -> Any:
        return self.item

    def put(self, value: object) -> None:
        self.items.append(None if value is NOT_READY else value)

    def close(self) -> object:
        return self.items

    def snapshot(self, child: object) -> object:
        if len(self.items) > LONG_LIST or isinstance(child, LazyValue):
            return LazyList(self.items, len(self.items), child)
        return self.items.copy() if child is NOT_READY else [*self.items, child]


class DictFrame:
    """A frame (the state of an incomplete JSON object) for a dict, with one expectation for all values."""

    __slots__ = ("item", "items", "key", "keys")
    is_object = True
    key_changes_snapshot = False

    def __init__(self, item: Any, keys: Any = None) -> None:
        self.item = item
        self.keys = keys
        """The expectation for the keys, or None if the keys are strings without validation."""
        self.items: dict[Any, object] = {}
        self.key: Any = NOT_READY

    def enter(self, key: str) -> Any:
        self.key = key if self.keys is None else self.keys.text(key)
        return self.item

    def put(self, value: object) -> None:
        key, self.key = self.key, NOT_READY
        if key is NOT_READY:
            return
        if key in self.items:  # A `LazyDict` refers to the first entries of the dict, so do not change these entries.
            self.items = self.items.copy()
        self.items[key] = None if value is NOT_READY else value

    def close(self) -> object:
        return self.items

    def snapshot(self, child: object) -> object:
        if len(self.items) > LONG_LIST or isinstance(child, LazyValue):
            return LazyDict(self.items, len(self.items), self.key, child)
        items = self.items.copy()
        if self.key is not NOT_READY and child is not NOT_READY:
            items[self.key] = child
        return items


class TypedDictFrame:
    """A frame (the state of an incomplete JSON object) for a TypedDict.

    In snapshots, a required key has the value None until its value arrives.
    """

    __slots__ = ("fields", "items", "name", "other")
    is_object = True
    key_changes_snapshot = False

    def __init__(self, fields: Mapping[str, tuple[str, object]], required: Iterable[str], other: Any) -> None:
        self.fields = fields
        self.other = other
        """The expectation for the values of unknown keys."""
        self.items: dict[Any, Any] = dict.fromkeys(required)
        """The entries of the TypedDict. Snapshots refer to this dict, so each change creates a new dict."""
        self.name: Any = NOT_READY

    def enter(self, key: str) -> Any:
        self.name, expectation = self.fields.get(key, (NOT_READY, self.other))
        return expectation

    def put(self, value: object) -> None:
        if self.name is not NOT_READY:
            self.items = {**self.items, self.name: None if value is NOT_READY else value}
        self.name = NOT_READY

    def close(self) -> object:
        return self.items

    def snapshot(self, child: object) -> object:
        if isinstance(child, LazyValue):
            return LazyDict(self.items, len(self.items), self.name, child)
        items = self.items.copy()
        if self.name is not NOT_READY and child is not NOT_READY:
            items[self.name] = child
        return items
