"""A class with a docstring is an agent, and what comes back is typed."""

from typing import Literal

from pydantic import BaseModel

from acorn import module


class Review(BaseModel):
    text: str


class Sentiment(BaseModel):
    sentiment: Literal["positive", "negative"]


class Classify(module[Review, Sentiment]):
    """Classify the sentiment of the text."""

    model = "local/smollm2"


texts = [
    "I love this film, it is wonderful!",
    "The food was cold and the waiter was rude.",
]
classify = Classify()
for text in texts:
    print(classify(text=text).sentiment, "-", text)
