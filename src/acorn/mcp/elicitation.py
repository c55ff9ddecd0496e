"""Elicitation: an MCP server requests human input during a tool call.

acorn passes the request to the `on_human` of the run that made the tool call. It validates the answer against the
server's form before it sends the answer to the server. While acorn waits for the answer, the timeout of the tool call
is paused.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from jsonschema import Draft202012Validator
from referencing import Registry

from acorn._inside import describe_errors, read_decision, replace_surrogates, shorten, to_json_data
from acorn._inside.runs import OwnerLoop, call_on_loop, current_machine
from acorn.mcp.tools import clean, has_invisible, truncate
from acorn.types import JsonObject, Request, is_json_list, is_json_object

Action = Literal["accept", "decline", "cancel"]
Fields = dict[str, JsonObject]
"""A dict that maps the field names of a form to the JSON schemas of the fields."""
Progress = Callable[[str, float, float | None, str | None], object]
"""A function that receives the tool name, the progress, the total and the server's message."""


_MAX_QUESTION = 4000
"""The maximum length of a question, in characters."""


@dataclass(eq=False)
class Caller:
    """The code that called an MCP tool, with its event loop, its `contextvars` context and its run."""

    tool: str
    arguments: JsonObject
    timeout: float
    """The maximum seconds of a call in which the server sends neither a result nor progress nor a question."""
    owner_loop: OwnerLoop | None
    """The event loop of the caller, or None if the caller waits in a thread."""
    context: contextvars.Context
    run_id: str = ""
    branch: str | None = None
    on_human: Callable[[Request], Any] | None = None
    timer: asyncio.Timeout = field(init=False)
    """The timer that ends the call after the timeout. It is set when the call starts."""
    open_questions: int = 0
    failure: str | None = None
    """The reason why acorn could not use the person's answer, or None. The run reports it, but not to the server."""

    @classmethod
    def here(cls, tool: str, arguments: JsonObject, timeout: float, owner_loop: OwnerLoop | None) -> Caller:
        """Create a `Caller` for the code that calls this method."""
        caller = cls(tool, arguments, timeout, owner_loop, contextvars.copy_context())
        if (machine := current_machine()) is not None:
            caller.run_id, caller.branch = machine.run.id, machine.path or None
            caller.on_human = machine.plan.on_human
        return caller

    def restart_timeout(self) -> None:
        """Restart the timeout of the tool call from the beginning, unless a person is answering a question."""
        if not self.open_questions:
            with suppress(RuntimeError):  # The call has ended.
                self.timer.reschedule(asyncio.get_running_loop().time() + self.timeout)

    async def ask(self, question: str, choices: tuple[str, ...] | None) -> Any:
        """Pass a question to the `on_human` of the run, and return the answer.

        The timeout of the tool call is paused until the answer arrives.
        """
        request = Request(
            os.urandom(16).hex(), self.run_id, "question", truncate(clean(question), _MAX_QUESTION), self.tool,
            self.arguments, self.branch, datetime.now(UTC), choices,
        )  # fmt: skip
        self.open_questions += 1
        self.timer.reschedule(None)
        try:
            assert self.on_human is not None
            answer = call_on_loop(self.owner_loop, self.on_human, request)
            return await asyncio.create_task(answer, context=self.context.copy())
        finally:
            self.open_questions -= 1
            self.restart_timeout()


def can_ask_here() -> bool:
    """Return True if the code runs inside a run that has an `on_human`."""
    machine = current_machine()
    return machine is not None and machine.plan.on_human is not None


async def answer_form(caller: Caller, message: str, schema: JsonObject) -> tuple[Action, JsonObject | None]:
    """Ask a person to fill in a form, and return the action and the answers for the server.

    The action is `accept` with the answers, `decline` if the person rejects the form, or `cancel` without an answer.
    """
    properties = schema.get("properties")
    fields: Fields = properties if is_json_object(properties) else {}
    defaults = _defaults(fields, schema)
    question = _question(message, fields, defaults)
    if len(question) > _MAX_QUESTION:  # A default that is cut off would not be visible.
        defaults, question = {}, _question(message, fields, {})
    answer = replace_surrogates(to_json_data(await caller.ask(question, _choices(fields))))
    if answer is None:
        return "cancel", None
    if answer is False and not _expects_bool(fields):
        return "decline", None
    answers: JsonObject = answer if is_json_object(answer) else dict.fromkeys(list(fields)[:1], answer)
    answers = answers | {name: default for name, default in defaults.items() if name not in answers}
    _check_answers(answers, fields, schema, is_dict=is_json_object(answer) or (answer is True and not fields))
    return "accept", answers


async def answer_url(caller: Caller, message: str, url: str) -> Action:
    """Ask a person to open a URL, and return the action for the server: `accept`, `decline` or `cancel`."""
    answer = await caller.ask(f"{message}\nOpen {url} and say yes when that is done.", None)
    decision = read_decision(answer)
    return "cancel" if answer is None else "accept" if decision is not None and decision["approved"] else "decline"


def _question(message: str, fields: Fields, defaults: JsonObject) -> str:
    """Return the text of the question: the server's message, the fields of the form, and their defaults."""
    notes = {name: f" (default: {_as_json(default)})" for name, default in defaults.items()}
    if len(fields) < 2:
        # The request contains choices without titles.
        titled = [field for field in fields.values() if _choices(fields) is None or _has_titles(field)]
        options = "".join(map(_describe_options, titled))
        return message + options + "".join(notes.values())
    lines = [
        f"- {name}: {field.get('description') or field.get('type') or 'any'}{_describe_options(field)}"
        + notes.get(name, "")
        for name, field in fields.items()
    ]
    return "\n".join([message, "Answer with a dict of:", *lines])


def _defaults(fields: Fields, schema: JsonObject) -> JsonObject:
    """Return a dict that maps the field names of a form to default values.

    It omits a default that is invalid, or that contains invisible characters, because the person could not check it.
    """
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    form = make_validator(schema)
    return {
        name: default
        for name, default in defaults.items()
        if not has_invisible(_as_json(default)) and not any(form.descend(default, fields[name]))
    }


def _as_json(default: object) -> str:
    return json.dumps(default, ensure_ascii=False)


def _choices(fields: Fields) -> tuple[str, ...] | None:
    """Return the allowed values if the form has exactly one field with a fixed set of values, and otherwise None."""
    field = next(iter(fields.values())) if len(fields) == 1 else {}
    return None if field.get("type") == "array" else tuple(_options(field)) or None


def _options(field: JsonObject) -> dict[str, str]:
    """Return a dict that maps the allowed values of a field, or of its list items, to the titles of these values."""
    inner = field.get("items", {}) if field.get("type") == "array" else field
    values, titles = inner.get("enum"), inner.get("enumNames")
    if is_json_list(values):
        names = titles if is_json_list(titles) and len(titles) == len(values) else values
        options = dict(zip(map(str, values), map(str, names), strict=True))
    else:
        members = [member for member in inner.get("oneOf") or inner.get("anyOf") or () if "const" in member]
        options = {str(member["const"]): str(member.get("title", member["const"])) for member in members}
    if any(map(has_invisible, [*options, *options.values()])):
        raise ValueError("the choices of the server's form contain invisible characters")
    return options


def _has_titles(field: JsonObject) -> bool:
    return any(value != title for value, title in _options(field).items())


def _describe_options(field: JsonObject) -> str:
    options = [value if value == title else f"{value} = {title}" for value, title in _options(field).items()]
    how_many = "any of" if field.get("type") == "array" else "one of"
    return f" ({how_many}: {', '.join(options)})" if options else ""


def _expects_bool(fields: Fields) -> bool:
    return len(fields) == 1 and next(iter(fields.values())).get("type") == "boolean"


def _check_answers(answers: JsonObject, fields: Fields, schema: JsonObject, *, is_dict: bool) -> None:
    """Raise `ValueError` if the person's answers do not fit the form of the server."""
    if not is_dict and len(fields) != 1:
        raise ValueError(f"the form has several fields. Answer with a dict that has the keys {', '.join(fields)}")
    problems = list(describe_errors(make_validator(schema).iter_errors(answers), schema))
    if problems:
        raise ValueError(shorten("; ".join(map(str, problems)), 500))


def make_validator(schema: JsonObject) -> Any:
    """Create a validator for a JSON Schema. It never loads referenced schemas from the web."""
    registry = Registry[Any]()  # The default registry would load unknown schemas from the web.
    return Draft202012Validator(schema, registry=registry)
