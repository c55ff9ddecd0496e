"""Random schemas: classes of every kind with unusual names, and values that are hard to write.

A value that XML cannot hold by contract is marked with the reason when it is made.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import random
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, Union
from uuid import UUID

import pydantic
from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter, create_model
from pydantic_core import to_json
from typing_extensions import TypedDict

from acorn._formats.schema.shape import RESULT, Shape, shape_of

# Reasons why a round trip may change a value.
READS_AS_OTHER = "text in a union that reads as a number, a truth value or nothing"
EMPTY = "emptiness in a union that holds more than one kind of it"
NONE_WRITTEN = "None that is written, where emptiness is something else"
NONE_OMITTED = "None that is left out, under another default"
TOLD_BY_NONE = "values of a union that only a None tells apart"
LIST_OR_DICT = "a single child, which a list and a dict in a union may have alike"
JSON_TOO = "JSON does not hold it either"

FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
WORDS = [
    "plain", " ", "  two  ", "\n", "\r", "\r\n", "\t", "a\nb", "\n  indented\n", "trailing\n", "a\rb", "\u00a0",
    "\u2028x\x85", "<", ">", "&", "&amp;", "&lt;b&gt;", "&#13;", "&nope;", "]]>", "<![CDATA[x]]>", "<!-- x -->", "--",
    "-->", "<? ?>", "<output>", "</output>", "<output>a</output>", "<output", "<item>1</item>", "<b>bold</b>", "<br/>",
    "<!DOCTYPE a>", "```xml", "```", '"', "'", '{"a": 1}', "[1, 2]", "{", "[", "null", "None", "True", "007", "1_000",
    "1e5", " 5", "+5", "0x1", "١", "nan", "é", "日本語", "𝒳𝒴", "🦔", "a\u0301", "\ud800", "x\udfffy", "\x00", "\x1b[0m",
    "\ufffe", "\x7f", "ab" * 500,
]  # fmt: skip
KEYS = [
    "author", "year", "entry", "key", "item", "xml", "output", "a b", "1st", "", " ", "a:b", "-a", "a.b", "<b>", "a&b",
    '"quoted"', "it's", "größe", "名前", "𝒳", "🦔", "a\nb", "a\rb", "\t", "\x00", "a/b", "x=y", "²", "a²", "·",
]  # fmt: skip
NAMES = ["title", "count", "entry", "key", "item", "output", "xml", "größe", "名前", "x_1", "Title", "result", "a"]
ODD_NAMES = ["", "a b", "1st", "a:b", "<b>", 'q"q', "a&b", "🦔", "-a", "a\nb"]
CLASSES = ["Source", "WebSource", "HTTPSource", "Größe", "名前", "Item", "Output", "Box2", "X", "Entry"]
DESCRIPTIONS = [
    None, "What it is", "a -- b", "ends with -", "<output>", "</output>", "--><evil/>", 'say "x" & <y>', "two\nlines",
    "<!-- <output> -->", "\x00",
]  # fmt: skip

# A reason with this suffix counts only if a style writes None.
IF_WRITTEN = ", if None is written"


@dataclass(frozen=True)
class Made:
    """A value, and the reason why a round trip may change it."""

    value: Any
    reasons: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Kind:
    """A type annotation, and a function that creates values of this type."""

    hint: Any
    make: Callable[[random.Random], Made]
    form: Literal["scalar", "none", "list", "dict", "object", "union"] = "scalar"
    can_be_empty: bool = False
    """An element without content reads as a value of it."""


def plain(hint: Any, make: Callable[[random.Random], Any]) -> Kind:
    return Kind(hint, lambda rng: Made(make(rng)))


def some_text(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.01:
        return rng.choice(["", "5", "-1", "2.5", "true", "Infinity"])
    if draw < 0.6:
        return rng.choice(WORDS)
    return "x" + "".join(rng.choice(string.printable + "äß漢🦔\u0300") for _ in range(rng.randint(0, 12)))


def some_moment(rng: random.Random) -> datetime:
    zone = rng.choice([None, UTC, timezone(timedelta(hours=-5, minutes=-30))])
    return datetime(rng.randint(1, 9999), rng.randint(1, 12), rng.randint(1, 28), 1, 2, 3, rng.choice([0, 4500]), zone)


class Colour(enum.Enum):
    RED = "red"
    MARKED = "<b>"
    SPACED = " spaced "


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Mixed(enum.Enum):
    ONE = 1
    HALF = 0.5
    WORD = "word"


SCALARS = [
    *[plain(str, some_text)] * 5,
    plain(int, lambda rng: rng.choice([0, 1, -1, 10**30, rng.randint(-999, 999)])),
    plain(float, lambda rng: rng.choice([0.0, -0.0, 1.0, 1e300, 5e-324, 1e16, float("inf"), rng.uniform(-9, 9)])),
    plain(bool, lambda rng: rng.random() < 0.5),
    plain(Decimal, lambda rng: Decimal(rng.choice(["0", "1.10", "1E+3", "-0.00", "12345678901234567890.5", "3"]))),
    plain(datetime, some_moment),
    plain(date, lambda rng: some_moment(rng).date()),
    plain(time, lambda rng: time(rng.randint(0, 23), 5, rng.randint(0, 59), rng.choice([0, 250]))),
    plain(timedelta, lambda rng: timedelta(rng.randint(-9, 9), rng.randint(0, 9), rng.choice([0, 5]))),
    plain(UUID, lambda rng: UUID(int=rng.getrandbits(128))),
    plain(Colour, lambda rng: rng.choice(list(Colour))),
    plain(Level, lambda rng: rng.choice(list(Level))),
    plain(Mixed, lambda rng: rng.choice(list(Mixed))),
    plain(Literal["a", " b ", "<c>"], lambda rng: rng.choice(["a", " b ", "<c>"])),
    plain(Literal[0, 1, "x"], lambda rng: rng.choice([0, 1, "x"])),
    plain(Literal[True, 2], lambda rng: rng.choice([True, 2])),
    plain(bytes, lambda rng: b"\xff" if rng.random() < 0.01 else some_text(rng).encode("utf-8", "replace")),
    plain(Annotated[int, Field(ge=0, le=9)], lambda rng: rng.randint(0, 9)),
    plain(Annotated[str, Field(min_length=1, max_length=6)], lambda rng: clean(some_text(rng))[:6] or "x"),
    plain(Annotated[float, Field(gt=0)], lambda rng: rng.uniform(0.1, 5)),
]
NOTHING = Kind(None, lambda rng: Made(None), "none")


def some_kind(rng: random.Random, depth: int) -> Kind:
    if depth <= 0 or rng.random() < 0.35:
        return rng.choice(SCALARS)
    return rng.choice([some_list, some_tuple, some_set, some_dict, some_dict, some_object, some_object, some_union])(
        rng, depth - 1
    )


def together(parts: Sequence[Made], build: Callable[[list[Any]], Any]) -> Made:
    return Made(build([part.value for part in parts]), frozenset().union(*(part.reasons for part in parts)))


def some_list(rng: random.Random, depth: int) -> Kind:
    inner = some_kind(rng, depth)
    outer: Any = rng.choice([list, tuple])
    hint: Any = list.__class_getitem__(inner.hint) if outer is list else tuple.__class_getitem__((inner.hint, ...))
    return Kind(hint, lambda rng: together(several(rng, inner), outer), "list", can_be_empty=True)


def some_set(rng: random.Random, depth: int) -> Kind:
    inner = rng.choice(SCALARS)
    outer: Any = rng.choice([set, frozenset])
    return Kind(outer[inner.hint], lambda rng: together(several(rng, inner), outer), "list", can_be_empty=True)


def some_tuple(rng: random.Random, depth: int) -> Kind:
    inners = [some_kind(rng, depth) for _ in range(rng.randint(1, 3))]
    hint: Any = tuple.__class_getitem__(tuple(inner.hint for inner in inners))
    return Kind(hint, lambda rng: together([inner.make(rng) for inner in inners], tuple), "list")


def some_dict(rng: random.Random, depth: int) -> Kind:
    inner = some_kind(rng, depth)
    key = rng.choice(
        [
            *[plain(str, lambda rng: rng.choice(KEYS))] * 5,
            plain(int, lambda rng: rng.randint(-9, 9)),
            plain(Colour, lambda rng: rng.choice(list(Colour))),
            plain(date, lambda rng: some_moment(rng).date()),
        ]
    )

    def make(rng: random.Random) -> Made:
        return together(several(rng, inner), lambda values: {key.make(rng).value: value for value in values})

    return Kind(dict.__class_getitem__((key.hint, inner.hint)), make, "dict", can_be_empty=True)


def several(rng: random.Random, inner: Kind) -> list[Made]:
    return [inner.make(rng) for _ in range(rng.choice([0, 1, 2, 2, 3]))]


def some_union(rng: random.Random, depth: int) -> Kind:
    if rng.random() < 0.7:
        return either([some_kind(rng, depth), NOTHING])
    maker = rng.choice([some_kind, some_object])
    return either([maker(rng, depth) for _ in range(rng.randint(2, 3))] + [NOTHING] * (rng.random() < 0.2))


def either(members: Sequence[Kind]) -> Kind:
    can_be_empty = any(member.can_be_empty for member in members)

    def make(rng: random.Random) -> Made:
        made = rng.choice(members).make(rng)
        if made.value is None and rng.random() < (0.9 if can_be_empty else 0.6):
            made = members[0].make(rng)
        return Made(made.value, made.reasons | set(union_reasons(members, made.value)))

    return Kind(Union[tuple(member.hint for member in members)], make, "union", can_be_empty)  # noqa: UP007


def union_reasons(members: Sequence[Kind], value: Any) -> Iterator[str]:
    """Return the reasons why a value may be decoded as a value of another union member."""
    value = unwrapped(value)
    inside = list(leaves(value))
    is_choice = sum(member is not NOTHING for member in members) > 1
    if any(reads_as_other(leaf) if is_choice else leaf in ("", b"") for leaf in inside):
        yield READS_AS_OTHER
    emptiable = sum(member.can_be_empty for member in members)
    if value is None and emptiable:
        yield NONE_WRITTEN
    elif (emptiable > 1 or is_object(value)) and all(leaf is None for leaf in inside):
        yield EMPTY
    if is_choice and value is not None and None in inside:
        yield TOLD_BY_NONE
    forms = [member.form for member in members if member.form not in ("scalar", "none")]
    is_mixed = len(forms) > 1 and set(forms) != {"list"} and not set(forms) <= {"dict", "object"}
    if is_mixed and len(contents(value) if is_object(value) else value if hasattr(value, "__len__") else ()) == 1:
        yield LIST_OR_DICT


def unwrapped(value: Any) -> Any:
    while isinstance(value, RootModel):
        value = value.root
    return value


def leaves(value: Any) -> Iterator[Any]:
    """Yield every scalar in a value."""
    if is_object(value):
        value = contents(value)
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        yield value
        return
    for item in value.values() if isinstance(value, dict) else value:
        yield from leaves(item)


def reads_as_other(leaf: Any) -> bool:
    """Return whether a text could also be a number, a boolean or an empty element."""
    leaf = leaf.value if isinstance(leaf, enum.Enum) else leaf
    word = (
        leaf.decode("utf-8", "replace") if isinstance(leaf, bytes) else str(leaf) if isinstance(leaf, Decimal) else leaf
    )
    if not isinstance(word, str):
        return False
    for number in (int, float):
        try:
            if word == to_json(number(word), inf_nan_mode="constants").decode():
                return True
        except ValueError:
            continue
    return word in ("", "true", "false")


@dataclass
class Part:
    """A field under construction; a default of `...` means none."""

    kind: Kind
    default: Any = ...
    alias: str | None = None
    description: str | None = None

    def field(self, *, default: bool = True) -> Any:
        given = {} if self.default is ... or not default else {"default": self.default}
        return Field(alias=self.alias, description=self.description, **given)


def some_parts(rng: random.Random, depth: int, names: list[str]) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name in rng.sample(names, rng.randint(1, 4)):
        part = Part(some_kind(rng, depth), description=rng.choice(DESCRIPTIONS))
        if rng.random() < 0.3:
            part.kind, part.default = either([part.kind, NOTHING]), rng.choice([..., None])
        if rng.random() < 0.1:
            part.default = part.kind.make(rng).value
        parts[name] = part
    if rng.random() < 0.15:
        # Aliases that are names of other fields: only the field names distinguish these.
        for name, alias in zip(parts, [*list(parts)[1:], "someAlias"], strict=True):
            parts[name].alias = alias
    return parts


def fill(rng: random.Random, parts: dict[str, Part], *, omits_none: bool) -> Made:
    """Return values for the fields of an object."""
    values: dict[str, Any] = {}
    reasons: set[str] = set()
    for name, part in parts.items():
        made = part.kind.make(rng)
        values[name] = made.value
        if unwrapped(made.value) is None and omits_none:
            if part.default is not ... and part.default is not made.value:
                reasons.add(NONE_OMITTED)
            reasons |= {reason + IF_WRITTEN for reason in made.reasons}
        else:
            reasons |= made.reasons
    return Made(values, frozenset(reasons))


def some_object(rng: random.Random, depth: int) -> Kind:
    names = rng.choice([NAMES, NAMES, NAMES, NAMES + ODD_NAMES])
    return rng.choice([some_model, some_model, some_dataclass, some_typed_dict, some_tree, some_root])(
        rng, depth, names
    )


def some_model(rng: random.Random, depth: int, names: list[str]) -> Kind:
    parts = some_parts(rng, depth, names)
    fields: Any = {name: (part.kind.hint, part.field()) for name, part in parts.items()}
    config = ConfigDict(
        extra=rng.choice(["ignore", "forbid", "allow"]), ser_json_inf_nan="constants", protected_namespaces=()
    )
    return as_kind(create_model(rng.choice(CLASSES), __config__=config, **fields), parts)


def some_dataclass(rng: random.Random, depth: int, names: list[str]) -> Kind:
    parts = some_parts(rng, depth, [name for name in names if name.isidentifier()])
    fields: list[Any] = []
    for name, part in parts.items():
        default: Any = {} if part.default is ... else {"default_factory": lambda part=part: copy.deepcopy(part.default)}
        fields.append((name, Annotated[part.kind.hint, part.field(default=False)], dataclasses.field(**default)))
    made = dataclasses.make_dataclass(rng.choice(CLASSES), fields, kw_only=True)
    if rng.random() < 0.5:
        made = pydantic.dataclasses.dataclass(made, config=ConfigDict(ser_json_inf_nan="constants"))
    return as_kind(made, parts)


def some_typed_dict(rng: random.Random, depth: int, names: list[str]) -> Kind:
    parts = some_parts(rng, depth, names)
    required = {name: rng.random() < 0.7 for name in parts}
    fields = {
        name: (hint if required[name] else NotRequired[hint])
        for name, part in parts.items()
        for hint in [Annotated[part.kind.hint, part.field(default=False)]]
    }
    make_class: Any = TypedDict
    hint = make_class(rng.choice(CLASSES), fields)

    def make(rng: random.Random) -> Made:
        kept = {name: part for name, part in parts.items() if required[name] or rng.random() < 0.6}
        return fill(rng, kept, omits_none=False)

    can_be_empty = all(part.kind.form == "union" for name, part in parts.items() if required[name])
    return Kind(hint, make, "object", can_be_empty)


def some_tree(rng: random.Random, depth: int, names: list[str]) -> Kind:
    """Return a class with fields that contain the class itself, as a value and in a list."""
    value = rng.choice(SCALARS)
    fields: Any = {
        "value": (value.hint, Field(description=rng.choice(DESCRIPTIONS))),
        "next": ("Tree | None", None),
        "children": ("list[Tree]", []),
        "named": ("dict[str, Tree | int]", {}),
    }
    cls: Any = create_model("Tree", __config__=ConfigDict(ser_json_inf_nan="constants"), **fields)

    def grow(rng: random.Random, height: int) -> Any:
        smaller = [grow(rng, height - 1) for _ in range(rng.choice([0, 1, 3]) if height else 0)]
        return cls(
            value=value.make(rng).value,
            next=smaller[0] if smaller else None,
            children=smaller[1:],
            named={rng.choice(KEYS): rng.choice([tree, 5]) for tree in smaller[2:]},
        )

    return Kind(cls, lambda rng: Made(grow(rng, rng.randint(0, 3))), "object")


def some_root(rng: random.Random, depth: int, names: list[str]) -> Kind:
    inner = some_kind(rng, depth)
    base: Any = RootModel
    cls: Any = type("Wrapped", (base[inner.hint],), {"__module__": __name__})

    def make(rng: random.Random) -> Made:
        made = inner.make(rng)
        return Made(cls.model_validate(made.value, by_alias=False, by_name=True), made.reasons)

    return Kind(cls, make, inner.form, inner.can_be_empty)


def as_kind(cls: Any, parts: dict[str, Part]) -> Kind:
    adapter = TypeAdapter(cls)

    def make(rng: random.Random) -> Made:
        made = fill(rng, parts, omits_none=True)
        return Made(adapter.validate_python(made.value, by_alias=False, by_name=True), made.reasons)

    can_be_empty = all(part.default is not ... or part.kind.form == "union" for part in parts.values())
    return Kind(cls, make, "object", can_be_empty)


def is_object(value: Any) -> bool:
    return isinstance(value, BaseModel) or dataclasses.is_dataclass(value)


def contents(value: Any) -> dict[str, Any]:
    """Return the fields of a model or dataclass."""
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def clean(value: Any) -> Any:
    """Replace the characters that XML forbids with U+FFFD in a value."""
    if isinstance(value, enum.Enum):
        return value
    if isinstance(value, str):
        return FORBIDDEN.sub("\ufffd", value)
    if isinstance(value, bytes):
        return FORBIDDEN.sub("\ufffd", value.decode()).encode() if b"\xff" not in value else value
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(clean(item) for item in value)
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: clean(item) for name, item in contents(value).items()})
    if dataclasses.is_dataclass(value):
        cleaned = copy.copy(value)
        for name, item in contents(value).items():
            setattr(cleaned, name, clean(item))
        return cleaned
    return value


def some_shape(rng: random.Random) -> tuple[Shape, Callable[[random.Random], Made]]:
    """Return a random declared schema and a function that creates instances of its class."""
    kind = some_object(rng, 2) if rng.random() < 0.7 else some_kind(rng, 3)
    shape = shape_of(kind.hint, "Test", "final_output")

    def make(rng: random.Random) -> Made:
        made = kind.make(rng)
        if not shape.wrapped:
            return made
        return Made(shape.schema.model_validate({RESULT: made.value}, by_alias=False, by_name=True), made.reasons)

    return shape, make
