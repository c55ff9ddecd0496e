"""Tests of request messages: incremental encoding equals encoding the whole history, also in branches."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.cases import case

from acorn._history.request_messages import RequestMessages

Message = Any  # A message as a user may write it: any dict.

SYSTEM: Message = {"role": "system", "content": "Do."}
ASKED: Message = {"role": "user", "content": "Well?"}
OPENINGS = [ASKED]


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


def sent(wire: RequestMessages, history: list[Message], written: list[Message] | None = None) -> list[Message]:
    """Return the sent messages, and check that their JSON is equal."""
    part = wire.prepare(history, OPENINGS, written)
    messages = part.messages()
    assert len(part) == len(messages)
    said = [{key: value for key, value in message.items() if value is not None} for message in messages]
    assert json.loads(part.json()) == said
    assert json.loads(part.json()) == said
    return copy.deepcopy(messages)


def afresh(history: list[Message]) -> list[Message]:
    return sent(RequestMessages(), history)


PAIRS = list(itertools.product(BASES, TAILS))


def test_request_after_appended_messages_equals_request_built_from_whole_history() -> None:
    for base, tail in PAIRS:
        with case(base, tail):
            wire, history = RequestMessages(), list(BASES[base])
            assert sent(wire, history) == afresh(history)
            assert sent(wire, history) == afresh(history)
            history += TAILS[tail]
            assert sent(wire, history) == afresh(history)
            history += TAILS["a step"]
            assert sent(wire, history) == afresh(history)


def test_request_after_messages_of_acorn_equals_request_built_from_whole_history() -> None:
    for base, tail in PAIRS:
        with case(base, tail):
            wire, history = RequestMessages(), list(BASES[base])
            sent(wire, history)
            if not TAILS[tail]:
                continue
            history += TAILS[tail]
            assert sent(wire, history, copy.deepcopy(TAILS[tail])) == afresh(history)
            history += turn("z"), said("z")
            assert sent(wire, history, [turn("z"), said("z")]) == afresh(history)


def test_request_of_branch_equals_request_built_from_whole_history() -> None:
    for base, tail in PAIRS:
        with case(base, tail):
            wire, history = RequestMessages(), list(BASES[base])
            before = sent(wire, history)
            copies = wire.copies_of(history)
            branch = wire.fork(copies)
            own = [*copies, *TAILS[tail]]
            assert sent(branch, own) == afresh(own)
            assert sent(wire, history) == before
            assert wire.copies_of(history) == branch.copies_of(own)[: len(history)]


def test_request_of_branch_with_other_prompt_equals_request_built_from_whole_history() -> None:
    for base, tail in PAIRS:
        with case(base, tail):
            wire, history = RequestMessages(), list(BASES[base])
            sent(wire, history)
            copies = wire.copies_of(history)
            branch = wire.fork(copies)
            prompt: Message = {"role": "system", "content": "Do otherwise."}
            branch.change_first(prompt)
            has_one = bool(copies) and copies[0]["role"] in ("system", "developer")
            own = [prompt, *copies[has_one:], *TAILS[tail]]
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
                wire, history = RequestMessages(), copy.deepcopy([*BASES["a step"], *TAILS["a step"]])
                sent(wire, history)
                EDITS[edit](history)
                history += TAILS[tail]
                assert sent(wire, history) == afresh(history)


def test_tool_result_belongs_to_nearest_preceding_call_with_its_id() -> None:
    history = [ASKED, turn("a"), ASKED, turn("a"), said("a", "late")]
    assert [message.get("content") for message in afresh(history) if message["role"] == "tool"][-1] == "late"
    first = next(message for message in afresh(history) if message["role"] == "tool")
    assert first["content"] != "late"


@pytest.mark.parametrize("base", ["the model's turn", "a system message at the end"])
def test_request_for_history_that_ends_with_assistant_ends_with_user_message(base: str) -> None:
    made = afresh(BASES[base])
    assert [message["role"] for message in made if message["role"] != "system"] == ["user", "assistant", "user"]


def test_invalid_tool_name_and_arguments_in_history_are_repaired() -> None:
    call = {"id": "a", "function": {"name": "functions.search" + "x" * 80, "arguments": '{"x": NaN}'}}
    made = afresh([ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}, said("a")])
    function = made[1]["tool_calls"][0]["function"]
    assert function["name"] == ("functions_search" + "x" * 80)[:64]
    assert function["arguments"] == "{}"


def test_input_message_missing_in_history_is_restored_in_request() -> None:
    other: Message = {"role": "user", "content": "And you?"}
    part = RequestMessages().prepare([SYSTEM, turn("a"), said("a"), ASKED], [ASKED, other])
    assert part.messages()[1] == other
