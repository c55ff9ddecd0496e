"""The command `acorn chat`, a conversation with an agent on the terminal.

Each line of the user starts a run that continues the conversation. All runs are stored, so that a chat can be resumed.
"""

from __future__ import annotations

import secrets
import sys
from functools import partial
from typing import Annotated, TextIO

import typer

import acorn
from acorn import AcornError, Run
from acorn._inside import in_batch, parse_input, read_spec, text_of
from acorn.cli.commands.runs import print_stored_run
from acorn.cli.errors import CommandError, ExitCode, error_message
from acorn.cli.input import is_text
from acorn.cli.options import AcornOptions, DebugOption, ModelOption, Option, Options, StoreOption, Target
from acorn.cli.output import write, write_line
from acorn.cli.targets import Agent, change_settings, choose_store, create_default_store, load_agent
from acorn.cli.text import clean, one_line
from acorn.cli.watched_run import WatchedRun
from acorn.stores.open import open_store
from acorn.stores.port import Store

_HELP = """/history      print the conversation so far
/retry        send the last line again and forget its answer
/model NAME   continue with another model
/run          print the last run step by step
/quit         end the chat (`acorn chat --id` resumes it)"""


def chat(
    context: typer.Context,
    target: Target,
    id: Annotated[
        str | None, typer.Option(help="The name of a new chat, or the name of an earlier chat to resume.")
    ] = None,
    model: ModelOption = None,
    store: StoreOption = None,
    debug: DebugOption = False,
) -> None:
    """Chat with an agent in the terminal.

    Each line that you type becomes the value of the agent's text field. `/help` lists the commands of the chat.
    """
    out = context.obj.reserve_stdout()
    agent = load_agent(target)
    chosen_store = choose_store(store, agent.store) or create_default_store()
    agent = change_settings(agent, store=chosen_store, model=model)
    opened_store = open_store(chosen_store, "`--store`")
    acorn_options = AcornOptions(store=store, debug=debug)
    conversation = Chat(agent, opened_store, f"chat {id or secrets.token_hex(3)}", acorn_options, out)
    write_line(f"{conversation.name} (/help lists the commands)")
    try:
        while (line := _read_line()) is not None:
            try:
                if not conversation.handle(line):
                    break
            except (CommandError, AcornError) as error:
                write_line(f"error: {one_line(error_message(error), 2000)}")
    except KeyboardInterrupt:
        write_line("")
    write_line(f"To resume: acorn chat {target} --id {conversation.name.removeprefix('chat ')}")


class Chat:
    """A conversation with an agent in the terminal.

    The runs of the conversation are stored as one batch.
    """

    def __init__(self, agent: Agent, store: Store, name: str, acorn_options: AcornOptions, out: TextIO) -> None:
        self.name = name
        self._agent, self._store, self._options, self._out = agent, store, acorn_options, out
        self._field = _text_field(agent)
        earlier = store.list(batch=name, limit=None)
        done = [facts for facts in earlier if facts.status == "done"]
        self._count = len(earlier)
        self._runs: list[Run] = [acorn.runs(store).get(done[0].id)] if done else []
        """The finished runs of the conversation in order. A resumed chat starts with its last stored run only."""
        self._last_line: str | None = None

    def handle(self, line: str) -> bool:
        """Execute a command such as `/help`, or send any other line to the agent.

        Return False if the command ends the chat, and True otherwise.
        """
        command, _, argument = line.strip().partition(" ")
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
                if not self._runs:
                    raise CommandError("There is no run to print. Type a line first.")
                run = acorn.runs(self._store).get(self._runs[-1].id)
                print_stored_run(self._store, run, is_full=True, out=self._out)
            case "/model":
                if not argument.strip():
                    raise CommandError("`/model` needs the name of a model, as in `/model openai/gpt-4o`.")
                self._agent = self._agent.using(model=argument.strip())
            case "/retry":
                if self._last_line is None:
                    raise CommandError("There is no line to send again. Type a line first.")
                if self._runs and self._last_line in str(self._runs[-1].input):
                    self._runs.pop()
                self._send(self._last_line)
            case _ if command.startswith("/") and len(command) > 1 and command[1:].isalpha():
                raise CommandError(f"There is no command `{command}`. Use `/help` to list the commands.")
            case _:
                self._send(line)
        return True

    def _send(self, line: str) -> None:
        *outer, name = map(str, self._field.path)
        values = parse_input(self._agent, {outer[0]: {name: line}} if outer else {name: line})
        agent = self._agent.using(history=self._runs[-1]) if self._runs else self._agent.using()
        in_batch(agent, self.name, self._count)
        self._count += 1
        self._last_line = line
        watched = WatchedRun(agent, self._options, self._out, prints_text=True)
        if watched.perform(partial(agent.stream, *values)) == ExitCode.SUCCESS and watched.run is not None:
            self._runs.append(watched.run)

    def _show_history(self) -> None:
        for message in self._runs[-1].history if self._runs else ():
            calls = ", ".join(call["function"]["name"] for call in message.get("tool_calls") or ())
            text = clean(text_of(message.get("content")))
            write(self._out, f"{message['role']}: {text}{f' [{calls}]' if calls else ''}\n")


def _text_field(agent: Agent) -> Option:
    """Return the text field of the input that the lines of the user are assigned to."""
    options = Options(read_spec(agent).input)
    fields = [option for option in options.all if options.is_field(option)]
    texts = [option for option in fields if is_text(option)]
    candidates = [option for option in texts if option.is_required] or texts
    if len(candidates) != 1 or any(option.is_required and option is not candidates[0] for option in fields):
        raise CommandError(
            f"Cannot chat with `{type(agent).__name__}`: its input must have one text field, and all other fields must "
            f"have default values. Use `acorn run` instead."
        )
    return candidates[0]


def _read_line() -> str | None:
    if sys.stdin.isatty():
        write(sys.stderr, "> ")
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
