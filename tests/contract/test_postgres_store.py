"""Tests of the PostgreSQL store: tables, errors, lost connections and notifications."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.cases import case
from tests.commits import begin, birth, change, elsewhere, go_on, request
from tests.contract.conftest import clear_tables
from tests.cutting_proxy import CuttingProxy
from tests.long_version import IS_LONG
from tests.postgres_server import NAMED, OwnServer, in_database
from tests.waiting import PATIENCE, comes_true

import acorn
from acorn import DeclarationError, StoreError
from acorn.stores.lease import start_heartbeat, stop_heartbeat, this_process
from acorn.stores.open import open_store
from acorn.stores.port import Commit
from acorn.stores.postgres import PostgresStore
from acorn.stores.postgres.statements import TABLES, prepare
from acorn.stores.statements import SCHEMA_VERSION

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(cleared_postgres: str) -> Iterator[PostgresStore]:
    made = PostgresStore(cleared_postgres)
    yield made
    made.close()


def ask(url: str, sql: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(sql.encode())
        return found.fetchall() if found.description else []


def with_port(url: str, port: int, login: str = "postgres") -> str:
    return urlunsplit(urlsplit(url)._replace(netloc=f"{login}@127.0.0.1:{port}"))


# Tables


def test_first_users_of_empty_database_concurrently_create_tables_once(postgres: str) -> None:
    stores = [PostgresStore(postgres) for _ in range(6)]
    threads = [threading.Thread(target=begin, args=(store, f"r{number}")) for number, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores[0].list()) == 6
    assert ask(postgres, "SELECT version FROM acorn.meta") == [(SCHEMA_VERSION,)]
    for store in stores:
        store.close()


@pytest.mark.torture
def test_processes_that_start_concurrently_create_runs_without_conflict(postgres: str) -> None:
    script = "import sys; from tests.commits import begin; from acorn.stores import PostgresStore\n"
    script += "begin(PostgresStore(sys.argv[1]), sys.argv[2])"
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": places}
    processes = [
        subprocess.Popen([sys.executable, "-c", script, postgres, f"r{number}"], env=environment) for number in range(3)
    ]
    assert [process.wait(PATIENCE) for process in processes] == [0, 0, 0]
    with closing(PostgresStore(postgres)) as store:
        assert len(store.list()) == 3


def test_newer_database_schema_version_is_rejected_without_changes(postgres: str) -> None:
    with closing(PostgresStore(postgres)) as store:
        store.list()
    ask(postgres, "UPDATE acorn.meta SET version = 99")
    with closing(PostgresStore(postgres)) as older:
        for act in (older.list, lambda: begin(older, "r")):
            with pytest.raises(
                StoreError,
                match=f"has schema version 99, but .* supports only version {SCHEMA_VERSION}. Use the version of acorn",
            ):
                act()
    assert ask(postgres, "SELECT count(*) FROM acorn.runs") == [(0,)]


def test_database_schema_of_other_application_is_rejected_without_changes(postgres: str) -> None:
    ask(postgres, "CREATE SCHEMA acorn")
    ask(postgres, "CREATE TABLE acorn.trees (name text)")
    with (
        closing(PostgresStore(postgres)) as store,
        pytest.raises(StoreError, match=r"that another application created. .* was not changed"),
    ):
        begin(store, "r")
    assert ask(postgres, "SELECT tablename FROM pg_tables WHERE schemaname = 'acorn'") == [("trees",)]


def test_existing_empty_database_schema_is_used(postgres: str) -> None:
    ask(postgres, "CREATE SCHEMA acorn")
    with closing(PostgresStore(postgres)) as store:
        begin(store, "r")


def test_failing_statement_during_table_creation_leaves_no_database_schema(postgres: str) -> None:
    with (
        psycopg.connect(postgres, autocommit=True, cursor_factory=psycopg.RawCursor) as connection,
        pytest.raises(psycopg.Error, match="NONSENSE"),
    ):
        prepare(connection, "a test", (*TABLES, "CREATE NONSENSE"))
    assert ask(postgres, "SELECT to_regnamespace('acorn')::text") == [(None,)]


# Opening


def test_open_store_called_twice_with_one_url_returns_same_store(postgres: str) -> None:
    store = open_store(postgres, "a test")
    assert isinstance(store, PostgresStore)
    assert open_store(postgres, "a test") is store
    assert isinstance(open_store(postgres.replace("postgresql:", "postgres:"), "a test"), PostgresStore)
    store.close()


def refusal(url: str) -> str:
    with closing(PostgresStore(url)) as store:
        with pytest.raises(StoreError) as reading:
            store.list()
        with pytest.raises(StoreError) as writing:
            begin(store, "r")
        assert str(reading.value) == str(writing.value)
        return str(writing.value)


def test_unreachable_database_raises_error_without_password(postgres_server: str, postgres: str) -> None:
    with socket_that_refuses() as port:
        told = refusal(f"postgresql://me:geheim@127.0.0.1:{port}/x")
    assert "Cannot connect to" in told
    assert "Check that the server runs" in told
    assert "geheim" not in told
    told = refusal("postgresql://me:geheim@nowhere.invalid/x")
    assert "Cannot connect to postgresql://me@nowhere.invalid/x" in told
    assert "geheim" not in told
    told = refusal(in_database(postgres_server, "no_such_database"))
    assert "does not exist" in told
    assert "Create the database, or use another database" in told
    parts = urlsplit(postgres)
    told = refusal(urlunsplit(parts._replace(netloc=f"nobody_{os.getpid()}:geheim@{parts.hostname}:{parts.port}")))
    assert "refused the user" in told
    assert "geheim" not in told


@contextmanager
def socket_that_refuses() -> Iterator[int]:
    with socket.socket() as taken:  # Bound, but nothing listens.
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def another_user(postgres: str) -> Iterator[tuple[str, str]]:
    """Return the name and URL of a user without permissions."""
    role = f"reader_{os.getpid()}"
    ask(postgres, f"CREATE ROLE {role} LOGIN PASSWORD 'geheim'")
    try:
        parts = urlsplit(postgres)
        yield role, urlunsplit(parts._replace(netloc=f"{role}:geheim@{parts.hostname}:{parts.port}"))
    finally:
        ask(postgres, f"DROP OWNED BY {role}")
        ask(postgres, f"DROP ROLE {role}")


def test_user_without_write_permission_raises_store_error(cleared_postgres: str, store: PostgresStore) -> None:
    begin(store, "r")
    with another_user(cleared_postgres) as (role, login):
        ask(cleared_postgres, f"GRANT USAGE ON SCHEMA acorn TO {role}")
        ask(cleared_postgres, f"GRANT SELECT ON ALL TABLES IN SCHEMA acorn TO {role}")
        with closing(PostgresStore(login)) as reader:
            assert [facts.id for facts in reader.list()] == ["r"]
            with pytest.raises(StoreError, match=r"lacks a permission .*permission denied") as caught:
                begin(reader, "s")
            assert "geheim" not in str(caught.value)


def test_user_without_create_permission_can_use_existing_schema(postgres: str) -> None:
    with another_user(postgres) as (role, login), closing(PostgresStore(login)) as store:
        ask(postgres, f"CREATE SCHEMA acorn AUTHORIZATION {role}")
        with pytest.raises(StoreError, match="Allow the user to create and write the schemas `acorn` and `acorn_jobs`"):
            store.prepare_engine()
        ask(postgres, f"CREATE SCHEMA acorn_jobs AUTHORIZATION {role}")
        store.prepare_engine()


def test_name_and_repr_of_postgres_store_contain_no_password() -> None:
    for url, name in (
        ("postgresql://me:geheim@host:5433/db", "postgresql://me@host:5433/db"),
        ("postgres://host/db?password=geheim&sslmode=require", "postgres://host/db?sslmode=require"),
        ("postgresql:///db?host=/run/pg&sslpassword=geheim&user=me", "postgresql:///db?host=/run/pg&user=me"),
        ("postgresql://me:ge%40heim@[::1]:5432/db", "postgresql://me@[::1]:5432/db"),
        ("postgresql://me:geheim@a:1,b:2/db", "postgresql://me@a:1,b:2/db"),
    ):
        with closing(PostgresStore(url)) as store:
            assert store.name == name
            assert repr(store) == f"PostgresStore({name!r})"


def test_invalid_database_url_raises_error_without_password() -> None:
    for url in ("me:ge@heim@host/db", "me:ge/heim@host/db", "me:ge?heim@host/db", "host/db?ge=heim"):
        with (
            case(url),
            pytest.raises(
                DeclarationError, match=r"is not the URL of a PostgreSQL database. Use the form 'postgresql://user"
            ) as caught,
        ):
            open_store(f"postgresql://{url}", "`store` of `Desk`")
        assert "heim" not in str(caught.value)
        assert "ge" not in str(caught.value).partition(" is not the URL")[0].removeprefix("`postgresql")
        assert caught.value.__cause__ is None


def test_missing_psycopg_raises_error_with_install_command(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('not installed')")
    script = "from acorn.stores.open import open_store\ntry: open_store('postgresql://me:geheim@h/db', '`store`')\n"
    script += "except Exception as error: print(type(error).__name__, error)"
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True
    )
    assert done.stdout.startswith("StoreError ")
    assert "pip install 'acorn-agents[postgres]'" in done.stdout
    assert "geheim" not in done.stdout + done.stderr


# Lost connections


CUT_OFF = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def test_commit_after_cut_connection_opens_new_connection(store: PostgresStore, cleared_postgres: str) -> None:
    begin(store, "r")
    for since in range(1, 6):
        store.list()
        ask(cleared_postgres, CUT_OFF)
        go_on(store, "r", since)
        assert len(store.read("r")[0].entries) == since + 1


def test_commits_during_cut_connections_store_each_entry_exactly_once(
    store: PostgresStore, cleared_postgres: str
) -> None:
    steps = 300 if IS_LONG else 30
    done: list[int] = []

    def drive(run_id: str) -> None:
        begin(store, run_id)
        for since in range(1, steps):
            go_on(store, run_id, since)
            done.append(since)

    threads = [threading.Thread(target=drive, args=(f"r{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        before = len(done)
        assert comes_true(lambda: len(done) > before + 4 or not any(thread.is_alive() for thread in threads))  # noqa: B023
        ask(cleared_postgres, CUT_OFF)
    for number in range(4):
        (kept,) = store.read(f"r{number}")
        assert list(kept.entries) == [str(at) for at in range(steps)]


def has_commit(data: bytes) -> bool:
    return b"\0COMMIT\0" in data


ACTS: dict[str, Callable[[PostgresStore], object]] = {
    "a commit": lambda store: go_on(store, "r", 1),
    "one without entries": lambda store: store.commit(Commit("r", this_process(), [change("r", [], since=1)])).result(),
    "a birth": lambda store: begin(store, "s"),
    "a tree": lambda store: store.commit(
        Commit("r", this_process(), [change("r", ["1"], since=1), change("b", ["0"], born=birth("r"))])
    ).result(),
    "a claim": lambda store: store.claim("w", elsewhere()),
    "an answer": lambda store: store.answer("q", 1),
    "a wish": lambda store: store.cancel("r"),
    "an end": lambda store: store.delete("w"),
}


@pytest.mark.skipif(NAMED is not None, reason="the proxy is for a server without encryption")
def test_commit_with_lost_reply_is_written_exactly_once(cleared_postgres: str) -> None:
    for what, side in product(ACTS, ("before", "behind")):
        clear_tables(cleared_postgres)
        with (
            case(what, side),
            closing(CuttingProxy(urlsplit(cleared_postgres).port or 5432)) as proxy,
            closing(PostgresStore(with_port(cleared_postgres, proxy.port))) as store,
        ):
            begin(store, "r")
            begin(store, "w")
            go_on(store, "w", 1, status="waiting", requests=[request("q", "w")])
            setattr(proxy, side, has_commit)
            ACTS[what](store)
            assert proxy.cuts == 1
            go_on_from = len(store.read("r")[0].entries)
            assert go_on_from == (2 if what in ("a commit", "a tree") else 1)
            if what == "a claim":
                assert store.follow("w")[0] == "running"
            if what == "an answer":
                assert [one.value for one in store.answers("w")] == [1]
            if what == "an end":
                assert store.read("w") == []
            if what == "a birth":
                assert [one.facts.id for one in store.read("s")] == ["s"]
            if what != "a wish":
                go_on(store, "r", go_on_from)


def test_commit_is_not_blocked_by_row_lock_of_frozen_acorn_process(
    store: PostgresStore, cleared_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACORN_LEASE", "0.5")
    begin(store, "r")
    with psycopg.connect(cleared_postgres, application_name="acorn", autocommit=True) as frozen:
        with suppress(psycopg.OperationalError), frozen.pipeline():
            frozen.execute("BEGIN")
            frozen.execute("SELECT FROM acorn.runs WHERE id = 'r' FOR UPDATE").fetchall()
            go_on(store, "r", since=1)  # The frozen process sends nothing more, not even that it is idle.
        assert frozen.closed
    assert list(store.read("r")[0].entries) == ["0", "1"]


def test_commit_waits_for_row_locked_by_psql_session(
    store: PostgresStore, cleared_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACORN_LEASE", "0.1")
    begin(store, "r")
    with psycopg.connect(cleared_postgres, application_name="psql") as person:
        person.execute("SELECT FROM acorn.runs WHERE id = 'r' FOR UPDATE")
        thread = threading.Thread(target=go_on, args=(store, "r"), kwargs={"since": 1})
        thread.start()
        assert comes_true(
            lambda: ask(cleared_postgres, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        )
        person.execute("SELECT 1")
    thread.join()


@pytest.mark.torture
def test_commits_during_server_restart_are_retried() -> None:
    if NAMED is not None:
        pytest.skip("only a server of its own can be ended")
    server = OwnServer()
    try:
        with closing(PostgresStore(server.url)) as store:
            begin(store, "r")
            done: list[int] = []
            steps = 300

            def drive() -> None:
                for since in range(1, steps):
                    go_on(store, "r", since)
                    done.append(since)

            thread = threading.Thread(target=drive)
            thread.start()
            for goal in (steps // 4, steps // 2):
                assert comes_true(lambda goal=goal: len(done) >= goal)  # type: ignore[misc]
                server.crash()
                server.start()
            thread.join()
            assert len(done) == steps - 1
            (kept,) = store.read("r")
            assert list(kept.entries) == [str(at) for at in range(steps)]
    finally:
        server.close()


# Notifications


def test_follower_receives_commits_made_through_other_store_objects(
    store: PostgresStore, cleared_postgres: str
) -> None:
    begin(store, "r")
    with closing(PostgresStore(cleared_postgres)) as other, closing(other.watch("r")) as watch:
        watch.wait(PATIENCE)  # The first message only says that it listens.
        position = other.follow("r")[1][-1].position
        assert comes_true(lambda: listeners(cleared_postgres))
        for since in range(1, 4):
            go_on(store, "r", since)
            while not other.follow("r", position)[1]:
                watch.wait(PATIENCE)
            position = other.follow("r", position)[1][-1].position


def listeners(url: str) -> list[Any]:
    return ask(url, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")


def test_follow_ends_when_run_ends(store: PostgresStore) -> None:
    begin(store, "r")
    seen: list[Any] = []

    def follow() -> None:
        status: Any = "running"
        with closing(store.watch("r")) as watch:
            while status == "running":
                status = store.follow("r")[0]
                watch.wait(PATIENCE)
        seen.append(status)

    thread = threading.Thread(target=follow)
    thread.start()
    go_on(store, "r", 1, status="done")
    thread.join(2 * PATIENCE)
    assert seen == ["done"]
    assert acorn.runs(store).list()[0].status == "done"


def test_cancel_request_is_delivered_before_next_heartbeat(
    store: PostgresStore, cleared_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACORN_LEASE", str(100 * PATIENCE))
    begin(store, "r")
    told = threading.Event()
    start_heartbeat(store, "r", told.set)
    assert comes_true(lambda: listeners(cleared_postgres))
    with closing(PostgresStore(cleared_postgres)) as other:
        other.cancel("r")
        assert told.wait(PATIENCE)
        stop_heartbeat(store, "r", told.set)
        begin(store, "s")
        other.cancel("s")  # Let it check whether it still has a lease to renew.
    assert comes_true(lambda: not any(thread.name == "acorn-heartbeat" for thread in threading.enumerate()))


def test_postgres_listener_reconnects_after_lost_connection(store: PostgresStore, cleared_postgres: str) -> None:
    begin(store, "r")
    told = threading.Event()
    hush = store.on_cancel_request(this_process(), told.set)
    assert comes_true(lambda: listeners(cleared_postgres))
    before = listeners(cleared_postgres)
    ask(cleared_postgres, CUT_OFF)
    assert comes_true(lambda: listeners(cleared_postgres) not in ([], before))
    told.clear()
    store.cancel("r")
    assert told.wait(PATIENCE)
    hush()


def test_store_close_during_start_of_listener_does_not_deadlock(store: PostgresStore) -> None:
    for _ in range(40 if IS_LONG else 10):
        hushes = [store.on_cancel_request(this_process(), lambda: None)]
        closing_down = threading.Thread(target=store.close, daemon=True)
        closing_down.start()
        while closing_down.is_alive() and len(hushes) < 1000:
            hushes.append(store.on_cancel_request(this_process(), lambda: None))
        closing_down.join(PATIENCE)
        assert not closing_down.is_alive()
        for hush in hushes:
            hush()
