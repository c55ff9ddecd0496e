"""The shell of the page and its files, as answers."""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import Response

from acorn.web.static_files import Page


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
