"""Whether a run can afford its next request.

Tokens, dollars and seconds are counted over the whole run, branches included. A run that could not pay for
one more step *and* the answer behind it is made to answer now; one that cannot even pay for the answer ends.
A branch pays from its own budget and from those of all runs above it.

Noticing that a run goes in circles.

Each step leaves a mark: what was called and what came of it, and what went wrong if everything did. Three
equal marks in a row, two in turn, or the same error three times mean that nothing new will come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from acorn._formats.content import text_of
from acorn._history.messages import result_content
from acorn.errors import DeclarationError, LimitError
from acorn.models.port import Model, ModelResponse, Price, models_of
from acorn.record import Run
from acorn.types import ToolCall, ToolResult, Usage

_SHARE_OF_ANSWER = 0.1
"""Of the seconds of a run, what is kept for the answer at the least."""

Room = Literal["step", "answer", "none"]


@dataclass(frozen=True)
class Limits:
    """What a run may use; None is no limit."""

    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None

    def __bool__(self) -> bool:
        return (self.tokens, self.cost, self.seconds) != (None, None, None)


@dataclass
class Spent:
    """What a run has used, its branches included."""

    tokens: int = 0
    cost: float = 0.0

    def add(self, tokens: int, cost: float) -> None:
        # Branches count from several threads: nothing may be called between reading a sum and writing it.
        self.tokens += tokens
        self.cost += cost


@dataclass(frozen=True, eq=False)
class Budget:
    """What a run and all its branches may use, and have used."""

    owner: str
    limits: Limits
    spent: Spent


@dataclass
class Meter:
    """What one run's requests cost so far, to guess at the next."""

    last: Usage | None = None
    growth: int = 0
    """Input tokens that the last step added."""
    largest_output: int = 0
    longest_call: float = 0.0
    longest_step: float = 0.0
    step_began: float = 0.0
    spent: Spent = field(default_factory=Spent)

    def count(self, usage: Usage, cost: float | None, seconds: float) -> None:
        """Take in a response."""
        if self.last is not None:
            self.growth = max(0, usage.input_tokens - self.last.input_tokens)
        self.last = usage
        if usage.output_tokens > self.largest_output:
            self.largest_output = usage.output_tokens
        if seconds > self.longest_call:
            self.longest_call = seconds
        self.spent.add(usage.input_tokens + usage.output_tokens, cost or 0.0)

    def room(self, limits: Limits, spent: Spent, *, new_text: int, price: Price | None, now: float) -> tuple[Room, str]:
        """What can still be paid for, and which limit says so; `new_text` is in characters."""
        asked = (self.last.input_tokens + self.last.output_tokens if self.last else 0) + new_text // 4
        answer = Usage(asked, self.largest_output)
        # Behind one more step stands an answer to a longer conversation.
        later = Usage(asked + answer.output_tokens + self.growth, answer.output_tokens)
        least = Usage(asked if self.last else 0)  # before the first response it is a guess, and no reason to give up
        needs: list[tuple[str, float, float, float]] = []
        if limits.tokens is not None:
            left = limits.tokens - spent.tokens
            needs.append(("max_total_tokens", left, least.total_tokens, answer.total_tokens + later.total_tokens))
        if limits.cost is not None and price is not None:
            left_over = limits.cost - spent.cost
            needs.append(("max_cost", left_over, price.of(least), price.of(answer) + price.of(later)))
        if limits.seconds is not None:
            # A request is given no more time than is left, so it may as well be tried.
            with_answer = self.longest_step + self._answer_takes(limits.seconds)
            needs.append(("max_seconds", limits.seconds - now, 0.0, with_answer))
        for name, remains, at_least, _ in needs:
            if remains <= at_least:
                return "none", name
        for name, remains, _, with_a_step in needs:
            if remains < with_a_step:
                return "answer", name
        return "step", ""

    def for_branches(self, limits: Limits, price: Price | None) -> Limits:
        """The tokens and dollars that branches may use, so that an answer can still be asked for behind them."""
        answer = Usage(self.last.total_tokens if self.last else 0, self.largest_output)
        return Limits(
            None if limits.tokens is None else limits.tokens - answer.total_tokens,
            None if limits.cost is None or price is None else limits.cost - price.of(answer),
        )

    def seconds_for_tools(self, limits: Limits, now: float) -> float | None:
        """How long tools may take, so that an answer can still be asked for behind them."""
        if limits.seconds is None:
            return None
        return max(0.001, limits.seconds - now - self._answer_takes(limits.seconds))

    def _answer_takes(self, seconds: float) -> float:
        return max(self.longest_call, _SHARE_OF_ANSWER * seconds)


class Budgets:
    """The budgets that the requests of one run are paid from, its own first."""

    def __init__(self, owner: str, limits: Limits, meter: Meter, above: Iterable[Budget]) -> None:
        self.owner = owner
        self.limits = limits
        self.meter = meter
        self.all = (Budget(owner, limits, meter.spent), *above)
        self.limited = tuple(budget for budget in self.all if budget.limits)

    def check_price(self, model: Model) -> None:
        """A limit in dollars needs prices."""
        limited = [budget.owner for budget in self.all if budget.limits.cost is not None]
        unknown = [each.name for each in models_of(model) if each.price() is None] if limited else []
        if unknown:
            raise DeclarationError(
                f"`{limited[0]}.max_cost` needs prices, and none are known for `{unknown[0]}`; give "
                f"`input_cost_per_token` and `output_cost_per_token` in the model dict, or use `max_total_tokens`."
            )

    def must_answer(self, new: Iterable[Any], model: Model, steps: int, now: float) -> bool:
        """Whether the next request has to end in an answer; `new` are the messages that no model has read yet."""
        # Of a picture nobody knows what it will count; certainly not as many tokens as its data has letters.
        text = sum(len(text_of(message.get("content"))) for message in new if isinstance(message, dict))
        is_due = False
        for budget in self.limited:
            spent = budget.spent
            room, limit = self.meter.room(budget.limits, spent, new_text=text, price=model.price(), now=now)
            if room == "none":
                whose = "its" if spent is self.meter.spent else f"`{budget.owner}`'s"
                raise LimitError(
                    f"`{self.owner}` has no room left under {whose} `{limit}` for an answer after {steps} "
                    f"{'step' if steps == 1 else 'steps'} ({spent.tokens} tokens, ${spent.cost:.4f}, {now:.1f} s); "
                    f"raise the limit, or give the run less to do."
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

    def pay(self, response: ModelResponse, model: Model, run: Run, seconds: float, *, is_aside: bool = False) -> None:
        """Count a response, on the record and in every budget; one aside of it all says nothing of the next."""
        usage = response.usage
        if response.cost is None and (price := model.price()) is not None:
            response.cost = price.of(usage)
        usage.requests = usage.requests or 1  # a model of the user's need not count them
        run.usage.add(usage)
        cost = response.cost
        if cost is not None:
            run.cost = (run.cost or 0.0) + cost
        run.model = response.model or model.name
        if is_aside:
            self.meter.spent.add(usage.total_tokens, cost or 0.0)
        else:
            self.meter.count(usage, cost, seconds)
        for budget in self.all[1:]:
            budget.spent.add(usage.total_tokens, cost or 0.0)


NOTICE = (
    "You are repeating yourself: the last calls were the same and gave the same. Try something else, or finish "
    "with what you have."
)

Mark = tuple[str, str]
"""Of the calls with their results, and of the errors; '' where there is nothing to compare."""
NO_MARK: Mark = ("", "")


def mark(calls: Sequence[ToolCall], results: Sequence[ToolResult], repeatable: Collection[str]) -> Mark:
    """The mark of one step; calls of repeatable tools leave none."""
    counted = {call.id: call for call in calls if call.name not in repeatable}
    if not counted:
        return NO_MARK
    done = [
        f"{call.name} {sorted(call.arguments.items(), key=repr) or call.raw_arguments}" for call in counted.values()
    ]
    came = [result for result in results if result.id in counted]
    errors = [str(result.error) for result in came if result.error is not None]
    failed = _digest(errors) if errors and len(errors) == len(came) else ""
    return _digest(done + [str(result_content(result)) for result in came]), failed


def is_repeating(marks: Sequence[Mark]) -> bool:
    """Whether the last steps repeat each other."""
    if len(marks) < 3:
        return False
    (call, error), before, earlier = marks[-1], marks[-2], marks[-3]
    if error and error == before[1] == earlier[1]:
        return True
    if not call or call != earlier[0]:
        return False
    return call == before[0] or (len(marks) > 3 and bool(before[0]) and before[0] == marks[-4][0])


def _digest(texts: Sequence[str]) -> str:
    data = "\0".join(texts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8).hexdigest()
