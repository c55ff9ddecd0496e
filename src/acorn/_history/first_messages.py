"""The first messages of a run: the system prompt, the messages of an earlier run, and the input as XML."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from pydantic import BaseModel
from typing_extensions import TypeIs

from acorn._declare.spec import Spec
from acorn._formats.blobs import format_size, to_saved_data
from acorn._formats.json import PartCollector, excerpt, find_path, safe_repr, shorten
from acorn._formats.schema.problems import input_problem
from acorn._formats.xml.encode import encode_xml
from acorn._history.history import ROLES, SYSTEM_ROLES
from acorn._history.repair import NO_RESULT, missing_results
from acorn.errors import AcornError, DeclarationError, InputError, LimitError
from acorn.journal import MessagesAdded
from acorn.models.request import SentMedium, media_of
from acorn.record import Run, history_of_run
from acorn.types import Message, is_json_object, is_list_or_tuple


def input_message(spec: Spec, run_input: BaseModel) -> Message:
    """Return the run input as one user message that contains XML text and then the media parts."""
    parts = PartCollector()
    unserializable: list[object] = []
    text = encode_xml(run_input, spec.xml_input_root, spec.xml, parts, unserializable)
    if unserializable:
        raise _unserializable_input(spec.owner, run_input, unserializable)
    message: Message = {"role": "user", "content": parts.content(text)}
    if parts.parts:
        check_media(spec, media_of(message), InputError)
    return message


def check_media(spec: Spec, media: Sequence[SentMedium], kind: type[AcornError] = LimitError) -> None:
    """Raise an error of class `kind` if all media of a request together are larger than `max_media_bytes`."""
    limit, size = spec.max_media_bytes, sum(medium.size for medium in media)
    if limit is None or size <= limit:
        return
    largest = max(media, key=lambda medium: medium.size)
    count = "1 medium" if len(media) == 1 else f"{len(media)} media"
    raise kind(
        f"The media in one request of `{spec.owner}` are too large: {count} of {format_size(size)}, but the limit is "
        f"{format_size(limit)}. The largest is in {largest.source} ({format_size(largest.size)}). Make the media "
        f"smaller, or increase `max_media_bytes` if the model accepts more."
    )


def _unserializable_input(owner: str, run_input: BaseModel, values: Sequence[object]) -> InputError:
    problems: list[dict[str, str]] = []
    for value in values:
        path, kind = find_path(value, run_input) or "input", type(value).__name__
        message = f"`{path}` is an instance of `{kind}`, of which a model could read only an address in memory"
        problems.append(input_problem(path, "a value that can be written as text", excerpt(value, 200), message))
    messages = "; ".join(dict.fromkeys(problem["message"] for problem in problems))
    return InputError(
        f"Wrong input for `{owner}`: {messages}. Pass text, plain data or an instance of a schema, or give the class a "
        f"`__repr__`.",
        problems=problems,
    )


def prompt_text(spec: Spec, returned: object) -> str:
    """Return the text that the method `system_prompt` returned, without its common indentation.

    Raise `DeclarationError` if the method did not return a string.
    """
    if not isinstance(returned, str):
        raise DeclarationError(
            f"`{spec.owner}.system_prompt` must return a string, got {shorten(safe_repr(returned), 120)}."
        )
    return inspect.cleandoc(returned)


def first_messages(prompt: str, prior: Sequence[Message], opening: Message) -> list[Message]:
    """Return the first messages of a run: the system prompt, the earlier messages and the input message.

    If the prompt is empty, there is no system message.
    """
    messages: list[Message] = [{"role": "system", "content": prompt}] if prompt.strip() else []
    if prior:
        earlier = [to_saved_data(message) for message in prior]  # The user may change the prior messages later.
        for index, results in missing_results(earlier, NO_RESULT):
            earlier[index:index] = results
        messages += earlier
    return [*messages, opening]


def prior_messages(history: object, owner: str) -> list[Message]:
    """Return the messages from `using(history=...)`, which accepts a list or a `Run`.

    The system prompt is left out, because the new run adds its own prompt. Other system messages stay at their
    positions.
    """
    if history is None:
        return []
    messages: object = history_of_run(history).current if _is_run(history) else history
    if not is_list_or_tuple(messages):
        raise _wrong_history("history", "a list of messages or a record of a run", history, owner)
    for index, message in enumerate(messages):
        if not is_json_object(message) or message.get("role") not in ROLES:
            raise _wrong_history(f"history[{index}]", f"a dict with a `role` of {', '.join(ROLES)}", message, owner)
    prompt_index = _prompt_index(messages, history)
    return [message for index, message in enumerate(messages) if index != prompt_index]


def _is_run(value: object) -> TypeIs[Run]:
    return isinstance(value, Run)


def _prompt_index(messages: Sequence[Message], history: object) -> int | None:
    """Return the index of the system prompt in the messages, or None if they contain no system prompt.

    The user may have moved or edited the prompt of an earlier run.
    """
    is_first = bool(messages) and messages[0].get("role") in SYSTEM_ROLES
    if _is_run(history):
        start = next((entry for entry in history.journal.entries if isinstance(entry, MessagesAdded)), None)
        if start is not None:
            if not start.messages or start.messages[0].get("role") not in SYSTEM_ROLES:
                return None
            prompt = start.messages[0]
            equal = (
                index
                for index, message in enumerate(messages)
                if message.get("role") in SYSTEM_ROLES and message == prompt
            )
            return next(equal, 0 if is_first else None)
    return 0 if is_first else None


def _wrong_history(path: str, expected: str, value: object, owner: str) -> InputError:
    message = f"`{path}` of `{owner}` must be {expected}, got {excerpt(value)}."
    return InputError(message, problems=[input_problem(path, expected, excerpt(value, 200), message)])
