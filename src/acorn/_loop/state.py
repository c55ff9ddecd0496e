"""What changes during a run, in a form that can be written as JSON and read back elsewhere.

Beside the record (`Run`), this is everything the machine remembers between two asks. Functions and keys are
not in it: tools are kept by name, and a model dict without its secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from acorn._json import shorten, to_plain, to_text
from acorn._loop.limits import Meter, Spent
from acorn._secrets import redact, secrets_in
from acorn.errors import AcornError
from acorn.models.port import ModelResponse, RawCall
from acorn.types import ToolCall, ToolResult, Usage

Phase = Literal["open", "prompt", "model", "tools", "branches", "step", "judge", "done"]


@dataclass
class State:
    """The machine's memory."""

    phase: Phase = "open"
    opened: int = 0
    """How many of the opening asks, two for each source of tools, are behind us."""
    resumes: Phase | None = None
    """Where a loaded run goes on, once its sources are open again."""
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
    """`model`, `temperature` and `max_tokens` as `on_step` set them; what it left alone is not here."""
    tools: list[str] | None = None
    """The names of the tools as `on_step` left them."""
    response: ModelResponse | None = None
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: list[ToolResult] = field(default_factory=list[ToolResult])
    turn: int | None = None
    """Where in the history the response stands, in a saved run; the user may move it."""
    answer: str | None = None
    """The candidate output as JSON, while `on_finish` judges it."""
    answered_by: str | None = None
    """The call that gave it; None where it came as XML or from `step.finish`."""
    marks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    noticed: bool = False
    meter: Meter = field(default_factory=Meter)

    def to_json(self) -> dict[str, Any]:
        """As plain data; what the model would read of a tool's output is the same afterwards."""
        # Outputs and models may be objects that nobody can copy, so they are left out of `asdict`.
        plain: dict[str, Any] = asdict(replace(self, results=[], settings={}))
        plain["results"] = [_result(result) for result in self.results]
        plain["settings"] = dict(self.settings)
        if "model" in self.settings:
            plain["settings"]["model"] = _without_secrets(self.settings["model"])
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> State:
        """The memory as it was written."""
        fields: dict[str, Any] = {**plain, "settings": _read_settings(plain["settings"])}
        if fields["response"] is not None:
            reply = dict(fields["response"])
            reply["tool_calls"] = [RawCall(**call) for call in reply["tool_calls"]]
            reply["usage"] = Usage(**reply["usage"])
            fields["response"] = ModelResponse(**reply)
        fields["calls"] = [ToolCall(**call) for call in fields["calls"]]
        fields["results"] = [ToolResult(**result) for result in fields["results"]]
        fields["marks"] = [tuple(mark) for mark in fields["marks"]]
        meter = dict(fields["meter"])
        meter["last"] = Usage(**meter["last"]) if meter["last"] else None
        meter["spent"] = Spent(**meter["spent"])
        fields["meter"] = Meter(**meter)
        return cls(**fields)


def restored(schema: type[BaseModel], text: str | bytes, what: str) -> BaseModel:
    """An instance as it was saved; its class may have changed since."""
    try:
        return schema.model_validate_json(text, by_alias=True, by_name=True)
    except ValidationError as error:
        raise AcornError(
            f"The {what} of the saved run does not fit its class any more: {shorten(str(error))}"
        ) from error


def _result(result: ToolResult) -> dict[str, Any]:
    return {
        "id": result.id,
        "name": result.name,
        "output": _output(result.output),
        "error": result.error,
        "seconds": result.seconds,
    }


def _output(output: Any) -> Any:
    """A string as it is, anything else as JSON; what JSON writes as a string keeps its quotes, as a model reads it."""
    if isinstance(output, str):
        return str.__str__(output)
    text = to_text(output)
    plain = from_json(text)
    return text if isinstance(plain, str) else plain


_HARMLESS = (
    "model", "id", "base_url", "api_base", "api_version", "custom_llm_provider", "num_retries", "retry_delay",
    "timeout", "thinking", "reasoning_effort", "top_p", "top_k", "seed", "stop", "presence_penalty",
    "frequency_penalty", "parallel_tool_calls", "service_tier", "drop_params", "input_cost_per_token",
    "output_cost_per_token",
)  # fmt: skip
_OBJECT = "(an object)"
"""What is written of a model that is neither an id nor a dict."""


def _without_secrets(model: Any) -> Any:
    """A model dict by the keys that are known to be harmless, and an address without its password."""
    if isinstance(model, dict):
        kept = {key: value for key, value in model.items() if key in _HARMLESS and to_plain(value) == value}
        addresses = {key: value for key, value in kept.items() if isinstance(value, str) and "://" in value}
        return kept | {key: redact(value, secrets_in(model)) for key, value in addresses.items()}
    if isinstance(model, list | tuple):
        return [_without_secrets(each) for each in model]
    return model if isinstance(model, str) else _OBJECT


def _read_settings(settings: dict[str, Any]) -> dict[str, Any]:
    model = settings.get("model")
    if _OBJECT in (model if isinstance(model, list) else [model]):
        raise AcornError(
            "The saved run had a model that `on_step` gave as an object, and objects are not saved; "
            "set `step.model` to an id or a dict, so that a run can go on elsewhere."
        )
    return settings
