"""The model of the port that asks a provider through LiteLLM.

LiteLLM is asked for one thing: translate a request, send it once, and translate what comes back. What a model
turns out not to take, a default temperature or a forced tool, is remembered for the process. Retries are not
made here but around it, by `models/retrying.py`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from pydantic_core import from_json

from acorn._formats.json import copy_json
from acorn._formats.redact import redact
from acorn.errors import DeclarationError, ModelError
from acorn.models.failures import (
    LATE,
    Refusals,
    as_taken,
    causes,
    clean,
    droppable,
    secrets_of,
    speaks_of,
    strict_by_user,
)
from acorn.models.lanes.lane import BLOCKS, ITEMS, is_anthropics, is_openais
from acorn.models.lanes.openai_shared import never_reasons
from acorn.models.litellm.library import (
    is_loaded,
    is_unknown,
    known_params,
    library,
    may_have_keys,
    provider_of,
    takes_client,
    unheard,
    words_for_unknown,
)
from acorn.models.litellm.translate import (
    LiteLLMStreamReader,
    advice,
    anthropic_tool,
    cache_points,
    fit_request,
    is_bad_request,
    is_too_long,
    lost,
    on_the_wire,
    provider_text,
    read_response,
    with_blocks,
    with_documents,
    within,
)
from acorn.models.litellm.transport import RawStream, http_client
from acorn.models.port import (
    PRICES,
    Delta,
    ModelRequest,
    ModelResponse,
    Price,
    RequestNotSupportedError,
    ResendError,
    price_in,
)
from acorn.models.providers import check_key, own_address, provider_by_name
from acorn.models.retry import TIMEOUT, connect_seconds, retry_after, seconds_of
from acorn.types import JsonObject

# What of a model dict is not LiteLLM's business, or not the user's; a request says what counts of the last line.
_OURS = (
    *("model", "id", "timeout", "request_timeout", "lane"),
    *("num_retries", "retry_delay", "max_retries", *PRICES),
    *("temperature", "max_tokens", "max_completion_tokens"),
)
_STREAMED: JsonObject = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass
class _LiteLLMAttempt:
    """One request under way; what fails inside of it is a `ModelError`."""

    model: LiteLLMModel
    request: ModelRequest
    left_out: set[str] = field(init=False)
    """What it found the model not to take."""
    outer: BaseException | None = field(default_factory=sys.exception)
    """What the caller was handling when it began: no cause of what happens here."""

    def __post_init__(self) -> None:
        self.left_out = set() if self.request.left_out is None else self.request.left_out
        for medium in self.request.media:
            if words := lost(medium, self.model.provider, self.model.name):
                raise RequestNotSupportedError(
                    f"`{self.model.name}` was not asked. {words}", provider=self.model.provider
                )

    def __enter__(self) -> _LiteLLMAttempt:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ModelError):
            raise self.model._error(error, self) from error


class LiteLLMModel:
    """One model of one provider, as a model dict describes it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.name: str = config.get("model") or config["id"]
        if not is_loaded() and is_unknown(self.name, config):  # once it is loaded, only it knows what it was taught
            raise DeclarationError(words_for_unknown(self.name))
        self._arguments = {key: value for key, value in config.items() if key not in _OURS}
        if address := self._arguments.pop("base_url", None) or self._arguments.get("api_base"):
            self._arguments["api_base"] = str(address).rstrip("/")  # the name that works with every provider
        self._config = config
        timeout = config.get("timeout", config.get("request_timeout", TIMEOUT))
        self._seconds: Any = timeout if hasattr(timeout, "as_dict") else seconds_of(timeout)
        """Seconds, or None for no end, or an object of httpx's."""
        self._refusals = Refusals(self.name, self._arguments)

    def __repr__(self) -> str:
        return f"LiteLLMModel({self.name!r})"

    # What it can do

    @property
    def takes_strict(self) -> bool:
        if self._known_provider == "azure":
            return True
        return self._known_provider == "openai" and own_address("openai", self._config) is None

    def takes_tool(self, tool: Mapping[str, Any]) -> bool:
        provider = self._known_provider
        if provider == "anthropic":
            return is_anthropics(tool)
        # What OpenAI's Responses have run, LiteLLM forgets, and of Gemini's tools it sends none beside functions; of
        # other servers nobody knows.
        is_chat = provider == "openai" and "/responses/" not in self.name
        return is_chat and is_openais(tool) and own_address("openai", self._config) is not None

    @property
    def _known_provider(self) -> str:
        """The provider, as far as it can be told without LiteLLM, which takes long to load."""
        return self._declared_provider or provider_by_name(self.name)

    def can_force_tool(self, request: ModelRequest) -> bool:
        if "tool_choice" in self._refusals.known:
            return False
        if self.thinks and "claude" in self.name:  # Anthropic takes no forced choice while it thinks
            return False
        self._check_key()
        known = known_params(self.name, self._declared_provider)
        return (
            known is None or "tool_choice" in known or "tool_choice" in self._arguments.get("allowed_openai_params", ())
        )

    @property
    def thinks(self) -> bool:
        thinking, effort = self._arguments.get("thinking"), self._arguments.get("reasoning_effort")
        effort = effort or (self._arguments.get("reasoning") or {}).get("effort")
        is_off = isinstance(thinking, dict) and thinking.get("type") == "disabled"
        return (bool(thinking) and not is_off) or effort not in (None, "", "none")

    def price(self) -> Price | None:
        return self._price

    @cached_property
    def _price(self) -> Price | None:
        if (given := price_in(self._config)) is not None:
            return given
        self._check_key()
        try:
            known = library().get_model_info(self.name)
        except Exception:  # not in the table
            return None
        if known.get("input_cost_per_token") is None:
            return None
        return Price(float(known["input_cost_per_token"]), float(known.get("output_cost_per_token") or 0))

    @property
    def _has_price(self) -> bool:
        return price_in(self._config) is not None

    def _check_key(self) -> None:
        """Before LiteLLM is loaded, which takes seconds: say that there is no key, where that is certain."""
        if not may_have_keys():
            check_key(self.name, self._known_provider, self._config)

    # Asking it

    def prepare(self) -> None:
        """Load what takes long, so that a request is sent when it is counted."""
        self._check_key()
        library()

    def complete(self, request: ModelRequest) -> ModelResponse:
        with _LiteLLMAttempt(self, request) as attempt:
            return self._response(self._once(attempt), request)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        with _LiteLLMAttempt(self, request) as attempt:
            return self._response(await self._aonce(attempt), request)

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        reader, until = LiteLLMStreamReader(priced=not self._has_price), _end_of(request)
        with _LiteLLMAttempt(self, request) as attempt:
            with closing(RawStream(self._once(attempt, **_STREAMED), until, self._arguments)) as raw:
                for chunk in raw:
                    yield from reader.read(chunk, raw.finish_reason)
            yield from reader.end(raw.finish_reason, raw.refusal)
        self._refusals.check_forced(request.forced_tool, reader.called, reader.stop_reason)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        reader, until = LiteLLMStreamReader(priced=not self._has_price), _end_of(request)
        with _LiteLLMAttempt(self, request) as attempt:
            async with aclosing(RawStream(await self._aonce(attempt, **_STREAMED), until, self._arguments)) as raw:
                async for chunk in raw:
                    for delta in reader.read(chunk, raw.finish_reason):
                        yield delta
            for delta in reader.end(raw.finish_reason, raw.refusal):
                yield delta
        self._refusals.check_forced(request.forced_tool, reader.called, reader.stop_reason)

    def _once(self, attempt: _LiteLLMAttempt, **how: Any) -> Any:
        """One request, sent again only to leave out what the model will not take."""
        self._check_key()
        while True:
            try:
                with unheard(self._arguments):
                    raw = library().completion(**self._call(attempt), **how)
            except Exception as error:
                self._learn_or_raise(error, attempt)
            else:
                self._refusals.remember(attempt.left_out)
                return raw

    async def _aonce(self, attempt: _LiteLLMAttempt, **how: Any) -> Any:
        self._check_key()
        while True:
            try:
                client = await self._client()
                with unheard(self._arguments):
                    raw = await library().acompletion(**self._call(attempt), **how, **client)
            except Exception as error:
                self._learn_or_raise(error, attempt)
            else:
                self._refusals.remember(attempt.left_out)
                return raw

    async def _client(self) -> JsonObject:
        """Our own HTTP client where LiteLLM takes one: its async one sends twice when a connection breaks."""
        is_free = {"client", "ssl_verify", "shared_session"}.isdisjoint(self._arguments)
        return {"client": await http_client()} if is_free and takes_client(self.provider) else {}

    def _call(self, attempt: _LiteLLMAttempt) -> JsonObject:
        left_out = self._refusals.known | attempt.left_out
        request = as_taken(attempt.request, left_out)
        call: JsonObject = {"temperature": request.temperature, "max_tokens": request.max_tokens}
        call = {name: value for name, value in call.items() if name in request.declared or name not in left_out}
        if "max_completion_tokens" in self._config and "max_tokens" in call:
            call["max_completion_tokens"] = call.pop("max_tokens")  # the name that the user knows the model to take
        # LiteLLM writes into what it is given: metadata, content parts, the schemas of tools.
        call |= copy_json(self._fitting)
        call |= {
            "model": self.name,
            "messages": self._messages(request),
            **({"tools": self._tools(request)} if request.tools else {}),
            "max_retries": 0,
            "timeout": self._timeout if request.timeout is None else within(self._timeout, request.timeout),
            "_skip_mcp_handler": True,  # without it LiteLLM walks all messages for MCP references
        }
        if request.forced_tool and "tool_choice" not in left_out:
            call["tool_choice"] = {"type": "function", "function": {"name": request.forced_tool}}
        if request.is_auto_cached and self.provider == "anthropic" and "cache_control" not in left_out:
            call.setdefault("cache_control", {"type": "ephemeral"})
        if request.cache_points:
            call["cache_control_injection_points"] = cache_points(request)
        return call

    @cached_property
    def _fitting(self) -> JsonObject:
        return fit_request(self._arguments, self.provider)

    def _messages(self, request: ModelRequest) -> list[JsonObject]:
        messages: list[JsonObject] = _own(request.messages, request.messages_json)
        if self.provider == "anthropic":
            messages = [
                with_blocks(message) if message.get(BLOCKS) else with_documents(message) for message in messages
            ]
        for name in self._unknown_thoughts:
            for message in messages:  # another model's, from before a change of models
                message.pop(name, None)
        return messages

    def _tools(self, request: ModelRequest) -> list[JsonObject]:
        tools: list[JsonObject] = _own(request.tools, request.tools_json)
        if self.provider == "anthropic":
            return [anthropic_tool(each) if each.get("function", {}).get("strict") else each for each in tools]
        return tools

    @cached_property
    def _unknown_thoughts(self) -> list[str]:
        """Fields of a message that the provider would not know."""
        # Claude reads its signed blocks wherever it is hosted; of a model that goes by an ARN nobody knows.
        is_claude = self.provider == "anthropic" or "claude" in self.name or "arn:" in self.name
        unknown = [BLOCKS, ITEMS] if is_claude else ["thinking_blocks", BLOCKS, ITEMS]
        takes_items = "/responses/" in self.name and not never_reasons(self.name)
        return unknown if takes_items else [*unknown, "reasoning_items"]

    @cached_property
    def _timeout(self) -> Any:
        import httpx

        whole = self._seconds
        return whole if isinstance(whole, httpx.Timeout) else httpx.Timeout(whole, connect=connect_seconds(whole))

    # Reading the answer

    def _response(self, raw: Any, request: ModelRequest) -> ModelResponse:
        if not raw.choices:
            raise ModelError(f"`{self.name}` answered with nothing in it.", provider=self.provider)
        response = read_response(raw)
        response.model = response.model or self.name
        if not self._has_price:  # the loop counts by a price that was given
            response.cost = (getattr(raw, "_hidden_params", None) or {}).get("response_cost")
        self._refusals.check_forced(
            request.forced_tool, {made.name for made in response.tool_calls}, response.stop_reason
        )
        return response

    # Failing

    @property
    def _declared_provider(self) -> str | None:
        return self._arguments.get("custom_llm_provider")

    @cached_property
    def provider(self) -> str:
        """The provider's name as LiteLLM spells it."""
        return provider_of(self.name, self._declared_provider, self._arguments.get("api_base"))

    def _learn_or_raise(self, error: Exception, attempt: _LiteLLMAttempt) -> None:
        """Return where the same request without a refused parameter may work; raise `ModelError` otherwise."""
        if is_bad_request(error) and not is_too_long(error):
            text, set_by_user = str(error), self._set_by_user(attempt.request)
            for name, mark in droppable(attempt.request, set_by_user):
                if speaks_of(text, name) and mark not in attempt.left_out | self._refusals.known:
                    attempt.left_out.add(mark)
                    if attempt.request.left_out is not None:
                        raise ResendError(f"`{self.name}` does not take `{name}`", status=400)
                    return
        else:
            self._refusals.remember(attempt.left_out)
        raise self._error(error, attempt) from error

    def _set_by_user(self, request: ModelRequest) -> set[str]:
        """What the user has set, one way or the other."""
        found = {*request.declared, *self._arguments} - {"strict"}
        return found | {"strict"} if strict_by_user(request) else found

    def _error(self, error: Exception, attempt: _LiteLLMAttempt) -> ModelError:
        secrets = secrets_of(self._config, attempt.request)
        chain = causes(error, attempt.outer)
        clean(chain, secrets)
        wire = on_the_wire(chain)
        text = "" if wire.trouble == LATE else redact(provider_text(error), secrets)
        words = filter(None, (text, advice(error, wire, text, self._set_by_user(attempt.request), self.name)))
        if "LLM Provider NOT provided" in text:
            words = filter(None, (words_for_unknown(self.name),))
        what = f" ({wire.what})" if wire.what else ""
        return ModelError(
            f"`{self.name}` failed{what}: {' '.join(words)}".removesuffix(": "),
            provider=self.provider,
            status=wire.status,
            retryable=wire.may_pass,
            retry_after=retry_after(wire.headers.get("retry-after")),
        )


def _end_of(request: ModelRequest) -> float | None:
    """The reading of the clock at which the time of a request that begins now is up."""
    return None if request.timeout is None else monotonic() + request.timeout


def _own(value: Any, written: Callable[[], bytes] | None) -> Any:
    """A copy to give away. JSON that was written already is kept, and reading it is the quickest way to copy."""
    return copy_json(value) if written is None else from_json(written())
