"""The calls of the step under way: what each means, which may be performed now, and the step that the hook sees.

Pure, and without a word on what comes next: `run.py` decides that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from acorn._json import words_of
from acorn._loop.asks import Ask, AskBranch, AskTool
from acorn._loop.branch import branch_input
from acorn._loop.branch_context import BranchContext
from acorn._loop.branching import Parent
from acorn._loop.plan import BranchTool, Plan
from acorn._loop.reply import prepare
from acorn._loop.state import State
from acorn._loop.wire_history import WireHistory
from acorn._sampling import adopted
from acorn.errors import AcornError
from acorn.models.port import ModelResponse
from acorn.record import Run
from acorn.step import Step
from acorn.types import ToolCall, ToolResult, Usage


class Calls(Parent):
    """A run with the calls of its step."""

    def __init__(self, plan: Plan, run: Run[Any], state: State | None = None, wire: WireHistory | None = None) -> None:
        super().__init__(plan, run, state, wire)
        self._prepared: dict[str, AskTool | BranchTool] = {}
        """The calls of this step that can be performed, by their ids."""

    def _prepare(self, now: float) -> bool:
        """Find what each open call of the step means; one that cannot be performed has its result at once.

        Whether there are tools to call.
        """
        state, done = self.state, self.state.results
        was_cut = state.response is not None and state.response.stop_reason == "length"
        prepared: dict[str, AskTool | BranchTool] = {}
        self._prepared = prepared
        has_tools = False
        for call in state.calls:
            if call.id in done:
                continue
            found = prepare(call, self.toolset, self.run, was_cut and self._is_half(call), self.plan.start)
            if isinstance(found, AskTool):
                has_tools = True
                prepared[call.id] = found
            elif isinstance(found, ToolResult):
                self._note_result(found, None)
            else:
                prepared[call.id] = found
                if not found.inherits and call.id not in state.branches:
                    self._bear(found, call, {}, now)
        return has_tools

    def _is_half(self, call: ToolCall) -> bool:
        """Whether the token limit fell into these arguments: half an object, or nothing yet."""
        return call is self.state.calls[-1] and not call.arguments

    def _open_tools(self) -> list[str]:
        """The calls that come before the branches and have no result yet."""
        done = self.state.results
        return [
            call_id
            for call_id, made in self._prepared.items()
            if call_id not in done and (isinstance(made, AskTool) or not made.inherits)
        ]

    def _list_tools(self, now: float) -> list[Ask]:
        """Those that may run at the same time, in the order of the response; `parallel=False` stands alone."""
        if len(self._prepared) == 1 and not self._is_timed:  # had it returned, we would not be asked
            (only,) = self._prepared.values()
            if isinstance(only, AskTool):
                return [only]
        limit = self.state.meter.seconds_for_tools(self.plan.limits, now) if self._is_timed else None
        asks: list[Ask] = []
        for call_id in self._open_tools():
            made = self._prepared[call_id]
            called = made.tool if isinstance(made, AskTool) else self.toolset.named[made.name]
            is_alone = not called.options.parallel
            if is_alone and asks:
                break
            if isinstance(made, BranchTool):
                asks.append(self._branch_ask(call_id, self.state.branches[call_id], made))
            else:
                asks.append(made if limit is None else replace(made, seconds=min(made.seconds, limit)))
            if is_alone:
                break
        return asks

    def _note_result(self, result: ToolResult, began: float | None) -> None:
        self.state.results[result.id] = result
        self.transcript.returned(result, began)

    # Branches that the model called

    def _bear(self, branch: BranchTool, call: ToolCall, begun: Mapping[str, str], now: float) -> None:
        """Give birth to a branch that the model called, or give the model the error to read."""
        try:
            given = branch_input(branch.spec.input, branch.name, call)
            place = f"{self.run.steps}/{call.id}"
            context = self.birth(
                branch.name, branch.spec.input.is_empty, given, place, now, begun, call.id, inherits=branch.inherits
            )
        except Exception as error:  # an input's validators are the user's
            self._note_result(ToolResult(call.id, call.name, error=words_of(error)), None)
        else:
            self.state.branches[call.id] = context

    def _list_branches(self) -> Iterator[Ask]:
        for call_id, context in self.state.branches.items():
            branch = self._prepared.get(call_id)
            if not isinstance(branch, BranchTool):
                raise AcornError(
                    f"The branch `{context.name}` of the saved run is not declared on `{self.spec.owner}` any more; "
                    f"declare it to go on."
                )
            yield self._branch_ask(call_id, context, branch)

    def _branch_ask(self, call_id: str, context: BranchContext, branch: BranchTool) -> AskBranch:
        call = next(call for call in self.state.calls if call.id == call_id)
        return AskBranch(f"branch {self.run.steps} {call_id}", call, context, branch.make)

    # The step

    def _the_step(self) -> Step:
        state = self.state
        if self._step is None:
            self._step = Step(
                self.spec,
                self.run,
                state.response or ModelResponse(usage=Usage()),  # before the first there is nothing to see
                list(state.calls),  # whatever a hook makes of them, ours are needed until it has returned
                self._ordered(),
                self.toolset.tools,
                self.toolset.branches,
                state.settings,
            )
        return self._step

    def _ordered(self) -> list[ToolResult]:
        """All results in the order of the calls."""
        found = self.state.results
        return [found[call.id] for call in self.state.calls]

    def _adopt(self, step: Step) -> None:
        """Take over the settings and tools that the hook changed."""
        state = self.state
        if changes := step.changes():
            state.settings = adopted(state.settings, changes)
            if "model" in changes or isinstance(self.setting("model"), list | tuple):  # which may say each its own
                self._use_model()
            self._note_settings()
        chosen = step.chosen_tools()
        if chosen != self.toolset.tools:
            state.tools = [tool.name for tool in chosen]
        elif not step._removed:
            return
        state.removed += step._removed
        self._use_tools(chosen)
