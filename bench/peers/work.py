"""The process of a contender, which reports the cost of its import and then runs one task for each input line.

The command is `python -m peers.work NAME ROOT`, where ROOT is the address of the server. A contender is a file with any
of the functions `single(url)`, `loop(url, steps)`, `parallel(url, calls)`, `stream(url, watch)` and `many(url, count)`.
Each function prepares a task and returns a function or coroutine function. The returned function does one run and
returns the typed answer; for `many`, it returns a list of answers.

A contender also defines constants. `FINISH` is the format of the answer (see server.py), or a dict with the format for
each kind of task. `PACKAGES` is the list of packages whose versions are reported. `CANNOT` maps unsupported tasks to
reasons, and `MORE_REQUESTS` maps tasks to the number of additional requests.

The task `pageN` runs the program of the comparison page with N tool calls.

The process checks every result outside of the measured time: the answer and its type, the tool calls and the partial
answers.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from peers import shown, tools
from peers.tasks import Answer, Report, Watch, answer, kind_of, report, served

if TYPE_CHECKING:
    import asyncio

ENOUGH = 1.0
"""The seconds after which the process stops repeating a task."""

MOST = 20
SLOW = 2.0
"""If the first run needs this many CPU seconds, it counts as a measurement and not as a warm-up."""


def peak() -> float:
    """Return the peak memory of this process in MB."""
    import resource

    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class WrongResultError(Exception):
    """Raised if a contender returns a wrong result."""


class Job:
    """One task of one contender, with the function that runs the task and the checks of its result."""

    def __init__(self, contender: Any, work: str, root: str) -> None:
        self.work = work
        self.contender = contender
        self.kind, self.number = kind_of(work)
        self.watch = Watch()
        finish = contender.FINISH
        finish = finish if isinstance(finish, str) else finish.get(self.kind, finish[""])
        url = f"{root}/{finish}/{served(work)}/v1"
        if work.startswith("page"):
            name = contender.__name__.rpartition(".")[2]
            self.act: Callable[[], Any] = shown.program(name, url, {"Answer": Answer, "look": tools.look})
            return
        make = getattr(contender, self.kind)
        extra = {"loop": self.number, "parallel": self.number, "many": self.number, "stream": self.watch}
        self.act = make(url, extra[self.kind]) if self.kind in extra else make(url)

    def begin(self) -> None:
        tools.ran.clear()
        self.watch.lengths.clear()

    def judge(self, result: Any) -> None:
        if self.kind == "stream":
            self.judge_stream(result)
            return
        results = result if self.kind == "many" else [result]
        wanted = [answer(at) for at in range(self.number)] if self.kind == "many" else [answer()]
        if not all(isinstance(each, Answer) for each in results):
            raise WrongResultError(f"not an `Answer`: {type(results[0])}")
        if [each.model_dump() for each in results] != wanted:
            raise WrongResultError("another answer than the server gave")
        if self.kind in ("loop", "parallel") and sorted(tools.ran) != list(range(self.number)):
            raise WrongResultError(f"{len(tools.ran)} of {self.number} tools ran")

    def judge_stream(self, result: Any) -> None:
        wanted = json.loads(report(self.number))
        if not isinstance(result, Report) or result.model_dump() != wanted:
            raise WrongResultError("another report than the server sent")
        if not getattr(self.contender, "PARTIALS", True):
            return
        missing = set(range(1, len(wanted["items"]) + 1)) - self.watch.lengths
        if missing:  # A framework may omit partial answers that add no item, but not those that add an item.
            raise WrongResultError(f"{len(missing)} items came without a partial that ends with them")


class Clock:
    """A clock that records the CPU seconds and wall seconds of each run."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self.runs = 0
        self.since = (0.0, 0.0)

    def start(self) -> None:
        self.since = (time.process_time(), time.perf_counter())

    def stop(self) -> None:
        self.cpu.append(time.process_time() - self.since[0])
        self.wall.append(time.perf_counter() - self.since[1])

    def repeat(self, *, warm: bool) -> Iterator[None]:
        """Yield once for each run: one warm-up run, then more runs until `ENOUGH` seconds have passed."""
        while self.runs == 0 or (warm and not (sum(self.wall) > ENOUGH or len(self.wall) >= MOST)):
            yield
            self.runs += 1
            if self.runs == 1 and warm and self.cpu[0] < SLOW:
                self.cpu.clear()
                self.wall.clear()


class Loop:
    """One event loop for all tasks, because some libraries use one client during the whole process."""

    def __init__(self) -> None:
        self.runner: asyncio.Runner | None = None

    def run(self, act: Coroutine[Any, Any, None]) -> None:
        import asyncio

        self.runner = self.runner or asyncio.Runner()
        self.runner.run(act)


def run(job: Job, loop: Loop, *, warm: bool) -> Clock:
    import inspect

    clock = Clock()
    if not inspect.iscoroutinefunction(job.act):
        for _ in clock.repeat(warm=warm):
            job.begin()
            clock.start()
            result = job.act()
            clock.stop()
            job.judge(result)
        return clock

    async def all_of_them() -> None:
        for _ in clock.repeat(warm=warm):
            job.begin()
            clock.start()
            result = await job.act()
            clock.stop()
            job.judge(result)

    loop.run(all_of_them())
    return clock


def versions(packages: list[str]) -> dict[str, str]:
    from importlib.metadata import version

    return {package: version(package) for package in packages}


def main(name: str, root: str) -> None:
    # Redirect standard output to standard error, so that output of a library does not mix with the JSON lines.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    contender = importlib.import_module(f"peers.contenders.{name}")
    first = Job(contender, "first", root)
    cpu, wall = time.process_time(), time.monotonic() - float(os.environ.get("PEERS_BEGAN", "nan"))
    ready = {"cpu": [cpu], "wall": [wall], "peak": peak()}
    hello = {"import": ready, "versions": versions(contender.PACKAGES), "cannot": getattr(contender, "CANNOT", {})}
    lines.write(json.dumps(hello) + "\n")
    loop = Loop()
    for line in sys.stdin:
        work = line.strip()
        try:
            is_once = work.startswith(("first", "page"))
            clock = run(first if work == "first" else Job(contender, work, root), loop, warm=not is_once)
            told: dict[str, Any] = {"cpu": clock.cpu, "wall": clock.wall, "runs": clock.runs, "peak": peak()}
            if work == "first":
                told |= {"cpu": [cpu + clock.cpu[0]], "wall": [wall + clock.wall[0]]}
            told["requests_more"] = getattr(contender, "MORE_REQUESTS", {}).get(kind_of(work)[0], 0)
        except Exception as failure:
            import traceback

            traceback.print_exc()
            told = {"error": f"{type(failure).__name__}: {failure}"}
        lines.write(json.dumps(told) + "\n")
    os._exit(0)  # Exit without waiting for the threads of libraries.


if __name__ == "__main__":
    main(*sys.argv[1:])
