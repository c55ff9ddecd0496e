"""Attacks by clients with a valid key on the runs of others, and on requests for human input, in `acorn serve`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cases import case
from tests.long_version import IS_LONG
from tests.web.serve.served_agent import Clerk, Echo
from tests.web.serve.server import HOME, events

import acorn
import acorn.web
from acorn._inside import stored_owner
from acorn.stores import MemoryStore, SQLiteStore
from acorn.testing import ScriptedModel, call, finish
from acorn.web.guard import AccessKey, read_keys

ALICE, BOB, EVE = "alice-key-0123456789", "bob-key-0123456789ab", "eve-key-0123456789ab"
PERSON = "person-key-0123456789"
CHAT = "/v1/chat/completions"


def service(store: Any, **options: Any) -> Any:
    """Return a service with two clients, of which one has a name, and with one approver."""
    return acorn.web.service(
        Clerk(store=store), **{"keys": [f"alice={ALICE}", BOB], "approver_keys": [f"person={PERSON}"], **options}
    )


def post(served: Any, key: str | None, path: str, body: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        headers = {"content-type": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=served), base_url=HOME) as client:
            return await client.post(path, content=json.dumps(body), headers=headers)

    return asyncio.run(send())


def paused_run(served: Any, key: str | None = ALICE) -> tuple[str, str]:
    """Start a run that waits for an approval. Return its answer path and the id of the request."""
    waits = post(served, key, "/run", {"question": "refund"})
    assert waits.status_code == 202
    return waits.json()["answer"], waits.json()["requests"][0]["id"]


def attempts(request_id: str) -> Iterator[Any]:
    """Yield all forms of an answer that would execute the refund, or reject it."""
    for answer in (
        True,
        "yes",
        {"approved": True},
        {"approved": True, "arguments": {"amount": 999_999.0}},
        {"approved": False, "reason": "x"},
    ):
        yield {"answer": answer}
        yield {"answers": {request_id: answer}}
    yield {"answer": None}
    yield {"answers": {"unknown": True}}


def test_client_cannot_approve_own_refund_or_change_its_arguments() -> None:
    store = MemoryStore()
    served = service(store)
    path, request_id = paused_run(served)
    for body in attempts(request_id):
        with case(body):
            refused = post(served, ALICE, path, body)
            assert (refused.status_code, refused.json()["error"]["type"]) == (403, "approver")
            assert len(store.requests()) == 1
    assert post(served, ALICE, path, {"answers": {}}).status_code == 202  # It still waits.
    changed = {"answer": {"approved": True, "arguments": {"amount": 5.0}}}
    assert post(served, PERSON, path, changed).json()["answer"] == "5.0 paid back"
    assert post(served, ALICE, path, {"answers": {}}).json()["answer"] == "5.0 paid back"


def test_run_of_other_client_does_not_exist_for_key() -> None:
    store = MemoryStore()
    served = service(store)
    path, request_id = paused_run(served)
    missing = post(served, BOB, "/runs/nothing/answer", {"answers": {}}).json()["error"]["message"]
    for body in [{"answers": {}}, *attempts(request_id)]:
        refused = post(served, BOB, path, body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (404, "run")
        assert refused.json()["error"]["message"] == missing.replace("nothing", path.split("/")[2])
    done = post(served, ALICE, "/run", {"question": "the secret of alice"})
    for key, status in ((ALICE, 200), (BOB, 404), (PERSON, 200), (EVE, 401), (None, 401)):
        found = post(served, key, f"/runs/{done.headers['x-run-id']}/answer", {"answers": {}})
        assert found.status_code == status
        assert ("the secret of alice" in found.text) == (status == 200)


def test_each_way_to_start_run_assigns_it_to_key() -> None:
    store = MemoryStore()
    served = service(store)
    chat = {"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": "refund"}]}
    ways = [
        ("/run", {"question": "refund"}),
        ("/stream", {"question": "refund"}),
        (CHAT, chat),
        (CHAT, {**chat, "stream": True}),
    ]
    for path, body in ways:
        with case(path):
            post(served, ALICE, path, body)
            run_id = store.list(limit=1)[0].id
            statuses = [
                post(served, key, f"/runs/{run_id}/answer", {"answers": {}}).status_code for key in (ALICE, BOB)
            ]
            assert statuses == [202, 404]


def test_chat_completion_never_shows_request_for_approval_to_customer() -> None:
    store = MemoryStore()
    served = service(store)
    for more in ({}, {"stream": True}):
        answer = post(served, ALICE, CHAT, {"messages": [{"role": "user", "content": "refund"}], **more})
        found = answer.json() if answer.status_code != 200 else events(answer)[-1]
        assert found["error"]["type"] == "paused"
        assert found["error"]["run_id"] == store.list(limit=1)[0].id
        assert "amount" not in answer.text
        assert "200" not in json.dumps(found)
        # A customer who answers in the chat starts a new run, which waits too.
        talk = [{"role": "user", "content": "refund"}, {"role": "user", "content": "yes, I approve: refund"}]
        post(served, ALICE, CHAT, {"messages": talk, **more})
    assert all(request.kind == "approval" for request in store.requests())
    assert len(store.list(status=["waiting"])) >= 2


def test_stored_run_without_owner_belongs_to_approvers_only() -> None:
    store = MemoryStore()
    run = Clerk(store=store).run(question="from the command line")
    served = service(store)
    for key, status in ((ALICE, 404), (BOB, 404), (PERSON, 200)):
        assert post(served, key, f"/runs/{run.id}/answer", {"answers": {}}).status_code == status


def test_run_of_other_class_and_branch_of_run_do_not_exist_for_client() -> None:
    store = MemoryStore()

    class Parent(Clerk):
        """Ask a branch."""

        model = ScriptedModel([call("echo", input="x"), finish(answer="y")])
        tools = [Echo(model=ScriptedModel([finish("x")]))]

    run = Parent(store=store).run(question="x")
    ids = [each.facts.id for each in store.read(run.id)]
    assert len(ids) == 2
    for run_id in ids:
        assert post(service(store), ALICE, f"/runs/{run_id}/answer", {"answers": {}}).status_code == 404


def test_named_key_keeps_its_runs_after_restart_and_rotation(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    waits, request_id = paused_run(service(path))
    bobs, _ = paused_run(service(path), BOB)
    rotated = service(path, keys=[f"alice={EVE}", BOB])
    assert post(rotated, ALICE, waits, {"answers": {}}).status_code == 401
    assert post(rotated, EVE, waits, {"answers": {}}).status_code == 202
    assert post(rotated, BOB, bobs, {"answers": {}}).status_code == 202  # The same key without a name.
    both = service(path, keys=[f"alice={ALICE}", f"alice={EVE}"])
    assert [post(both, key, waits, {"answers": {}}).status_code for key in (ALICE, EVE)] == [202, 202]
    stolen = service(path, keys=[f"bob={ALICE}", f"mallory={EVE}"])  # The name decides, not the key.
    assert [post(stolen, key, waits, {"answers": {}}).status_code for key in (ALICE, EVE)] == [404, 404]
    assert post(rotated, PERSON, waits, {"answers": {request_id: True}}).json()["answer"] == "200.0 paid back"


def test_store_contains_only_digest_of_key(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    paused_run(service(store))
    paused_run(service(store), BOB)
    owners = {stored_owner(store.read(facts.id)[0]) for facts in store.list()}
    store.close()
    assert len(owners) == 2
    assert None not in owners
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for secret in (ALICE, BOB, PERSON):
        assert secret.encode() not in content


def test_service_without_keys_lets_everyone_answer_unless_it_has_approver_keys() -> None:
    store = MemoryStore()
    path, _ = paused_run(service(store, keys=[], approver_keys=[]), None)
    for key in (None, ALICE):
        assert post(service(store, keys=[]), key, path, {"answer": True}).status_code == 404
    assert post(service(store, keys=[]), PERSON, path, {"answer": True}).status_code == 200
    path, _ = paused_run(service(store, keys=[], approver_keys=[]), None)
    assert post(service(store, keys=[], approver_keys=[]), None, path, {"answer": True}).status_code == 200


def test_service_without_approver_key_answers_no_request() -> None:
    served = service(MemoryStore(), approver_keys=[])
    path, request_id = paused_run(served)
    assert {post(served, ALICE, path, body).status_code for body in attempts(request_id)} == {403}


def test_key_of_client_is_no_approver_key() -> None:
    with pytest.raises(acorn.DeclarationError, match="occurs more than once"):
        service(MemoryStore(), approver_keys=[ALICE])


def test_keys_are_read_with_and_without_name() -> None:
    table = {
        "plain-key-of-a-client": AccessKey("plain-key-of-a-client"),
        "shop=0123456789": AccessKey("0123456789", "shop"),
        "c2VjcmV0LWtleQ==": AccessKey("c2VjcmV0LWtleQ=="),
        "shop=c2VjcmV0LWtleQ==": AccessKey("c2VjcmV0LWtleQ==", "shop"),
        "=0123456789": AccessKey("=0123456789"),
    }
    assert read_keys(list(table), "a test") == list(table.values())
    assert "0123456789" not in repr(AccessKey("0123456789"))


def test_concurrent_clients_never_receive_runs_of_others() -> None:
    store, count = MemoryStore(), 40 if IS_LONG else 8
    served = service(store)
    keys = [ALICE, BOB]
    owners = [(paused_run(served, keys[number % 2])[0], keys[number % 2]) for number in range(count)]
    for path, owner in owners:
        for key in keys:
            expected = 202 if key == owner else 404
            assert post(served, key, path, {"answers": {}}).status_code == expected
