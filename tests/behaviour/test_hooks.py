"""Tests of `on_step`, `on_finish` and prompt methods: their arguments, the changes they make, and the effects."""

from __future__ import annotations

import asyncio
import re
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.behaviour.conftest import Call, Script
from tests.cases import case

from acorn import (
    AcornError,
    BranchError,
    DeclarationError,
    ModelError,
    ParseError,
    Run,
    Step,
    ToolCall,
    ToolConflictError,
    ToolResult,
    Unfinished,
    Usage,
    current_run,
    module,
    tool,
)
from acorn._declare.spec_cache import spec_of
from acorn._machine.state import State
from acorn.models import ModelRequest, Price
from acorn.step import changes_of
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str
    confidence: float = Field(default=1.0, ge=0, le=1)
    sources: list[str] = []


@tool
def search_web(query: str, max_results: int = 5) -> list[str]:
    """Search the web for information."""
    return ["result1", "result2", "result3"]


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


class Researcher(module[Question, Answer]):
    """Answer the question."""

    tools = [search_web, read_file]
    max_steps = 5


class Once(module[Question, Answer]):
    """Answer the question at once."""

    tools = [search_web, read_file]


SEARCH = calling("search_web", query="python")
DONE = finish(answer="1991")
REMINDER = "Please continue: call one of your tools, or call `__finish__` with your answer."


def hooked(hook: Callable[[Any, Step], Any] | str, base: type[module[Any, Any]] = Researcher, **names: Any) -> Any:
    """Create a class with this `on_step`: a function, or a snippet that defines one with these names."""
    if isinstance(hook, str):
        space = ModuleType("snippet")
        vars(space).update(names)
        exec(textwrap.dedent(hook), vars(space))
        hook = vars(space)["on_step"]
    return type("MyAgent", (base,), {"__module__": __name__, "__doc__": "Answer the question.", "on_step": hook})


def setting(name: str, value: Any) -> Callable[[Any, Step], Any]:
    """Return a hook that sets an attribute of the step."""
    return lambda self, step: setattr(step, name, value)


def appending(name: str) -> Callable[[Any, Step], Any]:
    """Return a hook that appends a wrong item to a list of the step."""
    return lambda self, step: getattr(step, name).append("oops")


def adding(content: Any) -> Callable[[Any, Step], Any]:
    """Return a hook that adds a value to the context."""
    return lambda self, step: step.add_to_context(content)


def returning(value: Any) -> Callable[[Any, Step], Any]:
    return lambda self, step: value


def names(request: ModelRequest) -> list[str]:
    return [entry["function"]["name"] for entry in request.tools]


def roles(request: ModelRequest) -> list[str]:
    return [message["role"] for message in request.messages]


def told(run: Run[Any]) -> list[str]:
    """Return the tool results of a history, in order."""
    return [message["content"] for message in run.history if message["role"] == "tool"]


# The snippets of the seeds


def test_specification_example_of_basic_usage_prints_steps_and_changes_settings(
    call: Call, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    agent: Any = hooked(
        """
        def on_step(self, step):
            # Inspect state
            print(f"Step {step.counter}")
            print(f"Tool calls: {step.tool_calls}")
            print(f"Tool results: {step.tool_results}")

            # Modify settings for next iteration
            if step.counter > 5:
                step.temperature = 0.1  # Reduce randomness

            # Modify available tools
            if got_enough_data:
                step.remove_tool("search_web")

            return step  # Must return step
        """,
        got_enough_data=True,
    )

    def put_back(self: Any, step: Step) -> Any:
        returned = agent.on_step(self, step)
        if step.counter < 6:
            step.add_tool(search_web)
        return returned

    model = script(SEARCH, *[calling("read_file", path=str(at)) for at in range(5)], DONE)
    call(hooked(put_back)(model=model, max_steps=7), question="?")
    printed = capsys.readouterr().out
    assert printed.startswith("Step 1\nTool calls: [ToolCall(id='call_1_0', name='search_web'")
    assert "Tool results: [ToolResult(id='call_1_0', name='search_web', output=['result1', 'result2'" in printed
    assert [request.temperature for request in model.requests] == [0.7] * 6 + [0.1]
    assert names(model.requests[6]) == ["read_file", "__finish__"]


MODIFYING_HISTORY = """
def on_step(self, step):
    # Add a reminder message
    self.history.append({
        "role": "user",
        "content": "Remember to be concise in your next response."
    })

    # Modify the system prompt mid-conversation
    for msg in self.history:
        if msg["role"] == "system":
            msg["content"] += "\\n\\nNOTE: User prefers bullet points."

    # Trim old messages to manage context length
    if len(self.history) > 50:
        # Keep system message + last 40 messages
        self.history = self.history[:1] + self.history[-40:]

    return step
"""


@pytest.mark.edits_history
def test_specification_example_of_modifying_history_sends_edited_system_message(call: Call, script: Script) -> None:
    model = script(SEARCH, DONE)
    call(hooked(MODIFYING_HISTORY)(model=model), question="?")
    first, second = model.requests
    assert first.messages[0]["content"] == "Answer the question."
    assert second.messages[0]["content"] == "Answer the question.\n\nNOTE: User prefers bullet points."
    assert roles(second) == ["system", "user", "assistant", "tool", "user"]
    assert second.messages[-1]["content"] == "Remember to be concise in your next response."


def test_specification_example_of_modifying_tool_results_changes_sent_results(call: Call, script: Script) -> None:
    agent = hooked(
        """
        def on_step(self, step):
            for result in step.tool_results:
                # Truncate large outputs
                if len(str(result.output)) > 10000:
                    result.output = str(result.output)[:10000] + "... (truncated)"

                # Add metadata to results
                if result.name == "search_web":
                    result.output = {
                        "data": result.output,
                        "note": "Results may need verification"
                    }

            return step
        """
    )
    model = script(SEARCH & calling("read_file", path="x" * 20_000), DONE)
    run = call.run(agent(model=model), question="?")
    found, long, _ = told(run)
    assert found == '{"data":["result1","result2","result3"],"note":"Results may need verification"}'
    assert long == "text of " + "x" * 9_992 + "... (truncated)"
    assert [message["content"] for message in model.requests[1].messages[-2:]] == [found, long]


def test_specification_example_of_history_in_reference_prints_messages(
    call: Call, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = hooked(
        """
        def on_step(self, step):
            # Read history
            for msg in self.history:
                print(msg["role"], msg["content"][:50])

            # Mutate history - add a reminder
            self.history.append({
                "role": "user",
                "content": "Remember to cite sources."
            })

            # Mutate history - trim old messages
            if len(self.history) > 50:
                self.history = self.history[:1] + self.history[-40:]
        """
    )
    model = script(SEARCH, DONE)
    call(agent(model=model), question="?")
    assert capsys.readouterr().out == (
        "system Answer the question.\nuser <input>\n  <question>?</question>\n</input>\nassistant \n"
    )
    assert model.requests[1].messages[-1] == {"role": "user", "content": "Remember to cite sources."}


@pytest.mark.live_objects
def test_specification_example_of_step_methods_in_reference_changes_tools_and_finishes_run(
    call: Call, script: Script
) -> None:
    def new_search_function(query: str) -> str:
        """Search elsewhere."""
        return "found"

    agent = hooked(
        """
        def on_step(self, step):
            if step.counter == 1:
                step.add_tool(new_search_function)
                step.remove_tool("search_web")
            else:
                # If final_output = AnswerOutput(answer: str, confidence: float, sources: list[str])
                step.finish(answer="Done", confidence=0.9, sources=[])
        """,
        new_search_function=new_search_function,
    )
    model = script(SEARCH, calling("new_search_function", query="a"))
    run = call.run(agent(model=model), question="?")
    assert run.output == Answer(answer="Done", confidence=0.9, sources=[])
    assert names(model.requests[1]) == ["read_file", "new_search_function", "__finish__"]
    assert told(run)[1] == "found"


def test_specification_example_of_tool_calls_in_reference_prints_calls_and_results(
    call: Call, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = hooked(
        """
        def on_step(self, step):
            for call in step.tool_calls:
                print(f"Tool: {call.name}")
                print(f"Args: {call.arguments}")
                # Tool: search_web
                # Args: {'query': 'python', 'max_results': 5}
            for result in step.tool_results:
                print(f"Tool: {result.name}")
                if result.error:
                    print(f"Error: {result.error}")
                else:
                    print(f"Output: {result.output}")
                # Tool: search_web
                # Output: ['result1', 'result2', 'result3']
        """
    )
    reply = calling("search_web", query="python", max_results=5) & calling("read_file")
    call(agent(model=script(reply, DONE)), question="?")
    assert capsys.readouterr().out == (
        "Tool: search_web\nArgs: {'query': 'python', 'max_results': 5}\nTool: read_file\nArgs: {}\n"
        "Tool: search_web\nOutput: ['result1', 'result2', 'result3']\n"
        "Tool: read_file\nError: argument `path` is missing (expected a string)\n"
    )


def test_specification_example_of_whole_hook_in_reference_prints_steps_and_changes_temperature(
    call: Call, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = hooked(
        """
        def on_step(self, step):
            print(f"[Step {step.counter}] Tools called: {[t.name for t in step.tool_calls]}")

            # Reduce temperature after step 10
            if step.counter > 10:
                step.temperature = 0.3

            # Mutate tool results before next model call
            for result in step.tool_results:
                if len(str(result.output)) > 5000:
                    result.output = str(result.output)[:5000] + "..."

            return step
        """
    )
    model = script(*[calling("read_file", path=str(at) * 6000) for at in range(9)], SEARCH, SEARCH, DONE)
    run = call.run(agent(model=model, max_steps=15), question="?")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "[Step 1] Tools called: ['read_file']"
    assert printed[10] == "[Step 11] Tools called: ['search_web']"
    assert [request.temperature for request in model.requests] == [0.7] * 11 + [0.3]
    assert told(run)[0] == "text of " + "0" * 4992 + "..."


# When on_step runs, and what it sees


@pytest.mark.every_way
def test_on_step_runs_after_tools_and_before_results_are_added_to_history(call: Call, script: Script) -> None:
    seen: list[list[str]] = []

    def look(self: Researcher, step: Step) -> None:
        assert [result.output for result in step.tool_results] == [["result1", "result2", "result3"]]
        seen.append([message["role"] for message in self.history])

    call(hooked(look)(model=script(SEARCH, DONE)), question="?")
    assert seen == [["system", "user", "assistant"]]


def test_on_step_is_not_called_for_finish_call_or_for_corrected_output(call: Call, script: Script) -> None:
    seen: list[tuple[int, list[str]]] = []

    def look(self: Researcher, step: Step) -> None:
        seen.append((step.counter, [one.name for one in step.tool_calls]))

    model = script(SEARCH, finish(confidence=7), "Hm.", SEARCH & finish(confidence=7), SEARCH, finish(), DONE)
    run = call.run(hooked(look)(model=model, max_steps=3, parse_retries=3), question="?")
    assert seen == [(1, ["search_web"]), (2, []), (3, ["search_web"])]
    assert (run.steps, run.stop_reason) == (3, "forced")
    assert [request.forced_tool for request in model.requests] == [None] * 5 + ["__finish__"] * 2


def test_step_passed_to_on_step_has_documented_attributes(call: Call, script: Script) -> None:
    steps: list[Step] = []

    def look(self: Researcher, step: Step) -> None:
        steps.append(step)
        assert step.run is current_run()

    used = Usage(input_tokens=100, output_tokens=10, requests=1)
    reply = Reply("Let me look.", reasoning="They want a year.", usage=used) & SEARCH
    model = script(reply, "Hm.", DONE, price=Price(0.001, 0.01))
    agent = hooked(look)(model=model, temperature=0.2, max_tokens=77)
    run = call.run(agent, question="?")
    first, second = steps
    assert (first.counter, first.model, first.temperature, first.max_tokens) == (1, model, 0.2, 77)
    assert first.tools == [search_web, read_file]
    assert first.tool_calls == [ToolCall("call_1_0", "search_web", {"query": "python"}, '{"query":"python"}')]
    assert first.tool_results == [ToolResult("call_1_0", "search_web", ["result1", "result2", "result3"], None)]
    assert (first.content, first.reasoning, first.usage) == ("Let me look.", "They want a year.", used)
    assert first.cost == pytest.approx(0.2)
    assert first.run is run
    assert (second.counter, second.content, second.reasoning) == (2, "Hm.", None)
    assert (second.tool_calls, second.tool_results) == ([], [])
    assert repr(first) == "Step(1, tool_calls=['search_web'])"


def test_step_response_is_dict_in_chat_completion_format(call: Call, script: Script) -> None:
    seen: list[dict[str, Any]] = []

    def look(self: Researcher, step: Step) -> None:
        seen.append(step.response)

    used = Usage(input_tokens=100, output_tokens=10, requests=1)
    model = script(Reply("Let me look.", usage=used) & SEARCH, "Hm.", DONE, name="some-model")
    run = call.run(hooked(look)(model=model), question="?")
    assert seen[0] == {
        "id": f"{run.id}-1",
        "object": "chat.completion",
        "model": "some-model",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Let me look.",
                    "tool_calls": [
                        {
                            "id": "call_1_0",
                            "type": "function",
                            "function": {"name": "search_web", "arguments": '{"query":"python"}'},
                        }
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
    assert seen[1]["choices"][0]["message"] == {"role": "assistant", "content": "Hm."}
    assert seen[1]["choices"][0]["finish_reason"] == "stop"


def test_step_without_text_and_price_has_content_and_cost_none(call: Call, script: Script) -> None:
    seen: list[Any] = []

    def look(self: Researcher, step: Step) -> None:
        seen.append((step.content, step.response["choices"][0]["message"]["content"], step.cost))

    call(hooked(look)(model=script(SEARCH, DONE)), question="?")
    assert seen == [("", None, None)]


def test_hook_set_on_instance_is_called(call: Call, script: Script) -> None:
    seen: list[int] = []
    agent: Any = Researcher(model=script(SEARCH, DONE))
    agent.on_step = lambda step: seen.append(step.counter)
    agent.on_finish = lambda output: "replaced"
    assert call(agent, question="?") == "replaced"
    assert seen == [1]


def test_hook_of_base_class_is_inherited(call: Call, script: Script) -> None:
    seen: list[int] = []

    class Base(Researcher):
        def on_step(self, step: Step) -> Step:
            seen.append(step.counter)
            return step

    class Child(Base):
        def on_step(self, step: Step) -> Step:
            return super().on_step(step)

    call(Child(model=script(SEARCH, DONE)), question="?")
    assert seen == [1]


# Changes for the remaining steps


@pytest.mark.every_way
@pytest.mark.live_objects
def test_step_model_change_applies_to_remaining_steps_and_forced_finish_request(call: Call, script: Script) -> None:
    second = script("Hm.", DONE, name="second")
    first = script(SEARCH, name="first")
    seen: list[Any] = []

    def change(self: Researcher, step: Step) -> None:
        seen.append(step.model)
        step.model = second

    run = call.run(hooked(change)(model=first, max_steps=2), question="?")
    assert seen == [first, second]
    assert (len(first.requests), len(second.requests)) == (1, 2)
    assert second.requests[1].forced_tool == "__finish__"
    assert run.model == "second"
    assert second.requests[0].messages[:2] == first.requests[0].messages


@pytest.mark.parametrize(
    ("attribute", "before", "after"), [("temperature", 0.7, 0), ("temperature", 0.7, 0.7), ("max_tokens", 4096, 99)]
)
def test_step_setting_change_applies_to_remaining_steps_and_forced_finish_request(
    call: Call, script: Script, attribute: str, before: Any, after: Any
) -> None:
    seen: list[Any] = []

    def change(self: Researcher, step: Step) -> None:
        seen.append(getattr(step, attribute))
        if step.counter == 1:
            setattr(step, attribute, after)
            assert getattr(step, attribute) == after

    model = script(SEARCH, "Hm.", DONE)
    call(hooked(change)(model=model, max_steps=2), question="?")
    assert seen == [before, after]
    assert [getattr(request, attribute) for request in model.requests] == [before, after, after]
    assert [attribute in request.declared for request in model.requests] == [False, True, True]


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("temperature", 3, "`MyAgent.temperature` must be a number from 0 to 2, got 3"),
        ("max_tokens", 0, "`MyAgent.max_tokens` must be a whole number of at least 1, got 0"),
        ("model", 5, "`MyAgent.model` must be a model id"),
        ("tools", search_web, "`MyAgent.tools` must be a list of functions"),
    ],
)
def test_invalid_step_setting_raises_declaration_error_at_assignment(
    call: Call, script: Script, attribute: str, value: Any, words: str
) -> None:
    after: list[bool] = []

    def set_it(self: Researcher, step: Step) -> None:
        with pytest.raises(DeclarationError, match=words):
            setattr(step, attribute, value)
        after.append(True)

    call(hooked(set_it)(model=script(SEARCH, DONE)), question="?")
    assert after == [True]


SETTABLE = "you can set `model`, `temperature`, `max_tokens`, `tools`, `tool_calls`, `tool_results`"


def test_unknown_step_attribute_raises_attribute_error(call: Call, script: Script) -> None:
    for name, words in [
        ("temprature", f"A step has no `temprature`. Did you mean `temperature`? On a step {SETTABLE}."),
        ("max_token", "A step has no `max_token`. Did you mean `max_tokens`?"),
        ("tool", "A step has no `tool`. Did you mean `tools`?"),
        ("history", f"A step has no `history`. The conversation is `self.history`. On a step {SETTABLE}."),
        ("note", f"A step has no `note`. On a step {SETTABLE}."),
        ("counter", f"`step.counter` is read-only. On a step {SETTABLE}."),
        ("content", f"`step.content` is read-only. On a step {SETTABLE}."),
        ("finish", f"`step.finish` is read-only. On a step {SETTABLE}."),
    ]:
        with case(name), pytest.raises(AttributeError, match=re.escape(words)):
            call(hooked(setting(name, 1))(model=script(SEARCH)), question="?")


@pytest.mark.live_objects
def test_step_changes_do_not_affect_next_run(call: Call, script: Script) -> None:
    other = script(DONE)

    def change(self: Researcher, step: Step) -> None:
        step.temperature, step.max_tokens, step.model = 0.1, 9, other
        step.remove_tool("read_file")

    model = script(SEARCH, DONE)
    agent = hooked(change)(model=model)
    call(agent, question="?")
    call(agent, question="?")
    first, again = model.requests
    assert (again.temperature, again.max_tokens, names(again)) == (0.7, 4096, names(first))


def test_step_model_dict_edit_affects_only_current_run() -> None:
    declared = {"model": "some/model", "timeout": 5}
    before = {"model": declared, "temperature": 0.7, "max_tokens": 100}
    step = Step(spec_of(Researcher()), Run("id", Question(question="?")), State(settings=before), (), ())
    assert step.model == declared
    assert changes_of(step).settings == {}
    step.model["timeout"] = 9
    assert changes_of(step).settings == {"model": {"model": "some/model", "timeout": 9}}
    assert declared["timeout"] == 5


# Tools


@pytest.mark.every_way
@pytest.mark.live_objects
def test_tool_added_by_hook_is_called_and_is_sent_in_forced_finish_request(call: Call, script: Script) -> None:
    class Adder(Researcher):
        max_steps = 2

        def multiply(self, a: int, b: int = 2) -> int:
            """Multiply two numbers."""
            return a * b

        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                step.add_tool(self.multiply)
                assert step.tools == [search_web, read_file, self.multiply]

    model = script(SEARCH, calling("multiply", a="21"), DONE)
    run = call.run(Adder(model=model), question="?")
    assert told(run)[1] == "42"
    assert [names(request) for request in model.requests[1:]] == [
        ["search_web", "read_file", "multiply", "__finish__"]
    ] * 2
    assert model.requests[1].tools[2]["function"] == {
        "name": "multiply",
        "description": "Multiply two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
            "required": ["a"],
        },
    }


def test_tool_removed_by_hook_is_not_sent_and_its_call_returns_tool_error(call: Call, script: Script) -> None:
    def remove(self: Researcher, step: Step) -> None:
        if step.counter == 1:
            step.remove_tool("search_web")
            assert step.tools == [read_file]

    model = script(SEARCH, SEARCH, DONE)
    run = call.run(hooked(remove)(model=model, max_steps=2), question="?")
    assert told(run)[1] == "Tool error: There is no tool `search_web`. There are: `read_file`, `__finish__`."
    assert [names(request) for request in model.requests[1:]] == [["read_file", "__finish__"]] * 2


def test_tools_removed_by_hook_and_added_again_are_sent_again(call: Call, script: Script) -> None:
    def juggle(self: Researcher, step: Step) -> None:
        if step.counter == 1:
            step.remove_tool("search_web")
            step.remove_tool("read_file")
        elif step.counter == 2:
            step.add_tool(search_web)

    model = script(SEARCH, "Hm.", SEARCH, DONE)
    run = call.run(hooked(juggle)(model=model), question="?")
    assert [names(request)[:-1] for request in model.requests] == [
        ["search_web", "read_file"],
        [],
        ["search_web"],
        ["search_web"],
    ]
    assert told(run)[1] == '["result1","result2","result3"]'


def test_add_tool_with_existing_name_raises_tool_conflict_error(call: Call, script: Script) -> None:
    @tool(name="read_file")
    def another(path: str) -> str:
        return path

    conflicts: list[str] = []

    def add(self: Researcher, step: Step) -> None:
        for function in (another, search_web):
            with pytest.raises(ToolConflictError) as caught:
                step.add_tool(function)
            conflicts.append(str(caught.value))
        assert step.tools == [search_web, read_file]

    call(hooked(add)(model=script(SEARCH, DONE)), question="?")
    assert conflicts[0].startswith("Tool 'read_file' already exists. ")
    assert conflicts[1].startswith("Tool 'search_web' already exists. ")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("serach", r"There is no tool `serach` to remove\. The tools are: `search_web`, `read_file`\."),
        ("__finish__", "`__finish__` cannot be removed"),
    ],
)
def test_remove_tool_with_unknown_name_raises_acorn_error(call: Call, script: Script, name: str, words: str) -> None:
    with pytest.raises(AcornError, match=words) as caught:
        call(hooked(lambda self, step: step.remove_tool(name))(model=script(SEARCH)), question="?")
    assert caught.value.run.steps == 1


def test_add_tool_with_invalid_tool_raises_declaration_error(call: Call, script: Script) -> None:
    @tool(name="__finish__")
    def end(answer: str) -> str:
        return answer

    def untyped(query) -> str:  # type: ignore[no-untyped-def]
        return str(query)

    def add(self: Researcher, step: Step) -> None:
        for wrong in ("search", end, untyped):
            with pytest.raises(DeclarationError):
                step.add_tool(wrong)  # type: ignore[arg-type]

    call(hooked(add)(model=script(SEARCH, DONE)), question="?")


@pytest.mark.live_objects
def test_step_tools_list_edited_or_replaced_by_hook_changes_sent_tools(call: Call, script: Script) -> None:
    def shout(text: str) -> str:
        """Say it loud."""
        return text.upper()

    def change(self: Researcher, step: Step) -> None:
        if step.counter == 1:
            step.tools.append(shout)
            step.tools.remove(search_web)
        elif step.counter == 2:
            step.tools = [shout, shout]
            step.remove_tool("shout")
            assert step.tools == []
            step.tools = (shout, shout)

    model = script(SEARCH, calling("shout", text="a"), calling("shout", text="b"), DONE)
    run = call.run(hooked(change)(model=model), question="?")
    assert [names(request)[:-1] for request in model.requests] == [
        ["search_web", "read_file"],
        ["read_file", "shout"],
        ["shout"],
        ["shout"],
    ]
    assert told(run)[1:3] == ["A", "B"]


def test_two_step_tools_with_equal_name_raise_tool_conflict_error(call: Call, script: Script) -> None:
    @tool(name="read_file")
    def another(path: str) -> str:
        return path

    with pytest.raises(ToolConflictError, match="two tools named 'read_file'"):
        call(hooked(lambda self, step: step.tools.append(another))(model=script(SEARCH)), question="?")


def test_step_tools_contains_method_tool(call: Call, script: Script) -> None:
    class WithMethod(Researcher):
        @tool
        def count(self, word: str) -> int:
            """Count the letters."""
            return len(word)

        def on_step(self, step: Step) -> None:
            assert step.tools == [search_web, read_file, self.count]
            step.remove_tool("search_web")

    model = script(SEARCH & calling("count", word="abc"), DONE)
    run = call.run(WithMethod(model=model), question="?")
    assert told(run)[1] == "3"
    assert names(model.requests[1]) == ["read_file", "count", "__finish__"]


# History and results


@pytest.mark.edits_history
def test_history_list_assigned_by_hook_is_sent(call: Call, script: Script) -> None:
    def replace(self: Researcher, step: Step) -> None:
        kept = self.history
        self.history = [{"role": "system", "content": "Be brief."}, *kept[1:]]
        assert self.history is not kept
        assert current_run().history is self.history

    model = script(SEARCH, DONE)
    call(hooked(replace)(model=model), question="?")
    assert roles(model.requests[1]) == ["system", "user", "assistant", "tool"]
    assert model.requests[1].messages[0]["content"] == "Be brief."


def test_tool_results_list_assigned_by_hook_is_sent(call: Call, script: Script) -> None:
    def replace(self: Researcher, step: Step) -> None:
        step.tool_results = [ToolResult(one.id, one.name, "replaced") for one in step.tool_calls]

    run = call.run(hooked(replace)(model=script(SEARCH, DONE)), question="?")
    assert told(run)[0] == "replaced"


def test_invalid_tool_results_or_tool_calls_set_by_hook_raise_error_with_run_record(call: Call, script: Script) -> None:
    for name in ("tool_results", "tool_calls"):
        wrong = [setting(name, value) for value in (None, "text", ["text"], [{"id": "a", "output": "x"}])]
        for spoil in (*wrong, appending(name)):
            for max_steps in (None, 3):
                with case(name, spoil, max_steps):
                    with pytest.raises(AcornError, match=rf"`step\.{name}` must stay a list of Tool") as caught:
                        call(hooked(spoil)(model=script(SEARCH), max_steps=max_steps), question="?")
                    assert told(caught.value.run) == ['["result1","result2","result3"]']


def test_branch_started_by_hook_after_appending_invalid_tool_result_raises_branch_error(
    call: Call, script: Script
) -> None:
    def spoil(self: Researcher, step: Step) -> None:
        step.tool_results.append("oops")  # type: ignore[arg-type]
        self.branch(Once, question="?")

    with pytest.raises(BranchError, match=r"`step\.tool_results` must stay a list of ToolResult") as caught:
        call(hooked(spoil)(model=script(SEARCH)), question="?")
    assert type(caught.value.__cause__) is AcornError
    assert told(caught.value.run) == ['["result1","result2","result3"]']


@pytest.mark.edits_history
@pytest.mark.parametrize("said", ["", "Let me see."])
@pytest.mark.parametrize("none", [[], ()])
def test_assistant_message_whose_calls_were_removed_by_hook_is_sent_without_calls(
    call: Call, script: Script, said: str, none: Any
) -> None:
    def take_away(self: Researcher, step: Step) -> None:
        self.history[-1]["tool_calls"] = none
        step.tool_results.clear()
        step.tool_calls.clear()

    model = script(Reply(said) & SEARCH, DONE)
    call(hooked(take_away)(model=model), question="?")
    assert all("tool_calls" not in message for message in model.requests[1].messages)


# Context


class Finding(BaseModel):
    title: str = Field(description="As printed")
    year: int | None = None


def test_value_passed_to_add_to_context_is_sent_as_xml(call: Call, script: Script) -> None:
    for content, written in [
        ("Be brief & <kind>", "<context>Be brief &amp; &lt;kind&gt;</context>"),
        ("two\nlines", "<context>two\nlines</context>"),
        ("", "<context />"),
        ({"a": 1, "b c": True}, '<context>\n  <a>1</a>\n  <entry key="b c">true</entry>\n</context>'),
        (["a", 2], "<context>\n  <item>a</item>\n  <item>2</item>\n</context>"),
        (Finding(title="A"), '<context>\n  <title description="As printed">A</title>\n</context>'),
        (
            [Finding(title="A", year=1991)],
            '<context>\n  <finding>\n    <title description="As printed">A</title>\n    <year>1991</year>\n'
            "  </finding>\n</context>",
        ),
    ]:
        with case(content, written):
            model = script(SEARCH, DONE)
            call(hooked(adding(content))(model=model), question="?")
            assert model.requests[1].messages[-1] == {"role": "user", "content": written}


def test_value_passed_to_add_to_context_is_sent_in_xml_style_of_agent_class(call: Call, script: Script) -> None:
    class Styled(Researcher):
        xml_context_root = "notes"
        xml_description_format = "comment"
        xml_include_none = True

        def on_step(self, step: Step) -> None:
            step.add_to_context(Finding(title="A"))

    model = script(SEARCH, DONE)
    call(Styled(model=model), question="?")
    assert model.requests[1].messages[-1]["content"] == (
        "<notes>\n  <!-- As printed -->\n  <title>A</title>\n  <year />\n</notes>"
    )


def test_value_passed_to_add_to_context_in_step_without_calls_is_sent_before_reminder(
    call: Call, script: Script
) -> None:
    model = script("Hm.", DONE)
    call(hooked(adding("hint"))(model=model), question="?")
    assert model.requests[1].messages[2:] == [
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": "<context>hint</context>"},
        {"role": "user", "content": REMINDER},
    ]


# Ending a run from a hook


def test_step_finish_ends_run_with_result_for_every_call_in_history(call: Call, script: Script) -> None:
    after: list[str] = []

    def end(self: Researcher, step: Step) -> Step:
        step.finish(answer="enough", confidence="0.5")
        after.append("still here")
        step.add_to_context("for the record")
        return step

    run = call.run(hooked(end)(model=script(SEARCH)), question="?")
    assert run.output == Answer(answer="enough", confidence=0.5)
    assert (run.stop_reason, run.steps, after) == ("step", 1, ["still here"])
    assert run.history[-2:] == [
        {"role": "tool", "tool_call_id": "call_1_0", "content": '["result1","result2","result3"]'},
        {"role": "user", "content": "<context>for the record</context>"},
    ]


def test_second_step_finish_call_replaces_output_of_first(call: Call, script: Script) -> None:
    def end(self: Researcher, step: Step) -> None:
        step.finish(answer="one")
        step.finish(answer="two")

    assert call(hooked(end)(model=script("Hm.")), question="?") == Answer(answer="two")


@pytest.mark.parametrize(
    ("fields", "words", "errors"),
    [
        (
            {"answer": "a", "confidence": 7},
            "`confidence` must be a float between 0 and 1, got 7",
            [{"path": "confidence", "expected": "float between 0 and 1", "received": "7"}],
        ),
        (
            {},
            r"`answer` is missing \(expected a string\)",
            [{"path": "answer", "expected": "string", "received": "missing"}],
        ),
        (
            {"answer": "a", "confidense": 0.5},
            "`confidense` does not exist \\(the fields are: `answer`, `confidence`, `sources`\\)",
            [
                {
                    "path": "confidense",
                    "expected": "no such field (the fields are: `answer`, `confidence`, `sources`)",
                    "received": "0.5",
                }
            ],
        ),
    ],
)
def test_step_finish_with_invalid_fields_raises_parse_error(
    call: Call, script: Script, fields: dict[str, Any], words: str, errors: list[Any]
) -> None:
    seen: list[ParseError] = []

    def end(self: Researcher, step: Step) -> None:
        try:
            step.finish(**fields)
        except ParseError as error:
            seen.append(error)
            raise

    with pytest.raises(ParseError, match=f"`step.finish` of `MyAgent` .*{words}") as caught:
        call(hooked(end)(model=script(SEARCH)), question="?")
    assert seen == [caught.value]
    assert caught.value.errors == errors
    assert caught.value.run.error is caught.value


def test_run_continues_after_hook_catches_parse_error_of_step_finish(call: Call, script: Script) -> None:
    def end(self: Researcher, step: Step) -> None:
        with pytest.raises(ParseError):
            step.finish()

    assert call(hooked(end)(model=script(SEARCH, DONE)), question="?") == Answer(answer="1991")


@pytest.mark.parametrize(
    ("kind", "fields", "wanted"),
    [
        (str, {"result": "enough"}, "enough"),
        (list[int], {"result": ["1", 2]}, [1, 2]),
        (Answer | None, {"result": None}, None),
        ([], {}, None),
    ],
)
def test_step_finish_accepts_plain_type_output_as_result_argument(
    call: Call, script: Script, kind: Any, fields: dict[str, Any], wanted: Any
) -> None:
    class Plain(module):
        final_output = kind
        tools = [search_web]
        max_steps = 3

        def on_step(self, step: Step) -> None:
            step.finish(**fields)

    run = call.run(Plain(model=script(SEARCH)))
    assert run.stop_reason == "step"
    assert run.output == wanted


def test_step_finish_accepts_fields_named_self_and_step(call: Call, script: Script) -> None:
    class Odd(module):
        final_output = ["self", "step"]
        tools = [search_web]

        def on_step(self, step: Step) -> None:
            step.finish(self="me", step="one")

    found = call(Odd(model=script(SEARCH)))
    assert (found.self, found.step) == ("me", "one")


def test_step_finish_with_unknown_field_for_plain_type_output_raises_parse_error(call: Call, script: Script) -> None:
    class Plain(module[Any, str]):
        tools = [search_web]

        def on_step(self, step: Step) -> None:
            step.finish(answer="enough")

    with pytest.raises(ParseError, match="`answer` does not exist \\(the fields are: `result`\\)"):
        call(Plain(model=script(SEARCH)))


def test_step_finish_in_on_step_ends_single_turn_run_with_output(call: Call, script: Script) -> None:
    def end(self: Once, step: Step) -> None:
        step.finish(answer=step.tool_results[0].output[0])

    run = call.run(hooked(end, Once)(model=script(SEARCH)), question="?")
    assert (run.output, run.stop_reason, run.steps) == (Answer(answer="result1"), "step", 1)
    assert told(run) == ['["result1","result2","result3"]']


def test_single_turn_run_with_on_step_but_without_step_finish_returns_unfinished(call: Call, script: Script) -> None:
    def change(self: Once, step: Step) -> None:
        step.tool_results[0].output = "changed"

    found = call(hooked(change, Once)(model=script(SEARCH)), question="?")
    assert isinstance(found, Unfinished)
    assert [result.output for result in found.tool_results] == ["changed"]


# on_finish


class Judge(Researcher):
    def __init__(self, **overrides: Any) -> None:
        super().__init__(**overrides)
        self.seen: list[Any] = []

    def on_finish(self, output: Any) -> Any:
        self.seen.append(output)
        if output.confidence > 0.9:
            raise ValueError("nobody is so sure")
        return None


SURE = finish(answer="1991", confidence=1)
UNSURE = finish(answer="1991", confidence=0.5)
RIGHT = Answer(answer="1991", confidence=0.5)

NOT_SO_SURE = """\
<error type="validation">
  <message>nobody is so sure</message>
  <details>
    <field name="output">
      <expected>nobody is so sure</expected>
      <received>{"answer":"1991","confidence":1.0,"sources":[]}</received>
    </field>
  </details>
  <instruction>Please provide the output again in the correct format.</instruction>
</error>"""


@pytest.mark.parametrize("max_steps", [None, 3])
def test_on_finish_value_error_is_sent_to_model(call: Call, script: Script, max_steps: int | None) -> None:
    model = script(SURE & SEARCH, UNSURE)
    agent = Judge(model=model, max_steps=max_steps)
    run = call.run(agent, question="?")
    assert run.output == RIGHT
    assert agent.seen == [Answer(answer="1991", confidence=1), RIGHT]
    assert (run.steps, run.stop_reason) == (0, "finish")
    assert [message["content"] for message in model.requests[1].messages[-2:]] == [
        NOT_SO_SURE,
        "Skipped: `__finish__` was called in the same response, so this call was not executed.",
    ]


def test_on_finish_is_not_called_with_output_that_fails_validation(call: Call, script: Script) -> None:
    agent = Judge(model=script(finish(confidence=1), UNSURE))
    call(agent, question="?")
    assert agent.seen == [RIGHT]


def test_on_finish_is_called_with_output_of_forced_finish_request(call: Call, script: Script) -> None:
    model = script(SEARCH, SURE, UNSURE)
    agent = Judge(model=model, max_steps=1)
    run = call.run(agent, question="?")
    assert (run.output, run.stop_reason) == (RIGHT, "forced")
    assert [request.forced_tool for request in model.requests] == [None, "__finish__", "__finish__"]


def test_outputs_rejected_by_on_finish_count_against_parse_retries(call: Call, script: Script) -> None:
    agent = Judge(model=script(SURE, finish(confidence=1), SURE))
    with pytest.raises(ParseError, match="in 3 attempts: `output` is invalid: nobody is so sure") as caught:
        call(agent, question="?")
    error = caught.value
    assert error.attempts == 3
    assert error.raw_output == '{"answer":"1991","confidence":1}'
    assert [one["expected"] for one in error.errors] == ["nobody is so sure"]
    assert told(error.run)[2] == NOT_SO_SURE


def test_on_finish_is_called_with_output_of_step_finish(call: Call, script: Script) -> None:
    class Ender(Judge):
        def on_step(self, step: Step) -> None:
            step.finish(answer="1991", confidence=0.5)

    agent = Ender(model=script(SEARCH))
    assert call(agent, question="?") == RIGHT
    assert agent.seen == [RIGHT]


@pytest.mark.parametrize("max_steps", [5, None])
def test_step_finish_output_rejected_by_on_finish_is_sent_as_user_message(
    call: Call, script: Script, max_steps: int | None
) -> None:
    class Ender(Judge):
        def on_step(self, step: Step) -> None:
            step.finish(answer="1991", confidence=1)

    model = script(SEARCH, UNSURE)
    run = call.run(Ender(model=model, max_steps=max_steps), question="?")
    assert (run.output, run.stop_reason, run.steps) == (RIGHT, "finish", 1)
    assert roles(model.requests[1])[2:] == ["assistant", "tool", "user"]
    assert model.requests[1].messages[-1]["content"] == NOT_SO_SURE


def test_step_finish_output_rejected_by_on_finish_does_not_count_as_step(call: Call, script: Script) -> None:
    class Ender(Judge):
        max_steps = 2

        def on_step(self, step: Step) -> None:
            if step.counter == 2:
                step.finish(answer="1991", confidence=1)

    model = script(SEARCH, "Hm.", UNSURE)
    run = call.run(Ender(model=model), question="?")
    assert (run.output, run.stop_reason, run.steps) == (RIGHT, "forced", 2)
    assert [request.forced_tool for request in model.requests] == [None, None, "__finish__"]


@pytest.mark.live_objects
def test_step_finish_output_that_json_cannot_represent_is_returned_unchanged(call: Call, script: Script) -> None:
    class Odd(BaseModel):
        data: bytes
        text: str

    class Maker(module[Any, Odd]):
        tools = [search_web]

        def on_step(self, step: Step) -> None:
            step.finish(data=b"\xff\xfe", text="\ud800")

        def on_finish(self, output: Odd) -> None:
            assert output.data == b"\xff\xfe"

    found = call(Maker(model=script(SEARCH)))
    assert (found.data, found.text) == (b"\xff\xfe", "\ud800")


@pytest.mark.parametrize("value", ["text", 0, "", False, [], {"a": 1}])
def test_on_finish_return_value_replaces_output(call: Call, script: Script, value: Any) -> None:
    class Replacer(Researcher):
        def on_finish(self, output: Answer) -> Any:
            return value

    run = call.run(Replacer(model=script(DONE)), question="?")
    assert run.output == value
    assert type(run.output) is type(value)
    assert told(run) == ["Finished."]


def test_output_changed_in_place_by_on_finish_is_returned_changed(call: Call, script: Script) -> None:
    class Signer(Researcher):
        def on_finish(self, output: Answer) -> None:
            output.sources.append("signed")

    assert call(Signer(model=script(DONE)), question="?").sources == ["signed"]


@pytest.mark.parametrize(
    ("kind", "fields", "wanted"),
    [(str, {"result": "Paris"}, "Paris"), (list[int], {"result": ["1"]}, [1]), ([], {}, None)],
)
def test_object_passed_to_on_finish_is_object_returned_to_caller(
    call: Call, script: Script, kind: Any, fields: dict[str, Any], wanted: Any
) -> None:
    seen: list[Any] = []

    class Plain(module):
        final_output = kind

        def on_finish(self, output: Any) -> None:
            seen.append(output)

    assert call(Plain(model=script(finish(**fields)))) == wanted
    assert seen == [wanted]


def test_on_finish_is_not_called_if_single_turn_run_ends_unfinished(call: Call, script: Script) -> None:
    agent = Judge(model=script(SEARCH), max_steps=None)
    assert isinstance(call(agent, question="?"), Unfinished)
    assert agent.seen == []


@pytest.mark.every_way
def test_current_run_in_on_finish_returns_run(call: Call, script: Script) -> None:
    class Reader(Researcher):
        def on_finish(self, output: Answer) -> Any:
            run = current_run()
            assert run.history is self.history
            return f"{run.steps} steps, {run.usage.requests} requests, {run.input.question}"  # type: ignore[attr-defined]

    assert call(Reader(model=script(SEARCH, DONE)), question="when?") == "1 steps, 2 requests, when?"


# Async hooks


@pytest.mark.every_way
def test_async_hooks_and_prompts_are_awaited(call: Call, script: Script) -> None:
    order: list[str] = []

    class Async(Researcher):
        async def system_prompt(self) -> str:
            await asyncio.sleep(0)
            return f"Answer: {current_run().input.question}"  # type: ignore[attr-defined]

        async def on_step(self, step: Step) -> Step:  # type: ignore[override]
            await asyncio.sleep(0)
            order.append(f"step {step.counter} of {len(self.history)}")
            step.temperature = 0.1
            self.history.append({"role": "user", "content": "Go on."})
            return step

        async def on_finish(self, output: Answer) -> Any:
            await asyncio.sleep(0)
            order.append("finish")
            if output.confidence == 1:
                raise ValueError("too sure")
            return output.answer

    model = script(SEARCH, SURE, UNSURE)
    assert call(Async(model=model), question="when?") == "1991"
    assert order == ["step 1 of 3", "finish", "finish"]
    assert model.requests[0].messages[0]["content"] == "Answer: when?"
    assert model.requests[1].temperature == 0.1
    assert model.requests[1].messages[-1]["content"] == "Go on."
    assert "<message>too sure</message>" in model.requests[2].messages[-1]["content"]


@pytest.mark.every_way
def test_awaitable_returned_by_sync_hook_is_awaited(call: Call, script: Script) -> None:
    class Indirect(Researcher):
        def on_step(self, step: Step) -> Any:
            return self.later(step)

        async def later(self, step: Step) -> Step:
            await asyncio.sleep(0)
            step.finish(answer="later")
            return step

    assert call(Indirect(model=script(SEARCH)), question="?") == Answer(answer="later")


def test_sync_hook_in_sync_run_is_called_in_os_thread_of_caller(script: Script) -> None:
    seen: list[threading.Thread] = []

    def look(self: Researcher, step: Step) -> None:
        seen.append(threading.current_thread())

    hooked(look)(model=script(SEARCH, DONE))(question="?")
    assert seen == [threading.current_thread()]


# Exceptions


class CustomError(Exception):
    pass


class Stop(BaseException):
    pass


EXCEPTIONS = [
    CustomError("stop"),
    ValueError("stop"),
    KeyError("stop"),
    TimeoutError("stop"),
    ModelError("stop", status=500),
    ParseError("stop"),
    Stop("stop"),
]


def failing(error: BaseException, *, is_async: bool) -> Callable[[Any, Step], Any]:
    def fail(self: Researcher, step: Step) -> None:
        raise error

    async def afail(self: Researcher, step: Step) -> None:
        raise error

    return afail if is_async else fail


@pytest.mark.every_way
def test_on_step_exception_is_raised_unchanged(call: Call, script: Script) -> None:
    for error in EXCEPTIONS:
        for is_async in (False, True):
            with case(error, is_async):
                hook = failing(error, is_async=is_async)
                agent = hooked(hook)(model=script(SEARCH & calling("read_file", path="a")))
                with pytest.raises(type(error)) as caught:
                    call(agent, question="?")
                assert caught.value is error
                run: Run[Any] = error.run  # type: ignore[attr-defined]
                assert run.error is error
                assert (run.steps, run.output) == (1, None)
                assert told(run) == ['["result1","result2","result3"]', "text of a"]


@pytest.mark.every_way
@pytest.mark.parametrize("error", [StopIteration("stop"), StopAsyncIteration("stop")], ids=repr)
def test_stop_iteration_raised_by_hook_becomes_cause_of_raised_error(
    call: Call, script: Script, error: Exception
) -> None:
    def fail(self: Researcher, step: Step) -> None:
        raise error

    with pytest.raises((type(error), RuntimeError)) as caught:
        call(hooked(fail)(model=script(SEARCH)), question="?")
    assert error in (caught.value, caught.value.__cause__)


@pytest.mark.every_way
@pytest.mark.parametrize("error", [CustomError("stop"), KeyError("stop"), ModelError("stop")], ids=repr)
def test_on_finish_exception_is_raised_unchanged(call: Call, script: Script, error: Exception) -> None:
    class Failing(Researcher):
        def on_finish(self, output: Answer) -> None:
            raise error

    with pytest.raises(type(error)) as caught:
        call(Failing(model=script(DONE & SEARCH)), question="?")
    assert caught.value is error
    run: Run[Any] = error.run  # type: ignore[attr-defined]
    assert (run.error, run.stop_reason, run.output) == (error, "error", None)
    assert len(told(run)) == 2


def test_failed_run_is_stored_as_last_run_of_instance(script: Script) -> None:
    def fail(self: Researcher, step: Step) -> None:
        raise CustomError("stop")

    agent = hooked(fail)(model=script(SEARCH))
    with pytest.raises(CustomError) as caught:
        agent(question="?")
    assert agent.last is caught.value.run  # type: ignore[attr-defined]
    assert agent.history is agent.last.history


def test_tool_results_changed_by_hook_before_it_fails_are_in_history(call: Call, script: Script) -> None:
    def fail(self: Researcher, step: Step) -> None:
        step.tool_results[0].output = "changed"
        raise CustomError("stop")

    with pytest.raises(CustomError) as caught:
        call(hooked(fail)(model=script(SEARCH)), question="?")
    assert told(caught.value.run) == ["changed"]  # type: ignore[attr-defined]


def test_on_step_with_wrong_return_value_raises_declaration_error(call: Call, script: Script) -> None:
    for returned in (True, "step", 0, dict[str, Any](), [1]):
        words = f"`MyAgent.on_step` must return the step or nothing, got {returned!r}"
        with pytest.raises(DeclarationError, match=re.escape(words)) as caught:
            call(hooked(returning(returned))(model=script(SEARCH)), question="?")
        assert told(caught.value.run) == ['["result1","result2","result3"]']


def test_on_step_that_returns_step_of_earlier_call_raises_declaration_error(call: Call, script: Script) -> None:
    kept: list[Step] = []

    def mix_up(self: Researcher, step: Step) -> Step:
        kept.append(step)
        return kept[0]

    with pytest.raises(DeclarationError, match=r"must return the step or nothing, got Step\(1"):
        call(hooked(mix_up)(model=script(SEARCH, SEARCH)), question="?")


# Prompts


def system(model: ScriptedModel, at: int = 0) -> str | None:
    first = model.requests[at].messages[0]
    return first["content"] if first["role"] == "system" else None


def test_prompt_method_is_called_per_run_and_its_text_is_dedented(call: Call, script: Script) -> None:
    class Dated(Researcher):
        """Not this."""

        day = 1

        def system_prompt(self) -> str:
            self.day += 1
            return f"""
            You are a helpful assistant.
              Today is day {self.day}.
            """

    model = script(SEARCH, DONE, DONE)
    agent = Dated(model=model)
    call(agent, question="?")
    call(agent, question="?")
    assert system(model, 0) == system(model, 1) == "You are a helpful assistant.\n  Today is day 2."
    assert system(model, 2) == "You are a helpful assistant.\n  Today is day 3."


@pytest.mark.every_way
def test_current_run_in_prompt_method_returns_run(call: Call, script: Script) -> None:
    class Knowing(Researcher):
        def system_prompt(self) -> str:
            run = current_run()
            return f"{run.input.question} {run.deps} {run.history}"  # type: ignore[attr-defined]

    model = script(DONE)
    call(Knowing(model=model).using(deps="deps"), question="when?")
    assert system(model) == "when? deps []"


@pytest.mark.parametrize("text", ["", "  \n "])
def test_empty_prompt_sends_no_system_message(call: Call, script: Script, text: str) -> None:
    class Silent(Researcher):
        def system_prompt(self) -> str:
            return text

    model = script(DONE)
    call(Silent(model=model), question="?")
    assert roles(model.requests[0]) == ["user"]


def test_prompt_file_is_read_per_run_and_sent_unchanged(call: Call, script: Script, tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    file.write_bytes("  # Rôle\r\n\n  Be brief. \n".encode())

    class FromFile(Researcher):
        system_prompt = file

    model = script(DONE, DONE)
    call(FromFile(model=model), question="?")
    file.write_text("Be long.", encoding="utf-8")
    call(FromFile(model=model), question="?")
    assert system(model, 0) == "  # Rôle\r\n\n  Be brief. \n"
    assert system(model, 1) == "Be long."


def test_prompt_file_that_is_missing_when_run_starts_raises_error_with_path(
    call: Call, script: Script, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.md"
    file.write_text("Be brief.", encoding="utf-8")

    class FromFile(Researcher):
        system_prompt = file

    agent = FromFile(model=script())
    file.unlink()
    with pytest.raises(DeclarationError, match=r"prompt\.md") as caught:
        call(agent, question="?")
    assert caught.value.run.usage.requests == 0


@pytest.mark.parametrize("returned", [None, 5, ["text"]])
def test_prompt_method_that_does_not_return_text_raises_declaration_error(
    call: Call, script: Script, returned: Any
) -> None:
    class Wrong(Researcher):
        def system_prompt(self) -> Any:
            return returned

    with pytest.raises(DeclarationError, match=r"`Wrong\.system_prompt` must return a string, got "):
        call(Wrong(model=script()), question="?")


@pytest.mark.every_way
def test_prompt_method_exception_is_raised_unchanged(call: Call, script: Script) -> None:
    error = CustomError("no prompt today")

    class Failing(Researcher):
        async def system_prompt(self) -> str:
            raise error

    with pytest.raises(CustomError) as caught:
        call(Failing(model=script()), question="?")
    assert caught.value is error
    assert error.run.history == []  # type: ignore[attr-defined]
