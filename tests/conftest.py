"""Fixtures for all tests."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

# The time of an example depends on the machine.
hypothesis.settings.register_profile("acorn", deadline=None)
hypothesis.settings.load_profile("acorn")

# LiteLLM's sync calls would otherwise create an event loop for the thread of the tests, and never close it.
asyncio.set_event_loop(None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze collected tests, so that the garbage collector does not search them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Replace lone surrogates in reports, because a worker of xdist cannot send them and would end."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return type(value)(map(_encodable, value)) if isinstance(value, list | tuple) else value


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt here and end child processes, also under nohup or after a shell's `&`.

    There the signal is ignored, and children inherit an ignored signal, but not a handler.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a server that all workers share."""
    from tests.postgres_server import shared_server, why_absent  # POSIX

    why = why_absent()
    if why is not None and os.environ.get("CI") == "true":
        pytest.fail(why)
    if why is not None:
        pytest.skip(why)
    base = tmp_path_factory.getbasetemp()
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    with shared_server((base.parent if is_worker else base) / "postgres") as url:
        yield url


@pytest.fixture
def postgres(postgres_server: str) -> Iterator[str]:
    """Return the URL of an empty database."""
    from tests.postgres_server import new_database

    with new_database(postgres_server) as url:
        yield url
