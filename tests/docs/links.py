"""The links in Markdown pages and in the built site."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

_CODE = re.compile(r"^( *)```.*?^\1```$|<!--.*?-->|``.+?``|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^( *)```.*?^\1```$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
_NAMED = re.compile(r"\{ *#([\w.-]+)[^}]*\}")


def links_of(page: Path) -> list[str]:
    """Return the links of a page, except those in code."""
    return _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8")))


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page as the site names them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        named = _NAMED.search(heading)
        base = named[1] if named else slug(_NAMED.sub("", heading))
        name, number = base, 0
        while name in found:
            number += 1
            name = f"{base}_{number}"
        found.add(name)
    return found


def slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def broken(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    wrong: list[str] = []
    for link in links_of(page):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            wrong.append(link)
    return wrong


class Page(HTMLParser):
    """A built page: what it loads, what it links to, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev", "edit"):
            self.loads.append(given.get("href", ""))
        self.loads += [given[name] for name in ("src", "poster", "data") if name in given]
        self.loads += [each.split()[0] for each in given.get("srcset", "").split(",") if each.strip()]
