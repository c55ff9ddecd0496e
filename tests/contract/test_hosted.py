"""Tests of hosted tools, which the provider executes: acorn sends them and their results back unchanged."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.contract.test_responses import how as how
from tests.contract.test_responses import run
from tests.loopback import EVENTS, Fault, Loopback
from tests.loopback_responses import _events_of

from acorn import DeclarationError, ModelError, Run, Step, ToolConflictError, module, tool
from acorn.models.resolve import resolve
from acorn.testing import Reply, ScriptedModel, call, finish

Json = dict[str, Any]
CLAUDES: Json = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
OPENAIS: Json = {"type": "web_search", "search_context_size": "low"}
SEARCH = {"anthropic": CLAUDES, "responses": OPENAIS}
LANES = [("anthropic", "native"), ("anthropic", "litellm"), ("responses", "native")]
"""LiteLLM forgets what OpenAI's Responses have run, so by that lane such a tool is refused."""

THOUGHT: Json = {"type": "thinking", "thinking": "Hm.", "signature": "s1"}
USED: Json = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "oak"}}
FOUND: Json = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://e.org", "title": "Oak", "encrypted_content": "enc"}],
}
CITED: Json = {"type": "web_search_result_location", "url": "https://e.org", "title": "Oak", "encrypted_index": "i"}
TEXT: Json = {"type": "text", "text": "Oaks are old.", "citations": [{**CITED, "cited_text": "old"}]}
LOOK: Json = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"place": "x"}}
BLOCKS = [THOUGHT, USED, FOUND, TEXT, LOOK]

RS: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
WS: Json = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "oak"},
}
URL: Json = {"type": "url_citation", "url": "https://e.org", "title": "Oak", "start_index": 0, "end_index": 4}
SAID: Json = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Oaks are old.", "annotations": [URL]}],
}
FC: Json = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "look",
    "arguments": '{"place": "x"}',
    "status": "completed",
}
ITEMS = [RS, WS, SAID, FC]
DONE = finish(result="done")


class Looking(module):
    """You answer."""

    final_output = str
    max_steps = 5

    @tool
    def look(self, place: str) -> str:
        """Look somewhere."""
        return f"nothing at {place}"


def searched(spoken: str, is_stream: bool) -> Fault:
    """Return a response in which the provider searched and the model then calls a tool of the user."""
    if spoken == "anthropic":
        message: Json = {"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
        counted = {"input_tokens": 1, "output_tokens": 1}
        if not is_stream:
            body = {**message, "content": BLOCKS, "stop_reason": "tool_use", "usage": counted}
            return Fault(body=json.dumps(body).encode())
        start = {**message, "content": [], "stop_reason": None, "usage": counted}
        end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}}
        events = [{"type": "message_start", "message": start}, *claude_events(BLOCKS), end, {"type": "message_stop"}]
    else:
        counted = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        whole = {"id": "r", "object": "response", "status": "completed", "model": "gpt-5", "output": ITEMS}
        if not is_stream:
            return Fault(body=json.dumps({**whole, "usage": counted}).encode())
        events = [event for at, item in enumerate(ITEMS) for event in openai_events(item, at)]
        events.append({"type": "response.completed", "response": {**whole, "usage": counted}})
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Fault(body=text.encode(), content_type=EVENTS)


def claude_events(blocks: list[Json]) -> list[Json]:
    found: list[Json] = []
    for index, block in enumerate(blocks):
        start, deltas = block, list[Json]()
        if "input" in block:
            text = json.dumps(block["input"])
            start = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", text[:5], text[5:])]
        elif block["type"] == "text":
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in (block["text"][:4], block["text"][4:])]
            deltas += [{"type": "citations_delta", "citation": each} for each in block["citations"]]
        elif block["type"] == "thinking":
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        found.append({"type": "content_block_start", "index": index, "content_block": start})
        found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        found.append({"type": "content_block_stop", "index": index})
    return found


def openai_events(item: Json, at: int) -> list[Json]:
    if item["type"] != "web_search_call":
        return _events_of(item, at, 4)
    where = {"item_id": item["id"], "output_index": at}
    return [
        {"type": "response.output_item.added", "output_index": at, "item": {**item, "status": "in_progress"}},
        {"type": "response.web_search_call.searching", **where},
        {"type": "response.web_search_call.completed", **where},
        {"type": "response.output_item.done", "output_index": at, "item": item},
    ]


class Talk:
    """A provider that searches, on one of the lanes."""

    def __init__(self, spoken: str, lane: str, *later: Any, first: Any = None) -> None:
        self.spoken, self.lane = spoken, lane
        replies = iter(later or (DONE,))
        self._first = first

        def answer(request: Any) -> Any:
            is_first = len(self.server.requests) == 1
            if is_first:
                return self._first or searched(spoken, bool(request.body.get("stream")))
            return next(replies)

        self.server = Loopback(answer)

    @property
    def model(self) -> Json:
        name = {"anthropic": "claude-sonnet-4-5", "responses": "gpt-5"}[self.spoken]
        made: Json = getattr(self.server, self.spoken)(name, lane=self.lane)
        return made

    @property
    def tool(self) -> Json:
        return SEARCH[self.spoken]

    def sent(self, at: int) -> list[Json]:
        """Return the model's first turn in a request."""
        body = self.server.bodies()[at]
        found: list[Json]
        if self.spoken == "anthropic":
            found = body["messages"][1]["content"]
            return found
        items = body["input"][1:]
        found = items[: next(at for at, item in enumerate(items) if item["type"] == "function_call_output")]
        return found

    @property
    def expected(self) -> list[Json]:
        if self.spoken == "responses":
            keys = ("type", "call_id", "name", "arguments")
            return [*ITEMS[:-1], {key: FC[key] for key in keys}]
        if self.lane == "native":
            return BLOCKS
        return [block if block is not TEXT else {"type": "text", "text": TEXT["text"]} for block in BLOCKS]


@pytest.fixture(params=LANES, ids="-".join)
def speaker(request: pytest.FixtureRequest, litellm_is_loaded: None) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


# Round trip


def test_hosted_tool_dict_is_sent_unchanged(speaker: tuple[str, str], how: str) -> None:
    talk = Talk(*speaker)
    with talk.server:
        assert run(Looking(model=talk.model, tools=[talk.tool]), how) == "done"
    for body in talk.server.bodies():
        assert [tool for tool in body["tools"] if "max_uses" in tool or "search_context_size" in tool] == [talk.tool]
        assert [tool.get("name") for tool in body["tools"]][-1] == "__finish__"


def test_hosted_tool_results_are_sent_back_unchanged(speaker: tuple[str, str], how: str) -> None:
    talk = Talk(*speaker, call("look", place="y"), DONE)
    with talk.server:
        assert run(Looking(model=talk.model, tools=[talk.tool]), how) == "done"
    assert talk.sent(1) == talk.sent(2) == talk.expected


def test_hosted_tool_calls_are_not_executed(speaker: tuple[str, str], how: str) -> None:
    seen: list[Any] = []

    class Watching(Looking):
        def on_step(self, step: Step) -> None:
            seen.append((step.content, [made.name for made in step.tool_calls], len(step.tool_results)))

    talk = Talk(*speaker)
    with talk.server:
        run(Watching(model=talk.model, tools=[talk.tool]), how)
    assert seen == [("Oaks are old.", ["look"], 1)]


def test_hosted_tool_results_are_sent_back_after_resume_from_store(
    speaker: tuple[str, str], how: str, tmp_path: Path
) -> None:
    @tool(approval=True)
    def look(place: str) -> str:
        """Look somewhere."""
        return "nothing"

    talk = Talk(*speaker)

    class Asking(module):
        """You answer."""

        final_output = str
        max_steps = 5
        tools = [talk.tool, look]
        store = tmp_path / "runs.db"

    with talk.server:
        paused = run(Asking(model=talk.model), how)
        assert Asking(model=talk.model).resume(paused.run_id, answer=True) == "done"
    assert talk.sent(1) == talk.expected


def test_hosted_tool_results_are_sent_back_after_json_load(speaker: tuple[str, str]) -> None:
    talk = Talk(*speaker, DONE, DONE)
    with talk.server:
        agent = Looking(model=talk.model, tools=[talk.tool])
        read: Run[Any] = Run.from_json(agent.run().to_json())
        assert agent.using(history=read)() == "done"
    assert talk.sent(2) == talk.expected


def test_branch_inherits_hosted_tool_and_its_results(speaker: tuple[str, str]) -> None:
    class Checking(module):
        """Check it."""

        final_output = str
        max_steps = 3

    class Parent(Looking):
        branches = {"check": Checking}

    talk = Talk(*speaker, call("check"), DONE, DONE)
    with talk.server:
        assert Parent(model=talk.model, tools=[talk.tool])() == "done"
    assert talk.sent(2) == talk.expected
    assert all(json.dumps(talk.tool) in json.dumps(body["tools"]) for body in talk.server.bodies())


def test_edited_text_of_message_with_hosted_results_is_sent(speaker: tuple[str, str]) -> None:
    class Editing(Looking):
        def on_step(self, step: Step) -> None:
            turn = next(message for message in self.history if message.get("tool_calls"))
            turn["content"] = "Changed."

    talk = Talk(*speaker)
    with talk.server:
        assert Editing(model=talk.model, tools=[talk.tool])() == "done"
    sent = json.dumps(talk.sent(1))
    assert "Changed." in sent
    assert "Oaks are old" not in sent
    assert ("enc" in sent) if talk.spoken == "anthropic" else ("ws_1" in sent)


@pytest.mark.parametrize("other", ["openai", "anthropic", "responses"])
@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_hosted_tool_results_are_not_sent_to_other_provider(speaker: tuple[str, str], other: str, lane: str) -> None:
    if other == speaker[0]:
        return
    talk = Talk(*speaker)

    class Changing(Looking):
        def on_step(self, step: Step) -> None:
            step.remove_tool("web_search")
            step.model = getattr(talk.server, other)(lane=lane)

    with talk.server:
        assert Changing(model=talk.model, tools=[talk.tool])() == "done"
    raw = talk.server.requests[1].raw
    for word in (b"web_search", b"content_blocks", b"response_items", b"sealed", b"enc"):
        assert word not in raw
    assert b"Oaks are old." in raw


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_unfinished_hosted_search_of_paused_response_is_not_sent_back(lane: str, litellm_is_loaded: None) -> None:
    body = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [TEXT, USED]}
    paused = {**body, "stop_reason": "pause_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}
    talk = Talk("anthropic", lane, first=Fault(body=json.dumps(paused).encode()))
    with talk.server:
        assert Looking(model=talk.model, tools=[CLAUDES])() == "done"
    assert [block["type"] for block in talk.sent(1)] == ["text"]


def test_custom_server_accepts_any_hosted_tool() -> None:
    with Loopback([DONE] * 2) as server:
        for lane in ("native", "litellm"):
            assert Looking(model=server.openai(lane=lane), tools=[{"type": "browser_search"}])() == "done"
    assert [body["tools"][0] for body in server.bodies()] == [{"type": "browser_search"}] * 2


# Models that do not accept it

REFUSING: list[tuple[Any, Json]] = [
    ({"model": "openai/gpt-4o", "api_key": "k"}, OPENAIS),
    ({"model": "openai/gpt-4o", "api_key": "k", "lane": "litellm"}, OPENAIS),
    ({"model": "openai/responses/gpt-5", "api_key": "k"}, CLAUDES),
    ({"model": "openai/responses/gpt-5", "api_key": "k", "lane": "litellm"}, OPENAIS),
    ({"model": "anthropic/claude-sonnet-4-5", "api_key": "k"}, OPENAIS),
    ({"model": "anthropic/claude-sonnet-4-5", "api_key": "k", "lane": "litellm"}, OPENAIS),
    ({"model": "gemini/gemini-2.5-pro", "api_key": "k"}, CLAUDES),
    ({"model": "mistral/mistral-large-latest", "api_key": "k"}, CLAUDES),
    ("local/smollm2", CLAUDES),
    ([{"model": "anthropic/claude-sonnet-4-5", "api_key": "k"}, {"model": "openai/gpt-4o", "api_key": "k"}], CLAUDES),
]


def test_hosted_tool_that_model_cannot_run_raises_declaration_error_before_request() -> None:
    for model, entry in REFUSING:
        with case(model, entry):
            with pytest.raises(DeclarationError) as caught:
                Looking(model=model, tools=[entry])()
            assert "cannot run the hosted tool `web_search` of `Looking`, tools[0]" in str(caught.value)


def test_model_object_without_support_for_hosted_tool_raises_declaration_error() -> None:
    class Mine:
        name = "mine"

        def can_force_tool(self, request: Any) -> bool:
            return True

        def price(self) -> None:
            return None

        def complete(self, request: Any) -> Any:
            raise AssertionError("nothing is to be asked")

        acomplete = complete

    with pytest.raises(DeclarationError, match="`mine` cannot run the hosted tool `web_search`"):
        Looking(model=Mine(), tools=[CLAUDES])()


def test_model_set_by_hook_that_cannot_run_hosted_tool_raises_declaration_error() -> None:
    class Changing(Looking):
        def on_step(self, step: Step) -> None:
            step.model = {"model": "openai/gpt-4o", "api_key": "k"}

    talk = Talk("anthropic", "native")
    with talk.server, pytest.raises(DeclarationError, match="`openai/gpt-4o` cannot run the hosted tool `web_search`"):
        Changing(model=talk.model, tools=[CLAUDES])()
    assert len(talk.server.requests) == 1


def test_takes_tool_returns_true_only_for_hosted_tool_of_same_provider() -> None:
    from acorn.models.port import takes_tool

    model = resolve({"model": "anthropic/claude-sonnet-4-5", "api_key": "k"}, "Test")
    assert takes_tool(model, CLAUDES)
    assert not takes_tool(model, OPENAIS)


# Declaration

WRONG: list[tuple[Any, str]] = [
    ({}, "`Wrong.tools[0]` is a dict with nothing. A hosted tool needs a `type`"),
    ({"name": 5}, "is a dict with `name`. A hosted tool needs a `type`"),
    ({"googleSearch": {}}, "is a dict with `googleSearch`. A hosted tool needs a `type`"),
    ({"type": "web_search", "name": 5}, "whose name must be a string"),
    ({"a": 1, "b": 2}, "is a dict with `a`, `b`. A hosted tool needs a `type`"),
    ({"type": 5}, "`type` must be the name of a hosted tool"),
    ({"type": " "}, "`type` must be the name of a hosted tool"),
    ({"type": "function", "function": {"name": "f"}}, "describes a function (`type` is 'function')"),
    ({"type": "custom", "name": "f", "input_schema": {}}, "describes a function"),
    ({"type": "bash_20250124", "name": "bash"}, "`bash_20250124`, which the provider does not run itself"),
    ({"type": "web_search", "name": "two words"}, "has a tool named 'two words'"),
    ({"type": "web_search", "name": "__finish__"}, "has a tool named `__finish__`"),
    ({"type": "web_search", "x": object()}, "must be JSON data"),
    ({"type": "web_search", "x": float("nan")}, "must be JSON data"),
]


def test_invalid_hosted_tool_dict_raises_declaration_error_in_class_statement() -> None:
    for entry, words in WRONG:
        with case(entry, words):
            with pytest.raises(DeclarationError) as caught:

                class Wrong(module):
                    tools = [entry]

            assert words in str(caught.value)


def test_secret_in_invalid_hosted_tool_dict_is_absent_from_error() -> None:
    with pytest.raises(DeclarationError) as caught:
        Looking(tools=[{"type": 5, "authorization": "sk-secret"}])
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_hosted_tool_secret_echoed_by_provider_is_absent_from_error(lane: str) -> None:
    entry = {"type": "mcp", "server_label": "shop", "authorization": "zebra-one", "headers": {"X-Odd": "zebra-two"}}
    refusal = Fault(status=400, message=f"This tool is wrong: {entry}")
    with Loopback([refusal]) as server, pytest.raises(ModelError, match="This tool is wrong") as caught:
        Looking(model=server.openai(lane=lane), tools=[entry])()
    assert "zebra" not in "".join(traceback.format_exception(caught.value))
    assert "zebra" not in caught.value.run.to_json()


def test_tool_named_like_hosted_tool_raises_tool_conflict_error() -> None:
    def web_search(query: str) -> str:
        """Search."""
        return ""

    with pytest.raises(ToolConflictError, match="Tool 'web_search' of `Looking` is defined twice"):
        Looking(tools=[CLAUDES, web_search])
    with pytest.raises(ToolConflictError, match="'look' defined in both tools attribute and as method"):
        Looking(tools=[{"type": "web_search", "name": "look"}])
    with pytest.raises(ToolConflictError):
        Looking(tools=[{"type": "mcp", "server_label": "a", "server_url": "x"}, {"type": "mcp", "server_label": "a"}])


def test_equal_hosted_tools_are_sent_once_but_mcp_servers_once_per_label() -> None:
    model = ScriptedModel([DONE])
    servers = [{"type": "mcp", "server_label": label, "server_url": "https://e.org"} for label in ("a", "b")]
    Looking(model=model, tools=[CLAUDES, dict(CLAUDES), *servers])()
    assert model.requests[0].tools[:3] == [CLAUDES, *servers]


def test_change_of_hosted_tool_dict_between_calls_is_sent_in_next_call() -> None:
    entry: Json = dict(CLAUDES)
    model = ScriptedModel([DONE] * 2)
    agent = Looking(model=model, tools=[entry])
    agent()
    entry["max_uses"] = 9
    agent()
    assert [request.tools[0]["max_uses"] for request in model.requests] == [3, 9]


def test_hosted_tool_added_by_hook_is_sent_until_hook_removes_it() -> None:
    class Changing(Looking):
        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                step.add_tool(OPENAIS)  # type: ignore[arg-type]
            else:
                listed: list[Any] = list(step.tools)
                assert OPENAIS in listed
                step.remove_tool("web_search")

    model = ScriptedModel([call("look", place="a"), call("look", place="b"), DONE])
    Changing(model=model)()
    assert [OPENAIS in request.tools for request in model.requests] == [False, True, False]


def test_function_call_to_hosted_tool_is_answered_with_tool_error() -> None:
    model = ScriptedModel([call("web_search", query="x"), DONE])
    Looking(model=model, tools=[CLAUDES])()
    assert "The provider executes `web_search`" in model.requests[1].messages[-1]["content"]


def test_single_turn_agent_with_hosted_tool_is_not_forced_to_finish() -> None:
    class Single(module):
        """You answer."""

        final_output = str
        tools = [CLAUDES]

    model = ScriptedModel([Reply("Well.") & DONE])
    assert Single(model=model)() == "done"
    assert model.requests[0].forced_tool is None
