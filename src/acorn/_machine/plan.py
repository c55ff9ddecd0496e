"""The plan of a run: a spec bound to an instance, its tools, and its branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from acorn._declare.spec import Spec
from acorn._declare.tools.kinds import AgentTool, Tool, first_paragraph
from acorn._formats.schema.shape import require_no_media
from acorn._machine.limits import Budget
from acorn._machine.state import BranchContext
from acorn.chunk import StreamChunk
from acorn.models.port import Model
from acorn.step import Step
from acorn.types import JsonObject, Message, Request

if TYPE_CHECKING:
    from acorn._machine.fork import Fork  # The event classes, which only forked runs need.


@dataclass(frozen=True, eq=False)
class BranchTool:
    """A tool that starts another module: a branch, or an agent that is used as a tool."""

    name: str
    described: str | None
    """The description from `branches`, if there is one."""
    spec: Spec
    make: Callable[[], Plan]
    """Makes the plan of a new instance of the class."""
    doc: str | None = None
    inherits: bool = True
    """Whether it continues the conversation of its parent. An agent that is a tool has its own."""

    @cached_property
    def schema(self) -> JsonObject:
        subject = f"The input of `{self.spec.owner}`, which is the branch `{self.name}`,"
        description = self.described or first_paragraph(self.doc)
        described = {"description": description} if description else {}
        return {"name": self.name, **described, "parameters": require_no_media(self.spec.input.json_schema, subject)}


@dataclass(frozen=True, eq=False)
class Plan:
    """A spec bound to one instance, for one call."""

    spec: Spec
    tools: tuple[Tool, ...]
    """The declared tools. Methods are bound to the instance."""
    resolve: Callable[[Any, Spec], Model]
    """Turns a declared model into a `Model` that keeps the rate limits of the spec."""
    agent: Any = None
    module: str = ""
    """The class of the instance, as `package.file:Class`."""
    prompt: Callable[[], object] | None = None
    on_start: Callable[[Step], object] | None = None
    on_step: Callable[[Step], object] | None = None
    on_finish: Callable[[Any], object] | None = None
    on_stream: Callable[[StreamChunk], object] | None = None
    on_human: Callable[[Request], object] | None = None
    """The nearest `on_human`: a branch without its own uses that of its parent."""
    prior: Sequence[Message] = ()
    """The messages from `using(history=...)`."""
    fork: Fork | None = None
    """The part of another run that a forked run starts with."""
    deps: Any = None
    """The value from `using(deps=...)`."""
    branches: Mapping[str, BranchTool] = field(default_factory=dict[str, BranchTool])
    start: Callable[[AgentTool], BranchTool] | None = None
    """Turns an agent that is a tool into a branch that inherits nothing."""
    context: BranchContext | None = None
    """The start of a branch. None for a run that is not a branch."""
    above: tuple[Budget, ...] = ()
    """The budgets of all parent runs, the nearest first."""
    inherited: tuple[Tool, ...] = ()
    """The tools of the parent run."""
