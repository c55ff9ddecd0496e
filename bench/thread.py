"""Measure the XML of 100,000 thread events relative to JSON, and the CPU time that the journal adds to a step."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable
from typing import Any

from loop import PARAGRAPH, Busy, Looker
from measure import Line, cpu

from acorn.thread import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    MessageEvent,
    ToolCallEvent,
    ToolResultEvent,
    dump_events,
    parse_events,
    parse_thread_xml,
    serialize_thread_to_xml,
)

STEPS = 200


def thread(count: int) -> list[AgentEvent]:
    """Return the events of a typical run, with short calls, longer results and a few failures."""
    events: list[AgentEvent] = [MessageEvent(role="user", content="What is behind the tree?")]
    step = 0
    while len(events) < count - 1:
        step += 1
        call_id = f"call_{step}"
        args = {"place": "behind the tree", "depth": 2}
        events += [
            MessageEvent(iteration=step, role="assistant", content="I'll look <there> & elsewhere.\nOne moment."),
            ToolCallEvent(iteration=step, tool_name="look", tool_call_id=call_id, args=args),
            ErrorEvent(iteration=step, error="ValueError: depth < 3", recoverable=True, tool_call_id=call_id)
            if step % 10 == 0
            else ToolResultEvent(iteration=step, tool_call_id=call_id, result=PARAGRAPH if step % 2 else [args] * 2),
        ]
    return [*events[: count - 1], CompletionEvent(iteration=step, result="A fox.")]


def exponent(act: Callable[[Any], object], small: Any, large: Any) -> float:
    """Return the growth exponent of the time from 1,000 to 100,000 events, without garbage collection."""
    gc.disable()
    try:
        ratio = cpu(lambda: act(large), repeat=5) / cpu(lambda: act(small), repeat=30)
    finally:
        gc.enable()
    return math.log(ratio) / math.log(100)


def recording() -> float:
    """Return the ratio of the time of a step with journal entries to the time of a step without entries."""
    agent = Looker(model=Busy(STEPS))
    whole = entries = math.inf
    for _ in range(40):
        start = time.process_time()
        run = agent.run(question="Where?")
        whole = min(whole, time.process_time() - start)
        made: list[Any] = []
        kinds = [(type(entry), tuple(entry)) for entry in run.journal.entries]
        start = time.process_time()
        for kind, fields in kinds:
            made.append(kind(*fields))
        entries = min(entries, time.process_time() - start)
    return whole / (whole - entries)


def lines() -> list[Line]:
    small, medium, large = thread(1_000), thread(10_000), thread(100_000)
    found: list[Line] = []
    for name, events in (("1,000", small), ("10,000", medium), ("100,000", large)):
        plain = dump_events(events)
        floor = cpu(lambda plain=plain: json.dumps(plain), repeat=9)  # type: ignore[misc]
        written = cpu(lambda events=events: serialize_thread_to_xml(events), repeat=9)  # type: ignore[misc]
        found.append(Line(f"{name} events as XML / json.dumps of their data", written / floor, 3))
    text, json_text = serialize_thread_to_xml(large), json.dumps(dump_events(large))
    found += [
        Line("exponent, writing XML", exponent(serialize_thread_to_xml, small, large), 1.1, ""),
        Line("exponent, reading XML", exponent(parse_thread_xml, serialize_thread_to_xml(small), text), 1.1, ""),
        Line(
            "100,000 events from XML / from JSON",
            cpu(lambda: parse_thread_xml(text), repeat=3) / cpu(lambda: parse_events(json_text), repeat=3),
            None,
        ),
        Line("a step with its journal / without", recording(), 1.05),
    ]
    return found
