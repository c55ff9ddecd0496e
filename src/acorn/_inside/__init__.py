"""The interface between the library and its surfaces.

A surface is a part of acorn that uses the library from outside: `cli`, `web`, `mcp`, `durable` and `testing`. Surfaces
import `acorn`, its public modules, this module and `acorn._inside.runs`, and no other private module. A third party
could write a surface with the same means. `import acorn` does not load this module. It does not load `asyncio`, so that
`import acorn.testing` stays light: `acorn._inside.runs` has the functions that start and drive runs.

The functions are grouped by task: agents, inputs, stored runs, messages, redaction, text, tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard, TypeVar

from pydantic import BaseModel, ValidationError

from acorn import module
from acorn._base.interrupts import StopSignal
from acorn._base.startup import raise_on_interrupt
from acorn._declare import spec_cache as _specs
from acorn._declare.module_base import BatchItem as _BatchItem
from acorn._declare.module_base import set_call_options as _set_call_options
from acorn._declare.tools.collect import FINISH, is_tool_name
from acorn._declare.tools.collect import FunctionTool as _FunctionTool
from acorn._declare.tools.collect import make_tool as _make_tool
from acorn._declare.tools.decorator import options_of as _options_of
from acorn._declare.tools.kinds import Tool
from acorn._formats.blobs import describe_blobs, read_without_blobs, to_saved_data
from acorn._formats.content import text_of
from acorn._formats.json import (
    describe_error,
    excerpt,
    replace_surrogates,
    shorten,
    to_compact_json,
    to_json_data,
    to_json_text,
)
from acorn._formats.redact import find_secrets, redact
from acorn._formats.schema.examples import example_value
from acorn._formats.schema.generate import JsonSchema, follow_refs
from acorn._formats.schema.generate import schema_of as _schema_of
from acorn._formats.schema.problems import Problem, describe_errors, describe_schema
from acorn._formats.schema.problems import find_problems as _find_problems
from acorn._formats.schema.shape import MEDIA_FORMAT as _MEDIA_FORMAT
from acorn._formats.schema.shape import RESULT, Shape, aliases_of
from acorn._formats.xml.encode import VALIDATION_ERROR_START as _VALIDATION_ERROR
from acorn._formats.xml.encode import snake_case
from acorn._history.compaction import INTRODUCTION as _SUMMARY_INTRODUCTION
from acorn._history.history import history_of
from acorn._history.request_messages import REMINDER as _REMINDER
from acorn._history.saved_form import MisfitError, RecordedError, fields_of
from acorn._history.saved_form import module_in as class_in_journal
from acorn._history.saved_form import read_entries as _read_entries
from acorn._history.saved_form import write_entry as entry_to_json
from acorn._history.saved_form import write_request as request_to_json
from acorn._machine.machine import FINISHED as _FINISHED
from acorn._machine.machine import SKIPPED as _SKIPPED
from acorn._machine.machine import TOO_LATE as _TOO_LATE
from acorn.errors import InputError
from acorn.journal import Entry
from acorn.stores.port import StoredRun
from acorn.types import JsonObject, is_json_object, is_list_or_tuple, is_mapping

__all__ = [
    # Types and wire names
    "FINISH",
    "RESULT",
    "AgentDescription",
    "StopSignal",
    "JsonSchema",
    "MisfitError",
    "Problem",
    "RecordedError",
    "Shape",
    "Tool",
    # Agents
    "agent_name",
    "describe_agent",
    "instance_of",
    "is_agent",
    "is_instance",
    # Inputs and schemas
    "aliases_of",
    "describe_schema",
    "example_value",
    "follow_refs",
    "input_problems",
    "media_kind",
    "output_schema",
    "parse_input",
    "describe_errors",
    # Runs
    "in_batch",
    # Stored runs
    "class_in_journal",
    "entry_to_json",
    "fields_of",
    "history_of",
    "read_stored_entries",
    "request_to_json",
    "stored_file",
    "to_saved_data",
    "read_without_blobs",
    # Messages of the machine
    "is_finish_result",
    "is_reminder",
    "is_skipped",
    "is_validation_error",
    "without_summary_introduction",
    # Redaction
    "redact",
    "find_secrets",
    "secrets_of_model",
    # Text
    "describe_blobs",
    "describe_error",
    "excerpt",
    "shorten",
    "snake_case",
    "text_of",
    "to_compact_json",
    "to_json_data",
    "to_json_text",
    "replace_surrogates",
    # Tools and event loops
    "describe_as_tool",
    "is_tool_name",
    "new_tool",
    # The process
    "raise_on_interrupt",
]

Agent = module[Any, Any]
AgentOrClass = Agent | type[Agent]
AgentT = TypeVar("AgentT", bound=Agent)


# Agents


@dataclass(frozen=True, eq=False)
class AgentDescription:
    """The declaration of an agent: what it takes and returns, its tools and its limits."""

    name: str
    """The name of its class."""
    docstring: str
    """The nearest docstring of its class, or ""."""
    input: Shape
    output: Shape
    max_steps: int | None
    """None for a single turn."""
    limits: Mapping[str, float]
    """The limits that are set, by their names."""
    tools: Sequence[Tool]
    branches: Mapping[str, AgentOrClass]
    source_count: int
    """The number of tool sources, such as MCP servers. Their tools are not known until they are opened."""
    store: object
    """The store as declared, or None."""
    model: object = field(repr=False)
    """The model as declared. It may hold a key, so it is never printed."""


_LIMITS = ("max_steps", "max_total_tokens", "max_cost", "max_seconds")


def describe_agent(agent: AgentOrClass) -> AgentDescription:
    """Describe an agent, or a class, as it is declared now."""
    spec = _specs.read_spec(agent)
    entries = spec.branches.items()
    return AgentDescription(
        name=spec.owner,
        docstring=_specs.module_docstring(agent) or "",
        input=spec.input,
        output=spec.output,
        max_steps=spec.max_steps,
        limits={name: value for name in _LIMITS if (value := getattr(spec, name)) is not None},
        tools=spec.tools,
        branches={name: entry["module"] if is_mapping(entry) else entry for name, entry in entries},
        source_count=len(spec.sources),
        store=spec.store,
        model=spec.model,
    )


def agent_name(agent: AgentOrClass) -> str:
    """Return the name by which stores and workers know an agent: `package.file:Class`."""
    return _specs.agent_name(_specs.class_of(agent))


def is_agent(value: object) -> TypeGuard[AgentOrClass]:
    """Return whether a value is a module class, also one with type arguments, or an instance."""
    return _specs.is_agent(value)


def is_instance(value: object) -> TypeGuard[Agent]:
    """Return whether a value is an instance of a module class."""
    return isinstance(value, module)


def instance_of(agent: AgentOrClass) -> Agent:
    """Return an agent as it is, or a new instance of a class."""
    instance = _specs.instance_of(agent)
    assert is_instance(instance)
    return instance


# Inputs and schemas


def parse_input(agent: Agent, values: object) -> BaseModel:
    """Validate a JSON object as the input of an agent; an `InputError` names every wrong field."""
    spec = _specs.spec_of(agent)
    shape, owner = spec.input, spec.owner
    if not is_json_object(values):
        raise InputError(f"The input of `{owner}` must be a JSON object.")
    has_unknown = any(name not in shape.accepted_names for name in values) and not shape.allows_extra
    try:
        parsed = shape.schema.model_validate_json(json.dumps(values), by_alias=True, by_name=True)
    except ValidationError:
        return shape.from_call(owner, (), values)
    return shape.from_call(owner, (), values) if has_unknown else parsed


def input_problems(shape: Shape, error: ValidationError, values: Mapping[str, Any]) -> list[Problem]:
    """Describe what Pydantic found wrong with an input, one problem for each field."""
    return _find_problems(error, shape.xml_schema, values)


def output_schema(shape: Shape) -> JsonSchema:
    """Return the JSON Schema of a value as acorn writes it, with the fields under their own names."""
    return _schema_of(shape.schema, by_alias=False, mode="serialization")


def media_kind(schema: JsonSchema) -> str | None:
    """Return `image`, `audio` or `file` if a schema describes one, else None."""
    kind = str(schema.get("format"))
    return kind.removeprefix(_MEDIA_FORMAT) if kind.startswith(_MEDIA_FORMAT) else None


# Runs. An agent starts runs by `run` and `stream`, and forks them by `using(thread=..., before=...)`.


def in_batch(agent: AgentT, batch: str, index: int) -> AgentT:
    """Make the next run of an agent an item of a batch, as the runs of a chat are. Returns the agent."""
    _set_call_options(agent, replace(agent.__acorn_call_options__, item=_BatchItem(batch, index)))
    return agent


# Stored runs


def read_stored_entries(texts: Iterable[str]) -> list[Entry]:
    """Read journal entries as a store has them, without the data of images, audio and files."""
    return _read_entries(map(read_without_blobs, texts))


def stored_file(stored: StoredRun) -> str | None:
    """Return the file that the class of a stored run was defined in, if the store has it."""
    overrides = stored.header.overrides
    return json.loads(overrides).get("file") if overrides else None


# This is the place for the tree of a run: one class that all views draw. `cli/view_tree.py` and `web/page/rows.py`
# build one each until then.


# Messages of the machine


def is_reminder(text: str) -> bool:
    """Return whether a message asks the model to call a tool or to finish."""
    return text == _REMINDER


def is_skipped(error: str | None) -> bool:
    """Return whether a tool result says that the call was skipped, because the answer came with it or was due."""
    return error in (_SKIPPED, _TOO_LATE)


def is_validation_error(error: str | None) -> bool:
    """Return whether a tool result says that an answer did not validate."""
    return error is not None and error.startswith(_VALIDATION_ERROR)


def is_finish_result(content: object) -> bool:
    """Return whether a tool result says that the answer was accepted."""
    return content == _FINISHED


def without_summary_introduction(summary: str) -> str:
    """Return the summary of earlier steps as the model wrote it."""
    return summary.removeprefix(_SUMMARY_INTRODUCTION)


# Redaction. This is the place for the one redactor of the package. `cli/output.py`, `web/redact.py`,
# `mcp/address.py` and `mcp/server.py` combine these functions until then.


def secrets_of_model(model: object) -> set[str]:
    """Return the secrets in the declaration of a model, or of a list of models."""
    if is_list_or_tuple(model):
        return {secret for member in model for secret in secrets_of_model(member)}
    return find_secrets(model) if is_mapping(model) else set()


# Tools and event loops


def new_tool(function: Callable[..., object], where: str) -> Tool:
    """Make a tool of a function that `acorn.tool` has marked; `where` names its origin in errors.

    Raises `DeclarationError` if arguments cannot be checked against its schema.
    """
    options = _options_of(function)
    assert options is not None
    assert options.name is not None
    tool = _FunctionTool(options.name, function, options, where)
    tool.binding  # noqa: B018 - computes the cached property
    return tool


def describe_as_tool(agent: Agent, where: str, owner: str) -> JsonObject:
    """Return the name, the description and the parameters of an agent as a tool."""
    return _make_tool(agent, where, owner, {}).schema
