"""Tests of request messages: incremental encoding equals encoding the whole history, also in branches."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.cases import case

from acorn._history.history import History
from acorn._history.request_messages import RequestMessages
from acorn.models.request import message_json

Message = Any  # A message as a user may write it: any dict.

SYSTEM: Message = {"role": "system", "content": "Do."}
ASKED: Message = {"role": "user", "content": "Well?"}
OPENINGS = (ASKED,)


def turn(*ids: str, text: str = "") -> Message:
    calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def said(call_id: str, text: str = "seen") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


class Odd:
    """No plain data."""

    def __repr__(self) -> str:
        return "odd"


BASES: dict[str, list[Message]] = {
    "nothing": [],
    "a question": [SYSTEM, ASKED],
    "no system message": [ASKED],
    "a developer's message": [{"role": "developer", "content": "Do."}, ASKED],
    "a step": [SYSTEM, ASKED, turn("a"), said("a")],
    "a step without a system message": [ASKED, turn("a"), said("a")],
    "a step that was trimmed": [SYSTEM, turn("a"), said("a")],
    "a stray": [SYSTEM, ASKED, said("x", "stray")],
    "two calls of one id": [SYSTEM, ASKED, turn("a", "a"), said("a", "1"), said("a", "2")],
    "a call without a result": [SYSTEM, ASKED, turn("a"), ASKED],
    "something odd": [SYSTEM, ASKED, {"role": "user", "content": "x", "odd": Odd()}],
    "an odd system message": [{"role": "system", "content": "Do.", "odd": Odd()}, ASKED],
    "the model's turn": [SYSTEM, ASKED, turn(text="Hm.")],
    "an odd question": [{"role": "user", "content": "x", "odd": Odd()}],
    "an empty system message": [{"role": "system", "content": " "}, ASKED],
    "neither a system message nor ids": [ASKED, turn(""), said("")],
    "a system message at the end": [SYSTEM, ASKED, turn(text="Hm."), SYSTEM],
}
TAILS: dict[str, list[Message]] = {
    "nothing": [],
    "a step": [turn("b"), said("b")],
    "a step of an id that was used": [turn("a"), said("a", "again")],
    "ids that come twice": [turn("b", "b"), said("b", "1"), said("b", "2")],
    "no id": [turn(""), said("")],
    "a call that a stray answers": [turn("x")],
    "a result for what is before": [said("a", "late")],
    "a question": [{"role": "user", "content": "And?"}],
    "an empty turn": [turn(text=" ")],
}


def history_with(*messages: Message) -> History:
    """Return the history of a run whose user added the messages."""
    history = History(openings=OPENINGS)
    history.hand_out().extend(messages)
    history.take_edits()
    return history


def add(history: History, messages: list[Message]) -> None:
    """Add messages of acorn, as after a response and its results."""
    history.needs_repair = False
    history.splice(len(history.messages), 0, messages)


def sent(wire: RequestMessages, history: History) -> list[Message]:
    """Return the sent messages, and check that their JSON is equal."""
    part = wire.prepare(history)
    said = [{key: value for key, value in message.items() if value is not None} for message in part.filled()]
    assert list(map(json.loads, part.encoded(message_json))) == said
    assert list(map(json.loads, part.encoded(message_json))) == said
    return copy.deepcopy(list(part))


def afresh(history: History) -> list[Message]:
    return sent(RequestMessages(), History(history.messages, history.openings))


PAIRS = list(itertools.product(BASES, TAILS))


def test_request_after_messages_appended_by_user_equals_request_built_from_whole_history() -> None:
    for base, tail in PAIRS:
        with case(base, tail):
            wire, history = RequestMessages(), history_with(*BASES[base])
            assert sent(wire, history) == afresh(history)
            assert sent(wire, history) == afresh(history)
            for messages in (TAILS[tail], TAILS["a step"]):
                history.hand_out().extend(messages)
                history.take_edits()
                assert sent(wire, history) == afresh(history)


def test_request_after_messages_of_acorn_equals_request_built_from_whole_history() -> None:
    for base, tail in PAIRS:
        with case(base, tail):
            wire, history = RequestMessages(), history_with(*BASES[base])
            sent(wire, history)
            if not TAILS[tail]:
                continue
            add(history, TAILS[tail])
            assert sent(wire, history) == afresh(history)
            add(history, [turn("z"), said("z")])
            assert sent(wire, history) == afresh(history)


def test_request_of_branch_equals_request_built_from_whole_history() -> None:
    for base, tail in PAIRS:
        with case(base, tail):
            wire, history = RequestMessages(), history_with(*BASES[base])
            before = sent(wire, history)
            inherited = list(history.messages)
            own = History(openings=OPENINGS)
            own.start([*inherited, *TAILS[tail]], len(inherited))
            assert sent(wire.fork(history, inherited), own) == afresh(own)
            assert sent(wire, history) == before


def test_request_of_branch_with_other_prompt_equals_request_built_from_whole_history() -> None:
    for base, tail in PAIRS:
        with case(base, tail):
            wire, history = RequestMessages(), history_with(*BASES[base])
            sent(wire, history)
            inherited = list(history.messages)
            branch, own = wire.fork(history, inherited), History(openings=OPENINGS)
            prompt: Message = {"role": "system", "content": "Do otherwise."}
            has_one = bool(inherited) and inherited[0]["role"] == "system"
            branch.change_first(prompt, inherited[0] if has_one else None)
            own.start([prompt, *inherited[has_one:], *TAILS[tail]], len(inherited) + (not has_one))
            assert sent(branch, own) == afresh(own)


EDITS: dict[str, Callable[[list[Message]], Any]] = {
    "an early text": lambda history: history[1].update(content="Edited."),
    "a message is gone": lambda history: history.pop(1),
    "a key": lambda history: history[1].update(name="x"),
    "the end is gone": lambda history: history.pop(),
}


def test_request_after_history_edit_equals_request_built_from_whole_history() -> None:
    for edit in EDITS:
        for tail in TAILS:
            with case(edit, tail):
                wire, history = RequestMessages(), history_with(*BASES["a step"], *TAILS["a step"])
                sent(wire, history)
                EDITS[edit](history.hand_out())
                history.hand_out().extend(TAILS[tail])
                history.take_edits()
                assert sent(wire, history) == afresh(history)


def test_tool_result_belongs_to_nearest_preceding_call_with_its_id() -> None:
    history = History([ASKED, turn("a"), ASKED, turn("a"), said("a", "late")])
    assert [message.get("content") for message in afresh(history) if message["role"] == "tool"][-1] == "late"
    first = next(message for message in afresh(history) if message["role"] == "tool")
    assert first["content"] != "late"


@pytest.mark.parametrize("base", ["the model's turn", "a system message at the end"])
def test_request_for_history_that_ends_with_assistant_ends_with_user_message(base: str) -> None:
    made = afresh(History(BASES[base], OPENINGS))
    assert [message["role"] for message in made if message["role"] != "system"] == ["user", "assistant", "user"]


def test_invalid_tool_name_and_arguments_in_history_are_repaired() -> None:
    call = {"id": "a", "function": {"name": "functions.search" + "x" * 80, "arguments": '{"x": NaN}'}}
    asked: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    made = afresh(History([ASKED, asked, said("a")], OPENINGS))
    function = made[1]["tool_calls"][0]["function"]
    assert function["name"] == ("functions_search" + "x" * 80)[:64]
    assert function["arguments"] == "{}"


def test_input_message_missing_in_history_is_restored_in_request() -> None:
    other: Message = {"role": "user", "content": "And you?"}
    part = RequestMessages().prepare(History([SYSTEM, turn("a"), said("a"), ASKED], (ASKED, other)))
    assert part.filled()[1] == other
