"""Engines that run the embedded models in this process.

Each model file has one engine, which loads the file on first use and runs one request at a time. The engine is
llama.cpp, from the optional package `xllamacpp`, which only this module imports.

Each engine has an OS thread that loads the file and generates the responses. The caller waits in its own thread for the
parts of a response. Therefore Ctrl-C can interrupt a waiting caller, an engine never blocks an event loop, and the
engine stops a request that its caller has abandoned.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from acorn._base.forks import call_in_child
from acorn.errors import ModelError
from acorn.models.local import local_error
from acorn.types import JsonObject, is_json_object

_CONTEXT_TOKENS = 8192
"""The default context size in tokens."""
_BATCH_TOKENS = 256
"""The number of prompt tokens that the engine processes at a time. A request can be stopped between two batches."""
_CLOSE_SECONDS = 60.0
"""The maximum seconds that a process waits at its end for an engine, which cannot stop a batch or the loading of a
file."""


@dataclass(eq=False)
class EngineJob:
    """One request to an engine, with the parts of the response."""

    body: JsonObject = field(default_factory=JsonObject)
    pieces: SimpleQueue[JsonObject | ModelError | None] = field(default_factory=SimpleQueue)
    """The parts of the response that have arrived. The last part is None, or an error if the request fails."""
    is_stopped: bool = False
    """Whether the caller has abandoned the request. `pieces` then receives no further part of the response."""


class Engine:
    """A loaded model file, with the OS thread that runs its requests one after the other."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.settings: dict[str, int] | None = None
        """The settings for loading, or None before the first request and after a failed load."""
        self._jobs: SimpleQueue[EngineJob | None] = SimpleQueue()
        self._server: Any = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run_jobs, name=f"acorn {name}", daemon=True)
        self._thread.start()

    def submit(self, job: EngineJob) -> None:
        self._jobs.put(job)
        if self._is_closed:  # The thread may have ended before it received the job.
            job.pieces.put(self._closed_error())

    def close(self) -> None:
        """Stop the current request, unload the model file, and end the thread."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def abandon(self) -> None:
        """Keep the llama.cpp server in memory in a forked child, so that it is never destroyed there.

        The destructor of the server would wait forever for threads that do not exist in the child.
        """
        if self._server is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))

    # These methods run in the thread of the engine.

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.pieces.put(self._closed_error() if self._is_closed else None if job.is_stopped else self._run_job(job))
            del job
        self._server = None

    def _run_job(self, job: EngineJob) -> ModelError | None:
        try:
            self._server = self._server or self._load()

            def deliver(piece: JsonObject) -> bool:
                if not job.is_stopped:
                    job.pieces.put(piece)
                return job.is_stopped or self._is_closed

            response = self._server.handle_chat_completions(job.body, deliver)
            if is_json_object(response):
                job.pieces.put(response)
        except ModelError as error:
            return error
        except Exception as error:
            failure = local_error(f"`{self.name}` failed: {error}. Send the request again, or use another model.")
            failure.__cause__ = error
            return failure
        return self._closed_error() if self._is_closed else None

    def _closed_error(self) -> ModelError:
        return local_error(
            f"`{self.name}` was unloaded before it answered. Send the request again. acorn then loads the model again."
        )

    def _load(self) -> Any:
        library = _library()
        params = library.CommonParams()
        params.model.path = os.fspath(self.path)
        settings = self.settings or {}
        params.n_ctx = settings.get("n_ctx", _CONTEXT_TOKENS)
        params.n_parallel = 1
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
        params.verbosity = -1
        params.warmup = False
        params.offline = True
        params.cache_ram_mib = 0
        threads = settings.get("n_threads") or _default_threads()
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        # The engine always opens an HTTP port, which acorn does not use. A random API key locks the port.
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.api_keys = [secrets.token_urlsafe(32)]
        params.cors_origins = ""
        params.cors_origins_explicit = True
        params.cors_credentials = False
        params.ui = False
        params.endpoint_slots = False
        try:
            return library.Server(params)
        except Exception as error:
            self.settings = None
            cause = str(error).rstrip(".")
            raise local_error(
                f"`{self.name}` could not be loaded from {self.path}: {cause}. The file may be incomplete, or this "
                f"version of xllamacpp may not support it. Download the file again, or run "
                f"`pip install --upgrade xllamacpp`."
            ) from error


def _default_threads() -> int:
    """Return the default number of threads: half the number of processors.

    With more threads, one processor that is busy with another program would slow down all threads, because they wait
    for each other.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, processors // 2)


def _library() -> Any:
    try:
        return import_module("xllamacpp")
    except ImportError as error:
        raise local_error(
            "The embedded model needs the package `xllamacpp`, which is not installed. Install it with "
            "`pip install 'acorn-agents[local]'`."
        ) from error


# The engines of this process

_lock = threading.Lock()
_engines: dict[Path, Engine] = {}
"""A dict that maps the path of a model file to its engine."""
_are_of_parent = False
"""Whether the parent process started the engines, and this process is a forked child, which cannot use them."""
_is_ending = False
"""Whether the process is ending, so that no further engine may start."""


def engine(name: str, path: Path, settings: Mapping[str, int]) -> Engine:
    """Return the engine that runs a model file, and start it on first use.

    Raise `ModelError` if the engine was started in the parent process or with other settings, or if the process is
    ending.
    """
    if _are_of_parent:
        raise local_error(
            f"`{name}` was loaded before this process was forked, so this child process cannot use it. Start processes "
            f'with `multiprocessing.get_context("spawn")`, or use the model for the first time in the child.'
        )
    with _lock:
        if _is_ending:
            raise local_error(
                f"`{name}` cannot be used because the process is ending. Wait for all runs before the program ends."
            )
        file_engine = _engines.get(path)
        if file_engine is None:
            if not _engines:
                atexit.register(_close_engines)
            file_engine = _engines[path] = Engine(name, path)
        if file_engine.settings is None:
            file_engine.settings = dict(settings)
        differing = [key for key in settings if settings[key] != file_engine.settings.get(key)]
    if differing:
        raise local_error(
            f"`{name}` is already loaded with other settings ({', '.join(differing)}). A process loads a model file "
            f"only once. Use the same settings for every agent, or start another process."
        )
    return file_engine


def _close_engines() -> None:
    """Close all engines when the process ends, and do not let another thread start an engine after that."""
    global _is_ending
    if _are_of_parent:
        return
    with _lock:
        _is_ending = True
        open_engines = list(_engines.values())
        _engines.clear()
    for open_engine in open_engines:
        open_engine.close()


def _abandon_engines() -> None:
    """Keep all engines in memory in a forked child, so that the child does not wait forever when it ends.

    The child has a copy of the engines of its parent process, but not their threads.
    """
    global _lock, _are_of_parent
    _lock, _are_of_parent = threading.Lock(), bool(_engines)
    for file_engine in _engines.values():
        file_engine.abandon()
    libc: Any = ctypes.CDLL(None) if _are_of_parent else None
    if hasattr(libc, "on_exit"):
        # The destructors of llama.cpp's static objects would wait forever too. This function runs before them and ends
        # the process with its exit status. At that time, Python has already flushed its files.
        libc.on_exit(libc._exit, None)


call_in_child(_abandon_engines)
