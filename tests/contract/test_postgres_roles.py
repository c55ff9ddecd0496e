"""Tests of the PostgreSQL roles in the guide to fleets: each role can do its task and nothing more."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.cases import case
from tests.commits import begin, birth, change, go_on, request
from tests.fleet.fleet import SOURCE, Fleet
from tests.waiting import PATIENCE

from acorn import StoreError
from acorn.stores.lease import this_process
from acorn.stores.port import Commit, MediaBlob, PlaceOrder, QueuedRun, RunHeader
from acorn.stores.postgres import PostgresStore

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "fleet.md"
USERS = {"submit": "desk_shop", "drive": "desk_worker", "answer": "desk_support", "read": "desk_report"}
AGENT = "desk:Desk"
_AGENTS = """
from acorn import module
from acorn.testing import ScriptedModel, finish

class Desk(module[str, str]):
    \"\"\"Answer.\"\"\"
    model = ScriptedModel(lambda request: finish("Because."))
"""


def guide_sql() -> list[str]:
    """Return the SQL blocks of the guide, with names that no other test uses, because a server shares its roles."""
    text = GUIDE.read_text(encoding="utf-8")
    blocks = re.findall(r"```sql\n(.*?)```", text, flags=re.DOTALL)
    return [re.sub(r"\b(acorn_(?:submit|drive|answer|read)|desk_\w+)\b", _own_name, block) for block in blocks]


def _own_name(match: re.Match[str]) -> str:
    return f"{match[1]}_{os.getpid()}"


def execute(url: str, sql: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        found = connection.execute(sql.encode())
        return found.fetchall() if found.description else []


@pytest.fixture
def users(postgres: str) -> Iterator[dict[str, str]]:
    """Create the tables, the roles and the users as in the guide, and return the URL of each user by its role."""
    with closing(PostgresStore(postgres)) as owner:
        owner.prepare_engine()
    roles, permissions, policies, logins = guide_sql()
    parts = urlsplit(postgres)
    try:
        execute(postgres, roles)
        execute(postgres, permissions)
        execute(postgres, permissions)  # The guide says that the block can be repeated.
        execute(postgres, policies)
        execute(postgres, logins)
        yield {
            role: urlunsplit(parts._replace(netloc=f"{user}_{os.getpid()}:secret@{parts.hostname}:{parts.port}"))
            for role, user in USERS.items()
        }
    finally:
        for name in re.findall(r"CREATE ROLE (\w+)", logins + roles):
            execute(postgres, f"DROP OWNED BY {name}")
            execute(postgres, f"DROP ROLE {name}")


@contextmanager
def store_of(url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(url)) as store:
        yield store


def queued(run_id: str, *media: MediaBlob) -> QueuedRun:
    header = RunHeader(AGENT, None, None, '{"n": 1}', datetime.now(UTC), None, None, None)
    return QueuedRun(run_id, header, 0, None, media)


def refuse(name: str, action: Callable[[], object]) -> None:
    with case(name), pytest.raises(StoreError, match="lacks a permission"):
        action()


def refuse_sql(url: str, *statements: str) -> None:
    for statement in statements:
        with case(statement), pytest.raises(psycopg.errors.InsufficientPrivilege):
            execute(url, statement)


def test_roles_of_guide_deliver_pause_answer_and_finish_run(users: dict[str, str]) -> None:
    image = MediaBlob("a" * 64, b"image")
    with (
        store_of(users["submit"]) as shop,
        store_of(users["drive"]) as worker,
        store_of(users["answer"]) as support,
        store_of(users["read"]) as report,
    ):
        here = this_process()
        assert shop.enqueue([queued("r", image), queued("s", image)], deliver=True) == ["r", "s"]
        assert shop.enqueue([queued("r", image)], deliver=True) == []
        worker.prepare_engine()
        worker.renew_lease(here, 20)
        worker.register_worker(here, [AGENT], 4)
        assert worker.next_delivery([AGENT]) == "r"
        assert worker.requeue_lost([AGENT], 0) == ["r"]
        assert worker.next_delivery([AGENT]) == "s"
        assert worker.next_delivery([AGENT]) == "r"
        assert worker.claim("r", here) is not None
        pausing = Commit("r", here, [change("r", ["0"], status="waiting"), change("b", ["0"], born=birth("r"))])
        worker.commit(pausing._replace(requests=[request("q", "r"), request("p", "r")])).result()
        assert [one.id for one in support.requests()] == ["q", "p"]
        assert [facts.id for facts in support.list(status=["waiting"])] == ["r"]
        support.answer("q", True)
        support.answer("p", {"approved": True})
        with pytest.raises(StoreError, match=r"already answered|is not open"):
            support.answer("q", False)
        assert worker.next_delivery([AGENT]) == "r"
        assert worker.claim("r", here) is not None
        assert [one.value for one in worker.answers("r")] == [True, {"approved": True}]
        go_on(worker, "r", 1, here, status="done")
        order = PlaceOrder("key", 1, None, None, 60.0, 1.0, [])
        assert worker.take_place(order).seconds == 0
        assert worker.enqueue([queued("t")], deliver=True) == ["t"]
        worker.cancel("t")
        worker.unregister_worker(here)
        assert {facts.id: facts.status for facts in report.list()} == {"r": "done", "s": "queued", "t": "cancelled"}
        assert [len(run.entries) for run in report.read("r")] == [2, 1]
        assert report.media(["a" * 64]) == {"a" * 64: b"image"}
        assert [agent.agent for agent in report.fleet().agents] == [AGENT]


def test_roles_of_guide_cannot_do_tasks_of_other_roles(users: dict[str, str], postgres: str) -> None:
    here = this_process()
    with store_of(postgres) as owner:
        begin(owner, "r", agent=AGENT)
        go_on(owner, "r", 1, status="waiting", requests=[request("q", "r")])
        owner.enqueue([queued("s")], deliver=True)
    with (
        store_of(users["submit"]) as shop,
        store_of(users["drive"]) as worker,
        store_of(users["answer"]) as support,
        store_of(users["read"]) as report,
    ):
        for name, store in (("submit", shop), ("answer", support), ("read", report)):
            refuse(f"{name} drives", lambda store=store: begin(store, "x"))  # type: ignore[misc]
            refuse(f"{name} claims", lambda store=store: store.claim("r", here))  # type: ignore[misc]
            refuse(f"{name} cancels", lambda store=store: store.cancel("r"))  # type: ignore[misc]
            refuse(f"{name} takes a job", lambda store=store: store.next_delivery([AGENT]))  # type: ignore[misc]
        for name, store in (("submit", shop), ("drive", worker), ("read", report)):
            refuse(f"{name} answers", lambda store=store: store.answer("q", True))  # type: ignore[misc]
        for name, store in (("answer", support), ("read", report)):
            refuse(f"{name} submits", lambda store=store: store.enqueue([queued("x")], deliver=True))  # type: ignore[misc]
        for name, store in (("submit", shop), ("answer", support)):
            refuse(f"{name} reads", lambda store=store: store.read("r"))  # type: ignore[misc]
        for name, store in (("submit", shop), ("drive", worker), ("answer", support), ("read", report)):
            refuse(f"{name} deletes", lambda store=store: store.delete("r"))  # type: ignore[misc]
        with pytest.raises(StoreError) as caught:
            worker.delete("r")
        assert "unknown whether" not in str(caught.value)
        assert {facts.id: facts.status for facts in report.list()} == {"r": "waiting", "s": "queued"}


def test_users_of_guide_cannot_forge_rows_with_own_sql(users: dict[str, str], postgres: str) -> None:
    with store_of(postgres) as owner:
        begin(owner, "r", agent=AGENT)
        go_on(owner, "r", 1, status="waiting", requests=[request("q", "r"), request("p", "r")])
        owner.answer("q", False)
    usage = "steps, input_tokens, output_tokens, cached_tokens, reasoning_tokens, requests, cache_write_tokens"
    run = f"INSERT INTO acorn.runs (id, agent, status, {usage}, started, updated, seconds, entry_count, is_delivered"
    values = "'{}', 0, 0, 0, 0, 0, 0, 0, now(), now(), 0"
    refuse_sql(
        users["submit"],
        f"{run}) VALUES ('x', 'a', {values.format('done')}, 0, true)",
        f"{run}) VALUES ('x', 'a', {values.format('queued')}, 1, true)",
        f"{run}, root) VALUES ('x', 'a', {values.format('queued')}, 0, true, 1)",
        f"{run}, process) VALUES ('x', 'a', {values.format('queued')}, 0, true, 'p')",
        """INSERT INTO acorn.run_states VALUES (99, 'null', '{"approved": true}')""",
        """UPDATE acorn.run_states SET state = '{}'""",
        "INSERT INTO acorn.entries (root, run, entry) VALUES (1, 1, '{}')",
        "SELECT input FROM acorn.run_headers",
        "SELECT error FROM acorn.runs",
        "SELECT data FROM acorn.media",
        "SELECT * FROM acorn.requests",
        "UPDATE acorn.runs SET status = 'queued'",
        "DELETE FROM acorn_jobs.procrastinate_jobs",
        "SELECT args FROM acorn_jobs.procrastinate_jobs",
    )
    refuse_sql(
        users["drive"],
        "UPDATE acorn.entries SET entry = '{}'",
        "DELETE FROM acorn.entries",
        "UPDATE acorn.run_headers SET input = '{}'",
        "UPDATE acorn.requests SET answer = 'true', answered = now()",
        """INSERT INTO acorn.requests (id, root, run, kind, question, tool, arguments, asked, answer, answered)
           VALUES ('x', 1, 'r', 'approval', '?', 't', '{}', now(), 'true', now())""",
        "UPDATE acorn.media SET data = ''",
        "UPDATE acorn.meta SET version = 99",
        "DELETE FROM acorn.runs",
        "CREATE TABLE acorn.other (name text)",
    )
    assert execute(users["drive"], "DELETE FROM acorn.requests WHERE id = 'q' RETURNING id") == []
    refuse_sql(
        users["answer"],
        "UPDATE acorn.requests SET arguments = '{}'",
        "UPDATE acorn.runs SET status = 'done' WHERE id = 'r'",
        "UPDATE acorn.runs SET process = 'p'",
        "SELECT * FROM acorn.entries",
        "SELECT * FROM acorn.run_states",
        "DELETE FROM acorn.requests",
    )
    changed = "UPDATE acorn.requests SET answer = 'true', answered = now() WHERE id = 'q' RETURNING id"
    assert execute(users["answer"], changed) == []
    refuse_sql(
        users["read"],
        "UPDATE acorn.runs SET watched_until = now()",
        "INSERT INTO acorn.writers VALUES ('w', 1, now())",
        "SELECT * FROM acorn_jobs.procrastinate_jobs",
    )


@pytest.mark.torture
def test_worker_and_submitter_of_guide_complete_run_with_their_roles(
    users: dict[str, str], postgres: str, tmp_path: Path
) -> None:
    own = os.getpid()
    execute(postgres, f"GRANT acorn_read_{own} TO {USERS['submit']}_{own}")  # It also waits for the result.
    (tmp_path / "agents.py").write_text(_AGENTS)
    program = (
        f"from agents import Desk; handle = Desk(store={users['submit']!r}).submit('Why?'); print(handle.result(60))"
    )
    with Fleet(users["drive"], tmp_path) as fleet:
        worker = fleet.start("Desk", file=tmp_path / "agents.py")
        path = os.pathsep.join([str(SOURCE), str(tmp_path)])
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        assert done.stdout == "Because.\n", done.stderr
        worker.send(signal.SIGTERM)
        assert worker.ends() == 0
