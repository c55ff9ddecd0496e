"""The program of a process that has loaded acorn and forks for each command that a test starts.

`warm_process.py` starts the program and sends the requests through a socket.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

LOADED = ("acorn.cli.app", "acorn.testing", "acorn.stores.sqlite", "asyncio", "rich.live", "rich.tree")


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request, and return the request in the new process."""
    while True:
        data, files, _, _ = socket.recv_fds(channel, 1_000_000, 4)
        with suppress(ChildProcessError):
            while os.waitpid(-1, 0 if not data else os.WNOHANG)[0]:
                pass
        if not data:
            os._exit(0)
        if os.fork() == 0:  # This process waits for the command, because the test process is not its parent.
            channel.close()
            *standard, status = files
            command = os.fork()
            if command == 0:
                os.close(status)
                return json.loads(data), standard
            for file in standard:
                os.close(file)
            os.write(status, f"{command}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
            os.write(status, f"{code}\n".encode())
            os._exit(0)
        for file in files:
            os.close(file)


def run(request: dict[str, Any], files: list[int]) -> None:
    """Do what `python -m acorn` does after its imports."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = open(1, "w", encoding=encoding, errors=errors or None, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
    sys.argv = ["acorn", *request["words"]]
    sys.path[0] = request["cwd"]
    sys.exit(importlib.import_module("acorn.cli").main())


if __name__ == "__main__":
    for _name in LOADED:
        importlib.import_module(_name)
    gc.freeze()  # A copy that searches no garbage in the loaded code shares its memory.
    run(*serve(socket.socket(fileno=int(sys.argv[1]))))
