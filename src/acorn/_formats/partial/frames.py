"""Values while they grow, and snapshots of them.

A frame is an object or list that is still open. It keeps what is complete in a container that only ever
grows, so that a snapshot need not copy it: a `Mark` says how much of it belongs to the snapshot. Only what
is small is copied at once; a long string or list is made when somebody reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Protocol

NOT_READY: Any = type("Hidden", (), {"__repr__": lambda self: "NOT_READY"})()
"""A value that nobody may see yet: half a number, or something that does not fit."""

LONG_TEXT = 1000
LONG_LIST = 64


class GrowingText:
    """A string that grows in place as long as nobody else holds it."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = ""

    def add(self, piece: str) -> None:
        text = self.text
        self.text = ""  # let go, so that `+=` appends instead of copying
        text += piece
        self.text = text

    def snapshot(self) -> Any:
        text = self.text
        return text if len(text) < LONG_TEXT else LazyText(self, len(text))


class LazyValue:
    """A value that is made when it is read."""

    __slots__ = ()

    def value(self) -> Any:
        raise AssertionError("each kind of mark makes its own value")


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

    def __init__(self, items: list[Any], count: int, last: Any) -> None:
        self.items = items
        self.count = count
        self.last = last

    def value(self) -> list[Any]:
        found = self.items[: self.count]
        if self.last is not NOT_READY:
            found.append(resolve_lazy(self.last))
        return found


class LazyDict(LazyValue):
    __slots__ = ("count", "items", "key", "last")

    def __init__(self, items: dict[Any, Any], count: int, key: Any, last: Any) -> None:
        self.items = items
        self.count = count
        self.key = key
        self.last = last

    def value(self) -> dict[Any, Any]:
        found = dict(islice(self.items.items(), self.count))
        if self.key is not NOT_READY and self.last is not NOT_READY:
            found[self.key] = resolve_lazy(self.last)
        return found


def resolve_lazy(value: Any) -> Any:
    """The value itself, made if it was only marked."""
    return value.value() if isinstance(value, LazyValue) else value


class Frame(Protocol):
    """An open container, as the parser sees it."""

    is_object: bool
    decides: bool
    """Whether a key alone may change what shows."""

    def enter(self, key: str) -> Any:
        """A key was read (a list has none): the plan of the value behind it."""
        ...

    def put(self, value: Any) -> None:
        """The value is complete; HIDDEN where it does not fit."""
        ...

    def close(self) -> Any:
        """The container is complete: what it came to."""
        ...

    def snapshot(self, child: Any) -> Any:
        """The container as it is now, with the open value in it."""
        ...


class ListFrame:
    """A list of one kind of item."""

    __slots__ = ("item", "items")
    is_object = False
    decides = False

    def __init__(self, item: Any) -> None:
        self.item = item
        self.items: list[Any] = []

    def enter(self, key: str) -> Any:
        return self.item

    def put(self, value: Any) -> None:
        self.items.append(None if value is NOT_READY else value)

    def close(self) -> Any:
        return self.items

    def snapshot(self, child: Any) -> Any:
        if len(self.items) > LONG_LIST or isinstance(child, LazyValue):
            return LazyList(self.items, len(self.items), child)
        return self.items.copy() if child is NOT_READY else [*self.items, child]


class DictFrame:
    """A dict of one kind of value."""

    __slots__ = ("item", "items", "key", "keys")
    is_object = True
    decides = False

    def __init__(self, item: Any, keys: Any = None) -> None:
        self.item = item
        self.keys = keys
        """The plan of the keys, where they are more than text."""
        self.items: dict[Any, Any] = {}
        self.key: Any = NOT_READY

    def enter(self, key: str) -> Any:
        self.key = key if self.keys is None else self.keys.text(key)
        return self.item

    def put(self, value: Any) -> None:
        key, self.key = self.key, NOT_READY
        if key is NOT_READY:
            return
        if key in self.items:  # a mark counts entries from the front: start a container of its own
            self.items = self.items.copy()
        self.items[key] = None if value is NOT_READY else value

    def close(self) -> Any:
        return self.items

    def snapshot(self, child: Any) -> Any:
        if len(self.items) > LONG_LIST or isinstance(child, LazyValue):
            return LazyDict(self.items, len(self.items), self.key, child)
        found = self.items.copy()
        if self.key is not NOT_READY and child is not NOT_READY:
            found[self.key] = child
        return found


class TypedDictFrame:
    """A TypedDict that is open: the keys that it must have are there from the beginning."""

    __slots__ = ("fields", "items", "name", "other")
    is_object = True
    decides = False

    def __init__(self, fields: dict[str, tuple[str, Any]], required: Iterable[str], other: Any) -> None:
        self.fields = fields
        self.other = other
        """The plan of keys that it does not have."""
        self.items: dict[Any, Any] = dict.fromkeys(required)
        """A new dict each time: the snapshots keep theirs."""
        self.name: Any = NOT_READY

    def enter(self, key: str) -> Any:
        self.name, plan = self.fields.get(key, (NOT_READY, self.other))
        return plan

    def put(self, value: Any) -> None:
        if self.name is not NOT_READY:
            self.items = {**self.items, self.name: None if value is NOT_READY else value}
        self.name = NOT_READY

    def close(self) -> Any:
        return self.items

    def snapshot(self, child: Any) -> Any:
        if isinstance(child, LazyValue):
            return LazyDict(self.items, len(self.items), self.name, child)
        found = self.items.copy()
        if self.name is not NOT_READY and child is not NOT_READY:
            found[self.name] = child
        return found
