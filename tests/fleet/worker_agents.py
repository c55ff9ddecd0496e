"""Agents for workers in separate processes. They write a line per effect to `CREW_LOG`, which shows repeated work.

acorn work worker_agents.py:Desk worker_agents.py:Scout --store URL
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from acorn import Step, current_run, module, tool
from acorn.journal import ModelResponded, ToolFinished
from acorn.models import ModelRequest
from acorn.stores.open import open_store
from acorn.stores.port import NOT_STARTED
from acorn.testing import Reply, ScriptedModel, call, finish

LOG = os.environ.get("CREW_LOG", os.devnull)
STORE = os.environ.get("CREW_STORE", "")
PACE = float(os.environ.get("CREW_PACE", "0.02"))


def note(*words: object) -> None:
    """Write one complete line, whatever other processes write."""
    file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{os.getpid()} {' '.join(map(str, words))}\n".encode())
    os.close(file)


def committed(run_id: str, kind: type, call_id: str = "") -> int:
    """Return the number of stored entries of a kind."""
    if not STORE:
        return 0
    kept = open_store(STORE, "worker_agents").read(run_id)
    if not kept or kept[0].state == NOT_STARTED:
        return 0
    name = {ModelResponded: "model_answered", ToolFinished: "tool_returned"}[kind]
    return sum(f'"{name}"' in entry and call_id in entry for entry in kept[0].entries)


def reply(request: ModelRequest) -> Reply:
    text = str(request.messages)
    found = re.search(r"run-\w+", text)
    name = found[0] if found else ""
    turn = sum(message["role"] == "assistant" for message in request.messages)
    is_branch = "Dig deeper" in text
    if name and not is_branch:  # Checked while it asks: a process that is frozen now may be replaced in the meantime.
        again = committed(name, ModelResponded) > turn
        note("model", f"{name}:{turn}", "AGAIN" if again else "")
    time.sleep(PACE)
    if is_branch:
        return finish(found=f"{name} is deep") if turn else call("look", at=9)
    if turn == 0:
        return call("look", at=0) & call("look", at=1)
    if turn == 1 and "dig" in text:
        return call("dig", _id="d")
    if turn in (1, 2) and "pay" in text and not any("paid" in str(each.get("content")) for each in request.messages):
        return call("pay", _id="p", amount=5)
    return finish(answer=f"{name} ok")


@tool
def look(at: int) -> str:
    """Look at something."""
    run: Any = current_run()
    key = run.idempotency_key
    again = committed(run.id, ToolFinished, f'"{key.rpartition(":")[2]}"') > 0
    note("look", key, "AGAIN" if again else "")
    time.sleep(PACE)
    return f"seen {at}"


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay something."""
    run: Any = current_run()
    note("pay", run.idempotency_key)
    return "paid"


@tool
def linger() -> str:
    """Wait for a file."""
    note("linger", os.getpid())
    while not Path(f"{LOG}.go").exists():
        time.sleep(0.01)
    return "went"


@tool
def die() -> str:
    """Take the process along."""
    note("die")
    os._exit(9)


class Dig(module):
    """Dig deeper."""

    final_output = [("found", str)]
    model = ScriptedModel(reply)
    max_steps = 6
    tools = [look]


class Desk(module):
    """See to it."""

    initial_input = [("question", str)]
    final_output = [("answer", str)]
    model = ScriptedModel(reply)
    max_steps = 12
    tools = [look, pay]
    branches = {"dig": Dig}


class Scout(Desk):
    """The same agent under another name."""


class Lingering(Desk):
    """Waits."""

    model = ScriptedModel(lambda request: call("linger") if len(request.messages) < 4 else finish(answer="went"))
    tools = [linger]


class Minding(Desk):
    """Waits in a hook."""

    def on_step(self, step: Step) -> None:
        linger()


class Deadly(Desk):
    """Dies."""

    model = ScriptedModel(lambda request: call("die"))
    tools = [die]
