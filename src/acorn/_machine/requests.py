"""The request builder, which creates model requests from the current settings, model, tools and history of a run.

Hooks change the settings and tools through a `Step` object, which `StepHook` creates and reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from acorn._declare.settings import merge_settings
from acorn._declare.spec import Spec
from acorn._declare.tools.collect import FINISH, collect_tools, merge_tools
from acorn._declare.tools.kinds import HostedTool, Tool
from acorn._formats.json import safe_repr, to_json_text
from acorn._history.compaction import CompactedRange, estimate_tokens, range_to_compact, summary_messages, summary_text
from acorn._history.history import current_openings
from acorn._history.request_messages import RequestMessages, check_media, input_message
from acorn._history.transcript import Transcript
from acorn._machine import finish
from acorn._machine.budgets import Budgets
from acorn._machine.plan import BranchTool, Plan
from acorn._machine.state import State
from acorn.errors import AcornError, DeclarationError, ToolConflictError
from acorn.models.port import ModelResponse, models_of, takes_strict, takes_tool, thinks
from acorn.models.request import ModelRequest, ToolDefinitions
from acorn.record import Run
from acorn.step import Step, StepChanges
from acorn.types import JsonObject, Message, ToolCall, ToolResult, Usage, is_json_list, is_list_or_tuple

if TYPE_CHECKING:
    from acorn.thread.xml import ThreadMessage

T = TypeVar("T")


@dataclass(eq=False)
class Toolset:
    """The tools, branches and `__finish__` definition that the next request offers to the model."""

    tools: tuple[Tool, ...]
    branches: Mapping[str, BranchTool]
    finish: JsonObject
    """The definition of `__finish__`."""

    named: dict[str, Tool] = field(default_factory=dict[str, Tool], init=False)
    repeatable: set[str] = field(default_factory=set[str], init=False)
    """The names of the tools that the loop guard ignores."""

    def __post_init__(self) -> None:
        for tool in self.tools:
            self.named[tool.name] = tool
            if tool.options.repeatable:
                self.repeatable.add(tool.name)

    @cached_property
    def definitions(self) -> ToolDefinitions:
        """The definitions of the tools, the branches and `__finish__` in the format of OpenAI."""
        definitions: list[JsonObject] = []
        offered: list[Tool | BranchTool] = [*self.tools, *self.branches.values()]
        for tool in offered:
            schema = tool.schema
            # A hosted tool has the format of its provider, without `parameters`.
            definitions.append({"type": "function", "function": schema} if "parameters" in schema else schema)
        return ToolDefinitions([*definitions, {"type": "function", "function": self.finish}])


class RequestBuilder:
    """The part of a machine that builds requests from the current settings, model, tools and history."""

    def __init__(
        self,
        plan: Plan,
        run: Run,
        state: State,
        transcript: Transcript,
        budgets: Budgets,
        messages: RequestMessages | None,
    ) -> None:
        self.run = run
        self._plan, self._state, self._spec = plan, state, plan.spec
        self._transcript, self._budgets = transcript, budgets
        self._read_settings()
        self.is_timed = budgets.limits.seconds is not None
        """Whether the run has a time limit, so that the timeout of a request depends on its start time."""
        self.request: ModelRequest | None = None
        """The next request, or None if it is not built yet."""
        self.source_tools: list[tuple[Tool, ...]] = []
        """The tools of each open tool source."""
        self._thread = _new_thread_message() if plan.spec.history_format == "thread" else None
        self.messages = messages or RequestMessages()
        context = plan.context
        openings: tuple[Message, ...] = (input_message(plan.spec, run.input),)
        if context is not None and context.inherits:
            openings = (openings if context.has_input else ()) + context.openings
        entries = run.journal.entries
        transcript.history.openings = current_openings(openings, entries) if entries else openings
        self._use_model()
        self._use_tools(self._with_inherited(plan.tools) if plan.inherited else plan.tools)

    # Settings and the model

    def _read_settings(self) -> None:
        """Store the current settings, which every request uses until a hook changes them."""
        changed, spec = self._state.settings, self._spec
        sampling = spec.changed_sampling(changed) if changed else spec.sampling
        self.model_setting, self.temperature, self.max_tokens, self._declared = sampling

    def _use_model(self) -> None:
        self.model = self._plan.resolve(self.model_setting, self._spec)
        if self._budgets.limited:
            self._budgets.check_price(self.model)

    def apply(self, changes: StepChanges) -> None:
        """Apply the settings and tools that a hook changed to all later requests."""
        state, is_other_model = self._state, False
        if changes.settings:
            state.settings = merge_settings(state.settings, changes.settings)
            self._read_settings()
            # The models of a list may have their own settings, which other settings override.
            if "model" in changes.settings or is_list_or_tuple(self.model_setting):
                self._use_model()
                is_other_model = True
        if changes.tools != self.toolset.tools:
            state.tools = [tool.name for tool in changes.tools]
        elif not changes.removed and not is_other_model:  # Another model may need other tool definitions.
            return
        state.removed += changes.removed
        self._use_tools(changes.tools)

    # Tools

    def add_source(self, source: object, listed: object) -> None:
        """Add the tools of an opened tool source. `listed` is the value that the source's `tools()` returned."""
        where = f"tools of {type(source).__name__}"
        if not is_list_or_tuple(listed):
            raise AcornError(f"The {where} must be a list of functions, got {safe_repr(listed)[:120]}.")
        tools, _ = collect_tools(list(listed), where, {})
        self.source_tools.append(tuple(tools))
        from_sources = [tool for source_tools in self.source_tools for tool in source_tools]
        self._use_tools(self._with_inherited(merge_tools((*self._plan.tools, *from_sources), (), self._spec.owner)))

    def _with_inherited(self, own: Sequence[Tool]) -> tuple[Tool, ...]:
        """Return the tools of a branch: the tools that it inherits from its parent, and its own tools.

        If the branch declares a tool or a branch with the name of an inherited tool, the inherited tool is left out.
        """
        inherited = {tool.name: tool for tool in self._plan.inherited if tool.name not in self._plan.branches}
        return tuple((inherited | {tool.name: tool for tool in own}).values())

    def restore_tools(self) -> None:
        """Select the tools of a loaded run that a hook had selected before the run was saved."""
        if self._state.tools is not None:
            self._use_tools(named_tools(self.toolset.tools, self._state.tools))

    def _use_tools(self, tools: tuple[Tool, ...]) -> None:
        """Offer these tools, the branches and `__finish__` to the model in all later requests."""
        spec, branches, removed = self._spec, self._plan.branches, self._state.removed
        if removed:
            branches = {name: branch for name, branch in branches.items() if name not in removed}
        for tool in tools:
            if tool.name in branches:
                raise ToolConflictError(
                    f"Tool '{tool.name}' of `{spec.owner}` has the name of one of its `branches`. Rename one."
                )
            if isinstance(tool, HostedTool):
                self._check_hosted(tool)
        strict = spec.strict
        if strict is None:  # Use strict mode if the output schema and the model support it.
            strict = finish.fits_strictly(spec.output) and takes_strict(self.model)
        self.toolset = Toolset(tools, branches, finish.finish_definition(spec.output, strict=strict))

    def _check_hosted(self, tool: HostedTool) -> None:
        """Raise `DeclarationError` if the model's provider cannot run a hosted tool."""
        without = [model for model in models_of(self.model) if not takes_tool(model, tool.schema)]
        if without:
            names = " and ".join(f"`{model.name}`" for model in without)
            raise DeclarationError(
                f"{names} cannot run the hosted tool `{tool.name}` of `{self._spec.owner}`, {tool.where}. Remove "
                f"it from `tools`, or use a model of its provider: `openai/responses/...` runs the tools of "
                f"OpenAI, `anthropic/...` runs the tools of Anthropic."
            )

    # Requests

    def build(self, now: float) -> ModelRequest:
        """Return the next request, with a timeout if the run has a time limit."""
        if self.request is None:
            self.request = self._new_summary_request() if self._state.phase == "compact" else self._new_request()
        if (seconds := self._budgets.limits.seconds) is not None:
            self.request.timeout = max(0.001, seconds - now)
        return self.request

    def _new_summary_request(self) -> ModelRequest:
        """Return the request for a summary of older steps. It uses the same model but offers no tools."""
        history = self._transcript.history
        compacted = range_to_compact(history.messages, history.openings, self._spec.compact_at or 1)
        opening = history.openings[0]
        messages = [] if compacted is None else summary_messages(history.messages, compacted, opening)
        return ModelRequest(messages, [], self.temperature, self.max_tokens, declared=self._declared)

    def _new_request(self) -> ModelRequest:
        sent = self.messages.prepare(self._transcript.history)
        if media := sent.media:
            check_media(self._spec, media)
        messages = sent if self._thread is None else self._thread.wrap(sent.filled())
        forced = FINISH if self._state.was_forced else None
        settings = (self.temperature, self.max_tokens, forced, self._declared, self._spec.cache)
        return ModelRequest(messages, self.toolset.definitions, *settings, known_media=media)

    def can_force_finish(self) -> bool:
        """Return whether the model can be forced to call `__finish__` and the last request did not force it."""
        return not self._state.was_forced and not thinks(self.model) and self.model.can_force_tool(self._new_request())

    def needs_summary(self) -> bool:
        """Return whether the conversation exceeds `compact_at` and a summary would make it shorter.

        Return False if the run must answer now, or if a summary was already requested since the last response.
        """
        state, max_size = self._state, self._spec.compact_at
        must_answer = state.fallback or (state.forced and state.reason == "limit")
        if max_size is None or state.compacted == state.turns or must_answer:
            return False
        last, history = state.meter.last, self._transcript.history
        size = last.total_tokens if last is not None and last.total_tokens else estimate_tokens(history.messages)
        if size <= max_size:
            return False
        self._transcript.record_edits()
        return range_to_compact(history.messages, history.openings, max_size) is not None

    def take_summary(self, request: ModelRequest, response: ModelResponse, asked: float) -> None:
        """Replace older steps with the summary in a response. If the response has no summary, keep the steps."""
        state, transcript, history = self._state, self._transcript, self._transcript.history
        self.request, state.compacted = None, state.turns
        self._budgets.pay(request, response, self.model, self.run, None)
        transcript.record_edits()
        compacted = range_to_compact(history.messages, history.openings, self._spec.compact_at or 1)
        is_refusal = response.refusal is not None or response.stop_reason == "content_filter"
        text = "" if is_refusal else summary_text(response.content, was_cut=response.stop_reason == "length")
        if compacted is None:  # User code changed the history meanwhile.
            compacted, text = CompactedRange(0, 0, ()), ""
        transcript.compact(compacted, text, asked, response)
        if text:
            # This is an estimate until the next response reports the number of tokens.
            state.meter.last = Usage(estimate_tokens(history.messages))


@dataclass(eq=False)
class StepHook:
    """The part of a machine that creates the `Step` for `on_start` and `on_step`, and reads their changes."""

    spec: Spec
    run: Run
    state: State
    builder: RequestBuilder
    step: Step | None = None
    """The step that a hook is using, or None."""

    def open(self) -> Step:
        """Return the `Step` object for the next hook call. Create it if it does not exist yet."""
        if self.step is None:
            toolset = self.builder.toolset
            self.step = Step(self.spec, self.run, self.state, toolset.tools, toolset.branches)
        return self.step

    def close(self, name: str, returned: object) -> Step | None:
        """Return the `Step` object that a hook has changed, and remove it here.

        Raise `DeclarationError` if the hook returned a value other than the step or None.
        """
        step, self.step = self.step, None
        if returned is not None and returned is not step:
            raise DeclarationError(
                f"`{self.spec.owner}.{name}` must return the step or nothing, got {safe_repr(returned)[:120]}."
            )
        return step

    def take_results(self, step: Step) -> list[ToolResult]:
        """Store the tool calls of a changed `Step`, and return its tool results. Check both lists."""
        results = _check_items(step.tool_results, ToolResult, "tool_results")
        self.state.calls = _check_items(step.tool_calls, ToolCall, "tool_calls")
        return results

    def results(self) -> list[ToolResult]:
        """Return the tool results of the current step, with the changes that the running hook has made so far."""
        if self.step is not None:
            return _check_items(self.step.tool_results, ToolResult, "tool_results")
        return list(self.state.results.values())

    def valid_results(self) -> list[ToolResult]:
        """Return the tool results of the current step. If a hook made them invalid, return the original results."""
        try:
            return self.results()
        except AcornError:
            return list(self.state.results.values())


def named_tools(tools: Sequence[Tool], names: Sequence[str]) -> tuple[Tool, ...]:
    """Return the tools with these names. Raise `AcornError` if a tool of a saved run is no longer declared."""
    known = {tool.name: tool for tool in tools}
    missing = [name for name in names if name not in known]
    if missing:
        raise AcornError(
            f"Cannot resume the run: it uses the tools {', '.join(f'`{name}`' for name in missing)}, which `on_step` "
            f"added and the module does not declare. Declare them in `tools`."
        )
    return tuple(known[name] for name in names)


def _new_thread_message() -> ThreadMessage:
    from acorn.thread.xml import ThreadMessage  # The event classes, which most runs do not need.

    return ThreadMessage()


def _check_items(values: object, kind: type[T], name: str) -> list[T]:
    """Return `values` if it is a list of `kind`. Otherwise raise `AcornError`, because a hook changed it."""
    if is_json_list(values) and all(isinstance(value, kind) for value in values):
        return values
    raise AcornError(
        f"`step.{name}` must stay a list of {kind.__name__} objects, got {to_json_text(values)[:120]}. "
        f"Change the objects in the list."
    )
