"""A program that is killed: it drives one stored run and logs each effect before and after it.

    python -m tests.crash.victim STORE RUN_ID LOG (sync|async) [DIRECTORY]

With a directory, it leaves a copy of the store there after each commit.

Its effects are model responses, tools, tools that may run only once, and a hook. Every effect has a key that is also
its result, so that the store alone shows what was committed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel
from tests.crash.copies import copy

from acorn import Step, module, tool
from acorn.models import ModelRequest
from acorn.stores import PostgresStore, SQLiteStore
from acorn.stores.port import Commit, PendingCommit, Store
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling

LOG = -1


def write(phase: str, key: str) -> None:
    """Write one line, complete even if the process is killed directly afterwards."""
    os.write(LOG, (json.dumps({"pid": os.getpid(), "phase": phase, "key": key}) + "\n").encode())


class Effect:
    """Perform an effect that takes a moment."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __enter__(self) -> str:
        write("begin", self.key)
        time.sleep(0.002)
        return self.key

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            write("end", self.key)


def call(name: str, /, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return name, arguments


def planned(name: str, depth: int) -> list[list[tuple[str, dict[str, Any]]]]:
    """Return the calls of each turn of the agent of that name."""
    first = [call("work", key=f"{name}-a{n}") for n in range(3)]
    second = [call("work_once", key=f"{name}-once"), call("awork", key=f"{name}-async")]
    if depth == 0:
        # So many that the state of the machine is not written with each of them.
        many = [call("awork" if n % 3 else "work", key=f"{name}-b{n}") for n in range(8)]
        digs = [call("dig", name=f"{name}-left"), call("dig", name=f"{name}-right")]
        third = [*many[:4], *digs, call("work_once", key=f"{name}-b-once"), *many[4:]]
        fourth = [call("by_hand", key=f"{name}-hand")]
        return [first, second, third, fourth, [call("work", key=f"{name}-z")]]
    if depth == 1 and name.endswith("left"):
        return [first, [call("dig", name=f"{name}-deep")], second]
    return [first, second]


def answer(request: ModelRequest) -> Reply:
    """A model that is a function of the conversation. Its text is the key of its response."""
    name, depth, turn = whereabouts(request.messages)
    with Effect(f"model {name} {turn}") as key:
        plan = planned(name, depth)
        if turn >= len(plan):
            return Reply(key) & finish(name=name, turns=turn)
        reply = Reply(key)
        for tool_name, arguments in plan[turn]:
            reply = reply & calling(tool_name, **arguments)
        return reply


def whereabouts(messages: Any) -> tuple[str, int, int]:
    """Return the asked agent, its depth, and the number of its turns so far."""
    name, depth, turn = "", -1, 0
    for message in messages:
        content = message.get("content")
        if message["role"] == "user" and isinstance(content, str) and "<name>" in content:
            name = content.partition("<name>")[2].partition("</name>")[0]
            depth, turn = depth + 1, 0
        elif message["role"] == "assistant":
            turn += 1
    return name, depth, turn


class Name(BaseModel):
    name: str


class End(BaseModel):
    name: str
    turns: int


class Dig(module[Name, End]):
    """Dig."""

    max_steps = 20


class Root(module[Name, End]):
    """Do it all."""

    max_steps = 20
    branches = {"dig": Dig}

    @tool
    def work(self, key: str) -> str:
        """Work."""
        with Effect(key):
            return key

    @tool
    async def awork(self, key: str) -> str:
        """Work."""
        with Effect(key):
            await asyncio.sleep(0.002)
            return key

    @tool(once=True)
    def work_once(self, key: str) -> str:
        """Work, but never twice."""
        with Effect(key):
            return key

    @tool
    def by_hand(self, key: str) -> str:
        """Branch by hand."""
        with Effect(key):
            ends = self.branch_all([(Dig, {"name": f"{key}-one"}), (Dig, {"name": f"{key}-two"})])
            assert [end.turns for end in ends] == [2, 2]
            return key

    def on_step(self, step: Step) -> None:
        if step.branch is None:
            with Effect(f"hook {step.counter}"):
                step.add_to_context(f"hook {step.counter}")


def copied(store: str, directory: Path) -> Store:
    """A store that leaves a copy of itself after each commit."""
    base: Any = PostgresStore if "://" in store else SQLiteStore
    numbers, lock = itertools.count(), threading.Lock()

    class Copied(base):  # type: ignore[misc]
        def commit(self, commit: Commit) -> PendingCommit:
            with lock:
                done: PendingCommit = super().commit(commit)
                done.result()
                copy(store, directory / f"{next(numbers):04}")
            return done

    return cast(Store, Copied(store))


def main() -> None:
    store, run_id, log, way, *directory = sys.argv[1:]
    global LOG
    LOG = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    kept: Any = copied(store, Path(directory[0])) if directory else store
    agent = Root(model=ScriptedModel(answer), store=kept).using(run_id=run_id)
    end = agent(name=run_id) if way == "sync" else asyncio.run(agent.acall(name=run_id))
    sys.stdout.write(end.model_dump_json())


if __name__ == "__main__":
    main()
