"""The one hand that writes both books of a run: the history, which the model sees, and the ledger of what happened.

The history is also the user's, who may move, edit and remove anything in it; the ledger is nobody's but ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from acorn._json import to_plain, to_text
from acorn._loop import messages
from acorn._loop.outbox import ROLES, Outbox
from acorn._secrets import redact, secrets_in
from acorn._xml.report import INVALID
from acorn.models.port import ModelResponse
from acorn.record import Message, Run
from acorn.types import ToolCall, ToolResult, Unfinished


class Scribe:
    """Writes for one run."""

    def __init__(self, run: Run[Any]) -> None:
        self.run = run
        self.ledger = run.ledger
        self.turn: Message | None = None
        """The model's last turn, as it was put into the history."""
        self._unanswered: list[ToolCall] = []
        self._seen: list[Message] = list(run.history)
        """What the history is if nobody else has written in it."""
        self._borrowed: list[Message] = []
        """The first note of a branch, until what it inherited is there in copies."""

    def begin(self, history: list[Message], inherited: int = 0) -> None:
        """The messages that a run begins with; a branch has the first of them from its parent."""
        self.run.history, self._seen = history, list(history)
        self.ledger.inherited = inherited
        told = [*history[:inherited], *map(messages.copied, history[inherited:])]
        self.ledger.note("messages", told)
        self._borrowed = told if inherited else []

    def settle(self, outbox: Outbox) -> None:
        """Keep what was inherited, which may be long, in the copies that the first request has made of it."""
        if told := self._borrowed:
            copies = outbox.copies[: self.ledger.inherited]
            for at in outbox.odd_ones:
                if at < len(copies):
                    copies[at] = messages.copied(told[at])
            told[: len(copies)], self._borrowed = copies, []

    def say(self, content: str, at: int | None = None) -> None:
        """A user message of ours, at the end or before the message at `at`."""
        history, message = self.run.history, messages.user(content)
        history.insert(len(history) if at is None else at, message)
        self._seen.append(message)
        self.ledger.note("said", "user", content)

    def take_turn(self, response: ModelResponse, calls: list[ToolCall]) -> None:
        """The model's turn; it belongs to the step that it begins."""
        self.ledger.iteration = self.run.steps + 1
        self.turn, self._unanswered = messages.assistant(response, calls), calls
        self.run.history.append(self.turn)
        self._seen.append(self.turn)
        made = tuple([(call.id, call.name, call.raw_arguments) for call in calls])
        extra = messages.copied(response.extra) if response.extra else {}
        self.ledger.note("turn", response.content, made, extra)

    def resume(self, turn: Message, unanswered: list[ToolCall]) -> None:
        """The turn of a run that was saved in the middle of it."""
        self.turn, self._unanswered = turn, unanswered

    def unnoticed(self) -> list[int]:
        """Where in the history messages stand that are not noted yet."""
        history: Any = self.run.history
        return _added(history, self._seen) if isinstance(history, list) else []

    def overlook(self, unnoticed: Sequence[int]) -> None:
        """These messages of a history that was saved are still to be noted."""
        self._seen = [message for at, message in enumerate(self.run.history) if at not in unnoticed]

    def answer(self, told: dict[str, str], otherwise: str) -> None:
        """Results of our own for the calls of the turn: what was wrong with an answer, or why a call was skipped."""
        placed: list[Message] = []
        for call in self._unanswered:
            text = told.get(call.id, otherwise)
            placed.append(messages.tool(call.id, text))
            form = "skipped" if call.id not in told else "error" if text.startswith(INVALID) else "text"
            self.ledger.note("result", call.id, text, form, None)
        self._place(placed)

    def place_results(self, results: Iterable[ToolResult]) -> int:
        """What the tools returned; where in the history the next message would stand."""
        placed: list[Message] = []
        for result in results:
            text = messages.result_text(result)
            placed.append(messages.tool(result.id, text))
            # A date and the like are strings in JSON. The text is kept, as it is where a run was saved.
            is_text = isinstance(result.output, str) or text.startswith('"')
            form = "error" if result.error is not None else "text" if is_text else "json"
            self.ledger.note("result", result.id, text, form, result.seconds)
        return self._place(placed)

    def _place(self, placed: Sequence[Message]) -> int:
        assert self.turn is not None
        history = self.run.history
        behind = messages.place_results(history, self.turn, placed)
        if placed and history and history[behind - 1] is placed[-1]:  # otherwise the turn is gone
            self._seen += placed
        self._unanswered = []
        return behind

    def notice(self) -> None:
        """Note what the user has added. What is removed or edited stays noted as it happened."""
        history: Any = self.run.history
        if not isinstance(history, list):  # the user may have put anything there
            return
        if _is_same(history, self._seen):
            return
        added = [history[at] for at in _added(history, self._seen)]
        # What is no message will be complained of before it is sent.
        told = [to_plain(message) for message in added if isinstance(message, dict) and message.get("role") in ROLES]
        if told:
            self.ledger.note("messages", told)
        self._seen = history.copy()

    def end(self, output: Any) -> None:
        """The run's output."""
        self.notice()
        if isinstance(output, Unfinished):
            called = ", ".join(f"`{call.name}`" for call in output.tool_calls)
            self.ledger.note("error", f"Unfinished: in a single turn the model called {called} and gave no answer.")
        else:
            is_text = isinstance(output, str)
            text = str.__str__(output) if is_text else to_text(output)
            self.ledger.note("completion", text, "text" if is_text else "json")

    def abort(self, error: BaseException, results: Sequence[ToolResult], model: Any) -> None:
        """Close what is open, with the results that there are, and say why the run ends."""
        open_calls, history = self._unanswered, self.run.history
        if not isinstance(history, list):  # the user may have put anything there
            self.turn = None
        if open_calls and self.turn is not None:
            wanted = {call.id for call in open_calls}
            here = [result for result in results if result.id in wanted]
            self.place_results(here)
            for call in open_calls:
                if call.id not in {result.id for result in here}:
                    self.ledger.note("result", call.id, messages.STOPPED, "stopped", None)
        if isinstance(history, list):
            self.notice()
            messages.close_calls(history, messages.STOPPED)
        self.ledger.note("error", _told(error, model))


def _is_same(history: list[Any], seen: list[Message]) -> bool:
    """Whether these are the very messages, by the quickest way there is; copies are equal, but may be edited yet."""
    try:
        return history == seen and (not seen or (history[0] is seen[0] and history[-1] is seen[-1]))
    except Exception:  # somebody's own `==`
        return False


def _added(history: list[Any], seen: Sequence[Message]) -> list[int]:
    """Where messages stand that were not there before: neither the very ones, nor copies of some that are gone.

    The copy of a turn or of a result is known by its ids, though it was edited; any other by its text.
    """
    left = Counter(map(id, seen))
    strangers: list[int] = []
    for at, message in enumerate(history):
        if left[id(message)]:
            left[id(message)] -= 1
        else:
            strangers.append(at)
    if not strangers:
        return []
    gone: Counter[str] = Counter()
    for message in seen:
        if left[id(message)]:
            left[id(message)] -= 1
            gone.update(_marks(message))
    added: list[int] = []
    for at in strangers:
        marks = [mark for mark in _marks(history[at]) if gone[mark]]
        gone.subtract(marks)
        if not marks:
            added.append(at)
    return added


def _marks(message: Any) -> list[str]:
    """By what a copy of a message is known."""
    ids = [f"call {call_id}" for call_id in messages.call_ids(message) if call_id]
    if ids:
        return ids
    if isinstance(message, dict) and message.get("role") == "tool":
        return [f"result {message.get('tool_call_id')}"]
    return [to_text(message)]


def _told(error: BaseException, model: Any) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return redact(told, secrets_in(model) if isinstance(model, dict) else ())
