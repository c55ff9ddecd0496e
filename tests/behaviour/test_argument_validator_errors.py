"""Tests of exceptions of the validators of tool arguments: the model reads a tool error, and the run continues."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    WrapValidator,
    field_validator,
    model_validator,
)
from tests.behaviour.small_programs import WAYS, Plain, read_after, read_result
from tests.cases import case

from acorn import module, tool
from acorn.testing import ScriptedModel, call, finish

ERRORS: dict[str, Callable[[], BaseException]] = {
    "KeyError": lambda: KeyError("blue"),
    "TypeError": lambda: TypeError("not that"),
    "AttributeError": lambda: AttributeError("no such attribute"),
    "IndexError": lambda: IndexError("out of range"),
    "ZeroDivisionError": lambda: ZeroDivisionError("by zero"),
    "RuntimeError": lambda: RuntimeError("not now"),
    "OSError": lambda: OSError("no disk"),
    "LookupError": lambda: LookupError("nothing"),
    "NotImplementedError": lambda: NotImplementedError("later"),
    "StopIteration": lambda: StopIteration("over"),
    "RecursionError": lambda: RecursionError("too deep"),
    "TimeoutError": lambda: TimeoutError("too slow"),
    "ValueError": lambda: ValueError("no such color"),
    "AssertionError": lambda: AssertionError("no such color"),
    "own error": lambda: _OwnError("no such color"),
}


class _OwnError(Exception):
    """An error of a user."""


def _raising(name: str) -> Callable[..., Any]:
    def check(value: Any, *_: Any) -> Any:
        raise ERRORS[name]()

    return check


CALLS: list[str] = []


@tool
def look() -> str:
    """Look."""
    CALLS.append("look")
    return "seen"


def _tools(name: str) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return tools whose validators raise, with the arguments of a call."""
    check = _raising(name)

    class ByField(BaseModel):
        color: str

        @field_validator("color")
        @classmethod
        def check_color(cls, value: str) -> Any:
            return check(value)

    class ByModel(BaseModel):
        color: str

        @model_validator(mode="after")
        def check_whole(self) -> Any:
            return check(self)

    class Before(BaseModel):
        color: str

        @model_validator(mode="before")
        @classmethod
        def check_data(cls, data: Any) -> Any:
            return check(data)

    class Post(BaseModel):
        color: str

        def model_post_init(self, context: Any) -> None:
            check(self)

    class Factory(BaseModel):
        color: str = Field(default_factory=lambda: check(1))

    class Custom:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            from pydantic_core import core_schema

            return core_schema.no_info_after_validator_function(check, core_schema.str_schema())

    def after(color: Annotated[str, AfterValidator(check)]) -> str:
        """Paint."""
        return "painted"

    def before(color: Annotated[str, BeforeValidator(check)]) -> str:
        """Paint."""
        return "painted"

    def plain(color: Annotated[Any, PlainValidator(check)]) -> str:
        """Paint."""
        return "painted"

    def wrap(color: Annotated[str, WrapValidator(lambda value, handler: check(value))]) -> str:
        """Paint."""
        return "painted"

    def in_list(colors: list[Annotated[str, AfterValidator(check)]]) -> str:
        """Paint."""
        return "painted"

    def in_dict(colors: dict[str, Annotated[str, AfterValidator(check)]]) -> str:
        """Paint."""
        return "painted"

    def by_field(paint: ByField) -> str:
        """Paint."""
        return "painted"

    def by_model(paint: ByModel) -> str:
        """Paint."""
        return "painted"

    def before_model(paint: Before) -> str:
        """Paint."""
        return "painted"

    def post_init(paint: Post) -> str:
        """Paint."""
        return "painted"

    def nested(paints: list[ByField]) -> str:
        """Paint."""
        return "painted"

    def factory(paint: Factory) -> str:
        """Paint."""
        return "painted"

    def custom(color: Custom) -> str:
        """Paint."""
        return "painted"

    async def asynchronous(color: Annotated[str, AfterValidator(check)]) -> str:
        """Paint."""
        return "painted"

    one, many = {"color": "blue"}, [{"color": "blue"}]
    return {
        "after": (after, one),
        "before": (before, one),
        "plain": (plain, one),
        "wrap": (wrap, one),
        "in a list": (in_list, {"colors": ["blue"]}),
        "in a dict": (in_dict, {"colors": {"a": "blue"}}),
        "field validator": (by_field, {"paint": one}),
        "model validator": (by_model, {"paint": one}),
        "model validator before": (before_model, {"paint": one}),
        "post init": (post_init, {"paint": one}),
        "nested": (nested, {"paints": many}),
        "default factory": (factory, {"paint": {}}),
        "custom type": (custom, one),
        "async tool": (asynchronous, one),
    }


def test_exception_of_argument_validator_is_tool_error() -> None:
    for name in ERRORS:
        for kind, (function, arguments) in _tools(name).items():
            with case(name, kind):
                read = read_result(function, **arguments)
                assert read.startswith("Tool error: ")
                text = str(ERRORS[name]()).strip("'")
                assert text in read
                assert "Traceback" not in read


def test_message_of_other_exception_names_its_class() -> None:
    for name in set(ERRORS) - {"ValueError", "AssertionError"}:
        with case(name):
            function, arguments = _tools(name)["after"]
            assert type(ERRORS[name]()).__name__ in read_result(function, **arguments)


def test_exception_of_argument_validator_is_tool_error_in_every_way() -> None:
    for way in WAYS:
        for kind in ("after", "async tool", "nested"):
            with case(way, kind):
                function, arguments = _tools("KeyError")[kind]
                assert read_result(function, way=way, **arguments).startswith("Tool error: ")


def test_sibling_calls_run_and_keep_their_results_if_argument_validator_raises() -> None:
    for name in ERRORS:
        with case(name):
            CALLS.clear()
            function, arguments = _tools(name)["after"]
            read = read_after(call("look") & call("after", **arguments) & call("look"), function, look)
            assert [read[0], read[2]] == ["seen", "seen"]
            assert read[1].startswith("Tool error: ")
            assert CALLS == ["look", "look"]


def test_function_is_not_called_if_argument_validator_raises() -> None:
    done: list[str] = []

    def paint(color: Annotated[str, AfterValidator(_raising("KeyError"))]) -> str:
        """Paint."""
        done.append(color)
        return "painted"

    read_result(paint, color="blue")
    assert done == []


def test_run_with_raising_argument_validator_can_correct_its_call() -> None:
    def known(color: str) -> str:
        return {"red": "r"}[color]

    def paint(color: Annotated[str, AfterValidator(known)]) -> str:
        """Paint."""
        return f"painted {color}"

    model = ScriptedModel([call("paint", color="blue"), call("paint", color="red"), finish("done")])
    run = Plain(model=model, tools=[paint]).run()
    assert run.stop_reason == "finish"
    assert model.requests[2].messages[-1]["content"] == "painted r"


def test_exception_of_branch_input_validator_is_tool_error() -> None:
    for name in ERRORS:

        class Input(BaseModel):
            color: Annotated[str, AfterValidator(_raising(name))]

        class Inner(module[Input, str]):
            """Paint."""

        with case(name):
            model = ScriptedModel([call("inner", color="blue"), finish("done")])
            assert Plain(model=model, branches={"inner": Inner})() == "done"
            assert str(model.requests[1].messages[-1]["content"]).startswith("Tool error: ")


def test_exception_of_input_validator_of_agent_as_tool_is_tool_error() -> None:
    for name in ERRORS:

        class Input(BaseModel):
            color: Annotated[str, AfterValidator(_raising(name))]

        class Painter(module[Input, str]):
            """Paint."""

        with case(name):
            painter = Painter(model=ScriptedModel([]))
            model = ScriptedModel([call("painter", color="blue"), finish("done")])
            agent = Plain(model=model, tools=[painter])
            assert agent() == "done"
            assert str(model.requests[1].messages[-1]["content"]).startswith("Tool error: ")


def test_interrupt_of_argument_validator_is_not_caught() -> None:
    def stop(color: str) -> str:
        raise KeyboardInterrupt

    def paint(color: Annotated[str, AfterValidator(stop)]) -> str:
        """Paint."""
        return "painted"

    with pytest.raises(KeyboardInterrupt):
        Plain(model=ScriptedModel([call("paint", color="blue")]), tools=[paint])()
