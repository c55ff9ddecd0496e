"""Tests of the reference: it matches the docstrings and has an example for every public name."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from tests.cases import case
from tests.docs.pages import DOCS, ROOT

REFERENCE = DOCS / "reference"
sys.path.insert(0, str(ROOT / "tools"))
writer: Any = importlib.import_module("write_reference")


def sections(page: Path) -> dict[str, str]:
    text = page.read_text(encoding="utf-8")
    return {part.partition("`")[0]: part for part in re.split(r"^## `", text, flags=re.MULTILINE)[1:]}


def test_reference_page_matches_docstrings() -> None:
    written = writer.pages()
    for file in writer.PAGES.values():
        with case(file):
            assert (REFERENCE / file).read_text(encoding="utf-8") == written[file], "run `make reference`"


def test_public_names_have_example_in_reference() -> None:
    for door in writer.PAGES:
        with case(door):
            told = sections(REFERENCE / writer.PAGES[door])
            for name in importlib.import_module(door).__all__:
                assert name in told, f"`{door}.{name}` is not in the reference"
                assert "```python" in told[name], (
                    f"`{door}.{name}` has no example: in its docstring, or in tools/reference.md"
                )


RUN_ELSEWHERE = {"Handle": "tests/fleet/test_guide.py"}
"""Names whose examples need more than a page can have, and the test that runs such a program."""


def test_examples_of_public_names_run() -> None:
    for door in writer.PAGES:
        with case(door):
            told = sections(REFERENCE / writer.PAGES[door])
            for name in importlib.import_module(door).__all__:
                if name not in RUN_ELSEWHERE:
                    examples = re.findall(r"^```python\n(.*?)^```$", told[name], flags=re.DOTALL | re.MULTILINE)
                    assert any(not each.startswith("# not run: ") for each in examples), (
                        f"no example of `{door}.{name}` runs"
                    )
            for test in RUN_ELSEWHERE.values():
                assert (ROOT / test).exists()


def test_extra_reference_examples_belong_to_existing_public_names() -> None:
    for door, extra in writer.extras().items():
        there = {name.rpartition(":")[2] for name in writer.names_of(door)}
        assert set(extra.names) <= there


def test_reference_directory_contains_only_generated_pages() -> None:
    assert {page.name for page in REFERENCE.glob("*.md")} == {*writer.PAGES.values(), "index.md"}
