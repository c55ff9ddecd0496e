"""Tests of the full example of the API reference over HTTP, on both protocols.

The code is verbatim, except for the model, the unsafe `eval` and the branch. `on_stream` is in a separate class.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.contract.conftest import Wire

from acorn import ParseError, Step, StreamChunk, module, tool
from acorn.testing import Reply, call, finish

# --- Tools ---


@tool
def search(query: str, limit: int = 5) -> list[str]:
    """Search for information online."""
    return ["result1", "result2"]


@tool
def calculate(expression: str) -> float:
    """Evaluate a mathematical expression."""
    left, right = expression.split("+")
    return float(left) + float(right)


# --- Main Agent ---


class QuestionInput(BaseModel):
    question: str = Field(description="Question to answer")


class AnswerOutput(BaseModel):
    answer: str
    confidence: float
    sources: list[str]


class ResearchAgent(module):
    """
    You are a research assistant. Answer questions thoroughly.
    Use fact_check when you need to verify important claims.
    """

    # Docstring used as system_prompt

    model = "anthropic/claude-sonnet-4-5-20250514"
    temperature = 0.7
    max_tokens = 4096
    max_steps = 15
    parse_retries = 2

    initial_input = QuestionInput
    final_output = AnswerOutput

    tools = [search, calculate]

    cache = [
        {"location": "message", "role": "system"},
    ]

    def on_step(self, step: Step) -> Step:
        print(f"[Step {step.counter}] Tools called: {[t.name for t in step.tool_calls]}")  # noqa: T201

        # Reduce temperature after step 10
        if step.counter > 10:
            step.temperature = 0.3

        # Mutate tool results before next model call
        for result in step.tool_results:
            if len(str(result.output)) > 5000:
                result.output = str(result.output)[:5000] + "..."

        return step


class StreamingAgent(ResearchAgent):
    def on_stream(self, chunk: StreamChunk[Any]) -> None:
        if chunk.content:
            print(chunk.content, end="", flush=True)  # noqa: T201


ANSWER: dict[str, Any] = {"answer": "1991, by Guido van Rossum", "confidence": 0.95, "sources": ["result1"]}
PROMPT = (
    "You are a research assistant. Answer questions thoroughly.\n"
    "Use fact_check when you need to verify important claims."
)
QUESTION = "What year was Python created and who created it?"
INPUT = f'<input>\n  <question description="Question to answer">{QUESTION}</question>\n</input>'
SCHEMAS: dict[str, dict[str, Any]] = {
    "search": {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 5}},
        "required": ["query"],
    },
    "calculate": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    "__finish__": {
        "type": "object",
        "properties": {
            "answer": {"type": "string"},
            "confidence": {"type": "number"},
            "sources": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["answer", "confidence", "sources"],
    },
}


def tools_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the tools of a request and their schemas, in any protocol."""
    plain = [tool.get("function", tool) for tool in body["tools"]]
    return {tool["name"]: tool.get("parameters", tool.get("input_schema")) for tool in plain}


@pytest.mark.chat
def test_main_program_of_full_example_prints_expected_text(wire: Wire, capsys: pytest.CaptureFixture[str]) -> None:
    wire.serve(
        [
            Reply("Let me look.") & call("search", query="Python") & call("calculate", expression="1990 + 1"),
            finish(**ANSWER),
        ]
    )
    agent = ResearchAgent(model=wire.model())

    try:
        result = wire.call(agent, question="What year was Python created and who created it?")
        print(f"\nAnswer: {result.answer}")  # noqa: T201
        print(f"Confidence: {result.confidence}")  # noqa: T201
        print(f"Sources: {result.sources}")  # noqa: T201
    except ParseError as e:
        print(f"Output parsing failed: {e}")  # noqa: T201

    assert capsys.readouterr().out == (
        "[Step 1] Tools called: ['search', 'calculate']\n"
        "\nAnswer: 1991, by Guido van Rossum\nConfidence: 0.95\nSources: ['result1']\n"
    )
    assert isinstance(result, AnswerOutput)
    first, second = wire.bodies()
    assert tools_of(first) == tools_of(second) == SCHEMAS
    mark = {"type": "ephemeral"}
    if wire.is_openai:
        assert first["messages"] == [
            {"role": "system", "content": PROMPT, "cache_control": mark},
            {"role": "user", "content": INPUT},
        ]
        assert [message.get("content") for message in second["messages"][2:]] == [
            "Let me look.",
            '["result1","result2"]',
            "1991.0",
        ]
    else:
        assert first["system"] == [{"type": "text", "text": PROMPT, "cache_control": mark}]
        assert first["messages"] == [{"role": "user", "content": [{"type": "text", "text": INPUT}]}]
        assert [result["content"] for result in second["messages"][2]["content"]] == [
            '["result1","result2"]',
            "1991.0",
        ]


def test_full_example_sends_equal_requests_with_and_without_streaming(
    wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    script = [Reply("Let me look. ") & call("search", query="Python"), Reply("There.\n") & finish(**ANSWER)]
    printed: list[str] = []
    sent: list[list[dict[str, Any]]] = []
    for kind in (ResearchAgent, StreamingAgent):
        wire.serve(list(script))
        assert wire.call(kind(model=wire.model()), question=QUESTION) == AnswerOutput(**ANSWER)
        printed.append(capsys.readouterr().out)
        sent.append([{name: value for name, value in body.items() if "stream" not in name} for body in wire.bodies()])
    assert printed == [
        "[Step 1] Tools called: ['search']\n",
        "Let me look. [Step 1] Tools called: ['search']\nThere.\n",
    ]
    assert sent[0] == sent[1]


def test_full_example_after_many_steps_lowers_temperature_and_must_finish(
    wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    wire.serve([*(call("search", query=f"Python {number}") for number in range(15)), finish(**ANSWER)])
    run = wire.run(ResearchAgent(model=wire.model()), question=QUESTION)
    assert run.output == AnswerOutput(**ANSWER)
    assert (run.steps, run.stop_reason) == (15, "forced")
    bodies = wire.bodies()
    assert [body["temperature"] for body in bodies] == [0.7] * 11 + [0.3] * 5
    assert ["tool_choice" in body for body in bodies] == [False] * 15 + [True]
    assert capsys.readouterr().out.count("Tools called: ['search']") == 15


def test_full_example_shortens_long_tool_result_and_requests_missing_fields(
    wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    @tool(name="search")
    def long_search(query: str, limit: int = 5) -> list[str]:
        """Search for information online."""
        return ["x" * 6000]

    wire.serve([call("search", query="Python"), finish(answer="1991"), finish(**ANSWER)])
    run = wire.run(ResearchAgent(model=wire.model(), tools=[long_search, calculate]), question=QUESTION)
    assert run.output == AnswerOutput(**ANSWER)
    second, third = wire.bodies()[1:]
    content = wire.either(
        openai=lambda: second["messages"][3]["content"],
        anthropic=lambda: second["messages"][2]["content"][0]["content"],
    )()
    assert content == "['" + "x" * 4998 + "..."
    assert '<field name="confidence">' in str(third["messages"][-1])
    assert '<field name="sources">' in str(third["messages"][-1])


def test_full_example_with_three_invalid_outputs_raises_parse_error(
    wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    wire.serve([finish(answer="1991")] * 3)
    with pytest.raises(ParseError) as caught:
        wire.run(ResearchAgent(model=wire.model()), question=QUESTION)
    assert caught.value.attempts == 3
    assert "1991" in caught.value.raw_output
    assert {error["path"] for error in caught.value.errors} == {"confidence", "sources"}
