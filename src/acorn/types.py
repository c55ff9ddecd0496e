"""Plain data that users hold in their hands: calls, results, usage, requests to people, answers that never came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

JsonObject = dict[str, Any]
"""A JSON object: a message part, a schema, the arguments of a call, or the body of a request."""

Content = str | list[JsonObject]
"""What a message holds: text, or parts in OpenAI's format where there is more than text."""

TOOL_ERROR = "Tool error: "
"""What the model reads before the error of a tool."""


class ForkedFrom(NamedTuple):
    """Which run a run was forked from, and where."""

    run: str | None
    """Its id; None where the events did not say whose they are."""
    before: int
    """The first step that is the fork's own."""


@dataclass(slots=True)
class ToolCall:
    """A call that the model made.

    calls = ScriptedModel(call("search", query="acorns"))
    unfinished = Researcher(model=calls, max_steps=None)(question="...")
    print(unfinished.tool_calls[0].name, unfinished.tool_calls[0].arguments)
    """

    id: str
    name: str
    arguments: JsonObject = field(default_factory=JsonObject)
    """As the model gave them; `{}` where they are not a JSON object."""
    raw_arguments: str = "{}"
    """The text as it came."""


@dataclass(slots=True)
class ToolResult:
    """What came of a call. Change `output` or `error` in `on_step` to change what the model reads.

    print(unfinished.tool_results[0].output, unfinished.tool_results[0].error)
    """

    id: str
    name: str
    output: Any = None
    """What the function returned; None where it failed."""
    error: str | None = None
    """`ValueError: x must be positive`, or None."""
    seconds: float | None = field(default=None, compare=False)
    """How long the function or branch took; None where none was called."""


@dataclass(slots=True)
class Usage:
    """Tokens and requests, added up.

    with acorn.capture() as records:
        agent(question="...")
        agent(question="...")
    print(sum((each.usage for each in records), Usage()).requests)
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that the provider had in its cache."""
    reasoning_tokens: int = 0
    """Output tokens spent on thinking."""
    requests: int = 0
    cache_write_tokens: int = 0
    """Input tokens that the provider wrote into its cache."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        """Both together, as a new one: `sum((run.usage for run in runs), Usage())`."""
        if not isinstance(other, Usage):
            return NotImplemented
        both = self.copy()
        both.add(other)
        return both

    def copy(self) -> Usage:
        """The same counts, to be added to or kept."""
        return Usage(
            self.input_tokens,
            self.output_tokens,
            self.cached_tokens,
            self.reasoning_tokens,
            self.requests,
            self.cache_write_tokens,
        )

    def add(self, other: Usage) -> None:
        """Count the other's in, in place."""
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.reasoning_tokens += other.reasoning_tokens
        self.requests += other.requests
        self.cache_write_tokens += other.cache_write_tokens


class Fallback(NamedTuple):
    """A model that answered in the place of another one of its list."""

    failed: str
    """The one that should have answered."""
    to: str
    """The one that was asked instead."""
    cause: str
    """What the first failed of, or that it was not asked."""


@dataclass(frozen=True, slots=True)
class Request:
    """Something that a run wants to know of people: `on_human` is called with it, `Paused` has it.

        class Asking(Researcher):
            tools = [ask_human]

            def on_human(self, request: Request) -> str:
                return f"I was asked: {request.question}"

    A question is answered with anything, an approval with True, False, or a reason for refusing.
    """

    id: str
    run_id: str
    """The run that asks, which may be a branch."""
    kind: Literal["question", "approval"]
    question: str
    """What `ask_human` was called with; for an approval, what is to be approved, in words."""
    tool: str
    """The tool that the model called."""
    arguments: JsonObject
    branch: str | None
    """The path of the branch that asks; None for the run itself."""
    asked: datetime
    choices: tuple[str, ...] | None = None
    """What `ask_human` offers, if anything."""


class Unfinished:
    """What a single-turn call returns when the model called a tool instead of finishing. It is falsy.

        unfinished = Researcher(model=ScriptedModel(call("search", query="acorns")), max_steps=None)(question="...")
        if not unfinished:
            print(unfinished.content, unfinished.tool_calls, unfinished.tool_results)

    Any other attribute raises an error that says why.
    """

    __slots__ = ("_owner", "content", "tool_calls", "tool_results")

    def __init__(self, owner: str, content: str, tool_calls: list[ToolCall], tool_results: list[ToolResult]) -> None:
        self._owner = owner
        self.content = content
        self.tool_calls = tool_calls
        self.tool_results = tool_results

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Unfinished(tool_calls={[call.name for call in self.tool_calls]})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy, pickle and the like probe for these
            raise AttributeError(name)
        called = ", ".join(f"`{call.name}`" for call in self.tool_calls)
        raise AttributeError(
            f"`{self._owner}` did not finish: in a single turn the model called {called}, so there is no `{name}`. "
            f"Set `max_steps` on `{self._owner}` to let it go on with what its tools returned."
        )


class Paused:
    """What a call returns when the run waits for people. It is falsy.

        asks = ScriptedModel([call("ask_human", question="Which one?"), finish(answer="The blue one.")], by_turn=True)
        patient = Researcher(model=asks, tools=[ask_human], store="memory")
        paused = patient(question="...")
        if isinstance(paused, acorn.Paused):
            print(paused.request.question)
            print(patient.resume(paused.run_id, answer="the blue one").answer)

    Any other attribute raises an error that says why.
    """

    __slots__ = ("requests", "run_id")

    run_id: str
    requests: tuple[Request, ...]
    """All that it waits for, the run's own before those of its branches."""

    def __init__(self, run_id: str, requests: Iterable[Request]) -> None:
        self.run_id = run_id
        self.requests = tuple(requests)

    @property
    def request(self) -> Request:
        """The first of them."""
        return self.requests[0]

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Paused(run_id={self.run_id!r}, requests={[request.question for request in self.requests]})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy, pickle and the like probe for these
            raise AttributeError(name)
        asked = "; ".join(request.question for request in self.requests)
        raise AttributeError(
            f"The run `{self.run_id}` waits for people ({asked}), so there is no `{name}` yet. Go on with "
            f"`agent.resume(paused.run_id, answer=...)`."
        )
