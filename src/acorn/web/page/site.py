"""What stands behind the page: the agent, the shelf of its runs, and those that are under way here."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import acorn
from acorn import AcornError, DeclarationError, InputError, StoreError, module
from acorn._inside import agent_name, request_to_json
from acorn.stores.memory import MemoryStore
from acorn.stores.open import open_store
from acorn.stores.port import Store
from acorn.testing.as_python import as_python
from acorn.types import JsonObject
from acorn.web.page import agent as calls
from acorn.web.page.agent import Wanted, forkable
from acorn.web.page.live import Live
from acorn.web.page.run_index import FileRunIndex, RunIndex, RunView, StoreRunIndex
from acorn.web.page.wire import PageRedactor

AT_ONCE = 4
MOST = 10**9
"""Letters of a text that is not cut."""
CHAT = "chat "
"""How the batch is called that the runs of one conversation belong to."""


class BusyError(AcornError):
    """So many runs are under way that another one has to wait."""


class Site:
    """The agent, its runs, and what is under way."""

    def __init__(self, agent: module[Any, Any] | None, shelf: RunIndex, store: Store | None) -> None:
        self.agent = agent
        self.shelf = shelf
        self.store = store
        self.lives: dict[str, Live] = {}
        self._lock = threading.Lock()
        self._roots: dict[str, str] = {}
        self.is_closing = False
        self._ends: set[Any] = set()

    def veil(self) -> PageRedactor:
        """What takes the secrets out; made anew each time, since the environment may have got others."""
        return PageRedactor(self._secrets)

    @cached_property
    def _secrets(self) -> set[str]:
        return set() if self.agent is None else calls.secrets_of(self.agent)

    # Runs that are driven here

    def begin(self, given: Any, after: str | None, model: str | None, fork: Wanted | None = None) -> str:
        """Start a run; its id."""
        agent, store = self._playable()
        if fork is not None:
            self._own(fork.run, "fork")
        run_id = os.urandom(16).hex()
        with self._lock:
            self._check_room()
            chunks = calls.begun(agent, store, given, run_id, self._chat(after), after=after, model=model, fork=fork)
            self._drive(Live(run_id, lambda: chunks))
        return run_id

    def resume(self, run_id: str) -> None:
        """Go on with a run that was stopped, or whose requests are answered."""
        agent, store = self._playable()
        book = self._own(run_id, "resume")
        with self._lock:
            if run_id in self.lives and not self.lives[run_id].is_over:
                return
            self._check_room()
            chunks = calls.resumed(agent, store, run_id)
            self._drive(Live(run_id, lambda: chunks, tuple(book.rows.entries)))

    def stop(self, run_id: str) -> None:
        """End a run: one that is driven here can go on later, one of another process is cancelled."""
        live = self.lives.get(run_id)
        if live is not None and not live.is_over:
            live.cancel()
        elif self.store is not None:
            self.store.cancel(run_id)

    def delete(self, run_id: str) -> None:
        """Forget a run; refused while it is driven."""
        if self.store is None or not isinstance(self.shelf, StoreRunIndex):
            raise StoreError("A file is not deleted here.")
        self.store.delete(run_id)
        self.shelf.forget(run_id)
        self.lives.pop(run_id, None)

    def answer(self, request_id: str, value: Any) -> bool:
        """Keep what somebody has answered; whether its run goes on here."""
        if self.store is None:
            raise StoreError("There is no store here, so nothing can be answered.")
        runs = acorn.runs(self.store)
        asked = next((each for each in runs.requests() if each.id == request_id), None)
        if asked is None:
            raise StoreError(f"There is no open request `{request_id}`; somebody may have answered it already.")
        runs.answer(request_id, value)
        root = self._root_of(asked.run_id)
        book = self.shelf.book(root)
        if self.agent is None or book is None or not self.is_own(book) or runs.requests(root):
            return False
        self.resume(root)
        return True

    def requests(self, run_id: str | None = None) -> list[JsonObject]:
        """What people are asked."""
        if self.store is None:
            return []
        found = acorn.runs(self.store).requests(run_id)
        return [{**request_to_json(each), "root": self._root_of(each.run_id)} for each in found]

    def _root_of(self, run_id: str) -> str:
        """The run that a page shows: of a branch, the one that it belongs to, which never changes."""
        if run_id not in self._roots and self.store is not None:
            kept = self.store.read(run_id)
            self._roots[run_id] = (kept[0].facts.root if kept else "") or run_id
        return self._roots.get(run_id, run_id)

    def is_own(self, book: RunView) -> bool:
        """Whether a run is one of the agent's, so that it can go on here."""
        return self.agent is not None and book.head.get("agent") == agent_name(self.agent)

    def forkable(self, run_id: str, before: int | None) -> JsonObject:
        """What would be kept of a run by a fork."""
        agent, store = self._playable()
        self._own(run_id, "fork")
        return forkable(agent.using(store=store), acorn.runs(store).get(run_id), before)

    def python(self, run_id: str) -> str:
        """A run as a test; a store knows where its class is, and what the instance had set."""
        if self.store is None:
            raise StoreError(f"A file is written as Python by `acorn show {run_id}.json --python`.")
        birth = self.store.read(run_id)[0].header
        settings = json.loads(birth.overrides).get("settings", {}) if birth.overrides else {}
        hide = self.veil().text
        return as_python(
            acorn.runs(self.store).get(run_id),
            module=birth.agent,
            settings=settings,
            hide=lambda text: hide(text, MOST),
        )

    def fleet(self) -> JsonObject | None:
        """The workers of the store, and what they have to do; None where it has none."""
        look: Any = getattr(self.store, "fleet", None)
        if look is None:
            return None
        workers, agents = look()
        return {
            "workers": [{**each._asdict(), "started": each.started.isoformat()} for each in workers],
            "agents": [each._asdict() for each in agents],
            "requests": self.requests(),
        }

    @property
    def has_fleet(self) -> bool:
        return hasattr(self.store, "fleet")

    def _own(self, run_id: str, what: str) -> RunView:
        book = self.shelf.book(run_id)
        if book is None or not self.is_own(book):
            raise StoreError(f"The run `{run_id}` is none of this agent's; `acorn {what} {run_id}` finds its class.")
        return book

    def _playable(self) -> tuple[module[Any, Any], Store]:
        if self.agent is None or self.store is None:
            raise InputError("There is no agent here: `acorn web agent.py` brings one.")
        return self.agent, self.store

    def _check_room(self) -> None:
        self.lives = {run_id: live for run_id, live in self.lives.items() if not live.is_over or len(self.lives) < 64}
        if sum(not live.is_over for live in self.lives.values()) >= AT_ONCE:
            raise BusyError(f"{AT_ONCE} runs are under way; stop one, or wait until one has ended.")

    def _drive(self, live: Live) -> None:
        self.lives[live.run_id] = live
        live.begin()

    def _chat(self, after: str | None) -> tuple[str, int]:
        """Which item of which conversation the next run is."""
        book = None if after is None else self.shelf.book(after)
        batch = None if book is None else book.head.get("batch")
        if not isinstance(batch, str) or not batch.startswith(CHAT) or not isinstance(self.shelf, StoreRunIndex):
            return f"{CHAT}{secrets.token_hex(3)}", 0
        return batch, len(self.shelf.runs_of(batch))

    # The end of the server

    def closing(self) -> asyncio.Event:
        """Something that a stream may wait for: it is set when the server ends."""
        event = asyncio.Event()
        loop = asyncio.get_running_loop()
        end = (loop, event)
        self._ends.add(end)
        if self.is_closing:
            event.set()
        return event

    def forget(self, event: asyncio.Event) -> None:
        self._ends = {end for end in self._ends if end[1] is not event}

    def close(self) -> None:
        """End the streams, and stop what is under way; it can go on later. From any thread."""
        self.is_closing = True
        for loop, event in tuple(self._ends):
            loop.call_soon_threadsafe(event.set)
        for live in tuple(self.lives.values()):
            live.cancel()


def site_of(agent: Any, store: Any, files: Sequence[Path] = ()) -> Site:
    """The site of an agent, of a store, or of files."""
    if agent is not None and not isinstance(agent, module):
        raise DeclarationError(f"`acorn.web.app` takes an instance of a module, such as `Researcher()`; got {agent!r}.")
    if files:
        return Site(None, FileRunIndex(files), None)
    named = store if store is not None else None if agent is None else agent.store
    kept = MemoryStore() if named is None else open_store(named, "`acorn.web`")
    return Site(agent, StoreRunIndex(kept), kept)
