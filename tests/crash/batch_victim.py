"""A program that tests kill: it executes a batch, or executes approved calls.

python batch_victim.py batch STORE LOG ROWS
python batch_victim.py pay STORE LOG (ask|resume) [RUN_ID]
"""

from __future__ import annotations

import os
import sys
import time

from acorn import Paused, module, tool
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish

LOG = -1


def write(line: str) -> None:
    os.write(LOG, f"{line}\n".encode())


def turns(request: ModelRequest) -> int:
    return sum(message["role"] == "assistant" for message in request.messages)


def work_and_end(request: ModelRequest) -> Reply:
    number = request.messages[1]["content"].partition("<input>")[2].partition("</input>")[0]
    return [call("work", number=int(number)), finish(int(number) * 2)][turns(request)]


class Clerk(module[int, int]):
    """Work."""

    model = ScriptedModel(work_and_end)
    max_steps = 3

    @tool
    def work(self, number: int) -> int:
        """Work."""
        write(f"work {number}")
        return number

    def on_finish(self, output: int) -> None:
        write(f"done {output // 2}")


def pay_and_end(request: ModelRequest) -> Reply:
    if turns(request) == 0:
        return call("pay", amount=20) & call("inner", input=5)
    results = [str(message["content"]) for message in request.messages if message["role"] == "tool"]
    return finish(" | ".join(results))


def pay_inside(request: ModelRequest) -> Reply:
    inside = [at for at, message in enumerate(request.messages) if "<input>5</input>" in str(message["content"])]
    after = [message["role"] for message in request.messages[inside[0] :]]
    return call("pay", amount=5) if "assistant" not in after else finish("paid inside")


class Inner(module[int, str]):
    """Pay too."""

    model = ScriptedModel(pay_inside)
    max_steps = 3


class Payer(module[int, str]):
    """Pay."""

    model = ScriptedModel(pay_and_end)
    max_steps = 3
    branches = {"inner": Inner}

    @tool(approval=True)
    def pay(self, amount: int) -> str:
        """Pay."""
        write(f"begin {amount}")
        time.sleep(0.05)
        write(f"end {amount}")
        return f"paid {amount}"


def main() -> None:
    global LOG
    what, store, log, *rest = sys.argv[1:]
    LOG = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if what == "batch":
        found = Clerk(store=store).map(range(int(rest[0])), id="all", concurrency=4).results()
        sys.stdout.write(",".join(map(str, found)))
        return
    agent = Payer(store=store)
    output: object = agent.using(run_id="pay")(1) if rest[0] == "ask" else agent.resume("pay")
    sys.stdout.write("waits" if isinstance(output, Paused) else str(output))


if __name__ == "__main__":
    main()
