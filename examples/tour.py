"""A short tour: a class becomes a spec, functions become tools, values become XML and come back.

python examples/tour.py
"""

import inspect
import json

from pydantic import BaseModel, Field

from acorn import DeclarationError, module, tool
from acorn._module import spec_of
from acorn._xml.decode import decode
from acorn._xml.encode import encode
from acorn._xml.skeleton import skeleton


class Question(BaseModel):
    question: str = Field(description="The question to answer")
    context: str | None = Field(default=None, description="Optional context")


class Answer(BaseModel):
    answer: str = Field(description="The answer to the question")
    confidence: float = Field(ge=0, le=1, description="Confidence score 0-1")


@tool
def search(query: str, limit: int = 10) -> list[str]:
    """Search the web for information.

    Args:
        query: What to look for
        limit: How many results to return
    """
    return [f"nothing about {query}"] * limit


class Researcher(module[Question, Answer]):
    """You are a research assistant. Answer briefly."""

    model = "openai/gpt-4o"
    max_steps = 5
    tools = [search]


def main() -> None:
    spec = spec_of(Researcher())

    print("1. You write a class:\n")
    print(inspect.getsource(Researcher))
    print(f"   prompt: {spec.prompt.text}")

    print("\n2. Its functions become tools, described by their type hints and docstrings:\n")
    print(json.dumps(spec.tools[0].schema, indent=2))

    print("\n3. What you call it with becomes XML, and no text of yours becomes markup:\n")
    given = spec.input.from_call(spec.owner, (), {"question": "Is 3 < 5 & 5 > 3?"})
    print(encode(given, spec.xml_input_root, spec.xml))

    print("\n4. A model that cannot call tools gets a form:\n")
    print(skeleton(spec.output.xml_schema, spec.xml_output_root))

    reply = "Sure! <output><answer>Yes, 3 < 5</answer><confidence>0.9</confidence></output>"
    print(f"\n5. and a careless reply\n\n   {reply}\n\n   is read as a typed value:\n")
    print(f"   {decode(reply, spec.output, spec.xml_output_root)!r}")

    print("\n6. A mistake shows at once, before any model is called:\n")
    try:
        Researcher(temperature=3)
    except DeclarationError as error:
        print(f"   DeclarationError: {error}")


if __name__ == "__main__":
    main()
