"""Tests of the page with files and stores of unknown origin, which may contain anything."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.long_version import IS_LONG
from tests.web.desk import HOSTILE, Desk, asked, ended, get, post, site

from acorn import StoreError
from acorn.stores import MemoryStore
from acorn.stores.sqlite import SQLiteStore
from acorn.web.page.run_index import load_saved_run


def saved(path: Path, question: str = "search acorns") -> tuple[Path, dict[str, Any]]:
    run = Desk(store=MemoryStore()).run(question=question)
    file = path / "run.json"
    file.write_text(run.to_json())
    return file, json.loads(run.to_json())


def test_saved_run_file_is_displayed_but_cannot_be_deleted(tmp_path: Path) -> None:
    file, _ = saved(tmp_path)
    app = site(files=[file])
    assert get(app, "/api/agent").json()["agent"] is None
    (head,) = get(app, "/api/runs").json()["runs"]
    view = get(app, f"/api/runs/{head['id']}/view").json()
    assert [row["k"] for row in view["rows"]] == ["input", "model", "tool", "answer"]
    assert view["head"]["status"] == "done"
    details = get(app, "/api/runs/run/details?row=2").json()
    assert [entry.get("name") for entry in details["entries"]] == ["search", "search"]
    assert json.loads(details["arguments"]) == {"query": "acorns"}
    assert get(app, "/api/runs/run/sent?row=1").json()["exact"] is True
    assert get(app, "/api/runs/run/file").status_code == 200
    assert post(app, "/api/runs", {"input": {"question": "x"}}).status_code == 422
    assert asyncio.run(asked(app, "DELETE", "/api/runs/run", content=b"{}")).status_code == 409


def test_two_saved_files_with_same_name_have_different_run_ids(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.append(saved(tmp_path / name, f"search {name}")[0])
    app = site(files=files)
    inputs = [run["input"] for run in get(app, "/api/runs").json()["runs"]]
    assert inputs == ["search one", "search two"]
    ids = [run["id"] for run in get(app, "/api/runs").json()["runs"]]
    assert [get(app, f"/api/runs/{each}/view").json()["head"]["input"]["question"] for each in ids] == inputs


BROKEN = [
    *(b"", b"{", b"[]x", b"null", b"5", b"\xff\xfe", b"[1, 2]", b'[{"type": "odd"}]'),
    *(b'{"format": 99}', b'{"format": "1"}', b'{"format": 1, "run": []}', b'{"format": 1, "run": {}, "journal": 5}'),
    *(b"[" * 100_000, b'{"a":' * 100_000),
]


def test_unreadable_saved_file_is_listed_with_error(tmp_path: Path) -> None:
    for text in BROKEN:
        with case(text):
            file = tmp_path / "run.json"
            file.write_bytes(text)
            with pytest.raises(StoreError, match=r"run\.json"):
                load_saved_run(file)
            app = site(files=[file])
            assert get(app, "/api/runs/run/view").status_code == 409
            assert "run.json" in get(app, "/api/runs").json()["runs"][0]["error"]


def test_saved_file_with_any_value_replaced_is_displayed_or_reported(tmp_path: Path) -> None:
    file, whole = saved(tmp_path)

    def places(value: Any, path: tuple[Any, ...] = ()) -> Any:
        yield path
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            yield from places(item, (*path, key))

    for at, path in enumerate(places(whole)):
        if not path or (at % 4 and not IS_LONG):
            continue
        changed = json.loads(json.dumps(whole))
        inside = changed
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = [HOSTILE, None, -1e308, {"a": []}, [], True][at // 4 % 6]
        file.write_text(json.dumps(changed))
        app = site(files=[file])
        view = get(app, "/api/runs/run/view")
        assert view.status_code in (200, 409), path
        if view.status_code == 200:
            for row in view.json()["rows"]:
                for what in ("details", "sent"):
                    assert get(app, f"/api/runs/run/{what}?row={row['i']}").status_code in (200, 404, 409), path


def test_too_large_saved_file_raises_store_error(tmp_path: Path) -> None:
    file = tmp_path / "big.json"
    with file.open("wb") as made:
        made.truncate(300_000_000)
    with pytest.raises(StoreError, match="too large"):
        load_saved_run(file)


def test_damaged_run_in_store_does_not_hide_other_runs(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    app = site(Desk(), store=store)
    good, bad = ended(app, "search acorns")["run_id"], ended(app, "search beech")["run_id"]
    store.close()
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        number = connection.execute("SELECT number FROM runs WHERE id = ?", (bad,)).fetchone()[0]
        connection.execute("UPDATE entries SET entry = ? WHERE root = ?", ('{"entry": "Odd"}', number))
        connection.execute("UPDATE run_headers SET input = ? WHERE run = ?", ("{", number))
        connection.execute("UPDATE run_states SET record = ? WHERE run = ?", ("[" * 5000, number))
    connection.close()
    app = site(Desk(), store=SQLiteStore(tmp_path / "runs.db"))
    assert {run["id"] for run in get(app, "/api/runs").json()["runs"]} == {good, bad}
    broken = get(app, f"/api/runs/{bad}/view")
    assert broken.status_code == 409
    assert "Cannot read run" in broken.json()["error"]
    for path in ("stream", "rows", "file", "details?row=0", "find?q=x"):
        assert get(app, f"/api/runs/{bad}/{path}").status_code == 409
    assert get(app, f"/api/runs/{good}/view").status_code == 200
