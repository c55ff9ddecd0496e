"""Property tests of stores: after any sequence of operations, SQLite and PostgreSQL return equal results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.commits import NOON, birth, change, dead_here, elsewhere, request
from tests.long_version import IS_LONG

from acorn import StoreError
from acorn.stores import MemoryStore
from acorn.stores.lease import this_process
from acorn.stores.port import Commit, Process, RunFacts, Store, StoredRun
from acorn.stores.postgres import PostgresStore
from acorn.stores.statements import Transaction
from acorn.types import Usage

RUNS = 2_000 if IS_LONG else 45
HOLDERS = [this_process(), elsewhere(), dead_here()]
ROOTS = ["r", "ro", "é"]
BRANCHES = ["b", "b2", "r/b"]
STATUSES = ["queued", "running", "running", "running", "waiting", "stopped", "failed", "done", "cancelled"]

Act = Callable[[Store], object]
# A store keeps JSON text or a line for people, so it has neither lone surrogates nor NUL.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
numbers = st.integers(0, 2**40)
floats = st.floats(0, 1e9, allow_nan=False)
times = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)).flatmap(
    lambda moment: st.integers(-12, 12).map(lambda hours: moment.replace(tzinfo=timezone(timedelta(hours=hours))))
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def changes(draw: st.DrawFn, run_id: str, parent: str | None, kept: dict[str, int]) -> Any:
    """Return a change of a run that may exist and mostly continues where it ended."""
    is_birth = draw(st.booleans()) if draw(st.integers(0, 9)) == 0 else run_id not in kept
    since = 0 if is_birth else draw(st.sampled_from([kept.get(run_id, 0)] * 9 + [3]))
    entries = draw(st.lists(texts, max_size=3))
    if is_birth or since == kept.get(run_id):
        kept[run_id] = since + len(entries)
    born = birth(
        parent,
        agent=draw(st.sampled_from(["m:A", "m.n:B", "m:A.B"])),
        input=draw(texts),
        started=draw(times | st.just(NOON)),
        overrides=draw(st.none() | texts),
        batch=draw(st.none() | st.just("night")),
        item=draw(st.none() | numbers),
    )
    return change(
        run_id,
        entries,
        since=since,
        born=born if is_birth else None,
        status=draw(st.sampled_from(STATUSES)),
        steps=draw(st.integers(0, 3)),
        record=draw(texts),
        state=draw(texts),
        model=draw(st.none() | texts),
        usage=Usage(*draw(st.tuples(*[numbers] * 5))),
        cost=draw(st.none() | floats),
        seconds=draw(floats),
        stop_reason=draw(st.none() | texts),
        error=draw(st.none() | texts),
    )


@st.composite
def commits(draw: st.DrawFn, kept: dict[str, int]) -> Act:
    root = draw(st.sampled_from(ROOTS))
    made = [draw(changes(root, None, kept))] if root not in kept or draw(st.booleans()) else []
    branches = draw(st.lists(st.sampled_from(BRANCHES), max_size=2, unique=True))
    made += [draw(changes(one, draw(st.sampled_from([root, "b"] if one != "b" else [root])), kept)) for one in branches]
    asked = [
        request(f"{root}-{number}", root, after=number, question=draw(texts), arguments={"a": draw(plain)})
        for number in draw(st.lists(st.integers(0, 2), max_size=2, unique=True))
    ]
    commit = Commit(root, draw(st.sampled_from(HOLDERS)), made, asked)
    return lambda store: store.commit(commit).result()


@st.composite
def other_acts(draw: st.DrawFn) -> Act:
    run_id = draw(st.sampled_from([*ROOTS, *BRANCHES]))
    holder: Process = draw(st.sampled_from(HOLDERS))
    status: Any = draw(st.sampled_from(STATUSES))
    value = draw(plain)
    number = draw(st.integers(0, 2))
    acts: list[Act] = [
        lambda store: [seen(kept) for kept in store.claim(run_id, holder) or ()],
        lambda store: store.release(run_id, holder, status),
        lambda store: store.cancel(run_id),
        lambda store: store.delete(run_id),
        lambda store: store.answer(f"{run_id}-{number}", value),
        lambda store: sorted(store.renew_lease(holder, 20)),
    ]
    return draw(st.sampled_from(acts))


@st.composite
def histories(draw: st.DrawFn) -> list[Act]:
    kept: dict[str, int] = {}
    return [
        draw(commits(kept)) if draw(st.integers(0, 2)) else draw(other_acts()) for _ in range(draw(st.integers(1, 14)))
    ]


def without_time(facts: RunFacts) -> RunFacts:
    return replace(facts, updated=NOON)


def seen(kept: StoredRun) -> StoredRun:
    return kept._replace(facts=without_time(kept.facts), entries=list(kept.entries))


def outcome(act: Act, store: Store) -> object:
    """Return the result or the error, without the store's name and ages in seconds."""
    try:
        return act(store)
    except StoreError as error:
        return type(error), re.sub(r"\d+ s ", "", str(error)).replace(store.name, "STORE")


def everything(store: Store) -> list[object]:
    found: list[object] = []
    for run_id in [*ROOTS, *BRANCHES]:
        status, heard = store.follow(run_id)
        found += [
            [seen(kept) for kept in store.read(run_id)],
            (status, [one.entry for one in heard]),
            store.requests(run_id),
            [(one.request, one.value) for one in store.answers(run_id)],
            store.find(run_id[:1]),
        ]
    narrowed: list[dict[str, Any]] = [{}, {"status": ["stopped", "done"]}, {"agent": "B"}, {"batch": "night"}]
    narrowed += [{"before": datetime(2026, 1, 1, tzinfo=UTC), "limit": 2}]
    found += [[without_time(facts) for facts in store.list(**one)] for one in narrowed]
    return [*found, store.requests()]


def assert_alike(acts: Sequence[Act], sqlite: Store, postgres: Store) -> None:
    for act in acts:
        assert outcome(act, postgres) == outcome(act, sqlite)
    assert everything(postgres) == everything(sqlite)


# Shrinking takes long with a server, and the time of an example depends on the machine.
@settings(max_examples=RUNS, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(histories())
def test_random_operations_return_equal_results_in_sqlite_and_postgres(
    postgres_store: PostgresStore, acts: list[Act]
) -> None:
    postgres_store.transact(empty)
    assert_alike(acts, MemoryStore(), postgres_store)


@pytest.fixture
def postgres_store(cleared_postgres: str) -> Iterator[PostgresStore]:
    made = PostgresStore(cleared_postgres)
    yield made
    made.close()


def empty(transaction: Transaction) -> None:
    for table in ("runs", "run_headers", "run_states", "entries", "requests", "processes"):
        transaction.execute(f"DELETE FROM {table}")
