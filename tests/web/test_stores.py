"""Tests of the page with a PostgreSQL store, and with a store that becomes unreachable."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.web.desk import Desk, asked, begin, ended, events, get, post, site


def test_runs_in_postgres_store_are_displayed_and_deleted(postgres: str) -> None:
    app = site(Desk(), store=postgres)
    run_id = begin(app, "search acorns")
    assert events(app, run_id)[-1]["head"]["status"] == "done"
    (head,) = get(app, "/api/runs?q=acorns").json()["runs"]
    assert head["id"] == run_id
    for path in ("view", "file", "find?q=acorns", "conversation", "details?row=1", "sent?row=1", "stream", "rows"):
        assert get(app, f"/api/runs/{run_id}/{path}").status_code == 200
    assert ended(app, "and on", after=run_id)["head"]["status"] == "done"
    assert asyncio.run(asked(app, "DELETE", f"/api/runs/{run_id}", content=b"{}")).status_code == 200
    assert get(app, f"/api/runs/{run_id}/view").status_code == 404


def test_nul_character_in_request_to_postgres_store_returns_json_response(postgres: str) -> None:
    app = site(Desk(), store=postgres)
    for path in ("/api/runs/%00/view", "/api/runs/%00/stream", "/api/runs?agent=%00", "/api/runs?q=%00"):
        told = get(app, path)
        assert told.status_code in (200, 404, 409)
        assert told.json()
    for path in ("/api/runs/%00/stop", "/api/runs/%00/resume", "/api/requests/%00"):
        assert post(app, path, {}).json()["error"]
    for question in ("\0", "\ud800", "\U0001f330"):
        body = json.dumps({"input": {"question": question}})
        told = asyncio.run(asked(app, "POST", "/api/runs", content=body))
        assert told.status_code == 201
        assert events(app, told.json()["id"])[-1]["entry"] == "end"


def test_page_server_answers_requests_while_store_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    app = site(Desk(), store=str(file))
    run_id = begin(app, "search acorns")
    assert events(app, run_id)[-1]["head"]["status"] == "done"
    for each in tmp_path.iterdir():
        each.unlink()
    for path in ("/api/runs", f"/api/runs/{run_id}/view", "/api/requests"):
        told = get(app, path)
        assert told.status_code in (200, 404, 409)
        assert told.json() is not None
    assert get(app, "/api/agent").status_code == 200
