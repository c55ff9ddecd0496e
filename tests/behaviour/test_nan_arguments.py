"""Tests of NaN and Infinity in the arguments of a tool: the model reads a tool error, and no approval is skipped."""

from decimal import Decimal
from typing import Any

from pydantic import BaseModel
from tests.behaviour.small_programs import Plain, read_after, read_result
from tests.cases import case

from acorn import module, tool
from acorn.testing import ScriptedModel, call, finish


def test_nan_and_infinity_in_arguments_are_tool_errors() -> None:
    seen: list[Any] = []

    class Row(BaseModel):
        amount: float

    def pay(amount: float) -> str:
        """Pay."""
        seen.append(amount)
        return "paid"

    def pay_all(amounts: list[float]) -> str:
        """Pay."""
        seen.append(amounts)
        return "paid"

    def pay_row(row: Row) -> str:
        """Pay."""
        seen.append(row)
        return "paid"

    def pay_any(amount: Any) -> str:
        """Pay."""
        seen.append(amount)
        return "paid"

    def pay_either(amount: float | str | None = None) -> str:
        """Pay."""
        seen.append(amount)
        return "paid"

    def pay_decimal(amount: Decimal) -> str:
        """Pay."""
        seen.append(amount)
        return "paid"

    def pay_named(**amounts: float) -> str:
        """Pay."""
        seen.append(amounts)
        return "paid"

    texts: list[tuple[Any, str]] = [
        (function, text.replace("X", value))
        for value in ("NaN", "Infinity", "-Infinity", "1e999", '"NaN"', '"inf"', '"-Infinity"')
        for function, text in [
            (pay, '{"amount": X}'),
            (pay_all, '{"amounts": [1, X]}'),
            (pay_row, '{"row": {"amount": X}}'),
            (pay_decimal, '{"amount": X}'),
            (pay_named, '{"a": X}'),
        ]
    ]
    texts += [
        (function, f'{{"amount": {value}}}')
        for value in ("NaN", "Infinity", "-Infinity", "1e999", "[NaN]", '{"a": Infinity}')
        for function in (pay_any, pay_either)
    ]
    for function, text in texts:
        with case(function.__name__, text):
            seen.clear()
            read = read_after(_raw(function.__name__, text), function)[0]
            assert read.startswith("Tool error: ")
            assert seen == []


def _raw(name: str, arguments: str) -> Any:
    made = call(name)
    made.calls[0].arguments = arguments
    return made


def test_message_about_nan_names_the_argument() -> None:
    def pay(order: str, amount: float) -> str:
        """Pay."""
        return "paid"

    (read,) = read_after(_raw("pay", '{"order": "a", "amount": NaN}'), pay)
    assert "`amount`" in read
    assert "`order`" not in read


def test_text_argument_that_says_nan_is_accepted() -> None:
    def pay(amount: str) -> str:
        """Pay."""
        return amount

    assert read_result(pay, amount="NaN") == "NaN"


def test_nan_never_passes_approval_function() -> None:
    asked: list[Any] = []
    paid: list[float] = []

    @tool(approval=lambda arguments: arguments["amount"] > 100)
    def pay(amount: float) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    class Desk(Plain):
        def on_human(self, request: Any) -> Any:
            asked.append(request)
            return False

    for text in ("NaN", "Infinity", "-Infinity", '"nan"', "1e999"):
        with case(text):
            paid.clear()
            model = ScriptedModel([_raw("pay", f'{{"amount": {text}}}'), finish("done")])
            assert Desk(model=model, tools=[pay])() == "done"
            assert str(model.requests[1].messages[-1]["content"]).startswith("Tool error: ")
            assert paid == []
            assert asked == []


def test_finite_amounts_pass_or_ask_as_approval_function_says() -> None:
    asked: list[Any] = []
    paid: list[float] = []

    @tool(approval=lambda arguments: arguments["amount"] > 100)
    def pay(amount: float) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    class Desk(Plain):
        def on_human(self, request: Any) -> Any:
            asked.append(request.arguments)
            return True

    model = ScriptedModel([call("pay", amount=99.0) & call("pay", amount=101.0), finish("done")])
    assert Desk(model=model, tools=[pay])() == "done"
    assert asked == [{"amount": 101.0}]
    assert sorted(paid) == [99.0, 101.0]


def test_infinite_default_of_parameter_is_accepted() -> None:
    def pay(limit: float = float("inf")) -> str:
        """Pay."""
        return f"up to {limit}"

    assert read_result(pay) == "up to inf"


def test_nan_in_arguments_of_tool_with_schema_branch_and_agent_is_tool_error() -> None:
    class Payment(BaseModel):
        amount: float
        limit: float = float("inf")

    class Branch(module[Payment, str]):
        """Pay."""

    class Payer(module[Payment, str]):
        """Pay."""

    @tool(schema={"type": "object", "properties": {"amount": {}}, "required": ["amount"]})
    def pay(amount: object) -> str:
        """Pay."""
        raise AssertionError("the tool must not be called")

    class Outer(Plain):
        branches = {"branch": Branch}
        tools = [pay, Payer]

    for name in ("pay", "branch", "payer"):
        for value in ("NaN", "Infinity", "1e999", *(['"nan"'] if name != "pay" else [])):
            with case(name, value):
                model = ScriptedModel([_raw(name, f'{{"amount": {value}}}'), finish("done")])
                assert Outer(model=model)() == "done"
                (read,) = [str(each["content"]) for each in model.requests[1].messages if each["role"] == "tool"]
                assert read.startswith("Tool error: ")
                assert "no tool" not in read
                assert "amount" in read or "not valid JSON" in read
