"""Tests of the HTML form of a run record in a notebook: its content, and escaping of all text."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from pydantic import BaseModel

from acorn import ModelError, Run, module, tool
from acorn.testing import Failure, Reply, ScriptedModel, call, finish

EVIL = "</pre></td><script>alert('&lt;1')</script><img src=x onerror=\"alert(2)\">"
OURS = {"div", "p", "b", "table", "tr", "th", "td", "pre", "details", "summary"}


class Text(BaseModel):
    text: str


class Answer(BaseModel):
    answer: str
    more: dict[str, list[str]] = {}


@tool
def echo(text: str) -> str:
    """Say it again."""
    return f"heard {text}"


@tool
def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


class Check(module[Text, Answer]):
    """Check."""


class Agent(module[Text, Answer]):
    """Answer."""

    max_steps = 5
    tools = [echo, fail]
    branches = {"check": Check}


class Page(HTMLParser):
    """Parse the tags, attributes and text of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(run: Run) -> Page:
    page = Page(run._repr_html_())
    assert set(page.tags) <= OURS
    assert page.attributes <= {"style"}
    assert page.open == []
    return page


def test_record_html_contains_output_and_events() -> None:
    model = ScriptedModel([call("echo", text="a"), finish(answer="b", more={"c": ["d"]})], name="some/model")
    page = shown(Agent(model=model).run(text="question"))
    for words in (
        "Agent",
        "finish",
        "1 step",
        "2 requests",
        "some/model",
        "answer",
        "b",
        "echo",
        "heard a",
        "question",
    ):
        assert words in page.text


def test_record_html_escapes_all_text() -> None:
    replies = [
        Reply(EVIL, reasoning=EVIL) & call("echo", text=EVIL) & call("fail", text=EVIL) & call(EVIL, text=EVIL),
        call("check", text=EVIL),
        finish(answer=EVIL),
        finish(answer=EVIL, more={EVIL: [EVIL]}),
    ]
    run = Agent(model=ScriptedModel(replies, name=EVIL)).run(text=EVIL)
    assert shown(run).text.count(EVIL) >= 6
    assert "<script" not in run._repr_html_()


def test_record_html_of_failed_run_contains_error() -> None:
    with pytest.raises(ModelError) as caught:
        Agent(model=ScriptedModel([Failure(status=400, message=EVIL)])).run(text="question")
    page = shown(caught.value.run)
    assert "ModelError" in page.text
    assert EVIL in page.text


def test_record_html_of_paused_run_and_of_unfinished_run_contains_reason() -> None:
    class Desk(Agent):
        store = "memory"

        @tool(approval=True)
        def pay(self, to: str) -> None:
            """Pay."""

    paused = Desk(model=ScriptedModel([call("pay", to=EVIL)])).run(text="question")
    assert EVIL in shown(paused).text.replace('\\"', '"')
    unfinished = Agent(model=ScriptedModel([call("echo", text="a")]), max_steps=None).run(text="question")
    assert "unfinished" in shown(unfinished).text


def test_record_html_is_rendered_for_running_run_and_for_loaded_run() -> None:
    pages: list[Page] = []

    @tool
    def look(run: Run) -> str:
        """Look."""
        pages.append(shown(run))
        return "seen"

    run = Agent(model=ScriptedModel([Reply("\ud800") & call("look"), finish(answer="a")]), tools=[look]).run(
        text="question"
    )
    assert "running" in pages[0].text
    assert "Agent" in shown(Run.from_json(run.to_json())).text
    run._repr_html_().encode()


def test_record_html_shortens_long_texts() -> None:
    run = Agent(model=ScriptedModel([finish(answer="x" * 1_000_000)])).run(text="y" * 1_000_000)
    assert len(run._repr_html_()) < 20_000
