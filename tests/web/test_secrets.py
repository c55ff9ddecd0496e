"""Tests of secrets on the page: thirty secrets are in the stored runs, and no route returns one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from starlette.routing import Route
from tests.cases import case
from tests.web.desk import KEY, Desk, asked, ended, events, get, post, site

import acorn
from acorn.stores import MemoryStore
from acorn.web.page.routes import page_app
from acorn.web.page.site import make_site

CANARIES = [f"canary-{number:02}-{'abcdefgh'[number % 8] * 8}" for number in range(30)]


@pytest.fixture
def secretive(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Thirty secrets: of the environment, and texts that only look like one."""
    for number, canary in enumerate(CANARIES[:15]):
        monkeypatch.setenv(f"CANARY_{number}_TOKEN", canary)
    return CANARIES[:15] + [f"sk-{canary}" for canary in CANARIES[15:]]


class House(NamedTuple):
    """A site whose runs are full of secrets."""

    app: Any
    text: str
    """All secrets."""
    done: str
    """A run that is over, and knows them all."""
    later: str
    """One that goes on with the same conversation."""
    waits: str
    """One that waits for somebody, and asks for them."""

    def get(self, path: str) -> str:
        return get(self.app, path).text

    def post(self, path: str, body: Any) -> str:
        return post(self.app, path, body).text

    def of(self, path: str) -> list[str]:
        """Return what a route sends about each run."""
        return [self.get(f"/api/runs/{run}/{path}") for run in (self.done, self.later, self.waits, quote(self.text))]

    def rows(self, what: str) -> list[str]:
        count = len(get(self.app, f"/api/runs/{self.done}/view").json()["rows"])
        return [each for row in [*range(count), quote(self.text)] for each in self.of(f"{what}?row={row}")]

    def open_request(self) -> str:
        found: str = get(self.app, "/api/requests").json()["requests"][0]["id"]
        return found

    def fork(self, **more: Any) -> str:
        fork = {"run": self.done, "before": 2, **more}
        made = post(self.app, "/api/runs", {"fork": fork})
        return made.text + (str(events(self.app, made.json()["id"])) if made.status_code == 201 else "")


@pytest.fixture
def house(secretive: list[str]) -> House:
    return full_of(secretive, MemoryStore())


def full_of(secretive: list[str], store: Any) -> House:
    app, text = site(Desk(), store=store), " ".join(secretive)
    done = ended(app, f"leak {text}")["run_id"]
    later = ended(app, f"leak {text}", after=done)["run_id"]
    return House(app, text, done, later, ended(app, f"asks {text}")["run_id"])


def page(path: str) -> Callable[[House], list[str]]:
    return lambda house: [house.get(path), house.get(f"{path}?q={quote(house.text)}")]


def deleted(house: House) -> list[str]:
    ids = (house.waits, house.waits, quote(house.text))
    return [asyncio.run(asked(house.app, "DELETE", f"/api/runs/{each}", content=b"{}")).text for each in ids]


def begun(house: House) -> list[str]:
    text = house.text
    inputs: list[Any] = [{"question": 5, "depth": text}, {"question": "x", text: 1}, text, {"place": {text: text}}]
    told = [house.post("/api/runs", {"input": each}) for each in inputs]
    told += [house.post("/api/runs", {"input": {"question": "x"}, name: text}) for name in ("after", "model", text)]
    told.append(str(ended(house.app, f"broken {text}")))
    kept = get(house.app, f"/api/runs/{house.done}/fork?before=2").json()["events"]
    told += [house.fork(edits={str(each["at"]): text}) for each in kept]
    told += [house.fork(edits={text: text}), house.fork(run=text), house.fork(before=text), house.fork(prompt=text)]
    return [*told, house.fork(**{text: text})]


def listed(house: House) -> list[str]:
    queries = ["", *(f"?{name}={quote(house.text)}" for name in ("q", "agent", "status", "before"))]
    return [house.get(f"/api/runs{query}") for query in [*queries, f"?q={house.text.split()[0]}"]]


def compared(house: House) -> list[str]:
    pairs = [(house.done, house.later), (house.done, house.waits), (quote(house.text), house.done)]
    return [house.get(f"/api/compare?a={left}&b={right}") for left, right in pairs]


def answered(house: House) -> list[str]:
    told = [house.post(f"/api/requests/{quote(house.text)}", {"value": house.text})]
    told += [house.post(f"/api/requests/{house.open_request()}", body) for body in ({house.text: 1}, {"value": None})]
    told.append(house.post(f"/api/requests/{house.open_request()}", {"value": house.text}))
    return [*told, str(events(house.app, house.waits))]


ROUTES: Mapping[tuple[str, str], Callable[[House], list[str]]] = {
    **{("GET", path): page(path) for path in ("/", "/runs/", "/compare", "/fork", "/fleet")},
    ("GET", "/runs/{id}"): lambda house: [house.get(f"/runs/{quote(house.text)}")],
    ("GET", "/static/{name}"): lambda house: [house.get(f"/static/{name}") for name in ("app.js", quote(house.text))],
    ("GET", "/api/agent"): page("/api/agent"),
    ("GET", "/api/runs"): listed,
    ("GET", "/api/requests"): page("/api/requests"),
    ("GET", "/api/runs/{id}/stream"): lambda house: house.of("stream") + house.of(f"stream?from={quote(house.text)}"),
    ("GET", "/api/runs/{id}/view"): lambda house: house.of("view"),
    ("GET", "/api/runs/{id}/rows"): lambda house: house.of("rows") + house.of(f"rows?after={quote(house.text)}"),
    ("GET", "/api/runs/{id}/details"): lambda house: house.rows("details"),
    ("GET", "/api/runs/{id}/sent"): lambda house: house.rows("sent"),
    ("GET", "/api/runs/{id}/find"): lambda house: [*house.of(f"find?q={quote(house.text)}"), *house.of("find?q=a")],
    ("GET", "/api/runs/{id}/conversation"): lambda house: house.of("conversation"),
    ("GET", "/api/runs/{id}/file"): lambda house: house.of("file"),
    ("GET", "/api/runs/{id}/fork"): lambda house: [
        each for step in (1, 2, 99, quote(house.text)) for each in house.of(f"fork?before={step}")
    ],
    ("GET", "/api/runs/{id}/python"): lambda house: house.of("python"),
    ("GET", "/api/compare"): compared,
    ("GET", "/api/fleet"): page("/api/fleet"),
    ("POST", "/api/runs"): begun,
    ("POST", "/api/runs/{id}/stop"): lambda house: [
        house.post(f"/api/runs/{each}/stop", {house.text: 1}) for each in (house.waits, quote(house.text))
    ],
    ("POST", "/api/runs/{id}/resume"): lambda house: [
        house.post(f"/api/runs/{each}/resume", {house.text: 1}) for each in (house.waits, quote(house.text))
    ],
    ("POST", "/api/requests/{id}"): answered,
    ("DELETE", "/api/runs/{id}"): deleted,
    ("GET", "/login"): page("/login"),
}


def every_route() -> Iterator[tuple[str, str]]:
    for route in page_app(make_site(Desk(), MemoryStore()), [], None).routes:
        assert isinstance(route, Route)
        yield from ((method, route.path) for method in route.methods or () if method != "HEAD")


def test_secret_test_table_contains_each_page_route() -> None:
    assert sorted(ROUTES) == sorted(every_route())


def test_response_to_unknown_address_contains_no_secret(secretive: list[str]) -> None:
    house = full_of(secretive, MemoryStore())
    path = quote(house.text)
    told = [house.get(f"/{path}"), house.get(f"/api/{path}"), house.post(f"/api/{path}", {house.text: 1})]
    assert_redacted(house, told)


def test_page_route_responses_contain_no_secret(secretive: list[str]) -> None:
    house = full_of(secretive, MemoryStore())
    for route, responses in ROUTES.items():
        with case(*route):
            told = responses(house)
            assert told
            assert_redacted(house, told)
        if route[0] != "GET":  # Such a request changes the runs.
            house = full_of(secretive, MemoryStore())


def assert_redacted(house: House, told: list[str]) -> None:
    for secret in house.text.split():
        assert not [answer for answer in told if secret in answer]
    assert KEY not in "".join(told)


def test_workers_route_responses_contain_no_secret(postgres: str, secretive: list[str]) -> None:
    house = full_of(secretive, postgres)
    fleet = get(house.app, "/api/fleet")
    assert len(fleet.json()["requests"]) == 1
    assert_redacted(house, [fleet.text, *listed(house), *compared(house), *house.of("view"), house.get("/api/agent")])


def test_page_route_responses_contain_asterisks_in_place_of_secret(house: House) -> None:
    for path in ("view", "fork?before=2", "python", "file", "stream"):
        assert "***" in house.get(f"/api/runs/{house.done}/{path}")
    assert "***" in house.get(f"/api/compare?a={house.done}&b={house.later}")
    assert "***" in house.get("/api/requests")


def test_search_inside_run_does_not_find_secret(house: House) -> None:
    for secret in house.text.split():
        assert get(house.app, f"/api/runs/{house.done}/find?q={secret}").json()["rows"] == []


def test_route_responses_for_saved_file_contain_no_secret(secretive: list[str], tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(acorn.Run.to_json(Desk(store=MemoryStore()).run(question="leak " + " ".join(secretive))))
    alone = site(files=[file])
    paths = ["view", "file", "details?row=1", "sent?row=1", "fork", "python", "stream", "rows", "find?q=canary"]
    told = [get(alone, f"/api/runs/run/{path}").text for path in paths] + [get(alone, "/api/runs").text]
    told.append(get(alone, "/api/compare?a=run&b=run").text)
    for secret in secretive:
        assert not [answer for answer in told if secret in answer]


def test_api_keys_of_models_are_not_sent_to_browser() -> None:
    model = {
        "model": "openai/gpt-4o",
        "api_key": "model-canary-key",
        "api_base": "https://u:address-canary@host.invalid/v1",
    }
    app = site(Desk(model=model), store=MemoryStore())
    told = get(app, "/api/agent").text
    assert "openai/gpt-4o" in told
    assert "canary" not in told
    wrong = post(app, "/api/runs", {"input": {"depth": "model-canary-key"}}).text
    assert "model-canary-key" not in wrong
