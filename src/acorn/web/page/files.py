"""The static files of the page, and the export of a run as a single HTML file.

The content types are constants, because some systems map `.js` to `text/plain`, and the page would stay blank.

The exported file needs no server. It contains the scripts of the viewer, each wrapped in a function, and the data that
the viewer would request. Its content security policy allows only its own script and styles.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from itertools import takewhile
from typing import NamedTuple

from acorn._inside import Redactor, describe_blobs, find_secrets, to_json_data, to_json_text
from acorn._inside.run_tree import Row, RunTree, TreeRun
from acorn.journal import ModelRequested
from acorn.types import JsonObject, Message
from acorn.web.page import TEXT_LIMIT
from acorn.web.page.rows import entry_event
from acorn.web.page.run_index import RunView

_CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
SHELL = "index.html"
_SAVED_PAGE = "saved.html"
"""The template of an exported file, with placeholders in braces."""


class StaticFile(NamedTuple):
    """A static file with its content and response headers."""

    body: bytes
    content_type: str
    etag: str

    @property
    def text(self) -> str:
        return self.body.decode()


def read_static_files() -> Mapping[str, StaticFile]:
    """Return a dict that maps the names of all static files to their contents."""
    folder = files("acorn.web") / "static"
    static: dict[str, StaticFile] = {}
    for file in folder.iterdir():
        body = file.read_bytes()
        etag = hashlib.sha256(body).hexdigest()[:16]
        static[file.name] = StaticFile(body, _CONTENT_TYPES[file.name.rpartition(".")[2]], f'"{etag}"')
    return static


_SCRIPTS = ("text", "dom", "value", "requests", "view")
"""The names of the viewer's scripts. A script follows the scripts that it imports."""
_IMPORT = re.compile(r'^import \{ (.*) \} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|let|class) (\w+))", re.MULTILINE)


def single_page(view: RunView) -> bytes:
    """Return an HTML file that displays a run without a server. Secrets are redacted."""
    static, redactor = read_static_files(), Redactor(find_secrets(), limit=TEXT_LIMIT)
    script, style = _script(static), "\n".join(static[name].text for name in ("app.css", "runs.css"))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; form-action 'none'; "
        f"base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    # The text `</script` would end the element, so every `<` in the data is escaped.
    data = to_json_text(_page_data(view, redactor)).replace("<", "\\u003c")
    return static[_SAVED_PAGE].text.format(policy=policy, style=style, data=data, script=script).encode()


def _page_data(view: RunView, redactor: Redactor) -> JsonObject:
    """Return the JSON data that the viewer in the exported file displays instead of requests to a server."""
    tree, data = view.tree, view.page_data(redactor)
    data["head"].pop("root", None)  # The viewer can delete only runs that have a root.
    details = [row_details(tree, row) for row in tree.rows]
    return {
        "view": {**data, "requests": []},
        "details": redactor.data(details),
        "sent": redactor.data(_sent_messages(tree)),
    }


def row_details(tree: RunTree, row: Row) -> JsonObject:
    """Return the details of a row as JSON data: its journal entries, its arguments and the tool results."""
    return {
        "row": row.id,
        "entries": [entry_event(entry) for entry in row.entries],
        "results": to_json_data(tree.results_of(row)),
        "arguments": row.arguments,
    }


def sent_json(messages: list[Message], request: ModelRequested, start: int = 0) -> JsonObject:
    """Return a model request as JSON data, with its messages from the index `start`."""
    return {
        "messages": describe_blobs(messages[start:]),
        "model": request.model,
        "forced": request.forced,
        "count": request.messages,
        "exact": len(messages) == request.messages,
    }


def _sent_messages(tree: RunTree) -> JsonObject:
    """Return the messages that were sent in each model request. The JSON keys are the row ids of the model turns.

    Most requests start with the same messages as the previous request. These messages are omitted, and `keep` is their
    number.
    """
    requests: JsonObject = {}
    last: dict[TreeRun, tuple[int, list[Message]]] = {}
    for row in tree.rows:
        sent = tree.request_of(row)
        if sent is None:
            continue
        messages, request = sent
        before, earlier = last.get(row.run) or (None, list[Message]())
        pairs = zip(earlier, messages, strict=False)
        keep = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        requests[str(row.id)] = {"before": before, "keep": keep, **sent_json(messages, request, keep)}
        last[row.run] = (row.id, messages)
    return requests


def _script(static: Mapping[str, StaticFile]) -> str:
    modules = [_wrap_module(name, static[f"{name}.js"].text) for name in _SCRIPTS]
    start = "in_view.viewPage(document.getElementById('main'), in_dom.savedRun.view.head.id);"
    return '"use strict";\n' + "\n".join([*modules, start])


def _wrap_module(name: str, text: str) -> str:
    """Wrap the source of a JavaScript module in a function that returns the exports of the module."""
    names = ", ".join(match[1] for match in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const { \1 } = in_\2;", text))
    return f"const in_{name} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
