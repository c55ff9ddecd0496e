"""Tests of XML with hostile text: text of users and models never becomes markup and is never lost silently.

The encoder receives values of every kind, and an independent oracle computes the expected elements and texts. The
decoder receives damaged documents, which it may reject, but it never crashes.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import enum
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID
from xml.parsers import expat

import pytest
from lxml import etree
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, create_model
from pydantic_core import to_json
from tests.cases import case
from tests.long_version import IS_LONG
from tests.unit.xml_schemas import FORBIDDEN, KEYS, WORDS, some_shape
from tests.waiting import waiting_for_nothing

from acorn._formats.json import excerpt, to_compact_json, to_json_text
from acorn._formats.schema.shape import Shape
from acorn._formats.xml.decode import decode_xml, parse_xml, read_xml
from acorn._formats.xml.encode import XmlStyle, encode_xml, error_document, skeleton
from acorn.errors import AcornError

VALUES = 100_000 if IS_LONG else 2_000
MUTANTS = 20_000 if IS_LONG else 1_000

EVIL = "</x><evil a='1'/><!-- --><![CDATA[ ]]>&lol;"
TEXTS = [
    *WORDS,
    "",
    "5",
    EVIL,
    "]]>" + EVIL,
    'a" b="c',
    "\x0b\x0c\x1f",
    "\ud83d",
    "\udc00\ud800",
    "\x00" * 3,
    "e\u0301",
]
NAMES = [*KEYS, "evil/", EVIL, "a ", "xmlns", "xml:lang", "a\u0301", "_", "\ufeff", "א", "ı", "ª", "\u2160", "€"]


# Objects that misbehave.


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Loud:
    def __repr__(self) -> str:
        return EVIL


class Masked:
    """An object whose repr fails."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    def __repr__(self) -> str:
        return "Masked()"


class StubbornText(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no str")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class LoudInt(int):
    def __str__(self) -> str:
        return EVIL

    __repr__ = __str__


class LoudFloat(float):
    def __str__(self) -> str:
        return EVIL

    __repr__ = __str__


class ShyDict(dict[Any, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")

    values = __iter__ = __len__ = items


class ShyList(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("no iteration")

    __len__ = __iter__


class Table(Mapping[str, Any]):
    """A mapping that is not a dict."""

    def __init__(self, inner: dict[str, Any], *, broken: bool = False) -> None:
        self.inner, self.broken = inner, broken

    def __getitem__(self, key: str) -> Any:
        if self.broken:
            raise RuntimeError("broken")
        return self.inner[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)

    def __repr__(self) -> str:
        return f"Table({EVIL})"


class Colour(str, enum.Enum):  # noqa: UP042 - unlike a StrEnum's, its `str` is not its value
    RED = "<red/>"


class Size(int, enum.Enum):
    BIG = 10


class Odd(enum.Enum):
    BYTES = b"\xff"
    NOTHING = None


def class_named(name: str, **fields: Any) -> Any:
    return create_model(name, __config__=ConfigDict(extra="allow", protected_namespaces=()), **fields)


# The classes of models and dataclasses, with the tag of their items in a list.
TAGS: dict[Any, str] = {
    class_named("Source", title=(str, Field(description=EVIL)), n=(str, "")): "source",
    class_named("WebSource", title=(str, "")): "web_source",
    class_named("HTTPSource2", title=(Any, None)): "http_source2",
    class_named("Größe", title=(list[str], Field([], description="--"))): "größe",
    class_named("Bad Name", title=(Any, None)): "item",
    class_named("<evil/>", title=(Any, None)): "item",
    class_named("xml:Thing", title=(Any, None)): "item",
    class_named("Item[int]", title=(dict[str, str], Field({}, description="a\r\n\x00--->"))): "item",
    class_named("Fields", **{name: (Any, Field(None, description=name)) for name in NAMES if name != "_"}): "fields",
    dataclasses.make_dataclass("Point", [("title", Any), ("n", Any)]): "point",
    dataclasses.make_dataclass("SlotsPoint", [("title", Any), ("n", Any)], slots=True): "slots_point",
}
CLASSES = list(TAGS)


class Root(RootModel[Any]):
    pass


# The oracle: the expected tree of a value.

Tree = tuple[str, Any]
"""A name, and the text or the list of trees inside."""


def oracle(name: str, value: Any, around: tuple[int, ...] = ()) -> Tree:
    while type(value) is Root:
        value = value.root
    if id(value) in around:
        return clean(name), "{...}" if isinstance(value, dict) else "[...]"
    members = children(value)
    if members is None:
        return clean(name), clean(words(value))
    inside = (*around, id(value))
    return clean(name), [oracle(key, item, inside) for key, item in members] or ""


def children(value: Any) -> list[tuple[str, Any]] | None:
    """Return the children of a container with their names, or None if the value is not a container."""
    if type(value) in TAGS:
        held = vars(value) if hasattr(value, "__dict__") else {f.name: getattr(value, f.name) for f in fields(value)}
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return [(name, item) for name, item in {**held, **extra}.items() if not is_none(item)]
    if type(value) in (dict, ShyDict, collections.OrderedDict):
        # As in JSON, the last of two equal keys stays.
        return list({key_text(key): item for key, item in dict.items(value)}.items())
    if type(value) is Table and not value.broken:
        return list(value.inner.items())
    if type(value) in (list, ShyList):
        return [(tag(item), item) for item in list.__iter__(value)]
    if type(value) in (tuple, set, frozenset, collections.deque):
        return [(tag(item), item) for item in value]
    return None


def fields(value: Any) -> Any:
    return dataclasses.fields(value)


def is_none(value: Any) -> bool:
    return value is None or value is Odd.NOTHING


def tag(item: Any) -> str:
    return TAGS.get(type(item), "item")


def key_text(key: Any) -> str:
    return key if type(key) is str else "None" if key is None else words(key)


def words(value: Any) -> str:
    """Return the JSON text of a scalar without quotes."""
    if isinstance(type(value), enum.EnumMeta):
        value = value.value
    if value is None:
        return ""
    if type(value) in (str, StubbornText):
        return str.__str__(value)
    if type(value) in (bytes, bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if type(value) in (int, LoudInt):
        return str(Decimal(int.__add__(value, 0)))
    if type(value) in (bool, float, LoudFloat, Decimal, datetime, date, timedelta, UUID) or type(value) is type(Path()):
        return to_json(value, inf_nan_mode="constants").decode().strip('"')
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__} without a repr>"


def clean(text: str) -> str:
    return FORBIDDEN.sub("\ufffd", text)


# Random values.


LEAVES: list[Callable[[random.Random], Any]] = [
    *[lambda rng: rng.choice(TEXTS)] * 6,
    lambda rng: rng.choice([0, -1, 10**5000, True, False, LoudInt(7), rng.getrandbits(70)]),
    lambda rng: rng.choice([0.0, -0.0, 1e300, 5e-324, float("nan"), float("inf"), LoudFloat(1.5), rng.uniform(-9, 9)]),
    lambda rng: None,
    lambda rng: rng.choice([b"", b"plain", b"\xff\x00", b"<evil/>", bytearray(b"\xfe"), EVIL.encode()]),
    lambda rng: rng.choice([Decimal("1.50"), datetime(2024, 2, 3, 4, 5), date(1, 1, 1), timedelta(1), UUID(int=3)]),
    lambda rng: rng.choice([Colour.RED, Size.BIG, Odd.BYTES, Odd.NOTHING, Path("<evil>/a&b")]),
    lambda rng: rng.choice([Mute(), Loud(), Masked(), StubbornText("<evil/>"), ValueError(EVIL), KeyError, len, ...]),
    lambda rng: Table({"a": 1, "<b>": EVIL}, broken=rng.random() < 0.5),
]
ODD_KEYS: list[Any] = [1, 1.5, None, True, b"\xff", b"k", Loud(), Size.BIG]


def some_value(rng: random.Random, size: int) -> Any:
    if size <= 0 or rng.random() < 0.25:
        return rng.choice(LEAVES)(rng)
    inner = [some_value(rng, size - rng.randint(1, 3)) for _ in range(rng.choice([0, 1, 2, 2, 3]))]
    match rng.randrange(12):
        case 0 | 1:
            return rng.choice([list, tuple, collections.deque, ShyList])(inner)
        case 2:
            return rng.choice([set, frozenset])(rng.choice(TEXTS) for _ in inner)
        case 3 | 4 | 5:
            return rng.choice([dict, ShyDict])({rng.choice(NAMES): item for item in inner})
        case 6:
            return {rng.choice(ODD_KEYS): item for item in inner}
        case 7:
            return Root(inner)
        case 8:
            return circle(rng, inner)
        case _:
            return some_instance(rng, inner)


def some_instance(rng: random.Random, inner: list[Any]) -> Any:
    """Return a random instance of a Pydantic class or dataclass with random field values."""
    cls = rng.choice(CLASSES)
    is_model = issubclass(cls, BaseModel)
    names = list(cls.model_fields) if is_model else [field.name for field in fields(cls)]
    rng.shuffle(names)
    if not is_model:
        return cls(**dict(itertools.zip_longest(names, inner[: len(names)])))
    extra = {name: item for name, item in zip(NAMES, inner, strict=False) if rng.random() < 0.2 and name not in names}
    return cls.model_construct(**dict(zip(names, inner, strict=False)), **extra)


def circle(rng: random.Random, inner: list[Any]) -> Any:
    if rng.random() < 0.5:
        inner.append(inner)
        return inner
    loop: dict[str, Any] = {"item": inner}
    loop["again"] = loop
    return loop


def read_back(document: str) -> Tree:
    """Parse a document with two XML parsers, and return its elements with their texts."""
    data = document.encode()
    expat.ParserCreate().Parse(data, True)
    return as_tree(etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True)))


def as_tree(element: Any) -> Tree:
    inner = [child for child in element if isinstance(child.tag, str)]
    name = element.get("key", "entry") if element.tag == "entry" else element.tag
    assert set(element.attrib) <= {"key", "description"}
    if not inner:
        return name, element.text or ""
    around = [element.text, *(child.tail for child in element)]
    assert not "".join(text or "" for text in around).strip()
    return name, [as_tree(child) for child in inner]


STYLES = [XmlStyle(), XmlStyle(description_format="comment"), XmlStyle(descriptions=False)]


def test_hostile_value_is_encoded_as_xml_text_without_markup(record_property: Callable[[str, object], None]) -> None:
    record_property("tried", f"{VALUES:,} hostile values as XML")
    for seed in range(VALUES):
        rng = random.Random(seed)
        value = some_value(rng, rng.choice([1, 4, 8]))
        document = encode_xml(value, "input", rng.choice(STYLES))
        assert read_back(document) == oracle("input", value), f"seed {seed}\n{document}"


def test_any_value_is_converted_to_valid_json_text() -> None:
    for seed in range(VALUES // 10):
        rng = random.Random(seed)
        value = some_value(rng, rng.choice([1, 4, 8]))
        for write in (to_compact_json, to_json_text):
            json.loads(write(value), parse_int=str)
        assert len(excerpt(value)) <= 120


def test_deeply_nested_value_is_converted_to_json_text() -> None:
    for levels in [149, 150, 151, 254, 255, 300, 405, 1_000, 100_000]:
        for leaf in ["x", b"\xff", "\ud800"]:
            with case(levels, leaf):
                for write in (to_compact_json, to_json_text):
                    assert write(nested(leaf, levels)).startswith('{"a":[' if levels % 2 else '[{"a":')


def test_value_nested_up_to_128_levels_is_encoded_as_xml() -> None:
    for levels in [1, 100, 128]:
        for leaf in ["x", b"\xff"]:
            with case(levels, leaf):
                assert read_back(encode_xml(nested(leaf, levels), "input")) == oracle("input", nested(leaf, levels))


def test_value_nested_over_128_levels_raises_acorn_error() -> None:
    for levels in [129, 150, 200, 254, 255, 300, 1_000, 100_000]:
        for leaf in ["x", b"\xff", "\ud800"]:
            with case(levels, leaf), pytest.raises(AcornError, match="nested more than 128 levels deep"):
                encode_xml(nested(leaf, levels), "input")


def nested(leaf: object, levels: int) -> Any:
    value: Any = leaf
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_generator_is_encoded_as_xml_list() -> None:
    assert read_back(encode_xml({"g": (text for text in TEXTS)}, "input")) == oracle("input", {"g": TEXTS})


def test_generator_that_raises_is_encoded_as_its_repr() -> None:
    def failing() -> Iterator[str]:
        yield EVIL
        raise RuntimeError("no more")

    value = {"a": EVIL, "g": failing()}
    assert read_back(encode_xml(value, "input")) == ("input", [("a", EVIL), ("g", repr(value["g"]))])


def test_model_with_unserializable_field_is_encoded_without_excluded_fields() -> None:
    class Account(BaseModel):
        model_config = ConfigDict(ser_json_bytes="base64")
        name: str
        token: str = Field(exclude=True)
        picture: bytes = b"\x01\x02"
        bad: Any = None

    account = Account(name="a", token="hidden", bad=b"\xff")
    account.bad = account
    found = dict(read_back(encode_xml([account], "input"))[1][0][1])
    assert found.keys() == {"name", "picture", "bad"}
    assert found["picture"] == "AQI="
    assert "hidden" not in found["name"] + found["picture"]


def test_hostile_field_description_is_encoded_without_markup() -> None:
    for description in [*TEXTS, "-", "--", "---", "a-", "-->", "--!>", "<!--", "- -", "\r-\x00-"]:
        with case(description):
            schema = class_named("Described", **{"field": (str, Field(description=description)), "<odd>": (str, "x")})
            value = schema(field="value")
            for style in STYLES:
                document = encode_xml(value, "input", style)
                assert read_back(document) == ("input", [("field", "value"), ("<odd>", "x")])
                element = etree.fromstring(document.encode())[-2]
                if style == XmlStyle():
                    assert element.get("description", "") == clean(description)
            form = skeleton(Shape(schema).xml_schema, "output")
            assert [name for name, _ in read_back(form)[1]] == ["field", "<odd>"]


def test_validation_error_xml_escapes_quoted_text() -> None:
    for text in TEXTS:
        with case(text):
            problem: Any = {"path": text, "expected": text, "received": text}
            document = error_document([problem], text)
            expat.ParserCreate().Parse(document.encode(), True)
            error = etree.fromstring(document.encode())
            field = error.find("details/field")
            assert [child.tag for child in error] == ["message", "details", "instruction"]
            assert field.get("name") == (clean(text) or "output")
            assert [error[0].text or "", field[0].text or "", field[1].text or ""] == [clean(text)] * 3


# Broken documents.

INSERTS = [
    "<", ">", "&", "</", "/>", "<a>", "</a>", "<output>", "</output>", "<output/>", "<item>", "</item>", '<entry key="',
    "<entry key='x'>", "<!--", "-->", "<![CDATA[", "]]>", "<?", "?>", "<!DOCTYPE x>", '<!DOCTYPE x [<!ENTITY a "b">]>',
    "<!ENTITY", "&a;", "&#0;", "&#xD800;", "&#99999999;", "&amp", "&lt;", "\x00", "\x0b", "\ud800", "\udfff", "\ufffe",
    "\r", "\n", "\t", " ", "```", "```xml\n", "{", "[", '{"a": [1, {"b": null}]}', "[" * 300, '{"a":' * 300, "9" * 5000,
    "1e999", "NaN", "-Infinity", "null", "None", "true", "\u2028", "🦔", "=", '"', "'", "key=", " a=1", "<é>", "<a:b>",
    "<a b='c' d=\"e\" />", "Here is my answer:\n", "\nThe <output> element is above.",
]  # fmt: skip


def mutated(rng: random.Random, document: str) -> str:
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        begin, end = sorted(rng.randint(0, len(document)) for _ in range(2))
        end = min(end, begin + rng.choice([1, 5, 50, 5000]))
        chunk = document[begin:end]
        match rng.randrange(7):
            case 0:
                document = document[:begin] + document[end:]
            case 1:
                document = document[:end] + chunk * rng.choice([1, 1, 3]) + document[end:]
            case 2:
                document = document[end:] + document[begin:end] + document[:begin]
            case 3:
                document = document[: len(document) - rng.choice([1, 3, 9, len(document) // 2])]
            case 4:
                document = f"Well, {rng.choice(INSERTS)}\n```xml\n{document}\n```\nDone. {rng.choice(INSERTS)}"
            case _:
                document = document[:begin] + rng.choice(INSERTS) + document[begin:]
    return document


def test_damaged_xml_answer_is_decoded_or_raises_documented_error(
    record_property: Callable[[str, object], None],
) -> None:
    record_property("tried", f"{MUTANTS:,} damaged XML answers")
    outcomes: collections.Counter[str] = collections.Counter()
    for seed in range(MUTANTS // 20):
        rng = random.Random(seed)
        shape, make = some_shape(rng)
        document = encode_xml(make(rng).value, "output", rng.choice(STYLES))
        for _ in range(20):
            try:
                found = decode_xml(mutated(rng, document), shape, "output")
                assert isinstance(found, shape.schema)
                outcomes["read"] += 1
            except (ValidationError, AcornError) as error:
                outcomes[type(error).__name__] += 1
    assert all(outcomes[kind] > MUTANTS // 50 for kind in ("read", "ValidationError", "ParseError")), outcomes


class Note(BaseModel):
    text: str = ""
    items: list[str] = []
    table: dict[str, str] = {}
    anything: Any = None


NOTE = Shape(Note)

LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
BOMBS = {
    "billion laughs": f'<!DOCTYPE x [<!ENTITY l0 "lol">{LAUGHS}]><output><text>&l9;</text></output>',
    "quadratic": f'<!DOCTYPE x [<!ENTITY a "{"x" * 50_000}">]><output><text>{"&a;" * 50_000}</text></output>',
    "a file": '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]><output><text>&a;</text></output>',
    "an address": '<!DOCTYPE x SYSTEM "http://localhost/x.dtd"><output><text>a</text></output>',
    "in small letters": "<!doctype output><output><text>a</text></output>",
    "behind a declaration": '<?xml version="1.0"?>\n<!DOCTYPE x>\n<output><text>a</text></output>',
    "inside": '<output><!ENTITY a "b"><text>&a;</text></output>',
    "inside text": "<output><text><!DOCTYPE x></text></output>",
    "65 levels": "<output>" + "<a>" * 64 + "</a>" * 64 + "</output>",
    "65 levels, the last one empty": "<output>" + "<a>" * 63 + "<a/>" + "</a>" * 63 + "</output>",
    "65 levels, left open": "<output>" + "<a>" * 64,
    "65 levels of answers": "<output>" * 65 + "</output>" * 65,
    "100,000 levels": "<output>" + "<a>" * 100_000 + "</a>" * 100_000 + "</output>",
    "1,000,000 levels": "<output>" + "<a>" * 1_000_000 + "</a>" * 1_000_000 + "</output>",
    "1,000,000 levels, left open": "<output>" + "<a>" * 1_000_000,
    "JSON of 100 levels": "<output><items>" + "[" * 100 + "]" * 100 + "</items></output>",
    "one character too many": "<output><text>" + "x" * (1_000_001 - 30) + "</text></output>",
    "100 MB": "<output>" + "x" * 100_000_000,
}


def test_decode_xml_bomb_raises_acorn_error() -> None:
    for name, document in BOMBS.items():
        with case(name), waiting_for_nothing(time.process_time), pytest.raises(AcornError):
            decode_xml(document, NOTE, "output")


def test_parse_xml_rejects_dtd() -> None:
    document = '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'
    with pytest.raises(AcornError, match="DTD"):
        parse_xml(document, 0, len(document))


def test_xml_answer_at_size_and_nesting_limits_is_decoded() -> None:
    longest = "x" * (1_000_000 - 30)
    assert decode_xml(f"<output><text>{longest}</text></output>", NOTE, "output") == Note(text=longest)
    deepest = "<output><anything>" + "<a>" * 62 + "x" + "</a>" * 62 + "</anything></output>"
    found = decode_xml(deepest, NOTE, "output")
    for _ in range(62):
        found = found.anything if isinstance(found, Note) else found["a"]  # type: ignore[index]


# Values that would take hours if any part were read again and again.
UNITS = [
    "<!--", "<![CDATA[", "<?", '<a b="', "</a>", "<a>", "&", "<", "<a ", "<a b=", "<a/>", "<!-- -->", "<![CDATA[]]>",
    "&#", "&lt;", " ", "\n", "<output>", "</output>", "<output/>", "<output><text>", "<!DOCTYP", "-", "--", "```", "[",
    '{"a":', "\r", "<item>x</item>", '<entry key="',
]  # fmt: skip
FRAMES = {
    "bare": "{}",
    "text": "<output><text>{}</text></output>",
    "cut off": "<output><text>a</text>{}",
    "list": "<output><items>{}</items></output>",
    "dict": "<output><table>{}</table></output>",
    "anything": "<output><anything>{}</anything></output>",
    "attribute": '<output><text a="{}">a</text></output>',
}
LISTED = UNITS[:7]


def test_xml_decoding_time_grows_linearly_with_answer_length() -> None:
    for unit in UNITS:
        with case(unit):
            for frame in FRAMES.values():
                size = 999_900 if IS_LONG else 300_000 if unit in LISTED and frame == FRAMES["text"] else 20_000
                document = frame.format(unit * (size // len(unit)))
                with waiting_for_nothing(time.process_time), contextlib.suppress(ValidationError, AcornError):
                    decode_xml(document, NOTE, "output")


class Left(BaseModel):
    value: int
    inner: Left | Right | None = None


class Right(BaseModel):
    value: str
    inner: Left | Right | None = None


class Add(BaseModel):
    kind: Literal["add"] = "add"
    inner: Annotated[Add | Negate, Field(discriminator="kind")] | str


class Negate(BaseModel):
    kind: Literal["negate"] = "negate"
    inner: Annotated[Add | Negate, Field(discriminator="kind")] | str


def tower(low: type[BaseModel], high: type[BaseModel], *values: Any) -> Any:
    """Return instances of two alternating classes that are nested sixty levels deep."""
    node: Any = None if values else "x"
    for level in range(60):
        fields = {"value": values[level % 2]} if values else {}
        node = (low, high)[level % 2].model_construct(**fields, inner=node)
    return node


def test_nested_unions_in_xml_answer_are_decoded_without_exponential_search() -> None:
    # Pydantic tries all members if nothing distinguishes them, so it is not asked here.
    node = tower(Right, Left, "x", 5)
    assert read_xml(encode_xml(node, "output"), Shape(Left), "output") == node.model_dump(exclude_none=True)
    node = tower(Add, Negate)
    node = Negate(inner=node.inner)
    assert decode_xml(encode_xml(node, "output"), Shape(Negate), "output") == node
