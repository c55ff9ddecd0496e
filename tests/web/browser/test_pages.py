"""Tests that open each page once in a browser. The other tests of the pages are part of `make release-check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.web.browser.actions import Open, ask, chosen, status, write_single_page
from tests.web.desk import HOSTILE


def test_submitted_form_starts_run_and_streams_answer(open_page: Open) -> None:
    page = open_page()
    expect(page.get_by_role("heading", name="Desk")).to_be_visible()
    page.get_by_label("question").fill("search acorns")
    page.locator(".segments label", has_text="deep").click()
    page.get_by_label("limit").fill("7")
    page.get_by_role("button", name="Add to tags").click()
    page.get_by_label("tags 1", exact=True).fill("nuts")
    page.locator("label.switch", has_text="place").click()
    page.get_by_label("city").fill("Oslo")
    page.locator(".segments label", has_text="dog").click()
    page.get_by_label("name", exact=True).fill("Rex")
    page.get_by_role("tab", name="JSON").click()
    written = page.get_by_label("Input as JSON").input_value()
    for words in ('"limit": 7', '"nuts"', '"Oslo"', '"Rex"', '"deep"'):
        assert words in written
    page.keyboard.press("Control+Enter")
    expect(status(page)).to_have_text("finished")
    expect(page.locator(".answer")).to_contain_text("search acorns")
    expect(page.locator(".answer")).to_contain_text("0.9")
    expect(page.locator(".answer table")).to_contain_text("https://acorn.invalid")
    expect(page.locator(".call-name")).to_have_text("search")
    page.locator(".call summary").click()
    expect(page.locator(".call-inner")).to_contain_text("found acorns")
    page.locator(".thinking summary").first.click()
    expect(page.locator(".thought").first).to_have_text("Better to look.")
    page.get_by_role("link", name="Timeline").click()
    expect(page.locator(".vrow")).to_have_count(4)


def test_approval_with_edited_arguments_is_applied(open_page: Open) -> None:
    page = open_page()
    ask(page, "refund")
    expect(page.locator(".request")).to_contain_text("Approve the call of refund?")
    expect(page.locator(".call-state")).to_have_text("waiting for approval")
    page.get_by_label("Arguments").fill('{"order": "17", "amount": 5}')
    page.get_by_role("button", name="Approve").click()
    expect(status(page)).to_have_text("finished")
    page.locator(".call summary").click()
    expect(page.locator(".call-inner")).to_contain_text("5.0 paid back for 17")


def test_run_list_can_be_searched_and_opened_by_keyboard(open_page: Open, kept: dict[str, str]) -> None:
    page = open_page("/runs/")
    expect(page.locator(".run-line").first).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Search runs")).to_be_focused()
    page.keyboard.type("branches kept")
    expect(page.locator(".run-line")).to_have_count(1)
    page.get_by_label("Search runs").fill("")
    page.locator(".segments label", has_text="waiting").click()
    expect(page.locator(".run-line", has_text="question kept")).to_be_visible()
    expect(page.locator(".run-line", has_text="broken kept")).to_have_count(0)
    page.locator(".segments label", has_text="all").click()
    page.get_by_label("Search runs").fill("search kept")
    expect(page.locator(".run-line", has_text="branches kept")).to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.locator(".run-line").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".vrow").first).to_be_visible()


@pytest.mark.parametrize("path", ["/runs/hostile", pytest.param("/files/runs/saved", marks=pytest.mark.release)])
def test_hostile_run_is_displayed_as_text_in_each_tab_of_run_page(
    open_page: Open, kept: dict[str, str], path: str
) -> None:
    page = open_page("/runs/")
    page.goto(page.url.partition("/runs/")[0] + path)
    expect(page.locator(".vrow").first).to_be_visible()
    for at in range(page.locator(".vrow").count()):
        page.locator(".vrow").nth(at).click()
        expect(chosen(page)).to_have_attribute("id", page.locator(".vrow").nth(at).get_attribute("id"))
        for tab in page.locator(".detail [role=tab]").all():
            tab.click()
            expect(page.locator(".detail [role=tabpanel]")).not_to_be_empty()
    expect(page.locator(".vrow", has_text="<img").first).to_be_visible()
    assert page.locator("main img[src='x'], main script").count() == 0
    assert "broken" not in page.title()
    assert HOSTILE[:10] in page.locator(".fall").inner_text()


@pytest.mark.usefixtures("two")
def test_two_runs_selected_in_list_are_compared_on_compare_page(open_page: Open) -> None:
    page = open_page("/runs/")
    page.get_by_label("Choose search oaks to compare").check()
    expect(page.locator(".choice")).to_contain_text("Choose another")
    page.get_by_label("Choose search beeches to compare").check()
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page.get_by_role("heading", name="Comparison")).to_be_visible()
    expect(page.locator("tr.is-other", has_text="question")).to_contain_text("search beeches")
    expect(page.locator("tr:not(.is-other)", has_text="limit")).to_have_count(1)
    expect(page.locator("tr.is-other", has_text="answer").first).to_contain_text("search oaks")
    expect(page.locator("tr", has_text="cost")).to_contain_text("$")
    expect(page.locator(".pairs > li.is-other").first).to_be_visible()
    page.locator("a.cell", has_text="search").last.click()
    expect(page.locator(".vrow[aria-selected='true']")).to_be_visible()


@pytest.mark.usefixtures("two")
def test_fork_page_with_edited_tool_result_starts_run_that_can_be_compared(open_page: Open) -> None:
    page = open_page("/runs/oaks%23row-2")
    expect(page.locator(".vrow[aria-selected='true']")).to_have_attribute("id", "row-2")
    page.keyboard.press("f")
    expect(page.get_by_label("continue at")).to_have_value("2")
    expect(page.locator(".note")).to_contain_text("The model may call these tools again, with real effects: `search`")
    expect(page.locator(".note")).to_contain_text("Usage and limits start at zero")
    page.get_by_label("1 search returned").fill("There are no oaks.")
    page.get_by_label("prompt").fill("Answer in verse.")
    page.get_by_role("button", name="Fork").click()
    expect(status(page)).to_have_text("finished")
    page.get_by_role("link", name="Timeline").click()
    expect(page.locator(".chip", has_text="forked before step 2")).to_be_visible()
    expect(page.locator(".vrow.is-kept")).to_have_count(2)
    page.locator(".vrow", has_text="search").nth(1).click()
    expect(page.locator(".detail")).to_contain_text("There are no oaks.")
    page.get_by_role("link", name="compare", exact=True).click()
    expect(page.locator(".pairs > li.is-other", has_text="search").first).to_be_visible()


def test_single_file_page_displays_run_without_network_requests(open_file: Open, tmp_path: Path) -> None:
    page = open_file(write_single_page(tmp_path, "search acorns"))
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
