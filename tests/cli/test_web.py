"""Tests of `acorn web` and `acorn serve`: errors are reported before the server listens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.cli.conftest import Acorn
from tests.waiting import PATIENCE

from acorn import module
from acorn.testing import ScriptedModel, finish

AGENT = '''
from acorn import module
class Desk(module[str, str]):
    """Help."""
    model = "openai/gpt-4o"
'''


class Greeter(module[None, str]):
    """Greet."""

    model = ScriptedModel([finish("hello there")])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRONG: list[tuple[list[str], str]] = [
    (["web", "nothing.py"], "There is no file `nothing.py`"),
    (["web", "nothing.json"], "There is no file `nothing.json`"),
    (["web", "bad.json"], "`bad.json` is not a saved run"),
    (["web", "empty"], "There is no `.json` file in `empty`"),
    (["web", "agent.py", "bad.json"], "not both"),
    (["web", "agent.py", "agent.py"], "`acorn web` accepts only one agent"),
    (["web", "agent.py", "--store", "x.db", "--no-store"], "cannot be combined"),
    (["web", "agent.py", "--store", "redis://x"], "`--store` must be a file path"),
    (["web", "agent.py", "--store", "bad.json"], "bad.json is not a store of acorn"),
    (["web", "agent.py", "--store", "nowhere/x.db"], "does not exist. Create the directory."),
    (["web", "--store", "nothing.db"], "There is no store `nothing.db`"),
    (["web", "agent.py", "--port", "99999"], "65535"),
    (["web", "agent.py", "--host", "256.1.1.1", "--no-open"], "Cannot listen on 256.1.1.1"),
    (["serve", "agent.py", "--store", "redis://x", "--port", "0"], "`--store` must be a file path"),
    (["serve", "agent.py", "--store", "bad.json", "--port", "0"], "is not a store of acorn"),
]


@pytest.mark.usefixtures("folder")
def test_web_and_serve_with_wrong_usage_exit_with_error(acorn: Acorn) -> None:
    for words, said in WRONG:
        with case(*words):
            ended = acorn(*words)
            assert ended.code in (1, 2)
            assert said in ended.err
            assert "Traceback" not in ended.err
            assert "a bug in acorn" not in ended.err
            assert "key=" not in ended.err


WITHOUT_EXTRA = """
import sys
from acorn.cli import main
for missing in ("uvicorn", "starlette"):
    sys.modules[missing] = None
    print(main(["web", "agent.py"]))
print(main(["show", "run.json", "--html", "out.html"]))
"""


def test_web_without_web_extra_exits_with_2_and_show_html_writes_file(folder: Path) -> None:
    (folder / "run.json").write_text(Greeter().run().to_json())
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRA], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.split() == ["2", "2", "0"], done.stderr
    assert done.stderr.count("pip install 'acorn-agents[web]'") == 2
    assert done.stderr.splitlines()[-1] == "Wrote out.html."
    assert "hello there" in (folder / "out.html").read_text()


def test_browser_opens_private_file_instead_of_url_with_login_key(folder: Path) -> None:
    """The browser is a program that records its arguments and ends the server."""
    note = folder / "note.json"
    opener = folder / "opener.py"
    opener.write_text(
        f"import json, os, signal, sys, urllib.request, urllib.parse\n"
        f"path = urllib.request.url2pathname(urllib.parse.urlsplit(sys.argv[1]).path)\n"
        f"seen = [sys.argv[1], open(path).read(), os.stat(path).st_mode & 0o777]\n"
        f"json.dump(seen, open({str(note)!r}, 'w'))\n"
        f"os.kill(os.getppid(), signal.SIGTERM)\n"
    )
    env = {**os.environ, "BROWSER": f"{sys.executable} {opener} %s"}
    command = [sys.executable, "-m", "acorn", "web", "agent.py", "--port", "0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    seen: list[Any] = json.loads(note.read_text())
    assert seen[0].startswith("file:")
    assert "key=" not in seen[0]
    assert "login?key=" in seen[1]
    assert seen[2] == 0o600
    assert "key=" in done.stderr
