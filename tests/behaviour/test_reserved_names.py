"""Tests of tools and attributes that have the name of one of acorn's own members."""

from __future__ import annotations

from typing import Any

import pytest
from tests.behaviour.small_programs import Plain
from tests.cases import case

from acorn import DeclarationError, module, tool
from acorn.testing import ScriptedModel, call, finish

MEMBERS = [
    "run",
    "arun",
    "acall",
    "stream",
    "astream",
    "resume",
    "aresume",
    "submit",
    "asubmit",
    "map",
    "amap",
    "branch",
    "abranch",
    "branch_all",
    "using",
    "override",
    "history",
    "thread",
    "last",
    "deps",
]


def search() -> Any:
    """Return a new method."""

    class Methods:
        def search(self, query: str) -> str:
            """Search."""
            return f"found {query}"

    return Methods.search


def asearch() -> Any:
    """Return a new async method."""

    class Methods:
        async def search(self, query: str) -> str:
            """Search."""
            return f"found {query}"

    return Methods.search


def declare(**attributes: Any) -> type[module[Any, Any]]:
    body = {"__module__": __name__, "__qualname__": "Shop", "__doc__": "Help.", "final_output": str, **attributes}
    return type("Shop", (module,), body)


def test_list_of_members_is_complete() -> None:
    from acorn._declare.settings import SETTINGS

    hooks = {name for name in dir(module) if name.startswith("on_")}
    assert set(MEMBERS) == {name for name in dir(module) if not name.startswith("_")} - set(SETTINGS) - hooks - {
        "description",
        "system_prompt",
        "make_deps",
    }


def test_tool_with_name_of_member_is_declaration_error() -> None:
    for name in MEMBERS:
        for function in (search, asearch):
            for decorate in (tool, tool(parallel=False), tool(description="Search the shop.")):
                with case(name, function.__name__):
                    with pytest.raises(DeclarationError) as caught:
                        declare(**{name: decorate(function())})
                    message = str(caught.value)
                    assert f"`Shop.{name}`" in message
                    assert "@tool(name=" in message


def test_attribute_with_name_of_member_is_declaration_error() -> None:
    values: list[Any] = [5, "x", [], {}, None, lambda: 1, staticmethod(len), classmethod(lambda cls: 1), property(id)]
    for name in MEMBERS:
        for value in values:
            with case(name, value):
                with pytest.raises(DeclarationError) as caught:
                    declare(**{name: value})
                assert f"`Shop.{name}`" in str(caught.value)


def test_annotated_attribute_with_name_of_member_is_declaration_error() -> None:
    with pytest.raises(DeclarationError, match=r"`Shop\.history`"):

        class Shop(module[Any, str]):
            """Help."""

            history: list[str] = []  # type: ignore[assignment]


def test_member_in_base_class_that_is_no_module_is_declaration_error() -> None:
    class Mixin:
        @tool
        def stream(self, query: str) -> str:
            """Search."""
            return query

    with pytest.raises(DeclarationError, match=r"stream"):
        type("Shop", (Mixin, module), {"__module__": __name__, "__doc__": "Help."})


def test_tool_named_like_member_works_with_other_function_name() -> None:
    for name in MEMBERS:
        with case(name):
            agent: Any = declare(find=tool(name=name)(search()), max_steps=3)
            model = ScriptedModel([call(name, query="acorns"), finish("done")])
            assert agent(model=model)() == "done"
            assert model.requests[1].messages[-1]["content"] == "found acorns"


def test_function_named_like_member_in_tools_works() -> None:
    def find(query: str) -> str:
        """Search."""
        return f"found {query}"

    for name in MEMBERS:
        with case(name):
            find.__name__ = name
            model = ScriptedModel([call(name, query="acorns"), finish("done")])
            agent = Plain(model=model, tools=[find])
            assert agent.run().output == "done"
            assert model.requests[1].messages[-1]["content"] == "found acorns"


def test_tool_named_like_setting_or_hook_is_declaration_error() -> None:
    for name in ("model", "tools", "temperature", "store", "cache", "max_steps", "on_step", "on_finish", "on_human"):
        with case(name):
            with pytest.raises(DeclarationError) as caught:
                declare(**{name: tool(search())})
            assert name in str(caught.value)


def test_method_that_extends_member_is_accepted() -> None:
    """A subclass may wrap a call, as long as it is a plain method with the same parameters."""

    class Counting(Plain):
        calls = 0

        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            type(self).calls += 1
            return super().__call__(*args, **kwargs)

    assert Counting(model=ScriptedModel([finish("done")]))() == "done"
    assert Counting.calls == 1


def test_private_and_other_names_are_accepted() -> None:
    declare(_run=5, runs=[], threads=3, last_seen=None, history_length=4, find=tool(search()))
