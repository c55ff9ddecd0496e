"""Deltas to a response: what a provider sends in pieces, put together.

Fragments of several calls may interleave; an index may start at 1 or come again with a new id; names may
come in pieces. Pure; the drivers feed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from acorn.models.port import CallDelta, Delta, ModelResponse, RawCall
from acorn.types import Usage


@dataclass(slots=True, eq=False)
class CallParts:
    """One call so far."""

    index: int
    """Which call of the response it is, counted from 0."""
    id: str | None = None
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    """The text of its arguments; it only ever grows."""


class Assembly:
    """One response in the making."""

    def __init__(self) -> None:
        self.calls: list[CallParts] = []
        self._open: dict[tuple[int, str | None], CallParts] = {}
        """By index and id, and the last of each index under None."""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._halves = _Halves()
        self._rest = ModelResponse(stop_reason="")
        self._usage: Usage | None = None

    def grow(self, delta: Delta) -> CallParts | None:
        """Take in a delta that only goes on with the text of a call; None leaves any other to `add`.

        It does what `add` would do, without looking for the rest: a stream makes a chunk of each such delta, and
        a long answer has thousands.
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
            self._rest.model = delta.model
        if piece := self._halves.join(call, fragment.arguments):
            call.pieces.append(piece)
        return call

    def add(self, delta: Delta) -> tuple[str, str, list[CallParts]]:
        """Take in a delta; its text, its thinking text, and the calls that it touched."""
        content, reasoning = delta.content, delta.reasoning
        if content and (content := self._halves.join("content", content)):
            self._content.append(content)
        if reasoning and (reasoning := self._halves.join("reasoning", reasoning)):
            self._reasoning.append(reasoning)
        if delta.refusal is not None:
            self._refusal.append(delta.refusal)
        rest = self._rest
        rest.stop_reason = delta.stop_reason or rest.stop_reason
        rest.model = delta.model or rest.model
        if delta.cost is not None:
            rest.cost = delta.cost
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.extra:
            rest.extra.update(delta.extra)
        if delta.attempts > 1:
            rest.attempts, rest.waits = delta.attempts, delta.waits
        if delta.fallbacks:
            rest.fallbacks = delta.fallbacks
        return content, reasoning, [self._add_call(fragment) for fragment in delta.calls]

    def _add_call(self, fragment: CallDelta) -> CallParts:
        index, id = fragment.index, fragment.id or None
        call = self._open.get((index, id)) or self._open.get((index, None))
        if call is None or _begins_another(fragment, call):
            call = CallParts(len(self.calls))
            self.calls.append(call)
        call.id = call.id or id
        self._open[index, call.id] = self._open[index, None] = call
        # A fragment that comes with the id again brings the whole name again too.
        if fragment.name and not (fragment.name == call.name and (call.pieces or id)):
            call.name += fragment.name
        if piece := self._halves.join(call, fragment.arguments):
            call.pieces.append(piece)
        return call

    def response(self) -> ModelResponse:
        """The whole, once the stream has ended."""
        made: list[Any] = [RawCall(call.id, call.name, self._joined(call, call.pieces)) for call in self.calls]
        rest = self._rest
        rest.content = self._joined("content", self._content)
        rest.reasoning = self._joined("reasoning", self._reasoning) or None
        rest.refusal = "".join(self._refusal) if self._refusal else None
        rest.tool_calls = made
        rest.stop_reason = rest.stop_reason or ("tool_calls" if made else "stop")
        rest.usage = self._usage or Usage(requests=1)
        return rest

    def _joined(self, source: object, pieces: list[str]) -> str:
        return "".join(pieces) + self._halves.held.get(source, "")


def _begins_another(fragment: CallDelta, call: CallParts) -> bool:
    """Whether a fragment is of a new call, though its index is that of another."""
    if fragment.id and call.id:
        return fragment.id != call.id
    return bool(fragment.name and call.pieces and fragment.name != call.name)


class _Halves:
    """Characters that a provider has cut in two: the first half waits for the second."""

    def __init__(self) -> None:
        self.held: dict[object, str] = {}

    def join(self, source: object, text: str) -> str:
        """What a source has sent, its characters whole; half a one that stays alone is left as it came."""
        if not text or (text.isascii() and not self.held):
            return text
        text = self.held.pop(source, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            text, self.held[source] = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def as_deltas(response: ModelResponse) -> list[Delta]:
    """A whole response as a stream of one piece, for a model that cannot stream."""
    calls = tuple(
        CallDelta(index, made.id, made.name, made.arguments) for index, made in enumerate(response.tool_calls)
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
