"""A family of small programs with the mistakes of new users: each raises an error that names the place and the fix."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.cases import case

import acorn
from acorn import DeclarationError, InputError, ModelError, ParseError, StoreError, module, tool
from acorn.testing import Failure, ScriptedModel, call, finish


class Question(BaseModel):
    question: str
    limit: int = Field(default=3, ge=1, le=10)


class Answer(BaseModel):
    answer: str


class Agent(module[Question, Answer]):
    """Answer the question."""

    @tool
    def look(self, place: str) -> str:
        """Look."""
        return place


class Silent(module[None, Answer]):
    """Answer."""


class Plain(module[None, str]):
    """Speak."""


def agent(*replies: Any, **settings: Any) -> Any:
    return Agent(model=ScriptedModel(list(replies) or [finish(answer="ok")]), **settings)


def silent(*replies: Any, **settings: Any) -> Any:
    return Silent(model=ScriptedModel(list(replies) or [finish(answer="ok")]), **settings)


make_tool: Any = tool


def unawaited() -> Any:
    pending = agent().acall(question="x")
    try:
        return pending.answer
    finally:
        pending.close()


MISTAKES: list[tuple[str, Callable[[], Any], type[BaseException], list[str]]] = [
    # Calls
    ("no input", lambda: agent()(), InputError, ["`Agent`", "`question` is missing", "string"]),
    ("unknown keyword", lambda: agent()(query="x"), InputError, ["`query` is not an input", "`question`"]),
    ("misspelled keyword", lambda: agent()(qestion="x"), InputError, ["`qestion`", "`question`"]),
    ("positional text", lambda: agent()("x"), InputError, ["`Agent`", "`question=...`", "`str`"]),
    ("positional dict", lambda: agent()({"question": "x"}), InputError, ["`Agent`", "keyword", "`dict`"]),
    ("two positional", lambda: agent()("x", "y"), InputError, ["`Agent`", "`str`, `str`"]),
    ("instance and keyword", lambda: agent()(Question(question="x"), limit=1), InputError, ["`limit`"]),
    ("another instance", lambda: agent()(Answer(answer="x")), InputError, ["`Answer`", "`Question`"]),
    ("wrong type", lambda: agent()(question=5), InputError, ["`question`", "string", "5"]),
    ("too large", lambda: agent()(question="x", limit=50), InputError, ["`limit`", "between 1 and 10", "50"]),
    ("two wrong fields", lambda: agent()(question=5, limit=0), InputError, ["`question`", "`limit`"]),
    ("None as a field", lambda: agent()(question=None), InputError, ["`question`", "string", "None"]),
    ("input for an agent without one", lambda: silent()(question="x"), InputError, ["`Silent`", "no arguments"]),
    ("positional for an agent without one", lambda: silent()("x"), InputError, ["`Silent`", "no arguments"]),
    (
        "option of using as an input",
        lambda: agent()(question="x", temperature=0),
        InputError,
        ["`temperature`", r"agent\.using\(temperature=\.\.\.\)"],
    ),
    ("deps as an input", lambda: agent()(question="x", deps=1), InputError, [r"agent\.using\(deps=\.\.\.\)"]),
    ("history as an input", lambda: agent()(question="x", history=[]), InputError, [r"agent\.using\(history=\.\.\.\)"]),
    ("wrong input of run", lambda: agent().run(), InputError, ["`Agent`", "`question` is missing"]),
    ("wrong input of stream", lambda: list(agent().stream()), InputError, ["`question` is missing"]),
    ("wrong input of acall", lambda: asyncio.run(agent().acall()), InputError, ["`question` is missing"]),
    ("acall without await", unawaited, AttributeError, ["answer"]),
    # Declarations and settings
    ("no model", lambda: Silent()(), DeclarationError, [r"`Silent\.model`|`Silent`", "model"]),
    ("unknown provider", lambda: Silent(model="nope/model")(), Exception, ["nope"]),
    ("model without a provider", lambda: Silent(model="gpt-99-unknown")(), Exception, ["gpt-99-unknown"]),
    (
        "class as a model",
        lambda: Silent(model=ScriptedModel),
        DeclarationError,
        ["`Silent.model`", "the class `ScriptedModel`", "instance"],
    ),
    ("input passed to the class", lambda: Agent(question="x"), TypeError, ["`question`", r"Agent\(\)\(question="]),
    ("unknown setting", lambda: Agent(colour="red"), TypeError, ["`Agent` has no setting `colour`"]),
    ("unknown option of using", lambda: agent().using(colour="red"), TypeError, ["`colour`"]),
    ("positional option of using", lambda: agent().using({"temperature": 0}), TypeError, ["using"]),
    (
        "wrong option of using",
        lambda: agent().using(temperature=5),
        DeclarationError,
        [r"`Agent\.temperature`", "0 to 2", "5"],
    ),
    ("wrong history", lambda: agent().using(history="hi"), InputError, ["`history`", "`Agent`", "'hi'"]),
    ("history of strings", lambda: agent().using(history=["hi"]), InputError, [r"`history\[0\]`", "role", "'hi'"]),
    ("unknown run id", lambda: agent(store="memory").resume("nope"), StoreError, ["nope"]),
    ("resume without a store", lambda: agent().resume("nope"), Exception, ["store", "`Agent`"]),
    ("submit without a store", lambda: agent().submit(question="x"), Exception, ["store", "`Agent`"]),
    ("run id without a store", lambda: agent().using(run_id="a")(question="x"), Exception, ["store", "`Agent`"]),
    # Results
    ("unused model reply", lambda: ScriptedModel([finish(answer="x")]).done(), AssertionError, ["scripted|repl"]),
    (
        "attribute of an unfinished output",
        lambda: agent(call("look", place="x"))(question="?").answer,
        AttributeError,
        ["`answer`", "`look`", "`max_steps`"],
    ),
    ("unknown attribute of the agent", lambda: agent().answer, AttributeError, ["answer"]),
    ("current_run outside of a run", lambda: acorn.current_run(), Exception, ["current_run|run"]),
    ("branch outside of a run", lambda: agent().branch(Silent), Exception, ["branch", "run"]),
    ("ask_human called by code", lambda: acorn.ask_human("?"), Exception, ["`ask_human`", "`tools`"]),
    (
        "result without bool check",
        lambda: silent("text", parse_retries=0)().answer,
        ParseError,
        ["`Silent`", "`parse_retries`"],
    ),
    # The model's answers
    (
        "wrong field",
        lambda: silent(finish(anser="x"), parse_retries=0)(),
        ParseError,
        ["`Silent`", "`answer` is missing", "scripted"],
    ),
    (
        "wrong type of field",
        lambda: silent(finish(answer=5), parse_retries=0)(),
        ParseError,
        ["`answer`", "string", "5"],
    ),
    ("failed provider", lambda: silent(Failure(401, "wrong key"))(), ModelError, ["wrong key"]),
    ("script too short", lambda: silent(call("look", place="x"), max_steps=3)(), Exception, ["repl|script"]),
    # Tools and branches
    (
        "approval without a store",
        lambda: type("A", (module,), {"final_output": str, "tools": [tool(approval=True)(lambda: 1)]}),
        DeclarationError,
        ["name|store|on_human"],
    ),
    (
        "ask_human without a store",
        lambda: Plain(model=ScriptedModel([]), tools=[acorn.ask_human])(),
        DeclarationError,
        ["`Plain`", "`store`", "`on_human`"],
    ),
    ("tool decorator with a positional text", lambda: make_tool("name"), Exception, ["tool"]),
    ("tool decorator with an unknown option", lambda: make_tool(nme="x"), TypeError, ["nme"]),
    ("tool decorator with a wrong timeout", lambda: tool(timeout=-1)(lambda: 1), DeclarationError, ["timeout", "-1"]),
    ("map without rows", lambda: list(agent().map(5)), Exception, ["map|rows|5"]),
    ("resume with a wrong type", lambda: agent(store="memory").resume(5), Exception, ["5|run"]),
]


def test_mistake_raises_error_that_names_the_place_and_the_fix() -> None:
    for name, program, kind, words in MISTAKES:
        with case(name):
            with pytest.raises(kind) as caught:
                program()
            for pattern in words:
                caught.match(pattern)
