"""The shell of the page and its files, with content types of our own.

What the system says of a `.js` is nothing to go by: on some it is `text/plain`, and then the page stays blank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

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


def given(page: Page, request: Request) -> Response:
    """A file, or that it has not changed."""
    headers = {"etag": page.tag, "cache-control": "no-cache", "content-type": page.kind}
    if request.headers.get("if-none-match") == page.tag:
        return Response(status_code=304, headers=headers)
    return Response(page.body, headers=headers)


def shell(page: Page, mounted: str) -> Response:
    """The one page, which knows where it is mounted."""
    body = page.body.replace(b"{{base}}", escape(mounted, quote=True).encode())
    return Response(body, headers={"content-type": page.kind, "cache-control": "no-cache"})
