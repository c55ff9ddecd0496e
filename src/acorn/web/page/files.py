"""The files of the page as they are, with content types of our own; they need no server.

What the system says of a `.js` is nothing to go by: on some it is `text/plain`, and then the page stays blank.

A run and its viewer in one file, to be sent along with a report: it asks nothing of anybody, and needs no server.

The scripts of the page are put into one, each in a function of its own, and what the page would ask the server for
stands beside them as data. The policy of the file lets nothing but this script and these styles count.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from acorn._inside import describe_blobs
from acorn.journal import Message
from acorn.types import JsonObject
from acorn.web.page.rows import Rows
from acorn.web.page.run_index import RunView
from acorn.web.page.wire import PageRedactor, dumped, entry_event

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


_SCRIPTS = ("text", "dom", "value", "people", "view")
"""In the order in which they need each other."""
_IMPORT = re.compile(r'^import \{ (.*) \} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|let|class) (\w+))", re.MULTILINE)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="acorn-base" content="">
<meta name="color-scheme" content="light dark">
<title>acorn</title>
<style>{style}</style>
</head>
<body class="is-file">
<main id="main" tabindex="-1"></main>
<script type="application/json" id="kept">{kept}</script>
<script>{script}</script>
</body>
</html>
"""


def single_page(book: RunView, veil: PageRedactor) -> bytes:
    """The file, veiled like everything that the page shows."""
    files = read_pages()
    script, style = _script(files), "\n".join(_text(files[name]) for name in ("app.css", "runs.css"))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; form-action 'none'; "
        f"base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    # In a script nothing ends a text but `</script` and its like, so no `<` of anybody's may stand there.
    kept = dumped(_kept(book, veil)).decode().replace("<", "\\u003c")
    return _PAGE.format(policy=policy, style=style, kept=kept, script=script).encode()


def _kept(book: RunView, veil: PageRedactor) -> JsonObject:
    """What the page asks for."""
    rows = book.rows
    head = {name: value for name, value in book.plain_head().items() if name != "root"}
    details = [
        {
            "row": row.id,
            "entries": [entry_event(entry) for entry in rows.of(row)],
            "results": rows.results(row) if row.kind != "model" else [],
            "call": None if row.call is None else list(row.call),
        }
        for row in rows.all
    ]
    return {
        "view": {
            "head": veil.plain({**head, "own": False}),
            "rows": [row.plain(veil) for row in rows.all],
            "version": len(rows.entries),
            "requests": [],
        },
        "details": veil.plain(details),
        "sent": veil.plain(_sent(rows)),
    }


def _sent(rows: Rows) -> JsonObject:
    """By row, the messages of a turn: how many stay of the turn before it, and what came to them."""
    found: JsonObject = {}
    last: dict[str, tuple[int, list[Message]]] = {}
    for row in rows.all:
        asked = rows.asked_with(row)
        if asked is None:
            continue
        messages, request = asked
        before, earlier = last.get(row.run_id, (None, []))
        same = next((at for at, (a, b) in enumerate(zip(earlier, messages, strict=False)) if a != b), None)
        keep = min(len(earlier), len(messages)) if same is None else same
        found[str(row.id)] = {
            "before": before,
            "keep": keep,
            "messages": describe_blobs(messages[keep:]),
            "model": request.model,
            "forced": request.forced,
            "count": request.messages,
            "exact": len(messages) == request.messages,
        }
        last[row.run_id] = (row.id, messages)
    return found


def _script(files: Mapping[str, Page]) -> str:
    parts = [_scoped(name, _text(files[f"{name}.js"])) for name in _SCRIPTS]
    start = "in_view.viewPage(document.getElementById('main'), in_dom.kept.view.head.id);"
    return '"use strict";\n' + "\n".join([*parts, start])


def _scoped(name: str, text: str) -> str:
    """A module as a function that gives what it exports."""
    names = ", ".join(found[1] for found in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const { \1 } = in_\2;", text))
    return f"const in_{name} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();"


def _text(page: Page) -> str:
    return page.body.decode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
