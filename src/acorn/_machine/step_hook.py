"""The step that `on_start` or `on_step` sees and changes."""

from __future__ import annotations

from typing import TypeVar

from acorn._formats.json import safe_repr, to_json_text
from acorn._machine.plan import Plan
from acorn._machine.requests import RequestBuilder
from acorn._machine.state import State
from acorn.errors import AcornError, DeclarationError
from acorn.models.port import ModelResponse
from acorn.record import Run
from acorn.step import Step
from acorn.types import ToolCall, ToolResult, Usage

T = TypeVar("T")


class StepHook:
    """The step of the hook that runs at the moment."""

    def __init__(self, plan: Plan, run: Run, state: State, builder: RequestBuilder) -> None:
        self.run = run
        self._spec, self._state, self._builder = plan.spec, state, builder
        self.step: Step | None = None
        """The step, while a hook has it."""

    def open(self) -> Step:
        """Return the step for the hook."""
        state, toolset = self._state, self._builder.toolset
        if self.step is None:
            self.step = Step(
                self._spec,
                self.run,
                state.response or ModelResponse(usage=Usage()),  # `on_start` runs before the first response.
                list(state.calls),  # A copy, because the hook may change the list.
                [state.results[call.id] for call in state.calls],
                toolset.tools,
                toolset.branches,
                state.settings,
            )
        return self.step

    def close(self, name: str, returned: object) -> Step | None:
        """Return the step as the hook left it. Raise an error if the hook returned another value."""
        step, self.step = self.step, None
        if returned is not None and returned is not step:
            raise DeclarationError(
                f"`{self._spec.owner}.{name}` must return the step or nothing, got {safe_repr(returned)[:120]}."
            )
        return step

    def take_results(self, step: Step) -> list[ToolResult]:
        """Adopt the calls of a closed step, and return its results."""
        results = _check_items(step.tool_results, ToolResult, "tool_results")
        self._state.calls = _check_items(step.tool_calls, ToolCall, "tool_calls")
        return results

    def results(self) -> list[ToolResult]:
        """Return the results of the current step, as the hook has left them so far."""
        if self.step is not None:
            return _check_items(self.step.tool_results, ToolResult, "tool_results")
        return list(self._state.results.values())

    def valid_results(self) -> list[ToolResult]:
        """Return the results of the current step. Ignore the hook's changes if they are invalid."""
        try:
            return self.results()
        except AcornError:
            return list(self._state.results.values())


def _check_items(values: object, kind: type[T], name: str) -> list[T]:
    """Raise an error if a hook replaced the list of a step by another value."""
    if isinstance(values, list):
        for value in values:
            if not isinstance(value, kind):
                break
        else:
            return values
    raise AcornError(f"`step.{name}` must stay a list of {kind.__name__}, got {to_json_text(values)[:120]}.")
