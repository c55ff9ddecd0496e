"""Reading what came back: the calls of a response, what each of them means, and a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from acorn._loop.asks import Invocation
from acorn._loop.messages import CUT_OFF, fresh_ids
from acorn._loop.plan import BranchTool, Toolset
from acorn._tools.collect import FINISH
from acorn._tools.port import ArgumentError
from acorn.errors import ModelError
from acorn.models.port import Model, ModelResponse, RawCall
from acorn.record import Run
from acorn.types import ToolCall, ToolResult


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


def prepare(call: ToolCall, toolset: Toolset, run: Run[Any], was_cut: bool) -> Invocation | ToolResult | BranchTool:
    """The function and its arguments, a branch to begin, or the error that the model will read."""
    tool = toolset.named.get(call.name) or toolset.branches.get(call.name)
    if tool is None:
        names = ", ".join(f"`{name}`" for name in (*toolset.named, *toolset.branches, FINISH))
        return ToolResult(call.id, call.name, error=f"There is no tool `{call.name}`. There are: {names}.")
    if was_cut:
        return ToolResult(call.id, call.name, error=CUT_OFF)
    if isinstance(tool, BranchTool):
        return tool
    try:
        args, kwargs = tool.bind(call.raw_arguments, run)
    except ArgumentError as error:
        return ToolResult(call.id, call.name, error=str(error))
    return Invocation(call, tool, args, kwargs)
