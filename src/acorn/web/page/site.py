"""The state of the page: its agent, its index of stored runs, and its live runs.

A live run is a run that this process executes. Each live run has its own thread and event loop. User code cannot block
the page, and the page can cancel the run. A live run stores its events in a list, so that several browsers can read the
events from any position.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import cached_property
from pathlib import Path

import acorn
from acorn import AcornError, InputError, StoreError, StreamChunk, listen
from acorn._inside import Agent, Redactor, agent_name, describe_error, find_secrets, record_to_json, stored_instance
from acorn._inside.runs import aresume_stream
from acorn.journal import Entry
from acorn.stores import MemoryStore
from acorn.stores.open import open_store
from acorn.stores.port import Store
from acorn.testing.as_python import as_python
from acorn.types import JsonObject
from acorn.web.page import NO_LIMIT, TEXT_LIMIT
from acorn.web.page.agent import StartRequest, describe_fork, secrets_of, start_run
from acorn.web.page.rows import Event, entry_event
from acorn.web.page.run_index import FileRunIndex, RunIndex, RunView, StoreRunIndex

MAX_LIVE_RUNS = 4
_MAX_REMEMBERED_RUNS = 64
_MAX_EARLIER_RUNS = 20
_CHAT_PREFIX = "chat "
"""The prefix of the batch name that the runs of one conversation share."""


class BusyError(AcornError):
    """A run cannot start because too many runs are in progress."""


class LiveRun:
    """A run that this process executes in its own thread, with the list of its events."""

    def __init__(self, run_id: str, chunks: AsyncGenerator[StreamChunk], past: Iterable[Entry] = ()) -> None:
        self.run_id = run_id
        self.token = secrets.token_hex(4)
        """A random text in the event ids. It changes when the run is resumed, so that streams start again."""
        self.is_over = False
        self.thread = threading.Thread(target=self._run, name=f"acorn web {run_id[:8]}", daemon=True)
        self._chunks = chunks
        self._events: list[Event | None] = [entry_event(entry) for entry in past]
        """Journal entries and chunks of output. When a response is complete, its chunks are replaced by None."""
        self._responding: dict[str, int] = {}
        """Maps the id of each run that currently receives a response to the index of the request in the events."""
        self._lock = threading.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self._has_failed = False

    def cancel(self) -> None:
        """Cancel the run.

        The run can be resumed later.
        """
        with self._lock:
            self._is_cancelled = True
            if self._task is not None and not self.is_over:
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def events_from(self, start: int, end: int | None = None) -> tuple[list[Event], int, bool]:
        """Return the events from the index `start` to `end`, the number of all events, and True if the run is over."""
        with self._lock:
            events = [event for event in self._events[start:end] if event is not None]
            return events, len(self._events), self.is_over

    # The following methods run in the thread of the run.

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # User code may raise any exception, such as `SystemExit` in a tool.
            self._add_error_event(error)
        finally:
            with self._lock:
                self.is_over = True

    async def _main(self) -> None:
        with self._lock:
            self._task = asyncio.current_task()
            if self._is_cancelled:
                return
        with listen(self._on_entry):
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    if chunk.tool_result is None and chunk.run is None:  # The journal entries contain both.
                        self._add({"entry": "chunk", "run_id": chunk.run_id or self.run_id, "chunk": chunk})

    def _on_entry(self, entry: Entry) -> None:
        event = entry_event(entry)
        if event["run_id"] == self.run_id and event["entry"] in ("RunFailed", "RunInterrupted"):
            self._has_failed = True
        self._add(event)

    def _add_error_event(self, error: BaseException) -> None:
        """Add an event that shows an error in the browser.

        The journal does not contain some errors, such as an error of the store.
        """
        if self._has_failed or isinstance(error, asyncio.CancelledError):
            return
        message = str(error) if isinstance(error, AcornError) else describe_error(error)
        if not isinstance(error, Exception):
            message = f"The code of the agent tried to exit the program: {message}"
        self._add({"entry": "fault", "run_id": self.run_id, "error": message})

    def _add(self, event: Event) -> None:
        kind, run_id = event["entry"], event["run_id"]
        with self._lock:
            if kind == "chunk" and run_id not in self._responding:
                return  # The chunk arrived after the response had ended.
            if kind == "ModelRequested":
                self._responding[run_id] = len(self._events)
            elif kind in ("ModelResponded", "RunFailed", "RunInterrupted", "RunFinished"):
                start = self._responding.pop(run_id, len(self._events))
                if kind == "ModelResponded":
                    for index, other in enumerate(self._events[start:], start):
                        if other is not None and (other["entry"], other["run_id"]) == ("chunk", run_id):
                            self._events[index] = None
            self._events.append(event)


class Site:
    """The state of one page: an optional agent, an index of stored runs, and the runs that this process executes."""

    def __init__(self, agent: Agent | None, index: RunIndex, store: Store | None) -> None:
        self.agent = agent
        self.index = index
        self.store = store
        self.live_runs: dict[str, LiveRun] = {}
        self.is_closing = False
        """Whether the server stops. All streams then end."""
        self._lock = threading.Lock()
        self._roots: dict[str, str] = {}
        """Maps a run id to the id of its root run, which never changes."""

    def redactor(self, limit: int = TEXT_LIMIT) -> Redactor:
        """Return a new redactor that knows the current secrets in the environment variables."""
        return Redactor(self._secrets | find_secrets(), limit=limit)

    @cached_property
    def _secrets(self) -> set[str]:
        return set() if self.agent is None else secrets_of(self.agent)

    # Live runs

    def start(self, request: StartRequest) -> str:
        """Start a run and return its id."""
        agent, store = self._agent_and_store()
        if request.fork is not None:
            self._own_view(request.fork.run, "fork")
        run_id = os.urandom(16).hex()
        with self._lock:
            self._check_capacity()
            chunks = start_run(agent, store, request, run_id, self._next_item(store, request.after))
            self._drive(LiveRun(run_id, chunks))
        return run_id

    def resume(self, run_id: str) -> None:
        """Resume a run that was stopped, or a run that waited for human input and has received all answers."""
        agent, store = self._agent_and_store()
        view = self._own_view(run_id, "resume")
        with self._lock:
            if run_id in self.live_runs and not self.live_runs[run_id].is_over:
                return
            self._check_capacity()
            chunks = aresume_stream(agent.using(store=store), run_id)
            self._drive(LiveRun(run_id, chunks, view.tree.entries))

    def stop(self, run_id: str) -> None:
        """Stop a run.

        If another process executes the run, add a cancel request to the store.
        """
        live = self.live_runs.get(run_id)
        if live is not None and not live.is_over:
            live.cancel()
        elif self.store is not None:
            self.store.cancel(run_id)

    def delete(self, run_id: str) -> None:
        """Delete a run from the store.

        The store raises `StoreError` if the run is in progress.
        """
        if self.store is None or not isinstance(self.index, StoreRunIndex):
            raise StoreError("The page cannot delete files. Delete the file of the run yourself.")
        self.store.delete(run_id)
        self.index.forget(run_id)
        self.live_runs.pop(run_id, None)

    def answer(self, request_id: str, value: object) -> bool:
        """Store the answer to a request for human input.

        Return True if the run had no other unanswered request and this process has therefore resumed it.
        """
        if self.store is None:
            raise StoreError(
                "The page cannot store answers to requests, because it has no store. Start it with `--store`."
            )
        runs = acorn.runs(self.store)
        request = next((request for request in runs.requests() if request.id == request_id), None)
        if request is None:
            raise StoreError(f"Request `{request_id}` is not open. Another user may have answered it.")
        runs.answer(request_id, value)
        root = self._root_of(request.run_id)
        view = self.index.view(root)
        if self.agent is None or view is None or not self.is_own(view) or runs.requests(root):
            return False
        self.resume(root)
        return True

    def requests(self, run_id: str | None = None) -> list[JsonObject]:
        """Return the unanswered requests for human input of one run, or of all runs, as JSON data."""
        if self.store is None:
            return []
        requests = acorn.runs(self.store).requests(run_id)
        return [{**record_to_json(request), "root": self._root_of(request.run_id)} for request in requests]

    def _root_of(self, run_id: str) -> str:
        """Return the id of the root run that a run belongs to.

        The page needs this id because it displays branches as part of their root run.
        """
        if run_id not in self._roots and self.store is not None:
            runs = self.store.read(run_id)
            self._roots[run_id] = (runs[0].facts.root if runs else "") or run_id
        return self._roots.get(run_id, run_id)

    def is_own(self, view: RunView) -> bool:
        """Return True if the agent of the page started a run.

        The page can resume and fork only these runs.
        """
        return self.agent is not None and view.header.get("agent") == agent_name(self.agent)

    def page_data(self, view: RunView, since: int = 0) -> JsonObject:
        """Return the header, the changed rows and the unanswered requests for human input of a run as JSON data.

        Call this method in a thread, because it may wait for the store.
        """
        redactor = self.redactor()
        requests = self.requests(view.header["id"]) if view.header["status"] == "waiting" else []
        data = view.page_data(redactor, is_own=self.is_own(view), since=since)
        return {**data, "requests": redactor.data(requests)}

    def describe_fork(self, run_id: str, before: int | None) -> JsonObject:
        """Return the events that a fork of a run would copy, and the tools that it may call again, as JSON data."""
        agent, store = self._agent_and_store()
        self._own_view(run_id, "fork")
        return describe_fork(agent.using(store=store), acorn.runs(store).get(run_id), before)

    def python(self, run_id: str) -> str:
        """Return the source code of a Python test that repeats a run.

        The class and the settings of the agent are read from the store.
        """
        if self.store is None:
            raise StoreError(
                f"The page cannot convert a saved file to a Python test. Use `acorn show {run_id}.json --python`."
            )
        run, stored = acorn.runs(self.store).get(run_id), self.store.read(run_id)[0]
        settings = stored_instance(stored).settings
        return as_python(run, module=stored.header.agent, settings=settings, redactor=self.redactor(NO_LIMIT))

    def fleet(self) -> JsonObject | None:
        """Return the workers, the queue sizes and the unanswered requests for human input as JSON data.

        Return None if the store does not support workers.
        """
        read_fleet = getattr(self.store, "fleet", None)
        if read_fleet is None:
            return None
        workers, agents = read_fleet()
        return {
            "workers": [{**worker._asdict(), "started": worker.started.isoformat()} for worker in workers],
            "agents": [agent._asdict() for agent in agents],
            "requests": self.requests(),
        }

    @property
    def has_fleet(self) -> bool:
        return hasattr(self.store, "fleet")

    def _own_view(self, run_id: str, command: str) -> RunView:
        view = self.index.view(run_id)
        if view is None or not self.is_own(view):
            raise StoreError(
                f"The page cannot {command} run `{run_id}`. The run does not exist, or another agent started it. In "
                f"the second case, use `acorn {command} {run_id}`, which loads the other agent."
            )
        return view

    def _agent_and_store(self) -> tuple[Agent, Store]:
        if self.agent is None or self.store is None:
            raise InputError("This page has no agent. Start it with `acorn web agent.py`.")
        return self.agent, self.store

    def _check_capacity(self) -> None:
        self.live_runs = {
            run_id: live
            for run_id, live in self.live_runs.items()
            if not live.is_over or len(self.live_runs) < _MAX_REMEMBERED_RUNS
        }
        if sum(not live.is_over for live in self.live_runs.values()) >= MAX_LIVE_RUNS:
            raise BusyError(
                f"{MAX_LIVE_RUNS} runs are in progress, which is the limit. Stop a run, or wait until a run ends."
            )

    def _drive(self, live: LiveRun) -> None:
        self.live_runs[live.run_id] = live
        live.thread.start()

    def _next_item(self, store: Store, after: str | None) -> tuple[str, int]:
        """Return the name of a conversation, and the number of the next run in this conversation.

        `after` is the id of the previous run. If it does not belong to a conversation, return the name of a new
        conversation.
        """
        view = self.index.view(after) if after else None
        batch = str(view.header["batch"] or "") if view is not None else ""
        if not batch.startswith(_CHAT_PREFIX):
            return f"{_CHAT_PREFIX}{secrets.token_hex(3)}", 0
        return batch, len(store.list(batch=batch, limit=None))

    def earlier_runs(self, run_id: str) -> list[JsonObject]:
        """Return the ids, inputs and outputs of the earlier runs of the conversation that a run belongs to."""
        view = self.index.view(run_id)
        if view is None or self.store is None or view.header["batch"] is None:
            return []
        runs = self.store.list(batch=view.header["batch"], status=["done"], limit=None)
        earlier = sorted(
            (facts.item or 0, facts.id) for facts in runs if (facts.item or 0) < (view.header["item"] or 0)
        )
        views = [self.index.view(earlier_id) for _, earlier_id in earlier[-_MAX_EARLIER_RUNS:]]
        return [{name: view.header[name] for name in ("id", "input", "output")} for view in views if view is not None]

    def close(self) -> None:
        """End all streams and cancel all live runs.

        Any thread may call this method. The runs can be resumed later.
        """
        self.is_closing = True
        for live in tuple(self.live_runs.values()):
            live.cancel()


def make_site(agent: Agent | None, store: object, files: Sequence[Path] = ()) -> Site:
    """Create the state of a page for an agent, a store, or files with saved runs."""
    if files:
        return Site(None, FileRunIndex(files), None)
    target = store if store is not None else None if agent is None else agent.store
    opened = MemoryStore() if target is None else open_store(target, "`acorn.web`")
    return Site(agent, StoreRunIndex(opened), opened)
