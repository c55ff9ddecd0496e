"""From what a user declares to a model of the port. The one table of adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from acorn.errors import DeclarationError
from acorn.models.port import Model, is_model
from acorn.models.retrying import Retries, Retrying


class _Adapter(NamedTuple):
    module: str
    """Imported when it is first needed."""
    name: str
    is_retried: bool

    def make(self, config: Mapping[str, Any]) -> Model:
        adapter: Callable[[Mapping[str, Any]], Model] = getattr(import_module(self.module), self.name)
        model = adapter(config)
        return Retrying(model, Retries.of(config)) if self.is_retried else model


# By what an id begins with; the first that fits counts.
_ADAPTERS = {
    "local/": _Adapter("acorn.models.local", "LocalModel", is_retried=False),
    "": _Adapter("acorn.models.litellm.adapter", "LiteLLMModel", is_retried=True),
}


def resolve(declared: Any, owner: str) -> Model:
    """The model to ask."""
    if declared is None:
        raise DeclarationError(
            f"`{owner}.model` is not set; declare it on the class, or pass it: `{owner}(model='openai/gpt-4o')`."
        )
    if is_model(declared):
        return declared
    config = declared if isinstance(declared, dict) else {"model": declared}
    name = str(config.get("model") or config.get("id"))
    adapter = next(adapter for prefix, adapter in _ADAPTERS.items() if name.startswith(prefix))
    try:
        return adapter.make(config)
    except DeclarationError as error:
        raise DeclarationError(f"`{owner}.model` cannot be used: {error}") from error
