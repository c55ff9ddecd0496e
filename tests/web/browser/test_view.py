"""Tests in a browser of the list of runs and of the run viewer."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.waiting import PATIENCE
from tests.web.browser.actions import Open, assert_good, chosen
from tests.web.browser.conftest import LOOKS, served
from tests.web.desk import GATES, KEY, Desk

import acorn.web
from acorn.stores import MemoryStore

pytestmark = pytest.mark.release


class SlowStore(MemoryStore):
    """A store whose list takes longer than the page waits before it asks again."""

    def list(self, **wanted: Any) -> Any:
        time.sleep(2.5)
        return super().list(**wanted)


def test_run_list_is_displayed_although_store_is_slow(open_page: Open) -> None:
    store = SlowStore()
    Desk(store=store).run(question="search slowly")
    with served(acorn.web.app(store=store, key=KEY)) as home:
        page = open_page("/runs/", at=home)
        expect(page.locator(".run-line")).to_contain_text("search slowly")


def test_number_of_full_text_search_results_is_announced(open_page: Open, kept: dict[str, str]) -> None:
    page = open_page("/runs/?q=no%20such%20thing%20at%20all")
    expect(page.get_by_role("status")).to_contain_text("0 of the ")
    page.get_by_label("Search runs").fill("found KEPT")  # The result of a tool.
    expect(page.locator(".run-line", has_text="search kept")).to_be_visible()
    expect(page.locator(".run-line", has_text="branches kept")).to_have_count(0)
    expect(page.get_by_role("status")).to_contain_text("contain “found KEPT” in inputs, messages, calls or results")
    assert_good(page)


def test_single_turn_run_without_answer_is_listed_as_not_finished(open_page: Open, store: MemoryStore) -> None:
    Desk(store=store, max_steps=None).using(run_id="undone").run(question="search undone")
    page = open_page("/runs/?q=search%20undone")
    expect(page.locator(".run-line .status")).to_have_text("not finished")
    page.locator(".run-line").click()
    expect(page.locator(".view-head .status")).to_have_text("not finished")


def test_rows_are_navigated_by_keyboard(open_page: Open, kept: dict[str, str]) -> None:
    page = open_page("/runs/search")
    expect(page.locator(".vrow")).to_have_count(4)
    expect(page.locator(".detail")).to_contain_text("Input")
    page.keyboard.press("j")
    expect(chosen(page)).to_have_attribute("id", "row-1")
    expect(page.locator(".detail")).to_contain_text("Better to look.")
    page.get_by_role("tab", name="Messages sent").click()
    expect(page.locator(".message")).to_have_count(2)
    expect(page.locator(".message").first).to_contain_text("Answer the question.")
    page.get_by_role("tab", name="Raw").click()
    expect(page.locator(".detail pre.json")).to_contain_text('"ModelResponded"')
    page.locator(".fall-body").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".vrow")).to_have_count(3)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".vrow")).to_have_count(4)
    page.keyboard.press("ArrowDown")
    expect(page.locator(".detail h2")).to_have_text("search")
    page.keyboard.press("z")
    expect(page.locator(".strip-window")).to_be_visible()
    page.keyboard.press("0")
    expect(page.locator(".strip-window")).to_be_hidden()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next error")
    page.keyboard.press("Escape")


def test_link_to_row_selects_that_row_of_run(open_page: Open, kept: dict[str, str]) -> None:
    page = open_page("/runs/branches%23row-3")
    expect(chosen(page)).to_have_attribute("id", "row-3")
    expect(page.locator(".detail h2")).to_have_text("check")
    page.locator(".vrow").nth(1).click()
    expect(chosen(page)).to_have_attribute("id", "row-1")
    assert page.url.endswith("#row-1")


def test_error_key_selects_next_failed_row(open_page: Open, kept: dict[str, str]) -> None:
    page = open_page("/runs/broken")
    expect(page.locator(".vrow").first).to_be_visible()
    page.keyboard.press("e")
    expect(page.locator(".detail h2")).to_have_text("broken")
    expect(page.locator(".detail")).to_contain_text("ValueError: kept")


def test_row_selected_by_keyboard_is_displayed_in_detail_panel(open_page: Open, kept: dict[str, str]) -> None:
    page = open_page("/runs/many")
    expect(page.locator(".vrow").first).to_be_visible()
    for _ in range(30):
        page.keyboard.press("j")
    expect(chosen(page)).to_have_attribute("id", "row-30")
    expect(page.locator(".detail pre").first).to_contain_text("item 28")


def test_page_of_long_run_renders_only_visible_rows(open_page: Open, kept: dict[str, str]) -> None:
    page = open_page("/runs/many")
    expect(page.locator(".finder output")).to_have_text("503 rows")
    assert page.locator(".vrow").count() < 100
    page.keyboard.press("/")
    page.keyboard.type("found item 487")
    expect(page.locator(".finder output")).to_have_text("2 rows")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator(".vrow.is-hit[aria-selected='true']")).to_contain_text("item 487")
    expect(page.locator(".detail")).to_contain_text("found item 487")


def test_timeline_is_zoomed_by_dragging(open_page: Open, kept: dict[str, str]) -> None:
    page = open_page("/runs/many")
    expect(page.locator(".vrow").first).to_be_visible()
    box = page.locator(".strip").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 20, steps=4)
    page.mouse.up()
    expect(page.locator(".strip-window")).to_be_visible()
    page.locator(".strip").dblclick()
    expect(page.locator(".strip-window")).to_be_hidden()


def test_run_page_displays_new_rows_of_running_run(open_page: Open, store: MemoryStore) -> None:
    driven = threading.Thread(
        target=lambda: Desk(store=store).using(run_id="elsewhere").run(question="hold elsewhere"), daemon=True
    )
    driven.start()
    page = open_page("/runs/")
    page.locator(".run-line", has_text="hold elsewhere").click()
    expect(page.locator(".status").first).to_have_text("running")
    expect(page.locator(".vrow", has_text="hold").first).to_be_visible()
    expect(page.locator(".vrow.k-answer")).to_have_count(0)
    GATES["elsewhere"].set()
    expect(page.locator(".vrow.k-answer")).to_have_count(1)
    expect(page.locator(".status").first).to_have_text("finished")
    driven.join(PATIENCE)


def test_paused_run_is_answered_on_run_page(open_page: Open, store: MemoryStore) -> None:
    Desk(store=store).using(run_id="asking").run(question="question")
    page = open_page("/runs/asking")
    page.get_by_role("button", name="red").click()
    expect(page.locator(".status").first).to_have_text("finished")
    expect(page.locator(".vrow.k-person")).to_contain_text("red")


def test_run_that_pauses_while_displayed_is_answered_on_run_page(open_page: Open, store: MemoryStore) -> None:
    page = open_page()
    page.get_by_label("question").fill("held seen")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".call-name").first).to_be_visible()
    page.goto(page.url.replace("?run=", "runs/"))
    expect(page.locator(".view-head .status")).to_have_text("running")
    GATES["seen"].set()
    expect(page.locator(".view-head .status")).to_have_text("waiting for input")
    page.get_by_label("Your answer").fill("gre")  # Typed text stays, whatever else arrives about the run.
    page.get_by_label("Your answer").press_sequentially("en")
    expect(page.get_by_label("Your answer")).to_have_value("green")
    page.get_by_role("button", name="Answer", exact=True).click()
    expect(page.locator(".view-head .status")).to_have_text("finished")
    expect(page.locator(".request")).to_be_hidden()


def test_request_answered_by_other_user_disappears_from_run_page(open_page: Open, store: MemoryStore) -> None:
    run = Desk(store=store).run(question="question")
    page = open_page(f"/runs/{run.id}")
    expect(page.locator(".request")).to_contain_text("Which one?")
    Desk(store=store).resume(run.id, answer="blue")
    expect(page.locator(".view-head .status")).to_have_text("finished")
    expect(page.locator(".request")).to_be_hidden()


def test_run_page_displays_progress_of_resumed_run(open_page: Open, store: MemoryStore) -> None:
    page = open_page()
    page.get_by_label("question").fill("hold on")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".call-name")).to_have_text("hold")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("link", name="Timeline").click()
    GATES["on"].set()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".view-head .status")).to_have_text("finished")
    expect(page.locator(".vrow").last).to_contain_text("answer")


def test_stopped_run_is_listed_as_stopped_without_error(open_page: Open, store: MemoryStore) -> None:
    page = open_page()
    page.get_by_label("question").fill("sleep well")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".call-name")).to_have_text("sleep")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".run-head .status")).to_have_text("stopped")
    page.get_by_role("link", name="Runs", exact=True).click()
    line = page.locator(".run-line", has_text="sleep well")
    expect(line).to_contain_text("stopped")
    expect(line).not_to_contain_text("CancelledError")


def test_tab_names_are_on_one_line_on_narrow_screen(open_page: Open, kept: dict[str, str]) -> None:
    page = open_page(f"/runs/{kept['search']}", width=320)
    page.locator(".vrow", has_text="model").first.click()
    expect(page.get_by_role("tab", name="Messages sent")).to_be_visible()
    assert {tab.bounding_box()["height"] for tab in page.get_by_role("tab").all()} == {
        page.get_by_role("tab", name="Raw").bounding_box()["height"]
    }
    assert page.get_by_role("tab", name="Raw").bounding_box()["height"] < 50


def test_run_is_deleted_after_confirmation(open_page: Open, store: MemoryStore) -> None:
    Desk(store=store).using(run_id="goner").run(question="search goner")
    page = open_page("/runs/goner")
    page.get_by_role("button", name="Delete this run").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    expect(page.locator(".run-line", has_text="search goner")).to_have_count(0)


def test_page_of_missing_run_displays_message(open_page: Open, told: Any) -> None:
    told.allowed.append("404")
    page = open_page("/runs/nothing")
    expect(page.locator("main")).to_contain_text("This run does not exist.")


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_run_pages_are_accessible_and_fit_screen_width(
    open_page: Open, kept: dict[str, str], width: int, dark: bool
) -> None:
    page = open_page("/runs/", width=width, dark=dark)
    home = page.url.partition("/runs/")[0]
    expect(page.locator(".run-line").first).to_be_visible()
    assert_good(page)
    for run in ("hostile", "question"):
        page.goto(f"{home}/runs/{run}#row-1")
        expect(chosen(page)).to_be_visible()
        expect(page.locator(".detail h3").first).to_be_visible()
        assert_good(page)
    page.get_by_role("tab", name="Messages sent").click()
    expect(page.locator(".message").first).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert_good(page)
