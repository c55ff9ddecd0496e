"""Tests of the routes that compare runs, fork a run, and return a run as Python."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases import case
from tests.web.desk import Check, Desk, begin, ended, events, get, post, site

import acorn
from acorn.stores import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def app(store: MemoryStore) -> Any:
    return site(Desk(), store=store)


def fork(app: Any, run: str, before: int, **more: Any) -> Any:
    return post(app, "/api/runs", {"fork": {"run": run, "before": before, **more}})


def test_compare_route_returns_pairs_of_two_runs(app: Any) -> None:
    one, other = (ended(app, question)["run_id"] for question in ("search acorns", "search oaks"))
    found = get(app, f"/api/compare?a={one}&b={other}").json()
    assert [found[side]["head"]["id"] for side in "ab"] == [one, other]
    assert [pair[:3] for pair in found["pairs"]] == [[0, 0, 0], [1, 1, 0], [2, 2, 1], [3, 3, 0]]
    assert not any(pair[3] for pair in found["pairs"])
    itself = get(app, f"/api/compare?a={one}&b={one}").json()
    assert all(pair[3] for pair in itself["pairs"])


def test_compare_with_missing_run_returns_404(app: Any) -> None:
    for query in ["", "?a=x&b=y", "?a={}", "?b={}&a=nothing"]:
        with case(query):
            run_id = ended(app, "search")["run_id"]
            assert get(app, f"/api/compare{query.format(run_id)}").status_code == 404


def test_fork_preview_lists_copied_calls_and_calls_that_run_again(app: Any) -> None:
    run_id = ended(app, "search acorns")["run_id"]
    told = get(app, f"/api/runs/{run_id}/fork?before=2").json()
    assert (told["before"], told["last_step"]) == (2, 2)
    assert told["prompt"] == "Answer the question."
    assert [(each["kind"], each["name"], each["editable"]) for each in told["events"]] == [
        ("input", "user", False),
        ("assistant", "assistant", True),
        ("call", "search", True),
        ("result", "search", True),
    ]
    assert {"search", "check"} <= set(told["tools"])
    assert told["called"] == {}
    assert get(app, f"/api/runs/{run_id}/fork?before=1").json()["called"] == {"search": 1}
    assert get(app, f"/api/runs/{run_id}/fork?before=99").json()["before"] == 2


def test_fork_with_edited_tool_result_continues_with_that_result(app: Any, store: MemoryStore) -> None:
    run_id = ended(app, "search acorns")["run_id"]
    kept = get(app, f"/api/runs/{run_id}/fork?before=2").json()["events"]
    at = {each["kind"]: str(each["at"]) for each in kept}
    edits = {at["result"]: "nothing at all", at["assistant"]: "I try.", at["call"]: '{"query": "oaks"}'}
    made = fork(app, run_id, 2, edits=edits, prompt="Answer in verse.")
    assert made.status_code == 201, made.text
    new = made.json()["id"]
    head = events(app, new)[-1]["head"]
    assert head["status"] == "done"
    assert head["forked_from"] == {"run": run_id, "before": 2}
    assert head["steps"] == 1
    messages = acorn.runs(store).get(new).history
    assert "Answer in verse." in str(messages[0])
    assert [words in str(messages) for words in ("nothing at all", "I try.", "oaks", "found acorns")] == [
        True,
        True,
        True,
        False,
    ]
    assert "found acorns" in str(acorn.runs(store).get(run_id).history)


INVALID_FORKS: list[Any] = [
    {},
    {"before": 1},
    {"run": "here"},
    {"run": "here", "before": "2"},
    {"run": "here", "before": True},
    {"run": "here", "before": 0},
    {"run": "here", "before": 9},
    {"run": "here", "before": 2, "edits": []},
    {"run": "here", "before": 2, "edits": {"3": 5}},
    {"run": "here", "before": 2, "edits": {"99": "x"}},
    {"run": "here", "before": 2, "edits": {"-1": "x"}},
    {"run": "here", "before": 1, "edits": {"2": "x"}},
    {"run": "here", "before": 2, "edits": {"1": "another input"}},
    {"run": "here", "before": 2, "edits": {"3": "no object"}},
    {"run": "here", "before": 2, "prompt": ""},
    {"run": "here", "before": 2, "more": 1},
]


def test_invalid_fork_request_returns_422_before_model_call(app: Any, store: MemoryStore) -> None:
    for wanted in INVALID_FORKS:
        with case(wanted):
            Desk(store=store).using(run_id="here").run(question="search acorns")
            refused = post(app, "/api/runs", {"fork": wanted})
            assert refused.status_code == 422, refused.text
            assert len(get(app, "/api/runs").json()["runs"]) == 1


def test_fork_of_run_of_other_agent_and_of_missing_run_is_rejected(app: Any, store: MemoryStore) -> None:
    run_id = ended(app, "search")["run_id"]
    body = {"fork": {"run": run_id, "before": 1}, "input": {"question": "x"}}
    assert post(app, "/api/runs", body).status_code == 422
    Check(store=store).using(run_id="other").run("a claim")
    assert fork(app, "other", 1).status_code == 409
    assert get(app, "/api/runs/other/fork").status_code == 409
    assert fork(app, "nothing", 1).status_code == 409
    assert fork(site(store=store), run_id, 1).status_code == 422


def test_python_route_returns_code_that_compiles(app: Any) -> None:
    run_id = begin(app, "search acorns")
    events(app, run_id)
    text = get(app, f"/api/runs/{run_id}/python").json()["text"]
    assert "ScriptedModel" in text
    compile(text, "test_run.py", "exec")


def test_workers_route_of_store_without_workers_returns_404(app: Any) -> None:
    assert get(app, "/api/agent").json()["fleet"] is False
    assert get(app, "/api/fleet").status_code == 404
