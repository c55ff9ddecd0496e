"""acorn on the LiteLLM lane."""

from __future__ import annotations

from peers.contenders import acorn_native
from peers.contenders.acorn_native import FINISH, loop, many, parallel, single, stream

__all__ = ["FINISH", "PACKAGES", "loop", "many", "parallel", "single", "stream"]

PACKAGES = ["acorn-agents", "litellm"]
acorn_native.LANE["lane"] = "litellm"
