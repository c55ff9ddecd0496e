"""Tests of human input: requests, the effect of answers, and pauses."""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import json
import pickle
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.cases import case
from tests.long_version import IS_LONG
from tests.provider_rules import assert_complete, assert_thread_true
from tests.saved_tree import SavedTree
from tests.waiting import PATIENCE

from acorn import (
    AcornError,
    DeclarationError,
    InputError,
    Paused,
    Request,
    Run,
    Step,
    StoreError,
    approve,
    ask_human,
    current_run,
    deny,
    listen,
    module,
    tool,
)
from acorn._call.plan import new_machine
from acorn._drive.async_driver import adrive, adrive_stream
from acorn._drive.sync_driver import drive, drive_stream
from acorn._drive.tree import Tree
from acorn._formats.json import to_json_data
from acorn._machine.human_input import PersonsAnswer
from acorn._machine.saved_run import load, save
from acorn.journal import Entry, InputReceived, InputRequested, RunPaused, ToolFinished, ToolStarted
from acorn.models import ModelRequest
from acorn.record import approval_digest
from acorn.stores import MemoryStore
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling
from acorn.thread import parse_thread_xml, serialize_thread_to_xml, to_messages

WAYS = ["sync", "async", "streamed", "streamed async", "saved"]
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
"""For tests whose subject depends on the driver. Other tests run once, and in all ways in the long version."""
DONE: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


@pytest.fixture(params=WAYS if IS_LONG else ["saved"])
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@tool
def look(at: str = "it") -> str:
    """Look."""
    DONE.append(f"look {at}")
    return f"seen {at}"


@tool(approval=True)
def refund(order: str, amount: float = 1.0) -> str:
    """Pay money back."""
    DONE.append(f"refund {order} {amount}")
    return f"paid {amount}"


class Desk(module[Any, str]):
    """Help."""

    final_output = str
    tools = [ask_human, refund, look]
    max_steps = 6

    def on_human(self, request: Request) -> Any:
        return None


class Answering(Desk):
    """Help."""

    def __init__(self, answer: Any = None, **settings: Any) -> None:
        self.answer = answer
        self.asked: list[Request] = []
        super().__init__(**settings)

    def on_human(self, request: Request) -> Any:
        self.asked.append(request)
        return self.answer(request) if callable(self.answer) else self.answer


def together(*replies: Reply) -> Reply:
    return functools.reduce(lambda one, other: one & other, replies)


def walk_on(tree: Tree, run_id: str, way: str) -> None:
    if way in ("sync", "saved"):
        drive(tree, run_id)
    elif way == "async":
        asyncio.run(adrive(tree, run_id))
    elif way == "streamed":
        for _ in drive_stream(tree, run_id):
            pass
    else:

        async def all_of_it() -> None:
            async for _ in adrive_stream(tree, run_id):
                pass

        asyncio.run(all_of_it())


class Office:
    """Drive a run, and resume it from its saved state like another process."""

    def __init__(self, agent: module[Any, Any], way: str, **inputs: Any) -> None:
        loop = new_machine(agent, (), inputs)
        self.plan, self.way = loop.plan, way
        self._kept: dict[str, Any] = {}
        self._go(SavedTree(loop) if way == "saved" else Tree(loop), loop.run)

    def _go(self, tree: Tree, run: Run[Any]) -> None:
        self.tree, self.run = tree, run
        tree.can_pause = True
        walk_on(tree, run.id, self.way)
        self.run = tree.machines[run.id].run
        for loop in tree.machines.values():
            assert_complete(loop.run.history)
            assert_thread_true(
                loop.run, is_edited=not loop.run.history
            )  # Without messages, it has those of its branch.

    @property
    def output(self) -> Any:
        return self.run.output

    def saved(self) -> dict[str, Any]:
        self._kept |= {run_id: json.loads(json.dumps(save(loop))) for run_id, loop in self.tree.machines.items()}
        return dict(self._kept)

    def resume(self, answers: dict[str, Any] | None = None) -> Any:
        kept = self.saved()
        again = load(self.plan, kept.pop(self.run.id))
        seen = {request.id: request for request in (self.output.requests if answers else ())}
        given = {
            request_id: PersonsAnswer(
                data := to_json_data(value),
                approval_digest(seen[request_id], data) if request_id in seen else None,
            )
            for request_id, value in (answers or {}).items()
        }
        self._go((SavedTree if self.way == "saved" else Tree)(again, kept, given), again.run)
        return self.output

    def answer(self, *values: Any) -> Any:
        """Answer all open requests in order."""
        requests = self.output.requests
        return self.resume(dict(zip([request.id for request in requests], values, strict=True)))


def waits(run: Run[Any]) -> Paused:
    """Return the requests of a paused run."""
    assert isinstance(run.output, Paused)
    return run.output


def told(model: ScriptedModel) -> list[Any]:
    """Return what the model read of the calls of its last turn."""
    messages = model.requests[-1].messages
    return [message["content"] for message in messages if message["role"] == "tool"]


# Results of a paused call


@EVERY_WAY
def test_question_pauses_run_and_answer_resumes_run(way: str) -> None:
    model = ScriptedModel([calling("ask_human", _id="q", question="Which?", choices=["red", "blue"]), finish("ok")])
    office = Office(Desk(model=model), way)
    paused = office.output
    assert isinstance(paused, Paused)
    assert not paused
    assert office.run.stop_reason == "paused"
    assert paused.run_id == office.run.id
    request = paused.request
    assert paused.requests == (request,)
    assert (request.kind, request.question, request.tool, request.branch) == ("question", "Which?", "ask_human", None)
    assert request.choices == ("red", "blue")
    assert request.arguments == {"question": "Which?", "choices": ["red", "blue"]}
    assert request.run_id == office.run.id
    assert request.asked >= (office.run.started or request.asked)
    assert len(request.id) == 32
    assert len(model.requests) == 1
    assert office.answer("the blue one") == "ok"
    assert told(model) == ["the blue one"]
    assert office.run.stop_reason == "finish"
    assert len(model.requests) == office.run.usage.requests == 2


def test_answer_of_person_that_is_not_text_is_sent_to_model_as_json(way: str) -> None:
    model = ScriptedModel([calling("ask_human", question="Which?"), finish("ok")])
    office = Office(Desk(model=model), way)
    assert office.answer({"size": 3, "color": "blue"}) == "ok"
    assert json.loads(told(model)[0]) == {"size": 3, "color": "blue"}


def test_tool_call_is_executed_if_person_approves_and_refused_otherwise(way: str) -> None:
    for answer, done, read in [
        (True, ["refund a 9.0"], "paid 9.0"),
        (False, [], "Refused: a person did not approve this call, so it was not made."),
        (deny("too dear"), [], "The reason: too dear"),
        ({"approved": True, "arguments": {"order": "b", "amount": "4"}}, ["refund b 4.0"], "paid 4.0"),
    ]:
        with case(answer, done, read):
            DONE.clear()
            model = ScriptedModel([calling("refund", order="a", amount=9), finish("ok")])
            office = Office(Desk(model=model), way)
            request = office.output.request
            assert (request.kind, request.tool, request.arguments) == (
                "approval",
                "refund",
                {"order": "a", "amount": 9},
            )
            assert "`refund`" in request.question
            assert '"amount":9' in request.question
            assert DONE == []
            assert office.answer(answer) == "ok"
            assert done == DONE
            assert read in told(model)[0]


def test_answer_of_person_with_invalid_type_raises_input_error_before_resume() -> None:
    for answer, words in [
        (1, "1 is not a valid answer to the request"),
        ("too dear", "Use True, False"),
        ({"approved": False, "arguments": {}}, "Use True, False"),
        ({"approved": True, "arguments": [1]}, "Use True, False"),
        ({"approved": True, "arguments": {"order": "b"}}, "argument `amount` is missing"),
        ({"approved": True, "arguments": {"amount": "much"}}, "argument `order` is missing"),
        (None, "None is not a valid answer to the request"),
    ]:
        with case(answer, words):
            model = ScriptedModel([calling("refund", order="a"), finish("ok")])
            office = Office(Desk(model=model), "sync")
            before = office.saved()
            with pytest.raises(InputError, match=words):
                office.answer(answer)
            assert office.saved() == before
            assert office.answer(True) == "ok"


def test_second_answer_to_same_request_raises_store_error() -> None:
    model = ScriptedModel([calling("ask_human", question="a?") & calling("ask_human", question="b?")])
    loop = Office(Desk(model=model), "sync").tree.machines
    (machine,) = loop.values()
    again = load(machine.plan, save(machine))
    again.start(machine.journal.now)
    first, second = again.calls.open_requests()
    again.take_answers({first.id: PersonsAnswer("x", None)}, 9.0)
    assert again.calls.open_requests() == [second]
    with pytest.raises(StoreError, match="is already answered"):
        again.calls.check_answer(first.id, "y")
    with pytest.raises(StoreError, match="has no request `nope`"):
        again.calls.check_answer("nope", "y")
    assert [entry.answer for entry in again.journal.entries if isinstance(entry, InputReceived)] == ["x"]


# Several requests


def test_tool_calls_in_same_response_as_question_finish_before_run_pauses(way: str) -> None:
    model = ScriptedModel(
        [
            together(
                calling("ask_human", _id="q", question="Who?"),
                calling("look", _id="l", at="this"),
                calling("refund", _id="r", order="a"),
                calling("look", _id="m", at="that"),
            ),
            finish("ok"),
        ]
    )
    office = Office(Desk(model=model), way)
    assert sorted(DONE) == ["look that", "look this"]
    question, approval = office.output.requests
    assert office.resume({approval.id: True}) is office.output  # It runs while the other call still waits.
    assert sorted(DONE) == ["look that", "look this", "refund a 1.0"]
    assert [request.id for request in office.output.requests] == [question.id]
    assert office.resume({question.id: "me"}) == "ok"
    assert told(model) == ["me", "seen this", "paid 1.0", "seen that"]
    assert len(DONE) == 3
    assert len(model.requests) == 2


def test_resume_without_answer_pauses_again_with_same_requests(way: str) -> None:
    model = ScriptedModel([calling("ask_human", question="a?") & calling("refund", order="a"), finish("ok")])
    office = Office(Desk(model=model), way)
    before = office.output.requests
    assert office.resume() == office.output
    assert office.output.requests == before
    assert office.answer("x", False) == "ok"


def test_equal_call_id_in_two_steps_creates_two_human_input_requests() -> None:
    same = calling("ask_human", _id="q", question="Again?")
    model = ScriptedModel([same, same, finish("ok")])
    office = Office(Desk(model=model), "sync")
    first = office.output.request
    office.answer("x")
    second = office.output.request
    assert first.id != second.id
    assert office.answer("y") == "ok"


# on_human


def run_in(agent: module[Any, Any], way: str) -> Run[Any]:
    if way == "async":
        return asyncio.run(agent.arun())
    if way == "streamed":
        return list(agent.stream())[-1].run or pytest.fail("no record")
    if way == "streamed async":

        async def last() -> Any:
            return [chunk async for chunk in agent.astream()][-1].run

        found: Run[Any] = asyncio.run(last())
        return found
    return agent.run()


@pytest.mark.parametrize("is_async", [False, True])
def test_answer_returned_by_on_human_is_used_without_pause(way: str, is_async: bool) -> None:
    class Awaiting(Answering):
        """Help."""

        async def on_human(self, request: Request) -> Any:
            await asyncio.sleep(0)
            return super().on_human(request)

    model = ScriptedModel(
        [calling("ask_human", question="Who?") & calling("look") & calling("refund", order="a"), finish("ok")]
    )
    agent = (Awaiting if is_async else Answering)(lambda request: request.kind == "approval" or "me", model=model)
    run = run_in(agent, way)
    assert run.output == "ok"
    assert [request.kind for request in agent.asked].count("question") == 1
    assert told(model) == ["me", "seen it", "paid 1.0"]
    kinds = [type(entry) for entry in run.journal.entries]
    assert kinds.count(InputRequested) == kinds.count(InputReceived) == 2
    assert RunPaused not in kinds


def test_on_human_that_returned_none_is_not_called_again_on_resume(way: str) -> None:
    model = ScriptedModel([calling("ask_human", question="Who?"), finish("ok")])
    agent = Answering(None, model=model)
    office = Office(agent, way)
    assert isinstance(office.output, Paused)
    office.resume()
    assert [request.question for request in agent.asked] == ["Who?"]
    assert office.answer("me") == "ok"
    assert len(agent.asked) == 1


def test_on_human_exception_ends_run() -> None:
    def fail(request: Request) -> Any:
        raise ZeroDivisionError("on purpose")

    agent = Answering(fail, model=ScriptedModel([calling("ask_human", question="Who?")]))
    with pytest.raises(ZeroDivisionError):
        agent.run()
    assert agent.last is not None
    assert agent.last.stop_reason == "error"
    assert_complete(agent.last.history)


def test_on_human_that_returns_invalid_answer_ends_run_with_input_error() -> None:
    agent = Answering(3, model=ScriptedModel([calling("refund", order="a")]))
    with pytest.raises(InputError, match="Use True, False"):
        agent.run()
    assert DONE == []


@EVERY_WAY
def test_on_human_is_called_while_tools_run(way: str) -> None:
    is_asked = threading.Event()

    @tool
    def wait() -> str:
        """Return when somebody was asked."""
        assert is_asked.wait(PATIENCE)
        return "waited"

    def answer(request: Request) -> Any:
        is_asked.set()
        return "me"

    model = ScriptedModel([calling("wait") & calling("ask_human", question="Who?"), finish("ok")])
    assert run_in(Answering(answer, model=model, tools=[wait, ask_human]), way).output == "ok"


# No person


def test_agent_that_needs_approval_without_on_human_and_store_raises_error_before_model_call() -> None:
    class Alone(module[Any, str]):
        """Help."""

        final_output = str
        tools = [refund]

    class Above(module[Any, str]):
        """Help."""

        final_output = str
        branches = {"alone": Alone}

    class Caller(module[Any, str]):
        """Help."""

        final_output = str
        tools = [Above]

    for kind in (Alone, Above, Caller):
        model = ScriptedModel([])
        with pytest.raises(DeclarationError, match=r"`refund` of `Alone`.*Set `store`.*`on_human`"):
            kind(model=model)()
        assert model.requests == []

    class Heard(Caller):
        def on_human(self, request: Request) -> Any:
            return True

    assert Heard(model=ScriptedModel(finish("ok")))() == "ok"


def test_human_input_request_without_answer_and_store_raises_store_error() -> None:
    agent = Desk(model=ScriptedModel([calling("ask_human", question="Who?")]))
    with pytest.raises(StoreError, match=r"cannot pause for human input \(Who\?\): it has no store"):
        agent()
    assert agent.last is not None
    assert_complete(agent.last.history)


def test_ask_human_called_directly_raises_acorn_error() -> None:
    with pytest.raises(AcornError, match="Only a model can call"):
        ask_human("Who?")


# Which calls need approval


def test_approval_predicate_selects_calls_that_need_approval(way: str) -> None:
    seen: list[Any] = []

    def is_much(arguments: dict[str, Any]) -> bool:
        seen.append(arguments)
        return bool(arguments["amount"] > 100)

    @tool(approval=is_much)
    def pay(order: str, run: Run[Any], amount: float = 5, *, note: str = "") -> str:
        """Pay."""
        DONE.append(f"pay {order} {amount}")
        return "paid"

    model = ScriptedModel(
        [
            together(
                calling("pay", order="a", amount="7"), calling("pay", order="b", amount=700), calling("pay", order="c")
            ),
            finish("ok"),
        ]
    )
    office = Office(Desk(model=model, tools=[pay]), way)
    assert sorted(DONE) == ["pay a 7.0", "pay c 5"]
    assert {"order": "a", "amount": 7.0, "note": ""} in seen
    (request,) = office.output.requests
    assert request.arguments == {"order": "b", "amount": 700, "note": ""}
    assert office.answer(True) == "ok"
    assert sorted(DONE) == ["pay a 7.0", "pay b 700.0", "pay c 5"]


def test_approval_predicate_exception_ends_run() -> None:
    @tool(approval=lambda arguments: arguments["nothing"])
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = Desk(model=ScriptedModel([calling("pay")]), tools=[pay])
    with pytest.raises(KeyError):
        agent()
    assert agent.last is not None
    assert agent.last.stop_reason == "error"
    assert_complete(agent.last.history)


def test_call_with_invalid_arguments_is_not_sent_for_approval() -> None:
    model = ScriptedModel([calling("refund", amount=3) & calling("ask_human", choices=["a"]), finish("ok")])
    assert Desk(model=model)() == "ok"
    assert "argument `order` is missing" in told(model)[0]
    assert "argument `question` is missing" in told(model)[1]


def test_invalid_once_or_approval_option_of_tool_raises_declaration_error() -> None:
    rows: list[Any] = [{"once": 1}, {"approval": "yes"}, {"approval": lambda: True}, {"approval": 1}]
    for options in rows:
        with case(options), pytest.raises(DeclarationError, match=f"`{next(iter(options))}` of the tool"):
            tool(**options)(lambda: None)


def test_approval_predicate_that_is_not_plain_function_raises_declaration_error() -> None:
    async def later(arguments: dict[str, Any]) -> bool:
        return True

    with pytest.raises(DeclarationError, match="a sync function"):
        tool(approval=later)(look)


def test_agent_tool_with_approval_option_raises_declaration_error() -> None:
    class Inner(module[Any, str]):
        """Inner."""

        final_output = str

    with pytest.raises(DeclarationError, match="Set them on the tools of the agent"):
        Desk(tools=[tool(approval=True)(Inner)])


def test_ask_human_schema_has_required_question_and_optional_choices() -> None:
    model = ScriptedModel(finish("ok"))
    Desk(model=model)()
    (function,) = [each["function"] for each in model.requests[0].tools if each["function"]["name"] == "ask_human"]
    assert function["parameters"]["required"] == ["question"]
    assert function["parameters"]["properties"]["question"]["type"] == "string"
    assert {"type": "array", "items": {"type": "string"}} in function["parameters"]["properties"]["choices"]["anyOf"]


def test_ask_human_with_other_name_is_sent_under_that_name() -> None:
    model = ScriptedModel([calling("ask_boss", question="Who?"), finish("ok")])
    agent = Answering("me", model=model, tools=[tool(name="ask_boss")(ask_human)])
    assert agent() == "ok"
    assert agent.asked[0].tool == "ask_boss"


# Branches


class Inner(module[Any, str]):
    """Inner."""

    final_output = str
    tools = [refund, ask_human, look]
    max_steps = 5


class ByModel(Desk):
    """Outer."""

    tools = [look, ask_human]
    branches = {"inner": Inner}


class ByAgent(Desk):
    """Outer."""

    tools = [Inner, look, ask_human]


class ByHand(Desk):
    """Outer."""

    tools = [look, ask_human]

    @tool
    def inner(self) -> str:
        """Begin it by hand."""
        DONE.append("by hand")
        return self.branch(Inner)


class ByHandAsync(Desk):
    """Outer."""

    tools = [look, ask_human]

    @tool
    async def inner(self) -> str:
        """Begin it by hand."""
        DONE.append("by hand")
        return await self.abranch(Inner)


class ByHook(Desk):
    """Outer."""

    tools = [look, ask_human]

    def on_step(self, step: Step) -> None:
        if step.counter == 1:
            step.add_to_context(self.branch(Inner))


def nested(request: ModelRequest) -> Reply:
    """The outer agent calls `inner` and looks; the inner one looks, asks, and reports the answer."""
    texts = [str(message.get("content")) for message in request.messages]
    read = [message["content"] for message in request.messages if message["role"] == "tool"]
    if "Inner." not in texts[0]:
        names = [each["function"]["name"] for each in request.tools]
        if "inner said" in str(texts):
            return finish("done")
        return calling("inner", _id="a") & calling("look", _id="b") if "inner" in names else calling("look", _id="b")
    if "paid 1.0" in str(read):
        return finish("inner said")
    return (
        calling("refund", _id="r", order="a") if "seen inside" in str(read) else calling("look", _id="c", at="inside")
    )


@EVERY_WAY
def test_human_input_request_of_branch_pauses_branch_and_its_parent(way: str) -> None:
    for kind in [ByModel, ByAgent, ByHand, ByHandAsync, ByHook]:
        with case(kind):
            DONE.clear()
            model = ScriptedModel(nested)
            office = Office(kind(model=model), way)
            (request,) = office.output.requests
            (branch,) = office.run.branches
            assert (request.run_id, request.branch) == (branch.id, branch.branch)
            assert branch.stop_reason == "paused"
            assert waits(branch).request == request
            assert office.run.usage.requests == 3
            assert sorted(set(DONE) - {"by hand"}) == ["look inside", "look it"]
            asked = len(model.requests)
            assert office.answer(True) == "done"
            assert [each for each in DONE if each.startswith("refund")] == ["refund a 1.0"]
            assert [each for each in DONE if each.startswith("look")] == sorted(
                ["look it", "look inside"], key=DONE.index
            )
            assert len(model.requests) == asked + 2 == office.run.usage.requests
            assert [each.output for each in office.run.branches] == ["inner said"]


@pytest.mark.parametrize("kind", [ByModel, ByAgent, ByHand])
def test_branch_without_on_human_asks_parent(kind: type[Desk], way: str) -> None:
    asked: list[Request] = []

    class Present(kind):  # type: ignore[misc, valid-type]
        """Outer."""

        def on_human(self, request: Request) -> Any:
            asked.append(request)
            return True

    assert run_in(Present(model=ScriptedModel(nested)), way).output == "done"
    (request,) = asked
    assert request.branch is not None


def test_branch_with_on_human_calls_on_human_of_branch() -> None:
    asked: list[str] = []

    class Own(Inner):
        """Inner."""

        def on_human(self, request: Request) -> Any:
            asked.append("inner")
            return True

    class Outer(ByModel):
        """Outer."""

        branches = {"inner": Own}

        def on_human(self, request: Request) -> Any:
            asked.append("outer")
            return True

    assert Outer(model=ScriptedModel(nested))() == "done"
    assert asked == ["inner"]


class Siblings(ByModel):
    """Outer."""

    @tool
    def many(self) -> str:
        """Begin some by hand."""
        return " ".join(map(str, self.branch_all([(Inner, {}), (Inner, {}), (Quick, {})])))


class Quick(Inner):
    """Quick."""


def siblings(first: Callable[[], Reply], request: ModelRequest) -> Reply:
    texts = [str(message.get("content")) for message in request.messages]
    read = str([message["content"] for message in request.messages if message["role"] == "tool"])
    if "Quick." in texts[0]:
        return finish("quick said") if "seen quick" in read else calling("look", at="quick")
    if "Inner." in texts[0]:
        return finish("inner said") if "paid" in read or "Refused" in read else calling("refund", order="a")
    return finish("done") if "quick said" in read else first()


@EVERY_WAY
def test_tool_calls_next_to_branch_that_pauses_finish_before_run_pauses(way: str) -> None:
    def first() -> Reply:
        return together(
            calling("inner", _id="a"),
            calling("quick", _id="b"),
            calling("inner", _id="c"),
            calling("ask_human", _id="d", question="Who?"),
        )

    model = ScriptedModel(functools.partial(siblings, first))
    office = Office(Siblings(model=model, branches={"inner": Inner, "quick": Quick}), way)
    assert DONE == ["look quick"]
    assert [run.stop_reason for run in office.run.branches] == ["paused", "finish", "paused"]
    own, one, other = office.output.requests
    assert (own.question, own.branch, one.branch, other.branch) == ("Who?", None, "inner", "inner")
    assert one.id != other.id
    office.resume({one.id: True})
    assert DONE == ["look quick", "refund a 1.0"]
    assert [request.id for request in office.output.requests] == [own.id, other.id]
    office.resume({own.id: "me"})
    assert office.resume({other.id: "no"}) == "done"
    assert [run.stop_reason for run in office.run.branches] == ["finish"] * 3
    assert DONE == ["look quick", "refund a 1.0"]


def test_branch_starts_although_sibling_agent_tool_is_paused(way: str) -> None:
    def first() -> Reply:
        return calling("inner", _id="a") & calling("quick", _id="b")

    model = ScriptedModel(functools.partial(siblings, first))
    office = Office(Desk(model=model, tools=[Inner], branches={"quick": Quick}), way)
    assert DONE == ["look quick"]
    assert sorted(str(run.stop_reason) for run in office.run.branches) == ["finish", "paused"]
    assert office.answer(True) == "done"
    assert DONE == ["look quick", "refund a 1.0"]


def test_concurrent_branches_started_by_branch_all_run_until_each_finishes_or_pauses(way: str) -> None:
    model = ScriptedModel(functools.partial(siblings, lambda: calling("many", _id="m")))
    office = Office(Siblings(model=model), way)
    assert DONE == ["look quick"]
    one, other = office.output.requests
    office.resume({other.id: True})
    assert DONE == ["look quick", "refund a 1.0"]
    assert [request.id for request in office.output.requests] == [one.id]
    assert office.resume({one.id: True}) == "done"
    assert DONE == ["look quick", "refund a 1.0", "refund a 1.0"]


class Tasks(ByModel):
    """Outer."""

    @tool
    async def many(self) -> str:
        """Begin some by hand."""
        return " ".join(await asyncio.gather(self.abranch(Inner), self.abranch(Quick), self.abranch(Inner)))


class Grouped(ByModel):
    """Outer."""

    @tool
    async def many(self) -> str:
        """Begin some by hand."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.abranch(kind)) for kind in (Inner, Quick, Inner)]
        return " ".join(task.result() for task in tasks)


@EVERY_WAY
def test_concurrent_tasks_that_start_branches_run_until_each_branch_finishes_or_pauses(way: str) -> None:
    for kind in [Tasks, Grouped]:
        with case(kind):
            DONE.clear()
            model = ScriptedModel(functools.partial(siblings, lambda: calling("many", _id="m")))
            office = Office(kind(model=model), way)
            assert DONE == ["look quick"]
            assert sorted(str(run.stop_reason) for run in office.run.branches) == ["finish", "paused", "paused"]
            one, other = office.output.requests
            office.resume({other.id: True})
            assert DONE == ["look quick", "refund a 1.0"]
            assert office.resume({one.id: True}) == "done"
            assert DONE == ["look quick", "refund a 1.0", "refund a 1.0"]


def test_human_input_request_of_nested_branch_pauses_all_parents(way: str) -> None:
    class Middle(ByModel):
        """Middle."""

        final_output = str

    class Top(Desk):
        """Top."""

        tools = []
        branches = {"middle": Middle}

    def reply(request: ModelRequest) -> Reply:
        if "Middle." not in str(request.messages[0]["content"]):
            return finish("top") if "done" in str(request.messages[-1]["content"]) else calling("middle", _id="t")
        if "Inner." not in str(request.messages[0]["content"]):
            return finish("done") if "inner said" in str(request.messages[-1]["content"]) else calling("inner", _id="i")
        said = str(request.messages[-1]["content"])
        return finish("inner said") if "me" in said else calling("ask_human", _id="q", question="Who?")

    office = Office(Top(model=ScriptedModel(reply)), way)
    (request,) = office.output.requests
    assert request.branch == "middle/inner"
    assert waits(office.run.branches[0]).requests == (request,)
    assert office.answer("it is me") == "top"


class AtTheStart(ByHook):
    """Outer."""

    def on_start(self, step: Step) -> None:
        step.add_to_context(self.branch(Inner))

    def on_step(self, step: Step) -> None:
        pass


class AtTheEnd(ByHook):
    """Outer."""

    def on_step(self, step: Step) -> None:
        pass

    def on_finish(self, output: str) -> str:
        return self.branch(Inner)


class InThePrompt(AtTheEnd):
    """Outer."""

    def system_prompt(self) -> str:
        return f"Outer. {self.branch(Inner)}"

    def on_finish(self, output: str) -> str:
        return output


def inside(request: ModelRequest) -> Reply:
    if "Inner." not in str(request.messages[0]["content"]):
        return finish("done")
    said = str(request.messages[-1]["content"])
    return finish("inner said") if "paid" in said else calling("refund", _id="r", order="a")


@EVERY_WAY
def test_branch_started_in_on_start_on_finish_or_prompt_method_pauses_run(way: str) -> None:
    for kind in [AtTheStart, AtTheEnd, InThePrompt]:
        with case(kind):
            DONE.clear()
            office = Office(kind(model=ScriptedModel(inside)), way)
            assert office.output.request.branch == "Inner"
            assert office.answer(True) == ("inner said" if kind is AtTheEnd else "done")
            assert DONE == ["refund a 1.0"]
            assert len(office.run.branches) == 1


def test_on_stream_that_starts_branch_with_human_input_request_raises_acorn_error() -> None:
    class Shown(Desk):
        """Outer."""

        def on_stream(self, chunk: Any) -> None:
            if chunk.tool_result is not None:
                self.branch(Inner)

    agent = Shown(model=ScriptedModel(lambda r: inside(r) if "Inner." in str(r.messages[0]) else calling("look")))
    with pytest.raises(AcornError, match="`on_stream` started waits for human input"):
        agent.run()


# Other promises


class Source:
    """A source of tools that keeps a log."""

    def __init__(self) -> None:
        self.diary: list[str] = []

    def open(self) -> None:
        self.diary.append("open")

    def close(self) -> None:
        self.diary.append("close")

    def tools(self) -> Any:
        return [refund, look]


def test_tool_of_tool_source_that_needs_approval_pauses_run(way: str) -> None:
    for answer in [True, approve({"order": "b", "amount": 2.0}), "no"]:
        with case(answer):
            DONE.clear()
            source = Source()
            model = ScriptedModel([calling("refund", order="a"), finish("ok")])
            office = Office(Desk(model=model, tools=[source]), way)
            assert source.diary == ["open", "close"]
            assert office.answer(answer) == "ok"
            assert source.diary == ["open", "close"] * 2
            assert len(DONE) == (answer != "no")
            assert len(model.requests[-1].tools) == 3


def test_approved_arguments_for_tool_of_tool_source_are_validated_on_resume() -> None:
    model = ScriptedModel([calling("refund", order="a"), finish("ok")])
    office = Office(Desk(model=model, tools=[Source()]), "sync")
    assert office.answer({"approved": True, "arguments": {}}) == "ok"
    assert "argument `order` is missing" in told(model)[0]
    assert DONE == []


def test_non_parallel_call_that_waits_for_approval_does_not_block_other_calls(way: str) -> None:
    @tool(approval=True, parallel=False)
    def alone(name: str) -> str:
        """Stand alone."""
        DONE.append(name)
        return name

    model = ScriptedModel(
        [together(calling("alone", name="a"), calling("look"), calling("alone", name="b")), finish("ok")]
    )
    office = Office(Desk(model=model, tools=[alone, look]), way)
    assert DONE == ["look it"]
    assert office.answer(True, True) == "ok"
    assert DONE == ["look it", "a", "b"]


def test_run_with_max_seconds_pauses_for_human_input_and_resumes(way: str) -> None:
    model = ScriptedModel([calling("look") & calling("refund", order="a"), finish("ok")])
    office = Office(Desk(model=model, max_seconds=2 * PATIENCE), way)
    assert DONE == ["look it"]
    assert office.answer(True) == "ok"


def test_single_turn_run_pauses_for_human_input_and_resumes() -> None:
    office = Office(Desk(model=ScriptedModel([calling("refund", order="a")]), max_steps=None), "sync")
    assert isinstance(office.output, Paused)
    assert office.answer(True).tool_results[0].output == "paid 1.0"


def test_tool_with_once_option_interrupted_by_pause_of_its_branch_runs_again_on_resume(way: str) -> None:
    class Careful(ByHand):
        """Outer."""

        @tool(once=True)
        def inner(self) -> str:
            """Begin it by hand."""
            DONE.append("by hand")
            return self.branch(Inner)

    office = Office(Careful(model=ScriptedModel(nested)), way)
    assert office.answer(True) == "done"
    assert DONE.count("by hand") == 2
    assert DONE.count("refund a 1.0") == 1


@EVERY_WAY
def test_error_raised_by_hook_while_branch_is_paused_ends_run(way: str) -> None:
    class Failing(ByModel):
        """Outer."""

        def on_step(self, step: Step) -> None:
            raise ZeroDivisionError

    def reply(request: ModelRequest) -> Reply:
        inner = "Inner." in str(request.messages[0]["content"])
        return calling("ask_human", question="Who?") if inner else calling("inner") & calling("other")

    class Other(Failing):
        """Other."""

        branches = {}

    agent = ByModel(model=ScriptedModel(reply), branches={"inner": Inner, "other": Other})
    office = Office(agent, way)
    assert sorted(str(run.stop_reason) for run in office.run.branches) == ["error", "paused"]


@pytest.mark.parametrize("way", ["streamed", "streamed async"])
def test_stream_of_paused_run_ends_with_chunk_that_contains_requests(way: str) -> None:
    class Kept(Desk):
        """Help."""

        store = MemoryStore()

    agent = Kept(model=ScriptedModel([calling("refund", order="a"), finish("ok")]))
    if way == "streamed":
        last = list(agent.stream())[-1]
    else:

        async def all_of_it() -> list[Any]:
            return [chunk async for chunk in agent.astream()]

        last = asyncio.run(all_of_it())[-1]
    paused: Any = last.result
    assert isinstance(paused, Paused)
    assert last.run is not None
    assert last.run.stop_reason == "paused"
    assert agent.resume(paused.run_id, answer=True) == "ok"


PAID: list[str] = []


class Node(module[Any, str]):
    """Node."""

    final_output = str
    max_steps = 3
    tools = [ask_human]

    @tool(approval=lambda arguments: arguments["amount"] > 1)
    def pay(self, amount: int) -> str:
        """Pay."""
        PAID.append(current_run().idempotency_key)
        return "paid"

    @tool
    def all_by_hand(self) -> str:
        """Begin some by hand."""
        return str(self.branch_all([(Node, {}), (Node, {})]))

    @tool
    def by_hand(self) -> str:
        """Begin one by hand."""
        return self.branch(Node)

    def on_human(self, request: Request) -> Any:
        return None


Node.branches = {"sub": Node}


class Crowd(Node):
    """Node."""

    @tool
    async def as_tasks(self) -> str:
        """Begin some by hand."""
        return " ".join(await asyncio.gather(self.abranch(Node), self.abranch(Node)))


def crowd(seed: int, request: ModelRequest) -> Reply:
    """Return random calls of every kind, equal for the same conversation."""
    depth = str(request.messages[0]["content"]).count("Node.")
    turns = sum(message["role"] == "assistant" for message in request.messages)
    rng = random.Random(f"{seed}/{depth}/{turns}")
    if request.forced_tool or rng.random() < 0.2 * depth:
        return finish(f"end {depth} {turns}")
    deep = ["sub", "by_hand", "all_by_hand", *(["as_tasks"] if depth == 1 else [])] if depth < 3 else []
    made: list[Reply] = []
    for slot in range(rng.randint(1, 3)):
        name, call_id = rng.choice(["ask_human", "pay", "pay", *deep]), f"{depth}-{turns}-{slot}"
        more: Any = {"ask_human": {"question": call_id}, "pay": {"amount": rng.randint(1, 3)}}.get(name, {})
        made.append(calling(name, call_id, **more))
    return together(*made)


def answer_in_any_order(seed: int, way: str) -> int:
    """Answer the requests of a random run in random order, and return the number of requests."""
    PAID.clear()
    rng = random.Random(seed)
    office = Office(Crowd(model=ScriptedModel(functools.partial(crowd, seed)), loop_guard=None), way)
    known: set[str] = set()
    answered: set[str] = set()
    approved: set[str] = set()
    while isinstance(office.output, Paused):
        requests = office.output.requests
        assert len({request.id for request in requests}) == len(requests)
        assert answered.isdisjoint(request.id for request in requests)
        known |= {request.id for request in requests}
        chosen = rng.sample(requests, rng.randint(1, len(requests)))
        said = {each.id: rng.choice([True, False, "no"]) if each.kind == "approval" else "so" for each in chosen}
        answered |= said.keys()
        approved |= {request_id for request_id, value in said.items() if value is True}
        office.resume(said)
    assert office.run.stop_reason in ("finish", "forced"), office.run
    assert known == answered
    assert len(PAID) == len(set(PAID))
    paid = {hashlib.sha256(key.encode()).hexdigest()[:32] for key in PAID}
    assert paid & known == approved  # The others needed no approval.
    return len(known)


SEEDS = (4, 9, 0, 3, 4)
"""A seed for each way. With these seeds a run has many requests."""


@pytest.mark.parametrize(
    "pairs", [[(seed, way) for seed in range(60)] for way in WAYS] if IS_LONG else [zip(SEEDS, WAYS, strict=True)]
)
def test_human_input_requests_answered_in_any_order_resume_run(
    pairs: Iterable[tuple[int, str]], record_property: Callable[[str, object], None]
) -> None:
    asked = 0
    for seed, way in pairs:
        with case(seed, way):
            asked += answer_in_any_order(seed, way)
    record_property("tried", f"{asked:,} human input requests in random order")
    assert asked > 50


# Records


def test_record_of_paused_run_contains_placeholder_for_unanswered_call_and_survives_json(way: str) -> None:
    model = ScriptedModel([calling("look", _id="l") & calling("ask_human", _id="q", question="Who <&>?"), finish("ok")])
    office = Office(Desk(model=model), way)
    run = office.run
    assert [message["content"] for message in run.history[-2:]] == [
        "seen it",
        "This call has not returned yet: it waits for a person.",
    ]
    again = Run.from_json(run.to_json())
    assert waits(again).requests == waits(run).requests
    assert again.stop_reason == "paused"
    assert waits(pickle.loads(pickle.dumps(run))).requests == waits(run).requests
    (asked,) = [event for event in run.thread if event.type == "human_input_requested"]
    assert (asked.question, asked.tool_call_id, asked.request_id) == ("Who <&>?", "q", waits(run).request.id)
    office.answer("I & <you>")
    run = office.run
    (answered,) = [event for event in run.thread if event.type == "human_input_received"]
    assert (answered.response, answered.tool_call_id) == ("I & <you>", "q")
    assert to_messages(run.thread) == run.history
    assert "waits for a person" not in str(run.history)
    text = serialize_thread_to_xml(run.thread)
    parsed = parse_thread_xml(text)
    assert serialize_thread_to_xml(parsed) == text
    assert [message["role"] for message in to_messages(parsed)] == [message["role"] for message in run.history]


def test_listener_receives_human_input_requests_and_answers() -> None:
    heard: list[Entry] = []
    with listen(heard.append):
        office = Office(Desk(model=ScriptedModel([calling("refund", order="a"), finish("ok")])), "sync")
        office.answer(deny("never"))
    kinds = [type(entry) for entry in heard]
    assert [
        kind for kind in kinds if kind in (InputRequested, RunPaused, InputReceived, ToolStarted, ToolFinished)
    ] == [InputRequested, RunPaused, InputReceived, ToolFinished]


def test_attribute_access_on_paused_output_raises_error_with_pending_question() -> None:
    office = Office(Desk(model=ScriptedModel([calling("ask_human", question="Who?")])), "sync")
    paused = office.output
    with pytest.raises(
        AttributeError, match=r"waits for human input \(Who\?\), so `answer` is not available yet.*resume"
    ):
        _ = paused.answer
    assert repr(paused) == f"Paused(run_id={paused.run_id!r}, requests=['Who?'])"
    for other in (copy.copy(paused), copy.deepcopy(paused), pickle.loads(pickle.dumps(paused))):
        assert (other.run_id, other.requests, bool(other)) == (paused.run_id, paused.requests, False)


# Once


def test_interrupted_call_of_tool_with_once_option_is_not_repeated_on_resume() -> None:
    @tool(once=True)
    def ship() -> str:
        """Ship."""
        DONE.append("ship")
        raise KeyboardInterrupt

    @tool
    def count() -> str:
        """Count."""
        DONE.append("count")
        if DONE.count("count") == 1:
            raise KeyboardInterrupt
        return "counted"

    for name, read in (("ship", "Unknown: the process stopped while this call was in progress."), ("count", "counted")):
        model = ScriptedModel([calling(name), finish("ok")])
        loop = new_machine(Desk(model=model, tools=[ship, count]), (), {})
        tree = Tree(loop)
        with pytest.raises(KeyboardInterrupt):
            drive(tree, loop.run.id)
        again = load(loop.plan, json.loads(json.dumps(save(loop))))
        drive(Tree(again), again.run.id)
        assert again.run.output == "ok"
        assert read in told(model)[0]
        assert_complete(again.run.history)
        returned = [entry for entry in again.journal.entries if isinstance(entry, ToolFinished)]
        assert len(returned) == 1
    assert DONE == ["ship", "count", "count"]


def test_approved_call_that_was_interrupted_is_reported_to_model_as_unknown_result() -> None:
    @tool(approval=True)
    def ship() -> str:
        """Ship."""
        DONE.append("ship")
        raise KeyboardInterrupt

    model = ScriptedModel([calling("ship") & calling("look"), finish("ok")])
    office = Office(Desk(model=model, tools=[ship, look]), "sync")
    with pytest.raises(KeyboardInterrupt):
        office.answer(True)
    assert office.resume() == "ok"
    assert DONE == ["look it", "ship"]
    assert told(model)[0].startswith("Tool error: Unknown: ")


def test_paused_run_whose_tool_was_removed_from_class_finishes_after_load() -> None:
    office = Office(Desk(model=ScriptedModel([calling("refund", order="a"), finish("ok")])), "sync")
    office.plan = new_machine(Desk(model=office.plan.spec.model, tools=[look]), (), {}).plan
    assert office.resume() == "ok"


@EVERY_WAY
def test_idempotency_key_of_call_is_unchanged_after_reload(way: str) -> None:
    keys: list[str] = []

    @tool(approval=True)
    def pay(order: str) -> str:
        """Pay."""
        keys.append(current_run().idempotency_key)
        return "paid"

    @tool
    def note(order: str, run: Run[Any]) -> str:
        """Note."""
        keys.append(run.idempotency_key)
        if len(keys) == 1:
            raise KeyboardInterrupt
        return "noted"

    model = ScriptedModel([calling("note", _id="n", order="x"), calling("pay", _id="p", order="x"), finish("ok")])
    agent = Desk(model=model, tools=[pay, note])
    loop = new_machine(agent, (), {})
    tree = Tree(loop)
    with pytest.raises(KeyboardInterrupt):
        walk_on(tree, loop.run.id, way)
    again = load(loop.plan, json.loads(json.dumps(save(loop))))
    tree = Tree(again)
    tree.can_pause = True
    walk_on(tree, again.run.id, way)
    (request,) = waits(again.run).requests
    last = load(loop.plan, json.loads(json.dumps(save(again))))
    approved = PersonsAnswer(True, approval_digest(request, True))
    walk_on(Tree(last, None, {request.id: approved}), last.run.id, way)
    assert last.run.output == "ok"
    assert keys == [f"{loop.run.id}:1:n", f"{loop.run.id}:1:n", f"{loop.run.id}:2:p"]
    with pytest.raises(AcornError, match="not inside a tool call"):
        _ = last.run.idempotency_key


def test_concurrent_calls_have_different_idempotency_keys(way: str) -> None:
    keys: list[str] = []

    @tool
    def note() -> str:
        """Note."""
        keys.append(current_run().idempotency_key)
        return "noted"

    model = ScriptedModel([calling("note", _id="a") & calling("note", _id="b"), finish("ok")])
    run = run_in(Desk(model=model, tools=[note]), way)
    assert sorted(keys) == [f"{run.id}:1:a", f"{run.id}:1:b"]
