"""Tests of runs that are saved as JSON text and loaded between any two asks: they continue unchanged.

The driver does the work of a store and a restart: it writes the state of the machine, drops the machine, and creates a
new machine from the text.
"""

from __future__ import annotations

import enum
import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.cases import each_case
from tests.long_version import IS_LONG
from tests.provider_rules import assert_complete, assert_request_valid
from tests.raw_model import RawModel, calling, finishing

from acorn import AcornError, Run, Step, ToolResult, Unfinished, Usage, current_run, module, tool
from acorn._call.plan import new_machine
from acorn._drive.sync_driver import call_tool
from acorn._drive.tree import Tree
from acorn._formats.json import to_json_data
from acorn._machine.asks import AskHook, AskModel, AskSource, AskTool
from acorn._machine.machine import Machine
from acorn._machine.saved_run import load, save
from acorn.models import ModelRequest, Price
from acorn.record import CallSite
from acorn.testing import Reply, ScriptedModel, call, finish
from acorn.thread import dump_events
from acorn.types import Message

Restart = Literal["never", "after each tell", "after each begin", "both"]

SECRET = "sk-very-secret-12345678"


@dataclass
class Setup:
    """A call that is ready to be driven, and the models that it may ask."""

    agent: module[Any, Any]
    models: dict[str, Any]
    given: dict[str, Any]

    def resolve(self, declared: Any, _: object) -> Any:
        if isinstance(declared, str | dict):
            return self.models[declared if isinstance(declared, str) else declared["model"]]
        return declared


@dataclass
class Outcome:
    """Return everything visible of a run."""

    requests: list[Any]
    history: Any
    thread: list[Any]
    usage: Usage
    cost: float | None
    model: str | None
    steps: int
    stop_reason: str | None
    output: str
    error: str
    saved: int
    """How often it was saved."""


def drive(setup: Setup, restart: Restart) -> Outcome:
    """Drive a run to its end, with restarts, on a clock that advances by itself."""
    first = new_machine(setup.agent, (), setup.given)
    plan = replace(first.plan, resolve=setup.resolve)
    loop = Machine(plan, Run("the run", first.run.input, deps=first.run.deps))
    now, saved = 0.0, 0
    asked: list[tuple[str, ModelRequest]] = []

    def again(loop: Machine) -> Machine:
        nonlocal saved
        is_opening = any(isinstance(ask, AskSource) for ask in loop.asks(now))  # Every restart starts this again.
        if loop.state.phase == "done" or is_opening:
            return loop
        saved += 1
        text = json.dumps(save(loop))
        assert text == json.dumps(save(loop)), "saving changed the run"
        assert SECRET not in text
        fresh = load(plan, json.loads(text), loop.run.deps)
        assert fresh.run.id == "the run"
        assert fresh.run.input == loop.run.input
        assert fresh.run.history == to_json_data(loop.run.history)
        fresh.start(now)
        while isinstance(opening := fresh.asks(now)[0], AskSource):
            fresh.tell(opening.id, _perform(setup, fresh, opening), now)
        return fresh

    try:
        loop.start(now)
        while asks := loop.asks(now + 0.1):
            now += 0.1
            ask = asks[0]
            if not isinstance(ask, AskSource):
                loop.begin(ask.id, now)
            if restart in ("after each begin", "both"):  # As if killed during the effect.
                loop = again(loop)
                ask = next(again for again in loop.asks(now) if again.id == ask.id)
            if isinstance(ask, AskModel):
                asked.append((ask.model.name, ask.request))
            outcome = _perform(setup, loop, ask)
            now += 0.1
            loop.tell(ask.id, outcome, now)
            if restart in ("after each tell", "both"):
                loop = again(loop)
    except Exception as error:
        if isinstance(error, AssertionError):
            raise
        loop.stop(error, now)
    for model in setup.models.values():
        if isinstance(model, ScriptedModel):
            model.done()
    return _seen(loop.run, asked, saved)


def _perform(setup: Setup, loop: Machine, ask: Any) -> Any:
    with CallSite(Tree(loop), loop.run.id, ask.id):
        match ask:
            case AskModel():
                return ask.model.complete(ask.request)
            case AskTool():
                return call_tool(ask)
            case AskSource():
                ask.source.open()  # type: ignore[attr-defined]
                return ask.source.tools()
            case AskHook():
                try:
                    return ask.function(*ask.arguments)
                except ask.forgives as error:
                    return error
            case _:
                raise AssertionError(ask)


def _seen(run: Run[Any], asked: list[tuple[str, ModelRequest]], saved: int) -> Outcome:
    requests: list[Any] = []
    for name, request in asked:
        assert_request_valid(request)
        fields = vars(request) | {"body": request.body(name)}
        requests.append((name, fields))
    output: Any = run.output
    if isinstance(output, Unfinished):
        output = ("unfinished", output.content, output.tool_calls, [_read(result) for result in output.tool_results])
    return Outcome(
        requests,
        to_json_data(run.history),
        [{**event, "seconds": None} for event in dump_events(run.thread)],
        run.usage,
        run.cost,
        run.model,
        run.steps,
        run.stop_reason,
        repr(output),
        repr(run.error),
        saved,
    )


def _read(result: ToolResult) -> Any:
    return result.id, result.name, to_json_data(result.output), result.error


# Scenarios


class Question(BaseModel):
    question: str
    asked: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    weight: Decimal = Field(default=Decimal("1.50"), alias="how_heavy")


class Answer(BaseModel):
    answer: str
    score: float = 1.0


class Color(enum.Enum):
    red = "red"


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    inner: int = Field(default=1, serialization_alias="INNER")


@tool
def look(place: str = "here") -> str:
    """Look somewhere."""
    return f"nothing in {place}"


@tool
def fetch(kind: str) -> Any:
    """Fetch something of a kind."""
    return OUTPUTS[kind]


OUTPUTS: dict[str, Any] = {
    "text": "text",
    "quoted": '"quoted"',
    "none": None,
    "number": 1.0,
    "large": 1e22,
    "true": True,
    "nan": [math.nan, -math.inf],
    "datetime": datetime(2026, 1, 2, tzinfo=UTC),
    "enum": Color.red,
    "decimal": Decimal("1.50"),
    "bytes": b"raw",
    "bad bytes": b"\xff",
    "set": {1},
    "model": Answer(answer="x"),
    "aliased": Aliased(),
    "in a list": [Aliased(), Color.red, {"when": datetime(2026, 1, 2, tzinfo=UTC)}],
    "half": "\ud800",
    "half in a list": ["\ud800"],
    "lock": threading.Lock(),
}


def boom() -> str:
    """Fail."""
    raise ValueError("no")


class Looker(module[Question, Answer]):
    """Look around, then answer."""

    tools = [look, fetch, boom]
    max_steps = 8


Make = Callable[[], Setup]
SCENARIOS: dict[str, tuple[Make, str]] = {}


def ends(reason: str) -> Callable[[Make], Make]:
    """A scenario, and the `stop_reason` that it should have."""

    def note(make: Make) -> Make:
        SCENARIOS[make.__name__.replace("_", " ")] = make, reason
        return make

    return note


def setup(
    kind: type[module[Any, Any]], *replies: Any, others: Any = (), model: Any = None, raw: Any = None, **settings: Any
) -> Setup:
    """A module with a script; `others` belongs to the model `other`, `raw` has exact responses."""
    options = {name: settings.pop(name) for name in ("forces", "price") if name in settings}
    brought = {name: settings.pop(name) for name in ("history", "deps") if name in settings}
    models: dict[str, Any] = {
        "openai/main": RawModel(raw) if raw else ScriptedModel(replies, name="main", **options),
        "other": ScriptedModel(others, name="other", **options),
    }
    agent = kind(model=model or models["openai/main"], **settings).using(**brought)
    return Setup(agent, models, {"question": "Where is it?"} if kind.initial_input == Question else {})


DONE = finish(answer="nowhere")


@ends("finish")
def a_single_turn() -> Setup:
    return setup(Looker, DONE, max_steps=None, tools=[])


@ends("unfinished")
def a_single_turn_that_does_not_finish() -> Setup:
    return setup(Looker, Reply("Hm.") & call("look") & call("fetch", kind="model") & call("none"), max_steps=None)


@ends("finish")
def tools_side_by_side_and_words_between() -> Setup:
    both = call("look", place="the attic") & call("look", place=5) & call("boom") & call("nothing")
    return setup(Looker, both, "Hm.", call("look"), DONE)


@ends("finish")
def results_of_every_kind() -> Setup:
    class Fetcher(Looker):
        def on_step(self, step: Step) -> None:
            step.add_to_context("Go on")

    every = [call("fetch", kind=kind) for kind in OUTPUTS]
    return setup(Fetcher, *every, every[6] & every[7] & every[8], DONE, max_steps=100)


@ends("finish")
def corrections() -> Setup:
    return setup(Looker, finish(answer=5) & call("look"), finish(), finish(answer=5) & DONE)


@ends("error")
def corrections_that_run_out() -> Setup:
    return setup(Looker, call("look"), finish(), finish(answer=5), parse_retries=1)


@ends("finish")
def words_in_a_single_turn() -> Setup:
    return setup(Looker, "Hm.", DONE, max_steps=None)


@ends("forced")
def a_forced_finish() -> Setup:
    return setup(Looker, call("look"), call("look"), DONE, max_steps=2)


@ends("forced")
def a_forced_finish_that_is_ignored() -> Setup:
    form = "<output><answer>nowhere</answer><score>0.5</score></output>"
    return setup(Looker, call("look"), call("look"), Reply(form) & call("look"), max_steps=1)


@ends("forced")
def a_model_that_cannot_be_forced() -> Setup:
    wrong = "<output><answer>nowhere</answer><score>much</score></output>"
    return setup(Looker, call("look"), wrong, "Hm.", wrong.replace("much", "0.5"), max_steps=1, forces=False)


@ends("finish")
def a_model_that_cannot_be_forced_in_a_single_turn() -> Setup:
    return setup(Looker, "Hm.", "<output><answer>nowhere</answer></output>", max_steps=None, tools=[], forces=False)


class Judged(Looker):
    """Look, then be judged."""

    def on_finish(self, output: Answer) -> Any:
        if len(output.answer) < 5:
            raise ValueError("say more")
        return {"the answer": output.answer, "score": output.score} if output.answer == "replace" else None


@ends("finish")
def answers_that_on_finish_rejects() -> Setup:
    return setup(Judged, finish(answer="a") & call("look"), call("look"), finish(answer="b"), DONE)


@ends("finish")
def an_answer_that_on_finish_replaces() -> Setup:
    return setup(Judged, finish(answer="replace"))


@ends("finish")
def an_answer_that_json_cannot_hold() -> Setup:
    return setup(Judged, raw=[calling(("a", "__finish__", '{"answer": "long enough", "score": NaN}'))])


@ends("forced")
def answers_in_xml_that_on_finish_rejects() -> Setup:
    short, long = "<output><answer>a</answer></output>", "<output><answer>nowhere</answer></output>"
    return setup(Judged, call("look"), short, long, max_steps=1, forces=False)


@ends("step")
def an_answer_of_on_steps_that_on_finish_rejects() -> Setup:
    class Hasty(Judged):
        def on_step(self, step: Step) -> None:
            step.finish(answer="nowhere" if step.counter > 2 else "a", score=step.counter)

    return setup(Hasty, call("look"), "Hm.", call("look"))


@ends("finish")
def going_in_circles() -> Setup:
    return setup(Looker, *[call("look")] * 5, DONE)


@ends("loop")
def going_in_circles_until_forced() -> Setup:
    return setup(Looker, *[call("look")] * 4, DONE, loop_guard="force")


def used(reply: Reply, tokens: int) -> Reply:
    return replace(reply, usage=Usage(tokens, tokens, requests=1))


@ends("limit")
def a_limit_of_tokens() -> Setup:
    return setup(Looker, *[used(call("look", place=str(n)), 100) for n in range(3)], DONE, max_total_tokens=1200)


@ends("limit")
def a_limit_of_tokens_with_a_history_cut_short() -> Setup:
    class Cutter(Looker):
        def on_step(self, step: Step) -> None:
            self.history = [self.history[-1], *self.history[1:-1], {"role": "user", "content": "x" * 400}]

    return setup(Cutter, *[used(call("look", place=str(n)), 50) for n in range(3)], DONE, max_total_tokens=1100)


@ends("error")
def a_limit_that_leaves_no_room() -> Setup:
    return setup(Looker, used(call("look"), 1000), max_total_tokens=1500)


@ends("limit")
def a_limit_of_dollars() -> Setup:
    replies = [used(call("look", place=str(n)), 100) for n in range(3)]
    return setup(Looker, *replies, DONE, max_cost=1.2, price=Price(0.001, 0.001))


@ends("limit")
def a_limit_of_seconds() -> Setup:
    return setup(Looker, *[call("look", place=str(n)) for n in range(2)], DONE, max_seconds=1.2)


class Changing(Looker):
    """Look, and change."""

    def on_step(self, step: Step) -> None:
        if step.counter == 1:
            step.temperature, step.max_tokens = 0.1, 50
        if step.counter == 2:
            step.model = "other"
            step.temperature = 0.2
        if step.counter == 3:
            step.model = {"model": "other", "api_key": SECRET, "reasoning_effort": "high", "seed": 5}


@ends("finish")
def changed_settings() -> Setup:
    return setup(Changing, call("look"), call("look", place="a"), others=[call("look", place="b"), DONE])


@ends("forced")
def changed_settings_and_a_forced_finish() -> Setup:
    replies = [call("look"), call("look", place="a")]
    return setup(Changing, *replies, others=[call("look", place="b"), call("look"), DONE], max_steps=4)


@ends("finish")
def a_declared_model_with_a_key() -> Setup:
    return setup(
        Looker, call("look"), DONE, model={"model": "openai/main", "api_key": SECRET, "thinking": {"type": "on"}}
    )


@ends("finish")
def removed_tools() -> Setup:
    class Remover(Looker):
        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                step.remove_tool("boom")
                step.tools.reverse()
            if step.counter == 3:
                step.tools = []
            if step.counter == 4:
                step.tools = [boom]

    return setup(Remover, call("look"), call("boom"), call("look", place="a"), call("look"), call("boom"), DONE)


@ends("finish")
def a_history_that_is_cut_and_copied() -> Setup:
    class Editor(Looker):
        def on_step(self, step: Step) -> None:
            odd: Any = {"role": "user", "content": [{"type": "text", "text": "\ud800"}], "x": (1, 2)}
            self.history.append(odd)
            if step.counter == 2:
                self.history = json.loads(json.dumps(self.history))
            if step.counter == 3:
                self.history = self.history[:1] + self.history[-3:]
            if step.counter == 4:
                self.history.clear()
            step.tool_results.reverse()
            step.add_to_context({"step": step.counter})

    return setup(Editor, *[call("look", place=str(n)) & call("look") for n in range(5)], DONE)


@ends("finish")
def a_history_that_is_summed_up() -> Setup:
    class Summing(Looker):
        def on_step(self, step: Step) -> None:
            said: Message = {"role": "user", "content": f"So far: {step.counter}"}
            self.history = [*self.history[:2], said, self.history[-1]]

    return setup(Summing, *[call("look", place=str(n)) for n in range(4)], DONE)


@ends("finish")
def a_run_sent_as_a_thread() -> Setup:
    replies = [call("look") & call("boom"), "Hm.", finish(answer=5), call("fetch", kind="datetime"), DONE]
    return setup(Looker, *replies, history_format="thread")


@tool
def meddle(how: str) -> str:
    """Meddle with the history while the call is under way."""
    history = current_run().history
    if how == "copy":
        history[-1] = json.loads(json.dumps(history[-1]))
    if how == "drop":
        history.pop()
    if how == "append":
        history.append({"role": "user", "content": "Hurry."})
    return how


@ends("finish")
def a_tool_that_meddles_with_the_history() -> Setup:
    class Meddled(Looker):
        tools = [meddle]

        def on_step(self, step: Step) -> None:
            step.add_to_context("Hm")

    return setup(
        Meddled, *[call("meddle", how=how) & call("meddle", how="") for how in ("copy", "drop", "append")], DONE
    )


@ends("finish")
def an_earlier_conversation_and_a_prompt_method() -> Setup:
    class Prompted(Looker):
        def system_prompt(self) -> str:
            return f"Speak {current_run().deps}."

    made = {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "name": "look", "arguments": {}}]}
    prior = [{"role": "system", "content": "Old."}, {"role": "user", "content": "Hello"}, made]
    return setup(Prompted, call("look"), DONE, history=prior, deps="French")


@ends("finish")
def ids_that_are_missing_or_come_again() -> Setup:
    two = calling((None, "look", "{}"), ("a", "look", "{"), ("a", "look", '{"place": "\ud800"}'), content="\ud83d")
    return setup(Looker, raw=[two, two, two, finishing(answer="nowhere")])


@ends("error")
def a_model_that_refuses() -> Setup:
    return setup(Looker, call("look"), Reply(refusal="No."))


@ends("error")
def a_hook_that_fails() -> Setup:
    class Failing(Looker):
        def on_step(self, step: Step) -> None:
            if step.counter == 2:
                raise RuntimeError("enough")

    return setup(Failing, call("look"), call("look") & call("look"))


class Nothing(module[Any, Any]):
    """Do nothing."""


@ends("finish")
def no_input_and_no_output() -> Setup:
    return setup(Nothing, finish())


class Words(module[Any, Any]):
    """Repeat the words."""

    initial_input = str
    final_output = list[str]
    max_steps = 3
    tools = [look]

    def on_finish(self, output: list[str]) -> None:
        if not output:
            raise ValueError("say something")


@ends("finish")
def plain_types() -> Setup:
    made = setup(Words, call("look"), finish(result=[]), finish(result=["a"]))
    return replace(made, given={"input": "a\nb"})


class Exact(BaseModel):
    model_config = ConfigDict(strict=True, ser_json_inf_nan="constants")

    when: datetime
    pair: tuple[int, str]
    colors: set[Color]
    rate: float
    raw: bytes


class Exacting(module[Exact, Answer]):
    """Be exact."""


@ends("finish")
def an_input_that_is_checked_strictly() -> Setup:
    given = {"when": datetime(2026, 1, 2, tzinfo=UTC), "pair": (1, "a"), "colors": {Color.red}, "rate": math.inf}
    return replace(setup(Exacting, DONE), given={**given, "raw": b"raw"})


class Toolbox:
    """A source of tools that counts how often it was opened."""

    def __init__(self) -> None:
        self.opened = 0

    def open(self) -> None:
        self.opened += 1

    def tools(self) -> list[Any]:
        assert self.opened

        def dig(depth: int = 1) -> int:
            """Dig."""
            return depth

        return [dig]


@ends("finish")
def tools_from_a_source() -> Setup:
    class Digger(Judged):
        def on_step(self, step: Step) -> None:
            if step.counter == 2:
                step.remove_tool("look")

    replies = [call("dig", depth=2), call("look"), call("look"), call("dig"), finish(answer="a"), DONE]
    return setup(Digger, *replies, tools=[look, Toolbox()])


# The promise


@each_case("restart", ["after each tell", "after each begin", "both"] if IS_LONG else ["both"])
@each_case(("make", "reason"), SCENARIOS.values())
def test_run_saved_and_loaded_at_any_step_equals_uninterrupted_run(make: Make, reason: str, restart: Restart) -> None:
    there, back = drive(make(), "never"), drive(make(), restart)
    assert there.stop_reason == reason
    assert back.saved >= len(there.requests) - 1
    for mine, theirs in zip(back.requests, there.requests, strict=False):
        assert mine == theirs
    assert replace(back, saved=0) == replace(there, saved=0)


# The saved text


def paused(made: Setup, phase: str, number: int = 1) -> tuple[Any, Machine]:
    """Return a run before its nth ask in a phase, and its plan."""
    first = new_machine(made.agent, (), made.given)
    plan = replace(first.plan, resolve=made.resolve)
    loop = Machine(plan, first.run)
    loop.start(0.0)
    while True:
        ask = loop.asks(0.0)[0]
        number -= loop.state.phase == phase
        if not number:
            return plan, loop
        loop.begin(ask.id, 0.0)
        loop.tell(ask.id, _perform(made, loop, ask), 0.0)


class Switching(Looker):
    """Look, then switch to another model."""

    def on_step(self, step: Step) -> None:
        step.model = {
            "model": "other",
            "api_key": SECRET,
            "aws_secret_access_key": SECRET,
            "extra_headers": {"Authorization": f"Bearer {SECRET}"},
            "base_url": f"https://user:{SECRET}@example.org/v1?api-version=2&token={SECRET}",
            "timeout": 30,
            "thinking": {"type": "enabled", "budget_tokens": 100},
            "input_cost_per_token": 0.1,
        }


def test_saved_run_contains_no_secret() -> None:
    declared = {"model": "openai/main", "api_key": SECRET}
    _, loop = paused(setup(Switching, call("look"), others=[DONE], model=declared), "model", 2)
    text = json.dumps(save(loop))
    assert SECRET not in text
    assert "example.org/v1" in text
    kept = json.loads(text)["state"]["settings"]["model"]
    assert kept["timeout"] == 30
    assert kept["thinking"] == {"type": "enabled", "budget_tokens": 100}
    assert kept["input_cost_per_token"] == 0.1


def test_saved_run_contains_only_standard_json() -> None:
    def no_constant(word: str) -> Any:
        raise AssertionError(word)

    _, loop = paused(setup(Looker, call("fetch", kind="nan") & call("fetch", kind="in a list"), DONE), "model", 2)
    json.loads(json.dumps(save(loop)), parse_constant=no_constant)


def test_loading_run_whose_hook_added_undeclared_tool_raises_error_with_tool_name() -> None:
    class Adder(Looker):
        def on_step(self, step: Step) -> None:
            def dig() -> str:
                """Dig."""
                return "earth"

            step.add_tool(dig)

    plan, loop = paused(setup(Adder, call("look"), call("dig"), DONE), "model", 2)
    saved = json.loads(json.dumps(save(loop)))
    with pytest.raises(
        AcornError, match=r"the tools `dig`, which `on_step` added and the module does not declare"
    ) as caught:
        load(plan, saved)
    assert "`look`" not in str(caught.value)


def test_loading_run_whose_hook_set_model_object_raises_acorn_error() -> None:
    class Swapper(Looker):
        def on_step(self, step: Step) -> None:
            step.model = ScriptedModel([DONE], name="other")

    plan, loop = paused(setup(Swapper, call("look")), "model", 2)
    saved = json.loads(json.dumps(save(loop)))
    with pytest.raises(AcornError, match=r"`on_step` set its model to an object.*`step\.model`"):
        load(plan, saved)


def test_loading_run_with_input_that_class_rejects_raises_acorn_error() -> None:
    _, loop = paused(setup(Looker, call("look"), DONE), "tools")
    changed, _ = paused(replace(setup(Words, finish(result=["a"])), given={"input": "a"}), "model")
    with pytest.raises(AcornError, match="The input of the saved run no longer fits its class"):
        load(changed, json.loads(json.dumps(save(loop))))


@each_case("phase", ["model", "tools", "step", "judge"])
def test_loaded_run_stopped_by_ctrl_c_is_cancelled_with_result_for_every_call(phase: str) -> None:
    class Stepping(Judged):
        def on_step(self, step: Step) -> None: ...

    plan, loop = paused(setup(Stepping, call("look") & call("look"), DONE), phase)
    loaded = load(plan, json.loads(json.dumps(save(loop))))
    loaded.start(0.0)
    loaded.stop(KeyboardInterrupt(), 0.0)
    assert_complete(loaded.run.history)
    assert loaded.run.stop_reason == "cancelled"


def test_loaded_run_has_deps_passed_to_load() -> None:
    plan, loop = paused(setup(Looker, call("look"), DONE, deps="old"), "tools")
    assert "old" not in json.dumps(save(loop))
    assert load(plan, save(loop), deps="new").run.deps == "new"
