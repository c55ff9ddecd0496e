"""A JSON parser that receives the text in pieces of any size and can return a typed snapshot at any time.

`expectation_of` converts a type to an expectation, which controls how the parser converts JSON values. The parsing time
is linear in the length of the text. The parser does not raise errors. At the first character that is not valid JSON, it
stops, ignores the remaining text, and continues to return the last value. Snapshots are not final values, because
Pydantic validates the complete text later.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable
from functools import lru_cache
from math import inf, nan
from typing import Any, NewType, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, JsonValue, RootModel
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from acorn._formats.json import is_root_class, replace_surrogates
from acorn._formats.partial import expectations
from acorn._formats.partial.classes import DICTS, LISTS, has_readable_hints, partial_class, resolve_self
from acorn._formats.partial.expectations import NOT_READY, Expectation, Frame, GrowingText
from acorn._formats.schema.shape import aliases_of, fields_of, has_fields, required_keys

_HEX = "[0-9a-fA-F]"
_CUT_ESCAPE = rf"(?:\\(?:u{_HEX}{{0,3}})?)?"
"""Matches the end of a piece that may divide an escape sequence."""
_STRING_PART = re.compile(
    rf"""[^"\\]*(?:\\(?:["\\/bfnrt]"""
    rf"|u(?![dD][89abAB]){_HEX}{{4}}|u[dD][89abAB]{_HEX}{{2}}(?!{_CUT_ESCAPE}\Z))"
    r"""[^"\\]*)*"""
)
"""Matches characters and complete escape sequences. The first half of a surrogate pair is not complete if its second
half may be in the next piece."""
_CUT_STRING = re.compile(rf"{_CUT_ESCAPE}|\\u[dD][89abAB]{_HEX}{{2}}{_CUT_ESCAPE}")
_TOKEN = re.compile(r"[^,\]} \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "NaN": nan, "Infinity": inf, "-Infinity": -inf}
"""A dict that maps words to values. NaN and infinity are not valid JSON, but Pydantic accepts them."""
_MAX_DEPTH = 201
"""The maximum number of nested objects and lists. Pydantic has the same limit."""
_MAX_TOKEN = 10_000
"""The maximum length of a number or word. Valid numbers are shorter. Each piece of text copies the token, so the time
for a longer token would be quadratic."""
_DECODER = json.JSONDecoder(strict=False)
"""A decoder of JSON strings, which also accepts control characters."""


class PushParser:
    """A JSON parser that receives the text in pieces and converts it to the type of an expectation."""

    def __init__(self, expectation: Any) -> None:
        self._expected: Any = expectation
        """The expectation for the next value, or None inside a key."""
        self._stack: list[Frame] = []
        self._text: GrowingText | None = None
        """The incomplete string, which is a value or a key, or None outside of strings."""
        self._visible: GrowingText | None = None
        """The incomplete string if it is a value that snapshots contain while it grows, or None."""
        self._rest = ""
        """The end of the last piece if it cannot be parsed yet: a part of an escape sequence, a number or a word."""
        self._state: Callable[[str, int], int] = self._value
        self._root: Any = NOT_READY
        self._outermost: Frame | None = None
        self._changed = True
        self._snapshot: Any = NOT_READY

    def feed(self, piece: str) -> None:
        """Parse the next piece of the JSON text."""
        text = self._visible
        # This is the fast path, because most pieces are in the middle of a string.
        if text is not None and piece and not self._rest and '"' not in piece and "\\" not in piece:
            self._add(text, piece)
            return
        piece, self._rest = self._rest + piece, ""
        at, end = 0, len(piece)
        while at < end:
            if self._text is None and piece[at] in " \t\n\r":
                at += 1
            else:
                at = self._state(piece, at)

    def value(self) -> Any:
        """Return a snapshot of the current value.

        Later text does not change a snapshot. The method returns the same object until the value changes.
        """
        if self._changed:
            self._changed = False
            if self._visible is not None:
                snapshot = self._visible.snapshot()
            else:
                snapshot = NOT_READY if self._stack else self._root
            for frame in reversed(self._stack):
                snapshot = frame.snapshot(snapshot)
            self._snapshot = snapshot
        return self._snapshot

    def completed(self) -> tuple[str, ...]:
        """Return the names of the fields of the outermost JSON object whose values are complete."""
        return getattr(self._outermost, "done", ())

    def _add(self, text: GrowingText, piece: str) -> None:
        if text is self._visible:
            self._changed = True
            self._snapshot = None  # A snapshot that refers to the string would prevent appending in place.
        text.add(piece if piece.isascii() else replace_surrogates(piece))

    def _wait(self, piece: str, at: int) -> int:
        """Keep the end of a piece until the next piece arrives."""
        self._rest = piece[at:]
        return len(piece)

    def _stop(self, piece: str) -> int:
        """Ignore the remaining text, and keep the current value."""
        self._root = self.value()
        self._stack, self._text, self._visible = [], None, None
        self._state = self._ignore
        return len(piece)

    def _open(self, frame: Frame) -> None:
        if not self._stack:
            self._outermost = frame
        self._stack.append(frame)
        self._changed = True
        self._enter(frame)

    def _enter(self, frame: Frame) -> None:
        """Expect the next key of an object, or the next item of a list."""
        if frame.is_object:
            self._state = self._before_key
        else:
            self._expected = frame.enter("")
            self._state = self._value

    def _close(self) -> None:
        self._complete(self._stack.pop().close())

    def _complete(self, value: object) -> None:
        self._changed = True
        if self._stack:
            self._stack[-1].put(value)
        else:
            self._root = value
        self._state = self._after

    # The parser has one method for each state. The method returns the position where the next state continues.

    def _value(self, piece: str, at: int) -> int:
        character = piece[at]
        if character == '"':
            self._text = self._expected.new_text()
            if self._expected.grows:
                self._visible = self._text
                self._changed = True
            self._state = self._string
        elif character in "{[" and len(self._stack) < _MAX_DEPTH:
            self._open(self._expected.object_frame() if character == "{" else self._expected.array_frame())
        elif character == "]" and self._stack and not self._stack[-1].is_object:
            self._close()
        elif character in "-0123456789tfnNI":
            end = _TOKEN.match(piece, at).end()  # type: ignore[union-attr]
            if end - at > _MAX_TOKEN:
                return self._stop(piece)
            if end == len(piece):
                return self._wait(piece, at)
            return end if self._end_token(piece[at:end]) else self._stop(piece)
        else:
            return self._stop(piece)
        return at + 1

    def _end_token(self, token: str) -> bool:
        if token in _WORDS:
            self._complete(self._expected.scalar(_WORDS[token], token))
            return True
        number = _NUMBER.fullmatch(token)
        if number is None:
            return False
        try:
            value = float(token) if number[1] or number[2] else int(token)
        except ValueError:  # The number has more digits than Python and Pydantic allow.
            return False
        self._complete(self._expected.scalar(value, token))
        return True

    def _string(self, piece: str, at: int) -> int:
        text = self._text
        assert text is not None
        end = _STRING_PART.match(piece, at).end()  # type: ignore[union-attr]
        if end > at:
            part = piece[at:end]
            self._add(text, _DECODER.decode(f'"{part}"') if "\\" in part else part)
        if end == len(piece):
            return end
        if piece[end] != '"':
            return self._wait(piece, end) if _CUT_STRING.fullmatch(piece, end) else self._stop(piece)
        self._text = self._visible = None
        if self._expected is None:
            frame = self._stack[-1]
            self._expected = frame.enter(text.text)
            self._changed = self._changed or frame.key_changes_snapshot
            self._state = self._colon
        else:
            self._complete(self._expected.text(text.text))
        return end + 1

    def _before_key(self, piece: str, at: int) -> int:
        if piece[at] == '"':
            self._text = GrowingText()
            self._expected = None
            self._state = self._string
        elif piece[at] == "}":
            self._close()
        else:
            return self._stop(piece)
        return at + 1

    def _colon(self, piece: str, at: int) -> int:
        if piece[at] != ":":
            return self._stop(piece)
        self._state = self._value
        return at + 1

    def _after(self, piece: str, at: int) -> int:
        if not self._stack:
            return self._stop(piece)
        frame = self._stack[-1]
        if piece[at] == ",":
            self._enter(frame)
        elif piece[at] == ("}" if frame.is_object else "]"):
            self._close()
        else:
            return self._stop(piece)
        return at + 1

    def _ignore(self, piece: str, at: int) -> int:
        return len(piece)


# Conversion of types to expectations.


@lru_cache(maxsize=512)
def expectation_of(kind: Any) -> Expectation:
    """Return the expectation for a type. A cache avoids repeated work."""
    return _Compiler().compile(kind, None)


class _Compiler:
    """A converter of a type, and of all types inside it, to expectations.

    The compiler stores the expectation for each class, so that a class that contains itself has only one expectation.
    """

    def __init__(self) -> None:
        self.models: dict[Any, expectations.ModelExpectation | expectations.RootModelExpectation] = {}

    def compile(self, kind: Any, config: ConfigDict | None) -> Expectation:
        """Return the expectation for a type. `config` is the `model_config` of the class that contains the value."""
        if kind in (Any, object, JsonValue):
            return expectations.ANYTHING
        if kind is str:
            return expectations.TextExpectation(str, config)
        if isinstance(kind, NewType):
            return self.compile(kind.__supertype__, config)
        origin, arguments = get_origin(kind) or kind, get_args(kind)
        if origin is typing.Annotated:
            return self._annotated(kind, arguments[0], config)
        if origin in (Union, types.UnionType):
            return expectations.UnionExpectation(kind, config, [self.compile(member, config) for member in arguments])
        if origin in LISTS:
            item = self.compile(arguments[0], config) if arguments else expectations.ANYTHING
            return expectations.ListExpectation(kind, config, item)
        if origin in DICTS:
            name, value = arguments or (str, Any)
            keys = None if name is str else expectations.LeafExpectation(name, config)
            return expectations.DictExpectation(kind, config, self.compile(value, config), keys)
        if is_root_class(kind):
            return self.models.get(kind) or self._root(kind)
        if has_fields(kind) and has_readable_hints(kind):
            return self.models.get(kind) or self._object(kind, origin, config)
        return expectations.LeafExpectation(kind, config)

    def _annotated(self, kind: Any, inner: Any, config: ConfigDict | None) -> Expectation:
        """Return the expectation for a type with metadata, such as limits and validators.

        The parser applies the metadata only to complete values.
        """
        expectation = self.compile(inner, config)
        if isinstance(expectation, expectations.ModelExpectation | expectations.RootModelExpectation):
            return expectation
        if not isinstance(expectation, expectations.LeafExpectation):
            return expectations.LeafExpectation(kind, config)
        expectation.kind = kind
        return expectation

    def _root(self, kind: type[RootModel[Any]]) -> Expectation:
        expectation = self.models[kind] = expectations.RootModelExpectation(kind, None)
        expectation.partial = partial_class(kind)
        expectation.inner = self.compile(_field_type(kind.model_fields["root"], kind), kind.model_config or None)
        expectation.grows = expectation.inner.grows
        return expectation

    def _object(self, kind: Any, cls: Any, config: ConfigDict | None) -> Expectation:
        is_model = issubclass(cls, BaseModel)
        expectation = self.models[kind] = expectations.ModelExpectation(kind, None if is_model else config)
        expectation.is_validated = not is_model
        if is_typeddict(cls):
            expectation.required = required_keys(kind)
        else:
            expectation.partial = partial_class(kind)
        # For a class without a configuration, Pydantic uses the configuration of the class that contains it.
        own = (cls.model_config if is_model else getattr(cls, "__pydantic_config__", config)) or None
        fields = {name: field for name, field in fields_of(kind).items() if field.init is not False}
        members = {name: self.compile(_field_type(field, kind), own) for name, field in fields.items()}
        expectation.fields = {name: (name, inner) for name, inner in members.items()}
        # Add the aliases last: if an alias is also the name of another field, the alias has priority.
        for name, field in fields.items():
            expectation.fields.update(dict.fromkeys(aliases_of(field), (name, members[name])))
        return expectation


def _field_type(field: FieldInfo, model: Any) -> Any:
    annotation = resolve_self(field.annotation, model)
    return typing.Annotated[(annotation, *field.metadata)] if field.metadata else annotation
