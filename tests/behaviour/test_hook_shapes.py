"""A family of small programs: hooks of every shape, what they return, and what the user sees if they are wrong."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Script
from tests.cases import case

from acorn import AcornError, InputError, ParseError, Step, ToolConflictError, module
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling


class Answer(BaseModel):
    answer: str


def noop() -> str:
    """Do nothing."""
    return "nothing"


def more() -> str:
    """Do more."""
    return "more"


seen: list[str] = []


def plain(self: Any, step: Any) -> None:
    seen.append("plain")


async def later(self: Any, step: Any) -> None:
    await asyncio.sleep(0)
    seen.append("later")


def returns_step(self: Any, step: Any) -> Any:
    seen.append("returns")
    return step


def with_default(self: Any, step: Any, extra: int = 1) -> None:
    seen.append(f"default {extra}")


def any_arguments(self: Any, *args: Any, **kwargs: Any) -> None:
    seen.append(f"{len(args)} {len(kwargs)}")


def other_names(me: Any, it: Any, /) -> None:
    seen.append("other")


def decorate(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        seen.append("before")
        return function(*args, **kwargs)

    return wrapper


def pass_extra(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(self: Any, step: Any) -> Any:
        return function(self, step, "passed")

    return wrapper


def with_required(self: Any, step: Any, extra: str) -> None:
    seen.append(f"required {extra}")


class HookObject:
    def __call__(self, step: Any) -> None:
        seen.append("object")


HOOKS: list[tuple[str, Any, list[str]]] = [
    ("method", plain, ["plain"]),
    ("async method", later, ["later"]),
    ("method that returns the step", returns_step, ["returns"]),
    ("extra parameter with a default", with_default, ["default 1"]),
    ("any arguments", any_arguments, ["1 0"]),
    ("positional-only with other names", other_names, ["other"]),
    ("decorated method", decorate(plain), ["before", "plain"]),
    ("decorated async method", decorate(later), ["before", "later"]),
    ("decorator that passes another argument", pass_extra(with_required), ["required passed"]),
    ("single-dispatch method", functools.singledispatchmethod(plain), ["plain"]),
    ("static method", staticmethod(lambda step: seen.append("static")), ["static"]),
    ("class method", classmethod(lambda cls, step: seen.append(cls.__name__)), ["Agent"]),
    ("lambda", lambda self, step: seen.append("lambda"), ["lambda"]),
    ("partial method", functools.partialmethod(with_default, extra=3), ["default 3"]),
    ("callable object", HookObject(), ["object"]),
]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_hook_of_each_shape_runs_once_for_each_step(script: Script, is_async: bool) -> None:
    for name, hook, wanted in HOOKS:
        with case(name):
            seen.clear()
            agent = type(
                "Agent",
                (module,),
                {"__module__": __name__, "final_output": str, "tools": [noop], "max_steps": 3, "on_step": hook},
            )(model=script(calling("noop"), finish("ok")))
            assert (asyncio.run(agent.acall()) if is_async else agent()) == "ok"
            assert seen == wanted


def test_hook_of_mixin_and_super_runs_in_mro_order(script: Script) -> None:
    class Counting:
        def on_step(self, step: Step) -> None:
            seen.append("mixin")
            super().on_step(step)  # type: ignore[misc]

    class Base(module[None, str]):
        tools = [noop]
        max_steps = 2

        def on_step(self, step: Step) -> None:
            seen.append("base")

    class Agent(Counting, Base):
        def on_step(self, step: Step) -> None:
            seen.append("agent")
            super().on_step(step)

    seen.clear()
    Agent(model=script(calling("noop"), finish("ok")))()
    assert seen == ["agent", "mixin", "base"]


def step_hook(action: Any) -> Any:
    def on_step(self: Any, step: Step) -> Any:
        return action(self, step)

    return on_step


def stop(*_: Any) -> None:
    raise ZeroDivisionError("in the hook")


RAISED: list[tuple[str, Any, type[BaseException], list[str]]] = [
    ("own exception", stop, ZeroDivisionError, ["in the hook"]),
    ("wrong temperature", lambda self, step: setattr(step, "temperature", 5), AcornError, ["temperature", "0 to 2"]),
    ("wrong max_tokens", lambda self, step: setattr(step, "max_tokens", 0), AcornError, ["max_tokens", "at least 1"]),
    ("wrong model", lambda self, step: setattr(step, "model", 5), AcornError, ["model", "5"]),
    ("wrong tools", lambda self, step: setattr(step, "tools", "noop"), AcornError, ["tools", "'noop'"]),
    ("wrong entry in tools", lambda self, step: setattr(step, "tools", [5]), AcornError, [r"step\.tools\[0\]", "5"]),
    ("unknown attribute", lambda self, step: setattr(step, "temprature", 1), AttributeError, ["`temperature`"]),
    ("history of the step", lambda self, step: setattr(step, "history", []), AttributeError, [r"`self\.history`"]),
    ("read-only attribute", lambda self, step: setattr(step, "counter", 1), AttributeError, [r"`step\.counter`"]),
    ("existing tool", lambda self, step: step.add_tool(noop), ToolConflictError, ["'noop'", "already exists"]),
    ("tool that is no function", lambda self, step: step.add_tool(5), AcornError, ["add_tool", "5"]),
    ("tool without hints", lambda self, step: step.add_tool(lambda x: x), AcornError, ["lambda"]),
    (
        "finish tool",
        lambda self, step: step.remove_tool("__finish__"),
        AcornError,
        ["`__finish__`", "cannot be removed"],
    ),
    ("finish without fields", lambda self, step: step.finish(), ParseError, [r"`step\.finish`", "`answer` is missing"]),
    (
        "finish with a wrong field",
        lambda self, step: step.finish(anser="x"),
        ParseError,
        [r"`step\.finish`", "`anser`"],
    ),
    ("finish with a wrong type", lambda self, step: step.finish(answer=5), ParseError, ["`answer`", "string", "5"]),
    (
        "number as the result",
        lambda self, step: 5,
        AcornError,
        [r"`Agent\.on_step`", "return the step or nothing", "5"],
    ),
    ("text as the result", lambda self, step: "ok", AcornError, [r"`Agent\.on_step`", "'ok'"]),
    (
        "history that is no list",
        lambda self, step: setattr(self, "history", 5),
        AcornError,
        ["`history`", "list of messages"],
    ),
    ("message that is a string", lambda self, step: self.history.append("hi"), AcornError, [r"history\[", "'hi'"]),
    (
        "message without a role",
        lambda self, step: self.history.append({"content": "x"}),
        AcornError,
        [r"history\[", "role"],
    ),
]


def test_mistake_in_on_step_ends_run_with_error_that_names_it() -> None:
    for name, action, kind, words in RAISED:
        with case(name):
            agent = type(
                "Agent",
                (module,),
                {
                    "__module__": __name__,
                    "final_output": Answer,
                    "tools": [noop],
                    "max_steps": 3,
                    "on_step": step_hook(action),
                },
            )(model=ScriptedModel([calling("noop")]))
            with pytest.raises(kind) as caught:
                agent()
            for pattern in words:
                caught.match(pattern)


HARMLESS: list[tuple[str, Any]] = [
    ("another tool", lambda self, step: step.add_tool(more) if step.counter == 1 else None),
    ("empty tools", lambda self, step: setattr(step, "tools", [])),
    ("empty context", lambda self, step: step.add_to_context("")),
    ("context of None", lambda self, step: step.add_to_context(None)),
    ("context of a model", lambda self, step: step.add_to_context(Answer(answer="x"))),
    ("no results", lambda self, step: step.tool_results.clear()),
    ("no calls", lambda self, step: step.tool_calls.clear()),
    ("empty history", lambda self, step: self.history.clear()),
    ("own attribute", lambda self, step: setattr(self, "notes", [1])),
    ("same settings", lambda self, step: setattr(step, "temperature", step.temperature)),
]


def test_harmless_action_of_on_step_does_not_end_run() -> None:
    for name, action in HARMLESS:
        with case(name):
            agent = type(
                "Agent",
                (module,),
                {
                    "__module__": __name__,
                    "final_output": Answer,
                    "tools": [noop],
                    "max_steps": 3,
                    "on_step": step_hook(action),
                },
            )(model=ScriptedModel([calling("noop"), finish(answer="ok")]))
            assert agent() == Answer(answer="ok")


def test_step_kept_after_the_hook_cannot_change_the_run(script: Script) -> None:
    kept: list[Step] = []

    class Agent(module[None, str]):
        tools = [noop]
        max_steps = 4

        def on_step(self, step: Step) -> None:
            for old in kept:
                old.temperature = 2
            kept.append(step)

    model = script(calling("noop"), calling("noop"), finish("ok"))
    Agent(model=model)()
    assert [request.temperature for request in model.requests] == [0.7, 0.7, 0.7]


def reject(text: str) -> Any:
    def on_finish(self: Any, output: Any) -> Any:
        raise ValueError(text)

    return on_finish


FINISHES: list[tuple[str, Any, Any]] = [
    ("nothing", lambda self, output: None, "ok"),
    ("another value", lambda self, output: "changed", "changed"),
    ("the same value", lambda self, output: output, "ok"),
    ("an empty string", lambda self, output: "", ""),
    ("False", lambda self, output: False, False),
    ("a value of another type", lambda self, output: {"text": output}, {"text": "ok"}),
]


def test_on_finish_value_replaces_output_unless_it_is_none(script: Script) -> None:
    for name, hook, wanted in FINISHES:
        with case(name):
            agent = type("Agent", (module,), {"__module__": __name__, "final_output": str, "on_finish": hook})
            assert agent(model=script(finish("ok")))() == wanted


def test_value_error_of_on_finish_is_a_correction_with_its_text(script: Script) -> None:
    agent = type("Agent", (module,), {"__module__": __name__, "final_output": str, "on_finish": reject("Be polite.")})
    model = script(finish("no"), finish("no"))
    with pytest.raises(ParseError, match=r"Be polite\."):
        agent(model=model, parse_retries=1)()
    assert "Be polite." in model.requests[1].messages[-1]["content"]


def test_other_error_of_on_finish_reaches_the_caller(script: Script) -> None:
    for error in (KeyError("x"), ZeroDivisionError("x"), InputError("wrong")):
        with case(repr(error)):

            def on_finish(self: Any, output: Any, error: Exception = error) -> None:
                raise error

            agent = type("Agent", (module,), {"__module__": __name__, "final_output": str, "on_finish": on_finish})
            replies = [finish("ok")] * (3 if isinstance(error, ValueError) else 1)
            expected = ParseError if isinstance(error, ValueError) else type(error)
            with pytest.raises(expected):
                agent(model=script(*replies))()
