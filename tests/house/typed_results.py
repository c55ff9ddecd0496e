# pyright: strict
"""Types of a user's code as type checkers see them: checked by mypy and basedpyright, never executed.

The declarations are written like those of the documentation, with typed functions; strict checkers accept them.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, assert_type

from pydantic import BaseModel, Field

from acorn import (
    AcornError,
    BranchError,
    DeclarationError,
    InputError,
    ModelError,
    Module,
    ParseError,
    Partial,
    Run,
    Step,
    StreamChunk,
    ToolConflictError,
    ToolResult,
    module,
    tool,
)


class Text(BaseModel):
    text: str = Field(description="The text to judge")


class Verdict(BaseModel):
    sentiment: Literal["positive", "negative"]


@dataclass
class Place:
    x: int


# Tools


@tool
def search(query: str, limit: int = 5) -> list[str]:
    """Search for information online."""
    return [query] * limit


@tool(name="compute", description="Evaluate an expression.", timeout=5, parallel=False, repeatable=True)
def calculate(expression: str) -> float:
    return float(expression)


@tool
async def fetch(url: str) -> bytes:
    return url.encode()


def plain(name: str) -> str:
    return name


def a_tool_keeps_the_type_of_its_function() -> None:
    assert_type(search("acorns"), list[str])
    assert_type(search("acorns", limit=2), list[str])
    assert_type(calculate("1"), float)
    assert_type(tool(plain)("a"), str)
    assert_type(tool(name="other")(plain)("a"), str)
    pending: Coroutine[Any, Any, bytes] = fetch("https://example.org")
    pending.close()
    as_callable: Callable[[str], float] = calculate
    as_callable("1")


def a_wrong_call_of_a_tool_is_still_found() -> None:
    search(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    calculate()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Declarations without type arguments


class FactChecker(module):
    """Verify claims discussed in the conversation."""

    temperature = 0.1
    max_steps = 5
    final_output = Verdict
    tools = [search]


class ResearchAgent(module):
    """You are a research assistant."""

    model = "anthropic/claude-sonnet-4-5-20250514"
    temperature = 0.7
    max_tokens = 4096
    max_steps = 15
    parse_retries = 2

    initial_input = Text
    final_output = Verdict

    tools = [search, calculate, fetch, plain]
    branches = {"fact_check": FactChecker}
    cache = [{"location": "message", "role": "system"}]

    xml_include_descriptions = False
    xml_description_format = "comment"
    xml_include_none = True
    xml_input_root = "question"

    @tool
    def look_up(self, name: str) -> str:
        """Look a name up."""
        return name

    @tool(name="later")
    async def look_up_later(self, name: str) -> str:
        return name


class SingleTurn(module):
    model = {"model": "openai/gpt-4o", "api_key": "...", "base_url": "..."}
    temperature = 0
    max_steps = None
    initial_input = ["question", ("limit", int), ("tags", list[str], [])]
    final_output = list[str]
    tools = []
    branches = {"fact_check": {"module": FactChecker, "description": "Check facts"}}
    cache = True


class FromFile(module):
    system_prompt = Path(__file__)


class FromText(module):
    system_prompt = "You are a helpful assistant."


class FromMethod(module):
    def system_prompt(self) -> str:
        return "You are a helpful assistant."


class FromAsyncMethod(module):
    async def system_prompt(self) -> str:
        return "You are a helpful assistant."


class WithInit(module):
    def __init__(self, name: str, **overrides: Any) -> None:
        super().__init__(**overrides)
        self.name = name


class ConventionallyNamed(Module):
    model = "openai/gpt-4o"


def methods_that_are_tools_keep_their_types() -> None:
    assert_type(ResearchAgent().look_up("a"), str)
    pending: Coroutine[Any, Any, str] = ResearchAgent().look_up_later("a")
    pending.close()


def using_keeps_the_type_of_the_agent() -> None:
    assert_type(ResearchAgent().using(temperature=0.0), ResearchAgent)
    assert_type(Run.from_json("", Sentiment), Run[Verdict])
    assert_type(Run.from_json(""), Run[Any])
    assert_type(ResearchAgent(model="openai/gpt-4o", temperature=0.2), ResearchAgent)
    assert_type(WithInit("a", temperature=0.2).using(max_steps=3), WithInit)
    assert_type(WithInit("a").using(max_steps=3).name, str)


# Declarations with type arguments


class Sentiment(module[Text, Verdict]):
    """Classify the sentiment of the text."""

    model = "openai/gpt-4o"


class OnlyInput(module[Text]):
    final_output = Verdict


class NoInput(module[None, int]):
    """Throw a die."""


class PlainTypes(module[str, list[Place]]):
    """Find the places in the text."""


In = TypeVar("In")
Out = TypeVar("Out")


class Judge(module[In, Verdict], Generic[In]):
    """Judge whatever it is."""


class TextJudge(Judge[Text]):
    pass


class Extract(module[str, Out], Generic[Out]):
    """Extract it from the text."""


def types_of(agent: module[In, Out]) -> tuple[In, Out]:
    """The two types that a checker has found for an agent."""
    raise NotImplementedError


def brackets_tell_a_checker_what_goes_in_and_what_comes_out() -> None:
    assert_type(types_of(Sentiment()), tuple[Text, Verdict])
    assert_type(types_of(Sentiment().using(temperature=0.0)), tuple[Text, Verdict])
    assert_type(types_of(NoInput()), tuple[None, int])
    assert_type(types_of(PlainTypes()), tuple[str, list[Place]])
    assert_type(types_of(TextJudge()), tuple[Text, Verdict])
    assert_type(types_of(Judge[str]()), tuple[str, Verdict])
    assert_type(types_of(module[Text, Verdict]()), tuple[Text, Verdict])


def without_brackets_everything_is_any() -> None:
    assert_type(types_of(ResearchAgent()), tuple[Any, Any])
    assert_type(types_of(OnlyInput()), tuple[Text, Any])


def calls_return_what_the_brackets_say() -> None:
    assert_type(Sentiment()(text="a"), Verdict)
    assert_type(Sentiment().using(temperature=0.0)(Text(text="a")), Verdict)
    assert_type(NoInput()(), int)
    assert_type(PlainTypes()("a"), list[Place])
    assert_type(TextJudge()(text="a"), Verdict)


def brackets_of_an_instance_say_the_same() -> None:
    assert_type(Extract[Verdict](model="openai/gpt-4o")("a"), Verdict)
    assert_type(Extract[Verdict]().using(temperature=0.0).run("a").output, Verdict | None)
    assert_type(module[str, Verdict](model="openai/gpt-4o")("a"), Verdict)


async def awaited_calls_return_the_same() -> None:
    assert_type(await Sentiment().acall(text="a"), Verdict)
    assert_type(await PlainTypes().acall("a"), list[Place])


def calls_without_brackets_return_any() -> None:
    result = ResearchAgent()(text="a")
    assert_type(result, Any)
    print(result.answer)  # noqa: T201 - as the documents do


def an_agent_with_brackets_fits_where_any_agent_does() -> None:
    agents: list[module] = [ResearchAgent(), Sentiment(), TextJudge()]
    classes: list[type[module]] = [ResearchAgent, Sentiment, TextJudge]
    assert_type(agents[0].temperature, float)
    assert_type(classes[0].max_steps, int | None)


# Deps


class Database:
    name: str = ""


class Asking(module[Text, Verdict, Database]):
    """Ask the database."""

    branches = {"one": Sentiment, "two": Sentiment(model="openai/gpt-4o")}

    def system_prompt(self) -> str:
        return self.deps.name

    @tool
    def by_run(self, run: Run[Verdict, Database]) -> str:
        return run.deps.name

    def on_step(self, step: Step[Database]) -> None:
        assert_type(step.deps, Database)
        assert_type(step.run.deps, Database)
        assert_type(self.deps, Database)
        assert_type(self.branch(Sentiment), Verdict)
        assert_type(self.branch(Sentiment(model="openai/gpt-4o")), Verdict)
        assert_type(self.branch(Extract[Verdict]), Verdict)


class AskingAnything(module[Text, Verdict]):
    def on_step(self, step: Step) -> None:
        assert_type(step.deps, Any)
        assert_type(self.deps, Any)


def deps_have_the_type_of_the_brackets() -> None:
    agent = Asking().using(deps=Database())
    assert_type(agent, Asking)
    assert_type(agent.deps, Database)
    assert_type(agent.run(text="a"), Run[Verdict, Database])
    assert_type(agent(text="a"), Verdict)
    Asking().using(deps=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AskingAnything().using(deps=5)


# Streaming


class Streaming(module[Text, Verdict]):
    """Classify the sentiment of the text."""

    def on_stream(self, chunk: StreamChunk[Verdict]) -> None:
        partial: Partial[Verdict] | None = chunk.partial
        if partial and partial.sentiment:
            print(partial.sentiment)  # noqa: T201 - as the documents do


class StreamingAnything(module):
    final_output = Verdict

    def on_stream(self, chunk: StreamChunk) -> None:
        if chunk.partial:
            print(chunk.partial.sentiment)  # noqa: T201 - as the documents do
        if chunk.content:
            print(chunk.content, end="", flush=True)  # noqa: T201 - as the documents do


def a_partial_answer_has_the_type_of_the_answer(
    one: Partial[Verdict], many: Partial[list[Verdict]], none: Partial[Verdict] | None
) -> None:
    assert_type(one, Verdict)
    assert_type(one.sentiment, Literal["positive", "negative"])
    assert_type(many, list[Verdict])
    assert_type(none, Verdict | None)
    whole: Verdict = one
    one = whole
    one.mood  # type: ignore[attr-defined] # noqa: B018 # pyright: ignore[reportAttributeAccessIssue, reportUnusedExpression]


def a_chunk_carries_typed_attributes(chunk: StreamChunk[Verdict], plain: StreamChunk[list[Place]]) -> None:
    assert_type(chunk.partial, Verdict | None)
    assert_type(plain.partial, list[Place] | None)
    assert_type(chunk.result, Verdict | None)
    assert_type(chunk.run, Run[Verdict] | None)
    assert_type(chunk.content, str | None)
    assert_type(chunk.reasoning, str | None)
    assert_type(chunk.completed, tuple[str, ...])
    assert_type(chunk.tool_call, dict[str, Any] | None)
    assert_type(chunk.tool_result, ToolResult | None)
    assert_type(chunk.branch, str | None)
    assert_type(chunk.done, bool)


def a_chunk_without_brackets_is_of_anything(chunk: StreamChunk) -> None:
    assert_type(chunk.partial, Any | None)
    assert_type(chunk.result, Any | None)


# Errors


def errors_carry_typed_attributes(parse: ParseError, model: ModelError) -> None:
    assert_type(parse.raw_output, str)
    assert_type(parse.errors, list[dict[str, Any]])
    assert_type(parse.attempts, int)
    assert_type(model.provider, str | None)
    assert_type(model.status, int | None)
    assert_type(model.retryable, bool)
    assert_type(model.retry_after, float | None)
    assert_type(model.timed_out, bool)


def errors_are_caught_by_their_bases(error: ToolConflictError, wrong: InputError, branch: BranchError) -> None:
    declaration: DeclarationError = error
    value: ValueError = wrong
    every: list[AcornError] = [declaration, wrong, branch]
    every.clear()
    raise value
