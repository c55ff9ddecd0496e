"""Engines of the embedded models: one for each model file, loaded on first use, with one request at a time.

The engine is llama.cpp, from the optional package `xllamacpp`, which only this module imports. Each engine has a thread
that loads the file and generates. The caller waits for pieces of the response. A waiting caller can therefore be
interrupted, an event loop is never blocked, and an abandoned request is dropped.
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
from acorn.types import JsonObject, is_json_object

PROVIDER = "local"
_CONTEXT = 8192
_BATCH = 256
"""The tokens of a prompt that are read at once. A request can be stopped between two batches."""
_CLOSE_SECONDS = 60.0
"""The seconds that the end of the process waits for a batch or the loading of a file, which cannot be stopped."""


class EngineJob:
    """One request. The engine's thread calls `deliver` with each piece of the response, then with None or an error."""

    def __init__(self, body: JsonObject, deliver: Callable[[JsonObject | ModelError | None], None]) -> None:
        self.body = body
        self.deliver = deliver
        self.is_stopped = False

    def stop(self) -> None:
        """Stop the request. No further piece is delivered."""
        self.is_stopped = True


class Engine:
    """A loaded model file, with the thread that runs it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.settings: dict[str, int] = {}
        self.address = ""
        """The address of its port, which accepts no requests, after the file was loaded."""
        self._jobs: SimpleQueue[EngineJob | None] = SimpleQueue()
        self._server: Any = None
        self._has_settings = False
        """Whether the settings are fixed. After a failed load they are not."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run_jobs, name=f"acorn {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: EngineJob) -> None:
        self._jobs.put(job)
        if self._is_closed:  # The thread may have ended before it saw the job.
            job.deliver(self._closed_error())

    def close(self) -> None:
        """Stop the current request and unload the file."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def check_settings(self, settings: Mapping[str, int]) -> list[str]:
        """Use these settings if there are none yet. Return the names of those that differ from the current ones."""
        if not self._has_settings:
            self.settings, self._has_settings = dict(settings), True
        return [key for key in settings if settings[key] != self.settings.get(key)]

    def abandon(self) -> None:
        """Leak the server in a forked child. Its destructor would wait forever for threads that do not exist there."""
        if self._server is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))

    # In the engine's thread

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.deliver(self._closed_error() if self._is_closed else None if job.is_stopped else self._run_job(job))
            del job
        self._server = None

    def _run_job(self, job: EngineJob) -> ModelError | None:
        try:
            self._server = self._server or self._load()

            def deliver(piece: JsonObject) -> bool:
                if not job.is_stopped:
                    job.deliver(piece)
                return job.is_stopped or self._is_closed

            response = self._server.handle_chat_completions(job.body, deliver)
            if is_json_object(response):
                job.deliver(response)
        except ModelError as error:
            return error
        except Exception as error:
            failure = ModelError(f"`{self.name}` failed: {error}", provider=PROVIDER)
            failure.__cause__ = error
            return failure
        return self._closed_error() if self._is_closed else None

    def _closed_error(self) -> ModelError:
        return ModelError(f"`{self.name}` was closed before it answered.", provider=PROVIDER)

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
        threads = self.settings.get("n_threads") or _default_threads()
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        # The engine always opens a port. acorn does not use it, and a random key locks it.
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
            cause = str(error).rstrip(".")
            raise ModelError(
                f"`{self.name}` could not be loaded from {self.path}: {cause}. The file may be incomplete, or this "
                f"version of xllamacpp may not support it. Download it again, or `pip install --upgrade xllamacpp`.",
                provider=PROVIDER,
            ) from error
        self.address = str(server.listening_address)
        return server


def _default_threads() -> int:
    """Return half of the processors. The threads wait for each other, so one busy processor slows down all of them."""
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
_owner_pid = os.getpid()
"""The process that started the engines."""
_is_ending = False


def engine(name: str, path: Path, settings: Mapping[str, int]) -> Engine:
    """Return the engine of a file. There is one for each file."""
    if _engines and os.getpid() != _owner_pid:
        raise ModelError(
            f"`{name}` was started before this process was forked, and cannot be used in the child. Start processes "
            f'with `multiprocessing.get_context("spawn")`, or use the model for the first time in the child.',
            provider=PROVIDER,
        )
    with _lock:
        if _is_ending:
            raise ModelError(f"`{name}` cannot be used any more: the process is ending.", provider=PROVIDER)
        known = _engines.get(path)
        if known is None:
            _register_process()
            known = _engines[path] = Engine(name, path)
            known.start()
        differing = known.check_settings(settings)
    if differing:
        raise ModelError(
            f"`{name}` is already loaded with other settings ({', '.join(differing)}). A process loads a model file "
            f"only once. Use the same settings everywhere, or another process.",
            provider=PROVIDER,
        )
    return known


def _register_process() -> None:
    """Remember this process as the owner of the engines, and close them when it ends."""
    global _owner_pid
    if not _engines:
        _owner_pid = os.getpid()
        atexit.unregister(_close_at_exit)
        atexit.register(_close_at_exit)


def close_engines() -> None:
    """Unload every model of this process. The next request loads its model again."""
    if os.getpid() != _owner_pid:
        return
    with _lock:
        open_engines = list(_engines.values())
        _engines.clear()
    for open_engine in open_engines:
        open_engine.close()


def _close_at_exit() -> None:
    """Close the engines and load nothing more, since Python shuts down while other threads may still run."""
    global _is_ending
    if os.getpid() == _owner_pid:
        with _lock:
            _is_ending = True
        close_engines()


def _abandon_engines() -> None:
    """Let a forked child run and end without the threads of the engines, which it does not have."""
    global _lock
    _lock = threading.Lock()
    for known in _engines.values():
        known.abandon()
    libc: Any = ctypes.CDLL(None) if _engines else None
    if hasattr(libc, "on_exit"):
        # The destructors of the engine's static objects would wait forever too. This runs before them and ends the
        # process with its status. Python has already flushed its files by then.
        libc.on_exit(libc._exit, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_engines)
