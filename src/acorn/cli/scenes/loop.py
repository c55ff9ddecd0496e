"""Functions are tools, other agents are branches.

SmolLM2 is too small for a loop with tools, so the model here is a script;
everything around it is real.
"""

from pydantic import BaseModel

from acorn import Step, module, tool
from acorn.testing import Reply, ScriptedModel, call, finish
from acorn.thread import serialize_thread_to_xml


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str
    year: int


@tool
def search(query: str, limit: int = 3) -> list[str]:
    """Search the encyclopedia."""
    found = ["Guido van Rossum made Python.", "Python 0.9.0 came in 1991."]
    return found[:limit]


class Check(module[None, bool]):
    """Is what was found so far enough to answer the question?"""


class Research(module[Question, Answer]):
    """Answer the question with the help of your tools."""

    max_steps = 5
    tools = [search]
    branches = {"check": Check}

    def on_step(self, step: Step) -> None:
        for result in step.tool_results:
            outcome = result.error or result.output
            print(f"step {step.counter}: {result.name} -> {outcome}")


script = ScriptedModel(
    [
        Reply("I look it up.") & call("search", query="Python", limit="many"),
        call("search", query="Python", limit="2"),
        call("check"),
        finish(result=True),
        finish(answer="Guido van Rossum", year="in 1991"),
        finish(answer="Guido van Rossum", year=1991),
    ]
)
run = Research(model=script).run(question="Who made Python, and when?")
print(f"{run.output!r} after {run.usage.requests} requests. How it began:\n")
print(serialize_thread_to_xml(run.thread[:5]))
