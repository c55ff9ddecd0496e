"""Support: an agent whose run pauses until a person approves a refund, and then resumes.

    python examples/support.py
    acorn run examples/support.py --message "My parcel 17 never came." --store runs.db
    acorn resume RUN --agent examples/support.py --yes --store runs.db

A paused run is saved in the store, so no process has to wait for the approval. Small refunds need no approval. acorn
never starts a refund twice, even if the process ends during the refund.

The first command needs no API key and no network, because it uses a scripted model.
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
    # A bank that receives the same idempotency key several times makes only one payment.
    return f"{amount} paid back for order {order} under {current_run().idempotency_key.rpartition(':')[2]}"


class Support(module[Message, Reply]):
    """You work at the support desk. Look at the order before you decide. If a person refuses a refund, explain it."""

    model = "openai/gpt-4o"
    temperature = 0
    max_steps = 10
    tools = [find_order, refund]


def script() -> ScriptedModel:
    """Return a model with one scripted answer for each turn.

    With `by_turn`, the answer depends on the number of turns in the conversation, so it is also correct after a resume.
    """
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
        print(f"The run is {run.stop_reason}. Later, another process lists the open requests and approves them:")

        for request in acorn.runs(store).requests():
            print(f"  {request.question}")
            reply = Support(model=script(), store=store).resume(request.run_id, answer=True)
            print(f"  approved -> {reply!r}")


if __name__ == "__main__":
    main()
