"""What the lanes of OpenAI share: which models reason, how a request begins, addresses, and what an error says.

Called by `openai_chat.py` and `openai_responses.py`.

Between the messages of chat completions, which are ours, and the items of OpenAI's Responses. Pure.

Called by `openai_responses.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pydantic_core import to_json

from acorn.models.lanes.lane import ITEMS, ProviderError, held, kept_items, sent_items, with_own
from acorn.models.port import ModelRequest, RawCall
from acorn.models.providers import Tokens, check_key, key_of, prices_of
from acorn.types import JsonObject, Usage

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


def sampling(request: ModelRequest, left_out: Collection[str], name: str, length: str) -> JsonObject:
    """Temperature and length of an answer, which goes by a name of the protocol's, as far as the model takes them."""
    made: JsonObject = {}
    if "temperature" in request.declared and request.temperature != 1 and _ONE_TEMPERATURE.search(name):
        raise ProviderError(f"It takes no `temperature` but 1, and {request.temperature:g} was set.")
    if "temperature" in request.declared or not ("temperature" in left_out or reasons(name)):
        made["temperature"] = request.temperature
    if "max_tokens" in request.declared or "max_tokens" not in left_out:
        made[length] = request.max_tokens
    return made


class Heads:
    """How bodies begin: the settings as JSON without its end, which is the same at every step."""

    def __init__(self, make: Callable[[ModelRequest, Collection[str], bool], JsonObject]) -> None:
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


_NUMBERED = re.compile(r"call_\d+")
"""Ids that begin anew with each answer, as some servers give them: there the item's own is taken."""
_FILES = ("file_id", "file_data", "file_url")
BETWEEN = "\n\n"
"""Between the parts of a summary, which are paragraphs."""


# Messages


def items_of(message: Mapping[str, Any], *, is_stored: bool) -> Iterator[JsonObject]:
    """A message as items of the input."""
    role, content = message["role"], message.get("content")
    if role == "tool":
        told = [] if content is None else _parts(content, "input_text")
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": told}
        return
    calls = message.get("tool_calls") or ()
    if role == "assistant" and message.get(ITEMS):
        said = message_of(role, content) if content else None
        yield from sent_items(message, said, map(_call_item, calls), is_stored=is_stored)
        return
    thoughts = [t for t in message.get("reasoning_items") or () if is_stored or t.get("encrypted_content")]
    ids = {call["id"] for call in calls}
    if calls or content:  # a thought that nothing follows is refused
        yield from [_thought(each) for each in thoughts if each.get("before") not in ids]
    if content or (content is not None and not calls):
        yield message_of(role, content)
    for call in calls:
        yield from [_thought(each) for each in thoughts if each.get("before") == call["id"]]
        yield _call_item(call)


def _call_item(call: Mapping[str, Any]) -> JsonObject:
    function = call["function"]
    made = {"name": function["name"], "arguments": function["arguments"]}
    return {"type": "function_call", "call_id": call["id"], **made}


def message_of(role: str, content: Any) -> JsonObject:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": _parts(content, kind)}


def _parts(content: Any, kind: str) -> list[JsonObject]:
    if isinstance(content, str):
        return [{"type": kind, "text": content}]
    return [_part(part, kind) for part in content]


def _part(part: Mapping[str, Any], kind: str) -> JsonObject:
    if part.get("type") == "text":
        return {"type": kind, "text": part.get("text") or ""}
    if part.get("type") == "image_url":
        image = held(part, "url")
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
    if part.get("type") == "file":
        file, keys = held(part, *_FILES), (*_FILES, "filename")
        return {"type": "input_file", **{key: file[key] for key in keys if key in file}}
    return {key: value for key, value in part.items() if key != "cache_control"}


def _thought(item: Mapping[str, Any]) -> JsonObject:
    """A thought to send back; its text in the clear is refused, and a summary is always wanted."""
    kept = {key: item[key] for key in ("id", "encrypted_content") if item.get(key)}
    return {"type": "reasoning", "summary": item.get("summary") or [], **kept}


# Items of an answer


def extra_of(items: list[Any]) -> JsonObject:
    """What of an answer must be sent back beside its text and its calls."""
    if (kept := kept_items(items, _call_id)) is not None:
        return {ITEMS: kept}
    thoughts = thoughts_of(items)
    return {"reasoning_items": thoughts} if thoughts else {}


def thoughts_of(items: list[Any]) -> list[JsonObject]:
    """The thoughts of an answer; one that comes behind something else says which call it is before."""
    found: list[JsonObject] = []
    waiting: list[JsonObject] = []
    is_first = True
    for item in items:
        if item["type"] == "reasoning":
            keys = ("id", "type", "summary", "encrypted_content")
            waiting.append({key: item[key] for key in keys if item.get(key) is not None})
        elif item["type"] in ("message", "function_call"):
            is_call = item["type"] == "function_call"
            place = {"before": _call_id(item)} if is_call and not is_first else {}
            found += [{**each, **place} for each in waiting]
            waiting, is_first = [], False
    return found + waiting if is_first else found


def thought_text(item: Mapping[str, Any]) -> str:
    """What a model tells of its thoughts: a summary, or of an open model the thoughts themselves."""
    if item["type"] != "reasoning":
        return ""
    parts = item.get("summary") or item.get("content") or ()
    return BETWEEN.join([part["text"] for part in parts if part.get("text")])


def _call_id(item: Mapping[str, Any]) -> str | None:
    id = item.get("call_id")
    return id if id and not _NUMBERED.fullmatch(id) else item.get("id") or id


def call_of(item: Mapping[str, Any]) -> RawCall:
    return RawCall(_call_id(item), item.get("name") or "", item.get("arguments") or "")


def stop_reason(answer: Mapping[str, Any], *, has_calls: bool) -> str:
    why = (answer.get("incomplete_details") or {}).get("reason")
    if why or answer.get("status") == "incomplete":
        return "content_filter" if why == "content_filter" else "length"
    return "tool_calls" if has_calls else "stop"


def usage_of(raw: Any) -> Usage:
    if not raw:
        return Usage(requests=1)
    read, made = raw.get("input_tokens_details") or {}, raw.get("output_tokens_details") or {}
    return Usage(
        int(raw.get("input_tokens") or 0),
        int(raw.get("output_tokens") or 0),
        int(read.get("cached_tokens") or 0),
        int(made.get("reasoning_tokens") or 0),
        1,
        int(read.get("cache_write_tokens") or 0),
    )
