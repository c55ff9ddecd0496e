"""Tests of mistakes that new users make: each message says what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from tests.behaviour.small_programs import Plain
from tests.cases import each_case

import acorn
from acorn import Step, module, tool
from acorn.testing import ScriptedModel, call, finish


class Reply(BaseModel):
    answer: str


@tool
def search(query: str) -> str:
    """Search."""
    return query


@tool(approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return "refunded"


class Desk(module[str, Reply]):
    """Answer."""

    tools = [search]
    max_steps = 3


def refusal(use: Callable[[], object]) -> str:
    """Return the type and the message of the exception that a mistake raises."""
    with pytest.raises(Exception) as caught:
        use()
    return f"{type(caught.value).__name__}: {caught.value}"


def in_hook(mistake: Callable[[Any], object]) -> str:
    """Return the type and the message of the exception that a mistake in `on_step` raises."""
    agent = type("Desk", (Desk,), {"on_step": lambda self, step: mistake(step) and None, "__module__": __name__})
    return refusal(lambda: agent(model=ScriptedModel([call("search", query="a"), finish(answer="b")]))("q"))


@each_case(
    ("arguments", "message"),
    [
        (
            {"api_key": "a"},
            "`Desk` has no setting `api_key`. Put it into the model dict: `model={'model': ..., 'api_key': ...}`.",
        ),
        ({"on_step": print}, "`Desk` has no setting `on_step`. It is a hook: define it as a method of a subclass."),
    ],
)
def test_unknown_setting_raises_error_with_the_right_place(arguments: dict[str, Any], message: str) -> None:
    assert refusal(lambda: Desk(**arguments)) == f"TypeError: {message}"
    assert refusal(lambda: Desk().using(**arguments)) == f"TypeError: {message}"


def test_unknown_setting_without_similar_name_lists_all_settings() -> None:
    assert "Its settings are: `model`, `temperature`" in refusal(lambda: Desk(speed=1))


def test_decorated_function_as_tools_raises_error_about_list() -> None:
    message = refusal(lambda: type("Desk", (module,), {"tools": search, "__module__": __name__}))
    assert message.startswith("DeclarationError: `Desk.tools` must be a list of functions such as [search], got ")


def test_method_with_only_variable_arguments_as_tool_raises_declaration_error() -> None:
    def square(*numbers: int) -> int:
        return 0

    message = refusal(lambda: type("Desk", (module,), {"square": tool(square), "__module__": __name__}))
    assert "The tool `" in message
    assert "takes `*numbers`, which a model cannot pass by name." in message


@each_case(
    ("mistake", "message"),
    [
        (lambda step: step.history, "AttributeError: A step has no `history`. The conversation is `self.history`."),
        (
            lambda step: step.tool_result,
            "AttributeError: A step has no `tool_result`. Did you mean `step.tool_results`?",
        ),
        (lambda step: step.zzz, "AttributeError: A step has no `zzz`. Its attributes are described in `acorn.Step`."),
        (
            lambda step: step.remove_tool(search),
            "InputError: `step.remove_tool` needs the name of a tool, got <function search at ",
        ),
        (
            lambda step: step.add_to_context(object()),
            "InputError: `step.add_to_context` got an instance of `object`, of which a model could read only ",
        ),
        (
            lambda step: step.finish({"answer": "a"}),
            "ParseError: `step.finish` of `Desk` got an output that does not fit: `output` must be an instance of "
            "`Reply` (or pass its fields by name), got ",
        ),
    ],
)
def test_mistake_in_hook_raises_error_with_advice(mistake: Callable[[Step], object], message: str) -> None:
    assert in_hook(mistake).startswith(message)


def test_positional_input_of_branch_raises_type_error_with_example() -> None:
    class Check(module[str, str]):
        """Check."""

    class Outer(module[None, str]):
        max_steps = 3
        tools = [search]

        def on_step(self, step: Step) -> None:
            branch: Any = self.branch
            branch(Check, "text")

    message = refusal(lambda: Outer(model=ScriptedModel([call("search", query="a")]))())
    assert message.startswith("TypeError: A branch takes its inputs as keyword arguments, as in `self.branch(")


def test_setting_set_during_run_warns_with_the_time_to_set_it() -> None:
    class Agent(Plain):
        def on_start(self, step: Step) -> None:
            self.max_steps = 9

    with pytest.warns(UserWarning, match=r"not this one\. Set it before the run\."):
        Agent(model=ScriptedModel([finish("done")]))()


@each_case(("name", "hook"), [("on_end", "on_finish"), ("on_token", "on_stream"), ("on_approval", "on_human")])
def test_hook_name_of_other_framework_warns_with_hook_of_acorn(name: str, hook: str) -> None:
    with pytest.warns(UserWarning, match=f"`Desk.{name}` is not a hook. Did you mean `{hook}`?"):
        type("Desk", (module,), {name: lambda self, value: None, "__module__": __name__})


@each_case(
    ("name", "fix"),
    [
        ("answer", "Use `run.output.answer`."),
        ("messages", "Did you mean `run.history`?"),
        ("ouput", "Did you mean `run.output`?"),
        ("zzz", "The output of the run is `run.output`."),
    ],
)
def test_missing_attribute_of_run_raises_error_with_similar_name(name: str, fix: str) -> None:
    run = Desk(model=ScriptedModel([finish(answer="a")])).run("q")
    assert refusal(lambda: getattr(run, name)) == f"AttributeError: A run has no attribute `{name}`. {fix}"


def test_missing_attribute_of_chunk_raises_error_with_its_place() -> None:
    *_, last = Desk(model=ScriptedModel([finish(answer="a")])).stream("q")
    assert refusal(lambda: getattr(last, "text")) == (  # noqa: B009
        "AttributeError: A chunk has no `text`. The text is `chunk.content`."
    )
    assert "the answer of the last chunk is `chunk.result`" in refusal(lambda: getattr(last, "answer"))  # noqa: B009


def test_call_on_class_raises_type_error_about_instance() -> None:
    stream: Any = Desk.stream
    assert refusal(lambda: stream("q")) == (
        "TypeError: An agent is called on an instance, as in `Desk().run(...)`, but got 'q'."
    )


def test_listener_without_parameter_raises_error() -> None:
    listener: Any = lambda: None  # noqa: E731
    with pytest.raises(acorn.AcornError, match="needs a sync function with one parameter"), acorn.listen(listener):
        pass


@each_case("listener", [print, [].append, lambda *entries: None, lambda entry, other=1: None])
def test_listener_with_one_parameter_is_accepted(listener: Any) -> None:
    with acorn.listen(listener):
        pass


class Teller(module[str, str]):
    """Pay."""

    tools = [refund]
    max_steps = 3


@each_case(
    ("resume", "message"),
    [
        (
            lambda agent, paused: agent.resume(paused, answer=True),
            "InputError: `Teller.resume` needs the id of a run, such as `paused.run_id`, got Paused(",
        ),
        (
            lambda agent, paused: agent.resume(paused.run_id, answers=[True]),
            "InputError: `answers` of `Teller.resume` must be a dict that maps request ids to answers, got [True]. "
            "For the only open request of a run, use `answer=...`.",
        ),
        (
            lambda agent, paused: agent.resume(paused.run_id, answer=acorn.approve(arguments={"ordr": 1})),
            "InputError: The approved arguments for `refund` are invalid: argument `order` is missing (expected an "
            "integer); argument `ordr` does not exist (the arguments are: `order`).",
        ),
    ],
)
def test_wrong_arguments_of_resume_raise_error_with_advice(resume: Any, message: str, tmp_path: Path) -> None:
    model = ScriptedModel([call("refund", order=1), finish("done")], by_turn=True)
    agent = Teller(model=model, store=str(tmp_path / "runs.db"))
    paused = agent("q")
    assert refusal(lambda: resume(agent, paused)).startswith(message)


def test_wrong_arguments_of_runs_raise_error_that_names_them(tmp_path: Path) -> None:
    runs: Any = acorn.runs
    assert refusal(lambda: runs(5)).startswith("DeclarationError: `store` of `acorn.runs` must be a file path")
    with pytest.raises(acorn.StoreError, match="`limit` must be a whole number of runs, or None for all runs, got "):
        runs(tmp_path / "runs.db").list(limit="many")


def test_answer_to_unknown_request_names_the_command_that_lists_requests(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    message = refusal(lambda: acorn.runs(store).answer("zz", True))
    assert message.endswith(f"`acorn runs --store {store}` lists the open requests.")


def test_stored_input_that_no_longer_fits_raises_error_with_field(tmp_path: Path) -> None:
    class First(module[str, str]):
        """Answer."""

    settings: dict[str, Any] = {"store": str(tmp_path / "runs.db")}
    run = First(model=ScriptedModel([finish("a")]), **settings).run("q")
    text = run.to_json()

    class Other(module[int, str]):
        """Answer."""

    message = refusal(lambda: acorn.Run.from_json(text.replace("First", "Other"), Other))
    assert "no longer fits its class: `input`: Input should be a valid integer" in message
    assert "errors.pydantic.dev" not in message


@each_case("declared", [[("count", int, "How many")], {"count": (int, "How many")}])
def test_text_as_default_of_number_raises_error_about_description(declared: object) -> None:
    message = refusal(lambda: type("Desk", (module,), {"final_output": declared, "__module__": __name__}))
    assert "has the default 'How many', which does not fit its type. For a description, write `Field(" in message


@each_case("field", [("n", int, "5"), ("n", int, None), ("n", date, "2026-01-31"), ("n", Literal["a", "b"], "a")])
def test_text_that_fits_the_type_is_accepted_as_default(field: Any) -> None:
    type("Desk", (module,), {"final_output": [field], "__module__": __name__})


class Callable5:
    def __call__(self) -> int:
        return 5


def test_object_as_output_type_raises_error_without_advice_of_pydantic() -> None:
    message = refusal(lambda: type("Desk", (module,), {"final_output": Callable5(), "__module__": __name__}))
    assert message.startswith("DeclarationError: `Desk.final_output` has a type that Pydantic cannot use: ")
    assert "arbitrary_types_allowed" not in message
