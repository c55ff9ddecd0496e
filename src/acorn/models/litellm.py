"""Any provider, through LiteLLM. The one file that knows it; none of its types or errors leave here.

LiteLLM is imported on first use, silenced, and asked for one thing: translate a request, send it once, and
translate what comes back. Retries are ours. What a model turns out not to take, a default temperature or a
forced tool, is remembered for the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, closing
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from acorn._secrets import redact, secrets_in
from acorn.errors import ModelError
from acorn.models.failure import advice, clean, on_the_wire, provider_text, retry_after
from acorn.models.port import CallDelta, Delta, ModelRequest, ModelResponse, Price, RawCall
from acorn.models.retry import Attempts, Retries, is_retryable
from acorn.types import Usage

_OURS = ("model", "id", "num_retries", "retry_delay", "timeout", "input_cost_per_token", "output_cost_per_token")
_TIMEOUT, _CONNECT_TIMEOUT = 600.0, 10.0
_STOPS = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


class LiteLLMModel:
    """One model of one provider, as a model dict describes it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.name: str = config.get("model") or config["id"]
        self._arguments = {key: value for key, value in config.items() if key not in _OURS}
        if "base_url" in self._arguments:  # LiteLLM's own name for it works with every provider
            self._arguments.setdefault("api_base", self._arguments.pop("base_url"))
        self._config = config
        self._retries = Retries.of(config)
        self._key = (self.name, str(self._arguments.get("api_base")), *sorted(map(str, self._arguments)))

    def __repr__(self) -> str:
        return f"LiteLLMModel({self.name!r})"

    # What it can do

    def can_force_tool(self, request: ModelRequest) -> bool:
        if "tool_choice" in _refused(self._key):
            return False
        if self._thinks and "claude" in self.name:  # Anthropic takes no forced choice while it thinks
            return False
        try:
            known = _litellm().get_supported_openai_params(model=self.name)
        except Exception:  # an unknown provider is asked, and its answer checked
            return True
        return known is None or "tool_choice" in known

    @property
    def _thinks(self) -> bool:
        return bool(self._arguments.get("thinking") or self._arguments.get("reasoning_effort"))

    def price(self) -> Price | None:
        return self._price

    @cached_property
    def _price(self) -> Price | None:
        given = self._config.get("input_cost_per_token"), self._config.get("output_cost_per_token")
        if any(part is not None for part in given):
            return Price(float(given[0] or 0), float(given[1] or 0))
        try:
            known = _litellm().get_model_info(self.name)
        except Exception:  # not in the table
            return None
        if known.get("input_cost_per_token") is None:
            return None
        return Price(float(known["input_cost_per_token"]), float(known.get("output_cost_per_token") or 0))

    # Asking it

    def complete(self, request: ModelRequest) -> ModelResponse:
        attempts = Attempts(self._retries, request.timeout)
        while True:
            try:
                return self._response(self._once(request), request)
            except ModelError as error:
                wait = attempts.wait(error)
            time.sleep(wait)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        attempts = Attempts(self._retries, request.timeout)
        while True:
            try:
                return self._response(await self._aonce(request), request)
            except ModelError as error:
                wait = attempts.wait(error)
            await asyncio.sleep(wait)

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        """The response as it comes; sent again only while nothing of it was handed out."""
        attempts = Attempts(self._retries, request.timeout)
        while True:
            reader = _StreamReader(request)
            try:
                raw = self._once(request, stream=True)
                with closing(_Closing(raw)):
                    for chunk in raw:
                        yield from reader.read(chunk)
                yield from reader.end(self._key)
                return
            except Exception as error:
                wait = attempts.wait(self._stream_error(error, request), is_final=reader.has_begun)
            time.sleep(wait)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        attempts = Attempts(self._retries, request.timeout)
        while True:
            reader = _StreamReader(request)
            try:
                raw = await self._aonce(request, stream=True)
                async with aclosing(_Closing(raw)):
                    async for chunk in raw:
                        for delta in reader.read(chunk):
                            yield delta
                for delta in reader.end(self._key):
                    yield delta
                return
            except Exception as error:
                wait = attempts.wait(self._stream_error(error, request), is_final=reader.has_begun)
            await asyncio.sleep(wait)

    def _stream_error(self, error: Exception, request: ModelRequest) -> ModelError:
        if isinstance(error, ModelError):
            return error
        made = self._error(error, request)
        made.__cause__ = error
        return made

    def _once(self, request: ModelRequest, **how: Any) -> Any:
        """One request, sent again only to leave out what the model will not take."""
        while True:
            try:
                return _litellm().completion(**self._call(request), **how, **_options(how))
            except Exception as error:
                self._learn_or_raise(error, request)

    async def _aonce(self, request: ModelRequest, **how: Any) -> Any:
        while True:
            try:
                return await _litellm().acompletion(
                    **self._call(request), **how, **_options(how), **await self._client()
                )
            except Exception as error:
                self._learn_or_raise(error, request)

    async def _client(self) -> dict[str, Any]:
        """Our own HTTP client where LiteLLM takes one: its async one sends twice when a connection breaks."""
        is_known = self.provider in ("openai", "anthropic")
        own = {"client", "ssl_verify", "shared_session"}.isdisjoint(self._arguments)
        return {"client": await _http_client()} if is_known and own else {}

    def _call(self, request: ModelRequest) -> dict[str, Any]:
        refused = _refused(self._key)
        call: dict[str, Any] = {
            "model": self.name,
            "messages": [dict(message) for message in request.messages],
            "tools": [dict(tool) for tool in request.tools],
            "max_retries": 0,
            "timeout": self._timeout(request),
            "_skip_mcp_handler": True,  # without it LiteLLM walks all messages for MCP references
            **({"temperature": request.temperature} if "temperature" not in refused else {}),
            **({"max_tokens": request.max_tokens} if "max_tokens" not in refused else {}),
            **self._arguments,
        }
        if request.forced_tool and "tool_choice" not in refused:
            call["tool_choice"] = {"type": "function", "function": {"name": request.forced_tool}}
        if request.cache:
            call["cache_control_injection_points"] = _cache_points(request)
        return call

    def _timeout(self, request: ModelRequest) -> Any:
        import httpx

        given = self._config.get("timeout", _TIMEOUT)
        if not isinstance(given, int | float):
            return given
        whole = given if request.timeout is None else min(given, request.timeout)
        return httpx.Timeout(whole, connect=min(whole, _CONNECT_TIMEOUT))

    # Reading the answer

    def _response(self, raw: Any, request: ModelRequest) -> ModelResponse:
        choice = raw.choices[0]
        message = choice.message
        calls = [_raw_call(made) for made in message.tool_calls or []]
        if request.forced_tool and all(made.name != request.forced_tool for made in calls):
            _refused(self._key).add("tool_choice")  # dropped in silence somewhere on the way
        extra: dict[str, Any] = {}
        if thoughts := getattr(message, "thinking_blocks", None):
            extra["thinking_blocks"] = [dict(block) for block in thoughts]
        refusal = getattr(message, "refusal", None) or (message.provider_specific_fields or {}).get("refusal")
        return ModelResponse(
            content=message.content or "",
            tool_calls=calls,
            stop_reason=_STOPS.get(choice.finish_reason, "stop"),
            usage=_usage(getattr(raw, "usage", None)),
            cost=self._cost(raw),
            model=getattr(raw, "model", None) or self.name,
            reasoning=getattr(message, "reasoning_content", None),
            refusal=refusal,
            extra=extra,
        )

    def _cost(self, raw: Any) -> float | None:
        if self._config.get("input_cost_per_token") is not None:
            return None  # the loop counts it by the price that was given
        hidden: Any = getattr(raw, "_hidden_params", None) or {}
        found = hidden.get("response_cost")
        return float(found) if found is not None else None

    # Failing

    @cached_property
    def provider(self) -> str:
        """The provider's name as LiteLLM spells it."""
        try:
            return str(_litellm().get_llm_provider(self.name, api_base=self._arguments.get("api_base"))[1])
        except Exception:  # unknown to LiteLLM as well
            return self.name.partition("/")[0]

    def _learn_or_raise(self, error: Exception, request: ModelRequest) -> None:
        """Return where the same request without a refused parameter may work; raise `ModelError` otherwise."""
        refused, text = _refused(self._key), str(error)
        if _is_bad_request(error):
            for name, is_set in (
                ("tool_choice", not request.forced_tool),
                ("temperature", "temperature" in request.declared),
                ("max_tokens", "max_tokens" in request.declared),
            ):
                if name not in refused and not is_set and name in text:
                    refused.add(name)
                    return
        raise self._error(error, request) from error

    def _error(self, error: Exception, request: ModelRequest) -> ModelError:
        secrets = secrets_in(self._config)
        clean(error, secrets)
        status, headers, is_connection = on_the_wire(error)
        text = redact(provider_text(error), secrets)
        what_to_do = advice(error, status, text, request, self.name)
        what = f"HTTP {status}" if status else "no connection" if is_connection else type(error).__name__
        return ModelError(
            f"`{self.name}` failed ({what}): {text} {what_to_do}".strip(),
            provider=self.provider,
            status=status,
            retryable=is_connection or (status is not None and is_retryable(status)),
            retry_after=retry_after(headers.get("retry-after")),
        )


def _options(how: Mapping[str, Any]) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}} if how.get("stream") else {}


class _Closing:
    """Ends a request whose stream nobody wants to read on."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def close(self) -> None:
        for holder in (self._raw, getattr(self._raw, "completion_stream", None)):
            close = getattr(holder, "close", None)
            if callable(close):
                close()

    async def aclose(self) -> None:
        inner = getattr(self._raw, "completion_stream", None)
        for holder in (self._raw, inner, getattr(inner, "streaming_response", None)):
            close = getattr(holder, "aclose", None)
            if callable(close):
                await close()


class _StreamReader:
    """LiteLLM's chunks to deltas."""

    def __init__(self, request: ModelRequest) -> None:
        self._forced = request.forced_tool
        self._called: set[str] = set()
        self._thought: list[str] = []
        self._signature = ""
        self.has_begun = False
        """Whether anything was handed out."""

    def read(self, chunk: Any) -> Iterator[Delta]:
        usage = getattr(chunk, "usage", None)
        choice = chunk.choices[0] if chunk.choices else None
        found = Delta(
            model=getattr(chunk, "model", None) or "",
            usage=_usage(usage) if usage is not None else None,
            stop_reason=_STOPS.get(choice.finish_reason, "stop") if choice and choice.finish_reason else None,
        )
        if choice is not None:
            self._read_message(choice.delta, found)
        if found.content or found.reasoning or found.calls or found.stop_reason or found.usage:
            self.has_begun = True
            yield found

    def _read_message(self, message: Any, found: Delta) -> None:
        found.content = getattr(message, "content", None) or ""
        found.reasoning = getattr(message, "reasoning_content", None) or ""
        found.refusal = getattr(message, "refusal", None) or ""
        for block in getattr(message, "thinking_blocks", None) or []:
            self._thought.append(block.get("thinking") or "")
            self._signature = block.get("signature") or self._signature
        found.calls = tuple(
            CallDelta(part.index, part.id, _own_name(part.function.name), part.function.arguments or "")
            for part in getattr(message, "tool_calls", None) or []
        )
        self._called.update(part.name for part in found.calls if part.name)

    def end(self, key: tuple[str, ...]) -> Iterator[Delta]:
        if self._forced and self._forced not in self._called:
            _refused(key).add("tool_choice")  # dropped in silence somewhere on the way
        if self._signature:
            thought = {"type": "thinking", "thinking": "".join(self._thought), "signature": self._signature}
            yield Delta(extra={"thinking_blocks": [thought]})


def _own_name(name: str | None) -> str:
    # Bedrock's names may not begin with an underscore; LiteLLM puts a letter before ours.
    return "__finish__" if name == "a__finish__" else name or ""


def _raw_call(made: Any) -> RawCall:
    return RawCall(made.id, _own_name(made.function.name), made.function.arguments or "")


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
    )


def _cache_points(request: ModelRequest) -> list[dict[str, Any]]:
    """LiteLLM counts from the system message on, we from the message behind it."""
    before = 0
    while before < len(request.messages) and request.messages[before]["role"] in ("system", "developer"):
        before += 1
    return [
        {**point, "index": point["index"] + before} if point.get("index", -1) >= 0 else dict(point)
        for point in request.cache
    ]


def _is_bad_request(error: Exception) -> bool:
    return type(error).__name__ in ("UnsupportedParamsError", "BadRequestError", "UnprocessableEntityError")


# LiteLLM itself

_lock = threading.Lock()
# What a model would not take, for as long as the process lives: it costs a request to find out.
_learned: dict[tuple[str, ...], set[str]] = {}


def _refused(key: tuple[str, ...]) -> set[str]:
    return _learned.setdefault(key, set())


@lru_cache(maxsize=1)
def _litellm() -> Any:
    """The library, imported once and made quiet."""
    with _lock:
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no price list from the network
        # Its own HTTP code: the SDK under it walks every message of every request.
        os.environ.setdefault("EXPERIMENTAL_OPENAI_BASE_LLM_HTTP_HANDLER", "True")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import litellm

            library: Any = litellm
            for kind in (library.ModelResponse, library.ModelResponseStream):
                kind()  # completed when first made, with warnings of their own
        library.suppress_debug_info = True
        library.disable_streaming_logging = True
        for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        warnings.filterwarnings("ignore", module=r"litellm(\.|$)")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"pydantic(\.|$)")
        return library


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[Any]] = WeakKeyDictionary()
_ready: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()


async def _http_client() -> Any:
    """One client for each event loop. A loop that ends closes its async generators, and so this one's client."""
    loop = asyncio.get_running_loop()
    if loop not in _ready:
        _clients[loop] = _keep_client()
        _ready[loop] = await anext(_clients[loop])
    return _ready[loop]


async def _keep_client() -> AsyncGenerator[Any]:
    client = _client_class()()
    try:
        yield client
    finally:
        await client.close()


@lru_cache(maxsize=1)
def _client_class() -> Any:
    import httpx

    handler: Any = _litellm().llms.custom_httpx.http_handler.AsyncHTTPHandler

    class Once(handler):  # type: ignore[misc]
        """Sends a request exactly once, and leaves nothing open when its loop is gone."""

        def create_client(self, timeout: Any = None, *_: Any, **__: Any) -> Any:
            return httpx.AsyncClient(timeout=timeout or _TIMEOUT)

        async def single_connection_post_request(self, *_: Any, **__: Any) -> Any:
            raise  # called while the error is being handled: hand it on

    return Once
