"""Make a tool call with the lowest and the highest installable version of LiteLLM.

This creates two virtual environments and installs acorn in each, so it needs a package index: `make litellm-range`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOWEST = "litellm==1.84.0"

# Executed in each environment; `tests` is found in the working directory, acorn is the installed one.
TOOL_CALL = """
import asyncio
from importlib.metadata import version

from acorn import module, tool
from acorn.testing import call, finish
from tests.loopback import Fault, Loopback

@tool
def add(left: int, right: int) -> int:
    return left + right

class Adder(module):
    "You add numbers."
    final_output = int
    tools = [add]
    max_steps = 2
    cache = True

for protocol in ("openai", "anthropic"):
    for way in (lambda agent: agent(), lambda agent: asyncio.run(agent.acall())):
        script = [Fault(status=503), call("add", left=2, right=3), finish(result=5)]
        with Loopback(script) as server:
            assert way(Adder(model=getattr(server, protocol)())) == 5
            assert len(server.requests) == 3
            assert "5" in str(server.requests[2].body["messages"][-1])
print("litellm", version("litellm"), "calls tools")
"""


def attempt(name: str, *constraints: str) -> bool:
    """Install acorn in a new environment, make the call there, and return whether it worked."""
    with tempfile.TemporaryDirectory(prefix="acorn-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT), *constraints]
        for what, command in (("install", install), ("run", [python, "-W", "error", "-c", TOOL_CALL])):
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode or (what == "run" and done.stderr):
                print(f"{name}: cannot {what}\n{done.stdout}{done.stderr}")  # noqa: T201
                return False
        print(f"{name}: {done.stdout.strip()}")  # noqa: T201
        return True


if __name__ == "__main__":
    outcomes = [attempt("lowest", LOWEST), attempt("highest")]
    sys.exit(0 if all(outcomes) else 1)
