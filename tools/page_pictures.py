"""Generate `docs/play-*.png` and `docs/view-*.png`, the screenshots of the web page in the README: `make shots`.

A real browser opens the page with the light and the dark theme. The agent uses a scripted model. The first screenshot
shows the Play view while the answer is incomplete, and the second screenshot shows the viewer after the run.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.web.browser.find_browser import browser  # noqa: E402

import acorn.web  # noqa: E402
from acorn import module, tool  # noqa: E402
from acorn.models import ModelRequest  # noqa: E402
from acorn.models.port import Delta, Price  # noqa: E402
from acorn.stores import MemoryStore  # noqa: E402
from acorn.testing import Reply, ScriptedModel, call, finish  # noqa: E402
from acorn.web.server import Server, bind_socket  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize

SIZE: ViewportSize = {"width": 1200, "height": 760}
PATIENCE = 30_000
HALF = threading.Event()
"""Set after the screenshot of the incomplete answer, so that the model continues."""
PRICE = Price(2.5e-6, 10e-6)


class Paced(ScriptedModel):
    """A scripted model that streams slowly and waits for the screenshot in the middle of its answer."""

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        count = 0
        async for delta in super().astream(request):
            yield delta
            count += 1
            await asyncio.sleep(0.02)
            if _turn(request) == 2 and count == 14:
                while not HALF.is_set():
                    await asyncio.sleep(0.01)


class Source(BaseModel):
    title: str
    year: int


class Question(BaseModel):
    question: str = Field(description="The question to answer")
    depth: Literal["quick", "normal", "deep"] = "normal"
    sources: int = Field(3, ge=1, le=9, description="How many to look for")
    cite: bool = True


class Finding(BaseModel):
    answer: str = Field(description="One or two sentences")
    confidence: float = Field(ge=0, le=1)
    sources: list[Source] = []


@tool
async def search(query: str) -> list[str]:
    """Search the archive."""
    await asyncio.sleep(0.35 if "creator" in query else 0.6)
    return [f"{query}: a page of the archive"]


@tool
async def read_page(address: str) -> str:
    """Read a page."""
    await asyncio.sleep(0.45)
    return "In December 1989 Guido van Rossum began to write Python; 0.9.0 was published in February 1991."


class Check(module[str, str]):
    """Check a claim against a second source."""

    model = Paced([finish("It is so.")] * 4, price=PRICE, chunk_size=6)


def _turn(request: ModelRequest) -> int:
    return sum(message["role"] == "assistant" for message in request.messages)


def reply(request: ModelRequest) -> Reply:
    match _turn(request):
        case 0:
            text = "I begin with two searches side by side."
            calls = call("search", query="Python creator") & call("search", query="Python first release")
            return Reply(text, reasoning="Two facts are asked for: who, and when.") & calls
        case 1:
            calls = call("read_page", address="python/history") & call(
                "fact_check", result="Published in February 1991"
            )
            return Reply("Now the primary source, and a second opinion.") & calls
        case _:
            sources = [Source(title="The history of Python", year=2009), Source(title="Usenet, alt.sources", year=1991)]
            answer = "Guido van Rossum created Python; its first version was published in February 1991."
            return finish(answer=answer, confidence=0.97, sources=sources)


class Researcher(module[Question, Finding]):
    """You are a research assistant. Answer briefly, and only what two sources say."""

    model = Paced(reply, name="scripted/researcher", price=PRICE, chunk_size=6)
    tools = [search, read_page]
    branches = {"fact_check": Check}
    max_steps = 6


def main() -> None:
    path = browser()
    if path is None:
        sys.exit("Cannot take screenshots, because Chromium is not installed. Run `make browser` to install it.")
    from playwright.sync_api import sync_playwright

    on = bind_socket("127.0.0.1", 0, is_exact=True)
    server = Server(acorn.web.app(Researcher(), store=MemoryStore()), lambda: None)
    threading.Thread(target=server.run, kwargs={"sockets": [on]}, daemon=True).start()
    home = f"http://127.0.0.1:{on.getsockname()[1]}"
    root = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=root)
        for look in ("light", "dark"):
            HALF.clear()
            context = chromium.new_context(viewport=SIZE, color_scheme=look, reduced_motion="reduce")
            context.set_default_timeout(PATIENCE)
            _take(context.new_page(), home, look)
            context.close()
        chromium.close()


def _take(page: Any, home: str, look: str) -> None:
    page.goto(home)
    page.get_by_label("question").fill("Who created Python, and when was it first published?")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".answer .is-growing")
    page.screenshot(path=ROOT / "docs" / f"play-{look}.png")
    HALF.set()
    page.wait_for_selector(".status.is-done")
    page.get_by_role("link", name="Timeline").click()
    page.locator(".vrow", has_text="read_page").last.click()
    page.wait_for_selector(".detail pre")
    page.screenshot(path=ROOT / "docs" / f"view-{look}.png")


if __name__ == "__main__":
    main()
