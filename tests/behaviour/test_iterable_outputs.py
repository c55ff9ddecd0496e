"""Tests of inputs and outputs of the kind `Iterable`: acorn validates their items and returns a list."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, MutableSequence, Sequence
from typing import Annotated, Any, NamedTuple, Optional

import pytest
from pydantic import BaseModel, Field
from tests.cases import case

from acorn import InputError, ParseError, module
from acorn.testing import ScriptedModel, call, finish


class Inner(BaseModel):
    ids: Iterable[int]


class Whole(BaseModel):
    ids: Iterable[int]
    inner: Inner | None = None


def agent(output: Any, *replies: Any, **settings: Any) -> module[Any, Any]:
    class Finder(module):
        """Find."""

        initial_input: Any = []
        final_output = output

    return Finder(**{"model": ScriptedModel(list(replies)), **settings})


KINDS: dict[str, Any] = {
    "Iterable": Iterable[int],
    "Generator": Generator[int, None, None],
    "Sequence": Sequence[int],
    "MutableSequence": MutableSequence[int],
    "Annotated": Annotated[Iterable[int], Field(description="The ids")],
    "optional": Optional[Iterable[int]],  # noqa: UP045
    "union": Iterable[int] | None,
}


def test_iterable_output_field_is_a_validated_list() -> None:
    for name, kind in KINDS.items():
        with case(name):
            output = agent([("ids", kind)], call("__finish__", ids=[1, "2"]))()
            assert output.ids == [1, 2]
            assert output.ids == [1, 2]


def test_plain_iterable_output_is_a_validated_list() -> None:
    for name, kind in KINDS.items():
        with case(name):
            assert agent(kind, finish([1, "2"]))() == [1, 2]


def test_wrong_item_of_iterable_output_is_corrected_by_model() -> None:
    for name, kind in KINDS.items():
        with case(name):
            made = agent([("ids", kind)], call("__finish__", ids=[1, "x"]), call("__finish__", ids=[1, 2]))
            assert made().ids == [1, 2]
            model: Any = made.model
            message = str(model.requests[1].messages[-1]["content"])
            assert "ids.1" in message
            assert "integer" in message


def test_wrong_item_of_iterable_output_without_retries_is_parse_error() -> None:
    with pytest.raises(ParseError):
        agent([("ids", Iterable[int])], call("__finish__", ids=["x"]), parse_retries=0)()


class Pair(NamedTuple):
    ids: Iterable[int]
    total: int


NESTED: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "in a schema": (Whole, {"ids": [1, "2"]}, lambda output: output.ids),
    "in a schema of a schema": (Whole, {"ids": [], "inner": {"ids": [1, "2"]}}, lambda output: output.inner.ids),
    "in a list": ([("rows", list[Iterable[int]])], {"rows": [[1, "2"]]}, lambda output: output.rows[0]),
    "in a dict": ([("rows", dict[str, Iterable[int]])], {"rows": {"a": [1, "2"]}}, lambda output: output.rows["a"]),
    "in a tuple": ([("rows", tuple[Iterable[int], int])], {"rows": [[1, "2"], 3]}, lambda output: output.rows[0]),
    "in a named tuple": (Pair, {"result": [[1, "2"], 3]}, lambda output: output.ids),
    "of iterables": (
        [("rows", Iterable[Iterable[int]])],
        {"rows": [[1, "2"]]},
        lambda output: next(iter(output.rows)),
    ),
}


def test_nested_iterable_output_is_a_validated_list() -> None:
    for name, (kind, arguments, get) in NESTED.items():
        with case(name):
            output = agent(kind, call("__finish__", **arguments))()
            assert get(output) == [1, 2]
            assert get(output) == [1, 2]


def test_wrong_item_of_nested_iterable_output_is_corrected_by_model() -> None:
    for name, (kind, arguments, get) in NESTED.items():
        with case(name):
            wrong = json.loads(json.dumps(arguments).replace('"2"', '"x"'))
            made = agent(kind, call("__finish__", **wrong), call("__finish__", **arguments))
            assert get(made()) == [1, 2]


def test_iterable_output_is_the_same_in_stream_hook_record_and_json() -> None:
    from acorn import Run

    seen: list[Any] = []

    class Finder(module):
        """Find."""

        initial_input: Any = []
        final_output = [("ids", Iterable[int])]

        def on_finish(self, output: Any) -> None:
            seen.append(list(output.ids))

    made = Finder(model=ScriptedModel([call("__finish__", ids=[1, 2]), call("__finish__", ids=[1, 2])]))
    run: Any = made.run()
    assert (seen, run.output.ids) == ([[1, 2]], [1, 2])
    again: Any = Run.from_json(run.to_json(), Finder)
    assert again.output.ids == [1, 2]
    chunks: Any = list(made.stream())
    assert chunks[-1].result.ids == [1, 2]


def test_iterable_output_of_branch_is_read_by_model_and_code() -> None:
    class Inner(module[Any, Any]):
        """Find."""

        initial_input: Any = []
        final_output = [("ids", Iterable[int])]

    model = ScriptedModel([call("inner"), call("__finish__", ids=[1, 2]), finish("done")])
    made = agent(str, model=model, branches={"inner": Inner}, max_steps=3)
    run = made.run()
    assert json.loads(str(model.requests[2].messages[-1]["content"])) == {"ids": [1, 2]}
    inside: Any = run.branches[0].output
    assert inside.ids == [1, 2]


def test_iterable_output_through_xml_fallback_is_a_validated_list() -> None:
    model = ScriptedModel(
        [
            call("look"),
            "I think.",
            "<output><ids><item>1</item><item>2</item></ids></output>",
        ],
        forces=False,
    )

    def look() -> str:
        """Look."""
        return "seen"

    made = agent([("ids", Iterable[int])], model=model, tools=[look], max_steps=1)
    assert made().ids == [1, 2]


def test_iterable_input_is_validated_and_sent_and_stays_readable() -> None:
    kinds: dict[str, Callable[[], Any]] = {
        "list": lambda: [1, 2],
        "tuple": lambda: (1, 2),
        "generator": lambda: (at for at in (1, 2)),
        "map": lambda: map(int, "12"),
        "set": lambda: {1, 2},
    }
    for name, make in kinds.items():

        class Reader(module):
            """Read."""

            initial_input = [("ids", Iterable[int])]
            final_output = str

        with case(name):
            model = ScriptedModel([finish("done")])
            run = Reader(model=model).run(ids=make())
            text = str(model.requests[0].messages[-1]["content"])
            assert "<item>1</item>" in text
            assert "<item>2</item>" in text
            assert list(run.input.ids) == [1, 2]  # type: ignore[attr-defined]
            assert list(run.input.ids) == [1, 2]  # type: ignore[attr-defined]


def test_wrong_item_of_iterable_input_is_input_error() -> None:
    class Reader(module):
        """Read."""

        initial_input = [("ids", Iterable[int])]
        final_output = str

    model = ScriptedModel([])
    with pytest.raises(InputError, match=r"ids\.1"):
        Reader(model=model)(ids=[1, "x"])
    assert model.requests == []


def test_nested_iterable_argument_of_tool_is_validated() -> None:
    class Rows(BaseModel):
        ids: Iterable[int]

    seen: list[Any] = []

    def pay(rows: list[Iterable[int]], more: Any = None) -> str:
        """Pay."""
        seen.append([list(row) for row in rows])
        return "paid"

    model = ScriptedModel([call("pay", rows=[[1, "x"]]), call("pay", rows=[[1, "2"]]), finish("done")])
    made = agent(str, model=model, tools=[pay], max_steps=4)
    assert made() == "done"
    assert str(model.requests[1].messages[-1]["content"]).startswith("Tool error: ")
    assert "rows.0.1" in str(model.requests[1].messages[-1]["content"])
    assert seen == [[[1, 2]]]
