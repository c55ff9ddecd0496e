"""Modules that the command line must reject."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from acorn import module


class Waiting(BaseModel):
    later: Later  # type: ignore[name-defined]  # noqa: F821


class NotThere(module):
    """Its input names a class that never comes."""

    model = "nobody/asked"
    initial_input = Waiting
    final_output = str


class SpoiltByInit(module):
    """Its `__init__` sets what is not allowed."""

    model = "nobody/asked"
    final_output = str

    def __init__(self, **overrides: Any) -> None:
        super().__init__(**overrides)
        self.temperature = 9
