"""Fixtures that run contract tests of models against a loopback HTTP server, on each lane and protocol, sync and async.

The tests cover the pairs of lane, protocol and way: a test runs on every lane with every protocol of the lane, but only
in one of the two ways there. The ways alternate between the lanes, the protocols and the tests. A test with the mark
`every_way` runs in both ways, because its subject depends on the way. The long version runs all combinations.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any
from zlib import crc32

import pytest
from tests.clock import FakeClock
from tests.long_version import IS_LONG
from tests.loopback import Answer, Loopback, Request
from tests.loopback_responses import as_chat
from tests.waiting import comes_true

from acorn import ModelError, Run, module
from acorn._base.clock import use_clock
from acorn.models.failures import forget_rejections
from acorn.models.fallback import CIRCUITS
from acorn.models.litellm.library import litellm

RESPONSES = "responses"
"""The lane of OpenAI's Responses, asked natively."""
PROVIDER_VARIABLES = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_API_BASE",
    "OPENAI_ORGANIZATION",
    "OPENAI_ORG_ID",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_BASE",
)


class Wire:
    """A provider on loopback, with one of the two protocols and one of the two ways of calling.

    On the lane of OpenAI's Responses, a request is shown in the form of chat completions.
    """

    def __init__(self, protocol: str, way: str, stack: ExitStack, lane: str = "native") -> None:
        self.protocol = protocol
        self.way = way
        self.is_responses = lane == RESPONSES
        self._stack = stack
        self._server: Loopback | None = None

    @property
    def server(self) -> Loopback:
        assert self._server is not None, "call `serve` first"
        return self._server

    @property
    def is_openai(self) -> bool:
        return self.protocol == "openai"

    def serve(self, answers: list[Any] | Callable[[Request], Answer]) -> Loopback:
        """Start a new server; `model` and `bodies` refer to the last one."""
        self._server = self._stack.enter_context(Loopback(answers))
        return self._server

    def model(self, *name: str, **extra: Any) -> dict[str, Any]:
        """Return the model dict of the server."""
        if self.is_responses:
            return self.server.responses(*name, **extra)
        return self.server.openai(*name, **extra) if self.is_openai else self.server.anthropic(*name, **extra)

    @property
    def name(self) -> str:
        return str(self.model()["model"])

    def run(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Run[Any]:
        if self.way == "sync":
            return agent.run(*args, **kwargs)
        return asyncio.run(self._arun(agent, *args, **kwargs))

    def call(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Any:
        if self.way == "sync":
            return agent(*args, **kwargs)
        return asyncio.run(self._acall(agent, *args, **kwargs))

    async def _acall(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Any:
        return await agent.acall(*args, **kwargs)

    async def _arun(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> Run[Any]:
        return await agent.arun(*args, **kwargs)

    def fails(self, agent: module[Any, Any], *args: Any, **kwargs: Any) -> ModelError:
        """Return the error of a run that must fail at the provider."""
        with pytest.raises(ModelError) as caught:
            self.run(agent, *args, **kwargs)
        return caught.value

    def bodies(self) -> list[dict[str, Any]]:
        bodies = self.server.bodies()
        return list(map(as_chat, bodies)) if self.is_responses else bodies

    def count(self, expected: int = 0) -> int:
        """Return the number of requests; expected ones may arrive late if no code waits for a response."""
        comes_true(lambda: len(self.server.requests) >= expected)
        return len(self.server.requests)

    def either(self, *, openai: Any, anthropic: Any) -> Any:
        """Choose the expectation for the current protocol."""
        return openai if self.is_openai else anthropic


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of a provider on every lane, with every protocol of the lane."""
    own: set[str] = set()
    for mark in metafunc.definition.iter_markers("parametrize"):
        own |= {mark.args[0]} if isinstance(mark.args[0], str) else set(mark.args[0])
    asked = {"wire", "gpt", "claude", "protocol"}.intersection(metafunc.fixturenames)
    is_spoken = bool({"wire", "gpt"} & asked) and not metafunc.definition.get_closest_marker("chat")
    lanes = ["native", "litellm", *([RESPONSES] if is_spoken and "protocol" not in own else [])]
    values = {"lane": lanes, "protocol": ["openai", "anthropic"], "way": ["sync", "async"]}
    wanted = {"protocol", "way"}.intersection(metafunc.fixturenames) | ({"lane"} if asked else set())
    names = [name for name in values if name in wanted - own]
    rows = list(product(*(values[name] for name in names)))
    rows = [row for row in rows if not {RESPONSES, "anthropic"} <= set(row)]
    if {"lane", "way"} <= set(names) and not IS_LONG and not metafunc.definition.get_closest_marker("every_way"):
        first = crc32(metafunc.function.__name__.encode())
        rows = [row for row in rows if (sum(values[n].index(v) for n, v in zip(names, row, strict=True)) + first) % 2]
    if len(names) == 1:  # pytest expects values, not rows.
        metafunc.parametrize(names[0], [value for (value,) in rows], indirect=True)
    elif names:
        metafunc.parametrize(names, rows, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect two of the four values of `how` (whole or streamed, sync or async) for each provider of a test."""
    spared = set() if IS_LONG else {item for item in items if _is_spared(item)}
    if spared:
        config.hook.pytest_deselected(items=list(spared))
        items[:] = [item for item in items if item not in spared]


def _is_spared(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    if spec is None or not {"how", "speaker"} <= spec.params.keys():
        return False
    is_async, is_streamed = spec.params["how"].endswith("async"), spec.params["how"].startswith("streamed")
    first = crc32(item.name.partition("[")[0].encode()) + spec.indices["speaker"]
    return bool((is_async + is_streamed + first) % 2)


@pytest.fixture(autouse=True)
def lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The lanes of the tests."""
    lane = str(getattr(request, "param", "native"))
    monkeypatch.setenv("ACORN_LANE", "native" if lane == RESPONSES else lane)
    yield lane
    if "litellm" in sys.modules:
        # LiteLLM has a client for each address, and it does not close a client that it no longer uses.
        clients = sys.modules["litellm"].in_memory_llm_clients_cache
        for key, client in list(clients.cache_dict.items()):
            if type(client).__name__ in ("OpenAI", "AzureOpenAI"):
                client.close()
                clients.delete_cache(key)


@pytest.fixture
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wire(protocol: str, way: str, lane: str, litellm_is_loaded: None) -> Iterator[Wire]:
    with ExitStack() as stack:
        yield Wire(protocol, way, stack, lane)


@pytest.fixture
def gpt(way: str, lane: str, litellm_is_loaded: None) -> Iterator[Wire]:
    """OpenAI's protocol only."""
    with ExitStack() as stack:
        yield Wire("openai", way, stack, lane)


@pytest.fixture
def claude(way: str, lane: str, litellm_is_loaded: None) -> Iterator[Wire]:
    """Anthropic's protocol only."""
    with ExitStack() as stack:
        yield Wire("anthropic", way, stack, lane)


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    """Replace the clock of retries and time limits, so that no test waits for them."""
    clock = FakeClock()
    with use_clock(clock):
        yield clock


@pytest.fixture(scope="session")
def litellm_is_loaded() -> None:
    """Import LiteLLM in advance: the import takes seconds that belong to no test."""
    litellm()


@pytest.fixture(autouse=True)
def every_server_is_a_stranger() -> None:
    """Forget what was learned about a port: a new server may get the port of an earlier one."""
    forget_rejections()
    CIRCUITS.clear()


@pytest.fixture(autouse=True)
def no_keys_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove environment variables that would change the tests."""
    for name in PROVIDER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def database_of_worker(postgres_server: str) -> Iterator[str]:
    from tests.postgres_server import new_database  # POSIX

    with new_database(postgres_server) as url:
        yield url


@pytest.fixture
def cleared_postgres(database_of_worker: str) -> Iterator[str]:
    """Return the URL of a database without runs. Its tables may exist, because a new database takes long."""
    yield database_of_worker
    clear_tables(database_of_worker)


def clear_tables(url: str) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'acorn' AND tablename <> 'meta'")
        for (table,) in found.fetchall():
            connection.execute(f"DELETE FROM acorn.{table}".encode())
