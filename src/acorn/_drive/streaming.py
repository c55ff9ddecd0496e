"""Streaming: the chunks of a model response, for the hook `on_stream` and for a caller that iterates over the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any

from acorn._drive.bridge import WorkerThread, call_sync
from acorn._drive.tree import Tree
from acorn._machine.asks import AskModel
from acorn._machine.machine import Machine
from acorn.chunk import StreamChunk, Streamer
from acorn.errors import ModelError
from acorn.models.assemble import as_deltas
from acorn.models.port import Delta, ModelResponse, can_stream
from acorn.record import CallSite

if TYPE_CHECKING:
    from acorn._telemetry.trace import Trace


def complete(ask: AskModel) -> ModelResponse:
    """Send the model request that an ask describes, and return the response."""
    return ask.model.complete(ask.request)


def show_chunk(tree: Tree, machine: Machine, ask_id: str, chunk: StreamChunk) -> StreamChunk:
    """Call the agent's hook `on_stream`, if it has one, with a chunk, and return the chunk."""
    _mark_branch(machine, chunk)
    listener = machine.plan.on_stream
    if listener is not None:
        with CallSite(tree, machine.run.id, ask_id):
            call_sync(listener, chunk)
    return chunk


async def ashow_chunk(tree: Tree, machine: Machine, ask_id: str, chunk: StreamChunk) -> StreamChunk:
    """Call the agent's hook `on_stream` with a chunk on the event loop, and return the chunk.

    A sync `on_stream` also runs on the event loop, not in a new thread, so that the chunks stay in order.
    """
    _mark_branch(machine, chunk)
    listener = machine.plan.on_stream
    if listener is not None:
        with CallSite(tree, machine.run.id, ask_id):
            returned = listener(chunk)
            if isinstance(returned, Awaitable):
                await returned
    return chunk


def _mark_branch(machine: Machine, chunk: StreamChunk) -> None:
    if machine.path:
        chunk.branch, chunk.run_id = machine.path, machine.run.id


# Sync


def stream_response(
    tree: Tree, machine: Machine, ask: AskModel, worker: WorkerThread | None
) -> Generator[StreamChunk, None, ModelResponse]:
    """Yield the chunks of a model response, and return the complete response."""
    streamer = Streamer(machine.spec.output)
    with closing(_deltas(tree, machine.run.id, ask, worker)) as deltas:
        for delta in deltas:
            for chunk in streamer.add(delta):
                yield show_chunk(tree, machine, ask.id, chunk)
    response, last = streamer.end()
    yield show_chunk(tree, machine, ask.id, last)
    return response


def _deltas(tree: Tree, run_id: str, ask: AskModel, worker: WorkerThread | None) -> Generator[Delta]:
    try:
        if not can_stream(ask.model):
            with tree.span(run_id, ask.id):
                response = complete(ask) if worker is None else worker.call(complete, ask)
            yield from as_deltas(response)
            return
        stream: Iterable[Delta] = ask.model.stream(ask.request)
        if worker is not None:
            stream = _WorkerStream(stream, worker)
        is_timed = ask.request.timeout is not None
        try:
            for delta in stream if tree.trace is None else _trace_first(tree.trace, run_id, ask.id, stream):
                if is_timed:  # A complete response may still end after the deadline.
                    is_timed = delta.stop_reason is None
                    if is_timed:
                        tree.raise_if_late(run_id, None)
                yield delta
        finally:
            _closer(stream)()
    except ModelError as error:
        tree.raise_if_late(run_id, error)
        raise


class _WorkerStream:
    """A model stream that waits for each delta (a piece of the response) in the worker thread."""

    def __init__(self, stream: Iterable[Delta], worker: WorkerThread) -> None:
        self._stream, self._deltas = stream, iter(stream)
        self._worker = worker

    def __iter__(self) -> Iterator[Delta]:
        while (delta := self._worker.call(self._next, None)) is not None:
            yield delta

    def _next(self, _: None) -> Delta | None:
        return next(self._deltas, None)

    def close(self) -> None:
        """Close the model stream.

        If the worker thread is still executing an abandoned call, it closes the stream after that call.
        """
        self._worker.finish(_closer(self._stream))


def _closer(stream: object) -> Callable[[], object]:
    return getattr(stream, "close", lambda: None)


def _trace_first(trace: Trace, run_id: str, ask_id: str, stream: Iterable[Delta]) -> Iterator[Delta]:
    """Yield the deltas of a model stream, and wait for the first one inside the telemetry span of the model request.

    The span is not current while the caller processes a delta, so that spans of the caller do not become its children.
    """
    deltas = iter(stream)
    with trace.inside(run_id, ask_id):
        first = next(deltas, None)
    if first is not None:
        trace.record_first_chunk(run_id)
        yield first
        yield from deltas


# Async


class StreamedResponse:
    """A model response that is streamed on the event loop.

    The attribute `response` is None until the last chunk was yielded.
    """

    def __init__(self, tree: Tree, machine: Machine, ask: AskModel) -> None:
        self._tree, self._machine, self._ask = tree, machine, ask
        self.response: ModelResponse | None = None

    async def chunks(self) -> AsyncGenerator[StreamChunk]:
        tree, machine, ask = self._tree, self._machine, self._ask
        streamer = Streamer(machine.spec.output)
        async with aclosing(_adeltas(tree, machine.run.id, ask)) as deltas:
            async for delta in deltas:
                for chunk in streamer.add(delta):
                    yield await ashow_chunk(tree, machine, ask.id, chunk)
        self.response, last = streamer.end()
        yield await ashow_chunk(tree, machine, ask.id, last)


async def _adeltas(tree: Tree, run_id: str, ask: AskModel) -> AsyncGenerator[Delta]:
    try:
        if not can_stream(ask.model):
            with tree.span(run_id, ask.id):
                response = await ask.model.acomplete(ask.request)
            for delta in as_deltas(response):
                yield delta
            return
        stream: Any = ask.model.astream(
            ask.request
        )  # This is an async generator, or an async iterator without `aclose`.
        is_timed = ask.request.timeout is not None
        try:
            async for delta in stream if tree.trace is None else _TracedStream(tree.trace, run_id, ask.id, stream):
                if is_timed:  # A complete response may still end after the deadline.
                    is_timed = delta.stop_reason is None
                    if is_timed:
                        tree.raise_if_late(run_id, None)
                yield delta
        finally:
            if hasattr(stream, "aclose"):
                await stream.aclose()
    except ModelError as error:
        tree.raise_if_late(run_id, error)
        raise


class _TracedStream:
    """An async model stream that waits for its first delta inside the telemetry span of the model request."""

    __slots__ = ("_ask_id", "_deltas", "_has_started", "_run_id", "_trace")

    def __init__(self, trace: Trace, run_id: str, ask_id: str, stream: AsyncIterable[Delta]) -> None:
        self._trace, self._run_id, self._ask_id = trace, run_id, ask_id
        self._deltas = aiter(stream)
        self._has_started = False

    def __aiter__(self) -> _TracedStream:
        return self

    async def __anext__(self) -> Delta:
        if self._has_started:
            return await anext(self._deltas)
        self._has_started = True
        with self._trace.inside(self._run_id, self._ask_id):
            first = await anext(self._deltas)
        self._trace.record_first_chunk(self._run_id)
        return first
