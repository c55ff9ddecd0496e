"""What one run is made of: a spec bound to an instance, its tools as they stand, its branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from acorn._declare.spec import Spec
from acorn._declare.tools.kinds import AgentTool, HostedTool, Tool, first_paragraph, may_ask_human
from acorn._formats.json import safe_repr
from acorn._formats.schema.shape import require_no_media
from acorn._machine.limits import Budget, Limits
from acorn._machine.state import BranchContext
from acorn.chunk import StreamChunk
from acorn.errors import AcornError
from acorn.models.port import Model
from acorn.record import Message
from acorn.step import Step
from acorn.types import JsonObject, Request

if TYPE_CHECKING:
    from acorn._machine.fork import Fork  # the events' classes, which a run that is no fork does not need


@dataclass(frozen=True, eq=False)
class BranchTool:
    """A branch as the model sees it: a tool that starts another module."""

    name: str
    described: str | None
    """The description that `branches` gives, if any."""
    spec: Spec
    make: Callable[[], Plan]
    """The plan of a new instance of the branch's class."""
    doc: str | None = None
    inherits: bool = True
    """Whether it goes on with its parent's conversation; an agent that is a tool has its own."""

    @cached_property
    def schema(self) -> JsonObject:
        whose = f"The input of `{self.spec.owner}`, which is the branch `{self.name}`,"
        description = self.described or first_paragraph(self.doc)
        described = {"description": description} if description else {}
        return {"name": self.name, **described, "parameters": require_no_media(self.spec.input.json_schema, whose)}


@dataclass(frozen=True, eq=False)
class Plan:
    """A spec bound to one instance, for one call."""

    spec: Spec
    tools: tuple[Tool, ...]
    """Methods bound to the instance."""
    resolve: Callable[[Any, Spec], Model]
    """From what a user declares to a model of the port, kept to the limits of the spec."""
    agent: object = None
    module: str = ""
    """The class of the instance, `package.file:Class`."""
    prompt: Callable[[], Any] | None = None
    on_start: Callable[[Step], Any] | None = None
    on_step: Callable[[Step], Any] | None = None
    on_finish: Callable[[Any], Any] | None = None
    on_stream: Callable[[StreamChunk], Any] | None = None
    on_human: Callable[[Request], Any] | None = None
    """The nearest one: a branch without its own asks the run above."""
    prior: Sequence[Message] = ()
    fork: Fork | None = None
    """What the run keeps of another."""
    deps: Any = None
    """What `using(deps=...)` brought along."""
    deps_type: Any = Any
    """What the brackets say that they must be."""
    branches: Mapping[str, BranchTool] = field(default_factory=dict[str, BranchTool])
    start: Callable[[AgentTool], BranchTool] | None = None
    """How an agent that is a tool is begun, as a branch that inherits nothing."""
    context: BranchContext | None = None
    """What a branch was born with; None for a run of its own."""
    above: tuple[Budget, ...] = ()
    """The budgets of all runs above."""
    inherited: tuple[Tool, ...] = ()
    """The tools of the run above."""
    limits: Limits = field(init=False)

    @property
    def has_hooks(self) -> bool:
        """Whether the user has a hook of any kind, which may edit the history."""
        return bool(self.on_finish or self.on_step or self.on_start or self.on_stream or self.on_human)

    def __post_init__(self) -> None:
        spec = self.spec
        object.__setattr__(self, "limits", Limits(spec.max_total_tokens, spec.max_cost, spec.max_seconds))


@dataclass(eq=False)
class Toolset:
    """The tools of the next request, described once."""

    tools: tuple[Tool, ...]
    branches: Mapping[str, BranchTool]
    finish: JsonObject
    named: dict[str, Tool] = field(init=False)
    repeatable: frozenset[str] = field(init=False)
    asking: frozenset[str] = field(init=False)
    """Those whose calls may wait for a person."""
    hosted: tuple[HostedTool, ...] = field(init=False)
    """Those that the provider runs."""

    def __post_init__(self) -> None:
        self.named = {tool.name: tool for tool in self.tools}
        self.repeatable = frozenset([tool.name for tool in self.tools if tool.options.repeatable])
        self.hosted = tuple([tool for tool in self.tools if isinstance(tool, HostedTool)])
        self.asking = frozenset([tool.name for tool in self.tools if may_ask_human(tool)])

    @cached_property
    def described(self) -> Described:
        schemas = [tool.schema for tool in self.tools]
        if self.branches:
            schemas += [branch.schema for branch in self.branches.values()]
        return _described(_Schemas([*schemas, self.finish]))


class _Schemas:
    """Schemas, known by their identity: each is made once and never changed."""

    __slots__ = ("ids", "schemas")

    def __init__(self, schemas: Sequence[JsonObject]) -> None:
        self.schemas = schemas
        self.ids = tuple(map(id, schemas))

    def __hash__(self) -> int:
        return hash(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Schemas) and self.ids == other.ids


class Described:
    """Tools as a request has them."""

    def __init__(self, schemas: Sequence[JsonObject]) -> None:
        # What a provider runs itself is said in its own words, and has no parameters of ours.
        self.definitions = [
            {"type": "function", "function": schema} if "parameters" in schema else schema for schema in schemas
        ]

    @cached_property
    def _json(self) -> bytes:
        return to_json(self.definitions)

    def json(self) -> bytes:
        return self._json


@lru_cache(maxsize=256)
def _described(schemas: _Schemas) -> Described:
    """The same tools are described once, whichever run they are in."""
    return Described(schemas.schemas)


def named_tools(tools: Sequence[Tool], names: Sequence[str]) -> tuple[Tool, ...]:
    """The tools that a saved run had."""
    known = {tool.name: tool for tool in tools}
    lost = [name for name in names if name not in known]
    if lost:
        raise AcornError(
            f"The saved run had the tools {', '.join(f'`{name}`' for name in lost)}, added by `on_step`, which are not "
            f"declared on the module; declare them to go on with it."
        )
    return tuple(known[name] for name in names)


def listed_tools(outcome: Any, where: str) -> list[Any]:
    """What a source of tools has listed."""
    if not isinstance(outcome, list | tuple):
        raise AcornError(f"The {where} must be a list of functions, got {safe_repr(outcome)[:120]}.")
    return list(outcome)
