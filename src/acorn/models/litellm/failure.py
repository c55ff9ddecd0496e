"""What a failed request says: its true status, the provider's words, what to do, and no secret.

LiteLLM's types and statuses are guesses at times; what httpx saw is in the chain of causes. Called by the
adapter alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from acorn.models import failure
from acorn.models.failure import BROKEN, GARBLED, LATE, Wire


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


def is_bad_request(error: BaseException) -> bool:
    """Whether the request itself was found wrong, by the provider or by LiteLLM."""
    return type(error).__name__ in ("UnsupportedParamsError", "BadRequestError", "UnprocessableEntityError")


def is_too_long(error: BaseException) -> bool:
    """Whether the conversation has outgrown the model."""
    return type(error).__name__ == "ContextWindowExceededError" or failure.is_too_long(str(error))


def advice(error: Exception, wire: Wire, text: str, set_by_user: Collection[str], name: str) -> str:
    """What the user, who has set some parameters, can do about it; "" where nobody knows."""
    kind = type(error).__name__
    is_bad = is_bad_request(error)
    if wire.trouble != LATE and not is_too_long(error):
        if kind == "UnsupportedParamsError" and "'tools'" in text:
            return "If the model can call tools, say so in its dict: `allowed_openai_params: ['tools', 'tool_choice']`."
        if kind == "UnsupportedParamsError" and not failure.unwanted(text, set_by_user):
            return "Remove it from the model dict; if the model does take it, name it in `allowed_openai_params` there."
        if kind == "LiteLLMUnknownProvider" or "provider not provided" in text.lower():
            return failure.WRONG_ID.format(name)
    return failure.advice(
        wire,
        text,
        set_by_user,
        name,
        is_bad_request=is_bad,
        is_too_long=is_too_long(error),
        is_filtered=kind == "ContentPolicyViolationError",
    )
