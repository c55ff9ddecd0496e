"""Tests of the history: messages that acorn adds, edits that a user makes, and messages that the model receives."""

from __future__ import annotations

import copy
import enum
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import AS_THREAD, SAVED, Call
from tests.behaviour.looker import Answer, Edit, Looker, Message, Question, look
from tests.cases import case
from tests.provider_rules import assert_complete, assert_request_valid
from tests.raw_model import calling, finishing

from acorn import AcornError, InputError, LimitError, ParseError, Run, Step, ToolResult, current_run, module
from acorn._history.history import history_of
from acorn.models import ModelRequest, ModelResponse
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calls

INPUT = "<input>\n  <question>Where is it?</question>\n</input>"
NO_RESULT = "There is no result of this call."
OMITTED = "The beginning of this conversation was left out."


def walk(
    call: Call, replies: Sequence[Any], edit: Edit | None = None, **settings: Any
) -> tuple[Run[Any], list[list[Message]]]:
    """Run to the end and check every request; return the record and the messages of each request."""
    model = call.scripted(replies)
    run = call.run(Looker(edit, model=model, **settings), question="Where is it?")
    model.done()
    return run, judged(model)


def judged(model: Any) -> list[list[Message]]:
    for request in model.requests:
        assert_request_valid(request)
    return [request.messages for request in model.requests]


def told(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return role and shortened content of each message."""
    return [(message["role"], message["content"]) for message in messages]


def roles(messages: Sequence[Message]) -> list[str]:
    return [message["role"] for message in messages]


def at_step(number: int) -> Callable[[Edit], Edit]:
    """Apply an edit in one step only."""

    def limited(edit: Edit) -> Edit:
        def only_then(self: Looker, step: Step) -> None:
            if step.counter == number:
                edit(self, step)

        return only_then

    return limited


LOOK = calls("look", "a", place="the attic")
CELLAR = calls("look", "b", place="the cellar")
DONE = finish(answer="nowhere")

# Position of results


@pytest.mark.every_way
def test_tool_results_directly_follow_their_assistant_message(call: Call) -> None:
    run, requests = walk(call, [LOOK & CELLAR, DONE])
    assert told(run.history[2:5]) == [
        ("assistant", ""),
        ("tool", "nothing in the attic"),
        ("tool", "nothing in the cellar"),
    ]
    assert [message["tool_call_id"] for message in run.history[3:5]] == ["a", "b"]
    assert requests[1][3:] == run.history[3:5]


@pytest.mark.every_way
def test_messages_appended_by_on_step_follow_results(call: Call) -> None:
    def remind(self: Looker, step: Step) -> None:
        self.history.append({"role": "user", "content": "Remember to be concise in your next response."})

    run, requests = walk(call, [LOOK, DONE], remind)
    assert roles(run.history) == ["system", "user", "assistant", "tool", "user", "assistant", "tool"]
    assert told(requests[1])[-2:] == [
        ("tool", "nothing in the attic"),
        ("user", "Remember to be concise in your next response."),
    ]


@pytest.mark.parametrize("to", [0, 1, 2])
def test_tool_results_are_inserted_after_message_moved_by_on_step(call: Call, to: int) -> None:
    @at_step(2)
    def move(self: Looker, step: Step) -> None:
        self.history.append({"role": "user", "content": "Hurry."})
        self.history.insert(to, self.history.pop(-2))

    run, requests = walk(call, [LOOK, CELLAR, DONE], move)
    assert run.history[to]["tool_calls"][0]["id"] == "b"
    assert run.history[to + 1] == {"role": "tool", "tool_call_id": "b", "content": "nothing in the cellar"}
    at = next(i for i, message in enumerate(requests[2]) if message.get("tool_call_id") == "b")
    assert requests[2][at - 1]["tool_calls"][0]["id"] == "b"


@pytest.mark.every_way
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda history: json.loads(json.dumps(history))])
def test_tool_results_follow_assistant_message_that_on_step_replaced_by_copy(
    call: Call, copied: Callable[[Any], Any]
) -> None:
    def replace(self: Looker, step: Step) -> None:
        self.history = copied(self.history)

    run, _ = walk(call, [LOOK & CELLAR, calls("look", "c", place="the shed"), DONE], replace)
    assert roles(run.history) == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert_complete(run.history)


def test_tool_results_follow_copied_assistant_message_that_on_step_moved(call: Call) -> None:
    @at_step(2)
    def move(self: Looker, step: Step) -> None:
        self.history.insert(2, copy.deepcopy(self.history.pop()))

    run, _ = walk(call, [LOOK, CELLAR, DONE], move)
    assert [message.get("tool_call_id") for message in run.history[2:6]] == [None, "b", None, "a"]


def test_assistant_message_from_which_on_step_removed_one_call_gets_results_of_remaining_calls(call: Call) -> None:
    def forget(self: Looker, step: Step) -> None:
        turn = copy.deepcopy(self.history.pop())
        del turn["tool_calls"][0]
        self.history.append(turn)

    _, requests = walk(call, [LOOK & CELLAR, DONE], forget)
    assert [call["id"] for call in requests[1][2]["tool_calls"]] == ["b"]
    assert told(requests[1])[3:] == [("tool", "nothing in the cellar")]


def test_results_of_assistant_message_removed_by_on_step_are_not_sent(call: Call) -> None:
    @at_step(2)
    def drop(self: Looker, step: Step) -> None:
        self.history.pop()

    run, requests = walk(call, [LOOK, CELLAR, DONE], drop)
    assert requests[2] == requests[1]
    assert "the cellar" not in json.dumps(run.history)
    assert_complete(run.history)


def test_results_of_removed_assistant_message_are_not_added_to_earlier_message_with_equal_call_id(call: Call) -> None:
    @at_step(2)
    def drop(self: Looker, step: Step) -> None:
        self.history.pop()

    run, requests = walk(call, [LOOK, calls("look", "a", place="the cellar"), DONE], drop)
    assert requests[2] == requests[1]
    assert "the cellar" not in json.dumps(run.history)


def test_assistant_message_that_on_step_inserted_twice_gets_placeholder_first_and_result_second(call: Call) -> None:
    @at_step(1)
    def double(self: Looker, step: Step) -> None:
        self.history.append(self.history[-1])

    _, requests = walk(call, [LOOK, DONE], double)
    assert told(requests[1])[2:] == [
        ("assistant", None),
        ("tool", NO_RESULT),
        ("assistant", None),
        ("tool", "nothing in the attic"),
    ]


@pytest.mark.every_way
def test_texts_of_add_to_context_are_sent_after_results_in_one_user_message(call: Call) -> None:
    def add(self: Looker, step: Step) -> None:
        step.add_to_context("Remember to be concise")
        step.add_to_context({"analysis_result": {"summary": "Data shows trend", "confidence": 0.8}})
        self.history.append({"role": "user", "content": "Hurry."})

    run, requests = walk(call, [LOOK & CELLAR, DONE], add)
    context = (
        "<context>Remember to be concise</context>\n"
        "<context>\n"
        "  <analysis_result>\n"
        "    <summary>Data shows trend</summary>\n"
        "    <confidence>0.8</confidence>\n"
        "  </analysis_result>\n"
        "</context>"
    )
    assert told(run.history[5:7]) == [("user", context), ("user", "Hurry.")]
    assert requests[1][3:] == run.history[3:7]


def test_text_of_add_to_context_is_sent_after_text_response(call: Call) -> None:
    run, _ = walk(call, ["Hm.", DONE], lambda self, step: step.add_to_context("Go on"))
    assert told(run.history[2:4]) == [("assistant", "Hm."), ("user", "<context>Go on</context>")]


def test_text_of_add_to_context_is_sent_even_if_on_step_removed_assistant_message(call: Call) -> None:
    def drop(self: Looker, step: Step) -> None:
        self.history.pop()
        step.add_to_context("Nothing happened")

    _, requests = walk(call, [LOOK, DONE], drop)
    assert told(requests[1])[1:] == [("user", INPUT), ("user", "<context>Nothing happened</context>")]


@pytest.mark.every_way
def test_results_changed_by_on_step_are_sent_to_model(call: Call) -> None:
    def change(self: Looker, step: Step) -> None:
        first, second, third = step.tool_results
        first.output = {"data": first.output, "note": "unsure"}
        second.error = "the light went out"
        third.output, third.error = "all is well", None

    _, requests = walk(call, [LOOK & CELLAR & calls("look", "c"), DONE], change)
    assert told(requests[1])[3:] == [
        ("tool", '{"data":"nothing in the attic","note":"unsure"}'),
        ("tool", "Tool error: the light went out"),
        ("tool", "all is well"),
    ]


def test_results_reordered_by_on_step_are_sent_in_call_order(call: Call) -> None:
    _, requests = walk(call, [LOOK & CELLAR, DONE], lambda self, step: step.tool_results.reverse())
    assert [(m["tool_call_id"], m["content"]) for m in requests[1][3:]] == [
        ("a", "nothing in the attic"),
        ("b", "nothing in the cellar"),
    ]


def test_result_removed_by_on_step_is_sent_as_placeholder(call: Call) -> None:
    run, requests = walk(call, [LOOK & CELLAR, DONE], lambda self, step: step.tool_results.pop(0))
    assert told(requests[1])[3:] == [("tool", NO_RESULT), ("tool", "nothing in the cellar")]
    assert roles(run.history[2:6]) == ["assistant", "tool", "tool", "assistant"]


def test_tool_result_added_by_on_step_without_matching_call_is_not_sent(call: Call) -> None:
    def add(self: Looker, step: Step) -> None:
        step.tool_results.append(ToolResult("z", "look", "a mouse"))

    _, requests = walk(call, [LOOK, DONE], add)
    assert told(requests[1])[3:] == [("tool", "nothing in the attic")]


# Messages of acorn


def test_content_of_every_message_added_by_acorn_is_string(call: Call) -> None:
    replies = [LOOK, "Hm.", calls("look", place=5), finish(answer=5), LOOK & finish(answer="nowhere")]
    run, _ = walk(call, replies, lambda self, step: step.add_to_context("Hm"))
    assert [message["content"] for message in run.history if not isinstance(message["content"], str)] == []
    assert [message["content"] for message in run.history if message["role"] == "assistant"] == ["", "Hm.", "", "", ""]


def test_text_next_to_tool_calls_is_stored_and_sent(call: Call) -> None:
    run, requests = walk(call, [Reply("Let me see.") & LOOK, DONE])
    assert run.history[2]["content"] == requests[1][2]["content"] == "Let me see."


def test_whitespace_next_to_tool_calls_is_stored_but_not_sent(call: Call) -> None:
    run, requests = walk(call, [Reply(" \n") & LOOK, DONE])
    assert run.history[2]["content"] == " \n"
    assert requests[1][2]["content"] is None


def test_history_that_ends_with_assistant_message_is_sent_with_added_user_message(call: Call) -> None:
    @at_step(1)
    def add(self: Looker, step: Step) -> None:
        self.history.append({"role": "assistant", "content": "I think"})
        self.history.append({"role": "system", "content": "Think."})

    run, requests = walk(call, [LOOK, CELLAR, DONE], add)
    assert requests[1][-1]["role"] == "user"
    assert "__finish__" in requests[1][-1]["content"]
    assert requests[1][-1] not in run.history
    assert requests[1][-1] not in requests[2]


# Trimming and clearing


@pytest.mark.every_way
def test_history_trimmed_as_in_specification_example_is_sent_as_valid_messages(call: Call) -> None:
    def trim(self: Looker, step: Step) -> None:
        if len(self.history) > 50:
            self.history = self.history[:1] + self.history[-40:]

    count = 25 if call.way == SAVED else 60
    replies = [
        calls("look", f"{n}", place=f"room {n}") & calls("look", f"{n}'", place="the hall") for n in range(count)
    ]
    run, requests = walk(call, [*replies, DONE], trim)
    assert max(map(len, requests)) <= 55
    assert told(requests[-1])[:2] == [("system", "Look around, then answer."), ("user", INPUT)]
    assert told(requests[-1])[-2:] == [("tool", f"nothing in room {count - 1}"), ("tool", "nothing in the hall")]
    assert told(run.history)[-3:] == [("tool", "nothing in the hall"), ("assistant", ""), ("tool", "Finished.")]


@pytest.mark.parametrize("how", ["clear", "replace", "delete"])
def test_cleared_history_is_sent_as_input_message_only(call: Call, how: str) -> None:
    def clear(self: Looker, step: Step) -> None:
        if how == "clear":
            self.history.clear()
        elif how == "replace":
            self.history = []
        else:
            del self.history[:]

    run, requests = walk(call, [LOOK, CELLAR, DONE], clear)
    assert requests[1] == requests[2] == [{"role": "user", "content": INPUT}]
    assert roles(run.history) == ["assistant", "tool"]


@pytest.mark.every_way
def test_trimmed_input_is_restored_after_system_message(call: Call) -> None:
    @at_step(2)
    def trim(self: Looker, step: Step) -> None:
        del self.history[1]

    run, requests = walk(call, [LOOK, CELLAR, DONE], trim)
    assert roles(requests[2]) == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert requests[2][1]["content"] == INPUT
    assert roles(run.history)[:2] == ["system", "assistant"]


def test_trimmed_input_is_restored_before_other_user_message(call: Call) -> None:
    @at_step(2)
    def summarise(self: Looker, step: Step) -> None:
        self.history[1:-1] = [{"role": "user", "content": "So far: nothing in the attic."}]

    _, requests = walk(call, [LOOK, CELLAR, DONE], summarise)
    assert told(requests[2])[1:] == [
        ("user", INPUT),
        ("user", "So far: nothing in the attic."),
        ("assistant", None),
        ("tool", "nothing in the cellar"),
    ]


def test_user_message_added_after_restored_input_follows_input(call: Call) -> None:
    def clear(self: Looker, step: Step) -> None:
        if step.counter == 1:
            self.history = []
        else:
            self.history = [{"role": "user", "content": "Start again."}]

    _, requests = walk(call, [LOOK, CELLAR, DONE], clear)
    assert [told(messages) for messages in requests[1:]] == [
        [("user", INPUT)],
        [("user", INPUT), ("user", "Start again.")],
    ]


def test_replaced_input_stays_after_history_was_trimmed(call: Call) -> None:
    def edit(self: Looker, step: Step) -> None:
        self.history[1]["content"] = f"Search {step.counter}."
        self.history[:] = [*self.history[:2], *self.history[-1:]]

    def replace(self: Looker, step: Step) -> None:
        if step.counter == 1:
            self.history[1] = {"role": "user", "content": "Search."}
        else:
            self.history[:] = [*self.history[:1], *self.history[-1:]]

    _, requests = walk(call, [LOOK, CELLAR, DONE], edit)
    assert [told(messages)[1] for messages in requests[1:]] == [("user", "Search 1."), ("user", "Search 2.")]
    _, requests = walk(call, [LOOK, CELLAR, DONE], replace)
    assert [told(messages)[1] for messages in requests[1:]] == [("user", "Search."), ("user", "Search.")]


@pytest.mark.parametrize("text", ["", " "])
def test_input_with_emptied_content_is_restored(call: Call, text: str) -> None:
    @at_step(1)
    def empty(self: Looker, step: Step) -> None:
        self.history[1]["content"] = text

    _, requests = walk(call, [LOOK, DONE], empty)
    assert requests[1][1] == {"role": "user", "content": INPUT}


def test_input_message_edited_in_history_is_sent_edited(call: Call) -> None:
    @at_step(1)
    def edit(self: Looker, step: Step) -> None:
        self.history[1]["content"] = "Where is she?"

    _, requests = walk(call, [LOOK, DONE], edit)
    assert requests[1][1] == {"role": "user", "content": "Where is she?"}


def test_system_message_edited_during_run_is_sent_edited(call: Call) -> None:
    def note(self: Looker, step: Step) -> None:
        for message in self.history:
            if message["role"] == "system":
                message["content"] += "\n\nNOTE: User prefers bullet points."

    _, requests = walk(call, [LOOK, DONE], note)
    assert requests[0][0]["content"] == "Look around, then answer."
    assert requests[1][0]["content"] == "Look around, then answer.\n\nNOTE: User prefers bullet points."


@pytest.mark.every_way
def test_recorded_request_is_not_changed_by_history_edits(call: Call) -> None:
    snapshots: list[Any] = []

    def answer(request: ModelRequest) -> ModelResponse:
        snapshots.append(copy.deepcopy(request.messages))
        return calling((str(len(snapshots)), "look", '{"place": "x"}')) if len(snapshots) < 5 else finishing(answer="")

    def scribble(self: Looker, step: Step) -> None:
        for message in self.history:
            message["content"] = f"{message['content']}!"
            for made in message.get("tool_calls", ()):
                made["function"]["arguments"] = '{"place": "elsewhere"}'

    model = call.raw(answer)
    call.run(Looker(scribble, model=model), question="Where is it?")
    assert judged(model) == snapshots


# Unmatched calls and results


def test_tool_message_without_call_is_not_sent(call: Call) -> None:
    @at_step(2)
    def tear(self: Looker, step: Step) -> None:
        del self.history[2]

    run, requests = walk(call, [LOOK, CELLAR, DONE], tear)
    assert roles(requests[2]) == ["system", "user", "assistant", "tool"]
    assert roles(run.history)[:4] == ["system", "user", "tool", "assistant"]


@pytest.mark.every_way
def test_call_without_result_is_sent_with_placeholder_result(call: Call) -> None:
    @at_step(2)
    def tear(self: Looker, step: Step) -> None:
        del self.history[3]

    run, requests = walk(call, [LOOK & CELLAR, calls("look", "c", place="the shed"), DONE], tear)
    assert told(requests[2])[2:5] == [("assistant", None), ("tool", NO_RESULT), ("tool", "nothing in the cellar")]
    assert roles(run.history)[2:5] == ["assistant", "tool", "assistant"]


@pytest.mark.parametrize("to", [1, 2, 100])
def test_tool_result_moved_in_history_is_sent_after_its_call(call: Call, to: int) -> None:
    @at_step(2)
    def move(self: Looker, step: Step) -> None:
        self.history.insert(to, self.history.pop(3))

    _, requests = walk(call, [LOOK, CELLAR, DONE], move)
    assert told(requests[2])[2:] == [
        ("assistant", None),
        ("tool", "nothing in the attic"),
        ("assistant", None),
        ("tool", "nothing in the cellar"),
    ]


def test_tool_result_that_on_step_removes_and_restores_later_replaces_placeholder(call: Call) -> None:
    kept: list[Message] = []

    def hold(self: Looker, step: Step) -> None:
        if step.counter == 2:
            kept.append(self.history.pop(3))
        if step.counter == 3:
            self.history.extend(kept)

    _, requests = walk(call, [LOOK, CELLAR, calls("look", "c", place="the shed"), DONE], hold)
    assert [messages[3]["content"] for messages in requests[1:]] == [
        "nothing in the attic",
        NO_RESULT,
        "nothing in the attic",
    ]


def test_result_inserted_before_its_call_is_sent_after_its_call(call: Call) -> None:
    def edit(self: Looker, step: Step) -> None:
        if step.counter == 1:
            self.history.insert(2, {"role": "tool", "tool_call_id": "b", "content": "a mouse"})
        if step.counter == 2:
            step.tool_results.clear()

    _, requests = walk(call, [LOOK, CELLAR, DONE], edit)
    assert "a mouse" not in json.dumps(requests[1])
    assert told(requests[2])[-2:] == [("assistant", None), ("tool", "a mouse")]


def test_second_tool_result_for_same_call_is_not_sent(call: Call) -> None:
    @at_step(2)
    def double(self: Looker, step: Step) -> None:
        self.history.insert(4, {**self.history[3], "content": "once more"})

    _, requests = walk(call, [LOOK, CELLAR, DONE], double)
    assert "once more" not in json.dumps(requests[2])


# Calls that a provider would reject


@pytest.mark.parametrize("text", ['{"place": ', "attic", "[1]", "null", '"attic"', "5", '{"place": NaN}', "{'a': 1}"])
def test_malformed_tool_arguments_are_stored_unchanged_and_sent_as_empty_object(call: Call, text: str) -> None:
    seen: list[Any] = []
    model = call.raw([calling(("a", "look", text)), finishing(answer="nowhere")])
    agent = Looker(lambda self, step: seen.append(step.tool_calls[0]), model=model)
    run = call.run(agent, question="Where is it?")
    assert run.history[2]["tool_calls"][0]["function"]["arguments"] == text
    assert judged(model)[1][2]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert judged(model)[1][3]["content"].startswith("Tool error: ")
    assert seen[0].raw_arguments == text


@pytest.mark.message_list
def test_valid_tool_arguments_are_sent_unchanged(call: Call) -> None:
    for text in ["", "{}", " { } ", '{"place":"attic"}', '{"place": "\\u00e9"}']:
        with case(text):
            model = call.raw([calling(("a", "look", text)), finishing(answer="nowhere")])
            call.run(Looker(model=model), question="Where is it?")
            assert judged(model)[1][2]["tool_calls"][0]["function"]["arguments"] == (text or "{}")


@pytest.mark.every_way
@pytest.mark.parametrize("missing", [None, ""])
def test_tool_calls_without_ids_get_generated_ids(call: Call, missing: str | None) -> None:
    two = ((missing, "look", '{"place": "attic"}'), (missing, "look", '{"place": "cellar"}'))
    model = call.raw([calling(*two), calling(*two), finishing(answer="nowhere")])
    seen: list[str] = []
    run = call.run(
        Looker(lambda self, step: seen.extend(each.id for each in step.tool_calls), model=model),
        question="Where is it?",
    )
    assert len(set(seen)) == 4
    assert "" not in seen
    assert [text for role, text in told(judged(model)[2]) if role == "tool"] == [
        "nothing in attic",
        "nothing in cellar",
    ] * 2
    assert_complete(run.history)


@pytest.mark.parametrize("ids", [("x", "x", "x"), ("call_2_1", None, None), (None, "call_2_0", "call_2_0")])
@pytest.mark.message_list
def test_repeated_call_ids_in_one_response_are_replaced_by_unique_ids(call: Call, ids: tuple[str | None, ...]) -> None:
    made = [(each, "look", json.dumps({"place": str(at)})) for at, each in enumerate(ids)]
    model = call.raw([calling(*made), finishing(answer="nowhere")])
    run = call.run(Looker(model=model), question="Where is it?")
    given = [each["id"] for each in run.history[2]["tool_calls"]]
    assert len(set(given)) == 3
    assert [(m["tool_call_id"], m["content"]) for m in judged(model)[1][3:]] == [
        (call_id, f"nothing in {at}") for at, call_id in enumerate(given)
    ]
    assert_complete(run.history)


@pytest.mark.every_way
@pytest.mark.message_list
def test_call_id_repeated_in_later_response_is_sent_as_different_id(call: Call) -> None:
    every = [calling(("call_0", "look", json.dumps({"place": str(at)}))) for at in range(3)]
    model = call.raw([*every, finishing(answer="nowhere")])
    run = call.run(Looker(model=model), question="Where is it?")
    sent = judged(model)[3]
    assert sent[2]["tool_calls"][0]["id"] == "call_0"
    assert [m["content"] for m in sent if m["role"] == "tool"] == [f"nothing in {at}" for at in range(3)]
    assert [m["tool_call_id"] for m in run.history if m["role"] == "tool"][:3] == ["call_0"] * 3


def test_tool_name_with_invalid_characters_is_sent_in_valid_form(call: Call) -> None:
    for made_up, sent in [
        ("functions.look", "functions_look"),
        ("look around", "look_around"),
        ("", "unknown"),
        ("größe\n", "gr__e_"),
        ("x" * 100, "x" * 64),
        ("\ud800", "_"),
    ]:
        with case(made_up, sent):
            model = call.raw([calling(("a", made_up, "{}")), finishing(answer="nowhere")])
            run = call.run(Looker(model=model), question="Where is it?")
            assert run.history[2]["tool_calls"][0]["function"]["name"] == made_up
            assert judged(model)[1][2]["tool_calls"][0]["function"]["name"] == sent
            assert "There is no tool" in run.history[3]["content"]


# Messages of users


def sent_of(call: Call, *messages: Any) -> list[Message]:
    """Return what the model reads of messages that `on_step` appends; the list itself must not change."""
    given, before = list(messages), copy.deepcopy(list(messages))

    @at_step(1)
    def put_in(self: Looker, step: Step) -> None:
        self.history.extend(given)

    run, requests = walk(call, [LOOK, CELLAR, DONE], put_in)
    if call.way != SAVED:  # A loaded run has its own messages.
        assert run.history[4 : 4 + len(given)] == before
        assert all(mine is theirs for mine, theirs in zip(run.history[4:], given, strict=False))
    sent = requests[1][4:]
    if "Please continue" in str(sent[-1:]):  # A reminder follows the model's text, only in that request.
        del sent[-1]
    assert requests[2][4 : 4 + len(sent)] == sent
    return sent


@pytest.mark.message_list
def test_content_parts_are_sent_unchanged(call: Call) -> None:
    every = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}},
    ]
    message = {"role": "user", "content": every, "name": "ann"}
    assert sent_of(call, message) == [message]


@pytest.mark.message_list
def test_user_supplied_message_with_extra_keys_is_sent_with_those_keys(call: Call) -> None:
    thought = {**said("Hm."), "thinking_blocks": [{"type": "thinking", "signature": "abc"}]}
    asked = {**text("Well?"), "cache_control": {"type": "ephemeral"}}
    assert sent_of(call, thought, asked) == [thought, asked]


@pytest.mark.message_list
def test_provider_specific_fields_of_response_are_sent_back_in_next_request(call: Call) -> None:
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "abc"}]
    first = calling(("a", "look", '{"place": "x"}'), extra={"thinking_blocks": blocks})
    model = call.raw([first, finishing(answer="nowhere")])
    run = call.run(Looker(model=model), question="Where is it?")
    assert run.history[2]["thinking_blocks"] == judged(model)[1][2]["thinking_blocks"] == blocks


FLAT = [
    {
        "role": "assistant",
        "tool_calls": [{"id": "call_123", "name": "search", "arguments": {"query": "Python history", "limit": 5}}],
    },
    {"role": "tool", "tool_call_id": "call_123", "content": '["result1", "result2"]'},
]
FLAT_SENT = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_123",
                "type": "function",
                "function": {"name": "search", "arguments": '{"query":"Python history","limit":5}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_123", "content": '["result1", "result2"]'},
]


@pytest.mark.message_list
def test_tool_calls_without_function_key_are_sent_in_standard_form(call: Call) -> None:
    assert sent_of(call, *FLAT) == FLAT_SENT


class Role(enum.StrEnum):
    user = "user"


class Part(BaseModel):
    type: str = "text"
    text: str


def text(content: str) -> Message:
    return {"role": "user", "content": content}


def said(content: str) -> Message:
    return {"role": "assistant", "content": content}


def parts(*texts: str) -> Message:
    return {"role": "user", "content": [{"type": "text", "text": each} for each in texts]}


ODD: list[tuple[str, Message, list[Message]]] = [
    ("a developer's message", {"role": "developer", "content": "Hi"}, [{"role": "system", "content": "Hi"}]),
    ("a number", {"role": "user", "content": 5}, [text("5")]),
    ("a dict", {"role": "user", "content": {"a": [1]}}, [text('{"a":[1]}')]),
    ("false", {"role": "user", "content": False}, [text("false")]),
    ("bytes", {"role": "user", "content": b"Hi"}, [text("Hi")]),
    ("text in a list", {"role": "user", "content": ["Hi", 5]}, [parts("Hi", "5")]),
    ("blanks in a list", {"role": "user", "content": ["", None]}, []),
    ("a tuple", {"role": "user", "content": ({"type": "text", "text": "Hi"},)}, [parts("Hi")]),
    ("an object of Pydantic's", {"role": "user", "content": [Part(text="Hi")]}, [parts("Hi")]),
    ("calls of a user", {"role": "user", "content": "Hi", "tool_calls": [], "tool_call_id": "a"}, [text("Hi")]),
    ("an answer of a user", {"role": "user", "content": "Hi", "tool_call_id": "a"}, [text("Hi")]),
    ("calls that are no list", {"role": "assistant", "content": "Hi", "tool_calls": "look"}, [said("Hi")]),
    ("an enum", {"role": Role.user, "content": "Hi"}, [text("Hi")]),
    ("an ordered dict", OrderedDict(role="user", content="Hi"), [text("Hi")]),
    ("a number as key", {"role": "user", "content": "Hi", "x": {1: 2}}, [{**text("Hi"), "x": {"1": 2}}]),
    ("infinity", {"role": "user", "content": "Hi", "x": math.inf}, [{**text("Hi"), "x": None}]),
]


def is_plain(message: Message) -> bool:
    return message.keys() == {"role", "content"} and isinstance(message["content"], str)


@pytest.mark.every_way
def test_malformed_message_in_history_is_sent_in_valid_form(call: Call) -> None:
    for name, given, sent in ODD:
        if call.way != AS_THREAD or all(map(is_plain, sent)):  # A document has only text.
            with case(name):
                assert sent_of(call, given) == sent


def test_message_without_content_is_not_sent(call: Call) -> None:
    for role in ("user", "system", "assistant"):
        for blank in ("", " \n\t", None, list[Any]()):
            with case(role, blank):
                assert sent_of(call, {"role": role, "content": blank}, {"role": role}) == []


def test_malformed_tool_calls_in_history_are_sent_in_valid_form(call: Call) -> None:
    wrong: list[Any] = [None, [None], ["look"], [{}], [{"function": None}], {}]
    for made in [*wrong, [{"id": 5, "function": {"name": 5, "arguments": 5}}]]:
        with case(made):
            sent_of(call, {"role": "assistant", "content": "Hm.", "tool_calls": made})


@pytest.mark.message_list
def test_tool_results_with_missing_or_non_string_ids_are_matched_to_calls(call: Call) -> None:
    made = [{"id": 5, "name": "look", "arguments": {}}, {"name": "look"}, {"id": None, "name": "look"}]
    results = [
        {"role": "tool", "tool_call_id": None, "content": {"seen": 1}},
        {"role": "tool", "content": None},
        {"role": "tool", "tool_call_id": 5, "content": [{"type": "text", "text": "five"}], "name": "look"},
    ]
    sent = sent_of(call, {"role": "assistant", "tool_calls": made}, *results)
    assert [message["content"] for message in sent[1:]] == [[{"type": "text", "text": "five"}], '{"seen":1}', ""]


@pytest.mark.live_objects
def test_message_with_circular_or_deeply_nested_value_is_sent(call: Call) -> None:
    circle: dict[str, Any] = {"role": "user", "content": "Hi"}
    circle["self"] = circle
    deep: Any = []
    for _ in range(500):
        deep = [deep]

    @at_step(1)
    def put_in(self: Looker, step: Step) -> None:
        messages: list[Message] = [circle, {"role": "user", "content": "Hm", "deep": deep}, text("Go on")]
        messages[-1]["object"] = object()
        self.history += messages

    _, requests = walk(call, [LOOK, CELLAR, DONE], put_in)
    assert [message["content"] for message in requests[2][4:7]] == ["Hi", "Hm", "Go on"]


@pytest.mark.live_objects
def test_message_with_object_whose_comparison_raises_is_rebuilt_for_each_request(call: Call) -> None:
    class Sour:
        word = "before"

        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        def __repr__(self) -> str:
            return self.word

    sour = Sour()

    def edit(self: Looker, step: Step) -> None:
        if step.counter == 1:
            message: Message = self.history[0]
            message["sour"] = sour
        else:
            sour.word = "after"

    _, requests = walk(call, [LOOK, CELLAR, DONE], edit)
    assert [messages[0].get("sour") for messages in requests] == [None, "before", "after"]


def append(message: Any) -> Edit:
    @at_step(2)
    def edit(self: Looker, step: Step) -> None:
        self.history.append(message)

    return edit


def test_invalid_message_in_history_raises_error_with_message_index(call: Call) -> None:
    words = r"`history\[5\]` must be a dict with a `role` of .*user"
    for wrong in ("hello", None, 5, ["role", "user"], {}, {"content": "Hi"}, {"role": "robot"}):
        for limit in (None, 100_000):
            with case(wrong, limit):
                with pytest.raises(AcornError, match=words) as caught:
                    walk(call, [LOOK, CELLAR], append(wrong), max_total_tokens=limit)
                assert caught.value.run.history[6] == wrong
                assert_complete([message for message in caught.value.run.history if message is not wrong])


@pytest.mark.parametrize("wrong", [None, (), "history", {"role": "user"}])
def test_history_that_is_not_a_list_raises_acorn_error(call: Call, wrong: Any) -> None:
    def spoil(self: Looker, step: Step) -> None:
        self.history = wrong

    with pytest.raises(AcornError, match="`history` must be a list of messages, got"):
        walk(call, [LOOK], spoil)

    def spoil_the_record(self: Looker, step: Step) -> None:
        step.run.history = wrong

    with pytest.raises(AcornError, match="`history` must be a list of messages, got"):
        walk(call, [LOOK], spoil_the_record)


@pytest.mark.every_way
@pytest.mark.message_list
def test_lone_surrogate_in_response_is_stored_and_sent_as_replacement_character(call: Call) -> None:
    half = "a\ud83d"
    model = call.raw(
        [
            calling((half, "look", json.dumps({"place": "x"})), ("a\ud83e", "look", "{}"), content=half),
            calling(("b", "look", f'{{"place": "{half}"}}')),
            finishing(answer="nowhere"),
        ]
    )

    @at_step(1)
    def add(self: Looker, step: Step) -> None:
        step.tool_results[0].output = half
        step.tool_results[1].output = {"seen": half}
        step.tool_results[1].error = None
        message: Message = {"role": "user", "content": [{"type": "text", "text": half}], half: 1}
        self.history.append(message)

    run = call.run(Looker(add, model=model), question="Where is it?")
    sent = judged(model)[2]
    assert [run.history[at]["content"] for at in (2, 3)] == [half, half]
    assert told(sent)[2:5] == [("assistant", "a\ufffd"), ("tool", "a\ufffd"), ("tool", '{"seen":"a\ufffd"}')]
    assert sent[5]["content"] == [{"type": "text", "text": "a\ufffd"}]
    assert judged(model)[1] == sent[: len(judged(model)[1])]


def test_surrogate_pair_in_history_is_sent_as_one_character(call: Call) -> None:
    assert sent_of(call, text("\ud83e\udd94")) == [text("\U0001f994")]


# Late edits of early messages

LONG = [calls("look", f"{n}", place=f"room {n}") for n in range(1, 160)]


def _content(history: list[Message]) -> None:
    history[5]["content"] = "EDITED"


def _arguments(history: list[Message]) -> None:
    history[3]["tool_calls"][0]["function"]["arguments"] = '{"place": "EDITED"}'


def _part(history: list[Message]) -> None:
    history[2]["content"][1]["image_url"]["url"] = "EDITED"


def _key(history: list[Message]) -> None:
    history[5]["EDITED"] = True


def _place(history: list[Message]) -> None:
    history.insert(5, {"role": "user", "content": "EDITED"})


NOT_IN_A_DOCUMENT = [pytest.param(edit, marks=pytest.mark.message_list) for edit in (_part, _key)]


@pytest.mark.parametrize("edit", [_content, _arguments, _place, *NOT_IN_A_DOCUMENT])
def test_edit_of_early_message_in_long_run_is_sent_in_next_request(
    call: Call, edit: Callable[[list[Message]], None]
) -> None:
    late = 25 if call.way in (SAVED, AS_THREAD) else 150  # The whole run is saved or written at each step.

    def change(self: Looker, step: Step) -> None:
        if step.counter == 1:
            image = {"type": "image_url", "image_url": {"url": "data:,"}}
            self.history.insert(2, {"role": "user", "content": [{"type": "text", "text": "See:"}, image]})
        if step.counter == late:
            edit(self.history)

    model = call.scripted([*LONG[: late + 3], DONE])
    call.run(Looker(change, model=model), question="Where is it?")
    for request in model.requests[late - 2 : late + 2]:
        assert_request_valid(request)
    assert ["EDITED" in json.dumps(request.messages) for request in model.requests[late - 2 : late + 2]] == [
        False,
        False,
        True,
        True,
    ]
    assert b"EDITED" in model.requests[late].body("any")
    assert b"EDITED" not in model.requests[late - 1].body("any")


@pytest.mark.parametrize("early", ["plain", "half a surrogate: \ud800", "größer"])
@pytest.mark.message_list
@pytest.mark.live_objects
def test_unchanged_messages_are_reused_in_next_request(call: Call, early: str) -> None:
    @at_step(1)
    def add(self: Looker, step: Step) -> None:
        self.history.append(text(early))

    model = call.scripted([*LONG[:60], DONE])
    call.run(Looker(add, model=model), question="Where is it?")
    for earlier, later in zip(model.requests, model.requests[1:], strict=False):
        assert all(old is new for old, new in zip(earlier.messages, later.messages, strict=False))


# In-place edits in the journal


def scribbled(self: Any) -> None:
    """Edit a sent message and a turn that is not yet sent."""
    self.history[1]["content"] += " Think."
    self.history[-1]["content"] = "Edited."


@pytest.mark.edits_history
@pytest.mark.parametrize("where", ["on_finish", "on_step", "on_step that finishes", "on_step of a single turn"])
def test_journal_of_finished_run_records_in_place_edits(call: Call, where: str) -> None:
    class Scribbler(module[Question, Answer]):
        """Look around, then answer."""

        tools = [look]

        def on_finish(self, output: Answer) -> None:
            if where == "on_finish":
                scribbled(self)

        def on_step(self, step: Step) -> None:
            if where.startswith("on_step"):
                scribbled(self)
            if where == "on_step that finishes":
                step.finish(answer="enough")

    ends_at_step = where in ("on_step that finishes", "on_step of a single turn")
    model = call.scripted([LOOK] if ends_at_step else [LOOK, DONE])
    run = call.run(Scribbler(model=model, max_steps=None if "single" in where else 5), question="Where is it?")
    assert run.history[1]["content"].endswith("Think.")
    assert "Edited." in [message["content"] for message in run.history]
    assert history_of(run.journal.entries) == run.history


@pytest.mark.every_way
@pytest.mark.edits_history
def test_journal_of_failed_run_records_in_place_edits(call: Call) -> None:
    def fail(self: Looker, step: Step) -> None:
        scribbled(self)
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough") as caught:
        call.run(Looker(fail, model=call.scripted([LOOK])), question="Where is it?")
    run = vars(caught.value)["run"]
    assert history_of(run.journal.entries) == run.history[:3]
    assert run.history[2]["content"] == "Edited."


# Continuing an earlier conversation


class Chat(module[Question, Answer]):
    """Chat."""

    tools = [look]
    max_steps = 5

    def system_prompt(self) -> str:
        return f"Speak {current_run().deps or 'English'}."


@pytest.mark.every_way
def test_run_record_passed_to_using_history_continues_conversation(call: Call) -> None:
    model = call.scripted([LOOK, finish(answer="Italy"), finish(answer="Germany")])
    first = call.run(Chat(model=model), question="Who won in 1994?")
    second = call.run(Chat(model=model).using(history=first), question="And in 1990?")
    last = judged(model)[2]
    assert roles(last) == ["system", "user", "assistant", "tool", "assistant", "tool", "user"]
    assert [message["content"] for message in last if message["role"] == "user"] == [
        "<input>\n  <question>Who won in 1994?</question>\n</input>",
        "<input>\n  <question>And in 1990?</question>\n</input>",
    ]
    assert second.output == Answer(answer="Germany")
    assert_complete(second.history)


def test_none_passed_to_using_history_starts_new_conversation(call: Call) -> None:
    model = call.scripted([finish(answer="Italy"), finish(answer="Germany")])
    first: Any = None
    for question in ("Who won in 1994?", "And in 1990?"):
        first = call.run(Chat(model=model).using(history=first), question=question)
    assert [len(messages) for messages in judged(model)] == [2, 5]
    anew = Chat(model=call.scripted([DONE])).using(history=first).using(history=None)
    assert roles(call.run(anew, question="a").history) == ["system", "user", "assistant", "tool"]


def test_continued_conversation_sends_new_prompt_and_system_messages_added_by_hooks(call: Call) -> None:
    model = call.scripted([LOOK, finish(answer="Hi"), finish(answer="Salut"), finish(answer="Ave")])

    class Adding(Chat):
        def on_step(self, step: Step) -> None:
            self.history.insert(1, {"role": "developer", "content": "Speak loudly."})
            self.history.append({"role": "system", "content": "Speak slowly."})

    first = call.run(Adding(model=model), question="Hi?")
    second = call.run(Chat(model=model).using(history=first, deps="French"), question="Hi?")
    call(Chat(model=model).using(history=second.history, deps="Latin"), question="Hi?")
    for sent, language in ((judged(model)[2], "French"), (judged(model)[3], "Latin")):
        assert roles(sent[:7]) == ["system", "system", "user", "assistant", "tool", "system", "assistant"]
        systems = [message["content"] for message in sent if message["role"] == "system"]
        assert systems == [f"Speak {language}.", "Speak loudly.", "Speak slowly."]


@pytest.mark.parametrize("edit", ["in place", "moved", "removed", "none"])
def test_continued_run_sends_new_prompt_instead_of_old_prompt(call: Call, edit: str) -> None:
    mine: Message = {"role": "system", "content": "Mine."}

    @at_step(1)
    def change(self: Looker, step: Step) -> None:
        if edit == "in place":
            self.history[0]["content"] = "Edited."
        elif edit == "moved":
            self.history.insert(0, mine)
        elif edit == "removed":
            self.history[0:2] = [self.history[1], mine]
        else:
            self.history.insert(0, mine)

    model = call.scripted([LOOK, DONE, DONE])
    bare = {"system_prompt": ""} if edit == "none" else {}
    first = call.run(Looker(change, model=model, **bare), question="Where is it?")
    call(Looker(model=model).using(history=first), question="Where is it?")
    systems = [message["content"] for message in judged(model)[2] if message["role"] == "system"]
    assert systems == ["Look around, then answer.", *([] if edit == "in place" else ["Mine."])]


def test_continued_conversation_without_prompt_has_no_system_message(call: Call) -> None:
    class Bare(Looker):
        system_prompt = ""

    model = call.scripted([DONE])
    prior = [{"role": "system", "content": "Old."}, text("Hello"), {"role": "assistant", "content": "Hi"}]
    call(Bare(model=model).using(history=prior), question="Where is it?")
    assert roles(judged(model)[0]) == ["user", "assistant", "user"]


@pytest.mark.every_way
def test_chat_of_three_turns_sends_all_earlier_messages(call: Call) -> None:
    model = call.scripted(
        [LOOK, finish(answer="one"), finish(answer=2), finish(answer="two"), "Hm.", finish(answer="three")]
    )
    agent: Any = Chat(model=model)
    run = call.run(agent, question="1?")
    for question in ("2?", "3?"):
        run = call.run(agent.using(history=run), question=question)
    last = judged(model)[-1]
    asked = [message["content"] for message in last if message["role"] == "user" and "<input>" in message["content"]]
    assert [each[each.index("<question>") + 10 :][:2] for each in asked] == ["1?", "2?", "3?"]
    assert roles(last).count("system") == 1
    assert roles(run.history).count("assistant") == 6
    assert_complete(run.history)


@pytest.mark.every_way
def test_list_passed_to_using_history_is_not_changed_by_run(call: Call) -> None:
    def scribble(self: Looker, step: Step) -> None:
        for message in self.history:
            if isinstance(message["content"], list):
                message["content"][0]["text"] = "scribble"
            message["content"] = "scribble"
            for made in message.get("tool_calls", ()):
                made["function"]["arguments"] = "scribble"

    given: list[Message] = [
        {"role": "system", "content": "Old."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
    ]
    before = copy.deepcopy(given)
    model = call.scripted([LOOK, DONE])
    run = call.run(Looker(scribble, model=model).using(history=given), question="Where is it?")
    judged(model)
    assert given == before
    assert run.history is not given


def test_run_record_passed_to_using_history_is_not_changed_by_run(call: Call) -> None:
    model = call.scripted([LOOK, DONE, CELLAR, DONE])

    def scribble(self: Looker, step: Step) -> None:
        self.history[2]["content"] = "scribble"
        message: Message = self.history[2]
        message.get("tool_calls", [{}])[0]["function"] = "scribble"

    first = call.run(Looker(model=model), question="Where is it?")
    before = copy.deepcopy(first.history)
    call(Looker(scribble, model=model).using(history=first), question="Where is it?")
    judged(model)
    assert first.history == before


def test_empty_list_passed_to_using_history_starts_new_conversation(call: Call) -> None:
    rows: list[Any] = [[], ()]
    for prior in rows:
        with case(prior):
            model = call.scripted([DONE])
            call(Looker(model=model).using(history=prior), question="Where is it?")
            assert told(judged(model)[0]) == [("system", "Look around, then answer."), ("user", INPUT)]


@pytest.mark.every_way
def test_call_without_result_in_prior_history_is_sent_with_placeholder_result(call: Call) -> None:
    def made(*ids: str) -> Message:
        return {"role": "assistant", "content": "", "tool_calls": [{"id": each, "name": "look"} for each in ids]}

    prior = [text("Hello"), made("x", "y"), {"role": "tool", "tool_call_id": "y", "content": "seen"}, made("z")]
    model = call.scripted([DONE])
    run = call.run(Looker(model=model).using(history=prior), question="Where is it?")
    assert told(judged(model)[0])[2:] == [
        ("assistant", None),
        ("tool", NO_RESULT),
        ("tool", "seen"),
        ("assistant", None),
        ("tool", NO_RESULT),
        ("user", INPUT),
    ]
    assert_complete(run.history)


@pytest.mark.message_list
def test_prior_history_with_tool_calls_without_function_key_is_sent_in_standard_form(call: Call) -> None:
    model = call.scripted([DONE])
    run = call.run(Looker(model=model).using(history=[text("Hello"), *FLAT]), question="Where is it?")
    assert judged(model)[0][2:4] == FLAT_SENT
    assert_complete(run.history)


def test_prior_history_that_does_not_start_with_user_message_is_sent_with_omission_notice(call: Call) -> None:
    model = call.scripted([LOOK, DONE])
    prior = [{"role": "tool", "tool_call_id": "gone", "content": "x"}, {"role": "assistant", "content": "Yes?"}]
    call(Looker(model=model).using(history=prior), question="Where is it?")
    assert told(judged(model)[0])[1:] == [("user", OMITTED), ("assistant", "Yes?"), ("user", INPUT)]
    assert judged(model)[1][:4] == judged(model)[0]


@pytest.mark.parametrize("end", [ParseError, RuntimeError, AcornError, KeyboardInterrupt, LimitError])
def test_history_of_failed_run_is_accepted_as_prior_history(call: Call, end: type[BaseException]) -> None:
    replies: list[Any] = [LOOK & CELLAR]
    settings: dict[str, Any] = {}

    def fail(self: Looker, step: Step) -> None:
        if end in (RuntimeError, KeyboardInterrupt):
            raise end("enough")

    if end is ParseError:
        replies += [finish(answer=1) & LOOK]
        settings["parse_retries"] = 0
    elif end is AcornError:
        replies += [Failure(500)]
    elif end is LimitError:
        settings["max_total_tokens"] = 1
    model = call.scripted(replies)
    with pytest.raises(end) as caught:
        call(Looker(fail, model=model, **settings), question="Where is it?")
    record = getattr(caught.value, "run", None) or pytest.fail("no record")
    assert_complete(record.history)
    assert roles(record.history)[2:5] == ["assistant", "tool", "tool"]
    again = call.scripted([DONE])
    assert call(Looker(model=again).using(history=record), question="Where is it?") == Answer(answer="nowhere")
    judged(again)


def test_prior_history_of_wrong_type_raises_input_error_before_run() -> None:
    words = "`history` of `Looker` must be a list of messages or a record of a run"
    for wrong in ("hello", 5, {"role": "user"}):
        with case(wrong), pytest.raises(InputError, match=words):
            Looker(model=ScriptedModel([])).using(history=wrong)


def test_prior_history_with_invalid_message_raises_input_error_before_run() -> None:
    words = r"`history\[1\]` of `Looker` must be a dict with a `role`"
    for wrong in ("hello", None, {}, {"content": "Hi"}, {"role": 5}):
        with case(wrong), pytest.raises(InputError, match=words):
            Looker(model=ScriptedModel([])).using(history=[text("Hello"), wrong])


# After a run


@pytest.mark.every_way
def test_history_of_ended_run_has_result_for_every_call(call: Call) -> None:
    rows: list[Any] = [
        ([DONE], {}),
        ([LOOK & DONE], {}),
        ([DONE & LOOK & finish(answer="elsewhere")], {}),
        ([finish(answer=5) & LOOK, finish() & finish(answer=6), DONE], {}),
        ([LOOK & CELLAR, "Hm.", DONE], {}),
        ([LOOK, DONE], {"max_steps": 1}),
        ([LOOK, CELLAR, "<output><answer>nowhere</answer></output>"], {"max_steps": 1}),
        ([LOOK, CELLAR, Reply("<output><answer>nowhere</answer></output>") & LOOK], {"max_steps": 1}),
        ([Reply("Hm.") & LOOK & calls("nothing", "n")], {"max_steps": None}),
        (["Hm.", DONE], {"max_steps": None}),
    ]
    for replies, settings in rows:
        with case(replies, settings):
            run, _ = walk(call, replies, **settings)
            assert_complete(run.history)
            made = [each["id"] for message in run.history for each in message.get("tool_calls", ())]
            assert sorted(made) == sorted(
                message["tool_call_id"] for message in run.history if message["role"] == "tool"
            )


@pytest.mark.every_way
def test_result_of_finish_call_is_placed_before_messages_appended_by_on_finish(call: Call) -> None:
    class Noting(Looker):
        def on_finish(self, output: Answer) -> None:
            self.history.append({"role": "user", "content": "Noted."})
            if output.answer == "no":
                raise ValueError("say more")

    model = call.scripted([LOOK & finish(answer="no"), finish(answer="nowhere")])
    run = call.run(Noting(model=model), question="Where is it?")
    judged(model)
    assert roles(run.history[2:]) == ["assistant", "tool", "tool", "user", "assistant", "tool", "user"]
    assert_complete(run.history)


def test_agent_history_outside_run_is_history_of_last_run_and_is_read_only() -> None:
    agent = Looker(model=ScriptedModel([DONE]))
    run = agent.run(question="Where is it?")
    assert agent.history is run.history
    with pytest.raises(AttributeError, match=r"using\(history=messages\)"):
        agent.history = []
