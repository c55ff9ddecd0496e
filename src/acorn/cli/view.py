"""Which view a run gets: a live one on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from rich.console import Console

from acorn import Run, StreamChunk, listen, module
from acorn._spec import Spec
from acorn.cli.above import Above
from acorn.cli.live import LiveView
from acorn.cli.plain import PlainView


class View(Protocol):
    """Where a run is seen while it goes on; it listens to what happens, and is fed what is still coming in."""

    def feed(self, chunk: StreamChunk[Any], run: Run[Any] | None) -> None: ...
    def end(self, how: str, run: Run[Any] | None) -> None: ...


@contextmanager
def view_of(agent: module[Any, Any], spec: Spec, out: TextIO, hide: Callable[[str], str]) -> Generator[View]:
    """The view of one run, as long as the run goes on."""
    name, model = type(agent).__name__, _model_name(agent.model)
    if not (sys.stderr.isatty() and Console(file=sys.stderr).is_interactive):
        with PlainView(name, model, max_steps=spec.max_steps, hide=hide) as view, listen(view.hear):
            yield view
        return
    above = Above(sys.stderr.encoding)
    console = Console(file=above.terminal)
    with LiveView(name, model, console, hides_answer=out.isatty(), hide=hide) as live:
        above.begin(live.show_above)
        try:
            with listen(live.hear):
                yield live
        finally:
            above.end()


def _model_name(model: Any) -> str:
    """The model as the view names it; a dict may hold a key, so only its name is shown."""
    if isinstance(model, dict):
        return str(model.get("model", model.get("id", "")))
    if isinstance(model, list | tuple):
        return ", ".join(map(_model_name, model))
    return model if isinstance(model, str) else str(getattr(model, "name", type(model).__name__))
