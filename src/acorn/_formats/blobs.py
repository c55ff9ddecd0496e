"""The data of a picture, a sound or a file as the text that is sent, and how it is saved: once, by its hash.

Such a text is long, is no text for anybody to read, and is the same in many places: in an input, in messages, in
entries. So it is one object that they share, it shows itself in a few words, and in what is saved a short name stands
for it. The data itself goes into a table beside, where the same data is kept once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, ClassVar, NamedTuple

from pydantic_core import PydanticSerializationError, SchemaSerializer, core_schema, to_json

from acorn._formats.json import to_json_data
from acorn.errors import StoreError

_MEDIA = "__media__"
"""The key by which a text that was saved is known to have names in it that stand for data."""
_OF = "of"
_HEAD = re.compile(r"data:[^,;\s]+;base64,")


def _write(data: Blob) -> str:
    found = _finding.get()
    return str.__str__(data) if found is None else found.name_of(data)


class Blob(str):
    """Base64, perhaps with `data:image/png;base64,` before it."""

    __slots__ = ("_sha256",)
    _sha256: str

    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(
        core_schema.any_schema(serialization=core_schema.plain_serializer_function_ser_schema(_write))
    )

    @classmethod
    def of(cls, raw: bytes, head: str = "") -> Blob:
        return cls(head + base64.b64encode(raw).decode())

    @property
    def head(self) -> str:
        """What stands before the base64."""
        return self[: self.find(",", 0, 256) + 1] if self.startswith("data:") else ""

    @property
    def size(self) -> int:
        """How many bytes it stands for."""
        return (len(self) - len(self.head)) // 4 * 3 - self.count("=", -2)

    @property
    def sha256(self) -> str:
        """Of the bytes."""
        try:
            return self._sha256
        except AttributeError:
            self._sha256 = hashlib.sha256(self.raw()).hexdigest()
            return self._sha256

    def raw(self) -> bytes:
        return base64.b64decode(memoryview(self.encode())[len(self.head) :])

    def __repr__(self) -> str:
        kind = self.head.removeprefix("data:").partition(";")[0]
        return f"<{kind or 'data'}, {format_size(self.size)}, {self.sha256[:12]}>"

    def __copy__(self) -> Blob:
        return self

    def __deepcopy__(self, memo: Any) -> Blob:
        return self

    def __reduce__(self) -> Any:
        return Blob, (str.__str__(self),)


def format_size(size: int) -> str:
    """`3 bytes`, `1.2 kB`, `10.0 MB`."""
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


# Taken out, and put back


class BlobCollector:
    """Takes the data out of what is written in its block, and lets names stand for it."""

    __slots__ = ("_mark", "_token", "data")

    def __init__(self) -> None:
        self.data: list[Blob] = []
        self._mark = ""

    def __enter__(self) -> BlobCollector:
        before = _finding.get()
        try:
            self._token: Token[BlobCollector | None] = _finding.set(self)
            return self
        except BaseException:  # Ctrl-C, which may come when it is set already
            _finding.set(before)
            raise

    def __exit__(self, *_: object) -> None:
        _finding.reset(self._token)

    @property
    def mark(self) -> str:
        """How every name begins; nobody can know it before, so that nothing else is taken for one."""
        self._mark = self._mark or f"media-{os.urandom(8).hex()}-"
        return self._mark

    def name_of(self, data: Blob) -> str:
        at = next((at for at, known in enumerate(self.data) if known is data), None)
        if at is None:
            at = len(self.data)
            self.data.append(data)
        return f"{self.mark}{at}"

    def taken_out(self, plain: Any) -> Any:
        """The same for plain data, without writing it."""
        if isinstance(plain, Blob):
            return self.name_of(plain)
        if isinstance(plain, dict):
            return {key: self.taken_out(item) for key, item in plain.items()}
        return [self.taken_out(item) for item in plain] if isinstance(plain, list | tuple) else plain


_finding: ContextVar[BlobCollector | None] = ContextVar("acorn_data", default=None)


def is_saving() -> bool:
    """Whether what is written now is to be read again, so that nothing of it may be left out."""
    return _finding.get() is not None


def to_saved_data(value: Any) -> Any:
    """The value as plain data to save, `to_plain` with all that it holds; data is shared, not copied."""
    if is_saving():
        return to_json_data(value)
    with BlobCollector() as found:
        plain = to_json_data(value)
    return _put_back(plain, found.mark, found.data) if found.data else plain


def describe_blobs(plain: Any) -> Any:
    """Plain data to look at: a few words where the data of a part of a message is."""
    if isinstance(plain, dict):
        is_sound = plain.keys() == {"data", "format"}
        return {key: describe_blobs(Blob(item) if is_sound and key == "data" else item) for key, item in plain.items()}
    if isinstance(plain, list):
        return [describe_blobs(item) for item in plain]
    is_data = isinstance(plain, str) and (isinstance(plain, Blob) or _HEAD.match(plain))
    return _words(plain) if is_data else plain


def _words(text: str) -> str:
    try:
        return repr(Blob(text))
    except ValueError:  # it only looks like base64
        return text


def _put_back(plain: Any, mark: str, data: Sequence[str]) -> Any:
    if isinstance(plain, str):
        return data[int(plain[len(mark) :])] if plain.startswith(mark) else plain
    if isinstance(plain, dict):
        return {key: _put_back(item, mark, data) for key, item in plain.items()}
    return [_put_back(item, mark, data) for item in plain] if isinstance(plain, list) else plain


# Saved texts


class SavedText(NamedTuple):
    """What is saved of something."""

    text: str
    """JSON, without the data that was in it."""
    data: Sequence[Blob]


def save_texts(plain: Sequence[Any]) -> list[SavedText]:
    """Several of them: most hold no data, and then it is looked for once."""
    with BlobCollector() as found:
        texts = [_json_text(each, found) for each in plain]
    if found.data or any(type(each) is dict and _MEDIA in each for each in plain):
        return [save_text(each) for each in plain]
    return [SavedText(text, ()) for text in texts]


def save_text(plain: Any) -> SavedText:
    """Plain data as JSON text, for `Shelf.read`."""
    with BlobCollector() as found:
        text = _json_text(plain, found)
    if not found.data and not (isinstance(plain, dict) and _MEDIA in plain):
        return SavedText(text, ())
    held = [[data.sha256, data.head] for data in found.data]
    return SavedText(f'{{"{_MEDIA}":{json.dumps([found.mark, held])},"{_OF}":{text}}}', found.data)


def _json_text(plain: Any, found: BlobCollector) -> str:
    try:
        return to_json(plain, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # half a surrogate pair, which a model may have written
        return json.dumps(found.taken_out(plain), separators=(",", ":"))


class BlobReader:
    """Reads texts that were saved; data that stands in several of them is one object."""

    def __init__(self, fetch: Callable[[Sequence[str]], Mapping[str, bytes]]) -> None:
        self._fetch = fetch
        self._known: dict[tuple[str, str], Blob] = {}

    def read(self, text: str) -> Any:
        found = json.loads(text)
        if not isinstance(found, dict) or _MEDIA not in found:
            return found
        mark, held = found[_MEDIA]
        return _put_back(found[_OF], mark, list(self._data(held)))

    def _data(self, held: Sequence[Sequence[str]]) -> Iterator[Blob]:
        wanted = [sha256 for sha256, head in held if (sha256, head) not in self._known]
        raw = self._fetch(wanted) if wanted else {}
        for sha256, head in held:
            if (sha256, head) not in self._known:
                if sha256 not in raw:
                    raise StoreError(f"The data of a picture or file is missing (SHA-256 {sha256}).")
                self._known[sha256, head] = Blob.of(raw[sha256], head)
            yield self._known[sha256, head]


def read_without_blobs(text: str) -> Any:
    """What a saved text says, names standing for its data."""
    found = json.loads(text)
    return found[_OF] if isinstance(found, dict) and _MEDIA in found else found


def to_single_text(make: Callable[[], Any]) -> str:
    """What is made, as one JSON text with all data once at its beginning; `from_one_text` reads it."""
    with BlobCollector() as found:
        plain = make()
    if found.data:
        held = [[data.sha256, data.head] for data in found.data]
        inside = {data.sha256: data[len(data.head) :] for data in found.data}
        plain = {_MEDIA: [found.mark, held, inside], _OF: plain}
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which a model may have written
        text = json.dumps(plain, separators=(",", ":"))
    return text


def from_single_text(text: str) -> Any:
    """What `as_one_text` was given."""
    found = json.loads(text)
    if not isinstance(found, dict) or _MEDIA not in found:
        return found
    mark, held, inside = found[_MEDIA]
    return _put_back(found[_OF], mark, [Blob(head + inside[sha256]) for sha256, head in held])
