"""LiteLLM without its noise: no log lines, no warnings.

It is given the library by `library`, which alone imports it.

LiteLLM's listeners: what it would tell them of our own calls is not prepared where there are none.

After every call LiteLLM makes a long account of it, in a thread or a task of its own, for callbacks that most
programs do not have. A call that is marked here is spared that; any other, and any while somebody listens, goes
LiteLLM's way. It is given the library by `library`, which alone imports it.

LiteLLM itself: imported on first use and made quiet, and what it knows of a model.

The one file that imports it. Called by the adapter.

Whether LiteLLM can know an id that names no provider, judged by its list on disk: to import it takes seconds.

Where there is doubt the id passes, and LiteLLM is asked. Called by the adapter alone, before and after that.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from acorn.types import JsonObject


def quieten(library: Any) -> None:
    """Make LiteLLM keep to itself, for as long as the process lives."""
    library.suppress_debug_info = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    ignore_warnings()


_FILTERS: list[Any] = [
    ("ignore", None, Warning, re.compile(r"litellm(\.|$)"), 0),
    ("ignore", None, DeprecationWarning, re.compile(r"pydantic(\.|$)"), 0),
    # Of what it reads from a stream of OpenAI's Responses; Pydantic warns in its own name.
    (
        "ignore",
        re.compile(r"Pydantic serializer warnings:\s+\S+\(Expected `(ContentPart|ResponseAPI)", re.I),
        UserWarning,
        None,
        0,
    ),
]


def ignore_warnings() -> None:
    """Ignore the warnings of LiteLLM's inside, also where others have set their own rules since.

    Its streams warn with every answer, and where warnings are errors, as in many a test suite, they would fail.
    """
    if list(warnings.filters[: len(_FILTERS)]) != _FILTERS:
        for _, message, category, module, _ in reversed(_FILTERS):
            words, where = (found.pattern if found else "" for found in (message, module))
            warnings.filterwarnings("ignore", words, category, where)


_is_ours: ContextVar[bool] = ContextVar("_is_ours", default=False)
_ACCOUNTS = ("success_handler", "run_success_logging_and_cache_storage")
_NAMED_IN_A_CALL = ("callbacks", "success_callback", "logger_fn", "litellm_logging_obj")
"""Arguments of a single call by which somebody listens to it."""


@contextmanager
def unheard(arguments: Mapping[str, Any]) -> Generator[None]:
    """A call of ours with these arguments, or what is read of its answer."""
    token = _is_ours.set(not any(arguments.get(name) for name in _NAMED_IN_A_CALL))
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that was dropped is ended in whatever context
            _is_ours.reset(token)


def spare_accounts(library: Any) -> None:
    """Have LiteLLM make no account that nobody reads of a call of ours."""
    _spare_threads(library, library.litellm_core_utils.thread_pool_executor.executor)
    _spare_worker(library, library.litellm_core_utils.logging_worker.GLOBAL_LOGGING_WORKER)


def _spare_threads(library: Any, executor: Any) -> None:
    submit = executor.submit

    def submit_if_heard(act: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if _is_ours.get() and _is_account(act, *args[:1]) and not _is_heard(library):
            nothing: Future[Any] = Future()
            nothing.set_result(None)
            return nothing
        done: Future[Any] = submit(act, *args, **kwargs)
        return done

    executor.submit = submit_if_heard


def _is_account(*acts: Any) -> bool:
    """Whether an account is made; some versions have it made within a copied context."""
    return any(getattr(act, "__name__", "") in _ACCOUNTS for act in acts)


def _spare_worker(library: Any, worker: Any) -> None:
    # The worker knows one event loop at a time: with two, each in a thread of its own, it fails aloud.
    enqueue = worker.ensure_initialized_and_enqueue

    def enqueue_if_heard(async_coroutine: Coroutine[Any, Any, Any]) -> None:
        if _is_ours.get() and not _is_heard(library):
            async_coroutine.close()
        else:
            enqueue(async_coroutine)

    worker.ensure_initialized_and_enqueue = enqueue_if_heard


def _is_heard(library: Any) -> bool:
    """Whether somebody listens. Two listeners are LiteLLM's own and have nothing to hear of a call that succeeded."""
    listeners = (*library.callbacks, *library.success_callback, *library._async_success_callback)
    return (
        any(each != "cache" and type(each).__name__ != "AnthropicCacheControlHook" for each in listeners)
        or bool(library.max_budget)  # what was spent is counted there
        or bool(library.set_verbose)
        or "LITELLM_PRINT_STANDARD_LOGGING_PAYLOAD" in os.environ
    )


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


_LIST = "model_prices_and_context_window_backup.json"
_RULES = "fallback_generalizations"
_IN_CODE = ("gpt-image", "amazon_nova", "maritalk", "llama2", "q841o8w", "31dxrj3", "qvv0xeq", "*")
"""What bare ids begin with that LiteLLM knows by its code alone."""
_SAYS_WHERE = ("custom_llm_provider", "api_base", "base_url")
_TALK = ("chat", "completion", "responses")


def is_unknown(name: str, config: Mapping[str, Any]) -> bool:
    """Whether it is certain that LiteLLM will find no provider for a model."""
    if "/" in name or ":" in name or name.startswith(_IN_CODE) or any(config.get(key) for key in _SAYS_WHERE):
        return False
    listing = _listing()
    if listing is None or f'\n    "{name}": {{'.encode() in listing:  # most ids are right, and the list is long
        return False
    known = _known()
    rules = [rule for rule in known.get(_RULES, {}).get("rules", []) if "litellm_provider" in rule["model_info"]]
    return name not in known and not any(re.search(rule["pattern"], name) for rule in rules)


def words_for_unknown(name: str) -> str:
    """What to tell whoever gave an id that no provider can be found for."""
    near = [f"`{each}`" for each in _near(name.rpartition("/")[2])]
    hint = f" Did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?" if near else ""
    what = "names a provider that LiteLLM does not know" if "/" in name else "names no provider"
    return (
        f"`{name}` {what}. Check the model id `{name}`: it is `provider/model`, as LiteLLM lists them, or "
        f"`openai/model` with an `api_base` for a server that speaks OpenAI's protocol.{hint}"
    )


@lru_cache(maxsize=1)
def _listing() -> bytes | None:
    """LiteLLM's own list; None where it is not there, or not the one that will count."""
    by_network = os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP", "true").lower() != "true"
    found = None if by_network or os.environ.get("USE_LITELLM_PROXY") else find_spec("litellm")
    file = Path(next(iter(found.submodule_search_locations or ()), "")) / _LIST if found else None
    return file.read_bytes() if file is not None and file.is_file() else None


@lru_cache(maxsize=1)
def _known() -> JsonObject:
    read: JsonObject = from_json(_listing() or b"{}")
    return read


def _near(name: str) -> list[str]:
    """Ids whose last part is much like the name, the likeliest first; of several providers whoever made the model."""
    by_model: dict[str, tuple[int, str]] = {}
    for each, entry in _known().items():
        provider, model = str(entry.get("litellm_provider")), each.rpartition("/")[2]
        if entry.get("mode") not in _TALK or not (provider.isalpha() or "/" in each):
            continue
        is_makers = "/" not in each or each.startswith(model.partition("-")[0] + "/")
        ranked = (0 if is_makers else each.count("/"), each if "/" in each else f"{provider}/{each}")
        by_model[model] = min(ranked, by_model.get(model, ranked), key=lambda found: found[0])
    close = difflib.get_close_matches(name.lower(), by_model, n=3, cutoff=0.6)
    return [by_model[model][1] for model in close]
