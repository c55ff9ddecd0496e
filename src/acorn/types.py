"""Public data classes: tool calls, results, usage, requests for human input, and the outputs of unfinished runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, Required, TypedDict

from typing_extensions import TypeIs

JsonObject = dict[str, Any]
"""A JSON object: a message part, a schema, the arguments of a call, or the body of a request."""

JsonValue = JsonObject | list[Any] | str | float | bool | None
"""Any JSON value.

After `isinstance(value, dict)`, type checkers know the item types of a `JsonValue`, but not of an `object`."""

Content = str | list[JsonObject]
"""The content of a message: text, or a list of parts in the format of OpenAI."""


class CalledFunction(TypedDict):
    """The function of a tool call in an assistant message: its name and its arguments."""

    name: str
    arguments: str
    """The arguments as JSON text."""


class MessageCall(TypedDict, total=False):
    """A tool call in an assistant message, in the format of OpenAI."""

    id: Required[str]
    type: str
    function: Required[CalledFunction]


class Message(TypedDict, total=False):
    """One message of the history, in the format of OpenAI.

    A message is a dict. It may have additional keys, such as the signed reasoning blocks of a provider.
    """

    role: Required[str]
    content: Required[Any]
    """The text, a list of parts, or None if an assistant message contains only tool calls."""
    tool_calls: list[MessageCall]
    """The tool calls of an assistant message."""
    tool_call_id: str
    """The id of the tool call whose result a tool message contains."""
    name: str
    reasoning_content: str
    """The reasoning of the model, for providers that require it in the next request."""
    thinking_blocks: list[JsonObject]
    """The signed reasoning blocks of Anthropic."""
    reasoning_items: list[JsonObject]
    """The reasoning items of OpenAI."""


TOOL_ERROR = "Tool error: "
"""The prefix of a tool result that reports an error."""


# Type checkers narrow `isinstance(value, dict)` to `dict[Unknown, Unknown]`. These functions declare the item types.


def is_json_object(value: object) -> TypeIs[JsonObject]:
    """Return True if a value is a dict. Type checkers then assume that the dict keys are strings."""
    return isinstance(value, dict)


def is_mapping(value: object) -> TypeIs[Mapping[str, Any]]:
    """Return True if a value is a mapping. Type checkers then assume that its keys are strings."""
    return isinstance(value, Mapping)


def is_json_list(value: object) -> TypeIs[list[Any]]:
    """Return True if a value is a list. Type checkers then accept any type of item."""
    return isinstance(value, list)


def is_list_or_tuple(value: object) -> TypeIs[list[Any] | tuple[Any, ...]]:
    """Return True if a value is a list or a tuple. Type checkers then accept any type of item."""
    return isinstance(value, list | tuple)


def is_class(value: object) -> TypeIs[type[Any]]:
    """Return True if a value is a class."""
    return isinstance(value, type)


class ForkedFrom(NamedTuple):
    """The origin of a forked run: the id of the original run, and the step before which the fork starts."""

    run: str | None
    """The id of the original run, or None if the events do not contain the id."""
    before: int
    """The first step that the fork does not share with the original run."""


@dataclass(slots=True)
class ToolCall:
    """A tool call in a response of the model.

    calls = ScriptedModel(call("search", query="acorns"))
    unfinished = Researcher(model=calls, max_steps=None)(question="...")
    print(unfinished.tool_calls[0].name, unfinished.tool_calls[0].arguments)
    """

    id: str
    """The id of the call, which the provider has assigned."""
    name: str
    """The name of the tool."""
    arguments: JsonObject = field(default_factory=JsonObject)
    """The arguments, or `{}` if the model did not write a JSON object."""
    raw_arguments: str = "{}"
    """The arguments as the text that the model wrote."""


@dataclass(slots=True)
class ToolResult:
    """The result of a tool call, which you can change in `on_step` before the model receives it.

    print(unfinished.tool_results[0].output, unfinished.tool_results[0].error)
    """

    id: str
    """The id of the call."""
    name: str
    """The name of the tool."""
    output: Any = None
    """The return value of the function, or None if it failed."""
    error: str | None = None
    """The class and the message of the error, such as `ValueError: x must be positive`, or None."""
    seconds: float | None = field(default=None, compare=False)
    """The duration of the function or branch in seconds, or None if it was not called."""


@dataclass(slots=True)
class Usage:
    """The number of tokens and requests of a run, a request or a batch.

    with acorn.capture() as records:
        agent(question="...")
        agent(question="...")
    print(sum((record.usage for record in records), Usage()).requests)
    """

    input_tokens: int = 0
    """The number of tokens in requests, including cached tokens."""
    output_tokens: int = 0
    """The number of tokens in responses, including reasoning tokens."""
    cached_tokens: int = 0
    """The number of input tokens that the provider read from its cache."""
    reasoning_tokens: int = 0
    """The number of output tokens of the model's reasoning."""
    requests: int = 0
    """The number of requests to the model."""
    cache_write_tokens: int = 0
    """The number of input tokens that the provider wrote to its cache."""
    is_estimated: bool = False
    """Whether acorn estimated tokens from the texts, because a provider did not report the usage of a response."""

    @property
    def total_tokens(self) -> int:
        """The sum of input tokens and output tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        """Return the sum of two usages, for example in `sum((run.usage for run in runs), Usage())`."""
        if not isinstance(other, Usage):
            return NotImplemented
        total = self.copy()
        total.add(other)
        return total

    def copy(self) -> Usage:
        """Return a copy of the usage."""
        return replace(self)

    def add(self, other: Usage) -> None:
        """Add the numbers of another usage to this usage, in place."""
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.reasoning_tokens += other.reasoning_tokens
        self.requests += other.requests
        self.cache_write_tokens += other.cache_write_tokens
        self.is_estimated = self.is_estimated or other.is_estimated


class Fallback(NamedTuple):
    """The use of another model because a model failed: the failed model, and the next model in the list of models."""

    failed: str
    """The name of the model that failed."""
    to: str
    """The name of the model that received the request instead."""
    cause: str
    """The error of the failed model, or the reason why acorn did not send it the request."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for human input, which is a question or an approval.

    `on_human` receives requests, and `Paused.requests` contains them.

        class Asking(Researcher):
            tools = [ask_human]

            def on_human(self, request: Request) -> str:
                return f"I was asked: {request.question}"

    Answer a question with any value. Answer an approval with `acorn.approve()` or `acorn.deny("reason")`, or with True,
    False, `"yes"` or `"no"`.
    """

    id: str
    """The id of the request."""
    run_id: str
    """The id of the run or branch that made the request."""
    kind: Literal["question", "approval"]
    """The kind of the request: `question` or `approval`."""
    question: str
    """The question of `ask_human`, or a description of the tool call that needs approval."""
    tool: str
    """The name of the tool that the model called."""
    arguments: JsonObject
    """The arguments of the tool call. For an approval, they include every default."""
    branch: str | None
    """The path of the branch that made the request, or None for the run itself."""
    asked: datetime
    """The time of the request."""
    choices: tuple[str, ...] | None = None
    """The choices that `ask_human` offers, or None."""


def approve(arguments: Mapping[str, Any] | None = None) -> JsonObject:
    """Return the answer that approves a tool call, as JSON data.

    The tool receives exactly the arguments that the request shows, or `arguments` instead. `arguments` must contain all
    arguments, as in `acorn.approve(arguments={**request.arguments, "amount": 10})`.
    """
    return {"approved": True} if arguments is None else {"approved": True, "arguments": dict(arguments)}


def deny(reason: str | None = None) -> JsonObject:
    """Return the answer that rejects a tool call, as JSON data. The model reads the reason."""
    return {"approved": False} if reason is None else {"approved": False, "reason": reason}


class Unfinished:
    """The falsy output of a single-turn run in which the model called a tool instead of finishing.

        unfinished = Researcher(model=ScriptedModel(call("search", query="acorns")), max_steps=None)(question="...")
        if not unfinished:
            print(unfinished.content, unfinished.tool_calls, unfinished.tool_results)

    Any other attribute raises an `AttributeError` with the reason.
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
        if name.startswith("__"):  # `copy` and `pickle` look for optional methods.
            raise AttributeError(name)
        called = ", ".join(f"`{call.name}`" for call in self.tool_calls)
        raise AttributeError(
            f"`{self._owner}` did not finish, so `{name}` is missing: the model called {called} in a single turn. Set "
            f"`max_steps` on `{self._owner}`, so that the model reads the results of its tools."
        )


class Paused:
    """The falsy output of a run that waits for human input.

        asks = ScriptedModel([call("ask_human", question="Which one?"), finish(answer="The blue one.")], by_turn=True)
        patient = Researcher(model=asks, tools=[ask_human], store="memory")
        paused = patient(question="...")
        if isinstance(paused, acorn.Paused):
            print(paused.request.question)
            print(patient.resume(paused.run_id, answer="the blue one").answer)

    Any other attribute raises an `AttributeError` with the reason.
    """

    __slots__ = ("requests", "run_id")

    run_id: str
    """The id of the run, which you pass to `resume`."""
    requests: tuple[Request, ...]
    """The open requests of the run, followed by the open requests of its branches."""

    def __init__(self, run_id: str, requests: Iterable[Request]) -> None:
        self.run_id = run_id
        self.requests = tuple(requests)

    @property
    def request(self) -> Request:
        """The first unanswered request for human input."""
        return self.requests[0]

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Paused(run_id={self.run_id!r}, requests={[request.question for request in self.requests]})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `copy` and `pickle` look for optional methods.
            raise AttributeError(name)
        asked = "; ".join(request.question for request in self.requests)
        raise AttributeError(
            f"The run `{self.run_id}` waits for human input ({asked}), so `{name}` is not available yet. Resume it "
            f"with `agent.resume(paused.run_id, answer=...)`."
        )
