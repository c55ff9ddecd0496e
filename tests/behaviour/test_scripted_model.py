"""Tests of `ScriptedModel`, alone and as the model of an agent."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field, RootModel, computed_field
from tests.behaviour.conftest import Call, Script
from tests.behaviour.schemas import Answer, Question
from tests.cases import each_case
from tests.waiting import AGES, waiting_for_nothing

from acorn import AcornError, LimitError, ModelError, Usage, module, tool
from acorn.models import ModelRequest, ModelResponse, Price, RawCall
from acorn.models.port import is_model
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calling


@tool
def search(query: str) -> str:
    """Search for information."""
    return f"about {query}"


class Asker(module[Question, Answer]):
    """Answer the question."""


class Searcher(Asker):
    tools = [search]
    max_steps = 5


def request(text: str = "hello", **fields: Any) -> ModelRequest:
    return ModelRequest([{"role": "user", "content": text}], [], temperature=0.7, max_tokens=100, **fields)


def ask_sync(model: ScriptedModel, asked: ModelRequest) -> ModelResponse:
    return model.complete(asked)


def ask_async(model: ScriptedModel, asked: ModelRequest) -> ModelResponse:
    return asyncio.run(model.acomplete(asked))


Ask = Callable[[ScriptedModel, ModelRequest], ModelResponse]

both_ways = each_case("ask", [ask_sync, ask_async])


# Replies


@both_ways
def test_scripted_model_returns_replies_in_order(ask: Ask) -> None:
    model = ScriptedModel(["one", Reply("two"), calling("search", query="three"), finish(answer="four")])
    responses = [ask(model, request()) for _ in range(4)]
    assert [response.content for response in responses] == ["one", "two", "", ""]
    assert [response.stop_reason for response in responses] == ["stop", "stop", "tool_calls", "tool_calls"]
    assert responses[2].tool_calls == [RawCall("call_3_0", "search", '{"query":"three"}')]
    assert responses[3].tool_calls == [RawCall("call_4_0", "__finish__", '{"answer":"four"}')]
    model.done()


@both_ways
def test_scripted_model_created_with_function_returns_result_of_function(ask: Ask) -> None:
    model = ScriptedModel(lambda asked: f"You said {asked.messages[-1]['content']}")
    assert ask(model, request("a")).content == "You said a"
    assert ask(model, request("b")).content == "You said b"
    assert len(model.requests) == 2
    model.done()


def test_scripted_model_created_with_function_answers_all_requests_of_run(call: Call, script: Script) -> None:
    def play(asked: ModelRequest) -> Reply:
        if asked.messages[-1]["role"] == "tool":
            return finish(answer=asked.messages[-1]["content"])
        return calling("search", query="acorns")

    assert call(Searcher(model=script(play)), question="?") == Answer(answer="about acorns")


def test_scripted_model_with_tool_call_and_finish_returns_answer(call: Call, script: Script) -> None:
    model = script(calling("search", query="acorns"), finish(answer="They are nuts."))
    with model:
        assert call(Searcher(model=model), question="?") == Answer(answer="They are nuts.")


@both_ways
def test_values_of_scripted_reply_are_in_model_response(ask: Ask) -> None:
    used = Usage(input_tokens=5, output_tokens=6, requests=1)
    reply = Reply("text", stop_reason="length", reasoning="because", refusal="no", usage=used)
    response = ask(ScriptedModel([reply], name="some-model"), request())
    assert (response.content, response.stop_reason, response.reasoning) == ("text", "length", "because")
    assert (response.refusal, response.usage, response.model) == ("no", used, "some-model")


@both_ways
def test_scripted_model_estimates_missing_usage(ask: Ask) -> None:
    used = ask(ScriptedModel(["word" * 10]), request("text" * 100)).usage
    assert (used.input_tokens, used.output_tokens, used.requests) == (100, 11, 1)


def test_scripted_call_accepts_arguments_of_any_name() -> None:
    made = calling("search", name="n", self=1, nested={"a": [None, 1.5]}, text='é"\n')
    assert made.calls[0].name == "search"
    assert json.loads(made.calls[0].arguments) == {"name": "n", "self": 1, "nested": {"a": [None, 1.5]}, "text": 'é"\n'}


@both_ways
def test_scripted_model_generates_missing_call_ids(ask: Ask) -> None:
    model = ScriptedModel([calling("a") & calling("b", _id="mine") & calling("c", _id=""), calling("a")])
    assert [made.id for made in ask(model, request()).tool_calls] == ["call_1_0", "mine", ""]
    assert [made.id for made in ask(model, request()).tool_calls] == ["call_2_0"]


# Several parts in one response


def test_scripted_replies_joined_by_ampersand_form_one_response() -> None:
    reply = Reply("Let me ") & calling("a", x=1) & Reply("see.") & calling("b") & finish(answer="c")
    assert reply.content == "Let me see."
    assert [(made.name, made.arguments) for made in reply.calls] == [
        ("a", '{"x":1}'),
        ("b", "{}"),
        ("__finish__", '{"answer":"c"}'),
    ]


def test_replies_joined_by_ampersand_contain_values_of_all_parts() -> None:
    used = Usage(input_tokens=1)
    joined = (
        Reply("a", reasoning="think ", usage=used, delay=0.1)
        & calling("x")
        & Reply(stop_reason="length", reasoning="more", refusal="no", delay=0.2)
    )
    assert (joined.content, joined.reasoning, joined.refusal) == ("a", "think more", "no")
    assert (joined.stop_reason, joined.usage, joined.delay) == ("length", used, 0.2)
    assert calling("x") & calling("y") == Reply(calls=[RawCall(None, "x", "{}"), RawCall(None, "y", "{}")])


def test_joining_replies_by_ampersand_does_not_change_parts() -> None:
    one, other = calling("x"), calling("y")
    assert len((one & other).calls) == 2
    assert (len(one.calls), len(other.calls)) == (1, 1)


def test_scripted_reply_used_twice_gets_different_call_ids(call: Call, script: Script) -> None:
    again = calling("search", query="a")
    model = script(again, again, finish(answer="b"))
    call(Searcher(model=model), question="?")
    asked = [message["tool_calls"][0]["id"] for message in model.requests[2].messages if message.get("tool_calls")]
    assert asked == ["call_1_0", "call_2_0"]


# Recorded requests


def test_scripted_model_records_every_request(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), "Hm.", finish(answer="b"))
    run_messages = call.run(Searcher(model=model), question="?").history
    assert [len(asked.messages) for asked in model.requests] == [2, 4, 6]
    assert model.requests[2].messages[0] == run_messages[0]
    assert repr(model) == "ScriptedModel('scripted', 3 requests)"


@pytest.mark.edits_history
def test_recorded_request_is_not_changed_afterwards(call: Call, script: Script) -> None:
    class Changer(Searcher):
        def on_step(self, step: Any) -> None:
            self.history[1]["content"] = "changed"
            self.history.append({"role": "user", "content": "more"})

    model = script(calling("search", query="a"), finish(answer="b"))
    call(Changer(model=model), question="when?")
    assert "when?" in model.requests[0].messages[1]["content"]
    assert len(model.requests[0].messages) == 2


def test_failed_request_is_recorded() -> None:
    model = ScriptedModel([Failure(500), KeyError("x")])
    for kind in (ModelError, KeyError):
        with pytest.raises(kind):
            model.complete(request())
    assert len(model.requests) == 2
    model.done()


# Errors


@both_ways
def test_request_after_last_scripted_reply_raises_assertion_error(ask: Ask) -> None:
    model = ScriptedModel(["only this"], name="some-model")
    ask(model, request())
    with pytest.raises(
        AssertionError, match=r"`some-model` received 2 requests, but its script has 1 reply\. .*what now"
    ):
        ask(model, request("what now?"))


@pytest.mark.every_way
def test_request_after_last_scripted_reply_in_run_raises_assertion_error(call: Call) -> None:
    with pytest.raises(AssertionError, match="received 1 request, but its script has 0 replies"):
        call(Asker(model=ScriptedModel([])), question="?")


def test_request_after_last_scripted_reply_hidden_by_tool_error_is_raised_by_done(call: Call, script: Script) -> None:
    inner = ScriptedModel([])

    @tool
    def delegate(question: str) -> str:
        """Ask another module."""
        return Asker(model=inner)(question=question).answer

    class Outer(Asker):
        tools = [delegate]
        max_steps = 3

    call(Outer(model=script(calling("delegate", question="a"), finish(answer="b"))), question="?")
    with pytest.raises(AssertionError, match="received 1 request, but its script has 0 replies"):
        inner.done()


def test_scripted_model_done_with_unused_reply_raises_assertion_error() -> None:
    model = ScriptedModel(["a", "b", "c"], name="some-model")
    model.complete(request())
    with pytest.raises(AssertionError, match=r"`some-model` has 2 unused replies\. The first unused reply is 'b'"):
        model.done()
    model.complete(request())
    with pytest.raises(AssertionError, match=r"has 1 unused reply\. The first unused reply is 'c'"):
        model.done()
    model.complete(request())
    model.done()


def test_scripted_model_used_in_with_statement_raises_assertion_error_for_unused_reply() -> None:
    with pytest.raises(AssertionError, match="1 unused reply"), ScriptedModel(["a"]) as model:
        assert isinstance(model, ScriptedModel)
    with ScriptedModel(["a"]) as model:
        model.complete(request())


def test_scripted_model_used_in_with_statement_does_not_hide_exception_of_block() -> None:
    with pytest.raises(KeyError, match="the real one"), ScriptedModel(["a"]):
        raise KeyError("the real one")


@both_ways
def test_scripted_reply_of_invalid_type_raises_assertion_error(ask: Ask) -> None:
    made: Any = ScriptedModel(lambda asked: None)  # type: ignore[arg-type, return-value]
    listed: Any = ScriptedModel([5])  # type: ignore[list-item]
    for model, what in ((made, "None"), (listed, "5")):
        with pytest.raises(AssertionError, match=rf"contains {what}\. Use a `Reply`"):
            ask(model, request())


# Failures


@both_ways
@each_case(
    ("status", "retryable"),
    [(400, False), (401, False), (404, False), (408, True), (409, True), (429, True), (500, True), (529, True)],
)
def test_scripted_failure_raises_model_error_with_status(ask: Ask, status: int, retryable: bool) -> None:
    model = ScriptedModel([Failure(status, "too much")], name="some-model")
    with pytest.raises(ModelError, match=rf"`some-model` failed \(HTTP {status}\): too much") as caught:
        ask(model, request())
    error = caught.value
    assert (error.status, error.retryable, error.provider) == (status, retryable, "scripted")


@both_ways
def test_scripted_failure_without_status_raises_retryable_model_error(ask: Ask) -> None:
    with pytest.raises(ModelError, match="the connection broke") as caught:
        ask(ScriptedModel([Failure()]), request())
    assert (caught.value.status, caught.value.retryable) == (None, True)


@both_ways
def test_scripted_exception_is_raised_unchanged(ask: Ask) -> None:
    error = AcornError("as it is")
    with pytest.raises(AcornError) as caught:
        ask(ScriptedModel([error]), request())
    assert caught.value is error


@both_ways
@each_case("reply", [Reply("late", delay=0.05), Failure(500, delay=0.05)])
def test_scripted_delay_is_waited_before_reply_or_failure(ask: Ask, reply: Reply | Failure) -> None:
    began = time.monotonic()
    try:
        ask(ScriptedModel([reply]), request())
    except ModelError:
        assert isinstance(reply, Failure)
    assert time.monotonic() - began >= 0.05


def test_scripted_delay_does_not_block_event_loop() -> None:
    model = ScriptedModel([Reply("late", delay=AGES), Reply("now")])

    async def main() -> None:
        late = asyncio.create_task(model.acomplete(request()))
        while not model.requests:
            await asyncio.sleep(0)
        assert (await model.acomplete(request())).content == "now"
        assert late.cancel()

    asyncio.run(main())


@both_ways
def test_scripted_delay_ends_at_request_timeout(ask: Ask) -> None:
    with waiting_for_nothing(), pytest.raises(ModelError, match=r"took longer than 0\.02 s") as caught:
        ask(ScriptedModel([Reply("late", delay=AGES)]), request(timeout=0.02))
    assert caught.value.retryable


@pytest.mark.every_way
def test_scripted_reply_after_max_seconds_raises_limit_error(call: Call, script: Script) -> None:
    with waiting_for_nothing(), pytest.raises(LimitError, match="max_seconds"):
        call(Asker(model=script(finish(answer="a") & Reply(delay=AGES)), max_seconds=0.3), question="?")


# The model port


def test_scripted_model_implements_model_protocol() -> None:
    assert is_model(ScriptedModel([]))
    assert ScriptedModel([], name="some-model").name == "some-model"


def test_scripted_model_supports_forcing_by_default() -> None:
    assert ScriptedModel([]).can_force_tool(request())
    assert not ScriptedModel([], forces=False).can_force_tool(request())


def test_scripted_model_price_is_used_for_cost(call: Call, script: Script) -> None:
    assert ScriptedModel([]).price() is None
    used = Usage(input_tokens=10, output_tokens=5, requests=1)
    model = script(finish(answer="a") & Reply(usage=used), price=Price(1.0, 2.0))
    assert call.run(Asker(model=model), question="?").cost == 20.0


def test_scripted_model_called_in_many_threads_returns_each_reply_once(script: Script) -> None:
    model = script(*[finish(answer=str(at)) for at in range(50)])
    agent = Asker(model=model)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(agent(question="?").answer)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers, key=int) == [str(at) for at in range(50)]


# Single replies and outputs


@each_case("reply", ["hello", Reply("hello")])
def test_scripted_model_accepts_single_reply_without_list(reply: Any) -> None:
    model = ScriptedModel(reply)
    assert model.complete(request()).content == "hello"
    with pytest.raises(AssertionError, match=r"has 1 reply\."):
        model.complete(request())


def test_scripted_model_accepts_single_failure_or_exception_without_list() -> None:
    with pytest.raises(ModelError, match="HTTP 500"):
        ScriptedModel(Failure(500)).complete(request())
    with pytest.raises(KeyError, match="gone"):
        ScriptedModel(KeyError("gone")).complete(request())


class Named(BaseModel):
    given_name: str = Field(alias="givenName")
    answer: Answer

    @computed_field
    def shout(self) -> str:
        return self.given_name.upper()


class Several(RootModel[list[Answer]]):
    pass


@dataclasses.dataclass
class Point:
    x: int


@each_case(
    "output",
    [
        Answer(answer="Paris"),
        Named(givenName="Jo", answer=Answer(answer="Paris")),
        Several([Answer(answer="Paris")]),
        Point(3),
        "text",
        [1, 2],
    ],
)
def test_finish_helper_accepts_output_instance(call: Call, script: Script, output: Any) -> None:
    agent = type("Giver", (Asker,), {"final_output": type(output)})
    found = call(agent(model=script(finish(output))), question="?")
    assert found == (output.root if isinstance(output, Several) else output) or found == output


def test_finish_helper_with_output_instance_and_fields_raises_type_error() -> None:
    with pytest.raises(TypeError, match="an output or its fields, not both"):
        finish(Answer(answer="a"), answer="b")


# By turn


@pytest.mark.message_list
def test_scripted_model_by_turn_selects_reply_by_number_of_earlier_responses(call: Call) -> None:
    replies: list[Any] = [
        calling("search", query="a"),
        "Let me think.",
        calling("search", query="b"),
        finish(answer="c"),
    ]
    with call.scripted(replies, by_turn=True) as model:
        assert call(Searcher(model=model), question="?") == Answer(answer="c")
    with call.scripted(replies, by_turn=True) as again:  # In another process, and with a turn that is asked again.
        turns = call.scripted(replies)
        run = call.run(Searcher(model=turns), question="?")
        for request in [*turns.requests[2:], turns.requests[3]]:
            again.complete(request)
    assert run.output == Answer(answer="c")
    given = [again.complete(request).tool_calls for request in turns.requests]
    assert given == [turns._respond(reply, turns.requests[0], at).tool_calls for at, reply in enumerate(replies)]


def test_scripted_model_by_turn_does_not_count_responses_of_prior_history() -> None:
    model = ScriptedModel([calling("search", query="a"), finish(answer="b")], by_turn=True)
    agent = Searcher(model=model)
    first = agent.run(question="?")
    assert agent.using(history=first)(question="again?") == Answer(answer="b")
    assert len(model.requests) == 4
    plain = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert agent.using(history=plain)(question="again?") == Answer(answer="b")


def test_scripted_model_by_turn_with_unused_or_missing_replies_raises_assertion_error() -> None:
    model = ScriptedModel([finish(answer="b"), finish(answer="c")], by_turn=True)
    Searcher(model=model)(question="?")
    with pytest.raises(AssertionError, match="1 unused reply"):
        model.done()
    short = ScriptedModel([calling("search", query="a")], by_turn=True)
    with pytest.raises(AssertionError, match=r"received turn 2, but its script has 1 reply\."):
        Searcher(model=short)(question="?")


# Copies


@each_case("make", [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent)), copy.copy])
def test_copied_or_pickled_agent_with_scripted_model_has_independent_script(make: Callable[[Any], Any]) -> None:
    agent = Searcher(model=ScriptedModel([calling("search", query="a"), finish(answer="b"), finish(answer="c")]))
    again = make(agent)
    if make is not copy.copy:
        assert again.model is not agent.model
        assert again(question="?") == Answer(answer="b")
        assert agent.model.requests == []
    assert agent(question="?") == Answer(answer="b")
    used = make(agent)
    assert used(question="?") == Answer(answer="c")
    bodies = [asked.body("m") for asked in agent.model.requests[:2]]
    assert [asked.body("m") for asked in used.model.requests[:2]] == bodies
