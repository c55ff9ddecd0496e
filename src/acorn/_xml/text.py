"""The alphabet of XML: names, and text that cannot become markup.

Every character a user or model supplies passes through here on its way into a document.
"""

from __future__ import annotations

import re
from functools import lru_cache
from xml.parsers import expat

# What XML 1.0 forbids even as a reference: most control characters, surrogates and two non-characters.
_FORBIDDEN = "\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff"
_IN_TEXT = re.compile(f"[\r{_FORBIDDEN}]")
_IN_ATTRIBUTE = re.compile(f"[&<>\"'\t\n\r{_FORBIDDEN}]")
_IN_COMMENT = re.compile(f"-(?=-)|\r|[{_FORBIDDEN}]")
_REFERENCES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "'": "&apos;",
    # A parser turns a bare \r into \n, and in an attribute every blank into a space.
    "\r": "&#13;",
    "\n": "&#10;",
    "\t": "&#9;",
}
_ASCII_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NO_MARKUP = re.compile(r"[\w.\-]+")


def escape_text(text: str) -> str:
    """The text for an element's body."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Whatever is printable is allowed, so that the pattern need not look at most texts.
    return text if text.isprintable() else _IN_TEXT.sub(_refer, text)


def escape_attribute(text: str) -> str:
    """The text for an attribute in double quotes."""
    return _IN_ATTRIBUTE.sub(_refer, text) if _IN_ATTRIBUTE.search(text) else text


def escape_comment(text: str) -> str:
    """The text for a comment, which has no escapes: a double hyphen is pulled apart."""
    return _IN_COMMENT.sub(lambda found: {"-": "- ", "\r": "\n"}.get(found[0], "\ufffd"), text)


def _refer(found: re.Match[str]) -> str:
    return _REFERENCES.get(found[0], "\ufffd")


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
