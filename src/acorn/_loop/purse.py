"""What a run pays with: its own budget and those of all runs above it.

`limits.py` says what can still be afforded; here it is counted, and said in words when it is not enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from acorn._loop.limits import Budget, Limits, Meter
from acorn.errors import DeclarationError, LimitError
from acorn.models.port import Model, ModelResponse
from acorn.record import Run


class Purse:
    """The budgets that the requests of one run are paid from, its own first."""

    def __init__(self, owner: str, limits: Limits, meter: Meter, above: Iterable[Budget]) -> None:
        self.owner = owner
        self.limits = limits
        self.meter = meter
        self.budgets = (Budget(owner, limits, meter.spent), *above)
        self.limited = tuple(budget for budget in self.budgets if budget.limits)

    def check_price(self, model: Model) -> None:
        """A limit in dollars needs prices."""
        limited = [budget.owner for budget in self.budgets if budget.limits.cost is not None]
        if limited and model.price() is None:
            raise DeclarationError(
                f"`{limited[0]}.max_cost` needs prices, and none are known for `{model.name}`; give "
                f"`input_cost_per_token` and `output_cost_per_token` in the model dict, or use `max_total_tokens`."
            )

    def must_answer(self, new: Iterable[Any], model: Model, steps: int, now: float) -> bool:
        """Whether the next request has to end in an answer; `new` are the messages that no model has read yet."""
        text = sum(len(str(message.get("content") or "")) for message in new if isinstance(message, dict))
        is_due = False
        for budget in self.limited:
            spent = budget.spent
            room, limit = self.meter.room(budget.limits, spent, new_text=text, price=model.price(), now=now)
            if room == "none":
                whose = "its" if spent is self.meter.spent else f"`{budget.owner}`'s"
                raise LimitError(
                    f"`{self.owner}` has no room left under {whose} `{limit}` for an answer after {steps} "
                    f"steps ({spent.tokens} tokens, ${spent.cost:.4f}, {now:.1f} s); raise the limit, or give the run "
                    f"less to do."
                )
            is_due = is_due or room == "answer"
        return is_due

    def too_late(self, now: float) -> LimitError | None:
        """The error for a request that failed because the time was up; None where it was not."""
        seconds = self.limits.seconds
        if seconds is None or now < seconds:
            return None
        return LimitError(
            f"`{self.owner}` used up its `max_seconds` of {seconds:g} while the model was asked; raise the "
            f"limit, or use a faster model."
        )

    def pay(self, response: ModelResponse, model: Model, run: Run[Any], seconds: float) -> None:
        """Count a response, on the record and in every budget."""
        if response.cost is None and (price := model.price()) is not None:
            response.cost = price.of(response.usage)
        response.usage.requests = response.usage.requests or 1  # a model of the user's need not count them
        run.usage.add(response.usage)
        if response.cost is not None:
            run.cost = (run.cost or 0.0) + response.cost
        run.model = response.model or model.name
        self.meter.count(response.usage, response.cost, seconds)
        for budget in self.budgets[1:]:
            budget.spent.add(response.usage.total_tokens, response.cost or 0.0)
