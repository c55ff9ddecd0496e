"""The step: what `on_step` sees of the run and may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from typing_extensions import TypeVar

from acorn._content import Parts
from acorn._loop.finish import judge_fields
from acorn._spec import check_setting
from acorn._tools.collect import FINISH, make_tool
from acorn._tools.port import Tool
from acorn._xml.encode import encode
from acorn.errors import DeclarationError, ToolConflictError
from acorn.models.port import ModelResponse
from acorn.record import Run
from acorn.types import Content, ToolCall, ToolResult, Usage

Deps = TypeVar("Deps", default=Any)


class Step(Generic[Deps]):
    """One step of a run: a model's response, and what its tools returned.

    Changes to `model`, `temperature`, `max_tokens` and `tools` hold for the remaining steps.
    """

    run: Run[Any, Deps]
    branch: str | None = None
    """The path of the branch this is a step of, `outer/inner`; None in a run of its own."""
    counter: int
    """Which step this is, counted from 1."""
    tool_calls: list[ToolCall]
    tool_results: list[ToolResult]
    """Change them here, before the model reads them."""

    def __init__(
        self,
        owner: Any,
        run: Run[Any, Deps],
        response: ModelResponse,
        tool_calls: list[ToolCall],
        tool_results: list[ToolResult],
        tools: tuple[Tool, ...],
        before: Callable[[str], Any],
    ) -> None:
        self._spec = owner
        self._response = response
        self._before = before
        self._settings: dict[str, Any] = {}
        self._known = self._listed = tools
        self._context: list[str] = []
        self._parts = Parts()
        self._finished: Any = None
        self.run = run
        self.counter = run.steps
        self.tool_calls = tool_calls
        self.tool_results = tool_results
        self._tools: list[Callable[..., Any]] | None = None

    def __repr__(self) -> str:
        return f"Step({self.counter}, tool_calls={[call.name for call in self.tool_calls]})"

    @property
    def model(self) -> Any:
        now = self._setting("model")
        if now is self._before("model") and isinstance(now, dict):
            now = self._settings["model"] = dict(now)  # the class's own is not to be changed in place
        return now

    @model.setter
    def model(self, value: Any) -> None:
        self._set("model", value)

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
        """The tools for the next step, without `__finish__`."""
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
    def response(self) -> dict[str, Any]:
        """The model's response in OpenAI's chat-completion shape, the same whatever the provider."""
        reply = self._response
        message: dict[str, Any] = {"role": "assistant", "content": reply.content or None, **reply.extra}
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
        if made.name in self._names() or made.name in self._spec.branches:
            raise ToolConflictError(
                f"Tool '{made.name}' is there already; give the new one another name with `@tool(name=...)`, "
                f"or remove the old one first."
            )
        self._known = (*self._known, made)
        self.tools.append(made.function)

    def remove_tool(self, name: str) -> None:
        """Remove a tool for the remaining steps."""
        if name == FINISH:
            raise DeclarationError(f"`{FINISH}` cannot be removed: it is how a run ends.")
        names = self._names()
        if name not in names:
            there = ", ".join(f"`{known}`" for known in names) or "none"
            raise DeclarationError(f"There is no tool `{name}` to remove; there are {there}.")
        self.tools[:] = [function for function in self.tools if function != names[name].function]

    def finish(self, /, **fields: Any) -> None:
        """End the run after this hook, with these fields as its output (`result=` for a plain type)."""
        self._finished = judge_fields(self._spec.output, fields, self._spec.owner)

    def add_to_context(self, content: Any) -> None:
        """Show the model something beside the tool results: a string, dict, list or Pydantic instance."""
        self._context.append(encode(content, self._spec.xml_context_root, self._spec.xml, self._parts))

    def _shown(self) -> Content | None:
        """All that `add_to_context` was given; None where it was not called."""
        return self._parts.content("\n".join(self._context)) if self._context else None

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

    def changes(self) -> dict[str, Any]:
        """The settings that the hook set; a model that was only looked at is left out."""
        return {name: value for name, value in self._settings.items() if name != "model" or value != self._before(name)}

    def _setting(self, name: str) -> Any:
        return self._settings[name] if name in self._settings else self._before(name)

    def _set(self, name: str, value: Any) -> None:
        check_setting(self._spec.owner, name, value)
        self._settings[name] = value
