"""What a run hands to the branches that are born in it, and takes back from them.

A branch is data (`branch_context.py`); here the run that it is born in gives it what it is born with, and makes
the machine of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Self, TypeVar

from pydantic import BaseModel

from acorn._declare.generics import check_deps
from acorn._declare.settings import merge_settings
from acorn._declare.tools.kinds import Tool
from acorn._formats.json import to_json_text
from acorn._history import messages
from acorn._machine.inheritance import conversation, inherited_spec
from acorn._machine.limits import Budget, Limits
from acorn._machine.plan import Plan, named_tools
from acorn._machine.requests import RequestBuilder
from acorn._machine.state import BranchContext, branch_id
from acorn._record.saved_form import restored
from acorn.errors import AcornError, BranchError
from acorn.journal import BranchFinished, BranchStarted
from acorn.record import Message, Run
from acorn.types import JsonObject, ToolCall, ToolResult, Usage

T = TypeVar("T")


class Branches(RequestBuilder):
    """A run as its branches know it."""

    def birth(
        self,
        name: str,
        is_empty: bool,
        given: BaseModel,
        place: str,
        now: float,
        begun: Mapping[str, str] = {},
        call_id: str | None = None,
        inside: str | None = None,
        inherits: bool = True,
        caller_depth: int = 0,
    ) -> BranchContext:
        """What a branch of this run is born with, as the run is now.

        Code that begins it in a branch of this run is deeper than the run itself, and is counted where it is.
        """
        above = self.context
        depth, path = (above.depth + 1, f"{above.path}/{name}") if above else (1, name)
        depth = max(depth, caller_depth + 1)
        if depth > self.spec.max_depth:
            raise BranchError(
                f"`{name}` would be branch {depth} levels deep, and `max_depth` of `{self.spec.owner}` is "
                f"{self.spec.max_depth}; finish without it, or raise `max_depth`."
            )
        limits, meter = self.plan.limits, self.state.meter
        settings, tools = self._as_changed()
        left = replace(meter.for_branches(limits, self.model.price()), seconds=meter.seconds_for_tools(limits, now))
        history: list[Message] = []
        if inherits:
            turn = self.transcript.turn if self.state.phase in ("tools", "branches", "step", "judge") else None
            book = self.transcript.book
            at = None if turn is None else messages.find_turn(book.messages, turn)
            copies = self.wire.copies_of(book.messages, is_ours=book.is_ours)
            history = conversation(copies, at, self._results_so_far(), begun)
        return BranchContext(
            branch_id(self.run.id, place),
            self.run.id,
            name,
            path,
            depth,
            place,
            call_id,
            inside,
            given,
            has_input=not is_empty,
            inherits=inherits,
            history=tuple(history),
            openings=self.openings if inherits else (),
            settings=dict(settings),
            tools=tuple([tool.name for tool in tools]) if inherits else (),
            limits=left,
        )

    def branch_plan(self, context: BranchContext, plan: Plan) -> Plan:
        """The plan of a branch's instance, with all that it has from this run."""
        spec = inherited_spec(
            plan.spec, self.spec, context.settings, context.depth, context.limits.seconds, inherits=context.inherits
        )
        left = Limits(context.limits.tokens, context.limits.cost)
        budget = Budget(self.spec.owner, left, self.state.meter.spent)
        known = {tool.name: tool for tool in (*self.toolset.tools, *self._as_changed()[1])}
        deps = self.run.deps if plan.deps is None else plan.deps
        check_deps(plan.spec.owner, plan.deps_type, deps)
        return replace(
            plan,
            spec=spec,
            context=context,
            above=(budget, *self.budgets.all[1:]),
            inherited=named_tools(tuple(known.values()), context.tools) if context.inherits else (),
            deps=deps,
            on_human=plan.on_human or self.plan.on_human,
        )

    def branch(self, context: BranchContext, plan: Plan) -> Self:
        """The run of a branch that was born here."""
        whole, given = self.branch_plan(context, plan), context.input
        if not isinstance(given, BaseModel):  # it was saved
            given = restored(plan.spec.input.schema, given, "input of a branch")
        run: Run = Run(context.run_id, given, deps=whole.deps, branch=context.path)
        return type(self)(whole, run, wire=self.wire.fork(context.history) if context.inherits else None)

    def branch_begun(self, context: BranchContext, now: float) -> None:
        journal = self.journal
        journal.entries.append(
            BranchStarted(self.run.id, journal.step, now, context.run_id, context.path, context.call_id, context.inside)
        )

    def branch_ended(self, context: BranchContext, child: Run, result: ToolResult, now: float) -> None:
        """What a branch used is part of what the run used."""
        journal = self.journal
        journal.entries.append(
            BranchFinished(
                self.run.id,
                journal.step,
                now,
                child.id,
                context.path,
                context.call_id,
                child.stop_reason,
                child.seconds,
                messages.result_content(result),
                result.error,
                child.usage.copy(),
                child.cost,
            )
        )
        self._count(child.usage, child.cost)

    def count_open_branches(self) -> None:
        """What branches that had not ended when the run did have used by then was used all the same: count it, once."""
        if self.is_counted or not self.is_over:
            return
        self.is_counted = True
        for usage, cost in used_below(self.run):
            self._count(usage, cost)

    def _count(self, usage: Usage, cost: float | None) -> None:
        self.run.usage.add(usage)
        if cost is not None:
            self.run.cost = (self.run.cost or 0.0) + cost

    # As the hook has left it by now

    def _results_so_far(self) -> list[ToolResult]:
        """The results of the step under way, as `on_step` has left them by now."""
        if self._step is not None:
            return checked_results(self._step.tool_results)
        return list(self.state.results.values())

    def _results_until_now(self) -> list[ToolResult]:
        """The same; of the hook's results only if they are some, whatever the user has made of them."""
        try:
            return self._results_so_far()
        except AcornError:
            return list(self.state.results.values())

    def _as_changed(self) -> tuple[JsonObject, tuple[Tool, ...]]:
        """The settings that were changed during the run, and the tools, as `on_step` has left them by now."""
        if self._step is None:
            return self.state.settings, self.toolset.tools
        return merge_settings(self.state.settings, self._step.changes()), self._step.chosen_tools()


def used_below(run: Run) -> Iterator[tuple[Usage, float | None]]:
    """What the branches of a run have used that it does not count yet, since they have not ended for it."""
    if not run.branches:
        return
    ended = {entry.child_id for entry in run.journal.entries if isinstance(entry, BranchFinished)}
    for child in run.branches:
        if child.id not in ended:
            yield child.usage, child.cost
            if child.stop_reason is None:  # saved on its way, and never gone on with
                yield from used_below(child)


def checked_results(results: Any) -> list[ToolResult]:
    """The results of a step, as a hook left them."""
    return _checked(results, ToolResult, "tool_results")


def checked_calls(calls: Any) -> list[ToolCall]:
    """The calls of a step, as a hook left them."""
    return _checked(calls, ToolCall, "tool_calls")


def _checked(values: Any, kind: type[T], name: str) -> list[T]:
    if isinstance(values, list):
        for each in values:
            if not isinstance(each, kind):
                break
        else:
            return values
    raise AcornError(f"`step.{name}` must stay a list of {kind.__name__}, got {to_json_text(values)[:120]}.")
