"""Tests of serializers of users that raise: acorn never sends the value that the serializer should have changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, PlainSerializer, RootModel, computed_field, field_serializer, model_serializer
from tests.behaviour.small_programs import WAYS, Plain, read_after, read_result
from tests.cases import case

from acorn import AcornError, InputError, Step, capture, module
from acorn.testing import ScriptedModel, call, finish

CARD = "4111-1111-1111-1111"


class Masked(BaseModel):
    card: str

    @field_serializer("card")
    def mask(self, card: str) -> str:
        raise RuntimeError("the key server is down")


class MaskedWhole(BaseModel):
    card: str

    @model_serializer
    def mask(self) -> Any:
        raise RuntimeError("the key server is down")


class MaskedWrap(BaseModel):
    card: str

    @model_serializer(mode="wrap")
    def mask(self, handler: Callable[[Any], Any]) -> Any:
        raise RuntimeError("the key server is down")


def _mask(card: str) -> str:
    raise RuntimeError("the key server is down")


class Annotation(BaseModel):
    card: Annotated[str, PlainSerializer(_mask)]


class JsonOnly(BaseModel):
    card: str

    @field_serializer("card", when_used="json")
    def mask(self, card: str) -> str:
        raise RuntimeError("the key server is down")


class Root(RootModel[Annotated[str, PlainSerializer(_mask)]]):
    pass


class Computed(BaseModel):
    card: str

    @field_serializer("card")
    def hide(self, card: str) -> str:
        return "hidden"

    @computed_field
    def digits(self) -> str:
        raise RuntimeError("the key server is down")


class Around(BaseModel):
    inner: Masked


class Several(BaseModel):
    inner: list[Masked]


@dataclass
class Kept:
    inner: Any


class Base(BaseModel):
    card: str


class Child(Base):
    @field_serializer("card")
    def mask(self, card: str) -> str:
        raise RuntimeError("the key server is down")


class Anything(BaseModel):
    inner: Any


class Node(BaseModel):
    card: str = CARD
    others: Any = None

    @field_serializer("card")
    def hide(self, card: str) -> str:
        return "hidden"


def test_value_that_contains_itself_shows_no_field_that_a_serializer_changes() -> None:
    in_list: list[Any] = [Node()]
    in_dict: dict[str, Any] = {"node": Node()}
    in_node = Node()
    in_list.append(in_list)
    in_dict["again"] = in_dict
    in_node.others = [in_node]
    values: list[Any] = [in_list, in_dict, in_node]

    def show(index: int) -> Any:
        return values[index]

    for index, value in enumerate(values):
        with case(type(value)):
            text = read_result(show, index=index)
            assert "hidden" in text
            assert CARD not in text


VALUES: dict[str, Callable[[], Any]] = {
    "field serializer": lambda: Masked(card=CARD),
    "field serializer for JSON": lambda: JsonOnly(card=CARD),
    "model serializer": lambda: MaskedWhole(card=CARD),
    "model serializer that wraps": lambda: MaskedWrap(card=CARD),
    "annotated serializer": lambda: Annotation(card=CARD),
    "root model": lambda: Root(CARD),
    "computed field": lambda: Computed(card=CARD),
    "subclass": lambda: Child(card=CARD),
    "in a schema": lambda: Around(inner=Masked(card=CARD)),
    "in a list of a schema": lambda: Several(inner=[Masked(card="1"), Masked(card=CARD)]),
    "in a field of any type": lambda: Anything(inner=Masked(card=CARD)),
    "in a list": lambda: [Masked(card=CARD)],
    "in a tuple": lambda: (1, Masked(card=CARD)),
    "in a dict": lambda: {"a": Masked(card=CARD)},
    "in a dataclass": lambda: Kept(Masked(card=CARD)),
    "in a generator": lambda: (Masked(card=CARD) for _ in "a"),
    "beside bytes that are not text": lambda: {"raw": b"\xff", "a": Masked(card=CARD)},
    "beside an object without a JSON form": lambda: [object(), Masked(card=CARD)],
    "deep inside": lambda: {"a": [{"b": (Around(inner=Masked(card=CARD)),)}]},
}


def _returning(make: Callable[[], Any]) -> Callable[[], Any]:
    def pay() -> Any:
        """Pay."""
        return make()

    return pay


def _returning_async(make: Callable[[], Any]) -> Callable[[], Any]:
    async def pay() -> Any:
        """Pay."""
        return make()

    return pay


def test_serializer_that_raises_makes_tool_result_an_error_without_the_value() -> None:
    for name, make in VALUES.items():
        with case(name):
            read = read_result(_returning(make))
            assert CARD not in read
            assert read.startswith("Tool error: ")
            assert "the key server is down" in read


def test_serializer_that_raises_makes_async_and_streamed_tool_result_an_error() -> None:
    for way in WAYS:
        for make_tool in (_returning, _returning_async):
            with case(way, make_tool.__name__):
                read = read_result(make_tool(VALUES["field serializer"]), way=way)
                assert CARD not in read
                assert read.startswith("Tool error: ")


def test_result_of_sibling_call_stays_if_serializer_raises() -> None:
    def look() -> str:
        """Look."""
        return "seen"

    first, second = read_after(call("pay") & call("look"), _returning(VALUES["field serializer"]), look)
    assert first.startswith("Tool error: ")
    assert second == "seen"


def test_value_of_failing_serializer_is_in_no_record_of_the_run(tmp_path: Path) -> None:
    model = ScriptedModel([call("pay"), finish("done")])
    run = Plain(model=model, tools=[_returning(VALUES["field serializer"])], store=tmp_path / "runs.db").run()
    for name, text in {
        "history": str(run.history),
        "thread": str(run.thread),
        "journal": str(run.journal.entries),
        "json": run.to_json(),
        "requests": str([request.messages for request in model.requests]),
        "store": "".join(each.read_bytes().decode("latin-1") for each in tmp_path.iterdir()),
    }.items():
        with case(name):
            assert CARD not in text


def test_input_with_failing_serializer_is_error_before_request() -> None:
    kinds: dict[str, tuple[Any, Callable[[], Any]]] = {
        name: (type(make()), make) for name, make in VALUES.items() if isinstance(make(), BaseModel)
    }
    for name, (kind, make) in kinds.items():
        with case(name):
            model = ScriptedModel([finish("done")])
            with capture() as runs, pytest.raises(AcornError) as caught:
                Plain(model=model, initial_input=kind)(make())
            assert model.requests == []
            assert "the key server is down" in str(caught.value)
            assert CARD not in str(caught.value)
            assert all(CARD not in str(run.history) for run in runs)


def test_input_with_failing_serializer_is_input_error_that_names_the_field() -> None:
    with pytest.raises(InputError, match="card"):
        Plain(model=ScriptedModel([]), initial_input=Masked)(card=CARD)


def test_context_with_failing_serializer_is_error_before_request() -> None:
    for name, make in VALUES.items():
        if not isinstance(make(), BaseModel | list | dict):  # `add_to_context` takes no other types.
            continue

        class Adding(Plain):
            def on_step(self, step: Step, make: Any = make) -> None:
                step.add_to_context(make())

        with case(name):
            model = ScriptedModel([call("look"), finish("done")])
            with pytest.raises(Exception, match="the key server is down"):
                Adding(model=model, tools=[_look])()
            assert len(model.requests) == 1


def _look() -> str:
    """Look."""
    return "seen"


_look.__name__ = "look"


def test_output_of_branch_with_failing_serializer_is_tool_error() -> None:
    class Inner(module[Any, Masked]):
        """Find the card."""

        initial_input: Any = []
        final_output = Masked

    model = ScriptedModel([call("inner"), call("__finish__", card=CARD), finish("done")])
    agent = Plain(model=model, branches={"inner": Inner})
    assert agent() == "done"
    read = str(model.requests[-1].messages[-1]["content"])
    assert read.startswith("Tool error: ")
    assert CARD not in read


def test_output_that_agent_returns_keeps_its_value_if_serializer_raises() -> None:
    agent = Plain(model=ScriptedModel([call("__finish__", card=CARD)]), final_output=Masked)
    run: Any = agent.run()
    assert run.output.card == CARD  # The value came from the model, and acorn sends it nowhere.


def test_serializer_that_works_is_used_everywhere() -> None:
    class Fine(BaseModel):
        card: str

        @field_serializer("card")
        def mask(self, card: str) -> str:
            return f"****{card[-4:]}"

    assert json.loads(read_result(_returning(lambda: {"a": [Fine(card=CARD)]}))) == {"a": [{"card": "****1111"}]}
    model = ScriptedModel([finish("done")])
    Plain(model=model, initial_input=Fine)(card=CARD)
    assert "****1111" in str(model.requests[0].messages)
    assert CARD not in str(model.requests[0].messages)


def test_value_without_json_form_still_becomes_its_repr() -> None:
    class Thing:
        def __repr__(self) -> str:
            return "<thing>"

    for name, (make, expected) in {
        "alone": (Thing, "<thing>"),
        "in a list": (lambda: [Thing(), 1], ["<thing>", 1]),
        "in a dict": (lambda: {"a": Thing()}, {"a": "<thing>"}),
        "in a schema": (lambda: Anything(inner=Thing()), {"inner": "<thing>"}),
        "a function": (lambda: [len], ["<built-in function len>"]),
        "bytes that are not text": (lambda: {"raw": b"\xff"}, {"raw": "/w=="}),
    }.items():
        with case(name):
            made: Any = make
            assert json.loads(read_result(_returning(made))) == expected


def test_object_whose_repr_raises_is_described_by_its_type() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    assert "Broken" in read_result(_returning(Broken))


def test_result_that_contains_itself_is_read_by_model() -> None:
    def pay() -> Any:
        """Pay."""
        rows: list[Any] = [1]
        rows.append(rows)
        return rows

    assert read_result(pay).startswith("[1,")
