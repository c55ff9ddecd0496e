"""The one hand that writes both books of a run: the history, which the model sees, and the ledger of what happened.

The history is also the user's, who may move, edit and remove anything in it; the ledger is nobody's but ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from acorn._json import to_plain, to_text
from acorn._loop import messages
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
        self._ours: list[Message] = []
        """What was written behind the turn."""
        self._length = len(run.history)
        """How long the history is if nobody else has written in it."""

    def begin(self, history: list[Message], inherited: int = 0) -> None:
        """The messages that a run begins with; a branch has the first of them from its parent."""
        self.run.history, self._length = history, len(history)
        # What is inherited is long, and was copied for this branch already.
        told = [*history[:inherited], *map(messages.copied, history[inherited:])]
        self.ledger.inherited = inherited
        self.ledger.note("messages", told)

    def say(self, content: str, at: int | None = None) -> None:
        """A user message of ours, at the end or before the message at `at`."""
        history, message = self.run.history, messages.user(content)
        history.insert(len(history) if at is None else at, message)
        self._ours.append(message)
        self._length += 1
        self.ledger.note("said", "user", content)

    def take_turn(self, response: ModelResponse, calls: list[ToolCall]) -> None:
        """The model's turn; it belongs to the step that it begins."""
        self.ledger.iteration = self.run.steps + 1
        self.turn, self._unanswered = messages.assistant(response, calls), calls
        self.run.history.append(self.turn)
        self._ours, self._length = [], self._length + 1
        made = tuple([(call.id, call.name, call.raw_arguments) for call in calls])
        self.ledger.note("turn", response.content, made, messages.copied(response.extra))

    def resume(self, turn: Message, unanswered: list[ToolCall]) -> None:
        """The turn of a run that was saved in the middle of it."""
        self.turn, self._unanswered = turn, unanswered

    def answer(self, told: dict[str, str], otherwise: str) -> None:
        """Results of our own for the calls of the turn: what was wrong with an answer, or why a call was skipped."""
        placed: list[Message] = []
        for call in self._unanswered:
            text = told.get(call.id, otherwise)
            placed.append(messages.tool(call.id, text))
            self.ledger.note("result", call.id, text, "error" if text.startswith(INVALID) else "text")
        self._place(placed)

    def place_results(self, results: Iterable[ToolResult]) -> int:
        """What the tools returned; where in the history the next message would stand."""
        placed: list[Message] = []
        for result in results:
            text = messages.result_text(result)
            placed.append(messages.tool(result.id, text))
            form = "error" if result.error is not None else "text" if isinstance(result.output, str) else "json"
            self.ledger.note("result", result.id, text, form)
        return self._place(placed)

    def _place(self, placed: Sequence[Message]) -> int:
        assert self.turn is not None
        history = self.run.history
        behind = messages.place_results(history, self.turn, placed)
        if placed and history and history[behind - 1] is placed[-1]:  # otherwise the turn is gone
            self._length += len(placed)
            self._ours += placed
        self._unanswered = []
        return behind

    def notice(self) -> None:
        """Note what the user has added behind the turn. What is removed or edited stays noted as it happened."""
        history = self.run.history
        if len(history) > self._length:
            at = None if self.turn is None else messages.find_turn(history, self.turn)
            ours = set(map(id, self._ours))
            added = [message for message in history[0 if at is None else at + 1 :] if id(message) not in ours]
            if len(added) == len(history) - self._length and all(isinstance(message, dict) for message in added):
                self.ledger.note("messages", list(map(to_plain, added)))
                self._ours += added
        self._length = len(history)

    def end(self, output: Any) -> None:
        """The run's output."""
        self.notice()
        if not isinstance(output, Unfinished):
            is_text = isinstance(output, str)
            self.ledger.note("completion", output if is_text else to_text(output), "text" if is_text else "json")

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
                    self.ledger.note("result", call.id, messages.STOPPED, "text")
        if isinstance(history, list):
            self.notice()
            messages.close_calls(history, messages.STOPPED)
        self.ledger.note("error", _told(error, model))


def _told(error: BaseException, model: Any) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return redact(told, secrets_in(model) if isinstance(model, dict) else ())
