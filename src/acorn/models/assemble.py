"""Assembly of streamed pieces into a response.

Providers differ in how they stream tool calls: the fragments of several calls may interleave, an index may start at 1
or be reused with a new id, and a name may arrive in pieces. This module performs no I/O. The drivers feed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from acorn.models.port import CallDelta, Delta, ModelResponse, RawCall
from acorn.types import Usage


@dataclass(slots=True, eq=False)
class PartialCall:
    """The part of a tool call that has arrived so far."""

    index: int
    """The position of the call in the response, counted from 0."""
    id: str | None = None
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    """The pieces of the arguments. The list only grows."""


class Assembly:
    """A response that is being assembled."""

    def __init__(self) -> None:
        self.calls: list[PartialCall] = []
        self._open: dict[tuple[int, str | None], PartialCall] = {}
        """The calls by index and id. The last call of each index is also stored under the id None."""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._surrogates = _SplitSurrogates()
        self._response = ModelResponse(stop_reason="")
        self._usage: Usage | None = None

    def grow(self, delta: Delta) -> PartialCall | None:
        """Add a delta that only continues the arguments of a call. Return None for any other, which `add` handles.

        The result is the same as with `add`. This shortcut exists because a long response has thousands of such
        deltas, and a stream makes a chunk of each.
        """
        if len(delta.calls) != 1 or delta.content or delta.reasoning or delta.refusal is not None:
            return None
        if delta.stop_reason or delta.usage is not None or delta.cost is not None or delta.extra:
            return None
        fragment = delta.calls[0]
        call = self._open.get((fragment.index, None))
        if call is None or not call.pieces or fragment.id or fragment.name:
            return None
        if delta.model:
            self._response.model = delta.model
        if piece := self._surrogates.join(call, fragment.arguments):
            call.pieces.append(piece)
        return call

    def add(self, delta: Delta) -> tuple[str, str, list[PartialCall]]:
        """Add a delta. Return its text, its reasoning and the calls that it changed."""
        content, reasoning = delta.content, delta.reasoning
        if content and (content := self._surrogates.join("content", content)):
            self._content.append(content)
        if reasoning and (reasoning := self._surrogates.join("reasoning", reasoning)):
            self._reasoning.append(reasoning)
        if delta.refusal is not None:
            self._refusal.append(delta.refusal)
        response = self._response
        response.stop_reason = delta.stop_reason or response.stop_reason
        response.model = delta.model or response.model
        if delta.cost is not None:
            response.cost = delta.cost
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.extra:
            response.extra.update(delta.extra)
        if delta.attempts > 1:
            response.attempts, response.waits = delta.attempts, delta.waits
        if delta.fallbacks:
            response.fallbacks = delta.fallbacks
        return content, reasoning, [self._add_call(fragment) for fragment in delta.calls]

    def _add_call(self, fragment: CallDelta) -> PartialCall:
        index, id = fragment.index, fragment.id or None
        call = self._open.get((index, id)) or self._open.get((index, None))
        if call is None or _starts_new_call(fragment, call):
            call = PartialCall(len(self.calls))
            self.calls.append(call)
        call.id = call.id or id
        self._open[index, call.id] = self._open[index, None] = call
        # A fragment that repeats the id also repeats the complete name.
        if fragment.name and not (fragment.name == call.name and (call.pieces or id)):
            call.name += fragment.name
        if piece := self._surrogates.join(call, fragment.arguments):
            call.pieces.append(piece)
        return call

    def response(self) -> ModelResponse:
        """Return the complete response after the stream has ended."""
        response = self._response
        response.content = self._join("content", self._content)
        response.reasoning = self._join("reasoning", self._reasoning) or None
        response.refusal = "".join(self._refusal) if self._refusal else None
        response.tool_calls = [RawCall(call.id, call.name, self._join(call, call.pieces)) for call in self.calls]
        response.stop_reason = response.stop_reason or ("tool_calls" if response.tool_calls else "stop")
        response.usage = self._usage or Usage(requests=1)
        return response

    def _join(self, source: object, pieces: list[str]) -> str:
        return "".join(pieces) + self._surrogates.pending.get(source, "")


def _starts_new_call(fragment: CallDelta, call: PartialCall) -> bool:
    """Return whether a fragment belongs to a new call although its index is that of an earlier one."""
    if fragment.id and call.id:
        return fragment.id != call.id
    return bool(fragment.name and call.pieces and fragment.name != call.name)


class _SplitSurrogates:
    """Characters that a provider split into two surrogates. The first waits here for the second."""

    def __init__(self) -> None:
        self.pending: dict[object, str] = {}

    def join(self, source: object, text: str) -> str:
        """Return the text of a source with complete characters. A lone surrogate stays as it is."""
        if not text or (text.isascii() and not self.pending):
            return text
        text = self.pending.pop(source, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            text, self.pending[source] = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def as_deltas(response: ModelResponse) -> list[Delta]:
    """Return a complete response as a stream of one piece, for models that cannot stream."""
    calls = tuple(
        CallDelta(index, call.id, call.name, call.arguments) for index, call in enumerate(response.tool_calls)
    )
    return [
        Delta(
            response.content,
            response.reasoning or "",
            calls,
            stop_reason=response.stop_reason,
            usage=response.usage,
            cost=response.cost,
            model=response.model,
            refusal=response.refusal,
            extra=response.extra,
            attempts=response.attempts,
            waits=response.waits,
            fallbacks=response.fallbacks,
        )
    ]
