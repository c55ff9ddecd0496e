"""The lane for OpenAI's Responses: `openai/responses/<model>`.

Our messages are those of chat completions: each becomes items of the input, and what was written for one request is
kept for the next. Nothing is left with the provider. What a model that reasons has thought comes back sealed, and is
sent along with the conversation: its items are kept in the assistant message as `reasoning_items`, each in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic_core import to_json

from acorn.models.lanes.lane import (
    ADDRESS,
    OURS,
    PRICES,
    ConnectionLostError,
    ProviderError,
    StreamReader,
    is_openais,
    knows_keys,
)
from acorn.models.lanes.native import NativeModel
from acorn.models.lanes.openai_shared import (
    BETWEEN,
    Heads,
    call_of,
    extra_of,
    items_of,
    message_of,
    never_reasons,
    openai_address,
    provider_error,
    raise_if_failed,
    reasons,
    sampling,
    stop_reason,
    takes_effort,
    thought_text,
    tokens_of,
    usage_of,
)
from acorn.models.port import CallDelta, Delta, ModelRequest, ModelResponse
from acorn.models.providers import Tokens, own_address
from acorn.models.request_body import common_id, no_kind
from acorn.types import JsonObject

_SETTINGS = (
    *("top_p", "top_logprobs", "user", "safety_identifier", "store", "include", "truncation", "prompt_cache_key"),
    *("parallel_tool_calls", "max_tool_calls", "reasoning", "text"),
)
_KNOWN = frozenset(
    (
        *(*OURS, *PRICES, *ADDRESS, *_SETTINGS),
        *("reasoning_effort", "response_format", "tool_choice", "extra_body", "organization"),
    )
)
_PREFIX = "openai/responses/"
_SEALED = "reasoning.encrypted_content"


def knows(config: Mapping[str, Any]) -> bool:
    """Whether everything in a model dict is something that this lane knows."""
    asks_for_effort = "reasoning_effort" in config or "reasoning" in config
    return knows_keys(config, _KNOWN) and (not asks_for_effort or takes_effort(_name(config)))


def _name(config: Mapping[str, Any]) -> str:
    return str(config.get("model") or config.get("id")).removeprefix(_PREFIX)


def make(config: Mapping[str, Any]) -> NativeModel:
    return NativeModel(config, OpenAIResponses(config))


class OpenAIResponses:
    """How Responses are written and read."""

    provider = "openai"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.name = _name(config)
        self._config = config
        self._settings = _settings(config, self.name)
        self.thinks = (self._settings.get("reasoning") or {}).get("effort") not in (None, "", "none")
        self._is_stored = self._settings.get("store") is not False
        self._heads = Heads(self._settings_of)
        self._written: list[tuple[JsonObject, bytes]] = []
        """The messages of the last request, each with the items it became.

        Set as a whole: a model may serve many conversations at once, each from its thread.
        """
        self._tools: tuple[object, bytes] = (None, b"")

    def can_force_tool(self) -> bool:
        return True

    def takes_tool(self, tool: Mapping[str, Any]) -> bool:
        return is_openais(tool)

    def address(self) -> tuple[str, dict[str, str]]:
        return openai_address(self._config, "responses")

    # Writing

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes:
        for medium in request.media:
            if medium.kind == "audio":
                raise ConnectionLostError(no_kind(medium))
        instructions, written = self._input(request.messages)
        parts = [self._heads.of(request, left_out, is_stream), b'"input":[%s]' % written]
        if instructions:
            parts.append(b'"instructions":' + to_json(instructions))
        if request.tools:
            parts.append(b'"tools":' + self._tools_of(request))
        return b",".join(parts) + b"}"

    def _settings_of(self, request: ModelRequest, left_out: Collection[str], is_stream: bool) -> JsonObject:
        made = {"model": self.name, **sampling(request, left_out, self.name, "max_output_tokens"), **self._settings}
        if request.forced_tool and "tool_choice" not in left_out:
            made["tool_choice"] = {"type": "function", "name": request.forced_tool}
        if is_stream:
            made["stream"] = True
        return made

    def _tools_of(self, request: ModelRequest) -> bytes:
        known, written = self._tools
        if known is not request.tools:
            written = to_json([_tool(each["function"]) if "function" in each else each for each in request.tools])
            self._tools = (request.tools, written)
        return written

    def _input(self, messages: list[JsonObject]) -> tuple[str, bytes]:
        """What the system says first, as instructions; and the items of the rest."""
        first, said = 0, list[str]()
        while first < len(messages) and messages[first]["role"] == "system":
            if isinstance(content := messages[first].get("content"), str):
                said.append(content)
            first += 1
        known, found, is_same = self._written, list[tuple[JsonObject, bytes]](), True
        is_openai = own_address(self.provider, self._config) is None
        for at, message in enumerate(messages):
            is_same = is_same and at < len(known) and known[at][0] is message
            if is_same:
                found.append(known[at])
            elif at < first and isinstance(message.get("content"), str):
                found.append((message, b""))
            else:
                items = self._items_of(message)
                # Another server may have given the ids itself, and want them back as they were.
                fitting = map(_with_common_id, items) if is_openai else items
                found.append((message, b",".join(map(to_json, fitting))))
        self._written = found
        written = b",".join([text for _, text in found if text])
        if written:
            return " ".join(said), written
        return "", to_json(message_of("system", " ".join(said)))  # it takes no empty input

    def _items_of(self, message: JsonObject) -> Iterator[JsonObject]:
        items = items_of(message, is_stored=self._is_stored)
        return (item for item in items if item["type"] != "reasoning") if never_reasons(self.name) else items

    # Reading

    def read(self, answer: Any) -> tuple[ModelResponse, Tokens | None]:
        raise_if_failed(answer)
        status, items = answer.get("status"), answer["output"]
        if status in ("failed", "cancelled"):
            raise ProviderError(f"The response was {status}.", 500)
        parts = [part for item in items if item["type"] == "message" for part in item.get("content") or ()]
        calls = [call_of(item) for item in items if item["type"] == "function_call"]
        usage = answer.get("usage")
        response = ModelResponse(
            "".join([part.get("text") or "" for part in parts]),
            calls,
            stop_reason(answer, has_calls=bool(calls)),
            usage_of(usage),
            model=answer.get("model") or "",
            reasoning=BETWEEN.join([text for item in items if (text := thought_text(item))]) or None,
            refusal="".join([part.get("refusal") or "" for part in parts]) or None,
            extra=extra_of(items),
        )
        return response, tokens_of(response.usage) if usage else None

    def reader(self) -> StreamReader:
        return _ResponsesReader()


def _with_common_id(item: JsonObject) -> JsonObject:
    return {**item, "call_id": common_id(item["call_id"])} if "call_id" in item else item


# Settings


def _settings(config: Mapping[str, Any], name: str) -> JsonObject:
    made = {key: config[key] for key in _SETTINGS if config.get(key) is not None}
    if effort := config.get("reasoning_effort"):
        made["reasoning"] = effort if isinstance(effort, dict) else {"effort": effort}
    if shape := _shape(config.get("response_format")):
        made["text"] = {**(made.get("text") or {}), "format": shape}
    if (choice := config.get("tool_choice")) is not None:
        made["tool_choice"] = _choice(choice)
    made |= config.get("extra_body") or {}
    if reasons(name):
        # The thoughts must come back to be sent along: by their ids alone they are lost where nothing is stored.
        made = {"store": False, "include": [_SEALED], **made}
    return made


def _shape(wanted: Any) -> JsonObject | None:
    """The format of a text, as chat completions have it."""
    if not wanted or wanted.get("type") != "json_schema":
        return wanted or None
    inner = wanted.get("json_schema") or {}
    return {
        "type": "json_schema",
        "name": inner.get("name", "response_schema"),
        "schema": inner.get("schema", {}),
        "strict": inner.get("strict", False),
    }


def _choice(choice: Any) -> Any:
    inner = choice.get("function") if isinstance(choice, dict) else None
    return {"type": "function", "name": inner["name"]} if inner else choice


def _tool(function: Mapping[str, Any]) -> JsonObject:
    described = {"description": function["description"]} if function.get("description") else {}
    # Where nothing is said of it, what need not be given must be: it then takes a schema for a strict one.
    strict = bool(function.get("strict"))
    return {
        "type": "function",
        "name": function["name"],
        **described,
        "parameters": function.get("parameters"),
        "strict": strict,
    }


class _ResponsesReader:
    """Events to deltas."""

    def __init__(self) -> None:
        self.called = ""
        self.stop_reason = ""
        self.used: Tokens | None = None
        self._items: dict[int, JsonObject] = {}
        """What is done, by its index."""
        self._calls: dict[int, int] = {}
        """By the index of its item: which call it is."""
        self._begun: set[int] = set()
        """Items of which some text came."""
        self._thought: tuple[Any, ...] | None = None
        """Which part of a summary was told last."""

    def read(self, event: Any) -> Delta | None:
        kind, index = event.get("type") or "", event.get("output_index") or 0
        if kind == "response.function_call_arguments.delta":
            self._begun.add(index)
            return Delta(calls=(CallDelta(self._number(index), arguments=event["delta"]),))
        if kind == "response.output_text.delta":
            self._begun.add(index)
            return Delta(content=event["delta"])
        if kind == "response.refusal.delta":
            self._begun.add(index)
            return Delta(refusal=event["delta"])
        if kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            return self._read_thought(index, event)
        if kind == "response.output_item.added" and event["item"]["type"] == "function_call":
            return self._begin_call(index, event["item"])
        if kind == "response.output_item.done":
            return self._end_item(index, event["item"])
        if kind in ("response.completed", "response.incomplete"):
            return self._end(event["response"])
        if kind == "response.failed":
            raise _failed((event.get("response") or {}).get("error"))
        if kind == "error" or event.get("error"):
            raise _failed(event.get("error") or event)
        return None

    def _number(self, index: int) -> int:
        return self._calls.setdefault(index, len(self._calls))

    def _begin_call(self, index: int, item: Any) -> Delta:
        call = call_of(item)
        self.called += call.name
        if call.arguments:
            self._begun.add(index)
        return Delta(calls=(CallDelta(self._number(index), call.id, call.name, call.arguments),))

    def _read_thought(self, index: int, event: Any) -> Delta:
        part = (index, event.get("summary_index"), event.get("content_index"))
        is_next = self._thought not in (None, part)
        self._thought = part
        return Delta(reasoning=f"{BETWEEN}{event['delta']}" if is_next else event["delta"])

    def _end_item(self, index: int, item: Any) -> Delta | None:
        """An item that came in one piece is told now."""
        self._items[index] = item
        if item["type"] == "function_call" and index not in self._begun:
            if index not in self._calls:
                return self._begin_call(index, item)
            return Delta(calls=(CallDelta(self._calls[index], arguments=item.get("arguments") or ""),))
        if item["type"] == "message" and index not in self._begun:
            text = "".join([part.get("text") or "" for part in item.get("content") or ()])
            return Delta(content=text) if text else None
        return None

    def _end(self, answer: Any) -> Delta:
        items = answer.get("output") or [self._items[index] for index in sorted(self._items)]
        self.stop_reason = stop_reason(answer, has_calls=bool(self._calls))
        usage = usage_of(answer["usage"]) if answer.get("usage") else None
        self.used = tokens_of(usage) if usage else None
        return Delta(
            stop_reason=self.stop_reason,
            usage=usage,
            model=answer.get("model") or "",
            extra=extra_of(items) or None,
        )

    def end(self) -> Delta | None:
        return None


def _failed(error: Any) -> ProviderError:
    """What went wrong with a response that had begun; without a code it is the provider's trouble."""
    found = provider_error(error)
    return ProviderError(str(found), found.status or 500)
