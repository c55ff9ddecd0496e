"""Reading what came back: the calls of a response, and a refusal."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import from_json

from acorn._loop.messages import fresh_ids
from acorn.errors import ModelError
from acorn.models.port import Model, ModelResponse, RawCall
from acorn.types import ToolCall


def read_calls(raw: Sequence[RawCall], index: int) -> list[ToolCall]:
    """The calls of a response, each with an id of its own and arguments that are a dict."""
    calls: list[ToolCall] = []
    ids = fresh_ids([call.id or "" for call in raw], index, set())
    for call_id, call in zip(ids, raw, strict=True):
        try:
            parsed = from_json(call.arguments or "{}")
        except (ValueError, TypeError):  # no JSON, or half a surrogate pair in it
            parsed = None
        calls.append(ToolCall(call_id, call.name, parsed if isinstance(parsed, dict) else {}, call.arguments or "{}"))
    return calls


def refusal(response: ModelResponse, model: Model) -> ModelError | None:
    """The error for a response that is a refusal; None for any other."""
    if response.refusal is None and response.stop_reason != "content_filter":
        return None
    text = response.refusal or response.content or "(no text)"
    how = "refused to answer" if response.refusal is not None else "stopped at its content filter"
    return ModelError(f"`{model.name}` {how}: {text[:500]} Change the input or the prompt, or use another model.")
