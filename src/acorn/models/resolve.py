"""From what a user declares to a model of the port."""

from __future__ import annotations

from typing import Any

from acorn.errors import DeclarationError
from acorn.models.port import Model, is_model


def resolve(declared: Any, owner: str) -> Model:
    """The model to ask."""
    if declared is None:
        raise DeclarationError(
            f"`{owner}.model` is not set; declare it on the class, or pass it: `{owner}(model='openai/gpt-4o')`."
        )
    if is_model(declared):
        return declared
    raise DeclarationError(f"`{owner}.model` names a provider, and no provider can be reached yet; use an object.")
