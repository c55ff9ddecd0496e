"""LiteLLM's listeners: what it would tell them of our own calls is not prepared where there are none.

After every call LiteLLM makes a long account of it, in a thread or a task of its own, for callbacks that most
programs do not have. A call that is marked here is spared that; any other, and any while somebody listens, goes
LiteLLM's way. It is given the library by `library`, which alone imports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

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
