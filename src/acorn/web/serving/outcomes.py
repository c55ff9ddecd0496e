"""What became of a run, where it is no answer."""

from __future__ import annotations

from typing import Any

from acorn import Run, Unfinished
from acorn.web.serving.failures import WrongError


def check_finished(run: Run[Any]) -> None:
    """Refuse a run that has no answer though nothing failed."""
    if isinstance(run.output, Unfinished):
        called = ", ".join(f"`{call.name}`" for call in run.output.tool_calls)
        raise WrongError(
            500, "unfinished", f"The model called {called} instead of finishing; the agent needs `max_steps` for that."
        )
