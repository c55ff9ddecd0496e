"""Tests of forks: thread events are converted to journal entries with an equal conversation."""

from __future__ import annotations

import random
from typing import Any

from tests.unit.random_threads import some_event

from acorn._history.history import history_of
from acorn.thread import AgentEvent, dump_events, to_messages
from acorn.thread.journal_events import discard_outdated_extras, fork_entries


def some_steps(seed: int) -> list[AgentEvent]:
    """Return events of one run in the order of its steps; random summaries are tested elsewhere."""
    rng = random.Random(seed)
    events: list[AgentEvent] = [event for _ in range(rng.randint(1, 8)) if (event := some_event(rng)).type != "summary"]
    for event in events:
        event.branch = event.run_id = None
    events.sort(key=lambda event: event.iteration)
    discard_outdated_extras(events)
    return events


def test_history_of_forked_events_equals_messages_of_events() -> None:
    for seed in range(600):
        events = some_steps(seed)
        assert history_of(fork_entries(events, "id", 0.0)) == to_messages(events), seed


def test_discard_outdated_extras_called_twice_changes_nothing() -> None:
    for seed in range(300):
        events = [some_event(random.Random(seed + at)) for at in range(4)]
        discard_outdated_extras(events)
        before: Any = dump_events(events)
        discard_outdated_extras(events)
        assert dump_events(events) == before
