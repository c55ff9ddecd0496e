"""From what a user declares to a model of the port. The one table of adapters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from acorn._declare.settings import settings_in
from acorn.errors import DeclarationError
from acorn.models.circuit_breaker import CIRCUITS
from acorn.models.fallback import Chain, Link, reader_of
from acorn.models.limits.throttle import Throttle
from acorn.models.port import Model, is_model
from acorn.models.retry import Retries, Retrying


class _Adapter(NamedTuple):
    prefix: str
    """What an id begins with."""
    module: str
    """Imported when it is first needed."""
    make: str
    is_retried: bool = True
    is_lane: bool = False
    """Whether it takes model dicts of which it knows every key, and no others."""

    def takes(self, name: str, config: Mapping[str, Any]) -> bool:
        if not name.startswith(self.prefix):
            return False
        return not self.is_lane or (not _is_litellm_wanted(config) and import_module(self.module).knows(config))

    def model(self, config: Mapping[str, Any], throttle: Throttle | None) -> Model:
        make: Callable[[Mapping[str, Any]], Model] = getattr(import_module(self.module), self.make)
        model = throttled(make(config), throttle)
        return Retrying(model, Retries.of(config)) if self.is_retried else model


# The first that takes it counts.
_ADAPTERS = (
    _Adapter("local/", "acorn.models.local.model", "LocalModel", is_retried=False),
    _Adapter("openai/responses/", "acorn.models.lanes.openai_responses", "make", is_lane=True),
    _Adapter("openai/", "acorn.models.lanes.openai_chat", "make", is_lane=True),
    _Adapter("anthropic/", "acorn.models.lanes.anthropic", "make", is_lane=True),
    _Adapter("", "acorn.models.litellm.adapter", "LiteLLMModel"),
)


def model_name(declared: Any) -> str | None:
    """What a model is called, or the models of a list. A dict may hold a key, so nothing else of it is told."""
    if isinstance(declared, list | tuple):
        return ", ".join(name for each in declared if (name := model_name(each)))
    if isinstance(declared, Mapping):
        declared = declared.get("model", declared.get("id"))
    if declared is None or isinstance(declared, str):
        return declared
    name = getattr(declared, "name", None)
    return name if isinstance(name, str) else type(declared).__name__


def _is_litellm_wanted(config: Mapping[str, Any]) -> bool:
    lane = config.get("lane", os.environ.get("ACORN_LANE"))
    if lane not in (None, "native", "litellm"):
        raise DeclarationError(f"`lane` must be 'native' or 'litellm', got {lane!r}.")
    return bool(lane == "litellm")


def throttled(model: Model, throttle: Throttle | None) -> Model:
    """A model kept to its limits. One that asks another, and says so by `around`, may ask it more than once."""
    if throttle is None:
        return model
    around: Callable[[Callable[[Model], Model]], Model] | None = getattr(model, "around", None)
    return throttle(model) if around is None else around(partial(throttled, throttle=throttle))


def resolve(declared: Any, owner: str, throttle: Throttle | None = None) -> Model:
    """The model to ask."""
    if declared is None:
        raise DeclarationError(
            f"`{owner}.model` is not set; declare it on the class, or pass it: `{owner}(model='openai/gpt-4o')`."
        )
    if is_model(declared):
        return throttled(declared, throttle)
    if isinstance(declared, list | tuple):
        return Chain([_link(each, resolve(each, owner, throttle)) for each in declared])
    config = declared if isinstance(declared, dict) else {"model": declared}
    name = str(config.get("model") or config.get("id"))
    try:
        adapter = next(adapter for adapter in _ADAPTERS if adapter.takes(name, config))
        return adapter.model(config, throttle)
    except DeclarationError as error:
        raise DeclarationError(f"`{owner}.model` cannot be used: {error}") from error


def _link(declared: Any, model: Model) -> Link:
    """One model of a list, with what its dict sets for it alone."""
    sampling = {attribute: declared[key] for attribute, key in settings_in(declared)}
    return Link(model, CIRCUITS.of(declared), reader_of(declared), sampling)
