"""A process that sends a number of requests under a shared limit: `python limits_child.py STORE LOG LIMIT COUNT`.

Each request is a line of the log: its time, by the clock that all processes of a machine share, and its tokens.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from acorn import module
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, finish
from acorn.types import Usage


class Sender(module[[("number", int)], int]):  # type: ignore[misc]
    """Say the number."""

    max_tokens = 50


def main(store: str, log: str, limit: str, count: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def reply(request: ModelRequest) -> Any:
        os.write(out, f"{time.monotonic()} 100\n".encode())
        return Reply(calls=finish(1).calls, usage=Usage(60, 40))

    agent = Sender(rate_limit={**json.loads(limit), "shared": True}, store=store, model=ScriptedModel(reply))
    left = iter(range(int(count)))

    def work() -> None:
        for _ in left:
            agent(number=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
