"""Tests of the search: it finds all texts in the runs of a store, except for redacted text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.web.desk import Desk, ended, get, site

from acorn.stores import MemoryStore
from acorn.stores.open import open_store
from acorn.stores.port import SearchableStore, Store
from acorn.web.page.routes import page_app
from acorn.web.page.run_index import StoreRunIndex
from acorn.web.page.site import Site


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    where = tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("postgres")
    made = open_store(where, "the test")
    yield made
    made.close()


def found(app: Any, text: str, **more: str) -> list[str]:
    """Return the inputs of the runs that contain a text, of all pages."""
    inputs: list[str] = []
    before: str | None = ""
    while before is not None:
        query = {"q": text, "before": before, **more}
        page = get(app, "/api/runs?" + "&".join(f"{name}={quote(each)}" for name, each in query.items())).json()
        inputs += [run["input"] for run in page["runs"]]
        before = page["before"]
    return inputs


SAID = [
    'say "so"',
    "a\nnew line",
    "back\\slash",
    "100% of_it",
    "Grüne ЖЁЛУДЬ",
    "\U0001f330 nut",
    "tab\there",
    "it's {odd}",
]


def test_run_search_finds_text_regardless_of_case(store: Store) -> None:
    agent, app = Desk(store=store), site(store=store)
    for text in [*SAID, "acorns"]:
        agent.run(question=f"search {text}")
    for text in SAID:
        inputs = [" ".join(f"search {text}".split())]
        for words in (text, f"found {text}", text.upper(), text.lower()):  # The input, and the result of a tool.
            assert found(app, words) == inputs, words
    assert found(app, "found nothing like it") == []
    assert len(found(app, "better to look.")) == len(SAID) + 1  # The model's reasoning.
    assert found(app, "acorns", status="failed") == []
    assert found(app, "acorns", agent="Other") == []
    assert len(found(app, "scripted/desk")) == len(SAID) + 1


def test_run_search_finds_queued_run_by_its_input(postgres: str) -> None:
    Desk(store=postgres).submit(question="search hazel")
    assert found(site(store=postgres), "HAZEL", status="queued") == ["search hazel"]


def test_run_search_continues_through_whole_store() -> None:
    store = MemoryStore()
    for number in range(12):
        Desk(store=store).run(question=f"search {'oak' if number % 5 == 0 else 'beech'} {number}")
    app = page_app(Site(None, StoreRunIndex(store, time_limit=0.0), store), ["127.0.0.1"], None)
    first = get(app, "/api/runs?q=oak").json()
    assert first["searched"] == 1
    assert first["before"]
    assert found(app, "oak") == ["search oak 10", "search oak 5", "search oak 0"]


def test_next_page_of_run_search_starts_after_last_result() -> None:
    store = MemoryStore()
    for number in range(60):
        Desk(store=store).run(question=f"search {number} end")
    app = site(store=store)
    wanted = [f"search {number} end" for number in reversed(range(60))]
    assert found(app, "") == found(app, "end") == wanted
    page = get(app, "/api/runs").json()
    assert (len(page["runs"]), page["searched"]) == (50, 50)


@pytest.mark.parametrize("store", ["sqlite", "postgresql"], indirect=True)
def test_search_method_of_store_returns_each_matching_run(store: Store) -> None:
    assert isinstance(store, SearchableStore)
    ids = [Desk(store=store).run(question=f"search {text}").id for text in SAID]
    for run_id, text in zip(ids, SAID, strict=True):
        assert run_id in store.search(ids, text.upper())
    assert store.search(ids, "no such words anywhere") == []
    assert store.search([], "search") == []
    assert set(store.search(ids, "SEARCH")) == set(ids)
    assert store.search([*ids, "nothing", "\0"], "100% of_it") == [ids[3]]


def test_run_search_does_not_find_redacted_text(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-of-the-mine")
    app = site(Desk(), store=store)
    for secret in ("canary-of-the-mine", "sk-looks-like-a-key-1234567890"):
        ended(app, f"leak {secret} openly")
        for text in (secret, secret[:9], secret[3:]):
            assert found(app, text) == []
    assert len(found(app, "openly")) == 2


def test_run_search_finds_text_in_saved_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-of-the-mine")
    files: list[Path] = []
    for name in ("oak", "canary-of-the-mine"):
        files.append(tmp_path / f"{len(files)}.json")
        files[-1].write_text(Desk(store=MemoryStore()).run(question=f"search {name}").to_json())
    app = site(files=files)
    assert found(app, "FOUND oak") == ["search oak"]
    assert found(app, "canary-of") == []
    assert get(app, "/api/runs?q=oak").json()["searched"] == 2
