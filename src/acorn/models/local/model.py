"""A language model inside the process: `local/smollm2`, or `local/` and the path of a GGUF file.

A local model needs no API key and no network. If a request has tools, every response is a valid tool call, because
acorn converts the tool schemas to a grammar and the engine generates only text that the grammar allows. `engine.py`
runs the model, and `download.py` downloads the model files.

Local models were not trained to use tools. This module therefore describes the tools as plain text in the prompt. The
grammar enforces the format of the reply, and the description explains its meaning. If a small model has only one tool,
the description contains only the field names, because a small model would copy the first value of a longer description.

    model = "local/smollm2"
    model = {"model": "local/smollm2", "max_prompt": 12000}
    model = {"model": "local/models/qwen.gguf", "n_ctx": 16384, "n_threads": 4, "max_string": 2000, "timeout": 60}
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty

from acorn._base.threads import iterate_in_thread
from acorn._formats.json import text_of
from acorn._formats.schema.generate import JsonSchema, resolve_ref
from acorn.errors import DeclarationError, ModelError
from acorn.models.assemble import Assembly
from acorn.models.lanes.openai_chat import ChatReader
from acorn.models.local import local_error
from acorn.models.local.download import KNOWN_MODELS, find_weights
from acorn.models.local.engine import Engine, EngineJob, engine
from acorn.models.local.grammar.build import GrammarLimits, NoValidValueError, grammar
from acorn.models.local.grammar.schema import InvalidSchemaError
from acorn.models.port import CallDelta, Delta, ModelResponse, Price, RequestNotSupportedError
from acorn.models.request import ModelRequest, describe_medium
from acorn.types import CalledFunction, JsonObject, Message, is_mapping

PREFIX = "local/"
"""The prefix of the ids of local models."""
SETTINGS = {
    "n_ctx": "tokens of prompt and response together",
    "n_threads": "number of threads",
    "max_string": "characters of a string whose schema sets no limit",
    "max_prompt": "characters of the prompt: input, history and tools together",
    "timeout": "seconds for the complete response",
}
"""A dict that maps the settings of a local model to descriptions for error messages."""
_COMMON_KEYS = ("model", "id", "num_retries", "retry_delay")
"""Keys that any model dict may contain. acorn does not retry local requests."""
_SMALL, _LARGE = GrammarLimits(), GrammarLimits(string=4000, items=50, depth=5)
"""The grammar limits for small and large models. A small model may never stop, so its strings and lists are short."""
_SMALL_PROMPT = 6000
"""The maximum characters of a prompt for a small model, which needs minutes for longer prompts and answers badly."""
_REPETITION_SETTINGS = {"dry_multiplier": 0.8, "dry_base": 1.3, "dry_allowed_length": 16, "dry_penalty_last_n": 512}
"""Engine settings that prevent endless repetition.

A small model may copy its prompt or its own output endlessly. With these settings it may repeat up to
`dry_allowed_length` tokens in a row, such as a name. Each further repeated token becomes less likely. A quote or a
colon resets the count, so that JSON keys are not affected. A penalty on every repeated token would prevent the model
from repeating a name.
"""

_MAX_OUTLINE_DEPTH = 6
"""The number of levels of a schema to describe: fields, lists and unions."""


class LocalModel:
    """A model that runs in this process.

    The model dict sets its limits, such as `max_prompt` and `timeout`.
    """

    def __init__(self, config: JsonObject) -> None:
        self.name: str = config.get("model") or config["id"]
        self._settings = _check_settings(self.name, config)
        self._timeout: float | None = self._settings.pop("timeout", None)
        self._file = self.name.removeprefix(PREFIX)
        if self._file not in KNOWN_MODELS and (not self._file.endswith(".gguf") or "\0" in self._file):
            printable = self.name.replace("\0", "\\0")
            known = ", ".join(f"`{name}`" for name in KNOWN_MODELS)
            raise DeclarationError(
                f"`{printable}` is not a local model. After `{PREFIX}`, write {known} or the path of a file that ends "
                f"in `.gguf`."
            )
        self._is_small = self._file in KNOWN_MODELS
        limits = _SMALL if self._is_small else _LARGE
        max_string = self._settings.pop("max_string", limits.string)
        self._max_prompt = self._settings.pop("max_prompt", _SMALL_PROMPT if self._is_small else None)
        self._limits = replace(limits, string=max_string)

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r})"

    def can_force_tool(self, request: ModelRequest) -> bool:
        return True

    def price(self) -> Price:
        return Price(0.0, 0.0)

    @property
    def engine(self) -> Engine:
        """The engine that runs the model file.

        The first access starts the engine. It raises `ModelError` if the file is missing.
        """
        path = find_weights(self._file) if self._is_small else _check_file(self.name, Path(self._file))
        return engine(self.name, path.resolve(), self._settings)

    # Sending

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
        return self._deltas(request, EngineJob())

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        job = EngineJob()
        try:
            async for delta in iterate_in_thread(lambda: self._deltas(request, job), "acorn-local"):
                yield delta
        finally:
            job.is_stopped = True

    def _deltas(self, request: ModelRequest, job: EngineJob) -> Iterator[Delta]:
        reply, job.body = self._prepare(request)
        # The time limit is the timeout in the model dict or the time that the run has left, whichever is shorter.
        seconds = min((limit for limit in (self._timeout, request.timeout) if limit is not None), default=None)
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            self.engine.submit(job)
            while True:
                try:
                    piece = job.pieces.get(
                        timeout=None if deadline is None else max(0.001, deadline - time.monotonic())
                    )
                except Empty:
                    raise local_error(
                        f"`{self.name}` did not answer in {seconds:.1f} s. Increase `timeout` in the model dict or the "
                        f"time limit of the run, or shorten the prompt or the output.",
                        retryable=True,
                    ) from None
                if piece is None:
                    return
                yield from reply.read(piece)
        finally:
            job.is_stopped = True

    def _prepare(self, request: ModelRequest) -> tuple[_ReplyReader, JsonObject]:
        """Return the decoder for the response, and the body of the request to the engine."""
        for medium in request.media:
            raise RequestNotSupportedError(
                f"`{self.name}` supports only text, but the request contains {describe_medium(medium)}. Remove it "
                f"from the request, or use a model that supports it.",
                provider="local",
            )
        tools = [tool["function"] for tool in request.tools]
        if request.forced_tool:
            tools = [tool for tool in tools if tool["name"] == request.forced_tool]
        schemas: JsonObject = {tool["name"]: tool.get("parameters") or {"type": "object"} for tool in tools}
        # The grammar must be built before the messages, since it checks that the schemas are valid.
        grammar_setting = {"grammar": self._grammar(schemas)} if schemas else {}
        body: JsonObject = {
            "messages": self._check_length(to_text_messages(request.messages, tools, is_small=self._is_small)),
            # A local model works best without randomness, so acorn ignores the default temperature.
            "temperature": request.temperature if "temperature" in request.declared else 0.0,
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            # The engine can stop only at an event. Progress events make this possible during the prompt.
            "return_progress": True,
            **(_REPETITION_SETTINGS if self._is_small else {}),
            **grammar_setting,
        }
        return _ReplyReader(self.name, list(schemas)), body

    def _grammar(self, schemas: JsonObject) -> str:
        try:
            return grammar(schemas, self._limits)
        except (NoValidValueError, InvalidSchemaError) as error:
            raise local_error(
                f"`{self.name}` cannot call the tools {', '.join(schemas)}: {error}. Change the schema, or "
                f"use another model."
            ) from error

    def _check_length(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        length = sum(len(message["content"]) for message in messages)
        if self._max_prompt is not None and length > self._max_prompt:
            raise local_error(
                f"The prompt is too long for `{self.name}`: the input, the history and the tools have {length} "
                f"characters, and the limit is {self._max_prompt}. Shorten the input or the history (in `on_step`), "
                f"use another model, or raise the limit and wait longer: "
                f"`{{'model': '{self.name}', 'max_prompt': {length}}}`."
            )
        return messages


class _ReplyReader:
    """A decoder that converts the parts of one response from the engine to deltas.

    With one tool, the engine generates only the arguments of the call. With several tools, it generates the name of the
    tool first, as `grammar` describes.
    """

    def __init__(self, model: str, tools: list[str]) -> None:
        self._model = model
        self._tools = tools
        self._chunks = ChatReader()
        self._head = ""
        """The text before the arguments of a call, if there are several tools."""
        self._has_started = False

    def read(self, piece: JsonObject | ModelError) -> Iterator[Delta]:
        if isinstance(piece, ModelError):
            raise piece
        if "error" in piece:
            raise self._error(piece["error"])
        delta = self._chunks.read(piece)
        if delta is None:
            return
        delta.model, delta.cost = self._model, 0.0
        if self._tools:
            delta.calls, delta.content = tuple(self._read_call(delta.content)), ""
            if delta.stop_reason == "stop":
                delta.stop_reason = "tool_calls"
        yield delta

    def _read_call(self, text: str) -> Iterator[CallDelta]:
        if text and not self._has_started:
            name = self._tools[0]
            if len(self._tools) > 1:
                self._head += text
                head, separator, text = self._head.partition('", "arguments": ')
                if not separator:
                    return
                name = head.removeprefix('{"name": "')
            self._has_started = True
            yield CallDelta(0, None, name)
        if text:
            yield CallDelta(0, arguments=text)

    def _error(self, error: JsonObject) -> ModelError:
        if error.get("type") == "exceed_context_size_error":
            return local_error(
                f"The prompt is too long for `{self._model}`: it has {error.get('n_prompt_tokens')} tokens, and the "
                f"context has {error.get('n_ctx')}. Shorten the input or the history (in `on_step`), or use a larger "
                f"context if the model was trained for it: `{{'model': '{self._model}', 'n_ctx': ...}}`."
            )
        return local_error(
            f"`{self._model}` failed: {error.get('message')}. Send the request again, or use another model."
        )


# The prompt


def to_text_messages(
    messages: Sequence[Message], tools: Sequence[JsonObject], *, is_small: bool
) -> list[dict[str, str]]:
    """Convert messages to plain text, and add a description of the tools to the system message.

    Consecutive messages with the same role are joined, so that user and assistant messages alternate.
    """
    tools_text = _describe_tools(tools, is_small)
    turns: list[tuple[str, str]] = [("system", tools_text)] if tools_text else []
    for message in messages:
        role, text = _role_and_text(message, is_named=len(tools) != 1)
        if role == "system" and tools_text:
            turns[0] = ("system", f"{text}\n\n{tools_text}")
            tools_text = ""
        elif turns and turns[-1][0] == role:
            turns[-1] = (role, f"{turns[-1][1]}\n{text}")
        else:
            turns.append((role, text))
    return [{"role": role, "content": text} for role, text in turns]


def _role_and_text(message: Message, *, is_named: bool) -> tuple[str, str]:
    """Return the role and the text of a message.

    If `is_named` is true, the text of each tool call contains the tool name. Otherwise it contains only the arguments.
    """
    role, text = str(message["role"]), text_of(message.get("content"))
    if role in ("system", "developer"):
        return "system", text
    if role == "tool":
        return "user", f"Result: {text}"
    if role == "assistant":
        calls = [_call(call["function"], is_named) for call in message.get("tool_calls") or ()]
        return role, "\n".join(filter(None, (text, *calls)))
    return "user", text


def _call(function: CalledFunction, is_named: bool) -> str:
    if not is_named:
        return function["arguments"]
    return f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}'


def _describe_tools(tools: Sequence[JsonObject], is_small: bool) -> str:
    if not tools:
        return ""
    if len(tools) == 1:
        schema: JsonObject = tools[0].get("parameters") or {}
        if is_small:
            return f"Reply only with JSON that has {_Outline(schema).of(schema, _MAX_OUTLINE_DEPTH)}"
        return f"Reply only with JSON that fits this schema: {json.dumps(schema, ensure_ascii=False)}"
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    last = 'Call one of them. Reply only with JSON: {"name": the tool, "arguments": {...}}'
    return "\n".join(["You have these tools:", "<tools>", *lines, "</tools>", last])


class _Outline:
    """A formatter that lists the fields of a schema for a small model, such as `{"name": ..., "age": in years}`."""

    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._definitions: dict[tuple[str, int], str] = {}

    def of(self, schema: object, depth: int) -> str:
        if not is_mapping(schema) or depth == 0:
            return "..."
        if "$ref" in schema:
            return self._definition(str(schema["$ref"]), depth)
        if properties := schema.get("properties"):
            fields = [
                f"{json.dumps(name, ensure_ascii=False)}: {self._field(properties[name], depth)}" for name in properties
            ]
            return "{" + ", ".join(fields) + "}"
        if "items" in schema:
            return f"[{self.of(schema['items'], depth - 1)}]"
        options = [option for union in ("anyOf", "oneOf", "allOf") for option in schema.get(union, ())]
        outlines = (self.of(option, depth - 1) for option in options)
        return next((outline for outline in outlines if outline != "..."), "...")

    def _definition(self, reference: str, depth: int) -> str:
        key = (reference, depth)
        if key not in self._definitions:
            self._definitions[key] = "..."  # A definition that only refers to itself must not recurse forever.
            self._definitions[key] = self.of(resolve_ref(reference, self._root), depth)
        return self._definitions[key]

    def _field(self, schema: object, depth: int) -> str:
        outline = self.of(schema, depth - 1)
        description = schema.get("description") if is_mapping(schema) else None
        return " ".join(str(description).split()).rstrip(".") if description and outline == "..." else outline


# Checks of the model dict


def _check_settings(name: str, config: JsonObject) -> JsonObject:
    """Return the settings of a model dict, or raise `DeclarationError` if a setting is unknown or not valid."""
    settings = {key: value for key, value in config.items() if key not in _COMMON_KEYS and value is not None}
    for key, value in settings.items():
        if key not in SETTINGS:
            supported = ", ".join(f"`{name}` ({meaning})" for name, meaning in SETTINGS.items())
            raise DeclarationError(f"`{name}` does not support the setting `{key}`. It supports {supported}.")
        rule = "a number of seconds greater than 0" if key == "timeout" else "an integer of at least 1"
        if not isinstance(value, int | float if key == "timeout" else int) or isinstance(value, bool) or value <= 0:
            raise DeclarationError(
                f"`{key}` of `{name}` must be {rule}, but it is {value!r}. Change it in the model dict."
            )
    return settings


def _check_file(name: str, path: Path) -> Path:
    """Return the path of a model file, or raise `ModelError` if the file cannot be read or is not a GGUF file."""
    try:
        path = path.expanduser()
        with path.open("rb") as file:
            magic = file.read(4)
    except (OSError, RuntimeError) as error:  # `expanduser` raises RuntimeError for an unknown user.
        raise local_error(
            f"Cannot read `{name}`: the file {path.absolute()} cannot be opened "
            f"({getattr(error, 'strerror', None) or error}). A relative path starts at the working "
            f"directory. For `local/smollm2`, run `acorn pull`."
        ) from error
    if magic != b"GGUF":
        raise local_error(f"Cannot read `{name}`: {path.absolute()} is not a GGUF file. Download the file again.")
    return path
