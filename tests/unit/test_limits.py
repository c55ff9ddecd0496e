"""Tests of the arithmetic of limits at their boundaries."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from tests.cases import case

from acorn import DeclarationError, Run, Usage
from acorn._machine.budgets import Budget, Budgets, Limits, Meter, Spent
from acorn.models import ModelRequest, ModelResponse, Price
from acorn.testing import ScriptedModel

PRICE = Price(0.01, 0.1)
REQUEST = ModelRequest([], [], 0.7, 100)


class Nothing(BaseModel):
    """No input."""


def meter(*responses: tuple[int, int], seconds: float = 0.0) -> Meter:
    made = Meter()
    for tokens_in, tokens_out in responses:
        made.count(Usage(tokens_in, tokens_out), seconds)
        made.spent.tokens += tokens_in + tokens_out
        made.spent.cost += PRICE.of(Usage(tokens_in, tokens_out))
    return made


def room(made: Meter, now: float = 0.0, new_text: int = 0, **limits: Any) -> tuple[str, str]:
    return made.room(Limits(**limits), made.spent, new_text=new_text, price=PRICE, now=now)


# After (100, 10) and (150, 20), 280 tokens are spent. The next request sends 170, and its answer takes 20. After
# one more step, an answer sends 170 + 20 and the growth of 50, and takes 20 again.
TWICE = [(100, 10), (150, 20)]


def test_remaining_tokens_decide_if_run_may_take_step_or_must_answer_or_stop() -> None:
    for tokens, expected in [
        (280 + 190 + 260, "step"),
        (280 + 190 + 259, "answer"),
        (280 + 171, "answer"),
        (280 + 170, "none"),
        (280, "none"),
    ]:
        with case(tokens):
            assert room(meter(*TWICE), tokens=tokens) == (expected, "" if expected == "step" else "max_total_tokens")


@pytest.mark.parametrize(("over", "expected"), [(1.0, "step"), (-1e-6, "answer")])
def test_remaining_cost_decides_if_run_may_take_step_or_must_answer_or_stop(over: float, expected: str) -> None:
    made = meter(*TWICE)
    needed = PRICE.of(Usage(170, 20)) + PRICE.of(Usage(240, 20))
    assert room(made, cost=made.spent.cost + needed + over)[0] == expected
    assert room(made, cost=made.spent.cost + PRICE.of(Usage(170)) - 1e-6) == ("none", "max_cost")
    assert made.room(Limits(cost=0.0), made.spent, new_text=0, price=None, now=0.0) == ("step", "")


def test_text_added_since_last_request_is_estimated_as_four_characters_per_token() -> None:
    made = meter(*TWICE)
    tokens = 280 + 190 + 260
    assert room(made, tokens=tokens, new_text=3)[0] == "step"
    assert room(made, tokens=tokens, new_text=4)[0] == "answer"


def test_estimated_answer_size_is_size_of_longest_earlier_response() -> None:
    longest_first, longest_last = meter((100, 50), (100, 10)), meter((100, 10), (100, 50))
    assert longest_first.largest_output == longest_last.largest_output == 50


def test_shorter_later_request_does_not_make_estimated_growth_negative() -> None:
    made = meter((1000, 10), (100, 10))
    assert made.growth == 0
    # 1120 are spent; 110 + 10 for an answer, and 120 + 10 for one after a step.
    assert room(made, tokens=1120 + 120 + 130)[0] == "step"
    assert room(made, tokens=1120 + 120 + 129)[0] == "answer"


def test_limit_estimate_before_first_response_still_allows_answer() -> None:
    assert room(Meter(), tokens=10, new_text=4000) == ("answer", "max_total_tokens")
    assert room(Meter(), tokens=0) == ("none", "max_total_tokens")


def test_remaining_time_decides_if_run_may_take_step_or_must_answer_or_stop() -> None:
    made = meter((1, 1), seconds=3.0)
    made.count(Usage(1, 1), 2.0)
    assert made.longest_call == 3.0
    made.longest_step = 4.0
    assert room(made, seconds=20.0, now=13.0) == ("step", "")
    assert room(made, seconds=20.0, now=13.1) == ("answer", "max_seconds")
    assert room(made, seconds=20.0, now=19.9) == ("answer", "max_seconds")
    assert room(made, seconds=20.0, now=20.0) == ("none", "max_seconds")
    # At least a tenth is kept for the answer.
    assert room(made, seconds=40.0, now=32.0) == ("step", "")
    assert room(made, seconds=40.0, now=32.1) == ("answer", "max_seconds")


def test_limits_for_tools_and_branches_exclude_estimated_final_answer() -> None:
    made = meter(*TWICE, seconds=3.0)
    assert made.seconds_for_tools(Limits(seconds=20.0), 5.0) == 12.0
    assert made.seconds_for_tools(Limits(seconds=20.0), 19.0) == 0.001
    assert made.seconds_for_tools(Limits(), 5.0) is None
    left = made.limits_for_branches(Limits(tokens=1000, cost=9.0), PRICE, 0.0)
    assert left.tokens == 1000 - 170 - 20
    assert left.cost == pytest.approx(9.0 - PRICE.of(Usage(170, 20)))
    assert made.limits_for_branches(Limits(cost=9.0), None, 0.0) == Limits()
    assert Meter().limits_for_branches(Limits(tokens=1000), None, 0.0) == Limits(tokens=1000)


def budgets(limits: Limits, *above: Limits) -> Budgets:
    return Budgets("Own", limits, Meter(), [Budget(f"Above{at}", each, Spent()) for at, each in enumerate(above)])


def test_run_must_answer_if_its_own_or_a_parent_limit_is_nearly_reached() -> None:
    model = ScriptedModel([])
    ample, short = Limits(tokens=10_000), Limits(tokens=700)
    for own, above in ((ample, short), (short, ample)):
        made = budgets(own, above)
        made.pay(REQUEST, ModelResponse(usage=Usage(200, 100)), model, Run("r", Nothing()), 0.0)
        assert made.must_answer([], model, 1, 0.0)
    made = budgets(ample, ample)
    made.pay(REQUEST, ModelResponse(usage=Usage(200, 100)), model, Run("r", Nothing()), 0.0)
    assert not made.must_answer([], model, 1, 0.0)


def test_max_cost_of_parent_raises_if_model_has_no_price() -> None:
    with pytest.raises(DeclarationError, match=r"`Above1\.max_cost` cannot be enforced: the prices"):
        budgets(Limits(), Limits(), Limits(cost=1.0)).check_price(ScriptedModel([]))
    budgets(Limits(), Limits(cost=1.0)).check_price(ScriptedModel([], price=PRICE))
    budgets(Limits(tokens=1)).check_price(ScriptedModel([]))


def test_time_limit_counts_as_exceeded_exactly_at_limit() -> None:
    made = budgets(Limits(seconds=5.0))
    assert made.too_late(4.999) is None
    assert made.too_late(5.0) is not None
    assert budgets(Limits()).too_late(1e9) is None


def test_response_usage_is_added_once_to_run_and_each_parent() -> None:
    made = budgets(Limits(), Limits(), Limits())
    model, run = ScriptedModel([], name="scripted", price=PRICE), Run[Any]("r", Nothing())
    made.pay(REQUEST, ModelResponse(usage=Usage(100, 10), model="served"), model, run, 1.0)
    assert (run.model, run.usage.requests) == ("served", 1)
    assert run.cost == pytest.approx(2.0)
    made.pay(REQUEST, ModelResponse(usage=Usage(100, 10, requests=3), cost=5.0), model, run, 4.0)
    assert (run.model, run.usage.requests) == ("scripted", 4)
    assert run.cost == pytest.approx(7.0)
    assert made.meter.longest_call == 4.0
    assert [each.spent.tokens for each in made.all] == [220] * 3
    assert [each.spent.cost for each in made.all] == pytest.approx([7.0] * 3)
