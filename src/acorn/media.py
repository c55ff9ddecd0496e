"""The types `Image`, `Audio` and `File`, for fields of an input and for results of tools.

    agent(question="What is it?", photo=acorn.Image.from_path("cat.png"))

A value contains bytes with a media type, or a URL that the provider loads. acorn does not load URLs. A field also
accepts bytes, a data URL and an http(s) URL, but not a path, because a model or a web form could pass the path of any
file.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import unquote_to_bytes

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, SerializationInfo
from pydantic_core import core_schema

from acorn._formats.blobs import Blob, BlobCollector, format_size
from acorn._formats.json import ContentPart, collector_of, part_schema
from acorn._formats.schema.shape import MEDIA_FORMAT
from acorn.errors import UnknownMediaTypeError
from acorn.types import JsonObject, is_mapping

_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_WEB_URL = re.compile(r"https?://[^\s\x00-\x1f/?#:][^\s\x00-\x1f]*", re.IGNORECASE)
_SIGNATURES: dict[str, bytes | tuple[bytes, ...]] = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "application/pdf": b"%PDF-",
    "audio/mpeg": (b"ID3", b"\xff\xfb", b"\xff\xf3"),
    "audio/flac": b"fLaC",
    "audio/ogg": b"OggS",
}
"""The bytes with which a file of a media type begins."""
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_SUFFIXES = {
    ".webp": "image/webp",
    ".wav": "audio/wav",
    ".m4a": "audio/mp4",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".md": "text/markdown",
    ".csv": "text/csv",
}
"""The media types of common file extensions that `mimetypes` does not know, or not the same on all systems."""
_AUDIO_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav"}
_FIELDS = ("data", "url", "media_type", "name")
_KEYS = {*_FIELDS, "kind", "sha256", "bytes"}
_BYTES: tuple[type[Any], ...] = (bytes, bytearray, memoryview)


class Media(ContentPart):
    """The base class of `Image`, `Audio` and `File`: bytes with a media type, or a URL."""

    __slots__ = ("_data", "_media_type", "_name", "_url")

    _data: Blob | None
    _url: str | None
    _media_type: str | None
    _name: str | None

    kind: ClassVar[str]
    """The kind of media: `image`, `audio` or `file`."""
    _noun: ClassVar[str]
    """The noun for error messages, such as `an image`."""
    _family: ClassVar[str] = ""
    """The prefix of all media types that the class accepts, such as `image/`."""
    _head: ClassVar[str] = "data:{};base64,"
    """The text before the base64 data in a request, with `{}` in place of the media type."""

    def __init__(self, *_: object, **__: object) -> None:
        name = type(self).__name__
        raise TypeError(f"Create `acorn.{name}` with `{name}.from_path`, `{name}.from_bytes` or `{name}.from_url`.")

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], media_type: str | None = None, name: str | None = None) -> Self:
        """Create an instance from the content of a file.

        If you do not pass `media_type`, the first bytes or the name of the file determine it.
        """
        raw, name = Path(path).read_bytes(), name or Path(path).name
        suffix = Path(path).suffix.lower()
        by_name = _SUFFIXES.get(suffix) or mimetypes.guess_type(f"x{suffix}")[0]
        return cls._from_data(raw, media_type, name, f"`{os.fspath(path)}`", by_name)

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str | None = None, name: str | None = None) -> Self:
        """Create an instance from bytes. If you do not pass `media_type`, the first bytes determine it."""
        if not isinstance(data, _BYTES):  # `bytes(5)` would return five zero bytes.
            raise cls._wrong_argument("bytes", data)
        return cls._from_data(bytes(data), media_type, name, "the data")

    @classmethod
    def from_url(cls, url: str, media_type: str | None = None, name: str | None = None) -> Self:
        """Create an instance from a data URL, or from an http(s) URL. The provider loads the http(s) URL, not acorn."""
        if not isinstance(url, str):
            raise cls._wrong_argument("url", url)
        if url[:5].lower() == "data:":
            url_type, raw = _parse_data_url(url)
            return cls._from_data(raw, media_type or url_type, name, "the data URL")
        if not _WEB_URL.fullmatch(url):
            raise ValueError(f"expected an http(s) URL or a data URL, got {_shorten_url(url)}")
        checked = None if media_type is None else cls._check_type(media_type, "the URL")
        return cls._create(None, url, checked, name)

    @classmethod
    def _from_data(
        cls, raw: bytes, media_type: str | None, name: str | None, where: str, type_by_name: str | None = None
    ) -> Self:
        if not raw:
            raise ValueError(f"{where} is empty")
        found = [kind for kind in (_signature_type(raw), type_by_name) if kind is not None]
        if not media_type and not found:
            hint = f"Set `media_type`, such as `{cls._example()}`"
            raise UnknownMediaTypeError(f"the type of {where} is unknown", hint)
        media_type = media_type or next((kind for kind in found if kind.startswith(cls._family)), found[0])
        media_type = cls._check_type(media_type, where)
        return cls._create(Blob.from_bytes(raw, cls._head.format(media_type)), None, media_type, name)

    @classmethod
    def _create(cls, data: Blob | None, url: str | None, media_type: str | None, name: str | None) -> Self:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"the name of {cls._noun} must be a string, got a `{type(name).__name__}`")
        media = cls.__new__(cls)
        for field, value in (("_data", data), ("_url", url), ("_media_type", media_type), ("_name", name)):
            object.__setattr__(media, field, value)
        return media

    @classmethod
    def _check_type(cls, media_type: Any, where: str) -> str:
        # The header of an HTTP response may contain `Text/Plain; charset=utf-8`.
        name = media_type.partition(";")[0].strip().lower() if isinstance(media_type, str) else ""
        if not _TYPE.fullmatch(name):
            raise ValueError(f"the media type of {where} must be like `{cls._example()}`, got {media_type!r}")
        if not name.startswith(cls._family):
            raise ValueError(f"{where} is {name}, but must be {cls._noun}")
        return name

    @classmethod
    def _wrong_argument(cls, source: str, value: object) -> TypeError:
        name = cls.__name__
        methods = "Pass bytes to `from_bytes`, an http(s) URL or a data URL to `from_url`, or a path to `from_path`."
        return TypeError(f"`{name}.from_{source}` got a `{type(value).__name__}`. {methods}")

    @classmethod
    def _example(cls) -> str:
        return {"image/": "image/png", "audio/": "audio/wav"}.get(cls._family, "application/pdf")

    # Attributes

    @property
    def data(self) -> bytes | None:
        """The bytes, or None if the instance was created from an http(s) URL."""
        return None if self._data is None else self._data.raw()

    @property
    def url(self) -> str | None:
        """The http(s) URL, or None if the instance contains bytes."""
        return self._url

    @property
    def media_type(self) -> str | None:
        """The media type, such as `image/png`, or None if it is unknown because the instance contains a URL."""
        return self._media_type

    @property
    def name(self) -> str | None:
        """The name of the file, or None if the name is unknown."""
        return self._name

    @property
    def size(self) -> int:
        """The number of bytes, or 0 for a URL."""
        return 0 if self._data is None else self._data.size

    def __repr__(self) -> str:
        source = _shorten_url(self._url) if self._url is not None else f"{self._media_type}, {format_size(self.size)}"
        name = "" if self._name is None else f", {self._name!r}"
        return f"{type(self).__name__}({source}{name})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"`{type(self).__name__}` cannot be changed. Create another object.")

    def _values(self) -> tuple[Any, ...]:
        return (self._data, self._url, self._media_type, self._name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Media) and type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), *self._values()))

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        return self._create, self._values()

    # In messages

    def __acorn_label__(self) -> dict[str, str]:
        label = {"type": self._media_type or self.kind, "name": self._name}
        return {key: value for key, value in label.items() if value is not None}

    def __acorn_part__(self) -> JsonObject:
        return {"type": "image_url", "image_url": {"url": self._data or self._url}}

    # In schemas

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        serialization = core_schema.plain_serializer_function_ser_schema(cls._to_json, info_arg=True, when_used="json")
        return part_schema(
            cls, core_schema.no_info_plain_validator_function(cls._validate, serialization=serialization)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> JsonObject:
        return {"type": "string", "format": f"{MEDIA_FORMAT}{cls.kind}"}

    def _to_json(self, info: SerializationInfo) -> JsonObject:
        """Return the instance as JSON data.

        The JSON data contains the bytes only while acorn saves a run. Otherwise, for example in a log, it contains the
        hash and the size of the bytes.
        """
        content: JsonObject = {"url": self._url} if self._data is None else {}
        if self._data is not None and isinstance(collector_of(info), BlobCollector):
            content = {"data": self._data}
        elif self._data is not None:
            content = {"sha256": self._data.sha256, "bytes": self.size}
        description = {"media_type": self._media_type, "name": self._name}
        return {"kind": self.kind} | content | {key: value for key, value in description.items() if value is not None}

    @classmethod
    def _validate(cls, value: Any) -> Self:
        """Convert the value that a user passed for a field to an instance of this class, or raise `ValueError`."""
        if isinstance(value, cls):
            return value
        if isinstance(value, _BYTES):
            return cls.from_bytes(bytes(value))
        if isinstance(value, str) and re.match(r"(?i)(data:|https?://)", value):
            return cls.from_url(value)
        if is_mapping(value) and value.keys() <= _KEYS and value.get("kind", cls.kind) == cls.kind:
            return cls._from_saved(value)
        hint = (
            f". For a file, use `acorn.{cls.__name__}.from_path(...)`" if isinstance(value, str | os.PathLike) else ""
        )
        raise ValueError(f"expected {cls._noun}: `acorn.{cls.__name__}`, bytes, a data URL or an http(s) URL{hint}")

    @classmethod
    def _from_saved(cls, saved: Mapping[str, Any]) -> Self:
        data, url, media_type, name = map(saved.get, _FIELDS)
        if not all(isinstance(value, str | None) for value in (data, url, media_type, name)):
            raise ValueError(f"the fields of {cls._noun} must be strings: {', '.join(_FIELDS)}")
        if isinstance(data, Blob) and isinstance(media_type, str) and data.head == cls._head.format(media_type):
            return cls._create(data, None, cls._check_type(media_type, "the data"), name)
        if isinstance(data, str) and data[:5].lower() != "data:":
            return cls.from_bytes(_decode_base64(data), media_type, name)
        if (source := data or url) is not None:
            return cls.from_url(source, media_type, name)
        raise ValueError("the data is missing: the value has only its hash and size")


class Image(Media):
    """An image, such as a PNG or JPEG file."""

    __slots__ = ()
    kind = "image"
    _noun = "an image"
    _family = "image/"


class Audio(Media):
    """An audio recording, such as a WAV or MP3 file."""

    __slots__ = ()
    kind = "audio"
    _noun = "audio"
    _family = "audio/"
    _head = ""

    def __acorn_part__(self) -> JsonObject:
        if self._data is None:
            return {"type": "input_audio", "input_audio": {"url": self._url}}
        subtype = (self._media_type or "").removeprefix(self._family)
        return {
            "type": "input_audio",
            "input_audio": {"data": self._data, "format": _AUDIO_FORMATS.get(subtype, subtype)},
        }


class File(Media):
    """A document, such as a PDF file."""

    __slots__ = ()
    kind = "file"
    _noun = "a file"

    def __acorn_part__(self) -> JsonObject:
        if self._data is None:
            content: JsonObject = {"file_url": self._url}
        else:
            # OpenAI rejects a file without a name.
            ending = mimetypes.guess_extension(self._media_type or "") or ""
            content = {"file_data": self._data, "filename": self._name or f"file{ending}"}
        return {"type": "file", "file": content}


def _signature_type(raw: bytes) -> str | None:
    """Return the media type that the first bytes of the data indicate, or None if they are not known."""
    if raw[:4] == b"RIFF":
        return _RIFF.get(raw[8:12])
    return next((media_type for media_type, start in _SIGNATURES.items() if raw.startswith(start)), None)


def _parse_data_url(url: str) -> tuple[str, bytes]:
    head, comma, body = url[5:].partition(",")
    media_type, *more = head.split(";")
    if not comma:
        raise ValueError("the data URL has no data. Its form is `data:TYPE;base64,DATA`")
    raw = _decode_base64(body) if more and more[-1].lower() == "base64" else unquote_to_bytes(body)
    return media_type.strip().lower() or "text/plain", raw


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)  # The text may end with a newline.
    except (binascii.Error, ValueError) as error:
        raise ValueError("the data is not valid base64") from error


def _shorten_url(url: str) -> str:
    return repr(url if len(url) <= 80 else url[:79] + "…")
