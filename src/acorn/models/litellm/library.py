"""LiteLLM itself: imported on first use and made quiet, and what it knows of a model.

The one file that imports it. Called by the adapter.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from acorn.models.litellm.listeners import spare_accounts
from acorn.models.litellm.quiet import quieten

_OWN_HTTP = "EXPERIMENTAL_OPENAI_BASE_LLM_HTTP_HANDLER"
_SDKS = ("azure", "azure_text", "text-completion-openai", "aiohttp_openai")
"""Providers whose client is not LiteLLM's own."""
_lock = threading.Lock()


@lru_cache(maxsize=1)
def library() -> Any:
    """The library, imported once and made quiet."""
    with _lock:
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no price list from the network
        os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")  # nor a list of headers
        # Its own HTTP code: the SDK under it walks every message of every request.
        os.environ.setdefault(_OWN_HTTP, "True")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import litellm

            found: Any = litellm
            for name in ("logging_worker", "thread_pool_executor"):
                import_module(f"litellm.litellm_core_utils.{name}")  # not every version loads it by itself
            for kind in (found.ModelResponse, found.ModelResponseStream):
                kind()  # completed when first made, with warnings of their own
        quieten(found)
        spare_accounts(found)
        return found


def may_have_keys() -> bool:
    """Whether it may know keys that are not in the environment: it was given some, or will read a file of them."""
    if is_loaded():
        loaded: Any = sys.modules["litellm"]
        names = (
            "api_key",
            "openai_key",
            "anthropic_key",
            "groq_key",
            "cohere_key",
            "openrouter_key",
            "togetherai_api_key",
        )
        return any(getattr(loaded, name, None) for name in (*names, "secret_manager_client"))
    if os.environ.get("USE_LITELLM_PROXY"):
        return True
    found = find_spec("litellm") if os.environ.get("LITELLM_MODE", "DEV") == "DEV" else None
    if found is None or found.origin is None:
        return False
    return any((folder / ".env").is_file() for folder in (Path.cwd(), *Path(found.origin).parents))


def is_loaded() -> bool:
    """Whether somebody has imported it."""
    return "litellm" in sys.modules


@lru_cache(maxsize=256)
def provider_of(name: str, provider: str | None, address: str | None) -> str:
    """The provider of a model as LiteLLM spells it."""
    try:
        return str(library().get_llm_provider(name, provider, address)[1])
    except Exception:  # unknown to LiteLLM as well
        return name.partition("/")[0]


@lru_cache(maxsize=256)
def known_params(name: str, provider: str | None) -> frozenset[str] | None:
    """What a model takes by LiteLLM's table; None for one that is not in it, to be asked and its answer checked."""
    try:
        found = library().get_supported_openai_params(model=name, custom_llm_provider=provider)
    except Exception:
        return None
    return None if found is None else frozenset(found)


def takes_client(provider: str) -> bool:
    """Whether LiteLLM sends the async requests to a provider by the client that it is given."""
    return provider not in _SDKS and os.environ.get(_OWN_HTTP, "").lower() == "true"
