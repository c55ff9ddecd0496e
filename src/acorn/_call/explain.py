"""Explanations: the first request that an agent would send for an input, with the sizes of its parts and warnings.

`explain` starts a run with a model that captures the request instead of sending it. The explanation therefore contains
exactly the request of a real run.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from acorn._declare.settings import SETTINGS, setting_in
from acorn._declare.spec import Spec
from acorn._declare.spec_cache import METHOD_NAMES, spec_of, user_hooks
from acorn._declare.tools.collect import FINISH
from acorn._declare.tools.kinds import hosted_tool_name
from acorn._formats.json import text_of, to_compact_json, to_json_data
from acorn._formats.redact import Redactor, find_secrets
from acorn._formats.schema.examples import example_value
from acorn._formats.schema.generate import JsonSchema, inline_refs
from acorn._formats.schema.problems import quote_names
from acorn._module import module
from acorn.errors import AcornError, DeclarationError, InputError
from acorn.models.local.download import too_small_for_tools
from acorn.models.port import ModelResponse, Price, thinks
from acorn.models.request import ModelRequest
from acorn.models.resolve import model_name, resolve
from acorn.types import JsonObject, Message, is_json_object, is_list_or_tuple


@dataclass(frozen=True)
class RequestPart:
    """A message or a tool in the request, with its size."""

    name: str
    characters: int
    tokens: int
    """The estimated number of tokens: a quarter of the bytes."""


@dataclass(frozen=True)
class Explanation:
    """The first request of an agent for an input, with sizes, inherited attributes and warnings."""

    agent: str
    model: str | None
    input: Any
    messages: list[Message]
    tools: list[JsonObject]
    forced_tool: str | None
    temperature: float
    max_tokens: int
    parts: list[RequestPart]
    inherits: dict[str, list[str]]
    """A dict that maps base class names to the attributes, hooks and tools that the agent inherits from the class."""
    warnings: list[str]
    """The warnings about the declaration of the agent."""
    notes: list[str]
    """Notes about the parts of the request that this explanation does not contain."""
    characters: int
    tokens: int
    """The sums of the sizes of all parts."""

    def to_json(self) -> JsonObject:
        return {**vars(self), "parts": [vars(part) for part in self.parts]}


class _CapturedRequest(Exception):  # noqa: N818 - not an error: the request was captured
    """The signal that ends the run after its first request was captured."""


def explain(agent: module[Any, Any], arguments: Sequence[Any] | None = (), *, opens: bool = False) -> Explanation:
    """Return the explanation of a call with these arguments, or with an example input if `arguments` is None.

    If `opens` is True, the tool sources are opened. The prompt method is called. `on_start`, tools and models are not.
    """
    spec = spec_of(agent)
    if arguments is None:
        arguments = (_example_input(spec),)
    probe, notes = _probe(agent, spec, opens)
    model: _CapturingModel = probe.model
    with suppress(_CapturedRequest):
        probe.run(*arguments)
    if not model.requests:
        raise AcornError(f"There is nothing to explain: `{spec.owner}` ended without a request to its model.")
    request, run = model.requests[0], probe.last
    first = spec.model[0] if is_list_or_tuple(spec.model) else spec.model
    parts = [_part(f"{message['role']} message", text_of(message.get("content"))) for message in request.messages]
    parts += [_part(f"tool {tool_name(tool)}", to_compact_json(tool)) for tool in request.tools]
    return Explanation(
        agent=f"{type(agent).__module__}:{type(agent).__qualname__}",
        model=model_name(spec.model),
        input=None if run is None else to_json_data(run.input),
        messages=request.messages,
        tools=[_without_secrets(tool) for tool in request.tools],
        forced_tool=request.forced_tool,
        temperature=setting_in(first, "temperature", request.temperature),
        max_tokens=setting_in(first, "max_tokens", request.max_tokens),
        parts=parts,
        inherits=_inherited(type(agent)),
        warnings=list(_warnings(agent, spec, request.tools)),
        notes=notes,
        characters=sum(part.characters for part in parts),
        tokens=sum(part.tokens for part in parts),
    )


def _example_input(spec: Spec) -> Any:
    """Return an example of an input, or None if the agent has no input."""
    if spec.input.is_empty:
        return None
    try:
        example = example_value(spec.input.json_schema, spec.owner)
        return spec.input.unwrap(spec.input.schema.model_validate(example, by_alias=True, by_name=True))
    except (AcornError, ValidationError) as error:
        raise InputError(
            f"Cannot create an example input for `{spec.owner}`. Pass an input, as for `acorn run`."
        ) from error


def _probe(agent: module[Any, Any], spec: Spec, opens: bool) -> tuple[Any, list[str]]:
    """Return a copy of the agent that sends no request, and notes about the missing parts of its request."""
    notes: list[str] = []
    model = _CapturingModel()
    # If the declared model reasons before it answers, the request must not force a call of `__finish__`.
    with suppress(DeclarationError):  # The model may be missing or not usable on this machine.
        model.thinks = thinks(resolve(spec.model, spec.owner))
    changes: JsonObject = {"model": model}
    if spec.store is not None:
        changes["store"] = "memory"
    if spec.sources and not opens:
        changes["tools"] = [tool for tool in agent.tools if all(tool is not source for source in spec.sources)]
        names = ", ".join(f"`{type(source).__name__}`" for source in spec.sources)
        notes.append(f"the tools of {names} are not shown, because no tool source was opened; `--open` opens them")
    probe = copy.copy(agent).using(**changes)
    hooks = user_hooks(agent)
    if "on_start" in hooks:
        vars(probe)["on_start"] = _pass
        notes.append("`on_start` was not called, and may change the request")
    if "on_human" not in hooks:
        # Without `on_human`, the call may raise an error. `_warnings` reports it instead.
        vars(probe)["on_human"] = _pass
    return probe, notes


class _CapturingModel:
    """A model that stores the first request and ends the run instead of sending the request."""

    name = "explain"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.thinks = False

    def takes_tool(self, tool: Mapping[str, Any]) -> bool:
        """Return True for every hosted tool, because no request is sent."""
        return True

    def can_force_tool(self, request: ModelRequest) -> bool:
        return True

    def price(self) -> Price:
        return Price(0.0, 0.0)

    def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        raise _CapturedRequest

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        return self.complete(request)


def _pass(_: Any) -> None:
    return None


# Sizes


def tool_name(tool: Mapping[str, Any]) -> str:
    """Return the name of a function tool or a hosted tool in a request."""
    return str(tool["function"]["name"] if "function" in tool else hosted_tool_name(tool))


def _without_secrets(tool: JsonObject) -> Any:
    """Return a tool with redacted secrets, because a hosted tool may contain the key of a server."""
    return tool if "function" in tool else Redactor(find_secrets(tool)).data(tool)


def _part(name: str, text: str) -> RequestPart:
    return RequestPart(name, len(text), len(text.encode(errors="replace")) // 4)


# Inherited attributes


def _inherited(cls: type) -> dict[str, list[str]]:
    """Return a dict that maps base class names to the attributes, hooks and tools that a class inherits from them."""
    inherited, seen = dict[str, list[str]](), set[str]()
    for parent in cls.__mro__:
        if parent is module:
            break
        names = [name for name in vars(parent) if _is_declared(name, vars(parent)[name]) and name not in seen]
        seen.update(names)
        if "system_prompt" not in seen and vars(parent).get("__doc__"):
            seen.add("system_prompt")
            names.append("the docstring, as prompt")
        if parent is not cls and names:
            inherited[parent.__name__] = names
    return inherited


def _is_declared(name: str, value: Any) -> bool:
    return name in SETTINGS or name in METHOD_NAMES or (inspect.isfunction(value) and not name.startswith("_"))


# Warnings


def _warnings(agent: module[Any, Any], spec: Spec, tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    functions = [tool["function"] for tool in tools if "function" in tool and tool_name(tool) != FINISH]
    has_sources = bool(spec.sources) or any("function" not in tool for tool in tools)
    if spec.model is None:
        yield "no `model` is set; set it on the class, or pass it with `acorn run --model`"
    if not spec.prompt.is_method and spec.prompt.file is None and not spec.prompt.text.strip():
        yield "no prompt: there is neither a docstring nor a `system_prompt`"
    if (functions or has_sources) and spec.max_steps is None:
        yield "tools without `max_steps`: the first tool call ends the run without an answer"
    if (functions or has_sources) and (name := too_small_for_tools(spec.model)) is not None:
        yield f"`{name}` is too small for tools: it may call tools at random for minutes"
    if spec.max_steps is not None and not functions and not has_sources:
        yield "`max_steps` without tools: the agent needs only one step"
    if spec.max_steps is not None and spec.max_total_tokens is spec.max_cost is spec.max_seconds is None:
        yield f"only `max_steps = {spec.max_steps}` limits the run; set `max_cost` or `max_total_tokens` too"
    if spec.store is None and "on_human" not in user_hooks(agent):
        for tool in spec.human_tools:
            yield f"the tool `{tool.name}` waits for human input, but the agent has neither `on_human` nor a `store`"
    for function in functions:
        if not function.get("description"):
            yield f"the tool `{function['name']}` has no description; give it a docstring"
        yield from _undescribed(function.get("parameters", {}), f"arguments of the tool `{function['name']}`")
    for shape, name in ((spec.input, "input"), (spec.output, "output")):
        if not shape.is_empty and not shape.wrapped:
            yield from _undescribed(shape.json_schema, f"fields of the {name}")
    if not spec.output.is_empty:
        fields = _fields(spec.output.json_schema, spec.output.json_schema)
        if texts := [path for path, values in fields if any(map(_is_unbounded, values))]:
            yield f"text without a longest length in the output: {quote_names(dict.fromkeys(texts))}"


def _undescribed(schema: JsonSchema, what: str) -> Iterator[str]:
    # A constant field, such as the discriminator of a union, needs no description.
    described = ("description", "const")
    if missing := [path for path, (own, *_) in _fields(schema, schema) if not any(own.get(key) for key in described)]:
        yield f"{what} without a description: {quote_names(dict.fromkeys(missing))}"


def _is_unbounded(value: JsonSchema) -> bool:
    """Return whether the schema of a string has no maximum length, no format and no pattern."""
    bounds = ("maxLength", "enum", "const", "format", "pattern")
    return value.get("type") == "string" and not any(key in value for key in bounds)


def _fields(
    node: JsonSchema, top: JsonSchema, path: str = "", above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, list[JsonSchema]]]:
    """Yield the path and the schema of each field in a JSON schema, with the schemas of the values inside the field."""
    for value, seen in _values(node, top, above):
        for name, field in value.get("properties", {}).items():
            at = f"{path}.{name}" if path else name
            if values := [schema for schema, _ in _values(field, top, seen)]:
                yield at, values
                yield from _fields(field, top, at, seen)


def _values(node: Any, top: JsonSchema, above: frozenset[str]) -> Iterator[tuple[JsonSchema, frozenset[str]]]:
    """Yield a JSON schema and the schemas of its list items, dict values and union members.

    The function stops at a class that contains itself.
    """
    if not is_json_object(node) or node.get("$ref") in above:
        return
    if "$ref" in node:
        above |= {node["$ref"]}
    node = inline_refs(node, top)
    yield node, above
    members = [member for key in ("prefixItems", "anyOf", "oneOf") for member in node.get(key, ())]
    for inner in (node.get("items"), node.get("additionalProperties"), *members):
        yield from _values(inner, top, above)
