"""Streaming form: a form in the terminal that fills in while the model writes.

    python examples/form.py
    acorn run examples/form.py --wish "A quiet week at the sea in May, for two, not too dear"

`chunk.partial` is the answer so far as a typed object: a text grows, a number shows once it is whole, a field is `None`
until the model has come to it. `chunk.completed` names the fields that will not change any more.

By itself it needs no key and no network: the model is then a script.
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
    """The form as far as it is filled in. What a model wrote is text, never markup of the terminal's."""
    table = Table(show_header=False)
    for name in Trip.model_fields:
        value = getattr(trip, name, None)
        words = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
        mark = "x" if name in done else ">" if value is not None else " "
        table.add_row(mark, name.replace("_", " "), Text(words))
    return table


def script() -> ScriptedModel:
    """What the model will say."""
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
            if chunk.result is not None:  # the last chunk: the whole answer, checked
                live.update(form(chunk.result, tuple(Trip.model_fields)))


if __name__ == "__main__":
    main()
