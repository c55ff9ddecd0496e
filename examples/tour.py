"""Tour: a short program that shows how a class becomes an agent, functions become tools, and answers have types.

    python examples/tour.py

The program needs no API key and no network, because `acorn.testing.ScriptedModel` replays scripted answers. Everything
else works as with a real model.
"""

import inspect
import json

from pydantic import BaseModel, Field

from acorn import DeclarationError, Step, module, tool
from acorn.testing import Reply, ScriptedModel, call, finish


class Question(BaseModel):
    question: str = Field(description="The question to answer")
    context: str | None = Field(default=None, description="Optional context")


class Answer(BaseModel):
    answer: str = Field(description="The answer to the question")
    confidence: float = Field(ge=0, le=1, description="Confidence score 0-1")


class Verdict(BaseModel):
    is_true: bool
    evidence: list[str]


@tool
def search(query: str, limit: int = 3) -> list[str]:
    """Search the encyclopedia.

    Args:
        query: What to look for
        limit: How many results to return
    """
    return [f"{query}: an article"] * limit


class FactChecker(module[None, Verdict]):
    """Verify the claims made in the conversation so far."""

    max_steps = 3


class Researcher(module[Question, Answer]):
    """You are a research assistant. Answer briefly."""

    max_steps = 5
    tools = [search]
    branches = {"fact_check": FactChecker}

    def on_step(self, step: Step) -> None:
        for tool_call, result in zip(step.tool_calls, step.tool_results, strict=True):
            outcome = result.error or result.output
            print(f"   step {step.counter}: {tool_call.name}({tool_call.raw_arguments}) -> {outcome}")


def script() -> ScriptedModel:
    """Return a model with scripted answers, of which one fails validation."""
    return ScriptedModel(
        [
            Reply("Let me look that up.") & call("search", query="Python", limit="2"),
            call("fact_check"),
            finish(is_true=True, evidence=["Python: an article"]),
            finish(answer="Guido van Rossum, in 1991", confidence="very confident"),
            finish(answer="Guido van Rossum, in 1991", confidence=0.9),
        ]
    )


def main() -> None:
    print("1. You write a class:\n")
    print(inspect.getsource(Researcher))

    print("2. You call it. (This tour uses a scripted model, so it needs no API key and no network.)\n")
    model = script()
    run = Researcher(model=model).run(question="Who made Python, and when? Is 1 < 2 & 2 > 1?")
    print(f"\n   {run.output!r}")
    print(f"   {run.steps} steps, {run.usage.requests} requests, {run.usage.total_tokens} tokens, {run.stop_reason}")

    print("\n3. acorn sends your input to the model as XML, in which your text is escaped,\n")
    print(model.requests[0].messages[1]["content"])
    print("\n   your function as a JSON Schema,\n")
    print(json.dumps(model.requests[0].tools[0]["function"], indent=2))
    print("\n   and, if the answer does not fit the output type, the validation errors:\n")
    print(model.requests[-1].messages[-1]["content"])

    print("\n4. You can stream the same call: the answer is a typed object that grows.\n")
    last = None
    for chunk in Researcher(model=script()).stream(question="Who made Python, and when?"):
        if chunk.branch is None and chunk.partial and chunk.partial != last:
            last = chunk.partial
            print(f"   {last!r}")

    print("\n5. acorn reports a mistake in your code before it calls a model:\n")
    try:
        Researcher(temperature=3)
    except DeclarationError as error:
        print(f"   DeclarationError: {error}")


if __name__ == "__main__":
    main()
