"""Test of the requests before, during and after a compaction."""

from __future__ import annotations

import json
from typing import Any

from tests.contract.conftest import Wire
from tests.loopback import Request

from acorn import module, tool
from acorn.testing import Reply, call, finish
from acorn.types import Usage

FACT = "The code of the safe is 4711."


@tool
def look(at: int) -> str:
    """Look somewhere."""
    return f"{FACT} {'x' * 50}" if at == 1 else f"seen {at}"


class Looker(module[Any, str]):
    """Look around."""

    initial_input = str
    final_output = str
    tools = [look]
    max_steps = 9
    compact_at = 500


def reply(request: Request) -> Reply:
    body = request.body
    text = json.dumps(body.get("messages") or body["input"])
    if not body.get("tools"):
        assert FACT in text
        return Reply("It was found that the code is 4711.", usage=Usage(300, 20, requests=1))
    seen = [at for at in range(2, 9) if f"seen {at}" in text]
    if seen and max(seen) >= 5:
        return finish("4711" if "the code is 4711" in text else "unknown")
    is_past = max(seen, default=0) >= 3
    at = max(seen) + 1 if seen else 2 if FACT in text else 1
    return call("look", _id=f"c{at}", at=at) & Reply(usage=Usage(600 if is_past else 100, 10, requests=1))


def test_compaction_summary_replaces_older_steps_in_request(wire: Wire) -> None:
    wire.serve(reply)
    run = wire.run(Looker(model=wire.model()), "Open the safe.")
    assert run.output == "4711"
    bodies = wire.bodies()
    asked = [at for at, body in enumerate(bodies) if not body.get("tools")]
    assert len(asked) == 1
    before, summing, after = bodies[asked[0] - 1 : asked[0] + 2]
    assert "tools" not in summing
    assert "tool_choice" not in summing
    assert FACT in json.dumps(before["messages"])
    assert FACT not in json.dumps(after["messages"])
    assert "the code is 4711" in json.dumps(after["messages"])
    assert "Open the safe." in json.dumps(after["messages"])
    assert "Look around." in json.dumps(after)
    assert summing["model"] == before["model"]
    if wire.is_openai:
        roles = [message["role"] for message in after["messages"]]
        assert roles == ["system", "user", "user", "assistant", "tool", "assistant", "tool"]
    called = [each for each in json.dumps(after["messages"]).split('"') if each in ("c1", "c2", "c3", "c4")]
    assert called == ["c3", "c3", "c4", "c4"]
    assert run.usage.requests == len(bodies)
