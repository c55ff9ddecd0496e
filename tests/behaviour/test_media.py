"""Tests of images, audio and files: accepted values, requests, saved forms and rejections."""

from __future__ import annotations

import base64
import copy
import json
import logging
import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_serializer
from tests.behaviour.conftest import Call, Script
from tests.behaviour.schemas import Answer
from tests.cases import each_case

import acorn
from acorn import (
    Audio,
    DeclarationError,
    File,
    Image,
    InputError,
    LimitError,
    ModelError,
    Run,
    Step,
    listen,
    module,
    tool,
)
from acorn._formats.json import text_of
from acorn.stores import MemoryStore, SQLiteStore
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling
from acorn.thread import serialize_thread_to_xml, to_messages

PNG = b"\x89PNG\r\n\x1a\n." + b"oak" * 30
ELM = b"\x89PNG\r\n\x1a\n." + b"elm" * 30
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt "
PDF = b"%PDF-1.4 a receipt"
SECRET = "b2Frb2Frb2Fr"
"""What the base64 of the first picture has in it."""
DONE = finish(answer="an oak")


class Question(BaseModel):
    question: str = "What is it?"
    photo: Image | None = Field(default=None, description="What it is about")
    more: list[Image | Audio | File] = []


@tool(repeatable=True)
def shoot(place: str = "here") -> dict[str, Any]:
    """Take a picture."""
    return {"place": place, "shots": [Image.from_bytes(ELM, name=f"{place}.png")]}


class Botanist(module[Question, Answer]):
    """Say what it is."""

    tools = [shoot]
    max_steps = 9


def media(messages: list[Any]) -> list[Any]:
    found = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return [part for part in found if part["type"] != "text"]


def urls(messages: list[Any]) -> list[str]:
    return [part["image_url"]["url"] for part in media(messages)]


# Values


def test_media_created_from_path_bytes_and_url_have_detected_media_type(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(PNG)
    by_path = Image.from_path(tmp_path / "cat.jpg")
    assert (by_path.media_type, by_path.name, by_path.data, by_path.url) == ("image/png", "cat.jpg", PNG, None)
    (tmp_path / "notes.md").write_text("# Notes")
    assert File.from_path(tmp_path / "notes.md").media_type == "text/markdown"
    assert Image.from_bytes(b"whatever", "image/tiff").media_type == "image/tiff"
    assert Audio.from_bytes(WAV).media_type == "audio/wav"
    there = Image.from_url("https://example.org/oak.png")
    assert (there.url, there.data, there.media_type, there.size) == ("https://example.org/oak.png", None, None, 0)
    assert Image.from_url(by_path_url(PNG)) == Image.from_bytes(PNG)


def by_path_url(raw: bytes) -> str:
    part = Image.from_bytes(raw).__acorn_part__()
    return str(part["image_url"]["url"]) + ""


WRONG_VALUES = [
    (lambda: Image.from_bytes(PDF), "is application/pdf, but must be an image"),
    (lambda: Image.from_bytes(b"?"), "the type of the data is unknown. Set `media_type`, such as `image/png`"),
    (lambda: Image.from_bytes(b"", "image/png"), "is empty"),
    (lambda: Image.from_bytes(b""), "is empty"),
    (lambda: Image.from_bytes(PNG, "png"), "must be like `image/png`"),
    (lambda: Audio.from_bytes(WAV, "image/png"), "is image/png, but must be audio"),
    (lambda: Image.from_url("cat.png"), "an http"),
    (lambda: Image.from_url("file:///etc/passwd"), "an http"),
    (lambda: Image.from_url("data:image/png;base64,***"), "not valid base64"),
    (lambda: Image.from_url("data:image/png"), "has no data"),
]


@each_case(("make", "words"), WRONG_VALUES)
def test_media_with_unsupported_value_raises_value_error_with_reason(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        make()


def test_media_from_uppercase_data_url_with_newline_is_accepted() -> None:
    data = base64.b64encode(PNG).decode()
    assert Image.from_url(f"DATA:IMAGE/PNG;BASE64,{data}\n") == Image.from_bytes(PNG)


def test_media_type_is_normalized_to_lowercase_without_parameters() -> None:
    assert File.from_bytes(b"Notes", "Text/Plain; charset=utf-8") == File.from_bytes(b"Notes", "text/plain")
    assert Image.from_url("https://example.org/oak", "IMAGE/PNG").media_type == "image/png"


def test_media_is_immutable_and_repr_contains_no_data() -> None:
    photo = Image.from_bytes(PNG, name="oak.png")
    assert repr(photo) == "Image(image/png, 99 bytes, 'oak.png')"
    with pytest.raises(AttributeError, match="cannot be changed"):
        photo.name = "elm.png"  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"Image\.from_path"):
        Image()
    assert copy.deepcopy(photo) is photo
    assert pickle.loads(pickle.dumps(photo)) == photo
    assert len({photo, Image.from_bytes(PNG, name="oak.png"), Image.from_bytes(PNG)}) == 2
    assert SECRET not in Question(photo=photo).model_dump_json()
    with pytest.raises(ValidationError, match="has only its hash and size"):
        Question.model_validate_json(Question(photo=photo).model_dump_json())


@each_case("given", [PNG, bytearray(PNG), by_path_url(PNG), Image.from_bytes(PNG)])
def test_media_field_accepts_media_bytes_and_urls(given: Any) -> None:
    assert Question(photo=given).photo == Image.from_bytes(PNG)


def test_path_as_value_of_media_field_raises_input_error(call: Call, script: Script) -> None:
    model = script()
    with pytest.raises(InputError, match=r"`photo` is invalid: .*`acorn\.Image\.from_path"):
        call.run(Botanist(model=model), photo="cat.png")
    assert not model.requests


# Requests


def test_media_placeholders_in_xml_are_numbered_in_order_of_content_parts(call: Call, script: Script) -> None:
    model = script(DONE)
    more = [Audio.from_bytes(WAV, name="song.wav"), PDF, "https://example.org/elm.png"]
    call.run(Botanist(model=model), photo=Image.from_bytes(PNG, name="cat.png"), more=more)
    content = model.requests[0].messages[1]["content"]
    assert content[0]["text"] == (
        "<input>\n"
        "  <question>What is it?</question>\n"
        '  <photo description="What it is about" media="1" type="image/png" name="cat.png" />\n'
        "  <more>\n"
        '    <item media="2" type="audio/wav" name="song.wav" />\n'
        '    <item media="3" type="application/pdf" />\n'
        '    <item media="4" type="image" />\n'
        "  </more>\n"
        "</input>"
    )
    assert [part["type"] for part in content[1:]] == ["image_url", "input_audio", "file", "image_url"]
    assert content[2]["input_audio"]["format"] == "wav"
    assert content[3]["file"]["filename"] == "file.pdf"
    assert content[4]["image_url"] == {"url": "https://example.org/elm.png"}


@pytest.mark.every_way
def test_media_nested_in_tool_result_is_sent_as_content_part(call: Call, script: Script) -> None:
    model = script(calling("shoot", place="wood"), DONE)
    run = call.run(Botanist(model=model))
    tool_message, beside = model.requests[1].messages[3:]
    label = {"media": 1, "type": "image/png", "name": "wood.png"}
    assert json.loads(tool_message["content"]) == {"place": "wood", "shots": [label]}
    assert text_of(beside["content"]) == "Media 1 of the result of `shoot` (call `call_1_0`):"
    assert urls([beside]) == [by_path_url(ELM)]
    assert to_messages(run.thread) == run.history


@pytest.mark.live_objects
def test_media_data_string_object_is_shared_by_all_requests(call: Call, script: Script) -> None:
    photo = Image.from_bytes(PNG)
    data = photo.__acorn_part__()["image_url"]["url"]

    class Editing(Botanist):
        def on_step(self, step: Step) -> None:
            self.history.append({"role": "user", "content": f"Step {step.counter}"})

    model = script(calling("shoot"), calling("shoot"), DONE)
    run = call.run(Editing(model=model), photo=photo)
    for messages in (run.history, *(request.messages for request in model.requests)):
        assert urls(messages)[0] is data


@pytest.mark.every_way
def test_branch_request_contains_media_of_parent_and_branch(call: Call, script: Script) -> None:
    class Closer(module[Question, Answer]):
        """Look closer."""

    class Parent(Botanist):
        def on_step(self, step: Step) -> None:
            self.branch(Closer, photo=ELM)

    model = script(calling("shoot"), finish(answer="leaves"), DONE)
    call.run(Parent(model=model), photo=PNG)
    assert urls(model.requests[1].messages) == [by_path_url(PNG), by_path_url(ELM), by_path_url(ELM)]


def test_thread_format_sends_media_parts_after_document(script: Script) -> None:
    class Threaded(Botanist):
        history_format = "thread"

    model = script(calling("shoot"), DONE)
    run = Threaded(model=model).run(photo=PNG)
    (_, sent) = model.requests[1].messages
    assert sent["content"][0]["text"].startswith("<thread>")
    assert urls([sent]) == [by_path_url(PNG), by_path_url(ELM)]
    assert SECRET not in serialize_thread_to_xml(run.thread)


# Base64 is hidden


def test_media_base64_data_is_excluded_from_token_count_repr_and_logs(
    caplog: pytest.LogCaptureFixture, script: Script
) -> None:
    heard: list[Any] = []
    large = PNG * 3000

    class Small(Botanist):
        max_total_tokens = 3000

    caplog.set_level(logging.DEBUG, logger="acorn")
    model = script(calling("shoot"), DONE)
    with listen(heard.append):
        run = Small(model=model).run(photo=large)
    assert run.stop_reason == "finish"
    for shown in (repr(run), repr(run.history), repr(run.thread), repr(heard), str(model.requests[-1]), caplog.text):
        assert SECRET not in shown
    assert "<image/png, 297.0 kB, " in repr(run.history)


# Saved forms


class Kept(module[Question, Answer]):
    """Say what it is."""

    tools = [shoot]
    max_steps = 9


def test_run_record_stores_media_data_once(call: Call, script: Script) -> None:
    run = call.run(Kept(model=script(calling("shoot"), DONE)), photo=PNG, more=[PNG, PDF])
    text = run.to_json()
    assert text.count(by_path_url(PNG).partition(",")[2]) == 1
    again: Run[Any] = Run.from_json(text, Kept)
    assert again.history == run.history
    assert again.input == run.input
    assert isinstance(again.input, Question)
    assert SECRET not in repr(again.history)
    assert Run.from_json(text).history == run.history


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "runs.db")


def test_store_contains_media_data_once_until_last_run_that_uses_it_is_deleted(store: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        model = ScriptedModel([calling("shoot"), calling("shoot", place="there"), DONE])
        Kept(model=model, store=store).using(run_id=name)(photo=PNG)
    raw = {Image.from_bytes(each).__acorn_part__()["image_url"]["url"].sha256: each for each in (PNG, ELM)}
    assert store.media([*raw, "unknown"]) == raw
    (kept,) = store.read("a")
    for text in (*kept.entries, kept.record, kept.state, kept.header.input):
        assert SECRET not in text
    if not isinstance(store, MemoryStore):
        with closing(sqlite3.connect(tmp_path / "runs.db")) as connection:
            assert connection.execute("SELECT count(*) FROM media").fetchone() == (2,)
    store.delete("a")
    assert store.media([*raw]) == raw
    record = acorn.runs(store).get("b")
    assert urls(record.history) == [by_path_url(PNG), by_path_url(ELM), by_path_url(ELM)]
    assert list(acorn.runs(store).follow("b"))[1:] == record.journal.entries[1:]
    store.delete("b")
    assert store.media([*raw]) == {}


def test_interrupted_run_with_media_is_resumed(store: Any) -> None:
    stops = [KeyboardInterrupt(), None]

    @tool
    def develop(place: str) -> list[Image]:
        """Take another."""
        if stop := stops.pop(0):
            raise stop
        return [Image.from_bytes(ELM)]

    class Resumed(module[Question, Answer]):
        tools = [shoot, develop]
        max_steps = 9

    script = (calling("shoot") & calling("develop", place="x"), DONE)

    def answer(request: Any) -> Reply:
        found: Reply = script[sum(message["role"] == "assistant" for message in request.messages)]
        return found

    with pytest.raises(KeyboardInterrupt):
        Resumed(model=ScriptedModel(answer), store=store).using(run_id="r")(photo=PNG)
    model = ScriptedModel(answer)
    agent = Resumed(model=model, store=store)
    assert agent.resume("r").answer == "an oak"
    assert urls(model.requests[0].messages) == [by_path_url(PNG), by_path_url(ELM), by_path_url(ELM)]
    assert agent.using(run_id="r")(photo=PNG).answer == "an oak"
    with pytest.raises(acorn.StoreError, match="another input"):
        agent.using(run_id="r")(photo=ELM)


class Page(BaseModel):
    photo: Image


class Document(BaseModel):
    page: Page

    @field_serializer("page")
    def dump_page(self, page: Page) -> dict[str, Any]:
        """Dump the page without the context of the serialization."""
        return page.model_dump(mode="json")


def test_image_in_value_that_user_serializer_dumps_is_sent_and_stored(store: Any) -> None:
    @tool
    def scan() -> Document:
        """Scan a document."""
        return Document(page=Page(photo=Image.from_bytes(ELM)))

    class Reader(module):
        initial_input = Document
        final_output = ["answer"]
        tools = [scan, acorn.ask_human]
        max_steps = 9

    model = ScriptedModel([calling("scan"), calling("ask_human", question="Which?")])
    waiting = Reader(model=model, store=store)(page=Page(photo=Image.from_bytes(PNG)))
    resumed = ScriptedModel([DONE])
    Reader(model=resumed, store=store).resume(waiting.run_id, answer="fine")
    assert urls(model.requests[0].messages) == [by_path_url(PNG)]
    assert urls(model.requests[1].messages) == [by_path_url(PNG), by_path_url(ELM)]
    assert urls(resumed.requests[0].messages) == [by_path_url(PNG), by_path_url(ELM)]
    stored: Any = acorn.runs(store).get(waiting.run_id)
    assert stored.input["page"]["photo"]["data"] == by_path_url(PNG)


def test_input_that_looks_like_stored_media_reference_is_stored_unchanged(store: Any) -> None:
    class Odd(module):
        initial_input = dict[str, Any]
        final_output = ["answer"]

    odd = {"__media__": ["media-", [["x", ""]]], "of": "media-0"}
    Odd(model=ScriptedModel([DONE]), store=store).using(run_id="r")(odd)
    found: Any = acorn.runs(store).get("r").input
    assert found == {"input": odd}


def test_conversation_with_media_is_continued_and_compacted() -> None:
    class Short(Botanist):
        compact_at = 1

    model = ScriptedModel(lambda request: Reply("A summary.") if not request.tools else _next(request))
    run = Short(model=model).run(photo=PNG)
    assert urls(model.requests[-1].messages)[0] == by_path_url(PNG)
    again = ScriptedModel([DONE])
    Botanist(model=again).using(history=run)(question="And now?")
    assert by_path_url(PNG) in urls(again.requests[0].messages)


def _next(request: Any) -> Reply:
    return calling("shoot", place=str(len(request.messages))) if len(request.messages) < 9 else DONE


# Rejections


def test_media_larger_than_max_media_bytes_raise_error_with_field_name(call: Call, script: Script) -> None:
    class Tight(Botanist):
        max_media_bytes = 150

    model = script(calling("shoot"))
    with pytest.raises(InputError, match=r"1 medium of 990 bytes, .* 150 bytes\. .*`photo`.*max_media_bytes"):
        call.run(Tight(model=model), photo=PNG * 10)
    assert not model.requests
    with pytest.raises(LimitError, match=r"2 media of 198 bytes, .* in `photo`"):
        call.run(Tight(model=model), photo=PNG)
    model = script(DONE)
    call.run(Tight(model=model, max_media_bytes=None), photo=PNG * 10)


def test_max_media_bytes_default_is_twenty_megabytes(script: Script) -> None:
    model = script()
    with pytest.raises(InputError, match=r"1 medium of 20\.0 MB, but the limit is 20\.0 MB"):
        Botanist(model=model)(photo=PNG + bytes(20_000_000))
    assert not model.requests


@each_case("kind", [list[Image], Image, Question, dict[str, File]])
def test_output_schema_with_image_raises_declaration_error(kind: Any) -> None:
    with pytest.raises(DeclarationError, match=r"`Maker\.final_output` .*, but the model generates this value"):
        type("Maker", (module,), {"final_output": kind})

    def publish(photo: kind) -> str:
        """Show it."""
        return "shown"

    publish.__annotations__["photo"] = kind
    with pytest.raises(
        DeclarationError, match=r"The input of the tool `.*publish` .*, but the model generates this value"
    ):
        type("Maker", (module,), {"tools": [publish]})


def test_agent_tool_with_image_input_raises_declaration_error(script: Script) -> None:
    model = script()
    for attributes in ({"tools": [Botanist]}, {"branches": {"look": Botanist}}):
        parent: Any = type("Parent", (module,), {**attributes, "final_output": Answer, "max_steps": 2})
        with pytest.raises(
            DeclarationError, match=r"The input of `Botanist`, which is .* contains an image in `photo`"
        ):
            parent(model=model)()
    assert not model.requests


def test_local_gguf_model_with_image_input_raises_model_error(tmp_path: Path) -> None:
    (tmp_path / "none.gguf").write_bytes(b"GGUF")

    class Local(module[Question, Answer]):
        model = f"local/{tmp_path}/none.gguf"

    with pytest.raises(ModelError, match="supports only text, but the request contains an image in `photo`"):
        Local()(photo=PNG)


@each_case(
    ("make", "words"),
    [
        (lambda: Image(b"x"), "Create `acorn.Image` with `Image.from_path`"),
        (lambda: Image.from_bytes("x"), "`Image.from_bytes` got a `str`.* a path to `from_path`"),  # type: ignore[arg-type]
        (lambda: Image.from_bytes(5), "`Image.from_bytes` got a `int`"),  # type: ignore[arg-type]
        (lambda: Image.from_url(b"x"), "`Image.from_url` got a `bytes`"),  # type: ignore[arg-type]
        (lambda: Image.from_bytes(b"x", "image/png", b"x"), "the name of an image must be a string, got a `bytes`"),  # type: ignore[arg-type]
    ],
)
def test_media_constructor_with_value_of_wrong_type_raises_error_that_suggests_right_constructor(
    make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        make()


def test_path_passed_to_media_field_raises_error_that_suggests_from_path() -> None:
    with pytest.raises(ValidationError, match=r"For a file, use `acorn.Image.from_path\(...\)`"):
        TypeAdapter(Image).validate_python(Path("cat.png"))
