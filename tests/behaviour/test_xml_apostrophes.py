"""Tests of apostrophes in XML attributes: acorn escapes `&`, `<`, `>` and `"`, but not `'`."""

from __future__ import annotations

from pydantic import BaseModel, Field
from tests.behaviour.conftest import Script

from acorn import module
from acorn.testing import finish
from acorn.thread import serialize_thread_to_xml


class Person(BaseModel):
    name: str = Field(description='The person\'s "full" name & <title>')


class Agent(module[Person, Person]):
    """Look."""


def test_apostrophe_in_description_of_input_is_not_escaped(script: Script) -> None:
    model = script(finish(name="Ann"))
    Agent(model=model)(name="O'Hara")
    expected = "<name description=\"The person's &quot;full&quot; name &amp; &lt;title&gt;\">O'Hara</name>"
    assert expected in model.requests[0].messages[-1]["content"]


def test_apostrophe_in_description_of_xml_form_is_not_escaped(script: Script) -> None:
    model = script("Hm.", "<output><name>Ann</name></output>", forces=False)
    Agent(model=model)(name="Ann")
    assert "description=\"The person's &quot;full&quot;" in model.requests[1].messages[-1]["content"]


def test_apostrophe_in_thread_is_escaped(script: Script) -> None:
    run = Agent(model=script(finish(name="Ann"))).run(name="O'Hara")
    assert "&apos;" in serialize_thread_to_xml(run.thread)
