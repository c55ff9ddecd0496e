"""Access to the LiteLLM library: import, silence and model names.

Only this module imports LiteLLM. It does so on first use, because the import takes several seconds. A program may also
use LiteLLM itself. acorn therefore replaces nothing in LiteLLM, except an unset `client_session` (see `transport.py`),
and hides only the log lines of its own calls.

The functions for model names find the provider of a model id. Without the import, they read LiteLLM's model list file.
If the file cannot decide whether a model id is valid, acorn accepts the id.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from acorn.models.failures import CHECK_MODEL_ID
from acorn.types import JsonObject

# Importing

_lock = threading.Lock()


@lru_cache(maxsize=1)
def litellm() -> Any:
    """Return the LiteLLM module.

    The first call imports the module.
    """
    with _lock:
        # LiteLLM must not download its price list and its list of headers.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module: Any = import_module("litellm")
            # LiteLLM imports this module after its first call. The import warns, and a program may raise warnings as
            # errors.
            with suppress(ImportError):
                import_module("litellm.integrations.shadow_eval_logger")
            for response_class in (module.ModelResponse, module.ModelResponseStream):
                response_class()  # Pydantic completes a class when it creates the first instance, and then warns.
        # LiteLLM prints advice for each failed request to standard output. Only this setting prevents it.
        module.suppress_debug_info = True
        for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
            logging.getLogger(name).addFilter(lambda _: not _is_silent.get())
        return module


def is_loaded() -> bool:
    """Return True if this process has already imported LiteLLM."""
    return "litellm" in sys.modules


# Silence

_FILTERS: tuple[tuple[str, type[Warning], str], ...] = (
    ("", Warning, r"litellm(\.|$)"),
    ("", DeprecationWarning, r"pydantic(\.|$)"),
    # Pydantic warns when LiteLLM parses events of OpenAI's Responses API. The module of this warning is Pydantic.
    (r"(?s)Pydantic serializer warnings:.*`(ChatCompletion|ContentPart|ResponseAPI)", UserWarning, ""),
)
"""The message, the category and the module of the warnings that acorn ignores."""
_added_filters: list[Any] = []
"""The filters that Python made of `_FILTERS`."""
_is_silent: ContextVar[bool] = ContextVar("_is_silent", default=False)
"""Whether the current code runs in a `silence` block."""


@contextmanager
def silence() -> Generator[None]:
    """Hide LiteLLM's log lines and warnings in this `with` block.

    LiteLLM warns in every streamed response. In a program that turns warnings into errors, as many test suites do,
    every request would fail. The warning filters are checked each time, because the program may have added others.
    """
    if not _added_filters or warnings.filters[: len(_FILTERS)] != _added_filters:
        for message, category, module in _FILTERS:
            warnings.filterwarnings("ignore", message, category, module)
        _added_filters[:] = warnings.filters[: len(_FILTERS)]
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)


# Models


_KEY_ATTRIBUTES = (
    *("api_key", "openai_key", "anthropic_key", "groq_key", "cohere_key", "openrouter_key", "togetherai_api_key"),
    "secret_manager_client",
)
"""The attributes of the LiteLLM module that may contain API keys."""


def may_have_keys() -> bool:
    """Return True if LiteLLM may find API keys outside the environment variables.

    This is the case if LiteLLM has keys in its module attributes, uses a proxy or a secret manager, or loads an `.env`
    file.
    """
    if is_loaded():
        module = sys.modules["litellm"]
        return any(getattr(module, name, None) for name in _KEY_ATTRIBUTES)
    if os.environ.get("USE_LITELLM_PROXY"):
        return True
    spec = find_spec("litellm") if os.environ.get("LITELLM_MODE", "DEV") == "DEV" else None
    if spec is None or spec.origin is None:
        return False
    return any((folder / ".env").is_file() for folder in (Path.cwd(), *Path(spec.origin).parents))


@lru_cache(maxsize=256)
def find_provider(name: str, provider: str | None, address: str | None) -> str:
    """Return the name that LiteLLM uses for the provider of a model.

    If LiteLLM does not know the model, return the prefix of the model id.
    """
    try:
        return str(litellm().get_llm_provider(name, provider, address)[1])
    except Exception:  # LiteLLM does not know the model.
        return name.partition("/")[0]


@lru_cache(maxsize=256)
def supported_params(name: str, provider: str | None) -> frozenset[str] | None:
    """Return the parameters that a model supports according to LiteLLM, or None if LiteLLM does not know the model."""
    try:
        params = litellm().get_supported_openai_params(model=name, custom_llm_provider=provider)
    except Exception:
        return None
    return None if params is None else frozenset(params)


_LIST_FILE = "model_prices_and_context_window_backup.json"
"""The name of LiteLLM's model list file."""
_RULES_KEY = "fallback_generalizations"
"""The key of the list file for patterns of model ids that are not in the list."""
_PREFIXES_IN_CODE = ("gpt-image", "amazon_nova", "maritalk", "llama2", "q841o8w", "31dxrj3", "qvv0xeq", "*")
"""The prefixes of model ids that LiteLLM supports without a provider although they are not in its list."""
_ADDRESS_KEYS = ("custom_llm_provider", "api_base", "base_url")
_CHAT_MODES = ("chat", "completion", "responses")


def is_unknown(name: str, config: JsonObject) -> bool:
    """Return True if it is certain that LiteLLM cannot find a provider for a model id."""
    if "/" in name or ":" in name or name.startswith(_PREFIXES_IN_CODE) or any(map(config.get, _ADDRESS_KEYS)):
        return False
    text = _model_list_text()
    # Parsing the list is slow. Most ids are correct, and a search in the text of the list is enough for a correct id.
    if text is None or f'\n    "{name}": {{'.encode() in text:
        return False
    models = _model_list()
    rules = [rule for rule in models.get(_RULES_KEY, {}).get("rules", []) if "litellm_provider" in rule["model_info"]]
    return name not in models and not any(re.search(rule["pattern"], name) for rule in rules)


def unknown_model_message(name: str) -> str:
    """Return the error message for a model id with an unknown provider.

    The message suggests similar model ids.
    """
    similar = [f"`{id}`" for id in _similar_ids(name.rpartition("/")[2])]
    hint = f" Did you mean {' or '.join(filter(None, (', '.join(similar[:-1]), similar[-1])))}?" if similar else ""
    problem = "has a provider that LiteLLM does not know" if "/" in name else "does not contain a provider"
    return f"`{name}` {problem}. {CHECK_MODEL_ID.format(name)}{hint}"


@lru_cache(maxsize=1)
def _model_list_text() -> bytes | None:
    """Return the content of LiteLLM's model list file.

    Return None if the file is missing, or if it may not be complete, because LiteLLM downloads another list or uses a
    proxy.
    """
    is_downloaded = os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP", "true").lower() != "true"
    spec = None if is_downloaded or os.environ.get("USE_LITELLM_PROXY") else find_spec("litellm")
    file = Path(next(iter(spec.submodule_search_locations or ()), "")) / _LIST_FILE if spec else None
    return file.read_bytes() if file is not None and file.is_file() else None


@lru_cache(maxsize=1)
def _model_list() -> JsonObject:
    models: JsonObject = from_json(_model_list_text() or b"{}")
    return models


def _similar_ids(name: str) -> list[str]:
    """Return up to three known model ids with a similar model name.

    The most similar id is the first one. If several providers offer the same model, the result contains the id of the
    company that created the model.
    """
    by_model: dict[str, tuple[int, str]] = {}
    for id, entry in _model_list().items():
        provider, model = str(entry.get("litellm_provider")), id.rpartition("/")[2]
        if entry.get("mode") not in _CHAT_MODES or not (provider.isalpha() or "/" in id):
            continue
        is_vendor = "/" not in id or id.startswith(model.partition("-")[0] + "/")
        ranked = (0 if is_vendor else id.count("/"), id if "/" in id else f"{provider}/{id}")
        by_model[model] = min(ranked, by_model.get(model, ranked), key=lambda candidate: candidate[0])
    close = difflib.get_close_matches(name.lower(), by_model, n=3, cutoff=0.6)
    return [by_model[model][1] for model in close]
