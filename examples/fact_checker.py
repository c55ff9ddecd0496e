"""Fact-checker: an agent that starts one branch for each claim of a text and checks all claims concurrently.

    python examples/fact_checker.py
    acorn run examples/fact_checker.py --text "Acorns are nuts, and oaks are conifers."

A branch is a sub-agent. It inherits the conversation, the prompt and the tools of its parent agent, receives a claim as
its input, and returns a typed verdict. The steps of a branch are not part of the parent's conversation.

The first command needs no API key and no network, because it uses a scripted model.
"""

from typing import Literal

from pydantic import BaseModel, Field

from acorn import module, tool
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish

LEXICON = {
    "acorn": "An acorn is the nut of an oak.",
    "oak": "Oaks are broad-leaved trees of the beech family.",
    "conifer": "Conifers bear cones: pines, firs, spruces.",
}


class Text(BaseModel):
    text: str = Field(description="What somebody claims")


class Claim(BaseModel):
    claim: str = Field(description="One claim, in one sentence that can be understood by itself")


class Verdict(BaseModel):
    claim: str
    verdict: Literal["true", "false", "unknown"]
    evidence: str = Field(description="What the lexicon says, word by word; empty if unknown")


class Report(BaseModel):
    verdicts: list[Verdict]
    summary: str


@tool
def look_up(word: str) -> str:
    """What the lexicon says of a word.

    Args:
        word: In the singular
    """
    return LEXICON.get(word.casefold(), f"nothing; it knows: {', '.join(LEXICON)}")


class Check(module[Claim, Verdict]):
    """Check one claim against the lexicon. What the lexicon does not say is unknown."""

    max_steps = 5
    tools = [look_up]


class FactChecker(module[Text, Report]):
    """Find the claims in the text and have each checked, all of them at once. Then report."""

    model = "openai/gpt-4o"
    temperature = 0
    max_steps = 5
    branches = {"check": Check}


NUTS = Verdict(claim="Acorns are nuts.", verdict="true", evidence=LEXICON["acorn"])
CONES = Verdict(claim="Oaks are conifers.", verdict="false", evidence=LEXICON["oak"])


def say(request: ModelRequest) -> Reply:
    """Return the scripted response to a request.

    Branches run concurrently, so the response depends on the content of the request and not on the order.
    """
    last = str(request.messages[-1]["content"])
    for verdict, word in ((NUTS, "acorn"), (CONES, "oak")):
        if verdict.claim in last and last.startswith("<input"):
            return call("look_up", word=word)
        if last == verdict.evidence:
            return finish(verdict)
    if "verdict" in last:
        return finish(verdicts=[NUTS, CONES], summary="One of two is true.")
    return call("check", claim=NUTS.claim) & call("check", claim=CONES.claim)


def main() -> None:
    run = FactChecker(model=ScriptedModel(say)).run(text="Acorns are nuts, and oaks are conifers.")
    assert run.output is not None
    for verdict in run.output.verdicts:
        print(f"{verdict.verdict:8} {verdict.claim} ({verdict.evidence})")
    print(run.output.summary)
    print(f"\n{run.steps} step and {len(run.branches)} branches, {run.usage.requests} requests in all")


if __name__ == "__main__":
    main()
