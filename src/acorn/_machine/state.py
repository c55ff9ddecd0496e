"""Settings as a hook has changed them, in a form that can be saved: a model without its secrets.

What a branch is born with: one frozen record, which can be written as JSON and read back elsewhere.

Functions, budgets and the run above are not in it; they are found again by whoever loads it.

What changes during a run, in a form that can be written as JSON and read back elsewhere.

Beside the record (`Run`), this is everything the machine remembers between two asks. Functions and keys are
not in it: tools are kept by name, and a model dict without its secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from acorn._formats.blobs import to_saved_data
from acorn._formats.json import to_json_data
from acorn._formats.redact import find_secrets, redact
from acorn._machine.limits import Limits, Meter, Spent, StepDigest
from acorn._record.saved_form import fields_of, read_request, read_result, written_request, written_result
from acorn.errors import AcornError
from acorn.models.port import ModelResponse, RawCall
from acorn.record import Message
from acorn.types import Fallback, JsonObject, Request, ToolCall, ToolResult, Usage

_HARMLESS = (
    "model", "id", "base_url", "api_base", "api_version", "custom_llm_provider", "num_retries", "retry_delay",
    "timeout", "thinking", "reasoning_effort", "temperature", "max_tokens", "max_completion_tokens",
    "top_p", "top_k", "seed", "stop", "presence_penalty",
    "frequency_penalty", "parallel_tool_calls", "service_tier", "drop_params", "input_cost_per_token",
    "output_cost_per_token", "cache_read_input_token_cost", "cache_creation_input_token_cost",
)  # fmt: skip
OBJECT = "(an object)"
"""What is written of a model that is neither an id nor a dict."""


def written_settings(settings: Mapping[str, Any]) -> JsonObject:
    """Settings as plain data, without a key."""
    written = dict(settings)
    if "model" in written:
        written["model"] = _without_secrets(written["model"])
    return written


def read_settings(settings: Mapping[str, Any]) -> JsonObject:
    """Settings as they were written; a model that was an object is not among them."""
    model = settings.get("model")
    if OBJECT in (model if isinstance(model, list) else [model]):
        raise AcornError(
            "The saved run had a model that `on_step` gave as an object, and objects are not saved; "
            "set `step.model` to an id or a dict, so that a run can go on elsewhere."
        )
    return dict(settings)


def _without_secrets(model: Any) -> Any:
    """A model dict by the keys that are known to be harmless, and an address without its password."""
    if isinstance(model, dict):
        kept = {key: value for key, value in model.items() if key in _HARMLESS and to_json_data(value) == value}
        addresses = {key: value for key, value in kept.items() if isinstance(value, str) and "://" in value}
        return kept | {key: redact(value, find_secrets(model)) for key, value in addresses.items()}
    if isinstance(model, list | tuple):
        return [_without_secrets(each) for each in model]
    return model if isinstance(model, str) else OBJECT


@dataclass(frozen=True, eq=False)
class BranchContext:
    """The birth of a branch, or of an agent that is a tool."""

    run_id: str
    parent_id: str
    name: str
    path: str
    """`outer/inner`"""
    depth: int
    place: str
    """Where in its parent it began: the step, and the call or the hook."""
    call_id: str | None
    """The call that began it; None where the user's code did."""
    inside: str | None
    """The call whose function began it; None for a called branch, and for one begun in a hook."""
    input: Any
    """The input model, or its plain data in a record that was read back."""
    has_input: bool
    """Whether it has an input of its own."""
    inherits: bool = True
    """Whether it goes on with its parent's conversation, tools and settings; an agent that is a tool does not."""
    history: tuple[Message, ...] = ()
    """The parent's conversation at birth, its pending calls answered."""
    openings: tuple[Message, ...] = ()
    """The inputs of the runs above, the nearest first."""
    settings: Mapping[str, Any] = field(default_factory=JsonObject)
    """What was changed of the parent's settings by then."""
    tools: tuple[str, ...] = ()
    """The names of the parent's tools by then."""
    limits: Limits = field(default_factory=Limits)
    """What was left for it."""

    def to_json(self) -> JsonObject:
        return {
            **vars(self),
            "input": to_saved_data(self.input),
            "history": list(self.history),
            "openings": list(self.openings),
            "settings": written_settings(self.settings),
            "tools": list(self.tools),
            "limits": vars(self.limits),
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> BranchContext:
        fields: dict[str, Any] = dict(plain)
        for name in ("history", "openings", "tools"):
            fields[name] = tuple(fields[name])
        fields["settings"] = read_settings(fields["settings"])
        fields["limits"] = Limits(**fields["limits"])
        return cls(**fields)


def branch_id(parent_id: str, place: str) -> str:
    """The id of a run that begins at a place of another: the same whenever it is made."""
    return hashlib.sha256(f"{parent_id}/{place}".encode()).hexdigest()[:32]


Phase = Literal["new", "prompt", "start", "compact", "model", "tools", "branches", "step", "judge", "done"]
StopReason = Literal["finish", "forced", "limit", "loop", "step", "unfinished"]
"""Why a run ended with an output."""

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
    reason: StopReason = "finish"
    """What `stop_reason` will be when an answer comes."""
    settings: dict[str, Any] = field(default_factory=JsonObject)
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
    answers: JsonObject = field(default_factory=JsonObject)
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
    digests: list[StepDigest] = field(default_factory=list[StepDigest])
    """The digests of the last steps, to detect repetition."""
    was_warned: bool = False
    """Whether the model was warned that it repeats its steps."""
    meter: Meter = field(default_factory=Meter)

    def to_json(self, turn: int | None) -> JsonObject:
        """As plain data; what the model would read of a tool's output is the same afterwards.

        `turn` is where the last response stands in the history: when the model is asked again, that tells all of it.
        """
        plain = dict(vars(self))
        plain["turn"] = turn
        if self.phase == "model" and turn is not None:
            plain["response"], plain["calls"], plain["results"] = None, [], []
        else:
            plain["response"] = None if self.response is None else _response(self.response)
            plain["calls"] = to_json_data(
                [fields_of(call) for call in self.calls]
            )  # a hook may have made anything of them
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

    def small(self) -> JsonObject:
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
        fields["digests"] = [tuple(digest) for digest in fields["digests"]]
        meter = dict(fields["meter"])
        meter["last"] = Usage(**meter["last"]) if meter["last"] else None
        meter["spent"] = Spent(**meter["spent"])
        fields["meter"] = Meter(**meter)
        return cls(**fields)


def _response(response: ModelResponse) -> JsonObject:
    calls = [fields_of(call) for call in response.tool_calls]
    return {**vars(response), "tool_calls": calls, "usage": fields_of(response.usage)}
