"""Prompt caching: the setting `cache = "auto"`, and the number of tokens read from and written to the cache.

    python examples/caching.py

The scripted model counts tokens like a provider. The first request writes the conversation to the cache. Each later
request reads the earlier messages from the cache and writes the new messages to it. Add `--real` and set
`ANTHROPIC_API_KEY` to use a model of Anthropic.
"""

import sys
from itertools import pairwise

from acorn import Step, Usage, module, tool
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish


@tool
def chapter(number: int) -> str:
    """Read a chapter of the handbook.

    Args:
        number: Which one, from 1 on
    """
    return f"Chapter {number}. " + "Oaks grow slowly, and then for a long time. " * 200


class Reader(module[str, str]):
    """Read the handbook chapter by chapter, then answer in one sentence."""

    max_steps = 6
    tools = [chapter]
    cache = "auto"

    def on_step(self, step: Step) -> None:
        used = step.usage
        print(f"   step {step.counter}: {used.input_tokens} input tokens, {used.cached_tokens} of them from the cache,")
        print(f"           {used.cache_write_tokens} tokens written to the cache")


def counting_model() -> ScriptedModel:
    """Return a scripted model with a simulated cache, which counts four characters as one token."""
    cached = 0
    answers = iter([call("chapter", number=1), call("chapter", number=2), finish("Slowly.")])

    def reply(request: ModelRequest) -> Reply:
        nonlocal cached
        tokens = sum(len(str(message)) for message in request.messages) // 4
        used = Usage(tokens, 20, cached_tokens=cached, requests=1, cache_write_tokens=tokens - cached)
        cached = tokens
        return next(answers) & Reply(usage=used)

    return ScriptedModel(reply)


def main() -> None:
    model = "anthropic/claude-sonnet-4-5" if "--real" in sys.argv else counting_model()
    run = Reader(model=model).run("How do oaks grow?")
    print(f"\n   {run.output}")
    print(f"   {run.usage.cached_tokens} of {run.usage.input_tokens} tokens came from the cache.")

    if isinstance(model, ScriptedModel):
        print("\n   The cache works because each request begins with all messages of the previous request:")
        for before, after in pairwise(model.requests):
            assert after.messages[: len(before.messages)] == before.messages
            new = len(after.messages) - len(before.messages)
            print(f"   {len(before.messages)} messages, then the same messages and {new} new ones")


if __name__ == "__main__":
    main()
