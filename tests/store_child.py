"""A process that drives runs of a store by commands, line by line: `python store_child.py STORE`.

A line is a JSON list of a command and its arguments. The answer is JSON too: the result or the error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tests.commits import begin, go_on

from acorn import StoreError
from acorn.stores.lease import start_heartbeat, this_process
from acorn.stores.open import open_store
from acorn.stores.port import Store


def main(path: str) -> None:
    store = open_store(path, "the child")
    for line in sys.stdin:
        try:
            answer: Any = act(store, *json.loads(line))
        except StoreError as error:
            answer = {"error": str(error), "kind": type(error).__name__}
        print(json.dumps(answer), flush=True)  # noqa: T201
    store.close()


def act(store: Store, word: str, *arguments: Any) -> Any:
    match word:
        case "begin":
            begin(store, *arguments)
        case "go on":
            go_on(store, *arguments)
        case "claim":
            kept = store.claim(arguments[0], this_process())
            return None if kept is None else [one.facts.status for one in kept]
        case "hold":
            start_heartbeat(store, *arguments)
        case "status":
            return store.follow(*arguments)[0]
        case "work":
            return work(store, *arguments)
        case _:
            raise AssertionError(word)
    return os.getpid()


def work(store: Store, least: int, seconds: float) -> int:
    """Make at least this many commits, and as many as the time allows."""
    run_id = f"run-{os.getpid()}"
    begin(store, run_id)
    since, limit = 1, time.monotonic() + seconds
    while since < least or time.monotonic() < limit:
        go_on(store, run_id, since)
        since += 1
    return since


if __name__ == "__main__":
    main(sys.argv[1])
