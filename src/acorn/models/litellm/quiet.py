"""LiteLLM without its noise: no log lines, no warnings.

It is given the library by `library`, which alone imports it.
"""

from __future__ import annotations

import logging
import re
import warnings
from typing import Any


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
