"""Tests in a browser of the page that contains a run and its viewer in one file."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.web.browser.actions import Open, assert_good, write_single_page
from tests.web.browser.conftest import LOOKS
from tests.web.desk import HOSTILE

pytestmark = pytest.mark.release


def test_single_file_page_of_fork_displays_no_model_request_for_copied_steps(open_file: Open, tmp_path: Path) -> None:
    page = open_file(write_single_page(tmp_path, "search acorns", before=2))
    page.locator(".vrow", has_text="model").click()
    page.get_by_role("tab", name="Messages sent").click()
    expect(page.locator(".detail [role=tabpanel]")).to_have_text("This row is not a model request.")


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_single_file_page_of_hostile_run_displays_markup_as_text(
    open_file: Open, tmp_path: Path, width: int, dark: bool
) -> None:
    page = open_file(write_single_page(tmp_path, f"hostile </script>{HOSTILE}<!--"), width=width, dark=dark)
    expect(page.locator(".vrow").first).to_be_visible()
    for row in page.locator(".vrow").all()[:4]:
        row.focus()
        row.dispatch_event("click")
        for tab in page.locator(".detail [role=tab]").all():
            tab.dispatch_event("click")
            expect(page.locator(".detail [role=tabpanel]")).not_to_be_empty()
    assert page.locator("img, main script, body > script").count() == 2
    assert "broken" not in page.title()
    assert_good(page)
