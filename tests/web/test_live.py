"""Tests of runs that the page starts: finished, failed, stopped, answered, continued, and concurrent."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cases import case
from tests.waiting import PATIENCE, comes_true, waiting_for_nothing
from tests.web.desk import GATES, Desk, asked, begin, ended, events, events_in, get, post, site

import acorn
from acorn import ask_human, module
from acorn.stores import MemoryStore
from acorn.stores.port import Commit, PendingCommit
from acorn.testing import ScriptedModel, call, finish
from acorn.web.page.site import make_site
from acorn.web.page.streams import row_events


@pytest.fixture
def app() -> Any:
    return site(Desk(), store=MemoryStore())


def kinds(found: list[dict[str, Any]]) -> list[str]:
    return [event["entry"] for event in found]


def test_agent_route_describes_agent(app: Any) -> None:
    told = get(app, "/api/agent").json()["agent"]
    assert told["name"] == "Desk"
    assert told["model"] == "scripted/desk"
    assert told["input"]["schema"]["properties"]["limit"]["maximum"] == 20
    assert {"name": "search", "doc": "Search the web."} in told["tools"]
    assert told["branches"] == [{"name": "check", "doc": "Check a claim."}]
    assert told["limits"] == {"max_steps": 6}


def test_run_is_streamed_to_end(app: Any) -> None:
    run_id = begin(app, "search acorns")
    found = events(app, run_id)
    assert kinds(found)[0] == "reset"
    told = [kind for kind in kinds(found) if kind in ("ModelResponded", "ToolFinished", "RunFinished", "end")]
    assert told == ["ModelResponded", "ToolFinished", "ModelResponded", "RunFinished", "end"]
    end = found[-1]
    assert end["head"]["status"] == "done"
    assert end["head"]["own"] is True
    assert end["head"]["output"]["answer"].startswith("search acorns")
    assert end["head"]["cost"] > 0


def test_reconnected_event_stream_receives_only_missing_events(app: Any) -> None:
    run_id = begin(app, "search acorns")
    whole = get(app, f"/api/runs/{run_id}/stream")
    last = [line.removeprefix("id: ") for line in whole.text.splitlines() if line.startswith("id: ")][-1]
    assert kinds(events(app, run_id, last)) == ["end"]
    asked_by_page = events_in(get(app, f"/api/runs/{run_id}/stream?from={last}"))
    assert kinds(asked_by_page) == ["end"]
    assert kinds(events(app, run_id, "other-5"))[0] == "reset"


def test_wrong_input_returns_422_with_field_paths_before_run_starts(app: Any) -> None:
    wrong = post(app, "/api/runs", {"input": {"limit": 99, "place": {}, "nothing": 1}})
    assert wrong.status_code == 422
    paths = {each["path"] for each in wrong.json()["problems"]}
    assert paths == {"question", "limit", "place.city", "nothing"}
    assert get(app, "/api/runs").json()["runs"] == []


def test_invalid_run_request_returns_422(app: Any) -> None:
    for body, message in [
        ([], "The request body must be a JSON object."),
        ("x", "The request body must be a JSON object."),
        ({"inputs": {}}, "The request body contains the unknown key `inputs`. Remove the key."),
        ({"fork": 5}, "`fork` in the request body must be a JSON object."),
        ({"input": {}, "after": 5}, "`after` in the request body is wrong: Input should be a valid string."),
        ({"input": []}, ""),
    ]:
        with case(body):
            refused = post(app, "/api/runs", body)
            assert refused.status_code == 422
            assert message in refused.json()["error"]
    answer = post(app, "/api/requests/x", [])
    assert (answer.status_code, answer.json()["error"]) == (422, "The request body must be a JSON object.")


def test_unusual_text_and_numbers_in_requests_return_json_responses(app: Any) -> None:
    for more in ({"model": "\ud800"}, {"after": "\ud800"}, {"after": "\0"}):
        body = json.dumps({"input": {"question": "x"}, **more})
        odd = asyncio.run(asked(app, "POST", "/api/runs", content=body))
        assert odd.status_code in (201, 409, 422, 500)
        assert odd.status_code == 201 or odd.json()["error"]
    assert get(app, "/api/runs?before=2026-01-31").status_code == 200
    run_id = begin(app, "search acorns")
    far = "9" * 5000
    assert kinds(events(app, run_id))[-1] == "end"
    assert kinds(events(app, run_id, f"kept-{far}"))[-1] == "end"
    assert get(app, f"/api/runs/{run_id}/details?row={far}").status_code == 404


def test_last_event_of_failed_run_contains_error(app: Any) -> None:
    end = ended(app, "fail")
    assert end["head"]["status"] == "failed"
    assert "the provider says no" in end["head"]["error"]


def test_tool_that_calls_exit_ends_only_its_own_run(app: Any) -> None:
    found = events(app, begin(app, "leave"))
    assert kinds(found)[-1] == "end"
    assert "SystemExit" in str(found)
    assert ended(app, "search acorns")["head"]["status"] == "done"


def test_running_run_can_be_stopped_and_resumed(app: Any) -> None:
    run_id = begin(app, "sleep")
    assert comes_true(lambda: "ToolStarted" in get(app, f"/api/runs/{run_id}/details?row=2").text)
    assert post(app, f"/api/runs/{run_id}/stop").status_code == 200
    end = events(app, run_id)[-1]
    assert end["head"]["status"] == "stopped"
    post(app, f"/api/runs/{run_id}/resume")
    assert comes_true(lambda: get(app, f"/api/runs/{run_id}/view").json()["head"]["status"] == "running")
    post(app, f"/api/runs/{run_id}/stop")
    assert events(app, run_id)[-1]["head"]["status"] == "stopped"


class SlowStore(MemoryStore):
    """A store that commits nothing before the test says so."""

    def commit(self, commit: Commit) -> PendingCommit:
        GATES["slow store"].wait(PATIENCE)
        return super().commit(commit)


def test_run_that_is_not_yet_stored_can_be_stopped() -> None:
    slow = site(Desk(), store=SlowStore())
    run_id = begin(slow, "search acorns")
    assert post(slow, f"/api/runs/{run_id}/stop").status_code == 200
    GATES["slow store"].set()
    assert "ModelResponded" not in kinds(events(slow, run_id))
    assert post(slow, "/api/runs/nothing/stop").status_code == 404


def test_tool_that_blocks_does_not_block_page_server(app: Any) -> None:
    run_id = begin(app, "block blocking")
    assert comes_true(lambda: get(app, f"/api/runs/{run_id}/view").json().get("rows", []) != [])
    assert get(app, "/api/agent").status_code == 200
    GATES["blocking"].set()
    assert events(app, run_id)[-1]["head"]["status"] == "done"


def test_run_request_above_concurrent_run_limit_returns_429(app: Any) -> None:
    under_way = [begin(app, "hold many") for _ in range(4)]
    full = post(app, "/api/runs", {"input": {"question": "search"}})
    assert full.status_code == 429
    GATES["many"].set()
    assert [events(app, run_id)[-1]["head"]["status"] for run_id in under_way] == ["done"] * 4
    assert ended(app, "search")["head"]["status"] == "done"


def test_answer_to_question_resumes_run(app: Any) -> None:
    end = ended(app, "question")
    assert end["head"]["status"] == "waiting"
    (request,) = end["requests"]
    assert request["choices"] == ["red", "blue"]
    run_id = end["run_id"]
    assert get(app, f"/api/runs/{run_id}/view").json()["requests"] == end["requests"]
    assert post(app, f"/api/requests/{request['id']}", {"value": None}).status_code == 422
    assert post(app, f"/api/requests/{request['id']}", {"value": "red"}).json() == {"resumed": True}
    found = events(app, run_id)
    assert found[-1]["head"]["status"] == "done"
    assert [event["answer"] for event in found if event["entry"] == "InputReceived"] == ["red"]
    assert post(app, f"/api/requests/{request['id']}", {"value": "red"}).status_code == 409


APPROVALS: list[tuple[Any, str]] = [
    (True, "200.0 paid back for 17"),
    (False, "did not approve"),
    ({"approved": False, "reason": "Too much."}, "Too much."),
    ({"approved": False, "reason": None}, "did not approve"),
    ("yes", "200.0 paid back for 17"),
    ({"approved": True, "arguments": {"order": "17", "amount": 5.0}}, "5.0 paid back for 17"),
]


def test_answer_to_approval_request_approves_or_rejects_tool_call(app: Any) -> None:
    for value, said in APPROVALS:
        with case(value, said):
            end = ended(app, "refund")
            (request,) = end["requests"]
            assert post(app, f"/api/requests/{request['id']}", {"value": value}).json() == {"resumed": True}
            results = [event for event in events(app, end["run_id"]) if event["entry"] == "ToolResultsAdded"]
            assert said in str(results)


def test_human_input_request_of_branch_contains_id_of_root_run() -> None:
    class Clerk(module[str, str]):
        """Ask."""

        model = ScriptedModel([call("ask_human", question="Which one?"), finish("red")])
        tools = [ask_human]
        max_steps = 3

    class Office(module[str, str]):
        """Have a clerk ask."""

        model = ScriptedModel([call("clerk", input="a colour"), finish("red")])
        branches = {"clerk": Clerk}
        max_steps = 3

    store = MemoryStore()
    run = Office(store=store).run("a colour")
    app = site(store=store)
    (request,) = get(app, "/api/requests").json()["requests"]
    assert request["run_id"] != run.id
    assert request["root"] == run.id
    assert get(app, f"/api/runs/{request['root']}/view").json()["requests"] == [request]


def test_conversation_continues_after_earlier_run(app: Any) -> None:
    first = ended(app, "search acorns")["run_id"]
    second = ended(app, "and then", after=first)
    assert second["head"]["output"]["answer"].endswith("messages)")
    third = ended(app, "and now", after=second["run_id"])
    assert third["head"]["batch"] == second["head"]["batch"]
    earlier = get(app, f"/api/runs/{third['run_id']}/conversation").json()["runs"]
    assert [each["input"]["question"] for each in earlier] == ["search acorns", "and then"]
    assert int(third["head"]["output"]["answer"].split("(")[1].split()[0]) > 5


def test_rows_of_run_in_other_os_thread_are_streamed() -> None:
    store = MemoryStore()
    app = site(None, store=store)
    heard: list[Any] = []
    with acorn.listen(heard.append):
        driven = threading.Thread(target=lambda: Desk(store=store).using(run_id="held").run(question="hold follow"))
        driven.start()
    assert comes_true(lambda: any(each["id"] == "held" for each in get(app, "/api/runs").json()["runs"]))
    view = get(app, "/api/runs/held/view").json()
    assert view["head"]["status"] == "running"

    async def followed() -> tuple[httpx.Response, httpx.Response]:
        rows = asyncio.create_task(asked(app, "GET", f"/api/runs/held/rows?after={view['version']}"))
        told = asyncio.create_task(asked(app, "GET", "/api/runs/held/stream"))
        await asyncio.sleep(0)
        GATES["follow"].set()
        return await rows, await told

    rows, told = asyncio.run(followed())
    driven.join(PATIENCE)
    assert kinds(events_in(told))[-2:] == ["RunFinished", "end"]
    lines = [line for line in rows.text.splitlines() if line.startswith("data: ")]
    last = httpx.Response(200, text=lines[-1].removeprefix("data: ")).json()
    assert last["head"]["status"] == "done"
    whole = get(app, "/api/runs/held/view").json()["rows"]
    known = {row["i"]: row for row in view["rows"]}
    for line in lines:
        known |= {row["i"]: row for row in httpx.Response(200, text=line.removeprefix("data: ")).json()["rows"]}
    assert list(known.values()) == whole


def test_run_started_elsewhere_is_streamed_to_its_end() -> None:
    store = MemoryStore()
    app = site(None, store=store)
    others = [Desk(store=store).run(question="search").id for _ in range(12)]
    driven = threading.Thread(target=lambda: Desk(store=store).using(run_id="slow").run(question="hold others"))
    driven.start()
    assert comes_true(lambda: "ToolStarted" in get(app, "/api/runs/slow/details?row=2").text)

    async def followed() -> httpx.Response:
        told = asyncio.create_task(asked(app, "GET", "/api/runs/slow/stream"))
        for other in others:
            await asked(app, "GET", f"/api/runs/{other}/view")
        GATES["others"].set()
        return await asyncio.wait_for(told, PATIENCE)

    assert kinds(events_in(asyncio.run(followed())))[-2:] == ["RunFinished", "end"]
    driven.join(PATIENCE)


def test_run_list_can_be_filtered_and_searched(app: Any) -> None:
    for question in ("search acorns", "search chestnuts", "fail"):
        ended(app, question)
    listed = get(app, "/api/runs").json()["runs"]
    assert [run["status"] for run in listed] == ["failed", "done", "done"]
    assert listed[1]["input"] == "search chestnuts"
    assert [run["input"] for run in get(app, "/api/runs?status=failed").json()["runs"]] == ["fail"]
    assert [run["input"] for run in get(app, "/api/runs?q=CHESTNUTS").json()["runs"]] == ["search chestnuts"]
    assert get(app, "/api/runs?agent=Other").json()["runs"] == []
    assert len(get(app, "/api/runs?agent=Desk").json()["runs"]) == 3
    assert get(app, "/api/runs?status=odd").status_code == 422
    assert get(app, "/api/runs?before=yesterday").status_code == 422


def test_find_route_returns_rows_that_contain_text(app: Any) -> None:
    run_id = ended(app, "search acorns")["run_id"]
    found = get(app, f"/api/runs/{run_id}/find?q=found+acorns").json()["rows"]
    assert 2 in found
    assert get(app, f"/api/runs/{run_id}/find?q=nowhere").json()["rows"] == []


def test_downloaded_run_file_can_be_loaded_with_from_json(app: Any) -> None:
    run_id = ended(app, "search acorns")["run_id"]
    given = get(app, f"/api/runs/{run_id}/file")
    assert given.headers["content-disposition"] == f'attachment; filename="{run_id}.json"'
    assert acorn.Run.from_json(given.text).id == run_id


def test_routes_of_deleted_run_return_404(app: Any) -> None:
    run_id = ended(app, "search acorns")["run_id"]
    assert asyncio.run(asked(app, "DELETE", f"/api/runs/{run_id}", content=b"{}")).status_code == 200
    assert get(app, f"/api/runs/{run_id}/view").status_code == 404
    assert get(app, f"/api/runs/{run_id}/stream").status_code == 404


def test_missing_run_and_missing_row_return_404(app: Any) -> None:
    for path in ("view", "stream", "rows", "details?row=0", "sent?row=0", "find?q=x", "file"):
        missing = get(app, f"/api/runs/nothing/{path}")
        assert missing.status_code == 404
        assert "error" in missing.json()
    run_id = ended(app, "search acorns")["run_id"]
    for row in ("", "99", "-1", "x", "1e3", "²"):
        assert get(app, f"/api/runs/{run_id}/details?row={row}").status_code == 404


def test_ctrl_c_with_open_page_ends_server_and_stops_run(tmp_path: Path, ctrl_c: None) -> None:
    source = Path(__file__).parents[2]
    path = os.pathsep.join([str(source / "src"), str(source)])
    process = subprocess.Popen(
        [sys.executable, "-m", "acorn", "web", "tests.web.desk:Desk", "--no-open", "--port", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    address = process.stderr.readline().split()[-1]
    home = address.partition("/login")[0]
    with httpx.Client(base_url=home, headers={"origin": home}, timeout=PATIENCE) as client:
        assert client.get(address).status_code == 200
        run_id = client.post("/api/runs", json={"input": {"question": "sleep"}}).json()["id"]
        with client.stream("GET", f"/api/runs/{run_id}/stream") as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if "ToolStarted" in line)
            process.send_signal(signal.SIGINT)
            for _ in lines:  # It ends by itself.
                pass
    assert process.wait(PATIENCE) == 0
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    kept = acorn.runs(tmp_path / ".acorn/runs.db").list()
    assert [facts.status for facts in kept] == ["stopped"]
    assert (tmp_path / ".acorn/.gitignore").read_text() == "*\n"
    assert (tmp_path / ".acorn").stat().st_mode & 0o777 == 0o700


def test_image_input_is_abbreviated_on_run_page(app: Any) -> None:
    pixels = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"pixels" * 50_000).decode()
    given = {"question": "search acorns", "photo": f"data:image/png;base64,{pixels}"}
    begun = post(app, "/api/runs", {"input": given})
    assert begun.status_code == 201, begun.text
    run_id = begun.json()["id"]
    told = [str(events(app, run_id)), get(app, f"/api/runs/{run_id}/view").text, get(app, "/api/runs").text]
    told += [get(app, f"/api/runs/{run_id}/{path}").text for path in ("stream", "details?row=0", "sent?row=1")]
    for each in told:
        assert len(each) < 60_000
        assert pixels[:60] not in each
    assert "image/png" in told[-1]
    assert pixels[:60] in get(app, f"/api/runs/{run_id}/file").text
    wrong = post(app, "/api/runs", {"input": {"question": "x", "photo": "/etc/passwd"}})
    assert [each["path"] for each in wrong.json()["problems"]] == ["photo"]


def test_view_that_another_thread_updates_does_not_block_event_loop(tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    file.write_text(Desk(store=MemoryStore()).run(question="x").to_json())

    async def main() -> None:
        page = make_site(None, None, [file])
        view = page.index.view("saved")
        assert view is not None
        view.lock.acquire()
        gives_up = threading.Timer(PATIENCE, view.lock.release)  # Otherwise a blocked loop would never end.
        gives_up.start()
        rows = asyncio.ensure_future(anext(row_events(page, "saved", 0)))
        await asyncio.wait((rows,), timeout=0.1)
        assert not rows.done()
        gives_up.cancel()
        view.lock.release()
        assert b"rows" in await rows

    with waiting_for_nothing():
        asyncio.run(main())
