"""The internal interface that the command line, the web page, the MCP server, the workers and the test models use.

These packages (`cli`, `web`, `mcp`, `durable` and `testing`) are called *surfaces*: they use the library from outside.
A surface imports `acorn`, the public modules, this module, `acorn._inside.runs` and `acorn._inside.run_tree`, but no
other private module. A third party could therefore write a surface too.

`import acorn` does not load this module. This module does not load `asyncio`, so that `import acorn.testing` stays
fast. The functions that start and drive runs need `asyncio` and are in `acorn._inside.runs`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar

from pydantic import ValidationError

from acorn import Run, module
from acorn._base.clock import current_clock as current_clock
from acorn._base.interrupts import StopSignal as StopSignal
from acorn._base.interrupts import interrupt_on_sigterm as interrupt_on_sigterm
from acorn._declare import spec_cache as _specs
from acorn._declare.module_base import BatchItem as _BatchItem
from acorn._declare.module_base import set_call_options as _set_call_options
from acorn._declare.spec import Spec as Spec
from acorn._declare.spec_cache import module_docstring as module_docstring
from acorn._declare.spec_cache import read_spec as read_spec
from acorn._declare.tools.collect import FINISH as FINISH
from acorn._declare.tools.collect import FunctionTool as _FunctionTool
from acorn._declare.tools.collect import make_tool as _make_tool
from acorn._declare.tools.decorator import options_of as _options_of
from acorn._declare.tools.kinds import Tool as Tool
from acorn._declare.tools.kinds import source_may_ask_human as _source_may_ask_human
from acorn._formats.blobs import describe_blobs as describe_blobs
from acorn._formats.blobs import read_without_blobs as read_without_blobs
from acorn._formats.blobs import to_saved_data as to_saved_data
from acorn._formats.json import describe_error as describe_error
from acorn._formats.json import excerpt as excerpt
from acorn._formats.json import parse_json as parse_json
from acorn._formats.json import replace_surrogates as replace_surrogates
from acorn._formats.json import shorten as shorten
from acorn._formats.json import text_of as text_of
from acorn._formats.json import to_compact_json as to_compact_json
from acorn._formats.json import to_json_data as to_json_data
from acorn._formats.json import to_json_text as to_json_text
from acorn._formats.redact import Redactor as Redactor
from acorn._formats.redact import find_secrets as find_secrets
from acorn._formats.schema.examples import example_value as example_value
from acorn._formats.schema.generate import JsonSchema as JsonSchema
from acorn._formats.schema.generate import component_schema as component_schema
from acorn._formats.schema.generate import follow_refs as follow_refs
from acorn._formats.schema.patterns import make_validator as make_validator
from acorn._formats.schema.problems import describe_errors as describe_errors
from acorn._formats.schema.problems import describe_schema as describe_schema
from acorn._formats.schema.shape import MEDIA_FORMAT as MEDIA_FORMAT
from acorn._formats.schema.shape import RESULT as RESULT
from acorn._formats.schema.shape import Shape as Shape
from acorn._formats.xml.encode import snake_case as snake_case
from acorn._history import saved_form as _saved_form
from acorn._history.compaction import SUMMARY_INTRODUCTION as SUMMARY_INTRODUCTION
from acorn._history.saved_form import MisfitError as MisfitError
from acorn._history.saved_form import RecordedError as RecordedError
from acorn._machine.human_input import read_decision as read_decision
from acorn._machine.machine import FINISHED as FINISHED
from acorn._machine.state import MODEL_OBJECT as _MODEL_OBJECT
from acorn._machine.stored_settings import check_submitted, declared_addresses
from acorn.errors import DeclarationError, InputError, StoreError
from acorn.journal import Entry
from acorn.stores.port import RunFacts, Store, StoredRun
from acorn.types import JsonObject, Request, ToolResult, Usage, is_json_object

Agent = module[Any, Any]
AgentOrClass = Agent | type[Agent]
AgentT = TypeVar("AgentT", bound=Agent)


# Agents


def agent_name(agent: AgentOrClass) -> str:
    """Return the class name that identifies an agent in stores and workers, such as `package.file:Class`."""
    return _specs.agent_name(_specs.class_of(agent))


def is_agent(value: object) -> TypeGuard[AgentOrClass]:
    """Return True if a value is an agent instance or an agent class (a class derived from `module`)."""
    return _specs.is_agent(value)


def is_instance(value: object) -> TypeGuard[Agent]:
    """Return True if a value is an agent: an instance of a class derived from `module`.

    Unlike `isinstance`, this function lets type checkers infer `module[Any, Any]`.
    """
    return isinstance(value, module)


def in_batch(agent: AgentT, batch: str, index: int) -> AgentT:
    """Assign the next run of an agent to a batch, and return the agent.

    `index` is the number of the run in the batch. For example, all runs of a chat are stored as one batch.
    """
    _set_call_options(agent, replace(agent.__acorn_call_options__, item=_BatchItem(batch, index)))
    return agent


def tools_that_ask(agent: Agent) -> list[str]:
    """Return the names of the tools of an agent, and of the agents that it may start, whose calls wait for a person.

    An agent with the method `on_human` answers the requests itself.
    """
    agents: list[AgentOrClass] = [agent]
    names: list[str] = []
    for found in agents:  # The list grows during the loop.
        if not _specs.has_user_hook(found, "on_human"):
            spec = read_spec(found)
            names += [tool.name for tool in spec.human_tools]
            names += [repr(source) for source in spec.sources if _source_may_ask_human(source)]
            agents += [other for other in spec.startable if not any(other is known for known in agents)]
    return list(dict.fromkeys(names))


def owned_by(agent: AgentT, owner: str | None) -> AgentT:
    """Return a copy of an agent whose next run belongs to an owner, which is the digest of an access key."""
    copy = agent.using()
    _set_call_options(copy, replace(copy.__acorn_call_options__, owner=owner))
    return copy


# Inputs and schemas


def parse_input(agent: Agent, values: object, *, is_value: bool = False) -> tuple[Any, ...]:
    """Validate JSON data as the input of an agent, and return the positional arguments for a call of the agent.

    If `is_value` is True, the paths in an error are those in the only value of `values`. The tuple is empty if the
    agent has no input. Raises an `InputError` that lists every invalid field.
    """
    spec = _specs.spec_of(agent)
    shape, owner = spec.input, spec.owner
    if not is_json_object(values):
        raise InputError(f"The input of `{owner}` must be a JSON object.")
    has_unknown = bool(shape.unknown_values(values))
    try:
        parsed = shape.schema.model_validate_json(json.dumps(values), by_alias=True, by_name=True)
    except ValidationError:
        has_unknown = True
        parsed = None
    if has_unknown or parsed is None:
        parsed = shape.from_call(owner, (values[shape.wrapped],), {}) if is_value else shape.from_values(owner, values)
    return () if shape.is_empty else (shape.unwrap(parsed),)


# Stored runs and messages


def read_stored_entries(texts: Iterable[str]) -> list[Entry]:
    """Parse the JSON texts of journal entries that a store returned.

    Images, audio and files are not loaded. The entries contain placeholders instead.
    """
    return _saved_form.decode_entries(map(read_without_blobs, texts))


def record_to_json(record: Entry | Request | RunFacts | ToolResult | Usage) -> JsonObject:
    """Return the fields of an object in the form in which acorn saves the object.

    For a journal entry, the JSON key `entry` contains the name of its class. The values of the fields of `ToolResult`
    are not converted to JSON data.
    """
    if isinstance(record, tuple):  # Journal entries are named tuples.
        return _saved_form.encode_entry(record)
    if isinstance(record, RunFacts):
        times = {"started": record.started.isoformat(), "updated": record.updated.isoformat()}
        return {**_saved_form.fields_of(record), **times, "usage": _saved_form.fields_of(record.usage)}
    return _saved_form.encode_request(record) if isinstance(record, Request) else _saved_form.fields_of(record)


def with_stored_settings(agent: AgentT, stored: StoredRun, store: Store) -> AgentT:
    """Return a copy of an agent with a store, and with the settings of the instance that started a stored run.

    Raises `MisfitError` if the settings contain an address, a header, a key or a file that the agent does not declare,
    or a value that the class does not accept.
    """
    where = f"Run {stored.facts.id} in {store.name}"
    addresses = declared_addresses(read_spec(agent))
    settings = check_submitted(stored_instance(stored).settings, addresses, where)
    try:
        changed = agent.using(store=store, **settings)
        read_spec(changed)
    except DeclarationError as error:
        raise MisfitError(f"{where} has a setting that the class does not accept: {error}") from error
    return changed


class StoredInstance(NamedTuple):
    """The file and the settings of the agent instance that started a stored run."""

    file: str | None
    """The path of the Python file that defines the class, if the store has the path."""
    settings: JsonObject
    """The settings that differ between the instance and its class. A model object is omitted, as stores lack it."""


def stored_instance(stored: StoredRun) -> StoredInstance:
    """Return the stored file and the stored settings of the agent instance that started a run."""
    try:
        overrides: JsonObject = json.loads(stored.header.overrides) if stored.header.overrides else {}
        settings: JsonObject = dict(overrides.get("settings", {}))
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise StoreError(
            f"The settings of run {stored.facts.id} are damaged: {excerpt(stored.header.overrides)}."
        ) from error
    model = settings.get("model")
    if _MODEL_OBJECT in (model if isinstance(model, list) else [model]):
        del settings["model"]
    return StoredInstance(overrides.get("file"), settings)


def stored_target(agent: str, file: str | None) -> str:
    """Return the target of an agent class, such as `desk.py:Desk`, from the class name and the file in a store.

    The target is only a hint for the user. acorn never imports it, because a store is data.
    """
    source, _, name = agent.partition(":")
    if file is not None:
        path = os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
        # A file of a package can only be imported by its dotted name.
        source = source if "." in source and path == f"{source.replace('.', os.sep)}.py" else path
    return f"{source}:{name}"


def stored_owner(stored: StoredRun) -> str | None:
    """Return the digest of the access key that started a run, or None if the run has no owner."""
    try:
        notes = json.loads(stored.header.overrides or "{}")
    except (RecursionError, ValueError):  # The store is damaged.
        return None
    owner = notes.get("owner") if is_json_object(notes) else None
    return owner if isinstance(owner, str) else None


# Tools


def new_tool(function: Callable[..., object], where: str) -> Tool:
    """Create a tool from a function with the decorator `acorn.tool`.

    `where` is the text that error messages use for the function. Raises `DeclarationError` if acorn cannot validate
    arguments against the schema of the tool.
    """
    options = _options_of(function)
    assert options is not None
    assert options.name is not None
    tool = _FunctionTool(options.name, function, options, where)
    tool.binding  # noqa: B018 - computes the cached property
    return tool


def describe_as_tool(agent: Agent, where: str, owner: str) -> JsonObject:
    """Return the `name`, `description` and `parameters` of a tool with which a model can call an agent.

    Error messages use `where` and `owner` to describe where the agent was declared.
    """
    return _make_tool(agent, where, owner, {}).schema


def tree_entries(run: Run) -> Iterator[Entry]:
    """Yield the journal entries of a run and its branches.

    The entries of a branch follow the entry that started the branch.
    """
    branches = {branch.id: branch for branch in run.branches}
    for entry in run.journal.entries:
        yield entry
        branch = branches.pop(getattr(entry, "child_id", ""), None)
        if branch is not None:
            yield from tree_entries(branch)
    for branch in branches.values():
        yield from tree_entries(branch)
