"""A model file in this process: loaded on first use, one for each file, answering one request after the other.

The engine is llama.cpp, by the optional package `xllamacpp`, which is imported here and nowhere else. Each file
has a thread of its own, which loads it and generates; whoever asks waits for pieces of the answer. So a waiting
caller can be interrupted, an event loop is never blocked, and a request that nobody wants any more is dropped.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from acorn.errors import ModelError
from acorn.types import JsonObject

PROVIDER = "local"
_CONTEXT = 8192
_BATCH = 256
"""Tokens of a prompt that are read in one go. Between two of them a request can be broken off."""
_PATIENCE = 60.0
"""Seconds that the end of the process waits for what cannot be broken off: one batch, or a file being loaded."""


class EngineJob:
    """One request. What comes of it is handed to `give`, in the engine's thread: pieces, then None or an error."""

    def __init__(self, body: JsonObject, give: Callable[[JsonObject | ModelError | None], None]) -> None:
        self.body = body
        self.give = give
        self.is_stopped = False

    def stop(self) -> None:
        """No piece is wanted any more."""
        self.is_stopped = True


class Engine:
    """One model file."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.settings: dict[str, int] = {}
        self.address = ""
        """Where its locked port is, once it is loaded."""
        self._jobs: SimpleQueue[EngineJob | None] = SimpleQueue()
        self._server: Any = None
        self._has_settings = False
        """Whether its settings stand: those of a load that failed do not."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"acorn {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, job: EngineJob) -> None:
        self._jobs.put(job)
        if self._is_closed:  # perhaps too late for the thread to see it
            job.give(self._closed())

    def close(self) -> None:
        """Break off what is under way and unload."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join(_PATIENCE)

    def take_settings(self, settings: Mapping[str, int]) -> list[str]:
        """Use these settings, unless it has its own; the names of those that are others then."""
        if not self._has_settings:
            self.settings, self._has_settings = dict(settings), True
        return [key for key in settings if settings[key] != self.settings.get(key)]

    def abandon(self) -> None:
        """In a forked child: the server's threads are not here, and its destructor would wait for them for ever."""
        if self._server is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))

    # In the engine's own thread

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.give(self._closed() if self._is_closed else None if job.is_stopped else self._answer(job))
            del job
        self._server = None

    def _answer(self, job: EngineJob) -> ModelError | None:
        try:
            self._server = self._server or self._load()

            def take(piece: JsonObject) -> bool:
                if not job.is_stopped:
                    job.give(piece)
                return job.is_stopped or self._is_closed

            answer = self._server.handle_chat_completions(job.body, take)
            if isinstance(answer, dict):
                job.give(answer)
        except ModelError as error:
            return error
        except Exception as error:
            made = ModelError(f"`{self.name}` failed: {error}", provider=PROVIDER)
            made.__cause__ = error
            return made
        return self._closed() if self._is_closed else None

    def _closed(self) -> ModelError:
        return ModelError(f"`{self.name}` was closed while it was asked.", provider=PROVIDER)

    def _load(self) -> Any:
        library = _library()
        params = library.CommonParams()
        params.model.path = os.fspath(self.path)
        params.n_ctx = self.settings.get("n_ctx", _CONTEXT)
        params.n_parallel = 1
        params.n_batch = params.n_ubatch = _BATCH
        params.verbosity = -1
        params.warmup = False
        params.offline = True
        params.cache_ram_mib = 0
        threads = self.settings.get("n_threads") or _threads()
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        # The engine always opens a port, which we do not use: locked to everybody.
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.api_keys = [secrets.token_urlsafe(32)]
        params.cors_origins = ""
        params.cors_origins_explicit = True
        params.cors_credentials = False
        params.ui = False
        params.endpoint_slots = False
        try:
            server = library.Server(params)
        except Exception as error:
            self._has_settings = False
            why = str(error).rstrip(".")
            raise ModelError(
                f"`{self.name}` could not be loaded from {self.path}: {why}. The file may be incomplete, or of a kind "
                f"that this version of xllamacpp does not know: fetch it again, or `pip install --upgrade xllamacpp`.",
                provider=PROVIDER,
            ) from error
        self.address = str(server.listening_address)
        return server


def _threads() -> int:
    """Half of the processors. Threads that wait for each other crawl as soon as something else wants a processor."""
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, processors // 2)


def _library() -> Any:
    try:
        return import_module("xllamacpp")
    except ImportError as error:
        raise ModelError(
            "The embedded model needs the package `xllamacpp`: `pip install 'acorn-agents[local]'`.", provider=PROVIDER
        ) from error


# The engines of this process

_lock = threading.Lock()
_engines: dict[Path, Engine] = {}
_home = os.getpid()
"""The process in which the engines live."""
_is_ending = False


def engine(name: str, path: Path, settings: Mapping[str, int]) -> Engine:
    """The engine of a file, the same for all who ask."""
    if _engines and os.getpid() != _home:
        raise ModelError(
            f"`{name}` was started before this process was forked, and cannot be used on both sides. Start processes "
            f'with `multiprocessing.get_context("spawn")`, or call the model for the first time in the child.',
            provider=PROVIDER,
        )
    with _lock:
        if _is_ending:
            raise ModelError(f"`{name}` cannot be asked any more: the process is ending.", provider=PROVIDER)
        found = _engines.get(path)
        if found is None:
            _note_process()
            found = _engines[path] = Engine(name, path)
            found.start()
        differing = found.take_settings(settings)
    if differing:
        raise ModelError(
            f"`{name}` is already loaded with other settings ({', '.join(differing)}): a process holds a model file "
            f"once. Use the same settings everywhere, or another process.",
            provider=PROVIDER,
        )
    return found


def _note_process() -> None:
    """Note the process; where it ends, so do the engines."""
    global _home
    if not _engines:
        _home = os.getpid()
        atexit.unregister(_end)
        atexit.register(_end)


def close_engines() -> None:
    """Unload every model of this process; the next request loads anew."""
    if os.getpid() != _home:
        return
    with _lock:
        open_engines = list(_engines.values())
        _engines.clear()
    for each in open_engines:
        each.close()


def _end() -> None:
    """Whatever a thread that still runs may ask, nothing is loaded while Python is taken apart."""
    global _is_ending
    if os.getpid() == _home:
        with _lock:
            _is_ending = True
        close_engines()


def _abandon_engines() -> None:
    """In a forked child, where the threads of the engines are not: let it live, and end, without them."""
    global _lock
    _lock = threading.Lock()
    for each in _engines.values():
        each.abandon()
    libc: Any = ctypes.CDLL(None) if _engines else None
    if hasattr(libc, "on_exit"):
        # Destructors of the engine's static objects wait for ever too. This is run before them, and ends the
        # process with its status; Python has flushed its files by then.
        libc.on_exit(libc._exit, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_engines)
