"""Tests that compare the native lanes with LiteLLM: request bodies and responses are equal, with listed exceptions.

`lane_differences.toml` lists each difference with a case and a reason. An unlisted difference fails, and so does a
listed difference that no longer exists.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.long_version import IS_LONG
from tests.loopback import Fault, Loopback, Request
from tools.write_prices import TABLE, prices

from acorn import ModelError
from acorn.models.assemble import Assembly
from acorn.models.failures import forget_rejections
from acorn.models.port import Model, ModelResponse
from acorn.models.providers import listed_price
from acorn.models.request import ModelRequest
from acorn.models.resolve import resolve
from acorn.testing import Reply, call
from acorn.types import Message, Usage

Json = dict[str, Any]
DIFFERENCES: dict[str, list[Json]] = tomllib.loads(Path(__file__).with_name("lane_differences.toml").read_text())
PNG = "iVBORw0KGgo="


def function(name: str, *, described: str = "", **properties: Any) -> Json:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    words = {"description": described} if described else {}
    return {"type": "function", "function": {"name": name, **words, "parameters": parameters}}


TOOL = function("search", described="Search the web.", query={"type": "string", "description": "What to look for"})
STRICT: Json = {"type": "function", "function": {**TOOL["function"], "strict": True}}
FINISH = function("__finish__", described="The end.", answer={"type": "string"})
ODD_TOOL = function("nothing")
NESTED = (
    function(
        "nested",
        described="Nested.",
        tree={"$ref": "#/$defs/Tree"},
    )
    | {}
)
NESTED["function"]["parameters"]["$defs"] = {
    "Tree": {"type": "object", "properties": {"left": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]}}}
}


@dataclass
class Case:
    """One request, and the dict of its model."""

    messages: list[Json]
    given: Json = field(default_factory=dict[str, Any])
    tools: list[Json] = field(default_factory=lambda: [TOOL, FINISH])
    how: Json = field(default_factory=dict[str, Any])
    """What else is in the request."""


def asked(*calls: tuple[str, str, str], content: Any = None, **rest: Any) -> Json:
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {}), **rest}


def told(call_id: str, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


SYSTEM: Json = {"role": "system", "content": "You answer questions."}
USER: Json = {"role": "user", "content": "<input>\n  <question>Why?</question>\n</input>"}
IMAGE: Json = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
FAR_IMAGE: Json = {"type": "image_url", "image_url": {"url": "https://example.org/oak.png"}}
DOCUMENT: Json = {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}}
SOUND: Json = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
THOUGHT: Json = {"type": "thinking", "thinking": "Hm.", "signature": "s1"}
HIDDEN: Json = {"type": "redacted_thinking", "data": "opaque"}
SEALED = "reasoning.encrypted_content"
RESPONSE_THOUGHT: Json = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": "opaque",
}
SERVED: Json = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "oak"}}
FOUND: Json = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"encrypted_content": "e"}]}
CITED: Json = {"type": "text", "citations": [{"type": "web_search_result_location", "encrypted_index": "i"}]}
SEARCHED: Json = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
SAID: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Oaks are old."}]}
ONE = asked(("c1", "search", '{"query":"why"}'))
CONVERSATIONS: dict[str, list[Json]] = {
    "a question": [SYSTEM, USER],
    "no system message": [USER],
    "two system messages": [SYSTEM, {"role": "system", "content": "Be brief."}, USER],
    "a system message in the middle": [SYSTEM, USER, ONE, told("c1", "r"), {"role": "system", "content": "Now."}],
    "a step": [SYSTEM, USER, ONE, told("c1", '["about why"]')],
    "words beside a call": [SYSTEM, USER, asked(("c1", "search", "{}"), content="Let me see."), told("c1", "r")],
    "calls side by side": [
        SYSTEM,
        USER,
        asked(("c1", "search", '{"query":"a"}'), ("c2", "search", '{"query":"b"}')),
        told("c1", "ra"),
        told("c2", "rb"),
    ],
    "an error as a result": [SYSTEM, USER, ONE, told("c1", "Error: it failed")],
    "an empty result": [SYSTEM, USER, ONE, told("c1", "")],
    "two steps": [
        *(SYSTEM, USER, ONE, told("c1", "r")),
        *(asked(("c2", "search", '{"query":"how"}')), told("c2", "s")),
    ],
    "words of the user behind a result": [SYSTEM, USER, ONE, told("c1", "r"), {"role": "user", "content": "Go on."}],
    "words of the model alone": [SYSTEM, USER, asked(content="Hm."), {"role": "user", "content": "Go on."}],
    "two users in a row": [SYSTEM, USER, {"role": "user", "content": "And how?"}],
    "parts": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Look:"}, IMAGE, FAR_IMAGE]}],
    "a document": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Read:"}, DOCUMENT]}],
    "a sound": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Listen:"}, SOUND]}],
    "parts behind a result": [
        *(SYSTEM, USER, ONE, told("c1", "r")),
        {"role": "user", "content": [{"type": "text", "text": "Media 1:"}, IMAGE]},
    ],
    "a result in parts": [
        SYSTEM,
        USER,
        ONE,
        told("c1", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
    ],
    "a system message in parts": [{"role": "system", "content": [{"type": "text", "text": "You answer."}]}, USER],
    "other letters": [SYSTEM, {"role": "user", "content": "Wörter, 語, 🌰, \u2028"}],
    "markup": [SYSTEM, {"role": "user", "content": '<a href="x">&amp;\n\t</a>'}],
    "deep arguments": [SYSTEM, USER, asked(("c1", "search", '{"a":{"b":[1,2.5,null,true,"é"]}}')), told("c1", "r")],
    "thoughts": [SYSTEM, USER, {**ONE, "thinking_blocks": [THOUGHT]}, told("c1", "r")],
    "hidden thoughts": [SYSTEM, USER, {**ONE, "thinking_blocks": [HIDDEN, THOUGHT]}, told("c1", "r")],
    "sealed thoughts": [SYSTEM, USER, {**ONE, "reasoning_items": [RESPONSE_THOUGHT]}, told("c1", "r")],
    "sealed thoughts beside words": [
        *(SYSTEM, USER),
        {
            **asked(("c1", "search", "{}"), content="Let me see."),
            "reasoning_items": [RESPONSE_THOUGHT, {**RESPONSE_THOUGHT, "id": "rs_2"}],
        },
        told("c1", "r"),
    ],
    "sealed thoughts before words alone": [
        *(SYSTEM, USER, {**asked(content="Hm."), "reasoning_items": [RESPONSE_THOUGHT]}),
        {"role": "user", "content": "Go on."},
    ],
    "a search by the provider": [
        *(SYSTEM, USER),
        {
            **asked(("c1", "search", "{}"), content="Oaks are old."),
            "content_blocks": [
                THOUGHT,
                SERVED,
                FOUND,
                {**CITED, "text": "Oaks are old."},
                {"type": "tool_use", "id": "c1"},
            ],
            "response_items": [RESPONSE_THOUGHT, SEARCHED, SAID, {"type": "function_call", "call_id": "c1"}],
        },
        told("c1", "r"),
    ],
    "a long talk": [
        SYSTEM,
        USER,
        *(m for n in range(9) for m in (asked((f"c{n}", "search", "{}")), told(f"c{n}", "r"))),
    ],
}
OPTIONS: dict[str, Json] = {
    "plain": {},
    "forced": {"how": {"forced_tool": "__finish__"}},
    "declared": {"how": {"temperature": 0.1, "max_tokens": 77, "declared": frozenset(("temperature", "max_tokens"))}},
    "one tool": {"tools": [FINISH]},
    "odd tools": {"tools": [ODD_TOOL, NESTED, FINISH]},
    "a strict tool": {"tools": [STRICT, FINISH]},
    "the system cached": {"how": {"cache": [{"location": "message", "role": "system"}]}},
    "cached by itself": {"how": {"cache": ({"location": "request"},)}},
    "the first cached": {"how": {"cache": [{"location": "message", "index": 0}]}},
    "the last cached": {"how": {"cache": [{"location": "message", "index": -1}]}},
    "cached for an hour": {
        "how": {"cache": [{"location": "message", "role": "system", "control": {"type": "ephemeral", "ttl": "1h"}}]}
    },
    "sampled": {"given": {"top_p": 0.5, "stop": ["END"]}},
    "one stop": {"given": {"stop": "END", "user": "someone"}},
    "one at a time": {"given": {"parallel_tool_calls": False}},
    "one at a time, forced": {"given": {"parallel_tool_calls": False}, "how": {"forced_tool": "__finish__"}},
    "more in the body": {"given": {"extra_body": {"guided": {"a": 1}}, "extra_headers": {"X-Team": "oak"}}},
    "top_k": {"given": {"top_k": 5}},
}
OPENAI_OPTIONS: dict[str, Json] = {
    "seeded": {"given": {"seed": 7, "logit_bias": {"5": 1}, "frequency_penalty": 0.5, "presence_penalty": 0.25}},
    "stored": {"given": {"store": True}},
    "a reasoning model": {"given": {"model": "openai/gpt-5"}},
    "an older reasoning model": {"given": {"model": "openai/o3-mini", "reasoning_effort": "low"}},
    "a model of the house": {"given": {"model": "openai/home/made:v2"}},
    "completion tokens": {"given": {"max_completion_tokens": 99}},
}
RESPONSES_OPTIONS: dict[str, Json] = {
    "a reasoning model": {"given": {"model": "openai/responses/gpt-5"}},
    "a later reasoning model": {"given": {"model": "openai/responses/gpt-5.1"}},
    "an older reasoning model": {"given": {"model": "openai/responses/o3-mini", "reasoning_effort": "low"}},
    "a summary": {
        "given": {"model": "openai/responses/gpt-5", "reasoning": {"effort": "low", "summary": "auto"}, "store": True}
    },
    "sealed": {"given": {"model": "openai/responses/gpt-5", "include": [SEALED], "store": False}},
    "a model of the house": {"given": {"model": "openai/responses/home/made:v2", "reasoning_effort": "high"}},
    "completion tokens": {"given": {"max_completion_tokens": 99}},
    "hardly any tokens": {"how": {"max_tokens": 5, "declared": frozenset(("max_tokens",))}},
    "kept": {"given": {"store": True, "truncation": "auto", "prompt_cache_key": "k", "safety_identifier": "s"}},
    "counted": {"given": {"max_tool_calls": 3, "top_logprobs": 2, "organization": "org-1"}},
    "any tool": {"given": {"tool_choice": "required"}},
    "one certain tool": {"given": {"tool_choice": {"type": "function", "function": {"name": "search"}}}},
    "no tools": {"tools": []},
    "a tool of its own": {"tools": [TOOL, {"type": "web_search", "search_context_size": "low"}, FINISH]},
    "brief": {"given": {"text": {"verbosity": "low"}}},
}
ANTHROPIC_OPTIONS: dict[str, Json] = {
    "thinking": {"given": {"thinking": {"type": "enabled", "budget_tokens": 1024}}},
    "a tool of its own": {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}, FINISH]},
    "not thinking": {"given": {"thinking": {"type": "disabled"}}},
    "an unknown model": {"given": {"model": "anthropic/claude-unheard-of"}},
    "completion tokens": {"given": {"max_completion_tokens": 99}},
}


def cases(spoken: str) -> Iterator[tuple[str, Case]]:
    """Return pairs of conversations and options; in the long version of the tests, all pairs."""
    more = {"openai": OPENAI_OPTIONS, "responses": RESPONSES_OPTIONS, "anthropic": ANTHROPIC_OPTIONS}[spoken]
    options = OPTIONS | more
    if spoken == "responses":  # The lanes do not know these settings and leave them to LiteLLM.
        options = {name: option for name, option in options.items() if {"stop", "top_k"}.isdisjoint(_given(option))}
    for at, (talk, messages) in enumerate(CONVERSATIONS.items()):
        for number, (name, option) in enumerate(options.items()):
            has_to_do_with_messages = name in ("plain", "forced") or (spoken == "anthropic" and "cached" in name)
            if IS_LONG or has_to_do_with_messages or (at + number) % 4 == 0:
                yield f"{talk}, {name}", Case(messages, **option)


def _given(option: Json) -> Json:
    found: Json = option.get("given", {})
    return found


def lanes(server: Loopback, spoken: str, given: Json) -> tuple[Model, Model]:
    config = {**getattr(server, spoken)(), "num_retries": 0, **given}
    return resolve(config, "Test"), resolve({**config, "lane": "litellm"}, "Test")


def request_of(case: Case) -> ModelRequest:
    messages: list[Message] = json.loads(json.dumps(case.messages))
    how = {"temperature": 0.7, "max_tokens": 4096, **case.how}
    return ModelRequest(messages, case.tools, **how)


def sent(server: Loopback, act: Callable[[], Any]) -> Request | str:
    before = len(server.requests)
    forget_rejections()  # This server never does what it is forced to.
    try:
        act()
    except ModelError as error:
        if len(server.requests) == before:
            return f"refused: {type(error).__name__}"
    return server.requests[before]


def allowed(kind: str, name: str) -> list[Json]:
    return [each for each in DIFFERENCES[kind] if each["case"] in name]


def without_differences(body: Json, known: list[Json]) -> Json:
    for each in known:
        body = {key: value for key, value in body.items() if key not in each["keys"]}
    return body


@pytest.mark.parametrize("spoken", ["openai", "responses", "anthropic"])
@pytest.mark.parametrize("how", ["whole", "streamed"])
def test_native_lane_request_bodies_equal_litellm_bodies(spoken: str, how: str) -> None:
    seen: set[str] = set()
    listed: set[str] = set()
    wrong: list[str] = []

    def ask(model: Any, request: ModelRequest) -> Any:
        return model.complete(request) if how == "whole" else list(model.stream(request))

    with Loopback(lambda request: Reply("ok")) as server:
        for name, case in cases(spoken):
            if how == "streamed" and not name.endswith((", plain", ", forced", "reasoning model", ", thinking")):
                continue  # Nothing else depends on it.
            if how == "streamed" and not IS_LONG and not name.startswith(("a question", "a step")):
                continue
            native, reference = lanes(server, spoken, case.given)
            assert "LiteLLM" not in repr(native), name
            ours, theirs = (sent(server, partial(ask, model, request_of(case))) for model in (native, reference))
            if isinstance(ours, str) or isinstance(theirs, str):
                if ours != theirs:
                    wrong.append(f"{name}: {ours} / {theirs}")
                continue
            known = allowed(spoken, name)
            listed |= {each["case"] for each in known}
            if ours.body != theirs.body:
                seen |= {each["case"] for each in known}
            left, right = without_differences(ours.body, known), without_differences(theirs.body, known)
            if left != right:
                keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
                wrong += [f"{name}, {key}: {_parting(left.get(key), right.get(key))}" for key in keys]
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:12])
    assert seen == listed, "a difference that is listed is not there any more"
    assert how == "streamed" or listed == {each["case"] for each in DIFFERENCES[spoken]}, "a listed case is not tried"


def _parting(one: Any, other: Any) -> str:
    """Return where two values start to differ."""
    one, other = repr(one), repr(other)
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return f"...{one[at : at + 120]} / ...{other[at : at + 120]}"


REPLIES: dict[str, Reply] = {
    "text": Reply("Hello."),
    "nothing": Reply(""),
    "a call": call("search", query="why"),
    "calls": call("search", query="why") & call("search", query="how"),
    "words and a call": Reply("Let me see.") & call("search", query="why"),
    "a thought": Reply(reasoning="Hm.") & call("search", query="why"),
    "cut off": Reply("Hel", stop_reason="length"),
    "filtered": Reply("Hel", stop_reason="content_filter"),
    "cached": Reply("Hi", usage=Usage(1000, 50, 400, 0)),
    "written to a cache": Reply("Hi", usage=Usage(1000, 50, 400, 0, 1, 300)),
    "reasoned": Reply("Hi", usage=Usage(1000, 50, 0, 30)),
    "other letters": Reply("Wörter, 語, 🌰"),
    "half an object": Reply("") & call("search", query="語"),
}


def read(spoken: str, model: Model, response: ModelResponse) -> Json:
    found = asdict(response)
    if response.cost is None and (price := model.price()) is not None:
        found["cost"] = price.of(response.usage)
    for made in found["tool_calls"]:
        made["arguments"] = json.loads(made["arguments"] or "{}")
    if spoken == "anthropic":
        found["usage"]["reasoning_tokens"] = 0  # LiteLLM estimates them; acorn reports the provider's figures.
    return found


@pytest.mark.parametrize("spoken", ["openai", "responses", "anthropic"])
@pytest.mark.parametrize("how", ["whole", "streamed"])
def test_native_lane_parses_responses_like_litellm(spoken: str, how: str) -> None:
    for name in REPLIES:
        with case(name):
            with Loopback([REPLIES[name]] * 2) as server:
                found: list[Json] = []
                for model in lanes(server, spoken, {}):
                    request = request_of(Case([SYSTEM, USER]))
                    if how == "whole":
                        found.append(read(spoken, model, model.complete(request)))
                    else:
                        assembly = Assembly()
                        for delta in model.stream(request):  # type: ignore[attr-defined]
                            assembly.add(delta)
                        found.append(read(spoken, model, assembly.response()))
            ours, theirs = found
            for each in (ours, theirs):  # The server numbers its requests.
                for made in each["tool_calls"]:
                    made["id"] = made["id"].rpartition("_")[2]
                for item in each["extra"].get("reasoning_items", []):
                    item["id"] = item["id"].partition("_")[0]
                for block in each["extra"].get("thinking_blocks", []):
                    block["signature"] = block["signature"].partition("-")[0]
                each["cost"] = None if each["cost"] is None else round(each["cost"], 9)
            assert ours == theirs


@pytest.mark.parametrize("spoken", ["openai", "responses", "anthropic"])
def test_native_lane_reports_errors_like_litellm(spoken: str) -> None:
    for status in [400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 529]:
        with case(status):
            with Loopback([Fault(status=status, message="no way", headers={"Retry-After": "7"})] * 2) as server:
                errors: list[ModelError] = []
                for model in lanes(server, spoken, {}):
                    with pytest.raises(ModelError) as caught:
                        model.complete(request_of(Case([SYSTEM, USER])))
                    errors.append(caught.value)
            ours, theirs = [(str(e), e.status, e.retryable, e.retry_after, e.provider) for e in errors]
            assert ours == theirs


# Choice of the lane


def test_native_lane_is_selected_only_for_models_and_settings_it_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[Any, str]] = [
        ("openai/gpt-4o", "OpenAIChat"),
        ("openai/responses/gpt-5", "OpenAIResponses"),
        ({"model": "openai/responses/gpt-5", "reasoning_effort": "low"}, "OpenAIResponses"),
        ({"model": "openai/responses/gpt-4o", "reasoning_effort": "low"}, "LiteLLM"),
        ({"model": "openai/responses/gpt-4o", "stop": "END"}, "LiteLLM"),
        ({"model": "openai/responses/gpt-4o", "response_format": {"type": "json_object"}}, "LiteLLM"),
        ("anthropic/claude-sonnet-4-5", "Anthropic"),
        ({"model": "openai/gpt-4o", "top_p": 0.5}, "OpenAIChat"),
        ({"model": "openai/gpt-4o", "lane": "native"}, "OpenAIChat"),
        ({"model": "openai/gpt-4o", "lane": "litellm"}, "LiteLLM"),
        ({"model": "openai/gpt-4o", "drop_params": True}, "LiteLLM"),
        ({"model": "openai/gpt-4o", "reasoning_effort": "low"}, "LiteLLM"),
        ({"model": "anthropic/claude-sonnet-4-5", "mcp_servers": []}, "LiteLLM"),
        ("groq/llama-3.3-70b-versatile", "LiteLLM"),
    ]
    for config, expected in rows:
        with case(config, expected):
            monkeypatch.delenv("ACORN_LANE")
            assert f"({expected}" in repr(resolve(config, "Test"))
            monkeypatch.setenv("ACORN_LANE", "litellm")
            forced = isinstance(config, dict) and "lane" in config
            assert f"({expected if forced else 'LiteLLM'}" in repr(resolve(config, "Test"))


def test_native_lane_price_table_equals_litellm_prices() -> None:
    assert json.loads(TABLE.read_text()) == prices(), "run `make prices`"
    assert listed_price("openai", "no-such-model") is None
