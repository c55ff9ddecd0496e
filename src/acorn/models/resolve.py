"""Creation of a model object from the `model` setting of an agent class, with the table of all adapters."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, cast

from acorn._declare.settings import settings_in
from acorn.errors import DeclarationError
from acorn.models.fallback import CIRCUITS, FallbackChain, FallbackLink, reasoning_reader
from acorn.models.limits import LimitWrapper
from acorn.models.port import Model, is_model
from acorn.models.retry import RetryingModel, RetryPolicy
from acorn.types import JsonObject, is_list_or_tuple, is_mapping


class _Adapter(NamedTuple):
    """A row of the adapter table: which model ids an adapter handles, and how to create its models."""

    prefix: str
    """The prefix of the model ids that this adapter handles."""
    module: str
    """The import path of the adapter module, which acorn imports on first use."""
    factory: str
    """The name of the class in `module` that creates a model, or a native lane, from a model dict."""
    is_retried: bool = True
    """Whether acorn repeats failed requests to the model."""
    is_lane: bool = False
    """Whether the adapter is a native lane. A native lane handles a model dict only if it supports every key."""

    def handles(self, name: str, config: JsonObject) -> bool:
        if not name.startswith(self.prefix):
            return False
        return not self.is_lane or (not _wants_litellm(config) and self._load().supports(config))

    def _load(self) -> Any:
        return getattr(import_module(self.module), self.factory)

    def create(self, config: JsonObject, add_limits: LimitWrapper | None) -> Model:
        model = self._load()(config)
        if self.is_lane:
            model = import_module("acorn.models.lanes.native").NativeModel(model)
        model = apply_limits(model, add_limits)
        return RetryingModel(model, RetryPolicy.of(config)) if self.is_retried else model


# acorn uses the first adapter in this table that handles the model id.
_ADAPTERS = (
    _Adapter("local/", "acorn.models.local.model", "LocalModel", is_retried=False),
    _Adapter("openai/responses/", "acorn.models.lanes.openai_responses", "OpenAIResponses", is_lane=True),
    _Adapter("openai/", "acorn.models.lanes.openai_chat", "OpenAIChat", is_lane=True),
    _Adapter("anthropic/", "acorn.models.lanes.anthropic", "Anthropic", is_lane=True),
    _Adapter("", "acorn.models.litellm.adapter", "LiteLLMModel"),
)


def model_name(declared: object) -> str | None:
    """Return the model name in a `model` setting, or the names joined with commas if the setting is a list.

    The result never contains other values of a model dict, because a model dict may contain an API key.
    """
    if is_list_or_tuple(declared):
        return ", ".join(name for member in declared if (name := model_name(member)))
    if is_mapping(declared):
        declared = declared.get("model", declared.get("id"))
    if declared is None or isinstance(declared, str):
        return declared
    name = getattr(declared, "name", None)
    return name if isinstance(name, str) else type(declared).__name__


def _wants_litellm(config: JsonObject) -> bool:
    lane = config.get("lane", os.environ.get("ACORN_LANE"))
    if lane not in (None, "native", "litellm"):
        raise DeclarationError(
            f"the value of `lane` must be 'native' or 'litellm', but it is {lane!r}. Change `lane` in the model dict "
            f"or the environment variable `ACORN_LANE`."
        )
    return bool(lane == "litellm")


def apply_limits(model: Model, add_limits: LimitWrapper | None) -> Model:
    """Wrap a model, so that its requests wait for the rate limits of the agent class.

    If the model is a wrapper that may send several requests, such as a fallback chain or `RetryingModel`, the limits
    are applied to the models inside it, so that each request counts.
    """
    if add_limits is None:
        return model
    wrap_inner: Callable[[Callable[[Model], Model]], Model] | None = getattr(model, "wrap_inner", None)
    return add_limits(model) if wrap_inner is None else wrap_inner(partial(apply_limits, add_limits=add_limits))


def resolve(declared: Any, owner: str, add_limits: LimitWrapper | None = None) -> Model:
    """Create the model object for a value of the `model` setting: an id, a dict, an object or a list of these.

    `owner` is the name of the agent class, which error messages contain.
    """
    if declared is None:
        raise DeclarationError(
            f"`{owner}.model` is not set. Set it on the class, or pass it: `{owner}(model='openai/gpt-4o')`."
        )
    if not isinstance(declared, str | dict):  # The rules of the setting allow only a model or a list of models.
        if not is_list_or_tuple(declared) or is_model(declared):
            return apply_limits(declared, add_limits)
        return FallbackChain([_link(member, resolve(member, owner, add_limits)) for member in declared])
    config: JsonObject = {"model": declared} if isinstance(declared, str) else cast(JsonObject, declared)
    name = str(config.get("model") or config.get("id"))
    try:
        adapter = next(adapter for adapter in _ADAPTERS if adapter.handles(name, config))
        return adapter.create(config, add_limits)
    except DeclarationError as error:
        raise DeclarationError(f"`{owner}.model` cannot be used: {error}") from error


def _link(declared: Any, model: Model) -> FallbackLink:
    """Create one link of a fallback chain from a member of a model list.

    If the member is a model dict, it may set the temperature and the maximum tokens for this model.
    """
    sampling = {attribute: declared[key] for attribute, key in settings_in(declared)}
    return FallbackLink(model, CIRCUITS.of(declared), reasoning_reader(declared), sampling)
