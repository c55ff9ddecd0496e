"""Tests of stored data: a store returns it unchanged, and API keys are not stored."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from tests.behaviour.schemas import Answer, Question
from tests.behaviour.stored import STORES, by_turn, desk, interrupting
from tests.cases import each_case
from tests.clock import FakeClock
from tests.long_version import IS_LONG
from tests.parts import Photo
from tests.waiting import PATIENCE

import acorn
from acorn import LimitError, ModelError, StoreError, module, tool
from acorn._base.clock import use_clock
from acorn.journal import Entry, RunStarted
from acorn.models import ModelRequest
from acorn.stores import MemoryStore
from acorn.testing import Failure, Reply, ScriptedModel, call, finish
from acorn.types import Usage


@pytest.fixture(params=[name for name in STORES if name != "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore() if request.param == "memory" else tmp_path / "runs.db"


LARGE = 10_000_000 if IS_LONG else 2_000_000


class Rich(BaseModel):
    raw: bytes = b"abc"
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    on: date = date(2026, 1, 2)
    price: Decimal = Decimal("1.10")
    number: float = math.inf
    id: UUID = UUID(int=7)
    names: set[str] = {"a"}


class Odd(module[Question, Rich]):
    """Odd."""

    max_steps = 9
    stops: bool

    @tool
    def look(self) -> Any:
        """Look."""
        return {
            "nan": math.nan,
            "half": "\ud800",
            "at": datetime(2026, 1, 2, tzinfo=UTC),
            "raw": b"\xff",
            "d": Decimal("1"),
        }

    @tool
    def stop(self) -> str:
        """Stop."""
        if self.stops:
            raise KeyboardInterrupt
        return "x"

    @tool
    def big(self) -> str:
        """Much."""
        return "ä" * LARGE


def test_infinite_numbers_and_invalid_characters_are_unchanged_after_resume(store: Any) -> None:
    script = [call("look"), call("stop"), finish(number=math.inf, raw="abc")]
    agent = Odd(model=by_turn(*script), store=store)
    agent.stops = True
    with pytest.raises(KeyboardInterrupt) as caught:
        agent.using(run_id="a")(question="\ud800 why \x00?")
    again = Odd(model=by_turn(*script), store=store)
    again.stops = False
    again = again.using(run_id="a")
    output = again(question="\ud800 why \x00?")
    assert output == Rich(number=math.inf, raw=b"abc")
    assert again(question="\ud800 why \x00?") == output
    assert again.last is not None
    first: Any = caught.value.run  # type: ignore[attr-defined]
    assert again.last.history[:4] == first.history[:4]
    assert acorn.runs(store).get("a").history == again.last.history


def test_large_tool_result_is_unchanged_after_load(store: Any) -> None:
    script = [call("big"), call("stop"), finish()]
    agent = Odd(model=by_turn(*script), store=store)
    agent.stops = True
    with pytest.raises(KeyboardInterrupt):
        agent.using(run_id="a")(question="why?")
    agent.stops = False
    agent.using(run_id="a")(question="why?")
    assert len(acorn.runs(store).get("a").history[3]["content"]) == LARGE


@each_case("run_id", ["日本", "it's", 'say "x"', "50%", "a_b", "a/b", "-x", "[a]*?", "ß" * 200])
def test_run_id_with_any_printable_text_is_accepted(store: Any, run_id: str) -> None:
    agent = desk(store, lambda: "", finish(answer="x"))
    agent.using(run_id=run_id)(question="why?")
    agent.using(run_id="other")(question="why?")
    assert agent.resume(run_id) == Answer(answer="x")
    from acorn.stores.open import open_store

    opened = open_store(store, "x")
    assert opened.find(run_id) == [run_id]
    assert opened.find(run_id[:1]) == [run_id]
    assert acorn.runs(store).get(run_id).id == run_id
    acorn.runs(store).delete(run_id)
    assert [each.id for each in acorn.runs(store).list()] == ["other"]


def test_deps_are_not_stored_and_must_be_passed_again_to_resume(store: Any) -> None:
    class Desk(module[Question, Answer, object]):
        """Answer."""

        max_steps = 9

        @tool
        def look(self) -> str:
            """Look."""
            seen.append(self.deps)
            if len(seen) == 1:
                raise KeyboardInterrupt
            return "seen"

    seen: list[object] = []
    lock, other = object(), object()
    agent = Desk(model=by_turn(call("look"), finish(answer="x")), store=store)
    with pytest.raises(KeyboardInterrupt):
        agent.using(deps=lock, run_id="a")(question="why?")
    assert agent.resume("a", deps=other) == Answer(answer="x")
    assert seen == [lock, other]
    assert agent.resume("a") == Answer(answer="x")


def test_usage_before_interruption_counts_against_limits_after_resume(store: Any) -> None:
    used = Usage(input_tokens=1000, output_tokens=10, requests=1)
    script = [Reply(calls=call("look").calls, usage=used) for _ in range(8)] + [finish(answer="x")]
    looked: list[int] = []

    def act() -> str:
        looked.append(1)
        if len(looked) == 2:
            raise KeyboardInterrupt
        return "seen"

    agent = desk(store, act, *script, max_total_tokens=5000).using(run_id="a")
    with pytest.raises(KeyboardInterrupt):
        agent(question="why?")
    agent = desk(store, act, *script, max_total_tokens=5000).using(run_id="a")
    with suppress(LimitError):
        agent(question="why?")
    assert agent.last is not None
    assert 2020 < agent.last.usage.total_tokens <= 6000
    assert acorn.runs(store).get("a").usage == agent.last.usage


def test_listener_of_resumed_stored_run_receives_only_journal_entries_after_resume(store: Any) -> None:
    agent = desk(store, interrupting())
    with pytest.raises(KeyboardInterrupt):
        agent.using(run_id="a")(question="why?")
    heard: list[Entry] = []
    with acorn.listen(heard.append), acorn.capture() as runs:
        agent.resume("a")
    assert heard
    assert not any(isinstance(entry, RunStarted) for entry in heard)
    assert [run.id for run in runs] == ["a"]
    assert agent.last is runs[0]
    assert agent.last.journal.entries[-len(heard) :] == heard
    heard.clear()
    with acorn.listen(heard.append):
        agent.resume("a")
    assert not heard


def test_agent_last_is_record_of_returned_stored_run(store: Any) -> None:
    desk(store, lambda: "", finish(answer="x")).using(run_id="a")(question="why?")
    one, two, three = (desk(store).using(run_id="a") for _ in range(3))
    one.resume("a")
    asyncio.run(two.aresume("a"))
    list(three.stream(question="why?"))
    for each in (one, two, three):
        assert each.last is not None
        assert (each.last.id, each.last.output, each.last.usage.requests) == ("a", Answer(answer="x"), 1)


def test_seconds_of_earlier_processes_count_against_max_seconds(store: Any) -> None:
    is_resumed, has_ended, clock = False, threading.Event(), FakeClock()

    def act() -> str:
        if is_resumed:
            assert has_ended.wait(PATIENCE)  # The time is over, so the run does not wait for the tool.
            return "too late"
        clock.advance(10)
        raise KeyboardInterrupt

    agent = desk(store, act, max_seconds=10)
    with use_clock(clock):
        with pytest.raises(KeyboardInterrupt):
            desk(store, act).using(run_id="a")(question="why?")
        is_resumed = True
        with pytest.raises(LimitError) as caught:
            agent.resume("a")
    has_ended.set()
    assert not agent.model.requests
    assert caught.value.run is not None
    assert caught.value.run.seconds >= 10


def test_branch_usage_is_counted_once_after_resume(store: Any) -> None:
    class Inner(module[Question, Answer]):
        """Inside."""

        max_steps = 5

        @tool
        def look(self) -> str:
            """Look."""
            looked.append(1)
            if len(looked) == 1:
                raise KeyboardInterrupt
            return "seen"

    class Desk(module[Question, Answer]):
        """Answer."""

        max_steps = 9
        branches = {"inner": Inner}

        @tool
        def dig(self) -> str:
            """Dig."""
            return self.branch(Inner, question="deep").answer

    def answer(request: ModelRequest) -> Reply:
        said = [message["role"] for message in request.messages]
        deep = [at for at, each in enumerate(request.messages) if each["role"] == "user" and "deep" in str(each)]
        if deep:
            inside: Reply = [call("look"), finish(answer="found")][said[deep[0] :].count("assistant")]
            return inside
        given = {"question": "deep"} if how == "inner" else {}
        reply: Reply = [call(how, **given), finish(answer="x")][said.count("assistant")]
        return reply

    for how in ("inner", "dig"):
        looked: list[int] = []
        agent = Desk(model=ScriptedModel(answer), store=store).using(run_id=how)
        with pytest.raises(KeyboardInterrupt):
            agent(question="why?")
        assert acorn.runs(store).get(how).usage.requests == 2
        agent(question="why?")
        assert agent.last is not None
        assert agent.last.usage.requests == 4
        assert acorn.runs(store).get(how).usage == agent.last.usage
        assert acorn.runs(store).list()[0].usage == agent.last.usage


CANARY = "sk-canary-5b1f0c7d9e"


def test_api_key_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{CANARY}-environment")
    file = tmp_path / "runs.db"

    class Desk(module[Question, Answer]):
        """Answer."""

        max_steps = 9
        model = {
            "model": "openai/none",
            "api_key": f"{CANARY}-class",
            "api_base": "http://127.0.0.1:9",
            "num_retries": 0,
        }
        store = str(file)

    other = {**Desk.model, "api_key": f"{CANARY}-own", "extra_headers": {"Authorization": f"Bearer {CANARY}-header"}}
    for agent in (
        Desk(),
        Desk(model=other),
        Desk(model=[other, {**other, "model": "openai/more"}]),
        Desk().using(model=other),
    ):
        with pytest.raises(ModelError) as caught:
            agent(question="why?")
        with pytest.raises((ModelError, StoreError)):
            agent.resume(caught.value.run.id)

    class Setter(Desk):
        """Sets it in a hook."""

        def on_start(self, step: Any) -> None:
            step.model = other

    with pytest.raises(ModelError):
        Setter()(question="why?")
    failing = ScriptedModel([Failure(status=500, message=f"bad key {CANARY}-environment")] * 2)
    with pytest.raises(ModelError):
        Desk(model=failing)(question="why?")
    acorn.runs(file)._store.close()
    for each in tmp_path.iterdir():
        assert CANARY.encode() not in each.read_bytes(), each


def test_content_parts_of_result_are_unchanged_after_resume(store: Any) -> None:
    class Desk(module[Question, Answer]):
        """Answer."""

        max_steps = 9

        @tool
        def look(self) -> Any:
            """Look."""
            return ["A picture:", Photo(url="https://a.example/b.png")]

        @tool
        def stop(self) -> str:
            """Stop."""
            stopped.append(1)
            if len(stopped) == 1:
                raise KeyboardInterrupt
            return "on"

    stopped: list[int] = []
    for script in ([call("look"), call("stop"), finish(answer="x")], [call("look") & call("stop"), finish(answer="x")]):
        stopped.clear()
        agent = Desk(model=by_turn(*script), store=store)
        with pytest.raises(KeyboardInterrupt) as caught:
            agent(question="why?")
        agent.resume(caught.value.run.id)  # type: ignore[attr-defined]
        undisturbed = Desk(model=by_turn(*script))
        undisturbed(question="why?")
        assert agent.last is not None
        assert undisturbed.last is not None
        assert agent.last.history == undisturbed.last.history
