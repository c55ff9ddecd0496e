"""What the lanes of OpenAI share: which models reason, how a request begins, addresses, and what an error says.

Called by `openai_chat.py` and `openai_responses.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic_core import to_json

from acorn.models.keys import check_key, key_of
from acorn.models.lane import ProviderError, with_own
from acorn.models.port import ModelRequest
from acorn.models.prices import Tokens, prices_of
from acorn.types import Usage

_ADDRESS = "https://api.openai.com/v1"
_REASONING = re.compile(r"(?:^|/)o\d|gpt-[56](?!-chat)")
_PLAIN = re.compile(r"(?:^|/|ft:)(?:chat)?gpt-[34](?!\d)")
_ONE_TEMPERATURE = re.compile(r"(?:^|/)o\d|gpt-5(?![.\d]|-chat)")
"""Models that take no temperature but 1; of later ones it depends on how much they reason."""
_STATUS = {
    "server_error": 500,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "vector_store_timeout": 504,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "model_not_found": 404,
}
"""By the code of an error that comes within an answer."""


def reasons(name: str) -> bool:
    """Whether a model is known to reason."""
    return bool(_REASONING.search(name))


def never_reasons(name: str) -> bool:
    """Whether a model is known not to reason, and to refuse the thoughts of one that does."""
    return bool(_PLAIN.search(name))


def takes_effort(name: str) -> bool:
    """Whether a model can be told how much to reason; of a name that no table has, the user's word counts."""
    return reasons(name) or prices_of("openai", name) is None


def sampling(request: ModelRequest, left_out: Collection[str], name: str, length: str) -> dict[str, Any]:
    """Temperature and length of an answer, which goes by a name of the protocol's, as far as the model takes them."""
    made: dict[str, Any] = {}
    if "temperature" in request.declared and request.temperature != 1 and _ONE_TEMPERATURE.search(name):
        raise ProviderError(f"It takes no `temperature` but 1, and {request.temperature:g} was set.")
    if "temperature" in request.declared or not ("temperature" in left_out or reasons(name)):
        made["temperature"] = request.temperature
    if "max_tokens" in request.declared or "max_tokens" not in left_out:
        made[length] = request.max_tokens
    return made


class Heads:
    """How bodies begin: the settings as JSON without its end, which is the same at every step."""

    def __init__(self, make: Callable[[ModelRequest, Collection[str], bool], dict[str, Any]]) -> None:
        self._make = make
        self._known: dict[tuple[Any, ...], bytes] = {}

    def of(self, request: ModelRequest, left_out: Collection[str], is_stream: bool) -> bytes:
        key = (
            request.temperature,
            request.max_tokens,
            request.forced_tool,
            "temperature" in request.declared,
            "max_tokens" in request.declared,
            frozenset(left_out),
            is_stream,
        )
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = to_json(self._make(request, left_out, is_stream))[:-1]
        return found


def openai_address(config: Mapping[str, Any], path: str) -> tuple[str, dict[str, str]]:
    """Where to send, and with which headers."""
    known = (
        config.get("base_url"),
        config.get("api_base"),
        *map(os.environ.get, ("OPENAI_BASE_URL", "OPENAI_API_BASE")),
    )
    base = str(next(filter(None, known), _ADDRESS)).rstrip("/")
    headers = {"Content-Type": "application/json"}
    if key := key_of(config, "OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    names = ("OPENAI_ORGANIZATION", "OPENAI_ORG_ID")
    if organization := config.get("organization") or next(filter(None, map(os.environ.get, names)), None):
        headers["OpenAI-Organization"] = organization
    url, headers = with_own(f"{base}/{path}", headers, config)
    if not any(name.lower() == "authorization" for name in headers):
        check_key(str(config.get("model") or config.get("id")), "openai", config)
    return url, headers


def raise_if_failed(answer: Any) -> None:
    """Raise what a provider tells in an answer that seemed well."""
    if error := answer.get("error"):
        raise provider_error(error)


def provider_error(error: Any) -> ProviderError:
    held = error if isinstance(error, dict) else {"message": error}
    words = str(held.get("message") or error or "it failed").rstrip(".")
    statuses = (_status(held.get(key)) for key in ("code", "type"))
    return ProviderError(f"{words}.", next(filter(None, statuses), None))


def _status(code: Any) -> int | None:
    """What an error's code would be as the status of an answer."""
    number = int(code) if str(code).isdecimal() else _STATUS.get(str(code), 0)
    return number if 400 <= number < 600 else None


def tokens_of(usage: Usage) -> Tokens:
    return Tokens(usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens)
