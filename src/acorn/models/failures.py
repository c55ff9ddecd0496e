"""Analysis of failed requests: whether to retry, a suggestion for the user, and the settings that a model rejects.

The adapters of the providers use this module to create a `ModelError`.

acorn sends some settings that the user did not set: a default temperature, a forced tool, or a strict schema. If a
model rejects one of these settings, acorn sends the request again without it. The process remembers the rejected
settings, so that later requests do not fail for the same reason.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256

from pydantic_core import to_json

from acorn._declare.tools.collect import FINISH
from acorn._formats.redact import Redactor, find_secrets, redact_by_name
from acorn.errors import ModelError
from acorn.models.port import ResendError, is_retryable
from acorn.models.request import ModelRequest
from acorn.models.retry import parse_retry_after
from acorn.types import JsonObject

NO_CONNECTION = "no connection"
"""The label of a failure in which the connection broke before the complete response arrived."""
TIMED_OUT = "no response in time"
"""The label of a failure in which the response did not arrive before the timeout."""
TOO_LARGE = "response too large"
"""The label of a failure in which the response is larger than the limit."""
UNREADABLE = "unreadable response"
"""The label of a failure in which the response does not follow the protocol of the provider."""


@dataclass(frozen=True)
class FailureDetails:
    """The HTTP status and headers of a failed request.

    If no response arrived, `problem` describes the failure.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    problem: str = ""

    @property
    def label(self) -> str:
        return f"HTTP {self.status}" if self.status else self.problem

    @property
    def is_retryable(self) -> bool:
        """Whether the request may succeed if acorn sends it again later."""
        return self.problem in (NO_CONNECTION, TIMED_OUT) or (self.status is not None and is_retryable(self.status))


CHECK_MODEL_ID = (
    "Check the model id `{}`. It has the form `provider/model`, as in LiteLLM's list, "
    "or `openai/model` with an `api_base` for a server that implements OpenAI's protocol."
)
_TOO_LONG = ("context length", "context limit", "context window", "prompt is too long")
_FILTERED = ("content filter", "content management policy", "safety system")


_PROTOCOL_NAMES = {
    "temperature": ("temperature",),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "strict": ("strict",),
}
"""A dict that maps acorn's settings to their names in the protocols of the providers."""

_STRICT = re.compile(r"\bstrict\b|\bschema\b", re.IGNORECASE)


def mentions(message: str, setting: str) -> bool:
    """Return True if an error message contains the name of a setting, or its name in a provider's protocol."""
    if setting == "strict":
        # The pattern matches complete words only, since "restricted" contains "strict".
        return _STRICT.search(message) is not None
    return any(name in message for name in _PROTOCOL_NAMES.get(setting, (setting,)))


def says_too_long(message: str) -> bool:
    """Return True if an error message says that the conversation is longer than the context window of the model."""
    text = message.lower()
    return any(sign in text for sign in _TOO_LONG)


# Errors without secrets


def error_chain(error: BaseException, outer: BaseException | None) -> list[BaseException]:
    """Return a list that contains an error and all exceptions in its attributes, such as `__cause__` and `__context__`.

    The list does not contain `outer`, the exception that the caller was already handling before the request.
    """
    chain: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop(0)
        if current is not None and current is not outer and current not in chain:
            chain.append(current)
            pending += [current.__cause__, current.__context__]
            pending += [value for value in vars(current).values() if isinstance(value, BaseException)]
    return chain


# Rejected settings

_IDENTITY_KEYS = ("user", "metadata", "headers", "extra_headers")
"""Settings that identify the sender. They do not affect which parameters a model supports."""
_rejected: dict[tuple[str, ...], set[str]] = {}
"""A dict that maps a model name with its settings to the parameters that the model rejected."""


class RejectedSettings:
    """The names of the settings that a model rejected in earlier requests of this process."""

    def __init__(self, name: str, settings: JsonObject) -> None:
        self.model_name = name
        self.settings = settings
        """The settings in the model dict."""

    @property
    def known(self) -> Set[str]:
        return _rejected.get(self._key, frozenset()) if _rejected else frozenset()

    def remember(self, left_out: set[str]) -> None:
        if left_out:
            _rejected[self._key] = left_out | set(self.known)

    def check_forced(self, forced: str | None, called: Collection[str], stop_reason: str) -> None:
        """If a complete response does not call the forced tool, remember that the model ignores forced tools.

        Later requests to the model then do not force a tool.
        """
        if forced and forced not in called and stop_reason in ("stop", "tool_calls"):
            self.remember({"tool_choice"})

    @cached_property
    def _key(self) -> tuple[str, ...]:
        settings = {key: value for key, value in self.settings.items() if key not in _IDENTITY_KEYS}
        return (self.model_name, *sorted(map(repr, redact_by_name(settings).items())))


class Attempt:
    """A request in progress, with the settings that the model has rejected so far."""

    __slots__ = ("_config", "_outer_error", "_rejected", "left_out", "request")

    def __init__(self, request: ModelRequest, rejected: RejectedSettings, config: JsonObject) -> None:
        self.request = request
        self._rejected = rejected
        self._config = config
        self.left_out: set[str] = set() if request.left_out is None else request.left_out
        """The parameters that the model rejected. acorn sends the request again without them."""
        self._outer_error = sys.exception()
        """The exception that the caller was already handling when the request started, or None."""

    def on_accepted(self) -> None:
        """Remember the settings that the model rejected, because it accepted the request without them."""
        self._rejected.remember(self.left_out)

    def on_rejected(self, message: str, status: int) -> bool:
        """If an error message names a default setting, leave out the setting and return True.

        The caller must then send the request again.
        """
        if says_too_long(message):
            self.on_accepted()
            return False
        for name, mark in _removable_settings(self.request, self.set_by_user):
            if mentions(message, name) and mark not in self.left_out | self._rejected.known:
                self.left_out.add(mark)
                if self.request.left_out is not None:
                    raise ResendError(
                        f"`{self._rejected.model_name}` rejected the setting `{name}`. acorn sends the request again "
                        f"without it.",
                        status=status,
                    )
                return True
        return False

    @property
    def set_by_user(self) -> set[str]:
        """The names of the settings that the user set on the agent class or in the model dict."""
        names = {*self.request.declared, *self._rejected.settings} - {"strict"}
        return names | {"strict"} if _is_strict_by_user(self.request) else names

    def to_send(self) -> tuple[ModelRequest, Set[str]]:
        """Return the request to send, and the names of the settings that it must not contain."""
        left_out = self._rejected.known | self.left_out
        return _without_rejected_strict(self.request, left_out), left_out

    def suggest_fix(
        self,
        failure: FailureDetails,
        message: str,
        *,
        is_bad_request: bool,
        is_too_long: bool = False,
        is_filtered: bool = False,
    ) -> str:
        """Return a sentence that suggests to the user how to fix the failure, or "" if acorn has no suggestion."""
        text, status = message.lower(), failure.status
        if failure.problem == TIMED_OUT:
            return "Increase `timeout` in the model dict, or try again later."
        if failure.problem == TOO_LARGE:
            return "If you expect such a large response, increase `max_response_bytes` in the model dict."
        if status == 413 or is_too_long or says_too_long(message):
            return (
                "The conversation is too long for the model. Shorten it in `on_step`, or use a model with a larger "
                "context."
            )
        if is_filtered or any(sign in text for sign in _FILTERED):
            return "The provider's content filter rejected the request. Change the input or the prompt."
        if is_bad_request and (attribute := self.rejected_setting(message)):
            return f"The model does not support the `{attribute}` that was set. Change or remove it."
        if status in (401, 403):
            return "Check the `api_key` in the model dict, or the provider's environment variable."
        if status is not None and 300 <= status < 400:
            return (
                "The server redirects the request to another address. Set `api_base` in the model dict to that address."
            )
        if status == 404:
            return CHECK_MODEL_ID.format(self._rejected.model_name)
        if "quota" in text or "credit balance" in text:
            return "The account has no credit left. Check its plan and billing."
        if status == 429:
            return "The provider's rate limit is reached. Wait, or send fewer requests."
        if failure.problem in (NO_CONNECTION, UNREADABLE):
            return "Check `api_base` in the model dict and the network, or try again later."
        if status is not None and status >= 500:
            return "The provider has a problem. Try again later."
        return ""

    def rejected_setting(self, message: str) -> str | None:
        """Return the first setting of the user that an error message mentions, or None if it mentions none."""
        text, names = message.lower(), self.set_by_user
        return next((name for name in _PROTOCOL_NAMES if name in names and mentions(text, name)), None)

    def redact_causes(
        self, error: BaseException, redact_object: Callable[[object, Redactor], object] | None = None
    ) -> tuple[list[BaseException], Redactor]:
        """Redact an exception and its causes, and return these exceptions and the redactor.

        The redactor replaces the secrets in arguments and attributes, so that no traceback shows a secret.
        `redact_object` returns an attribute that is another object, such as an HTTP request, without secrets.
        """
        hosted = [tool for tool in self.request.tools if tool.get("type") != "function"]
        redactor = Redactor(find_secrets([self._config, *hosted]))
        chain = error_chain(error, self._outer_error)
        for cause in chain:
            cause.args = redactor.data(cause.args)
            for name, value in list(getattr(cause, "__dict__", {}).items()):
                # An exception of a failed stream may contain the response body as bytes.
                if type(value) in (str, bytes, list, dict, tuple):
                    with suppress(AttributeError):
                        setattr(cause, name, redactor.data(value))
                elif redact_object is not None:
                    with suppress(AttributeError):
                        setattr(cause, name, redact_object(value, redactor))
        return chain, redactor

    def error(
        self, provider: str, failure: FailureDetails, *details: str, error_class: type[ModelError] = ModelError
    ) -> ModelError:
        """Create the error of this request. `details` are the sentences of its message."""
        label = f" ({failure.label})" if failure.label else ""
        return error_class(
            f"`{self._rejected.model_name}` failed{label}: {' '.join(filter(None, details))}".removesuffix(": "),
            provider=provider,
            status=failure.status,
            retryable=failure.is_retryable,
            retry_after=parse_retry_after(failure.headers.get("retry-after")),
            timed_out=failure.problem == TIMED_OUT,
        )


def _removable_settings(request: ModelRequest, set_by_user: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings that acorn may remove from a request after the model rejected the request.

    Each item is a pair of strings: the name of the setting, and the text that acorn remembers if the model rejects it.
    """
    if request.forced_tool:
        yield "tool_choice", "tool_choice"
    for name in ("temperature", "max_tokens"):
        if name not in set_by_user:
            yield name, name
    if request.is_auto_cached:
        yield "cache_control", "cache_control"
    if (function := _strict_finish_by_default(request)) is not None:
        yield "strict", _strict_key(function)


def _without_rejected_strict(request: ModelRequest, left_out: Collection[str]) -> ModelRequest:
    """Return the request without a default `strict` that the model rejected earlier for the same schema.

    If the model did not reject it, or if the user set `strict`, the request is returned unchanged.
    """
    if not any(name.startswith(_STRICT_PREFIX) for name in left_out):
        return request
    function = _strict_finish_by_default(request)
    if function is None or _strict_key(function) not in left_out:
        return request
    loose = {key: value for key, value in function.items() if key != "strict"}
    return replace(request, tools=[*request.tools[:-1], {**request.tools[-1], "function": loose}])


def _is_strict_by_user(request: ModelRequest) -> bool:
    """Return True if a tool in the request has `strict` because the user set it."""
    are_strict = [bool(tool.get("function", {}).get("strict")) for tool in request.tools]
    return any(are_strict[:-1]) or (any(are_strict) and "strict" in request.declared)


_STRICT_PREFIX = "strict "


def _strict_finish_by_default(request: ModelRequest) -> JsonObject | None:
    """Return the definition of the tool `__finish__` if it is strict only because of acorn's default.

    Return None if the tool is missing or not strict, or if the user set `strict`.
    """
    if not request.tools or "strict" in request.declared:
        return None
    function: JsonObject = request.tools[-1].get("function") or {}
    return function if function.get("strict") and function.get("name") == FINISH else None


def _strict_key(function: JsonObject) -> str:
    # The key contains a hash of the schema, since the model may accept another strict schema.
    return _STRICT_PREFIX + sha256(to_json(function)).hexdigest()[:16]


def forget_rejections() -> None:
    """Forget all rejected settings of all models.

    Tests call this function because a new test server may get the address of an earlier server.
    """
    _rejected.clear()
