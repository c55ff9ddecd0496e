"""The first messages of a run: the prompt, an earlier conversation, the input as XML."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from acorn._declare.spec import Spec
from acorn._formats.blobs import format_size
from acorn._formats.content import PartCollector
from acorn._formats.json import copy_json, excerpt, find_path, safe_repr, shorten
from acorn._formats.schema.problems import input_problem
from acorn._formats.xml.encode import encode_xml
from acorn._history.messages import NO_RESULT, close_calls, user
from acorn._history.repair import SYSTEM
from acorn._history.request_messages import ROLES
from acorn.errors import AcornError, DeclarationError, InputError, LimitError
from acorn.journal import MessagesAdded
from acorn.models.request_body import SentMedium, media_of
from acorn.record import Message, Run


def input_message(spec: Spec, given: BaseModel) -> Message:
    """The input as one user message, the parts that are in it behind its XML."""
    parts = PartCollector()
    strangers: list[object] = []
    text = encode_xml(given, spec.xml_input_root, spec.xml, parts, strangers)
    if strangers:
        raise _unreadable(spec.owner, given, strangers)
    made = user(parts.content(text))
    if parts.found:
        check_media(spec, media_of(made), InputError)
    return made


def check_media(spec: Spec, media: Sequence[SentMedium], kind: type[AcornError] = LimitError) -> None:
    """Refuse more pictures and files than may be sent at once."""
    most, size = spec.max_media_bytes, sum(medium.size for medium in media)
    if most is None or size <= most:
        return
    largest = max(media, key=lambda medium: medium.size)
    count = "it is" if len(media) == 1 else f"the {len(media)} media of a request are"
    raise kind(
        f"`{spec.owner}` may send {format_size(most)} of media at once, and {count} {format_size(size)} in all, the "
        f"largest in {largest.place} ({format_size(largest.size)}); make them smaller, or raise `max_media_bytes` if "
        f"the model takes more."
    )


def _unreadable(owner: str, given: BaseModel, strangers: Sequence[object]) -> InputError:
    found: list[dict[str, str]] = []
    for stranger in strangers:
        path, kind = find_path(stranger, given) or "input", type(stranger).__name__
        words = f"`{path}` is of the class `{kind}`, of which a model could read nothing but an address in memory"
        found.append(input_problem(path, "a value that can be written as text", excerpt(stranger, 200), words))
    told_all = "; ".join(dict.fromkeys(each["message"] for each in found))
    return InputError(
        f"Wrong input for `{owner}`: {told_all}. Pass text, plain data or an instance of a schema, or give the class a "
        f"`__repr__`.",
        problems=found,
    )


def prompt_text(spec: Spec, returned: Any) -> str:
    """What a prompt method returned, as text."""
    if not isinstance(returned, str):
        raise DeclarationError(
            f"`{spec.owner}.system_prompt` must return a string, got {shorten(safe_repr(returned), 120)}."
        )
    return inspect.cleandoc(returned)


def first_messages(prompt: str, prior: Sequence[Message], opening: Message) -> list[Message]:
    """The history a run begins with; an empty prompt sends no system message."""
    system: list[Message] = [{"role": "system", "content": prompt}] if prompt.strip() else []
    earlier = [copy_json(message) for message in prior]
    close_calls(earlier, NO_RESULT)
    return [*system, *earlier, copy_json(opening)]


def prior_messages(history: object, owner: str) -> list[Message]:
    """The messages that `using(history=...)` brings along, from a list, the record of a run, or None for none.

    The prompt is not among them, since the new run has its own; other system messages stay where they stand.
    """
    if history is None:
        return []
    found = history.history if isinstance(history, Run) else history
    if not isinstance(found, list | tuple):
        raise _wrong_history("history", "a list of messages or a record of a run", history, owner)
    for index, message in enumerate(found):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise _wrong_history(f"history[{index}]", f"a dict with a `role` of {', '.join(ROLES)}", message, owner)
    at = _where_prompt_stands(found, history)
    return [message for index, message in enumerate(found) if index != at]


def _where_prompt_stands(messages: Sequence[Message], history: object) -> int | None:
    """Which message is the prompt: of a run what it began with, which may have been moved or edited since."""
    is_first = bool(messages) and messages[0].get("role") in SYSTEM
    if isinstance(history, Run):
        begun = next((entry for entry in history.journal.entries if isinstance(entry, MessagesAdded)), None)
        if begun is not None:
            if not begun.messages or begun.messages[0].get("role") not in SYSTEM:
                return None
            prompt = begun.messages[0]
            same = (at for at, message in enumerate(messages) if message.get("role") in SYSTEM and message == prompt)
            return next(same, 0 if is_first else None)
    return 0 if is_first else None


def _wrong_history(path: str, expected: str, value: object, owner: str) -> InputError:
    message = f"`{path}` of `{owner}` must be {expected}, got {excerpt(value)}."
    return InputError(message, problems=[input_problem(path, expected, excerpt(value, 200), message)])
