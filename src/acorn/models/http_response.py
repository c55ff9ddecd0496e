"""The standard library's response, but for its head, which is read here.

The library reads it with its parser for mail, which takes as long as all the rest of a small answer.
"""

from __future__ import annotations

from http.client import HTTPException, HTTPResponse, LineTooLong, UnknownProtocol
from typing import Any, cast

_LONGEST = 65536
_MOST = 100


class Response(HTTPResponse):
    """An answer whose headers are a dict, their names in small letters; of several with one name the first counts."""

    def begin(self) -> None:
        library = cast(Any, self)
        status = 0
        while status < 200:  # some say one thing or another on the way
            version, status, reason = library._read_status()
            if not version.startswith(("HTTP/1.", "HTTP/0.9")):
                raise UnknownProtocol(version)
            found = read_headers(self.fp)
        self.status = library.code = status
        self.reason = reason.strip()
        self.version = 10 if version in ("HTTP/1.0", "HTTP/0.9") else 11
        library.headers = library.msg = found
        library.chunked = found.get("transfer-encoding", "").lower() == "chunked"
        library.chunk_left = None
        self.length = None if library.chunked else _length(found.get("content-length", ""))
        if status in (204, 304):
            self.length = 0
        has_end = library.chunked or self.length is not None
        library.will_close = library._check_close() or not has_end


def read_headers(file: Any) -> dict[str, str]:
    """The lines up to the empty one."""
    found: dict[str, str] = {}
    name = ""
    for _ in range(_MOST + 1):
        line: bytes = file.readline(_LONGEST + 1)
        if len(line) > _LONGEST:
            raise LineTooLong("header line")
        if line in (b"\r\n", b"\n", b""):
            return found
        text = line.decode("iso-8859-1")
        if text[0] in " \t":  # more of the one before
            if name in found:
                found[name] += f" {text.strip()}"
            continue
        name, colon, value = text.partition(":")
        name = name.lower()
        if colon and name not in found:
            found[name] = value.strip()
        else:
            name = ""
    raise HTTPException(f"got more than {_MOST} headers")


def _length(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
