"""An agent whose model does what the question says, and its site without a network."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import defaultdict
from typing import Any, Literal

import httpx
from pydantic import BaseModel, Field
from tests.waiting import AGES

import acorn.web
from acorn import Image, ask_human, module, tool
from acorn.models import ModelRequest
from acorn.models.port import Price
from acorn.testing import Failure, Reply, ScriptedModel, call, finish

KEY = "a-key-for-tests-and-nothing-else"
HOME = "http://127.0.0.1:8123"
PRICE = Price(3e-6, 15e-6)
HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
GATES: dict[str, threading.Event] = defaultdict(threading.Event)


class Place(BaseModel):
    city: str = Field(description="The town")
    zip: int | None = None


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Question(BaseModel):
    question: str = Field(description="The question to answer", examples=["Who made Python?"])
    depth: Literal["quick", "normal", "deep"] = "normal"
    limit: int = Field(5, ge=1, le=20)
    cite: bool = True
    tags: list[str] = []
    place: Place | None = None
    pet: Cat | Dog | None = Field(None, discriminator="kind")
    weights: dict[str, float] = {}
    photo: Image | None = None
    more: Any = None


class Source(BaseModel):
    title: str
    url: str


class Answer(BaseModel):
    answer: str = Field(description="One or two sentences")
    confidence: float = Field(ge=0, le=1)
    sources: list[Source] = []


@tool
def search(query: str) -> str:
    """Search the web."""
    return f"found {query}"


@tool
async def hold(gate: str) -> str:
    """Wait until the test says so."""
    while not GATES[gate].is_set():
        await asyncio.sleep(0.005)
    return "held"


@tool
async def sleep() -> str:
    """Take ages."""
    await asyncio.sleep(AGES)
    return "slept"


@tool
def block(gate: str) -> str:
    """Block the thread until the test says so."""
    GATES[gate].wait(AGES)
    return "blocked"


@tool
def broken(what: str) -> str:
    """Fail."""
    raise ValueError(what)


@tool
def leave() -> str:
    """End the program."""
    sys.exit(3)


@tool(approval=True)
def refund(order: str, amount: float) -> str:
    """Pay money back."""
    return f"{amount} paid back for {order}"


class Check(module[str, str]):
    """Check a claim."""

    model = ScriptedModel(lambda request: finish("checked"), price=PRICE)


def said(request: ModelRequest) -> tuple[str, int]:
    """Return the question of the last input, and the number of turns since it."""
    turns = 0
    for message in reversed(request.messages):
        content = str(message["content"])
        if message["role"] == "user" and "<question" in content:
            return content.partition("<question")[2].partition(">")[2].partition("</question>")[0].strip(), turns
        turns += message["role"] == "assistant"
    return "", turns


def end(answer: str = "It is so.", confidence: float = 0.9) -> Reply:
    return finish(answer=answer, confidence=confidence, sources=[Source(title="Acorns", url="https://acorn.invalid")])


def reply(request: ModelRequest) -> Reply | Failure:
    question, turn = said(request)
    word, _, rest = question.partition(" ")
    begun: dict[str, Reply | Failure] = {
        "search": Reply("I look it up.", reasoning="Better to look.") & call("search", query=rest or "acorns"),
        "corrected": end(confidence=7),
        "question": call("ask_human", question="Which one?", choices=["red", "blue"]),
        "asks": call("ask_human", question=rest, choices=[rest, "no"]),
        "refund": call("refund", order="17", amount=200.0),
        "branches": call("check", input="a") & call("check", input="b"),
        "hold": Reply("I hold.") & call("hold", gate=rest),
        "held": call("hold", gate=rest) & call("ask_human", question="Which one?", choices=["red", "blue"]),
        "block": call("block", gate=rest),
        "sleep": Reply("I sleep.") & call("sleep"),
        "broken": call("broken", what=rest or "no such thing"),
        "leave": call("leave"),
        "fail": Failure(status=400, message="the provider says no"),
        "many": Reply("Many.", [each for at in range(500) for each in call("search", query=f"item {at}").calls]),
        "hostile": Reply(HOSTILE, reasoning=HOSTILE) & call("search", query=HOSTILE) & call("broken", what=HOSTILE),
        "leak": Reply(rest, reasoning=rest) & call("search", query=rest) & call("broken", what=rest),
    }
    if turn == 0 and word in begun:
        return begun[word]
    if word in ("hostile", "leak"):
        return end(HOSTILE if word == "hostile" else rest)
    return end(f"{question or 'It is so.'} ({len(request.messages)} messages)")


class Desk(module[Question, Answer]):
    """Answer the question."""

    model = ScriptedModel(reply, name="scripted/desk", price=PRICE)
    tools = [search, hold, sleep, block, broken, leave, refund, ask_human]
    branches = {"check": Check}
    max_steps = 6


def site(agent: Any = None, **options: Any) -> Any:
    """Return the page as an application."""
    return acorn.web.app(agent, **{"key": KEY, **options})


async def asked(app: Any, method: str, path: str, *, headers: Any = None, **options: Any) -> httpx.Response:
    """Send one request like the page; a header that is None is left out."""
    usual = {
        "cookie": f"acorn_8123={KEY}",
        "origin": HOME if method != "GET" else None,
        "sec-fetch-site": "same-origin",
    }
    usual |= {"content-type": "application/json"} if method != "GET" else {}
    sent = {name: value for name, value in (usual | (headers or {})).items() if value is not None}
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=HOME) as client:
        return await client.request(method, path, headers=sent, **options)


def get(app: Any, path: str, **options: Any) -> httpx.Response:
    return asyncio.run(asked(app, "GET", path, **options))


def post(app: Any, path: str, body: Any = None, **options: Any) -> httpx.Response:
    return asyncio.run(asked(app, "POST", path, json={} if body is None else body, **options))


def begin(app: Any, question: str, **more: Any) -> str:
    """Start a run on the page and return its id."""
    answer = post(app, "/api/runs", {"input": {"question": question}, **more})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


def events(app: Any, run_id: str, came: str = "") -> list[dict[str, Any]]:
    """Return all events of a run."""
    return events_in(get(app, f"/api/runs/{run_id}/stream", headers={"last-event-id": came or None}))


def events_in(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [event for line in lines for event in httpx.Response(200, text=line).json()]


def ended(app: Any, question: str, **more: Any) -> dict[str, Any]:
    """Run to the end and return the last event."""
    return events(app, begin(app, question, **more))[-1]
