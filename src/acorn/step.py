"""The class `Step`: the part of a run that the hooks `on_start` and `on_step` receive and may change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from pydantic import BaseModel
from typing_extensions import TypeVar

from acorn._declare.settings import (
    STEP_SETTINGS,
    check_set_once,
    check_setting,
    merge_settings,
    settings_in,
    without_overridden,
)
from acorn._declare.spec import Spec
from acorn._declare.tools.collect import FINISH, make_tool
from acorn._declare.tools.kinds import Tool
from acorn._formats.json import PartCollector, copy_json, excerpt
from acorn._formats.xml.encode import encode_xml
from acorn._machine.finish import judge_fields, judge_output
from acorn._machine.state import State
from acorn.errors import DeclarationError, InputError, ToolConflictError
from acorn.models.port import ModelResponse, is_model
from acorn.record import Run
from acorn.types import Content, JsonObject, ToolCall, ToolResult, Usage, is_json_list, is_json_object, is_list_or_tuple

_UNSET: Any = object()
_SETTABLE = (*STEP_SETTINGS, "tool_calls", "tool_results")
Deps = TypeVar("Deps", default=Any)


class Step(Generic[Deps]):
    """One step of a run, with a response of the model and the results of its tool calls.

    The hooks `on_step` and `on_start` receive a step.

        class Careful(Researcher):
            def on_step(self, step: Step) -> None:
                if step.counter == 3:
                    step.remove_tool("search")
                if "secret" in str(step.tool_results):
                    step.finish(answer="I may not say.")

    Changes to `model`, `temperature`, `max_tokens` and `tools` apply to all remaining steps.
    """

    run: Run[Any, Deps]
    counter: int
    """The number of the step, counted from 1. It is 0 in `on_start`, before the first step."""
    tool_calls: list[ToolCall]
    tool_results: list[ToolResult]
    """The results of the tool calls. You can change them before the model receives them."""

    _spec: Spec
    _response: ModelResponse
    _before: Mapping[str, Any]
    """A dict of the settings that earlier hooks of the run have changed."""
    _listed: tuple[Tool, ...]
    """The tools before the hook."""
    _known: tuple[Tool, ...]
    """The tools before the hook, and the tools that the hook added."""
    _branches: Collection[str]
    _removed: Collection[str]
    """The names of the tools and branches that earlier hooks of the run have removed."""

    # These attributes store the changes of the hook. They are class attributes until the hook sets them, because most
    # hooks change little.
    _settings: Mapping[str, Any] = MappingProxyType({})
    _is_model_set = False
    """Whether the hook assigned a model. A hook may also change the model dict in place."""
    _tools: list[Callable[..., Any]] | None = None
    _removed_branches: tuple[str, ...] = ()
    _context: tuple[str, ...] = ()
    _parts: PartCollector | None = None
    _output: BaseModel | None = None

    def __init__(
        self, spec: Spec, run: Run[Any, Deps], state: State, tools: tuple[Tool, ...], branches: Collection[str]
    ) -> None:
        response = state.response or ModelResponse(usage=Usage())  # `on_start` runs before the first response.
        results = [state.results[call.id] for call in state.calls]
        # The hook may change the lists. `__setattr__` would treat these assignments as changes by the hook.
        vars(self).update(run=run, counter=run.steps, tool_calls=list(state.calls), tool_results=results)
        vars(self).update(_spec=spec, _response=response, _before=state.settings, _known=tools, _listed=tools)
        self._branches, self._removed = branches, state.removed

    if not TYPE_CHECKING:  # With `__setattr__`, a type checker would accept any name.

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in _SETTABLE and not name.startswith("_"):
                raise AttributeError(_read_only_message(name))
            object.__setattr__(self, name, value)

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(_missing_message(name), name=name, obj=self)

    def __repr__(self) -> str:
        return f"Step({self.counter}, tool_calls={[call.name for call in self.tool_calls]})"

    @property
    def branch(self) -> str | None:
        """The path of the branch, such as `outer/inner`, or None if the run is not a branch."""
        return self.run.branch

    @property
    def model(self) -> Any:
        if "model" not in self._settings:
            model = self._model_before
            if not (is_json_object(model) or is_list_or_tuple(model)) or is_model(model):
                return model
            # The hook may change the dict in place, so it receives a copy of the class attribute.
            copied = copy_json(list(model) if is_list_or_tuple(model) else model)
            self._settings = {**self._settings, "model": copied}
        return self._settings["model"]

    @model.setter
    def model(self, value: Any) -> None:
        check_setting(self._spec.owner, "model", value)
        check_set_once("step", value, self._settings)
        self._settings, self._is_model_set = {**self._settings, "model": value}, True

    @property
    def temperature(self) -> float:
        value: float = self._setting("temperature")
        return value

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._set("temperature", value)

    @property
    def max_tokens(self) -> int:
        value: int = self._setting("max_tokens")
        return value

    @max_tokens.setter
    def max_tokens(self, value: int) -> None:
        self._set("max_tokens", value)

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """The list of tool functions for the next steps. It contains neither branches nor `__finish__`."""
        if self._tools is None:
            self._tools = [tool.function for tool in self._listed]
        return self._tools

    @tools.setter
    def tools(self, tools: Sequence[Callable[..., Any]]) -> None:
        check_setting(self._spec.owner, "tools", tools)
        self._tools = list(tools)

    @property
    def deps(self) -> Deps:
        """The object that was passed with `using(deps=...)`."""
        return self.run.deps

    @property
    def content(self) -> str:
        """The text of the response, or an empty string."""
        return self._response.content

    @property
    def reasoning(self) -> str | None:
        """The reasoning of the model, or None if the response does not contain it."""
        return self._response.reasoning

    @property
    def usage(self) -> Usage:
        """The number of tokens of this step's request."""
        return self._response.usage

    @property
    def cost(self) -> float | None:
        """The cost of this step's request in dollars, or None if the price is unknown."""
        return self._response.cost

    @property
    def response(self) -> JsonObject:
        """The response in OpenAI's chat-completion format, for every provider."""
        response = self._response
        message: JsonObject = {"role": "assistant", "content": response.content or None, **response.extra}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.raw_arguments}}
                for call in self.tool_calls
            ]
        return {
            "id": f"{self.run.id}-{self.counter}",
            "object": "chat.completion",
            "model": response.model,
            "choices": [{"index": 0, "message": message, "finish_reason": response.stop_reason}],
            "usage": {
                "prompt_tokens": response.usage.input_tokens,
                "completion_tokens": response.usage.output_tokens,
                "total_tokens": response.usage.total_tokens,
            },
        }

    def add_tool(self, tool: Callable[..., Any]) -> None:
        """Add a tool for the remaining steps of the run."""
        new = make_tool(tool, "add_tool", self._spec.owner, self._spec.local_names)
        if new.name in self._named_tools() or new.name in self._remaining_branches():
            raise ToolConflictError(
                f"Tool '{new.name}' already exists. Set another name for the new tool with `@tool(name=...)`, or "
                f"remove the existing tool first."
            )
        self._known = (*self._known, new)
        self.tools.append(new.function)

    def remove_tool(self, name: str) -> None:
        """Remove a tool or a branch for the remaining steps of the run.

        A second removal does nothing. A name that never existed raises `InputError`.
        """
        if name == FINISH:
            raise DeclarationError(f"`{FINISH}` cannot be removed, because it ends the run.")
        tools, branches = self._named_tools(), self._remaining_branches()
        names = ", ".join(f"`{known}`" for known in (*tools, *branches)) or "none"
        if not isinstance(name, str):
            raise InputError(
                f"`step.remove_tool` needs the name of a tool, got {excerpt(name)}. The tools are: {names}."
            )
        if name in branches:
            self._removed_branches += (name,)
        elif name in tools:
            self.tools[:] = [function for function in self.tools if function != tools[name].function]
        elif name not in (*self._removed, *self._branches, *[tool.name for tool in self._known]):
            raise InputError(f"There is no tool `{name}` to remove. The tools are: {names}.")

    def finish(self, output: Any = _UNSET, /, **fields: Any) -> None:
        """End the run after this hook, with this output: one instance, or its fields.

        If the output type of the module is not a Pydantic class, you can also pass the output as `result`.

        def on_step(self, step):
            step.finish(Answer(answer="I may not say."))
        """
        spec = self._spec
        if output is _UNSET:
            self._output = judge_fields(spec.output, fields, spec.owner)
        elif fields:
            names = ", ".join(f"`{name}`" for name in fields)
            raise TypeError(f"`step.finish` takes one output or its fields, but got an output and {names}.")
        else:
            self._output = judge_output(spec.output, output, spec.owner)

    def add_to_context(self, content: Any) -> None:
        """Add a string, dict, list or Pydantic instance to the conversation, after the tool results."""
        self._parts = self._parts or PartCollector()
        unserializable: list[object] = []
        text = encode_xml(content, self._spec.xml_context_root, self._spec.xml, self._parts, unserializable)
        if unserializable:
            kind = type(unserializable[0]).__name__
            raise InputError(
                f"`step.add_to_context` got an instance of `{kind}`, of which a model could read only an address in "
                f"memory. Pass text, plain data or an instance of a schema, or give the class a `__repr__`."
            )
        self._context += (text,)

    def _chosen_tools(self) -> tuple[Tool, ...]:
        """Return the tools for the next steps, with the tools that the hook added and without those that it removed."""
        if self._tools is None or self._tools == [tool.function for tool in self._listed]:
            return self._listed
        chosen: dict[str, Tool] = {}
        for index, function in enumerate(self.tools):
            known = next((tool for tool in self._known if tool.function == function), None)
            tool = known or make_tool(function, f"step.tools[{index}]", self._spec.owner, self._spec.local_names)
            if chosen.setdefault(tool.name, tool) is not tool:
                raise ToolConflictError(
                    f"`step.tools` contains two tools named '{tool.name}'. Remove one of the tools."
                )
        return tuple(chosen.values())

    def _named_tools(self) -> dict[str, Tool]:
        return {tool.name: tool for tool in self._chosen_tools()}

    def _remaining_branches(self) -> list[str]:
        return [name for name in self._branches if name not in self._removed_branches]

    def _changed_settings(self) -> JsonObject:
        """Return a dict of the settings that the hook changed.

        The dict does not contain the model if the hook has read `step.model` without changing it.
        """
        changed = dict(self._settings)
        if "model" in changed and not self._is_model_set:
            model, before = changed["model"], self._model_before
            before = list(before) if is_list_or_tuple(before) else before
            if model == before:
                del changed["model"]
            else:
                check_setting(self._spec.owner, "model", model)
                # Other settings override the unchanged values of the dict, as they did before the hook.
                if is_json_list(before):
                    changed["model"] = [
                        without_overridden(member, changed) if member in before else member for member in model
                    ]
                else:
                    unchanged = [
                        name for name, key in settings_in(model) if key in before and before[key] == model[key]
                    ]
                    overridden = [name for name in unchanged if name in self._before or name in changed]
                    changed["model"] = without_overridden(model, overridden)
                check_set_once("step", changed["model"], changed)
        return changed

    def _changes(self) -> StepChanges:
        parts = self._parts
        context = parts.content("\n".join(self._context)) if self._context and parts is not None else None
        tools, removed = self._chosen_tools(), self._removed_branches
        if tools is not self._known:
            removed += tuple(tool.name for tool in self._known if tool not in tools)
        return StepChanges(self._changed_settings(), tools, removed, context, self._output)

    @property
    def _model_before(self) -> Any:
        return self._spec.effective("model", self._before)

    def _setting(self, name: str) -> Any:
        return self._spec.effective(name, merge_settings(self._before, self._changed_settings()))

    def _set(self, name: str, value: Any) -> None:
        check_setting(self._spec.owner, name, value)
        if self._is_model_set:
            check_set_once("step", self._settings["model"], (name,))
        self._settings = {**self._settings, name: value}


class StepChanges(NamedTuple):
    """The changes of a hook to a step: settings, tools, context and output."""

    settings: JsonObject
    tools: tuple[Tool, ...]
    removed: tuple[str, ...]
    """The names of the tools and branches that the hook removed."""
    context: Content | None
    """The content from `add_to_context`, or None."""
    output: BaseModel | None
    """The output from `step.finish`, or None."""


def changes_of(step: Step) -> StepChanges:
    """Return the changes that a hook made to a step."""
    return step._changes()  # pyright: ignore[reportPrivateUsage]  # Hooks do not need it, so it is not public.


_CONFUSED = {
    "history": "The conversation is `self.history`.",
    "messages": "The conversation is `self.history`.",
    "number": "The number of the step is `step.counter`.",
    "results": "The results of the tool calls are `step.tool_results`.",
    "output": "To end the run with an output, use `step.finish(...)`.",
}
"""A dict that maps names that users look for on a step to the place of what they look for."""


def _missing_message(name: str) -> str:
    near = get_close_matches(name, [*dir(Step), *Step.__annotations__], 1)
    fix = _CONFUSED.get(name) or (f"Did you mean `step.{near[0]}`?" if near and not near[0].startswith("_") else "")
    return f"A step has no `{name}`. {fix or 'Its attributes are described in `acorn.Step`.'}"


def _read_only_message(name: str) -> str:
    settable = f"you can set {', '.join(f'`{attribute}`' for attribute in _SETTABLE)}"
    if name == "history":
        return f"A step has no `history`. The conversation is `self.history`. On a step {settable}."
    if hasattr(Step, name) or name in Step.__annotations__:
        return f"`step.{name}` is read-only. On a step {settable}."
    near = get_close_matches(name, _SETTABLE, 1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return f"A step has no `{name}`.{hint} On a step {settable}."
