"""Attacks on secrets: no API key or password is in a repr, pickle, log, error, journal, store, trace or saved run."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import traceback
import types
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.attack.lanes import Agent, each_lane
from tests.cases import case
from tests.loopback import Fault, Loopback, Request
from tests.ports import free_port
from tests.telemetry import set_up

from acorn import AcornError, DeclarationError, Step, module, tool
from acorn.mcp import MCPServer
from acorn.stores import MemoryStore, PostgresStore, SQLiteStore
from acorn.stores.open import open_store
from acorn.testing import ScriptedModel, call, finish

KEY = "canary-5f1c0a9e77d2"
PASSWORD = "canary-93ab1c4d0e2f"
HEADER = "canary-2b7d99c0f1a4"
CANARIES = (KEY, PASSWORD, HEADER)
_SKIPPED = (types.ModuleType, types.FunctionType, types.FrameType, types.TracebackType, types.CodeType, type)


def find_canaries(root: object) -> list[str]:
    """Return the paths of all canaries in an object and in everything that it refers to."""
    found: list[str] = []
    seen: set[int] = set()
    pending: list[tuple[str, object]] = [(type(root).__name__, root)]
    while pending:
        path, value = pending.pop()
        if id(value) in seen or isinstance(value, _SKIPPED) or len(seen) > 200_000:
            continue
        seen.add(id(value))
        if isinstance(value, bytes | bytearray):
            value = bytes(value).decode("latin-1")
        if isinstance(value, str):
            found += [f"{path}: {value[:300]}" for canary in CANARIES if canary in value]
            continue
        with suppress(Exception):
            found += [f"repr of {path}" for canary in CANARIES if canary in repr(value)]
        referents = gc.get_referents(value)
        if isinstance(value, BaseException):
            referents += [value.__cause__, value.__context__, value.args]
            referents += [getattr(value, name, None) for name in dir(type(value)) if not name.startswith("__")]
        pgconn = getattr(value, "pgconn", None)
        referents += [getattr(pgconn, "password", None), getattr(value, "password", None)]
        pending += [(f"{path} > {type(each).__name__}", each) for each in referents]
    return found


def echo(request: Request) -> str:
    return f"Wrong key {KEY} or {HEADER}; you sent {request.headers}."


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if a canary is in a log line."""
    caplog.set_level(logging.DEBUG, logger="acorn")
    yield
    lines = [record for record in caplog.records if record.name.partition(".")[0] in ("acorn", "litellm", "LiteLLM")]
    assert not find_canaries([(record.getMessage(), record.exc_info) for record in lines])


FAULTS: dict[str, Any] = {
    "401": lambda request: Fault(status=401, message=echo(request)),
    "400": lambda request: Fault(status=400, message=echo(request)),
    "500": lambda request: Fault(status=500, message=echo(request)),
    "302": lambda request: Fault(status=302, headers={"Location": f"http://{KEY}@127.0.0.1/"}, body=b""),
    "no JSON": lambda request: Fault(body=echo(request).encode()),
    "reset": lambda request: Fault(reset="before"),
    "reset inside": lambda request: Fault(reset="inside", reply=finish("done")),
}


def test_no_error_of_a_provider_contains_a_secret() -> None:
    for turn, (name, answer) in enumerate(FAULTS.items()):
        for lane in each_lane(turn=turn):
            with case(name), Loopback(answer) as server:
                headers = {"X-Api-Key": HEADER, "X-Odd": HEADER}
                error = lane.fails(server, api_key=KEY, extra_headers=headers)
                assert not find_canaries(error)
                assert not find_canaries("".join(traceback.format_exception(error)))
                assert not find_canaries(pickle.dumps(error))


def test_no_error_of_a_connection_contains_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://user:{PASSWORD}@127.0.0.1:{free_port()}"
    for proxy in (None, address):
        if proxy is not None:
            monkeypatch.setenv("HTTP_PROXY", proxy)
        for lane in each_lane():
            with case(proxy), Loopback() as server:
                error = lane.fails(server, api_key=KEY, api_base=address)
                assert not find_canaries(error)


def test_pickled_agent_contains_no_secret_and_copied_agent_works() -> None:
    with Loopback(lambda request: finish("done")) as server:
        model = server.openai(api_key=KEY, lane="native", extra_headers={"X-Api-Key": HEADER, "X-Title": "title"})
        store = f"postgresql://user:{PASSWORD}@127.0.0.1/runs?sslmode=disable&password={PASSWORD}"
        for setting in (model, [model, "openai/gpt-4o"], model["model"]):
            with case(setting):
                agent = Agent(model=setting)
                agent.store = store
                for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                    assert not find_canaries(pickle.dumps(agent, protocol))
                loaded = pickle.loads(pickle.dumps(agent))
                assert loaded.store == "postgresql://user@127.0.0.1/runs?sslmode=disable"
                if isinstance(setting, dict):
                    expected = {**model, "extra_headers": {"X-Title": "title"}}
                    del expected["api_key"]
                    assert loaded.model == expected
                for other in (copy.copy(agent), copy.deepcopy(agent), agent.using(max_steps=1)):
                    assert (other.model, other.store) == (setting, store)
        hosted = {"type": "mcp", "server_label": "a", "authorization": KEY, "max_content_tokens": 9}
        agent = Agent(model=model, tools=[hosted, find_canaries])
        assert not find_canaries(pickle.dumps(agent))
        del hosted["authorization"]
        assert pickle.loads(pickle.dumps(agent)).tools == [hosted, find_canaries]
        assert Agent(model=model)("x") == "done"


def test_mcp_server_contains_no_secret_in_its_repr_and_pickle() -> None:
    for server in (
        MCPServer("http://127.0.0.1:9/mcp", headers={"Authorization": f"Bearer {KEY}"}),
        MCPServer(f"http://user:{PASSWORD}@127.0.0.1:9/mcp"),
        MCPServer("program", ["--token", HEADER], env={"TOKEN": KEY}),
    ):
        assert not find_canaries(repr(server))
        with suppress(TypeError):
            assert not find_canaries(pickle.dumps(server))


def test_no_run_journal_store_or_trace_contains_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACORN_TELEMETRY", "content")

    @tool
    def look(place: str) -> str:
        """Look somewhere."""
        return "nothing"

    class Looking(module[str, str]):
        """Look."""

        tools = [look]
        max_steps = 3

        def on_step(self, step: Step) -> None:
            step.model = self.model  # Changed settings are stored.

    for lane in ("native", "litellm"):
        answers = [call("look", place="here"), finish("done")]
        with case(lane), Loopback(answers) as server, set_up() as spans:
            agent = Looking(model=server.openai(lane=lane, api_key=KEY, extra_headers={"X-Api-Key": HEADER}))
            agent.store = str(tmp_path / f"{lane}.db")
            run = agent.run("x")
            assert run.output == "done"
            assert not find_canaries([run.to_json(), repr(run), run.history, run.journal, pickle.dumps(run)])
            assert not find_canaries(repr(agent))
            assert not find_canaries(spans.text)
    for path in tmp_path.iterdir():
        assert not find_canaries(path.read_bytes())


def test_no_error_of_a_store_contains_a_password() -> None:
    address = f"127.0.0.1:{free_port()}"
    store = PostgresStore(f"postgresql://user:{PASSWORD}@{address}/runs?connect_timeout=2")
    with pytest.raises(AcornError) as caught:
        store.list(limit=1)
    assert not find_canaries(caught.value)
    assert not find_canaries("".join(traceback.format_exception(caught.value)))


def test_connection_parameters_as_store_raise_error_without_password() -> None:
    for text in (
        f"host=127.0.0.1 password={PASSWORD}",
        f"password={PASSWORD} host=127.0.0.1 dbname=runs",
        f"  user = me  password = '{PASSWORD}'",
        f"postgresql://user:{PASSWORD}@[/runs",
        f"mysql://user:{PASSWORD}@127.0.0.1/runs",
    ):
        with case(text), pytest.raises(DeclarationError) as caught:
            open_store(text, "`--store`")
        assert not find_canaries(caught.value)
        assert isinstance(open_store("memory", "`--store`"), MemoryStore)


def test_find_canaries_detects_a_secret_in_nested_objects() -> None:
    error = ValueError("x")
    error.__cause__ = RuntimeError("y")
    vars(error.__cause__)["request"] = types.SimpleNamespace(headers=[("a", KEY.encode())])
    assert find_canaries(error)


def test_key_of_a_hosted_tool_is_not_stored(tmp_path: Path) -> None:
    """A hosted tool of an instance may have headers, a key, or a password in its address."""
    for number, hosted in enumerate(
        (
            {"type": "mcp", "server_label": "a", "server_url": f"https://user:{HEADER}@host/mcp"},
            {"type": "mcp", "server_label": "a", "connector_id": "x", "authorization": HEADER},
            {"type": "mcp", "server_label": "a", "headers": {"Authorization": f"Bearer {HEADER}"}},
            {"type": "search", "options": [{"api_key": HEADER}]},
        )
    ):
        path = tmp_path / f"{number}.db"
        with case(hosted), closing(SQLiteStore(path)) as store:
            agent = Agent(store=store, model=ScriptedModel([finish("done")]), tools=[hosted])
            assert agent.using(run_id="run-1")("hello") == "done"
            with pytest.raises(DeclarationError, match=r"hosted tool with an address or a key") as caught:
                Agent(store=store, tools=[hosted]).using(deliver=False).submit("hello")
            assert HEADER not in str(caught.value)
        assert HEADER.encode() not in path.read_bytes()
