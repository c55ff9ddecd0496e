"""Tests of approval requests: they show every argument of the call with its default, on every surface."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field
from tests.cases import case
from tests.web.serve.server import app as service_of
from tests.web.serve.server import post

import acorn
from acorn import Request, Run, ask_human, module, tool
from acorn.journal import InputReceived, InputRequested
from acorn.testing import ScriptedModel, call, finish

PAID: list[tuple[str, float]] = []


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    PAID.clear()


@tool(approval=True)
def refund(order: str, amount: float = 500.0) -> str:
    """Pay money back."""
    PAID.append((order, amount))
    return f"paid {amount} for {order}"


class Desk(module[Any, str]):
    """Help."""

    initial_input: Any = []
    final_output = str
    tools = [refund, ask_human]
    max_steps = 5


def desk(store: Any, *script: Any) -> Desk:
    replies = script or (call("refund", order="17"), finish("done"))
    return Desk(model=ScriptedModel(list(replies), by_turn=True), store=store)


class Answering(Desk):
    """Help."""

    def __init__(self, answer: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.answer = answer
        self.asked: list[Request] = []

    def on_human(self, request: Request) -> Any:
        self.asked.append(request)
        return self.answer


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    from acorn.cli import main

    monkeypatch.setenv("ACORN_STORE", str(tmp_path / "runs.db"))

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


class Speed(Enum):
    FAST = "fast"


class Note(BaseModel):
    text: str = "thanks"
    tags: list[str] = Field(default_factory=lambda: ["a"])


async def _pay_async(order: str, amount: int = 500) -> str:
    """Pay."""
    return f"paid {amount}"


def pay(order: str, amount: int = 500) -> str:
    """Pay."""
    return f"paid {amount}"


def pay_many(order: str, *, amount: Annotated[int, Field(ge=1)] = 500, how: Literal["card", "cash"] = "card") -> str:
    """Pay."""
    return "paid"


def pay_typed(order: str, speed: Speed = Speed.FAST, note: Note = Note()) -> str:  # noqa: B008
    """Pay."""
    return "paid"


def pay_with_field(order: str, amount: int = Field(500, description="How much")) -> str:
    """Pay."""
    return f"paid {amount}"


def pay_none(order: str, note: str | None = None) -> str:
    """Pay."""
    return "paid"


def pay_note(note: Note) -> str:
    """Pay."""
    return "paid"


def pay_with_run(order: str, run: Run, amount: int = 500) -> str:
    """Pay."""
    return "paid"


def pay_rest(order: str, **more: int) -> str:
    """Pay."""
    return "paid"


class Cashier:
    def pay(self, order: str, amount: int = 500) -> str:
        """Pay."""
        return "paid"

    def __call__(self, order: str, amount: int = 500) -> str:
        """Pay."""
        return "paid"


SHOWN: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "plain": (pay, {"order": "17"}, {"order": "17", "amount": 500}),
    "all arguments given": (pay, {"order": "17", "amount": 3}, {"order": "17", "amount": 3}),
    "a text that becomes a number": (pay, {"order": "17", "amount": "3"}, {"order": "17", "amount": 3}),
    "async": (_pay_async, {"order": "17"}, {"order": "17", "amount": 500}),
    "keyword only": (pay_many, {"order": "17"}, {"order": "17", "amount": 500, "how": "card"}),
    "enum and schema": (
        pay_typed,
        {"order": "17"},
        {"order": "17", "speed": "fast", "note": {"text": "thanks", "tags": ["a"]}},
    ),
    "Field as default": (pay_with_field, {"order": "17"}, {"order": "17", "amount": 500}),
    "None as default": (pay_none, {"order": "17"}, {"order": "17", "note": None}),
    "defaults in a schema": (pay_note, {"note": {"text": "x"}}, {"note": {"text": "x", "tags": ["a"]}}),
    "run parameter": (pay_with_run, {"order": "17"}, {"order": "17", "amount": 500}),
    "other keywords": (pay_rest, {"order": "17", "tip": 1}, {"order": "17", "tip": 1}),
    "bound method": (Cashier().pay, {"order": "17"}, {"order": "17", "amount": 500}),
}


def test_request_shows_every_argument_with_its_default(tmp_path: Path) -> None:
    for name, (function, arguments, expected) in SHOWN.items():
        with case(name):
            made = tool(approval=True, name="pay")(function)
            agent = Desk(
                model=ScriptedModel([call("pay", **arguments)], by_turn=True),
                store=tmp_path / f"{name}.db",
                tools=[made],
            )
            paused: Any = agent()
            assert paused.request.arguments == expected
            for value in expected.values():
                assert json.dumps(value, separators=(",", ":")) in paused.request.question
            (stored,) = acorn.runs(tmp_path / f"{name}.db").requests()
            assert (stored.arguments, stored.question) == (expected, paused.request.question)


def test_on_human_receives_every_argument_with_its_default() -> None:
    for name, (function, arguments, expected) in SHOWN.items():
        with case(name):
            made = tool(approval=True, name="pay")(function)
            agent = Answering(False, model=ScriptedModel([call("pay", **arguments), finish("done")]), tools=[made])
            assert agent() == "done"
            assert [request.arguments for request in agent.asked] == [expected]


def test_shown_arguments_do_not_contain_filled_arguments_of_partial() -> None:
    import functools

    def charge(token: str, order: str, amount: int = 500) -> str:
        """Pay."""
        return f"paid {amount}"

    partial = functools.partial(charge, "sk-secret")
    named = functools.partial(charge, token="sk-secret")
    for name, made in {"positional": partial, "named": named}.items():
        with case(name):
            agent = Answering(
                False,
                model=ScriptedModel([call("pay", order="17"), finish("done")]),
                tools=[tool(approval=True, name="pay")(made)],
            )
            assert agent() == "done"
            assert agent.asked[0].arguments == {"order": "17", "amount": 500}


def test_approval_of_shown_arguments_calls_tool_with_them(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    paused: Any = desk(store)()
    assert paused.request.arguments == {"order": "17", "amount": 500.0}
    changed = {**paused.request.arguments, "amount": 20.0}
    assert desk(store).resume(paused.run_id, answer=acorn.approve(arguments=changed)) == "done"
    assert PAID == [("17", 20.0)]


def test_default_that_changed_before_resume_is_not_paid(tmp_path: Path) -> None:
    """An approval holds for exactly the arguments that were shown."""
    store = tmp_path / "runs.db"
    paused: Any = desk(store)()

    @tool(approval=True, name="refund")
    def dearer(order: str, amount: float = 900.0) -> str:
        """Pay money back."""
        PAID.append((order, amount))
        return "paid"

    class Later(Desk):
        """Help."""

        tools = [dearer, ask_human]

    Later.__name__ = Later.__qualname__ = "Desk"
    later = Later(model=ScriptedModel([call("refund", order="17"), finish("done")], by_turn=True), store=store)
    later.resume(paused.run_id, answer=True)
    assert PAID == [("17", 500.0)]


def test_service_and_command_show_defaults(command: Any, tmp_path: Path) -> None:
    paused = post(service_of(desk(tmp_path / "service.db")), "/run", {}).json()
    assert paused["requests"][0]["arguments"] == {"order": "17", "amount": 500.0}
    (tmp_path / "shop.py").write_text(
        "from acorn import module, tool\n"
        "from acorn.testing import ScriptedModel, call, finish\n"
        "class Shop(module[str, str]):\n"
        "    '''Help.'''\n"
        "    max_steps = 3\n"
        "    model = ScriptedModel([call('refund', order='17'), finish('done')], by_turn=True)\n"
        "    @tool(approval=True)\n"
        "    def refund(self, order: str, amount: float = 500.0) -> str:\n"
        "        '''Pay.'''\n"
        "        return 'paid'\n"
    )
    code, _, error = command("run", f"{tmp_path / 'shop.py'}:Shop", "x")
    assert code == 3
    assert "500" in error
    code, out, _ = command("run", f"{tmp_path / 'shop.py'}:Shop", "x", "--json")
    assert json.loads(out)["requests"][0]["arguments"] == {"order": "17", "amount": 500.0}


def test_approval_function_receives_defaults_and_request_shows_them() -> None:
    seen: list[Any] = []

    def is_large(arguments: Any) -> bool:
        seen.append(arguments)
        return bool(arguments["amount"] > 100)

    agent = Answering(
        False,
        model=ScriptedModel([call("pay", order="17"), finish("done")]),
        tools=[tool(approval=is_large, name="pay")(pay)],
    )
    assert agent() == "done"
    assert seen == [{"order": "17", "amount": 500}]
    assert agent.asked[0].arguments == {"order": "17", "amount": 500}


def test_request_of_tool_with_schema_shows_valid_defaults_and_tool_receives_them() -> None:
    schema = {
        "type": "object",
        "properties": {
            "order": {"type": "string"},
            "amount": {"type": "number", "default": 500},
            "note": {"type": "string", "default": None},
            "speed": {"type": "string"},
        },
        "required": ["order"],
    }
    received: list[Any] = []

    def open_ended(**arguments: Any) -> str:
        """Pay."""
        received.append(arguments)
        return "paid"

    def named(order: str, amount: float = 700, note: str = "", speed: str = "fast") -> str:
        """Pay."""
        received.append({"order": order, "amount": amount, "note": note, "speed": speed})
        return "paid"

    for function, expected in (
        (open_ended, {"order": "17", "amount": 500}),
        (named, {"order": "17", "amount": 700, "note": "", "speed": "fast"}),
    ):
        with case(function.__name__):
            received.clear()
            made = tool(approval=True, name="pay", schema=schema)(function)
            agent = Answering(True, model=ScriptedModel([call("pay", order="17"), finish("done")]), tools=[made])
            assert agent() == "done"
            assert [request.arguments for request in agent.asked] == [expected]
            assert received == [expected]


def test_journal_shows_arguments_of_request_and_decision() -> None:
    agent = Answering("yes", model=ScriptedModel([call("refund", order="17"), finish("done")]))
    entries = agent.run().journal.entries
    (asked,) = [entry for entry in entries if isinstance(entry, InputRequested)]
    (answered,) = [entry for entry in entries if isinstance(entry, InputReceived)]
    assert json.loads(asked.arguments) == {"order": "17", "amount": 500.0}
    assert json.loads(answered.answer) == {"approved": True}


def test_parameter_that_was_added_before_resume_is_not_filled_unseen(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    paused: Any = desk(store)()

    @tool(approval=True, name="refund")
    def more(order: str, amount: float = 500.0, fee: float = 99.0) -> str:
        """Pay money back."""
        PAID.append((order, amount + fee))
        return "paid"

    class Later(Desk):
        """Help."""

        tools = [more, ask_human]

    Later.__name__ = Later.__qualname__ = "Desk"
    later = Later(model=ScriptedModel([call("refund", order="17"), finish("done")], by_turn=True), store=store)
    assert later.resume(paused.run_id, answer=True) == "done"
    assert PAID == []
    assert later.last is not None
    assert "argument `fee` is missing" in str(later.last.history)


def test_defaults_that_json_cannot_represent_are_kept_on_resume(tmp_path: Path) -> None:
    received: list[Any] = []

    @tool(approval=True)
    def pay(order: str, limit: float = float("inf"), tags: frozenset[str] = frozenset("abcdef")) -> str:
        """Pay."""
        received.append((order, limit, tags))
        return "paid"

    def make() -> Desk:
        model = ScriptedModel([call("pay", order="17"), finish("done")], by_turn=True)
        return Desk(model=model, store=tmp_path / "runs.db", tools=[pay])

    paused: Any = make()()
    assert make().resume(paused.run_id, answer=True) == "done"
    assert received == [("17", float("inf"), frozenset("abcdef"))]


def _double(amount: int) -> int:
    return amount * 2


def test_shown_arguments_in_the_answer_are_used_without_second_validation(tmp_path: Path) -> None:
    received: list[Any] = []

    @tool(approval=True)
    def pay(amount: Annotated[int, AfterValidator(_double)], key: Any = _double) -> str:
        """Pay."""
        received.append((amount, key))
        return "paid"

    model = ScriptedModel([call("pay", amount=5), finish("done")], by_turn=True)
    agent = Desk(model=model, store=tmp_path / "runs.db", tools=[pay])
    paused: Any = agent()
    assert paused.request.arguments["amount"] == 10
    assert agent.resume(paused.run_id, answer=acorn.approve(arguments=paused.request.arguments)) == "done"
    assert received == [(10, _double)]


def test_default_without_equality_is_kept_on_resume(tmp_path: Path) -> None:
    for default in (float("nan"), object()):
        with case(default):
            received: list[Any] = []

            def make(default: Any, received: list[Any]) -> Desk:
                @tool(approval=True)
                def pay(order: str, limit: Any = default) -> str:
                    """Pay."""
                    received.append(limit)
                    return "paid"

                model = ScriptedModel([call("pay", order="17"), finish("done")], by_turn=True)
                return Desk(model=model, store=tmp_path / "runs.db", tools=[pay])

            paused: Any = make(default, received)()
            later = object() if type(default) is object else default  # Another process has another object.
            assert make(later, received).resume(paused.run_id, answer=True) == "done"
            assert received == [later]
