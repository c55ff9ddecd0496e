"""Assembly of a complete response from its deltas, which are the fragments of a streamed response.

Providers stream tool calls in different ways. The fragments of several calls may be interleaved, an index may start at
1 or be reused with a new id, and a tool name may arrive in several fragments. This module performs no I/O: its callers
read the stream and pass the deltas to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from acorn.models.port import CallDelta, Delta, ModelResponse, RawCall
from acorn.types import Usage


@dataclass(slots=True, eq=False)
class PartialCall:
    """A tool call that is still being streamed, with the arguments that have arrived so far."""

    index: int
    """The position of the call in the response, counted from 0."""
    id: str | None = None
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    """The fragments of the JSON text of the arguments. acorn only appends to this list."""


class Assembly:
    """A response that grows with each delta (fragment) of a stream."""

    def __init__(self) -> None:
        self.calls: list[PartialCall] = []
        self._open: dict[tuple[int, str | None], PartialCall] = {}
        """A dict that maps an index and an id to a call. The id None maps to the last call with that index."""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._pending: dict[object, str] = {}
        """A dict that maps a source, such as "content" or a call, to the first half of an incomplete character.

        In UTF-16, some characters, such as emojis, consist of two halves, which are called surrogates. Some providers
        send the halves in two deltas.
        """
        self._response = ModelResponse(stop_reason="")
        self._usage: Usage | None = None

    def add_arguments(self, delta: Delta) -> PartialCall | None:
        """Add a delta that contains only further arguments of one tool call, and return that call.

        For any other delta, add nothing and return None. The caller must then call `add`, which accepts every delta.
        This method is only a faster path, because a long response has thousands of deltas with arguments.
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
        if piece := self._complete(call, fragment.arguments):
            call.pieces.append(piece)
        return call

    def add(self, delta: Delta) -> tuple[str, str, list[PartialCall]]:
        """Add a delta, and return its new text, its new reasoning and the tool calls to which it added a fragment."""
        content, reasoning = delta.content, delta.reasoning
        if content and (content := self._complete("content", content)):
            self._content.append(content)
        if reasoning and (reasoning := self._complete("reasoning", reasoning)):
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
        # If a fragment repeats the id of its call, it also repeats the complete name.
        if fragment.name and not (fragment.name == call.name and (call.pieces or id)):
            call.name += fragment.name
        if piece := self._complete(call, fragment.arguments):
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

    def _complete(self, source: object, text: str) -> str:
        """Return the next part of a streamed text, in which every character is complete.

        If `text` ends with the first half of a character, this half is stored until the next part of the same text
        arrives. `source` identifies the text, which is the content, the reasoning or the arguments of one call. A half
        whose other half never arrives is returned unchanged.
        """
        if not text or (text.isascii() and not self._pending):
            return text
        text = self._pending.pop(source, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._pending[source] = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")

    def _join(self, source: object, pieces: list[str]) -> str:
        return "".join(pieces) + self._pending.get(source, "")


def _starts_new_call(fragment: CallDelta, call: PartialCall) -> bool:
    """Return True if a fragment belongs to a new tool call, although `call` has the same index.

    Some providers use an index again for another call. The new call then has another id or another name.
    """
    if fragment.id and call.id:
        return fragment.id != call.id
    return bool(fragment.name and call.pieces and fragment.name != call.name)


def as_deltas(response: ModelResponse) -> list[Delta]:
    """Return a complete response as a list with one delta.

    Callers use it to treat a model that cannot stream like a model that can.
    """
    calls = tuple(
        CallDelta(index, call.id, call.name, call.arguments) for index, call in enumerate(response.tool_calls)
    )
    end = response.stop_reason, response.usage, response.cost, response.model, response.refusal, response.extra
    sending = response.attempts, response.waits, response.fallbacks
    return [Delta(response.content, response.reasoning or "", calls, *end, *sending)]
