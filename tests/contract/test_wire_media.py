"""Tests of images, audio and files in requests: on each lane, plain and streamed, in inputs and in tool results."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from pydantic import BaseModel
from tests.cases import case
from tests.contract.conftest import Wire
from tests.loopback import Fault, Loopback
from tests.loopback_gemini import gemini, gemini_answers

from acorn import Audio, File, Image, ModelError, module, tool
from acorn.testing import call, finish

PNG = b"\x89PNG\r\n\x1a\n" + b"oak"
PDF = b"%PDF-1.4"
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt "
URL = "https://example.org/elm.png"
DONE = finish(answer="an oak")
Json = dict[str, Any]


def coded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


class Question(BaseModel):
    photo: Image | None = None
    paper: File | None = None
    song: Audio | None = None


class Answer(BaseModel):
    answer: str


@tool
def shoot() -> list[Image]:
    """Take a picture."""
    return [Image.from_bytes(PNG, name="oak.png")]


@tool
def record() -> Audio:
    """Listen."""
    return Audio.from_bytes(WAV)


class Botanist(module[Question, Answer]):
    """Say what it is."""

    tools = [shoot, record]
    max_steps = 3


def said(wire: Wire, at: int) -> list[Json]:
    """Return the parts after the first text of the last message of a request."""
    body = wire.server.bodies()[at]
    messages = body["input"] if wire.is_responses else body["messages"]
    parts: list[Json] = messages[-1]["content"]
    return parts


def run(wire: Wire, how: str, agent: module[Any, Any], **given: Any) -> None:
    if how == "streamed" and wire.way == "sync":
        for _ in agent.stream(**given):
            pass
    else:
        wire.run(agent, **given)


@pytest.mark.parametrize("how", ["whole", "streamed"])
def test_media_input_is_sent_in_format_of_protocol(wire: Wire, how: str) -> None:
    wire.serve([DONE])
    paper = File.from_bytes(PDF, name="a.pdf")
    run(wire, how, Botanist(model=wire.model()), photo=PNG, paper=paper)
    image, document = said(wire, 0)[1:]
    url, data = f"data:image/png;base64,{coded(PNG)}", f"data:application/pdf;base64,{coded(PDF)}"
    if wire.is_responses:
        assert image == {"type": "input_image", "image_url": url, "detail": "auto"}
        assert document == {"type": "input_file", "file_data": data, "filename": "a.pdf"}
    elif wire.is_openai:
        assert image == {"type": "image_url", "image_url": {"url": url}}
        assert document == {"type": "file", "file": {"file_data": data, "filename": "a.pdf"}}
    else:
        assert image == {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": coded(PNG)}}
        assert (document["type"], document["source"]) == (
            "document",
            {"type": "base64", "media_type": "application/pdf", "data": coded(PDF)},
        )


@pytest.mark.parametrize("how", ["whole", "streamed"])
def test_media_returned_by_tool_is_sent_after_line_with_tool_name(wire: Wire, how: str) -> None:
    wire.serve([call("shoot"), DONE])
    run(wire, how, Botanist(model=wire.model()))
    parts = said(wire, 1)
    line = next(part for part in parts if "Media" in part.get("text", ""))
    assert line["text"].startswith("Media 1 of the result of `shoot` (call `")
    assert parts.index(line) == len(parts) - 2
    assert coded(PNG) in json.dumps(parts[-1])
    assert '[{"media":1,"type":"image/png","name":"oak.png"}]' in json.dumps(wire.server.bodies()[1]).replace("\\", "")


def test_image_url_is_sent_without_download(wire: Wire) -> None:
    wire.serve([DONE])
    wire.run(Botanist(model=wire.model()), photo=URL)
    assert URL in json.dumps(said(wire, 0)[1])
    assert wire.count() == 1


def test_audio_is_sent_to_models_that_support_audio(gpt: Wire) -> None:
    if gpt.is_responses:
        gpt.serve([])
        assert "The model does not support audio" in str(gpt.fails(Botanist(model=gpt.model()), song=WAV))
        return
    gpt.serve([DONE])
    gpt.run(Botanist(model=gpt.model()), song=WAV)
    assert said(gpt, 0)[1] == {"type": "input_audio", "input_audio": {"data": coded(WAV), "format": "wav"}}


def test_audio_for_model_without_audio_support_raises_model_error(claude: Wire) -> None:
    claude.serve([])
    words = str(claude.fails(Botanist(model=claude.model()), song=WAV))
    assert "The model does not support audio, but the request contains audio in `song`" in words
    assert claude.count() == 0
    claude.serve([call("record")])
    words = str(claude.fails(Botanist(model=claude.model())))
    assert "the request contains audio in the result of `record`" in words
    assert claude.count() == 1


@pytest.mark.chat
def test_unsupported_audio_url_raises_error_with_field_name(gpt: Wire) -> None:
    gpt.serve([])
    words = str(gpt.fails(Botanist(model=gpt.model()), song="https://example.org/song.wav"))
    assert "The model does not support URLs of audio, but there is one in `song`" in words
    assert "acorn.Audio.from_bytes" in words
    assert gpt.count() == 0


@pytest.mark.parametrize("lane", ["native", "litellm"])
@pytest.mark.parametrize("media_type", ["text/markdown", "application/json"])
def test_text_files_are_sent_as_text_documents_to_anthropic(
    media_type: str, lane: str, litellm_is_loaded: None
) -> None:
    with Loopback([DONE]) as server:
        notes = File.from_bytes("Wörter".encode(), media_type, "notes")
        Botanist(model=server.anthropic(lane=lane))(paper=notes)
        source = {"type": "text", "media_type": "text/plain", "data": "Wörter"}
        document = server.bodies()[0]["messages"][0]["content"][1]
        assert document == {"type": "document", "source": source, "title": "notes"}


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_url_of_document_is_sent_to_anthropic(lane: str, litellm_is_loaded: None) -> None:
    with Loopback([DONE]) as server:
        Botanist(model=server.anthropic(lane=lane))(paper="https://example.org/a.pdf")
        source = {"type": "url", "url": "https://example.org/a.pdf"}
        assert server.bodies()[0]["messages"][0]["content"][1] == {"type": "document", "source": source}


@pytest.mark.parametrize("spoken", ["responses", "anthropic"])
def test_media_part_without_data_raises_model_error(spoken: str) -> None:
    rows: list[Json] = [{"type": "image_url"}, {"type": "image_url", "image_url": {}}, {"type": "file"}]
    for part in rows:
        with case(part), Loopback([DONE]) as server:
            agent = Botanist(model=getattr(server, spoken)()).using(history=[{"role": "user", "content": [part]}])
            with pytest.raises(ModelError, match=f"A message contains a part of type `{part['type']}`, but"):
                agent()
            assert not server.requests


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_url_given_as_file_id_raises_without_download(lane: str, litellm_is_loaded: None) -> None:
    part = {"type": "file", "file": {"file_id": "https://example.org/a.pdf"}}
    with Loopback([DONE]) as server:
        agent = Botanist(model=server.openai(lane=lane)).using(history=[{"role": "user", "content": [part]}])
        with pytest.raises(ModelError, match="The model does not support URLs of files"):
            agent()
        assert not server.requests


def test_empty_text_part_is_not_sent_to_anthropic() -> None:
    with Loopback([DONE]) as server:
        agent = Botanist(model=server.anthropic()).using(history=[{"role": "user", "content": [{"type": "text"}]}])
        assert agent().answer == "an oak"


# LiteLLM


AMAZONS: Json = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region_name": "us-east-1"}
BEDROCK = "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0"


def by_litellm(name: str, **given: Any) -> tuple[list[Any], str]:
    """Return the request and the output."""
    with Loopback([Fault(status=400)]) as server:
        key = AMAZONS if name == BEDROCK else {"api_key": "k"}
        model = {"model": name, "api_base": server.url, "num_retries": 0, **key}
        with pytest.raises(ModelError) as caught:
            Botanist(model=model)(**given)
        return server.bodies(), str(caught.value)


def test_media_data_is_sent_inline_to_gemini(litellm_is_loaded: None) -> None:
    rows: list[Json] = [{"photo": PNG}, {"paper": PDF}, {"song": WAV}]
    for given in rows:
        with case(given):
            (body,), _ = by_litellm("gemini/gemini-2.5-flash", **given)
            parts = body["contents"][0]["parts"]
            (raw,) = given.values()
            assert coded(raw) in json.dumps(parts[1:])


def test_line_before_tool_media_contains_no_gemini_signature(litellm_is_loaded: None) -> None:
    with Loopback(gemini_answers([call("shoot"), DONE])) as server:
        Botanist(model=gemini(server))()
        contents = server.bodies()[1]["contents"]
    (line,) = [part["text"] for part in contents[-1]["parts"] if part.get("text", "").startswith("Media 1 of")]
    assert re.fullmatch(r"Media 1 of the result of `shoot` \(call `call_\w+`\):", line)
    assert "__thought__" not in line


LOST: list[tuple[str, Json, str]] = [
    ("gemini/gemini-2.5-flash", {"photo": URL}, "LiteLLM would download image URLs on this computer"),
    (
        "mistral/mistral-large-latest",
        {"song": WAV},
        "The model does not support audio, but the request contains audio in `song`",
    ),
    (
        "deepseek/deepseek-chat",
        {"photo": PNG},
        "The model does not support images, but the request contains an image in `photo`",
    ),
    (BEDROCK, {"song": WAV}, "The model does not support audio, but the request contains audio in `song`"),
    (BEDROCK, {"photo": URL}, "LiteLLM would download image URLs on this computer"),
    ("gemini/gemini-2.5-flash", {"paper": "https://example.org/a.pdf"}, "The model does not support URLs of files"),
    (
        "azure_ai/claude-sonnet-4-5",
        {"photo": "http://example.org/elm.png"},
        "LiteLLM would download image URLs",
    ),
]


def test_image_url_for_anthropic_through_litellm_raises_instead_of_download(litellm_is_loaded: None) -> None:
    with Loopback([DONE]) as server, pytest.raises(ModelError, match="LiteLLM would download image URLs"):
        Botanist(model=server.anthropic(lane="litellm"))(photo="http://example.org/elm.png")
    assert not server.requests


def test_media_that_litellm_would_drop_or_download_raises_model_error(litellm_is_loaded: None) -> None:
    for name, given, words in LOST:
        with case(name, given, words):
            bodies, said = by_litellm(name, **given)
            assert words in said
            assert not bodies


def test_media_data_is_sent_to_bedrock(litellm_is_loaded: None) -> None:
    rows: list[tuple[Json, str]] = [({"photo": PNG}, "image"), ({"paper": PDF}, "document")]
    for given, kind in rows:
        with case(given, kind):
            (body,), _ = by_litellm(BEDROCK, **given)
            (raw,) = given.values()
            assert body["messages"][0]["content"][1][kind]["source"] == {"bytes": coded(raw)}


def test_image_is_sent_to_mistral(litellm_is_loaded: None) -> None:
    (body,), _ = by_litellm("mistral/mistral-large-latest", photo=PNG)
    assert coded(PNG) in json.dumps(body["messages"][-1]["content"][1])
