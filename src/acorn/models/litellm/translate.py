"""Conversion of acorn's requests to LiteLLM's arguments, and of LiteLLM's responses to acorn's responses.

LiteLLM uses the format of OpenAI's chat completions. Other functions in this module check whether LiteLLM or the
provider supports the media of a request, and find the error message of the provider. This module performs no I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from math import isfinite

from acorn.models.failures import CHECK_MODEL_ID, Attempt, FailureDetails
from acorn.models.lanes.anthropic import blocks_to_send, parse_tool_input, to_block
from acorn.models.lanes.lane import BLOCKS_KEY
from acorn.models.lanes.openai_chat import STOP_REASONS, ChatReader, organization_header, read_completion
from acorn.models.litellm.library import litellm
from acorn.models.port import Delta, ModelResponse, RawCall
from acorn.models.request import SentMedium, unsupported_kind, unsupported_url
from acorn.types import JsonObject, JsonValue

# Requests


def adapt_arguments(arguments: JsonObject, provider: str) -> JsonObject:
    """Return the settings of the model dict in the form in which LiteLLM sends them to the provider without loss."""
    adapted = dict(arguments)
    headers: dict[str, str] = {}
    if provider == "openai":
        headers = organization_header(adapted)
        adapted.pop("organization", None)
    # Some versions of LiteLLM also copy `extra_headers`, which may contain the API key, to the request body.
    headers |= (adapted.pop("headers", None) or {}) | (adapted.pop("extra_headers", None) or {})
    if headers:
        adapted["headers"] = headers
    for name, value in headers.items():
        if provider == "openai" and name.lower() == "authorization" and value.startswith("Bearer "):
            adapted["api_key"] = value.removeprefix("Bearer ")  # LiteLLM overwrites this header with the API key.
    if provider == "anthropic":
        adapted |= adapted.pop("extra_body", None) or {}
    return adapted


def with_anthropic_content(message: JsonObject) -> JsonObject:
    """Return a message for Anthropic, in which the stored blocks of a hosted tool are the content.

    LiteLLM expects this form for hosted tools, which the provider runs itself. The result contains files in Anthropic's
    format, because LiteLLM would send every file as a PDF file, and would not send the URL of a file.
    """
    content: JsonValue = message.get("content")
    if message.get(BLOCKS_KEY):
        text_blocks = [{"type": "text", "text": content}] if isinstance(content, str) and content.strip() else []
        kept = {key: value for key, value in message.items() if key not in (BLOCKS_KEY, "thinking_blocks")}
        return {**kept, "content": blocks_to_send(message, text_blocks, [])}
    if isinstance(content, list):
        content = [to_block(part) if part.get("type") == "file" else part for part in content]
        return {**message, "content": content}
    return message


# Responses


def read_response(response: JsonObject) -> ModelResponse:
    """Convert a complete response to a `ModelResponse`. `response` contains the data of LiteLLM's response object."""
    result, message = read_completion(response), response["choices"][0]["message"]
    specific: JsonObject = message.get("provider_specific_fields") or {}
    result.refusal = result.refusal or specific.get("refusal")
    # Providers reject reasoning without a signature.
    reasoning = [block for block in message.get("thinking_blocks") or () if block.get("signature") or "data" in block]
    hosted = [(str(call.id), call.name, call.arguments) for call in result.tool_calls if _is_hosted(call.id)]
    if hosted:
        result.extra[BLOCKS_KEY] = _guess_blocks(reasoning, hosted, specific, result.content)
    elif reasoning:
        result.extra["thinking_blocks"] = reasoning
    if items := _reasoning_items(message):
        result.extra["reasoning_items"] = items
    result.tool_calls = [
        RawCall(call.id, _original_name(call.name), call.arguments)
        for call in result.tool_calls
        if not _is_hosted(call.id)
    ]
    return result


class LiteLLMStreamReader(ChatReader):
    """A decoder that converts the chunks of one LiteLLM stream to deltas."""

    def __init__(self, *, has_cost: bool) -> None:
        self._has_cost = has_cost
        """Whether the deltas contain the cost that LiteLLM computes."""
        self._unsigned: list[str] = []
        """The fragments of a reasoning text whose signature has not arrived."""
        self._blocks: list[JsonObject] = []
        """The signed reasoning blocks, which later requests must contain."""
        self._items: list[JsonObject] = []
        """The reasoning items of OpenAI's Responses API, which later requests must contain."""
        self._text: list[str] = []
        self._hosted: list[list[str]] = []
        """The hosted tool calls. Each list contains the id, the name and the fragments of the arguments."""
        self._open_hosted: dict[int, list[str]] = {}
        """A dict that maps an index to the hosted tool call whose arguments may still arrive."""
        self._specific: JsonObject = {}
        """The values of `provider_specific_fields` in all chunks."""

    def read_chunk(self, chunk: JsonObject, finish_reason: str | None) -> Delta | None:
        """Convert a chunk to a delta, or return None if the chunk contains nothing new for the response.

        `chunk` contains the data of LiteLLM's object. `finish_reason` is the finish reason that the provider sent, or
        None if it has not arrived yet.
        """
        if chunk.get("choices"):
            choice = chunk["choices"][0]
            if choice.get("finish_reason") and finish_reason is None:
                raise ConnectionError("The stream ended before the response was complete.")
            self._read_message(choice["delta"])
        delta = self.read(chunk)
        if delta is not None:
            self._text.append(delta.content)
            usage: JsonObject = chunk.get("usage") or {}
            cost = usage.get("cost")
            delta.cost = cost_of(cost) if self._has_cost else None
        return delta

    def _read_message(self, message: JsonObject) -> None:
        """Store the parts of a message that become no delta, and remove the calls of hosted tools from the message."""
        for block in message.get("thinking_blocks") or ():
            self._read_reasoning(block)
        self._items = _reasoning_items(message) or self._items
        self._specific.update(message.get("provider_specific_fields") or {})
        message["refusal"] = None  # `last_deltas` returns it.
        calls: list[JsonObject] = message.get("tool_calls") or []
        message["tool_calls"] = [call for call in calls if not self._store_hosted(call)]
        for call in message["tool_calls"]:
            call["function"]["name"] = _original_name(call["function"]["name"])

    def _store_hosted(self, fragment: JsonObject) -> bool:
        """If a fragment belongs to a call of a hosted tool, store the fragment and return True.

        The provider runs a hosted tool itself, so its calls do not become tool calls of the response.
        """
        index, id, function = fragment["index"], fragment.get("id"), fragment["function"]
        if _is_hosted(id):
            self._open_hosted[index] = [str(id), function["name"] or ""]
            self._hosted.append(self._open_hosted[index])
        elif id:
            self._open_hosted.pop(index, None)
        if (call := self._open_hosted.get(index)) is None:
            return False
        call.append(function["arguments"] or "")
        return True

    def _read_reasoning(self, block: JsonObject) -> None:
        """Store a fragment of a reasoning block.

        The last fragment of a block contains the signature, and either the complete reasoning text or no text.
        """
        text, signature = block.get("thinking") or "", block.get("signature")
        if block.get("type") == "redacted_thinking":
            self._blocks.append(dict(block))
        elif signature:
            before = "".join(self._unsigned)
            thinking = text if text.startswith(before) else before + text
            self._blocks.append({"type": "thinking", "thinking": thinking, "signature": signature})
            self._unsigned = []
        else:
            self._unsigned.append(text)

    def last_deltas(self, finish_reason: str | None, refusal: str) -> Iterator[Delta]:
        """Yield the last deltas after the end of the stream, such as the refusal and the stored reasoning."""
        if not self.stop_reason:
            self.stop_reason = STOP_REASONS.get(finish_reason or "", "stop")
            yield Delta(stop_reason=self.stop_reason)
        if refusal:
            yield Delta(refusal=refusal)
        if self._hosted:
            hosted = [(id, name, "".join(pieces)) for id, name, *pieces in self._hosted]
            blocks = _guess_blocks(self._blocks, hosted, self._specific, "".join(self._text))
            yield Delta(extra={BLOCKS_KEY: blocks})
        elif self._blocks:
            yield Delta(extra={"thinking_blocks": self._blocks})
        if self._items:
            yield Delta(extra={"reasoning_items": self._items})


_MAX_COST = 1e6
"""The maximum cost of one response in dollars. A hostile server may report any usage."""


def cost_of(cost: JsonValue) -> float | None:
    """Return the cost that LiteLLM computed of the usage in the response, limited to the range that is possible."""
    return max(0.0, min(cost, _MAX_COST)) if isinstance(cost, float) and isfinite(cost) else None


def _is_hosted(call_id: object) -> bool:
    return isinstance(call_id, str) and call_id.startswith("srvtoolu_")


def _guess_blocks(
    reasoning: Sequence[JsonObject], hosted: Sequence[tuple[str, str, str]], specific: JsonObject, text: str
) -> list[JsonObject]:
    """Return the blocks of a response in their most likely order.

    The real order is unknown because LiteLLM returns the reasoning, the tool uses and the results in separate lists.
    `hosted` contains the id, the name and the arguments of each call of a hosted tool.
    """
    results = [*(specific.get("web_search_results") or ()), *(specific.get("tool_results") or ())]
    blocks: list[JsonObject] = []
    for at, (use_id, name, arguments) in enumerate(hosted):
        blocks += reasoning[at : at + 1]
        blocks.append({"type": "server_tool_use", "id": use_id, "name": name, "input": parse_tool_input(arguments)})
        blocks += [result for result in results if result.get("tool_use_id") == use_id][-1:]
    return [*blocks, *reasoning[len(hosted) :], *([{"type": "text", "text": text}] if text else [])]


def _reasoning_items(message: JsonObject) -> list[JsonObject]:
    items: list[JsonObject] = message.get("reasoning_items") or []
    return [{key: value for key, value in item.items() if value is not None} for item in items]


def _original_name(name: str | None) -> str:
    # Tool names on Bedrock must not begin with an underscore, so LiteLLM adds a letter at the start.
    return "__finish__" if name == "a__finish__" else name or ""


# Unsupported media, as observed in the requests that LiteLLM sends

_ALL_KINDS = ("image", "audio", "file")
"""The kinds of media in a request."""
_LOST_KINDS = {
    "anthropic": ("audio",),
    "mistral": ("audio",),
    "codestral": ("audio",),
    "ollama": ("audio", "file"),
    "ollama_chat": ("audio", "file"),
    "azure_ai": ("file",),
    **dict.fromkeys(("deepseek", "sambanova", "publicai", "docker_model_runner"), _ALL_KINDS),
}
"""A dict that maps a provider to the kinds of media that LiteLLM or the provider does not send to the model."""
_AUDIO_PROVIDERS = ("openai", "azure", "openrouter", "gemini", "vertex_ai")
"""Providers that support audio. Providers with OpenAI's protocol may support it too."""
_IMAGE_URL_PROVIDERS = ("openai", "azure", "openrouter", "anthropic", "mistral")
"""Providers to which LiteLLM sends the URL of an image. For other providers, LiteLLM downloads the image."""


def unsupported_medium(medium: SentMedium, provider: str, model: str) -> str | None:
    """Return an error message if a medium (an image, an audio clip or a file) cannot be sent to a provider.

    Return None if the medium can be sent.
    """
    is_compatible = provider in litellm().openai_compatible_providers
    # To the Responses API, LiteLLM would send the base64 data as text.
    takes_audio = "responses/" not in model and (is_compatible or provider in _AUDIO_PROVIDERS)
    if medium.kind in _LOST_KINDS.get(provider, ()) or (medium.kind == "audio" and not takes_audio):
        return unsupported_kind(medium)
    if medium.url is None or medium.kind not in _ALL_KINDS:
        return None
    if medium.kind != "image":
        return None if (medium.kind, provider) == ("file", "anthropic") else unsupported_url(medium)
    # For Claude, LiteLLM downloads images whose URL is not `https`.
    is_claude = provider == "anthropic" or (provider == "azure_ai" and "claude" in model)
    is_downloaded = provider not in _IMAGE_URL_PROVIDERS and not is_compatible
    if is_downloaded or (is_claude and medium.url.lower().startswith("http://")):
        return unsupported_url(
            medium, f"For `{model}`, LiteLLM would download image URLs on this computer, which acorn does not allow"
        )
    return None


# Failures

_ERROR_PREFIX = re.compile(r"^(?:litellm\.)?(?:\w*(?:Error|Timeout|Exception) ?)+(?::|- )\s*")
_ERROR_SUFFIX = re.compile(
    r"\s*(?:Traceback \(most recent|Original exception: | Handle with `litellm\.|\.? To drop these, set `litellm\.).*",
    re.DOTALL,
)


def provider_message(chain: list[BaseException]) -> str:
    """Return the provider's error message in an exception of LiteLLM, without the text that LiteLLM adds.

    `chain` contains the exception and all its causes. If the exception has no message, its causes may have one.
    """
    texts = (_provider_message(str(text)) for error in chain for text in (error, getattr(error, "message", "")))
    return next(filter(None, texts), "")


def _provider_message(text: str) -> str:
    try:
        body = json.loads(text[text.index("{") : text.rindex("}") + 1])
        inner: JsonValue = body.get("error", body)
        message = inner.get("message") if isinstance(inner, dict) else inner
        if isinstance(message, str) and message:
            return message.strip().rstrip(".") + "."
    except (ValueError, AttributeError, RecursionError):
        pass
    text = _ERROR_SUFFIX.sub("", text)
    while (shorter := _ERROR_PREFIX.sub("", text, count=1)) != text:
        text = shorter
    text = text.strip().rstrip(".")[:500]
    return text and f"{text}."


def is_bad_request(error: BaseException) -> bool:
    """Return True if an exception of LiteLLM means that the provider or LiteLLM rejected the request as invalid."""
    return type(error).__name__ in ("UnsupportedParamsError", "BadRequestError", "UnprocessableEntityError")


def suggest_litellm_fix(error: Exception, failure: FailureDetails, message: str, attempt: Attempt, name: str) -> str:
    """Return a sentence that suggests to the user how to fix a failed request, or "" if acorn has no suggestion."""
    kind = type(error).__name__
    if kind == "UnsupportedParamsError" and "'tools'" in message:
        return "If the model can call tools, add `allowed_openai_params: ['tools', 'tool_choice']` to its model dict."
    if kind == "UnsupportedParamsError" and not attempt.rejected_setting(message):
        return (
            "Remove this parameter from the model dict. If the model does support it, add its name to "
            "`allowed_openai_params` in the model dict."
        )
    if kind == "LiteLLMUnknownProvider":
        return CHECK_MODEL_ID.format(name)
    return attempt.suggest_fix(
        failure,
        message,
        is_bad_request=is_bad_request(error),
        is_too_long=kind == "ContextWindowExceededError",
        is_filtered=kind == "ContentPolicyViolationError",
    )
