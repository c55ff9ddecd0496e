"""The alphabet of XML: names, and text that cannot become markup.

Every character a user or model supplies passes through here on its way into a document.

A forgiving reader of XML: any text becomes a tree, or an error says which bound it broke.

Models forget closing tags and write bare `&` and `<`. What does not look like a tag is text here; entities
are never expanded but for the five of XML and character numbers; a DTD, too much depth and too much text
are refused. The work is linear in the length. `decode` gives the tree its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn
from xml.parsers import expat

from acorn.errors import ParseError

# What XML 1.0 forbids even as a reference: most control characters, surrogates and two non-characters.
FORBIDDEN_CHARACTERS = "\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff"
FORBIDDEN_CHARACTER = re.compile(f"[{FORBIDDEN_CHARACTERS}]")
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
    return text if text.isprintable() else FORBIDDEN_CHARACTER.sub("\ufffd", text)


@lru_cache(maxsize=4096)
def is_xml_name(text: str) -> bool:
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


MAX_SIZE = 1_000_000
MAX_DEPTH = 64

_OPENING = re.compile(r"<([^\W\d][\w.\-]*)")
_ATTRIBUTE = re.compile(r"""\s+([^\s=<>"'/]+)\s*=\s*("[^"<]*"|'[^'<]*')""")
_OPENING_END = re.compile(r"\s*(/?)>")
_CLOSING = re.compile(r"</([^\W\d][\w.\-]*)\s*>")
_REFERENCE = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#([0-9]{1,7})|#x([0-9a-fA-F]{1,6}));")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_BREAK = re.compile("\r\n?")
# Skipped whole, with what ends them; CDATA is text that needs no escapes.
_CDATA, _COMMENT, _INSTRUCTION = "<![CDATA[", "<!--", "<?"
_ENDS = {_CDATA: "]]>", _COMMENT: "-->", _INSTRUCTION: "?>"}


@dataclass(slots=True)
class Element:
    """One element and where it stands in the source."""

    name: str
    attributes: dict[str, str]
    begin: int
    """Where the opening tag begins."""
    inner: int
    """Where the content begins."""
    outer: int = -1
    """Where the content ends."""
    end: int = -1
    """Behind the closing tag, or -1 while (or if) it was never closed."""
    children: list[Element] = field(default_factory=list["Element"])

    def text(self, source: str) -> str:
        """The content as text; markup inside it stays as it was written."""
        return unescape(source[self.inner : self.outer])


def check_size(source: str) -> None:
    """Refuse what nobody should parse."""
    if len(source) > MAX_SIZE:
        raise ParseError(
            f"The XML is {len(source):,} characters long; at most {MAX_SIZE:,} are read.",
            raw_output=source[:1000],
        )


def raise_too_deep(source: str) -> NoReturn:
    """For elements, and for JSON inside them."""
    raise ParseError(
        f"The XML is nested more than {MAX_DEPTH} levels deep; give a flatter answer, and write `<` in text as `&lt;`.",
        raw_output=source[:1000],
    )


def raise_dtd(source: str) -> NoReturn:
    """A DTD brings entities, and with them files and bombs."""
    raise ParseError("The XML holds a DTD, which is never read; leave it out.", raw_output=source[:1000])


def parse_xml(source: str, start: int = 0, stop: int | None = None) -> Element:
    """The element that begins at or after `start`, with everything inside it up to `stop`."""
    stop = len(source) if stop is None else stop
    top = Element("", {}, start, start)
    open_elements = [top]
    for token in _tokens(source, start, stop):
        if isinstance(token, Element):
            if len(open_elements) > MAX_DEPTH:
                raise_too_deep(source)
            open_elements[-1].children.append(token)
            if token.end < 0:
                open_elements.append(token)
        else:
            _close(open_elements, token)
    for element in open_elements:
        element.outer = stop
    return top


def _close(open_elements: list[Element], token: re.Match[str]) -> None:
    """Close the named element, and with it those inside that were left open; a stray tag is text."""
    name = token[1]
    for level in range(len(open_elements) - 1, 0, -1):
        if open_elements[level].name == name:
            for element in open_elements[level:]:
                element.outer = token.start()
            open_elements[level].end = token.end()
            del open_elements[level:]
            return


def _tokens(source: str, at: int, stop: int) -> Iterator[Element | re.Match[str]]:
    endless: set[str] = set()  # what has no end any more; looking again each time would be quadratic
    while (at := source.find("<", at, stop)) >= 0:
        if closing := _CLOSING.match(source, at, stop):
            yield closing
            at = closing.end()
        elif element := _opening(source, at, stop):
            yield element
            at = element.inner
        else:
            at = _skip(source, at, stop, endless)


def _skip(source: str, at: int, stop: int, endless: set[str]) -> int:
    """Where to go on behind a `<` that opens no element."""
    for mark, end in _ENDS.items():
        if source.startswith(mark, at) and mark not in endless:
            found = source.find(end, at + len(mark), stop)
            if found >= 0:
                return found + len(end)
            endless.add(mark)
    head = source[at : at + 9].upper()
    if head.startswith(("<!DOCTYPE", "<!ENTITY")):
        raise_dtd(source)
    return at + 1


def _opening(source: str, at: int, stop: int) -> Element | None:
    head = _OPENING.match(source, at, stop)
    if head is None:
        return None
    attributes: dict[str, str] = {}
    behind = head.end()
    while attribute := _ATTRIBUTE.match(source, behind, stop):
        attributes[attribute[1]] = unescape(attribute[2][1:-1], marks=False)
        behind = attribute.end()
    tail = _OPENING_END.match(source, behind, stop)
    if tail is None:
        return None
    element = Element(head[1], attributes, at, tail.end())
    if tail[1]:
        element.outer = element.end = tail.end()
    return element


def unescape(text: str, *, marks: bool = True) -> str:
    """References replaced, line breaks as a parser would give them, comments gone, CDATA opened."""
    if "\r" in text:
        text = _BREAK.sub("\n", text)
    if marks and ("<!--" in text or _CDATA in text):
        return _without_marks(text)
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _without_marks(text: str) -> str:
    parts: list[str] = []
    endless: set[str] = set()
    done = at = 0
    while (at := text.find("<", at)) >= 0:
        behind = _skip(text, at, len(text), endless)
        if behind == at + 1 or text.startswith(_INSTRUCTION, at):
            at = behind
            continue
        parts.append(unescape(text[done:at], marks=False))
        if text.startswith(_CDATA, at):
            parts.append(text[at + len(_CDATA) : behind - len(_ENDS[_CDATA])])
        done = at = behind
    parts.append(unescape(text[done:], marks=False))
    return "".join(parts)


def _character(reference: re.Match[str]) -> str:
    if reference[1]:
        return _NAMED[reference[1]]
    code = int(reference[2]) if reference[2] else int(reference[3], 16)
    allowed = code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return chr(code) if allowed else "\ufffd"
