"""Reading what came back: the calls of a response, what each of them means, a refusal, and what a run survives.

From deltas to chunks: one of these for each response that streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pydantic_core import from_json

from acorn._declare.tools.collect import FINISH
from acorn._declare.tools.kinds import AgentTool, ArgumentError
from acorn._formats.schema.shape import Shape
from acorn._history.messages import CUT_OFF, fresh_ids
from acorn._machine.asks import AskTool
from acorn._machine.plan import BranchTool, Toolset
from acorn.chunk import AnswerReader, StreamChunk
from acorn.errors import LimitError, ModelError
from acorn.models.assemble import Assembly, PartialCall
from acorn.models.port import Delta, Model, ModelResponse, RawCall
from acorn.record import TOOL, Run
from acorn.types import ToolCall, ToolResult


def read_calls(raw: Sequence[RawCall], index: int) -> list[ToolCall]:
    """The calls of a response, each with an id of its own and arguments that are a dict."""
    calls: list[ToolCall] = []
    if not raw:
        return calls
    is_usual = len(raw) == 1 and raw[0].id
    ids = [str(raw[0].id)] if is_usual else fresh_ids([call.id or "" for call in raw], index, set())
    for call_id, call in zip(ids, raw, strict=True):
        arguments = call.arguments or "{}"
        try:
            parsed = from_json(arguments)
        except (ValueError, TypeError):  # no JSON, or half a surrogate pair in it
            parsed = None
        calls.append(ToolCall(call_id, call.name, parsed if isinstance(parsed, dict) else {}, arguments))
    return calls


def refusal(response: ModelResponse, model: Model) -> ModelError | None:
    """The error for a response that is a refusal; None for any other."""
    if response.refusal is None and response.stop_reason != "content_filter":
        return None
    text = response.refusal or response.content or "(no text)"
    how = "refused to answer" if response.refusal is not None else "stopped at its content filter"
    name = response.fallbacks[-1].to if response.fallbacks else model.name
    return ModelError(f"`{name}` {how}: {text[:500]} Change the input or the prompt, or use another model.")


def may_go_on(error: BaseException) -> bool:
    """Whether a run that ends with this was only interrupted: by Ctrl-C, by a limit, by a provider in trouble."""
    if isinstance(error, ModelError):
        return error.retryable
    return isinstance(error, LimitError) or not isinstance(error, Exception)


def prepare(
    call: ToolCall, toolset: Toolset, run: Run, was_cut: bool, start: Callable[[AgentTool], BranchTool] | None
) -> AskTool | ToolResult | BranchTool:
    """The function and its arguments, a branch to begin, or the error that the model will read."""
    tool = toolset.named.get(call.name) or toolset.branches.get(call.name)
    if tool is None:
        names = ", ".join(f"`{name}`" for name in (*toolset.named, *toolset.branches, FINISH))
        return ToolResult(call.id, call.name, error=f"There is no tool `{call.name}`. There are: {names}.")
    if was_cut:
        return ToolResult(call.id, call.name, error=CUT_OFF)
    if isinstance(tool, BranchTool):
        return tool
    if isinstance(tool, AgentTool) and start is not None:
        return start(tool)
    try:
        args, kwargs = tool.bind(call.raw_arguments, run)
    except ArgumentError as error:
        return ToolResult(call.id, call.name, error=str(error))
    return AskTool(f"{TOOL}{run.steps} {call.id}", call, tool, args, kwargs, tool.options.timeout or math.inf)


class Streamer:
    """Assembles a response and tells of it piece by piece."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._assembly = Assembly()
        self._answers: dict[int, AnswerReader] = {}

    def add(self, delta: Delta) -> Sequence[StreamChunk]:
        """The chunks that a delta gives: one, or one for each call it touches."""
        grown = self._assembly.grow(delta)
        if grown is not None:  # most deltas of a long answer
            return (self._of_call(grown),)
        content, reasoning, touched = self._assembly.add(delta)
        chunks = [_of_text(content, reasoning)] if content or reasoning else []
        if touched:
            # While only the name is coming in, half of it may be half of `__finish__`.
            known = [c for c in dict.fromkeys(touched) if c.pieces or c.name == FINISH or not FINISH.startswith(c.name)]
            chunks += map(self._of_call, known)
        return chunks

    def end(self) -> tuple[ModelResponse, StreamChunk]:
        """The response, and the last chunk of it; the answer is in that one too."""
        response = self._assembly.response()
        written = [call for call in self._assembly.calls if call.name == FINISH]
        last = self._of_call(written[-1]) if written else StreamChunk()
        last.done = True
        return response, last

    def _of_call(self, call: PartialCall) -> StreamChunk:
        if call.name != FINISH:
            return StreamChunk(call=call)
        answer = self._answers.get(call.index)
        if answer is None:
            answer = self._answers[call.index] = AnswerReader(call.pieces, self._shape)
        return answer.chunk()


def _of_text(content: str, reasoning: str) -> StreamChunk:
    chunk: StreamChunk = StreamChunk()
    if content:
        chunk.content = content
    if reasoning:
        chunk.reasoning = reasoning
    return chunk
