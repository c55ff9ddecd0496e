"""The one writer of both books of a run: the history, which the model sees, and the journal of what happened.

The history is also the user's, who may move, edit and remove anything in it; the journal is nobody's but
ours. Everything that enters the history has its entry, with its place, so that the history can be made
again from the journal alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acorn._formats.blobs import to_saved_data
from acorn._formats.content import text_of, to_content
from acorn._formats.json import copy_json, describe_error, to_json_text
from acorn._formats.redact import find_secrets, redact
from acorn._formats.xml.encode import VALIDATION_ERROR_START
from acorn._history import messages
from acorn._history.compaction import CompactedRange, compacted
from acorn._history.history import change_of, history_of, steps_of
from acorn._history.request_messages import ROLES
from acorn.journal import (
    CalledTool,
    Compacted,
    Form,
    HistoryEdited,
    MessagesAdded,
    ModelResponded,
    ResultMessage,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunPaused,
    ToolFinished,
    ToolResultsAdded,
)
from acorn.models.port import ModelResponse
from acorn.record import Message, Run
from acorn.types import Content, ToolCall, ToolResult, Unfinished


class Transcript:
    """Writes for one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.journal = run.journal
        self._id = run.id
        self.book = run._book
        self.turn: Message | None = None
        """The model's last turn, as it was put into the history."""
        self._unanswered: list[ToolCall] = []
        self._known: list[Message] = []
        """What the journal tells of the history, as far as somebody has asked; in messages of its own."""
        self._entries_read = 0
        """How many entries that is."""
        self.written: list[Message] | None = None
        """Copies of what we wrote since the last request, for who sends them; None if it needs a closer look."""

    # What the run says

    def begin(self, history: list[Message], copies: Sequence[Message]) -> None:
        """The messages that a run begins with; a branch has the first of them from its parent, in `copies`."""
        self.book.begin(history, len(copies))
        self.written = None if copies else [message.copy() for message in history]
        own = map(copy_json, history[len(copies) :])
        self._say((*copies, *own), None, len(copies))

    def say(self, content: Content) -> None:
        """A user message of ours, at the end."""
        self.book.put(len(self.book.messages), [messages.user(copy_json(content))])
        self.written = None
        self._say((messages.user(content),), None, 0)

    def _say(self, said: tuple[Message, ...], where: int | None, inherited: int) -> None:
        journal = self.journal
        journal.entries.append(MessagesAdded(self._id, journal.step, journal.now, said, where, inherited))

    # What the model says

    def take_turn(self, response: ModelResponse, calls: list[ToolCall], asked: float, refusal: str | None) -> None:
        """The model's turn; a refusal is noted, but is no part of the conversation."""
        journal = self.journal
        journal.step = self.run.steps + 1  # a turn belongs to the step that it begins
        content, extra = response.content, response.extra
        listed: list[CalledTool] = []
        needs_a_look = bool(extra) or not calls
        for call in calls:
            listed.append(CalledTool(call.id, call.name, call.raw_arguments))
            needs_a_look = needs_a_look or not _is_object(call)
        made = tuple(listed)
        journal.entries.append(
            ModelResponded(
                self._id,
                journal.step,
                journal.now,
                asked,
                self.run.model or "",
                content,
                response.reasoning,
                made,
                copy_json(extra) if extra else {},
                response.stop_reason,
                refusal,
                response.usage.copy(),
                response.cost,
                response.attempts,
                response.waits,
                response.fallbacks,
            )
        )
        if refusal is None:
            turn = messages.assistant(content, made, copy_json(extra) if extra else extra)
            self.turn, self._unanswered = turn, calls
            self.book.put(len(self.book.messages), [turn])
            self.written = None if needs_a_look else [messages.assistant(content, made, {})]

    def resume(self, turn: Message, unanswered: list[ToolCall]) -> None:
        """The turn of a run that was saved in the middle of it."""
        self.turn, self._unanswered = turn, unanswered

    # What came of its calls

    def returned(self, result: ToolResult, began: float | None) -> None:
        """A call has its result; what the model reads of it is decided later."""
        journal = self.journal
        content = messages.result_content(result)
        error = None if result.error is None else str(result.error)
        journal.entries.append(
            ToolFinished(self._id, journal.step, journal.now, result.id, result.name, began, content, error)
        )

    def answer(self, texts: Mapping[str, str], otherwise: str) -> None:
        """Results of our own for the calls of the turn: what was wrong with an answer, or why a call was skipped."""
        placed: list[ResultMessage] = []
        for call in self._unanswered:
            text = texts.get(call.id, otherwise)
            form: Form = (
                "skipped" if call.id not in texts else "error" if text.startswith(VALIDATION_ERROR_START) else "text"
            )
            placed.append(ResultMessage(call.id, text, form, None))
        if placed:
            self._put(placed, None)

    def put_results(self, results: Iterable[ToolResult], context: Content | None) -> None:
        """What the tools returned, as the hook left it, and what it shows beside them."""
        placed = [_said(result) for result in results]
        if placed or context is not None:
            self._put(placed, context)

    def _put(self, placed: Sequence[ResultMessage], context: Content | None) -> None:
        assert self.turn is not None
        self.notice()
        history: Any = self.book.messages
        if type(history) is list and history and history[-1] is self.turn:
            where: int | None = len(history)
        else:
            where = messages.where_results_go(history, self.turn)
        made: list[Message] = []
        for said in placed if where is not None else ():
            made.append(_message(said))
            if self.written is not None and isinstance(said.content, str):
                self.written.append(messages.tool(said.call_id, said.content))
            else:
                self.written = None
        if context is not None:
            made.append(messages.user(copy_json(context)))
            self.written = None
        self.book.put(len(history) if where is None else where, made)
        self._unanswered = []
        journal = self.journal
        journal.entries.append(ToolResultsAdded(self._id, journal.step, journal.now, tuple(placed), context, where))

    # What the user does to the history

    def notice(self) -> None:
        """Note what the user has changed, if it is other messages or another order."""
        history: Any = self.book.messages
        noted = self.book.noted
        if noted is None:  # there is no user who has it
            return
        try:
            # Copies are equal, but may be edited yet.
            if history == noted and (not noted or (history[-1] is noted[-1] and history[0] is noted[0])):
                return
        except Exception:  # somebody's own `==`
            pass
        if not isinstance(history, list):  # the user may have put anything there
            return
        where = _first_difference(history, noted)
        behind = _first_difference(history[where:][::-1], noted[where:][::-1])
        added = [at for at in _added(history, noted) if _is_message(history[at])]
        if added:  # of a message that now stands there twice, the second may be in what else is the same
            where, behind = min(where, added[0]), min(behind, len(history) - added[-1] - 1)
        there, gone = len(history) - behind, len(noted) - behind
        self._edited(where, gone - where, history[where:there], [at - where for at in added])
        self.book.noted = history.copy()

    def notice_all(self) -> None:
        """Note whatever the user has changed, also inside of messages, at the cost of what is new."""
        if self.book.is_ours:
            return
        self.notice()
        entries, known = self.journal.entries, self._known
        for entry in entries[self._entries_read :]:
            change = change_of(entry, len(known))
            if change is not None:
                where, removed, made = change
                known[where : where + removed] = made
        self._entries_read = len(entries)
        try:
            if self.book.messages == known:
                return
        except Exception:  # somebody's own `==`
            pass
        if isinstance(self.book.messages, list):  # the user may have put anything there
            self.notice_inside(known)

    def notice_inside(self, copies: Sequence[Message]) -> None:
        """Note messages that were edited in place since these copies were made."""
        for at, (message, copy) in enumerate(zip(self.book.messages, copies, strict=False)):
            if _differs(message, copy):
                self._edited(at, 1, [message], [])

    def _edited(self, where: int, removed: int, made: Sequence[Any], added: Sequence[int]) -> None:
        journal = self.journal
        plain = tuple([to_saved_data(message) for message in made])
        journal.entries.append(HistoryEdited(self._id, journal.step, journal.now, where, removed, plain, tuple(added)))

    def compact(self, stretch: CompactedRange, text: str, asked: float, response: ModelResponse) -> None:
        """Let a summary stand for a part of the history; without one it stays, and only the request is noted."""
        journal, history = self.journal, self.run.history
        where, removed, made, steps = stretch.where, 0, list[Any](), tuple[int, ...]()
        if text:
            removed, made = stretch.behind - where, compacted(history, stretch, text)
            known = steps_of(journal.entries)
            gone = [at for at in range(where, stretch.behind) if at not in stretch.kept]
            steps = tuple(sorted({known[at] for at in gone} - set(known[stretch.behind :])))
            history[where : stretch.behind] = made
            self.book.noted = history.copy()
            self.written = None
        journal.entries.append(
            Compacted(
                self._id,
                journal.step,
                journal.now,
                asked,
                self.run.model or "",
                text,
                where,
                removed,
                tuple(copy_json(made)),
                steps,
                response.usage.copy(),
                response.cost,
            )
        )

    # The end

    def mend(self) -> None:
        """After an interrupt in the midst of writing: what the journal tells is what counts."""
        self.book.begin(history_of(self.journal.entries))
        self.turn, self._unanswered = None, []
        for entry in self.journal.entries:
            if isinstance(entry, ModelResponded) and entry.refusal is None:
                self.turn = messages.assistant(entry.content, entry.calls, entry.extra)
                self._unanswered = [ToolCall(call.id, call.name, {}, call.arguments) for call in entry.calls]
            elif isinstance(entry, ToolResultsAdded):
                self._unanswered = []

    def end(self, output: Any, reason: str, *, was_seen: bool) -> None:
        """The run's output; `was_seen` where a hook or tool may have edited its messages since."""
        if was_seen:
            self.notice_all()
        else:
            self.notice()
        form: Form = "text" if isinstance(output, str) else "json"
        text = str.__str__(output) if isinstance(output, str) else ""
        if isinstance(output, Unfinished):
            called = ", ".join(f"`{call.name}`" for call in output.tool_calls)
            text = f"Unfinished: in a single turn the model called {called} and gave no answer."
            form = "error"
        elif form == "json":
            text = text_of(to_content(output))  # without the data of a picture that `on_finish` put there
        journal = self.journal
        journal.entries.append(RunFinished(self._id, journal.step, journal.now, reason, text, form))

    def stop(self, error: BaseException, results: Sequence[ToolResult], model: Any, *, is_final: bool) -> None:
        """Complete the record, with the results that there are, and say why it ends here.

        One entry tells all of it, and it is not part of the history's story: an interrupted run goes on from before.
        """
        said = self._close(results, messages.STOPPED)
        kind = RunFailed if is_final else RunInterrupted
        journal = self.journal
        journal.entries.append(kind(self._id, journal.step, journal.now, words_without_secrets(error, model), said))

    def rest(self, results: Sequence[ToolResult]) -> None:
        """The same for a run that waits for people."""
        said = self._close(results, messages.WAITING)
        self.journal.entries.append(RunPaused(self._id, self.journal.step, self.journal.now, said))

    def _close(self, results: Sequence[ToolResult], otherwise: str) -> tuple[ResultMessage, ...]:
        """Answer, in the record, every call of the turn that is open."""
        self.notice_all()
        open_calls, history = self._unanswered, self.run.history
        said: list[ResultMessage] = []
        if not isinstance(history, list):  # the user may have put anything there
            self.turn = None
        if open_calls and self.turn is not None:
            here = {result.id: result for result in results}
            wanted = dict.fromkeys(call.id for call in open_calls)
            done = [_said(result) for result in results if result.id in wanted]
            stopped = [call_id for call_id in wanted if call_id not in here]
            said = [*done, *(ResultMessage(call_id, otherwise, "stopped", None) for call_id in stopped)]
            where = messages.where_results_go(history, self.turn)
            if where is not None:
                history[where:where] = [_message(each) for each in done]
        if isinstance(history, list):
            messages.close_calls(history, otherwise)
        return tuple(said)


def _is_object(call: ToolCall) -> bool:
    """Whether the arguments are a JSON object that every provider takes back."""
    text = call.raw_arguments
    if type(text) is not str or ("NaN" in text or "Infinity" in text):
        return False
    return bool(call.arguments) or text == "{}"


def _said(result: ToolResult) -> ResultMessage:
    if result.error is None and type(result.output) is str:
        return ResultMessage(result.id, result.output, "text", result.seconds)
    content = messages.result_content(result)
    # A date and the like are strings in JSON. The text is kept, as it is where a run was saved.
    is_text = isinstance(result.output, str) or (isinstance(content, str) and content.startswith('"'))
    form: Form = "error" if result.error is not None else "text" if is_text else "json"
    return ResultMessage(result.id, content, form, result.seconds)


def _message(said: ResultMessage) -> Message:
    """For the history, which the user may change."""
    return messages.tool(said.call_id, copy_json(said.content))


def _is_message(message: Any) -> bool:
    """What is no message will be complained of before it is sent."""
    return isinstance(message, dict) and message.get("role") in ROLES


def _differs(message: Any, copy: Message) -> bool:
    try:
        if message == copy:
            return False
    except Exception:  # somebody's own `==`
        pass
    return bool(to_saved_data(message) != copy)


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    at = 0
    for at, (mine, theirs) in enumerate(zip(one, other, strict=False), start=1):
        if mine is not theirs:
            return at - 1
    return at


def _added(history: list[Any], noted: Sequence[Message]) -> list[int]:
    """Where messages stand that were not there before: neither the very ones, nor copies of some that are gone.

    The copy of a turn or of a result is known by its ids, though it was edited; any other by its text.
    """
    left = Counter(map(id, noted))
    strangers: list[int] = []
    for at, message in enumerate(history):
        if left[id(message)]:
            left[id(message)] -= 1
        else:
            strangers.append(at)
    if not strangers:
        return []
    gone: Counter[str] = Counter()
    for message in noted:
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
    return [to_json_text(message)]


def words_without_secrets(error: BaseException, model: Any) -> str:
    return redact(
        describe_error(error), find_secrets({"model": model}) if isinstance(model, dict | list | tuple) else ()
    )
