"""The allow-list for settings that a store contains: submitted settings, and settings that hooks changed.

A store is data that other people may write. acorn must not send an API key of this process to an address, or open a
file, because a store names it. Therefore a stored address is valid only if this process also declares it: in the model
of the agent, of its branches and of its agent tools, or in an environment variable such as `OPENAI_BASE_URL`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from acorn._declare.settings import SETTINGS
from acorn._declare.spec import Spec
from acorn._declare.spec_cache import read_spec
from acorn._formats.redact import is_secret_name
from acorn._history.saved_form import MisfitError
from acorn._machine.state import MODEL_OBJECT, SAVED_MODEL_KEYS, settings_to_json
from acorn.types import JsonObject, is_json_list, is_json_object, is_list_or_tuple, is_mapping

Addresses = Mapping[str, str]
"""Maps each address and file that this process declares to the original.

The keys have no password, as in a store, and no `/` at the end."""

_ADDRESS_KEYS = ("base_url", "api_base")
_ADDRESS_VARIABLES = ("_BASE_URL", "_API_BASE")
"""The ends of the names of environment variables that contain addresses."""
_HOST_PART = re.compile(r"[A-Za-z0-9_.-]*")
_TOOL_ADDRESS_KEYS = ("server_url", "url", "headers", "authorization", "connector_id")
_MAX_TOOL_DEPTH = 20
_ALLOWED = SETTINGS.keys() - {"store"}
_CHANGED_BY_HOOKS = ("model", "temperature", "max_tokens")


def declared_addresses(spec: Spec) -> Addresses:
    """Return the addresses and files that an agent and the agents that it may start declare."""
    specs, seen = [spec], list[Any]()
    for each in specs:
        for which in each.startable:
            if not any(which is other for other in seen):
                seen.append(which)
                specs.append(read_spec(which))
    pairs = [pair for each in specs for pair in _address_pairs(each.model)]
    variables = [value for name, value in os.environ.items() if name.endswith(_ADDRESS_VARIABLES)]
    from_variables = [pair for value in variables for pair in _address_pairs({"base_url": value})]
    return {_key_of(text): original for text, original in [*pairs, *from_variables]}


def _key_of(address: str) -> str:
    """Return an address without the `/` at its end, which has no meaning for a request."""
    return address.rstrip("/")


def _address_pairs(model: object) -> Iterator[tuple[str, str]]:
    """Yield the addresses and files in a model setting in the form in which a store contains them, and as declared."""
    for each in model if is_list_or_tuple(model) else [model]:
        declared: object = {"model": each} if isinstance(each, str) else each
        if is_mapping(declared):
            stored = settings_to_json({"model": dict(declared)})["model"]
            yield from ((text, str(declared[key])) for key, text in _addresses_in(stored))


def _addresses_in(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of a stored model dict that name an address or a file."""
    for key, value in model.items():
        if value and isinstance(value, str) and (key in _ADDRESS_KEYS or _names_address(value)):
            yield key, value


def _names_address(value: str) -> bool:
    """Return whether a model id names an address or a file."""
    if "://" in value or (value.startswith("local/") and value.endswith(".gguf")):
        return True
    # LiteLLM inserts the region of an ARN, its fourth part, into the host name of Bedrock AgentCore.
    region = value.split(":")[3:4]
    return bool(region) and _HOST_PART.fullmatch(region[0]) is None


def has_address_or_key(tools: object) -> bool:
    """Return whether a list of hosted tools contains an address, headers or a key.

    The provider sends data to such an address, or uses such a key, so a store must not contain the tool.
    """
    return any(_has_address_or_key(tool, 0) for tool in tools) if is_list_or_tuple(tools) else False


def _has_address_or_key(value: object, depth: int) -> bool:
    if isinstance(value, str):
        return "://" in value
    if depth > _MAX_TOOL_DEPTH:
        return True
    if is_mapping(value):
        return any(
            str(key).lower() in _TOOL_ADDRESS_KEYS
            or (isinstance(each, str) and is_secret_name(key))
            or _has_address_or_key(each, depth + 1)
            for key, each in value.items()
        )
    return is_list_or_tuple(value) and any(_has_address_or_key(each, depth + 1) for each in value)


def check_submitted(settings: Mapping[str, Any], addresses: Addresses, where: str) -> JsonObject:
    """Return the settings of an instance that a store contains, or raise `MisfitError` if one is not allowed.

    `where` is the subject of the error message.
    """
    return _check(settings, _ALLOWED, addresses, where)


def check_saved_run(saved: Mapping[str, Any], addresses: Addresses, where: str) -> None:
    """Check the settings in a saved run, which hooks had changed, and replace its addresses by the declared ones.

    Raise `MisfitError` if a setting is not allowed.
    """
    context, state = saved["branch"], saved["state"]
    contexts = [] if context is None else [context]
    for holder in [*contexts, *([state, *state["branches"]] if state is not None else [])]:
        holder["settings"] = _check(holder["settings"], _CHANGED_BY_HOOKS, addresses, where)


def _check(settings: Mapping[str, Any], allowed: Any, addresses: Addresses, where: str) -> JsonObject:
    if not is_json_object(settings):
        raise MisfitError(f"{where} has damaged settings. Nothing was sent.")
    unknown = sorted(settings.keys() - allowed)
    if unknown:
        raise MisfitError(f"{where} has the setting `{unknown[0]}`, which a store must not contain. Nothing was sent.")
    if has_address_or_key(settings.get("tools")):
        raise MisfitError(
            f"{where} has a tool with an address or a key. Declare the tool on the class. Nothing was sent."
        )
    if settings.get("model") is None:
        return dict(settings)
    return {**settings, "model": _check_model(settings["model"], addresses, where)}


def _check_model(model: object, addresses: Addresses, where: str) -> Any:
    if is_json_list(model) and not any(map(is_json_list, model)):
        return [_check_model(each, addresses, where) for each in model]
    if model == MODEL_OBJECT:
        return model
    config: object = {"model": model} if isinstance(model, str) else model
    if not is_json_object(config):
        raise MisfitError(f"{where} has a damaged model. Nothing was sent.")
    unknown = sorted(config.keys() - set(SAVED_MODEL_KEYS))
    if unknown:
        raise MisfitError(
            f"{where} has a model with the key `{unknown[0]}`, which a store must not contain. Nothing was sent."
        )
    checked = dict(config)
    for key in _ADDRESS_KEYS:
        if not isinstance(config.get(key) or "", str):
            raise MisfitError(f"{where} has a damaged `{key}`. Nothing was sent.")
    for key, text in _addresses_in(config):
        if _key_of(text) not in addresses:
            raise MisfitError(
                f"{where} has a model with the `{key}` {text!r}, which this process does not declare. acorn sends keys "
                f"and conversations only to addresses of this process. Set the address in `model` of the class or of "
                f"the instance, or in an environment variable such as `OPENAI_BASE_URL`. Nothing was sent."
            )
        checked[key] = addresses[_key_of(text)]
    return checked["model"] if isinstance(model, str) else checked


def undeclared_address(settings: Mapping[str, Any], addresses: Addresses) -> str | None:
    """Return the first key of a stored model that contains an undeclared address, or None if there is none."""
    model = settings.get("model")
    for each in model if is_json_list(model) else [model]:
        config: object = {"model": each} if isinstance(each, str) else each
        if is_json_object(config):
            for key, text in _addresses_in(config):
                if _key_of(text) not in addresses:
                    return key
    return None
