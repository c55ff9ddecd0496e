"""Tests in a browser of the input form: the agent receives exactly the entered values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from pydantic import AwareDatetime, BaseModel
from tests.cases import case
from tests.web.browser.actions import Open, status
from tests.web.browser.conftest import served
from tests.web.desk import KEY

import acorn.web
from acorn import File, Image, module
from acorn.stores import MemoryStore
from acorn.testing import ScriptedModel, finish

pytestmark = pytest.mark.release


class Circle(BaseModel):
    radius: float = 1.0


class Square(BaseModel):
    side: float


class Everything(BaseModel):
    who: str
    note: str | None = "usual"
    greeting: str = "hello"
    count: int | None = 5
    sure: bool | None = None
    tags: list[str] = ["one"]
    numbers: list[int] | None = None
    holes: list[int | None] = []
    weights: dict[str, float] = {"a": 1.0}
    moment: datetime | None = None
    aware: AwareDatetime | None = None
    at: time | None = None
    when: date | str | None = None
    either: list[int] | list[str] | None = None
    shape: Circle | Square | None = None
    constructor: str | None = None
    photo: Image | None = None
    paper: File | None = None


class Taker(module[Everything, str]):
    """Takes what there is."""

    model = ScriptedModel(lambda request: finish("taken"))


@pytest.fixture(scope="session")
def taker(store: MemoryStore) -> Iterator[str]:
    with served(acorn.web.app(Taker(), store=store, key=KEY)) as address:
        yield address


@pytest.fixture
def form(open_page: Open, taker: str) -> Any:
    page = open_page(at=taker)
    page.get_by_label("who", exact=True).fill("Ann")
    return page


def run(page: Any, store: MemoryStore) -> dict[str, Any]:
    """Run the form and return what the agent received."""
    with page.expect_response("**/api/runs") as begun:
        page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_url(f"**/?run={begun.value.json()['id']}")
    expect(status(page)).to_have_text("finished")
    given: Any = acorn.runs(store).get(begun.value.json()["id"]).input
    return dict(given)


def written(page: Any) -> dict[str, Any]:
    page.get_by_role("tab", name="JSON").click()
    found: dict[str, Any] = json.loads(page.get_by_label("Input as JSON").input_value())
    return found


GIVEN: list[dict[str, Any]] = [
    {"note": None, "count": None, "tags": [], "weights": {}, "numbers": []},
    {"note": "", "greeting": "", "tags": [""], "holes": [1, None, 2]},
    {"sure": False},
    {"sure": True},
    {"moment": "2026-01-01T10:00:00Z", "aware": "2026-01-01T10:00:00+02:00", "at": "10:00:00.123456"},
    {"when": "soon", "either": ["a"], "shape": {"side": 2}},
    {"when": "2026-01-01", "either": [1], "shape": {"radius": 2}},
    {"photo": "data:image/gif;base64,R0lGODlhAQABAAAAACw=", "paper": "https://acorn.invalid/paper.pdf"},
]


def test_input_typed_as_json_is_unchanged_after_switch_to_form(form: Any) -> None:
    before = written(form)
    for given in GIVEN:
        with case(given):
            form.get_by_label("Input as JSON").fill(json.dumps({"who": "Ann", **given}))
            form.get_by_role("tab", name="Form").click()
            assert written(form) == before | given


def test_form_without_changes_submits_default_values(form: Any, store: MemoryStore) -> None:
    assert run(form, store) == json.loads(Everything(who="Ann").model_dump_json())


def test_cleared_form_field_is_submitted_as_empty_value(form: Any, store: MemoryStore) -> None:
    page = form
    for name in ("note", "greeting", "count"):
        page.get_by_label(name).fill("")
    page.get_by_role("button", name="Remove tags 1").click()
    page.get_by_role("button", name="Remove weights 1").click()
    given = run(page, store)
    empty: dict[str, Any] = {"note": None, "greeting": "", "count": None, "tags": [], "weights": {}}
    assert {name: given[name] for name in empty} == empty


def test_union_members_chosen_in_form_are_submitted(form: Any, store: MemoryStore) -> None:
    page = form
    for name in ("list of string", "Square"):
        page.locator(".segments label", has_text=name).click()
    page.get_by_role("button", name="Add to list of string").click()
    page.get_by_label("list of string 1", exact=True).fill("7")
    page.get_by_label("side").fill("2")
    given = run(page, store)
    assert given["either"] == ["7"]
    assert given["shape"] == {"side": 2}


def test_form_rejects_time_without_zone_and_accepts_time_with_zone(form: Any, store: MemoryStore, told: Any) -> None:
    told.allowed.append("422")
    page = form
    page.get_by_label("aware").fill("2026-01-01T10:00")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".field.is-wrong")).to_contain_text("aware")
    page.get_by_label("aware").fill("2026-01-01T10:00:00Z")
    assert run(page, store)["aware"] == "2026-01-01T10:00:00Z"


def test_input_error_is_displayed_at_invalid_list_row(form: Any, told: Any) -> None:
    told.allowed.append("422")
    page = form
    page.locator(".segments label", has_text="list of integer").click()
    for _ in range(2):
        page.get_by_role("button", name="Add to list of integer").click()
    page.get_by_label("list of integer 2", exact=True).fill("1.5")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_label("list of integer 2", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("list of integer 1", exact=True)).not_to_have_attribute("aria-invalid", "true")


def test_file_chosen_in_form_is_submitted_unless_page_lost_its_content(
    form: Any, store: MemoryStore, told: Any, tmp_path: Path
) -> None:
    page = form
    large, half, small = (tmp_path / name for name in ("large.bin", "half.bin", "small.bin"))
    for file, size in ((large, 20_000_001), (half, 15_000_000), (small, 5)):
        file.write_bytes(bytes(size))
    paper = page.locator("input[type=file]").last
    paper.set_input_files(large)
    for _ in range(2):  # It is repeated at every attempt.
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator(".field.is-wrong")).to_contain_text("The file may have at most 20 MB.")
    expect(page.locator(".run-head")).to_be_hidden()
    for each in page.locator("input[type=file]").all():
        each.set_input_files(half)
    told.allowed.append("413")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".wrong.whole")).to_contain_text("may have at most 20 MB in total")
    page.get_by_role("button", name="Remove photo").click()
    paper.set_input_files(small)
    assert run(page, store)["paper"] is not None
    page.get_by_role("button", name="Again").click()
    expect(page.locator(".dropped").last).to_contain_text("1 kB")
    page.reload()
    expect(page.locator(".field.is-wrong")).to_contain_text("Choose the file again")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".field.is-wrong")).to_contain_text("Choose the file again")
    page.get_by_role("button", name="Remove paper").click()
    assert run(page, store)["paper"] is None
