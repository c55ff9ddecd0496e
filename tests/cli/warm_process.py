"""Processes that run an acorn command and start quickly, because they are copies of a process that has loaded acorn.

Many tests of a command need a process, because they use a terminal, signals or a second process, but they do not test
how Python loads acorn. `command_server.py` is the program of the copied process. `test_processes.py` starts Python for
each command.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.waiting import PATIENCE


class Command:
    """A running acorn command, with some of the methods of `subprocess.Popen`. It leads a process group of its own."""

    def __init__(
        self,
        words: Sequence[object],
        files: tuple[int, int, int],
        environment: Mapping[str, str],
        cwd: Path | None = None,
    ) -> None:
        request = {"words": [*map(str, words)], "environment": dict(environment), "cwd": str(cwd or Path.cwd())}
        reading, writing = os.pipe()
        socket.send_fds(server().channel, [json.dumps(request).encode()], [*files, writing])
        os.close(writing)
        self._status = os.fdopen(reading, encoding="ascii")
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float = PATIENCE) -> int:
        code = self._wait(timeout)
        assert code is not None, f"the command did not end in {timeout} s"
        return code

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def _wait(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            with self._status as status:
                self.returncode = int(status.readline())
        return self.returncode


class CapturedCommand(Command):
    """A command without input whose output is read when it has ended."""

    def __init__(self, words: Sequence[object], environment: Mapping[str, str]) -> None:
        self._out, self._err = (tempfile.TemporaryFile("w+") for _ in "oe")  # noqa: SIM115 - closed with the result
        with open(os.devnull) as nothing:
            super().__init__(words, (nothing.fileno(), self._out.fileno(), self._err.fileno()), environment)

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """Wait for the end of the command and return its output and its error output."""
        self.wait(timeout)
        with self._out as out, self._err as err:
            for file in (out, err):
                file.seek(0)
            return out.read(), err.read()


class Server:
    """The process to copy."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        with theirs:
            program = [sys.executable, str(Path(__file__).with_name("command_server.py")), str(theirs.fileno())]
            self._process = subprocess.Popen(program, pass_fds=[theirs.fileno()], start_new_session=True)

    def end(self) -> None:
        self.channel.close()
        self._process.wait(PATIENCE)


server = cache(Server)


def end_server() -> None:
    """End the process to copy if there is one."""
    if server.cache_info().currsize:
        server().end()
        server.cache_clear()
