"""Fuzz test: any model response leads to a result or to an acorn error.

The responses are random: broken JSON, wrong types, unknown tools, empty responses, huge responses, lone surrogates,
missing or repeated ids, and several answers. Every request is valid, and every call gets a result. A failure message
contains the random seed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, Literal, cast

import pytest
from pydantic import BaseModel, Field
from tests.cases import case
from tests.long_version import IS_LONG
from tests.provider_rules import assert_complete, assert_request_valid, assert_thread_true
from tests.raw_model import RawModel

from acorn import LimitError, ModelError, ParseError, Run, Step, Unfinished, Usage, module, tool
from acorn.models import ModelRequest, ModelResponse, RawCall

RUNS = 100_000 if IS_LONG else 400
BATCH = max(200, RUNS // 10)
MOST_REQUESTS = 4 + 1 + 1 + 2  # Steps, the forced call, the fallback, corrections.

HUGE = "ä" * 100_000
TEXTS = [
    "", "", "", " \n", "Hm.", "\x00\x01\x1b[0m\x7f", "\ud800", "a\udfffb\ud83d", "\ufeff\u2028\uffff", "<error>",
    "]]>", "```json\n{}\n```", '{"answer": "nowhere"}', "null", "You must provide your final answer now.",
]  # fmt: skip
FORMS = [
    "<output><answer>nowhere</answer></output>", "```xml\n<output>\n  <answer>no & where</answer>\n</output>\n```",
    "<output><answer>", "<output/>", "<output></output>", "</output>", "<output", "<output><output><answer>x",
    "<output>\x00", "<!DOCTYPE a [<!ENTITY b 'c'>]><output><answer>&b;</answer></output>", "<output>" + "<a>" * 300,
    "<output>&#xD800;</output>", "<output><answer>\ud800</answer></output>", "<output><result>5</result></output>",
    "<output><items><item>1</item></items>",
    "<output><answer>x</answer><kind>no</kind><parts><part><count>many</count></part></parts></output>",
]  # fmt: skip
ARGUMENTS = [
    "", "{}", "{", "}", "[]", "null", "true", "5", '"text"', "NaN", "{'place': 'attic'}", "{place: attic}",
    '{"place"', "\x00", '{"place": "attic"}', '{"place": "attic", "depth": "2"}',
    '{"place": "attic", "depth": "deep"}', '{"place": null}', '{"place": "\ud800"}', '{"place": "\\ud800"}',
    '{"\ud800": 1}', '{"place": "\x00"}', '{"place": "\\u0000"}', "\ufeff{}", '{"place": "attic"} trailing',
    '{"place": "a", "place": "b"}', '{"place": {"place": {"place": []}}}', '{"depth": 1e999}',
    '{"depth": 123456789012345678901234567890}', '{"depth": NaN}', '{"depth": -Infinity}', '{"": ""}',
    '{"__class__": "x"}', '{"answer": "nowhere"}', '{"answer": 5}', '{"answer": ["nowhere"]}',
    '{"answer": "nowhere", "more": 1}', '{"result": 5}', '{"result": "five"}', '{"result": [1, "2", null]}',
    '{"result": {"a": NaN}}', '{"result": null}', '{"kind": "a"}',
    '{"answer": "x", "kind": "a", "parts": [{"count": 1}]}',
    '{"answer": "x", "kind": "c", "parts": [{"count": -1}, 5]}',
    '{"answer": "x", "kind": "a", "parts": {"count": 1}, "next": {"next": {"next": {}}}}', "[" * 5000, '{"a":' * 300,
    '{"answer": ""}', '{"answer": "\ud83e\udd94"}', '{"answer": "no\\nwhere"}',
]  # fmt: skip
NAMES = [
    "look",
    "add",
    "boom",
    "__finish__",
    "__finish__",
    "",
    " ",
    "nothing",
    "LOOK",
    "functions.look",
    "\ud800",
    "\x00",
]
IDS = [None, "", "a", "b", "call_2_0", "call_2_1", "call_0", "\ud800", "\ud801", "\x00", "x" * 1000]
STOPS = ["stop", "tool_calls", "length", "", "eos", "end_turn", "\x00", "content_filter"]


class Kind(Enum):
    a = "a"
    b = "b"


class Part(BaseModel):
    count: int = Field(ge=0)


class Simple(BaseModel):
    answer: str


class Nested(BaseModel):
    answer: str = Field(min_length=1, description="What <it> is -- & why")
    kind: Kind | None = None
    parts: list[Part] = []
    choice: Literal["x", 1] | float = 1
    next: Nested | None = None


@tool
def look(place: str, depth: int = 1) -> Any:
    """Look somewhere."""
    return {"place": place, "depth": depth}


@tool
def add(numbers: list[float] | None = None, **more: Any) -> float:
    """Add numbers."""
    return sum(numbers or [])


@tool
def boom(part: Part | None = None) -> str:
    """Fail."""
    raise ValueError(f"no \ud800 {part}")


class Single(module[Any, Any]):
    """Answer."""

    final_output: Any = Simple


class SingleNested(Single):
    final_output = Nested


class SingleText(Single):
    final_output = str


class SingleList(Single):
    final_output = list[int]


class SingleAny(Single):
    final_output = dict[str, Any]


class SingleNone(Single):
    final_output = []


class Picker(Single):
    tools = [look, add, boom]


class Loop(Picker):
    max_steps = 3


class LoopNested(Loop):
    final_output = Nested
    loop_guard = "force"


class LoopJudged(Loop):
    """Look, then answer, and be judged."""

    max_steps = 2

    def on_step(self, step: Step) -> None:
        if step.counter == 2 and len(step.content) > 3:
            step.finish(answer="enough")
        if not step.tool_calls:
            step.add_to_context(step.content)

    def on_finish(self, output: Simple) -> Simple | None:
        if len(output.answer) % 3 == 0:
            raise ValueError(f"not {output.answer[:50]}")
        return None


class LoopLimited(Loop):
    """Look, and mind the cost."""

    max_total_tokens = 2000
    max_steps = 4


MODULES: list[type[module[Any, Any]]] = [
    Single, SingleNested, SingleText, SingleList, SingleAny, SingleNone, Picker, Loop, Loop, LoopNested, LoopJudged,
    LoopLimited,
]  # fmt: skip
OUTPUTS: dict[type[module[Any, Any]], Any] = {
    SingleNested: Nested, SingleText: str, SingleList: list, SingleAny: dict, SingleNone: type(None),
    LoopNested: Nested,
}  # fmt: skip


# Responses


def _text(chance: random.Random) -> str:
    if chance.random() < 0.003:
        return HUGE
    if chance.random() < 0.3:
        return _damaged(chance, chance.choice(FORMS))
    return chance.choice(TEXTS)


def _arguments(chance: random.Random) -> str:
    if chance.random() < 0.005:
        huge: list[Callable[[], str]] = [
            lambda: json.dumps({"place": HUGE, "answer": HUGE, "result": HUGE}),
            lambda: json.dumps({"place": "x", "answer": "x", **{f"key {n}": n for n in range(9000)}}),
            lambda: json.dumps({"result": list(range(18_000)), "parts": [{"count": "no"}] * 5000}),
            lambda: '{"answer": "' + HUGE,
        ]
        return chance.choice(huge)()
    return _damaged(chance, chance.choice(ARGUMENTS))


def _damaged(chance: random.Random, text: str) -> str:
    """Return the text, sometimes cut or with one character changed."""
    if not text or chance.random() < 0.8:
        return text
    at = chance.randrange(len(text))
    odd = chance.choice(["", '"', "{", "}", "<", "&", "\x00", "\ud800", "\\", "\n", "5", ","])
    return text[:at] if chance.random() < 0.4 else text[:at] + odd + text[at + 1 :]


def _call(chance: random.Random) -> RawCall:
    name = chance.choice(NAMES) if chance.random() < 0.95 else _damaged(chance, chance.choice(["look", "x" * 500]))
    call = RawCall(chance.choice(IDS), name, _arguments(chance))
    if chance.random() < 0.01:  # Like an adapter that passes on what it received.
        setattr(call, chance.choice(["name", "arguments"]), None)
    return call


def _reply(chance: random.Random) -> ModelResponse:
    calls = [_call(chance) for _ in range(chance.choice([0, 0, 1, 1, 1, 2, 3]))]
    if chance.random() < 0.01:
        calls *= 40
    usage = Usage(chance.choice([0, 10, 10, 500]), chance.choice([0, 10, 10, 500]), requests=1)
    return ModelResponse(
        content=_text(chance),
        tool_calls=calls,
        stop_reason=chance.choice(STOPS[:-1] if chance.random() < 0.97 else STOPS),
        usage=usage,
        model=chance.choice(["", "raw-2", "\x00"]),
        reasoning=chance.choice([None, "", "Hm.", "\ud800"]),
        refusal=chance.choice(["", "No.", "\ud800"]) if chance.random() < 0.01 else None,
        extra=chance.choice([{}, {}, {"reasoning_content": "\ud800"}, {"thinking_blocks": [{"signature": "x"}]}]),
    )


# The run


def _judge(model: RawModel, run: Run[Any]) -> None:
    for request in model.requests:
        assert_request_valid(request)
    assert_complete(run.history)
    assert_thread_true(run)
    assert len(model.requests) <= MOST_REQUESTS, "more requests than steps and corrections allow"
    assert [message for message in run.history if not isinstance(message["content"], str)] == []


def check(seed: int) -> str:
    """One run; how it ended."""
    chance = random.Random(seed)
    kind = chance.choice(MODULES)
    answers: Callable[[ModelRequest], ModelResponse] = lambda _: _reply(chance)  # noqa: E731
    model = RawModel(answers, forces=chance.random() < 0.5)
    form = "thread" if seed % 3 == 0 else "messages"
    agent = kind(model=model, parse_retries=chance.randrange(3), history_format=form)
    with suppress(ParseError, ModelError, LimitError):
        agent.run()
    run = cast(Run[Any], agent.last)
    _judge(model, run)
    if run.error is not None:
        assert getattr(run.error, "run", None) is run
        assert str(run.error).strip()
        return type(run.error).__name__
    if isinstance(run.output, Unfinished):
        assert kind.max_steps is None
        return "Unfinished"
    assert isinstance(run.output, OUTPUTS.get(kind, Simple))
    return "output"


@pytest.mark.parametrize("first", range(0, RUNS, BATCH))
def test_random_model_responses_give_result_or_acorn_error(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    ends: Counter[str] = Counter()
    for seed in range(first, first + BATCH):
        with case(seed):
            ends[check(seed)] += 1
    assert {"output", "Unfinished", "ParseError", "ModelError"} <= ends.keys(), "the replies are too much alike"
    record_property("tried", f"{BATCH:,} runs with random responses")
