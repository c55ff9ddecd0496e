"""Where the answer stands in a reply: the last outermost element of its name, among prose and code fences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from acorn._xml.tree import refuse_dtd
from acorn.errors import ParseError

_FENCE = "```"
_HALF_TAG = re.compile(r"</[\w.\-]*\s*")


@dataclass(frozen=True, slots=True)
class _Tag:
    begin: int
    end: int
    kind: str
    """`open`, `close` or `empty`."""
    filled: bool
    """A field or JSON comes next; what follows a tag that is only spoken of is words."""


def find(source: str, root: str) -> tuple[int, int]:
    """Where the answer begins, and where it ends at the latest.

    Models speak of `<output>` before, behind and inside their answer. So a tag with fields behind it comes
    before one without, and a closed element before an open one in front of it; an open one behind all
    others is an answer that was cut off.
    """
    tags = list(_tags(source, root))
    found = _outermost(tags, only_filled=True) or _outermost(tags, only_filled=False)
    if found is None:
        raise ParseError(f"The reply holds no <{root}> element.", raw_output=source)
    begin, end = found
    return begin, _cut(source, begin) if end is None else end


def _tags(source: str, root: str) -> Iterator[_Tag]:
    """The tags of that name outside comments and CDATA."""
    name = re.escape(root)
    pattern = re.compile(
        rf"<(?P<slash>/?){name}(?=[\s/>])[^<>]*>(?=(?P<filled>\s*(?!</{name}[\s>])[<{{])?)"
        r"|(?P<comment><!--)|(?P<cdata><!\[CDATA\[)|(?P<dtd>(?i:<!DOCTYPE|<!ENTITY))"
    )
    last_cdata = source.rfind("]]>")
    behind = 0
    for found in pattern.finditer(source):
        begin, end = found.span()
        if begin < behind:
            continue
        if found["comment"]:
            # By the standard it ends at its first double hyphen; a `<!--` in prose is none.
            hyphens = source.find("--", end)
            behind = hyphens + 3 if source.startswith("-->", hyphens) else behind
        elif found["cdata"]:
            behind = source.find("]]>", end) if end <= last_cdata else behind
        elif found["dtd"]:
            refuse_dtd(source)
        else:
            kind = "close" if found["slash"] else "empty" if found[0].endswith("/>") else "open"
            yield _Tag(begin, end, kind, filled=bool(found["filled"]))


def _outermost(tags: Sequence[_Tag], *, only_filled: bool) -> tuple[int, int | None] | None:
    """The last element that lies in no other; its end is None where it was never closed."""
    opened: list[_Tag] = []
    closed: list[tuple[int, int]] = []
    for tag in tags:
        if tag.kind == "open":
            opened.append(tag)
            continue
        if tag.kind == "close" and not opened:
            continue
        first = opened.pop() if tag.kind == "close" else tag
        if only_filled and (tag.kind == "empty" or not first.filled):
            continue
        while closed and closed[-1][0] > first.begin:
            closed.pop()
        closed.append((first.begin, tag.end))
    opened = [tag for tag in opened if tag.filled or not only_filled]
    if opened and (not closed or opened[-1].begin > closed[-1][1]):
        return opened[-1].begin, None
    return closed[-1] if closed else None


def _cut(source: str, begin: int) -> int:
    """Where an answer ends that has no end: before a closing fence, and before half a closing tag."""
    stop = len(source.rstrip())
    stop = len(source[: stop - len(_FENCE)].rstrip()) if source.endswith(_FENCE, begin, stop) else len(source)
    last = source.rfind("<", begin, stop)
    return last if _HALF_TAG.fullmatch(source, last, stop) else stop
