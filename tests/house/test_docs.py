"""The code of the guide runs as it is written, page by page, but for the model, which is a script here."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.telemetry import no_provider

from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish

DOCS = Path(__file__).parents[2] / "docs"


def reply(request: ModelRequest) -> Reply:
    """Calls the first tool that fits, then finishes."""
    names = [each["function"]["name"] for each in request.tools if "function" in each]
    if request.messages[-1]["role"] == "tool":
        return finish(str(request.messages[-1]["content"]))
    if "convert_time" in names:
        return call("convert_time", source_timezone="Europe/Oslo", time="09:00", target_timezone="Asia/Tokyo")
    if "clock_convert_time" in names:
        return call("clock_convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo")
    if "refund" in names:
        return call("refund", order="a", amount=200)
    if "search" in names:
        return call("search", query="oaks")
    if "source" in str(request.tools[-1]):
        return finish(answer="Yes.", source=None)
    return call("charge", amount=5) if "charge" in names else finish(answer="It is on its way.")


def run_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the code of a page prints."""
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    names: dict[str, Any] = {
        "MODEL": ScriptedModel(reply),
        "print": lambda *said: printed.append(" ".join(map(str, said))),
    }
    names["__name__"] = "__main__"
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(re.sub(r'    model = ".*"', "    model = MODEL", block), page, "exec", dont_inherit=True), names)
    return printed


def test_the_page_on_people_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run_page("people.md", tmp_path, monkeypatch)
    assert printed[0] == "200.0 paid back for a"
    assert any(said.startswith("charged 5.0 under ") for said in printed)


def test_the_page_on_stores_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run_page("stores.md", tmp_path, monkeypatch)
    assert printed[0].startswith("order-17 ")
    assert sorted(said.split()[0] for said in printed[1:]) == ["0", "1"]
    assert (tmp_path / "runs.db").exists()


def test_the_page_on_mcp_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    *answers, question, careful = run_page("mcp.md", tmp_path, monkeypatch)
    assert len(answers) == 3
    assert all("21:00:00+09:00" in said for said in answers)
    assert question.startswith("May `convert_time` be called with")
    assert "17:00:00+09:00" in careful or "16:00:00+09:00" in careful
    assert (tmp_path / "mcp.lock").exists()


def test_the_page_on_providers_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_page("providers.md", tmp_path, monkeypatch) == ["0 0", "Yes.", "oaks: see page 4"]


def test_the_page_on_telemetry_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with no_provider():
        assert run_page("telemetry.md", tmp_path, monkeypatch) == ["chat scripted", "invoke_agent Helper"]


def test_the_page_on_forks_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run_page("forks.md", tmp_path, monkeypatch)
    assert printed == ["the card was refused True", "True"]


def test_the_page_on_media_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run_page("media.md", tmp_path, monkeypatch)
    assert printed[:2] == ["It is on its way.", "Image(image/png, 8 bytes, 'cat.png')"]
    assert '"sha256":"' in printed[2]


def test_the_page_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_page("web.md", tmp_path, monkeypatch) == ["Guard"]
