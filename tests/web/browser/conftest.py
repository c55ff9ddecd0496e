"""Fixtures for tests in a browser: one browser and one server per process, and checks after every test.

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
from tests.waiting import PATIENCE
from tests.web.browser.find_browser import browser, is_required
from tests.web.desk import KEY, Desk

import acorn.web
from acorn.stores import MemoryStore
from acorn.web.server import Server, bind_socket

Allowed = Callable[[str], None]
LOOKS = [(320, False), (320, True), (1280, False), (1280, True)]
"""Page widths, and whether the colors are dark. The width affects the layout, and the colors affect the contrast."""


# While the driver is open, a test outside this package cannot start an event loop in this thread.
@pytest.fixture(scope="package")
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
        self.ours: list[str] = []

    @property
    def wrong(self) -> list[str]:
        return [each for each in self.errors if not any(words in each for words in self.allowed)]

    def watch(self, page: Any) -> None:
        page.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "request",
            lambda asked: None if asked.url.startswith(tuple(self.ours)) else self.elsewhere.append(asked.url),
        )


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def new_page(chromium: Any, told: Told) -> Iterator[Callable[..., Any]]:
    """Return a function that opens an empty page in a new browser context; its errors fail the test."""
    contexts: list[Any] = []

    def new(*, width: int = 1280, dark: bool = False, **options: Any) -> Any:
        look = "dark" if dark else "light"
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme=look, reduced_motion="reduce", **options
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE * 1000)
        context.on("page", told.watch)
        return context.new_page()

    yield new
    for context in contexts:
        context.close()
    assert told.wrong == []
    assert told.elsewhere == []


@pytest.fixture
def open_page(new_page: Callable[..., Any], home: str, told: Told) -> Callable[..., Any]:
    """Open a page such as `open_page("/runs/", width=320, dark=True)` in a browser that has the key."""

    def opened(path: str = "/", *, at: str = home, **look: Any) -> Any:
        told.ours += [home, at]
        page = new_page(**look)
        page.goto(f"{at}/login?key={KEY}&next={path}")
        page.wait_for_url(lambda url: "/login" not in url)
        return page

    return opened


@pytest.fixture
def open_file(new_page: Callable[..., Any], told: Told) -> Callable[..., Any]:
    """Open a file such as `open_file(path, width=320)` without a network."""

    def opened(file: Path, **look: Any) -> Any:
        told.ours.append(file.as_uri())
        page = new_page(offline=True, **look)
        page.goto(file.as_uri())
        return page

    return opened


@pytest.fixture(scope="session")
def kept(store: MemoryStore) -> dict[str, str]:
    """Stored runs by their ids."""
    agent = Desk(store=store)
    ids = ("search", "broken", "branches", "hostile", "many", "question")
    return {each: agent.using(run_id=each).run(question=f"{each} kept").id for each in ids}


@pytest.fixture(scope="session")
def two(store: MemoryStore) -> None:
    """Two different runs, one of them hostile."""
    agent = Desk(store=store)
    agent.using(run_id="oaks").run(question="search oaks", limit=3)
    agent.using(run_id="beeches").run(question="search beeches", limit=3)
    agent.using(run_id="evil").run(question="hostile")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report at the end that the browser was missing."""
    skipped = [each for each in terminalreporter.stats.get("skipped", []) if "tests/web/browser/" in each.nodeid]
    if skipped and browser() is None:
        terminalreporter.write_line(
            f'tests/web: {len(skipped)} browser tests did not run: no Chromium; "make browser" gets one'
        )
