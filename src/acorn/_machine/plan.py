"""The plan of a run: the settings of its agent, with tools, branches and hooks that are bound to one instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from acorn._declare.spec import Spec
from acorn._declare.tools.kinds import AgentTool, Tool, first_paragraph
from acorn._formats.schema.shape import require_no_media
from acorn._machine.budgets import Budget
from acorn._machine.state import BranchContext
from acorn.chunk import StreamChunk
from acorn.models.port import Model
from acorn.step import Step
from acorn.types import JsonObject, Message, Request

if TYPE_CHECKING:
    from acorn._machine.fork import Fork  # The event classes, which only forked runs need.


@dataclass(frozen=True, eq=False)
class BranchTool:
    """A tool that starts another agent: a branch, or an agent that is used as a tool."""

    name: str
    described: str | None
    """The description from the `branches` setting, or None."""
    spec: Spec
    make: Callable[[], Plan]
    """A function that creates the plan of a new instance of the module class."""
    doc: str | None = None
    inherits: bool = True
    """Whether the module continues the conversation of its parent. An agent that is a tool has its own conversation."""

    @cached_property
    def schema(self) -> JsonObject:
        subject = f"The input of `{self.spec.owner}`, which is the branch `{self.name}`,"
        description = self.described or first_paragraph(self.doc)
        described = {"description": description} if description else {}
        return {"name": self.name, **described, "parameters": require_no_media(self.spec.input.parameters, subject)}


@dataclass(frozen=True, eq=False)
class Plan:
    """The settings, tools and hooks for one call of an agent, with all methods bound to the called instance."""

    spec: Spec
    tools: tuple[Tool, ...]
    """The declared tools, with tool methods bound to the instance."""
    resolve: Callable[[Any, Spec], Model]
    """A function that converts a declared model into a `Model` that observes the rate limits of the spec."""
    start: Callable[[AgentTool], BranchTool]
    """A function that converts an agent tool into a branch that inherits no conversation."""
    agent: Any = None
    module: str = ""
    """The name of the module class, such as `package.file:Class`."""
    prompt: Callable[[], object] | None = None
    on_start: Callable[[Step], object] | None = None
    on_step: Callable[[Step], object] | None = None
    on_finish: Callable[[Any], object] | None = None
    on_stream: Callable[[StreamChunk], object] | None = None
    on_human: Callable[[Request], object] | None = None
    """The `on_human` hook of the instance, or else of its nearest parent."""
    prior: Sequence[Message] = ()
    """The messages from `using(history=...)`."""
    fork: Fork | None = None
    """The part of the original run that a forked run starts with, or None."""
    deps: Any = None
    """The value from `using(deps=...)`."""
    branches: Mapping[str, BranchTool] = field(default_factory=dict[str, BranchTool])
    context: BranchContext | None = None
    """The context that a branch starts with, or None if the run is not a branch."""
    above: tuple[Budget, ...] = ()
    """The budgets of all parent runs, the direct parent first."""
    inherited: tuple[Tool, ...] = ()
    """The tools of the parent run."""
