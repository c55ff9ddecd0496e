"""Fixtures that run the command line inside the test process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.warm_process import end_server

from acorn.cli import main

AGENTS = Path(__file__).parent / "agents"


@dataclass(frozen=True)
class Ended:
    """The results of a command."""

    code: int
    out: str
    err: str

    @property
    def output(self) -> Any:
        return json.loads(self.out)


Acorn = Callable[..., Ended]


@pytest.fixture(scope="session", autouse=True)
def _end_of_server() -> Iterator[None]:
    yield
    end_server()


@pytest.fixture
def acorn(capsys: pytest.CaptureFixture[str]) -> Iterator[Acorn]:
    """`acorn(...)` runs a command; its imports are removed afterwards."""
    path, modules = list(sys.path), set(sys.modules)

    def run(*words: object) -> Ended:
        capsys.readouterr()
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    yield run
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(AGENTS) in str(getattr(sys.modules[name], "__file__", "")) or "/pytest-" in str(
            getattr(sys.modules[name], "__file__", "")
        ):
            del sys.modules[name]
