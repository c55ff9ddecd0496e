"""Watch the answer: an object of the same type, filling in token by token."""

from pydantic import BaseModel

from acorn import module


class Subject(BaseModel):
    subject: str


class Story(BaseModel):
    title: str
    hero: str
    story: str


class Tell(module[Subject, Story]):
    """Write a short story about the subject."""

    model = "local/smollm2"
    max_tokens = 300


shown = ""
for chunk in Tell().stream(subject="a fox who learns to sail"):
    story = chunk.partial.story if chunk.partial else None
    if story:
        print(story.removeprefix(shown), end="", flush=True)
        shown = story
    if chunk.result and chunk.run:
        print(f"\n\n{chunk.run.usage.output_tokens} tokens: {chunk.result!r}")
