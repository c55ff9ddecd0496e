"""Tests of prompt caching: cache marks, token counts, costs and stable request prefixes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.contract.conftest import Wire
from tests.loopback import Fault, Loopback

from acorn import ModelError, Run, Step, module, tool
from acorn.journal import ModelResponded
from acorn.models.port import Price
from acorn.stores.sqlite import SQLiteStore
from acorn.testing import Reply, ScriptedModel, call, finish
from acorn.types import Usage

Json = dict[str, Any]
EPHEMERAL = {"type": "ephemeral"}
DONE = finish(result="done")


class Looking(module):
    """You answer."""

    final_output = str
    max_steps = 5
    cache = "auto"

    @tool
    def look(self, place: str) -> str:
        """Look somewhere."""
        return f"nothing at {place}"


def script() -> list[Any]:
    return [Reply("Let me see.") & call("look", place="here"), call("look", place="ü/there"), DONE]


# Marks


def test_cache_setting_auto_adds_cache_control_only_to_anthropic_requests(wire: Wire) -> None:
    wire.serve(script())
    assert wire.call(Looking(model=wire.model())) == "done"
    for body in wire.server.bodies():
        assert body.get("cache_control") == wire.either(openai=None, anthropic=EPHEMERAL)
        assert "cache_control" not in json.dumps({key: body[key] for key in body if key != "cache_control"})


def test_cache_disabled_with_using_sends_no_cache_control(claude: Wire) -> None:
    for setting in [False, []]:
        with case(setting):
            claude.serve(script())
            assert claude.call(Looking(model=claude.model()).using(cache=setting)) == "done"
            assert all("cache_control" not in request.raw.decode() for request in claude.server.requests)


def test_branch_inherits_cache_setting(claude: Wire) -> None:
    class Checking(module):
        """Check it."""

        final_output = str
        max_steps = 2

    class Parent(Looking):
        branches = {"check": Checking}

    claude.serve([call("check"), DONE, DONE])
    assert claude.call(Parent(model=claude.model())) == "done"
    assert [body["cache_control"] for body in claude.bodies()] == [EPHEMERAL] * 3


def test_default_cache_control_rejected_by_server_is_omitted_in_later_requests(claude: Wire) -> None:
    """Skip servers that speak Anthropic's protocol without a cache."""
    words = "cache_control: Extra inputs are not permitted"
    claude.serve([Fault(status=400, message=words, code="invalid_request_error"), *script(), *script()])
    agent = Looking(model=claude.model())
    assert [claude.call(agent), claude.call(agent)] == ["done", "done"]
    assert ["cache_control" in body for body in claude.bodies()] == [True, *[False] * 6]


def test_explicit_cache_setting_rejected_by_server_raises_model_error(claude: Wire) -> None:
    words = "cache_control: Extra inputs are not permitted"
    claude.serve(lambda request: Fault(status=400, message=words, code="invalid_request_error"))
    with pytest.raises(ModelError, match="cache_control"):
        claude.call(Looking(model=claude.model(), cache=True))
    assert claude.count() == 1


def test_cache_setting_by_role_marks_system_message_and_latest_tool_results(claude: Wire) -> None:
    """Check the number of marks: Anthropic refuses more than four."""

    cache = [{"location": "message", "role": role} for role in ("system", "tool")]
    claude.serve([*(call("look", place=str(number)) for number in range(6)), DONE])
    assert claude.call(Looking(model=claude.model(), cache=cache, max_steps=9)) == "done"
    *_, last = claude.bodies()
    assert "cache_control" in last["system"][0]
    results = [message["content"][0] for message in last["messages"] if message["role"] == "user"][1:]
    assert ["cache_control" in result for result in results] == [False, False, False, True, True, True]


# Stable prefixes


def value_of(raw: bytes, key: str) -> bytes:
    """Return the bytes of a top-level value of a JSON object, as sent."""
    text = raw.decode()
    decoder, at = json.JSONDecoder(), text.index("{") + 1
    while True:
        name, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip(" ,\n")))
        begin = text.index(":", at) + 1
        begin += len(text[begin:]) - len(text[begin:].lstrip())
        _, at = decoder.raw_decode(text, begin)
        if name == key:
            return text[begin:at].encode()


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("cache", ["auto", True])
def test_request_bytes_before_cache_control_mark_are_equal_in_every_step(wire: Wire, streams: bool, cache: Any) -> None:
    class Checking(Looking):
        def on_step(self, step: Step) -> None:
            step.add_to_context("Be quick.")

    replies = [
        Reply("Let me see.", reasoning="Hm.") & call("look", place="here"),
        call("look", place="ü/there") & call("look", place=" ", _id="same"),
        Reply("I wonder."),
        finish(result=7),
        DONE,
    ]
    wire.serve(replies)
    agent = Checking(model=wire.model(), cache=cache)
    if streams and wire.way == "sync":
        assert list(agent.stream())[-1].result == "done"
    else:
        assert wire.call(agent) == "done"
    raws = [request.raw for request in wire.server.requests]
    assert len(raws) == len(replies)
    said = wire.either(openai="input" if wire.is_responses else "messages", anthropic="messages")
    kept = wire.either(openai="instructions" if wire.is_responses else "tools", anthropic="system")
    for key in ("tools", kept):
        assert len({value_of(raw, key) for raw in raws}) == 1, key
    talks = [value_of(raw, said) for raw in raws]
    for before, after in pairwise(talks):
        # Except for the closing bracket, and for the end of a user turn that has grown.
        assert after.startswith(before.rstrip(b"]} \n")), (before[-200:], after[:400])


# Counts and costs

SPENT = Usage(1000, 200, 600, 0, 1, 300)


def test_cache_write_tokens_are_counted_and_priced(wire: Wire) -> None:
    wire.serve([Reply(usage=SPENT) & call("look", place="here"), Reply(usage=SPENT) & DONE])
    run = wire.run(Looking(model=wire.model()))
    assert run.usage == Usage(2000, 400, 1200, 0, 2, 600)
    # claude-sonnet-4-5: $3 per million, $0.3 from the cache, $3.75 into it, $15; gpt-4o has no price for writing.
    claude = 100 * 3e-6 + 600 * 0.3e-6 + 300 * 3.75e-6 + 200 * 15e-6
    if not wire.is_openai:
        assert run.cost == pytest.approx(2 * claude)
    answered = [entry for entry in run.journal.entries if isinstance(entry, ModelResponded)]
    assert [entry.usage.cache_write_tokens for entry in answered] == [300, 300]


def test_cost_uses_cache_prices_given_in_model_dict(wire: Wire) -> None:
    prices = {
        "input_cost_per_token": 1e-6,
        "output_cost_per_token": 2e-6,
        "cache_read_input_token_cost": 1e-7,
        "cache_creation_input_token_cost": 4e-6,
    }
    wire.serve([Reply(usage=SPENT) & DONE])
    run = wire.run(Looking(model=wire.model(**prices)))
    assert run.cost == pytest.approx(100e-6 + 600e-7 + 300 * 4e-6 + 200 * 2e-6)
    assert not prices.keys() & wire.bodies()[0].keys()


def test_price_without_cache_rate_uses_input_price() -> None:
    assert Price(1.0, 2.0).of(Usage(10, 5, 4, 0, 1, 3)) == 20.0
    assert Price(1.0, 2.0, cached=0.5).of(Usage(10, 5, 4)) == 18.0


def test_store_contains_cache_write_tokens(tmp_path: Path) -> None:
    class Kept(Looking):
        store = tmp_path / "runs.db"

    first = call("look", place="here") & Reply(usage=SPENT)
    run = Kept(model=ScriptedModel([first, DONE & Reply(usage=SPENT)])).run()
    store = SQLiteStore(tmp_path / "runs.db")
    (facts,) = store.list()
    assert facts.usage == run.usage == Usage(2000, 400, 1200, 0, 2, 600)
    store.close()


def test_saved_run_without_cache_write_tokens_is_loaded_with_zero() -> None:
    new = Looking(model=ScriptedModel([call("look", place="x"), DONE])).run().to_json()
    old = new.replace(',"cache_write_tokens":0', "")
    assert new != old
    assert "cache_write_tokens" not in old
    read: Run[Any] = Run.from_json(old)
    assert read.usage.cache_write_tokens == 0


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_one_hour_cache_tokens_are_priced_separately(lane: str, litellm_is_loaded: None) -> None:
    usage = {
        "input_tokens": 100,
        "output_tokens": 10,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 300,
        "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
    }
    block = {"type": "tool_use", "id": "a", "name": "__finish__", "input": {"result": "done"}}
    message = {"type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "id": "m", "content": [block]}
    body = json.dumps({**message, "stop_reason": "tool_use", "usage": usage}).encode()
    with Loopback([Fault(body=body)]) as server:
        run = Looking(model=server.anthropic(lane=lane)).run()
    assert run.usage == Usage(400, 10, 0, 0, 1, 300)
    assert run.cost == pytest.approx(100 * 3e-6 + 100 * 3.75e-6 + 200 * 6e-6 + 10 * 15e-6)
