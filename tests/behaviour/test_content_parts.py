"""Tests of media content parts in the input, in tool results, in the context, and in every saved form."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import BaseModel, Field
from tests.behaviour.conftest import Call, Script
from tests.parts import Photo, Sketch, Sound, image
from tests.provider_rules import assert_valid

from acorn import LimitError, Run, Step, Usage, module, tool
from acorn._call.plan import new_machine
from acorn._formats.json import text_of
from acorn._history.history import history_of
from acorn._machine.saved_run import load, save
from acorn.journal import MessagesAdded, ToolFinished, ToolResultsAdded
from acorn.models import ModelRequest
from acorn.testing import Reply, finish
from acorn.testing import call as calling
from acorn.thread import dump_events, parse_events, serialize_thread_to_xml, to_messages

Message = Any  # A message as a user may write it: any dict.

DATA = "data:image/png;base64,AAAA"
OAK, ELM = Photo(f"{DATA}OAK"), Photo(f"{DATA}ELM")
OAK_PART, ELM_PART = image(OAK.url), image(ELM.url)
DONE = finish(answer="an oak")
FIRST = '{"media":1,"kind":"image"}'
"""What stands in the JSON of a result for its first picture."""


class Question(BaseModel):
    question: str
    photo: Photo | None = Field(default=None, description="What it is about")
    more: dict[str, list[Photo]] = {}


class Answer(BaseModel):
    answer: str


@dataclass
class Shot:
    photo: Photo
    place: str


@tool(repeatable=True)
def shoot(place: str = "here") -> Photo:
    """Take a picture."""
    return Photo(f"{DATA}{place}")


@tool
def describe() -> dict[str, Any]:
    """Take two pictures, and say what they are."""
    return {"shots": [Shot(OAK, "wood"), Shot(ELM, "park")], "count": 2}


@tool
def plain() -> str:
    """Say something."""
    return "nothing"


class Botanist(module[Question, Answer]):
    """Say what it is."""

    tools = [shoot, describe, plain]
    max_steps = 9


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def pictures(messages: list[Message]) -> list[Any]:
    """Return all parts that are not text, in order."""
    found = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return [part for part in found if part["type"] != "text"]


def saw(request: ModelRequest) -> list[Any]:
    """Return role, text and media of each message of a request, in all ways of sending."""
    rest = [message for message in request.messages if message["role"] != "system"]
    return [(message["role"], text_of(message["content"]), pictures([message])) for message in rest]


# The input


def test_image_in_input_is_sent_as_content_part_after_input_xml(call: Call, script: Script) -> None:
    model = script(DONE)
    run = call.run(Botanist(model=model), question="What is it?", photo=OAK, more={"others": [ELM, OAK]})
    xml = (
        "<input>\n"
        "  <question>What is it?</question>\n"
        '  <photo description="What it is about" media="1" kind="image" />\n'
        "  <more>\n"
        "    <others>\n"
        '      <photo media="2" kind="image" />\n'
        '      <photo media="1" kind="image" />\n'
        "    </others>\n"
        "  </more>\n"
        "</input>"
    )
    assert run.history[1] == {"role": "user", "content": [text(xml), OAK_PART, ELM_PART]}
    assert saw(model.requests[0]) == [("user", xml, [OAK_PART, ELM_PART])]


def test_input_without_image_is_sent_as_text(call: Call, script: Script) -> None:
    model = script(DONE)
    run = call.run(Botanist(model=model), question="What is it?")
    assert run.history[1]["content"] == "<input>\n  <question>What is it?</question>\n  <more />\n</input>"
    assert model.requests[0].messages[1]["content"] == run.history[1]["content"]


@pytest.mark.parametrize("kind", [Photo, list[Photo], dict[str, Photo]])
def test_plain_type_input_with_media_is_sent_as_content_parts(call: Call, script: Script, kind: Any) -> None:
    class Plain(module):
        initial_input = kind
        final_output = Answer

    given: Any = OAK if kind is Photo else [OAK] if kind == list[Photo] else {"oak": OAK}
    model = script(DONE)
    run = call.run(Plain(model=model), given)
    (_, xml, parts) = saw(model.requests[0])[0]
    (inner,) = [element for element in ElementTree.fromstring(xml).iter() if element.attrib]
    assert inner.attrib == {"media": "1", "kind": "image"}
    assert parts == pictures(run.history) == [OAK_PART]


def test_media_object_as_whole_input_and_audio_field_are_sent_as_content_parts(call: Call, script: Script) -> None:
    class Listener(module[Sketch, Answer]):
        pass

    class Hearer(module):
        initial_input = [("sound", Sound)]
        final_output = Answer

    model = script(DONE, DONE)
    run = call.run(Listener(model=model), url=DATA, name="oak")
    assert run.history[0]["content"] == [text('<input media="1" kind="image" name="oak" />'), image(DATA)]
    run = call.run(Hearer(model=model), sound="wav:AAAA")
    assert run.history[0]["content"] == [
        text('<input>\n  <sound media="1" kind="audio" />\n</input>'),
        {"type": "input_audio", "input_audio": {"data": "wav:AAAA", "format": "wav"}},
    ]


@pytest.mark.edits_history
def test_input_with_image_that_hook_removed_from_history_is_sent_again_with_image(call: Call, script: Script) -> None:
    class Forgetful(Botanist):
        def on_step(self, step: Step) -> None:
            del self.history[1:]

    model = script(calling("plain"), DONE)
    call.run(Forgetful(model=model), question="?", photo=OAK, more={"same": [OAK]})
    assert saw(model.requests[1]) == saw(model.requests[0])


# Tool results


@pytest.mark.every_way
def test_image_returned_by_tool_is_sent_after_result_text(call: Call, script: Script) -> None:
    model = script(calling("shoot", place="wood"), DONE)
    run = call.run(Botanist(model=model), question="?")
    part = image(f"{DATA}wood")
    assert run.history[3] == {"role": "tool", "tool_call_id": "call_1_0", "content": [text(FIRST), part]}
    assert saw(model.requests[1])[2:] == [
        ("tool", FIRST, []),
        ("user", "Media 1 of the result of `shoot` (call `call_1_0`):", [part]),
    ]


@pytest.mark.message_list
def test_image_in_tool_result_is_sent_in_separate_user_message_after_tool_messages(call: Call, script: Script) -> None:
    model = script(calling("describe") & calling("plain") & calling("shoot"), DONE)
    call.run(Botanist(model=model), question="?")
    placeholders = [{"media": number, "kind": "image"} for number in (1, 2)]
    whole = {
        "shots": [{"photo": placeholders[0], "place": "wood"}, {"photo": placeholders[1], "place": "park"}],
        "count": 2,
    }
    first, second, third, beside = model.requests[1].messages[3:]
    assert json.loads(first["content"]) == whole
    assert (second["content"], third["content"]) == ("nothing", FIRST)
    assert beside == {
        "role": "user",
        "content": [
            text("Media 1 of the result of `describe` (call `call_1_0`):"),
            OAK_PART,
            text("Media 2 of the result of `describe` (call `call_1_0`):"),
            ELM_PART,
            text("Media 1 of the result of `shoot` (call `call_1_2`):"),
            image(f"{DATA}here"),
        ],
    }


def test_messages_with_images_are_sent_unchanged_in_later_requests(call: Call, script: Script) -> None:
    model = script(calling("shoot", place="a"), calling("plain"), calling("shoot", place="b"), DONE)
    call.run(Botanist(model=model), question="?", photo=OAK)
    told = [saw(request) for request in model.requests]
    for before, after in pairwise(told):
        assert after[: len(before)] == before
    assert pictures(model.requests[-1].messages) == [OAK_PART, image(f"{DATA}a"), image(f"{DATA}b")]


@pytest.mark.live_objects
def test_tool_result_in_on_step_is_object_returned_by_tool_with_its_images(call: Call, script: Script) -> None:
    seen: list[Any] = []

    class Watching(Botanist):
        def on_step(self, step: Step) -> None:
            seen.append(step.tool_results[0].output)

    call.run(Watching(model=script(calling("describe"), DONE)), question="?")
    assert seen == [{"shots": [Shot(OAK, "wood"), Shot(ELM, "park")], "count": 2}]


def test_image_added_to_or_removed_from_tool_result_by_on_step_changes_history(call: Call, script: Script) -> None:
    class Editing(Botanist):
        def on_step(self, step: Step) -> None:
            for result in step.tool_results:
                result.output = ["See:", OAK] if result.name == "plain" else "no picture"

    model = script(calling("plain") & calling("shoot"), DONE)
    run = call.run(Editing(model=model), question="?")
    assert run.history[3]["content"] == [text(f'["See:",{FIRST}]'), OAK_PART]
    assert run.history[4]["content"] == "no picture"
    assert pictures(model.requests[1].messages) == [OAK_PART]


def test_tool_result_with_images_is_equal_with_and_without_on_step_hook(call: Call, script: Script) -> None:
    class Watching(Botanist):
        def on_step(self, step: Step) -> None:
            assert step.tool_results

    histories = [
        call.run(kind(model=script(calling("describe"), DONE)), question="?").history for kind in (Botanist, Watching)
    ]
    assert histories[0] == histories[1]
    assert pictures(histories[0]) == [OAK_PART, ELM_PART]


def test_add_to_context_accepts_images(call: Call, script: Script) -> None:
    class Showing(Botanist):
        def on_step(self, step: Step) -> None:
            step.add_to_context(OAK)
            step.add_to_context("and")
            step.add_to_context({"elm": ELM, "oak": OAK})

    model = script(calling("plain"), DONE)
    run = call.run(Showing(model=model), question="?")
    xml = (
        '<context media="1" kind="image" />\n'
        "<context>and</context>\n"
        '<context>\n  <elm media="2" kind="image" />\n  <oak media="1" kind="image" />\n</context>'
    )
    assert run.history[4] == {"role": "user", "content": [text(xml), OAK_PART, ELM_PART]}
    assert saw(model.requests[1])[-1] == ("user", xml, [OAK_PART, ELM_PART])


# Other messages of the history


PARTS = [
    ("text in parts", [text("a"), text("b")], [text("a"), text("b")], []),
    ("a picture alone", [OAK_PART], "The result follows in a user message.", [OAK_PART]),
    ("a picture first", [OAK_PART, text("a")], "a", [OAK_PART]),
    ("two texts", [text("a"), OAK_PART, text("b")], [text("a"), text("b")], [OAK_PART]),
    ("a mark for the cache", [{**text("a"), "cache_control": {}}, ELM_PART], None, [ELM_PART]),
]


@pytest.mark.message_list
@pytest.mark.parametrize(("content", "kept", "beside"), [row[1:] for row in PARTS], ids=[row[0] for row in PARTS])
def test_content_parts_of_tool_result_in_user_supplied_history_are_sent(
    call: Call, script: Script, content: Any, kept: Any, beside: Any
) -> None:
    model = script(DONE)
    agent = Botanist(model=model)
    history = [
        {"role": "user", "content": "Look!"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "shoot", "arguments": "{}"}},
            {"id": "2", "type": "function", "function": {"name": "plain", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "1", "content": content},
        {"role": "tool", "tool_call_id": "2", "content": "x"},
        {"role": "user", "content": "Go on."},
    ]  # fmt: skip
    before = json.dumps(history)
    run = call.run(agent.using(history=history), question="?")
    assert json.dumps(history) == before
    assert run.history[3]["content"] == content
    sent = model.requests[0].messages
    assert sent[3]["content"] == (content[:1] if kept is None else kept)
    assert sent[4]["content"] == "x"
    assert pictures(sent) == beside
    assert [message["role"] for message in sent[5:]] == ["user"] * (2 + bool(beside))


def test_continued_conversation_contains_images(call: Call, script: Script) -> None:
    model = script(calling("shoot"), DONE, DONE)
    agent = Botanist(model=model)
    first = call.run(agent, question="?", photo=OAK)
    call.run(agent.using(history=first), question="And now?", photo=ELM)
    expected = [OAK_PART, image(f"{DATA}here"), ELM_PART]
    assert pictures(model.requests[-1].messages) == expected
    assert text_of(first.history[1]["content"]) in str(saw(model.requests[-1])[0][1])


@pytest.mark.every_way
def test_branch_request_contains_images_of_parent_and_branch(call: Call, script: Script) -> None:
    class Closer(module[Question, Answer]):
        """Look closer."""

    class Parent(Botanist):
        branches = {"closer": Closer}

    model = script(
        calling("shoot", place="a"),
        calling("shoot", place="b") & calling("closer", question="Why?", photo={"url": ELM.url}),
        finish(answer="leaves"),
        DONE,
    )
    run = call.run(Parent(model=model), question="?", photo=OAK)
    inherited = [OAK_PART, image(f"{DATA}a"), image(f"{DATA}b")]
    assert pictures(model.requests[2].messages) == [*inherited, ELM_PART]
    assert pictures(model.requests[3].messages) == inherited
    assert pictures(run.branches[0].history) == [*inherited, ELM_PART]
    assert to_messages(run.branches[0].thread) == run.branches[0].history


def test_branch_output_with_images_is_sent_to_parent(call: Call, script: Script) -> None:
    class Painter(module[Any, Answer]):
        """Paint."""

        def on_finish(self, output: Answer) -> Any:
            return {"answer": output.answer, "painted": ELM}

    class Parent(Botanist):
        branches = {"painter": Painter}

    model = script(calling("painter"), finish(answer="an elm"), DONE)
    run = call.run(Parent(model=model), question="?")
    assert run.history[3]["content"] == [text(f'{{"answer":"an elm","painted":{FIRST}}}'), ELM_PART]
    assert pictures(model.requests[2].messages) == [ELM_PART]
    assert "base64" not in serialize_thread_to_xml(run.thread)


# The journal, the thread, and saved runs


class Showing(Botanist):
    def on_step(self, step: Step) -> None:
        step.add_to_context([ELM])


REPLIES = (calling("shoot") & calling("describe"), calling("plain"), DONE)


def walked(call: Call, script: Script) -> Run[Any]:
    """Run an agent with media in all places."""
    return call.run(Showing(model=script(*REPLIES)), question="?", photo=OAK)


def test_journal_records_media_content_that_model_received(call: Call, script: Script) -> None:
    run = walked(call, script)
    entries = run.journal.entries
    (said,) = [entry for entry in entries if isinstance(entry, MessagesAdded)]
    assert pictures(list(said.messages)) == [OAK_PART]
    returned = [entry.content for entry in entries if isinstance(entry, ToolFinished)]
    results = [result.content for entry in entries if isinstance(entry, ToolResultsAdded) for result in entry.results]
    assert returned[:3] == results[:3]
    assert returned[0] == [text(FIRST), image(f"{DATA}here")]
    contexts = [entry.context for entry in entries if isinstance(entry, ToolResultsAdded)][:2]
    assert contexts == [[text('<context>\n  <photo media="1" kind="image" />\n</context>'), ELM_PART]] * 2
    assert history_of(entries) == run.history


@pytest.mark.edits_history
def test_edit_of_history_after_run_does_not_change_journal(call: Call, script: Script) -> None:
    run = walked(call, script)
    before = json.dumps(history_of(run.journal.entries))
    for message in run.history:
        if isinstance(message["content"], list):
            message["content"][0]["text"] = "EDITED"
            message["content"].clear()
    assert json.dumps(history_of(run.journal.entries)) == before
    assert "EDITED" not in json.dumps(dump_events(run.thread))


def test_thread_xml_contains_media_placeholders_without_base64_data(call: Call, script: Script) -> None:
    run = walked(call, script)
    assert to_messages(run.thread) == run.history
    assert to_messages(parse_events(json.dumps(dump_events(run.thread)))) == run.history
    document = serialize_thread_to_xml(run.thread)
    assert "base64" not in document
    assert (
        "&lt;photo description=&quot;What it is about&quot; media=&quot;1&quot; kind=&quot;image&quot; /&gt;"
        in document
    )
    assert '<event type="tool_output"' in document
    results = [event.result for event in run.thread if event.type == "tool_result"]
    assert results[0] == {"media": 1, "kind": "image"}
    assert results[1]["shots"][1] == {"photo": {"media": 2, "kind": "image"}, "place": "park"}


def test_saved_run_contains_images(call: Call, script: Script) -> None:
    model = script(DONE)
    agent = Botanist(model=model)
    run = call.run(agent, question="?", photo=OAK)
    loop = new_machine(agent, (), {"question": "?", "photo": OAK})
    again = load(loop.plan, json.loads(json.dumps(save(loop))))
    assert again.run.input == run.input
    assert again.transcript.history.openings == loop.transcript.history.openings


def test_failed_run_history_contains_images(call: Call, script: Script) -> None:
    class Failing(Botanist):
        def on_step(self, step: Step) -> None:
            raise ZeroDivisionError

    model = script(calling("shoot"))
    with pytest.raises(ZeroDivisionError) as caught:
        call.run(Failing(model=model), question="?")
    run: Run[Any] = caught.value.run  # type: ignore[attr-defined]
    assert pictures(run.history) == [image(f"{DATA}here")]
    assert to_messages(run.thread) == run.history


# As one document


def test_thread_format_request_labels_each_image_with_its_event_number(script: Script) -> None:
    model = script(calling("shoot"), DONE)
    Botanist(model=model, history_format="thread")(question="?", photo=OAK)
    _, sent = model.requests[1].messages
    document, *rest = sent["content"]
    events = list(ElementTree.fromstring(document["text"]))
    assert [event.attrib["type"] for event in events] == ["human", "tool_input", "tool_output", "human"]
    assert events[2].text == FIRST
    assert events[3].text == "Media 1 of the result of `shoot` (call `call_1_0`):"
    assert rest == [text("Media 1 of event 0:"), OAK_PART, text("Media 1 of event 3:"), image(f"{DATA}here")]


# Limits


def used(reply: Reply) -> Reply:
    return replace(reply, usage=Usage(100, 10))


def test_image_data_is_excluded_from_token_estimate(call: Call, script: Script) -> None:
    big = Photo(DATA + "A" * 400_000)

    @tool
    def scan() -> Any:
        """A large picture."""
        return [big, "x" * 40]

    class Frugal(Botanist):
        tools = [scan]
        max_total_tokens = 20_000

    model = script(used(calling("scan")), used(DONE))
    run = call.run(Frugal(model=model), question="?", photo=big)
    assert run.stop_reason == "finish"
    assert pictures(run.history) == [image(big.url), image(big.url)]


def test_text_in_content_parts_is_included_in_token_estimate(call: Call, script: Script) -> None:
    class Wordy(Botanist):
        max_total_tokens = 1_000

        def on_step(self, step: Step) -> None:
            step.tool_results[0].output = ["x" * 40_000, OAK]

    model = script(used(calling("shoot")))
    with pytest.raises(LimitError):
        call.run(Wordy(model=model), question="?")


# Requests


def test_image_data_string_is_shared_by_all_requests_without_copies(script: Script) -> None:
    model = script(calling("shoot"), calling("plain"), DONE)
    run = Botanist(model=model).run(question="?", photo=OAK)
    for request in model.requests:
        assert_valid(request.messages)
    strings = [part["image_url"]["url"] for request in model.requests for part in pictures(request.messages)]
    assert {id(url) for url in strings if url == OAK.url} == {id(OAK.url)}
    assert run.history[1]["content"][1]["image_url"]["url"] is OAK.url
