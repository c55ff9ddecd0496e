"""A run as Python: a test with a `ScriptedModel` that says again what the model said, ready to paste.

    print(as_python(agent.last))

Every text of the run is written as a literal, and names are written only where they are names: a record may come from
anywhere. What people answered is answered again; what a script cannot do again (limits, an interruption) is said, and
the test is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from acorn._inside import (
    FINISH,
    RecordedError,
    class_in_journal,
    snake_case,
    text_of,
    to_json_data,
    to_saved_data,
    without_summary_introduction,
)
from acorn.errors import AcornError, LimitError, ModelError
from acorn.journal import (
    CalledTool,
    Compacted,
    InputReceived,
    InputRequested,
    MessagesAdded,
    ModelResponded,
    ToolStarted,
)
from acorn.record import Run
from acorn.testing.literals import arguments_of, is_exact, is_identifier, is_name, literal
from acorn.thread import dump_events
from acorn.types import JsonObject, Paused, Unfinished, Usage, is_json_object

_UNKNOWN = "your_project"
_TAB = "    "


def as_python(
    run: Run,
    *,
    module: str | None = None,
    settings: Mapping[str, Any] | None = None,
    hide: Callable[[str], str] = str,
) -> str:
    """The text of a test file for a run; `module` says where its class is, as in `package.file:Class`.

    `settings` are those that the instance had beside its class, as plain data. `hide` takes what is secret out of every
    text of the run.
    """
    return _TestWriter(run, module, settings or {}, hide).text()


@dataclass(eq=False)
class _Class:
    """The runs of one class, and what its model said in them, in order."""

    name: str
    source: str
    """Where it is imported from."""
    runs: list[tuple[Run, list[Any]]] = field(default_factory=list[tuple[Run, list[Any]]])
    """Each with its turns."""
    variable: str = "model"

    @property
    def is_side_by_side(self) -> bool:
        spans = [(_began(run), _began(run) + run.seconds, run) for run, _ in self.runs]
        return any(
            one[0] < other[1] and other[0] < one[1] and not _is_below(one[2], other[2])
            for at, one in enumerate(spans)
            for other in spans[at + 1 :]
        )


class _TestWriter:
    def __init__(self, run: Run, module: str | None, settings: Mapping[str, Any], hide: Callable[[str], str]) -> None:
        self.run = run
        self._hide = hide
        self.settings = {name: value for name, value in settings.items() if name not in ("model", "store")}
        self.is_named = True
        self.answers = _answers(run)
        self.is_kept = module is not None or bool(_asked_people(run))
        """Whether it needs a store; never the one that it was kept in."""
        self.classes: dict[tuple[str, str], _Class] = {}
        """By where they are and their names; that of the run itself is the first."""
        self.own = self._add(run, module)
        for below in _below(run):
            self._add(below, None)
        for number, each in enumerate(self.classes.values()):
            each.variable = "model" if number == 0 else f"{snake_case(each.name)}_model"
        self.testing = {"ScriptedModel"}
        self.needs: set[str] = set()

    def _add(self, run: Run, module: str | None) -> _Class:
        source, name = _names(module or class_in_journal(run.journal.entries) or "")
        if source is None:
            self.is_named = False
        found = self.classes.setdefault((source or _UNKNOWN, name), _Class(name, source or _UNKNOWN))
        turns: list[Any] = [
            entry
            for entry in run.journal.entries
            if isinstance(entry, Compacted) or (isinstance(entry, ModelResponded) and entry.attempts > 0)
        ]
        if _is_failed_request(run):
            turns.append(run.error)
        found.runs.append((run, turns))
        return found

    def text(self) -> str:
        body = [*self._scripts(), *self._call()]
        why = _why_not(self.run)
        head = f"A run of `{self.own.name}` as a test: the model says again what it said"
        head = f'"""{head}, and the agent must come to the same.'
        lines = [head, "", *self._remarks(), '"""', "", *self._imports(bool(why)), "", ""]
        if why:
            lines.append(f"@pytest.mark.skip(reason={why!r})")
        lines.append(f"def test_{snake_case(self.own.name)}() -> None:")
        return "\n".join([*lines, *(f"{_TAB}{line}" if line else "" for line in body)]) + "\n"

    def _remarks(self) -> list[str]:
        entries = [entry for run in _tree(self.run) for entry in run.journal.entries]
        called = dict.fromkeys(entry.name for entry in entries if isinstance(entry, ToolStarted))
        names = [name for name in called if name.isidentifier()]
        said: list[str] = []
        if names:
            said.append(f"The tools are really called: {', '.join(f'`{name}`' for name in names)}.")
        if not self.is_named:
            said.append(f"The record does not tell where every class is: say where instead of `{_UNKNOWN}`.")
        if self.run.deps is not None:
            said.append("What `using(deps=...)` brought along is not told: add it.")
        return said or ["No tool is called."]

    def _imports(self, is_skipped: bool) -> list[str]:
        outside = ["import pytest"] if is_skipped or "pytest" in self.needs else []
        if "to_jsonable_python" in self.needs:
            outside.append("from pydantic_core import to_jsonable_python")
        # Where they are is unknown or a name, and an order by name is what a formatter would make of it.
        own = {f"from acorn.testing import {', '.join(sorted(self.testing, key=_by_case))}"}
        for need, line in _IMPORTS.items():
            if need in self.needs:
                own.add(line)
        if named := sorted(self.needs & (_ERRORS | _NAMES), key=_by_case):
            own.add(f"from acorn import {', '.join(named)}")
        sources: dict[str, set[str]] = {}
        for each in self.classes.values():
            sources.setdefault(each.source, set()).add(each.name)
        own |= {f"from {source} import {', '.join(sorted(names))}" for source, names in sources.items()}
        return [*outside, *([""] if outside else []), *sorted(own)]

    # What the model says

    def _scripts(self) -> Iterator[str]:
        for each in self.classes.values():
            if each.is_side_by_side:
                yield from self._side_by_side(each)
                continue
            turns = [(_asked(run, turn), turn) for run, listed in each.runs for turn in listed]
            turns.sort(key=lambda one: one[0])
            yield from self._model(each.variable, [turn for _, turn in turns])

    def _model(self, variable: str, turns: Sequence[Any]) -> Iterator[str]:
        yield f"{variable} = ScriptedModel("
        yield f"{_TAB}["
        yield from (f"{_TAB}{_TAB}{self._reply(turn)}," for turn in turns)
        yield f"{_TAB}]"
        yield ")"

    def _side_by_side(self, each: _Class) -> Iterator[str]:
        """A function that knows a run by its input, since which one asks first is chance."""
        self.needs |= {"ModelRequest"}
        self.testing |= {"Reply"}
        yield f"# Runs of `{each.name}` went on side by side, so each is known by what it was asked."
        scripts = f"{each.variable}_scripts"
        yield f"{scripts} = {{"
        for run, turns in each.runs:
            yield f"{_TAB}{self._literal(_opening(run))}: ["
            yield from (f"{_TAB}{_TAB}{self._reply(turn)}," for turn in turns)
            yield f"{_TAB}],"
        yield "}"
        yield ""
        yield f"def {each.variable}_reply(request: ModelRequest) -> Reply:"
        yield f"{_TAB}texts = [message['content'] for message in request.messages]"
        yield f"{_TAB}at = max(at for at, text in enumerate(texts) if text in {scripts})"
        yield f"{_TAB}turns = [message for message in request.messages[at:] if message['role'] == 'assistant']"
        yield f"{_TAB}return {scripts}[texts[at]][len(turns)]"
        yield ""
        yield f"{each.variable} = ScriptedModel({each.variable}_reply)"

    def _reply(self, turn: Any) -> str:
        if isinstance(turn, Compacted):
            self.testing.add("Reply")
            return f"Reply({self._literal(without_summary_introduction(turn.summary))}{self._usage(turn)})"
        if isinstance(turn, ModelError):
            self.testing.add("Failure")
            return f"Failure(status={turn.status!r})" if type(turn.status) is int else "Failure()"
        options = self._usage(turn)
        if turn.stop_reason not in ("stop", "tool_calls"):
            options += f", stop_reason={self._literal(turn.stop_reason)}"
        if turn.refusal is not None:
            options += f", refusal={self._literal(turn.refusal)}"
        calls = list(map(self._called, turn.calls))
        if turn.content or options or not calls:
            self.testing.add("Reply")
            calls.insert(0, f"Reply({self._literal(turn.content)}{options})")
        return " & ".join(calls)

    def _usage(self, turn: Any) -> str:
        """Only where it decides when a summary is made."""
        if not any(isinstance(entry, Compacted) for run in _tree(self.run) for entry in run.journal.entries):
            return ""
        self.needs.add("Usage")
        usage: Usage = turn.usage
        return f", usage=Usage({usage.input_tokens!r}, {usage.output_tokens!r}, requests=1)"

    def _called(self, call: CalledTool) -> str:
        arguments = arguments_of(call.arguments)
        if arguments is None:
            self.testing.add("Reply")
            self.needs.add("RawCall")
            return f"Reply(calls=[RawCall(None, {self._literal(call.name)}, {self._literal(call.arguments)})])"
        given = [f"{name}={self._literal(value)}" for name, value in arguments.items()]
        if call.name == FINISH and given:
            self.testing.add("finish")
            return f"finish({', '.join(given)})"
        self.testing.add("call")
        return f"call({', '.join([self._literal(call.name), *given])})"

    # The call, and what came of it

    def _call(self) -> Iterator[str]:
        run, own = self.run, self.own
        using = dict(self._using())
        if run.forked_from is not None:
            yield "kept = ["
            yield from (f"{_TAB}{self._literal(event)}," for event in self._kept(run.forked_from.before))
            yield "]"
        given = to_saved_data(run.input) if run.forked_from is None else JsonObject()
        made = f"{own.name}({', '.join(f'{name}={self._literal(value)}' for name, value in self._set())})"
        again = made
        if using:
            listed = ", ".join(f"{name}={value}" for name, value in using.items())
            made = f"{made}.using({listed})"
        held = [each.variable for each in self.classes.values() if not each.is_side_by_side]
        kept_in = ", store=store" if self.is_kept else ""
        held += [f"{each.name}.override(model={each.variable}{kept_in})" for each in self.classes.values()]
        if self.is_kept:
            self.needs.add("MemoryStore")
            yield "store = MemoryStore()"
        failure = self._failure()
        if failure is not None:
            self.needs |= {"pytest", failure}
            held.append(f"pytest.raises({failure})")
        yield f"with {', '.join(held)}:"
        named = is_json_object(given) and all(is_name(name) for name in given)
        target = "" if failure is not None else "run = "
        if not given:
            yield f"{_TAB}{target}{made}.run()"
        elif named:
            yield f"{_TAB}{target}{made}.run("
            yield from (f"{_TAB}{_TAB}{name}={self._literal(value)}," for name, value in given.items())
            yield f"{_TAB})"
        else:
            yield f"{_TAB}{target}{made}.run(**{self._literal(given)})"
        if self.answers and failure is None:
            yield from self._answer(again)
        if failure is None:
            yield from self._asserts()

    def _answer(self, agent: str) -> Iterator[str]:
        """What people said, in the order in which they were asked."""
        self.needs |= {"Paused", "runs"}
        yield f"{_TAB}answers = iter({self._literal(self.answers)})"
        yield f"{_TAB}while isinstance(run.output, Paused):"
        yield f"{_TAB}{_TAB}given = {{request.id: next(answers) for request in run.output.requests}}"
        yield f"{_TAB}{_TAB}{agent}.resume(run.id, answers=given)"
        yield f"{_TAB}{_TAB}run = runs(store).get(run.id)"

    def _set(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in self.settings.items() if is_name(name)]

    def _using(self) -> Iterator[tuple[str, str]]:
        run = self.run
        if run.forked_from is not None:
            yield "thread", "kept"
            yield "before", repr(int(run.forked_from.before))
            return
        first = next((entry for entry in run.journal.entries if isinstance(entry, MessagesAdded)), None)
        prior = [] if first is None else list(first.messages[:-1])
        if prior and prior[0].get("role") in ("system", "developer"):
            del prior[0]
        if prior:
            yield "history", self._literal(to_json_data(prior))

    def _kept(self, before: int) -> list[JsonObject]:
        """The events that a fork began with, without when they happened."""
        kept = [event for event in self.run.thread if event.branch is None and event.iteration < before]
        times = ("timestamp", "seconds")
        return [{name: value for name, value in each.items() if name not in times} for each in dump_events(kept)]

    def _failure(self) -> str | None:
        error = self.run.error
        if error is None:
            return None
        if isinstance(error, RecordedError):
            return "Exception"
        known = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS]
        return known[0] if known else "Exception"

    def _asserts(self) -> Iterator[str]:
        run = self.run
        if isinstance(run.output, Unfinished | Paused):
            yield "assert not run.output"
            return
        if run.stop_reason is not None and run.stop_reason != "limit":
            yield f"assert run.stop_reason == {self._literal(run.stop_reason)}"
        plain = to_json_data(run.output)
        if is_exact(plain):
            self.needs.add("to_jsonable_python")
            yield f"assert to_jsonable_python(run.output, by_alias=False) == {self._literal(plain)}"
        else:
            yield "# The output holds a number that equals no other, so it is not compared."

    def _literal(self, plain: Any) -> str:
        return literal(plain, self._hide)


_IMPORTS = {
    "ModelRequest": "from acorn.models import ModelRequest",
    "MemoryStore": "from acorn.stores import MemoryStore",
    "RawCall": "from acorn.models.port import RawCall",
}
_NAMES = {"Paused", "Usage", "runs"}
"""What is imported from `acorn` itself, beside errors."""


def _public(kind: type[AcornError]) -> set[str]:
    """The names of our errors, from one of them down."""
    below = [each for each in kind.__subclasses__() if each.__module__ == AcornError.__module__]
    return {kind.__name__}.union(*map(_public, below))


_ERRORS = _public(AcornError)


def _why_not(run: Run) -> str | None:
    """Why a script alone cannot make the run again."""
    open_ones = [request_id for _, request_id, _ in _asked_people(run) if request_id not in _said(run)]
    if open_ones and (run.stop_reason != "paused" or _said(run)):
        return "the run asked people who did not answer, or who answered in part"
    if run.error is not None and _asked_people(run):
        return "the run failed after people were asked; give the agent an `on_human` that answers as they did"
    if run.stop_reason is None:
        return "the run had not ended when this was written"
    if run.stop_reason == "cancelled":
        return "the run was interrupted, which a script cannot do"
    if isinstance(run.error, LimitError):
        return "the run ended at a limit of tokens, cost or time, which a script does not use up"
    return None


def _asked_people(run: Run) -> list[tuple[float, str, str]]:
    """What people were asked in all runs of a tree: when, by which request, and whether for an approval."""
    asked = (
        (_began(each) + entry.at, entry.request_id, entry.kind)
        for each in _tree(run)
        for entry in each.journal.entries
        if isinstance(entry, InputRequested)
    )
    return sorted(asked)


def _said(run: Run) -> dict[str, str]:
    entries = (entry for each in _tree(run) for entry in each.journal.entries)
    return {entry.request_id: entry.answer for entry in entries if isinstance(entry, InputReceived)}


def _answers(run: Run) -> list[Any]:
    """What people answered, in the order in which they were asked; the journal has it as text, or else as JSON."""
    said = _said(run)
    known = [(said[request_id], kind) for _, request_id, kind in _asked_people(run) if request_id in said]
    return [parsed if kind == "approval" and (parsed := _plain(text)) is not None else text for text, kind in known]


def _plain(text: str) -> Any:
    """A yes or a no, or one with other arguments; None where it is a text."""
    try:
        found = from_json(text)
    except ValueError:
        return None
    return found if isinstance(found, bool) or is_json_object(found) else None


def _is_failed_request(run: Run) -> bool:
    """Whether the last request was answered by an error of the provider."""
    if not isinstance(run.error, ModelError):
        return False
    answers = [entry for entry in run.journal.entries if isinstance(entry, ModelResponded)]
    return not (answers and answers[-1].refusal is not None)


def _tree(run: Run) -> list[Run]:
    return [run, *_below(run)]


def _below(run: Run) -> list[Run]:
    return [each for branch in run.branches for each in _tree(branch)]


def _is_below(one: Run, other: Run) -> bool:
    return any(each is other for each in _tree(one)) or any(each is one for each in _tree(other))


def _began(run: Run) -> float:
    return 0.0 if run.started is None else run.started.timestamp()


def _asked(run: Run, turn: Any) -> float:
    at = turn.asked if isinstance(turn, ModelResponded | Compacted) else run.seconds
    return _began(run) + at


def _opening(run: Run) -> str:
    """The last message that a run began with."""
    first = next((entry for entry in run.journal.entries if isinstance(entry, MessagesAdded)), None)
    return text_of(first.messages[-1].get("content")) if first is not None and first.messages else ""


def _names(module: str) -> tuple[str | None, str]:
    """From `package.file:Class` to where the class is and its name; None where that is no place to import from."""
    source, _, name = module.partition(":")
    is_class = is_identifier(name)
    is_source = bool(source) and all(map(is_identifier, source.split("."))) and source != "__main__"
    return (source if is_class and is_source else None), (name if is_class else "Agent")


def _by_case(name: str) -> tuple[bool, str]:
    return not name[0].isupper(), name
