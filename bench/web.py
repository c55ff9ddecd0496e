"""Measure the web page: a long run relative to a short run, in the browser and in the server, and streaming.

Chromium reports the CPU time of its main thread. Without Chromium, the benchmark measures only the server.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from measure import Line, cpu
from tests.web.browser.find_browser import browser

import acorn.web
from acorn import module, tool
from acorn._inside import Redactor, to_json_text
from acorn.models.port import Delta
from acorn.models.request import ModelRequest
from acorn.stores import MemoryStore
from acorn.testing import Reply, ScriptedModel, call, finish
from acorn.web.page.run_index import load_saved_run
from acorn.web.server import Server, bind_socket

STEPS = 750
PATIENCE = 120_000
STATIC = Path(acorn.web.__file__).parent / "static"
SECONDS = 4.0


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: " + "nothing but acorns, as far as one can see " * 4


class Walker(module[str, str]):
    """Walk and look."""

    tools = [look]
    max_steps = STEPS + 5
    loop_guard = None


def walked(steps: int, file: Path) -> Path:
    def reply(request: ModelRequest) -> Reply:
        turn = sum(message["role"] == "assistant" for message in request.messages)
        if turn == steps:
            return finish("home")
        here = call("look", place=f"the {turn}th oak") & call("look", place=f"the {turn}th beech")
        return Reply(f"I go on to the {turn}th oak, and look at it. ") & here

    file.write_text(Walker(model=ScriptedModel(reply)).run("walk").to_json())
    return file


class Flow(ScriptedModel):
    """A model that sends text at a steady rate."""

    def __init__(self) -> None:
        super().__init__(lambda request: Reply(""), name="flow")
        self.rate = 100

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        began = time.monotonic()
        for number in range(int(self.rate * SECONDS)):
            await asyncio.sleep(max(0.0, began + number / self.rate - time.monotonic()))
            yield Delta(content="word ")
        async for delta in super().astream(request):
            yield delta


class Talker(module[str, str]):
    """Talk."""

    max_steps = None


@contextmanager
def served(app: Any) -> Iterator[str]:
    on = bind_socket("127.0.0.1", 0, is_exact=True)
    server = Server(app, lambda: None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [on]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{on.getsockname()[1]}"
    server.should_exit = server.force_exit = True
    thread.join()
    on.close()


class Tab:
    """A page in the browser, whose CPU time is measured."""

    def __init__(self, chromium: Any, address: str) -> None:
        self.context = chromium.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self._said = self.context.new_cdp_session(self.page)
        self._said.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.goto(address)

    def spent(self) -> float:
        found = self._said.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in found if each["name"] == "TaskDuration")

    def cost(self, act: Any) -> float:
        before = self.spent()
        act()
        return self.spent() - before

    def close(self) -> None:
        self.context.close()


def lines() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as folder:
        long, short = walked(STEPS, Path(folder) / "long.json"), walked(4, Path(folder) / "short.json")
        yield from _server(long)
        yield from _static()
        path = browser()
        if path is None:
            return
        from playwright.sync_api import sync_playwright

        with sync_playwright() as driver:
            chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
            with served(acorn.web.app(files=[long, short])) as home:
                yield from _tabs(chromium, home)
            yield from _streams(chromium)
            chromium.close()


def _server(file: Path) -> Iterator[Line]:
    text = file.read_text()
    view = to_json_text(load_saved_run(file).page_data(Redactor()))
    floor = cpu(lambda: json.loads(text))
    yield Line(
        "server CPU for a view / json.loads of the file",
        cpu(lambda: to_json_text(load_saved_run(file).page_data(Redactor()))) / floor,
        8,
    )
    yield Line("the JSON of a view / the file", len(view) / len(text), 0.4)
    yield Line("the same, gzipped", len(gzip.compress(view.encode())) / 1000, None, " kB")


def _static() -> Iterator[Line]:
    for page in ("play.js", "runs.js", "view.js", "compare.js", "fork.js", "fleet.js"):
        names, left = {"index.html", "app.css", "acorn.svg"}, ["app.js", page]
        names |= set() if page == "play.js" else {"runs.css"}
        while left:
            each = left.pop()
            names.add(each)
            left += set(re.findall(r'^import .* from "\./(.*)";$', (STATIC / each).read_text(), re.MULTILINE)) - names
        files = [(STATIC / name).read_bytes() for name in names]
        yield Line(f"files that {page.removesuffix('.js')} loads", sum(map(len, files)) / 1000, 100, " kB")
        yield Line("the same, gzipped", sum(len(gzip.compress(each)) for each in files) / 1000, 30, " kB")


def _tabs(chromium: Any, home: str) -> Iterator[Line]:
    shown, paints, keys, finds = ({"long": list[float](), "short-2": list[float]()} for _ in range(4))
    elements = 0
    for _ in range(5):
        for name in shown:
            tab = Tab(chromium, f"{home}/runs/{name}")
            tab.page.wait_for_selector(".detail h3")
            shown[name].append(tab.spent())
            paints[name].append(_painted(tab))
            press = [tab.cost(lambda tab=tab: _pressed(tab, "j")) for _ in range(5)]
            keys[name].append(median(press))
            tab.page.keyboard.press("/")
            typed = [tab.cost(lambda tab=tab, key=key: _pressed(tab, key)) for key in "beech"]
            finds[name].append(median(typed))
            elements = max(elements, tab.page.locator("*").count())
            tab.close()

    def ratio(found: dict[str, list[float]]) -> float:
        return median(found["long"]) / median(found["short-2"])

    yield Line("tab CPU to show a long run / a short one", ratio(shown), 1.5)
    yield Line("first paint of a long run / of a short one", ratio(paints), 1.2)
    yield Line("tab CPU of an arrow key, long / short", ratio(keys), 1.5)
    yield Line("tab CPU of a letter in find, long / short", ratio(finds), 3)
    yield Line("elements in the page of a long run", elements, 2000, "")
    yield Line("tab CPU to show a long run", 1000 * median(shown["long"]), None, " ms")
    yield Line("tab CPU of an arrow key in a long run", 1000 * median(keys["long"]), None, " ms")


def _pressed(tab: Tab, key: str) -> None:
    tab.page.keyboard.press(key)
    tab.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def _painted(tab: Tab) -> float:
    found = tab.page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return float(found)


def _streams(chromium: Any) -> Iterator[Line]:
    flow, shares, messages = Flow(), dict[int, float](), dict[int, float]()
    for rate in (100, 1000):
        flow.rate = rate
        with served(acorn.web.app(Talker(model=flow), store=MemoryStore())) as home:
            tab = Tab(chromium, home)
            tab.page.wait_for_selector("textarea")
            tab.page.locator("textarea").first.fill("talk")
            count = [0]
            tab._said.on(
                "Network.eventSourceMessageReceived", lambda _, count=count: count.__setitem__(0, count[0] + 1)
            )
            tab._said.send("Network.enable")
            before, began = tab.spent(), time.monotonic()
            tab.page.keyboard.press("Control+Enter")
            tab.page.wait_for_selector(".status.is-failed, .status.is-done")
            took = time.monotonic() - began
            shares[rate], messages[rate] = (tab.spent() - before) / took, count[0] / took
            tab.close()
    yield Line("tab CPU at 1,000 chunks a second / at 100", shares[1000] / shares[100], 1.5)
    yield Line("messages a second at 1,000 chunks a second", messages[1000], 31, "")
    yield Line("share of the tab's CPU at 1,000 chunks a second", 100 * shares[1000], None, " %")
