"""Tests in a browser of runs in other processes: of a fleet, of a command, and of a killed process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.fleet.fleet import AGENTS, SOURCE, Fleet
from tests.fleet.worker_agents import Desk, Lingering
from tests.waiting import comes_true
from tests.web.browser.actions import Open, assert_good
from tests.web.browser.conftest import LOOKS, served
from tests.web.desk import KEY

import acorn.web
from acorn import module, tool

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]


@tool
def linger() -> str:
    """Wait for a file."""
    return "went at once"


class Quick(Lingering):
    """Waits no more."""

    tools = [linger]


def named(cls: type[module[Any, Any]], name: str, store: str) -> Any:
    """Return an agent with the name that other processes know."""
    same: Any = type(name, (cls,), {"__module__": "worker_agents", "__qualname__": name})
    return same(store=store)


def test_workers_page_displays_workers_and_lets_user_answer_requests(
    open_page: Open, postgres: str, tmp_path: Path
) -> None:
    page_of_store = acorn.web.app(store=postgres, key=KEY)
    with Fleet(postgres, tmp_path) as fleet, served(page_of_store) as home:
        worker = fleet.start("Desk")
        paying = named(Desk, "Desk", postgres).using(run_id="run-pay").submit(question="run-pay pay")
        page = open_page("/", at=home)
        expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
        expect(page.get_by_role("group", name="workers")).to_contain_text(str(worker.pid))
        expect(page.locator(".request")).to_contain_text("Approve the call of pay?")
        for width, dark in LOOKS:
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme="dark" if dark else "light")
            assert_good(page)
        page.get_by_role("button", name="Approve").click()
        expect(page.locator(".request")).to_have_count(0)
        assert comes_true(lambda: paying.status() == "done")
        page.get_by_role("link", name="Runs").click()
        expect(page.locator(".run-line", has_text="run-pay")).to_contain_text("finished")


@pytest.fixture
def lingering(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that drives a run whose tool waits for a file."""
    path = os.pathsep.join([str(SOURCE), *sys.path])
    command = [sys.executable, "-m", "acorn", "run", f"{AGENTS}:Lingering", "--question", "wait", "--store", "runs.db"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "CREW_LOG": str(tmp_path / "log")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert comes_true(lambda: (tmp_path / "log").exists() or process.poll() is not None)
    yield process
    process.kill()
    process.wait()


@pytest.mark.usefixtures("lingering")
def test_run_page_displays_new_rows_of_run_in_other_process(open_page: Open, tmp_path: Path) -> None:
    with served(acorn.web.app(store=str(tmp_path / "runs.db"), key=KEY)) as home:
        page = open_page("/", at=home)
        page.locator(".run-line").click()
        expect(page.locator(".status").first).to_have_text("running")
        expect(page.locator(".vrow", has_text="linger").first).to_be_visible()
        expect(page.locator(".vrow.k-answer")).to_have_count(0)
        (tmp_path / "log.go").touch()
        expect(page.locator(".vrow.k-answer")).to_have_count(1)
        expect(page.locator(".status").first).to_have_text("finished")


def test_run_of_killed_process_can_be_resumed_on_run_page(
    open_page: Open, tmp_path: Path, lingering: subprocess.Popen[bytes]
) -> None:
    store = str(tmp_path / "runs.db")
    with served(acorn.web.app(named(Quick, "Lingering", store), store=store, key=KEY)) as home:
        page = open_page("/runs/", at=home)
        page.locator(".run-line").click()
        expect(page.locator(".status").first).to_have_text("running")
        lingering.kill()
        lingering.wait()
        expect(page.locator(".status").first).to_have_text("stopped")
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".status").first).to_have_text("finished")
        expect(page.locator(".vrow.k-answer")).to_have_count(1)
