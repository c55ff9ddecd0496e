"""Measure the cost of large cases: a very long run, a long history, and a class with very many tools."""

from __future__ import annotations

import gc
import time
import tracemalloc
from itertools import pairwise
from statistics import median
from typing import Any

from loop import Answer, Looker
from measure import Line, cpu

from acorn import module, tool
from acorn.models import ModelRequest
from acorn.testing import ScriptedModel, call, finish

STEPS = 100_000
MESSAGES = 10_000


class Quiet(Looker):
    """Look around, then answer."""

    max_steps = STEPS + 1


def long_run(steps: int, *, history: list[dict[str, Any]] | None = None) -> list[float]:
    """Run an agent with many steps and return the CPU time at each request."""
    times: list[float] = []

    def reply(request: ModelRequest) -> Any:
        times.append(time.process_time())
        return finish(answer="done") if len(times) > steps else call("look", place="behind the tree")

    Quiet(model=ScriptedModel(reply), loop_guard=None).using(history=history)(question="Where?")
    return times


def seconds_a_step(times: list[float]) -> float:
    """Return the CPU seconds of one step, as the median of many groups of steps.

    The garbage collector and other processes interrupt some groups.
    """
    part = max(1, len(times) // 50)
    marks = times[::part]
    return median([(later - earlier) / part for earlier, later in pairwise(marks)])


def flatness() -> tuple[float, float, float]:
    """Return the CPU seconds of a step at the start and at the end of a long run."""
    times = long_run(STEPS)
    tenth = STEPS // 10
    early, late = seconds_a_step(times[:tenth]), seconds_a_step(times[-tenth:])
    return early, late, late / early


def memory(steps: int) -> float:
    """Return the memory of a finished run, in bytes per step."""
    gc.collect()
    tracemalloc.start()
    model = ScriptedModel(lambda _: finish(answer="") if len(model.requests) > steps else call("look", place="here"))
    run = Quiet(model=model, loop_guard=None).run(question="Where?")
    model.requests.clear()
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert run.output == Answer(answer="")
    return held / steps


def conversation(count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(count // 2):
        found.append({"role": "user", "content": f"And what of number {number}?"})
        found.append({"role": "assistant", "content": f"Number {number} is behind the tree."})
    return found


def many_tools(count: int) -> list[Any]:
    def make(number: int) -> Any:
        def search(query: str, limit: int = 5, exact: bool = False) -> list[str]:
            """Search for something.

            Args:
                query: What to look for
                limit: How many results
                exact: Whether the words must stand as they are
            """
            return [query]

        return tool(name=f"search_{number}")(search)

    return [make(number) for number in range(count)]


def lines() -> list[Line]:
    early, late, ratio = flatness()
    small, large = memory(1_000), memory(10_000)
    after = seconds_a_step(long_run(200, history=conversation(MESSAGES))[1:])
    tools = many_tools(1_000)
    made = cpu(lambda: type("Bench", (module,), {"__module__": __name__, "tools": tools}), repeat=3)
    return [
        Line(f"of {STEPS:,} steps the last: {late * 1e6:.0f} µs / the first: {early * 1e6:.0f} µs", ratio, 1.3),
        Line(f"memory: {large / 1e3:.1f} KB a step of 10,000 / {small / 1e3:.1f} KB of 1,000", large / small, 1.1),
        Line(f"a step behind {MESSAGES:,} messages, after the first", after * 1e3, 1, " ms"),
        Line("defining a module class with 1,000 tools", made, 0.5, " s"),
    ]
