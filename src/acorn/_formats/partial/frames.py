"""Containers that are still being written, and snapshots of them.

A frame is an object or list that is still open. It keeps the complete items in a container that only grows, so that a
snapshot need not copy it: a `LazyValue` stores how much of the container belongs to the snapshot. Small values are
copied at once. A long string or list is created when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Protocol


class _NotReady:
    def __repr__(self) -> str:
        return "NOT_READY"


NOT_READY: Any = _NotReady()
"""The sentinel for a value that is not shown yet: an incomplete number, or a value that does not fit."""

LONG_TEXT = 1000
LONG_LIST = 64


class GrowingText:
    """A string that grows in place as long as nothing else refers to it."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = ""

    def add(self, piece: str) -> None:
        text = self.text
        self.text = ""  # Drop the reference, so that `+=` appends instead of copying.
        text += piece
        self.text = text

    def snapshot(self) -> object:
        text = self.text
        return text if len(text) < LONG_TEXT else LazyText(self, len(text))


class LazyValue:
    """A value that is created when it is read."""

    __slots__ = ()

    def value(self) -> Any:
        raise AssertionError("Each kind of lazy value creates its own value.")


class LazyText(LazyValue):
    __slots__ = ("length", "node")

    def __init__(self, node: GrowingText, length: int) -> None:
        self.node = node
        self.length = length

    def value(self) -> str:
        text = self.node.text
        return text if len(text) == self.length else text[: self.length]


class LazyList(LazyValue):
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
    """Return the value, and create it if it is lazy."""
    return value.value() if isinstance(value, LazyValue) else value


class Frame(Protocol):
    """An open container, in the form that the parser uses."""

    is_object: bool
    decides: bool
    """Whether a key alone may change the snapshot."""

    def enter(self, key: str) -> Any:
        """Return the expectation of the value after a key; a list has no keys."""
        ...

    def put(self, value: object) -> None:
        """The value is complete; HIDDEN if it does not fit."""
        ...

    def close(self) -> object:
        """Return the value of the complete container."""
        ...

    def snapshot(self, child: object) -> object:
        """Return the container as it is now, with the open value in it."""
        ...


class ListFrame:
    """An open list with one kind of item."""

    __slots__ = ("item", "items")
    is_object = False
    decides = False

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
    """An open dict with one kind of value."""

    __slots__ = ("item", "items", "key", "keys")
    is_object = True
    decides = False

    def __init__(self, item: Any, keys: Any = None) -> None:
        self.item = item
        self.keys = keys
        """The expectation of the keys, if they are not simple strings."""
        self.items: dict[Any, object] = {}
        self.key: Any = NOT_READY

    def enter(self, key: str) -> Any:
        self.key = key if self.keys is None else self.keys.text(key)
        return self.item

    def put(self, value: object) -> None:
        key, self.key = self.key, NOT_READY
        if key is NOT_READY:
            return
        if key in self.items:  # Lazy values count entries from the front, so start a new container.
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
    """An open TypedDict, which has its required keys from the beginning."""

    __slots__ = ("fields", "items", "name", "other")
    is_object = True
    decides = False

    def __init__(self, fields: Mapping[str, tuple[str, object]], required: Iterable[str], other: Any) -> None:
        self.fields = fields
        self.other = other
        """The expectation of unknown keys."""
        self.items: dict[Any, Any] = dict.fromkeys(required)
        """A new dict after each change, because snapshots keep the old one."""
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
