"""Actions and checks that the tests in a browser share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import expect
from tests.waiting import PATIENCE
from tests.web.desk import Desk

from acorn.stores import MemoryStore
from acorn.web.page.files import single_page
from acorn.web.page.run_index import StoreRunIndex

Open = Callable[..., Any]
expect.set_options(timeout=PATIENCE * 1000)


def ask(page: Any, question: str) -> None:
    page.get_by_label("question").fill(question)
    page.get_by_role("button", name="Run", exact=True).click()


def status(page: Any) -> Any:
    return page.locator(".run-head .status")


def chosen(page: Any) -> Any:
    return page.locator(".vrow[aria-selected='true']")


def assert_good(page: Any) -> None:
    """Check that axe finds no violation and nothing is wider than the page."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    wide = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide[0] <= wide[1]


def write_single_page(tmp_path: Path, question: str, *, before: int | None = None) -> Path:
    """Write the page of a new run to one file, or the page of its fork before a step."""
    store = MemoryStore()
    run = Desk(store=store).run(question=question)
    if before is not None:
        run = Desk(store=store).using(thread=run, before=before).run()
    view = StoreRunIndex(store).view(run.id)
    assert view is not None
    file = tmp_path / "run.html"
    file.write_bytes(single_page(view))
    return file
