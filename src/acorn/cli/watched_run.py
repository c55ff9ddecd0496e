"""A run that a command starts or resumes: its view, its saved file, its output and its exit code.

If the run pauses for human input, the command asks the user on the terminal. Without a terminal, the command prints the
command that resumes the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TextIO

from acorn import (
    AcornError,
    ModelError,
    ParseError,
    Paused,
    Request,
    Run,
    StreamChunk,
    Unfinished,
    approve,
    capture,
    deny,
)
from acorn._inside import Redactor, find_secrets, interrupt_on_sigterm, record_to_json, to_json_data, tree_entries
from acorn._inside.runs import resume_stream
from acorn.cli.errors import (
    CommandError,
    ExitCode,
    OutputClosedError,
    error_message,
    error_text,
    redactor,
    user_code_line,
)
from acorn.cli.options import AcornOptions
from acorn.cli.output import print_error, print_json, write, write_line
from acorn.cli.targets import Agent, choose_store, short_id, store_option
from acorn.cli.text import clean
from acorn.cli.views import View, open_view
from acorn.journal import Entry
from acorn.types import JsonObject, is_json_object

Chunks = Generator[StreamChunk, None, None]
Start = Callable[[], Chunks]
"""A function that starts or resumes a run and returns its stream chunks."""


STDOUT = "-"
"""The value of `--save` for standard output."""


class WatchedRun:
    """A run that a command starts or resumes, with the settings for its view, its output and its errors."""

    def __init__(self, agent: Agent, options: AcornOptions, out: TextIO, *, prints_text: bool = False) -> None:
        self.agent = agent
        self.options = options
        self.out = out
        self.prints_text = prints_text
        """Whether to print an output that is text without JSON quotes, as in a chat."""
        self.secrets = find_secrets(agent.model)
        self.runs: Sequence[Run] = ()
        if options.save not in (None, STDOUT):
            _check_save_path(options.save)
        self.prints_run = options.save == STDOUT
        """Whether to print the saved run to standard output instead of the output of the run."""

    @property
    def run(self) -> Run | None:
        return self.runs[0] if self.runs else None

    def perform(self, start: Start, past: Sequence[Entry] = ()) -> int:
        """Run the agent, print the output or the error, and return the exit code.

        `past` are the earlier journal entries of a resumed run.
        """
        while True:
            code = self._perform_once(start, past)
            paused = None if self.run is None else self.run.output
            if code != ExitCode.WAITING or not isinstance(paused, Paused) or not _has_terminal():
                return code
            try:
                answers = {request.id: self._ask(request) for request in paused.requests}
            except (EOFError, KeyboardInterrupt) as error:
                write(sys.stderr, "\n")
                self._print_requests(paused)
                return ExitCode.WAITING if isinstance(error, EOFError) else ExitCode.INTERRUPTED
            start = partial(resume_stream, self.agent, paused.run_id, answers)
            past = [] if self.run is None else [*tree_entries(self.run)]

    def _perform_once(self, start: Start, past: Sequence[Entry]) -> int:
        chunks, opened = self._start(start), open_view(self.agent, self.out, self._redact)
        failure: BaseException | None = None
        try:
            with capture() as self.runs, interrupt_on_sigterm() as self._signals, opened as view:
                view.add_past(past)
                self._watch(chunks, view)
        except BaseException as error:  # The provider, the model, the user's code or a signal can cause any exception.
            failure = error
        try:
            code = self._report_output() if failure is None else self._report_failure(failure)
        except CommandError as error:
            code = print_error(error, debug=self.options.debug)
        except OutputClosedError:
            code = ExitCode.SUCCESS
        save_code = self._save()
        return code or save_code

    def _start(self, start: Start) -> Chunks:
        try:
            return start()
        except AcornError as error:  # The declaration or the model name is wrong. No request was sent.
            hint = " On the command line, set the model with `--model`." if self.agent.model is None else ""
            raise CommandError(f"{error_message(error, self.secrets)}{hint}", secrets=self.secrets) from error
        except (Exception, SystemExit) as error:  # A property of the user's class can raise any exception.
            line = f"{user_code_line(error)}{error_text(error, self.secrets)}"
            raise CommandError(line, ExitCode.FAILED, self.secrets) from error

    def _watch(self, chunks: Chunks, view: View) -> None:
        try:
            # Closing the stream ends the run, so that its record and the saved file are complete.
            with closing(chunks):
                for chunk in chunks:
                    if chunk.run is not None and not self.runs:  # The stored run had ended before this command.
                        self.runs = [chunk.run]
                    view.add_chunk(chunk)
        except BaseException as error:
            view.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        output = None if self.run is None else self.run.output
        outcome = "waiting" if isinstance(output, Paused) else "finished"
        view.end("unfinished" if isinstance(output, Unfinished) else outcome)

    def _report_failure(self, error: BaseException) -> int:
        if isinstance(error, KeyboardInterrupt):
            self._print_resume_hint()
            self._print_report({"type": "KeyboardInterrupt", "message": "The run was interrupted."})
            return ExitCode.TERMINATED if self._signals else ExitCode.INTERRUPTED
        message = error_message(error, self.secrets)
        line = message if isinstance(error, AcornError) else error_text(error, self.secrets)
        if not isinstance(error, Exception):  # The agent's code called `sys.exit()`, for example in a tool.
            line = message = f"The agent's code ended the program: {line}"
        if isinstance(error, ModelError) and error.retryable:
            self._print_resume_hint()
        return self._fail(line, failure_report(error, message, redactor(self.secrets)), error)

    def _report_output(self) -> int:
        assert self.run is not None
        output = self.run.output
        if isinstance(output, Unfinished):
            name = type(self.agent).__name__
            tools = ", ".join(f"`{call.name}`" for call in output.tool_calls)
            message = (
                f"`{name}` did not finish: the model called {tools} in its single turn. "
                f"Set `max_steps` on `{name}` to allow more turns."
            )
            return self._fail(message, {"type": "Unfinished", "message": message, "content": output.content})
        if isinstance(output, Paused) and not _has_terminal():
            self._print_requests(output)
        self._print_report()
        if isinstance(output, Paused):
            return ExitCode.WAITING
        if not self.options.json and not self.prints_run:
            text = single_text(output) if self.prints_text else None
            if text is None:
                print_json(output, self.out)
            else:
                write(self.out, f"{clean(text)}\n")
        return ExitCode.SUCCESS

    def _fail(self, message: str, report: JsonObject, cause: BaseException | None = None) -> int:
        """Print the error of the run, also in the report for `--json`, and return the exit code."""
        error = CommandError(message, ExitCode.FAILED, self.secrets)
        code = print_error(error, debug=self.options.debug, cause=cause)
        self._print_report(report)
        return code

    def _print_report(self, error: JsonObject | None = None) -> None:
        if self.options.json and not self.prints_run:
            print_json(run_report(self.run, error), self.out)

    def _save(self) -> int:
        """Write the run to the place that `--save` names, and return the exit code."""
        if self.options.save is None or self.run is None:
            return ExitCode.SUCCESS
        text = f"{self.run.to_json()}\n"
        try:
            if self.prints_run:
                write(self.out, text)
            else:
                Path(self.options.save).write_bytes(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            print_error(_save_error(self.options.save, error.strerror or error), debug=False)
            return ExitCode.FAILED
        return ExitCode.SUCCESS

    # Runs that can be resumed

    @property
    def _resume_command(self) -> str:
        assert self.run is not None
        return f"acorn resume {quote(short_id(self.run.id))}{self._store_option}"

    @property
    def _store_option(self) -> str:
        return store_option(
            self.options.store or (self.agent.store if self.agent.store != choose_store(None) else None)
        )

    def _print_resume_hint(self) -> None:
        if self.agent.store is not None and self.run is not None:
            write_line(f"Stopped at step {self.run.steps}. To resume: {self._resume_command}")

    def _print_requests(self, paused: Paused) -> None:
        for request in paused.requests:
            write_line(f"? {request.id[:8]}  {clean(self._redact(request.question))}")
        if len(paused.requests) == 1:
            option = "--yes" if paused.request.kind == "approval" else "--answer VALUE"
            write_line(f"To answer: {self._resume_command} {option}")
        else:
            command = f"acorn answer REQUEST VALUE{self._store_option}"
            write_line(f"Answer each request with `{command}`. Then: {self._resume_command}")

    def _ask(self, request: Request) -> str | JsonObject:
        """Print a request for human input on the terminal and return the user's answer."""
        question = clean(self._redact(request.question))
        while request.kind == "approval":
            write(sys.stderr, f"{question} [y/N] ")
            word = _read_line().strip().lower()
            if word in ("y", "yes"):
                return approve()
            if word in ("", "n", "no"):
                write(sys.stderr, "Reason (optional): ")
                return deny(_read_line().strip() or None)
            write_line("Answer yes or no. After a no, you can give a reason.")
        choices = f" ({', '.join(request.choices)})" if request.choices else ""
        write(sys.stderr, f"{question}{clean(choices)} ")
        return _read_line()

    def _redact(self, text: str) -> str:
        return redactor(self.secrets).text(text)


def _check_save_path(file: str) -> None:
    """Raise `CommandError` if `--save` cannot write to a path, before the run starts."""
    path = Path(file)
    if path.is_dir() or file.endswith(os.sep):
        raise _save_error(file, "it is a directory. Use the path of a file.")
    if not path.parent.is_dir():
        raise _save_error(file, "its directory does not exist.")
    is_effective = os.access in os.supports_effective_ids
    if not os.access(path if path.exists() else path.parent, os.W_OK, effective_ids=is_effective):
        raise _save_error(file, "Permission denied")


def _save_error(file: str, reason: object) -> CommandError:
    return CommandError(f"Cannot write `--save {file}`: {reason}")


def single_text(output: object) -> str | None:
    """Return the text of an output that consists of one text or of one text field.

    Return None for any other output.
    """
    data: object = to_json_data(output)
    if is_json_object(data) and len(data) == 1:
        (data,) = data.values()
    return data if isinstance(data, str) else None


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _read_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


# Reports for `--json`


def run_report(run: Run | None, error: JsonObject | None = None) -> JsonObject:
    """Return the JSON object that `--json` prints for a run."""
    return {
        "output": None if run is None or error is not None or isinstance(run.output, Paused) else run.output,
        "usage": {} if run is None else record_to_json(run.usage),
        "cost": None if run is None else run.cost,
        "steps": 0 if run is None else run.steps,
        "stop_reason": "error" if run is None else run.stop_reason,
        "model": None if run is None else run.model,
        "seconds": 0.0 if run is None else round(run.seconds, 6),
        **({"error": error} if error is not None else {}),
        **({"run_id": run.id, "requests": run.output.requests} if run and isinstance(run.output, Paused) else {}),
    }


def failure_report(error: BaseException, message: str, redactor: Redactor) -> JsonObject:
    """Return the JSON object that `--json` prints for an error, with secrets redacted."""
    report: JsonObject = {"type": type(error).__name__, "message": message}
    if isinstance(error, ModelError):
        report |= {"provider": error.provider, "status": error.status, "retryable": error.retryable}
    if isinstance(error, ParseError):
        report |= {"attempts": error.attempts, "errors": error.errors, "raw_output": error.raw_output}
    redacted: JsonObject = redactor.data(report)
    return redacted
