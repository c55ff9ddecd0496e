"""`@tool`: a mark on a function, nothing more.

The function stays what it was: it can be called, tested, awaited and pickled as before. `collect` reads
the mark when a module is declared.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from acorn._formats.json import safe_repr, shorten
from acorn.errors import DeclarationError
from acorn.types import JsonObject

F = TypeVar("F", bound=Callable[..., Any])

Approval = Callable[[JsonObject], object]
"""Whether these arguments need a person's yes."""

_MARK = "__acorn_tool__"


@dataclass(frozen=True)
class ToolOptions:
    """What a decorator said beside the function."""

    name: str | None = None
    description: str | None = None
    timeout: float | None = None
    """Seconds after which a call counts as failed."""
    parallel: bool = True
    """Whether it may run beside other calls of the same response."""
    repeatable: bool = False
    """Whether the same call with the same result is no sign of a loop."""
    schema: Any = field(default=None, hash=False)
    """The JSON Schema of the arguments, where it does not come from the type hints."""
    once: bool = False
    """Whether a call that may have been begun is never begun again, though its process died in it."""
    approval: bool | Approval = False
    """Whether a person must approve a call, or a function of its arguments that says so."""
    strict: bool = False
    """Whether the provider is to hold the model to the schema."""


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

    A JSON Schema that is there already takes the place of the type hints. It is sent as it is, the arguments are
    checked against it, and they are passed by name as the model gave them: "5" does not become 5.

        @tool(schema={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]})
        def search(**arguments):
            \"\"\"Search the web for information.\"\"\"

    With `once=True` a call that may have been begun is not begun again when its run goes on after a crash; the model is
    told that nobody knows what came of it. With `approval=True`, or a function of the arguments, a person must say yes
    to a call first, and it is made once as well.

        @tool(approval=lambda arguments: arguments["amount"] > 100)
        def refund(order: str, amount: float) -> str:
            \"\"\"Pay money back.\"\"\"

    With `strict=True` the provider is asked to hold the model to the schema, where it can.
    """
    is_once: Any = once or (approval is not False and once is False)  # anything else is complained of
    options = ToolOptions(name, description, timeout, parallel, repeatable, _copied(schema), is_once, approval, strict)

    def mark(target: F) -> F:
        _check(options, target)
        marked: F = _marked(target, options)
        return marked

    return mark if function is None else mark(function)


def options_of(function: object) -> ToolOptions | None:
    """The mark of a function or method, or None where it has none."""
    inner = function.__func__ if isinstance(function, staticmethod | classmethod) else function
    found = getattr(inner, _MARK, None)
    return found if isinstance(found, ToolOptions) else None


def _marked(target: Any, options: ToolOptions) -> Any:
    inner: Any = getattr(target, "__func__", target) if not inspect.ismethod(target) else target
    if _MARK not in getattr(inner, "__dict__", {}):
        try:
            setattr(inner, _MARK, options)
        except AttributeError:
            pass
        else:
            return target
    # A bound method or a builtin takes no mark, and a marked function keeps the one it has.
    wrapped: Any = functools.partial(target)
    setattr(wrapped, _MARK, options)
    return wrapped


def _copied(schema: Any) -> Any:
    """A copy, so that what happens to the user's dict afterwards does not change the tool."""
    try:
        return copy.deepcopy(schema)
    except Exception:  # no JSON, or a circle, which `copied` would not end in: it is said when the class is defined
        return schema


def _check(options: ToolOptions, target: object) -> None:
    if not callable(target) and not isinstance(target, staticmethod | classmethod):
        raise DeclarationError(
            f"`@tool` marks functions and methods, got {shorten(safe_repr(target))}; "
            f"options go by name, as in `@tool(name='search')`."
        )
    rules: list[tuple[str, object, bool, str]] = [
        ("name", options.name, options.name is None or _is_text(options.name), "a non-empty string"),
        (
            "description",
            options.description,
            options.description is None or _is_text(options.description),
            "text",
        ),
        (
            "timeout",
            options.timeout,
            options.timeout is None or _is_positive(options.timeout),
            "seconds above 0",
        ),
        ("parallel", options.parallel, isinstance(options.parallel, bool), "True or False"),
        ("repeatable", options.repeatable, isinstance(options.repeatable, bool), "True or False"),
        ("strict", options.strict, isinstance(options.strict, bool), "True or False"),
        ("once", options.once, isinstance(options.once, bool), "True or False"),
        (
            "approval",
            options.approval,
            _is_approval(options.approval),
            "True, False or a plain function of the arguments, which are a dict",
        ),
    ]
    for option, value, right, allowed in rules:
        if not right:
            label = getattr(target, "__qualname__", None) or type(target).__name__
            raise DeclarationError(
                f"`{option}` of the tool `{label}` must be {allowed}, got {shorten(safe_repr(value))}."
            )


def _is_approval(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    if not callable(value) or inspect.iscoroutinefunction(value):
        return False
    try:
        inspect.signature(value).bind({})
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        pass
    return True


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value)
