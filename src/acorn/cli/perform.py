"""One run from its first chunk to its exit code: shown while it goes on, saved, and judged."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

from pydantic import BaseModel

from acorn import AcornError, Run, Unfinished, capture, listen, module
from acorn._secrets import secrets_in
from acorn._spec import Spec
from acorn.cli.ends import (
    FAILED,
    FINE,
    INTERRUPTED,
    TERMINATED,
    USAGE,
    CommandError,
    ReaderGoneError,
    complain,
    hidden,
    told,
    words_of,
)
from acorn.cli.load import whereabouts
from acorn.cli.ours import Ours
from acorn.cli.place import place_of
from acorn.cli.result import described, print_json, report
from acorn.cli.save import Saver
from acorn.cli.streams import descriptor_of
from acorn.cli.view import View, view_of

Agent = module[Any, Any]


class TerminatedError(BaseException):
    """A request to end came, as `kill` sends it."""


class Performance:
    """The run that a command was about."""

    def __init__(self, agent: Agent, spec: Spec, ours: Ours, out: TextIO) -> None:
        self.agent = agent
        self.spec = spec
        self.ours = ours
        self.out = out
        self.secrets = _secrets_of(agent.model)
        self.runs: Sequence[Run[Any]] = ()
        self.saver: Saver | None = None
        if ours.save is not None:
            place = place_of(ours.save, descriptor_of(out))
            self.saver = Saver(place, ours.save, lambda: self.run)

    @property
    def run(self) -> Run[Any] | None:
        return self.runs[0] if self.runs else None

    def play(self, given: BaseModel) -> int:
        """Run it and print what came of it; the exit code."""
        stream = self._start(given)
        failure: BaseException | None = None
        try:
            with (
                capture() as self.runs,
                _ended_in_order(),
                nullcontext() if self.saver is None else listen(self.saver.hear),
                view_of(self.agent, self.spec, self.out, self._hide) as view,
            ):
                self._watch(stream, view)
        except BaseException as error:  # the provider's, the model's, the user's own, or an end from outside
            failure = error
        return self._ended(failure, self._save())

    def _save(self) -> CommandError | None:
        """Keep the run as it ended; why it could not be. What it gave is told all the same."""
        try:
            return None if self.saver is None else self.saver.end()
        except KeyboardInterrupt:  # a pipe that nobody reads, say
            return CommandError(f"`{self.ours.save}` was not written: interrupted", INTERRUPTED)

    def _start(self, given: BaseModel) -> Any:
        shape = self.spec.input
        arguments = () if shape.is_empty else (shape.unwrap(given),)
        try:
            return self.agent.stream(*arguments)
        except AcornError as error:  # nothing was asked yet: the declaration or the model's name is wrong
            hint = " On the command line it is `--model`." if self.agent.model is None else ""
            raise self._error(f"{words_of(error, self.secrets)}{hint}", USAGE) from error
        except (Exception, SystemExit) as error:  # a property of the user's
            raise self._error(f"{whereabouts(error)}{told(error, self.secrets)}", FAILED) from error

    def _watch(self, stream: Any, view: View) -> None:
        how = "failed"
        if self.saver is not None:
            self.saver.begin()
        try:
            for chunk in stream:
                view.feed(chunk, self.run)
            how = "unfinished" if self.run is not None and isinstance(self.run.output, Unfinished) else "finished"
        except (KeyboardInterrupt, TerminatedError):
            how = "interrupted"
            raise
        finally:
            try:
                stream.close()  # ends the run, so that its record and what is saved are complete
            finally:
                view.end(how, self.run)

    def _ended(self, failure: BaseException | None, unsaved: CommandError | None) -> int:
        """Print the output or tell what went wrong; that it could not be saved is told in any case."""
        code = FAILED
        try:
            code = self._finished() if failure is None else self._failed(failure)
        except CommandError as error:
            code = complain(error)
        except ReaderGoneError:
            code = FINE
        if unsaved is not None:
            complain(unsaved)
        return code or (FINE if unsaved is None else unsaved.code)

    def _failed(self, error: BaseException) -> int:
        if isinstance(error, KeyboardInterrupt):
            self._print_error({"type": "KeyboardInterrupt", "message": "The run was interrupted."})
            return INTERRUPTED
        if isinstance(error, TerminatedError):
            self._print_error({"type": "Terminated", "message": "The run was ended by a signal."})
            return TERMINATED
        words = words_of(error, self.secrets) if isinstance(error, AcornError) else told(error, self.secrets)
        message = words_of(error, self.secrets)
        if not isinstance(error, Exception):
            # Neither a failure nor from outside: `sys.exit()` in a tool, say, which means us as little as the model.
            words = message = f"the agent's code ended the program: {words}"
        self._print_error(described(error, message, self._hide))
        raise self._error(words, FAILED) from error

    def _finished(self) -> int:
        run = self.run
        assert run is not None
        if isinstance(run.output, Unfinished):
            called = ", ".join(f"`{call.name}`" for call in run.output.tool_calls)
            message = (
                f"`{self.spec.owner}` did not finish: in a single turn the model called {called}. Set `max_steps` on "
                f"`{self.spec.owner}` to let it go on."
            )
            self._print_error({"type": "Unfinished", "message": message, "content": run.output.content})
            raise CommandError(message, FAILED)
        print_json(report(run) if self.ours.json else run.output, self.out)
        return FINE

    def _print_error(self, error: dict[str, Any]) -> None:
        """For machines; if it cannot be written, the line for people still comes."""
        if not self.ours.json:
            return
        try:
            print_json(report(self.run, error), self.out)
        except CommandError as unwritten:
            complain(unwritten)
        except ReaderGoneError:
            pass

    def _error(self, message: str, code: int) -> CommandError:
        return CommandError(message, code, debug=self.ours.debug, secrets=self.secrets)

    def _hide(self, text: str) -> str:
        return hidden(text, self.secrets)


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


def _secrets_of(model: Any) -> set[str]:
    """The keys that a model is asked with."""
    if isinstance(model, list | tuple):
        return {secret for each in model for secret in _secrets_of(each)}
    return secrets_in(model) if isinstance(model, dict) else set()
