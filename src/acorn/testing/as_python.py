"""A generator of Python tests from recorded runs.

    print(as_python(agent.last))

In the generated test, a `ScriptedModel` repeats the recorded responses of the model, and the test repeats the recorded
answers of people. If a script cannot repeat the run, for example because the run was interrupted, the test is skipped
with a reason.

The run may come from an untrusted file. Therefore the generator writes all text of the run as string literals, and uses
a name from the run in the code only if it is a valid Python name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from acorn._inside import (
    FINISH,
    SUMMARY_INTRODUCTION,
    RecordedError,
    snake_case,
    to_json_data,
    to_saved_data,
)
from acorn.errors import AcornError, ModelError
from acorn.journal import (
    CalledTool,
    Compacted,
    ModelResponded,
    RunStarted,
    ToolStarted,
)
from acorn.record import Run
from acorn.testing.replay_data import (
    Turn,
    branches_of,
    first_messages,
    human_answers,
    input_requests,
    input_text,
    is_exact,
    is_keyword_argument,
    is_nested,
    literal,
    parse_arguments,
    request_error,
    request_time,
    runs_in_tree,
    skip_reason,
    split_class_path,
    start_time,
)
from acorn.thread import dump_events
from acorn.types import JsonObject, Paused, Unfinished, is_json_object

_UNKNOWN_MODULE = "your_project"
_INDENT = "    "
_OTHER_IMPORTS = {
    "ModelRequest": "from acorn.models import ModelRequest",
    "MemoryStore": "from acorn.stores import MemoryStore",
    "RawCall": "from acorn.models.port import RawCall",
}


def as_python(
    run: Run,
    *,
    module: str | None = None,
    settings: Mapping[str, object] | None = None,
    redact: Callable[[str], str] = str,
) -> str:
    """Return the source code of a test file that replays a run.

    `module` is the path of the agent class, such as `package.file:Class`. `settings` is JSON data with the settings of
    the agent instance that differ from its class. `redact` is a function that removes secrets from a text.
    """
    return _TestWriter(run, module, settings or {}, redact).text()


@dataclass(eq=False)
class _ScriptedClass:
    """An agent class that the generated test uses, with all recorded runs of this class."""

    name: str
    module: str
    runs: list[tuple[Run, list[Turn]]] = field(default_factory=list[tuple[Run, list[Turn]]])
    variable: str = "model"
    """The name of the variable in the test that contains the scripted model of the class."""

    @property
    def has_concurrent_runs(self) -> bool:
        return any(
            start_time(one) < start_time(other) + other.seconds
            and start_time(other) < start_time(one) + one.seconds
            and not is_nested(one, other)
            for (one, _), (other, _) in combinations(self.runs, 2)
        )


class _TestWriter:
    """A generator of one test file, which also collects the imports that the file needs."""

    def __init__(
        self, run: Run, module: str | None, settings: Mapping[str, object], redact: Callable[[str], str]
    ) -> None:
        self.run = run
        self.redact = redact
        self.settings = {
            name: value
            for name, value in settings.items()
            if name not in ("model", "store") and is_keyword_argument(name)
        }
        self.answers = human_answers(run)
        self.needs_store = module is not None or bool(input_requests(run))
        """Whether the test needs a store. The test uses a `MemoryStore`, never the store of the run."""
        self.knows_modules = True
        self.classes: dict[tuple[str, str], _ScriptedClass] = {}
        """A dict that maps (module, class name) to the agent classes. The class of the run itself is the first item."""
        self.agent = self._add_run(run, module)
        for branch in branches_of(run):
            self._add_run(branch, None)
        for cls in self.classes.values():
            cls.variable = "model" if cls is self.agent else f"{snake_case(cls.name)}_model"
        self.testing_imports = {"ScriptedModel"}
        """The names to import from `acorn.testing`."""
        self.imports: set[str] = set()
        """The other names to import."""

    def _add_run(self, run: Run, module: str | None) -> _ScriptedClass:
        starts = [entry for entry in run.journal.entries if isinstance(entry, RunStarted)]
        source, name = split_class_path(module or (starts[0].module if starts else "") or "")
        if source is None:
            self.knows_modules = False
        source = source or _UNKNOWN_MODULE
        cls = self.classes.setdefault((source, name), _ScriptedClass(name, source))
        turns: list[Turn] = [
            entry
            for entry in run.journal.entries
            if isinstance(entry, Compacted) or (isinstance(entry, ModelResponded) and entry.attempts > 0)
        ]
        if (error := request_error(run)) is not None:
            turns.append(error)
        cls.runs.append((run, turns))
        return cls

    def text(self) -> str:
        body = [*self._models(), *self._call()]
        reason = skip_reason(self.run)
        lines = [
            f'"""Replay a run of `{self.agent.name}`: the model repeats its responses, and the output must match.',
            "",
            *self._remarks(),
            '"""',
            "",
            *self._import_lines(reason is not None),
            "",
            "",
        ]
        if reason is not None:
            lines.append(f"@pytest.mark.skip(reason={reason!r})")
        lines.append(f"def test_{snake_case(self.agent.name)}() -> None:")
        return "\n".join([*lines, *(f"{_INDENT}{line}" if line else "" for line in body)]) + "\n"

    def _remarks(self) -> list[str]:
        entries = [entry for run in runs_in_tree(self.run) for entry in run.journal.entries]
        called = dict.fromkeys(entry.name for entry in entries if isinstance(entry, ToolStarted))
        tools = [f"`{name}`" for name in called if name.isidentifier()]
        remarks: list[str] = []
        if tools:
            remarks.append(f"The test calls the real tools: {', '.join(tools)}.")
        if not self.knows_modules:
            remarks.append(f"Replace `{_UNKNOWN_MODULE}` with the module of the class, which the run does not contain.")
        if self.run.deps is not None:
            remarks.append("Add `using(deps=...)` with the original value, which the run does not contain.")
        return remarks or ["The test calls no tools."]

    def _import_lines(self, is_skipped: bool) -> list[str]:
        third_party = ["import pytest"] if is_skipped or "pytest" in self.imports else []
        if "to_jsonable_python" in self.imports:
            third_party.append("from pydantic_core import to_jsonable_python")
        # The lines are sorted as a formatter would sort them.
        first_party = {f"from acorn.testing import {', '.join(sorted(self.testing_imports, key=_import_order))}"}
        first_party |= {line for name, line in _OTHER_IMPORTS.items() if name in self.imports}
        if acorn_names := sorted(self.imports & (_ERROR_NAMES | {"Paused", "Usage", "runs"}), key=_import_order):
            first_party.add(f"from acorn import {', '.join(acorn_names)}")
        class_names: dict[str, set[str]] = {}
        for cls in self.classes.values():
            class_names.setdefault(cls.module, set()).add(cls.name)
        first_party |= {f"from {module} import {', '.join(sorted(names))}" for module, names in class_names.items()}
        return [*third_party, *([""] if third_party else []), *sorted(first_party)]

    # The models

    def _models(self) -> Iterator[str]:
        for cls in self.classes.values():
            if cls.has_concurrent_runs:
                yield from self._model_by_input(cls)
                continue
            turns = [(request_time(run, turn), turn) for run, run_turns in cls.runs for turn in run_turns]
            turns.sort(key=lambda item: item[0])
            yield f"{cls.variable} = ScriptedModel("
            yield f"{_INDENT}["
            yield from self._replies([turn for _, turn in turns])
            yield f"{_INDENT}]"
            yield ")"

    def _model_by_input(self, cls: _ScriptedClass) -> Iterator[str]:
        """Yield the code of a scripted model with one script for each input of the agent class.

        Concurrent runs send their requests in varying order, so they cannot share one script.
        """
        self.imports.add("ModelRequest")
        self.testing_imports.add("Reply")
        scripts = f"{cls.variable}_scripts"
        yield f"# Runs of `{cls.name}` were concurrent, so the input of a run selects its script."
        yield f"{scripts} = {{"
        for run, turns in cls.runs:
            yield f"{_INDENT}{self._literal(input_text(run))}: ["
            yield from self._replies(turns)
            yield f"{_INDENT}],"
        yield "}"
        yield ""
        yield f"def {cls.variable}_reply(request: ModelRequest) -> Reply:"
        yield f"{_INDENT}texts = [message['content'] for message in request.messages]"
        yield f"{_INDENT}start = max(index for index, text in enumerate(texts) if text in {scripts})"
        yield f"{_INDENT}turns = [message for message in request.messages[start:] if message['role'] == 'assistant']"
        yield f"{_INDENT}return {scripts}[texts[start]][len(turns)]"
        yield ""
        yield f"{cls.variable} = ScriptedModel({cls.variable}_reply)"

    def _replies(self, turns: Sequence[Turn]) -> Iterator[str]:
        return (f"{_INDENT}{_INDENT}{self._reply(turn)}," for turn in turns)

    def _reply(self, turn: Turn) -> str:
        if isinstance(turn, Compacted):
            self.testing_imports.add("Reply")
            return f"Reply({self._literal(turn.summary.removeprefix(SUMMARY_INTRODUCTION))}{self._usage(turn)})"
        if isinstance(turn, ModelError):
            self.testing_imports.add("Failure")
            return f"Failure(status={turn.status!r})" if type(turn.status) is int else "Failure()"
        options = self._usage(turn)
        if turn.stop_reason not in ("stop", "tool_calls"):
            options += f", stop_reason={self._literal(turn.stop_reason)}"
        if turn.refusal is not None:
            options += f", refusal={self._literal(turn.refusal)}"
        replies = list(map(self._tool_call, turn.calls))
        if turn.content or options or not replies:
            self.testing_imports.add("Reply")
            replies.insert(0, f"Reply({self._literal(turn.content)}{options})")
        return " & ".join(replies)

    def _usage(self, turn: Compacted | ModelResponded) -> str:
        """Return the code for the token usage of a reply, or "" if the model summarized no conversation in the run.

        The token usage is only necessary for summaries, because it determines when acorn requests them.
        """
        if not any(isinstance(entry, Compacted) for run in runs_in_tree(self.run) for entry in run.journal.entries):
            return ""
        self.imports.add("Usage")
        return f", usage=Usage({turn.usage.input_tokens!r}, {turn.usage.output_tokens!r}, requests=1)"

    def _tool_call(self, call: CalledTool) -> str:
        arguments = parse_arguments(call.arguments)
        if arguments is None:
            self.testing_imports.add("Reply")
            self.imports.add("RawCall")
            return f"Reply(calls=[RawCall(None, {self._literal(call.name)}, {self._literal(call.arguments)})])"
        keywords = self._keywords(arguments)
        if call.name == FINISH and keywords:
            self.testing_imports.add("finish")
            return f"finish({', '.join(keywords)})"
        self.testing_imports.add("call")
        return f"call({', '.join([self._literal(call.name), *keywords])})"

    # The call and its outcome

    def _call(self) -> Iterator[str]:
        fork = self.run.forked_from
        if fork is not None:
            yield "events = ["
            yield from (f"{_INDENT}{self._literal(event)}," for event in self._events_before(fork.before))
            yield "]"
        agent = f"{self.agent.name}({', '.join(self._keywords(self.settings))})"
        options = ", ".join(self._options())
        configured = f"{agent}.using({options})" if options else agent
        contexts = [cls.variable for cls in self.classes.values() if not cls.has_concurrent_runs]
        store = ", store=store" if self.needs_store else ""
        contexts += [f"{cls.name}.override(model={cls.variable}{store})" for cls in self.classes.values()]
        if self.needs_store:
            self.imports.add("MemoryStore")
            yield "store = MemoryStore()"
        error_name = self._error_name()
        if error_name is not None:
            self.imports |= {"pytest", error_name}
            contexts.append(f"pytest.raises({error_name})")
        yield f"with {', '.join(contexts)}:"
        target = "run = " if error_name is None else ""
        values: object = to_saved_data(self.run.input) if fork is None else {}
        if not values:
            yield f"{_INDENT}{target}{configured}.run()"
        elif is_json_object(values) and all(map(is_keyword_argument, values)):
            yield f"{_INDENT}{target}{configured}.run("
            yield from (f"{_INDENT}{_INDENT}{keyword}," for keyword in self._keywords(values))
            yield f"{_INDENT})"
        else:
            yield f"{_INDENT}{target}{configured}.run(**{self._literal(values)})"
        if error_name is None:
            if self.answers:
                yield from self._resume(agent)
            yield from self._assertions()

    def _options(self) -> Iterator[str]:
        """Yield the code of the arguments for `agent.using(...)`: the earlier messages, or the thread of a fork."""
        fork = self.run.forked_from
        if fork is not None:
            yield "thread=events"
            yield f"before={int(fork.before)!r}"
            return
        messages = list(first_messages(self.run)[:-1])
        if messages and messages[0].get("role") in ("system", "developer"):
            del messages[0]
        if messages:
            yield f"history={self._literal(to_json_data(messages))}"

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
        self.imports |= {"Paused", "runs"}
        yield f"{_INDENT}answers = iter({self._literal(self.answers)})"
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
        if is_exact(output):
            self.imports.add("to_jsonable_python")
            yield f"assert to_jsonable_python(run.output, by_alias=False) == {self._literal(output)}"
        else:
            yield "# The output is not compared, because it contains a value that does not stay equal in source code."

    def _keywords(self, values: Mapping[str, object]) -> list[str]:
        return [f"{name}={self._literal(value)}" for name, value in values.items()]

    def _literal(self, value: object) -> str:
        return literal(value, self.redact)


def _import_order(name: str) -> tuple[bool, str]:
    return not name[0].isupper(), name  # Class names precede other names.


def _error_names(cls: type[AcornError]) -> set[str]:
    """Return the names of an error class of acorn and of all its subclasses."""
    subclasses = [subclass for subclass in cls.__subclasses__() if subclass.__module__ == AcornError.__module__]
    return {cls.__name__}.union(*map(_error_names, subclasses))


_ERROR_NAMES = _error_names(AcornError)
