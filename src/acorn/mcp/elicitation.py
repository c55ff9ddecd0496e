"""How long a server may say nothing in a call: one timer for all calls of a connection, for most of them end soon.

A call that waits too long is cancelled, and `is_ours` tells that from a run that was cancelled, whichever came first.

A server that asks a person in the midst of a call asks the `on_human` of the run that made the call, nobody else.

What comes back is checked against the form that the server sent before the server sees it.
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
from functools import lru_cache, partial
from typing import Any

from acorn._inside import (
    OwnerLoop,
    call_async,
    call_in_thread,
    current_machine,
    describe_errors,
    replace_surrogates,
    shorten,
    to_json_data,
)
from acorn.mcp.tools import clean, cut, has_unseen
from acorn.types import JsonObject, Request

Call = asyncio.Task[Any]


class _Wait:
    __slots__ = ("is_late", "questions", "until")

    def __init__(self) -> None:
        self.until = math.inf
        self.questions = 0
        self.is_late = False


class Silence:
    """The calls under way in one connection, and until when each of them waits."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._waits: dict[Call, _Wait] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, call: Call) -> None:
        self._waits[call] = _Wait()
        self._wait(call, self.seconds)

    def end(self, call: Call) -> None:
        del self._waits[call]

    def heard(self, call: Call) -> None:
        """The server has said something, and has all the time again."""
        if (wait := self._waits.get(call)) is not None and not wait.questions:
            self._wait(call, self.seconds)

    @contextmanager
    def asking(self, call: Call) -> Generator[None]:
        """A person is asked meanwhile, which takes none of the server's time."""
        wait = self._waits[call]
        left = wait.until - self._loop.time()
        wait.questions += 1
        wait.until = math.inf
        try:
            yield
        finally:
            wait.questions -= 1
            if not wait.questions and call in self._waits:
                self._wait(call, min(left, self.seconds))

    def is_ours(self, call: Call) -> bool:
        """Whether a call that was cancelled was cancelled here, and by nobody else."""
        return self._waits[call].is_late and call.uncancel() == 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, call: Call, seconds: float) -> None:
        until = self._waits[call].until = self._loop.time() + seconds
        if self._timer is None or until < self._timer.when():
            self._look_at(until)

    def _look_at(self, until: float) -> None:
        self.close()
        self._timer = self._loop.call_at(until, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for call, wait in self._waits.items():
            if wait.until <= now:
                wait.is_late, wait.until = True, math.inf
                call.cancel()
        nearest = min((wait.until for wait in self._waits.values()), default=math.inf)
        if nearest != math.inf:
            self._look_at(nearest)


_LONGEST_QUESTION = 4000


@dataclass(eq=False)
class Caller:
    """Who calls a tool: the event loop and the context of the call, and the run that it belongs to."""

    tool: str
    arguments: JsonObject
    home: OwnerLoop | None
    """None where the caller has no event loop, and waits in a thread."""
    context: contextvars.Context
    run_id: str = ""
    branch: str | None = None
    on_human: Callable[[Request], Any] | None = None
    call: asyncio.Task[Any] | None = None
    silence: Silence | None = None
    """What makes the call on the loop of servers, and ends it when the server says nothing for too long."""
    failure: str | None = None
    """Why a person could not be asked, or the answer not be used. That is for the run, and not for the server."""

    @classmethod
    def here(cls, tool: str, arguments: JsonObject, home: OwnerLoop | None) -> Caller:
        """The code that is running now, and the loop on which it waits, if it is on one."""
        context, machine = contextvars.copy_context(), current_machine()
        if machine is None:
            return cls(tool, arguments, home, context)
        return cls(tool, arguments, home, context, machine.run.id, machine.path or None, machine.plan.on_human)

    async def ask(self, question: str, choices: tuple[str, ...] | None) -> Any:
        """What the person says, asked where the call came from; the clock of the call stands still meanwhile."""
        assert self.on_human is not None
        request = Request(
            os.urandom(16).hex(), self.run_id, "question", cut(clean(question), _LONGEST_QUESTION), self.tool,
            self.arguments, self.branch, datetime.now(UTC), choices,
        )  # fmt: skip
        assert self.silence is not None
        assert self.call is not None
        with self.silence.asking(self.call):
            return await asyncio.create_task(self._asked(request), context=self.context.copy())

    async def _asked(self, request: Request) -> Any:
        assert self.on_human is not None
        if self.home is not None:
            return await self.home.run(partial(call_async, self.on_human, request))
        return await asyncio.wrap_future(call_in_thread(self.on_human, request))

    def tell(self, told: Callable[[], object]) -> None:
        """Call something in order on the caller's loop; where it has none, in a thread for such."""
        context = self.context.copy()
        if self.home is None:
            _news.put((context, told))
            _start_telling()
            return
        with suppress(RuntimeError):  # its loop has ended, and the run with it
            self.home.loop.call_soon_threadsafe(told, context=context)


_news: queue.SimpleQueue[tuple[contextvars.Context, Callable[[], object]]] = queue.SimpleQueue()


@lru_cache(maxsize=1)
def _telling(process: int) -> None:
    """The thread that tells the news of sync runs, one a process."""
    threading.Thread(target=_tell_all, name="acorn-mcp-progress", daemon=True).start()


def _start_telling() -> None:
    _telling(os.getpid())


def _tell_all() -> None:
    while True:
        context, told = _news.get()
        context.run(told)


def asks_people_here() -> bool:
    """Whether the run that the calling code is in has somebody to ask."""
    machine = current_machine()
    return machine is not None and machine.plan.on_human is not None


async def answer_form(caller: Caller, message: str, schema: JsonObject) -> tuple[str, JsonObject | None]:
    """What the server is told: `accept` with the answers, `decline`, or `cancel` where nobody is here."""
    properties = schema.get("properties")
    fields: dict[str, Any] = properties if isinstance(properties, dict) else {}
    defaults = _defaults(fields, schema)
    question = _question(message, fields, defaults)
    if len(question) > _LONGEST_QUESTION:  # nobody would have agreed to a default that is cut off
        defaults, question = {}, _question(message, fields, {})
    said = replace_surrogates(to_json_data(await caller.ask(question, _choices(fields))))
    if said is None:
        return "cancel", None
    if said is False and not _takes_bool(fields):
        return "decline", None
    if said is True and not fields:
        said = {}
    answers = said if isinstance(said, dict) else dict.fromkeys(list(fields)[:1], said)
    answers = answers | {name: default for name, default in defaults.items() if name not in answers}
    _check(answers, fields, schema, said)
    return "accept", answers


async def answer_address(caller: Caller, message: str, address: str) -> str:
    """The same for a page that the person is to open; nothing is opened here."""
    said = await caller.ask(f"{message}\nOpen {address} and say yes when that is done.", None)
    return "cancel" if said is None else "accept" if said is True else "decline"


def _question(message: str, fields: dict[str, Any], defaults: JsonObject) -> str:
    """The message, what is to be filled in where that is more than one answer, and what a field left out has."""
    shown = {name: f" (default: {_shown(default)})" for name, default in defaults.items()}
    if len(fields) < 2:
        is_plain = _choices(fields) is not None and not any(map(_has_titles, fields.values()))
        offered = "" if is_plain else "".join(map(_told, fields.values()))
        return message + offered + "".join(shown.values())
    wanted = [
        f"- {name}: {field.get('description') or field.get('type') or 'any'}{_told(field)}{shown.get(name, '')}"
        for name, field in fields.items()
    ]
    return "\n".join([message, "Answer with a dict of:", *wanted])


def _defaults(fields: dict[str, Any], schema: JsonObject) -> JsonObject:
    """Those of the server's defaults that fit their fields, and that a person can see."""
    found = {name: field["default"] for name, field in fields.items() if "default" in field}
    if not found:
        return {}
    form = _validator(schema)
    return {
        name: default
        for name, default in found.items()
        if _can_be_sent(default) and not has_unseen(_shown(default)) and not any(form.descend(default, fields[name]))
    }


def _can_be_sent(default: Any) -> bool:
    """Whether it is of a kind that a form of MCP has."""
    if isinstance(default, list):
        return all(isinstance(each, str) for each in default)
    return isinstance(default, str | int | float)


def _shown(default: Any) -> str:
    return json.dumps(default, ensure_ascii=False)


def _choices(fields: dict[str, Any]) -> tuple[str, ...] | None:
    """The answers to choose from, where one is wanted."""
    field = next(iter(fields.values())) if len(fields) == 1 else {}
    return None if field.get("type") == "array" else tuple(_offered(field)) or None


def _offered(field: JsonObject) -> dict[str, str]:
    """What may be chosen in a field, or put in its list, each with what the server calls it."""
    inner = field.get("items", {}) if field.get("type") == "array" else field
    values, titles = inner.get("enum"), inner.get("enumNames")
    if isinstance(values, list):
        names = titles if isinstance(titles, list) and len(titles) == len(values) else values
        found = dict(zip(map(str, values), map(str, names), strict=True))
    else:
        named = [each for each in inner.get("oneOf") or inner.get("anyOf") or () if "const" in each]
        found = {str(each["const"]): str(each.get("title", each["const"])) for each in named}
    if any(map(has_unseen, [*found, *found.values()])):
        raise ValueError("the server hides characters that nobody can see in the choices")
    return found


def _has_titles(field: JsonObject) -> bool:
    return any(value != title for value, title in _offered(field).items())


def _told(field: JsonObject) -> str:
    offered = [value if value == title else f"{value} = {title}" for value, title in _offered(field).items()]
    how_many = "any of" if field.get("type") == "array" else "one of"
    return f" ({how_many}: {', '.join(offered)})" if offered else ""


def _takes_bool(fields: dict[str, Any]) -> bool:
    return len(fields) == 1 and next(iter(fields.values())).get("type") == "boolean"


def _check(answers: JsonObject, fields: dict[str, Any], schema: JsonObject, said: Any) -> None:
    """Raise a `ValueError` where an answer does not fit the form."""
    if not isinstance(said, dict) and len(fields) != 1:
        raise ValueError(f"the form has the fields {', '.join(fields)}; answer with a dict of them")
    found = list(describe_errors(_validator(schema).iter_errors(answers), schema))
    if found:
        raise ValueError(shorten("; ".join(map(str, found)), 500))


def _validator(schema: JsonObject) -> Any:
    from jsonschema import Draft202012Validator
    from referencing import Registry

    registry: Any = Registry()  # the one that `jsonschema` would use fetches what it does not know from the web
    return Draft202012Validator(schema, registry=registry)
