"""Frames: objects that store the incomplete objects and lists of a JSON text, and create snapshots of them.

A frame represents a JSON object or list whose end has not arrived. The frame stores the complete items in a container
that only grows. A snapshot of a small container is a copy. A snapshot of a long string or container is a `LazyValue`,
which stores a reference and the current length. The `LazyValue` makes the copy on first access.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any


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
        return text if len(text) < LONG_TEXT else LazyValue(_first_characters, self, len(text))


class LazyValue(partial[Any]):
    """A long value in a snapshot: a call that creates the value when user code first reads it."""

    __slots__ = ()


def resolve_lazy(value: object) -> Any:
    """Return the real value of a `LazyValue`, or return any other value unchanged."""
    return value() if isinstance(value, LazyValue) else value


def _first_characters(node: GrowingText, length: int) -> str:
    text = node.text
    return text if len(text) == length else text[:length]


def _first_items(items: list[Any], count: int, last: object) -> list[object]:
    """Return the first `count` items of a growing list, followed by the incomplete item `last`."""
    return items[:count] if last is NOT_READY else [*items[:count], resolve_lazy(last)]


def _first_entries(items: dict[Any, object], count: int, key: object, last: object) -> dict[Any, Any]:
    """Return the first `count` entries of a growing dict, and the incomplete entry with `key` and the value `last`."""
    entries = dict(islice(items.items(), count))
    if key is not NOT_READY and last is not NOT_READY:
        entries[key] = resolve_lazy(last)
    return entries


class Frame:
    """The base class of frames. A frame stores an incomplete JSON object or list, and the parser adds values to it."""

    __slots__ = ()
    is_object = True
    key_changes_snapshot = False
    """Whether a new key may change the snapshot before the value of this key arrives."""

    def enter(self, key: str) -> Any:
        """Prepare the frame for the value of a JSON key, and return the expectation for this value.

        For a list, `key` is "".
        """
        raise NotImplementedError

    def put(self, value: object) -> None:
        """Store the value for which `enter` was called. The value is `NOT_READY` if it failed validation."""
        raise NotImplementedError

    def close(self) -> object:
        """Return the final value of the object or list after its end has arrived."""
        raise NotImplementedError

    def snapshot(self, child: object) -> object:
        """Return the current value of the object or list. `child` is a snapshot of its last, incomplete value."""
        raise NotImplementedError


class ListFrame(Frame):
    """A frame (the state of an incomplete JSON list) with one expectation for all items."""

    __slots__ = ("item", "items")
    is_object = False

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
            return LazyValue(_first_items, self.items, len(self.items), child)
        return self.items.copy() if child is NOT_READY else [*self.items, child]


class DictFrame(Frame):
    """A frame (the state of an incomplete JSON object) for a dict, with one expectation for all values."""

    __slots__ = ("item", "items", "key", "keys")

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
        if key in self.items:  # A lazy value refers to the first entries of the dict, so do not change these entries.
            self.items = self.items.copy()
        self.items[key] = None if value is NOT_READY else value

    def close(self) -> object:
        return self.items

    def snapshot(self, child: object) -> object:
        if len(self.items) > LONG_LIST or isinstance(child, LazyValue):
            return LazyValue(_first_entries, self.items, len(self.items), self.key, child)
        items = self.items.copy()
        if self.key is not NOT_READY and child is not NOT_READY:
            items[self.key] = child
        return items


class TypedDictFrame(DictFrame):
    """A frame (the state of an incomplete JSON object) for a TypedDict.

    In snapshots, a required key has the value None until its value arrives.
    """

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, tuple[str, object]], required: Iterable[str], other: Any) -> None:
        super().__init__(other)
        self.fields = fields
        self.items.update(dict.fromkeys(required))

    def enter(self, key: str) -> Any:
        self.key, expectation = self.fields.get(key, (NOT_READY, self.item))
        return expectation


class WrapperFrame(Frame):
    """The base class of frames that contain another frame for the same JSON object or list, and change its results."""

    __slots__ = ("inner", "is_object", "key_changes_snapshot")

    def __init__(self, inner: Frame) -> None:
        self.inner = inner
        self.is_object = inner.is_object
        self.key_changes_snapshot = inner.key_changes_snapshot

    def enter(self, key: str) -> Any:
        return self.inner.enter(key)

    def put(self, value: object) -> None:
        self.inner.put(value)
