"""The code of the guide runs as it is written, page by page, but for the model, which is a script here."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from acorn._spec import SETTINGS
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish

DOCS = Path(__file__).parents[2] / "docs"


def reply(request: ModelRequest) -> Reply:
    """Calls the first tool that fits, then finishes."""
    names = [each["function"]["name"] for each in request.tools]
    if request.messages[-1]["role"] == "tool":
        return finish(str(request.messages[-1]["content"]))
    return call("refund", order="a", amount=200) if "refund" in names else call("charge", amount=5)


@pytest.mark.parametrize("page", ["people.md"])
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        if "    store = " in block and "store" not in SETTINGS:
            continue
        exec(compile(re.sub(r'    model = ".*"', "    model = MODEL", block), page, "exec"), names)
    assert printed[0] == "200.0 paid back for a"
    assert any(said.startswith("charged 5.0 under ") for said in printed)
    assert os.listdir(tmp_path) == [] or "store" in SETTINGS
