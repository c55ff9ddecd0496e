"""One run from its first chunk to its exit code: shown while it goes on, saved, and judged."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import Any, Protocol

from pydantic import BaseModel
from rich.console import Console

from acorn import AcornError, Run, StreamChunk, Unfinished, capture, module
from acorn._spec import Spec
from acorn.cli.ends import (
    FAILED,
    FINE,
    INTERRUPTED,
    TERMINATED,
    CommandError,
    ReaderGoneError,
    leave_quietly,
    tell,
    told,
)
from acorn.cli.live import LiveView
from acorn.cli.parse import Ours
from acorn.cli.plain import PlainView
from acorn.cli.result import described, print_json, report
from acorn.cli.save import Saver

Agent = module[Any, Any]


class View(Protocol):
    """Where a run is seen while it goes on."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *_: object) -> None: ...
    def feed(self, chunk: StreamChunk[Any], run: Run[Any] | None) -> None: ...
    def end(self, how: str, run: Run[Any] | None) -> None: ...


class Performance:
    """The run that a command was about."""

    def __init__(self, agent: Agent, spec: Spec, ours: Ours) -> None:
        self.agent = agent
        self.spec = spec
        self.ours = ours
        self.saver = None if ours.save is None else Saver(ours.save)
        self.run: Run[Any] | None = None
        self.unsaved: CommandError | None = None
        """Why the file could not be written, the last time it was tried."""

    def play(self, given: BaseModel) -> int:
        """Run it and print what came of it; the exit code."""
        stream = self._start(given)
        try:
            # Standard output is for the output alone, whatever the user's tools print.
            with capture() as runs, _ended_in_order(), _view(self.agent) as view, redirect_stdout(sys.stderr):
                self._watch(stream, runs, view)
        except KeyboardInterrupt:
            tell("interrupted")
            return INTERRUPTED
        except ReaderGoneError:
            leave_quietly()
            return FAILED
        except Exception as error:  # the provider's, the model's or the user's own
            self._tell_failure(error)
        return self._finished()

    def _start(self, given: BaseModel) -> Any:
        shape = self.spec.input
        arguments = () if shape.is_empty else (shape.unwrap(given),)
        try:
            return self.agent.stream(*arguments)
        except AcornError as error:  # nothing was asked yet: the declaration or the model's name is wrong
            hint = " On the command line it is `--model`." if self.agent.model is None else ""
            raise CommandError(f"{error}{hint}", debug=self.ours.debug) from error

    def _watch(self, stream: Any, runs: list[Run[Any]], view: View) -> None:
        how = "interrupted"
        try:
            for chunk in stream:
                self.run = runs[0] if runs else None
                view.feed(chunk, self.run)
                if chunk.done or chunk.tool_result is not None:
                    self._save()
            how = "unfinished" if self.run is not None and isinstance(self.run.output, Unfinished) else "finished"
        except ReaderGoneError:
            how = ""
            raise
        except Exception:
            how = "failed"
            raise
        finally:
            self.run = runs[0] if runs else None
            try:
                stream.close()  # ends the run, so that its record and what is saved are complete
            finally:
                self._save()
                if how:
                    view.end(how, self.run)

    def _save(self) -> None:
        """Keep what has happened so far; a disk that is full must not cost the run."""
        if self.saver is None:
            return
        try:
            self.saver.save(self.run)
            self.unsaved = None
        except CommandError as error:
            self.unsaved = error

    def _tell_failure(self, error: Exception) -> None:
        if self.ours.json:
            print_json(report(self.run, described(error)))
        words = str(error) if isinstance(error, AcornError) else told(error)
        raise CommandError(words, FAILED, debug=self.ours.debug) from error

    def _finished(self) -> int:
        run = self.run
        assert run is not None
        if isinstance(run.output, Unfinished):
            called = ", ".join(f"`{call.name}`" for call in run.output.tool_calls)
            message = (
                f"`{self.spec.owner}` did not finish: in a single turn the model called {called}. Set `max_steps` on "
                f"`{self.spec.owner}` to let it go on."
            )
            if self.ours.json:
                print_json(report(run, {"type": "Unfinished", "message": message, "content": run.output.content}))
            raise CommandError(message, FAILED)
        print_json(report(run) if self.ours.json else run.output)
        if self.unsaved is not None:
            raise self.unsaved
        return FINE


def _view(agent: Agent) -> View:
    name, model = type(agent).__name__, _model_name(agent.model)
    console = Console(file=sys.stderr)
    if sys.stderr.isatty() and console.is_interactive:
        return LiveView(name, model, console, hides_answer=sys.stdout.isatty())
    return PlainView(name, model)


@contextmanager
def _ended_in_order() -> Generator[None]:
    """A request to end, as `kill` sends it, ends the run like Ctrl-C: saved, and the terminal as it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _model_name(model: Any) -> str:
    """The model as the view names it; a dict may hold a key, so only its name is shown."""
    if isinstance(model, dict):
        return str(model.get("model", model.get("id", "")))
    if isinstance(model, list | tuple):
        return ", ".join(map(_model_name, model))
    return model if isinstance(model, str) else str(getattr(model, "name", type(model).__name__))
