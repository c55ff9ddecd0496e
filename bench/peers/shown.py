"""Run the programs of the page that compares frameworks, unchanged."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "why.md"
TABS = {
    "acorn_native": "acorn",
    "pydantic_ai": "pydantic-ai",
    "langgraph": "LangGraph",
    "dspy": "DSPy",
    "smolagents": "smolagents",
}
"""The contenders that have one, and where it stands."""


def programs() -> dict[str, str]:
    """Return the program of each contender."""
    text = PAGE.read_text(encoding="utf-8")
    tabs = re.findall(r'^=== "([^"]+)"\n\n    ```python\n(.*?)^    ```$', text, flags=re.DOTALL | re.MULTILINE)
    by_title = {title: textwrap.dedent(code) for title, code in tabs}
    return {name: by_title[title] for name, title in TABS.items()}


def program(name: str, url: str, shared: dict[str, Any]) -> Callable[[], Any]:
    """Return the code that runs a program against the server; `shared` is the code above all programs on the page."""
    code = compile(programs()[name], str(PAGE), "exec", dont_inherit=True)

    def run() -> Any:
        os.environ |= {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url}
        names = {"__name__": "page", **shared}
        exec(code, names)
        return names["result"]

    return run
