"""Generate `src/acorn/models/prices.json` from the price table of LiteLLM: `make prices`.

The generated table contains the models of the native lanes. A lane is the way that a request takes to its provider. The
prices are in dollars per token: for input, for output, for input read from a cache, for input written to a
cache (for five minutes and for one hour), and for long prompts. A request to Anthropic must limit the length of the
response, so the table also contains the maximum response length of each Anthropic model.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "src/acorn/models/prices.json"
KEYS = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached": "cache_read_input_token_cost",
    "written": "cache_creation_input_token_cost",
    "written_hour": "cache_creation_input_token_cost_above_1hr",
}


def prices() -> dict[str, dict[str, Any]]:
    """Return a dict that maps each provider to a dict of model names and price rows."""
    table: dict[str, dict[str, Any]] = {"anthropic": {}, "openai": {}}
    for name, known in sorted(litellm_table().items()):
        provider = known.get("litellm_provider")
        if provider in table and known.get("mode") in ("chat", "responses") and known.get("input_cost_per_token"):
            table[provider][name] = row(known)
    return table


def litellm_table() -> dict[str, Any]:
    spec = importlib.util.find_spec("litellm")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "model_prices_and_context_window_backup.json"
    table: dict[str, Any] = json.loads(path.read_text())
    return table


def row(known: dict[str, Any]) -> dict[str, Any]:
    """Convert the LiteLLM entry of one model to a row of the generated table."""
    prices: dict[str, Any] = {name: known[key] for name, key in KEYS.items() if known.get(key) is not None}
    if known.get("litellm_provider") == "anthropic" and known.get("max_output_tokens"):
        prices["max_output"] = known["max_output_tokens"]
    for key in known:
        if tier_key := re.fullmatch(r"input_cost_per_token_above_(\d+)k_tokens", key):
            size = f"_above_{tier_key[1]}k_tokens"
            tier = {name: known[k + size] for name, k in KEYS.items() if known.get(k + size) is not None}
            prices["long_prompt"] = {"tokens": int(tier_key[1]) * 1000, **tier}
    return prices


if __name__ == "__main__":
    lines = [
        f'"{provider}": {{\n' + ",\n".join(f'  "{name}": {json.dumps(each)}' for name, each in models.items()) + "\n}"
        for provider, models in prices().items()
    ]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{TABLE.name}: {sum(map(len, prices().values()))} models")
