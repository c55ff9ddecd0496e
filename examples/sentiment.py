"""Sentiment: a very small agent that receives a text and returns one of three labels.

    python examples/sentiment.py
    acorn run examples/sentiment.py --text "I love this product!"

The first command needs no API key and no network, because it uses a scripted model. `acorn run` uses the model of the
class, or the model of an option such as `--model local/smollm2` or `--model anthropic/claude-sonnet-4-5`.
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
    print(f"{run.usage.requests} requests: the first answer had an unknown label, and the model received this error:")
    print(run.history[-3]["content"])


if __name__ == "__main__":
    main()
