"""Tests of the embedded model: real answers, concurrency, limits, and the end of its process."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, RootModel
from tests.cases import case
from tests.unit.random_schemas import schema
from tests.waiting import AGES

from acorn import DeclarationError, ModelError, module, tool
from acorn.models.local.download import KNOWN_MODELS, download_weights
from acorn.models.local.engine import EngineJob
from acorn.models.local.model import LocalModel, to_text_messages
from acorn.models.port import Price
from acorn.models.request import ModelRequest
from acorn.types import Message

MODEL = "local/smollm2"
SCHEMAS = 200


@pytest.fixture(scope="session", autouse=True)
def weights() -> Path:
    """Download the weights once into the user's cache."""
    return download_weights(KNOWN_MODELS["smollm2"])


class Sentiment(module):
    """Judge the sentiment of a text."""

    model = MODEL
    initial_input = ["text"]
    final_output = [("sentiment", Literal["positive", "negative"])]


class Person(module):
    """Extract the person from the text."""

    model = MODEL
    initial_input = ["text"]
    final_output = [("name", str), ("age", int)]


ENDLESS = {
    "type": "object",
    "properties": {"count": {"type": "array", "items": {"type": "integer"}, "minItems": 9000}},
    "required": ["count"],
}


class Essay(module):
    """Write a long essay."""

    model = MODEL
    initial_input = ["topic"]
    final_output = [("essay", str, Field(min_length=3000, max_length=4000))]


# Answers


SENTENCES = [
    ("The food was delicious and the staff were friendly.", "positive"),
    ("The food was cold and the staff were rude.", "negative"),
    ("I love this film.", "positive"),
    ("What a wonderful day, I am so happy!", "positive"),
    ("I hate this film.", "negative"),
    ("What a terrible day, everything went wrong.", "negative"),
]
PEOPLE = [
    ("At 71, Robert Brown still runs marathons.", "Robert Brown", 71),
    ("Maria Lopez is 34 years old and lives in Madrid.", "Maria Lopez", 34),
    ("My name is Anna and I am 29.", "Anna", 29),
]


@pytest.mark.torture
def test_local_model_classifies_clear_sentiment_and_extracts_name_and_age() -> None:
    for text, sentiment in SENTENCES:
        with case(text):
            assert Sentiment()(text=text).sentiment == sentiment
    for text, name, age in PEOPLE:
        with case(text):
            person = Person()(text=text)
            assert (person.name, person.age) == (name, age)


class Address(BaseModel):
    street: str = Field(max_length=30)
    city: str = Field(max_length=30)


class Visit(BaseModel):
    place: Address | None
    stars: int = Field(ge=1, le=5)
    tags: list[Literal["food", "music", "quiet"]] = Field(max_length=2)
    share: float = Field(gt=0, lt=1)
    code: str = Field(pattern=r"^[A-Z]{3}-\d{2}$")
    before: list[Visit] = Field(default=[], max_length=1)


class Branch(RootModel[str | list["Branch"]]):
    pass


@pytest.mark.torture
@pytest.mark.parametrize("kind", [Visit, Branch])
def test_local_model_returns_valid_nested_and_recursive_schema(kind: type[BaseModel]) -> None:
    class Reviewer(module):
        """Describe the visit."""

        model = MODEL
        initial_input = ["text"]
        final_output = kind
        parse_retries = 0

    assert isinstance(Reviewer()(text="We ate at 5 Hill Road in Leeds; it was quiet and good."), kind)


@pytest.mark.torture
def test_local_model_returns_valid_object_for_random_schemas(record_property: Callable[[str, object], None]) -> None:
    for seed in range(SCHEMAS):
        with case(seed):
            wanted = schema(random.Random(seed), depth=2)
            reply = LocalModel({"model": MODEL}).complete(asked("Maria is 34.", wanted))
            assert reply.stop_reason == "tool_calls"
            value = json.loads(reply.tool_calls[0].arguments)
            validator = Draft202012Validator(wanted, format_checker=Draft202012Validator.FORMAT_CHECKER)
            assert [error.message for error in validator.iter_errors(value)] == []
    record_property("tried", f"{SCHEMAS} random schemas")


def asked(text: str, *schemas: dict[str, Any], forced: str | None = None, **more: Any) -> ModelRequest:
    tools = [
        {"type": "function", "function": {"name": f"tool{index}", "description": "A tool.", "parameters": each}}
        for index, each in enumerate(schemas)
    ]
    messages: list[Message] = [{"role": "system", "content": "Fill in the form."}, {"role": "user", "content": text}]
    return ModelRequest(messages, tools, 0.7, more.pop("max_tokens", 1024), forced, **more)


NUMBER = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
WORD = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}, "required": ["name"]}


def test_local_model_calls_forced_tool() -> None:
    model = LocalModel({"model": MODEL})
    for forced in ("tool0", "tool1"):
        request = asked("Maria is 34.", NUMBER, WORD, forced=forced)
        assert model.can_force_tool(request)
        assert [made.name for made in model.complete(request).tool_calls] == [forced]


@pytest.mark.torture
def test_local_model_finishes_loop_with_tools() -> None:
    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return "sunny"

    class Reporter(module):
        """Report the weather."""

        model = MODEL
        initial_input = ["city"]
        final_output = [("report", str)]
        tools = [weather]
        max_steps = 2

    assert isinstance(Reporter()(city="Rome").report, str)


@pytest.mark.torture
def test_local_model_without_tools_returns_text() -> None:
    reply = LocalModel({"model": MODEL}).complete(asked("Say hello.", max_tokens=10))
    assert reply.content
    assert not reply.tool_calls


def test_local_model_call_counts_tokens_and_costs_zero() -> None:
    run = Person().run(text="Tom is 5 years old.")
    assert run.usage.requests == 1
    assert run.usage.input_tokens > 20
    assert run.usage.output_tokens > 5
    assert run.cost == 0
    assert run.model == MODEL
    assert LocalModel({"model": MODEL}).price() == Price(0, 0)


@pytest.mark.torture
def test_local_model_response_cut_at_max_tokens_has_stop_reason_length() -> None:
    reply = LocalModel({"model": MODEL}).complete(asked("Maria is 34.", WORD, max_tokens=3))
    assert reply.stop_reason == "length"


@pytest.mark.torture
def test_local_model_default_temperature_is_zero() -> None:
    wanted = {"type": "object", "properties": {"story": {"type": "string", "maxLength": 80}}, "required": ["story"]}
    model = LocalModel({"model": MODEL})
    cold = {model.complete(asked("Tell a story.", wanted)).tool_calls[0].arguments for _ in range(2)}
    hot = {
        model.complete(asked("Tell a story.", wanted, declared=frozenset({"temperature"}))).tool_calls[0].arguments
        for _ in range(4)
    }
    assert len(cold) == 1
    assert len(hot) > 1


# Streams


@pytest.mark.torture
@pytest.mark.parametrize("schemas", [(WORD,), (NUMBER, WORD)])
def test_local_model_stream_deltas_join_to_whole_response(schemas: tuple[dict[str, Any], ...]) -> None:
    model = LocalModel({"model": MODEL})
    deltas = list(model.stream(asked("Maria is 34.", *schemas)))
    calls = [call for delta in deltas for call in delta.calls]
    (whole,) = model.complete(asked("Maria is 34.", *schemas)).tool_calls
    assert "".join(call.arguments for call in calls) == whole.arguments
    assert [call.name for call in calls if call.name] == [whole.name]
    assert len(calls) > 4
    assert [delta.stop_reason for delta in deltas if delta.stop_reason] == ["tool_calls"]
    names = [f"tool{index}" for index in range(len(schemas))]
    Draft202012Validator(schemas[names.index(whole.name)]).validate(json.loads(whole.arguments))


def test_local_model_streams_partial_outputs() -> None:
    chunks = list(Person().stream(text="Maria Lopez is 34 years old."))
    names = [chunk.partial.name for chunk in chunks if chunk.partial and chunk.partial.name]
    assert names == sorted(names, key=len)
    assert len(set(names)) > 1
    assert chunks[-1].result == Person()(text="Maria Lopez is 34 years old.")


@pytest.mark.torture
def test_closed_local_stream_stops_generation() -> None:
    model = LocalModel({"model": MODEL})
    stream = model.stream(asked("Count without end.", ENDLESS, max_tokens=8000))
    for _ in range(5):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    model.complete(asked("Tom is 5.", NUMBER, timeout=60))  # Far less than the whole text would take.


# Concurrency


@pytest.mark.torture
def test_local_model_called_in_eight_threads_returns_each_answer() -> None:
    ages: dict[int, int] = {}

    def ask(age: int) -> None:
        ages[age] = Person()(text=f"Maria is {age} years old.").age

    threads = [threading.Thread(target=ask, args=(age,)) for age in range(30, 38)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert ages == {age: age for age in range(30, 38)}


def test_local_async_calls_do_not_block_event_loop() -> None:
    async def main() -> tuple[list[int], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        people = await asyncio.gather(*(Person().acall(text=f"Maria is {age} years old.") for age in (41, 42)))
        ticking.cancel()
        return [person.age for person in people], ticks

    ages, ticks = asyncio.run(main())
    assert ages == [41, 42]
    assert ticks > 10


@pytest.mark.torture
def test_cancelled_local_call_leaves_engine_usable() -> None:
    async def main() -> int:
        writing = asyncio.create_task(Essay().acall(topic="Paris"))
        await asyncio.sleep(0.5)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        person = await Person().acall(text="Maria is 34 years old.")
        return int(person.age)

    assert asyncio.run(main()) == 34


def test_local_request_with_expired_time_limit_raises_model_error() -> None:
    request = asked("Paris", WORD, timeout=0.001)
    with pytest.raises(ModelError, match="did not answer in"):
        LocalModel({"model": MODEL}).complete(request)


def test_local_request_that_exceeds_timeout_setting_raises_retryable_model_error() -> None:
    model = LocalModel({"model": MODEL, "timeout": 0.001})
    for left in (None, 30):
        with pytest.raises(ModelError, match=r"0\.0 s") as caught:
            model.complete(asked("Paris", WORD, timeout=left))
        assert caught.value.retryable
        with pytest.raises(ModelError, match="did not answer in"):
            asyncio.run(model.acomplete(asked("Paris", WORD, timeout=left)))


class Watched(EngineJob):
    """Count how often the engine asks whether it is stopped, after it was."""

    count = 0

    @property
    def is_stopped(self) -> bool:
        self.count += self._is_stopped
        return self._is_stopped

    @is_stopped.setter
    def is_stopped(self, value: bool) -> None:
        self._is_stopped = value


@pytest.mark.torture
def test_local_request_abandoned_while_reading_prompt_leaves_engine_usable() -> None:
    body = {"messages": [{"role": "user", "content": "hello " * 6000}], "stream": True, "return_progress": True}
    job = Watched(body)
    LocalModel({"model": MODEL}).engine.submit(job)
    first: Any = job.pieces.get()
    assert "prompt_progress" in first
    job.is_stopped = True
    while job.pieces.get() is not None:
        pass
    assert 0 < job.count < 6
    assert LocalModel({"model": MODEL}).complete(asked("Tom", NUMBER)).tool_calls


@pytest.mark.torture
def test_large_local_schema_does_not_block_event_loop() -> None:
    names = [f"N{number}" for number in range(60)]
    everything = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names] + [{"type": "null"}]}
    node = {"type": "object", "properties": dict.fromkeys("abcdefgh", everything)}
    large = {"type": "object", "$defs": dict.fromkeys(names, node), "properties": {"x": everything}}

    async def main() -> int:
        turns = 0
        asking = asyncio.create_task(LocalModel({"model": MODEL}).acomplete(asked("Tom", large, timeout=0.001)))
        while not asking.done():
            await asyncio.sleep(0.001)
            turns += 1
        with pytest.raises(ModelError, match="did not answer in"):
            await asking
        return turns

    assert asyncio.run(main()) > 5


# The engine's port


@pytest.mark.torture
def test_local_engine_server_rejects_requests_without_key() -> None:
    Person()(text="Tom is 5.")
    address = urlsplit(LocalModel({"model": MODEL}).engine._server.listening_address)
    assert address.hostname == "127.0.0.1"
    for path in ("/v1/models", "/props", "/slots", "/metrics", "/v1/chat/completions", "/tokenize", "/completion"):
        for method, status in (("GET", 401), ("POST", 401), ("OPTIONS", 200)):
            connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=10)
            headers = {"Origin": "http://page.example", "Authorization": "Bearer guess"}
            connection.request(method, path, body=b"{}" if method == "POST" else None, headers=headers)
            answer = connection.getresponse()
            assert answer.status == status, (path, method)
            assert not answer.getheader("Access-Control-Allow-Origin")
            connection.close()


# Failures


def failing(model: Any, text: str = "Tom is 5.") -> ModelError:
    with pytest.raises(ModelError) as caught:
        Person(model=model)(text=text)
    assert not caught.value.retryable
    return caught.value


@pytest.mark.torture
def test_too_long_local_prompt_error_contains_length_and_solution() -> None:
    for model, words in (
        (MODEL, ("the limit is 6000", "the tools have 54", "'max_prompt': 54")),
        ({"model": MODEL, "max_prompt": 10**6}, ("8192", "n_ctx")),
    ):
        message = str(failing(model, "hello " * 9000))
        assert "on_step" in message
        assert [word for word in words if word not in message] == []
    assert Person()(text="Maria is 34 years old.").age == 34


def test_too_long_local_prompt_raises_before_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACORN_HOME", str(tmp_path))
    assert "the limit is 6000" in str(failing(MODEL, "hello " * 2000))


def test_local_prompt_length_includes_history_and_tools() -> None:
    request = asked("Tom", {**NUMBER, "description": "x" * 100}, WORD)
    request.messages.insert(1, {"role": "user", "content": "y" * 300})
    with pytest.raises(ModelError, match=r"the tools have \d{3} characters, and the limit is 300\."):
        LocalModel({"model": MODEL, "max_prompt": 300}).complete(request)


def test_local_prompt_contains_calls_and_results_as_text_of_alternating_roles() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "word", "arguments": '{"word": "Tom"}'}}
    messages: list[Any] = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "found"},
        {"role": "user", "content": "And now?"},
    ]
    prompt = to_text_messages(messages, [], is_small=False)
    assert prompt == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": '{"name": "word", "arguments": {"word": "Tom"}}'},
        {"role": "user", "content": "Result: found\nAnd now?"},
    ]


def test_local_model_with_invalid_schema_raises_model_error() -> None:
    for invalid in ({"properties": 5}, {"default": object()}):
        with pytest.raises(ModelError, match="cannot call the tools tool0: "):
            LocalModel({"model": MODEL}).complete(asked("Tom", {"type": "object", **invalid}))


@pytest.mark.torture
def test_local_model_with_repetitive_input_returns_short_text() -> None:
    text = (
        "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore "
        "magna aliqua. Ut enim ad minim veniam, quis nostrud exercitation ullamco laboris nisi ut aliquip ex ea. "
    )
    assert len(Person()(text=text * 3).name) < 200


def test_missing_local_weights_error_contains_pull_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACORN_HOME", str(tmp_path))
    assert "`acorn pull`" in str(failing(MODEL))
    part = KNOWN_MODELS["smollm2"].path
    part.parent.mkdir(parents=True)
    part.write_bytes(b"GGUF")
    assert "incomplete" in str(failing(MODEL))


def test_missing_local_file_and_broken_local_file_raise_different_errors(tmp_path: Path, weights: Path) -> None:
    missing, text, cut = (tmp_path / f"{name}.gguf" for name in ("missing", "text", "cut"))
    text.write_text("hello")
    cut.write_bytes(weights.read_bytes()[:3_000_000])
    assert "cannot be opened" in str(failing(f"local/{missing}"))
    assert "cannot be opened" in str(failing("local/~nobody-of-that-name/x.gguf"))
    assert "not a GGUF file" in str(failing(f"local/{text}"))
    assert "could not be loaded" in str(failing({"model": f"local/{cut}"}))


@pytest.mark.torture
def test_path_to_already_loaded_weights_file_uses_same_engine(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "mine.gguf"
    link.symlink_to(weights)
    monkeypatch.chdir(tmp_path)
    Person()(text="Tom is 5.")
    known = LocalModel({"model": MODEL}).engine
    assert LocalModel({"model": f"local/{link}"}).engine is known
    assert LocalModel({"model": "local/mine.gguf"}).engine is known
    assert Person(model={"id": "local/mine.gguf"})(text="Maria is 34 years old.").age == 34


def test_invalid_local_model_declaration_raises_before_weights_are_loaded() -> None:
    wrong: list[tuple[Any, str]] = [
        ("local/gpt", "smollm2"),
        ("local/", "smollm2"),
        ({"model": MODEL, "api_key": "secret-1"}, "n_ctx"),
        ({"model": MODEL, "n_ctx": 0}, "at least 1"),
        ({"model": MODEL, "n_threads": "two"}, "at least 1"),
        ({"model": MODEL, "timeout": 0}, "greater than 0"),
        ({"model": MODEL, "timeout": "soon"}, "greater than 0"),
        ("local/a\0b.gguf", "smollm2"),
    ]
    for model, word in wrong:
        with case(model), pytest.raises(DeclarationError, match=word) as caught:
            Person(model=model)(text="x")
        assert "secret-1" not in str(caught.value)


@pytest.mark.torture
def test_second_use_of_loaded_weights_with_other_n_ctx_raises() -> None:
    Person()(text="Tom is 5.")
    assert "n_ctx" in str(failing({"model": MODEL, "n_ctx": 100}))


def test_local_model_rejects_images() -> None:
    request = asked("", WORD)
    request.messages[1]["content"] = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(ModelError, match="supports only text, but the request contains an image in"):
        LocalModel({"model": MODEL}).complete(request)


# Separate processes

PERSON = """
import os, sys, threading
from pydantic import Field
from acorn import ModelError, module

class Person(module):
    "Extract the person from the text."
    model = "local/smollm2"
    initial_input = ["text"]
    final_output = [("name", str), ("age", int)]

class Essay(Person):
    "Write a long essay."
    final_output = [("essay", str, Field(min_length=3000, max_length=4000))]

def ask():
    return Person()(text="Maria is 34 years old.").age
"""


def process(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PERSON + script],
        capture_output=True,
        text=True,
        timeout=AGES,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.torture
def test_program_with_local_model_prints_nothing_and_exits_with_0() -> None:
    done = process("assert ask() == 34")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.torture
def test_program_that_ends_during_local_generation_exits_with_0() -> None:
    done = process(
        """
def write():
    try:
        Essay()(text="Rome")
    except ModelError:  # it is closed under its hands, and perhaps says so
        pass

pieces = iter(Essay().stream(text="Paris"))
next(pieces), next(pieces)
for _ in range(3):
    threading.Thread(target=write, daemon=True).start()
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.torture
def test_program_that_ends_while_local_model_reads_prompt_exits_with_0() -> None:
    done = process(
        """
import time
large = {"model": "local/smollm2", "n_ctx": 40000, "max_prompt": 10**6}
Person(model=large)(text="Tom is 5.")

def read():
    try:
        Person(model=large)(text="hello " * 35000)  # this would take longer than a process has here
    except ModelError:
        pass

threading.Thread(target=read, daemon=True).start()
time.sleep(1)
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.torture
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_that_uses_engine_loaded_by_parent_raises() -> None:
    done = process(
        """
import warnings
warnings.simplefilter("ignore")
ask()
child = os.fork()
if not child:
    try:
        ask()
    except ModelError as error:
        print(error, flush=True)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert ask() == 34
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "spawn" in done.stdout


@pytest.mark.torture
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_of_parent_without_engine_loads_local_model() -> None:
    done = process(
        """
import warnings
warnings.simplefilter("ignore")
child = os.fork()
if not child:
    sys.exit(ask())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 34
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.torture
def test_local_model_without_local_extra_raises_error_with_install_command() -> None:
    done = process(
        """
sys.modules["xllamacpp"] = None
try:
    ask()
except ModelError as error:
    print(error)
"""
    )
    assert "pip install 'acorn-agents[local]'" in done.stdout
    assert done.returncode == 0
