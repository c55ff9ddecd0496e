"""Whether LiteLLM can know an id that names no provider, judged by its list on disk: to import it takes seconds.

Where there is doubt the id passes, and LiteLLM is asked. Called by the adapter alone, before and after that.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic_core import from_json

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
def _known() -> dict[str, Any]:
    read: dict[str, Any] = from_json(_listing() or b"{}")
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
