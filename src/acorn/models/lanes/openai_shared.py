"""Code that both OpenAI lanes share: sampling settings, addresses, errors, and the items of the Responses API.

acorn's messages have the format of chat completions. The Responses API uses items instead, and the second half of this
module converts messages to items and items to messages.

The format of an assistant message cannot represent a response with a hosted tool (a tool that OpenAI runs itself). The
assistant message then also stores all items in their order, in its key `response_items`. If the text or the calls of
the message differ from these items, acorn sends the text and the calls of the message, since the user may have edited
the message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from acorn.models.lanes.lane import ITEMS_KEY, ProviderError, apply_user_headers, drop_trailing_reasoning, part_payload
from acorn.models.port import RawCall
from acorn.models.providers import TokenCounts, check_key, find_api_key, prices_of
from acorn.models.request import ModelRequest
from acorn.types import Content, JsonObject, JsonValue, Usage

_ADDRESS = "https://api.openai.com/v1"
_REASONING = re.compile(r"(?:^|/)o\d|gpt-[56](?!-chat)")
_NOT_REASONING = re.compile(r"(?:^|/|ft:)(?:chat)?gpt-[34](?!\d)")
_FIXED_TEMPERATURE = re.compile(r"(?:^|/)o\d|gpt-5(?![.\d]|-chat)")
"""The names of models whose temperature must be 1. For newer models, this depends on the reasoning effort."""
_STATUSES = {
    "server_error": 500,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "vector_store_timeout": 504,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "model_not_found": 404,
}
"""A dict that maps the error codes in a response to HTTP statuses."""


def is_reasoning_model(name: str) -> bool:
    """Return True if a model name is the name of a known reasoning model of OpenAI."""
    return bool(_REASONING.search(name))


def is_non_reasoning_model(name: str) -> bool:
    """Return True if a model name is the name of a known model of OpenAI that does not reason.

    Such a model rejects messages that contain reasoning, for example the reasoning of another model.
    """
    return bool(_NOT_REASONING.search(name))


def supports_effort(name: str) -> bool:
    """Return True if a model may support the setting `reasoning_effort`.

    This is the case for known reasoning models, and for models that are not in acorn's price table.
    """
    return is_reasoning_model(name) or prices_of("openai", name) is None


def sampling_settings(request: ModelRequest, left_out: Collection[str], name: str, max_tokens_key: str) -> JsonObject:
    """Return the request settings for the temperature and for the maximum number of response tokens.

    The result does not contain a default that the model rejects. Raise `ProviderError` if the user set a temperature
    that the model does not support.
    """
    settings: JsonObject = {}
    if "temperature" in request.declared and request.temperature != 1 and _FIXED_TEMPERATURE.search(name):
        raise ProviderError(f"The model supports only a `temperature` of 1, but it is set to {request.temperature:g}.")
    if "temperature" in request.declared or not ("temperature" in left_out or is_reasoning_model(name)):
        settings["temperature"] = request.temperature
    if "max_tokens" in request.declared or "max_tokens" not in left_out:
        settings[max_tokens_key] = request.max_tokens
    return settings


class SettingsCache:
    """A cache of the settings of a request as JSON text.

    Most steps of a run have the same settings. The text has no closing brace, so that the lane can append the tools and
    the messages.
    """

    def __init__(self, build: Callable[[ModelRequest, Collection[str], bool], JsonObject]) -> None:
        self._build = build
        self._texts: dict[Hashable, bytes] = {}

    def get(self, request: ModelRequest, left_out: Collection[str], is_stream: bool) -> bytes:
        key = (
            request.temperature,
            request.max_tokens,
            request.forced_tool,
            "temperature" in request.declared,
            "max_tokens" in request.declared,
            frozenset(left_out),
            is_stream,
        )
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = to_json(self._build(request, left_out, is_stream))[:-1]
        return text


def openai_address(config: JsonObject, path: str) -> tuple[str, dict[str, str]]:
    """Return the URL and the HTTP headers for a path of the API, such as `responses`.

    They are taken from the model dict, or else from environment variables. Raise `ModelError` if the API key is
    missing.
    """
    candidates = (
        config.get("base_url"),
        config.get("api_base"),
        *map(os.environ.get, ("OPENAI_BASE_URL", "OPENAI_API_BASE")),
    )
    base = str(next(filter(None, candidates), _ADDRESS)).rstrip("/")
    headers = {"Content-Type": "application/json"}
    if key := find_api_key(config, "OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    variables = ("OPENAI_ORGANIZATION", "OPENAI_ORG_ID")
    if organization := config.get("organization") or next(filter(None, map(os.environ.get, variables)), None):
        headers["OpenAI-Organization"] = organization
    url, headers = apply_user_headers(f"{base}/{path}", headers, config)
    if not any(name.lower() == "authorization" for name in headers):
        check_key(str(config.get("model") or config.get("id")), "openai", config)
    return url, headers


def raise_if_failed(response: JsonObject) -> None:
    """Raise `ProviderError` if a response contains an error although its HTTP status was a success."""
    if error := response.get("error"):
        raise provider_error(error)


def provider_error(error: JsonValue) -> ProviderError:
    details = error if isinstance(error, dict) else {"message": error}
    message = str(details.get("message") or error or "The provider did not report a reason").rstrip(".")
    statuses = (_status_of(details.get(key)) for key in ("code", "type"))
    return ProviderError(f"{message}.", next(filter(None, statuses), None))


def _status_of(code: object) -> int | None:
    """Return the HTTP status that corresponds to an error code of OpenAI, or None if the code is unknown."""
    text = str(code)
    number = int(text) if text.isdecimal() else _STATUSES.get(text, 0)
    return number if 400 <= number < 600 else None


def token_counts(usage: Usage) -> TokenCounts:
    return TokenCounts(usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens)


# Conversion of messages to the items of a request to the Responses API

_FILE_KEYS = ("file_id", "file_data", "file_url")


def items_of(message: Mapping[str, Any], *, is_stored: bool) -> Iterator[JsonObject]:
    """Convert a message to items of the Responses API, and yield the items.

    `is_stored` is true if OpenAI stores the responses. Only then may a request contain reasoning items without
    encrypted content.
    """
    role, content = message["role"], message.get("content")
    if role == "tool":
        output = [] if content is None else _item_parts(content, "input_text")
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": output}
        return
    calls = message.get("tool_calls") or ()
    if role == "assistant" and message.get(ITEMS_KEY):
        text_item = message_item(role, content) if content else None
        yield from items_to_send(message, text_item, map(_call_item, calls), is_stored=is_stored)
        return
    reasoning = [item for item in message.get("reasoning_items") or () if is_stored or item.get("encrypted_content")]
    call_ids = {call["id"] for call in calls}
    if calls or content:  # OpenAI rejects reasoning that is the last item.
        yield from [_reasoning_item(item) for item in reasoning if item.get("before") not in call_ids]
    if content or (content is not None and not calls):
        yield message_item(role, content)
    for call in calls:
        yield from [_reasoning_item(item) for item in reasoning if item.get("before") == call["id"]]
        yield _call_item(call)


def _call_item(call: JsonObject) -> JsonObject:
    function = call["function"]
    return {
        "type": "function_call",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": function["arguments"],
    }


def message_item(role: str, content: Content) -> JsonObject:
    text_type = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": _item_parts(content, text_type)}


def _item_parts(content: Content, text_type: str) -> list[JsonObject]:
    if isinstance(content, str):
        return [{"type": text_type, "text": content}]
    return [_item_part(part, text_type) for part in content]


def _item_part(part: JsonObject, text_type: str) -> JsonObject:
    if part.get("type") == "text":
        return {"type": text_type, "text": part.get("text") or ""}
    if part.get("type") == "image_url":
        image = part_payload(part, "url")
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
    if part.get("type") == "file":
        file, keys = part_payload(part, *_FILE_KEYS), (*_FILE_KEYS, "filename")
        return {"type": "input_file", **{key: file[key] for key in keys if key in file}}
    return {key: value for key, value in part.items() if key != "cache_control"}


def _reasoning_item(item: JsonObject) -> JsonObject:
    """Return the form of a stored reasoning item that OpenAI accepts in a request.

    OpenAI rejects plain reasoning text in a request, and requires the key `summary`.
    """
    fields = {key: item[key] for key in ("id", "encrypted_content") if item.get(key)}
    return {"type": "reasoning", "summary": item.get("summary") or [], **fields}


def items_to_send(
    message: Mapping[str, Any], text_item: JsonObject | None, calls: Iterable[JsonObject], *, is_stored: bool
) -> list[JsonObject]:
    """Return the items for an assistant message that has the key `response_items`.

    The result contains the stored items, but with the current text and the current tool calls of the message, because
    the user may have edited them.
    """
    stored: list[JsonObject] = message[ITEMS_KEY]
    parts = [part for item in stored if item["type"] == "message" for part in item.get("content") or ()]
    is_same_text = "".join([part.get("text") or "" for part in parts]) == (message.get("content") or "")
    new_calls = {call["call_id"]: call for call in calls}
    items: list[JsonObject] = []
    for item in stored:
        kind = item["type"]
        if kind == "message":
            if is_same_text:
                items.append(item)
            elif text_item is not None:
                items.append(text_item)
                text_item = None
        elif kind == "function_call":
            items += [new_calls.pop(item["call_id"])] if item["call_id"] in new_calls else []
        elif kind != "reasoning" or is_stored or item.get("encrypted_content"):
            items.append(item)
    if not is_same_text and text_item is not None:
        items.append(text_item)
    return drop_trailing_reasoning([*items, *new_calls.values()])


# Conversion of the items of a response

_NUMBERED_ID = re.compile(r"call_\d+")
"""Call ids that some servers use again in every response. acorn uses the id of the item instead."""
PARAGRAPH_BREAK = "\n\n"
"""The separator between the parts of a reasoning summary."""


def extra_of(items: list[JsonObject]) -> JsonObject:
    """Return the additional keys of an assistant message: reasoning items, or all items if a hosted tool was used.

    OpenAI requires these items in later requests. A hosted tool is a tool that the provider runs itself.
    """
    if (stored_items := _items_to_store(items)) is not None:
        return {ITEMS_KEY: stored_items}
    reasoning = reasoning_items(items)
    return {"reasoning_items": reasoning} if reasoning else {}


def _items_to_store(items: Sequence[JsonObject]) -> list[JsonObject] | None:
    """Return all items of a response for the message key `response_items`, or None if it used no hosted tool."""
    if all(item["type"] in ("message", "function_call", "reasoning") for item in items):
        return None
    return [
        {"type": "function_call", "call_id": _call_id(item)} if item["type"] == "function_call" else item
        for item in items
    ]


def reasoning_items(items: list[JsonObject]) -> list[JsonObject]:
    """Return the reasoning items for the message key `reasoning_items`.

    If a reasoning item is not at the start of the response, its key `before` contains the id of the next tool call.
    Later requests put the item before that call.
    """
    reasoning: list[JsonObject] = []
    pending: list[JsonObject] = []
    is_first = True
    for item in items:
        if item["type"] == "reasoning":
            keys = ("id", "type", "summary", "encrypted_content")
            pending.append({key: item[key] for key in keys if item.get(key) is not None})
        elif item["type"] in ("message", "function_call"):
            is_call = item["type"] == "function_call"
            position = {"before": _call_id(item)} if is_call and not is_first else {}
            reasoning += [{**pending_item, **position} for pending_item in pending]
            pending, is_first = [], False
    return reasoning + pending if is_first else reasoning


def reasoning_text(item: JsonObject) -> str:
    """Return the summary of a reasoning item, or else its plain reasoning text.

    Return "" for any other item.
    """
    if item["type"] != "reasoning":
        return ""
    parts = item.get("summary") or item.get("content") or ()
    return PARAGRAPH_BREAK.join([part["text"] for part in parts if part.get("text")])


def _call_id(item: JsonObject) -> str | None:
    id = item.get("call_id")
    return id if id and not _NUMBERED_ID.fullmatch(id) else item.get("id") or id


def call_of(item: JsonObject) -> RawCall:
    return RawCall(_call_id(item), item.get("name") or "", item.get("arguments") or "")


def stop_reason_of(response: JsonObject, *, has_calls: bool) -> str:
    details: JsonObject = response.get("incomplete_details") or {}
    reason = details.get("reason")
    if reason or response.get("status") == "incomplete":
        return "content_filter" if reason == "content_filter" else "length"
    return "tool_calls" if has_calls else "stop"


def usage_of(raw: JsonObject | None) -> Usage:
    if not raw:
        return Usage(requests=1)
    input_details: JsonObject = raw.get("input_tokens_details") or {}
    output_details: JsonObject = raw.get("output_tokens_details") or {}
    return Usage(
        int(raw.get("input_tokens") or 0),
        int(raw.get("output_tokens") or 0),
        int(input_details.get("cached_tokens") or 0),
        int(output_details.get("reasoning_tokens") or 0),
        1,
        int(input_details.get("cache_write_tokens") or 0),
    )
