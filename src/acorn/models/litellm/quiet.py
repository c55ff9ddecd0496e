"""LiteLLM without its noise: no log lines, no warnings, no work for listeners that are not there.

It is given the library by `library`, which alone imports it.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Coroutine
from typing import Any


def quieten(library: Any) -> None:
    """Make LiteLLM keep to itself, for as long as the process lives."""
    library.suppress_debug_info = True
    library.disable_streaming_logging = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    ignore_warnings()
    _rest_the_worker(library)


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


def _rest_the_worker(library: Any) -> None:
    """Spare LiteLLM's logging worker what no callback would hear.

    It is handed every async call, and it knows one event loop at a time: with two, each in a thread of its
    own, it fails aloud. Two listeners are LiteLLM's own and have nothing to hear of a call that succeeded.
    """
    worker = library.litellm_core_utils.logging_worker.GLOBAL_LOGGING_WORKER
    enqueue = worker.ensure_initialized_and_enqueue

    def enqueue_if_heard(async_coroutine: Coroutine[Any, Any, Any]) -> None:
        listeners = (*library.callbacks, *library.success_callback, *library._async_success_callback)
        if any(each != "cache" and type(each).__name__ != "AnthropicCacheControlHook" for each in listeners):
            enqueue(async_coroutine)
        else:
            async_coroutine.close()

    worker.ensure_initialized_and_enqueue = enqueue_if_heard
