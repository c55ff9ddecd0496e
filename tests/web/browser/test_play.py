"""Tests in a browser of the playground page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.web.browser.actions import Open, ask, assert_good, status
from tests.web.browser.conftest import LOOKS, served
from tests.web.desk import GATES, KEY, Desk

import acorn.web
from acorn.stores import MemoryStore
from acorn.testing import ScriptedModel
from acorn.testing import call as calling

pytestmark = pytest.mark.release


def test_input_errors_are_displayed_at_fields_and_first_field_has_focus(open_page: Open, told: Any) -> None:
    told.allowed.append("422")
    page = open_page()
    page.get_by_label("limit").fill("99")
    page.locator("label.switch", has_text="place").click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_label("question")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("question")).to_be_focused()
    expect(page.get_by_label("limit")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("city")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".field .wrong:visible")).to_have_count(3)
    page.get_by_role("tab", name="JSON").click()
    page.get_by_label("Input as JSON").fill("{")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_be_visible()


def test_rejected_answer_of_model_is_displayed_with_reason(open_page: Open) -> None:
    page = open_page()
    ask(page, "corrected")
    expect(status(page)).to_have_text("finished")
    expect(page.locator(".is-refused")).to_contain_text("confidence must be")


def test_concurrent_branches_are_displayed_side_by_side(open_page: Open) -> None:
    page = open_page()
    ask(page, "branches")
    expect(status(page)).to_have_text("finished")
    expect(page.locator(".branch")).to_have_count(2)
    boxes = [page.locator(".branch").nth(at).bounding_box() for at in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] < boxes[1]["x"]


def test_stopped_run_can_be_resumed_and_its_input_can_be_reused(open_page: Open) -> None:
    page = open_page()
    ask(page, "sleep")
    expect(page.locator(".call.is-busy")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(status(page)).to_have_text("stopped")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".call.is-busy")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(status(page)).to_have_text("stopped")
    page.get_by_label("question").fill("other")
    page.get_by_role("button", name="Again").click()
    expect(page.get_by_label("question")).to_have_value("sleep")


def test_single_turn_run_without_answer_is_displayed_as_not_finished(open_page: Open) -> None:
    agent = Desk(model=ScriptedModel(calling("search", query="acorns")), max_steps=None)
    with served(acorn.web.app(agent, store=MemoryStore(), key=KEY)) as home:
        page = open_page(at=home)
        ask(page, "search acorns")
        expect(status(page)).to_have_text("not finished")
        expect(status(page)).to_have_class("status is-unfinished")
        expect(page.locator(".note.bad")).to_contain_text("not finished")
        page.reload()
        expect(status(page)).to_have_text("not finished")


def test_reload_and_second_tab_display_same_run(open_page: Open) -> None:
    page = open_page()
    ask(page, "hold reload")
    expect(page.locator(".call.is-busy")).to_be_visible()
    page.reload()
    expect(page.locator(".call-name")).to_have_text("hold")
    expect(page.get_by_label("question")).to_have_value("hold reload")
    second = page.context.new_page()
    second.goto(page.url)
    expect(second.locator(".call-name")).to_have_text("hold")
    GATES["reload"].set()
    for each in (page, second):
        expect(status(each)).to_have_text("finished")
        expect(each.locator(".answer")).to_contain_text("hold reload")


def test_double_click_on_run_button_does_not_stop_run(open_page: Open) -> None:
    page = open_page()
    page.get_by_label("question").first.fill("search twice")
    stops: list[str] = []
    page.on("request", lambda asked: stops.append(asked.url) if asked.url.endswith("/stop") else None)
    page.get_by_role("button", name="Run", exact=True).dblclick()
    expect(status(page)).to_have_text("finished")
    assert stops == []


def test_long_number_is_submitted_and_displayed_exactly(open_page: Open, store: MemoryStore) -> None:
    number = "12345678901234567891"
    page = open_page()
    page.get_by_label("more").fill(f'{{"id": {number}}}')
    ask(page, "search number")
    expect(status(page)).to_have_text("finished")
    run_id = page.url.partition("run=")[2]
    assert f'"id":{number}' in store.read(run_id)[0].header.input.replace(" ", "")
    page.get_by_role("button", name="Again").click()
    page.get_by_role("tab", name="JSON").click()
    expect(page.get_by_label("Input as JSON")).to_have_value(re.compile(f'"id": {number}'))
    page.goto(page.url.replace("?run=", "runs/"))
    expect(page.locator(".detail")).to_contain_text(number)


def test_failed_run_displays_error_message_and_no_empty_answer_box(open_page: Open, told: Any) -> None:
    told.allowed.append("404")
    page = open_page()
    ask(page, "fail")
    expect(status(page)).to_have_text("failed")
    expect(page.locator(".note.bad")).to_contain_text("the provider says no")
    expect(page.locator(".answer")).to_be_hidden()
    page.goto(f"{page.url.partition('?')[0]}?run=nothing")
    expect(page.locator(".note")).to_contain_text("This run does not exist.")
    expect(page.locator(".answer")).to_be_hidden()


def test_question_of_agent_is_answered_on_page(open_page: Open) -> None:
    page = open_page()
    ask(page, "question")
    expect(status(page)).to_have_text("waiting for you")
    expect(page.locator(".request")).to_contain_text("Which one?")
    page.get_by_role("button", name="blue").click()
    expect(status(page)).to_have_text("finished")
    expect(page.locator(".note.person")).to_contain_text("blue")


PIXEL = b"\x89PNG\r\n\x1a\n" + b"pixels" * 20


def test_dropped_image_is_sent(open_page: Open, tmp_path: Any) -> None:
    page = open_page()
    page.locator(".drop input[type=file]").set_input_files(
        {"name": "cat.png", "mimeType": "image/png", "buffer": PIXEL}
    )
    expect(page.locator(".drop img")).to_be_attached()
    ask(page, "search acorns")
    expect(status(page)).to_have_text("finished")
    page.get_by_role("link", name="Timeline").click()
    expect(page.locator(".detail")).to_contain_text("image/png")
    expect(page.locator(".detail")).not_to_contain_text("cGl4ZWxz")


def test_conversation_continues_on_page(open_page: Open) -> None:
    page = open_page()
    ask(page, "search acorns")
    expect(status(page)).to_have_text("finished")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".talk")).to_be_visible()
    ask(page, "and then")
    expect(page.locator(".exchange")).to_contain_text("search acorns")
    expect(page.locator(".answer")).to_contain_text("and then")


def test_markup_in_model_and_tool_text_is_displayed_as_text(open_page: Open) -> None:
    page = open_page()
    ask(page, "hostile")
    expect(status(page)).to_have_text("finished")
    for call in page.locator(".call summary").all():
        call.click()
    expect(page.locator(".progress")).to_contain_text("<img src=x onerror")
    assert page.locator("main img[src='x'], main script").count() == 0
    assert "broken" not in page.title()


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_play_page_is_accessible_and_fits_screen_width(open_page: Open, width: int, dark: bool) -> None:
    page = open_page(width=width, dark=dark)
    expect(page.get_by_role("heading", name="Desk")).to_be_visible()
    page.locator("label.switch", has_text="place").click()
    assert_good(page)
    page.locator("label.switch", has_text="place").click()
    ask(page, "hostile " + "W" * 300)
    expect(status(page)).to_have_text("finished")
    for call in page.locator(".call summary").all():
        call.click()
    expect(page.locator(".call-inner").last).to_contain_text("Arguments")
    assert_good(page)
    ask(page, "refund")
    expect(page.locator(".request")).to_be_visible()
    assert_good(page)
