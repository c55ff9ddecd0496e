"""Measure the declaration of agents relative to Pydantic, and the encoding of inputs relative to json.dumps."""

from __future__ import annotations

import json
from typing import Any

from measure import Line, cpu, peak_of_script, precise_cpu_of_scripts
from pydantic import BaseModel, Field

from acorn import module, tool
from acorn._formats.xml.encode import encode_xml

SCHEMAS = """
from pydantic import BaseModel, Field

class Question(BaseModel):
    question: str = Field(description="The question to answer")
    context: str | None = Field(default=None, description="Optional context")

class Answer(BaseModel):
    answer: str = Field(description="The answer to the question")
    confidence: float = Field(description="Confidence score 0-1")
    sources: list[str] = Field(description="Sources used")
"""

MODULE = '''
from acorn import module

class Researcher(module):
    """Answer the question."""

    model = "openai/gpt-4o"
    initial_input = Question
    final_output = Answer
'''


class Source(BaseModel):
    title: str
    url: str = Field(description="Where it is")
    score: float
    tags: list[str]


class Section(BaseModel):
    heading: str
    body: str
    sources: list[Source]


class Report(BaseModel):
    name: str
    sections: list[Section]


def report(sections: int) -> Report:
    """Return nested data, which is about one megabyte of JSON for 460 sections."""
    words = "The quick brown fox jumps over the lazy dog, again and again. "
    return Report(
        name="report",
        sections=[
            Section(
                heading=f"Section {number}",
                body=words * 10,
                sources=[
                    Source(
                        title=f"Source {number}.{index} of the section",
                        url=f"https://example.org/{number}/{index}?a=1&b=2",
                        score=number / 7,
                        tags=["alpha", "beta", "a < b"],
                    )
                    for index in range(10)
                ],
            )
            for number in range(sections)
        ],
    )


def ten_tools() -> list[Any]:
    def make(number: int) -> Any:
        def search(query: str, limit: int = 5, exact: bool = False) -> list[str]:
            """Search for something.

            Args:
                query: What to look for
                limit: How many results
                exact: Whether the words must stand as they are
            """
            return [query]

        return tool(name=f"search_{number}")(search)

    return [make(number) for number in range(10)]


def lines() -> list[Line]:
    spent = precise_cpu_of_scripts({"bare": "", "schemas": SCHEMAS, "module": SCHEMAS + MODULE})
    declared = (spent["module"] - spent["bare"]) / (spent["schemas"] - spent["bare"])
    yield_ = [
        Line("a file with one module / the same Pydantic classes, net of Python", declared, 1.3),
        Line("peak of a process that declares one module", peak_of_script(SCHEMAS + MODULE), 45, " MB"),
    ]

    small, large = report(46), report(460)
    data = large.model_dump(mode="json")
    floor = cpu(lambda: json.dumps(data), repeat=9)
    whole = cpu(lambda: encode_xml(large, "input"), repeat=9)
    yield_.append(Line(f"encoding {len(json.dumps(data)) / 1e6:.2f} MB of nested input / json.dumps", whole / floor, 6))
    tenth = cpu(lambda: encode_xml(small, "input"), repeat=9)
    yield_.append(Line("encoding ten times as much / ten times the CPU time", whole / tenth / 10, 1.3))

    def define() -> object:
        return type("Bench", (module,), {"__module__": __name__, "tools": ten_tools()})

    yield_.append(Line("defining a module class with ten tools", cpu(define, repeat=15) * 1000, 5, "ms"))
    return yield_
