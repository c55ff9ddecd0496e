"""The transcript of a run: the code that adds messages to its history, with a journal entry for each change.

The history is sent to the model, and the user may move, edit and remove its messages. Only acorn adds entries to the
journal. Each change of the history has a journal entry that contains the index of the change, so acorn can rebuild the
history from the journal alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from pydantic_core import from_json

from acorn._formats.content import text_of, to_content
from acorn._formats.json import copy_json, describe_error
from acorn._formats.redact import Redactor, find_secrets
from acorn._formats.xml.encode import VALIDATION_ERROR_START
from acorn._history.compaction import CompactedRange, compact_messages
from acorn._history.history import (
    HistoryEdits,
    assistant_message,
    call_ids,
    history_of,
    steps_of,
    tool_message,
    user_message,
)
from acorn._history.repair import close_calls, open_calls, unique_ids
from acorn.errors import AcornError
from acorn.journal import (
    CalledTool,
    Compacted,
    Entry,
    Form,
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
from acorn.models.port import ModelResponse, RawCall
from acorn.record import Run, history_of_run
from acorn.types import (
    TOOL_ERROR,
    Content,
    JsonValue,
    Message,
    ToolCall,
    ToolResult,
    Unfinished,
)

_STOPPED = "This call was not completed: the run was stopped."
_WAITING = "This call has not returned yet: it waits for a person."


class Transcript:
    """The writer of one run. It adds messages to the history, and a journal entry for each change."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.journal = run.journal
        self.history = history_of_run(run)
        self.turn: Message | None = None
        """The last response of the model: the message object in the history."""
        self.unsent: list[Message] | None = None
        """Copies of the messages added since the last request, or None if a message may need repair."""
        self._run_id = run.id
        self._unanswered: list[ToolCall] = []
        """The tool calls of the last response that have no result in the history."""
        self._last_result: tuple[ToolResult, Content] | None = None
        """The last tool result, and its content for the model."""

    @cached_property
    def edits(self) -> HistoryEdits:
        """The object that detects edits of the history by the user.

        It is created when it is first needed. Most runs never need it, because no user code requests the history.
        """
        return HistoryEdits(self._run_id, self.journal, self.history)

    @property
    def turn_index(self) -> int | None:
        """The history index of the last model response.

        The index is None before the first response, or if the user removed the response.
        """
        return None if self.turn is None else _find_turn(self.history.messages, self.turn)

    # The first messages, and later messages from acorn

    def start(self, history: list[Message], inherited: Sequence[Message]) -> None:
        """Add the first messages to the history and the journal.

        `inherited` are copies of the messages that a branch shares with its parent. For other runs the list is empty.
        """
        self.unsent = None if inherited else [message.copy() for message in history]
        self.history.start(history, len(inherited))
        own = map(copy_json, history[len(inherited) :])
        journal = self.journal
        journal.entries.append(
            MessagesAdded(self._run_id, journal.step, journal.now, (*inherited, *own), None, len(inherited))
        )

    def start_fork(self, entries: Sequence[Entry]) -> None:
        """Add the journal entries that a forked run copies from another run, and rebuild the history from them."""
        self.journal.entries += entries
        self.history.start(history_of(entries))

    def add_user_message(self, content: Content) -> None:
        """Add a user message from acorn, such as a reminder, at the end of the history."""
        journal = self.journal
        self.history.insert(len(self.history.messages), [user_message(copy_json(content))])
        self.unsent = None
        messages = (user_message(content),)
        journal.entries.append(MessagesAdded(self._run_id, journal.step, journal.now, messages, None, 0))

    # Model responses

    def add_response(self, response: ModelResponse, asked: float, refusal: str | None) -> list[ToolCall]:
        """Add a model response to the history and the journal, and return its tool calls.

        `asked` is the time of the request. If the model refused to answer, `refusal` is its text. A refusal is added
        only to the journal.
        """
        journal = self.journal
        calls = read_calls(response.tool_calls, len(self.history.messages)) if response.tool_calls else []
        journal.step = self.run.steps + 1  # A response starts a new step.
        content, extra = response.content, response.extra
        needs_repair = bool(extra) or not calls
        called: list[CalledTool] = []
        for call in calls:
            called.append(CalledTool(call.id, call.name, call.raw_arguments))
            needs_repair = needs_repair or not _has_json_object(call)
        journal.entries.append(
            ModelResponded(
                self._run_id,
                journal.step,
                journal.now,
                asked,
                self.run.model or "",
                content,
                response.reasoning,
                tuple(called),
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
            turn = assistant_message(content, called, copy_json(extra) if extra else extra)
            self.unsent = None if needs_repair else [assistant_message(content, called, {})]
            self.turn, self._unanswered = turn, calls
            self.history.insert(len(self.history.messages), [turn])
        return calls

    def resume_turn(self, turn: Message, unanswered: list[ToolCall]) -> None:
        """Set the last response of a loaded run, and the tool calls of this response that have no result."""
        self.turn, self._unanswered = turn, unanswered

    # Tool results

    def add_result(self, result: ToolResult, began: float | None) -> None:
        """Add one tool result to the journal.

        At the end of the step, `add_results` adds the results of all calls to the history.
        """
        journal = self.journal
        content = result_content(result)
        self._last_result = result, content
        error = None if result.error is None else str(result.error)
        journal.entries.append(
            ToolFinished(self._run_id, journal.step, journal.now, result.id, result.name, began, content, error)
        )

    def answer_calls(self, texts: Mapping[str, str], otherwise: str) -> None:
        """Add a result that acorn wrote to each tool call that has no result.

        `texts` maps call ids to result texts, such as validation errors. A call that is missing in `texts` was skipped,
        and its result is the text `otherwise`.
        """
        results: list[ResultMessage] = []
        for call in self._unanswered:
            text = texts.get(call.id, otherwise)
            form: Form = (
                "skipped" if call.id not in texts else "error" if text.startswith(VALIDATION_ERROR_START) else "text"
            )
            results.append(ResultMessage(call.id, text, form, None))
        if results:
            self._insert_results(results, None)

    def add_results(
        self, results: Sequence[ToolResult], context: Content | None, *, is_unchanged: bool
    ) -> Sequence[ResultMessage]:
        """Add the tool results of a step to the history, and return the messages that the model receives.

        `context` is the content of an additional user message from a hook, or None. `is_unchanged` is True if no hook
        could change the results since `add_result`.
        """
        last = self._last_result
        if is_unchanged and last is not None and len(results) == 1 and results[0] is last[0]:
            messages = [_result_message(results[0], last[1])]
        else:
            messages = [_result_message(result, result_content(result)) for result in results]
        if messages or context is not None:
            self._insert_results(messages, context)
        return messages

    def _insert_results(self, results: Sequence[ResultMessage], context: Content | None) -> None:
        assert self.turn is not None
        if self.history.snapshot is not None:
            self.edits.record_moves()
        history = self.history.messages
        if type(history) is list and history and history[-1] is self.turn:
            index: int | None = len(history)
        else:
            index = _index_after(history, self.turn)
        added: list[Message] = []
        for result in results if index is not None else ():
            content = result.content
            if isinstance(content, str):
                added.append({"role": "tool", "tool_call_id": result.call_id, "content": content})
                if self.unsent is not None:
                    self.unsent.append(added[-1].copy())
            else:  # The user may change the parts in the history.
                added.append(tool_message(result.call_id, copy_json(content)))
                self.unsent = None
        if context is not None:
            added.append(user_message(copy_json(context)))
            self.unsent = None
        self.history.insert(len(history) if index is None else index, added)
        self._unanswered = []
        journal = self.journal
        journal.entries.append(
            ToolResultsAdded(self._run_id, journal.step, journal.now, tuple(results), context, index)
        )

    # Compaction

    def compact(self, compacted: CompactedRange, text: str, asked: float, response: ModelResponse) -> None:
        """Replace a range of the history with a summary, and add a journal entry.

        If `text` is empty, the history stays, and the entry only records the usage of the request.
        """
        journal, history = self.journal, self.run.history
        start, removed, added, steps = compacted.start, 0, list[Message](), tuple[int, ...]()
        if text:
            removed, added = compacted.end - start, compact_messages(history, compacted, text)
            message_steps = steps_of(journal.entries)
            replaced = {message_steps[index] for index in compacted.replaced_indexes()}
            steps = tuple(sorted(replaced - set(message_steps[compacted.end :])))
            history[start : compacted.end] = added
            self.history.snapshot = history.copy()
            self.unsent = None
        journal.entries.append(
            Compacted(
                self._run_id,
                journal.step,
                journal.now,
                asked,
                self.run.model or "",
                text,
                start,
                removed,
                tuple(copy_json(added)),
                steps,
                response.usage.copy(),
                response.cost,
            )
        )

    # The end of the run

    def rebuild(self) -> None:
        """Rebuild the history from the journal, because Ctrl-C may have interrupted an update of the history."""
        self.history.start(history_of(self.journal.entries))
        self.turn, self._unanswered = None, []
        for entry in self.journal.entries:
            if isinstance(entry, ModelResponded) and entry.refusal is None:
                self.turn = assistant_message(entry.content, entry.calls, entry.extra)
                self._unanswered = [ToolCall(call.id, call.name, {}, call.arguments) for call in entry.calls]
            elif isinstance(entry, ToolResultsAdded):
                self._unanswered = []

    def finish(self, output: object, reason: str, *, may_be_edited: bool) -> None:
        """Add the output of the run to the journal.

        `may_be_edited` is True if a hook or a tool may have changed the content of messages.
        """
        if self.history.snapshot is not None:
            if may_be_edited:
                self.edits.record_all()
            else:
                self.edits.record_moves()
        form: Form = "json"
        if isinstance(output, str):
            form, text = "text", str.__str__(output)
        elif isinstance(output, Unfinished):
            called = ", ".join(f"`{call.name}`" for call in output.tool_calls)
            form, text = "error", f"Unfinished: in a single turn the model called {called} and gave no answer."
        else:
            text = text_of(
                to_content(output)
            )  # `on_finish` may return an image. The journal does not contain its data.
        journal = self.journal
        journal.entries.append(RunFinished(self._run_id, journal.step, journal.now, reason, text, form))

    def stop(self, error: BaseException, results: Sequence[ToolResult], model: object, *, is_final: bool) -> None:
        """Add a result to each unanswered tool call in the history, and record the error in the journal.

        One journal entry contains the results and the error. A history that is rebuilt from the journal does not
        contain these results, because an interrupted run resumes from the state before this entry.
        """
        closed = self._close(results, _STOPPED)
        kind = RunFailed if is_final else RunInterrupted
        message = Redactor(find_secrets(model)).text(describe_error(error))
        journal = self.journal
        journal.entries.append(kind(self._run_id, journal.step, journal.now, message, closed))

    def pause(self, results: Sequence[ToolResult]) -> None:
        """Add a result to each unanswered tool call in the history, and record the pause in the journal."""
        closed = self._close(results, _WAITING)
        self.journal.entries.append(RunPaused(self._run_id, self.journal.step, self.journal.now, closed))

    def _close(self, results: Sequence[ToolResult], otherwise: str) -> tuple[ResultMessage, ...]:
        """Add a result to each tool call in the history that has no result.

        Return the results that were added for the last response.
        """
        self.edits.record_all()
        open_calls, history = self._unanswered, self.run.history
        closed: list[ResultMessage] = []
        if not isinstance(history, list):  # The user may assign any value to `history`.
            self.turn = None
        if open_calls and self.turn is not None:
            open_ids = dict.fromkeys(call.id for call in open_calls)
            result_ids = {result.id for result in results}
            finished = [_result_message(result, result_content(result)) for result in results if result.id in open_ids]
            unfinished = [call_id for call_id in open_ids if call_id not in result_ids]
            closed = [*finished, *(ResultMessage(call_id, otherwise, "stopped", None) for call_id in unfinished)]
            index = _index_after(history, self.turn)
            if index is not None:
                history[index:index] = [tool_message(result.call_id, copy_json(result.content)) for result in finished]
        if isinstance(history, list):
            close_calls(history, otherwise)
        return tuple(closed)


def read_calls(raw: Sequence[RawCall], index: int) -> list[ToolCall]:
    """Return the tool calls of a response, with parsed arguments and unique ids.

    Arguments that are not a JSON object are parsed as an empty dict. `index` is the history index of the response. New
    ids contain this index.
    """
    calls: list[ToolCall] = []
    has_one_id = len(raw) == 1 and raw[0].id
    ids = [str(raw[0].id)] if has_one_id else unique_ids([call.id or "" for call in raw], index, set())
    for call_id, call in zip(ids, raw, strict=True):
        arguments = call.arguments or "{}"
        try:
            parsed: JsonValue = from_json(arguments)
        except (ValueError, TypeError):  # The text is not JSON, or contains a lone surrogate.
            parsed = None
        calls.append(ToolCall(call_id, call.name, parsed if isinstance(parsed, dict) else {}, arguments))
    return calls


def _has_json_object(call: ToolCall) -> bool:
    """Return whether the call arguments are a JSON object that every provider accepts in later requests."""
    text = call.raw_arguments
    if type(text) is not str or ("NaN" in text or "Infinity" in text):
        return False
    return bool(call.arguments) or text == "{}"


def result_content(result: ToolResult) -> Content:
    """Return the message content that the model receives for a tool result."""
    if result.error is not None:
        return f"{TOOL_ERROR}{result.error}"
    output = result.output
    if type(output) is str:
        return output
    # A subclass of `str`, such as an enum, may override `__str__`. Return the characters of the string.
    return str.__str__(output) if isinstance(output, str) else to_content(output)


def _result_message(result: ToolResult, content: Content) -> ResultMessage:
    # JSON encodes a value such as a date as a string. A loaded run has the form text for it, so use text here too.
    is_text = isinstance(result.output, str) or (isinstance(content, str) and content.startswith('"'))
    form: Form = "error" if result.error is not None else "text" if is_text else "json"
    return ResultMessage(result.id, content, form, result.seconds)


def _index_after(history: list[Message], turn: Message) -> int | None:
    """Return the history index after a response, or None if the user removed the response.

    The user may also have moved or copied the response.
    """
    check_is_list(history)
    index = _find_turn(history, turn)
    return None if index is None else index + 1


def check_is_list(history: object) -> None:
    """Raise `AcornError` if the user assigned a value other than a list to `history`."""
    if not isinstance(history, list):
        raise AcornError(f"`history` must be a list of messages, got `{type(history).__name__}`.")


def _find_turn(history: Sequence[object], message: Message) -> int | None:
    """Return the history index of a response, or None if the history does not contain the response.

    If the user replaced the message with a copy, find the copy by its tool call ids.
    """
    for index in range(len(history) - 1, -1, -1):
        if history[index] is message:
            return index
    ids = set(call_ids(message)) - {""}
    # A later response may repeat an id, so a call that already has its result is part of another response.
    for index, unanswered in reversed(open_calls(history) if ids else []):
        if not ids.isdisjoint(unanswered):
            return index
    return None
