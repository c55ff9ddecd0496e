"""What changes during a run, in a form that can be written as JSON and read back elsewhere.

Beside the record (`Run`), this is everything the machine remembers between two asks. Functions and keys are
not in it: tools are kept by name, and a model dict without its secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from acorn._json import to_plain
from acorn._loop.branch_context import BranchContext
from acorn._loop.limits import Meter, Spent
from acorn._loop.settings import read_settings, written_settings
from acorn._record_json import fields_of, read_request, read_result, written_request, written_result
from acorn.models.port import ModelResponse, RawCall
from acorn.types import Fallback, Request, ToolCall, ToolResult, Usage

Phase = Literal["new", "prompt", "start", "compact", "model", "tools", "branches", "step", "judge", "done"]

_OF_CALLS = frozenset(("response", "calls", "results", "branches", "under_way"))


@dataclass
class State:
    """The machine's memory."""

    phase: Phase = "new"
    turns: int = 0
    """How many responses the model has given."""
    under_way: dict[str, float] = field(default_factory=dict[str, float])
    """The asks that were begun and are not answered yet, and when each was begun."""
    corrections: int = 0
    forced: bool = False
    """Whether every further request must end in an answer."""
    fallback: bool = False
    """Whether the answer is asked for in XML."""
    was_forced: bool = False
    """Whether the request under way forces `__finish__`."""
    reason: str = "finish"
    """What `stop_reason` will be when an answer comes."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """`model`, `temperature` and `max_tokens` as a hook set them; what it left alone is not here."""
    tools: list[str] | None = None
    """The names of the tools as a hook left them."""
    removed: list[str] = field(default_factory=list[str])
    """The branches that a hook removed."""
    response: ModelResponse | None = None
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    """What has returned in this step, by the id of its call."""
    branches: dict[str, BranchContext] = field(default_factory=dict[str, BranchContext])
    """The branches that were born in this step and have not ended, by the id of their call."""
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    """What people are asked in this step, by the id of the call that waits."""
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    """What they have said, as plain data."""
    passed: list[str] = field(default_factory=list[str])
    """The calls that `on_human` had no answer to."""
    turn: int | None = None
    """Where in the history the response stands, in a saved run; the user may move it."""
    answer: str | None = None
    """The candidate output as JSON, while `on_finish` judges it."""
    answered_by: str | None = None
    """The call that gave it; None where it came as XML or from `step.finish`."""
    faults: dict[str, str] = field(default_factory=dict[str, str])
    """What was wrong with the answers before it in the same response, by their calls."""
    compacted: int = -1
    """How many responses there were when a summary was last asked for; once is enough."""
    marks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    noticed: bool = False
    meter: Meter = field(default_factory=Meter)

    def to_json(self, turn: int | None) -> dict[str, Any]:
        """As plain data; what the model would read of a tool's output is the same afterwards.

        `turn` is where the last response stands in the history: when the model is asked again, that tells all of it.
        """
        plain = dict(vars(self))
        plain["turn"] = turn
        if self.phase == "model" and turn is not None:
            plain["response"], plain["calls"], plain["results"] = None, [], []
        else:
            plain["response"] = None if self.response is None else _response(self.response)
            plain["calls"] = to_plain([fields_of(call) for call in self.calls])  # a hook may have made anything of them
            plain["results"] = [written_result(result) for result in self.results.values()]
        plain["branches"] = [context.to_json() for context in self.branches.values()]
        plain["requests"] = {call_id: written_request(each) for call_id, each in self.requests.items()}
        plain["settings"] = written_settings(self.settings)
        last = self.meter.last
        plain["meter"] = {
            **vars(self.meter),
            "last": None if last is None else fields_of(last),
            "spent": vars(self.meter.spent),
        }
        return plain

    def small(self) -> dict[str, Any]:
        """What does not grow with the calls of the step, to compare."""
        plain = {name: value for name, value in vars(self).items() if name not in _OF_CALLS}
        return {**plain, "requests": {call_id: each.id for call_id, each in self.requests.items()}}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> State:
        """The memory as it was written."""
        fields: dict[str, Any] = {**plain, "settings": read_settings(plain["settings"])}
        if fields["response"] is not None:
            reply = dict(fields["response"])
            reply["tool_calls"] = [RawCall(**call) for call in reply["tool_calls"]]
            reply["usage"] = Usage(**reply["usage"])
            reply["waits"] = tuple(reply["waits"])
            reply["fallbacks"] = tuple([Fallback(*each) for each in reply.get("fallbacks", ())])
            fields["response"] = ModelResponse(**reply)
        fields["calls"] = [ToolCall(**call) for call in fields["calls"]]
        fields["results"] = {result["id"]: read_result(result) for result in fields["results"]}
        born = map(BranchContext.from_json, fields["branches"])
        fields["branches"] = {str(context.call_id): context for context in born}
        asked = fields.get("requests", {})
        fields["requests"] = {call_id: read_request(each) for call_id, each in asked.items()}
        fields["marks"] = [tuple(mark) for mark in fields["marks"]]
        meter = dict(fields["meter"])
        meter["last"] = Usage(**meter["last"]) if meter["last"] else None
        meter["spent"] = Spent(**meter["spent"])
        fields["meter"] = Meter(**meter)
        return cls(**fields)


def _response(response: ModelResponse) -> dict[str, Any]:
    calls = [fields_of(call) for call in response.tool_calls]
    return {**vars(response), "tool_calls": calls, "usage": fields_of(response.usage)}
