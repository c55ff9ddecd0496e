"""A run under way in its own thread with its own event loop.

The user's code may block, and must not stop the page; and a task can be cancelled from outside, which a call cannot.
What happens is kept as events, to be read by as many streams as there are, from any place on.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

from acorn import AcornError, StreamChunk, listen
from acorn._inside import describe_error
from acorn.journal import Entry
from acorn.web.page.wire import Event, OpenStream, chunk_event, entry_event

Start = Callable[[], AsyncGenerator[StreamChunk]]
Wake = Callable[[], object]


class Live:
    """One run that this process drives."""

    def __init__(self, run_id: str, start: Start, past: Iterable[Entry] = ()) -> None:
        self.run_id = run_id
        self.token = secrets.token_hex(4)
        """Tells this drive of the run from another one, to whoever comes back."""
        self._start = start
        self._events: list[Event] = [entry_event(entry) for entry in past]
        self._open = OpenStream()
        self._is_over = False
        self._lock = threading.Lock()
        self._wakes: set[Wake] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_unwanted = False
        self._has_failed = False
        self.thread = threading.Thread(target=self._run, name=f"acorn web {run_id[:8]}", daemon=True)

    @property
    def is_over(self) -> bool:
        return self._is_over

    def begin(self) -> None:
        self.thread.start()

    def cancel(self) -> None:
        """End it; it can go on from there."""
        with self._lock:
            self._is_unwanted = True
            if self._task is not None and self._loop is not None and not self._is_over:
                self._loop.call_soon_threadsafe(self._task.cancel)

    def since(self, index: int) -> tuple[list[Event], bool]:
        """The events from there on, and whether these are all."""
        with self._lock:
            return self._events[index:], self._is_over

    def watch(self, wake: Wake) -> None:
        """Call this, from any thread, when there is something new."""
        with self._lock:
            self._wakes.add(wake)

    def unwatch(self, wake: Wake) -> None:
        with self._lock:
            self._wakes.discard(wake)

    # In the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # the provider's, the model's, the user's own, or `sys.exit` in a tool
            self._fail(error)
        finally:
            with self._lock:
                self._is_over = True
                wakes = tuple(self._wakes)
            for wake in wakes:
                wake()

    async def _main(self) -> None:
        with self._lock:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self._is_unwanted:
                return
        with listen(self._hear):
            async with aclosing(self._start()) as chunks:
                async for chunk in chunks:
                    event = chunk_event(chunk, self.run_id)
                    if event is not None:
                        self._add(event)

    def _hear(self, entry: Entry) -> None:
        event = entry_event(entry)
        if event["run_id"] == self.run_id and event["entry"] in ("RunFailed", "RunInterrupted"):
            self._has_failed = True
        self._add(event)

    def _fail(self, error: BaseException) -> None:
        """What the journal does not tell: the run could not even begin, or its store failed."""
        if self._has_failed or isinstance(error, asyncio.CancelledError):
            return
        words = str(error) if isinstance(error, AcornError) else describe_error(error)
        if not isinstance(error, Exception):
            words = f"the agent's code ended the program: {words}"
        self._add({"entry": "fault", "run_id": self.run_id, "error": words})

    def _add(self, event: Event) -> None:
        with self._lock:
            if not self._open.takes(event):
                return
            self._events.append(event)
            wakes = tuple(self._wakes)
        for wake in wakes:
            wake()
