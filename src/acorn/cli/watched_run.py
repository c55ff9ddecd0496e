"""One run that a command is about: watched, saved, judged, and ended with an exit code.

A run that waits for people asks them there and then where there is a terminal, and says otherwise how to go on.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, TextIO

from acorn import AcornError, ModelError, ParseError, Paused, Request, Run, Unfinished, capture, listen
from acorn._inside import AgentDescription, resume_stream, secrets_of_model, to_json_data
from acorn.cli.options import OwnOptions
from acorn.cli.output import (
    FAILED,
    FINE,
    INTERRUPTED,
    TERMINATED,
    USAGE,
    WAITING,
    CommandError,
    OutputClosedError,
    clean,
    error_text,
    line_reached,
    message_of,
    print_error,
    print_json,
    without_keys,
    write,
    write_line,
)
from acorn.cli.save_target import Saver, save_target
from acorn.cli.streams import descriptor_of
from acorn.cli.targets import Agent, named_store, short
from acorn.cli.views import View, view_of
from acorn.journal import Entry
from acorn.types import JsonObject

Start = Callable[[], Any]
"""Begins the run, or goes on with it; the chunks."""


class TerminatedError(BaseException):
    """A request to end came, as `kill` sends it."""


class WatchedRun:
    """The run that a command is about."""

    def __init__(
        self, agent: Agent, spec: AgentDescription, own: OwnOptions, out: TextIO, *, prints_text: bool = False
    ) -> None:
        self.agent = agent
        self.spec = spec
        self.own = own
        self.out = out
        self.prints_text = prints_text
        """Whether an output that is text is printed as it is, for people."""
        self.secrets = secrets_of_model(agent.model)
        self.runs: Sequence[Run] = ()
        self.saver: Saver | None = None
        if own.save is not None:
            target = save_target(own.save, descriptor_of(out))
            self.saver = Saver(target, own.save, lambda: self.run)

    @property
    def run(self) -> Run | None:
        return self.runs[0] if self.runs else None

    def perform(self, start: Start, past: Sequence[Entry] = ()) -> int:
        """Run it and print what came of it; the exit code. `past` is what happened in it before."""
        were_shown = False
        while True:
            code = self._go(start, past, were_shown=were_shown)
            paused = None if self.run is None else self.run.output
            if code != WAITING or not isinstance(paused, Paused) or not _can_ask():
                return code
            try:
                answers = {request.id: self._asked(request) for request in paused.requests}
            except (EOFError, KeyboardInterrupt) as error:
                write(sys.stderr, "\n")
                self._say_what_is_asked(paused)
                return WAITING if isinstance(error, EOFError) else INTERRUPTED
            start = partial(resume_stream, self.agent, paused.run_id, answers)
            past, were_shown = _entries_of(self.run), True

    def _go(self, start: Start, past: Sequence[Entry], *, were_shown: bool) -> int:
        stream = self._start(start)
        failure: BaseException | None = None
        try:
            with (
                capture() as self.runs,
                _ended_in_order(),
                nullcontext() if self.saver is None else listen(self.saver.hear),
                view_of(self.agent, self.spec, self.out, self._hide) as view,
            ):
                view.recall(past, were_shown=were_shown)
                self._watch(stream, view)
        except BaseException as error:  # the provider's, the model's, the user's own, or an end from outside
            failure = error
        return self._ended(failure, self._save())

    def _save(self) -> CommandError | None:
        """Keep the run as it ended; why it could not be. Its output is printed all the same."""
        try:
            return None if self.saver is None else self.saver.end()
        except KeyboardInterrupt:  # a pipe that nobody reads, say
            return CommandError(f"`{self.own.save}` was not written: interrupted", INTERRUPTED)

    def _start(self, start: Start) -> Any:
        try:
            return start()
        except AcornError as error:  # nothing was asked yet: the declaration or the model's name is wrong
            hint = " On the command line it is `--model`." if self.agent.model is None else ""
            raise self._error(f"{message_of(error, self.secrets)}{hint}", USAGE) from error
        except (Exception, SystemExit) as error:  # a property of the user's
            raise self._error(f"{line_reached(error)}{error_text(error, self.secrets)}", FAILED) from error

    def _watch(self, stream: Any, view: View) -> None:
        how = "failed"
        if self.saver is not None:
            self.saver.begin()
        try:
            for chunk in stream:
                if chunk.run is not None and not self.runs:  # it had ended before
                    self.runs = [chunk.run]
                view.feed(chunk, self.run)
            output = None if self.run is None else self.run.output
            how = (
                "unfinished"
                if isinstance(output, Unfinished)
                else "waiting"
                if isinstance(output, Paused)
                else "finished"
            )
        except (KeyboardInterrupt, TerminatedError):
            how = "interrupted"
            raise
        finally:
            try:
                stream.close()  # ends the run, so that its record and what is saved are complete
            finally:
                view.end(how, self.run)

    def _ended(self, failure: BaseException | None, unsaved: CommandError | None) -> int:
        """Print the output or say what went wrong; that it could not be saved is said in any case."""
        code = FAILED
        try:
            code = self._finished() if failure is None else self._failed(failure)
        except CommandError as error:
            code = print_error(error)
        except OutputClosedError:
            code = FINE
        if unsaved is not None:
            print_error(unsaved)
        return code or (FINE if unsaved is None else unsaved.code)

    def _failed(self, error: BaseException) -> int:
        if isinstance(error, KeyboardInterrupt):
            self._print_error({"type": "KeyboardInterrupt", "message": "The run was interrupted."})
            self._say_how_to_go_on()
            return INTERRUPTED
        if isinstance(error, TerminatedError):
            self._print_error({"type": "Terminated", "message": "The run was ended by a signal."})
            self._say_how_to_go_on()
            return TERMINATED
        words = message_of(error, self.secrets) if isinstance(error, AcornError) else error_text(error, self.secrets)
        message = message_of(error, self.secrets)
        if not isinstance(error, Exception):
            # Neither a failure nor from outside: `sys.exit()` in a tool, say, which means us as little as the model.
            words = message = f"the agent's code ended the program: {words}"
        self._print_error(described(error, message, self._hide))
        if isinstance(error, ModelError) and error.retryable:
            self._say_how_to_go_on()
        raise self._error(words, FAILED) from error

    def _finished(self) -> int:
        run = self.run
        assert run is not None
        if isinstance(run.output, Unfinished):
            called = ", ".join(f"`{call.name}`" for call in run.output.tool_calls)
            message = (
                f"`{self.spec.name}` did not finish: in a single turn the model called {called}. Set `max_steps` on "
                f"`{self.spec.name}` to let it go on."
            )
            self._print_error({"type": "Unfinished", "message": message, "content": run.output.content})
            raise CommandError(message, FAILED)
        if isinstance(run.output, Paused):
            if self.own.json:
                print_json(report(run), self.out)
            if not _can_ask():
                self._say_what_is_asked(run.output)
            return WAITING
        text = text_in(run.output) if self.prints_text else None
        if text is None:
            print_json(report(run) if self.own.json else run.output, self.out)
        else:
            write(self.out, f"{clean(text)}\n")
        return FINE

    # Runs that can go on

    @property
    def _command(self) -> str:
        assert self.run is not None
        named = self.own.store or (self.agent.store if self.agent.store != named_store(None) else None)
        where = f" --store {quote(str(named))}" if isinstance(named, str | Path) else ""
        return f"acorn resume {quote(short(self.run.id))}{where}"

    def _say_how_to_go_on(self) -> None:
        if self.agent.store is not None and self.run is not None:
            write_line(f"stopped at step {self.run.steps}; go on with: {self._command}")

    def _say_what_is_asked(self, paused: Paused) -> None:
        for request in paused.requests:
            write_line(f"? {request.id[:8]}  {clean(self._hide(request.question))}")
        if len(paused.requests) == 1:
            how = "--yes" if paused.request.kind == "approval" else "--answer VALUE"
            write_line(f"answer with: {self._command} {how}")
        else:
            write_line(f"answer each with `acorn answer REQUEST VALUE`, then: {self._command}")

    def _asked(self, request: Request) -> Any:
        """What somebody at the terminal says."""
        question = clean(self._hide(request.question))
        if request.kind == "approval":
            write(sys.stderr, f"{question} [y/N, or why not] ")
            said = _line().strip()
            return True if said.lower() in ("y", "yes") else False if said.lower() in ("", "n", "no") else said
        choices = f" ({', '.join(request.choices)})" if request.choices else ""
        write(sys.stderr, f"{question}{clean(choices)} ")
        return _line()

    def _print_error(self, error: JsonObject) -> None:
        """For machines; if it cannot be written, the line for people still comes."""
        if not self.own.json:
            return
        try:
            print_json(report(self.run, error), self.out)
        except CommandError as unwritten:
            print_error(unwritten)
        except OutputClosedError:
            pass

    def _error(self, message: str, code: int) -> CommandError:
        return CommandError(message, code, debug=self.own.debug, secrets=self.secrets)

    def _hide(self, text: str) -> str:
        return without_keys(text, self.secrets)


def _entries_of(run: Run | None) -> list[Entry]:
    """What has happened in a run and its branches, each behind its parent's."""
    if run is None:
        return []
    return [*run.journal.entries, *(entry for branch in run.branches for entry in _entries_of(branch))]


def text_in(output: Any) -> str | None:
    """The text that an output is, or that its one field holds."""
    plain = to_json_data(output)
    if isinstance(plain, dict) and len(plain) == 1:
        (plain,) = plain.values()
    return plain if isinstance(plain, str) else None


def _can_ask() -> bool:
    """Whether somebody sits at a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _line() -> str:
    line = sys.stdin.readline()
    if not line:  # the end of what is typed
        raise EOFError
    return line.rstrip("\n")


@contextmanager
def _ended_in_order() -> Generator[None]:
    """A request to end, as `kill` sends it, ends the run like Ctrl-C: saved, and the terminal as it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def report(run: Run | None, error: JsonObject | None = None) -> JsonObject:
    """Everything about a run, for `--json`."""
    usage = {} if run is None else {name: getattr(run.usage, name) for name in run.usage.__slots__}
    return {
        "output": None if run is None or error is not None or isinstance(run.output, Paused) else run.output,
        "usage": usage,
        "cost": None if run is None else run.cost,
        "steps": 0 if run is None else run.steps,
        "stop_reason": "error" if run is None else run.stop_reason,
        "model": None if run is None else run.model,
        "seconds": 0.0 if run is None else round(run.seconds, 6),
        **({"error": error} if error is not None else {}),
        **({"run_id": run.id, "requests": run.output.requests} if run and isinstance(run.output, Paused) else {}),
    }


def described(error: BaseException, message: str, hide: Callable[[str], str]) -> JsonObject:
    """A failure for machines."""
    found: JsonObject = {"type": type(error).__name__, "message": message}
    if isinstance(error, ModelError):
        found |= {"provider": error.provider, "status": error.status, "retryable": error.retryable}
    if isinstance(error, ParseError):
        found |= {"attempts": error.attempts, "errors": error.errors, "raw_output": error.raw_output}
    return {key: veiled(hide, value) for key, value in found.items()}


def veiled(hide: Callable[[str], str], value: Any) -> Any:
    """Plain data with every text in it cleaned of keys."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return {key: veiled(hide, item) for key, item in value.items()}
    return [veiled(hide, item) for item in value] if isinstance(value, list) else value
