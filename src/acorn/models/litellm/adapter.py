"""`LiteLLMModel`, the model class for every provider that acorn reaches through LiteLLM.

LiteLLM converts a request to the provider's format, sends it once, and converts the response. If a model rejects a
default setting, such as the temperature or a forced tool, acorn sends the request again without the setting, and the
process remembers it for later requests. All other retries are in `models/retry.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from acorn._base.threads import iterate_in_thread
from acorn._formats.json import copy_json
from acorn.errors import DeclarationError, ModelError
from acorn.models.failures import TIMED_OUT, Attempt, FailureDetails, RejectedSettings
from acorn.models.lanes import lane
from acorn.models.lanes.anthropic import tool_definition
from acorn.models.lanes.openai_chat import is_non_reasoning_model
from acorn.models.litellm import library, translate
from acorn.models.port import Delta, ModelResponse, Price, RequestNotSupportedError, price_in
from acorn.models.providers import check_key, custom_address, provider_in_id
from acorn.models.request import ModelRequest
from acorn.models.retry import DEFAULT_TIMEOUT, parse_timeout
from acorn.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from acorn.models.litellm.transport import LiteLLMStream, StreamWatch

_sdk_providers = {"openai", "azure"}
"""The providers for which LiteLLM uses the SDK of OpenAI instead of its own HTTP client."""
_STREAM_ARGUMENTS: JsonObject = {"stream": True, "stream_options": {"include_usage": True}}


class LiteLLMModel:
    """A model that acorn reaches through LiteLLM."""

    def __init__(self, config: JsonObject) -> None:
        self.name: str = config.get("model") or config["id"]
        # A program that has imported LiteLLM may have registered models that are not in the list file.
        if not library.is_loaded() and library.is_unknown(self.name, config):
            raise DeclarationError(library.unknown_model_message(self.name))
        self._arguments = {key: value for key, value in config.items() if key not in lane.COMMON_KEYS}
        if address := self._arguments.pop("base_url", None) or self._arguments.get("api_base"):
            self._arguments["api_base"] = str(address).rstrip("/")  # `api_base` works with every provider.
        self._config = config
        self._declared_price = price_in(config)
        """The price in the model dict, or None."""
        self._declared_provider: str | None = self._arguments.get("custom_llm_provider")
        self._known_provider = self._declared_provider or provider_in_id(self.name)
        """The provider in the model dict or in the model id, or "" if only LiteLLM knows the provider.

        Unlike `provider`, this attribute does not load LiteLLM, which takes several seconds.
        """
        timeout = config.get("timeout", config.get("request_timeout", DEFAULT_TIMEOUT))
        self._timeout: Any = timeout if hasattr(timeout, "as_dict") else parse_timeout(timeout)
        """The timeout in seconds, None for no limit, or an httpx timeout object."""
        self._rejected = RejectedSettings(self.name, self._arguments)

    def __repr__(self) -> str:
        return f"LiteLLMModel({self.name!r})"

    # Properties

    @property
    def takes_strict(self) -> bool:
        provider = self._known_provider
        return provider == "azure" or (provider == "openai" and custom_address("openai", self._config) is None)

    def takes_tool(self, tool: JsonObject) -> bool:
        if self._known_provider == "anthropic":
            return lane.is_anthropic_tool(tool)
        # LiteLLM loses the results of the hosted tools of OpenAI's Responses API, and it does not send Gemini's hosted
        # tools together with functions. Other servers may run hosted tools.
        is_chat = self._known_provider == "openai" and "/responses/" not in self.name
        return is_chat and lane.is_openai_tool(tool) and custom_address("openai", self._config) is not None

    @cached_property
    def provider(self) -> str:
        """The name that LiteLLM uses for the provider of this model.

        The first access loads LiteLLM.
        """
        return library.find_provider(self.name, self._declared_provider, self._arguments.get("api_base"))

    def can_force_tool(self, request: ModelRequest) -> bool:
        if "tool_choice" in self._rejected.known:
            return False
        if self.thinks and "claude" in self.name:  # Anthropic rejects a forced tool if reasoning is on.
            return False
        self._check_key()
        params = library.supported_params(self.name, self._declared_provider)
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
        return self._declared_price or self._listed_price

    @cached_property
    def _listed_price(self) -> Price | None:
        self._check_key()
        try:
            info: JsonObject = library.litellm().get_model_info(self.name)
        except Exception:  # The model is not in LiteLLM's price table.
            return None
        if info.get("input_cost_per_token") is None:
            return None
        return Price(float(info["input_cost_per_token"]), float(info.get("output_cost_per_token") or 0))

    def _check_key(self) -> None:
        """Raise `ModelError` if the API key of the provider is certainly missing.

        Callers check the API key before they load LiteLLM, because loading LiteLLM takes several seconds.
        """
        if not library.may_have_keys():
            check_key(self.name, self._known_provider, self._config)

    # Sending

    def prepare(self) -> None:
        """Check the API key and load LiteLLM.

        A rate limiter calls this method before it admits a request. Otherwise the loading would delay a request that
        already counts.
        """
        self._check_key()
        library.litellm()

    def complete(self, request: ModelRequest) -> ModelResponse:
        with self._attempt(request) as attempt:
            return self._read_response(self._send(attempt), request)

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        return self._deltas(request, _transport().StreamWatch(request.timeout))

    def _deltas(self, request: ModelRequest, watch: StreamWatch) -> Iterator[Delta]:
        reader = translate.LiteLLMStreamReader(has_cost=self._declared_price is None)
        with self._attempt(request) as attempt:
            stream: LiteLLMStream = _transport().LiteLLMStream(self._send(attempt, watch), watch)
            with closing(stream):
                for chunk in stream:
                    if (delta := reader.read_chunk(chunk.model_dump(warnings=False), stream.finish_reason)) is not None:
                        yield delta
            yield from reader.last_deltas(stream.finish_reason, stream.refusal)
        self._rejected.check_forced(request.forced_tool, reader.called_names, reader.stop_reason)

    # LiteLLM's asynchronous client sends a request again if the connection breaks, and it does not close its
    # connections when an event loop ends. acorn therefore calls only the synchronous client, in a thread.

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        return await anext(iterate_in_thread(lambda: iter([self.complete(request)]), "acorn-litellm"))

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        watch: StreamWatch = _transport().StreamWatch(request.timeout)
        try:
            async for delta in iterate_in_thread(lambda: self._deltas(request, watch), "acorn-litellm"):
                yield delta
        finally:
            watch.is_abandoned = True

    @contextmanager
    def _attempt(self, request: ModelRequest) -> Generator[Attempt]:
        """Check the media of a request, and convert every exception in the `with` block to a `ModelError`."""
        for medium in request.media:
            if message := translate.unsupported_medium(medium, self.provider, self.name):
                raise RequestNotSupportedError(
                    f"The request was not sent to `{self.name}`. {message}", provider=self.provider
                )
        attempt = Attempt(request, self._rejected, self._config)
        try:
            yield attempt
        except ModelError:
            raise
        except Exception as error:
            raise self._model_error(error, attempt) from error

    def _send(self, attempt: Attempt, watch: StreamWatch | None = None) -> Any:
        """Send a request.

        If the model rejects a default setting, send the request again without that setting.
        """
        self._check_key()
        while True:
            client = self._stream_client(watch)
            try:
                stream_arguments = {} if watch is None else _STREAM_ARGUMENTS
                with library.silence():
                    raw = library.litellm().completion(**self._call_arguments(attempt), **stream_arguments, **client)
            except Exception as error:
                if client and _transport().is_unusable(client["client"], error):
                    _sdk_providers.add(self.provider)
                elif not translate.is_bad_request(error):
                    attempt.on_accepted()
                    raise
                elif not attempt.on_rejected(str(error), 400):
                    raise
            else:
                attempt.on_accepted()
                return raw

    def _stream_client(self, watch: StreamWatch | None) -> JsonObject:
        """Return a dict that passes acorn's HTTP client to LiteLLM, or {} if the call does not need or support it."""
        sets_client = not {"client", "ssl_verify", "shared_session"}.isdisjoint(self._arguments)
        if watch is None or sets_client or self.provider in _sdk_providers:
            return {}
        return {"client": _transport().handler_class()(watch)}

    def _call_arguments(self, attempt: Attempt) -> JsonObject:
        request, left_out = attempt.to_send()
        call: JsonObject = {"temperature": request.temperature, "max_tokens": request.max_tokens}
        call = {name: value for name, value in call.items() if name in request.declared or name not in left_out}
        if "max_completion_tokens" in self._config and "max_tokens" in call:
            call["max_completion_tokens"] = call.pop("max_tokens")  # The user chose this name in the model dict.
        # All values are copied, since LiteLLM changes metadata, content parts and schemas.
        call |= copy_json(translate.adapt_arguments(self._arguments, self.provider))
        call |= {
            "model": self.name,
            "messages": self._messages(request),
            **({"tools": self._tools(request)} if request.tools else {}),
            "max_retries": 0,
            "timeout": _transport().limit_timeout(self._timeout, request.timeout),
            "_skip_mcp_handler": True,  # Without this argument, LiteLLM searches all messages for MCP references.
        }
        if request.forced_tool and "tool_choice" not in left_out:
            call["tool_choice"] = {"type": "function", "function": {"name": request.forced_tool}}
        if request.is_auto_cached and self.provider == "anthropic" and "cache_control" not in left_out:
            call.setdefault("cache_control", {"type": "ephemeral"})
        if marks := lane.cache_marks(request):
            points = [{"location": "message", "index": at, "control": mark} for at, mark in marks.items()]
            call["cache_control_injection_points"] = points
        return call

    def _messages(self, request: ModelRequest) -> list[JsonObject]:
        messages: list[JsonObject] = from_json(request.messages_json())  # LiteLLM changes its arguments.
        if self.provider == "anthropic":
            messages = list(map(translate.with_anthropic_content, messages))
        for key in self._foreign_reasoning_keys:
            for message in messages:  # After a change of the model, messages may contain another model's reasoning.
                message.pop(key, None)
        return messages

    def _tools(self, request: ModelRequest) -> list[JsonObject]:
        tools: list[JsonObject] = from_json(request.tools_json())
        if self.provider == "anthropic":  # LiteLLM would remove `strict` from a tool in OpenAI's format.
            return [tool_definition(tool) if tool.get("function", {}).get("strict") else tool for tool in tools]
        return tools

    @cached_property
    def _foreign_reasoning_keys(self) -> list[str]:
        """The message keys that may contain reasoning which the provider of this model cannot read."""
        foreign = [lane.BLOCKS_KEY, lane.ITEMS_KEY]
        # Claude models accept their signed blocks at every provider. A model with an ARN may be a Claude model.
        if self.provider != "anthropic" and "claude" not in self.name and "arn:" not in self.name:
            foreign.append("thinking_blocks")
        if "/responses/" not in self.name or is_non_reasoning_model(self.name):
            foreign.append("reasoning_items")
        return foreign

    def _read_response(self, raw: Any, request: ModelRequest) -> ModelResponse:
        if not raw.choices:
            raise ModelError(
                f"`{self.name}` sent an empty response: it contains no choices. Try again, or use another model.",
                provider=self.provider,
            )
        response = translate.read_response(raw.model_dump(warnings=False))
        response.model = response.model or self.name
        if self._declared_price is None:  # If the model dict has a price, the loop computes the cost.
            hidden: JsonObject = getattr(raw, "_hidden_params", None) or {}
            response.cost = hidden.get("response_cost")
        called_names = {call.name for call in response.tool_calls}
        self._rejected.check_forced(request.forced_tool, called_names, response.stop_reason)
        return response

    # Failures

    def _model_error(self, error: Exception, attempt: Attempt) -> ModelError:
        chain, redactor = attempt.redact_causes(error)
        failure: FailureDetails = _transport().find_failure(chain)
        message = "" if failure.problem == TIMED_OUT else redactor.text(translate.provider_message(chain))
        if "LLM Provider NOT provided" in message:
            return attempt.error(self.provider, failure, library.unknown_model_message(self.name))
        suggestion = translate.suggest_litellm_fix(error, failure, message, attempt, self.name)
        return attempt.error(self.provider, failure, message, suggestion)


def _transport() -> ModuleType:
    """Import and return the module `transport`.

    The import is late because it loads httpx and aiohttp.
    """
    from acorn.models.litellm import transport

    return transport
