"""The LiteLLM library: imported on first use, without its log lines, warnings and unused callbacks.

This is the only module that imports LiteLLM, which takes seconds. It also answers what LiteLLM knows of a model. An id
without a provider is checked against LiteLLM's list on disk, without importing it. In case of doubt the id passes.

After every call, LiteLLM prepares a long report for its callbacks, in a separate thread or task. Most programs have no
callbacks, so calls within `without_callbacks` skip the report unless there is one.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
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

_HTTP_VARIABLE = "EXPERIMENTAL_OPENAI_BASE_LLM_HTTP_HANDLER"
_SDK_PROVIDERS = ("azure", "azure_text", "text-completion-openai", "aiohttp_openai")
"""Providers for which LiteLLM uses another library's HTTP client."""
_lock = threading.Lock()


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the LiteLLM module, imported once and without its noise."""
    with _lock:
        # Do not download the price list and the list of headers.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
        # Use LiteLLM's own HTTP code: OpenAI's SDK processes every message of every request.
        os.environ.setdefault(_HTTP_VARIABLE, "True")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import litellm

            module: Any = litellm
            for name in ("logging_worker", "thread_pool_executor"):
                import_module(f"litellm.litellm_core_utils.{name}")  # Some versions do not import it themselves.
            for response_class in (module.ModelResponse, module.ModelResponseStream):
                response_class()  # Pydantic completes the class with its first instance, and warns.
        silence(module)
        skip_unused_reports(module)
        return module


def is_loaded() -> bool:
    """Return whether the process has imported LiteLLM."""
    return "litellm" in sys.modules


# Log lines and warnings


def silence(module: Any) -> None:
    """Turn off LiteLLM's output for the life of the process."""
    module.suppress_debug_info = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    ignore_warnings()


_FILTERS: list[tuple[str, re.Pattern[str] | None, type[Warning], re.Pattern[str] | None, int]] = [
    ("ignore", None, Warning, re.compile(r"litellm(\.|$)"), 0),
    ("ignore", None, DeprecationWarning, re.compile(r"pydantic(\.|$)"), 0),
    # Pydantic warns of events of OpenAI's Responses API that LiteLLM reads. The warning names Pydantic's module.
    (
        "ignore",
        re.compile(r"Pydantic serializer warnings:\s+\S+\(Expected `(ContentPart|ResponseAPI)", re.I),
        UserWarning,
        None,
        0,
    ),
]


def ignore_warnings() -> None:
    """Ignore warnings from within LiteLLM, even if the program has set other filters since.

    Its streams warn with every response. Where warnings are errors, as in many test suites, the request would fail.
    """
    if list(warnings.filters[: len(_FILTERS)]) != _FILTERS:
        for _, message, category, module, _ in reversed(_FILTERS):
            message_pattern, module_pattern = (pattern.pattern if pattern else "" for pattern in (message, module))
            warnings.filterwarnings("ignore", message_pattern, category, module_pattern)


# Callbacks

_skips_reports: ContextVar[bool] = ContextVar("_skips_reports", default=False)
_REPORT_FUNCTIONS = ("success_handler", "run_success_logging_and_cache_storage")
_CALLBACK_ARGUMENTS = ("callbacks", "success_callback", "logger_fn", "litellm_logging_obj")
"""Arguments of a call that set callbacks for this call alone."""


@contextmanager
def without_callbacks(arguments: JsonObject) -> Generator[None]:
    """Skip LiteLLM's reports within this block, unless these arguments of the call set callbacks."""
    token = _skips_reports.set(not any(arguments.get(name) for name in _CALLBACK_ARGUMENTS))
    try:
        yield
    finally:
        with suppress(ValueError):  # An abandoned coroutine may be closed in another context.
            _skips_reports.reset(token)


def skip_unused_reports(module: Any) -> None:
    """Patch LiteLLM so that it skips its report of a call within `without_callbacks`."""
    _patch_executor(module, module.litellm_core_utils.thread_pool_executor.executor)
    _patch_worker(module, module.litellm_core_utils.logging_worker.GLOBAL_LOGGING_WORKER)


def _patch_executor(module: Any, executor: Any) -> None:
    submit = executor.submit

    def submit_if_needed(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if _skips_reports.get() and _is_report(function, *args[:1]) and not _has_callbacks(module):
            skipped: Future[Any] = Future()
            skipped.set_result(None)
            return skipped
        submitted: Future[Any] = submit(function, *args, **kwargs)
        return submitted

    executor.submit = submit_if_needed


def _is_report(*functions: object) -> bool:
    """Return whether a report would be prepared. Some versions pass the function to `Context.run`."""
    return any(getattr(function, "__name__", "") in _REPORT_FUNCTIONS for function in functions)


def _patch_worker(module: Any, worker: Any) -> None:
    # The worker supports one event loop at a time. With two loops in two threads, it fails and logs.
    enqueue = worker.ensure_initialized_and_enqueue

    def enqueue_if_needed(async_coroutine: Coroutine[Any, Any, Any]) -> None:
        if _skips_reports.get() and not _has_callbacks(module):
            async_coroutine.close()
        else:
            enqueue(async_coroutine)

    worker.ensure_initialized_and_enqueue = enqueue_if_needed


def _has_callbacks(module: Any) -> bool:
    """Return whether a callback needs the report. Two of LiteLLM's own do not."""
    callbacks = (*module.callbacks, *module.success_callback, *module._async_success_callback)
    return (
        any(callback != "cache" and type(callback).__name__ != "AnthropicCacheControlHook" for callback in callbacks)
        or bool(module.max_budget)  # LiteLLM counts the spending there.
        or bool(module.set_verbose)
        or "LITELLM_PRINT_STANDARD_LOGGING_PAYLOAD" in os.environ
    )


# Models


def may_have_keys() -> bool:
    """Return whether LiteLLM may know keys that are not in the environment: it has some, or will read an `.env`."""
    if is_loaded():
        module = sys.modules["litellm"]
        names = (
            "api_key",
            "openai_key",
            "anthropic_key",
            "groq_key",
            "cohere_key",
            "openrouter_key",
            "togetherai_api_key",
        )
        return any(getattr(module, name, None) for name in (*names, "secret_manager_client"))
    if os.environ.get("USE_LITELLM_PROXY"):
        return True
    spec = find_spec("litellm") if os.environ.get("LITELLM_MODE", "DEV") == "DEV" else None
    if spec is None or spec.origin is None:
        return False
    return any((folder / ".env").is_file() for folder in (Path.cwd(), *Path(spec.origin).parents))


@lru_cache(maxsize=256)
def find_provider(name: str, provider: str | None, address: str | None) -> str:
    """Return the name of a model's provider in LiteLLM."""
    try:
        return str(library().get_llm_provider(name, provider, address)[1])
    except Exception:  # LiteLLM does not know the model.
        return name.partition("/")[0]


@lru_cache(maxsize=256)
def supported_params(name: str, provider: str | None) -> frozenset[str] | None:
    """Return the parameters that a model supports by LiteLLM's table, or None if the model is not in it."""
    try:
        params = library().get_supported_openai_params(model=name, custom_llm_provider=provider)
    except Exception:
        return None
    return None if params is None else frozenset(params)


def takes_client(provider: str) -> bool:
    """Return whether LiteLLM uses the HTTP client that it is given for asynchronous requests to a provider."""
    return provider not in _SDK_PROVIDERS and os.environ.get(_HTTP_VARIABLE, "").lower() == "true"


_LIST_FILE = "model_prices_and_context_window_backup.json"
_RULES_KEY = "fallback_generalizations"
_PREFIXES_IN_CODE = ("gpt-image", "amazon_nova", "maritalk", "llama2", "q841o8w", "31dxrj3", "qvv0xeq", "*")
"""Prefixes of ids without a provider that LiteLLM handles in its code."""
_ADDRESS_KEYS = ("custom_llm_provider", "api_base", "base_url")
_CHAT_MODES = ("chat", "completion", "responses")


def is_unknown(name: str, config: JsonObject) -> bool:
    """Return whether LiteLLM will certainly not find a provider for a model."""
    if "/" in name or ":" in name or name.startswith(_PREFIXES_IN_CODE) or any(map(config.get, _ADDRESS_KEYS)):
        return False
    text = _model_list_text()
    if text is None or f'\n    "{name}": {{'.encode() in text:  # Most ids are correct, and parsing the list is slow.
        return False
    models = _model_list()
    rules = [rule for rule in models.get(_RULES_KEY, {}).get("rules", []) if "litellm_provider" in rule["model_info"]]
    return name not in models and not any(re.search(rule["pattern"], name) for rule in rules)


def unknown_model_message(name: str) -> str:
    """Return the error message for an id whose provider is unknown."""
    similar = [f"`{id}`" for id in _similar_ids(name.rpartition("/")[2])]
    hint = f" Did you mean {' or '.join(filter(None, (', '.join(similar[:-1]), similar[-1])))}?" if similar else ""
    problem = "names a provider that LiteLLM does not know" if "/" in name else "does not name a provider"
    return f"`{name}` {problem}. {CHECK_MODEL_ID.format(name)}{hint}"


@lru_cache(maxsize=1)
def _model_list_text() -> bytes | None:
    """Return LiteLLM's list of models, or None if it is missing or LiteLLM will use another one."""
    is_downloaded = os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP", "true").lower() != "true"
    spec = None if is_downloaded or os.environ.get("USE_LITELLM_PROXY") else find_spec("litellm")
    file = Path(next(iter(spec.submodule_search_locations or ()), "")) / _LIST_FILE if spec else None
    return file.read_bytes() if file is not None and file.is_file() else None


@lru_cache(maxsize=1)
def _model_list() -> JsonObject:
    models: JsonObject = from_json(_model_list_text() or b"{}")
    return models


def _similar_ids(name: str) -> list[str]:
    """Return ids with a similar last part, the most likely first. Of several providers, the model's vendor wins."""
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
