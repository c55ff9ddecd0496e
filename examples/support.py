"""Support: an agent that waits for a person's yes before it pays money back, and is resumed when it has come.

    python examples/support.py
    acorn run examples/support.py --message "My parcel 17 never came." --store runs.db
    acorn resume RUN --yes --store runs.db

While the run waits, no process has to: it rests in its store. Small refunds need no yes. A refund that was begun is
never begun twice, even if the process dies in the middle of it.

By itself it needs no key and no network: the model is then a script.
"""

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

import acorn
from acorn import current_run, module, tool
from acorn.testing import ScriptedModel, call, finish

ORDERS = {17: "lamp, 240.00, sent on Monday, not arrived", 18: "bulb, 4.00, arrived"}


class Message(BaseModel):
    message: str = Field(description="What the customer wrote")


class Reply(BaseModel):
    reply: str = Field(description="What the customer reads")
    refunded: Decimal = Decimal(0)


@tool
def find_order(number: int) -> str:
    """Find an order."""
    return ORDERS.get(number, "there is no such order")


def is_large(arguments: dict[str, Any]) -> bool:
    return Decimal(str(arguments["amount"])) > 50


@tool(approval=is_large)
def refund(order: int, amount: Decimal) -> str:
    """Pay money back. A person has to agree to a large amount.

    Args:
        order: Its number
        amount: How much
    """
    # A bank that is given this key pays once, however often it is asked.
    return f"{amount} paid back for order {order} under {current_run().idempotency_key.rpartition(':')[2]}"


class Support(module[Message, Reply]):
    """You work at the support desk. Look at the order before you decide. If a person refuses a refund, explain it."""

    model = "openai/gpt-4o"
    temperature = 0
    max_steps = 10
    tools = [find_order, refund]


def script() -> ScriptedModel:
    """What the model will say; by turn, since the run goes on in another place."""
    replies = [
        call("find_order", number=17),
        call("refund", order=17, amount="240.00"),
        finish(reply="We are sorry. Your money is on its way.", refunded="240.00"),
    ]
    return ScriptedModel(replies, by_turn=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "runs.db")
        run = Support(model=script(), store=store).run(message="My lamp, order 17, never came!")
        print(f"The run is {run.stop_reason}. Later, in another process, somebody looks what is waiting:")

        for request in acorn.runs(store).requests():
            print(f"  {request.question}")
            reply = Support(model=script(), store=store).resume(request.run_id, answer=True)
            print(f"  yes -> {reply!r}")


if __name__ == "__main__":
    main()
