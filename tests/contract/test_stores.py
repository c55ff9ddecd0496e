"""Contract tests that every store must pass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.commits import NOON, begin, birth, change, dead_here, elsewhere, go_on, request
from tests.waiting import PATIENCE, comes_true

from acorn import StoreError, Usage
from acorn.stores import MemoryStore
from acorn.stores.lease import start_heartbeat, stop_heartbeat, this_process, wake_heartbeat
from acorn.stores.port import (
    Commit,
    MediaBlob,
    PendingCommit,
    Process,
    QueuedRun,
    RunCancelledError,
    RunClaimedError,
    Status,
    Store,
)
from acorn.stores.postgres import PostgresStore
from acorn.stores.rules import DatabaseStore
from acorn.stores.sqlite import SQLiteStore
from acorn.stores.statements import Transaction

STORES: dict[str, Callable[[pytest.FixtureRequest], Store]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda request: SQLiteStore(request.getfixturevalue("tmp_path") / "runs.db"),
    "postgres": lambda request: PostgresStore(request.getfixturevalue("cleared_postgres")),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    made = STORES[request.param](request)
    yield made
    made.close()


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACORN_LEASE", "0.02")


def status_of(store: Store, run_id: str) -> Status | None:
    return store.follow(run_id)[0]


# Stored data


def test_read_after_store_error_in_read_transaction_returns_later_commits(store: DatabaseStore) -> None:
    begin(store, "r")

    def read_and_fail(transaction: Transaction) -> None:
        assert transaction.execute("SELECT id FROM runs").fetchall()
        raise StoreError("The read failed.")

    with pytest.raises(StoreError, match="The read failed"):
        store.read_transaction(read_and_fail)
    go_on(store, "r", 1)
    assert list(store.read("r")[0].entries) == ["0", "1"]


def test_committed_run_is_returned_by_read(store: Store) -> None:
    assert isinstance(store, Store)
    assert store.name
    born = birth(agent="shop.desk:Desk", input='{"question": "é😀\\u0000"}', overrides='{"max_steps": 3}')
    born = born._replace(batch="nightly", item=4)
    first = change("r", ['{"a": 1}', '{"b": "\\ud800"}'], born=born, model="m", steps=2, cost=None, seconds=0.125)
    store.commit(Commit("r", this_process(), [first])).result()

    (kept,) = store.read("r")
    assert kept.header == born
    assert list(kept.entries) == ['{"a": 1}', '{"b": "\\ud800"}']
    assert (kept.record, kept.state) == ('{"record": 1}', '{"state": 1}')
    facts = kept.facts
    assert (facts.id, facts.root, facts.parent) == ("r", "r", None)
    assert (facts.agent, facts.batch, facts.item) == ("shop.desk:Desk", "nightly", 4)
    assert (facts.status, facts.model, facts.steps, facts.cost, facts.seconds) == ("running", "m", 2, None, 0.125)
    assert facts.usage == Usage(11, 7, 5, 3, 1)
    assert facts.started == NOON
    assert facts.updated.tzinfo is not None


def test_later_commit_appends_entries_and_replaces_state(store: Store) -> None:
    begin(store, "r")
    later = change(
        "r",
        ["1", "2"],
        since=1,
        status="failed",
        steps=3,
        record="{}",
        state="[]",
        stop_reason="error",
        error="No luck",
    )
    same = change("r", since=1, record=None, state="{}")
    store.commit(Commit("r", this_process(), [same])).result()
    (kept,) = store.read("r")
    assert (kept.record, kept.state) == ('{"record": 1}', "{}")
    store.commit(Commit("r", this_process(), [later])).result()
    (kept,) = store.read("r")
    assert list(kept.entries) == ["0", "1", "2"]
    assert (kept.record, kept.state) == ("{}", "[]")
    assert (kept.facts.status, kept.facts.steps) == ("failed", 3)
    assert (kept.facts.stop_reason, kept.facts.error) == ("error", "No luck")


def test_commit_without_state_leaves_stored_state_unchanged(store: Store) -> None:
    begin(store, "r")
    go_on(store, "r", 1, record=None, state=None)
    (kept,) = store.read("r")
    assert (kept.record, kept.state, list(kept.entries)) == ('{"record": 1}', '{"state": 1}', ["0", "1"])
    go_on(store, "r", 2, record="{}", state=None)
    (kept,) = store.read("r")
    assert (kept.record, kept.state, list(kept.entries)) == ("{}", '{"state": 1}', ["0", "1", "2"])


def test_run_and_its_branches_are_written_in_one_commit_and_read_together(store: Store) -> None:
    changes = [
        change("r", ["r0"], born=birth()),
        change("b", ["b0"], born=birth("r", agent="desk:Branch")),
        change("c", ["c0"], born=birth("b")),
        change("d", ["d0"], born=birth("r")),
    ]
    store.commit(Commit("r", this_process(), changes)).result()
    store.commit(Commit("r", this_process(), [change("c", ["c1"], since=1, steps=1)])).result()
    tree = store.read("r")
    assert [kept.facts.id for kept in tree] == ["r", "b", "c", "d"]
    assert [list(kept.entries) for kept in tree] == [["r0"], ["b0"], ["c0", "c1"], ["d0"]]
    assert [(kept.facts.root, kept.facts.parent) for kept in tree] == [("r", None), ("r", "r"), ("r", "b"), ("r", "r")]
    assert [kept.header.branch for kept in tree] == [None, *['{"place": "1/a"}'] * 3]
    assert [kept.facts.id for kept in store.read("b")] == ["b", "c"]
    assert store.read("nobody") == []


def test_commit_of_branch_updates_timestamp_of_root_run(store: Store) -> None:
    begin(store, "r")
    before = store.list()[0].updated
    store.commit(Commit("r", this_process(), [change("b", [], born=birth("r"))])).result()
    assert store.list()[0].updated >= before
    assert [facts.id for facts in store.list()] == ["r"]


def with_media(store: Store, run_id: str, *names: str) -> None:
    """Create a run with data: bytes whose name is their content, including NUL."""
    media = [MediaBlob(name, f"{name}\0\xff".encode("latin-1")) for name in names]
    store.commit(Commit(run_id, this_process(), [change(run_id, ["0"], born=birth())], (), media)).result()


def test_media_used_by_several_runs_is_stored_until_last_run_is_deleted(store: Store) -> None:
    with_media(store, "r", "one", "two", "two")
    with_media(store, "s", "two")
    more = Commit(
        "s", this_process(), [change("s", ["1"], since=1)], (), [MediaBlob("three", b"3"), MediaBlob("one", b"?")]
    )
    store.commit(more).result()
    assert store.media(["one", "three", "none"]) == {"one": b"one\0\xff", "three": b"3"}, "what is there stays"
    assert store.media([]) == {}
    for run_id, left in (("r", {"one", "two", "three"}), ("s", set[str]())):
        store.release(run_id, this_process(), "stopped")
        store.delete(run_id)
        assert store.media(["one", "two", "three"]).keys() == left


def test_media_of_rejected_commit_is_not_stored(store: Store) -> None:
    begin(store, "r")
    torn = Commit("r", this_process(), [change("r", ["1"], since=5)], (), [MediaBlob("one", b"1")])
    assert "entries" in str(refusal(store, torn))
    assert store.media(["one"]) == {}


def test_run_with_lone_surrogate_or_nul_character_in_commit_is_still_readable(store: Store) -> None:
    begin(store, "r")
    for since, character in enumerate("\udcff\0", 1):
        go_on(
            store, "r", since, error=f"no file {character}", state=f'{{"name": "{character}"}}', stop_reason=character
        )
        (kept,) = store.read("r")
        assert kept.facts.error is not None
        assert kept.facts.error.startswith("no file ")
        assert len(kept.entries) == since + 1
    assert store.find("r\0") == []
    assert store.read("\0") == []
    assert store.claim("\0", elsewhere()) is None


# Rejected commits


def refusal(store: Store, commit: Commit) -> StoreError:
    error = error_of(store.commit(commit))
    assert error is not None
    return error


def error_of(commit: PendingCommit) -> StoreError | None:
    try:
        commit.result()
    except StoreError as error:
        return error
    return None


def test_commit_that_creates_existing_run_is_rejected(store: Store) -> None:
    begin(store, "r")
    twice = Commit("r", elsewhere(), [change("r", ["x"], born=birth())])
    assert f"is driven by process {this_process().pid} on" in str(refusal(store, twice))
    go_on(store, "r", 1, status="done")
    assert "(status `done`)" in str(refusal(store, twice))
    assert list(store.read("r")[0].entries) == ["0", "1"]


def test_commit_with_gap_before_new_entries_is_rejected(store: Store) -> None:
    begin(store, "r")
    for since in (0, 2):
        torn = Commit("r", this_process(), [change("r", ["x"], since=since)])
        assert f"has 1 entries, but the change starts after entry {since}" in str(refusal(store, torn))
    assert list(store.read("r")[0].entries) == ["0"]


def test_commit_with_invalid_change_writes_nothing(store: Store) -> None:
    begin(store, "r")
    begin(store, "other")
    wrong = [
        change("unborn", ["x"]),
        change("b", ["x"], since=7),
        change("other", ["x"], since=1),
        change("b", ["x"], born=birth("r")),
        change("c", ["x"], born=birth("other")),
        change("c", ["x"], born=birth()),
    ]
    for last in wrong:
        changes = [change("r", ["1"], since=1, steps=9), change("b", ["b0"], born=birth("r")), last]
        refusal(store, Commit("r", this_process(), changes, [request("q", "r")]))
    assert [kept.facts.id for kept in store.read("r")] == ["r"]
    assert store.read("r")[0].facts.steps == 0
    assert store.requests() == []
    below = Commit("s", this_process(), [change("s", ["x"], born=birth("r"))])
    assert "Cannot create run s: its parent 'r' does not belong" in str(refusal(store, below))


def test_commit_without_claim_is_rejected(store: Store) -> None:
    begin(store, "r")
    for root, words in (("r", "was taken over by process"), ("gone", "is no longer in")):
        strange = Commit(root, elsewhere(), [change(root, ["1"], since=1)])
        assert words in str(refusal(store, strange))
    go_on(store, "r", 1, status="waiting")
    late = Commit("r", this_process(), [change("r", ["2"], since=2)])
    assert "is no longer driven by this process (its status is `waiting`)" in str(refusal(store, late))


# Claims


def test_paused_run_can_be_claimed_and_becomes_running(store: Store) -> None:
    begin(store, "r")
    go_on(store, "r", 1, status="waiting")
    kept = store.claim("r", elsewhere())
    assert kept is not None
    assert kept[0].facts.status == "waiting"
    assert list(kept[0].entries) == ["0", "1"]
    assert status_of(store, "r") == "running"
    go_on(store, "r", 2, elsewhere())
    assert store.claim("nobody", elsewhere()) is None


def test_claim_of_queued_stopped_and_failed_run_sets_status_running(store: Store) -> None:
    statuses: list[Status] = ["queued", "stopped", "failed"]
    for status in statuses:
        begin(store, status, status=status)
        kept = store.claim(status, elsewhere())
        assert kept is not None
        assert kept[0].facts.status == status
        assert status_of(store, status) == "running"
        store.release(status, elsewhere(), status)
        assert status_of(store, status) == status


def test_claim_of_finished_run_returns_run_and_leaves_status_unchanged(store: Store) -> None:
    begin(store, "done")
    go_on(store, "done", 1, status="done")
    begin(store, "cancelled", status="waiting")
    store.cancel("cancelled")
    for run_id in ("done", "cancelled"):
        kept = store.claim(run_id, elsewhere())
        assert kept is not None
        assert kept[0].facts.status == run_id
        assert status_of(store, run_id) == run_id


def test_claim_of_run_executed_by_live_process_is_rejected(store: Store) -> None:
    begin(store, "mine")
    begin(store, "theirs", elsewhere())
    for run_id, pid in (("mine", this_process().pid), ("theirs", 812)):
        for who in (this_process(), elsewhere("b")):
            with pytest.raises(StoreError, match=rf"{run_id} is driven by process {pid} on .* \(last heartbeat"):
                store.claim(run_id, who)


def test_claim_of_branch_is_rejected(store: Store) -> None:
    begin(store, "r")
    store.commit(Commit("r", this_process(), [change("b", [], born=birth("r"))])).result()
    acts: list[Callable[[], object]] = [
        lambda: store.claim("b", elsewhere()),
        lambda: store.cancel("b"),
        lambda: store.delete("b"),
    ]
    for act in acts:
        with pytest.raises(StoreError, match="b is a branch of run r"):
            act()


def test_run_of_dead_local_process_is_claimed_immediately(store: Store) -> None:
    dead = dead_here()
    begin(store, "r", dead)
    store.commit(Commit("r", dead, [change("b", [], born=birth("r"))])).result()
    assert [kept.facts.status for kept in store.read("r")] == ["stopped", "stopped"]
    assert status_of(store, "r") == "stopped"
    assert [facts.id for facts in store.list(status=["stopped"])] == ["r"]
    assert store.list(status=["running"]) == []
    kept = store.claim("r", this_process())
    assert kept is not None
    assert kept[0].facts.status == "stopped"
    assert [one.facts.status for one in store.read("r")] == ["running", "running"]
    late = Commit("r", dead, [change("r", ["1"], since=1)])
    assert f"was taken over by process {this_process().pid} on" in str(refusal(store, late))


def test_process_with_reused_pid_is_treated_as_dead(store: Store) -> None:
    here = this_process()
    begin(store, "r", Process("before", here.host, here.boot, here.pid, "1"))
    assert store.claim("r", here) is not None


@pytest.mark.usefixtures("short_lease")
def test_run_with_expired_lease_can_be_claimed(store: Store) -> None:
    begin(store, "r", elsewhere())
    assert comes_true(lambda: status_of(store, "r") == "stopped")
    go_on(store, "r", 1, elsewhere())  # It was not claimed.
    assert comes_true(lambda: store.list(status=["stopped"]))
    store.renew_lease(elsewhere(), PATIENCE)
    assert status_of(store, "r") == "running"
    store.renew_lease(elsewhere(), 0)
    assert store.claim("r", elsewhere("b"))
    late = Commit("r", elsewhere(), [change("r", ["2"], since=2)])
    text = str(refusal(store, late))
    assert "r was taken over by process 812 on host-b, because this process sent no heartbeat for" in text
    assert text.endswith("This process writes nothing more to the run.")


def test_release_by_process_without_claim_has_no_effect(store: Store) -> None:
    begin(store, "r")
    store.release("r", elsewhere(), "stopped")
    store.release("nobody", elsewhere(), "stopped")
    assert status_of(store, "r") == "running"
    store.release("r", this_process(), "stopped")
    assert status_of(store, "r") == "stopped"


def test_release_as_queued_clears_error(store: Store) -> None:
    begin(store, "r")
    go_on(store, "r", 1, error="no luck")
    for status, error in (("stopped", "no luck"), ("queued", None)):
        store.release("r", this_process(), status)  # type: ignore[arg-type]
        assert [(kept.facts.status, kept.facts.error) for kept in store.read("r")] == [(status, error)]
        assert store.claim("r", this_process())


def test_run_whose_step_killed_five_processes_is_failed(store: Store) -> None:
    begin(store, "r", dead_here())
    for turn in range(4):
        assert store.claim("r", dead_here(str(turn)))
    for _ in range(2):
        for _ in range(3):  # It stays failed.
            with pytest.raises(StoreError, match=r"Run r failed: five processes died .*resume\('r', retry=True\)"):
                store.claim("r", this_process())
        (facts,) = store.list()
        assert facts.status == "failed"
        assert facts.error is not None
        assert "five processes died" in facts.error
        assert store.claim("r", dead_here("again"), retry=True)
        for turn in range(4):
            assert store.claim("r", dead_here(f"again {turn}"))


def test_processes_that_died_in_earlier_steps_do_not_fail_run(store: Store) -> None:
    holder = dead_here()
    begin(store, "r", holder)
    for turn in range(12):
        go_on(store, "r", turn + 1, holder, steps=turn)
        holder = dead_here(str(turn))
        assert store.claim("r", holder)


def test_repeated_pause_and_resume_does_not_fail_run(store: Store) -> None:
    begin(store, "r", status="waiting")
    for turn in range(8):
        assert store.claim("r", elsewhere(str(turn)))
        store.release("r", elsewhere(str(turn)), "waiting")


# Cancelling and deleting


def test_cancel_of_paused_run_sets_status_cancelled_immediately(store: Store) -> None:
    begin(store, "r")
    go_on(store, "r", 1, status="waiting", requests=[request("q", "r")])
    store.cancel("r")
    assert status_of(store, "r") == "cancelled"
    assert store.requests() == []
    store.cancel("r")


def test_commit_after_cancel_of_running_run_raises_run_cancelled_error(store: Store) -> None:
    begin(store, "r")
    begin(store, "other")
    assert store.renew_lease(this_process(), 20) == []
    store.cancel("r")
    assert status_of(store, "r") == "running"
    assert store.renew_lease(this_process(), 20) == ["r"]
    more = Commit("r", this_process(), [change("r", ["1"], since=1)])
    assert isinstance(refusal(store, more), RunCancelledError)
    below = Commit("r", this_process(), [change("b", ["1"], born=birth("r"))])
    assert isinstance(refusal(store, below), RunCancelledError)
    assert [list(run.entries) for run in store.read("r")] == [["0", "1"], ["1"]]
    assert status_of(store, "r") == "running"
    paused = Commit("r", this_process(), [change("r", [], since=2, status="waiting")], [request("q", "r")])
    assert isinstance(refusal(store, paused), RunCancelledError)
    assert store.requests() == []
    store.release("r", this_process(), "stopped")
    assert status_of(store, "r") == "cancelled"
    assert store.renew_lease(this_process(), 20) == []


def test_cancelled_run_that_still_commits_final_status_retains_that_status(store: Store) -> None:
    expected: dict[Status, Status] = {
        "done": "done",
        "failed": "failed",
        "cancelled": "cancelled",
        "stopped": "cancelled",
    }
    for told, kept in expected.items():
        begin(store, told)
        store.cancel(told)
        go_on(store, told, 1, status=told)
        assert status_of(store, told) == kept


def test_cancel_of_run_of_dead_process_sets_status_cancelled_immediately(store: Store) -> None:
    here = this_process()
    begin(store, "r", here)
    store.cancel("r")
    begin(store, "dead", dead_here())
    store.cancel("dead")
    assert status_of(store, "dead") == "cancelled"


def test_cancel_of_finished_run_and_of_unknown_run_raise_store_error(store: Store) -> None:
    begin(store, "r", status="done")
    with pytest.raises(StoreError, match=r"Cannot cancel run r: it is already finished \(status `done`\)"):
        store.cancel("r")
    for act in (store.cancel, store.delete):
        with pytest.raises(StoreError, match=r"Run 'nobody' is not in .*`acorn runs --store"):
            act("nobody")


def test_delete_removes_run_and_branches(store: Store) -> None:
    for run_id in ("r", "other"):
        begin(store, run_id)
        changes = [change(f"{run_id}-b", ["b"], born=birth(run_id)), change(run_id, [], since=1, status="waiting")]
        store.commit(Commit(run_id, this_process(), changes, [request(f"{run_id}-q", run_id)])).result()
    store.delete("r")
    assert [store.read(run_id) for run_id in ("r", "r-b")] == [[], []]
    assert store.follow("r") == (None, [])
    assert [one.id for one in store.requests()] == ["other-q"]
    assert [facts.id for facts in store.list()] == ["other"]
    assert len(store.read("other")) == 2
    begin(store, "r")
    with pytest.raises(StoreError, match="is driven by"):
        store.delete("r")


# Listing, finding, following


def test_list_returns_newest_runs_first(store: Store) -> None:
    for number, minutes in enumerate([3, 1, 2, 2]):
        begin(store, f"r{number}", started=NOON + timedelta(minutes=minutes), status="done")
    assert [facts.id for facts in store.list()] == ["r0", "r3", "r2", "r1"]
    assert [facts.id for facts in store.list(limit=2)] == ["r0", "r3"]
    assert [facts.id for facts in store.list(limit=0)] == []
    assert len(store.list(limit=None)) == 4
    assert [facts.id for facts in store.list(before=NOON + timedelta(minutes=2))] == ["r1"]


def test_list_without_limit_argument_returns_at_most_fifty_runs(store: Store) -> None:
    for number in range(52):
        begin(store, f"r{number}")
    assert len(store.list()) == 50


def test_list_returns_only_runs_with_given_status_agent_and_batch(store: Store) -> None:
    known: list[tuple[str, Status, str, str | None]] = [
        ("a", "done", "shop.desk:Desk", None),
        ("b", "waiting", "shop.desk:Desk", "night"),
        ("c", "running", "other:Desk", "night"),
        ("d", "failed", "other:Outer.Desk", None),
        ("e", "done", "other:HelpDesk", None),
    ]
    for run_id, status, agent, batch in known:
        begin(store, run_id, status=status, agent=agent, batch=batch)

    def ids(**narrowed: Any) -> str:
        return "".join(sorted(facts.id for facts in store.list(**narrowed)))

    assert ids() == "abcde"
    assert ids(status=["done"]) == "ae"
    assert ids(status=["done", "waiting"]) == "abe"
    assert ids(agent="Desk") == "abcd"
    assert ids(agent="shop.desk:Desk") == "ab"
    assert ids(agent="Outer.Desk") == "d"
    assert ids(agent="esk") == ""
    assert ids(batch="night") == "bc"
    assert ids(batch="night", status=["running"], agent="Desk") == "c"


def test_find_returns_ids_of_runs_that_start_with_prefix(store: Store) -> None:
    for run_id in ("4f2a", "4f2b", "4f", "order-17", "order-170", "a%b", "é1"):
        begin(store, run_id)
    store.commit(Commit("4f2a", this_process(), [change("4f2a-b", [], born=birth("4f2a"))])).result()
    assert store.find("4f2") == ["4f2a", "4f2b"]
    assert store.find("4f2a") == ["4f2a"]
    assert store.find("4f") == ["4f"]
    assert store.find("order-17") == ["order-17"]
    assert store.find("order") == ["order-17", "order-170"]
    assert store.find("a") == ["a%b"]
    assert store.find("é") == ["é1"]
    assert store.find("%") == []
    assert len(store.find("")) == 7


def test_follow_returns_new_entries_of_run_and_its_branches(store: Store) -> None:
    begin(store, "r")
    begin(store, "other")
    first = store.follow("r")
    assert (first[0], [heard.entry for heard in first[1]]) == ("running", ["0"])
    position = first[1][-1].position
    assert store.follow("r", position) == ("running", [])
    store.commit(Commit("r", this_process(), [change("b", ["b0", "b1"], born=birth("r"))])).result()
    go_on(store, "other", 1)
    go_on(store, "r", 1, status="done")
    status, heard = store.follow("r", position)
    assert status == "done"
    assert [one.entry for one in heard] == ["b0", "b1", "1"]
    positions = [position, *(one.position for one in heard)]
    assert positions == sorted(set(positions))
    assert [one.entry for one in store.follow("b")[1]] == ["b0", "b1"]
    assert store.follow("nobody") == (None, [])


def test_follow_position_is_not_reused_after_run_is_deleted(store: Store) -> None:
    begin(store, "r", status="done")
    position = store.follow("r")[1][-1].position
    store.delete("r")
    begin(store, "r")
    assert store.follow("r", position)[1]


# Human input


def test_human_input_requests_and_their_answers_are_stored(store: Store) -> None:
    begin(store, "r")
    asked = [
        request("q2", "r", after=2, choices=("blue", "red")),
        request("q1", "b", after=1, kind="approval", tool="refund", arguments={"order": "é", "n": [1.5]}, branch="dig"),
    ]
    changes = [change("b", [], born=birth("r")), change("r", [], since=1, status="waiting")]
    store.commit(Commit("r", this_process(), changes, asked)).result()
    begin(store, "other", status="waiting")
    assert store.requests() == [asked[1], asked[0]]
    assert store.requests("r") == store.requests("b") == [asked[1], asked[0]]
    assert store.requests("other") == store.requests("nobody") == []

    assert store.answer("q2", "blue") == asked[0]
    assert store.requests() == [asked[1]]
    assert store.answer("q1", {"approved": True, "arguments": {"order": "é"}}) == asked[1]
    assert store.requests() == []
    answers = store.answers("r")
    assert [(one.request, one.value) for one in answers] == [
        (asked[0], "blue"),
        (asked[1], {"approved": True, "arguments": {"order": "é"}}),
    ]
    assert all(one.at.tzinfo for one in answers)
    assert store.answers("other") == store.answers("nobody") == []


def test_second_answer_to_human_input_request_raises_store_error(store: Store) -> None:
    begin(store, "r")
    go_on(store, "r", 1, status="waiting", requests=[request("q", "r")])
    with pytest.raises(StoreError, match="Request 'x' is not open in"):
        store.answer("x", 1)
    with pytest.raises(StoreError, match="cannot be stored as JSON"):
        store.answer("q", object())
    store.answer("q", None)
    with pytest.raises(StoreError, match=r"Request q was already answered at 20\d\d-\d\d-\d\d \d\d:\d\d UTC"):
        store.answer("q", 2)
    assert [one.value for one in store.answers("r")] == [None]


def test_commit_replaces_unanswered_human_input_requests(store: Store) -> None:
    begin(store, "r")
    go_on(store, "r", 1, requests=[request("a", "r"), request("b", "r"), request("c", "r")])
    store.answer("a", 1)
    go_on(store, "r", 2, requests=[request("a", "r"), request("b", "r")])
    assert [one.id for one in store.requests("r")] == ["b"]
    assert [one.value for one in store.answers("r")] == [1]
    go_on(store, "r", 3)
    assert store.requests("r") == []
    with pytest.raises(StoreError, match="is not open"):
        store.answer("b", 1)
    assert [one.value for one in store.answers("r")] == [1]


# Threads, event loops, closing


def test_commits_from_many_threads_are_stored_in_order_for_each_run(store: Store) -> None:
    def drive(run_id: str) -> None:
        begin(store, run_id)
        for since in range(1, 10):
            go_on(store, run_id, since)

    ids = [f"r{number}" for number in range(8)]
    threads = [threading.Thread(target=drive, args=(run_id,)) for run_id in ids]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for facts in store.list():
            kept = store.read(facts.id)[0]
            assert list(kept.entries) == [str(number) for number in range(len(kept.entries))]
    for run_id in ids:
        assert list(store.read(run_id)[0].entries) == [str(number) for number in range(10)]


def test_commits_without_awaited_results_are_written_in_call_order(store: Store) -> None:
    begin(store, "r")
    futures = [
        store.commit(Commit("r", this_process(), [change("r", [str(since)], since=since)])) for since in range(1, 100)
    ]
    futures[-1].result()
    assert list(store.read("r")[0].entries) == [str(number) for number in range(100)]


def test_rejected_commit_does_not_affect_other_commits(store: Store) -> None:
    for number in range(8):
        begin(store, f"r{number}")
    store.cancel("r2")
    pending: list[PendingCommit] = []
    for number in range(8):
        who = elsewhere() if number == 5 else this_process()
        since = 3 if number == 6 else 1
        pending.append(store.commit(Commit(f"r{number}", who, [change(f"r{number}", ["x"], since=since)])))
    errors = {number: error_of(commit) for number, commit in enumerate(pending)}
    assert [number for number, error in errors.items() if error is not None] == [2, 5, 6]
    for number in range(8):
        assert len(store.read(f"r{number}")[0].entries) == (1 if number in (5, 6) else 2)


async def awaited(store: Store) -> None:
    commit = Commit("r", this_process(), [change("r", ["1"], since=1)])
    task = asyncio.ensure_future(stored(store.commit(commit)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    more = Commit("r", this_process(), [change("r", ["2"], since=2)])
    await stored(store.commit(more))


async def stored(commit: PendingCommit) -> None:
    loop, is_stored = asyncio.get_running_loop(), asyncio.Event()
    commit.add_done_callback(lambda _: loop.call_soon_threadsafe(is_stored.set))
    await is_stored.wait()
    commit.result()


def test_commit_continues_after_its_waiting_task_is_cancelled(store: Store) -> None:
    begin(store, "r")
    asyncio.run(awaited(store))
    assert list(store.read("r")[0].entries) == ["0", "1", "2"]


def test_commits_are_stored_after_error_of_done_callback(store: Store) -> None:
    def fail(_: PendingCommit) -> None:
        raise RuntimeError("The event loop is closed.")

    begin(store, "r")
    store.commit(Commit("r", this_process(), [change("r", ["1"], since=1)])).add_done_callback(fail)
    pending, is_stored = store.commit(Commit("r", this_process(), [change("r", ["2"], since=2)])), threading.Event()
    pending.add_done_callback(lambda _: is_stored.set())
    assert is_stored.wait(PATIENCE)
    assert list(store.read("r")[0].entries) == ["0", "1", "2"]


def test_closed_store_is_reopened_by_next_call(store: Store) -> None:
    begin(store, "r")
    late = store.commit(Commit("r", this_process(), [change("r", ["1"], since=1)]))
    store.close()
    store.close()
    assert list(store.read("r")[0].entries) == ["0", "1"]
    late.result()
    go_on(store, "r", 2)
    assert len(store.read("r")[0].entries) == 3


# The heartbeat


@pytest.mark.usefixtures("short_lease")
def test_lease_is_renewed_until_process_stops_executing_its_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(store, "r")
    begin(store, "s")
    assert comes_true(lambda: status_of(store, "r") == "stopped")
    monkeypatch.setenv("ACORN_LEASE", str(PATIENCE))
    told = threading.Event()
    start_heartbeat(store, "s")
    start_heartbeat(store, "r", told.set)
    wake_heartbeat(store)  # The next heartbeat would come after a quarter of the lease.
    assert comes_true(lambda: status_of(store, "r") == "running")
    store.cancel("s")
    store.cancel("r")
    wake_heartbeat(store)
    assert told.wait(PATIENCE)
    stop_heartbeat(store, "r", told.set)
    stop_heartbeat(store, "s")
    wake_heartbeat(store)
    assert comes_true(lambda: not any(thread.name == "acorn-heartbeat" for thread in threading.enumerate()))


# Queued runs


def test_enqueue_stores_run_with_status_queued(store: Store) -> None:
    born = birth(agent="shop.desk:Desk", input='{"question": "é\\u0000"}', overrides='{"settings": {}}')
    born = born._replace(batch="nightly", item=4)
    assert store.enqueue([QueuedRun("r", born, 3, NOON)]) == ["r"]

    (kept,) = store.read("r")
    assert kept.header == born
    assert not kept.has_started
    assert list(kept.entries) == []
    facts = kept.facts
    assert (facts.id, facts.root, facts.parent, facts.status) == ("r", "r", None, "queued")
    assert (facts.agent, facts.batch, facts.item, facts.started) == ("shop.desk:Desk", "nightly", 4, NOON)
    assert (facts.model, facts.steps, facts.cost, facts.seconds, facts.usage) == (None, 0, None, 0.0, Usage())
    assert [facts.id for facts in store.list(status=["queued"])] == ["r"]
    assert store.follow("r") == ("queued", [])


def test_enqueue_of_existing_run_id_is_ignored(store: Store) -> None:
    begin(store, "known")
    runs = [QueuedRun(name, birth(input=f'"{at}"')) for at, name in enumerate(["known", "a", "b", "a"])]
    assert sorted(store.enqueue(runs)) == ["a", "b"]
    assert store.enqueue(runs) == []
    assert store.enqueue([]) == []
    assert status_of(store, "known") == "running"
    assert [store.read(name)[0].header.input for name in ("a", "b")] == ['"1"', '"2"']


def test_claim_of_queued_run_returns_run_marked_as_not_started(store: Store) -> None:
    store.enqueue([QueuedRun("r", birth())])
    kept = store.claim("r", this_process())
    assert kept is not None
    assert (kept[0].facts.status, kept[0].has_started) == ("queued", False)
    assert status_of(store, "r") == "running"
    with pytest.raises(RunClaimedError, match="is driven by process"):
        store.claim("r", elsewhere())
    store.commit(Commit("r", this_process(), [change("r", ["0"], born=None)])).result()
    (begun,) = store.read("r")
    assert (begun.has_started, list(begun.entries), begun.record) == (True, ["0"], '{"record": 1}')


def test_claimed_run_released_as_queued_can_be_claimed_again(store: Store) -> None:
    store.enqueue([QueuedRun("r", birth())])
    store.claim("r", this_process())
    store.release("r", this_process(), "queued")
    assert status_of(store, "r") == "queued"
    store.claim("r", this_process())
    store.commit(Commit("r", this_process(), [change("r", ["0"], status="queued")])).result()
    assert status_of(store, "r") == "queued"
    assert store.claim("r", elsewhere()) is not None


def test_queued_run_can_be_cancelled_or_deleted(store: Store) -> None:
    store.enqueue([QueuedRun("r", birth()), QueuedRun("s", birth())])
    store.cancel("r")
    assert status_of(store, "r") == "cancelled"
    store.delete("s")
    assert store.statuses(["r", "s"]) == {"r": "cancelled"}


@pytest.mark.usefixtures("short_lease")
def test_queued_run_claimed_by_five_dead_processes_is_failed(store: Store) -> None:
    store.enqueue([QueuedRun("r", birth())])
    assert store.claim("r", dead_here("first")) is not None
    for at in range(4):
        kept = store.claim("r", dead_here(str(at)))
        assert kept is not None
        assert not kept[0].has_started
    with pytest.raises(StoreError, match="five processes died"):
        store.claim("r", this_process())
    assert status_of(store, "r") == "failed"


def test_statuses_of_1500_runs_are_returned_by_one_call(store: Store) -> None:
    store.enqueue([QueuedRun(f"q{at}", birth()) for at in range(1500)])
    begin(store, "running")
    begin(store, "gone", dead_here())
    begin(store, "done", status="done")
    store.commit(Commit("running", this_process(), [change("branch", born=birth("running"))])).result()
    found = store.statuses([*(f"q{at}" for at in range(1500)), "running", "gone", "done", "branch", "nobody"])
    assert len(found) == 1503
    assert {found[f"q{at}"] for at in range(1500)} == {"queued"}
    assert (found["running"], found["gone"], found["done"]) == ("running", "stopped", "done")
    assert store.statuses([]) == {}


def test_enqueue_for_workers_in_store_without_workers_raises_store_error(store: Store) -> None:
    if store.name.startswith("postgres"):  # It has workers.
        return
    with pytest.raises(StoreError, match=r"cannot deliver runs to workers. Workers need a PostgreSQL store"):
        store.enqueue([QueuedRun("r", birth())], deliver=True)
    assert store.read("r") == []
