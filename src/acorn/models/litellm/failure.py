"""What a failed request says: its true status, the provider's words, what to do, and no secret.

LiteLLM's types and statuses are guesses at times; what httpx saw is in the chain of causes. Called by the
adapter alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from acorn._secrets import redact
from acorn.models.status import is_retryable

BROKEN = "no connection"
"""It failed before the whole answer was there."""
LATE = "no answer in time"
GARBLED = "an answer that cannot be read"


@dataclass(frozen=True)
class Wire:
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


def on_the_wire(chain: list[BaseException]) -> Wire:
    """The HTTP status and headers as they came, or how the connection failed."""
    import httpx

    for cause in chain:
        if isinstance(cause, httpx.HTTPStatusError):
            return Wire(cause.response.status_code, cause.response.headers)
    for cause in chain:
        if isinstance(cause, httpx.TimeoutException):
            return Wire(trouble=LATE)
        if isinstance(cause, httpx.TransportError | ConnectionError):
            return Wire(trouble=BROKEN)
    kind, status = type(chain[0]).__name__, getattr(chain[0], "status_code", None)
    if kind == "Timeout":
        return Wire(trouble=LATE)
    if isinstance(status, int) and kind in _HONEST:
        return Wire(status, getattr(chain[0], "litellm_response_headers", None) or {})
    if kind == "MidStreamFallbackError":  # LiteLLM's word for a provider that says within a stream what went wrong
        for cause in chain[1:]:
            if any(base.__name__ == "BaseLLMException" for base in type(cause).__mro__):
                return Wire(getattr(cause, "status_code", None))
    is_garbled = any(isinstance(cause, _STUMBLES) for cause in chain) or any(word in str(chain[0]) for word in _STRANGE)
    return Wire(trouble=GARBLED if is_garbled and not is_bad_request(chain[0]) else "")


# Whose status is to be believed without a sight of the answer. LiteLLM's other types are also raised for an
# answer that came and made no sense, with a status of 500 that nobody sent.
_HONEST = (
    "AuthenticationError",
    "NotFoundError",
    "RateLimitError",
    "PermissionDeniedError",
    "ContextWindowExceededError",
    "ContentPolicyViolationError",
    "UnprocessableEntityError",
)

# What LiteLLM stumbles over when an answer is not what it should be, or says of it.
_STUMBLES = (LookupError, AttributeError, TypeError, json.JSONDecodeError)
_STRANGE = ("Unable to get json response", "with no 'choices'")

_WRAPPING = re.compile(r"^(?:litellm\.)?(?:\w*(?:Error|Timeout|Exception) ?)+(?::|- )\s*")
_ASIDES = re.compile(
    r"\s*(?:Traceback \(most recent|Original exception: | Handle with `litellm\.|\.? To drop these, set `litellm\.).*",
    re.DOTALL,
)


def provider_text(error: Exception) -> str:
    """The provider's own words, without LiteLLM's around them."""
    text = str(error)
    try:
        body = json.loads(text[text.index("{") : text.rindex("}") + 1])
        inner = body.get("error", body)
        found = inner.get("message") if isinstance(inner, dict) else inner
        if isinstance(found, str) and found:
            return found.strip().rstrip(".") + "."
    except (ValueError, AttributeError):
        pass
    text = _ASIDES.sub("", text)
    while (bare := _WRAPPING.sub("", text, count=1)) != text:
        text = bare
    text = text.strip().rstrip(".")[:500]
    return text and f"{text}."


def advice(error: Exception, wire: Wire, text: str, set_by_user: Collection[str], name: str) -> str:
    """What the user, who has set some parameters, can do about it; "" where nobody knows."""
    kind, words, status = type(error).__name__, text.lower(), wire.status
    if wire.trouble == LATE:
        return "Give it more time with `timeout` in the model dict, or try again later."
    if status == 413 or is_too_long(error):
        return "The conversation is too long for the model: shorten it in `on_step`, or use a model with more room."
    if kind == "ContentPolicyViolationError" or any(sign in words for sign in _FILTERED):
        return "The provider's content filter refused it: change the input or the prompt."
    if is_bad_request(error):
        for attribute in ("temperature", "max_tokens"):
            if attribute in words and attribute in set_by_user:
                return f"The model does not take the `{attribute}` that was set: change or remove it."
    if kind == "UnsupportedParamsError" and "'tools'" in text:
        return "If the model can call tools, say so in its dict: `allowed_openai_params: ['tools', 'tool_choice']`."
    if kind == "UnsupportedParamsError":
        return "Remove it from the model dict; if the model does take it, name it in `allowed_openai_params` there."
    if status in (401, 403):
        return "Check the `api_key` in the model dict, or the provider's environment variable."
    if status == 404 or "provider not provided" in words or kind == "LiteLLMUnknownProvider":
        return (
            f"Check the model id `{name}`: it is `provider/model`, as LiteLLM lists them, "
            f"or `openai/model` with an `api_base` for a server that speaks OpenAI's protocol."
        )
    if "quota" in words or "credit balance" in words:
        return "The account has nothing left: check its plan and billing."
    if status == 429:
        return "The provider's rate limit is reached: wait, or ask less often."
    if wire.trouble in (BROKEN, GARBLED):
        return "Check `api_base` in the model dict and the way there, or try again later."
    if status is not None and status >= 500:
        return "The provider is in trouble: try again later."
    return ""


_TOO_LONG = ("context length", "context limit", "context window", "prompt is too long")
_FILTERED = ("content filter", "content management policy", "safety system")


def is_bad_request(error: BaseException) -> bool:
    """Whether the request itself was found wrong, by the provider or by LiteLLM."""
    return type(error).__name__ in ("UnsupportedParamsError", "BadRequestError", "UnprocessableEntityError")


def is_too_long(error: BaseException) -> bool:
    """Whether the conversation has outgrown the model."""
    words = str(error).lower()
    return type(error).__name__ == "ContextWindowExceededError" or any(sign in words for sign in _TOO_LONG)


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
