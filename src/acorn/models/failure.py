"""What a failed request says: its true status, the provider's words, what to do, and no secret.

LiteLLM's types and statuses are guesses at times; what httpx saw is in the chain of causes. Called by the
adapter alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from acorn._secrets import redact
from acorn.models.port import ModelRequest


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    here: BaseException | None = error
    while here is not None and here not in found:
        found.append(here)
        here = here.__cause__ or here.__context__
    return found


def on_the_wire(error: Exception) -> tuple[int | None, Mapping[str, str], bool]:
    """The HTTP status and headers as they came, and whether the connection itself failed."""
    import httpx

    for cause in _chain(error):
        if isinstance(cause, httpx.HTTPStatusError):
            return cause.response.status_code, cause.response.headers, False
        if isinstance(cause, httpx.TimeoutException):
            return 408, {}, True
        if isinstance(cause, httpx.TransportError | ConnectionError):
            return None, {}, True
    status = getattr(error, "status_code", None)
    kind = type(error).__name__
    if kind == "Timeout":
        return 408, {}, True
    headers: Any = getattr(error, "litellm_response_headers", None) or {}
    if isinstance(status, int) and status >= 400 and (headers or kind in _HONEST):
        return status, headers, False
    return None, headers, False


_HONEST = (
    "AuthenticationError",
    "NotFoundError",
    "RateLimitError",
    "PermissionDeniedError",
    "BadRequestError",
    "ContextWindowExceededError",
    "ContentPolicyViolationError",
    "UnprocessableEntityError",
)


def provider_text(error: Exception) -> str:
    """The provider's own words, without LiteLLM's around them."""
    text = str(error)
    try:
        told = json.loads(text[text.index("{") : text.rindex("}") + 1])
        inner = told.get("error", told)
        found = inner.get("message") if isinstance(inner, dict) else inner
        if isinstance(found, str) and found:
            return found.strip().rstrip(".") + "."
    except (ValueError, AttributeError):
        pass
    text = (text.partition(" - ")[2] or text).partition("\nTraceback")[0].partition(" Handle with `litellm.")[0]
    return text.strip()[:500]


def advice(error: Exception, status: int | None, text: str, request: ModelRequest, name: str) -> str:
    kind, words = type(error).__name__, text.lower()
    if kind == "ContextWindowExceededError" or "context length" in words or "prompt is too long" in words:
        return "The conversation is too long for the model: shorten it in `on_step`, or use a model with more room."
    if kind == "ContentPolicyViolationError":
        return "The provider's content filter refused it: change the input or the prompt."
    if kind == "UnsupportedParamsError" or status == 400:
        for attribute in ("temperature", "max_tokens"):
            if attribute in words and attribute in request.declared:
                return f"The model does not take the `{attribute}` that is set on the module: change or remove it."
    if status in (401, 403):
        return "Check the `api_key` in the model dict, or the provider's environment variable."
    if status == 404 or "Provider NOT provided" in text:
        return f"Check the model id `{name}`: it is `provider/model`, as LiteLLM lists them."
    if status == 429:
        return "The provider's rate limit is reached: wait, or ask less often."
    return ""


def clean(error: BaseException, secrets: set[str]) -> None:
    """Take the secrets out of an exception and everything it hangs on."""
    for cause in _chain(error):
        cause.args = tuple(redact(part, secrets) if isinstance(part, str) else part for part in cause.args)
        for name in ("message", "body", "text"):
            if isinstance(getattr(cause, name, None), str):
                with suppress(AttributeError):
                    setattr(cause, name, redact(getattr(cause, name), secrets))


def retry_after(header: str | None) -> float | None:
    """`Retry-After` in seconds; a date is read too."""
    if not header:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None
