"""A tour in a few seconds: a class becomes an agent, functions become tools, answers come back typed.

    python examples/tour.py

No key and no network: the model is a script, replayed by `acorn.testing.ScriptedModel`. Everything else is
what happens with a real one.
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
        for made, result in zip(step.tool_calls, step.tool_results, strict=True):
            print(f"   step {step.counter}: {made.name}({made.raw_arguments}) -> {result.error or result.output}")


def script() -> ScriptedModel:
    """What the model will say. It makes a mistake, and is corrected."""
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

    print("2. You call it. (The model is a script here: no key, no network.)\n")
    model = script()
    run = Researcher(model=model).run(question="Who made Python, and when? Is 1 < 2 & 2 > 1?")
    print(f"\n   {run.output!r}")
    print(f"   {run.steps} steps, {run.usage.requests} requests, {run.usage.total_tokens} tokens, {run.stop_reason}")

    print("\n3. What the model was sent: your input as XML, in which nothing you wrote becomes markup,\n")
    print(model.requests[0].messages[1]["content"])
    print("\n   your function as a schema,\n")
    print(json.dumps(model.requests[0].tools[0]["function"], indent=2))
    print("\n   and, when its answer did not fit, what was wrong with it:\n")
    print(model.requests[-1].messages[-1]["content"])

    print("\n4. The same, streamed: the answer is a typed object that fills in.\n")
    last = None
    for chunk in Researcher(model=script()).stream(question="Who made Python, and when?"):
        if chunk.branch is None and chunk.partial and chunk.partial != last:
            last = chunk.partial
            print(f"   {last!r}")

    print("\n5. A mistake shows at once, before any model is called:\n")
    try:
        Researcher(temperature=3)
    except DeclarationError as error:
        print(f"   DeclarationError: {error}")


if __name__ == "__main__":
    main()
