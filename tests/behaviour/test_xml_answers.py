"""Tests of answers of models in the XML fallback: `null`, pretty-printed text, code fences, plain types."""

from __future__ import annotations

import datetime
from typing import Any, Literal

from pydantic import BaseModel
from tests.behaviour.conftest import Script
from tests.cases import each_case

from acorn import module
from acorn.testing import finish


class Meeting(BaseModel):
    title: str
    day: datetime.date | None = None
    ends: datetime.datetime | None
    room: int | None = None
    kind: Literal["a", None] = "a"


class Planner(module[None, Meeting]):
    """Plan."""


class Speaker(module[None, str]):
    """Speak."""


def answered(agent: Any, script: Script, reply: str) -> Any:
    return agent(model=script("Hm.", reply, forces=False), parse_retries=1)()


@each_case("text", ["null", " null ", "\n    null\n  ", ""])
def test_null_in_xml_answer_is_none_for_optional_fields(script: Script, text: str) -> None:
    reply = (
        f"<output><title>A</title><day>{text}</day><ends>{text}</ends><room>{text}</room><kind>{text}</kind></output>"
    )
    assert answered(Planner, script, reply) == Meeting(title="A", ends=None, kind=None)


def test_form_asks_for_null_only_where_null_is_read(script: Script) -> None:
    model = script("Hm.", "<output><title>A</title><ends>null</ends></output>", forces=False)
    assert Planner(model=model, parse_retries=1)() == Meeting(title="A", ends=None)


@each_case(
    ("reply", "wanted"),
    [
        ("<output>\n  <result>\n    Paris is big.\n  </result>\n</output>", "Paris is big."),
        ("<output><result>\n\tParis\n</result></output>", "Paris"),
        ("<output><result>one\n  two</result></output>", "one\n  two"),
        ("<output>hi</output>", "hi"),
        ("<output>\n  hi there\n</output>", "hi there"),
        ("Here it is:\n```xml\n<output>hi</output>\n```", "hi"),
    ],
)
def test_text_of_plain_xml_answer_is_trimmed(script: Script, reply: str, wanted: str) -> None:
    assert answered(Speaker, script, reply) == wanted


def test_text_fields_of_xml_answer_are_trimmed_in_nested_models_and_lists(script: Script) -> None:
    class Note(BaseModel):
        text: str

    class Notes(BaseModel):
        notes: list[Note]
        tags: list[str]

    class Writer(module[None, Notes]):
        """Write."""

    reply = (
        "<output>\n  <notes>\n    <note>\n      <text>\n        a\n      </text>\n    </note>\n  </notes>\n"
        "  <tags>\n    <item>\n      b\n    </item>\n  </tags>\n</output>"
    )
    assert answered(Writer, script, reply) == Notes(notes=[Note(text="a")], tags=["b"])


def test_text_of_input_is_not_trimmed(script: Script) -> None:
    class Reader(module[Any, str]):
        initial_input = ["text"]

    model = script(finish("ok"))
    Reader(model=model)(text="\n  code\n")
    assert "<text>\n  code\n</text>" in model.requests[0].messages[-1]["content"]


FENCED = "```xml\n<output><result>an example</result></output>\n```"


@each_case(
    ("reply", "wanted"),
    [
        (f"<output><result>real</result></output>\n\nThe format was:\n{FENCED}", "real"),
        (f"The format is:\n{FENCED}\n<output><result>real</result></output>", "real"),
        (f"Only this:\n{FENCED}", "an example"),
        ("~~~\n<output><result>an example</result></output>\n~~~\n<output><result>real</result></output>", "real"),
        ("Use `<output><result>x</result></output>`? No: <output><result>real</result></output>", "real"),
        (f"<output>real</output>\nThe format was:\n{FENCED}", "real"),
        ("```xml <output>an example</output>``` <output>real</output>", "real"),
        ("<output>real</output>\nThe text is in the <output> element.", "real"),
        (f"<output>```\nreal</output>\n{FENCED}", "```\nreal"),
        ("<output>```\n<output>inner</output>\n```</output>", "```\n<output>inner</output>\n```"),
        ("```xml\n<output>real", "real"),
    ],
)
def test_element_in_code_fence_counts_only_without_element_outside(script: Script, reply: str, wanted: str) -> None:
    assert answered(Speaker, script, reply) == wanted
