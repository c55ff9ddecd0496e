"""A generator of Python tests from recorded runs.

    print(as_python(agent.last))

In the generated test, a `ScriptedModel` repeats the recorded responses of the model, and the test repeats the recorded
answers of people. If a script cannot repeat the run, for example because the run was interrupted, the test is skipped
with a reason.

The run may come from an untrusted file. Therefore the generator writes all text of the run as string literals, and uses
a name from the run in the code only if it is a valid Python name.
"""

from __future__ import annotations

import ast
import json
import keyword
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import indent

from pydantic_core import from_json

import acorn
from acorn import journal
from acorn._inside import (
    FINISH,
    SUMMARY_INTRODUCTION,
    RecordedError,
    Redactor,
    parse_json,
    snake_case,
    text_of,
    to_compact_json,
    to_json_data,
    to_saved_data,
)
from acorn.errors import LimitError, ModelError
from acorn.record import Run
from acorn.thread import dump_events
from acorn.types import JsonObject, Message, Paused, Unfinished, is_json_object

_UNKNOWN_MODULE = "your_project"
_INDENT = "    "
_ERROR_NAMES = {name for name in acorn.__all__ if name.endswith("Error")}
_MODULES = {
    **dict.fromkeys(("inf", "nan"), "math"),
    **dict.fromkeys(("Failure", "Reply", "ScriptedModel", "call", "finish"), "acorn.testing"),
    **dict.fromkeys(("Paused", "Usage", "runs", *_ERROR_NAMES), "acorn"),
    "MemoryStore": "acorn.stores",
    "ModelRequest": "acorn.models",
    "RawCall": "acorn.models.port",
    "to_jsonable_python": "pydantic_core",
}
"""A dict that maps the names that generated code may use to their modules."""
_MODEL_BY_INPUT = """
def reply(request: ModelRequest) -> Reply:
    texts = [message['content'] for message in request.messages]
    start = max(index for index, text in enumerate(texts) if text in scripts)
    turns = [message for message in request.messages[start:] if message['role'] == 'assistant']
    return scripts[texts[start]][len(turns)]

model = ScriptedModel(reply)"""

Turn = journal.Compacted | journal.ModelResponded | ModelError
"""A response of the model, a summary by the model, or the provider error that ended the run."""


def as_python(
    run: Run,
    *,
    module: str | None = None,
    settings: Mapping[str, object] | None = None,
    redactor: Redactor | None = None,
) -> str:
    """Return the source code of a test file that replays a run.

    `module` is the path of the agent class, such as `package.file:Class`. `settings` is JSON data with the settings of
    the agent instance that differ from its class. `redactor` removes secrets from the text of the run.
    """
    return _TestWriter(run, module, settings or {}, redactor or Redactor(finds_keys=False)).text()


class _TestWriter:
    """A generator of one test file."""

    def __init__(self, run: Run, module: str | None, settings: Mapping[str, object], redactor: Redactor) -> None:
        self.run = run
        self.redactor = redactor
        self.settings = {
            name: value
            for name, value in settings.items()
            if name not in ("model", "store") and _is_keyword_argument(name)
        }
        self.members = _runs_in_tree(run)
        self.entries = [entry for member in self.members for entry in member.journal.entries]
        self.questions = _questions(self.members)
        self.needs_store = module is not None or bool(self.questions)
        """Whether the test needs a store. The test uses a `MemoryStore`, never the store of the run."""
        paths = [module or _class_path(run), *map(_class_path, self.members[1:])]
        self.classes = list(dict.fromkeys(map(_split_class_path, paths)))
        """A (module, class name) pair for each agent class. The class of the run itself is the first item."""
        self.agent = self.classes[0][1]
        self.is_concurrent = any(
            _start_time(later) < _start_time(earlier) + earlier.seconds
            for member in self.members
            for earlier, later in pairwise(sorted(member.branches, key=_start_time))
        )

    def text(self) -> str:
        model = self._model_by_input() if self.is_concurrent else self._model()
        body = indent("\n".join([*model, *self._call()]), _INDENT)
        test = f"def test_{snake_case(self.agent)}() -> None:\n{body}\n"
        if (reason := self._skip_reason()) is not None:
            test = f"@pytest.mark.skip(reason={reason!r})\n{test}"
        title = f"Replay a run of `{self.agent}`: the model repeats its responses, and the output must match."
        docstring = [f'"""{title}', "", *self._remarks(), '"""']
        return "\n".join([*docstring, "", *self._import_lines(test), "", "", test])

    def _skip_reason(self) -> str | None:
        """Return the reason why a scripted model cannot repeat the run, or None if a scripted model can repeat it."""
        run = self.run
        answers = [answer for _, answer in self.questions]
        if None in answers and (run.stop_reason != "paused" or any(answer is not None for answer in answers)):
            return "some requests for human input were not answered"
        if run.error is not None and answers:
            return "the run failed after it requested human input. Add an `on_human` with the same answers"
        if run.stop_reason is None:
            return "the run had not ended when this test was written"
        if run.stop_reason == "cancelled":
            return "the run was interrupted, which a script cannot repeat"
        if isinstance(run.error, LimitError):
            return "the run reached a limit of tokens, cost or time, which a script does not reach"
        if self.is_concurrent and len(set(map(_input_text, self.members))) < len(self.members):
            return "concurrent branches had the same input, so a script cannot tell their requests apart"
        return None

    def _remarks(self) -> list[str]:
        called = dict.fromkeys(entry.name for entry in self.entries if isinstance(entry, journal.ToolStarted))
        tools = [f"`{name}`" for name in called if name.isidentifier()]
        remarks: list[str] = []
        if tools:
            remarks.append(f"The test calls the real tools: {', '.join(tools)}.")
        if any(module == _UNKNOWN_MODULE for module, _ in self.classes):
            remarks.append(f"Replace `{_UNKNOWN_MODULE}` with the module of the class, which the run does not contain.")
        if self.run.deps is not None:
            remarks.append("Add `using(deps=...)` with the original value, which the run does not contain.")
        return remarks or ["The test calls no tools."]

    def _import_lines(self, code: str) -> list[str]:
        """Return the imports of the names that the code uses, sorted as a formatter would sort them."""
        used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
        modules: dict[str, set[str]] = {}
        for module, name in [*self.classes, *((_MODULES[name], name) for name in used & _MODULES.keys())]:
            modules.setdefault(module, set()).add(name)
        lines = {
            module: f"from {module} import {', '.join(sorted(names, key=_import_order))}"
            for module, names in sorted(modules.items())
        }
        installed = ["import pytest"] if "pytest" in used else []
        installed += [lines.pop(module) for module in ("math", "pydantic_core") if module in lines]
        return [*installed, *([""] if installed else []), *lines.values()]

    # The model

    def _model(self) -> list[str]:
        turns = [(_request_time(run, turn), turn) for run in self.members for turn in _turns(run)]
        turns.sort(key=lambda item: item[0])
        replies = self._replies([turn for _, turn in turns])
        return ["model = ScriptedModel(", f"{_INDENT}[", *replies, f"{_INDENT}]", ")"]

    def _model_by_input(self) -> Iterator[str]:
        """Yield the code of a scripted model with one script for the input of each run.

        Concurrent runs send their requests in varying order, so they cannot share one script.
        """
        yield "# Some runs were concurrent, so the input of a run selects its script."
        yield "scripts = {"
        for run in self.members:
            yield f"{_INDENT}{self._literal(_input_text(run))}: ["
            yield from self._replies(_turns(run))
            yield f"{_INDENT}],"
        yield "}"
        yield _MODEL_BY_INPUT

    def _replies(self, turns: Sequence[Turn]) -> Iterator[str]:
        return (f"{_INDENT}{_INDENT}{self._reply(turn)}," for turn in turns)

    def _reply(self, turn: Turn) -> str:
        if isinstance(turn, journal.Compacted):
            return f"Reply({self._literal(turn.summary.removeprefix(SUMMARY_INTRODUCTION))}{self._usage(turn)})"
        if isinstance(turn, ModelError):
            return f"Failure(status={turn.status!r})" if type(turn.status) is int else "Failure()"
        options = self._usage(turn)
        if turn.stop_reason not in ("stop", "tool_calls"):
            options += f", stop_reason={self._literal(turn.stop_reason)}"
        if turn.refusal is not None:
            options += f", refusal={self._literal(turn.refusal)}"
        replies = list(map(self._tool_call, turn.calls))
        if turn.content or options or not replies:
            replies.insert(0, f"Reply({self._literal(turn.content)}{options})")
        return " & ".join(replies)

    def _usage(self, turn: journal.Compacted | journal.ModelResponded) -> str:
        """Return the code for the token usage of a reply, or "" if the model summarized no conversation in the run.

        The token usage is only necessary for summaries, because it determines when acorn requests them.
        """
        if not any(isinstance(entry, journal.Compacted) for entry in self.entries):
            return ""
        return f", usage=Usage({turn.usage.input_tokens!r}, {turn.usage.output_tokens!r}, requests=1)"

    def _tool_call(self, call: journal.CalledTool) -> str:
        arguments = _parse_arguments(call.arguments)
        if arguments is None:
            return f"Reply(calls=[RawCall(None, {self._literal(call.name)}, {self._literal(call.arguments)})])"
        keywords = self._keywords(arguments)
        if call.name == FINISH and keywords:
            return f"finish({', '.join(keywords)})"
        return f"call({', '.join([self._literal(call.name), *keywords])})"

    # The call and its outcome

    def _call(self) -> Iterator[str]:
        fork = self.run.forked_from
        if fork is not None:
            yield "events = ["
            yield from (f"{_INDENT}{self._literal(event)}," for event in self._events_before(fork.before))
            yield "]"
        agent = f"{self.agent}({', '.join(self._keywords(self.settings))})"
        options = self._history() if fork is None else f"thread=events, before={int(fork.before)!r}"
        configured = f"{agent}.using({options})" if options else agent
        store = ", store=store" if self.needs_store else ""
        contexts = [] if self.is_concurrent else ["model"]
        contexts += [f"{name}.override(model=model{store})" for _, name in self.classes]
        if self.needs_store:
            yield "store = MemoryStore()"
        error_name = self._error_name()
        if error_name is not None:
            contexts.append(f"pytest.raises({error_name})")
        yield f"with {', '.join(contexts)}:"
        call = f"{_INDENT}{'run = ' if error_name is None else ''}{configured}.run"
        values: object = to_saved_data(self.run.input) if fork is None else {}
        if not values:
            yield f"{call}()"
        elif is_json_object(values) and all(map(_is_keyword_argument, values)):
            yield f"{call}("
            yield from (f"{_INDENT}{_INDENT}{keyword}," for keyword in self._keywords(values))
            yield f"{_INDENT})"
        else:
            yield f"{call}(**{self._literal(values)})"
        if error_name is None:
            yield from self._resume(agent)
            yield from self._assertions()

    def _history(self) -> str:
        """Return the code of the argument for `agent.using(...)` that contains the earlier messages, or ""."""
        messages = list(_first_messages(self.run)[:-1])
        if messages and messages[0].get("role") in ("system", "developer"):
            del messages[0]
        return f"history={self._literal(to_json_data(messages))}" if messages else ""

    def _events_before(self, step: int) -> list[JsonObject]:
        """Return the events before a step as JSON data. Times are omitted, because they differ in each run."""
        events = [event for event in self.run.thread if event.branch is None and event.iteration < step]
        return [
            {name: value for name, value in event.items() if name not in ("timestamp", "seconds")}
            for event in dump_events(events)
        ]

    def _error_name(self) -> str | None:
        """Return the name of the error class for `pytest.raises`, or None if the run has no error."""
        error = self.run.error
        if error is None:
            return None
        if isinstance(error, RecordedError):
            return "Exception"
        return next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _ERROR_NAMES), "Exception")

    def _resume(self, agent: str) -> Iterator[str]:
        """Yield the code that resumes the paused run with the recorded answers, in the order of the questions."""
        answers = [_parse_answer(kind, answer) for kind, answer in self.questions if answer is not None]
        if answers:
            yield f"{_INDENT}answers = iter({self._literal(answers)})"
            yield f"{_INDENT}while isinstance(run.output, Paused):"
            yield f"{_INDENT}{_INDENT}answers_by_id = {{request.id: next(answers) for request in run.output.requests}}"
            yield f"{_INDENT}{_INDENT}{agent}.resume(run.id, answers=answers_by_id)"
            yield f"{_INDENT}{_INDENT}run = runs(store).get(run.id)"

    def _assertions(self) -> Iterator[str]:
        run = self.run
        if isinstance(run.output, Unfinished | Paused):
            yield "assert not run.output"
            return
        if run.stop_reason is not None and run.stop_reason != "limit":
            yield f"assert run.stop_reason == {self._literal(run.stop_reason)}"
        output: object = to_json_data(run.output)
        if _is_exact(output):
            yield f"assert to_jsonable_python(run.output, by_alias=False) == {self._literal(output)}"
        else:
            yield "# The output is not compared, because it contains a value that does not stay equal in source code."

    def _keywords(self, values: Mapping[str, object]) -> list[str]:
        return [f"{name}={self._literal(value)}" for name, value in values.items()]

    def _literal(self, value: object) -> str:
        """Convert JSON data to the source code of a Python literal, without secrets."""
        plain: object = json.loads(json.dumps(value))  # A blob is a text with another `repr`.
        return repr(self.redactor.data(plain))


def _import_order(name: str) -> tuple[bool, str]:
    return not name[0].isupper(), name  # Class names precede other names.


# The parts of a run


def _runs_in_tree(run: Run) -> list[Run]:
    return [run, *(member for branch in run.branches for member in _runs_in_tree(branch))]


def _class_path(run: Run) -> str:
    return next((entry.module for entry in run.journal.entries if isinstance(entry, journal.RunStarted)), None) or ""


def _turns(run: Run) -> list[Turn]:
    turns: list[Turn] = [
        entry
        for entry in run.journal.entries
        if isinstance(entry, journal.Compacted) or (isinstance(entry, journal.ModelResponded) and entry.attempts > 0)
    ]
    # The error of a refusal is not a turn, because a refusal is a response of the model.
    if isinstance(run.error, ModelError) and not (turns and getattr(turns[-1], "refusal", None) is not None):
        turns.append(run.error)
    return turns


def _start_time(run: Run) -> float:
    return 0.0 if run.started is None else run.started.timestamp()


def _request_time(run: Run, turn: Turn) -> float:
    return _start_time(run) + (run.seconds if isinstance(turn, ModelError) else turn.asked)


def _first_messages(run: Run) -> Sequence[Message]:
    return next((entry.messages for entry in run.journal.entries if isinstance(entry, journal.MessagesAdded)), ())


def _input_text(run: Run) -> str:
    messages = _first_messages(run)
    return text_of(messages[-1].get("content")) if messages else ""


def _questions(runs: Sequence[Run]) -> list[tuple[str, str | None]]:
    """Return (kind, answer or None) for each request for human input, in the order of the requests."""
    entries = [(_start_time(run) + entry.at, entry) for run in runs for entry in run.journal.entries]
    answers = {entry.request_id: entry.answer for _, entry in entries if isinstance(entry, journal.InputReceived)}
    requests = sorted(
        (time, entry.request_id, entry.kind) for time, entry in entries if isinstance(entry, journal.InputRequested)
    )
    return [(kind, answers.get(request_id)) for _, request_id, kind in requests]


def _parse_answer(kind: str, text: str) -> object:
    """Return a recorded answer. For an approval, this is JSON data as of `acorn.approve()`."""
    return parse_json(text) if kind == "approval" else text


def _is_identifier(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _is_keyword_argument(name: object) -> bool:
    """Return True if generated code can use the name as a keyword argument.

    The name must be ASCII, because Python normalizes other names and could change them.
    """
    return isinstance(name, str) and name.isascii() and _is_identifier(name)


def _split_class_path(path: str) -> tuple[str, str]:
    """Split a path such as `package.file:Class` into the Python module and the class name.

    The Python module is `your_project` if a test cannot import the class, for example because it is in `__main__`.
    """
    module, _, name = path.partition(":")
    if not _is_identifier(name):
        return _UNKNOWN_MODULE, "Agent"
    is_module = all(map(_is_identifier, module.split("."))) and module != "__main__"
    return (module if is_module else _UNKNOWN_MODULE), name


def _parse_arguments(text: str) -> JsonObject | None:
    """Parse the JSON arguments of a tool call for use as keyword arguments of `call(...)`.

    The result is None if `call(...)` would not generate exactly the same JSON text.
    """
    try:
        arguments: object = from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
    if not is_json_object(arguments) or not all(map(_is_keyword_argument, arguments)) or "_id" in arguments:
        return None
    return arguments if to_compact_json(arguments) == text else None


def _is_exact(value: object) -> bool:
    """Return False if JSON data contains NaN, an infinite number, or a text with a lone surrogate.

    Such a value does not stay equal if it is written to source code.
    """
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True
