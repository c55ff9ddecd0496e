"""Tests in a browser of the page that contains a run and its viewer in one file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.waiting import PATIENCE
from tests.web.browser.test_play import assert_good
from tests.web.desk import HOSTILE, Desk

from acorn.stores import MemoryStore
from acorn.web.page.files import single_page
from acorn.web.page.run_index import StoreRunIndex
from acorn.web.redact import PageRedactor

expect.set_options(timeout=PATIENCE * 1000)
SECRET = "sk-" + "Zq7" * 12


def written(tmp_path: Path, question: str) -> Path:
    store = MemoryStore()
    return single(tmp_path, store, Desk(store=store).run(question=question).id)


def single(tmp_path: Path, store: MemoryStore, run_id: str) -> Path:
    view = StoreRunIndex(store).view(run_id)
    assert view is not None
    file = tmp_path / "run.html"
    file.write_bytes(single_page(view, PageRedactor()))
    return file


def opened(chromium: Any, told: Any, file: Path, *, width: int = 1280, dark: bool = False) -> Any:
    context = chromium.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        offline=True,
    )
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    page.on("console", lambda said: told.errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: told.errors.append(str(error)))
    page.on("request", lambda asked: None if asked.url == file.as_uri() else told.elsewhere.append(asked.url))
    page.goto(file.as_uri())
    return page


def test_single_file_page_displays_run_without_network_requests(chromium: Any, told: Any, tmp_path: Path) -> None:
    page = opened(chromium, told, written(tmp_path, "search acorns"))
    expect(page.locator(".vrow")).to_have_count(4)
    page.keyboard.press("j")
    expect(page.locator(".detail")).to_contain_text("Better to look.")
    page.locator(".vrow").last.click()
    page.get_by_role("tab", name="Messages sent").click()
    expect(page.locator(".message")).to_have_count(4)
    expect(page.locator(".message").first).to_contain_text("Answer the question.")
    expect(page.locator(".message").last).to_contain_text("found acorns")
    page.locator(".fall-body").focus()
    page.keyboard.press("/")
    page.keyboard.type("found acorns")
    expect(page.locator(".finder output")).to_have_text("2 rows")
    assert told.wrong == []
    assert told.elsewhere == []
    page.context.close()


def test_single_file_page_of_fork_displays_no_model_request_for_copied_steps(
    chromium: Any, told: Any, tmp_path: Path
) -> None:
    store = MemoryStore()
    run = Desk(store=store).run(question="search acorns")
    fork = Desk(store=store).using(thread=run, before=2).run()
    page = opened(chromium, told, single(tmp_path, store, fork.id))
    page.locator(".vrow", has_text="model").click()
    page.get_by_role("tab", name="Messages sent").click()
    expect(page.locator(".detail [role=tabpanel]")).to_have_text("This row is not a model request.")
    assert told.wrong == []
    page.context.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [320, 1280])
def test_single_file_page_of_hostile_run_displays_markup_as_text(
    chromium: Any, told: Any, tmp_path: Path, width: int, dark: bool
) -> None:
    page = opened(chromium, told, written(tmp_path, f"hostile </script>{HOSTILE}<!--"), width=width, dark=dark)
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
    assert told.wrong == []
    page.context.close()


def test_single_file_page_contains_no_secrets(tmp_path: Path) -> None:
    assert SECRET not in written(tmp_path, f"leak {SECRET}").read_text()


def test_show_html_writes_page_of_saved_file_and_of_stored_run(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    run = Desk(store=str(tmp_path / "runs.db")).run(question="search acorns")
    saved.write_text(run.to_json())
    show = [sys.executable, "-m", "acorn", "show"]
    for source, more in ((str(saved), []), (run.id[:8], ["--store", "runs.db"])):
        done = subprocess.run(
            [*show, source, "--html", "out.html", *more],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "found acorns" in (tmp_path / "out.html").read_text()
        (tmp_path / "out.html").unlink()
    wrong = subprocess.run(
        [*show, "nothing", "--html", "out.html"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "there is no store here" in wrong.stderr
