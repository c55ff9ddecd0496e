"""`acorn chat`: a conversation with any agent in the terminal. Each line is a run of its own that goes on with the
conversation so far; all are kept in the store, so that the chat can be continued."""

from __future__ import annotations

import secrets
import sys
from functools import partial
from typing import Annotated, Any, TextIO

import typer
from pydantic import ValidationError

import acorn
from acorn import AcornError, Run
from acorn._inside import describe_agent, in_batch, input_problems
from acorn.cli.commands.runs import draw_kept
from acorn.cli.input import is_text
from acorn.cli.options import OWN, Option, Options, OwnOptions
from acorn.cli.output import FINE, CommandError, OutputClosedError, clean, message_of, one_line, write, write_line
from acorn.cli.targets import USUAL, Agent, as_usage_error, load, named_store
from acorn.cli.watched_run import WatchedRun
from acorn.stores.open import open_store
from acorn.stores.port import Store

_HELP = """/history      the conversation so far
/retry        the last line once more, as if it had not been answered
/model NAME   go on with another model
/run          what the last run did, step by step
/quit         end; `acorn chat` with `--id` goes on from here"""


def chat(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="FILE_OR_MODULE[:CLASS]", help="Where the module is.")],
    id: Annotated[
        str | None, typer.Option("--id", help="The name of the chat: a new one, or one to go on with.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help=OWN["model"])] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="FILE|URL", help=OWN["store"])] = None,
    debug: Annotated[bool, typer.Option("--debug", help=OWN["debug"])] = False,
) -> int:
    """Talk with an agent; each line fills its text field. `/help` tells what else there is."""
    out = context.obj.set_aside()
    agent = load(target, debug=debug)
    named = named_store(store, agent.store)
    if named is None:
        USUAL.parent.mkdir(mode=0o700, exist_ok=True)
        named = str(USUAL)
    changes = {"store": named, **({} if model is None else {"model": model})}
    try:
        agent = agent.using(**changes)
        book = open_store(named, "`--store`")
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    talk = Chat(agent, book, f"chat {id or secrets.token_hex(3)}", OwnOptions(store=store, debug=debug), out)
    write_line(f"{talk.name}; /help tells what there is besides talking")
    while (line := _line()) is not None:
        try:
            if not talk.hear(line):
                break
        except OutputClosedError:
            raise
        except CommandError as error:
            write_line(f"error: {one_line(str(error), 2000)}")
        except KeyboardInterrupt:
            write_line("")
    write_line(f"go on with: acorn chat {target} --id {talk.name.removeprefix('chat ')}")
    return FINE


class Chat:
    """One conversation: its runs are the items of a batch by its name."""

    def __init__(self, agent: Agent, store: Store, name: str, own: OwnOptions, out: TextIO) -> None:
        self.name = name
        self._agent, self._store, self._own, self._out = agent, store, own, out
        self._field = _text_field(agent)
        with as_usage_error():
            before = store.list(batch=name, limit=None)
        done = [facts for facts in before if facts.status == "done"]
        self._count = len(before)
        self._runs: list[Run] = [acorn.runs(store).get(done[0].id)] if done else []
        """Those that the conversation is made of, the last one last."""
        self._said: str | None = None

    def hear(self, line: str) -> bool:
        """What somebody has typed; whether the chat goes on."""
        command, _, rest = line.strip().partition(" ")
        match command:
            case "":
                pass
            case "/quit" | "/exit":
                return False
            case "/help":
                write_line(_HELP)
            case "/history":
                self._show_history()
            case "/run":
                self._show_run()
            case "/model":
                self._use_model(rest.strip())
            case "/retry":
                self._retry()
            case _ if command.startswith("/") and len(command) > 1 and command[1:].isalpha():
                raise CommandError(f"there is no `{command}`; `/help` tells what there is")
            case _:
                self._say(line)
        return True

    def _say(self, line: str) -> None:
        agent = self._agent.using(history=self._runs[-1]) if self._runs else self._agent.using()
        in_batch(agent, self.name, self._count)
        self._count += 1
        self._said = line
        watched = WatchedRun(agent, describe_agent(agent), self._own, self._out, prints_text=True)
        if watched.perform(partial(agent.stream, self._input(line))) == FINE and watched.run is not None:
            self._runs.append(watched.run)

    def _input(self, line: str) -> Any:
        shape = describe_agent(self._agent).input
        try:
            made = shape.schema.model_validate({str(self._field.path[0]): line}, by_alias=True, by_name=True)
        except ValidationError as error:
            found = input_problems(shape, error, {})
            wrong = "; ".join(f"{each['path']}: {each['expected']}" for each in found)
            raise CommandError(f"the input does not fit: {wrong}") from error
        return shape.unwrap(made)

    def _retry(self) -> None:
        if self._said is None:
            raise CommandError("nothing was said yet")
        if self._runs and str(self._said) in str(self._runs[-1].input):
            self._runs.pop()
        self._say(self._said)

    def _use_model(self, name: str) -> None:
        if not name:
            raise CommandError("say which model, as in `/model openai/gpt-4o`")
        try:
            self._agent = self._agent.using(model=name)
        except AcornError as error:
            raise CommandError(message_of(error)) from error

    def _show_history(self) -> None:
        for message in self._runs[-1].history if self._runs else ():
            content = message.get("content")
            calls = ", ".join(call["function"]["name"] for call in message.get("tool_calls") or ())
            text = content if isinstance(content, str) else "" if content is None else str(content)
            write(self._out, f"{message['role']}: {clean(text)}{f' [{calls}]' if calls else ''}\n")

    def _show_run(self) -> None:
        if not self._runs:
            raise CommandError("nothing was run yet")
        with as_usage_error():
            draw_kept(self._store, acorn.runs(self._store).get(self._runs[-1].id), is_whole=True, out=self._out)


def _text_field(agent: Agent) -> Option:
    """The field that a line fills."""
    options = Options(describe_agent(agent).input)
    fields = [option for option in options.listed if options.is_field(option)]
    texts = [option for option in fields if is_text(option)]
    needed = [option for option in fields if option.is_required]
    found = [option for option in texts if option.is_required] or texts
    if len(found) != 1 or [option for option in needed if option is not found[0]]:
        raise CommandError(
            f"`{type(agent).__name__}` cannot be talked with: a line fills one text field, and the others need defaults"
        )
    return found[0]


def _line() -> str | None:
    if sys.stdin is not None and sys.stdin.isatty():
        write(sys.stderr, "> ")
    try:
        line = sys.stdin.readline() if sys.stdin is not None else ""
    except KeyboardInterrupt:
        write_line("")
        return None
    return line.rstrip("\n") if line else None
