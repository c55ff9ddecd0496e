"""Extraction: an agent that converts a messy letter to a nested Pydantic object, with a validator that checks the sum.

    python examples/extraction.py
    acorn run examples/extraction.py < letter.txt

If the sum is wrong, acorn sends the validator's message to the model, and the model corrects its answer.

The first command needs no API key and no network, because it uses a scripted model.
"""

from datetime import date
from decimal import Decimal
from typing import Self

from pydantic import BaseModel, Field, model_validator

from acorn import module
from acorn.testing import ScriptedModel, finish

LETTER = """
  fwd: RE: re: invoice???
> hi, as discussed w/ Ms. Oak: 3 boxes of acorns (12,50 each), and the ladder,
> that was 80 -- we agreed on that on the phone
> so 117.50 all in all, till the end of the month (that is 30 Nov 2026)
  -- Oak & Sons <sales@oak.example>, 12 Forest Rd, "Nutwood"
"""


class Letter(BaseModel):
    letter: str = Field(description="A letter as it came in")


class Company(BaseModel):
    name: str
    email: str | None = None
    address: list[str] = Field(default=[], description="Line by line")


class Item(BaseModel):
    what: str
    count: int = Field(ge=1)
    price: Decimal = Field(ge=0, description="Of one of them")


class Invoice(BaseModel):
    seller: Company
    items: list[Item] = Field(min_length=1)
    total: Decimal = Field(description="As the letter says it")
    due: date | None = Field(default=None, description="Leave it out if the letter does not say")

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        added = sum(item.count * item.price for item in self.items)
        if added != self.total:
            raise ValueError(f"the items come to {added}, the total says {self.total}: read both again")
        return self


class ReadInvoice(module[Letter, Invoice]):
    """Read the invoice out of the letter. Write down what is there, and nothing else."""

    model = "openai/gpt-4o"
    temperature = 0


def script() -> ScriptedModel:
    """Return a model with two scripted answers: the first answer has a wrong count, and the second is correct."""
    seller = Company(name="Oak & Sons", email="sales@oak.example", address=["12 Forest Rd", "Nutwood"])
    ladder = {"what": "ladder", "count": 1, "price": "80"}
    boxes = {"what": "box of acorns", "count": 3, "price": "12.50"}
    return ScriptedModel(
        [
            finish(seller=seller, items=[{**boxes, "count": 1}, ladder], total="117.50", due="2026-11-30"),
            finish(seller=seller, items=[boxes, ladder], total="117.50", due="2026-11-30"),
        ]
    )


def main() -> None:
    run = ReadInvoice(model=script()).run(letter=LETTER)
    invoice = run.output
    assert invoice is not None
    print(f"{invoice.seller.name} wants {invoice.total} until {invoice.due}:")
    for item in invoice.items:
        print(f"  {item.count} x {item.what} at {item.price}")
    print(f"\nThe sum of the first answer was wrong, and the model received this error:\n{run.history[-3]['content']}")


if __name__ == "__main__":
    main()
