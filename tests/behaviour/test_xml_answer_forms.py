"""Tests of the forms in which models write XML answers: pretty-printed, plain values, null, and quoted forms."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from tests.cases import case
from tests.raw_model import RawModel

from acorn import module, tool
from acorn.models.port import ModelResponse, RawCall


class Answer(BaseModel):
    name: str
    count: int = 1
    tags: list[str] = []


@tool
def look(place: str) -> str:
    """Look."""
    return f"seen {place}"


def fallen_back(*texts: str, kind: Any = Answer, **settings: Any) -> Any:
    """Return the output of a run whose model cannot be forced and answers in text."""

    class Agent(module):
        """Answer."""

        initial_input: Any = []
        final_output = kind
        tools = [look]
        max_steps = 1

    responses = [
        ModelResponse("", [RawCall("a", "look", '{"place": "a"}')], "tool_calls"),
        ModelResponse("Hm.", [], "stop"),
    ]
    model = RawModel([*responses, *(ModelResponse(text, [], "stop") for text in texts)], forces=False)
    output = Agent(model=model, **settings)()
    assert len(model.requests) == 2 + len(texts)
    return output


LENIENT: dict[str, tuple[str, Answer]] = {
    "pretty-printed text": ("<output>\n  <name>\n    fine\n  </name>\n</output>", Answer(name="fine")),
    "items": (
        "<output><name>a</name><tags><item>x</item><item>y</item></tags></output>",
        Answer(name="a", tags=["x", "y"]),
    ),
    "pretty-printed items": (
        "<output>\n<name>a</name>\n<tags>\n  <item>\n  x\n  </item>\n</tags>\n</output>",
        Answer(name="a", tags=["x"]),
    ),
    "the answer, then a quoted line": (
        "<output><name>b</name></output>\nThe form was `<output><name>...</name></output>`.",
        Answer(name="b"),
    ),
    "the answer, then a quoted fence": (
        "<output><name>b</name></output>\nThe form was\n```xml\n<output><name>...</name></output>\n```",
        Answer(name="b"),
    ),
}


def test_whitespace_and_quoted_forms_of_xml_answers_are_read() -> None:
    for name, (text, expected) in LENIENT.items():
        with case(name):
            assert fallen_back(text) == expected


def test_plain_output_is_read_from_the_root_element() -> None:
    for name, (kind, text, expected) in {
        "str": (str, "<output>hi</output>", "hi"),
        "str with markup": (str, "<output>a &lt; b &amp; c</output>", "a < b & c"),
        "pretty-printed str": (str, "<output>\n  hi\n</output>", "hi"),
        "pretty-printed str in result": (str, "<output>\n  <result>\n    hi\n  </result>\n</output>", "hi"),
        "int": (int, "<output>5</output>", 5),
        "list": (list[str], "<output><item>a</item><item>b</item></output>", ["a", "b"]),
    }.items():
        with case(name):
            assert fallen_back(text, kind=kind) == expected


def test_null_is_read_in_fields_that_may_be_none() -> None:
    from datetime import date
    from uuid import UUID

    class Dates(BaseModel):
        day: date | None = None
        key: UUID | None = None
        number: int | None = None
        text: str | None = None
        tags: list[str] | None = None

    for value in ("null", " null ", "\n  null\n"):
        for field in Dates.model_fields:
            with case(value, field):
                assert fallen_back(f"<output><{field}>{value}</{field}></output>", kind=Dates) == Dates()


def test_whitespace_inside_text_stays() -> None:
    assert fallen_back("<output><name>\n a\n\n  b \n</name></output>") == Answer(name="a\n\n  b")


def test_only_element_in_code_fence_counts() -> None:
    assert fallen_back("So:\n```\n<output><name>a</name></output>\n```") == Answer(name="a")
    assert fallen_back("So: `<output><name>a</name></output>`") == Answer(name="a")
