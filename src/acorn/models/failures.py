"""What a failed request means, whoever sent it: what was seen of it, whether it may pass, and what to do about it.

For the adapters of providers, which put it into their `ModelError`.

What models turned out not to take, for as long as the process lives: it cost a request to find out.

A default temperature, a forced tool, a schema that is strict though nobody asked for it. Called by the adapters of
providers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from acorn._declare.tools.collect import FINISH
from acorn._formats.redact import find_secrets, redact, redact_by_name
from acorn.models.port import ModelRequest
from acorn.models.retry import is_retryable
from acorn.types import JsonObject

BROKEN = "no connection"
"""It failed before the whole answer was there."""
LATE = "no answer in time"
GARBLED = "an answer that cannot be read"


@dataclass(frozen=True)
class FailureDetails:
    """What was seen of a failed request on its way: the status of an answer, or what went wrong without one."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    trouble: str = ""

    @property
    def what(self) -> str:
        return f"HTTP {self.status}" if self.status else self.trouble

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return self.trouble in (BROKEN, LATE) or (self.status is not None and is_retryable(self.status))


WRONG_ID = (
    "Check the model id `{}`: it is `provider/model`, as LiteLLM lists them, "
    "or `openai/model` with an `api_base` for a server that speaks OpenAI's protocol."
)
_TOO_LONG = ("context length", "context limit", "context window", "prompt is too long")
_FILTERED = ("content filter", "content management policy", "safety system")


def advice(
    wire: FailureDetails,
    text: str,
    set_by_user: Collection[str],
    name: str,
    *,
    is_bad_request: bool,
    is_too_long: bool,
    is_filtered: bool = False,
) -> str:
    """What the user, who has set some parameters, can do about it; "" where nobody knows."""
    words, status = text.lower(), wire.status
    if wire.trouble == LATE:
        return "Give it more time with `timeout` in the model dict, or try again later."
    if status == 413 or is_too_long:
        return "The conversation is too long for the model: shorten it in `on_step`, or use a model with more room."
    if is_filtered or any(sign in words for sign in _FILTERED):
        return "The provider's content filter refused it: change the input or the prompt."
    if is_bad_request and (attribute := unwanted(text, set_by_user)):
        return f"The model does not take the `{attribute}` that was set: change or remove it."
    if status in (401, 403):
        return "Check the `api_key` in the model dict, or the provider's environment variable."
    if status == 404:
        return WRONG_ID.format(name)
    if "quota" in words or "credit balance" in words:
        return "The account has nothing left: check its plan and billing."
    if status == 429:
        return "The provider's rate limit is reached: wait, or ask less often."
    if wire.trouble in (BROKEN, GARBLED):
        return "Check `api_base` in the model dict and the way there, or try again later."
    if status is not None and status >= 500:
        return "The provider is in trouble: try again later."
    return ""


def unwanted(text: str, set_by_user: Collection[str]) -> str | None:
    """Which of the settings that the user has made an error speaks of."""
    return next((name for name in _NAMES if name in set_by_user and speaks_of(text.lower(), name)), None)


_NAMES = {
    "temperature": ("temperature",),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "strict": ("strict",),
}
"""Settings by the names that protocols have for them."""


_STRICT = re.compile(r"\bstrict\b|\bschema\b", re.IGNORECASE)


def speaks_of(text: str, setting: str) -> bool:
    """Whether an error names a setting."""
    if setting == "strict":
        return _STRICT.search(text) is not None  # "restricted" is another word
    return any(name in text for name in _NAMES.get(setting, (setting,)))


def is_too_long(text: str) -> bool:
    """Whether an error says that the conversation has outgrown the model."""
    words = text.lower()
    return any(sign in words for sign in _TOO_LONG)


# Errors without secrets


def secrets_of(config: Mapping[str, Any], request: ModelRequest) -> set[str]:
    """What must not be in an error of a request: the keys of the model, and those of tools that the provider runs."""
    hosted = [tool for tool in request.tools if tool.get("type") != "function"]
    return find_secrets({"model": config, "tools": hosted})


def causes(error: BaseException, outer: BaseException | None) -> list[BaseException]:
    """The error and all that led to it; `outer` was being handled before the request began and is not of it."""
    found: list[BaseException] = []
    open_ends: list[BaseException | None] = [error]
    while open_ends:
        here = open_ends.pop(0)
        if here is not None and here is not outer and here not in found:
            found.append(here)
            open_ends += [here.__cause__, here.__context__]
    return found


def clean(chain: list[BaseException], secrets: set[str]) -> None:
    """Take the secrets out of exceptions, wherever they hold text."""
    for cause in chain:
        cause.args = _cleaned(cause.args, secrets)
        for name, value in list(getattr(cause, "__dict__", {}).items()):
            if isinstance(value, str | bytes | list | dict | tuple):
                with suppress(AttributeError):
                    setattr(cause, name, _cleaned(value, secrets))


def _cleaned(value: Any, secrets: set[str]) -> Any:
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, bytes):  # of an answer that was to be a stream
        return redact(value.decode("utf-8", "replace"), secrets).encode()
    if type(value) in (list, tuple):
        return type(value)(_cleaned(item, secrets) for item in value)
    return {key: _cleaned(item, secrets) for key, item in value.items()} if type(value) is dict else value


_WHO = ("user", "metadata", "headers", "extra_headers")
"""Settings that say who asks: what a model takes does not depend on them."""
_learned: dict[tuple[str, ...], set[str]] = {}
_NONE: frozenset[str] = frozenset()


class Refusals:
    """What one model, with these settings, does not take."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._name = name
        self._settings = settings

    @property
    def known(self) -> Set[str]:
        return _learned.get(self._key, _NONE) if _learned else _NONE

    def remember(self, left_out: set[str]) -> None:
        if left_out:
            _learned[self._key] = left_out | set(self.known)

    def check_forced(self, forced: str | None, called: Collection[str], stop_reason: str) -> None:
        """A forced tool that was not called, in an answer that is whole: the force was dropped on the way."""
        if forced and forced not in called and stop_reason in ("stop", "tool_calls"):
            self.remember({"tool_choice"})

    @cached_property
    def _key(self) -> tuple[str, ...]:
        settings = {key: value for key, value in self._settings.items() if key not in _WHO}
        return (self._name, *sorted(map(repr, redact_by_name(settings).items())))


def droppable(request: ModelRequest, set_by_user: Collection[str]) -> Iterator[tuple[str, str]]:
    """What of a request can be left out where it is refused, and by which mark that is remembered."""
    if request.forced_tool:
        yield "tool_choice", "tool_choice"
    for name in ("temperature", "max_tokens"):
        if name not in set_by_user:
            yield name, name
    if request.is_auto_cached:
        yield "cache_control", "cache_control"
    if (function := _unasked(request)) is not None:
        yield "strict", _mark(function)


def as_taken(request: ModelRequest, left_out: Collection[str]) -> ModelRequest:
    """The request without a strictness that was refused."""
    if not any(name.startswith(_STRICT_PREFIX) for name in left_out):
        return request
    function = _unasked(request)
    if function is None or _mark(function) not in left_out:
        return request
    loose = {key: value for key, value in function.items() if key != "strict"}
    return request.but(tools=[*request.tools[:-1], {**request.tools[-1], "function": loose}], tools_json=None)


def strict_by_user(request: ModelRequest) -> bool:
    """Whether the user has asked for something strict that is in a request."""
    are_strict = [bool(each.get("function", {}).get("strict")) for each in request.tools]
    return any(are_strict[:-1]) or (any(are_strict) and "strict" in request.declared)


_STRICT_PREFIX = "strict "


def _unasked(request: ModelRequest) -> JsonObject | None:
    """The definition of `__finish__` where it is strict and nobody has asked for that."""
    if not request.tools or "strict" in request.declared:
        return None
    function: JsonObject = request.tools[-1].get("function") or {}
    return function if function.get("strict") and function.get("name") == FINISH else None


def _mark(function: JsonObject) -> str:
    # It is this schema that was refused: another may well be taken.
    return _STRICT_PREFIX + sha256(to_json(function)).hexdigest()[:16]


def forget_refusals() -> None:
    """Try everything anew: an endpoint may have become another one."""
    _learned.clear()
