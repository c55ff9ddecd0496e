"""One run's side of the conversation: its settings and tools as they stand, and the requests made of them.

What does not move a run from phase to phase; `branching.py` and `run.py` stand on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acorn._declare.settings import effective_setting, explicit_settings
from acorn._declare.tools.collect import FINISH
from acorn._declare.tools.kinds import Tool
from acorn._history import messages
from acorn._history.compaction import range_to_compact, request_messages
from acorn._history.first_messages import check_media, input_message
from acorn._history.request_messages import RequestMessages
from acorn._history.transcript import Transcript
from acorn._machine import finish
from acorn._machine.inheritance import inherited_tools
from acorn._machine.limits import Budgets
from acorn._machine.plan import BranchTool, Plan, Toolset, named_tools
from acorn._machine.state import State
from acorn.errors import DeclarationError, ToolConflictError
from acorn.models.port import ModelRequest, models_of, takes_strict, takes_tool, thinks
from acorn.record import Message, Run
from acorn.step import Step
from acorn.types import JsonObject


class RequestBuilder:
    """What one run has at hand to talk with its model."""

    def __init__(self, plan: Plan, run: Run, state: State | None = None, wire: RequestMessages | None = None) -> None:
        self.plan = plan
        self.spec = plan.spec
        self.run = run
        self.state = state or State()
        self.context = plan.context
        self.wire = wire or RequestMessages()
        self.openings = self._openings()
        """The inputs of this run and those above it, its own first."""
        self.journal = run.journal
        self.transcript = Transcript(run)
        self.budgets = Budgets(self.spec.owner, plan.limits, self.state.meter, plan.above)
        self.is_counted = False
        """Whether what its open branches had used at its end is part of what it used."""
        self._is_single = self.spec.max_steps is None
        self._is_timed = plan.limits.seconds is not None
        self._request: ModelRequest | None = None
        self._step: Step | None = None
        self._threaded = _threaded() if self.spec.history_format == "thread" else None
        self._use_model()
        self.toolset = Toolset(self._and_inherited(plan.tools), self._branches_left(), self._finish())
        self._check_hosted()
        self._note_settings()

    # Facts

    @property
    def path(self) -> str:
        """The branch this is, `outer/inner`; '' for a run of its own."""
        return "" if self.context is None else self.context.path

    @property
    def is_over(self) -> bool:
        """Whether it has ended or was stopped."""
        return self.run.stop_reason is not None

    @property
    def _has_tools(self) -> bool:
        return bool(self.toolset.tools or self.toolset.branches)

    @property
    def _thinks(self) -> bool:
        return thinks(self.model)

    def _can_force(self) -> bool:
        return not self.state.was_forced and not self._thinks and self.model.can_force_tool(self._make_request())

    def setting(self, name: str) -> Any:
        """As it stands now: what `on_step` set, else what was declared."""
        return effective_setting(name, self.state.settings, self.spec)

    def whereabouts(self) -> int | None:
        """Where in the history the last response stands."""
        turn = self.transcript.turn
        return None if turn is None else messages.find_turn(self.transcript.book.messages, turn)

    def _openings(self) -> tuple[Message, ...]:
        context = self.context
        own = (input_message(self.spec, self.run.input),)
        if context is None or not context.inherits:
            return own
        return (own if context.has_input else ()) + context.openings

    def _and_inherited(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        above = self.plan.inherited
        return inherited_tools(above, tools, self.plan.branches) if above else tools

    def _use_saved_tools(self) -> None:
        if self.state.tools is not None:
            self._use_tools(named_tools(self.toolset.tools, self.state.tools))

    def _use_tools(self, tools: tuple[Tool, ...]) -> None:
        branches = self._branches_left()
        if taken := [tool.name for tool in tools if tool.name in branches]:
            raise ToolConflictError(
                f"Tool '{taken[0]}' of `{self.spec.owner}` has the name of one of its `branches`; rename one."
            )
        self.toolset = Toolset(tools, branches, self._finish())
        self._check_hosted()

    def _branches_left(self) -> Mapping[str, BranchTool]:
        branches, removed = self.plan.branches, self.state.removed
        return {name: branch for name, branch in branches.items() if name not in removed} if removed else branches

    def _use_model(self) -> None:
        self.model = self.plan.resolve(self.setting("model"), self.spec)
        self.budgets.check_price(self.model)

    def _check_hosted(self) -> None:
        """A tool that the provider runs is for the providers that have it."""
        for tool in self.toolset.hosted:
            without = [model for model in models_of(self.model) if not takes_tool(model, tool.schema)]
            if without:
                names = " and ".join(f"`{model.name}`" for model in without)
                verb, these = ("does", "this one") if len(without) == 1 else ("do", "these")
                raise DeclarationError(
                    f"{names} {verb} not take the tool `{tool.name}` of `{self.spec.owner}`, {tool.where}: it "
                    f"is run by a provider, and not by {these}. Take it out of `tools`, or use a model that has "
                    f"it: OpenAI's are for `openai/responses/...`, Anthropic's for `anthropic/...`."
                )

    def _finish(self) -> JsonObject:
        """The tool that ends the run; where nobody says how strict it is, it depends on its schema and on the model."""
        output, strict = self.spec.output, self.spec.strict
        if strict is None:
            strict = finish.fits_strictly(output) and takes_strict(self.model)
        return finish.finish_definition(output, strict=strict)

    def _note_settings(self) -> None:
        """What every request carries until a hook changes it."""
        self._temperature = self.setting("temperature")
        self._max_tokens = self.setting("max_tokens")
        self._declared = explicit_settings(self.state.settings, self.spec)
        if self.spec.strict is None and "strict" in self._declared:
            self._declared -= {"strict"}

    # The next request

    def _next_request(self, now: float) -> ModelRequest:
        seconds = self.plan.limits.seconds
        if self._request is None:
            self._request = self._make_request()
        if seconds is not None:
            self._request.timeout = max(0.001, seconds - now)
        return self._request

    def _summary_request(self, now: float) -> ModelRequest:
        """What asks the same model to sum up older steps, without tools."""
        seconds, history = self.plan.limits.seconds, self.transcript.book.messages
        if self._request is None:
            stretch = range_to_compact(history, self.openings, self.spec.compact_at or 1)
            told = [] if stretch is None else request_messages(history, stretch, self.openings[0])
            self._request = ModelRequest(told, [], self._temperature, self._max_tokens, declared=self._declared)
        if seconds is not None:
            self._request.timeout = max(0.001, seconds - now)
        return self._request

    def _make_request(self) -> ModelRequest:
        tools, transcript = self.toolset.described, self.transcript
        book, written, transcript.written = transcript.book, transcript.written, None
        sent = self.wire.prepare(book.messages, self.openings, written, is_ours=book.is_ours)
        if media := sent.media:
            check_media(self.spec, media)
        forced = FINISH if self.state.was_forced else None
        settings = (self._temperature, self._max_tokens, forced, self._declared, self.spec.cache)
        if self._threaded is None:
            return ModelRequest.of(sent, tools.definitions, *settings, tools.json)
        messages = self._threaded.wrap(sent.messages())
        return ModelRequest(messages, tools.definitions, *settings, tools_json=tools.json, known_media=media)


def _threaded() -> Any:
    from acorn._history.request_messages import (
        ThreadMessage,  # with the classes of the events, which other runs do not need
    )

    return ThreadMessage()
