"""Tests of the documentation pages: each page runs as written, and new pages are included automatically."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.pages import DOCS, ROOT, blocks_of, pages, run_elsewhere, run_page

RUN_HERE = [page for page in pages() if blocks_of(page) and run_elsewhere(page) is None]


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: str(page.relative_to(DOCS)))
def test_code_blocks_of_docs_page_run_as_written(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, tmp_path, monkeypatch)


def test_docs_page_assigned_to_other_test_is_named_in_that_test_file() -> None:
    for page in pages():
        if (test := run_elsewhere(page)) is not None:
            assert page.name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not run {page.name}"
