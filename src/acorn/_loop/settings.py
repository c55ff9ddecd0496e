"""Settings as a hook has changed them, in a form that can be saved: a model without its secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acorn._json import to_plain
from acorn._secrets import redact, secrets_in
from acorn.errors import AcornError

_HARMLESS = (
    "model", "id", "base_url", "api_base", "api_version", "custom_llm_provider", "num_retries", "retry_delay",
    "timeout", "thinking", "reasoning_effort", "temperature", "max_tokens", "max_completion_tokens",
    "top_p", "top_k", "seed", "stop", "presence_penalty",
    "frequency_penalty", "parallel_tool_calls", "service_tier", "drop_params", "input_cost_per_token",
    "output_cost_per_token", "cache_read_input_token_cost", "cache_creation_input_token_cost",
)  # fmt: skip
OBJECT = "(an object)"
"""What is written of a model that is neither an id nor a dict."""


def written_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as plain data, without a key."""
    written = dict(settings)
    if "model" in written:
        written["model"] = _without_secrets(written["model"])
    return written


def read_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they were written; a model that was an object is not among them."""
    model = settings.get("model")
    if OBJECT in (model if isinstance(model, list) else [model]):
        raise AcornError(
            "The saved run had a model that `on_step` gave as an object, and objects are not saved; "
            "set `step.model` to an id or a dict, so that a run can go on elsewhere."
        )
    return dict(settings)


def _without_secrets(model: Any) -> Any:
    """A model dict by the keys that are known to be harmless, and an address without its password."""
    if isinstance(model, dict):
        kept = {key: value for key, value in model.items() if key in _HARMLESS and to_plain(value) == value}
        addresses = {key: value for key, value in kept.items() if isinstance(value, str) and "://" in value}
        return kept | {key: redact(value, secrets_in(model)) for key, value in addresses.items()}
    if isinstance(model, list | tuple):
        return [_without_secrets(each) for each in model]
    return model if isinstance(model, str) else OBJECT
