"""Branches that user code starts in a tool or a hook with `self.branch(...)` or `self.branch_all(...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from acorn._base.interrupts import StopSignal
from acorn._call.plan import plan_for
from acorn._declare.module_base import AgentBase
from acorn._declare.settings import COUNT
from acorn._declare.spec_cache import Branch, active_overrides, check_branch, instance_of
from acorn._drive.async_driver import adrive
from acorn._drive.bridge import SYNC, Bridge, run_concurrently
from acorn._drive.driver import run_inline
from acorn._drive.sync_driver import drive
from acorn._drive.tree import Tree, current_machine, tree_of
from acorn._formats.json import describe_error, excerpt
from acorn._machine.branches import unfinished_message
from acorn._machine.state import BranchContext
from acorn.errors import AcornError, BranchError, DeclarationError
from acorn.record import CallSite, call_site_of
from acorn.types import JsonObject, Unfinished, is_list_or_tuple, is_mapping


def branch_all(
    agent: AgentBase, branches: Sequence[tuple[Branch, Mapping[str, Any]]], concurrency: int | None
) -> list[Any]:
    """Run branches concurrently, and return a list with the output of each branch, in order.

    The list contains a `BranchError` for each failed branch.
    """
    _check_branches(branches, concurrency)
    # Create all ids before the first branch starts, because threads start in any order.
    sites = [branch_site(agent) for _ in branches]

    def attempt(site: BranchSite, which: Branch, inputs: Mapping[str, Any]) -> Any:
        try:
            return run_inline(run_branch(site, which, dict(inputs), SYNC))
        except (BranchError, StopSignal) as error:
            if isinstance(error, StopSignal) and error.reason != "paused":
                raise
            return error

    attempts = [partial(attempt, site, which, inputs) for (which, inputs), site in zip(branches, sites, strict=True)]
    outcomes = run_concurrently(attempts, concurrency)
    for outcome in outcomes:
        if isinstance(outcome, StopSignal):  # Pause only after every branch has ended or paused.
            raise outcome
    return outcomes


class BranchSite(NamedTuple):
    """The location in a run where user code starts a branch."""

    tree: Tree
    parent_id: str
    """The id of the run that is the parent of the branch."""
    place: CallSite
    """The tool call or hook that contains the user code, in the parent run or in one of its branches."""
    id: str


def branch_site(agent: AgentBase) -> BranchSite:
    """Return the location in the current run where a new branch starts.

    Raise `AcornError` if the calling code is not inside a run of the agent.
    """
    site_and_run = call_site_of(agent)
    if site_and_run is not None and site_and_run[1].stop_reason is None:
        place, run = site_and_run
        # Concurrent branches may call the same tool of their parent, so the id contains the id of the calling branch.
        site_id = place.next_branch_id() if place.run_id == run.id else f"{place.run_id}/{place.next_branch_id()}"
        return BranchSite(tree_of(place), run.id, place, site_id)
    machine, name = current_machine(), type(agent).__name__
    if machine is not None and not machine.is_over:
        running = type(machine.plan.agent).__name__
        raise AcornError(
            f"This `{name}` has no run to branch from: the calling code is inside a run of another instance, a "
            f"`{running}`. Call `branch` on that instance."
        )
    raise AcornError(
        "This code is not inside a run, so it cannot start a branch. Call `self.branch(...)` in a hook or a tool, "
        "while its module is running."
    )


def _check_branches(branches: object, concurrency: object) -> None:
    """Raise `DeclarationError` if the arguments of `branch_all` are wrong, before any branch starts."""
    if not is_list_or_tuple(branches):
        raise DeclarationError(
            f"`branch_all` needs a list of pairs, each with an agent class and a dict of its inputs, "
            f"got {excerpt(branches)}."
        )
    for index, pair in enumerate(branches):
        if not is_list_or_tuple(pair) or len(pair) != 2 or not is_mapping(pair[1]):
            raise DeclarationError(
                f"`branches[{index}]` of `branch_all` must be a pair of an agent class and a dict of its inputs, such "
                f"as `(Review, {{}})`, got {excerpt(pair)}."
            )
        check_branch(pair[0], f"`branches[{index}][0]` of `branch_all`")
    rule = COUNT.or_none("a whole number of at least 1, or None for all at once")
    rule.check("`concurrency` of `branch_all`", concurrency)


async def run_branch(site: BranchSite, which: Branch, inputs: JsonObject, bridge: Bridge) -> Any:
    """Create a branch, drive it to its end, and return its output. Raise `BranchError` if it fails."""
    check_branch(which, "A branch")
    name = (which if isinstance(which, type) else type(which)).__name__
    tree = site.tree
    context: BranchContext | None = None
    failure: BaseException | None = None
    try:
        plan = plan_for(instance_of(which), active_overrides.get())
        input = plan.spec.input.from_call(name, (), inputs)
        context = tree.new_branch(site.place, site.parent_id, site.id, name, plan, input)
        tree.siblings.start(site.place, context.run_id)
        await _drive_branch(site, context.run_id, bridge)
    except BaseException as error:
        failure = error
        # The whole tree was interrupted or has failed.
        if not isinstance(error, Exception) or error is tree.fatal_error:
            raise
        path = name if context is None else context.path
        raise BranchError(f"The branch `{path}` failed: {describe_error(error)}") from error
    finally:
        if context is not None:
            tree.siblings.end(site.place, context.run_id)
            if failure is None or isinstance(failure, Exception):  # An interrupted branch may be resumed.
                tree.finish_branch(context, failure)
    assert context is not None
    output = tree.machines[context.run_id].run.output
    if isinstance(output, Unfinished):
        raise BranchError(f"The branch failed: {unfinished_message(context.path)}")
    return output


async def _drive_branch(site: BranchSite, run_id: str, bridge: Bridge) -> None:
    tree, machine = site.tree, site.tree.machines[run_id]
    if machine.is_over:  # A branch from the store may have finished already.
        return
    if bridge is SYNC:
        drive(tree, run_id)
    else:
        await adrive(tree, run_id)
        if not machine.is_over:
            await tree.siblings.wait_for_others(site.place, run_id)
    if not machine.is_over:  # It waits for human input. The user code stops, and runs again later.
        raise StopSignal("paused")
