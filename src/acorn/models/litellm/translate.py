"""Between the words of our port and the shapes that LiteLLM takes and gives, which are OpenAI's.

Called by the LiteLLM adapter alone; nothing here asks or waits.

What LiteLLM, or the provider behind it, would lose without a word, or fetch by itself. Seen in what it sends.

What a failed request says: its true status, the provider's words, what to do, and no secret.

LiteLLM's types and statuses are guesses at times; what httpx saw is in the chain of causes. Called by the
adapter alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from acorn.models import failures
from acorn.models.failures import BROKEN, GARBLED, LATE, FailureDetails
from acorn.models.lanes.anthropic_messages import block_of
from acorn.models.lanes.lane import BLOCKS, blocks_of, marks, sent_blocks
from acorn.models.litellm.library import library
from acorn.models.port import CallDelta, Delta, ModelRequest, ModelResponse, RawCall
from acorn.models.request_body import SentMedium, no_kind, no_url
from acorn.types import JsonObject, Usage

_STOPS = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def fit_request(arguments: Mapping[str, Any], provider: str) -> JsonObject:
    """The user's arguments, with those that LiteLLM's own HTTP code loses or garbles in a form that it does not."""
    found = dict(arguments)
    headers: dict[str, str] = {}
    if provider == "openai":
        names = ("OPENAI_ORGANIZATION", "OPENAI_ORG_ID")
        organization = found.pop("organization", None) or next(filter(None, map(os.environ.get, names)), None)
        headers = {"OpenAI-Organization": organization} if organization else {}
    # By the name of `extra_headers` some versions put them into the body as well, with the key.
    headers |= (found.pop("headers", None) or {}) | (found.pop("extra_headers", None) or {})
    if headers:
        found["headers"] = headers
    for name, value in headers.items():
        if provider == "openai" and name.lower() == "authorization" and value.startswith("Bearer "):
            found["api_key"] = value.removeprefix("Bearer ")  # which would be written over the header
    if provider == "anthropic":
        found |= found.pop("extra_body", None) or {}
    return found


def within(timeout: Any, left: float) -> Any:
    """A timeout of httpx's that allows no more than is left."""
    parts = {name: left if part is None else min(part, left) for name, part in timeout.as_dict().items()}
    return type(timeout)(**{name: max(0.001, part) for name, part in parts.items()})


def anthropic_tool(tool: Mapping[str, Any]) -> JsonObject:
    """A strict tool as Anthropic has it; in OpenAI's form LiteLLM forgets that it is strict."""
    function = tool["function"]
    described = {"description": function["description"]} if function.get("description") else {}
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "custom", "name": function["name"], **described, "input_schema": schema, "strict": True}


def cache_points(request: ModelRequest) -> list[JsonObject]:
    """LiteLLM counts from the system message on, we from the message behind it."""
    return [{"location": "message", "index": at, "control": mark} for at, mark in marks(request).items()]


def read_response(raw: Any) -> ModelResponse:
    """A whole answer; it has a choice."""
    choice = raw.choices[0]
    message = _reasoning_text(choice.message)
    extra: JsonObject = {}
    specific = message.get("provider_specific_fields") or {}
    # Without a signature nobody takes one back.
    thoughts = [
        dict(block) for block in message.get("thinking_blocks") or () if block.get("signature") or "data" in block
    ]
    made = message.get("tool_calls") or []
    uses = [_use(call.id, call.function.name, call.function.arguments) for call in made if _is_hosted(call.id)]
    if uses:
        extra[BLOCKS] = blocks_of(thoughts, uses, _results(specific), message.get("content") or "")
    elif thoughts:
        extra["thinking_blocks"] = thoughts
    if items := _reasoning_items(message):
        extra["reasoning_items"] = items
    return ModelResponse(
        content=message.get("content") or "",
        tool_calls=[
            RawCall(call.id, _own_name(call.function.name), call.function.arguments or "")
            for call in made
            if not _is_hosted(call.id)
        ],
        stop_reason=_STOPS.get(choice.finish_reason, "stop"),
        usage=_usage(getattr(raw, "usage", None)),
        model=getattr(raw, "model", None) or "",
        reasoning=message.get("reasoning_content"),
        refusal=message.get("refusal") or specific.get("refusal"),
        extra=extra,
    )


class LiteLLMStreamReader:
    """Chunks to deltas."""

    def __init__(self, *, priced: bool) -> None:
        self._priced = priced
        """Whether LiteLLM knows what it costs."""
        self._thought: list[str] = []
        """The thinking that is not signed yet."""
        self._blocks: list[JsonObject] = []
        """Thinking blocks to send back."""
        self._items: list[JsonObject] = []
        """The same, as OpenAI's Responses have them."""
        self._text: list[str] = []
        self._hosted: list[list[str]] = []
        """Calls of tools that the provider has run: id, name and arguments in pieces."""
        self._open: dict[int, list[str]] = {}
        """Those of them that may grow, by their index."""
        self._specific: JsonObject = {}
        self.called = ""
        """The names of the tools that were called, one behind the other: a name may come in pieces."""
        self.stop_reason = ""

    def read(self, chunk: Any, finish_reason: str | None) -> Iterator[Delta]:
        """What a chunk of a stream brings; the reason is the provider's own, None while it has given none."""
        usage = getattr(chunk, "usage", None)
        choice = chunk.choices[0] if chunk.choices else None
        if choice is not None and choice.finish_reason and finish_reason is None:
            raise ConnectionError("the stream broke off before the answer was complete.")
        found = Delta(
            model=getattr(chunk, "model", None) or "",
            usage=_usage(usage) if usage is not None else None,
            stop_reason=_STOPS.get(choice.finish_reason, "stop") if choice and choice.finish_reason else None,
        )
        if self._priced and isinstance(cost := getattr(usage, "cost", None), float):
            found.cost = cost
        if choice is not None:
            self._read_message(_reasoning_text(choice.delta), found)
        self.stop_reason = found.stop_reason or self.stop_reason
        if found.content or found.reasoning or found.calls or found.stop_reason or found.usage:
            yield found

    def _read_message(self, message: Mapping[str, Any], found: Delta) -> None:
        found.content = message.get("content") or ""
        found.reasoning = message.get("reasoning_content") or ""
        for block in message.get("thinking_blocks") or []:
            self._read_thought(block)
        self._items = _reasoning_items(message) or self._items
        self._text += [found.content] if found.content else []
        self._specific.update(message.get("provider_specific_fields") or {})
        found.calls = tuple(
            CallDelta(part.index, part.id, _own_name(part.function.name), part.function.arguments or "")
            for part in message.get("tool_calls") or []
            if not self._is_hosted(part)
        )
        self.called += "".join(part.name for part in found.calls if part.name)

    def _is_hosted(self, part: Any) -> bool:
        """Whether a piece is of a call that the provider answers itself, and if so keep it."""
        if _is_hosted(part.id):
            self._open[part.index] = [part.id, part.function.name or ""]
            self._hosted.append(self._open[part.index])
        elif part.id:
            self._open.pop(part.index, None)
        if (call := self._open.get(part.index)) is None:
            return False
        call.append(part.function.arguments or "")
        return True

    def _read_thought(self, block: Any) -> None:
        """Thinking comes in pieces; the signature comes behind it, with all of it once more or with nothing."""
        text, signature = block.get("thinking") or "", block.get("signature")
        if block.get("type") == "redacted_thinking":
            self._blocks.append(dict(block))
        elif signature:
            said = "".join(self._thought)
            whole = text if text.startswith(said) else said + text
            self._blocks.append({"type": "thinking", "thinking": whole, "signature": signature})
            self._thought = []
        else:
            self._thought.append(text)

    def end(self, finish_reason: str | None, refusal: str) -> Iterator[Delta]:
        """What is left to tell when a stream has ended."""
        if not self.stop_reason:
            self.stop_reason = _STOPS.get(finish_reason or "", "stop")
            yield Delta(stop_reason=self.stop_reason)
        if refusal:
            yield Delta(refusal=refusal)
        if self._hosted:
            uses = [_use(id, name, "".join(pieces)) for id, name, *pieces in self._hosted]
            blocks = blocks_of(self._blocks, uses, _results(self._specific), "".join(self._text))
            yield Delta(extra={BLOCKS: blocks})
        elif self._blocks:
            yield Delta(extra={"thinking_blocks": self._blocks})
        if self._items:
            yield Delta(extra={"reasoning_items": self._items})


def with_blocks(message: Mapping[str, Any]) -> JsonObject:
    """A message in which the provider has run a tool, as LiteLLM takes it: calls of ours stay beside its blocks."""
    content = message.get("content")
    said = [{"type": "text", "text": content}] if isinstance(content, str) and content.strip() else []
    blocks = sent_blocks(message, said, [])
    return {
        **{key: value for key, value in message.items() if key not in (BLOCKS, "thinking_blocks")},
        "content": blocks,
    }


def with_documents(message: JsonObject) -> JsonObject:
    """A message whose files are as Anthropic has them: LiteLLM sends all as PDF is sent, and none by its URL."""
    content = message.get("content")
    if not isinstance(content, list) or all(part.get("type") != "file" for part in content):
        return message
    return {**message, "content": [block_of(part) if part.get("type") == "file" else part for part in content]}


def _is_hosted(call_id: Any) -> bool:
    return isinstance(call_id, str) and call_id.startswith("srvtoolu_")


def _use(call_id: str, name: str, arguments: str | None) -> JsonObject:
    try:
        given = from_json(arguments or "{}")
    except ValueError:  # it was broken off
        given = {}
    return {"type": "server_tool_use", "id": call_id, "name": name, "input": given}


def _results(specific: Mapping[str, Any]) -> list[JsonObject]:
    return [*(specific.get("web_search_results") or ()), *(specific.get("tool_results") or ())]


def _reasoning_items(message: Mapping[str, Any]) -> list[JsonObject]:
    items = message.get("reasoning_items") or []
    return [{key: value for key, value in item.items() if value is not None} for item in items]


def _reasoning_text(message: Any) -> JsonObject:
    """What a message holds. Asking it for what it does not hold is slow: Pydantic words an error each time."""
    return {**vars(message), **(message.model_extra or {})}


def _own_name(name: str | None) -> str:
    # Bedrock's names may not begin with an underscore; LiteLLM puts a letter before ours.
    return "__finish__" if name == "a__finish__" else name or ""


def _usage(raw: Any) -> Usage:
    def read(*path: str) -> int:
        here: Any = raw
        for name in path:
            here = getattr(here, name, None)
        return int(here or 0)

    return Usage(
        input_tokens=read("prompt_tokens"),
        output_tokens=read("completion_tokens"),
        cached_tokens=read("prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=read("completion_tokens_details", "reasoning_tokens"),
        requests=1,
        # By the name that some versions have, and by the one that others have.
        cache_write_tokens=read("prompt_tokens_details", "cache_write_tokens")
        or read("prompt_tokens_details", "cache_creation_tokens"),
    )


_ALL = ("image", "audio", "file")
_LOSES = {
    "anthropic": ("audio",),
    "mistral": ("audio",),
    "codestral": ("audio",),
    "ollama": ("audio", "file"),
    "ollama_chat": ("audio", "file"),
    "azure_ai": ("file",),
    **dict.fromkeys(("deepseek", "sambanova", "publicai", "docker_model_runner"), _ALL),
}
_HEARS = ("openai", "azure", "openrouter", "gemini", "vertex_ai")
_READS_URLS = ("openai", "azure", "openrouter", "anthropic", "mistral")
"""LiteLLM hands them the URL of an image; for others it fetches the image, from this machine."""


def lost(medium: SentMedium, provider: str, model: str) -> str | None:
    """Why a medium cannot be sent; None where it can."""
    if medium.kind in _LOSES.get(provider, ()):
        return no_kind(medium)
    if medium.kind == "audio" and "responses/" in model:  # it would send the base64 as text
        return no_kind(medium)
    if medium.kind == "audio" and provider not in _HEARS and not _is_like_openai(provider):
        return no_kind(medium)
    if medium.url is None or medium.kind not in _ALL:
        return None
    if medium.kind != "image":
        return None if (medium.kind, provider) == ("file", "anthropic") else no_url(medium)
    # For Claude it fetches what is no `https`.
    is_claude = provider == "anthropic" or (provider == "azure_ai" and "claude" in model)
    is_fetched = provider not in _READS_URLS and not _is_like_openai(provider)
    if is_fetched or (is_claude and medium.url.lower().startswith("http://")):
        return no_url(medium, f"For `{model}` LiteLLM would fetch the URL of an image from this machine")
    return None


def _is_like_openai(provider: str) -> bool:
    return provider in library().openai_compatible_providers


def on_the_wire(chain: list[BaseException]) -> FailureDetails:
    """The HTTP status and headers as they came, or how the connection failed."""
    import httpx

    for cause in chain:
        if isinstance(cause, httpx.HTTPStatusError):
            return FailureDetails(cause.response.status_code, cause.response.headers)
    for cause in chain:
        if isinstance(cause, httpx.TimeoutException):
            return FailureDetails(trouble=LATE)
        if isinstance(cause, httpx.TransportError | ConnectionError):
            return FailureDetails(trouble=BROKEN)
    kind, status = type(chain[0]).__name__, getattr(chain[0], "status_code", None)
    if kind == "Timeout":
        return FailureDetails(trouble=LATE)
    if isinstance(status, int) and kind in _HONEST:
        return FailureDetails(status, getattr(chain[0], "litellm_response_headers", None) or {})
    if kind == "MidStreamFallbackError":  # LiteLLM's word for a provider that says within a stream what went wrong
        for cause in chain[1:]:
            if any(base.__name__ == "BaseLLMException" for base in type(cause).__mro__):
                return FailureDetails(getattr(cause, "status_code", None))
    is_garbled = any(isinstance(cause, _STUMBLES) for cause in chain) or any(word in str(chain[0]) for word in _STRANGE)
    return FailureDetails(trouble=GARBLED if is_garbled and not is_bad_request(chain[0]) else "")


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
    return type(error).__name__ == "ContextWindowExceededError" or failures.is_too_long(str(error))


def advice(error: Exception, wire: FailureDetails, text: str, set_by_user: Collection[str], name: str) -> str:
    """What the user, who has set some parameters, can do about it; "" where nobody knows."""
    kind = type(error).__name__
    is_bad = is_bad_request(error)
    if wire.trouble != LATE and not is_too_long(error):
        if kind == "UnsupportedParamsError" and "'tools'" in text:
            return "If the model can call tools, say so in its dict: `allowed_openai_params: ['tools', 'tool_choice']`."
        if kind == "UnsupportedParamsError" and not failures.unwanted(text, set_by_user):
            return "Remove it from the model dict; if the model does take it, name it in `allowed_openai_params` there."
        if kind == "LiteLLMUnknownProvider" or "provider not provided" in text.lower():
            return failures.WRONG_ID.format(name)
    return failures.advice(
        wire,
        text,
        set_by_user,
        name,
        is_bad_request=is_bad,
        is_too_long=is_too_long(error),
        is_filtered=kind == "ContentPolicyViolationError",
    )
