"""A language model inside the process: `local/smollm2`, or `local/` and the path of a GGUF file.

It needs no key and no network. Every reply is a call of a tool by construction: the tools' schemas become a
grammar, and the model can write nothing else. The engine is in `local_engine`, the weights in `weights`.

    model = "local/smollm2"
    model = {"model": "local/smollm2", "max_prompt": 12000}
    model = {"model": "local/models/qwen.gguf", "n_ctx": 16384, "n_threads": 4, "max_string": 2000, "timeout": 60}
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from acorn.errors import DeclarationError, ModelError
from acorn.models.assemble import Assembly
from acorn.models.local.download import KNOWN, find
from acorn.models.local.engine import PROVIDER, Engine, EngineJob, engine
from acorn.models.local.grammar.build import GrammarLimits, ImpossibleError, grammar
from acorn.models.local.grammar.schema import UnreadableError
from acorn.models.local.prompt import flatten
from acorn.models.port import CallDelta, Delta, ModelRequest, ModelResponse, Price, RequestNotSupportedError
from acorn.models.request_body import describe_medium
from acorn.types import JsonObject, Usage

PREFIX = "local/"
SETTINGS = {
    "n_ctx": "tokens of prompt and answer together",
    "n_threads": "threads that compute",
    "max_string": "characters of a string whose schema names no limit",
    "max_prompt": "characters that it reads: input, history and tools together",
}
_OURS = ("model", "id", "num_retries", "retry_delay", "timeout")
"""Keys that any model dict may have. Nothing here is retried; the timeout is that of a whole answer."""
_SMALL, _LARGE = GrammarLimits(), GrammarLimits(string=4000, items=50, depth=5)
"""A small model does not know when to stop; of another file we expect that it does."""
_SMALL_PROMPT = 6000
"""Characters that a small model is given to read: what is longer takes it minutes, and it finds nothing in it."""
_UNREPEATED = {"dry_multiplier": 0.8, "dry_base": 1.3, "dry_allowed_length": 16, "dry_penalty_last_n": 512}
"""For a small model, which copies its prompt or itself without end: so many tokens may come again in a row, such as a
name, and what goes on after them the same way becomes less likely. A quote or a colon begins anew, so that the keys
of JSON are never meant. The plain penalty on every token that was there hinders it from writing a name at all."""

_Piece = JsonObject | ModelError | None


class LocalModel:
    """One model file, as a model dict describes it."""

    def __init__(self, config: JsonObject) -> None:
        self.name: str = config.get("model") or config["id"]
        self._settings = _settings(self.name, config)
        self._timeout = _timeout(self.name, config.get("timeout"))
        self._file = self.name.removeprefix(PREFIX)
        if self._file not in KNOWN and (not self._file.endswith(".gguf") or "\0" in self._file):
            shown = self.name.replace("\0", "\\0")
            raise DeclarationError(
                f"`{shown}` is no model: after `{PREFIX}` comes {', '.join(f'`{name}`' for name in KNOWN)} "
                f"or the path of a file that ends in `.gguf`."
            )
        self._is_small = self._file in KNOWN
        limits = _SMALL if self._is_small else _LARGE
        longest = self._settings.pop("max_string", limits.string)
        self._most_read = self._settings.pop("max_prompt", _SMALL_PROMPT if self._is_small else None)
        self._limits = GrammarLimits(longest, limits.items, limits.depth)

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r})"

    def can_force_tool(self, request: ModelRequest) -> bool:
        return True

    def price(self) -> Price:
        return Price(0.0, 0.0)

    @property
    def path(self) -> Path:
        """Where its file is; a `ModelError` where there is none."""
        return find(self._file) if self._file in KNOWN else _checked(self.name, Path(self._file))

    @property
    def engine(self) -> Engine:
        """What runs it in this process."""
        return engine(self.name, self.path.resolve(), self._settings)

    # Asking it

    def complete(self, request: ModelRequest) -> ModelResponse:
        assembly = Assembly()
        for delta in self.stream(request):
            assembly.add(delta)
        return assembly.response()

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        assembly = Assembly()
        async for delta in self.astream(request):
            assembly.add(delta)
        return assembly.response()

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        reply, body = self._prepared(request)
        pieces: SimpleQueue[_Piece] = SimpleQueue()
        job = EngineJob(body, pieces.put)
        left = self._left(request)
        until = None if left is None else time.monotonic() + left
        self.engine.ask(job)
        try:
            while True:
                try:
                    piece = pieces.get(timeout=None if until is None else max(0.001, until - time.monotonic()))
                except Empty:
                    raise self._late(left) from None
                if piece is None:
                    return
                yield from reply.read(piece)
        finally:
            job.stop()

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        loop = asyncio.get_running_loop()
        reply, body = await asyncio.to_thread(self._prepared, request)  # a large schema takes its time
        pieces: asyncio.Queue[_Piece] = asyncio.Queue()

        def give(piece: _Piece) -> None:
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:  # the loop is closed, and nobody waits any more
                job.stop()

        job = EngineJob(body, give)
        left = self._left(request)
        until = None if left is None else loop.time() + left
        self.engine.ask(job)
        try:
            while True:
                try:
                    async with asyncio.timeout_at(until):
                        piece = await pieces.get()
                except TimeoutError:
                    raise self._late(left) from None
                if piece is None:
                    return
                for delta in reply.read(piece):
                    yield delta
        finally:
            job.stop()

    def _prepared(self, request: ModelRequest) -> tuple[_Reply, JsonObject]:
        """How the answer will be read, and what is asked."""
        for medium in request.media:
            raise RequestNotSupportedError(
                f"`{self.name}` supports text only, and there is {describe_medium(medium)}. Remove it, or use a model "
                f"that supports it.",
                provider=PROVIDER,
            )
        tools = [tool["function"] for tool in request.tools]
        if request.forced_tool:
            tools = [tool for tool in tools if tool["name"] == request.forced_tool]
        schemas: JsonObject = {tool["name"]: tool.get("parameters") or {"type": "object"} for tool in tools}
        held = {"grammar": self._grammar(schemas)} if schemas else {}  # first: it knows whether they are schemas at all
        body: JsonObject = {
            "messages": self._checked_length(flatten(request.messages, tools, is_small=self._is_small)),
            # It is at its best where nothing is left to chance, and 0.7 is nobody's choice.
            "temperature": request.temperature if "temperature" in request.declared else 0.0,
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            # While it reads it has nothing to say; so it can be stopped all the same.
            "return_progress": True,
            **(_UNREPEATED if self._is_small else {}),
            **held,
        }
        return _Reply(self.name, list(schemas)), body

    def _grammar(self, schemas: JsonObject) -> str:
        try:
            if len(schemas) == 1:
                return _known_grammar(_text_of(next(iter(schemas.values()))), self._limits, is_named=False)
            return _known_grammar(_text_of(schemas), self._limits, is_named=True)
        except (ImpossibleError, UnreadableError) as error:
            raise ModelError(
                f"`{self.name}` cannot call the tools {', '.join(schemas)}: {error}.", provider=PROVIDER
            ) from error

    def _checked_length(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        length = sum(len(message["content"]) for message in messages)
        if self._most_read is not None and length > self._most_read:
            raise ModelError(
                f"`{self.name}` reads at most {self._most_read} characters, and it was given {length}: input, history "
                f"and tools together. Shorten the input or the history (in `on_step`), use another model, or allow it "
                f"more and wait: `{{'model': '{self.name}', 'max_prompt': {length}}}`.",
                provider=PROVIDER,
            )
        return messages

    def _left(self, request: ModelRequest) -> float | None:
        """Seconds for this answer: those of the model dict or those that the run has left, whichever are fewer."""
        return min((limit for limit in (self._timeout, request.timeout) if limit is not None), default=None)

    def _late(self, left: float | None) -> ModelError:
        return ModelError(
            f"`{self.name}` did not answer in the {left:.1f} s that it had. "
            f"Give the run more time, or the model less to read and write.",
            provider=PROVIDER,
            retryable=True,
        )


def _text_of(schemas: Any) -> str:
    try:
        return json.dumps(schemas)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnreadableError(f"the schema is no JSON ({error})") from error


@lru_cache(maxsize=64)
def _known_grammar(schemas: str, limits: GrammarLimits, *, is_named: bool) -> str:
    """The grammar of schemas as JSON, in the order that they have there."""
    return grammar(json.loads(schemas), limits, is_named=is_named)


class _Reply:
    """What the engine sends, as deltas of the port. Its text is the arguments of the one tool, or a call by name."""

    def __init__(self, model: str, tools: list[str]) -> None:
        self._model = model
        self._tools = tools
        self._head = ""
        """The text before the arguments, where there are several tools."""
        self._held = ""
        """The last character: of several tools it may be the bracket around the call."""
        self._has_begun = False

    def read(self, piece: JsonObject | ModelError) -> Iterator[Delta]:
        if isinstance(piece, ModelError):
            raise piece
        if "error" in piece:
            raise self._error(piece["error"])
        usage = piece.get("usage")
        if usage:
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            counted = Usage(usage["prompt_tokens"], usage["completion_tokens"], cached, requests=1)
            yield Delta(usage=counted, cost=0.0, model=self._model)
        for chosen in piece.get("choices", ()):
            text = chosen["delta"].get("content")
            if text:
                yield from self._text(text)
            if reason := chosen.get("finish_reason"):
                yield from self._end(reason)

    def _text(self, text: str) -> Iterator[Delta]:
        if not self._tools:
            yield Delta(content=text)
        elif len(self._tools) == 1:
            yield from self._begin(self._tools[0])
            yield _arguments(text)
        elif self._has_begun:
            text = self._held + text
            yield _arguments(text[:-1])
            self._held = text[-1]
        else:
            yield from self._name(text)

    def _name(self, text: str) -> Iterator[Delta]:
        self._head += text
        head, mark, rest = self._head.partition('", "arguments": ')
        if mark:
            yield from self._begin(head.removeprefix('{"name": "'))
            if rest:
                yield from self._text(rest)

    def _begin(self, name: str) -> Iterator[Delta]:
        if not self._has_begun:
            self._has_begun = True
            yield Delta(calls=(CallDelta(0, None, name),))

    def _end(self, reason: str) -> Iterator[Delta]:
        if reason == "length":
            if self._held:
                yield _arguments(self._held)
            yield Delta(stop_reason="length")
        else:
            yield Delta(stop_reason="tool_calls" if self._tools else "stop")

    def _error(self, error: JsonObject) -> ModelError:
        if error.get("type") == "exceed_context_size_error":
            return ModelError(
                f"`{self._model}` cannot read so much: the prompt has {error.get('n_prompt_tokens')} tokens, and the "
                f"context holds {error.get('n_ctx')}. Shorten the input or the history (in `on_step`), or give the "
                f"model more room where it was trained for it: `{{'model': '{self._model}', 'n_ctx': ...}}`.",
                provider=PROVIDER,
            )
        return ModelError(f"`{self._model}` failed: {error.get('message')}", provider=PROVIDER)


def _arguments(text: str) -> Delta:
    return Delta(calls=(CallDelta(0, arguments=text),))


def _settings(name: str, config: JsonObject) -> dict[str, int]:
    """The settings of a model dict, checked."""
    known = ", ".join(f"`{key}` ({meaning})" for key, meaning in SETTINGS.items())
    found: dict[str, int] = {}
    for key, value in config.items():
        if key in _OURS:
            continue
        if key not in SETTINGS:
            raise DeclarationError(f"`{name}` takes no `{key}`. It takes {known}.")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DeclarationError(f"`{key}` of `{name}` must be a whole number of at least 1, got {value!r}.")
        found[key] = value
    return found


def _timeout(name: str, seconds: Any) -> float | None:
    if seconds is not None and (not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0):
        raise DeclarationError(f"`timeout` of `{name}` must be a number of seconds above 0, got {seconds!r}.")
    return seconds


def _checked(name: str, path: Path) -> Path:
    """A file that at least begins as it should."""
    try:
        path = path.expanduser()
        with path.open("rb") as file:
            begins = file.read(4)
    except (OSError, RuntimeError) as error:  # a home that nobody has is a RuntimeError
        raise ModelError(
            f"`{name}`: there is no file to read at {path.absolute()} ({getattr(error, 'strerror', None) or error}). "
            f"A relative path is looked for in the working directory; `acorn pull` fetches `local/smollm2`.",
            provider=PROVIDER,
        ) from error
    if begins != b"GGUF":
        raise ModelError(f"`{name}`: {path.absolute()} is no GGUF file. Fetch it again.", provider=PROVIDER)
    return path
