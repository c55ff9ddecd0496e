"""Tests of requests that contain the conversation as a `<thread>` document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from tests.contract.conftest import Wire
from tests.loopback import Request

from acorn import Step, module, tool
from acorn.testing import Reply, call, finish

PROMPT = "Look around, then answer."
PNG = "iVBORw0KGgo="
DONE = finish(answer="nowhere")


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing in <{place}>"


class Looker(module[Question, Answer]):
    """Look around, then answer."""

    tools = [look]
    max_steps = 4
    history_format = "thread"


DOCUMENT = (
    "<thread>\n"
    '  <event type="human" id="0" iteration="0">&lt;input&gt;\n'
    "  &lt;question&gt;Where &amp;amp; how?&lt;/question&gt;\n&lt;/input&gt;</event>\n"
    '  <event type="ai" id="1" iteration="1">Größer.</event>\n'
    '  <event type="tool_input" id="2" name="look" iteration="1">{&quot;place&quot;:&quot;attic&quot;}</event>\n'
    '  <event type="tool_output" id="3" name="look" status="success" iteration="1">nothing in &lt;attic&gt;</event>\n'
    "</thread>"
)


def parts(wire: Wire, body: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    """Return the system text and the messages after it, in the form of the protocol."""
    if wire.is_openai:
        system, *messages = body["messages"]
        return system["content"], messages
    system = body["system"]
    return system if isinstance(system, str) else system[0]["text"], body["messages"]


def names(wire: Wire, body: dict[str, Any]) -> list[str]:
    return [each["function"]["name"] if wire.is_openai else each["name"] for each in body["tools"]]


def test_request_in_thread_format_contains_whole_conversation_as_one_document(wire: Wire) -> None:
    wire.serve([Reply("Größer.") & call("look", place="attic"), DONE])
    run = wire.run(Looker(model=wire.model()), question="Where & how?")
    assert run.output == Answer(answer="nowhere")
    first, second = wire.bodies()
    for body in (first, second):
        system, messages = parts(wire, body)
        assert system == PROMPT
        assert [message["role"] for message in messages] == ["user"]
        assert names(wire, body) == ["look", "__finish__"]
        assert "tool_choice" not in body
    assert _text(parts(wire, second)[1][0]) == DOCUMENT
    assert DOCUMENT.startswith(_text(parts(wire, first)[1][0]).removesuffix("</thread>"))


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


def test_streamed_run_in_thread_format_can_be_forced_to_finish(wire: Wire) -> None:
    class Listening(Looker):
        max_steps = 1

        def on_stream(self, chunk: Any) -> None: ...

    wire.serve([call("look", place="attic"), DONE])
    run = wire.run(Listening(model=wire.model()), question="Where?")
    assert (run.output, run.stop_reason) == (Answer(answer="nowhere"), "forced")
    first, second = wire.bodies()
    assert first["stream"] is second["stream"] is True
    assert second["tool_choice"] == wire.either(
        openai={"type": "function", "function": {"name": "__finish__"}},
        anthropic={"type": "tool", "name": "__finish__"},
    )
    assert _text(parts(wire, second)[1][0]).endswith("nothing in &lt;attic&gt;</event>\n</thread>")


def test_image_in_thread_format_is_sent_after_document(wire: Wire) -> None:
    class Showing(Looker):
        def on_step(self, step: Step) -> None:
            image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
            self.history.append({"role": "user", "content": [{"type": "text", "text": "See:"}, image]})

    wire.serve([call("look", place="attic"), DONE])
    wire.run(Showing(model=wire.model()), question="Where?")
    (message,) = parts(wire, wire.bodies()[1])[1]
    document, line, image = message["content"]
    assert line["text"] == "Media 1 of event 3:"
    assert document["text"].endswith(">See:</event>\n</thread>")
    assert PNG not in document["text"]
    if wire.is_openai:
        assert image == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    else:
        assert image["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}


def test_cache_setting_in_thread_format_marks_system_message_and_document(claude: Wire) -> None:
    def answer(request: Request) -> Reply:
        return call("look", place="attic") if len(claude.server.requests) < 2 else DONE

    claude.serve(answer)
    claude.run(Looker(model=claude.model(), cache=True), question="Where?")
    for body in claude.bodies():
        assert body["system"][0]["cache_control"] == {"type": "ephemeral"}
        (message,) = body["messages"]
        assert message["content"][0]["cache_control"] == {"type": "ephemeral"}
    far = [{"location": "message", "index": 3}, {"location": "message", "index": -1}]
    claude.serve(answer)
    assert claude.run(Looker(model=claude.model(), cache=far), question="Where?").output == Answer(answer="nowhere")
