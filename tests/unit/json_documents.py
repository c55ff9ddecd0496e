"""Schemas and JSON documents for the tests of partial answers: chosen by hand, and random.

A document is text. Random ones have many styles: whitespace anywhere, escapes or none, missing, unknown or repeated
keys, and an occasional value that does not fit.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NewType, Optional, TypeVar
from uuid import UUID

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, RootModel, create_model
from typing_extensions import TypedDict

T = TypeVar("T")
UserId = NewType("UserId", str)


class Color(Enum):
    RED = "red"
    DARK = "dark blue"
    SEVEN = 7


@dataclass
class Point:
    x: int
    y: float = 0.5


class Movie(TypedDict):
    name: str
    year: int


class Names(RootModel[list[str]]):
    pass


class City(BaseModel):
    city_name: str
    population: int
    explanation: str


class Scalars(BaseModel):
    text: str
    whole: int
    real: float
    flag: bool
    nothing: None
    color: Color
    word: Literal["yes", "no", 3]
    day: date
    moment: datetime
    money: Decimal
    id: UUID
    raw: bytes


class Item(BaseModel):
    title: str
    score: float | None = None
    tags: list[str] = []


class Report(BaseModel):
    name: str
    items: list[Item]
    best: Item | None = None
    by_name: dict[str, Item] = {}


class Containers(BaseModel):
    matrix: list[list[int]]
    pairs: list[dict[str, int]]
    deep: dict[str, dict[str, list[str]]]
    numbered: dict[int, Item]
    colored: dict[Color, str]
    sequence: Sequence[str]
    mapping: Mapping[str, int]
    bare_list: list  # type: ignore[type-arg]
    bare_dict: dict  # type: ignore[type-arg]


class Loose(BaseModel):
    anything: Any
    json_value: JsonValue
    more: list[Any]
    named: dict[str, Any]


class Wholes(BaseModel):
    point: Point
    pair: tuple[int, str]
    many: tuple[float, ...]
    unique: set[int]
    movie: Movie
    names: Names
    points: list[Point]
    movies: dict[str, Movie]
    maybe: Point | None


class Limited(BaseModel):
    short: str = Field(max_length=4)
    maybe_short: str | None = Field(max_length=4)
    code: Annotated[str, Field(pattern="^[a-z]+$")]
    small: int = Field(lt=10)
    few: list[int] = Field(max_length=2)
    words: list[Annotated[str, Field(min_length=2)]]
    user: UserId


class Tree(BaseModel):
    value: str
    children: list[Tree] = []
    parent: Tree | None = None


class Ping(BaseModel):
    name: str
    pong: Optional[Pong] = None  # noqa: UP045


class Pong(BaseModel):
    count: int
    pings: list[Ping] = []


class Cat(BaseModel):
    type: Literal["cat"]
    name: str
    lives: int = 9


class Dog(BaseModel):
    type: Literal["dog"]
    name: str
    tricks: list[str] = []


class Fish(BaseModel):
    fins: int
    name: str


class Zoo(BaseModel):
    one: Cat | Dog
    maybe: Cat | Dog | None
    tagged: Annotated[Cat | Dog, Field(discriminator="type")]
    maybe_tagged: Annotated[Cat | Dog, Field(discriminator="type")] | None
    nested: Annotated[Cat | Dog, Field(discriminator="type")] | Fish | None = None
    all: list[Cat | Dog | Fish]
    by_name: dict[str, Annotated[Cat | Dog, Field(discriminator="type")]]


class Small(BaseModel):
    x: int


class Large(BaseModel):
    x: int
    y: int


class LargeToo(Small):
    z: int


class Mixed(BaseModel):
    number_or_text: int | str
    text_or_date: date | str
    flag_or_list: bool | list[int]
    model_or_dict: Small | dict[str, str]
    model_or_text: Small | str
    model_or_point: Small | Point
    lists: list[Small] | list[str]
    list_or_tuple: list[Small] | tuple[str, str]
    nested: Small | Large | LargeToo
    words: Literal["a", "b"] | None
    color: Color | int
    odd: Literal["a", 1] | Small


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    first: str = Field(alias="firstName")
    second: int = Field(validation_alias=AliasChoices("two", "zwei"))
    left: str = Field(alias="right")
    right: str = Field(alias="left")


class Left(BaseModel):
    x: int = Field(alias="X")
    left: int = Field(0, alias="L")


class Right(BaseModel):
    x: int = Field(alias="X")
    right: int = Field(0, alias="R")


class Sides(BaseModel):
    side: Left | Right
    sides: list[Left | Right] = []


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: T | None = None


class Pages(BaseModel):
    words: Page[str]
    models: Page[Item]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    inner: list[Closed] = []


class Empty(BaseModel):
    pass


def put(template: str, *parts: str) -> str:
    """Replace each `<>` in the template with a value."""
    for part in parts:
        template = template.replace("<>", part, 1)
    return template


def _by_hand() -> list[tuple[type[BaseModel], str]]:
    odd = "lorem ipsum \u00e9\u4e16\U0001f600 \\n\\u00e9\\ud83d\\ude00 "
    long = "lorem ipsum " * 82 + odd * 3
    item = '{"title": "t", "score": 1.5, "tags": ["a", "b"]}'
    pet = '{"name": "Tom", "type": "cat", "lives": 7}'
    scalars = (
        '{"text":"a","whole":-12,"real":1.5e3,"flag":true,"nothing":null,"color":"dark blue","word":"yes",'
        '"day":"2024-02-29","moment":"2024-02-29T12:30:00Z","money":12.50,'
        '"id":"12345678-1234-5678-1234-567812345678","raw":"bytes"}'
    )
    return [
        (City, '{"city_name": "Oslo", "population": 709000, "explanation": "The capital of Norway."}'),
        (City, ' \n\t{ "city_name" : "Oslo" ,\r\n "population" : 7 , "explanation" : "" } \n'),
        (City, "{}"),
        (City, "  {  }  "),
        (City, '{"population": 12}'),
        (City, '{"population": 12 }'),
        (City, '{"population": "12", "city_name": 5, "explanation": null}'),
        (City, '{"population": 1.5, "city_name": ["a"], "explanation": {"a": "b"}}'),
        (City, '{"population": 12.0, "explanation": true, "city_name": "x"}'),
        (City, '{"population": 1e3, "explanation": "a\\"b\\\\c\\/d\\b\\f\\n\\r\\t", "city_name": "\\\\"}'),
        (City, '{"city_name": "\\u00e9\\u4E16\\ud83d\\ude00\\uD83D\\uDE00", "explanation": "é世😀", "population": 0}'),
        (City, '{"city_name": "\\ud83d", "explanation": "\\ud83dx", "population": 0}'),
        (City, '{"city_name": "\\ude00", "explanation": "\\ud83d\\ud83d\\ude00", "population": 0}'),
        (City, '{"city_name": "\\ud83d\\n", "explanation": "\\ud83d\\u0041\\ud83d\\ud83d", "population": 0}'),
        (City, '{"city_name": "a\\ud83d\\ud83d\\ud83d b", "explanation": "\\ude00\\ud83d\\\\"}'),
        (City, '{"ci\\u0074y_name": "escaped key", "popul\\u0061tion": 3, "\\ud83d\\ude00": 1, "\\ud83d": 2}'),
        (City, '{"city_name": "a", "city_name": "bcd", "population": 1, "population": 22}'),
        (City, '{"city_name": "first", "city_name": 5, "population": 1, "population": "no"}'),
        (City, '{"other": "x", "nested": {"city_name": "no"}, "list": [1, "a", {}], "city_name": "yes"}'),
        (City, '{"": 1, "city_name ": 2, "City_name": 3, "city_name": ""}'),
        (City, '{"population": 123456789012345678901234567890, "city_name": "big"}'),
        (City, '{"population": -0, "city_name": "zero"}'),
        (City, "[1, 2]"),
        (City, '"text"'),
        (City, "12 "),
        (City, "null "),
        (Scalars, scalars),
        (Scalars, scalars.replace(",", " ,\n").replace(":", " : ", 1)),
        (Scalars, '{"real": 5, "flag": false, "color": 7, "word": 3, "money": "1.10", "day": "no day"}'),
        (Scalars, '{"real": 1E+2, "whole": true, "color": "green", "word": "maybe", "nothing": 1}'),
        (Scalars, '{"real": -1.25e-3, "flag": "yes", "day": "2024-02-29T00:00:00", "raw": "\\u00e9"}'),
        (Scalars, '{"real": 1e400, "whole": 1e400, "flag": 1, "text": "t"}'),
        (Scalars, put('{"real": <>, "whole": <>}', "9" * 330, "9" * 330)),
        (Scalars, '{"real": NaN, "whole": 3, "money": Infinity}'),
        (Scalars, '{"real": -Infinity, "whole": NaN, "text": "after"}'),
        (Report, put('{"name": "r", "items": [<>, <>], "best": <>, "by_name": {"a": <>, "b": <>}}', *(item,) * 5)),
        (Report, '{"name": "r", "items": [], "best": null, "by_name": {}}'),
        (Report, '{"name": "r", "items": [{}, {"title": "a"}, null, 5, "x", []], "by_name": {"a": 5, "b": {}}}'),
        (Report, '{"by_name": {"a": {"title": "1"}, "a": {"title": "2", "tags": ["x"]}, "b": {}}, "items": {}}'),
        (Report, put('{"items": [<>], "items": [{"title": "again"}], "name": "twice"}', item)),
        (Report, put('{"name": "<>", "items": [<>]}', long, item)),
        (Report, put('{"items": [<>]}', ",".join(['{"title":"x"}'] * 68))),
        (Report, put('{"items": [{"title": "<>"}], "name": "n"}', long)),
        (Report, put('{"items": [{"tags": ["a", "<>", "b"]}, {}], "name": "n"}', long)),
        (Report, put('{"by_name": {"a": {"title": "<>", "score": 1}, "b": {}}, "name": "n"}', long)),
        (Report, put('{"by_name": {<>}}', ", ".join(f'"{n}":{{}}' for n in range(70)))),
        (
            Report,
            put('{"by_name": {<>, "k3": {"title": "again"}, "k70": {}}}', ",".join(f'"k{n}":{{}}' for n in range(68))),
        ),
        (Report, put('{"best": {"tags": [<>], "title": "t"}, "name": "n"}', ",".join(f'"{n}"' for n in range(80)))),
        (Containers, '{"matrix": [[1, 2], [], [3], [4, "x", 5.0, 6]], "pairs": [{}, {"a": 1, "b": 2}, {"a": "x"}]}'),
        (Containers, '{"matrix":[[1,2],[3,4]],"matrix":[[5]],"deep":{"a":{"b":["c","d"],"e":[]},"f":{}}}'),
        (Containers, '{"numbered": {"1": {"title": "a"}, "x": {"title": "b"}, "2": {}, "1": {"title": "c"}}}'),
        (Containers, '{"colored": {"red": "a", "green": "b", "dark blue": "c"}, "mapping": {"a": 1, "b": "x"}}'),
        (
            Containers,
            '{"sequence": ["a", "b", 3], "bare_list": [1, "a", [null]], "bare_dict": {"a": [1.5, {"b": "c"}]}}',
        ),
        (Containers, put('{"matrix": [<>]}', ",".join(f"[{n}]" for n in range(70)))),
        (Containers, put('{"matrix": [[<>], [7]], "sequence": []}', ",".join(map(str, range(70))))),
        (Containers, put('{"matrix": [<>, [<>]]}', ",".join(["[]"] * 66), ",".join(map(str, range(70))))),
        (Containers, put('{"deep": {"a": {"b": [<>, "<>"]}}, "matrix": []}', ",".join(['"x"'] * 66), long)),
        (Containers, put('{"deep": {<>, "last": {"x": ["<>"]}}}', ",".join(f'"{n}":{{}}' for n in range(66)), long)),
        (Containers, put('{"mapping": {<>}}', ",".join(f'"{n}":{n}' for n in range(66)))),
        (Containers, put('{"mapping": {<>, "5": 0, "5": 1, "new": 2}}', ",".join(f'"{n}":{n}' for n in range(66)))),
        (
            Loose,
            '{"anything": {"a": [1, 2.5, "x", null, true, {"b": {}}]}, "more": [[], {}, "", 0], "named": {"a": "b"}}',
        ),
        (Loose, '{"anything": "text", "json_value": {"a": ["x", 1]}, "more": ["a", ["b", ["c"]]]}'),
        (Loose, '{"anything": 12, "json_value": null, "named": {"a": {"a": 1, "a": 2}, "a": 3}}'),
        (Loose, put('{"anything": <>1<>, "more": [1]}', "[" * 60, "]" * 60)),
        (Loose, put('{"anything": <>"x"<>, "more": [1]}', '{"a":' * 40, "}" * 40)),
        (Loose, put('{"more": [<>, {"a": ["<>"]}], "anything": 1e5}', ",".join("1" * 66), long)),
        (Loose, put('{"named": {"a": "<>", "b": [<>]}, "anything": "<>"}', long, ",".join("1" * 66), long)),
        (Wholes, '{"point": {"x": 1, "y": 2.5}, "pair": [1, "a"], "many": [1, 2.5], "unique": [1, 2, 2]}'),
        (
            Wholes,
            '{"movie": {"name": "n", "year": 1999}, "names": ["a", "b"], "points": [{"x": 1}, {"y": 1}, {"x": 2}]}',
        ),
        (Wholes, '{"movies": {"a": {"name": "n", "year": 1}, "b": {"name": 5}}, "maybe": null, "pair": [1]}'),
        (Wholes, '{"maybe": {"x": "3", "y": 1e2}, "point": [], "pair": {}, "unique": "no", "many": []}'),
        (Limited, '{"short": "abcdef", "maybe_short": "abcdef", "code": "abc1", "small": 12, "few": [1, 2, 3]}'),
        (Limited, '{"short": "abcd", "maybe_short": null, "code": "abc", "small": 9, "few": [1], "user": "u-1"}'),
        (Limited, '{"maybe_short": "abcd", "words": ["ab", "a", "abc"], "user": 5}'),
        (Tree, '{"value": "a", "children": [{"value": "b", "children": [{"value": "c"}]}, {"value": "d"}]}'),
        (Tree, '{"parent": {"value": "p", "parent": {"value": "q", "parent": null}}, "value": "v"}'),
        (Tree, put('{"children": [{"parent": {"value": "<>"}}], "value": "v"}', long)),
        (City, put('{"unknown": "<>", "city_name": "<>", "population": 5}', long, odd)),
        (Tree, '{"children": [' * 30 + "]}" * 30),
        (Ping, '{"name": "a", "pong": {"count": 1, "pings": [{"name": "b", "pong": {"count": 2}}, {"name": "c"}]}}'),
        (Zoo, put('{"one": <>, "maybe": <>, "tagged": <>, "maybe_tagged": <>}', *(pet,) * 4)),
        (
            Zoo,
            '{"one": {"type": "dog", "tricks": ["sit", "roll"], "name": "Rex"}, "maybe": null, "maybe_tagged": null}',
        ),
        (Zoo, '{"one": {"name": "Rex", "tricks": ["sit"], "type": "dog"}, "maybe": {"type": "bird"}, "tagged": 5}'),
        (Zoo, put('{"all": [<>, {"name": "x", "fins": 3}, {"name": "y"}, {"fins": 1}, <>]}', pet, pet)),
        (Zoo, '{"nested": {"name": "x", "fins": 3}, "one": {"type": "dog", "name": "y", "tricks": []}}'),
        (Zoo, '{"nested": {"name": "x", "type": "cat"}, "tagged": {"lives": 5, "name": "z"}}'),
        (Zoo, put('{"by_name": {"a": <>, "b": {"type": "dog", "name": "Rex"}, "c": {"name": "?"}}}', pet)),
        (Zoo, '{"one": {"unknown": 1, "name": "a", "lives": 3, "type": "cat"}, "all": [{"unknown": [1]}]}'),
        (Zoo, put('{"all": [{"type": "cat", "name": "<>"}, {"name": "b", "type": "dog"}]}', long)),
        (Mixed, '{"number_or_text": "5", "text_or_date": "2024-01-01", "flag_or_list": [1, 2], "words": "a"}'),
        (
            Mixed,
            '{"number_or_text": 5, "text_or_date": "some day", "flag_or_list": true, "words": null, "color": "red"}',
        ),
        (Mixed, '{"model_or_dict": {"x": 1}, "model_or_text": {"x": 2}, "model_or_point": {"x": 3}}'),
        (Mixed, '{"model_or_dict": {"a": "b"}, "model_or_text": "text", "model_or_point": {"x": 3, "y": 0.25}}'),
        (Mixed, '{"lists": ["a", "b"], "list_or_tuple": ["a", "b"], "color": 7, "flag_or_list": "x"}'),
        (Mixed, '{"lists": [{"x": 1}, {"x": 2}], "list_or_tuple": [{"x": 1}, {"x": 2}, {"x": 3}], "color": 12}'),
        (Mixed, '{"nested": {"x": 1}, "words": "c"}'),
        (Mixed, '{"odd": {"x": 1, "y": 2}, "odd": "a", "odd": 1, "odd": {"x": 3}}'),
        (Mixed, '{"nested": {"x": 1, "y": 2}, "model_or_text": [1], "model_or_dict": 5}'),
        (Mixed, '{"nested": {"x": 1, "z": 2}, "lists": [], "list_or_tuple": [], "model_or_dict": {}}'),
        (Aliased, '{"firstName": "a", "two": 2, "right": "l", "left": "r"}'),
        (Aliased, '{"first": "a", "zwei": 2, "right": "l", "left": "r"}'),
        (Aliased, '{"second": 3, "firstName": "abc", "left": "r", "right": "l"}'),
        (
            Pages,
            put('{"words": {"items": ["a", "b"], "next": "c"}, "models": {"items": [<>], "next": <>}}', item, item),
        ),
        (Sides, '{"side": {"x": 1, "R": 2}, "sides": [{"X": 1, "left": 2}, {"x": 3}, {"X": 4}]}'),
        (Open, '{"name": "n", "more": {"a": [1, "b"]}, "text": "grows not", "number": 12, "name": "again"}'),
        (Closed, '{"name": "n", "inner": [{"name": "a"}, {"name": "b", "inner": [{"name": "c"}]}]}'),
        (Closed, '{"name": "n", "more": 1, "inner": [{"other": 2, "name": "x"}]}'),
        (Empty, "{}"),
        (Empty, '{"a": {"b": "c"}}'),
    ]


class Maker:
    """A generator of random schemas and documents, which are equal for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0

    def document(self) -> tuple[type[BaseModel], str]:
        while True:
            model = self._model(3)
            text = self._blank() + self._write(model) + self._blank()
            if len(text) < 500:
                return model, text

    def _model(self, depth: int) -> type[BaseModel]:
        self.count += 1
        fields: dict[str, Any] = {f"f{n}": (self._kind(depth), ...) for n in range(self.rng.randint(1, 4))}
        return create_model(f"Made{self.count}", **fields)

    def _kind(self, depth: int) -> Any:
        rng = self.rng
        plain: list[Any] = [str, str, int, float, bool, date, Color, Decimal, UUID, Literal["a", "b", 1], Any, Point]
        if depth == 0 or rng.random() < 0.4:
            return rng.choice(plain)
        make: list[Callable[[], Any]] = [
            lambda: list[self._kind(depth - 1)],  # type: ignore[misc]
            lambda: dict[str, self._kind(depth - 1)],  # type: ignore[misc]
            lambda: Optional[self._kind(depth - 1)],  # noqa: UP045
            lambda: self._model(depth - 1),
            lambda: list[self._model(depth - 1)],  # type: ignore[misc]
            lambda: rng.choice([Item, Tree, Ping, Report, City, Scalars]),
            lambda: rng.choice([Cat | Dog, Cat | Dog | Fish, list[Cat | Dog]]),
            lambda: rng.choice([tuple[int, str], set[int], Movie, Names, dict[int, str], UserId]),
            lambda: Annotated[str, Field(max_length=6)],
        ]
        return rng.choice(make)()

    def _write(self, kind: Any) -> str:
        if self.rng.random() < 0.02:  # Sometimes generate a value of a wrong type.
            kind = self.rng.choice([str, int, bool, list[int], dict[str, str], Item, None])
        kind = getattr(kind, "__supertype__", kind)
        for test, write in self._writers:
            if test(kind):
                return write(kind)
        raise AssertionError(kind)

    @property
    def _writers(self) -> list[tuple[Callable[[Any], bool], Callable[[Any], str]]]:
        rng = self.rng
        origin: Callable[[Any], Any] = lambda kind: getattr(kind, "__origin__", None)  # noqa: E731
        arguments: Callable[[Any], Any] = lambda kind: getattr(kind, "__args__", ())  # noqa: E731
        return [
            (lambda kind: kind in (str, bytes) or hasattr(kind, "__metadata__"), lambda _: self._text()),
            (lambda kind: kind is None or kind is type(None), lambda _: "null"),
            (lambda kind: kind is bool, lambda _: rng.choice(["true", "false"])),
            (lambda kind: kind in (int, float, Decimal), self._number),
            (lambda kind: kind is date, lambda _: '"2024-02-29"'),
            (lambda kind: kind is datetime, lambda _: '"2024-02-29T12:30:00Z"'),
            (lambda kind: kind is UUID, lambda _: '"12345678-1234-5678-1234-567812345678"'),
            (lambda kind: kind is Color, lambda _: rng.choice(['"red"', '"dark blue"', "7"])),
            (lambda kind: origin(kind) is Literal, lambda kind: json.dumps(rng.choice(arguments(kind)))),
            (lambda kind: kind is Any, lambda _: self._write(rng.choice([str, int, list[Any], dict[str, Any], bool]))),
            (lambda kind: kind is Point, lambda _: self._object([("x", int), ("y", float)])),
            (lambda kind: kind is Movie, lambda _: self._object([("name", str), ("year", int)])),
            (lambda kind: kind is Names, lambda _: self._array([str] * rng.randint(0, 3))),
            (lambda kind: origin(kind) is tuple, lambda kind: self._array(arguments(kind))),
            (lambda kind: origin(kind) in (list, set), lambda kind: self._array(arguments(kind) * rng.randint(0, 3))),
            (lambda kind: origin(kind) is dict, self._dict),
            (lambda kind: isinstance(kind, type) and issubclass(kind, BaseModel), self._fields),
            (lambda kind: bool(arguments(kind)), lambda kind: self._write(rng.choice(arguments(kind)))),
        ]

    def _dict(self, kind: Any) -> str:
        key, value = kind.__args__
        names = [str(self.rng.randint(0, 5)) if key is int else self.rng.choice("abcdeé") for _ in range(3)]
        return self._object([(name, value) for name in names[: self.rng.randint(0, 3)]])

    def _fields(self, kind: type[BaseModel]) -> str:
        rng = self.rng
        kind.model_rebuild()
        fields: list[tuple[str, Any]] = [(name, info.annotation) for name, info in kind.model_fields.items()]
        if kind in (Tree, Ping, Report) and rng.random() < 0.5:  # Sometimes end the recursion.
            fields = fields[:1]
        if rng.random() < 0.3:
            rng.shuffle(fields)
        if rng.random() < 0.1:
            fields.pop()
        if rng.random() < 0.1:
            fields.insert(rng.randint(0, len(fields)), ("unknown", Any))
        if fields and rng.random() < 0.05 and kind not in (Cat, Dog, Fish):
            fields.append(fields[0])
        return self._object(fields)

    def _object(self, fields: Sequence[tuple[str, Any]]) -> str:
        parts = [
            self._blank() + self._quoted(name) + self._blank() + ":" + self._blank() + self._write(kind) + self._blank()
            for name, kind in fields
        ]
        return "{" + (",".join(parts) or self._blank()) + "}"

    def _array(self, kinds: Sequence[Any]) -> str:
        parts = [self._blank() + self._write(kind) + self._blank() for kind in kinds]
        return "[" + (",".join(parts) or self._blank()) + "]"

    def _number(self, kind: Any) -> str:
        whole = ["0", "-1", str(self.rng.randint(-99, 99)), "12345678901234567890"]
        return self.rng.choice(whole if kind is int else [*whole, "1.5", "-2.25", "1e2", "3E-1"])

    def _text(self) -> str:
        signs = ["a", "b c", "é", "世", "😀", "\n", "\t", '"', "\\", "/", "\x7f", "lorem ipsum"]
        return self._quoted("".join(self.rng.choices(signs, k=self.rng.randint(0, 5))))

    def _quoted(self, text: str) -> str:
        if self.rng.random() < 0.6:
            return json.dumps(text, ensure_ascii=self.rng.random() < 0.5)
        made = "".join(f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else json.dumps(sign)[1:-1] for sign in text)
        return f'"{made}"' if len(text) < 8 else json.dumps(text)

    def _blank(self) -> str:
        return self.rng.choice(["", "", "", "", " ", "\n", "\t \r\n"])


def documents(made: int) -> list[tuple[type[BaseModel], str]]:
    """Return the hand-written documents and some random documents."""
    return _by_hand() + [Maker(seed).document() for seed in range(made)]
