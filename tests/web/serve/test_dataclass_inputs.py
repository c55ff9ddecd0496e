"""Tests of services whose agent has a dataclass or TypedDict as input: clients send its fields."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NotRequired

from tests.cases import each_case
from tests.web.serve.server import app, get, post
from typing_extensions import TypedDict

from acorn import module
from acorn.testing import ScriptedModel, finish


@dataclass
class Order:
    text: str
    limit: int = 3


class Letter(TypedDict):
    text: str
    limit: NotRequired[int]


def service(kind: Any) -> Any:
    body = {"initial_input": kind, "final_output": str, "__module__": __name__}
    agent = type("Agent", (module,), body)
    return app(agent(model=ScriptedModel(lambda request: finish(str(request.messages[-1]["content"])))))


@each_case("kind", [Order, Letter])
def test_run_route_accepts_fields_of_dataclass(kind: Any) -> None:
    assert "<text>hi</text>" in post(service(kind), "/run", {"text": "hi"}).json()


@each_case("kind", [Order, Letter])
def test_wrong_fields_of_dataclass_return_their_paths(kind: Any) -> None:
    answer = post(service(kind), "/run", {"limit": "x", "size": 1})
    assert answer.status_code == 422
    problems = answer.json()["error"]["problems"]
    assert [problem["path"] for problem in problems] == ["text", "limit", "size"]


@each_case("kind", [Order, Letter])
def test_chat_message_is_text_field_or_json_of_dataclass(kind: Any) -> None:
    for content in ("hi", json.dumps({"text": "hi"})):
        answer = post(service(kind), "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
        assert "<text>hi</text>" in answer.json()["choices"][0]["message"]["content"]


def test_openapi_input_is_schema_of_dataclass() -> None:
    schemas = get(service(Order), "/openapi.json").json()["components"]["schemas"]
    assert schemas["Input"] == {"$ref": "#/components/schemas/Input.Order"}
    assert list(schemas["Input.Order"]["properties"]) == ["text", "limit"]
