"""The step: what `on_start` and `on_step` see of the run and may change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from acorn._declare.settings import (
    check_set_once,
    check_setting,
    effective_setting,
    merge_settings,
    settings_in,
    without_overridden,
)
from acorn._declare.tools.collect import FINISH, make_tool
from acorn._declare.tools.kinds import Tool
from acorn._formats.content import PartCollector
from acorn._formats.xml.encode import encode_xml
from acorn._machine.finish import judge_fields
from acorn.errors import DeclarationError, ToolConflictError
from acorn.models.port import ModelResponse, is_model
from acorn.record import Run
from acorn.types import Content, JsonObject, ToolCall, ToolResult, Usage

_SETTABLE = ("model", "temperature", "max_tokens", "tools", "tool_calls", "tool_results")
Deps = TypeVar("Deps", default=Any)


class Step(Generic[Deps]):
    """One step of a run: a model's response, and what its tools returned. `on_step` and `on_start` get it.

        class Careful(Researcher):
            def on_step(self, step: Step) -> None:
                if step.counter == 3:
                    step.remove_tool("search")
                if "secret" in str(step.tool_results):
                    step.finish(answer="I may not say.")

    Changes to `model`, `temperature`, `max_tokens` and `tools` hold for the remaining steps.
    """

    run: Run[Any, Deps]
    counter: int
    """Which step this is, counted from 1; 0 in `on_start`, before the first."""
    tool_calls: list[ToolCall]
    tool_results: list[ToolResult]
    """Change them here, before the model reads them."""

    _spec: Any
    _response: ModelResponse
    _before: Mapping[str, Any]
    """What earlier hooks of the run have set."""
    _listed: tuple[Tool, ...]
    _known: tuple[Tool, ...]
    """Those and the ones that were added."""
    _branches: Collection[str]

    # What the hook has done; most do little, so there is nothing to be made for it beforehand.
    _settings: Mapping[str, Any] = MappingProxyType({})
    _is_model_set = False
    """Whether the hook gave another model, and did not merely change the dict of the one there was."""
    _tools: list[Callable[..., Any]] | None = None
    _removed: tuple[str, ...] = ()
    """Branches."""
    _context: tuple[str, ...] = ()
    _parts: PartCollector | None = None
    _finished: Any = None

    def __init__(
        self,
        owner: Any,
        run: Run[Any, Deps],
        response: ModelResponse,
        tool_calls: list[ToolCall],
        tool_results: list[ToolResult],
        tools: tuple[Tool, ...],
        branches: Collection[str],
        before: Mapping[str, Any],
    ) -> None:
        # At once: one by one, each would be judged like an assignment of a hook's.
        fields = {
            "run": run,
            "counter": run.steps,
            "tool_calls": tool_calls,
            "tool_results": tool_results,
            "_spec": owner,
            "_response": response,
            "_before": before,
            "_known": tools,
            "_listed": tools,
            "_branches": branches,
        }
        object.__setattr__(self, "__dict__", fields)

    if not TYPE_CHECKING:  # a type checker would take any name for one that can be set

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in _SETTABLE and not name.startswith("_"):
                raise AttributeError(_cannot_set(name))
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Step({self.counter}, tool_calls={[call.name for call in self.tool_calls]})"

    @property
    def branch(self) -> str | None:
        """The path of the branch this is a step of, `outer/inner`; None in a run of its own."""
        return self.run.branch

    @property
    def model(self) -> Any:
        if "model" not in self._settings:
            now = self._model_before
            if not isinstance(now, dict | list | tuple) or is_model(now):
                return now
            self._settings = {**self._settings, "model": _own(now)}  # the class's own is not to be changed in place
        return self._settings["model"]

    @model.setter
    def model(self, value: Any) -> None:
        check_setting(self._spec.owner, "model", value)
        check_set_once("step", value, self._settings)
        self._settings, self._is_model_set = {**self._settings, "model": value}, True

    @property
    def temperature(self) -> float:
        found: float = self._setting("temperature")
        return found

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._set("temperature", value)

    @property
    def max_tokens(self) -> int:
        found: int = self._setting("max_tokens")
        return found

    @max_tokens.setter
    def max_tokens(self, value: int) -> None:
        self._set("max_tokens", value)

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """The functions for the next step, without branches and `__finish__`."""
        if self._tools is None:
            self._tools = [tool.function for tool in self._listed]
        return self._tools

    @tools.setter
    def tools(self, tools: Sequence[Callable[..., Any]]) -> None:
        check_setting(self._spec.owner, "tools", tools)
        self._tools = list(tools)

    @property
    def deps(self) -> Deps:
        """What `using(deps=...)` brought along."""
        return self.run.deps

    @property
    def content(self) -> str:
        """The text beside the tool calls; "" where there was none."""
        return self._response.content

    @property
    def reasoning(self) -> str | None:
        """Thinking text, where the model shows it."""
        return self._response.reasoning

    @property
    def usage(self) -> Usage:
        """Tokens of this step's request."""
        return self._response.usage

    @property
    def cost(self) -> float | None:
        """Dollars of this step's request, where the price is known."""
        return self._response.cost

    @property
    def response(self) -> JsonObject:
        """The model's response in OpenAI's chat-completion shape, the same whatever the provider."""
        reply = self._response
        message: JsonObject = {"role": "assistant", "content": reply.content or None, **reply.extra}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.raw_arguments}}
                for call in self.tool_calls
            ]
        return {
            "id": f"{self.run.id}-{self.counter}",
            "object": "chat.completion",
            "model": reply.model,
            "choices": [{"index": 0, "message": message, "finish_reason": reply.stop_reason}],
            "usage": {
                "prompt_tokens": reply.usage.input_tokens,
                "completion_tokens": reply.usage.output_tokens,
                "total_tokens": reply.usage.total_tokens,
            },
        }

    def add_tool(self, tool: Callable[..., Any]) -> None:
        """Add a tool for the remaining steps."""
        made = make_tool(tool, "add_tool", self._spec.owner, {})
        if made.name in self._names() or made.name in self._branches_left():
            raise ToolConflictError(
                f"Tool '{made.name}' is there already; give the new one another name with `@tool(name=...)`, "
                f"or remove the old one first."
            )
        self._known = (*self._known, made)
        self.tools.append(made.function)

    def remove_tool(self, name: str) -> None:
        """Remove a tool, or a branch, for the remaining steps."""
        if name == FINISH:
            raise DeclarationError(f"`{FINISH}` cannot be removed: it is how a run ends.")
        names, branches = self._names(), self._branches_left()
        if name in branches:
            self._removed += (name,)
            return
        if name not in names:
            there = ", ".join(f"`{known}`" for known in (*names, *branches)) or "none"
            raise DeclarationError(f"There is no tool `{name}` to remove; there are {there}.")
        self.tools[:] = [function for function in self.tools if function != names[name].function]

    def finish(self, /, **fields: Any) -> None:
        """End the run after this hook, with these fields as its output (`result=` for a plain type)."""
        self._finished = judge_fields(self._spec.output, fields, self._spec.owner)

    def add_to_context(self, content: Any) -> None:
        """Show the model something beside the tool results: a string, dict, list or Pydantic instance."""
        self._parts = self._parts or PartCollector()
        self._context += (encode_xml(content, self._spec.xml_context_root, self._spec.xml, self._parts),)

    def _shown(self) -> Content | None:
        """All that `add_to_context` was given; None where it was not called."""
        if not self._context or self._parts is None:
            return None
        return self._parts.content("\n".join(self._context))

    def chosen_tools(self) -> tuple[Tool, ...]:
        """The tools as the hook left them, each compiled once."""
        if self._tools is None or self._tools == [tool.function for tool in self._listed]:
            return self._listed
        chosen: list[Tool] = []
        for index, function in enumerate(self.tools):
            known = next((tool for tool in self._known if tool.function == function), None)
            tool = known or make_tool(function, f"step.tools[{index}]", self._spec.owner, {})
            if tool.name in [other.name for other in chosen]:
                if any(other is tool for other in chosen):
                    continue
                raise ToolConflictError(f"`step.tools` holds two tools named '{tool.name}'; keep one.")
            chosen.append(tool)
        return tuple(chosen)

    def _names(self) -> dict[str, Tool]:
        return {tool.name: tool for tool in self.chosen_tools()}

    def _branches_left(self) -> list[str]:
        return [name for name in self._branches if name not in self._removed]

    def changes(self) -> JsonObject:
        """The settings that the hook set; a model that was only looked at is left out."""
        changed = dict(self._settings)
        if "model" in changed and not self._is_model_set:
            model, before = changed["model"], self._model_before
            before = list(before) if isinstance(before, tuple) else before
            if model == before:
                del changed["model"]
            else:
                check_setting(self._spec.owner, "model", model)
                # What it said all along was overruled, and still is.
                if isinstance(before, list):
                    changed["model"] = [without_overridden(each, changed) if each in before else each for each in model]
                else:
                    kept = [name for name, key in settings_in(model) if key in before and before[key] == model[key]]
                    lost = [name for name in kept if name in self._before or name in changed]
                    changed["model"] = without_overridden(model, lost)
                check_set_once("step", changed["model"], changed)
        return changed

    @property
    def _model_before(self) -> Any:
        return effective_setting("model", self._before, self._spec)

    def _setting(self, name: str) -> Any:
        return effective_setting(name, merge_settings(self._before, self.changes()), self._spec)

    def _set(self, name: str, value: Any) -> None:
        check_setting(self._spec.owner, name, value)
        if self._is_model_set:
            check_set_once("step", self._settings["model"], (name,))
        self._settings = {**self._settings, name: value}


def _own(model: Any) -> Any:
    """A dict, or a list and the dicts in it, to be changed."""
    if isinstance(model, list | tuple):
        return [_own(each) if isinstance(each, dict) else each for each in model]
    return dict(model)


def _cannot_set(name: str) -> str:
    can = f"what can be set is {', '.join(f'`{each}`' for each in _SETTABLE)}"
    if name == "history":
        return f"A step has no `history`; the conversation is `self.history`. Of a step {can}."
    if hasattr(Step, name) or name in Step.__annotations__:
        return f"`step.{name}` is to be read only; {can}."
    near = get_close_matches(name, _SETTABLE, 1)
    hint = f"; did you mean `{near[0]}`?" if near else "."
    return f"A step has no `{name}`{hint} Of a step {can}."
