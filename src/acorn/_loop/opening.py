"""The first messages of a run: the prompt, an earlier conversation, the input as XML."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from acorn._content import Parts
from acorn._json import safe_repr, shorten, told
from acorn._loop.messages import NO_RESULT, close_calls, copied, user
from acorn._loop.wire_history import ROLES
from acorn._spec import Spec
from acorn._xml.encode import encode
from acorn.errors import DeclarationError, InputError
from acorn.record import Message, Run


def input_message(spec: Spec, given: BaseModel) -> Message:
    """The input as one user message, the parts that are in it behind its XML."""
    parts = Parts()
    return user(parts.content(encode(given, spec.xml_input_root, spec.xml, parts)))


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
    earlier = [copied(message) for message in prior if message.get("role") not in ("system", "developer")]
    close_calls(earlier, NO_RESULT)
    return [*system, *earlier, copied(opening)]


def prior_messages(history: object, owner: str) -> list[Message]:
    """The messages that `using(history=...)` brings along: a list, the record of a run, or None for no messages."""
    if history is None:
        return []
    found = history.history if isinstance(history, Run) else history
    if not isinstance(found, list | tuple):
        raise InputError(
            f"`history` of `{owner}` must be a list of messages or a record of a run, got {told(history)}."
        )
    for index, message in enumerate(found):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise InputError(
                f"`history[{index}]` of `{owner}` must be a dict with a `role` of {', '.join(ROLES)}, "
                f"got {told(message)}."
            )
    return list(found)
