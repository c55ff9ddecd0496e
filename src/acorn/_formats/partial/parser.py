"""A JSON parser that reads text in pieces of any size and always has a value to show.

`expectation_of` compiles a type to the expectation that guides the parser. The work is constant for each character. The
parser is lenient: at the first character that is not JSON, it stops and keeps its value. Its values are not final:
Pydantic validates the complete text.
"""

from __future__ import annotations

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

from acorn._formats.json import is_root_class
from acorn._formats.partial.classes import DICTS, LISTS, has_readable_hints, partial_class, resolve_self
from acorn._formats.partial.expectations import (
    ANYTHING,
    DataclassExpectation,
    DictExpectation,
    Expectation,
    LeafExpectation,
    ListExpectation,
    ModelExpectation,
    RootModelExpectation,
    TextExpectation,
    TypedDictExpectation,
    UnionExpectation,
)
from acorn._formats.partial.frames import NOT_READY, Frame, GrowingText
from acorn._formats.schema.shape import aliases_of, fields_of, has_fields, required_keys

_STOP = re.compile(r'["\\]')
_BLANK = re.compile(r"[ \t\n\r]*")
_TOKEN_END = re.compile(r"[,\]} \t\n\r]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None, "NaN": nan, "Infinity": inf, "-Infinity": -inf}
"""Pydantic accepts the last three as well."""
_MAX_DEPTH = 201
"""The number of containers that may be open. Pydantic has the same limit."""
_MAX_TOKEN = 10_000
"""The longest token. Valid numbers are shorter, and a longer one would be joined again with each piece."""


class PushParser:
    """Builds a value by an expectation while its text arrives."""

    def __init__(self, expectation: Any) -> None:
        self._expected: Any = expectation
        """The expectation of the next value, or None inside a key."""
        self._stack: list[Frame] = []
        self._text: GrowingText | None = None
        """The open string, which is a value or a key."""
        self._shows = False
        """Whether the open string is a value that is shown while it grows."""
        self._growing: GrowingText | None = None
        """The open string, if only more of its text can follow."""
        self._token = ""
        self._hex = ""
        self._high = ""
        self._state: Callable[[str, int], int] = self._value
        self._root: Any = NOT_READY
        self._outermost: Frame | None = None
        self._changed = True
        self._snapshot: Any = NOT_READY

    def feed(self, piece: str) -> None:
        """Read more text."""
        text = self._growing
        # The fast path: most pieces are in the middle of a string.
        if text is not None and piece and '"' not in piece and "\\" not in piece:
            self._changed = True
            self._snapshot = None  # It may reference the text, which then could not grow in place.
            text.add(piece)
            return
        at, end = 0, len(piece)
        while at < end:
            at = self._state(piece, at)

    def value(self) -> Any:
        """Return a snapshot that later text does not change; it is the same object until the value changes."""
        if self._changed:
            self._changed = False
            stack = self._stack
            if stack:
                found = self._text.snapshot() if self._shows and self._text is not None else NOT_READY
                for frame in reversed(stack):
                    found = frame.snapshot(found)
                self._snapshot = found
            elif self._shows and self._text is not None:
                self._snapshot = self._text.snapshot()
            else:
                self._snapshot = self._root
        return self._snapshot

    def completed(self) -> tuple[str, ...]:
        """Return the fields of the outermost model that are complete."""
        return getattr(self._outermost, "done", ())

    # One method for each state. Each returns the position where the next state continues.

    def _value(self, piece: str, at: int) -> int:
        at = _BLANK.match(piece, at).end()  # type: ignore[union-attr]
        if at == len(piece):
            return at
        sign = piece[at]
        if sign == '"':
            self._text = self._expected.new_text()
            self._shows = self._expected.grows
            self._growing = self._text if self._shows else None
            self._changed = self._changed or self._shows
            self._state = self._string
        elif sign in "{[" and len(self._stack) < _MAX_DEPTH:
            self._open(self._expected.object_frame() if sign == "{" else self._expected.array_frame())
        elif sign == "]" and self._stack and not self._stack[-1].is_object:
            self._close()
        elif sign in "-0123456789tfnNI":
            self._token = ""
            self._state = self._scalar
            return at
        else:
            return self._stop(piece)
        return at + 1

    def _open(self, frame: Frame) -> None:
        if not self._stack:
            self._outermost = frame
        self._stack.append(frame)
        self._changed = True
        if frame.is_object:
            self._state = self._before_key
        else:
            self._expected = frame.enter("")
            self._state = self._value

    def _string(self, piece: str, at: int) -> int:
        text = self._text
        assert text is not None
        found = _STOP.search(piece, at)
        end = len(piece) if found is None else found.start()
        if end > at:
            if self._high:
                self._flush()
            if self._shows:
                self._changed = True
                self._snapshot = None  # It may reference the text, which then could not grow in place.
            text.add(piece[at:end] if at or found else piece)
        if found is None:
            return end
        self._growing = None
        if piece[end] == "\\":
            self._state = self._escape
        else:
            if self._high:
                self._flush()
            self._text, self._shows = None, False
            self._complete(self._expected.text(text.text))
        return end + 1

    def _escape(self, piece: str, at: int) -> int:
        sign = piece[at]
        if sign == "u":
            self._hex = ""
            self._state = self._unicode
        elif sign in _ESCAPES:
            self._add(_ESCAPES[sign])
        else:
            return self._stop(piece)
        return at + 1

    def _unicode(self, piece: str, at: int) -> int:
        taken = piece[at : at + 4 - len(self._hex)]
        self._hex += taken
        if len(self._hex) == 4:
            if not _HEX.fullmatch(self._hex):
                return self._stop(piece)
            code = int(self._hex, 16)
            if self._high and 0xDC00 <= code < 0xE000:
                pair, self._high = self._high + chr(code), ""
                self._add(pair.encode("utf-16", "surrogatepass").decode("utf-16"))
            elif 0xD800 <= code < 0xDC00:
                if self._high:
                    self._flush()
                self._high = chr(code)  # The other half may be in the next piece.
                self._state = self._in_string()
            else:
                self._add("\ufffd" if 0xDC00 <= code < 0xE000 else chr(code))
        return at + len(taken)

    def _add(self, piece: str) -> None:
        assert self._text is not None
        if self._high:
            self._flush()
        self._text.add(piece)
        self._changed = self._changed or self._shows
        self._growing = self._text if self._shows else None
        self._state = self._in_string()

    def _flush(self) -> None:
        """Replace the first half of a surrogate pair that has no second half."""
        assert self._text is not None
        self._high = ""
        self._text.add("\ufffd")
        self._changed = self._changed or self._shows

    def _in_string(self) -> Callable[[str, int], int]:
        return self._key if self._stack and self._expected is None else self._string

    def _scalar(self, piece: str, at: int) -> int:
        found = _TOKEN_END.search(piece, at)
        end = len(piece) if found is None else found.start()
        self._token += piece[at:end]
        if len(self._token) > _MAX_TOKEN or (found is not None and not self._end_token()):
            return self._stop(piece)
        return end

    def _end_token(self) -> bool:
        token = self._token
        if token in _WORDS:
            self._complete(self._expected.scalar(_WORDS[token], token))
            return True
        number = _NUMBER.fullmatch(token)
        if number is None:
            return False
        try:
            value = float(token) if number[1] or number[2] else int(token)
        except ValueError:  # More digits than Python and Pydantic allow.
            return False
        self._complete(self._expected.scalar(value, token))
        return True

    def finish(self) -> None:
        """Complete a number at the end of the text, because no more text follows."""
        if self._state == self._scalar and not self._stack:
            self._end_token()

    def _before_key(self, piece: str, at: int) -> int:
        at = _BLANK.match(piece, at).end()  # type: ignore[union-attr]
        if at == len(piece):
            return at
        if piece[at] == '"':
            self._text = GrowingText()
            self._expected = None
            self._state = self._key
        elif piece[at] == "}":
            self._close()
        else:
            return self._stop(piece)
        return at + 1

    def _key(self, piece: str, at: int) -> int:
        text = self._text
        assert text is not None
        found = _STOP.search(piece, at)
        end = len(piece) if found is None else found.start()
        if end > at:
            if self._high:
                self._flush()
            text.add(piece[at:end])
        if found is None:
            return end
        if piece[end] == "\\":
            self._state = self._escape
        else:
            if self._high:
                self._flush()
            self._text = None
            frame = self._stack[-1]
            self._expected = frame.enter(text.text)
            self._changed = self._changed or frame.decides
            self._state = self._colon
        return end + 1

    def _colon(self, piece: str, at: int) -> int:
        at = _BLANK.match(piece, at).end()  # type: ignore[union-attr]
        if at == len(piece):
            return at
        if piece[at] != ":":
            return self._stop(piece)
        self._state = self._value
        return at + 1

    def _after(self, piece: str, at: int) -> int:
        at = _BLANK.match(piece, at).end()  # type: ignore[union-attr]
        if at == len(piece):
            return at
        if not self._stack:
            return self._stop(piece)
        frame, sign = self._stack[-1], piece[at]
        if sign == ",":
            if frame.is_object:
                self._state = self._before_key
            else:
                self._expected = frame.enter("")
                self._state = self._value
        elif sign == ("}" if frame.is_object else "]"):
            self._close()
        else:
            return self._stop(piece)
        return at + 1

    def _close(self) -> None:
        self._complete(self._stack.pop().close())

    def _complete(self, value: object) -> None:
        self._changed = True
        if self._stack:
            self._stack[-1].put(value)
        else:
            self._root = value
        self._state = self._after

    def _stop(self, piece: str) -> int:
        self._state = self._ignore
        return len(piece)

    def _ignore(self, piece: str, at: int) -> int:
        return len(piece)


# From a type to its expectation.


@lru_cache(maxsize=512)
def expectation_of(kind: Any) -> Expectation:
    """Return the expectation of a type."""
    return _Compiler().compile(kind)


class _Compiler:
    """Compiles a type and the types in it; a model that refers to itself gets its own expectation."""

    def __init__(self) -> None:
        self.models: dict[Any, ModelExpectation | RootModelExpectation] = {}
        self.config: ConfigDict | None = None

    def compile(self, kind: Any) -> Expectation:
        if kind in (Any, object, JsonValue):
            return ANYTHING
        if kind is str:
            return TextExpectation(str, self.config)
        if isinstance(kind, NewType):
            return self.compile(kind.__supertype__)
        origin, arguments = get_origin(kind) or kind, get_args(kind)
        if origin is typing.Annotated:
            return self._annotated(kind, arguments[0])
        if origin in (Union, types.UnionType):
            return UnionExpectation(kind, self.config, [self.compile(member) for member in arguments])
        if origin in LISTS:
            return ListExpectation(kind, self.config, self.compile(arguments[0]) if arguments else ANYTHING)
        if origin in DICTS:
            name, value = arguments or (str, Any)
            return DictExpectation(
                kind, self.config, self.compile(value), None if name is str else LeafExpectation(name, self.config)
            )
        if is_root_class(kind):
            return self._root(kind)
        if has_fields(kind) and has_readable_hints(kind):
            return self._object(kind, origin)
        return LeafExpectation(kind, self.config)

    def _annotated(self, kind: Any, inner: Any) -> Expectation:
        """Compile an annotated type. Limits and validators apply only to complete values."""
        match self.compile(inner):
            case TextExpectation():
                return TextExpectation(kind, self.config)
            case ListExpectation(item=item):
                return ListExpectation(kind, self.config, item)
            case DictExpectation(item=item, keys=keys):
                return DictExpectation(kind, self.config, item, keys)
            case UnionExpectation(members=members):
                return UnionExpectation(kind, self.config, members)
            case ModelExpectation() | RootModelExpectation() as expectation:
                return expectation
            case _:
                return LeafExpectation(kind, self.config)

    def _root(self, kind: type[RootModel[Any]]) -> Expectation:
        if kind in self.models:
            return self.models[kind]
        expectation = self.models[kind] = RootModelExpectation(kind, None)
        expectation.partial = partial_class(kind)
        outer, self.config = self.config, kind.model_config or None
        expectation.inner = self.compile(_field_type(kind.model_fields["root"], kind))
        expectation.grows = expectation.inner.grows
        self.config = outer
        return expectation

    def _object(self, kind: Any, cls: Any) -> Expectation:
        if kind in self.models:
            return self.models[kind]
        expectation: ModelExpectation
        outer = self.config
        if is_typeddict(cls):
            expectation = typed = TypedDictExpectation(kind, outer)
            typed.required = required_keys(kind)
        else:
            expectation = (
                ModelExpectation(kind, None) if issubclass(cls, BaseModel) else DataclassExpectation(kind, outer)
            )
            expectation.partial = partial_class(kind)
        self.models[kind] = expectation
        # Pydantic reads a class without a configuration by that of the model around it.
        config = cls.model_config if issubclass(cls, BaseModel) else getattr(cls, "__pydantic_config__", outer)
        self.config = config or None
        fields = {name: field for name, field in fields_of(kind).items() if field.init is not False}
        expectations = {name: self.compile(_field_type(field, kind)) for name, field in fields.items()}
        self.config = outer
        expectation.fields = {name: (name, inner) for name, inner in expectations.items()}
        for name, field in fields.items():  # An alias may be the name of another field.
            expectation.fields.update(dict.fromkeys(aliases_of(field), (name, expectations[name])))
        return expectation


def _field_type(field: FieldInfo, model: Any) -> Any:
    annotation = resolve_self(field.annotation, model)
    return typing.Annotated[(annotation, *field.metadata)] if field.metadata else annotation
