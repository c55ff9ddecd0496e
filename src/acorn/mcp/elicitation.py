"""Elicitation: a server that asks a person during a call. Also the timeouts of calls, which stop meanwhile.

A server asks the `on_human` of the run that made the call. acorn checks the answer against the server's form before it
sends it.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import os
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from jsonschema import Draft202012Validator
from referencing import Registry

from acorn._inside import describe_errors, replace_surrogates, shorten, to_json_data
from acorn._inside.runs import OwnerLoop, call_on_loop, current_machine
from acorn.mcp.tools import clean, has_invisible, truncate
from acorn.types import JsonObject, Request, is_json_list, is_json_object

Call = asyncio.Task[Any]
Action = Literal["accept", "decline", "cancel"]
Fields = dict[str, JsonObject]
"""The fields of a form, by name."""
Progress = Callable[[str, float, float | None, str | None], object]
"""Receives the name of the tool, the progress, the total and the message of the server."""


class _CallTimer:
    __slots__ = ("deadline", "is_expired", "open_questions")

    def __init__(self) -> None:
        self.deadline = math.inf
        self.open_questions = 0
        self.is_expired = False


class CallTimeouts:
    """The timeouts of the calls of one connection.

    A server may be silent for `seconds` in a call. One timer serves all calls, because most of them end soon. A call
    that expires is cancelled; `is_expired` tells this from the cancellation of its run, whichever comes first.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timers: dict[Call, _CallTimer] = {}
        self._handle: asyncio.TimerHandle | None = None

    def start(self, call: Call) -> None:
        self._timers[call] = _CallTimer()
        self._set_deadline(call, self.seconds)

    def finish(self, call: Call) -> None:
        del self._timers[call]

    def restart(self, call: Call) -> None:
        """Restart the timeout of a call, because the server reported progress."""
        if (timer := self._timers.get(call)) is not None and not timer.open_questions:
            self._set_deadline(call, self.seconds)

    @contextmanager
    def pause(self, call: Call) -> Generator[None]:
        """Stop the timeout of a call while a person is asked."""
        timer = self._timers[call]
        seconds_left = timer.deadline - self._loop.time()
        timer.open_questions += 1
        timer.deadline = math.inf
        try:
            yield
        finally:
            timer.open_questions -= 1
            if not timer.open_questions and call in self._timers:
                self._set_deadline(call, min(seconds_left, self.seconds))

    def is_expired(self, call: Call) -> bool:
        """Return whether a cancelled call was cancelled only by its timeout."""
        return self._timers[call].is_expired and call.uncancel() == 0

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _set_deadline(self, call: Call, seconds: float) -> None:
        deadline = self._timers[call].deadline = self._loop.time() + seconds
        if self._handle is None or deadline < self._handle.when():
            self._schedule(deadline)

    def _schedule(self, deadline: float) -> None:
        self.close()
        self._handle = self._loop.call_at(deadline, self._cancel_expired)

    def _cancel_expired(self) -> None:
        self._handle = None
        now = self._loop.time()
        for call, timer in self._timers.items():
            if timer.deadline <= now:
                timer.is_expired, timer.deadline = True, math.inf
                call.cancel()
        nearest = min((timer.deadline for timer in self._timers.values()), default=math.inf)
        if nearest != math.inf:
            self._schedule(nearest)


_MAX_QUESTION = 4000


@dataclass(eq=False)
class Caller:
    """The caller of a tool: its event loop, its context and its run."""

    tool: str
    arguments: JsonObject
    owner_loop: OwnerLoop | None
    """None if the caller has no event loop and waits in a thread."""
    context: contextvars.Context
    run_id: str = ""
    branch: str | None = None
    on_human: Callable[[Request], Any] | None = None
    call: Call | None = None
    """The task of the call on the event loop of the servers."""
    timeouts: CallTimeouts | None = None
    failure: str | None = None
    """Why the person could not be asked, or why the answer is invalid. Only the run sees it, not the server."""

    @classmethod
    def here(cls, tool: str, arguments: JsonObject, owner_loop: OwnerLoop | None) -> Caller:
        """Return the caller for the code that is running now."""
        context, machine = contextvars.copy_context(), current_machine()
        if machine is None:
            return cls(tool, arguments, owner_loop, context)
        return cls(tool, arguments, owner_loop, context, machine.run.id, machine.path or None, machine.plan.on_human)

    async def ask(self, question: str, choices: tuple[str, ...] | None) -> Any:
        """Ask the `on_human` of the run and return its answer. The timeout of the call stops meanwhile."""
        assert self.on_human is not None
        request = Request(
            os.urandom(16).hex(), self.run_id, "question", truncate(clean(question), _MAX_QUESTION), self.tool,
            self.arguments, self.branch, datetime.now(UTC), choices,
        )  # fmt: skip
        assert self.timeouts is not None
        assert self.call is not None
        with self.timeouts.pause(self.call):
            return await asyncio.create_task(self._ask(request), context=self.context.copy())

    async def _ask(self, request: Request) -> Any:
        assert self.on_human is not None
        return await call_on_loop(self.owner_loop, self.on_human, request)

    def notify(self, callback: Callable[[], object]) -> None:
        """Call a function on the caller's event loop, in order. Without an event loop, call it in a thread."""
        context = self.context.copy()
        if self.owner_loop is None:
            _notifications.put((context, callback))
            _start_notifier(os.getpid())
            return
        with suppress(RuntimeError):  # The loop is closed, so the run is over.
            self.owner_loop.loop.call_soon_threadsafe(callback, context=context)


_notifications: queue.SimpleQueue[tuple[contextvars.Context, Callable[[], object]]] = queue.SimpleQueue()


@lru_cache(maxsize=1)
def _start_notifier(process_id: int) -> None:
    """Start the thread that notifies sync runs, once per process."""
    threading.Thread(target=_notify_all, name="acorn-mcp-progress", daemon=True).start()


def _notify_all() -> None:
    while True:
        context, callback = _notifications.get()
        context.run(callback)


def can_ask_here() -> bool:
    """Return whether the current run has an `on_human`."""
    machine = current_machine()
    return machine is not None and machine.plan.on_human is not None


async def answer_form(caller: Caller, message: str, schema: JsonObject) -> tuple[Action, JsonObject | None]:
    """Return the response to a form: `accept` with the answers, `decline`, or `cancel` if there is no answer."""
    properties = schema.get("properties")
    fields: Fields = properties if is_json_object(properties) else {}
    defaults = _defaults(fields, schema)
    question = _question(message, fields, defaults)
    if len(question) > _MAX_QUESTION:  # The person could not see a default that is cut off.
        defaults, question = {}, _question(message, fields, {})
    answer = replace_surrogates(to_json_data(await caller.ask(question, _choices(fields))))
    if answer is None:
        return "cancel", None
    if answer is False and not _takes_bool(fields):
        return "decline", None
    answers: JsonObject = answer if is_json_object(answer) else dict.fromkeys(list(fields)[:1], answer)
    answers = answers | {name: default for name, default in defaults.items() if name not in answers}
    _check(answers, fields, schema, is_dict=is_json_object(answer) or (answer is True and not fields))
    return "accept", answers


async def answer_url(caller: Caller, message: str, url: str) -> Action:
    """Return the response to a request to open a URL. acorn does not open it."""
    answer = await caller.ask(f"{message}\nOpen {url} and say yes when that is done.", None)
    return "cancel" if answer is None else "accept" if answer is True else "decline"


def _question(message: str, fields: Fields, defaults: JsonObject) -> str:
    """Return the question: the message, the fields if there are several, and the defaults."""
    notes = {name: f" (default: {_as_json(default)})" for name, default in defaults.items()}
    if len(fields) < 2:
        has_plain_choices = _choices(fields) is not None and not any(map(_has_titles, fields.values()))
        options = "" if has_plain_choices else "".join(map(_describe_options, fields.values()))
        return message + options + "".join(notes.values())
    lines = [
        f"- {name}: {field.get('description') or field.get('type') or 'any'}{_describe_options(field)}"
        + notes.get(name, "")
        for name, field in fields.items()
    ]
    return "\n".join([message, "Answer with a dict of:", *lines])


def _defaults(fields: Fields, schema: JsonObject) -> JsonObject:
    """Return the valid defaults of a form that contain only visible characters."""
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    if not defaults:
        return {}
    form = make_validator(schema)
    return {
        name: default
        for name, default in defaults.items()
        if _can_be_sent(default)
        and not has_invisible(_as_json(default))
        and not any(form.descend(default, fields[name]))
    }


def _can_be_sent(default: object) -> bool:
    """Return whether a default has a type that MCP forms allow."""
    if is_json_list(default):
        return all(isinstance(item, str) for item in default)
    return isinstance(default, str | int | float)


def _as_json(default: object) -> str:
    return json.dumps(default, ensure_ascii=False)


def _choices(fields: Fields) -> tuple[str, ...] | None:
    """Return the choices of a form with one field."""
    field = next(iter(fields.values())) if len(fields) == 1 else {}
    return None if field.get("type") == "array" else tuple(_options(field)) or None


def _options(field: JsonObject) -> dict[str, str]:
    """Return the titles of the values that may be chosen in a field or in its list."""
    inner = field.get("items", {}) if field.get("type") == "array" else field
    values, titles = inner.get("enum"), inner.get("enumNames")
    if is_json_list(values):
        names = titles if is_json_list(titles) and len(titles) == len(values) else values
        options = dict(zip(map(str, values), map(str, names), strict=True))
    else:
        members = [member for member in inner.get("oneOf") or inner.get("anyOf") or () if "const" in member]
        options = {str(member["const"]): str(member.get("title", member["const"])) for member in members}
    if any(map(has_invisible, [*options, *options.values()])):
        raise ValueError("the server hides characters that nobody can see in the choices")
    return options


def _has_titles(field: JsonObject) -> bool:
    return any(value != title for value, title in _options(field).items())


def _describe_options(field: JsonObject) -> str:
    options = [value if value == title else f"{value} = {title}" for value, title in _options(field).items()]
    how_many = "any of" if field.get("type") == "array" else "one of"
    return f" ({how_many}: {', '.join(options)})" if options else ""


def _takes_bool(fields: Fields) -> bool:
    return len(fields) == 1 and next(iter(fields.values())).get("type") == "boolean"


def _check(answers: JsonObject, fields: Fields, schema: JsonObject, *, is_dict: bool) -> None:
    """Raise `ValueError` if the answers do not fit the form."""
    if not is_dict and len(fields) != 1:
        raise ValueError(f"the form has the fields {', '.join(fields)}; answer with a dict of them")
    problems = list(describe_errors(make_validator(schema).iter_errors(answers), schema))
    if problems:
        raise ValueError(shorten("; ".join(map(str, problems)), 500))


def make_validator(schema: JsonObject) -> Any:
    """Return the validator of a schema."""
    registry = Registry[Any]()  # The default registry fetches unknown schemas from the web.
    return Draft202012Validator(schema, registry=registry)
