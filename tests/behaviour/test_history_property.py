"""Property test: after any history edit in `on_step`, the next request is valid and equals a newly built request.

The runs have up to twelve steps. Each step trims, reorders and edits the history and the results at random. A failure
message contains the random seed.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel
from tests.cases import case
from tests.long_version import IS_LONG
from tests.provider_rules import assert_request_valid, assert_thread_true
from tests.raw_model import RawModel, calling, finishing
from tests.threaded_model import conversation

from acorn import AcornError, Run, Step, ToolResult, capture, current_run, module, tool
from acorn._history.history import History
from acorn._history.request_messages import RequestMessages
from acorn.models import ModelRequest, ModelResponse
from acorn.models.request import message_json
from acorn.thread.xml import ThreadMessage

RUNS = 40_000 if IS_LONG else 120
BATCH = 5_000 if IS_LONG else RUNS
STEPS = 12

Message = Any  # A message as a user may write it: any dict.

IDS: list[Any] = ["a", "b", "call_0", "call_2_0", "call_4_1", "", None, 5, "\ud800", "\ud801"]
TEXTS: list[Any] = ["Hi", "Go on.", "größer", "", " \n", "\ud83d", "\x00", "<input />", "x" * 3000]
CONTENTS: list[Any] = [
    None, 5, math.nan, True, b"raw", {"a": 1}, [], [{"type": "text", "text": "Hi"}], ["Hi", ""], [None], ("Hi",),
    object(), [{"type": "image_url", "image_url": {"url": "data:,"}}], [{"type": "text", "text": "\udfff"}],
]  # fmt: skip
ARGUMENTS: list[Any] = [
    "{}", '{"place": "attic"}', '{"place": ', "[]", "null", "", '{"x": NaN}', '{"place": "\ud800"}', '{"a": {"b": 1}}',
    {"place": "attic"}, {"place": math.inf}, None, 5, [], {1: 2}, '{"place": 5}', '{"place": "\\ud800"}',
]  # fmt: skip
NAMES: list[Any] = ["look", "look", "look", "__finish__", "functions.look", "", None, "größe", "x" * 99, 5, "nothing"]


class Place(BaseModel):
    place: str = "here"


@tool(parallel=False)
def look(place: str) -> Any:
    """Look somewhere; what is there may be anything, and it may meddle with the history."""
    chance: random.Random = current_run().deps
    if chance.random() < 0.05:
        _history_edit(chance, current_run().history)
    if chance.random() < 0.1:
        raise ValueError(place)
    return chance.choice([place, None, {"place": place}, Place(place=place), b"\xff", "\ud83d", [1.5, math.nan]])


class Meddler(module[Place, Place]):
    """Look around."""

    tools = [look]
    max_steps = STEPS
    parse_retries = 50

    def on_step(self, step: Step) -> None:
        chance: random.Random = step.run.deps
        if chance.random() < 0.3:
            step.add_to_context(chance.choice(["Hurry", {"why": ["late", None]}]))
        for _ in range(chance.choice([0, 0, 1, 1, 2, 4])):
            _history_edit(chance, self.history)
        for _ in range(chance.choice([0, 0, 0, 1, 2])):
            _results_edit(chance, step.tool_results)
        if chance.random() < 0.25:
            self.history = _replaced(chance, self.history)


class Patient(Meddler):
    """Look around, and edit late: until then no code has the history."""

    def on_step(self, step: Step) -> None:
        if step.counter > STEPS // 3:
            super().on_step(step)


# Edits of a user


def _history_edit(chance: random.Random, history: list[Message]) -> None:
    edits: list[Callable[[random.Random, list[Message]], None]] = [
        _drop, _drop, _cut, _move, _move, _swap, _shuffle, _double, _insert, _insert, _insert, _scribble, _scribble,
        _scribble, _clear,
    ]  # fmt: skip
    chance.choice(edits)(chance, history)


def _drop(chance: random.Random, history: list[Message]) -> None:
    if history:
        del history[chance.randrange(len(history))]


def _cut(chance: random.Random, history: list[Message]) -> None:
    start = chance.randrange(len(history) + 1)
    del history[start : start + chance.randrange(4)]


def _move(chance: random.Random, history: list[Message]) -> None:
    if history:
        history.insert(chance.randrange(len(history)), history.pop(chance.randrange(len(history))))


def _swap(chance: random.Random, history: list[Message]) -> None:
    if history:
        one, other = chance.randrange(len(history)), chance.randrange(len(history))
        history[one], history[other] = history[other], history[one]


def _shuffle(chance: random.Random, history: list[Message]) -> None:
    if chance.random() < 0.3:
        chance.shuffle(history)


def _clear(chance: random.Random, history: list[Message]) -> None:
    if chance.random() < 0.2:
        history.clear()


def _double(chance: random.Random, history: list[Message]) -> None:
    if history:
        message = chance.choice(history)
        history.insert(chance.randrange(len(history) + 1), chance.choice([message, copy.deepcopy(message)]))


def _insert(chance: random.Random, history: list[Message]) -> None:
    message: Any = _message(chance)
    if chance.random() < 0.005:
        message = chance.choice([None, "Hi", {}, {"role": "robot"}])
    at = len(history) if chance.random() < 0.4 else chance.randrange(len(history) + 1)
    history.insert(at, message)


def _scribble(chance: random.Random, history: list[Message]) -> None:
    """Change a message in place, including its calls and parts."""
    if not history or not isinstance(message := chance.choice(history), dict):
        return
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls and chance.random() < 0.7:
        at = chance.randrange(len(calls))
        how = chance.randrange(6)
        if how == 0:
            del calls[at]
        elif how == 1:
            calls.append(chance.choice([calls[at], _call(chance), None]))
        elif how == 2:
            calls[at] = _call(chance)
        elif isinstance(calls[at], dict):
            holder = calls[at].get("function")
            target = holder if isinstance(holder, dict) and how < 5 else calls[at]
            target[chance.choice(["name", "arguments", "id"])] = _pick(chance, [*IDS, *ARGUMENTS])
    elif isinstance(message.get("content"), list) and message["content"] and chance.random() < 0.7:
        message["content"][0] = {"type": "text", "text": chance.choice(TEXTS)}
    else:
        key = chance.choice(["content", "content", "content", "tool_calls", "tool_call_id", "name", "x"])
        message[key] = _pick(chance, [*TEXTS, *CONTENTS])


def _replaced(chance: random.Random, history: list[Message]) -> list[Message]:
    ways: list[Callable[[], list[Message]]] = [
        lambda: list(history),
        lambda: [copy.deepcopy(message) for message in history],
        lambda: history[:1] + history[-chance.randrange(1, 8) :],
        lambda: history[-chance.randrange(1, 4) :],
        lambda: [message for message in history if chance.random() < 0.7],
        lambda: [*history, *history],
        lambda: history[::-1],
        list,
    ]
    return chance.choice(ways)()


def _pick(chance: random.Random, values: list[Any]) -> Any:
    """Return a separate copy, so that edits do not change what later runs choose."""
    return copy.deepcopy(chance.choice(values))


def _results_edit(chance: random.Random, results: list[ToolResult]) -> None:
    how = chance.randrange(6)
    if how == 0:
        chance.shuffle(results)
    elif how == 1:
        results.append(ToolResult(chance.choice(IDS), "look", _pick(chance, CONTENTS)))
    elif how == 2 and results:
        del results[chance.randrange(len(results))]
    elif how == 3 and results:
        chance.choice(results).output = _pick(chance, [*TEXTS, *CONTENTS])
    elif how == 4 and results:
        chance.choice(results).error = chance.choice(TEXTS)
    elif results:
        one, other = chance.choice(results), chance.choice(results)
        one.id, other.id = chance.choice([(other.id, one.id), (chance.choice(IDS), other.id)])


# Contents of a history


def _message(chance: random.Random) -> Message:
    role = chance.choice(["user", "user", "system", "assistant", "assistant", "tool", "tool", "developer"])
    message: Message = {"role": role}
    if chance.random() < 0.9:
        message["content"] = _pick(chance, TEXTS if chance.random() < 0.6 else CONTENTS)
    if role == "assistant" and chance.random() < 0.7:
        message["tool_calls"] = [_call(chance) for _ in range(chance.randrange(4))]
    if role == "tool" and chance.random() < 0.9:
        message["tool_call_id"] = chance.choice(IDS)
    if chance.random() < 0.1:
        message[chance.choice(["x", "name", "tool_calls", "tool_call_id"])] = _pick(chance, CONTENTS)
    return message


def _call(chance: random.Random) -> Any:
    if chance.random() < 0.1:
        return chance.choice([None, "look", {}, {"function": None}, 5])
    inner = {"name": chance.choice(NAMES), "arguments": _pick(chance, ARGUMENTS)}
    if chance.random() < 0.3:
        return {"id": chance.choice(IDS), **inner}
    return {"id": chance.choice(IDS), "type": "function", "function": inner}


def _reply(chance: random.Random) -> ModelResponse:
    ids = [chance.choice(["a", "call_0", "call_2_0", None, "", "\ud800", str(chance.random())]) for _ in range(3)]
    texts = [text for text in ARGUMENTS if isinstance(text, str)]
    made = [(each, chance.choice(["look", "look", "look", "nothing", "a.b", ""]), chance.choice(texts)) for each in ids]
    if chance.random() < 0.05:
        made[0] = (made[0][0], "__finish__", '{"place": 5}')
    return calling(*made[: chance.randrange(4)], content=chance.choice(["", "", " ", "Hm.", "\ud83d"]))


# The run


class Watch:
    """A model that checks each request, immediately or at the end."""

    def __init__(self, chance: random.Random, *, is_threaded: bool) -> None:
        self.chance = chance
        self.is_threaded = is_threaded
        self.model = RawModel(self.answer, forces=chance.random() < 0.8)
        self.snapshots: list[str] = []
        self.runs: list[Run[Any]] = []

    def answer(self, request: ModelRequest) -> ModelResponse:
        # Not `history`, which would hand it out: a run may skip work while no code has it.
        history = self.runs[0]._history
        part = RequestMessages().prepare(History(history.messages, history.openings))
        messages: list[Message] = part.filled()
        if self.is_threaded:
            messages = ThreadMessage().wrap(messages)
        assert request.messages == messages, "what was kept from earlier requests differs from a fresh reading"
        if self.is_threaded:
            conversation(request.messages)
        elif self.chance.random() < 0.6:
            assert request.encoded(message_json) == part.encoded(message_json)
        self.snapshots.append(json.dumps(request.messages))
        if request.forced_tool or self.chance.random() < 0.05:
            return finishing(place="everywhere")
        if "<output" in str(request.messages[-1]["content"]).replace("&lt;", "<"):
            return ModelResponse("<output><place>everywhere</place></output>")
        return _reply(self.chance)

    def judge(self) -> None:
        for request, snapshot in zip(self.model.requests, self.snapshots, strict=True):
            assert_request_valid(request)
            assert json.dumps(request.messages) == snapshot, "a request changed after it was sent"
        for run in self.runs:
            assert_thread_true(run, is_edited=True)


def check(seed: int) -> int:
    """Run once and return the number of requests."""
    chance = random.Random(seed)
    watch = Watch(chance, is_threaded=seed % 3 == 0)
    prior = [_message(chance) for _ in range(chance.choice([0, 0, 0, 3, 6]))]
    before = repr(prior)
    form = "thread" if watch.is_threaded else "messages"
    kind = Patient if seed % 2 else Meddler
    agent = kind(model=watch.model, history_format=form).using(deps=chance, history=prior)
    with suppress(AcornError), capture() as watch.runs:
        agent.run(place="here")
    assert repr(prior) == before, "the user's own list was changed"
    watch.judge()
    return len(watch.model.requests)


def _input(agent: Meddler) -> str:
    """Return the input as the first request of a plain run shows it."""
    plain = RawModel([finishing(place="")])
    agent.using(model=plain, history=[], history_format="messages").run(place="here")
    return str(plain.requests[0].messages[1]["content"])


@pytest.mark.parametrize("first", range(0, RUNS, BATCH))
def test_random_history_edits_in_on_step_give_valid_request_equal_to_newly_built_request(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    lengths: list[int] = []
    for seed in range(first, first + BATCH):
        with case(seed):
            lengths.append(check(seed))
    record_property("tried", f"{len(lengths):,} runs with random history edits")
    assert max(lengths) > STEPS, "no run went all the way"
    assert sum(lengths) > 5 * BATCH, "the runs are too short to mean much"
