"""Storage of the binary data of images, audio and files: base64 text in requests, deduplicated bytes in saved runs.

The base64 text of one image occurs in the input, in the messages and in the journal entries of a run, and it is long
and unreadable. Therefore the input, the messages and the entries share one `Blob` object, which has a short `repr`. In
the text of a saved run, a placeholder replaces each blob. The store saves the bytes in a separate table, once for each
SHA-256 hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from pydantic import SerializationInfo
from pydantic_core import SchemaSerializer, core_schema, to_json
from typing_extensions import TypeIs

from acorn._formats.json import active_collector, collector_of, map_json, to_json_data
from acorn.errors import StoreError
from acorn.types import JsonObject, JsonValue

_MEDIA = "__media__"
"""The JSON key that marks a saved text with placeholders. Its value lists the blobs of the text."""
_CONTENT = "of"
"""The JSON key, next to `_MEDIA`, whose value is the saved data with placeholders in place of blobs."""
_DATA_URL = re.compile(r"data:[^,;\s]+;base64,")


def _serialize(blob: Blob, info: SerializationInfo) -> str:
    collector = collector_of(info)
    return collector.placeholder(blob) if isinstance(collector, BlobCollector) else str.__str__(blob)


class Blob(str):
    """A string of base64 text that encodes binary data, with an optional head such as `data:image/png;base64,`."""

    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(
        core_schema.any_schema(
            serialization=core_schema.plain_serializer_function_ser_schema(_serialize, info_arg=True)
        )
    )

    @classmethod
    def from_bytes(cls, raw: bytes, head: str = "") -> Blob:
        """Encode bytes as base64, and put `head`, such as `data:image/png;base64,`, before the base64 text."""
        return cls(head + base64.b64encode(raw).decode())

    @property
    def head(self) -> str:
        """The text before the base64 text, such as `data:image/png;base64,`, or "" if there is only base64 text."""
        return self[: self.find(",", 0, 256) + 1] if self.startswith("data:") else ""

    @property
    def size(self) -> int:
        """The number of bytes that the base64 text encodes."""
        return (len(self) - len(self.head)) // 4 * 3 - self.count("=", -2)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 hash of the encoded bytes, in hexadecimal."""
        return hashlib.sha256(self.raw()).hexdigest()

    def raw(self) -> bytes:
        """Decode the base64 text and return the bytes."""
        return base64.b64decode(memoryview(self.encode())[len(self.head) :])

    def __repr__(self) -> str:
        kind = self.head.removeprefix("data:").partition(";")[0]
        return f"<{kind or 'data'}, {format_size(self.size)}, {self.sha256[:12]}>"

    def __deepcopy__(self, memo: object) -> Blob:
        return self


def format_size(size: int) -> str:
    """Format a number of bytes with its unit, such as `3 bytes`, `1.2 kB` or `10.0 MB`."""
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


# Replacing blobs with placeholders, and placeholders with blobs.


class BlobCollector:
    """A serialization context that collects the blobs in serialized values, and replaces them with placeholders.

    The context also means that acorn saves a run. Serializers use this to decide between complete data (saving) and a
    short description (for example, logging).
    """

    def __init__(self) -> None:
        self.blobs: list[Blob] = []
        self._indexes: dict[int, int] = {}
        """Maps the `id` of each blob to its index in `blobs`."""

    @cached_property
    def prefix(self) -> str:
        """The prefix of all placeholders, which is random so that no other text looks like a placeholder."""
        return f"media-{os.urandom(8).hex()}-"

    def placeholder(self, blob: Blob) -> str:
        """Collect a blob, unless it is collected already, and return the placeholder text that replaces it."""
        index = self._indexes.setdefault(id(blob), len(self.blobs))
        if index == len(self.blobs):
            self.blobs.append(blob)
        return f"{self.prefix}{index}"


def to_saved_data(value: object) -> Any:
    """Convert a value to JSON data that contains the `Blob` objects of the value, not copies of their long texts.

    Otherwise, the result is the same as that of `to_json_data`.
    """
    collector = BlobCollector()
    data = to_json_data(value, context=collector)
    return _restore(data, collector.prefix, collector.blobs) if collector.blobs else data


def describe_blobs(data: JsonValue) -> Any:
    """Return a copy of JSON data for display, with a short description in place of each blob."""
    if isinstance(data, dict):
        is_audio = data.keys() == {"data", "format"}
        return {key: describe_blobs(Blob(item) if is_audio and key == "data" else item) for key, item in data.items()}
    if isinstance(data, list):
        return [describe_blobs(item) for item in data]
    if isinstance(data, str) and (isinstance(data, Blob) or _DATA_URL.match(data)):
        try:
            return repr(Blob(data))
        except ValueError:  # The text starts like a data URL, but its content is not valid base64.
            return data
    return data


def _restore(data: JsonValue, prefix: str, blobs: Sequence[str]) -> Any:
    return map_json(data, lambda text: blobs[int(text[len(prefix) :])] if text.startswith(prefix) else text)


# Saved texts whose blobs are stored in a separate table.


def save_text(data: object) -> tuple[str, list[Blob]]:
    """Convert JSON data to a saved text, which `BlobReader.read` converts back to the data.

    Return (JSON text with a placeholder in place of each blob, blobs). The store saves the blobs in a separate table.
    """
    collector = BlobCollector()
    text = _json_text(data, collector)
    return _add_index(text, collector) if collector.blobs or _has_index(data) else text, collector.blobs


def save_texts(values: Iterable[object]) -> tuple[list[str], list[Blob]]:
    """Convert each value to a saved text, and return the texts and the blobs of all of them."""
    texts: list[str] = []
    all_blobs: list[Blob] = []
    for value in values:
        text, blobs = save_text(value)
        texts.append(text)
        all_blobs += blobs
    return texts, all_blobs


def _add_index(text: str, collector: BlobCollector, *contents: object) -> str:
    index = [[blob.sha256, blob.head] for blob in collector.blobs]
    return f'{{"{_MEDIA}":{json.dumps([collector.prefix, index, *contents])},"{_CONTENT}":{text}}}'


def _has_index(data: object) -> TypeIs[JsonObject]:
    return isinstance(data, dict) and _MEDIA in data


def _json_text(data: object, collector: BlobCollector) -> str:
    token = active_collector.set(collector)
    try:
        return to_json(data, inf_nan_mode="constants", context=collector).decode()
    except ValueError:  # A model's response may contain a lone surrogate, which Pydantic rejects.
        plain = map_json(data, lambda text: collector.placeholder(text) if isinstance(text, Blob) else text)
        return json.dumps(plain, separators=(",", ":"))
    finally:
        active_collector.reset(token)


class BlobReader:
    """A parser of saved texts that loads the blobs and creates only one `Blob` object for equal blobs.

    `fetch` receives a list of SHA-256 hashes and returns a dict that maps each hash to the stored bytes.
    """

    def __init__(self, fetch: Callable[[Sequence[str]], Mapping[str, bytes]]) -> None:
        self._fetch = fetch
        self._known: dict[tuple[str, str], Blob] = {}

    def read(self, text: str) -> Any:
        """Parse a saved text and return its JSON data, with the blobs in place of the placeholders."""
        data: JsonValue = json.loads(text)
        if not _has_index(data):
            return data
        prefix, index = data[_MEDIA]
        return _restore(data[_CONTENT], prefix, self._load(index))

    def _load(self, index: Sequence[Sequence[str]]) -> list[Blob]:
        unknown = [(sha256, head) for sha256, head in index if (sha256, head) not in self._known]
        raw: Mapping[str, bytes] = self._fetch([sha256 for sha256, _ in unknown]) if unknown else {}
        for sha256, head in unknown:
            if sha256 not in raw:
                raise StoreError(
                    f"Cannot load an image or a file: the store has no data with the SHA-256 hash `{sha256}`. "
                    f"Restore the data from a backup, or delete the run."
                )
            self._known[sha256, head] = Blob.from_bytes(raw[sha256], head)
        return [self._known[sha256, head] for sha256, head in index]


def read_without_blobs(text: str) -> Any:
    """Parse a saved text and return its JSON data, with placeholders in place of the blobs."""
    data: JsonValue = json.loads(text)
    return data[_CONTENT] if _has_index(data) else data


# Saved texts that contain their blobs.


def to_single_text(data: object) -> str:
    """Convert JSON data to one JSON text that also contains the data of all blobs.

    The text contains the data of equal blobs only once, at its beginning.
    """
    collector = BlobCollector()
    text = _json_text(data, collector)
    contents = {blob.sha256: blob[len(blob.head) :] for blob in collector.blobs}
    return _add_index(text, collector, contents) if contents else text


def from_single_text(text: str) -> Any:
    """Parse a text that `to_single_text` returned, and return the JSON data with its blobs."""
    data: JsonValue = json.loads(text)
    if not _has_index(data):
        return data
    prefix, index, contents = data[_MEDIA]
    return _restore(data[_CONTENT], prefix, [Blob(head + contents[sha256]) for sha256, head in index])
