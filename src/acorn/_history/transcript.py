"""The transcript of a run: the code that adds messages to its history, with a journal entry for each change.

The history is sent to the model, and the user may move, edit and remove its messages. Only acorn adds entries to the
journal. Each change of the history has a journal entry that contains the index of the change, so acorn can rebuild the
history from the journal alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from pydantic_core import from_json

from acorn import journal
from acorn._formats.blobs import to_saved_data
from acorn._formats.json import (
    PartCollector,
    copy_json,
    describe_error,
    describe_traceback,
    read_iterators,
    to_content,
    to_json_text,
)
from acorn._formats.redact import Redactor, find_secrets
from acorn._formats.xml.encode import VALIDATION_ERROR_START
from acorn._history.compaction import CompactedRange, compact_messages
from acorn._history.history import assistant_message, call_ids, history_of, steps_of, tool_message, user_message
from acorn._history.repair import NO_RESULT, match_results, missing_results, open_calls, unique_ids
from acorn.journal import CalledTool, Entry, Form, ResultMessage
from acorn.models.port import ModelResponse, RawCall
from acorn.record import Run, history_of_run
from acorn.types import TOOL_ERROR, Content, JsonValue, Message, ToolCall, ToolResult, Unfinished

E = TypeVar("E", bound=Entry)
P = ParamSpec("P")

_NEW_ID = "call_acorn_"
"""The start of the call ids that acorn generates."""
_STOPPED = "This call was not completed: the run was stopped."
_WAITING = "This call has not returned yet: it waits for a person."


class FinishedCall(NamedTuple):
    """A tool result, with the message that the model receives, so that the output is converted only once."""

    result: ToolResult
    message: ResultMessage
    error: Exception | None = None
    """The exception that the tool raised, or None."""


class Transcript:
    """The writer of one run. It adds messages to the history, and a journal entry for each change."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.journal = run.journal
        self.history = history_of_run(run)
        self._run_id = run.id
        self._unanswered: list[ToolCall] = []
        """The tool calls of the last response that have no result in the history."""
        self._finished: dict[int, FinishedCall] = {}
        """A dict that maps the `id()` of each result of the step to the finished call."""

    def add_entry(self, make: Callable[Concatenate[str, int, float, P], E], *fields: P.args, **named: P.kwargs) -> E:
        """Add a journal entry with the id of the run, the current step and the current time, and return the entry."""
        entry = make(self._run_id, self.journal.step, self.journal.now, *fields, **named)
        self.journal.entries.append(entry)
        return entry

    @property
    def turn_index(self) -> int | None:
        """The history index of the last model response.

        The index is None before the first response, or if the user removed the response.
        """
        history = self.history
        return None if history.turn is None else _find_turn(history.messages, history.turn)

    # Edits by user code

    def record_edits(self) -> None:
        """Add journal entries for all edits by user code, including changes inside messages."""
        if self.history.shown is None:  # No user code has received the list.
            return
        for edit in self.history.take_edits():
            self.add_entry(journal.HistoryEdited, *edit)

    # The first messages, and later messages from acorn

    def start(self, messages: list[Message], inherited: int = 0) -> None:
        """Add the first messages. A branch shares the first `inherited` messages with its parent."""
        self.add_entry(journal.MessagesAdded, tuple(messages), None, inherited)
        self.history.needs_repair = inherited > 0
        self.history.start(messages, inherited)

    def add_user_message(self, content: Content) -> None:
        """Add a user message from acorn, such as a reminder, at the end of the history."""
        message = user_message(content)
        self.history.splice(len(self.history.messages), 0, [message])
        self.history.needs_repair = True
        self.add_entry(journal.MessagesAdded, (message,))

    # Model responses

    def add_response(self, response: ModelResponse, asked: float, refusal: str | None) -> list[ToolCall]:
        """Add a model response to the history and the journal, and return its tool calls.

        `asked` is the time of the request. If the model refused to answer, `refusal` is its text. A refusal is added
        only to the journal.
        """
        history = self.history
        # The numbers of messages and entries together never repeat: the user may remove messages, but not entries, and
        # a later run that continues the conversation has more messages.
        place = f"{len(history.messages)}_{len(self.journal.entries)}"
        calls = read_calls(response.tool_calls, place) if response.tool_calls else []
        self.journal.step = self.run.steps + 1  # A response starts a new step.
        extra = copy_json(response.extra) if response.extra else {}
        needs_repair = bool(extra) or not calls or not all(map(_has_json_object, calls))
        entry = self.add_entry(
            journal.ModelResponded,
            asked,
            self.run.model or "",
            response.content,
            response.reasoning,
            tuple([CalledTool(call.id, call.name, call.raw_arguments) for call in calls]),
            extra,
            response.stop_reason,
            refusal,
            response.usage,
            response.cost,
            response.attempts,
            response.waits,
            response.fallbacks,
        )
        if refusal is None:
            self._unanswered, history.turn = calls, assistant_message(entry)
            history.needs_repair = history.needs_repair or needs_repair
            history.splice(len(history.messages), 0, [history.turn])
        return calls

    def resume_turn(self, turn: Message | None, unanswered: list[ToolCall]) -> None:
        """Set the last response of a loaded run, and the tool calls of this response that have no result."""
        self.history.turn, self._unanswered = turn, unanswered

    # Tool results

    def add_result(self, call: FinishedCall, began: float | None, model: object = None) -> None:
        """Add one tool result to the journal. The secrets of `model` are redacted in the traceback of an error.

        At the end of the step, `add_results` adds the results of all calls to the history.
        """
        result, message, raised = call
        self._finished[id(result)] = call
        error = None if result.error is None else str(result.error)
        trace = None if raised is None else redacted_traceback(raised, model)
        fields = (began, message.content, error, message.form, message.seconds, trace)
        self.add_entry(journal.ToolFinished, result.id, result.name, *fields)

    def add_branch_result(self, call: FinishedCall) -> None:
        """Store the result of a branch for `add_results`. The journal has another entry for it."""
        self._finished[id(call.result)] = call

    def answer_calls(self, texts: Mapping[str, str], otherwise: str) -> None:
        """Add a result that acorn wrote to each tool call that has no result.

        `texts` maps call ids to result texts, such as validation errors. A call that is missing in `texts` was skipped,
        and its result is the text `otherwise`.
        """
        results: list[ResultMessage] = []
        for call in self._unanswered:
            text = texts.get(call.id, otherwise)
            answer_form: Form = "error" if text.startswith(VALIDATION_ERROR_START) else "text"
            form: Form = answer_form if call.id in texts else "skipped"
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
        finished = self._finished if is_unchanged else {}
        messages = [(finished.get(id(result)) or finish_call(result)).message for result in results]
        self._finished = {}
        added = messages
        if not is_unchanged:
            removed = {call.id for call in self._unanswered}.difference([message.call_id for message in messages])
            if removed:  # The hook may have put its own results into the history.
                removed &= match_results(self.history.current)[2]
            ids = [call.id for call in self._unanswered if call.id in removed]
            added = messages + [ResultMessage(call_id, NO_RESULT, "text", None) for call_id in ids]
        if added or context is not None:
            self._insert_results(added, context)
        return messages

    def _insert_results(self, results: Sequence[ResultMessage], context: Content | None) -> None:
        history = self.history
        for edit in history.take_moves() if history.shown is not None else ():
            self.add_entry(journal.HistoryEdited, *edit)
        count = len(history.messages)
        turn_index = count - 1 if count and history.messages[-1] is history.turn else self.turn_index
        index = None if turn_index is None else turn_index + 1
        self.add_entry(journal.ToolResultsAdded, tuple(results), context, index)
        self._unanswered = []
        added = [] if index is None else [tool_message(result.call_id, result.content) for result in results]
        if context is not None:
            added.append(user_message(context))
            history.needs_repair = True
        history.splice(count if index is None else index, 0, added)

    # Compaction

    def compact(self, compacted: CompactedRange, text: str, asked: float, response: ModelResponse) -> None:
        """Replace a range of the history with a summary, and add a journal entry.

        If `text` is empty, the history stays, and the entry only records the usage of the request.
        """
        history, start = self.history, compacted.start
        removed, added, steps = 0, list[Message](), set[int]()
        if text:
            removed, added = compacted.end - start, compact_messages(history.messages, compacted, text)
            message_steps = steps_of(self.journal.entries)
            steps = {message_steps[index] for index in compacted.replaced_indexes()}
            steps.difference_update(message_steps[compacted.end :])
            history.splice(start, removed, added)
            history.needs_repair = True
        self.add_entry(
            journal.Compacted,
            asked,
            self.run.model or "",
            text,
            start,
            removed,
            tuple(added),
            tuple(sorted(steps)),
            response.usage,
            response.cost,
        )

    # The end of the run

    def rebuild(self) -> None:
        """Rebuild the history from the journal, because Ctrl-C may have interrupted an update of the history."""
        self.history.start(history_of(self.journal.entries))
        self.resume_turn(None, [])
        for entry in self.journal.entries:
            if isinstance(entry, journal.ModelResponded) and entry.refusal is None:
                calls = [ToolCall(call.id, call.name, {}, call.arguments) for call in entry.calls]
                self.resume_turn(assistant_message(entry), calls)
            elif isinstance(entry, journal.ToolResultsAdded):
                self._unanswered = []

    def finish(self, output: object, reason: str) -> None:
        """Add the output of the run to the journal."""
        self.record_edits()
        if isinstance(output, Unfinished):
            called = ", ".join(f"`{call.name}`" for call in output.tool_calls)
            text = f"Unfinished: in a single turn the model called {called} and gave no answer."
            self.add_entry(journal.RunFinished, reason, text, "error")
        elif isinstance(output, str):
            self.add_entry(journal.RunFinished, reason, str.__str__(output), "text")
        else:
            # `on_finish` may return an image. The journal does not contain its data.
            self.add_entry(journal.RunFinished, reason, to_json_text(output, PartCollector()), "json")

    def stop(self, error: BaseException, results: Sequence[ToolResult], model: object, *, is_final: bool) -> None:
        """Add a result to each unanswered tool call in the history, and record the error in the journal.

        One journal entry contains the results and the error. A history that is rebuilt from the journal does not
        contain these results, because an interrupted run resumes from the state before this entry.
        """
        closed = self._close(results, _STOPPED)
        message = Redactor(find_secrets(model)).text(describe_error(error))
        self.add_entry(journal.RunFailed if is_final else journal.RunInterrupted, message, closed)

    def pause(self, results: Sequence[ToolResult]) -> None:
        """Add a result to each unanswered tool call in the history, and record the pause in the journal."""
        self.add_entry(journal.RunPaused, self._close(results, _WAITING))

    def _close(self, results: Sequence[ToolResult], otherwise: str) -> tuple[ResultMessage, ...]:
        """Add a result to each tool call in the history that has no result.

        Return the results that were added for the last response.
        """
        self.record_edits()
        history, closed = self.history, list[ResultMessage]()
        if self._unanswered:
            open_ids = dict.fromkeys(call.id for call in self._unanswered)
            result_ids = {result.id for result in results}
            closed = [finish_call(result).message for result in results if result.id in open_ids]
            if (index := self.turn_index) is not None:
                history.splice(index + 1, 0, [tool_message(result.call_id, result.content) for result in closed])
            unfinished = [call_id for call_id in open_ids if call_id not in result_ids]
            closed += [ResultMessage(call_id, otherwise, "stopped", None) for call_id in unfinished]
        for index, messages in missing_results(history.messages, otherwise):
            history.splice(index, 0, messages)
        return tuple(closed)


def read_calls(raw: Sequence[RawCall], place: str) -> list[ToolCall]:
    """Return the tool calls of a response, with parsed arguments and unique ids.

    New ids contain `place`, which differs for each response. An id of the provider that looks like a new id is
    replaced, because it may be equal to the id of another call.
    """
    ids = ["" if (call_id := str(call.id or "")).startswith(_NEW_ID) else call_id for call in raw]
    if len(ids) > 1 or "" in ids:
        ids = unique_ids(ids, f"{_NEW_ID}{place}", set())
    return [read_call(call_id, call.name, call.arguments or "{}") for call_id, call in zip(ids, raw, strict=True)]


def read_call(call_id: str, name: str, arguments: str) -> ToolCall:
    """Return a tool call with parsed arguments. Arguments that are not a JSON object are parsed as an empty dict."""
    try:
        parsed: JsonValue = from_json(arguments)
    except (ValueError, TypeError):  # The text is not JSON, or contains a lone surrogate.
        parsed = None
    return ToolCall(call_id, name, parsed if isinstance(parsed, dict) else {}, arguments)


def _has_json_object(call: ToolCall) -> bool:
    """Return whether the call arguments are a JSON object that every provider accepts in later requests."""
    text = call.raw_arguments
    if type(text) is not str or ("NaN" in text or "Infinity" in text):
        return False
    return bool(call.arguments) or text == "{}"


def redacted_traceback(error: Exception, model: object) -> str:
    """Return the traceback of an exception of user code, with the secrets of `model` redacted."""
    return Redactor(find_secrets(model)).text(describe_traceback(error))


def finish_call(result: ToolResult) -> FinishedCall:
    """Return a tool result with its message. If the output cannot be converted, the call has an error instead."""
    try:
        result.output = read_iterators(result.output)
        return FinishedCall(result, _result_message(result))
    except Exception as error:  # A serializer or an iterator of the user may raise any exception.
        return failed_call(result.id, result.name, error, result.seconds)


def failed_call(call_id: str, name: str, error: Exception, seconds: float | None = None) -> FinishedCall:
    """Return the result of a call that raised an exception."""
    result = ToolResult(call_id, name, error=describe_error(error), seconds=seconds)
    return FinishedCall(result, _result_message(result), error)


def _result_message(result: ToolResult) -> ResultMessage:
    """Return a tool result in the form in which the history and the journal contain it."""
    content: Content
    if result.error is not None:
        content = f"{TOOL_ERROR}{result.error}"
    elif isinstance(result.output, str):
        # A subclass of `str`, such as an enum, may override `__str__`. Use the characters of the string.
        content = str.__str__(result.output)
    else:
        content = to_content(result.output)
    # JSON encodes a value such as a date as a string. A loaded run has the form text for it, so use text here too.
    is_text = isinstance(result.output, str) or (isinstance(content, str) and content.startswith('"'))
    form: Form = "error" if result.error is not None else "text" if is_text else "json"
    return ResultMessage(result.id, content, form, result.seconds)


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


# The first messages


def first_messages(prompt: str, prior: Sequence[Message], opening: Message) -> list[Message]:
    """Return the first messages of a run: the system prompt, the earlier messages and the input message.

    If the prompt is empty, there is no system message.
    """
    messages: list[Message] = [{"role": "system", "content": prompt}] if prompt.strip() else []
    if prior:
        earlier = [to_saved_data(message) for message in prior]  # The user may change the prior messages later.
        for index, results in missing_results(earlier, NO_RESULT):
            earlier[index:index] = results
        messages += earlier
    return [*messages, opening]
