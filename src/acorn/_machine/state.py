"""The state of a run: the values that the machine needs to continue, in addition to the run record (`Run`).

The state can be saved as JSON, and another process can load it. It contains no functions and no API keys: a tool is
saved as its name, and a model dict is saved without its secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from acorn._formats.blobs import to_saved_data
from acorn._formats.json import to_json_data
from acorn._formats.redact import Redactor, find_secrets
from acorn._history.saved_form import decode_request, encode_request, fields_of
from acorn._machine.budgets import Limits, Meter, StepDigest
from acorn.errors import AcornError
from acorn.journal import BranchFinished, BranchStarted, Entry, ToolFinished, ToolStarted
from acorn.models.port import ModelResponse
from acorn.record import TOOL_ASK_PREFIX
from acorn.types import JsonObject, Message, Request, ToolCall, ToolResult, Usage, is_json_object, is_list_or_tuple

SAVED_MODEL_KEYS = (
    "model", "id", "base_url", "api_base", "api_version", "custom_llm_provider", "num_retries", "retry_delay",
    "timeout", "thinking", "reasoning_effort", "temperature", "max_tokens", "max_completion_tokens",
    "top_p", "top_k", "seed", "stop", "presence_penalty",
    "frequency_penalty", "parallel_tool_calls", "service_tier", "drop_params", "input_cost_per_token",
    "output_cost_per_token", "cache_read_input_token_cost", "cache_creation_input_token_cost",
)  # fmt: skip
MODEL_OBJECT = "(an object)"
"""The saved value for a model that is an object, because only model names and dicts can be saved."""


def settings_to_json(settings: Mapping[str, Any]) -> JsonObject:
    """Return the settings that hooks have changed as JSON data, without secrets."""
    plain = dict(settings)
    if "model" in plain:
        plain["model"] = _without_secrets(plain["model"])
    return plain


def settings_from_json(settings: Mapping[str, Any]) -> JsonObject:
    """Return saved settings. Raise `AcornError` if the saved model was an object, because objects are not saved."""
    model = settings.get("model")
    if MODEL_OBJECT in (model if isinstance(model, list) else [model]):
        raise AcornError(
            "Cannot load the saved run: `on_step` set its model to an object, and objects are not saved. "
            "Set `step.model` to an id or a dict, so that another process can resume the run."
        )
    return dict(settings)


def _without_secrets(model: Any) -> Any:
    """Return a model dict without secret values, and without passwords in its URLs."""
    if is_json_object(model):
        plain = {key: value for key, value in model.items() if key in SAVED_MODEL_KEYS and to_json_data(value) == value}
        redactor = Redactor(find_secrets(model))
        urls = {key: value for key, value in plain.items() if isinstance(value, str) and "://" in value}
        return plain | {key: redactor.text(value) for key, value in urls.items()}
    if is_list_or_tuple(model):
        return [_without_secrets(each) for each in model]
    return model if isinstance(model, str) else MODEL_OBJECT


@dataclass(frozen=True, eq=False)
class BranchContext:
    """The data that a branch inherits at its start, in a form that can be saved.

    An agent that is used as a tool also starts with this data. The data does not contain functions, budgets or the
    parent run. The process that loads the branch provides them.
    """

    run_id: str
    parent_id: str
    name: str
    path: str
    """The names of the nested branches, the outermost first, such as `outer/inner`."""
    depth: int
    place: str
    """The place in the parent run where the branch started: the step, and the call or the hook."""
    call_id: str | None
    """The id of the tool call that started the branch, or None if user code started it."""
    inside: str | None
    """The id of the tool call whose function started the branch, or None if the model or a hook started it."""
    input: Any
    """The input as an instance of the input schema, or as JSON data after the context was loaded."""
    has_input: bool
    """Whether the module class declares an input."""
    inherits: bool = True
    """Whether the branch inherits the parent's conversation, tools and settings. An agent that is a tool does not."""
    history: tuple[Message, ...] = ()
    """The parent's conversation when the branch started, with results for pending calls."""
    openings: tuple[Message, ...] = ()
    """The input messages of the parent runs, the direct parent first."""
    settings: Mapping[str, Any] = field(default_factory=JsonObject)
    """The settings of the parent that hooks had changed."""
    tools: tuple[str, ...] = ()
    """The names of the parent's tools."""
    limits: Limits = field(default_factory=Limits)
    """The remaining budget of the parent for the branch."""

    def to_json(self) -> JsonObject:
        return {
            **vars(self),
            "input": to_saved_data(self.input),
            "settings": settings_to_json(self.settings),
            "limits": vars(self.limits),
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> BranchContext:
        fields: JsonObject = dict(plain)
        for name in ("history", "openings", "tools"):
            fields[name] = tuple(fields[name])
        fields["settings"] = settings_from_json(fields["settings"])
        fields["limits"] = Limits(**fields["limits"])
        return cls(**fields)


def branch_id(parent_id: str, place: str) -> str:
    """Return the run id of a branch.

    The id is computed from the id of the parent and from `place`, the step and tool call that start the branch. So the
    branch has the same id after the parent is resumed.
    """
    return hashlib.sha256(f"{parent_id}/{place}".encode()).hexdigest()[:32]


Phase = Literal["new", "prompt", "start", "compact", "model", "tools", "branches", "step", "judge", "done"]
StopReason = Literal["finish", "forced", "limit", "loop", "step", "unfinished"]
"""The reason why a run ended with an output."""

_IN_JOURNAL = frozenset(("response", "calls", "results"))
"""The fields that a loaded run reads from its journal."""


@dataclass
class State:
    """The state of a machine that is saved with the run. Each part of the machine changes some of the fields."""

    phase: Phase = "new"
    turns: int = 0
    """The number of responses so far."""
    open_asks: dict[str, float] = field(default_factory=dict[str, float])
    """A dict that maps the ids of asks in progress to their start times."""
    forced: bool = False
    """Whether every further request must end in an answer."""
    fallback: bool = False
    """Whether the answer is requested as XML."""
    was_forced: bool = False
    """Whether the current request forces `__finish__`."""
    reason: StopReason = "finish"
    """The `stop_reason` that the run will have if the model answers now."""
    compacted: int = -1
    """The value of `turns` when the last summary was requested."""

    # The request builder
    settings: JsonObject = field(default_factory=JsonObject)
    """The settings that hooks have changed: `model`, `temperature` and `max_tokens`."""
    tools: list[str] | None = None
    """The names of the tools, or None if no hook has changed the tools."""
    removed: list[str] = field(default_factory=list[str])
    """The names of the tools and branches that hooks removed."""

    # The calls of the current step
    response: ModelResponse | None = None
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    """A dict that maps call ids to the tool results so far."""
    branches: dict[str, BranchContext] = field(default_factory=dict[str, BranchContext])
    """A dict that maps call ids to the contexts of unfinished branches."""
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    """A dict that maps the ids of waiting calls to their requests for human input."""
    answers: JsonObject = field(default_factory=JsonObject)
    """A dict that maps the ids of waiting calls to the received answers, as JSON data."""
    approved: dict[str, str] = field(default_factory=dict[str, str])
    """A dict that maps the ids of answered calls to digests of the approval: what the person saw and answered."""
    repeats: dict[str, int] = field(default_factory=dict[str, int])
    """A dict that maps call ids to the number of approvals that were requested again, because the call had changed."""
    passed: list[str] = field(default_factory=list[str])
    """The ids of the calls for which `on_human` had no answer."""
    turn: int | None = None
    """The index of the last response in the history of a saved run. The user may have moved the response."""

    # The answer
    corrections: int = 0
    """The number of retries after invalid answers."""
    answer: str | None = None
    """The valid answer as JSON text, while `on_finish` checks it."""
    answered_by: str | None = None
    """The id of the `__finish__` call with the valid answer, or None for an answer in XML or from `step.finish`."""
    faults: dict[str, str] = field(default_factory=dict[str, str])
    """A dict that maps the ids of invalid `__finish__` calls in the same response to their problems."""

    # The limits
    digests: list[StepDigest] = field(default_factory=list[StepDigest])
    """The hashes of the last steps, used to detect repetition."""
    was_warned: bool = False
    """Whether the model was warned that it repeats its steps."""
    meter: Meter = field(default_factory=Meter)

    def copy(self, turn: int | None) -> State:
        """Return a copy for a comparison with a later state, without the fields that the journal contains.

        `turn` is the history index of the last response.
        """
        fields: JsonObject = {
            name: value.copy() if isinstance(value, dict | list) else value
            for name, value in vars(self).items()
            if name not in _IN_JOURNAL
        }
        state = State(**fields)
        state.meter, state.turn = copy(self.meter), turn
        return state

    def apply(self, entries: Iterable[Entry]) -> None:
        """Make the changes that journal entries describe."""
        for entry in entries:
            if isinstance(entry, ToolStarted):
                self.open_asks[f"{TOOL_ASK_PREFIX}{entry.step} {entry.call_id}"] = entry.at
            elif isinstance(entry, ToolFinished):
                self.open_asks.pop(f"{TOOL_ASK_PREFIX}{entry.step} {entry.call_id}", None)
            elif isinstance(entry, BranchStarted) and entry.call_id is not None:
                self.open_asks[f"branch {entry.step} {entry.call_id}"] = entry.at
            elif isinstance(entry, BranchFinished) and entry.call_id is not None:
                self.open_asks.pop(f"branch {entry.step} {entry.call_id}", None)
                self.branches.pop(entry.call_id, None)

    def to_json(self) -> JsonObject:
        """Return the state as JSON data, without the fields that the journal contains."""
        plain = {name: value for name, value in vars(self).items() if name not in _IN_JOURNAL}
        plain["branches"] = [context.to_json() for context in self.branches.values()]
        plain["requests"] = {call_id: encode_request(request) for call_id, request in self.requests.items()}
        plain["settings"] = settings_to_json(self.settings)
        last = self.meter.last
        plain["meter"] = {**vars(self.meter), "last": None if last is None else fields_of(last)}
        del plain["meter"]["spent"]
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> State:
        """Return a state from saved JSON data."""
        fields: JsonObject = {**plain, "settings": settings_from_json(plain["settings"])}
        contexts = map(BranchContext.from_json, fields["branches"])
        fields["branches"] = {str(context.call_id): context for context in contexts}
        fields["requests"] = {call_id: decode_request(plain) for call_id, plain in fields["requests"].items()}
        fields["digests"] = [tuple(digest) for digest in fields["digests"]]
        meter = dict(fields["meter"])
        meter["last"] = Usage(**meter["last"]) if meter["last"] else None
        fields["meter"] = Meter(**meter)
        return cls(**fields)
