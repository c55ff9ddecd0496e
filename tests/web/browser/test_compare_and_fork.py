"""Tests in a browser of comparing two runs, forking a run, and displaying a run as Python."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect
from tests.web.browser.actions import Open, assert_good, status
from tests.web.browser.conftest import LOOKS
from tests.web.desk import Desk

from acorn.stores import MemoryStore

pytestmark = pytest.mark.release


@pytest.mark.usefixtures("two")
def test_compare_page_opened_by_keyboard_folds_equal_rows(open_page: Open) -> None:
    page = open_page("/runs/oaks")
    expect(page.locator(".vrow").first).to_be_visible()
    page.keyboard.press("c")
    page.locator(".run-line", has_text="search beeches").click()
    expect(page.locator(".pairs > li").first).to_be_visible()
    page.goto(page.url.replace("b=beeches", "b=oaks"))
    page.get_by_role("button", name="4 equal rows").click()
    expect(page.locator(".pairs > li")).to_have_count(4)


def test_fork_of_step_inside_branch_continues_before_that_branch(open_page: Open, store: MemoryStore) -> None:
    Desk(store=store).using(run_id="forest").run(question="branches")
    page = open_page("/runs/forest")
    page.locator(".vrow.k-branch").first.click()
    page.keyboard.press("j")
    expect(page.locator(".vrow[aria-selected='true']")).to_have_attribute("aria-level", "3")
    page.keyboard.press("f")
    expect(page.get_by_label("continue at")).to_have_value("1")
    expect(page.locator("main")).to_contain_text("A branch cannot be forked alone")
    assert_good(page)
    page.get_by_role("link", name="step 2").click()
    expect(page.get_by_label("continue at")).to_have_value("2")
    page.get_by_label("1 check returned").first.fill("It is false.")
    page.get_by_role("button", name="Fork").click()
    expect(status(page)).to_have_text("finished")


@pytest.mark.usefixtures("two")
def test_fork_that_is_not_possible_displays_message(open_page: Open, told: Any) -> None:
    told.allowed += ["422", "404"]
    page = open_page("/fork?run=oaks%26before=2")
    page.get_by_label("1 call of search").fill("no object")
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("alert")).to_contain_text("must be a JSON object")
    page.goto(page.url.partition("/fork")[0] + "/fork?run=nothing")
    expect(page.locator("main")).to_contain_text("This run does not exist.")
    page.goto(page.url.partition("/fork")[0] + "/compare?a=nothing&b=oaks")
    expect(page.locator("main")).to_contain_text("This run does not exist.")


@pytest.mark.usefixtures("two")
def test_show_as_python_opens_dialog_with_code(open_page: Open) -> None:
    page = open_page("/runs/oaks")
    page.get_by_role("button", name="Show as Python").click()
    expect(page.get_by_role("dialog")).to_contain_text("ScriptedModel")
    assert_good(page)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_compare_and_fork_pages_are_accessible_and_fit_screen(open_page: Open, width: int, dark: bool) -> None:
    page = open_page("/compare?a=evil%26b=oaks", width=width, dark=dark)
    home = page.url.partition("/compare")[0]
    expect(page.locator(".pairs > li").first).to_be_visible()
    assert_good(page)
    page.goto(f"{home}/compare?a=oaks")
    expect(page.locator(".run-line").first).to_be_visible()
    assert_good(page)
    page.goto(f"{home}/fork?run=evil&before=2")
    expect(page.get_by_role("button", name="Fork")).to_be_visible()
    assert_good(page)
    assert page.locator("main img[src='x'], main script").count() == 0
    assert "broken" not in page.title()
