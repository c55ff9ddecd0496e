"""Tests of the answers to approval requests, which are the same for every surface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.behaviour.small_programs import tool_results
from tests.cases import case
from tests.cli.conftest import AGENTS
from tests.web.serve.server import BY_APPROVER, post
from tests.web.serve.server import app as service_of

import acorn
from acorn import InputError, Paused, Request, ask_human, module, tool
from acorn.mcp.elicitation import answer_url
from acorn.testing import ScriptedModel, call, finish

PAID: list[tuple[str, float]] = []

DESK = f"{AGENTS / 'desk.py'}:Desk"


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


APPROVED: dict[str, Callable[[], Any]] = {
    "approve": lambda: acorn.approve(),
    "approve with None": lambda: acorn.approve(arguments=None),
    "True": lambda: True,
    "yes": lambda: "yes",
    "Yes": lambda: "Yes",
    "YES with spaces": lambda: " YES ",
}
DENIED: dict[str, Callable[[], Any]] = {
    "deny": lambda: acorn.deny(),
    "False": lambda: False,
    "no": lambda: "no",
    "No": lambda: "No",
    "NO with spaces": lambda: " NO\n",
}
REASONS: dict[str, Callable[[], Any]] = {
    "deny with a reason": lambda: acorn.deny("too much"),
    "deny with a named reason": lambda: acorn.deny(reason="too much"),
}
CHANGED: dict[str, Callable[[], Any]] = {
    "approve with arguments": lambda: acorn.approve(arguments={"order": "17", "amount": 5.0}),
    "approve with a text that becomes a number": lambda: acorn.approve(arguments={"order": "17", "amount": "5"}),
}
WRONG: list[Any] = ["too much", "yes please", "nope", "maybe", "", "  ", "0", "ok?", 1, 0, 3.5, [], ["yes"], {"a": 1}]


def resumed_single(store: Any, paused: Paused, answer: Any) -> Any:
    return desk(store).resume(paused.run_id, answer=answer)


def resumed_several(store: Any, paused: Paused, answer: Any) -> Any:
    return desk(store).resume(paused.run_id, answers={paused.request.id: answer})


def resumed_async(store: Any, paused: Paused, answer: Any) -> Any:
    return asyncio.run(desk(store).aresume(paused.run_id, answer=answer))


def resumed_async_several(store: Any, paused: Paused, answer: Any) -> Any:
    return asyncio.run(desk(store).aresume(paused.run_id, answers={paused.request.id: answer}))


def answered_before(store: Any, paused: Paused, answer: Any) -> Any:
    acorn.runs(store).answer(paused.request.id, answer)
    return desk(store).resume(paused.run_id)


SURFACES = [resumed_single, resumed_several, resumed_async, resumed_async_several, answered_before]


def read(store: Any, run_id: str) -> str:
    """Return the result of the refund, as the model read it."""
    return tool_results(acorn.runs(store).get(run_id))[0]


def test_approval_is_given_on_every_surface(tmp_path: Path) -> None:
    for at, surface in enumerate(SURFACES):
        for name, answer in APPROVED.items():
            with case(surface.__name__, name):
                PAID.clear()
                store = tmp_path / f"{at}-{name}.db"
                paused: Any = desk(store)()
                assert surface(store, paused, answer()) == "done"
                assert PAID == [("17", 500.0)]
                assert read(store, paused.run_id) == "paid 500.0 for 17"


def test_rejection_is_given_on_every_surface(tmp_path: Path) -> None:
    for at, surface in enumerate(SURFACES):
        for name, answer in {**DENIED, **REASONS}.items():
            with case(surface.__name__, name):
                store = tmp_path / f"{at}-{name}.db"
                paused: Any = desk(store)()
                assert surface(store, paused, answer()) == "done"
                assert PAID == []
                told = read(store, paused.run_id)
                assert told.startswith("Tool error: ")
                assert ("too much" in told) == (name in REASONS)


def test_rejection_without_reason_does_not_give_the_answer_as_reason(tmp_path: Path) -> None:
    for name, answer in DENIED.items():
        with case(name):
            store = tmp_path / f"{name.strip()}.db"
            paused: Any = desk(store)()
            desk(store).resume(paused.run_id, answer=answer())
            told = read(store, paused.run_id)
            assert "reason" not in told.lower()


def test_approval_changes_arguments_on_every_surface(tmp_path: Path) -> None:
    for at, surface in enumerate(SURFACES):
        for name, answer in CHANGED.items():
            with case(surface.__name__, name):
                PAID.clear()
                store = tmp_path / f"{at}-{name}.db"
                paused: Any = desk(store)()
                assert surface(store, paused, answer()) == "done"
                assert PAID == [("17", 5.0)]


def test_other_answer_to_approval_is_error_on_every_surface_and_request_stays_open(tmp_path: Path) -> None:
    for at, surface in enumerate(SURFACES):
        for number, answer in enumerate(WRONG):
            with case(surface.__name__, answer):
                store = tmp_path / f"{at}-{number}.db"
                paused: Any = desk(store)()
                with pytest.raises(InputError, match="deny") as caught:
                    surface(store, paused, answer)
                assert "approve" in str(caught.value)
                assert PAID == []
                (request,) = acorn.runs(store).requests()
                assert request.id == paused.request.id
                assert desk(store).resume(paused.run_id, answer=True) == "done"
                PAID.clear()


def test_approved_arguments_that_do_not_validate_are_error(tmp_path: Path) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "wrong type": {"order": "17", "amount": "much"},
        "missing": {"amount": 5.0},
        "default missing": {"order": "17"},
        "NaN": {"order": "17", "amount": float("nan")},
    }
    for name, arguments in wrong.items():
        with case(name):
            store = tmp_path / f"{name}.db"
            paused: Any = desk(store)()
            with pytest.raises(InputError, match="refund"):
                desk(store).resume(paused.run_id, answer=acorn.approve(arguments=arguments))
            assert PAID == []


def test_answer_to_question_is_any_value(tmp_path: Path) -> None:
    for number, answer in enumerate(["yes", "no", "too much", True, False, 0, {"a": 1}, ["x"], ""]):
        with case(answer):
            store, script = tmp_path / f"{number}.db", (call("ask_human", question="Which?"), finish("done"))
            paused: Any = desk(store, *script)()
            assert desk(store, *script).resume(paused.run_id, answer=answer) == "done"
            result = read(store, paused.run_id)
            assert result == (answer if isinstance(answer, str) else json.dumps(answer, separators=(",", ":")))


def test_on_human_gives_the_same_answers() -> None:
    for answers, paid, told in (
        (APPROVED, [("17", 500.0)], "paid 500.0"),
        (DENIED, [], "Tool error: "),
        (REASONS, [], "too much"),
        (CHANGED, [("17", 5.0)], "paid 5.0"),
    ):
        for name, answer in answers.items():
            with case(name):
                PAID.clear()
                agent = Answering(answer(), model=ScriptedModel([call("refund", order="17"), finish("done")]))
                run = agent.run()
                assert run.output == "done"
                assert paid == PAID
                assert told in tool_results(run)[0]


def test_other_answer_of_on_human_is_error_that_names_deny() -> None:
    for answer in WRONG:
        with case(answer):
            agent = Answering(answer, model=ScriptedModel([call("refund", order="17"), finish("done")]))
            with pytest.raises(InputError, match=r"acorn\.deny"):
                agent()
            assert PAID == []


def test_answers_work_for_approval_in_branch(tmp_path: Path) -> None:
    class Inner(module[Any, str]):
        """Pay."""

        initial_input: Any = []
        final_output = str
        tools = [refund]
        max_steps = 4

    class Outer(module[Any, str]):
        """Help."""

        initial_input: Any = []
        final_output = str
        branches = {"inner": Inner}
        max_steps = 4

    def make(store: Path) -> Outer:
        def answer(request: Any) -> Any:
            inside = any(
                "Pay." in str(message["content"]) for message in request.messages if message["role"] == "system"
            )
            said = sum(message["role"] == "assistant" for message in request.messages)
            script = {0: call("inner"), 1: finish("done")}
            inner = {1: call("refund", order="17"), 2: finish("inside")}
            return (inner if inside else script)[said]

        return Outer(model=ScriptedModel(answer), store=store)

    for number, (answer, paid) in enumerate(
        [("yes", 1), ("no", 0), (True, 1), (acorn.approve, 1), (acorn.deny, 0)] if hasattr(acorn, "deny") else []
    ):
        with case(answer):
            PAID.clear()
            store = tmp_path / f"{number}.db"
            paused: Any = make(store)()
            given = answer() if callable(answer) else answer
            assert make(store).resume(paused.run_id, answer=given) == "done"
            assert len(PAID) == paid
    assert hasattr(acorn, "deny")


def test_service_takes_words_and_json_forms_as_answers(tmp_path: Path) -> None:
    forms: list[tuple[Any, list[float]]] = [
        (True, [500.0]),
        ("yes", [500.0]),
        ("Yes", [500.0]),
        (False, []),
        ("no", []),
        ({"approved": True}, [500.0]),
        ({"approved": True, "arguments": None}, [500.0]),
        ({"approved": True, "arguments": {"order": "17", "amount": 5}}, [5.0]),
        ({"approved": False, "reason": "too much"}, []),
    ]
    for number, (answer, amounts) in enumerate(forms):
        for is_single in (True, False):
            with case(answer, is_single):
                PAID.clear()
                service = service_of(desk(tmp_path / f"{number}-{is_single}.db"))
                paused = post(service, "/run", {}).json()
                body: Any = {"answer": answer} if is_single else {"answers": {_request_id(paused): answer}}
                ended = post(service, f"/runs/{paused['run_id']}/answer", body, headers=BY_APPROVER)
                assert (ended.status_code, ended.json()) == (200, "done")
                assert [amount for _, amount in PAID] == amounts


def _request_id(paused: Any) -> str:
    (request,) = paused["requests"]
    return str(request["id"])


def test_service_refuses_other_text_for_approval_and_request_stays_open(tmp_path: Path) -> None:
    for number, answer in enumerate(["too much", "maybe", "", 1, {"approved": "yes"}, []]):
        with case(answer):
            service = service_of(desk(tmp_path / f"{number}.db"))
            paused = post(service, "/run", {}).json()
            refused = post(service, f"/runs/{paused['run_id']}/answer", {"answer": answer}, headers=BY_APPROVER)
            assert refused.status_code == 422
            assert "deny" in refused.text or "reason" in refused.text
            assert PAID == []
            assert (
                post(service, f"/runs/{paused['run_id']}/answer", {"answer": "no"}, headers=BY_APPROVER).json()
                == "done"
            )


# The command line


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


def test_answer_command_takes_words_for_approval(command: Any, tmp_path: Path) -> None:
    for word, is_paid in {
        "yes": True,
        "Yes": True,
        "true": True,
        "no": False,
        "NO": False,
        "false": False,
        '{"approved": true, "arguments": {"amount": 20.0}}': True,
        '{"approved": false, "reason": "too much"}': False,
    }.items():
        with case(word):
            assert command("run", DESK, "order 17")[0] == 3
            (request,) = acorn.runs(tmp_path / "runs.db").requests()
            assert command("answer", request.id[:8], word)[0] == 0
            assert command("resume", request.run_id[:8], "--agent", DESK)[:2] == (0, '"settled"\n')
            results = tool_results(acorn.runs(tmp_path / "runs.db").get(request.run_id))
            assert ("20.0 paid" in results) == is_paid


def test_answer_command_refuses_other_text_for_approval(command: Any, tmp_path: Path) -> None:
    assert command("run", DESK, "order 17")[0] == 3
    (request,) = acorn.runs(tmp_path / "runs.db").requests()
    for word in ("too much", "maybe", "nope", "1", "[]"):
        with case(word):
            code, _, error = command("answer", request.id[:8], word)
            assert code == 2
            assert "yes" in error
            assert "no" in error
            assert "Traceback" not in error
            assert len(acorn.runs(tmp_path / "runs.db").requests()) == 1


def test_answer_option_of_resume_command_takes_words(command: Any, tmp_path: Path) -> None:
    for word, is_paid in {"yes": True, "no": False}.items():
        with case(word):
            assert command("run", DESK, "order 17")[0] == 3
            (request,) = acorn.runs(tmp_path / "runs.db").requests()
            assert command("resume", request.run_id[:8], "--agent", DESK, "--answer", word)[:2] == (0, '"settled"\n')
            results = tool_results(acorn.runs(tmp_path / "runs.db").get(request.run_id))
            assert ("20.0 paid" in results) == is_paid


def test_mcp_request_to_open_url_takes_the_same_answers() -> None:
    class Caller:
        def __init__(self, answer: Any) -> None:
            self.answer = answer

        async def ask(self, question: str, choices: Any) -> Any:
            return self.answer

    for action, answers in {
        "accept": [*APPROVED.values()],
        "decline": [*DENIED.values(), *REASONS.values(), lambda: "later"],
        "cancel": [lambda: None],
    }.items():
        for answer in answers:
            with case(action, answer()):
                caller: Any = Caller(answer())
                assert asyncio.run(answer_url(caller, "Log in.", "https://example.com")) == action
