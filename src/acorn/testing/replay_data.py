"""The parts of a recorded run that a generated test needs, and their conversion to Python literals.

Text from a run always becomes a string literal, never code.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Sequence

from pydantic_core import from_json

from acorn._inside import text_of, to_compact_json
from acorn.errors import LimitError, ModelError
from acorn.journal import Compacted, InputReceived, InputRequested, MessagesAdded, ModelResponded
from acorn.record import Run
from acorn.types import JsonObject, Message, is_json_list, is_json_object, is_list_or_tuple

Turn = Compacted | ModelResponded | ModelError
"""A response of the model, a summary by the model, or the provider error that ended the run."""


def skip_reason(run: Run) -> str | None:
    """Return the reason why a scripted model cannot repeat the run, or None if a scripted model can repeat it."""
    requests, answers = input_requests(run), _received_answers(run)
    has_open_requests = any(request_id not in answers for _, request_id, _ in requests)
    if has_open_requests and (run.stop_reason != "paused" or answers):
        return "some requests for human input were not answered"
    if run.error is not None and requests:
        return "the run failed after it requested human input; add an `on_human` with the same answers"
    if run.stop_reason is None:
        return "the run had not ended when this test was written"
    if run.stop_reason == "cancelled":
        return "the run was interrupted, which a script cannot repeat"
    if isinstance(run.error, LimitError):
        return "the run reached a limit of tokens, cost or time, which a script does not reach"
    return None


# Runs and model turns


def runs_in_tree(run: Run) -> list[Run]:
    return [run, *branches_of(run)]


def branches_of(run: Run) -> list[Run]:
    return [member for branch in run.branches for member in runs_in_tree(branch)]


def is_nested(one: Run, other: Run) -> bool:
    return any(member is other for member in runs_in_tree(one)) or any(member is one for member in runs_in_tree(other))


def start_time(run: Run) -> float:
    return 0.0 if run.started is None else run.started.timestamp()


def request_time(run: Run, turn: Turn) -> float:
    return start_time(run) + (run.seconds if isinstance(turn, ModelError) else turn.asked)


def request_error(run: Run) -> ModelError | None:
    """Return the provider error that ended the run, or None if no provider error ended it.

    If the model refused to answer, the result is None, because a refusal is a response of the model.
    """
    if not isinstance(run.error, ModelError):
        return None
    responses = [entry for entry in run.journal.entries if isinstance(entry, ModelResponded)]
    return None if responses and responses[-1].refusal is not None else run.error


def first_messages(run: Run) -> Sequence[Message]:
    return next((entry.messages for entry in run.journal.entries if isinstance(entry, MessagesAdded)), ())


def input_text(run: Run) -> str:
    messages = first_messages(run)
    return text_of(messages[-1].get("content")) if messages else ""


# Human input


def input_requests(run: Run) -> list[tuple[float, str, str]]:
    """Return (time, request id, kind) for all requests for human input in a run and its branches, sorted by time."""
    return sorted(
        (start_time(member) + entry.at, entry.request_id, entry.kind)
        for member in runs_in_tree(run)
        for entry in member.journal.entries
        if isinstance(entry, InputRequested)
    )


def _received_answers(run: Run) -> dict[str, str]:
    entries = (entry for member in runs_in_tree(run) for entry in member.journal.entries)
    return {entry.request_id: entry.answer for entry in entries if isinstance(entry, InputReceived)}


def human_answers(run: Run) -> list[str | bool | JsonObject]:
    """Return the recorded answers to requests for human input, in the order of the requests."""
    texts = _received_answers(run)
    answers = ((texts[request_id], kind) for _, request_id, kind in input_requests(run) if request_id in texts)
    return [parse_approval(text) if kind == "approval" else text for text, kind in answers]


# Literals and names


def literal(value: object, redact: Callable[[str], str] = str) -> str:
    """Convert JSON data to the source code of a Python literal. `redact` removes secrets from every text."""
    if is_json_object(value):
        items = (f"{literal(key, redact)}: {literal(item, redact)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if is_list_or_tuple(value):
        return f"[{', '.join(literal(item, redact) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    # A subclass of `str` may return another text, so this calls `str.__str__`.
    return repr(redact(str.__str__(value) if isinstance(value, str) else str(value)))


def is_identifier(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def is_keyword_argument(name: object) -> bool:
    """Return True if generated code can use the name as a keyword argument.

    The name must be ASCII, because Python normalizes other names and could change them.
    """
    return isinstance(name, str) and name.isascii() and is_identifier(name)


def split_class_path(path: str) -> tuple[str | None, str]:
    """Split a path such as `package.file:Class` into the Python module and the class name.

    The Python module is None if a test cannot import the class, for example because it is in `__main__`.
    """
    module, _, name = path.partition(":")
    is_class = is_identifier(name)
    is_module = bool(module) and all(map(is_identifier, module.split("."))) and module != "__main__"
    return (module if is_class and is_module else None), (name if is_class else "Agent")


def parse_arguments(text: str) -> JsonObject | None:
    """Parse the JSON arguments of a tool call for use as keyword arguments of `call(...)`.

    The result is None if `call(...)` would not generate exactly the same JSON text.
    """
    try:
        arguments: object = from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
    if not is_json_object(arguments) or not all(map(is_keyword_argument, arguments)) or "_id" in arguments:
        return None
    return arguments if to_compact_json(arguments) == text and is_exact(arguments) else None


def parse_approval(text: str) -> str | bool | JsonObject:
    """Convert a recorded answer to an approval request to a boolean, a dict of changed arguments, or a text."""
    try:
        value: object = from_json(text)
    except ValueError:
        return text
    return value if isinstance(value, bool) or is_json_object(value) else text


def is_exact(value: object) -> bool:
    """Return True if JSON data is equal to the value of its Python literal.

    This is False for NaN, infinite numbers, and texts with lone surrogates.
    """
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if is_json_object(value):
        return all(is_exact(key) and is_exact(item) for key, item in value.items())
    return all(map(is_exact, value)) if is_json_list(value) else True
