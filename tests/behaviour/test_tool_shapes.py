"""A family of small programs: everything that Python can call, as a tool, and what the model reads from it."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import BaseModel, Field
from tests.behaviour.conftest import Script
from tests.cases import case
from typing_extensions import TypedDict

from acorn import DeclarationError, Run, Step, ToolConflictError, module, tool
from acorn.testing import call as calling
from acorn.testing import finish


class Color(enum.Enum):
    RED = "red"


class Place(BaseModel):
    name: str
    size: int = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Pair(TypedDict):
    left: int


class Row(NamedTuple):
    number: int


def double(x: int) -> int:
    """Double."""
    return x * 2


async def later(x: int) -> int:
    """Double later."""
    await asyncio.sleep(0)
    return x * 2


def shout(text: str, *, mark: str = "!", times: int = 1) -> str:
    return text.upper() + mark * times


def only_positional(a: int, b: int = 2, /) -> int:
    return a + b


def only_keywords(*, a: int, b: int = 2) -> int:
    return a + b


def any_keywords(**extra: int) -> str:
    return str(extra)


def optional(x: int | None = None) -> str:
    return repr(x)


def implicit_optional(x: int = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
    return repr(x)


def mutable_default(items: list[int] = []) -> str:  # noqa: B006
    items.append(1)
    return str(items)


def no_return(x: int) -> None: ...


def no_parameters() -> str:
    return "done"


def generator(x: int) -> Iterator[int]:
    yield from range(x)


def color(value: Color) -> str:
    return value.name


def literal(value: Literal["a", 1]) -> str:
    return repr(value)


def place(value: Place) -> str:
    return f"{value.name} {value.size}"


def point(value: Point) -> str:
    return f"{value.x} {value.y}"


def pair(value: Pair) -> str:
    return str(value["left"])


def row(value: Row) -> str:
    return f"{type(value).__name__} {value.number}"


def nested(value: dict[str, list[Place]]) -> str:
    return value["a"][0].name


def limited(x: Annotated[int, Field(ge=1, description="A count")]) -> int:
    return x


def forward(value: "Place") -> str:  # noqa: UP037
    return value.name


def anything(value: Any) -> str:
    return type(value).__name__


def with_run(x: int, run: Run) -> str:
    return f"{x} {run.input is not None}"


def with_optional_run(x: int, *, run: Run | None = None) -> str:
    return f"{x} {run is not None}"


def undocumented(x: int) -> int:
    return x


def union(value: int | str) -> str:
    return type(value).__name__


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Caller:
    """Call an object."""

    def __call__(self, x: int) -> int:
        return x * 2


class AsyncCaller:
    async def __call__(self, x: int) -> int:
        return x * 2


class Slotted:
    __slots__ = ()

    def __call__(self, x: int) -> int:
        return x * 2


class Tools:
    factor = 3

    def bound(self, x: int) -> int:
        return x * self.factor

    async def abound(self, x: int) -> int:
        return x * self.factor

    @classmethod
    def of_class(cls, x: int) -> int:
        return x * cls.factor

    @staticmethod
    def static(x: int) -> int:
        return x * 3


def make_closure(factor: int) -> Callable[[int], int]:
    def scaled(x: int) -> int:
        return x * factor

    return scaled


decorated = tool(name="decorated", description="A name and a description.")(lambda: "said")

SHAPES: list[tuple[str, Any, str, dict[str, Any], str]] = [
    ("function", double, "double", {"x": 2}, "4"),
    ("numeric text in lax mode", double, "double", {"x": "2"}, "4"),
    ("async function", later, "later", {"x": 2}, "4"),
    ("keyword-only parameters", shout, "shout", {"text": "hi", "times": 2}, "HI!!"),
    ("positional-only parameters", only_positional, "only_positional", {"a": 1}, "3"),
    ("positional-only parameters, all passed", only_positional, "only_positional", {"a": 1, "b": 5}, "6"),
    ("keyword-only required parameter", only_keywords, "only_keywords", {"a": 1}, "3"),
    ("any keywords", any_keywords, "any_keywords", {"a": 1}, "{'a': 1}"),
    ("any keywords, none passed", any_keywords, "any_keywords", {}, "{}"),
    ("optional parameter", optional, "optional", {"x": None}, "None"),
    ("optional parameter, not passed", optional, "optional", {}, "None"),
    ("implicit optional", implicit_optional, "implicit_optional", {"x": None}, "None"),
    ("mutable default", mutable_default, "mutable_default", {}, "[1]"),
    ("no return value", no_return, "no_return", {"x": 1}, "null"),
    ("no parameters", no_parameters, "no_parameters", {}, "done"),
    ("generator", generator, "generator", {"x": 3}, "[0,1,2]"),
    ("enum", color, "color", {"value": "red"}, "RED"),
    ("literal", literal, "literal", {"value": 1}, "1"),
    ("Pydantic model", place, "place", {"value": {"name": "Rome"}}, "Rome 1"),
    ("dataclass", point, "point", {"value": {"x": 4}}, "4 0"),
    ("TypedDict", pair, "pair", {"value": {"left": 4}}, "4"),
    ("named tuple", row, "row", {"value": [4]}, "Row 4"),
    ("nested containers", nested, "nested", {"value": {"a": [{"name": "Rome"}]}}, "Rome"),
    ("limits", limited, "limited", {"x": 1}, "1"),
    ("forward reference", forward, "forward", {"value": {"name": "Rome"}}, "Rome"),
    ("any type", anything, "anything", {"value": [1]}, "list"),
    ("run parameter", with_run, "with_run", {"x": 1}, "1 True"),
    ("optional run parameter", with_optional_run, "with_optional_run", {"x": 1}, "1 True"),
    ("no docstring", undocumented, "undocumented", {"x": 1}, "1"),
    ("union", union, "union", {"value": "a"}, "str"),
    ("wrapped function", logged(double), "double", {"x": 2}, "4"),
    ("wrapped twice", logged(logged(double)), "double", {"x": 2}, "4"),
    ("sync function in async wrapper", slowly(double), "double", {"x": 2}, "4"),
    ("marked and wrapped", logged(tool(name="named")(make_closure(2))), "named", {"x": 2}, "4"),
    ("wrapped and marked", tool(name="named")(logged(make_closure(2))), "named", {"x": 2}, "4"),
    ("partial", functools.partial(shout, mark="?"), "shout", {"text": "hi"}, "HI?"),
    ("partial of a positional argument", functools.partial(shout, "hi"), "shout", {}, "HI!"),
    ("partial of a partial", functools.partial(functools.partial(shout, "hi"), mark="?"), "shout", {}, "HI?"),
    ("partial of an async function", functools.partial(later, 4), "later", {}, "8"),
    ("partial of a bound method", functools.partial(Tools().bound, 4), "bound", {}, "12"),
    ("partial of a callable object", functools.partial(Caller(), 4), "caller", {}, "8"),
    ("callable object", Caller(), "caller", {"x": 2}, "4"),
    ("async callable object", AsyncCaller(), "async_caller", {"x": 2}, "4"),
    ("callable object with slots", Slotted(), "slotted", {"x": 2}, "4"),
    ("bound method", Tools().bound, "bound", {"x": 2}, "6"),
    ("async bound method", Tools().abound, "abound", {"x": 2}, "6"),
    ("class method", Tools.of_class, "of_class", {"x": 2}, "6"),
    ("class method of an instance", Tools().of_class, "of_class", {"x": 2}, "6"),
    ("static method", Tools.static, "static", {"x": 2}, "6"),
    ("static method object", vars(Tools)["static"], "static", {"x": 2}, "6"),
    ("closure", make_closure(5), "scaled", {"x": 2}, "10"),
    ("cached function", functools.lru_cache(double), "double", {"x": 2}, "4"),
    ("lambda with a name", decorated, "decorated", {}, "said"),
    ("function without a call of the decorator", tool(undocumented), "undocumented", {"x": 1}, "1"),
    ("method of a callable", Caller().__call__, "__call__", {"x": 2}, "4"),
]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_callable_of_each_shape_is_called_with_validated_arguments(script: Script, is_async: bool) -> None:
    for name, entry, tool_name, arguments, wanted in SHAPES:
        with case(name):

            class Agent(module[None, str]):
                tools = [entry]
                max_steps = 2

            model = script(calling(tool_name, **arguments), finish("ok"))
            agent = Agent(model=model)
            assert (asyncio.run(agent.acall()) if is_async else agent()) == "ok"
            assert model.requests[1].messages[-1]["content"] == wanted


def test_callable_of_each_shape_is_added_by_hook(script: Script) -> None:
    for name, entry, tool_name, arguments, wanted in SHAPES:
        with case(name):

            class Agent(module[None, str]):
                tools = [no_parameters] if entry is not no_parameters else [double]
                max_steps = 3

                def on_step(self, step: Step, entry: Any = entry) -> None:
                    if step.counter == 1:
                        step.add_tool(entry)

            first = calling("no_parameters") if entry is not no_parameters else calling("double", x=1)
            if entry is not double and tool_name == "double" and entry is no_parameters:
                continue
            model = script(first, calling(tool_name, **arguments), finish("ok"))
            assert Agent(model=model)() == "ok"
            assert model.requests[2].messages[-1]["content"] == wanted


def test_method_tool_of_each_shape_is_called(script: Script) -> None:
    class Methods(module[None, str]):
        max_steps = 2
        factor = 3

        @tool
        def plain(self, x: int) -> int:
            return x * self.factor

        @tool
        async def asynchronous(self, x: int) -> int:
            return x * self.factor

        @tool(name="renamed")
        def original(self, x: int) -> int:
            return x * self.factor

        @tool
        @staticmethod
        def static(x: int) -> int:
            return x * 3

        @staticmethod
        @tool
        def static_inside(x: int) -> int:
            return x * 3

        @tool
        @classmethod
        def of_class(cls, x: int) -> int:
            return x * cls.factor

        @classmethod
        @tool
        def of_class_inside(cls, x: int) -> int:
            return x * cls.factor

        @tool
        def positional(self, x: int, /) -> int:
            return x * self.factor

        @tool
        def typed_self(self: Methods, x: int) -> int:
            return x * self.factor

        @tool
        def other_name(this, x: int) -> int:  # noqa: N805
            return x * this.factor

        @tool
        def wants_run(self, x: int, run: Run) -> int:
            return x * self.factor * run.steps

    names = [
        "plain",
        "asynchronous",
        "renamed",
        "static",
        "static_inside",
        "of_class",
        "of_class_inside",
        "positional",
        "typed_self",
        "other_name",
        "wants_run",
    ]
    for name in names:
        with case(name):
            model = script(calling(name, x=2), finish("ok"))
            Methods(model=model)()
            assert model.requests[1].messages[-1]["content"] == "6"
            properties = {
                each["function"]["name"]: list(each["function"]["parameters"]["properties"])
                for each in model.requests[0].tools
            }
            assert properties[name] == ["x"]


def untyped(x):  # type: ignore[no-untyped-def]
    return x


def half_typed(x: int, y) -> int:  # type: ignore[no-untyped-def]
    return x


def many(*numbers: int) -> int:
    return sum(numbers)


class NotCallable:
    pass


def other_double() -> Any:
    def double(x: int) -> int:
        return x

    return double


REFUSED: list[tuple[str, list[Any], type[Exception], list[str]]] = [
    ("no type hint", [untyped], DeclarationError, ["`x`", "`untyped`", "type hint", "`x: str`", "`Agent`"]),
    ("one missing type hint", [half_typed], DeclarationError, ["`y`", "`half_typed`", "type hint"]),
    ("lambda with a parameter", [lambda x: x], DeclarationError, ["`<lambda>`|'<lambda>'", "name"]),
    ("lambda", [lambda: 1], DeclarationError, ["'<lambda>'", "@tool\\(name="]),
    ("star arguments", [many], DeclarationError, ["`\\*numbers`", "`many`", "list"]),
    ("star arguments in a partial", [functools.partial(many, 1)], DeclarationError, ["`\\*numbers`"]),
    ("class", [NotCallable], DeclarationError, ["`Agent.tools\\[0\\]`", "the class `NotCallable`"]),
    ("Pydantic class", [Place], DeclarationError, ["`Agent.tools\\[0\\]`", "the class `Place`"]),
    ("object that is not callable", [NotCallable()], DeclarationError, ["`Agent.tools\\[0\\]`", "NotCallable"]),
    ("string", ["double"], DeclarationError, ["`Agent.tools\\[0\\]`", "'double'"]),
    ("None", [None], DeclarationError, ["`Agent.tools\\[0\\]`", "None"]),
    ("number", [5], DeclarationError, ["`Agent.tools\\[0\\]`", "5"]),
    ("list in a list", [[double]], DeclarationError, ["`Agent.tools\\[0\\]`"]),
    ("second entry", [double, 5], DeclarationError, ["`Agent.tools\\[1\\]`", "5"]),
    ("called function", [double(2)], DeclarationError, ["`Agent.tools\\[0\\]`", "4"]),
    ("builtin without hints", [len], DeclarationError, ["`len`", "type hints"]),
    ("builtin of an operator", [operator.add], DeclarationError, ["`add`", "type hints"]),
    ("print", [print], DeclarationError, ["`print`"]),
    ("two tools of one name", [double, other_double()], ToolConflictError, ["'double'", "`Agent`", "@tool\\(name="]),
    (
        "name of the finish tool",
        [tool(name="__finish__")(make_closure(2))],
        DeclarationError,
        ["__finish__", "reserved"],
    ),
    (
        "name with a blank",
        [tool(name="my tool")(make_closure(2))],
        DeclarationError,
        ["'my tool'", "`Agent`", "letters"],
    ),
    ("too long name", [tool(name="x" * 65)(make_closure(2))], DeclarationError, ["64", "`Agent`"]),
    ("dict without a type", [{"name": "x"}], DeclarationError, ["`Agent.tools\\[0\\]`|tools\\[0\\]"]),
    ("module itself", [module], DeclarationError, ["tools\\[0\\]"]),
]


def test_entry_that_is_not_a_tool_raises_declaration_error_with_place_and_fix() -> None:
    for name, entries, kind, words in REFUSED:
        with case(name):
            with pytest.raises(kind) as caught:
                type("Agent", (module,), {"__module__": __name__, "tools": entries})
            for pattern in words:
                caught.match(pattern)


def test_tools_that_are_no_list_raise_declaration_error_with_advice() -> None:
    for value in (double, "double", {"double": double}, None, 5, Place):
        with case(repr(value)), pytest.raises(DeclarationError, match=r"`Agent\.tools` must be a list"):
            type("Agent", (module,), {"__module__": __name__, "tools": value})


WRONG_ARGUMENTS: list[tuple[str, Any, dict[str, Any], list[str]]] = [
    ("missing argument", double, {}, ["`x` is missing", "integer"]),
    ("wrong type", double, {"x": "two"}, ["`x`", "integer", "two"]),
    ("null", double, {"x": None}, ["`x`", "integer"]),
    ("unknown argument", double, {"x": 1, "y": 2}, ["`y`"]),
    ("wrong enum", color, {"value": "blue"}, ["`value`", "red", "blue"]),
    ("wrong literal", literal, {"value": "b"}, ["`value`", '"a"', "b"]),
    ("missing field of a model", place, {"value": {}}, ["`value.name` is missing", "string"]),
    ("wrong field in a list", nested, {"value": {"a": [{"name": 5}]}}, ["`value.a.0.name`", "string", "5"]),
    ("too small", limited, {"x": 0}, ["`x`", "at least 1", "0"]),
    ("filled argument of a partial", functools.partial(shout, mark="?"), {"text": "a", "mark": "!"}, ["`mark`"]),
    ("run parameter", with_run, {"x": 1, "run": 5}, ["`run`"]),
    ("wrong any keyword", any_keywords, {"a": "x"}, ["`a`", "integer"]),
]


def test_wrong_arguments_of_a_call_are_a_tool_error_that_names_the_argument(script: Script) -> None:
    for name, entry, arguments, words in WRONG_ARGUMENTS:
        with case(name):

            class Agent(module[None, str]):
                tools = [entry]
                max_steps = 2

            tool_name = "shout" if isinstance(entry, functools.partial) else entry.__name__
            model = script(calling(tool_name, **arguments), finish("ok"))
            assert Agent(model=model)() == "ok"
            text = model.requests[1].messages[-1]["content"]
            assert text.startswith("Tool error: ")
            assert [word for word in words if word not in text] == [], text


class OwnError(Exception):
    pass


def fails_with(error: Any) -> Any:
    def fail() -> str:
        raise error

    return fail


FAILURES: list[tuple[str, Any, str]] = [
    ("ValueError", ValueError("too small"), "Tool error: ValueError: too small"),
    ("own exception", OwnError("x"), "Tool error: OwnError: x"),
    ("without a text", KeyError(), "Tool error: KeyError"),
    ("KeyError", KeyError("a"), "Tool error: KeyError: 'a'"),
    ("exception class", ZeroDivisionError, "Tool error: ZeroDivisionError"),
    ("timeout", TimeoutError("late"), "Tool error: TimeoutError: late"),
    ("StopIteration", StopIteration("end"), "Tool error: StopIteration: end"),
    ("exception group", ExceptionGroup("both", [ValueError("a")]), "Tool error: ExceptionGroup: both"),
    ("DeclarationError", DeclarationError("wrong"), "Tool error: DeclarationError: wrong"),
]


def test_exception_of_a_tool_is_a_tool_error_and_the_run_continues(script: Script) -> None:
    for name, error, wanted in FAILURES:
        with case(name):

            class Agent(module[None, str]):
                tools = [fails_with(error)]
                max_steps = 2

            model = script(calling("fail"), finish("ok"))
            assert Agent(model=model)() == "ok"
            assert model.requests[1].messages[-1]["content"].startswith(wanted)
