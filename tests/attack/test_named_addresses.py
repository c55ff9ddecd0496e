"""Attack: a store names an address, a header or a file, so that a driver sends its API key or its data there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.attack.edited_store import edit_json, execute
from tests.cases import case

import acorn
from acorn import DeclarationError, Paused, StoreError, ask_human, module
from acorn._inside import with_stored_settings
from acorn.durable import perform
from acorn.stores import SQLiteStore
from acorn.testing import ScriptedModel, call, finish

CANARY = "sk-canary-0815-4711-abcdefgh"
Edit = Callable[[Any], object]


class Desk(module[str, str]):
    """Answer."""

    model: Any = {"model": "openai/gpt-4o", "api_key": CANARY, "num_retries": 0, "timeout": 5}
    max_steps = 3


class Inner(module[str, str]):
    """Ask inside."""

    tools = [ask_human]
    max_steps = 3


class Outer(module[str, str]):
    """Ask."""

    model: Any = ScriptedModel([call("inner", input="x"), call("ask_human", question="Which?")])
    branches = {"inner": Inner}
    max_steps = 3


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[bytes]]]:
    """Return the address of a server, and the list of the bytes that it receives."""
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    received.append(connection.recv(65536))

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1", received
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def hostile_models(address: str) -> list[Any]:
    name = "openai/gpt-4o"
    return [
        {"model": name, "base_url": address},
        {"model": name, "api_base": address},
        {"model": name, "api_base": address.removeprefix("http://")},
        {"model": name, "extra_headers": {"Host": "evil"}},
        {"model": name, "headers": {"X": "y"}},
        {"model": name, "api_key": "sk-of-the-attacker-1234567"},
        {"model": name, "extra_body": {"x": 1}},
        {"model": name, "api_base": [address]},
        {"model": f"huggingface/{address}"},
        {"id": name, "base_url": address},
        f"huggingface/{address}",
        "local//etc/passwd.gguf",
        "bedrock/agentcore/arn:aws:bedrock-agentcore:x@127.0.0.1/:1:runtime/x",
        {"model": "agentcore/a:b:c:evil.example/:1", "custom_llm_provider": "bedrock"},
        [name, {"model": "openai/gpt-4o-mini", "base_url": address}],
        [[{"model": name, "base_url": address}]],
        17,
    ]


def of_settings(settings: object) -> Edit:
    return lambda header: header.update(settings=settings)


def refused(path: Path, run_id: str, drive: Callable[[], object], received: list[bytes], model: object) -> None:
    with case(model), pytest.raises(StoreError, match="Nothing was sent"):
        drive()
    assert not received
    with closing(SQLiteStore(path)) as store:
        assert store.list()[0].status in ("queued", "waiting"), model


def test_submitted_settings_with_address_header_or_key_are_refused(
    tmp_path: Path, trap: tuple[str, list[bytes]]
) -> None:
    address, received = trap
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        Desk(store=store).using(run_id="run-1", deliver=False).submit("hello")

    def drive() -> object:
        with closing(SQLiteStore(path)) as store:
            return perform(store, "run-1", Desk)

    for model in hostile_models(address):
        edit_json(path, "run_headers", "overrides", of_settings({"model": model}))
        refused(path, "run-1", drive, received, model)
    hosts = ["127.0.0.1:1/mcp", address]
    tools: list[Any] = [{"tools": [{"type": "mcp", "server_url": host}]} for host in hosts]
    tools += [{"tools": [{"type": "mcp", "connector_id": "connector_gmail", "authorization": "x"}]}]
    for settings in ({"store": "/tmp/other.db"}, {"deps": 1}, *tools, [1]):
        edit_json(path, "run_headers", "overrides", of_settings(settings))
        with case(settings), pytest.raises(StoreError):
            drive()
    assert not received


def test_submitted_address_that_the_worker_declares_is_used(tmp_path: Path, trap: tuple[str, list[bytes]]) -> None:
    address, received = trap
    path = tmp_path / "runs.db"
    declared = {"model": "openai/gpt-4o", "base_url": address, "num_retries": 0}
    with closing(SQLiteStore(path)) as store:
        Desk(store=store).using(run_id="run-1", deliver=False).submit("hello")
        edit_json(path, "run_headers", "overrides", lambda header: header.update(settings={"model": declared}))
        assert perform(store, "run-1", Desk(model=declared)) == "failed"  # The trap does not answer.
    assert received


def test_submit_with_address_that_the_class_does_not_declare_raises_declaration_error(tmp_path: Path) -> None:
    for model in ({"model": "openai/x", "base_url": "http://127.0.0.1:1"}, ["a", {"model": "b", "api_key": "k"}]):
        with pytest.raises(DeclarationError, match=r"cannot be stored with a queued run"):
            Desk(store=str(tmp_path / "runs.db"), model=model).using(deliver=False).submit("hello")


def test_submitted_setting_that_the_class_does_not_accept_raises_store_error(tmp_path: Path) -> None:
    """Otherwise the store would deliver the run again and again."""
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        Desk(store=store).using(run_id="run-1", deliver=False).submit("hello")
        for settings in (
            {"initial_input": {"x": "__import__('os')"}},
            {"branches": {"x": "os:system"}},
            {"tools": ["os:system"]},
            {"max_steps": -1},
            {"rate_limit": {"x": 1}},
        ):
            edit_json(path, "run_headers", "overrides", of_settings(settings))
            with case(settings), pytest.raises(StoreError, match="does not accept"):
                perform(store, "run-1", Desk)
        edit_json(path, "run_headers", "overrides", of_settings({"model": "local/unknown"}))
        with pytest.raises(StoreError, match="has a model that cannot be used"):
            perform(store, "run-1", Desk)
        nested = "[" * 600 + '"x"' + "]" * 600
        for text in ("[" * 100_000, '{"settings": {"model": ' + nested + "}}", nested):
            execute(path, "UPDATE run_headers SET overrides = ?", text)
            with case(text[:40]), pytest.raises(StoreError):
                perform(store, "run-1", Desk)


def test_model_without_address_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may name a model with an empty address, an ARN, or an address with a password from the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:long-password@127.0.0.1:1/v1")
    monkeypatch.setenv("OLLAMA_API_BASE", "http://localhost:1/")
    models: tuple[str | dict[str, Any], ...]
    models = (
        {"model": "openai/gpt-4o", "base_url": None},
        {"model": "openai/gpt-4o", "base_url": ""},
        {"model": "openai/gpt-4o", "base_url": "http://user:long-password@127.0.0.1:1/v1", "num_retries": 0},
        {"model": "openai/gpt-4o", "api_base": "http://localhost:1"},
        "openai/ft:gpt-4o-mini-2024-07-18:my-org:v1.2_suffix:id",
        "bedrock/arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude",
        "ollama/llama3:8b",
    )
    for number, model in enumerate(models):
        with case(model), closing(SQLiteStore(tmp_path / f"{number}.db")) as store:
            agent = Desk(store=store, model=model)
            agent.using(run_id="run-1", deliver=False).submit("hello")
            stored = with_stored_settings(Desk(), store.read("run-1")[0], store).model
            if isinstance(model, dict) and "api_base" in model:
                model["api_base"] = "http://localhost:1/"  # The form in the environment.
            assert stored == model


def test_saved_state_with_address_is_refused_in_root_and_branches(
    tmp_path: Path, trap: tuple[str, list[bytes]]
) -> None:
    address, received = trap
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        paused = Outer(store=store).using(run_id="run-1")("hello")
        assert isinstance(paused, Paused)

    def drive() -> object:
        with closing(SQLiteStore(path)) as store:
            return Outer(store=store, model=ScriptedModel([finish("x")])).resume("run-1", answer="blue")

    def of_state(model: object) -> Edit:
        return lambda state: state.update(settings={"model": model} if model else {})

    def of_context(model: object) -> Edit:
        return lambda context: context.update(settings={"model": model} if model else {})

    def of_open_branches(model: object) -> Edit:
        return lambda state: [of_context(model)(context) for context in state["branches"]]

    for model in hostile_models(address):
        for table, column, attack in (
            ("run_states", "state", of_state),
            ("run_headers", "branch", of_context),
            ("run_states", "state", of_open_branches),
        ):
            edit_json(path, table, column, attack(model))
            refused(path, "run-1", drive, received, model)
            edit_json(path, table, column, attack(None))
    edit_json(path, "run_states", "state", lambda state: state.update(settings={"store": "x"}))
    refused(path, "run-1", drive, received, "store")
    edit_json(path, "run_states", "state", lambda state: state.update(settings={"temperature": 0.1}))
    edit_json(path, "run_headers", "branch", dict.clear)
    with pytest.raises(StoreError, match="Cannot read run run-1"):
        drive()
    assert not received


def test_resume_command_with_stored_address_is_refused(
    tmp_path: Path, trap: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from acorn.cli import main

    address, received = trap
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        Desk(store=store).using(run_id="run-1", deliver=False).submit("hello")
    model = {"model": "openai/gpt-4o", "base_url": address}
    edit_json(path, "run_headers", "overrides", lambda header: header.update(settings={"model": model}))
    for words in (["resume", "run-1"], ["fork", "run-1", "--before", "1"]):
        assert main([*words, "--agent", f"{__file__}:Desk", "--store", str(path)]) != 0
        assert "Nothing was sent" in capsys.readouterr().err
    assert not received
    assert acorn.runs(path).list()[0].status == "queued"
