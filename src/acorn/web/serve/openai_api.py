"""OpenAI's chat completions: their requests as an input and a history, a run as their answer, chunks as theirs.

The last message is the input: the one text field of it, or all of it as JSON. The answer is the text where the output
is one, else its JSON. What tunes a model is the agent's own business and passes unread; what asks for another form of
answer than there is, is refused.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from acorn import Paused, Run
from acorn._inside import Shape, excerpt, to_json_text
from acorn.types import JsonObject
from acorn.web.serve.exchange import WrongError, check_finished
from acorn.web.serve.secrets import RedactedStream, ServiceRedactor
from acorn.web.serve.streams import Chunk, event, paused

_ROLES = ("system", "developer", "user", "assistant")
_REFUSED = ("tools", "functions", "tool_choice", "function_call", "audio", "modalities", "logprobs", "top_logprobs")
Message = JsonObject


class Completion(NamedTuple):
    """What a client asks for."""

    given: Any
    """The input, as JSON."""
    history: list[Message]
    streams: bool
    tells_usage: bool


# What comes in


def read_completion(body: Any, name: str, shape: Shape, gives: Shape) -> Completion:
    """The request of a client; a `WrongError` says what cannot be done."""
    if not isinstance(body, dict):
        raise _wrong("body", "The body is a JSON object with `messages`.")
    if body.get("model", name) != name:
        words = f"There is no model {excerpt(body['model'])} here; it is called `{name}`."
        raise WrongError(404, "model_not_found", words, param="model", code="model_not_found")
    for each in _REFUSED:
        if body.get(each) not in (None, False, [], ["text"], "none", "auto"):
            raise _wrong(each, f"`{each}` cannot be asked for here: the agent has its own tools, and answers in text.")
    if body.get("n") not in (None, 1):
        raise _wrong("n", "`n` is 1 here: a run has one answer.")
    if body.get("stream") not in (None, False, True):
        raise _wrong("stream", "`stream` is true or false.")
    _check_format(body.get("response_format"), gives)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "`messages` is a list of messages, the last one of the user.")
    for at, message in enumerate(messages):
        _check_message(f"messages[{at}]", message)
    *earlier, last = messages
    if last["role"] != "user":
        raise _wrong("messages", f"The last of `messages` is the user's; it is of `{last['role']}`.")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _wrong("stream_options", '`stream_options` is an object, such as `{"include_usage": true}`.')
    text = _text_of(last["content"], f"messages[{len(earlier)}].content")
    return Completion(
        _input(text, shape), _history(earlier), body.get("stream") is True, options.get("include_usage") is True
    )


def _check_format(wanted: Any, gives: Shape) -> None:
    kind = wanted.get("type") if isinstance(wanted, dict) else wanted if wanted is None else ""
    is_object = not gives.wrapped and not (len(gives.schema.model_fields) == 1 and text_field(gives) is not None)
    if kind in (None, "text") or (kind == "json_object" and is_object):
        return
    words = "`response_format` cannot be chosen here: the agent's output has a form of its own, see `/openapi.json`."
    raise _wrong("response_format", words)


def _check_message(path: str, message: Any) -> None:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise _wrong(path, f"`{path}` is an object with a `role` of {', '.join(_ROLES)}; got {excerpt(message)}.")
    content = message.get("content")
    is_parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if not isinstance(content, str) and not is_parts:
        raise _wrong(f"{path}.content", f"`{path}.content` is a text, or a list of parts; got {excerpt(content)}.")


def _text_of(content: str | list[Message], path: str) -> str:
    if isinstance(content, str):
        return content
    for at, part in enumerate(content):
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            words = f"`{path}[{at}]` is no text; give anything else in the JSON of the input, as data URL."
            raise _wrong(f"{path}[{at}]", words)
    return "".join(part["text"] for part in content)


def _history(messages: Sequence[Message]) -> list[Message]:
    """The conversation so far: who said which words, and nothing else that a provider could be made to fetch or to take
    for a call. A first system message would be taken for the prompt, which is the agent's own; a
    stand-in for it keeps the client's, behind the prompt."""
    earlier: list[Message] = [
        {"role": each["role"], "content": _text_of(each["content"], f"messages[{at}].content")}
        for at, each in enumerate(messages)
    ]
    if earlier and earlier[0]["role"] in ("system", "developer"):
        return [{"role": "system", "content": ""}, *earlier]
    return earlier


def _input(text: str, shape: Shape) -> Any:
    """The input that a text stands for."""
    if shape.is_empty:
        return {}
    field = text_field(shape)
    if shape.wrapped:
        found = text if field is not None else _data(text)
        if found is None:
            raise _wrong("messages", "The last message is the input as JSON.")
        return found
    found = _data(text) if field is None or len(shape.schema.model_fields) > 1 else None
    if isinstance(found, dict) and (field is None or set(found) <= shape._accepted):
        return found
    if field is None:
        names = ", ".join(f"`{name}`" for name in shape.schema.model_fields)
        raise _wrong("messages", f"The last message is the input as a JSON object with {names}.")
    return {field: text}


def text_field(shape: Shape) -> str | None:
    """The field that a bare text fills: the one that is text, where no other is needed."""
    fields = shape.schema.model_fields
    texts = [name for name, field in fields.items() if _is_text(field.annotation)]
    needed = [name for name, field in fields.items() if field.is_required()]
    found = [name for name in texts if name in needed] or texts
    return found[0] if len(found) == 1 and needed in ([], found) else None


def _is_text(annotation: Any) -> bool:
    kinds = set(get_args(annotation)) or {annotation}
    return str in kinds and kinds <= {str, type(None)}


def _data(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _wrong(param: str, words: str) -> WrongError:
    return WrongError(400, "invalid_request_error", words, param=param)


# What goes out


def models(name: str, since: int) -> Message:
    return {"object": "list", "data": [{"id": name, "object": "model", "created": since, "owned_by": "acorn"}]}


def completion(run: Run, name: str, shape: Shape) -> Message:
    """The answer in one piece."""
    message = {"role": "assistant", "content": answer_of(run, shape)}
    more = {"paused": paused(run.output)} if isinstance(run.output, Paused) else {}
    return {
        "id": f"chatcmpl-{run.id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": name,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": _usage(run),
        **more,
    }


def answer_of(run: Run, shape: Shape) -> str:
    """The output as text; of a run that waits, what it asks."""
    if isinstance(run.output, Paused):
        return "\n".join(request.question for request in run.output.requests)
    check_finished(run)
    text = _only_text(run.output, shape)
    return to_json_text(run.output) if text is None else text


def _only_text(output: Any, shape: Shape) -> str | None:
    """The text that an output is, or that is all it has."""
    fields = shape.schema.model_fields
    if len(fields) == 1 and not shape.wrapped and output is not None:
        output = getattr(output, next(iter(fields)), None)
    is_one = shape.wrapped or len(fields) == 1
    return output if is_one and isinstance(output, str) else None


def _usage(run: Run) -> Message:
    usage = run.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class CompletionStream:
    """The answer in pieces. Thinking, and text that is no answer, are `reasoning_content`, which many clients show."""

    def __init__(self, name: str, shape: Shape, secrets: ServiceRedactor, *, tells_usage: bool) -> None:
        self._shape, self._secrets, self._tells_usage = shape, secrets, tells_usage
        made = {"id": f"chatcmpl-{os.urandom(16).hex()}", "created": int(time.time())}
        self._head = {**made, "object": "chat.completion.chunk", "model": name}
        self._raw = ""
        """The answer as far as it has come."""
        self._answer, self._thinking = RedactedStream(secrets), RedactedStream(secrets)
        self._has_begun = False

    def written(self, chunks: Sequence[Chunk]) -> bytes:
        pieces = [piece for chunk in chunks for piece in self._pieces(chunk)]
        return b"".join(event(self._secrets, piece) for piece in pieces) + (
            b"data: [DONE]\n\n" if chunks and chunks[-1].run is not None else b""
        )

    def _pieces(self, chunk: Chunk) -> Iterator[Message]:
        if chunk.branch is not None:
            return
        if not self._has_begun:
            self._has_begun = True
            yield self._delta({"role": "assistant", "content": ""})
        if chunk.run is not None:
            yield from self._end(chunk.run)
            return
        if thought := chunk.reasoning or chunk.content:
            yield from self._said("reasoning_content", self._thinking.add(thought))
        elif rest := self._thinking.rest():
            yield from self._said("reasoning_content", rest)
        if chunk._answer is not None and (text := _only_text(chunk.partial, self._shape)) is not None:
            yield from self._said("content", self._answer.add(self._new_in(text)))

    def _new_in(self, text: str) -> str:
        """What a text has beyond what was there. A corrected one begins anew, since nothing can be taken back."""
        raw = self._raw
        if raw.startswith(text):
            return ""
        self._raw = text
        return text[len(raw) :] if text.startswith(raw) else f"\n\n{text}"

    def _end(self, run: Run) -> Iterator[Message]:
        yield from self._said("reasoning_content", self._thinking.rest())
        text = answer_of(run, self._shape)
        yield from self._said("content", self._answer.add(self._new_in(text)) + self._answer.rest())
        more = {"paused": paused(run.output)} if isinstance(run.output, Paused) else {}
        yield self._delta({}, finish="stop") | more
        if self._tells_usage:
            yield {**self._head, "choices": [], "usage": _usage(run)}

    def _said(self, name: str, text: str) -> list[Message]:
        return [self._delta({name: text})] if text else []

    def _delta(self, delta: Mapping[str, Any], finish: str | None = None) -> Message:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**self._head, "choices": [choice], **({"usage": None} if self._tells_usage else {})}
