"""Load the programs on the comparison page `docs/why.md`, so that the benchmark can run them unchanged."""

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
"""A dict that maps contender names to the titles of the tabs with their programs."""


def programs() -> dict[str, str]:
    """Return a dict that maps contender names to the code of their programs."""
    text = PAGE.read_text(encoding="utf-8")
    tabs = re.findall(r'^=== "([^"]+)"\n\n    ```python\n(.*?)^    ```$', text, flags=re.DOTALL | re.MULTILINE)
    by_title = {title: textwrap.dedent(code) for title, code in tabs}
    return {name: by_title[title] for name, title in TABS.items()}


def program(name: str, url: str, shared: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that runs a program of the page against the server at `url`.

    `shared` contains the names that the page defines above the programs.
    """
    code = compile(programs()[name], str(PAGE), "exec", dont_inherit=True)

    def run() -> Any:
        os.environ |= {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url}
        names = {"__name__": "page", **shared}
        exec(code, names)
        return names["result"]

    return run
