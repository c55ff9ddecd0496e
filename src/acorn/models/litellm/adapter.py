"""`LiteLLMModel`, the model class for every provider that acorn reaches through LiteLLM.

LiteLLM converts a request to the provider's format, sends it once, and converts the response. If a model rejects a
default setting, such as the temperature or a forced tool, acorn sends the request again without the setting, and the
process remembers it for later requests. All other retries are in `models/retry.py`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from acorn._base.clock import current_clock
from acorn._formats.json import copy_json
from acorn.errors import DeclarationError, ModelError
from acorn.models.failures import (
    TIMED_OUT,
    FailureDetails,
    RejectedSettings,
    error_chain,
    is_strict_by_user,
    mentions,
    redact_errors,
    redactor_of,
    removable_settings,
    without_rejected_strict,
)
from acorn.models.lanes.lane import BLOCKS_KEY, COMMON_KEYS, ITEMS_KEY, is_anthropic_tool, is_openai_tool
from acorn.models.lanes.openai_shared import is_non_reasoning_model
from acorn.models.litellm.library import (
    find_provider,
    is_loaded,
    is_unknown,
    library,
    may_have_keys,
    supported_params,
    supports_client,
    unknown_model_message,
    without_callbacks,
)
from acorn.models.litellm.translate import (
    LiteLLMStreamReader,
    adapt_arguments,
    anthropic_tool,
    injection_points,
    is_bad_request,
    is_too_long,
    provider_message,
    read_response,
    suggest_litellm_fix,
    unsupported_medium,
    with_blocks,
    with_documents,
)
from acorn.models.port import Delta, ModelResponse, Price, RequestNotSupportedError, ResendError, price_in
from acorn.models.providers import check_key, custom_address, provider_in_id
from acorn.models.request import ModelRequest
from acorn.models.retry import DEFAULT_TIMEOUT, parse_retry_after, parse_timeout
from acorn.types import JsonObject, JsonValue

if TYPE_CHECKING:
    import httpx

    from acorn.models.litellm.transport import RawStream


_STREAM_ARGUMENTS: JsonObject = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass
class _LiteLLMAttempt:
    """A request in progress.

    In its `with` block, every exception is converted to a `ModelError`.
    """

    model: LiteLLMModel
    request: ModelRequest
    left_out: set[str] = field(init=False)
    """The parameters that the model rejected. acorn sends the request again without them."""
    outer_error: BaseException | None = field(default_factory=sys.exception)
    """The exception that the caller was already handling when the request started, or None."""

    def __post_init__(self) -> None:
        self.left_out = set() if self.request.left_out is None else self.request.left_out
        for medium in self.request.media:
            if message := unsupported_medium(medium, self.model.provider, self.model.name):
                raise RequestNotSupportedError(
                    f"The request was not sent to `{self.model.name}`. {message}", provider=self.model.provider
                )

    def __enter__(self) -> _LiteLLMAttempt:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ModelError):
            raise self.model.as_model_error(error, self) from error


class LiteLLMModel:
    """A model that acorn reaches through LiteLLM."""

    def __init__(self, config: JsonObject) -> None:
        self.name: str = config.get("model") or config["id"]
        # A program that has imported LiteLLM may have registered models that are not in the list file.
        if not is_loaded() and is_unknown(self.name, config):
            raise DeclarationError(unknown_model_message(self.name))
        self._arguments = {key: value for key, value in config.items() if key not in COMMON_KEYS}
        if address := self._arguments.pop("base_url", None) or self._arguments.get("api_base"):
            self._arguments["api_base"] = str(address).rstrip("/")  # `api_base` works with every provider.
        self._config = config
        timeout = config.get("timeout", config.get("request_timeout", DEFAULT_TIMEOUT))
        self._configured_timeout: Any = timeout if hasattr(timeout, "as_dict") else parse_timeout(timeout)
        """The timeout in seconds, None for no limit, or an httpx timeout object."""
        self._rejected = RejectedSettings(self.name, self._arguments)

    def __repr__(self) -> str:
        return f"LiteLLMModel({self.name!r})"

    # Properties

    @property
    def takes_strict(self) -> bool:
        if self._provider_without_litellm == "azure":
            return True
        return self._provider_without_litellm == "openai" and custom_address("openai", self._config) is None

    def takes_tool(self, tool: JsonObject) -> bool:
        provider = self._provider_without_litellm
        if provider == "anthropic":
            return is_anthropic_tool(tool)
        # LiteLLM loses the results of the hosted tools of OpenAI's Responses API, and it does not send Gemini's hosted
        # tools together with functions. Other servers may run hosted tools.
        is_chat = provider == "openai" and "/responses/" not in self.name
        return is_chat and is_openai_tool(tool) and custom_address("openai", self._config) is not None

    @property
    def _provider_without_litellm(self) -> str:
        """The provider in the model dict or in the model id, or "" if only LiteLLM knows the provider.

        Unlike `provider`, this property does not load LiteLLM, which takes several seconds.
        """
        return self._declared_provider or provider_in_id(self.name)

    @property
    def _declared_provider(self) -> str | None:
        return self._arguments.get("custom_llm_provider")

    @cached_property
    def provider(self) -> str:
        """The name that LiteLLM uses for the provider of this model.

        The first access loads LiteLLM.
        """
        return find_provider(self.name, self._declared_provider, self._arguments.get("api_base"))

    def can_force_tool(self, request: ModelRequest) -> bool:
        if "tool_choice" in self._rejected.known:
            return False
        if self.thinks and "claude" in self.name:  # Anthropic rejects a forced tool if reasoning is on.
            return False
        self._check_key()
        params = supported_params(self.name, self._declared_provider)
        allowed = self._arguments.get("allowed_openai_params", ())
        return params is None or "tool_choice" in params or "tool_choice" in allowed

    @property
    def thinks(self) -> bool:
        thinking: JsonValue = self._arguments.get("thinking")
        reasoning: JsonObject = self._arguments.get("reasoning") or {}
        effort = self._arguments.get("reasoning_effort") or reasoning.get("effort")
        is_off = isinstance(thinking, dict) and thinking.get("type") == "disabled"
        return (bool(thinking) and not is_off) or effort not in (None, "", "none")

    def price(self) -> Price | None:
        return self._price

    @cached_property
    def _price(self) -> Price | None:
        if (price := price_in(self._config)) is not None:
            return price
        self._check_key()
        try:
            info: JsonObject = library().get_model_info(self.name)
        except Exception:  # The model is not in LiteLLM's price table.
            return None
        if info.get("input_cost_per_token") is None:
            return None
        return Price(float(info["input_cost_per_token"]), float(info.get("output_cost_per_token") or 0))

    @property
    def _has_price(self) -> bool:
        return price_in(self._config) is not None

    def _check_key(self) -> None:
        """Raise `ModelError` if the API key of the provider is certainly missing.

        Callers check the API key before they load LiteLLM, because loading LiteLLM takes several seconds.
        """
        if not may_have_keys():
            check_key(self.name, self._provider_without_litellm, self._config)

    # Sending

    def prepare(self) -> None:
        """Check the API key and load LiteLLM.

        A rate limiter calls this method before it admits a request. Otherwise the loading would delay a request that
        already counts.
        """
        self._check_key()
        library()

    def complete(self, request: ModelRequest) -> ModelResponse:
        with _LiteLLMAttempt(self, request) as attempt:
            return self._read_response(self._send(attempt), request)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        with _LiteLLMAttempt(self, request) as attempt:
            return self._read_response(await self._asend(attempt), request)

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        reader, deadline = LiteLLMStreamReader(has_cost=not self._has_price), _deadline_of(request)
        with _LiteLLMAttempt(self, request) as attempt:
            response = self._send(attempt, **_STREAM_ARGUMENTS)
            raw: RawStream = _transport().RawStream(response, deadline, self._arguments)
            with closing(raw):
                for chunk in raw:
                    yield from reader.read(chunk, raw.finish_reason)
            yield from reader.finish(raw.finish_reason, raw.refusal)
        self._rejected.check_forced(request.forced_tool, reader.called_names, reader.stop_reason)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        reader, deadline = LiteLLMStreamReader(has_cost=not self._has_price), _deadline_of(request)
        with _LiteLLMAttempt(self, request) as attempt:
            response = await self._asend(attempt, **_STREAM_ARGUMENTS)
            raw: RawStream = _transport().RawStream(response, deadline, self._arguments)
            async with aclosing(raw):
                async for chunk in raw:
                    for delta in reader.read(chunk, raw.finish_reason):
                        yield delta
            for delta in reader.finish(raw.finish_reason, raw.refusal):
                yield delta
        self._rejected.check_forced(request.forced_tool, reader.called_names, reader.stop_reason)

    def _send(self, attempt: _LiteLLMAttempt, **stream_arguments: object) -> Any:
        """Send a request.

        If the model rejects a default setting, send the request again without that setting.
        """
        self._check_key()
        while True:
            try:
                with without_callbacks(self._arguments):
                    raw = library().completion(**self._call_arguments(attempt), **stream_arguments)
            except Exception as error:
                self._remember_or_raise(error, attempt)
            else:
                self._rejected.remember(attempt.left_out)
                return raw

    async def _asend(self, attempt: _LiteLLMAttempt, **stream_arguments: object) -> Any:
        self._check_key()
        while True:
            try:
                client = await self._client_argument()
                with without_callbacks(self._arguments):
                    raw = await library().acompletion(**self._call_arguments(attempt), **stream_arguments, **client)
            except Exception as error:
                self._remember_or_raise(error, attempt)
            else:
                self._rejected.remember(attempt.left_out)
                return raw

    async def _client_argument(self) -> JsonObject:
        """Return a dict that passes acorn's HTTP client to LiteLLM, or {} if LiteLLM cannot use the client.

        acorn passes its own client because LiteLLM's client sends a request again if the connection breaks.
        """
        sets_client = not {"client", "ssl_verify", "shared_session"}.isdisjoint(self._arguments)
        if sets_client or not supports_client(self.provider):
            return {}
        return {"client": await _transport().http_client()}

    def _call_arguments(self, attempt: _LiteLLMAttempt) -> JsonObject:
        left_out = self._rejected.known | attempt.left_out
        request = without_rejected_strict(attempt.request, left_out)
        call: JsonObject = {"temperature": request.temperature, "max_tokens": request.max_tokens}
        call = {name: value for name, value in call.items() if name in request.declared or name not in left_out}
        if "max_completion_tokens" in self._config and "max_tokens" in call:
            call["max_completion_tokens"] = call.pop("max_tokens")  # The user chose this name in the model dict.
        # All values are copied, since LiteLLM changes metadata, content parts and schemas.
        call |= copy_json(self._adapted_arguments)
        call |= {
            "model": self.name,
            "messages": self._messages(request),
            **({"tools": self._tools(request)} if request.tools else {}),
            "max_retries": 0,
            "timeout": self._timeout
            if request.timeout is None
            else _transport().limit_timeout(self._timeout, request.timeout),
            "_skip_mcp_handler": True,  # Without this argument, LiteLLM searches all messages for MCP references.
        }
        if request.forced_tool and "tool_choice" not in left_out:
            call["tool_choice"] = {"type": "function", "function": {"name": request.forced_tool}}
        if request.is_auto_cached and self.provider == "anthropic" and "cache_control" not in left_out:
            call.setdefault("cache_control", {"type": "ephemeral"})
        if request.cache_points:
            call["cache_control_injection_points"] = injection_points(request)
        return call

    @cached_property
    def _adapted_arguments(self) -> JsonObject:
        return adapt_arguments(self._arguments, self.provider)

    def _messages(self, request: ModelRequest) -> list[JsonObject]:
        messages = _private_copy(request.messages, request.messages_json)
        if self.provider == "anthropic":
            messages = [
                with_blocks(message) if message.get(BLOCKS_KEY) else with_documents(message) for message in messages
            ]
        for key in self._foreign_reasoning_keys:
            for message in messages:  # After a change of the model, messages may contain another model's reasoning.
                message.pop(key, None)
        return messages

    def _tools(self, request: ModelRequest) -> list[JsonObject]:
        tools = _private_copy(request.tools, request.tools_json)
        if self.provider == "anthropic":
            return [anthropic_tool(tool) if tool.get("function", {}).get("strict") else tool for tool in tools]
        return tools

    @cached_property
    def _foreign_reasoning_keys(self) -> list[str]:
        """The message keys that may contain reasoning which the provider of this model cannot read."""
        # Claude models accept their signed blocks at every provider. A model with an ARN may be a Claude model.
        is_claude = self.provider == "anthropic" or "claude" in self.name or "arn:" in self.name
        foreign = [BLOCKS_KEY, ITEMS_KEY] if is_claude else ["thinking_blocks", BLOCKS_KEY, ITEMS_KEY]
        supports_items = "/responses/" in self.name and not is_non_reasoning_model(self.name)
        return foreign if supports_items else [*foreign, "reasoning_items"]

    @cached_property
    def _timeout(self) -> httpx.Timeout:
        timeout: httpx.Timeout = _transport().timeout_of(self._configured_timeout)
        return timeout

    def _read_response(self, raw: Any, request: ModelRequest) -> ModelResponse:
        if not raw.choices:
            raise ModelError(
                f"`{self.name}` sent an empty response: it contains no choices. Try again, or use another model.",
                provider=self.provider,
            )
        response = read_response(raw)
        response.model = response.model or self.name
        if not self._has_price:  # If the model dict has a price, the loop computes the cost.
            hidden: JsonObject = getattr(raw, "_hidden_params", None) or {}
            response.cost = hidden.get("response_cost")
        called_names = {call.name for call in response.tool_calls}
        self._rejected.check_forced(request.forced_tool, called_names, response.stop_reason)
        return response

    # Failures

    def _remember_or_raise(self, error: Exception, attempt: _LiteLLMAttempt) -> None:
        """Remember that the model rejected a default setting, or raise `ModelError` for any other failure.

        If this method returns, the caller must send the request again without the rejected setting.
        """
        if is_bad_request(error) and not is_too_long(error):
            message, set_by_user = str(error), self._set_by_user(attempt.request)
            for name, mark in removable_settings(attempt.request, set_by_user):
                if mentions(message, name) and mark not in attempt.left_out | self._rejected.known:
                    attempt.left_out.add(mark)
                    if attempt.request.left_out is not None:
                        raise ResendError(
                            f"`{self.name}` rejected the setting `{name}`. acorn sends the request again without it.",
                            status=400,
                        )
                    return
        else:
            self._rejected.remember(attempt.left_out)
        raise self.as_model_error(error, attempt) from error

    def _set_by_user(self, request: ModelRequest) -> set[str]:
        """Return the names of the settings that the user set on the agent class or in the model dict."""
        names = {*request.declared, *self._arguments} - {"strict"}
        return names | {"strict"} if is_strict_by_user(request) else names

    def as_model_error(self, error: Exception, attempt: _LiteLLMAttempt) -> ModelError:
        redactor = redactor_of(self._config, attempt.request)
        chain = error_chain(error, attempt.outer_error)
        redact_errors(chain, redactor)
        failure: FailureDetails = _transport().find_failure(chain)
        message = "" if failure.problem == TIMED_OUT else redactor.text(provider_message(error))
        set_by_user = self._set_by_user(attempt.request)
        suggestion = suggest_litellm_fix(error, failure, message, set_by_user, self.name)
        details = " ".join(filter(None, (message, suggestion)))
        if "LLM Provider NOT provided" in message:
            details = unknown_model_message(self.name)
        label = f" ({failure.label})" if failure.label else ""
        return ModelError(
            f"`{self.name}` failed{label}: {details}".removesuffix(": "),
            provider=self.provider,
            status=failure.status,
            retryable=failure.is_retryable,
            retry_after=parse_retry_after(failure.headers.get("retry-after")),
            timed_out=failure.problem == TIMED_OUT,
        )


def _deadline_of(request: ModelRequest) -> float | None:
    """Return the monotonic time by which a request must end if it starts now, or None for no time limit."""
    return None if request.timeout is None else current_clock().monotonic() + request.timeout


def _private_copy(value: Sequence[Mapping[str, Any]], json_text: Callable[[], bytes] | None) -> list[JsonObject]:
    """Return a deep copy of messages or tools, because LiteLLM changes its arguments.

    If `json_text` is given, the copy is parsed from this JSON text, which is faster.
    """
    copy: Any = copy_json(value) if json_text is None else from_json(json_text())
    return cast(list[JsonObject], copy)


def _transport() -> ModuleType:
    """Import and return the module `transport`.

    The import is late because it loads httpx and aiohttp.
    """
    from acorn.models.litellm import transport

    return transport
