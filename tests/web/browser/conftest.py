"""Fixtures for tests in a browser: one browser per file, one server for all files, and checks after every test.

The server has the agent at its root, and saved runs mounted below `/files`. The checks require that the console has no
error and that no request went to another host.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE
from tests.web.browser.find_browser import browser, is_required
from tests.web.desk import KEY, Desk

import acorn.web
from acorn.stores import MemoryStore
from acorn.web.server import Server, bind_socket

Allowed = Callable[[str], None]
LOOKS = [(320, True), (1280, False)]
"""Page widths, and whether the colors are dark. The width affects the layout, and the colors affect the contrast."""
if IS_LONG:
    LOOKS += [(320, False), (1280, True)]


@pytest.fixture(scope="module")  # While its driver is open, no other test of this process can have an event loop.
def chromium() -> Iterator[Any]:
    path = browser()
    if path is None:
        if is_required():
            pytest.fail("Chromium is not installed. Run `make browser` to install it.")
        pytest.skip("no Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        made = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        )
        yield made
        made.close()


@pytest.fixture(scope="session")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="session")
def home(store: MemoryStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("saved") / "saved.json"
    file.write_text(Desk(store=MemoryStore()).run(question="hostile").to_json())
    pages = Starlette(
        routes=[
            Mount("/files", acorn.web.app(files=[Path(file)], key=KEY)),
            Mount("/", acorn.web.app(Desk(), store=store, key=KEY)),
        ]
    )
    with served(pages) as address:
        yield address


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Start an application on a free port."""
    on = bind_socket("127.0.0.1", 0, is_exact=True)
    server = Server(app, lambda: None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [on]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{on.getsockname()[1]}"
    server.should_exit = True
    server.force_exit = True
    thread.join(PATIENCE)
    on.close()


class Told:
    """The errors of the browser, and those that a test expects."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        self.allowed: list[str] = []

    @property
    def wrong(self) -> list[str]:
        return [each for each in self.errors if not any(words in each for words in self.allowed)]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def open_page(chromium: Any, home: str, told: Told) -> Iterator[Callable[..., Any]]:
    """Open a page such as `open_page("/runs/", width=320, dark=True)` in a browser that has the key."""
    contexts: list[Any] = []
    ours = {home}

    def opened(path: str = "/", *, width: int = 1280, dark: bool = False, at: str = home) -> Any:
        ours.add(at)
        look = "dark" if dark else "light"
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme=look, reduced_motion="reduce"
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        watch(page)
        context.on("page", watch)
        page.goto(f"{at}/login?key={KEY}&next={path}")
        page.wait_for_url(lambda url: "/login" not in url)
        return page

    def watch(page: Any) -> None:
        page.on("console", lambda said: told.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: told.errors.append(str(error)))
        page.on(
            "request", lambda asked: None if asked.url.startswith(tuple(ours)) else told.elsewhere.append(asked.url)
        )

    yield opened
    for context in contexts:
        context.close()
    assert told.wrong == []
    assert told.elsewhere == []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report at the end that the browser was missing."""
    skipped = [each for each in terminalreporter.stats.get("skipped", []) if "tests/web/browser/" in each.nodeid]
    if skipped and browser() is None:
        terminalreporter.write_line(
            f'tests/web: {len(skipped)} browser tests did not run: no Chromium; "make browser" gets one'
        )
