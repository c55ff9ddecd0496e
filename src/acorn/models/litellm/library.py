"""LiteLLM itself: imported on first use, made quiet, and given an HTTP client that sends once.

The one file that imports it. Called by the adapter.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import warnings
from collections.abc import AsyncGenerator
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib import import_module
from typing import Any

from acorn.models.litellm.quiet import quieten
from acorn.models.timeouts import TIMEOUT

_OWN_HTTP = "EXPERIMENTAL_OPENAI_BASE_LLM_HTTP_HANDLER"
_SDKS = ("azure", "azure_text", "text-completion-openai", "aiohttp_openai")
"""Providers whose client is not LiteLLM's own."""
_lock = threading.Lock()


@lru_cache(maxsize=1)
def library() -> Any:
    """The library, imported once and made quiet."""
    with _lock:
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no price list from the network
        # Its own HTTP code: the SDK under it walks every message of every request.
        os.environ.setdefault(_OWN_HTTP, "True")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import litellm

            found: Any = litellm
            import_module("litellm.litellm_core_utils.logging_worker")  # not every version loads it by itself
            for kind in (found.ModelResponse, found.ModelResponseStream):
                kind()  # completed when first made, with warnings of their own
        quieten(found)
        return found


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


_clients: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[Any], Any]] = {}


async def http_client() -> Any:
    """One client for each event loop. A loop that ends closes its async generators, and so this one's client."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        for ended in [known for known in list(_clients) if known.is_closed()]:
            _clients.pop(ended, None)
        keeper = _keep_client()
        _clients[loop] = keeper, await anext(keeper)
    return _clients[loop][1]


async def _keep_client() -> AsyncGenerator[Any]:
    client = _client_class()()
    try:
        yield client
    finally:
        await client.close()


@lru_cache(maxsize=1)
def _client_class() -> Any:
    import httpx

    http: Any = library().llms.custom_httpx.http_handler

    class Once(http.AsyncHTTPHandler):  # type: ignore[misc]
        """Sends a request exactly once, and leaves nothing open when its loop is gone."""

        def create_client(self, timeout: Any = None, *_: Any, **__: Any) -> Any:
            return httpx.AsyncClient(
                timeout=timeout or TIMEOUT,
                verify=http.get_ssl_configuration(),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                follow_redirects=True,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            )

        async def single_connection_post_request(self, *_: Any, **__: Any) -> Any:
            raise  # called while the error is being handled: hand it on

    return Once
