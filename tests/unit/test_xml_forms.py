"""Tests of the documented XML form of each kind of value, and of the answers that acorn decodes.

The examples of the seeds are verbatim.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import textwrap
from collections import deque
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    computed_field,
    create_model,
    field_serializer,
)
from tests.cases import case
from typing_extensions import TypedDict

from acorn._formats.schema.problems import find_problems
from acorn._formats.schema.shape import Shape, shape_of
from acorn._formats.xml.decode import decode_xml
from acorn._formats.xml.encode import XmlStyle, encode_xml, error_document, skeleton, snake_case
from acorn.errors import AcornError, ParseError

BARE = XmlStyle(descriptions=False)
COMMENT = XmlStyle(description_format="comment")


def lines(text: str) -> str:
    """Return a document of the tests without its indentation."""
    return textwrap.dedent(text).strip("\n")


class QuestionInput(BaseModel):
    question: str = Field(description="The question to answer")
    context: str | None = Field(default=None, description="Optional context")


class Source(BaseModel):
    title: str
    url: str


class ResearchInput(BaseModel):
    question: str
    sources: list[Source]
    max_depth: int = 3


class AnswerOutput(BaseModel):
    answer: str
    confidence: float = Field(ge=0, le=1)


# The examples of the seeds.

EXAMPLES: dict[str, tuple[Any, str, XmlStyle, str]] = {
    "a model": (
        QuestionInput(question="What is Python?", context="Programming languages"),
        "input",
        BARE,
        """
        <input>
          <question>What is Python?</question>
          <context>Programming languages</context>
        </input>
        """,
    ),
    "nested structures": (
        ResearchInput(
            question="Compare frameworks",
            sources=[
                Source(title="React Docs", url="https://react.dev"),
                Source(title="Vue Docs", url="https://vuejs.org"),
            ],
        ),
        "input",
        BARE,
        """
        <input>
          <question>Compare frameworks</question>
          <sources>
            <source>
              <title>React Docs</title>
              <url>https://react.dev</url>
            </source>
            <source>
              <title>Vue Docs</title>
              <url>https://vuejs.org</url>
            </source>
          </sources>
          <max_depth>3</max_depth>
        </input>
        """,
    ),
    "descriptions as comments": (
        QuestionInput(question="What is Python?"),
        "input",
        COMMENT,
        """
        <input>
          <!-- The question to answer -->
          <question>What is Python?</question>
        </input>
        """,
    ),
    "descriptions as attributes": (
        QuestionInput(question="What is Python?"),
        "input",
        XmlStyle(),
        """
        <input>
          <question description="The question to answer">What is Python?</question>
        </input>
        """,
    ),
    "context of a dict": (
        {"analysis_result": {"summary": "Data shows trend", "confidence": 0.8}},
        "context",
        XmlStyle(),
        """
        <context>
          <analysis_result>
            <summary>Data shows trend</summary>
            <confidence>0.8</confidence>
          </analysis_result>
        </context>
        """,
    ),
    "context of a string": (
        "Remember to be concise",
        "context",
        XmlStyle(),
        "<context>Remember to be concise</context>",
    ),
    "None left out": (
        QuestionInput(question="What is Python?", context=None),
        "input",
        BARE,
        """
        <input>
          <question>What is Python?</question>
        </input>
        """,
    ),
    "None as an empty element": (
        QuestionInput(question="What is Python?", context=None),
        "input",
        XmlStyle(descriptions=False, include_none=True),
        """
        <input>
          <question>What is Python?</question>
          <context />
        </input>
        """,
    ),
    "a list": (
        ["a", "b", "c"],
        "sources",
        XmlStyle(),
        """
        <sources>
          <item>a</item>
          <item>b</item>
          <item>c</item>
        </sources>
        """,
    ),
    "a dict": (
        {"author": "John", "year": "2024"},
        "metadata",
        XmlStyle(),
        """
        <metadata>
          <author>John</author>
          <year>2024</year>
        </metadata>
        """,
    ),
    "large text": (
        "\nThis is a very long document\nwith multiple lines\nand paragraphs.\n\nIt can contain any text.\n",
        "document",
        XmlStyle(),
        """
        <document>
        This is a very long document
        with multiple lines
        and paragraphs.

        It can contain any text.
        </document>
        """,
    ),
    "pretty printing": (
        {"question": "What is Python?", "context": "Programming"},
        "input",
        XmlStyle(),
        """
        <input>
          <question>What is Python?</question>
          <context>Programming</context>
        </input>
        """,
    ),
}


def test_documented_xml_examples_are_encoded_exactly() -> None:
    for name, (value, root, style, document) in EXAMPLES.items():
        with case(name):
            assert encode_xml(value, root, style) == lines(document)


def test_documented_xml_answer_is_decoded() -> None:
    reply = lines(
        """
        <output>
          <answer>Python is a programming language created in 1991.</answer>
          <confidence>0.95</confidence>
        </output>
        """
    )
    assert decode_xml(reply, Shape(AnswerOutput), "output") == AnswerOutput(
        answer="Python is a programming language created in 1991.", confidence=0.95
    )


def test_documented_validation_error_is_encoded_exactly_as_xml() -> None:
    shape = Shape(AnswerOutput)
    received = {"answer": "Python", "confidence": "very confident"}
    with pytest.raises(ValidationError) as caught:
        shape.schema.model_validate(received)
    assert error_document(find_problems(caught.value, shape.json_schema, received)) == lines(
        """
        <error type="validation">
          <message>Output validation failed</message>
          <details>
            <field name="confidence">
              <expected>float between 0 and 1</expected>
              <received>very confident</received>
            </field>
          </details>
          <instruction>Please provide the output again in the correct format.</instruction>
        </error>
        """
    )


def test_validation_error_xml_without_invalid_fields_has_no_details() -> None:
    assert error_document([], "The reply was cut off & lost.") == lines(
        """
        <error type="validation">
          <message>The reply was cut off &amp; lost.</message>
          <instruction>Please provide the output again in the correct format.</instruction>
        </error>
        """
    )


# Single values.


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Both(str, enum.Enum):  # noqa: UP042 - its `str` is not its value
    BOTH = "both"


TEXTS: list[tuple[Any, str]] = [
    ("plain", "<v>plain</v>"),
    ("", "<v />"),
    (" ", "<v> </v>"),
    ("  two  ", "<v>  two  </v>"),
    ("\n", "<v>\n</v>"),
    ("a\n\tb ", "<v>a\n\tb </v>"),
    ("a\rb\r\n", "<v>a&#13;b&#13;\n</v>"),
    ("< > & \" '", "<v>&lt; &gt; &amp; \" '</v>"),
    ("]]>", "<v>]]&gt;</v>"),
    ("<b>bold</b>", "<v>&lt;b&gt;bold&lt;/b&gt;</v>"),
    ("&amp;", "<v>&amp;amp;</v>"),
    ("a\x00b\x0b\x1f\ufffe", "<v>a\ufffdb\ufffd\ufffd\ufffd</v>"),
    ("\ud800", "<v>\ufffd</v>"),
    ("é 日本 🦔 \x7f\x85\u2028", "<v>é 日本 🦔 \x7f\x85\u2028</v>"),
    (None, "<v />"),
    (True, "<v>true</v>"),
    (False, "<v>false</v>"),
    (0, "<v>0</v>"),
    (-7, "<v>-7</v>"),
    (10**30, "<v>1000000000000000000000000000000</v>"),
    (10**5000, f"<v>1{'0' * 5000}</v>"),
    (0.1, "<v>0.1</v>"),
    (1.0, "<v>1.0</v>"),
    (-0.0, "<v>-0.0</v>"),
    (float("nan"), "<v>NaN</v>"),
    (float("-inf"), "<v>-Infinity</v>"),
    (Decimal("1.10"), "<v>1.10</v>"),
    (Colour.RED, "<v>red</v>"),
    (Level.LOW, "<v>1</v>"),
    (Both.BOTH, "<v>both</v>"),
    (datetime(2024, 2, 29, 12, 30, tzinfo=UTC), "<v>2024-02-29T12:30:00Z</v>"),
    (date(2024, 2, 29), "<v>2024-02-29</v>"),
    (time(12, 30), "<v>12:30:00</v>"),
    (timedelta(hours=36), "<v>P1DT12H</v>"),
    (UUID(int=1), "<v>00000000-0000-0000-0000-000000000001</v>"),
    (b"bytes", "<v>bytes</v>"),
    (b"\xff\x00", "<v>/wA=</v>"),
    (Path("a/b"), "<v>a/b</v>"),
    ([], "<v />"),
    ((), "<v />"),
    (set[int](), "<v />"),
    ({}, "<v />"),
    (ValueError("no <b>"), "<v>ValueError('no &lt;b&gt;')</v>"),
]


def test_single_value_is_encoded_as_one_xml_line() -> None:
    for value, document in TEXTS:
        with case(value):
            assert encode_xml(value, "v") == document


# Descriptions outside fields of a model.


@dataclasses.dataclass
class Stop:
    name: Annotated[str, Field(description="What it is called")]
    zone: int = Field(default=1, description="Where it lies")
    lines: list[str] = dataclasses.field(default_factory=list[str], metadata={"description": "What stops there"})
    plain: str = ""


class Route(BaseModel):
    first: Stop

    @computed_field(description="How long it takes")  # type: ignore[prop-decorator]
    @property
    def minutes(self) -> int:
        return 5

    @computed_field  # type: ignore[prop-decorator]
    @property
    def fare(self) -> float:
        """What it costs."""
        return 1.5


ROUTE = """\
<route>
  <first>
    <name description="What it is called">Zoo</name>
    <zone description="Where it lies">1</zone>
    <lines description="What stops there">
      <item>5</item>
    </lines>
    <plain />
  </first>
  <minutes description="How long it takes">5</minutes>
  <fare description="What it costs.">1.5</fare>
</route>"""


def test_dataclass_fields_and_computed_fields_are_encoded_with_descriptions() -> None:
    assert encode_xml(Route(first=Stop("Zoo", 1, ["5"])), "route") == ROUTE
    assert 'name description="What it is called"' in skeleton(Shape(Route).xml_schema, "route")


@dataclasses.dataclass
class Lost:
    name: Missing  # type: ignore[name-defined]  # noqa: F821


def test_dataclass_with_unresolvable_type_hint_is_encoded_as_xml() -> None:
    assert encode_xml(Lost("a"), "lost") == "<lost>\n  <name>a</name>\n</lost>"


class Reading(BaseModel):
    value: float
    rest: list[float] = []
    anything: Any = None


def test_nan_and_infinity_are_equal_after_xml_round_trip() -> None:
    shape = Shape(Reading)
    text = encode_xml(Reading(value=math.nan, rest=[math.inf, -math.inf], anything=math.nan), "output")
    assert text == (
        "<output>\n  <value>NaN</value>\n  <rest>\n    <item>Infinity</item>\n    <item>-Infinity</item>\n  </rest>\n"
        "  <anything>NaN</anything>\n</output>"
    )
    found = decode_xml(text, shape, "output")
    assert isinstance(found, Reading)
    assert math.isnan(found.value)
    assert found.rest == [math.inf, -math.inf]
    assert found.anything == "NaN"  # Without a schema, it is text.


# Containers.


class WebSource(BaseModel):
    title: str


@dataclasses.dataclass
class HTTPSource:
    title: str


@dataclasses.dataclass
class Slotted:
    __slots__ = ("title",)
    title: str


class Pair(NamedTuple):
    left: int
    right: str


class Movie(TypedDict):
    title: str


class Tags(RootModel[list[str]]):
    pass


class Wrapped(RootModel[WebSource]):
    pass


class Described(BaseModel):
    plain: str
    title: str = Field(description="What it is")
    inner: WebSource | None = Field(None, description="Another")
    tags: list[str] = Field([], description="Words")


class Aliased(BaseModel):
    model_config = ConfigDict(validate_by_name=True)
    from_: str = Field(alias="from")
    to: str = Field(validation_alias="TO", serialization_alias="target")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    title: str = "t"


class Custom(BaseModel):
    hidden: float = 0.5
    loud: str = "a"
    endless: Any = float("inf")

    @field_serializer("hidden")
    def hide(self, value: float) -> None:
        return None

    @field_serializer("loud")
    def shout(self, value: str) -> str:
        return value.upper()


ODD: Any = create_model("Odd", **{"a b": (str, Field("x", description="odd")), "1st": (int | None, None)})  # type: ignore[call-overload]
NAMELESS: Any = create_model("Bad Name", title=(str, "a"))
GENERIC: Any = create_model("Page[int]", title=(str, "a"))

CONTAINERS: dict[str, tuple[Any, str]] = {
    "a tuple": ((1, "a"), "<v>|  <item>1</item>|  <item>a</item>|</v>"),
    "a set": ({5}, "<v>|  <item>5</item>|</v>"),
    "a frozenset": (frozenset({5}), "<v>|  <item>5</item>|</v>"),
    "a deque": (deque([WebSource(title="a")]), "<v>|  <web_source>|    <title>a</title>|  </web_source>|</v>"),
    "a generator": ((n for n in (1, 2)), "<v>|  <item>1</item>|  <item>2</item>|</v>"),
    "a named tuple": (Pair(1, "a"), "<v>|  <item>1</item>|  <item>a</item>|</v>"),
    "a list in a list": ([["a"], []], "<v>|  <item>|    <item>a</item>|  </item>|  <item />|</v>"),
    "a list of dicts": ([{"a": 1}], "<v>|  <item>|    <a>1</a>|  </item>|</v>"),
    "a list with None and empty text": ([None, ""], "<v>|  <item />|  <item />|</v>"),
    "a list of models": ([WebSource(title="a")], "<v>|  <web_source>|    <title>a</title>|  </web_source>|</v>"),
    "a list of dataclasses": ([HTTPSource("a")], "<v>|  <http_source>|    <title>a</title>|  </http_source>|</v>"),
    "a dataclass with slots": ([Slotted("a")], "<v>|  <slotted>|    <title>a</title>|  </slotted>|</v>"),
    "a list of both kinds": (
        [WebSource(title="a"), 1],
        "<v>|  <web_source>|    <title>a</title>|  </web_source>|  <item>1</item>|</v>",
    ),
    "a class whose name is no XML name": ([NAMELESS()], "<v>|  <item>|    <title>a</title>|  </item>|</v>"),
    "a class with brackets in its name": ([GENERIC()], "<v>|  <item>|    <title>a</title>|  </item>|</v>"),
    "a dict of models": ({"a": WebSource(title="b")}, "<v>|  <a>|    <title>b</title>|  </a>|</v>"),
    "a dict with None": ({"a": None}, "<v>|  <a />|</v>"),
    "a typed dict": (Movie(title="Alien"), "<v>|  <title>Alien</title>|</v>"),
    "keys that are no text": ({1: "a", None: "b"}, '<v>|  <entry key="1">a</entry>|  <None>b</None>|</v>'),
    "a root model": (Tags(["a"]), "<v>|  <item>a</item>|</v>"),
    "a root model of a model": ([Wrapped(WebSource(title="a"))], "<v>|  <item>|    <title>a</title>|  </item>|</v>"),
    "extra fields": (
        Open.model_validate({"a b": 1, "c": None}),
        '<v>|  <title>t</title>|  <entry key="a b">1</entry>|</v>',
    ),
    "aliases": (Aliased.model_validate({"from_": "a", "TO": "b"}), "<v>|  <from_>a</from_>|  <to>b</to>|</v>"),
    "serializers of the class": (Custom(), "<v>|  <loud>A</loud>|  <endless>Infinity</endless>|</v>"),
    "odd field names": (ODD(), '<v>|  <entry key="a b" description="odd">x</entry>|</v>'),
    "a model of which nothing is left": (create_model("Empty", a=(int | None, None))(), "<v />"),
    "descriptions at every depth": (
        Described(plain="p", title="t", inner=WebSource(title="i"), tags=["a"]),
        '<v>|  <plain>p</plain>|  <title description="What it is">t</title>|  <inner description="Another">|'
        '    <title>i</title>|  </inner>|  <tags description="Words">|    <item>a</item>|  </tags>|</v>',
    ),
}


def test_list_and_dict_are_encoded_with_one_xml_element_per_item() -> None:
    for name, (value, document) in CONTAINERS.items():
        with case(name):
            assert encode_xml(value, "v") == document.replace("|", "\n")


def test_long_list_is_encoded_like_short_list() -> None:
    rows = [[str(number), {"square": number**2, "digits": list(str(number))}] for number in range(2000)]
    document = encode_xml({"rows": rows, "flat": [str(number) for number in range(2000)]}, "input")
    whole = ["<input>", "  <rows>"]
    for row in rows:
        whole += [f"    {line}" for line in encode_xml(row, "item").splitlines()]
    whole += [
        "  </rows>",
        "  <flat>",
        *(f"    <item>{number}</item>" for number in range(2000)),
        "  </flat>",
        "</input>",
    ]
    assert document.splitlines() == whole


KEYS = {
    "author": "<author>x</author>",
    "a-b.c_d1": "<a-b.c_d1>x</a-b.c_d1>",
    "_a": "<_a>x</_a>",
    "xml": "<xml>x</xml>",
    "entry": "<entry>x</entry>",
    "key": "<key>x</key>",
    "größe": "<größe>x</größe>",
    "名前": "<名前>x</名前>",
    "": '<entry key="">x</entry>',
    " ": '<entry key=" ">x</entry>',
    "a b": '<entry key="a b">x</entry>',
    "1st": '<entry key="1st">x</entry>',
    "-a": '<entry key="-a">x</entry>',
    ".a": '<entry key=".a">x</entry>',
    "a:b": '<entry key="a:b">x</entry>',
    "a/b": '<entry key="a/b">x</entry>',
    "<b>": '<entry key="&lt;b&gt;">x</entry>',
    "a&b": '<entry key="a&amp;b">x</entry>',
    "\"'": '<entry key="&quot;\'">x</entry>',
    "a\nb\tc\rd": '<entry key="a&#10;b&#9;c&#13;d">x</entry>',
    "a\x00": '<entry key="a\ufffd">x</entry>',
    "🦔": '<entry key="🦔">x</entry>',
    "𝒳": '<entry key="𝒳">x</entry>',
    "²": '<entry key="²">x</entry>',
}


def test_any_dict_key_is_equal_after_xml_round_trip() -> None:
    for key, element in KEYS.items():
        with case(key):
            shape = shape_of(dict[str, str], "Test", "final_output")
            assert encode_xml({key: "x"}, "v", XmlStyle()) == f"<v>\n  {element}\n</v>"
            found = shape.unwrap(decode_xml(encode_xml({"result": {key: "x"}}, "output"), shape, "output"))
            assert found == {key.replace("\x00", "\ufffd"): "x"}


def test_class_name_is_converted_to_snake_case() -> None:
    for name, tag in [
        ("Source", "source"),
        ("WebSource", "web_source"),
        ("HTTPSource", "http_source"),
        ("SourceHTTP", "source_http"),
        ("Source2", "source2"),
        ("V2Source", "v2_source"),
        ("web_source", "web_source"),
        ("X", "x"),
        ("ÄpfelBaum", "äpfel_baum"),
    ]:
        with case(name):
            assert snake_case(name) == tag


def test_comment_end_inside_description_is_escaped() -> None:
    for description, comment in [
        ("What it is", "<!-- What it is -->"),
        ("a -- b", "<!-- a - - b -->"),
        ("a --- b", "<!-- a - - - b -->"),
        ("ends with -", "<!-- ends with - -->"),
        ("-->", "<!-- - -> -->"),
        ("<b> & more", "<!-- <b> & more -->"),
        ("two\nlines\r", "<!-- two\nlines\n -->"),
        ("\x00", "<!-- \ufffd -->"),
    ]:
        with case(description):
            schema: Any = create_model("Described", title=(str, Field(description=description)))
            assert encode_xml(schema(title="x"), "v", COMMENT) == f"<v>\n  {comment}\n  <title>x</title>\n</v>"


def test_attribute_description_is_escaped() -> None:
    schema: Any = create_model("Described", title=(str, Field(description="\"a\" & 'b'\n<c>\t\r\x00")))
    assert encode_xml(schema(title="x"), "v").splitlines()[1] == (
        "  <title description=\"&quot;a&quot; &amp; 'b'&#10;&lt;c&gt;&#9;&#13;\ufffd\">x</title>"
    )


def test_empty_description_is_omitted() -> None:
    schema: Any = create_model("Described", title=(str, Field(description="")))
    assert encode_xml(schema(title="x"), "v") == "<v>\n  <title>x</title>\n</v>"
    assert encode_xml(schema(title="x"), "v", COMMENT) == "<v>\n  <title>x</title>\n</v>"


def test_document_has_no_trailing_newline_or_xml_declaration() -> None:
    document = encode_xml(ResearchInput(question="q", sources=[]), "input")
    assert document == "<input>\n  <question>q</question>\n  <sources />\n  <max_depth>3</max_depth>\n</input>"


# The form for the model.


class Node(BaseModel):
    value: int
    children: list[Node] = []
    parent: Node | None = Field(None, description="Above")


class Report(BaseModel):
    """A class whose description is not shown."""

    answer: str = Field(description="Your answer here")
    source: Source = Field(description="Where from")
    sources: list[Source]
    words: list[str]
    pair: tuple[int, str]
    scores: dict[str, float]
    either: Source | str
    maybe: int | None = None
    alias: str = Field(alias="otherName")
    anything: Any = None
    nested: list[dict[str, list[int]]] = []
    kind: Literal["a", "b"] = "a"


FORMS: dict[str, tuple[Any, str]] = {
    "fields": (
        AnswerOutput,
        """
        <output>
          <answer></answer>
          <confidence></confidence>
        </output>
        """,
    ),
    "everything": (
        Report,
        """
        <output>
          <answer description="Your answer here"></answer>
          <source description="Where from">
            <title></title>
            <url></url>
          </source>
          <sources>
            <item>
              <title></title>
              <url></url>
            </item>
          </sources>
          <words>
            <item></item>
          </words>
          <pair>
            <item></item>
            <item></item>
          </pair>
          <scores>
            <entry key="..."></entry>
          </scores>
          <either>
            <title></title>
            <url></url>
          </either>
          <maybe></maybe>
          <alias></alias>
          <anything></anything>
          <nested>
            <item>
              <entry key="...">
                <item></item>
              </entry>
            </item>
          </nested>
          <kind></kind>
        </output>
        """,
    ),
    "a class that holds itself": (
        Node,
        """
        <output>
          <value></value>
          <children>
            <item>
              <value></value>
              <children>
                <item></item>
              </children>
              <parent description="Above"></parent>
            </item>
          </children>
          <parent description="Above">
            <value></value>
            <children>
              <item></item>
            </children>
            <parent description="Above"></parent>
          </parent>
        </output>
        """,
    ),
    "no fields": ([], "<output></output>"),
    "a plain type": (
        list[int],
        """
        <output>
          <result>
            <item></item>
          </result>
        </output>
        """,
    ),
    "a dict of anything": (
        dict[str, Any],
        """
        <output>
          <result>
            <entry key="..."></entry>
          </result>
        </output>
        """,
    ),
    "keys with a pattern": (
        dict[Annotated[str, Field(pattern="^a")], int],
        """
        <output>
          <result>
            <entry key="..."></entry>
          </result>
        </output>
        """,
    ),
}


def test_xml_form_contains_one_empty_element_per_output_field() -> None:
    for name, (declared, form) in FORMS.items():
        with case(name):
            assert skeleton(shape_of(declared, "Test", "final_output").xml_schema, "output") == lines(form)


def test_xml_form_of_mutually_recursive_classes_is_finite() -> None:
    names = [f"C{n}" for n in range(12)]
    fields: Any = {f"f{n}": (f"{name} | None", None) for n, name in enumerate(names)}
    classes: dict[str, Any] = {name: create_model(name, **fields) for name in names}
    for made in classes.values():
        made.model_rebuild(_types_namespace=classes)
    form = skeleton(Shape(classes["C0"]).xml_schema, "output")
    assert form.count("\n") < 5000
    assert isinstance(decode_xml(form, Shape(classes["C0"]), "output"), classes["C0"])


# Understood answers.


class Reply(BaseModel):
    answer: str
    count: int = 0
    score: float = 0.0
    sure: bool = False
    words: list[str] = []
    sources: list[Source] = []
    numbers: list[int] | None = None
    table: dict[str, int] = {}
    either: Source | list[str] | str = ""
    kind: Literal["a", "b", 3] = "a"


REPLY = Shape(Reply)
SEED = Source(title="t", url="u")

FOUND: dict[str, tuple[str, Reply]] = {
    "prose around it": (
        "Sure! Here it is:\n\n<output><answer>x</answer></output>\n\nHope that helps.",
        Reply(answer="x"),
    ),
    "a code fence": ("```xml\n<output>\n  <answer>x</answer>\n</output>\n```", Reply(answer="x")),
    "a code fence that is never closed": ("```xml\n<output><answer>x</answer></output>", Reply(answer="x")),
    "a declaration": ('<?xml version="1.0"?>\n<output><answer>x</answer></output>', Reply(answer="x")),
    "attributes": ('<output version="1"><answer description="d">x</answer></output>', Reply(answer="x")),
    "the last of several": (
        "<output><answer>draft</answer></output> No:\n<output><answer>x</answer></output>",
        Reply(answer="x"),
    ),
    "the outermost": (
        "<output><answer>an <output>inner</output> one</answer></output>",
        Reply(answer="an <output>inner</output> one"),
    ),
    "a mention before it": (
        "I put my answer into <output> tags.\n<output><answer>x</answer></output>",
        Reply(answer="x"),
    ),
    "a closed mention before it": (
        "It goes between <output> and </output>.\n<output><answer>x</answer></output>",
        Reply(answer="x"),
    ),
    "a mention behind it": ("<output><answer>x</answer></output>\nThe <output> tag is above.", Reply(answer="x")),
    "an empty mention behind it": (
        "<output><answer>x</answer></output>\nAll of it is in <output></output>.",
        Reply(answer="x"),
    ),
    "a mention around it": (
        "Open with <output>:\n<output><answer>x</answer></output>\nand close with </output>.",
        Reply(answer="x"),
    ),
    "a mention inside it": (
        "<output><answer>the <output> tag</answer><count>1</count></output> Done.",
        Reply(answer="the <output> tag", count=1),
    ),
    "a mention in a comment": (
        "<output><answer>x</answer><!-- the </output> comes later --><count>2</count></output>",
        Reply(answer="x", count=2),
    ),
    "a mention in CDATA": (
        "<output><answer><![CDATA[</output>]]></answer><count>2</count></output>",
        Reply(answer="</output>", count=2),
    ),
    "half a comment before it": (
        "Comments begin with <!-- here.\n<output><!-- c --><answer>x</answer></output>",
        Reply(answer="x"),
    ),
    "tags of a longer name": (
        "<output-format>none</output-format><output><answer>x</answer></output>",
        Reply(answer="x"),
    ),
    "a bare ampersand and less-than": (
        "<output><answer>a & b < c && d <= e << f</answer></output>",
        Reply(answer="a & b < c && d <= e << f"),
    ),
    "references": (
        "<output><answer>&lt;a&gt; &amp;amp; &quot;&apos; &#65;&#x42;</answer></output>",
        Reply(answer="<a> &amp; \"' AB"),
    ),
    "undefined entities": (
        "<output><answer>a&nbsp;b &copy; &nope; &; &#; &#xZ;</answer></output>",
        Reply(answer="a&nbsp;b &copy; &nope; &; &#; &#xZ;"),
    ),
    "references to what XML forbids": ("<output><answer>&#0;&#xD800;</answer></output>", Reply(answer="\ufffd\ufffd")),
    "HTML inside text": (
        '<output><answer><p class="a">Use <b>bold</b>,<br>a break<br/> & more</p></answer></output>',
        Reply(answer='<p class="a">Use <b>bold</b>,<br>a break<br/> & more</p>'),
    ),
    "code inside text": (
        "<output><answer>#include <stdio.h>\nList<int> x; if (a<b) {}</answer><count>1</count></output>",
        Reply(answer="#include <stdio.h>\nList<int> x; if (a<b) {}", count=1),
    ),
    "CDATA": (
        "<output><answer>a <![CDATA[<b> & &amp; ]]> c &amp;</answer></output>",
        Reply(answer="a <b> & &amp;  c &"),
    ),
    "comments": ("<output><!-- a --><answer>x<!-- b -->y</answer></output>", Reply(answer="xy")),
    "no closing tags at the end": ("<output><answer>x</answer><count>3", Reply(answer="x", count=3)),
    "no closing tag but the last": ("<output><count>3</count><answer>x</output>", Reply(answer="x", count=3)),
    "half a closing tag at the end": ("<output><answer>x</answ", Reply(answer="x")),
    "no closing tags before a fence": ("```xml\n<output>\n  <answer>x\n```\n", Reply(answer="x")),
    "lines kept": ("<output><answer>\n  a\n\tb \n</answer></output>", Reply(answer="\n  a\n\tb \n")),
    "line ends of another system": ("<output><answer>a\r\nb\rc&#13;</answer></output>", Reply(answer="a\nb\nc\r")),
    "numbers with blanks around": (
        "<output><answer>x</answer><count>\n 4 </count><score> 1e-3\n</score></output>",
        Reply(answer="x", count=4, score=0.001),
    ),
    "truth as Python writes it": (
        "<output><answer>x</answer><sure> True </sure></output>",
        Reply(answer="x", sure=True),
    ),
    "any tag for items": (
        "<output><answer>x</answer><words><word>a</word><w>b</w><item>c</item></words></output>",
        Reply(answer="x", words=["a", "b", "c"]),
    ),
    "any tag for models": (
        "<output><answer>x</answer><sources><item><title>t</title><url>u</url></item>"
        "<source><title>t</title><url>u</url></source></sources></output>",
        Reply(answer="x", sources=[SEED, SEED]),
    ),
    "a list in several pieces": (
        "<output><answer>x</answer><words><item>a</item></words><words><item>b</item></words></output>",
        Reply(answer="x", words=["a", "b"]),
    ),
    "text for a list": ("<output><answer>x</answer><words>a, b</words></output>", Reply(answer="x", words=["a, b"])),
    "JSON for a list": (
        '<output><answer>x</answer><words>["a", "b"]</words></output>',
        Reply(answer="x", words=["a", "b"]),
    ),
    "JSON with tags for a list": (
        '<output><answer>x</answer><words>["<b>a</b>"]</words></output>',
        Reply(answer="x", words=["<b>a</b>"]),
    ),
    "JSON for a list of models": (
        '<output><answer>x</answer><sources>\n[{"title": "t", "url": "u"}]\n</sources></output>',
        Reply(answer="x", sources=[SEED]),
    ),
    "JSON for a dict": (
        '<output><answer>x</answer><table>{"a b": 1}</table></output>',
        Reply(answer="x", table={"a b": 1}),
    ),
    "JSON for the whole": ('<output>{"answer": "x", "count": 2}</output>', Reply(answer="x", count=2)),
    "JSON where text is meant": ("<output><answer>[1]</answer></output>", Reply(answer="[1]")),
    "an empty list": ("<output><answer>x</answer><words></words></output>", Reply(answer="x")),
    "a blank list": ("<output><answer>x</answer><words>\n  </words></output>", Reply(answer="x")),
    "null for a list": ("<output><answer>x</answer><numbers>null</numbers></output>", Reply(answer="x")),
    "empty text": ("<output><answer/></output>", Reply(answer="")),
    "keys in entries": (
        "<output><answer>x</answer>"
        "<table><entry key=\"a b\">1</entry><c>2</c><entry key='d&quot;'>3</entry></table></output>",
        Reply(answer="x", table={"a b": 1, "c": 2, 'd"': 3}),
    ),
    "a union, as a model": (
        "<output><answer>x</answer><either><title>t</title><url>u</url></either></output>",
        Reply(answer="x", either=SEED),
    ),
    "a union, as a list": (
        "<output><answer>x</answer><either><item>a</item><item>b</item></either></output>",
        Reply(answer="x", either=["a", "b"]),
    ),
    "a union, as text": ("<output><answer>x</answer><either>a b</either></output>", Reply(answer="x", either="a b")),
    "a union, as text with tags": (
        "<output><answer>x</answer><either>a <b>b</b></either></output>",
        Reply(answer="x", either="a <b>b</b>"),
    ),
    "one of several values": ("<output><answer>x</answer><kind> b\n</kind></output>", Reply(answer="x", kind="b")),
    "one of several values, a number": ("<output><answer>x</answer><kind>3</kind></output>", Reply(answer="x", kind=3)),
    "an unknown field": ("<output><answer>x</answer><mood>good</mood></output>", Reply(answer="x")),
    "halves of a character": ("<output><answer>\ud83e\udd94 \ud800</answer></output>", Reply(answer="🦔 \ufffd")),
}


def test_malformed_but_readable_xml_answer_is_decoded() -> None:
    for name, (reply, expected) in FOUND.items():
        with case(name):
            assert decode_xml(reply, REPLY, "output") == expected


WRONG = {
    "no such element": "The answer is 5.",
    "another element": "<answer>5</answer>",
    "only a closing tag": "It ends with </output>.",
    "a tag that is not one": "<output hidden>",
    "nothing": "",
}


def test_response_without_answer_element_raises_parse_error() -> None:
    for name, reply in WRONG.items():
        with case(name):
            with pytest.raises(ParseError, match="<output> element") as caught:
                decode_xml(reply, REPLY, "output")
            assert caught.value.raw_output == reply


def test_invalid_value_in_xml_answer_raises_validation_error_with_location() -> None:
    for reply, place, received in [
        ("<output><answer>x</answer><count>many</count></output>", ("count",), "many"),
        ("<output><answer>x</answer><score></score></output>", ("score",), ""),
        ("<output><answer>x</answer><sure>perhaps</sure></output>", ("sure",), "perhaps"),
        ("<output><answer>x</answer><table><a>b</a></table></output>", ("table", "a"), "b"),
        ("<output><answer>x</answer><sources><source>t</source></sources></output>", ("sources", 0, "title"), None),
        ("<output></output>", ("answer",), None),
    ]:
        with case(reply):
            with pytest.raises(ValidationError) as caught:
                decode_xml(reply, REPLY, "output")
            assert caught.value.errors()[0]["loc"] == place
            if received is not None:
                assert caught.value.errors()[0]["input"] == received


class Nullable(BaseModel):
    required: str | None
    literal: Literal["a", None]
    default: int | None = 5


def test_missing_required_nullable_field_is_decoded_as_none() -> None:
    value = Nullable(required=None, literal=None, default=7)
    assert decode_xml(encode_xml(value, "output"), Shape(Nullable), "output") == value
    written = Nullable(required=None, literal=None, default=None)
    assert decode_xml(encode_xml(written, "output", XmlStyle(include_none=True)), Shape(Nullable), "output") == written


class Crossed(BaseModel):
    model_config = ConfigDict(validate_by_name=True)
    id: str = Field(alias="_id")
    key: str = Field(alias="id")


def test_xml_element_name_is_read_as_field_name_before_alias() -> None:
    value = Crossed.model_validate({"_id": "1", "id": "2"})
    assert decode_xml(encode_xml(value, "output"), Shape(Crossed), "output") == value
    assert decode_xml("<output><from>a</from><TO>b</TO></output>", Shape(Aliased), "output") == Aliased.model_validate(
        {"from_": "a", "TO": "b"}
    )


def test_xml_answer_with_other_root_element_name_is_decoded() -> None:
    for root in ["output", "answer", "größe", "a.b", "a-b", "o"]:
        with case(root):
            value = Reply(answer=f"<{root}>", words=["a"], either="b")
            document = f"So: <{root}> it is.\n{encode_xml(value, root)}\n</{root}> is the end."
            assert decode_xml(document, REPLY, root) == value


def test_rejected_xml_answer_error_contains_advice() -> None:
    with pytest.raises(AcornError, match=r"contains a DTD, which acorn does not read\. Leave it out"):
        decode_xml("<!DOCTYPE a><output><answer>x</answer></output>", REPLY, "output")
    with pytest.raises(AcornError, match=r"nested more than 64 levels deep\. Give a flatter answer"):
        decode_xml("<output>" + "<a>" * 65, REPLY, "output")
    with pytest.raises(AcornError, match=r"1,000,001 characters long\. Write at most 1,000,000 characters"):
        decode_xml("x" * 1_000_001, REPLY, "output")
