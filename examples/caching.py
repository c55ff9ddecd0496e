"""What a cache saves: `cache = "auto"`, and what was read from it and written to it.

    python examples/caching.py

The model is a script that counts as a provider would: the first request writes the conversation to the cache, each
later one reads what was there and writes what is new. With `--real` behind it, and `ANTHROPIC_API_KEY` set, it is
Anthropic's.
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
        print(f"   step {step.counter}: {used.input_tokens} tokens in, {used.cached_tokens} of them from the cache,")
        print(f"           {used.cache_write_tokens} written to it")


def counting() -> ScriptedModel:
    """A script that counts four letters as a token, and has a cache."""
    kept = 0
    answers = iter([call("chapter", number=1), call("chapter", number=2), finish("Slowly.")])

    def reply(request: ModelRequest) -> Reply:
        nonlocal kept
        tokens = sum(len(str(message)) for message in request.messages) // 4
        used = Usage(tokens, 20, cached_tokens=kept, requests=1, cache_write_tokens=tokens - kept)
        kept = tokens
        return next(answers) & Reply(usage=used)

    return ScriptedModel(reply)


def main() -> None:
    model = "anthropic/claude-sonnet-4-5" if "--real" in sys.argv else counting()
    run = Reader(model=model).run("How do oaks grow?")
    print(f"\n   {run.output}")
    print(f"   {run.usage.cached_tokens} of {run.usage.input_tokens} tokens came from the cache.")

    if isinstance(model, ScriptedModel):
        print("\n   That works because each request begins as the one before it ended:")
        for before, after in pairwise(model.requests):
            assert after.messages[: len(before.messages)] == before.messages
            new = len(after.messages) - len(before.messages)
            print(f"   {len(before.messages)} messages, then the same and {new} more")


if __name__ == "__main__":
    main()
