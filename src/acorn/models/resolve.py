"""From what a user declares to a model of the port. The one table of adapters."""

from __future__ import annotations

from typing import Any

from acorn.errors import DeclarationError
from acorn.models.port import Model, is_model


def resolve(declared: Any, owner: str) -> Model:
    """The model to ask; an adapter is imported when it is first needed."""
    if declared is None:
        raise DeclarationError(
            f"`{owner}.model` is not set; declare it on the class, or pass it: `{owner}(model='openai/gpt-4o')`."
        )
    if is_model(declared):
        return declared
    config = declared if isinstance(declared, dict) else {"model": declared}
    if str(config.get("model") or config.get("id")).startswith("local/"):
        from acorn.models.local import LocalModel

        try:
            return LocalModel(config)
        except DeclarationError as error:
            raise DeclarationError(f"`{owner}.model` cannot be used: {error}") from error
    from acorn.models.litellm.adapter import LiteLLMModel

    return LiteLLMModel(config)
