"""The native lane for OpenAI's Responses API: `openai/responses/<model>`.

acorn's messages have the format of chat completions. This lane converts each message to one or more items, the format
of the Responses API. A request reuses the encoded items of the previous request.

acorn asks OpenAI not to store the responses of reasoning models. The reasoning therefore arrives encrypted, and later
requests must contain it. The assistant message stores the encrypted reasoning and its place among the tool calls in the
key `reasoning_items`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pydantic_core import to_json

from acorn.models.lanes.lane import (
    ADDRESS_KEYS,
    COMMON_KEYS,
    ProviderError,
    StreamReader,
    UnsupportedContentError,
    is_openai_tool,
    supports_keys,
)
from acorn.models.lanes.native import NativeModel
from acorn.models.lanes.openai_shared import (
    PARAGRAPH_BREAK,
    SettingsCache,
    call_of,
    extra_of,
    is_non_reasoning_model,
    is_reasoning_model,
    items_of,
    message_item,
    openai_address,
    provider_error,
    raise_if_failed,
    reasoning_text,
    sampling_settings,
    stop_reason_of,
    supports_effort,
    token_counts,
    usage_of,
)
from acorn.models.port import CallDelta, Delta, ModelResponse
from acorn.models.providers import TokenCounts, custom_address
from acorn.models.request import ModelRequest, portable_id, unsupported_kind
from acorn.types import JsonObject, JsonValue, Message

_SETTINGS = (
    *("top_p", "top_logprobs", "user", "safety_identifier", "store", "include", "truncation", "prompt_cache_key"),
    *("parallel_tool_calls", "max_tool_calls", "reasoning", "text"),
)
_SUPPORTED_KEYS = frozenset(
    (
        *(*COMMON_KEYS, *ADDRESS_KEYS, *_SETTINGS),
        *("reasoning_effort", "response_format", "tool_choice", "extra_body", "organization"),
    )
)
_PREFIX = "openai/responses/"
_ENCRYPTED_REASONING = "reasoning.encrypted_content"


def supports(config: JsonObject) -> bool:
    """Return True if this lane supports all settings in a model dict.

    Otherwise acorn uses LiteLLM.
    """
    sets_effort = "reasoning_effort" in config or "reasoning" in config
    return supports_keys(config, _SUPPORTED_KEYS) and (not sets_effort or supports_effort(_model_name(config)))


def _model_name(config: JsonObject) -> str:
    return str(config.get("model") or config.get("id")).removeprefix(_PREFIX)


def create_model(config: JsonObject) -> NativeModel:
    return NativeModel(config, OpenAIResponses(config))


class OpenAIResponses:
    """The lane for OpenAI's Responses API: it encodes requests and decodes responses."""

    provider = "openai"

    def __init__(self, config: JsonObject) -> None:
        self.name = _model_name(config)
        self._config = config
        self._settings = _translate_settings(config, self.name)
        reasoning: JsonObject = self._settings.get("reasoning") or {}
        self.thinks = reasoning.get("effort") not in (None, "", "none")
        self._is_stored = self._settings.get("store") is not False
        self._settings_cache = SettingsCache(self._request_settings)
        self._encoded: list[tuple[Message, bytes]] = []
        """The messages of the last request, each with the JSON text of its items.

        Each request replaces the list and never changes it, since several threads may use a model at the same time.
        """
        self._tools: tuple[object, bytes] = (None, b"")
        """The tools of the last request and their JSON text, which the next request with the same tools uses again."""

    def can_force_tool(self) -> bool:
        return True

    def takes_tool(self, tool: JsonObject) -> bool:
        return is_openai_tool(tool)

    def address(self) -> tuple[str, dict[str, str]]:
        return openai_address(self._config, "responses")

    # Requests

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes:
        for medium in request.media:
            if medium.kind == "audio":
                raise UnsupportedContentError(unsupported_kind(medium))
        instructions, items = self._encode_input(request.messages)
        parts = [self._settings_cache.get(request, left_out, is_stream), b'"input":[%s]' % items]
        if instructions:
            parts.append(b'"instructions":' + to_json(instructions))
        if request.tools:
            parts.append(b'"tools":' + self._tools_json(request))
        return b",".join(parts) + b"}"

    def _request_settings(self, request: ModelRequest, left_out: Collection[str], is_stream: bool) -> JsonObject:
        sampling = sampling_settings(request, left_out, self.name, "max_output_tokens")
        settings = {"model": self.name, **sampling, **self._settings}
        if request.forced_tool and "tool_choice" not in left_out:
            settings["tool_choice"] = {"type": "function", "name": request.forced_tool}
        if is_stream:
            settings["stream"] = True
        return settings

    def _tools_json(self, request: ModelRequest) -> bytes:
        tools, text = self._tools
        if tools is not request.tools:
            text = to_json(
                [_tool_definition(tool["function"]) if "function" in tool else tool for tool in request.tools]
            )
            self._tools = (request.tools, text)
        return text

    def _encode_input(self, messages: list[Message]) -> tuple[str, bytes]:
        """Return the values of `instructions` and `input` for a request.

        The instructions are the text of the system messages at the start. All other messages become the JSON text of
        the input items. Messages that the previous request already contained are not encoded again.
        """
        first, instructions = 0, list[str]()
        while first < len(messages) and messages[first]["role"] == "system":
            if isinstance(content := messages[first].get("content"), str):
                instructions.append(content)
            first += 1
        previous, encoded, is_same = self._encoded, list[tuple[Message, bytes]](), True
        is_openai = custom_address(self.provider, self._config) is None
        for at, message in enumerate(messages):
            is_same = is_same and at < len(previous) and previous[at][0] is message
            if is_same:
                encoded.append(previous[at])
            elif at < first and isinstance(message.get("content"), str):
                encoded.append((message, b""))
            else:
                items = self._items_of(message)
                # Another server may expect the call ids that it created.
                sendable = map(_with_portable_id, items) if is_openai else items
                encoded.append((message, b",".join(map(to_json, sendable))))
        self._encoded = encoded
        text = b",".join([item_text for _, item_text in encoded if item_text])
        if text:
            return " ".join(instructions), text
        return "", to_json(message_item("system", " ".join(instructions)))  # OpenAI rejects an empty input.

    def _items_of(self, message: Message) -> Iterator[JsonObject]:
        items = items_of(message, is_stored=self._is_stored)
        return (item for item in items if item["type"] != "reasoning") if is_non_reasoning_model(self.name) else items

    # Responses

    def read(self, response: JsonObject) -> tuple[ModelResponse, TokenCounts | None]:
        raise_if_failed(response)
        status, items = response.get("status"), response["output"]
        if status in ("failed", "cancelled"):
            raise ProviderError(
                f"The provider ended the response with the status `{status}` and did not report a reason.", 500
            )
        parts = [part for item in items if item["type"] == "message" for part in item.get("content") or ()]
        calls = [call_of(item) for item in items if item["type"] == "function_call"]
        usage = response.get("usage")
        model_response = ModelResponse(
            "".join([part.get("text") or "" for part in parts]),
            calls,
            stop_reason_of(response, has_calls=bool(calls)),
            usage_of(usage),
            model=response.get("model") or "",
            reasoning=PARAGRAPH_BREAK.join([text for item in items if (text := reasoning_text(item))]) or None,
            refusal="".join([part.get("refusal") or "" for part in parts]) or None,
            extra=extra_of(items),
        )
        return model_response, token_counts(model_response.usage) if usage else None

    def stream_reader(self) -> StreamReader:
        return _ResponsesReader()


def _with_portable_id(item: JsonObject) -> JsonObject:
    return {**item, "call_id": portable_id(item["call_id"])} if "call_id" in item else item


# Settings


def _translate_settings(config: JsonObject, name: str) -> JsonObject:
    settings = {key: config[key] for key in _SETTINGS if config.get(key) is not None}
    if effort := config.get("reasoning_effort"):
        settings["reasoning"] = effort if isinstance(effort, dict) else {"effort": effort}
    if text_format := _text_format(config.get("response_format")):
        settings["text"] = {**(settings.get("text") or {}), "format": text_format}
    if (choice := config.get("tool_choice")) is not None:
        settings["tool_choice"] = _tool_choice(choice)
    settings |= config.get("extra_body") or {}
    if is_reasoning_model(name):
        # OpenAI does not store these responses, so later requests must contain the encrypted reasoning.
        settings = {"store": False, "include": [_ENCRYPTED_REASONING], **settings}
    return settings


def _text_format(response_format: JsonObject | None) -> JsonObject | None:
    """Convert a `response_format` of the Chat Completions API to a `format` of the Responses API.

    Return None if no `response_format` is set.
    """
    if not response_format or response_format.get("type") != "json_schema":
        return response_format or None
    inner: JsonObject = response_format.get("json_schema") or {}
    return {
        "type": "json_schema",
        "name": inner.get("name", "response_schema"),
        "schema": inner.get("schema", {}),
        "strict": inner.get("strict", False),
    }


def _tool_choice(choice: JsonValue) -> JsonValue:
    """Convert a `tool_choice` of the Chat Completions API to a `tool_choice` of the Responses API."""
    function = choice.get("function") if isinstance(choice, dict) else None
    return {"type": "function", "name": function["name"]} if function else choice


def _tool_definition(function: JsonObject) -> JsonObject:
    description = {"description": function["description"]} if function.get("description") else {}
    # If `strict` is missing, OpenAI treats the schema as strict and makes every property required.
    strict = bool(function.get("strict"))
    return {
        "type": "function",
        "name": function["name"],
        **description,
        "parameters": function.get("parameters"),
        "strict": strict,
    }


class _ResponsesReader:
    """A decoder that converts the events of one streamed response of the Responses API to deltas."""

    def __init__(self) -> None:
        self.called_names = ""
        self.stop_reason = ""
        self.used: TokenCounts | None = None
        self._items: dict[int, JsonObject] = {}
        """A dict that maps an item index to a complete item."""
        self._calls: dict[int, int] = {}
        """A dict that maps the item index of a call to the number of the call."""
        self._started: set[int] = set()
        """The indexes of the items whose text or arguments have started to arrive."""
        self._last_summary_part: tuple[object, ...] | None = None

    def read(self, event: JsonObject) -> Delta | None:
        kind, index = event.get("type") or "", event.get("output_index") or 0
        if kind == "response.function_call_arguments.delta":
            self._started.add(index)
            return Delta(calls=(CallDelta(self._call_number(index), arguments=event["delta"]),))
        if kind == "response.output_text.delta":
            self._started.add(index)
            return Delta(content=event["delta"])
        if kind == "response.refusal.delta":
            self._started.add(index)
            return Delta(refusal=event["delta"])
        if kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            return self._read_reasoning(index, event)
        if kind == "response.output_item.added" and event["item"]["type"] == "function_call":
            return self._start_call(index, event["item"])
        if kind == "response.output_item.done":
            return self._end_item(index, event["item"])
        if kind in ("response.completed", "response.incomplete"):
            return self._end_response(event["response"])
        if kind == "response.failed":
            response: JsonObject = event.get("response") or {}
            raise _server_error(response.get("error"))
        if kind == "error" or event.get("error"):
            raise _server_error(event.get("error") or event)
        return None

    def _call_number(self, index: int) -> int:
        return self._calls.setdefault(index, len(self._calls))

    def _start_call(self, index: int, item: JsonObject) -> Delta:
        call = call_of(item)
        self.called_names += call.name
        if call.arguments:
            self._started.add(index)
        return Delta(calls=(CallDelta(self._call_number(index), call.id, call.name, call.arguments),))

    def _read_reasoning(self, index: int, event: JsonObject) -> Delta:
        part = (index, event.get("summary_index"), event.get("content_index"))
        is_next_part = self._last_summary_part not in (None, part)
        self._last_summary_part = part
        return Delta(reasoning=f"{PARAGRAPH_BREAK}{event['delta']}" if is_next_part else event["delta"])

    def _end_item(self, index: int, item: JsonObject) -> Delta | None:
        """Store a complete item, and return a delta with its text or its tool call.

        Return None if earlier events already contained the text or the call.
        """
        self._items[index] = item
        if item["type"] == "function_call" and index not in self._started:
            if index not in self._calls:
                return self._start_call(index, item)
            return Delta(calls=(CallDelta(self._calls[index], arguments=item.get("arguments") or ""),))
        if item["type"] == "message" and index not in self._started:
            text = "".join([part.get("text") or "" for part in item.get("content") or ()])
            return Delta(content=text) if text else None
        return None

    def _end_response(self, response: JsonObject) -> Delta:
        items = response.get("output") or [self._items[index] for index in sorted(self._items)]
        self.stop_reason = stop_reason_of(response, has_calls=bool(self._calls))
        usage = usage_of(response["usage"]) if response.get("usage") else None
        self.used = token_counts(usage) if usage else None
        return Delta(
            stop_reason=self.stop_reason,
            usage=usage,
            model=response.get("model") or "",
            extra=extra_of(items) or None,
        )

    def finish(self) -> Delta | None:
        return None


def _server_error(error: JsonValue) -> ProviderError:
    """Convert an error that the server reported during a stream to a `ProviderError`.

    If the error code is unknown, the error has the status 500, so that acorn may retry the request.
    """
    details = provider_error(error)
    return ProviderError(str(details), details.status or 500)
