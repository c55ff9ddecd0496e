"""Meaning of failed requests: whether to retry, a suggestion for the user, and the settings that a model rejects.

For the adapters of providers, which put the result into a `ModelError`.

A rejected setting is a default temperature, a forced tool, or a schema that is strict although the user did not ask for
it. Each costs a request to find out, so the process remembers them.
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
from acorn.models.port import is_retryable
from acorn.models.request import ModelRequest
from acorn.types import JsonObject, is_json_object

NO_CONNECTION = "no connection"
"""The connection failed before the complete response arrived."""
TIMED_OUT = "no response in time"
UNREADABLE = "unreadable response"


@dataclass(frozen=True)
class FailureDetails:
    """The HTTP status of a failed request, or the problem if there was no status."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    problem: str = ""

    @property
    def label(self) -> str:
        return f"HTTP {self.status}" if self.status else self.problem

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.problem in (NO_CONNECTION, TIMED_OUT) or (self.status is not None and is_retryable(self.status))


CHECK_MODEL_ID = (
    "Check the model id `{}`. It has the form `provider/model`, as in LiteLLM's list, "
    "or `openai/model` with an `api_base` for a server that implements OpenAI's protocol."
)
_TOO_LONG = ("context length", "context limit", "context window", "prompt is too long")
_FILTERED = ("content filter", "content management policy", "safety system")


def suggest_fix(
    failure: FailureDetails,
    message: str,
    set_by_user: Collection[str],
    name: str,
    *,
    is_bad_request: bool,
    is_too_long: bool,
    is_filtered: bool = False,
) -> str:
    """Return a suggestion for the user, who set some of the parameters, or an empty string."""
    text, status = message.lower(), failure.status
    if failure.problem == TIMED_OUT:
        return "Increase `timeout` in the model dict, or try again later."
    if status == 413 or is_too_long:
        return (
            "The conversation is too long for the model. Shorten it in `on_step`, or use a model with a larger context."
        )
    if is_filtered or any(sign in text for sign in _FILTERED):
        return "The provider's content filter rejected the request. Change the input or the prompt."
    if is_bad_request and (attribute := rejected_setting(message, set_by_user)):
        return f"The model does not support the `{attribute}` that was set. Change or remove it."
    if status in (401, 403):
        return "Check the `api_key` in the model dict, or the provider's environment variable."
    if status == 404:
        return CHECK_MODEL_ID.format(name)
    if "quota" in text or "credit balance" in text:
        return "The account has no credit left. Check its plan and billing."
    if status == 429:
        return "The provider's rate limit is reached. Wait, or send fewer requests."
    if failure.problem in (NO_CONNECTION, UNREADABLE):
        return "Check `api_base` in the model dict and the network, or try again later."
    if status is not None and status >= 500:
        return "The provider has a problem. Try again later."
    return ""


def rejected_setting(message: str, set_by_user: Collection[str]) -> str | None:
    """Return the setting of the user that an error message mentions."""
    return next((name for name in _WIRE_NAMES if name in set_by_user and mentions(message.lower(), name)), None)


_WIRE_NAMES = {
    "temperature": ("temperature",),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "strict": ("strict",),
}
"""The settings, with their names in the protocols."""

_STRICT = re.compile(r"\bstrict\b|\bschema\b", re.IGNORECASE)


def mentions(message: str, setting: str) -> bool:
    """Return whether an error message mentions a setting."""
    if setting == "strict":
        return _STRICT.search(message) is not None  # Complete words only, since "restricted" contains "strict".
    return any(name in message for name in _WIRE_NAMES.get(setting, (setting,)))


def is_too_long(message: str) -> bool:
    """Return whether an error message says that the conversation exceeds the context of the model."""
    text = message.lower()
    return any(sign in text for sign in _TOO_LONG)


# Errors without secrets


def secrets_of(config: JsonObject, request: ModelRequest) -> set[str]:
    """Return the secrets that must not appear in an error: the keys of the model and those of hosted tools."""
    hosted = [tool for tool in request.tools if tool.get("type") != "function"]
    return find_secrets({"model": config, "tools": hosted})


def error_chain(error: BaseException, outer: BaseException | None) -> list[BaseException]:
    """Return an error and all its causes, except `outer`, which the caller was handling before the request."""
    chain: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop(0)
        if current is not None and current is not outer and current not in chain:
            chain.append(current)
            pending += [current.__cause__, current.__context__]
    return chain


def redact_errors(chain: list[BaseException], secrets: set[str]) -> None:
    """Remove the secrets from the arguments and attributes of exceptions."""
    for error in chain:
        error.args = _redact_value(error.args, secrets)
        for name, value in list(getattr(error, "__dict__", {}).items()):
            if isinstance(value, str | bytes | list | dict | tuple):
                with suppress(AttributeError):
                    setattr(error, name, _redact_value(value, secrets))


def _redact_value(value: Any, secrets: set[str]) -> Any:
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, bytes):  # The body of a failed stream.
        return redact(value.decode("utf-8", "replace"), secrets).encode()
    if type(value) in (list, tuple):
        return type(value)(_redact_value(item, secrets) for item in value)
    if is_json_object(value) and type(value) is dict:
        return {key: _redact_value(item, secrets) for key, item in value.items()}
    return value


# Rejected settings

_IDENTITY_KEYS = ("user", "metadata", "headers", "extra_headers")
"""Settings that identify the sender. Whether a model supports a parameter does not depend on them."""
_rejected: dict[tuple[str, ...], set[str]] = {}
_NONE: frozenset[str] = frozenset()


class RejectedSettings:
    """The parameters that one model with these settings is known to reject."""

    def __init__(self, name: str, settings: JsonObject) -> None:
        self._name = name
        self._settings = settings

    @property
    def known(self) -> Set[str]:
        return _rejected.get(self._key, _NONE) if _rejected else _NONE

    def remember(self, left_out: set[str]) -> None:
        if left_out:
            _rejected[self._key] = left_out | set(self.known)

    def check_forced(self, forced: str | None, called: Collection[str], stop_reason: str) -> None:
        """Remember if the provider ignored a forced tool: a complete response does not call it."""
        if forced and forced not in called and stop_reason in ("stop", "tool_calls"):
            self.remember({"tool_choice"})

    @cached_property
    def _key(self) -> tuple[str, ...]:
        settings = {key: value for key, value in self._settings.items() if key not in _IDENTITY_KEYS}
        return (self._name, *sorted(map(repr, redact_by_name(settings).items())))


def removable_settings(request: ModelRequest, set_by_user: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the parameters that may be removed from a rejected request, each with the mark to remember it by."""
    if request.forced_tool:
        yield "tool_choice", "tool_choice"
    for name in ("temperature", "max_tokens"):
        if name not in set_by_user:
            yield name, name
    if request.is_auto_cached:
        yield "cache_control", "cache_control"
    if (function := _strict_finish_by_default(request)) is not None:
        yield "strict", _strict_mark(function)


def without_rejected_strict(request: ModelRequest, left_out: Collection[str]) -> ModelRequest:
    """Return the request without a default `strict` that the model rejected."""
    if not any(name.startswith(_STRICT_PREFIX) for name in left_out):
        return request
    function = _strict_finish_by_default(request)
    if function is None or _strict_mark(function) not in left_out:
        return request
    loose = {key: value for key, value in function.items() if key != "strict"}
    return request.but(tools=[*request.tools[:-1], {**request.tools[-1], "function": loose}], tools_json=None)


def is_strict_by_user(request: ModelRequest) -> bool:
    """Return whether a request has a strict schema because the user asked for it."""
    are_strict = [bool(tool.get("function", {}).get("strict")) for tool in request.tools]
    return any(are_strict[:-1]) or (any(are_strict) and "strict" in request.declared)


_STRICT_PREFIX = "strict "


def _strict_finish_by_default(request: ModelRequest) -> JsonObject | None:
    """Return the definition of `__finish__` if it is strict although the user did not ask for it."""
    if not request.tools or "strict" in request.declared:
        return None
    function: JsonObject = request.tools[-1].get("function") or {}
    return function if function.get("strict") and function.get("name") == FINISH else None


def _strict_mark(function: JsonObject) -> str:
    # The mark contains the schema, since the model may accept another one.
    return _STRICT_PREFIX + sha256(to_json(function)).hexdigest()[:16]


def forget_rejections() -> None:
    """Forget all rejected settings, for tests in which another server may get the same address."""
    _rejected.clear()
