"""Tests of streams over HTTP: equality with whole responses, and unusual, broken and abandoned streams."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing
from itertools import product
from typing import Any

import pytest
from pydantic import BaseModel
from tests.cases import case
from tests.clock import FakeClock
from tests.contract.conftest import Wire
from tests.long_version import IS_LONG
from tests.loopback import EVENTS, Fault, Loopback, Request
from tests.provider_rules import assert_complete
from tests.waiting import AGES, PATIENCE, comes_true, given_time, waiting_for_nothing

from acorn import LimitError, ModelError, Partial, Run, StreamChunk, ToolResult, capture, module, tool
from acorn.models import ModelRequest, ModelResponse
from acorn.models.assemble import Assembly
from acorn.models.port import Delta, can_stream
from acorn.models.resolve import resolve
from acorn.testing import Reply, call, finish
from acorn.types import Usage

Json = dict[str, Any]
Chunk = StreamChunk[Any]


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str
    confidence: float


@tool
def search(query: str) -> list[str]:
    """Search for information."""
    return [f"about {query}"]


@tool
def read(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


class Asker(module[Question, Answer]):
    """Answer the question."""


class Researcher(Asker):
    """Answer the question, with tools."""

    tools = [search, read]
    max_steps = 5


ANSWER = "It is Paris, the city of light"
RIGHT = Answer(answer=ANSWER, confidence=0.25)
DONE = finish(answer=ANSWER, confidence=0.25)
THINK = Reply("Let me look that up.", reasoning="The question is about a city.")
SEARCH = THINK & call("search", query="the capital of France")
CHATTER = Reply("Let me see. " * 50) & DONE
ENDLESS = Reply("Let me see. " * 400) & DONE
"""A reply that a slow server sends for longer than a test listens."""


def listening(base: type[module[Any, Any]], hear: Callable[[Chunk], Any]) -> Any:
    def on_stream(self: Any, chunk: Chunk) -> None:
        hear(chunk)

    return type("Listening", (base,), {"__module__": __name__, "__doc__": base.__doc__, "on_stream": on_stream})


def iterate(wire: Wire, agent: module[Any, Any], **kwargs: Any) -> list[Chunk]:
    """All chunks of a run."""
    if wire.way == "sync":
        return list(agent.stream(**kwargs))

    async def main() -> list[Chunk]:
        return [chunk async for chunk in agent.astream(**kwargs)]

    return asyncio.run(main())


def request(**fields: Any) -> ModelRequest:
    tools = [
        {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
        for name in ("search", "read", "__finish__")
    ]
    return ModelRequest([{"role": "user", "content": "Where?"}], tools, temperature=0.7, max_tokens=100, **fields)


def deltas(way: str, config: Json) -> list[Delta]:
    """Return the deltas of one stream."""
    model = resolve(config, "Test")
    assert can_stream(model)
    if way == "sync":
        return list(model.stream(request()))

    async def main() -> list[Delta]:
        return [delta async for delta in model.astream(request())]

    return asyncio.run(main())


def assembled(found: list[Delta]) -> ModelResponse:
    assembly = Assembly()
    for delta in found:
        assembly.add(delta)
    return assembly.response()


def said(response: ModelResponse) -> Json:
    """Return a response in a comparable form."""
    return {
        "content": response.content,
        "calls": [(made.id, made.name, json.loads(made.arguments or "{}")) for made in response.tool_calls],
        "stop": response.stop_reason,
        "usage": response.usage,
        "cost": response.cost,
        "model": response.model,
        "reasoning": response.reasoning,
        "refusal": response.refusal,
        "extra": response.extra,
    }


# Equal responses

REPLIES: dict[str, Reply] = {
    "text": Reply("Let me see."),
    "an answer": DONE,
    "text and calls": THINK & call("search", "a", query="x") & call("read", "b", path="größer 🦔") & Reply(),
    "thinking": Reply("Hm.", reasoning="Let me think about this for a while.") & call("search", "a", query="x"),
    "no arguments": call("search", "a") & call("read", "b"),
    "characters": Reply('\u2028 größer 🦔\u0085 \x7f\t\\ "') & call("read", "a", path='\u2028\n\x00🦔"\\'),
    "counted": DONE & Reply(usage=Usage(5000, 70, 4000, requests=1)),
    "cut off": Reply("Let me", stop_reason="length"),
    "cut off in a call": call("read", "a", path="x") & Reply(stop_reason="length"),
}


def test_streamed_response_equals_whole_response(wire: Wire) -> None:
    for (name, reply), size in product(REPLIES.items(), (1, 1000)):
        with case(name, size):
            server = wire.serve([reply, reply])
            server.chunk = size
            found = deltas(wire.way, wire.model())
            plain = resolve(wire.model(), "Test").complete(request())
            if name in ("an answer", "counted"):  # The server's ids count its requests.
                plain.tool_calls[0].id = assembled(found).tool_calls[0].id
            for block in plain.extra.get("thinking_blocks", ()):
                block["signature"] = "signature-1"
            for item in plain.extra.get("reasoning_items", ()):
                item["id"] = "rs_1"
            assert said(assembled(found)) == said(plain)
            if size == 1:
                assert len(found) > len(reply.content)


def test_stream_request_asks_for_usage(wire: Wire) -> None:
    wire.serve([DONE, DONE])
    iterate(wire, Asker(model=wire.model()), question="?")
    Asker(model=wire.model()).run(question="?")
    streamed, plain = wire.bodies()
    assert streamed.pop("stream") is True
    if wire.is_openai:
        assert streamed.pop("stream_options") == {"include_usage": True}
    assert plain.pop("stream", False) is False
    assert streamed == plain


def test_run_without_on_stream_hook_sends_no_stream_request(wire: Wire) -> None:
    wire.serve([SEARCH, DONE])
    assert wire.run(Researcher(model=wire.model()), question="?").output == RIGHT
    assert not any(body.get("stream") for body in wire.bodies())


SCRIPTS: dict[str, list[Reply]] = {
    "steps": [SEARCH, call("read", path="a") & call("search", query="b") & call("nothing"), Reply("Hm."), DONE],
    "a correction": [finish(answer=1, confidence="much"), THINK & finish(answer="x"), DONE],
    "the forced call": [SEARCH] * 5 + [DONE],
    "thinking": [SEARCH, Reply(reasoning="Ah.") & call("read", path="a"), DONE],
}


def parsed(history: list[Any]) -> list[Any]:
    """Return arguments as data: Claude's arrive as an object or as text."""
    for entry in history:
        for made in entry.get("tool_calls", ()):
            made["function"]["arguments"] = json.loads(made["function"]["arguments"])
    return history


@pytest.mark.parametrize("name", SCRIPTS)
def test_run_with_streaming_sends_same_requests_as_run_without_streaming(wire: Wire, name: str) -> None:
    runs: list[Run[Any]] = []
    bodies: list[list[Json]] = []
    for streams in (False, True):
        wire.serve(SCRIPTS[name])
        agent = Researcher(model=wire.model())
        last = iterate(wire, agent, question="?")[-1].run if streams else wire.run(agent, question="?")
        assert last is not None
        runs.append(last)
        bodies.append(wire.bodies())
        for body in bodies[-1]:
            body.pop("stream", None)
            body.pop("stream_options", None)
    assert bodies[0] == bodies[1]
    assert runs[0].output == runs[1].output == RIGHT
    assert parsed(runs[0].history) == parsed(runs[1].history)
    assert (runs[0].usage, runs[0].cost, runs[0].steps) == (runs[1].usage, runs[1].cost, runs[1].steps)
    assert runs[0].cost


def test_streamed_reasoning_block_is_sent_back_with_signature(claude: Wire) -> None:
    claude.serve([SEARCH, DONE])
    chunks = iterate(claude, Researcher(model=claude.model()), question="?")
    assert "".join(chunk.reasoning for chunk in chunks if chunk.reasoning) == THINK.reasoning
    blocks = claude.bodies()[1]["messages"][1]["content"]
    assert blocks[0] == {"type": "thinking", "thinking": THINK.reasoning, "signature": "signature-1"}
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]


def test_cached_tokens_of_stream_are_priced(wire: Wire) -> None:
    reply = DONE & Reply(usage=Usage(5000, 70, 4000, requests=1))
    wire.serve([reply, reply])
    streamed = iterate(wire, Asker(model=wire.model()), question="?")[-1].run
    plain = wire.run(Asker(model=wire.model()), question="?")
    assert streamed is not None
    assert streamed.cost == plain.cost == pytest.approx(wire.either(openai=0.0082, anthropic=0.00525))


def test_price_in_model_dict_applies_to_stream(wire: Wire) -> None:
    wire.serve([DONE & Reply(usage=Usage(100, 10, requests=1))])
    model = wire.model(input_cost_per_token=0.5, output_cost_per_token=2.0)
    run = iterate(wire, Asker(model=model), question="?")[-1].run
    assert run is not None
    assert run.cost == 100 * 0.5 + 10 * 2.0


# Pieces


def test_chunks_contain_streamed_text_and_tool_calls_and_tool_results(wire: Wire) -> None:
    server = wire.serve([SEARCH & call("read", path="a"), DONE])
    server.chunk = 5
    heard: list[Chunk] = []
    agent = listening(Researcher, heard.append)(model=wire.model())
    *chunks, last = iterate(wire, agent, question="?")
    assert last.result == RIGHT
    assert heard == chunks
    assert "".join(chunk.content for chunk in chunks if chunk.content) == THINK.content
    assert "".join(chunk.reasoning for chunk in chunks if chunk.reasoning) == THINK.reasoning
    partials = [chunk.partial for chunk in chunks if chunk.partial is not None]
    texts = list(dict.fromkeys(one.answer for one in partials if one.answer))
    assert len(texts) > 5
    assert all(ANSWER.startswith(text) for text in texts)
    assert partials[-1] == Partial[Answer](answer=ANSWER, confidence=0.25)
    seen = [chunk.tool_call for chunk in chunks if chunk.tool_call]
    assert {(made["index"], made["name"]) for made in seen} == {(0, "search"), (1, "read")}
    whole = '{"query":"the capital of France"}'
    texts = [made["arguments"] for made in seen if made["index"] == 0]
    assert texts == ["", *(whole[: at + 5] for at in range(0, len(whole), 5))]
    results = [chunk.tool_result for chunk in chunks if chunk.tool_result]
    ids = [made["id"] for made in seen if made["arguments"] == ""]
    assert results == [
        ToolResult(ids[0], "search", ["about the capital of France"]),
        ToolResult(ids[1], "read", "text of a"),
    ]
    assert [chunk.done for chunk in chunks].count(True) == 2


def test_chunk_is_delivered_before_response_is_complete(wire: Wire) -> None:
    heard = threading.Event()
    wire.serve([Fault(reply=CHATTER, hold=heard)])
    run = wire.run(listening(Asker, lambda _: heard.set())(model=wire.model()), question="?")
    assert run.output == RIGHT


def test_concurrent_streams_do_not_mix_their_texts() -> None:
    def answer(asked: Request) -> Reply:
        return finish(answer=asked.body["messages"][1]["content"], confidence=1)

    async def one(number: int) -> str:
        chunks = [chunk async for chunk in agent.astream(question=f"number {number}.")]
        *_, partial = (chunk.partial for chunk in chunks if chunk.partial)
        assert chunks[-1].result is not None
        assert partial.answer == chunks[-1].result.answer
        return partial.answer

    async def main() -> list[str]:
        return await asyncio.gather(*map(one, range(20)))

    with Loopback(answer) as server:
        agent = Asker(model=server.openai())
        assert [f"number {at}." in text for at, text in enumerate(asyncio.run(main()))] == [True] * 20


# Unusual streams


def part(delta: Json | None = None, reason: str | None = None, **more: Any) -> Json:
    """Return a chunk in OpenAI's form."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o", "choices": [choice], **more}


def calling(index: int | None, id: str | None = None, name: str | None = None, arguments: str | None = None) -> Json:
    """Return a fragment of a call in OpenAI's form."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fragment: Json = {"function": function}
    if index is not None:
        fragment["index"] = index
    return fragment if id is None else {**fragment, "id": id, "type": "function"}


def parts(*fragments: Json) -> Json:
    return part({"tool_calls": list(fragments)})


def events(*chunks: Json, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


USED = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
END = part(reason="tool_calls")
SEPARATED = "a\u2028b\u2029c\x85d größer 🦔"
ANSWER_CALL = calling(0, "b", "__finish__", '{"answer": "y"}')
ANSWERED = parts(ANSWER_CALL)
LOOKED, FINISHED = ("a", "search", {"query": "x"}), ("b", "__finish__", {"answer": "y"})

ODD: dict[str, tuple[bytes, Json]] = {
    "interleaved calls": (
        events(
            parts(calling(0, "a", "search", "")),
            parts(calling(1, "b", "__finish__", "")),
            parts(calling(0, arguments='{"que')),
            parts(calling(1, arguments='{"answer":')),
            parts(calling(0, arguments='ry": "x"}'), calling(1, arguments='"y"}')),
            END,
        ),
        {"calls": [LOOKED, FINISHED]},
    ),
    "several calls in one piece": (
        events(parts(calling(0, "a", "search", '{"query": "x"}'), ANSWER_CALL | {"index": 1}), END),
        {"calls": [LOOKED, FINISHED]},
    ),
    "indexes from 1": (
        events(
            parts(calling(1, "a", "search", '{"query":')),
            parts(calling(1, arguments='"x"}')),
            parts(calling(2, "b", "__finish__", '{"answer": "y"}')),
            END,
        ),
        {"calls": [LOOKED, FINISHED]},
    ),
    "the same index with a new id": (
        events(
            parts(calling(0, "a", "search", '{"query":')),
            parts(calling(0, arguments='"x"}')),
            parts(calling(0, "b", "__finish__", '{"answer":')),
            parts(calling(0, arguments='"y"}')),
            END,
        ),
        {"calls": [LOOKED, FINISHED]},
    ),
    "no index": (
        events(
            parts(calling(None, "a", "search", '{"query": "x"}'), calling(None, "b", "__finish__", '{"answer": "y"}')),
            END,
        ),
        {"calls": [LOOKED, FINISHED]},
    ),
    "no ids": (
        events(parts(calling(0, None, "search", '{"query": "x"}')), parts(calling(1, None, "read", "{}")), END),
        {"calls": [(None, "search", {"query": "x"}), (None, "read", {})]},
    ),
    "a name in pieces": (
        events(
            parts(calling(0, "b", "__fin", "")),
            parts(calling(0, None, "ish__", "")),
            parts(calling(0, arguments='{"answer": "y"}')),
            END,
        ),
        {"calls": [FINISHED]},
    ),
    "the id and the name with each piece": (
        events(
            parts(calling(0, "b", "__finish__", "")),
            parts(calling(0, "b", "__finish__", '{"answer":')),
            parts(calling(0, "b", "__finish__", '"y"}')),
            END,
        ),
        {"calls": [FINISHED]},
    ),
    "empty pieces": (
        events(
            part(),
            part({"role": "assistant"}),
            part({"content": ""}),
            part({"content": None, "tool_calls": None}),
            part({"tool_calls": []}),
            {**part(), "choices": []},
            ANSWERED,
            parts(calling(0, arguments="")),
            part(),
            END,
            part(),
        ),
        {"calls": [FINISHED]},
    ),
    "usage behind the end": (
        events(ANSWERED, END, {**part(), "choices": [], "usage": USED}),
        {"calls": [FINISHED], "usage": Usage(100, 20, requests=1)},
    ),
    "usage with the end": (
        events(ANSWERED, part(reason="tool_calls", usage=USED)),
        {"calls": [FINISHED], "usage": Usage(100, 20, requests=1)},
    ),
    "usage with each piece": (
        events(
            parts(calling(0, "b", "__finish__", '{"answer":')) | {"usage": {**USED, "completion_tokens": 5}},
            parts(calling(0, arguments='"y"}')) | {"usage": {**USED, "completion_tokens": 10}},
            part(reason="tool_calls", usage=USED),
        ),
        {"calls": [FINISHED], "usage": Usage(100, 20, requests=1)},
    ),
    "text behind a call": (
        events(part({"content": "Hm. "}), ANSWERED, part({"content": "There."}), END),
        {"content": "Hm. There.", "calls": [FINISHED]},
    ),
    "no finish reason": (events(ANSWERED), {"calls": [FINISHED]}),
    "no finish reason behind text": (events(part({"content": "Hm."})), {"content": "Hm.", "stop": "stop"}),
    "another finish reason": (events(ANSWERED, part(reason="stop")), {"calls": [FINISHED]}),
    "no last line": (events(ANSWERED, END, done=False), {"calls": [FINISHED]}),
    "no last line feeds": (events(ANSWERED, END, done=False).rstrip(), {"calls": [FINISHED]}),
    "a finish reason beside the call": (
        events(part({"tool_calls": [calling(0, "b", "__finish__", '{"answer": "y"}')]}, "tool_calls")),
        {"calls": [FINISHED], "stop": "tool_calls"},
    ),
    "a finish reason beside text": (events(part({"content": "Hm."}, "length")), {"content": "Hm.", "stop": "length"}),
    "comments and other fields": (
        b": ping\n\n" + events(ANSWERED, done=False) + b": ping\n\nevent: x\nid: 5\nretry: 5\n\n" + events(END),
        {"calls": [FINISHED]},
    ),
    "other line ends": (
        events(part({"content": "a"}), ANSWERED, END).replace(b"\n", b"\r\n"),
        {"content": "a", "calls": [FINISHED]},
    ),
    "no blank": (events(ANSWERED, END).replace(b"data: ", b"data:"), {"calls": [FINISHED]}),
    "line separators in the text": (
        b"data: %s\n\n" % json.dumps(part({"content": SEPARATED}), ensure_ascii=False).encode() + events(END),
        {"content": SEPARATED},
    ),
    "thinking under another name": (
        events(part({"reasoning": "I th"}), part({"reasoning": "ink."}), ANSWERED, END),
        {"reasoning": "I think.", "calls": [FINISHED]},
    ),
    "a refusal": (
        events(
            part({"role": "assistant", "content": None, "refusal": None}),
            part({"refusal": "I can"}),
            part({"refusal": "not."}),
            part(reason="stop"),
        ),
        {"refusal": "I cannot."},
    ),
    "a content filter": (events(part({"content": "As"}), part(reason="content_filter")), {"stop": "content_filter"}),
    "nothing": (events(part(reason="stop")), {"content": "", "calls": []}),
}  # fmt: skip


@pytest.mark.chat
def test_openai_stream_in_nonstandard_form_is_parsed(gpt: Wire) -> None:
    for name, (body, expected) in ODD.items():
        with case(name):
            gpt.serve([Fault(body=body, content_type=EVENTS)])
            found = said(assembled(deltas(gpt.way, gpt.model())))
            assert {key: found[key] for key in expected} == expected
            assert gpt.count() == 1


@pytest.mark.parametrize("lane", ["litellm"], indirect=True)
def test_each_http_client_of_litellm_streams_line_separators_and_refusals(gpt: Wire) -> None:
    separated = b"data: %s\n\n" % json.dumps(part({"content": SEPARATED}), ensure_ascii=False).encode()
    body = separated + events(part({"refusal": "No."}), part(reason="length"))
    for name in ("hosted_vllm/x", "groq/x", "deepseek/x", "cerebras/x", "nvidia_nim/x"):
        with case(name):
            gpt.serve([Fault(body=body, content_type=EVENTS)] * 2)
            for _ in range(2):
                found = said(assembled(deltas(gpt.way, gpt.model(model=name))))
                assert (found["content"], found["refusal"], found["stop"]) == (SEPARATED, "No.", "length")
            assert gpt.count() == 2


@pytest.mark.every_way
@pytest.mark.chat
def test_stream_split_inside_line_and_character_is_joined(gpt: Wire) -> None:
    text = json.dumps(part({"content": "größer 🦔\u2028"}), ensure_ascii=False)
    body = f"data: {text}\n\n".encode() + events(ANSWERED, END)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    for size in range(1, 6):
        with case(size):
            pieces = [body[start : start + size] for start in range(0, len(body), size)]
            framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
            gpt.serve([head + framed])
            found = said(assembled(deltas(gpt.way, gpt.model())))
            assert (found["content"], found["calls"]) == ("größer 🦔\u2028", [FINISHED])


def block(index: int, start: Json, *pieces: Json) -> list[Json]:
    """Return a content block in Anthropic's form."""
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces),
        {"type": "content_block_stop", "index": index},
    ]


def tool_use(index: int, id: str, name: str, *pieces: str) -> list[Json]:
    start = {"type": "tool_use", "id": id, "name": name, "input": {}}
    return block(index, start, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def text(index: int, *pieces: str) -> list[Json]:
    start = {"type": "text", "text": ""}
    return block(index, start, *({"type": "text_delta", "text": piece} for piece in pieces))


def thought(index: int, signature: str, *pieces: str) -> list[Json]:
    start = {"type": "thinking", "thinking": "", "signature": ""}
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    return block(index, start, *deltas, {"type": "signature_delta", "signature": signature})


def message(*blocks: list[Json], reason: str = "tool_use", stop: bool = True, **usage: int) -> bytes:
    """Return a stream in Anthropic's form."""
    begun = {"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
    first = {"type": "message_start", "message": {**begun, "usage": {"input_tokens": 100, "output_tokens": 1}}}
    last = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 20, **usage}}
    told = [first, *(event for found in blocks for event in found), last]
    if stop:
        told.append({"type": "message_stop"})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in told).encode()


ODD_CLAUDE: dict[str, tuple[bytes, Json]] = {
    "several calls": (
        message(tool_use(0, "a", "search", '{"que', 'ry": "x"}'), tool_use(1, "b", "__finish__", '{"answer": "y"}')),
        {"calls": [LOOKED, FINISHED], "usage": Usage(100, 20, requests=1)},
    ),
    "no arguments": (message(tool_use(0, "a", "read")), {"calls": [("a", "read", {})]}),
    "empty arguments": (message(tool_use(0, "a", "read", "", "")), {"calls": [("a", "read", {})]}),
    "text behind a call": (
        message(text(0, "Hm. "), tool_use(1, "b", "__finish__", "", '{"answer": "y"}'), text(2, "", "There.")),
        {"content": "Hm. There.", "calls": [FINISHED]},
    ),
    "pings and news": (
        message(
            [{"type": "ping"}], text(0, "Hm."), [{"type": "ping"}, {"type": "something_new", "x": 1}],
            tool_use(1, "b", "__finish__", '{"answer": "y"}'),
        ),
        {"content": "Hm.", "calls": [FINISHED]},
    ),
    "no end": (message(tool_use(0, "b", "__finish__", '{"answer": "y"}'), stop=False), {"calls": [FINISHED]}),
    "usage at the end alone": (
        message(text(0, "Hm."), reason="end_turn", input_tokens=200, cache_read_input_tokens=50),
        {"content": "Hm.", "usage": Usage(250, 20, 50, requests=1)},
    ),
    "two thoughts": (
        message(thought(0, "one", "I th", "ink."), text(1, "Hm."), thought(2, "two", "So."), text(3, "Ah.")),
        {
            "content": "Hm.Ah.",
            "reasoning": "I think.So.",
            "extra": {
                "thinking_blocks": [
                    {"type": "thinking", "thinking": "I think.", "signature": "one"},
                    {"type": "thinking", "thinking": "So.", "signature": "two"},
                ]
            },
        },
    ),
    "a hidden thought": (
        message(block(0, {"type": "redacted_thinking", "data": "secret"}), thought(1, "one", "So."), text(2, "Ah.")),
        {
            "extra": {
                "thinking_blocks": [
                    {"type": "redacted_thinking", "data": "secret"},
                    {"type": "thinking", "thinking": "So.", "signature": "one"},
                ]
            }
        },
    ),
    "a thought without words": (
        message(thought(0, "one"), text(1, "Ah.")),
        {"extra": {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "one"}]}},
    ),
    "a refusal": (message(text(0, "No."), reason="refusal"), {"content": "No.", "stop": "content_filter"}),
    "the token limit": (
        message(tool_use(0, "b", "__finish__", '{"answer": "y"}'), reason="max_tokens"), {"stop": "length"}
    ),
    "nothing": (message(reason="end_turn"), {"content": "", "calls": []}),
}  # fmt: skip


def test_claude_stream_in_nonstandard_form_is_parsed(claude: Wire) -> None:
    for name, (body, expected) in ODD_CLAUDE.items():
        with case(name):
            claude.serve([Fault(body=body, content_type=EVENTS)])
            found = said(assembled(deltas(claude.way, claude.model())))
            found["extra"].pop("content_blocks", None)  # LiteLLM does not report the position of reasoning in the text.
            assert {key: found[key] for key in expected} == expected
            assert claude.count() == 1


def test_redacted_reasoning_of_stream_is_sent_back_unchanged(claude: Wire) -> None:
    hidden = {"type": "redacted_thinking", "data": "secret"}
    body = message(block(0, hidden), thought(1, "one", "So."), tool_use(2, "a", "search", '{"query": "x"}'))
    claude.serve([Fault(body=body, content_type=EVENTS), DONE])
    assert iterate(claude, Researcher(model=claude.model()), question="?")[-1].result == RIGHT
    assert claude.bodies()[1]["messages"][1]["content"][:2] == [
        hidden,
        {"type": "thinking", "thinking": "So.", "signature": "one"},
    ]


@pytest.mark.chat
def test_streamed_refusal_raises_model_error_with_text(gpt: Wire) -> None:
    gpt.serve([Fault(body=ODD["a refusal"][0], content_type=EVENTS)])
    with pytest.raises(ModelError, match=r"refused to answer: I cannot\."):
        iterate(gpt, Asker(model=gpt.model()), question="?")


@pytest.mark.chat
def test_tool_name_split_in_deltas_of_forced_request_is_joined(gpt: Wire) -> None:
    fragments = [calling(0, "b", "__fin", ""), calling(0, None, "ish__", ""), calling(0, arguments=json.dumps(SURE))]
    body = events(*map(parts, fragments), END)
    gpt.serve([Fault(body=body, content_type=EVENTS)] * 2)
    for _ in range(2):
        assert iterate(gpt, Asker(model=gpt.model()), question="?")[-1].result == RIGHT
    assert [body["tool_choice"]["function"]["name"] for body in gpt.bodies()] == ["__finish__"] * 2


SURE = {"answer": ANSWER, "confidence": 0.25}


# Broken streams

SHORT = {
    "openai": b"".join(
        b"data: %s\n\n" % line
        for line in (
            b'{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":'
            b'{"name":"__finish__","arguments":"{\\"result\\":"}}]}}]}',
            b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\"y\\"}"}}]}}]}',
            b'{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}',
            b"[DONE]",
        )
    ),
    "anthropic": b"".join(
        b"data: %s\n\n" % line
        for line in (
            b'{"type":"message_start","message":{"usage":{"input_tokens":1}}}',
            b'{"type":"content_block_start","content_block":{"type":"tool_use","id":"a","name":"__finish__"}}',
            b'{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\\"result\\":\\"y\\"}"}}',
            b'{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":2}}',
            b'{"type":"message_stop"}',
        )
    ),
}
ENDS: dict[str, Json] = {
    "closed": {"gently": True},
    "broken": {},
    "cut within HTTP's chunks": {"gently": True, "chunked": True},
}


class Cut:
    """Cut a server's response at a byte, and return the outcome."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.body = SHORT[protocol]
        self.fault = Fault()
        self.heard: list[Chunk] = []
        self.ends: set[str] = set()

    def serve(self, _: Request) -> Fault:
        return self.fault

    def at(self, at: int, end: str) -> Fault:
        self.heard.clear()
        self.fault = Fault(body=self.body, content_type=EVENTS, cut=at, **ENDS[end])
        return self.fault

    def has_come(self, at: int, end: str) -> tuple[bool, bool]:
        """Return whether the stop reason may have arrived, and whether it must have."""
        if ENDS[end].get("chunked"):  # The framing around the events shifts the position.
            return True, False
        reason = b'"finish_reason":"tool_calls"}]}' if self.protocol == "openai" else b'"usage":{"output_tokens":2}}'
        return reason in self.body[:at], reason + b"\n" in self.body[:at]

    def judge(self, at: int, end: str, retries: int, requests: int, run: Run[Any], error: BaseException | None) -> None:
        where = f"cut at byte {at}, {end}"
        may_be_whole, must_be_whole = self.has_come(at, end)
        if error is None:
            assert run.output == "y", where
            assert may_be_whole, f"{where}: half an answer was taken"
        else:
            assert type(error) is ModelError, f"{where}: {error!r}"
            assert error.retryable, where
            assert not must_be_whole, f"{where}: {error}"
            assert error.run is run, where
            assert not any(chunk.done for chunk in self.heard), where
        assert requests == (1 if self.heard or error is None else 1 + retries), f"{where}: {requests} requests"
        self.ends.add("whole" if error is None else "retried" if requests == 2 else "failed")


def cuts(body: bytes, lane: str) -> Iterator[tuple[int, str]]:
    """Return every byte in the long version of the tests, otherwise one in five, or fewer on the slow LiteLLM lane.

    The bytes around the ends of lines are always included.
    """
    for at in range(len(body)):
        if IS_LONG:
            yield from ((at, end) for end in ENDS)
        elif at % (13 if lane == "litellm" else 5) == 0 or b"\n" in body[at - 1 : at + 1]:
            yield at, list(ENDS)[at % 3]


def test_stream_cut_at_any_byte_returns_whole_response_or_raises_model_error(
    protocol: str, way: str, lane: str
) -> None:
    cut = Cut(protocol)

    async def main() -> None:
        for at, end in cuts(cut.body, lane):
            cut.at(at, end)
            retries = at % 2 == 0
            before, error = len(server.requests), None
            with capture() as runs:
                try:
                    if way == "sync":
                        agents[retries]()
                    else:
                        await asyncio.wait_for(agents[retries].acall(), PATIENCE)
                except BaseException as raised:
                    error = raised
            cut.judge(at, end, retries, len(server.requests) - before, runs[0], error)

    with Loopback(cut.serve) as server:
        config = {**getattr(server, protocol)(timeout=PATIENCE), "retry_delay": 0}
        listener = listening(module, cut.heard.append)
        agents = [
            listener(model={**config, "num_retries": count}, final_output=str, parse_retries=0) for count in (0, 1)
        ]
        asyncio.run(main())
    assert cut.ends == {"whole", "retried", "failed"}


@pytest.mark.every_way
def test_stream_broken_before_first_delta_is_retried(wire: Wire) -> None:
    for end in ENDS:
        heard: list[Chunk] = []
        wire.serve([Fault(reply=CHATTER, cut=20, **ENDS[end]), Fault(reset="before"), CHATTER])
        with case(end):
            run = wire.run(listening(Asker, heard.append)(model=wire.model()), question="?")
            assert run.output == RIGHT
            assert wire.count() == 3
            assert "".join(chunk.content for chunk in heard if chunk.content) == CHATTER.content


@pytest.mark.every_way
def test_stream_broken_after_first_delta_raises_model_error(wire: Wire) -> None:
    for end in ENDS:
        heard: list[Chunk] = []
        wire.serve([SEARCH, Fault(reply=CHATTER, cut=2500, **ENDS[end])])
        with case(end):
            with capture() as runs:
                error = wire.fails(listening(Researcher, heard.append)(model=wire.model()), question="?")
            assert wire.count() == 2
            assert error.retryable
            assert [chunk.content for chunk in heard if chunk.content][-1] in CHATTER.content
            assert (runs[0].error, runs[0].stop_reason) == (error, "error")
            assert_complete(runs[0].history)
            assert runs[0].usage.requests == 1


def test_stream_response_without_events_raises_model_error(wire: Wire) -> None:
    for body in (b"", b"\n\n", b"<html>Sign in</html>", b"null", b": ping\n\n"):
        wire.serve([Fault(body=body, content_type=EVENTS)] * 2)
        with pytest.raises(ModelError):
            deltas(wire.way, wire.model(num_retries=1))


# Errors

OVERLOADED = {
    "openai": events({"error": {"message": "we are overloaded", "type": "server_error", "code": 503}}, done=False),
    "anthropic": b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error",'
    b'"message":"we are overloaded"}}\n\n',
}


def test_stream_is_retried_after_retryable_status_only(wire: Wire, clock: FakeClock) -> None:
    for status, is_retryable, count in (
        (409, True, 2),
        (429, True, 2),
        (500, True, 0),
        (529, True, 2),
        (400, False, 2),
        (401, False, 2),
        (422, False, 2),
    ):
        wire.serve([Fault(status=status)] * 3)
        with case(status), pytest.raises(ModelError) as caught:
            deltas(wire.way, wire.model(num_retries=count))
        assert (caught.value.status, caught.value.retryable) == (status, is_retryable)
        assert wire.count() == (count + 1 if is_retryable else 1)


def test_retry_of_stream_request_is_also_stream_request(wire: Wire) -> None:
    wire.serve([Fault(status=503), Fault(status=429, headers={"Retry-After": "0"}), DONE])
    chunks = iterate(wire, Asker(model=wire.model()), question="?")
    assert chunks[-1].result == RIGHT
    assert [body["stream"] for body in wire.bodies()] == [True] * 3
    assert chunks[-1].run is not None
    assert chunks[-1].run.usage.requests == 1


def test_stream_request_to_refused_connection_raises_model_error(wire: Wire) -> None:
    server = wire.serve([])
    config = wire.model(num_retries=1)
    server.__exit__()
    with pytest.raises(ModelError, match="no connection"):
        deltas(wire.way, config)


def test_error_event_before_first_delta_is_retried(wire: Wire) -> None:
    told = Fault(body=OVERLOADED[wire.protocol], content_type=EVENTS)
    wire.serve([told, DONE])
    assert iterate(wire, Asker(model=wire.model()), question="?")[-1].result == RIGHT
    wire.serve([told, told])
    with pytest.raises(ModelError, match="we are overloaded") as caught:
        deltas(wire.way, wire.model(num_retries=1))
    assert wire.count() == 2
    assert "litellm" not in str(caught.value).lower()
    assert "exception" not in str(caught.value).lower()


@pytest.mark.chat
def test_error_event_after_first_delta_raises_without_retry(wire: Wire) -> None:
    begun = wire.either(openai=events(part({"content": "Hm."}), done=False), anthropic=message(text(0, "Hm.")))
    begun = begun.split(b"event: message_delta")[0]
    wire.serve([Fault(body=begun + OVERLOADED[wire.protocol], content_type=EVENTS)])
    with pytest.raises(ModelError, match="we are overloaded"):
        iterate(wire, Asker(model=wire.model()), question="?")
    assert wire.count() == 1


def test_stream_error_contains_no_api_key(wire: Wire) -> None:
    secret = "sk-very-secret-0123456789"
    wire.serve([Fault(reply=CHATTER, cut=3000), Fault(status=401, message=f"no such key: {secret}")])
    for _ in range(2):
        with pytest.raises(ModelError) as caught:
            iterate(wire, Asker(model=wire.model(api_key=secret)), question="?")
        error: BaseException | None = caught.value
        while error is not None:
            assert secret not in f"{error!r} {error}"
            error = error.__cause__ or error.__context__


# Leaving early


async def leave(agent: module[Any, Any], count: int) -> None:
    async with aclosing(agent.astream(question="?")) as chunks:
        for _ in range(count):
            await anext(chunks)


@pytest.mark.every_way
def test_leaving_stream_early_closes_connection_and_leaves_no_thread(wire: Wire) -> None:
    server = wire.serve(lambda _: Fault(reply=ENDLESS, drip=0.01))
    agent = Asker(model=wire.model())
    before = threading.active_count()
    counts = [1, 10, *([2] * 5)]
    with capture() as runs:
        for count in counts:
            if wire.way == "sync":
                chunks = agent.stream(question="?")
                for _ in range(count):
                    next(chunks)
                chunks.close()
            else:
                asyncio.run(leave(agent, count))
    assert comes_true(lambda: server.closed_early == len(counts))
    assert {run.stop_reason for run in runs} == {"cancelled"}
    assert comes_true(lambda: threading.active_count() <= before + 2)


@pytest.mark.every_way
def test_breaking_out_of_stream_loop_closes_connection(wire: Wire) -> None:
    async def main() -> None:
        async for chunk in agent.astream(question="?"):
            if chunk.content:
                break
        # The event loop closes abandoned streams.
        assert await asyncio.to_thread(comes_true, lambda: server.closed_early == 1)

    server = wire.serve([Fault(reply=ENDLESS, drip=0.01)])
    agent = Asker(model=wire.model())
    if wire.way == "async":
        asyncio.run(main())
    else:
        for chunk in agent.stream(question="?"):
            if chunk.content:
                break
        assert comes_true(lambda: server.closed_early == 1)


@pytest.mark.every_way
def test_on_stream_exception_closes_connection(wire: Wire) -> None:
    def hear(chunk: Chunk) -> None:
        raise KeyError("mine")

    server = wire.serve([Fault(reply=ENDLESS, drip=0.01)])
    with pytest.raises(KeyError, match="mine"):
        wire.run(listening(Asker, hear)(model=wire.model()), question="?")
    assert comes_true(lambda: server.closed_early == 1)
    assert wire.count() == 1


def test_cancelling_call_closes_connection() -> None:
    async def main() -> None:
        begun = asyncio.Event()
        agent = listening(Asker, lambda _: begun.set())(model=server.openai())
        task = asyncio.ensure_future(agent.acall(question="?"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(comes_true, lambda: server.closed_early == 1)

    with Loopback([Fault(reply=ENDLESS, drip=0.01)]) as server:
        asyncio.run(main())


# Time


def test_stream_longer_than_timeout_is_read_if_each_chunk_arrives_in_time(wire: Wire) -> None:
    def drip(timeout: float) -> Any:
        server = wire.serve([Fault(reply=DONE, drip=timeout / 10)])
        server.chunk = 3
        try:
            *chunks, last = iterate(wire, Asker(model=wire.model(timeout=timeout, num_retries=0)), question="?")
        except ModelError:  # The machine is busy: a piece of the stream was late.
            return None
        assert len(chunks) > 10
        return last.result

    assert given_time(drip, 0.1) == RIGHT


@pytest.fixture
def stalled() -> Iterator[Callable[[Wire], Loopback]]:
    """Start servers that send something and then nothing more until the test ends."""
    with ExitStack() as stack:
        release = threading.Event()
        stack.callback(release.set)

        def serve(wire: Wire) -> Loopback:
            begun = wire.either(openai=events(part({"content": "Hm."}), done=False), anthropic=message(text(0, "Hm.")))
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100000\r\n\r\n"
            return wire.serve([head + begun.split(b"event: message_delta")[0]] * 3)

        yield serve


@pytest.mark.every_way
@pytest.mark.chat
def test_stalled_stream_raises_model_error_after_timeout(wire: Wire, stalled: Callable[[Wire], Loopback]) -> None:
    def hurry(seconds: float) -> ModelError | None:
        stalled(wire)
        heard: list[Chunk] = []
        agent = listening(Asker, heard.append)(model=wire.model(timeout=seconds))
        with waiting_for_nothing(), pytest.raises(ModelError, match="no response in time") as caught:
            iterate(wire, agent, question="?")
        return caught.value if heard and wire.count() == 1 else None

    assert given_time(hurry, 0.1).retryable


def test_stream_that_does_not_start_is_retried_after_timeout(wire: Wire) -> None:
    def hurry(seconds: float) -> Chunk | None:
        wire.serve([Fault(delay=AGES, reply=DONE), DONE, DONE])
        chunks = iterate(wire, Asker(model=wire.model(timeout=seconds)), question="?")
        return chunks[-1] if wire.count() == 2 else None

    assert given_time(hurry, 0.1).result == RIGHT


@pytest.mark.chat
def test_stalled_stream_raises_limit_error_after_max_seconds(wire: Wire, stalled: Callable[[Wire], Loopback]) -> None:
    stalled(wire)
    with waiting_for_nothing(), pytest.raises(LimitError, match="max_seconds"):
        iterate(wire, Asker(model=wire.model(), max_seconds=0.1), question="?")


def check_left(wire: Wire, fault: Fault) -> None:
    """Check that an endless stream is left when the time of the run is up."""

    def hurry(seconds: float) -> LimitError | None:
        wire.serve([fault])
        agent = Asker(model=wire.model(), max_seconds=seconds)
        with pytest.raises(LimitError, match=rf"`Asker` used up its `max_seconds` of {seconds:g}") as caught:
            iterate(wire, agent, question="?")
        return caught.value if wire.count() == 1 else None

    assert "during a request to the model" in str(given_time(hurry, 0.1))
    assert comes_true(lambda: wire.server.closed_early == 1)  # The server notices at its next write.
    assert wire.count() == 1


@pytest.mark.every_way
def test_slow_stream_raises_limit_error_after_max_seconds(wire: Wire) -> None:
    check_left(wire, Fault(reply=Reply("word " * 1000), drip=0.02))


def test_stream_of_keepalives_raises_limit_error_after_max_seconds(wire: Wire) -> None:
    check_left(wire, Fault(body=b": still here\n\n" * 1000, content_type=EVENTS, drip=0.02))


def test_slow_stream_does_not_block_event_loop() -> None:
    async def main() -> None:
        begun = asyncio.Event()
        agent = listening(Asker, lambda _: begun.set())(model=server.openai())
        answering = asyncio.ensure_future(agent.acall(question="?"))
        await begun.wait()
        for _ in range(10):
            await asyncio.sleep(0.001)
        go_on.set()
        assert await answering == RIGHT

    go_on = threading.Event()
    with Loopback([Fault(reply=DONE, hold=go_on)]) as server:
        asyncio.run(main())
