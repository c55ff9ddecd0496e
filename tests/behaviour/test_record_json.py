"""Tests of `Run.to_json` and `Run.from_json`: a loaded run record equals the original, except for live objects."""

from __future__ import annotations

import datetime
import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel, Field
from tests.behaviour.test_content_parts import DONE as ANSWERED
from tests.behaviour.test_content_parts import OAK, REPLIES, Showing
from tests.cases import each_case
from tests.parts import Photo

from acorn import (
    AcornError,
    BranchError,
    InputError,
    LimitError,
    ModelError,
    ParseError,
    Run,
    Step,
    StoreError,
    Unfinished,
    Usage,
    capture,
    current_run,
    module,
    tool,
)
from acorn._history.saved_form import RecordedError
from acorn.models import ModelRequest, Price
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calling
from acorn.thread import dump_events

SECRET = "sk-ant-api03-abcdefghijkl"


class Mood(Enum):
    GOOD = "good"


class Question(BaseModel):
    question: str
    when: datetime.date = datetime.date(2024, 2, 29)
    mood: Mood = Mood.GOOD
    among: set[int] = Field(default={3}, alias="choices")


class Answer(BaseModel):
    answer: str
    score: float = 0.5


@tool
def look(place: str = "here") -> dict[str, Any]:
    """Look."""
    return {"place": place, "seen": [1, 2.5, None]}


@tool
def fall() -> str:
    """Fail."""
    raise ValueError("no")


@tool
def stumble() -> str:
    """Be interrupted."""
    raise KeyboardInterrupt


class Checker(module[Any, Answer]):
    """Check."""

    initial_input = ["claim"]
    final_output = Answer
    tools = [look]
    max_steps = 3


class Helper(module[Any, str]):
    """Help."""

    final_output = str


class Aside(module[Any, Answer]):
    """Aside."""

    final_output = Answer


class Main(module[Question, Answer]):
    """Answer the question."""

    tools = [look, fall, stumble, Helper]
    branches = {"check": {"module": Checker, "description": "Check it"}}
    max_steps = 6


def by_prompt(**scripts: list[Any]) -> ScriptedModel:
    """Choose replies by the first word of the last paragraph of the prompt."""

    def reply(request: ModelRequest) -> Any:
        words = str(request.messages[0]["content"]).rsplit("\n\n", 1)[-1]
        return scripts[words.split()[0].strip(".").lower()].pop(0)

    return ScriptedModel(reply, price=Price(0.01, 0.1), name="priced")


def ran(agent: module[Any, Any], *args: Any, **given: Any) -> Run[Any]:
    """Return the record, however the run ended."""
    with capture() as runs:
        try:
            agent.run(*args, **given)
        except BaseException:
            if not runs:
                raise
    return runs[0]


def asked(agent: module[Any, Any]) -> Run[Any]:
    return ran(agent.using(deps=object()), question="Why?", choices={1, 2})


def with_tools() -> Run[Any]:
    calls = calling("look", "c1", place="ünder") & calling("fall", "c2") & calling("unknown", "c3")
    return asked(Main(model=by_prompt(answer=[calls, Reply("Hm."), finish(answer="a")])))


def with_branches() -> Run[Any]:
    class Branching(Main):
        """Answer the question."""

        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                self.branch(Aside)

    script = by_prompt(
        answer=[calling("check", "c1", claim="x") & calling("helper", "c2"), finish(answer="a")],
        check=[calling("look", "l1"), finish(answer="checked")],
        help=[finish(result="helped")],
        aside=[finish(answer="by the way")],
    )
    return asked(Branching(model=script))


def with_nested_branches() -> Run[Any]:
    class Inner(Checker):
        """Inner."""

    class Outer(Checker):
        """Outer."""

        branches = {"inner": Inner}

    class Nesting(Main):
        """Answer the question."""

        branches = {"outer": Outer}

    script = by_prompt(
        answer=[calling("outer", "c1", claim="x"), calling("outer", "c2", claim="y"), finish(answer="a")],
        outer=[calling("inner", "i1", claim="z"), finish(answer="out"), Failure(400)],
        inner=[finish(answer="in")],
    )
    return asked(Nesting(model=script))


def with_corrections() -> Run[Any]:
    wrong = calling("__finish__", answer=5, score="high")
    return asked(Main(model=by_prompt(answer=[wrong, wrong, finish(answer="a")])))


def without_an_answer() -> Run[Any]:
    wrong = calling("__finish__", answer=5)
    return asked(Main(model=by_prompt(answer=[wrong] * 9), parse_retries=1))


def failed() -> Run[Any]:
    return asked(Main(model=by_prompt(answer=[calling("look", "c1"), Failure(429)])))


def failed_in_a_hook() -> Run[Any]:
    class OddError(Exception):
        def __init__(self, code: int) -> None:
            super().__init__(f"odd {SECRET}")
            self.code, self.key, self.thing, self._own = code, SECRET, object, 1

    class Failing(Main):
        """Answer the question."""

        def on_step(self, step: Step) -> None:
            try:
                raise LookupError("below")
            except LookupError as error:
                odd = OddError(7)
                odd.add_note("by the way")
                raise odd from error

    return asked(Failing(model=by_prompt(answer=[calling("look", "c1")])))


def failed_in_a_branch() -> Run[Any]:
    class Failing(Main):
        """Answer the question."""

        def on_step(self, step: Step) -> None:
            self.branch(Aside)

    return asked(Failing(model=by_prompt(answer=[calling("look", "c1")], aside=[Failure(400)])))


def at_its_limit() -> Run[Any]:
    costly = calling("look", "c1")
    costly.usage = Usage(10_000, 10)
    return asked(Main(model=by_prompt(answer=[costly]), max_total_tokens=100))


def interrupted() -> Run[Any]:
    return asked(Main(model=by_prompt(answer=[calling("look", "c1") & calling("stumble", "c2")])))


def unfinished() -> Run[Any]:
    @tool
    def shoot() -> list[Any]:
        """Shoot."""
        return [Photo("data:image/png;base64,AAAA"), datetime.date(2024, 2, 29)]

    class Single(Main):
        """Answer the question."""

        tools = [shoot, look]
        max_steps: Any = None

    return asked(Single(model=by_prompt(answer=[calling("shoot", "c1") & calling("look", "c2")])))


def with_media() -> Run[Any]:
    return ran(Showing(model=ScriptedModel(list(REPLIES))), question="?", photo=OAK)


def with_media_and_an_edit() -> Run[Any]:
    run = ran(Showing(model=ScriptedModel([ANSWERED])).using(history=with_media()), question="?", photo=OAK)
    run.history[-1]["content"] = [{"type": "text", "text": "edited"}]
    return run


def with_an_edited_history() -> Run[Any]:
    class Editing(Main):
        """Answer the question."""

        def on_step(self, step: Step) -> None:
            if step.counter == 2:
                del self.history[2:4]
                self.history.insert(1, {"role": "user", "content": "by the way", "name": "me"})
                self.history[-1]["content"] = f"edited {float('inf')}"

    script = [calling("look", "c1"), calling("look", "c2"), calling("look", "c3"), finish(answer="a")]
    run = asked(Editing(model=by_prompt(answer=script)).using(history=[{"role": "user", "content": "before"}]))
    odd: Any = {"role": "user", "content": "afterwards", "odd": {"deep": [object, (1, 2)]}}
    run.history.append(odd)
    return run


def with_odd_letters() -> Run[Any]:
    letters = "\u2028 ü \U0001f600 \x00 \ud800"
    return asked(Main(model=by_prompt(answer=[Reply(letters), finish(answer="\x7f ü"), finish(answer="a")])))


def with_a_plain_output() -> Run[Any]:
    @dataclass
    class Point:
        x: float

    class Points(module[Any, list[Point]]):
        """Answer."""

        final_output = list[Point]

    return ran(Points(model=by_prompt(answer=[finish(result=[{"x": 1.5}, {"x": 2}])])))


def with_an_output_of_its_own() -> Run[Any]:
    class Turning(Main):
        """Answer the question."""

        def on_finish(self, output: Answer) -> Any:
            return {"turned": [output.answer, float("nan"), float("-inf")]}

    return asked(Turning(model=by_prompt(answer=[finish(answer="a")])))


def of_nothing() -> Run[Any]:
    return Run("id", Question(question="?"))


KINDS: list[Callable[[], Run[Any]]] = [
    with_tools,
    with_branches,
    with_nested_branches,
    with_corrections,
    without_an_answer,
    failed,
    failed_in_a_hook,
    failed_in_a_branch,
    at_its_limit,
    interrupted,
    unfinished,
    with_media,
    with_media_and_an_edit,
    with_an_edited_history,
    with_odd_letters,
    with_a_plain_output,
    with_an_output_of_its_own,
    of_nothing,
]
NOT_THE_SAME = ("input", "output", "history", "branches", "error", "deps", "journal")


def class_of(run: Run[Any]) -> Any:
    """The class of the tested runs."""
    below: list[Any] = [module]
    for cls in below:
        below += cls.__subclasses__()
    begun: Any = run.journal.entries[0] if run.journal.entries else None
    names = [cls for cls in below if begun and begun.module == f"{cls.__module__}:{cls.__qualname__}"]
    return names[-1] if names else Main


def assert_same(run: Run[Any], other: Run[Any], *, is_typed: bool) -> None:
    for field in fields(Run):
        if field.name not in NOT_THE_SAME:
            assert getattr(other, field.name) == getattr(run, field.name), field.name
    plain = json.loads(json.dumps(run.history, default=str))
    assert json.loads(json.dumps(other.history, default=str)) == plain or "object" in str(plain)
    assert dump_events(other.thread) == dump_events(run.thread)
    assert [repr(each) for each in other.journal.entries[1:]] == [repr(each) for each in run.journal.entries[1:]]
    assert other.deps is None
    if is_typed:
        assert other.input == run.input
        assert type(other.input) is type(run.input)
        assert repr(other.output) == repr(run.output)
        assert type(other.output) is type(run.output)
        assert other.journal.entries[:1] == run.journal.entries[:1]
    assert (other.error is None) == (run.error is None)
    if other.error is not None:
        assert other.error.run is other  # type: ignore[attr-defined]
    assert len(other.branches) == len(run.branches)
    for one, another in zip(run.branches, other.branches, strict=True):
        assert_same(one, another, is_typed=False)


@each_case("kind", KINDS)
def test_record_loaded_from_json_equals_original(kind: Callable[[], Run[Any]]) -> None:
    run = kind()
    text = run.to_json()
    text.encode()
    typed, plain = Run.from_json(text, class_of(run)), Run.from_json(text)
    assert typed.to_json() == text
    assert plain.to_json() == text
    assert_same(run, typed, is_typed=True)
    assert_same(run, plain, is_typed=False)
    assert [str(message) for message in typed.new_messages()] == [str(message) for message in plain.new_messages()]
    assert SECRET not in text
    assert pickle.loads(pickle.dumps(typed)).history == typed.history


def test_record_loaded_without_agent_class_has_input_and_output_as_dicts() -> None:
    run = Run.from_json(with_tools().to_json())
    assert run.input == {"question": "Why?", "when": "2024-02-29", "mood": "good", "among": [1, 2]}  # type: ignore[comparison-overlap]
    assert run.output == {"answer": "a", "score": 0.5}


def test_record_loaded_with_agent_class_has_typed_outputs_of_declared_branches() -> None:
    run = with_branches()
    read = Run.from_json(run.to_json(), class_of(run))
    assert [type(branch.output) for branch in read.branches] == [
        str,
        Answer,
        dict,
    ]  # The last one was started from code.
    assert type(read.branches[1].input) is type(run.branches[1].input)
    nested = with_nested_branches()
    read = Run.from_json(nested.to_json(), class_of(nested))
    assert read.branches[0].branches[0].output == Answer(answer="in")


def test_loaded_record_as_history_sends_messages_of_original() -> None:
    run = with_tools()
    model = ScriptedModel([finish(answer="b"), finish(answer="b")])
    Main(model=model).using(history=run)(question="And?")
    Main(model=model).using(history=Run.from_json(run.to_json(), Main))(question="And?")
    assert model.requests[0].messages == model.requests[1].messages


def test_record_of_running_run_is_written_as_json() -> None:
    texts: list[str] = []

    class Writing(Main):
        """Answer the question."""

        def on_step(self, step: Step) -> None:
            texts.append(current_run().to_json())

    run = asked(Writing(model=by_prompt(answer=[calling("look", "c1"), finish(answer="a")])))
    read = Run.from_json(texts[0], Writing)
    assert (read.id, read.stop_reason, read.output, read.steps) == (run.id, None, None, 1)
    assert read.history == run.history[:3]


# Errors


def test_loaded_record_of_run_with_acorn_error_has_error_of_original_class() -> None:
    run = failed()
    error = Run.from_json(run.to_json()).error
    assert type(error) is ModelError
    assert isinstance(run.error, ModelError)
    assert (str(error), error.status, error.retryable) == (str(run.error), 429, True)
    assert error.retry_after == run.error.retry_after
    wrong = without_an_answer()
    parse = Run.from_json(wrong.to_json(), Main).error
    assert isinstance(parse, ParseError)
    assert isinstance(wrong.error, ParseError)
    assert (parse.raw_output, parse.errors, parse.attempts) == (
        wrong.error.raw_output,
        wrong.error.errors,
        wrong.error.attempts,
    )
    assert type(Run.from_json(at_its_limit().to_json()).error) is LimitError
    branch = Run.from_json(failed_in_a_branch().to_json()).error
    assert isinstance(branch, BranchError)
    assert isinstance(branch.__cause__, ModelError)


def test_loaded_record_of_run_with_user_defined_error_has_recorded_error() -> None:
    error = Run.from_json(failed_in_a_hook().to_json()).error
    assert isinstance(error, RecordedError)
    assert isinstance(error, AcornError)
    assert str(error) == "OddError: odd ***"
    assert error.kind.endswith("failed_in_a_hook.<locals>.OddError")
    assert error.fields == {"code": 7, "key": "***", "thing": repr(object)}
    assert error.__notes__ == ["by the way"]
    assert isinstance(error.__cause__, RecordedError)
    assert str(error.__cause__) == "LookupError: below"
    assert str(Run.from_json(interrupted().to_json()).error) == "KeyboardInterrupt"


def test_loaded_record_of_unfinished_run_has_unfinished_output_with_tool_results() -> None:
    output = Run.from_json(unfinished().to_json()).output
    assert isinstance(output, Unfinished)
    assert not output
    assert [call.name for call in output.tool_calls] == ["shoot", "look"]
    assert output.tool_results[1].output == {"place": "here", "seen": [1, 2.5, None]}
    assert output.tool_results[0].output[0].__acorn_part__() == Photo("data:image/png;base64,AAAA").__acorn_part__()
    with pytest.raises(AttributeError, match="Single` did not finish"):
        output.answer  # noqa: B018 - it says why there is none


# Unreadable records


def test_record_json_loaded_with_other_agent_class_raises_store_error() -> None:
    text = with_tools().to_json()
    with pytest.raises(StoreError, match=r"as a run of `.*:Checker`: it is a run of `.*:Main`"):
        Run.from_json(text, Checker)
    wrong: Any
    for wrong in (str, module, Answer, "Main", 5):
        with pytest.raises(StoreError, match="the second argument must be a module class"):
            Run.from_json(text, wrong)


def test_record_json_of_class_that_was_in_main_script_is_loaded_with_moved_class() -> None:
    moved = with_tools().to_json().replace(f'"{Main.__module__}:Main"', '"__main__:Main"')
    assert Run.from_json(moved, Main).output == Answer(answer="a")


def test_record_json_with_input_that_class_rejects_raises_store_error() -> None:
    text = with_tools().to_json().replace('"question":"Why?"', '"question":5')
    with pytest.raises(StoreError, match="The input of the saved run no longer fits its class"):
        Run.from_json(text, Main)


def test_record_json_of_newer_format_raises_store_error() -> None:
    newer = json.loads(with_tools().to_json()) | {"format": 1000}
    with pytest.raises(StoreError, match="it has format 1000, but this version of acorn reads format 1"):
        Run.from_json(json.dumps(newer))


NO_RUNS: list[Any] = [
    "",
    "{",
    "[]",
    "null",
    "5",
    "{}",
    '{"format": "2"}',
    '{"format": 1}',
    '{"format": true}',
    b"\xff",
    None,
]


@each_case("text", NO_RUNS)
def test_text_that_is_not_a_saved_run_raises_store_error(text: Any) -> None:
    with pytest.raises(StoreError, match="Cannot read the saved run"):
        Run.from_json(text)


def damaged(plain: Any, chance: random.Random) -> Any:
    """Return the data with one value missing or changed."""
    if isinstance(plain, dict) and plain and chance.random() < 0.9:
        key = chance.choice(list(plain))
        if chance.random() < 0.2:
            return {name: value for name, value in plain.items() if name != key}
        return {**plain, key: damaged(plain[key], chance)}
    if isinstance(plain, list) and plain and chance.random() < 0.9:
        at = chance.randrange(len(plain))
        return [*plain[:at], damaged(plain[at], chance), *plain[at + 1 :]]
    return chance.choice([None, 5, "x", [], {}, [[]], {"a": 1}, True, 1.5])


@each_case("seed", range(20))
def test_damaged_record_json_either_loads_or_raises_store_error(seed: int) -> None:
    chance = random.Random(seed)
    whole = json.loads(chance.choice([with_branches, failed_in_a_hook, unfinished])().to_json())
    for _ in range(50):
        text = json.dumps(damaged(whole, chance))
        try:
            Run.from_json(text)
        except StoreError as error:
            assert "saved run" in str(error)  # noqa: PT017 - it may be read as well


def test_run_with_wrong_input_raises_input_error() -> None:
    with pytest.raises(InputError):
        Main(model=ScriptedModel([])).run(questions="?")


Kind = TypeVar("Kind")


class Extracting(module[str, Kind]):
    """Extract."""


class Extracted(BaseModel):
    name: str


def test_record_json_is_loaded_with_generic_class_and_with_instance() -> None:
    agent = Extracting[Extracted](model=ScriptedModel([finish(name="Ann")]))
    text = agent.run("Ann is here").to_json()
    assert Run.from_json(text, Extracting[Extracted]).output == Extracted(name="Ann")
    assert Run.from_json(text, agent).output == Extracted(name="Ann")  # type: ignore[call-overload]
    assert Run.from_json(text, Extracting).output == {"name": "Ann"}


def test_record_json_with_output_field_unknown_to_class_raises_store_error() -> None:
    class Saying(module[None, Extracted]):
        """Say."""

    model = ScriptedModel([finish(name="Ann", age=3)])
    run = Saying(final_output=[("name", str), ("age", int)], model=model).run()
    with pytest.raises(StoreError, match="has the fields `age`, which its class does not declare"):
        Run.from_json(run.to_json(), Saying)
