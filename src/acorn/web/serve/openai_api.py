"""Conversion between OpenAI's chat completions API and the runs of an agent.

The last message of a request contains the input of the agent. If the input has only one text field, the message is the
text of this field. Otherwise the message is the complete input as JSON. The earlier messages become the history. The
response contains the output as text, or as JSON if the output is not a text. Sampling parameters are ignored, because
the agent sets them. Requests for other output formats are rejected.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, FailFast, Field, StrictBool, ValidationError

from acorn import Run, StreamChunk
from acorn._inside import Redactor, Shape, excerpt, to_json_text
from acorn.chunk import has_answer_part
from acorn.types import JsonObject, is_json_object
from acorn.web.serve.responses import RejectedRequestError, check_finished, encode_event

_UNSUPPORTED = ("tools", "functions", "tool_choice", "function_call", "audio", "modalities", "logprobs", "top_logprobs")


# Requests


def _to_parts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class TextPart(BaseModel):
    """A content part of a chat message."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message of a chat completion request, without the fields that acorn ignores."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        list[TextPart], FailFast(), BeforeValidator(_to_parts, json_schema_input_type=str | list[TextPart])
    ]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


class ResponseFormat(BaseModel):
    """The output format that a client requests."""

    type: str


class StreamOptions(BaseModel):
    """The options of a streamed chat completion."""

    include_usage: bool | None = None


class CompletionRequest(BaseModel):
    """The body of a chat completion request, without the fields that acorn ignores or rejects."""

    model: str | None = None
    messages: Annotated[list[ChatMessage], FailFast()] = Field(min_length=1)  # Clients receive only the first error.
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    n: Literal[1] | None = None


def read_completion(body: object, name: str, output_shape: Shape) -> CompletionRequest:
    """Validate the body of a chat completion request.

    Raise `RejectedRequestError` if the body is invalid. `name` is the name of the agent. The request must use it as the
    model name.
    """
    try:
        request = CompletionRequest.model_validate(body)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])[1:] or "body"
        if problem["type"] == "model_type":  # The message of Pydantic contains the name of the class.
            message = (
                f"`{path}` must be a JSON object." if problem["loc"] else "The request body must be a JSON object."
            )
            raise _invalid(path, message) from None
        hint = " Send other media as data URLs in the JSON of the input." if path.endswith("].type") else ""
        raise _invalid(path, f"`{path}` is wrong: {problem['msg']}.{hint}") from None
    if request.model not in (None, name):
        message = f"The model {excerpt(request.model)} does not exist. Use `{name}`."
        raise RejectedRequestError(404, "model_not_found", message, param="model", code="model_not_found")
    options: JsonObject = body if is_json_object(body) else {}
    for option in _UNSUPPORTED:
        if options.get(option) not in (None, False, [], ["text"], "none", "auto"):
            reason = "because the agent has its own tools and answers in text"
            raise _invalid(option, f"`{option}` is not supported, {reason}. Remove `{option}`.")
    _check_format(request.response_format, output_shape)
    if (role := request.messages[-1].role) != "user":
        raise _invalid("messages", f"The last message must have the role `user`, but its role is `{role}`.")
    return request


def _check_format(response_format: ResponseFormat | None, output_shape: Shape) -> None:
    kind = None if response_format is None else response_format.type
    has_one_text = len(output_shape.schema.model_fields) == 1 and text_field(output_shape) is not None
    is_object = not output_shape.wrapped and not has_one_text
    if kind in (None, "text") or (kind == "json_object" and is_object):
        return
    message = "`response_format` is not supported, because the agent has its own output format (see `/openapi.json`)."
    raise _invalid("response_format", message)


def to_history(messages: Sequence[ChatMessage]) -> list[JsonObject]:
    """Return the earlier messages with only their roles and texts.

    Other fields are removed, because a provider might fetch their URLs or treat a message as a tool call. acorn uses
    the prompt of the agent instead of a system message at the start of a history. If the first message of the client is
    a system message, an empty system message is added before it, so that acorn does not drop the client's message.
    """
    history: list[JsonObject] = [{"role": message.role, "content": message.text} for message in messages]
    if messages and messages[0].role in ("system", "developer"):
        return [{"role": "system", "content": ""}, *history]
    return history


def to_input(text: str, shape: Shape) -> object:
    """Convert the text of the last message to the input of the agent, as JSON data."""
    fields, field = shape.call_fields, text_field(shape)
    is_plain = bool(shape.wrapped) and not shape.takes_fields
    if shape.is_empty:
        return {}
    if field is not None and len(fields) == 1:
        return text if is_plain else {field: text}
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if field is not None:
        return value if is_json_object(value) and set(value) <= shape.call_names else {field: text}
    if value is None or not (is_plain or is_json_object(value)):
        names = ", ".join(f"`{name}`" for name in fields)
        kind = "valid JSON (see `/openapi.json`)" if is_plain else f"a JSON object with the fields {names}"
        raise _invalid("messages", f"The last message must contain the input of the agent as {kind}.")
    return value


def text_field(shape: Shape) -> str | None:
    """Return the name of the input field that a plain text message fills.

    It is the only required text field. If no text field is required, it is the only text field. Return None if there is
    no such field, or if another field is required.
    """
    fields = shape.call_fields
    texts = [name for name, field in fields.items() if _is_text(field.annotation)]
    required = [name for name, field in fields.items() if field.is_required()]
    if shape.takes_fields:  # A field of a TypedDict has no default.
        required = list(shape.parameters.get("required", ()))
    candidates = [name for name in texts if name in required] or texts
    return candidates[0] if len(candidates) == 1 and required in ([], candidates) else None


def _is_text(annotation: object) -> bool:
    kinds = set(get_args(annotation)) or {annotation}
    return str in kinds and kinds <= {str, type(None)}


def _invalid(param: str, message: str) -> RejectedRequestError:
    return RejectedRequestError(400, "invalid_request_error", message, param=param)


# Responses


def completion_response(run: Run, name: str, shape: Shape) -> JsonObject:
    """Return the response to a chat completion request without streaming."""
    message = {"role": "assistant", "content": answer_text(run, shape)}
    return {
        "id": f"chatcmpl-{run.id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": name,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": _usage(run),
    }


def answer_text(run: Run, shape: Shape) -> str:
    """Return the output of a run as text."""
    check_finished(run)
    text = _single_text(run.output, shape)
    return to_json_text(run.output) if text is None else text


def _single_text(output: object, shape: Shape) -> str | None:
    """Return the text of an output that consists of one text or of one text field.

    Return None for any other output.
    """
    fields = shape.schema.model_fields
    if len(fields) == 1 and not shape.wrapped and output is not None:
        output = getattr(output, next(iter(fields)), None)
    is_single = shape.wrapped or len(fields) == 1
    return output if is_single and isinstance(output, str) else None


def _usage(run: Run) -> JsonObject:
    usage = run.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class CompletionEvents:
    """An encoder that converts the chunks of a run to events of a streamed chat completion.

    Reasoning and other texts before the answer become `reasoning_content`, which many clients display.
    """

    def __init__(self, name: str, shape: Shape, redactor: Redactor, *, includes_usage: bool) -> None:
        self._shape, self._redactor, self._includes_usage = shape, redactor, includes_usage
        self._common: JsonObject = {
            "id": f"chatcmpl-{os.urandom(16).hex()}",
            "created": int(time.time()),
            "object": "chat.completion.chunk",
            "model": name,
        }
        self._received = ""
        """The text of the answer that has arrived so far."""
        self._held_back = {"content": "", "reasoning_content": ""}
        """The ends of the growing texts. An end may be the beginning of a secret."""
        self._has_started = False

    def encode(self, chunks: Sequence[StreamChunk]) -> bytes:
        events = [event for chunk in chunks for event in self._events(chunk)]
        return b"".join(encode_event(self._redactor, event) for event in events) + (
            b"data: [DONE]\n\n" if chunks and chunks[-1].run is not None else b""
        )

    def _events(self, chunk: StreamChunk) -> Iterator[JsonObject]:
        if chunk.branch is not None:
            return
        if not self._has_started:
            self._has_started = True
            yield self._delta({"role": "assistant", "content": ""})
        if chunk.run is not None:
            yield from self._end(chunk.run)
            return
        text = chunk.reasoning or chunk.content or ""
        yield from self._text_delta("reasoning_content", text, is_complete=not text)
        if has_answer_part(chunk) and (answer := _single_text(chunk.partial, self._shape)) is not None:
            yield from self._text_delta("content", self._new_part(answer))

    def _new_part(self, text: str) -> str:
        """Return the part of the answer that was not sent yet.

        If the text that was already sent has changed, return the complete answer after an empty line.
        """
        received = self._received
        if received.startswith(text):
            return ""
        self._received = text
        return text[len(received) :] if text.startswith(received) else f"\n\n{text}"

    def _end(self, run: Run) -> Iterator[JsonObject]:
        yield from self._text_delta("reasoning_content", "", is_complete=True)
        answer = self._new_part(answer_text(run, self._shape))
        yield from self._text_delta("content", answer, is_complete=True)
        yield self._delta({}, finish="stop")
        if self._includes_usage:
            yield {**self._common, "choices": [], "usage": _usage(run)}

    def _text_delta(self, name: str, new_text: str, *, is_complete: bool = False) -> list[JsonObject]:
        text = self._held_back[name] + new_text
        text, self._held_back[name] = (self._redactor.text(text), "") if is_complete else self._redactor.split(text)
        return [self._delta({name: text})] if text else []

    def _delta(self, delta: Mapping[str, str], finish: str | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**self._common, "choices": [choice], **({"usage": None} if self._includes_usage else {})}
