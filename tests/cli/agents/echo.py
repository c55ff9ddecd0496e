"""Modules that return their input: one for each form of input."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

import acorn
from acorn import module
from acorn.testing import ScriptedModel, finish


class Echo(module):
    """Say it again.

    Text in [bold]brackets[/bold] stays as it is.
    """

    model = ScriptedModel(lambda request: finish(result={}))
    final_output = dict[str, Any]

    def on_finish(self, output: dict[str, Any]) -> dict[str, Any]:
        return acorn.current_run().input.model_dump(mode="json")


class Color(Enum):
    RED = "red"
    GREEN = "green"


class Size(Enum):
    SMALL = 1
    BIG = 2


class Address(BaseModel):
    """Where somebody lives."""

    city: str = Field(description="The town")
    zip_code: int | None = None


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool = True


class Person(BaseModel):
    given_name: str = Field("", alias="givenName")
    is_old: bool = Field(False, alias="isOld")


class Everything(BaseModel):
    text: str = Field("nothing", description="Some text in [red]brackets[/red]")
    count: int = Field(1, ge=1, le=10, description="How many")
    ratio: float = 0.5
    price: Decimal = Decimal("1.50")
    day: date | None = None
    color: Color = Color.RED
    size: Size | None = None
    mood: Literal["calm", "wild"] | None = None
    level: Literal[1, 2] = 1
    loud: bool = Field(False, description="Whether to shout")
    sure: bool | None = None
    tags: list[str] = []
    numbers: list[int] | None = None
    rows: list[list[int]] = []
    pair: tuple[int, str] | None = None
    address: Address | None = None
    places: list[Address] = []
    tree: Tree | None = None
    scores: dict[str, int] = {}
    nested: dict[str, Address] = {}
    number_or_text: int | str | None = None
    number_or_texts: int | list[str] = 0
    text_or_texts: str | list[str] = ""
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None
    person: Person | None = None
    anything: Any = None
    two_words: str = ""

    @field_validator("text")
    @classmethod
    def _polite(cls, value: str) -> str:
        if value == "rude":
            raise ValueError("be polite")
        return value


class Kinds(Echo):
    initial_input = Everything


class Strict(BaseModel):
    name: str = Field(description="Who")
    born: date


class Needs(Echo):
    initial_input = Strict


class Clash(Echo):
    """Fields with the names of acorn's options."""

    initial_input = [("model", str), ("json", bool, False), ("input", str, ""), ("help", str, ""), ("save", str, "")]


class Prefixed(Echo):
    """A field spelled like acorn's options after a clash."""

    initial_input = [("model", str, ""), ("acorn_model", str, ""), ("save", bool, False), ("no_save", bool, False)]


class Foreign(Echo):
    """Größe in Ångström."""

    initial_input = [("größe", int, 1), ("text", str, "zwölf")]


class Plain(Echo):
    initial_input = str


class Numbers(Echo):
    initial_input = list[int]


@dataclass
class Point:
    x: int
    y: int = 0


class Dots(Echo):
    initial_input = Point


class Nothing(Echo):
    initial_input = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str = ""


class Extra(Echo):
    initial_input = Open


class Street(BaseModel):
    street: str = Field(default="none", alias="streetName")
    number: int = 0


class Lion(BaseModel):
    kind: Literal["lion"] = "lion"
    name: str = Field(default="none", alias="lionName")


class Wolf(BaseModel):
    kind: Literal["wolf"] = "wolf"
    name: str = Field(default="none", alias="wolfName")


class Renamed(BaseModel):
    from_: str = Field("here", alias="from")
    class_: str = "first"
    addr: Street = Street()
    addrs: list[Street] = []
    animal: Lion | Wolf = Lion()


class Aliased(Echo):
    initial_input = Renamed
