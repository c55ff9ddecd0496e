"""Tests of `RunTree`, which collects the journal entries of a run for the views."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from rich.tree import Tree

from acorn import Step, StreamChunk, listen, module, tool
from acorn._inside.run_tree import Row, RunTree
from acorn._inside.run_tree import tree_of as tree_from
from acorn.cli.views import Pen, draw_run
from acorn.journal import (
    BranchFinished,
    BranchStarted,
    CalledTool,
    Entry,
    ModelRequested,
    ModelResponded,
    ResultMessage,
    RunFinished,
    RunInterrupted,
    RunStarted,
    ToolFinished,
    ToolStarted,
)
from acorn.testing import Reply, ScriptedModel, call, finish
from acorn.types import Usage


def answered(run_id: str, step: int, at: float, *calls: CalledTool, text: str = "") -> ModelResponded:
    return ModelResponded(
        run_id, step, at, 0.0, "m", text, None, calls, {}, "stop", None, Usage(10, 5, requests=1), 0.5, 1, ()
    )


def tree_of(*entries: Entry) -> RunTree:
    return tree_from(entries)


def heard(agent: module[Any, Any], **settings: Any) -> RunTree:
    made = RunTree(**settings)
    with listen(made.add):
        agent()
    return made


def calls_of(tree: RunTree) -> list[Row]:
    return [call for row in tree.root.rows for call in row.calls]


def turns_of(tree: RunTree) -> list[Row]:
    return [row for row in tree.root.rows if row.kind in ("model", "answer")]


def shown(tree: RunTree, now: float = 0.0, **pen: Any) -> list[str]:
    """Return the tree as the live view draws it, without terminal codes."""
    console, drawn = Console(width=80), Tree("")
    draw_run(tree.root, drawn, Pen(now, 60, **pen))
    with console.capture() as captured:
        console.print(drawn)
    return [line.lstrip("│├└─ ").rstrip() for line in captured.get().splitlines()[1:]]


class Base(module):
    """Do it."""

    final_output: Any = str
    max_steps = 3


@tool
def look() -> str:
    """Look."""
    return "there"


def test_run_tree_counts_branch_time_from_start_of_branch() -> None:
    tree = tree_of(
        RunStarted("a", 0, 0.0, "m:M", None),
        answered("a", 1, 1.0, CalledTool("1", "look", "{}"), CalledTool("2", "check", "{}")),
        ToolStarted("a", 1, 1.0, "1", "look", "{}"),
    )
    look, check = calls_of(tree)
    assert (look.start, check.start) == (1.0, None)
    assert shown(tree, 3.0) == ["⠋ look()  2.0 s", "· check()"]
    for entry in (
        ToolFinished("a", 1, 4.0, "1", "look", 1.0, "there", None),
        BranchStarted("a", 1, 4.0, "b", "check", "2"),
        answered("b", 1, 0.5, CalledTool("1", "look", "{}")),
        ToolStarted("b", 1, 0.5, "1", "look", "{}"),
    ):
        tree.add(entry)
    assert shown(tree, 5.5) == ["✓ look()  3.0 s", "→ there", "⠴ check()  1.5 s", "⠴ look()  1.0 s"]
    assert (tree.usage.total_tokens, tree.cost) == (30, 1.0)


def test_run_tree_contains_tool_result_changed_by_hook() -> None:
    class Agent(Base):
        tools = [look]
        model = ScriptedModel([call("look"), finish(result="x")])

        def on_step(self, step: Step) -> None:
            step.tool_results[0].output = "changed"

    assert calls_of(heard(Agent()))[0].result == "changed"


def test_run_tree_call_that_was_not_executed_has_error_and_no_duration() -> None:
    class Agent(Base):
        tools = [look]
        model = ScriptedModel([call("look", deep=True) & call("lok"), finish(result="x") & call("look")])

    wrong, unknown, skipped = calls_of(heard(Agent()))
    assert "deep" in (wrong.error or "")
    assert "There is no tool `lok`" in (unknown.error or "")
    assert (skipped.error or "").startswith("Skipped: ")
    assert [each.seconds for each in (wrong, unknown, skipped)] == [None] * 3


def test_run_tree_marks_invalid_answer_as_rejected() -> None:
    class Agent(Base):
        final_output = [("age", int)]
        model = ScriptedModel([finish(age="old"), finish(age=5)])

    tree = heard(Agent())
    first, second = turns_of(tree)
    assert (first.was_rejected, second.was_rejected) == (True, False)
    assert (first.step, second.step) == (1, 1)
    assert shown(tree, is_over=True) == ["the answer did not validate, requested again", "age  5"]


def test_run_tree_does_not_mark_answer_as_rejected_if_on_finish_hook_raises() -> None:
    class Agent(Base):
        model = ScriptedModel([finish(result="x")])

        def on_finish(self, output: str) -> None:
            raise KeyError

    tree = RunTree()
    with listen(tree.add), pytest.raises(KeyError):
        Agent()()
    assert "validate" not in " ".join(shown(tree, is_over=True))


def test_run_tree_excludes_calls_of_agent_run_inside_tool() -> None:
    class Inner(Base):
        model = ScriptedModel([Reply("inner") & call("look"), finish(result="y")])
        tools = [look]

    @tool
    def ask() -> str:
        """Ask another."""
        return str(Inner()())

    class Outer(Base):
        tools = [ask]
        model = ScriptedModel([call("ask"), finish(result="x")])

    tree = heard(Outer())
    assert [each.name for each in calls_of(tree)] == ["ask"]
    assert list(tree.runs.values()) == [tree.root]


def test_run_tree_places_branch_under_tool_call_that_started_it() -> None:
    begun = (
        RunStarted("a", 0, 0.0, "m:M", None),
        answered("a", 1, 1.0, CalledTool("1", "one", "{}"), CalledTool("2", "two", "{}")),
        ToolStarted("a", 1, 1.0, "1", "one", "{}"),
    )
    branch = BranchStarted("a", 1, 2.0, "b", "Review", None, "1")
    one, _ = calls_of(alone := tree_of(*begun, branch))
    assert [below.name for below in one.calls] == ["Review"]
    assert shown(alone, 2.5) == ["⠴ one()  1.5 s", "⠴ branch Review  0.50 s", "· two()"]

    # A branch that a hook started is under the step.
    hooked = tree_of(*begun, BranchStarted("a", 1, 2.0, "b", "Review", None))
    assert hooked.root.rows[-1].kind == "branch"
    assert shown(hooked, 2.5) == ["⠴ one()  1.5 s", "· two()", "⠴ branch Review  0.50 s"]


def test_run_tree_numbers_same_named_branches_of_one_step() -> None:
    tree = tree_of(
        RunStarted("a", 0, 0.0, "m:M", None),
        answered("a", 1, 0.0, CalledTool("1", "check", "{}"), CalledTool("2", "check", "{}")),
        BranchStarted("a", 1, 0.0, "b", "check", "1"),
        BranchStarted("a", 1, 0.0, "c", "check", "2"),
        BranchStarted("a", 1, 0.0, "d", "Review", None),
        BranchStarted("a", 1, 0.0, "e", "Review", None),
        BranchStarted("e", 1, 0.0, "f", "Review/Deep", None),
        BranchStarted("a", 2, 0.0, "g", "Review", None),
    )
    labels = ["", "check#1", "check#2", "Review", "Review#2", "Review#2/Deep", "Review"]
    assert [run.label for run in tree.runs.values()] == labels


def test_run_tree_branch_ends_with_output_or_error() -> None:
    ended = BranchFinished("a", 1, 2.0, "b", "Review", None, "finish", 1.5, "fine", None, Usage(), None)
    begun = RunStarted("a", 0, 0.0, "m:M", None), BranchStarted("a", 1, 0.5, "b", "Review", None)
    fine = tree_of(*begun, RunFinished("b", 1, 1.5, "finish", "fine", "text"), ended)
    assert shown(fine, 9.0) == ["✓ branch Review  1.5 s", "fine"]
    failed = tree_of(*begun, ended._replace(error="ValueError: no", stop_reason="error"))
    assert shown(failed, 9.0) == ["✗ branch Review  1.5 s", "→ ValueError: no"]
    cancelled = tree_of(*begun, ended._replace(stop_reason="cancelled"))
    assert shown(cancelled, 9.0, is_over=True) == ["· branch Review"]


def test_run_tree_of_resumed_run_contains_no_interruption_line() -> None:
    begun = (
        RunStarted("a", 0, 0.0, "m:M", None),
        answered("a", 1, 1.0, CalledTool("1", "look", "{}")),
        ToolStarted("a", 1, 1.0, "1", "look", "{}"),
    )
    stopped = ResultMessage("1", "This call was not completed: the run was stopped.", "stopped", None)
    tree = tree_of(*begun, RunInterrupted("a", 1, 2.0, "KeyboardInterrupt", (stopped,)))
    assert shown(tree, is_over=True) == ["✗ look()", "→ This call was not completed: the run was stopped."]
    assert shown(tree, is_over=True, is_full=True)[-1] == "error: KeyboardInterrupt"
    tree.add(ToolStarted("a", 1, 3.0, "1", "look", "{}"))
    assert "error" not in " ".join(shown(tree, is_over=True, is_full=True))
    tree.add(ModelRequested("a", 2, 4.0, "model 2", "m", 3, None))
    tree.add(ModelRequested("a", 2, 5.0, "model 2", "m", 3, None))
    assert [row.step for row in turns_of(tree)] == [1, 2, 2]
    assert shown(tree, is_over=True, is_full=True).count("step 2") == 1


def test_run_tree_shows_streamed_tool_calls_in_any_index_order() -> None:
    tree = tree_of(RunStarted("a", 0, 0.0, "m:M", None), ModelRequested("a", 1, 0.0, "model 1", "m", 2, None))
    for index, pieces in ((1, ["{"]), (1, ["{", '"query": "ac']), (3, [""])):
        chunk: StreamChunk[Any] = StreamChunk()
        chunk._call, chunk._count = (index, None, f"tool{index}", pieces), len(pieces)
        tree.add_chunk(chunk)
    assert shown(tree) == ['· tool1(query="ac")', "· tool3()"]
    tree.add(answered("a", 1, 1.0, CalledTool("1", "tool1", "{}")))
    tree.add_chunk(StreamChunk(content="too late"))
    assert shown(tree) == ["· tool1()"]


def test_run_tree_contains_asterisks_instead_of_api_key() -> None:
    @tool
    def tell(key: str) -> str:
        """Tell a key."""
        if key == "swordfish":
            return f"it is {key}"
        raise ValueError("swordfish")

    class Agent(Base):
        tools = [tell]
        model = ScriptedModel(
            [
                Reply("The swordfish.") & call("tell", key="swordfish") & call("tell", key="x"),
                finish(result="swordfish!"),
            ]
        )

    tree = RunTree(lambda text: text.replace("swordfish", "***"))
    seen: list[str] = []
    with listen(tree.add):
        for chunk in Agent().stream():
            tree.add_chunk(chunk)
            seen += shown(tree, redact=tree.redact)
    seen += shown(tree, is_over=True) + shown(tree, is_over=True, is_full=True)
    assert "The ***." in seen
    assert 'tell(key="***")' in " ".join(seen)
    assert "***!" in seen
    assert "swordfish" not in " ".join(seen)
