"""Tests of the full example of the API reference with its branch, over HTTP.

The code is verbatim, except for the model and `eval`.
"""

from __future__ import annotations

import json
import textwrap
from types import ModuleType
from typing import Any

import pytest
from tests.behaviour.test_seed_snippets import FULL_EXAMPLE
from tests.contract.conftest import Wire

from acorn.testing import Reply, call, finish

USAGE = """
# --- Usage ---

def main():
    agent = ResearchAgent()

    try:
        result = agent(question="What year was Python created and who created it?")
        print(f"\\nAnswer: {result.answer}")
        print(f"Confidence: {result.confidence}")
        print(f"Sources: {result.sources}")
    except ParseError as e:
        print(f"Output parsing failed: {e}")
"""
MODEL = 'model = "anthropic/claude-sonnet-4-5-20250514"'
EVAL = "return eval(expression)"
QUESTION = "What year was Python created and who created it?"
PROMPT = (
    "You are a research assistant. Answer questions thoroughly.\n"
    "Use fact_check when you need to verify important claims."
)
BRANCH_PROMPT = "Verify claims discussed in the conversation.\nSearch for evidence and assess truthfulness."
VERDICT = {"is_true": True, "evidence": ["result1"], "confidence": 0.9}
ANSWER = {"answer": "1991, by Guido van Rossum", "confidence": 0.95, "sources": ["result1"]}
SCRIPT = [
    Reply("Let me look. ") & call("search", query="python") & call("calculate", expression="1991"),
    Reply("To be sure: ") & call("fact_check"),
    Reply("(checking)") & call("search", query="guido", limit=1),
    finish(**VERDICT),
    Reply("There we are.") & finish(**ANSWER),
]


def example(wire: Wire) -> Any:
    """Return the example as a file."""
    assert FULL_EXAMPLE.count(MODEL) == FULL_EXAMPLE.count(EVAL) == 1
    text = FULL_EXAMPLE.replace(MODEL, "model = MODEL").replace(EVAL, "return float(expression)") + USAGE
    space = ModuleType("example")
    from acorn import ParseError

    vars(space).update({"MODEL": wire.model(), "ParseError": ParseError})
    exec(textwrap.dedent(text), vars(space))
    return space


def system_of(wire: Wire, body: dict[str, Any]) -> str:
    found = body["messages"][0]["content"] if wire.is_openai else body["system"]
    return found if isinstance(found, str) else "".join(part["text"] for part in found)


def names_of(wire: Wire, body: dict[str, Any]) -> list[str]:
    return [each["function"]["name"] if wire.is_openai else each["name"] for each in body["tools"]]


def rest_of(wire: Wire, body: dict[str, Any]) -> list[Any]:
    return list(body["messages"][1:] if wire.is_openai else body["messages"])


def test_branch_example_returns_documented_output(wire: Wire, capsys: pytest.CaptureFixture[str]) -> None:
    wire.serve(list(SCRIPT))
    space = example(wire)
    run = wire.run(space.ResearchAgent(), question=QUESTION)
    assert run.output == space.AnswerOutput(**ANSWER)
    assert capsys.readouterr().out == (
        "Let me look. [Step 1] Tools called: ['search', 'calculate']\n"
        "To be sure: [Step 2] Tools called: ['fact_check']\n"
        "There we are."
    )
    (branch,) = run.branches
    assert branch.output == space.FactCheckOutput(**VERDICT)
    assert (run.usage.requests, branch.usage.requests, run.steps, branch.steps) == (5, 2, 2, 1)
    assert run.usage.input_tokens == 500
    results = [message["content"] for message in run.history if message["role"] == "tool"]
    assert results[:2] == ['["result1","result2"]', "1991.0"]
    assert json.loads(results[2]) == VERDICT
    assert "(checking)" not in json.dumps(run.history)


def test_branch_example_request_contains_inherited_messages(wire: Wire) -> None:
    wire.serve(list(SCRIPT))
    wire.run(example(wire).ResearchAgent(), question=QUESTION)
    first, second, begun, checked, last = wire.bodies()
    assert [system_of(wire, body) for body in (first, second, last)] == [PROMPT] * 3
    assert [system_of(wire, body) for body in (begun, checked)] == [f"{PROMPT}\n\n{BRANCH_PROMPT}"] * 2
    assert [body["temperature"] for body in wire.bodies()] == [0.7, 0.7, 0.1, 0.1, 0.7]
    assert names_of(wire, first) == ["search", "calculate", "fact_check", "__finish__"]
    assert names_of(wire, begun) == ["search", "calculate", "__finish__"]
    # The parent streams to its `on_stream`; the branch has none.
    assert [bool(body.get("stream")) for body in wire.bodies()] == [True, True, False, False, True]
    earlier = rest_of(wire, second)
    assert rest_of(wire, begun)[: len(earlier)] == earlier
    assert "The branch `fact_check` has begun." in json.dumps(rest_of(wire, begun)[len(earlier) :])
    assert rest_of(wire, last)[: len(earlier)] == earlier
    assert "has begun" not in json.dumps(last)
    assert "is_true" in json.dumps(rest_of(wire, last)[-1])


def test_main_program_of_branch_example_prints_answer_and_sources(
    wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    wire.serve(list(SCRIPT))
    example(wire).main()
    assert capsys.readouterr().out.endswith(
        "\nAnswer: 1991, by Guido van Rossum\nConfidence: 0.95\nSources: ['result1']\n"
    )
