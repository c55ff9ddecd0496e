"""Limits of a run: the maximum tokens, dollars and seconds, and the detection of repeated steps.

Before each request, acorn estimates the cost of one more step and of the final answer after the step. If the remaining
budget does not cover both, the run must answer now. If the budget does not even cover the answer, the run ends with a
`LimitError`. The usage of a branch counts against its own budget and against the budgets of all its parent runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from acorn._formats.json import text_of
from acorn._history.compaction import text_length
from acorn.errors import DeclarationError, LimitError
from acorn.journal import ResultMessage
from acorn.models.port import Model, ModelResponse, Price, models_of
from acorn.models.request import ModelRequest
from acorn.record import Run
from acorn.types import ToolCall, ToolResult, Usage, is_json_object

_ANSWER_SHARE = 0.1
"""The minimum share of `max_seconds` that is reserved for the answer."""

Room = Literal["step", "answer", "none"]
"""The next requests that the budget covers: another step and the answer, only the answer, or none."""


@dataclass(frozen=True)
class Limits:
    """The maximum tokens, dollars and seconds of a run. None means no limit."""

    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None


_UNLIMITED = Limits()


@dataclass
class Spent:
    """The tokens and dollars that a run and its branches have used."""

    tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True, eq=False)
class Budget:
    """The limits of a run, and the tokens and dollars that the run and its branches have used."""

    owner: str
    limits: Limits
    spent: Spent


@dataclass
class Meter:
    """Measurements of the last requests of a run, from which acorn estimates the cost of the next request."""

    last: Usage | None = None
    growth: int = 0
    """The number of input tokens that the last step added."""
    largest_output: int = 0
    longest_call: float = 0.0
    longest_step: float = 0.0
    step_began: float = 0.0
    spent: Spent = field(default_factory=Spent, compare=False)
    """The journal contains the usage, so a saved state does not."""

    def count(self, usage: Usage, seconds: float) -> None:
        """Record the token usage and the duration of a response."""
        if self.last is not None:
            self.growth = max(0, usage.input_tokens - self.last.input_tokens)
        self.last = usage
        self.largest_output = max(self.largest_output, usage.output_tokens)
        self.longest_call = max(self.longest_call, seconds)

    def room(self, limits: Limits, spent: Spent, *, new_text: int, price: Price | None, now: float) -> tuple[Room, str]:
        """Return the next requests that the budget covers, and the name of the limit that allows no more requests.

        The name is an empty string if all limits allow another step. `new_text` is the number of characters that the
        model has not received yet.
        """
        next_input = (self.last.input_tokens + self.last.output_tokens if self.last else 0) + new_text // 4
        answer = Usage(next_input, self.largest_output)
        # After one more step, the answer has a longer conversation as its input.
        later = Usage(next_input + answer.output_tokens + self.growth, answer.output_tokens)
        # Before the first response this is only a guess, which must not end the run.
        least = Usage(next_input if self.last else 0)
        needs: list[tuple[str, float, float, float]] = []
        if limits.tokens is not None:
            tokens_left = limits.tokens - spent.tokens
            with_step = answer.total_tokens + later.total_tokens
            needs.append(("max_total_tokens", tokens_left, least.total_tokens, with_step))
        if limits.cost is not None and price is not None:
            cost_left = limits.cost - spent.cost
            needs.append(("max_cost", cost_left, price.of(least), price.of(answer) + price.of(later)))
        if limits.seconds is not None:
            # The timeout of a request is the remaining time, so one more request is always possible.
            with_answer = self.longest_step + self._answer_seconds(limits.seconds)
            needs.append(("max_seconds", limits.seconds - now, 0.0, with_answer))
        for name, left, for_answer, _ in needs:
            if left <= for_answer:
                return "none", name
        for name, left, _, for_step in needs:
            if left < for_step:
                return "answer", name
        return "step", ""

    def limits_for_branches(self, limits: Limits, price: Price | None, now: float) -> Limits:
        """Return the limits that apply to branches of this run.

        They are lower than the limits of the run, so that enough budget remains for the answer of the run.
        """
        answer = Usage(self.last.total_tokens if self.last else 0, self.largest_output)
        return Limits(
            None if limits.tokens is None else limits.tokens - answer.total_tokens,
            None if limits.cost is None or price is None else limits.cost - price.of(answer),
            self.seconds_for_tools(limits, now),
        )

    def seconds_for_tools(self, limits: Limits, now: float) -> float | None:
        """Return the maximum seconds for tool calls that start now, or None if the run has no time limit.

        The rest of the remaining time is reserved for the answer of the run.
        """
        if limits.seconds is None:
            return None
        return max(0.001, limits.seconds - now - self._answer_seconds(limits.seconds))

    def _answer_seconds(self, seconds: float) -> float:
        return max(self.longest_call, _ANSWER_SHARE * seconds)


class Budgets:
    """The budgets that the usage of one run counts against: its own budget, then the budgets of its parent runs."""

    def __init__(self, owner: str, limits: Limits, meter: Meter, above: Sequence[Budget]) -> None:
        self.owner = owner
        self.limits = limits
        self.meter = meter
        self.all = (Budget(owner, limits, meter.spent), *above)
        is_limited = bool(above) or limits != _UNLIMITED
        self.limited = tuple([each for each in self.all if each.limits != _UNLIMITED]) if is_limited else ()
        """The budgets that have a limit."""

    def check_price(self, model: Model) -> None:
        """Raise `DeclarationError` if a `max_cost` applies to the run but the price of the model is unknown."""
        limited = [budget.owner for budget in self.limited if budget.limits.cost is not None]
        unknown = [each.name for each in models_of(model) if each.price() is None] if limited else []
        if unknown:
            raise DeclarationError(
                f"`{limited[0]}.max_cost` cannot be enforced: the prices of `{unknown[0]}` are unknown. Set "
                f"`input_cost_per_token` and `output_cost_per_token` in the model dict, or use `max_total_tokens`."
            )

    def must_answer(self, new: Iterable[object], model: Model, steps: int, now: float) -> bool:
        """Return True if the budgets cover only one more request, which must therefore end in an answer.

        Raise `LimitError` if a budget does not even cover the answer. `new` contains the messages that the model has
        not received yet.
        """
        # The data of an image does not count: its tokens are unknown, but far fewer than its characters.
        text = sum(len(text_of(message.get("content"))) for message in new if is_json_object(message))
        is_due = False
        for budget in self.limited:
            spent = budget.spent
            room, limit = self.meter.room(budget.limits, spent, new_text=text, price=model.price(), now=now)
            if room == "none":
                whose = "its" if spent is self.meter.spent else f"`{budget.owner}`'s"
                raise LimitError(
                    f"`{self.owner}` has no room left under {whose} `{limit}` for an answer after {steps} "
                    f"{'step' if steps == 1 else 'steps'} ({spent.tokens} tokens, ${spent.cost:.4f}, {now:.1f} s). "
                    f"Raise the limit, or give the run less to do."
                )
            is_due = is_due or room == "answer"
        return is_due

    def too_late(self, now: float) -> LimitError | None:
        """Return the `LimitError` for a request that failed after `max_seconds` had passed.

        Return None if the run has no time limit, or if time is left, because the request then failed for another
        reason.
        """
        seconds = self.limits.seconds
        if seconds is None or now < seconds:
            return None
        return LimitError(
            f"`{self.owner}` used up its `max_seconds` of {seconds:g} during a request to the model. Raise the "
            f"limit, or use a faster model."
        )

    def pay(self, request: ModelRequest, response: ModelResponse, model: Model, run: Run, took: float | None) -> None:
        """Add the usage and the cost of a response to the run and to all its budgets.

        `took` is the duration of the request in seconds. It is None for a summary, whose usage does not influence the
        estimate for the next request.
        """
        # The run owns the copy, and a custom model may leave the number of requests at 0.
        usage = response.usage = replace(response.usage, requests=response.usage.requests or 1)
        if usage.input_tokens <= 0 or usage.output_tokens < 0:
            if usage.total_tokens <= 0:
                # The provider has reported no usage, so the cost that LiteLLM computes is 0.
                response.cost = response.cost or None
            usage = response.usage = _estimate(usage, request, response)
        if took is not None:
            self.meter.count(usage, took)
        if response.cost is None and (price := model.price()) is not None:
            response.cost = price.of(usage)
        add_usage(run, usage, response.cost)
        cost, tokens = response.cost, usage.total_tokens
        for budget in self.all:
            spent = budget.spent  # Several threads add the usage of branches, so each sum is one statement.
            spent.tokens += tokens
            spent.cost += cost or 0.0
        run.model = response.model or model.name


def _estimate(usage: Usage, request: ModelRequest, response: ModelResponse) -> Usage:
    """Return a copy of the usage of a response, with an estimate from the texts for each number that is missing."""
    sent, received = usage.input_tokens, usage.output_tokens
    if sent <= 0:
        sent = (request.total(text_length) + len(request.tools_json())) // 4 + 1
    if received <= 0:
        texts = [str(text) for call in response.tool_calls for text in (call.name, call.arguments)]
        texts += [response.content, response.reasoning or "", response.refusal or ""]
        received = sum(map(len, texts)) // 4 + 1
    return replace(usage, input_tokens=sent, output_tokens=received, is_estimated=True)


def add_usage(run: Run, usage: Usage, cost: float | None) -> None:
    """Add the usage and the cost of a response or a branch to the record of a run."""
    run.usage.add(usage)
    if cost is not None:
        run.cost = (run.cost or 0.0) + cost


REPEATED = (
    "You are repeating yourself: the last calls and their results were the same. Try something else, or finish "
    "with what you have."
)

StepDigest = tuple[str, str]
"""Two hashes of one step: of its tool calls with their results, and of its errors. Empty if nothing is comparable."""
NO_DIGEST: StepDigest = ("", "")


def digest_step(
    calls: Sequence[ToolCall],
    results: Sequence[ToolResult],
    messages: Sequence[ResultMessage],
    repeatable: Collection[str],
) -> StepDigest:
    """Return two hashes of one step, which later show if another step was the same.

    The first hash is computed from the tool calls and their results, the second from the errors. Calls of tools with
    `repeatable=True` are ignored. `messages` are the result messages that the model receives.
    """
    counted = {call.id: call for call in calls if call.name not in repeatable}
    if not counted:
        return NO_DIGEST
    texts = [
        f"{call.name} {sorted(call.arguments.items(), key=repr) or call.raw_arguments}" for call in counted.values()
    ]
    errors: list[str] = []
    count = 0
    for result, message in zip(results, messages, strict=True):
        if result.id in counted:
            count += 1
            texts.append(str(message.content))
            if result.error is not None:
                errors.append(str(result.error))
    if len(errors) < count:  # Only a step in which every call failed is compared by its errors.
        errors = []
    first, second = [
        hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest() if parts else ""
        for parts in (texts, errors)
    ]
    return first, second


def is_repeating(digests: Sequence[StepDigest]) -> bool:
    """Return True if the last steps repeat each other.

    That means three equal steps, two steps that alternate twice, or the same error in three steps.
    """
    if len(digests) < 3:
        return False
    (step, error), before, earlier = digests[-1], digests[-2], digests[-3]
    if error and error == before[1] == earlier[1]:
        return True
    if not step or step != earlier[0]:
        return False
    return step == before[0] or (len(digests) > 3 and bool(before[0]) and before[0] == digests[-4][0])
