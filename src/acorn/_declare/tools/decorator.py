"""The `@tool` decorator, which marks a function as a tool.

The function itself does not change: you can call, test, await and pickle it as before. `collect.py` uses the
mark when a module is declared.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from typing_extensions import TypeIs

from acorn._declare.settings import DURATION, FLAG, TEXT, Rule
from acorn._formats.json import excerpt
from acorn.errors import DeclarationError
from acorn.types import JsonObject

F = TypeVar("F", bound=Callable[..., Any])

Approval = Callable[[JsonObject], object]
"""A function that receives the arguments of a tool call as a dict and returns whether a person must approve it."""

_MARK = "__acorn_tool__"


@dataclass(frozen=True)
class ToolOptions:
    """The options of the `@tool` decorator, which it stores as an attribute of the function."""

    name: str | None = None
    description: str | None = None
    timeout: float | None = None
    """The number of seconds after which a call of the tool fails."""
    parallel: bool = True
    """Whether a call may run concurrently with other calls of the same response."""
    repeatable: bool = False
    """Whether the loop guard ignores repeated calls with the same result."""
    schema: Any = field(default=None, hash=False)
    """The explicit JSON Schema of the arguments, which replaces the type hints, or None."""
    once: bool = False
    """Whether acorn never repeats a call that may have started, even if the process died during the call."""
    approval: bool | Approval = False
    """Whether a person must approve each call, or a function that decides this from the arguments."""
    strict: bool = False
    """Whether the provider must enforce the schema of the arguments."""


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    parallel: bool = True,
    repeatable: bool = False,
    schema: JsonObject | None = None,
    once: bool = False,
    approval: bool | Approval = False,
    strict: bool = False,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    parallel: bool = True,
    repeatable: bool = False,
    schema: JsonObject | None = None,
    once: bool = False,
    approval: bool | Approval = False,
    strict: bool = False,
) -> F | Callable[[F], F]:
    """Mark a function or method as a tool of a module.

    The schema comes from its type hints and docstring:

        @tool
        def search(query: str, limit: int = 10) -> list[str]:
            \"\"\"Search the web for information.\"\"\"

    An explicit JSON Schema replaces the type hints. It is sent unchanged, and the arguments are checked against it and
    passed by name without conversion: "5" does not become 5.

        @tool(schema={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]})
        def search(**arguments):
            \"\"\"Search the web for information.\"\"\"

    With `once=True`, a call that may have started is not started again when its run resumes after a crash. The model
    reads that the outcome is unknown. With `approval=True`, or a function of the arguments, a person must approve a
    call before it starts, and it is made at most once as well.

        @tool(approval=lambda arguments: arguments["amount"] > 100)
        def refund(order: str, amount: float) -> str:
            \"\"\"Pay money back.\"\"\"

    With `strict=True`, a provider that supports it enforces the schema.
    """
    is_once = once or (approval is not False and once is False)  # `_check` rejects values that are not booleans.
    options = ToolOptions(name, description, timeout, parallel, repeatable, _copy(schema), is_once, approval, strict)

    def mark(target: F) -> F:
        _check(options, target)
        marked: F = _mark(target, options)
        return marked

    return mark if function is None else mark(function)


_METHODS: tuple[type[Any], ...] = (staticmethod, classmethod)


def unwrap_method(value: Any) -> Any:
    """Return the function of a static method or class method, or the value itself."""
    return value.__func__ if isinstance(value, _METHODS) else value


def is_partial(value: object) -> TypeIs[functools.partial[Any]]:
    """Return whether a value is a `functools.partial`."""
    return isinstance(value, functools.partial)


def options_of(function: object) -> ToolOptions | None:
    """Return the `@tool` options of a function or method, or None if it is not a tool."""
    options = getattr(unwrap_method(function), _MARK, None)
    return options if isinstance(options, ToolOptions) else None


def _mark(target: Any, options: ToolOptions) -> Any:
    inner = unwrap_method(target)
    if _MARK not in getattr(inner, "__dict__", {}):
        with suppress(AttributeError):
            setattr(inner, _MARK, options)
            return target
    # A bound method or a builtin has no attribute for the options, and the options of a function must not be replaced.
    wrapped: Any = functools.partial(target)
    setattr(wrapped, _MARK, options)
    return wrapped


def _copy(schema: JsonObject | None) -> JsonObject | None:
    """Return a copy of a schema, so that later changes to the user's dict do not change the tool."""
    try:
        return copy.deepcopy(schema)
    except Exception:  # The schema is not JSON or contains itself. The class definition raises an error for it later.
        return schema


def _check(options: ToolOptions, target: object) -> None:
    if not callable(target) and not isinstance(target, _METHODS):
        raise DeclarationError(
            f"`@tool` must decorate a function or method, got {excerpt(target)}. "
            f"Pass options by name, as in `@tool(name='search')`."
        )
    label = getattr(target, "__qualname__", None) or type(target).__name__
    for option, rule in _RULES.items():
        rule.check(f"`{option}` of the tool `{label}`", getattr(options, option))


def _is_approval(value: object) -> bool:
    if isinstance(value, bool):
        return True
    if not callable(value) or inspect.iscoroutinefunction(value):
        return False
    try:
        inspect.signature(value).bind({})
    except TypeError:
        return False
    except ValueError:  # Some builtin functions have no signature.
        pass
    return True


_RULES = {
    "name": TEXT.or_none(TEXT.expected),
    "description": TEXT.or_none(TEXT.expected),
    "timeout": DURATION.or_none(DURATION.expected),
    "parallel": FLAG,
    "repeatable": FLAG,
    "strict": FLAG,
    "once": FLAG,
    "approval": Rule(_is_approval, "True, False or a sync function that takes the arguments as a dict"),
}
