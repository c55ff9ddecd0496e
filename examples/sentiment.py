"""Sentiment: the smallest agent there is. Text goes in, a label that can only be one of three comes out.

    python examples/sentiment.py
    acorn run examples/sentiment.py --text "I love this product!"

By itself it needs no key and no network: the model is then a script. With `acorn run` it is the one that the class
names, or any other: `--model local/smollm2`, `--model anthropic/claude-sonnet-4-5`.
"""

from typing import Literal

from pydantic import BaseModel, Field

from acorn import module
from acorn.testing import ScriptedModel, finish


class Text(BaseModel):
    text: str = Field(description="What somebody wrote", max_length=10_000)


class Sentiment(BaseModel):
    label: Literal["good", "neutral", "bad"]
    confidence: float = Field(ge=0, le=1, description="How sure you are")


class Classify(module[Text, Sentiment]):
    """Say whether the writer of the text is pleased."""

    model = "openai/gpt-4o"
    temperature = 0


def main() -> None:
    agent = Classify(model=ScriptedModel([finish(label="great", confidence=0.9), finish(label="good", confidence=0.9)]))
    run = agent.run(text="I love this product!")
    print(run.output)
    print(f"{run.usage.requests} requests: the first answer was no label of ours, and the model was told so:")
    print(run.history[-3]["content"])


if __name__ == "__main__":
    main()
