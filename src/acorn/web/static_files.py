"""The files of the page as they are, with content types of our own; they need no server.

What the system says of a `.js` is nothing to go by: on some it is `text/plain`, and then the page stays blank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FILES = (
    "acorn.svg",
    "app.css",
    "app.js",
    "compare.js",
    "dom.js",
    "fleet.js",
    "fork.js",
    "form.js",
    "people.js",
    "play.js",
    "runs.css",
    "runs.js",
    "story.js",
    "text.js",
    "value.js",
    "view.js",
)
SHELL = "index.html"


class Page(NamedTuple):
    """One file."""

    body: bytes
    kind: str
    tag: str


def read_pages() -> Mapping[str, Page]:
    """All files by their names, from a fixed table."""
    folder = files("acorn.web") / "static"
    found: dict[str, Page] = {}
    for name in (*FILES, SHELL):
        body = (folder / name).read_bytes()
        tag = hashlib.sha256(body).hexdigest()[:16]
        found[name] = Page(body, _KINDS[name.rpartition(".")[2]], f'"{tag}"')
    return found
