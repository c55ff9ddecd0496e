"""Tests of the documentation page about the service: its agent is served, and its `curl` commands run as written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.waiting import PATIENCE
from tests.web.serve.server import APPROVER, KEY, ROOT, serving

PAGE = (ROOT / "docs" / "guides" / "serve.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)

MODEL = """
from acorn.testing import ScriptedModel, call, finish

def reply(request):
    last = request.messages[-1]
    if last["role"] == "tool":
        return finish(answer=last["content"])
    if "Which" in str(last["content"]):
        return call("ask_human", question="Which one?")
    return finish(answer="Guido van Rossum.")

MODEL = ScriptedModel(reply, chunk_size=1000)
"""


def test_curl_commands_of_serve_guide_run_as_written(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no `curl` here")
    code = next(text for language, text in BLOCKS if language == "python")
    agent = tmp_path / "agent.py"
    agent.write_text(MODEL + re.sub(r'    model = ".*"', "    model = MODEL", code))
    run = ""
    count = 0
    with serving(tmp_path, target=str(agent), ACORN_SERVE_APPROVER_KEYS=f"ann={APPROVER}") as served:
        for (language, text), (_, shown) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
            if language != "sh" or not text.startswith("curl"):
                continue
            line = text.replace("http://127.0.0.1:2679", served.address)
            ended = subprocess.run(
                ["sh", "-c", line.replace("curl ", "curl -sS ", 1)],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                env={"PATH": "/usr/bin:/bin", "KEY": KEY, "APPROVER_KEY": APPROVER, "RUN": run, "no_proxy": "*"},
            )
            assert ended.returncode == 0, ended.stderr
            wanted = ".*".join(map(re.escape, shown.strip().split("...")))
            assert re.match(wanted, ended.stdout, flags=re.DOTALL), ended.stdout
            count += 1
            if '"run_id":' in ended.stdout and '"requests"' in ended.stdout:
                run = json.loads(ended.stdout)["run_id"]
    assert count > 4
    assert run


def test_python_code_of_serve_guide_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    names = {"__name__": "__main__", "print": lambda *said: printed.append(" ".join(map(str, said)))}
    for language, text in BLOCKS:
        if language == "python":
            code = compile(text, "serve.md", "exec", dont_inherit=True)
            if not text.startswith("# not run: "):
                exec(code, names)
    assert printed == ["Starlette"]
