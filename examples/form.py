"""Streaming form: a form in the terminal that is filled in while the answer arrives.

    python examples/form.py
    acorn run examples/form.py --wish "A quiet week at the sea in May, for two, not too dear"

`chunk.partial` is the incomplete answer as a typed object. Text fields grow, a number appears when it is complete,
and a field is `None` until its value arrives. `chunk.completed` contains the names of the complete fields.

The first command needs no API key and no network, because it uses a scripted model.
"""

from datetime import date
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, Field
from rich.live import Live
from rich.table import Table
from rich.text import Text

from acorn import module
from acorn.testing import ScriptedModel, finish


class Wish(BaseModel):
    wish: str = Field(description="What the traveller wants")


class Trip(BaseModel):
    place: str
    first_day: date
    nights: int = Field(ge=1, le=60)
    travellers: int = Field(ge=1)
    most: Decimal | None = Field(default=None, description="What it may cost")
    wishes: list[str] = Field(default=[], description="What else was said")


class FillIn(module[Wish, Trip]):
    """Fill in the booking form. Today is 16 November 2026."""

    model = "openai/gpt-4o"
    temperature = 0


def form(trip: Any, done: tuple[str, ...] = ()) -> Table:
    """Return the form as a table, with the values received so far.

    `Text` prevents markup in the model's answer from changing the terminal output.
    """
    table = Table(show_header=False)
    for name in Trip.model_fields:
        value = getattr(trip, name, None)
        words = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
        mark = "x" if name in done else ">" if value is not None else " "
        table.add_row(mark, name.replace("_", " "), Text(words))
    return table


def script() -> ScriptedModel:
    """Return a model with a scripted answer, which arrives in chunks of three characters."""
    trip = Trip(
        place="Sylt", first_day=date(2027, 5, 8), nights=7, travellers=2, wishes=["quiet", "at the sea", "not too dear"]
    )
    return ScriptedModel([finish(trip)], chunk_size=3)


def main() -> None:
    agent = FillIn(model=script())
    with Live(form(None)) as live:
        for chunk in agent.stream(wish="A quiet week at the sea in May, for two, not too dear"):
            if chunk.partial is not None:
                live.update(form(chunk.partial, chunk.completed))
            if chunk.result is not None:  # The last chunk contains the complete, validated answer.
                live.update(form(chunk.result, tuple(Trip.model_fields)))


if __name__ == "__main__":
    main()
