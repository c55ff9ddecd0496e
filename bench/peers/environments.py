"""The list of contenders, and the creation of their virtual environments in `.bench/`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".bench"


@dataclass(frozen=True)
class Contender:
    """A framework or library that takes part in the comparison."""

    name: str
    """The name of its file in `contenders/`, without the suffix."""
    title: str
    requires: tuple[str, ...] = ()
    """The packages that pip installs. A contender without packages runs in the environment of acorn."""
    ours: bool = False


CONTENDERS = [
    Contender("acorn_native", "acorn, native lane", ours=True),
    Contender("acorn_litellm", "acorn, LiteLLM's lane", ours=True),
    Contender("raw_httpx", "raw httpx"),
    Contender("raw_aiohttp", "raw aiohttp"),
    Contender("raw_litellm", "raw LiteLLM"),
    Contender("openai_sdk", "openai SDK", ("openai[aiohttp]",)),
    Contender("pydantic_ai", "pydantic-ai", ("pydantic-ai-slim[openai]",)),
    Contender("langgraph", "LangGraph", ("langgraph", "langchain", "langchain-openai")),
    Contender("openai_agents", "openai-agents", ("openai-agents",)),
    Contender("smolagents", "smolagents", ("smolagents[openai]",)),
    Contender("agno", "agno", ("agno", "openai")),
    Contender("instructor", "instructor", ("instructor",)),
    Contender("dspy", "DSPy", ("dspy",)),
    Contender("other_acorn", "the other acorn", ("acorn", "litellm!=1.82.7,!=1.82.8")),
]


class MissingPeerError(Exception):
    """Raised if pip cannot install the packages of a contender."""


def python_of(contender: Contender) -> str:
    """Return the path of a contender's Python interpreter.

    The function creates the virtual environment if it is missing or if the required packages have changed.
    """
    if not contender.requires:
        return sys.executable
    home = CACHE / contender.name
    python = home / "bin" / "python"
    stamp = home / "requires.txt"
    wanted = "\n".join(contender.requires)
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *contender.requires]
        done = subprocess.run(install, capture_output=True, text=True)
        (home / "pip.log").write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode:
            raise MissingPeerError("cannot be installed")
        stamp.write_text(wanted, encoding="utf-8")
    return str(python)


def variables(contender: Contender) -> dict[str, str]:
    """Return the environment variables for a contender's process, without API keys, proxies and tracing."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "TMPDIR"}}
    folders = [str(ROOT / "bench"), *([str(ROOT / "src")] if contender.ours else [])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(folders),
        "OPENAI_API_KEY": "sk-bench",
        "OTEL_SDK_DISABLED": "true",
        "DO_NOT_TRACK": "1",
    }
