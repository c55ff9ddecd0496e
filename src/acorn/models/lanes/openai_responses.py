"""The native lane for OpenAI's Responses API: `openai/responses/<model>`.

acorn's messages have the format of chat completions. This lane converts each message to one or more items, the format
of the Responses API.

acorn asks OpenAI not to store the responses of reasoning models. The reasoning therefore arrives encrypted, and later
requests must contain it. The assistant message stores the encrypted reasoning and its place among the tool calls in the
key `reasoning_items`.

The format of an assistant message cannot represent a response with a hosted tool (a tool that OpenAI runs itself). The
assistant message then also stores all items in their order, in its key `response_items`. If the text or the calls of
the message differ from these items, acorn sends the text and the calls of the message, since the user may have edited
the message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from acorn.models.lanes import lane, openai_chat
from acorn.models.port import CallDelta, Delta, ModelResponse, RawCall
from acorn.models.request import ModelRequest, portable_id
from acorn.types import Content, JsonObject, JsonValue, Message

_ENCRYPTED_REASONING = "reasoning.encrypted_content"


class OpenAIResponses(openai_chat.OpenAILane):
    """The lane for OpenAI's Responses API: it encodes requests and decodes responses."""

    prefix = "openai/responses/"
    setting_keys = (
        *("top_p", "top_logprobs", "user", "safety_identifier", "store", "include", "truncation", "prompt_cache_key"),
        *("parallel_tool_calls", "max_tool_calls", "reasoning", "text"),
    )
    supported_keys = frozenset((*lane.LANE_KEYS, *setting_keys, "reasoning_effort", "tool_choice", "organization"))

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        if effort := config.get("reasoning_effort"):
            self.settings["reasoning"] = effort if isinstance(effort, dict) else {"effort": effort}
        if (choice := config.get("tool_choice")) is not None:
            self.settings["tool_choice"] = _tool_choice(choice)
        self.settings |= config.get("extra_body") or {}
        if openai_chat.is_reasoning_model(self.name):
            # OpenAI does not store these responses, so later requests must contain the encrypted reasoning.
            self.settings = {"store": False, "include": [_ENCRYPTED_REASONING], **self.settings}

    @classmethod
    def supports(cls, config: JsonObject) -> bool:
        sets_effort = "reasoning_effort" in config or "reasoning" in config
        return super().supports(config) and (not sets_effort or openai_chat.supports_effort(cls.model_name(config)))

    def url(self, base: str) -> str:
        return f"{base}/responses"

    @property
    def thinks(self) -> bool:
        reasoning: JsonObject = self.settings.get("reasoning") or {}
        return reasoning.get("effort") not in (None, "", "none")

    def takes_tool(self, tool: JsonObject) -> bool:
        return lane.is_openai_tool(tool)

    # Requests

    def request_settings(self, request: ModelRequest, left_out: Collection[str]) -> JsonObject:
        sampling = openai_chat.sampling_settings(request, left_out, self.name, "max_output_tokens")
        settings = {"model": self.name, **sampling, **self.settings}
        if request.forced_tool and "tool_choice" not in left_out:
            settings["tool_choice"] = {"type": "function", "name": request.forced_tool}
        return settings

    def request_content(self, request: ModelRequest) -> tuple[bytes, list[bytes], bytes]:
        messages, first, instructions = request.messages, 0, list[str]()
        texts = request.encoded(self._items_json)
        while first < len(messages) and messages[first]["role"] == "system":
            if isinstance(content := messages[first].get("content"), str):
                instructions.append(content)
                texts[first] = b""
            first += 1
        system, after = " ".join(instructions), b"]"
        items = list(filter(None, texts))
        if not items:  # OpenAI rejects an empty input.
            items = [to_json(message_item("system", system))]
        elif system:
            after += b',"instructions":' + to_json(system)
        if request.tools:
            after += b',"tools":' + request.tools_json(_tool_json)
        return b',"input":[', items, after

    def _items_json(self, message: Message) -> bytes:
        items = items_of(message, is_stored=self.settings.get("store") is not False)
        if openai_chat.is_non_reasoning_model(self.name):
            items = (item for item in items if item["type"] != "reasoning")
        if not self.has_custom_address:  # A custom server may expect the call ids that it created.
            items = map(_with_portable_id, items)
        return b",".join(map(to_json, items))

    # Responses

    def read(self, response: JsonObject) -> ModelResponse:
        openai_chat.raise_if_failed(response)
        status, items = response.get("status"), response["output"]
        if status in ("failed", "cancelled"):
            raise lane.ProviderError(
                f"The provider ended the response with the status `{status}` and did not report a reason.", 500
            )
        parts = [part for item in items if item["type"] == "message" for part in item.get("content") or ()]
        calls = [call_of(item) for item in items if item["type"] == "function_call"]
        return ModelResponse(
            "".join([part.get("text") or "" for part in parts]),
            calls,
            stop_reason_of(response, has_calls=bool(calls)),
            openai_chat.usage_of(response.get("usage"), "input", "output"),
            model=response.get("model") or "",
            reasoning=PARAGRAPH_BREAK.join([text for item in items if (text := reasoning_text(item))]) or None,
            refusal="".join([part.get("refusal") or "" for part in parts]) or None,
            extra=extra_of(items),
        )

    def stream_reader(self) -> lane.StreamReader:
        return _ResponsesReader()


def _with_portable_id(item: JsonObject) -> JsonObject:
    return {**item, "call_id": portable_id(item["call_id"])} if "call_id" in item else item


# Settings


def _tool_choice(choice: JsonValue) -> JsonValue:
    """Convert a `tool_choice` of the Chat Completions API to a `tool_choice` of the Responses API."""
    function = choice.get("function") if isinstance(choice, dict) else None
    return {"type": "function", "name": function["name"]} if function else choice


def _tool_json(tool: JsonObject) -> bytes:
    if "function" not in tool:
        return to_json(tool)
    function = tool["function"]
    description = {"description": function["description"]} if function.get("description") else {}
    # If `strict` is missing, OpenAI treats the schema as strict and makes every property required.
    strict = bool(function.get("strict"))
    definition = {"name": function["name"], **description, "parameters": function.get("parameters"), "strict": strict}
    return to_json({"type": "function", **definition})


class _ResponsesReader(lane.StreamReader):
    """A decoder that converts the events of one streamed response of the Responses API to deltas."""

    def __init__(self) -> None:
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
        return Delta(
            stop_reason=self.stop_reason,
            usage=openai_chat.usage_of(response["usage"], "input", "output") if response.get("usage") else None,
            model=response.get("model") or "",
            extra=extra_of(items) or None,
        )


def _server_error(error: JsonValue) -> lane.ProviderError:
    """Convert an error that the server reported during a stream to a `ProviderError`.

    If the error code is unknown, the error has the status 500, so that acorn may retry the request.
    """
    details = lane.provider_error(error, openai_chat.STATUSES)
    return lane.ProviderError(str(details), details.status or 500)


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
    if role == "assistant" and message.get(lane.ITEMS_KEY):
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
        image = lane.part_payload(part, "url")
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
    if part.get("type") == "file":
        file, keys = lane.part_payload(part, *_FILE_KEYS), (*_FILE_KEYS, "filename")
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
    stored: list[JsonObject] = message[lane.ITEMS_KEY]
    parts = [part for item in stored if item["type"] == "message" for part in item.get("content") or ()]
    is_same_text = "".join([part.get("text") or "" for part in parts]) == (message.get("content") or "")
    texts = None if is_same_text else [] if text_item is None else [text_item]
    sendable = [item for item in stored if item["type"] != "reasoning" or is_stored or item.get("encrypted_content")]
    return lane.drop_trailing_reasoning(lane.merge_stored(sendable, texts, calls, "call_id"))


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
        return {lane.ITEMS_KEY: stored_items}
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
