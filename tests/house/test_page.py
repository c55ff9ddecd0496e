"""Tests of the static files of the page: no external addresses, a small size, and no parsing of text as markup."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from tests.cases import case

import acorn
from acorn.web.page.files import SHELL

STATIC = Path(acorn.__file__).parent / "web" / "static"
NAMES = sorted(path.name for path in STATIC.iterdir())
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|\bstyle=|\bon\w+=\""
)
ADDRESS = re.compile(r"(?:https?:)?//[\w.-]+\.\w+")


def test_web_page_script_contains_no_call_that_parses_text_as_html() -> None:
    for name in NAMES:
        with case(name):
            assert MARKUP.findall((STATIC / name).read_text(encoding="utf-8")) == []


def test_web_page_files_contain_no_external_address() -> None:
    for name in NAMES:
        with case(name):
            found = set(ADDRESS.findall((STATIC / name).read_text(encoding="utf-8")))
            assert found <= {"http://www.w3.org"}  # The namespace of SVG, which is never requested.


def test_only_dom_js_creates_dom_elements() -> None:
    for name in [name for name in NAMES if name.endswith(".js") and name != "dom.js"]:
        with case(name):
            assert "createElement" not in (STATIC / name).read_text(encoding="utf-8")


def loaded(name: str) -> set[str]:
    """Return a file and everything that it imports."""
    found: set[str] = set()
    left = [name]
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += re.findall(
                r'^import .* from "\./(.*)";$', (STATIC / each).read_text(encoding="utf-8"), re.MULTILINE
            )
    return found


def test_web_page_loads_at_most_100_kilobytes() -> None:
    for page in ["play.js", "runs.js", "view.js", "compare.js", "fork.js", "fleet.js"]:
        with case(page):
            shared = {SHELL, "app.css", "acorn.svg"} | ({"runs.css"} if page != "play.js" else set())
            files = [(STATIC / name).read_bytes() for name in shared | loaded("app.js") | loaded(page)]
            assert sum(map(len, files)) <= 100_000
            assert sum(len(gzip.compress(each)) for each in files) <= 30_000
