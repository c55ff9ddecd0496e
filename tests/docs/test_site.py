"""Tests of the documentation site: no warnings, no broken links, and no external requests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.cases import case
from tests.docs.links import Page, anchors_of, broken
from tests.docs.pages import DOCS, ROOT, pages

READ_ON_GITHUB = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
NOT_IN_NAV = {"decisions"}
"""Folders whose pages are found through others."""


def nav_of(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in [entry] if isinstance(entry, str) else entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from nav_of(value)


def build(home: Path) -> Path:
    """Build the site from a copy, so that nothing is written into the repository, and return its folder."""
    shutil.copytree(DOCS, home / "docs")
    shutil.copy(ROOT / "zensical.toml", home)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    return (home / "site").resolve()


def test_links_of_page_are_not_broken() -> None:
    for page in [*READ_ON_GITHUB, *pages()]:
        with case(page):
            assert broken(page) == []


def test_relative_links_of_site_page_stay_inside_docs_folder() -> None:
    for page in pages():
        outside = [link for link in re.findall(r"\]\(([^)#:]+)", page.read_text(encoding="utf-8")) if ".." in link]
        assert all((page.parent / link).resolve().is_relative_to(DOCS) for link in outside), (page, outside)


def test_pages_are_listed_in_navigation() -> None:
    with (ROOT / "zensical.toml").open("rb") as file:
        listed = list(nav_of(tomllib.load(file)["project"]["nav"]))
    there = {str(page.relative_to(DOCS)) for page in pages() if page.relative_to(DOCS).parts[0] not in NOT_IN_NAV}
    assert len(set(listed)) == len(listed)
    assert set(listed) - {str(page.relative_to(DOCS)) for page in pages()} == set()
    assert there - set(listed) == set(), "these pages are not in `nav` of zensical.toml"


def test_built_pages_have_no_external_resources_and_no_broken_links(tmp_path: Path) -> None:
    site = build(tmp_path)
    # Without the page that a server shows for unknown addresses.
    built = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert built
    for path, page in built.items():
        with case(path):
            check_resources(path, page)
            check_links(path, page, built)
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style
    for source in pages():  # The anchors that the tests compute from Markdown exist in the site.
        assert anchors_of(source) <= built[site / source.relative_to(DOCS).with_suffix(".html")].places, source


def check_resources(path: Path, page: Page) -> None:
    for loaded in page.loads:
        assert not re.match(r"[a-z]+:|//", loaded) or loaded.startswith("data:"), loaded
        assert (path.parent / unquote(loaded.split("?")[0].split("#")[0])).exists(), loaded


def check_links(path: Path, page: Page, built: dict[Path, Page]) -> None:
    for link in page.links:
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / unquote(name)).resolve() if name not in ("", ".") else path
        target = target / "index.html" if target.is_dir() else target
        assert target.exists(), link
        if anchor and target in built:
            assert unquote(anchor) in built[target].places, link
