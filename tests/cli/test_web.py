"""Tests of `acorn web` and `acorn serve`: errors are reported before the server listens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def web(*words: str, cwd: Path, script: str = "", command: str = "web") -> subprocess.CompletedProcess[str]:
    """Run the command in its own process; `script` runs before it."""
    source = Path(__file__).parents[2] / "src"
    code = f"import sys\n{script}\nfrom acorn.cli import main\nsys.exit(main([{command!r}, *sys.argv[1:]]))"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "empty").mkdir()
    return tmp_path


WRONG: list[tuple[list[str], str]] = [
    (["nothing.py"], "There is no file `nothing.py`"),
    (["nothing.json"], "There is no file `nothing.json`"),
    (["bad.json"], "`bad.json` is not a saved run"),
    (["empty"], "There is no `.json` file in `empty`"),
    (["agent.py", "bad.json"], "not both"),
    (["agent.py", "agent.py"], "`acorn web` accepts only one agent"),
    (["agent.py", "--store", "x.db", "--no-store"], "cannot be combined"),
    (["agent.py", "--store", "redis://x"], "`--store` must be a file path"),
    (["agent.py", "--store", "bad.json"], "bad.json is not a store of acorn"),
    (["agent.py", "--store", "nowhere/x.db"], "does not exist. Create the directory."),
    (["--store", "nothing.db"], "There is no store `nothing.db`"),
    (["agent.py", "--port", "99999"], "65535"),
    (["agent.py", "--host", "256.1.1.1", "--no-open"], "Cannot listen on 256.1.1.1"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_web_with_wrong_usage_exits_with_error(folder: Path, words: list[str], said: str) -> None:
    done = web(*words, cwd=folder)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "a bug in acorn" not in done.stderr
    assert "key=" not in done.stderr


@pytest.mark.parametrize(
    ("store", "said"), [("redis://x", "`--store` must be a file path"), ("bad.json", "is not a store of acorn")]
)
def test_serve_without_usable_store_exits_with_error(folder: Path, store: str, said: str) -> None:
    done = web("agent.py", "--store", store, "--port", "0", cwd=folder, command="serve")
    assert done.returncode in (1, 2)
    assert said in done.stderr


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_web_without_web_extra_exits_with_2_and_prints_install_command(folder: Path, missing: str) -> None:
    done = web("agent.py", cwd=folder, script=f"sys.modules[{missing!r}] = None")
    assert "pip install 'acorn-agents[web]'" in done.stderr
    assert done.returncode == 2


def test_show_html_without_web_extra_writes_html_file(folder: Path) -> None:
    (folder / "run.json").write_text(Greeter().run().to_json())
    script = "sys.modules['starlette'] = sys.modules['uvicorn'] = None"
    done = web("run.json", "--html", "out.html", cwd=folder, script=script, command="show")
    assert (done.returncode, done.stderr.strip()) == (0, "Wrote out.html."), done.stderr
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
    source = Path(__file__).parents[2] / "src"
    env = {**os.environ, "PYTHONPATH": str(source), "BROWSER": f"{sys.executable} {opener} %s"}
    done = subprocess.run(
        [sys.executable, "-m", "acorn", "web", "agent.py", "--port", "0"],
        cwd=folder, env=env, capture_output=True, text=True,
    )  # fmt: skip
    seen: list[Any] = json.loads(note.read_text())
    assert seen[0].startswith("file:")
    assert "key=" not in seen[0]
    assert "login?key=" in seen[1]
    assert seen[2] == 0o600
    assert "key=" in done.stderr
