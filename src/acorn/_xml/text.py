"""The alphabet of XML: names, and text that cannot become markup.

Every character a user or model supplies passes through here on its way into a document.
"""

from __future__ import annotations

import re
from functools import lru_cache
from xml.parsers import expat

# What XML 1.0 forbids even as a reference: most control characters, surrogates and two non-characters.
FORBIDDEN = "\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff"
FORBIDDEN_ONE = re.compile(f"[{FORBIDDEN}]")
_MARKS = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}  # `&` comes first: the others bring new ones
_QUOTES = {'"': "&quot;", "'": "&apos;"}
# A parser turns a bare \r into \n, and in an attribute every blank into a space.
_RETURN = {"\r": "&#13;"}
_BLANKS = {**_RETURN, "\n": "&#10;", "\t": "&#9;"}
_IN_TEXT = tuple((_MARKS | _RETURN).items())
_IN_ATTRIBUTE = tuple((_MARKS | _QUOTES | _BLANKS).items())
_ANYWHERE = tuple((_MARKS | _QUOTES).items())
_ASCII_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NO_MARKUP = re.compile(r"[\w.\-]+")


def escape_text(text: str) -> str:
    """The text for an element's body."""
    return _escape(text, _IN_TEXT)


def escape_attribute(text: str) -> str:
    """The text for an attribute in double quotes."""
    return _escape(text, _IN_ATTRIBUTE)


def escape_anywhere(text: str) -> str:
    """The text for a body or an attribute of a reader that leaves blanks as they are."""
    return _escape(text, _ANYWHERE)


def escape_comment(text: str) -> str:
    """The text for a comment, which has no escapes: a double hyphen is pulled apart."""
    text = _permitted(text).replace("\r", "\n")
    while "--" in text:
        text = text.replace("--", "- -")
    return text


def _escape(text: str, references: tuple[tuple[str, str], ...]) -> str:
    for mark, reference in references:
        if mark in text:  # to look is cheaper than to copy
            text = text.replace(mark, reference)
    return _permitted(text)


def _permitted(text: str) -> str:
    # Whatever is printable is permitted, and to ask is cheaper than to search.
    return text if text.isprintable() else FORBIDDEN_ONE.sub("\ufffd", text)


@lru_cache(maxsize=4096)
def is_name(text: str) -> bool:
    """Whether every parser takes this for the name of an element.

    A colon would be read as a namespace. Beyond ASCII the editions of XML differ, so the strictest
    parser at hand is asked.
    """
    if _ASCII_NAME.fullmatch(text):
        return True
    if text.isascii() or not _NO_MARKUP.fullmatch(text):
        return False
    try:
        expat.ParserCreate("utf-8").Parse(f"<{text}/>".encode(), True)
    except (expat.ExpatError, UnicodeEncodeError):
        return False
    return True
